"""Nodes for topology jobs alone: labelled and tainted, or given back to all jobs.

On a node that only arena-topo fills, each worker may get exactly the GPUs of its placement;
elsewhere the kubelet may give them to other pods as well. A node's use is therefore not changed
while pods run there that the change would put at risk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from arena_topo.clusters.rules import gpu_count, pod_over
from arena_topo.engines.kubernetes.mpijob import condition_of
from arena_topo.engines.write_conflict import attempts, unless_overtaken
from arena_topo.errors import AccessDenied, ArenaError
from arena_topo.manifests import FORMAT_ANNOTATION, GUARANTEE, Guarantee
from arena_topo.numbers import parse_count
from arena_topo.topology import GPU_RESOURCES, TAINT, natural_key, published
from arena_topo.words import counted, shortened

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.admin import Administration

EFFECT = "NoSchedule"
VALUE = "true"
"""The value of label and taint."""

_ATTEMPTS = 5
"""Kubelets write the same object every few minutes, so one retry is nearly always enough."""

_SHOWN = 8
"""The most pods that a refusal names."""


class Use(StrEnum):
    """The jobs that may use the GPUs of a node; ACK's label has the same values."""

    TOPOLOGY = "topology"
    """Only jobs that arena-topo places."""
    DEFAULT = "default"
    """All jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """A node and the outcome: `labeled and tainted`, `given back` or `unchanged`."""

    node: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The state of a node: its GPUs, its use, what contradicts that, and whether it takes pods."""

    node: str
    gpus: int
    use: Use
    remark: str | None = None
    cordoned: bool = False
    ready: bool = True


def dedicate(
    names: Sequence[str],
    use: Use,
    admin: Administration,
    *,
    ack: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> tuple[NodeChange, ...]:
    """Set label and taint of these nodes, or remove them; all nodes are checked first.

    `ack` sets ACK's label as well. NotFound if a node does not exist; ArenaError names the pods
    that prevent the change, unless `force`. With `dry_run` everything is checked and nothing is
    stored.
    """
    nodes = list(dict.fromkeys(names))
    stored = {name: admin.node(name) for name in nodes}
    preventing = [] if force else [pod for name in nodes for pod in _against(name, use, admin)]
    if preventing:
        raise ArenaError(
            _REFUSALS[use],
            why=shortened(preventing, _SHOWN),
            hint="wait until they have ended, delete them, or add --force; nothing was changed",
        )
    return tuple(
        _changed(name, stored[name], use, admin, ack=ack, dry_run=dry_run) for name in nodes
    )


_REFUSALS = {
    Use.TOPOLOGY: "pods that arena-topo did not place use GPUs there",
    Use.DEFAULT: "topology jobs run there: their GPUs could be given to other pods as well",
}


def closing_sentence(names: Sequence[str], admin: Administration) -> str | None:
    """The nodes that no new topology job may use once these are reserved, in a sentence.

    None without any, or without the right to list nodes.
    """
    try:
        states = node_states(admin.nodes())
    except AccessDenied:
        return None
    others = [
        state.node
        for state in states
        if state.gpus and state.use is not Use.TOPOLOGY and state.node not in names
    ]
    if not others:
        return None
    which = shortened(sorted(others, key=natural_key), _SHOWN)
    are = "is" if len(others) == 1 else "are"
    nodes = counted(len(others), "other node")
    which = f"{nodes} with GPUs ({which}) {are} closed to new ones"
    return f"topology jobs use reserved nodes only: {which}"


def _against(node: str, use: Use, admin: Administration) -> Iterator[str]:
    """The pods on a node that prevent a change of its use."""
    for pod in admin.pods_on(node):
        metadata = pod["metadata"]
        if pod_over(pod) or not _gpus(pod):
            continue
        notes = metadata.get("annotations") or {}
        exact = FORMAT_ANNOTATION in notes and notes.get(GUARANTEE, "gpus") == Guarantee.GPUS
        if (FORMAT_ANNOTATION not in notes) if use is Use.TOPOLOGY else exact:
            yield f"{metadata.get('namespace', '')}/{metadata['name']} on {node}"


def _gpus(pod: Mapping[str, Any]) -> int:
    try:
        return gpu_count(pod.get("spec") or {})
    except (TypeError, ValueError):
        # Its request cannot be read, so it may have GPUs.
        return 1


def _changed(
    name: str,
    node: Mapping[str, Any],
    use: Use,
    admin: Administration,
    *,
    ack: bool,
    dry_run: bool,
) -> NodeChange:
    tries = attempts(
        _ATTEMPTS,
        f"node {name} is changed by another program all the time",
        hint="try again; nodes named before it were changed",
    )
    for attempt in tries:
        current = admin.node(name) if attempt else node
        steps = patch(current, use, ack=ack)
        if not steps:
            break
        # Another writer, mostly the kubelet, may be faster.
        with unless_overtaken(tests=True):
            admin.patch_node(name, steps, dry_run=dry_run)
            return NodeChange(node=name, outcome=_OUTCOMES[use])
    return NodeChange(node=name, outcome="unchanged")


_OUTCOMES = {Use.TOPOLOGY: "labeled and tainted", Use.DEFAULT: "given back"}


def patch(node: Mapping[str, Any], use: Use, *, ack: bool = False) -> list[dict[str, Any]]:
    """The JSON patch that gives a node this use; empty if the node has it already.

    It tests the revision that was read, so that no taint of others is lost.
    """
    metadata = node["metadata"]
    labels = dict(metadata.get("labels") or {})
    taints = list((node.get("spec") or {}).get("taints") or ())
    new_labels, new_taints = dict(labels), list(taints)
    ours = {"key": TAINT, "value": VALUE, "effect": EFFECT}
    foreign = [taint for taint in taints if taint.get("key") != TAINT]
    if use is Use.TOPOLOGY:
        new_labels[TAINT] = VALUE
        if not any(ours.items() <= taint.items() for taint in taints):
            new_taints = [*foreign, ours]
    else:
        new_labels.pop(TAINT, None)
        new_taints = foreign
    if ack:
        new_labels[published.SCHEDULE_LABEL] = use.value
    steps: list[dict[str, Any]] = []
    if new_labels != labels:
        steps.append({"op": "add", "path": "/metadata/labels", "value": new_labels})
    if new_taints != taints:
        steps.append({"op": "add", "path": "/spec/taints", "value": new_taints})
    if not steps:
        return []
    revision = metadata["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": revision}, *steps]


def node_states(nodes: Iterable[Mapping[str, Any]]) -> tuple[NodeState, ...]:
    """The state of the nodes with GPUs, and of marked nodes without GPUs."""
    states = []
    for node in nodes:
        metadata = node["metadata"]
        labels = metadata.get("labels") or {}
        spec = node.get("spec") or {}
        taints = spec.get("taints") or ()
        capacity = (node.get("status") or {}).get("capacity") or {}
        gpus = max((parse_count(capacity.get(name)) or 0 for name in GPU_RESOURCES), default=0)
        labelled = TAINT in labels
        tainted = any(
            taint.get("key") == TAINT and taint.get("effect") == EFFECT for taint in taints
        )
        acks = labels.get(published.SCHEDULE_LABEL) == Use.TOPOLOGY
        if not (gpus or labelled or tainted or acks):
            continue
        remark = None
        if labelled and not tainted:
            remark = "labelled but not tainted: other pods may come"
        elif tainted and not labelled:
            remark = "tainted but not labelled: not taken for a topology node"
        both = acks or (labelled and tainted)
        use = Use.TOPOLOGY if both else Use.DEFAULT
        states.append(
            NodeState(
                node=metadata["name"],
                gpus=gpus,
                use=use,
                remark=remark,
                cordoned=bool(spec.get("unschedulable")),
                ready=(condition_of(node, "Ready") or {}).get("status") in {None, "True"},
            )
        )
    return tuple(states)
