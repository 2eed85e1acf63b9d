"""Instance types of clouds: which machine they are, and the NICs that their GPUs have.

Sources: the instance pages of AWS, Azure, Google Cloud and Oracle, and NCCL topology files that AWS
(aws-ofi-nccl), Azure (azhpc-images) and Oracle (oci-hpc) publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from arena_topo.topology import Knowledge, Machine, presets
from arena_topo.topology.nics import NICs


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
    return _with_nics(found, name, known)


_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def of_labels(labels: Mapping[str, str]) -> str:
    """The instance type that a node is labelled with, if it is a known one; else nothing."""
    named = next((labels[label] for label in _LABELS if label in labels), "")
    return named if named in INSTANCES else ""


def of_node(machine: Machine, instance: str) -> Machine:
    """The machine of a node of this instance type, with its NICs where it tells none itself.

    As many NICs that it does tell get their speed from the type.
    """
    known = INSTANCES[instance]
    if len(presets.machine(known.preset, instance).gpus) != len(machine.gpus):
        return machine
    if machine.nics and not machine.nics_assumed:
        told = len(machine.nics) != known.nics or any(nic.speed for nic in machine.nics)
        return machine if told else _with_nics(machine, instance, known)
    return _with_nics(machine, instance, known)


def _with_nics(machine: Machine, instance: str, known: Instance) -> Machine:
    nics = NICs(number=known.nics, speed=known.speed)
    return nics.of(machine, assumed=f"instance type {instance}")
