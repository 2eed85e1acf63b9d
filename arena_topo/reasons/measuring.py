"""What the GPUs of a job do now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from arena_topo.engines import Backend, JobStatus, unheard

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample


def of_job(
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
