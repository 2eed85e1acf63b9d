"""Half lines of NCCL claim nothing, and however many there are, memory and steps are bounded."""

from __future__ import annotations

import pytest
from test_nccl import PREFIX, kinds, read, start

from arena_topo.nccl import line_parser
from arena_topo.nccl.line_parser import NcclReader


def test_half_of_a_setting_is_not_claimed() -> None:
    reader = NcclReader()
    reader.feed(f"{PREFIX}NCCL_MIN_NCHANNELS set by environment to 1", ends=False)
    assert reader.report().settings == ()
    reader.feed(f"{PREFIX}NCCL_MIN_NCHANNELS set by environment to 10.")
    (one,) = reader.report().settings
    assert (one.value, one.line) == ("10", "NCCL_MIN_NCHANNELS set by environment to 10.")


def test_a_connection_of_a_rank_that_its_thread_is_not_is_not_used() -> None:
    lines = [start(0, 8, "a", pid=0, done=False)]
    lines.append("n:0:9 [0] NCCL INFO Channel 00/0 : 5[5] -> 6[6] via P2P/IPC")
    report = read("\n".join(lines))
    assert (kinds(report), report.torn) == (set(), 1)


def begins(rank: int, size: int, name: str, state: str = "START") -> str:
    said = f" commId 0x{name}" if name else ""
    return (
        f"n:1:9 [0] NCCL INFO comm 0x7f rank {rank} nranks {size} cudaDev 0 busId 1000{said}"
        f" - Init {state}"
    )


def test_a_rank_of_another_size_or_name_is_of_another_communicator() -> None:
    report = read(f"{begins(0, 2, '')}\n{begins(1, 4, '')}")
    assert [(one.size, [who.rank for who in one.ranks]) for one in report.communicators] == [
        (2, [0]),
        (4, [1]),
    ]
    report = read(f"{begins(0, 2, 'a')}\n{begins(0, 2, 'b')}")
    assert [one.name for one in report.communicators] == ["0xa", "0xb"]


# ---------------------------------------------------------------- bounds


def via_of(rank: int, *, host: str = "", pid: int | None = None) -> str:
    return (
        f"{host or f'host{rank}'}:{rank if pid is None else pid}:{rank} [0] NCCL INFO"
        f" Channel 00/0 : {rank}[0] -> {rank + 1}[1] via P2P/IPC"
    )


def test_connections_beyond_the_limit_are_only_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "h:1:2 [0] NCCL INFO Channel {:02d}/0 : 0[0] -> 1[1] via P2P/IPC"
    lines = [line.format(channel) for channel in range(40)]
    assert read("\n".join(lines)).dropped == 0
    monkeypatch.setattr(line_parser, "MOST_FACTS", 20)
    report = read("\n".join(lines))
    (one,) = report.communicators
    assert len(one.connections) + report.dropped == 40
    assert len(one.connections) <= 20


def test_complaints_beyond_the_limit_are_only_counted() -> None:
    words = [f"{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghijklmno"]
    many = [f"n:1:2 [0] a.cc:1 NCCL WARN broken {word}" for word in [*words, "zz", "zy"]]
    report = read("\n".join(many))
    assert (len(report.complaints), report.dropped) == (line_parser.MOST_COMPLAINTS, 2)
    known = read("\n".join([*many, many[0]]))
    assert (known.complaints[0].count, known.dropped) == (2, 2)


def test_ranks_beyond_the_limit_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_parser, "MOST_FACTS", 80)
    report = read("\n".join(via_of(rank) for rank in range(30)))
    # A rank counts for eight facts, and its connection for one: that of the ninth has no room.
    assert sum(len(one.ranks) for one in report.communicators) == 9
    assert (report.dropped, report.unplaced) == (22, 0)
    monkeypatch.setattr(line_parser, "MOST_OF_PROCESS", 4)
    lines = [start(rank, 99, f"{rank:x}", pid=0) for rank in range(9)]
    assert (len(read("\n".join(lines)).communicators), read("\n".join(lines)).dropped) == (4, 5)


@pytest.mark.parametrize(
    "text",
    [
        "Channel {:02d}/02 : 0 1 2",
        "NCCL_X{} set by environment to 1",
        "Bootstrap : Using eth{}:10.0.0.1<0>",
        "Using network Net{}",
        "Pattern 4, crossNic 0, nChannels {}, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
    ],
)
def test_output_is_bounded_for_any_ranks_and_hosts(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_parser, "MOST_FACTS", 50)
    lines = [PREFIX + text.format(number) for number in range(200)]
    assert read("\n".join(lines)).dropped >= 145


def test_numbers_of_thousands_of_digits_are_torn_lines() -> None:
    huge = "9" * 5000
    for text in (
        f"Channel {huge}/0 : 0[0] -> 1[1] via P2P/IPC",
        f"comm 0x1 rank 0 nranks {huge} cudaDev 0 - Init START",
        "comm 0x1 rank 0 nranks 99999999999 cudaDev 0 - Init START",
        "comm 0x1 rank 8 nranks 8 cudaDev 0 - Init START",
    ):
        report = read(PREFIX + text)
        assert (report.torn, kinds(report)) == (1, set())
