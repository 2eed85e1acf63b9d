"""The ConfigMap by which those who may not list nodes and pods know a cluster."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cube_mesh import HGX, P100, PCIE, V100
from fake_api import FakeApi, kubeconfig
from hypothesis import given
from hypothesis import strategies as st
from kube_objects import (
    claim,
    config_map,
    device,
    group,
    node,
    pod,
    records_of,
    resource_slice,
)

from arena_topo.clusters import observed, view
from arena_topo.engines import Options, occupancy
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.errors import AccessDenied, ArenaError, UnreadableTopology
from arena_topo.solver import Request, Unplaceable
from arena_topo.solver.door import place
from arena_topo.topology import (
    GPU,
    NIC,
    Cluster,
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    Node,
    NodeName,
    Taint,
    Tier,
    fabric,
    gpu_set,
)

NOW = 1_800_000_000.0

MEASURED = replace(
    V100,
    gpus=tuple(replace(gpu, numa=gpu.index // 4) for gpu in V100.gpus),
    nics=(NIC(name="mlx5_0", attachment=(Link(kind=LinkKind.PIX),) * 8, speed=12.5),),
    measured=((gpu_set([0, 1]), 18.5),),
    bandwidth=tuple(tuple(float(i + j) for j in range(8)) for i in range(8)),
    pcie_generation=3,
)
ODD = Machine(
    name="odd",
    gpus=(GPU(index=0, model="Model of one"), GPU(index=1, model=None, uuid="GPU-1")),
    links=((None, Link(kind=LinkKind.NODE)), (Link(kind=LinkKind.NODE), None)),
    knowledge=Knowledge.UNKNOWN,
)
NONE = Machine(name="none", gpus=(), links=())
MACHINES = (V100, P100, HGX, PCIE, MEASURED, ODD, NONE)


def taken(cluster: Cluster, *, now: float = NOW) -> Cluster:
    """The cluster as it is after a trip through the ConfigMap."""
    written = json.loads(json.dumps(view.encode(cluster, observed_at=NOW)))
    return view.decode(written, now=now)


def nameless(cluster: Cluster) -> Cluster:
    """The cluster without what no view tells."""

    def bare(one: Node) -> Node:
        gpus = tuple(replace(gpu, uuid=None) for gpu in one.machine.gpus)
        return replace(one, machine=replace(one.machine, name=one.name, gpus=gpus))

    return replace(cluster, nodes=tuple(map(bare, cluster.nodes)), notes=(), source="")


@st.composite
def nodes(draw: st.DrawFn, index: int, levels: int) -> Node:
    machine = draw(st.sampled_from(MACHINES))
    free = draw(st.integers(0, machine.everything))
    words = st.sampled_from(["", "a", "b", "c d", "é"])
    return Node(
        name=NodeName(f"node-{index}"),
        machine=replace(machine, name=f"node-{index}"),
        free=GPUSet(free),
        unattributed=draw(st.integers(0, max(0, free.bit_count()))),
        allocatable=draw(st.none() | st.integers(0, machine.everything).map(GPUSet)),
        cpu=draw(st.none() | st.floats(0, 256)),
        memory=draw(st.none() | st.integers(0, 1 << 41)),
        all_cpu=draw(st.none() | st.floats(0, 256)),
        all_memory=draw(st.none() | st.integers(0, 1 << 41)),
        labels={
            **draw(st.dictionaries(words, words, max_size=3)),
            **({"kubernetes.io/hostname": f"node-{index}"} if draw(st.booleans()) else {}),
        },
        taints=tuple(
            Taint(key=key, value=value)
            for key, value in draw(st.lists(st.tuples(words, words), max_size=2))
        ),
        unavailable=draw(st.sampled_from([None, "cordoned", "NotReady"])),
        shared=draw(st.sampled_from([None, "MIG slices"])),
        resource=draw(st.sampled_from(["nvidia.com/gpu", "aliyun.com/gpu"])),
        driver=draw(st.sampled_from(["", "gpu.nvidia.com"])),
        dedicated=draw(st.booleans()),
        foreign=draw(st.booleans()),
        domains=tuple(draw(st.sampled_from("xyz")) for _ in range(levels)),
        network=draw(st.sampled_from([float("inf"), 1.25])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    levels = draw(st.integers(0, 2))
    size = draw(st.integers(0, 7))
    return Cluster(
        nodes=tuple(draw(nodes(index, levels)) for index in range(size)),
        tiers=tuple(Tier(name=f"t{at}", bandwidth=5.0 * (at + 1)) for at in range(levels)),
        beyond=draw(st.sampled_from([1.25, 3.0])),
        notes=("pod alice/secret makes no sense",),
        source="admin@prod",
        guesses=draw(st.sampled_from([{}, {"t0": "nothing says how fast it is"}])),
        emulated=draw(st.booleans()),
    )


@given(cluster=clusters())
def test_a_view_is_the_cluster_but_for_names_of_others(cluster: Cluster):
    found = taken(cluster)
    assert replace(found, notes=(), view=None) == nameless(cluster)
    assert found.view == NOW


@given(
    cluster=clusters(),
    request=st.builds(
        Request,
        workers=st.integers(1, 4),
        gpus=st.integers(1, 4),
        mix_models=st.booleans(),
        max_nodes=st.sampled_from([None, 2]),
    ),
)
def test_the_solver_places_on_a_view_as_on_the_cluster(cluster: Cluster, request: Request):
    def answer(on: Cluster) -> object:
        try:
            return place(request, on).assignments
        except Unplaceable as refusal:
            return refusal.message

    assert answer(taken(cluster)) == answer(cluster)


def test_no_name_of_a_person_or_a_job_is_in_a_view():
    objects = [
        node(),
        config_map(),
        pod("alices-secret", annotations=group("x")),
        pod("bobs", gpus=2, metadata={"namespace": "team-carol"}),
        claim("daves", "gpu-0"),
        resource_slice(devices=[device("node-a", i) for i in range(8)]),
    ]
    seen = observed.cluster(records_of(objects), source="erin@prod")
    assert any("alices-secret" in note for note in seen.notes)
    text = json.dumps(view.encode(seen, observed_at=NOW))
    for name in ("alices", "bobs", "carol", "daves", "erin", "GPU-node-a"):
        assert name not in text


def test_a_view_shows_its_age_and_an_old_view_gives_advice():
    cluster = Cluster(nodes=())
    assert taken(cluster, now=NOW + 12).notes == (
        "the cluster is shown as it was 12 s ago (configmap arena-topo-system/cluster-view)",
    )
    assert taken(cluster, now=NOW + 3600).notes == (
        (
            "the cluster is shown as it was 60 min ago (configmap arena-topo-system/cluster-view);"
            " check that the controller runs"
        ),
    )
    # A clock that is behind is no news.
    assert "0 s ago" in taken(cluster, now=NOW - 5).notes[0]


def many(size: int, *, unique: int = 3) -> Cluster:
    """A cluster like large ones: one kind of machine, labels of every sort, pods everywhere."""
    chance = random.Random(1)

    def one(index: int) -> Node:
        name = f"ip-10-{index // 256}-{chance.randrange(256)}-{index % 256}.compute.internal"
        return Node(
            name=NodeName(name),
            machine=replace(HGX, name=name),
            free=GPUSet(chance.getrandbits(8)),
            cpu=chance.randrange(96000) / 1000,
            memory=chance.randrange(1 << 40),
            all_cpu=96.0,
            all_memory=1 << 40,
            labels={
                "kubernetes.io/hostname": name,
                "zone": f"zone-{index % 3}",
                **{f"feature-{at}": str(index // 100 % 7) for at in range(20)},
                **{f"id-{at}": f"{chance.getrandbits(128):032x}" for at in range(unique)},
            },
            domains=(f"spine-{index // 256}", f"leaf-{index // 16}"),
        )

    tiers = (Tier(name="spine", bandwidth=10.0), Tier(name="leaf", bandwidth=20.0))
    return Cluster(nodes=tuple(map(one, range(size))), tiers=tiers)


def test_ten_thousand_nodes_fit_in_a_config_map_without_unique_labels():
    cluster = many(10_000, unique=9)
    written = view.encode(cluster, observed_at=NOW)
    assert set(written) == {"data", "binaryData"}
    packed = base64.b64decode(written["binaryData"]["cluster.gz"])
    assert len(packed) + 100 < 1 << 20
    found = view.decode(written, now=NOW)
    assert found.notes[1] == (
        "configmap arena-topo-system/cluster-view leaves out 9 labels of nodes: id-0, id-1,"
        " id-2, ..."
    )
    kept = [
        replace(one, labels={key: value for key, value in one.labels.items() if key[:3] != "id-"})
        for one in cluster.nodes
    ]
    assert found.nodes == tuple(kept)


def test_what_does_not_fit_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(view, "MAX_VIEW_BYTES", 100)
    with pytest.raises(ArenaError, match="a view of 200 nodes does not fit in a ConfigMap"):
        view.encode(many(200), observed_at=NOW)


def document(written: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        gzip.decompress(base64.b64decode(written["binaryData"]["cluster.gz"]))
    )
    return found


def test_nodes_that_differ_in_uuids_are_written_as_one_kind():
    def named(one: Node) -> Node:
        gpus = tuple(replace(gpu, uuid=f"{one.name}-{gpu.index}") for gpu in one.machine.gpus)
        links = tuple(tuple(row) for row in one.machine.links)
        return replace(one, machine=replace(one.machine, gpus=gpus, links=links))

    cluster = Cluster(nodes=tuple(map(named, many(3).nodes)))
    assert len(document(view.encode(cluster, observed_at=NOW))["machines"]) == 1


def test_nodes_of_one_kind_share_their_matrix_when_read():
    found = taken(many(3))
    assert found.nodes[0].machine.links is found.nodes[2].machine.links


def test_reserved_gpus_are_neither_free_nor_in_use_in_a_view():
    """Who reads the view instead of the cluster gets no GPU of the first gang in the queue."""
    whole = Node(name=NodeName("a"), machine=V100, free=V100.everything, cpu=96.0, memory=1 << 40)
    kept = whole.reserve("team/secret", gpu_set((0, 1)), unnamed=1, cpu=4.0, memory=1 << 30)
    told = document(view.encode(Cluster(nodes=(kept,)), observed_at=NOW))
    assert "secret" not in json.dumps(told)
    found = view.decode(written(**told), now=NOW)
    [here] = found.nodes
    assert (here.reserved_for, here.reserved_count) == (("another gang",), 3)
    assert replace(here, reserved=None) == replace(kept, reserved=None, machine=here.machine)
    assert here.unreserved == replace(whole, machine=here.machine)
    [status] = occupancy.viewed(found).nodes
    assert (status.reserved, status.allocated, status.state(0)) == (3, 0, "reserved")
    told["reserved"]["a"][0]["gpus"] = 1 << 8
    with pytest.raises(UnreadableTopology, match="node a has no GPUs 0x100 to reserve"):
        view.decode(written(**told), now=NOW)


def test_unattributed_gpus_are_in_a_view():
    world = many(1)
    doubtful = replace(world, nodes=(replace(world.nodes[0], unattributed=2),))
    found = view.encode(doubtful, observed_at=NOW)
    assert view.decode(found, now=NOW).nodes[0].unattributed == 2


def written(**more: Any) -> dict[str, Any]:
    """A view of two nodes with something else at the top of its document."""
    found = view.encode(many(2), observed_at=NOW)
    text = json.dumps(document(found) | more).encode()
    return {
        **found,
        "binaryData": {"cluster.gz": base64.b64encode(gzip.compress(text)).decode()},
    }


PLACE = "binaryData.cluster.gz: "


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({}, "data: is missing"),
        (
            {"data": {"format": "v1", "observedAt": "now"}},
            "data.observedAt: does not say when it was",
        ),
        (
            {"data": {"format": "v1", "observedAt": "2027-01-15T08:00:00Z"}},
            f"{PLACE}is missing",
        ),
        (
            {
                "data": {"format": "v1", "observedAt": "2027-01-15T08:00:00Z"},
                "binaryData": {"cluster.gz": base64.b64encode(gzip.compress(b"{}")[:-9]).decode()},
            },
            f"{PLACE}it is cut off, or too large",
        ),
        (written(nodes=["a"]), f"{PLACE}nodes[0]: expected a mapping, got a text"),
        (written(machines=7), f"{PLACE}machines: expected a list, got a whole number"),
        (written(machines=[]), f"{PLACE}node ip-"),
        (
            written(tiers=[{"name": "rack", "bandwidth": 30.0}]),
            f"{PLACE}there are not as many domains as tiers",
        ),
    ],
)
def test_an_invalid_view_is_named_with_its_path(broken: dict[str, Any], said: str):
    with pytest.raises(UnreadableTopology) as caught:
        view.decode(broken, now=NOW)
    assert caught.value.message.startswith(f"configmap arena-topo-system/cluster-view {said}")


def of_later_version(**more: Any) -> dict[str, Any]:
    found = written(mood="good", **more)
    return found | {"data": {**found["data"], "format": "v2", "mood": "good"}}


def test_a_view_of_a_later_version_is_read_and_said_to_be_one():
    found = view.decode(of_later_version(), now=NOW)
    assert found.nodes == taken(many(2)).nodes
    where = "configmap arena-topo-system/cluster-view"
    assert found.notes[1:] == (f"{where}: it has the format 'v2', and this version knows v1",)


def test_why_a_view_of_a_later_version_cannot_be_read_names_its_format():
    with pytest.raises(UnreadableTopology, match="; it has the format 'v2', and this version kno"):
        view.decode(of_later_version(nodes={"a": 1}), now=NOW)


def test_a_machine_without_links_is_unreadable():
    whole = document(written())
    whole["machines"][0]["links"] = []
    with pytest.raises(UnreadableTopology, match="more or fewer links than GPUs"):
        view.decode(written(**whole), now=NOW)


@given(data=st.data())
def test_an_invalid_view_is_always_an_unreadable_topology(data: st.DataObject):
    whole = document(written())
    odd = st.sampled_from([None, 1, -1, 1 << 70, "x", [], {}, [[]], ["a", "b"], True, 1e300])
    # Any value at any place, up to four levels down.
    at: Any = whole
    for _ in range(data.draw(st.integers(0, 3))):
        keys = sorted(at) if isinstance(at, dict) else range(len(at))
        deeper = [one for one in keys if isinstance(at[one], dict | list) and at[one]]
        if not deeper:
            break
        at = at[data.draw(st.sampled_from(deeper))]
    keys = sorted(at) if isinstance(at, dict) else range(len(at))
    at[data.draw(st.sampled_from(list(keys)))] = data.draw(odd)
    try:
        found = view.decode(written(**whole), now=NOW)
    except UnreadableTopology:
        return
    with contextlib.suppress(Unplaceable):
        place(Request(workers=2, gpus=1), found)


# From a server.


def opened(api: FakeApi, tmp_path: Path, **more: Any) -> KubernetesBackend:
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    return kubernetes.open_kubernetes(Options(kubeconfig=config, **more))


def store(api: FakeApi, cluster: Cluster) -> None:
    api.add({"kind": "Namespace", "metadata": {"name": view.VIEW_NAMESPACE}})
    meta = {"name": view.VIEW_NAME, "namespace": view.VIEW_NAMESPACE}
    made = view.encode(cluster, observed_at=api.clock() - 5)
    api.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **made})


@pytest.mark.parametrize("kind", ["nodes", "pods"])
def test_who_may_not_list_the_cluster_sees_what_the_controller_saw(
    api: FakeApi, tmp_path: Path, kind: str
):
    cluster = many(3)
    store(api, cluster)
    api.deny(f"list {kind}")
    found = opened(api, tmp_path).cluster()
    assert found.nodes == cluster.nodes
    assert found.source == "test"
    assert found.view is not None
    assert found.notes[0].startswith("the cluster is shown as it was")


def test_users_who_may_list_nodes_do_not_read_the_view(api: FakeApi, tmp_path: Path):
    store(api, many(3))
    found = opened(api, tmp_path).cluster()
    assert (found.nodes, found.view) == ((), None)
    assert not [one for one in api.requests if "cluster-view" in one]


@pytest.mark.parametrize("denied", [["nodes"], ["pods"], ["nodes", "pods"]])
def test_without_a_view_that_may_be_read_the_missing_rule_is_named(
    api: FakeApi, tmp_path: Path, denied: list[str]
):
    for one in denied:
        api.deny(f"list {one}")
    with pytest.raises(AccessDenied, match=f"not allowed to list {denied[0]}"):
        opened(api, tmp_path).cluster()
    store(api, many(3))
    api.deny("get configmaps arena-topo-system")
    for look in (opened(api, tmp_path).cluster, opened(api, tmp_path).nodes):
        with pytest.raises(AccessDenied, match=f"not allowed to list {denied[0]}") as caught:
            look()
        assert caught.value.hint == (
            'ask for this rule in a ClusterRole: {apiGroups: [""], resources: ["nodes", "pods"],'
            ' verbs: ["list"]}; or for the controller of arena-topo: its ConfigMap'
            " arena-topo-system/cluster-view lists free GPUs for users without this right"
        )


def test_a_note_says_that_a_fabric_file_is_unused_with_a_view(api: FakeApi, tmp_path: Path):
    store(api, many(4))
    api.deny("list pods")
    levels = [{"name": "room", "label": "zone", "bandwidthGBps": 50}]
    file = fabric.parse_fabric({"levels": levels, "beyondGBps": 3}, where="net.yaml")
    found = opened(api, tmp_path, fabric=file).cluster()
    assert [one.name for one in found.tiers] == ["spine", "leaf"]
    assert found.notes[-1] == "net.yaml is not used: the controller says what joins nodes"


# DRA, from a server.


def test_gpus_that_a_driver_publishes_are_read_with_their_claims(api: FakeApi, tmp_path: Path):
    api.add(node("node-a", gpus=0))
    api.add(resource_slice())
    api.add(claim("c", "gpu-0", "gpu-3"))
    backend = opened(api, tmp_path)
    (found,) = backend.cluster().nodes
    assert (found.driver, found.free) == ("gpu.nvidia.com", 0b11110110)
    before = len(api.requests)
    backend.cluster()
    assert not [one for one in api.requests[before:] if one == "GET /apis/resource.k8s.io"]


def test_claims_are_not_read_without_gpus_in_slices(api: FakeApi, tmp_path: Path):
    api.add(node("node-a"))
    nic = {"name": "eth1", "attributes": {"dra.net/ifName": {"string": "eth1"}}}
    api.add(resource_slice(devices=[nic], driver="dra.net"))
    assert opened(api, tmp_path).cluster().notes == ()
    assert not [one for one in api.requests if "resourceclaims" in one]


def test_slices_and_claims_that_may_not_be_listed_are_notes(api: FakeApi, tmp_path: Path):
    api.add(node("node-a", gpus=0))
    api.add(resource_slice())
    claiming = pod("w", gpus=0, spec={"resourceClaims": [{"name": "g", "resourceClaimName": "c"}]})
    api.add(claiming)
    api.deny("list resourceclaims")
    found = opened(api, tmp_path).cluster()
    assert found.nodes[0].free == 0
    assert found.notes == (
        (
            "not allowed to list resourceclaims: GPUs of nodes with pods that claim devices count"
            " as in use"
        ),
        (
            "pod default/w has devices by ResourceClaim c, which could not be read; every GPU of"
            " node node-a counts as in use"
        ),
    )
    api.deny("list resourceslices")
    found = opened(api, tmp_path).cluster()
    assert found.nodes[0].machine.gpus == ()
    assert found.notes == (
        "not allowed to list resourceslices: GPUs that only a DRA driver publishes are not seen",
    )
