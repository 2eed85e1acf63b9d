"""What a command that stays with a job shows on stderr until it is over.

On a terminal that is one screen, which leaves nothing behind but how it ended; elsewhere it is a
line for each change.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Self

from arena_topo import layout
from arena_topo.cli.detaching import detaching
from arena_topo.cli.live import live, turning
from arena_topo.cli.options import LogLevel, hears, say, tell, warn
from arena_topo.cli.terminal import draws, moves, wrapped
from arena_topo.cli.watching import Sight
from arena_topo.engines import Backend, JobStatus, slots_of
from arena_topo.escaping import one_line
from arena_topo.gang import Watcher
from arena_topo.jobs import progress, view

if TYPE_CHECKING:
    from arena_topo.gang.submission import Submitted


class WaitLine:
    """What is waited for: a line in its place on a terminal, while it is shown."""

    def __init__(self, name: str, what: str) -> None:
        """Begin with what the job is at first; nothing is shown yet."""
        self.name, self.what, self.doubt = name, what, ""
        self.begun = time.monotonic()
        self._stack: ExitStack | None = None

    @property
    def shown(self) -> bool:
        """Whether it is on the terminal now."""
        return self._stack is not None

    def show(self) -> None:
        """Let a terminal show it from now on."""
        if self._stack is None and lives():
            self._stack = ExitStack()
            self._stack.enter_context(live(sys.stderr, self._screen))

    def hide(self) -> None:
        """Take it off the terminal."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            stack.close()

    def _screen(self, columns: int) -> str:
        since = layout.duration(time.monotonic() - self.begun)
        text = f"{self.name} {self.what} ({since}{self.doubt})"
        return f"{turn()} {layout.fold(text, columns - 2)}"


class Staying(WaitLine):
    """Who stays until a job has its GPUs and its workers have come together.

    What is waited for is shown on a terminal until the end of the block. `heard` says whether
    anything was told of the job.
    """

    heard = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.hide()

    def watcher(self, *, stay: bool, end: float | None = None) -> Watcher:
        """What tells this of a gang."""
        return Watcher(stay=stay, end=end, tell=self.tell, sees=self.see)

    def tell(self, text: str) -> None:
        """Something happened to it."""
        self.what, self.heard = "waits", True
        say(one_line(text))

    def see(self, text: str) -> None:
        """What there is still to wait for."""
        self.heard = True
        self.what = f"is starting: {one_line(text)}" if text else "is starting"


def summarise(done: Submitted, *, waits: bool) -> None:
    """Say where the workers of a job that was submitted go, or why it waits."""
    plan, status = done.plan, done.status
    tell((*plan.notes, *done.notes))
    # What was recorded, not what was planned: an engine may have had to decide anew.
    forecast = (status.forecast if status else None) or plan.forecast
    placed = forecast is not None and bool(forecast.workers)
    if forecast is not None and placed:
        slots = max(1, plan.job.gpus)
        table = view.placement(forecast, plan.job.name, slots=slots, binding=plan.binding)
        say(table.rstrip("\n"))
        for one in done.advice:
            say(f"Advice: {one}")
    if status is None:
        warn(f"the job {plan.job.name} was created, but cannot be read: {done.unread}")
    elif not waits and not placed and (trouble := view.trouble(status)) is not None:
        say(trouble)
    if done.nearest is not None:
        say(layout.fold(f"  try:  {done.nearest}", wrapped(sys.stderr), indent=" " * 8))
    if done.starter is not None:
        say(layout.fold(f"  {done.starter}", wrapped(sys.stderr)))


def wait_for_end(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None,
    done: Submitted | None = None,
    ended: Callable[[JobStatus], None] = lambda _: None,
) -> None:
    """Show how a job gets to its end; JobFailed with the launcher's exit code if it fails.

    `done` is what `summarise` has told of it already; `ended` hears how the job ended.
    """
    from arena_topo.engines import waiting  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

    known = done and ((done.status and done.status.forecast) or done.plan.forecast)
    placed, latest = known.workers if known else (), None
    sight, shows = Sight(), lives()

    def seen(status: JobStatus) -> None:
        nonlocal placed, latest
        sight.caught()
        latest, forecast = status, status.forecast
        # A gang that waited, or was taken back, has its GPUs only now.
        if forecast is not None and forecast.workers and forecast.workers != placed:
            placed = forecast.workers
            say(view.placement(forecast, name, slots=slots_of(forecast, status)).rstrip("\n"))

    def told(status: JobStatus) -> None:
        if not shows or status.phase.over:
            say(progress.news(status))
        if status.phase.over:
            ended(status)

    def screen(columns: int) -> str:
        if latest is None:
            return f"{turn()} {name}"
        text = progress.screen(latest, now=time.time(), width=columns - 2)
        return "\n".join(filter(None, [f"{turn()} {text.rstrip()}", sight.remark()]))

    hears = waiting.Listener(tell=told, seen=seen)
    shown = live(sys.stderr, screen) if shows else nullcontext()
    with detaching(backend, name, namespace, there=lambda: True), shown:
        submission.to_the_end(backend, name, namespace, timeout=timeout, hears=hears)


def lives() -> bool:
    """Whether stderr shows what is waited for in its place, on a terminal."""
    return hears(LogLevel.INFO) and sys.stderr is not None and moves(sys.stderr)


def turn() -> str:
    """One character that turns while something is waited for."""
    return turning(unicode=draws(stream=sys.stderr))
