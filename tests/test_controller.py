"""The controller: gangs start in their turn; what cannot complete gives its GPUs back."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import ExitStack

import program
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo import cli
from arena_topo.admin import controller
from arena_topo.admin.controller import PERIOD, REVIVAL, SILENT_AFTER, Controller
from arena_topo.clusters import view
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import lease, topology_report
from arena_topo.engines.kubernetes.lease import DURATION, Lease
from arena_topo.engines.kubernetes.queue import Queue
from arena_topo.engines.local import engine as local
from arena_topo.errors import ClusterError, NotPossible, UsageError
from arena_topo.gang import pod_state, submission
from arena_topo.gang.planning import head_of_queue
from arena_topo.gang.protocol import Starter
from arena_topo.gang.resume import resume_job
from arena_topo.gang.stored_job import open_starter
from arena_topo.job import CleanPodPolicy, ConfigFile, KeyValue, MPIJob, NodeLoss
from arena_topo.manifests import FORMAT_ANNOTATION, GATE, MAP, PROPOSED, STATE, TRIES_ANNOTATION
from arena_topo.manifests.annotations import recorded_placement
from arena_topo.queueing.reservation import left_for
from arena_topo.topology import TAINT, presets, published
from arena_topo.topology.fabric import FabricFile

SELECTED = {"configmaps": f"{published.SCHEDULE_LABEL}=topology"}
"""The labels by which the controller chooses what it watches."""

OUR_NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lease.NAMESPACE}}


class World:
    """A cluster of DGX-1 machines that lives by steps, and one controller."""

    def __init__(
        self,
        api: FakeApi,
        config: str,
        nodes: int,
        *,
        dedicated: bool,
        fabric: FabricFile | None = None,
    ) -> None:
        self.api, self.config = api, config
        self.cluster = FakeCluster(api, kueue=True)
        for index in range(nodes):
            self.machine(f"node-{index}", dedicated=dedicated)
        if api.find("Namespace", lease.NAMESPACE) is None:
            api.add(OUR_NAMESPACE)
        self.backend = kubernetes.open_kubernetes(Options(kubeconfig=config, fabric=fabric))
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
        machine = presets.preset_machine("dgx-1-v100", name)
        self.api.add(published.config_map(machine, machine.everything))

    def woken(self) -> None:
        """The controller hears of a change, or is a new one."""
        self.changed = True

    def another(self) -> Controller:
        self.changed = True
        return Controller(
            queue=self.queue,
            starter=open_starter(self.backend, self.queue, patient=True),
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
        return recorded_placement(self.job(name)).reason


@pytest.fixture
def world(tmp_path):
    with ExitStack() as stack:
        api = FakeApi()
        stack.callback(api.close)

        def opened(
            nodes: int = 2, *, dedicated: bool = False, fabric: FabricFile | None = None
        ) -> World:
            config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
            made = World(api, config, nodes, dedicated=dedicated, fabric=fabric)
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
    decide = Starter.decide_behind

    def decided(self, head, job, *rest, **more):
        tried.append(job.name)
        return decide(self, head, job, *rest, **more)

    monkeypatch.setattr(Starter, "decide_behind", decided)
    for _ in range(10):
        here.rounds()
        here.later(2)
    assert "can never be placed" in here.reason("second")
    assert len(tried) == 1
    assert [line for line in here.said if "can never be placed" in line]


def test_a_gang_whose_level_the_cluster_no_longer_has_says_so_and_is_not_tried_in_every_round(
    world,
):
    here, leaf, nodes = world(2), "network.topology.nvidia.com/leaf", ("node-0", "node-1")
    for name in nodes:
        with here.api.edit("Node", name) as node:
            node["metadata"]["labels"][leaf] = "a"
    here.submit("first", workers=16)
    here.submit("second", workers=16, topology_required="leaf")
    for name in nodes:
        with here.api.edit("Node", name) as node:
            del node["metadata"]["labels"][leaf]
    here.rounds(2)
    assert "this cluster has no such level" in here.reason("second")
    assert here.controller.due - here.time > PERIOD


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
    assert here.job("gang")["metadata"]["annotations"][TRIES_ANNOTATION] == "1"
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
        resume_job(here.backend, "half", "default")
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
            "metadata": {"name": lease.LEASE_NAME, "namespace": lease.NAMESPACE},
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


UNANSWERED = 300.0
"""Seconds for which pods tolerate a machine that does not answer."""


def test_a_cordoned_node_keeps_its_gang_and_takes_no_new_one(world):
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    uids = [pod["metadata"]["uid"] for pod in here.cluster.workers("job")]
    here.cluster.cordon(node)
    for _ in range(5):
        here.rounds()
        here.later(UNANSWERED)
    here.submit("next", workers=4)
    here.rounds(2)
    assert [pod["metadata"]["uid"] for pod in here.cluster.workers("job")] == uids
    assert here.nodes("next") == {"node-0", "node-1"} - {node}
    assert [line for line in here.said if "job" in line] == []


def end_from_outside(here: World, loss: str, node: str) -> str:
    """Let a gang on a node end from outside; the cause that its owner reads."""
    cause = f"node {node} was lost: "
    match loss:
        case "drained":
            here.cluster.drain(node)
            cause = f"job-worker-0 was deleted from node {node}, which is cordoned"
        case "tainted":
            here.cluster.taint(node, "repair")
            cause += "taint repair:NoExecute"
        case "out of the cluster":
            here.cluster.remove_node(node)
            cause += "deleted"
        case "silent":
            here.cluster.lose(node)
            here.cluster.settle()
            here.rounds()
            here.later(UNANSWERED + 1)
            cause += "not ready"
        case "preempted":
            here.cluster.preempt("job-worker-1")
            cause = f"job-worker-1 was deleted from node {node}"
            if here.cluster.keeps_terminating:
                said = "default-scheduler: preempting to accommodate a higher priority pod"
                cause = f"job-worker-1 was evicted: {said}"
        case _:
            here.api.remove("pods", "default", "job-worker-2", {})
            cause = f"job-worker-2 was deleted from node {node}"
    return cause


@pytest.mark.parametrize("slow", [True, False], ids=["that end slowly", "that end at once"])
@pytest.mark.parametrize(
    "loss", ["drained", "tainted", "out of the cluster", "silent", "preempted", "deleted"]
)
def test_a_gang_that_is_ended_from_outside_goes_back_whole_once_and_starts_again(world, loss, slow):
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    (node,) = here.nodes("job")
    before = {pod["metadata"]["uid"] for pod in here.cluster.workers("job")}
    here.cluster.keeps_terminating = slow and loss != "out of the cluster"
    cause = end_from_outside(here, loss, node)
    here.cluster.settle()
    here.rounds()
    here.cluster.keeps_terminating = False
    for _ in range(4):
        here.rounds()
        here.later(10)
    assert here.runs("job")
    assert not before & {pod["metadata"]["uid"] for pod in here.cluster.workers("job")}
    assert here.nodes("job") <= {"node-0", "node-1"}
    if loss not in {"preempted", "deleted"}:
        assert node not in here.nodes("job")
    assert [line for line in here.said if "rolled back" in line] == [
        f"default/job: rolled back: {cause}"
    ]
    # That is nobody's fault, so it does not count as a try.
    assert here.job("job")["metadata"]["annotations"].get(TRIES_ANNOTATION, "0") == "0"


def checked(here: World, capsys: pytest.CaptureFixture[str]) -> str:
    """What `check` says of a cluster whose controller is at work, in one line."""
    assert here.queue.lease("a").held()
    capsys.readouterr()
    cli.run(["check", "--kubeconfig", here.config])
    return " ".join(capsys.readouterr().out.split())


def test_of_several_ended_workers_the_cause_is_that_of_which_kubernetes_says_why(world):
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    here.cluster.keeps_terminating = True
    here.api.remove("pods", "default", "job-worker-0", {})
    here.cluster.preempt("job-worker-1")
    here.cluster.settle()
    here.rounds()
    why = "default-scheduler: preempting to accommodate a higher priority pod"
    assert here.said == [f"default/job: rolled back: job-worker-1 was evicted: {why}"]


def shown(here: World, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The screen of a command about the cluster."""
    capsys.readouterr()
    assert cli.run([*words, "--kubeconfig", here.config]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("key", "word"), [(FORMAT_ANNOTATION, "v2"), (STATE, "moving")])
@pytest.mark.parametrize("suspend", [True, False], ids=["suspended", "resumed"])
def test_a_record_of_a_later_version_is_shown_counted_and_never_changed(
    world, capsys, key, word, suspend
):
    here = world(1)
    here.submit("later", workers=6)
    with here.api.edit("MPIJob", "later") as stored:
        stored["metadata"]["annotations"] |= {key: word, "arena-topo.io/mood": "good"}
        stored["spec"]["runPolicy"]["suspend"] = suspend
    here.cluster.settle()
    assert bool(here.cluster.workers("later")) is not suspend
    here.later(3600)
    before = here.job("later")["spec"], here.job("later")["metadata"]["annotations"]
    here.submit("small", workers=2)
    here.submit("large", workers=4)
    here.rounds(3)
    assert (here.runs("small"), here.runs("large")) == (True, False)
    field = key.partition("/")[2]
    unknown = f"its record has the {field} '{word}', which this version does not know"
    assert "node-0" in shown(here, capsys, "get", "later")
    assert (unknown in " ".join(shown(here, capsys, "why", "later").split())) is suspend
    assert f"later  {'PENDING' if suspend else 'RUNNING'}" in shown(here, capsys, "list")
    for verb in ("suspend", "resume" if suspend else "replan"):
        assert cli.run([verb, "later", "--kubeconfig", here.config]) == 1
        assert unknown in capsys.readouterr().err
    assert (here.job("later")["spec"], here.job("later")["metadata"]["annotations"]) == before
    here.backend.delete("later", "default")
    here.cluster.settle()
    here.rounds(2)
    assert here.runs("large")


def test_the_owner_reads_what_the_controller_did_to_a_gang(world, capsys):
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    (node,) = here.nodes("job")
    for nth, why in (("2nd", "repair"), ("3rd", "again")):
        here.cluster.keeps_terminating = True
        here.cluster.taint(node, why)
        here.cluster.settle()
        here.rounds()
        here.cluster.keeps_terminating = False
        cause = f"ago: node {node} was lost: taint {why}:NoExecute; "
        assert f"{cause}its {nth} start is to come" in shown(here, capsys, "get", "job")
        if nth == "2nd":
            # The Job of its launcher may have to go first.
            here.rounds(5)
            for screen in ("get", "why"):
                assert f"{cause}{nth} start\n" in shown(here, capsys, screen, "job")
            (node,) = here.nodes("job")
    # No node takes it now; a taint of these may be removed.
    told = " ".join(shown(here, capsys, "why", "job").split())
    assert (
        "try: once its nodes are back: arena-topo resume job -n default; or arena-topo delete"
        in told
    )
    stop = json.loads(shown(here, capsys, "get", "job", "-o", "json"))["lastStop"]
    assert stop["times"] == 2
    assert stop["reason"] == f"node {node} was lost: taint again:NoExecute"
    about = [one for one in here.api.all("Event") if one["involvedObject"]["kind"] == "MPIJob"]
    told = [one for one in about if one["source"]["component"] == "arena-topo-controller"]
    assert [one["reason"] for one in told] == ["RolledBack", "Started", "RolledBack"]
    assert {one["involvedObject"]["uid"] for one in told} == {here.job("job")["metadata"]["uid"]}
    assert told[-1]["message"] == f"rolled back: {stop['reason']}"


def test_what_a_controller_without_the_right_to_write_events_did_stands_on_the_job(world, capsys):
    here = world(2)
    here.api.deny("create events.*")
    here.submit("job", workers=4)
    here.rounds()
    (node,) = here.nodes("job")
    here.cluster.drain(node)
    here.cluster.settle()
    here.rounds(3)
    assert here.runs("job")
    assert f"ago: job-worker-0 was deleted from node {node}" in shown(here, capsys, "get", "job")
    assert "it may not create events" in checked(here, capsys)


def test_check_asks_for_no_right_that_the_controller_does_not_use(world, capsys):
    here = world(1)
    here.api.deny("patch events.*")
    assert "it may not" not in checked(here, capsys)


def test_what_is_left_of_a_gang_that_was_ended_waits_for_it_until_it_starts(world):
    here = world(2)
    here.submit("job", workers=12)
    here.later(2)
    here.rounds()
    places = [pod["spec"]["nodeName"] for pod in here.cluster.workers("job")]
    fewer, more = sorted(set(places), key=places.count)
    here.cluster.drain(more)
    here.cluster.settle()
    here.rounds(2)
    assert here.state("job") == "waiting"
    # The oldest gang does not fit on what can be used, and would reserve nothing by itself.
    here.submit("small", workers=4)
    here.submit("large", workers=8)
    here.rounds(2)
    assert (here.nodes("small"), here.runs("large")) == ({fewer}, False)
    here.cluster.cordon(more, on=False)
    here.rounds(2)
    assert here.runs("job")
    assert here.nodes("job") == {fewer, more}
    assert "arena-topo.io/reserved" not in here.job("job")["metadata"]["annotations"]


def fail(here: World) -> None:
    """Let the launcher of the job fail, and the operator notice."""
    here.cluster.finish("job", 1)
    here.cluster.settle()
    assert has_failed(here)


def has_failed(here: World) -> bool:
    conditions = here.job("job")["status"]["conditions"]
    return any((one["type"], one["status"]) == ("Failed", "True") for one in conditions)


@pytest.mark.parametrize(
    "again",
    ["", "PATCH .*/mpijobs/job/status", "PATCH .*/mpijobs/job$"],
    ids=["at once", "as the operator lags behind", "as it still does at the next placement"],
)
def test_a_gang_whose_launcher_failed_before_the_controller_looked_starts_again(world, again):
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    before = {pod["metadata"]["uid"] for pod in here.cluster.workers("job")}
    here.later(2)
    here.cluster.preempt("job-worker-1")
    fail(here)
    if again:
        # It has seen that the launcher has failed, and not yet that its Job was deleted.
        failure = here.job("job")["status"]

        def repeat() -> None:
            if has_failed(here):
                here.api.before(again, repeat)  # The patch that takes the gang back.
                return
            with here.api.edit("MPIJob", "job") as one:
                one["status"] = failure

        hook = here.api.after if again.endswith("status") else here.api.before
        hook(again, repeat)
    for _ in range(15):
        here.rounds()
        here.later(10)
    assert here.runs("job")
    assert not has_failed(here)
    workers = here.cluster.workers("job")
    assert [pod["status"]["phase"] for pod in workers] == ["Running"] * 4
    assert not before & {pod["metadata"]["uid"] for pod in workers}
    said = "default-scheduler: preempting to accommodate a higher priority pod"
    assert [line for line in here.said if "rolled back" in line] == [
        f"default/job: rolled back: job-worker-1 was evicted: {said}"
    ]
    assert here.job("job")["metadata"]["annotations"].get(TRIES_ANNOTATION, "0") == "0"
    # What ended an earlier start explains no later failure.
    fail(here)
    here.rounds(3)
    assert has_failed(here)


@pytest.mark.parametrize(
    "end",
    [
        "its own",
        "drained later",
        "its kubelet is in trouble",
        "silent later",
        "to fail",
        "suspended",
        "gone",
        "anew",
        "long ago",
    ],
)
def test_a_gang_that_failed_by_itself_or_has_a_say_in_it_stays_as_it_is(world, capsys, end):
    here = world(2)
    policy = NodeLoss.FAIL if end == "to fail" else NodeLoss.REPLAN
    clean = CleanPodPolicy.NONE if end == "drained later" else CleanPodPolicy.ALL
    here.submit("job", workers=4, on_node_loss=policy, clean_task_policy=clean)
    here.rounds()
    (node,) = here.nodes("job")
    if end in {"to fail", "suspended", "gone", "anew", "long ago"}:
        here.cluster.preempt("job-worker-1")
    if end == "its kubelet is in trouble":
        # It answers, and its containers run: as after a restart of the container runtime.
        here.cluster.lose(node, answers=True)
    fail(here)
    match end:
        case "drained later":
            here.later(10)
            here.cluster.drain(node)
        case "silent later":
            here.later(REVIVAL - 10)
            here.cluster.lose(node)
        case "suspended":
            with here.api.edit("MPIJob", "job") as one:
                one["spec"]["runPolicy"]["suspend"] = True
        case "gone" | "anew":
            here.backend.delete("job", "default")
            here.cluster.settle()
            if end == "anew":
                here.submit("job", workers=4)
                fail(here)
        case "long ago":
            here.later(REVIVAL + 1)
    here.cluster.settle()
    here.rounds(3)
    told = [line for line in here.said if "job" in line]
    if end == "to fail":
        (line,) = told
        assert line.startswith("default/job: failed: job-worker-1 was evicted: ")
        assert line.endswith("; by --on-node-loss fail it is not started again")
        why = shown(here, capsys, "why", "job")
        assert "ended from outside\n  why:  job-worker-1 was evicted" in why
    else:
        assert told == []
    if end == "gone":
        assert here.api.find("MPIJob", "job") is None
    else:
        assert has_failed(here)
        assert here.runs("job") == (end != "suspended")
        assert here.state("job") == "placed"


def test_a_gang_that_failed_as_its_node_fell_silent_starts_again_elsewhere(world):
    """MPI may notice the loss before the control plane does: some 40 s."""
    here = world(2)
    here.submit("job", workers=4, clean_task_policy=CleanPodPolicy.NONE)
    here.rounds()
    (node,) = here.nodes("job")
    here.later(2)
    fail(here)
    here.rounds()
    assert has_failed(here)
    here.later(45)
    here.cluster.lose(node)
    here.rounds(2)
    assert here.said == [f"default/job: rolled back: node {node} was lost: not ready"]
    here.later(SILENT_AFTER + 1)
    here.rounds(4)
    assert here.runs("job")
    assert node not in here.nodes("job")


def test_the_cpu_of_a_stopped_gang_is_reserved_once_while_its_pods_end(world):
    here = world(1)
    here.submit("job", workers=4, cpu="10")
    here.rounds()
    here.cluster.keeps_terminating = True
    here.api.remove("pods", "default", "job-worker-2", {})
    here.cluster.settle()
    here.rounds()
    assert not here.runs("job")
    here.caught_up()
    view = here.queue.read()
    head = head_of_queue(view, here.queue, here.controller.starter.site)
    (seen,), (left,) = view.cluster().nodes, left_for(head, view.cluster()).nodes
    # The pods, the launcher's included, use 50 of 64: the gang gets that again.
    assert (seen.cpu, left.cpu) == (14, 14)
    assert left.reserved


def launcher(here: World) -> dict:
    (one,) = (
        pod for pod in here.api.all("Pod") if pod["metadata"]["name"].startswith("job-launcher-")
    )
    return one


@pytest.mark.parametrize("counted", ["late", "before the start", "when it has retries left"])
@pytest.mark.parametrize("loss", ["silent", "drained"])
def test_the_end_of_a_launcher_on_a_lost_node_is_no_failure_of_the_next_start(world, loss, counted):
    """Its Job counts it once it has ended, also while the Job is suspended."""
    here = world(2)
    retries = 1 if counted == "when it has retries left" else 0
    here.submit("job", workers=4, retry=retries)
    here.rounds()
    (node,) = here.nodes("job")
    with here.api.edit("Pod", launcher(here)["metadata"]["name"]) as one:
        one["spec"]["nodeName"] = node
    here.cluster.keeps_terminating = True
    end_from_outside(here, loss, node)
    here.cluster.settle()
    here.rounds()
    here.cluster.keeps_terminating = False
    assert not here.runs("job")
    # As a control plane that is busy.
    here.cluster.counts = counted != "late"
    for _ in range(4):
        here.later(SILENT_AFTER)
        here.rounds(2)
    if counted == "late":
        assert not here.runs("job")
        here.cluster.counts = True
    for _ in range(4):
        here.rounds(2)
        here.later(10)
    assert here.runs("job")
    assert not has_failed(here)
    assert node not in here.nodes("job")
    assert here.api.find("Job", "job-launcher")["status"].get("failed", 0) == 0
    assert len([line for line in here.said if "rolled back" in line]) == 1


def lost_with_its_launcher(here: World, **job: object) -> None:
    """A gang that is suspended, and whose launcher was on the node that was lost."""
    here.submit("job", workers=4, retry=1, **job)
    here.rounds()
    (node,) = here.nodes("job")
    with here.api.edit("Pod", launcher(here)["metadata"]["name"]) as one:
        one["spec"]["nodeName"] = node
    here.cluster.keeps_terminating = True
    here.cluster.drain(node)
    here.rounds()
    here.cluster.keeps_terminating = False


def test_the_job_of_a_launcher_that_was_resumed_meanwhile_is_not_deleted(world):
    here = world(2)
    lost_with_its_launcher(here, on_node_loss=NodeLoss.HOLD)
    here.cluster.settle()
    with here.api.edit("Job", "job-launcher") as job:
        job["status"]["failed"] = 1
    counted = here.queue.failed_launcher(here.job("job"))
    assert counted is not None
    with here.api.edit("Job", "job-launcher") as job:
        job["spec"]["suspend"] = False
    for seen in (counted, here.queue.failed_launcher(here.job("job"))):
        assert not here.queue.delete_launcher(seen)
    uid = here.api.find("Job", "job-launcher")["metadata"]["uid"]
    assert uid == counted["metadata"]["uid"]


def test_a_gang_whose_old_launcher_does_not_go_waits_and_says_so(world):
    here = world(2)
    lost_with_its_launcher(here)
    here.cluster.settle()
    with here.api.edit("Job", "job-launcher") as job:
        job["status"]["failed"] = 1
        job["metadata"]["finalizers"] = ["example.com/audit"]
    here.api.requests.clear()
    for _ in range(8):
        here.rounds()
        here.later(10)
    deletions = [one for one in here.api.requests if one.startswith("DELETE") and "/jobs/" in one]
    assert len(deletions) == 1
    assert not here.runs("job")
    assert here.reason("job") == "the pods of its last run have not ended yet"
    with here.api.edit("Job", "job-launcher") as job:
        job["metadata"]["finalizers"] = []
    here.api.remove("jobs", "default", "job-launcher")
    for _ in range(4):
        here.rounds()
        here.later(10)
    assert here.runs("job")


def test_who_resumes_a_gang_that_was_held_on_a_lost_node_has_its_launcher_forgiven_too(world):
    here = world(2)
    lost_with_its_launcher(here, on_node_loss=NodeLoss.HOLD)
    assert here.state("job") == "held"
    # No controller looks at it any more.
    with here.cluster.running():
        resume_job(here.backend, "job", "default")
    here.cluster.settle()
    assert here.runs("job")
    assert not has_failed(here)
    assert here.api.find("Job", "job-launcher")["status"].get("failed", 0) == 0


def test_a_gang_that_its_kubelets_evict_again_and_again_is_started_three_times_more(world):
    """Its own fault, such as a disk that it fills, is the same on every machine."""
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    for _ in range(6):
        here.later(600)
        if here.runs("job"):
            here.cluster.evict("job-worker-1")
        here.cluster.settle()
        here.rounds(4)
    assert not here.runs("job")
    told = [line for line in here.said if "rolled back" in line]
    assert len(told) == 4
    assert told[-1].endswith("; it is not tried again until it is resumed")
    assert "not tried again" not in "".join(told[:-1])
    assert here.job("job")["metadata"]["annotations"][TRIES_ANNOTATION] == "3"
    # Its GPUs are free for others.
    assert "arena-topo.io/reserved" not in here.job("job")["metadata"]["annotations"]
    with here.cluster.running():
        resume_job(here.backend, "job", "default")
    assert here.runs("job")


def test_a_gang_that_is_evicted_once_a_day_is_started_each_time(world):
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    for _ in range(5):
        here.later(25 * 3600)
        here.cluster.evict("job-worker-1")
        here.cluster.settle()
        here.rounds(4)
        assert here.runs("job")
    assert here.job("job")["metadata"]["annotations"].get(TRIES_ANNOTATION, "0") == "0"


def test_a_controller_that_may_not_revive_a_gang_tells_its_owner_and_check_says_so(world, capsys):
    here = world(2)
    here.api.deny("patch mpijobs/status.*")
    here.submit("job", workers=4)
    here.rounds()
    (node,) = here.nodes("job")
    here.cluster.drain(node)
    here.cluster.settle()
    here.rounds(3)
    assert has_failed(here)
    told = [
        one["message"]
        for one in here.api.all("Event")
        if one["source"]["component"] == "arena-topo-controller"
    ]
    cause = f"job-worker-0 was deleted from node {node}, which is cordoned"
    may_not = "the controller may not patch mpijobs/status to start it again: use --retry 1"
    assert told == [f"failed: {cause}; {may_not}"]
    may_not = "it may not patch mpijobs/status: without --retry a gang stays failed"
    assert may_not in checked(here, capsys)


def test_a_gang_that_runs_on_a_lost_node_is_moved_only_where_it_can_start_again(world):
    here = world(2)
    here.submit("job", workers=8)
    (node,) = here.nodes("job")
    (other,) = {"node-0", "node-1"} - {node}
    here.submit("beside", workers=4)
    # As on a cluster whose controllers are slow: the pods on the node run on.
    here.cluster.evicts = False
    here.cluster.taint(node, "node.kubernetes.io/out-of-service")
    for _ in range(4):
        here.rounds()
        here.later(40)
    assert here.nodes("job") == {node}
    assert here.runs("job")
    assert "arena-topo.io/reserved" not in here.job("job")["metadata"]["annotations"]
    here.backend.delete("beside", "default")
    here.cluster.settle()
    here.rounds()
    assert not here.runs("job")
    here.submit("late", workers=4)
    assert not here.runs("late")
    here.rounds(3)
    assert here.nodes("job") == {other}
    assert here.runs("job")


@pytest.mark.parametrize("policy", [NodeLoss.REPLAN, NodeLoss.FAIL])
def test_a_gang_that_cannot_start_as_its_node_was_lost_goes_back_after_its_time(world, policy):
    here = world(1)
    # Pods have their node, and do not run yet.
    here.cluster.kubelets = False
    here.submit("job", workers=4, on_node_loss=policy)
    here.rounds()
    # As on a cluster whose controllers are slow.
    here.cluster.evicts = False
    here.cluster.lose("node-0")
    for _ in range(4):
        here.rounds()
        here.later(UNANSWERED)
    assert not here.runs("job")
    (line,) = here.said
    assert line.startswith("default/job: rolled back: no progress for ")


def test_pods_that_end_on_a_node_that_answers_take_their_time_and_keep_their_gpus(world):
    """Containers run there until its kubelet says that they have ended."""
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    (node,) = here.nodes("job")
    here.cluster.keeps_terminating = True
    here.cluster.drain(node)
    here.rounds()
    here.later(SILENT_AFTER + 1)
    here.rounds(2)
    assert not here.runs("job")
    assert here.nodes("job") == {node}
    assert [line for line in here.api.requests if line.startswith("DELETE")] == []
    # What was cordoned for long may fall silent for a moment.
    here.cluster.lose(node)
    here.rounds()
    assert here.nodes("job") == {node}
    here.later(SILENT_AFTER + 1)
    here.rounds()
    assert here.cluster.workers("job") == []


def test_a_node_that_comes_back_in_time_moves_nobody(world):
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    for _ in range(3):
        here.cluster.lose(node)
        here.rounds()
        here.later(UNANSWERED - 60)
        here.rounds()
        here.cluster.restore(node)
        here.rounds()
    assert here.nodes("job") == {node}
    assert here.runs("job")


def test_a_gang_that_is_to_be_held_when_it_loses_a_node_waits_for_a_person(world):
    here = world(2)
    here.submit("job", workers=4, on_node_loss=NodeLoss.HOLD)
    (node,) = here.nodes("job")
    here.rounds()
    here.cluster.drain(node)
    here.rounds(2)
    assert here.state("job") == "held"
    assert here.reason("job") == f"job-worker-0 was deleted from node {node}, which is cordoned"
    assert here.cluster.workers("job") == []
    here.rounds(2)
    assert not here.runs("job")


@pytest.mark.parametrize("loss", ["tainted", "evicted"])
def test_a_gang_that_is_to_fail_when_it_loses_a_node_is_left_alone(world, loss):
    here = world(2)
    here.submit("job", workers=4, on_node_loss=NodeLoss.FAIL)
    (node,) = here.nodes("job")
    here.rounds()
    # The operator has not noticed yet.
    here.cluster.operates = False
    here.cluster.evicts = False
    if loss == "tainted":
        here.cluster.taint(node, "repair")
    else:
        here.cluster.evict("job-worker-1")
    here.rounds()
    here.later(SILENT_AFTER + 1)
    here.rounds(2)
    assert here.nodes("job") == {node}
    assert here.runs("job")
    assert here.state("job") == "placed"


def test_the_workers_of_a_job_that_has_ended_are_not_missed(world):
    here = world(1)
    here.submit("job", workers=4)
    here.rounds()
    here.cluster.operates = False
    here.cluster.finish("job")
    here.cluster.settle()
    here.api.remove("pods", "default", "job-worker-2", {})
    here.cluster.settle()
    here.rounds(2)
    assert here.runs("job")
    here.cluster.operates = True
    here.cluster.settle()
    here.rounds(2)
    assert [line for line in here.said if "rolled back" in line] == []


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
    assert here.job("job")["metadata"]["annotations"][TRIES_ANNOTATION] == "3"
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
        patched.setattr(Starter, "is_valid", die)
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
        one["metadata"]["annotations"][TRIES_ANNOTATION] = "2"
    here.rounds()
    assert here.job("job")["metadata"]["annotations"].get(TRIES_ANNOTATION, "0") == "0"
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
    here.later(pod_state.UNSCHEDULABLE - 2)
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
    found = here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE)
    assert found is not None
    packed = base64.b64decode(found["binaryData"]["cluster.gz"])
    text = json.dumps(found) + gzip.decompress(packed).decode()
    assert "node-0" in text
    assert "secret-project" not in text
    assert "alice" not in text


def test_what_the_first_gang_waits_for_is_published_as_reserved(world):
    here = world(2)
    here.submit("small", workers=4)
    here.submit("large", workers=16)
    here.rounds()
    published_view = here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE)
    found = view.decode(published_view, now=here.backend.api.now())
    assert sorted((one.free_count, one.reserved_count) for one in found.nodes) == [(0, 4), (0, 8)]


def test_links_are_copied_for_acks_tools_and_asked_for_one_by_one_only_where_they_differ(world):
    here = world(1)
    api, names = here.backend.api, [f"node-{index}" for index in (1, 2, 3)]
    for name in names:
        machine = presets.preset_machine("dgx-1-v100", name)
        one = published.config_map(machine, machine.everything)
        one["metadata"]["namespace"] = lease.NAMESPACE
        here.api.add(one)
    assert topology_report.mirror(api) == 3
    copies = [here.api.find("ConfigMap", f"{name}-gpu-topology", "kube-system") for name in names]
    assert all(copies)
    here.caught_up()
    here.api.requests.clear()
    assert topology_report.mirror(api) == 3
    # The threads of the cache may open their watches only now.
    assert len([line for line in here.api.requests if "watch=1" not in line]) == 2
    with here.api.edit("ConfigMap", f"{names[1]}-gpu-topology", "kube-system") as one:
        one["data"] = {}
    here.api.remove("configmaps", lease.NAMESPACE, f"{names[2]}-gpu-topology", {})
    assert topology_report.mirror(api) == 2
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
    found = here.api.find("Lease", lease.LEASE_NAME, lease.NAMESPACE)
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
    assert here.api.find("Lease", lease.LEASE_NAME, lease.NAMESPACE)["spec"]["holderIdentity"] == ""
    # What it published is fresh, but nobody is told any more that it is at work.
    assert here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE) is not None
    assert not here.backend.queue.watched()


def test_a_controller_without_its_namespace_ends_and_says_how_to_create_it(world, capfd):
    here = world(1)
    here.api.remove("namespaces", "", lease.NAMESPACE)
    assert cli.run(["controller", "--kubeconfig", here.config]) == 1
    said = capfd.readouterr().err
    assert "error: there is no namespace arena-topo-system in this cluster\n" in said
    [advice] = re.findall("try:  (.*) creates it", said)
    words = shlex.split(advice.removesuffix(" | kubectl apply -f -"))
    assert cli.run(words[1:]) == 0
    assert "kind: Namespace\n" in capfd.readouterr().out


def test_a_namespace_that_vanishes_later_is_missed_once_and_waited_for(world, monkeypatch):
    here = world(1)
    monkeypatch.setattr(controller, "PERIOD", 0.01)
    monkeypatch.setattr(controller, "LEASE_PERIOD", 0.02)
    here.submit("work", workers=8)
    backend = kubernetes.open_kubernetes(Options(kubeconfig=here.config))
    said: list[str] = []
    tries: list[str] = []

    def tell(line: str) -> None:
        said.append(line)
        if line == "this controller is at work":
            here.api.remove("namespaces", "", lease.NAMESPACE)

    def tried() -> None:
        tries.append("POST")
        if len(tries) == 5:
            here.api.add(OUR_NAMESPACE)

    def renewed() -> None:
        if len(tries) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    here.api.before("POST .*/leases", tried, times=9)
    here.api.after("PUT .*/leases", renewed, times=99)
    controller.run_controller(backend, tell=tell)
    assert here.api.find("Lease", lease.LEASE_NAME, lease.NAMESPACE) is not None
    [missed] = [line for line in said if "no namespace" in line]
    assert missed.startswith("there is no namespace arena-topo-system in this cluster: ")


def test_a_controller_that_starts_before_the_operator_is_installed_says_what_is_free(world):
    here = world(1)
    here.api.unserved.add("kubeflow.org")
    backend = kubernetes.open_kubernetes(Options(kubeconfig=here.config))
    Controller(queue=backend.queue, starter=open_starter(backend, backend.queue)).round()
    assert here.api.find("ConfigMap", "cluster-view", lease.NAMESPACE) is not None


def test_a_controller_asks_the_server_nothing_before_its_first_round(world):
    here = world(1)
    backend = kubernetes.open_kubernetes(Options(kubeconfig=here.config))
    before = len(here.api.requests)
    open_starter(backend, backend.queue)
    assert here.api.requests[before:] == []


def test_the_local_engine_needs_no_controller():
    backend = local.open_local(Options(backend="local", emulate="dgx-1-v100:1"))
    with pytest.raises(UsageError, match="needs no controller"):
        controller.run_controller(backend)
