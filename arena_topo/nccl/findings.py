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
from arena_topo.nccl import Communicator, ComplaintCause, NcclReport, complaints
from arena_topo.nccl.comparison import Observed, Pair, Planned, RelativePlace
from arena_topo.words import shortened


class Aspect(StrEnum):
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

    `planned` is None if the plan does not mention it; `expected`: the plan itself expects it.
    `hosts` and `ranks` of a warning are its writers, as far as that is certain.
    """

    kind: Aspect
    actual: str
    why: Why
    planned: str | None = None
    expected: bool = False
    hosts: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclComparison:
    """The observed communicator, and its findings, most costly first."""

    observed: Observed
    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Whether there is a plan, and nothing that was read differs from it."""
        return (
            self.observed.planned is not None
            and bool(self.observed.transports)
            and all(finding.expected for finding in self.findings)
        )


MAX_RANKS_CHARACTERS = 1 << 20
"""Characters of a list of ranks in a sentence: no limit."""

_LOCAL_INTERFACES = ("lo", "docker", "virbr", "veth", "br-", "cni", "flannel", "cbr")
"""Prefixes of interfaces that lead to no other machine, or only through a bridge on this one."""

_NVLINKS = {"NVL", "NVB", "C2C", "LOC"}
"""Words of NCCL's paths over NVLink alone (src/graph/topo.h, PATH_NVL and its like)."""

_FUSED = "--pod-shape fused makes one pod of the workers of a node"


def compare_with_plan(report: NcclReport, planned: Planned | None) -> NcclComparison:
    """Compare a report with the plan; without a plan only NCCL's own complaints count.

    No line appears in two findings.
    """
    log = Observed(report, planned)
    differences = [
        *_transports(log),
        *_links(log),
        *_gpu_direct(log),
        *_interfaces(log),
        *_order(log),
    ]
    absent = [*_ranks(log), *_versions(report)] if report.largest else []
    used = {line for finding in (*differences, *absent) for line in finding.why.lines}
    # NCCL's warnings often explain why ranks are silent or incomplete, so they come first.
    return NcclComparison(
        observed=log, findings=(*differences, *_complaints(report, used), *absent)
    )


# ---------------------------------------------------------------- transports


def _transports(log: Observed) -> Iterator[Finding]:
    """Transports within a pod, within a node and between nodes that are worse than planned."""
    for place, of in (
        (RelativePlace.POD, _in_pod),
        (RelativePlace.NODE, _between_pods),
        (RelativePlace.NODES, _nodes),
    ):
        for kind, pairs in log.pairs(place).items():
            if log.planned is not None:
                yield from of(log, log.planned, kind, pairs)


def _in_pod(log: Observed, _plan: Planned, kind: str, pairs: list[Pair]) -> Iterator[Finding]:
    linked = [pair for pair in pairs if log.nvlink(pair)]
    # Over PCIe NCCL chooses shared memory by itself for distant GPUs.
    staged = pairs if kind.startswith("NET") else linked
    if staged and not kind.startswith("P2P"):
        planned = "NVLink" if linked else "one pod"
        why = _why_staged(log, kind, staged)
        yield Finding(
            kind=Aspect.TRANSPORT, planned=planned, actual=kind, pairs=tuple(staged), why=why
        )


def _between_pods(log: Observed, plan: Planned, kind: str, pairs: list[Pair]) -> Iterator[Finding]:
    if kind.startswith("P2P"):
        return
    linked = [pair for pair in pairs if log.nvlink(pair)]
    hosts = [log.host(rank) for rank in pairs[0]]
    shared = "NCCL_HOSTID" in log.settings
    line = log.via(pairs[0], kind)
    why = Why(None, _FUSED, (line,))
    if kind == "SHM":
        why = _why_staged(log, kind, pairs)
        if why.cause is None:
            why = why._replace(hint="use --pod-shape fused: GPUs of one pod see each other")
    elif shared:
        hint = "look whether the pods have the same /dev/shm, or use --pod-shape fused"
        why = Why(None, hint, (line, *log.lines_setting("NCCL_HOSTID")))
    elif hosts[0] != hosts[1]:
        cause = (
            "the pods have host names of their own, and NCCL takes each name for a machine"
            f" ({', '.join(hosts)})"
        )
        hint = f"{_FUSED}; --pod-shape shared lets pods share what NCCL needs"
        why = Why(cause, hint, (line,))
    yield Finding(
        kind=Aspect.TRANSPORT,
        planned="NVLink" if linked else "one node",
        actual=kind,
        expected=plan.forecast.regime in BETWEEN_HOSTS and not shared,
        pairs=tuple(linked or pairs),
        why=why,
    )


def _nodes(log: Observed, plan: Planned, kind: str, pairs: list[Pair]) -> Iterator[Finding]:
    forecast = plan.forecast
    nvlink = forecast.tier == "nvlink"
    kind_of, actual, hint = Aspect.NETWORK, kind, ""
    # If NVLink joins machines, every P2P is called MNNVL (src/transport/p2p.cc).
    if kind == "SHM" or (kind.startswith("P2P") and kind != "P2P/MNNVL" and not nvlink):
        kind_of, planned = Aspect.PLACEMENT, "two nodes"
        actual = f"{kind}, which only joins GPUs of one machine"
        hint = "compare with arena-topo get JOB, which shows where the pods run"
    elif kind.startswith("NET") and nvlink:
        planned = "NVLink between the nodes"
        hint = "NCCL joins nodes by NVLink only with IMEX: check that a ComputeDomain exists"
    elif kind == "NET/Socket" and forecast.regime not in {None, Regime.TCP}:
        amount = "?" if forecast.usable is None else f"{estimates.gbps_text(forecast.usable)} GB/s"
        planned = f"{amount} between nodes" + (f" ({forecast.tier})" if forecast.tier else "")
        actual = "NET/Socket, which is TCP"
    else:
        return
    why = Why(None, hint, (log.via(pairs[0], kind),)) if hint else _why_socket(log, pairs)
    yield Finding(kind=kind_of, planned=planned, actual=actual, pairs=tuple(pairs), why=why)


def _why_staged(log: Observed, kind: str, pairs: Sequence[Pair]) -> Why:
    """Why GPUs of one pod are not connected directly."""
    off = ["NCCL_P2P_DISABLE"] if kind == "SHM" else ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"]
    variables = _enabled(log, *off)
    variables += ["NCCL_P2P_LEVEL"] if log.value("NCCL_P2P_LEVEL") in {"LOC", "0"} else []
    if variables:
        return _set_by_environment(log, variables)
    for complaint in log.report.complaints:
        if complaint.cause is ComplaintCause.NVLINK_OFF:
            advice = complaints.advice_for(complaint.cause)
            return Why(advice.why, advice.hint, (complaint.text,))
        if complaint.cause in {ComplaintCause.P2P_OFF, ComplaintCause.P2P_BROKEN}:
            return Why(
                "the driver or NCCL found that these GPUs cannot reach each other directly",
                "look for ACS and IOMMU on the node; nvidia-smi topo -p2p r names such pairs",
                (complaint.text,),
            )
    hint = "nvidia-smi topo -p2p r in the pod shows which GPUs can reach each other"
    return Why(None, hint, (log.via(pairs[0], kind),))


def _enabled(log: Observed, *names: str) -> list[str]:
    """The variables that the environment sets to something other than 0."""
    return [name for name in names if log.value(name) not in {"", "0"}]


def _set_by_environment(log: Observed, names: Sequence[str]) -> Why:
    listed = " and ".join(names)
    cause = f"the environment asks for it: {listed}"
    return Why(cause, f"leave out {listed}", log.lines_setting(*names))


def _why_socket(log: Observed, pairs: Sequence[Pair]) -> Why:
    """Why nodes are connected by TCP."""
    variables = _enabled(log, "NCCL_IB_DISABLE")
    variables += ["NCCL_NET"] if log.value("NCCL_NET") == "Socket" else []
    if variables:
        return _set_by_environment(log, variables)
    hosts = [log.hosts[name] for name in log.hosts_of(pairs) if name in log.hosts]
    if without := [host for host in hosts if host.no_ib]:
        names = shortened([host.name for host in without], 1)
        hint = (
            "ask for one: --rdma, or --device NAME=COUNT with the resource that the nodes offer"
            " (kubectl describe node NODE)"
        )
        cause = f"NCCL finds no InfiniBand or RoCE device in {names}"
        return Why(cause, hint, (*without[0].no_ib.values(),))
    hint = (
        "check that the pods have an RDMA device (--rdma, --device), and the image a network plugin"
    )
    return Why(None, hint, (log.via(pairs[0], "NET/Socket"),))


def _links(log: Observed) -> Iterator[Finding]:
    """A bad path in NCCL's own search, although all neighbours in pods should have NVLink."""
    rings = [
        log.nvlink(pair)
        for ranks in log.ranks_of_worker.values()
        if len(ranks) > 1
        for pair in pairwise((*ranks, ranks[0]))
    ]
    worse = [search for search in log.main.searches if search.inside not in _NVLINKS]
    if rings and all(rings) and worse:
        yield Finding(
            kind=Aspect.TRANSPORT,
            planned="NVLink",
            actual=f"{worse[0].inside} inside the machine, by NCCL's own search",
            why=Why(
                hint="check that the workers have the planned GPUs: arena-topo check JOB;"
                " nvidia-smi nvlink -s shows links that are down",
                lines=(worse[0].line,),
            ),
        )


# ---------------------------------------------------------------- networks


def _gpu_direct(log: Observed) -> Iterator[Finding]:
    """RDMA connections without GPU Direct at either end.

    NCCL decides for each end: it stages in host memory by itself if a GPU before Ampere has no
    NVLink (src/graph/paths.cc, ncclTopoCheckGdr).
    """
    network = [end for end in log.main.connections if end.gdr is not None]
    direct = {(end.source, end.target) for end in network if end.gdr}
    staged: dict[str, dict[Pair, str]] = {}
    for end in network:
        if (end.source, end.target) not in direct and end.kind != "NET/Socket":
            staged.setdefault(end.kind, {}).setdefault((end.source, end.target), end.line)
    for kind, pairs in staged.items():
        rdma = kind.startswith("NET/IB")
        actual = "RDMA through the host's memory (no GDRDMA in the lines)"
        hint = (
            "check that the card can do GPU Direct RDMA, and that the network plugin was built for"
            " it"
        )
        if rdma:
            hint = (
                "check that nvidia-peermem is loaded on the nodes, or DMA-BUF is used (Linux 5.12,"
                " open driver)"
            )
        why = Why(None, hint, (next(iter(pairs.values())),))
        quoted = [
            line.text for line in log.report.complaints if line.cause is ComplaintCause.GDR_OFF
        ]
        off = ["NCCL_NET_GDR_LEVEL"] if "NCCL_NET_GDR_LEVEL" in log.settings else []
        off += _enabled(log, "NCCL_NET_GDR_DISABLE")
        if off:
            why = _set_by_environment(log, off)
        elif quoted:
            why = Why(f"NCCL says: {quoted[0]}", hint, (quoted[0],))
        actual = actual if rdma else f"{kind}, no GDRDMA in the lines"
        yield Finding(kind=Aspect.NETWORK, actual=actual, pairs=tuple(pairs), why=why)


def _interfaces(log: Observed) -> Iterator[Finding]:
    """Interfaces of TCP and of the rendezvous that reach no other machine."""
    local: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    for host in log.hosts.values() if len(log.hosts) > 1 else ():
        used = {**(host.sockets if "Socket" in host.networks else {}), **host.bootstrap}
        for name, line in used.items():
            if name.startswith(_LOCAL_INTERFACES):
                local.setdefault(name, []).append(host.name)
                lines.setdefault(name, line)
    wish = log.value("NCCL_SOCKET_IFNAME")
    for name, hosts in local.items():
        chosen = any(name.startswith(prefix.lstrip("=")) for prefix in wish.split(",") if prefix)
        why = Why(
            f"the environment asks for it: NCCL_SOCKET_IFNAME={wish}" if chosen else None,
            "name the interface that joins the pods: --env NCCL_SOCKET_IFNAME=eth0, and"
            " pass it on to the ranks (mpirun -x NCCL_SOCKET_IFNAME)",
            log.lines_setting("NCCL_SOCKET_IFNAME") if chosen else (lines[name],),
        )
        yield Finding(
            kind=Aspect.SETTINGS, actual=f"interface {name} on {shortened(hosts, 1)}", why=why
        )


# ---------------------------------------------------------------- ranks


def _order(log: Observed) -> Iterator[Finding]:
    """Rings that cross between nodes more often than once for each node."""
    plan = log.planned
    if plan is None or plan.nodes == 1:
        return
    crossings: dict[int, int] = {}
    for channel, ring in log.main.rings.items():
        slots = (log.workers.get(rank) for rank in ring if rank is not None)
        nodes = [slot.node for slot in slots if slot is not None]
        if len(nodes) == len(ring):
            ends = pairwise((*nodes, nodes[0]))
            crossings[channel] = sum(source != target for source, target in ends)
    channel = max(crossings, key=lambda number: crossings[number], default=-1)
    if crossings.get(channel, 0) > plan.nodes:
        yield Finding(
            kind=Aspect.ORDER,
            planned=f"{plan.nodes} hops between nodes",
            actual=f"{crossings[channel]} in the ring of channel {channel}",
            ranks=tuple(rank for rank in log.main.rings[channel] if rank is not None),
            why=Why(
                hint="number the ranks node by node: leave out --map-by node and rank files of"
                " your own; where pods share no host id, --pod-shape fused",
                lines=(log.main.ring_lines[channel],),
            ),
        )


def _ranks(log: Observed) -> Iterator[Finding]:
    plan, main = log.planned, log.main
    if plan is not None and main.size not in {None, plan.ranks}:
        hint = "mpirun -np, or the hostfile, says how many start; one for each GPU"
        yield Finding(
            kind=Aspect.RANKS,
            planned=f"{plan.ranks} ranks",
            actual=f"{main.size} in the largest communicator",
            why=Why(None, hint, _first_line(main)),
        )
    if main.missing:
        hint = "set NCCL_DEBUG=INFO there: submit with --nccl-debug, or mpirun -x"
        hint += " NCCL_DEBUG=INFO"
        actual, why = f"no lines of {ranks_text(main.missing)}", Why(None, hint, _first_line(main))
        yield Finding(kind=Aspect.RANKS, actual=actual, ranks=main.missing, why=why)
    for group in log.report.communicators:
        if group.incomplete and (group is main or group.size):
            name = f"communicator {group.name}" if group.name else "another communicator"
            where = "" if group is main else f" in {name} (of {group.size})"
            hint = "NCCL is still connecting, has failed, or the log ends here"
            yield Finding(
                kind=Aspect.RANKS,
                actual=f'no "Init COMPLETE" of {ranks_text(group.incomplete)}{where}',
                ranks=group.incomplete if group is main else (),
                why=Why(None, hint, _first_line(group, group.incomplete)),
            )


def _first_line(main: Communicator, ranks: Collection[int] | None = None) -> tuple[str, ...]:
    """The line that identifies the first of some ranks, of all by default; empty without one."""
    lines = (rank.line for rank in main.ranks if ranks is None or rank.rank in ranks)
    return tuple(line for line in lines if line)[:1]


def _versions(report: NcclReport) -> Iterator[Finding]:
    if len(report.versions) > 1:
        lines = tuple(f"NCCL version {version}" for version in report.versions)
        cause = "the ranks load different libraries of NCCL"
        why = Why(cause, "look at LD_LIBRARY_PATH and the images", lines)
        yield Finding(kind=Aspect.SETTINGS, actual=", ".join(report.versions), why=why)


def _complaints(report: NcclReport, used: Collection[str]) -> Iterator[Finding]:
    """NCCL's own complaints, warnings first, without lines that another finding quotes.

    A card without GPU Direct RDMA is left out: NCCL also complains about cards that no rank uses.
    """
    for complaint in sorted(report.complaints, key=lambda complaint: not complaint.warning):
        known = complaint.warning or complaint.cause is not None
        if known and complaint.cause is not ComplaintCause.GDR_OFF and complaint.text not in used:
            advice = complaints.advice_on(complaint.text)
            why = Why(advice.why, advice.hint) if advice else Why()
            yield Finding(
                kind=Aspect.WARNING,
                actual=complaint.text + (f" (x{complaint.count})" if complaint.count > 1 else ""),
                hosts=tuple(name for name in complaint.hosts if name),
                ranks=complaint.ranks,
                why=why._replace(lines=(complaint.text,)),
            )


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in words: `rank 3`, `ranks 0-3,7`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks, MAX_RANKS_CHARACTERS)}"
