"""Drift: the differences between the pods of a job and its recorded placement.

`compare_sightings` is pure: it compares the placement with pods, claims, and the devices that
kubelets gave to other pods. `ask_workers` runs `nvidia-smi -L` in the workers.

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

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError
from arena_topo.manifests import Guarantee

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.facts import Sightings
    from arena_topo.engines.kubernetes.podexec import Done

GATED = "SchedulingGated"


class DifferenceKind(StrEnum):
    """What differs."""

    NODE = "OtherNode"
    GPUS = "OtherGPUs"
    GATED = "StillGated"
    MISSING = "WorkerMissing"
    FOREIGN = "ForeignPod"


_SENTENCES = {
    DifferenceKind.NODE: "{pod} runs on {seen}, planned was {planned}",
    DifferenceKind.GPUS: "{pod} has {seen}, planned was {planned}",
    DifferenceKind.GATED: "{pod} was made again and waits at its gate for {planned}",
    DifferenceKind.MISSING: "{pod} is missing, planned on {planned}",
    DifferenceKind.FOREIGN: "{seen}, planned for {pod}",
}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference of the worker with index `worker`; `planned` and `seen` are words."""

    kind: DifferenceKind
    worker: int
    pod: str
    planned: str
    seen: str

    def __str__(self) -> str:
        return _SENTENCES[self.kind].format(pod=self.pod, planned=self.planned, seen=self.seen)


def compare_sightings(
    status: JobStatus, sightings: Sightings | None = None
) -> tuple[Difference, ...]:
    """The differences of a job by worker; none for a job that is over or not placed."""
    forecast = status.forecast
    if forecast is None or forecast.state != "placed":
        return ()
    if status.phase not in {Phase.PENDING, Phase.RUNNING}:
        return ()
    workers = {
        instance.worker: instance for instance in status.instances if instance.worker is not None
    }
    begun = any(worker.started is not None for worker in workers.values())
    shared = Counter(node for _, node, _ in forecast.workers)
    differences: list[Difference] = []
    for index, node, gpus in forecast.workers:
        instance, place = workers.get(index), _place(node, gpus)
        kinds: list[_Differs] = []
        # A job without workers is about to end: all pods are cleaned up together.
        if instance is None and status.phase is Phase.RUNNING and begun:
            kinds = [(DifferenceKind.MISSING, place, "nothing")]
        elif instance is not None:
            # One template can only name all GPUs of a node.
            alone = shared[node] == 1 or forecast.binding != "template"
            kinds = [*_of_pod(instance, node, gpus, begun=begun, alone=alone)]
            if sightings is not None:
                seen = _of_sightings(status, instance, node, gpus, sightings)
                kinds += [(kind, place, words) for kind, words in seen]
        pod = instance.name if instance is not None else f"{status.name}-worker-{index}"
        differences += [
            Difference(kind=kind, worker=index, pod=pod, planned=planned, seen=words)
            for kind, planned, words in kinds
        ]
    return tuple(sorted(differences, key=lambda difference: (difference.worker, difference.kind)))


def _place(node: str, gpus: Sequence[int]) -> str:
    return f"GPU {_list(gpus)} of {node}" if gpus else node


def _list(gpus: Sequence[int]) -> str:
    return ",".join(map(str, sorted(gpus)))


_Differs = tuple[DifferenceKind, str, str]
"""A kind, the plan, and what is seen, in words."""


def _of_pod(
    instance: Instance, node: str, gpus: Sequence[int], *, begun: bool, alone: bool
) -> Iterator[_Differs]:
    """Differences of node, gate and annotation; `alone`: it names only the GPUs of this pod."""
    if instance.node and instance.node != node:
        yield DifferenceKind.NODE, node, instance.node
    if instance.status == GATED and begun:
        yield DifferenceKind.GATED, _place(node, gpus), GATED
    if instance.devices is not None and gpus and instance.node == node:
        annotated, planned = set(instance.devices), set(gpus)
        if annotated != planned if alone else not planned <= annotated:
            yield (
                DifferenceKind.GPUS,
                f"GPU {_list(gpus)}",
                f"GPU {_list(instance.devices)} by its annotation",
            )


def _of_sightings(
    status: JobStatus, instance: Instance, node: str, gpus: Sequence[int], sightings: Sightings
) -> Iterator[tuple[DifferenceKind, str]]:
    """Other GPUs in the claim of a worker, and other pods that have its GPUs by a kubelet."""
    for given in sightings.claims:
        other = given.node != node or (gpus and set(given.gpus) != set(gpus))
        if given.who == f"{status.namespace}/{instance.name}" and other:
            yield DifferenceKind.GPUS, f"{_place(given.node, given.gpus)} by its claim"
    mine = {f"{status.namespace}/{pod.name}" for pod in status.instances}
    exact = status.forecast is not None and status.forecast.guarantee == Guarantee.GPUS
    since = instance.started if exact else None
    if since is None or sightings.observed_at.get(node, 0.0) <= since:
        return
    for given in sightings.kubelets:
        taken = sorted(set(given.gpus) & set(gpus))
        if given.node == node and given.who not in mine and taken:
            yield DifferenceKind.FOREIGN, f"pod {given.who} has {_place(node, taken)}"


@runtime_checkable
class _Seeing(Protocol):
    """An engine that knows the devices of claims and kubelets."""

    def sightings(self, status: JobStatus) -> Sightings: ...


@runtime_checkable
class _Executing(Protocol):
    """An engine that can run a command in a pod."""

    def execute(self, namespace: str, pod: str, command: Sequence[str]) -> Done: ...


def drift_of(backend: Backend, status: JobStatus) -> tuple[Difference, ...]:
    """The differences of a job from its placement."""
    placed = status.forecast is not None and status.forecast.state == "placed"
    looked = placed and status.phase is Phase.RUNNING and status.instances
    if looked and isinstance(backend, _Seeing):
        return compare_sightings(status, backend.sightings(status))
    return compare_sightings(status)


# ---------------------------------------------------------------- a look into the workers

LIST_GPUS = ("nvidia-smi", "-L")

_GPU = re.compile(r"^GPU (\d+): (.*) \(UUID: (GPU-[0-9a-fA-F-]+)\)$")
_MIG = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-\S+)\)$")


class SeenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as a container sees it, or a MIG slice of a GPU, with the UUID of the slice."""

    index: int
    name: str
    uuid: str


def parse_smi_list(text: str) -> tuple[SeenDevice, ...]:
    """Read `nvidia-smi -L`. A GPU with MIG slices counts as its slices; other lines are ignored.

    The format is NVIDIA's: `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)`, and below it
    `  MIG 1g.10gb     Device  0: (UUID: MIG-...)`.
    """
    devices: list[SeenDevice] = []
    whole: SeenDevice | None = None
    for line in text.splitlines():
        if gpu := _GPU.match(line.rstrip()):
            whole = SeenDevice(index=int(gpu[1]), name=gpu[2], uuid=gpu[3])
            devices.append(whole)
        elif mig := _MIG.match(line.rstrip()):
            if whole is not None and whole in devices:
                devices.remove(whole)
            devices.append(SeenDevice(index=int(mig[2]), name=f"MIG {mig[1]}", uuid=mig[3]))
    return tuple(devices)


class WorkerGpus(msgspec.Struct, frozen=True, kw_only=True):
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
    seen: tuple[SeenDevice, ...] = ()
    trouble: str | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether it sees exactly the GPUs that were planned."""
        if self.trouble is not None:
            return None
        if not self.uuids:
            return len(self.seen) == len(self.planned) or not self.planned
        return {device.uuid for device in self.seen} in map(set, (self.uuids, *self.instead))


def ask_workers(backend: Backend, status: JobStatus) -> tuple[WorkerGpus, ...]:
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
        known_uuids = [uuids.get(node, {}).get(gpu) for gpu in gpus]
        return tuple(uuid for uuid in known_uuids if uuid is not None) if all(known_uuids) else ()

    pods = {
        instance.worker: instance for instance in status.instances if instance.worker is not None
    }
    workers = []
    for index, node, gpus in forecast.workers:
        instance = pods.get(index)
        devices, trouble = _look(backend, status, instance)
        others = [plan for _, where, plan in forecast.workers if where == node and plan != gpus]
        if forecast.binding != "claims":
            others = []
        workers.append(
            WorkerGpus(
                worker=index,
                pod=instance.name if instance is not None else f"{status.name}-worker-{index}",
                node=node,
                planned=gpus,
                uuids=named(node, gpus),
                # A claim may get any of the groups that are planned on its node.
                instead=tuple(filter(None, (named(node, plan) for plan in others))),
                seen=devices,
                trouble=trouble,
            )
        )
    return tuple(workers)


def _look(
    backend: _Executing, status: JobStatus, instance: Instance | None
) -> tuple[tuple[SeenDevice, ...], str | None]:
    """The GPUs that a pod lists, and the reason if it lists none."""
    if instance is None or instance.started is None or instance.finished is not None:
        return (), "it does not run"
    try:
        done = backend.execute(status.namespace, instance.name, LIST_GPUS)
    except ArenaError as error:
        return (), error.sentence
    last_line = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    trouble = ": ".join([f"nvidia-smi ended with {done.code}", *last_line]) if done.code else None
    return parse_smi_list(done.stdout.decode("utf-8", "replace")), trouble
