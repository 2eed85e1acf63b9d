"""What following the logs of a job promises, on every engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from log_bytes import log_of
from worlds import WORLDS, World

from arena_topo.engines.lines import (
    MAX_LINE_BYTES,
    Following,
    Line,
    LogOptions,
    LogTurn,
    Notice,
    Source,
    read_to_end,
)

FOLLOW = LogOptions(follow=True)
PATIENCE = 120.0
"""Seconds after which what should have come is missing."""


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path) -> Iterator[World]:
    with WORLDS[request.param](tmp_path) as opened:
        yield opened


class Reader:
    """Reads logs that are followed, and keeps what came."""

    def __init__(self, following: Following) -> None:
        self.following = following
        self.items: list[Line | Notice] = []

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < end, self.items
            self.items += self.following.read(0.2)

    def until_said(self, *texts: str) -> None:
        self.until(lambda: all(text in self.texts() for text in texts))

    def until_done(self) -> None:
        self.until(lambda: self.following.done)
        self.items += self.following.read(0.0)

    def until_turn(self, turn: LogTurn) -> None:
        self.until(lambda: turn in self.turns())

    @property
    def lines(self) -> list[Line]:
        return [one for one in self.items if isinstance(one, Line)]

    def texts(self) -> list[str]:
        """What was said, without what the engine itself says first."""
        found = [one.text.decode("utf-8", "replace") for one in self.lines]
        return [one for one in found if not one.startswith("arena-topo:")]

    def turns(self, *, chief: bool = True) -> list[LogTurn]:
        return [
            one.turn
            for one in self.items
            if isinstance(one, Notice) and (not chief or one.source.chief)
        ]


def is_chief(source: Source) -> bool:
    return source.chief


def submitted(world: World, name: str = "demo", **more: Any) -> Any:
    world.backend.apply(world.plan(world.job(name, **more)))
    return world.backend.job(name, "default")


def test_a_pod_that_has_not_started_is_waited_for(world: World):
    job = submitted(world)
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        world.start("demo")
        world.say("demo", "one")
        reader.until_said("one")
        world.say("demo", "two")
        reader.until_said("two")
        assert not following.done
        world.finish("demo")
        reader.until_done()
    assert reader.texts() == ["one", "two"]
    assert reader.turns() == [LogTurn.JOINED, LogTurn.ENDED]
    assert isinstance(reader.items[0], Notice)


def test_lines_say_whose_they_are_and_when_they_were_written(world: World):
    job = submitted(world)
    world.start("demo")
    for number in range(5):
        world.say("demo", f"line {number}")
    world.finish("demo")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_done()
    assert reader.texts()[-5:] == [f"line {number}" for number in range(5)]
    [source] = {line.source for line in reader.lines}
    assert (source.chief, source.worker) == (True, None)
    assert source.pod.startswith("demo-launcher")
    assert all(line.at > 0 and line.stamp for line in reader.lines)
    stamps = [line.at for line in reader.lines]
    assert stamps == sorted(stamps)


def test_a_launcher_that_is_tried_again_joins(world: World):
    job = submitted(world, retry=1)
    world.start("demo")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        world.say("demo", "first try")
        reader.until_said("first try")
        world.retry("demo")
        world.say("demo", "second try")
        reader.until_said("second try")
        world.finish("demo")
        reader.until_done()
    assert reader.texts() == ["first try", "second try"]
    first, second = (line.source for line in reader.lines if "try" in line.text.decode())
    assert (first.pod, first.uid, first.run) != (second.pod, second.uid, second.run)
    turns = reader.turns()
    assert turns[0] is LogTurn.JOINED
    assert LogTurn.RESTARTED in turns or turns.count(LogTurn.JOINED) == 2


def test_a_pod_that_is_deleted_while_it_is_followed_is_gone(world: World):
    job = submitted(world)
    world.start("demo")
    world.say("demo", "last words")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("last words")
        world.backend.delete("demo", "default")
        reader.until_turn(LogTurn.GONE)
        reader.until_done()
    assert reader.texts() == ["last words"]


def test_a_tail_cuts_off_only_what_was_there_before(world: World):
    job = submitted(world)
    world.start("demo")
    for number in range(4):
        world.say("demo", f"line {number}")
    whole = LogOptions(follow=True)
    with world.backend.follow(job, whole, is_chief) as following:
        Reader(following).until_said("line 3")
    with world.backend.follow(job, LogOptions(follow=True, tail=2), is_chief) as following:
        reader = Reader(following)
        reader.until_said("line 3")
        for number in range(4, 8):
            world.say("demo", f"line {number}")
        world.finish("demo")
        reader.until_done()
    assert reader.texts() == [f"line {number}" for number in range(2, 8)]


def test_a_log_that_is_read_to_its_end_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    job = submitted(world)
    world.start("demo")
    world.say("demo", "one")
    world.finish("demo")
    following = world.backend.follow(job, LogOptions(), is_chief)
    read, waited = following.read, 0.0

    def measured(_wait: float) -> Any:
        nonlocal waited
        assert not waited, "it had waited for nothing before"
        began = time.monotonic()
        items = read(60)
        waited = 0.0 if items else time.monotonic() - began
        return items

    monkeypatch.setattr(following, "read", measured)
    assert [line.text for line in read_to_end(following)] == [b"one"]
    assert waited < PATIENCE / 4


def test_a_tail_leaves_pods_that_come_later_whole(world: World):
    job = submitted(world)
    with world.backend.follow(job, LogOptions(follow=True, tail=1), is_chief) as following:
        following.read(0.3)
        reader = Reader(following)
        world.start("demo")
        for number in range(4):
            world.say("demo", f"line {number}")
        reader.until_said("line 3")
        world.finish("demo")
        reader.until_done()
    assert reader.texts() == [f"line {number}" for number in range(4)]


def test_without_following_a_log_is_read_to_where_it_ends_now(world: World):
    job = submitted(world)
    world.start("demo")
    world.say("demo", "before")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        Reader(following).until_said("before")
    with world.backend.follow(job, LogOptions(), is_chief) as following:
        reader = Reader(following)
        reader.until_done()
        world.say("demo", "after")
        reader.items += following.read(0.1)
    assert reader.texts() == ["before"]
    world.finish("demo")


def test_only_the_logs_that_are_wanted_are_read(world: World):
    job = submitted(world, workers=2)
    world.start("demo")
    world.say("demo", "hello")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("hello")
        world.finish("demo")
        reader.until_done()
    assert {item.source.chief for item in reader.items} == {True}


def test_all_pods_of_a_job_join(world: World):
    job = submitted(world, workers=2)
    world.start("demo")
    world.say("demo", "hello")
    with world.backend.follow(job, FOLLOW) as following:
        reader = Reader(following)
        reader.until_said("hello")
        reader.until(lambda: reader.turns(chief=False).count(LogTurn.JOINED) == 3)
    joined = {
        one.source.worker
        for one in reader.items
        if isinstance(one, Notice) and one.turn is LogTurn.JOINED
    }
    assert joined == {None, 0, 1}
    world.finish("demo")


def test_a_line_of_megabytes_is_truncated_with_a_mark(world: World):
    long = b"x" * 1_000_000 + b"end"
    job = submitted(world)
    world.start("demo")
    world.write("demo", b"before\n" + long + b"\nafter\n")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("after")
        world.finish("demo")
    before, line, after = reader.lines
    assert (before.text, after.text) == (b"before", b"after")
    begun, mark, rest = line.text.partition(b" ... (")
    assert long.startswith(begun)
    assert rest == f"{len(long) - len(begun):,} more bytes of this line are left out)".encode()
    assert MAX_LINE_BYTES - 100 < len(begun + mark + rest) <= MAX_LINE_BYTES


def test_a_line_of_megabytes_comes_whole_in_parts_where_that_is_wanted(world: World):
    said = b"before\n" + b"x" * 1_000_000 + b"end\nafter\n"
    job = submitted(world)
    world.start("demo")
    world.write("demo", said)
    whole = LogOptions(follow=True, unfinished=True)
    with world.backend.follow(job, whole, is_chief) as following:
        reader = Reader(following)
        reader.until_said("after")
        world.finish("demo")
    assert b"".join(line.text + b"\n" * line.fed for line in reader.lines) == said
    assert max(len(line.text) for line in reader.lines) <= MAX_LINE_BYTES
    assert log_of(world.backend, job, reader.lines[0].source.pod, replace(whole, follow=False)) == (
        said
    )


def test_the_last_line_needs_no_line_feed(world: World):
    job = submitted(world)
    world.start("demo")
    world.write("demo", b"one\nno line feed")
    world.finish("demo")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_done()
    assert [(line.text, line.fed) for line in reader.lines] == [
        (b"one", True),
        (b"no line feed", False),
    ]


def test_bytes_stay_what_they_are(world: World):
    odd = bytes(byte for byte in range(256) if byte != ord("\n"))
    job = submitted(world)
    world.start("demo")
    world.write("demo", odd + b"\n\n \nend\n")
    with world.backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("end")
        world.finish("demo")
    assert [line.text for line in reader.lines] == [odd, b"", b" ", b"end"]


def test_whoever_stops_following_waits_for_nothing(world: World):
    job = submitted(world)
    world.start("demo")
    with world.backend.follow(job, FOLLOW) as following:
        assert not [one for one in following.read(0.5) if isinstance(one, Line)]
        leaver = threading.Thread(target=following.__exit__, args=(None, None, None))
        leaver.start()
        leaver.join(PATIENCE)
        assert not leaver.is_alive()
    world.finish("demo")
