"""What complaints of NCCL mean, and what to try: only those whose cause is known.

The texts are NCCL's own, 2.7 to 2.30 (src/misc/shmutils.cc and include/shm.h, src/misc/socket.cc,
src/transport/net_ib.cc, src/transport.cc, src/init.cc, src/graph/paths.cc).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arena_topo.nccl import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Why NCCL complains, in a sentence, and what to try."""

    why: str
    hint: str


ADVICE: dict[Cause, Advice] = {
    Cause.SHM_FULL: Advice(
        why="shared memory is full: a container has 64 MiB of it, unless it asks for more",
        hint="ask for more: --share-memory of submit, --shm-size of docker run (NCCL wants about"
        " 10 MB for each pair and channel)",
    ),
    Cause.SHM_GONE: Advice(
        why="a rank could not open shared memory that another rank of its host created",
        hint="two pods of a node must share one /dev/shm, or NCCL_SHM_DISABLE=1 must be set",
    ),
    Cause.P2P_OFF: Advice(
        why="the driver does not let these GPUs reach each other's memory",
        hint="PCI access control (ACS) or a virtual machine often is why: nvidia-smi topo -p2p r",
    ),
    Cause.P2P_BROKEN: Advice(
        why="one GPU could not map the memory of another: not every process sees both GPUs",
        hint="one pod with all its GPUs (--gpus=4 --workers=1), not one pod for each GPU",
    ),
    Cause.NVLINK_OFF: Advice(
        why="the driver keeps GPUs apart that NVLink joins, probably due to a hardware issue (so"
        " says NCCL)",
        hint="nvidia-smi nvlink -s shows links that are down; NCCL_IGNORE_DISABLED_P2P=1 goes on",
    ),
    Cause.REFUSED: Advice(
        why="nobody listened where a rank was expected, or a firewall is between",
        hint="look whether that rank still runs; check NetworkPolicies and the interface",
    ),
    Cause.TIMED_OUT: Advice(
        why="another rank's address did not answer: not reachable from this pod, or too late",
        hint="set NCCL_SOCKET_IFNAME to the interface that the pods share",
    ),
    Cause.CLOSED: Advice(
        why="the connection to another rank was closed there, or broke; why, no such line says",
        hint="look for what the other ranks complained of before",
    ),
    Cause.NO_INTERFACE: Advice(
        why="no network interface fits NCCL_SOCKET_IFNAME, or none has an address",
        hint="leave NCCL_SOCKET_IFNAME out, or set it to an interface of the pod (often eth0)",
    ),
    Cause.NO_TRANSPORT: Advice(
        why="two ranks have no way to each other: P2P, SHM and NET are all off or impossible",
        hint="take away NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET one by one",
    ),
    Cause.IB_COMPLETION: Advice(
        why="an InfiniBand or RoCE transfer failed: status 12 is a peer that stopped answering, "
        "status 5 follows an earlier failure",
        hint="check the link (ibstat), NCCL_IB_GID_INDEX on RoCE, and whether a peer had ended",
    ),
    Cause.IB_SETUP: Advice(
        why="two InfiniBand or RoCE devices could not be joined: other link, port or GID",
        hint="set NCCL_IB_HCA to devices of one kind, and NCCL_IB_GID_INDEX on RoCE",
    ),
    Cause.IB_MEMORY: Advice(
        why="the network card could not lock memory for its use: mostly there is a limit on it",
        hint="containers need ulimit -l unlimited (the IPC_LOCK capability) and nvidia-peermem",
    ),
    Cause.SAME_GPU: Advice(
        why="two ranks of one communicator use the same GPU",
        hint="give each rank its own: LOCAL_RANK to cudaSetDevice, and as many GPUs as slots",
    ),
    Cause.VERSIONS: Advice(
        why="the ranks run different versions of NCCL",
        hint="use one image for all workers",
    ),
    Cause.CUDA: Advice(
        why="a call to CUDA failed: NCCL only tells what the driver said",
        hint="the text after the failure names it; an old driver and a GPU in error are common",
    ),
    Cause.NVLS: Advice(
        why="NVLink SHARP could not be set up",
        hint="NCCL_NVLS_ENABLE=0 goes without; the fabric manager may need a restart",
    ),
    Cause.GDR_OFF: Advice(
        why="the network card does not reach GPU memory: data is copied to host memory first",
        hint="load nvidia-peermem on the node; NCCL_NET_GDR_LEVEL allows longer ways",
    ),
    Cause.PEER: Advice(
        why="another rank's process exited, or the network failed; this one only noticed",
        hint="look for what the other ranks complained of before",
    ),
}

_OF_TEXTS: tuple[tuple[re.Pattern[str], Advice], ...] = tuple(
    (re.compile(text), advice)
    for text, advice in (
        (
            r"same GPU/Partition",
            Advice(
                why="two ranks of one communicator use the same GPU, or the same slice of one",
                hint="give each rank its own, with as many GPUs (or slices) as slots;"
                " NCCL_MULTI_RANK_GPU_ENABLE=1 allows it as it is",
            ),
        ),
        (
            r"using the same NVML device",
            Advice(
                why="ranks share a GPU, and NVLink SHARP needs one for each",
                hint="leave out NCCL_NVLS_ENABLE=1",
            ),
        ),
        (
            r"Duplicate GPU detected",
            Advice(
                why="two ranks of one communicator use the same GPU",
                hint="give each rank its own: LOCAL_RANK to cudaSetDevice, and as many GPUs as"
                " slots; slices of one GPU (MIG) count as one up to NCCL 2.29",
            ),
        ),
    )
)
"""Complaints of which more is known than of others with the same cause (src/init.cc)."""

_FOLLOWS = re.compile(
    r"\[Service thread\] (?:Error encountered|Could not receive)|Proxy Call to rank \d+ failed"
)
"""What a process says after something in it failed, and had been told of (src/proxy.cc)."""

_TEXTS: tuple[tuple[re.Pattern[str], Cause], ...] = tuple(
    (re.compile(text), cause)
    for text, cause in (
        (r"(?:fallocate|shared memory|ailed to extend).*No space left", Cause.SHM_FULL),
        (r"ailed to extend \S+ to \d+ bytes$", Cause.SHM_FULL),
        (r"attaching to shared memory segment", Cause.SHM_GONE),
        (r"shm_open.*failed|[Cc]ould not map .*nccl", Cause.SHM_GONE),
        (r"P2P is disabled between NVLINK", Cause.NVLINK_OFF),
        (r"P2P is disabled between|Could not enable P2P between", Cause.P2P_OFF),
        (r"[Ff]ailed to open CUDA IPC handle|failed to peer with device", Cause.P2P_BROKEN),
        (r"peer query failed|cudaIpc(?:Get|Open)MemHandle", Cause.P2P_BROKEN),
        (r"Cuda failure .*(?:invalid device context|peer access)", Cause.P2P_BROKEN),
        (r"Duplicate GPU detected|same GPU/Partition|the same NVML device", Cause.SAME_GPU),
        (r"Mismatched NCCL version", Cause.VERSIONS),
        (r"Got completion .*(?:with error|status=)", Cause.IB_COMPLETION),
        (
            r"ibv_reg_(?:dmabuf_)?mr.*failed|ibv_create_cq.*(?:Cannot alloc|not permit)",
            Cause.IB_MEMORY,
        ),
        (r"ibv_modify_qp failed|incompatible (?:with the local|devices)", Cause.IB_SETUP),
        (r"different link_layer", Cause.IB_SETUP),
        (r"no socket interface found|No IP interface found|no interface found", Cause.NO_INTERFACE),
        (r"No interface found in the same subnet", Cause.NO_INTERFACE),
        (r"No transport found for rank|has no transport for", Cause.NO_TRANSPORT),
        (r"Connection refused|exceeded retries", Cause.REFUSED),
        (r"[Cc]onnect.*(?:[Tt]imed? ?out|No route to host)|exceeded timeouts", Cause.TIMED_OUT),
        (r"[Cc]onnection closed by remote peer|Connection reset by peer", Cause.CLOSED),
        (r"Broken pipe|recv failed|Socket recv failed while polling", Cause.CLOSED),
        (r"NVLS|NVLink SHARP|[Mm]ulticast", Cause.NVLS),
        (r"GPU Direct RDMA Disabled", Cause.GDR_OFF),
        (r"Cuda failure|CUDA error|Cuda driver", Cause.CUDA),
        (r"remote process exited", Cause.PEER),
    )
)

_OFF = re.compile(
    r"P2P is disabled between|Could not enable P2P between|peer query failed"
    r"|GPU Direct RDMA Disabled for|fallocate: Failed to extend"
    r"|Call to connect returned|connect(?:ed)? (?:to \S+ )?returned .*retrying"
    r"|Failed to open libibverbs|cuMem host allocations do not appear to be working"
    r"|Failed to bind NVLink SHARP|Could not find a path for pattern"
)
"""INFO lines that say that something is not as it could be."""

_PEER = re.compile(r"<\d+>|\b(?:rank|peer) \d")

_NO_CARD = re.compile(r"NET/Socket : GPU Direct RDMA Disabled")
"""Said for every interface of sockets, which never have it."""


def cause_of(text: str) -> Cause | None:
    """The class of a complaint; None where its text is not known."""
    return next((cause for known, cause in _TEXTS if known.search(text)), None)


def advice_on(text: str, cause: Cause | None) -> Advice | None:
    """Why NCCL complains so, and what to try; None where that is not known."""
    special = (advice for known, advice in _OF_TEXTS if known.search(text))
    return next(special, None if cause is None else ADVICE.get(cause))


def names_peer(text: str) -> bool:
    """Whether a complaint tells with whom there was trouble: an address or a rank."""
    return bool(_PEER.search(text))


def follows(text: str) -> bool:
    """Whether a complaint only tells that something failed in its own process."""
    return bool(_FOLLOWS.search(text))


def is_off(text: str) -> bool:
    """Whether an INFO line says that something is not as it could be."""
    return bool(_OFF.search(text)) and not _NO_CARD.match(text)
