"""Logs of jobs on this machine: files that processes write, followed, bounded and kept."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_local_engine import PATIENCE, ended, engine, eventually, job, log, started, submit

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.archive import open_archive
from arena_topo.engines.lines import Line, LogOptions, Notice, Turn
from arena_topo.engines.local import logfile
from arena_topo.engines.local.engine import LocalBackend
from arena_topo.engines.local.following import LocalFollowing
from arena_topo.engines.local.ledger import Entry, PodRecord, Record, Submission
from arena_topo.engines.local.logfile import RUNS, TIMES, Keeper, LogFile
from arena_topo.errors import NotFound, UsageError
from arena_topo.manifests import Forecast

__all__ = ["engine"]

FOLLOW = LogOptions(follow=True)


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
    def turns(self) -> list[Turn]:
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
    submit(engine, job("demo", "seq 1 300000"))
    reader = followed(engine, started(engine, "demo"))
    assert reader.texts == [b"%d" % number for number in range(1, 300_001)]
    assert log(engine, "demo") == "".join(f"{number}\n" for number in range(1, 300_001))


@pytest.mark.parametrize(
    ("tail", "text"), [(None, "a\nb\nc"), (0, ""), (1, "c"), (2, "b\nc"), (9, "a\nb\nc")]
)
def test_the_tail_of_a_log_is_counted_in_lines(engine, tail, text):
    submit(engine, job("demo", "printf 'a\\nb\\nc'"))
    status = ended(engine, "demo")
    assert log(engine, "demo", tail=tail) == text
    assert b"\n".join(followed(engine, status, tail=tail).texts).decode() == text


def test_the_times_of_a_log_are_kept_beside_it(engine, tmp_path):
    submit(engine, job("demo", "echo old; echo half; sleep 1; echo new"))
    status = ended(engine, "demo")
    times = list(TIMES.iter_unpack((place(tmp_path) / "times").read_bytes()))
    assert [size for _, size in times][-1] == len("old\nhalf\nnew\n")
    assert len(times) > 1
    assert status.chief.started < times[0][0] < times[-1][0]


def test_what_is_given_up_while_a_log_is_read_is_told_in_its_place(tmp_path):
    demo = Job(tmp_path)
    [pod] = demo.pods
    pod.write(numbered(0, 20_000))
    file, last = LogFile(str(pod.place)), numbered(19_999, 20_000)
    size = file.size()
    pieces = file.pieces(0, size)
    first = next(pieces)
    (pod.place / "kept-from").write_text(str(size - len(last)))
    rest = b"".join(pieces)
    assert numbered(0, 20_000).startswith(first)
    assert rest.endswith(b"\n" + last)
    assert rest.count(b"line 00") == 1
    assert b"arena-topo" in rest
    file.close()


@pytest.mark.parametrize(
    ("since_time", "text"),
    [
        ("2020-01-01T00:00:00Z", "old\nhalf\nnew\n"),
        ("2020-01-01T00:00:10Z", "old\nhalf\nnew\n"),
        ("2020-01-01T00:00:11Z", "half\nnew\n"),
        ("2020-01-01T00:00:21+00:00", "new\n"),
        ("2020-01-01T00:01:00Z", ""),
    ],
)
def test_a_log_can_begin_at_a_moment(engine, tmp_path, since_time, text):
    submit(engine, job("demo", "echo old; echo half; echo new"))
    status = ended(engine, "demo")
    # 2020-01-01T00:00:00Z; the second line was half written 10 s later, and whole at 20 s.
    start = 1577836800.0
    (place(tmp_path) / "times").write_bytes(
        b"".join(TIMES.pack(start + at, n) for at, n in ((10, 6), (20, 9), (30, 13)))
    )
    assert log(engine, "demo", since_time=since_time) == text
    stamped = log(engine, "demo", since_time=since_time, timestamps=True)
    every = (
        "2020-01-01T00:00:10.000Z old\n"
        "2020-01-01T00:00:20.000Z half\n"
        "2020-01-01T00:00:30.000Z new\n"
    )
    assert every.endswith(stamped)
    assert stamped.count("\n") == text.count("\n")
    lines = followed(engine, status, since_time=since_time).lines
    assert "".join(f"{one.stamp.decode()} {one.text.decode()}\n" for one in lines) == stamped
    assert all(one.at % 10_000_000_000 == 0 and one.at > start * 1e9 for one in lines)


@pytest.mark.parametrize("options", [{}, {"tail": 5}, {"since": 60}, {"timestamps": True}])
def test_the_log_of_a_worker_that_never_started_is_empty(engine, options):
    submit(engine, job("demo", "true", working_dir="/nowhere/at/all"))
    ended(engine, "demo")
    assert log(engine, "demo", "demo-worker-1", **options) == ""


def test_the_log_of_an_unknown_pod_is_not_found(engine):
    submit(engine, job("demo", "exit 0"))
    with pytest.raises(NotFound, match="invalid instance name ghost in job demo") as caught:
        log(engine, "demo", "ghost")
    assert caught.value.hint is None


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
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: b"no-end" in reader.texts)
        Path("go").touch()
        reader.until_done()
    told = [one.turn if isinstance(one, Notice) else one.text for one in reader.items]
    assert [one for one in told if one] == [
        Turn.JOINED,
        b"no-end",
        Turn.RESTARTED,
        b"no-end",
        Turn.ENDED,
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
    assert notice.turn is Turn.REFUSED
    assert notice.error.message == caught.value.message


def test_a_job_that_is_resumed_runs_anew_and_what_it_said_before_is_its_previous_log(engine):
    say = "echo x >> runs; echo run $(wc -l < runs); test $(wc -l < runs) = 2 || sleep 600"
    submit(engine, job("demo", say))
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: b"run 1" in reader.texts)
        engine.pausing.suspend("demo", "default")
        reader.until(lambda: Turn.GONE in reader.turns)
        assert following.done
        engine.pausing.resume("demo", "default")
        reader.until(lambda: b"run 2" in reader.texts)
        reader.until_done()
    assert reader.texts == [b"run 1", b"run 2"]
    assert [one.source.run for one in reader.lines] == [0, 1]
    assert reader.turns == [Turn.JOINED, Turn.GONE, Turn.RESTARTED, Turn.ENDED]
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
    # Who looks before a line has its end is given the end, which may be empty, by itself.
    first, second, later = (
        [(one.at, one.stamp, one.text) for one in r.lines if one.text] for r in readers
    )
    assert first == second == later
    assert [text for _, _, text in later] == [b"1", b"2", b"3", b"4", b"5", b"6", b"end"]
    assert len({at for at, _, _ in later}) > 3
    stamped = log(engine, "demo", timestamps=True)
    assert stamped == "\n".join(f"{said.decode()} {text.decode()}" for _, said, text in later)


def test_what_has_no_end_yet_is_shown_as_far_as_it_goes(engine):
    go = "while ! test -e go; do sleep 0.05; done"
    submit(engine, job("demo", f"printf 'sure? '; {go}; echo yes"))
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        Path("go").touch()
        reader.until_done()
    assert [(one.text, one.ends) for one in reader.lines] == [(b"sure? ", False), (b"yes", True)]


def test_a_writer_killed_in_the_middle_of_a_line_leaves_what_it_wrote(engine):
    submit(engine, job("demo", "echo whole; printf half; kill -9 $$"))
    status = ended(engine, "demo")
    assert status.exit_code == 137
    assert followed(engine, status).texts == [b"whole", b"half"]
    assert log(engine, "demo") == "whole\nhalf"


def test_a_log_whose_supervisor_was_killed_ends_with_its_last_line(engine, tmp_path):
    go = "while ! test -e go; do sleep 0.05; done"
    submit(engine, job("demo", f"trap '' TERM; echo one; {go}; echo last words; exec sleep 600"))
    with engine.follow(started(engine, "demo"), FOLLOW, launchers) as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        keeper = engine._ledger.entry("demo", "default").record.supervisor
        # It sees nothing of the last words; once it is gone the job's processes end as well.
        os.kill(keeper.pid, signal.SIGSTOP)
        Path("go").touch()
        eventually(lambda: b"last words" in (place(tmp_path) / "log").read_bytes())
        os.kill(keeper.pid, signal.SIGKILL)
        reader.until_done()
    assert reader.texts == [b"one", b"last words"]
    assert reader.turns == [Turn.JOINED, Turn.ENDED]


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
    assert reader.turns == [Turn.JOINED, Turn.GONE]


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
    assert reader.turns[-1] is Turn.GONE


# ---------------------------------------------------------------------------- bounded


def held(path: Path) -> int:
    """Bytes of the disk that a file takes."""
    return path.stat().st_blocks * 512


def test_a_job_that_says_200_megabytes_keeps_a_bounded_part_with_the_last_lines(tmp_path, engine):
    engine._environment = {**os.environ, logfile.LIMIT_VARIABLE: "8Mi"}
    submit(engine, job("demo", "seq -f '%0.0f some words that make the line longer' 5000000"))
    ended(engine, "demo")
    assert (place(tmp_path) / "log").stat().st_size > 200e6
    assert held(place(tmp_path) / "log") <= (8 << 20) + 4096
    remark, first, *rest = log(engine, "demo").splitlines()
    lost = (place(tmp_path) / "kept-from").read_text()
    assert remark == (f"arena-topo: {int(lost):,} bytes of this log were given up")
    number = int(first.partition(" ")[0])
    assert first == f"{number} some words that make the line longer"
    assert [int(one.partition(" ")[0]) for one in rest] == list(range(number + 1, 5_000_001))
    assert len(rest) > 100_000
    assert log(engine, "demo", tail=2).splitlines() == rest[-2:]


def test_a_follower_that_keeps_up_misses_no_line_of_a_log_that_is_cut(engine, tmp_path):
    engine._environment = {**os.environ, logfile.LIMIT_VARIABLE: "1Mi"}
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
    assert int((place(tmp_path) / "kept-from").read_text()) > 6e6
    assert turns == [Turn.JOINED, Turn.ENDED]


@pytest.mark.parametrize("text", ["lots", "-1", "5 MB"])
def test_a_limit_that_is_none_is_said_when_a_job_is_submitted(engine, text):
    engine._environment = {**os.environ, logfile.LIMIT_VARIABLE: text}
    with pytest.raises(UsageError, match="ARENA_TOPO_LOCAL_LOG_LIMIT") as caught:
        submit(engine, job("demo", "true"))
    assert caught.value.hint == "say how much of a log to keep, such as 64Mi"
    assert engine.jobs(None) == ()


def test_the_limit_is_a_quantity_and_nought_keeps_everything():
    assert logfile.limit({}) == 64 << 20
    assert logfile.limit({logfile.LIMIT_VARIABLE: "1Gi"}) == 1 << 30
    assert logfile.limit({logfile.LIMIT_VARIABLE: "1000"}) == 1000
    assert logfile.limit({logfile.LIMIT_VARIABLE: "0"}) is None


class Pod:
    """One pod's log, written by the test in the place of its processes and its supervisor."""

    def __init__(self, folder: Path, name: str, most: int | None = None) -> None:
        self.place = folder / "pods" / name
        self.place.mkdir(parents=True)
        self.keeper = Keeper(self.place, most)

    def write(self, data: bytes) -> None:
        with (self.place / "log").open("ab") as file:
            file.write(data)

    def look(self) -> str | None:
        self.keeper.look()
        return self.keeper.bound()


class Job:
    """A job of some workers that only exists as files."""

    def __init__(self, folder: Path, workers: int = 0, most: int | None = None) -> None:
        self.folder = folder
        names = ["demo-launcher", *(f"demo-worker-{index}" for index in range(workers))]
        self.pods = [Pod(folder, name, most) for name in names]
        self.entry: Entry | None = Entry(
            folder=folder,
            submission=Submission(
                uid="1",
                name="demo",
                namespace="default",
                created=0.0,
                host="me",
                workers=workers,
                gpus=1,
            ),
            record=Record(
                phase=Phase.RUNNING,
                forecast=Forecast(state="placed"),
                pods={name: PodRecord(started=1.0) for name in names},
            ),
        )

    def end(self, phase: Phase = Phase.SUCCEEDED, reason: str | None = None) -> None:
        record = Record(phase=phase, forecast=Forecast(state="placed"), reason=reason)
        self.entry = Entry(folder=self.folder, submission=self.entry.submission, record=record)

    def follow(self, options: LogOptions = FOLLOW) -> LocalFollowing:
        return LocalFollowing(self.entry, lambda: self.entry, options, lambda _: True)


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %07d of the log\n" % number for number in range(first, last))


def test_a_follower_that_is_slow_is_told_what_was_given_up_and_goes_on_at_a_line(tmp_path):
    demo = Job(tmp_path, most=1 << 16)
    [pod] = demo.pods
    with demo.follow() as following:
        reader = Reader(following)
        pod.write(numbered(0, 10) + b"half a li")
        pod.look()
        reader.until(lambda: len(reader.lines) == 10)
        pod.write(b"ne\n" + numbered(10, 10_000))
        assert pod.look() is None
        demo.end()
        reader.until_done()
    half, first, *_ = reader.lines[10:]
    assert (half.text, half.ends) == (b"half a li", True)
    number = int(first.text.split()[1])
    assert reader.texts[11:] == numbered(number, 10_000).split(b"\n")[:-1]
    joined, cut, over = (one for one in reader.items if isinstance(one, Notice))
    assert (joined.turn, cut.turn, over.turn) == (Turn.JOINED, Turn.CUT, Turn.ENDED)
    lost = len(b"ne\n" + numbered(10, number))
    assert cut.error.message == (f"{lost:,} bytes of this log were given up")
    assert reader.texts[:10] == numbered(0, 10).split(b"\n")[:-1]
    assert reader.items.index(half) < reader.items.index(cut) < reader.items.index(first)


def test_who_begins_to_follow_a_log_that_was_cut_is_told(tmp_path):
    demo = Job(tmp_path, most=1 << 16)
    [pod] = demo.pods
    pod.write(numbered(0, 10_000))
    pod.look()
    with demo.follow() as following:
        reader = Reader(following)
        reader.read()
    assert reader.turns == [Turn.JOINED, Turn.CUT]
    number = int(reader.texts[0].split()[1])
    assert reader.texts == numbered(number, 10_000).split(b"\n")[:-1]
    with demo.follow(LogOptions(follow=True, tail=3)) as following:
        reader = Reader(following)
        reader.read()
    assert reader.turns == [Turn.JOINED]
    assert len(reader.texts) == 3


def test_the_times_of_a_log_that_grows_slowly_are_bounded_too(tmp_path):
    pod = Pod(tmp_path, "demo-launcher", most=1 << 17)
    for number in range(6000):
        pod.write(b"%d\n" % number)
        pod.look()
    assert held(pod.place / "times") <= (1 << 15) + 8192
    file = LogFile(str(pod.place))
    kept = file.kept_from()
    text = b"".join(file.pieces(kept, file.size()))
    assert text.split()[-1] == b"5999"
    assert text.split() == [b"%d" % n for n in range(int(text.split()[0]), 6000)]
    assert len(text.split()) > 1000
    stamped = b"".join(file.stamped(kept, file.size())).splitlines()
    assert [one.split()[1] for one in stamped] == text.split()
    assert all(one.startswith(b"20") for one in stamped)
    # Another supervisor of the same job goes on with the same files.
    again = Keeper(pod.place, 1 << 17)
    assert not again.look()
    pod.write(b"6000\n")
    assert again.look()
    assert again._count == 6001
    file.close()


@pytest.mark.parametrize("reading", [LogFile.pieces, LogFile.stamped])
def test_what_is_given_up_while_a_log_is_read_is_left_out(tmp_path, reading):
    pod = Pod(tmp_path, "demo-launcher", most=1 << 16)
    pod.write(numbered(0, 40_000))
    pod.keeper.look()
    file = LogFile(str(pod.place))
    pieces = reading(file, 0, file.size())
    text = next(pieces)
    assert pod.look() is None
    text += b"".join(pieces)
    kept = numbered(0, 40_000)[file.kept_from() :].splitlines()
    before, remark, after = text.partition(b" bytes of this log were given up\n")
    assert remark
    # The time of a line is in front of it, where it is asked for.
    assert [one[-len(kept[0]) :] for one in after.splitlines()] == kept
    *whole, _, said = before.splitlines()
    assert [one[-len(kept[0]) :] for one in whole] == numbered(0, len(whole)).splitlines()
    lost = int(said.rpartition(b"arena-topo: ")[2].replace(b",", b""))
    assert lost == file.kept_from() - logfile._CHUNK
    file.close()


def test_a_log_that_cannot_be_cut_stays_whole_and_that_is_said_once(tmp_path, monkeypatch):
    pod = Pod(tmp_path, "demo-launcher", most=1 << 16)

    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(logfile, "_punch", refuse)
    pod.write(numbered(0, 10_000))
    assert pod.look() == (
        "its log grows on: the file system cannot free a part of a file (Operation not supported)"
    )
    pod.write(numbered(10_000, 20_000))
    assert pod.look() is None
    file = LogFile(str(pod.place))
    assert file.kept_from() == 0
    assert b"".join(file.pieces(0, file.size())) == numbered(0, 20_000)
    file.close()


def test_a_log_is_kept_within_its_limit_although_its_times_cannot_be_written(tmp_path):
    pod = Pod(tmp_path, "demo-launcher", most=1 << 16)
    (pod.place / "times").symlink_to("/dev/full")
    pod.write(numbered(0, 10_000))
    pod.look()
    pod.write(numbered(10_000, 20_000))
    pod.look()
    assert held(pod.place / "log") <= 1 << 16
    file = LogFile(str(pod.place))
    kept = b"".join(file.pieces(file.kept_from(), file.size()))
    assert numbered(0, 20_000).endswith(kept)
    assert len(kept) > 1 << 15
    file.close()
    # Once there is room, the times go on.
    (pod.place / "times").unlink()
    pod.look()
    assert [size for _, size in TIMES.iter_unpack((pod.place / "times").read_bytes())] == [
        len(numbered(0, 20_000))
    ]


def test_a_log_that_has_filled_the_disk_itself_is_cut_all_the_same(tmp_path, monkeypatch):
    pod = Pod(tmp_path, "demo-launcher", most=1 << 16)
    pod.keeper.reserve()
    room = held(pod.place / "kept-from.new")
    monkeypatch.setattr(os, "open", full(os.open))
    pod.write(numbered(0, 10_000))
    pod.look()
    assert room
    assert held(pod.place / "log") <= 1 << 16
    assert int((pod.place / "kept-from").read_text()) > 1 << 16


def full(opens):
    """Opening files on a full disk: none can be made, or be cut off to be written again."""

    def opened(path, flags, *words, **more):
        if flags & os.O_TRUNC or (flags & os.O_CREAT and not Path(path).exists()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opens(path, flags, *words, **more)

    return opened


def test_a_line_longer_than_all_that_is_kept_loses_its_beginning(tmp_path):
    pod = Pod(tmp_path, "demo-launcher", most=1 << 16)
    pod.write(b"x" * (1 << 20))
    pod.look()
    file = LogFile(str(pod.place))
    assert file.size() - file.kept_from() == (1 << 16) * 3 // 4
    assert held(pod.place / "log") <= 1 << 16
    file.close()


def test_half_an_entry_of_the_times_is_written_over(tmp_path):
    pod = Pod(tmp_path, "demo-launcher")
    pod.write(b"one\n")
    pod.look()
    with (pod.place / "times").open("ab") as times:
        times.write(b"half")
    pod.write(b"two\n")
    Keeper(pod.place, None).look()
    assert [size for _, size in TIMES.iter_unpack((pod.place / "times").read_bytes())] == [4, 8]


# ---------------------------------------------------------------------------- its end


@pytest.mark.parametrize(("deleted", "turn"), [(True, Turn.GONE), (False, Turn.ENDED)])
def test_a_job_that_was_told_to_end_is_most_often_being_deleted(tmp_path, deleted, turn):
    demo = Job(tmp_path)
    demo.pods[0].write(b"one\n")
    demo.pods[0].look()
    with demo.follow() as following:
        reader = Reader(following)
        reader.until(lambda: reader.lines)
        demo.end(Phase.FAILED, "stopped")
        looked = following._looked
        reader.until(lambda: following._looked > looked)
        following._stopped = time.monotonic()
        for _ in range(3):
            reader.items += following.read(0.0)
        assert reader.turns == [Turn.JOINED], "it ends before it is known how"
        if deleted:
            demo.entry = None
        reader.until_done()
    assert reader.turns == [Turn.JOINED, turn]


# ---------------------------------------------------------------------------- many logs


def test_the_logs_of_many_pods_come_in_the_order_of_their_times(tmp_path):
    demo = Job(tmp_path, workers=3)
    moment = 1_600_000_000.0
    for pod in demo.pods:
        (pod.place / "log").write_bytes(numbered(0, 50_000))
    size = len(numbered(0, 1))
    for index, pod in enumerate(demo.pods):
        entries = [(moment + n + index / 10, size * (n + 1) * 500) for n in range(100)]
        (pod.place / "times").write_bytes(b"".join(TIMES.pack(*one) for one in entries))
    with demo.follow(LogOptions()) as following:
        reader = Reader(following)
        reader.until_done()
    assert len(reader.lines) == 200_000
    times = [one.at for one in reader.lines]
    assert times == sorted(times)


def test_a_clock_that_is_set_back_changes_no_order_and_holds_nothing_up(tmp_path):
    demo = Job(tmp_path, workers=1)
    data = numbered(0, 20_000)
    clocks = ([100.0, 50.0, 60.0, 200.0], [80.0, 81.0, 82.0, 83.0])
    for pod, clock in zip(demo.pods, clocks, strict=True):
        (pod.place / "log").write_bytes(data)
        part = len(data) // 4
        entries = [(moment, part * (n + 1)) for n, moment in enumerate(clock)]
        (pod.place / "times").write_bytes(b"".join(TIMES.pack(*one) for one in entries))
    with demo.follow(LogOptions()) as following:
        reader = Reader(following)
        reader.until_done()
    for pod in ("demo-launcher", "demo-worker-0"):
        texts = [one.text for one in reader.lines if one.source.pod == pod]
        assert texts == data.split(b"\n")[:-1]


def test_one_read_takes_a_bounded_part_of_many_long_logs(tmp_path):
    demo = Job(tmp_path, workers=7)
    for pod in demo.pods:
        pod.write(numbered(0, 60_000))
        pod.look()
    with demo.follow(LogOptions()) as following:
        most = total = 0
        while not following.done:
            got = sum(len(one.text) + 1 for one in following.read(0.0) if isinstance(one, Line))
            most, total = max(most, got), total + got
    assert total == 8 * len(numbered(0, 60_000))
    assert most <= 4 << 20


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=12).map(lambda data: data.replace(b"x", b"\n")),
            st.sampled_from(["", "look", "look read", "look run read"]),
        ),
        max_size=12,
    )
)
def test_however_a_log_is_written_and_read_its_lines_come_once_and_whole(tmp_path_factory, steps):
    demo = Job(tmp_path_factory.mktemp("job"))
    [pod] = demo.pods
    runs = [b""]
    with demo.follow() as following:
        reader = Reader(following)
        for data, then in steps:
            pod.write(data)
            runs[-1] += data
            if "look" in then:
                pod.look()
            if "run" in then:
                logfile.begin_run(pod.place)
                runs.append(b"")
            if "read" in then:
                reader.read()
        demo.end()
        following._looked = 0.0
        reader.until_done()
    came: dict[int, bytes] = {}
    for one in reader.lines:
        came[one.source.run] = came.get(one.source.run, b"") + one.text + b"\n" * one.ends
    for run, data in enumerate(runs):
        # A last line without a line feed is a line as well.
        whole = data if data.endswith(b"\n") or not data else data + b"\n"
        assert came.get(run, b"") == whole


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


def test_a_job_is_deleted_although_its_log_cannot_be_kept(engine, tmp_path):
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    folder = tmp_path / "state/arena-topo/logs"
    with suppress(FileNotFoundError):
        folder.rmdir()
    folder.write_text("in the way")
    engine.delete("demo", "default")
    assert engine.jobs(None) == ()
    engine._environment = {**os.environ, "ARENA_TOPO_LOG_ARCHIVE": "nonsense"}
    submit(engine, job("demo", "echo hello"))
    ended(engine, "demo")
    engine.delete("demo", "default")
    assert engine.jobs(None) == ()


def test_runs_are_whole_entries_even_after_a_full_disk(tmp_path):
    pod = Pod(tmp_path, "demo-launcher")
    pod.write(b"one\ntwo\n")
    (pod.place / "runs").write_bytes(RUNS.pack(4) + b"half")
    file = LogFile(str(pod.place))
    assert file.runs() == (0, 4)
    file.close()
