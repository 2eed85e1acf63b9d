"""The events that still hold: what they complain of is still so. Pure.

A cluster stores events for an hour, long after what they tell has passed: a pod that could not be
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

from arena_topo.clusters.objects import Object
from arena_topo.engines import Event
from arena_topo.engines.kubernetes.mpijob import (
    condition,
    event_of,
    is_about_pod,
    is_launcher,
    subject,
    when,
)

_CREATION = re.compile(
    r"forbidden|denied request|denied the request|created? (pod )?fail|Error creat"
)
"""What events say when a pod was not created."""

_RECENT = 300.0
"""Seconds that a complaint counts for which no state can be looked at."""

_DISRUPTED = frozenset({"Preempted", "TaintManagerEviction"})
_BEFORE_START = frozenset(
    {"FailedAttachVolume", "FailedCreatePodSandBox", "FailedMount", "NetworkNotReady", "Pulling"}
)
"""What kubelets tell of a pod on their node that has not started yet."""


def current(
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
        kind = subject(event).get("kind")
        if kind == "Pod":
            return _holds_of_pod(event, there, over=over)
        if event.get("type") != "Warning":
            return False
        if kind != "ResourceQuota":
            if _CREATION.search(str(event.get("message"))):
                return not over and _lacks_pods(event, there, wanted)
            if over:
                # What the operator says of the job's end holds as long as the job does.
                return True
        return not over and now - when(event) <= _RECENT

    return tuple(map(event_of, sorted(filter(holds, newest.values()), key=when)))


def _lacks_pods(event: Object, pods: Mapping[str, Object], wanted: int) -> bool:
    """Whether the pods that an event says could not be created are still not there."""
    about, message = subject(event), str(event.get("message"))
    named = re.search(r'pods? "([^"]+)"', message)
    if named and named[1] in pods:
        return False
    workers = sum(not is_launcher(pod) for pod in pods.values())
    no_launcher = workers == len(pods)
    if about.get("kind") == "Job" or "launcher" in str(about.get("name")):
        return no_launcher
    of_workers = about.get("kind") == "StatefulSet" or "worker" in message
    return workers < wanted or (no_launcher and not of_workers)


def _holds_of_pod(event: Object, pods: Mapping[str, Object], *, over: bool) -> bool:
    reason, pod = str(event.get("reason")), pods.get(str(subject(event).get("name")))
    phase = ((pod or {}).get("status") or {}).get("phase")
    well = pod is not None and (phase == "Succeeded" or condition(pod, "Ready") == "True")
    if reason in _DISRUPTED:
        # It is told of the pod that was taken away; the one made in its place has another uid.
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
    """Whether a container of a pod, one of its init containers too, has started."""
    status = pod.get("status") or {}
    containers = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    return any({"running", "terminated"} & (one.get("state") or {}).keys() for one in containers)
