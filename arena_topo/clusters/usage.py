"""Pods, claims and recorded placements -> what is in use of every node: GPUs, CPU, memory.

Pure, as `observed` is, which reads everything else of a cluster. A pod that does not say which GPUs
it has, or says it so that nobody understands, still holds as many as it asked for. Who says which
they are, the surest first: the allocation of its claim; the kubelet, as the node's agent publishes
it; the annotations of the pod.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from arena_topo.clusters.objects import Object, items, of
from arena_topo.clusters.queues import suspended
from arena_topo.clusters.slices import Claimed
from arena_topo.job import Quantity
from arena_topo.manifests import FORECAST, FORMAT, GPU_GROUP, GUARANTEE, MAP, STATE
from arena_topo.manifests.annotations import asked, parse_map
from arena_topo.topology import GPU_RESOURCES, GPUSet, count, gpu_set, published

ACK_ALLOCATION = "gputopology.alibabacloud.com/allocation"
"""JSON of the ACK scheduler: `{"allocatedGPUs": {"0": ["0", "3"]}, ...}`, by container index
(koordinator, pkg/scheduler/plugins/ack/gputopology)."""

_ALL = 1 << 20
"""More GPUs than any machine has: what a pod counts for that holds nobody knows how many."""

_KIBI = 1024.0

_SHORT = 15
"""Digits, with Ki too, that surely stand for less than that."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
"""Where a pod says which nodes it must be on."""

EVICTED = "MPIJobEvicted"
"""Why mpi-operator calls a job failed of which a worker was evicted."""

OVER = ("Succeeded", "Failed")
"""Phases in which a pod or a job holds nothing any more."""


def worker_template(mpijob: Object) -> Object:
    """The pod template of the workers, in any of the three versions; empty where there is none."""
    spec = of(mpijob, "spec")
    if "mpiReplicaSpecs" in spec:
        spec = of(of(spec, "mpiReplicaSpecs"), "Worker")
    return of(spec, "template")


def launcher_command(mpijob: Object) -> str:
    """The words that an MPIJob's launcher is told to run, in any version; empty where it has none.

    With the shell that runs them, if there is one, and without any quotes.
    """
    try:
        spec = of(mpijob, "spec")
        if "mpiReplicaSpecs" in spec:
            spec = of(of(spec, "mpiReplicaSpecs"), "Launcher")
        containers = items(of(of(spec, "template"), "spec"), "containers")
    except TypeError:
        return ""
    lists = [containers[0].get(key) for key in ("command", "args")] if containers else []
    return " ".join(str(word) for one in lists if isinstance(one, list) for word in one)


def worker_replicas(mpijob: Object) -> object:
    """How many workers an MPIJob has, as it says it; None where it does not."""
    spec = of(mpijob, "spec")
    if "mpiReplicaSpecs" in spec:
        spec = of(of(spec, "mpiReplicaSpecs"), "Worker")
    return spec.get("replicas")


def job_over(mpijob: Object) -> bool:
    """Whether the operator says that the job has ended, for good.

    mpi-operator calls a job failed as soon as a worker is evicted, and goes on with it all the
    same: it may be suspended and resumed (pkg/controller/mpi_job_controller.go, `isEvicted`).
    """
    status = of(mpijob, "status")
    return status.get("launcherStatus") in OVER or any(
        condition.get("type") in OVER
        and condition.get("status") == "True"
        and not (condition.get("reason") == EVICTED and not status.get("completionTime"))
        for condition in items(status, "conditions")
    )


def pod_over(pod: Object) -> bool:
    """Whether a pod has ended, and holds nothing any more."""
    return of(pod, "status").get("phase") in OVER


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
    return float(Quantity.parse(text).amount)


@dataclass(slots=True, kw_only=True)
class Use:
    """What pods and recorded placements take of one node, while it is being added up."""

    known: list[tuple[str, GPUSet]] = field(default_factory=list)
    hidden: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """What others than pods say of who has which GPUs.

    `claims` hold GPUs of nodes that DRA drivers serve, which are `served`; `kubelets` have written
    down the GPUs that they gave, by node.
    """

    claims: Claimed = field(default_factory=Claimed)
    served: Collection[str] = ()
    kubelets: Mapping[str, published.Allocations] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """A worker pod that has its node: where, with which GPUs, and whether it is on its way out.

    One that no scheduler has seen yet is only `promised` that place.
    """

    place: tuple[str, str | None] | None = None
    ends: bool = False
    promised: bool = False

    def stands_for(self, node: str, gpus: Iterable[int], *, exact: bool, suspended: bool) -> bool:
        """Whether that worker of its job's record needs nothing beside what this pod holds.

        `exact`: the record holds these very GPUs, not as many.
        """
        if self.place == (node, ",".join(map(str, sorted(gpus)))):
            return True
        # Older records kept it from naming them when it was resumed, which this record does not
        # tell: jobs are looked at as of a write, and pods after it.
        if not exact and not self.ends and self.place in {(node, ""), (node, None)}:
            return True
        if self.ends or suspended:
            return False
        return not self.promised or self.place == (node, None)


_RUNS = _Standing()


def uses_of(
    pods: Iterable[Object], jobs: Iterable[Object], witnesses: Witnesses, notes: list[str]
) -> dict[str, Use]:
    """What these take of every node they are on; `notes` gets what of them is not understood."""
    uses: dict[str, Use] = defaultdict(Use)
    claims = witnesses.claims
    settled = dict.fromkeys(claims.holders, _RUNS)
    for name, gpus in claims.gpus.items():
        uses[name].known.append((f"claims of GPUs of node {name}", gpus))
        uses[name].foreign |= name in claims.foreign
    for pod in pods:
        meta, spec = pod["metadata"], pod["spec"]
        over = pod_over(pod)
        promised = None if over or "nodeName" in spec else _promised(pod)
        node = spec.get("nodeName", promised)
        if over or node is not None:
            group = meta["annotations"].get(GPU_GROUP)
            # Only a hand-written dump has anything but a text there.
            told = None if group is None else str(group)
            settled[meta.get("namespace", ""), meta["name"]] = _Standing(
                place=None if over or node is None else (node, told),
                ends="deletionTimestamp" in meta,
                promised=promised is not None,
            )
        if over or node is None:
            continue
        use = uses[node]
        if promised is not None:
            pod = {**pod, "spec": {**spec, "nodeName": node}}  # noqa: PLW2901  as it will be
        for add, outcome in (
            (_add_gpus, "every GPU of node {} counts as in use"),
            (_add_cpu, "the CPU that it takes of node {} is not counted"),
            (_add_memory, "the memory that it takes of node {} is not counted"),
        ):
            try:
                add(pod, use, witnesses, notes)
            except (TypeError, ValueError) as error:
                if add is _add_gpus:
                    use.hidden += _ALL
                notes.append(
                    f"{_who(pod)} asks for resources that make no sense: {error};"
                    f" {outcome.format(node)}"
                )
    for job in jobs:
        _add_record(job, uses, settled, notes)
    return uses


def _promised(pod: Object) -> str | None:
    """The one node that a worker of ours will get as soon as a scheduler looks at it.

    Nobody can take that back any more: neither the end of its job nor that of its record keeps the
    scheduler from it, until the operator has deleted the pod. None for one that may go to several
    nodes (the workers of a template share their terms): it will be on one of them only, and counted
    on each it would keep GPUs from others that nobody gets. None for one without GPUs to be counted
    as well: two pods never get one claim's, whatever becomes of them.
    """
    spec = pod["spec"]
    affinity = spec.get("affinity")
    if affinity is None:
        return None
    terms = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    nodes = {_only_node(term["matchFields"]) for term in terms}
    found = nodes.pop() if len(nodes) == 1 else None
    try:
        return found if found is not None and gpu_count(spec) else None
    except (TypeError, ValueError):
        # Whatever it asks for: whoever counts it says so.
        return found


def _only_node(fields: Sequence[Object]) -> str | None:
    """The node that a node selector term is about; None if it is not about exactly one."""
    names = [one.get("values") for one in fields if one.get("key") == "metadata.name"]
    operators = {one.get("operator") for one in fields}
    if len(names) != 1 or operators != {"In"} or not isinstance(names[0], list):
        return None
    return str(names[0][0]) if len(names[0]) == 1 else None


def _add_cpu(pod: Object, use: Use, _witnesses: Witnesses, _notes: list[str]) -> None:
    use.cpu += _demand(pod["spec"], "requests", "cpu")


def _add_memory(pod: Object, use: Use, _witnesses: Witnesses, _notes: list[str]) -> None:
    use.memory += _demand(pod["spec"], "requests", "memory")


def _add_gpus(pod: Object, use: Use, witnesses: Witnesses, notes: list[str]) -> None:
    spec, annotations = pod["spec"], pod["metadata"]["annotations"]
    if "resourceClaims" in spec and spec["nodeName"] in witnesses.served:
        _add_unread(pod, use, witnesses.claims, notes)
    gpus = gpu_count(spec)
    if not gpus:
        return
    # The scheduler made a claim of what the pod asks for, and that counts.
    extended = pod["status"].get("extendedResourceClaimStatus")
    if extended is not None and _claim(pod, extended) in witnesses.claims.read:
        return
    # Other schedulers write device ids as well; only ours keep to the devices they were given.
    foreign = FORMAT not in annotations
    use.foreign |= foreign
    # Where only the node is guaranteed, the ids are the plan's, not what the kubelet gave.
    planned = annotations.get(GUARANTEE, "gpus") != "gpus"
    given = _given(pod, witnesses.kubelets) if foreign or planned else None
    if given is not None:
        use.known.append((_who(pod), given))
        use.hidden += max(0, gpus - count(given))
        return
    if planned:
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


def _add_unread(pod: Object, use: Use, claims: Claimed, notes: list[str]) -> None:
    """Count a pod whose claims nobody has read for every GPU: they may be of any."""
    told = {one.get("name"): one for one in items(pod["status"], "resourceClaimStatuses")}
    for one in items(pod["spec"], "resourceClaims"):
        said = told.get(one.get("name"), one)
        key = _claim(pod, said)
        # A template may make no claim, which the status tells by a name that is missing.
        if not key[1] and said is not one:
            continue
        if key not in claims.read:
            use.hidden += _ALL
            name = f"ResourceClaim {key[1]}" if key[1] else "a ResourceClaim"
            notes.append(
                f"{_who(pod)} has devices by {name}, which could not be read; every GPU of node"
                f" {pod['spec']['nodeName']} counts as in use"
            )
            return


def _claim(pod: Object, said: Object) -> tuple[str, str]:
    name = said.get("resourceClaimName")
    return pod["metadata"].get("namespace", ""), name if isinstance(name, str) else ""


def _given(pod: Object, kubelets: Mapping[str, published.Allocations]) -> GPUSet | None:
    """The GPUs that the kubelet gave a pod; None where nobody has looked since it started."""
    kubelet = kubelets.get(pod["spec"]["nodeName"])
    if kubelet is None:
        return None
    meta = pod["metadata"]
    given = kubelet.gpus.get(f"{meta.get('namespace', '')}/{meta['name']}")
    started = published.moment(pod["status"].get("startTime"))
    # Another pod may have had this name before.
    fresh = started is not None and kubelet.observed_at > started
    return given if fresh else None


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
    job: Object,
    uses: dict[str, Use],
    settled: Mapping[tuple[str, str], _Standing],
    notes: list[str],
) -> None:
    """Count the placement recorded on a job for those workers whose pods hold nothing yet.

    A pod that ends, one that is only promised its node, or one of a job that is suspended, may be
    of an earlier placement: then both hold their GPUs.

    It holds no more than the job asks for, whatever is written in it.
    """
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
    try:
        workers = parse_map(str(annotations[MAP]))
        replicas, each = _asked_for(job)
    except (TypeError, ValueError) as error:
        notes.append(
            f"{who}: its recorded placement makes no sense: {error}; only its pods are counted"
        )
        return
    if replicas is not None and len(workers) > replicas:
        notes.append(
            f"{who}: its recorded placement is of {len(workers)} workers, but it has {replicas};"
            " the others do not count"
        )
        workers = workers[:replicas]
    greedy = [index for index, _, gpus in workers if len(gpus) > each]
    if greedy:
        notes.append(
            f"{who}: its recorded placement gives worker {greedy[0]}"
            f" {len(workers[greedy[0]][2])} GPUs, but it asks for {each}; the others do not count"
        )
    exact = _guarantee(job) == "gpus"
    for index, node, gpus in workers:
        pod = settled.get((meta.get("namespace", ""), f"{meta['name']}-worker-{index}"))
        if pod is not None and pod.stands_for(node, gpus, exact=exact, suspended=suspended(job)):
            continue
        if exact and gpus:
            uses[node].known.append((who, gpu_set(gpus[:each])))
        else:
            uses[node].hidden += each


def _asked_for(job: Object) -> tuple[int | None, int]:
    """How many workers a job has, where it says so, and how many GPUs each of their pods asks for.

    Pods that claim their GPUs have no limits to say so; there it is what the job asked the solver
    for, which several workers in one pod share.
    """
    spec = job["spec"]["template"]["spec"]
    if not items(spec, "containers"):
        # Its operator makes no pods of it, and nobody withdraws its record (`queue.queued`).
        raise ValueError("its workers have no containers")
    workers, each = job["spec"].get("replicas"), gpu_count(spec)
    if not isinstance(workers, int) or workers < 0:
        workers = None
    if (workers is None or not each) and (said := asked(job)):
        wanted = _number(said.get("workers", 1))
        workers = wanted if workers is None else workers
        if workers and not each:
            each = -(-wanted * _number(said.get("gpus", 0)) // workers)
    return workers, each


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of workers or GPUs")
    return value


def _guarantee(job: Object) -> str:
    """What is guaranteed of a recorded placement; a job that has not started says it itself."""
    said = job["spec"]["template"]["metadata"]["annotations"].get(GUARANTEE)
    if said is None:
        with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
            said = json.loads(job["metadata"]["annotations"][FORECAST]).get("guarantee")
    return said if isinstance(said, str) else "gpus"


def _who(pod: Object) -> str:
    return f"pod {pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
