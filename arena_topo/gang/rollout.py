"""The rollout of a resumed gang: watched until all its workers are placed, else rolled back.

A gang that cannot complete wastes GPUs, so it is suspended as a whole and started again. Pure
functions (`status_of`, `pulls`, `StallTimer`) judge the pods, here and in the controller;
`wait_until_placed` and `roll_back` act on the result.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from arena_topo.clusters import quota
from arena_topo.clusters.queues import suspended, suspender
from arena_topo.clusters.usage import pod_over
from arena_topo.engines.kubernetes.mpijob import (
    is_about_pod,
    is_launcher,
    subject,
    when,
    worker_index,
)
from arena_topo.engines.kubernetes.queued import MOST_TRIES, QueuedJob, moment, queued
from arena_topo.engines.looking import looks
from arena_topo.errors import AccessDenied, ClusterError, TimedOut
from arena_topo.gang import Watcher
from arena_topo.gang.fairness import STALE
from arena_topo.gang.protocol import Outcome, Starter
from arena_topo.job import MPIJob
from arena_topo.manifests import GATE, MAP, PROPOSED, RECORDED, Manifest, patches, pinning
from arena_topo.manifests.annotations import asked, parse_map
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue

Object = Mapping[str, Any]

UNSCHEDULABLE = 15.0
"""Seconds for which a worker may be unschedulable: the scheduler retries after events, and its
longest back-off is 10 s (kubernetes, pkg/scheduler: podMaxBackoffDuration)."""

_SETTLE = 5.0
"""Seconds for which a gang is watched after its last worker was bound: registries refuse images
within a second or two."""

_GONE = 30.0
"""Seconds to wait for the old pods of a gang after a rollback: kubelets grant them 30 s."""

_LOOK, _SELDOM = 0.25, 2.0
"""Seconds between two polls of a gang during its rollout: of its old pods, and, after a while, of
its new ones."""

_KEPT = 3600.0
"""Seconds for which an API server stores events (kube-apiserver, --event-ttl)."""

_REFUSED_IMAGE = re.compile(
    r"\b(401|403|404)\b|unauthorized|denied|forbidden|not found|does not exist|manifest unknown",
    re.IGNORECASE,
)
"""Answers of registries after which a retry is useless."""

_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_AT_ONCE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_IMAGE = frozenset({"Pulling", "Pulled", "Failed", "BackOff", "ErrImageNeverPull"})
"""Reasons of a kubelet's events about an image (kubernetes, pkg/kubelet/events)."""
_STUCK = frozenset(
    {
        "FailedMount",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedPrepareDynamicResources",
    }
)
"""Reasons why a kubelet has not reached the image of a pod yet (the same file)."""
_CREATION = re.compile(
    r"forbidden|denied|exceeded quota|violates PodSecurity|invalid", re.IGNORECASE
)


class Fate(Enum):
    """The state of a gang after it was resumed."""

    GATHERING = "gathering"
    BOUND = "bound"
    """Every worker has its node."""
    STARTED = "started"
    """Every worker runs."""
    BROKEN = "broken"
    """The gang cannot complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """The state of a resumed gang by its pods.

    `signs` changes with all progress, `progress` is a text for people. `broken` is the cause why a
    gang cannot complete, for a gang that is BROKEN.
    """

    fate: Fate
    signs: tuple[object, ...]
    progress: str = ""
    broken: Cause | None = None
    running: int = 0


# ---------------------------------------------------------------- what pods and events say


def status_of(
    mpijob: Object,
    pods: Iterable[Object],
    events: Iterable[Object],
    *,
    now: float,
    since: float,
) -> GangStatus:
    """The state of a gang that was resumed at `since`; `now` is the server's time (Unix seconds).

    `events` are those about the job and its pods, oldest first; those from before `since` are about
    an earlier try.
    """
    wanted = _wanted(mpijob)
    workers = [
        pod
        for pod in pods
        if not is_launcher(pod)
        and not pod["metadata"].get("deletionTimestamp")
        and (index := worker_index(pod)) is not None
        and index < wanted
    ]
    told = tuple(events)
    signs = tuple(sorted(map(_sign, workers)))
    broken = next((cause for pod in workers if (cause := _broken(pod, now))), None)
    if broken is None and len(workers) < wanted:
        broken = _refused(mpijob, told, since)
    bound = sum(bool(pod["spec"].get("nodeName")) for pod in workers)
    running = sum(_phase(pod) in {"Running", "Succeeded"} for pod in workers)
    if broken is not None:
        return GangStatus(fate=Fate.BROKEN, signs=signs, broken=broken)
    if bound < wanted:
        progress = f"{bound} of {wanted} workers have their node"
        if len(workers) < wanted:
            progress = f"{len(workers)} of {wanted} workers exist"
        return GangStatus(fate=Fate.GATHERING, signs=signs, progress=progress)
    if running < wanted:
        progress = _stuck(workers, told) or f"{running} of {wanted} workers run"
        return GangStatus(fate=Fate.BOUND, signs=signs, progress=progress, running=running)
    return GangStatus(fate=Fate.STARTED, signs=signs)


def _wanted(mpijob: Object) -> int:
    return int(mpijob["spec"]["mpiReplicaSpecs"]["Worker"].get("replicas", 1))


def gated(pods: Iterable[Object]) -> list[Object]:
    """The workers that wait at our scheduling gate for their node."""
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and any(one.get("name") == GATE for one in pod["spec"].get("schedulingGates") or ())
    ]


def born(pod: Object) -> float:
    """The creation time of a pod (Unix seconds)."""
    return moment(pod["metadata"].get("creationTimestamp")) or 0.0


def pulls(pods: Iterable[Object], events: Iterable[Object], *, now: float) -> bool:
    """Whether some worker has its node and pulls its image, which may take long.

    `events` are those about the job and its pods, oldest first; `now` is the server's time (Unix
    seconds). Kubelets report one reason for a pod that pulls and for a pod that lacks a volume or
    its network; the events distinguish them. Without any events (the caller may not read them), and
    for a pod whose events have expired, that reason counts as a pull.
    """
    told = tuple(events)
    return any(_pulls(pod, told, now) for pod in pods if not is_launcher(pod))


def _pulls(pod: Object, events: tuple[Object, ...], now: float) -> bool:
    creating = any(reason in {"ContainerCreating", "PodInitializing"} for reason, _ in _waits(pod))
    if not creating or not pod["spec"].get("nodeName"):
        return False
    mine = [str(one.get("reason")) for one in events if is_about_pod(one, pod)]
    if mine:
        newest = next((reason for reason in reversed(mine) if reason in _IMAGE), None)
        return newest == "Pulling"
    return not events or now - born(pod) >= _KEPT


def _stuck(pods: Iterable[Object], events: tuple[Object, ...]) -> str | None:
    """Why a worker has not reached its image, in the kubelet's words, if its last event says so."""
    for pod in pods:
        mine = [
            one for one in events if one.get("reason") in _STUCK | _IMAGE and is_about_pod(one, pod)
        ]
        last = mine[-1] if mine and _phase(pod) == "Pending" else {}
        if last.get("reason") in _STUCK and last.get("type") == "Warning":
            said = " ".join(str(last.get("message") or "").split())
            return f"{pod['metadata']['name']}: {last['reason']}: {said}".removesuffix(": ")
    return None


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _sign(pod: Object) -> tuple[str, str, bool, bool, tuple[str, ...]]:
    return (
        pod["metadata"]["name"],
        _phase(pod),
        bool(pod["spec"].get("nodeName")),
        bool(pod["spec"].get("schedulingGates")),
        # Kubelets alternate between these reasons from one try of a pull to the next.
        tuple("image" if reason in _NO_IMAGE else reason for reason, _ in _waits(pod)),
    )


def _waits(pod: Object) -> list[tuple[str, str]]:
    status = pod.get("status") or {}
    return [
        (str(waiting.get("reason")), str(waiting.get("message") or ""))
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in status.get(kind) or ()
        if (waiting := (one.get("state") or {}).get("waiting")) is not None
    ]


def _broken(pod: Object, now: float) -> Cause | None:
    """Why a worker can never start on its node; None if it may."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    if _phase(pod) == "Failed":
        words = (name, status.get("reason") or "it failed", status.get("message"))
        return in_words(": ".join(filter(None, words)))
    for reason, message in _waits(pod):
        if reason in _AT_ONCE or (reason in _NO_IMAGE and _REFUSED_IMAGE.search(message)):
            text = f"{reason}: {message}" if message else reason
            return because(CauseCode.IMAGE, pod=name, text=text)
    for one in status.get("conditions") or ():
        said = one.get("type"), one.get("status"), one.get("reason")
        since = moment(one.get("lastTransitionTime")) or now
        if said == ("PodScheduled", "False", "Unschedulable") and now - since >= UNSCHEDULABLE:
            return in_words(f"{name}: {one.get('message') or 'Unschedulable'}")
    return None


def _refused(mpijob: Object, events: Iterable[Object], since: float) -> Cause | None:
    """Why the operator could not create a worker: its newest event about the job since `since`."""
    uid = mpijob["metadata"].get("uid")
    messages = [
        str(one.get("message") or "")
        for one in events
        # Event times have whole seconds.
        if one.get("type") == "Warning"
        and subject(one).get("uid") == uid
        and when(one) >= math.floor(since)
    ]
    found = [one for one in messages if _CREATION.search(one)]
    return quota.refusal(found[-1]) if found else None


@dataclass(slots=True, kw_only=True)
class StallTimer:
    """The timeout of a gang without progress: `limit` seconds since its last change."""

    limit: float
    since: float | None = None
    signs: tuple[object, ...] = ()

    def expired(self, seen: GangStatus, *, pulling: bool, now: float) -> bool:
        """Whether the timeout has passed; the pull of an image counts as progress."""
        if self.since is None or seen.signs != self.signs or pulling:
            self.since, self.signs = now, seen.signs
        return now - self.since >= self.limit


def has_node(pod: Object) -> bool:
    """Whether a worker has its node and will not leave it."""
    leaves = is_launcher(pod) or pod_over(pod) or pod["metadata"].get("deletionTimestamp")
    return bool(pod["spec"].get("nodeName")) and not leaves


def awaits_placement(job: QueuedJob, pods: Sequence[Object], now: float) -> bool:
    """Whether the gated workers of a gang that another queue starts need a new placement.

    A proposed record counts until its writer must be dead. `now` is the server's time (Unix
    seconds).
    """
    if job.state != "placed" or job.recorded is None:
        return bool(gated(pods))
    if PROPOSED in (job.manifest["metadata"].get("annotations") or {}):
        return bool(gated(pods)) and abs(now - job.recorded) > STALE
    return _is_outdated(job.recorded, pods)


def _is_outdated(recorded: float, pods: Sequence[Object]) -> bool:
    """Whether the workers are younger than the record of their gang (`recorded`, Unix seconds).

    The queue has stopped the gang since, and others may have its GPUs. But a single worker that is
    created again joins those that have their nodes.
    """
    waiting = gated(pods)
    # Creation times are whole seconds.
    young = bool(waiting) and min(map(born, waiting)) > recorded + 1
    return young and not any(map(has_node, pods))


def worker_places(mpijob: Manifest, pods: Sequence[Object]) -> list[tuple[Object, Manifest]]:
    """The patches that send gated workers to the nodes in the record of their job.

    Empty if the job is suspended, or its record is only proposed or outdated.
    """
    notes = mpijob["metadata"].get("annotations") or {}
    if PROPOSED in notes or not notes.get(MAP) or suspended(mpijob):
        return []
    recorded = moment(notes.get(RECORDED))
    if recorded is not None and suspender(mpijob) is not None and _is_outdated(recorded, pods):
        return []
    try:
        workers = parse_map(notes[MAP])
    except ValueError:
        return []
    seen = pinning.visible(workers, shared=asked(mpijob).get("podShape") == "shared")
    found = []
    for pod in gated(pods):
        index = worker_index(pod)
        if index is not None and index < len(workers):
            _, node, gpus = workers[index]
            found.append((pod, pinning.worker_patch(dict(pod), node, gpus, seen[index])))
    return found


# ---------------------------------------------------------------- watching, rolling back


def wait_until_placed(starter: Starter, job: MPIJob, outcome: Outcome, watcher: Watcher) -> Outcome:
    """Watch a resumed gang until all its workers have their nodes, or run; else roll it back.

    After a rollback the gang is solved and started again, three tries in all; then it waits with
    the cause.
    """
    queue = starter.queue
    while outcome.resumed:
        stored = outcome.stored
        try:
            trouble = _trouble(starter, job, stored, watcher)
        except (AccessDenied, ClusterError) as unseen:
            note = f"{unseen.message}: no program checks whether all workers start"
            return replace(outcome, notes=(*outcome.notes, note))
        except TimedOut as late:
            raise TimedOut(
                f"whether all workers of {job.name} come together was not seen in time",
                why=late.message,
                hint=f"the job goes on; see arena-topo get {job.name}",
            ) from late
        if trouble is None:
            going = _comes_together(starter, stored)
            return outcome if going else starter.lost_race(stored, outcome.decision)
        owner = suspender(stored)
        if owner is not None:
            note = f"{trouble}; {owner} decides whether it goes on"
            return replace(outcome, notes=(*outcome.notes, note))
        tries = patches.tries_of(stored) + 1
        back = roll_back(queue, stored, trouble, tries)
        if back is None:
            return starter.lost_race(stored, outcome.decision)
        watcher.tell(f"{trouble}: the gang was rolled back (try {tries} of {MOST_TRIES})")
        wait_for_old_pods(starter, back)
        if tries >= MOST_TRIES:
            refused = replace(outcome.decision, placement=None, binding=None, refused=trouble)
            return replace(outcome, stored=back, decision=refused, resumed=False)
        outcome = starter.start(job, back, None)
    return outcome


def roll_back(queue: Queue, stored: Manifest, cause: Cause, tries: int) -> Manifest | None:
    """Suspend a whole gang, which then waits for its turn; None if the job changed meanwhile."""
    patch = patches.taking_back(stored, pinning.unplaced(stored), cause, tries)
    return queue.change(stored, patch)


def failed_workers(pods: Iterable[Object]) -> list[Object]:
    """The failed workers of a suspended gang, which `cleanPodPolicy: Running` leaves.

    While they exist the operator creates no others of their names.
    """
    return [
        pod
        for pod in pods
        if _phase(pod) == "Failed"
        and not is_launcher(pod)
        and not pod["metadata"].get("deletionTimestamp")
    ]


def wait_for_old_pods(starter: Starter, stored: Manifest) -> None:
    """Delete the failed workers of a suspended gang, and wait until its other pods have ended.

    At most 30 s. A failed worker that the caller may not delete stays.
    """
    with suppress(AccessDenied):
        for pod in failed_workers(starter.queue.pods(stored)):
            starter.queue.force_delete(pod)
    end = time.monotonic() + _GONE
    while time.monotonic() < end and starter.has_old_pods(stored):
        time.sleep(_LOOK)


def _trouble(starter: Starter, job: MPIJob, stored: Manifest, watcher: Watcher) -> Cause | None:
    """Why a gang cannot complete; None if it has, or if the watch is over.

    Meanwhile gated workers are sent to their nodes.
    """
    queue = starter.queue
    since, timer = queue.now(), StallTimer(limit=float(job.gang_timeout))
    bound_at, delay = None, _LOOK / 5

    def look() -> tuple[GangStatus, bool] | None:
        """The state of the gang, and whether it pulls an image; None if its rollout is over."""
        if not _comes_together(starter, stored):
            return None
        pods = queue.pods(stored)
        for pod, patch in worker_places(stored, pods):
            queue.bind(pod, patch)
        unsettled = len(pods) <= _wanted(stored) or pulls(pods, (), now=queue.now())
        events = queue.events(stored) if unsettled else []
        seen = status_of(stored, pods, events, now=queue.now(), since=since)
        return seen, pulls(pods, events, now=queue.now())

    def pause(most: float) -> None:
        nonlocal delay
        time.sleep(min(delay, most))
        delay *= 1.5

    # A short outage is tolerated, as a gang that is left at its gates wastes its GPUs.
    for found in looks(look, every=_SELDOM, pause=pause):
        if found is None:
            return None
        seen, pulling = found
        now = time.monotonic()
        watcher.sees(seen.progress)
        if watcher.late or seen.fate is Fate.STARTED:
            return None
        if seen.broken is not None:
            return seen.broken
        if seen.fate is Fate.BOUND:
            bound_at = bound_at or now
            # If one worker runs, its image could be pulled; the others use the same.
            if not watcher.stay and (seen.running or now - bound_at > _SETTLE):
                return None
        if timer.expired(seen, pulling=pulling, now=now):
            return because(CauseCode.STALLED, limit=str(job.gang_timeout), text=seen.progress)
    raise AssertionError("polling does not end by itself")


def _comes_together(starter: Starter, stored: Manifest) -> bool:
    """Whether the rollout of a job goes on: it is not over, deleted, suspended or recorded anew.

    A job that has ended has no workers either, and must not be rolled back for that.
    """
    found, before = starter.current(stored), queued(stored, {})
    mine = None if found is None else queued(found, {})
    return (
        mine is not None
        and before is not None
        and not mine.suspended
        and (mine.record, mine.recorded) == (before.record, before.recorded)
    )
