"""Following logs on a cluster: bytes that break anywhere, runs that end, servers that go away."""

from __future__ import annotations

import http.client
import re
import resource
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import fake_logs
import pytest
from fake_api import FakeApi, kubeconfig
from fake_operator import FakeOperator
from hypothesis import given, settings
from hypothesis import strategies as st
from log_bytes import log_of
from test_access import Proxy
from test_backends_logs import FOLLOW, Reader, is_chief
from worlds import planned

from arena_topo.engines import JobStatus, Options
from arena_topo.engines import lines as parsing
from arena_topo.engines.kubernetes import containerlog, pod_lister
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import log_follower as followed
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.engines.kubernetes.log_position import Lines, ReadPosition
from arena_topo.engines.kubernetes.response import Response
from arena_topo.engines.lines import (
    MAX_LINE_BYTES,
    Line,
    LogOptions,
    LogTurn,
    Notice,
    Source,
    parse_nanoseconds,
)
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, JobNotFound, NotFound
from arena_topo.job import MPIJob

TLS = Path(__file__).parent / "tls"
LAUNCHER = "demo-launcher-x7k2p"
WORKER = "demo-worker-0"


def opened(api: FakeApi, folder: Path, **user: Any) -> KubernetesBackend:
    config = kubeconfig(folder / "config", api.url, user=user or {"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    backend.look_every = 0.1
    return backend


@pytest.fixture
def backend(api: FakeApi, tmp_path: Path) -> KubernetesBackend:
    return opened(api, tmp_path)


def running(
    backend: KubernetesBackend, operator: FakeOperator, *lines: str, workers: int = 1
) -> JobStatus:
    job = MPIJob(name="demo", command="mpirun true", image="i", workers=workers)
    backend.apply(planned(backend, job))
    operator.start("demo")
    for line in lines:
        operator.say("demo", line)
    return backend.job("demo", "default")


def stamp(number: int) -> str:
    return f"2026-11-21T07:00:{number // 10:02}.{number % 10}00000000Z"


# Bytes.


def test_times_are_read_in_any_zone_and_with_any_digits():
    second = 1_795_244_400
    assert parse_nanoseconds(b"2026-11-21T07:00:00Z") == second * 10**9
    assert parse_nanoseconds(b"2026-11-21T07:00:00.000000001Z") == second * 10**9 + 1
    assert parse_nanoseconds(b"2026-11-21T08:00:00.5+01:00") == second * 10**9 + 500_000_000
    assert parse_nanoseconds(b"2026-11-20T23:30:00.123456789-07:30") == second * 10**9 + 123_456_789
    for wrong in (b"", b"hello", b"2026-13-21T07:00:00Z", b"2026-11-21T07:00:00", b"1" * 30):
        assert parse_nanoseconds(wrong) is None


def test_lines_without_a_time_are_the_kubelets_own():
    place = ReadPosition()
    lines = Lines(place, Source(pod=LAUNCHER))
    said = b"2026-11-21T07:00:00.000000001Z one\nunable to retrieve container logs\n"
    first, second = lines.feed(said)
    assert (first.text, first.at) == (b"one", second.at)
    assert (second.stamp, second.text) == (b"", b"unable to retrieve container logs")
    assert place.key == (first.at, 1)


ZONES = st.sampled_from(["Z", "+08:00", "-07:30"])
TEXTS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.binary(max_size=6).map(lambda text: text.replace(b"\n", b" ")),
            st.integers(MAX_LINE_BYTES - 120, MAX_LINE_BYTES).map(lambda size: b"x" * size),
        ),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(TEXTS, ZONES, st.data())
def test_a_log_that_breaks_anywhere_is_taken_up_without_gaps_or_doubles(
    texts: list[tuple[int, bytes]], zone: str, data: st.DataObject
):
    log, number = [], 0
    for later, text in texts:
        # Many lines of the very same time, and of the same second.
        number += 3 * later
        log.append((stamp(number)[:-1] + zone, text))
    place, got = ReadPosition(), []
    for last in [*[False] * data.draw(st.integers(0, 4)), True]:
        since = fake_logs.second(place.since) if place.stamp else 0
        wire = b"".join(
            at.encode() + b" " + text + b"\n" for at, text in log if fake_logs.second(at) >= since
        )
        lines = Lines(place, Source(pod=LAUNCHER))
        size = len(wire) if last else data.draw(st.integers(0, len(wire)))
        step = data.draw(st.sampled_from([7, 5000, 65_536]))
        for start in range(0, size, step if size < 1000 else 65_536):
            got += lines.feed(wire[start : min(size, start + (step if size < 1000 else 65_536))])
    assert [one.text for one in got] == [text for _, text in log]
    assert [one.at for one in got] == sorted(one.at for one in got)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 200)), max_size=8), ZONES, st.data())
def test_long_lines_that_come_in_parts_are_taken_up_without_gaps_or_doubles(
    sizes: list[tuple[int, int]], zone: str, data: st.DataObject
):
    log, number = [], 0
    for later, size in sizes:
        number += 3 * later
        log.append((stamp(number)[:-1] + zone, b"%d:" % len(log) + b"x" * size))
    wire = b"".join(at.encode() + b" " + text + b"\n" for at, text in log)
    place, got = ReadPosition(), b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "MAX_LINE_BYTES", 60)
        for last in [*[False] * data.draw(st.integers(0, 4)), True]:
            lines = Lines(place, Source(pod=LAUNCHER), pieces=True)
            size = len(wire) if last else data.draw(st.integers(0, len(wire)))
            step = data.draw(st.integers(1, 100))
            for start in range(0, size, step):
                came = lines.feed(wire[start : min(size, start + step)])
                got += b"".join(one.text + b"\n" * one.fed for one in came)
    assert got == b"".join(text + b"\n" for _, text in log)


# Streams.


def wire_of(lines: list[tuple[str, bytes]]) -> int:
    return sum(len(f"{len(line) + 31:x}\r\n") + len(line) + 33 for _, line in lines)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_stream_that_breaks_at_any_byte_goes_on_where_it_was(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch, step: int
):
    monkeypatch.setattr(containerlog, "_SHORTEST", 0.001)
    monkeypatch.setattr(containerlog, "_LONGEST", 0.001)
    job = running(backend, operator, "one", "two", "three")
    log = api.logs["default", LAUNCHER]
    at, _ = log.lines[1]
    log.lines.insert(2, (at, b"two again\n"))
    for place in range(0, wire_of(log.lines), step):
        log.breaks_at = [place]
        with backend.follow(job, FOLLOW, is_chief) as following:
            reader = Reader(following)
            reader.until_said("three")
            assert reader.texts() == ["one", "two", "two again", "three"], place
        assert not log.breaks_at


def test_a_broken_stream_is_told_of_once_until_it_is_back(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("one")
        api.fail(f"{LAUNCHER}/log", times=3, status=500, retry_after=9999)
        api.cut_logs()
        operator.say("demo", "two")
        reader.until_said("two")
        operator.finish("demo")
        reader.until_done()
    assert reader.turns() == [LogTurn.JOINED, LogTurn.BROKEN, LogTurn.RESUMED, LogTurn.ENDED]
    assert reader.texts() == ["one", "two"]


def test_a_container_that_starts_anew_in_its_pod_goes_on_as_its_next_run(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    api.write(WORKER, "run 0", at=stamp(1))
    with backend.follow(job, FOLLOW, lambda source: source.worker == 0) as following:
        reader = Reader(following)
        reader.until_said("run 0")
        # What it wrote last had not been sent when the stream broke.
        api.fail(f"{WORKER}/log.*follow=true", times=1000, status=500, retry_after=9999)
        api.before("previous=true", api.faults.clear)
        api.cut_logs()
        reader.until(lambda: LogTurn.BROKEN in reader.turns(chief=False))
        with api.lock:
            api.write(WORKER, "last of run 0", at=stamp(2))
            fake_logs.restart(api, WORKER)
            api.write(WORKER, "run 1", at=stamp(1))
        reader.until_said("run 1")
    assert reader.texts() == ["run 0", "last of run 0", "run 1"]
    assert [line.source.run for line in reader.lines] == [0, 0, 1]
    turns = [one.turn for one in reader.items if isinstance(one, Notice)]
    connection = {LogTurn.BROKEN, LogTurn.RESUMED}
    assert [turn for turn in turns if turn not in connection] == [LogTurn.JOINED, LogTurn.RESTARTED]


def test_a_run_that_ended_unseen_is_read_to_its_end_though_the_next_was_read_before(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(containerlog, "_OVERDUE", 0.2)
    job = running(backend, operator)
    api.write(WORKER, "run 0", at=stamp(1))
    with backend.follow(job, FOLLOW, lambda source: source.worker == 0) as following:
        reader = Reader(following)
        reader.until_said("run 0")
        # The kubelet is ahead of what the API server tells of the pod.
        api.fail(r"/pods\?", times=1000, status=500, retry_after=9999)
        api.fail(f"{WORKER}/log", times=1, status=500)
        api.cut_logs()
        reader.until(lambda: LogTurn.BROKEN in reader.turns(chief=False))
        with api.lock:
            api.write(WORKER, "last of run 0", at=stamp(2))
            fake_logs.restart(api, WORKER)
            late = fake_logs.rfc3339_nano(api.clock() + 1)
            api.write(WORKER, "run 1", at=late)
        reader.until_said("run 1")
        api.faults.clear()
        reader.until_said("last of run 0")
        api.write(WORKER, "more", at=late)
        reader.until_said("more")
    assert sorted(reader.texts()) == ["last of run 0", "more", "run 0", "run 1"]


def test_the_run_before_is_read_where_it_is_asked_for(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    api.write(WORKER, "run 0", at=stamp(1))
    fake_logs.restart(api, WORKER)
    api.write(WORKER, "run 1", at=stamp(2))
    before = LogOptions(previous=True)
    with backend.follow(job, before) as following:
        reader = Reader(following)
        reader.until_done()
    assert [(line.text, line.source.run) for line in reader.lines] == [(b"run 0", 0)]
    [refused] = [
        one for one in reader.items if isinstance(one, Notice) and one.turn is LogTurn.REFUSED
    ]
    assert refused.source.chief
    assert "has no earlier run" in str(refused.error)


def test_a_run_before_that_nobody_has_is_not_found(
    backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    before = LogOptions(previous=True)
    with pytest.raises(NotFound, match="has no earlier run"):
        log_of(backend, job, LAUNCHER, before)
    with backend.follow(job, before) as following:
        reader = Reader(following)
        reader.until_done()
    [*_, refused] = [one for one in reader.items if isinstance(one, Notice)]
    assert "has no earlier run" in str(refused.error)


def test_the_init_container_that_runs_is_read_before_the_main_one(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "main")
    with api.edit("Pod", LAUNCHER) as pod:
        pod["spec"]["initContainers"] = [{"name": "wait"}]
        pod["status"]["initContainerStatuses"] = [{"name": "wait", "state": {"running": {}}}]
    api.container_logs["default", LAUNCHER, "wait"] = fake_logs.Log([(stamp(1), b"waiting\n")])
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("waiting")
        # The last of it comes late.
        api.fail(f"{LAUNCHER}/log.*container=wait", times=2, status=500, retry_after=9999)
        api.cut_logs()
        reader.until_turn(LogTurn.BROKEN)
        with api.edit("Pod", LAUNCHER) as pod:
            over = {"terminated": {"exitCode": 0}}
            pod["status"]["initContainerStatuses"] = [{"name": "wait", "state": over}]
            init = api.container_logs["default", LAUNCHER, "wait"]
            init.lines.append((stamp(2), b"ready\n"))
            init.ended = True
        reader.until_said("main")
        operator.finish("demo")
        reader.until_done()
    assert [(line.source.container, line.text) for line in reader.lines] == [
        ("wait", b"waiting"),
        ("wait", b"ready"),
        ("mpi", b"main"),
    ]


def test_logs_that_may_not_be_read_are_refused_each_with_its_error(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one", workers=3)
    api.deny("get pods/log default")
    with backend.follow(job, FOLLOW) as following:
        reader = Reader(following)
        reader.until(lambda: len(reader.items) == 4)
    refused = [one for one in reader.items if isinstance(one, Notice)]
    assert {one.turn for one in refused} == {LogTurn.REFUSED}
    assert all(isinstance(one.error, AccessDenied) for one in refused)


@pytest.mark.parametrize("options", [FOLLOW, LogOptions()])
def test_a_refusal_whose_connection_breaks_is_a_refusal(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, options: LogOptions
):
    job = running(backend, operator, "one")
    api.fail(rf"{WORKER}/log\?", status=403, cut=20, times=9)
    with backend.follow(job, options) as following:
        reader = Reader(following)
        reader.until(lambda: LogTurn.REFUSED in reader.turns(chief=False))
    [refused] = [one for one in reader.items if isinstance(one, Notice) and one.error]
    assert isinstance(refused.error, AccessDenied)
    assert sum(f"{WORKER}/log?" in line for line in api.requests) == 1


def test_one_log_that_cannot_be_read_does_not_stop_the_others(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    with api.edit("Pod", WORKER) as pod:
        pod["spec"]["containers"].append({"name": "side"})
        pod["status"]["containerStatuses"].append({"name": "side", "state": {"running": {}}})
    api.container_logs["default", WORKER, "side"] = fake_logs.Log([(stamp(1), b"beside\n")])
    side = LogOptions(follow=True, container="side")
    with api.edit("Pod", LAUNCHER) as pod:
        pod["status"]["containerStatuses"].append({"name": "side", "state": {"running": {}}})
    with backend.follow(job, side) as following:
        reader = Reader(following)
        reader.until_said("beside")
        reader.until_turn(LogTurn.REFUSED)
    [refused] = [one for one in reader.items if isinstance(one, Notice) and one.error]
    assert "container side is not valid for pod demo-launcher" in str(refused.error)


def test_a_web_page_in_place_of_a_log_is_refused_once(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    api.fail(rf"{WORKER}/log\?", status=200, body=b"<html>log in</html>", times=9)
    with backend.follow(job, FOLLOW) as following:
        reader = Reader(following)
        reader.until(lambda: LogTurn.REFUSED in reader.turns(chief=False))
    [refused] = [one for one in reader.items if isinstance(one, Notice) and one.error]
    assert refused.source.pod == WORKER
    assert refused.error is not None
    assert "does not answer like a Kubernetes API server" in refused.error.message
    assert refused.error.why == "the answer is a web page"
    assert sum(f"{WORKER}/log?" in line for line in api.requests) == 1


def test_a_log_that_is_not_followed_is_given_up_after_the_time_of_a_request(
    api: FakeApi, operator: FakeOperator, tmp_path: Path
):
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config, request_timeout=2.0))
    job = running(backend, operator, "one")
    api.fail(rf"{WORKER}/log\?", silent=True)
    with backend.follow(job, LogOptions()) as following:
        reader = Reader(following)
        reader.until_done()
    [refused] = [one for one in reader.items if isinstance(one, Notice) and one.error]
    assert refused.turn is LogTurn.REFUSED
    assert str(refused.error) == f"no more of the log of {WORKER} came for 2 s"
    assert reader.texts() == ["one"]


def test_logs_are_requested_uncompressed(backend: KubernetesBackend):
    """Without `Accept-Encoding` a gateway may choose a compression (RFC 9110, 12.5.3)."""
    ours, peer = socket.socketpair()
    with ours, peer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend.api, "dialled", lambda _timeout: ours)
        backend.api.asked("/api/v1/namespaces/default/pods/demo/log", {}, None)
        with peer.makefile("rb") as sent:
            sent.readline()
            head = http.client.parse_headers(sent)
    assert head["accept-encoding"] == "identity"


def test_a_job_that_is_not_there_is_not_found(backend: KubernetesBackend, operator: FakeOperator):
    job = running(backend, operator)
    backend.delete("demo", "default")
    with (
        backend.follow(job, FOLLOW) as following,
        pytest.raises(JobNotFound, match="no job demo in namespace"),
    ):
        Reader(following).until_done()


def test_a_server_that_is_away_for_a_while_is_waited_for(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("one")
        api.fail("GET", times=40, reset=True)
        api.cut_logs()
        operator.say("demo", "two")
        reader.until_said("two")
    assert reader.texts() == ["one", "two"]


def test_a_server_that_stays_away_is_an_error_in_the_end(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(pod_lister, "MAX_UNREACHABLE", 0.5)
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("one")
        api.close()
        with pytest.raises(ClusterError, match=r"does not accept connections|broke"):
            reader.until_done()
    assert reader.texts() == ["one"]


def test_silent_containers_do_not_keep_others_from_being_read(
    backend: KubernetesBackend, operator: FakeOperator
):
    # A kubelet answers nothing at all before there is a line.
    job = running(backend, operator, workers=40)
    with backend.follow(job, FOLLOW) as following:
        reader = Reader(following)
        reader.until(lambda: reader.turns(chief=False).count(LogTurn.JOINED) == 41)
        operator.api.write("demo-worker-39", "here", at=stamp(1))
        reader.until_said("here")


def test_whoever_leaves_leaves_no_thread(backend: KubernetesBackend, operator: FakeOperator):
    job = running(backend, operator, workers=5)
    before = set(threading.enumerate())
    with backend.follow(job, FOLLOW) as following:
        reader = Reader(following)
        reader.until(lambda: reader.turns(chief=False).count(LogTurn.JOINED) == 6)
        # The fake server has threads of its own.
        ours = [
            one
            for one in set(threading.enumerate()) - before
            if re.search(r"\((_work)\)", one.name)
        ]
        assert ours
    for one in ours:
        one.join(10)
        assert not one.is_alive(), one


def test_whoever_leaves_as_logs_begin_leaves_no_thread(
    backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, workers=20)
    before = set(threading.enumerate())
    for _ in range(20):
        with backend.follow(job, FOLLOW) as following:
            while not any("(_work)" in one.name for one in set(threading.enumerate()) - before):
                following.read(0)
    ours = [
        one for one in set(threading.enumerate()) - before if re.search(r"\((_work)\)", one.name)
    ]
    for one in ours:
        one.join(10)
        assert not one.is_alive(), one


@pytest.mark.parametrize(
    ("head", "body", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"one", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"one", False),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"one", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\none\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\none\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"xyz\r\none", False),
        *(
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                size + b"\r\none\r\n0\r\n\r\n",
                False,
            )
            for size in (b"0x3", b"+3", b"-3", b"0_3", b" 0x3", b";3")
        ),
        (b"SSH-2.0-OpenSSH\r\n", b"", False),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_an_answer_that_ends_early_or_is_no_http_is_broken(
    head: bytes, body: bytes, *, whole: bool, step: int
):
    response, wire, said = Response(), head + body, b""

    def read() -> bytes:
        came = [response.feed(wire[at : at + step]) for at in range(0, len(wire), step)]
        return b"".join(came) if response.ended else b"".join([*came, response.feed(b"")])

    if whole:
        said = read()
        assert (said, response.ended) == (body and b"one", True)
    else:
        with pytest.raises((http.client.HTTPException, ValueError)):
            read()


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from([b"", b";name=value"]),
    st.data(),
)
def test_a_body_in_chunks_is_decoded_wherever_its_bytes_break(
    chunks: list[bytes], more: bytes, data: st.DataObject
):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = head + b"".join(b"%x%b\r\n%b\r\n" % (len(one), more, one) for one in chunks)
    wire += b"0\r\n\r\n"
    response, said, at = Response(), b"", 0
    while at < len(wire) and not response.ended:
        step = data.draw(st.integers(1, 30))
        said += response.feed(wire[at : at + step])
        at += step
    assert response.ended
    assert (response.status, said) == (200, b"".join(chunks))


def test_sixty_four_workers_are_read_whole_and_in_their_order(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, workers=64)
    with api.lock:
        for worker in range(64):
            for number in range(100):
                api.write(f"demo-worker-{worker}", f"{worker} {number}", at=stamp(number))
    with backend.follow(job, FOLLOW, lambda source: not source.chief) as following:
        reader = Reader(following)
        reader.until(lambda: len(reader.lines) >= 6400)
        reader.items += following.read(0.1)
    for worker in range(64):
        mine = [line.text.decode() for line in reader.lines if line.source.worker == worker]
        assert mine == [f"{worker} {number}" for number in range(100)]


def test_whoever_follows_many_logs_may_open_as_many_files_as_it_takes(
    backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, workers=20)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, before[1]))
        with backend.follow(job, FOLLOW) as following:
            Reader(following).until(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 80)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_since_cuts_off_what_is_older(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    for number in (5, 15, 25):
        api.write(LAUNCHER, f"line {number}", at=stamp(number))
    since = LogOptions(follow=True, since_time="2026-11-21T07:00:01Z")
    with backend.follow(job, since, is_chief) as following:
        reader = Reader(following)
        reader.until_said("line 25")
        api.cut_logs()
        operator.finish("demo")
        reader.until_done()
    assert reader.texts() == ["line 15", "line 25"]


def test_a_tail_that_broke_before_its_first_line_loses_nothing_written_since(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    log = api.logs["default", LAUNCHER] = fake_logs.Log()
    log.lines.append(("2020-01-01T00:00:00.000000000Z", b"long ago\n"))
    log.breaks_at = [3]
    tail = LogOptions(follow=True, tail=1)

    def late() -> None:
        with api.lock:
            now = fake_logs.rfc3339_nano(api.clock() + 1)
            log.lines += [(now, b"one\n"), (now, b"two\n"), (now, b"three\n")]

    api.before(f"{LAUNCHER}/log.*sinceTime", late)
    with backend.follow(job, tail, is_chief) as following:
        reader = Reader(following)
        reader.until_said("three")
    assert reader.texts() == ["one", "two", "three"]


@pytest.mark.parametrize("through", ["nothing", "http", "https"])
def test_logs_come_over_tls_as_well(tmp_path: Path, through: str, monkeypatch: pytest.MonkeyPatch):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    api = FakeApi(tls=context)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    proxy = Proxy(api.url, own if through == "https" else None)
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    try:
        cluster = {"certificate-authority": str(TLS / "ca.pem")}
        if through != "nothing":
            cluster["proxy-url"] = f"{through}://127.0.0.1:{proxy.port}"
        config = kubeconfig(
            tmp_path / "config", api.url, user={"username": "alice"}, cluster=cluster
        )
        backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
        backend.look_every = 0.1
        operator = FakeOperator(api)
        job = running(backend, operator, workers=2)
        api.write(LAUNCHER, b"x" * 200_000 + b"\n" + b"short\n" * 2000 + b"end\n", at=stamp(1))
        with backend.follow(job, FOLLOW, is_chief) as following:
            reader = Reader(following)
            reader.until_said("end")
            # Such a connection ends without a word of TLS, as of a server that is killed.
            api.cut_logs()
            reader.until(lambda: LogTurn.BROKEN in reader.turns())
            operator.say("demo", "again")
            reader.until_said("again")
        assert len(reader.lines) == 2003
        assert sum(len(line.text) for line in reader.lines) == 200_000 + 10_000 + 8
        assert bool(proxy.asked) == (through != "nothing")
        backend.api.close()
    finally:
        api.close()
        proxy.close()


def test_a_token_that_has_run_out_is_asked_for_anew_once(api: FakeApi, tmp_path: Path):
    rotated = tmp_path / "token"
    rotated.write_text("first")
    api.tokens = {"first": "bob", "second": "bob"}
    backend = opened(api, tmp_path, tokenFile=str(rotated))
    operator = FakeOperator(api)
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("one")
        rotated.write_text("second")
        del api.tokens["first"]
        api.cut_logs()
        operator.say("demo", "two")
        reader.until_said("two")
    assert reader.texts() == ["one", "two"]


def test_whoever_leaves_while_a_server_does_not_answer_leaves_at_once(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator, "one")
    held = threading.Event()
    api.before("GET .*/pods", held.wait)
    with backend.follow(job, FOLLOW) as following:
        assert following.read(0.1) == []
        leaver = threading.Thread(target=following.__exit__, args=(None, None, None))
        leaver.start()
        leaver.join(10)
        assert not leaver.is_alive()
    held.set()


def test_more_streams_than_files_may_be_open_say_so(
    backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    job = running(backend, operator, "one")

    def none_left(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    job = backend.job("demo", "default")
    with backend.follow(job, FOLLOW, is_chief) as following:
        reader = Reader(following)
        reader.until_said("one")
        monkeypatch.setattr(socket, "socket", none_left)
        operator.api.cut_logs()
        with pytest.raises(ArenaError, match="too many"):
            reader.until_done()
        monkeypatch.undo()


def test_what_waits_for_a_reader_that_does_not_read_is_bounded(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(followed, "ROOM", 4 * followed.PIECE)
    job = running(backend, operator, workers=16)
    with api.lock:
        for worker in range(16):
            api.write(f"demo-worker-{worker}", (b"z" * 999 + b"\n") * 200, at=stamp(2))
    with backend.follow(job, FOLLOW, lambda source: not source.chief) as following:
        lines, most = 0, 0
        while lines < 16 * 200:
            time.sleep(0.05)
            came = sum(isinstance(one, Line) for one in following.read(1.0))
            lines, most = lines + came, max(most, came)
        assert following.read(0.0) == []
    # The last piece from a socket may come on top.
    assert most <= 5 * followed.PIECE // 1000 + 4
    assert following.read(0.0) == []
