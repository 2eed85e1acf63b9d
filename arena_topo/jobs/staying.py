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
from arena_topo.jobs import progress, view
from arena_topo.manifests import Binding, Forecast

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
        text = f"{self.name} {self.what}, {since}{self.doubt}"
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
        _placement(forecast, plan.job.name, slots=max(1, plan.job.gpus), binding=plan.binding)
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


def _placement(
    forecast: Forecast, name: str, *, slots: int, binding: Binding | None = None
) -> None:
    table = view.placement(forecast, name, slots=slots, binding=binding)
    say(table.rstrip("\n"))


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
    known = done and ((done.status and done.status.forecast) or done.plan.forecast)
    told = [known.workers if known else ()]

    def placed(status: JobStatus) -> None:
        # A gang that waited, or was taken back, has its GPUs only now.
        forecast = status.forecast
        if forecast is not None and forecast.workers and forecast.workers != told[0]:
            told[0] = forecast.workers
            _placement(forecast, name, slots=slots_of(forecast, status))

    with detaching(backend, name, namespace, there=lambda: True):
        _waited(backend, name, namespace, timeout=timeout, placed=placed, ended=ended)


def _waited(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None,
    placed: Callable[[JobStatus], None],
    ended: Callable[[JobStatus], None],
) -> None:
    from arena_topo.gang import submitting  # noqa: PLC0415 - the verbs load what they need

    latest: list[JobStatus] = []
    sight = Sight()

    def seen(status: JobStatus) -> None:
        sight.caught()
        latest[:] = [status]
        placed(status)

    def told(status: JobStatus) -> None:
        if not shows or status.phase.over:
            say(progress.news(status))
        if status.phase.over:
            ended(status)

    def screen(columns: int) -> str:
        if not latest:
            return f"{turn()} {name}"
        text = progress.screen(latest[0], now=time.time(), width=columns - 2)
        return "\n".join(filter(None, [f"{turn()} {text.rstrip()}", sight.remark()]))

    shows = lives()
    with live(sys.stderr, screen) if shows else nullcontext():
        submitting.to_the_end(backend, name, namespace, timeout=timeout, tell=told, seen=seen)


def lives() -> bool:
    """Whether stderr shows what is waited for in its place, on a terminal."""
    return hears(LogLevel.INFO) and sys.stderr is not None and moves(sys.stderr)


def turn() -> str:
    """One character that turns while something is waited for."""
    return turning(unicode=draws(stream=sys.stderr))
