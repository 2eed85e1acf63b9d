"""What NCCL did otherwise than was planned: what, why as far as lines say it, and what to try.

Nothing is claimed without a line of NCCL that says it: where the lines show what was done and not
why, `cause` is None. What a setting, or a pod with a name of its own, does to NCCL is from its
source (src/transport.cc, src/transport/, src/graph/paths.cc, getHostHash in src/misc/utils.cc).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from arena_topo.bandwidth import BETWEEN_HOSTS, Regime
from arena_topo.manifests import estimates
from arena_topo.nccl import Cause, Complaint, Connection, Family, Host, Side, causes
from arena_topo.nccl.transports import Place
from arena_topo.topology import UNKNOWN_NETWORK

if TYPE_CHECKING:
    from arena_topo.nccl import Communicator
    from arena_topo.nccl.transports import Planned, Seen


class Kind(StrEnum):
    """What is not as it might be."""

    STAGED = "StagedInPod"
    """GPUs of one pod do not reach each other directly."""
    LINKS = "OtherLinks"
    """NCCL counts on worse links inside the machine than were planned."""
    APART = "PodsApart"
    """Pods of one node treat each other as strangers."""
    NETWORK = "PlainNetwork"
    """TCP where more was planned."""
    GPU_DIRECT = "NoGpuDirect"
    """Data goes through the host's memory on its way to the network."""
    INTERFACE = "OddInterface"
    """An interface that leads to no other node."""
    PLACE = "OtherPlace"
    """Ranks are elsewhere than was planned."""
    ORDER = "RankOrder"
    """Rings go to and fro between nodes."""
    RANKS = "OtherRanks"
    """Another number of ranks than was planned."""
    SILENT = "NoLines"
    """Ranks of which nothing was read."""
    UNFINISHED = "NotComplete"
    """Ranks that began and did not get done."""
    VERSIONS = "SeveralVersions"
    """Ranks with NCCL of several versions."""
    COMPLAINT = "Complaint"
    """What NCCL itself complains of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as planned, or costs bandwidth.

    `planned` is None where the plan says nothing of it; `foretold`: the plan itself has counted
    with it. `cause` is None where the lines do not show it. `said` are the lines, or what of them
    counts. Pairs are ranks in the direction of the data. `hosts` and `ranks` of a complaint are
    who wrote it, as far as that is certain.
    """

    kind: Kind
    got: str
    planned: str | None = None
    foretold: bool = False
    hosts: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    ranks: tuple[int, ...] = ()
    cause: str | None = None
    hint: str | None = None
    said: tuple[str, ...] = ()


_LOCAL_INTERFACES = ("lo", "docker", "virbr", "veth", "br-", "cni", "flannel", "cbr")
"""How interfaces begin that lead to no other machine, or only through a bridge on this one."""

_ASK_FOR_RDMA = (
    "ask for one: --rdma, or --device NAME=COUNT with the resource that the nodes offer (kubectl"
    " describe node NODE)"
)

_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,]+)")
"""What aws-ofi-nccl says (src/nccl_ofi_net.c): efa is RDMA, tcp and sockets are not."""

_STILL = "NCCL is still connecting, has failed, or the log ends here"

_NVLINKS = {"NVL", "NVB", "C2C", "LOC"}
"""Words of NCCL's paths that go over NVLink alone (src/graph/topo.h, PATH_NVL and its like)."""


def findings(seen: Seen) -> tuple[Finding, ...]:
    """All of them, what costs most first; no line is complained of twice."""
    found = tuple(_compared(seen))
    absent = (*_ranks(seen), *_versions(seen))
    told = {line for one in (*found, *absent) for line in one.said}
    # What NCCL warns of is why ranks are silent or not done, as often as not.
    warned = tuple(complaints(seen, told, warning=True))
    return (*found, *warned, *absent, *complaints(seen, told, warning=False))


def _compared(seen: Seen) -> Iterator[Finding]:
    yield from _inside_pods(seen)
    yield from _between_pods(seen)
    yield from _between_nodes(seen)
    yield from _links(seen)
    yield from _gpu_direct(seen)
    yield from _interfaces(seen)
    yield from _order(seen)


def _inside_pods(seen: Seen) -> Iterator[Finding]:
    for kind, pairs in seen.pairs(Place.POD).items():
        family = kind.partition("/")[0]
        linked = [pair for pair in pairs if seen.nvlink(*pair)]
        # Over PCIe NCCL goes through shared memory of itself where the way is long.
        odd = pairs if family == Family.NET else linked
        if family == Family.P2P or not odd:
            continue
        cause, hint, said = _why_staged(seen, kind, odd)
        yield Finding(
            kind=Kind.STAGED,
            planned="NVLink" if linked else "one pod",
            got=kind,
            pairs=tuple(odd),
            cause=cause,
            hint=hint,
            said=said,
        )


def _why_staged(
    seen: Seen, kind: str, pairs: Sequence[tuple[int, int]]
) -> tuple[str | None, str, tuple[str, ...]]:
    """Why GPUs of one pod are not joined directly, as far as lines say it."""
    off = ("NCCL_SHM_DISABLE",) if kind != Family.SHM else ()
    level = ("NCCL_P2P_LEVEL",) if seen.value("NCCL_P2P_LEVEL") in {"LOC", "0"} else ()
    if found := seen.asked("NCCL_P2P_DISABLE", *level, *off):
        names = " and ".join(found)
        return f"the environment asks for it: {names}", f"leave out {names}", seen.set_by(*found)
    for one in seen.report.complaints:
        if one.cause is Cause.NVLINK_OFF:
            return causes.ADVICE[one.cause].why, causes.ADVICE[one.cause].hint, (one.text,)
        if one.cause in {Cause.P2P_OFF, Cause.P2P_BROKEN}:
            return (
                "the driver or NCCL found that these GPUs cannot reach each other directly",
                "look for ACS and IOMMU on the node; nvidia-smi topo -p2p r names such pairs",
                (one.text,),
            )
    return (
        None,
        "nvidia-smi topo -p2p r in the pod shows which GPUs can reach each other",
        (seen.via(pairs[0], kind),),
    )


def _between_pods(seen: Seen) -> Iterator[Finding]:
    apart = seen.pairs(Place.NODE)
    shared = "NCCL_HOSTID" in seen.settings
    for kind, pairs in apart.items():
        family = kind.partition("/")[0]
        if family == Family.P2P:
            continue
        linked = [pair for pair in pairs if seen.nvlink(*pair)]
        said: tuple[str, ...] = (seen.via(pairs[0], kind),)
        plan = seen.planned
        foretold = plan is not None and plan.regime in BETWEEN_HOSTS
        cause: str | None
        if family == Family.SHM:
            cause, hint, said = _why_staged(seen, kind, pairs)
            hint = "use --pod-shape fused: GPUs of one pod see each other" if not cause else hint
        elif shared:
            cause = None
            hint = "look whether the pods have the same /dev/shm, or use --pod-shape fused"
            said += seen.set_by("NCCL_HOSTID")
        elif len({seen.host(one) for one in pairs[0]}) == 1:
            # NCCL goes by the names of hosts, and these have the same.
            cause, hint = None, "--pod-shape fused makes one pod of the workers of a node"
        else:
            cause = (
                "the pods have host names of their own, and NCCL takes each name for a machine"
                f" ({', '.join(seen.host(one) for one in pairs[0])})"
            )
            hint = (
                "--pod-shape fused makes one pod of the workers of a node; --pod-shape shared"
                " lets pods share what NCCL needs"
            )
        yield Finding(
            kind=Kind.APART,
            planned="NVLink" if linked else "one node",
            got=kind,
            foretold=foretold and not shared,
            pairs=tuple(linked or pairs),
            cause=cause,
            hint=hint,
            said=said,
        )


def _between_nodes(seen: Seen) -> Iterator[Finding]:
    plan = seen.planned
    for kind, pairs in seen.pairs(Place.NODES).items():
        family = kind.partition("/")[0]
        nvlink = plan is not None and plan.tier == "nvlink"
        # Every P2P is called MNNVL where NVLink joins machines (src/transport/p2p.cc).
        if family == Family.SHM or (family == Family.P2P and kind != "P2P/MNNVL" and not nvlink):
            yield Finding(
                kind=Kind.PLACE,
                planned="two nodes",
                got=f"{kind}, which only joins GPUs of one machine",
                pairs=tuple(pairs),
                hint="compare with arena-topo get JOB: it tells where the pods run",
                said=(seen.via(pairs[0], kind),),
            )
        elif family == Family.NET and nvlink:
            yield Finding(
                kind=Kind.NETWORK,
                planned="NVLink between the nodes",
                got=kind,
                pairs=tuple(pairs),
                hint="NCCL joins nodes by NVLink only with IMEX: is there a ComputeDomain?",
                said=(seen.via(pairs[0], kind),),
            )
        elif kind == "NET/Socket" and plan is not None and _counts_on_more(plan):
            cause, hint, said = _why_socket(seen, pairs)
            yield Finding(
                kind=Kind.NETWORK,
                planned=f"{_rate(plan)} between nodes" + (f" ({plan.tier})" if plan.tier else ""),
                got="NET/Socket, which is TCP",
                pairs=tuple(pairs),
                cause=cause,
                hint=hint,
                said=said,
            )


def _why_socket(
    seen: Seen, pairs: Sequence[tuple[int, int]]
) -> tuple[str | None, str, tuple[str, ...]]:
    """Why nodes are joined by TCP, as far as lines say it."""
    socket = ("NCCL_NET",) if seen.value("NCCL_NET") == "Socket" else ()
    if found := (*seen.asked("NCCL_IB_DISABLE"), *socket):
        names = " and ".join(found)
        return f"the environment asks for it: {names}", f"leave out {names}", seen.set_by(*found)
    hosts = [seen.hosts[name] for name in seen.names(pairs) if name in seen.hosts]
    without = [one for one in hosts if one.no_ib]
    if without:
        return (
            f"NCCL finds no InfiniBand or RoCE device in {_some([one.name for one in without])}",
            _ASK_FOR_RDMA,
            (without[0].no_ib_said,),
        )
    failed = [
        line
        for one in hosts
        for line in one.plugins
        if any(word in line for word in ("returned", "Failed", "No plugin", "Could not"))
    ]
    return (
        None,
        "do the pods have an RDMA device (--rdma, --device), the image a network plugin?",
        (*failed[:2], seen.via(pairs[0], "NET/Socket")),
    )


def _links(seen: Seen) -> Iterator[Finding]:
    """NCCL's own search, where all neighbours in pods should be joined by NVLink."""
    rings = [
        seen.nvlink(one, other)
        for ranks in seen.mates.values()
        if len(ranks) > 1
        for one, other in zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    ]
    if not rings or not all(rings):
        return
    for search in seen.main.searches:
        if search.pattern.lower().startswith("ring") and search.inside not in _NVLINKS:
            yield Finding(
                kind=Kind.LINKS,
                planned="NVLink",
                got=f"{search.inside} inside the machine, by NCCL's own search",
                hint="do the workers have the planned GPUs? arena-topo check JOB looks into"
                " them; nvidia-smi nvlink -s shows links that are down",
                said=(search.said,),
            )
            return


def _gpu_direct(seen: Seen) -> Iterator[Finding]:
    """Connections over RDMA that do not start or end in the GPU's memory.

    NCCL decides for each end: sending needs more than receiving (src/graph/paths.cc,
    ncclTopoCheckGdr).
    """
    staged: dict[tuple[int, int], list[Connection]] = {}
    arrives: set[tuple[int, int]] = set()
    for one in seen.main.connections:
        pair = (one.source, one.target)
        if one.family is Family.NET and one.kind != "NET/Socket" and one.gdr is False:
            staged.setdefault(pair, []).append(one)
        elif one.gdr and one.side is Side.RECEIVE:
            arrives.add(pair)
    sent = sorted(
        pair
        for pair, ends in staged.items()
        if pair in arrives and all(one.side is Side.SEND for one in ends)
    )
    both: dict[str, list[tuple[int, int]]] = {}
    for pair in sorted(staged.keys() - set(sent)):
        both.setdefault(staged[pair][0].kind, []).append(pair)
    for pairs in both.values():
        yield _staged_by_host(seen, pairs, staged[pairs[0]][0])
    if sent:
        asked = seen.value("NCCL_NET_GDR_READ") == "0"
        yield Finding(
            kind=Kind.GPU_DIRECT,
            got="RDMA that leaves through the host's memory (GDRDMA where it arrives only)",
            pairs=tuple(sent),
            cause="the environment asks for it: NCCL_NET_GDR_READ" if asked else None,
            hint="leave out NCCL_NET_GDR_READ"
            if asked
            else "NCCL_NET_GDR_READ=1 lets cards read the GPU's memory; NCCL does not by itself"
            " where a GPU before Ampere has PCIe neighbours and no NVLink",
            said=seen.set_by("NCCL_NET_GDR_READ") if asked else (staged[sent[0]][0].said,),
        )


def _staged_by_host(seen: Seen, staged: Sequence[tuple[int, int]], first: Connection) -> Finding:
    provider, chosen = _provider(seen, staged)
    rdma = first.kind.startswith("NET/IB") or provider == "efa"
    off = seen.asked("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_DISABLE")
    lines = [one.text for one in seen.report.complaints if one.cause is Cause.GDR_OFF]
    cause = None
    hint = "has the network plugin been built for GPU Direct RDMA, and can the card do it?"
    if first.kind.startswith("NET/IB"):
        hint = "is nvidia-peermem loaded on the nodes, or DMA-BUF there (Linux 5.12, open driver)?"
    if off:
        names = " and ".join(off)
        cause, hint = f"the environment says how far it may go: {names}", f"leave out {names}"
    elif lines:
        cause = f"NCCL says: {lines[0]}"
    elif provider is not None and not rdma:
        cause, lines = f"the network plugin chose the provider {provider}", [chosen]
        hint = "have the pods the device that the plugin is for (--device), the image its driver?"
    return Finding(
        kind=Kind.GPU_DIRECT,
        got="RDMA through the host's memory (no GDRDMA in the lines)"
        if rdma
        else f"{first.kind}, no GDRDMA in the lines",
        pairs=tuple(staged),
        cause=cause,
        hint=hint,
        said=(*seen.set_by(*off), *lines[:1]) or (first.said,),
    )


def _provider(seen: Seen, pairs: Sequence[tuple[int, int]]) -> tuple[str | None, str]:
    """What the plugin of AWS goes through on the hosts of some ranks, and the line that says so.

    None where no line says it, or they differ.
    """
    found = {
        told[1]: line
        for name in seen.names(pairs)
        if name in seen.hosts
        for line in seen.hosts[name].plugins
        if (told := _PROVIDER.match(line))
    }
    return next(iter(found.items())) if len(found) == 1 else (None, "")


def _interfaces(seen: Seen) -> Iterator[Finding]:
    """Interfaces of TCP and of the rendezvous that reach no other machine."""
    odd: dict[str, list[Host]] = {}
    for host in seen.hosts.values():
        for name in _used_by(host):
            if name.startswith(_LOCAL_INTERFACES):
                odd.setdefault(name, []).append(host)
    if len(seen.hosts) == 1:
        return
    for name, hosts in odd.items():
        wish = seen.value("NCCL_SOCKET_IFNAME") or ""
        asked = any(name.startswith(one.lstrip("=")) for one in wish.split(",") if one)
        found = seen.set_by("NCCL_SOCKET_IFNAME") if asked else ()
        yield Finding(
            kind=Kind.INTERFACE,
            got=f"interface {name} on {_some([one.name for one in hosts])}",
            cause=f"the environment asks for it: NCCL_SOCKET_IFNAME={wish}" if found else None,
            hint="name the interface that joins the pods: --env NCCL_SOCKET_IFNAME=eth0, and"
            " pass it on to the ranks (mpirun -x NCCL_SOCKET_IFNAME)",
            said=found or (hosts[0].said[name],),
        )


def _order(seen: Seen) -> Iterator[Finding]:
    """Rings that go between nodes more often than once to each."""
    plan = seen.planned
    if plan is None or plan.nodes < 2 or not seen.seats:  # noqa: PLR2004 - none between one
        return
    worst: tuple[int, int] | None = None
    for channel, ring in seen.main.rings.items():
        if None in ring or any(rank not in seen.seats for rank in ring if rank is not None):
            continue
        ranks = [rank for rank in ring if rank is not None]
        crossed = sum(
            seen.seats[one].node != seen.seats[other].node
            for one, other in zip(ranks, [*ranks[1:], *ranks[:1]], strict=True)
        )
        if worst is None or crossed > worst[1]:
            worst = (channel, crossed)
    if worst is None or worst[1] <= plan.nodes:
        return
    channel, crossed = worst
    yield Finding(
        kind=Kind.ORDER,
        planned=f"{plan.nodes} hops between nodes",
        got=f"{crossed} in the ring of channel {channel}",
        ranks=tuple(rank for rank in seen.main.rings[channel] if rank is not None),
        hint="number the ranks node by node: leave out --map-by node and rank files of your"
        " own; where pods share no host id, --pod-shape fused",
        said=(seen.main.ring_lines[channel],),
    )


def _ranks(seen: Seen) -> Iterator[Finding]:
    plan, size = seen.planned, seen.main.size
    if plan is not None and size is not None and size != plan.ranks:
        yield Finding(
            kind=Kind.RANKS,
            planned=f"{plan.ranks} ranks",
            got=f"{size} in the largest communicator",
            hint="mpirun -np, or the hostfile, says how many start; one for each GPU",
            said=_introduced(seen.main),
        )
    if missing := seen.main.missing:
        yield Finding(
            kind=Kind.SILENT,
            got=f"no lines of {named(missing)}",
            ranks=missing,
            hint="is NCCL_DEBUG=INFO set there? submit with --nccl-debug, or mpirun -x"
            " NCCL_DEBUG=INFO",
            said=_introduced(seen.main),
        )
    began = set(seen.main.incomplete) - set(missing)
    if began:
        ranks = tuple(sorted(began))
        yield Finding(
            kind=Kind.UNFINISHED,
            got=f'no "Init COMPLETE" of {named(ranks)}',
            ranks=ranks,
            hint=_STILL,
            said=_introduced(seen.main, ranks),
        )
    left = [one for one in seen.others if one.size is not None and one.incomplete]
    if left:
        told = " and ".join(f"{named(one.incomplete)} in {_called(one)}" for one in left[:2])
        more = f" and in {len(left) - 2} more" if len(left) > 2 else ""  # noqa: PLR2004 - as above
        yield Finding(
            kind=Kind.UNFINISHED,
            got=f'no "Init COMPLETE" of {told}{more}',
            hint=_STILL,
            said=_introduced(left[0], left[0].incomplete),
        )


def _introduced(whole: Communicator, ranks: Collection[int] | None = None) -> tuple[str, ...]:
    """The line by which the first of some ranks, of all by default, told which it is."""
    wanted = None if ranks is None else set(ranks)
    said = (one.said for one in whole.ranks if wanted is None or one.rank in wanted)
    return tuple(line for line in said if line)[:1]


def _called(one: Communicator) -> str:
    name = "another communicator" if one.name is None else f"communicator {one.name}"
    return f"{name} (of {one.size})"


def _versions(seen: Seen) -> Iterator[Finding]:
    if len(seen.report.versions) > 1:
        yield Finding(
            kind=Kind.VERSIONS,
            got=", ".join(seen.report.versions),
            hint="all ranks must load the same libnccl: look at LD_LIBRARY_PATH and the images",
            said=tuple(f"NCCL version {one}" for one in seen.report.versions),
        )


def complaints(
    seen: Seen, told_of: Collection[str] = (), *, warning: bool | None = None
) -> Iterator[Finding]:
    """What NCCL itself says is wrong, with the cause where it is known, but for some lines.

    Texts of one cause follow each other, those first that name a peer. `warning` takes WARN lines
    only, or all others. That GPU Direct RDMA is off for a card is said of cards that nobody uses,
    too.
    """
    told: dict[object, list[Complaint]] = {}
    for one in seen.report.complaints:
        if one.cause is Cause.GDR_OFF or one.text in told_of:
            continue
        if warning is not None and one.warning is not warning:
            continue
        if one.cause is not None or one.warning:
            known = causes.advice_on(one.text, one.cause)
            told.setdefault(known or one.text, []).append(one)
    for several in told.values():
        for one in sorted(several, key=lambda one: not causes.names_peer(one.text)):
            known = causes.advice_on(one.text, one.cause)
            why = None if known is None else known.why
            if one.follows is not None:
                why = f"the same process had complained before: {one.follows}"
            yield Finding(
                kind=Kind.COMPLAINT,
                got=one.text + (f" (x{one.count})" if one.count > 1 else ""),
                hosts=tuple(name for name in one.hosts if name),
                ranks=one.ranks,
                cause=why,
                hint=None if known is None else known.hint,
                said=(one.text,),
            )


def _used_by(host: Host) -> Iterator[str]:
    """The interfaces that a host uses for the rendezvous and, if that is its network, for TCP."""
    seen = [name for name, _address in host.bootstrap]
    if "Socket" in host.networks:
        seen += [one.name for one in host.devices if one.network == "Socket"]
    return iter(dict.fromkeys(seen))


def _counts_on_more(plan: Planned) -> bool:
    """Whether the plan counts on more than TCP; a record without a regime, by its bandwidth."""
    if plan.regime is not None:
        return plan.regime != Regime.TCP
    return plan.bandwidth is not None and plan.bandwidth > UNKNOWN_NETWORK


def _rate(plan: Planned) -> str:
    rate = plan.bandwidth if plan.usable is None else plan.usable
    return "?" if rate is None else f"{estimates.amount(rate)} GB/s"


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many more."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def named(ranks: Sequence[int]) -> str:
    """Ranks in words: `rank 3`, `ranks 0-3,7`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"


def spans(numbers: Iterable[int]) -> str:
    """Numbers in rising order, neighbours as a span: `0-3,7`."""
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and one == runs[-1][-1] + 1:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    return ",".join("-".join(map(str, run)) for run in runs)
