"""Commands against a server that is slow, overloaded, breaks off or forgets: right, or one error.

Every fault hits each request of a command once; what the command then says and leaves behind is
compared with a run without faults.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from exhaustive import all_but
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import connection
from arena_topo.engines.kubernetes.engine import open_kubernetes
from arena_topo.errors import TimedOut

JOB = ("--name", "a", "--image", "i", "--workers", "2", "--gpus", "2", "--gputopology", "mpirun x")
READS = {"plan": ("plan", "mpi", *JOB), "get": ("get", "b"), "list": ("list",)}
SUBMIT = ("submit", "mpi", *JOB)

PASSING = {
    "overloaded": {"status": 429, "retry_after": 0},
    "internal": {"status": 500},
    "unavailable": {"status": 503},
    "reset": {"reset": True},
    "cut": {"cut": 5},
    "slow": {"delay": 0.01},
}


class World:
    """A living cluster with a job `b`, and the command line."""

    def __init__(self, folder: Any, monkeypatch: Any, capfd: Any) -> None:
        self.api = FakeApi()
        self.config = kubeconfig(folder / "config", self.api.url, user={"username": "alice"})
        monkeypatch.setenv("KUBECONFIG", self.config)
        monkeypatch.setattr(connection, "_FIRST_DELAY", 0.0005)
        self.cluster = FakeCluster(self.api)
        product = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
        for index in range(3):
            self.cluster.node(f"node-{index}", 8, labels=product)
        self._capfd = capfd
        self.run(*SUBMIT, "--name", "b")

    def run(self, *words: str) -> tuple[int, str, str]:
        """A command line while the cluster lives: exit code, stdout, stderr."""
        self.api.requests.clear()
        self._capfd.readouterr()
        with self.cluster.running():
            code = cli.run(words)
        self.api.faults.clear()
        self.api.hooks.clear()
        self.cluster.settle()
        return code, *self._capfd.readouterr()

    def trace(self, *words: str) -> list[str]:
        """The requests of a command, in order, each kind once."""
        self.run(*words)
        return list(dict.fromkeys(self.api.requests))

    def fail(self, line: str, **fault: Any) -> None:
        self.api.fail(f"^{_pattern(line)}$", **fault)

    def close(self) -> None:
        self.api.close()


def _pattern(line: str) -> str:
    # Revisions differ from run to run.
    return re.sub(r"resourceVersion=\d+", r"resourceVersion=\\d+", re.escape(line))


@pytest.fixture
def world(tmp_path, monkeypatch, capfd):
    made = World(tmp_path, monkeypatch, capfd)
    yield made
    made.close()


def without_times(text: str) -> str:
    return re.sub(r"\b\d+[smh]\b", "0s", text)


# ---------------------------------------------------------------- reads


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        *(("plan", fault) for fault in PASSING),
        *((command, fault) for command in ("get", "list") for fault in ("overloaded", "cut")),
        *(
            pytest.param(command, fault, marks=pytest.mark.exhaustive)
            for command in ("get", "list")
            for fault in ("internal", "unavailable", "reset", "slow")
        ),
    ],
)
def test_reads_answer_as_if_nothing_had_happened(world, command, fault):
    words = READS[command]
    wanted = world.run(*words)
    assert wanted[0] == 0
    hit = [line for line in world.trace(*words) if line.startswith("GET ")]
    for line in hit:
        world.fail(line, **PASSING[fault])
    found = world.run(*words)
    assert [without_times(str(one)) for one in found] == [without_times(str(one)) for one in wanted]
    for line in hit:
        met = [one for one in world.api.requests if re.fullmatch(_pattern(line), one)]
        assert len(met) > 1 or fault == "slow", f"{line} was not hit"


@pytest.mark.parametrize("command", READS)
def test_a_list_that_is_forgotten_between_its_pages_is_read_again(world, command):
    for index in range(connection.PAGE + 1):
        world.api.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"old-{index}", "labels": {"app": "mpijob", "release": "b"}},
                "spec": {"containers": [{"name": "main", "image": "theirs"}]},
                "status": {"phase": "Succeeded"},
            }
        )
    wanted = world.run(*READS[command])
    assert [line for line in world.api.requests if "continue=" in line]
    world.api.before("continue=", world.api.compact)
    found = world.run(*READS[command])
    assert len([line for line in world.api.requests if "continue=" in line]) > 1
    assert [without_times(str(one)) for one in found] == [without_times(str(one)) for one in wanted]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 503}, "error: the server is currently unable to handle the request"),
        ({"status": 429, "retry_after": 0}, "error: the server is currently unable to handle"),
        ({"reset": True}, "broke the connection"),
        ({"cut": 5}, "broke the connection"),
    ],
)
@pytest.mark.parametrize("command", [*READS, "submit"])
def test_trouble_that_stays_is_one_clear_line_and_nothing_is_written(world, command, fault, said):
    words = READS.get(command, SUBMIT)
    before = world.api.revision
    world.api.fail("GET .*", times=9999, **fault)
    code, out, err = world.run(*words)
    assert (code, out) == (1, "")
    assert said in err.splitlines()[0]
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert len(err.splitlines()) <= 3
    assert world.api.revision == before


def test_a_server_that_is_slow_throughout_is_given_up_when_the_time_for_all_is_over(world):
    world.api.fail("GET .*", delay=0.05, times=9999)
    engine = open_kubernetes(Options(kubeconfig=world.config, deadline=0.12))
    with pytest.raises(TimedOut) as caught:
        engine.cluster()
    assert caught.value.hint is not None
    assert "--timeout is 0.12 s in all" in caught.value.hint


# ---------------------------------------------------------------- submit


def half(world: World) -> str | None:
    """What is left half of job `a`, or None: it is whole, queued or not there at all."""
    job = world.api.find("MPIJob", "a")
    owned = [
        f"{kind} {one['metadata']['name']}"
        for kind in ("ConfigMap", "Pod", "ResourceClaim")
        for one in world.api.all(kind)
        if one["metadata"]["name"].startswith("a-")
    ]
    if job is None:
        return f"without a job: {owned}" if owned else None
    workers = [
        one for one in world.api.all("Pod") if one["metadata"]["name"].startswith("a-worker-")
    ]
    bound = [one for one in workers if (one.get("spec") or {}).get("nodeName")]
    if job["spec"]["runPolicy"].get("suspend"):
        return f"suspended with workers: {owned}" if workers else None
    return None if len(bound) in {0, 2} else f"{len(bound)} of 2 workers hold GPUs"


LOST = {
    "overloaded": {"status": 429, "retry_after": 0},
    "after it was taken": {"cut": 0},
    "internal": {"status": 500},
    "before it is taken": {"reset": True},
}


@pytest.mark.parametrize("fault", all_but(2, LOST))
def test_submit_leaves_nothing_half_whichever_request_goes_wrong(world, fault):
    lines = world.trace(*SUBMIT)
    world.run("delete", "a")
    wrong, codes = [], set()
    # Before the first write there is nothing that could stay behind.
    for line in lines[lines.index("POST /apis/kubeflow.org/v2beta1/namespaces/default/mpijobs") :]:
        world.fail(line, **LOST[fault])
        code, _out, err = world.run(*SUBMIT)
        codes.add(code)
        if fault == "overloaded" and code:
            wrong.append(f"{line}: gave up: {err}")
        if "Traceback" in err or "made a mistake" in err:
            wrong.append(f"{line}: {err}")
        if code and sum(one.startswith("error: ") for one in err.splitlines()) != 1:
            wrong.append(f"{line}: {err}")
        if left := half(world):
            wrong.append(f"{line}: {left}")
        if world.api.find("MPIJob", "a"):
            assert world.run("delete", "a")[0] == 0
        if left := half(world):
            wrong.append(f"{line}: after delete {left}")
    assert not wrong
    assert 0 in codes
