"""A worker at its gate -> the patch that gives it its place and lets it go.

What may be changed of a pod that waits at a scheduling gate: node affinity where there is none,
each term of it narrowed where there is some, tolerations added, gates taken away (Kubernetes 1.27
and later; anything else is refused with 422, and so is all of it once no gate is left).
"""

from __future__ import annotations

from collections.abc import Iterable

from arena_topo.manifests.pinning import on_node
from arena_topo.manifests.values import (
    FORMAT,
    GATE,
    GPU_GROUP,
    GPU_VISIBLE,
    GUARANTEE,
    MAP,
    Guarantee,
    Manifest,
)
from arena_topo.topology import TAINT

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def waits_at_gate(pod: Manifest) -> bool:
    """Whether a pod is held by our gate: nobody has given it its place yet."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(one.get("name") == GATE for one in gates)


def worker_patch(
    pod: Manifest,
    node: str,
    gpus: tuple[int, ...],
    visible: tuple[int, ...],
    *,
    guarantee: Guarantee | None = None,
    kept: Iterable[str] = (),
) -> Manifest:
    """The strategic-merge patch that sends one gated worker to its node, as it was read.

    `gpus` are the worker's, in ring order (none where the kubelet picks them), `visible` those that
    its containers may see, in the order in which they are to see them. `guarantee` is written where
    the template could not say it yet, `kept` are the effects of our taints on the node. Gates of
    others stay, and so does every node requirement that the pod has. The server refuses the patch
    for a pod that was made since under the same name, as its uid is another. ValueError if the pod
    does not wait at our gate.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if not waits_at_gate(pod):
        raise ValueError(f"{metadata['name']} does not wait at the gate {GATE}")
    before = metadata.get("annotations") or {}
    notes: dict[str, str | None] = {FORMAT: "v1"}
    if gpus:
        notes[GPU_GROUP] = ",".join(map(str, gpus))
        notes[GPU_VISIBLE] = ",".join(map(str, visible))
    if guarantee is not None:
        notes[GUARANTEE] = guarantee.value
    if MAP in before:
        # It was left for a policy that is not there: the worker has its place now.
        notes[MAP] = None
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    # The server replaces this list as a whole, and refuses one in which a term is missing.
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    changed: Manifest = {
        "affinity": {
            "nodeAffinity": {
                _REQUIRED: {"nodeSelectorTerms": [on_node(term, node) for term in terms]}
            }
        },
        "schedulingGates": [{"$patch": "delete", "name": GATE}],
    }
    borne = list(spec.get("tolerations") or ())
    for effect in sorted(set(kept)):
        bears = {"key": TAINT, "operator": "Exists", "effect": effect}
        if bears not in borne:
            borne.append(bears)
            changed["tolerations"] = borne
    uid = {"uid": metadata["uid"]} if "uid" in metadata else {}
    return {"metadata": {**uid, "annotations": notes}, "spec": changed}
