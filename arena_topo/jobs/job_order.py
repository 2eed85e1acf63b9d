"""Selection and order of the jobs of a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any

from arena_topo.clusters.selectors import all_selectors
from arena_topo.engines import JobStatus, Phase, ignore_message
from arena_topo.engines.backend import Backend
from arena_topo.engines.engine_choice import privileged
from arena_topo.reasons.job_reading import SeenJob

OWNER_LABEL = "arena.kubeflow.org/uid"
"""Arena's label on each job: the MD5 of its owner's name."""


class Order(StrEnum):
    """The keys by which jobs are sorted."""

    AGE = "age"
    NAME = "name"
    STATUS = "status"
    GPUS = "gpus"
    NAMESPACE = "namespace"


class Phases(frozenset[Phase]):
    """States of jobs, written with commas between them."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Phases:
        """Read states in any case; ValueError lists them."""
        try:
            return cls(Phase(word.strip().upper()) for word in text.split(","))
        except ValueError:
            *others, last = Phase
            form = f"{', '.join(others)} or {last}"
            raise ValueError(f"expected {form}, got {text!r}") from None


def selection(backend: Backend, selector: str, *, mine: bool) -> str:
    """A selector of jobs with these labels; with `mine` also of the caller as owner."""
    if not mine:
        return selector
    from arena_topo.manifests import digest  # noqa: PLC0415  only to name the owner

    return all_selectors(selector, f"{OWNER_LABEL}={digest(backend.owner())}")


def list_statuses(
    backend: Backend, namespace: str | None, selector: str = ""
) -> tuple[JobStatus, ...]:
    """The jobs of a namespace or, for None, of all; AccessDenied has arena's words."""
    where = f"namespace {namespace}" if namespace else "all namespaces"
    with privileged(f"list the training jobs in {where}"):
        return backend.jobs(namespace, selector)


def select_jobs(
    jobs: Iterable[JobStatus], *, phases: Collection[Phase] = (), order: Order = Order.AGE
) -> tuple[JobStatus, ...]:
    """The jobs in these phases (empty: in any), sorted; equal ones remain newest first.

    By age the newest is first, by GPUs the job that requests the most, by status the ones that
    wait.
    """
    chosen = [job for job in jobs if not phases or job.phase in phases]
    return tuple(sorted(chosen, key=_KEYS[order]))


def by_requested(jobs: Iterable[JobStatus]) -> list[JobStatus]:
    """Jobs in the order of `top job`: by requested GPUs, the most first, then by name."""
    return sorted(
        jobs, key=lambda status: (-status.request_gpus, _natural(status.name), status.namespace)
    )


def signs(job: JobStatus) -> Any:
    """The parts of a job whose change is worth a new line in a watched list."""
    place = None if job.chief is None or job.chief.pending else job.chief.node_ip
    return job.phase, job.request_gpus, job.allocated_gpus, place


_PHASES = {phase: place for place, phase in enumerate(Phase)}

_KEYS: dict[Order, Callable[[JobStatus], Any]] = {
    Order.AGE: lambda status: -status.created,
    Order.NAME: lambda status: _natural(status.name),
    Order.STATUS: lambda status: _PHASES[status.phase],
    Order.GPUS: lambda status: -status.request_gpus,
    Order.NAMESPACE: lambda status: _natural(status.namespace),
}


def _natural(name: str) -> Any:
    from arena_topo.topology import natural_key  # noqa: PLC0415  only to sort by names

    return natural_key(name)


def jobs_by_gpus(
    backend: Backend,
    namespace: str | None,
    *,
    metrics: bool = False,
    tell: Callable[[str], None] = ignore_message,
) -> tuple[SeenJob, ...]:
    """The jobs of a namespace, or of all for None, by requested GPUs, the most first.

    With `metrics` each has samples of its GPUs; `tell` gets the reason if they are not known.
    """
    statuses = by_requested(backend.jobs(namespace))
    samples = backend.metrics(namespace, tell=tell) if metrics and statuses else ()
    return tuple(
        SeenJob(
            status=status,
            samples=tuple(
                sample
                for sample in samples
                if sample.namespace in {"", status.namespace}
                and sample.pod in {pod.name for pod in status.instances}
            ),
        )
        for status in statuses
    )
