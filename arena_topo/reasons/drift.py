"""Drift: the differences between the pods of a job and its recorded placement.

`compare` is pure: it compares the placement with pods, claims, and the devices that kubelets gave
to other pods. `inspect` runs `nvidia-smi -L` in the workers.

The kubelet picks the devices of an ordinary pod, whatever its annotations say. So devices from
kubelets are compared for other pods on our GPUs only, and claims for our own pods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from arena_topo.engines import Backend, Instance, JobStatus, Phase
from arena_topo.errors import ArenaError
from arena_topo.manifests import Guarantee

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.facts import Sightings
    from arena_topo.engines.kubernetes.podexec import Done

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


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of the worker with index `worker`; `planned` and `seen` are words."""

    kind: Kind
    worker: int
    pod: str
    planned: str
    seen: str

    def __str__(self) -> str:
        return _SENTENCES[self.kind].format(pod=self.pod, planned=self.planned, seen=self.seen)


def compare(status: JobStatus, sightings: Sightings | None = None) -> tuple[Difference, ...]:
    """The differences of a job by worker; none for a job that is over or not placed."""
    forecast = status.forecast
    if forecast is None or forecast.state != "placed":
        return ()
    if status.phase not in {Phase.PENDING, Phase.RUNNING}:
        return ()
    workers = {one.worker: one for one in status.instances if one.worker is not None}
    begun = any(one.started is not None for one in workers.values())
    shared = Counter(node for _, node, _ in forecast.workers)
    found: list[Difference] = []
    for index, node, gpus in forecast.workers:
        one, place = workers.get(index), _place(node, gpus)
        kinds: list[_Differs] = []
        # A job without workers is about to end: all pods are cleaned up together.
        if one is None and status.phase is Phase.RUNNING and begun:
            kinds = [(Kind.MISSING, place, "nothing")]
        elif one is not None:
            # One template can only name all GPUs of a node.
            alone = shared[node] == 1 or forecast.binding != "template"
            kinds = [*_of_pod(one, node, gpus, begun=begun, alone=alone)]
            if sightings is not None:
                seen = _of_sightings(status, one, node, gpus, sightings)
                kinds += [(kind, place, words) for kind, words in seen]
        pod = one.name if one is not None else f"{status.name}-worker-{index}"
        found += [
            Difference(kind=kind, worker=index, pod=pod, planned=planned, seen=words)
            for kind, planned, words in kinds
        ]
    return tuple(sorted(found, key=lambda one: (one.worker, one.kind)))


def _place(node: str, gpus: Sequence[int]) -> str:
    return f"GPU {_list(gpus)} of {node}" if gpus else node


def _list(gpus: Sequence[int]) -> str:
    return ",".join(map(str, sorted(gpus)))


_Differs = tuple[Kind, str, str]
"""A kind, the plan, and what is seen, in words."""


def _of_pod(
    one: Instance, node: str, gpus: Sequence[int], *, begun: bool, alone: bool
) -> Iterator[_Differs]:
    """Differences of node, gate and annotation; `alone`: it names only the GPUs of this pod."""
    if one.node and one.node != node:
        yield Kind.NODE, node, one.node
    if one.status == GATED and begun:
        yield Kind.GATED, _place(node, gpus), GATED
    if one.devices is not None and gpus and one.node == node:
        said, planned = set(one.devices), set(gpus)
        if said != planned if alone else not planned <= said:
            yield Kind.GPUS, f"GPU {_list(gpus)}", f"GPU {_list(one.devices)} by its annotation"


def _of_sightings(
    status: JobStatus, one: Instance, node: str, gpus: Sequence[int], sightings: Sightings
) -> Iterator[tuple[Kind, str]]:
    """Other GPUs in the claim of a worker, and other pods that have its GPUs by a kubelet."""
    for given in sightings.claims:
        other = given.node != node or (gpus and set(given.gpus) != set(gpus))
        if given.who == f"{status.namespace}/{one.name}" and other:
            yield Kind.GPUS, f"{_place(given.node, given.gpus)} by its claim"
    mine = {f"{status.namespace}/{pod.name}" for pod in status.instances}
    exact = status.forecast is not None and status.forecast.guarantee == Guarantee.GPUS
    since = one.started if exact else None
    if since is None or sightings.observed_at.get(node, 0.0) <= since:
        return
    for given in sightings.kubelets:
        taken = sorted(set(given.gpus) & set(gpus))
        if given.node == node and given.who not in mine and taken:
            yield Kind.FOREIGN, f"pod {given.who} has {_place(node, taken)}"


@runtime_checkable
class _Seeing(Protocol):
    """An engine that knows the devices of claims and kubelets."""

    def sightings(self, status: JobStatus) -> Sightings: ...


@runtime_checkable
class _Executing(Protocol):
    """An engine that can run a command in a pod."""

    def execute(self, namespace: str, pod: str, command: Sequence[str]) -> Done: ...


def of(backend: Backend, status: JobStatus) -> tuple[Difference, ...]:
    """The differences of a job from its placement."""
    placed = status.forecast is not None and status.forecast.state == "placed"
    looked = placed and status.phase is Phase.RUNNING and status.instances
    if looked and isinstance(backend, _Seeing):
        return compare(status, backend.sightings(status))
    return compare(status)


# ---------------------------------------------------------------- a look into the workers

LIST_GPUS = ("nvidia-smi", "-L")

_GPU = re.compile(r"^GPU (\d+): (.*) \(UUID: (GPU-[0-9a-fA-F-]+)\)$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-\S+)\)$")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as a container sees it, or a MIG slice of a GPU, with the UUID of the slice."""

    index: int
    name: str
    uuid: str


def listed(text: str) -> tuple[Device, ...]:
    """Read `nvidia-smi -L`. A GPU with MIG slices counts as its slices; other lines are ignored.

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


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a worker sees, and those that were planned for it.

    `planned` are GPU indexes of the node and `uuids` their UUIDs, empty if these are not published.
    `instead` are the groups that it may have in their place: those planned for other workers of its
    node, where the scheduler assigns the groups. Inside a container indexes start at 0, so UUIDs
    are compared, or the number of GPUs without UUIDs. `agrees` is None if the worker could not be
    asked; `trouble` is the reason.
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
        """Whether it sees exactly the GPUs that were planned."""
        if self.trouble is not None:
            return None
        if not self.uuids:
            return len(self.seen) == len(self.planned) or not self.planned
        return {one.uuid for one in self.seen} in map(set, (self.uuids, *self.instead))


def inspect(backend: Backend, status: JobStatus) -> tuple[Sight, ...]:
    """Ask every worker of a placed job which GPUs it sees, in order.

    `trouble` has the reason if a worker cannot be asked; no error is raised for a single worker.
    """
    forecast = status.forecast
    if forecast is None or not isinstance(backend, _Executing):
        return ()
    uuids: dict[str, dict[int, str | None]] = {}
    with suppress(ArenaError):
        for known in backend.cluster().nodes:
            uuids[known.name] = {gpu.index: gpu.uuid for gpu in known.machine.gpus}

    def named(node: str, gpus: Sequence[int]) -> tuple[str, ...]:
        """The UUIDs of GPUs of a node, where all of them are published."""
        found = [uuids.get(node, {}).get(gpu) for gpu in gpus]
        return tuple(one for one in found if one is not None) if all(found) else ()

    pods = {one.worker: one for one in status.instances if one.worker is not None}
    sights = []
    for index, node, gpus in forecast.workers:
        one = pods.get(index)
        devices, trouble = _look(backend, status, one)
        others = [plan for _, where, plan in forecast.workers if where == node and plan != gpus]
        if forecast.binding != "claims":
            others = []
        sights.append(
            Sight(
                worker=index,
                pod=one.name if one is not None else f"{status.name}-worker-{index}",
                node=node,
                planned=gpus,
                uuids=named(node, gpus),
                # A claim may get any of the groups that are planned on its node.
                instead=tuple(filter(None, (named(node, plan) for plan in others))),
                seen=devices,
                trouble=trouble,
            )
        )
    return tuple(sights)


def _look(
    backend: _Executing, status: JobStatus, one: Instance | None
) -> tuple[tuple[Device, ...], str | None]:
    """The GPUs that a pod lists, and the reason if it lists none."""
    if one is None or one.started is None or one.finished is not None:
        return (), "it does not run"
    try:
        done = backend.execute(status.namespace, one.name, LIST_GPUS)
    except ArenaError as error:
        return (), error.sentence
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    trouble = ": ".join([f"nvidia-smi ended with {done.code}", *said]) if done.code else None
    return listed(done.stdout.decode("utf-8", "replace")), trouble
