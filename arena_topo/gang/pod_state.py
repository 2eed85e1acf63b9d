"""The pods and events of a gang -> what has become of it, and where its workers go.

Nothing here asks a cluster or changes it: `rollout` and the controller act on the answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from arena_topo.clusters import quota
from arena_topo.clusters.queues import is_suspended, suspender
from arena_topo.clusters.rules import pod_over
from arena_topo.engines.kubernetes.mpijob import (
    event_time,
    is_about_pod,
    is_launcher,
    object_of_event,
    worker_index,
)
from arena_topo.engines.kubernetes.queued import QueuedJob, parse_time
from arena_topo.gang.fairness import STALE_RECORD_SECONDS
from arena_topo.manifests import GATE, MAP, PROPOSED, RECORDED, Manifest, pins
from arena_topo.manifests.annotations import parse_map, recorded_request
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words
from arena_topo.words import portion

Object = Mapping[str, Any]

UNSCHEDULABLE = 15.0
"""Seconds for which a worker may be unschedulable: the scheduler retries after events, and its
longest back-off is 10 s (kubernetes, pkg/scheduler: podMaxBackoffDuration)."""

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
_TRACKED = "batch.kubernetes.io/job-tracking"
"""The finalizer of a pod whose end its Job has not counted yet (kubernetes, pkg/controller/job)."""
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
    wanted = wanted_workers(mpijob)
    workers = [
        pod
        for pod in pods
        if not is_launcher(pod)
        and not pod["metadata"].get("deletionTimestamp")
        and (index := worker_index(pod)) is not None
        and index < wanted
    ]
    listed = tuple(events)
    signs = tuple(sorted(map(_sign, workers)))
    broken = next((cause for pod in workers if (cause := _broken(pod, now))), None)
    if broken is None and len(workers) < wanted:
        broken = _refused(mpijob, listed, since)
    bound = sum(bool(pod["spec"].get("nodeName")) for pod in workers)
    running = sum(_phase(pod) in {"Running", "Succeeded"} for pod in workers)
    if broken is not None:
        return GangStatus(fate=Fate.BROKEN, signs=signs, broken=broken)
    if bound < wanted:
        progress = portion(bound, wanted, "worker", noun="has its node", many="have their nodes")
        if len(workers) < wanted:
            progress = portion(len(workers), wanted, "worker", noun="exists", many="exist")
        return GangStatus(fate=Fate.GATHERING, signs=signs, progress=progress)
    if running < wanted:
        runs = portion(running, wanted, "worker", noun="runs", many="run")
        progress = _stuck(workers, listed) or runs
        return GangStatus(fate=Fate.BOUND, signs=signs, progress=progress, running=running)
    return GangStatus(fate=Fate.STARTED, signs=signs)


def wanted_workers(mpijob: Object) -> int:
    """The number of workers of an MPIJob; 1 where it gives none."""
    return int(mpijob["spec"]["mpiReplicaSpecs"]["Worker"].get("replicas", 1))


def gated_workers(pods: Iterable[Object]) -> list[Object]:
    """The workers that wait at our scheduling gate for their node."""
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and any(gate.get("name") == GATE for gate in pod["spec"].get("schedulingGates") or ())
    ]


def pod_created_at(pod: Object) -> float:
    """The creation time of a pod (Unix seconds)."""
    return parse_time(pod["metadata"].get("creationTimestamp")) or 0.0


def pulls_image(pods: Iterable[Object], events: Iterable[Object], *, now: float) -> bool:
    """Whether some worker has its node and pulls its image, which may take long.

    `events` are those about the job and its pods, oldest first; `now` is the server's time (Unix
    seconds). Kubelets report one reason for a pod that pulls and for a pod that lacks a volume or
    its network; the events distinguish them. Without any events (the caller may not read them), and
    for a pod whose events have expired, that reason counts as a pull.
    """
    listed = tuple(events)
    return any(_pulls(pod, listed, now) for pod in pods if not is_launcher(pod))


def _pulls(pod: Object, events: tuple[Object, ...], now: float) -> bool:
    creating = any(reason in {"ContainerCreating", "PodInitializing"} for reason, _ in _waits(pod))
    if not creating or not pod["spec"].get("nodeName"):
        return False
    mine = [str(event.get("reason")) for event in events if is_about_pod(event, pod)]
    if mine:
        newest = next((reason for reason in reversed(mine) if reason in _IMAGE), None)
        return newest == "Pulling"
    return not events or now - pod_created_at(pod) >= _KEPT


def _stuck(pods: Iterable[Object], events: tuple[Object, ...]) -> str | None:
    """Why a worker has not reached its image, in the kubelet's words, if its last event says so."""
    for pod in pods:
        mine = [
            event
            for event in events
            if event.get("reason") in _STUCK | _IMAGE and is_about_pod(event, pod)
        ]
        last = mine[-1] if mine and _phase(pod) == "Pending" else {}
        if last.get("reason") in _STUCK and last.get("type") == "Warning":
            text = " ".join(str(last.get("message") or "").split())
            return f"{pod['metadata']['name']}: {last['reason']}: {text}".removesuffix(": ")
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
        for container in status.get(kind) or ()
        if (waiting := (container.get("state") or {}).get("waiting")) is not None
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
    for condition in status.get("conditions") or ():
        condition_state = condition.get("type"), condition.get("status"), condition.get("reason")
        since = parse_time(condition.get("lastTransitionTime")) or now
        if (
            condition_state == ("PodScheduled", "False", "Unschedulable")
            and now - since >= UNSCHEDULABLE
        ):
            return in_words(f"{name}: {condition.get('message') or 'Unschedulable'}")
    return None


def _refused(mpijob: Object, events: Iterable[Object], since: float) -> Cause | None:
    """Why the operator could not create a worker: its newest event about the job since `since`."""
    uid = mpijob["metadata"].get("uid")
    messages = [
        str(event.get("message") or "")
        for event in events
        # Event times have whole seconds.
        if event.get("type") == "Warning"
        and object_of_event(event).get("uid") == uid
        and event_time(event) >= math.floor(since)
    ]
    refusals = [message for message in messages if _CREATION.search(message)]
    return quota.quota_cause(refusals[-1]) if refusals else None


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
        return bool(gated_workers(pods))
    if PROPOSED in (job.manifest["metadata"].get("annotations") or {}):
        return bool(gated_workers(pods)) and abs(now - job.recorded) > STALE_RECORD_SECONDS
    return _is_outdated(job.recorded, pods)


def _is_outdated(recorded: float, pods: Sequence[Object]) -> bool:
    """Whether the workers are younger than the record of their gang (`recorded`, Unix seconds).

    The queue has stopped the gang since, and others may have its GPUs. But a single worker that is
    created again joins those that have their nodes.
    """
    waiting = gated_workers(pods)
    # Creation times are whole seconds.
    young = bool(waiting) and min(map(pod_created_at, waiting)) > recorded + 1
    return young and not any(map(has_node, pods))


def worker_places(mpijob: Manifest, pods: Sequence[Object]) -> list[tuple[Object, Manifest]]:
    """The patches that send gated workers to the nodes in the record of their job.

    Empty if the job is suspended, or its record is only proposed or outdated.
    """
    notes = mpijob["metadata"].get("annotations") or {}
    if PROPOSED in notes or not notes.get(MAP) or is_suspended(mpijob):
        return []
    recorded = parse_time(notes.get(RECORDED))
    if recorded is not None and suspender(mpijob) is not None and _is_outdated(recorded, pods):
        return []
    try:
        workers = parse_map(notes[MAP])
    except ValueError:
        return []
    seen = pins.visible_gpus(workers, shared=recorded_request(mpijob).get("podShape") == "shared")
    places = []
    for pod in gated_workers(pods):
        index = worker_index(pod)
        if index is not None and index < len(workers):
            _, node, gpus = workers[index]
            places.append((pod, pins.worker_patch(dict(pod), node, gpus, seen[index])))
    return places


def has_ended(pod: Object) -> bool:
    """Whether a pod has ended, and its Job, if it has one, has counted how."""
    return pod_over(pod) and _TRACKED not in (pod["metadata"].get("finalizers") or ())


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
