"""Rates of the links of a machine, and what is assumed about them."""

from __future__ import annotations

from arena_topo.bandwidth.estimates import Factor
from arena_topo.bandwidth.fitted import Constants
from arena_topo.topology import Knowledge, LinkKind, Machine
from arena_topo.topology.models import MODELS, Architecture, Model

ASSUMED_LANE_RATE = 20.0
"""GB/s per NVLink and direction of an unknown GPU model: the rate of V100 and A100 (topo.h)."""

ASSUMED_GENERATION = 3
"""The PCIe generation if machine and model are unknown: the oldest with measured rows."""

MOST_CACHED_MACHINES = 256
"""The size of each cache of the facts of machines."""

_GENERATIONS = tuple(Architecture)

FROM_AMPERE = frozenset(_GENERATIONS[_GENERATIONS.index(Architecture.AMPERE) :])
"""Ampere and all newer generations."""

FROM_HOPPER = frozenset(_GENERATIONS[_GENERATIONS.index(Architecture.HOPPER) :])
"""Hopper and all newer generations; Ada has no NVLink."""


def known_model(machine: Machine) -> Model | None:
    """The row of the GPU model of a machine; None if the model is not known."""
    return MODELS.get(machine.model or "")


def lane_rate(model: str | None) -> float:
    """GB/s that NCCL gets from one NVLink of this GPU model in one direction."""
    facts = MODELS.get(model or "")
    return facts.lane_rate if facts and facts.lane_rate else ASSUMED_LANE_RATE


def rate_is_assumed(machine: Machine) -> bool:
    """Whether the machine has NVLinks of unknown rate."""
    links = {link for row in machine.links for link in row if link is not None}
    model = known_model(machine)
    unknown = model is None or model.lane_rate is None
    return unknown and any(link.kind is LinkKind.NVLINK for link in links)


def pcie_generation_of(machine: Machine) -> int | None:
    """The PCIe generation of the slots, else that of the GPU model."""
    if machine.pcie_generation is not None:
        return machine.pcie_generation
    model = known_model(machine)
    return model.pcie if model else None


def path_rate(kind: LinkKind, constants: Constants) -> Factor:
    """GB/s of a PCIe path at generation 3, by the devices that it crosses."""
    if kind in {LinkKind.PIX, LinkKind.PXB}:
        return constants.pcie_switch
    return constants.pcie_host


def per_host(rate: float, hosts: int) -> float:
    """GB/s of each of some hosts that have the NICs of a machine, which send `rate`, in common.

    A ring carries the same between any two neighbours, on one machine as well. Only one of these
    ways leaves the machine, so what lies between machines is not shared.
    """
    return rate / hosts


def assumptions(machine: Machine) -> set[str]:
    """The facts about a machine that are assumed."""
    notes: set[str] = set()
    model = known_model(machine)
    nvlink = any(
        link is not None and link.kind is LinkKind.NVLINK for row in machine.links for link in row
    )
    if machine.knowledge is Knowledge.UNKNOWN:
        notes.add("links between GPUs: PCIe across sockets")
    elif machine.knowledge is Knowledge.ASSUMED:
        notes.add("links between GPUs, by model and count")
    if nvlink and (model is None or model.lane_rate is None):
        notes.add(f"{ASSUMED_LANE_RATE:g} GB/s per NVLink of a model that is not known")
    if not nvlink and machine.pcie_generation is None:
        generation = pcie_generation_of(machine) or ASSUMED_GENERATION
        unknown = f", as GPU model {machine.model} is not known" if machine.model else ""
        notes.add(f"PCIe generation {generation}{'' if model else unknown}")
    return notes


def is_guess(machine: Machine) -> bool:
    """Whether the bandwidth inside a machine rests on an unknown GPU model or unknown links."""
    unknown = known_model(machine) is None and machine.pcie_generation is None
    return unknown or machine.knowledge is Knowledge.UNKNOWN or rate_is_assumed(machine)
