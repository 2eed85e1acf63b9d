"""What NCCL 2.18 says when ranks connect, in its own words, for jobs of any shape.

The words are those of NCCL's source (v2.18.3-1: src/init.cc, src/bootstrap.cc, src/transport/*.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from arena_topo.nccl.bandwidth_tables import BandwidthTable, TableReader


def read_tables(lines: Iterable[str]) -> tuple[BandwidthTable, ...]:
    """Every table of one log."""
    reader = TableReader()
    reader.feed_all(lines)
    return reader.tables()


def host_of(pod: int) -> str:
    return f"demo-worker-{pod}"


def spoken(
    ranks: int,
    per_pod: int,
    via: Callable[[int, int], str],
    *,
    ring: Sequence[int] | None = None,
    host: Callable[[int], str] = host_of,
    network: str = "Socket",
    interface: str = "eth0",
    settings: Iterable[str] = (),
    more: Iterable[str] = (),
    silent: Iterable[int] = (),
    search: str = "",
    complete: bool = True,
) -> list[str]:
    """The lines of a job of one ring; `via` is the transport from a rank to the next.

    `settings` are NAME=VALUE of the environment, `more` is said by rank 0 besides, `silent` ranks
    say nothing, `search` is the type that NCCL's search counts on, such as NVL/PIX.
    """
    order = list(ring or range(ranks))
    lines = ["NCCL version 2.18.3+cuda12.2"]
    quiet = set(silent)

    def say(rank: int, *texts: str) -> None:
        pod, local = divmod(rank, per_pod)
        prefix = f"{host(pod)}:{100 + rank}:{200 + rank} [{local}] NCCL INFO "
        lines.extend(prefix + text for text in texts if rank not in quiet)

    def comm(rank: int, state: str) -> str:
        local = rank % per_pod
        return (
            f"comm 0x55d0{rank:04x} rank {rank} nranks {ranks} cudaDev {local} nvmlDev {local}"
            f" busId {local + 6:x}000 commId 0xd3b1ae8d4e8f5f3b - Init {state}"
        )

    for rank in range(ranks):
        say(rank, *_begun(f"{interface}:10.0.0.{rank // per_pod + 1}<0>", network, settings))
        say(rank, comm(rank, "START"))
    say(0, *more)
    words = " ".join(f"{rank:4d}" for rank in order)
    say(0, *(f"Channel {channel:02d}/02 : {words}" for channel in range(2)))
    if search:
        say(0, f"Pattern 4, crossNic 0, nChannels 2, bw 20.0/20.0, type {search}, sameChannels 1")
    for rank, after in zip(order, [*order[1:], order[0]], strict=True):
        way = via(rank, after)
        pair = f"{rank}[{rank % per_pod}] -> {after}[{after % per_pod}]"
        for channel in range(2):
            text = f"Channel {channel:02d}/0 : {pair}"
            if way.startswith("NET"):
                say(rank, f"{text} [send] via {way}")
                say(after, f"{text} [receive] via {way}")
            else:
                say(rank, f"{text} via {way}")
    for rank in range(ranks):
        say(rank, "Connected all rings", *([comm(rank, "COMPLETE")] if complete else []))
    return lines


def _begun(address: str, network: str, settings: Iterable[str]) -> list[str]:
    """What a rank says of its network, and of its environment."""
    found = (
        [f"NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB {address}"]
        if network == "IB"
        else ["NET/IB : No device found.", f"NET/Socket : Using [0]{address}"]
    )
    named = [one.replace("=", " set by environment to ", 1) + "." for one in settings]
    return [f"Bootstrap : Using {address}", *named, *found, f"Using network {network}"]


def through(inside: str, outside: str, per_pod: int) -> Callable[[int, int], str]:
    """One transport within pods, another between them."""
    return lambda one, other: inside if one // per_pod == other // per_pod else outside


def table_of(
    ranks: int,
    per_pod: int,
    rate: float,
    *,
    size: int = 1 << 30,
    host: Callable[[int], str] = host_of,
) -> list[str]:
    """What all_reduce_perf of nccl-tests prints (2.13, src/common.cu), for one size."""
    lines = ["# Collective test starting: all_reduce_perf", "# Using devices"]
    for rank in range(ranks):
        local = rank % per_pod
        lines.append(
            f"#  Rank {rank:2d} Group  0 Pid {100 + rank:6d} on {host(rank // per_pod):>10}"
            f" device {local:2d} [0x{local + 6:02x}] Tesla V100-SXM2-16GB"
        )
    columns = "     time   algbw   busbw #wrong"
    units = "     (us)  (GB/s)  (GB/s)       "
    measured = f"   13106  {rate / 1.5:6.2f}  {rate:6.2f}      0"
    lines += [
        "#",
        f"#       size         count      type   redop    root{columns}{columns}",
        f"#        (B)    (elements)                          {units}{units}",
        f"{size:12d} {size // 4:13d}     float     sum      -1{measured}{measured}",
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {rate}",
        "#",
    ]
    return lines


def made(
    ranks: int, names: Iterable[str], *, pods: Sequence[int] | None = None, done: bool = True
) -> list[str]:
    """What ranks say that make communicators by these names, and connect later.

    They are in one pod, or each in its own.
    """

    def comm(name: str, rank: int) -> str:
        local = 0 if pods else rank
        return (
            f"comm 0x{rank}{name} rank {rank} nranks {ranks} cudaDev {local} nvmlDev {local}"
            f" busId {local + 6:x}000 commId 0x{name}"
        )

    return [
        f"{_thread(rank, pods)} ncclCommInitRank {comm(name, rank)} - Init {state}"
        for name in names
        for state in ("START", "COMPLETE")[: 1 + done]
        for rank in range(ranks)
    ]


def joined(ranks: int, way: str, *, pods: Sequence[int] | None = None) -> list[str]:
    """What their threads say that connect at the first collective (since 2.22), of a ring."""
    found = []
    for rank in range(ranks):
        after = (rank + 1) % ranks
        ends = f"{rank}[{0 if pods else rank}] -> {after}[{0 if pods else after}]"
        end = " [send]" if way.startswith("NET") else ""
        found.append(f"{_thread(rank, pods)} Channel 00/0 : {ends}{end} via {way}")
    return found


def _thread(rank: int, pods: Sequence[int] | None) -> str:
    host, local = (host_of(pods[rank]), 0) if pods else (host_of(0), rank)
    return f"{host}:{100 + local}:{200 + local} [{local}] NCCL INFO"
