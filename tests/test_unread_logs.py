"""Logs of which something cannot be read, or not just now: nothing is lost without a word."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi
from fake_operator import FakeOperator
from replacing import replace
from test_backends_logs import FOLLOW, Reader, is_chief
from test_log_streams import LAUNCHER, WORKER, opened, running

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.archive import Archive, Kept
from arena_topo.engines.kubernetes import containerlog
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.engines.kubernetes.log_position import Lines, ReadPosition
from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Source
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, NotFound, UsageError
from arena_topo.joblogs import follow as logs
from arena_topo.joblogs import notices, window
from arena_topo.joblogs.follow import BREAK_NOTE_INTERVAL, FollowState
from arena_topo.joblogs.log_request import LogRequest
from arena_topo.joblogs.notices import LogNote
from arena_topo.reasons import launcher_log

ALL = LogRequest(all_pods=True)
SOURCE = Source(pod=LAUNCHER, uid="1", chief=True)
OVER = JobStatus(
    uid="u",
    name="demo",
    namespace="default",
    phase=Phase.SUCCEEDED,
    created=100.0,
    exit_code=0,
)


@pytest.fixture
def backend(api: FakeApi, tmp_path: Path) -> KubernetesBackend:
    return opened(api, tmp_path)


class Shown:
    """What is shown of the logs of `demo`, in how many seconds each line, and how that ends."""

    def __init__(self, backend: KubernetesBackend, asked: LogRequest) -> None:
        self.told: list[LogNote] = []
        self.texts: list[str] = []
        self.error: ArenaError | None = None
        shown = logs.RequestedLines(backend, "demo", "default", asked, tell=self.told.append)
        try:
            for batch in shown:
                self.texts += [one.text.decode() for one in batch]
                if batch:
                    self.told.append(LogNote(text=f"{len(batch)} lines"))
        except ArenaError as error:
            self.error = error
        self.end = shown.end

    def notes(self) -> list[str]:
        return [one.text for one in self.told if not one.text.endswith(" lines")]


def second(number: int) -> str:
    return f"2026-11-21T07:00:{number:02}.000000000Z"


# Times that do not help.


def body(*lines: tuple[int, str]) -> bytes:
    return "".join(f"{second(at)} {text}\n" for at, text in lines).encode()


def said(lines: Sequence[Line]) -> list[str]:
    return [one.text.decode() for one in lines]


def test_behind_a_clock_that_was_set_back_no_line_comes_twice():
    place = ReadPosition()
    before = [(10, "a"), (11, "b"), (5, "c"), (6, "d")]
    assert said(Lines(place, SOURCE).feed(body(*before))) == ["a", "b", "c", "d"]
    # All of it is asked for.
    assert place.since is None
    again = Lines(place, SOURCE)
    assert said(again.feed(body(*before, (7, "e")))) == ["e"]
    assert said(again.finish()) == []
    Lines(place, SOURCE).feed(body(*before, (7, "e"), (12, "f")))
    assert place.since == "2026-11-21T07:00:12Z"


def test_after_a_clock_was_set_back_the_end_of_a_job_brings_no_line_again(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    for at, text in ((10, "a"), (11, "b"), (5, "c"), (6, "d"), (7, "e")):
        api.write(LAUNCHER, text, at=second(at))
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("e")
        api.cut_logs()
        reader.until_turn(LogTurn.BROKEN)
        operator.finish("demo")
        reader.until_done()
    assert reader.texts() == ["a", "b", "c", "d", "e"]


# Who does not answer.


def hang(api: FakeApi, pod: str) -> None:
    api.fail(rf"GET .*/{pod}/log", times=1000, silent=True)


def test_one_log_that_does_not_come_holds_no_other_up_and_is_named(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(containerlog, "_ANSWER", 1.5)
    monkeypatch.setattr(window, "BACKLOG_SECONDS", 0.5)
    running(backend, operator, "from the launcher", workers=2)
    api.write("demo-worker-1", "from worker 1", at=second(1))
    hang(api, WORKER)
    shown = Shown(backend, ALL)
    assert sorted(shown.texts) == ["from the launcher", "from worker 1"]
    [last] = shown.notes()
    assert last.startswith(f"the log of {WORKER} cannot be read: ")
    # The lines that are there are shown before the missing one is given up.
    assert [one.text for one in shown.told].index(last) == len(shown.told) - 1
    assert shown.error is not None
    assert shown.error.exit_code == 1
    assert shown.error.message == f"the log of {WORKER} could not be read to the end"
    assert "does not answer" in (shown.error.why or "")
    assert "kubectl describe pod" in (shown.error.hint or "")


def test_the_only_log_that_does_not_come_is_an_error(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(containerlog, "_ANSWER", 0.5)
    running(backend, operator, "unread")
    hang(api, LAUNCHER)
    shown = Shown(backend, LogRequest(tags=True))
    assert shown.texts == []
    assert shown.error is not None
    assert LAUNCHER in shown.error.message


def ended(operator: FakeOperator, code: int = 0) -> None:
    time.sleep(0.5)
    operator.finish("demo", code)


def follow(
    backend: KubernetesBackend, operator: FakeOperator, asked: LogRequest, code: int = 0
) -> Shown:
    """What is shown of a job that ends half a second later."""
    thread = threading.Thread(target=ended, args=(operator, code))
    thread.start()
    try:
        return Shown(backend, asked)
    finally:
        thread.join()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is short, and longer than a busy machine lets its processes wait."""
    for module, name, seconds in (
        (containerlog, "_SILENCE", 2.0),
        (containerlog, "_ANSWER", 2.5),
        (containerlog, "_LONGEST", 0.2),
        (logs, "AFTER_END", 4.0),
        (logs, "MISSING_LOG_GRACE", 4.0),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("fault", [{"status": 502, "retry_after": 9999}, {"silent": True}])
def test_a_launcher_whose_log_is_never_read_fails_a_follow(
    fault: dict[str, Any],
    api: FakeApi,
    backend: KubernetesBackend,
    operator: FakeOperator,
):
    running(backend, operator, "unread")
    api.fail(rf"GET .*/{LAUNCHER}/log", times=1000, **fault)
    shown = follow(backend, operator, LogRequest(options=FOLLOW, to_archive=False))
    assert shown.texts == []
    assert shown.error is not None
    assert shown.error.message == f"the log of {LAUNCHER} could not be read to the end"
    assert shown.error.why
    assert shown.error.exit_code == 1


@pytest.mark.usefixtures("hasty")
def test_a_job_that_failed_says_so_though_its_log_could_not_be_read(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator, "unread")
    hang(api, LAUNCHER)
    shown = follow(backend, operator, LogRequest(options=FOLLOW, to_archive=False), code=7)
    assert shown.error is None
    assert shown.notes()[-1].startswith(f"the log could not be read to the end ({LAUNCHER}): ")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("fault", [{"status": 502, "retry_after": 9999}, {"silent": True}])
def test_a_worker_whose_log_is_never_read_is_named_at_the_end(
    fault: dict[str, Any],
    api: FakeApi,
    backend: KubernetesBackend,
    operator: FakeOperator,
):
    running(backend, operator, "hello")
    api.fail(rf"GET .*/{WORKER}/log", times=1000, **fault)
    shown = follow(backend, operator, LogRequest(all_pods=True, options=FOLLOW, to_archive=False))
    assert shown.texts == ["hello"]
    assert shown.error is None
    warned = [one.text for one in shown.told if one.warns]
    assert len(warned) == 1
    assert WORKER in warned[0]


@pytest.mark.usefixtures("hasty")
def test_a_worker_that_runs_and_says_nothing_is_no_trouble(
    backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator, "hello")
    shown = follow(backend, operator, LogRequest(all_pods=True, options=FOLLOW, to_archive=False))
    assert (shown.texts, shown.notes(), shown.error) == (["hello"], [], None)


def test_logs_none_of_which_may_be_read_are_an_error(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator, "unread", workers=2)
    api.deny("get pods/log default")
    for asked in (ALL, replace(ALL, options=FOLLOW, to_archive=False)):
        shown = Shown(backend, asked)
        assert isinstance(shown.error, AccessDenied)
        assert shown.texts == []


def test_a_log_that_the_server_does_not_have_is_asked_for_once(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator, "unread")
    api.fail(rf"GET .*/{LAUNCHER}/log", times=1000, status=404)
    api.requests.clear()
    assert launcher_log.read_log_end(backend, backend.job("demo", "default")) is None
    shown = Shown(backend, LogRequest())
    assert (isinstance(shown.error, NotFound), shown.texts) == (True, [])
    assert sum("/log" in one for one in api.requests) == 2


# What is known of what could not be read.

LOST = ClusterError("the connection broke")


def follow_state() -> FollowState:
    asked = LogRequest(all_pods=True, options=LogOptions(follow=True))
    return FollowState(replace(OVER, phase=Phase.RUNNING), asked, lambda _: True)


def incomplete(state: FollowState) -> list[Source]:
    return [one.source for one in state.incomplete_logs(None, done=True)]


def test_a_log_that_is_read_again_lacks_nothing():
    state = follow_state()
    state.add_notice(Notice(turn=LogTurn.BROKEN, source=SOURCE, error=LOST), 0.0)
    assert incomplete(state) == [SOURCE]
    state.add_notice(Notice(turn=LogTurn.RESUMED, source=SOURCE), 0.0)
    assert incomplete(state) == []


def test_a_break_is_news_once_and_again_after_half_a_minute():
    state = follow_state()
    told: list[float] = []
    for now in (0.0, 1.0, BREAK_NOTE_INTERVAL - 1, BREAK_NOTE_INTERVAL, BREAK_NOTE_INTERVAL + 1):
        state.add_notice(Notice(turn=LogTurn.BROKEN, source=SOURCE, error=LOST), now)
        told += [now] * len(state.pending_notes())
        state.add_notice(Notice(turn=LogTurn.RESUMED, source=SOURCE), now)
    assert told == [0.0, BREAK_NOTE_INTERVAL]
    for now in (90.0, 180.0, 270.0):
        # As long as it is broken nothing new has happened.
        state.add_notice(Notice(turn=LogTurn.BROKEN, source=SOURCE, error=LOST), now)
        told += [now] * len(state.pending_notes())
    assert told == [0.0, BREAK_NOTE_INTERVAL, 90.0]


def test_a_pod_that_was_deleted_lacks_what_was_not_read_before():
    state = follow_state()
    state.add_notice(Notice(turn=LogTurn.GONE, source=SOURCE), 0.0)
    assert incomplete(state) == []
    state.add_notice(Notice(turn=LogTurn.GONE, source=SOURCE, error=LOST), 0.0)
    [note] = notices.incomplete_log_notes(state.incomplete_logs(None, done=True))
    assert note.text == f"the log could not be read to the end ({LAUNCHER}): the connection broke"
    assert note.warns


def test_many_logs_that_lack_something_for_one_reason_are_one_note():
    state = follow_state()
    for index in range(64):
        source = Source(pod=f"demo-worker-{index}", uid=str(index), worker=index)
        state.add_notice(Notice(turn=LogTurn.BROKEN, source=source, error=LOST), 0.0)
    [note] = notices.incomplete_log_notes(state.incomplete_logs(None, done=True))
    assert note.text == (
        "64 logs could not be read to the end"
        " (demo-worker-0, demo-worker-1, demo-worker-2 and 61 more): the connection broke"
    )


# What was kept of jobs that are gone.


def keep(archive: Archive, place: str, uid: str, created: float) -> None:
    job = replace(OVER, uid=uid, created=created)
    with archive.keeping(place, job, whole=True) as keeping:
        keeping.write([Line(SOURCE, int(created) * 10**9, b"", b"hello")])
        keeping.close(job)


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def test_of_a_job_that_is_gone_older_ones_of_its_name_are_told_of(
    backend: KubernetesBackend, tmp_path: Path
):
    archive, told = Archive(tmp_path / "kept"), list[LogNote]()
    for uid in range(3):
        keep(archive, backend.place, str(uid), 1_000_000.0 + uid)
    shown = logs.RequestedLines(
        backend, "demo", "default", LogRequest(), tell=told.append, archive=archive
    )
    assert [one.text for batch in shown for one in batch] == [b"hello"]
    span = f"from {moment(1_000_002)} to {moment(1_000_002)}"
    [note] = told
    assert note.text == (
        "the pods of demo are gone: this is the archived log of the job that was created"
        f" {moment(1_000_002)}, {span}; the log may have gone on after that; 2 older jobs of that"
        f" name are kept in {archive.root}"
    )


def test_of_which_logs_lines_may_be_missing_is_told():
    note = notices.archive_note(
        Kept(
            folder=Path(), place="", namespace="default", name="demo", uid="", created=0.0,
            phase="", exit_code=None, slots=0, first=60 * 10**9, last=99 * 10**9,
            sources=(SOURCE,), lacking=(SOURCE,), complete=False,
        ),
        requested=True,
        older=0,
        root=None,
    )  # fmt: skip
    assert note.text == (
        f"this is the archived log of the job that was created {moment(0)}, from {moment(60)} to"
        f" {moment(99)}; lines may be missing of {LAUNCHER}"
    )


def test_what_was_kept_is_not_saved_over_files_that_are_there(
    backend: KubernetesBackend, tmp_path: Path
):
    archive = Archive(tmp_path / "kept")
    keep(archive, backend.place, "1", 1_000_000.0)
    (tmp_path / "saved").mkdir()
    taken = tmp_path / "saved" / f"{LAUNCHER}.log"
    taken.write_text("mine")
    asked = LogRequest(save=str(tmp_path / "saved"))
    with pytest.raises(UsageError, match="is not empty"):
        list(logs.RequestedLines(backend, "demo", "default", asked, archive=archive))
    assert [one.read_text() for one in taken.parent.iterdir()] == ["mine"]


def test_several_threads_that_ask_at_once_keep_their_connections(
    api: FakeApi, backend: KubernetesBackend, caplog: pytest.LogCaptureFixture
):
    together = threading.Barrier(3)
    api.before(r"GET .*/pods/", together.wait, times=3)

    def ask() -> None:
        with contextlib.suppress(NotFound):
            backend.api.get("/api/v1/namespaces/default/pods/none")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not [one for one in caplog.messages if "pool is full" in one]
