"""The real cluster of `tests/cluster/run`, as its end-to-end tests use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusters import KUBELET, LABEL, REAL, Live
from controlplane import LOGS

from arena_topo.manifests import MAP, STATE, install
from arena_topo.manifests.annotations import parse_map
from arena_topo.topology import TAINT, presets, published

Object = dict[str, Any]

PROGRAMS = os.environ.get("ARENA_TOPO_TEST_PROGRAMS", "")
FOLDER = os.environ.get("ARENA_TOPO_TEST_FOLDER", "")
"""The folder of the control plane."""
JOBS = "kubeflow.org/v2beta1"
PRODUCT = "Tesla-V100-SXM2-32GB"
IMAGE = f"registry.example/arena-topo@sha256:{'0' * 64}"
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Done:
    """What a command said."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Real:
    """A namespace on the real cluster, with machines under the names that a test gives them."""

    live: Live
    home: Path
    nodes: list[str] = field(default_factory=list)

    # Commands.

    def arena(self, *words: str, config: str = "", timeout: float = 120, **env: str) -> Done:
        """Run arena-topo in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "arena_topo", *words],
            env=self.env(config, **env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def kubectl(self, *words: str, text: str = "", code: int = 0) -> str:
        """Run kubectl as the administrator; what it says on stdout."""
        done = subprocess.run(
            [f"{PROGRAMS}/kubectl", *words],
            env=self.env(),
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def env(self, config: str = "", **more: str) -> dict[str, str]:
        """The environment of a command, with the kubeconfig of an admin unless another is given."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "KUBECONFIG": config or self.live.config,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            **more,
        }

    def config(self, *, token: str, server: str = "") -> str:
        """The kubeconfig of whoever has a token, perhaps for another API server."""
        document = json.loads(Path(self.live.config).read_text())
        document["users"][0]["user"] = {"token": token}
        document["contexts"][0]["context"]["namespace"] = self.live.namespace
        if server:
            document["clusters"][0]["cluster"]["server"] = server
        path = self.home / f"{token[-12:]}{server[-5:]}.kubeconfig"
        path.write_text(json.dumps(document))
        return str(path)

    def account(self, name: str, namespace: str) -> str:
        """The kubeconfig of a service account, with a token that the API server gives out."""
        return self.config(token=self.kubectl("create", "token", name, "-n", namespace).strip())

    @contextmanager
    def controller(self, *words: str, name: str = "controller") -> Iterator[Path]:
        """The controller as its service account, for as long as the block runs; its log."""
        process, log = self.start_controller(*words, name=name)
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)

    def start_controller(
        self, *words: str, name: str = "controller"
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the controller as its service account; its log."""
        config = self.account(install.CONTROLLER, install.SYSTEM)
        log = self.home / f"{name}.log"
        with log.open("wb") as told:
            process = subprocess.Popen(
                [sys.executable, "-m", "arena_topo", "controller", *words],
                env=self.env(config),
                stdout=told,
                stderr=subprocess.STDOUT,
            )
        return process, log

    # Machines.

    def machine(self, name: str, *, kept: bool = False, gpus: int = 8, **labels: str) -> None:
        """Add a DGX-1 V100 whose topology an agent has published; `kept` for topology jobs."""
        labels = {
            "kubernetes.io/hostname": name,
            "nvidia.com/gpu.product": PRODUCT,
            "nvidia.com/gpu.count": "8",
            KUBELET: "kwok",
            LABEL: self.live.run,
            **({TAINT: "true"} if kept else {}),
            **labels,
        }
        taints = [{"key": TAINT, "value": "true", "effect": "NoSchedule"}] if kept else []
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
        }
        self.called("POST", "/api/v1/nodes", node)
        self.nodes.append(name)
        offers = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        if gpus:
            offers["nvidia.com/gpu"] = str(gpus)
        status = {"status": {"capacity": offers, "allocatable": offers}}
        self.called("PATCH", f"/api/v1/nodes/{name}/status", status, kind="strategic")
        if gpus:
            its = presets.preset_machine("dgx-1-v100", name)
            links = published.config_map(its, its.everything, namespace=install.SYSTEM)
            self.called("POST", f"/api/v1/namespaces/{install.SYSTEM}/configmaps", links)

    def machines(self, count: int, **how: Any) -> None:
        """Add node-0, node-1, ..., and wait until pods may be bound to them."""
        for index in range(count):
            self.machine(f"node-{index}", **how)
        self.until(
            lambda: (
                not any(
                    one["key"].startswith("node.kubernetes.io/")
                    for name in self.nodes
                    for one in self.node(name)["spec"].get("taints") or ()
                )
            ),
            "the machines are ready",
        )

    def node(self, name: str) -> Object:
        """A Node as it is stored."""
        return self.called("GET", f"/api/v1/nodes/{name}")

    def silence(self, name: str, *, on: bool = True) -> None:
        """Let a kubelet fall silent, or speak again."""
        labels = {"metadata": {"labels": {KUBELET: None if on else "kwok"}}}
        self.called("PATCH", f"/api/v1/nodes/{name}", labels, kind="merge")

    def tell(self, pod: str, word: str, value: str) -> None:
        """Tell the kubelet of a pod what becomes of it (tests/cluster/stages.yaml)."""
        note = {"metadata": {"annotations": {f"test.arena-topo.io/{word}": value}}}
        self.called("PATCH", self.live.path("pods", pod), note, kind="merge")

    # Logs of containers.

    def log(self, pod: str, *, container: str = "", run: int = 0) -> Path:
        """The log of a container of a pod, by default the first, where its kubelet reads it."""
        thing = self.called("GET", self.live.path("pods", pod))
        meta, container = thing["metadata"], container or thing["spec"]["containers"][0]["name"]
        folder = Path(FOLDER, LOGS, f"{meta['namespace']}_{pod}_{meta['uid']}", container)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{run}.log"

    # What the server says.

    def called(self, method: str, path: str, body: Any = None, **how: Any) -> Any:
        """The object that a request is answered with, which has to succeed."""
        answer = self.live.call(method, path, body, **how)
        assert answer.status < 300, f"{method} {path}: {answer.said}"
        return answer.body

    def job(self, name: str) -> Object:
        """An MPIJob as it is stored."""
        return self.called("GET", self.live.path("mpijobs", name, group=JOBS))

    def pods(self) -> dict[str, Object]:
        """The pods of the namespace that are not on their way out, by name."""
        found = self.called("GET", self.live.path("pods"))["items"]
        return {
            one["metadata"]["name"]: one
            for one in found
            if "deletionTimestamp" not in one["metadata"]
        }

    def launcher(self, name: str) -> str:
        """The pod of a job's launcher, once it runs; it may be created after the workers."""

        def running() -> list[str]:
            return [
                pod
                for pod, thing in self.pods().items()
                if pod.startswith(f"{name}-launcher")
                and (thing.get("status") or {}).get("phase") == "Running"
            ]

        self.until(running, "the launcher runs")
        return running()[0]

    def gone(self, name: str) -> bool:
        """Whether a job has no pods, not even pods on their way out, which hold their GPUs."""
        pods = self.called("GET", self.live.path("pods"))["items"]
        return not any(pod["metadata"]["name"].startswith(f"{name}-") for pod in pods)

    def planned(self, name: str) -> dict[str, str]:
        """The node of each worker, as it is recorded on the job; empty while it waits."""
        notes = self.job(name)["metadata"]["annotations"]
        if notes[STATE] != "placed":
            return {}
        return {f"{name}-worker-{index}": node for index, node, _ in parse_map(notes[MAP])}

    def bound(self, name: str) -> dict[str, str]:
        """The node of each worker that has one and runs."""
        return {
            pod: thing["spec"]["nodeName"]
            for pod, thing in self.pods().items()
            if pod.startswith(f"{name}-worker-")
            and thing["spec"].get("nodeName")
            and (thing.get("status") or {}).get("phase") == "Running"
        }

    def exact(self, name: str) -> bool:
        """Whether all workers of a job run where the record says."""
        planned = self.planned(name)
        return bool(planned) and self.bound(name) == planned

    def until(
        self, holds: Callable[[], object], what: str | Callable[[], str], patience: float = PATIENCE
    ) -> None:
        """Wait until something holds; `what` may be a function, called when it did not.

        Raises:
            AssertionError: it did not in time.
        """
        deadline = time.monotonic() + patience
        while not holds():
            if time.monotonic() >= deadline:
                said = what if isinstance(what, str) else what()
                raise AssertionError(f"not after {patience:.0f} s: {said}")
            time.sleep(0.1)

    def close(self) -> None:
        """Delete what the test has made, and wait until the machines hold nothing."""
        path = self.live.path("mpijobs", group=JOBS)
        self.live.call("DELETE", path)
        for name in self.nodes:
            if self.live.call("GET", f"/api/v1/nodes/{name}").status < 300:
                self.silence(name, on=False)
        self.until(
            lambda: not self.called("GET", self.live.path("pods"))["items"], "all pods are gone"
        )
        for name in self.nodes:
            self.live.call("DELETE", f"/api/v1/nodes/{name}")
            links = f"/api/v1/namespaces/{install.SYSTEM}/configmaps"
            self.live.call("DELETE", links, labelSelector=f"nodename={name}")
        # Without its machine nobody confirms the end of a pod for most of a minute.
        for pod in self.called("GET", "/api/v1/pods")["items"]:
            if pod["spec"].get("nodeName") in self.nodes:
                meta = pod["metadata"]
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                self.live.call("DELETE", path, {"gracePeriodSeconds": 0})


def words(name: str, workers: int, gpus: int, *more: str) -> tuple[str, ...]:
    """The command line of a gang."""
    return (
        *("submit", "mpi", f"--name={name}", "--image=fine", f"--workers={workers}"),
        *(f"--gpus={gpus}", "--gputopology", "--gang", *more, "mpirun true"),
    )


def here() -> bool:
    """Whether these tests can run."""
    return bool(REAL and PROGRAMS)
