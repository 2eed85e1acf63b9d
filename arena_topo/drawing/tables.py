"""A machine as a table, as the matrix of nvidia-smi, and as a value for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arena_topo.layout import NOTHING, Style, Styled, align, go_bool, table
from arena_topo.topology import published

if TYPE_CHECKING:
    from arena_topo.topology import Machine

EMULATED = "EMULATED: these GPUs do not exist; processes run on this machine in their place"


def emulated_note() -> str:
    """The note on emulated machines as a line of a screen, its first word marked."""
    word, rest = EMULATED.split(" ", 1)
    return f"{Styled(word, Style.WARNING)} {rest}"


def machines_table(known: Iterable[tuple[str, Machine]], *, heading: str = "NAME") -> str:
    """One line for each machine: its GPUs, the links between them, and its NICs."""
    rows = [
        (
            name,
            str(len(machine.gpus)),
            machine.model or NOTHING,
            _links(machine),
            go_bool(machine.nvswitch),
            _cards(machine),
        )
        for name, machine in known
    ]
    return align(table((heading, "GPUS", "MODEL", "LINKS", "NVSWITCH", "NICS"), rows))


def _cards(machine: Machine) -> str:
    """The NICs of a machine: `8 x 50 GB/s`, their number alone if their speed is not known."""
    speeds = {nic.speed for nic in machine.nics}
    if not machine.nics:
        return NOTHING
    speed = min(speeds, key=lambda rate: rate or 0.0)
    return f"{len(machine.nics)} x {speed:g} GB/s" if speed else str(len(machine.nics))


def _links(machine: Machine) -> str:
    links = {link for row in machine.links for link in row if link is not None}
    return ",".join(str(link) for link in sorted(links, reverse=True)) or "-"


def matrix_table(machine: Machine, *, cards: bool = True) -> str:
    """The links of a machine in the words of nvidia-smi: a row for each GPU, then its NICs.

    Without `cards` the NICs are left out; assumed NICs are always left out.
    """
    nics = machine.nics if cards and not machine.nics_assumed else ()
    header = ["", *(f"GPU{gpu.index}" for gpu in machine.gpus)]
    header += [f"NIC{index}" for index in range(len(nics))]
    lines = ["\t".join([*header, "NUMA"])]
    for gpu, words in zip(machine.gpus, _words(machine), strict=True):
        near = [str(nic.attachment[gpu.index]) for nic in nics]
        numa = NOTHING if gpu.numa is None else str(gpu.numa)
        lines.append("\t".join([f"GPU{gpu.index}", *words, *near, numa]))
    if any(nic.name != f"NIC{index}" for index, nic in enumerate(nics)):
        lines += ["", "NIC Legend:"]
        lines += [f"  NIC{index}: {nic.name}" for index, nic in enumerate(nics)]
    return align(lines)


def machine_value(machine: Machine) -> dict[str, Any]:
    """A machine for JSON; `links` is the matrix in words, `X` on the diagonal."""
    return {
        "name": machine.name,
        "gpus": [
            {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "numa": gpu.numa}
            for gpu in machine.gpus
        ],
        "nics": [published.nic_value(nic) for nic in machine.nics],
        "nicsAssumed": machine.nics_assumed or None,
        "links": _words(machine),
        "nvswitch": machine.nvswitch,
        "pcieGeneration": machine.pcie_generation,
        "knowledge": machine.knowledge.value,
    }


def _words(machine: Machine) -> list[list[str]]:
    return [["X" if link is None else str(link) for link in row] for row in machine.links]
