"""What a followed log and a wait ask of an API server: a job is read again only after a change."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fake_http
import fake_logs
import pytest
from fake_api import FakeApi
from fake_operator import FakeOperator
from test_backends_logs import FOLLOW, Reader
from test_log_streams import WORKER, opened, running, stamp

from arena_topo.engines import JobStatus, Phase, daemon_thread, goals
from arena_topo.engines.goals import Goal, Standing
from arena_topo.engines.kubernetes import job_watch, watch_cache
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.engines.lines import LogOptions, LogTurn, Source
from arena_topo.errors import ArenaError, JobNotFound
from arena_topo.gang.wait import wait_until_over
from arena_topo.joblogs.follow import RequestedLines
from arena_topo.joblogs.log_request import LogRequest


@pytest.fixture
def backend(api: FakeApi, tmp_path: Path) -> Iterator[KubernetesBackend]:
    made = opened(api, tmp_path)
    made.look_every = 0.05
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again at once."""
    monkeypatch.setattr(watch_cache, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(watch_cache, "_LAST_DELAY", 0.02)


def asked_for(api: FakeApi) -> Counter[str]:
    """How often each kind of request was sent: `list pods`, `watch mpijobs`, `read log` ..."""
    counts: Counter[str] = Counter()
    for line in api.requests:
        path, _, query = line.removeprefix("GET ").partition("?")
        last = path.rpartition("/")[2]
        verb = "watch" if "watch=1" in query else "list" if last.endswith("s") else "read"
        counts[f"{verb} {last}"] += 1
    return counts


def until(holds, what: object = "") -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def watching(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of watches that began after a moment."""
    began = set(threading.enumerate()) - before
    return [thread for thread in began if re.match("watch /", thread.name)]


def is_worker(source: Source) -> bool:
    return source.worker == 0


class Waiting:
    """A wait for a job, in a thread."""

    def __init__(self, backend: KubernetesBackend, goal: Goal = Goal.FINISHED, *names: str):
        self.looks, self.blind, self._ends = 0, list[str | None](), list[goals.Ending]()

        def wait() -> None:
            self._ends += goals.wait_all(
                backend,
                names or ["demo"],
                "default",
                goal=goal,
                hears=goals.Listener(each=self._look, blind=self.blind.append),
            )

        self._thread = threading.Thread(target=wait, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        self.looks += 1

    def looked(self, more: int) -> None:
        """Return after so many more looks."""
        goal = self.looks + more
        until(lambda: self.looks >= goal)

    def ended(self) -> list[tuple[str, Standing]]:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return [(ending.name, ending.standing) for ending in self._ends]


# ---------------------------------------------------------------- how much is asked for


@pytest.mark.parametrize("long_ago", [False, True], ids=["new", "long-ago"])
def test_the_logs_of_64_workers_take_one_list_and_one_watch_of_their_pods(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, long_ago
):
    running(backend, operator, "one", workers=64)
    for worker in range(64):
        api.write(f"demo-worker-{worker}", "here", at=stamp(1))
    if long_ago:
        # The server has forgotten when the job last changed.
        api.compact()
    api.requests.clear()
    asked = LogRequest(all_pods=True, options=FOLLOW)
    lines, turns = 0, 0
    for batch in RequestedLines(backend, "demo", "default", asked):
        lines += len(batch)
        # An empty batch comes ten times a second.
        turns += not batch and lines >= 65
        if turns == 20:
            break
    counts = asked_for(api)
    assert counts.pop("read log") == 65
    assert counts == {
        "read demo": 1,
        "list pods": 1,
        "watch pods": 1,
        "watch mpijobs": 1,
    }


class ScarceThread(threading.Thread):
    """A thread of a system that starts only a few more."""

    left = 0

    def start(self) -> None:
        if not ScarceThread.left:
            raise RuntimeError("can't start new thread")
        ScarceThread.left -= 1
        super().start()


def test_where_only_three_threads_can_be_started_all_logs_are_followed(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(daemon_thread, "threading", SimpleNamespace(Thread=ScarceThread))
    monkeypatch.setattr(ScarceThread, "left", 3)
    monkeypatch.setattr(job_watch, "REREAD", 0.1)
    running(backend, operator, "one", workers=20)
    for worker in range(20):
        api.write(f"demo-worker-{worker}", "here", at=stamp(1))
    asked = LogRequest(all_pods=True, options=FOLLOW, to_archive=False)
    texts = Counter[str]()
    for batch in RequestedLines(backend, "demo", "default", asked):
        texts.update(entry.line.text.decode() for entry in batch)
        if (
            texts.total() == 21
            and api.find("MPIJob", "demo")["status"].get("completionTime") is None
        ):
            operator.finish("demo")
    assert texts == {"one": 1, "here": 20}
    assert not any("watch=1" in request for request in api.requests)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_where_no_thread_can_be_started_a_follow_is_refused(
    backend: KubernetesBackend, operator: FakeOperator, monkeypatch, left
):
    running(backend, operator, "one")
    monkeypatch.setattr(daemon_thread, "threading", SimpleNamespace(Thread=ScarceThread))
    monkeypatch.setattr(ScarceThread, "left", left)
    with pytest.raises(ArenaError, match="can start no more threads") as refused:
        list(
            RequestedLines(backend, "demo", "default", LogRequest(options=FOLLOW, to_archive=False))
        )
    assert "ulimit -u" in str(refused.value.hint)
    until(lambda: not any(isinstance(one, ScarceThread) for one in threading.enumerate()))


def test_a_log_that_is_only_read_takes_one_list_and_no_watch(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator, "one")
    api.requests.clear()
    asked = LogRequest(options=LogOptions())
    assert sum(len(batch) for batch in RequestedLines(backend, "demo", "default", asked)) == 1
    counts = asked_for(api)
    assert (counts["list pods"], counts["read demo"], counts["read log"]) == (1, 1, 1)
    assert not any("watch" in one for one in api.requests)


def test_a_wait_lists_the_pods_once_and_then_watches(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator)
    api.requests.clear()
    wait = Waiting(backend)
    wait.looked(30)
    counts = asked_for(api)
    assert (counts["list pods"], counts["read demo"]) == (1, 1)
    assert (counts["watch pods"], counts["watch mpijobs"]) == (1, 1)
    operator.finish("demo")
    assert wait.ended() == [("demo", Standing.REACHED)]


def test_a_wait_for_many_jobs_watches_their_namespace(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    for index in range(4):
        other = api.find("MPIJob", "demo")
        assert other is not None
        meta = {"name": f"job-{index}", "namespace": "default"}
        api.add({**other, "metadata": meta, "status": {}})
    api.requests.clear()
    names = [job.name, *(f"job-{index}" for index in range(4))]
    wait = Waiting(backend, Goal.DELETED, *names)
    wait.looked(20)
    counts = asked_for(api)
    assert (counts["list mpijobs"], counts["watch mpijobs"]) == (1, 1)
    assert counts["list pods"] <= 3
    for name in names:
        api.remove("mpijobs", "default", name, {})
    assert wait.ended() == [(name, Standing.REACHED) for name in names]


def test_what_has_been_reached_is_not_watched(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator)
    operator.finish("demo")
    api.requests.clear()
    assert Waiting(backend).ended() == [("demo", Standing.REACHED)]
    assert not any("watch" in one for one in api.requests)


def test_of_many_jobs_that_may_not_be_listed_only_some_are_watched(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(job_watch, "REREAD", 0.3)
    running(backend, operator)
    other = api.find("MPIJob", "demo")
    assert other is not None
    names = [f"job-{index}" for index in range(11)]
    # Jobs that are over wait for no pods.
    status = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    for name in names:
        api.add({**other, "metadata": {"name": name, "namespace": "default"}, "status": status})
    api.deny("list mpijobs default")
    api.requests.clear()
    wait = Waiting(backend, Goal.DELETED, *names)
    until(lambda: asked_for(api)["watch mpijobs"] >= 8 and asked_for(api)["read job-10"] >= 2)
    # The list is refused once.
    assert asked_for(api)["list mpijobs"] == 1
    api.requests.clear()
    until(lambda: asked_for(api)["read job-10"] >= 4)
    counts = asked_for(api)
    # Watches of eight jobs report a change; the others are read again every so often.
    assert not any(counts[f"watch {plural}"] for plural in ("mpijobs", "pods"))
    assert max(counts[f"read {name}"] for name in names[:8]) <= 1
    assert min(counts[f"read {name}"] for name in names[8:]) >= 3
    for name in names:
        api.remove("mpijobs", "default", name, {})
    assert wait.ended() == [(name, Standing.REACHED) for name in names]
    assert not wait.blind


def test_reads_that_are_used_after_their_end_watch_nothing_and_are_up_to_date(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator)
    before = set(threading.enumerate())
    with backend.watching("default") as reads:
        assert reads.job("demo") == reads.job("demo")
        until(lambda: asked_for(api)["watch pods"] == asked_for(api)["watch mpijobs"] == 1)
    api.requests.clear()
    assert reads.job("demo").phase is Phase.RUNNING
    operator.finish("demo")
    until(lambda: reads.job("demo").phase is Phase.SUCCEEDED)
    with backend.watching("default") as unused:
        pass
    assert [job.name for job in unused.jobs()] == ["demo"]
    assert unused.job("demo") == unused.job("demo")
    assert not any("watch" in request for request in api.requests)
    until(lambda: not watching(before))


@pytest.mark.parametrize("denied", ["watch pods", "watch mpijobs", "(watch|list) mpijobs"])
def test_without_the_right_to_watch_a_job_is_listed_every_so_often(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch, denied
):
    monkeypatch.setattr(job_watch, "REREAD", 0.5)
    running(backend, operator)
    api.deny(f"{denied} default")
    api.requests.clear()
    begun = time.monotonic()
    wait = Waiting(backend)
    until(lambda: asked_for(api)["list pods"] >= 3)
    spent = time.monotonic() - begun
    # The first at once, and two more.
    assert spent >= 1.0
    assert asked_for(api)[denied if denied == "watch pods" else "watch mpijobs"] == 1
    operator.finish("demo")
    assert wait.ended() == [("demo", Standing.REACHED)]
    assert not wait.blind


def test_a_pod_that_is_refused_is_looked_for_though_no_watch_tells_of_it(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(job_watch, "REREAD", 0.2)
    running(backend, operator)
    for pod in api.all("Pod"):
        api.remove("pods", "default", pod["metadata"]["name"], {"gracePeriodSeconds": 0})
    with api.edit("MPIJob", "demo") as job:
        job["status"] = {}
    with backend.watching("default") as reads:
        assert not reads.job("demo").instances
        regarding = {"kind": "MPIJob", "name": "demo", "namespace": "default"}
        event = {"reason": "FailedCreate", "message": "exceeded quota", "type": "Warning"}
        uid = reads.job("demo").uid
        meta = {"name": "demo.1", "namespace": "default"}
        when = fake_logs.rfc3339_nano(api.clock())
        api.add(
            {"apiVersion": "v1", "kind": "Event", "metadata": meta, "lastTimestamp": when}
            | event
            | {"involvedObject": regarding | {"uid": uid}, "count": 1}
        )
        until(lambda: reads.job("demo").reason == "FailedCreate: exceeded quota")


class Submitter:
    """What `submit --wait` does after the start of a job: it waits, and tends the job's workers."""

    def __init__(self, backend: KubernetesBackend):
        self.looks, self.ends = 0, list[JobStatus]()

        def wait() -> None:
            hears = goals.Listener(seen=self._see)
            self.ends.append(wait_until_over(backend, "demo", "default", hears=hears))

        self.thread = threading.Thread(target=wait, daemon=True)
        self.thread.start()

    def _see(self, _status: JobStatus) -> None:
        self.looks += 1


def test_a_submission_that_waits_reads_a_job_again_only_after_a_change(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator)
    api.requests.clear()
    submitter = Submitter(backend)
    until(lambda: submitter.looks >= 30)
    counts = asked_for(api)
    # A second reading says whether the job is a gang, whose workers are to be sent to their nodes.
    assert (counts["list pods"], counts["read demo"]) == (1, 2)
    assert (counts["watch pods"], counts["watch mpijobs"]) == (1, 1)
    operator.finish("demo")
    submitter.thread.join(20)
    assert [status.phase for status in submitter.ends] == [Phase.SUCCEEDED]


def test_a_submission_that_may_not_watch_reads_a_job_every_so_often(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(job_watch, "REREAD", 0.5)
    running(backend, operator)
    api.deny("watch pods default")
    api.requests.clear()
    begun = time.monotonic()
    submitter = Submitter(backend)
    until(lambda: asked_for(api)["read demo"] >= 6)
    # The first at once, and two more, each with the second reading.
    assert time.monotonic() - begun >= 1.0
    assert asked_for(api)["list pods"] == 3
    operator.finish("demo")
    submitter.thread.join(20)
    assert [status.phase for status in submitter.ends] == [Phase.SUCCEEDED]


# ---------------------------------------------------------------- what is not missed


@pytest.mark.parametrize("forgets", [False, True], ids=["restarts", "forgets"])
def test_what_happens_while_a_server_is_away_is_not_missed(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, forgets
):
    running(backend, operator)
    wait = Waiting(backend)
    until(lambda: asked_for(api)["watch pods"] == asked_for(api)["watch mpijobs"] == 1)
    wait.looked(2)
    api.fail("GET", times=12, reset=True)
    api.close_watches()
    operator.finish("demo", 3)
    if forgets:
        # The watches are answered with 410.
        api.compact()
    assert wait.ended() == [("demo", Standing.REACHED)]


def test_revisions_without_an_order_hide_no_change(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    """Kubernetes calls revisions opaque; servers that imitate it may have other ones."""
    plain, event, watch = (
        rb'"resourceVersion": ?"(\d+)"',
        fake_http._event,
        fake_http.Handler._watch,
    )

    def opaque(body: bytes) -> bytes:
        return re.sub(plain, rb'"resourceVersion": "x\1"', body)

    def watched(self, call):
        call.query["resourceVersion"] = call.query["resourceVersion"].removeprefix("x")
        return watch(self, call)

    monkeypatch.setattr(api, "rewrites", opaque)
    monkeypatch.setattr(fake_http, "_event", lambda kind, raw: event(kind, opaque(raw)))
    monkeypatch.setattr(fake_http.Handler, "_watch", watched)
    running(backend, operator)
    wait = Waiting(backend)
    until(lambda: asked_for(api)["watch pods"] == asked_for(api)["watch mpijobs"] == 1)
    wait.looked(30)
    operator.finish("demo")
    assert wait.ended() == [("demo", Standing.REACHED)]


def test_a_job_that_is_deleted_while_its_watch_was_forgotten_is_gone(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator)
    with backend.watching("default") as reads:
        assert reads.job("demo") == reads.job("demo")
        until(lambda: asked_for(api)["watch pods"] == asked_for(api)["watch mpijobs"] == 1)
        with api.lock:
            api.remove("mpijobs", "default", "demo", {"propagationPolicy": "Background"})
            api.compact()
            api.close_watches()

        def gone() -> bool:
            try:
                reads.job("demo")
            except JobNotFound:
                return True
            return False

        until(gone)


def test_a_server_that_stays_away_is_told_of_though_nothing_has_changed(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(job_watch, "REREAD", 60.0)
    running(backend, operator)
    wait = Waiting(backend)
    until(lambda: asked_for(api)["watch pods"] == 1)
    wait.looked(2)
    api.fail("GET", times=10_000, status=500, retry_after=9999)
    api.close_watches()
    until(lambda: wait.blind)
    api.faults.clear()
    until(lambda: wait.blind[-1] is None)
    operator.finish("demo")
    assert wait.ended() == [("demo", Standing.REACHED)]


def test_a_follow_survives_a_server_that_restarts_and_forgets(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    api.write(WORKER, "run 0", at=stamp(1))
    with backend.follow(job, FOLLOW, is_worker) as following:
        reader = Reader(following)
        reader.until_said("run 0")
        reader.until(lambda: asked_for(api)["watch pods"] == 1)
        api.fail("GET", times=8, reset=True)
        with api.lock:
            fake_logs.restart(api, WORKER)
            api.compact()
            api.close_watches()
            api.cut_logs()
            api.write(WORKER, "run 1", at=fake_logs.rfc3339_nano(api.clock() + 1))
        reader.until_said("run 1")
        operator.finish("demo")
        reader.until_done()
    assert reader.texts() == ["run 0", "run 1"]
    assert LogTurn.RESTARTED in reader.turns(chief=False)


def test_a_log_that_is_rotated_goes_on_with_what_was_not_read(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    for number in range(5):
        api.write(WORKER, f"line {number}", at=stamp(number))
    with backend.follow(job, FOLLOW, is_worker) as following:
        reader = Reader(following)
        reader.until_said("line 4")
        with api.lock:
            # The kubelet has only the newer file, and its stream has ended with the older.
            api.logs["default", WORKER].lines.clear()
            api.write(WORKER, "line 5", at=stamp(5))
            api.cut_logs()
        reader.until_said("line 5")
    assert reader.texts() == [f"line {number}" for number in range(6)]


def test_the_pods_of_a_deleted_job_are_read_to_their_end(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW) as following:
        reader = Reader(following)
        reader.until_said("one")
        api.remove("mpijobs", "default", "demo", {"propagationPolicy": "Orphan"})
        operator.say("demo", "two")
        reader.until_said("two")
        for pod in api.all("Pod"):
            api.end_log(pod["metadata"]["name"])
            api.remove("pods", "default", pod["metadata"]["name"], {"gracePeriodSeconds": 0})
        reader.until_done()
    assert reader.turns()[-1] is LogTurn.GONE


def test_whoever_leaves_ends_the_watches(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    running(backend, operator)
    before = set(threading.enumerate())

    with backend.watching("default") as reads:
        reads.job("demo")
        reads.job("demo")
        until(lambda: len(watching(before)) == 2 and asked_for(api)["watch pods"] == 1)
    until(lambda: not watching(before))
