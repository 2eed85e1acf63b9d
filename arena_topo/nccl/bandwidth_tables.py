"""What nccl-tests measured: its tables of bus bandwidth, read from a log.

    # Collective test starting: all_reduce_perf              since 2.17; before, its command
    #  Rank  0 Group  0 Pid 4935 on node-0 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
    #       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
      1073741824  ...    float   sum    -1  3941  272.4  476.8      0  3940  272.5  476.9      0
    # Avg bus bandwidth    : 476.8

Columns are found by their names in the header (src/common.cu of nccl-tests, 2.0 to 2.19): they grew
over the versions. Bus bandwidth is the data each link carries, whatever the number of ranks
(nccl-tests, doc/PERFORMANCE.md), in GB/s of 10^9 bytes. Rates are those out of place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any

import msgspec

from arena_topo.numbers import parse_count

LEAST_SIZE = 128 * 1024 * 1024
"""The smallest size in bytes that counts: below it the latency dominates. It is the largest size of
the example in the README of nccl-tests (`all_reduce_perf -b 8 -e 128M`)."""

MAX_TABLE_ROWS = 10_000
"""The most rows and ranks of a table that are read; a table of every power of two has 40 rows."""

MOST_TABLES = 1_000
"""The most tables of a log that are read."""

_OPERATION = re.compile(r"\b((?:all_|re|send|broad|scat|gath|hyper)\w*)_perf\b")
_RANK = re.compile(
    r"#\s+Rank\s+([0-9]{1,9})(?: Group\s+\d+)? Pid\s+[0-9]{1,9} on\s+(\S+) device\s+[0-9]{1,9} "
    r"\[([0-9a-fA-Fx:.]+)\]\s+(\S.*)"
)
_HEADER = re.compile(r"#\s+(size\s+count\s.*\bbusbw\b.*)")
_ROW = re.compile(r"(?<![\d.])(\d{1,18})\s+(\d{1,18})\s+([a-z]\w*)\s")
_WIDTHS = {
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
"""The width in bytes of the types of nccl-tests; all others have one byte."""

_RATE = re.compile(r"\d{1,9}(?:\.\d{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedRank:
    """A rank of a test, and the PCI bus or address and the product name of its GPU."""

    rank: int
    host: str
    pci: str
    product: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size of a test.

    `size` is in bytes, `rate` the bus bandwidth in GB/s (None: not measured), `wrong` the number of
    wrong values (None: not checked).
    """

    size: int
    rate: float | None
    wrong: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthTable:
    """One run of a test: its operation (None: no line names it), its ranks, its rows.

    `mixed` is True if several tests wrote at once: their rows cannot be told apart.
    """

    operation: str | None
    ranks: tuple[TestedRank, ...]
    rows: tuple[Row, ...]
    mixed: bool = False

    @property
    def defect(self) -> str | None:
        """Why this is no table of an all-reduce; None if it is one."""
        if self.mixed:
            return "several tests wrote at once, so their rows cannot be told apart"
        if self.operation is None:
            return "no line tells which operation was measured"
        if self.operation != "all_reduce":
            return f"{self.operation} was measured, not all_reduce"
        return None


@dataclass(slots=True)
class _Open:
    """An unfinished table."""

    operations: set[str] = field(default_factory=set)
    ranks: list[TestedRank] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    headers: int = 0

    def table(self) -> BandwidthTable:
        return BandwidthTable(
            operation=next(iter(self.operations)) if len(self.operations) == 1 else None,
            ranks=tuple(sorted(self.ranks, key=lambda rank: (rank.rank, rank.host))),
            rows=tuple(self.rows),
            mixed=self.headers > 1 or len({rank.rank for rank in self.ranks}) != len(self.ranks),
        )


class TableReader:
    """Reads lines one by one; each speaker has its own tables."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._done: list[BandwidthTable] = []

    def feed(self, line: str, speaker: str = "") -> None:
        """Read a line, with or without its tags."""
        if (table := self._open.get(speaker)) is None:
            table = self._open[speaker] = _Open()
        if "_perf" in line and "concluded" not in line and (match := _OPERATION.search(line)):
            if "Collective test starting" in line:
                table.operations.clear()
            table.operations.add(match[1])
        if "#" not in line:
            if table.columns and (match := _ROW.search(line)):
                self._row(match, line[match.start() :].split(), table)
        elif match := _RANK.search(line):
            rank, host, pci, product = match.groups()
            if table.rows and not any(known.rank == int(rank) for known in table.ranks):
                # The table before has no last line; its command may be this one's too.
                table = self._close(speaker, _Open(operations=table.operations))
            if len(table.ranks) < MAX_TABLE_ROWS:
                table.ranks.append(
                    TestedRank(rank=int(rank), host=host, pci=pci.lower(), product=product)
                )
        elif match := _HEADER.search(line):
            table.headers += 1
            columns = match[1].split()
            # In a line that is mixed up with another the word may be truncated.
            table.columns = columns if "busbw" in columns else []
        elif "# Avg bus bandwidth" in line:
            self._close(speaker, _Open())

    def feed_all(self, lines: Iterable[str], speaker: str = "") -> None:
        """Read every line of a log."""
        for line in lines:
            self.feed(line, speaker)

    def tables(self) -> tuple[BandwidthTable, ...]:
        """The tables that were read, including unfinished ones."""
        return (*self._done, *(table.table() for table in self._open.values() if table.rows))

    def _close(self, speaker: str, after: _Open) -> _Open:
        old = self._open[speaker]
        if (old.rows or old.ranks) and len(self._done) < MOST_TABLES:
            self._done.append(old.table())
        self._open[speaker] = after
        return after

    @staticmethod
    def _row(match: re.Match[str], cells: list[str], table: _Open) -> None:
        """Add a row with as many words as the header has columns; others are torn."""
        size, unit = int(match[1]), int(match[2]) * _WIDTHS.get(match[3], 1)
        # A size that lost its first digits is no multiple of the width of an element.
        torn = not unit or size < unit or size % unit or len(cells) != len(table.columns)
        if torn or len(table.rows) >= MAX_TABLE_ROWS:
            return
        rate = cells[table.columns.index("busbw")]
        wrong = [
            parse_count(cells[at]) for at, name in enumerate(table.columns) if name == "#wrong"
        ]
        counts = [count for count in wrong if count is not None]
        table.rows.append(
            Row(
                size=size,
                rate=float(rate) if _RATE.fullmatch(rate) else None,
                wrong=sum(counts) if counts and len(counts) == len(wrong) else None,
            )
        )


# ---------------------------------------------------------------- JSON


class _Result(msgspec.Struct, frozen=True):
    size: int
    out_of_place: dict[str, Any] | None = None
    """None if the test measured only in place."""

    @property
    def row(self) -> Row:
        # nccl-tests writes the word `nan` for a rate that is not a number.
        rate = (self.out_of_place or {}).get("bus_bw")
        known = isinstance(rate, int | float) and rate >= 0
        return Row(size=self.size, rate=rate if known else None)


class _Device(msgspec.Struct, frozen=True):
    rank: int
    hostname: str = ""
    device_hex: str = ""
    device_info: str = ""


class _Config(msgspec.Struct, frozen=True):
    devices: list[_Device] = []


class _Output(msgspec.Struct, frozen=True):
    """What nccl-tests writes with `--json` (-J); keys are those of its src/util.cu."""

    args: Annotated[list[str], msgspec.Meta(min_length=1)]
    results: Annotated[list[_Result], msgspec.Meta(max_length=MAX_TABLE_ROWS)]
    config: _Config = _Config()
    devices: list[_Device] = []


def tables_in(text: str) -> list[BandwidthTable]:
    """The tables in the output of nccl-tests, text or JSON.

    In JSON a build without MPI lists a single device for any number of devices.
    """
    if text.lstrip()[:1] != "{":
        reader = TableReader()
        reader.feed_all(text.splitlines())
        return [table for table in reader.tables() if table.rows]
    try:
        value = msgspec.json.decode(text, type=_Output)
    except (msgspec.MsgspecError, RecursionError):
        return []
    operation = _OPERATION.search(value.args[0])
    return [
        BandwidthTable(
            operation=operation[1] if operation else None,
            ranks=tuple(
                TestedRank(
                    rank=device.rank,
                    host=device.hostname,
                    pci=device.device_hex.lower(),
                    product=device.device_info,
                )
                for device in value.config.devices or value.devices
            ),
            rows=tuple(result.row for result in value.results),
        )
    ]


# ---------------------------------------------------------------- the bandwidth of a set of GPUs


class BadTable(Exception):
    """The reason why a test gives no bandwidth of a node's GPUs."""


def measured_on(day: date, versions: Iterable[str]) -> str:
    """When something was measured, and with which NCCL: `2026-05-31, NCCL 2.21.5`."""
    known = sorted({version.partition("+")[0] for version in versions})
    return f"{day:%Y-%m-%d}, NCCL {' and '.join(known) or 'unknown'}"


def bandwidth_of_table(table: BandwidthTable) -> tuple[float, int]:
    """The bus bandwidth that a table gives for its set of GPUs, and the size in bytes.

    Unfit if the table gives none, as for GPUs of several hosts.
    """
    hosts = len({rank.host for rank in table.ranks})
    _refuse(
        (table.defect is not None, table.defect),
        (not table.ranks, "no line tells which GPUs took part"),
        (hosts > 1, f"{hosts} hosts took part: a table is one of a single machine"),
    )
    return plateau_of_table(table)


def plateau_of_table(table: BandwidthTable) -> tuple[float, int]:
    """The bus bandwidth of the GPUs of a test, on one host or several, and the size in bytes.

    It is the rate of the all-reduce of the largest size, at least `LEAST_SIZE`; of several rows of
    that size the lower median. Unfit if the table gives none.
    """
    rates = [(row.size, row.rate) for row in table.rows if row.rate is not None]
    largest = max((size for size, _ in rates), default=0)
    wrong = sum(row.wrong or 0 for row in table.rows)
    gpus = {(rank.host, rank.pci) for rank in table.ranks}
    _refuse(
        (table.defect is not None, table.defect),
        (len(table.ranks) == 1, "one GPU alone has no bus bandwidth"),
        (len(gpus) < len(table.ranks), "two ranks measured on one GPU"),
        (not largest, "the table has no whole row"),
        (
            largest < LEAST_SIZE,
            f"its largest size is {largest:,} bytes; links are measured from {LEAST_SIZE:,} on",
        ),
        (wrong > 0, f"{wrong} of the results were wrong"),
    )
    same = sorted(rate for size, rate in rates if size == largest)
    return same[(len(same) - 1) // 2], largest


def _refuse(*reasons: tuple[bool, str | None]) -> None:
    for applies, why in reasons:
        if applies:
            raise BadTable(why)
