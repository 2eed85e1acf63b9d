"""What a job asked of the solver is written on it, and read back the same."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kube_objects import node, seen

from arena_topo.engines.kubernetes.queued import queued
from arena_topo.errors import InvalidJob
from arena_topo.job import (
    BindingChoice,
    DataSize,
    Device,
    Duration,
    KeyValue,
    MPIJob,
    NodeLoss,
    PlacementPolicy,
    Quantity,
    StepTime,
    Toleration,
)
from arena_topo.manifests import MAP, REQUEST, STATE, TRIES_ANNOTATION, render
from arena_topo.manifests.annotations import recorded_request
from arena_topo.manifests.recorded_job import job_of
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion

PLACED = [
    *("name", "workers", "gpus", "cpu", "memory", "gpu_model", "mix_models", "min_bandwidth"),
    *("max_nodes", "topology_required", "topology_preferred", "policy", "pack_above", "binding"),
    *("gang_timeout", "on_node_loss", "selector", "toleration", "priority", "running_timeout"),
    *("gang", "gputopology", "nccl_hca"),
]
"""The fields that decide where a job goes and what is done about it later."""

words = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


@st.composite
def jobs(draw: st.DrawFn) -> MPIJob:
    policy = draw(st.none() | st.sampled_from(PlacementPolicy))
    share = st.floats(0, 1, allow_nan=False)
    adaptive = policy is PlacementPolicy.ADAPTIVE
    return MPIJob(
        name=draw(words),
        command="mpirun -np 2 python train.py",
        image="registry/train:1",
        workers=draw(st.integers(1, 4096)),
        gpus=draw(st.integers(1, 16)),
        cpu=draw(st.none() | st.sampled_from(["4", "500m", "0.5"]).map(Quantity.parse)),
        memory=draw(st.none() | st.sampled_from(["8Gi", "512Mi", "1e9"]).map(Quantity.parse)),
        gputopology=True,
        gang=draw(st.booleans()),
        gpu_model=draw(st.just("") | st.sampled_from(["V100", "A100-SXM4-80GB", "ä \"'{}"])),
        mix_models=draw(st.booleans()),
        min_bandwidth=draw(st.floats(0, 1e6, allow_nan=False)),
        max_nodes=draw(st.integers(0, 64)),
        topology_required=draw(st.just("") | st.sampled_from(["node", "leaf"])),
        topology_preferred=draw(st.just("") | st.sampled_from(["node", "spine"])),
        policy=policy,
        pack_above=draw(st.none() | share) if adaptive else None,
        binding=draw(st.sampled_from(BindingChoice)),
        gang_timeout=Duration(draw(st.integers(1, 86400))),
        on_node_loss=draw(st.sampled_from(NodeLoss)),
        nccl_hca=draw(st.booleans()),
        selector=tuple(
            KeyValue(key=key, value=value)
            for key, value in draw(st.dictionaries(words, words, max_size=3)).items()
        ),
        toleration=tuple(
            Toleration(key=key, value=value, effect="NoSchedule", operator="Equal")
            for key, value in draw(st.dictionaries(words, words, max_size=3)).items()
        ),
        priority=draw(st.just("") | words),
        running_timeout=Duration(draw(st.integers(0, 86400))),
    )


def stored(job: MPIJob, api: ApiVersion = ApiVersion.V2BETA1) -> dict[str, Any]:
    plan = render.build_plan(
        job, namespace="default", api=api, owner="alice", files={}, waiting="no"
    )
    found = json.loads(json.dumps(plan.objects[0]))
    found["metadata"].setdefault("annotations", {})[REQUEST] = request_annotation(job)
    return found


@given(jobs(), st.sampled_from([ApiVersion.V2BETA1, ApiVersion.V1]))
def test_a_request_is_read_back_unchanged(job: MPIJob, api: ApiVersion) -> None:
    found = job_of(stored(job, api))
    for name in PLACED:
        assert getattr(found, name) == getattr(job, name), name


@pytest.mark.parametrize("api", ApiVersion)
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"rdma": True}, ["rdma/hca"]),
        ({"device": (Device.parse("vpc.amazonaws.com/efa=4"),)}, ["vpc.amazonaws.com/efa"]),
        ({"device": (Device.parse("example.com/fpga=1"),)}, []),
        ({}, []),
    ],
)
def test_a_job_that_starts_later_gets_the_nics_of_its_request(
    api: ApiVersion, given: dict[str, Any], named: list[str]
) -> None:
    job = MPIJob(name="j", command="x", image="y", gpus=1, gputopology=True, **given)
    assert [one.name for one in job_of(stored(job, api)).device] == named


def test_only_what_is_no_default_is_written() -> None:
    job = MPIJob(name="j", command="x", image="y", workers=4, gpus=2, gputopology=True)
    assert request_annotation(job) == '{"workers":4,"gpus":2}'


def test_every_key_of_the_annotation_has_its_name() -> None:
    job = MPIJob(
        name="j",
        command="x",
        image="y",
        workers=4,
        gpus=2,
        gputopology=True,
        gpu_model="V100",
        mix_models=True,
        min_bandwidth=10,
        max_nodes=2,
        topology_required="leaf",
        topology_preferred="node",
        policy=PlacementPolicy.ADAPTIVE,
        pack_above=0.25,
        binding=BindingChoice.GATES,
        gang_timeout=Duration(60),
        on_node_loss=NodeLoss.HOLD,
        nccl_hca=True,
        workload="vgg16",
        batch=64,
    )
    assert json.loads(request_annotation(job)) == {
        "workers": 4,
        "gpus": 2,
        "model": "V100",
        "mixModels": True,
        "minBandwidthGBps": 10,
        "maxNodes": 2,
        "required": "leaf",
        "preferred": "node",
        "policy": "adaptive",
        "packAbove": 0.25,
        "binding": "gates",
        "gangTimeout": 60,
        "onNodeLoss": "hold",
        "ncclHca": True,
        "workload": "vgg16",
        "batch": 64,
    }


def test_a_training_of_your_own_is_read_back() -> None:
    size, step = DataSize.parse("553MB"), StepTime.parse("180ms")
    job = MPIJob(
        name="j",
        command="x",
        image="y",
        gpus=1,
        gputopology=True,
        gradient_bytes=size,
        step_time=step,
    )
    found = job_of(stored(job))
    assert (found.gradient_bytes, found.step_time) == (size, step)


def test_what_a_queue_writes_into_the_template_counts() -> None:
    job = MPIJob(name="j", command="x", image="y", workers=4, gpus=2, gputopology=True)
    mpijob = stored(job)
    worker = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]
    worker["replicas"] = 3
    worker["template"]["spec"]["nodeSelector"] = {"flavor": "spot"}
    worker["template"]["spec"]["tolerations"] = [{"key": "spot", "operator": "Exists"}]
    found = job_of(mpijob)
    assert found.workers == 3
    assert found.selector == (KeyValue(key="flavor", value="spot"),)
    assert found.toleration == (Toleration(key="spot", value="", effect="", operator="Exists"),)


def test_a_job_that_says_nothing_of_itself_is_read_from_its_template() -> None:
    job = MPIJob(name="j", command="x", image="y", workers=4, gpus=2, memory=Quantity.parse("1Gi"))
    mpijob = stored(job)
    del mpijob["metadata"]["annotations"][REQUEST]
    found = job_of(mpijob)
    assert (found.workers, found.gpus, found.gputopology) == (4, 2, True)
    assert found.memory is not None
    assert found.memory.amount == Decimal(1 << 30)


nonsense = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["-1", "1e999", "nan", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
keys = st.sampled_from(
    [
        *("workers", "gpus", "model", "mixModels", "minBandwidthGBps", "maxNodes", "required"),
        *("preferred", "policy", "packAbove", "binding", "podShape", "gangTimeout", "onNodeLoss"),
        *("ncclHca", "workload", "batch", "gradientBytes", "stepTime"),
    ]
)


@settings(max_examples=3 * settings.default.max_examples)
@given(said=st.dictionaries(keys, nonsense, max_size=4), alone=st.booleans())
@example(said={"maxNodes": math.inf}, alone=True)
@example(said={"workers": math.inf}, alone=True)
@example(said={"gangTimeout": math.inf}, alone=False)
@example(said={"minBandwidthGBps": math.nan}, alone=False)
@example(said={"minBandwidthGBps": "nan"}, alone=False)
@example(said={"policy": "adaptive", "packAbove": math.nan}, alone=False)
@example(said={"mixModels": "no"}, alone=False)
def test_an_invalid_annotation_stops_only_its_own_job(said: Any, alone: Any) -> None:
    """Others read it too, to see whose turn it is: nothing but InvalidJob may come of it.

    `alone`: the template says nothing of the numbers, as of v1alpha1 and of claims.
    """
    mpijob = stored(MPIJob(name="j", command="x", image="y", workers=4, gpus=2, gputopology=True))
    mpijob["metadata"]["annotations"][REQUEST] = json.dumps(said)
    if alone:
        worker = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]
        worker["template"]["spec"]["containers"][0].pop("resources")
        del worker["replicas"]
    with contextlib.suppress(InvalidJob):
        found = job_of(mpijob)
        assert 0 <= found.min_bandwidth < math.inf
        assert found.pack_above is None or 0 <= found.pack_above <= 1
        assert found.mix_models is (said.get("mixModels") is True)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', "[" * 100_000])
def test_an_annotation_that_is_no_mapping_says_nothing(text: str) -> None:
    mpijob = stored(MPIJob(name="j", command="x", image="y", workers=4, gpus=2, gputopology=True))
    mpijob["metadata"]["annotations"][REQUEST] = text
    assert recorded_request(mpijob) == {}
    assert job_of(mpijob).workers == 4


def test_an_invalid_key_is_named_with_its_job() -> None:
    mpijob = stored(MPIJob(name="j", command="x", image="y", workers=4, gpus=2, gputopology=True))
    mpijob["metadata"]["annotations"][REQUEST] = '{"policy": "scatter"}'
    with pytest.raises(InvalidJob, match="MPIJob j makes no sense as a job") as caught:
        job_of(mpijob)
    assert caught.value.why == (
        "--policy is invalid: expected pack, spread or adaptive, got 'scatter'"
    )


# Whatever a tenant writes


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything that is in a value."""
    inner = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        inner = enumerate(value)
    return [
        *([path] if path else []),
        *(one for key, below in inner for one in places(below, (*path, key))),
    ]


odd = nonsense | st.sampled_from(
    [
        *("\N{SUPERSCRIPT TWO}", "1e99999999999999999999", "9e999999", "1" * 5000, "node-0/0,1"),
        *([], {}, [{}], [None], {"containers": []}, {"": None}, 10**400, ...),
    ]
)


@settings(max_examples=4 * settings.default.max_examples)
@given(data=st.data(), api=st.sampled_from(ApiVersion), often=st.integers(1, 3))
def test_whatever_a_tenant_makes_of_a_job_stops_this_job_and_no_other(
    data: st.DataObject, api: Any, often: Any
) -> None:
    """Others read it for their own sake: nothing but InvalidJob may come of it."""
    job = MPIJob(
        name="j",
        command="x",
        image="y",
        workers=2,
        gpus=2,
        gputopology=True,
        cpu=Quantity.parse("4"),
        selector=(KeyValue(key="a", value="b"),),
        toleration=(Toleration(key="a", value="b", effect="", operator="Equal"),),
    )
    mpijob = stored(job, api)
    mpijob["metadata"]["annotations"] |= {
        STATE: "placed",
        TRIES_ANNOTATION: "1",
        MAP: "node-0/0,1;node-0/2,3",
    }
    for _ in range(often):
        *way, last = data.draw(st.sampled_from(places(mpijob)))
        inner: Any = mpijob
        for part in way:
            inner = inner[part]
        # A later step must not write into the sample that other cases draw as well.
        value = copy.deepcopy(data.draw(odd))
        if value is not ...:
            inner[last] = value
        elif isinstance(inner, dict):
            del inner[last]
    queued(mpijob, {})
    cluster = seen(node("node-0"), mpijob)
    assert cluster.nodes[0].free_count >= 4
    with contextlib.suppress(InvalidJob):
        assert job_of(mpijob).workers > 0


@pytest.mark.parametrize("text", ["1e99999999999999999999", "9e999999", "1e400", "\u0661", "4 GB"])
def test_a_job_whose_resources_are_no_quantities_is_no_job(text: str) -> None:
    job = MPIJob(name="j", command="x", image="y", workers=4, gpus=2, gputopology=True)
    mpijob = stored(job)
    container = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"]["cpu"] = text
    with pytest.raises(InvalidJob, match="MPIJob j makes no sense as a job"):
        job_of(mpijob)


def test_a_multiple_of_a_quantity_is_at_most_what_a_quantity_may_be() -> None:
    assert str(Quantity.parse("1.5Gi").times(3)) == "4.5Gi"
    assert str(Quantity.parse("4E").times(4)) == str((1 << 63) - 1)
