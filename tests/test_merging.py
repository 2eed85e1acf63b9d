"""Lines of many logs are put in the order of their times, within bounds; those of one log stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.engines.lines import Line, Source
from arena_topo.joblogs import merging
from arena_topo.joblogs.merging import LAG, PATIENCE, Merge

SOURCES = [Source(pod=f"demo-worker-{index}", worker=index) for index in range(4)]
A, B = SOURCES[:2]


def line(source: Source, at: int, text: str = "") -> Line:
    return Line(source=source, at=at, stamp=b"", text=(text or str(at)).encode())


def texts(lines: Sequence[Line]) -> list[str]:
    return [one.text.decode() for one in lines]


def joined(*sources: Source, lag: float | None = LAG) -> Merge:
    merge = Merge(lag=lag)
    for one in sources:
        merge.join(one)
    return merge


def test_lines_that_came_at_once_are_sorted_by_their_times():
    merge = joined(A, B)
    merge.add([line(A, 1), line(A, 4), line(B, 2), line(B, 3), line(B, 5)], 0.0)
    assert texts(merge.take(0.0)) == ["1", "2", "3", "4"]
    assert texts(merge.take(LAG)) == ["5"]


def test_a_line_waits_for_older_ones_of_a_log_that_is_silent_but_not_for_long():
    merge = joined(A, B)
    merge.add([line(A, 2)], 10.0)
    assert merge.take(10.0 + LAG / 2) == []
    merge.add([line(B, 1)], 10.0 + LAG / 2)
    assert texts(merge.take(10.0 + LAG)) == ["1", "2"]


def test_the_log_of_one_pod_alone_waits_for_nothing():
    merge = joined(A)
    merge.add([line(A, 7)], 0.0)
    assert texts(merge.take(0.0)) == ["7"]


def test_a_log_that_has_ended_is_not_waited_for():
    merge = joined(A, B)
    merge.add([line(A, 2)], 0.0)
    assert merge.take(0.0) == []
    merge.end(B)
    assert texts(merge.take(0.0)) == ["2"]


def test_without_a_lag_a_line_waits_for_every_log_that_is_to_come():
    merge = joined(A, lag=None)
    merge.await_([B.pod])
    merge.add([line(A, 2)], 0.0)
    assert merge.take(PATIENCE - 0.1) == []
    merge.join(B)
    assert merge.take(PATIENCE - 0.1) == []
    merge.add([line(B, 1), line(B, 3)], PATIENCE - 0.1)
    assert texts(merge.take(PATIENCE - 0.1)) == ["1", "2"]
    assert texts(merge.rest()) == ["3"]


def test_without_a_lag_a_log_that_does_not_come_holds_the_others_up_for_a_moment():
    merge = joined(A, lag=None)
    merge.await_([B.pod])
    merge.add([line(A, 2)], 0.0)
    assert merge.take(0.0) == []
    merge.add([line(A, 3)], PATIENCE - 0.1)
    assert texts(merge.take(PATIENCE)) == ["2", "3"]
    assert merge.missing == {B.pod}
    merge.add([line(B, 1), line(B, 4)], PATIENCE + 1)
    assert texts(merge.take(PATIENCE + 1)) == ["1"]
    assert not merge.missing
    assert not merge.silent


def test_without_a_lag_a_log_that_does_not_go_on_is_passed_over_until_it_does():
    merge = joined(A, B, lag=None)
    merge.add([line(A, 1), line(B, 1)], 0.0)
    assert texts(merge.take(0.0)) == ["1", "1"]
    merge.add([line(A, 2)], PATIENCE)
    assert texts(merge.take(PATIENCE)) == ["2"]
    assert merge.silent == {B.pod}
    merge.add([line(B, 3)], PATIENCE + 1)
    assert merge.take(PATIENCE + 1) == []
    assert not merge.silent
    assert not merge.missing


def test_lines_of_a_log_keep_their_order_when_its_clock_is_set_back():
    merge = joined(A, B)
    merge.add([line(A, 9, "first"), line(A, 1, "second"), line(B, 5, "other")], 0.0)
    assert texts(merge.take(LAG)) == ["other", "first", "second"]


def test_lines_after_the_end_of_a_log_stay_behind_those_before():
    merge = joined(A, B)
    merge.add([line(A, 9, "first")], 0.0)
    merge.end(A)
    merge.add([line(A, 1, "second")], 0.0)
    assert texts(merge.take(LAG)) == ["first", "second"]


def test_lines_without_a_time_stay_where_they_came():
    merge = joined(A, B)
    merge.add([line(A, 5, "a")], 0.0)
    assert texts(merge.take(LAG)) == ["a"]
    merge.add([line(B, 0, "b"), line(A, 6, "c")], LAG)
    assert texts(merge.take(2 * LAG)) == ["b", "c"]


def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "MOST_LINES", 10)
    merge = joined(A, B, lag=None)
    merge.add([line(A, at) for at in range(1, 26)], 0.0)
    assert texts(merge.take(0.0)) == [str(at) for at in range(1, 21)]
    assert merge.held == 5


def test_lines_of_megabytes_are_counted_by_their_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merging, "MOST_BYTES", 100)
    merge = joined(A, B, lag=None)
    merge.add([line(A, at, "x" * 30) for at in range(1, 6)], 0.0)
    assert len(merge.take(0.0)) == 4
    assert merge.held == 1


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(0, 20)), max_size=6),
        st.floats(0.0, 0.4),
    ),
    max_size=12,
)


@given(steps=steps, lag=st.sampled_from([None, LAG, 0.0]), end=st.integers(0, 12))
def test_no_line_is_lost_or_doubled_or_late_and_each_log_keeps_its_order(steps, lag, end):
    merge = joined(*SOURCES, lag=lag)
    now, number = 0.0, 0
    came: dict[Source, list[str]] = {}
    arrived: dict[str, float] = {}
    shown: list[Line] = []
    for index, (lines, pause) in enumerate(steps):
        batch = []
        for source, at in lines:
            number += 1
            batch.append(line(source, at, f"{number}"))
            came.setdefault(source, []).append(f"{number}")
            arrived[f"{number}"] = now
        merge.add(batch, now)
        if index == end:
            merge.end(SOURCES[0])
        now += pause
        shown += merge.take(now)
        if lag is not None:
            left = set(arrived) - set(texts(shown))
            assert all(now - arrived[one] < lag + 1e-9 for one in left)
    shown += merge.rest()
    assert merge.held == 0
    for source in SOURCES:
        assert texts([one for one in shown if one.source == source]) == came.get(source, [])
    assert len(shown) == number


@given(st.lists(st.lists(st.integers(1, 1000), max_size=30), min_size=1, max_size=4))
def test_logs_that_are_read_whole_come_in_the_order_of_their_times(logs):
    """However they were cut into batches: here each log comes in one, the last one first."""
    merge = Merge(lag=None)
    merge.await_([one.pod for one in SOURCES[: len(logs)]])
    shown: list[Line] = []
    for source, times in reversed(list(zip(SOURCES, logs, strict=False))):
        merge.join(source)
        merge.add([line(source, at) for at in sorted(times)], 0.0)
        merge.end(source)
        shown += merge.take(0.0)
    shown += merge.rest()
    assert [one.at for one in shown] == sorted(at for times in logs for at in times)
