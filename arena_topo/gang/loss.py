"""Whether a running gang is lost: a worker was ended from outside, or one of its nodes is lost.

A cordon is no loss: the node takes no new pods, and those on it run on. Pure functions of pods, of
the nodes' records, and of times in Unix seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from arena_topo.clusters.records import NodeRecord
from arena_topo.engines.kubernetes.mpijob import condition_of, is_launcher
from arena_topo.job import Toleration
from arena_topo.manifests.annotations import LastStop
from arena_topo.manifests.cause import Cause, CauseCode, because
from arena_topo.topology import Taint, natural_key
from arena_topo.topology.published import parse_time

Object = Mapping[str, Any]

TOLERATED = 300.0
"""Seconds for which pods stay on a node that does not answer, unless they say otherwise
(kubernetes, plugin/pkg/admission/defaulttolerationseconds)."""

QUARANTINE = 40.0
"""Seconds for which a node must be gone: a kubelet that restarts may register it again (kubernetes,
pkg/controller/podgc: quarantineTime)."""

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""The taint of an administrator on a node that is off for certain."""

_SILENCE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints of nodes that do not answer."""

REPEATS = 86_400.0
"""Seconds within which another eviction of a gang by a kubelet counts as the gang's own fault: it
fills the disk or the memory of any node."""

GRACE = 55.0
"""Seconds of silence, at the most, after which the control plane says that a node does not answer
(kubernetes, pkg/controller/nodelifecycle: 50 s, and 5 s between two looks)."""

_BY_KUBELET = "Evicted"
"""The reason of a pod that used more than it may, or whose node ran out of memory or disk."""

_EVICTED = frozenset({_BY_KUBELET, "NodeLost", "Terminated", "Shutdown", "Preempting"})
"""Reasons of a failed pod that its kubelet or the control plane ended (kubernetes, pkg/kubelet)."""


class Ended(NamedTuple):
    """The end of a worker from outside: its node, and why in the words of Kubernetes.

    `text` is empty for a pod that was only deleted.
    """

    node: str
    text: str
    by_kubelet: bool


def ready(node: NodeRecord | None) -> bool:
    """Whether a node exists, and its kubelet answers."""
    return node is not None and node.ready in {None, "True"}


def troubled(node: NodeRecord | None) -> bool:
    """Whether a node may be lost, now or later."""
    return not ready(node) or bool(node and (node.evicting or _out_of_service(node)))


def answered(node: NodeRecord | None, at: float, *, now: float) -> bool:
    """Whether a node existed at a time, and its kubelet answered then.

    A kubelet that says itself that it is not ready answers. Times are Unix seconds.
    """
    if node is None or node.ready != "Unknown":
        return node is not None
    since = (time for taint, time in node.evicting if taint.key in _SILENCE and time is not None)
    return min(since, default=now) - GRACE > at


def losing(
    node: NodeRecord | None, tolerations: Iterable[Object], *, since: float
) -> tuple[float, str] | None:
    """When a node is lost to pods with these tolerations, and how; None: never.

    `since` is when the trouble of the node was noticed, for what has no time of its own; None as a
    node means that it does not exist.
    """
    if node is None:
        return since + QUARANTINE, "deleted"
    if _out_of_service(node):
        return since, "out of service"
    borne = list(tolerations)
    losses = [
        (
            (since if at is None else at) + _tolerated(taint, borne),
            "not ready" if taint.key in _SILENCE else f"taint {taint}",
        )
        for taint, at in node.evicting
    ]
    if not ready(node) and not any(taint.key in _SILENCE for taint, _ in node.evicting):
        # The control plane has not tainted it yet.
        silent = Taint(key=_SILENCE[0], effect="NoExecute")
        losses.append((since + (_tolerated(silent, borne) or TOLERATED), "not ready"))
    first = min(losses, default=(math.inf, ""))
    return first if first[0] < math.inf else None


def _out_of_service(node: NodeRecord) -> bool:
    return any(taint.key == OUT_OF_SERVICE for taint in node.taints)


def _tolerated(taint: Taint, tolerations: Iterable[Object]) -> float:
    """The seconds for which pods tolerate a taint; infinite without a limit.

    The shortest limit of all that match counts (kubernetes, pkg/controller/tainteviction).
    """
    limits = [
        toleration.get("tolerationSeconds")
        for toleration in tolerations
        if Toleration(
            **{
                key: str(toleration[key])
                for key in ("key", "operator", "value", "effect")
                if toleration.get(key)
            }
        ).tolerates(taint.key, taint.value, taint.effect)
    ]
    if not limits:
        return 0.0
    return min((max(0.0, float(limit)) for limit in limits if limit is not None), default=math.inf)


def workers_that_ran(pods: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """The workers whose containers run: name and node by uid."""
    return {
        str(pod["metadata"]["uid"]): (str(pod["metadata"]["name"]), _node(pod))
        for pod in pods
        if not is_launcher(pod)
        and "deletionTimestamp" not in pod["metadata"]
        and (pod.get("status") or {}).get("phase") == "Running"
    }


def ended_workers(pods: Iterable[Object], ran: Mapping[str, tuple[str, str]]) -> dict[str, Ended]:
    """The workers that were ended from outside, by name.

    `ran` are the workers that ran before, as of `workers_that_ran`.
    """
    workers = {str(pod["metadata"]["uid"]): pod for pod in pods if not is_launcher(pod)}
    ended = {
        name: Ended(node, "", by_kubelet=False)
        for uid, (name, node) in ran.items()
        if uid not in workers
    }
    for uid, pod in workers.items():
        status, meta = pod.get("status") or {}, pod["metadata"]
        target = condition_of(pod, "DisruptionTarget") or {}
        evicted = status.get("phase") == "Failed" and (
            status.get("reason") in _EVICTED or target.get("status") == "True"
        )
        deleted = "deletionTimestamp" in meta and (status.get("phase") == "Running" or uid in ran)
        if evicted or deleted:
            ended[str(meta["name"])] = _end(pod, target)
    return ended


def placed_since(pods: Iterable[Object], since: float) -> list[Object]:
    """The pods that were created since a gang was placed (Unix seconds)."""
    # Creation times are in whole seconds.
    return [
        pod
        for pod in pods
        if (parse_time(pod["metadata"].get("creationTimestamp")) or 0.0) + 1 > since
    ]


def disrupted_workers(pods: Iterable[Object], *, since: float, until: float) -> dict[str, Ended]:
    """The workers that Kubernetes says were ended from outside, by name.

    `since` is when the gang was placed, and `until` when it had failed, in Unix seconds. A worker
    that was only deleted does not count: the operator deletes those of a failed gang too.
    """
    disrupted = {}
    for pod in placed_since(pods, since):
        status, meta = pod.get("status") or {}, pod["metadata"]
        target = condition_of(pod, "DisruptionTarget") or {}
        evicted = status.get("phase") == "Failed" and status.get("reason") in _EVICTED
        ended = parse_time(target.get("lastTransitionTime")) or 0.0
        marked = evicted or target.get("status") == "True"
        if marked and not is_launcher(pod) and ended <= until:
            disrupted[str(meta["name"])] = _end(pod, target)
    return disrupted


def cause_of_loss(
    ended: Mapping[str, Ended], lost: Mapping[str, str], cordoned: Iterable[str]
) -> Cause | None:
    """Why a gang is lost, by its ended workers and its lost nodes; None if it is not.

    A lost node explains the end of its workers, and the end of a worker on a cordoned node is part
    of a drain. A worker that Kubernetes says something about comes before those only deleted.
    """
    drained = set(cordoned)
    if lost:
        node = min(lost, key=natural_key)
        return because(CauseCode.NODE_LOST, node=node, state=lost[node])
    if not ended:
        return None

    def description(name: str) -> str:
        return "" if ended[name].node in drained else ended[name].text

    name = min(ended, key=lambda name: (not description(name), natural_key(name)))
    end = ended[name]
    if text := description(name):
        by = {"by": "kubelet"} if end.by_kubelet else {}
        return because(CauseCode.EVICTED, pod=name, text=text, **by)
    state = ", which is cordoned" if end.node in drained else ""
    return because(CauseCode.WORKER_DELETED, pod=name, node=end.node, state=state)


def is_loss(cause: Cause) -> bool:
    """Whether a gang was stopped because it was lost, and not because it could not complete."""
    return cause.code in {CauseCode.NODE_LOST, CauseCode.EVICTED, CauseCode.WORKER_DELETED}


def evicted_by_kubelet(cause: Cause) -> bool:
    """Whether a kubelet has evicted a worker, maybe through the gang's own fault."""
    return cause.code == CauseCode.EVICTED and cause.parameters.get("by") == "kubelet"


def evicted_lately(last: LastStop | None, now: float) -> bool:
    """Whether a gang was last stopped because a kubelet had evicted a worker, within a day."""
    return last is not None and evicted_by_kubelet(last.cause) and now - last.at < REPEATS


def nodes_of(pods: Iterable[Object]) -> set[str]:
    """The nodes of a gang's workers."""
    return {node for pod in pods if not is_launcher(pod) and (node := _node(pod))}


def tolerations_of(pods: Iterable[Object]) -> tuple[Object, ...]:
    """The tolerations of a gang's workers, which all have the same."""
    for pod in pods:
        if not is_launcher(pod):
            return tuple((pod.get("spec") or {}).get("tolerations") or ())
    return ()


def has_succeeded(pods: Iterable[Object]) -> bool:
    """Whether the launcher of a gang has ended well, so that its workers are not missed."""
    return any(
        is_launcher(pod) and (pod.get("status") or {}).get("phase") == "Succeeded" for pod in pods
    )


def _end(pod: Object, target: Object) -> Ended:
    status = pod.get("status") or {}
    by_kubelet = status.get("reason") == _BY_KUBELET
    return Ended(_node(pod), _words(status, target), by_kubelet=by_kubelet)


def _words(status: Object, target: Object) -> str:
    """Why a pod was ended, by its status and its DisruptionTarget; empty if nothing is known."""
    words = [status.get("message"), target.get("message"), status.get("reason")]
    return next((str(text).strip() for text in words if text), "")


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")
