"""What is shown of the logs of a job, what is told beside it, and what ends it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from replacing import replace
from worlds import WORLDS, KubernetesWorld, LocalWorld, World, living_world

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.archive import Archive
from arena_topo.engines.goals import Start
from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Source
from arena_topo.errors import ArenaError, JobNotFound, NotFound, UsageError
from arena_topo.gang import submission
from arena_topo.joblogs import follow
from arena_topo.joblogs.follow import (
    AFTER_END,
    END_GRACE,
    MISSING_LOG_GRACE,
    POD_SILENCE,
    FollowState,
    JobPoller,
    RequestedLines,
)
from arena_topo.joblogs.log_request import End, LogRequest, NoLogYet
from arena_topo.joblogs.notices import DELETION_DELAY, LogNote
from arena_topo.joblogs.ranks import parse_only
from arena_topo.joblogs.view import Raw

FOLLOW = LogOptions(follow=True)


@pytest.fixture(params=[living_world, WORLDS["local"]], ids=["kubernetes", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with request.param(tmp_path) as opened:
        yield opened


@pytest.fixture
def local_world(tmp_path: Path) -> Iterator[World]:
    with WORLDS["local"](tmp_path) as opened:
        yield opened


@pytest.fixture
def still_world(tmp_path: Path) -> Iterator[World]:
    """A cluster in which nothing happens unless the test does it."""
    with WORLDS["kubernetes-v2beta1"](tmp_path) as opened:
        yield opened


def submit(world: World, name: str = "demo", **more: Any) -> None:
    if isinstance(world, KubernetesWorld):
        world.api.now = world.api.clock() + 1
    submission.submit(world.job(name, **more), world.backend, namespace="default")


class Showing:
    """One showing of the logs of `demo`, and all that was told of it."""

    def __init__(self, world: World, asked: LogRequest, archive: Archive | None = None) -> None:
        self.notes: list[LogNote] = []
        self.waits: list[NoLogYet | None] = []
        self.shown: RequestedLines = follow.RequestedLines(
            world.backend,
            "demo",
            "default",
            asked,
            tell=self.notes.append,
            waits=self.waits.append,
            archive=archive,
        )
        self.batches = iter(self.shown)
        self.texts: list[str] = []

    def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self.take(next(self.batches))

    def take(self, batch: Any) -> None:
        texts = (one.text.decode() for one in batch)
        self.texts += [one for one in texts if not one.startswith("arena-topo:")]

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.texts)

    def rest(self) -> list[str]:
        for batch in self.batches:
            self.take(batch)
        return self.texts

    def told(self) -> str:
        return "\n".join(one.text for one in self.notes)


def test_a_log_is_followed_from_the_first_line_to_the_end_of_the_job(world: World):
    submit(world)
    world.start("demo")
    world.say("demo", "hello")
    showing = Showing(world, LogRequest(options=FOLLOW))
    showing.until_said("hello")
    world.say("demo", "bye")
    world.finish("demo", 3)
    assert showing.rest() == ["hello", "bye"]
    assert showing.shown.end is End.JOB
    assert showing.shown.status is not None
    assert (showing.shown.status.phase, showing.shown.status.exit_code) == (Phase.FAILED, 3)


def test_the_log_of_a_job_that_does_not_exist_fails_at_once(world: World):
    for asked in (
        LogRequest(),
        LogRequest(options=FOLLOW),
        LogRequest(all_pods=True, options=FOLLOW),
    ):
        with pytest.raises(JobNotFound, match="no job demo in namespace"):
            Showing(world, asked).rest()


def test_a_followed_log_says_why_it_waits(still_world: World):
    submit(still_world)
    showing = Showing(still_world, LogRequest(options=FOLLOW))
    showing.until(lambda: bool(showing.waits))
    [waiting] = showing.waits
    assert waiting is not None
    assert waiting.reason
    still_world.start("demo")
    still_world.say("demo", "hello")
    showing.until_said("hello")
    assert showing.waits[-1] is None
    still_world.finish("demo")
    assert showing.rest() == ["hello"]


def test_while_nothing_is_written_the_screen_has_its_turn(world: World):
    submit(world)
    world.start("demo")
    showing = Showing(world, LogRequest(options=FOLLOW))
    assert [list(next(showing.batches)) for _ in range(3)][-1] == []
    world.finish("demo")
    showing.rest()


@pytest.mark.parametrize("opened", list(WORLDS))
def test_a_launcher_that_is_tried_again_is_followed_on(opened: str, tmp_path: Path):
    with WORLDS[opened](tmp_path) as world:
        _is_followed_on(world)


def _is_followed_on(world: World) -> None:
    submit(world, retry=1)
    world.start("demo")
    world.say("demo", "first try")
    showing = Showing(world, LogRequest(options=FOLLOW))
    showing.until_said("first try")
    world.retry("demo")
    world.say("demo", "second try")
    showing.until_said("second try")
    world.finish("demo")
    assert showing.rest() == ["first try", "second try"]
    assert showing.shown.end is End.JOB
    assert re.search("was restarted|is the launcher's next try|was created again", showing.told())


def test_a_job_that_is_deleted_while_it_is_followed_ends_with_an_error(world: World):
    submit(world)
    world.start("demo")
    world.say("demo", "last words")
    showing = Showing(world, LogRequest(options=FOLLOW))
    showing.until_said("last words")
    world.backend.delete("demo", "default")
    with pytest.raises(ArenaError, match="deleted while its log was followed") as lost:
        showing.rest()
    assert showing.texts == ["last words"]
    assert lost.value.exit_code == 1
    assert "logs --kept demo" in (lost.value.hint or "")
    assert showing.shown.end is End.LOST


def test_a_namesake_that_is_created_meanwhile_is_another_job(still_world: World):
    submit(still_world)
    still_world.start("demo")
    still_world.say("demo", "last words")
    showing = Showing(still_world, LogRequest(options=FOLLOW))
    showing.until_said("last words")
    still_world.backend.delete("demo", "default")
    submit(still_world)
    with pytest.raises(ArenaError) as lost:
        showing.rest()
    assert showing.texts == ["last words"]
    assert "logs --kept demo" in (lost.value.hint or "")


def test_a_namesake_is_told_from_the_job_by_its_uid(still_world: World):
    submit(still_world)
    job = still_world.backend.job("demo", "default")
    still_world.backend.delete("demo", "default")
    submit(still_world)
    backend = still_world.backend
    with backend.watching("default") as reads, JobPoller(backend, reads, job, keeps=True) as poller:
        end = time.monotonic() + 30
        while poller.lost is None:
            assert time.monotonic() < end, "nothing was noticed"
            time.sleep(0.01)
    assert list(poller.new_states()) == []
    assert poller.lost.message == "the job demo was deleted while its log was followed"
    assert poller.lost.hint == "arena-topo logs --kept demo -n default shows its archived log"


def test_what_was_not_kept_is_not_offered(local_world: World):
    submit(local_world)
    local_world.start("demo")
    showing = Showing(local_world, LogRequest(options=FOLLOW, to_archive=False))
    next(showing.batches)
    local_world.backend.delete("demo", "default")
    with pytest.raises(ArenaError) as lost:
        showing.rest()
    assert lost.value.hint is None


def test_a_pod_that_is_named_is_followed_to_its_own_end(local_world: World):
    submit(local_world)
    local_world.start("demo")
    job = local_world.backend.job("demo", "default")
    assert job.chief is not None
    local_world.say("demo", "hello")
    showing = Showing(local_world, LogRequest(instance=job.chief.name, options=FOLLOW))
    showing.until_said("hello")
    local_world.finish("demo", 3)
    assert showing.rest() == ["hello"]
    assert showing.shown.end is End.POD


def test_a_pod_that_the_job_has_not_is_told_with_the_one_most_like_it(world: World):
    submit(world)
    world.start("demo")
    for options in (LogOptions(), FOLLOW):
        with pytest.raises(NotFound, match="job demo has no pod worker-0"):
            Showing(world, LogRequest(instance="worker-0", options=options, tags=True)).rest()
    world.finish("demo")


def test_without_following_everything_that_is_there_is_read(world: World):
    submit(world)
    world.start("demo")
    world.say("demo", "one")
    followed = Showing(world, LogRequest(options=FOLLOW))
    followed.until_said("one")
    showing = Showing(world, LogRequest(all_pods=True))
    assert showing.rest() == ["one"]
    assert showing.shown.end is End.READ
    world.finish("demo")
    followed.rest()


def test_filters_look_at_what_was_said_without_the_tag(world: World):
    submit(world)
    world.start("demo")
    for text in ("[1,0]<stdout>:loss 1", "[1,1]<stdout>:time 2", "[1,1]<stdout>:loss 13", "loss"):
        world.say("demo", text)
    followed = Showing(world, LogRequest(options=FOLLOW))
    followed.until_said("loss")
    asked = LogRequest(include=(re.compile("^loss"),), exclude=(re.compile("13$"),))
    assert Showing(world, asked).rest() == ["loss 1", "loss"]
    world.finish("demo")
    followed.rest()


def test_ranks_that_the_job_has_not_are_a_mistake(local_world: World):
    submit(local_world, workers=2, gpus=1, gputopology=True)
    local_world.start("demo")
    with pytest.raises(UsageError, match="demo has no rank 2") as wrong:
        Showing(local_world, LogRequest(only=parse_only(["rank:0,2-9"]))).rest()
    assert wrong.value.why == "it has ranks 0-1"
    with pytest.raises(UsageError, match="demo has no worker 7"):
        Showing(local_world, LogRequest(only=parse_only(["worker:7"]))).rest()
    local_world.finish("demo")


def test_ranks_that_cannot_be_told_apart_are_told(local_world: World):
    submit(local_world, workers=2, gpus=1, gputopology=True)
    local_world.start("demo")
    local_world.say("demo", "hello")
    local_world.finish("demo")
    showing = Showing(local_world, LogRequest(only=parse_only(["rank:0"])))
    assert showing.rest() == []
    assert "1 line of the launcher left out: its log does not say" in showing.told()
    assert "--tag-output" in showing.told()


def test_a_rank_that_alone_speaks_is_known_by_the_tags_that_the_command_asks_for(world: World):
    job = world.job("demo", workers=2, gpus=1)
    job = replace(job, command=f": mpirun -prepend-rank -np 2 python t.py; {job.command}")
    submission.submit(job, world.backend, namespace="default")
    world.start("demo")
    for text in ("[1] Traceback", "= BAD TERMINATION"):
        world.say("demo", text)
    followed = Showing(world, LogRequest(options=FOLLOW, only=parse_only(["rank:1"])))
    followed.until_said("Traceback")
    assert Showing(world, LogRequest(only=parse_only(["rank:1"]))).rest() == ["Traceback"]
    other = Showing(world, LogRequest(only=parse_only(["rank:0"])))
    assert other.rest() == []
    assert other.told() == ("none of these has a line: the launcher's log has tags of rank 1 only")
    world.finish("demo")
    assert followed.rest() == ["Traceback"]
    assert followed.told() == ""


def test_what_was_asked_for_is_not_advised(world: World):
    job = world.job("demo", workers=2, gpus=1)
    job = replace(job, command=f": mpirun --tag-output python t.py; {job.command}")
    submission.submit(job, world.backend, namespace="default")
    world.start("demo")
    world.say("demo", "hello")
    followed = Showing(world, LogRequest(options=FOLLOW))
    followed.until_said("hello")
    showing = Showing(world, LogRequest(only=parse_only(["rank:0"])))
    showing.rest()
    assert showing.told() == (
        "1 line of the launcher left out: no tag of a rank, though the job's command asks for tags"
    )
    world.finish("demo")
    followed.rest()


def test_of_pods_that_are_gone_what_was_followed_is_shown(world: World, tmp_path: Path):
    # A local job's own folder has its log until the job is deleted.
    archive = Archive(tmp_path / "kept") if isinstance(world, KubernetesWorld) else None
    submit(world)
    world.start("demo")
    world.say("demo", "hello")
    showing = Showing(world, LogRequest(options=FOLLOW), archive)
    showing.until_said("hello")
    world.finish("demo")
    showing.rest()
    world.backend.delete("demo", "default")
    for asked in (
        LogRequest(),
        LogRequest(options=FOLLOW),
        LogRequest(all_pods=True),
        LogRequest(from_archive=True),
    ):
        again = Showing(world, asked, archive)
        assert again.rest() == ["hello"]
        assert again.shown.end is End.KEPT
        gone = "" if asked.from_archive else "the pods of demo are gone: "
        text = (
            rf"{gone}this is the archived log of the job that was created \S+ \S+,"
            r" from \S+ \S+ to \S+ \S+"
        )
        assert re.fullmatch(text, again.told())


def test_archived_logs_of_workers_that_are_gone_are_named_beside_a_launcher_that_is_there(
    still_world: World, tmp_path: Path
):
    archive = Archive(tmp_path / "kept")
    submit(still_world)
    still_world.start("demo")
    still_world.say("demo", "hello")
    status = still_world.backend.job("demo", "default")
    for uid, worker in (("before", 7), (status.uid, 9)):
        source = Source(pod=f"demo-worker-{worker}", uid=str(worker), worker=worker)
        with archive.keeping(still_world.backend.place, replace(status, uid=uid)) as keeping:
            keeping.write([Line(source=source, at=1, stamp=b"", text=b"was")])
    showing = Showing(still_world, LogRequest(all_pods=True), archive)
    assert showing.rest() == ["hello"]
    assert showing.told() == (
        "pods that are gone: demo-worker-9; arena-topo logs --kept --all demo -n default shows"
        " their archived logs"
    )


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        (FOLLOW, False),
        (LogOptions(follow=True, tail=1), True),
        (LogOptions(follow=True, since=10**9), True),
        (LogOptions(follow=True, since_time="2020-01-01T00:00:00Z"), True),
    ],
)
def test_of_what_was_kept_it_is_told_whether_it_begins_with_the_log(
    still_world: World, tmp_path: Path, options: LogOptions, *, cut: bool
):
    archive = Archive(tmp_path / "kept")
    submit(still_world)
    still_world.start("demo")
    still_world.say("demo", "hello")
    followed = Showing(still_world, LogRequest(options=options), archive)
    followed.until_said("hello")
    still_world.finish("demo")
    followed.rest()
    again = Showing(still_world, LogRequest(from_archive=True), archive)
    assert again.rest() == ["hello"]
    assert ("; lines may be missing of " in again.told()) is cut
    assert "it may have gone on" not in again.told()


def test_who_left_before_the_end_is_told_that_it_may_have_gone_on(
    still_world: World, tmp_path: Path
):
    archive = Archive(tmp_path / "kept")
    submit(still_world)
    still_world.start("demo")
    still_world.say("demo", "hello")
    left = Showing(still_world, LogRequest(options=FOLLOW), archive)
    left.until_said("hello")
    left.batches.close()
    again = Showing(still_world, LogRequest(from_archive=True), archive)
    assert again.rest() == ["hello"]
    assert again.told().endswith("; the log may have gone on after that")


def test_what_is_not_to_be_kept_is_not(world: World, tmp_path: Path):
    archive = Archive(tmp_path / "kept")
    submit(world)
    world.start("demo")
    world.say("demo", "hello")
    showing = Showing(world, LogRequest(options=FOLLOW, to_archive=False), archive)
    showing.until_said("hello")
    world.finish("demo")
    showing.rest()
    with pytest.raises(NotFound, match="nothing is archived of the logs of demo") as caught:
        Showing(world, LogRequest(from_archive=True), archive).rest()
    shown = "logs" if isinstance(world, LocalWorld) else "logs -f"
    assert caught.value.hint == f"arena-topo {shown} demo -n default"


def test_what_is_followed_is_saved_and_told_of(world: World, tmp_path: Path):
    submit(world)
    world.start("demo")
    world.say("demo", "hello")
    folder = tmp_path / "saved"
    asked = LogRequest(options=FOLLOW, save=str(folder), exclude=(re.compile("hello"),))
    showing = Showing(world, asked)
    world.say("demo", "shown")
    showing.until_said("shown")
    world.finish("demo")
    assert showing.rest() == ["shown"]
    [file] = folder.iterdir()
    assert file.read_text().endswith("hello\nshown\n")
    assert f"saved in {folder}: logs: 1" in showing.told()


def test_the_log_of_one_pod_is_copied_as_it_is(world: World):
    submit(world)
    world.start("demo")
    world.write("demo", b"\xff\x1b[2J\nlast")
    followed = Showing(world, LogRequest(options=FOLLOW, tags=True))
    world.finish("demo")
    for _ in followed.batches:
        pass
    unfinished = LogRequest(options=LogOptions(unfinished=True))
    shown = follow.RequestedLines(world.backend, "demo", "default", unfinished)
    written = b"".join(map(Raw().lines, shown))
    assert written.endswith(b"\xff\x1b[2J\nlast")
    assert shown.status is not None
    assert shown.status.name == "demo"


def test_a_pod_that_has_not_started_is_not_read(still_world: World):
    submit(still_world)
    with pytest.raises(NotFound, match="job demo has no pods yet") as early:
        Showing(still_world, LogRequest()).rest()
    assert "arena-topo logs -f demo -n default" in (early.value.hint or "")


def test_a_job_that_is_suspended_while_it_is_followed_says_who_starts_it(local_world: World):
    submit(local_world)
    local_world.start("demo")
    showing = Showing(local_world, LogRequest(options=FOLLOW))
    next(showing.batches)
    assert local_world.backend.pausing is not None
    local_world.backend.pausing.suspend("demo", "default")
    showing.until(lambda: any(one and one.start is Start.RESUME for one in showing.waits))


# ---------------------------------------------------------------- the state of a follow

LAUNCHER = Source(pod="demo-launcher", uid="1", chief=True)
WORKER = Source(pod="demo-worker-0", uid="2", worker=0)


def job(phase: Phase, *pods: Source, reason: str | None = None) -> JobStatus:
    instances = tuple(
        Instance(
            name=one.pod, uid=one.uid, status="", created=0.0, chief=one.chief, worker=one.worker
        )
        for one in pods
    )
    return JobStatus(
        uid="u",
        name="demo",
        namespace="default",
        phase=phase,
        created=0.0,
        instances=instances,
        reason=reason,
    )


def course(asked: LogRequest = LogRequest(options=FOLLOW), *pods: Source) -> FollowState:  # noqa: B008  frozen
    wanted = (lambda _: True) if asked.all_pods else (lambda source: source.chief)
    return FollowState(job(Phase.RUNNING, *pods), asked, wanted)


def ended(one: FollowState, status: JobStatus | None, now: float, **more: bool) -> End | None:
    return one.end(status, **{"lost": False, "done": True, **more}, now=now)


def test_after_the_end_of_a_job_its_last_lines_are_waited_for():
    one = course()
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    assert ended(one, job(Phase.RUNNING, LAUNCHER), 60.0) is None
    one.add_notice(Notice(turn=LogTurn.ENDED, source=LAUNCHER), 60.0)
    over = job(Phase.SUCCEEDED, LAUNCHER)
    assert ended(one, over, 60.1) is None
    assert ended(one, over, 60.1 + END_GRACE) is End.JOB


def test_a_launcher_that_still_speaks_is_not_cut_off():
    one = course()
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    over = job(Phase.SUCCEEDED, LAUNCHER)
    for second in range(100):
        one.add_lines([Line(source=LAUNCHER, at=1, stamp=b"", text=b"x")], float(second))
        assert ended(one, over, second + 0.9, done=False) is None
    assert ended(one, over, 99.0 + AFTER_END, done=False) is End.JOB


def test_a_connection_that_is_being_taken_up_again_is_waited_for():
    one = course()
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    one.add_notice(Notice(turn=LogTurn.BROKEN, source=LAUNCHER), 1.0)
    over = job(Phase.SUCCEEDED, LAUNCHER)
    assert ended(one, over, MISSING_LOG_GRACE, done=False) is None
    assert ended(one, over, 1.0 + MISSING_LOG_GRACE, done=False) is End.JOB


def test_workers_that_outlive_their_job_do_not_keep_it_open():
    one = course(LogRequest(all_pods=True, options=FOLLOW))
    for source in (LAUNCHER, WORKER):
        one.add_notice(Notice(turn=LogTurn.JOINED, source=source), 0.0)
    one.add_notice(Notice(turn=LogTurn.ENDED, source=LAUNCHER), 1.0)
    over = job(Phase.SUCCEEDED, LAUNCHER, WORKER)
    assert ended(one, over, 2.0, done=False) is None
    one.add_lines([Line(source=WORKER, at=1, stamp=b"", text=b"x")], 2.0 + AFTER_END - END_GRACE)
    assert ended(one, over, 2.0 + AFTER_END, done=False) is End.JOB


def test_the_launcher_that_comes_next_is_waited_for_when_the_job_is_over_already():
    one = course()
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    one.add_notice(Notice(turn=LogTurn.ENDED, source=LAUNCHER), 0.0)
    again = Source(pod="demo-launcher-2", uid="3", chief=True)
    over = job(Phase.FAILED, LAUNCHER, again)
    # Its log is not being read yet, so `done` is of the first one only.
    assert not one.is_complete(over, done=True)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=again), 1.0)
    assert one.is_complete(over, done=True)


def test_who_waits_is_told_once_for_each_reason():
    one = course()
    pending = job(Phase.PENDING, reason="no GPUs")
    assert one.wait_reason(pending, None, 0.0)[0]
    assert one.wait_reason(pending, None, 0.0) == (False, None)
    changed, waiting = one.wait_reason(pending, Start.QUEUE, 0.0)
    assert changed
    assert waiting is not None
    assert (waiting.reason, waiting.start) == ("no GPUs", Start.QUEUE)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    assert one.add_lines([Line(source=LAUNCHER, at=1, stamp=b"", text=b"x")], 0.0)
    assert one.wait_reason(pending, None, 0.0) == (False, None)


def test_a_pod_that_runs_and_is_silent_is_told_after_a_while():
    one = course()
    running = job(Phase.RUNNING, LAUNCHER)
    assert one.wait_reason(running, None, 10.0) == (False, None)
    assert one.wait_reason(running, None, 9.9 + POD_SILENCE) == (False, None)
    _, waiting = one.wait_reason(running, None, 10.0 + POD_SILENCE)
    assert waiting is not None
    assert waiting.reason == "it runs, but has written nothing yet"


def test_the_only_log_that_cannot_be_read_is_an_error_and_one_of_many_is_a_note():
    refused = NotFound("container nope is not valid")
    alone = course()
    alone.add_notice(Notice(turn=LogTurn.REFUSED, source=LAUNCHER, error=refused), 0.0)
    with pytest.raises(NotFound, match="nope"):
        ended(alone, job(Phase.RUNNING, LAUNCHER), 1.0)
    many = course(LogRequest(all_pods=True, options=FOLLOW))
    many.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    many.add_notice(Notice(turn=LogTurn.REFUSED, source=WORKER, error=refused), 0.0)
    assert ended(many, job(Phase.RUNNING, LAUNCHER, WORKER), 1.0) is None
    [note] = many.pending_notes()
    assert note.text == "the log of demo-worker-0 cannot be read: container nope is not valid"
    assert note.warns


def test_pods_that_are_started_anew_are_told_of_and_those_that_join_are_not():
    one = course(LogRequest(all_pods=True, options=FOLLOW), LAUNCHER)
    for source in (LAUNCHER, WORKER):
        assert one.add_notice(Notice(turn=LogTurn.JOINED, source=source), 5.0) == []
    [note] = one.add_notice(Notice(turn=LogTurn.JOINED, source=replace(WORKER, uid="9")), 99.0)
    assert note.text == "demo-worker-0 was created again"
    [note] = one.add_notice(Notice(turn=LogTurn.RESTARTED, source=replace(LAUNCHER, run=2)), 99.0)
    assert note.text == "demo-launcher was restarted: what follows is restart 2"
    assert one.pending_notes() == []


def test_a_pod_that_is_deleted_is_news_unless_the_job_is_over():
    for phase, news in (
        (Phase.RUNNING, ["demo-worker-0 is gone: its log ends here"]),
        (Phase.SUCCEEDED, []),
    ):
        one = course(LogRequest(all_pods=True, options=FOLLOW), LAUNCHER, WORKER)
        for source in (LAUNCHER, WORKER):
            one.add_notice(Notice(turn=LogTurn.JOINED, source=source), 0.0)
        one.add_notice(Notice(turn=LogTurn.GONE, source=WORKER), 1.0)
        assert one.pending_notes(1.0) == []
        ended(one, job(phase, LAUNCHER), 2.0, done=False)
        assert [note.text for note in one.pending_notes(1.0 + DELETION_DELAY)] == news
