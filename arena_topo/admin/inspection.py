"""A look into the workers of a job: what they really see, beside what was planned."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from arena_topo.engines import Backend, JobStatus
from arena_topo.errors import ArenaError
from arena_topo.manifests import Guarantee
from arena_topo.reasons import drift


class Outcome(StrEnum):
    """How what a worker sees goes with the plan."""

    OK = "ok"
    OTHERS = "others"
    """As many GPUs as planned, others than planned, where the kubelet may choose."""
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A job, what of it is not as planned, and what each of its workers sees."""

    status: JobStatus
    differences: tuple[drift.Difference, ...]
    sights: tuple[drift.Sight, ...]

    def outcome(self, sight: drift.Sight) -> Outcome:
        """How a sight goes with what was guaranteed."""
        if sight.agrees is None:
            return Outcome.UNKNOWN
        if sight.agrees:
            return Outcome.OK
        forecast = self.status.forecast
        exact = forecast is not None and forecast.guarantee == Guarantee.GPUS
        if exact or len(sight.seen) != len(sight.planned):
            return Outcome.DIFFERS
        return Outcome.OTHERS

    @property
    def passed(self) -> bool:
        """Whether all is as it was guaranteed, as far as it could be looked at."""
        return not self.differences and all(
            self.outcome(one) is not Outcome.DIFFERS for one in self.sights
        )


def inspect(backend: Backend, name: str, namespace: str) -> Inspection:
    """Look into every worker of a job; NotFound if there is none.

    ArenaError if it was never placed, so that there is nothing to compare with.
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
        differences=drift.of(backend, status),
        sights=drift.inspect(backend, status),
    )
