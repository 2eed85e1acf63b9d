"""The verb `suspend`: the pods of a job end, and its GPUs are free, until it is resumed."""

from __future__ import annotations

from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.queued import queued
from arena_topo.errors import AccessDenied, NotPossible
from arena_topo.gang.stored_job import (
    change_with_retries,
    check_suspended,
    delete_command,
    owned_by_queue,
    queue_of,
    why_not_queued,
)
from arena_topo.manifests import Manifest, patches, pins


def suspend_job(backend: Backend, name: str, namespace: str) -> bool:
    """Suspend a job until it is resumed: its pods end, and its GPUs are free for others.

    False if it was suspended already. NotPossible for a job that is over, or whose suspend field
    belongs to another controller.
    """
    if backend.pausing is not None:
        return backend.pausing.suspend(name, namespace)
    queue, stored = queue_of(backend, name, namespace)
    owner = suspender(stored)
    if owner is not None:
        raise owned_by_queue(stored, owner, "runs")

    def hold(stored: Manifest) -> patches.Patch | None:
        mine = queued(stored, {})
        if mine is not None:
            unpinned = pins.without_pins(stored)
            return None if mine.state == "held" else patches.holding(stored, unpinned)
        why = why_not_queued(backend, stored)
        if why is not None:
            hint = f"{delete_command(stored)} removes it"
            raise NotPossible(f"{name} cannot be suspended", why=why, hint=hint)
        return None if is_suspended(stored) else patches.suspending_unplaced(stored)

    suspended = change_with_retries(queue, stored, hold, "suspended")
    if suspended is not None:
        check_suspended(suspended)
    return suspended is not None


def may_have_pods(backend: Backend, name: str, namespace: str) -> bool:
    """Whether a suspension may end pods of a job, and so free GPUs; NotFound without the job."""
    try:
        status = backend.job(name, namespace)
    except AccessDenied:
        # The right to suspend does not include the right to list pods.
        return True
    return not status.waits or not all(instance.pending for instance in status.instances)
