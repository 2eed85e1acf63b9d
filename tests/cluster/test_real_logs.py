"""Logs through a real API server, from kubelets whose code reads the files of containers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from clusters import Live
from other_server import OtherServer, complete_lines
from real import FOLDER, JOBS, PROGRAMS, Real, words

pytestmark = pytest.mark.cluster

QUIET = 2.0
"""Seconds without a change after which a job is as it stays."""


def rows(*lines: str, ago: float = 0) -> str:
    """Lines as a container runtime stores them, written so many seconds ago."""
    return "".join(
        f"{datetime.now(UTC) - timedelta(seconds=ago):%Y-%m-%dT%H:%M:%S.%f}000Z stdout F {line}\n"
        for line in lines
    )


def write(log: Path, *lines: str, ago: float = 0) -> None:
    """Let a container write lines."""
    with log.open("a") as file:
        file.write(rows(*lines, ago=ago))


def rotate(log: Path) -> None:
    """Begin a new file, as a kubelet does once a log is large."""
    log.rename(f"{log}.{datetime.now(UTC):%Y%m%d-%H%M%S.%f}")
    log.touch()


class Follower:
    """A `logs` command that runs, and what it has printed."""

    def __init__(self, cluster: Real, *more: str, config: str = "") -> None:
        self._cluster, self._json = cluster, "-o=json" in more
        self._out, self._err = (cluster.home / f"follower.{name}" for name in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "arena_topo", "logs", "-f", *more],
                env=cluster.env(config),
                stdout=out,
                stderr=err,
            )

    @property
    def lines(self) -> list[str]:
        """The lines so far, without what each record of `-o json` says beside them."""
        if not self._json:
            return self._out.read_text().splitlines()
        return [record["message"] for record in map(json.loads, complete_lines(self._out))]

    def messages(self, pod: str) -> list[str]:
        """What a pod has written, by the records of `-o json`."""
        records = map(json.loads, complete_lines(self._out))
        return [record["message"] for record in records if record["pod"] == pod]

    @property
    def notes(self) -> str:
        """What was said beside the lines."""
        return self._err.read_text()

    def until(self, *lines: str) -> None:
        """Wait until lines have come."""
        self._cluster.until(
            lambda: set(lines) <= set(self.lines),
            lambda: f"{set(lines) - set(self.lines)}: {self._out.read_text()}{self.notes}",
        )

    def ended(self, patience: float = 60) -> int:
        """Its exit code."""
        return self.process.wait(patience)


@contextmanager
def followed(cluster: Real, *more: str, config: str = "") -> Iterator[Follower]:
    """A follow for as long as the block runs."""
    follower = Follower(cluster, *more, config=config)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait()


def settled(cluster: Real) -> None:
    """Wait until the operator has said of a job that it runs."""
    path = cluster.live.path("mpijobs", group=JOBS)
    before, since = None, time.monotonic()
    while time.monotonic() - since < QUIET:
        now = cluster.called("GET", path)["items"]
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def running_server(admin: Real) -> Iterator[OtherServer]:
    """A second API server, for all tests of this module."""
    server = OtherServer(Path(PROGRAMS), Path(FOLDER))
    token = json.loads(Path(admin.live.config).read_text())["users"][0]["user"]["token"]
    live = Live(admin.config(token=token, server=server.url), "default")
    try:
        server.start(live)
        yield server
    finally:
        server.kill()


@pytest.fixture
def second(running_server: OtherServer, cluster: Real) -> Live:
    """The namespace of the test by way of the second API server."""
    token = json.loads(Path(cluster.live.config).read_text())["users"][0]["user"]["token"]
    config = cluster.config(token=token, server=running_server.url)
    return Live(config, cluster.live.namespace)


def test_a_log_is_followed_whole_and_in_order_to_the_end_of_its_job(cluster: Real):
    cluster.machines(1)
    assert cluster.arena(*words("train", 1, 1)).code == 0
    with followed(cluster, "train") as follower:
        pod = cluster.launcher("train")
        log = cluster.log(pod)
        expected = [f"step {number}" for number in range(3000)]
        for first in range(0, 3000, 500):
            write(log, *expected[first : first + 500])
            follower.until(expected[first])
        cluster.tell(pod, "exit", "3")
        assert follower.ended() == 3, follower.notes
    assert follower.lines == expected


def test_64_pods_are_followed_by_one_list_and_one_watch_of_pods(
    cluster: Real, second: Live, running_server: OtherServer
):
    cluster.machines(8)
    assert cluster.arena(*words("wide", 63, 1)).code == 0
    cluster.until(lambda: cluster.exact("wide"), "the workers run")
    main = cluster.launcher("wide")
    logs = {pod: cluster.log(pod) for pod in cluster.pods()}
    assert len(logs) == 64
    settled(cluster)
    with followed(cluster, "wide", "--all", "-o=json", config=second.config) as follower:
        for number in range(100):
            for pod, log in logs.items():
                write(log, f"{pod} {number}")
        follower.until(*(f"{pod} 99" for pod in logs))
        asked = running_server.requests(cluster.live.namespace)
        cluster.tell(main, "exit", "0")
        assert follower.ended() == 0, follower.notes
    assert asked == {
        "get mpijobs": 1,
        "watch mpijobs": 1,
        "list pods": 1,
        "watch pods": 1,
        "get pods/log": 64,
        # Whether a pod of the job serves a TensorBoard.
        "list services": 1,
    }
    for pod in logs:
        assert follower.messages(pod) == [f"{pod} {number}" for number in range(100)]


def test_a_follow_survives_a_rotated_log_a_restarted_server_and_an_expired_watch(
    cluster: Real, second: Live, running_server: OtherServer
):
    """Meanwhile a worker is created again, whose log is followed as well."""
    cluster.machines(1)
    assert cluster.arena(*words("long", 2, 1)).code == 0
    cluster.until(lambda: cluster.exact("long"), "the workers run")
    main, worker = cluster.launcher("long"), "long-worker-1"
    log, gone = cluster.log(main), cluster.log(worker)
    with followed(cluster, "long", "--all", "-o=json", config=second.config) as follower:
        write(log, "one", "two")
        write(gone, "of the first worker")
        follower.until("two", "of the first worker")
        rotate(log)
        write(log, "three")
        follower.until("three")
        before = cluster.called("GET", cluster.live.path("pods"))["metadata"]["resourceVersion"]
        running_server.kill()
        # What was read is in a file that kubelets no longer read.
        rotate(log)
        write(log, "four", "five")
        cluster.called("DELETE", cluster.live.path("pods", worker))
        cluster.until(
            lambda: cluster.exact("long") and cluster.log(worker) != gone, "it is created again"
        )
        write(cluster.log(worker), "of the second worker")
        running_server.start(second)
        expired = next(second.watch(second.path("pods"), resourceVersion=before))
        assert (expired["type"], expired["object"]["code"]) == ("ERROR", 410)
        follower.until("five", "of the second worker")
        write(log, "six")
        follower.until("six")
        cluster.tell(main, "exit", "5")
        assert follower.ended() == 5, follower.notes
    assert follower.messages(main) == ["one", "two", "three", "four", "five", "six"]
    assert follower.messages(worker) == ["of the first worker", "of the second worker"]
    assert "long-worker-1 was created again" in follower.notes


def test_the_beginning_an_earlier_run_and_another_container_are_read_where_asked_for(
    cluster: Real,
):
    cluster.machines(1)
    assert cluster.arena(*words("train", 1, 1)).code == 0
    cluster.until(lambda: cluster.exact("train"), "the worker runs")
    main, worker = cluster.launcher("train"), "train-worker-0"
    log = cluster.log(main)
    write(log, "old", ago=7200)
    write(log, "new", "newest")

    def shown(*more: str) -> list[str]:
        done = cluster.arena("logs", "train", *more)
        assert done.code == 0, done.err
        return done.out.splitlines()

    assert shown() == ["old", "new", "newest"]
    assert shown("--tail=1") == ["newest"]
    assert shown("--since=1h") == ["new", "newest"]
    init = cluster.pods()[main]["spec"]["initContainers"][0]["name"]
    write(cluster.log(main, container=init), "waits for the workers")
    assert shown(f"--container={init}") == ["waits for the workers"]
    done = cluster.arena("logs", "train", "--container=other")
    assert (done.code, done.out) == (1, "")
    assert "other" in done.err
    for more in (("--previous",), ("--previous", f"--instance={worker}")):
        done = cluster.arena("logs", "train", *more)
        assert (done.code, done.out) == (1, "")
        assert "has no earlier run" in done.err
    write(cluster.log(worker), "the first run")
    with followed(cluster, "train", f"--instance={worker}") as follower:
        follower.until("the first run")
        cluster.tell(worker, "restarts", "1")
        write(cluster.log(worker, run=1), "the second run")
        follower.until("the second run")
        assert follower.lines == ["the first run", "the second run"]
        assert f"{worker} was restarted" in follower.notes
    assert shown("--previous", f"--instance={worker}") == ["the first run"]
    assert shown(f"--instance={worker}") == ["the second run"]


@pytest.mark.parametrize("speaks", [True, False], ids=["busy", "silent"])
def test_ctrl_c_ends_a_follow_at_once(cluster: Real, speaks):
    cluster.machines(1)
    assert cluster.arena(*words("train", 1, 1)).code == 0
    log = cluster.log(cluster.launcher("train"))
    with followed(cluster, "train") as follower:
        if speaks:
            write(log, "step 1")
            follower.until("step 1")
        else:
            cluster.until(
                lambda: "has written nothing yet" in follower.notes, lambda: follower.notes
            )
        follower.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert follower.ended() == 130
        # A second on a machine that does nothing else.
        assert time.monotonic() - began < 5
