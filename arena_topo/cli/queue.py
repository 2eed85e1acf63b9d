"""The commands about when jobs run: suspend, resume, replan, and the controller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from arena_topo import output
from arena_topo.backends import Phase
from arena_topo.cli.arguments import PANEL, Name
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, say, show, spread
from arena_topo.cli.terminal import columns, wrapped
from arena_topo.errors import AccessDenied, ArenaError
from arena_topo.flag import Flag

if TYPE_CHECKING:
    from arena_topo.backends import Backend
    from arena_topo.workflow.starting import Outcome


_WaitFlag = Annotated[
    bool,
    Flag(help="Stay until all workers run, not only until they have their nodes.", panel=PANEL),
]


class NotNow(ArenaError):
    """A gang that was asked to start has to wait."""

    exit_code = 3


@spread
def suspend(name: Name, everywhere: Globals) -> None:
    """Stop a job until it is resumed; its GPUs are free for others meanwhile."""
    from arena_topo.workflow import submission  # noqa: PLC0415 - the verbs load what they need

    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    submission.suspend(backend, name, namespace)
    show(f"{output.RESOURCE}/{name} suspended\n")
    say(f"It holds nothing now. Start it again: {PROGRAM} resume {name} -n {namespace}")


@spread
def resume(name: Name, everywhere: Globals, *, wait: _WaitFlag = False) -> None:
    """Start a job that waits, was suspended, or was left half-started; placed anew."""
    from arena_topo.workflow import submission  # noqa: PLC0415 - the verbs load what they need

    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    if _runs(backend, name, namespace):
        say(f"{name} runs already")
        return
    _started(
        name,
        namespace,
        backend,
        lambda: submission.resume(backend, name, namespace, stay=wait, tell=say),
        "resumed",
    )


@spread
def replan(name: Name, everywhere: Globals, *, wait: _WaitFlag = False) -> None:
    """Stop a running job and start it again on the best GPUs there are now."""
    from arena_topo.workflow import submission  # noqa: PLC0415 - the verbs load what they need

    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    _started(
        name,
        namespace,
        backend,
        lambda: submission.replan(backend, name, namespace, stay=wait, tell=say),
        "placed anew",
    )


def _runs(backend: Backend, name: str, namespace: str) -> bool:
    """Whether a job runs whole; resuming helps one whose workers are not all there."""
    try:
        status = backend.job(name, namespace)
    except AccessDenied:
        # Who may not list pods can still resume.
        return False
    return status.phase is Phase.RUNNING and not any(one.pending for one in status.instances)


def _started(
    name: str, namespace: str, backend: Backend, start: Callable[[], Outcome], done: str
) -> None:
    """Start a job and say where it runs; NotNow where it has to wait."""
    outcome = start()
    if not outcome.resumed:
        raise NotNow(
            f"{name} has to wait",
            why=outcome.decision.refused,
            hint=outcome.decision.nearest or f"{PROGRAM} why {name} -n {namespace}",
        )
    show(f"{output.RESOURCE}/{name} {done}\n")
    status = backend.job(name, namespace)
    if status.forecast is not None and status.forecast.workers:
        slots = max(1, status.request_gpus // len(status.forecast.workers))
        table = output.placement(
            status.forecast, name, slots=slots, binding=None, width=wrapped(sys.stderr)
        )
        say(table.rstrip("\n"))
    for note in outcome.notes:
        say(output.fold(f"note: {note}", columns()))


@spread
def controller(
    everywhere: Globals,
    *,
    ack: Annotated[
        bool,
        Flag(
            help="Publish the links of GPUs in kube-system too, as ACK's tools read.", panel=PANEL
        ),
    ] = False,
    once: Annotated[bool, Flag(help="Look at the queue once, and end.", panel=PANEL)] = False,
) -> None:
    """Start waiting jobs in their turn, and look after those that run; runs until it is stopped.

    Stopping it loses nothing: all it knows is written on the jobs.
    """
    from arena_topo import controller as loop  # noqa: PLC0415 - for this command only

    backend = engine(everywhere)
    loop.run(backend, ack=ack, once=once, tell=say)
