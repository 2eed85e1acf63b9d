"""What is kept of logs, and held of those that are read, is bounded whatever they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from replacing import replace

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines import archive as kept
from arena_topo.engines.archive import Archive
from arena_topo.engines.lines import Line, LogTurn, Notice, Source
from arena_topo.joblogs import window
from arena_topo.joblogs.log_request import LogRequest
from arena_topo.joblogs.log_text import LogText, log_line
from arena_topo.joblogs.pipeline import Pipeline

JOB = JobStatus(uid="u1", name="train", namespace="team", phase=Phase.RUNNING, created=100.0)
CHIEF = Source(pod="train-launcher", uid="p1", container="mpi", chief=True)
WORKERS = 64


def test_one_log_stays_within_its_bound_where_the_archive_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept, "MAX_LOG_FILE_BYTES", 2 << 20)
    archive = Archive(tmp_path / "logs")
    with archive.keeping("cluster", JOB) as keeping:
        for at in range(1, 101):
            keeping.write([Line(CHIEF, at, b"", b"x" * 60_000)])
    [one] = archive.kept("cluster", "team", "train")
    [log] = one.folder.glob("*.log")
    assert 1 << 20 < log.stat().st_size < 2 << 20
    assert [line.at for line in archive.lines(one)][-1] == 100


def test_a_long_follow_makes_room_by_removing_the_oldest_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept, "_TOUCH", 0.0)
    monkeypatch.setattr(kept, "SOON", 0.0)
    archive = Archive(tmp_path / "logs", most=1 << 20)
    with archive.keeping("cluster", replace(JOB, name="old", uid="u0")) as keeping:
        keeping.write([Line(CHIEF, 1, b"", b"x" * 200_000)])
    [old] = archive.kept("cluster", "team", "old")
    for path in old.folder.iterdir():
        os.utime(path, (path.stat().st_mtime - 2 * kept.IN_USE,) * 2)
    with archive.keeping("cluster", JOB) as keeping:
        assert archive.kept("cluster", "team", "old")
        for at in range(1, 10):
            keeping.write([Line(CHIEF, at, b"", b"x" * 100_000)])
        assert not archive.kept("cluster", "team", "old")


@pytest.mark.parametrize("pair", [b"1;", b"38;5;", b"0"])
def test_no_colour_is_so_long_that_it_is_waited_for_or_obeyed(pair: bytes):
    endless = b"\x1b[" + pair * 500
    text = LogText(colours=True)
    shown = b"".join(text.feed(endless[at : at + 1]) for at in range(len(endless)))
    assert len(shown) > len(endless) - 100
    text.end()
    for some in (text.feed(endless + b"m\n"), log_line(endless + b"m", colours=True).encode()):
        assert b"\x1b[" not in some
        assert b"\\x1b[" in some


def test_what_is_held_of_many_workers_is_bounded_though_one_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    """64 workers of which one, and the launcher, hold up all the others; nothing is shown."""
    monkeypatch.setattr(window, "MOST_LINES", 4000)
    pipeline = Pipeline(LogRequest(all_pods=True, fold=True), slots=1, total=WORKERS, whole=True)
    names = [(one, f"train-worker-{one}") for one in range(WORKERS)]
    workers = [Source(pod=name, uid=name, worker=one) for one, name in names]
    for one in (CHIEF, *workers):
        pipeline.add_notice(Notice(turn=LogTurn.JOINED, source=one))
    came = shown = most = 0
    for number in range(400):
        batch = [Line(one, 10 + number, b"", b"step %d" % number) for one in workers[1:]]
        came += len(batch)
        shown += sum(one.total for one in pipeline.put(batch, number / 1000))
        most = max(most, came - shown)
    assert 2000 < most <= 5000
    shown += sum(one.total for one in pipeline.remaining())
    assert shown == came
