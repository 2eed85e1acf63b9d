"""Events -> those that still hold: what they complain of is still so.

Pure. A cluster keeps events for an hour, long after what they tell has passed: a pod that could
not be scheduled runs now, a quota that was exceeded has room. Each kind of complaint is believed
only as long as the object it is about is in the state that it complains of. Of the same complaint
about the same object the newest one counts.

The reasons are Kubernetes' own (pkg/kubelet/events, pkg/scheduler, pkg/controller) and those of
the MPI operators (`MPIJobFailed`: "worker pod created failed").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from arena_topo.engines import Event
from arena_topo.engines.kubernetes.mpijob import (
    condition,
    event_of,
    is_about_pod,
    is_launcher,
    subject,
    when,
)

Object = Mapping[str, Any]

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Why a container waits for its image (kubelet, pkg/kubelet/images/types.go)."""

CREATION = re.compile(
    r"forbidden|denied request|denied the request|created? (pod )?fail|Error creat"
)
"""What events say when a pod was not created."""

RECENT = 300.0
"""Seconds that a complaint counts for which no state can be looked at."""


def standing(
    events: Iterable[Object], pods: Iterable[Object], *, wanted: int, now: float, over: bool
) -> tuple[Event, ...]:
    """The events that still hold, oldest first, the newest of each complaint.

    `wanted` is how many workers the job is to have; `over` that it has ended. `now` is Unix
    seconds.
    """
    world = _World(list(pods), wanted=wanted, now=now, over=over)
    newest: dict[tuple[str, str, str], Object] = {}
    for one in sorted(events, key=when):
        about = subject(one)
        newest[str(about.get("kind")), str(about.get("name")), str(one.get("reason"))] = one
    held = [one for one in newest.values() if world.believes(one)]
    return tuple(event_of(one) for one in sorted(held, key=when))


class _World:
    """The state that events are held against."""

    def __init__(self, pods: list[Object], *, wanted: int, now: float, over: bool) -> None:
        self._pods = {str(pod["metadata"]["name"]): pod for pod in pods}
        self._now = now
        self._over = over
        workers = sum(not is_launcher(pod) for pod in pods)
        self._complete = workers >= wanted and workers < len(pods)
        self._workers_complete = workers >= wanted

    def believes(self, event: Object) -> bool:
        """Whether what an event tells is still so, and worth telling."""
        about = subject(event)
        kind, reason = about.get("kind"), str(event.get("reason"))
        if kind == "Pod":
            return self._of_pod(event, about, reason)
        if event.get("type") != "Warning":
            return False
        if kind == "ResourceQuota":
            return not self._over and self._now - when(event) <= RECENT
        if CREATION.search(str(event.get("message"))):
            return not self._over and self._lacks(event, str(kind))
        # What the operator says of the job's end holds as long as the job does.
        return self._over or self._now - when(event) <= RECENT

    def _lacks(self, event: Object, kind: str) -> bool:
        """Whether the pods that an event says could not be created are still not there."""
        named = re.search(r'pods? "([^"]+)"', str(event.get("message")))
        if named and named[1] in self._pods:
            return False
        about = subject(event)
        if kind == "Job" or "launcher" in str(about.get("name")):
            return not any(is_launcher(pod) for pod in self._pods.values())
        if kind == "StatefulSet" or "worker" in str(event.get("message")):
            return not self._workers_complete
        return not self._complete

    def _of_pod(self, event: Object, about: Object, reason: str) -> bool:
        pod = self._pods.get(str(about.get("name")))
        if reason in _DISRUPTED:
            # It is told of the pod that was taken away; the one made in its place has another uid.
            return not self._over and (pod is None or not _runs(pod))
        if pod is None or not is_about_pod(event, pod):
            return False
        holds = _HOLDS.get(reason)
        if holds is not None:
            return holds(pod)
        return event.get("type") == "Warning" and not _runs(pod)


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def _runs(pod: Object) -> bool:
    return condition(pod, "Ready") == "True" or _status(pod).get("phase") == "Succeeded"


def _unbound(pod: Object) -> bool:
    return not (pod.get("spec") or {}).get("nodeName") and _status(pod).get("phase") == "Pending"


def _not_started(pod: Object) -> bool:
    return not _unbound(pod) and _status(pod).get("phase") == "Pending"


def _pulls(pod: Object) -> bool:
    reasons = waiting_reasons(pod)
    return _not_started(pod) and (not reasons or "ContainerCreating" in reasons)


def _lacks_image(pod: Object) -> bool:
    return bool(waiting_reasons(pod) & IMAGE_REASONS)


def _backs_off(pod: Object) -> bool:
    return bool(waiting_reasons(pod) & (IMAGE_REASONS | {"CrashLoopBackOff"}))


def _stuck(pod: Object) -> bool:
    return bool(waiting_reasons(pod) - {"ContainerCreating", "PodInitializing"})


def _unready(pod: Object) -> bool:
    return _status(pod).get("phase") == "Running" and not _runs(pod)


def _evicted(pod: Object) -> bool:
    return _status(pod).get("reason") == "Evicted"


_HOLDS: Mapping[str, Callable[[Object], bool]] = {
    "FailedScheduling": _unbound,
    "Pulling": _pulls,
    "Failed": _stuck,
    "ErrImageNeverPull": _lacks_image,
    "InspectFailed": _lacks_image,
    "BackOff": _backs_off,
    "FailedMount": _not_started,
    "FailedAttachVolume": _not_started,
    "FailedCreatePodSandBox": _not_started,
    "NetworkNotReady": _not_started,
    "Unhealthy": _unready,
    "NodeNotReady": _unready,
    "Evicted": _evicted,
}
"""Of which pods each complaint still holds."""

_DISRUPTED = frozenset({"Preempted", "TaintManagerEviction"})


def waiting_reasons(pod: Object) -> frozenset[str]:
    """Why containers of a pod do not run yet, in the kubelet's words."""
    return frozenset(reason for _name, reason, _message in waits(pod))


def waits(pod: Object) -> list[tuple[str, str, str]]:
    """(container, reason, message) of every container that waits."""
    found = []
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in _status(pod).get(kind) or ():
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                name = str(one.get("name", ""))
                found.append((name, str(waiting["reason"]), str(waiting.get("message") or "")))
    return found
