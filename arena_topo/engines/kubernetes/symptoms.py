"""What pods, nodes and events show: one question each, for the verdict on a job.

Pure. Answers are texts by pod name, in the order of the pods; an empty answer is a no. Reasons and
conditions are those of Kubernetes (kubelet, pkg/kubelet/eviction and lifecycle; scheduler;
`DisruptionTarget`, KEP-3329), texts of failed logins those of OpenSSH's client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from arena_topo.clusters.quota import shortfall
from arena_topo.clusters.usage import amount, pod_over
from arena_topo.engines import Event
from arena_topo.engines.kubernetes.complaints import IMAGE_REASONS, waits
from arena_topo.engines.kubernetes.facts import Object
from arena_topo.engines.kubernetes.mpijob import (
    condition,
    condition_of,
    is_launcher,
    pinned_nodes,
    seconds,
)
from arena_topo.manifests import GATE, MAP
from arena_topo.manifests.cause import Cause, CauseCode
from arena_topo.topology import natural

Found = dict[str, str]

_EVICTIONS = {"EvictionByEvictionAPI", "TerminationByKubelet"}
_LOSSES = {"DeletionByTaintManager", "DeletionByPodGC"}
_ADMISSION = re.compile(r"UnexpectedAdmissionError|OutOf\w|NodeAffinity|TopologyAffinityError")
"""Why a kubelet fails a pod that the scheduler gave it."""

_STUCK = {
    "CreateContainerConfigError": "cannot be made",
    "CreateContainerError": "cannot be made",
    "RunContainerError": "cannot be started",
    "CrashLoopBackOff": "ends again and again",
}
_LOGIN = re.compile(
    r"ssh: connect to host \S+ port \d+: .*|ssh: Could not resolve hostname .*"
    r"|.*Permission denied \(publickey.*|Host key verification failed.*"
    r"|kex_exchange_identification: .*|not ready after \d+ s: .*"
)
_NO_SSHD = re.compile(r"/sshd\b.*(no such file|not found|permission denied)", re.IGNORECASE)


def several(found: Iterable[str], one: str, many: str) -> str:
    """Pods and a verb in the right number: `demo-worker-0 and 2 more were`."""
    names = sorted(found, key=natural)
    return (
        f"{names[0]} {one}" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more {many}"
    )


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def _phase(pod: Object) -> str:
    return str(_status(pod).get("phase") or "Unknown")


def _bound(pod: Object) -> str | None:
    node = (pod.get("spec") or {}).get("nodeName")
    return str(node) if node else None


def _gates(pod: Object) -> list[str]:
    return [str(one.get("name")) for one in (pod.get("spec") or {}).get("schedulingGates") or ()]


def _ended(pod: Object) -> Iterator[Object]:
    """How containers of a pod ended, those that were started again included."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in _status(pod).get(kind) or ():
            for state in ("state", "lastState"):
                ended = (one.get(state) or {}).get("terminated")
                if ended:
                    yield ended


def _disrupted(pod: Object, reasons: set[str]) -> str | None:
    found = condition_of(pod, "DisruptionTarget")
    if found is None or found.get("status") != "True" or found.get("reason") not in reasons:
        return None
    return str(found.get("message") or found["reason"])


# ---------------------------------------------------------------- what broke pods


def killed_for_memory(pods: Iterable[Object]) -> Found:
    """Pods with a container that the kernel killed at its memory limit."""
    return {
        _name(pod): ""
        for pod in pods
        if any(ended.get("reason") == "OOMKilled" for ended in _ended(pod))
    }


def evicted(pods: Iterable[Object]) -> Found:
    """Pods that a kubelet or an administrator took off their node, and why."""
    found: Found = {}
    for pod in pods:
        status = _status(pod)
        if status.get("reason") == "Evicted":
            found[_name(pod)] = str(status.get("message") or "Evicted")
        elif (why := _disrupted(pod, _EVICTIONS)) is not None:
            found[_name(pod)] = why
    return found


def lost(pods: Iterable[Object], nodes: Mapping[str, Object | None]) -> Found:
    """Pods whose node is gone or silent, and what is known of it.

    Nodes that were not looked at are absent from `nodes`; those that do not exist are None there.
    """
    found: Found = {}
    for pod in pods:
        status, node = _status(pod), _bound(pod)
        if _phase(pod) == "Succeeded":
            continue
        if status.get("reason") in {"NodeLost", "NodeShutdown"}:
            found[_name(pod)] = str(status.get("message") or status["reason"])
        else:
            silent = _gone(node, nodes[node]) if node is not None and node in nodes else None
            if (why := _disrupted(pod, _LOSSES) or silent) is not None:
                found[_name(pod)] = why
    return found


def _gone(name: str, node: Object | None) -> str | None:
    """Why nothing can run on a node at all; None if it can, or nobody knows."""
    if node is None:
        return f"node {name} does not exist any more"
    ready = condition_of(node, "Ready")
    if ready is None or ready.get("status") == "True":
        return None
    said = str(ready.get("message") or ready.get("reason") or "").rstrip(".")
    return f"node {name} is not ready" + (f": {said}" if said else "")


def cordoned(pods: Iterable[Object], nodes: Mapping[str, Object | None]) -> list[str]:
    """The nodes of workers that take no new pods, while theirs run on."""
    names = {node for pod in pods if not is_launcher(pod) and (node := _bound(pod)) is not None}
    return [
        name
        for name in sorted(names, key=natural)
        if ((nodes.get(name) or {}).get("spec") or {}).get("unschedulable")
    ]


def remaining(pods: Iterable[Object]) -> dict[str, str]:
    """Pods that have not ended, and the node of each; empty for one without."""
    return {_name(pod): _bound(pod) or "" for pod in pods if not pod_over(pod)}


def overdue(pods: Iterable[Object], *, now: float, patience: float) -> bool:
    """Whether some pod is still there so long (seconds) after it had to end."""
    ends = [
        at
        for pod in pods
        if not pod_over(pod)
        and (at := seconds(pod["metadata"].get("deletionTimestamp"))) is not None
    ]
    return any(now - at > patience for at in ends)


def short_of_quota(
    mpijob: Object, quotas: Iterable[Object] | None, recorded: Cause | None
) -> Cause | None:
    """The quota that keeps a gang from starting, and what it leaves; None if there is room now.

    `recorded` is what the gang was last found to wait for. It knows the claims too, so what the
    gang needs is taken from there; what is left is what the quota says now. Where quotas may not be
    read (None) the record stands.
    """
    known = recorded if recorded is not None and recorded.code == CauseCode.QUOTA else None
    if quotas is None or ((found := shortfall(dict(mpijob), quotas)) is None and known is None):
        return known
    if found is not None or known is None:
        return found
    said = known.parameters
    status = next(
        (_status(one) for one in quotas if one["metadata"].get("name") == said.get("quota")), {}
    )
    try:
        hard, used = (amount((status.get(key) or {})[said["resource"]]) for key in ("hard", "used"))
        left = max(0.0, hard - used)
        short = float(said["needs"]) > left
    except (KeyError, ValueError):
        return None
    return replace(known, parameters={**said, "left": f"{left:g}"}) if short else None


def rejected(pods: Iterable[Object]) -> Found:
    """Pods that the kubelet of their node did not take, and its words."""
    return {
        _name(pod): str(_status(pod).get("message") or _status(pod)["reason"])
        for pod in pods
        if _phase(pod) == "Failed" and _ADMISSION.match(str(_status(pod).get("reason") or ""))
    }


def preempted(pods: Iterable[Object], events: Iterable[Event]) -> Found:
    """Pods that the scheduler took away for others, and its words."""
    found = {
        _name(pod): why
        for pod in pods
        if (why := _disrupted(pod, {"PreemptionByScheduler"})) is not None
    }
    for event in events:
        if event.reason == "Preempted":
            found.setdefault(event.source.partition("/")[2], event.message)
    return found


def worker_failed(pods: Iterable[Object]) -> Found:
    """Workers that ended badly before the launcher did, each with its exit code in words."""
    every = list(pods)
    ends = [_finish(ended) for pod in every if is_launcher(pod) for ended in _ended(pod)]
    found: Found = {}
    for pod in every:
        if is_launcher(pod) or _phase(pod) != "Failed" or "deletionTimestamp" in pod["metadata"]:
            continue
        bad = [ended for ended in _ended(pod) if ended.get("exitCode")]
        if bad and (not ends or _finish(bad[0]) <= max(ends)):
            message = str(bad[0].get("message") or "").strip()
            said = f": {last_line(message)}" if message else ""
            found[_name(pod)] = f"exit code {bad[0]['exitCode']}{said}"
    return found


def _finish(ended: Object) -> float:
    return seconds(ended.get("finishedAt")) or 0.0


def refused_login(pods: Iterable[Object], log: str) -> str | None:
    """The words by which the launcher, or a worker without sshd, says that nobody can log in."""
    for pod in pods:
        said = [str(ended.get("message") or "") for ended in _ended(pod)]
        said += [message for _name_, _reason, message in waits(pod)]
        # The launcher says in its init container which workers never answered.
        pattern = _LOGIN if is_launcher(pod) else _NO_SSHD
        for text in said:
            if found := pattern.search(text):
                return found[0].strip() if is_launcher(pod) else f"{_name(pod)}: {text.strip()}"
    lines = [found[0].strip() for line in log.splitlines() if (found := _LOGIN.search(line))]
    return lines[-1] if lines else None


def last_line(text: str) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# ---------------------------------------------------------------- what keeps pods from starting


def quota_used(quotas: Iterable[Object], name: str, text: str) -> str:
    """How much of a quota is in use, of the resources that a refusal names.

    What the quota says itself is newer than the refusal.
    """
    lists = dict(re.findall(r"(requested|used|limited): (.*?)(?=, (?:used|limited): |$)", text))
    if "requested" not in lists:
        return text
    parts = {key: dict(re.findall(r"([^=,\s]+)=([^,\s]+)", value)) for key, value in lists.items()}
    status = next((_status(one) for one in quotas if one["metadata"].get("name") == name), {})
    used = {**parts.get("used", {}), **(status.get("used") or {})}
    hard = {**parts.get("limited", {}), **(status.get("hard") or {})}
    return "; ".join(
        f"{resource}: a pod asks for {wanted}, {used.get(resource, '?')} of"
        f" {hard.get(resource, '?')} are in use"
        for resource, wanted in parts["requested"].items()
    )


def image(pods: Iterable[Object], events: Iterable[Event]) -> tuple[str, str] | None:
    """The image that some pod waits for in vain, and why it cannot be had."""
    told = list(events)
    for pod in pods:
        for container, reason, message in waits(pod):
            if reason not in IMAGE_REASONS:
                continue
            # A pod that backs off has forgotten the cause; its events have not.
            pulls = [
                event.message
                for event in told
                if event.source == f"pod/{_name(pod)}" and "Failed to pull" in event.message
            ]
            why = pulls[-1] if pulls else message or reason
            return _image_of(pod, container), f"{_name(pod)}: {why}"
    return None


def _image_of(pod: Object, container: str) -> str:
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for one in spec.get(kind) or ():
            if one.get("name") == container:
                return str(one.get("image") or "?")
    return "?"


def container_error(pods: Iterable[Object]) -> tuple[str, str] | None:
    """A container that cannot start, or does not stay: the sentence and the kubelet's words."""
    for pod in pods:
        for container, reason, message in waits(pod):
            if reason in _STUCK:
                what = f"container {container} of {_name(pod)} {_STUCK[reason]}"
                return what, f"{reason}: {message}" if message else reason
    return None


def volume(events: Iterable[Event]) -> str | None:
    """Why a pod waits for a volume, in the kubelet's words."""
    for event in events:
        if event.reason in {"FailedMount", "FailedAttachVolume"}:
            return f"{event.source.partition('/')[2]}: {event.message}"
    return None


def with_map(pods: Iterable[Object]) -> Found:
    """Workers at our gate that still carry the map: the policy that takes it did not answer."""
    return {_name(pod): MAP for pod in pods if GATE in _gates(pod) and _mapped(pod)}


def _mapped(pod: Object) -> bool:
    return MAP in (pod["metadata"].get("annotations") or {})


def at_gate(pods: Iterable[Object]) -> Found:
    """Workers at our gate that somebody has to give a node."""
    return {_name(pod): GATE for pod in pods if GATE in _gates(pod) and not _mapped(pod)}


def other_gates(pods: Iterable[Object]) -> Found:
    """Pods at gates of others, and which."""
    return {
        _name(pod): next(gate for gate in _gates(pod) if gate != GATE)
        for pod in pods
        if set(_gates(pod)) - {GATE}
    }


def pinned(pods: Iterable[Object], nodes: Mapping[str, Object | None]) -> tuple[str, str] | None:
    """A worker that waits for its own node, which takes no pods: the sentence and the cause."""
    for pod in pods:
        if _phase(pod) != "Pending" or _bound(pod) is not None or _gates(pod):
            continue
        for name in pinned_nodes(pod):
            why = _gone(name, nodes[name]) if name in nodes else None
            spec = (nodes.get(name) or {}).get("spec") or {}
            if why is None and spec.get("unschedulable"):
                why = f"node {name} is cordoned"
            if why is not None:
                scheduled = condition_of(pod, "PodScheduled") or {}
                said = str(scheduled.get("message") or "")
                return (
                    f"{_name(pod)} may only run on node {name}, which takes no pods",
                    why + (f"; the scheduler says: {said}" if said else ""),
                )
    return None


def unschedulable(pods: Iterable[Object]) -> Found:
    """Pods that the scheduler finds no node for, and its words."""
    found: Found = {}
    for pod in pods:
        said = condition_of(pod, "PodScheduled") or {}
        reason = said.get("reason")
        waiting = _bound(pod) is None and said.get("status") == "False"
        if waiting and reason in {"Unschedulable", "SchedulerError"}:
            found[_name(pod)] = str(said.get("message") or reason)
    return found


def unseen(pods: Iterable[Object], *, now: float, patience: float) -> tuple[str, str] | None:
    """A pod that no scheduler has looked at for so long (seconds), and the one that should."""
    for pod in pods:
        created = seconds(pod["metadata"].get("creationTimestamp"))
        waiting = _phase(pod) == "Pending" and _bound(pod) is None and not _gates(pod)
        if waiting and condition(pod, "PodScheduled") is None and created is not None:
            scheduler = str((pod.get("spec") or {}).get("schedulerName") or "default-scheduler")
            if now - created > patience:
                return _name(pod), scheduler
    return None


def unready(
    pods: Iterable[Object], events: Iterable[Event], *, now: float, patience: float
) -> Found:
    """Workers that have run for so long (seconds) without their sshd answering the probe."""
    told = {event.source: event.message for event in events if event.reason == "Unhealthy"}
    found: Found = {}
    for pod in pods:
        if is_launcher(pod) or _phase(pod) != "Running" or condition(pod, "Ready") != "False":
            continue
        starts = [
            at
            for one in _status(pod).get("containerStatuses") or ()
            if (at := seconds(((one.get("state") or {}).get("running") or {}).get("startedAt")))
        ]
        said = told.get(f"pod/{_name(pod)}", "")
        if starts and now - max(starts) > patience and (said or _probes_sshd(pod)):
            found[_name(pod)] = said
    return found


def _probes_sshd(pod: Object) -> bool:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return any("ssh" in str(one.get("readinessProbe")) for one in containers)


# ---------------------------------------------------------------- who does not answer


def operators(found: Mapping[str, int] | None) -> str:
    """What is known of the operators that should act."""
    if found is None:
        return "it has written nothing on the job for a minute; whether it runs may not be read"
    if not found:
        return "no Deployment of an MPI operator was found"
    silent = [name for name, ready in found.items() if not ready]
    if len(silent) == len(found):
        return f"{', '.join(silent)} has no ready pod"
    return f"{', '.join(found)} runs, but has written nothing on the job for a minute"
