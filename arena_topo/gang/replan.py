"""The verb `replan`: a running gang starts again as a whole, on other GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.clusters.rules import pod_over
from arena_topo.engines import Phase
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot, queued
from arena_topo.errors import AccessDenied, ArenaError, NoGain, NotNow, NotPossible, command
from arena_topo.gang import UNWATCHED, Watcher
from arena_topo.gang.named_placement import constraint
from arena_topo.gang.planning import check_possible
from arena_topo.gang.protocol import Starter, StartOutcome
from arena_topo.gang.request import request_of
from arena_topo.gang.resume import resume_job, watch_resumed
from arena_topo.gang.rollout import roll_back, wait_for_old_pods, wait_until_placed
from arena_topo.gang.stored_job import (
    advice_on_existing,
    check_suspended,
    must_submit_again,
    open_starter,
    queue_of,
    why_not_queued,
)
from arena_topo.job import MPIJob
from arena_topo.manifests import Manifest, estimates, patches, pins
from arena_topo.manifests.annotations import recorded_placement
from arena_topo.manifests.cause import CauseCode, because
from arena_topo.manifests.forecast import Move, where_it_is
from arena_topo.manifests.recorded_job import job_of
from arena_topo.solver import UNCONSTRAINED, Constraint, Unplaceable, Verdict

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue


def replan_job(
    backend: Backend,
    name: str,
    namespace: str,
    watcher: Watcher = UNWATCHED,
    *,
    avoid: Sequence[str] = (),
    on: str = "",
    force: bool = False,
) -> StartOutcome:
    """Roll back a running gang as a whole, and start it on the best GPUs that are free now.

    `avoid` are nodes, and `on` is a placement: they count for this start alone. NotPossible for a
    job that is over or not placed, or whose start another system decides. NotNow, or Unplaceable
    (NEVER), if it has no other placement now, and, without `force`, `avoid` and `on`, the errors of
    `check_gain`: then it goes on running.
    """
    move, limit = _foreseen(backend, name, namespace, avoid, on)
    if not force:
        check_gain(move, name, constrained=limit != UNCONSTRAINED)
    if backend.pausing is not None:
        # An engine without a queue chooses a new placement at each resume.
        backend.pausing.suspend(name, namespace)
        backend.pausing.resume(name, namespace, limit)
        return watch_resumed(backend, name, namespace, watcher, was_suspended=True)
    queue, stored, mine = _replannable(backend, name, namespace)
    starter, job = replace(open_starter(backend, queue), constraint=limit), job_of(stored)
    if limit == UNCONSTRAINED:
        if mine.suspended:
            return resume_job(backend, name, namespace, watcher)
        back = roll_back(queue, stored, because(CauseCode.REPLANNED), mine.tries)
    elif mine.incomplete:
        raise NotPossible(
            f"{name} cannot be replanned",
            why="its submission stopped before all of its objects were created",
            hint=f"{command('resume', name, namespace=namespace)} finishes what can be finished",
        )
    else:
        # No controller, which does not know the constraint, starts a held job meanwhile.
        back = queue.change(stored, patches.holding(stored, pins.without_pins(stored)))
    if back is None:
        raise ArenaError(f"{name} was changed by another program meanwhile", hint="try again")
    check_suspended(back)
    watcher.tell(f"{name} is stopped; it starts again once its pods have ended")
    wait_for_old_pods(starter, back)
    if limit == UNCONSTRAINED:
        outcome = starter.start(job, back, None)
    else:
        outcome = starter.directed(job, back)
    return wait_until_placed(starter, job, outcome, watcher)


def foresee_replan(
    backend: Backend, name: str, namespace: str, *, avoid: Sequence[str] = (), on: str = ""
) -> Move:
    """The forecasts of a job before and after `replan`; nothing is changed.

    `avoid` are nodes, and `on` is a placement such as `node-a/0,3;node-b/1,2`. Errors as of
    `replan_job`, but for that of a move that does not pay.
    """
    return _foreseen(backend, name, namespace, avoid, on)[0]


def _foreseen(
    backend: Backend, name: str, namespace: str, avoid: Sequence[str], on: str
) -> tuple[Move, Constraint]:
    """The move of a job, and the constraint on it."""
    if backend.pausing is not None:
        limit = UNCONSTRAINED
        if avoid or on:
            request, cluster = backend.pausing.asked(name, namespace)
            limit = constraint(cluster, pods=request.workers, gpus=request.gpus, avoid=avoid, on=on)
        runs_now = backend.job(name, namespace).phase is Phase.RUNNING
        with _stays(name, namespace, runs_now=runs_now):
            return backend.pausing.foresee(name, namespace, limit), limit
    queue, stored, mine = _replannable(backend, name, namespace)
    starter, job = open_starter(backend, queue), job_of(stored)
    view = queue.read()
    limit = UNCONSTRAINED
    if avoid or on:
        limit = constraint(view.cluster(), pods=job.workers, gpus=job.gpus, avoid=avoid, on=on)
    starter = replace(starter, constraint=limit)
    with _stays(name, namespace, runs_now=not mine.suspended):
        return _moved(starter, job, stored, mine, view), limit


def check_gain(move: Move, name: str, *, constrained: bool) -> None:
    """Raise NoGain, with both bandwidths, for a move that would restart a job for nothing.

    NotPossible if its new bandwidth is not known. A person who names nodes or GPUs has a reason of
    another kind.
    """
    if constrained or move.pays or move.before is None:
        return
    now = estimates.planned_and_worst(move.before) or "no bandwidth, as one GPU has no peer"
    again = f"{name} would start again from its beginning"
    hint = "--avoid NODE moves it off a node, --on to GPUs of your choice; --force restarts it"
    if move.after is None:
        raise NotPossible(
            f"{again}, and what bandwidth it would get is not known, so it goes on",
            why=f"now {now}; the controller alone sees all jobs, and chooses its GPUs",
            hint=hint,
        )
    raise NoGain(
        f"{again} without more bandwidth, so it goes on",
        why=f"now {now}; replanned {estimates.planned_and_worst(move.after) or 'none'}",
        hint=hint,
    )


def _replannable(backend: Backend, name: str, namespace: str) -> tuple[Queue, Manifest, QueuedJob]:
    """A gang that arena-topo places, and its queue; NotPossible for any other job."""
    queue, stored = queue_of(backend, name, namespace)
    mine = queued(stored, {})
    if mine is not None and mine.suspender is None:
        return queue, stored, mine
    owner = None if mine is None else mine.suspender
    why = f"{owner} decides when it runs" if owner else why_not_queued(backend, stored)
    if why is not None:
        raise must_submit_again(stored, f"{name} cannot be replanned", why)
    verbs = " and ".join(command(verb, name, namespace=namespace) for verb in ("suspend", "resume"))
    raise NotPossible(
        f"{name} cannot be replanned",
        why="it was not submitted with --gputopology",
        hint=f"{verbs} start it again",
    )


def _moved(
    starter: Starter, job: MPIJob, stored: Manifest, mine: QueuedJob, view: Snapshot
) -> Move:
    """The move of a gang; Unplaceable if it could not start again once it is stopped.

    Its own GPUs count as free, and its pods as ended in the quotas of its namespace. A controller
    places a gang whose submitter may not see all jobs: then only what can never fit is refused.
    """
    before = None if mine.suspended else recorded_placement(stored)
    if not view.everything and starter.queue.watched() and starter.constraint == UNCONSTRAINED:
        check_possible(job, view.cluster(), starter.site)
        return Move(before=before, after=None, compelled=_broken(starter, mine))
    decision = starter.decide(job, view.job(*mine.key) or mine, view, pods=False)
    short = decision.refused
    if decision.placement is not None:
        # Without the right to list the pods, the quotas cannot be compared with the new ones.
        with suppress(AccessDenied):
            ending = [pod for pod in starter.queue.pods(stored) if not pod_over(pod)]
            short = starter.shortfall(stored, decision, ending)
    if short is not None or decision.binding is None:
        raise Unplaceable(
            str(short), verdict=Verdict.NOT_NOW, refusals=(), nearest=decision.nearest
        )
    compelled = ""
    if before is not None:
        cluster = view.cluster(without={mine.key}, pods=False)
        request = request_of(job, cluster, starter.site)
        before, compelled = where_it_is(before, request, cluster, decision.binding)
        compelled = compelled or _broken(starter, mine)
    return Move(before=before, after=decision.forecast, compelled=compelled)


def _broken(starter: Starter, mine: QueuedJob) -> str:
    """Why a gang that was started does not run as a whole; empty if it does, or cannot be seen."""
    with suppress(AccessDenied):
        status = starter.site.engine.job(mine.name, mine.namespace)
        if not mine.suspended and any(instance.pending for instance in status.instances):
            return "not all of its pods run"
    return ""


@contextmanager
def _stays(name: str, namespace: str, *, runs_now: bool) -> Iterator[None]:
    """Say of a refusal in the block that a job goes on running: NotNow, or Unplaceable (NEVER)."""
    stays = f"{name} cannot be replanned" + (", and goes on running" if runs_now else "")
    try:
        yield
    except Unplaceable as refused:
        if refused.verdict is Verdict.NEVER:
            raise Unplaceable(
                stays,
                verdict=refused.verdict,
                refusals=refused.refusals,
                nearest=advice_on_existing(refused.nearest, name, namespace),
                notes=refused.notes,
                why=refused.sentence,
            ) from refused
        stop = command("suspend", name, namespace=namespace)
        frees = f"{stop} stops it and frees its GPUs, until it is resumed" if runs_now else None
        nearest = advice_on_existing(refused.nearest, name, namespace)
        raise NotNow(stays, why=refused.sentence, hint=nearest or frees) from refused
