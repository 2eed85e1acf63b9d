"""A look at a job: its state, and, if requested, GPU load, drift, events and the explanation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from arena_topo.engines import Event, JobStatus, ignore_message
from arena_topo.engines.backend import Backend
from arena_topo.engines.engine_choice import privileged
from arena_topo.errors import AccessDenied

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.reasons.drift import Difference
    from arena_topo.reasons.explanation import Explanation


class SeenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one look: `drift` are differences from the plan, `samples` the load of its GPUs.

    `events` and `explanation` are None if they were not requested.
    """

    status: JobStatus
    drift: Sequence[Difference] = ()
    samples: Sequence[GpuSample] = ()
    events: Sequence[Event] | None = None
    explanation: Explanation | None = None

    def __repr__(self) -> str:
        """The job on one line, for a prompt."""
        return repr(self.status).replace("JobStatus", "SeenJob", 1)


def read_job(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    drift: bool = True,
    metrics: bool = False,
    events: bool = False,
    explain: bool = False,
    tell: Callable[[str], None] = ignore_message,
) -> SeenJob:
    """Read a job, with the parts that are requested.

    `tell` gets the reason if the load of its GPUs is not known. JobNotFound if it does not exist;
    AccessDenied has arena's words.
    """
    may = f"get the training job in namespace {namespace}"
    with privileged(may):
        explanation = explain_now(backend, name, namespace) if explain else None
    try:
        with privileged(may):
            status = backend.job(name, namespace)
    except AccessDenied:
        # Without the right to list pods, the explanation has the status that could be read.
        if explanation is None:
            raise
        status = explanation.status
    return SeenJob(
        status=status,
        samples=gpu_load(backend, status, tell=tell) if metrics else (),
        drift=_differences(backend, status) if drift else (),
        events=backend.events(status) if events else None,
        explanation=explanation,
    )


def explain_now(backend: Backend, name: str, namespace: str) -> Explanation:
    """The explanation of a job; JobNotFound if it does not exist."""
    from arena_topo.reasons import explanation  # noqa: PLC0415 - reads the solver

    return explanation.explain_job(backend, name, namespace, now=time.time())


def _differences(backend: Backend, status: JobStatus) -> Sequence[Difference]:
    if status.forecast is None or status.forecast.state != "placed":
        return ()
    from arena_topo.reasons import drift  # noqa: PLC0415 - only for placed jobs

    return drift.drift_of(backend, status)


def gpu_load(
    backend: Backend, status: JobStatus, *, tell: Callable[[str], None] = ignore_message
) -> tuple[GpuSample, ...]:
    """The load of the GPUs of a job's pods; `tell` gets the reason if it is not known.

    No request is made for a job without GPUs.
    """
    pods = {
        instance.name for instance in status.instances if instance.node and not instance.finished
    }
    if not pods or not status.request_gpus or status.phase.over:
        return ()
    samples = backend.metrics(status.namespace, pods=sorted(pods), tell=tell)
    here = {"", status.namespace}
    return tuple(sample for sample in samples if sample.pod in pods and sample.namespace in here)
