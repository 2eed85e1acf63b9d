"""What is told beside the lines of a log: of pods that come, go and fail, and of waiting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from replacing import replace
from test_workflow_logs import FOLLOW, LAUNCHER, WORKER, Showing, course, ended, job, submit
from worlds import WORLDS, KubernetesWorld, LivingWorld, World, living_world

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.archive import Archive, JobHead
from arena_topo.engines.goals import Start, start_of, start_phrase
from arena_topo.engines.lines import Line, LogOptions, LogTurn, Notice, Source
from arena_topo.engines.log_files import LogWriter
from arena_topo.errors import ClusterError, NotFound
from arena_topo.joblogs.follow import AFTER_END, POD_SILENCE
from arena_topo.joblogs.log_request import SILENT, End, LogRequest
from arena_topo.joblogs.notices import DELETION_DELAY, GATHER
from arena_topo.joblogs.pod_selection import not_started_error
from arena_topo.joblogs.ranks import parse_only
from arena_topo.joblogs.view import Text
from arena_topo.manifests import PlacementForecast
from arena_topo.manifests.cause import CauseCode, because, in_words

ALL = LogRequest(all_pods=True, options=FOLLOW)
AGAIN = Source(pod="demo-launcher-again", uid="3", chief=True)
ALL_NOW = LogRequest(all_pods=True)
BEFORE = LogOptions(previous=True)
SECOND = 1_000_000_000
FEW = tuple(Source(pod=f"demo-worker-{index}", uid=f"w{index}", worker=index) for index in range(5))


@pytest.fixture
def still_world(tmp_path: Path) -> Iterator[KubernetesWorld]:
    """A cluster in which nothing happens unless the test does it."""
    with WORLDS["kubernetes-v2beta1"](tmp_path) as opened:
        assert isinstance(opened, KubernetesWorld)
        yield opened


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[LivingWorld]:
    with living_world(tmp_path) as opened:
        assert isinstance(opened, LivingWorld)
        yield opened


@pytest.fixture(params=[living_world, WORLDS["local"]], ids=["kubernetes", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with request.param(tmp_path) as opened:
        yield opened


def failed(status: JobStatus, source: Source, failure: str, **more: float) -> JobStatus:
    return replace(
        status,
        instances=tuple(
            replace(one, failure=failure, **more) if one.uid == source.uid else one
            for one in status.instances
        ),
    )


# ---------------------------------------------------------------- many alike


@pytest.mark.parametrize(
    ("turn", "late", "said"),
    [
        (LogTurn.GONE, DELETION_DELAY, "5 pods are gone: their logs end here"),
        (LogTurn.BROKEN, GATHER, "the connections to 5 logs are lost and taken up again: cut"),
    ],
)
def test_what_happens_to_many_pods_at_once_is_told_once(turn, late, said):
    one = course(ALL, LAUNCHER)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    error = ClusterError("cut") if turn is LogTurn.BROKEN else None
    start = 20.0
    for source in FEW:
        one.add_notice(Notice(turn=LogTurn.JOINED, source=source), 0.0)
    for number, source in enumerate(FEW):
        at = start + number * GATHER / 10
        assert one.add_notice(Notice(turn=turn, source=source, error=error), at) == []
    assert one.pending_notes(start + late - 0.01) == []
    [note] = one.pending_notes(start + late)
    assert note.text == f"{said}: demo-worker-0, demo-worker-1, demo-worker-2 and 2 more"
    assert one.pending_notes() == []


def test_what_happens_to_one_pod_is_told_of_that_pod():
    one = course(ALL, LAUNCHER, *FEW)
    for source in FEW:
        one.add_notice(Notice(turn=LogTurn.JOINED, source=source), 0.0)
    one.add_notice(Notice(turn=LogTurn.BROKEN, source=FEW[3], error=ClusterError("cut")), 0.0)
    one.add_notice(Notice(turn=LogTurn.GONE, source=FEW[4]), 0.0)
    assert [note.text for note in one.pending_notes()] == [
        "the connection to the log of demo-worker-3 is lost and taken up again: cut",
        "demo-worker-4 is gone: its log ends here",
    ]


# ---------------------------------------------------------------- tries of the launcher


def test_launchers_are_named_in_the_order_in_which_they_were_tried():
    status = job(Phase.RUNNING, AGAIN, LAUNCHER)
    first, second = status.instances
    status = replace(
        status,
        instances=(
            replace(first, created=20.0, launcher=True),
            replace(second, created=10.0, launcher=True, chief=False, failure="ended so"),
        ),
    )
    one = course(LogRequest(all_pods=True))
    one = type(one)(status, LogRequest(all_pods=True), lambda _: True)
    for source in (AGAIN, LAUNCHER):
        assert one.add_notice(Notice(turn=LogTurn.JOINED, source=source), 0.0) == []
    assert one.tries == [(LAUNCHER.pod, "1"), (AGAIN.pod, "3")]


def test_the_next_try_is_told_and_how_the_one_before_ended():
    known = failed(job(Phase.RUNNING, LAUNCHER), LAUNCHER, "ended with exit code 7")
    one = course(LogRequest(options=FOLLOW), LAUNCHER)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    one.update_job(known, 1.0)
    assert one.pending_notes() == []
    [note] = one.add_notice(Notice(turn=LogTurn.JOINED, source=AGAIN), 2.0)
    assert note.text == "demo-launcher-again is the launcher's next try"
    one.update_job(known, 3.0)
    assert [note.text for note in one.pending_notes()] == [
        "demo-launcher, the launcher's try before, ended with exit code 7"
    ]


def test_each_try_of_the_launcher_has_its_own_prefix(still_world: KubernetesWorld):
    submit(still_world, retry=1)
    still_world.start("demo")
    still_world.say("demo", "first")
    still_world.retry("demo")
    still_world.say("demo", "second")
    entries = [one for batch in Showing(still_world, ALL_NOW).shown for one in batch]
    shown = Text(prefixes=True).lines(entries).decode().splitlines()
    assert {line.replace(" ", "") for line in shown} == {"launcher|first", "launchertry2|second"}


def test_the_earlier_run_of_a_launcher_is_the_one_that_was_tried_before(
    still_world: KubernetesWorld,
):
    submit(still_world, retry=1)
    still_world.start("demo")
    still_world.say("demo", "first")
    still_world.retry("demo")
    still_world.say("demo", "second")
    assert Showing(still_world, LogRequest(options=BEFORE, tags=True)).rest() == ["first"]
    assert Showing(still_world, LogRequest(tags=True)).rest() == ["second"]


def test_a_launcher_that_was_not_tried_before_has_no_earlier_run(still_world: KubernetesWorld):
    submit(still_world)
    still_world.start("demo")
    with pytest.raises(NotFound, match="has no earlier run"):
        Showing(still_world, LogRequest(options=BEFORE)).rest()


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(timestamps=True)])
def test_a_container_that_waits_in_a_running_pod_has_no_log_yet(
    still_world: KubernetesWorld, options: LogOptions
):
    submit(still_world)
    still_world.start("demo")
    name = still_world.operator.launcher("demo")["metadata"]["name"]
    with still_world.api.edit("Pod", name, "default") as pod:
        status = pod["status"]["containerStatuses"][0]
        status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    with pytest.raises(NotFound, match=f"pod {name} has no log yet") as none:
        Showing(still_world, LogRequest(options=options)).rest()
    assert none.value.why == "its status is CrashLoopBackOff"
    with pytest.raises(NotFound, match="has no log of a container sidecar"):
        Showing(still_world, LogRequest(options=replace(options, container="sidecar"))).rest()


# ---------------------------------------------------------------- pods that fail


def test_a_pod_that_is_evicted_while_it_is_followed_is_told_of(alive: LivingWorld):
    submit(alive, workers=2)
    alive.start("demo")
    showing = Showing(alive, ALL)
    next(showing.batches)
    alive.cluster.evict("demo-worker-1")
    showing.until(lambda: "evicted" in showing.told())
    assert (
        "demo-worker-1 was evicted: The node was low on resource: memory. Threshold quantity:"
        " 100Mi, available: 60Mi." in showing.told().splitlines()
    )


def test_a_pod_that_is_named_is_not_left_before_it_is_known_how_it_ended(alive: LivingWorld):
    submit(alive, workers=2)
    alive.start("demo")
    # The look that sees it comes when the log has ended, not when it is due.
    alive.backend.look_every = 60.0
    showing = Showing(alive, LogRequest(instance="demo-worker-1", options=FOLLOW))
    next(showing.batches)
    alive.cluster.evict("demo-worker-1")
    showing.rest()
    assert showing.shown.end is End.POD
    assert "demo-worker-1 was evicted: " in showing.told()


def test_a_launcher_that_is_evicted_ends_the_follow_with_that_as_the_reason(alive: LivingWorld):
    submit(alive, workers=2)
    alive.start("demo")
    showing = Showing(alive, LogRequest(options=FOLLOW))
    next(showing.batches)
    chief = alive.backend.job("demo", "default").chief
    assert chief is not None
    alive.cluster.evict(chief.name)
    showing.rest()
    failure = showing.shown.failure
    assert failure is not None
    assert failure.why == (
        "the launcher was evicted: The node was low on resource: memory. Threshold quantity:"
        f" 100Mi, available: 60Mi (exit code {failure.exit_code})"
    )


def test_how_a_pod_ended_is_waited_for_no_longer_than_it_may_take():
    one = course(LogRequest(instance=WORKER.pod, options=FOLLOW))
    status = job(Phase.RUNNING, LAUNCHER, WORKER)
    one = type(one)(status, LogRequest(instance=WORKER.pod, options=FOLLOW), WORKER.__eq__)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=WORKER), 0.0)
    one.add_notice(Notice(turn=LogTurn.ENDED, source=WORKER), 1.0)
    assert ended(one, status, 1.1) is None
    assert ended(one, status, 1.0 + AFTER_END) is End.POD


def test_pods_that_end_with_their_job_are_no_news():
    status = job(Phase.FAILED, LAUNCHER, WORKER)
    over = failed(failed(status, LAUNCHER, "x", finished=10.0), WORKER, "y", finished=12.0)
    one = course(ALL, LAUNCHER, WORKER)
    one.update_job(over, 0.0)
    assert one.pending_notes() == []
    other = course(ALL, LAUNCHER, WORKER)
    other.update_job(failed(over, WORKER, "ended with exit code 9", finished=8.0), 0.0)
    assert [note.text for note in other.pending_notes()] == ["demo-worker-0 ended with exit code 9"]


# ---------------------------------------------------------------- waiting


def test_a_log_that_is_open_and_empty_is_told_of_and_one_that_had_lines_is_not():
    one = course()
    running = job(Phase.RUNNING, LAUNCHER)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    assert one.wait_reason(running, None, 0.0) == (False, None)
    _, waiting = one.wait_reason(running, None, POD_SILENCE)
    assert waiting is not None
    assert (waiting.reason, waiting.what) == (SILENT, "runs, but has written nothing yet")
    assert not one.add_lines([], POD_SILENCE)
    assert one.add_lines([Line(source=LAUNCHER, at=1, stamp=b"", text=b"x")], POD_SILENCE)
    # The stream may end before the pod does.
    one.add_notice(Notice(turn=LogTurn.ENDED, source=LAUNCHER), POD_SILENCE)
    for second in range(9):
        assert one.wait_reason(running, None, 2 * POD_SILENCE + second) == (False, None)


def test_a_job_whose_pods_have_ended_does_not_seem_to_wait():
    one = course()
    status = job(Phase.RUNNING, LAUNCHER)
    over = replace(status, instances=tuple(replace(p, finished=1.0) for p in status.instances))
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    one.add_lines([Line(source=LAUNCHER, at=1, stamp=b"", text=b"x")], 0.0)
    one.add_notice(Notice(turn=LogTurn.ENDED, source=LAUNCHER), 0.0)
    assert one.wait_reason(over, None, 9.0) == (False, None)


def test_a_suspended_job_is_called_suspended():
    status = replace(job(Phase.SUSPENDED), reason="`arena-topo resume` starts it")
    _, waiting = course().wait_reason(status, Start.RESUME, 0.0)
    assert waiting is not None
    assert waiting.what == "is suspended"
    held = replace(
        status, forecast=PlacementForecast(state="held", cause=in_words("node a is lost"))
    )
    _, waiting = course().wait_reason(held, Start.RESUME, 0.0)
    assert waiting is not None
    assert waiting.what == "is suspended: node a is lost"


def test_a_job_that_is_suspended_while_nothing_was_written_is_told_once_with_who_starts_it():
    one = course()
    running = job(Phase.RUNNING, LAUNCHER)
    one.add_notice(Notice(turn=LogTurn.JOINED, source=LAUNCHER), 0.0)
    one.wait_reason(running, None, 0.0)
    _, waiting = one.wait_reason(running, Start.RESUME, POD_SILENCE)
    assert waiting is not None
    assert (waiting.what, waiting.start) == ("runs, but has written nothing yet", None)
    suspended = job(Phase.SUSPENDED, LAUNCHER)
    _, waiting = one.wait_reason(suspended, Start.RESUME, POD_SILENCE)
    assert waiting is not None
    assert (waiting.what, waiting.start) == ("is suspended", Start.RESUME)
    assert not one.add_lines([], POD_SILENCE)
    assert one.wait_reason(suspended, Start.RESUME, POD_SILENCE) == (False, None)


def test_of_a_suspended_job_it_is_said_that_nothing_is_to_be_waited_for(still_world):
    status = replace(job(Phase.SUSPENDED), reason="`arena-topo resume` starts it")
    error = not_started_error(status, still_world.backend, "demo")
    assert (error.why, error.hint) == (
        "the job is suspended",
        "start it once it fits: arena-topo resume demo -n default",
    )


def test_a_job_whose_image_cannot_be_pulled_is_to_be_submitted_anew(still_world):
    cause = because(CauseCode.IMAGE, pod="demo-worker-0", text="ErrImagePull: no such image")
    forecast = PlacementForecast(state="waiting", cause=cause)
    status = replace(job(Phase.PENDING, reason=str(cause)), forecast=forecast)
    start = start_of(status, still_world.backend)
    assert start is Start.ANEW
    assert start_phrase(start, "demo", "default") == (
        "arena-topo delete demo -n default, and submit it with the right --image or"
        " --image-pull-secret; resume does not change them"
    )
    assert not_started_error(status, still_world.backend, "demo").hint == start_phrase(
        start, "demo", "default"
    )


def test_all_logs_of_a_job_that_has_not_started_are_an_error_with_the_reason(world: World):
    submit(world, name="first", workers=2, gpus=8, gputopology=True)
    world.start("first")
    submit(world, workers=2, gpus=8, gputopology=True)
    with pytest.raises(
        NotFound, match=r"pod demo-launcher is not running|job demo has no pods yet"
    ) as early:
        Showing(world, LogRequest(all_pods=True)).rest()
    assert "cannot be placed now" in (early.value.why or "")


def test_a_server_that_is_out_of_sight_is_told_of_and_followed_on(still_world: KubernetesWorld):
    submit(still_world)
    still_world.start("demo")
    still_world.say("demo", "before")
    showing = Showing(still_world, LogRequest(options=FOLLOW))
    showing.until_said("before")
    jobs = "GET /apis/kubeflow.org/v2beta1/namespaces/default/mpijobs"
    still_world.api.fail(jobs, status=503, times=1_000_000)
    still_world.api.close_watches()
    showing.until(lambda: "cannot be read, retrying" in showing.told())
    still_world.say("demo", "meanwhile")
    showing.until_said("meanwhile")
    still_world.api.faults.clear()
    showing.until(lambda: "the job is in sight again" in showing.told())
    still_world.finish("demo")
    assert showing.rest() == ["before", "meanwhile"]
    assert showing.shown.end is End.JOB


def test_a_moment_out_of_sight_is_no_news():
    one = course()
    assert list(one.connection_notes("no answer", 0.0)) == []
    assert list(one.connection_notes("no answer", POD_SILENCE - 0.1)) == []
    assert list(one.connection_notes(None, POD_SILENCE)) == []
    assert list(one.connection_notes("no answer", POD_SILENCE)) == []
    [note] = one.connection_notes("no answer", 2 * POD_SILENCE)
    assert note.warns
    assert list(one.connection_notes("no answer", 3 * POD_SILENCE)) == []


# ---------------------------------------------------------------- what is kept


def keep(world: World, archive: Archive, lines: list[Line], *, phase: Phase, code: int | None):
    status = replace(job(phase), exit_code=code, uid="old")
    with archive.keeping(world.backend.place, status, whole=True) as keeping:
        keeping.write(lines)
        keeping.close(status)


def spoken(source: Source, *texts: str, at: int = 1) -> list[Line]:
    return [
        Line(source=source, at=(at + number) * SECOND, stamp=b"", text=text.encode())
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("phase", "code", "end"),
    [
        (Phase.SUCCEEDED, 0, (None, None)),
        (Phase.FAILED, 7, ("the job demo failed", 7)),
        (Phase.FAILED, None, ("the job demo failed", 1)),
        (Phase.RUNNING, None, ("how the job demo ended is not known", 1)),
    ],
)
def test_following_a_job_that_is_gone_ends_as_the_job_did(still_world, tmp_path, phase, code, end):
    archive = Archive(tmp_path / "kept")
    keep(still_world, archive, spoken(LAUNCHER, "one"), phase=phase, code=code)
    showing = Showing(still_world, LogRequest(options=FOLLOW), archive)
    assert showing.rest() == ["one"]
    failure = showing.shown.failure
    assert (failure and failure.message, failure and failure.exit_code) == end
    for asked in (LogRequest(), LogRequest(instance=LAUNCHER.pod, options=FOLLOW)):
        showing = Showing(still_world, asked, archive)
        showing.rest()
        assert showing.shown.failure is None


def test_following_a_job_that_was_deleted_while_it_ran_says_so(still_world, tmp_path):
    archive = Archive(tmp_path / "kept")
    pods = tmp_path / "pods"
    pods.mkdir()
    LogWriter(pods / LAUNCHER.pod, None).write(b"one\n")
    head = JobHead(
        place=still_world.backend.place,
        namespace="default",
        name="demo",
        uid="old",
        created=1.0,
        phase="RUNNING",
        exit_code=None,
        slots=0,
        deleted=True,
        moved=(LAUNCHER,),
    )
    archive.adopt(head, pods)
    showing = Showing(still_world, LogRequest(options=FOLLOW), archive)
    assert showing.rest() == ["one"]
    failure = showing.shown.failure
    assert failure is not None
    assert failure.message == "the job demo was deleted before it had ended"
    assert (failure.why, failure.exit_code) == ("it was RUNNING when it was deleted", 1)
    assert "may have gone on" not in showing.told()


def test_tags_that_were_asked_for_are_known_of_what_is_kept(still_world, tmp_path):
    archive = Archive(tmp_path / "kept")
    status = replace(job(Phase.SUCCEEDED), exit_code=0, uid="old", command="mpirun -l python t.py")
    with archive.keeping(still_world.backend.place, status, whole=True) as keeping:
        keeping.write(spoken(LAUNCHER, "free text", "[1] Traceback"))
        keeping.close(status)
    showing = Showing(still_world, LogRequest(only=parse_only(["rank:1"])), archive)
    assert showing.rest() == ["Traceback"]
    path = next((tmp_path / "kept").glob("*/job.json"))
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "tags": "of a later version"}))
    assert Showing(still_world, LogRequest(only=parse_only(["rank:1"])), archive).rest() == []


def test_the_last_lines_of_what_was_kept_are_those_of_the_pod_not_of_each_run(
    still_world, tmp_path
):
    archive = Archive(tmp_path / "kept")
    runs = [LAUNCHER, replace(LAUNCHER, run=1), AGAIN]
    lines = [line for at, one in enumerate(runs) for line in spoken(one, f"run {at}", at=at + 1)]
    keep(still_world, archive, lines, phase=Phase.FAILED, code=1)
    tail = LogOptions(tail=1)
    assert Showing(still_world, LogRequest(options=tail), archive).rest() == ["run 2"]
    everyone = LogRequest(all_pods=True, options=tail)
    assert Showing(still_world, everyone, archive).rest() == ["run 1", "run 2"]
    assert Showing(still_world, LogRequest(options=BEFORE), archive).rest() == ["run 1"]
    assert Showing(still_world, LogRequest(options=BEFORE, from_archive=True), archive).rest() == [
        "run 1"
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_a_pod_of_a_job_that_is_gone_of_which_nothing_is_kept_is_told_with_those_that_are(
    still_world, tmp_path, kept
):
    archive = Archive(tmp_path / "kept")
    keep(still_world, archive, spoken(LAUNCHER, "one"), phase=Phase.FAILED, code=1)
    with pytest.raises(NotFound, match="nothing is archived of the log of demo-worker-0") as gone:
        Showing(
            still_world, LogRequest(instance="demo-worker-0", from_archive=kept), archive
        ).rest()
    assert gone.value.why == "the pods of demo are gone; kept are the logs of: demo-launcher"
    assert "logs --kept --all demo" in (gone.value.hint or "")


@pytest.mark.parametrize("kept", [False, True])
def test_a_container_of_a_job_that_is_gone_of_which_nothing_is_kept_is_an_error(
    still_world, tmp_path, kept
):
    archive = Archive(tmp_path / "kept")
    launcher = replace(LAUNCHER, container="mpi")
    keep(still_world, archive, spoken(launcher, "one"), phase=Phase.FAILED, code=1)
    wanted = LogRequest(options=LogOptions(container="foo"), from_archive=kept)
    with pytest.raises(NotFound, match="nothing is archived of container foo of demo\n") as gone:
        Showing(still_world, wanted, archive).rest()
    assert gone.value.why == (
        "the pods of demo are gone; kept are the logs of: demo-launcher, of container mpi"
    )
    wanted = LogRequest(options=LogOptions(container="mpi"), from_archive=kept)
    assert Showing(still_world, wanted, archive).rest() == ["one"]


def test_a_log_that_cannot_be_read_is_not_called_silent():
    one = course(LogRequest(options=FOLLOW))
    refused = ClusterError("the API server refused it", why="dial tcp: connection refused")
    one.add_notice(Notice(turn=LogTurn.BROKEN, source=LAUNCHER, error=refused), 0.0)
    _, waiting = one.wait_reason(job(Phase.RUNNING, LAUNCHER), None, 60.0)
    assert waiting is not None
    assert waiting.what == (
        "waits: its log cannot be read yet: the API server refused it"
        " (dial tcp: connection refused)"
    )
    one.add_notice(Notice(turn=LogTurn.RESUMED, source=LAUNCHER), 61.0)
    for now in (61.0, 61.0 + POD_SILENCE):
        _, waiting = one.wait_reason(job(Phase.RUNNING, LAUNCHER), None, now)
    assert waiting is not None
    assert waiting.what == "runs, but has written nothing yet"
