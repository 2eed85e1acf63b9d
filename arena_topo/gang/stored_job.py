"""The stored MPIJob that a verb acts on: read, changed with retries, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import KUBE_QUEUE_NAME, KUEUE_NAME, is_suspended
from arena_topo.clusters.rules import job_over
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError, JobNotFound, NotPossible, command
from arena_topo.gang.protocol import Starter
from arena_topo.gang.request import Site
from arena_topo.manifests import INCOMPLETE, STATE, Manifest, patches
from arena_topo.manifests.annotations import unknown_record
from arena_topo.solver import Unplaceable

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

_TRIES = 10
"""How often a patch is retried on a job that others change at the same time."""


def open_starter(backend: Backend, queue: Queue, *, patient: bool = False) -> Starter:
    """The starter of gangs on an engine; `patient` if it ends their patience."""
    return Starter(queue=queue, site=Site(backend=backend), patient=patient)


def queue_of(backend: Backend, name: str, namespace: str) -> tuple[Queue, Manifest]:
    """The queue of an engine that does not suspend jobs itself, and a job in it."""
    queue = backend.queue
    if queue is None or not queue.api_version().traits.suspends:
        raise NotPossible(
            "jobs of this engine cannot be suspended or resumed",
            why=f"MPIJob {backend.api_version()} knows no suspension",
            hint=f"arena-topo delete {name} -n {namespace} ends it; submit it again later",
        )
    return queue, read_stored(queue, name, namespace)


def read_stored(queue: Queue, name: str, namespace: str) -> Manifest:
    """A job as it is stored now; JobNotFound if it is gone."""
    stored = queue.get(namespace, name)
    if stored is None:
        raise JobNotFound(name, namespace)
    return stored


def change_with_retries(
    queue: Queue,
    stored: Manifest,
    patch_of: Callable[[Manifest], patches.Patch | None],
    verb: str,
) -> Manifest | None:
    """Patch a job, with a retry on each conflict; None if no patch is needed.

    `patch_of` returns the patch for the job as it was read, None if the job needs no change.
    ArenaError after `_TRIES` conflicts.
    """
    name, namespace = stored["metadata"]["name"], stored["metadata"]["namespace"]
    for _ in range(_TRIES):
        patch = patch_of(stored)
        if patch is None:
            return None
        changed = queue.change(stored, patch)
        if changed is not None:
            return changed
        stored = read_stored(queue, name, namespace)
    raise ArenaError(f"{name} changes faster than it can be {verb}", hint="try again")


def marked_whole(queue: Queue, stored: Manifest) -> Manifest:
    """The job without its mark INCOMPLETE: it is complete, so any starter may start it."""
    if INCOMPLETE not in stored["metadata"]["annotations"]:
        return stored
    return queue.change(stored, patches.completed(stored)) or stored


def check_suspended(stored: Manifest) -> None:
    """ArenaError if the CRD dropped the suspension of a job that was suspended just now."""
    if not is_suspended(stored):
        raise ArenaError(
            f"{stored['metadata']['name']} cannot be suspended, and goes on running",
            why="the MPIJob of this cluster's operator knows no suspension",
            hint=f"end it with: {delete_command(stored)}",
        )


def why_not_queued(backend: Backend, stored: Manifest) -> str | None:
    """Why a job is not queued and not ordinary (it is over, or invalid); None for ordinary jobs."""
    meta = stored["metadata"]
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if STATE not in (meta.get("annotations") or {}) and not job_over(stored):
        return None
    phase = backend.job(meta["name"], meta["namespace"]).phase
    if phase.over:
        return f"it has {phase}"
    return unknown_record(stored) or "what is recorded of it cannot be read"


def owned_by_queue(stored: Manifest, owner: str, does: str) -> NotPossible:
    """The error for a job that only its queue suspends and resumes; `does` completes its text."""
    name, namespace = stored["metadata"]["name"], stored["metadata"]["namespace"]
    why = command("why", name, namespace=namespace)
    hints = {
        KUEUE_NAME: "stop and start its Workload: kubectl kueue stop workload, resume workload;"
        f" {why} says why it waits",
        KUBE_QUEUE_NAME: f"{why} says why it waits; if this cluster has no kube-queue nobody ever"
        f" starts it: {delete_command(stored)}, and submit it without --queue",
    }
    return NotPossible(
        f"{owner} decides when {name} {does}",
        why=f"it was submitted to a queue of {owner}",
        hint=hints.get(owner, f"ask it why: {why}"),
    )


def must_submit_again(stored: Manifest, what: str, why: str) -> NotPossible:
    """The error for a job that can only be deleted and submitted again."""
    return NotPossible(what, why=why, hint=f"{delete_command(stored)}, and submit it again")


def advice_on_existing(nearest: str | None, name: str, namespace: str) -> str | None:
    """The nearest change with which a job would fit, as advice about a job that exists.

    Its flags are those of `submit`: what a job asks for cannot be changed later.
    """
    if nearest is None or "--" not in nearest:
        return nearest
    delete = command("delete", name, namespace=namespace)
    return f"{nearest}; flags change only with a new submission, after: {delete}"


@contextmanager
def advice_for_existing(name: str, namespace: str) -> Iterator[None]:
    """Turn the advice of a refusal in the block into advice about a job that exists."""
    try:
        yield
    except Unplaceable as refused:
        refused.hint = advice_on_existing(refused.hint, name, namespace)
        raise


def delete_command(stored: Manifest) -> str:
    """The command that ends a job."""
    meta = stored["metadata"]
    return command("delete", meta["name"], namespace=meta["namespace"])
