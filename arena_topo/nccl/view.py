"""What NCCL did, beside the plan: a screen of some forty lines, and a value for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from arena_topo.drawing.tables import EMULATED
from arena_topo.escaping import brief, one_line
from arena_topo.layout import align, fold, number, table
from arena_topo.manifests import estimates
from arena_topo.nccl import Communicator, Connection, Host, Report
from arena_topo.nccl.deviations import Finding, Kind, named, spans
from arena_topo.nccl.transports import Compared, Place

MOST_COLUMNS = 16
"""Ranks up to which each has a row and a column; of more, pods do."""

MOST_ROWS = 8
"""Hosts, rings, settings and communicators that are listed before the rest is counted."""

MOST_PAIRS = 4
"""Pairs of ranks that are named before the rest is counted."""

MOST_FINDINGS = 12
"""Findings that are told in full; most logs have fewer kinds of trouble."""

_SHORT = {
    "P2P/CUMEM": "CUM",
    "P2P/IPC": "IPC",
    "P2P/direct pointer": "PTR",
    "P2P/indirect": "IND",
    "SHM": "SHM",
    "NET/IB": "IB",
    "NET/Socket": "TCP",
}
"""Three letters for the transports of NCCL; others get those of their name."""

_WHERE = {
    Place.POD: "in one pod",
    Place.NODE: "between pods of one node",
    Place.NODES: "between nodes",
    Place.HOST: "with one host name",
    Place.HOSTS: "with two host names",
    None: "",
}

_NOT_SEEN = "cause not visible in these lines"


def text(found: Compared, *, width: int = 100, unicode: bool = True, unplanned: str = "") -> str:
    """The versions, hosts, rings and transports, and what is not as planned; `width` columns.

    `unplanned` says why there is no plan to compare with.
    """
    blocks = [
        _headline(found, width),
        _hosts(found, width),
        _settings(found, width),
        _rings(found.main, width) if found.main is not None else "",
        _transports(found, width, unicode=unicode),
        _verdict(found, width, unplanned),
        _notes(found, width),
        f"{EMULATED}\n" if found.planned is not None and found.planned.emulated else "",
    ]
    return "\n".join(block for block in blocks if block)


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count != 1 else ''}"


def _folded(line: str, width: int, indent: str) -> str:
    return fold(line, width, indent=indent) + "\n"


def _headline(found: Compared, width: int) -> str:
    report, main = found.report, found.main
    versions = " and ".join(map(one_line, report.versions)) or "of unknown version"
    words = [f"NCCL {versions}"]
    if main is not None:
        spoke = {one.rank for one in main.ranks if main.size is None or one.rank < main.size}
        if main.size is not None:
            words.append(f"{len(spoke)} of {_many(main.size, 'rank')} spoke")
        if report.hosts:
            words.append(_many(len(report.hosts), "host"))
        words += _several(report)
    return _folded(", ".join(words), width, "  ")


def _several(report: Report) -> Iterator[str]:
    """That more was read of than is shown; ranks that say no size may be of any communicator."""
    count = sum(one.size is not None for one in report.communicators)
    stray = len(report.communicators) - count
    if count > 1:
        yield f"{count} communicators, this is the largest"
    if stray > 1 or (stray and count):
        largest = "" if count else ", this is the largest"
        yield f"{_many(stray, 'group')} of ranks whose communicator no line tells{largest}"


# ---------------------------------------------------------------- hosts


def _hosts(found: Compared, width: int) -> str:
    report, main = found.report, found.main
    if not report.hosts:
        return ""
    ranks: dict[str, list[int]] = {}
    for one in main.ranks if main is not None else ():
        ranks.setdefault(one.host, []).append(one.rank)
    nodes: dict[str, set[str]] = {}
    for one in main.ranks if main is not None else ():
        if one.rank in found.seats:
            nodes.setdefault(one.host, set()).add(found.seats[one.rank].node)
    rows = [
        (
            host.name or "?",
            spans(ranks.get(host.name, ())) or "-",
            *((",".join(sorted(nodes.get(host.name, ()))) or "-",) if nodes else ()),
            ",".join(host.networks) or "?",
            ",".join(dict.fromkeys(name for name, _ in host.bootstrap)) or "-",
            _devices(host),
        )
        for host in report.hosts[:MOST_ROWS]
    ]
    header = ("HOST", "RANKS", *(("NODE",) if nodes else ()), "NETWORK", "BOOTSTRAP", "DEVICES")
    lines = [line.rstrip() for line in align(table(header, rows)).splitlines()]
    more = len(report.hosts) - MOST_ROWS
    if more > 0:
        lines.append(f"and {_many(more, 'more host')}")
    return "".join(f"{_cut(line, width)}\n" for line in lines)


def _settings(found: Compared, width: int) -> str:
    said = [f"{one.name}={brief(one.value, 60)}" for one in found.report.settings]
    if not said:
        return ""
    more = f" and {len(said) - MOST_ROWS} more" if len(said) > MOST_ROWS else ""
    return _folded(f"Set by the environment: {', '.join(said[:MOST_ROWS])}{more}", width, "  ")


def _devices(host: Host) -> str:
    used = {name.partition("_v")[0] for name in host.networks}
    names = dict.fromkeys(
        one.name + ("" if one.port is None else f":{one.port}")
        for one in host.devices
        if not used or one.network in used or any(name.startswith(one.network) for name in used)
    )
    if names:
        return ",".join(names)
    return "no IB device" if host.no_ib else "-"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


# ---------------------------------------------------------------- rings


def _rings(main: Communicator, width: int) -> str:
    searches = [one for one in main.searches if one.pattern.lower().startswith("ring")]
    counted = "".join(
        f"  NCCL's search counted on {one.inside} inside, {one.between} between machines\n"
        for one in searches[:1]
    )
    if not main.rings:
        said = _steps(main)
        if not said and not counted:
            return ""
        return _folded(f"Channels: {_some(main.channels)}{said}", width, "  ") + counted
    alike: dict[tuple[int | None, ...], list[int]] = {}
    for channel, ring in sorted(main.rings.items()):
        alike.setdefault(_from_least(ring), []).append(channel)
    channels = main.channels or len(main.rings)
    lines = [f"Rings of {_many(channels, 'channel')}:"]
    rows = list(alike.items())
    for ring, numbers in rows[:MOST_ROWS]:
        lines.append(_cut(f"  {spans(numbers)}: {way(ring)}", width))
    more = rows[MOST_ROWS:]
    if more:
        lines.append(f"  and {_many(len(more), 'more ring')}")
    return "".join(f"{line}\n" for line in lines) + counted


def way(ring: Sequence[int | None]) -> str:
    """The ranks of a ring in its order; of many, neighbours as a span: `0-7 15-8`."""
    if len(ring) <= MOST_COLUMNS:
        return " ".join("..." if one is None else str(one) for one in ring)
    runs: list[list[int | None]] = []
    for one in ring:
        last = runs[-1] if runs else []
        step = None if one is None or not last or last[-1] is None else one - last[-1]
        begun = None if len(last) < 2 else _step(last)  # noqa: PLR2004 - a direction needs two
        if step in {1, -1} and begun in {None, step}:
            last.append(one)
        else:
            runs.append([one])
    return " ".join(
        "..." if run[0] is None else str(run[0]) + (f"-{run[-1]}" if len(run) > 1 else "")
        for run in runs
    )


def _step(run: Sequence[int | None]) -> int:
    return (run[1] or 0) - (run[0] or 0)


def _from_least(ring: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The same ring from its least rank on, so that equal rings look the same."""
    whole = [one for one in ring if one is not None]
    if len(whole) != len(ring) or not whole:
        return ring
    at = ring.index(min(whole))
    return ring[at:] + ring[:at]


def _steps(main: Communicator) -> str:
    if not main.steps:
        return ""
    return f", no whole ring in these lines, {_many(len(main.steps), 'step')} of ranks"


def _some(count: int | None) -> str:
    return "?" if count is None else str(count)


# ---------------------------------------------------------------- transports


def _transports(found: Compared, width: int, *, unicode: bool) -> str:
    main = found.main
    if main is None:
        return ""
    if not main.connections:
        return _folded(f"{_unjoined(found)}.", width, "  ")
    matrix = main.matrix()
    ranks = sorted({rank for pair in matrix for rank in pair} | {one.rank for one in main.ranks})
    lines = []
    cells: dict[tuple[str, str], Counter[str]] = {}
    if len(ranks) <= MOST_COLUMNS:
        names = [str(rank) for rank in ranks]
        heading = "Transports, from rank (row) to rank (column):"
        for (source, target), kinds in matrix.items():
            cells.setdefault((str(source), str(target)), Counter()).update(kinds[:1])
    else:
        group = _groups(found, ranks)
        names = list(dict.fromkeys(group[rank] for rank in ranks))
        heading = "Transports, from pod or host (row) to the same (column):"
        for (source, target), kinds in matrix.items():
            cells.setdefault((group[source], group[target]), Counter()).update(kinds[:1])
    short = _letters(kind for kinds in matrix.values() for kind in kinds[:1])
    if len(names) <= MOST_COLUMNS:
        lines += [heading, *_grid(names, cells, short, "\N{MIDDLE DOT}" if unicode else ".")]
    lines += _counts(found)
    used = ", ".join(f"{letters} {kind}" for kind, letters in short.items())
    mixed = [pair for pair, kinds in matrix.items() if len(kinds) > 1]
    legend = [f"  {used}"] if len(names) <= MOST_COLUMNS else []
    if mixed:
        legend.append(f"  several transports, most used shown: {pairs_named(mixed)}")
    shown = [*lines, *legend]
    return "".join(_cut(line, width) + "\n" for line in shown)


def _unjoined(found: Compared) -> str:
    if not found.unplaced:
        return "No line says how ranks are joined (via ...)"
    count = _many(len(found.unplaced), "connection")
    verb = "is" if len(found.unplaced) == 1 else "are"
    return f"No line says of which communicator {count} {verb}: {_kinds(found.unplaced)}"


def _kinds(connections: Iterable[Connection]) -> str:
    """How many take each transport."""
    counted = Counter(one.kind for one in connections).most_common()
    return ", ".join(f"{count} {kind}" for kind, count in counted)


def _groups(found: Compared, ranks: Iterable[int]) -> dict[int, str]:
    hosts = {one.rank: one.host for one in (found.main.ranks if found.main is not None else ())}
    return {
        rank: found.seats[rank].pod if rank in found.seats else hosts.get(rank) or "?"
        for rank in ranks
    }


def _letters(kinds: Iterable[str]) -> dict[str, str]:
    """Up to three letters for each kind, no two the same; most used first."""
    found: dict[str, str] = {}
    for kind, _count in Counter(kinds).most_common():
        bare = "".join(one for one in kind.rpartition("/")[2] if one.isalnum()).upper() or "?"
        word = _SHORT.get(kind, bare[:3])
        tries = (word, *(f"{word[:2]}{digit}" for digit in range(2, 10)), word)
        found[kind] = next(one for one in tries if one not in found.values() or one is tries[-1])
    return found


def _grid(
    names: Sequence[str],
    cells: Mapping[tuple[str, str], Counter[str]],
    short: Mapping[str, str],
    nothing: str,
) -> Iterator[str]:
    """A row and a column for each; long names are told once, and numbered above."""
    long = max(map(len, names)) > 3  # noqa: PLR2004 - the width of a cell
    heads = [str(index) for index in range(len(names))] if long else list(names)
    wide = max(len(name) + (4 if long else 0) for name in names) + 2
    yield " " * wide + " ".join(head.rjust(3) for head in heads)
    for index, row in enumerate(names):
        label = f"{index:>2}  {row}" if long else row.rjust(wide - 2)
        inside = []
        for column in names:
            kinds = cells.get((row, column))
            inside.append((short[kinds.most_common(1)[0][0]] if kinds else nothing).rjust(3))
        yield f"{label.ljust(wide)}{' '.join(inside)}"


def _counts(found: Compared) -> Iterator[str]:
    """How many pairs each transport joins, by where they are."""
    for (place, kind), count in sorted(
        found.joined.items(), key=lambda one: (list(_WHERE).index(one[0][0]), -one[1])
    ):
        where = _WHERE[place]
        yield f"  {kind}: {_many(count, 'pair')}{' ' + where if where else ''}"


# ---------------------------------------------------------------- what differs


def _verdict(found: Compared, width: int, unplanned: str) -> str:
    lines: list[str] = []
    plan = found.planned
    if plan is None:
        lines.append(
            _folded(f"Not compared with a plan: {unplanned or 'none is known'}", width, "  ")
        )
    elif found.agrees:
        said = [_many(len(plan.seats), "worker")]
        if plan.usable is not None:
            said.append(f"{estimates.spoken(plan.usable, plan.low, plan.high)} forecast")
        lines.append(f"As planned: {', '.join(said)}\n")
    elif not found.joined:
        why = "tells whose connections these are" if found.unplaced else "says how ranks are joined"
        lines.append(f"Nothing to compare with the plan: no line {why}\n")
    if plan is not None and found.by_number and found.joined:
        lines.append("Ranks were told apart by their numbers: hosts have no pods' names\n")
    shown = found.findings[:MOST_FINDINGS]
    if shown:
        lines.append("Findings:\n")
    for index, one in enumerate(shown, 1):
        lines += (_folded(line, width, "        ") for line in _finding(index, one))
    more = len(found.findings) - MOST_FINDINGS
    if more > 0:
        lines.append(f"  and {more} more: -o json has all\n")
    return "".join(lines)


def _finding(index: int, one: Finding) -> Iterator[str]:
    planned = f"planned {one.planned}, got " if one.planned is not None else ""
    who = ""
    if one.pairs:
        who = f" ({pairs_named(one.pairs)})"
    elif one.kind is Kind.COMPLAINT:
        who = _written_by(one)
    if one.foretold:
        planned = "as the plan says for separate pods: "
        who = f", not NVLink{who}" if one.planned == "NVLink" else who
    yield f"{index:>3}. {planned}{brief(one.got)}{who}"
    compared = one.kind in _EXPLAINED
    if one.cause is not None or compared:
        yield f"     why: {one_line(one.cause or _NOT_SEEN)}"
    if one.hint is not None:
        yield f"     try: {one_line(one.hint)}"
    if one.said and one.kind is not Kind.COMPLAINT:
        yield f"     line: {brief(one.said[0], 200)}"


def _written_by(one: Finding) -> str:
    """The hosts and ranks that complain, where known: ` (node-1, rank 3)`."""
    said = list(map(one_line, one.hosts[:MOST_PAIRS]))
    more = len(one.hosts) - MOST_PAIRS
    said += [_many(more, "more host")] if more > 0 else []
    said += [named(one.ranks)] if one.ranks else []
    return f" ({', '.join(said)})" if said else ""


_EXPLAINED = {
    Kind.STAGED,
    Kind.LINKS,
    Kind.APART,
    Kind.NETWORK,
    Kind.GPU_DIRECT,
    Kind.INTERFACE,
    Kind.PLACE,
    Kind.ORDER,
    Kind.COMPLAINT,
}
"""What somebody asks the cause of, so that it is said where it cannot be seen."""


def pairs_named(pairs: Sequence[tuple[int, int]]) -> str:
    """Pairs in words, each once whatever its direction: `pairs 0<->31, 7<->8 and 4 more`."""
    both = sorted({(min(pair), max(pair)) for pair in pairs})
    listed = ", ".join(f"{one}<->{other}" for one, other in both[:MOST_PAIRS])
    more = len(both) - MOST_PAIRS
    word = "pair" if len(both) == 1 else "pairs"
    return f"{word} {listed}" + (f" and {more} more" if more > 0 else "")


def _notes(found: Compared, width: int) -> str:
    report, main = found.report, found.main
    lines = []
    if main is not None and not main.certain and report.communicators:
        lines.append(
            "which ranks belong together is not certain: no line names their communicator"
            if main.name is None
            else "some ranks are taken to be of this communicator as they fit nowhere else"
        )
    if found.together:
        lines.append(
            f"connections are those of {len(found.together)} communicators together, which join"
            " the same processes: no line tells them apart"
        )
    if found.unplaced and main is not None and main.connections:
        count = _many(len(found.unplaced), "more connection")
        lines.append(f"{count} of no communicator for certain: {_kinds(found.unplaced)}")
    if report.torn:
        lines.append(f"{_many(report.torn, 'line')} cut or mixed up with others, and not used")
    if report.dropped:
        lines.append(f"{_many(report.dropped, 'line')} given up, as there were too many")
    lines += report.contradictions[:3]
    return "".join(_folded(f"note: {one_line(line)}", width, "  ") for line in lines)


def unconnected(main: Communicator | None) -> str:
    """In a few words whom NCCL has not connected yet."""
    left = () if main is None else main.missing + main.incomplete
    return f"waits: NCCL connects {named(left) if left else 'the ranks'}"


# ---------------------------------------------------------------- values


def value(found: Compared, *, job: str = "", namespace: str = "") -> dict[str, Any]:
    """All of it for JSON and YAML; null where no line says a thing. Bandwidths are GB/s."""
    report, plan = found.report, found.planned
    return {
        "job": job or None,
        "namespace": namespace or None,
        "versions": list(report.versions),
        "cudaDrivers": list(report.drivers),
        "planned": None
        if plan is None
        else {
            "ranks": plan.ranks,
            "busBandwidthGBps": number(plan.bandwidth),
            "usableGBps": number(plan.usable),
            "tier": plan.tier,
            "workers": [
                {"worker": one.worker, "pod": one.pod, "node": one.node, "gpus": list(one.gpus)}
                for one in plan.seats
            ],
        },
        "asPlanned": None if plan is None or not found.joined else found.agrees,
        "findings": [_finding_value(one) for one in found.findings],
        "hosts": [_host_value(one) for one in report.hosts],
        "communicators": [
            _communicator_value(one, found if one is found.main else None)
            for one in _communicators(found)
        ],
        "connectionsOfSeveral": [
            {
                "from": one.connection.source,
                "to": one.connection.target,
                "kind": one.connection.kind,
                "host": one.host or None,
                "pid": one.pid,
                "communicators": list(one.candidates),
            }
            for one in report.loose
        ],
        "settings": [
            {"name": one.name, "value": one.value, "hosts": list(one.hosts)}
            for one in report.settings
        ],
        "complaints": [
            {
                "text": one.text,
                "cause": None if one.cause is None else one.cause.value,
                "where": one.where,
                "hosts": list(one.hosts),
                "ranks": list(one.ranks),
                "count": one.count,
                "warning": one.warning,
                "follows": one.follows,
            }
            for one in report.complaints
        ],
        "contradictions": list(report.contradictions),
        "lines": report.lines,
        "tornLines": report.torn,
        "droppedLines": report.dropped,
    }


def _communicators(found: Compared) -> list[Communicator]:
    if found.main is None or found.place is None:
        return [found.main] if found.main is not None else []
    each = list(found.report.communicators)
    each[found.place] = found.main
    return each


def _finding_value(one: Finding) -> dict[str, Any]:
    return {
        "kind": one.kind.value,
        "planned": one.planned,
        "got": one.got,
        "foretold": one.foretold,
        "hosts": list(one.hosts),
        "pairs": [list(pair) for pair in one.pairs],
        "ranks": list(one.ranks),
        "cause": one.cause,
        "hint": one.hint,
        "lines": list(one.said),
    }


def _host_value(one: Host) -> dict[str, Any]:
    return {
        "name": one.name,
        "bootstrap": [{"interface": name, "address": address} for name, address in one.bootstrap],
        "networks": list(one.networks),
        "devices": [
            {
                "network": device.network,
                "index": device.index,
                "name": device.name,
                "port": device.port,
                "layer": device.layer,
                "gpuDirect": device.gdr,
            }
            for device in one.devices
        ],
        "noInfiniBand": one.no_ib,
        "plugins": list(one.plugins),
    }


def _communicator_value(one: Communicator, found: Compared | None) -> dict[str, Any]:
    seats = {} if found is None else found.seats
    return {
        "name": one.name,
        "size": one.size,
        "certain": one.certain,
        "channels": one.channels,
        "together": [] if found is None else list(found.together),
        "missing": list(one.missing),
        "incomplete": list(one.incomplete),
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host or None,
                "worker": seats[rank.rank].worker if rank.rank in seats else None,
                "pid": rank.pid,
                "cudaDevice": rank.device,
                "nvmlDevice": rank.nvml,
                "pci": rank.pci,
                "complete": rank.complete,
            }
            for rank in one.ranks
        ],
        "rings": [
            {"channel": channel, "ranks": list(ring)} for channel, ring in sorted(one.rings.items())
        ],
        "transports": [
            {"from": source, "to": target, "kinds": list(kinds)}
            for (source, target), kinds in one.matrix().items()
        ],
        "searches": [
            {
                "pattern": search.pattern,
                "channels": search.channels,
                "inside": search.inside,
                "between": search.between,
            }
            for search in one.searches
        ],
    }
