"""The MPIJob with its workers pinned by a binding, and the same without: two inverse steps.

    admission  the map of the placement and a gate in the template; a policy gives each worker its
               own entry and lifts the gate
    gates      the gate alone; somebody patches each worker (`worker_patch`)
    claims     as admission, and GPUs by claim
    template   node affinity, the same for all workers

Pins come off by what they look like, since others write into the same fields meanwhile: Kueue adds
labels, annotations, tolerations and scheduling gates when it admits a job, servers fill in
defaults. Copies of whole fields would take that away. What cannot be told by its looks, such as the
name under which GPUs were asked for, an annotation of the template holds.
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
from arena_topo.manifests.annotations import parse_map, placement_map
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

_FIELDS = (
    "Worker/metadata/labels",
    "Worker/metadata/annotations",
    "Worker/spec/affinity",
    "Worker/spec/topologySpreadConstraints",
    "Worker/spec/tolerations",
    "Worker/spec/schedulingGates",
    "Worker/spec/resourceClaims",
    "Worker/spec/containers/0/env",
    "Worker/spec/containers/0/resources",
    "Launcher/spec/tolerations",
)
"""The fields of the pod templates that pins are written into."""


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
    bare = unplaced(mpijob)
    pinned = deepcopy(bare)
    template = worker_template(pinned)
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
    return _remembering(bare, pinned)


def gated(mpijob: Manifest, *, effects: Iterable[str] = ()) -> Manifest:
    """The same MPIJob with its workers held at the gate, for a job that somebody else starts.

    There is no map in it: each worker is patched (`worker_patch`) once it is there. Its containers
    are never shown GPUs of our choice, as patches cannot add that. Workers of nodes whose GPUs a
    DRA driver publishes take a claim each, which may be created after them.
    """
    bare = unplaced(mpijob)
    pinned = deepcopy(bare)
    template = worker_template(pinned)
    _annotated(template, Guarantee.NODE)
    _label(template, INLINE, MAP_FORMAT)
    _add_gate(template)
    if claims_gpus(pinned):
        _claim(template)
    _tolerate(pinned, effects)
    return _remembering(bare, pinned)


def unplaced(mpijob: Manifest) -> Manifest:
    """The same MPIJob without our pins: what `placed` or `gated` was given.

    Also of an object that was read back from a server. One without pins is returned as it is.
    """
    metadata = worker_template(mpijob).get("metadata") or {}
    notes = metadata.get("annotations") or {}
    if FORMAT not in notes:
        return mpijob
    bare = _stripped(mpijob)
    for path, value in _remembered(notes.get(UNPINNED)).items():
        _write(bare, path, value)
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
    lost = []
    for path in ("spec/schedulingGates", "spec/affinity"):
        ours, kept = (_read(one, f"Worker/{path}") for one in (sent, stored))
        missing = [one for one in ours or () if one not in (kept or ())]
        if missing:
            lost.append(path.rpartition("/")[2])
    return tuple(lost)


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
    for one in template["spec"]["containers"][0].get("env") or ():
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
            f"the placement of {name} is not one of all its workers",
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
    per_node = set(Counter(one.node for one in placement.assignments).values())
    if len(placement.nodes) == 1 or len(per_node) > 1:
        return
    workers = _workers(mpijob)
    if per_node == {1} and not _one(mpijob):
        away = {"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": workers}}
        _dict(pod["affinity"], "podAntiAffinity").setdefault(_REQUIRED, []).append(away)
        return
    # Also for one worker per node where the launcher is made from the same template: kept apart
    # from workers, it could not run on any of the nodes that it is pinned to. With k workers for
    # each of n nodes, a skew of at most 1 leaves only k on each.
    even = {
        "maxSkew": 1,
        "topologyKey": _HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": workers},
    }
    pod.setdefault("topologySpreadConstraints", []).append(even)


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
    resources = _dict(template["spec"]["containers"][0], "resources")
    resources["claims"] = [*(resources.get("claims") or ()), {"name": CLAIM}]
    _label(template, CLAIMS, PER_WORKER)


def _ask(template: Manifest, resource: str | None) -> None:
    """Let the workers ask for their GPUs under another name, or (None) not at all."""
    key = _gpu_key(template)
    if key is None or key == resource:
        return
    resources = template["spec"]["containers"][0]["resources"]
    for side in ("requests", "limits"):
        if key in (resources.get(side) or ()):
            asked = {}
            for name, amount in resources[side].items():
                if name != key:
                    asked[name] = amount
                elif resource is not None:
                    asked[resource] = amount
            resources[side] = asked
            if not asked:
                del resources[side]


def _read_from(template: Manifest, variable: str, annotation: str) -> None:
    """Have the workers read a variable from an annotation of theirs; it stands by its name."""
    container = template["spec"]["containers"][0]
    kept = [one for one in container.get("env") or () if one["name"] != variable]
    later = (at for at, one in enumerate(kept) if str(one["name"]) > variable)
    at = next(later, len(kept))
    source = {"fieldRef": {"fieldPath": _path(annotation)}}
    container["env"] = [*kept[:at], {"name": variable, "valueFrom": source}, *kept[at:]]


def _sets(template: Manifest, variable: str) -> bool:
    env = template["spec"]["containers"][0].get("env") or ()
    return any(one.get("name") == variable for one in env)


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


def _stripped(mpijob: Manifest) -> Manifest:
    """A copy without anything that looks like a pin of ours, and without what that leaves empty."""
    bare = deepcopy(mpijob)
    for path, is_ours in _pins(bare):
        found = _read(bare, path)
        left: Any = [one for one in found or () if not is_ours(one)]
        if len(left) == len(found or ()):
            continue
        _write(bare, path, {key: found[key] for key in left} if isinstance(found, dict) else left)
        empty = path
        while "/" in empty and _read(bare, empty) in ({}, []):
            _write(bare, empty, None)
            empty = empty.rpartition("/")[0]
    return bare


def _pins(mpijob: Manifest) -> Iterator[tuple[str, Callable[[Any], bool]]]:
    """Where pins are, and which keys or items there are ours."""
    workers = _workers(mpijob)

    def about_workers(one: Mapping[str, Any]) -> bool:
        selector = one.get("labelSelector") or {}
        return one.get("topologyKey") == _HOSTNAME and selector.get("matchLabels") == workers

    yield "Worker/metadata/labels", {INLINE, CLAIMS, GANG}.__contains__
    notes = {FORMAT, GUARANTEE, MAP, UNPINNED, HCAS, GPU_GROUP, GPU_VISIBLE}
    yield "Worker/metadata/annotations", notes.__contains__
    yield "Worker/spec/schedulingGates", lambda one: one.get("name") == GATE
    yield "Worker/spec/resourceClaims", lambda one: one.get("name") == CLAIM
    yield "Worker/spec/topologySpreadConstraints", about_workers
    yield f"Worker/spec/affinity/podAntiAffinity/{_REQUIRED}", about_workers
    terms = f"Worker/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"
    # Terms are alternatives: beside one of somebody else's, a node alone is no pin.
    nodes_alone = all(map(_is_node, _read(mpijob, terms) or ()))
    yield terms, lambda _: nodes_alone
    yield "Worker/spec/containers/0/env", _reads_pin
    yield "Worker/spec/containers/0/resources/claims", lambda one: one.get("name") == CLAIM
    yield "Worker/spec/tolerations", _is_toleration
    yield "Launcher/spec/tolerations", _is_toleration


def _is_node(term: Mapping[str, Any]) -> bool:
    fields = list(term.get("matchFields") or ())
    alone = len(fields) == 1 and not term.get("matchExpressions")
    return alone and fields[0].get("key") == "metadata.name"


def _is_toleration(one: Mapping[str, Any]) -> bool:
    return one.get("key") == TAINT and one.get("operator") == "Exists" and bool(one.get("effect"))


def _reads_pin(one: Mapping[str, Any]) -> bool:
    source = (one.get("valueFrom") or {}).get("fieldRef") or {}
    ours = {_DEVICES: GPU_VISIBLE, HCA_VARIABLE: HCAS}.get(str(one.get("name")))
    return ours is not None and source.get("fieldPath") == _path(ours)


def _remembering(bare: Manifest, pinned: Manifest) -> Manifest:
    """The pinned job, with a note of all that stripping it alone would not bring back."""
    left = _stripped(pinned)
    before = {path: _read(bare, path) for path in _FIELDS}
    lost = {path: value for path, value in before.items() if value != _read(left, path)}
    if lost:
        notes = worker_template(pinned)["metadata"]["annotations"]
        notes[UNPINNED] = json.dumps(lost, separators=(",", ":"), ensure_ascii=False)
    return pinned


def _remembered(text: Any) -> dict[str, Any]:
    """What a note says of fields that pins are written into; nothing if it makes no sense."""
    try:
        said = json.loads(text or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return {key: said[key] for key in _FIELDS if key in said} if isinstance(said, dict) else {}


def _read(mpijob: Manifest, path: str) -> Any:
    """What is at a path; None if nothing is."""
    holder, last = _holder(mpijob, path)
    return holder.get(last) if isinstance(holder, dict) else None


def _write(mpijob: Manifest, path: str, value: Any) -> None:
    holder, last = _holder(mpijob, path)
    if not isinstance(holder, dict):
        return
    if value is None:
        holder.pop(last, None)
    else:
        holder[last] = value


def _holder(mpijob: Manifest, path: str) -> tuple[Any, str]:
    role, *parts, last = path.split("/")
    one = _one(mpijob) and role == "Worker"
    at: Any = mpijob["spec"] if one else (mpijob["spec"].get("mpiReplicaSpecs") or {}).get(role)
    for part in ("template", *parts):
        if isinstance(at, list):
            at = at[int(part)] if int(part) < len(at) else None
        else:
            at = at.get(part) if isinstance(at, dict) else None
    return at, last


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
    if _one(mpijob):
        return {"mpi_job_name": name, "mpi_role_type": "worker"}
    return {"gpu-topology": name}


def _dict(holder: Manifest, key: str) -> Manifest:
    """The mapping at a key, made if it is not there."""
    if not isinstance(holder.get(key), dict):
        holder[key] = {}
    found: Manifest = holder[key]
    return found


def _limits(template: Manifest) -> Manifest:
    resources = template["spec"]["containers"][0].get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def _gpu_key(template: Manifest) -> str | None:
    """Under which name the workers ask for GPUs: a known resource, or what a driver is called."""
    names = [
        name
        for name in _limits(template)
        if name in {ORDINARY, PUBLISHED} or ("/" not in name and not name.startswith(_BUILT_IN))
    ]
    return names[0] if names else None
