"""Flags of what only a site knows of its machines: P2P, GPUDirect RDMA, plug-in, measurements."""

from __future__ import annotations

from typing import Annotated

from arena_topo.cli.arguments import PANEL
from arena_topo.flag import Flag
from arena_topo.topology import Plugin

NoP2PFlag = Annotated[
    bool,
    Flag(
        help="GPUs do not reach each other's memory, over NVLink or PCIe (NCCL_P2P_DISABLE=1).",
        name="--no-p2p",
        panel=PANEL,
    ),
]

NoGDRFlag = Annotated[
    bool,
    Flag(
        help="Network cards do not reach the memory of GPUs (no GPUDirect RDMA).",
        name="--no-gdr",
        panel=PANEL,
    ),
]

PluginFlag = Annotated[
    Plugin | None,
    Flag(
        help="The network plug-in of NCCL on these machines (default its own transport).",
        panel=PANEL,
    ),
]

CalibrationFlag = Annotated[
    tuple[str, ...],
    Flag(
        help="Use this calibration of a pool: a file that calibrate printed, or the name of one in"
        " the cluster; repeat for other pools.",
        panel=PANEL,
        metavar="NAME",
        completes="files",
    ),
]
