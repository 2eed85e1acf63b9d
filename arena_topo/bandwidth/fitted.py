"""Constants of the bandwidth model, fitted on the healthy rows of measured all-reduces.

The rows with their sources and addresses are in `tests/bandwidth/busbw.tsv` and
`busbw_sizes.tsv`; `python docs/site/fidelity.py --fit` fits, and a test compares. A value is
the geometric mean of measured / form over the rows of its regime (least squares of the logarithms);
`low` and `high` bound the middle 80 %, and reach further the fewer rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from arena_topo.bandwidth.estimates import Factor
from arena_topo.topology.models import Architecture


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """All fitted constants.

    `nvlink` (rings), `volta` (the same on V100), `mesh` (full meshes from Ampere on), `nvls`,
    `domain` (NVLS over several nodes of an NVLink domain), `bridge`, `islands` and `network` are
    shares of their forms; `tree` is the share of one host's inside that two hosts of Ampere and
    older reach; `cxi` and `no_gdr` are shares of the NICs as `network` is, `tcpx` the share of
    rings inside a host. `pcie_switch` and `pcie_host` are GB/s at PCIe generation 3 within a switch
    and across host bridges or sockets; `latency` is seconds.
    """

    nvlink: Factor
    volta: Factor
    mesh: Factor
    tree: Factor
    domain: Factor
    cxi: Factor
    tcpx: Factor
    no_gdr: Factor
    nvls: Mapping[Architecture, Factor]
    bridge: Factor
    islands: Factor
    pcie_switch: Factor
    pcie_host: Factor
    network: Factor
    latency: Mapping[str, Factor]


FITTED = Constants(
    nvlink=Factor(value=0.96, low=0.905, high=1.02, rows=27),
    volta=Factor(value=1.08, low=0.939, high=1.23, rows=3),
    mesh=Factor(value=0.854, low=0.695, high=0.96, rows=1),
    tree=Factor(value=0.819, low=0.743, high=1.0, rows=3),
    domain=Factor(value=0.778, low=0.685, high=0.893, rows=3),
    cxi=Factor(value=0.548, low=0.405, high=0.739, rows=3),
    tcpx=Factor(value=0.71, low=0.577, high=0.96, rows=1),
    no_gdr=Factor(value=0.269, low=0.197, high=1.0, rows=2),
    bridge=Factor(value=0.96, low=0.453, high=1.02, rows=4),
    islands=Factor(value=0.844, low=0.7, high=1.02, rows=2),
    pcie_switch=Factor(value=12.0, low=10.6, high=13.6, rows=2),
    pcie_host=Factor(value=9.97, low=8.95, high=11.1, rows=5),
    network=Factor(value=0.931, low=0.804, high=1.02, rows=21),
    nvls=MappingProxyType(
        {
            Architecture.HOPPER: Factor(value=0.83, low=0.785, high=0.878, rows=11),
            Architecture.BLACKWELL: Factor(value=0.752, low=0.699, high=0.809, rows=5),
        }
    ),
    latency=MappingProxyType(
        {
            "nvlink": Factor(value=5.63e-05, low=3.36e-05, high=9.08e-05, rows=8),
            "network": Factor(value=0.000258, low=0.0001, high=0.000538, rows=5),
            "pcie": Factor(value=3.88e-05, low=3.16e-05, high=4.78e-05, rows=1),
        }
    ),
)

STAGED = (2.0, 38.0)
"""GB/s through host memory, which is a property of the machine: the measured rows, from 24 to 35,
are the best servers that anybody showed; the pools that published step times give 7.8 to 9, eight
RTX 4090 some 5 (nccl-tests issue 307), and containers with little shared memory less."""

SOCKETS_APART = 1.46
"""How much faster cards of different sockets are than neighbours if they copy through host memory:
each socket has a memory of its own (rows 136 and 137: 35 and 24)."""

RACKS = Factor(value=0.9, low=0.8, high=1.0, rows=1)
"""The share of one NVLink domain that a job over several reaches.

Not fitted, but the mean of four published figures, rounded up from 0.89: two racks of GB300 reach
738 GB/s of 873 (row 307); of GB200, which is not among the rows, two racks 800 and 810, three 749.
The range is wider than their 0.85 to 0.93, as four figures are few."""

FEW_RACKS, MANY_RACKS = 3, 0.45
"""The domains of a job from which only the range is known, and its low end: a post has 406 GB/s of
873 on 20 racks of GB200, which the rows do not have."""

FAR_NIC = 0.35
"""The low end if a NIC is farther from its GPU than PCIe switches, as a share of the NICs:
GPUDirect RDMA then crosses the CPU, or is not used (row 318: 8.11 of 23.2, row 320: 31.9 of 46)."""

UNRELAYED = 0.5
RELAYED = 3.0
"""The range of a set that NVLinks connect without a ring, relative to its PCIe path: the P100's
five GPUs reach 0.6 of it (Tartan, NCCL of 2018); MAPA's fit for the V100, whose GPUs relay, is 2.3
to 3 times."""

PORT_HIGH = 1.05
"""The factor of measured rows over a PCIe port's figure (NCCL's 12 GB/s for generation 3)."""

UNKNOWN_PLUGIN = 0.45
"""The low end of a network plug-in without rows, as a share of what NCCL's own transport reaches:
cxi, the slowest with rows, has 0.44 to 0.75 (rows 332, 331 and 335)."""

FEWER_NICS = 0.25
"""The fewest NICs of machines with one GPU model, as a share of those in the maker's reference
machine: instance types with A100 have 50 to 200 GB/s, those with H100 100 to 400
(`topology/presets`)."""

UNTUNED = 0.78
"""The share of the NICs that people post as their normal result, at ring's traffic: 0.80 to 0.82 on
H100 without more channels (rows 120, 122, 325 and 326), 0.60 to 0.95 with old NCCL or RoCE (rows
58, 116, 117 and 124). Tuned machines have 0.91 to 0.98."""

UNKNOWN_TCP = (0.4, 1.6)
"""GB/s between hosts if nothing is known: TCP in the pools that published step times (ACK 0.79,
Philly 0.8, Gandiva 0.4, T4 at AWS 0.45 to 0.77, RTX 1.5 to 1.7)."""

UNKNOWN_TCP_NEW = (1.2, 6.0)
"""The same for machines with GPUs of Ampere and newer, which are sold with 25 to 200 GbE (H200: row
324, 3.76; A100: 3.5)."""

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
