"""The verb `resume`: a job that waits or was suspended starts, or its start is finished."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.engines import JobStatus, Phase, goals
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.queued import QueuedJob, queued, written
from arena_topo.errors import AccessDenied, NotNow, command
from arena_topo.gang import UNWATCHED, Watcher, planning, pod_state
from arena_topo.gang.planning import SOME_JOB, Decision
from arena_topo.gang.protocol import Starter, StartOutcome
from arena_topo.gang.request import request_of
from arena_topo.gang.rollout import wait_for_old_pods, wait_until_placed
from arena_topo.gang.stored_job import (
    advice_for_existing,
    advice_on_existing,
    change_with_retries,
    marked_whole,
    must_submit_again,
    open_starter,
    owned_by_queue,
    queue_of,
    read_stored,
    why_not_queued,
)
from arena_topo.job import MPIJob
from arena_topo.manifests import Manifest, patches
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.recorded_job import job_of
from arena_topo.solver import Unplaceable


def resume_job(
    backend: Backend, name: str, namespace: str, watcher: Watcher = UNWATCHED
) -> StartOutcome:
    """Start a gang that waits or was suspended, if it fits; finish an interrupted start.

    A job that arena-topo does not place is resumed as it is. NotNow for a job that does not fit,
    and that its engine starts by itself. NotPossible for a job that another system suspends, or
    that is over; Unplaceable if it can never fit.
    """
    if backend.pausing is not None:
        was_suspended = backend.pausing.resume(name, namespace)
        if not (was_suspended or watcher.stay):
            _check_waits(backend.job(name, namespace))
        return watch_resumed(backend, name, namespace, watcher, was_suspended=was_suspended)
    queue, stored = queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is None:
        why = why_not_queued(backend, stored)
        if why is not None:
            raise must_submit_again(stored, f"{name} cannot be resumed", why)
        was_suspended = change_with_retries(queue, stored, _let_go, "resumed") is not None
        return watch_resumed(backend, name, namespace, watcher, was_suspended=was_suspended)
    if mine.incomplete:
        if missing := queue.missing(stored):
            lacks = " and no ".join(f"configmap {name}" for name in missing)
            why = f"its submission stopped before its files were created: no {lacks}"
            raise must_submit_again(stored, f"{name} was not created completely", why)
        stored = marked_whole(queue, stored)
    starter, job = open_starter(backend, queue), job_of(stored)
    outcome = StartOutcome(stored=stored, decision=Decision(job=job, decided=False), resumed=True)
    if mine.suspender is not None:
        if mine.suspended:
            raise owned_by_queue(stored, mine.suspender, "starts")
        # If a worker has its node already, the others follow the same record.
        if not any(map(pod_state.has_node, queue.pods(stored))):
            with advice_for_existing(name, namespace):
                outcome = starter.admitted(job, stored)
    elif mine.suspended:
        view = queue.read()
        starter.withdraw([job for job in view.jobs if job.key != mine.key], view.now)
        wait_for_old_pods(starter, stored)
        released = queue.change(stored, patches.releasing(stored, at=written(queue.now())))
        with advice_for_existing(name, namespace):
            outcome = starter.start(job, released or read_stored(queue, name, namespace), None)
        outcome = _advised_anew(starter, job, mine, outcome)
    return wait_until_placed(starter, job, outcome, watcher)


def _advised_anew(
    starter: Starter, job: MPIJob, mine: QueuedJob, outcome: StartOutcome
) -> StartOutcome:
    """The outcome with the advice that holds for a changed job, which is submitted anew."""
    decision, queue = outcome.decision, starter.queue
    if outcome.resumed or decision.nearest is None:
        return outcome
    view, site = queue.read(), replace(starter.site, namespace=mine.namespace)
    cluster = view.cluster(without={mine.key})
    anew = planning.left_anew(view.job(*mine.key) or mine, cluster, view, queue, site)
    if anew is not None:
        request = request_of(job, decision.cluster, site)
        try:
            planning.best_placement(job, request, decision.cluster, anew=anew)
        except Unplaceable as refused:
            return replace(outcome, decision=replace(decision, nearest=refused.nearest))
    return outcome


def _check_waits(status: JobStatus) -> None:
    """Raise NotNow, with the reason, if a job waits in a queue that needs no command."""
    if status.waits:
        raise NotNow(
            f"{status.name} waits already, and starts by itself once it can",
            why=status.reason,
            hint=command("why", status.name, namespace=status.namespace),
        )


def _let_go(stored: Manifest) -> patches.Patch | None:
    """The patch that resumes an ordinary job; NotPossible if a queue decides about that."""
    if not is_suspended(stored):
        return None
    owner = suspender(stored)
    if owner is not None:
        raise owned_by_queue(stored, owner, "starts")
    return patches.resuming_unplaced(stored)


def watch_resumed(
    backend: Backend, name: str, namespace: str, watcher: Watcher, *, was_suspended: bool
) -> StartOutcome:
    """The result of resuming a job; `was_suspended`: it was suspended before.

    A watcher with `stay` waits until all workers run, or never will.
    """
    if watcher.stay:

        def seen(status: JobStatus) -> None:
            watcher.sees(status.reason or f"{name} is {status.phase}")

        hears = goals.Listener(seen=seen)
        goals.wait_all(backend, [name], namespace, goal=goals.Goal.RUNNING, hears=hears)
    decision = Decision(job=SOME_JOB, decided=False)
    return StartOutcome(stored={}, decision=decision, resumed=True, changed=was_suspended)


def all_instances_run(backend: Backend, name: str, namespace: str) -> bool:
    """Whether all instances of a job run; if some are pending, resuming may help."""
    try:
        status = backend.job(name, namespace)
    except AccessDenied:
        # The right to resume does not include the right to list pods.
        return False
    return status.phase is Phase.RUNNING and not any(
        instance.pending for instance in status.instances
    )


def check_started(outcome: StartOutcome, backend: Backend, name: str, namespace: str) -> None:
    """Raise NotNow, with the reason and the nearest change, if the job has to wait."""
    if not outcome.resumed:
        again = command("resume", name, namespace=namespace)
        watched = backend.queue is not None and backend.queue.watched()
        starts = "the controller starts it" if watched else f"it needs another {again}"
        when = "for its next start" if _has_reserved(outcome) else "for it once it comes first"
        where = f"it is in the queue now, and GPUs are reserved {when}"
        if suspender(outcome.stored) is not None:
            where = "its workers stay at their gates"
        raise NotNow(
            f"{name} has to wait: {where}; {starts} when it fits",
            why=str(outcome.decision.refused),
            hint=advice_on_existing(outcome.decision.nearest, name, namespace)
            or command("why", name, namespace=namespace),
        )


def _has_reserved(outcome: StartOutcome) -> bool:
    """Whether GPUs are reserved for the next start of a gang that was stopped."""
    mine = queued(outcome.stored, {})
    if mine is None or mine.reserved is None:
        return False
    with suppress(ValueError):
        names = {node.name for node in outcome.decision.cluster.nodes}
        nodes = {node for _, node, _ in parse_map(mine.reserved)}
        # While its old pods end, nothing is decided yet, so that no node is known.
        return not names or not names.isdisjoint(nodes)
    return False
