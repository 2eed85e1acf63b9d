"""Where what runs differs from what was planned.

`compare` is pure: the placement recorded on a job against its pods, its claims, and what kubelets
have given to others. `inspect` looks into the workers themselves, with `nvidia-smi -L`.

The kubelet decides which devices an ordinary pod gets, whatever its annotations say, so what
kubelets say counts for pods of others on our GPUs only; of our own pods, claims do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from arena_topo.engines import Backend, Instance, JobStatus, Phase
from arena_topo.errors import ArenaError
from arena_topo.manifests import Guarantee

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.facts import Given, Sightings
    from arena_topo.engines.kubernetes.podexec import Done
    from arena_topo.topology import Cluster

GATED = "SchedulingGated"


class Kind(StrEnum):
    """What differs."""

    NODE = "OtherNode"
    GPUS = "OtherGPUs"
    GATED = "StillGated"
    MISSING = "WorkerMissing"
    FOREIGN = "ForeignPod"


_SENTENCES = {
    Kind.NODE: "{pod} runs on {seen}, planned was {planned}",
    Kind.GPUS: "{pod} has {seen}, planned was {planned}",
    Kind.GATED: "{pod} was made again and waits at its gate for {planned}",
    Kind.MISSING: "{pod} is missing, planned on {planned}",
    Kind.FOREIGN: "{seen}, planned for {pod}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as planned; `worker` is its index, `planned` and `seen` are words."""

    kind: Kind
    worker: int
    pod: str
    planned: str
    seen: str

    def __str__(self) -> str:
        return _SENTENCES[self.kind].format(pod=self.pod, planned=self.planned, seen=self.seen)


def compare(status: JobStatus, sightings: Sightings | None = None) -> tuple[Difference, ...]:
    """What of a job is not as planned, by worker; nothing for one without a placement that runs."""
    forecast = status.forecast
    if forecast is None or forecast.state != "placed" or not forecast.workers:
        return ()
    if status.phase not in {Phase.PENDING, Phase.RUNNING}:
        return ()
    mine = {_who(status, one) for one in status.instances}
    workers = {one.worker: one for one in status.instances if one.worker is not None}
    begun = any(one.started is not None for one in workers.values())
    shared = Counter(node for _, node, _ in forecast.workers)
    found: list[Difference] = []
    for index, node, gpus in forecast.workers:
        one = workers.get(index)
        # One template can only name all GPUs of a node.
        alone = shared[node] == 1 or forecast.binding != "template"
        kinds = [*_of_pod(one, node, gpus, begun=begun, alone=alone)] if one is not None else []
        # Without any worker the job is about to end: they are cleaned up together.
        if one is None and status.phase is Phase.RUNNING and begun:
            kinds = [(Kind.MISSING, _place(node, gpus), "nothing")]
        if sightings is not None and one is not None:
            claims = [given for given in sightings.claims if given.who == _who(status, one)]
            kinds += _of_claims(claims, node, gpus)
        if sightings is not None and forecast.guarantee == Guarantee.GPUS:
            started = one.started if one is not None else None
            kinds += _of_others(sightings, mine, started, node, gpus)
        pod = one.name if one is not None else f"{status.name}-worker-{index}"
        found += [
            Difference(kind=kind, worker=index, pod=pod, planned=planned, seen=seen)
            for kind, planned, seen in kinds
        ]
    return tuple(sorted(found, key=lambda one: (one.worker, one.kind)))


def _who(status: JobStatus, one: Instance) -> str:
    return f"{status.namespace}/{one.name}"


def _place(node: str, gpus: Sequence[int]) -> str:
    return f"GPU {_list(gpus)} of {node}" if gpus else node


def _list(gpus: Sequence[int]) -> str:
    return ",".join(map(str, sorted(gpus)))


_Differs = tuple[Kind, str, str]
"""A kind, what was planned, and what is seen."""


def _of_pod(
    one: Instance, node: str, gpus: Sequence[int], *, begun: bool, alone: bool
) -> Iterator[_Differs]:
    """Where a pod is, and what its own annotation says; `alone`: that is only of its own GPUs."""
    if one.node and one.node != node:
        yield Kind.NODE, node, one.node
    if one.status == GATED and begun:
        yield Kind.GATED, _place(node, gpus), GATED
    if one.devices is not None and gpus and one.node == node:
        said, planned = set(one.devices), set(gpus)
        if said != planned if alone else not planned <= said:
            seen = f"GPU {_list(one.devices)} by its annotation"
            yield Kind.GPUS, f"GPU {_list(gpus)}", seen


def _of_claims(claims: Iterable[Given], node: str, gpus: Sequence[int]) -> Iterator[_Differs]:
    """A worker whose claim holds other GPUs than were planned for it."""
    for given in claims:
        if given.node != node or (gpus and set(given.gpus) != set(gpus)):
            yield Kind.GPUS, _place(node, gpus), f"{_place(given.node, given.gpus)} by its claim"


def _of_others(
    sightings: Sightings, mine: set[str], started: float | None, node: str, gpus: Sequence[int]
) -> Iterator[_Differs]:
    """Pods of others that kubelets have given GPUs of a worker, since it runs there."""
    if started is None or sightings.observed_at.get(node, 0.0) <= started:
        return
    for given in sightings.kubelets:
        taken = sorted(set(given.gpus) & set(gpus))
        if given.node == node and given.who not in mine and taken:
            yield Kind.FOREIGN, _place(node, gpus), f"pod {given.who} has {_place(node, taken)}"


@runtime_checkable
class _Seeing(Protocol):
    """An engine that can say what claims and kubelets hold."""

    def sightings(self, status: JobStatus) -> Sightings: ...


@runtime_checkable
class _Executing(Protocol):
    """An engine that can run a command in a pod."""

    def execute(self, namespace: str, pod: str, command: Sequence[str]) -> Done: ...


def of(backend: Backend, status: JobStatus) -> tuple[Difference, ...]:
    """What of a job that runs is not as planned."""
    forecast = status.forecast
    runs = status.phase in {Phase.PENDING, Phase.RUNNING} and bool(status.instances)
    if forecast is None or forecast.state != "placed" or not runs:
        return ()
    if status.phase is Phase.RUNNING and isinstance(backend, _Seeing):
        return compare(status, backend.sightings(status))
    return compare(status, None)


# ---------------------------------------------------------------- a look into the workers

LIST_GPUS = ("nvidia-smi", "-L")

_GPU = re.compile(r"^GPU (\d+): (.*) \(UUID: (GPU-[0-9a-fA-F-]+)\)$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-\S+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as a container sees it, or a slice of one: then `uuid` is the slice's."""

    index: int
    name: str
    uuid: str


def listed(text: str) -> tuple[Device, ...]:
    """Read `nvidia-smi -L`. A GPU that is cut up counts as its slices; other lines do not count.

    The format is NVIDIA's: `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)`, and below it
    `  MIG 1g.10gb     Device  0: (UUID: MIG-...)`.
    """
    found: list[Device] = []
    whole: Device | None = None
    for line in text.splitlines():
        if gpu := _GPU.match(line.rstrip()):
            whole = Device(index=int(gpu[1]), name=gpu[2], uuid=gpu[3])
            found.append(whole)
        elif mig := _MIG.match(line.rstrip()):
            if whole is not None and whole in found:
                found.remove(whole)
            found.append(Device(index=int(mig[2]), name=f"MIG {mig[1]}", uuid=mig[3]))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one worker sees of the GPUs of its node, and what it should.

    `planned` are GPU indexes of the node and `uuids` theirs, empty where nobody published them.
    `instead` are the groups that it may have in their place: those planned for its neighbours,
    where the scheduler decides which of them gets which. Inside a container indexes start at 0
    again, so only UUIDs can be compared; without them the count is. `agrees` is None where nothing
    could be looked at; `trouble` says why.
    """

    worker: int
    pod: str
    node: str
    planned: tuple[int, ...]
    uuids: tuple[str, ...]
    instead: tuple[tuple[str, ...], ...] = ()
    seen: tuple[Device, ...] = ()
    trouble: str | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether it sees the GPUs that were planned, and no other."""
        if self.trouble is not None:
            return None
        if not self.uuids:
            return len(self.seen) == len(self.planned) or not self.planned
        return {one.uuid for one in self.seen} in map(set, (self.uuids, *self.instead))


def inspect(backend: Backend, status: JobStatus) -> tuple[Sight, ...]:
    """Ask every worker of a placed job which GPUs it sees, in order.

    What cannot be asked is told in `trouble`; nothing is raised for a single worker.
    """
    forecast = status.forecast
    if forecast is None or not isinstance(backend, _Executing):
        return ()
    try:
        cluster = backend.cluster()
    except ArenaError:
        cluster = None
    pods = {one.worker: one for one in status.instances if one.worker is not None}
    return tuple(
        _sight(backend, status, pods.get(index), (index, node, gpus), cluster)
        for index, node, gpus in forecast.workers
    )


def _sight(
    backend: _Executing,
    status: JobStatus,
    one: Instance | None,
    plan: tuple[int, str, tuple[int, ...]],
    cluster: Cluster | None,
) -> Sight:
    index, node, gpus = plan
    trouble, devices = None, tuple[Device, ...]()
    if one is None or one.started is None or one.finished is not None:
        trouble = "it does not run"
    else:
        try:
            done = backend.execute(status.namespace, one.name, LIST_GPUS)
        except ArenaError as error:
            trouble = error.message if error.why is None else f"{error.message}: {error.why}"
        else:
            devices = listed(done.stdout.decode("utf-8", "replace"))
            if done.code:
                said = done.stderr.decode("utf-8", "replace").strip().splitlines()
                trouble = f"nvidia-smi ended with {done.code}" + (f": {said[-1]}" if said else "")
    return Sight(
        worker=index,
        pod=one.name if one is not None else f"{status.name}-worker-{index}",
        node=node,
        planned=gpus,
        uuids=_uuids(cluster, node, gpus),
        instead=tuple(_instead(cluster, status, node, gpus)),
        seen=devices,
        trouble=trouble,
    )


def _instead(
    cluster: Cluster | None, status: JobStatus, node: str, gpus: tuple[int, ...]
) -> Iterator[tuple[str, ...]]:
    """The UUIDs of the other groups of a node, where claims give out any of them."""
    forecast = status.forecast
    if forecast is None or forecast.binding != "claims":
        return
    for _, where, others in forecast.workers:
        if where == node and others != gpus and (uuids := _uuids(cluster, where, others)):
            yield uuids


def _uuids(cluster: Cluster | None, node: str, gpus: Sequence[int]) -> tuple[str, ...]:
    """The UUIDs of GPUs of a node, where all of them are published."""
    for one in cluster.nodes if cluster is not None else ():
        if one.name == node:
            known = {gpu.index: gpu.uuid for gpu in one.machine.gpus if gpu.uuid}
            return tuple(known[gpu] for gpu in gpus) if set(gpus) <= known.keys() else ()
    return ()
