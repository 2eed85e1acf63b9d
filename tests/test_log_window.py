"""Lines of many logs: put in order, folded, chosen; how long they wait, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.engines.lines import MAX_LINE_BYTES, Line, LogOptions, LogTurn, Notice, Source
from arena_topo.joblogs import window
from arena_topo.joblogs.log_request import LogRequest
from arena_topo.joblogs.pipeline import Pipeline
from arena_topo.joblogs.ranks import Entry, Speaker
from arena_topo.joblogs.window import BACKLOG_SECONDS, HELD_SECONDS, REORDER_SECONDS, Window

SECOND = 1_000_000_000
FOLLOW = LogOptions(follow=True)
LAUNCHER = Source(pod="demo-launcher", uid="1", chief=True)
PODS = [Source(pod=f"demo-worker-{index}", uid=f"w{index}", worker=index) for index in range(64)]
RANKS = [Speaker(source=one, rank=one.worker, ranks=(index, index)) for index, one in
         enumerate(PODS)]  # fmt: skip


def said(rank: int, text: str, at: float = 0.0) -> Entry:
    """A line that was written so many seconds after the first."""
    when = 1_795_000_000 * SECOND + int(at * SECOND)
    line = Line(source=PODS[rank], at=when, stamp=b"", text=text.encode())
    return Entry(line, line.text, (RANKS[rank],))


def joined(*ranks: int, whole: bool = False, fold: bool = True) -> Window:
    found = Window(whole=whole, fold=fold)
    for one in ranks:
        found.open_log(PODS[one])
    return found


def shown(entries: Iterable[Entry]) -> list[tuple[str, list[int | None]]]:
    return [(one.text.decode(), [who.rank for who in one.speakers]) for one in entries]


def texts(entries: Iterable[Entry]) -> list[str]:
    return [one.text.decode() for one in entries]


def folded(*entries: Entry) -> list[tuple[str, list[int | None]]]:
    whole = Window(whole=True)
    return shown([*whole.put(entries, 0.0), *whole.remaining()])


# ---------------------------------------------------------------- order


def test_lines_that_came_at_once_are_sorted_by_their_times():
    found = joined(0, 1, fold=False)
    lines = [said(0, "1", 1), said(0, "4", 4), said(1, "2", 2), said(1, "3", 3), said(1, "5", 5)]
    assert texts(found.put(lines, 0.0)) == ["1", "2", "3", "4"]
    assert texts(found.put([], REORDER_SECONDS)) == ["5"]


def test_a_line_waits_for_older_ones_of_a_log_that_is_silent_but_not_for_long():
    found = joined(0, 1, fold=False)
    assert found.put([said(0, "2", 2)], 10.0) == []
    assert texts(found.put([said(1, "1", 1)], 10.0 + REORDER_SECONDS / 2)) == ["1"]
    assert texts(found.put([], 10.0 + REORDER_SECONDS)) == ["2"]


def test_the_log_of_one_pod_alone_waits_for_nothing():
    assert texts(joined(0).put([said(0, "x")], 0.0)) == ["x"]


def test_a_log_that_has_ended_is_not_waited_for():
    found = joined(0, 1, fold=False)
    assert found.put([said(0, "x", 2)], 0.0) == []
    found.end_log(PODS[1])
    assert texts(found.put([], 0.0)) == ["x"]


@pytest.mark.parametrize("later", [0, 1])
def test_a_clock_that_is_set_back_changes_no_order_within_a_log(later: int):
    found = joined(0, 1, fold=False)
    lines = [said(0, "a", 5), said(0, "b", 1), said(1, "c", 9)]
    out = found.put(lines[: 2 + later], 0.0) + found.put(lines[2 + later :], 0.1)
    assert texts([*out, *found.remaining()]) == ["a", "b", "c"]


def test_a_clock_that_is_set_back_changes_no_order_of_the_ranks_in_a_log():
    ranks = [Speaker(source=LAUNCHER, rank=rank, tagged=True) for rank in range(2)]
    lines = [Line(LAUNCHER, at, b"", b"%d" % at) for at in (9, 5, 7)]
    entries = [Entry(line, line.text, (ranks[i % 2],)) for i, line in enumerate(lines)]
    found = Window(whole=True)
    assert texts([*found.put(entries, 0.0), *found.remaining()]) == ["9", "5", "7"]


def test_logs_that_are_read_whole_wait_for_those_that_are_to_come_but_three_seconds():
    found = joined(0, whole=True, fold=False)
    found.expect([PODS[1].pod])
    assert found.put([said(0, "x", 2)], 0.0) == []
    assert found.put([], BACKLOG_SECONDS - 0.1) == []
    assert texts(found.put([], BACKLOG_SECONDS)) == ["x"]
    late = joined(0, whole=True, fold=False)
    late.expect([PODS[1].pod])
    assert late.put([said(0, "second", 2)], 0.0) == []
    late.open_log(PODS[1])
    assert texts(late.put([said(1, "first", 1), said(1, "third", 3)], 0.1)) == ["first", "second"]


# ---------------------------------------------------------------- equal lines


def test_the_same_line_of_all_ranks_is_one_in_the_order_of_ranks():
    entries = [said(rank, "loading", at / 100) for at, rank in enumerate(reversed(range(64)))]
    assert folded(*entries) == [("loading", list(range(64)))]


def test_what_each_says_of_its_own_does_not_keep_the_rest_apart():
    entries = [said(rank, f"I am {rank}", rank / 10) for rank in range(3)]
    entries += [said(rank, "hello", 0.5) for rank in range(3)]
    assert folded(*entries) == [
        *((f"I am {rank}", [rank]) for rank in range(3)),
        ("hello", [0, 1, 2]),
    ]


def test_a_line_never_moves_up_past_one_of_its_own_speaker():
    entries = [said(0, "a", 0.0), said(1, "b", 0.1), said(0, "b", 0.2), said(1, "a", 0.3)]
    assert folded(*entries) == [("a", [0]), ("b", [0, 1]), ("a", [1])]


def test_a_speaker_that_repeats_itself_is_counted():
    whole = Window(whole=True)
    whole.put([said(0, "retrying", at / 100) for at in range(12)], 0.0)
    (one,) = whole.remaining()
    assert (one.total, one.times, len(one.speakers)) == (12, (12,), 1)
    assert folded(said(0, "a"), said(0, "b"), said(0, "a")) == [("a", [0]), ("b", [0]), ("a", [0])]


@pytest.mark.parametrize(("late", "rows"), [(1.0, 1), (1.1, 2)])
def test_equal_lines_more_than_a_second_apart_are_two(late: float, rows: int):
    assert len(folded(said(0, "x"), said(1, "x", late))) == rows


def test_a_followed_line_waits_for_its_like_but_not_for_long():
    found = joined(0, 1)
    found.put([said(0, "one"), said(1, "two")], 0.0)
    assert texts(found.put([], REORDER_SECONDS + HELD_SECONDS)) == ["one", "two"]
    assert found.put([said(0, "x", 5.0)], 5.0) == []
    assert found.put([], 5.0 + REORDER_SECONDS) == []
    assert shown(found.put([], 5.0 + REORDER_SECONDS + HELD_SECONDS)) == [("x", [0])]


def test_once_everybody_has_said_it_nobody_is_waited_for():
    found = joined(0, 1)
    found.put([said(0, "one"), said(1, "two")], 0.0)
    found.put([], REORDER_SECONDS + HELD_SECONDS)
    assert shown(found.put([said(0, "x", 5.0), said(1, "x", 5.0)], 5.0)) == [("x", [0, 1])]


steps = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.sampled_from("abc"),
                st.sampled_from([-2.0, 0.0, 0.2, 1.5]),
            ),
            max_size=8,
        ),
        st.sampled_from([0.0, 0.3, 2.0]),
    ),
    max_size=10,
)


@given(steps=steps, whole=st.booleans(), fold=st.booleans(), most=st.sampled_from([3, 40_000]))
def test_nothing_is_lost_or_doubled_and_no_log_changes_its_order(
    *, steps: Sequence[tuple[list[tuple[int, str, float]], float]], whole: bool, fold: bool,
    most: int,
):  # fmt: skip
    found, now, at = joined(0, 1, whole=whole, fold=fold), 0.0, 10.0
    came: list[Entry] = []
    out: list[Entry] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "MOST_LINES", most)
        for batch, pause in steps:
            entries = []
            for rank, text, later in batch:
                at += later
                entries.append(said(rank, text, at))
            came += entries
            out += found.put(entries, now)
            assert found.size <= most
            now += pause
        out += found.remaining()
    assert found.size == 0
    counted: Counter[tuple[Speaker, bytes]] = Counter()
    after: dict[Speaker, list[bytes]] = {one: [] for one in RANKS[:4]}
    for one in out:
        times = one.times or (1,) * len(one.speakers)
        assert sum(times) == one.total
        for who, number in zip(one.speakers, times, strict=True):
            counted[who, one.text] += number
            after[who] += [one.text] * number
    assert counted == Counter((one.speakers[0], one.text) for one in came)
    for who, lines in after.items():
        assert lines == [one.text for one in came if one.speakers == (who,)]


# ---------------------------------------------------------------- the whole way


def notices(pipeline: Pipeline, *sources: Source) -> Pipeline:
    for one in sources:
        pipeline.add_notice(Notice(turn=LogTurn.JOINED, source=one))
    return pipeline


def test_a_line_that_is_followed_is_on_the_screen_within_half_a_second():
    pipeline = notices(Pipeline(LogRequest(all_pods=True, fold=True, options=FOLLOW)), *PODS[:2])
    lines = [Line(one, at, b"", b"%d" % at) for at, one in enumerate(PODS[:2], 1)]
    found = pipeline.put(lines, 0.0)
    found += [entry for turn in range(1, 6) for entry in pipeline.put([], turn / 10)]
    assert texts(found) == ["1", "2"]
    assert pipeline.lag <= 0.5


def test_nobody_waits_for_the_like_of_a_line_from_a_log_that_has_ended():
    pipeline = notices(Pipeline(LogRequest(all_pods=True, fold=True, options=FOLLOW)), *PODS[:2])
    pipeline.put([Line(one, at, b"", b"%d" % at) for at, one in enumerate(PODS[:2], 1)], 0.0)
    for now in (1.0, 2.0):
        pipeline.put([], now)
    pipeline.add_notice(Notice(turn=LogTurn.ENDED, source=PODS[1]))
    found = pipeline.put([Line(source=PODS[0], at=9, stamp=b"", text=b"x")], 5.0)
    assert texts(found) == ["x"]


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_held_of_long_lines_is_bounded(*, whole: bool):
    """As three pods write them, of which one may still have older lines; 200 MB in all."""
    pipeline = Pipeline(LogRequest(all_pods=True, fold=True), whole=whole)
    pods = [LAUNCHER, *PODS[:3]]
    notices(pipeline, *pods)
    came = gone = most = 0
    for number in range(250):
        batch = [Line(one, 10 + number, b"", b"z" * MAX_LINE_BYTES) for one in pods[:3]]
        came += sum(len(one.text) for one in batch)
        gone += sum(len(one.text) * one.total for one in pipeline.put(batch, number / 1000))
        most = max(most, came - gone)
    assert 0 < most <= 64 << 20
