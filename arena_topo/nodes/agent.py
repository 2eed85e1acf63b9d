"""The node agent: what this machine is, how its GPUs are and who holds them -> its ConfigMap.

    NVML, nvidia-smi   which GPUs there are, how they are linked, which are ill
    the kubelet        which GPUs it has given to whom, which its device plugin can still give
    ResourceSlices     which GPU a claimed device is, where the kubelet knows only its name

Indexes are those of the machine when it was first seen whole: a GPU that falls off the bus keeps
its place and is unhealthy there, also after the agent has restarted. Once the driver counts anew
(after a reboot without it), so does the agent.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from arena_topo.clusters import records, slices
from arena_topo.engines import machines
from arena_topo.engines.heartbeat import beat
from arena_topo.engines.kubernetes.publishing import Object, Report, Reports
from arena_topo.errors import ArenaError, UnreadableTopology, UsageError
from arena_topo.names import is_subdomain
from arena_topo.nodes.health import Sight, Watch
from arena_topo.nodes.kubelet import SOCKET, Device, Holder, PodResources
from arena_topo.numbers import whole
from arena_topo.topology import (
    GPU_RESOURCES,
    GPUSet,
    Machine,
    count,
    documents,
    gpu_set,
    members,
)

INTERVAL = 15.0
"""Seconds between two looks, unless the command line says otherwise."""

REFRESH = 60.0
"""Seconds after which a report is written again though nothing has changed, to show that it is
fresh; readers take it for stale after `published.STALE`."""

_TICK = 1.0
"""Seconds between two questions whether a GPU has reported an error."""

_FIRST_DELAY, _LAST_DELAY = 1.0, 60.0
"""Seconds until the next round after one that failed, doubled each time."""

_BLIND = 3
"""Looks in a row that may fail before all GPUs count as unhealthy."""

_SLICES_EVERY = 300.0
"""Seconds between two readings of ResourceSlices for a name that nobody knows."""


class Agent:
    """Looks at this machine and keeps the ConfigMap of its node.

    `say` hears one line for each change, and one for each new trouble. UsageError if no node can be
    called so.
    """

    def __init__(
        self,
        reports: Reports,
        node: str,
        *,
        say: Callable[[str], None],
        socket: str = SOCKET,
        watch: Watch | None = None,
    ) -> None:
        if not is_subdomain(node):
            raise UsageError(
                f"{node!r} is not a name that a node can have",
                hint="set NODE_NAME to spec.nodeName by the downward API, or say --node",
            )
        self._reports, self._say = reports, say
        self._watch = Watch() if watch is None else watch
        self._troubles = _Troubles(say)
        self._eyes = _Eyes(node, self._watch)
        self._kubelet = PodResources(socket)
        self._names = _Claimable(reports)
        self._skew = 0.0
        self._told: Report | None = None
        self._why: Mapping[int, str] = {}
        self._written: tuple[Report, float] | None = None

    def once(self) -> None:
        """One look, and what has to be written after it; ArenaError for what failed."""
        if not self._eyes.begun:
            self._eyes.begin(self._reports.read())
            self._set_clock()
        at = time.time() + self._skew
        sight, machine = self._eyes.look()
        offered, holders = self._asked()
        why = dict(self._eyes.why)
        there = {_of_plugin(one, machine, sight) for one in offered or ()} - {None}
        # Without any there is no plugin, or it has just been started again.
        for gpu in machine.gpus if there else ():
            if gpu.index not in there:
                why.setdefault(gpu.index, "its device plugin does not offer it")
        report = Report(
            machine=machine,
            healthy=GPUSet(machine.everything & ~gpu_set(why)),
            allocations=None if holders is None else self._allocations(holders, machine, sight),
        )
        self._tell(report, why)
        self._write(report, at)

    def run(self, stop: threading.Event, *, interval: float = INTERVAL) -> None:
        """Look every so many seconds, and when a GPU reports an error, until `stop` is set.

        What fails is said once, and tried again after a while; but ArenaError if this machine shows
        no GPUs to begin with.
        """
        delay = 0.0
        try:
            while not stop.is_set():
                beat()
                try:
                    self.once()
                except ArenaError as error:
                    if self._eyes.hopeless:
                        raise
                    self._troubles.note("report", _text(error))
                    delay = min(_LAST_DELAY, 2 * delay or _FIRST_DELAY)
                else:
                    self._troubles.note("report", None)
                    delay = 0.0
                # All agents of a cluster start at one time and must not stay in step.
                pause = (delay or interval) * random.uniform(0.8, 1.0)  # noqa: S311  # no secret
                self._pause(pause, stop)
        finally:
            self._watch.close()

    def _pause(self, seconds: float, stop: threading.Event) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if stop.wait(min(_TICK, left)) or self._watch.stirred():
                return

    def _set_clock(self) -> None:
        if (told := self._reports.server_time) is not None:
            self._skew = told - time.time()

    # ------------------------------------------------------------ what the kubelet says

    def _asked(self) -> tuple[tuple[Device, ...] | None, tuple[Holder, ...] | None]:
        """The devices that plugins can give and those that pods hold; None where nobody tells."""
        try:
            answers = self._kubelet.allocatable(), self._kubelet.holders()
        except ArenaError as error:
            self._troubles.note("kubelet", _text(error))
            return None, None
        self._troubles.note("kubelet", None)
        return answers

    def _allocations(
        self, holders: Iterable[Holder], machine: Machine, sight: Sight
    ) -> dict[str, GPUSet]:
        """The GPUs that each pod holds, its claims included."""
        found: dict[str, set[int]] = defaultdict(set)
        strange = []
        for pod in holders:
            name = f"{pod.namespace}/{pod.name}"
            for device in pod.devices:
                at = _of_plugin(device, machine, sight)
                if at is None and device.pool:
                    at = _of_uuid(self._names.uuid(device), machine, sight)
                if at is not None:
                    found[name].add(at)
                elif device.resource in {*GPU_RESOURCES, *self._names.drivers}:
                    strange.append(f"{device.name} of {name}")
        self._troubles.note("claims", self._names.trouble)
        self._troubles.note(
            "devices", f"no GPU of this machine is {', '.join(strange)}" if strange else None
        )
        return {name: gpu_set(found[name]) for name in sorted(found)}

    # ------------------------------------------------------------ what is said and written

    def _tell(self, report: Report, why: Mapping[int, str]) -> None:
        """One line for each change."""
        before = self._told
        machine, gpus = report.machine, report.machine.gpus
        if before is None or before.machine != machine:
            healthy = count(report.healthy)
            self._say(
                f"node {machine.name}: {len(gpus)} x {machine.model or 'GPU'}, {healthy} healthy"
            )
        known = self._why if before is not None and before.machine == machine else {}
        for gpu in gpus:
            if why.get(gpu.index) != known.get(gpu.index):
                name = f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.uuid else "")
                now = f"unhealthy: {why[gpu.index]}" if gpu.index in why else "healthy again"
                self._say(f"{name} is {now}")
        had = (before.allocations if before else None) or {}
        have = report.allocations or {}
        for pod in sorted({*had, *have}):
            if had.get(pod) != have.get(pod):
                held = ",".join(map(str, members(have[pod]))) if pod in have else "no GPU any more"
                self._say(f"{pod} holds {'GPU ' if pod in have else ''}{held}")
        self._told, self._why = report, why

    def _write(self, report: Report, at: float) -> None:
        now = time.monotonic()
        if self._written is None or self._written[0] != report or now - self._written[1] > REFRESH:
            self._reports.write(report, at)
            self._set_clock()
            self._written = report, now


class _Troubles:
    """Says each trouble once, by its source, and when it is over."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: dict[str, str] = {}

    def note(self, source: str, trouble: str | None) -> None:
        """What is wrong with a source now; None for nothing."""
        before = self._said.pop(source, None)
        if trouble is not None:
            self._said[source] = trouble
            if trouble != before:
                self._say(f"{source}: {trouble}")
        elif before is not None:
            self._say(f"{source}: recovered")


def _text(error: ArenaError) -> str:
    return error.message + (f" ({error.why})" if error.why else "")


class _Eyes:
    """The machine, and which of its GPUs answer. `why` says of the others what is wrong."""

    def __init__(self, node: str, watch: Watch) -> None:
        self._node, self._watch = node, watch
        self._machine: Machine | None = None
        self._remembered = False
        self._blind = 0
        self.begun = False
        self.why: dict[int, str] = {}

    @property
    def hopeless(self) -> bool:
        """Whether there is no machine, neither here nor written down."""
        return self.begun and self._machine is None

    def begin(self, recorded: Object | None) -> None:
        """Remember the machine that an earlier agent has written down, if it has."""
        self.begun = True
        if recorded is not None:
            self._machine = _remembered(recorded)
            self._remembered = self._machine is not None

    def look(self) -> tuple[Sight, Machine]:
        """What is seen, and the machine that it is seen on."""
        sight = self._sight()
        known = self._machine
        complete = known is not None and len(sight.uuids) == len(known.gpus)
        if known is None or not _fits(known, sight) or (self._remembered and complete):
            # Only NVML says all of it, so what was remembered is not kept for longer than it must.
            known = self._machine = machines.publishing(self._node).machine
            self._remembered = False
        there = set(sight.uuids.values())
        self.why = {
            gpu.index: "it does not answer"
            for gpu in known.gpus
            if (gpu.uuid not in there if gpu.uuid else gpu.index not in sight.uuids)
        }
        self.why |= {
            gpu.index: sight.ill[gpu.uuid]
            for gpu in known.gpus
            if gpu.uuid and gpu.uuid in sight.ill
        }
        return sight, known

    def _sight(self) -> Sight:
        try:
            sight = self._watch.look()
        except ArenaError:
            self._blind += 1
            if self._machine is None or self._blind < _BLIND:
                raise
            return Sight(uuids={})
        self._blind = 0
        return sight


def _fits(machine: Machine, sight: Sight) -> bool:
    """Whether all GPUs that answer are where they are on this machine."""
    gpus = machine.gpus
    return all(
        index < len(gpus) and gpus[index].uuid in {None, uuid}
        for index, uuid in sight.uuids.items()
    )


def _remembered(recorded: Object) -> Machine | None:
    """The machine that a report was about; None if that cannot be told any more."""
    try:
        machine, uuids = documents.from_config_map(recorded).machine, documents.uuids(recorded)
    except UnreadableTopology:
        return None
    if len(uuids) != len(machine.gpus):
        return None
    gpus = tuple(replace(gpu, uuid=uuid) for gpu, uuid in zip(machine.gpus, uuids, strict=True))
    return replace(machine, gpus=gpus)


# ---------------------------------------------------------------- names of devices


def _of_plugin(device: Device, machine: Machine, sight: Sight) -> int | None:
    """The GPU that is, or contains, what a device plugin calls so; None for other devices.

    NVIDIA's plugin knows a GPU by its UUID, a share of it as `UUID::3`, and a part by a UUID of its
    own; some plugins count.
    """
    at = _of_uuid(device.name.partition("::")[0], machine, sight)
    if at is None and device.resource in GPU_RESOURCES:
        counted = whole(device.name)
        return counted if counted is not None and counted < len(machine.gpus) else None
    return at


def _of_uuid(uuid: str | None, machine: Machine, sight: Sight) -> int | None:
    if uuid is None:
        return None
    own = sight.parts.get(uuid, uuid)
    return next((gpu.index for gpu in machine.gpus if gpu.uuid == own), None)


class _Claimable:
    """The UUIDs of what DRA drivers publish of this node, read when a name is not known."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._uuids: dict[records.Device, str] = {}
        self._read = -math.inf
        self.trouble: str | None = None
        """Why nobody could tell, when it was asked last."""

    @property
    def drivers(self) -> set[str]:
        """The drivers that publish GPUs of this node, as far as that was looked up."""
        return {driver for driver, _pool, _name in self._uuids}

    def uuid(self, device: Device) -> str | None:
        """The UUID of the GPU that is, or contains, the device; None for others."""
        name = (device.resource, device.pool, device.name)
        if name not in self._uuids and self._due():
            try:
                self._uuids, self.trouble = dict(self._published()), None
            except ArenaError as error:
                self.trouble = _text(error)
        return self._uuids.get(name)

    def _due(self) -> bool:
        now = time.monotonic()
        due = now - self._read > _SLICES_EVERY
        self._read = now if due else self._read
        return due

    def _published(self) -> Iterator[tuple[records.Device, str]]:
        found = slices.devices(self._reports.slices(), {}, {}, [])
        for device, (node, gpus) in found.places.items():
            for at in members(gpus):
                uuid = found.nodes[node].machine.gpus[at].uuid
                if uuid:
                    yield device, uuid
