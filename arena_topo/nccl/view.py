"""The report on NCCL, beside the plan: a screen of some forty lines, and a value for JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from arena_topo.drawing.tables import emulated_note
from arena_topo.escaping import brief, one_line
from arena_topo.joblogs.view import spans
from arena_topo.layout import align, fold, note_line, number, table
from arena_topo.manifests import estimates
from arena_topo.nccl import Communicator, NcclHost
from arena_topo.nccl.comparison import Observed, Pair, RelativePlace, WorkerSlot
from arena_topo.nccl.findings import (
    MAX_RANKS_CHARACTERS,
    Aspect,
    Finding,
    NcclComparison,
    ranks_text,
)
from arena_topo.words import counted, shortened

MOST_COLUMNS = 16
"""The most ranks with a row and a column each; for more ranks the rows are pods."""

MAX_LISTED = 8
"""The most hosts, rings and settings that are listed; the rest is counted."""

MOST_PAIRS = 4
"""The most pairs of ranks that are named; the rest is counted."""

MOST_FINDINGS = 12
"""The most findings that are shown in full; most logs have fewer kinds of trouble."""

_SHORT = {"P2P/direct pointer": "PTR", "NET/Socket": "TCP"}
"""Abbreviations of these transports of NCCL; others get the first three letters of their name."""


def comparison_text(
    comparison: NcclComparison,
    *,
    width: int | None = None,
    unicode: bool = True,
    unplanned: str = "",
) -> str:
    """The versions, hosts, rings and transports, and the differences from the plan.

    Sentences are wrapped at `width` columns. `unplanned` says why there is no plan to compare with.
    """
    log = comparison.observed
    blocks = [
        [fold(_headline(log), width, indent="  ")],
        _hosts(log),
        [fold(line, width, indent="  ") for line in _settings(log)],
        list(_rings(log.main)),
        list(_transports(log, unicode=unicode)),
        [fold(line, width, indent="        ") for line in _verdict(comparison, unplanned)],
        [fold(note_line(line), width, indent="  ") for line in _notes(log)],
        [emulated_note()] if log.planned is not None and log.planned.forecast.emulated else [],
    ]
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in blocks if lines)


def _headline(log: Observed) -> str:
    report, main = log.report, log.main
    clauses = [f"NCCL {' and '.join(map(one_line, report.versions)) or 'of unknown version'}"]
    if main.size is not None:
        clauses.append(f"lines of {len(main.ranks)} of {counted(main.size, 'rank')}")
    if report.hosts:
        clauses.append(counted(len(report.hosts), "host"))
    if len(report.communicators) > 1:
        clauses.append(f"{len(report.communicators)} communicators, this is the largest")
    return ", ".join(clauses)


def _hosts(log: Observed) -> list[str]:
    if not log.report.hosts:
        return []
    ranks: dict[str, list[int]] = {}
    nodes: dict[str, set[str]] = {}
    for rank in log.main.ranks:
        ranks.setdefault(rank.host, []).append(rank.rank)
        if rank.rank in log.workers:
            nodes.setdefault(rank.host, set()).add(log.workers[rank.rank].node)
    header = ("HOST", "RANKS", *(("NODE",) if nodes else ()), "NETWORK", "BOOTSTRAP", "DEVICES")
    rows = [
        (
            host.name or "?",
            spans(ranks.get(host.name, ()), MAX_RANKS_CHARACTERS) or "-",
            *((",".join(sorted(nodes.get(host.name, ()))) or "-",) if nodes else ()),
            ",".join(host.networks) or "?",
            ",".join(host.bootstrap) or "-",
            _devices(host),
        )
        for host in log.report.hosts[:MAX_LISTED]
    ]
    lines = [line.rstrip() for line in align(table(header, rows)).splitlines()]
    more = len(log.report.hosts) - MAX_LISTED
    return [*lines, *([f"and {counted(more, 'more host')}"] if more > 0 else [])]


def _devices(host: NcclHost) -> str:
    used = [*host.networks] or ["IB", "Socket"]
    names = [
        *(host.cards if any(name.startswith("IB") for name in used) else ()),
        *(host.sockets if "Socket" in used else ()),
    ]
    return ",".join(names) or ("no IB device" if host.no_ib else "-")


def _settings(log: Observed) -> Iterator[str]:
    settings = [f"{setting.name}={brief(setting.value, 60)}" for setting in log.report.settings]
    if settings:
        yield f"Set by the environment: {shortened(settings, MAX_LISTED)}"


# ---------------------------------------------------------------- rings


def _rings(main: Communicator) -> Iterator[str]:
    by_ring: dict[tuple[int | None, ...], list[int]] = {}
    for channel, ring in main.rings.items():
        by_ring.setdefault(_from_least(ring), []).append(channel)
    if by_ring:
        yield f"Rings of {counted(main.channels or len(main.rings), 'channel')}:"
    elif main.channels:
        yield f"Channels: {main.channels}"
    rows = list(by_ring.items())
    for ring, channels in rows[:MAX_LISTED]:
        yield f"  {spans(channels, MAX_RANKS_CHARACTERS)}: {ring_text(ring)}"
    if len(rows) > MAX_LISTED:
        yield f"  and {counted(len(rows) - MAX_LISTED, 'more ring')}"
    for rings in main.searches[:1]:
        yield f"  NCCL's search counted on {rings.inside} inside, {rings.between} between machines"


def ring_text(ring: Sequence[int | None]) -> str:
    """The ranks of a ring in its order; in long rings neighbours become a span: `0-7 15-8`."""
    runs: list[list[int]] = []
    ranks = [rank for rank in ring if rank is not None]
    for rank in ranks:
        step = rank - runs[-1][-1] if runs else 0
        if len(ranks) > MOST_COLUMNS and abs(step) == 1 and step * _direction(runs[-1]) >= 0:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    spelled = ["-".join(map(str, run)) for run in runs]
    return " ".join([*spelled, *(["..."] if None in ring else [])])


def _direction(run: Sequence[int]) -> int:
    return run[-1] - run[0]


def _from_least(ring: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The same ring from its lowest rank on, so that equal rings look the same."""
    if None in ring:
        return ring
    at = ring.index(min(rank for rank in ring if rank is not None))
    return ring[at:] + ring[:at]


# ---------------------------------------------------------------- transports


def _transports(log: Observed, *, unicode: bool) -> Iterator[str]:
    unplaced = log.report.unplaced
    if not log.transports:
        if unplaced:
            yield f"No line says of which communicator: {counted(unplaced, 'connection')}."
        elif log.main.ranks:
            yield "No line says how ranks are joined (via ...)."
        return
    ranks = sorted({rank for pair in log.transports for rank in pair} | set(log.ranks))
    names = {rank: str(rank) for rank in ranks}
    heading = "Transports, from rank (row) to rank (column):"
    if len(ranks) > MOST_COLUMNS:
        names = {rank: log.host(rank) or "?" for rank in ranks}
        heading = "Transports, from pod or host (row) to the same (column):"
    cells: dict[tuple[str, str], Counter[str]] = {}
    for (source, target), kinds in log.transports.items():
        cells.setdefault((names[source], names[target]), Counter())[kinds[0]] += 1
    rows = list(dict.fromkeys(names.values()))
    short = _letters(kinds[0] for kinds in log.transports.values())
    drawn = len(rows) <= MOST_COLUMNS
    if drawn:
        yield heading
        yield from _grid(rows, cells, short, "\N{MIDDLE DOT}" if unicode else ".")
    places = list(RelativePlace)
    for (place, kind), joined in sorted(
        log.joined.items(), key=lambda entry: (places.index(entry[0][0]), -entry[1])
    ):
        yield f"  {kind}: {counted(joined, 'pair')} {place}".rstrip()
    if drawn:
        yield f"  {', '.join(f'{letters} {kind}' for kind, letters in short.items())}"
    if mixed := [pair for pair, kinds in log.transports.items() if len(kinds) > 1]:
        yield f"  several transports, most used shown: {pairs_named(mixed)}"


def _letters(kinds: Iterable[str]) -> dict[str, str]:
    """Three letters for each kind, most used first."""
    return {
        kind: _SHORT.get(kind) or re.sub(r"\W", "", kind.rpartition("/")[2])[:3].upper() or "?"
        for kind, _count in Counter(kinds).most_common()
    }


def _grid(
    names: Sequence[str],
    cells: Mapping[tuple[str, str], Counter[str]],
    short: Mapping[str, str],
    nothing: str,
) -> Iterator[str]:
    """A table with a row and a column for each name; if names are long, columns have numbers."""
    long = max(map(len, names)) > 3  # noqa: PLR2004 - the width of a cell
    heads = [str(index) for index in range(len(names))] if long else names
    wide = max(map(len, names)) + (4 if long else 0) + 2
    yield " " * wide + " ".join(head.rjust(3) for head in heads)
    for index, row in enumerate(names):
        label = f"{index:>2}  {row}" if long else row.rjust(wide - 2)
        inside = []
        for column in names:
            kinds = cells.get((row, column))
            inside.append((short[kinds.most_common(1)[0][0]] if kinds else nothing).rjust(3))
        yield f"{label.ljust(wide)}{' '.join(inside)}"


# ---------------------------------------------------------------- what differs


def _verdict(comparison: NcclComparison, unplanned: str) -> Iterator[str]:
    log = comparison.observed
    plan = log.planned
    if plan is None:
        yield f"Not compared with a plan: {unplanned or 'none is known'}"
    elif comparison.agrees:
        summary = counted(len(plan.workers), "worker")
        rate = plan.forecast
        if rate.usable is not None:
            summary += f", {estimates.bandwidth_text(rate.usable, rate.low, rate.high)} forecast"
        yield f"As planned: {summary}"
    elif not log.transports:
        unplaced = log.report.unplaced
        why = "tells whose connections these are" if unplaced else "says how ranks are joined"
        yield f"Nothing to compare with the plan: no line {why}"
    if log.by_number and log.transports:
        yield "Ranks were told apart by their numbers: hosts have no pods' names"
    if comparison.findings:
        yield "Findings:"
    for index, finding in enumerate(comparison.findings[:MOST_FINDINGS], 1):
        yield from _finding(index, finding)
    if len(comparison.findings) > MOST_FINDINGS:
        yield f"  and {len(comparison.findings) - MOST_FINDINGS} more: -o json has all"


def _finding(index: int, finding: Finding) -> Iterator[str]:
    before = f"planned {finding.planned}, got " if finding.planned is not None else ""
    writers = f" ({pairs_named(finding.pairs)})" if finding.pairs else ""
    if finding.kind is Aspect.WARNING:
        writers = _written_by(finding)
    elif finding.expected:
        before = "as the plan says for separate pods: "
        writers = f", not NVLink{writers}" if finding.planned == "NVLink" else writers
    yield f"{index:>3}. {before}{brief(finding.actual)}{writers}"
    cause, hint, lines = finding.why
    if finding.kind is not Aspect.RANKS:
        yield f"     why: {one_line(cause or 'cause not visible in these lines')}"
    if hint is not None:
        yield f"     try: {one_line(hint)}"
    if lines and finding.kind is not Aspect.WARNING:
        yield f"     line: {brief(lines[0], 200)}"


def _written_by(finding: Finding) -> str:
    """The hosts and ranks that complain, where known: ` (node-1, rank 3)`."""
    writers = list(map(one_line, finding.hosts[:MOST_PAIRS]))
    more = len(finding.hosts) - MOST_PAIRS
    writers += [counted(more, "more host")] if more > 0 else []
    writers += [ranks_text(finding.ranks)] if finding.ranks else []
    return f" ({', '.join(writers)})" if writers else ""


def pairs_named(pairs: Sequence[Pair]) -> str:
    """Pairs in words, each once whatever its direction: `pairs 0<->31, 7<->8 and 4 more`."""
    both = sorted({(min(pair), max(pair)) for pair in pairs})
    listed = shortened([f"{first}<->{second}" for first, second in both], MOST_PAIRS)
    return f"{'pair' if len(both) == 1 else 'pairs'} {listed}"


def _notes(log: Observed) -> Iterator[str]:
    report, main = log.report, log.main
    if not main.certain:
        yield "which ranks belong together is not certain: not all lines name their communicator"
    if report.unplaced and log.transports:
        yield f"{counted(report.unplaced, 'more connection')} of no communicator for certain"
    if report.torn:
        yield f"{counted(report.torn, 'line')} cut or mixed up with others, and not used"
    if report.dropped:
        yield f"{counted(report.dropped, 'line')} ignored (limit reached)"


# ---------------------------------------------------------------- values


def comparison_json(
    comparison: NcclComparison, *, job: str = "", namespace: str = ""
) -> dict[str, Any]:
    """The comparison for JSON and YAML; null for unknown values. Bandwidths are GB/s."""
    log = comparison.observed
    report, plan = log.report, log.planned
    return {
        "job": job or None,
        "namespace": namespace or None,
        "versions": report.versions,
        "planned": None
        if plan is None
        else {
            "ranks": plan.ranks,
            "busBandwidthGBps": number(plan.forecast.bus_bandwidth),
            "usableGBps": number(plan.forecast.usable),
            "tier": plan.forecast.tier,
            "workers": [asdict(worker) for worker in plan.workers],
        },
        "asPlanned": None if plan is None or not log.transports else comparison.agrees,
        "findings": [
            {name: value for name, value in asdict(finding).items() if name != "why"}
            | finding.why._asdict()
            for finding in comparison.findings
        ],
        "hosts": [
            {
                "name": host.name,
                "bootstrap": list(host.bootstrap),
                "networks": list(host.networks),
                "devices": [*host.cards, *host.sockets],
                "noInfiniBand": bool(host.no_ib),
            }
            for host in report.hosts
        ],
        "communicators": [
            _communicator_value(group, log.workers if group is log.main else {})
            for group in report.communicators
        ],
        "connectionsOfSeveral": report.unplaced,
        "settings": [asdict(setting) for setting in report.settings],
        "complaints": [asdict(complaint) for complaint in report.complaints],
        "lines": report.lines,
        "tornLines": report.torn,
        "droppedLines": report.dropped,
    }


def _communicator_value(group: Communicator, workers: Mapping[int, WorkerSlot]) -> dict[str, Any]:
    return {
        "name": group.name,
        "size": group.size,
        "certain": group.certain,
        "channels": group.channels,
        "missing": group.missing,
        "incomplete": group.incomplete,
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host or None,
                "worker": workers[rank.rank].worker if rank.rank in workers else None,
                "pid": rank.pid,
                "cudaDevice": rank.device,
                "nvmlDevice": rank.nvml,
                "pci": rank.pci,
                "complete": rank.complete,
            }
            for rank in group.ranks
        ],
        "rings": [{"channel": channel, "ranks": ring} for channel, ring in group.rings.items()],
        "transports": [
            {"from": source, "to": target, "kinds": kinds}
            for (source, target), kinds in group.matrix().items()
        ],
        "searches": [asdict(search) for search in group.searches],
    }
