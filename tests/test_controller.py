"""The controller: gangs start in their turn; what cannot complete gives its GPUs back."""

from __future__ import annotations

import base64
import gzip
import json
import signal
import subprocess
import time
from contextlib import ExitStack

import program
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo.admin import controller
from arena_topo.admin.controller import LOST_AFTER, Controller
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import lease, publishing
from arena_topo.engines.kubernetes.lease import DURATION, Lease
from arena_topo.engines.kubernetes.queue import Queue
from arena_topo.engines.local import engine as local
from arena_topo.errors import ClusterError, NotPossible, UsageError
from arena_topo.gang import rollout, submission
from arena_topo.gang.protocol import Starter
from arena_topo.gang.submission import open_starter
from arena_topo.job import CleanPodPolicy, ConfigFile, KeyValue, MPIJob, NodeLoss
from arena_topo.manifests import GATE, MAP, PROPOSED, STATE, TRIES
from arena_topo.manifests.annotations import recorded
from arena_topo.topology import TAINT, presets, published

SELECTED = {"configmaps": f"{published.SCHEDULE_LABEL}=topology"}
"""The labels by which the controller chooses what it watches."""


class World:
    """A cluster of DGX-1 machines that lives by steps, and one controller."""

    def __init__(self, api: FakeApi, config: str, nodes: int, *, dedicated: bool) -> None:
        self.api, self.config = api, config
        self.cluster = FakeCluster(api, kueue=True)
        for index in range(nodes):
            self.machine(f"node-{index}", dedicated=dedicated)
        if api.find("Namespace", lease.NAMESPACE) is None:
            api.add(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lease.NAMESPACE}}
            )
        self.backend = kubernetes.open_backend(Options(kubeconfig=config))
        self.queue = self.backend.queue
        self.queue.watch(self.woken)
        self.said: list[str] = []
        self.time = 1000.0
        self.controller = self.another()

    def machine(self, name: str, *, dedicated: bool = False) -> None:
        """Add a DGX-1 whose links are published."""
        self.cluster.node(
            name,
            labels={TAINT: "true"} if dedicated else None,
            taints=[{"key": TAINT, "effect": "NoSchedule"}] if dedicated else None,
        )
        machine = presets.machine("dgx-1-v100", name)
        self.api.add(published.config_map(machine, machine.everything))

    def woken(self) -> None:
        """The controller hears of a change, or is a new one."""
        self.changed = True

    def another(self) -> Controller:
        self.changed = True
        return Controller(
            queue=self.queue,
            starter=open_starter(self.backend, self.queue),
            tell=self.said.append,
            clock=lambda: self.time,
        )

    def submit(self, name: str, workers: int = 4, gpus: int = 1, **more: object) -> None:
        job = MPIJob(
            name=name,
            command="mpirun true",
            image="image",
            workers=workers,
            gpus=gpus,
            gputopology=True,
            gang=True,
            **more,
        )
        with self.cluster.running():
            submission.submit(job, self.backend, namespace="default")

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            self.caught_up()
            changed, self.changed = self.changed, False
            self.controller.round(changed=changed)
            self.cluster.settle()

    def caught_up(self) -> None:
        """Wait until the controller has seen all that was written."""
        # Tells it the time, as the renewal of its Lease does.
        self.backend.api.get("/version")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            known = self.queue.revisions
            if all(int(seen or 0) >= self.api.written(path, SELECTED) for path, seen in known):
                return
            time.sleep(0.002)
        raise AssertionError(known)

    def later(self, seconds: float) -> None:
        """Let time pass, for everybody."""
        self.time += seconds
        self.api.now = self.api.clock() + seconds

    def job(self, name: str) -> dict:
        found = self.api.find("MPIJob", name)
        assert found is not None
        return found

    def state(self, name: str) -> str:
        return self.job(name)["metadata"]["annotations"][STATE]

    def runs(self, name: str) -> bool:
        return self.job(name)["spec"]["runPolicy"].get("suspend") is not True

    def nodes(self, name: str) -> set[str]:
        return {pod["spec"].get("nodeName") for pod in self.cluster.workers(name)}

    def reason(self, name: str) -> str | None:
        return recorded(self.job(name)).reason


@pytest.fixture
def world(tmp_path):
    with ExitStack() as stack:
        api = FakeApi()
        stack.callback(api.close)

        def opened(nodes: int = 2, *, dedicated: bool = False) -> World:
            config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
            made = World(api, config, nodes, dedicated=dedicated)
            stack.callback(made.queue.unwatch)
            return made

        yield opened


def test_a_waiting_gang_starts_once_there_is_room(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("second", workers=8)
    assert here.state("second") == "waiting"
    here.rounds()
    assert not here.runs("second")
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert here.runs("second")
    assert here.nodes("second") == {"node-0"}
    assert "default/second: started" in here.said


def test_a_gang_that_can_never_fit_any_more_says_so_and_is_not_tried_in_every_round(
    world, monkeypatch
):
    here = world(2)
    here.submit("first", workers=16)
    here.submit("second", workers=16)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.cluster.remove_node("node-1")
    here.cluster.settle()
    tried: list[str] = []
    decide = Starter.decide

    def decided(self, job, *rest, **more):
        tried.append(job.name)
        return decide(self, job, *rest, **more)

    monkeypatch.setattr(Starter, "decide", decided)
    for _ in range(10):
        here.rounds()
        here.later(2)
    assert "can never be placed" in here.reason("second")
    assert len(tried) == 1
    assert [line for line in here.said if "can never be placed" in line]


def test_a_gang_whose_binding_the_cluster_does_not_have_keeps_nothing_from_others(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("claims", workers=8, binding="claims")
    here.later(2)
    here.submit("fine", workers=8)
    here.backend.delete("first", "default")
    here.cluster.settle()
    for _ in range(3):
        here.rounds()
        here.later(2)
    assert here.runs("fine")
    assert not here.runs("claims")


def test_an_event_of_an_earlier_try_does_not_cost_the_next_where_the_operator_is_slow(world):
    here = world(2)
    here.submit("gang")
    here.later(100)
    here.cluster.operates = False
    here.cluster.preempt("gang-worker-3")
    here.cluster.settle()
    said = 'pods "gang-worker-3" is forbidden: exceeded quota: gpus'
    here.cluster.event(here.job("gang"), "FailedCreate", said)
    here.rounds()
    assert not here.runs("gang")
    here.cluster.operates = True
    here.cluster.settle()
    here.cluster.operates = False
    for _ in range(4):
        here.later(5)
        here.rounds()
    assert here.job("gang")["metadata"]["annotations"][TRIES] == "1"
    assert here.runs("gang")


def test_the_name_of_a_machine_does_not_cost_the_oldest_gang_its_turn(world):
    here = world(0)
    for index in range(2):
        here.machine(f"quota-pool-{index}")
    here.submit("first", workers=12)
    here.submit("large", workers=16)
    assert "quota-pool" in here.reason("large")
    here.later(2)
    here.submit("small", workers=4)
    assert not here.runs("small")
    here.rounds(2)
    assert not here.runs("small")
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert here.runs("large")


def test_the_oldest_waiting_gang_comes_first_and_a_small_one_does_not_take_its_place(world):
    here = world(1)
    here.submit("first", workers=4)
    here.later(2)
    here.submit("large", workers=8)
    here.later(2)
    here.submit("small", workers=2)
    assert [here.state(name) for name in ("first", "large", "small")] == [
        "placed",
        "waiting",
        "waiting",
    ]
    assert "default/large comes first in the queue" in here.reason("small")
    here.rounds(2)
    assert not here.runs("small")
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert (here.runs("large"), here.runs("small")) == (True, False)


def test_a_gang_that_something_else_than_gpus_keeps_from_starting_reserves_nothing(world):
    """The kubelet would pick its GPUs, at worst a set with less than its bandwidth."""
    here = world(2)
    here.submit("holder", workers=2, gpus=8)
    here.submit("blocked", workers=1, gpus=4, min_bandwidth=30.0)
    here.submit("second", workers=2, gpus=8)
    here.rounds()
    assert [here.state(name) for name in ("blocked", "second")] == ["waiting", "waiting"]
    here.backend.delete("holder", "default")
    here.rounds(3)
    assert here.runs("second")
    assert not here.runs("blocked")


def test_the_record_of_a_submitter_that_died_is_withdrawn_after_a_minute_and_its_job_started(
    world,
):
    here = world(1)
    queue = here.backend.queue

    class Died(BaseException):
        """The submitter is killed."""

    def die() -> None:
        raise Died

    here.api.before("PATCH /apis/kubeflow.org", lambda: None)
    job = MPIJob(
        name="left", command="true", image="i", workers=2, gpus=1, gputopology=True, gang=True
    )
    starter = open_starter(here.backend, queue)
    starter_resume = submission.Starter.start
    try:
        submission.Starter.start = lambda *_args, **_more: die()
        with pytest.raises(Died):
            submission.submit(job, here.backend, namespace="default")
    finally:
        submission.Starter.start = starter_resume
    assert starter.queue.read().job("default", "left").state == "placed"
    here.rounds()
    assert not here.runs("left")
    here.later(61)
    here.rounds(2)
    assert here.runs("left")


def test_a_job_whose_files_were_never_created_is_not_started_by_anybody(
    world, monkeypatch, tmp_path
):
    here = world(1)

    class Died(BaseException):
        """The submitter is killed."""

    def die(*_args: object) -> None:
        raise Died

    (tmp_path / "settings.yaml").write_text("a: 1")
    files = (ConfigFile.parse(f"{tmp_path}/settings.yaml:/etc/settings.yaml"),)
    with monkeypatch.context() as patched:
        patched.setattr(Queue, "own", die)
        with pytest.raises(Died):
            here.submit("half", workers=2, config_file=files)
    here.later(61)
    here.rounds(3)
    assert not here.runs("half")
    with pytest.raises(NotPossible, match="half was not created completely"):
        submission.resume(here.backend, "half", "default")
    here.submit("next", workers=8)
    assert here.runs("next")


def test_a_waiting_job_whose_files_are_there_is_started(world, tmp_path):
    here = world(1)
    (tmp_path / "settings.yaml").write_text("a: 1")
    files = (ConfigFile.parse(f"{tmp_path}/settings.yaml:/etc/settings.yaml"),)
    here.submit("first", workers=8)
    here.submit("second", workers=8, config_file=files)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert here.runs("second")


def test_a_job_with_files_of_who_may_not_see_the_cluster_is_started(world, tmp_path):
    here = world(1)
    here.rounds()
    here.api.add(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": lease.NAME, "namespace": lease.NAMESPACE},
            "spec": {"holderIdentity": "c", "renewTime": "2999-01-01T00:00:00.000000Z"},
        }
    )
    (tmp_path / "settings.yaml").write_text("a: 1")
    files = (ConfigFile.parse(f"{tmp_path}/settings.yaml:/etc/settings.yaml"),)
    here.api.deny("list nodes")
    here.submit("job", workers=8, config_file=files)
    assert not here.runs("job")
    here.api.denied.clear()
    here.rounds(2)
    assert here.runs("job")


def test_a_worker_that_is_created_again_is_sent_to_its_place_from_the_gate(world):
    here = world(2)
    here.submit("job", workers=4)
    placed = here.nodes("job")
    here.api.remove("pods", "default", "job-worker-2", {})
    here.cluster.settle()
    gated = here.cluster.workers("job")[2]["spec"].get("schedulingGates")
    assert gated == [{"name": GATE}]
    here.rounds(2)
    assert here.nodes("job") == placed


@pytest.mark.parametrize("loss", ["cordoned", "silent"])
def test_a_gang_that_loses_a_node_for_a_minute_is_placed_anew_as_a_whole(world, loss):
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    other = ({"node-0", "node-1"} - {node}).pop()
    if loss == "cordoned":
        here.cluster.cordon(node)
    else:
        here.cluster.lose(node)
    here.rounds()
    here.later(LOST_AFTER - 5)
    here.rounds()
    assert here.nodes("job") == {node}
    here.later(10)
    here.rounds()
    # That is nobody's fault, so it does not count as a try.
    assert here.job("job")["metadata"]["annotations"][TRIES] == "0"
    here.rounds(3)
    assert here.runs("job")
    assert here.nodes("job") == {other}, here.said


def test_pods_that_end_on_a_cordoned_node_take_their_time_and_keep_their_gpus(world):
    """Its kubelet answers: containers run there until it says that they have ended."""
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    here.cluster.keeps_terminating = True
    here.cluster.cordon(node)
    here.rounds()
    here.later(LOST_AFTER + 1)
    here.rounds()
    here.later(LOST_AFTER + 1)
    here.rounds(2)
    assert not here.runs("job")
    assert here.nodes("job") == {node}
    assert [line for line in here.api.requests if line.startswith("DELETE")] == []
    # What was cordoned for long may fall silent for a moment.
    here.cluster.lose(node)
    here.rounds()
    assert here.nodes("job") == {node}
    here.later(LOST_AFTER + 1)
    here.rounds()
    assert here.cluster.workers("job") == []


def test_a_gang_whose_node_is_taken_out_of_the_cluster_goes_elsewhere(world):
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    here.cluster.remove_node(node)
    for _ in range(8):
        here.rounds()
        here.later(20)
    assert here.runs("job")
    assert here.nodes("job") == {"node-0", "node-1"} - {node}


def test_a_node_that_comes_back_within_a_minute_moves_nobody(world):
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    here.cluster.cordon(node)
    here.rounds()
    here.later(40)
    here.cluster.cordon(node, on=False)
    here.rounds()
    here.cluster.cordon(node)
    here.rounds()
    here.later(40)
    here.rounds()
    assert here.nodes("job") == {node}
    assert here.runs("job")


def test_a_gang_that_is_to_be_held_when_it_loses_a_node_waits_for_a_person(world):
    here = world(2)
    here.submit("job", workers=4, on_node_loss=NodeLoss.HOLD)
    (node,) = here.nodes("job")
    here.cluster.cordon(node)
    here.rounds()
    here.later(LOST_AFTER + 1)
    here.rounds(2)
    assert here.state("job") == "held"
    assert here.reason("job") == f"node {node} is cordoned"
    assert here.cluster.workers("job") == []
    here.rounds(2)
    assert not here.runs("job")


@pytest.mark.parametrize("loss", ["cordoned", "evicted"])
def test_a_gang_that_is_to_fail_when_it_loses_a_node_is_left_alone(world, loss):
    here = world(2)
    here.submit("job", workers=4, on_node_loss=NodeLoss.FAIL)
    (node,) = here.nodes("job")
    # The operator has not noticed yet.
    here.cluster.operates = False
    if loss == "cordoned":
        here.cluster.cordon(node)
    else:
        here.cluster.evict("job-worker-1")
    here.rounds()
    here.later(LOST_AFTER + 1)
    here.rounds(2)
    assert here.nodes("job") == {node}
    assert here.runs("job")
    assert here.state("job") == "placed"


@pytest.mark.parametrize("policy", list(CleanPodPolicy))
def test_an_evicted_worker_moves_the_whole_gang_at_once(world, policy):
    """The operator calls the job failed by then, and keeps the worker, or not, by the policy."""
    here = world(2)
    here.submit("job", workers=4, clean_task_policy=policy)
    here.cluster.evict("job-worker-1")
    here.cluster.settle()
    here.rounds(3)
    assert here.runs("job")
    assert all(pod["status"]["phase"] == "Running" for pod in here.cluster.workers("job"))
    assert any("job-worker-1 was evicted" in line for line in here.said)


def test_an_image_that_does_not_exist_gives_the_gpus_back_and_is_tried_three_times(world):
    here = world(1)
    here.cluster.images["image"] = "missing"
    job = MPIJob(
        name="job", command="c", image="image", workers=4, gpus=1, gputopology=True, gang=True
    )
    # Nobody waits for it but the controller.
    with here.cluster.running():
        together = submission.wait_until_placed
        try:
            submission.wait_until_placed = lambda _starter, _job, outcome, _watcher: outcome
            submission.submit(job, here.backend, namespace="default")
        finally:
            submission.wait_until_placed = together
    for _ in range(12):
        here.rounds()
        here.later(30)
    assert not here.runs("job")
    assert here.cluster.workers("job") == []
    assert here.job("job")["metadata"]["annotations"][TRIES] == "3"
    assert "ErrImagePull" in here.reason("job") or "ImagePullBackOff" in here.reason("job")
    # It is not in anybody's way either.
    here.submit("next", workers=8)


def test_a_gang_of_another_queue_is_placed_when_that_has_started_it_and_anew_each_time(world):
    here = world(2)
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")
    here.submit("job", workers=4, label=(label,))
    here.rounds()
    assert not here.runs("job")
    here.cluster.kueue.admit("job", selector={"kubernetes.io/hostname": "node-1"})
    here.cluster.settle()
    here.rounds(2)
    assert here.nodes("job") == {"node-1"}
    first = here.job("job")["metadata"]["annotations"]["arena-topo.io/recorded"]
    here.cluster.kueue.evict("job")
    here.cluster.settle()
    here.rounds(2)
    assert MAP not in here.job("job")["metadata"]["annotations"]
    here.later(5)
    here.cluster.kueue.admit("job", selector={"kubernetes.io/hostname": "node-0"})
    here.cluster.settle()
    here.rounds(2)
    assert here.nodes("job") == {"node-0"}
    assert here.job("job")["metadata"]["annotations"]["arena-topo.io/recorded"] != first
    ours = [line for line in here.api.requests if line.startswith("PATCH") and "mpijobs" in line]
    assert ours


@pytest.mark.parametrize("nodes", [1, 2])
def test_one_worker_of_a_running_gang_of_another_queue_joins_the_others_when_created_again(
    world, nodes
):
    here = world(nodes)
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")
    here.submit("job", workers=6, label=(label,))
    here.cluster.kueue.admit("job")
    here.cluster.settle()
    here.rounds(2)
    record, places = here.job("job")["metadata"]["annotations"][MAP], here.nodes("job")
    here.later(30)
    here.api.remove("pods", "default", "job-worker-2", {})
    here.cluster.settle()
    here.rounds(3)
    assert here.job("job")["metadata"]["annotations"][MAP] == record
    assert here.nodes("job") == places
    assert len(here.cluster.workers("job")) == 6


def test_a_gang_of_another_queue_whose_author_died_before_it_looked_is_placed_anew(
    world, monkeypatch
):
    here = world(1)
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")
    here.submit("job", workers=6, label=(label,))
    here.cluster.kueue.admit("job")
    here.cluster.settle()

    def die(*_args: object) -> None:
        raise ClusterError("the API server is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Starter, "stands", die)
        here.rounds()
    notes = here.job("job")["metadata"]["annotations"]
    assert PROPOSED in notes
    here.later(30)
    here.rounds(2)
    assert here.job("job")["metadata"]["annotations"] == notes
    assert here.nodes("job") == {None}
    here.later(31)
    here.rounds(2)
    assert PROPOSED not in here.job("job")["metadata"]["annotations"]
    assert here.nodes("job") == {"node-0"}


def test_the_kubelet_picks_no_gpus_where_we_have_shown_some_to_containers(world):
    """Its books do not know of those, and it would give them away a second time."""
    here = world(2, dedicated=True)
    here.submit("shown", workers=2)
    (node,) = here.nodes("shown")
    environment = here.cluster.workers("shown")[0]["spec"]["containers"][0]["env"]
    assert "NVIDIA_VISIBLE_DEVICES" in [one["name"] for one in environment]
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")
    for name in ("gated", "late"):
        here.submit(name, workers=8 if name == "late" else 2, label=(label,))
        here.cluster.kueue.admit(name)
        here.cluster.settle()
        here.rounds(2)
    # Packed, it would be beside the other two; and a gang for which that leaves no room waits.
    assert here.nodes("gated") == {"node-0", "node-1"} - {node}
    assert here.nodes("late") == {None}


def test_what_goes_wrong_with_one_job_does_not_stop_the_others(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("denied", workers=2)
    here.submit("fine", workers=2, priority="")
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.api.fail("PATCH .*/mpijobs/denied", status=500, times=50)
    here.rounds(2)
    assert not here.runs("denied")
    assert here.runs("fine")
    assert any("default/denied" in line for line in here.said)


def test_the_tries_of_a_gang_are_forgotten_once_it_has_started(world):
    here = world(1)
    here.submit("job", workers=4)
    with here.api.edit("MPIJob", "job") as one:
        one["metadata"]["annotations"][TRIES] = "2"
    here.rounds()
    assert TRIES not in here.job("job")["metadata"]["annotations"]
    assert here.runs("job")


@pytest.mark.parametrize("dated", [True, False])
def test_a_worker_that_leaves_its_gate_late_is_not_called_unschedulable_at_once(world, dated):
    """Its condition is as old as the pod, or has no date: it was false at the gate already."""
    here = world(1)
    here.submit("job", workers=4)
    here.cluster.schedules = here.cluster.operates = False
    old = here.job("job")["metadata"]["creationTimestamp"]
    here.later(100)
    with here.api.edit("Pod", "job-worker-2") as pod:
        pod["spec"].pop("nodeName")
        pod["status"] = {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available",
                    **({"lastTransitionTime": old} if dated else {}),
                }
            ],
        }
    here.rounds()
    here.later(rollout.UNSCHEDULABLE - 2)
    here.rounds()
    assert here.runs("job")
    here.later(3)
    here.rounds()
    assert not here.runs("job")
    assert here.reason("job") == "job-worker-2: 0/1 nodes are available"


def test_everybody_may_read_what_is_free_and_no_name_of_a_job_is_in_it(world):
    here = world(1)
    here.submit("secret-project", workers=2)
    here.rounds()
    view = here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE)
    assert view is not None
    packed = base64.b64decode(view["binaryData"]["cluster.gz"])
    text = json.dumps(view) + gzip.decompress(packed).decode()
    assert "node-0" in text
    assert "secret-project" not in text
    assert "alice" not in text


def test_links_are_copied_for_acks_tools_and_asked_for_one_by_one_only_where_they_differ(world):
    here = world(1)
    api, names = here.backend.api, [f"node-{index}" for index in (1, 2, 3)]
    for name in names:
        machine = presets.machine("dgx-1-v100", name)
        one = published.config_map(machine, machine.everything)
        one["metadata"]["namespace"] = lease.NAMESPACE
        here.api.add(one)
    assert publishing.mirror(api) == 3
    copies = [here.api.find("ConfigMap", f"{name}-gpu-topology", "kube-system") for name in names]
    assert all(copies)
    here.caught_up()
    here.api.requests.clear()
    assert publishing.mirror(api) == 3
    # The threads of the cache may open their watches only now.
    assert len([line for line in here.api.requests if "watch=1" not in line]) == 2
    with here.api.edit("ConfigMap", f"{names[1]}-gpu-topology", "kube-system") as one:
        one["data"] = {}
    here.api.remove("configmaps", lease.NAMESPACE, f"{names[2]}-gpu-topology", {})
    assert publishing.mirror(api) == 2
    found = [here.api.find("ConfigMap", f"{name}-gpu-topology", "kube-system") for name in names]
    assert found[0] == copies[0]
    assert found[1]["data"] == copies[1]["data"]
    assert found[2] is None


def test_only_one_of_two_controllers_is_at_work(world):
    here = world(1)
    clocks = {"a": 0.0, "b": 0.0}
    one = Lease(here.backend.api, "a", lambda: clocks["a"])
    other = Lease(here.backend.api, "b", lambda: clocks["b"])
    assert (one.held(), other.held()) == (True, False)
    clocks["b"] += DURATION - 1
    assert (one.held(), other.held()) == (True, False)
    # The first one stops: what counts is how long the second has seen no change.
    clocks["b"] += DURATION + 1
    assert other.held()
    assert not one.held()
    other.release()
    assert one.held()
    found = here.api.find("Lease", lease.NAME, lease.NAMESPACE)
    assert found["spec"]["holderIdentity"] == "a"


def test_a_controller_ends_well_when_it_is_told_to_and_gives_its_lease_back(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("second", workers=8)
    words = ["controller", "--kubeconfig", here.config]
    process = program.start(words, stderr=subprocess.PIPE, text=True)
    try:
        with here.cluster.running():
            here.backend.delete("first", "default")
            end = time.monotonic() + 60
            while not here.runs("second") and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert here.runs("second")
    assert "default/second: started" in said
    assert here.api.find("Lease", lease.NAME, lease.NAMESPACE)["spec"]["holderIdentity"] == ""
    # What it published is fresh, but nobody is told any more that it is at work.
    assert here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE) is not None
    assert not here.backend.queue.watched()


def test_a_controller_that_starts_before_the_operator_is_installed_says_what_is_free(world):
    here = world(1)
    here.api.unserved.add("kubeflow.org")
    backend = kubernetes.open_backend(Options(kubeconfig=here.config))
    Controller(queue=backend.queue, starter=open_starter(backend, backend.queue)).round()
    assert here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE) is not None


def test_a_controller_asks_the_server_nothing_before_its_first_round(world):
    here = world(1)
    backend = kubernetes.open_backend(Options(kubeconfig=here.config))
    before = len(here.api.requests)
    open_starter(backend, backend.queue)
    assert here.api.requests[before:] == []


def test_the_local_engine_needs_no_controller():
    backend = local.open_backend(Options(backend="local", emulate="dgx-1-v100:1"))
    with pytest.raises(UsageError, match="needs no controller"):
        controller.run(backend)
