"""What joins the nodes of a cluster: labels, Kueue topologies, fabric files, and what RDMA adds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_objects import records_of

from arena_topo.bandwidth import Wire
from arena_topo.clusters import observed
from arena_topo.solver import Request
from arena_topo.solver.door import place
from arena_topo.topology import Cluster, Tier, fabric

LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"
DOMAIN = "accelerator.topograph.run/domain"
CLIQUE = "nvidia.com/gpu.clique"
PRODUCT = "nvidia.com/gpu.product"
REGION = "topology.kubernetes.io/region"
ZONE = "topology.kubernetes.io/zone"
BLOCK = "cloud.provider.com/topology-block"
RACK = "cloud.provider.com/topology-rack"
H100 = "NVIDIA-H100-80GB-HBM3"
HOST = "kubernetes.io/hostname"

Object = dict[str, Any]


def node(
    name: str, *, gpus: int = 8, offers: dict[str, str] | None = None, **labels: str
) -> Object:
    resources = {"cpu": "32", **({"nvidia.com/gpu": str(gpus)} if gpus else {}), **(offers or {})}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": resources, "allocatable": resources},
    }


def tree(coarse: str, near: str, **more: Any) -> list[Object]:
    """Four nodes: a and b share the near domain, c only the coarse one, d neither."""
    places = {"a": ("s1", "l1"), "b": ("s1", "l1"), "c": ("s1", "l2"), "d": ("s2", "l3")}
    return [node(name, **{coarse: up, near: low}, **more) for name, (up, low) in places.items()]


def topology(name: str, *labels: str, version: str = "v1beta1") -> Object:
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": [{"nodeLabel": label} for label in labels]},
    }


def seen(*objects: Object, file: fabric.FabricFile | None = None) -> Cluster:
    found = observed.cluster(records_of(objects), source="test", file=file)
    assert all(len(one.domains) == len(found.tiers) for one in found.nodes)
    return found


def words(cluster: Cluster) -> list[str]:
    return [tier.name for tier in cluster.tiers]


def rates(cluster: Cluster) -> list[float | None]:
    return [cluster.beyond, *(tier.bandwidth for tier in cluster.tiers)]


def paths(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    return {one.name: one.domains for one in cluster.nodes}


def test_nodes_without_network_labels_are_one_unknown_network_apart():
    found = seen(node("a"), node("b"))
    assert (found.tiers, found.beyond, found.notes) == ((), None, ())
    assert paths(found) == {"a": (), "b": ()}


def test_labels_become_the_tiers_of_the_cluster_and_the_domains_of_its_nodes():
    found = seen(*tree(SPINE, LEAF))
    assert found.tiers == (Tier(name="spine"), Tier(name="leaf"))
    assert paths(found) == {
        "a": ("s1", "l1"),
        "b": ("s1", "l1"),
        "c": ("s1", "l2"),
        "d": ("s2", "l3"),
    }
    assert found.notes == ()


def test_gke_nodes_are_near_by_block_and_sub_block():
    gke = {
        "cloud.google.com/gce-topology-block": "6b1ddbbd41cf397b9bcd1086091914e7",
        "cloud.google.com/gce-topology-subblock": "88fba4b895a44590c026f7c1bf4c1695",
        "cloud.google.com/gce-topology-host": "b881b33e5fd8128f2e8b3ad50506ee87",
    }
    other = {**gke, "cloud.google.com/gce-topology-subblock": "77fba4b895a44590c026f7c1bf4c1695"}
    found = seen(node("a", **gke), node("b", **gke), node("c", **other))
    assert words(found) == ["spine", "leaf"]


@pytest.mark.parametrize("labels", [{}, {ZONE: "z"}, {ZONE: "z", LEAF: "l"}])
def test_a_cluster_of_one_gpu_node_has_no_network(labels: dict[str, str]):
    found = seen(node("a", **labels), node("cpu-1", gpus=0, **labels))
    assert (found.tiers, found.notes) == ((), ())


def test_levels_that_join_none_or_all_break_nothing():
    nodes = [node(name, **{ZONE: "z", SPINE: "s", LEAF: name}) for name in ("a", "b", "c")]
    found = seen(*nodes)
    assert words(found) == ["zone", "spine"]
    assert len(set(paths(found).values())) == 1
    assert found.notes == ()


def test_nodes_without_gpus_have_domains_of_their_own_and_leave_no_gap():
    found = seen(
        *tree(SPINE, LEAF),
        node("cpu-1", gpus=0, **{SPINE: "s1", LEAF: "l1"}),
        node("cpu-2", gpus=0),
    )
    ways = paths(found)
    for tier in range(2):
        assert [way[tier] for way in ways.values()].count(ways["cpu-1"][tier]) == 1
        assert [way[tier] for way in ways.values()].count(ways["cpu-2"][tier]) == 1
    assert found.notes == ()


def test_a_node_without_gpus_does_not_share_the_name_of_a_domain_made_up():
    nodes = [one for one in tree(SPINE, LEAF) if one["metadata"]["name"] != "c"]
    silent = node("e", **{LEAF: "l2"}), node("f", **{LEAF: "l2"})
    ways = paths(seen(*nodes, *silent, node("l2", gpus=0)))
    assert ways["e"][0] == "(leaf l2)"
    assert ways["l2"][0] != ways["e"][0]


def test_a_partial_path_names_the_node_and_the_rest_keeps_its_place():
    nodes = tree(SPINE, LEAF)
    del nodes[2]["metadata"]["labels"][LEAF]
    found = seen(*nodes)
    assert paths(found)["a"] == paths(found)["b"] == ("s1", "l1")
    assert found.notes == (f"node c does not name the leaf ({LEAF})",)


def test_no_note_about_the_network_is_lost_and_each_names_its_nodes():
    levels = [f"fabric.topograph.run/tier-{at}" for at in range(6)]
    nodes = [
        node(f"{one}{at}", **{level: f"{one}-{level[-1]}" for level in levels[: 6 - at]})
        for one in ("a", "b")
        for at in range(6)
    ]
    notes = seen(*nodes).notes
    assert len(notes) == 5
    assert notes[-1] == ("2 nodes (a5, b5) do not name the spine (fabric.topograph.run/tier-1)")


def test_of_many_nodes_without_a_label_ten_are_named_and_the_rest_counted():
    nodes = [node("full", **{SPINE: "s", LEAF: "l"}), node("near", **{SPINE: "s", LEAF: "l"})]
    nodes += [node(f"n{at:02}", **{SPINE: "s"}) for at in range(12)]
    (note,) = seen(*nodes).notes
    assert note.startswith("12 nodes (n00, n01, n02, n03, n04, n05, n06, n07, n08, n09, ...)")


# Kueue


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1beta2"])
def test_a_kueue_topology_whose_labels_are_there_goes_before_other_labels(version: str):
    nodes = tree(BLOCK, RACK, **{LEAF: "same"})
    found = seen(*nodes, topology("default", BLOCK, RACK, HOST, version=version))
    assert words(found) == ["topology-block", "topology-rack"]
    assert found.notes == ()


def test_a_topology_whose_labels_no_gpu_node_has_is_mentioned_and_labels_count():
    found = seen(*tree(SPINE, LEAF), topology("tpu", BLOCK, RACK, HOST))
    assert words(found) == ["spine", "leaf"]
    assert found.notes == (
        "no GPU node has all labels of topology tpu: the network is taken from other labels",
    )


def test_a_topology_of_hosts_alone_says_nothing_about_the_network():
    found = seen(*tree(SPINE, LEAF), topology("hosts", HOST))
    assert words(found) == ["spine", "leaf"]
    assert found.notes == ()


def test_of_several_topologies_the_one_that_places_most_gpu_nodes_is_used_and_named():
    nodes = tree(SPINE, LEAF)
    for one in nodes[:2]:
        one["metadata"]["labels"] |= {BLOCK: "b", RACK: "r"}
    cpus = [node(f"cpu-{at}", gpus=0, **{BLOCK: "b", RACK: "r"}) for at in range(9)]
    found = seen(*nodes, *cpus, topology("a-few", BLOCK, RACK), topology("most", SPINE, LEAF))
    assert words(found) == ["spine", "leaf"]
    assert found.notes == ("topology most is used, which places 4 of 4 GPU nodes",)
    deepest = seen(*nodes, topology("a-shallow", SPINE), topology("deep", SPINE, LEAF))
    assert words(deepest) == ["spine", "leaf"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "spec: expected a mapping, got nothing"),
        ("levels", "spec: expected a mapping, got a text"),
        (
            {"levels": [{"nodeLabel": 7}]},
            "spec.levels[0].nodeLabel: expected a text, got a whole number",
        ),
        (
            {"levels": [{"nodeLabel": SPINE}, {"nodeLabel": SPINE}]},
            f"spec.levels[1].nodeLabel: '{SPINE}' repeats another",
        ),
    ],
)
def test_an_invalid_topology_is_named_and_the_rest_works(spec: Any, problem: str):
    found = seen(*tree(SPINE, LEAF), {**topology("odd"), "spec": spec})
    assert words(found) == ["spine", "leaf"]
    assert found.notes == (f"Topology odd is ignored: {problem}",)


def test_a_topology_without_a_name_is_a_note():
    found = seen(*tree(SPINE, LEAF), {**topology("x", BLOCK), "metadata": {}})
    assert words(found) == ["spine", "leaf"]
    assert found.notes == (
        ("Topology without a name is ignored: metadata: object missing required field name"),
    )


def test_a_topology_of_another_api_group_is_ignored():
    other = {**topology("x", BLOCK, RACK), "apiVersion": "topology.example.com/v1"}
    assert words(seen(*tree(BLOCK, RACK), other)) == []


def test_a_topology_is_read_from_a_list_that_names_no_group():
    bare = {key: value for key, value in topology("x", BLOCK, RACK).items() if key != "apiVersion"}
    assert words(seen(*tree(BLOCK, RACK), bare)) == ["topology-block", "topology-rack"]


# How fast


@pytest.mark.parametrize(
    "resource",
    [
        "rdma/hca",
        "rdma/hca_shared_devices_a",
        "vpc.amazonaws.com/efa",
        "nvidia.com/hostdev",
        "nvidia.com/sriov-rdma-vf",
        "networking.gke.io.networks/rdma-0",
    ],
)
def test_rdma_of_unknown_speed_is_named(resource: str):
    found = seen(*tree(SPINE, LEAF, offers={resource: "8"}))
    assert rates(found) == [None, None, None]
    assert found.notes == ()
    assert set(found.guesses) == {"beyond", "spine", "leaf"}
    assert found.guesses["leaf"] == (
        f"nodes offer RDMA ({resource}), whose speed is not known; --fabric FILE gives it"
    )


def test_an_unknown_network_counts_as_a_guess():
    found = seen(*tree(SPINE, LEAF))
    assert found.guesses["leaf"] == (
        "the speed of the network within one leaf is not known; --fabric FILE gives it"
    )
    assert seen(node("a"), node("b")).guesses == {
        "beyond": "the speed of the network between nodes is not known; --fabric FILE gives it"
    }


def test_rdma_does_not_leave_the_zone():
    nodes = tree(ZONE, LEAF, offers={"rdma/ib": "8"}, **{REGION: "r"})
    found = seen(*nodes)
    assert words(found) == ["region", "zone", "leaf"]
    named = {level for level, why in found.guesses.items() if "rdma/ib" in why}
    assert named == {"zone", "leaf"}


def test_a_single_node_with_rdma_gets_no_note():
    assert seen(node("a", offers={"rdma/ib": "8"})).notes == ()


@pytest.mark.parametrize("offers", [{}, {"rdma/ib": "0"}])
def test_a_gpu_node_without_rdma_slows_down_only_itself(offers: dict[str, str]):
    fast = [node(name, offers={"rdma/ib": "8"}) for name in "abc"]
    found = seen(*fast, node("d", offers=offers))
    assert [one.network for one in found.nodes] == [math.inf, math.inf, math.inf, 1.25]
    assert found.notes == ()
    assert found.guesses["beyond"] == (
        "nodes offer RDMA (rdma/ib; 1 node offers none), whose speed is not known;"
        " --fabric FILE gives it"
    )
    several = seen(*fast, node("d", offers=offers), node("d10"), node("d9"))
    assert "; 3 nodes offer none)" in several.guesses["beyond"]


def test_a_gang_uses_only_nodes_with_rdma():
    slow = [node(name, **{PRODUCT: H100}) for name in ("a", "b", "c")]
    fast = [node(name, offers={"rdma/ib": "8"}, **{PRODUCT: H100}) for name in ("x", "y")]
    found = seen(*slow, *fast)
    rdma = {"gpus": 8, "wire": Wire.RDMA}
    assert place(Request(workers=2, **rdma), found).nodes == ("x", "y")
    assert place(Request(workers=3, **rdma), found).bandwidth.point < 5


def test_a_dead_rdma_device_does_not_hide_one_that_works():
    both = {"rdma/a": "0", "rdma/b": "8"}
    found = seen(*(node(name, offers=both) for name in "ab"))
    assert "RDMA (rdma/b)" in found.guesses["beyond"]


def test_nodes_without_gpus_need_no_rdma():
    fast = [node(name, offers={"rdma/ib": "8"}) for name in "ab"]
    assert "offers none" not in seen(*fast, node("cpu-1", gpus=0)).guesses["beyond"]


def racks(product: str, label: str, **more: str) -> list[Object]:
    """Two racks of two trays."""
    return [
        node(f"{rack}-{tray}", gpus=4, **{PRODUCT: product, label: f"nvl-{rack}", **more})
        for rack in (1, 2)
        for tray in (1, 2)
    ]


UUID = "5b7ae2ad-9df5-4d1c-a2b3-3c1b8cc8e1f7"


@pytest.mark.parametrize(
    ("product", "rate"),
    [("NVIDIA-GB200", 18 * 40.1), ("NVIDIA-GB300", 18 * 40.1), ("NVIDIA-GH200-480GB", 18 * 20.6)],
)
@pytest.mark.parametrize("label", [CLIQUE, DOMAIN, "topology.k8s.aws/ultraserver-id"])
def test_trays_of_one_nvlink_domain_reach_each_other_over_nvlink(
    product: str, rate: float, label: str
):
    found = seen(*racks(product, label))
    assert words(found) == ["nvlink"]
    assert rates(found) == [None, pytest.approx(rate)]
    assert "nvlink" not in found.guesses


def test_trays_whose_site_has_no_p2p_do_not_reach_each_other_over_nvlink():
    file = fabric.parse_fabric({"software": [{"p2p": False}]}, where="net.yaml")
    assert rates(seen(*racks("NVIDIA-GB200", CLIQUE), file=file)) == [None, None]


def test_nvlink_goes_below_the_levels_of_a_topology_that_lists_none():
    nodes = racks("NVIDIA-GB200", CLIQUE, **{BLOCK: "b"})
    found = seen(*nodes, topology("default", BLOCK, HOST))
    assert words(found) == ["topology-block", "nvlink"]
    assert rates(found) == [None, None, pytest.approx(721.8)]
    listed = seen(*nodes, topology("default", BLOCK, CLIQUE, HOST))
    assert words(listed) == ["topology-block", "nvlink"]
    assert rates(listed) == rates(found)


def test_nodes_whose_gpus_have_no_nvlink_to_others_share_no_nvlink_domain():
    # topograph calls the capacity block of AWS an accelerator domain, whatever runs in it.
    h100 = [
        node(f"h-{at}", **{PRODUCT: "NVIDIA-H100-80GB-HBM3", DOMAIN: "cr-1", LEAF: "l"})
        for at in range(2)
    ]
    assert words(seen(*h100)) == ["leaf"]
    both = seen(*h100, *racks("NVIDIA-GB200", DOMAIN, **{LEAF: "l"}))
    assert words(both) == ["leaf", "nvlink"]
    assert rates(both)[-1] == pytest.approx(721.8)
    ways = paths(both)
    assert ways["h-0"] != ways["h-1"]
    assert ways["1-1"] == ways["1-2"] != ways["2-1"]
    assert both.notes == ()


def test_an_nvlink_domain_of_unknown_gpus_is_near_but_not_fast():
    found = seen(*racks("NVIDIA-VR999", DOMAIN))
    assert words(found) == ["nvlink"]
    assert rates(found) == [None, None]


# Fabric files


def test_nvlink_goes_below_the_levels_of_a_fabric_file_that_lists_none():
    nodes = racks("NVIDIA-GB200", CLIQUE, **{BLOCK: "b"})
    found = seen(*nodes, file=written(("row", BLOCK, 200.0), beyond=25.0))
    assert words(found) == ["row", "nvlink"]
    assert rates(found) == [25.0, 200.0, pytest.approx(721.8)]
    listed = seen(*nodes, file=written(("row", BLOCK, 200.0), ("nvlink", CLIQUE, None)))
    assert words(listed) == ["row", "nvlink"]
    assert rates(listed)[1:] == rates(found)[1:]
    named = seen(*nodes, file=written(("row", BLOCK, 200.0), ("trays", CLIQUE, 400.0)))
    assert words(named) == ["row", "trays"]


def written(*levels: tuple[str, str, float | None], beyond: float | None = None) -> Any:
    listed = [{"name": name, "label": label, "bandwidthGBps": rate} for name, label, rate in levels]
    return fabric.parse_fabric({"levels": listed, "beyondGBps": beyond}, where="net.yaml")


def test_a_fabric_file_goes_before_topologies_labels_and_guesses():
    file = written(("row", BLOCK, 25.0), ("rack", RACK, 50.0), beyond=3.1)
    found = seen(
        *tree(BLOCK, RACK, offers={"rdma/ib": "8"}, **{LEAF: "same"}),
        topology("default", LEAF),
        file=file,
    )
    assert found.tiers == (Tier(name="row", bandwidth=25.0), Tier(name="rack", bandwidth=50.0))
    assert found.beyond == 3.1
    assert (found.notes, found.guesses) == ((), {})


def test_bandwidths_that_a_fabric_file_leaves_out_are_not_known_and_said_to_be_so():
    found = seen(
        *tree(BLOCK, RACK, offers={"rdma/ib": "8"}),
        file=written(("row", BLOCK, None), ("rack", RACK, 50.0)),
    )
    assert rates(found) == [None, None, 50.0]
    assert set(found.guesses) == {"beyond", "row"}


def test_a_level_of_a_fabric_file_that_no_node_knows_is_a_note_with_the_file():
    found = seen(
        *tree(BLOCK, RACK), file=written(("row", "example.com/row", 1.0), ("rack", RACK, 5.0))
    )
    assert words(found) == ["rack"]
    assert found.notes == (
        "net.yaml: no node has the label example.com/row: the level row is not used",
    )


# Laws

VALUES = st.sampled_from(["x", "y", "z", "(n1)", "", 7, None])
LABELS = st.dictionaries(st.sampled_from([REGION, ZONE, SPINE, LEAF, CLIQUE, BLOCK, RACK]), VALUES)
NODES = st.lists(
    st.tuples(LABELS, st.sampled_from([0, 8]), st.sampled_from(["rdma/ib", "cpu"])), max_size=8
)
TOPOLOGIES = st.lists(
    st.lists(st.sampled_from([BLOCK, RACK, LEAF, HOST, "no label", 7]), max_size=3), max_size=3
)


@given(NODES, TOPOLOGIES)
def test_whatever_is_read_every_node_has_a_path_through_tiers_that_never_slow_down(
    nodes: list[Any], topologies: list[Any]
):
    found = seen(
        *(
            node(f"n{at}", gpus=gpus, offers={resource: "8"}, **labels)
            for at, (labels, gpus, resource) in enumerate(nodes)
        ),
        *(topology(f"t{at}", *labels) for at, labels in enumerate(topologies)),
    )
    assert len(set(words(found))) == len(found.tiers)
    known = [rate for rate in rates(found) if rate is not None]
    assert all(outer <= inner for outer, inner in pairwise(known))
    for at in range(len(found.tiers)):
        above = {one.domains[at]: one.domains[: at + 1] for one in found.nodes}
        assert all(above[one.domains[at]] == one.domains[: at + 1] for one in found.nodes)
