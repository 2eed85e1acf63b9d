"""The report on NCCL, beside the plan: a screen of some forty lines, and a value for JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from arena_topo.drawing.tables import emulated
from arena_topo.escaping import brief, one_line
from arena_topo.joblogs.view import spans
from arena_topo.layout import align, fold, noted, number, table
from arena_topo.manifests import estimates
from arena_topo.nccl import Communicator, Host
from arena_topo.nccl.comparison import Observed, Pair, Place, WorkerSlot
from arena_topo.nccl.findings import MOST, Comparison, Finding, Kind, named
from arena_topo.words import counted, shortened

MOST_COLUMNS = 16
"""The most ranks with a row and a column each; for more ranks the rows are pods."""

MOST_ROWS = 8
"""The most hosts, rings and settings that are listed; the rest is counted."""

MOST_PAIRS = 4
"""The most pairs of ranks that are named; the rest is counted."""

MOST_FINDINGS = 12
"""The most findings that are shown in full; most logs have fewer kinds of trouble."""

_SHORT = {"P2P/direct pointer": "PTR", "NET/Socket": "TCP"}
"""Abbreviations of these transports of NCCL; others get the first three letters of their name."""


def text(
    found: Comparison, *, width: int | None = None, unicode: bool = True, unplanned: str = ""
) -> str:
    """The versions, hosts, rings and transports, and the differences from the plan.

    Sentences are wrapped at `width` columns. `unplanned` says why there is no plan to compare with.
    """
    seen = found.observed
    blocks = [
        [fold(_headline(seen), width, indent="  ")],
        _hosts(seen),
        [fold(line, width, indent="  ") for line in _settings(seen)],
        list(_rings(seen.main)),
        list(_transports(seen, unicode=unicode)),
        [fold(line, width, indent="        ") for line in _verdict(found, unplanned)],
        [fold(noted(line), width, indent="  ") for line in _notes(seen)],
        [emulated()] if seen.planned is not None and seen.planned.forecast.emulated else [],
    ]
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in blocks if lines)


def _headline(seen: Observed) -> str:
    report, main = seen.report, seen.main
    words = [f"NCCL {' and '.join(map(one_line, report.versions)) or 'of unknown version'}"]
    if main.size is not None:
        words.append(f"lines of {len(main.ranks)} of {counted(main.size, 'rank')}")
    if report.hosts:
        words.append(counted(len(report.hosts), "host"))
    if len(report.communicators) > 1:
        words.append(f"{len(report.communicators)} communicators, this is the largest")
    return ", ".join(words)


def _hosts(seen: Observed) -> list[str]:
    if not seen.report.hosts:
        return []
    ranks: dict[str, list[int]] = {}
    nodes: dict[str, set[str]] = {}
    for one in seen.main.ranks:
        ranks.setdefault(one.host, []).append(one.rank)
        if one.rank in seen.workers:
            nodes.setdefault(one.host, set()).add(seen.workers[one.rank].node)
    header = ("HOST", "RANKS", *(("NODE",) if nodes else ()), "NETWORK", "BOOTSTRAP", "DEVICES")
    rows = [
        (
            host.name or "?",
            spans(ranks.get(host.name, ()), MOST) or "-",
            *((",".join(sorted(nodes.get(host.name, ()))) or "-",) if nodes else ()),
            ",".join(host.networks) or "?",
            ",".join(host.bootstrap) or "-",
            _devices(host),
        )
        for host in seen.report.hosts[:MOST_ROWS]
    ]
    lines = [line.rstrip() for line in align(table(header, rows)).splitlines()]
    more = len(seen.report.hosts) - MOST_ROWS
    return [*lines, *([f"and {counted(more, 'more host')}"] if more > 0 else [])]


def _devices(host: Host) -> str:
    used = [*host.networks] or ["IB", "Socket"]
    names = [
        *(host.cards if any(name.startswith("IB") for name in used) else ()),
        *(host.sockets if "Socket" in used else ()),
    ]
    return ",".join(names) or ("no IB device" if host.no_ib else "-")


def _settings(seen: Observed) -> Iterator[str]:
    told = [f"{one.name}={brief(one.value, 60)}" for one in seen.report.settings]
    if told:
        yield f"Set by the environment: {shortened(told, MOST_ROWS)}"


# ---------------------------------------------------------------- rings


def _rings(main: Communicator) -> Iterator[str]:
    alike: dict[tuple[int | None, ...], list[int]] = {}
    for channel, ring in main.rings.items():
        alike.setdefault(_from_least(ring), []).append(channel)
    if alike:
        yield f"Rings of {counted(main.channels or len(main.rings), 'channel')}:"
    elif main.channels:
        yield f"Channels: {main.channels}"
    rows = list(alike.items())
    for ring, channels in rows[:MOST_ROWS]:
        yield f"  {spans(channels, MOST)}: {way(ring)}"
    if len(rows) > MOST_ROWS:
        yield f"  and {counted(len(rows) - MOST_ROWS, 'more ring')}"
    for one in main.searches[:1]:
        yield f"  NCCL's search counted on {one.inside} inside, {one.between} between machines"


def way(ring: Sequence[int | None]) -> str:
    """The ranks of a ring in its order; in long rings neighbours become a span: `0-7 15-8`."""
    runs: list[list[int]] = []
    ranks = [one for one in ring if one is not None]
    for one in ranks:
        step = one - runs[-1][-1] if runs else 0
        if len(ranks) > MOST_COLUMNS and abs(step) == 1 and step * _direction(runs[-1]) >= 0:
            runs[-1][1:] = [one]
        else:
            runs.append([one])
    words = ["-".join(map(str, run)) for run in runs]
    return " ".join([*words, *(["..."] if None in ring else [])])


def _direction(run: Sequence[int]) -> int:
    return run[-1] - run[0]


def _from_least(ring: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The same ring from its lowest rank on, so that equal rings look the same."""
    if None in ring:
        return ring
    at = ring.index(min(one for one in ring if one is not None))
    return ring[at:] + ring[:at]


# ---------------------------------------------------------------- transports


def _transports(seen: Observed, *, unicode: bool) -> Iterator[str]:
    unplaced = seen.report.unplaced
    if not seen.transports:
        if unplaced:
            yield f"No line says of which communicator: {counted(unplaced, 'connection')}."
        elif seen.main.ranks:
            yield "No line says how ranks are joined (via ...)."
        return
    ranks = sorted({rank for pair in seen.transports for rank in pair} | set(seen.ranks))
    names = {rank: str(rank) for rank in ranks}
    heading = "Transports, from rank (row) to rank (column):"
    if len(ranks) > MOST_COLUMNS:
        names = {rank: seen.host(rank) or "?" for rank in ranks}
        heading = "Transports, from pod or host (row) to the same (column):"
    cells: dict[tuple[str, str], Counter[str]] = {}
    for (source, target), kinds in seen.transports.items():
        cells.setdefault((names[source], names[target]), Counter())[kinds[0]] += 1
    rows = list(dict.fromkeys(names.values()))
    short = _letters(kinds[0] for kinds in seen.transports.values())
    drawn = len(rows) <= MOST_COLUMNS
    if drawn:
        yield heading
        yield from _grid(rows, cells, short, "\N{MIDDLE DOT}" if unicode else ".")
    places = list(Place)
    for (place, kind), joined in sorted(
        seen.joined.items(), key=lambda one: (places.index(one[0][0]), -one[1])
    ):
        yield f"  {kind}: {counted(joined, 'pair')} {place}".rstrip()
    if drawn:
        yield f"  {', '.join(f'{letters} {kind}' for kind, letters in short.items())}"
    if mixed := [pair for pair, kinds in seen.transports.items() if len(kinds) > 1]:
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


def _verdict(found: Comparison, unplanned: str) -> Iterator[str]:
    seen = found.observed
    plan = seen.planned
    if plan is None:
        yield f"Not compared with a plan: {unplanned or 'none is known'}"
    elif found.agrees:
        said = counted(len(plan.workers), "worker")
        rate = plan.forecast
        if rate.usable is not None:
            said += f", {estimates.spoken(rate.usable, rate.low, rate.high)} forecast"
        yield f"As planned: {said}"
    elif not seen.transports:
        unplaced = seen.report.unplaced
        why = "tells whose connections these are" if unplaced else "says how ranks are joined"
        yield f"Nothing to compare with the plan: no line {why}"
    if seen.by_number and seen.transports:
        yield "Ranks were told apart by their numbers: hosts have no pods' names"
    if found.findings:
        yield "Findings:"
    for index, one in enumerate(found.findings[:MOST_FINDINGS], 1):
        yield from _finding(index, one)
    if len(found.findings) > MOST_FINDINGS:
        yield f"  and {len(found.findings) - MOST_FINDINGS} more: -o json has all"


def _finding(index: int, one: Finding) -> Iterator[str]:
    before = f"planned {one.planned}, got " if one.planned is not None else ""
    who = f" ({pairs_named(one.pairs)})" if one.pairs else ""
    if one.kind is Kind.WARNING:
        who = _written_by(one)
    elif one.foretold:
        before = "as the plan says for separate pods: "
        who = f", not NVLink{who}" if one.planned == "NVLink" else who
    yield f"{index:>3}. {before}{brief(one.got)}{who}"
    cause, hint, lines = one.why
    if one.kind is not Kind.RANKS:
        yield f"     why: {one_line(cause or 'cause not visible in these lines')}"
    if hint is not None:
        yield f"     try: {one_line(hint)}"
    if lines and one.kind is not Kind.WARNING:
        yield f"     line: {brief(lines[0], 200)}"


def _written_by(one: Finding) -> str:
    """The hosts and ranks that complain, where known: ` (node-1, rank 3)`."""
    said = list(map(one_line, one.hosts[:MOST_PAIRS]))
    more = len(one.hosts) - MOST_PAIRS
    said += [counted(more, "more host")] if more > 0 else []
    said += [named(one.ranks)] if one.ranks else []
    return f" ({', '.join(said)})" if said else ""


def pairs_named(pairs: Sequence[Pair]) -> str:
    """Pairs in words, each once whatever its direction: `pairs 0<->31, 7<->8 and 4 more`."""
    both = sorted({(min(pair), max(pair)) for pair in pairs})
    listed = shortened([f"{one}<->{other}" for one, other in both], MOST_PAIRS)
    return f"{'pair' if len(both) == 1 else 'pairs'} {listed}"


def _notes(seen: Observed) -> Iterator[str]:
    report, main = seen.report, seen.main
    if not main.certain:
        yield "which ranks belong together is not certain: not all lines name their communicator"
    if report.unplaced and seen.transports:
        yield f"{counted(report.unplaced, 'more connection')} of no communicator for certain"
    if report.torn:
        yield f"{counted(report.torn, 'line')} cut or mixed up with others, and not used"
    if report.dropped:
        yield f"{counted(report.dropped, 'line')} given up, as there were too many"


# ---------------------------------------------------------------- values


def value(found: Comparison, *, job: str = "", namespace: str = "") -> dict[str, Any]:
    """The comparison for JSON and YAML; null for unknown values. Bandwidths are GB/s."""
    seen = found.observed
    report, plan = seen.report, seen.planned
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
            "workers": [asdict(one) for one in plan.workers],
        },
        "asPlanned": None if plan is None or not seen.transports else found.agrees,
        "findings": [
            {name: value for name, value in asdict(one).items() if name != "why"}
            | one.why._asdict()
            for one in found.findings
        ],
        "hosts": [
            {
                "name": one.name,
                "bootstrap": list(one.bootstrap),
                "networks": list(one.networks),
                "devices": [*one.cards, *one.sockets],
                "noInfiniBand": bool(one.no_ib),
            }
            for one in report.hosts
        ],
        "communicators": [
            _communicator_value(one, seen.workers if one is seen.main else {})
            for one in report.communicators
        ],
        "connectionsOfSeveral": report.unplaced,
        "settings": [asdict(one) for one in report.settings],
        "complaints": [asdict(one) for one in report.complaints],
        "lines": report.lines,
        "tornLines": report.torn,
        "droppedLines": report.dropped,
    }


def _communicator_value(one: Communicator, workers: Mapping[int, WorkerSlot]) -> dict[str, Any]:
    return {
        "name": one.name,
        "size": one.size,
        "certain": one.certain,
        "channels": one.channels,
        "missing": one.missing,
        "incomplete": one.incomplete,
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
            for rank in one.ranks
        ],
        "rings": [{"channel": channel, "ranks": ring} for channel, ring in one.rings.items()],
        "transports": [
            {"from": source, "to": target, "kinds": kinds}
            for (source, target), kinds in one.matrix().items()
        ],
        "searches": [asdict(search) for search in one.searches],
    }
