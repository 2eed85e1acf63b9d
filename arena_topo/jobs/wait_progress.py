"""Progress on stderr of a command that waits for a job.

On a terminal it is one screen, which is cleared at the end; elsewhere a line for each change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Self

from arena_topo import layout
from arena_topo.cli.console import Console
from arena_topo.cli.interrupt_message import job_goes_on
from arena_topo.cli.live import live, spinner_frame
from arena_topo.cli.refresh import Freshness
from arena_topo.cli.terminal import may_use_unicode, wrap_columns
from arena_topo.engines import JobStatus, slots_of
from arena_topo.engines.backend import Backend
from arena_topo.escaping import one_line
from arena_topo.gang import Watcher
from arena_topo.jobs import progress, view
from arena_topo.jobs.training_view import training_line

if TYPE_CHECKING:
    from arena_topo.gang.submission import Submitted


class WaitLine:
    """What a command waits for: a line that is redrawn on a terminal."""

    def __init__(self, console: Console, name: str, what: str) -> None:
        """Start with the first status of the job; nothing is shown yet."""
        self.console = console
        self.name, self.what, self.doubt = name, what, ""
        self.begun = time.monotonic()
        self._stack: ExitStack | None = None

    @property
    def shown(self) -> bool:
        """Whether the line is on the terminal."""
        return self._stack is not None

    def show(self) -> None:
        """Show the line, if stderr is a terminal."""
        if self._stack is None and self.console.shows_progress:
            self._stack = ExitStack()
            self._stack.enter_context(live(self.console, self.console.stderr, self._screen))

    def hide(self) -> None:
        """Clear the line."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            stack.close()

    def _screen(self, columns: int) -> str:
        since = layout.duration(time.monotonic() - self.begun)
        text = f"{self.name} {self.what} ({since}{self.doubt})"
        return f"{progress_frame(self.console)} {layout.fold(text, columns - 2)}"


class WaitProgress(WaitLine):
    """The line of a command that waits until the workers of a job have their nodes.

    It is shown until the end of the block. `heard`: there was a message about the job.
    """

    heard = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.hide()

    def watcher(self, *, stay: bool, end: float | None = None) -> Watcher:
        """The watcher of a gang that updates this line."""
        return Watcher(stay=stay, end=end, tell=self.tell, sees=self.see)

    def tell(self, text: str) -> None:
        """Print a message about the job."""
        self.what, self.heard = "waits", True
        self.console.info(one_line(text))

    def see(self, text: str) -> None:
        """Show what is still missing; empty: nothing is known."""
        self.heard = True
        self.what = f"is starting: {one_line(text)}" if text else "is starting"


def summarise(console: Console, done: Submitted, *, waits: bool) -> None:
    """Print the placement of a submitted job, or why it waits."""
    plan, status = done.plan, done.status
    console.notes((*plan.notes, *done.notes))
    # The recorded placement, which may differ from the planned one.
    forecast = (status.forecast if status else None) or plan.forecast
    placed = forecast is not None and bool(forecast.workers)
    if forecast is not None and placed:
        slots = max(1, plan.job.gpus)
        table = view.placement_rows(forecast, plan.job.name, slots=slots, binding=plan.binding)
        console.info(table.rstrip("\n"))
        for hint in done.advice:
            console.info(f"Advice: {hint}")
        if done.training is not None:
            console.info(training_line(done.training))
    if status is None:
        console.warn(f"the job {plan.job.name} was created, but cannot be read: {done.unread}")
    elif (trouble := _trouble(done, waits=waits)) is not None:
        console.info(trouble)
    if done.wait is not None:
        until, waited = layout.clock(done.wait.until), f"for {done.wait}"
        text = f"It waits until {until} at most {waited}; --patience 0 starts at once"
        if placed:
            text = f"With a controller or --wait it would have waited until {until} {waited}"
        console.info(layout.fold(f"  {text}", wrap_columns(console.stderr)))
    elif status is not None and status.until is not None:
        text = f"It {view.patience_clause(status.until)}; --patience 0 starts at once"
        console.info(layout.fold(f"  {text}", wrap_columns(console.stderr)))
    if done.nearest is not None:
        console.info(
            layout.fold(f"  try:  {done.nearest}", wrap_columns(console.stderr), indent=" " * 8)
        )
    if done.starter is not None:
        console.info(layout.fold(f"  {done.starter}", wrap_columns(console.stderr)))


def _trouble(done: Submitted, *, waits: bool) -> str | None:
    """Why a submitted job has no placement yet, in a line; None if it has one, or just begins.

    `waits`: the command waits, and shows by itself how a job starts that needs no placement.
    """
    from arena_topo.engines.kubernetes.mpijob import NO_PODS  # noqa: PLC0415 - rarely needed

    status = done.status
    forecast = (status.forecast if status else None) or done.plan.forecast
    # Right after a submission it is no trouble that there are no pods.
    if status is None or status.reason == NO_PODS or (forecast is not None and forecast.workers):
        return None
    if waits and not status.waits:
        return None
    return view.why_not_running(status)


def wait_for_end(
    console: Console,
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None,
    done: Submitted | None = None,
    ended: Callable[[JobStatus], None] = lambda _: None,
) -> None:
    """Show the progress of a job to its end; JobFailed with the launcher's exit code if it fails.

    `done` is the submission that `summarise` has printed; `ended` gets the final status.
    """
    from arena_topo.engines import goals  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.gang.wait import wait_until_over  # noqa: PLC0415 - the verbs load what they need

    known = done and ((done.status and done.status.forecast) or done.plan.forecast)
    placed, latest = known.workers if known else (), None
    sight, shows = Freshness(), console.shows_progress
    summarised = None if done is None else _trouble(done, waits=True)

    def seen(status: JobStatus) -> None:
        nonlocal placed, latest
        sight.mark_answered()
        latest, forecast = status, status.forecast
        # A gang that waited, or was rolled back, gets its GPUs only now.
        if forecast is not None and forecast.workers and forecast.workers != placed:
            placed = forecast.workers
            console.info(
                view.placement_rows(forecast, name, slots=slots_of(forecast, status)).rstrip("\n")
            )

    def show_progress(status: JobStatus) -> None:
        nonlocal summarised
        sentence, before, summarised = progress.phase_sentence(status), summarised, None
        if (not shows and sentence != before) or status.phase.over:
            console.info(sentence)
        if status.phase.over:
            ended(status)

    def screen(columns: int) -> str:
        if latest is None:
            return f"{progress_frame(console)} {name}"
        text = progress.progress_screen(latest, now=console.clock(), width=columns - 2)
        return "\n".join(
            filter(None, [f"{progress_frame(console)} {text.rstrip()}", sight.stale_note()])
        )

    hears = goals.Listener(tell=show_progress, seen=seen)
    shown = live(console, console.stderr, screen) if shows else nullcontext()
    with job_goes_on(console, backend, name, namespace, exists=lambda: True), shown:
        wait_until_over(backend, name, namespace, timeout=timeout, hears=hears)


def progress_frame(console: Console) -> str:
    """The current frame of the spinner on stderr."""
    return spinner_frame(unicode=may_use_unicode(console.stderr))
