"""Starting jobs that are there: which need it, and what it means that one did not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arena_topo.engines import Backend, Phase
from arena_topo.errors import AccessDenied, ArenaError

if TYPE_CHECKING:
    from arena_topo.gang.starting import Outcome


class NotNow(ArenaError):
    """A gang that was asked to start has to wait."""

    exit_code = 3


def runs(backend: Backend, name: str, namespace: str) -> bool:
    """Whether a job runs whole; resuming helps one whose workers are not all there."""
    try:
        status = backend.job(name, namespace)
    except AccessDenied:
        # Who may not list pods can still resume.
        return False
    return status.phase is Phase.RUNNING and not any(one.pending for one in status.instances)


def check(outcome: Outcome, name: str, namespace: str) -> None:
    """NotNow, with the reason and the nearest way out, where a start ended in waiting."""
    if not outcome.resumed:
        raise NotNow(
            f"{name} has to wait",
            why=str(outcome.decision.refused),
            hint=outcome.decision.nearest or f"arena-topo why {name} -n {namespace}",
        )
