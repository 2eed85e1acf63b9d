"""The pins of a binding on an MPIJob, and their removal: inverse functions.

    admission  the map of the placement and a gate in the template; a policy gives each worker its
               own entry and removes the gate
    gates      the gate alone; each worker is patched (`worker_patch`)
    claims     as admission, and GPUs by claim
    template   node affinity, the same for all workers

Other systems also write labels, annotations, tolerations and scheduling gates of a pinned job
(Kueue on admission: `Merge` in pkg/podset/podset.go): of these, and of variables, exactly ours are
removed, by name. Fields that only we change are restored from an annotation of the template.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

from arena_topo.errors import ArenaError
from arena_topo.manifests import (
    CLAIMS,
    FORMAT_ANNOTATION,
    GANG,
    GATE,
    GPU_GROUP,
    GPU_VISIBLE,
    GUARANTEE,
    HCA_VARIABLE,
    HCAS,
    INLINE,
    MAP,
    MAP_FORMAT,
    PER_WORKER,
    UNPINNED,
    Binding,
    Guarantee,
    Manifest,
)
from arena_topo.manifests.annotations import json_object, placement_map
from arena_topo.manifests.versions import version_of
from arena_topo.solver import Placement
from arena_topo.topology import ORDINARY, PUBLISHED, TAINT, published

CLAIM = "gpus"
"""The name of the claim in a pod; the admission policy uses it too."""

_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_BUILT_IN = ("cpu", "memory", "ephemeral-storage", "hugepages-")

_FIELDS = ("affinity", "topologySpreadConstraints", "resources")
"""The fields that pins replace as a whole."""

_LABELS = frozenset({INLINE, CLAIMS, GANG})
_NOTES = frozenset({FORMAT_ANNOTATION, GUARANTEE, MAP, UNPINNED, HCAS, GPU_GROUP, GPU_VISIBLE})
_VARIABLES = {_DEVICES: GPU_VISIBLE, HCA_VARIABLE: HCAS}
"""The labels, annotations and variables of workers that are pins, each variable with the annotation
that it is read from."""


def with_pins(
    mpijob: Manifest,
    placement: Placement,
    binding: Binding,
    *,
    effects: Iterable[str] = (),
    hcas: tuple[str, ...] = (),
) -> Manifest:
    """A copy of the MPIJob with its workers pinned to the chosen nodes; existing pins are replaced.

    `effects` are those of the taints that reserve the chosen nodes for arena-topo; pods tolerate
    them. `hcas` are the NICs for NCCL in all workers, unless the job names some itself. ArenaError
    if the placement cannot be encoded, or does not cover all workers.
    """
    try:
        text = _map_of(mpijob, placement)
    except ValueError as error:
        name = mpijob["metadata"]["name"]
        raise ArenaError(
            f"the placement of {name} cannot be written down", why=str(error)
        ) from error
    return _pinned(mpijob, binding, effects, placement=placement, text=text, hcas=hcas)


def with_gates(mpijob: Manifest, *, effects: Iterable[str] = ()) -> Manifest:
    """A copy of the MPIJob with its workers at the gate, for a job that another system starts.

    It has no map: each worker is patched (`worker_patch`) once it exists. No GPUs are injected into
    its containers, as a patch cannot add a variable. Workers on nodes of a DRA driver have a claim
    each, which may be created after them.
    """
    name = "claims" if claims_gpus(mpijob) else "gates"
    binding = Binding(name=name, guarantee=Guarantee.NODE)
    return _pinned(mpijob, binding, effects)


def _pinned(
    mpijob: Manifest,
    binding: Binding,
    effects: Iterable[str],
    *,
    placement: Placement | None = None,
    text: str = "",
    hcas: tuple[str, ...] = (),
) -> Manifest:
    """`with_pins`, and `with_gates` if there is no placement yet; `text` is its map."""
    bare = without_pins(mpijob)
    pinned = deepcopy(bare)
    template = worker_template(pinned)
    pod, container = template["spec"], _container(template)
    mapped = is_mapped(binding)
    labels = {
        key: value
        for key, value, is_due in (
            (INLINE, MAP_FORMAT, mapped or placement is None),
            (CLAIMS, PER_WORKER, binding.name == "claims"),
            (GANG, "true", binding.gang),
        )
        if is_due
    }
    notes = {FORMAT_ANNOTATION: "v1", GUARANTEE: binding.guarantee.value}
    if mapped or binding.name == "gates":
        pod["schedulingGates"] = [*(pod.get("schedulingGates") or ()), {"name": GATE}]
    if placement is not None and mapped:
        notes[MAP] = text
    elif placement is not None and binding.name != "gates":
        _restrict(pinned, placement)
        if gpus := _shared_gpus(placement):
            notes[GPU_GROUP] = ",".join(map(str, sorted(gpus)))
            notes[GPU_VISIBLE] = ",".join(map(str, gpus))
    _request(template, binding)
    env = container.get("env") or []
    variables = [_DEVICES] if binding.inject else []
    if hcas and not any(variable.get("name") == HCA_VARIABLE for variable in env):
        # "=" matches whole names: mlx5_1 is a prefix of mlx5_10 (NCCL, NCCL_IB_HCA).
        notes[HCAS] = f"={','.join(hcas)}"
        variables.append(HCA_VARIABLE)
    for name in variables:
        # Of two variables of one name the last counts (Kubernetes), so the job's own may stay.
        at = next((at for at, variable in enumerate(env) if str(variable["name"]) > name), len(env))
        env = container["env"] = [*env[:at], _variable(name), *env[at:]]
    tolerated = [
        {"key": TAINT, "operator": "Exists", "effect": effect} for effect in sorted(set(effects))
    ]
    for pod_spec in _pods(pinned) if tolerated else ():
        # The launcher too, which prefers the nodes of its workers.
        pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or ()), *tolerated]
    before, after = _fields(worker_template(bare)), _fields(template)
    if changed := {name: was for name, was in before.items() if was != after[name]}:
        notes[UNPINNED] = json.dumps(changed, separators=(",", ":"), ensure_ascii=False)
    metadata = _dict(template, "metadata")
    if labels:
        _dict(metadata, "labels").update(labels)
    _dict(metadata, "annotations").update(notes)
    return pinned


def without_pins(mpijob: Manifest) -> Manifest:
    """The MPIJob without our pins: the argument of `with_pins` or `with_gates`.

    Also for an object that was read from a server. An MPIJob without pins is returned unchanged.
    """
    notes = (worker_template(mpijob).get("metadata") or {}).get("annotations") or {}
    if FORMAT_ANNOTATION not in notes:
        return mpijob
    bare = deepcopy(mpijob)
    template = worker_template(bare)
    before = json_object(notes.get(UNPINNED))
    if not waits_at_gate(template) and not before.keys() & {*_FIELDS}:
        # The annotation is damaged: without pins, jobs of arena-topo have neither field.
        before = dict.fromkeys(_FIELDS[:2])
    for name in _FIELDS:
        holder = _holder(template, name)
        if before.get(name) is not None:
            holder[name] = before[name]
        elif name in before:
            holder.pop(name, None)
    _drop(template["metadata"], "labels", _LABELS.__contains__)
    _drop(template["metadata"], "annotations", _NOTES.__contains__)
    _drop(template["spec"], "schedulingGates", lambda gate: gate.get("name") == GATE)
    _drop(_container(template), "env", _is_variable)
    for pod in _pods(bare):
        _drop(pod, "tolerations", _is_toleration)
    return bare


def avoiding_reserved(mpijob: Manifest) -> Manifest:
    """A copy of the MPIJob with its workers excluded from nodes that ACK's label reserves.

    The GPUs of these nodes are allocated by placement, of which the kubelet has no record.
    """
    restricted = deepcopy(mpijob)
    away = {"key": published.SCHEDULE_LABEL, "operator": "NotIn", "values": ["topology"]}
    required = _required(worker_template(restricted)["spec"])
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), away]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    return restricted


def waits_at_gate(pod: Manifest) -> bool:
    """Whether a pod, or a pod template, has our gate: it has no node yet."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(gate.get("name") == GATE for gate in gates)


def worker_patch(
    pod: Manifest, node: str, gpus: tuple[int, ...], visible: tuple[int, ...]
) -> Manifest:
    """The strategic-merge patch that sends one gated worker to its node, as it was read.

    `gpus` are the worker's, in ring order (none if the kubelet picks them). `visible` are the GPUs
    that its containers may see, in their order there. For a pod at a gate the server accepts only
    narrower node affinity, more tolerations and fewer gates (Kubernetes 1.27 and later; else 422).
    Foreign gates and the node requirements of the pod are not changed. The patch contains the uid,
    so the server refuses it for a newer pod of the same name. ValueError if the pod does not wait
    at our gate.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if not waits_at_gate(pod):
        raise ValueError(f"{metadata['name']} does not wait at the gate {GATE}")
    notes: dict[str, str | None] = {FORMAT_ANNOTATION: "v1"}
    if gpus:
        notes[GPU_GROUP] = ",".join(map(str, gpus))
        notes[GPU_VISIBLE] = ",".join(map(str, visible))
    if MAP in (metadata.get("annotations") or {}):
        # The map was meant for a policy that is not installed; the patch replaces it.
        notes[MAP] = None
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    # The server replaces this list as a whole, and refuses one in which a term is missing.
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    required = {"nodeSelectorTerms": [_on_node(term, node) for term in terms]}
    changed = {
        "affinity": {"nodeAffinity": {_REQUIRED: required}},
        "schedulingGates": [{"$patch": "delete", "name": GATE}],
    }
    uid = {"uid": metadata["uid"]} if "uid" in metadata else {}
    return {"metadata": {**uid, "annotations": notes}, "spec": changed}


def visible_gpus(
    workers: Iterable[tuple[int, str, tuple[int, ...]]], *, shared: bool
) -> tuple[tuple[int, ...], ...]:
    """The GPUs that each worker sees, by worker; `workers` are as `parse_map` returns them.

    These are its own GPUs, in ring order. With `--pod-shape shared` the GPUs of the job's other
    workers on the node follow, in their ring order; none if a worker there has unknown GPUs.
    """
    ordered = sorted(workers)
    by_node: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
    for _index, node, gpus in ordered:
        by_node[node].append(gpus)

    def visible_to(node: str, gpus: tuple[int, ...]) -> tuple[int, ...]:
        if not shared:
            return gpus
        known = all(by_node[node])
        return tuple(dict.fromkeys(chain(gpus, *by_node[node]))) if known else ()

    return tuple(visible_to(node, gpus) for _index, node, gpus in ordered)


def dropped_pins(sent: Manifest, stored: Manifest) -> tuple[str, ...]:
    """The fields of the workers whose pins a server has dropped.

    CRDs prune unknown fields; that of MPIJob v1alpha1 prunes `schedulingGates`, and without a gate
    workers run wherever they fit.
    """
    ours, theirs = (worker_template(mpijob)["spec"] for mpijob in (sent, stored))
    return tuple(
        field
        for field in ("schedulingGates", "affinity")
        if any(entry not in (theirs.get(field) or ()) for entry in ours.get(field) or ())
    )


def claims_gpus(mpijob: Manifest) -> bool:
    """Whether the workers of a job request GPUs by the name of a DRA driver, so by claims alone."""
    return any("/" not in key for key in _gpu_keys(worker_template(mpijob)))


def is_mapped(binding: Binding) -> bool:
    """Whether the policy places the workers of a binding, by a map."""
    return binding.name in {"admission", "claims"}


def worker_template(mpijob: Manifest) -> Manifest:
    """The pod template of the workers; v1alpha1 makes the launcher from it too."""
    template: Manifest = _workers(mpijob)["template"]
    return template


def _map_of(mpijob: Manifest, placement: Placement) -> str:
    """The map of a placement for the policy; ValueError if the policy would misread it."""
    text = placement_map(placement)
    count, replicas = len(placement.assignments), _workers(mpijob).get("replicas")
    if replicas is not None and count != replicas:
        raise ValueError(f"it names {count} workers, and the job has {replicas}")
    return text


def _restrict(mpijob: Manifest, placement: Placement) -> None:
    """Restrict the workers to the chosen nodes, with an even spread if the numbers are equal."""
    pod = worker_template(mpijob)["spec"]
    required = _required(pod)
    # Terms are alternatives; matchFields takes exactly one value in each.
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        _on_node(term, node) for node in placement.nodes for term in terms
    ]
    per_node = Counter(worker.node for worker in placement.assignments)
    if len(per_node) > 1 and len(set(per_node.values())) == 1:
        # With k workers for each of n nodes, a skew of at most 1 leaves only k on each.
        labels = version_of(mpijob).traits.worker_labels
        name = mpijob["metadata"]["name"]
        ours = {key: value.format(job=name) for key, value in labels.items()}
        even = {
            "maxSkew": 1,
            "topologyKey": _HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": ours},
        }
        pod["topologySpreadConstraints"] = [*(pod.get("topologySpreadConstraints") or ()), even]


def _on_node(term: Mapping[str, Any], node: str) -> Manifest:
    """A node selector term narrowed to one node, if it is not yet."""
    # By the name of the node object, which may differ from its hostname label.
    ours = {"key": "metadata.name", "operator": "In", "values": [str(node)]}
    fields = list(term.get("matchFields") or ())
    return {**term, "matchFields": fields if ours in fields else [*fields, ours]}


def _request(template: Manifest, binding: Binding) -> None:
    """Make the workers request their GPUs by the resource of the binding, or by claim."""
    claims = binding.name == "claims"
    if not (claims or binding.resource):
        return
    keys, container = _gpu_keys(template)[:1], _container(template)
    resources = _dict(container, "resources") if claims else container.get("resources") or {}
    for side in ("requests", "limits"):
        amounts = {
            binding.resource if name in keys else name: amount
            for name, amount in (resources.get(side) or {}).items()
            if not (claims and name in keys)
        }
        resources.pop(side, None)
        if amounts:
            resources[side] = amounts
    if claims:
        resources["claims"] = [*(resources.get("claims") or ()), {"name": CLAIM}]


def _shared_gpus(placement: Placement) -> tuple[int, ...]:
    """The job's GPUs on each of its nodes, in ring order if that is the same for all of them.

    Empty if they are not the same on every node, or not known.
    """
    by_node: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    for worker in placement.assignments:
        by_node[worker.node] += worker.gpus
    known = all(worker.gpus for worker in placement.assignments)
    orders = set(by_node.values())
    if not known or len(set(map(frozenset, orders))) > 1:
        return ()
    alone = len(by_node) == len(placement.assignments)
    gpus = orders.pop()
    return gpus if alone and not orders else tuple(sorted(gpus))


# Access to parts of the manifest


def _holder(template: Manifest, key: str) -> Manifest:
    """The part of a template with a field that pins replace."""
    pod: Manifest = template["spec"]
    return _container(template) if key == "resources" else pod


def _fields(template: Manifest) -> dict[str, Any]:
    """The current values of these fields."""
    return {name: _holder(template, name).get(name) for name in _FIELDS}


def _drop(holder: Manifest, key: str, is_ours: Callable[[Any], bool]) -> None:
    """Remove our entries from a list or a mapping; an empty one is removed as a whole."""
    entries = holder.get(key) or ()
    rest = [entry for entry in entries if not is_ours(entry)]
    if entries and not rest:
        del holder[key]
    elif entries:
        holder[key] = {name: entries[name] for name in rest} if isinstance(entries, dict) else rest


def _is_toleration(own: Mapping[str, Any]) -> bool:
    return own.get("key") == TAINT and own.get("operator") == "Exists" and bool(own.get("effect"))


def _variable(name: str) -> Manifest:
    """A variable of workers with the value of one of their annotations."""
    source = {"fieldPath": f"metadata.annotations['{_VARIABLES[name]}']"}
    return {"name": name, "valueFrom": {"fieldRef": source}}


def _is_variable(entry: Mapping[str, Any]) -> bool:
    """Whether a variable is one of our pins; servers add an apiVersion to its source."""
    source = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    paths = [_variable(name)["valueFrom"]["fieldRef"]["fieldPath"] for name in _VARIABLES]
    return source.get("fieldPath") in paths


def _workers(mpijob: Manifest) -> Manifest:
    """The part of the spec for workers; v1alpha1 has one template for launcher and workers."""
    spec: Manifest = mpijob["spec"]
    workers: Manifest = spec if "template" in spec else spec["mpiReplicaSpecs"]["Worker"]
    return workers


def _pods(mpijob: Manifest) -> list[Manifest]:
    """The pod specs of the job, each once."""
    roles = mpijob["spec"].get("mpiReplicaSpecs") or {"Worker": mpijob["spec"]}
    return [roles[role]["template"]["spec"] for role in ("Worker", "Launcher") if role in roles]


def _dict(holder: Manifest, key: str) -> Manifest:
    """The mapping at a key, created if it is missing."""
    if not isinstance(holder.get(key), dict):
        holder[key] = {}
    value: Manifest = holder[key]
    return value


def _required(pod: Manifest) -> Manifest:
    """The required node affinity of a pod."""
    return _dict(_dict(_dict(pod, "affinity"), "nodeAffinity"), _REQUIRED)


def _container(template: Manifest) -> Manifest:
    container: Manifest = template["spec"]["containers"][0]
    return container


def _gpu_keys(template: Manifest) -> list[str]:
    """The names by which the workers request GPUs: known resources, or the name of a driver."""
    resources = _container(template).get("resources") or {}
    return [
        name
        for name in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        if name in {ORDINARY, PUBLISHED} or ("/" not in name and not name.startswith(_BUILT_IN))
    ]
