"""The GPUs that the workers of a job really see, beside the plan."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from arena_topo.engines import JobStatus
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError
from arena_topo.manifests import Guarantee
from arena_topo.reasons import drift


class InspectionResult(StrEnum):
    """The result for a worker: the GPUs that it sees, compared with the plan."""

    OK = "ok"
    OTHERS = "others"
    """As many GPUs as planned, but not those of the plan, and the kubelet may choose."""
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """The worker could not be inspected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A job, its differences from the plan, and the GPUs that each worker sees."""

    status: JobStatus
    differences: tuple[drift.Difference, ...]
    workers: tuple[drift.WorkerGpus, ...]

    def outcome(self, worker: drift.WorkerGpus) -> InspectionResult:
        """The result for one worker, under the guarantee of the placement."""
        if worker.agrees is None:
            return InspectionResult.UNKNOWN
        if worker.agrees:
            return InspectionResult.OK
        forecast = self.status.forecast
        exact = forecast is not None and forecast.guarantee == Guarantee.GPUS
        if exact or len(worker.seen) != len(worker.planned):
            return InspectionResult.DIFFERS
        return InspectionResult.OTHERS

    @property
    def passed(self) -> bool:
        """Whether everything agrees with the guarantee, as far as it could be inspected."""
        return not self.differences and all(
            self.outcome(worker) is not InspectionResult.DIFFERS for worker in self.workers
        )


def inspect_workers(backend: Backend, name: str, namespace: str) -> Inspection:
    """Look into every worker of a job; NotFound if the job does not exist.

    ArenaError if the job was never placed: then there is no plan to compare with.
    """
    status = backend.job(name, namespace)
    if status.forecast is None or not status.forecast.workers:
        raise ArenaError(
            f"the job {name} has no placement to compare with",
            why=status.reason,
            hint=f"arena-topo get {name} -n {namespace} shows how it stands",
        )
    return Inspection(
        status=status,
        differences=drift.drift_of(backend, status),
        workers=drift.ask_workers(backend, status),
    )
