"""Logs of jobs on this machine: written by supervisors, followed, bounded and kept."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_local_engine import PATIENCE, ended, engine, eventually, job, log, started, submit

from arena_topo import cli
from arena_topo.engines import JobStatus, Phase, archive, log_files
from arena_topo.engines.archive import open_archive
from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Source
from arena_topo.engines.local import store
from arena_topo.engines.local.engine import LocalBackend
from arena_topo.engines.local.logs import LocalFollowing
from arena_topo.engines.log_files import LogWriter
from arena_topo.errors import NotFound, UsageError
from arena_topo.joblogs import follow
from arena_topo.joblogs.log_request import LogRequest
from arena_topo.manifests import PlacementForecast

__all__ = ["engine"]

FOLLOW = LogOptions(follow=True)
SOURCE = Source(pod="demo-launcher")


class Reader:
    """What came of logs that are followed."""

    def __init__(self, following: LocalFollowing) -> None:
        self.following = following
        self.items: list[Line | Notice] = []

    def read(self) -> None:
        while came := self.following.read(0.0):
            self.items += came

    def until(self, reached) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, self.items[-5:]
            self.items += self.following.read(0.1)

    def until_done(self) -> None:
        self.until(lambda: self.following.done)
        self.read()

    @property
    def lines(self) -> list[Line]:
        return [one for one in self.items if isinstance(one, Line)]

    @property
    def texts(self) -> list[bytes]:
        return [one.text for one in self.lines]

    @property
    def turns(self) -> list[LogTurn]:
        return [one.turn for one in self.items if isinstance(one, Notice)]


def launchers(source) -> bool:
    return source.chief


def followed(engine: LocalBackend, status: JobStatus, **options) -> Reader:
    with engine.follow(status, LogOptions(follow=True, **options), launchers) as following:
        reader = Reader(following)
        reader.until_done()
    return reader


def place(tmp_path: Path, name: str = "demo") -> Path:
    return tmp_path / "state/arena-topo/jobs/default" / name / f"pods/{name}-launcher"


# ---------------------------------------------------------------------------- one log


def test_no_line_is_lost_however_fast_they_come(engine):
    submit(engine, job("demo", "seq 1 100000"))
    reader = followed(engine, started(engine, "demo"))
    assert reader.texts == [b"%d" % number for number in range(1, 100_001)]
    assert log(engine, "demo") == "".join(f"{number}\n" for number in range(1, 100_001))


@pytest.mark.parametrize(
    ("tail", "text"), [(None, "a\nb\nc"), (0, ""), (1, "c"), (2, "b\nc"), (9, "a\nb\nc")]
)
def test_the_tail_of_a_log_is_counted_in_lines(engine, tail, text):
    submit(engine, job("demo", "printf 'a\\nb\\nc'"))
    status = ended(engine, "demo")
    assert log(engine, "demo", tail=tail) == text
    assert b"\n".join(followed(engine, status, tail=tail).texts).decode() == text


def test_each_line_has_the_time_at_which_it_was_written(engine):
    submit(engine, job("demo", "echo old; printf ha; sleep 0.5; echo lf; echo new"))
    status = ended(engine, "demo")
    old, half, new = followed(engine, status).lines
    assert (old.text, half.text, new.text) == (b"old", b"half", b"new")
    assert status.chief.started * 1e9 < old.at <= half.at < new.at < status.finished * 1e9
    assert new.at - old.at > 0.4e9
    assert log(engine, "demo", timestamps=True).encode() == b"".join(
        one.stamp + b" " + one.text + b"\n" for one in (old, half, new)
    )


@pytest.mark.parametrize(
    ("since_time", "text"),
    [
        ("2020-01-01T00:00:00Z", "old\nhalf\nnew"),
        ("2020-01-01T00:00:10Z", "old\nhalf\nnew"),
        ("2020-01-01T00:00:11Z", "half\nnew"),
        ("2020-01-01T00:00:21+00:00", "new"),
        ("2020-01-01T00:01:00Z", ""),
    ],
)
def test_a_log_can_begin_at_a_moment(engine, tmp_path, since_time, text):
    submit(engine, job("demo", "true"))
    status = ended(engine, "demo")
    every = (
        "2020-01-01T00:00:10.000000000Z old\n"
        "2020-01-01T00:00:20.000000000Z half\n"
        "2020-01-01T00:00:30.000000000Z new"
    )
    (place(tmp_path) / "0-0.log").write_text(every)
    assert log(engine, "demo", since_time=since_time) == text
    stamped = log(engine, "demo", since_time=since_time, timestamps=True)
    assert every.endswith(stamped)
    assert stamped.count("\n") == text.count("\n")
    lines = followed(engine, status, since_time=since_time).lines
    assert "\n".join(f"{one.stamp.decode()} {one.text.decode()}" for one in lines) == stamped


@pytest.mark.parametrize("options", [{}, {"tail": 5}, {"since": 60}, {"timestamps": True}])
def test_the_log_of_a_worker_that_never_started_is_empty(engine, options):
    submit(engine, job("demo", "true", working_dir="/nowhere/at/all"))
    ended(engine, "demo")
    assert log(engine, "demo", "demo-worker-1", **options) == ""


def test_a_pod_has_one_container(engine):
    status = submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    assert log(engine, "demo", container="mpi") == "hello\n"
    with pytest.raises(NotFound, match="container sidecar is not valid for instance demo-launcher"):
        log(engine, "demo", container="sidecar")
    for pod in ("demo-launcher", "demo-worker-0"):
        with pytest.raises(NotFound, match=f"container sidecar is not valid for instance {pod}"):
            engine.follow(
                status, LogOptions(container="sidecar"), lambda one, pod=pod: one.pod == pod
            )


def test_a_time_that_is_none_is_a_usage_error_when_following_too(engine):
    status = submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    with pytest.raises(UsageError, match="'yesterday' is not a time"):
        engine.follow(status, LogOptions(since_time="yesterday"))


# ---------------------------------------------------------------------------- runs


def test_the_log_is_that_of_the_last_try_and_the_one_before_is_the_previous(engine):
    submit(
        engine, job("demo", "echo x >> tries; wc -l < tries; test $(wc -l < tries) = 3", retry=2)
    )
    status = ended(engine, "demo")
    assert log(engine, "demo") == "3\n"
    assert log(engine, "demo", previous=True) == "2\n"
    assert followed(engine, status).texts == [b"3"]
    with engine.follow(status, LogOptions(previous=True), launchers) as following:
        reader = Reader(following)
        reader.until_done()
    assert [(one.text, one.source.run) for one in reader.lines] == [(b"2", 1)]


def test_what_follows_a_failed_try_is_of_the_next_run(engine):
    go = "while ! test -e go; do sleep 0.05; done"
    submit(engine, job("demo", f"printf no-end; {go}; test -e again || ! touch again", retry=1))
    parts = replace(FOLLOW, unfinished=True)
    with engine.follow(started(engine, "demo"), parts, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: b"no-end" in reader.texts)
        Path("go").touch()
        reader.until_done()
    told = [one.turn if isinstance(one, Notice) else one.text for one in reader.items]
    assert [one for one in told if one] == [
        LogTurn.JOINED,
        b"no-end",
        LogTurn.RESTARTED,
        b"no-end",
        LogTurn.ENDED,
    ]
    assert [one.source.run for one in reader.lines if one.text] == [0, 1]


def test_there_is_no_previous_log_of_a_pod_that_started_once(engine):
    status = submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    with pytest.raises(NotFound) as caught:
        log(engine, "demo", previous=True)
    assert caught.value.message == "there is no log of an earlier run of demo-launcher"
    assert (caught.value.why, caught.value.hint) == (
        "it was started only once",
        "leave out --previous",
    )
    with engine.follow(status, LogOptions(previous=True), launchers) as following:
        reader = Reader(following)
        reader.until_done()
    [notice] = reader.items
    assert notice.turn is LogTurn.REFUSED
    assert notice.error.message == caught.value.message


def test_a_job_that_is_resumed_runs_anew_and_what_it_said_before_is_its_previous_log(engine):
    say = "echo x >> runs; echo run $(wc -l < runs); test $(wc -l < runs) = 2 || sleep 600"
    submit(engine, job("demo", say))
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: b"run 1" in reader.texts)
        engine.pausing.suspend("demo", "default")
        reader.until(lambda: LogTurn.GONE in reader.turns)
        assert following.done
        engine.pausing.resume("demo", "default")
        reader.until(lambda: b"run 2" in reader.texts)
        reader.until_done()
    assert reader.texts == [b"run 1", b"run 2"]
    assert [one.source.run for one in reader.lines] == [0, 1]
    assert reader.turns == [LogTurn.JOINED, LogTurn.GONE, LogTurn.RESTARTED, LogTurn.ENDED]
    assert log(engine, "demo") == "run 2\n"
    assert log(engine, "demo", previous=True) == "run 1\n"


def test_the_log_of_a_suspended_job_is_read_from_its_files_and_not_from_what_was_followed(
    engine, run
):
    go = "while ! test -e go; do sleep 0.05; done"
    submit(engine, job("demo", f"echo early; {go}; echo late; sleep 600", workers=2))
    status = started(engine, "demo")
    eventually(lambda: log(engine, "demo") == "early\n")
    with open_archive(os.environ).keeping(engine.place, status, slots=1, whole=True) as keeping:
        with engine.follow(status, LogOptions(), launchers) as following:
            reader = Reader(following)
            reader.until_done()
        keeping.write(reader.lines)
    Path("go").touch()
    eventually(lambda: log(engine, "demo") == "early\nlate\n")
    engine.pausing.suspend("demo", "default")
    name = ("demo", "--backend", "local")
    assert run("logs", *name, "-q") == (0, "early\nlate\n", "")
    assert run("logs", *name, "-q", "--tail=1") == (0, "late\n", "")
    code, out, _ = run("logs", *name, "-q", "--all")
    assert (code, [line.rpartition(" ")[2] for line in out.splitlines()]) == (0, ["early", "late"])
    code, out, _ = run("logs", *name, "-q", "-o", "json")
    assert (code, out.count("\n")) == (0, 2)
    code, out, err = run("logs", *name, "-q", "-p")
    assert (code, out) == (1, "")
    assert "there is no log of an earlier run of demo-launcher" in err


def test_the_previous_log_of_a_suspended_job_is_that_of_the_run_before_its_last(engine, run):
    submit(engine, job("demo", "echo x >> runs; echo run $(wc -l < runs); sleep 600", workers=1))
    for number in (1, 2):
        eventually(lambda number=number: log(engine, "demo") == f"run {number}\n")
        engine.pausing.suspend("demo", "default")
        if number == 1:
            engine.pausing.resume("demo", "default")
    name = ("demo", "--backend", "local", "-q")
    assert run("logs", *name) == (0, "run 2\n", "")
    assert run("logs", *name, "-p") == (0, "run 1\n", "")


# ---------------------------------------------------------------------------- following


def test_whoever_follows_and_whoever_comes_later_is_told_the_same_times(engine):
    say = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.15; done; printf end"
    submit(engine, job("demo", say))
    status = started(engine, "demo")
    readers: list[Reader] = []

    def follow() -> None:
        readers.append(followed(engine, status))

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    follow()
    first, second, later = ([(one.at, one.stamp, one.text) for one in r.lines] for r in readers)
    assert first == second == later
    assert [text for _, _, text in later] == [b"1", b"2", b"3", b"4", b"5", b"6", b"end"]
    assert len({at for at, _, _ in later}) > 3
    stamped = log(engine, "demo", timestamps=True)
    assert stamped == "\n".join(f"{said.decode()} {text.decode()}" for _, said, text in later)


def test_what_has_no_end_yet_is_given_as_far_as_it_goes_where_that_is_wanted(engine):
    go = "while ! test -e go; do sleep 0.05; done"
    submit(engine, job("demo", f"printf 'sure? '; {go}; echo yes"))
    parts = replace(FOLLOW, unfinished=True)
    status = started(engine, "demo")
    with (
        engine.follow(status, parts, launchers) as first,
        engine.follow(status, FOLLOW, launchers) as second,
    ):
        reader, other = Reader(first), Reader(second)
        reader.until(lambda: reader.lines)
        other.read()
        Path("go").touch()
        reader.until_done()
        other.until_done()
    assert [(one.text, one.fed) for one in reader.lines] == [(b"sure? ", False), (b"yes", True)]
    assert [(one.text, one.fed) for one in other.lines] == [(b"sure? yes", True)]


def test_a_writer_killed_in_the_middle_of_a_line_leaves_what_it_wrote(engine):
    submit(engine, job("demo", "echo whole; printf half; kill -9 $$"))
    status = ended(engine, "demo")
    assert status.exit_code == 137
    assert followed(engine, status).texts == [b"whole", b"half"]
    assert log(engine, "demo") == "whole\nhalf"


def test_a_job_whose_supervisor_is_stopped_waits_and_loses_nothing(engine):
    submit(engine, job("demo", "echo one; seq 1 80000; touch said"))
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        keeper = engine._store.job("demo", "default").state.supervisor
        os.kill(keeper.pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(keeper.pid, signal.SIGCONT)
        reader.until_done()
    assert reader.texts == [b"one", *(b"%d" % number for number in range(1, 80_001))]


def test_a_log_whose_supervisor_was_killed_has_what_was_read_by_then(engine):
    submit(engine, job("demo", "trap '' TERM; echo one; printf two; sleep 600"))
    parts = replace(FOLLOW, unfinished=True)
    with engine.follow(started(engine, "demo"), parts, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: b"two" in reader.texts)
        keeper = engine._store.job("demo", "default").state.supervisor
        os.kill(keeper.pid, signal.SIGKILL)
        reader.until_done()
    assert [text for text in reader.texts if text] == [b"one", b"two"]
    assert reader.turns == [LogTurn.JOINED, LogTurn.ENDED]
    assert log(engine, "demo") == "one\ntwo"


def test_the_lines_of_a_namesake_are_not_taken_for_those_of_a_job_that_is_deleted(engine):
    submit(engine, job("demo", "echo first; exec sleep 600"))
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        engine.delete("demo", "default")
        submit(engine, job("demo", "echo second; exec sleep 600"))
        eventually(lambda: log(engine, "demo") == "second\n")
        reader.until_done()
    assert reader.texts == [b"first"]
    assert reader.turns == [LogTurn.JOINED, LogTurn.GONE]


def test_what_a_job_said_just_before_it_is_deleted_is_read(engine):
    submit(
        engine, job("demo", "trap 'seq 1 1000; exit' TERM; echo one; while :; do sleep 0.01; done")
    )
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        engine.delete("demo", "default")
        reader.until_done()
    # Some shells say what became of their `sleep`.
    texts = [text for text in reader.texts if text != b"Terminated"]
    assert texts == [b"one", *(b"%d" % number for number in range(1, 1001))]
    assert reader.turns[-1] is LogTurn.GONE


# ---------------------------------------------------------------------------- bounded


def held(place: Path) -> int:
    """Bytes of the files of a log."""
    return sum(one.stat().st_size for one in place.glob("*.log"))


def test_a_job_that_says_60_megabytes_keeps_a_bounded_part_with_the_last_lines(tmp_path, engine):
    engine._environment = {**os.environ, log_files.LIMIT_VARIABLE: "8Mi"}
    submit(engine, job("demo", "seq -f '%0.0f some words that make the line longer' 1500000"))
    status = ended(engine, "demo")
    assert 6 << 20 <= held(place(tmp_path)) <= (8 << 20) + (1 << 17)
    first, *rest = log(engine, "demo").splitlines()
    oldest = min(int(one.stem.partition("-")[2]) for one in place(tmp_path).glob("0-*.log"))
    told = [one for one in followed(engine, status).items if isinstance(one, Notice)]
    assert [one.turn for one in told] == [LogTurn.JOINED, LogTurn.CUT, LogTurn.ENDED]
    assert str(told[1].error) == f"{oldest:,} bytes of this log were dropped"
    number = int(first.partition(" ")[0])
    assert first == f"{number} some words that make the line longer"
    assert [int(one.partition(" ")[0]) for one in rest] == list(range(number + 1, 1_500_001))
    assert len(rest) > 80_000
    assert log(engine, "demo", tail=2).splitlines() == rest[-2:]
    assert log(engine, "demo", tail=50_000).splitlines() == rest[-50_000:]


def test_a_follower_that_keeps_up_misses_no_line_of_a_log_that_is_cut(engine, tmp_path):
    engine._environment = {**os.environ, log_files.LIMIT_VARIABLE: "1Mi"}
    # Runs at most 256 KiB ahead of who reads.
    Path("writer.py").write_text(
        "import os, time\n"
        "written = number = 0\n"
        "while number < 150_000:\n"
        "    while written - int(open('seen').read() or 0) > 1 << 18: time.sleep(0.005)\n"
        "    data = b''.join(b'%d %s\\n' % (i, b'x' * 50) for i in range(number, number + 500))\n"
        "    number += 500\n"
        "    written += os.write(1, data)\n"
    )
    Path("seen").write_text("0")
    submit(engine, job("demo", "python writer.py"))
    seen, texts, turns = 0, [], []
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        deadline = time.monotonic() + PATIENCE * 2
        while not following.done:
            assert time.monotonic() < deadline
            for one in following.read(0.1):
                if isinstance(one, Notice):
                    turns.append(one.turn)
                else:
                    texts.append(one.text)
                    seen += len(one.text) + 1
            Path("seen.new").write_text(str(seen))
            Path("seen.new").replace("seen")
    assert [int(text.partition(b" ")[0]) for text in texts] == list(range(150_000))
    assert held(place(tmp_path)) <= (1 << 20) + (1 << 17)
    assert turns == [LogTurn.JOINED, LogTurn.ENDED]


@pytest.mark.parametrize("text", ["lots", "-1", "5 MB"])
def test_a_limit_that_is_none_is_said_when_a_job_is_submitted(engine, text):
    engine._environment = {**os.environ, log_files.LIMIT_VARIABLE: text}
    with pytest.raises(UsageError, match="ARENA_TOPO_LOCAL_LOG_LIMIT") as caught:
        submit(engine, job("demo", "true"))
    assert caught.value.hint == "set a size such as 64Mi"
    assert engine.jobs(None) == ()


def test_a_limit_that_is_none_is_said_when_a_job_is_resumed(engine):
    submit(engine, job("demo", "sleep 600"))
    engine.pausing.suspend("demo", "default")
    engine._environment = {**os.environ, log_files.LIMIT_VARIABLE: "lots"}
    with pytest.raises(UsageError, match="ARENA_TOPO_LOCAL_LOG_LIMIT"):
        engine.pausing.resume("demo", "default")
    assert engine.job("demo", "default").phase is Phase.SUSPENDED


def test_the_limit_is_a_quantity_and_nought_keeps_everything():
    assert log_files.log_size_limit({}) == 64 << 20
    assert log_files.log_size_limit({log_files.LIMIT_VARIABLE: "1Gi"}) == 1 << 30
    assert log_files.log_size_limit({log_files.LIMIT_VARIABLE: "1000"}) == 1000
    assert log_files.log_size_limit({log_files.LIMIT_VARIABLE: "0"}) is None


class Pod:
    """One pod's log, written by the test in the place of its supervisor."""

    def __init__(self, folder: Path, name: str, most: int | None = None) -> None:
        self.place = folder / "pods" / name
        self.place.parent.mkdir(exist_ok=True)
        self.writer = LogWriter(self.place, most)

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), 4096):
            self.writer.write(data[start : start + 4096])

    def run_again(self, most: int | None = None) -> None:
        log_files.begin_run(self.place)
        self.writer = LogWriter(self.place, most)

    def text(self, **options) -> bytes:
        """The last run as it is now."""
        wanted = LogOptions(**options)
        with log_files.LogReader(str(self.place)) as reader:
            run = log_files.select_files(reader.parts(), self.place.name, wanted)
            whole = reader.begin(run, wanted.tail)
            reader.last = run[-1]
            lines = log_files.LogLines(reader, replace(SOURCE, run=run[0].run), pieces=True)
            came: list[Line | Notice] = [lines.cut()] if whole and reader.lost else []
            while some := lines.take():
                came += some
            came += lines.finish()
        return b"".join(
            one.text + b"\n" * one.fed if isinstance(one, Line) else b"[cut]\n" for one in came
        )


class Job:
    """A job of some workers that only exists as files."""

    def __init__(self, folder: Path, workers: int = 0, most: int | None = None) -> None:
        self.folder = folder
        names = ["demo-launcher", *(f"demo-worker-{index}" for index in range(workers))]
        self.pods = [Pod(folder, name, most) for name in names]
        self.entry: store.Job | None = store.Job(
            folder=folder,
            submission=store.StoredRequest(
                uid="1",
                name="demo",
                namespace="default",
                created=0.0,
                host="me",
                workers=workers,
                gpus=1,
            ),
            state=store.JobState(
                phase=Phase.RUNNING,
                forecast=PlacementForecast(state="placed"),
                pods={name: store.PodState(started=1.0) for name in names},
            ),
        )

    def end(self, phase: Phase = Phase.SUCCEEDED, reason: str | None = None) -> None:
        state = store.JobState(
            phase=phase, forecast=PlacementForecast(state="placed"), reason=reason
        )
        self.entry = store.Job(folder=self.folder, submission=self.entry.submission, state=state)

    def follow(self, options: LogOptions = FOLLOW) -> LocalFollowing:
        return LocalFollowing(self.entry, lambda: self.entry, options, lambda _: True)


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %07d of the log\n" % number for number in range(first, last))


def test_a_follower_that_is_slow_is_told_what_was_given_up_and_goes_on_at_a_line(tmp_path):
    demo = Job(tmp_path, most=1 << 19)
    [pod] = demo.pods
    with demo.follow() as following:
        reader = Reader(following)
        pod.write(numbered(0, 10) + b"half a li")
        reader.until(lambda: len(reader.lines) == 10)
        pod.write(b"ne\n" + numbered(10, 40_000))
        demo.end()
        reader.until_done()
    turns = [one.turn if isinstance(one, Notice) else one.text for one in reader.items]
    assert turns[:11] == [LogTurn.JOINED, *numbered(0, 10).split(b"\n")[:-1]]
    # The file that was open is read to its end.
    at = turns.index(LogTurn.CUT)
    before, after = turns[11:at], turns[at + 1 : -1]
    assert before[0] == b"half a line"
    assert before[1:] == numbered(10, 9 + len(before)).split(b"\n")[:-1]
    first = int(after[0].split()[1])
    assert after == numbered(first, 40_000).split(b"\n")[:-1]
    lost = (first - 9 - len(before)) * (len(numbered(0, 1)) + 31)
    assert reader.items[at].error.message == f"{lost:,} bytes of this log were dropped"
    assert turns[-1] is LogTurn.ENDED


def test_who_begins_to_follow_a_log_that_was_cut_is_told(tmp_path):
    demo = Job(tmp_path, most=1 << 16)
    [pod] = demo.pods
    pod.write(numbered(0, 10_000))
    with demo.follow() as following:
        reader = Reader(following)
        reader.read()
    assert reader.turns == [LogTurn.JOINED, LogTurn.CUT]
    number = int(reader.texts[0].split()[1])
    assert number > 0
    assert reader.texts == numbered(number, 10_000).split(b"\n")[:-1]
    with demo.follow(LogOptions(follow=True, tail=3)) as following:
        reader = Reader(following)
        reader.read()
    assert reader.turns == [LogTurn.JOINED]
    assert len(reader.texts) == 3


def test_what_a_full_disk_does_not_take_is_counted_and_the_log_goes_on(tmp_path, monkeypatch):
    [pod] = Job(tmp_path).pods
    pod.write(b"one\nhal")
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        """The disk takes some bytes, and then no more."""
        if len(data) > 5:
            return write(descriptor, data[: len(data) - 5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        pod.write(b"f\n")
        pod.write(b"lost\nlost\n")
    pod.write(b"two\n")
    assert pod.text() == (
        b"one\nhal\narena-topo: 12 bytes are missing here, since they could not be written\ntwo\n"
    )


def test_a_job_is_not_held_up_by_a_log_that_cannot_be_written(engine, tmp_path):
    submit(engine, job("demo", "echo one; while ! test -e go; do sleep 0.05; done; seq 1 300000"))
    started(engine, "demo")
    eventually(lambda: log(engine, "demo") == "one\n")
    # No file can be made in a folder that is gone.
    place(tmp_path).rename(tmp_path / "elsewhere")
    Path("go").touch()
    assert ended(engine, "demo").exit_code == 0


@pytest.mark.parametrize("bound", [16, 64])
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=40).map(lambda data: data.replace(b"x", b"\n")),
            st.sampled_from(["", "read", "run"]),
        ),
        max_size=20,
    )
)
def test_however_a_log_is_written_and_read_its_lines_come_once_and_whole(
    tmp_path_factory, bound, steps
):
    demo = Job(tmp_path_factory.mktemp("job"))
    [pod] = demo.pods
    runs = [b""]
    with pytest.MonkeyPatch.context() as patch, demo.follow() as following:
        patch.setattr(log_files, "_SHORTEST", bound)
        patch.setattr(log_files, "_LONGEST", bound)
        pod.writer = LogWriter(pod.place, None)
        reader = Reader(following)
        for data, then in steps:
            pod.write(data)
            runs[-1] += data
            if then == "run":
                pod.run_again()
                runs.append(b"")
            if then == "read":
                reader.read()
        patch.undo()
        demo.end()
        following._looked = 0.0
        reader.until_done()
    assert pod.text() == runs[-1]
    assert LogTurn.CUT not in reader.turns
    came: dict[int, bytes] = {}
    for one in reader.lines:
        came[one.source.run] = came.get(one.source.run, b"") + one.text + b"\n" * one.fed
    for run, data in enumerate(runs):
        assert came.get(run, b"") == data


@pytest.mark.parametrize("tail", [0, 1, 2, 5, 100])
def test_the_tail_of_a_log_of_many_files_is_counted_in_lines(tmp_path, monkeypatch, tail):
    monkeypatch.setattr(log_files, "_SHORTEST", 100)
    monkeypatch.setattr(log_files, "_LONGEST", 100)
    [pod] = Job(tmp_path).pods
    for number in range(50):
        pod.write(b"%d\n" % number)
    assert len(list(pod.place.glob("*.log"))) > 10
    assert (
        pod.text(tail=tail).split() == [b"%d" % number for number in range(50)][50 - tail or 50 :]
    )


@pytest.mark.parametrize("options", [LogOptions(), FOLLOW])
def test_a_very_long_line_does_not_hide_the_lines_behind_it(tmp_path, options):
    demo = Job(tmp_path)
    [pod] = demo.pods
    pod.write(b"before\n" + b"x" * (5 << 20) + b"\nafter\n")
    demo.end()
    with demo.follow(options) as following:
        reader = Reader(following)
        reader.until_done()
    assert [text[:6] for text in reader.texts] == [b"before", b"xxxxxx", b"after"]
    archived = log_files.run_lines(pod.place, SOURCE)
    assert [line.text[:6] for line in archived] == [b"before", b"xxxxxx", b"after"]


@pytest.mark.parametrize("follows", [False, True])
def test_much_that_is_older_than_asked_for_does_not_hide_what_is_new(tmp_path, follows):
    demo = Job(tmp_path)
    [pod] = demo.pods
    pod.write(numbered(0, 60_000))
    time.sleep(0.01)
    moment = datetime.now(UTC).isoformat()
    pod.write(b"new\n")
    demo.end()
    with demo.follow(LogOptions(follow=follows, since_time=moment)) as following:
        reader = Reader(following)
        reader.until_done()
    assert reader.texts == [b"new"]


def test_a_line_longer_than_all_that_is_kept_loses_its_beginning(tmp_path):
    [pod] = Job(tmp_path, most=1 << 19).pods
    pod.write(b"x" * (1 << 20) + b"end\n")
    assert held(pod.place) <= 1 << 19
    remark, rest = pod.text().split(b"\n", 1)
    assert remark == b"[cut]"
    assert set(rest[:-4]) == {ord("x")}
    assert rest.endswith(b"xend\n")
    assert len(rest) > 1 << 18


# ---------------------------------------------------------------------------- kept


def kept_lines(name: str = "demo") -> Iterator[Line]:
    archive = open_archive(os.environ)
    for kept in archive.kept("local", "default", name)[:1]:
        yield from archive.lines(kept)


def test_what_a_job_said_outlives_the_job(engine):
    submit(engine, job("demo", "echo x >> tries; echo try $(wc -l < tries); exit 3", retry=1))
    status = ended(engine, "demo")
    before = followed(engine, status).lines
    engine.delete("demo", "default")
    lines = list(kept_lines())
    assert [(one.text, one.source.run) for one in lines] == [(b"try 1", 0), (b"try 2", 1)]
    assert [(one.at, one.text) for one in lines[1:]] == [(one.at, one.text) for one in before]
    [kept] = open_archive(os.environ).kept("local", "default", "demo")
    assert (kept.uid, kept.complete, kept.phase, kept.exit_code) == (
        status.uid,
        True,
        "FAILED",
        3,
    )


def test_what_a_job_said_that_is_deleted_while_it_runs_or_is_suspended_is_kept(engine):
    for name in ("runs", "waits"):
        submit(engine, job(name, f"echo {name}; exec sleep 600"))
        eventually(lambda name=name: log(engine, name) == f"{name}\n")
    engine.pausing.suspend("waits", "default")
    for name in ("runs", "waits"):
        engine.delete(name, "default")
        assert [one.text for one in kept_lines(name)] == [name.encode()]
        [kept] = open_archive(os.environ).kept("local", "default", name)
        assert (kept.deleted, kept.complete) == (True, True)
        assert kept.phase == {"runs": "RUNNING", "waits": "SUSPENDED"}[name]


def test_a_line_that_was_followed_before_it_ended_is_kept_whole(engine):
    go = "while ! test -e go; do sleep 0.05; done"
    submit(engine, job("demo", f"printf 'sure? '; {go}; echo yes; echo after"))
    started(engine, "demo")
    asked = LogRequest(options=replace(FOLLOW, unfinished=True))
    shown = iter(follow.RequestedLines(engine, "demo", "default", asked))
    while not any(next(shown)):
        pass
    shown.close()
    Path("go").touch()
    ended(engine, "demo")
    engine.delete("demo", "default")
    assert [one.text for one in kept_lines()] == [b"sure? yes", b"after"]


def test_deleting_a_job_copies_nothing_so_that_a_full_disk_keeps_its_log(engine, tmp_path):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    [file] = place(tmp_path).iterdir()
    number = file.stat().st_ino
    engine.delete("demo", "default")
    [moved] = (tmp_path / "state/arena-topo/logs").rglob("*-0.log")
    assert moved.stat().st_ino == number
    assert [one.text for one in kept_lines()] == [b"hello"]


def test_whoever_reads_a_log_while_its_job_is_deleted_loses_no_line(engine, monkeypatch):
    monkeypatch.setattr(log_files, "_BATCH", 1000)
    engine._environment = {**os.environ, log_files.LIMIT_VARIABLE: "4Mi"}
    submit(engine, job("demo", "seq 1 50000"))
    status = ended(engine, "demo")
    with engine.follow(status, FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        assert len(reader.lines) < 10_000
        engine.delete("demo", "default")
        reader.until_done()
    assert reader.texts == [b"%d" % number for number in range(1, 50_001)]


def test_a_job_that_deletes_itself_keeps_its_last_words(engine):
    delete = f"{sys.executable} -m arena_topo delete demo --backend local"
    submit(engine, job("demo", f"{delete}; echo last words; sleep 600"))
    eventually(lambda: engine.jobs(None) == ())
    said = [one.text for one in kept_lines()]
    assert said[-1] == b"last words"
    [kept] = open_archive(os.environ).kept("local", "default", "demo")
    assert (kept.deleted, kept.phase) == (True, "RUNNING")


def test_a_job_whose_logs_were_moved_away_runs_again_and_is_followed(engine, tmp_path):
    submit(engine, job("demo", "echo ran; sleep 600"))
    eventually(lambda: log(engine, "demo") == "ran\n")
    engine.pausing.suspend("demo", "default")
    # As after a `delete` that was killed before it could remove the job.
    shutil.rmtree(place(tmp_path).parent)
    engine.pausing.resume("demo", "default")
    eventually(lambda: log(engine, "demo") == "ran\n")


def test_a_job_that_waits_is_followed_although_it_has_no_folder_of_logs(engine, tmp_path):
    submit(engine, job("first", "sleep 600", workers=1, gpus=8))
    submit(engine, job("second", "sleep 600", workers=1, gpus=8))
    submit(engine, job("demo", "echo ran", workers=1, gpus=8))
    place(tmp_path).parent.rmdir()
    status = engine.job("demo", "default")
    assert status.phase is Phase.PENDING
    with engine.follow(status, FOLLOW, launchers) as following:
        reader = Reader(following)
        engine.delete("first", "default")
        reader.until(lambda: reader.texts == [b"ran"])


def in_the_way(folder: Path) -> None:
    folder.write_text("in the way")


def dangling(folder: Path) -> None:
    folder.symlink_to("nowhere/at/all")


@pytest.mark.parametrize("obstacle", [in_the_way, dangling])
def test_a_job_is_deleted_although_its_log_cannot_be_archived_and_a_warning_says_so(
    engine, tmp_path, obstacle
):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    obstacle(tmp_path / "state/arena-topo/logs")
    told: list[str] = []
    engine.delete("demo", "default", tell=told.append)
    assert engine.jobs(None) == ()
    assert told == ["the log of demo is not archived: File exists"]


def test_all_jobs_of_a_delete_count_towards_the_size_of_the_archive(engine, monkeypatch):
    submit(engine, job("old", "echo old"))
    ended(engine, "old")
    engine.delete("old", "default")
    [old] = open_archive(os.environ).kept("local", "default", "old")
    for file in old.folder.iterdir():
        os.utime(file, (time.time() - 3600, time.time() - 3600))
    for name in ("first", "second"):
        submit(engine, job(name, "seq 1 5000"))
        ended(engine, name)
    # Each log has some 180 kB.
    monkeypatch.setenv("ARENA_TOPO_LOG_ARCHIVE", "300k")
    assert cli.run(["delete", "--all", "--yes", "--backend", "local"]) == 0
    for name in ("first", "second"):
        assert len(list(kept_lines(name))) == 5000
    assert list(kept_lines("old")) == []


def test_the_log_of_a_job_whose_manifest_was_edited_is_archived(engine, tmp_path):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    (place(tmp_path).parent.parent / "manifest.json").write_text("[]")
    told: list[str] = []
    engine.delete("demo", "default", tell=told.append)
    assert [line.text for line in kept_lines()] == [b"hello"]
    assert told == []


@pytest.mark.parametrize("file", ["record", "submission.json"])
def test_the_log_of_a_job_that_cannot_be_read_is_archived(engine, tmp_path, file):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    (place(tmp_path).parent.parent / file).write_text("{")
    told: list[str] = []
    engine.delete("demo", "default", tell=told.append)
    assert engine.jobs(None) == ()
    assert [line.text for line in kept_lines()] == [b"hello"]
    assert told == []


def test_the_log_behind_a_link_in_the_place_of_a_job_stays_with_its_job(engine, tmp_path):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    folder = place(tmp_path).parent.parent
    other = folder.parent.with_name("other")
    other.mkdir(mode=0o700)
    (other / "demo").symlink_to(folder)
    engine.delete("demo", "other")
    assert not other.exists()
    assert log(engine, "demo") == "hello\n"
    assert open_archive(os.environ).kept("local", "other", "demo") == ()


def test_the_job_that_a_new_one_replaces_counts_towards_the_size_of_the_archive(
    engine, monkeypatch
):
    submit(engine, job("old", "echo old"))
    ended(engine, "old")
    engine.delete("old", "default")
    [old] = open_archive(os.environ).kept("local", "default", "old")
    for file in old.folder.iterdir():
        os.utime(file, (time.time() - 3600, time.time() - 3600))
    submit(engine, job("demo", "seq 1 5000"))
    ended(engine, "demo")
    monkeypatch.setenv("ARENA_TOPO_LOG_ARCHIVE", "180k")
    again = ["submit", "mpi", "--backend=local", "--name=demo", "--workers=1", "--image=local"]
    assert cli.run([*again, "--exists=replace", "--wait", "echo new"]) == 0
    assert len(list(kept_lines())) == 5000
    assert list(kept_lines("old")) == []


@pytest.mark.parametrize("full", [False, True])
def test_what_else_is_known_of_a_job_makes_room_for_its_log_only_on_a_full_disk(
    engine, tmp_path, monkeypatch, full
):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    folder = place(tmp_path).parent.parent
    other = [folder / name for name in ("events", "pods.json")]
    replace_file, seen = archive.replace_file, []

    def written(path: Path, data: bytes) -> None:
        """The disk is full until the job has made room."""
        seen.append([file.exists() for file in other])
        if full and any(seen[-1]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, data)

    monkeypatch.setattr(archive, "replace_file", written)
    engine.delete("demo", "default")
    assert [line.text for line in kept_lines()] == [b"hello"]
    assert seen == [[True, True], [False, False]][: 1 + full]


def test_an_invalid_size_of_the_archive_is_an_error_before_anything_is_deleted(
    engine, monkeypatch, capsys
):
    submit(engine, job("demo", "echo hello; sleep 600"))
    eventually(lambda: log(engine, "demo") == "hello\n")
    with monkeypatch.context() as patch:
        patch.setenv("ARENA_TOPO_LOG_ARCHIVE", "1.5G")
        assert cli.run(["delete", "demo", "--backend", "local"]) == 2
    assert "ARENA_TOPO_LOG_ARCHIVE is '1.5G'" in capsys.readouterr().err
    assert engine.job("demo", "default").phase is Phase.RUNNING


def test_delete_warns_of_a_log_that_cannot_be_archived(engine, tmp_path, capsys):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    in_the_way(tmp_path / "state/arena-topo/logs")
    assert cli.run(["delete", "demo", "--backend", "local"]) == 0
    assert "the log of demo is not archived: File exists" in capsys.readouterr().err
