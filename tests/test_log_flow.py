"""From lines as they come to what is shown: in what order, how often, how much is held."""

from __future__ import annotations

import re

import pytest

from arena_topo.engines.lines import LONGEST, Line, LogOptions, Notice, Source, Turn
from arena_topo.joblogs.flow import Flow
from arena_topo.joblogs.following import Asked
from arena_topo.joblogs.merging import LAG, PATIENCE

FOLLOW = LogOptions(follow=True)
LAUNCHER = Source(pod="demo-launcher", uid="1", chief=True)
WORKER = Source(pod="demo-worker-0", uid="2", worker=0)


def test_lines_of_several_logs_are_put_in_order_and_folded():
    flow = Flow(Asked(everyone=True, fold=True, options=FOLLOW), slots=1, total=2)
    other = Source(pod="demo-worker-1", worker=1)
    for source in (WORKER, other):
        flow.notice(Notice(turn=Turn.JOINED, source=source))
    second = 1_000_000_000
    lines = [
        Line(source=WORKER, at=2 * second, stamp=b"", text=b"same"),
        Line(source=WORKER, at=2 * second + 1, stamp=b"", text=b"later"),
        Line(source=other, at=second, stamp=b"", text=b"before"),
        Line(source=other, at=2 * second, stamp=b"", text=b"same"),
    ]
    shown = flow.put(lines, 0.0)
    shown += flow.put([], LAG)
    shown += flow.rest(LAG)
    assert [(one.text, one.total) for one in shown] == [
        (b"before", 1),
        (b"same", 2),
        (b"later", 1),
    ]
    assert [who.rank for who in shown[1].speakers] == [0, 1]


def test_a_line_that_is_followed_is_on_the_screen_within_half_a_second():
    flow = Flow(Asked(everyone=True, fold=True, options=FOLLOW))
    others = [
        Source(pod=f"demo-worker-{index}", uid=str(index), worker=index) for index in range(2)
    ]
    for one in others:
        flow.notice(Notice(turn=Turn.JOINED, source=one))
    shown = flow.put([Line(one, at, b"", b"%d" % at) for at, one in enumerate(others, 1)], 0.0)
    shown += [entry for turn in range(1, 6) for entry in flow.put([], turn / 10)]
    assert [one.text for one in shown] == [b"1", b"2"]
    assert flow.lag <= 0.5


def test_a_log_that_has_joined_and_is_silent_is_waited_for_a_moment():
    flow = Flow(Asked(everyone=True, options=FOLLOW))
    for source in (LAUNCHER, WORKER):
        flow.notice(Notice(turn=Turn.JOINED, source=source))
    assert flow.put([Line(source=LAUNCHER, at=9, stamp=b"", text=b"x")], 0.0) == []
    flow.notice(Notice(turn=Turn.ENDED, source=WORKER))
    assert [one.text for one in flow.put([], 0.0)] == [b"x"]


def test_what_is_read_whole_waits_for_the_logs_that_are_to_come():
    flow = Flow(Asked(everyone=True), patient=True)
    flow.awaits([LAUNCHER.pod, WORKER.pod])
    flow.notice(Notice(turn=Turn.JOINED, source=LAUNCHER))
    assert flow.put([Line(source=LAUNCHER, at=9, stamp=b"", text=b"second")], 0.0) == []
    flow.notice(Notice(turn=Turn.ENDED, source=LAUNCHER))
    flow.notice(Notice(turn=Turn.JOINED, source=WORKER))
    shown = flow.put([Line(source=WORKER, at=5, stamp=b"", text=b"first")], 0.1)
    assert [one.text for one in [*shown, *flow.rest(0.2)]] == [b"first", b"second"]


def test_a_silent_log_does_not_keep_the_lines_of_the_others_from_being_folded():
    flow = Flow(Asked(everyone=True, fold=True), slots=1, total=3, patient=True)
    others = [Source(pod=f"demo-worker-{one}", uid=str(one), worker=one) for one in range(2)]
    flow.awaits(["demo-worker-2"])
    for one in others:
        flow.notice(Notice(turn=Turn.JOINED, source=one))
    for now in (0.0, PATIENCE, 2 * PATIENCE):
        assert flow.put([], now) == []
    now, shown = 2 * PATIENCE, []
    for text in (b"first", b"same"):
        for one in others:
            now += 0.05
            own = b"" if text == b"same" else b" of %d" % (one.worker or 0)
            shown += flow.put([Line(source=one, at=9, stamp=b"", text=text + own)], now)
        now += 1
        shown += flow.put([], now)
    assert [(one.text, one.total) for one in shown] == [
        (b"first of 0", 1),
        (b"first of 1", 1),
        (b"same", 2),
    ]


def test_nobody_waits_for_the_like_of_a_line_from_a_log_that_has_ended():
    flow = Flow(Asked(everyone=True, fold=True, options=FOLLOW))
    others = [Source(pod=f"demo-worker-{one}", uid=str(one), worker=one) for one in range(2)]
    for one in others:
        flow.notice(Notice(turn=Turn.JOINED, source=one))
    flow.put([Line(one, at, b"", b"%d" % at) for at, one in enumerate(others, 1)], 0.0)
    for now in (1.0, 2.0):
        flow.put([], now)
    flow.notice(Notice(turn=Turn.ENDED, source=others[1]))
    shown = flow.put([Line(source=others[0], at=9, stamp=b"", text=b"x")], 5.0)
    assert [one.text for one in shown] == [b"x"]


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("tag", [b"", b"[%d] "])
def test_what_is_held_of_lines_of_megabytes_is_bounded(*, patient: bool, ends: bool, tag: bytes):
    """As three pods write them, of which one may still have older lines; 200 MB in all."""
    flow = Flow(Asked(everyone=True, fold=True), patient=patient)
    workers = [Source(pod=f"demo-worker-{one}", uid=str(one), worker=one) for one in range(3)]
    pods = [LAUNCHER, *workers]
    for one in pods:
        flow.notice(Notice(turn=Turn.JOINED, source=one))
    came = shown = most = 0
    for number in range(1000):
        # A rank that did not speak before each time: what is tagged so may be a list.
        text = (tag % number if tag else b"").ljust(LONGEST, b"z")
        batch = [Line(one, 10 + number, b"", text, ends=ends) for one in pods[:3]]
        came += sum(len(one.text) for one in batch)
        ready = flow.put(batch, number / 1000)
        shown += sum(len(one.line.text) * one.total for one in ready)
        most = max(most, came - shown)
    assert 0 < most <= 64 << 20


def test_a_long_line_is_shown_whole_or_not_at_all():
    flow = Flow(Asked(include=(re.compile("begin"),)))
    pieces = [
        Line(source=LAUNCHER, at=1, stamp=b"", text=b"begin", ends=False),
        Line(source=LAUNCHER, at=1, stamp=b"", text=b"middle", ends=False),
        Line(source=LAUNCHER, at=1, stamp=b"", text=b"end"),
        Line(source=LAUNCHER, at=2, stamp=b"", text=b"not this", ends=False),
        Line(source=LAUNCHER, at=2, stamp=b"", text=b"begin"),
    ]
    assert [one.text for one in flow.put(pieces, 0.0)] == [b"begin", b"middle", b"end"]
