"""How placements are made to hold: what is chosen, what it guarantees, what is written, undone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cube_mesh import nvlink
from fake_api import FakeApi, kubeconfig
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace

from arena_topo.engines import Options
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.errors import ArenaError, ClusterError, InvalidJob
from arena_topo.job import BindingChoice, MPIJob, PodShape, Quantity
from arena_topo.manifests import Binding, Guarantee, Manifest, Mechanisms
from arena_topo.manifests.binding import bind
from arena_topo.manifests.claims import claims_of
from arena_topo.manifests.pins import (
    dropped_pins,
    waits_at_gate,
    with_gates,
    with_pins,
    without_pins,
    worker_patch,
)
from arena_topo.manifests.render import build_plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Assignment, Placement, Proof
from arena_topo.topology import (
    GPU,
    Cluster,
    Machine,
    Node,
    NodeName,
    Taint,
    flat,
    gpu_set,
)

V2BETA1, V1, V1ALPHA1 = ApiVersion.V2BETA1, ApiVersion.V1, ApiVersion.V1ALPHA1
DRIVER = "gpu.nvidia.com"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

NOTHING = Mechanisms(admission=False, claims=False, patches=False, classes={})
POLICIES = Mechanisms(admission=True, claims=True, patches=True, classes={DRIVER: DRIVER})
CLASSES = replace(NOTHING, classes={DRIVER: DRIVER})


# The values that the tests are made of


def a_job(**said: Any) -> MPIJob:
    plain = {
        "name": "train",
        "gpus": 2,
        "workers": 2,
        "image": "horovod:0.20",
        "command": "mpirun python train.py",
        "gputopology": True,
    }
    return MPIJob(**(plain | said))


def a_node(name: str, gpus: int = 8, **said: Any) -> Node:
    machine = Machine(
        name=name, gpus=tuple(GPU(index=index) for index in range(gpus)), links=flat(gpus)
    )
    return Node(**({"name": NodeName(name), "machine": machine, "free": machine.everything} | said))


def uuid(node: int, gpu: int) -> str:
    return f"GPU-{node:04x}{gpu:04x}-0000-4000-8000-{node:06x}{gpu:06x}"


def a_driven_node(number: int, gpus: int = 8, **said: Any) -> Node:
    """A node whose GPUs a DRA driver publishes."""
    machine = Machine(
        name=f"dra-{number}",
        gpus=tuple(GPU(index=index, uuid=uuid(number, index)) for index in range(gpus)),
        links=flat(gpus),
    )
    plain = {"name": NodeName(machine.name), "machine": machine, "free": machine.everything}
    return Node(**({"driver": DRIVER, "resource": DRIVER} | plain | said))


def a_cluster(*nodes: Node) -> Cluster:
    return Cluster(nodes=nodes)


def a_placement(*workers: tuple[str, tuple[int, ...]]) -> Placement:
    return Placement(
        assignments=tuple(
            Assignment(worker=index, node=NodeName(node), gpus=gpus)
            for index, (node, gpus) in enumerate(workers)
        ),
        bandwidth=nvlink(80.0),
        inside=nvlink(80.0),
        worst=nvlink(18.0),
        tier="node",
        proof=Proof(optimal=True, bound=80.0),
    )


PAIR = a_placement(("a", (0, 3)), ("a", (1, 2)))
APART = a_placement(("a", (0, 3)), ("b", (1, 2)))
WHOLE = a_placement(("a", (0, 3, 2, 1)), ("b", (0, 1, 2, 3)))
UNTOLD = a_placement(("a", ()), ("b", ()))
CLAIMED = a_placement(("dra-1", (0, 3)), ("dra-1", (1, 2)), ("dra-2", (4, 7)), ("dra-2", (5, 6)))
DRIVEN = a_cluster(a_driven_node(1), a_driven_node(2))


def rendered(job: MPIJob, api: ApiVersion = V2BETA1, cluster: Cluster | None = None) -> Manifest:
    """The MPIJob of a job as it waits: nothing pins it."""
    said = {"namespace": "team-a", "owner": "USER", "files": {}, "waiting": "no room"}
    return build_plan(job, api=api, cluster=cluster, **said).objects[0]


def worker_of(mpijob: Manifest) -> Manifest:
    spec = mpijob["spec"]
    return spec["template"] if "template" in spec else spec["mpiReplicaSpecs"]["Worker"]["template"]


def asked_of(mpijob: Manifest) -> Manifest:
    """What each worker asks for."""
    resources = worker_of(mpijob)["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    return resources["limits"]


def bound(placement: Placement, *nodes: Node, by: Mechanisms | None = None, **said: Any) -> Binding:
    job = a_job(workers=len(placement.assignments), **said)
    return bind(job, placement, a_cluster(*nodes), V2BETA1, by)


# Which way is taken


@pytest.mark.parametrize(
    ("offered", "name", "sure"),
    [
        (POLICIES, "admission", "confirmed"),
        (replace(POLICIES, patches=False), "admission", "confirmed"),
        (Mechanisms(), "admission", "unconfirmed"),
        (Mechanisms(patches=True), "admission", "unconfirmed"),
        (replace(NOTHING, patches=True), "gates", "confirmed"),
        (NOTHING, "template", "confirmed"),
        (Mechanisms(admission=False), "template", "confirmed"),
        (None, "template", "confirmed"),
    ],
)
def test_the_strongest_way_is_taken_that_the_cluster_does_not_refuse(
    offered: Mechanisms | None, name: str, sure: str
):
    found = bound(APART, a_node("a"), a_node("b"), by=offered)
    assert (found.name, found.confirmed) == (name, sure == "confirmed")


def test_v1alpha1_has_the_template_alone_whatever_the_cluster_offers():
    found = bind(a_job(), APART, a_cluster(a_node("a"), a_node("b")), V1ALPHA1, POLICIES)
    assert found.name == "template"


@pytest.mark.parametrize(
    ("choice", "api", "offered", "why", "hint"),
    [
        ("admission", V2BETA1, NOTHING, "no admission policy places workers", "arena-topo install"),
        ("admission", V1ALPHA1, POLICIES, "v1alpha1 do not know their number", "leave it out"),
        ("gates", V2BETA1, NOTHING, "and you may not", 'verbs: ["list", "patch"]'),
        ("gates", V1ALPHA1, POLICIES, "v1alpha1 drops scheduling gates", "leave it out"),
        ("claims", V2BETA1, POLICIES, "no DRA driver publishes the GPUs of node a", "leave it out"),
    ],
)
def test_a_requested_mechanism_that_does_not_work_is_refused_with_the_reason(
    choice: str, api: ApiVersion, offered: Mechanisms, why: str, hint: str
):
    job = a_job(binding=BindingChoice(choice))
    with pytest.raises(InvalidJob, match=f"--binding {choice} cannot pin") as caught:
        bind(job, APART, a_cluster(a_node("a"), a_node("b")), api, offered)
    assert why in str(caught.value.why)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("choice", ["admission", "gates", "template"])
def test_a_requested_mechanism_is_used_if_possible(choice: str):
    for offered in (POLICIES, None):
        found = bound(APART, a_node("a"), a_node("b"), by=offered, binding=BindingChoice(choice))
        assert found.name == choice
        assert found.confirmed == (offered is not None or choice == "template")


def test_workers_that_are_at_their_gates_already_can_only_be_patched():
    nodes = (a_node("a", 4, dedicated=True), a_node("b", 4, dedicated=True))
    found = bind(a_job(), APART, a_cluster(*nodes), V2BETA1, POLICIES, gated=True)
    assert (found.name, found.guarantee, found.inject) == ("gates", Guarantee.NODE, False)
    assert (
        found.why == "the workers were made before their GPUs were known, so the kubelet picks them"
    )
    whole = bind(a_job(gpus=4), WHOLE, a_cluster(*nodes), V2BETA1, POLICIES, gated=True)
    assert (whole.guarantee, whole.inject) == (Guarantee.GPUS, False)


def test_workers_that_are_to_see_each_others_gpus_are_patched_where_they_can_be():
    nodes = (a_node("a", dedicated=True),)
    shared = {"pod_shape": PodShape.SHARED}
    patched = bound(PAIR, *nodes, by=POLICIES, **shared)
    assert (patched.name, patched.inject, patched.separate) == ("gates", True, False)
    placed_by_policy = bound(PAIR, *nodes, by=replace(POLICIES, patches=False), **shared)
    assert (placed_by_policy.name, placed_by_policy.separate) == ("admission", True)
    assert bound(PAIR, a_node("a"), by=POLICIES, **shared).separate


# What is guaranteed


@pytest.mark.parametrize("name", ["admission", "gates"])
def test_each_worker_gets_its_gpus_on_a_whole_or_dedicated_node(name: str):
    by = replace(NOTHING, admission=name == "admission", patches=True)
    ours, others = a_node("a", dedicated=True), a_node("a")

    def found(placement: Placement, *nodes: Node) -> tuple[str, bool]:
        answer = bound(placement, *nodes, by=by, gpus=len(placement.assignments[0].gpus) or 2)
        assert (answer.why is None) == (answer.guarantee is Guarantee.GPUS)
        assert answer.name == name
        return answer.guarantee.value, answer.inject

    assert found(PAIR, ours) == ("gpus", True)
    assert found(PAIR, others) == ("node", False)
    assert found(PAIR, replace(ours, foreign=True)) == ("node", False)
    assert found(PAIR, replace(ours, unattributed=2)) == ("node", False)
    # One worker takes all of its node, the other's node is ours alone.
    whole = replace(others, machine=a_node("a", 4).machine, allocatable=gpu_set((0, 3)))
    assert found(APART, whole, a_node("b", dedicated=True)) == ("gpus", True)
    assert found(APART, whole, a_node("b")) == ("node", False)
    assert found(WHOLE, a_node("a", 4), a_node("b", 4)) == ("gpus", True)
    assert found(UNTOLD, ours, a_node("b", dedicated=True)) == ("node", False)


def test_one_template_does_not_inject_into_a_node_with_unattributed_gpus():
    kept = {"dedicated": True}
    same = a_placement(("a", (0, 3)), ("b", (0, 3)))
    assert bound(same, a_node("a", **kept), a_node("b", **kept)).inject
    opaque = bound(same, a_node("a", **kept), a_node("b", unattributed=2, **kept))
    assert (opaque.guarantee, opaque.inject) == (Guarantee.NODE, False)


def test_the_kubelet_is_not_left_to_pick_where_jobs_hold_gpus_that_it_does_not_know_of():
    """Its books say that injected GPUs are free: it would give them to this job's containers."""
    busy = a_node("a", dedicated=True, free=gpu_set((0, 1, 2, 3)))
    with pytest.raises(ArenaError, match="cannot be pinned to their GPUs") as caught:
        bound(PAIR, busy)
    assert "jobs on node a were given GPUs that the kubelet does not know of" in str(
        caught.value.why
    )
    assert "arena-topo install" in str(caught.value.hint)
    # Where we say which GPUs each worker gets, there is nothing to pick.
    assert bound(PAIR, busy, by=POLICIES).inject
    # Nor where the others got theirs from the kubelet, or everybody does.
    assert bound(PAIR, replace(busy, unattributed=2)).guarantee is Guarantee.NODE
    assert bound(PAIR, replace(busy, dedicated=False)).guarantee is Guarantee.NODE


# Claims


def claiming(
    placement: Placement = CLAIMED,
    cluster: Cluster = DRIVEN,
    by: Mechanisms | None = POLICIES,
    **said: Any,
) -> Binding:
    job = a_job(workers=len(placement.assignments), **said)
    return bind(job, placement, cluster, V2BETA1, by)


def test_gpus_of_a_driver_are_claimed_worker_by_worker_where_the_policies_are_there():
    found = claiming()
    assert (found.name, found.guarantee, found.confirmed) == ("claims", Guarantee.GPUS, True)
    assert (found.inject, found.why, found.device_class) == (False, None, DRIVER)


@pytest.mark.parametrize(
    "offered",
    [
        CLASSES,
        replace(CLASSES, claims=True),
        replace(CLASSES, admission=True),
        replace(CLASSES, admission=None),
        replace(CLASSES, claims=None),
    ],
)
def test_without_both_policies_no_gpus_are_claimed_and_the_way_to_them_is_named(
    offered: Mechanisms,
):
    for choice in (BindingChoice.AUTO, BindingChoice.CLAIMS):
        with pytest.raises(ArenaError) as caught:
            claiming(by=offered, binding=choice)
        assert caught.value.why == (
            "no admission policies give each worker its node and a claim of its own"
        )
        assert "arena-topo install" in str(caught.value.hint)


def test_without_policies_gpus_of_a_class_with_an_extended_resource_are_requested_by_number():
    extended = replace(CLASSES, patches=True, extended={DRIVER: "nvidia.com/gpu"})
    found = claiming(by=extended)
    assert (found.name, found.guarantee) == ("gates", Guarantee.NODE)


def test_policies_that_could_not_be_tried_leave_the_claims_unconfirmed():
    for offered in (replace(POLICIES, claims=None), replace(CLASSES, admission=None, claims=None)):
        found = claiming(by=offered)
        assert (found.name, found.guarantee, found.confirmed) == ("claims", Guarantee.GPUS, False)


def test_a_cluster_that_cannot_be_read_is_assumed_to_have_a_class_named_after_its_driver():
    found = claiming(by=None)
    assert (found.name, found.device_class, found.confirmed) == ("claims", DRIVER, False)


def test_an_opaque_node_gets_a_claim_of_a_number():
    untold = a_placement(("dra-1", ()), ("dra-2", ()))
    found = claiming(untold)
    assert found.guarantee is Guarantee.NODE
    assert found.why == (
        "a node does not say which of its GPUs are free, so the scheduler picks them"
    )
    first, _ = claims_of(rendered(a_job()), untold, found, DRIVEN)
    (asked,) = first["spec"]["devices"]["requests"]
    assert asked["exactly"] == {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": 2,
    }


@pytest.mark.parametrize(
    ("offered", "api", "why", "hint"),
    [
        (NOTHING, V2BETA1, "no DeviceClass of the cluster offers", "an administrator installs"),
        (POLICIES, V1ALPHA1, "v1alpha1 cannot claim GPUs", "serves MPIJob v2beta1"),
    ],
)
def test_gpus_that_cannot_be_claimed_are_an_error_with_the_reason(
    offered: Mechanisms, api: ApiVersion, why: str, hint: str
):
    with pytest.raises(ArenaError, match="the workers of train cannot be pinned") as caught:
        bind(a_job(workers=4), CLAIMED, DRIVEN, api, offered)
    assert why in str(caught.value.why)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("choice", ["admission", "gates", "template"])
def test_gpus_of_a_driver_need_claims_unless_its_class_has_an_extended_resource(
    choice: str,
):
    with pytest.raises(InvalidJob, match=f"--binding {choice}") as caught:
        claiming(binding=BindingChoice(choice))
    assert "pods get them by claims alone" in str(caught.value.why)
    extended = replace(POLICIES, extended={DRIVER: "nvidia.com/gpu"})
    found = claiming(by=extended, binding=BindingChoice(choice))
    assert (found.name, found.guarantee, found.inject) == (choice, Guarantee.NODE, False)
    waiting = rendered(a_job(workers=4), cluster=DRIVEN)
    assert asked_of(waiting) == {DRIVER: "2"}
    assert asked_of(with_pins(waiting, CLAIMED, found)) == {"nvidia.com/gpu": "2"}


def test_a_worker_that_takes_its_whole_node_gets_its_gpus_as_an_extended_resource_too():
    whole = a_placement(("dra-1", tuple(range(8))), ("dra-2", tuple(range(8))))
    extended = replace(POLICIES, extended={DRIVER: "nvidia.com/gpu"})
    for choice in ("admission", "template"):
        found = claiming(whole, by=extended, gpus=8, binding=BindingChoice(choice))
        assert (found.guarantee, found.inject) == (Guarantee.GPUS, False)


QUOTA = {"spec": {"hard": {"requests.nvidia.com/gpu": "16", "pods": "9"}}}
LINE = f"{DRIVER}.deviceclass.resource.k8s.io/devices"


def test_claims_do_not_go_past_a_quota_that_counts_gpus_and_not_the_class():
    with pytest.raises(ArenaError) as caught:
        claiming(by=replace(POLICIES, quotas=(QUOTA,)))
    assert "claims would bypass it" in str(caught.value.why)
    assert str(caught.value.hint).endswith(f'{LINE}: "16"')


@pytest.mark.parametrize(
    "quotas",
    [
        (QUOTA, {"spec": {"hard": {LINE: "16"}}}),
        ({"spec": {"hard": {"requests.cpu": "16"}}},),
        ({"spec": {}}, {}),
    ],
)
def test_claims_are_made_where_the_quota_counts_them_or_counts_no_gpus(quotas: tuple[Any, ...]):
    assert claiming(by=replace(POLICIES, quotas=quotas)).name == "claims"


def test_where_claims_would_go_past_a_quota_an_extended_resource_is_counted_by_it():
    by = replace(POLICIES, quotas=(QUOTA,), extended={DRIVER: "nvidia.com/gpu"})
    assert claiming(by=by).name == "admission"


def test_a_driver_without_uuids_gets_no_claims():
    first = a_driven_node(1)
    nameless = replace(
        first, machine=replace(first.machine, gpus=tuple(GPU(index=one) for one in range(8)))
    )
    odd = replace(
        first,
        machine=replace(
            first.machine, gpus=tuple(GPU(index=one, uuid="'] || true") for one in range(8))
        ),
    )
    for node in (nameless, odd):
        with pytest.raises(ArenaError) as caught:
            claiming(cluster=a_cluster(node, a_driven_node(2)))
        assert "does not say the uuid of GPU 0 of node dra-1" in str(caught.value.why)


def test_a_gang_that_the_scheduler_holds_back_has_a_group_of_its_name_and_size():
    found = claiming(by=replace(POLICIES, gang=True), gang=True)
    assert found.gang
    mpijob = with_pins(rendered(a_job(workers=4, gang=True)), CLAIMED, found)
    assert worker_of(mpijob)["metadata"]["labels"]["arena-topo.io/gang"] == "true"
    workload, group, *claims = claims_of(mpijob, CLAIMED, found, DRIVEN)
    assert [one["metadata"]["name"] for one in claims] == [
        f"train-worker-{one}" for one in range(4)
    ]
    assert (workload["kind"], group["kind"]) == ("Workload", "PodGroup")
    assert group["metadata"]["name"] == "train"
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    for job, by in ((a_job(workers=4), replace(POLICIES, gang=True)), (a_job(gang=True), POLICIES)):
        assert not bind(job, PAIR, a_cluster(a_node("a")), V2BETA1, by).gang


# What is written, and undone

BINDINGS = {
    "admission": Binding(name="admission", guarantee=Guarantee.GPUS, inject=True),
    "gates": Binding(name="gates", guarantee=Guarantee.GPUS, inject=True),
    "claims": Binding(name="claims", guarantee=Guarantee.GPUS, device_class=DRIVER),
    "template": Binding(name="template", guarantee=Guarantee.GPUS, inject=True),
    "resource": Binding(name="template", guarantee=Guarantee.NODE, resource="aliyun.com/gpu"),
    "gang": Binding(name="admission", guarantee=Guarantee.NODE, gang=True),
}
PLACEMENTS = {"pair": PAIR, "apart": APART, "whole": WHOLE}


def by_policy(mpijob: Manifest, index: int) -> tuple[str, str]:
    """The node and the GPUs that the policy takes from the map for one worker."""
    entries = worker_of(mpijob)["metadata"]["annotations"]["arena-topo.io/placement"].split(";")
    node, gpus = entries[index].split("/")
    return node, gpus


@pytest.mark.parametrize("name", ["admission", "claims"])
@pytest.mark.parametrize("api", [V1, V2BETA1])
def test_the_policy_finds_each_workers_node_and_gpus_in_the_template(name: str, api: ApiVersion):
    template = with_pins(rendered(a_job(), api), APART, BINDINGS[name])
    assert by_policy(template, 0) == ("a", "0,3")
    assert by_policy(template, 1) == ("b", "1,2")
    worker = worker_of(template)
    assert worker["metadata"]["labels"]["arena-topo.io/inline-placement"] == "v1"
    assert worker["spec"]["schedulingGates"] == [{"name": "arena-topo.io/placement"}]
    assert "affinity" not in worker["spec"]


def test_patched_workers_have_the_gate_and_no_label_of_a_policy():
    worker = worker_of(with_pins(rendered(a_job()), APART, BINDINGS["gates"]))
    assert worker["spec"]["schedulingGates"] == [{"name": "arena-topo.io/placement"}]
    assert "arena-topo.io/placement" not in worker["metadata"]["annotations"]
    assert "arena-topo.io/inline-placement" not in worker["metadata"]["labels"]


def test_the_launcher_never_waits_at_a_gate_and_claims_nothing():
    for binding in BINDINGS.values():
        mpijob = with_pins(rendered(a_job()), PAIR, binding)
        spec = mpijob["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
        assert spec == rendered(a_job())["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]


def test_workers_of_a_job_started_by_another_system_wait_at_the_gate_for_a_patch():
    bare = rendered(a_job())
    held = with_gates(bare, effects=["NoSchedule"])
    worker = worker_of(held)
    assert worker["spec"]["schedulingGates"] == [{"name": "arena-topo.io/placement"}]
    notes = worker["metadata"]["annotations"]
    # Its GPUs will be the kubelet's choice, so nobody may count the plan's as taken.
    assert notes["arena-topo.io/guarantee"] == "node"
    assert "arena-topo.io/placement" not in notes
    assert worker["spec"]["tolerations"] == [
        {"key": "arena-topo.io/topology", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert with_gates(held, effects=["NoSchedule"]) == held
    assert without_pins(held) == bare
    assert with_pins(held, APART, BINDINGS["admission"]) == with_pins(
        bare, APART, BINDINGS["admission"]
    )


def test_a_job_started_by_another_system_on_nodes_of_a_driver_gets_its_claims_later():
    """No pod may ask for GPUs under the name of a driver: the server would refuse it."""
    worker = worker_of(with_gates(rendered(a_job(), cluster=DRIVEN)))
    assert worker["metadata"]["labels"]["arena-topo.io/claims"] == "per-worker"
    assert worker["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpus"}]}


@pytest.mark.parametrize(
    ("placement", "why"),
    [
        (a_placement(("a", (0, 3))), "it names 1 workers, and the job has 2"),
        (a_placement(("a", (0,)), ("a", (0,))), "worker 1: GPU 0 of a is taken twice"),
        (a_placement(("No de", (0,)), ("a", (1,))), "worker 0: expected NODE/GPU"),
        (a_placement(("n" * 254, (0,)), ("a", (1,))), "worker 0: expected NODE/GPU"),
    ],
)
def test_a_map_that_would_stop_the_operator_half_way_is_never_sent(placement: Placement, why: str):
    for api in ApiVersion:
        with pytest.raises(ArenaError) as caught:
            with_pins(rendered_any(a_job(), api), placement, BINDINGS["template"])
        assert why in str(caught.value.why)


def rendered_any(job: MPIJob, api: ApiVersion) -> Manifest:
    """As `rendered`; v1alpha1 cannot wait."""
    made = build_plan(job, namespace="team-a", api=api, owner="USER", files={})
    return made.objects[0]


TOLERATION = {"key": "arena-topo.io/topology", "operator": "Exists", "effect": "NoSchedule"}
ON_X = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}
IN_POOL = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["y"]}]}
OWN_NICS = {"name": "NCCL_IB_HCA", "value": "mlx5_7"}
OLD_DEVICES = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}

FOREIGN = st.fixed_dictionaries(
    {},
    optional={
        "affinity": st.sampled_from(
            [
                {},
                {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}},
                {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [ON_X]}}},
                {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [IN_POOL, ON_X]}}},
                {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            ]
        ),
        "tolerations": st.just([{"key": "a", "operator": "Exists"}]),
        "schedulingGates": st.just([{"name": "other"}]),
        "topologySpreadConstraints": st.sampled_from([[], [{"maxSkew": 3, "topologyKey": "zone"}]]),
        "resourceClaims": st.just([{"name": "nic", "resourceClaimName": "n"}]),
        "nodeSelector": st.just({"queue": "x"}),
    },
)
ENVIRONMENTS = st.lists(
    st.sampled_from(
        [
            *(OLD_DEVICES, OWN_NICS),
            *({"name": "z", "value": "1"}, {"name": "A", "value": "2"}, {"name": "Z"}),
        ]
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one["name"],
)
LABELS = st.sampled_from([None, {"team": "vision"}])


@st.composite
def stored(draw: st.DrawFn, apis: st.SearchStrategy[ApiVersion]) -> Manifest:
    """A job as a server may hold it: with what users, queues and defaults have put into it."""
    api = draw(apis)
    mpijob = copy.deepcopy(rendered_any(a_job(), api))
    template = worker_of(mpijob)
    template["spec"] |= draw(FOREIGN)
    template["spec"]["containers"][0]["env"] = draw(ENVIRONMENTS)
    if draw(st.booleans()):
        template["metadata"]["creationTimestamp"] = None
    if (labels := draw(LABELS)) is not None:
        template["metadata"]["labels"] = labels
    if draw(st.booleans()):
        del template["spec"]["containers"][0]["resources"]
    return mpijob


def with_defaults(mpijob: Manifest) -> Manifest:
    """As the server hands it back: serialized, with the defaults of a pod template filled in."""
    back = json.loads(json.dumps(mpijob))
    template = worker_of(back)
    template["metadata"].setdefault("creationTimestamp", None)
    for one in template["spec"]["containers"][0]["env"]:
        if "valueFrom" in one:
            one["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    for one in template["spec"].get("topologySpreadConstraints", ()):
        one.setdefault("nodeAffinityPolicy", "Honor")
    return back


@given(
    mpijob=stored(st.sampled_from([V1, V2BETA1])),
    binding=st.sampled_from(sorted(BINDINGS)),
    placement=st.sampled_from(sorted(PLACEMENTS)),
    kept=st.sets(st.sampled_from(["NoSchedule", "NoExecute"])),
    hcas=st.sampled_from([(), ("mlx5_0", "mlx5_1")]),
)
def test_what_is_pinned_comes_off_again_and_leaves_the_job_as_it_was(
    mpijob: Manifest, binding: str, placement: str, kept: set[str], hcas: tuple[str, ...]
):
    before = copy.deepcopy(mpijob)
    pinned = with_pins(mpijob, PLACEMENTS[placement], BINDINGS[binding], effects=kept, hcas=hcas)
    assert mpijob == before
    assert without_pins(pinned) == mpijob
    assert without_pins(without_pins(pinned)) == mpijob
    assert without_pins(mpijob) == mpijob
    assert with_gates(pinned) == with_gates(mpijob)


@given(
    mpijob=stored(st.just(V1ALPHA1)),
    placement=st.sampled_from(sorted(PLACEMENTS)),
    kept=st.sets(st.sampled_from(["NoSchedule", "NoExecute"])),
)
def test_pins_come_off_the_one_template_of_v1alpha1_too(
    mpijob: Manifest, placement: str, kept: set[str]
):
    binding = replace(BINDINGS["template"], inject=False)
    assert without_pins(with_pins(mpijob, PLACEMENTS[placement], binding, effects=kept)) == mpijob


@given(
    mpijob=stored(st.sampled_from([V1, V2BETA1])),
    first=st.sampled_from(sorted(BINDINGS)),
    then=st.sampled_from(sorted(BINDINGS)),
    one=st.sampled_from(sorted(PLACEMENTS)),
    other=st.sampled_from(sorted(PLACEMENTS)),
)
def test_a_job_that_is_placed_again_is_as_if_it_had_never_been_elsewhere(
    mpijob: Manifest, first: str, then: str, one: str, other: str
):
    elsewhere = with_pins(mpijob, PLACEMENTS[one], BINDINGS[first], effects=["NoSchedule"])
    fresh = with_pins(mpijob, PLACEMENTS[other], BINDINGS[then])
    assert with_pins(without_pins(elsewhere), PLACEMENTS[other], BINDINGS[then]) == fresh
    assert with_pins(elsewhere, PLACEMENTS[other], BINDINGS[then]) == fresh


@pytest.mark.parametrize("binding", sorted(BINDINGS))
@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_what_a_server_fills_in_does_not_keep_a_pin_on_the_job(binding: str, placement: str):
    pinned = with_pins(
        rendered(a_job()),
        PLACEMENTS[placement],
        BINDINGS[binding],
        effects=["NoExecute"],
        hcas=("mlx5_0",),
    )
    assert without_pins(with_defaults(pinned)) == with_defaults(rendered(a_job()))


def test_a_job_that_waited_requests_the_gpu_resource_of_its_nodes():
    job = a_job(cpu=Quantity(text="4"))
    nodes = [a_node(name, resource="aliyun.com/gpu") for name in ("a", "b")]
    waiting = rendered(job, cluster=a_cluster(a_node("c")))
    assert asked_of(waiting) == {"nvidia.com/gpu": "2", "cpu": "4"}
    for offered in (POLICIES, NOTHING):
        pinned = with_pins(waiting, APART, bound(APART, *nodes, by=offered))
        assert asked_of(pinned) == {"aliyun.com/gpu": "2", "cpu": "4"}
        assert without_pins(pinned) == waiting


@pytest.mark.parametrize("binding", sorted(BINDINGS))
def test_what_a_queue_writes_into_a_pinned_job_outlives_the_pins(binding: str):
    """Kueue writes into these fields when it admits a job (`Merge` in pkg/podset/podset.go)."""
    added = {"key": "flavor", "operator": "Exists"}

    def admitted(mpijob: Manifest) -> Manifest:
        mpijob = copy.deepcopy(mpijob)
        template = worker_of(mpijob)
        template["metadata"]["labels"]["kueue.x-k8s.io/podset"] = "worker"
        template["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = "mpijob-train"
        template["spec"]["nodeSelector"] = {"flavor": "h100"}
        template["spec"].setdefault("tolerations", []).append(added)
        template["spec"].setdefault("schedulingGates", []).append({"name": "kueue.x-k8s.io/tas"})
        return mpijob

    bare = rendered(a_job())
    pinned = with_pins(bare, APART, BINDINGS[binding], effects=["NoSchedule"], hcas=("mlx5_0",))
    assert without_pins(admitted(pinned)) == admitted(bare)


@pytest.mark.parametrize("forged", ["", "[", "[" * 100_000, "3"])
def test_a_note_that_cannot_be_read_leaves_no_pin(forged: str):
    pinned = with_pins(rendered(a_job()), APART, BINDINGS["template"])
    worker_of(pinned)["metadata"]["annotations"]["arena-topo.io/unpinned"] = forged
    assert without_pins(pinned) == rendered(a_job())


@pytest.mark.parametrize("forged", ['{"image": "evil"}', '{"containers": []}'])
def test_a_note_brings_nothing_into_a_job_but_fields_of_pins(forged: str):
    pinned = with_pins(rendered(a_job()), APART, BINDINGS["admission"])
    worker_of(pinned)["metadata"]["annotations"]["arena-topo.io/unpinned"] = forged
    assert without_pins(pinned) == rendered(a_job())


def test_of_a_variable_that_a_job_sets_and_a_pin_writes_the_pin_counts():
    job = a_job(env="NVIDIA_VISIBLE_DEVICES=all")
    pinned = with_pins(rendered(job), APART, replace(BINDINGS["admission"], inject=True))
    env = worker_of(pinned)["spec"]["containers"][0]["env"]
    found = [one for one in env if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert ["value" in one for one in found] == [True, False]
    assert without_pins(pinned) == rendered(job)


def test_terms_that_a_job_had_are_narrowed_to_each_node_and_not_dropped():
    mpijob = rendered(a_job())
    worker_of(mpijob)["spec"]["affinity"] = {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [IN_POOL]}}
    }
    pinned = worker_of(with_pins(mpijob, APART, BINDINGS["template"]))
    terms = pinned["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [one["matchExpressions"] for one in terms] == [IN_POOL["matchExpressions"]] * 2
    assert [one["matchFields"][0]["values"] for one in terms] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("binding", "field"),
    [
        ("admission", "schedulingGates"),
        ("gates", "schedulingGates"),
        ("claims", "schedulingGates"),
        ("template", "affinity"),
    ],
)
def test_pins_that_a_server_has_pruned_are_named(binding: str, field: str):
    sent = with_pins(rendered(a_job()), APART, BINDINGS[binding])
    assert dropped_pins(sent, with_defaults(sent)) == ()
    pruned = copy.deepcopy(sent)
    del worker_of(pruned)["spec"][field]
    assert dropped_pins(sent, pruned) == (field,)


def test_gates_and_claims_of_others_do_not_make_up_for_ours():
    sent = with_pins(rendered(a_job()), APART, BINDINGS["gates"])
    other = copy.deepcopy(sent)
    worker_of(other)["spec"]["schedulingGates"] = [{"name": "other"}]
    assert dropped_pins(sent, other) == ("schedulingGates",)


# A worker at its gate, on a server that refuses what a real one refuses


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[FakeApi, Connection]]:
    api = FakeApi()
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    yield api, Connection(Options(kubeconfig=config))
    api.close()


def a_worker(**spec: Any) -> Manifest:
    template = worker_of(with_pins(rendered(a_job()), APART, BINDINGS["gates"]))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-worker-0",
            "namespace": "default",
            "annotations": {"note": "kept"},
        },
        "spec": copy.deepcopy(template["spec"]) | spec,
    }


POD = "/api/v1/namespaces/default/pods/train-worker-0"


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {"nodeAffinity": {}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [IN_POOL]}}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [IN_POOL, ON_X]}}},
        {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
    ],
)
def test_the_patch_of_a_gated_worker_is_accepted_whatever_affinity_it_has(
    server: tuple[FakeApi, Connection], affinity: Manifest | None
):
    api, connection = server
    gates = [{"name": "other"}, {"name": "arena-topo.io/placement"}]
    api.add(a_worker(affinity=affinity or {}, schedulingGates=gates))
    pod = connection.get(POD)
    assert waits_at_gate(pod)
    patch = worker_patch(pod, "node-2", (3, 0), (3, 0))
    after = connection.patch(POD, patch, kind="strategic")
    assert not waits_at_gate(after)
    assert after["spec"]["schedulingGates"] == [{"name": "other"}]
    notes = after["metadata"]["annotations"]
    assert notes["note"] == "kept"
    assert notes["topology.kubernetes.io/gpu-group"] == "3,0"
    assert notes["topology.kubernetes.io/gpu-visible"] == "3,0"
    terms = after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    ours = {"key": "metadata.name", "operator": "In", "values": ["node-2"]}
    assert all(ours in one["matchFields"] for one in terms)
    for kind in affinity or {}:
        if kind != "nodeAffinity":
            assert after["spec"]["affinity"][kind] == affinity[kind]
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    if affinity and preferred in affinity.get("nodeAffinity", {}):
        assert after["spec"]["affinity"]["nodeAffinity"][preferred] == [{"weight": 1}]


def test_a_worker_that_was_made_since_does_not_take_the_patch_of_its_predecessor(
    server: tuple[FakeApi, Connection],
):
    api, connection = server
    api.add(a_worker())
    patch = worker_patch(connection.get(POD), "node-2", (0,), (0,))
    connection.delete(POD)
    api.add(a_worker())
    with pytest.raises(ClusterError):
        connection.patch(POD, patch, kind="strategic")
    assert waits_at_gate(connection.get(POD))


def test_a_map_that_no_policy_has_read_goes_with_the_gate():
    pod = a_worker()
    pod["metadata"]["annotations"]["arena-topo.io/placement"] = "a/0;b/1"
    assert worker_patch(pod, "a", (0,), (0,))["metadata"]["annotations"] == {
        "arena-topo.io/format": "v1",
        "arena-topo.io/placement": None,
        "topology.kubernetes.io/gpu-group": "0",
        "topology.kubernetes.io/gpu-visible": "0",
    }


def test_gpus_that_the_kubelet_picks_are_not_written_on_a_worker():
    notes = worker_patch(a_worker(), "a", (), ())["metadata"]["annotations"]
    assert notes == {"arena-topo.io/format": "v1"}


def test_a_worker_that_is_past_its_gate_is_not_patched():
    for gates in ([], [{"name": "other"}]):
        pod = a_worker(schedulingGates=gates)
        with pytest.raises(ValueError, match="does not wait at the gate"):
            worker_patch(pod, "a", (0,), (0,))


def test_kept_nodes_taint_reaches_workers_of_every_binding():
    kept = a_node("a", dedicated=True, taints=(Taint(key="arena-topo.io/topology"),))
    for offered in (POLICIES, replace(NOTHING, patches=True), NOTHING):
        made = build_plan(
            a_job(),
            namespace="team-a",
            api=V2BETA1,
            owner="USER",
            files={},
            placement=PAIR,
            cluster=a_cluster(kept),
            mechanisms=offered,
        )
        assert worker_of(made.objects[0])["spec"]["tolerations"] == [TOLERATION]


def test_the_printed_plan_holds_the_claims_that_its_workers_take():
    made = build_plan(
        a_job(workers=4),
        namespace="team-a",
        api=V2BETA1,
        owner="USER",
        files={},
        placement=CLAIMED,
        cluster=DRIVEN,
        mechanisms=POLICIES,
    )
    assert [one["kind"] for one in made.objects].count("ResourceClaim") == 4
    assert yaml.safe_load(json.dumps(made.objects[-1]))["metadata"]["namespace"] == "team-a"
