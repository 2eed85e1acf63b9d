"""What nccl-tests measured: its tables of bus bandwidth, read from a log.

    # Collective test starting: all_reduce_perf              since 2.17; before, its command
    #  Rank  0 Group  0 Pid 4935 on node-0 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
    #       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
      1073741824  ...    float   sum    -1  3941  272.4  476.8      0  3940  272.5  476.9      0
    # Avg bus bandwidth    : 476.8

Columns are found by their names in the header (src/common.cu of nccl-tests, 2.0 to 2.19): they grew
over the versions. Bus bandwidth is the data each link carries, whatever the number of ranks
(nccl-tests, doc/PERFORMANCE.md), in GB/s of 10^9 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arena_topo.numbers import whole

LEAST_SIZE = 128 * 1024 * 1024
"""Bytes from which a size counts: below, latency is measured more than links. It is the largest
size of the example in the README of nccl-tests (`all_reduce_perf -b 8 -e 128M`)."""

MOST_ROWS = 10_000
"""Rows of a table that are kept; a table of every power of two has 40."""

MOST_TABLES = 1_000
"""Tables of a log that are kept."""

_OPERATION = re.compile(r"\b((?:all_|re|send|broad|scat|gath|hyper)\w*)_perf\b")
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,9})(?: Group\s+\d+)? Pid\s+([0-9]{1,9}) on\s+(\S+) device\s+([0-9]{1,9}) "
    r"\[([0-9a-fA-Fx:.]+)\]\s+(\S.*)"
)
_HEADER = re.compile(r"#\s+(size\s+count\s.*\bbusbw\b.*)")
_ROW = re.compile(r"(?<![\d.])(\d{1,18})\s+(\d{1,18})\s+([a-z]\w*)\s")
_WIDTHS = {
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
"""Bytes of the types of nccl-tests that have more than one."""

_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: ([\d.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedRank:
    """A rank of a test and its GPU: `device` is the CUDA index there, `pci` its PCI bus or address.

    The CUDA index counts the GPUs that the process may see: only `pci` is the machine's own.
    """

    rank: int
    pid: int
    host: str
    device: int
    pci: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A size in bytes, and what was reached with it: bus bandwidth in GB/s, values that are wrong.

    `inside` is measured in place, `rate` out of place; None where not measured or not checked.
    """

    size: int
    rate: float | None
    inside: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One run of a test: its operation (None: no line tells), its ranks, its rows.

    `mixed` is True where several tests wrote at once: whose row is whose cannot be told.
    """

    operation: str | None
    ranks: tuple[TestedRank, ...]
    rows: tuple[Row, ...]
    average: float | None = None
    mixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The bus bandwidth in GB/s that GPUs of one host reached in an all-reduce of `size` bytes."""

    host: str
    ranks: tuple[TestedRank, ...]
    rate: float
    size: int


@dataclass(slots=True)
class _Open:
    """A table while it comes in."""

    operations: dict[str, None] = field(default_factory=dict)
    ranks: list[TestedRank] = field(default_factory=list)
    columns: Sequence[str] = ()
    rows: list[Row] = field(default_factory=list)
    headers: int = 0

    def table(self, average: float | None) -> Table:
        ranks = tuple(sorted(self.ranks, key=lambda one: (one.rank, one.host, one.device)))
        operations = tuple(self.operations)
        return Table(
            operation=operations[0] if len(operations) == 1 else None,
            ranks=ranks,
            rows=tuple(self.rows),
            average=average,
            mixed=self.headers > 1 or len({one.rank for one in ranks}) != len(ranks),
        )


class TableReader:
    """Reads lines one by one; the tables of each speaker are its own."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._done: list[Table] = []

    def feed(self, line: str, speaker: str = "") -> None:
        """Read a line, its tags on it or not."""
        if "_perf" in line and "concluded" not in line and (found := _OPERATION.search(line)):
            if "Collective test starting" in line:
                self._now(speaker).operations.clear()
            self._now(speaker).operations.setdefault(found[1])
        if "#" in line:
            self._comment(line, speaker)
        elif speaker in self._open and (found := _ROW.search(line)):
            size, count = int(found[1]), int(found[2])
            unit = count * _WIDTHS.get(found[3], 1)
            # A size that lost its first digits is no multiple of the elements beside it.
            if unit and size >= unit and size % unit == 0:
                self._row(line[found.start() :].split(), self._open[speaker])

    def feed_all(self, lines: Iterable[str], speaker: str = "") -> None:
        """Read every line of a log."""
        for line in lines:
            self.feed(line, speaker)

    def tables(self) -> tuple[Table, ...]:
        """The tables that were read, those without an end too."""
        cut = [one.table(None) for one in self._open.values() if one.rows]
        return (*self._done, *cut)

    def _now(self, speaker: str) -> _Open:
        return self._open.setdefault(speaker, _Open())

    def _comment(self, line: str, speaker: str) -> None:
        if found := _RANK.search(line):
            now = self._now(speaker)
            if now.rows and not any(one.rank == int(found[1]) for one in now.ranks):
                # The table before has no end; what its command was may be that of this one too.
                self._close(speaker, None, keep=True)
                now = self._now(speaker)
            rank, pid, host, device, pci, model = found.groups()
            now.ranks.append(
                TestedRank(
                    rank=int(rank),
                    pid=int(pid),
                    host=host,
                    device=int(device),
                    pci=pci.lower(),
                    model=model.strip(),
                )
            )
        elif found := _HEADER.search(line):
            now = self._now(speaker)
            now.headers += 1
            now.columns = found[1].split()
        elif (found := _AVERAGE.search(line)) and speaker in self._open:
            self._close(speaker, float(found[1]))

    def _close(self, speaker: str, average: float | None, *, keep: bool = False) -> None:
        old = self._open.pop(speaker)
        if (old.rows or old.ranks) and len(self._done) < MOST_TABLES:
            self._done.append(old.table(average))
        if keep:
            self._open[speaker] = _Open(operations=old.operations)

    @staticmethod
    def _row(words: Sequence[str], now: _Open) -> None:
        """A row that has as many words as the header has columns; any other is not whole."""
        if len(words) != len(now.columns) or len(now.rows) >= MOST_ROWS:
            return
        rates = [at for at, name in enumerate(now.columns) if name == "busbw"]
        checks = [at for at, name in enumerate(now.columns) if name in {"#wrong", "error"}]
        wrong = [count for at in checks if (count := whole(words[at])) is not None]
        counted = (
            len(wrong) == len(checks) and now.columns[checks[0]] == "#wrong" if checks else False
        )
        now.rows.append(
            Row(
                size=int(words[0]),
                rate=_number(words[rates[0]]) if rates else None,
                inside=_number(words[rates[1]]) if len(rates) > 1 else None,
                wrong=sum(wrong) if counted else None,
            )
        )


def from_json(value: Mapping[str, Any]) -> Table | None:
    """The table in what nccl-tests writes with `--json` (-J); None if this is other JSON.

    Keys are those of its src/util.cu. A build without MPI lists one device whatever their number.
    """
    results, args = value.get("results"), value.get("args")
    if not isinstance(results, list) or not isinstance(args, list) or not args:
        return None
    found = _OPERATION.search(str(args[0]))
    rows = [row for one in results[:MOST_ROWS] if (row := _json_row(one)) is not None]
    config = value.get("config")
    config = config if isinstance(config, Mapping) else {}
    devices = config.get("devices", value.get("devices"))
    ranks = [_json_rank(one) for one in devices] if isinstance(devices, list) else []
    return Table(
        operation=found[1] if found else None,
        ranks=tuple(one for one in ranks if one is not None),
        rows=tuple(rows),
    )


def _json_row(value: object) -> Row | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("size"), int):
        return None
    found = [_json_rate(value.get(place)) for place in ("out_of_place", "in_place")]
    return Row(size=value["size"], rate=found[0], inside=found[1], wrong=None)


def _json_rate(value: object) -> float | None:
    rate = value.get("bus_bw") if isinstance(value, Mapping) else None
    return _number(str(rate))


def _json_rank(value: object) -> TestedRank | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("rank"), int):
        return None
    device, pid = value.get("device"), value.get("pid")
    return TestedRank(
        rank=value["rank"],
        pid=pid if isinstance(pid, int) else 0,
        host=str(value.get("hostname", "")),
        device=device if isinstance(device, int) else 0,
        pci=str(value.get("device_hex", "")).lower(),
        model=str(value.get("device_info", "")),
    )


def measured(table: Table) -> Measured | str:
    """The bus bandwidth that a table gives for its set of GPUs, or why it gives none.

    It is what an all-reduce out of place reached with the largest size, at least `LEAST_SIZE`; of
    several rows of that size the lower middle one.
    """
    why = _unfit(table)
    if why is not None:
        return why
    size = max(row.size for row in table.rows if row.rate is not None)
    rates = sorted(row.rate for row in table.rows if row.size == size and row.rate is not None)
    return Measured(
        host=table.ranks[0].host,
        ranks=table.ranks,
        rate=rates[(len(rates) - 1) // 2],
        size=size,
    )


def _unfit(table: Table) -> str | None:
    largest = max((row.size for row in table.rows if row.rate is not None), default=0)
    hosts = {one.host for one in table.ranks}
    wrong = sum(row.wrong or 0 for row in table.rows)
    reasons = (
        (table.mixed, "several tests wrote into one log at once: whose rows are whose is not said"),
        (table.operation is None, "no line tells which operation was measured"),
        (
            table.operation != "all_reduce",
            f"{table.operation} was measured: a table of busBandwidth is one of all_reduce",
        ),
        (not table.ranks, "no line tells which GPUs took part"),
        (len(hosts) > 1, f"{len(hosts)} hosts took part: a table is one of a single machine"),
        (len(table.ranks) == 1, "one GPU alone has no bus bandwidth"),
        (
            len({one.pci for one in table.ranks}) < len(table.ranks),
            "two ranks measured on one GPU",
        ),
        (not largest, "the table has no whole row"),
        (
            0 < largest < LEAST_SIZE,
            f"its largest size is {largest:,} bytes; links are measured from {LEAST_SIZE:,} on",
        ),
        (wrong > 0, f"{wrong} of the results were wrong"),
    )
    return next((why for holds, why in reasons if holds), None)


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
