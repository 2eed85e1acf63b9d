"""Waiting for the end of a job, and meanwhile for its gang."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from arena_topo.engines import JobStatus, Phase, goals
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.queued import queued
from arena_topo.errors import AccessDenied, JobDeleted, NotFound
from arena_topo.gang import pod_state
from arena_topo.gang.stored_job import open_starter
from arena_topo.manifests.recorded_job import job_of


def wait_until_over(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None = None,
    hears: goals.Listener,
) -> JobStatus:
    """Wait until a job is over; meanwhile send its recreated workers to their nodes.

    A gang that another queue starts is placed anew each time that the queue has started it.

    JobFailed, with the launcher's exit code, if it fails; JobDeleted if it is deleted; TimedOut
    after `timeout` seconds, and the job goes on.
    """
    latest: JobStatus | None = None
    tended: JobStatus | None = None

    def see(status: JobStatus) -> None:
        nonlocal latest
        latest = status
        hears.seen(status)

    def tend() -> None:
        nonlocal tended
        # The status of a job that has not changed is the same object, and costs no request.
        if latest is tended:
            return
        gated = False
        with suppress(AccessDenied):
            gated = _send_workers(backend, name, namespace)
        # How long a proposed record counts is a matter of time, which changes no object.
        tended = None if gated else latest

    try:
        status = goals.wait_for_job(
            backend, name, namespace, timeout=timeout, hears=replace(hears, seen=see, each=tend)
        )
    except NotFound:
        raise JobDeleted(f"the job {name} was deleted while it was waited for") from None
    if status.phase is Phase.FAILED:
        raise goals.job_failed(status)
    return status


def _send_workers(backend: Backend, name: str, namespace: str) -> bool:
    """Send recreated workers to their nodes; whether workers were still at their gates before.

    A gang that its queue has started again is placed first.
    """
    queue = backend.queue
    stored = queue.get(namespace, name) if queue is not None else None
    mine = None if stored is None else queued(stored, {})
    if queue is None or stored is None or mine is None or mine.suspended:
        return False
    pods = queue.pods(stored)
    if mine.suspender is not None and pod_state.awaits_placement(mine, pods, queue.now()):
        stored = open_starter(backend, queue).admitted(job_of(stored), stored).stored
    for pod, patch in pod_state.worker_places(stored, pods):
        queue.bind(pod, patch)
    return bool(pod_state.gated_workers(pods))
