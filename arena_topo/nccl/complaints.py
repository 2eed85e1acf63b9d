"""The meaning of NCCL's complaints, and the advice: only for known causes.

The texts are NCCL's own, 2.7 to 2.30 (src/misc/shmutils.cc and include/shm.h, src/misc/socket.cc,
src/transport/net_ib.cc, src/transport.cc, src/init.cc, src/graph/paths.cc).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arena_topo.nccl import ComplaintCause


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A complaint by the `pattern` of its text, its reason, and what to try."""

    cause: ComplaintCause
    pattern: re.Pattern[str]
    why: str
    hint: str


def _advice(cause: ComplaintCause, pattern: str, *, why: str, hint: str) -> Advice:
    return Advice(cause=cause, pattern=re.compile(pattern), why=why, hint=hint)


ADVICE: tuple[Advice, ...] = (
    _advice(
        ComplaintCause.SHM_FULL,
        r"(?:fallocate|shared memory|ailed to extend).*No space left"
        r"|ailed to extend \S+ to \d+ bytes$",
        why="shared memory is full: a container has 64 MiB of it, unless it asks for more",
        hint="ask for more: --share-memory of submit, --shm-size of docker run (NCCL wants about"
        " 10 MB for each pair and channel)",
    ),
    _advice(
        ComplaintCause.SHM_GONE,
        r"attaching to shared memory segment|shm_open.*failed|[Cc]ould not map .*nccl",
        why="a rank could not open shared memory that another rank of its host created",
        hint="two pods of a node must share one /dev/shm, or NCCL_SHM_DISABLE=1 must be set",
    ),
    _advice(
        ComplaintCause.NVLINK_OFF,
        r"P2P is disabled between NVLINK",
        why="the driver keeps GPUs apart that NVLink joins, probably due to a hardware issue (so"
        " says NCCL)",
        hint="nvidia-smi nvlink -s shows links that are down; NCCL_IGNORE_DISABLED_P2P=1 goes on",
    ),
    _advice(
        ComplaintCause.P2P_OFF,
        r"P2P is disabled between|Could not enable P2P between",
        why="the driver does not let these GPUs reach each other's memory",
        hint="PCI access control (ACS) or a virtual machine often is why: nvidia-smi topo -p2p r",
    ),
    _advice(
        ComplaintCause.P2P_BROKEN,
        r"[Ff]ailed to open CUDA IPC handle|failed to peer with device|peer query failed"
        r"|cudaIpc(?:Get|Open)MemHandle|Cuda failure .*(?:invalid device context|peer access)",
        why="one GPU could not map the memory of another: not every process sees both GPUs",
        hint="one pod with all its GPUs (--gpus=4 --workers=1), not one pod for each GPU",
    ),
    _advice(
        ComplaintCause.SAME_GPU,
        r"same GPU/Partition",
        why="two ranks of one communicator use the same GPU, or the same slice of one",
        hint="give each rank its own, with as many GPUs (or slices) as slots;"
        " NCCL_MULTI_RANK_GPU_ENABLE=1 allows it as it is",
    ),
    _advice(
        ComplaintCause.SAME_GPU,
        r"Duplicate GPU detected",
        why="two ranks of one communicator use the same GPU",
        hint="give each rank its own: LOCAL_RANK to cudaSetDevice, and as many GPUs as slots;"
        " slices of one GPU (MIG) count as one up to NCCL 2.29",
    ),
    _advice(
        ComplaintCause.VERSIONS,
        r"Mismatched NCCL version",
        why="the ranks run different versions of NCCL",
        hint="use one image for all workers",
    ),
    _advice(
        ComplaintCause.IB_COMPLETION,
        r"Got completion .*(?:with error|status=)",
        why="an InfiniBand or RoCE transfer failed: status 12 is a peer that stopped answering, "
        "status 5 follows an earlier failure",
        hint="check the link (ibstat), NCCL_IB_GID_INDEX on RoCE, and whether a peer had ended",
    ),
    _advice(
        ComplaintCause.IB_MEMORY,
        r"ibv_reg_(?:dmabuf_)?mr.*failed|ibv_create_cq.*(?:Cannot alloc|not permit)",
        why="the network card could not lock memory for its use: mostly there is a limit on it",
        hint="containers need ulimit -l unlimited (the IPC_LOCK capability) and nvidia-peermem",
    ),
    _advice(
        ComplaintCause.IB_SETUP,
        r"ibv_modify_qp failed|incompatible (?:with the local|devices)|different link_layer",
        why="two InfiniBand or RoCE devices could not be joined: other link, port or GID",
        hint="set NCCL_IB_HCA to devices of one kind, and NCCL_IB_GID_INDEX on RoCE",
    ),
    _advice(
        ComplaintCause.NO_INTERFACE,
        r"no socket interface found|No IP interface found|no interface found"
        r"|No interface found in the same subnet",
        why="no network interface fits NCCL_SOCKET_IFNAME, or none has an address",
        hint="leave NCCL_SOCKET_IFNAME out, or set it to an interface of the pod (often eth0)",
    ),
    _advice(
        ComplaintCause.NO_TRANSPORT,
        r"No transport found for rank|has no transport for",
        why="two ranks have no way to each other: P2P, SHM and NET are all off or impossible",
        hint="take away NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET one by one",
    ),
    _advice(
        ComplaintCause.REFUSED,
        r"Connection refused|exceeded retries",
        why="no process listened at the address of a rank, or a firewall is between",
        hint="look whether that rank still runs; check NetworkPolicies and the interface",
    ),
    _advice(
        ComplaintCause.TIMED_OUT,
        r"[Cc]onnect.*(?:[Tt]imed? ?out|No route to host)|exceeded timeouts",
        why="another rank's address did not answer: not reachable from this pod, or too late",
        hint="set NCCL_SOCKET_IFNAME to the interface that the pods share",
    ),
    _advice(
        ComplaintCause.CLOSED,
        r"[Cc]onnection closed by remote peer|Connection reset by peer|Broken pipe|recv failed"
        r"|remote process exited",
        why="the other rank closed the connection, or it broke; the line does not say why",
        hint="look for what the other ranks complained of before",
    ),
    _advice(
        ComplaintCause.NVLS,
        r"NVLS|NVLink SHARP|[Mm]ulticast",
        why="NVLink SHARP could not be set up",
        hint="NCCL_NVLS_ENABLE=0 goes without; the fabric manager may need a restart",
    ),
    _advice(
        ComplaintCause.GDR_OFF,
        r"GPU Direct RDMA Disabled",
        why="the network card does not reach GPU memory: data is copied to host memory first",
        hint="load nvidia-peermem on the node; NCCL_NET_GDR_LEVEL allows longer ways",
    ),
    _advice(
        ComplaintCause.CUDA,
        r"Cuda failure|CUDA error|Cuda driver",
        why="a call to CUDA failed: NCCL only tells what the driver said",
        hint="the text after the failure names it; an old driver and a GPU in error are common",
    ),
)
"""The first entry whose pattern is found in a text applies."""

_OFF = re.compile(
    r"P2P is disabled between|Could not enable P2P between|peer query failed"
    r"|(?<!^NET/Socket : )GPU Direct RDMA Disabled for|fallocate: Failed to extend"
    r"|Call to connect returned|connect(?:ed)? (?:to \S+ )?returned .*retrying"
    r"|Failed to open libibverbs|cuMem host allocations do not appear to be working"
    r"|Failed to bind NVLink SHARP|Could not find a path for pattern"
)
"""INFO lines about a missing feature. Sockets never have GPU Direct RDMA."""


def advice_on(text: str) -> Advice | None:
    """The reason of a complaint, and what to try; None if unknown."""
    return next((advice for advice in ADVICE if advice.pattern.search(text)), None)


def advice_for(cause: ComplaintCause) -> Advice:
    """The reason of this class of complaints, and what to try."""
    return next(advice for advice in ADVICE if advice.cause is cause)


def reports_trouble(text: str) -> bool:
    """Whether an INFO line reports trouble."""
    return bool(_OFF.search(text))
