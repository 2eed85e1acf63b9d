"""The default scheduler on a fake API server: filters, gangs, devices, and why a pod waits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import fake_dra
from fake_quota import pod_requests
from fake_quota import quantity as _quantity
from fake_resources import RESOURCES, Key, Object, copied, rfc3339
from fake_store import expression_holds, label_selects

if TYPE_CHECKING:
    from fake_cluster import FakeCluster

PODS = RESOURCES["pods"]
HOSTNAME = "kubernetes.io/hostname"
OVER = {"Succeeded", "Failed"}
GROUPS = "podgroups.scheduling.k8s.io"


class Scheduler:
    """Binds pods, and says of the others what every node has against them."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.free: dict[str, Counter[str]] = {}
        self.on: dict[str, list[Object]] = {}

    def step(self) -> None:
        """Try every pod that waits, by priority and age."""
        waiting = [
            (key, entry.thing)
            for key, entry in self.api.tables["pods"].items()
            if _waits(entry.thing)
        ]
        if not waiting:
            return
        self._look()
        waiting.sort(
            key=lambda one: (
                -(one[1]["spec"].get("priority") or 0),
                one[1]["metadata"]["creationTimestamp"],
                int(one[1]["metadata"]["resourceVersion"]),
            )
        )
        gangs: dict[Key, list[tuple[Key, Object]]] = {}
        for key, pod in waiting:
            group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
            if group:
                gangs.setdefault((key[0], group), []).append((key, pod))
            else:
                self._one(key, pod)
        for name, members in gangs.items():
            self._gang(name, members)

    def _look(self) -> None:
        """What is free on each node: terminating pods hold what they have until they are gone."""
        self.on = {name: [] for _, name in self.api.tables["nodes"]}
        for entry in self.api.tables["pods"].values():
            spec, status = entry.thing.get("spec") or {}, entry.thing.get("status") or {}
            if spec.get("nodeName") in self.on and status.get("phase") not in OVER:
                self.on[spec["nodeName"]].append(entry.thing)
        self.free = {}
        for (_, name), entry in self.api.tables["nodes"].items():
            status = entry.thing.get("status") or {}
            offers = status.get("allocatable") or status.get("capacity") or {}
            free = Counter({key: _quantity(value) for key, value in offers.items()})
            for pod in self.on[name]:
                free.subtract(pod_requests(pod["spec"]))
            self.free[name] = free

    def _gang(self, name: Key, members: list[tuple[Key, Object]]) -> None:
        """Bind the pods of a group only if enough of them can be bound together."""
        group = self.api.tables[GROUPS].get(name)
        if group is None:
            # Seen on the real one: they wait without a word.
            return
        policy = (group.thing.get("spec") or {}).get("schedulingPolicy") or {}
        least = (policy.get("gang") or {}).get("minCount", 1)
        bound = sum(
            (entry.thing["spec"].get("schedulingGroup") or {}).get("podGroupName") == name[1]
            for (space, _), entry in self.api.tables["pods"].items()
            if space == name[0] and entry.thing["spec"].get("nodeName")
        )
        saved = {node: Counter(free) for node, free in self.free.items()}
        chosen = []
        for key, pod in members:
            node, _ = self._node_for(pod)
            if node is not None:
                chosen.append((key, pod, node))
                self.free[node].subtract(pod_requests(pod["spec"]))
        self.free = saved
        if bound + len(chosen) >= least:
            for key, pod, _ in chosen:
                self._one(key, pod)
        else:
            said = "waiting for minCount pods from a gang to be scheduled"
            for key, pod in members:
                self._unschedulable(key, pod, f"{said}, {bound + len(chosen)} of {least}")

    def _one(self, key: Key, pod: Object) -> None:
        node, why = self._node_for(pod)
        if node is None:
            self._unschedulable(key, pod, why)
            return
        claims = fake_dra.claims_of(self.api, pod)
        held = fake_dra.taken(self.api)
        for claim in claims if isinstance(claims, list) else ():
            fake_dra.allocate(
                self.api, claim, node, fake_dra.fits(self.api, claim, node, held) or [], pod
            )
        self.api.bind(*key, {"target": {"name": node}})
        self.on[node].append(self.api.tables["pods"][key].thing)
        self.free[node].subtract(pod_requests(pod["spec"]))

    def _node_for(self, pod: Object) -> tuple[str | None, str]:
        """The node with most room among those that will do; else what all have against it."""
        nodes = {name: one.thing for (_, name), one in self.api.tables["nodes"].items()}
        claims = fake_dra.claims_of(self.api, pod)
        if isinstance(claims, str):
            return None, claims
        pinned, wanted = _pinned(pod), pod_requests(pod["spec"])
        held = fake_dra.taken(self.api) if claims else set()
        against: Counter[str] = Counter()
        able, final = [], 0
        for name, node in nodes.items():
            if pinned is not None and name not in pinned:
                against["node(s) didn't satisfy plugin(s) [NodeAffinity]"] += 1
                final += 1
                continue
            reasons, unhelpful = self._against(pod, node, claims, (wanted, held))
            if not reasons:
                able.append(name)
            for reason in reasons:
                against[reason] += 1
            final += bool(reasons) and unhelpful
        if able:
            gpus = next((key for key in wanted if "/" in key), "nvidia.com/gpu")
            room = {name: (self.free[name][gpus], self.free[name]["cpu"]) for name in able}
            most = max(room.values())
            return min(name for name in able if room[name] == most), ""
        if not nodes:
            return None, "no nodes available to schedule pods"
        total = len(nodes)
        said = ", ".join(sorted(f"{count} {reason}" for reason, count in against.items()))
        rest = [
            *([f"{total - final} No preemption victims found for incoming pod"] * (total > final)),
            *([f"{final} Preemption is not helpful for scheduling"] * (final > 0)),
        ]
        return None, (
            f"0/{total} nodes are available: {said}. no new claims to deallocate, preemption:"
            f" 0/{total} nodes are available: {', '.join(rest)}."
        )

    def _against(
        self, pod: Object, node: Object, claims: list[Object], asked: Any
    ) -> tuple[list[str], bool]:
        """What a node has against a pod, and whether no preemption would change it.

        `asked`: what the pod requests, and the devices that are held.
        """
        name, spec = node["metadata"]["name"], pod["spec"]
        wanted, held = asked
        final = _refusal(spec, node)
        bound = {fake_dra.node_of(claim) for claim in claims} - {None, name}
        if final is None and bound:
            final = "node(s) didn't match resource claim"
        if final is not None:
            return [final], True
        if not self._apart(pod, name):
            return ["node(s) didn't match pod anti-affinity rules"], False
        if not self._even(pod, name):
            return ["node(s) didn't match pod topology spread constraints"], False
        free = self.free[name]
        short = sorted(key for key, value in wanted.items() if value and free[key] < value)
        if not short and any(
            fake_dra.node_of(claim) is None and fake_dra.fits(self.api, claim, name, held) is None
            for claim in claims
        ):
            return ["cannot allocate all claims"], False
        return [f"Insufficient {key}" for key in short], False

    def _apart(self, pod: Object, node: str) -> bool:
        anti = ((pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        return not any(
            label_selects(term.get("labelSelector"), other["metadata"].get("labels") or {})
            for term in anti or ()
            for other in self.on[node]
            if other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        )

    def _even(self, pod: Object, node: str) -> bool:
        for rule in pod["spec"].get("topologySpreadConstraints") or ():
            if rule.get("whenUnsatisfiable") != "DoNotSchedule":
                continue
            counts = {
                name: sum(
                    label_selects(rule["labelSelector"], one["metadata"].get("labels") or {})
                    and one["metadata"]["namespace"] == pod["metadata"]["namespace"]
                    for one in self.on[name]
                )
                for (_, name), entry in self.api.tables["nodes"].items()
                if _selected(
                    pod["spec"],
                    name,
                    {HOSTNAME: name, **(entry.thing["metadata"].get("labels") or {})},
                )
            }
            if counts[node] + 1 - min(counts.values()) > rule["maxSkew"]:
                return False
        return True

    def _unschedulable(self, key: Key, pod: Object, why: str) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or []
        said = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
        }
        old = next((one for one in conditions if one["type"] == "PodScheduled"), {})
        if {name: old.get(name) for name in said} == said:
            return
        changed = copied(pod)
        others = [one for one in conditions if one["type"] != "PodScheduled"]
        said["lastTransitionTime"] = rfc3339(self.api.clock())
        changed.setdefault("status", {})["conditions"] = [*others, said]
        self.api.store(PODS, key, changed)
        self.cluster.event(changed, "FailedScheduling", why, source="default-scheduler")


def _refusal(spec: Object, node: Object) -> str | None:
    """Why a node will not have a pod, however empty it is."""
    name, its = node["metadata"]["name"], node.get("spec") or {}
    bears = spec.get("tolerations") or ()
    closed = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if its.get("unschedulable") and not _tolerated(closed, bears):
        return "node(s) were unschedulable"
    for taint in its.get("taints") or ():
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, bears):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not _selected(spec, name, {HOSTNAME: name, **(node["metadata"].get("labels") or {})}):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def _waits(pod: Object) -> bool:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and "deletionTimestamp" not in pod["metadata"]
        and status.get("phase", "Pending") == "Pending"
        and spec.get("schedulerName", "default-scheduler") == "default-scheduler"
    )


def _required(spec: Object) -> list[Object] | None:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or []


def _pinned(pod: Object) -> set[str] | None:
    """The nodes that the affinity names outright; None if some term names none."""
    terms = _required(pod["spec"])
    if terms is None:
        return None
    found: set[str] = set()
    for term in terms:
        fields = [one for one in term.get("matchFields") or () if one["operator"] == "In"]
        if not fields:
            return None
        names = [set(one["values"]) for one in fields]
        found |= set.intersection(*names)
    return found


def _selected(spec: Object, name: str, labels: dict[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = _required(spec)
    if terms is None:
        return True
    return any(
        (term.get("matchFields") or term.get("matchExpressions"))
        and all(
            expression_holds(one, {"metadata.name": name}) for one in term.get("matchFields") or ()
        )
        and all(expression_holds(one, labels) for one in term.get("matchExpressions") or ())
        for term in terms
    )


def _tolerated(taint: Object, tolerations: Any) -> bool:
    return any(tolerates(one, taint) for one in tolerations)


def tolerates(one: Object, taint: Object) -> bool:
    """Whether a toleration is of a taint, for however long."""
    if one.get("effect") and one["effect"] != taint["effect"]:
        return False
    if one.get("operator") == "Exists":
        return not one.get("key") or bool(one["key"] == taint["key"])
    same = one.get("key") == taint["key"]
    return same and bool(one.get("value", "") == taint.get("value", ""))
