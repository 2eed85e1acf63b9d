"""The events that still hold: what they complain of is still so. Pure.

A cluster keeps events for an hour, long after what they tell has passed: a pod that could not be
scheduled runs now, a quota that was exceeded has room. A complaint about a pod holds until the pod
is ready or has come further than the complaint; one about a pod that could not be created, until
the pod is there; any other for five minutes. Of the same complaint about the same object the newest
one counts.

The reasons are Kubernetes' own (pkg/kubelet/events, pkg/scheduler, pkg/controller) and those of
the MPI operators (`MPIJobFailed`: "worker pod created failed").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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

_CREATION = re.compile(
    r"forbidden|denied request|denied the request|created? (pod )?fail|Error creat"
)
"""What events say when a pod was not created."""

_RECENT = 300.0
"""Seconds that a complaint counts for which no state can be looked at."""

_DISRUPTED = frozenset({"Preempted", "TaintManagerEviction"})
_BEFORE_IMAGE = frozenset(
    {
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedMount",
        "NetworkNotReady",
    }
)
_OF_CONTAINERS = frozenset({"BackOff", "ErrImageNeverPull", "Failed", "InspectFailed"})
_STARTS = frozenset({"ContainerCreating", "PodInitializing"})


def standing(
    events: Iterable[Object], pods: Iterable[Object], *, wanted: int, now: float, over: bool
) -> tuple[Event, ...]:
    """The events that still hold, oldest first, the newest of each complaint.

    `wanted` is how many workers the job is to have; `over` that it has ended. `now` is Unix
    seconds.
    """
    there = {str(pod["metadata"]["name"]): pod for pod in pods}
    newest: dict[tuple[str, str, str], Object] = {}
    for one in sorted(events, key=when):
        about = subject(one)
        newest[str(about.get("kind")), str(about.get("name")), str(one.get("reason"))] = one

    def holds(event: Object) -> bool:
        if subject(event).get("kind") == "Pod":
            return _holds_of_pod(event, there, over=over)
        if event.get("type") != "Warning":
            return False
        created = subject(event).get("kind") != "ResourceQuota" and _CREATION.search(
            str(event.get("message"))
        )
        if created:
            return not over and _lacks_pods(event, there, wanted)
        # What the operator says of the job's end holds as long as the job does.
        ended = over and subject(event).get("kind") != "ResourceQuota"
        return ended or (not over and now - when(event) <= _RECENT)

    held = filter(holds, newest.values())
    return tuple(event_of(one) for one in sorted(held, key=when))


def _lacks_pods(event: Object, pods: Mapping[str, Object], wanted: int) -> bool:
    """Whether the pods that an event says could not be created are still not there."""
    about, message = subject(event), str(event.get("message"))
    named = re.search(r'pods? "([^"]+)"', message)
    if named and named[1] in pods:
        return False
    workers = sum(not is_launcher(pod) for pod in pods.values())
    no_launcher, few_workers = workers == len(pods), workers < wanted
    if about.get("kind") == "Job" or "launcher" in str(about.get("name")):
        return no_launcher
    of_workers = about.get("kind") == "StatefulSet" or "worker" in message
    return few_workers or (no_launcher and not of_workers)


def _holds_of_pod(event: Object, pods: Mapping[str, Object], *, over: bool) -> bool:
    reason, pod = str(event.get("reason")), pods.get(str(subject(event).get("name")))
    if reason in _DISRUPTED:
        # It is told of the pod that was taken away; the one made in its place has another uid.
        return not over and (pod is None or not _is_well(pod))
    if pod is None or not is_about_pod(event, pod):
        return False
    status, waiting = pod.get("status") or {}, {reason for _name, reason, _said in waits(pod)}
    bound, pending = bool((pod.get("spec") or {}).get("nodeName")), status.get("phase") == "Pending"
    if reason == "FailedScheduling":
        holds = pending and not bound
    elif reason in _BEFORE_IMAGE:
        holds = pending and bound
    elif reason == "Pulling":
        holds = pending and bound and (not waiting or "ContainerCreating" in waiting)
    elif reason in _OF_CONTAINERS:
        holds = bool(waiting - _STARTS)
    elif reason == "Evicted":
        holds = status.get("reason") == "Evicted"
    elif reason in {"Unhealthy", "NodeNotReady"}:
        holds = status.get("phase") == "Running" and not _is_well(pod)
    else:
        holds = event.get("type") == "Warning" and not _is_well(pod)
    return holds


def _is_well(pod: Object) -> bool:
    done = (pod.get("status") or {}).get("phase") == "Succeeded"
    return done or condition(pod, "Ready") == "True"


def waits(pod: Object) -> list[tuple[str, str, str]]:
    """(container, reason, message) of every container that waits."""
    found = []
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in (pod.get("status") or {}).get(kind) or ():
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                name = str(one.get("name", ""))
                found.append((name, str(waiting["reason"]), str(waiting.get("message") or "")))
    return found
