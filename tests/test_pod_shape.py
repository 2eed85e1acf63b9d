"""What becomes of workers that share a node: separate pods, fused ones, and pods that share IPC."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cube_mesh import HGX, PCIE, V100, cluster, node, value
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace
from worlds import WORLDS

from arena_topo.bandwidth import Regime
from arena_topo.engines import Options
from arena_topo.engines.local import engine as local
from arena_topo.errors import InvalidJob
from arena_topo.gang import existing_job, shape, submission
from arena_topo.gang.planning import plan
from arena_topo.gang.request import Site, request_of
from arena_topo.job import Device, EnvVar, KeyValue, MPIJob, PodShape, Quantity
from arena_topo.manifests import Plan
from arena_topo.manifests.annotations import parse_map
from arena_topo.manifests.pins import visible_gpus
from arena_topo.manifests.recorded_job import job_of
from arena_topo.manifests.render import build_plan as build
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Placement, Reason, Request, Unplaceable, Verdict
from arena_topo.solver.door import place
from arena_topo.topology import Cluster, Tier


def a_job(**said: Any) -> MPIJob:
    plain = {
        "name": "demo",
        "command": "mpirun true",
        "image": "i",
        "workers": 4,
        "gpus": 1,
        "gputopology": True,
        "pod_shape": PodShape.FUSED,
    }
    return MPIJob(**(plain | said))


def of_shape(job: MPIJob) -> tuple[int, int]:
    return job.workers, job.gpus


# ---------------------------------------------------------------- fused


def test_all_workers_of_a_node_become_one_pod():
    assert of_shape(shape.choose_pod_shape(a_job(), cluster(node("a", V100)))) == (1, 4)


def test_every_pod_has_the_same_number_of_workers():
    """Six workers on 4 + 2 free GPUs: three pods of two, as one template makes all pods."""
    world = cluster(node("a", HGX, 0b1111), node("b", HGX, 0b11))
    assert of_shape(shape.choose_pod_shape(a_job(workers=6), world)) == (3, 2)


def test_a_pod_is_never_larger_than_the_largest_node():
    world = cluster(node("a", HGX), node("b", HGX))
    assert of_shape(shape.choose_pod_shape(a_job(workers=16), world)) == (2, 8)
    assert of_shape(shape.choose_pod_shape(a_job(workers=8, gpus=2), world)) == (2, 8)


def test_pods_that_do_not_share_a_node_are_worth_more_than_fewer_broken_nodes():
    """Four pairs would break four nodes to have the network of each alone; two quads need two."""
    frees = {"a": 0b111111, "b": 0b11, "c": 0b1111, "d": 0b1111}
    world = cluster(*(node(name, HGX, free) for name, free in frees.items()), beyond=12.5)
    pairs = place(request_of(a_job(gpus=2, rdma=True), world), world)
    assert set(pairs.nodes) == {"a", "b", "c", "d"}
    job = shape.choose_pod_shape(a_job(workers=8, rdma=True), world)
    assert of_shape(job) == (2, 4)
    assert len(place(request_of(job, world), world).nodes) == 2


def test_what_workers_ask_for_grows_with_them():
    job = a_job(
        cpu=Quantity.parse("500m"),
        memory=Quantity.parse("1.5Gi"),
        device=(Device.parse("rdma/shared=1"),),
    )
    made = shape.choose_pod_shape(job, cluster(node("a", V100, cpu=8.0, memory=1 << 40)))
    assert (str(made.cpu), str(made.memory), str(made.device[0])) == (
        "2000m",
        "6Gi",
        "rdma/shared=4",
    )
    assert made.total_gpus == job.total_gpus
    assert replace(made, **{n: getattr(job, n) for n in CHANGED}) == job


CHANGED = ("workers", "gpus", "cpu", "memory", "launcher_cpu", "launcher_memory", "device")


SMALL: dict[str, Any] = {
    "workers": 4,
    "gpus": 1,
    "gputopology": True,
    "pod_shape": PodShape.FUSED,
    "cpu": Quantity.parse("1"),
}


def launcher_of(api: ApiVersion, **said: Any) -> Any:
    """What the launcher of a fused job asks for, where the objects of a version say it."""
    world = cluster(node("a", V100, cpu=64.0, memory=1 << 40))
    asked = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi")} | said
    made = plan(a_job(**asked), None, namespace="n", api=api, cluster=world)
    assert of_shape(made.job) == (1, 4)
    spec = made.objects[0]["spec"]
    if api is ApiVersion.V1ALPHA1:
        return spec["launcherResources"].get("limits")
    (container,) = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    return container["resources"]["limits"]


@pytest.mark.parametrize("api", [ApiVersion.V2BETA1, ApiVersion.V1])
def test_the_launcher_keeps_the_size_of_one_worker_when_workers_are_fused(api: ApiVersion):
    assert launcher_of(api) == {"cpu": "2", "memory": "1Gi"}
    assert launcher_of(api, launcher_cpu=Quantity.parse("1")) == {"cpu": "1", "memory": "1Gi"}


def test_a_fused_job_of_v1alpha1_is_the_same_request_when_it_is_submitted_again(tmp_path: Path):
    with WORLDS["kubernetes-v1alpha1"](tmp_path) as world:
        job = world.job("demo", **SMALL)
        submission.submit(job, world.backend, namespace="default")
        found = existing_job.identical_job(job, Site(backend=world.backend, namespace="default"))
        assert found is not None
        assert found.objects[0]["spec"]["launcherResources"] == {}


def test_the_launcher_of_v1alpha1_is_given_nothing_by_fusing_unless_something_is_asked():
    assert launcher_of(ApiVersion.V1ALPHA1) is None
    asked = launcher_of(ApiVersion.V1ALPHA1, launcher_cpu=Quantity.parse("1"))
    assert asked == {"cpu": "1", "memory": "1Gi"}


def test_what_a_larger_pod_asks_for_must_be_there():
    """Four cores are left on each node; one pod of four workers would need eight."""
    world = cluster(*(node(name, HGX, cpu=4.0) for name in "ab"))
    assert of_shape(shape.choose_pod_shape(a_job(cpu=Quantity.parse("2")), world)) == (2, 2)


@pytest.mark.parametrize("other", [PodShape.SEPARATE, PodShape.SHARED])
def test_a_job_of_another_shape_stays_as_it_is(other: PodShape):
    job = a_job(pod_shape=other)
    assert shape.choose_pod_shape(job, cluster(node("a", V100))) is job


def test_a_job_that_does_not_fit_is_refused_for_what_it_asked():
    world = cluster(node("a", V100, 0b111))
    assert of_shape(shape.choose_pod_shape(a_job(), world)) == (4, 1)
    with pytest.raises(Unplaceable, match="4 workers x 1 GPU"):
        plan(a_job(), None, namespace="default", cluster=world)


def test_a_job_that_has_to_wait_gets_the_shape_that_is_best_once_there_is_room():
    """Or it would be made of separate pods, which it asked not to be."""
    world = cluster(node("a", V100, 0b111), node("b", V100, 0b1))
    assert of_shape(shape.choose_pod_shape(a_job(workers=8), world, later=True)) == (1, 8)
    now = cluster(node("a", V100, 0b1111), node("b", V100, 0b1111))
    assert of_shape(shape.choose_pod_shape(a_job(workers=8), now, later=True)) == (2, 4)
    assert of_shape(shape.choose_pod_shape(a_job(workers=17), now, later=True)) == (17, 1)


def test_a_level_that_is_preferred_comes_before_larger_pods():
    tiers = (Tier(name="leaf", bandwidth=12.5),)
    rack = [node(f"near-{at}", PCIE, 0b11, domains=("r",)) for at in range(4)]
    far = [node(f"far-{at}", HGX, 0b1111, domains=(f"s{at}",)) for at in range(2)]
    world = cluster(*rack, *far, tiers=tiers, beyond=12.5)
    assert of_shape(shape.choose_pod_shape(a_job(workers=8, rdma=True), world)) == (2, 4)
    assert of_shape(
        shape.choose_pod_shape(a_job(workers=8, rdma=True, topology_preferred="leaf"), world)
    ) == (
        4,
        2,
    )


def usable(placement: Placement) -> float:
    """GB/s that these pods get; infinite for a single GPU."""
    return math.inf if placement.bandwidth is None else placement.bandwidth.point


def every_shape(job: MPIJob, world: Cluster) -> dict[int, Placement]:
    """The placement of each shape that fits, by the number of workers in a pod."""
    found = {}
    for each in range(1, job.workers + 1):
        if job.workers % each == 0:
            one = replace(job, workers=job.workers // each, gpus=job.gpus * each)
            try:
                found[each] = place(request_of(one, world), world)
            except Unplaceable:
                continue
    return found


@st.composite
def worlds(draw: st.DrawFn) -> Cluster:
    tiers = (Tier(name="spine", bandwidth=6.0), Tier(name="leaf", bandwidth=12.5))
    nodes = [
        node(
            f"n{index}",
            draw(st.sampled_from([V100, HGX, PCIE])),
            draw(st.integers(0, 255)),
            domains=(draw(st.sampled_from("st")), draw(st.sampled_from("uvw"))),
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    nodes = [replace(one, domains=(one.domains[0], "".join(one.domains))) for one in nodes]
    return cluster(*nodes, tiers=tiers, beyond=1.0)


@given(worlds(), st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.sampled_from([1, 2, 4]))
def test_the_shape_is_the_best_of_all_that_fit(world: Cluster, workers: int, gpus: int):
    job = a_job(workers=workers, gpus=gpus)
    made, found = shape.choose_pod_shape(job, world), every_shape(job, world)
    if not found:
        assert made == job
        return
    ranked = {}
    for each in found:
        one = replace(job, workers=workers // each, gpus=gpus * each)
        worth = value(replace(request_of(one, world), blind=False), world)
        assert worth is not None
        ranked[each] = (worth, -each)
    assert workers // made.workers == min(ranked, key=lambda each: ranked[each])


@given(worlds(), st.sampled_from([2, 4, 8]))
def test_fused_pods_can_never_use_less_than_separate_ones(world: Cluster, workers: int):
    separate = every_shape(a_job(workers=workers), world).get(1)
    if separate is not None:
        made = shape.choose_pod_shape(a_job(workers=workers), world)
        # Bandwidths within 10 % count as alike.
        assert usable(place(request_of(made, world), world)) * 1.1 >= usable(separate)


@pytest.mark.parametrize("api", list(ApiVersion))
def test_slots_resources_and_map_of_a_fused_job_agree(api: ApiVersion):
    world = cluster(node("a", V100), node("b", V100, 0b1111))
    made = plan(
        a_job(workers=12, gang=True, cpu=Quantity.parse("2")),
        None,
        namespace="default",
        api=api,
        cluster=cluster(*(replace(one, cpu=64.0) for one in world.nodes)),
    )
    job = made.objects[0]
    pods, each = made.job.workers, made.job.gpus
    assert (pods, each) == (3, 4)
    spec = job["spec"]
    worker = spec if "template" in spec else spec["mpiReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert worker["replicas"] == pods
    assert container["resources"]["limits"]["cpu"] == "8"
    assert "4" in container["resources"]["limits"].values()
    labels = worker["template"]["metadata"]["labels"]
    assert labels["pod-group.scheduling.sigs.k8s.io/min-available"] == str(pods)
    assert labels["gpu-topology-replica"] == str(pods)
    if api is not ApiVersion.V1ALPHA1:
        assert spec["slotsPerWorker"] == each
        assert spec["runPolicy"]["schedulingPolicy"]["minAvailable"] == pods
    assert job["metadata"]["annotations"]["requestGPUsOfJobOwner"] == "12"
    map_ = parse_map(job["metadata"]["annotations"]["arena-topo.io/placement"])
    assert [len(gpus) for _index, _node, gpus in map_] == [each] * pods


def test_the_forecast_is_that_of_the_shape_that_runs():
    world = cluster(node("a", HGX))
    said = {
        one: plan(a_job(pod_shape=one, workers=8), None, namespace="n", cluster=world).forecast
        for one in (PodShape.SEPARATE, PodShape.FUSED)
    }
    assert said[PodShape.SEPARATE].bus_bandwidth == said[PodShape.FUSED].bus_bandwidth > 200
    assert said[PodShape.SEPARATE].regime == Regime.TCP
    assert said[PodShape.FUSED].usable == said[PodShape.FUSED].bus_bandwidth


def test_the_local_engine_fuses_workers_as_well():
    backend = local.open_local(Options(backend="local", emulate="dgx-1-v100"))
    made = plan(a_job(image="local"), backend, namespace="default")
    assert of_shape(made.job) == (1, 4)
    assert made.objects[0]["spec"]["slotsPerWorker"] == 4


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(["", "m", "k", "Gi", "e3"]))
def test_a_quantity_times_a_number_is_exact(whole: int, part: int, suffix: str):
    for text in (f"{whole}{suffix}", f"{whole}.{part}{suffix}"):
        quantity = Quantity.parse(text)
        assert quantity.times(3).amount == 3 * quantity.amount
        assert quantity.times(3).text.endswith(suffix)
    assert Quantity.parse(f"{whole}{suffix}").times(1).amount == Decimal(
        Quantity.parse(f"{whole}{suffix}").amount
    )


# ---------------------------------------------------------------- mpirun's own number


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("mpirun -np 4 python train.py -n 9", 4),
        ("cd /x && mpirun -n 8 --allow-run-as-root -x A=b python t.py", 8),
        ("FOO=1 exec /usr/bin/mpiexec -np 4 p", 4),
        ("mpirun --np 4 -mca btl ^openib p > log 2>&1", 4),
        ("mpirun \\\n  -np 4 \\\n  python x", 4),
        ("export A=1\nmpirun -c 3 x; echo done", 3),
        ("(mpirun -np 5 x)", 5),
        ("mpirun -np 4 --map-by slot -bind-to none x", 4),
    ],
)
def test_the_number_of_ranks_is_read_where_the_command_says_it(command: str, number: int):
    assert shape.ranks_of_command(command) == number


@pytest.mark.parametrize(
    "command",
    [
        "python train.py -np 4",
        f"mpirun -np {'9' * 5000} x",
        "mpirun python train.py",
        "mpirun -np $RANKS x",
        "mpirun -np 2 a : -np 3 b",
        "mpirun -np 4 -H elsewhere:4 x",
        "mpirun -np 4 --hostfile mine x",
        "mpirun -np 8 --oversubscribe x",
        "mpirun -np 8 --map-by slot:OVERSUBSCRIBE x",
        "mpirun -np 4 --unheard-of x",
        "mpirun -np 4 a; mpirun -np 2 b",
        "mpirun -np 4 -n 5 x",
        "mpirun -np 4",
        'mpirun -np 4 "unclosed',
        "bash -c 'mpirun -np 4 x'",
        "# mpirun -np 4 x",
        "mpirun -np \u0664 x",
    ],
)
def test_a_number_of_ranks_that_is_in_doubt_is_not_read(command: str):
    assert shape.ranks_of_command(command) is None


@given(st.text(alphabet=" \n\t'\"\\;&|()<>#$=:-npmirunx04", max_size=40))
def test_reading_a_command_never_fails(command: str):
    shape.ranks_of_command(command)
    shape.ranks_of_command("mpirun " + command)


def planned(**said: Any) -> tuple[str, ...]:
    world = cluster(node("a", V100))
    job = a_job(**({"pod_shape": PodShape.SEPARATE} | said))
    return plan(job, None, namespace="default", cluster=world).notes


def test_more_ranks_than_slots_are_refused_with_the_number_that_fits():
    with pytest.raises(InvalidJob) as refused:
        planned(command="mpirun -np 8 x")
    assert refused.value.message == "mpirun starts 8 ranks, but 4 workers x 1 GPU make 4 slots"
    assert "-np 4" in (refused.value.hint or "")
    with pytest.raises(InvalidJob):
        planned(command="mpirun -np 8 x", pod_shape=PodShape.FUSED)


def test_ranks_that_fill_the_slots_are_not_worth_a_word_in_any_shape():
    for one in (PodShape.SEPARATE, PodShape.FUSED):
        assert planned(command="mpirun -np 4 x", pod_shape=one) == ()


def test_fewer_ranks_than_slots_are_noted_with_the_gpus_that_idle():
    assert planned(command="mpirun -np 3 x") == (
        "mpirun starts 3 ranks, but 4 workers x 1 GPU make 4 slots, so 1 GPU will be idle",
    )


def test_a_job_that_is_not_placed_is_only_told_of_its_ranks():
    (many,) = planned(command="mpirun -np 9 x", gputopology=False)
    assert many == (
        "mpirun starts 9 ranks, but 4 workers x 1 GPU make 4 slots; Open MPI refuses that without"
        " --oversubscribe"
    )
    assert planned(command="mpirun -np 9 x", gputopology=False, gpus=0) == ()


# ---------------------------------------------------------------- on the network of the node


def nodes_used(made: Plan) -> list[str]:
    assert made.placement is not None
    return sorted(one.node for one in made.placement.assignments)


def on_host(api: ApiVersion | None, *, free: str = "abcd", **said: Any) -> Plan:
    """The plan of four workers on the network of their nodes, each of which could hold them all."""
    world = cluster(*(node(name, V100) for name in free))
    asked = {"pod_shape": PodShape.SEPARATE, "host_network": True} | said
    return plan(a_job(**asked), None, namespace="n", api=api, cluster=world)


@pytest.mark.parametrize("api", [None, ApiVersion.V2BETA1])
def test_workers_with_sshd_on_the_network_of_their_node_get_a_node_each(api: ApiVersion | None):
    made = on_host(api)
    assert nodes_used(made) == ["a", "b", "c", "d"]
    (said,) = made.notes
    assert said.startswith("--hostNetwork: no two pods of workers share a node, as sshd has its")


@pytest.mark.parametrize("api", [ApiVersion.V1, ApiVersion.V1ALPHA1])
def test_workers_that_are_reached_without_sshd_may_share_a_node_and_its_network(api: ApiVersion):
    made = on_host(api)
    assert len(set(nodes_used(made))) == 1
    assert made.notes == ()


def test_workers_with_a_network_card_of_their_own_may_share_a_node():
    made = on_host(None, annotation=(KeyValue.parse("k8s.aliyun.com/eni=true"),))
    assert len(set(nodes_used(made))) == 1
    assert made.notes == ()


def test_pods_of_fused_workers_get_a_node_each_on_its_network():
    made = on_host(None, pod_shape=PodShape.FUSED, free="a")
    assert (of_shape(made.job), nodes_used(made)) == ((1, 4), ["a"])
    world = cluster(node("a", V100, 0b1111), node("b", V100, 0b11))
    six = a_job(workers=6, host_network=True)
    # Pairs of workers would put two pods on a.
    assert of_shape(shape.choose_pod_shape(replace(six, host_network=False), world)) == (3, 2)
    assert shape.choose_pod_shape(six, world) == six
    assert of_shape(shape.choose_pod_shape(six, world, Site(version=ApiVersion.V1))) == (3, 2)
    wide = cluster(*(node(name, V100, 0b11) for name in "abc"))
    assert of_shape(shape.choose_pod_shape(six, wide)) == (3, 2)


def test_too_few_nodes_for_workers_on_their_network_are_refused_with_what_helps():
    with pytest.raises(Unplaceable) as refused:
        on_host(None, free="ab")
    assert refused.value.refusals[0].reason is Reason.PER_NODE
    assert refused.value.nearest is not None
    assert "without --hostNetwork, or with --pod-shape fused" in refused.value.nearest
    fused = on_host(None, free="ab", pod_shape=PodShape.FUSED)
    assert len(set(nodes_used(fused))) == len(nodes_used(fused))


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_that_may_meet_on_a_node_and_its_network_are_told_so(workers: int):
    (said,) = on_host(None, gputopology=False, workers=workers).notes
    assert said.endswith("--gputopology gives each a node of its own")
    assert on_host(ApiVersion.V1, gputopology=False, workers=workers).notes == ()


@pytest.mark.parametrize("api", [ApiVersion.V2BETA1, ApiVersion.V1])
def test_whoever_starts_a_job_later_keeps_its_workers_apart_as_well(api: ApiVersion):
    world = cluster(*(node(name, V100) for name in "abcd"))
    job = a_job(pod_shape=PodShape.SEPARATE, host_network=True)
    made = build(job, namespace="n", api=api, owner="USER", files={}, waiting="later")
    found = request_of(job_of(made.objects[0]), world)
    assert found.per_node == (1 if api is ApiVersion.V2BETA1 else None)


def test_the_local_engine_runs_no_sshd_that_could_be_in_the_way():
    backend = local.open_local(Options(backend="local", emulate="dgx-1-v100"))
    job = a_job(image="local", host_network=True, pod_shape=PodShape.SEPARATE)
    made = plan(job, backend, namespace="default")
    assert len(set(nodes_used(made))) == 1


@pytest.mark.parametrize("per_node", [1, 2, 3])
@given(world=worlds(), workers=st.integers(1, 5), gpus=st.sampled_from([1, 2]))
def test_no_node_gets_more_workers_than_may_share_one(
    per_node: int, world: Cluster, workers: int, gpus: int
):
    asked = Request(workers=workers, gpus=gpus, per_node=per_node)
    if value(asked, world) is not None:
        loads = Counter(one.node for one in place(asked, world).assignments)
        assert max(loads.values()) <= per_node


# ---------------------------------------------------------------- auto


def automatic(**said: Any) -> MPIJob:
    return a_job(pod_shape=PodShape.AUTO, **said)


@given(worlds(), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_auto_is_the_best_of_both_shapes_and_separate_where_they_are_alike(
    world: Cluster, workers: int, gpus: int
):
    size = {"workers": workers, "gpus": gpus}
    made = shape.choose_pod_shape(automatic(**size), world)
    worths = {
        one: value(
            request_of(shape.choose_pod_shape(a_job(pod_shape=one, **size), world), world), world
        )
        for one in (PodShape.SEPARATE, PodShape.FUSED)
    }
    apart, fused = worths[PodShape.SEPARATE], worths[PodShape.FUSED]
    better = fused is not None and (apart is None or fused.band < apart.band)
    assert made.pod_shape is (PodShape.FUSED if better else PodShape.SEPARATE)
    assert value(request_of(made, world), world) == (fused if better else apart)


def test_auto_leaves_pods_separate_where_the_network_holds_them_up_either_way():
    world = cluster(node("a", HGX), node("b", HGX))
    size = {"workers": 4, "gpus": 4}
    assert of_shape(shape.choose_pod_shape(a_job(**size), world)) == (2, 8)
    assert of_shape(shape.choose_pod_shape(automatic(**size), world)) == (4, 4)


NVLINKED = cluster(node("a", V100, dedicated=True))


def test_auto_says_what_was_asked_and_what_is_used_and_is_read_back_as_that():
    made = plan(automatic(), None, namespace="n", cluster=NVLINKED)
    assert of_shape(made.job) == (1, 4)
    notes = made.objects[0]["metadata"]["annotations"]
    assert notes["arena-topo.io/asked-pod-shape"] == "auto"
    assert json.loads(request_annotation(made.job))["podShape"] == "fused"
    apart = plan(
        automatic(workers=2, gpus=8),
        None,
        namespace="n",
        cluster=cluster(node("a", HGX), node("b", HGX)),
    )
    assert apart.objects[0]["metadata"]["annotations"]["arena-topo.io/asked-pod-shape"] == "auto"
    assert "podShape" not in json.loads(request_annotation(apart.job))


@pytest.mark.parametrize(
    "said",
    [
        {"queue": True},
        {"label": KeyValue(key="kueue.x-k8s.io/queue-name", value="q")},
        {"command": "mpirun -npernode 1 true"},
        {"command": "mpirun --map-by ppr:1:node true"},
        {"command": "mpirun -H a,b true"},
        {"command": "mpirun -rf ranks true"},
    ],
)
def test_auto_leaves_pods_separate_where_a_queue_or_the_command_counts_on_them(
    said: dict[str, Any],
):
    assert of_shape(shape.choose_pod_shape(automatic(), NVLINKED)) == (1, 4)
    made = shape.choose_pod_shape(automatic(**said), NVLINKED)
    assert (of_shape(made), made.pod_shape) == ((4, 1), PodShape.SEPARATE)


def test_auto_leaves_pods_separate_on_v1alpha1():
    made = shape.choose_pod_shape(automatic(), NVLINKED, Site(version=ApiVersion.V1ALPHA1))
    assert of_shape(made) == (4, 1)


def test_auto_may_be_set_for_jobs_that_are_not_placed_and_changes_nothing_there():
    said = {"gputopology": False}
    plain = plan(a_job(pod_shape=PodShape.SEPARATE, **said), None, namespace="n")
    spec = plan(automatic(**said), None, namespace="n").objects[0]["spec"]
    assert spec == plain.objects[0]["spec"]
    with pytest.raises(InvalidJob, match="--pod-shape needs --gputopology"):
        a_job(**said)


@pytest.mark.parametrize("name", ["kubernetes-v1alpha1", "local"])
def test_a_job_of_auto_is_the_same_request_when_it_is_submitted_again(tmp_path: Path, name: str):
    with WORLDS[name](tmp_path) as world:
        job = replace(world.job("demo", **SMALL), pod_shape=PodShape.AUTO)
        submission.submit(job, world.backend, namespace="default")
        assert existing_job.identical_job(job, Site(backend=world.backend, namespace="default"))


# ---------------------------------------------------------------- shared


@pytest.mark.parametrize(
    ("workers", "seen"),
    [
        ("a/0,3;a/1,2;b/5", ((0, 3, 1, 2), (1, 2, 0, 3), (5,))),
        ("a/0;a/;b/1", ((), (), (1,))),
        ("a/0;b/1;a/2;a/3", ((0, 2, 3), (1,), (2, 0, 3), (3, 0, 2))),
    ],
)
def test_workers_that_share_see_their_own_gpus_first_and_then_their_neighbours(
    workers: str, seen: tuple[tuple[int, ...], ...]
):
    read = parse_map(workers)
    assert visible_gpus(read, shared=True) == seen
    assert visible_gpus(read, shared=False) == tuple(gpus for _index, _node, gpus in read)


def objects(**said: Any) -> dict[str, Any]:
    job = a_job(**({"pod_shape": PodShape.SHARED} | said))
    made = build(
        job, namespace="team-a", api=ApiVersion.V2BETA1, owner="USER", files={}, waiting="later"
    )
    return made.objects[0]["spec"]["mpiReplicaSpecs"]


def test_only_workers_share_ipc_and_nothing_covers_their_shared_memory():
    roles = objects()
    worker, launcher = (roles[role]["template"]["spec"] for role in ("Worker", "Launcher"))
    assert worker["hostIPC"] is True
    assert "volumes" not in worker
    assert "volumeMounts" not in worker["containers"][0]
    assert "hostIPC" not in launcher
    apart = objects(pod_shape=PodShape.SEPARATE)["Worker"]["template"]["spec"]
    assert "hostIPC" not in apart
    assert [one["name"] for one in apart["volumes"]] == ["dshm"]


def test_pods_of_a_job_on_a_node_have_one_host_id_that_kubernetes_can_spell_out():
    listed = objects()["Worker"]["template"]["spec"]["containers"][0]["env"]
    said = {one["name"]: one for one in listed}
    names = [one["name"] for one in listed]
    assert said["ARENA_TOPO_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert said["NCCL_HOSTID"]["value"] == "$(ARENA_TOPO_NODE)/team-a/demo"
    # $(NAME) stands for what is above it in the list alone.
    assert names.index("ARENA_TOPO_NODE") < names.index("NCCL_HOSTID")
    assert said["NCCL_CUMEM_ENABLE"]["value"] == "0"
    mine = objects(env=(EnvVar(key="NCCL_CUMEM_ENABLE", value="1"),))
    listed = mine["Worker"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "NCCL_CUMEM_ENABLE", "value": "1"} in listed
    launcher = objects()["Launcher"]["template"]["spec"]["containers"][0]["env"]
    assert not [one for one in launcher if one["name"].startswith("NCCL_")]


SHELLS = [
    words
    for words in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]


def started(shell: list[str], folder: Path, **environment: str) -> str:
    """What a worker that shares tells its sshd, by the script that it really runs."""
    (container,) = objects()["Worker"]["template"]["spec"]["containers"]
    _sh, option, script = container["command"]
    sshd = folder / "sshd"
    sshd.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    sshd.chmod(0o755)
    assert "exec /usr/sbin/sshd -De " in script
    done = subprocess.run(
        [*shell, option, script.replace("/usr/sbin/sshd", str(sshd))],
        env={"PATH": os.environ["PATH"], "NCCL_HOSTID": "a/n/demo", "NCCL_CUMEM_ENABLE": "0"}
        | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, said = done.stdout.splitlines()
    assert (first, second, done.stderr) == ("-De", "-o", "")
    return said


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("shown", "order"),
    [("0,3,1,2", "0,3,1,2"), ("5,2,6", "1,0,2"), ("10,9", "1,0"), ("7", "0")],
)
def test_ranks_find_the_gpus_of_their_own_worker_first(
    shell: list[str], shown: str, order: str, tmp_path: Path
):
    """CUDA numbers the GPUs that a container sees from 0 in the order of the bus."""
    assert started(shell, tmp_path, NVIDIA_VISIBLE_DEVICES=shown) == (
        "SetEnv=NCCL_HOSTID=a/n/demo NCCL_CUMEM_ENABLE=0 CUDA_DEVICE_ORDER=PCI_BUS_ID"
        f" CUDA_VISIBLE_DEVICES={order}"
    )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("shown", [None, "", "void", "all", "GPU-8f1c,GPU-77aa", "0,x"])
def test_where_the_runtime_names_the_gpus_itself_their_order_is_left_alone(
    shell: list[str], shown: str | None, tmp_path: Path
):
    more = {} if shown is None else {"NVIDIA_VISIBLE_DEVICES": shown}
    said = started(shell, tmp_path, **more)
    assert said == "SetEnv=NCCL_HOSTID=a/n/demo NCCL_CUMEM_ENABLE=0"


def test_devices_that_the_user_names_are_what_ranks_get(tmp_path: Path):
    said = started(["sh"], tmp_path, NVIDIA_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES="1")
    assert said.endswith(" CUDA_VISIBLE_DEVICES=1")


@pytest.mark.parametrize("api", [ApiVersion.V1, ApiVersion.V1ALPHA1])
def test_sharing_is_refused_where_no_sshd_can_tell_ranks_their_gpus(api: ApiVersion):
    with pytest.raises(InvalidJob, match="--pod-shape shared needs MPIJob v2beta1"):
        plan(
            a_job(pod_shape=PodShape.SHARED),
            None,
            namespace="n",
            api=api,
            cluster=cluster(node("a", V100)),
        )


def test_sharing_that_joins_nothing_is_said_to_be_in_vain():
    notes = planned(pod_shape=PodShape.SHARED)
    assert [note for note in notes if note.startswith("--pod-shape shared does not join")]
    apart = cluster(*(node(name, V100, 1) for name in "abcd"))
    made = plan(a_job(pod_shape=PodShape.SHARED), None, namespace="n", cluster=apart)
    assert not [note for note in made.notes if "--pod-shape" in note]


# ---------------------------------------------------------------- refusals


def refusal(world: Cluster, **said: Any) -> Unplaceable:
    with pytest.raises(Unplaceable) as refused:
        plan(a_job(**said), None, namespace="n", cluster=world)
    return refused.value


def test_fused_pods_that_would_be_fast_enough_later_are_refused_for_now():
    """Without GPUs 0 and 5 no four of a cube mesh have a ring of double links."""
    busy = cluster(node("a", V100, 0b11011110, dedicated=True))
    refused = refusal(busy, min_bandwidth=50.0)
    assert str(refused) == "4 workers x 1 GPU in 1 pod of 4 cannot be placed now"
    assert refused.verdict is Verdict.NOT_NOW
    assert refused.nearest == "fits now with --min-bandwidth 43.2; or when GPU 0 of node a is free"
    assert plan(a_job(min_bandwidth=43.2), None, namespace="n", cluster=busy).placement
    freed = cluster(node("a", V100, 0b11011111, dedicated=True))
    assert plan(a_job(min_bandwidth=50.0), None, namespace="n", cluster=freed).placement


def test_sizes_that_would_fit_are_those_of_the_workers_asked_for_and_not_of_fused_ones():
    world = cluster(node("a", V100), node("b", V100, 0b1111))
    asked = {"workers": 8, "gpus": 2, "host_network": True}
    refused = refusal(world, **asked)
    assert str(refused) == "8 workers x 2 GPUs in 2 pods of 4 cannot be placed now"
    assert refused.nearest == (
        "fits now with --workers 4, or with --gpus 1; or when 4 more GPUs of node b are free"
    )
    for fits in ({"workers": 4}, {"gpus": 1}):
        assert plan(a_job(**asked | fits), None, namespace="n", cluster=world).placement


def test_fused_pods_that_are_never_fast_enough_hear_what_fused_pods_get():
    idle = cluster(node("a", V100, dedicated=True))
    refused = refusal(idle, min_bandwidth=90.0)
    assert refused.verdict is Verdict.NEVER
    assert refused.nearest == "fits now with --min-bandwidth 86.4"


@pytest.mark.parametrize("free", [0b11110110, 0b11011110])
@pytest.mark.parametrize("shape_asked", [PodShape.FUSED, PodShape.SEPARATE])
def test_where_the_kubelet_picks_the_gpus_no_way_out_rests_on_the_best_of_them(
    shape_asked: PodShape, free: int
):
    """A cube mesh with two GPUs in use by others, with a quad among the rest, and without one."""
    shared = cluster(node("a", V100, free, foreign=True))
    refused = refusal(shared, min_bandwidth=50.0, pod_shape=shape_asked)
    assert refused.nearest is not None
    assert "fused" not in refused.nearest
    [rate] = re.findall(r"--min-bandwidth ([\d.]+)", refused.nearest)
    assert plan(
        a_job(min_bandwidth=float(rate), pod_shape=shape_asked),
        None,
        namespace="n",
        cluster=shared,
    ).placement
