"""Findings: NCCL's differences from the plan, the cause if a line shows it, and what to try.

Each finding quotes its line. If the lines show a difference but not its reason, `cause` is None.
The effects of settings and of host names are from NCCL's source (src/transport.cc, src/transport/,
src/graph/paths.cc, getHostHash in src/misc/utils.cc).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from arena_topo.bandwidth import BETWEEN_HOSTS, Regime
from arena_topo.joblogs.view import spans
from arena_topo.manifests import estimates
from arena_topo.nccl import Cause, Communicator, Report, causes
from arena_topo.nccl.comparison import Observed, Pair, Place, Planned
from arena_topo.topology import UNKNOWN_NETWORK
from arena_topo.words import shortened


class Kind(StrEnum):
    """The aspect in which something could be better."""

    TRANSPORT = "Transport"
    """GPUs of one node do not reach each other directly, or only over worse links than planned."""
    NETWORK = "Network"
    """TCP instead of a faster network of the plan, or data that is staged in the host's memory."""
    PLACEMENT = "Placement"
    """Ranks are elsewhere than planned."""
    ORDER = "Order"
    """Rings cross between nodes more often than necessary."""
    RANKS = "Ranks"
    """Another number of ranks than planned, silent ranks, and incomplete ones."""
    WARNING = "Warning"
    """A complaint of NCCL itself."""
    SETTINGS = "Settings"
    """An interface that leads to no other node, or several versions of NCCL."""


class Why(NamedTuple):
    """The cause of a finding (None if no line shows it), what to try, and the lines about it."""

    cause: str | None = None
    hint: str | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference from the plan, or a loss of bandwidth.

    `planned` is None if the plan does not mention it; `foretold`: the plan itself expects it.
    `hosts` and `ranks` of a warning are its writers, as far as that is certain.
    """

    kind: Kind
    got: str
    why: Why
    planned: str | None = None
    foretold: bool = False
    hosts: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The observed communicator, and its findings, most costly first."""

    observed: Observed
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Whether there is a plan, and nothing that was read differs from it."""
        return (
            self.observed.planned is not None
            and bool(self.observed.transports)
            and all(one.foretold for one in self.findings)
        )


MOST = 1 << 20
"""Characters of a list of ranks in a sentence: no limit."""

_LOCAL_INTERFACES = ("lo", "docker", "virbr", "veth", "br-", "cni", "flannel", "cbr")
"""Prefixes of interfaces that lead to no other machine, or only through a bridge on this one."""

_NVLINKS = {"NVL", "NVB", "C2C", "LOC"}
"""Words of NCCL's paths over NVLink alone (src/graph/topo.h, PATH_NVL and its like)."""

_FUSED = "--pod-shape fused makes one pod of the workers of a node"


def compare(report: Report, planned: Planned | None) -> Comparison:
    """Compare a report with the plan; without a plan only NCCL's own complaints count.

    No line appears in two findings.
    """
    seen = Observed(report, planned)
    found = [
        *_transports(seen),
        *_links(seen),
        *_gpu_direct(seen),
        *_interfaces(seen),
        *_order(seen),
    ]
    absent = [*_ranks(seen), *_versions(report)] if report.largest else []
    used = {line for one in (*found, *absent) for line in one.why.lines}
    # NCCL's warnings often explain why ranks are silent or incomplete, so they come first.
    return Comparison(observed=seen, findings=(*found, *_complaints(report, used), *absent))


# ---------------------------------------------------------------- transports


def _transports(seen: Observed) -> Iterator[Finding]:
    """Transports within a pod, within a node and between nodes that are worse than planned."""
    for place, of in ((Place.POD, _in_pod), (Place.NODE, _between_pods), (Place.NODES, _nodes)):
        for kind, pairs in seen.pairs(place).items():
            if seen.planned is not None:
                yield from of(seen, seen.planned, kind, pairs)


def _in_pod(seen: Observed, _plan: Planned, kind: str, pairs: list[Pair]) -> Iterator[Finding]:
    linked = [pair for pair in pairs if seen.nvlink(pair)]
    # Over PCIe NCCL chooses shared memory by itself for distant GPUs.
    odd = pairs if kind.startswith("NET") else linked
    if odd and not kind.startswith("P2P"):
        planned = "NVLink" if linked else "one pod"
        why = _why_staged(seen, kind, odd)
        yield Finding(kind=Kind.TRANSPORT, planned=planned, got=kind, pairs=tuple(odd), why=why)


def _between_pods(seen: Observed, plan: Planned, kind: str, pairs: list[Pair]) -> Iterator[Finding]:
    if kind.startswith("P2P"):
        return
    linked = [pair for pair in pairs if seen.nvlink(pair)]
    hosts = [seen.host(rank) for rank in pairs[0]]
    shared = "NCCL_HOSTID" in seen.settings
    line = seen.via(pairs[0], kind)
    why = Why(None, _FUSED, (line,))
    if kind == "SHM":
        why = _why_staged(seen, kind, pairs)
        if why.cause is None:
            why = why._replace(hint="use --pod-shape fused: GPUs of one pod see each other")
    elif shared:
        hint = "look whether the pods have the same /dev/shm, or use --pod-shape fused"
        why = Why(None, hint, (line, *seen.set_by("NCCL_HOSTID")))
    elif hosts[0] != hosts[1]:
        cause = (
            "the pods have host names of their own, and NCCL takes each name for a machine"
            f" ({', '.join(hosts)})"
        )
        hint = f"{_FUSED}; --pod-shape shared lets pods share what NCCL needs"
        why = Why(cause, hint, (line,))
    yield Finding(
        kind=Kind.TRANSPORT,
        planned="NVLink" if linked else "one node",
        got=kind,
        foretold=plan.forecast.regime in BETWEEN_HOSTS and not shared,
        pairs=tuple(linked or pairs),
        why=why,
    )


def _nodes(seen: Observed, plan: Planned, kind: str, pairs: list[Pair]) -> Iterator[Finding]:
    forecast = plan.forecast
    nvlink = forecast.tier == "nvlink"
    kind_of, got, hint = Kind.NETWORK, kind, ""
    # If NVLink joins machines, every P2P is called MNNVL (src/transport/p2p.cc).
    if kind == "SHM" or (kind.startswith("P2P") and kind != "P2P/MNNVL" and not nvlink):
        kind_of, planned = Kind.PLACEMENT, "two nodes"
        got = f"{kind}, which only joins GPUs of one machine"
        hint = "compare with arena-topo get JOB: it tells where the pods run"
    elif kind.startswith("NET") and nvlink:
        planned = "NVLink between the nodes"
        hint = "NCCL joins nodes by NVLink only with IMEX: is there a ComputeDomain?"
    elif kind == "NET/Socket" and _counts_on_more(plan):
        rate = forecast.bus_bandwidth if forecast.usable is None else forecast.usable
        amount = "?" if rate is None else f"{estimates.amount(rate)} GB/s"
        planned = f"{amount} between nodes" + (f" ({forecast.tier})" if forecast.tier else "")
        got = "NET/Socket, which is TCP"
    else:
        return
    why = Why(None, hint, (seen.via(pairs[0], kind),)) if hint else _why_socket(seen, pairs)
    yield Finding(kind=kind_of, planned=planned, got=got, pairs=tuple(pairs), why=why)


def _counts_on_more(plan: Planned) -> bool:
    """Whether the plan expects more than TCP; an old record without a regime, by its bandwidth."""
    if plan.forecast.regime is not None:
        return plan.forecast.regime != Regime.TCP
    return (plan.forecast.bus_bandwidth or 0.0) > UNKNOWN_NETWORK


def _why_staged(seen: Observed, kind: str, pairs: Sequence[Pair]) -> Why:
    """Why GPUs of one pod are not connected directly."""
    off = ["NCCL_P2P_DISABLE"] if kind == "SHM" else ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]
    asked = _on(seen, *off)
    asked += ["NCCL_P2P_LEVEL"] if seen.value("NCCL_P2P_LEVEL") in {"LOC", "0"} else []
    if asked:
        return _asked_for(seen, asked)
    for one in seen.report.complaints:
        if one.cause is Cause.NVLINK_OFF:
            advice = causes.advice_for(one.cause)
            return Why(advice.why, advice.hint, (one.text,))
        if one.cause in {Cause.P2P_OFF, Cause.P2P_BROKEN}:
            return Why(
                "the driver or NCCL found that these GPUs cannot reach each other directly",
                "look for ACS and IOMMU on the node; nvidia-smi topo -p2p r names such pairs",
                (one.text,),
            )
    hint = "nvidia-smi topo -p2p r in the pod shows which GPUs can reach each other"
    return Why(None, hint, (seen.via(pairs[0], kind),))


def _on(seen: Observed, *names: str) -> list[str]:
    """The variables that the environment sets to something other than 0."""
    return [name for name in names if seen.value(name) not in {"", "0"}]


def _asked_for(seen: Observed, names: Sequence[str]) -> Why:
    listed = " and ".join(names)
    cause = f"the environment asks for it: {listed}"
    return Why(cause, f"leave out {listed}", seen.set_by(*names))


def _why_socket(seen: Observed, pairs: Sequence[Pair]) -> Why:
    """Why nodes are connected by TCP."""
    asked = _on(seen, "NCCL_IB_DISABLE")
    asked += ["NCCL_NET"] if seen.value("NCCL_NET") == "Socket" else []
    if asked:
        return _asked_for(seen, asked)
    hosts = [seen.hosts[name] for name in seen.hosts_of(pairs) if name in seen.hosts]
    if without := [one for one in hosts if one.no_ib]:
        names = shortened([one.name for one in without], 1)
        hint = (
            "ask for one: --rdma, or --device NAME=COUNT with the resource that the nodes offer"
            " (kubectl describe node NODE)"
        )
        cause = f"NCCL finds no InfiniBand or RoCE device in {names}"
        return Why(cause, hint, (*without[0].no_ib.values(),))
    hint = "do the pods have an RDMA device (--rdma, --device), the image a network plugin?"
    return Why(None, hint, (seen.via(pairs[0], "NET/Socket"),))


def _links(seen: Observed) -> Iterator[Finding]:
    """A bad path in NCCL's own search, although all neighbours in pods should have NVLink."""
    rings = [
        seen.nvlink(pair)
        for ranks in seen.ranks_of_worker.values()
        if len(ranks) > 1
        for pair in pairwise((*ranks, ranks[0]))
    ]
    worse = [one for one in seen.main.searches if one.inside not in _NVLINKS]
    if rings and all(rings) and worse:
        yield Finding(
            kind=Kind.TRANSPORT,
            planned="NVLink",
            got=f"{worse[0].inside} inside the machine, by NCCL's own search",
            why=Why(
                hint="do the workers have the planned GPUs? arena-topo check JOB looks into"
                " them; nvidia-smi nvlink -s shows links that are down",
                lines=(worse[0].line,),
            ),
        )


# ---------------------------------------------------------------- networks


def _gpu_direct(seen: Observed) -> Iterator[Finding]:
    """RDMA connections without GPU Direct at either end.

    NCCL decides for each end: it stages in host memory by itself if a GPU before Ampere has no
    NVLink (src/graph/paths.cc, ncclTopoCheckGdr).
    """
    network = [one for one in seen.main.connections if one.gdr is not None]
    direct = {(one.source, one.target) for one in network if one.gdr}
    staged: dict[str, dict[Pair, str]] = {}
    for one in network:
        if (one.source, one.target) not in direct and one.kind != "NET/Socket":
            staged.setdefault(one.kind, {}).setdefault((one.source, one.target), one.line)
    for kind, pairs in staged.items():
        rdma = kind.startswith("NET/IB")
        got = "RDMA through the host's memory (no GDRDMA in the lines)"
        hint = "has the network plugin been built for GPU Direct RDMA, and can the card do it?"
        if rdma:
            hint = "is nvidia-peermem loaded on the nodes, or DMA-BUF (Linux 5.12, open driver)?"
        why = Why(None, hint, (next(iter(pairs.values())),))
        said = [one.text for one in seen.report.complaints if one.cause is Cause.GDR_OFF]
        off = ["NCCL_NET_GDR_LEVEL"] if "NCCL_NET_GDR_LEVEL" in seen.settings else []
        off += _on(seen, "NCCL_NET_GDR_DISABLE")
        if off:
            why = _asked_for(seen, off)
        elif said:
            why = Why(f"NCCL says: {said[0]}", hint, (said[0],))
        got = got if rdma else f"{kind}, no GDRDMA in the lines"
        yield Finding(kind=Kind.NETWORK, got=got, pairs=tuple(pairs), why=why)


def _interfaces(seen: Observed) -> Iterator[Finding]:
    """Interfaces of TCP and of the rendezvous that reach no other machine."""
    odd: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    for host in seen.hosts.values() if len(seen.hosts) > 1 else ():
        used = {**(host.sockets if "Socket" in host.networks else {}), **host.bootstrap}
        for name, line in used.items():
            if name.startswith(_LOCAL_INTERFACES):
                odd.setdefault(name, []).append(host.name)
                lines.setdefault(name, line)
    wish = seen.value("NCCL_SOCKET_IFNAME")
    for name, hosts in odd.items():
        asked = any(name.startswith(one.lstrip("=")) for one in wish.split(",") if one)
        why = Why(
            f"the environment asks for it: NCCL_SOCKET_IFNAME={wish}" if asked else None,
            "name the interface that joins the pods: --env NCCL_SOCKET_IFNAME=eth0, and"
            " pass it on to the ranks (mpirun -x NCCL_SOCKET_IFNAME)",
            seen.set_by("NCCL_SOCKET_IFNAME") if asked else (lines[name],),
        )
        yield Finding(kind=Kind.SETTINGS, got=f"interface {name} on {shortened(hosts, 1)}", why=why)


# ---------------------------------------------------------------- ranks


def _order(seen: Observed) -> Iterator[Finding]:
    """Rings that cross between nodes more often than once for each node."""
    plan = seen.planned
    if plan is None or plan.nodes == 1:
        return
    crossings: dict[int, int] = {}
    for channel, ring in seen.main.rings.items():
        nodes = [seen.workers[one].node for one in ring if one is not None and one in seen.workers]
        if len(nodes) == len(ring):
            ends = pairwise((*nodes, nodes[0]))
            crossings[channel] = sum(here != there for here, there in ends)
    channel = max(crossings, key=lambda one: crossings[one], default=-1)
    if crossings.get(channel, 0) > plan.nodes:
        yield Finding(
            kind=Kind.ORDER,
            planned=f"{plan.nodes} hops between nodes",
            got=f"{crossings[channel]} in the ring of channel {channel}",
            ranks=tuple(rank for rank in seen.main.rings[channel] if rank is not None),
            why=Why(
                hint="number the ranks node by node: leave out --map-by node and rank files of"
                " your own; where pods share no host id, --pod-shape fused",
                lines=(seen.main.ring_lines[channel],),
            ),
        )


def _ranks(seen: Observed) -> Iterator[Finding]:
    plan, main = seen.planned, seen.main
    if plan is not None and main.size not in {None, plan.ranks}:
        hint = "mpirun -np, or the hostfile, says how many start; one for each GPU"
        yield Finding(
            kind=Kind.RANKS,
            planned=f"{plan.ranks} ranks",
            got=f"{main.size} in the largest communicator",
            why=Why(None, hint, _first_line(main)),
        )
    if main.missing:
        hint = "is NCCL_DEBUG=INFO set there? submit with --nccl-debug, or mpirun -x"
        hint += " NCCL_DEBUG=INFO"
        got, why = f"no lines of {named(main.missing)}", Why(None, hint, _first_line(main))
        yield Finding(kind=Kind.RANKS, got=got, ranks=main.missing, why=why)
    for one in seen.report.communicators:
        if one.incomplete and (one is main or one.size):
            name = f"communicator {one.name}" if one.name else "another communicator"
            where = "" if one is main else f" in {name} (of {one.size})"
            hint = "NCCL is still connecting, has failed, or the log ends here"
            yield Finding(
                kind=Kind.RANKS,
                got=f'no "Init COMPLETE" of {named(one.incomplete)}{where}',
                ranks=one.incomplete if one is main else (),
                why=Why(None, hint, _first_line(one, one.incomplete)),
            )


def _first_line(main: Communicator, ranks: Collection[int] | None = None) -> tuple[str, ...]:
    """The line that identifies the first of some ranks, of all by default; empty without one."""
    lines = (one.line for one in main.ranks if ranks is None or one.rank in ranks)
    return tuple(line for line in lines if line)[:1]


def _versions(report: Report) -> Iterator[Finding]:
    if len(report.versions) > 1:
        lines = tuple(f"NCCL version {one}" for one in report.versions)
        cause = "the ranks load different libraries of NCCL"
        why = Why(cause, "look at LD_LIBRARY_PATH and the images", lines)
        yield Finding(kind=Kind.SETTINGS, got=", ".join(report.versions), why=why)


def _complaints(report: Report, used: Collection[str]) -> Iterator[Finding]:
    """NCCL's own complaints, warnings first, without lines that another finding quotes.

    A card without GPU Direct RDMA is left out: NCCL also complains about cards that no rank uses.
    """
    for one in sorted(report.complaints, key=lambda one: not one.warning):
        known = one.warning or one.cause is not None
        if known and one.cause is not Cause.GDR_OFF and one.text not in used:
            advice = causes.advice_on(one.text)
            why = Why(advice.why, advice.hint) if advice else Why()
            yield Finding(
                kind=Kind.WARNING,
                got=one.text + (f" (x{one.count})" if one.count > 1 else ""),
                hosts=tuple(name for name in one.hosts if name),
                ranks=one.ranks,
                why=why._replace(lines=(one.text,)),
            )


def named(ranks: Sequence[int]) -> str:
    """Ranks in words: `rank 3`, `ranks 0-3,7`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks, MOST)}"
