"""Well-known machines, each with its matrix of nvidia-smi; the table is presets.json.

A preset is selected by name (`--emulate dgx-1-v100:2`, simulations, examples), or replaces the
missing links of a node whose labels tell only its GPU product and count; then the machine is marked
assumed. Instance types of clouds are presets with the NICs that the cloud gives them.

Sources: data sheets of NVIDIA (DGX-1, DGX-2, DGX A100 to B300, the trays of NVL72) where a row has
no source of its own; the NCCL topology files that AWS (aws-ofi-nccl), Azure (azhpc-images) and
Oracle (oci-hpc) publish.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from arena_topo.errors import UsageError, near
from arena_topo.topology import Knowledge, Machine, Plugin, nvidia
from arena_topo.topology.models import MODELS
from arena_topo.topology.nics import NICs

MOST_EMULATED = 100_000
"""The most machines of an emulated cluster: the size that the solver is built for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A well-known machine; `matrix` has the lines of `nvidia-smi topo -m`.

    `products` is a pattern for the product names of this machine, in capitals and without the
    maker; None if the product does not determine the links (every PCIe card). `pcie_generation` is
    that of the slots and of the GPUs, if known. `nics` is the number of RDMA cards in the maker's
    machine if the matrix shows none; their speed is up to the model. `source` is the source of a
    row without a data sheet.
    """

    summary: str
    model: str
    matrix: Sequence[str]
    pcie_generation: int | None = None
    products: str | None = None
    nics: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """An instance type of a cloud: the preset with its links, its NICs, and GB/s of each.

    `model` is the GPU model if it is not that of the preset. Without `rdma` the network has TCP
    alone. `plugin` is the network plug-in without which NCCL has no RDMA over these NICs. `source`
    is the page with these figures, and says which of them are assumed.
    """

    preset: str
    nics: int
    speed: float
    source: str
    model: str | None = None
    rdma: bool = True
    plugin: Plugin | None = None


_TABLES = json.loads(pkgutil.get_data(__name__, "presets.json") or b"")

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {name: Preset(**row) for name, row in _TABLES["presets"].items()}
)

INSTANCES: Mapping[str, InstanceType] = MappingProxyType(
    {
        name: InstanceType(**{**row, "plugin": Plugin(row["plugin"]) if "plugin" in row else None})
        for name, row in _TABLES["instances"].items()
    }
)


def preset_names() -> tuple[str, ...]:
    """The names of all presets, in the order in which they are shown."""
    return tuple(PRESETS)


def preset_machine(preset: str, name: str) -> Machine:
    """The machine of a preset under a name of its own; UsageError if there is no such preset."""
    _check(preset)
    return replace(_parsed(preset), name=name)


def _check(preset: str) -> None:
    """UsageError, with the nearest names and all others, if there is no such preset."""
    if preset not in PRESETS:
        raise UsageError(
            f"unknown preset {preset!r}",
            why=f"the presets are {', '.join(PRESETS)}",
            hint=near(preset, PRESETS),
        )


@cache
def _parsed(preset: str) -> Machine:
    known = PRESETS[preset]
    parsed = nvidia.parse_topo("\n".join(known.matrix), name=preset, model=known.model)
    parsed = replace(parsed, pcie_generation=known.pcie_generation)
    if not known.nics:
        return parsed
    return NICs(number=known.nics, speed=None).of(parsed, assumed=_usual(parsed))


def _usual(machine: Machine) -> str:
    """The source of the usual NICs of machines with these GPUs, for `nics_assumed`."""
    return f"machines with {len(machine.gpus)} x {machine.model}"


def known_machine(product: str, count: int, name: str) -> Machine | None:
    """The machine that `count` GPUs of a product must be, marked assumed; None if not certain.

    Only products that are sold on one board alone determine their links. A PCIe card, a MIG slice
    or a shared GPU never does. NUMA nodes are the machine's own, so they are not assumed.
    """
    normalized = re.sub(r"[-_\s]+", "-", product.strip().upper())
    normalized = re.sub(r"^(?:(?:NVIDIA|TESLA)-)+", "", normalized)
    for preset, known in PRESETS.items():
        if known.products is None or not re.fullmatch(known.products, normalized):
            continue
        candidate = _parsed(preset)
        if len(candidate.gpus) == count:
            gpus = tuple(replace(gpu, numa=None) for gpu in candidate.gpus)
            return replace(
                candidate,
                name=name,
                gpus=gpus,
                nics_assumed=_usual(candidate) if candidate.nics else "",
                knowledge=Knowledge.ASSUMED,
            )
    return None


def emulated_machines(spec: str) -> tuple[Machine, ...]:
    """The machines of `PRESET[:COUNT][,PRESET[:COUNT]...]`, named PRESET-0, PRESET-1 and so on.

    UsageError as in `preset_counts`.
    """
    machines: list[Machine] = []
    counts: Counter[str] = Counter()
    for preset, number in preset_counts(spec):
        first = preset_machine(preset, f"{preset}-{counts[preset]}")
        machines += [
            replace(first, name=f"{preset}-{index}")
            for index in range(counts[preset], counts[preset] + number)
        ]
        counts[preset] += number
    return tuple(machines)


def preset_counts(spec: str) -> list[tuple[str, int]]:
    """The presets of `PRESET[:COUNT][,PRESET[:COUNT]...]` and the number of machines of each.

    UsageError explains an invalid text, names the nearest preset, and lists all.
    """
    numbered: list[tuple[str, int]] = []
    for part in spec.split(","):
        preset, colon, written = part.strip().partition(":")
        preset, written = preset.strip(), written.strip()
        if not preset:
            raise _bad_spec(spec, "a preset is missing")
        if colon and not re.fullmatch(r"[0-9]{1,9}", written):
            raise _bad_spec(spec, f"{written!r} is not a count")
        number = int(written) if colon else 1
        if not 0 < number <= MOST_EMULATED - sum(many for _, many in numbered):
            raise _bad_spec(spec, f"there can be 1 to {MOST_EMULATED:,} machines, not {number:,}")
        _check(preset)
        numbered.append((preset, number))
    return numbered


def _bad_spec(spec: str, why: str) -> UsageError:
    return UsageError(
        f"cannot read the machines to emulate from {spec!r}: {why}",
        why=f"the presets are {', '.join(PRESETS)}",
        hint="write PRESET:COUNT, for instance dgx-1-v100:2 or dgx-1-v100:2,hgx-h100:4",
    )


def instance_type_name(name: str) -> str | None:
    """The name of an instance type in the table; None for an unknown type.

    Azure writes the sizes of its machines with and without `Standard_`.
    """
    return next((known for known in (name, f"Standard_{name}") if known in INSTANCES), None)


def instance_type(name: str) -> Machine | None:
    """The machine of an instance type, its links and NICs assumed; None for an unknown type."""
    type_name = instance_type_name(name)
    if type_name is None:
        return None
    name, known = type_name, INSTANCES[type_name]
    # The NICs of the maker's machine are not those that the cloud sells with it.
    assumed = replace(
        preset_machine(known.preset, name), nics=(), nics_assumed="", knowledge=Knowledge.ASSUMED
    )
    if known.model is not None:
        gpus = tuple(replace(gpu, model=known.model) for gpu in assumed.gpus)
        assumed = replace(assumed, gpus=gpus, pcie_generation=MODELS[known.model].pcie)
    return with_instance_nics(assumed, name)


_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def instance_type_of_labels(labels: Mapping[str, str]) -> str:
    """The known instance type in the labels of a node; else empty."""
    named = next((labels[label] for label in _LABELS if label in labels), "")
    return named if named in INSTANCES else ""


def with_instance_nics(own: Machine, instance: str) -> Machine:
    """The machine of a node of this instance type; with its NICs if its own are not known.

    If it has as many NICs of its own, all of unknown speed, they get the speed of the type.
    """
    known = INSTANCES[instance]
    reported = bool(own.nics) and not own.nics_assumed
    fast = len(own.nics) != known.nics or any(nic.speed for nic in own.nics)
    if len(_parsed(known.preset).gpus) != len(own.gpus) or (reported and fast):
        return own
    nics = NICs(number=known.nics, speed=known.speed)
    return nics.of(own, assumed=f"instance type {instance}")
