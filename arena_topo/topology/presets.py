"""Well-known machines, each as the matrix that nvidia-smi would print there.

A preset is asked for by name (`--emulate dgx-1-v100:2`, simulations, examples), or stands in for
a node that says its GPU product and count but not its links; then the machine is marked assumed.
Instance types of clouds are presets with the NICs that the cloud gives them.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from arena_topo.errors import UsageError
from arena_topo.topology import Knowledge, Machine, nvidia
from arena_topo.topology.nics import NICs

MOST_EMULATED = 100_000
"""Machines in one emulated cluster: what the solver is built for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A well-known machine.

    `products` is a pattern for the product names, in capitals and without the maker, that such a
    machine reports; None where the product does not tell the links (every PCIe card).
    `pcie_generation` is that of the slots and of the GPUs (data sheets), where it is known. `nics`
    is how many cards for RDMA the maker's machine has where the matrix shows none (data sheets of
    DGX-1, DGX-2, DGX A100 to B300 and of the NVL72 trays); how fast they are is up to the model.
    """

    summary: str
    model: str
    matrix: str
    pcie_generation: int | None = None
    products: str | None = None
    nics: int = 0


# NVLinks and PCIe paths as DGX-1 prints them; the NICs in the order of their names.
_DGX_1_V100 = """\
        GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  mlx5_0  mlx5_1  mlx5_2  mlx5_3  CPU Affinity  NUMA Affinity
GPU0     X    NV1   NV1   NV2   NV2   SYS   SYS   SYS   PIX     PHB     SYS     SYS     0-19,40-59    0
GPU1    NV1    X    NV2   NV1   SYS   NV2   SYS   SYS   PIX     PHB     SYS     SYS     0-19,40-59    0
GPU2    NV1   NV2    X    NV2   SYS   SYS   NV1   SYS   PHB     PIX     SYS     SYS     0-19,40-59    0
GPU3    NV2   NV1   NV2    X    SYS   SYS   SYS   NV1   PHB     PIX     SYS     SYS     0-19,40-59    0
GPU4    NV2   SYS   SYS   SYS    X    NV1   NV1   NV2   SYS     SYS     PIX     PHB     20-39,60-79   1
GPU5    SYS   NV2   SYS   SYS   NV1    X    NV2   NV1   SYS     SYS     PIX     PHB     20-39,60-79   1
GPU6    SYS   SYS   NV1   SYS   NV1   NV2    X    NV2   SYS     SYS     PHB     PIX     20-39,60-79   1
GPU7    SYS   SYS   SYS   NV1   NV2   NV1   NV2    X    SYS     SYS     PHB     PIX     20-39,60-79   1
mlx5_0  PIX   PIX   PHB   PHB   SYS   SYS   SYS   SYS    X      PHB     SYS     SYS
mlx5_1  PHB   PHB   PIX   PIX   SYS   SYS   SYS   SYS   PHB      X      SYS     SYS
mlx5_2  SYS   SYS   SYS   SYS   PIX   PIX   PHB   PHB   SYS     SYS      X      PHB
mlx5_3  SYS   SYS   SYS   SYS   PHB   PHB   PIX   PIX   SYS     SYS     PHB      X
"""  # noqa: E501 (a row of a matrix stays one row)

_DGX_1_P100 = """\
      GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  CPU Affinity  NUMA Affinity
GPU0   X    NV1   NV1   NV1   NV1   SYS   SYS   SYS   0-19,40-59    0
GPU1  NV1    X    NV1   NV1   SYS   NV1   SYS   SYS   0-19,40-59    0
GPU2  NV1   NV1    X    NV1   SYS   SYS   NV1   SYS   0-19,40-59    0
GPU3  NV1   NV1   NV1    X    SYS   SYS   SYS   NV1   0-19,40-59    0
GPU4  NV1   SYS   SYS   SYS    X    NV1   NV1   NV1   20-39,60-79   1
GPU5  SYS   NV1   SYS   SYS   NV1    X    NV1   NV1   20-39,60-79   1
GPU6  SYS   SYS   NV1   SYS   NV1   NV1    X    NV1   20-39,60-79   1
GPU7  SYS   SYS   SYS   NV1   NV1   NV1   NV1    X    20-39,60-79   1
"""


def _grouped(numa: str, *groups: tuple[str, int]) -> str:
    """The matrix of GPUs in groups, a digit of `numa` for each.

    Two GPUs have the link of the first of `groups`, of so many GPUs each, that holds both.
    """
    names = [f"GPU{index}" for index in range(len(numa))]
    rows = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for one, node in enumerate(numa):
        cells = [
            next(link for link, size in groups if one // size == other // size)
            for other in range(len(numa))
        ]
        cells[one] = " X "
        rows.append("\t".join([names[one], *cells, "", node, "", "N/A"]))
    return "\n".join(rows) + "\n"


def _uniform(link: str, numa: str) -> str:
    """The matrix of a machine in which every pair is joined alike."""
    return _grouped(numa, (link, len(numa)))


def _hgx(
    model: str, link: str, *, pcie_generation: int | None = None, products: str | None = None
) -> Preset:
    """Eight GPUs behind an NVSwitch, which joins every two of them by the same link."""
    return Preset(
        summary=f"8 x {model} behind NVSwitch",
        model=model,
        matrix=_uniform(link, "00001111"),
        pcie_generation=pcie_generation,
        products=products,
        nics=8,
    )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "dgx-1-p100": Preset(
            summary="8 x P100, hybrid cube mesh of single NVLinks",
            model="P100",
            matrix=_DGX_1_P100,
            pcie_generation=3,
            products=r"P100-SXM2-16GB",
            nics=4,
        ),
        "dgx-1-v100": Preset(
            summary="8 x V100, hybrid cube mesh of single and double NVLinks",
            model="V100",
            matrix=_DGX_1_V100,
            pcie_generation=3,
            products=r"V100-SXM2-(16|32)GB(-\w+)?",
        ),
        "dgx-2": Preset(
            summary="16 x V100 behind NVSwitch",
            model="V100",
            matrix=_uniform("NV6", "0000000011111111"),
            pcie_generation=3,
            products=r"V100-SXM3-32GB(-\w+)?",
            nics=8,
        ),
        "dgx-a100": Preset(
            summary="8 x A100 behind NVSwitch, four NUMA nodes in use",
            model="A100",
            matrix=_uniform("NV12", "33117755"),
            pcie_generation=4,
            nics=8,
        ),
        "hgx-a100-4": Preset(
            summary="4 x A100 SXM, every pair joined by four NVLinks",
            model="A100",
            matrix=_uniform("NV4", "0011"),
            pcie_generation=4,
            products=r"A100-SXM4?-\d+GB",
            nics=4,
        ),
        "hgx-a100": _hgx("A100", "NV12", pcie_generation=4, products=r"A100-SXM4?-\d+GB"),
        # 8 of 12 links: 400 GB/s (topo -m of an A800 board shows NV8).
        "hgx-a800": _hgx("A800", "NV8", pcie_generation=4),
        "hgx-h100": _hgx("H100", "NV18", pcie_generation=5, products=r"H100(-SXM5)?-80GB-HBM\w+"),
        "hgx-h200": _hgx(
            "H200", "NV18", pcie_generation=5, products=r"H200(-SXM5)?(-141GB(-HBM\w+)?)?"
        ),
        # 8 of 18 links: 400 GB/s.
        "hgx-h800": _hgx(
            "H800", "NV8", pcie_generation=5, products=r"H800(-SXM5)?(-80GB(-HBM\w+)?)?"
        ),
        "hgx-h20": _hgx("H20", "NV18", pcie_generation=5, products=r"H20(-\d+GB)?(-HBM\w+)?"),
        "hgx-b200": _hgx(
            "B200", "NV18", pcie_generation=5, products=r"B200(-SXM\d?)?(-\d+GB(-HBM\w+)?)?"
        ),
        "hgx-b300": _hgx("B300", "NV18", products=r"B300(-SXM\d?)?(-AC)?(-\d+GB(-HBM\w+)?)?"),
        "gb200-nvl72": Preset(
            summary="4 x GB200, one tray of an NVL72",
            model="GB200",
            matrix=_uniform("NV18", "0011"),
            products=r"GB200(-NVL\w*)?(-\d+GB)?(-HBM\w+)?",
            nics=4,
        ),
        "gb300-nvl72": Preset(
            summary="4 x GB300, one tray of an NVL72",
            model="GB300",
            matrix=_uniform("NV18", "0011"),
            products=r"GB300(-NVL\w*)?(-\d+GB)?(-HBM\w+)?",
            nics=4,
        ),
        "pcie-4": Preset(
            summary="4 x T4 in two pairs on PCIe switches, one socket",
            model="T4",
            matrix=_grouped("0000", ("PIX", 2), ("PHB", 4)),
            pcie_generation=3,
        ),
        "pcie-8": Preset(
            summary="8 x L40S in pairs on PCIe switches, two sockets",
            model="L40S",
            matrix=_grouped("00001111", ("PIX", 2), ("PXB", 4), ("SYS", 8)),
            pcie_generation=4,
        ),
        "pcie-8-a100": Preset(
            summary="8 x A100 PCIe, pairs joined by NVLink bridges, two sockets",
            model="A100",
            matrix=_grouped("00001111", ("NV12", 2), ("NODE", 4), ("SYS", 8)),
            pcie_generation=4,
        ),
    }
)


def names() -> tuple[str, ...]:
    """The names of all presets, in the order in which they are shown."""
    return tuple(PRESETS)


def machine(preset: str, name: str) -> Machine:
    """The machine of a preset under a name of its own; UsageError if there is no such preset."""
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset.lower(), PRESETS, n=1)
        raise UsageError(
            f"unknown preset {preset!r}",
            why=f"the presets are {', '.join(PRESETS)}",
            hint=f"did you mean {near[0]}?" if near else None,
        )
    return replace(_parsed(preset), name=name)


@cache
def _parsed(preset: str) -> Machine:
    known = PRESETS[preset]
    parsed = nvidia.parse_topo(known.matrix, name=preset, model=known.model)
    parsed = replace(parsed, pcie_generation=known.pcie_generation)
    if not known.nics:
        return parsed
    return NICs(number=known.nics, speed=None).of(parsed, assumed=_usual(parsed))


def _usual(machine: Machine) -> str:
    """What NICs are assumed from that machines with these GPUs usually have."""
    return f"machines with {len(machine.gpus)} x {machine.model}"


def match(product: str, count: int, name: str) -> Machine | None:
    """The machine that `count` GPUs of a product must be, marked assumed; None if not certain.

    Only products that are sold on one board alone tell their links. A PCIe card, a MIG slice or
    a shared GPU never does. NUMA nodes are the machine's own, so they are not assumed.
    """
    words = re.sub(r"[-_\s]+", "-", product.strip().upper())
    words = re.sub(r"^(?:(?:NVIDIA|TESLA)-)+", "", words)
    for preset, known in PRESETS.items():
        if known.products is None or not re.fullmatch(known.products, words):
            continue
        found = _parsed(preset)
        if len(found.gpus) == count:
            gpus = tuple(replace(gpu, numa=None) for gpu in found.gpus)
            return replace(
                found,
                name=name,
                gpus=gpus,
                nics_assumed=_usual(found) if found.nics else "",
                knowledge=Knowledge.ASSUMED,
            )
    return None


def emulated(spec: str) -> tuple[Machine, ...]:
    """The machines of `PRESET[:COUNT][,PRESET[:COUNT]...]`, named PRESET-0, PRESET-1 and so on.

    UsageError says what cannot be read, and lists the presets.
    """
    machines: list[Machine] = []
    made: Counter[str] = Counter()
    for part in spec.split(","):
        preset, colon, written = part.strip().partition(":")
        preset, written = preset.strip(), written.strip()
        if not preset:
            raise _nonsense(spec, "a preset is missing")
        if colon and not re.fullmatch(r"[0-9]{1,9}", written):
            raise _nonsense(spec, f"{written!r} is not a count")
        many = int(written) if colon else 1
        if not 0 < many <= MOST_EMULATED - len(machines):
            raise _nonsense(spec, f"there can be 1 to {MOST_EMULATED:,} machines, not {many:,}")
        first = machine(preset, f"{preset}-{made[preset]}")
        machines += [
            replace(first, name=f"{preset}-{index}")
            for index in range(made[preset], made[preset] + many)
        ]
        made[preset] += many
    return tuple(machines)


def _nonsense(spec: str, why: str) -> UsageError:
    return UsageError(
        f"cannot read the machines to emulate from {spec!r}: {why}",
        why=f"the presets are {', '.join(PRESETS)}",
        hint="write PRESET:COUNT, for instance dgx-1-v100:2 or dgx-1-v100:2,hgx-h100:4",
    )


# Instance types of clouds. Sources: the instance pages of AWS, Azure, Google Cloud and Oracle, and
# NCCL topology files that AWS (aws-ofi-nccl), Azure (azhpc-images) and Oracle (oci-hpc) publish.


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


def instance_type(name: str) -> Machine | None:
    """The machine of an instance type, its links and NICs assumed; None if it is not known."""
    known = INSTANCES.get(name)
    if known is None:
        return None
    return with_nics(replace(machine(known.preset, name), knowledge=Knowledge.ASSUMED), name)


_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def labelled_instance(labels: Mapping[str, str]) -> str:
    """The instance type that a node is labelled with, if it is a known one; else nothing."""
    named = next((labels[label] for label in _LABELS if label in labels), "")
    return named if named in INSTANCES else ""


def with_nics(one: Machine, instance: str) -> Machine:
    """The machine of a node of this instance type, with its NICs where it tells none itself.

    As many NICs that it does tell get their speed from the type.
    """
    known = INSTANCES[instance]
    told = bool(one.nics) and not one.nics_assumed
    fast = len(one.nics) != known.nics or any(nic.speed for nic in one.nics)
    if len(_parsed(known.preset).gpus) != len(one.gpus) or (told and fast):
        return one
    nics = NICs(number=known.nics, speed=known.speed)
    return nics.of(one, assumed=f"instance type {instance}")
