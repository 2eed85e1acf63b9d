"""What a set of GPUs is worth to a collective, in GB/s of all-reduce bus bandwidth.

The model (docs/how-it-works.md): a collective runs over rings. Behind an NVSwitch one ring uses all
lanes of each GPU at once; on a direct mesh as many rings run side by side as can be laid through
the set without sharing a lane; where NVLink closes no ring, one ring runs at its slowest link.
"""

from __future__ import annotations

from arena_topo.topology import Configuration, Link, LinkKind
from arena_topo.topology.models import MODELS

NVLINK_RATE = {one.name: one.lane_rate for one in MODELS.values() if one.lane_rate is not None}
"""GB/s that NCCL gets from one NVLink in one direction, by GPU model."""

ASSUMED_NVLINK_RATE = 20.0
"""GB/s per lane where the GPU model is not known."""

PCIE_RATE = {
    LinkKind.PIX: 12.0,
    LinkKind.PXB: 12.0,
    LinkKind.PHB: 11.0,
    LinkKind.NODE: 10.0,
    LinkKind.SYS: 9.0,
}
"""GB/s of a PCIe gen3 x16 path by what it crosses: 12 is NCCL's figure for gen3 x16 (topo.h,
PCI_BW). The ranks below it, down to 9 across the link between sockets, are ours: NCCL's own
figures go by the CPU (6 to 22, topo.h), which no cluster tells."""

PCIE_GENERATION = 3


def rate_is_assumed(model: str | None) -> bool:
    """Whether the NVLink rate of this model is a guess that the reader should be told of."""
    return model not in NVLINK_RATE


def lane_rate(model: str | None) -> float:
    """GB/s of one NVLink lane in one direction."""
    return NVLINK_RATE.get(model or "", ASSUMED_NVLINK_RATE)


def link_rate(link: Link, configuration: Configuration) -> float:
    """GB/s of one link in one direction, all its lanes together.

    PCIe doubles with each generation, but only where the generation is known.
    """
    if link.kind is LinkKind.NVLINK:
        return link.lanes * lane_rate(configuration.model)
    generation = configuration.pcie_generation or PCIE_GENERATION
    return PCIE_RATE[link.kind] * 2.0 ** (generation - PCIE_GENERATION)
