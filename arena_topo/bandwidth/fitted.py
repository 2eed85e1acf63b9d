"""Constants of the bandwidth model, fitted on the healthy rows of measured all-reduces.

The rows with their sources and addresses are in `tests/bandwidth/busbw.tsv` and
`busbw_sizes.tsv`; `python docs/site/fidelity.py --fit` fits, and a test compares. A value is
the geometric mean of measured / form over the rows of its regime (least squares of the logarithms);
`low` and `high` bound the middle 80 %, and reach further the fewer rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from arena_topo.topology.models import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A constant that turns a form into GB/s: the point, an 80 % range, and its number of rows."""

    value: float
    low: float
    high: float
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All fitted constants.

    `nvlink` (rings), `nvls`, `bridge`, `islands` and `network` are shares of their forms;
    `pcie_switch` and `pcie_host` are GB/s at PCIe generation 3 within a switch and across host
    bridges or sockets; `staged` is GB/s through host memory; `latency` is seconds.
    """

    nvlink: Factor
    nvls: Mapping[Architecture, Factor]
    bridge: Factor
    islands: Factor
    pcie_switch: Factor
    pcie_host: Factor
    staged: Factor
    network: Factor
    latency: Mapping[str, Factor]


FITTED = Constants(
    nvlink=Factor(value=0.96, low=0.906, high=1.02, rows=24),
    bridge=Factor(value=0.96, low=0.459, high=1.02, rows=4),
    islands=Factor(value=0.844, low=0.716, high=0.999, rows=2),
    pcie_switch=Factor(value=12.0, low=10.9, high=13.3, rows=2),
    pcie_host=Factor(value=9.97, low=9.04, high=11.0, rows=5),
    staged=Factor(value=30.1, low=23.6, high=37.4, rows=4),
    network=Factor(value=0.929, low=0.8, high=1.02, rows=17),
    nvls=MappingProxyType(
        {
            Architecture.HOPPER: Factor(value=0.83, low=0.787, high=0.876, rows=10),
            Architecture.BLACKWELL: Factor(value=0.753, low=0.709, high=0.799, rows=6),
        }
    ),
    latency=MappingProxyType(
        {
            "nvlink": Factor(value=5.63e-05, low=3.38e-05, high=9.02e-05, rows=8),
            "network": Factor(value=0.000258, low=0.000101, high=0.000533, rows=5),
            "pcie": Factor(value=3.88e-05, low=3.29e-05, high=4.58e-05, rows=1),
        }
    ),
)

STAGED_LOW = 8.0
"""The low end of GB/s through host memory: the share of the GPUs of a node in the pools that
published step times (fits of three pools give 7.8 to 9); the measured rows are of newer CPUs."""

UNRELAYED = 0.5
RELAYED = 3.0
"""The range of a set that NVLinks connect without a ring, relative to its PCIe path: the P100's
five GPUs reach 0.6 of it (Tartan, NCCL of 2018); MAPA's fit for the V100, whose GPUs relay, is 2.3
to 3 times."""

PORT_HIGH = 1.05
"""The factor of measured rows over a PCIe port's figure (NCCL's 12 GB/s for generation 3)."""

FEWER_NICS = 0.25
"""The fewest NICs of machines with one GPU model, as a share of those in the maker's reference
machine: instance types with A100 have 50 to 200 GB/s, those with H100 100 to 400
(`topology/presets`)."""

RING_OF_OLD = 0.8
"""The share of the NICs that old NCCL and untuned RoCE still reach on two hosts, at ring's traffic
(rows 58, 116, 117, 120 and 124: 0.60 to 0.95, median 0.80)."""

UNKNOWN_TCP = (0.4, 1.6)
"""GB/s between hosts if nothing is known: TCP in the pools that published step times (ACK 0.79,
Philly 0.8, Gandiva 0.4, T4 at AWS 0.45 to 0.77, RTX 1.5 to 1.7)."""

TCP_SHARE = 0.85
"""The highest share of its NICs that TCP gets: 10 of 12.5 GB/s (row 6), and a margin for a newer
kernel."""

MOST_TCP = 10.0
"""GB/s: no measured row has more over TCP, however fast its NICs (row 6)."""

TCP_WIDTH = 5.0
"""The widest range of TCP, as a ratio, that is still useful."""

LOCAL_TCP = (3.2, MOST_TCP)
"""GB/s between pods of one machine over TCP: the published VGG16 run of four one-GPU pods needs 3.2
(arena's docs), NVIDIA's slide has 10 between machines (row 6)."""
