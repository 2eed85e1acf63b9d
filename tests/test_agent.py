"""The node agent: a machine, a kubelet and an API server in; the ConfigMap of its node out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from fake_api import FakeApi, kubeconfig
from fake_kubelet import Kubelet, claim, container, plugin, pod

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import connection
from arena_topo.engines.kubernetes.topology_report import open_reports
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, UsageError
from arena_topo.nodes import agent, health
from arena_topo.nodes.agent import Agent
from arena_topo.nodes.health import GpuWatch
from arena_topo.topology import documents, gpu_set, published

NAME = "node-1-gpu-topology"
SYSTEM = "arena-topo-system"
FOUR = ("GPU-aa", "GPU-bb", "GPU-cc", "GPU-dd")


class NVML:
    """The functions of pynvml that a watch calls: GPUs by index, errors as they are told."""

    nvmlEventTypeXidCriticalError = 8  # noqa: N815 (foreign names, as all below)
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16

    class NVMLError(Exception):
        """What pynvml raises."""

        def __init__(self, value: int) -> None:
            super().__init__(f"code {value}")
            self.value = value

    def __init__(self, *uuids: str) -> None:
        self.uuids = list(uuids)
        """By index; an empty one is a GPU that is lost."""
        self.migs: dict[int, list[str]] = {}
        self.lost: set[int] = set()
        self.events: list[tuple[int, int]] = []
        self.listened: set[int] = set()
        self.opened = 0

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: len(self.migs.get(gpu, ())),
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda gpu, at: self.migs[gpu][at],
            "nvmlDeviceGetUUID": lambda gpu: self.uuids[gpu] if isinstance(gpu, int) else gpu,
            "nvmlEventSetCreate": lambda: "events",
            "nvmlEventSetFree": lambda _events: None,
            "nvmlDeviceRegisterEvents": lambda gpu, _kind, _set: self.listened.add(gpu),
        }
        if name in answers:
            return answers[name]
        raise AttributeError(name)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self.uuids:
            raise self.NVMLError(9)  # the driver is not loaded
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if not self.uuids[index]:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> None:  # noqa: N802
        if gpu in self.lost:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        raise self.NVMLError(3)  # not supported, as on GPUs without memory of their own

    def nvmlEventSetWait(self, _set: Any, timeout: int) -> Any:  # noqa: N802
        assert timeout == 0
        if not self.events:
            raise self.NVMLError(10)
        gpu, xid = self.events.pop(0)
        assert gpu in self.listened
        return SimpleNamespace(device=gpu, eventType=8, eventData=xid)


SMI = """#!/bin/sh
case "$1" in
  --query-gpu=index,uuid,name) cat {folder}/query;;
  topo) cat {folder}/topo;;
  *) exit 1;;
esac
"""


class World:
    """A node with a driver, a kubelet and a cluster around it, and the agents that run there."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.api = FakeApi()
        for kind, name in (("Namespace", SYSTEM), ("Node", "node-1")):
            self.api.add({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
        self.config = kubeconfig(folder / "config", self.api.url, user={"username": "agent"})
        self.kubelet = Kubelet(folder / "kubelet.sock")
        self.said: list[str] = []
        self._driver = folder / "driver"
        self._driver.mkdir()
        program = self._driver / "nvidia-smi"
        program.write_text(SMI.format(folder=self._driver))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self._driver}:{os.environ['PATH']}")
        self.nvml = NVML()
        monkeypatch.setattr(health, "_pynvml", lambda: self.nvml)
        self.gpus(*FOUR)

    def gpus(self, *uuids: str, link: str = "NV2") -> None:
        """Let the driver list these GPUs, each linked to each; an empty name is one that is lost.

        Without any the driver is not loaded.
        """
        self.nvml.uuids = list(uuids)
        there = {index: uuid for index, uuid in enumerate(uuids) if uuid}
        names = [f"GPU{index}" for index in there]
        rows = [
            "\t".join([name, *(" X " if name == other else link for other in names)])
            for name in names
        ]
        files = {
            "query": "".join(
                f"{at}, {uuid}, NVIDIA A100-SXM4-40GB\n" for at, uuid in there.items()
            ),
            "topo": "\n".join(["\t" + "\t".join(names), *rows]) + "\n",
        }
        for name, text in files.items():
            (self._driver / name).write_text(text)

    def agent(self, *, token: str | None = None, **how: Any) -> Agent:
        config = self.config
        if token:
            config = kubeconfig(Path(f"{config}-{token}"), self.api.url, user={"token": token})
        how = {"tell": self.said.append, "socket": self.kubelet.socket, **how}
        return Agent(open_reports(Options(kubeconfig=config), "node-1"), "node-1", **how)

    def hold(self, *pods: bytes) -> None:
        self.kubelet.pods = list(pods)

    @property
    def stored(self) -> dict[str, Any]:
        found = self.api.find("ConfigMap", NAME, SYSTEM)
        assert found is not None
        return found

    @property
    def data(self) -> dict[str, str]:
        return self.stored["data"]

    @property
    def health(self) -> list[bool]:
        return [word == "Healthy" for word in json.loads(self.data["devices"]).values()]

    @property
    def allocations(self) -> dict[str, list[int]]:
        return json.loads(self.data["allocations"])

    def heard(self) -> list[str]:
        said, self.said[:] = list(self.said), []
        return said

    def writes(self) -> list[str]:
        return [line for line in self.api.requests if not line.startswith("GET")]

    def close(self) -> None:
        self.kubelet.close()
        self.api.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    yield made
    made.close()


def a_pod(name: str, *ids: str, resource: str = "nvidia.com/gpu") -> bytes:
    return pod(name, container(plugin(resource, *ids)))


# ---------------------------------------------------------------- what is written


def test_the_first_round_writes_links_health_uuids_and_allocations(world):
    world.api.now = 1795280400.0
    world.hold(a_pod("train", "GPU-dd", "GPU-aa"), a_pod("web"))
    world.agent().once()
    assert world.stored["metadata"]["labels"] == {
        "ack.node.gpu.schedule": "topology",
        "nodename": "node-1",
    }
    links = [["N-A" if i == j else "NV2" for j in range(4)] for i in range(4)]
    data = dict(world.data)
    # Whatever this machine's clock says, it is the server's that counts.
    assert published.parse_time(data.pop("observedAt")) == pytest.approx(1795280400, abs=30)
    assert data == {
        "nodeName": "node-1",
        "devices": '{"0":"Healthy","1":"Healthy","2":"Healthy","3":"Healthy"}',
        "linkType": json.dumps(links, separators=(",", ":")),
        "uuids": '["GPU-aa","GPU-bb","GPU-cc","GPU-dd"]',
        "allocations": '{"default/train":[0,3]}',
    }
    assert world.heard() == ["node node-1: 4 x A100, 4 healthy"]


def test_readers_understand_all_of_it(world):
    world.hold(a_pod("train", "GPU-bb"))
    world.gpus("GPU-aa", "GPU-bb", "GPU-cc", "GPU-dd")
    world.agent().once()
    found = documents.gpus_from_config_map(world.stored)
    assert (found.machine.name, found.healthy) == ("node-1", 0b1111)
    assert documents.uuids(world.stored) == FOUR
    assert documents.allocations(world.stored).gpus == {"default/train": gpu_set([1])}


def test_an_unchanged_report_is_written_again_only_to_stay_fresh(world, monkeypatch):
    running = world.agent()
    for _ in range(3):
        running.once()
    assert len(world.writes()) == 1
    before = dict(world.data)
    monkeypatch.setattr(agent, "REPORT_SECONDS", 0.0)
    time.sleep(0.01)
    running.once()
    assert len(world.writes()) == 2
    changed = {key for key in world.data if world.data[key] != before.get(key)}
    assert changed == {"observedAt"}
    assert world.heard() == ["node node-1: 4 x A100, 4 healthy"]


def test_what_others_have_added_stays_but_for_bandwidths_of_other_links(world):
    world.agent().once()
    with world.api.edit("ConfigMap", NAME, SYSTEM) as found:
        found["data"] |= {"note": "theirs", "busBandwidth": '{"0,1":42}'}
        found["metadata"]["labels"]["team"] = "ml"
    later = world.agent()
    world.hold(a_pod("train", "GPU-aa"))
    later.once()
    assert (world.data["note"], world.data["busBandwidth"]) == ("theirs", '{"0,1":42}')
    assert world.stored["metadata"]["labels"]["team"] == "ml"
    world.gpus("GPU-aa", "GPU-bb", "GPU-cc", "GPU-ee", link="NV4")
    later.once()
    assert "busBandwidth" not in world.data
    assert world.data["note"] == "theirs"


def test_a_write_in_between_is_not_lost(world):
    running = world.agent()
    running.once()
    with world.api.edit("ConfigMap", NAME, SYSTEM) as found:
        found["data"]["note"] = "theirs"
    world.hold(a_pod("train", "GPU-aa"))
    running.once()
    assert world.data["note"] == "theirs"
    assert world.allocations == {"default/train": [0]}


def test_a_report_that_was_deleted_is_written_again(world):
    running = world.agent()
    running.once()
    world.api.remove("configmaps", SYSTEM, NAME, {})
    world.hold(a_pod("train", "GPU-aa"))
    running.once()
    assert world.allocations == {"default/train": [0]}


def test_a_constant_concurrent_writer_is_reported_as_another_agent(world):
    running = world.agent()
    running.once()
    world.hold(a_pod("train", "GPU-aa"))

    def touch() -> None:
        with world.api.edit("ConfigMap", NAME, SYSTEM) as found:
            found["data"]["note"] = str(time.monotonic())

    world.api.before("PUT .*", touch, times=99)
    with pytest.raises(ClusterError, match="is being written by another program") as caught:
        running.once()
    assert caught.value.hint == "check that no other agent runs for this node"


# ---------------------------------------------------------------- who holds what


def test_pods_that_come_and_go_are_in_the_report(world):
    running = world.agent()
    running.once()
    world.hold(a_pod("one", "GPU-aa"), a_pod("two", "GPU-bb", "GPU-cc"))
    running.once()
    assert world.allocations == {"default/one": [0], "default/two": [1, 2]}
    world.hold(a_pod("two", "GPU-bb"))
    running.once()
    assert world.allocations == {"default/two": [1]}


def test_shares_parts_and_numbers_are_the_gpu_that_they_are_of(world):
    world.nvml.migs = {3: ["MIG-1234"]}
    world.hold(
        a_pod("share", "GPU-aa::2", resource="nvidia.com/gpu.shared"),
        a_pod("part", "MIG-1234", resource="nvidia.com/mig-3g.20gb"),
        a_pod("counted", "2", resource="aliyun.com/gpu"),
        a_pod("card", "1", resource="rdma/hca"),
    )
    world.agent().once()
    assert world.allocations == {
        "default/counted": [2],
        "default/part": [3],
        "default/share": [0],
    }


def test_an_unknown_gpu_is_reported_once(world):
    world.hold(a_pod("train", "GPU-aa", "GPU-zz"))
    running = world.agent()
    running.once()
    running.once()
    assert world.allocations == {"default/train": [0]}
    told = [line for line in world.heard() if line.startswith("devices")]
    assert told == ["devices: no GPU of this machine is GPU-zz of default/train"]
    world.hold(a_pod("train", "GPU-aa"))
    running.once()
    assert world.heard() == ["devices: recovered"]


def test_claimed_gpus_are_left_to_their_claims(world):
    claims = (claim("gpu.nvidia.com", "node-1", "gpu-0", "gpu-1"),)
    world.hold(pod("train", container(claims=claims)), a_pod("other", "GPU-bb"))
    world.agent().once()
    assert world.allocations == {"default/other": [1]}
    assert not [line for line in world.heard() if line.startswith("devices")]


def test_without_a_kubelet_all_but_the_allocations_are_written(world):
    running = world.agent(socket="/nowhere/kubelet.sock")
    running.once()
    running.once()
    assert world.health == [True] * 4
    assert "allocations" not in world.data
    assert world.heard() == [
        "kubelet: there is no kubelet: /nowhere/kubelet.sock does not exist",
        "node node-1: 4 x A100, 4 healthy",
    ]


def test_a_kubelet_that_stops_answering_takes_its_allocations_with_it(world):
    world.hold(a_pod("train", "GPU-aa"))
    running = world.agent()
    running.once()
    world.heard()
    world.kubelet.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    running.once()
    assert "allocations" not in world.data
    trouble, *_ = world.heard()
    assert trouble.startswith("kubelet: ")
    assert trouble.endswith("does not answer (rejected by rate limit)")
    world.kubelet.code = None
    running.once()
    assert world.allocations == {"default/train": [0]}
    assert world.heard()[0] == "kubelet: recovered"


# ---------------------------------------------------------------- health


def test_a_gpu_that_disappears_stays_in_its_place_and_is_unhealthy(world):
    running = world.agent()
    running.once()
    world.heard()
    world.gpus("GPU-aa", "", "GPU-cc", "GPU-dd")
    running.once()
    assert world.health == [True, False, True, True]
    assert world.heard() == ["GPU 1 (GPU-bb) is unhealthy: it does not answer"]
    world.gpus(*FOUR)
    running.once()
    assert world.health == [True] * 4
    assert world.heard() == ["GPU 1 (GPU-bb) is healthy again"]


def test_an_agent_that_starts_after_a_gpu_was_lost_knows_of_it(world):
    world.agent().once()
    links = world.data["linkType"]
    world.gpus("GPU-aa", "", "GPU-cc", "GPU-dd")
    world.agent().once()
    assert world.health == [True, False, True, True]
    assert (world.data["linkType"], documents.uuids(world.stored)) == (links, FOUR)


def test_once_the_driver_counts_anew_so_does_the_agent(world):
    running = world.agent()
    running.once()
    world.heard()
    world.hold(a_pod("train", "GPU-cc"))
    # After a reboot without GPU 1, GPU 2 has become GPU 1.
    world.gpus("GPU-aa", "GPU-cc", "GPU-dd")
    running.once()
    assert documents.uuids(world.stored) == ("GPU-aa", "GPU-cc", "GPU-dd")
    assert world.health == [True] * 3
    assert world.allocations == {"default/train": [1]}
    assert world.heard() == ["node node-1: 3 x A100, 3 healthy"]


def test_an_exchanged_gpu_is_another_machine(world):
    running = world.agent()
    running.once()
    world.gpus("GPU-aa", "GPU-ee", "GPU-cc", "GPU-dd", link="NV4")
    running.once()
    assert documents.uuids(world.stored) == ("GPU-aa", "GPU-ee", "GPU-cc", "GPU-dd")
    assert "NV4" in world.data["linkType"]


def test_links_that_changed_while_no_agent_ran_are_found(world):
    world.agent().once()
    world.gpus(*FOUR, link="PIX")
    world.agent().once()
    assert "NV2" not in world.data["linkType"]


def test_what_the_device_plugin_does_not_offer_is_unhealthy(world):
    world.kubelet.devices = [plugin("nvidia.com/gpu", "GPU-aa", "GPU-bb", "GPU-dd")]
    running = world.agent()
    running.once()
    assert world.health == [True, True, False, True]
    assert "GPU 2 (GPU-cc) is unhealthy: its device plugin does not offer it" in world.heard()


@pytest.mark.parametrize("devices", [[], None, [plugin("rdma/hca", "mlx5_0")]])
def test_a_missing_device_plugin_does_not_affect_health(world, devices):
    world.kubelet.devices = devices
    world.agent().once()
    assert world.health == [True] * 4


def test_a_driver_that_stops_answering_makes_all_unhealthy_but_not_at_once(world):
    running = world.agent()
    running.once()
    world.gpus()
    for _ in range(2):
        with pytest.raises(ArenaError, match="NVML does not list the GPUs"):
            running.once()
        assert world.health == [True] * 4
    running.once()
    assert world.health == [False] * 4
    world.gpus(*FOUR)
    running.once()
    assert world.health == [True] * 4


def test_critical_errors_make_a_gpu_unhealthy_and_those_of_programs_do_not(world):
    nvml, running = world.nvml, world.agent()
    running.once()
    nvml.events = [(0, 31), (1, 13), (2, 79)]
    running.once()
    assert world.health == [True, True, False, True]
    assert "GPU 2 (GPU-cc) is unhealthy: Xid 79" in world.heard()
    # A reset takes it away for a while.
    nvml.lost = {2}
    running.once()
    assert world.heard() == ["GPU 2 (GPU-cc) is unhealthy: it does not answer"]
    nvml.lost = set()
    running.once()
    assert world.health == [True] * 4


def test_a_gpu_that_was_reset_is_listened_to_again(world):
    nvml, watch = world.nvml, GpuWatch()
    watch.look()
    nvml.lost = {2}
    watch.look()
    nvml.listened.clear()
    nvml.lost = set()
    assert watch.look().uuids[2] == "GPU-cc"
    assert nvml.listened == {0, 1, 2, 3}


# ---------------------------------------------------------------- the loop


class Running:
    """An agent in a thread; `stop` ends it and hands on what it raised."""

    def __init__(self, running: Agent, **how: Any) -> None:
        self._event = threading.Event()
        self._error: BaseException | None = None

        def work() -> None:
            try:
                running.run(self._event, **how)
            except BaseException as error:  # noqa: BLE001 - handed on
                self._error = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._event.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._error:
            raise self._error


def until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(connection, "_FIRST_DELAY", 0.0005)
    monkeypatch.setattr(agent, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(agent, "_LAST_DELAY", 0.02)


@pytest.mark.usefixtures("hasty")
def test_an_outage_of_the_api_server_is_survived_and_reported_once(world):
    world.api.fail("configmaps", status=500, times=12)
    world.api.fail("PUT", reset=True, times=3)
    running = Running(world.agent(), interval=0.01)
    until(lambda: world.api.find("ConfigMap", NAME, SYSTEM))
    until(lambda: "report: recovered" in world.said)
    world.hold(a_pod("train", "GPU-aa"))
    until(lambda: world.data.get("allocations") == '{"default/train":[0]}')
    running.stop()
    reports = [line for line in world.heard() if line.startswith("report: ")]
    assert reports[0].startswith("report: the server is currently unable")
    assert reports[1] == "report: recovered"
    assert "whether it took the request is not known" in reports[2]
    assert reports[3:] == ["report: recovered"]


@pytest.mark.usefixtures("hasty")
def test_rights_granted_later_are_used(world):
    world.api.deny("create configmaps .*")
    running = Running(world.agent(), interval=0.01)
    until(lambda: any("not allowed to create configmaps" in line for line in world.said))
    world.api.denied.clear()
    until(lambda: world.api.find("ConfigMap", NAME, SYSTEM))
    running.stop()


def test_the_loop_lets_go_of_the_driver_when_it_ends(world):
    running = Running(world.agent(), interval=0.01)
    until(lambda: world.api.find("ConfigMap", NAME, SYSTEM))
    world.nvml.events = [(1, 48)]
    until(lambda: world.health == [True, False, True, True])
    running.stop()
    assert world.nvml.opened == 0


def test_without_the_package_of_nvml_the_error_says_what_to_install(world, monkeypatch):
    world.agent().once()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    # An agent that ran would count all GPUs of the last report as unhealthy.
    with pytest.raises(ArenaError, match="nvidia-ml-py is not installed") as caught:
        world.agent()
    assert caught.value.hint == "install arena-topo with its extra 'agent' (docs/installation.md)"
    assert world.health == [True] * 4


def test_a_machine_without_gpus_is_no_place_to_wait(world):
    world.gpus()
    running = Running(world.agent())
    until(lambda: not running.alive)
    with pytest.raises(ArenaError, match="NVML does not list the GPUs"):
        running.stop()


@pytest.mark.usefixtures("hasty")
def test_a_sign_of_life_is_left_in_every_round_even_while_nothing_works(
    world, tmp_path, monkeypatch
):
    sign = tmp_path / "alive"
    monkeypatch.setenv("ARENA_TOPO_HEARTBEAT", str(sign))
    world.api.fail("configmaps", status=500, times=9999)
    running = Running(world.agent(), interval=0.01)
    until(sign.exists)
    running.stop()


# ---------------------------------------------------------------- the command


def command(world: World, *words: str) -> list[str]:
    agents = ("--kubeconfig", world.config, "--pod-resources", world.kubelet.socket)
    return ["topology", "publish", *agents, *words]


WITH_NVML = """
import sys
from test_agent import FOUR, NVML
from arena_topo import cli
from arena_topo.nodes import health
health._pynvml = lambda: NVML(*FOUR)
sys.exit(cli.run(sys.argv[1:]))
"""
"""The program on a machine with a driver."""


def test_sigterm_ends_the_agent_with_code_0(world):
    environment = {**os.environ, "NODE_NAME": "node-1"}
    program = [sys.executable, "-c", WITH_NVML, *command(world, "--watch")]
    started = subprocess.Popen(
        program, env=environment, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    until(lambda: world.api.find("ConfigMap", NAME, SYSTEM))
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate(timeout=30)
    assert started.returncode == 0
    assert said == "node node-1: 4 x A100, 4 healthy\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--watch",), "the name of the node is missing"),
        (("node-1", "--watch", "--from", "x"), "--watch and --from exclude each other"),
        (("node-1", "--watch", "--preset", "x"), "--watch and --preset exclude each other"),
        (("node-1", "--watch", "--dry-run"), "--watch and --dry-run exclude each other"),
        (("node-1", "--watch", "-o", "yaml"), "--watch and --output exclude each other"),
        (("Node_1", "--watch"), "'Node_1' is not a name that a node can have"),
        (("node-1", "--watch", "--backend", "local"), "there is no cluster to publish in"),
        (("node-1",), "--pod-resources needs --watch"),
    ],
)
def test_what_an_agent_cannot_do_is_refused(world, capfd, words, said):
    assert cli.run(command(world, *words)) == UsageError.exit_code
    assert capfd.readouterr().err.splitlines()[0] == f"error: {said}"
    assert not world.writes()


def test_a_missing_namespace_gives_the_command_that_creates_it(world):
    world.api.remove("namespaces", "", SYSTEM, {})
    with pytest.raises(ClusterError, match="there is no namespace arena-topo-system") as caught:
        world.agent().once()
    assert caught.value.hint.startswith("arena-topo install")


def test_a_refusal_names_the_rule_that_is_missing(world):
    world.api.deny("get configmaps .*")
    with pytest.raises(AccessDenied, match="not allowed to get configmaps in namespace arena-topo"):
        world.agent().once()
