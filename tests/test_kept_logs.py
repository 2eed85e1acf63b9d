"""Logs outlive pods: what was followed is kept once, in order, within bounds, and saved whole."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace

from arena_topo.engines import JobStatus, Options, Phase
from arena_topo.engines.archive import (
    AGE,
    ARCHIVE_VARIABLE,
    Archive,
    JobHead,
    Kept,
    open_archive,
)
from arena_topo.engines.engine_choice import open_backend
from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Source, stamped
from arena_topo.engines.log_files import LogWriter, begin_run
from arena_topo.errors import ArenaError, UsageError
from arena_topo.joblogs import notices
from arena_topo.joblogs.ranks import LineAttributor
from arena_topo.joblogs.save import Saving

SERVER = "https://10.0.0.1:6443"
JOB = JobStatus(uid="u1", name="train", namespace="team", phase=Phase.RUNNING, created=100.0)
OVER = replace(JOB, phase=Phase.SUCCEEDED, exit_code=0)
CHIEF = Source(pod="train-launcher-abc", uid="p1", container="mpi", chief=True)
WORKER = Source(pod="train-worker-0", uid="p2", container="mpi", worker=0)


def line(at: int, text: str | bytes = "", source: Source = CHIEF, *, fed: bool = True) -> Line:
    said = text.encode() if isinstance(text, str) else text
    return Line(source=source, at=at, stamp=stamped(at), text=said or b"line %d" % at, fed=fed)


def follow(
    archive: Archive,
    lines: Sequence[Line],
    *,
    whole: bool = False,
    job: JobStatus = JOB,
    ended: Iterable[Source] = (),
) -> None:
    with archive.keeping(SERVER, job, whole=whole) as keeping:
        keeping.write(lines)
        for one in ended:
            keeping.write([Notice(turn=LogTurn.ENDED, source=one)])
        keeping.close(job)


def newest(archive: Archive) -> Kept:
    return archive.kept(SERVER, "team", "train")[0]


def served(
    archive: Archive, options: LogOptions | None = None, source: Source | None = None
) -> list[Line]:
    wanted = (lambda _: True) if source is None else source.__eq__
    return list(archive.lines(newest(archive), options or LogOptions(), wanted))


def texts(archive: Archive, options: LogOptions | None = None) -> list[bytes]:
    return [one.text for one in served(archive, options)]


def disk(root: Path) -> int:
    return sum(one.stat().st_size for one in root.rglob("*") if one.is_file())


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "logs")


def test_what_was_followed_is_served_as_it_came(archive: Archive) -> None:
    said = [
        line(5, "first"),
        line(5, b"\xff \x1b[31m\r\t bar", WORKER),
        line(6, b" "),
        line(7, b"no line feed", fed=False),
    ]
    follow(archive, said)
    assert served(archive) == said


def test_a_log_is_a_plain_file_of_times_and_texts(archive: Archive) -> None:
    said = [line(1, "one"), line(2, "two")]
    follow(archive, [*said, line(9, "late", fed=False)], job=OVER, ended=[CHIEF])
    follow(archive, [line(4, "between")])
    [file] = newest(archive).folder.glob("*.log")
    assert file.read_text() == (
        '# {"format": 1, "pod": "train-launcher-abc", "uid": "p1", "container": "mpi", "run": 0,'
        ' "chief": true, "worker": null}\n'
        "# gap\n"
        "1970-01-01T00:00:00.000000001Z one\n"
        "1970-01-01T00:00:00.000000002Z two\n"
        "# no line feed\n"
        "1970-01-01T00:00:00.000000009Z late\n"
        "# end\n"
    )


def test_what_is_older_than_the_last_line_that_is_kept_is_left_out(archive: Archive) -> None:
    log = [line(at) for at in range(1, 10)]
    with archive.keeping(SERVER, JOB, whole=True) as slow:
        slow.write(log[:2])
        follow(archive, log[6:])
        assert newest(archive).lacking == (CHIEF,)
        slow.write(log[2:5])
    follow(archive, log, whole=True)
    assert served(archive) == [*log[:2], *log[6:]]
    assert newest(archive).lacking == (CHIEF,)


def test_an_empty_line_is_a_line(archive: Archive) -> None:
    follow(archive, [line(1)._replace(text=b"")])
    assert texts(archive) == [b""]


def test_a_line_without_a_time_has_that_of_the_line_before(archive: Archive) -> None:
    follow(archive, [line(7, "said"), line(7, "rpc error")._replace(stamp=b"")])
    assert served(archive) == [line(7, "said"), line(7, "rpc error")]


def test_a_second_follow_adds_only_what_is_new(archive: Archive) -> None:
    log = [line(at // 2, f"{at}") for at in range(1, 20)]
    follow(archive, log[:10], whole=True)
    size = disk(newest(archive).folder)
    follow(archive, log[:10], whole=True)
    assert disk(newest(archive).folder) == size
    follow(archive, log, whole=True)
    assert served(archive) == log
    assert len(list(newest(archive).folder.glob("*.log"))) == 1


def test_a_follow_of_the_end_of_a_log_goes_on_where_the_one_before_stopped(
    archive: Archive,
) -> None:
    log = [line(at) for at in range(1, 50)]
    follow(archive, log[:40], whole=True)
    follow(archive, log[30:])
    assert served(archive) == log
    assert len(list(newest(archive).folder.glob("*.log"))) == 1
    assert newest(archive).lacking == ()


@st.composite
def logs(draw: st.DrawFn) -> list[Line]:
    """A log whose clock often stands still; no two lines of one moment say the same."""
    at, found = draw(st.integers(0, 2)), []
    for number in range(draw(st.integers(1, 25))):
        at += draw(st.integers(0, 2))
        found.append(line(at, f"line {number}", fed=draw(st.booleans())))
    return found


def beginnings(log: Sequence[Line]) -> st.SearchStrategy[int]:
    """Where a follow may begin: with the first line of any moment."""
    moments = [one.at for one in log]
    return st.sampled_from(sorted({moments.index(at) for at in moments}))


@given(data=st.data(), log=logs())
def test_each_line_is_there_once_whatever_was_followed_when(
    data: st.DataObject, log: list[Line]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(Path(folder) / "logs")
        seen: list[int] = []
        for start in data.draw(st.lists(beginnings(log), min_size=1, max_size=5)):
            stop = data.draw(st.integers(start + 1, len(log)))
            follow(archive, log[start:stop], whole=start == 0)
            seen += [index for index in range(start, stop) if not seen or index > seen[-1]]
        assert served(archive) == [log[index] for index in seen]


@given(data=st.data(), log=logs())
def test_follows_at_the_same_time_keep_each_line_once(data: st.DataObject, log: list[Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(Path(folder) / "logs")
        starts = data.draw(st.lists(beginnings(log), min_size=2, max_size=3))
        several = [archive.keeping(SERVER, JOB, whole=start == 0) for start in starts]
        places = list(starts)
        for index in data.draw(st.lists(st.integers(0, len(starts) - 1), max_size=30)):
            batch = log[places[index] : places[index] + data.draw(st.integers(1, 5))]
            several[index].write(batch)
            places[index] += len(batch)
        for index in data.draw(st.permutations(range(len(starts)))):
            several[index].close()
        if places != starts:
            found = [log.index(one) for one in served(archive)]
            assert found == sorted(set(found))
            assert found[-1] == max(
                stop - 1 for start, stop in zip(starts, places, strict=True) if stop > start
            )


@given(
    times=st.lists(st.integers(0, 6), min_size=1, max_size=25),
    cuts=st.lists(st.integers(1, 25), min_size=1, max_size=4),
)
def test_a_clock_that_goes_back_neither_loses_nor_doubles_lines(
    times: list[int], cuts: list[int]
) -> None:
    log = [line(at, f"{number}") for number, at in enumerate(times)]
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(Path(folder) / "logs")
        for cut in cuts:
            follow(archive, log[:cut], whole=True)
        assert served(archive) == log[: max(cuts)]


def test_a_log_that_lacks_lines_it_had_loses_no_new_ones(archive: Archive) -> None:
    follow(archive, [line(at, f"{number}") for number, at in enumerate([3, 4, 5, 5])])
    follow(archive, [line(4, "1"), line(6), line(7)])
    assert texts(archive) == [b"0", b"1", b"2", b"3", b"line 6", b"line 7"]


def test_lines_without_any_time_are_kept_once(archive: Archive) -> None:
    log = [line(0, f"{number}") for number in range(10)]
    follow(archive, log[:4], whole=True)
    follow(archive, log, whole=True)
    assert served(archive) == log


def test_a_crash_at_any_byte_leaves_whole_lines_and_the_next_follow_completes_them(
    tmp_path: Path,
) -> None:
    log = [line(at, f"text of {at}") for at in range(8, 14)]
    first = Archive(tmp_path / "first")
    follow(first, log[:4], whole=True)
    (file,) = newest(first).folder.glob("*.log")
    content = file.read_bytes()
    for size in range(len(content)):
        root = tmp_path / f"cut-{size}"
        shutil.copytree(tmp_path / "first", root)
        os.truncate(root / file.relative_to(tmp_path / "first"), size)
        archive = Archive(root)
        whole = content[:size].count(b"\n") - 1
        assert (
            not archive.kept(SERVER, "team", "train")
            if whole < 0
            else served(archive) == log[:whole]
        )
        follow(archive, log, whole=True)
        assert served(archive) == log
        assert newest(archive).lacking == ()


def test_since_and_tail_choose_of_what_is_kept(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "logs", clock=lambda: 40.0)
    log = [line(at * 10**9, f"{at}") for at in range(1, 40)]
    said = [line(2 * 10**9, "ready", WORKER), line(38 * 10**9, "done", WORKER)]
    follow(archive, [*log, *said])
    assert texts(archive, LogOptions(tail=1)) == [b"done", b"39"]
    assert texts(archive, LogOptions(since=2)) == [b"38", b"done", b"39"]
    moment = LogOptions(since_time="1970-01-01T01:00:37+01:00", tail=2)
    assert texts(archive, moment) == [b"38", b"done", b"39"]
    assert served(archive, LogOptions(tail=2), WORKER) == said


def test_a_run_before_the_last_is_previous(archive: Archive) -> None:
    again = replace(CHIEF, run=1)
    follow(archive, [line(1, "crash"), line(2, "", again), line(3, "", WORKER)])
    assert texts(archive, LogOptions(previous=True)) == [b"crash"]
    assert newest(archive).sources == (CHIEF, again, WORKER)


def test_lines_of_several_logs_are_merged_and_those_of_one_stay_in_order(
    archive: Archive,
) -> None:
    back = [line(5, "a"), line(2, "b"), line(7, "c")]
    follow(archive, [*back, line(3, "1", WORKER), line(6, "2", WORKER)])
    assert texts(archive) == [b"1", b"a", b"b", b"2", b"c"]


def test_what_may_be_missing_is_told(archive: Archive) -> None:
    follow(archive, [line(at) for at in (5, 6)])
    follow(archive, [line(at) for at in (9, 10)])
    kept = newest(archive)
    assert kept.lacking == (CHIEF,)
    assert (kept.first, kept.last, kept.complete) == (5, 10, False)


def test_a_job_that_is_over_and_read_to_its_end_is_complete(archive: Archive) -> None:
    follow(archive, [line(1), line(2, "", WORKER)], whole=True, job=OVER, ended=[CHIEF])
    assert not newest(archive).complete
    follow(archive, [line(2, "", WORKER)], whole=True, job=OVER, ended=[WORKER])
    assert newest(archive).complete
    assert (newest(archive).phase, newest(archive).exit_code) == ("SUCCEEDED", 0)


def test_the_end_of_a_log_alone_is_not_complete(archive: Archive) -> None:
    follow(archive, [line(5), line(6)], job=OVER, ended=[CHIEF])
    assert not newest(archive).complete


def test_a_log_of_which_a_crash_has_left_no_row_is_not_complete(archive: Archive) -> None:
    follow(archive, [line(1), line(2, "", WORKER)], whole=True, job=OVER, ended=[CHIEF, WORKER])
    assert newest(archive).complete
    next(newest(archive).folder.glob(f"{WORKER.pod}-*.log")).write_bytes(b"")
    assert not newest(archive).complete


def test_a_log_that_began_while_it_was_followed_is_whole(archive: Archive) -> None:
    follow(archive, [line(2**62)], job=OVER, ended=[CHIEF])
    assert newest(archive).complete


def test_what_is_known_of_the_ranks_is_not_forgotten(archive: Archive) -> None:
    archive.keeping(SERVER, JOB, slots=4).close()
    follow(archive, [line(1)])
    assert newest(archive).slots == 4


def test_a_pod_that_said_nothing_has_a_log_too(archive: Archive) -> None:
    follow(archive, [], whole=True, job=OVER, ended=[CHIEF])
    assert newest(archive).sources == (CHIEF,)
    assert newest(archive).complete
    assert served(archive) == []


def test_of_several_jobs_of_a_name_the_newest_comes_first(archive: Archive) -> None:
    later = replace(JOB, uid="u2", created=200.0)
    follow(archive, [line(7, "later")], job=later)
    follow(archive, [line(8, "earlier")])
    follow(archive, [line(9, "another's")], job=replace(JOB, namespace="other"))
    follow(archive, [line(9, "other job")], job=replace(JOB, name="train-2"))
    assert [one.uid for one in archive.kept(SERVER, "team", "train")] == ["u2", "u1"]
    assert texts(archive) == [b"later"]
    assert archive.kept("https://other", "team", "train") == ()


def test_names_that_a_hostile_server_makes_up_stay_in_the_folder(archive: Archive) -> None:
    assert archive.root is not None
    odd = ["../../x", "/etc/passwd", "a" * 300, "\x1b[2J", "", ".", "A", "a", "ü\ud800"]
    sources = [Source(pod=one, uid=one, container=one) for one in odd]
    job = replace(JOB, name="../" + "n" * 400, namespace="..", uid="../u")
    said = [
        line(number, one.pod.encode("utf-8", "replace") + b"!", one)
        for number, one in enumerate(sources, 1)
    ]
    follow(archive, said, job=job)
    (kept,) = archive.kept(SERVER, "..", job.name)
    assert list(archive.lines(kept)) == said
    assert {one.parent.parent for one in archive.root.parent.rglob("*.log")} == {archive.root}
    assert all(len(one.name) < 200 for one in archive.root.rglob("*"))


def test_nobody_else_may_read_what_is_kept(archive: Archive) -> None:
    assert archive.root is not None
    before = os.umask(0)
    try:
        follow(archive, [line(1)])
    finally:
        os.umask(before)
    modes = {
        one: stat.S_IMODE(one.stat().st_mode) for one in [archive.root, *archive.root.rglob("*")]
    }
    assert {mode for one, mode in modes.items() if one.is_dir()} == {0o700}
    assert {mode for one, mode in modes.items() if one.is_file()} == {0o600}


def test_the_newest_lines_of_a_log_stay_within_its_bound(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "logs", most=1 << 20)
    log = [line(at, f"{at:0200}") for at in range(30_000)]
    with archive.keeping(SERVER, JOB, whole=True) as keeping:
        for start in range(0, len(log), 50):
            keeping.write(log[start : start + 50])
    kept = newest(archive)
    assert disk(archive.root or tmp_path) < (1 << 20) + (1 << 15)
    rest = served(archive)
    assert rest == log[-len(rest) :]
    assert len(rest) > 2000
    assert kept.lacking == (CHIEF,)
    follow(archive, log, whole=True)
    assert served(archive) == rest


def test_one_log_alone_does_not_fill_the_archive(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "logs", most=1 << 20)
    archive.largest = 1 << 18
    log = [line(at, f"{at:0200}") for at in range(3000)]
    follow(archive, [line(1, "first", WORKER), *log], whole=True)
    assert served(archive, source=WORKER) == [line(1, "first", WORKER)]
    rest = served(archive, source=CHIEF)
    assert 500 < len(rest) < 2000
    assert rest == log[-len(rest) :]


def test_whoever_makes_room_in_a_log_to_which_another_adds_doubles_no_line(
    tmp_path: Path,
) -> None:
    archive = Archive(tmp_path / "logs", most=1 << 20)
    said = [line(at, b"%07d" % at * 140) for at in range(1, 801)]
    other = [line(at, b"x" * 980, WORKER) for at in range(1, 451)]
    with (
        archive.keeping(SERVER, JOB, whole=True) as ahead,
        archive.keeping(SERVER, JOB, whole=True) as behind,
    ):
        ahead.write(said[:600])
        behind.write(said[:300])
        ahead.write(said[600:700])
        behind.write(other)
        behind.write(said[300:])
    found = [one.at for one in served(archive, source=CHIEF)]
    assert found == list(range(found[0], 801))
    assert found[0] > 1


def test_the_oldest_jobs_make_room_but_never_one_that_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arena_topo.engines.archive._TOUCH", 0.0)
    roomy = Archive(tmp_path / "logs", most=1 << 24, clock=lambda: 1e9 + 100)
    busy = roomy.keeping(SERVER, replace(JOB, name="busy"))
    busy.write([line(1, "x" * 60_000)] * 3)
    for number in range(8):
        job = replace(JOB, name=f"job-{number}")
        follow(roomy, [line(at, "y" * 2000) for at in range(100)], job=job)
    for age, name in enumerate(["busy", *(f"job-{number}" for number in range(8))]):
        for path in roomy.kept(SERVER, "team", name)[0].folder.iterdir():
            os.utime(path, (1e9 + age, 1e9 + age))
    busy.write([])
    tight = Archive(tmp_path / "logs", most=1 << 19, clock=lambda: 1e9 + 1000)
    tight.tidy()
    left = [number for number in range(8) if tight.kept(SERVER, "team", f"job-{number}")]
    assert left == [7]
    Archive(tmp_path / "logs", most=1 << 14, clock=lambda: 1e9 + 1000).tidy()
    assert tight.kept(SERVER, "team", "job-7") == ()
    busy.write([line(2, "still there")])
    busy.close()
    kept = tight.kept(SERVER, "team", "busy")[0]
    assert [one.text[:5] for one in tight.lines(kept)] == [*[b"xxxxx"] * 3, b"still"]


def test_what_nobody_added_to_for_long_goes(tmp_path: Path) -> None:
    follow(Archive(tmp_path / "logs"), [line(1)])
    kept = newest(Archive(tmp_path / "logs"))
    changed = max(one.stat().st_mtime for one in kept.folder.iterdir())
    Archive(tmp_path / "logs", clock=lambda: changed + AGE - 10).tidy()
    assert kept.folder.exists()
    Archive(tmp_path / "logs", clock=lambda: changed + AGE + 10).tidy()
    assert not kept.folder.exists()


def test_two_processes_follow_one_job_and_each_line_is_there_once(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_kept_logs import JOB, SERVER, Archive, line
archive = Archive(Path({str(tmp_path / "logs")!r}))
log = [line(at // 3, str(at)) for at in range(2000)]
with archive.keeping(SERVER, JOB, whole=True) as keeping:
    print("open", flush=True)
    sys.stdin.readline()
    for start in range(0, len(log), 7):
        keeping.write(log[start : start + 7])
"""
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in pair:
        assert one.stdout is not None
        assert one.stdout.readline() == "open\n"
    for one in pair:
        one.communicate("go\n")
        assert one.returncode == 0
    archive = Archive(tmp_path / "logs")
    assert texts(archive) == [b"%d" % at for at in range(2000)]
    assert len(list(newest(archive).folder.glob("*.log"))) == 1


def test_nobody_goes_on_with_what_another_still_writes(archive: Archive) -> None:
    log = [line(at) for at in range(1, 10)]
    first, second = archive.keeping(SERVER, JOB), archive.keeping(SERVER, JOB)
    first.write(log[:1])
    second.write(log[:5])
    first.close()
    third = archive.keeping(SERVER, JOB)
    third.write(log[2:8])
    third.close()
    second.write(log[5:7])
    second.close()
    assert served(archive) == log[:8]


def test_a_job_is_kept_while_it_is_followed_and_can_be_read(archive: Archive) -> None:
    with archive.keeping(SERVER, JOB) as keeping:
        keeping.write([line(1)])
        assert served(archive) == [line(1)]


def test_what_cannot_be_kept_is_told_once_and_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    told: list[str] = []
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    archive = open_archive(environment, tell=told.append)
    for _ in range(2):
        with archive.keeping(SERVER, JOB) as keeping:
            keeping.write([line(1)])
            keeping.write([Notice(turn=LogTurn.ENDED, source=CHIEF)])
    where = tmp_path / "state/arena-topo/logs"
    assert told == [
        f"the log is not kept in {where}: Not a directory (to keep none: {ARCHIVE_VARIABLE}=off)"
    ]
    assert archive.kept(SERVER, "team", "train") == ()


@pytest.mark.parametrize("whose", ["arena-topo", "arena-topo/logs"])
def test_an_archive_in_a_folder_of_another_user_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    follow(open_archive(environment), [line(1)])
    before = sorted(tmp_path.rglob("*"))
    theirs, stat = str(tmp_path / whose), os.stat

    def planted(path: Path, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if str(path) != theirs:
            return found
        values = list(found)
        values[4] = os.geteuid() + 1
        return os.stat_result(values)

    monkeypatch.setattr(os, "stat", planted)
    told: list[str] = []
    archive = open_archive(environment, tell=told.append)
    follow(archive, [line(2)])
    assert archive.kept(SERVER, "team", "train") == ()
    assert sorted(tmp_path.rglob("*")) == before
    assert len(told) == 1
    assert f"the folder {theirs} is not used, since it belongs to" in told[0]


def test_an_archive_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    follow(open_archive(environment), [line(1)])
    folders = [tmp_path / "arena-topo", tmp_path / "arena-topo/logs"]
    for folder in folders:
        folder.chmod(0o777)
    assert served(open_archive(environment)) == [line(1)]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


def test_a_user_without_a_home_is_told_that_nothing_is_kept() -> None:
    told: list[str] = []
    archive = open_archive({"HOME": ""}, tell=told.append)
    follow(archive, [line(1)])
    assert len(told) == 1
    assert "neither XDG_STATE_HOME nor HOME is set" in told[0]


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_kept_logs import JOB, SERVER, Archive, Saving, line
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
archive = Archive(Path(sys.argv[2]), tell=print)
saving = Saving(Path(sys.argv[3]), tell=print)
with archive.keeping(SERVER, JOB, whole=True) as keeping:
    for at in range(9):
        keeping._flushed = 0
        keeping.write([line(at, str(at) * 800)])
        saving.write([line(at, str(at) * 800)])
print(saving.error)
"""


def test_a_full_disk_ends_the_keeping_and_leaves_what_fits(tmp_path: Path) -> None:
    places = [str(tmp_path / "logs"), str(tmp_path / "saved")]
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(Path(__file__).parent), *places],
        capture_output=True,
        text=True,
        check=True,
    )
    kept, saved, error = ran.stdout.splitlines()
    assert kept.startswith(f"the log is not kept in {places[0]}: File too large")
    assert saved == f"{error}: File too large"
    assert "train-launcher-abc.log" in error
    assert [one[:1] for one in texts(Archive(tmp_path / "logs"))] == [b"%d" % at for at in range(5)]


@pytest.mark.parametrize(
    ("text", "most"), [("", 1 << 30), ("off", 0), ("0", 0), ("500M", 500 << 20), ("4GiB", 4 << 30)]
)
def test_a_variable_turns_keeping_off_or_bounds_it(tmp_path: Path, text: str, most: int) -> None:
    archive = open_archive({"XDG_STATE_HOME": str(tmp_path), ARCHIVE_VARIABLE: text})
    assert archive.most == most
    follow(archive, [line(1)])
    assert bool(archive.kept(SERVER, "team", "train")) == (most > 0)


def test_a_size_that_is_none_is_the_users_error() -> None:
    with pytest.raises(UsageError) as caught:
        open_archive({ARCHIVE_VARIABLE: "much"})
    assert caught.value.message == f"{ARCHIVE_VARIABLE} is 'much'"


def test_with_keeping_off_what_was_kept_is_still_served(tmp_path: Path) -> None:
    follow(open_archive({"XDG_STATE_HOME": str(tmp_path)}), [line(1)])
    off = open_archive({"XDG_STATE_HOME": str(tmp_path), ARCHIVE_VARIABLE: "off"})
    follow(off, [line(2)])
    assert served(off) == [line(1)]


HEAD = JobHead(
    place="local",
    namespace="team",
    name="train",
    uid="u1",
    created=100.0,
    phase="SUCCEEDED",
    exit_code=0,
    slots=4,
    moved=(CHIEF,),
)


def written(folder: Path, data: Sequence[bytes], *, most: int | None = None) -> Path:
    """Write a log of several runs, as a supervisor does; the folder of the logs of its job."""
    place = folder / "pods" / CHIEF.pod
    place.parent.mkdir()
    for run in data:
        begin_run(place)
        writer = LogWriter(place, most)
        for start in range(0, len(run), 4096):
            writer.write(run[start : start + 4096])
    return place.parent


def moved(
    archive: Archive, folder: Path, data: Sequence[bytes], *, most: int | None = None
) -> Kept:
    """Write a log of several runs, and move it into the archive."""
    pods = written(folder, data, most=most)
    archive.adopt(HEAD, pods)
    assert not pods.exists()
    [kept] = archive.kept("local", "team", "train")
    return kept


def test_the_log_of_a_deleted_job_is_moved_into_the_archive(
    archive: Archive, tmp_path: Path
) -> None:
    kept = moved(archive, tmp_path, [b"first try\n", b"one\n\xff\ntwo without an end"])
    assert (kept.complete, kept.slots, kept.sources) == (True, 4, (CHIEF, replace(CHIEF, run=1)))
    lines = list(archive.lines(kept))
    assert [(one.text, one.source.run, one.fed) for one in lines] == [
        (b"first try", 0, True),
        (b"one", 1, True),
        (b"\xff", 1, True),
        (b"two without an end", 1, False),
    ]
    assert (kept.first, kept.last) == (lines[0].at, lines[-1].at)
    [last] = archive.lines(kept, LogOptions(tail=1))
    assert last == lines[-1]
    assert [one.text for one in archive.lines(kept, LogOptions(previous=True))] == [b"first try"]


@pytest.fixture
def elsewhere(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is on another file system than the jobs."""
    rename, root = os.rename, archive.root

    def refusing(old: Path, new: Path) -> None:
        if Path(old).is_relative_to(root) != Path(new).is_relative_to(root):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(old, new)

    monkeypatch.setattr(os, "rename", refusing)


@pytest.mark.usefixtures("elsewhere")
def test_a_log_is_moved_to_another_file_system(archive: Archive, tmp_path: Path) -> None:
    kept = moved(archive, tmp_path, [b"one\n", b"two\nthree"])
    assert [one.text for one in archive.lines(kept)] == [b"one", b"two", b"three"]
    assert {one.name for one in kept.folder.iterdir()} == {"job.json", "pods"}


@pytest.mark.usefixtures("elsewhere")
def test_an_archive_on_a_full_file_system_has_the_whole_log_or_nothing(
    archive: Archive, tmp_path: Path
) -> None:
    pods = written(tmp_path, [b"one\n", b"x" * 80_000])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            archive.adopt(HEAD, pods)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(archive.root.iterdir()) == []
    assert len(list(pods.rglob("*.log"))) == 2


@pytest.mark.parametrize("file_system", ["the same", "another"])
def test_a_log_that_is_moved_later_follows_the_runs_that_were_moved_before(
    archive: Archive, tmp_path: Path, file_system: str, request: pytest.FixtureRequest
) -> None:
    if file_system == "another":
        request.getfixturevalue("elsewhere")
    moved(archive, tmp_path, [b"one\n", b"two\n"])
    kept = moved(archive, tmp_path, [b"three\n", b"four\n"])
    lines = [(one.source.run, one.text) for one in archive.lines(kept)]
    assert lines == [(0, b"one"), (1, b"two"), (2, b"three"), (3, b"four")]
    assert list(kept.folder.rglob("pods/pods")) == []


@pytest.mark.parametrize("length", [1, 19, 29, 30])
def test_a_moved_log_that_a_crash_has_truncated_in_a_time_ends_with_the_line_before(
    archive: Archive, tmp_path: Path, length: int
) -> None:
    kept = moved(archive, tmp_path, [b"one\ntwo\n"])
    before = list(archive.lines(kept))
    [file] = kept.folder.rglob("*-0.log")
    with file.open("ab") as log:
        log.write(stamped(time.time_ns())[:length])
    [kept] = archive.kept("local", "team", "train")
    assert list(archive.lines(kept)) == before
    assert (kept.first, kept.last) == (before[0].at, before[1].at)


def test_a_log_that_is_moved_keeps_within_the_size_of_the_archive(tmp_path: Path) -> None:
    log = b"".join(b"%0100d\n" % number for number in range(50_000))
    small = Archive(tmp_path / "logs", most=1 << 20)
    kept = moved(small, tmp_path, [log], most=8 << 20)
    assert disk(small.root or tmp_path) < (1 << 20) + (1 << 16)
    rest = [one.text for one in small.lines(kept)]
    assert len(rest) > 1000
    assert rest == log.split(b"\n")[-len(rest) - 1 : -1]
    assert (kept.lacking, kept.complete) == ((CHIEF,), False)


def test_the_oldest_moved_logs_make_room(tmp_path: Path) -> None:
    log = b"".join(b"%0100d\n" % number for number in range(50_000))
    clock = [time.time()]
    archive = Archive(tmp_path / "logs", most=8 << 20, clock=lambda: clock[0])
    moved(archive, tmp_path, [log])
    clock[0] += 3600.0
    archive.tidy()
    assert archive.kept("local", "team", "train")
    archive.most = 1 << 20
    archive.tidy()
    assert not archive.kept("local", "team", "train")


def test_an_archive_that_is_off_removes_nothing(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "logs")
    moved(archive, tmp_path, [b"one\n"])
    follow(archive, [line(1)])
    later = time.time() + 2 * AGE
    Archive(archive.root, most=0, clock=lambda: later).tidy()
    assert archive.kept("local", "team", "train")
    assert texts(archive) == [b"line 1"]


def test_a_job_whose_folder_was_made_just_now_stays(archive: Archive) -> None:
    (archive.root / "new").mkdir(parents=True)
    archive.tidy()
    assert (archive.root / "new").is_dir()


def test_a_job_that_another_process_adds_to_just_now_stays(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    follow(Archive(root), [line(1)])
    head = newest(Archive(root)).folder / "job.json"
    later = time.time() + 2 * AGE

    def clock() -> float:
        """The time, which is read after all jobs were measured."""
        os.utime(head, (later, later))
        return later

    Archive(root, clock=clock).tidy()
    assert texts(Archive(root)) == [b"line 1"]


def test_a_job_whose_folder_cannot_be_read_now_stays(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(archive, [line(1)])

    scandir, errors = os.scandir, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def failing_once(*folder: Any) -> Any:
        if errors:
            raise errors.pop()
        return scandir(*folder)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing_once)
        archive.tidy()
    assert errors == []
    assert texts(archive) == [b"line 1"]


@pytest.mark.parametrize("pod", ["a\0b", "../../x", "/etc", "", "..", "x" * 300])
def test_a_pod_of_a_moved_log_is_a_folder_of_its_job(tmp_path: Path, pod: str) -> None:
    heard: list[str] = []
    archive = Archive(tmp_path / "logs", tell=heard.append)
    file = moved(archive, tmp_path, [b"one\n"]).folder / "job.json"
    head = json.loads(file.read_text())
    head["moved"][0]["pod"] = pod
    file.write_text(json.dumps(head))
    assert archive.kept("local", "team", "train") == ()
    assert "it names a pod that no folder can be named after" in heard[0]


@pytest.mark.parametrize("odd", ["pipe", "folder", "nothing", "garbage"])
def test_an_odd_file_among_moved_logs_stops_no_reader(
    archive: Archive, tmp_path: Path, odd: str
) -> None:
    kept = moved(archive, tmp_path, [b"one\n"])
    [file] = kept.folder.rglob("*-0.log")
    file.unlink()
    if odd == "pipe":
        os.mkfifo(file)
    elif odd == "folder":
        file.mkdir()
    elif odd == "garbage":
        file.write_bytes(b"\xff\0" * 1000)
    for found in archive.kept("local", "team", "train"):
        with suppress(ArenaError):
            list(archive.lines(found))


def test_files_that_make_no_sense_are_no_jobs(archive: Archive) -> None:
    follow(archive, [line(1)])
    folder = newest(archive).folder
    for text in ("", "{", "[]", '{"format": 1}'):
        (folder / "job.json").write_text(text)
        assert archive.kept(SERVER, "team", "train") == ()


def test_what_cannot_be_read_any_more_is_an_error_that_says_so(archive: Archive) -> None:
    follow(archive, [line(1)])
    kept = newest(archive)
    shutil.rmtree(kept.folder)
    with pytest.raises(ArenaError, match="the archived logs of train cannot be read"):
        list(archive.lines(kept))


def test_logs_are_saved_whole_and_byte_for_byte(tmp_path: Path) -> None:
    again = replace(CHIEF, run=1)
    namesake = replace(WORKER, uid="p9")
    side = replace(WORKER, container="side")
    saving = Saving(tmp_path / "a/b")
    saving.write([line(1, b"\xff\x00\x1b[31m\r"), line(2, "half"), line(2, "!")])
    saving.write([line(3, "again", again), line(4, "w", WORKER), line(4, "n", namesake)])
    saving.write([line(4, "r", replace(namesake, run=1))])
    saving.write([line(5, "s", side), line(5, "w", WORKER)])
    assert {one.name: one.read_bytes() for one in (tmp_path / "a/b").iterdir()} == {
        "train-launcher-abc.log": b"\xff\x00\x1b[31m\r\nhalf\n!\n",
        "train-launcher-abc.1.log": b"again\n",
        "train-worker-0.log": b"w\nw\n",
        "train-worker-0.p9.log": b"n\n",
        "train-worker-0.p9.1.log": b"r\n",
        "train-worker-0.side.log": b"s\n",
    }
    assert saving.summary == f"saved in {tmp_path}/a/b: logs: 6, lines: 9, 32 bytes"
    assert saving.error is None


def test_saved_lines_start_with_their_times_where_they_are_wanted(tmp_path: Path) -> None:
    saving = Saving(tmp_path, container="mpi", timestamps=True)
    saving.write([line(1, "a", fed=False), line(2, "b"), line(3, "c", fed=False)])
    saved = (tmp_path / "train-launcher-abc.mpi.log").read_bytes()
    assert saved == b"%b a\n%b b\n%b c" % (stamped(1), stamped(2), stamped(3))


def test_a_folder_in_which_something_is_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError) as wrong:
        Saving(tmp_path)
    assert wrong.value.message == f"{tmp_path} is not empty"
    assert wrong.value.why == "mine.txt exists, and no file is overwritten"


def test_a_file_that_somebody_puts_there_meanwhile_is_never_written_over(tmp_path: Path) -> None:
    told: list[str] = []
    saving = Saving(tmp_path, tell=told.append)
    elsewhere = tmp_path.parent / "elsewhere"
    (tmp_path / f"{CHIEF.pod}.log").write_text("mine")
    (tmp_path / f"{WORKER.pod}.log").symlink_to(elsewhere)
    saving.write([line(1), line(2, "", WORKER)])
    assert (tmp_path / f"{CHIEF.pod}.log").read_text() == "mine"
    assert not elsewhere.exists()
    assert told == [f"not all of the log is saved in {tmp_path}/{CHIEF.pod}.log: File exists"]


def test_pods_with_odd_names_are_saved_in_the_folder(tmp_path: Path) -> None:
    odd = ["../x", "/etc/passwd", ".hidden", "..", "", "\x1b[2J\n"]
    saving = Saving(tmp_path / "here")
    saving.write([line(1, "", Source(pod=one, uid=one)) for one in odd])
    assert saving.error is None
    assert [one for one in tmp_path.rglob("*") if one.is_file() and one.parent.name != "here"] == []
    assert len(list((tmp_path / "here").iterdir())) == len(odd)


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="the logs cannot be saved in"):
        Saving(tmp_path / "file")


# ---------------------------------------------------------------- damage


AGAIN = replace(JOB, uid="u2", created=200.0)


def told_archive(root: Path) -> tuple[Archive, list[str]]:
    told: list[str] = []
    return Archive(root, tell=told.append), told


ODD_TEXTS = {
    "nothing": b"",
    "cut": b'{"format": 1, "pl',
    "no object": b"[]",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "many digits": b'{"format": 1' + b"0" * 5000 + b"}",
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_a_job_whose_head_is_damaged_is_named_and_the_others_are_served(
    tmp_path: Path, text: bytes
):
    archive, told = told_archive(tmp_path / "logs")
    follow(archive, [line(1, "first")])
    head = newest(archive).folder / "job.json"
    follow(archive, [line(2, "second")], job=AGAIN)
    head.write_bytes(text)
    (kept,) = archive.kept(SERVER, "team", "train")
    assert [one.text for one in archive.lines(kept)] == [b"second"]
    assert archive.kept(SERVER, "team", "train") == (kept,)
    assert len(told) == 1
    assert told[0].startswith(f"{head.parent} is left out: ")
    follow(archive, [line(3, "third")])
    assert len(archive.kept(SERVER, "team", "train")) == 2


ODD = [None, [], {}, [[1]], {"a": 1}, -1, 1.5, True, "", "x" * 300, "\ud800", 1e300, 10**30]


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("file", ["job", "log"])
def test_no_value_in_a_head_stops_anybody(tmp_path: Path, file: str, odd: object):
    archive, _told = told_archive(tmp_path / "logs")
    follow(archive, [line(1, "chief"), line(2, "", WORKER)], job=OVER, whole=True)
    folder = newest(archive).folder
    name = folder / "job.json" if file == "job" else next(folder.glob("train-worker-0*.log"))
    head, feed, rows = name.read_bytes().removeprefix(b"# ").partition(b"\n")
    sound, before = json.loads(head), b"# " if rows else b""
    for key in sound:
        name.write_bytes(before + json.dumps({**sound, key: odd}).encode() + feed + rows)
        for kept in archive.kept(SERVER, "team", "train"):
            assert len(list(archive.lines(kept))) in {1, 2}
            notices.archive_note(kept, requested=True, older=1, root=archive.root)
            notices.archived_error(kept)
            lines = LineAttributor(slots=kept.slots or None)
            saving = Saving(tmp_path / f"saved-{key}")
            for one in archive.lines(kept):
                lines.entry(one)
                saving.write([one])
            shutil.rmtree(tmp_path / f"saved-{key}")


def test_a_log_whose_head_is_damaged_is_named_and_the_others_are_served(tmp_path: Path):
    archive, told = told_archive(tmp_path / "logs")
    follow(
        archive,
        [line(1, "chief"), line(2, "", WORKER)],
        job=OVER,
        whole=True,
        ended=[CHIEF, WORKER],
    )
    assert newest(archive).complete
    (head,) = newest(archive).folder.glob("train-worker-0*.log")
    head.write_text('# {"format": 1, "pod": 7}\n')
    kept = newest(archive)
    assert (kept.sources, kept.complete) == ((CHIEF,), False)
    assert [one.text for one in archive.lines(kept)] == [b"chief"]
    assert [one.partition(" is left")[0] for one in told] == [str(head)]


@pytest.mark.parametrize("at", [b"9" * 20, b"2026", b"2026-13-01T00:00:00Z", b"1e9", b"", b"#"])
def test_a_row_without_a_time_is_left_out(tmp_path: Path, at: bytes):
    archive = Archive(tmp_path / "logs")
    follow(archive, [line(1, "first"), line(2, "last")], whole=True)
    (file,) = newest(archive).folder.glob("*.log")
    head, first, last = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(head + first + at + b" text\n" + last)
    assert texts(archive) == [b"first", b"last"]
    assert notices.archive_note(newest(archive), requested=True, older=0, root=None).text
    cut = b"# cut " + at + b" 5\n"
    file.write_bytes(head + cut + first)
    assert texts(archive) == [b"first"]


def test_what_a_later_version_has_kept_is_served_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive, told = told_archive(tmp_path / "logs")
    with monkeypatch.context() as later:
        later.setattr("arena_topo.engines.archive.ARCHIVE_FORMAT", 2)
        follow(archive, [line(1, "first")])
    folder = newest(archive).folder
    about = json.loads((folder / "job.json").read_text())
    more = {**about, "format": 2, "phase": "RESTARTING", "mood": {"good": True}}
    (folder / "job.json").write_text(json.dumps(more))
    (log,) = folder.glob("*.log")
    head, _, rows = log.read_bytes().partition(b"\n")
    source = {**json.loads(head.removeprefix(b"# ")), "format": 2, "mood": "good"}
    log.write_bytes(b"# %b\n# mood good\n%b" % (json.dumps(source).encode(), rows))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert texts(archive) == [b"first"]
    assert newest(archive).phase == "RESTARTING"
    follow(archive, [line(2, "second")])
    assert sorted(
        one.text for kept in archive.kept(SERVER, "team", "train") for one in archive.lines(kept)
    ) == [b"first", b"second"]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert told == []


def test_a_damaged_archive_is_a_warning_of_the_command(
    run: Callable[..., tuple[int, str, str]],
):
    here = ("--backend=local", "--emulate=dgx-1-v100:1", "-n", "team")
    with closing(open_backend(Options(backend="local", emulate="dgx-1-v100:1"))) as engine:
        place = engine.place
    archive = open_archive(os.environ)
    for job in (JOB, AGAIN):
        with archive.keeping(place, job) as keeping:
            keeping.write([line(1, f"of {job.uid}")])
    newest_first = archive.kept(place, "team", "train")
    damaged = newest_first[0].folder / "job.json"
    damaged.write_text("{}")
    code, out, err = run("logs", "train", "--kept", *here)
    assert (code, out) == (0, "of u1\n")
    (newest_first[1].folder / "job.json").write_text('{"format": 1, "slots": []}')
    code, out, err = run("logs", "train", "--kept", *here)
    assert (code, out) == (1, "")
    assert f"warning: {newest_first[1].folder} is left out: " in err
    assert "error: nothing is archived of the logs of train" in err
