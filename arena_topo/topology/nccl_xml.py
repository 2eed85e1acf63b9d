"""Reader of the XML in which NCCL describes a machine -> Machine.

NCCL writes it to the file in NCCL_TOPO_DUMP_FILE (NVIDIA/nccl, src/graph/xml.cc and topo.cc):

    system > cpu numaid            a NUMA node
               > pci busid           a PCIe switch, nested as on the bus, or a device
                   > gpu dev sm        a GPU, `dev` being the index that nvidia-smi gives it
                       > nvlink target count tclass      lanes to another GPU or to an NVSwitch
                   > nic > net name speed              a port of a network card, Mb/s

XML is read without document types, within limits of size and depth, and refused with a line and a
reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, takewhile
from typing import TYPE_CHECKING, NoReturn
from xml.parsers import expat

from arena_topo.errors import UnreadableTopology
from arena_topo.notes import Notes
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
from arena_topo.topology.nvidia import Reading, nvlink_matrix

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_XML_CHARACTERS = 1_000_000
"""The limit of characters: NCCL's largest files have some 15,000, so more is another file."""

MAX_XML_DEPTH = 64
"""The limit of nesting; a PCIe tree of NCCL has about ten levels."""

DUMP_HINT = "dump one: run a job on all GPUs of the machine with NCCL_TOPO_DUMP_FILE=FILE"

_LINE = " line"
"""The attribute with the line number of an element; no XML attribute has a blank in its name."""


def parse_xml(text: str) -> Element:
    """The elements of an XML text; UnreadableTopology names the line and the reason.

    Document types are refused: entities can expand a small file to a huge one.
    """
    from xml.etree.ElementTree import TreeBuilder  # noqa: PLC0415  many commands load this module

    if len(text) > MAX_XML_CHARACTERS:
        _refuse(f"{len(text):,} characters are too many for the topology of a machine", 1)
    # An encoding for a text that is decoded already, whatever its XML declaration says.
    parser, tree, depth = expat.ParserCreate("UTF-8"), TreeBuilder(), Counter[str]()

    def start(tag: str, attributes: dict[str, str]) -> None:
        depth["open"] += 1
        if depth["open"] > MAX_XML_DEPTH:
            _refuse(f"more than {MAX_XML_DEPTH} elements one in another", parser.CurrentLineNumber)
        tree.start(tag, attributes | {_LINE: str(parser.CurrentLineNumber)})

    def end(tag: str) -> None:
        depth["open"] -= 1
        tree.end(tag)

    def doctype(name: str, *_rest: object) -> None:
        _refuse(f"a document type ({name}), which NCCL never writes", parser.CurrentLineNumber)

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        reason = expat.errors.messages.get(error.code, str(error))
        _refuse(f"this is no whole XML: {reason}", error.lineno)
    except ValueError:  # surrogates, which no UTF-8 text has
        _refuse("this is no UTF-8 text", 1)
    return tree.close()


def read_xml(text: str, *, name: str, model: str | None = None) -> Reading:
    """The machine in a file of NCCL, with notes on its unused parts.

    `model` is the GPUs' model or product name, for files without it. UnreadableTopology names the
    line and the reason.
    """
    root = parse_xml(text)
    if root.tag != "system":
        _refuse(f"this is a file of <{root.tag}>, not a topology that NCCL has written", root)
    for gpu in root.iter("gpu"):
        if gpu.get("gcn"):
            _refuse("this is a machine with AMD GPUs; only NVIDIA's are supported", gpu)
    parents = {child: parent for parent in root.iter() for child in parent}
    devices, notes = _gpus(root, parents), Notes()
    known = model_of(model)
    gpus = tuple(
        GPU(index=index, model=known or device.model, numa=device.numa)
        for index, device in enumerate(devices)
    )
    links, switched = _links(devices, notes)
    machine = Machine(
        name=name,
        gpus=gpus,
        links=links,
        nics=_nics(root, parents, devices),
        nvswitch=switched or behind_nvswitch(common_model(gpus), links),
        pcie_generation=_generation(devices),
    )
    return Reading(machine=machine, notes=tuple(notes))


def _refuse(reason: str, where: Element | int) -> NoReturn:
    line = where if isinstance(where, int) else where.get(_LINE)
    raise UnreadableTopology(reason, where=f"line {line}", hint=DUMP_HINT)


def _number(element: Element, name: str) -> int | None:
    """An attribute of up to nine digits as a number; else None."""
    written = element.get(name, "").strip()
    return int(written) if re.fullmatch(r"[0-9]{1,9}", written) else None


# Devices

_Address = tuple[int, ...]
"""A PCI address: domain, bus, device, function."""

_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


def _address(text: str) -> _Address:
    """A PCI address as numbers; empty for an invalid one."""
    match = _BUS.fullmatch(text.strip())
    return tuple(int(part or "0", 16) for part in match.groups()) if match else ()


class _Device:
    """A GPU or a port of a network card: its PCIe slot, its NUMA node, the switches above it."""

    def __init__(self, element: Element, parents: Mapping[Element, Element]) -> None:
        self.element = self.slot = element
        above: list[Element] = []
        parent = element
        while parent in parents:
            parent = parents[parent]
            above.append(parent)
        if above and above[0].tag == "nic":
            del above[0]
        if above and above[0].tag == "pci":
            self.slot = above.pop(0)
        self.cpu = next((parent for parent in above if parent.tag == "cpu"), None)
        self.numa = None if self.cpu is None else _number(self.cpu, "numaid")
        self.switches = [parent for parent in reversed(above) if parent.tag == "pci"]

    @property
    def address(self) -> _Address:
        """The address on the PCI bus."""
        written = self.slot.get("busid", "")
        address = _address(written)
        if not address:
            _refuse(f"{written!r} is not a PCI address such as 0000:0f:00.0", self.slot)
        return address

    @property
    def model(self) -> str | None:
        """The model of a GPU, if it is certain."""
        device = self.slot.get("device", "").lower().removeprefix("0x")
        if self.slot.get("vendor", "").lower() == "0x10de" and device in BY_ID:
            return BY_ID[device]
        nvlink_matrix = self.element.find(".//nvlink") is not None
        return BY_CAPABILITY.get(self.element.get("sm", "")) if nvlink_matrix else None

    def path(self, other: _Device) -> Link:
        """The PCIe path between two devices in the words of nvidia-smi.

        Between two host bridges of one NUMA node it is NODE; the files do not distinguish host
        bridges, so paths through one of them (PHB) count as NODE too, which never overstates the
        path.
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


def _gpus(root: Element, parents: Mapping[Element, Element]) -> list[_Device]:
    """The GPUs in the order of their indexes."""
    listed = list(root.iter("gpu"))
    if not listed:
        _refuse("no GPU in this file: NCCL adds them itself when a job runs", root)
    if len(listed) > MOST_GPUS:
        _refuse(f"{len(listed)} GPUs; {MOST_GPUS} are the most that one machine has", root)
    devices: dict[int, _Device] = {}
    places: set[_Address] = set()
    for element in listed:
        index, device = _number(element, "dev"), _Device(element, parents)
        if device.slot is element:
            _refuse("a GPU outside a PCIe slot", element)
        if index is None or index >= len(listed):
            _refuse(f"GPU {element.get('dev', '')!r} of {len(listed)} is out of range", element)
        if index in devices or device.address in places:
            _refuse(f"GPU {index}, or its place on the bus, occurs twice", element)
        devices[index] = device
        places.add(device.address)
    return [devices[index] for index in sorted(devices)]


_GENERATIONS = {8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s of a lane by PCIe generation (PCI-SIG). A lower speed is a link in power saving: newer NCCL
writes the current speed."""


def _generation(devices: Sequence[_Device]) -> int | None:
    """The PCIe generation of the slowest GPU, if all report one."""
    speeds = [
        re.match(r"[0-9]+(\.[0-9]+)?(?=\s*GT/s)", gpu.slot.get("link_speed", "")) for gpu in devices
    ]
    known = [_GENERATIONS.get(float(speed[0]), 0) if speed else 0 for speed in speeds]
    return min(known) or None


# Links

_SWITCH = "0x0680"
_PROCESSOR = "0x068001"
"""Classes of an NVLink's other end: an NVSwitch is a bridge without a subclass, POWER's NPU has
01."""


def _links(devices: Sequence[_Device], notes: Notes) -> tuple[Matrix, bool]:
    """The matrix, and whether some links run through an NVSwitch.

    A file without the other end of an NVLink describes only some of the GPUs of a machine.
    """
    place = {device.address: index for index, device in enumerate(devices)}
    direct = [Counter[int]() for _ in devices]
    switch = [0] * len(devices)
    for index, device in enumerate(devices):
        for lanes in device.element.iter("nvlink"):
            count, kind = _number(lanes, "count"), lanes.get("tclass", "").strip().lower()
            end = lanes.get("target", "").strip()
            target = place.get(_address(end))
            if not count:
                _refuse(f"{lanes.get('count', '')!r} is not a number of NVLinks", lanes)
            if kind.startswith(_SWITCH) and kind != _PROCESSOR:
                switch[index] += count
            elif target is not None and target != index:
                direct[index][target] += count
            elif kind != _PROCESSOR:
                _refuse(f"the other end of an NVLink, {end!r}, is no other GPU of this file", lanes)
    for j, i in combinations(range(len(devices)), 2):
        if direct[i][j] != direct[j][i]:
            notes.add(
                f"GPU {i} and {j}",
                "unequal counts",
                f"line {devices[i].element.get(_LINE)}: GPU {i} says {direct[i][j]} NVLinks to GPU"
                f" {j}, which says {direct[j][i]}; the fewer count",
            )
    return nvlink_matrix(direct, switch, lambda gpu, peer: devices[gpu].path(devices[peer]))


_MBPS = 8000
"""The factor from GB/s to Mb/s."""


def _nics(
    root: Element, parents: Mapping[Element, Element], gpus: Sequence[_Device]
) -> tuple[NIC, ...]:
    """Every port, in the order of indexes, with its speed."""
    nics = []
    nets = sorted(root.iter("net"), key=lambda net: _number(net, "dev") or 0)
    for index, net in enumerate(nets):
        speed = _number(net, "speed")
        attachment = tuple(map(_Device(net, parents).path, gpus))
        name = net.get("name", "").strip() or f"net{index}"
        nics.append(NIC(name=name, attachment=attachment, speed=speed / _MBPS if speed else None))
    return tuple(nics)
