"""What hwloc says of a machine (`lstopo --of xml`) -> Machine.

hwloc writes the PCIe tree with every bridge in it, and, where it was built with NVML, a matrix of
NVLink bandwidths between GPUs, NVSwitches and POWER's packages (open-mpi/hwloc, hwloc2.dtd and
hwloc/topology-nvml.c).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    NIC,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    Matrix,
    behind_nvswitch,
)
from arena_topo.topology.models import BY_ID, model_of
from arena_topo.topology.nvidia import Reading
from arena_topo.topology.xml import Element

HINT = "write it on the machine itself with: lstopo --of xml FILE, from a hwloc built with NVML"

_LANE = {"P100": 20_000, "B200": 50_000, "GB200": 50_000, "B300": 50_000, "GB300": 50_000}
_USUAL_LANE = 25_000
"""MB/s of one NVLink and direction as hwloc counts them: NVLink 1 has 20 GB/s, 2 to 4 have 25 and 5
has 50 (data sheets)."""

_SELF = 1_000_000
"""What hwloc writes for a device and itself."""

_PCI_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\].*", re.IGNORECASE)
_NVIDIA = "10de"
_DISPLAY = frozenset({"0300", "0302"})
_NETWORK = frozenset({"0200", "0207"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A PCIe device and what the operating system calls it."""

    slot: Element
    kind: str
    vendor: str
    device: str

    @property
    def names(self) -> tuple[Element, ...]:
        return tuple(one for one in self.slot.children if one.get("type") == "OSDev")

    @property
    def nvml(self) -> Element | None:
        """The object that NVML numbers."""
        return next((one for one in self.names if re.fullmatch(r"nvml\d+", one.get("name"))), None)

    def info(self, key: str) -> str | None:
        """What hwloc was told of it under a key."""
        for one in (self.slot, *self.names):
            for info in one.children:
                if info.tag == "info" and info.get("name") == key:
                    return info.get("value") or None
        return None

    @property
    def bridges(self) -> tuple[Element, ...]:
        """The bridges above it, the host bridge first."""
        return tuple(one for one in self.slot.above("object") if one.get("type") == "Bridge")

    @property
    def numa(self) -> int | None:
        """The one NUMA node near it."""
        for one in reversed(self.slot.above("object")):
            # Until hwloc 2, NUMA nodes held what is near them; since then they lie beside it.
            near = [one] if one.get("type") == "NUMANode" else []
            near += [child for child in one.children if child.get("type") == "NUMANode"]
            if near:
                written = near[0].get("os_index")
                alone = len(near) == 1 and re.fullmatch(r"[0-9]{1,4}", written)
                return int(written) if alone else None
        return None

    def path(self, other: _Device) -> Link:
        """The PCIe path between two devices in the words of nvidia-smi.

        A switch is an upstream bridge over downstream bridges; root ports hang on the host bridge.
        """
        if self.slot is other.slot:
            return Link(kind=LinkKind.PIX)
        mine, theirs = self.bridges, other.bridges
        shared = 0
        for one, two in zip(mine, theirs, strict=False):
            if one is not two:
                break
            shared += 1
        if not shared:
            near = self.numa is not None and self.numa == other.numa
            return Link(kind=LinkKind.NODE if near else LinkKind.SYS)
        if shared == 1:
            return Link(kind=LinkKind.PHB)
        single = max(len(mine), len(theirs)) - shared <= 1
        return Link(kind=LinkKind.PIX if single else LinkKind.PXB)


def read(root: Element, *, name: str, model: str | None = None) -> Reading:
    """The machine of a `topology` element; UnreadableTopology names the line and the reason.

    `model` is the GPUs' model or product name, for dumps that do not tell.
    """
    found = [
        _Device(slot=one, kind=said[1], vendor=said[2].lower(), device=said[3].lower())
        for one in root.all("object")
        if one.get("type") == "PCIDev" and (said := _PCI_TYPE.fullmatch(one.get("pci_type")))
    ]
    devices, numbered = _gpus(root, found)
    own = model_of(model)
    gpus = tuple(
        GPU(
            index=index,
            uuid=one.info("NVIDIAUUID"),
            model=own or model_of(one.info("GPUModel")) or BY_ID.get(one.device),
            numa=one.numa,
        )
        for index, one in enumerate(devices)
    )
    links, switched = _links(root, devices, gpus)
    common = gpus[0].model if len({gpu.model for gpu in gpus}) == 1 else None
    unnumbered = (
        f"{devices[0].slot.where}: hwloc was built without NVML: GPUs are numbered in the order of"
        " the bus, and their NVLinks are not in the file"
    )
    machine = Machine(
        name=name,
        gpus=gpus,
        links=links,
        nics=tuple(
            NIC(name=_nic_name(one), attachment=tuple(one.path(gpu) for gpu in devices))
            for one in found
            if one.kind in _NETWORK
        ),
        nvswitch=switched or behind_nvswitch(common, links),
        knowledge=Knowledge.MEASURED if numbered else Knowledge.ASSUMED,
    )
    return Reading(machine=machine, notes=() if numbered else (unnumbered,))


def _gpus(root: Element, found: Sequence[_Device]) -> tuple[list[_Device], bool]:
    """The GPUs by index, and whether it was NVML that numbered them."""
    gpus = [one for one in found if one.vendor == _NVIDIA and one.kind in _DISPLAY]
    if not gpus:
        root.refuse("no NVIDIA GPU in this dump of hwloc", hint=HINT)
    if len(gpus) > MOST_GPUS:
        root.refuse(f"{len(gpus)} GPUs; {MOST_GPUS} are the most that one machine has")
    named = {int(one.nvml.get("name")[4:]): one for one in gpus if one.nvml is not None}
    if not named:
        return sorted(gpus, key=lambda one: one.slot.get("pci_busid").lower()), False
    if sorted(named) != list(range(len(gpus))):
        root.refuse(
            f"{len(gpus)} NVIDIA GPUs, but NVML numbers {', '.join(map(str, sorted(named)))}",
            hint=HINT,
        )
    return [named[index] for index in sorted(named)], True


def _nic_name(one: _Device) -> str:
    """The name of the card's verbs device, else of its interface, else its address."""
    names = sorted(
        (name.get("name") for name in one.names),
        key=lambda name: bool(re.match(r"(?:eth|en|ib)", name)),
    )
    return names[0] if names else one.slot.get("pci_busid")


def _links(root: Element, devices: Sequence[_Device], gpus: Sequence[GPU]) -> tuple[Matrix, bool]:
    """The matrix, and whether some of it runs through an NVSwitch."""
    size = range(len(devices))
    lanes = _lanes(root, devices, gpus)
    # The trunks between switches are not in the file; all switches of a machine are one fabric.
    switch = [lanes.get((index, None), 0) for index in size]

    def link(one: int, other: int) -> Link:
        count = min(lanes.get((one, other), 0), lanes.get((other, one), 0))
        count += min(switch[one], switch[other])
        if count:
            return Link(kind=LinkKind.NVLINK, lanes=count)
        return devices[one].path(devices[other])

    upper = {(i, j): link(i, j) for i in size for j in size if i < j}
    links = tuple(
        tuple(None if i == j else upper[min(i, j), max(i, j)] for j in size) for i in size
    )
    return links, sum(1 for count in switch if count) > 1


def _lanes(
    root: Element, devices: Sequence[_Device], gpus: Sequence[GPU]
) -> Mapping[tuple[int, int | None], int]:
    """NVLinks from one GPU to another, or (None) to all NVSwitches together."""
    found: dict[tuple[int, int | None], int] = {}
    known = _ends(root, devices)
    for matrix in root.all("distances2hetero", "distances2"):
        if matrix.get("name") != "NVLinkBandwidth":
            continue
        heads = _words(matrix, "indexes")
        cells = _words(matrix, "u64values")
        if len(cells) != len(heads) ** 2:
            matrix.refuse(f"{len(heads)} objects, but {len(cells)} bandwidths between them")
        ends = [_end(matrix, head, known) for head in heads]
        for row, one in enumerate(ends):
            if not isinstance(one, int):
                continue
            for column, other in enumerate(ends):
                cell = cells[row * len(heads) + column]
                if row == column or other == "" or cell in {"0", str(_SELF)}:
                    continue
                unit = _LANE.get(gpus[one].model or "", _USUAL_LANE)
                if not re.fullmatch(r"[0-9]{1,9}", cell) or int(cell) % unit:
                    matrix.refuse(f"{cell!r} MB/s is no number of NVLinks of {unit} MB/s each")
                to = other if isinstance(other, int) else None
                found[one, to] = found.get((one, to), 0) + int(cell) // unit
    return found


def _words(matrix: Element, tag: str) -> list[str]:
    return " ".join(one.text for one in matrix.children if one.tag == tag).split()


def _ends(root: Element, devices: Sequence[_Device]) -> Mapping[str, int | str | None]:
    """By number: the index of a GPU, None for an NVSwitch, empty for anything else."""
    known: dict[str, int | str | None] = {
        one.get("gp_index"): None if one.get("subtype") == "NVSwitch" else ""
        for one in root.all("object")
    }
    for index, gpu in enumerate(devices):
        for one in (gpu.slot, *gpu.names):
            known[one.get("gp_index")] = index
    return known


def _end(matrix: Element, head: str, known: Mapping[str, int | str | None]) -> int | str | None:
    """What a name such as `OSDev:802` in the matrix means."""
    number = head.rpartition(":")[2]
    if number not in known:
        matrix.refuse(f"{head} is not in the file")
    return known[number]
