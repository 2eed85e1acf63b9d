"""Gangs in a cluster that lives: they run whole, or wait whole and say why."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fake_dra
import fake_http
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from fake_resources import RESOURCES
from replacing import replace

from arena_topo.engines import JobStatus, Options, Phase, goals, polling
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import job_watch, watch_cache
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.queue import Queue
from arena_topo.errors import ArenaError, ClusterError, JobDeleted, NotFound, NotNow, NotPossible
from arena_topo.gang import Watcher, planning, pod_state, rollout, submission
from arena_topo.gang.existing_job import identical_job
from arena_topo.gang.replan import replan_job
from arena_topo.gang.request import Site
from arena_topo.gang.resume import check_started, resume_job
from arena_topo.gang.suspend import suspend_job
from arena_topo.gang.wait import wait_until_over
from arena_topo.job import CleanPodPolicy, ConfigFile, EnvVar, KeyValue, MPIJob, PodShape
from arena_topo.jobs import view
from arena_topo.jobs.proposal import propose
from arena_topo.manifests import (
    FORECAST,
    GATE,
    HEAD_RESERVATION,
    MAP,
    STATE,
    TRIES_ANNOTATION,
    install,
)
from arena_topo.manifests.annotations import parse_map
from arena_topo.reasons import explanation
from arena_topo.solver import Unplaceable
from arena_topo.topology import NIC, SYS, TAINT, Link, LinkKind, presets, published


@dataclass(slots=True)
class World:
    """Two machines with eight GPUs, an operator, a scheduler and kubelets, in a thread."""

    api: FakeApi
    cluster: FakeCluster
    backend: kubernetes.KubernetesBackend
    config: str
    told: list[str] = field(default_factory=list)
    suspensions: list[tuple[str, object]] = field(default_factory=list)
    """What requests (not Kueue) have made of `suspend`: (job, value)."""

    def __post_init__(self) -> None:
        self.api.mutators.append(self._heard)

    def _heard(self, resource: Any, thing: dict[str, Any], operation: str) -> None:
        if resource.plural != "mpijobs" or operation != "UPDATE":
            return
        meta, new = thing["metadata"], thing["spec"]["runPolicy"].get("suspend")
        stored = self.api.tables[resource.name][meta["namespace"], meta["name"]].thing
        if stored["spec"]["runPolicy"].get("suspend") != new:
            self.suspensions.append((meta["name"], new))

    def submit(self, name: str = "gang", *, stay: bool = False, **asked: Any) -> Any:
        job = MPIJob(
            **{
                "name": name,
                "command": "mpirun true",
                "image": "fine",
                "workers": 4,
                "gpus": 2,
                "gputopology": True,
                "gang": True,
                **asked,
            }
        )
        watcher = Watcher(stay=stay, tell=self.told.append)
        return submission.submit(job, self.backend, namespace="default", watcher=watcher)

    def job(self, name: str = "gang") -> dict[str, Any]:
        with self.api.lock:
            found = self.api.tables["mpijobs.kubeflow.org"].get(("default", name))
            assert found is not None
            return json.loads(json.dumps(found.thing))

    def notes(self, name: str = "gang") -> dict[str, str]:
        return self.job(name)["metadata"]["annotations"]

    def reason(self, name: str = "gang") -> str:
        return str(json.loads(self.notes(name)[FORECAST]).get("reason"))

    def pods(self, name: str = "gang") -> list[dict[str, Any]]:
        with self.api.lock:
            found = [
                pod
                for pod in self.api.all("Pod")
                if pod["metadata"]["name"].startswith(f"{name}-worker-")
                and not pod["metadata"].get("deletionTimestamp")
            ]
            return json.loads(json.dumps(found))

    def nodes(self, name: str = "gang") -> list[str | None]:
        """The node of each worker, by index."""
        pods = sorted(self.pods(name), key=lambda pod: pod["metadata"]["name"])
        return [pod["spec"].get("nodeName") for pod in pods]

    def quiet(self, name: str = "gang") -> None:
        """A gang that waits holds nothing: no pod, no record, no pin on its template."""
        job = self.job(name)
        assert job["spec"]["runPolicy"]["suspend"] is True
        assert job["metadata"]["annotations"][STATE] in {"waiting", "held"}
        assert MAP not in job["metadata"]["annotations"]
        worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        assert MAP not in worker["metadata"].get("annotations", {})
        assert not worker["spec"].get("schedulingGates")
        self.until(lambda: not self.pods(name))

    def whole(self, name: str = "gang", workers: int = 4) -> None:
        """A gang that runs: every worker is where the record says."""
        job = self.job(name)
        assert job["spec"]["runPolicy"]["suspend"] is False
        places = parse_map(job["metadata"]["annotations"][MAP])
        assert len(places) == workers
        self.until(lambda: self.nodes(name) == [node for _, node, _ in places])

    def until(self, reached: Callable[[], object]) -> None:
        for _ in range(1000):
            if reached():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it does not come to that")


@pytest.fixture
def world(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # A world where things take milliseconds is looked at that often.
    monkeypatch.setattr(rollout, "_LOOK", 0.02)
    monkeypatch.setattr(rollout, "_SETTLE", 0.3)
    monkeypatch.setattr(submission, "_AGAIN", 0.05)
    monkeypatch.setattr(pod_state, "UNSCHEDULABLE", 1.0)
    api = FakeApi()
    cluster = FakeCluster(api, kueue=True)
    for index in range(2):
        cluster.node(f"node-{index}")
        machine = presets.preset_machine("dgx-1-v100", f"node-{index}")
        api.add(published.config_map(machine, machine.everything))
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    try:
        with cluster.running():
            yield World(
                api, cluster, kubernetes.open_kubernetes(Options(kubeconfig=config)), config
            )
    finally:
        api.close()
    assert not api.crashes, api.crashes[-1]


def with_rdma(world: World) -> None:
    """Nodes offer RDMA, of which nobody says how fast it is."""
    with world.api.lock:
        for found in world.api.tables["nodes"].values():
            found.thing["metadata"].setdefault("labels", {})["topology.kubernetes.io/zone"] = "z"
            found.thing["status"]["allocatable"]["rdma/hca"] = "1"


def test_what_a_shell_hands_over_as_a_file_is_there_for_the_pods(world):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        pipe.write("lr: 0.1")
    world.submit(config_file=(ConfigFile(source=f"/dev/fd/{reader}", target="/etc/run.yaml"),))
    os.close(reader)
    held = [one.get("data") or {} for one in world.api.all("ConfigMap")]
    assert any("lr: 0.1" in one.values() for one in held)


def test_a_gang_that_another_starter_has_started_waits_for_nobody(world):
    other = kubernetes.open_kubernetes(Options(kubeconfig=world.config))
    world.api.before("PATCH .*/mpijobs/gang", lambda: resume_job(other, "gang", "default"), times=1)
    done = world.submit()
    world.whole()
    assert done.starter is None
    assert done.plan.waiting is None
    assert done.plan.placement is None or done.plan.placement.nodes == tuple(world.nodes())


def test_a_bandwidth_that_can_never_be_had_is_refused_though_nothing_holds_the_gpus_now(world):
    with world.api.edit("Node", "node-0") as node:
        node["metadata"].setdefault("labels", {})[TAINT] = "true"
        node["spec"]["taints"] = [{"key": TAINT, "effect": "NoSchedule"}]
    world.submit("shown", workers=2, gpus=1)
    world.api.deny("patch pods.*")
    asker = kubernetes.open_kubernetes(Options(kubeconfig=world.config))
    job = MPIJob(name="gang", command="true", image="i", workers=2, gpus=2, gputopology=True)
    with pytest.raises(Unplaceable, match="cannot be pinned"):
        planning.plan(job, asker, namespace="default")
    with pytest.raises(Unplaceable, match="can never be placed"):
        submission.submit(replace(job, min_bandwidth=1000.0), asker, namespace="default")


def test_a_file_that_goes_once_the_job_is_created_is_not_missed(world, tmp_path):
    source = tmp_path / "run.yaml"
    source.write_text("lr: 0.1")
    world.api.after("PATCH .*/mpijobs/gang", source.unlink)
    world.submit(config_file=(ConfigFile(source=str(source), target="/etc/run.yaml"),))
    world.whole()


@pytest.mark.parametrize(
    ("command", "shape"), [("mpirun", "fused"), ("mpirun -npernode 1", "shared")]
)
def test_a_plan_names_shared_pods_where_the_command_says_how_many_ranks_a_pod_has(
    world: World, command: str, shape: str
) -> None:
    with world.api.lock:
        for found in world.api.tables["nodes"].values():
            found.thing["metadata"].setdefault("labels", {})[published.SCHEDULE_LABEL] = "topology"
    job = MPIJob(
        name="j", image="i", command=f"{command} true", workers=4, gpus=1, gputopology=True
    )
    found = propose(job, world.backend, namespace="default")
    assert found.plan is not None
    (advice,) = found.advice
    assert advice.startswith(f"--pod-shape {shape} ")
    assert " would give 76.8 GB/s (" in advice
    assert ("hostIPC" in advice) is (shape == "shared")


def test_a_gang_of_auto_runs_in_fewer_pods_and_is_the_same_request_again(world: World) -> None:
    with world.api.lock:
        for found in world.api.tables["nodes"].values():
            found.thing["metadata"].setdefault("labels", {})[published.SCHEDULE_LABEL] = "topology"
    asked = {"workers": 4, "gpus": 1, "pod_shape": PodShape.AUTO}
    made = world.submit(**asked).plan.job
    assert (made.workers, made.gpus) == (1, 4)
    world.whole(workers=1)
    assert world.notes()["arena-topo.io/asked-pod-shape"] == "auto"
    again = MPIJob(
        name="gang", command="mpirun true", image="fine", gputopology=True, gang=True, **asked
    )
    assert identical_job(again, Site(backend=world.backend, namespace="default"))


def test_a_submitter_hears_what_would_give_the_pods_more(world: World) -> None:
    with_rdma(world)
    (rdma,) = world.submit(workers=2, gpus=8).advice
    assert rdma.startswith("--rdma would give these pods ")


def test_a_gang_is_placed_where_its_pods_can_use_the_least_bandwidth(world: World) -> None:
    """Separate pods of one node talk over TCP, which reaches less."""
    done = world.submit(workers=2, gpus=1, min_bandwidth=5.0)
    assert done.plan.forecast.usable == pytest.approx(5.657, rel=0.001)
    assert any("the low end of the range is less than" in note for note in done.plan.notes)
    with pytest.raises(Unplaceable, match="can never be placed"):
        world.submit("other", workers=2, gpus=1, min_bandwidth=13.0)


def test_a_gang_that_no_kubelet_can_be_held_to_waits_and_keeps_nothing_from_others(
    world: World,
) -> None:
    """The kubelet picks the GPUs of the workers here, at worst a set without a ring."""
    first = world.submit("first", workers=1, gpus=4, min_bandwidth=30.0)
    assert "at worst 9.97 GB/s (4.99 to " in world.reason("first")
    assert first.nearest == "fits now with --min-bandwidth 9.97"
    world.quiet("first")
    job = MPIJob(name="second", command="c", image="i", workers=2, gpus=8, gputopology=True)
    planned = planning.plan(job, world.backend, namespace="default")
    assert not any("reserved" in note for note in planned.notes)
    world.submit("second", workers=2, gpus=8)
    assert len(set(world.nodes("second"))) == 2


@pytest.mark.parametrize("busy", [0, 1])
def test_gpus_that_the_kubelet_picks_are_shown_as_planned_and_at_worst_on_every_screen(
    world: World, busy: int
) -> None:
    """Also where other pods hold GPUs of unknown index, so that no GPU can be planned."""
    for node in world.api.tables["nodes"] if busy else ():
        name = node[-1]
        selector = (KeyValue(key="kubernetes.io/hostname", value=name),)
        world.submit(f"busy-{name}", workers=1, gpus=3, selector=selector)
    done = world.submit(workers=1, gpus=4, stay=True)
    status = world.backend.job("gang", "default")
    planned = "" if busy else "planned 76.8 GB/s, "
    worst = f"{planned}at worst 9.97 GB/s (4.99 to 120) assumed: the kubelet picks the GPUs"
    said = explanation.explain_job(world.backend, "gang", "default", now=time.time()).verdict.why
    shown = [
        view.placement_rows(done.plan.forecast, "gang", slots=4),
        view.job_text(status, now=time.time()),
        said,
    ]
    for screen in shown:
        assert worst in screen
        assert not re.search("no ring|shared one pod|proven best|is possible", screen)
    value = view.job_value(status, now=time.time())["placement"]
    assert (value["plannedGBps"], value["usableGBps"]) == (None if busy else 76.8, 9.97)
    assert (value["atWorst"], value["proof"]["optimal"]) == (True, False)


def test_where_the_kubelet_picks_two_gangs_of_four_share_a_node_and_leave_one_whole(
    world: World,
) -> None:
    """No quad is certain on either node, so none is worth another node."""
    for name in "ab":
        world.submit(name, workers=1, gpus=4, stay=True)
    assert {tuple(world.nodes(name)) for name in "ab"} == {("node-0",)}
    world.submit("whole", workers=1, gpus=8, stay=True)
    assert set(world.nodes("whole")) == {"node-1"}


def test_a_gang_that_fits_runs_where_it_was_placed(world: World) -> None:
    done = world.submit(stay=True)
    assert done.starter is None
    world.whole()
    assert done.status.phase is Phase.RUNNING
    assert world.told == []


def test_a_job_that_ends_before_anybody_looks_is_not_taken_back(world: World) -> None:
    world.cluster.duration = 0.0
    done = world.submit(gang_timeout=1)
    assert done.status.phase is Phase.SUCCEEDED
    assert world.job()["spec"]["runPolicy"]["suspend"] is False
    assert world.told == []


# Gangs that cannot complete


def test_a_quota_that_is_one_gpu_short_lets_no_worker_start(world: World) -> None:
    world.cluster.quota(gpus="7")
    done = world.submit()
    world.quiet()
    assert world.reason() == (
        "quota gpu-quota of the namespace leaves 7 requests.nvidia.com/gpu, and the gang needs 8"
    )
    assert "arena-topo resume gang" in done.starter
    assert not any(kind["reason"] == "SuccessfulCreatePod" for kind in world.api.all("Event"))


def test_a_quota_that_nobody_may_read_takes_the_gang_back_whole(world: World) -> None:
    world.api.deny("list resourcequotas.*")
    world.cluster.quota(gpus="7")
    done = world.submit()
    world.quiet()
    assert "exceeded quota: gpu-quota" in world.reason()
    assert world.notes()[TRIES_ANNOTATION] == "3"
    assert len(world.told) == 3
    assert "not tried again" in done.starter


def test_a_foreign_pod_that_was_faster_sends_the_gang_to_another_node(world: World) -> None:
    first: list[str] = []

    def taken() -> None:
        node = world.notes()[MAP].partition("/")[0]
        first.append(node)
        world.cluster.pod("foreign", node, gpus=8)

    world.api.before("PATCH .*mpijobs/gang", taken)
    world.submit(workers=2)
    world.whole(workers=2)
    assert first[0] not in world.nodes()
    assert len(world.told) == 1
    assert "Insufficient nvidia.com/gpu" in world.told[0]


def test_a_foreign_pod_that_leaves_no_room_queues_the_gang_with_the_reason(world: World) -> None:
    world.api.before("PATCH .*mpijobs/gang", lambda: world.cluster.pod("foreign", "node-0", gpus=1))
    world.submit(gpus=4)
    world.quiet()
    assert "GPU" in world.reason()


def test_workers_that_pod_security_refuses_queue_the_gang_with_the_reason(world: World) -> None:
    with world.api.edit("Namespace", "default", "") as namespace:
        namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    world.submit()
    world.quiet()
    assert 'violates PodSecurity "restricted:latest"' in world.reason()
    assert world.notes()[TRIES_ANNOTATION] == "3"


@pytest.mark.parametrize("why", ["missing", "denied", "forbidden"])
def test_an_image_that_is_refused_releases_the_gang_at_once(world: World, why: str) -> None:
    world.cluster.images["theirs"] = why
    world.submit(image="theirs", gang_timeout=600)
    world.quiet()
    assert "theirs" in world.reason()
    assert world.notes()[TRIES_ANNOTATION] == "3"


def test_a_pull_that_goes_on_is_progress(world: World) -> None:
    world.cluster.images["large"] = 2.5
    world.submit(image="large", gang_timeout=1, stay=True)
    world.whole()
    assert world.told == []


def test_a_registry_that_does_not_answer_releases_the_gang_after_its_timeout(world: World) -> None:
    world.cluster.images["slow"] = "timeout"
    world.submit(image="slow", gang_timeout=1, stay=True)
    world.quiet()
    assert world.reason().startswith("no progress for 1")
    assert world.notes()[TRIES_ANNOTATION] == "3"


def test_a_gang_that_was_tried_three_times_starts_again_when_somebody_asks(world: World) -> None:
    world.cluster.images["theirs"] = "missing"
    world.submit(image="theirs")
    world.quiet()
    world.cluster.images["theirs"] = 0.0
    outcome = resume_job(world.backend, "gang", "default")
    assert outcome.resumed
    world.whole()
    assert TRIES_ANNOTATION not in world.notes()


def test_whoever_watches_a_gang_notices_that_it_was_suspended(world: World) -> None:
    world.cluster.operates = False
    world.api.after(
        "PATCH .*mpijobs/gang",
        lambda: threading.Timer(0.1, suspend_job, (other, "gang", "default")).start(),
    )
    other = kubernetes.open_kubernetes(world.backend._options)
    done = world.submit()
    assert world.notes()[STATE] == "held"
    assert done.plan.placement is None or done.status.phase is not Phase.RUNNING


def test_whoever_watches_a_gang_notices_that_it_was_deleted(world: World) -> None:
    world.cluster.operates = False
    other = kubernetes.open_kubernetes(world.backend._options)
    world.api.after(
        "PATCH .*mpijobs/gang",
        lambda: threading.Timer(0.1, other.delete, ("gang", "default")).start(),
    )
    with pytest.raises(ArenaError, match="deleted while it was being started"):
        world.submit()


# The verbs


def test_a_job_that_is_suspended_by_hand_holds_nothing_and_stays_so(world: World) -> None:
    world.submit(gpus=4)
    world.whole()
    suspend_job(world.backend, "gang", "default")
    world.quiet()
    assert world.notes()[STATE] == "held"
    # Its GPUs are free, and its turn does not come.
    assert world.submit("next", gpus=4).starter is None
    world.whole("next")
    suspend_job(world.backend, "gang", "default")
    assert world.notes()[STATE] == "held"


def test_resume_places_a_held_job_on_what_is_free_then(world: World) -> None:
    world.submit(workers=1, gpus=8)
    before = world.nodes()
    suspend_job(world.backend, "gang", "default")
    world.quiet()
    world.cluster.pod("foreign", before[0], gpus=8)
    assert resume_job(world.backend, "gang", "default").resumed
    world.whole(workers=1)
    assert world.nodes() != before


def with_rails(world: World, nodes: Sequence[str]) -> None:
    """Each GPU of these nodes has a NIC beside it, `mlx5_0` and so on; the nodes offer RDMA."""
    with_rdma(world)
    for name in nodes:
        machine = presets.preset_machine("dgx-1-v100", name)
        near = Link(kind=LinkKind.PIX)
        nics = tuple(
            NIC(
                name=f"mlx5_{gpu.index}",
                attachment=tuple(near if one is gpu else SYS for one in machine.gpus),
            )
            for gpu in machine.gpus
        )
        told = published.config_map(replace(machine, nics=nics), machine.everything)
        with world.api.edit("ConfigMap", told["metadata"]["name"], "kube-system") as stored:
            stored["data"] = told["data"]


def nccl_hca(thing: dict[str, Any]) -> tuple[str | None, bool]:
    """Which NICs a pod or pod template names for NCCL, and whether its containers read that."""
    (container,) = thing["spec"]["containers"]
    reads = any(one["name"] == "NCCL_IB_HCA" for one in container["env"])
    return thing["metadata"].get("annotations", {}).get("arena-topo.io/nccl-hca"), reads


def test_the_nics_of_a_gang_are_named_while_it_is_placed(world: World) -> None:
    with_rails(world, ("node-0", "node-1"))
    asked = {"workers": 2, "gpus": 8, "rdma": True, "nccl_hca": True}
    assert world.submit(**asked).plan.hcas == tuple(f"mlx5_{gpu}" for gpu in range(8))
    world.whole(workers=2)
    again = MPIJob(
        name="gang", command="mpirun true", image="fine", gputopology=True, gang=True, **asked
    )
    assert identical_job(again, Site(backend=world.backend, namespace="default"))
    named = (f"={','.join(f'mlx5_{gpu}' for gpu in range(8))}", True)
    assert [nccl_hca(pod) for pod in world.pods()] == [named, named]
    suspend_job(world.backend, "gang", "default")
    world.quiet()
    worker = world.job()["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    assert nccl_hca(worker) == (None, False)
    assert resume_job(world.backend, "gang", "default").resumed
    world.whole(workers=2)
    assert [nccl_hca(pod) for pod in world.pods()] == [named, named]


def test_a_submitter_hears_why_no_nics_are_named(world: World) -> None:
    done = world.submit(workers=2, gpus=8, nccl_hca=True)
    (note,) = (one for one in done.plan.notes if one.startswith("--nccl-hca"))
    assert "NCCL_IB_HCA is not set: the pods are given no NIC: add --rdma" in note
    world.whole(workers=2)
    assert [nccl_hca(pod) for pod in world.pods()] == [(None, False)] * 2


def test_a_gang_that_is_resumed_keeps_the_nics_that_its_user_named(world: World) -> None:
    with_rails(world, ("node-0", "node-1"))
    mine = (EnvVar(key="NCCL_IB_HCA", value="mlx5_7"),)
    world.submit(workers=2, gpus=8, rdma=True, nccl_hca=True, env=mine)
    suspend_job(world.backend, "gang", "default")
    world.quiet()
    assert resume_job(world.backend, "gang", "default").resumed
    world.whole(workers=2)
    for pod in world.pods():
        (container,) = pod["spec"]["containers"]
        said = [one for one in container["env"] if one["name"] == "NCCL_IB_HCA"]
        assert said == [{"name": "NCCL_IB_HCA", "value": "mlx5_7"}]


@pytest.mark.parametrize("may_delete", [True, False])
def test_resume_replaces_a_worker_that_failed_and_was_left_there(
    world: World, *, may_delete: bool
) -> None:
    world.submit(clean_task_policy=CleanPodPolicy.RUNNING)
    world.whole()
    world.cluster.evict("gang-worker-1")
    suspend_job(world.backend, "gang", "default")
    world.until(lambda: len(world.pods()) == 1)
    if not may_delete:
        world.api.deny("delete pods .*")
    assert resume_job(world.backend, "gang", "default").resumed is may_delete
    if may_delete:
        world.whole()
    else:
        assert "gang-worker-1: Evicted" in world.reason()


def test_resume_of_a_job_that_does_not_fit_leaves_it_waiting_with_the_reason(world: World) -> None:
    world.submit(gpus=4)
    world.submit("late", gpus=4)
    outcome = resume_job(world.backend, "late", "default")
    assert not outcome.resumed
    world.quiet("late")
    assert str(outcome.decision.refused) == world.reason("late")


@pytest.mark.parametrize("watched", [True, False])
def test_of_a_job_that_does_not_fit_it_is_said_that_it_is_queued_and_who_starts_it(
    world: World, monkeypatch: pytest.MonkeyPatch, *, watched: bool
) -> None:
    world.submit(gpus=4)
    again = "arena-topo resume late -n default"
    assert str(world.submit("late", gpus=4).starter).endswith(f"start it once it fits: {again}")
    outcome = resume_job(world.backend, "late", "default")
    monkeypatch.setattr(Queue, "watched", lambda _: watched)
    with pytest.raises(NotNow, match="it is in the queue now, and GPUs are reserved") as refused:
        check_started(outcome, world.backend, "late", "default")
    starter = "the controller starts it" if watched else f"it needs another {again}"
    assert refused.value.message.endswith(f"{starter} when it fits")


def test_resume_finishes_a_gang_that_was_left_at_its_gates(world: World) -> None:
    """As after its submitter was killed while it patched the workers."""
    world.api.fail("PATCH .*/pods/gang-worker-2", status=400)
    with contextlib.suppress(ArenaError):
        world.submit()
    assert None in world.nodes()
    assert resume_job(world.backend, "gang", "default").resumed
    world.whole()


def test_replan_moves_a_running_gang_whole(world: World) -> None:
    world.submit(workers=1, gpus=8)
    [before] = world.nodes()
    world.cluster.cordon(before)
    outcome = replan_job(world.backend, "gang", "default", Watcher(tell=world.told.append))
    assert outcome.resumed
    world.whole(workers=1)
    assert world.nodes() != [before]
    assert "gang is stopped" in world.told[0]


def test_replan_counts_the_gpus_of_the_gang_itself_as_free(world: World, claims: World) -> None:
    for here, workers in ((world, 2), (claims, 1)):
        here.submit(workers=workers, gpus=8)
        assert replan_job(here.backend, "gang", "default", force=True).resumed
        here.whole(workers=workers)


@pytest.mark.parametrize("ever", [True, False])
def test_replan_of_a_gang_that_would_have_no_place_leaves_it_running(
    world: World, *, ever: bool
) -> None:
    world.submit(workers=1, gpus=8)
    before = [pod["metadata"]["uid"] for pod in world.pods()]
    started = list(world.suspensions)
    for name in ("node-0", "node-1"):
        if name in world.nodes() and ever:
            world.cluster.cordon(name)
        elif ever:
            world.cluster.pod("foreign", name, gpus=8)
        else:
            with world.api.edit("Node", name) as node:
                node["spec"]["taints"] = [{"key": "others", "effect": "NoSchedule"}]
    with pytest.raises(
        ArenaError, match="gang cannot be replanned, and goes on running"
    ) as refused:
        replan_job(world.backend, "gang", "default")
    assert refused.value.exit_code == (3 if ever else 5)
    assert refused.value.why
    assert world.suspensions == started
    assert [pod["metadata"]["uid"] for pod in world.pods()] == before
    world.whole(workers=1)


@pytest.mark.parametrize("hard", [{"gpus": "6"}, {"pods": "4"}])
def test_replan_of_a_gang_that_a_quota_would_keep_from_starting_leaves_it_running(
    world: World, hard: dict[str, str]
) -> None:
    world.submit()
    before, started = [pod["metadata"]["uid"] for pod in world.pods()], list(world.suspensions)
    world.cluster.quota(**hard)
    with pytest.raises(NotNow, match="gang cannot be replanned, and goes on running") as refused:
        replan_job(world.backend, "gang", "default")
    assert refused.value.why.startswith("quota gpu-quota of the namespace leaves ")
    assert refused.value.hint == (
        "arena-topo suspend gang -n default stops it and frees its GPUs, until it is resumed"
    )
    assert world.suspensions == started
    assert [pod["metadata"]["uid"] for pod in world.pods()] == before
    world.whole()


@pytest.mark.parametrize("hard", [{"gpus": "8"}, {"pods": "5"}])
def test_replan_counts_the_pods_of_the_gang_itself_as_ended_in_quotas(
    world: World, hard: dict[str, str]
) -> None:
    world.cluster.quota(**hard)
    assert world.submit().starter is None
    assert replan_job(world.backend, "gang", "default", force=True).resumed
    world.whole()


@pytest.mark.parametrize("watched", [True, False])
def test_replan_by_who_may_not_see_the_jobs_of_others_leaves_the_start_to_a_controller(
    world: World, monkeypatch: pytest.MonkeyPatch, *, watched: bool
) -> None:
    world.submit(workers=1, gpus=8)
    started = list(world.suspensions)
    world.api.deny("list mpijobs")
    monkeypatch.setattr(Queue, "watched", lambda _: watched)
    if watched:
        with pytest.raises(NotPossible) as refused:
            replan_job(world.backend, "gang", "default")
        assert "without more bandwidth" not in refused.value.message
        assert "what bandwidth it would get is not known" in refused.value.message
        assert "replanned" not in refused.value.why
        assert world.suspensions == started
        assert not replan_job(world.backend, "gang", "default", force=True).resumed
        world.quiet()
        return
    with pytest.raises(NotNow, match="goes on running"):
        replan_job(world.backend, "gang", "default")
    assert world.suspensions == started
    world.whole(workers=1)


def test_what_is_over_or_unknown_is_not_suspended_nor_what_is_not_ours_replanned(
    world: World,
) -> None:
    lasts, world.cluster.duration = world.cluster.duration, 0.0
    world.submit()
    world.until(lambda: world.backend.job("gang", "default").phase is Phase.SUCCEEDED)
    world.cluster.duration = lasts
    world.submit("plain", gputopology=False, gang=False)
    for verb in (suspend_job, resume_job, replan_job):
        with pytest.raises(NotPossible) as over:
            verb(world.backend, "gang", "default")
        assert (over.value.exit_code, over.value.why) == (1, "it has SUCCEEDED")
        assert "arena-topo delete gang -n default" in over.value.hint
        with pytest.raises(NotFound):
            verb(world.backend, "nobody", "default")
    with pytest.raises(NotPossible) as ordinary:
        replan_job(world.backend, "plain", "default")
    assert ordinary.value.why == "it was not submitted with --gputopology"
    assert ordinary.value.hint == (
        "arena-topo suspend plain -n default and arena-topo resume plain -n default start it again"
    )


# Jobs that another queue starts


def kueue(world: World, **asked: Any) -> Any:
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="team")
    return world.submit(label=(label,), **asked)


def test_a_job_of_kueue_goes_in_at_its_gates_without_a_record(world: World) -> None:
    done = kueue(world)
    assert done.starter.startswith("Kueue starts it")
    notes = world.notes()
    assert notes[STATE] == "waiting"
    assert MAP not in notes
    template = world.job()["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    assert {"name": GATE} in template["spec"]["schedulingGates"]
    with pytest.raises(NotPossible, match="Kueue decides when gang starts"):
        resume_job(world.backend, "gang", "default")
    with pytest.raises(NotPossible, match="Kueue decides when gang runs"):
        suspend_job(world.backend, "gang", "default")
    with pytest.raises(NotPossible):
        replan_job(world.backend, "gang", "default")
    assert world.suspensions == []


def test_a_job_of_kueue_is_placed_anew_each_time_that_kueue_starts_it(world: World) -> None:
    kueue(world, workers=1, gpus=8)
    world.cluster.kueue.admit("gang")
    resume_job(world.backend, "gang", "default")
    world.whole(workers=1)
    [first] = world.nodes()
    world.cluster.kueue.evict("gang")
    world.until(lambda: not world.pods())
    world.cluster.pod("foreign", first, gpus=8)
    world.cluster.kueue.admit("gang")
    resume_job(world.backend, "gang", "default")
    world.whole(workers=1)
    assert world.nodes() != [first]
    assert world.suspensions == []


def test_a_job_of_kueue_goes_where_kueue_lets_it(world: World) -> None:
    kueue(world, workers=1, gpus=2)
    world.cluster.kueue.admit("gang", selector={"kubernetes.io/hostname": "node-1"})
    resume_job(world.backend, "gang", "default")
    assert world.nodes() == ["node-1"]


def test_resume_leaves_a_running_job_of_kueue_where_it_is(world: World) -> None:
    kueue(world)
    world.cluster.kueue.admit("gang")
    resume_job(world.backend, "gang", "default")
    world.whole()
    before = world.notes()[MAP]
    resume_job(world.backend, "gang", "default")
    assert world.notes()[MAP] == before
    world.whole()


def test_a_job_of_kueue_that_cannot_complete_is_not_suspended_by_us(world: World) -> None:
    world.cluster.images["theirs"] = "missing"
    kueue(world, image="theirs")
    world.cluster.kueue.admit("gang")
    outcome = resume_job(world.backend, "gang", "default")
    assert world.suspensions == []
    assert world.job()["spec"]["runPolicy"]["suspend"] is False
    assert "Kueue decides" in outcome.notes[0]


def test_what_kueue_has_suspended_holds_nothing_whatever_is_written_on_it(world: World) -> None:
    kueue(world, workers=2, gpus=8)
    world.cluster.kueue.admit("gang")
    resume_job(world.backend, "gang", "default")
    world.whole(workers=2)
    world.cluster.kueue.evict("gang")
    world.until(lambda: not world.pods())
    assert MAP in world.notes()
    assert world.submit("next", gpus=4).starter is None
    world.whole("next")


def test_all_that_ran_had_gpus_of_their_own(world: World) -> None:
    """Sixteen GPUs, five gangs of four: four run, one waits; then one ends and it is resumed."""
    for index in range(5):
        world.submit(f"gang-{index}", workers=2, gpus=2)
    states = Counter(world.notes(f"gang-{index}")[STATE] for index in range(5))
    assert states == {"placed": 4, "waiting": 1}
    world.backend.delete("gang-1", "default")
    world.until(lambda: not world.cluster.workers("gang-1"))
    assert resume_job(world.backend, "gang-4", "default").resumed
    world.whole("gang-4", workers=2)


def test_a_storm_of_other_writes_is_sat_out(world: World) -> None:
    conflict = {
        "kind": "Status",
        "reason": "Conflict",
        "message": 'Operation cannot be fulfilled on mpijobs.kubeflow.org "gang": the object has'
        " been modified; please apply your changes to the latest version and try again",
    }
    world.api.fail("PATCH .*mpijobs/gang", status=409, times=3, body=json.dumps(conflict).encode())
    world.submit()
    world.whole()


def test_a_patch_that_breaks_a_rule_is_told_and_not_tried_again(world: World) -> None:
    said = 'MPIJob.kubeflow.org "gang" is invalid: spec.runPolicy.suspend: Invalid value'
    status = {"kind": "Status", "reason": "Invalid", "message": said}
    world.api.fail("PATCH .*mpijobs/gang", status=422, times=1, body=json.dumps(status).encode())
    assert world.submit().starter is not None
    world.quiet()
    assert world.reason() == said
    assert sum(line.startswith("PATCH") for line in world.api.requests) == 2


def test_a_policy_that_is_against_every_patch_is_told_at_once(world: World) -> None:
    said = 'mpijobs.kubeflow.org "gang" is forbidden: ValidatingAdmissionPolicy denied request'
    status = {"kind": "Status", "reason": "Invalid", "message": said}
    world.api.fail("PATCH .*mpijobs/gang", status=422, times=9, body=json.dumps(status).encode())
    with pytest.raises(ClusterError, match="denied request"):
        world.submit()
    assert sum(line.startswith("PATCH") for line in world.api.requests) == 2


# What stays until it is done


def test_a_gang_that_waits_is_started_by_the_command_that_waits_for_it(world: World) -> None:
    world.submit("full", workers=2, gpus=8)
    threading.Timer(0.5, lambda: world.backend.delete("full", "default")).start()
    done = world.submit(stay=True)
    world.whole()
    assert done.starter is None
    assert any("gang waits: " in line and "started once it fits" in line for line in world.told)


def awaited(world: World) -> tuple[threading.Thread, list[Any]]:
    """A command that waits to start a gang, on a cluster that another job fills."""
    world.submit("full", workers=2, gpus=8)
    done: list[Any] = []
    waits = threading.Thread(target=lambda: done.append(world.submit(stay=True)), daemon=True)
    waits.start()
    world.until(lambda: any("gang waits: " in line for line in world.told))
    return waits, done


def lists(world: World, *, watched: bool = False) -> Counter[str]:
    """How often each kind of object was listed, or a watch of it was asked for."""
    paths = [line[4:].partition("?") for line in world.api.requests if line.startswith("GET ")]
    asked = (path for path, _, query in paths if ("watch=1" in query) is watched)
    kinds = (path.rpartition("/")[2] for path in asked)
    return Counter(kind for kind in kinds if kind in {"nodes", "pods", "mpijobs"})


def watches(world: World) -> set[str]:
    """The kinds of objects of which a watch was asked for."""
    return set(lists(world, watched=True))


def test_a_command_that_waits_to_start_a_gang_watches_the_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_SELDOM", 0.1)
    waits, done = awaited(world)
    world.until(lambda: watches(world) >= {"nodes", "pods", "mpijobs"})
    world.api.requests.clear()
    looks = "GET /apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/gang"
    world.until(lambda: world.api.requests.count(looks) >= 3)
    assert lists(world) == {}
    world.backend.delete("full", "default")
    waits.join(20)
    assert [one.starter for one in done] == [None]
    world.whole()


def test_a_command_that_waits_to_start_a_gang_lists_only_what_it_may_not_watch(
    world: World,
) -> None:
    world.api.deny("watch pods")
    waits, done = awaited(world)
    world.until(lambda: watches(world) >= {"nodes", "mpijobs"})
    world.api.requests.clear()
    world.until(lambda: lists(world)["pods"] >= 3)
    assert set(lists(world)) == {"pods"}
    world.backend.delete("full", "default")
    waits.join(20)
    assert [one.starter for one in done] == [None]


@pytest.mark.parametrize("status", [None, 400])
def test_a_command_that_waits_to_start_a_gang_lists_where_a_proxy_lets_no_watch_pass(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    def broken(_api: Connection, path: str, **_query: Any) -> Iterator[Any]:
        raise ClusterError(f"the watch of {path} broke", status=status)
        yield

    monkeypatch.setattr(Connection, "watch", broken)
    monkeypatch.setattr(watch_cache, "_LAST_DELAY", 0.1)
    monkeypatch.setattr(polling, "MAX_UNANSWERED", 0.5)
    waits, done = awaited(world)
    waits.join(1)
    world.backend.delete("full", "default")
    waits.join(20)
    assert [one.starter for one in done] == [None]
    world.whole()


@pytest.mark.parametrize("status", [503, 429])
def test_a_command_that_waits_to_start_a_gang_outlives_an_outage(world: World, status: int) -> None:
    waits, done = awaited(world)
    world.api.fail("GET .*", status=status, retry_after=0, times=7)
    world.until(lambda: not any(fault.times for fault in world.api.faults))
    world.backend.delete("full", "default")
    waits.join(20)
    assert [one.starter for one in done] == [None]
    world.whole()


def test_a_command_that_waits_to_start_a_gang_notices_that_another_has_started_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_AGAIN", 5.0)
    waits, done = awaited(world)
    # By then its first look has found no room: a look that comes late may start it.
    world.until(lambda: HEAD_RESERVATION in world.notes())
    world.backend.delete("full", "default")
    world.until(lambda: not world.cluster.workers("full"))
    other = kubernetes.open_kubernetes(Options(kubeconfig=world.config))
    assert resume_job(other, "gang", "default").resumed
    waits.join(20)
    assert [(one.starter, one.plan.waiting) for one in done] == [(None, None)]


def test_a_command_that_waits_to_start_a_gang_leaves_it_to_who_suspends_it(world: World) -> None:
    waits, done = awaited(world)
    assert suspend_job(world.backend, "gang", "default")
    waits.join(20)
    assert "arena-topo resume gang" in done[0].starter
    world.quiet()


def test_a_command_that_waits_to_start_a_gang_does_not_take_its_successor_for_it(
    world: World,
) -> None:
    world.submit("full", workers=2, gpus=8)
    wrong: list[JobDeleted] = []

    def waits() -> None:
        try:
            world.submit(stay=True)
        except JobDeleted as error:
            wrong.append(error)

    waiter = threading.Thread(target=waits, daemon=True)
    waiter.start()
    world.until(lambda: any("gang waits: " in line for line in world.told))

    def replaced() -> None:
        world.api.remove(RESOURCES["mpijobs.kubeflow.org"], "default", "gang")
        world.submit(workers=1, gpus=1)

    world.api.before("GET .*mpijobs/gang", replaced)
    waiter.join(20)
    assert len(wrong) == 1


def test_of_two_that_resume_a_gang_at_once_both_hear_that_it_runs(world: World) -> None:
    world.submit()
    suspend_job(world.backend, "gang", "default")
    world.until(lambda: not world.pods())
    other = kubernetes.open_kubernetes(Options(kubeconfig=world.config))

    def first() -> None:
        resume_job(other, "gang", "default")
        world.whole()

    world.api.before("PATCH .*mpijobs/gang", first)
    assert resume_job(world.backend, "gang", "default").resumed


def test_a_server_that_is_slow_once_does_not_end_the_watch_of_a_gang(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.images["theirs"] = "missing"
    late = kubernetes.open_kubernetes(Options(kubeconfig=world.config, request_timeout=0.5))
    monkeypatch.setattr(world, "backend", late)
    world.api.after(
        "PATCH .*mpijobs/gang",
        lambda: world.api.fail("GET .*mpijobs/gang", delay=1.0, times=1),
    )
    done = world.submit(image="theirs")
    world.quiet()
    assert "not tried again" in done.starter


def test_a_job_of_kueue_is_placed_by_the_command_that_waits_for_it(world: World) -> None:
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")

    meanwhile: list[str] = []

    def admitted() -> None:
        world.until(lambda: any("/pods?" in one and "watch=1" in one for one in world.api.requests))
        time.sleep(1.5)
        world.api.requests.clear()
        time.sleep(0.5)
        meanwhile.extend(world.api.requests)
        world.cluster.kueue.admit("gang")

    threading.Thread(target=admitted, daemon=True).start()
    world.submit(stay=True, label=(label,))
    world.whole()
    assert world.suspensions == []
    # Some ten looks at a job that did not change.
    assert not [one for one in meanwhile if re.search("/pods|/mpijobs", one)]


def test_a_gang_that_kueue_preempts_and_starts_again_gets_gpus_that_are_free_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kueue(world, workers=1, gpus=8)
    world.cluster.kueue.admit("gang")
    resume_job(world.backend, "gang", "default")
    world.whole(workers=1)
    [first] = world.nodes()
    monkeypatch.setattr(world.backend, "look_every", 0.05)
    watch = ("gang", "default")
    waits = threading.Thread(
        target=lambda: wait_until_over(world.backend, *watch, hears=goals.Listener()),
        daemon=True,
    )
    waits.start()
    world.cluster.kueue.evict("gang")
    world.until(lambda: not world.pods())
    world.api.now = world.api.clock() + 10
    # The record of the gang counts no longer, so another gang may have its GPUs.
    world.submit("next", workers=1, gpus=8)
    assert world.nodes("next") == [first]
    world.cluster.kueue.admit("gang")
    world.until(lambda: world.pods() and world.nodes()[0] is not None)
    assert world.nodes() != [first]
    world.whole(workers=1)
    world.cluster.finish("gang")
    waits.join(20)
    assert not waits.is_alive()


def test_a_gang_that_is_waited_for_is_read_again_only_after_a_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(workers=2)
    world.whole(workers=2)
    world.until(lambda: world.backend.job("gang", "default").phase is Phase.RUNNING)
    monkeypatch.setattr(world.backend, "look_every", 0.02)
    looks: list[object] = []
    hears = goals.Listener(seen=looks.append)
    world.api.requests.clear()
    waits = threading.Thread(
        target=lambda: wait_until_over(world.backend, "gang", "default", hears=hears),
        daemon=True,
    )
    waits.start()
    world.until(lambda: len(looks) >= 100)
    reads = Counter(request.partition("?")[0] for request in world.api.requests)
    job = "GET /apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/gang"
    # The job and its pods once for their state, once for the gates of workers; and a watch.
    assert (reads["GET /api/v1/namespaces/default/pods"], reads[job]) == (3, 2)
    # A worker that is created again is sent to its node all the same.
    before = [pod["metadata"]["uid"] for pod in world.pods()]
    world.api.remove("pods", "default", "gang-worker-1", {"gracePeriodSeconds": 0})
    world.until(lambda: len({pod["metadata"]["uid"] for pod in world.pods()} - {*before}) == 1)
    world.whole(workers=2)
    world.cluster.finish("gang")
    waits.join(20)
    assert not waits.is_alive()


def test_a_gang_that_pulls_its_image_for_long_is_read_again_only_after_a_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "_SELDOM", 0.05)
    monkeypatch.setattr(rollout, "_REREAD", 60.0)
    world.cluster.images["large"] = 3600.0
    ends: list[str] = []

    def submit() -> None:
        try:
            world.submit(workers=2, image="large", stay=True)
        except JobDeleted as error:
            ends.append(str(error))

    submits = threading.Thread(target=submit, daemon=True)
    submits.start()

    def reads() -> Counter[str]:
        paths = [
            request.rpartition("/")[2].partition("?")[0]
            for request in world.api.requests
            if request.startswith("GET ") and "watch=1" not in request
        ]
        return Counter(paths)

    world.until(lambda: any(re.search("/pods.*watch=1", one) for one in world.api.requests))
    world.whole(workers=2)
    time.sleep(1.5)
    world.api.requests.clear()
    time.sleep(1.5)
    # Some thirty looks.
    assert reads()["pods"] + reads()["gang"] + reads()["events"] <= 1, reads()
    world.api.remove("mpijobs", "default", "gang", {"propagationPolicy": "Background"})
    submits.join(20)
    assert ends == ["the job gang was deleted while it was being started"]


@pytest.mark.parametrize("asked", [{}, {"gang_timeout": 3}])
def test_a_gang_whose_events_a_proxy_holds_back_is_read_once_more_before_it_is_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int]
) -> None:
    monkeypatch.setattr(rollout, "_SELDOM", 0.05)
    monkeypatch.setattr(rollout, "_REREAD", 60.0)
    monkeypatch.setattr(pod_state, "UNSCHEDULABLE", 60.0 if asked else 4.0)
    monkeypatch.setattr(fake_http, "_seen", lambda *_: None)

    def taint(*taints: dict[str, str]) -> None:
        for name in ("node-0", "node-1"):
            with world.api.edit("Node", name) as node:
                node["spec"]["taints"] = list(taints)

    def free() -> None:
        world.until(lambda: any(re.search("/pods.*watch=1", one) for one in world.api.requests))
        # The last reading without an event has shown that no worker can be scheduled.
        time.sleep(1.5)
        taint()

    tainted = {"key": "x", "effect": "NoSchedule"}
    world.api.after("PATCH .*/mpijobs/gang", lambda: taint(tainted), times=1)
    threading.Thread(target=free, daemon=True).start()
    world.submit(workers=2, stay=True, **asked)
    world.whole(workers=2)
    assert not any("rolled back" in told for told in world.told)


def test_a_wait_for_a_short_pull_ends_though_a_proxy_holds_back_events(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "_SELDOM", 0.05)
    monkeypatch.setattr(fake_http, "_seen", lambda *_: None)
    monkeypatch.setattr(rollout, "_REREAD", 2.0)
    world.cluster.images["large"] = 2.5
    begun = time.monotonic()
    world.submit(workers=2, image="large", stay=True)
    assert time.monotonic() - begun < 10


def test_a_worker_that_is_created_again_is_seen_to_start_though_a_proxy_holds_back_events(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(workers=2)
    world.whole(workers=2)
    world.until(lambda: world.backend.job("gang", "default").phase is Phase.RUNNING)
    monkeypatch.setattr(fake_http, "_seen", lambda *_: None)
    monkeypatch.setattr(job_watch, "REREAD", 0.5)
    world.cluster.images["fine"] = 2.0
    world.api.remove("pods", "default", "gang-worker-1", {"gracePeriodSeconds": 0})
    pending: list[bool] = []

    def see(job: JobStatus) -> None:
        pending.append(len(job.instances) < 3 or any(pod.pending for pod in job.instances))
        if not pending[-1]:
            raise InterruptedError

    def wait() -> None:
        with contextlib.suppress(InterruptedError):
            wait_until_over(world.backend, "gang", "default", hears=goals.Listener(seen=see))

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    waits.join(20)
    assert not waits.is_alive()
    assert pending[0]


def test_a_gang_that_its_quota_keeps_from_starting_keeps_nothing_from_others(world: World) -> None:
    world.cluster.quota(gpus="9")
    world.submit("blocked", workers=5)
    assert "quota gpu-quota" in world.reason("blocked")
    assert world.submit("small").starter is None
    world.whole("small")


def test_who_cannot_see_the_jobs_of_others_any_more_starts_nothing(world: World) -> None:
    world.api.after("POST .*/mpijobs$", lambda: world.api.deny("list mpijobs"))
    done = world.submit()
    world.quiet()
    assert "may not be listed" in world.reason()
    assert done.starter is not None


def test_on_v1alpha1_a_gang_does_not_take_its_own_pods_for_a_rival(tmp_path) -> None:
    api = FakeApi()
    api.versions = ["v1alpha1"]
    cluster = FakeCluster(api)
    cluster.node("node-0")
    machine = presets.preset_machine("dgx-1-v100", "node-0")
    api.add(published.config_map(machine, machine.everything))
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    job = MPIJob(
        name="gang", command="c", image="i", workers=4, gpus=2, gputopology=True, gang=True
    )
    # The operator is as quick as it can be.
    api.after("POST .*/mpijobs$", cluster.settle)
    with contextlib.closing(api):
        done = submission.submit(job, backend, namespace="default")
        assert done.created[0] == "mpijob.kubeflow.org/gang"
        made = [line for line in api.requests if line.startswith("POST") and "mpijobs" in line]
        assert len(made) == 1
    assert not api.crashes


@pytest.fixture
def claims(tmp_path) -> Iterator[World]:
    """A machine whose GPUs a DRA driver publishes, and the policies that `install` prints."""
    api = FakeApi()
    cluster = FakeCluster(api, kueue=True)
    cluster.node("dra-1", gpus=0)
    api.add(fake_dra.device_class())
    uuids = [f"GPU-{one:08x}-0000-4000-8000-{one:012x}" for one in range(8)]
    api.add(fake_dra.resource_slice("dra-1", uuids))
    wanted = install.installation_objects(
        install.Installation(image="repository/name@sha256:" + "0" * 64)
    )
    for one in wanted:
        if "MutatingAdmissionPolicy" in one["kind"]:
            api.add(one)
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    with contextlib.closing(api), cluster.running():
        yield World(api, cluster, kubernetes.open_kubernetes(Options(kubeconfig=config)), config)
    assert not api.crashes, api.crashes[-1]


DEVICES = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"


@pytest.mark.parametrize("denied", ["nothing", "list resourcequotas.*"])
def test_a_quota_of_claimed_gpus_that_is_one_short_leaves_no_claim(
    claims: World, denied: str
) -> None:
    claims.api.deny(denied)
    claims.cluster.quota(**{DEVICES: "7"})
    done = claims.submit()
    claims.quiet()
    assert done.starter is not None
    assert DEVICES in claims.reason()
    assert claims.api.all("ResourceClaim") == []
    assert claims.submit("small", workers=3).starter is None


def test_a_job_of_kueue_gets_its_claims_when_it_is_placed(claims: World) -> None:
    label = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")
    claims.submit(label=(label,))
    claims.cluster.kueue.admit("gang")
    claims.until(claims.pods)
    resume_job(claims.backend, "gang", "default")
    claims.until(lambda: claims.nodes() == ["dra-1"] * 4)
    assert len(claims.api.all("ResourceClaim")) == 4


def test_a_gang_is_not_started_with_a_claim_that_is_being_deleted(claims: World) -> None:
    claims.submit()
    claims.whole()
    suspend_job(claims.backend, "gang", "default")
    claims.until(lambda: not claims.pods())
    [name, *_] = [one["metadata"]["name"] for one in claims.api.all("ResourceClaim")]
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"
    held = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    claims.backend.api.patch(path, held, "merge")
    claims.backend.api.delete(path)
    free = {"metadata": {"finalizers": None}}
    threading.Timer(0.5, lambda: claims.backend.api.patch(path, free, "merge")).start()
    assert resume_job(claims.backend, "gang", "default").resumed
    threading.Event().wait(0.6)
    assert len(claims.api.all("ResourceClaim")) == 4
    claims.whole()


def test_a_plan_leaves_what_is_kept_for_a_gang_that_waits_longer(world: World) -> None:
    world.submit("busy", workers=1, gpus=8)
    world.submit("large", workers=2, gpus=8)
    job = MPIJob(name="new", command="c", image="i", workers=2, gpus=1, gputopology=True)
    with pytest.raises(Unplaceable) as refused:
        planning.plan(job, world.backend, namespace="default")
    kept = "8 GPUs of node-1 are reserved for default/large, which comes first in the queue"
    assert kept in refused.value.notes
    proposal = propose(job, world.backend, namespace="default")
    assert proposal.refused is not None
    assert kept in proposal.notes
    assert world.submit("small", workers=2, gpus=1).starter is not None
