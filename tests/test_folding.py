"""Equal lines of several speakers become one with their count; what each says stays in order."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.engines.lines import Line, Source
from arena_topo.joblogs import folding
from arena_topo.joblogs.folding import HELD, WINDOW, Fold
from arena_topo.joblogs.speakers import Entry, Speaker

SECOND = 1_000_000_000


def speaker(rank: int) -> Speaker:
    source = Source(pod=f"demo-worker-{rank}", worker=rank)
    return Speaker(source=source, rank=rank, ranks=(rank, rank))


RANKS = [speaker(rank) for rank in range(64)]


def said(who: Speaker, text: str, at: float = 0.0, *, ends: bool = True) -> Entry:
    """A line that was written so many seconds after the first."""
    when = 1_795_000_000 * SECOND + int(at * SECOND)
    line = Line(source=who.source, at=when, stamp=b"", text=text.encode(), ends=ends)
    return Entry(line, line.text, (who,))


def folded(*entries: Entry) -> list[tuple[str, int, list[int | None]]]:
    fold = Fold()
    return shown([*fold.add(entries, 0.0), *fold.rest()])


def shown(entries: list[Entry]) -> list[tuple[str, int, list[int | None]]]:
    return [(one.text.decode(), one.total, [who.rank for who in one.speakers]) for one in entries]


def unfolded(entries: list[Entry]) -> Counter[tuple[Speaker, bytes]]:
    found: Counter[tuple[Speaker, bytes]] = Counter()
    for one in entries:
        times = one.times or (1,) * len(one.speakers)
        assert sum(times) == one.total
        for who, number in zip(one.speakers, times, strict=True):
            found[who, one.text] += number
    return found


def test_the_same_line_of_all_ranks_is_one():
    entries = [said(who, "loading", number / 100) for number, who in enumerate(RANKS)]
    assert folded(*entries) == [("loading", 64, list(range(64)))]


def test_ranks_are_told_in_their_order_whoever_was_first():
    assert folded(*(said(RANKS[rank], "x") for rank in (2, 0, 1))) == [("x", 3, [0, 1, 2])]


def test_what_each_says_of_its_own_does_not_keep_the_rest_apart():
    entries = [
        one
        for rank in range(3)
        for one in (said(RANKS[rank], f"I am rank {rank}"), said(RANKS[rank], "hello"))
    ]
    assert folded(*entries) == [
        ("I am rank 0", 1, [0]),
        ("I am rank 1", 1, [1]),
        ("I am rank 2", 1, [2]),
        ("hello", 3, [0, 1, 2]),
    ]


def test_lines_that_recur_are_folded_each_with_its_like():
    entries = [
        said(RANKS[rank], text) for rank in range(3) for text in ("=====", "version 2", "=====")
    ]
    assert folded(*entries) == [
        ("=====", 3, [0, 1, 2]),
        ("version 2", 3, [0, 1, 2]),
        ("=====", 3, [0, 1, 2]),
    ]


def test_where_two_say_the_same_in_another_order_each_keeps_its_own():
    entries = [said(RANKS[0], "a"), said(RANKS[0], "b"), said(RANKS[1], "b"), said(RANKS[1], "a")]
    assert folded(*entries) == [("b", 1, [1]), ("a", 2, [0, 1]), ("b", 1, [0])]


def test_a_speaker_that_repeats_itself_is_folded():
    entries = [said(RANKS[0], "retrying", number / 100) for number in range(12)]
    fold = Fold()
    [one] = [*fold.add([*entries, said(RANKS[1], "fine")], 0.0), *fold.rest()][:1]
    assert (one.total, one.times, len(one.speakers)) == (12, (12,), 1)


def test_a_repetition_with_something_in_between_is_none():
    texts = ["a", "b", "a"]
    assert folded(*(said(RANKS[0], text) for text in texts)) == [(text, 1, [0]) for text in texts]


def test_equal_lines_a_minute_apart_are_two():
    entries = [said(RANKS[0], "x"), said(RANKS[1], "x"), said(RANKS[2], "x", 60.0)]
    assert folded(*entries) == [("x", 2, [0, 1]), ("x", 1, [2])]


def test_pieces_of_long_lines_are_not_folded():
    entries = [
        said(RANKS[0], "aaaa", ends=False),
        said(RANKS[1], "aaaa", ends=False),
        said(RANKS[0], "rest"),
        said(RANKS[1], "rest"),
        said(RANKS[2], "rest"),
        said(RANKS[0], "rest"),
    ]
    assert sorted(folded(*entries)) == [
        ("aaaa", 1, [0]),
        ("aaaa", 1, [1]),
        ("rest", 1, [0]),
        ("rest", 1, [1]),
        ("rest", 2, [0, 2]),
    ]


def test_a_line_waits_for_its_like_but_not_for_long():
    fold = Fold()
    for who in RANKS[:2]:
        fold.add([said(who, f"I am {who.rank}")], 0.0)
    fold.add([], HELD)
    assert fold.add([said(RANKS[0], "x", 5.0)], 5.0) == []
    assert fold.add([], 5.0 + HELD / 2) == []
    assert shown(fold.add([], 5.0 + HELD)) == [("x", 1, [0])]


def test_what_came_together_is_folded_though_it_was_written_up_to_a_second_apart():
    for late, times in (
        (WINDOW, [("x", 2, [0, 1])]),
        (WINDOW + 0.1, [("x", 1, [0]), ("x", 1, [1])]),
    ):
        fold = Fold()
        came = fold.add([said(RANKS[0], "x", 5.0), said(RANKS[1], "x", 5.0 + late)], 9.0)
        assert shown([*came, *fold.add([], 9.0 + HELD)]) == times


def test_once_everybody_has_said_it_nobody_is_waited_for():
    fold = Fold()
    for who in RANKS[:2]:
        fold.add([said(who, f"I am {who.rank}")], 0.0)
    fold.add([], HELD)
    assert fold.add([said(RANKS[0], "x", 5.0)], 5.0) == []
    assert shown(fold.add([said(RANKS[1], "x", 5.1)], 5.1)) == [("x", 2, [0, 1])]


def test_who_is_silent_for_good_is_not_waited_for():
    fold = Fold()
    for who in RANKS[:2]:
        fold.add([said(who, f"I am {who.rank}")], 0.0)
    fold.add([], HELD)
    fold.forget(RANKS[1].source)
    assert shown(fold.add([said(RANKS[0], "x", 5.0)], 5.0)) == [("x", 1, [0])]


def test_who_speaks_alone_is_not_held_up():
    fold = Fold()
    assert shown(fold.add([said(RANKS[0], "x")], 0.0)) == [("x", 1, [0])]


def test_no_more_lines_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folding, "MOST", 10)
    fold = Fold(patient=True)
    for number in range(100):
        fold.add([said(RANKS[number % 2], f"line {number}")], 0.0)
    assert fold.held == 10


def test_logs_that_are_read_whole_wait_by_their_own_times_only():
    fold = Fold(patient=True)
    fold.add([said(RANKS[0], "x"), said(RANKS[1], "y")], 0.0)
    assert fold.add([], 1e6) == []
    found = fold.add([said(RANKS[1], "x", 0.5)], 1e6)
    assert shown([*found, *fold.rest()]) == [("y", 1, [1]), ("x", 2, [0, 1])]


def test_a_very_long_chain_of_folds_within_each_other_ends_well():
    """Each rank says what the next one says later: none can be shown before another."""
    entries = [
        said(RANKS[rank], f"step {(rank + number) % 64}")
        for number in range(64)
        for rank in range(64)
    ]
    fold = Fold()
    found = [*fold.add(entries, 0.0), *fold.rest()]
    assert unfolded(found) == Counter((one.speakers[0], one.text) for one in entries)


steps = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.sampled_from("abc"),
                st.sampled_from([0.0, 0.2, 1.5]),
                st.booleans(),
            ),
            max_size=8,
        ),
        st.sampled_from([0.0, 0.3, 2.0]),
    ),
    max_size=10,
)


@given(steps=steps, patient=st.booleans())
def test_nothing_is_lost_or_doubled_and_nobodys_lines_change_their_order(steps, patient):
    fold = Fold(patient=patient)
    now, at = 0.0, 0.0
    came: list[Entry] = []
    out: list[Entry] = []
    for batch, pause in steps:
        entries = []
        for rank, text, later, ends in batch:
            at += later
            entries.append(said(RANKS[rank], text, at, ends=ends))
        came += entries
        out += fold.add(entries, now)
        now += pause
    out += fold.add([], now)
    out += fold.rest()
    assert fold.held == 0
    assert unfolded(out) == Counter((one.speakers[0], one.text) for one in came)
    for who in RANKS[:4]:
        before = [one.text for one in came if one.speakers == (who,)]
        after = []
        for one in out:
            if who in one.speakers:
                times = one.times or (1,) * len(one.speakers)
                after += [one.text] * times[one.speakers.index(who)]
        assert after == before


def test_a_line_that_comes_in_pieces_is_shown_at_once_behind_what_waits():
    fold = Fold(patient=True)
    assert fold.add([said(RANKS[0], "x"), said(RANKS[1], "y")], 0.0) == []
    found = fold.add([said(RANKS[0], "begin", ends=False)], 0.0)
    assert shown(found) == [("x", 1, [0]), ("y", 1, [1]), ("begin", 1, [0])]
    found = fold.add([said(RANKS[1], "z"), said(RANKS[0], "middle", ends=False)], 0.0)
    assert shown(found) == [("middle", 1, [0])]
    assert shown(fold.add([said(RANKS[0], "end")], 0.0)) == [("end", 1, [0])]
    assert fold.held == 1


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folding, "MOST_BYTES", 1000)
    fold = Fold(patient=True)
    came, out = 0, 0
    for number in range(100):
        line = said(RANKS[number % 3], f"{number:100}")
        came += len(line.text)
        out += sum(len(one.text) for one in fold.add([line, line], 0.0) for _ in range(one.total))
        came += len(line.text)
        assert came - out <= 1000
    assert fold.held


lines = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from("abc"),
        st.sampled_from([-2.0, 0.0, 0.2, 0.4, 1.5]),
        st.sampled_from([True, True, True, False]),
    ),
    max_size=30,
)


@given(
    lines=lines,
    cuts=st.sets(st.integers(0, 30)),
    most=st.sampled_from([("MOST", 5), ("MOST_BYTES", 5), ("MOST", 10_000)]),
)
def test_what_is_read_whole_folds_the_same_however_it_comes(lines, cuts, most):
    at, entries = 10.0, []
    for rank, text, later, ends in lines:
        at += later
        entries.append(said(RANKS[rank], text, at, ends=ends))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, *most)
        whole, cut = Fold(patient=True), Fold(patient=True)
        want = [*whole.add(entries, 0.0), *whole.rest()]
        edges = [0, *sorted(one for one in cuts if one < len(entries)), len(entries)]
        found = [
            entry
            for number, (start, end) in enumerate(itertools.pairwise(edges))
            for entry in cut.add(entries[start:end], number * 0.3)
        ]
        assert [*found, *cut.rest()] == want


def test_a_line_is_like_those_that_others_say_later_however_they_come():
    entries = [said(RANKS[0], "one"), said(RANKS[1], "one"), said(RANKS[1], "two")]
    fold = Fold(patient=True)
    found = [*fold.add(entries[:1], 0.0), *fold.add(entries[1:], 0.0), *fold.rest()]
    assert shown(found) == [("one", 2, [0, 1]), ("two", 1, [1])]


def test_where_there_is_no_room_what_is_shown_does_not_depend_on_how_it_comes(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(folding, "MOST_BYTES", 5)
    entries = [said(RANKS[0], "a"), *(said(RANKS[1], text) for text in "bcdefg")]
    entries.append(said(RANKS[2], "a"))
    at_once, by_one = Fold(patient=True), Fold(patient=True)
    found = [*at_once.add(entries, 0.0), *at_once.rest()]
    assert shown(found)[0] == ("a", 1, [0])
    assert [*(out for one in entries for out in by_one.add([one], 0.0)), *by_one.rest()] == found
