"""Every engine with a world around it that can do to jobs what users and machines do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from fake_operator import FakeOperator

from arena_topo.engines import Options, Phase
from arena_topo.engines.backend import Backend
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.local import engine as local
from arena_topo.job import MPIJob
from arena_topo.manifests import Plan, render
from arena_topo.topology import presets, published


class World(Protocol):
    """An engine with two DGX-1 V100 machines, and hands on what runs there."""

    backend: Backend

    def plan(self, job: MPIJob, **more: Any) -> Plan:
        """What `submit` would apply for a job."""

    def start(self, name: str) -> None:
        """Return once the job runs."""

    def say(self, name: str, line: str) -> None:
        """Let the launcher print a line."""

    def write(self, name: str, data: bytes) -> None:
        """Let the launcher print these very bytes."""

    def retry(self, name: str) -> None:
        """Let the launcher fail, and be tried again; of a job that may (`retry=1`)."""

    def finish(self, name: str, code: int = 0) -> None:
        """Let the launcher end with a code; return once the engine knows."""

    def job(self, name: str, **more: Any) -> MPIJob:
        """A job that runs until it is told to finish."""


def planned(backend: Backend, job: MPIJob, **more: Any) -> Plan:
    """What `submit` would apply for a job on an engine."""
    return render.build_plan(
        job,
        namespace=backend.default_namespace(),
        api=backend.api_version(),
        owner=backend.owner(),
        files={},
        **{"binding": backend.binding, **more},
    )


class KubernetesWorld:
    """The Kubernetes engine over a fake API server, whose operator is the test."""

    def __init__(self, api: FakeApi, backend: Backend) -> None:
        self.api = api
        self.backend = backend
        # The server is on this machine and has nothing else to do.
        backend.look_every = 0.1
        self.operator = FakeOperator(api)
        for index in range(2):
            name = f"node-{index}"
            offers = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
            status = {"capacity": offers, "allocatable": offers}
            api.add({"kind": "Node", "metadata": {"name": name}, "status": status})
            machine = presets.preset_machine("dgx-1-v100", name)
            api.add(published.config_map(machine, machine.everything))

    def job(self, name: str, **more: Any) -> MPIJob:
        return MPIJob(**{"name": name, "command": "mpirun true", "image": "local", **more})

    def plan(self, job: MPIJob, **more: Any) -> Plan:
        self.api.now = self.api.clock() + 1
        return planned(self.backend, job, **more)

    def start(self, name: str) -> None:
        self.operator.start(name)

    def say(self, name: str, line: str) -> None:
        self.operator.say(name, line)

    def write(self, name: str, data: bytes) -> None:
        self.operator.say(name, data)

    def retry(self, name: str) -> None:
        self.operator.retry(name)

    def finish(self, name: str, code: int = 0) -> None:
        self.operator.finish(name, code)


class LivingWorld(KubernetesWorld):
    """The Kubernetes engine over a cluster that acts by itself, as `submit` expects of one."""

    def __init__(self, api: FakeApi, backend: Backend) -> None:
        super().__init__(api, backend)
        self.cluster = FakeCluster(api)

    def start(self, name: str) -> None:
        self._until(name, lambda phase: phase is Phase.RUNNING)

    def finish(self, name: str, code: int = 0) -> None:
        self.cluster.finish(name, code)
        self._until(name, lambda phase: phase.over)

    def _until(self, name: str, reached: Callable[[Phase], bool]) -> None:
        deadline = time.monotonic() + 30
        while not reached(self.backend.job(name, "default").phase):
            assert time.monotonic() < deadline, self.backend.job(name, "default")
            time.sleep(0.02)


@contextmanager
def living_world(folder: Path) -> Iterator[World]:
    """A cluster with an operator, a scheduler and kubelets, all at work."""
    api = FakeApi()
    try:
        config = kubeconfig(folder / "config", api.url, user={"username": "alice"})
        world = LivingWorld(api, kubernetes.open_kubernetes(Options(kubeconfig=config)))
        with world.cluster.running():
            yield world
    finally:
        api.close()


def kubernetes_world(version: str) -> Callable[[Path], AbstractContextManager[World]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[World]:
        api = FakeApi()
        api.versions = [version]
        try:
            config = kubeconfig(folder / "config", api.url, user={"username": "alice"})
            yield KubernetesWorld(api, kubernetes.open_kubernetes(Options(kubeconfig=config)))
        finally:
            api.close()

    return opened


class LocalWorld:
    """The local engine on two emulated machines; its launchers do what a pipe tells them."""

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.backend = backend
        self._folder = folder

    def job(self, name: str, **more: Any) -> MPIJob:
        pipe = self._folder / name
        os.mkfifo(pipe)
        # Held open for writing too, so that the pipe does not end with each word.
        command = (
            f"exec 3<>{pipe}; while read -r verb rest <&3; do case $verb in"
            ' say) echo "$rest";; write) cat "$rest";; end) exit $rest;; esac; done'
        )
        return MPIJob(**{"name": name, "command": command, "image": "local", **more})

    def plan(self, job: MPIJob, **more: Any) -> Plan:
        return planned(self.backend, job, **more)

    def start(self, name: str) -> None:
        self._until(name, lambda phase: phase is Phase.RUNNING)

    def say(self, name: str, line: str) -> None:
        self._tell(name, f"say {line}")

    def write(self, name: str, data: bytes) -> None:
        file = self._folder / f"{name}-{time.monotonic_ns()}"
        file.write_bytes(data)
        self._tell(name, f"write {file}")

    def retry(self, name: str) -> None:
        before = self._launched(name)
        self._tell(name, "end 1")
        deadline = time.monotonic() + 30
        # What is said before the next launcher listens is lost with the pipe of the last.
        while self._launched(name) == before:
            assert time.monotonic() < deadline, self.backend.job(name, "default")
            time.sleep(0.02)

    def _launched(self, name: str) -> float | None:
        chief = self.backend.job(name, "default").chief
        return None if chief is None else chief.started

    def finish(self, name: str, code: int = 0) -> None:
        self._tell(name, f"end {code}")
        self._until(name, lambda phase: phase.over)

    def _tell(self, name: str, words: str) -> None:
        with (self._folder / name).open("w") as pipe:
            pipe.write(words + "\n")

    def _until(self, name: str, reached: Callable[[Phase], bool]) -> None:
        deadline = time.monotonic() + 30
        while not reached(self.backend.job(name, "default").phase):
            assert time.monotonic() < deadline, self.backend.job(name, "default")
            time.sleep(0.02)


@contextmanager
def local_world(folder: Path) -> Iterator[World]:
    backend = local.open_local(Options(backend="local", emulate="dgx-1-v100:2"))
    try:
        yield LocalWorld(folder, backend)
    finally:
        for job in backend.jobs(None):
            backend.delete(job.name, job.namespace)


WORLDS: dict[str, Callable[[Path], AbstractContextManager[World]]] = {
    f"kubernetes-{version}": kubernetes_world(version) for version in ("v2beta1", "v1", "v1alpha1")
} | {"local": local_world}
