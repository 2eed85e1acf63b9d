"""The node agent: the machine, the health of its GPUs and their allocations -> its ConfigMap.

    NVML, nvidia-smi   the GPUs, the links between them, unhealthy GPUs
    the kubelet        the GPUs that each pod has from a device plugin, and the plugin's offers

GPUs that pods have by a ResourceClaim are not reported: the claim itself names them. Indexes are
those of the complete machine: a GPU that falls off the bus keeps its index and is unhealthy,
also after a restart of the agent. After a reboot without that GPU the driver renumbers the others,
and the agent follows it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from arena_topo.engines import machines
from arena_topo.engines.heartbeat import beat
from arena_topo.engines.kubernetes.topology_report import AgentReport, Object, Reports
from arena_topo.errors import ArenaError, UnreadableTopology, UsageError
from arena_topo.names import is_subdomain
from arena_topo.nodes.health import GpuPoll, GpuWatch
from arena_topo.nodes.kubelet import POD_RESOURCES_SOCKET, PluginDevice, PodDevices, PodResources
from arena_topo.numbers import parse_count
from arena_topo.topology import (
    GPU,
    GPU_RESOURCES,
    GPUSet,
    Machine,
    documents,
    gpu_set,
)

INTERVAL = 15.0
"""The default of the seconds between two looks."""

REPORT_SECONDS = 60.0
"""Seconds until an unchanged report is written again, to show that it is fresh; readers consider it
stale after `published.STALE_REPORT_SECONDS`."""

_FIRST_DELAY, _LAST_DELAY = 1.0, 60.0
"""Seconds until the next round after a failure, doubled each time, and their maximum."""

_BLIND = 3
"""Failed looks in a row after which all GPUs count as unhealthy."""


class Agent:
    """Looks at this machine and updates the ConfigMap of its node.

    `tell` gets a line for each change of the machine or its health, and for each new failure of a
    source. UsageError if `node` is not a valid name of a node.
    """

    def __init__(
        self,
        reports: Reports,
        node: str,
        *,
        tell: Callable[[str], None],
        socket: str = POD_RESOURCES_SOCKET,
    ) -> None:
        if not is_subdomain(node):
            raise UsageError(
                f"{node!r} is not a name that a node can have",
                hint="set NODE_NAME to spec.nodeName by the downward API, or name the node",
            )
        self._reports, self._node, self._tell = reports, node, tell
        self._watch = GpuWatch()
        self._kubelet = PodResources(socket)
        self._begun = False
        self._machine: Machine | None = None
        self._remembered = False
        self._blind = 0
        self._skew = 0.0
        self._troubles: dict[str, str] = {}
        self._reported: tuple[Machine, Mapping[int, str]] | None = None
        self._written: tuple[AgentReport, float] | None = None

    def once(self) -> None:
        """Look once and write the report if it is due; ArenaError if a source fails."""
        if not self._begun:
            recorded = self._reports.read()
            self._machine = None if recorded is None else _remembered(recorded)
            self._remembered, self._begun = self._machine is not None, True
            self._set_clock()
        at = time.time() + self._skew
        poll = self._poll_gpus()
        machine = self._machine_of(poll)
        offered, holders = self._devices_in_use()
        offered_gpus = {_of_plugin(device, machine, poll) for device in offered} - {None}
        why = {gpu.index: ill for gpu in machine.gpus if (ill := _problem(gpu, poll, offered_gpus))}
        report = AgentReport(
            machine=machine,
            healthy=GPUSet(machine.everything & ~gpu_set(why)),
            allocations=None if holders is None else self._allocations(holders, machine, poll),
        )
        self._report_changes(machine, why)
        self._write(report, at)

    def run(self, stop: threading.Event, *, interval: float = INTERVAL) -> None:
        """Look every `interval` seconds until `stop` is set.

        A failure is reported once and tried again later. ArenaError if no GPU was ever seen.
        """
        delay = 0.0
        try:
            while not stop.is_set():
                beat()
                try:
                    self.once()
                except ArenaError as error:
                    if self._begun and self._machine is None:
                        raise
                    self._note("report", _text(error))
                    delay = min(_LAST_DELAY, 2 * delay or _FIRST_DELAY)
                else:
                    self._note("report", None)
                    delay = 0.0
                # Jitter: all agents of a cluster start at the same time.
                stop.wait((delay or interval) * random.uniform(0.8, 1.0))  # noqa: S311  # no secret
        finally:
            self._watch.close()

    def _set_clock(self) -> None:
        if (server_time := self._reports.server_time) is not None:
            self._skew = server_time - time.time()

    # ------------------------------------------------------------ the machine

    def _poll_gpus(self) -> GpuPoll:
        """The GPUs that answer; none after several failed looks."""
        try:
            poll = self._watch.look()
        except ArenaError:
            self._blind += 1
            if self._machine is None or self._blind < _BLIND:
                raise
            return GpuPoll(uuids={})
        self._blind = 0
        return poll

    def _machine_of(self, poll: GpuPoll) -> Machine:
        """The machine of these GPUs."""
        machine = self._machine
        complete = machine is not None and len(poll.uuids) == len(machine.gpus)
        if machine is None or not _fits(machine, poll) or (self._remembered and complete):
            # The machine of the last report lacks the facts that only NVML reports.
            machine = self._machine = machines.publishing(self._node).machine
            self._remembered = False
        return machine

    # ------------------------------------------------------------ the kubelet

    def _devices_in_use(self) -> tuple[tuple[PluginDevice, ...], tuple[PodDevices, ...] | None]:
        """The devices that plugins offer, and the pods that use devices (None: not known)."""
        try:
            answers = self._kubelet.allocatable(), self._kubelet.holders()
        except ArenaError as error:
            self._note("kubelet", _text(error))
            return (), None
        self._note("kubelet", None)
        return answers

    def _allocations(
        self, holders: Iterable[PodDevices], machine: Machine, poll: GpuPoll
    ) -> dict[str, GPUSet]:
        """The GPUs that each pod has from a device plugin."""
        gpus: dict[str, set[int]] = defaultdict(set)
        strange = []
        for pod in holders:
            name = f"{pod.namespace}/{pod.name}"
            for device in pod.devices:
                at = _of_plugin(device, machine, poll)
                if at is not None:
                    gpus[name].add(at)
                elif device.resource in GPU_RESOURCES:
                    strange.append(f"{device.name} of {name}")
        unknown = f"no GPU of this machine is {', '.join(strange)}" if strange else None
        self._note("devices", unknown)
        return {name: gpu_set(gpus[name]) for name in sorted(gpus)}

    # ------------------------------------------------------------ messages and reports

    def _note(self, source: str, trouble: str | None) -> None:
        """Report the failure of a source once, and its recovery (None)."""
        before = self._troubles.pop(source, None)
        if trouble is not None:
            self._troubles[source] = trouble
        if trouble != before:
            self._tell(f"{source}: {trouble or 'recovered'}")

    def _report_changes(self, machine: Machine, why: Mapping[int, str]) -> None:
        """One line for each change; `why` is the problem of each unhealthy GPU."""
        before, known = self._reported or (None, {})
        if before != machine:
            known = {}
            gpus = f"{len(machine.gpus)} x {machine.model or 'GPU'}"
            self._tell(f"node {machine.name}: {gpus}, {len(machine.gpus) - len(why)} healthy")
        for gpu in machine.gpus:
            if why.get(gpu.index) != known.get(gpu.index):
                name = f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "")
                now = f"unhealthy: {why[gpu.index]}" if gpu.index in why else "healthy again"
                self._tell(f"{name} is {now}")
        self._reported = machine, why

    def _write(self, report: AgentReport, at: float) -> None:
        now = time.monotonic()
        if (
            self._written is None
            or self._written[0] != report
            or now - self._written[1] > REPORT_SECONDS
        ):
            self._reports.write(report, at)
            self._set_clock()
            self._written = report, now


def _text(error: ArenaError) -> str:
    return error.message + (f" ({error.why})" if error.why else "")


def _problem(gpu: GPU, poll: GpuPoll, offered: Collection[int | None]) -> str | None:
    """The problem of a GPU, None if healthy; `offered` are the GPUs of its device plugin."""
    if gpu.uuid and gpu.uuid in poll.ill:
        return poll.ill[gpu.uuid]
    if gpu.uuid not in poll.uuids.values() if gpu.uuid else gpu.index not in poll.uuids:
        return "it does not answer"
    # If the plugin offers no GPU at all, it is missing or is starting.
    missing = offered and gpu.index not in offered
    return "its device plugin does not offer it" if missing else None


def _fits(machine: Machine, poll: GpuPoll) -> bool:
    """Whether all GPUs that answer have the same indexes as on this machine."""
    gpus = machine.gpus
    return all(
        index < len(gpus) and gpus[index].uuid in {None, uuid} for index, uuid in poll.uuids.items()
    )


def _remembered(recorded: Object) -> Machine | None:
    """The machine of an earlier report; None if the report cannot be read."""
    try:
        machine, uuids = documents.gpus_from_config_map(recorded).machine, documents.uuids(recorded)
    except UnreadableTopology:
        return None
    if len(uuids) != len(machine.gpus):
        return None
    gpus = tuple(replace(gpu, uuid=uuid) for gpu, uuid in zip(machine.gpus, uuids, strict=True))
    return replace(machine, gpus=gpus)


# ---------------------------------------------------------------- names of devices


def _of_plugin(device: PluginDevice, machine: Machine, poll: GpuPoll) -> int | None:
    """The GPU of a device plugin's device, or the GPU that it is a part of; None for others.

    NVIDIA's plugin names a GPU by its UUID, a share of it by `UUID::3`, and a part by a UUID of its
    own; some plugins use indexes.
    """
    uuid = device.name.partition("::")[0]
    own = poll.parts.get(uuid, uuid)
    index = parse_count(device.name) if device.resource in GPU_RESOURCES else None
    return next((gpu.index for gpu in machine.gpus if gpu.uuid == own or gpu.index == index), None)
