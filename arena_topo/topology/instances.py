"""Instance types of clouds: which machine they are, and the NICs that their GPUs have.

Sources: the instance pages of AWS, Azure, Google Cloud and Oracle, and NCCL topology files that AWS
(aws-ofi-nccl), Azure (azhpc-images) and Oracle (oci-hpc) publish.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from arena_topo.topology import NIC, Knowledge, Link, LinkKind, Machine, presets

MOST_NICS = 256
"""More network cards than any machine has."""

_NEAR, _FAR = Link(kind=LinkKind.PXB), Link(kind=LinkKind.SYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance type: the preset with its links, its NICs, and GB/s of each."""

    preset: str
    nics: int
    speed: float


def _type(preset: str, nics: int, speed: float) -> Instance:
    return Instance(preset=preset, nics=nics, speed=speed)


INSTANCES: Mapping[str, Instance] = MappingProxyType(
    {
        "p4d.24xlarge": _type("hgx-a100", 4, 12.5),
        "p4de.24xlarge": _type("hgx-a100", 4, 12.5),
        "p5.48xlarge": _type("hgx-h100", 32, 12.5),
        "p5e.48xlarge": _type("hgx-h200", 32, 12.5),
        "p5en.48xlarge": _type("hgx-h200", 16, 25.0),
        "p6-b200.48xlarge": _type("hgx-b200", 8, 50.0),
        "Standard_ND96asr_v4": _type("hgx-a100", 8, 25.0),
        "Standard_ND96amsr_A100_v4": _type("hgx-a100", 8, 25.0),
        "Standard_ND96isr_H100_v5": _type("hgx-h100", 8, 50.0),
        "Standard_ND96isr_H200_v5": _type("hgx-h200", 8, 50.0),
        "a3-highgpu-8g": _type("hgx-h100", 4, 25.0),
        "a3-megagpu-8g": _type("hgx-h100", 8, 25.0),
        "a3-ultragpu-8g": _type("hgx-h200", 8, 50.0),
        "a4-highgpu-8g": _type("hgx-b200", 8, 50.0),
        "BM.GPU.B4.8": _type("hgx-a100", 16, 12.5),
        "BM.GPU.H100.8": _type("hgx-h100", 16, 25.0),
        "BM.GPU.H200.8": _type("hgx-h200", 8, 50.0),
    }
)


def machine(name: str) -> Machine | None:
    """The machine of an instance type, its links and NICs assumed; None if it is not known."""
    known = INSTANCES.get(name)
    if known is None:
        return None
    found = replace(presets.machine(known.preset, name), knowledge=Knowledge.ASSUMED)
    return with_nics(found, known.nics, known.speed)


_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def of_node(machine: Machine, labels: Mapping[str, str]) -> Machine:
    """The machine of a node, with the NICs of its instance type where it tells none itself."""
    named = next((labels[label] for label in _LABELS if label in labels), "")
    known = INSTANCES.get(named)
    if machine.nics or known is None:
        return machine
    if len(presets.machine(known.preset, named).gpus) != len(machine.gpus):
        return machine
    return with_nics(machine, known.nics, known.speed)


def with_nics(machine: Machine, nics: int, speed: float | None) -> Machine:
    """The machine with so many NICs of `speed` GB/s instead of its own, shared out evenly.

    With more NICs than GPUs each GPU has its own, with fewer neighbours share one.
    """
    size = len(machine.gpus)
    cards = tuple(
        NIC(
            name=f"nic{card}",
            attachment=tuple(
                _NEAR if _serves(card, gpu, nics, size) else _FAR for gpu in range(size)
            ),
            speed=speed,
        )
        for card in range(nics)
    )
    return replace(machine, nics=cards)


def _serves(card: int, gpu: int, nics: int, gpus: int) -> bool:
    if nics >= gpus:
        return card * gpus // nics == gpu
    return gpu * nics // gpus == card


_UNITS = {"G": 8.0, "Gb": 8.0, "Gb/s": 8.0, "GB": 1.0, "GB/s": 1.0}
"""What a number in each unit is divided by for GB/s: `400G` means Gb/s, as cards are sold."""


def parse_nics(text: str) -> tuple[int, float]:
    """How many NICs and GB/s of each: `8x400G` or `8x50GB`; ValueError says what is wrong."""
    found = re.fullmatch(r"(\d{1,4})x(\d{1,5}(?:\.\d{1,3})?)([A-Za-z/]*)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no count and speed")
    number, rate, unit = int(found[1]), float(found[2]), found[3]
    per = _UNITS.get(unit)
    if per is None:
        raise ValueError(f"{unit or 'a number alone'} is no unit of speed")
    if not 0 < number <= MOST_NICS:
        raise ValueError(f"{number} NICs: a machine has 1 to {MOST_NICS}")
    if not rate:
        raise ValueError("a NIC of speed 0 joins nothing")
    return number, rate / per
