"""The XML in which NCCL describes a machine -> Machine.

NCCL writes what it has found where NCCL_TOPO_DUMP_FILE says (NVIDIA/nccl, src/graph/xml.cc and
topo.cc):

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
from itertools import combinations, takewhile
from typing import NoReturn
from xml.parsers import expat

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    NIC,
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
    """One element, with the line it begins on; `above` are those that hold it, outermost first."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    above: tuple[Element, ...] = ()
    children: list[Element] = field(default_factory=list)

    def get(self, name: str) -> str:
        """An attribute; empty where there is none."""
        return self.attributes.get(name, "").strip()

    def number(self, name: str) -> int | None:
        """An attribute of up to nine digits; None if it is anything else."""
        written = self.get(name)
        return int(written) if re.fullmatch(r"[0-9]{1,9}", written) else None

    def all(self, tag: str) -> Iterator[Element]:
        """All elements below with this tag, in their order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)

    def refuse(self, reason: str) -> NoReturn:
        """Say that this element makes no sense."""
        raise UnreadableTopology(reason, where=f"line {self.line}", hint=HINT)


def parse_xml(text: str) -> Element:
    """The elements of an XML text; UnreadableTopology names the line and the reason.

    Document types are refused: entities are how small files become large.
    """
    # A name for what is text already: what the XML declaration says of bytes is past.
    parser = expat.ParserCreate("UTF-8")
    roots: list[Element] = []
    opened: list[Element] = []

    def refuse(reason: str, line: int) -> NoReturn:
        raise UnreadableTopology(reason, where=f"line {line}", hint=HINT)

    def start(tag: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if len(opened) >= MOST_LEVELS:
            refuse(f"more than {MOST_LEVELS} elements one in another", line)
        one = Element(tag=tag, attributes=attributes, line=line, above=tuple(opened))
        (opened[-1].children if opened else roots).append(one)
        opened.append(one)

    def end(_tag: str) -> None:
        opened.pop()

    def doctype(name: str, *_rest: object) -> None:
        refuse(f"a document type ({name}), which NCCL never writes", parser.CurrentLineNumber)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    if len(text) > MOST_CHARACTERS:
        refuse(f"{len(text):,} characters are too many for the topology of a machine", 1)
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, str(error))
        refuse(f"this is no whole XML: {reason}", error.lineno)
    except ValueError:  # surrogates, which no UTF-8 text has
        refuse("this is no UTF-8 text", 1)
    return roots[0]


def read_xml(text: str, *, name: str, model: str | None = None) -> Reading:
    """The machine that a file of NCCL describes, with notes on what of it is not used.

    `model` is the GPUs' model or product name, for files that do not tell. UnreadableTopology names
    the line and the reason.
    """
    root = parse_xml(text)
    if root.tag != "system":
        root.refuse(f"this is a file of <{root.tag}>, not a topology that NCCL has written")
    for one in root.all("gpu"):
        if one.get("gcn"):
            one.refuse("this is a machine with AMD GPUs; only NVIDIA's are supported")
    devices, notes = _gpus(root), list[str]()
    known = model_of(model)
    gpus = tuple(
        GPU(index=index, model=known or one.model, numa=one.numa)
        for index, one in enumerate(devices)
    )
    links, switched = _links(devices, notes)
    machine = Machine(
        name=name,
        gpus=gpus,
        links=links,
        nics=_nics(root, devices),
        nvswitch=switched or behind_nvswitch(common_model(gpus), links),
        pcie_generation=_generation(devices),
    )
    return Reading(machine=machine, notes=tuple(notes))


# Devices

_Address = tuple[int, ...]
"""Where a device is on the PCI bus: domain, bus, device, function."""

_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


def _address(text: str) -> _Address:
    """A PCI address as numbers; empty if it is none."""
    found = _BUS.fullmatch(text)
    return tuple(int(part or "0", 16) for part in found.groups()) if found else ()


class _Device:
    """A GPU or a port of a network card: its PCIe slot, its NUMA node, the switches above it."""

    def __init__(self, element: Element) -> None:
        self.element = element
        slots = [one for one in element.above[-2:] if one.tag != "nic"]
        self.slot = slots[-1] if slots and slots[-1].tag == "pci" else element
        self.cpu = next((one for one in reversed(self.slot.above) if one.tag == "cpu"), None)
        self.numa = None if self.cpu is None else self.cpu.number("numaid")
        self.switches = [one for one in self.slot.above if one.tag == "pci"]

    @property
    def address(self) -> _Address:
        """Where it is on the PCI bus."""
        found = _address(self.slot.get("busid"))
        if not found:
            written = self.slot.get("busid")
            self.slot.refuse(f"{written!r} is not a PCI address such as 0000:0f:00.0")
        return found

    @property
    def model(self) -> str | None:
        """The model of a GPU, where there is no doubt."""
        device = self.slot.get("device").lower().removeprefix("0x")
        if self.slot.get("vendor").lower() == "0x10de" and device in BY_ID:
            return BY_ID[device]
        linked = any(self.element.all("nvlink"))
        return BY_CAPABILITY.get(self.element.get("sm")) if linked else None

    def path(self, other: _Device) -> Link:
        """The PCIe path between two devices in the words of nvidia-smi.

        Between two host bridges of one NUMA node it is NODE; the files do not tell host bridges
        apart, so paths through one of them (PHB) count as NODE too, which is never too good.
        """
        if self.slot is other.slot:
            return Link(kind=LinkKind.PIX)
        if self.cpu is not other.cpu and (self.numa is None or self.numa != other.numa):
            return Link(kind=LinkKind.SYS)
        pairs = zip(self.switches, other.switches, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        if not shared:
            return Link(kind=LinkKind.NODE)
        crossed = len(self.switches) + len(other.switches) - 2 * shared + 1
        return Link(kind=LinkKind.PIX if crossed == 1 else LinkKind.PXB)


def _gpus(root: Element) -> list[_Device]:
    """The GPUs in the order of their indexes."""
    listed = list(root.all("gpu"))
    if not listed:
        root.refuse("no GPU in this file: NCCL adds them itself when a job runs")
    if len(listed) > MOST_GPUS:
        root.refuse(f"{len(listed)} GPUs; {MOST_GPUS} are the most that one machine has")
    found: dict[int, _Device] = {}
    places: set[_Address] = set()
    for element in listed:
        index, one = element.number("dev"), _Device(element)
        if one.slot is element:
            element.refuse("a GPU outside a PCIe slot")
        if index is None or index >= len(listed):
            element.refuse(f"GPU {element.get('dev')!r} of {len(listed)} is out of range")
        if index in found or one.address in places:
            element.refuse(f"GPU {index}, or its place on the bus, is there twice")
        found[index] = one
        places.add(one.address)
    return [found[index] for index in sorted(found)]


_GENERATIONS = {8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane by PCIe generation (PCI-SIG). What is slower is a link that saves power: newer
NCCL writes the speed of the moment."""


def _generation(devices: Sequence[_Device]) -> int | None:
    """The PCIe generation of the slowest GPU, if each says one."""
    speeds = [re.match(r"[0-9]+(\.[0-9]+)?(?=\s*GT/s)", d.slot.get("link_speed")) for d in devices]
    found = [_GENERATIONS.get(float(one[0])) if one else None for one in speeds]
    known = [one for one in found if one is not None]
    return min(known) if len(known) == len(found) else None


# Links

_SWITCH = "0x0680"
_PROCESSOR = "0x068001"
"""Classes of an NVLink's other end: an NVSwitch is a bridge of no kind, POWER's NPU one of 01."""


def _links(devices: Sequence[_Device], notes: list[str]) -> tuple[Matrix, bool]:
    """The matrix, and whether some of it runs through an NVSwitch.

    A file that leaves out the other end of an NVLink is of some of the GPUs of a machine.
    """
    place = {one.address: index for index, one in enumerate(devices)}
    direct = [Counter[int]() for _ in devices]
    switch = [0] * len(devices)
    for index, one in enumerate(devices):
        for lanes in one.element.all("nvlink"):
            count, kind = lanes.number("count"), lanes.get("tclass").lower()
            target = place.get(_address(lanes.get("target")))
            if not count:
                lanes.refuse(f"{lanes.get('count')!r} is not a number of NVLinks")
            if kind.startswith(_SWITCH) and kind != _PROCESSOR:
                switch[index] += count
            elif target is not None and target != index:
                direct[index][target] += count
            elif kind != _PROCESSOR:
                end = lanes.get("target")
                lanes.refuse(f"the other end of an NVLink, {end!r}, is no other GPU of this file")
    for j, i in combinations(range(len(devices)), 2):
        if direct[i][j] != direct[j][i]:
            notes.append(
                f"line {devices[i].element.line}: GPU {i} says {direct[i][j]} NVLinks to GPU {j},"
                f" which says {direct[j][i]}; the fewer count"
            )
    return linked(direct, switch, lambda one, other: devices[one].path(devices[other]))


_MBPS = 8000
"""Mb/s in a GB/s."""


def _nics(root: Element, gpus: Sequence[_Device]) -> tuple[NIC, ...]:
    """Every port that is named, in the order of their indexes, with its speed."""
    found = []
    nets = sorted(root.all("net"), key=lambda one: (one.number("dev") is None, one.number("dev")))
    for index, one in enumerate(nets):
        speed = one.number("speed")
        attachment = tuple(map(_Device(one).path, gpus))
        name = one.get("name") or f"net{index}"
        found.append(NIC(name=name, attachment=attachment, speed=speed / _MBPS if speed else None))
    return tuple(found)
