"""Suspending and resuming what arena-topo does not place: ordinary jobs, whoever made them.

They have no record and no place in the queue: what counts is `runPolicy.suspend` alone, which the
operators of MPIJob v1 and v2beta1 heed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import KUBE_QUEUE_NAME, KUEUE, suspended, suspender
from arena_topo.engines import Backend, JobStatus, waiting
from arena_topo.errors import ArenaError, NotFound, NotPossible
from arena_topo.gang.starting import Decision, Outcome
from arena_topo.manifests import Manifest, patches
from arena_topo.topology import Cluster

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

_TRIES = 10
"""How often a job is read again that others have changed in between."""


def resume(queue: Queue, stored: Manifest) -> bool:
    """Let a job go on; False if it was not suspended. NotPossible if a queue decides that."""
    namespace, name = stored["metadata"]["namespace"], stored["metadata"]["name"]
    for _ in range(_TRIES):
        if not suspended(stored):
            return False
        owner = suspender(stored)
        if owner is not None:
            raise not_ours(stored, owner, "starts")
        if queue.change(stored, patches.going(stored)) is not None:
            return True
        found = queue.get(namespace, name)
        if found is None:
            raise NotFound(f"Not found training job {name} in namespace {namespace}")
        stored = found
    raise ArenaError(f"{name} changes faster than it can be resumed", hint="try again")


def resumed(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    held: bool,
    stay: bool,
    sees: Callable[[str], None],
) -> Outcome:
    """How the resuming of a job ended that was `held` before, or was not.

    With `stay` once all its workers run, or never will.
    """
    if stay:

        def seen(status: JobStatus) -> None:
            sees(status.reason or f"{name} is {status.phase}")

        waiting.wait_all(backend, [name], namespace, goal=waiting.Goal.RUNNING, seen=seen)
    notes = () if held else (f"{name} was not suspended",)
    decision = Decision(cluster=Cluster(nodes=()))
    return Outcome(stored={}, decision=decision, resumed=True, notes=notes)


def not_ours(stored: Manifest, owner: str, does: str) -> NotPossible:
    """The error of a job that a queue alone suspends and resumes; `does` is what it decides of."""
    name = stored["metadata"]["name"]
    hints = {
        KUEUE: "stop and start its Workload: kubectl kueue stop workload, resume workload;"
        f" arena-topo why {name} says why it waits",
        KUBE_QUEUE_NAME: f"arena-topo why {name} says why it waits; if this cluster has no"
        f" kube-queue nobody ever starts it: {delete(stored)}, and submit it without --queue",
    }
    return NotPossible(
        f"{owner} decides when {name} {does}",
        why=f"it was submitted to a queue of {owner}",
        hint=hints.get(owner, f"ask it why: arena-topo why {name}"),
    )


def delete(stored: Manifest) -> str:
    """The command that ends a job."""
    meta = stored["metadata"]
    return f"arena-topo delete {meta['name']} -n {meta['namespace']}"
