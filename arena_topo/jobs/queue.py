"""The commands `suspend`, `resume` and `replan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from arena_topo.cli.arguments import PANEL, ActionOutputFlag, Name, Names, Output, names_only
from arena_topo.cli.detaching import detaching
from arena_topo.cli.opening import engine, namespace_of, suggesting
from arena_topo.cli.options import PROGRAM, Globals, act_on_each, say, show, spread, tell
from arena_topo.flag import Flag
from arena_topo.gang import Watcher
from arena_topo.jobs import view
from arena_topo.jobs.staying import Staying

if TYPE_CHECKING:
    from arena_topo.engines import Backend
    from arena_topo.gang.protocol import Outcome


_WaitFlag = Annotated[
    bool,
    Flag(help="Wait until all workers run, not only until they have nodes.", panel=PANEL),
]


@spread
def suspend(
    names: Names, everywhere: Globals, *, output_format: ActionOutputFlag = Output.WIDE
) -> None:
    """Stop jobs until they are resumed; their GPUs are free for others meanwhile.

    A job that is resumed starts from its beginning, or from a checkpoint that its program loads.

    Examples:
      # Free the GPUs of a job
      suspend bert
    """
    from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

    brief = names_only(output_format, everywhere)

    def stop(backend: Backend, name: str, namespace: str) -> None:
        if not submission.suspend(backend, name, namespace):
            say(f"{name} is suspended already")
            if brief:
                show(_changed(name, "", brief=True))
            return
        show(_changed(name, "suspended", brief=brief))
        again = f"{PROGRAM} resume {name} -n {namespace}"
        say(f"Its GPUs are free once its pods have ended. Start it again: {again}")

    _each(names, everywhere, stop)


@spread
def resume(
    names: Names,
    everywhere: Globals,
    *,
    wait: _WaitFlag = False,
    output_format: ActionOutputFlag = Output.WIDE,
) -> None:
    """Start waiting, suspended or interrupted jobs, in order; they get a new placement.

    Examples:
      # Start a waiting job now, if it fits
      resume bert
    """
    from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

    brief = names_only(output_format, everywhere)

    def start(backend: Backend, name: str, namespace: str) -> None:
        if submission.runs(backend, name, namespace):
            say(f"{name} runs already")
            if brief:
                show(_changed(name, "", brief=True))
        else:
            done = _changed(name, "resumed", brief=brief)
            _start(submission.resume, backend, name, namespace, wait=wait, done=done)

    _each(names, everywhere, start)


@spread
def replan(name: Name, everywhere: Globals, *, wait: _WaitFlag = False) -> None:
    """Stop a running job and start it again on the best GPUs available now.

    The job starts from its beginning, or from a checkpoint that its program loads.

    Examples:
      # Move a job to better GPUs
      replan bert
    """
    from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

    def move(backend: Backend, name: str, namespace: str) -> None:
        done = _changed(name, "placed anew", brief=everywhere.quiet)
        _start(submission.replan, backend, name, namespace, wait=wait, done=done)

    _each((name,), everywhere, move)


def _each(
    names: Sequence[str], everywhere: Globals, act: Callable[[Backend, str, str], None]
) -> None:
    """Act on every job, also after an error with another; the first error is the exit code."""
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)

    def act_on(name: str) -> None:
        with suggesting(name, namespace, backend):
            act(backend, name, namespace)

    act_on_each(dict.fromkeys(names), act_on)


def _changed(name: str, how: str, *, brief: bool) -> str:
    return f"{view.RESOURCE}/{name}{'' if brief else f' {how}'}\n"


def _start(
    start: Callable[[Backend, str, str, Watcher], Outcome],
    backend: Backend,
    name: str,
    namespace: str,
    *,
    wait: bool,
    done: str,
) -> None:
    """Start a job and show its placement; NotNow if it has to wait."""
    from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

    stays = Staying(name, "is to start")
    with detaching(backend, name, namespace, there=lambda: stays.heard), stays:
        stays.show()
        outcome = start(backend, name, namespace, stays.watcher(stay=wait))
    submission.check(outcome, name, namespace)
    show(done)
    status = backend.job(name, namespace)
    if status.forecast is not None and status.forecast.workers:
        slots = max(1, status.request_gpus // len(status.forecast.workers))
        table = view.placement(status.forecast, name, slots=slots)
        say(table.rstrip("\n"))
    tell(outcome.notes)
