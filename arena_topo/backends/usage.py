"""Pods and recorded placements -> what is in use of every node: GPUs by index, CPU, memory.

Pure, as `observed` is, which reads everything else of a cluster. A pod that does not say which GPUs
it has, or says it so that nobody understands, still holds as many as it asked for.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from arena_topo import manifests
from arena_topo.job import Quantity
from arena_topo.manifests.values import FORMAT, GPU_GROUP, GUARANTEE, MAP, STATE
from arena_topo.topology import ORDINARY, PUBLISHED, GPUSet, gpu_set

Object = Mapping[str, Any]

GPU_RESOURCES = (PUBLISHED, ORDINARY)
"""What a GPU is called in requests; a node that offers both is asked for the first."""

ACK_ALLOCATION = "gputopology.alibabacloud.com/allocation"
"""JSON of the ACK scheduler: `{"allocatedGPUs": {"0": ["0", "3"]}, ...}`, by container index
(koordinator, pkg/scheduler/plugins/ack/gputopology)."""

_ALL = 1 << 20
"""More GPUs than any machine has: what a pod counts for that holds nobody knows how many."""

_MOST = (1 << 63) - 1
"""The largest number a quantity may stand for (kubernetes, apimachinery, resource.Quantity)."""

_KIBI = 1024.0

_SHORT = 15
"""Digits, with Ki too, that surely stand for less than that."""

OVER = ("Succeeded", "Failed")
"""Phases in which a pod or a job holds nothing any more."""


def of(one: Object, key: str) -> Object:
    """The mapping under a key; an absent or null one is empty, another type is a TypeError."""
    value = one.get(key)
    if value is None:
        return {}
    # Asked some twenty times for every node, and `Mapping` is slow to answer.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{key} is no mapping")
    return value


def items(one: Object, key: str) -> list[Object]:
    """The mappings in the list under a key; absent or null is empty, else a TypeError."""
    value = one.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise TypeError(f"{key} is no list of mappings")
    return value


def worker_template(mpijob: Object) -> Object:
    """The pod template of the workers, in any of the three versions; empty where there is none."""
    spec = of(mpijob, "spec")
    if "mpiReplicaSpecs" in spec:
        spec = of(of(spec, "mpiReplicaSpecs"), "Worker")
    return of(spec, "template")


def job_over(mpijob: Object) -> bool:
    """Whether the operator says that the job has ended."""
    status = of(mpijob, "status")
    return status.get("launcherStatus") in OVER or any(
        condition.get("type") in OVER and condition.get("status") == "True"
        for condition in items(status, "conditions")
    )


def gpu_count(pod_spec: Object) -> int:
    """The GPUs that a pod holds: its limits, under either name of the resource.

    ValueError for a quantity that is none.
    """
    return round(sum(_demand(pod_spec, "limits", name) for name in GPU_RESOURCES))


def _demand(spec: Object, side: str, resource: str) -> float:
    """What a pod takes of a resource, by the scheduler's rule for init containers.

    Init containers run one after another before the others start; those that restart always
    (sidecars) stay (kubernetes, pkg/api/v1/resource: PodRequests).
    """
    whole = of(of(spec, "resources"), side).get(resource)
    overhead = amount(of(spec, "overhead").get(resource))
    if whole is not None:
        return amount(whole) + overhead
    running = sum(_asked(one, side, resource) for one in items(spec, "containers"))
    sidecars = peak = 0.0
    for one in items(spec, "initContainers"):
        asked = _asked(one, side, resource)
        if one.get("restartPolicy") == "Always":
            sidecars += asked
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + asked)
    return max(running + sidecars, peak) + overhead


def _asked(container: Object, side: str, resource: str) -> float:
    resources = of(container, "resources")
    asked = of(resources, side).get(resource)
    if asked is None and side == "requests":
        # The API server fills in requests from limits; a hand-written dump may not.
        asked = of(resources, "limits").get(resource)
    return amount(asked)


def amount(quantity: Any) -> float:
    """The number of a Kubernetes quantity, None being 0; ValueError if it is none."""
    if quantity is None:
        return 0.0
    text = str(quantity)
    # How a node tells its GPUs and its memory; the second is another on every node.
    if len(text) <= _SHORT and text.isascii():
        if text.isdigit():
            return float(text)
        if text.endswith("Ki") and text[:-2].isdigit():
            return float(text[:-2]) * _KIBI
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> float:
    try:
        found = Quantity.parse(text).amount
    except ArithmeticError as error:
        raise ValueError(f"{text[:80]!r} is out of range") from error
    if found > _MOST:
        raise ValueError(f"{text[:80]!r} is out of range")
    return float(found)


@dataclass(slots=True, kw_only=True)
class Use:
    """What pods and recorded placements take of one node, while it is being added up."""

    known: list[tuple[str, GPUSet]] = field(default_factory=list)
    hidden: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    foreign: bool = False


def uses_of(pods: Iterable[Object], jobs: Iterable[Object], notes: list[str]) -> dict[str, Use]:
    """What these take of every node they are on; `notes` gets what of them is not understood."""
    uses: dict[str, Use] = defaultdict(Use)
    settled: set[tuple[str, str]] = set()
    for pod in pods:
        meta, spec = pod["metadata"], pod["spec"]
        over = pod["status"].get("phase") in OVER
        if over or "nodeName" in spec:
            settled.add((meta.get("namespace", ""), meta["name"]))
        if over or "nodeName" not in spec:
            continue
        use = uses[spec["nodeName"]]
        for add, outcome in (
            (_add_gpus, "every GPU of node {} counts as in use"),
            (_add_cpu, "the CPU that it takes of node {} is not counted"),
            (_add_memory, "the memory that it takes of node {} is not counted"),
        ):
            try:
                add(pod, use, notes)
            except (TypeError, ValueError) as error:
                if add is _add_gpus:
                    use.hidden += _ALL
                notes.append(
                    f"{_who(pod)} asks for resources that make no sense: {error};"
                    f" {outcome.format(spec['nodeName'])}"
                )
    for job in jobs:
        _add_record(job, uses, settled, notes)
    return uses


def _add_cpu(pod: Object, use: Use, _notes: list[str]) -> None:
    use.cpu += _demand(pod["spec"], "requests", "cpu")


def _add_memory(pod: Object, use: Use, _notes: list[str]) -> None:
    use.memory += _demand(pod["spec"], "requests", "memory")


def _add_gpus(pod: Object, use: Use, notes: list[str]) -> None:
    spec, annotations = pod["spec"], pod["metadata"]["annotations"]
    gpus = gpu_count(spec)
    if not gpus:
        return
    # Other schedulers write device ids as well; only ours keep to the devices they were given.
    use.foreign |= FORMAT not in annotations
    # Where only the node is guaranteed, the ids are the plan's, not what the kubelet gave.
    if annotations.get(GUARANTEE, "gpus") != "gpus":
        use.hidden += gpus
        return
    ids: frozenset[int] = frozenset()
    for key in (GPU_GROUP, ACK_ALLOCATION):
        if key in annotations:
            try:
                ids = _device_ids(str(annotations[key]))
                break
            except ValueError as error:
                notes.append(
                    f"{_who(pod)}: annotation {key} makes no sense: {error}; it has {gpus} of the"
                    f" GPUs of node {spec['nodeName']}, nobody knows which"
                )
    if ids:
        use.known.append((_who(pod), gpu_set(ids)))
    use.hidden += max(0, gpus - len(ids))


def _device_ids(text: str) -> frozenset[int]:
    """Read `0,3`, `[0, 3]` or ACK's allocation; ValueError if it is none of them."""
    if re.fullmatch(r"\s*\d{1,3}\s*(,\s*\d{1,3}\s*)*", text):
        return frozenset(int(word) for word in text.split(","))
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is no list of GPU ids") from error
    if isinstance(value, dict):
        by_container = value.get("allocatedGPUs")
        if isinstance(by_container, dict):
            value = [one for ids in by_container.values() for one in ids]
    if not isinstance(value, list) or not all(re.fullmatch(r"\d{1,3}", str(one)) for one in value):
        raise ValueError(f"{text[:80]!r} is no list of GPU ids")
    return frozenset(int(one) for one in value)


def _add_record(
    job: Object, uses: dict[str, Use], settled: set[tuple[str, str]], notes: list[str]
) -> None:
    """Count the placement recorded on a job for those workers whose pods hold nothing yet."""
    meta = job["metadata"]
    annotations = meta["annotations"]
    if (
        annotations.get(STATE) != "placed"
        or MAP not in annotations
        or "deletionTimestamp" in meta
        or job_over(job)
    ):
        return
    who = f"MPIJob {meta.get('namespace', '')}/{meta['name']}"
    template = job["spec"]["template"]
    guarantee = template["metadata"]["annotations"].get(GUARANTEE, "gpus")
    try:
        workers = manifests.parse_map(str(annotations[MAP]))
        each = gpu_count(template["spec"])
    except (TypeError, ValueError) as error:
        notes.append(
            f"{who}: its recorded placement makes no sense: {error}; only its pods are counted"
        )
        return
    for index, node, gpus in workers:
        if (meta.get("namespace", ""), f"{meta['name']}-worker-{index}") in settled:
            continue
        if gpus and guarantee == "gpus":
            uses[node].known.append((who, gpu_set(gpus)))
        else:
            uses[node].hidden += each


def _who(pod: Object) -> str:
    return f"pod {pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
