"""The current events: those whose problem still exists. Pure.

A cluster stores events for an hour, long after the problem is solved: a pod that could not be
scheduled runs now, a quota that was exceeded has room. An event about a pod is current until the
pod is ready or has passed the step of the event; an event about a pod that could not be created,
until the pod exists; all others for five minutes. Of the events of an object with the same reason
the newest counts.

The reasons are Kubernetes' own (pkg/kubelet/events, pkg/scheduler, pkg/controller) and those of
the MPI operators (`MPIJobFailed`: "worker pod created failed").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from arena_topo.clusters.objects import Object
from arena_topo.engines import Event
from arena_topo.engines.kubernetes.mpijob import (
    NOT_REVIVED,
    condition,
    event_of,
    event_time,
    is_about_pod,
    is_launcher,
    object_of_event,
)

_CREATION = re.compile(
    r"forbidden|denied request|denied the request|created? (pod )?fail|Error creat"
)
"""The messages of events about pods that were not created."""

_RECENT = 300.0
"""Seconds that an event stays current if no state can confirm it."""

_DISRUPTED = frozenset({"Preempted", "TaintManagerEviction"})
_ENDS = _DISRUPTED | {"BackoffLimitExceeded"}
"""Reasons for the end of a start: past once the job was resumed."""
_BEFORE_START = frozenset(
    {"FailedAttachVolume", "FailedCreatePodSandBox", "FailedMount", "NetworkNotReady", "Pulling"}
)
"""Reasons of kubelets about a pod that has not started yet."""


def current(
    events: Iterable[Object],
    pods: Iterable[Object],
    *,
    worker_count: int,
    now: float,
    over: bool,
    since: float = 0.0,
) -> tuple[Event, ...]:
    """The current events, oldest first; the newest of each object and reason.

    `worker_count` counts the workers of the job; `over`: the job has ended; `since` is when it was
    last resumed, and `now` the time, both in Unix seconds.
    """
    by_name = {str(pod["metadata"]["name"]): pod for pod in pods}
    newest: dict[tuple[str, str, str], Object] = {}
    for event in sorted(events, key=event_time):
        if event.get("reason") in _ENDS and event_time(event) < since:
            continue
        about = object_of_event(event)
        newest[str(about.get("kind")), str(about.get("name")), str(event.get("reason"))] = event

    def holds(event: Object) -> bool:
        kind = object_of_event(event).get("kind")
        if kind == "Pod":
            return _holds_of_pod(event, by_name, over=over)
        if event.get("reason") == NOT_REVIVED:
            return over
        if event.get("type") != "Warning":
            return False
        if kind != "ResourceQuota":
            if _CREATION.search(str(event.get("message"))):
                return not over and _lacks_pods(event, by_name, worker_count)
            if over:
                # The operator's events about the end of the job stay current.
                return True
        return not over and now - event_time(event) <= _RECENT

    return tuple(map(event_of, sorted(filter(holds, newest.values()), key=event_time)))


def _lacks_pods(event: Object, pods: Mapping[str, Object], worker_count: int) -> bool:
    """Whether the pods that could not be created, according to an event, are still missing."""
    about, message = object_of_event(event), str(event.get("message"))
    named = re.search(r'pods? "([^"]+)"', message)
    if named and named[1] in pods:
        return False
    workers = sum(not is_launcher(pod) for pod in pods.values())
    no_launcher = workers == len(pods)
    if about.get("kind") == "Job" or "launcher" in str(about.get("name")):
        return no_launcher
    of_workers = about.get("kind") == "StatefulSet" or "worker" in message
    return workers < worker_count or (no_launcher and not of_workers)


def _holds_of_pod(event: Object, pods: Mapping[str, Object], *, over: bool) -> bool:
    reason, pod = str(event.get("reason")), pods.get(str(object_of_event(event).get("name")))
    phase = ((pod or {}).get("status") or {}).get("phase")
    well = pod is not None and (phase == "Succeeded" or condition(pod, "Ready") == "True")
    if reason in _DISRUPTED:
        # The event is about the pod that was removed; its replacement has another uid.
        return not over and not well
    if pod is None or not is_about_pod(event, pod):
        return False
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    if reason == "FailedScheduling":
        return phase == "Pending" and not bound
    if reason in _BEFORE_START:
        return phase == "Pending" and bound and not _begun(pod)
    return event.get("type") == "Warning" and not well


def _begun(pod: Object) -> bool:
    """Whether a container of a pod, or an init container, has started."""
    status = pod.get("status") or {}
    containers = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    return any(
        {"running", "terminated"} & (container.get("state") or {}).keys()
        for container in containers
    )
