"""The verbs over real engines: placed, queued, refused, waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import kubeconfig
from replacing import replace
from worlds import WORLDS, KubernetesWorld, World, living_world

from arena_topo import cli
from arena_topo.engines import JobStatus, Options, Phase, engine_choice
from arena_topo.engines import goals as waiting_
from arena_topo.errors import AlreadyExists, InvalidJob, TimedOut, UsageError
from arena_topo.gang import planning, submission
from arena_topo.gang.config_files import read_config_files
from arena_topo.gang.resume import resume_job
from arena_topo.job import ConfigFile, Device, KeyValue, MPIJob, Toleration
from arena_topo.manifests import REQUEST, Guarantee
from arena_topo.manifests.versions import ApiVersion
from arena_topo.reasons import explanation
from arena_topo.solver import Unplaceable, Verdict
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, Taint, presets

QUAD: dict[str, Any] = {"workers": 4, "gpus": 1, "gputopology": True, "gang": True}


@pytest.fixture(params=[living_world, WORLDS["local"]], ids=["kubernetes", "local"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with request.param(tmp_path) as opened:
        yield opened


@pytest.fixture
def cluster_world(tmp_path: Path) -> Iterator[KubernetesWorld]:
    with living_world(tmp_path) as opened:
        assert isinstance(opened, KubernetesWorld)
        yield opened


@pytest.fixture
def still_world(tmp_path: Path) -> Iterator[World]:
    """A cluster in which nothing happens unless the test does it."""
    with WORLDS["kubernetes-v2beta1"](tmp_path) as opened:
        yield opened


def submit(world: World, name: str, **more: Any) -> submission.Submitted:
    if isinstance(world, KubernetesWorld):
        world.api.now = world.api.clock() + 1
    return submission.submit(world.job(name, **more), world.backend, namespace="default")


def gpus(status: JobStatus) -> tuple[str, set[int]]:
    assert status.forecast is not None
    (node,) = {node for _, node, _ in status.forecast.workers}
    return node, {gpu for _, _, held in status.forecast.workers for gpu in held}


def test_gangs_fill_a_machine_quad_by_quad_before_they_touch_the_next(tmp_path):
    with WORLDS["local"](tmp_path) as world:
        places = [gpus(submit(world, f"job-{index}", **QUAD).status) for index in range(4)]
    low, high = {0, 1, 2, 3}, {4, 5, 6, 7}
    assert [held for _, held in places] == [low, high, low, high]
    assert places[0][0] == places[1][0] != places[2][0] == places[3][0]


def test_where_the_kubelet_picks_devices_the_next_gang_joins_that_machine(cluster_world):
    """Which quad the first gang got is not known, and no set is promised on an empty machine."""
    first = gpus(submit(cluster_world, "first", **QUAD).status)
    second = gpus(submit(cluster_world, "second", **QUAD).status)
    assert (first, second) == (("node-0", {0, 1, 2, 3}), ("node-0", set()))


def test_a_gang_that_does_not_fit_now_is_created_waiting_with_its_reason(world):
    for index in range(2):
        submit(world, f"busy-{index}", workers=8, gpus=1, gputopology=True)
    status = submit(world, "late", **QUAD).status
    assert status.phase in {Phase.PENDING, Phase.QUEUING, Phase.SUSPENDED}
    assert status.forecast is not None
    assert status.forecast.state == "waiting"
    assert "not enough free GPUs" in (status.reason or status.forecast.reason or "")


def test_a_gang_that_can_never_fit_is_refused_and_nothing_is_created(world):
    with pytest.raises(Unplaceable) as refused:
        submit(world, "big", workers=1, gpus=9, gputopology=True)
    assert refused.value.verdict is Verdict.NEVER
    assert "--gpus 8" in str(refused.value.nearest)
    assert world.backend.jobs(None) == ()


def test_an_ordinary_worker_larger_than_any_node_is_refused_and_nothing_is_created(world):
    with pytest.raises(Unplaceable) as refused:
        submit(world, "big", workers=1, gpus=9)
    assert (refused.value.exit_code, world.backend.jobs(None)) == (5, ())
    assert refused.value.nearest == (
        "the largest worker that fits on this cluster has 8 GPUs: --gpus 8"
    )


def test_an_ordinary_job_of_someone_who_may_not_list_nodes_is_submitted(cluster_world):
    cluster_world.api.deny(r"list nodes")
    assert submit(cluster_world, "big", workers=1, gpus=9).status.name == "big"


def test_a_plan_creates_nothing_and_is_what_submit_applies(world):
    job = world.job("demo", **QUAD)
    planned = planning.plan(job, world.backend, namespace="default")
    assert world.backend.jobs(None) == ()
    done = submission.submit(job, world.backend, namespace="default")
    assert done.plan.objects == planned.objects


def test_the_local_engine_gives_exact_gpus_and_says_so(tmp_path):
    with WORLDS["local"](tmp_path) as world:
        done = submit(world, "demo", **QUAD)
    assert done.plan.binding is not None
    assert done.plan.binding.guarantee is Guarantee.GPUS
    assert done.status.forecast is not None
    assert done.status.forecast.usable == pytest.approx(86.4)


def test_a_template_cannot_tell_workers_of_one_node_apart_and_says_so(cluster_world):
    done = submit(cluster_world, "demo", **QUAD)
    assert done.plan.binding is not None
    assert done.plan.binding.guarantee is Guarantee.NODE
    assert "kubelet" in (done.plan.binding.why or "")


def test_a_name_that_is_taken_is_refused(world):
    submit(world, "demo")
    with pytest.raises(AlreadyExists, match="job demo already exists"):
        submission.submit(
            MPIJob(name="demo", command="true", image="local"), world.backend, namespace="default"
        )


def test_waiting_tells_each_phase_once_and_ends_with_the_job(world):
    submit(world, "demo")
    world.start("demo")
    told: list[Phase] = []

    def tell(status: JobStatus) -> None:
        told.append(status.phase)
        if status.phase is Phase.RUNNING:
            world.finish("demo", 7)

    ended = waiting_.wait_for_job(
        world.backend, "demo", "default", hears=waiting_.Listener(tell=tell)
    )
    assert (ended.phase, ended.exit_code) == (Phase.FAILED, 7)
    assert told == [Phase.RUNNING, Phase.FAILED]


def test_waiting_has_an_end_and_the_job_goes_on(world):
    submit(world, "demo")
    world.start("demo")
    with pytest.raises(TimedOut) as late:
        waiting_.wait_for_job(world.backend, "demo", "default", timeout=0.0)
    assert late.value.exit_code == 6
    assert world.backend.job("demo", "default").phase is Phase.RUNNING


def dgx(name: str, **more: Any) -> Node:
    machine = presets.preset_machine("dgx-1-v100", name)
    return Node(name=NodeName(name), machine=machine, free=machine.everything, **more)


def planned(*nodes: Node, **more: Any) -> tuple[str, ...]:
    job = MPIJob(**{"name": "demo", "command": "true", "image": "i", **QUAD, **more})
    plan = planning.plan(job, None, namespace="default", cluster=Cluster(nodes=nodes))
    assert plan.placement is not None
    return plan.placement.nodes


def test_tainted_nodes_are_avoided_unless_the_job_bears_the_taint():
    tainted = dgx("a", taints=(Taint(key="team", value="red"),))
    assert planned(tainted, dgx("b")) == ("b",)
    bears = Toleration.parse("team=red:NoSchedule,Equal")
    assert planned(tainted, dgx("b"), toleration=(bears,)) == ("a",)


@pytest.mark.parametrize("state", ["disk-pressure", "memory-pressure", "pid-pressure"])
def test_nodes_under_pressure_are_avoided(state):
    pressed = dgx("a", taints=(Taint(key=f"node.kubernetes.io/{state}"),))
    assert planned(pressed, dgx("b")) == ("b",)


def test_a_server_that_stumbles_does_not_end_the_waiting(cluster_world):
    submit(cluster_world, "demo")
    cluster_world.start("demo")
    # So far off that the connection does not try again by itself.
    fault = {"status": 503, "retry_after": 9999, "times": 2}
    cluster_world.api.fail("GET .*/mpijobs/demo", **fault)
    told: list[Phase] = []

    def tell(status: JobStatus) -> None:
        told.append(status.phase)
        cluster_world.finish("demo")

    ended = waiting_.wait_for_job(
        cluster_world.backend, "demo", "default", hears=waiting_.Listener(tell=tell)
    )
    assert ended.phase is Phase.SUCCEEDED
    assert told[0] is Phase.RUNNING


def test_what_is_only_assumed_of_a_machine_is_said():
    machine = presets.known_machine("Tesla-V100-SXM2-32GB", 8, "a")
    assert machine is not None
    node = Node(name=NodeName("a"), machine=machine, free=machine.everything)
    job = MPIJob(name="demo", command="true", image="i", **QUAD)
    plan = planning.plan(job, None, namespace="default", cluster=Cluster(nodes=(node,)))
    assert plan.notes == ("a: links assumed from the GPU product and count",)


def test_an_assumed_nvlink_rate_is_said():
    known = presets.preset_machine("dgx-1-v100", "a")
    machine = replace(known, gpus=tuple(replace(gpu, model="Mystery") for gpu in known.gpus))
    node = Node(name=NodeName("a"), machine=machine, free=machine.everything)
    job = MPIJob(name="demo", command="true", image="i", **QUAD)
    plan = planning.plan(job, None, namespace="default", cluster=Cluster(nodes=(node,)))
    assert plan.notes == ("a: NVLink rate assumed",)


def test_only_nodes_with_the_labels_asked_for_are_used():
    nodes = (dgx("a"), dgx("b", labels={"zone": "1"}))
    assert planned(*nodes, selector=(KeyValue.parse("zone=1"),)) == ("b",)


def test_where_nodes_are_set_aside_for_topology_jobs_others_are_left_alone():
    assert planned(dgx("a"), dgx("b", dedicated=True)) == ("b",)


def test_a_topology_job_without_gpus_is_a_mistake():
    with pytest.raises(InvalidJob, match="--gputopology needs GPUs"):
        planned(dgx("a"), gpus=0)


def test_placing_without_a_cluster_is_a_mistake_that_names_both_ways_out():
    job = MPIJob(name="demo", command="true", image="i", **QUAD)
    with pytest.raises(UsageError) as refused:
        planning.plan(job, None, namespace="default")
    assert "--state" in (refused.value.hint or "")


def test_an_ordinary_job_needs_no_cluster_to_be_planned():
    job = MPIJob(name="demo", command="true", image="i", gpus=2)
    plan = planning.plan(job, None, namespace="default")
    assert (plan.api, plan.placement) == (ApiVersion.V2BETA1, None)


@pytest.mark.parametrize("typed", ["settings.ini", "./settings.ini", "~/settings.ini"])
def test_a_config_file_is_read_however_its_path_is_typed(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "settings.ini").write_text("depth = 3")
    for target, name in (("/etc/config/depth.ini", "depth.ini"), (None, "settings.ini")):
        files = (ConfigFile(source=typed, target=target),)
        job = MPIJob(name="demo", command="true", image="i", config_file=files)
        plan = planning.plan(job, None, namespace="default", files=read_config_files(job))
        assert {name: "depth = 3"} in [one.get("data") for one in plan.objects]


def test_a_config_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "missing.yaml"
    files = (ConfigFile(source=str(missing)),)
    with pytest.raises(InvalidJob, match=r"missing\.yaml"):
        read_config_files(MPIJob(name="demo", command="true", image="i", config_file=files))


@pytest.mark.parametrize("image", ["", "local"])
def test_without_a_cluster_local_images_run_on_this_machine(image):
    assert engine_choice.open_backend(Options(emulate="dgx-1-v100"), image=image).name == "local"


def test_who_asks_for_emulated_machines_means_no_cluster(tmp_path, monkeypatch, capsys):
    kubeconfig(tmp_path / "config", "http://localhost:1", user={"username": "alice"})
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert engine_choice.open_backend(Options()).name == "kubernetes"
    emulated = Options(emulate="dgx-1-v100")
    assert engine_choice.open_backend(emulated).name == "local"
    with pytest.raises(UsageError, match="no cluster is meant by --emulate"):
        engine_choice.open_backend(emulated, image="horovod:0.20")
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100")
    given = ("--name=a", "--image=horovod:0.20", "true")
    assert cli.run(("submit", "mpi", *given)) == 2
    assert "no cluster is meant by ARENA_TOPO_EMULATE\n" in capsys.readouterr().err


def test_without_a_cluster_other_images_do_not_run_by_accident():
    with pytest.raises(UsageError) as refused:
        engine_choice.open_backend(Options(), image="tensorflow")
    assert "KUBECONFIG" in (refused.value.hint or "")
    assert "--backend local" in (refused.value.hint or "")
    assert engine_choice.open_backend(Options(backend="local"), image="tensorflow").name == "local"


def test_an_unknown_backend_is_a_mistake():
    with pytest.raises(UsageError, match="slurm"):
        engine_choice.open_backend(Options(backend="slurm"))


def test_a_job_that_was_created_but_cannot_be_read_is_said_to_exist(cluster_world):
    cluster_world.api.deny(r"get mpijobs .*")
    job = cluster_world.job("demo", **QUAD)
    done = submission.submit(job, cluster_world.backend, namespace="default")
    assert done.created[0] == "mpijob.kubeflow.org/demo"
    assert (done.status, "mpijobs" in (done.unread or "")) == (None, True)


def test_a_waiting_gang_asks_for_what_the_nodes_offer(cluster_world):
    """Whoever resumes it, its pods must be able to run there."""
    offers = {"cpu": "64", "memory": "512Gi", "aliyun.com/gpu": "8"}
    for name in ("node-0", "node-1"):
        with cluster_world.api.edit("Node", name) as node:
            node["status"] = {"capacity": offers, "allocatable": offers}
    for index in range(2):
        submit(cluster_world, f"busy-{index}", workers=8, gpus=1, gputopology=True)
    waiting = submit(cluster_world, "late", **QUAD).plan
    worker = waiting.objects[0]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu": "1"}


def test_a_gang_that_waits_says_who_starts_it(world):
    for index in range(2):
        submit(world, f"busy-{index}", workers=8, gpus=1, gputopology=True)
    starter = submit(world, "late", **QUAD).starter
    assert starter is not None
    assert starter.startswith(
        "It starts by itself"
        if world.backend.starts_waiting
        else "The job waits and uses no GPUs. No controller runs here"
    )


def test_a_queue_and_a_placement_exclude_each_other_where_nobody_has_queues(tmp_path):
    with WORLDS["local"](tmp_path) as world:
        with pytest.raises(InvalidJob, match="--queue and --gputopology"):
            submit(world, "demo", **QUAD, queue=True)
        assert world.backend.jobs(None) == ()


def test_a_gang_for_kube_queue_waits_for_it_at_its_gates_and_holds_nothing(cluster_world):
    done = submit(cluster_world, "demo", **QUAD, queue=True)
    assert done.starter is not None
    assert done.starter.startswith("kube-queue starts it")
    assert done.status is not None
    assert done.status.phase is Phase.QUEUING
    assert submit(cluster_world, "next", workers=8, gpus=1, gputopology=True).starter is None


def test_ordinary_jobs_keep_off_nodes_that_acks_label_keeps_for_topology_jobs(cluster_world):
    with cluster_world.api.edit("Node", "node-0") as node:
        node["metadata"]["labels"] = {"ack.node.gpu.schedule": "topology"}
    for gpus in (1, 0):
        plan = submit(cluster_world, f"plain-{gpus}", gpus=gpus).plan
        pod = plan.objects[0]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
        away = {"key": "ack.node.gpu.schedule", "operator": "NotIn", "values": ["topology"]}
        wanted = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [away]}]
                }
            }
        }
        assert pod.get("affinity") == (wanted if gpus else None)


NAMES = "leave it out, or on a cluster name the levels with --fabric FILE"


def test_a_required_level_that_the_cluster_does_not_have_is_a_mistake_that_lists_those_it_has():
    with pytest.raises(InvalidJob, match="--topology-required leaf") as refused:
        planned(dgx("a"), topology_required="leaf")
    assert refused.value.why == "its levels: node"
    assert refused.value.hint == NAMES


@pytest.mark.parametrize(("word", "hint"), [("leef", "did you mean leaf?"), ("q", NAMES)])
def test_a_preferred_level_that_nobody_knows_is_a_mistake(word: str, hint: str):
    with pytest.raises(InvalidJob, match=f"--topology-preferred {word}") as refused:
        planned(dgx("a"), topology_preferred=word)
    assert (refused.value.why, refused.value.hint) == ("its levels: node", hint)


@pytest.mark.parametrize("word", ["nvlink", "leaf", "spine", "zone", "region"])
def test_a_preferred_level_that_this_cluster_has_not_is_left_out_with_a_note(world, word: str):
    job = world.job("demo", **QUAD, topology_preferred=word)
    note = (
        f"--topology-preferred {word} is left out: this cluster has no such level; its levels: node"
    )
    made = planning.plan(job, world.backend, namespace="default")
    assert made.placement is not None
    assert note in made.notes
    done = submission.submit(job, world.backend, namespace="default")
    assert note in done.plan.notes
    assert done.status.forecast is not None
    assert done.status.forecast.state == "placed"


def test_a_preferred_level_that_nobody_knows_keeps_a_job_from_being_created(world):
    with pytest.raises(InvalidJob, match="--topology-preferred leef"):
        submit(world, "demo", **QUAD, topology_preferred="leef")
    assert world.backend.jobs(None) == ()


def test_a_level_that_only_the_submitter_of_a_job_knew_stops_nobody_who_reads_it_again(
    cluster_world,
):
    """Who starts it later was not given the same file of levels."""
    for index in range(2):
        submit(cluster_world, f"busy-{index}", workers=8, gpus=1, gputopology=True)
    submit(cluster_world, "late", **QUAD, topology_preferred="zone")
    with cluster_world.api.edit("MPIJob", "late") as late:
        said = json.loads(late["metadata"]["annotations"][REQUEST])
        late["metadata"]["annotations"][REQUEST] = json.dumps({**said, "preferred": "row"})
    found = explanation.explain_job(cluster_world.backend, "late", "default", now=0.0)
    assert "not enough free GPUs" in str(found.refusals[0].reason.value)
    cluster_world.backend.delete("busy-0", "default")
    outcome = resume_job(cluster_world.backend, "late", "default")
    assert outcome.decision.placement is not None


def nearest(*nodes: Node, **more: Any) -> str | None:
    with pytest.raises(Unplaceable) as refused:
        planned(*nodes, **more)
    return refused.value.nearest


def test_the_selector_that_keeps_a_job_from_the_nodes_is_named():
    one, other = KeyValue.parse("zone=1"), KeyValue.parse("disk=ssd")
    assert nearest(dgx("a"), selector=(one,)) == "fits now without --selector zone=1"
    labelled = dgx("a", labels={"disk": "ssd"})
    assert nearest(labelled, selector=(other, one)) == "fits now without --selector zone=1"
    assert nearest(dgx("a"), selector=(other, one)) == "fits now without --selector"


def test_the_toleration_that_opens_nodes_is_named_as_the_flag_takes_it():
    tainted = dgx("a", taints=(Taint(key="team", value="red"),))
    text = nearest(tainted)
    assert text == "fits now with --toleration team=red:NoSchedule"
    bears = Toleration.parse("team=red:NoSchedule")
    assert planned(tainted, toleration=(bears,)) == ("a",)
    bare = dgx("b", taints=(Taint(key="spot"),))
    assert nearest(bare) == "fits now with --toleration spot:NoSchedule"
    assert nearest(tainted, bare, workers=12) == "fits now with --toleration all"


def test_selector_and_taint_together_are_named():
    tainted = dgx("a", taints=(Taint(key="team", value="red"),))
    assert nearest(tainted, selector=(KeyValue.parse("zone=1"),)) == (
        "fits now without --selector and with --toleration all"
    )


def test_nodes_that_are_not_set_aside_for_topology_jobs_could_be():
    text = nearest(dgx("a"), dgx("b", dedicated=True), workers=12)
    assert text == "fits now with --workers 8; or when a is reserved for topology jobs as well"


def test_the_node_that_could_be_set_aside_is_one_that_helps():
    """Not one with a broken GPU or with jobs, if another is free now."""
    ours = dgx("a", dedicated=True)
    broken, full = dgx("b", broken=1, unattributed=5), dgx("c", unattributed=6)
    text = nearest(ours, broken, full, dgx("d"), workers=16)
    assert text == "fits now with --workers 8; or when d is reserved for topology jobs as well"
    later = "all other jobs have ended and c is reserved for topology jobs as well"
    assert nearest(ours, broken, full, workers=16) == f"fits now with --workers 8; or when {later}"


def test_a_required_level_is_kept():
    assert len(planned(dgx("a"), dgx("b"), workers=12)) == 2
    with pytest.raises(Unplaceable):
        planned(dgx("a"), dgx("b"), workers=12, topology_required="node")


def test_a_plan_from_a_dump_refuses_what_no_node_has():
    job = MPIJob(name="demo", command="true", image="i", gpus=9)
    with pytest.raises(Unplaceable) as refused:
        planning.plan(job, None, namespace="default", cluster=Cluster(nodes=(dgx("a"),)))
    assert refused.value.exit_code == 5


def test_a_broken_gpu_may_come_back():
    broken = presets.preset_machine("dgx-1-v100", "a")
    node = Node(
        name=NodeName("a"), machine=broken, free=GPUSet(0b11110111), allocatable=GPUSet(0b11110111)
    )
    with pytest.raises(Unplaceable) as refused:
        planned(node, workers=1, gpus=8)
    assert refused.value.verdict is Verdict.NOT_NOW


def test_a_cluster_without_nodes_says_so():
    with pytest.raises(Unplaceable, match="there are no nodes") as refused:
        planned()
    assert refused.value.hint == "submit it once nodes have joined: arena-topo top node lists them"


def test_what_this_machine_does_not_use_is_said(tmp_path):
    with WORLDS["local"](tmp_path) as world:
        job = MPIJob(name="demo", command="true", image="cuda:12", device=(Device.parse("a/b=1"),))
        plan = planning.plan(job, world.backend, namespace="default")
    assert plan.notes == (
        "not used on this machine, where jobs are plain processes: the image cuda:12, --device",
    )
