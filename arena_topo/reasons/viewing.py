"""One job as it is now: its state, what its GPUs do, what is not as planned, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arena_topo.engines import Backend, Event, JobStatus, unheard
from arena_topo.engines.opening import known, privileged
from arena_topo.errors import AccessDenied

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.reasons.drift import Difference
    from arena_topo.reasons.explanation import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of a job is looked at beside its state."""

    drift: bool = True
    metrics: bool = False
    events: bool = False
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """A job as it was at one look: `drift` is what is not as planned, `samples` what GPUs do.

    `events` and `explanation` are None where nobody asked for them.
    """

    status: JobStatus
    drift: Sequence[Difference] = ()
    samples: Sequence[GpuSample] = ()
    events: Sequence[Event] | None = None
    explanation: Explanation | None = None

    def __repr__(self) -> str:
        """The job on one line, for a prompt."""
        return repr(self.status).replace("JobStatus", "SeenJob", 1)


def look(
    backend: Backend,
    name: str,
    namespace: str,
    parts: Parts,
    *,
    tell: Callable[[str], None] = unheard,
) -> SeenJob:
    """Look at a job; `tell` hears why nothing is known of what its GPUs do.

    UnknownJob if it is not there; AccessDenied has arena's words.
    """
    may = f"get the training job in namespace {namespace}"
    with privileged(may):
        found = explained(backend, name, namespace) if parts.explain else None
    try:
        with privileged(may), known(name, namespace):
            status = backend.job(name, namespace)
    except AccessDenied:
        # The pods may not be listed: what can be said without them was asked for.
        if found is None:
            raise
        status = found.status
    return SeenJob(
        status=status,
        samples=measured(backend, status, tell=tell) if parts.metrics else (),
        drift=drifted(backend, status) if parts.drift else (),
        events=backend.events(status) if parts.events else None,
        explanation=found,
    )


def explained(backend: Backend, name: str, namespace: str) -> Explanation:
    """Why a job is where it is; UnknownJob if it is not there."""
    from arena_topo.reasons.explanation import explain  # noqa: PLC0415 - reads the solver

    with known(name, namespace):
        return explain(backend, name, namespace, now=time.time())


def drifted(backend: Backend, status: JobStatus) -> Sequence[Difference]:
    """What of a placed job is not as planned."""
    if status.forecast is None or status.forecast.state != "placed":
        return ()
    from arena_topo.reasons import drift  # noqa: PLC0415 - only for placed jobs

    return drift.of(backend, status)


def measured(
    backend: Backend, status: JobStatus, *, tell: Callable[[str], None] = unheard
) -> tuple[GpuSample, ...]:
    """What the GPUs of a job's pods do; none where it holds none. `tell` hears why none is known.

    Nothing is asked for a job that has no pod with a GPU.
    """
    pods = [one.name for one in status.instances if one.node and not one.finished]
    if not pods or not status.request_gpus or status.phase.over:
        return ()
    mine = set(pods)
    return tuple(
        one
        for one in backend.metrics(status.namespace, pods=pods, tell=tell)
        if one.pod in mine and one.namespace in {"", status.namespace}
    )
