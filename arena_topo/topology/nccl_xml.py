"""The XML in which NCCL describes a machine -> Machine.

NCCL writes what it has found where NCCL_TOPO_DUMP_FILE says, and reads what clouds have written
from NCCL_TOPO_FILE (NVIDIA/nccl, src/graph/xml.cc and topo.cc):

    system > cpu numaid            a NUMA node
             > pci busid           a PCIe switch, as many as there are one in another, or a device
               > gpu dev sm        a GPU, `dev` being the index that nvidia-smi gives it
                 > nvlink target count tclass      lanes to another GPU or to an NVSwitch
               > nic > net name speed              a port of a network card, Mb/s

XML is read without document types, within limits of size and depth, and refused with a line and a
reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NoReturn
from xml.parsers import expat

from arena_topo.errors import UnreadableTopology
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
    common_model,
)
from arena_topo.topology.models import BY_CAPABILITY, BY_ID, model_of
from arena_topo.topology.nvidia import Reading, linked

MOST_CHARACTERS = 1_000_000
"""NCCL's largest files have some 15,000; anything near this is another file."""

MOST_LEVELS = 64
"""Elements one in another; a PCIe tree of NCCL has about ten."""

HINT = "dump one: run a job on all GPUs of the machine with NCCL_TOPO_DUMP_FILE=FILE"


@dataclass(slots=True, kw_only=True)
class Element:
    """One element, with the line it begins on."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    above: tuple[Element, ...] = ()
    """The elements that hold this one, outermost first."""
    children: list[Element] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The place as a person looks it up."""
        return f"line {self.line}"

    def get(self, name: str) -> str:
        """An attribute; empty where there is none."""
        return self.attributes.get(name, "").strip()

    def number(self, name: str) -> int | None:
        """An attribute of up to four digits; None if it is anything else."""
        written = self.get(name)
        return int(written) if re.fullmatch(r"[0-9]{1,4}", written) else None

    def all(self, *tags: str) -> Iterator[Element]:
        """All elements below with one of these tags, in their order."""
        for child in self.children:
            if child.tag in tags:
                yield child
            yield from child.all(*tags)

    def refuse(self, reason: str, *, hint: str | None = None) -> NoReturn:
        """Say that this element makes no sense."""
        raise UnreadableTopology(reason, where=self.where, hint=hint)


def parse_xml(text: str) -> Element:
    """The elements of an XML text; UnreadableTopology names the line and the reason.

    Document types are refused: entities are how small files become large.
    """
    if len(text) > MOST_CHARACTERS:
        raise UnreadableTopology(
            f"{len(text):,} characters are too many for the topology of a machine", where="line 1"
        )
    # A name for what is text already: what the XML declaration says of bytes is past.
    parser = expat.ParserCreate("UTF-8")
    roots: list[Element] = []
    opened: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        line, above = parser.CurrentLineNumber, tuple(opened)
        one = Element(tag=tag, attributes=attributes, line=line, above=above)
        if len(opened) >= MOST_LEVELS:
            one.refuse(f"more than {MOST_LEVELS} elements one in another")
        (opened[-1].children if opened else roots).append(one)
        opened.append(one)

    def end(_tag: str) -> None:
        opened.pop()

    def doctype(name: str, *_rest: object) -> None:
        what = _KNOWN.get(name, f"this has the document type {name}")
        where = f"line {parser.CurrentLineNumber}"
        raise UnreadableTopology(f"{what}, {_UNLIKE}", where=where, hint=HINT)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, str(error))
        if opened:
            reason += f", inside <{opened[-1].tag}> of {opened[-1].where}"
        raise UnreadableTopology(
            f"this is no whole XML: {reason}", where=f"line {error.lineno}"
        ) from error
    except ValueError as error:  # surrogates, which no UTF-8 text has
        raise UnreadableTopology("this is no UTF-8 text", where="line 1") from error
    return roots[0]


def read_xml(text: str, *, name: str, model: str | None = None) -> Reading:
    """The machine that a file of NCCL describes, with notes on what of it is not used.

    `model` is the GPUs' model or product name, for files that do not tell. UnreadableTopology names
    the line and the reason, and says what the file is if it is a known one without a topology.
    """
    root = parse_xml(text)
    if root.tag != "system":
        what = _KNOWN.get(root.tag, f"this is a file of <{root.tag}>")
        root.refuse(f"{what}, {_UNLIKE}", hint=HINT)
    return _Topology(root).machine(name, model)


_UNLIKE = "not a topology that NCCL has written"

_KNOWN = {
    "graphs": "this is an NCCL graph: the rings and trees that NCCL chose",
    "nvidia_smi_log": "this is the output of nvidia-smi -q -x, which does not tell the links",
    "topology": "this is a dump of hwloc",
}

_GENERATIONS = {8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane by PCIe generation (PCI-SIG). What is slower is a link that saves power: newer
NCCL writes the speed of the moment."""

_DISPLAY = ("0x0300", "0x0302")
_NETWORK = ("0x0200", "0x0207")
_ACCELERATOR = "0x1200"
"""Beginnings of PCI classes: VGA and 3D controllers; Ethernet and InfiniBand; AMD's GPUs."""

_SWITCH = "0x0680"
_PROCESSOR = "0x068001"
"""Classes of an NVLink's other end: an NVSwitch is a bridge of no kind, POWER's NPU one of 01."""

_TO_CPU = "a CPU is the other end"

_MBPS = 8000.0
"""Mb/s in a GB/s."""

_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A GPU or a port, its PCIe slot, its NUMA node and the switches above it, outermost first."""

    element: Element
    slot: Element
    cpu: Element | None
    numa: int | None
    switches: tuple[Element, ...]

    @classmethod
    def of(cls, element: Element, slot: Element) -> _Device:
        """The device that an element tells of, in its slot."""
        cpu = next((one for one in reversed(slot.above) if one.tag == "cpu"), None)
        return cls(
            element=element,
            slot=slot,
            cpu=cpu,
            numa=None if cpu is None else cpu.number("numaid"),
            switches=tuple(one for one in slot.above if one.tag == "pci"),
        )

    @property
    def nvlinks(self) -> tuple[Element, ...]:
        """What the file says of its NVLinks; nothing where NCCL is to add the GPU itself."""
        return tuple(self.element.all("nvlink")) if self.element.tag == "gpu" else ()

    def path(self, other: _Device) -> Link:
        """The PCIe path between two devices in the words of nvidia-smi.

        Between two host bridges of one NUMA node it is NODE; the files do not tell host bridges
        apart, so paths through one of them (PHB) count as NODE too, which is never too good.
        """
        if self.slot is other.slot:
            return Link(kind=LinkKind.PIX)
        if self.cpu is not other.cpu and (self.numa is None or self.numa != other.numa):
            return Link(kind=LinkKind.SYS)
        shared = 0
        for one, two in zip(self.switches, other.switches, strict=False):
            if one is not two:
                break
            shared += 1
        if not shared:
            return Link(kind=LinkKind.NODE)
        crossed = len(self.switches) + len(other.switches) - 2 * shared + 1
        return Link(kind=LinkKind.PIX if crossed == 1 else LinkKind.PXB)


class _Topology:
    """One file of NCCL under examination."""

    def __init__(self, root: Element) -> None:
        self.root = root
        self.notes: list[str] = []
        self.lost = False

    def machine(self, name: str, model: str | None) -> Reading:
        self.check_kind()
        devices = self.devices()
        own = model_of(model)
        gpus = tuple(
            GPU(index=index, model=own or self.model(one), numa=one.numa)
            for index, one in enumerate(devices)
        )
        links, switched = self.links(devices)
        told = not self.lost and all(one.element.tag == "gpu" for one in devices)
        found = Machine(
            name=name,
            gpus=gpus,
            links=links,
            nics=self.nics(devices),
            nvswitch=switched or behind_nvswitch(common_model(gpus), links),
            # A file without GPUs is written by hand for NCCL to complete; its speeds are wishes.
            pcie_generation=self.generation(devices) if told else None,
            knowledge=Knowledge.MEASURED if told else Knowledge.ASSUMED,
        )
        return Reading(machine=found, notes=tuple(self.notes))

    def check_kind(self) -> None:
        """Refuse machines of AMD, and several machines in one file."""
        for one in self.root.all("xgmi", "gpu", "pci"):
            foreign = one.tag == "xgmi" or one.get("gcn")
            if foreign or one.get("class").startswith(_ACCELERATOR):
                one.refuse("this is a machine with AMD GPUs; only NVIDIA's are supported")
        hosts = {one.get("host_hash") for one in self.root.all("cpu")} - {""}
        if len(hosts) > 1:
            self.root.refuse(
                f"{len(hosts)} machines in one file", hint="dump each machine from a job of its own"
            )

    # Which GPUs there are.

    def devices(self) -> tuple[_Device, ...]:
        """The GPUs in the order of their indexes."""
        said = list(self.root.all("gpu"))
        found = self.numbered(said) if said else self.by_bus()
        if not found:
            self.root.refuse(
                "no GPU in this file: NCCL adds them itself when a job runs, so they may be left"
                " out",
                hint=HINT,
            )
        if len(found) > MOST_GPUS:
            self.root.refuse(f"{len(found)} GPUs; {MOST_GPUS} are the most that one machine has")
        seen: dict[tuple[int, ...], _Device] = {}
        for one in found:
            other = seen.setdefault(self.bus(one.slot), one)
            if other is not one:
                one.element.refuse(f"{one.slot.get('busid')} is on {other.slot.where} already")
        return tuple(found)

    def numbered(self, said: Sequence[Element]) -> list[_Device]:
        indexes: dict[int, _Device] = {}
        for one in said:
            slot, index = one.above[-1], one.number("dev")
            if slot.tag != "pci":
                one.refuse("a GPU outside a PCIe slot")
            if index is None:
                one.refuse(f"{one.get('dev')!r} is not the index of a GPU")
            if index >= len(said):
                one.refuse(
                    f"GPU {index} of {len(said)} is out of range",
                    hint="only the GPUs of one job may be in the file: " + HINT,
                )
            if index in indexes:
                one.refuse(f"GPU {index} is there twice")
            indexes[index] = _Device.of(one, slot)
        return [indexes[index] for index in sorted(indexes)]

    def by_bus(self) -> list[_Device]:
        """GPUs that are only known by their PCI class, in the order in which they are numbered."""
        slots = [one for one in self.root.all("pci") if one.get("class").startswith(_DISPLAY)]
        if slots:
            self.notes.append(
                f"{slots[0].where}: the file gives GPUs no indexes and no NVLinks (NCCL adds them"
                " when a job runs): numbered in the order of the bus, PCIe paths only"
            )
        return [_Device.of(one, one) for one in sorted(slots, key=self.bus)]

    @staticmethod
    def bus(slot: Element) -> tuple[int, ...]:
        """A PCI address as numbers: domain, bus, device, function."""
        found = _address(slot.get("busid"))
        if not found:
            slot.refuse(f"{slot.get('busid')!r} is not a PCI address such as 0000:0f:00.0")
        return found

    @staticmethod
    def model(one: _Device) -> str | None:
        device = one.slot.get("device").lower().removeprefix("0x")
        if one.slot.get("vendor").lower() == "0x10de" and device in BY_ID:
            return BY_ID[device]
        return BY_CAPABILITY.get(one.element.get("sm")) if one.nvlinks else None

    @staticmethod
    def generation(devices: Sequence[_Device]) -> int | None:
        """The PCIe generation of the slowest GPU, if each says one."""
        found = set()
        for one in devices:
            speed = re.match(r"([0-9]+(?:\.[0-9]+)?)\s*GT/s", one.slot.get("link_speed"))
            found.add(_GENERATIONS.get(float(speed[1])) if speed else None)
        known = {one for one in found if one is not None}
        return min(known) if len(known) == len(found) else None

    # How they are linked.

    def links(self, devices: Sequence[_Device]) -> tuple[Matrix, bool]:
        """The matrix, and whether some of it runs through an NVSwitch."""
        place = {self.bus(one.slot): index for index, one in enumerate(devices)}
        direct = [Counter[int]() for _ in devices]
        switch = [0] * len(devices)
        odd: dict[str, list[int]] = {}
        for index, one in enumerate(devices):
            for lanes in one.nvlinks:
                count = self.lanes(lanes)
                target = self.target(lanes, place)
                if target is None:
                    switch[index] += count
                elif isinstance(target, str):
                    odd.setdefault(target, []).append(lanes.line)
                elif target == index:
                    odd.setdefault("a GPU names itself as the other end", []).append(lanes.line)
                else:
                    direct[index][target] += count
        self.lost = any(what != _TO_CPU for what in odd)
        for what, lines in odd.items():
            more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
            self.notes.append(f"line {lines[0]}{more}: {what} of an NVLink, which is not used")
        for j, i in combinations(range(len(devices)), 2):
            if direct[i][j] != direct[j][i]:
                self.notes.append(
                    f"{devices[i].element.where}: GPU {i} says {direct[i][j]} NVLinks to GPU"
                    f" {j}, which says {direct[j][i]}; the fewer count"
                )
        return linked(direct, switch, lambda one, other: devices[one].path(devices[other]))

    @staticmethod
    def lanes(one: Element) -> int:
        count = one.number("count")
        if not count:
            one.refuse(f"{one.get('count')!r} is not a number of NVLinks")
        return count

    @staticmethod
    def target(one: Element, place: Mapping[tuple[int, ...], int]) -> int | str | None:
        """The GPU at the other end, None for an NVSwitch, or in words what else it is."""
        kind = one.get("tclass").lower()
        if kind.startswith(_SWITCH) and kind != _PROCESSOR:
            return None
        if kind == _PROCESSOR:
            return _TO_CPU
        address = _address(one.get("target"))
        if address not in place:
            return f"{one.get('target') or 'nothing'}, which is not in the file, is the other end"
        return place[address]

    # Network cards.

    def nics(self, devices: Sequence[_Device]) -> tuple[NIC, ...]:
        """Every port that is named, with its speed; else every network card, by its address."""
        nets = sorted(self.root.all("net"), key=_order)
        if nets:
            return tuple(
                NIC(
                    name=one.get("name") or f"net{index}",
                    attachment=_attachment(one, _slot_of(one), devices),
                    speed=_speed(one),
                )
                for index, one in enumerate(nets)
            )
        cards = [one for one in self.root.all("pci") if one.get("class").startswith(_NETWORK)]
        return tuple(
            NIC(name=one.get("busid"), attachment=_attachment(one, one, devices))
            for one in sorted(cards, key=self.bus)
        )


def _attachment(net: Element, slot: Element, gpus: Sequence[_Device]) -> tuple[Link, ...]:
    port = _Device.of(net, slot)
    return tuple(map(port.path, gpus))


def _address(text: str) -> tuple[int, ...]:
    """A PCI address as numbers; empty if it is none."""
    found = _BUS.fullmatch(text)
    return tuple(int(part or "0", 16) for part in found.groups()) if found else ()


def _order(net: Element) -> tuple[bool, int]:
    """Ports in the order of their index, those without one last."""
    index = net.number("dev")
    return index is None, index or 0


def _slot_of(net: Element) -> Element:
    """What a port hangs on: its PCIe slot, or itself where it is no PCIe device."""
    above = [one for one in net.above[-2:] if one.tag != "nic"]
    return above[-1] if above and above[-1].tag == "pci" else net


def _speed(net: Element) -> float | None:
    written = net.get("speed")
    return int(written) / _MBPS if re.fullmatch(r"[1-9][0-9]{0,8}", written) else None
