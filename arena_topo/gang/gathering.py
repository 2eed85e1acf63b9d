"""After a gang was resumed: whether all its workers came together, and what is in their way.

Pure. A gang that cannot complete holds GPUs for nothing, so it is taken back whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from arena_topo.clusters import quota
from arena_topo.engines.kubernetes.mpijob import (
    is_about_pod,
    is_launcher,
    subject,
    when,
    worker_index,
)
from arena_topo.engines.kubernetes.queued import moment
from arena_topo.manifests import GATE, MAP, PROPOSED, Manifest, pinning
from arena_topo.manifests.annotations import asked, parse_map
from arena_topo.manifests.cause import Cause, CauseCode, because, in_words

Object = Mapping[str, Any]

UNSCHEDULABLE = 15.0
"""Seconds that the scheduler may call a worker unschedulable: it tries again after events, and its
longest back-off is 10 s (kubernetes, pkg/scheduler: podMaxBackoffDuration)."""

_REFUSED_IMAGE = re.compile(
    r"\b(401|403|404)\b|unauthorized|denied|forbidden|not found|does not exist|manifest unknown",
    re.IGNORECASE,
)
"""What registries say when asking again is no use."""

_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_AT_ONCE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_IMAGE = frozenset({"Pulling", "Pulled", "Failed", "BackOff", "ErrImageNeverPull"})
"""Reasons of events by which a kubelet tells of an image (kubernetes, pkg/kubelet/events)."""
_STUCK = frozenset(
    {
        "FailedMount",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedPrepareDynamicResources",
    }
)
"""Why a kubelet has not come to the image of a pod yet (the same file)."""
_KEPT = 3600.0
"""Seconds that an API server keeps events (kube-apiserver, --event-ttl)."""
_CREATION = re.compile(
    r"forbidden|denied|exceeded quota|violates PodSecurity|invalid", re.IGNORECASE
)


class Fate(Enum):
    """How a gang stands after it was resumed."""

    GATHERING = "gathering"
    BOUND = "bound"
    """Every worker has its node."""
    STARTED = "started"
    """Every worker runs."""
    BROKEN = "broken"
    """It cannot complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the pods of a resumed gang say.

    `signs` changes with every progress, `progress` tells a person of it. `broken` is why a gang
    cannot complete, of one that is BROKEN.
    """

    fate: Fate
    signs: tuple[object, ...]
    progress: str = ""
    broken: Cause | None = None
    running: int = 0


def standing(
    mpijob: Object,
    pods: Iterable[Object],
    events: Iterable[Object],
    *,
    now: float,
    since: float,
) -> Standing:
    """How a gang stands that was resumed at `since`; `now` is the server's time (Unix seconds).

    `events` are those about the job and its pods, oldest first; those from before the gang was
    resumed tell of an earlier try.
    """
    spec = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]
    wanted = int(spec.get("replicas", 1))
    workers = {
        index: pod
        for pod in pods
        if not is_launcher(pod)
        and not pod["metadata"].get("deletionTimestamp")
        and (index := worker_index(pod)) is not None
        and index < wanted
    }
    told = tuple(events)
    signs = tuple(sorted(map(_sign, workers.values())))
    for pod in workers.values():
        broken = _broken(pod, now)
        if broken is not None:
            return Standing(fate=Fate.BROKEN, signs=signs, broken=broken)
    if len(workers) < wanted:
        refused = _refused(mpijob, told, since)
        if refused is not None:
            return Standing(fate=Fate.BROKEN, signs=signs, broken=quota.refusal(refused))
        missing = f"{len(workers)} of {wanted} workers exist"
        return Standing(fate=Fate.GATHERING, signs=signs, progress=missing)
    bound = sum(bool(pod["spec"].get("nodeName")) for pod in workers.values())
    if bound < wanted:
        waits = f"{bound} of {wanted} workers have their node"
        return Standing(fate=Fate.GATHERING, signs=signs, progress=waits)
    running = sum(_phase(pod) in {"Running", "Succeeded"} for pod in workers.values())
    if running < wanted:
        late = [pod for pod in workers.values() if _phase(pod) == "Pending"]
        why = _stuck(late, told) or f"{running} of {wanted} workers run"
        return Standing(fate=Fate.BOUND, signs=signs, progress=why, running=running)
    return Standing(fate=Fate.STARTED, signs=signs)


def gated(pods: Iterable[Object]) -> list[Object]:
    """The workers that wait at the gate for somebody to say where they go."""
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and any(one.get("name") == GATE for one in pod["spec"].get("schedulingGates") or ())
    ]


def born(pod: Object) -> float:
    """When a pod was created (Unix seconds)."""
    return moment(pod["metadata"].get("creationTimestamp")) or 0.0


def _recorded(mpijob: Object) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
    """Where the record of a job sends its workers; nothing where it does not say, or nonsense."""
    record = (mpijob["metadata"].get("annotations") or {}).get(MAP)
    try:
        return parse_map(record) if record else ()
    except ValueError:
        return ()


def pulls(pods: Iterable[Object], events: Iterable[Object], *, now: float) -> bool:
    """Whether some worker has its node and fetches its image, which may take long.

    `events` are those about the job and its pods, oldest first; `now` is the server's time (Unix
    seconds). Kubelets have one word for a pod that pulls and for one that lacks a volume or its
    network; the events tell them apart. Without any, as for who may not read them, and of a pod
    whose events have expired, that word is taken for a pull.
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
    """What keeps a worker from its image, in the kubelet's words, where that is its last word."""
    for pod in pods:
        mine = [
            one for one in events if one.get("reason") in _STUCK | _IMAGE and is_about_pod(one, pod)
        ]
        if mine and mine[-1]["reason"] in _STUCK and mine[-1].get("type") == "Warning":
            said = " ".join(str(mine[-1].get("message") or "").split())
            return f"{pod['metadata']['name']}: {mine[-1]['reason']}: {said}".removesuffix(": ")
    return None


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _sign(pod: Object) -> tuple[str, str, bool, bool, tuple[str, ...]]:
    return (
        pod["metadata"]["name"],
        _phase(pod),
        bool(pod["spec"].get("nodeName")),
        bool(pod["spec"].get("schedulingGates")),
        # Between two tries to fetch an image kubelets change from one of these words to the other.
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
    """What keeps a worker from ever starting where it is."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    if _phase(pod) == "Failed":
        why = ": ".join(filter(None, (status.get("reason") or "it failed", status.get("message"))))
        return in_words(f"{name}: {why}")
    for reason, message in _waits(pod):
        if reason in _AT_ONCE or (reason in _NO_IMAGE and _REFUSED_IMAGE.search(message)):
            text = f"{reason}: {message}" if message else reason
            return because(CauseCode.IMAGE, pod=name, text=text)
    for one in status.get("conditions") or ():
        if (
            one.get("type") == "PodScheduled"
            and one.get("status") == "False"
            and one.get("reason") == "Unschedulable"
        ):
            since = moment(one.get("lastTransitionTime")) or now
            if now - since >= UNSCHEDULABLE:
                return in_words(f"{name}: {one.get('message') or 'Unschedulable'}")
    return None


def _refused(mpijob: Object, events: Iterable[Object], since: float) -> str | None:
    """Why the operator could not create a worker, by its newest event of the job since then."""
    found = None
    for event in events:
        if event.get("type") != "Warning" or subject(event).get("uid") != mpijob["metadata"].get(
            "uid"
        ):
            continue
        message = str(event.get("message") or "")
        # Events know whole seconds.
        if when(event) >= math.floor(since) and _CREATION.search(message):
            found = message
    return found


@dataclass(slots=True, kw_only=True)
class Patience:
    """How long a gang may stand still: `limit` seconds since it last got on."""

    limit: float
    since: float | None = None
    signs: tuple[object, ...] = ()

    def lost(self, seen: Standing, *, pulling: bool, now: float) -> bool:
        """Whether nothing has moved for too long; an image that is being fetched is progress."""
        if self.since is None or seen.signs != self.signs or pulling:
            self.since, self.signs = now, seen.signs
        return now - self.since >= self.limit


def worker_places(mpijob: Manifest, pods: Iterable[Object]) -> list[tuple[Object, Manifest]]:
    """The patches that gated workers need to go where the record of their job sends them."""
    if PROPOSED in (mpijob["metadata"].get("annotations") or {}):
        return []
    workers = _recorded(mpijob)
    shared = asked(mpijob).get("podShape") == "shared"
    seen = pinning.visible(workers, shared=shared)
    found = []
    for pod in gated(pods):
        index = worker_index(pod)
        if index is not None and index < len(workers):
            _, node, gpus = workers[index]
            found.append((pod, pinning.worker_patch(dict(pod), node, gpus, seen[index])))
    return found
