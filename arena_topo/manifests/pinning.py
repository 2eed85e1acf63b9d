"""The MPIJob with its workers pinned by a binding, and the same without: two inverse steps.

    admission  the map of the placement and a gate in the template; a policy gives each worker its
               own entry and lifts the gate
    gates      the gate alone; somebody patches each worker (`worker_patch`)
    claims     as admission, and GPUs by claim
    template   node affinity, the same for all workers

Pins come off field by field, each in one way. Others write into labels, annotations, tolerations
and scheduling gates meanwhile (Kueue when it admits a job: `Merge` in pkg/podset/podset.go): of
these and of variables, which stand by their names, exactly ours are taken off. Fields that nobody
else writes are put back as they were; an annotation of the template holds what they were.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from arena_topo.errors import ArenaError
from arena_topo.manifests import (
    CLAIMS,
    FORMAT,
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
from arena_topo.manifests.annotations import json_object, parse_map, placement_map
from arena_topo.manifests.versions import version_of
from arena_topo.numbers import whole
from arena_topo.solver import Placement
from arena_topo.topology import ORDINARY, PUBLISHED, TAINT, NodeName, published

CLAIM = "gpus"
"""What pods call their claim; the admission policy writes it too."""

LONGEST_MAP = 200_000
"""Bytes of a map. All annotations of an object together may have 262,144 (Kubernetes)."""

_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_DEVICES = "NVIDIA_VISIBLE_DEVICES"
_BUILT_IN = ("cpu", "memory", "ephemeral-storage", "hugepages-")

_AFFINITY = "Worker/spec/affinity"
_SPREAD = "Worker/spec/topologySpreadConstraints"
_RESOURCES = "Worker/spec/containers/0/resources"
_ENV = "Worker/spec/containers/0/env"
"""The fields that the note of a template names; the last is in notes of older clients alone."""


def placed(
    mpijob: Manifest,
    placement: Placement,
    binding: Binding,
    *,
    effects: Iterable[str] = (),
    hcas: tuple[str, ...] = (),
) -> Manifest:
    """The same MPIJob with its workers pinned to the chosen nodes; the one given stays as it is.

    Pins that it has already are replaced. `effects` are those of the taints that keep the chosen
    nodes for arena-topo; pods tolerate them. `hcas` are the NICs that NCCL is to use in all
    workers, unless the job says itself which. ArenaError if the placement cannot be written down,
    or is not one of all workers.
    """
    text = _checked(mpijob, placement)
    pinned, template, before = _bare(mpijob)
    notes = _annotated(template, binding.guarantee)
    if is_mapped(binding):
        _add_gate(template)
        _label(template, INLINE, MAP_FORMAT)
        notes[MAP] = text
    elif binding.name == "gates":
        _add_gate(template)
    else:
        _to_nodes(pinned, template, placement)
        if gpus := _shared_gpus(placement):
            notes[GPU_GROUP] = ",".join(map(str, sorted(gpus)))
            notes[GPU_VISIBLE] = ",".join(map(str, gpus))
    if binding.name == "claims":
        _claim(template)
    elif binding.resource:
        _ask(template, binding.resource)
    if hcas and not _sets(template, HCA_VARIABLE):
        # "=" asks for whole names: mlx5_1 is the beginning of mlx5_10 (NCCL, NCCL_IB_HCA).
        notes[HCAS] = f"={','.join(hcas)}"
        _read_from(template, HCA_VARIABLE, HCAS)
    if binding.gang:
        _label(template, GANG, "true")
    if binding.inject:
        _read_from(template, _DEVICES, GPU_VISIBLE)
    _tolerate(pinned, effects)
    return _remembering(pinned, before)


def gated(mpijob: Manifest, *, effects: Iterable[str] = ()) -> Manifest:
    """The same MPIJob with its workers held at the gate, for a job that somebody else starts.

    There is no map in it: each worker is patched (`worker_patch`) once it is there. Its containers
    are never shown GPUs of our choice, as patches cannot add that. Workers of nodes whose GPUs a
    DRA driver publishes take a claim each, which may be created after them.
    """
    pinned, template, before = _bare(mpijob)
    _annotated(template, Guarantee.NODE)
    _label(template, INLINE, MAP_FORMAT)
    _add_gate(template)
    if claims_gpus(pinned):
        _claim(template)
    _tolerate(pinned, effects)
    return _remembering(pinned, before)


def unplaced(mpijob: Manifest) -> Manifest:
    """The same MPIJob without our pins: what `placed` or `gated` was given.

    Also of an object that was read back from a server. One without pins is returned as it is.
    """
    notes = (worker_template(mpijob).get("metadata") or {}).get("annotations") or {}
    if FORMAT not in notes:
        return mpijob
    bare = deepcopy(mpijob)
    template = worker_template(bare)
    before = json_object(notes.get(UNPINNED))
    if UNPINNED in notes and not before:
        # An unreadable note: jobs that arena-topo makes have neither field without a pin.
        before = {_AFFINITY: None, _SPREAD: None}
    _drop_unnoted(bare, template, before)
    for name, holder, key in _replaced(template):
        if before.get(name) is not None:
            holder[key] = before[name]
        elif name in before:
            holder.pop(key, None)
    _drop(template["metadata"], "labels", {INLINE, CLAIMS, GANG}.__contains__)
    ours = {FORMAT, GUARANTEE, MAP, UNPINNED, HCAS, GPU_GROUP, GPU_VISIBLE}
    _drop(template["metadata"], "annotations", ours.__contains__)
    _drop(template["spec"], "schedulingGates", lambda one: one.get("name") == GATE)
    _drop(_container(template), "env", _reads_pin)
    if before.get(_ENV) is not None:
        _container(template)["env"] = before[_ENV]
    for pod in _pods(bare):
        _drop(pod, "tolerations", _is_toleration)
    return bare


def avoiding_reserved(mpijob: Manifest) -> Manifest:
    """The same MPIJob, its workers kept off nodes that ACK's label keeps for topology jobs.

    Their GPUs are handed out by placement, of which the kubelet knows nothing.
    """
    kept = deepcopy(mpijob)
    affinity = _dict(worker_template(kept)["spec"], "affinity")
    required = _dict(_dict(affinity, "nodeAffinity"), _REQUIRED)
    away = {"key": published.SCHEDULE_LABEL, "operator": "NotIn", "values": ["topology"]}
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), away]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    return kept


def waits_at_gate(pod: Manifest) -> bool:
    """Whether a pod is held by our gate: nobody has given it its place yet."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(one.get("name") == GATE for one in gates)


def worker_patch(
    pod: Manifest, node: str, gpus: tuple[int, ...], visible: tuple[int, ...]
) -> Manifest:
    """The strategic-merge patch that sends one gated worker to its node, as it was read.

    `gpus` are the worker's, in ring order (none where the kubelet picks them), `visible` those that
    its containers may see, in the order in which they are to see them. Of a pod at its gate only
    node affinity and tolerations may be narrowed or added and gates taken away (Kubernetes 1.27 and
    later; anything else is refused with 422). Gates of others stay, and so does every node
    requirement that the pod has. The server refuses the patch for a pod that was made since under
    the same name, as its uid is another. ValueError if the pod does not wait at our gate.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if not waits_at_gate(pod):
        raise ValueError(f"{metadata['name']} does not wait at the gate {GATE}")
    notes: dict[str, str | None] = {FORMAT: "v1"}
    if gpus:
        notes[GPU_GROUP] = ",".join(map(str, gpus))
        notes[GPU_VISIBLE] = ",".join(map(str, visible))
    if MAP in (metadata.get("annotations") or {}):
        # It was left for a policy that is not there: the worker has its place now.
        notes[MAP] = None
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    # The server replaces this list as a whole, and refuses one in which a term is missing.
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    required = {"nodeSelectorTerms": [on_node(term, node) for term in terms]}
    changed = {
        "affinity": {"nodeAffinity": {_REQUIRED: required}},
        "schedulingGates": [{"$patch": "delete", "name": GATE}],
    }
    uid = {"uid": metadata["uid"]} if "uid" in metadata else {}
    return {"metadata": {**uid, "annotations": notes}, "spec": changed}


def visible(
    workers: Iterable[tuple[int, str, tuple[int, ...]]], *, shared: bool
) -> tuple[tuple[int, ...], ...]:
    """The GPUs that each worker sees, by worker; `workers` are as `parse_map` returns them.

    Its own, in ring order. Under `--pod-shape shared` then those of the job's other workers on its
    node as well, in theirs; there nobody of a node is told anything unless all its workers are.
    """
    ordered = sorted(workers)
    if not shared:
        return tuple(gpus for _index, _node, gpus in ordered)
    held: dict[str, list[tuple[int, ...]]] = {}
    for _index, node, gpus in ordered:
        held.setdefault(node, []).append(gpus)
    return tuple(
        tuple(dict.fromkeys([*gpus, *(gpu for each in held[node] for gpu in each)]))
        if all(held[node])
        else ()
        for _index, node, gpus in ordered
    )


def dropped(sent: Manifest, stored: Manifest) -> tuple[str, ...]:
    """The fields of the workers in which a server has not kept what was sent: pins without effect.

    CRDs prune what they do not know; that of MPIJob v1alpha1 does not know `schedulingGates`, and
    without a gate workers run wherever they fit.
    """
    ours, kept = (worker_template(one)["spec"] for one in (sent, stored))
    return tuple(
        field
        for field in ("schedulingGates", "affinity")
        if any(one not in (kept.get(field) or ()) for one in ours.get(field) or ())
    )


def claims_gpus(mpijob: Manifest) -> bool:
    """Whether the workers of a job ask for GPUs by the name of a DRA driver: by claims alone."""
    key = _gpu_key(worker_template(mpijob))
    return key is not None and "/" not in key


def is_mapped(binding: Binding) -> bool:
    """Whether the workers of a binding find their places in a map, through the policy."""
    return binding.name in {"admission", "claims"}


def worker_template(mpijob: Manifest) -> Manifest:
    """The pod template of the workers; v1alpha1 makes the launcher from it too."""
    spec: Manifest = mpijob["spec"]
    found: Manifest = spec["template"] if _one(mpijob) else _role(mpijob, "Worker")
    return found


def gpus_of(template: Manifest) -> int:
    """How many GPUs each worker of a template asks for; 0 where it does not say."""
    for one in _container(template).get("env") or ():
        if one.get("name") == "gpus" and (asked := whole(one.get("value"))) is not None:
            return asked
    key = _gpu_key(template)
    return 0 if key is None else int(_limits(template)[key])


def _checked(mpijob: Manifest, placement: Placement) -> str:
    """The map of a placement, as the policy will read it; ArenaError if it would misread it."""
    name = mpijob["metadata"]["name"]
    try:
        text = placement_map(placement)
        count = len(parse_map(text))
    except ValueError as error:
        raise ArenaError(
            f"the placement of {name} cannot be written down", why=str(error)
        ) from error
    spec = mpijob["spec"]
    wanted = (spec if _one(mpijob) else spec["mpiReplicaSpecs"]["Worker"]).get("replicas", count)
    if count != wanted:
        raise ArenaError(
            f"the placement of {name} does not name all its workers",
            why=f"it names {count} workers, and the job has {wanted}",
        )
    if len(text) > LONGEST_MAP:
        raise ArenaError(
            f"the placement of {name} is too long to be written down",
            why=f"it has {len(text)} bytes, and the annotations of an object may have 262,144",
            hint="use fewer, larger workers",
        )
    return text


# What the pins are


def _annotated(template: Manifest, guarantee: Guarantee) -> Manifest:
    """The annotations of a template, which say from now on that it is pinned."""
    notes = _dict(_dict(template, "metadata"), "annotations")
    notes |= {FORMAT: "v1", GUARANTEE: guarantee.value}
    return notes


def _label(template: Manifest, key: str, value: str) -> None:
    _dict(_dict(template, "metadata"), "labels")[key] = value


def _add_gate(template: Manifest) -> None:
    """Put our gate before the workers, beside others."""
    template["spec"].setdefault("schedulingGates", []).append({"name": GATE})


def _to_nodes(mpijob: Manifest, template: Manifest, placement: Placement) -> None:
    """Keep the workers on the chosen nodes and, where they fill them alike, in equal numbers."""
    pod = template["spec"]
    _require(_dict(pod, "affinity"), placement.nodes)
    per_node = Counter(one.node for one in placement.assignments)
    if len(per_node) > 1 and len(set(per_node.values())) == 1:
        # With k workers for each of n nodes, a skew of at most 1 leaves only k on each.
        even = {
            "maxSkew": 1,
            "topologyKey": _HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": _workers(mpijob)},
        }
        pod["topologySpreadConstraints"] = [*(pod.get("topologySpreadConstraints") or ()), even]


def _require(affinity: Manifest, nodes: Iterable[str]) -> None:
    """Allow these nodes alone, and of them those that were allowed before."""
    required = _dict(_dict(affinity, "nodeAffinity"), _REQUIRED)
    before = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives; matchFields takes exactly one value in each.
    required["nodeSelectorTerms"] = [on_node(term, node) for node in nodes for term in before]


def on_node(term: Mapping[str, Any], node: str) -> Manifest:
    """A node selector term narrowed to one node, if it is not yet."""
    # By name of the node object, not by its hostname label, which need not be the same.
    ours = {"key": "metadata.name", "operator": "In", "values": [str(node)]}
    fields = list(term.get("matchFields") or ())
    return {**term, "matchFields": fields if ours in fields else [*fields, ours]}


def _claim(template: Manifest) -> None:
    """Let the workers take their GPUs by claim, and not be counted as well."""
    _ask(template, None)
    resources = _dict(_container(template), "resources")
    resources["claims"] = [*(resources.get("claims") or ()), {"name": CLAIM}]
    _label(template, CLAIMS, PER_WORKER)


def _ask(template: Manifest, resource: str | None) -> None:
    """Let the workers ask for their GPUs under another name, or (None) not at all."""
    key = _gpu_key(template)
    resources = _container(template).get("resources") or {}
    for side in ("requests", "limits"):
        asked = {
            (resource or name) if name == key else name: amount
            for name, amount in (resources.get(side) or {}).items()
            if name != key or resource is not None
        }
        if asked:
            resources[side] = asked
        else:
            resources.pop(side, None)


def _read_from(template: Manifest, variable: str, annotation: str) -> None:
    """Have the workers read a variable from an annotation of theirs; it stands by its name.

    Of two variables of one name the last counts (Kubernetes), so one that the job sets may stay.
    """
    container = _container(template)
    env = container.get("env") or []
    at = next((at for at, one in enumerate(env) if str(one["name"]) > variable), len(env))
    ours = {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": _path(annotation)}}}
    container["env"] = [*env[:at], ours, *env[at:]]


def _sets(template: Manifest, variable: str) -> bool:
    return any(one.get("name") == variable for one in _container(template).get("env") or ())


def _path(annotation: str) -> str:
    return f"metadata.annotations['{annotation}']"


def _tolerate(mpijob: Manifest, effects: Iterable[str]) -> None:
    """Bear our taints; the launcher too, as it is to run beside its workers."""
    for effect in sorted(set(effects)):
        bears = {"key": TAINT, "operator": "Exists", "effect": effect}
        for pod in _pods(mpijob):
            pod["tolerations"] = [*(pod.get("tolerations") or ()), bears]


def _shared_gpus(placement: Placement) -> tuple[int, ...]:
    """The job's GPUs on each of its nodes, in ring order if one worker has them all.

    Empty if they are not the same on every node, or not known.
    """
    orders = {one.gpus for one in placement.assignments}
    if len(orders) == 1 and len(placement.nodes) == len(placement.assignments):
        return orders.pop()
    held: dict[NodeName, set[int]] = {}
    for one in placement.assignments:
        if not one.gpus:
            return ()
        held.setdefault(one.node, set()).update(one.gpus)
    sets = {frozenset(gpus) for gpus in held.values()}
    return tuple(sorted(sets.pop())) if len(sets) == 1 else ()


# What is taken off again


def _bare(mpijob: Manifest) -> tuple[Manifest, Manifest, dict[str, Any]]:
    """A copy without pins, its worker template, and what pins may replace in that."""
    bare = deepcopy(unplaced(mpijob))
    template = worker_template(bare)
    return bare, template, {name: deepcopy(at.get(key)) for name, at, key in _replaced(template)}


def _replaced(template: Manifest) -> Iterator[tuple[str, Manifest, str]]:
    """The fields that pins change as a whole, each with its name, its holder and its key there."""
    yield _AFFINITY, template["spec"], "affinity"
    yield _SPREAD, template["spec"], "topologySpreadConstraints"
    yield _RESOURCES, _container(template), "resources"


def _remembering(pinned: Manifest, before: Mapping[str, Any]) -> Manifest:
    """The pinned job, with a note of the fields that pins have changed as a whole."""
    template = worker_template(pinned)
    changed = {
        name: before[name] for name, at, key in _replaced(template) if before[name] != at.get(key)
    }
    if changed:
        notes = template["metadata"]["annotations"]
        notes[UNPINNED] = json.dumps(changed, separators=(",", ":"), ensure_ascii=False)
    return pinned


def _drop_unnoted(mpijob: Manifest, template: Manifest, before: Mapping[str, Any]) -> None:
    """Take off the pins to nodes of an older client, which noted only what their looks hid.

    Jobs that it resumed run on, and are suspended and placed anew by this version.
    """
    pod = template["spec"]
    if any(one.get("name") == GATE for one in pod.get("schedulingGates") or ()):
        return
    workers = _workers(mpijob)

    def about_workers(one: Mapping[str, Any]) -> bool:
        selector = one.get("labelSelector") or {}
        return one.get("topologyKey") == _HOSTNAME and selector.get("matchLabels") == workers

    if _SPREAD not in before:
        _drop(pod, "topologySpreadConstraints", about_workers)
    affinity = pod.get("affinity") or {}
    if _AFFINITY in before or not affinity:
        return
    nodes, apart = (affinity.get(kind) or {} for kind in ("nodeAffinity", "podAntiAffinity"))
    terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    # Terms are alternatives: beside one of somebody else's, a node alone is no pin.
    if terms and all(map(_is_node, terms)):
        del nodes[_REQUIRED]
    _drop(apart, _REQUIRED, about_workers)
    for kind in ("nodeAffinity", "podAntiAffinity"):
        if affinity.get(kind) == {}:
            del affinity[kind]
    if not affinity:
        del pod["affinity"]


def _is_node(term: Mapping[str, Any]) -> bool:
    fields = list(term.get("matchFields") or ())
    alone = len(fields) == 1 and not term.get("matchExpressions")
    return alone and fields[0].get("key") == "metadata.name"


def _drop(holder: Manifest, key: str, is_ours: Callable[[Any], bool]) -> None:
    """Take what is ours out of a list or a mapping, and that away where nothing else is in it."""
    found = holder.get(key) or ()
    left = [one for one in found if not is_ours(one)]
    if found and not left:
        del holder[key]
    elif found:
        holder[key] = {name: found[name] for name in left} if isinstance(found, dict) else left


def _is_toleration(one: Mapping[str, Any]) -> bool:
    return one.get("key") == TAINT and one.get("operator") == "Exists" and bool(one.get("effect"))


def _reads_pin(one: Mapping[str, Any]) -> bool:
    source = (one.get("valueFrom") or {}).get("fieldRef") or {}
    return source.get("fieldPath") in {_path(GPU_VISIBLE), _path(HCAS)}


# Where things are


def _one(mpijob: Manifest) -> bool:
    """Whether launcher and workers are made from one template (v1alpha1)."""
    return "template" in mpijob["spec"]


def _role(mpijob: Manifest, role: str) -> Manifest:
    found: Manifest = mpijob["spec"]["mpiReplicaSpecs"][role]["template"]
    return found


def _pods(mpijob: Manifest) -> list[Manifest]:
    if _one(mpijob):
        return [mpijob["spec"]["template"]["spec"]]
    roles = ("Worker", "Launcher")
    return [_role(mpijob, one)["spec"] for one in roles if one in mpijob["spec"]["mpiReplicaSpecs"]]


def _workers(mpijob: Manifest) -> dict[str, str]:
    """The labels that workers of a job have, and its launcher has not."""
    name = mpijob["metadata"]["name"]
    labels = version_of(mpijob).traits.worker_labels
    return {key: value.format(job=name) for key, value in labels.items()}


def _dict(holder: Manifest, key: str) -> Manifest:
    """The mapping at a key, made if it is not there."""
    if not isinstance(holder.get(key), dict):
        holder[key] = {}
    found: Manifest = holder[key]
    return found


def _container(template: Manifest) -> Manifest:
    found: Manifest = template["spec"]["containers"][0]
    return found


def _limits(template: Manifest) -> Manifest:
    resources = _container(template).get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _gpu_key(template: Manifest) -> str | None:
    """Under which name the workers ask for GPUs: a known resource, or what a driver is called."""
    names = [
        name
        for name in _limits(template)
        if name in {ORDINARY, PUBLISHED} or ("/" not in name and not name.startswith(_BUILT_IN))
    ]
    return names[0] if names else None
