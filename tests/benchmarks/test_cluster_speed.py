"""Whole commands against an API server on this machine: `python -m pytest tests/benchmarks -s`.

Bars, whole process: `get` one job on a cluster of 2,000 pods 0.25 s; `list` 100 jobs with 500 pods
0.45 s; `--help` and `version` 0.15 s. The server is a process of its own. Beside each command stand
the time that the server computes for it, that of a bare client that sends the same reads and does
nothing with the answers, and the CPU time of a process that reads them and runs `json.loads`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_api import FakeApi, kubeconfig, rfc3339
from fake_cluster import FakeCluster

from arena_topo.admin.controller import REASON_PERIOD, Controller, Wake
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.gang import planning
from arena_topo.gang.stored_job import open_starter
from arena_topo.job import MPIJob
from arena_topo.manifests import MAP, STATE, PlacementForecast, patches, pins
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.cause import in_words
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion
from arena_topo.topology import Cluster, Node, presets, published

PRESET = "dgx-1-v100"
PER_NODE = 8
ROUNDS = 7
MINE = "mine"
"""How the names of jobs begin whose pods this server makes once they are resumed."""

NAMELESS = "without-a-name"
"""The name in a form of which many jobs are made."""

BALLAST: dict[str, Any] = {
    "managedFields": [
        {
            "manager": "kubelet",
            "operation": "Update",
            "fieldsV1": {f"f:{n:03}": {} for n in range(120)},
        }
    ]
}
"""What makes objects as large as those of a real server: 2 KB of who wrote which field."""

IMAGES = [
    {"names": [f"registry.example/team/image-{n}@sha256:{n:064}"], "sizeBytes": 10**9}
    for n in range(50)
]
"""What a kubelet says of its images, by default of 50: 6 KB."""


# ---------------------------------------------------------------- the server, in its own process


def asked(name: str, workers: int, gpus: int) -> MPIJob:
    return MPIJob(
        name=name,
        command="mpirun python train.py",
        image="registry.example/train:1",
        workers=workers,
        gpus=gpus,
        gputopology=True,
        gang=True,
    )


class World:
    """A cluster of DGX-1 machines of which every GPU topology is published."""

    def __init__(self, size: argparse.Namespace) -> None:
        self.api = FakeApi()
        self.living = FakeCluster(self.api)
        self.forms: dict[int, str] = {}
        self.names = [f"node-{index:04}" for index in range(size.nodes)]
        for name in self.names:
            self.node(name)
        per_gang = -(-size.workers // PER_NODE)
        for index in range(size.gangs):
            chosen = self.names[index * per_gang : (index + 1) * per_gang]
            self.gang(f"gang-{index:03}", size.workers, chosen)
        rest = self.names[size.gangs * per_gang :]
        for index in range(size.foreign):
            self.foreign(f"theirs-{index:04}", rest[index % len(rest)], index // len(rest))
        for index in range(size.waiting):
            self.waiting(f"wait-{index:03}", 2 + index % size.shapes)
        self.policies()
        self.api.after(r"PATCH .*/mpijobs/", self.resumed, times=1 << 30)

    def node(self, name: str) -> None:
        self.living.node(name, PER_NODE)
        with self.api.edit("Node", name, "") as node:
            node["metadata"] |= BALLAST
            node["status"]["images"] = IMAGES
        machine = presets.preset_machine(PRESET, name)
        self.api.add(published.config_map(machine, machine.everything))

    def plan(self, name: str, workers: int, gpus: int, nodes: Sequence[str]) -> dict[str, Any]:
        """The MPIJob of a gang placed on some empty nodes, as it is once resumed."""
        job = asked(name, workers, gpus)
        machines = [presets.preset_machine(PRESET, one) for one in nodes]
        on = Cluster(
            nodes=tuple(
                Node(name=one.name, machine=one, free=one.everything, resource="nvidia.com/gpu")
                for one in machines
            )
        )
        plan = planning.plan(job, None, namespace="default", api=ApiVersion.V2BETA1, cluster=on)
        return plan.objects[0]

    def gang(self, name: str, workers: int, nodes: Sequence[str]) -> None:
        """A gang of one-GPU workers that runs."""
        body = self.plan(name, workers, 1, nodes)
        now = rfc3339(self.api.clock())
        running = {"type": "Running", "status": "True", "lastTransitionTime": now}
        body["metadata"] |= BALLAST
        stored = self.api.add(body | {"status": {"conditions": [running], "startTime": now}})
        self.pods(stored)

    def pods(self, mpijob: dict[str, Any]) -> None:
        """All pods of a resumed job, running where its record says."""
        places = parse_map(mpijob["metadata"]["annotations"][MAP])
        spec = mpijob["spec"]["mpiReplicaSpecs"]
        for index, node, gpus in places:
            ids = ",".join(map(str, gpus))
            notes = {"topology.kubernetes.io/gpu-group": ids, "gpu-visible": ids}
            self.pod(mpijob, spec["Worker"]["template"], f"worker-{index}", node, notes)
        self.pod(mpijob, spec["Launcher"]["template"], "launcher-x7k2p", places[0][1], {})

    def pod(
        self,
        mpijob: dict[str, Any],
        template: dict[str, Any],
        role: str,
        node: str,
        notes: dict[str, str],
    ) -> None:
        job = mpijob["metadata"]
        now = rfc3339(self.api.clock())
        meta = template.get("metadata") or {}
        labels = {
            **(meta.get("labels") or {}),
            "training.kubeflow.org/operator-name": "mpi-operator",
            "training.kubeflow.org/job-name": job["name"],
            "training.kubeflow.org/job-role": role.partition("-")[0],
        }
        labels.pop("arena-topo.io/inline", None)
        owner = {"kind": "MPIJob", "name": job["name"], "uid": job["uid"], "controller": True}
        spec = {key: template["spec"][key] for key in template["spec"] if key != "schedulingGates"}
        kinds = ("Initialized", "ContainersReady", "Ready", "PodScheduled")
        conditions = [{"type": one, "status": "True", "lastTransitionTime": now} for one in kinds]
        container = spec["containers"][0]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job['name']}-{role}",
                "namespace": job["namespace"],
                "labels": labels,
                "annotations": {**(meta.get("annotations") or {}), **notes},
                "ownerReferences": [owner],
                **BALLAST,
            },
            "spec": {**spec, "nodeName": node},
            "status": {
                "phase": "Running",
                "hostIP": "10.0.0.1",
                "podIP": "172.27.0.10",
                "startTime": now,
                "conditions": conditions,
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "ready": True,
                        "state": {"running": {"startedAt": now}},
                    }
                ],
            },
        }
        self.api.add(body)

    def foreign(self, name: str, node: str, gpu: int) -> None:
        notes = {"topology.kubernetes.io/gpu-group": str(gpu)}
        self.living.pod(name, node, 1, annotations=notes)
        with self.api.edit("Pod", name) as body:
            body["metadata"] |= BALLAST
            body["status"] = {"phase": "Running"}

    def waiting(self, name: str, nodes: int) -> None:
        """A gang that waits for whole machines, of which none is free."""
        if nodes not in self.forms:
            job = asked(NAMELESS, nodes, PER_NODE)
            body = self.plan(NAMELESS, nodes, PER_NODE, self.names[:nodes])
            form = patches.as_suspended(
                pins.without_pins(body),
                PlacementForecast(state="waiting", cause=in_words("it has not been looked at yet")),
                at=None,
                request=request_annotation(job),
            )
            form["metadata"] |= BALLAST
            self.forms[nodes] = json.dumps(form)
        self.api.add(json.loads(self.forms[nodes].replace(NAMELESS, name)))

    def policies(self) -> None:
        """What `arena-topo install` sets up, without the agent and the controller."""
        import yaml  # noqa: PLC0415  only here

        if self.api.find("Namespace", "arena-topo-system", "") is None:
            meta = {"name": "arena-topo-system"}
            self.api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        command = [sys.executable, "-m", "arena_topo", "install"]
        image = ["--image", f"registry.example/arena-topo@sha256:{0:064}"]
        done = subprocess.run([*command, *image], capture_output=True, text=True, check=True)
        for one in yaml.safe_load_all(done.stdout):
            if one and "AdmissionPolicy" in one["kind"]:
                self.api.add(one)

    def resumed(self) -> None:
        """Be operator, scheduler and kubelet for the jobs that a benchmark has submitted."""
        for (space, name), entry in list(self.api.tables["mpijobs.kubeflow.org"].items()):
            there = (space, f"{name}-worker-0") in self.api.tables["pods"]
            suspended = entry.thing["spec"]["runPolicy"].get("suspend") is True
            if name.startswith(MINE) and not suspended and not there:
                self.pods(entry.thing)


def serve() -> None:
    """Serve a world of the size asked for; each line read is answered with what was done since.

    A line may name a node that falls silent, `-POD`, a pod that is deleted, or `+POD NODE`, a pod
    with a GPU that is created.
    """
    parser = argparse.ArgumentParser()
    for name in ("nodes", "gangs", "workers", "foreign", "waiting"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=15)
    world = World(parser.parse_args())
    api = world.api
    sys.stdout.write(api.url + "\n")
    sys.stdout.flush()
    start = time.process_time()
    for line in sys.stdin:
        words = line.split()
        if words and words[0].startswith("+"):
            world.foreign(words[0][1:], words[1], 7)
        elif words and words[0].startswith("-"):
            api.remove("pods", "default", words[0][1:])
        elif words:
            world.living.lose(words[0])
        seconds, start = time.process_time() - start, time.process_time()
        found = {"requests": list(api.requests), "seconds": seconds, "crashes": api.crashes}
        api.requests.clear()
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


# ---------------------------------------------------------------- its clients, and their times


@dataclass(slots=True)
class Served:
    """A server in another process."""

    url: str
    config: str
    process: subprocess.Popen[str]

    def tell(self, line: str) -> None:
        """Ask what was done since; a line with words changes something first (`serve`)."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def change(self, line: str) -> None:
        """Change something, and forget the requests until then."""
        assert self.process.stdout is not None
        self.tell(line)
        self.process.stdout.readline()

    def since(self) -> tuple[list[str], float]:
        """The requests since this was asked last, and the CPU time that they took there (s)."""
        assert self.process.stdout is not None
        self.tell("")
        found = json.loads(self.process.stdout.readline())
        assert not found["crashes"], found["crashes"][0]
        return found["requests"], found["seconds"]


@contextmanager
def served(folder: Path, **size: int) -> Iterator[Served]:
    words = [word for name, value in size.items() for word in (f"--{name}", str(value))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, __file__, *words]
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            config = kubeconfig(folder / "config", url, user={"username": "alice"})
            yield Served(url, config, process)
        finally:
            process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process: wall and CPU time in seconds."""

    wall: float
    cpu: float
    text: str


def run(command: Sequence[str], **environment: str) -> Run:
    """Run a command to its end, whatever its exit code is."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert "made a mistake" not in text, text
    return Run(wall=wall, cpu=used.ru_utime + used.ru_stime, text=text)


HEAD = (
    f"{'':28} {'best s':>7} {'median':>7} {'CPU s':>6} {'asked':>6} {'server s':>8} {'bare s':>7}"
    f" {'loads CPU':>9}"
)


def row(name: str, runs: Sequence[Run], more: str = "") -> str:
    walls = [one.wall for one in runs]
    cpu = min(one.cpu for one in runs)
    return f"{name:28} {min(walls):7.3f} {statistics.median(walls):7.3f} {cpu:6.3f}{more}"


def bare(server: Served, requests: Sequence[str], rounds: int = 3) -> float:
    """The best wall time (s) of a client that sends the same reads and drops the answers."""
    import urllib3  # noqa: PLC0415  timed elsewhere

    times = []
    for _ in range(rounds):
        pool = urllib3.PoolManager()
        start = time.perf_counter()
        for line in requests:
            verb, path = line.split(" ", 1)
            if verb == "GET":
                pool.request(verb, server.url + path).data  # noqa: B018  read to its end
        times.append(time.perf_counter() - start)
    server.since()
    return min(times)


LOADER = """
import json, sys, urllib3
pool = urllib3.PoolManager()
for url in sys.argv[1:]:
    json.loads(pool.request("GET", url).data)
"""


def loads(server: Served, requests: Sequence[str], rounds: int = 3) -> float:
    """The least CPU time (s) of a process that sends the same reads and loads their JSON."""
    lines = (line.split(" ", 1) for line in requests)
    urls = [server.url + path for verb, path in lines if verb == "GET" and "watch=" not in path]
    least = min(run([sys.executable, "-c", LOADER, *urls]).cpu for _ in range(rounds))
    server.since()
    return least


def on_server(server: Served, name: str, words: Callable[[int], list[str]], wanted: str) -> str:
    """A row of the table: a command, several times; `wanted` must be in its output."""
    runs, requests, seconds = [], list[str](), list[float]()
    for at in range(-1, ROUNDS):
        server.since()
        one = run([sys.executable, "-m", "arena_topo", *words(at)], KUBECONFIG=server.config)
        assert wanted in one.text, one.text
        requests, spent = server.since()
        # The first one only warms up: modules are compiled, the server writes its JSON.
        if at >= 0:
            runs.append(one)
            seconds.append(spent)
    alone = bare(server, requests)
    loaded = loads(server, requests)
    return row(name, runs, f" {len(requests):6} {min(seconds):8.3f} {alone:7.3f} {loaded:9.3f}")


def test_start_up():
    python = [sys.executable]
    rows = {
        "python -c pass": [*python, "-c", "pass"],
        "import typer": [*python, "-c", "import typer"],
        "import urllib3": [*python, "-c", "import urllib3"],
        "arena-topo version": [*python, "-m", "arena_topo", "version"],
        "arena-topo --help": [*python, "-m", "arena_topo", "--help"],
    }
    print(f"\n{HEAD}")
    for name, command in rows.items():
        print(row(name, [run(command) for _ in range(ROUNDS + 1)][1:]))


def test_looking_at_jobs(tmp_path: Path):
    print(f"\n100 gangs with 2,000 pods on 300 nodes\n{HEAD}")
    with served(tmp_path, nodes=300, gangs=100, workers=19) as server:
        for name, words in (
            ("get", ["get", "gang-042"]),
            ("get -o json", ["get", "gang-042", "-o", "json"]),
            ("list", ["list"]),
        ):
            print(on_server(server, name, lambda _, words=words: words, "gang-042"))
    print("100 gangs with 500 pods on 100 nodes")
    with served(tmp_path, nodes=100, gangs=100, workers=4) as server:
        for name, words in (
            ("list", ["list"]),
            ("list -o json", ["list", "-o", "json"]),
            ("get", ["get", "gang-042"]),
        ):
            print(on_server(server, name, lambda _, words=words: words, "gang-042"))


GANG = ["--workers", "16", "--gpus", "4", "--image", "i", "--gputopology", "--gang", "mpirun true"]


def test_placing_and_explaining(tmp_path: Path):
    size = {"nodes": 2000, "gangs": 200, "workers": 19, "foreign": 4000, "waiting": 1}
    print(f"\n2,000 nodes x 8 GPUs with 8,000 pods\n{HEAD}")
    with served(tmp_path, **size) as server:
        print(on_server(server, "why, of a job that waits", lambda _: ["why", "wait-000"], "wait"))
        print(
            on_server(
                server,
                "plan of 16 x 4 GPUs",
                lambda _: ["plan", "mpi", "--name", "mine", *GANG],
                "node-",
            )
        )
        print(
            on_server(
                server,
                "submit of 16 x 4 GPUs",
                lambda at: ["submit", "mpi", "--name", f"{MINE}-{at + 1}", *GANG],
                "submitted successfully",
            )
        )


def test_a_dump_of_a_large_cluster(tmp_path: Path):
    """The bar: less CPU than `json.load` of the same file, and 150 MB beside the file itself."""
    nodes, pods = 5000, 25_000
    filler = [{"name": f"VAR_{n}", "value": "v" * 60} for n in range(40)]
    offers = {"cpu": "192", "memory": "2113456000Ki", "nvidia.com/gpu": "8"}
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    items: list[dict[str, Any]] = [
        {
            "kind": "Node",
            "metadata": {"name": f"node-{n}", "labels": product, **BALLAST},
            "spec": {},
            "status": {"capacity": offers, "allocatable": offers, "images": IMAGES},
        }
        for n in range(nodes)
    ]
    items += [
        {
            "kind": "Pod",
            "metadata": {"name": f"pod-{n}", "namespace": "default", **BALLAST},
            "spec": {
                "nodeName": f"node-{n % nodes}",
                "containers": [
                    {"env": filler, "resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}
                ],
            },
            "status": {"phase": "Running"},
        }
        for n in range(pods)
    ]
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"kind": "List", "items": items}, separators=(",", ":")))
    print(f"\n{nodes:,} nodes and {pods:,} pods, {path.stat().st_size / 1e6:.0f} MB\n{HEAD}")
    load = [sys.executable, "-c", "import json, sys; json.load(open(sys.argv[1]))", str(path)]
    plan = [*(sys.executable, "-m", "arena_topo", "plan", "mpi"), "--state", str(path), *GANG]
    for name, command in (("json.load", load), ("plan", plan)):
        print(row(name, [run(command) for _ in range(3)]))


def test_rounds_of_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", "")
    print("\n100 waiting gangs, 100 running ones with 2,000 pods on 300 nodes")
    print(f"{'':10} {'wall s':>7} {'CPU s':>6} {'server s':>8} {'asked':>6}  of these")
    with served(tmp_path, nodes=300, gangs=100, workers=19, waiting=100) as server:
        backend = kubernetes.open_kubernetes(Options(kubeconfig=server.config))
        queue, said = backend.queue, list[str]()
        loop = Controller(
            queue=queue,
            starter=open_starter(backend, queue),
            tell=said.append,
        )
        server.since()
        for name in ("first", "second", "third", "fourth"):
            start, cpu = time.perf_counter(), time.process_time()
            loop.round()
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            requests, seconds = server.since()
            kinds = Counter(_kind(line) for line in requests)
            told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))
            print(f"{name:10} {wall:7.3f} {cpu:6.3f} {seconds:8.3f} {len(requests):6}  {told}")
        assert not said, said
        states = {job.state for job in queue.read().jobs if job.name.startswith("wait-")}
        assert states == {"waiting"}, STATE


@pytest.mark.parametrize(("waiting", "shapes"), [(300, 15), (10_000, 50)])
def test_rounds_of_a_controller_that_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, shapes: int
):
    """The bars: 0.05 s of CPU with 300 gangs; 0.5 s, and 100 writes a minute, with 10,000."""
    monkeypatch.setenv("KUBECONFIG", "")
    print(f"\n{waiting:,} waiting gangs of {shapes} shapes, 2,000 nodes and 8,000 pods")
    print(f"{'after':22} {'wall s':>7} {'CPU s':>6} {'asked':>6} {'writes':>6}  of these")
    size = {"nodes": 2000, "gangs": 200, "workers": 19, "foreign": 4000}
    clock = time.monotonic
    with served(tmp_path, **size, waiting=waiting, shapes=shapes) as server:
        backend = kubernetes.open_kubernetes(Options(kubeconfig=server.config))
        queue, wake = backend.queue, Wake()
        assert queue is not None
        loop = Controller(queue=queue, starter=open_starter(backend, queue, patient=True))
        queue.watch(wake.changed)
        queue.read()
        server.since()

        def timed(name: str, *, after: str = "", later: float = 0.0) -> None:
            nonlocal clock
            if after:
                while wake.wait(0.2, 0.2):
                    pass
                server.change(after)
                wake.wait(0.5, 5.0)
            if later:
                before, shift = clock, later
                clock = lambda: before() + shift  # noqa: E731
                loop.clock = clock
            start, cpu = time.perf_counter(), time.process_time()
            loop.round(changed=not later)
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            requests, _ = server.since()
            writes = [line for line in requests if not line.startswith("GET")]
            told = ", ".join(
                f"{n} {kind}" for kind, n in Counter(map(_kind, requests)).most_common(4)
            )
            print(f"{name:22} {wall:7.3f} {cpu:6.3f} {len(requests):6} {len(writes):6}  {told}")

        thresholds = gc.get_threshold()
        try:
            # As the program and its controller collect garbage.
            gc.set_threshold(100_000, 20, 20)
            timed("start")
            gc.freeze()
            timed("nothing")
            timed("a new pod", after="+more-0 node-1999")
            timed("a new pod", after="+more-1 node-1998")
            timed("an ended pod", after="-theirs-0007")
            timed("an ended pod", after="-theirs-0009")
            timed("half a minute", later=REASON_PERIOD + 1)
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            queue.unwatch()


def test_a_controller_with_nothing_to_do(tmp_path: Path):
    print("\na controller on 2,000 nodes and 8,000 pods that all run, then a node that is lost")
    command = [sys.executable, "-m", "arena_topo", "controller", "--kubeconfig"]
    with served(tmp_path, nodes=2000, gangs=200, workers=19, foreign=4000) as server:
        begun = time.perf_counter()
        with subprocess.Popen([*command, server.config], stderr=subprocess.PIPE) as process:
            try:
                seen: list[str] = []
                while not any("configmaps/cluster-view" in one for one in seen):
                    time.sleep(0.5)
                    seen += server.since()[0]
                first, spent = time.perf_counter() - begun, _cpu(process.pid)
                time.sleep(20)
                server.since()
                used, idle = _cpu(process.pid), time.perf_counter()
                time.sleep(60)
                used, idle = _cpu(process.pid) - used, time.perf_counter() - idle
                requests, seconds = server.since()
                lists = [one for one in requests if _kind(one).startswith("GET") and _lists(one)]
                print(
                    f"first round {first:.1f} s, {spent:.1f} s of CPU; then in {idle:.0f} s"
                    f" {len(requests)} requests, {len(lists)} of them lists;"
                    f" {used / idle:.2%} of a core, the server {seconds / idle:.2%};"
                    f" {_memory(process.pid)} MB"
                )
                print(Counter(map(_kind, requests)).most_common(8), lists[:2])
                lost = time.perf_counter()
                server.change("node-0000")
                while not any("PATCH mpijobs" in _kind(one) for one in server.since()[0]):
                    time.sleep(0.2)
                print(
                    f"a gang was moved {time.perf_counter() - lost:.1f} s after its node was lost"
                )
            finally:
                process.kill()


def _cpu(process: int) -> float:
    """The CPU time of a process, in seconds."""
    spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: int) -> int:
    """The resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _lists(line: str) -> bool:
    """Whether a request lists what may be many."""
    path, _, query = line.split(" ", 1)[1].partition("?")
    plurals = ("pods", "nodes", "mpijobs", "configmaps", "topologies", "events", "resourceslices")
    return path.endswith(plurals) and "watch=" not in query


def _kind(line: str) -> str:
    """What a request is about: `GET pods`."""
    verb, path = line.split(" ", 1)
    words = [
        part
        for part in path.partition("?")[0].split("/")
        if part in {"pods", "nodes", "mpijobs", "configmaps", "events", "resourcequotas"}
    ]
    return f"{verb} {words[-1] if words else 'discovery'}"


if __name__ == "__main__":
    serve()
