"""Following logs on a cluster: what ends unseen, and what is asked for again, and how often."""

from __future__ import annotations

from pathlib import Path

import fake_logs
import pytest
from fake_api import FakeApi
from fake_operator import FakeOperator
from fake_patch import copied
from test_backends_logs import FOLLOW, Reader, is_chief
from test_log_streams import WORKER, opened, running, stamp

from arena_topo.engines.kubernetes import containerlog, pod_lister
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.engines.lines import LogOptions, LogTurn, Notice, Source


@pytest.fixture
def backend(api: FakeApi, tmp_path: Path) -> KubernetesBackend:
    return opened(api, tmp_path)


def is_worker(source: Source) -> bool:
    return source.worker == 0


def test_a_stream_that_stays_open_though_its_pod_is_gone_is_left(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(containerlog, "_SILENCE", 0.3)
    job = running(backend, operator)
    api.write(WORKER, "one", at=stamp(1))
    api.logs["default", WORKER].lingers = True
    with backend.follow(job, FOLLOW, is_worker) as logs:
        reader = Reader(logs)
        reader.until_said("one")
        api.remove("pods", "default", WORKER, {"gracePeriodSeconds": 0})
        reader.until(lambda: LogTurn.GONE in reader.turns(chief=False))
    assert reader.texts() == ["one"]


def test_of_two_runs_between_two_looks_the_one_before_the_last_is_read(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    api.write(WORKER, "run 0", at=stamp(1))
    with backend.follow(job, FOLLOW, is_worker) as logs:
        reader = Reader(logs)
        reader.until_said("run 0")
        api.fail(r"/pods\?", times=1000, status=500, retry_after=9999)
        with api.lock:
            for run in (1, 2):
                fake_logs.restart(api, WORKER)
                late = fake_logs.rfc3339_nano(api.clock() + run)
                api.write(WORKER, f"run {run}", at=late)
        api.faults.clear()
        reader.until_said("run 2")
    assert [(line.text, line.source.run) for line in reader.lines] == [
        (b"run 0", 0),
        (b"run 1", 1),
        (b"run 2", 2),
    ]


def test_nothing_is_done_before_the_pods_were_seen_once_more(
    backend: KubernetesBackend, operator: FakeOperator
):
    """A launcher that is tried again is there by then."""
    backend.look_every = 1.0
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW, is_chief) as logs:
        reader = Reader(logs)
        reader.until_said("one")
        operator.finish("demo")
        reader.until(lambda: LogTurn.ENDED in reader.turns())
        assert not logs.done
        reader.until_done()


def test_the_end_of_a_log_makes_the_pods_be_listed_at_once(
    backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(pod_lister, "LOOK", 10_000.0)
    backend.look_every = 10_000.0
    job = running(backend, operator, "one")
    with backend.follow(job, FOLLOW, is_chief) as logs:
        reader = Reader(logs)
        reader.until_said("one")
        operator.finish("demo")
        reader.until_done()
    assert reader.turns() == [LogTurn.JOINED, LogTurn.ENDED]


def test_a_log_that_is_read_to_its_end_is_not_asked_for_without_end(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator, monkeypatch
):
    monkeypatch.setattr(containerlog, "_SHORTEST", 0.01)
    job = running(backend, operator, "one")
    api.fail(f"{WORKER}/log", times=10_000, status=500, retry_after=9999)
    with backend.follow(job, LogOptions()) as logs:
        reader = Reader(logs)
        reader.until_done()
    assert reader.texts() == ["one"]
    [refused] = [
        one for one in reader.items if isinstance(one, Notice) and one.turn is LogTurn.REFUSED
    ]
    assert refused.source.worker == 0


def test_a_pod_that_was_created_again_while_its_stream_was_broken_is_read_once(
    api: FakeApi, backend: KubernetesBackend, operator: FakeOperator
):
    job = running(backend, operator)
    api.write(WORKER, "of the first", at=stamp(1))
    with backend.follow(job, FOLLOW, is_worker) as logs:
        reader = Reader(logs)
        reader.until_said("of the first")
        # The logs can be read again before the pods can be listed.
        api.fail(f"{WORKER}/log", times=1, status=500, retry_after=9999)
        api.fail(r"/pods\?", times=3, status=500, retry_after=9999)
        api.cut_logs()
        reader.until(lambda: LogTurn.BROKEN in reader.turns(chief=False))
        with api.lock:
            pod = copied(api.get("pods", "default", WORKER))
            first = pod["metadata"]["uid"]
            api.remove("pods", "default", WORKER, {"gracePeriodSeconds": 0})
            del api.logs["default", WORKER]
            for server_side in ("uid", "resourceVersion", "creationTimestamp"):
                pod["metadata"].pop(server_side, None)
            api.add(pod)
            api.write(WORKER, "of the second", at=fake_logs.rfc3339_nano(api.clock() + 1))
        reader.until_said("of the second")
        operator.finish("demo")
        reader.until_done()
    assert [(line.text, line.source.uid == first) for line in reader.lines] == [
        (b"of the first", True),
        (b"of the second", False),
    ]
