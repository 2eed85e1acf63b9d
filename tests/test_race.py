"""Many processes at once against one API server over HTTP: no GPU is ever given twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from cube_mesh import machine, matrix
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.gang.fairness import STALE_RECORD_SECONDS
from arena_topo.gang.resume import resume_job
from arena_topo.manifests import FORECAST, GPU_GROUP, MAP, STATE
from arena_topo.manifests.annotations import parse_map
from arena_topo.topology import TAINT, published

SUBMITTING = Path(__file__).with_name("submitting.py")
OFF = 5
"""Seconds by which the clock of the server is wrong."""
LINKS = matrix(8, {(one, one + 1): 1 for one in range(0, 8, 2)})


class Guarded(FakeApi):
    """A server that looks after every write whether some GPU is now held twice.

    Its clock is `OFF` now to one side and now to the other, and all jobs are of one age.
    """

    def __init__(self) -> None:
        super().__init__()
        self.twice: list[str] = []
        self.looks = 0
        self.mutators.append(self._aged)
        self._dice = random.Random(0)

    @staticmethod
    def _aged(resource: Any, thing: dict[str, Any], operation: str) -> None:
        if resource.plural == "mpijobs" and operation == "CREATE":
            thing["metadata"]["creationTimestamp"] = "2026-11-21T07:00:00Z"

    def date(self) -> str:
        return formatdate(self.clock() + self._dice.choice((-OFF, OFF)), usegmt=True)

    def store(self, resource: Any, key: Any, thing: dict[str, Any]) -> None:
        super().store(resource, key, thing)
        if resource.plural in {"mpijobs", "pods"}:
            self.looks += 1
            self._look()

    def _look(self) -> None:
        holders: dict[tuple[str, str], str] = {}
        for (_, name), entry in self.tables["mpijobs.kubeflow.org"].items():
            if entry.thing["spec"]["runPolicy"].get("suspend") is False:
                for worker, node, gpus in workers_of(entry.thing):
                    self._held(holders, node, gpus, f"{name}-worker-{worker}")
        holders = {}
        for (_, name), entry in self.tables["pods"].items():
            spec, meta = entry.thing["spec"], entry.thing["metadata"]
            over = entry.thing.get("status", {}).get("phase") in {"Succeeded", "Failed"}
            gpus = (meta.get("annotations") or {}).get(GPU_GROUP)
            if spec.get("nodeName") and gpus and not over:
                self._held(holders, spec["nodeName"], tuple(gpus.split(",")), name)

    def _held(
        self, holders: dict[tuple[str, str], str], node: str, gpus: tuple[Any, ...], who: str
    ) -> None:
        for gpu in gpus:
            other = holders.setdefault((node, str(gpu)), who)
            if other != who:
                self.twice.append(f"GPU {gpu} of {node}: {other} and {who}")


def workers_of(job: dict[str, Any]) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
    return parse_map(job["metadata"]["annotations"][MAP])


class World:
    """Machines that are kept for arena-topo, so that GPUs are chosen one by one."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.api = Guarded()
        self.cluster = FakeCluster(self.api)
        for index in range(nodes):
            name = f"node-{index}"
            taint = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
            self.cluster.node(name, labels={TAINT: "true"}, taints=[taint])
            its = machine(name, "V100", LINKS)
            self.api.add(published.config_map(its, its.everything))
        self.config = kubeconfig(folder / "config", self.api.url, user={"username": "alice"})

    def backend(self) -> kubernetes.KubernetesBackend:
        return kubernetes.open_kubernetes(Options(kubeconfig=self.config))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(SUBMITTING), self.config, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def jobs(self) -> dict[str, dict[str, Any]]:
        with self.api.lock:
            found = {one["metadata"]["name"]: one for one in self.api.all("MPIJob")}
            return json.loads(json.dumps(found))

    def states(self) -> dict[str, set[str]]:
        """The names of the jobs that run, and of those that wait; any other is a mistake."""
        found: dict[str, set[str]] = {"run": set(), "wait": set(), "else": set()}
        for name, job in self.jobs().items():
            notes, suspended = job["metadata"]["annotations"], job["spec"]["runPolicy"]["suspend"]
            waits = notes[STATE] == "waiting" and json.loads(notes[FORECAST]).get("reason")
            runs = notes[STATE] == "placed" and not suspended
            found["run" if runs else "wait" if waits and suspended else "else"].add(name)
        return found


@pytest.fixture
def world(tmp_path, request) -> Iterator[World]:
    world = World(tmp_path, request.param)
    try:
        with world.cluster.running():
            yield world
    finally:
        world.api.close()
    assert not world.api.crashes, world.api.crashes[-1]


@pytest.mark.parametrize(
    ("world", "many", "gangs"),
    [(3, 3, 24), pytest.param(15, 8, 200, marks=pytest.mark.exhaustive)],
    indirect=["world"],
)
def test_many_processes_place_more_gangs_than_there_is_room_for(
    world: World, many: int, gangs: int
) -> None:
    """Each gang takes two GPUs, in two pods."""
    names = [f"gang-{index}" for index in range(gangs)]
    room = 4 * len(world.cluster.api.all("Node"))
    processes = [world.start(*names[first::many]) for first in range(many)]
    said: dict[str, Any] = {}
    for one in processes:
        out, err = one.communicate(timeout=300)
        assert one.returncode == 0, err
        said |= {line["name"]: line for line in map(json.loads, out.splitlines())}
    assert world.api.twice == []
    assert world.api.looks > 5 * gangs
    assert not [line for line in said.values() if "error" in line]
    states = world.states()
    assert states["else"] == set()
    assert states["run"] | states["wait"] == set(names)
    # Whoever yielded to one that yielded in its turn waits although there is room.
    assert room - room // 6 <= len(states["run"]) <= room
    # Everybody was told what is so.
    assert {name for name, line in said.items() if line["waits"] is None} == states["run"]
    backend = world.backend()
    for name in sorted(states["wait"])[: room - len(states["run"])]:
        assert resume_job(backend, name, "default").resumed, name
    held = [place for name in world.states()["run"] for place in workers_of(world.jobs()[name])]
    assert len(held) == 2 * room
    assert not resume_job(backend, min(world.states()["wait"]), "default").resumed
    assert world.api.twice == []


@pytest.mark.parametrize(
    ("world", "step"),
    [(3, 4), pytest.param(3, 1, marks=pytest.mark.exhaustive)],
    indirect=["world"],
)
def test_processes_that_are_killed_after_each_of_their_requests_lose_nothing(
    world: World, step: int
) -> None:
    """Two such processes beside one that goes on; then a minute passes, and all is tidied up."""
    processes = [world.start("--die", name, str(step)) for name in ("dead-a", "dead-b")]
    processes.append(world.start(*(f"gang-{index}" for index in range(10))))
    for one in processes:
        _, err = one.communicate(timeout=300)
        assert one.returncode == 0, err
    assert world.api.twice == []
    left = world.states()["else"]
    assert left, "some were killed between their record and its use"
    # The clock may have been fast when the youngest record was written, and be slow now.
    world.api.skew = STALE_RECORD_SECONDS + 2 * OFF + 2
    backend = world.backend()
    for name in sorted(world.jobs()):
        if name.startswith("dead"):
            resume_job(backend, name, "default")
            assert world.states()["else"] == set(), "whoever comes first frees what was left"
    assert world.api.twice == []
    for name in sorted(name for name in world.jobs() if name.startswith("dead")):
        backend.delete(name, "default")
    for name in sorted(world.states()["wait"]):
        resume_job(backend, name, "default")
    assert world.states() == {
        "run": {f"gang-{index}" for index in range(10)},
        "wait": set(),
        "else": set(),
    }
    assert world.api.twice == []
