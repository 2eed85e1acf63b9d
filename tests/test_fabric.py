"""Which nodes are near which, as labels, Kueue and fabric files tell it."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube_objects import record_of

from arena_topo.clusters import records
from arena_topo.errors import UsageError
from arena_topo.names import is_word
from arena_topo.topology import Tier, fabric

FABRICS = Path(__file__).parent / "fabrics"

REGION = "topology.kubernetes.io/region"
ZONE = "topology.kubernetes.io/zone"
LEAF = "fabric.topograph.run/tier-0"
SPINE = "fabric.topograph.run/tier-1"
CORE = "fabric.topograph.run/tier-2"
ACCELERATOR = "accelerator.topograph.run/domain"
CLIQUE = "nvidia.com/gpu.clique"
OLD = "network.topology.nvidia.com/"
GKE = "cloud.google.com/gce-topology-"
EKS = "topology.k8s.aws/network-node-layer-"
OCI = "oci.oraclecloud.com/"


def words(result):
    return [tier.name for tier in result.tiers]


def rates(result):
    """GB/s of beyond and of every tier, from coarse to near."""
    return [result.beyond, *(tier.bandwidth for tier in result.tiers)]


def joining(result, nodes):
    """The nearest tier that all these nodes share."""
    found = Tier(name="beyond", bandwidth=result.beyond)
    for tier, *entries in zip(result.tiers, *(result.domains[node] for node in nodes), strict=True):
        if len(set(entries)) > 1:
            break
        found = tier
    return found


def joined(result, *nodes):
    return joining(result, nodes).name


def nvl72():
    """The NVL72 model of topograph: a core, two spines, two leaves each, a domain on each."""
    nodes = {}
    for spine in (1, 2):
        for leaf in (1, 2):
            for tray in range(1, 19):
                nodes[f"node{spine}{leaf}{tray:02}"] = {
                    REGION: "us-east",
                    ZONE: "zone1",
                    CORE: "core",
                    SPINE: f"spine-{spine}",
                    LEAF: f"leaf-{spine}-{leaf}",
                    ACCELERATOR: f"nvl-{spine}-{leaf}",
                    "accelerator.topograph.run/sub-domain": f"nvl-{spine}-{leaf}.{tray % 2}",
                }
    return nodes


def test_topographs_tiers_run_from_the_farthest_to_tier_zero():
    result = fabric.fabric_from_labels(nvl72())
    assert words(result) == ["region", "zone", "core", "spine", "leaf", "nvlink"]
    assert result.domains["node1102"] == (
        "us-east",
        "zone1",
        "core",
        "spine-1",
        "leaf-1-1",
        "nvl-1-1",
    )
    assert result.notes == ()


def test_trays_of_one_rack_meet_over_nvlink_and_racks_over_switches():
    result = fabric.fabric_from_labels(
        nvl72(), rdma=dict.fromkeys(nvl72(), 200.0), nvlink=dict.fromkeys(nvl72(), 721.8)
    )
    assert joining(result, ["node1101", "node1118"]) == Tier(name="nvlink", bandwidth=721.8)
    assert joining(result, ["node1101", "node1201"]) == Tier(name="spine")
    assert joining(result, ["node1101", "node2201"]) == Tier(name="core")
    assert joined(result, "node1101", "node1102", "node2101") == "core"


def test_a_switch_deeper_than_the_third_is_called_by_its_tier():
    tiers = {f"fabric.topograph.run/tier-{at}": "top" for at in range(5)}
    nodes = {"a": tiers, "b": tiers | {LEAF: "other"}, "c": tiers}
    assert words(fabric.fabric_from_labels(nodes)) == ["tier-4", "tier-3", "core", "spine", "leaf"]


def pairs(coarse, near):
    """Four nodes: a and b share the near domain, c only the coarse one, d neither."""
    return {
        "a": {coarse: "s1", near: "l1"},
        "b": {coarse: "s1", near: "l1"},
        "c": {coarse: "s1", near: "l2"},
        "d": {coarse: "s2", near: "l3"},
    }


@pytest.mark.parametrize(
    ("coarse", "near", "expected"),
    [
        (SPINE, LEAF, ["spine", "leaf"]),
        (CORE, LEAF, ["core", "leaf"]),
        (f"{OLD}tier-1", f"{OLD}tier-0", ["spine", "leaf"]),
        (f"{OLD}spine", f"{OLD}leaf", ["spine", "leaf"]),
        (f"{OLD}core", f"{OLD}spine", ["core", "spine"]),
        (f"{OLD}spine", f"{OLD}block", ["spine", "leaf"]),
        (f"{OLD}datacenter", f"{OLD}block", ["core", "leaf"]),
        (f"{OLD}leaf", f"{OLD}accelerator", ["leaf", "nvlink"]),
        (LEAF, ACCELERATOR, ["leaf", "nvlink"]),
        (LEAF, CLIQUE, ["leaf", "nvlink"]),
        (f"{GKE}block", f"{GKE}subblock", ["spine", "leaf"]),
        ("topology.gke.io/cluster", "topology.gke.io/rack", ["spine", "leaf"]),
        ("alibabacloud.com/point-of-delivery", "alibabacloud.com/asw-id", ["spine", "leaf"]),
        (f"{EKS}2", f"{EKS}3", ["spine", "leaf"]),
        (f"{EKS}3", f"{EKS}4", ["spine", "leaf"]),
        (f"{EKS}3", "topology.k8s.aws/ultraserver-id", ["leaf", "nvlink"]),
        (f"{OCI}rdma.hpc_island_id", f"{OCI}rdma.network_block_id", ["core", "spine"]),
        (f"{OCI}rdma.network_block_id", f"{OCI}rdma.local_block_id", ["spine", "leaf"]),
        (f"{OCI}host.network_block_id", f"{OCI}host.rack_id", ["spine", "leaf"]),
        (f"{OCI}rdma.local_block_id", f"{OCI}host.gpu_memory_fabric_id", ["leaf", "nvlink"]),
        (REGION, ZONE, ["region", "zone"]),
        (
            "failure-domain.beta.kubernetes.io/region",
            "failure-domain.beta.kubernetes.io/zone",
            ["region", "zone"],
        ),
        (ZONE, LEAF, ["zone", "leaf"]),
    ],
)
def test_each_family_of_labels_is_a_tree_of_the_same_words(coarse, near, expected):
    result = fabric.fabric_from_labels(pairs(coarse, near))
    assert words(result) == expected
    assert joined(result, "a", "b") == expected[1]
    assert joined(result, "b", "c") == expected[0]
    assert joined(result, "a", "d") == "beyond"
    assert result.notes == ()


def test_gkes_own_labels_are_read_and_the_host_is_no_level():
    node = {
        REGION: "us-central1",
        ZONE: "us-central1-b",
        f"{GKE}block": "6b1ddbbd41cf397b9bcd1086091914e7",
        f"{GKE}subblock": "88fba4b895a44590c026f7c1bf4c1695",
    }
    nodes = {
        "gke-a": node | {f"{GKE}host": "b881b33e5fd8128f2e8b3ad50506ee87"},
        "gke-b": node | {f"{GKE}host": "b881b33e5fd8128f2e8b3ad50506ee87"},
        "gke-c": node | {f"{GKE}subblock": "5a1c0ffee4a44590c026f7c1bf4c1695"},
    }
    result = fabric.fabric_from_labels(nodes)
    assert words(result) == ["region", "zone", "spine", "leaf"]
    assert joined(result, "gke-a", "gke-b") == "leaf"
    assert joined(result, "gke-a", "gke-c") == "spine"


def test_a_gke_sub_block_repeated_as_accelerator_domain_is_not_nvlink():
    node = {f"{GKE}block": "b1", f"{GKE}subblock": "sb1", ACCELERATOR: "sb1"}
    nodes = {"a": node, "b": node, "c": {**node, f"{GKE}subblock": "sb2", ACCELERATOR: "sb2"}}
    assert words(fabric.fabric_from_labels(nodes, nvlink=dict.fromkeys(nodes, 370.8))) == [
        "spine",
        "leaf",
    ]
    cliques = {name: {**labels, CLIQUE: "uuid.1"} for name, labels in nodes.items()}
    assert "nvlink" in words(
        fabric.fabric_from_labels(cliques, nvlink=dict.fromkeys(cliques, 721.8))
    )


def test_the_fourth_layer_of_eks_counts_only_where_all_nodes_have_it():
    three = {f"{EKS}{layer}": f"nn-{layer}" for layer in (1, 2, 3)}
    four = three | {f"{EKS}4": "nn-4"}
    alone = {"z": {f"{EKS}1": "nn-other", f"{EKS}2": "nn-o2", f"{EKS}3": "nn-o3"}}
    assert words(fabric.fabric_from_labels({"a": three, "b": three, **alone})) == [
        "core",
        "spine",
        "leaf",
    ]
    everywhere = {"a": four, "b": four, "c": four | {f"{EKS}4": "nn-9"}}
    assert words(fabric.fabric_from_labels(everywhere)) == ["tier-3", "core", "spine", "leaf"]
    mixed = fabric.fabric_from_labels({"a": three, "b": four, **alone})
    assert words(mixed) == ["core", "spine", "leaf"]
    assert joined(mixed, "a", "b") == "leaf"
    assert mixed.notes == ()


def test_the_family_that_places_most_nodes_wins_and_the_better_one_of_equals():
    both = {LEAF: "t1", f"{GKE}subblock": "g1"}
    nodes = {"a": both, "b": both, "c": {LEAF: "t2", f"{GKE}subblock": "g1"}}
    assert fabric.fabric_from_labels(nodes).domains["a"] == ("t1",)
    stale = {"a": both, "b": {f"{GKE}subblock": "g1"}, "c": {f"{GKE}subblock": "g2"}}
    assert fabric.fabric_from_labels(stale).domains == {"a": ("g1",), "b": ("g1",), "c": ("g2",)}


def test_cliques_of_one_nvlink_cluster_do_not_reach_each_other():
    near, far = "00000000-0000-0000-0000-0000000000ab", "00000000-0000-0000-0000-0000000000cd"
    cliques = [f"{near}.0", f"{near}.0", f"{near}.1", f"{near}.1", f"{far}.0", f"{far}.1"]
    nodes = {f"worker-{at}": {CLIQUE: clique} for at, clique in enumerate(cliques)}
    result = fabric.fabric_from_labels(nodes, nvlink=dict.fromkeys(nodes, 721.8))
    assert joined(result, "worker-0", "worker-1") == "nvlink"
    assert joined(result, "worker-1", "worker-2") == "beyond"
    assert joined(result, "worker-3", "worker-4") == "beyond"


def test_machines_that_belong_to_no_nvlink_cluster_do_not_share_one():
    nobody = "00000000-0000-0000-0000-000000000000.0"
    nodes = {name: {CLIQUE: nobody, LEAF: "l1" if name < "c" else "l2"} for name in "abc"}
    result = fabric.fabric_from_labels(nodes, nvlink=dict.fromkeys(nodes, 370.8))
    assert words(result) == ["leaf"]
    assert joined(result, "a", "c") == "beyond"


def test_a_node_without_a_clique_shares_no_nvlink_and_that_is_no_gap():
    nodes = {"gb-1": {CLIQUE: "uuid.1"}, "gb-2": {CLIQUE: "uuid.1"}, "h-1": {}}
    result = fabric.fabric_from_labels(nodes)
    assert result.notes == ()
    assert joined(result, "gb-1", "gb-2") == "nvlink"
    assert joined(result, "gb-1", "h-1") == "beyond"


def test_a_node_without_a_domain_label_is_alone_and_gets_a_note():
    nodes = pairs(SPINE, LEAF) | {"e": {SPINE: "s1"}, "f": {SPINE: "s1"}}
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "e", "f") == joined(result, "a", "e") == "spine"
    assert len({result.domains[name][1] for name in "abcdef"}) == 5
    assert result.notes == (f"2 nodes (e, f) do not name the leaf ({LEAF})",)


def test_a_node_without_labels_is_near_no_other_node():
    result = fabric.fabric_from_labels(pairs(SPINE, LEAF) | {"lost": {}, "gone": {}})
    for name in ("a", "d", "gone"):
        assert joined(result, "lost", name) == "beyond"
    assert len(result.notes) == 2


def test_nodes_of_one_leaf_share_a_spine_even_if_not_all_name_it():
    nodes = pairs(SPINE, LEAF)
    del nodes["b"][SPINE]
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "a", "b") == "leaf"
    assert result.domains["b"] == ("s1", "l1")
    assert result.notes == ("node b does not name the spine (fabric.topograph.run/tier-1)",)


def test_a_leaf_whose_nodes_all_keep_silent_about_the_spine_stays_whole():
    nodes = pairs(SPINE, LEAF)
    del nodes["a"][SPINE], nodes["b"][SPINE]
    result = fabric.fabric_from_labels(nodes | {"e": {SPINE: "s1", LEAF: "l2"}})
    assert joined(result, "a", "b") == "leaf"
    assert joined(result, "a", "c") == "beyond"
    assert joined(result, "c", "e") == "leaf"


def test_a_node_and_a_leaf_of_one_name_do_not_share_what_neither_names():
    nodes = {"a": {LEAF: "c"}, "b": {LEAF: "c"}, "c": {}, "d": {SPINE: "s1"}, "e": {SPINE: "s1"}}
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "a", "b") == "leaf"
    assert joined(result, "a", "c") == "beyond"


def test_a_leaf_under_two_spines_is_two_leaves():
    nodes = pairs(SPINE, LEAF) | {"e": {SPINE: "s2", LEAF: "l1"}, "f": {SPINE: "s2", LEAF: "l1"}}
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "a", "b") == joined(result, "e", "f") == "leaf"
    assert joined(result, "a", "e") == "beyond"
    assert result.domains["a"] == ("s1", "s1/l1")
    assert result.domains["e"] == ("s2", "s2/l1")


def test_a_spine_in_two_zones_is_two_spines():
    nodes = {
        f"{zone}{at}": {ZONE: zone, SPINE: "s1", LEAF: f"l{at // 2}"}
        for zone in ("x", "y")
        for at in range(4)
    }
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "x0", "x1") == "leaf"
    assert joined(result, "x0", "y0") == "beyond"


def test_switches_above_each_other_in_a_circle_do_no_harm():
    nodes = {
        "a": {SPINE: "x", LEAF: "y"},
        "b": {SPINE: "x", LEAF: "y"},
        "c": {SPINE: "y", LEAF: "x"},
    }
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "a", "b") == "leaf"
    assert joined(result, "a", "c") == "beyond"


def test_a_level_on_which_every_node_is_alone_is_dropped():
    nodes = {name: {ZONE: "z", LEAF: name} for name in "abc"}
    result = fabric.fabric_from_labels(nodes)
    assert words(result) == ["zone"]
    assert result.notes == ()
    assert fabric.fabric_from_labels({"only": {ZONE: "z"}}).tiers == ()


def test_values_that_no_api_server_lets_through_do_no_harm():
    nodes = {
        "a": {SPINE: "s1", LEAF: "s1/l1"},
        "b": {SPINE: "s1", LEAF: "l1"},
        "c": {SPINE: "s2", LEAF: "l1"},
        "d": {SPINE: "s2", LEAF: ""},
        "e": {SPINE: " ", LEAF: 7},
        "f": {SPINE: ["s1"], LEAF: None},
        "g": {SPINE: "(f)", LEAF: "(d)"},
        "h": {SPINE: "s1", LEAF: "\u202ex\n" * 1000},
        "i": {SPINE: "s1", LEAF: "l1"},
    }
    result = fabric.fabric_from_labels(nodes)
    assert joined(result, "b", "i") == "leaf"
    for one, other in [("a", "b"), ("d", "g"), ("f", "g"), ("e", "f"), ("b", "c")]:
        assert joined(result, one, other) in {"spine", "beyond"}
    assert len({path[1] for path in result.domains.values()}) == len(nodes) - 1
    assert all(note.isprintable() for note in result.notes)
    assert all(one.isprintable() for path in result.domains.values() for one in path)


# Bandwidths


def test_without_any_information_all_nodes_share_one_unknown_network():
    result = fabric.fabric_from_labels({"a": {}, "b": {}})
    assert result == fabric.Fabric(tiers=(), beyond=None, domains={"a": (), "b": ()}, notes=())
    assert fabric.fabric_from_labels({}).domains == {}


def test_nodes_with_slower_nics_than_others_are_limited_by_themselves():
    nodes = pairs(SPINE, LEAF)
    nics = {"a": 400.0, "b": 400.0, "c": 100.0, "d": 400.0}
    result = fabric.fabric_from_labels(nodes, rdma=nics)
    assert rates(result) == [None, None, None]
    assert (result.limits, result.notes) == ({"c": 100.0}, ())
    assert fabric.fabric_from_labels({"a": {}, "b": {}}, rdma=nics).limits == {}


def test_a_node_without_known_rdma_limits_only_itself():
    nics = {"a": 400.0, "b": 400.0, "c": None, "d": 400.0}
    result = fabric.fabric_from_labels(pairs(SPINE, LEAF), rdma=nics)
    assert (result.limits, result.notes) == ({"c": 1.25}, ())


def flat_file(**more):
    level = {"name": "rack", "label": LEAF, **more}
    return {"levels": [level]}


def test_with_one_given_speed_no_node_is_limited_by_itself():
    nics = {"a": 400.0, "b": 400.0, "c": None, "d": 400.0}
    file = fabric.parse_fabric(flat_file(bandwidthGBps=50), where="f.yaml")
    result = fabric.fabric_from_file(file, pairs(SPINE, LEAF), rdma=nics)
    assert rates(result) == [None, 50.0]
    assert (result.limits, result.notes) == ({}, ())


def test_a_file_that_gives_no_speed_leaves_slow_nodes_to_themselves():
    nics = {"a": 400.0, "b": 400.0, "c": None, "d": 400.0}
    file = fabric.parse_fabric(flat_file(), where="f.yaml")
    result = fabric.fabric_from_file(file, pairs(SPINE, LEAF), rdma=nics)
    assert (rates(result), result.limits, result.notes) == ([None, None], {"c": 1.25}, ())


def test_no_nic_slows_down_nodes_that_reach_each_other_over_nvlink():
    nodes = {**pairs(LEAF, CLIQUE), "fast": {}}
    trays = dict.fromkeys("abcd", 721.8)
    result = fabric.fabric_from_labels(nodes, rdma={"fast": 50.0}, nvlink=trays)
    assert rates(result) == [None, None, 721.8]
    assert result.limits == {"c": 1.25, "d": 1.25}
    unknown = fabric.fabric_from_labels(nodes, rdma={"fast": 50.0})
    assert unknown.limits == dict.fromkeys("abcd", 1.25)


def test_the_rate_of_nvlink_follows_from_the_gpus_if_it_is_known_of_all():
    nodes = pairs(LEAF, CLIQUE)
    trays = dict.fromkeys(nodes, 721.8)
    assert rates(fabric.fabric_from_labels(nodes, nvlink=trays)) == [None, None, 721.8]
    assert rates(fabric.fabric_from_labels(nodes, nvlink={**trays, "a": None})) == [
        None,
        None,
        None,
    ]


# Kueue


def topology(*labels, version="v1beta1"):
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Topology",
        "metadata": {"name": "default"},
        "spec": {"levels": [{"nodeLabel": label} for label in labels]},
    }


def from_topology(document, nodes, **known):
    return fabric.fabric_from_labels(nodes, record_of(document).levels, **known)


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1beta2"])
def test_a_kueue_topology_lists_its_levels_and_the_hostname_is_the_node(version):
    block, rack = "cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"
    found = topology(block, rack, "kubernetes.io/hostname", version=version)
    result = from_topology(found, pairs(block, rack))
    assert words(result) == ["topology-block", "topology-rack"]
    assert joined(result, "a", "b") == "topology-rack"
    assert joined(result, "a", "c") == "topology-block"
    assert rates(result) == [None, None, None]


def test_levels_of_a_topology_have_the_words_that_are_known_for_their_labels():
    found = topology(ZONE, f"{GKE}block", f"{GKE}subblock", f"{GKE}host", "kubernetes.io/hostname")
    nodes = pairs(f"{GKE}block", f"{GKE}subblock")
    for labels in nodes.values():
        labels[ZONE] = "z"
    result = from_topology(found, nodes, rdma=dict.fromkeys(nodes, 200.0))
    assert words(result) == ["zone", "spine", "leaf"]
    assert result.notes == ()


def test_levels_of_a_topology_have_unique_names_that_are_not_reserved():
    labels = ["a.com/node", "a.com/rack", "b.com/rack", f"{OLD}leaf", LEAF]
    node = dict.fromkeys(labels, "x")
    result = from_topology(topology(*labels), {"a": node, "b": node, "c": {LEAF: "y"}})
    assert words(result) == ["a.com/node", "rack", "b.com/rack", "leaf", LEAF]


def test_an_unused_level_of_a_topology_gets_a_note():
    found = topology("a.com/hall", "a.com/rack", "a.com/slot")
    nodes = {name: {"a.com/rack": "r", "a.com/slot": name} for name in "abc"}
    result = from_topology(found, nodes)
    assert words(result) == ["rack"]
    assert result.notes == (
        "no node has the label a.com/hall: the level hall is not used",
        "no two nodes share the label a.com/slot: the level slot is not used",
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (topology(), "spec.levels: expected a list of length >= 1"),
        (
            topology("a.com/rack", "not a label"),
            "spec.levels[1].nodeLabel: 'not a label' is not the key of a node label",
        ),
        (
            topology("a.com/rack", "a.com/rack"),
            "spec.levels[1].nodeLabel: 'a.com/rack' repeats another",
        ),
        (
            topology("a" * 100_000),
            f"spec.levels[0].nodeLabel: '{'a' * 40}' is not the key of a node label",
        ),
    ],
)
def test_an_invalid_topology_is_named_with_its_path(document, message):
    found = record_of(document)
    assert isinstance(found, records.Unread)
    assert found.note == f"Topology default is ignored: {message}"


# Fabric files


def halls():
    """Two halls; the first has two racks, the second one."""
    places = {"a": "1 A", "b": "1 A", "c": "1 B", "d": "2 C", "e": "2 C"}
    return {
        name: {
            "example.com/hall": place[0],
            "example.com/row": place[0],
            "example.com/rack": place[2],
        }
        for name, place in places.items()
    }


def from_yaml(name, **known):
    path = FABRICS / name
    file = fabric.parse_fabric(yaml.safe_load(path.read_text()), where=name)
    return fabric.fabric_from_file(file, halls(), **known)


def test_a_fabric_file_gives_names_and_bandwidths():
    result = from_yaml("racks.yaml")
    assert result == fabric.Fabric(
        tiers=(Tier(name="hall", bandwidth=100.0), Tier(name="rack", bandwidth=400.0)),
        beyond=3.1,
        domains={
            "a": ("1", "A"),
            "b": ("1", "A"),
            "c": ("1", "B"),
            "d": ("2", "C"),
            "e": ("2", "C"),
        },
        notes=(),
    )
    assert joined(result, "a", "c") == "hall"
    assert joined(result, "a", "d") == "beyond"


def test_bandwidths_a_file_leaves_out_are_not_known():
    result = from_yaml("partly-measured.yaml")
    assert words(result) == ["hall", "row", "rack"]
    assert rates(result) == [None, None, 25.0, None]


def test_a_level_of_a_file_that_no_node_knows_is_mentioned():
    written = {
        "levels": [
            {"name": "hall", "label": "example.com/hall"},
            {"name": "row", "label": "example.com/hallway", "bandwidthGBps": 2},
            {"name": "rack", "label": "example.com/rack"},
        ]
    }
    result = fabric.fabric_from_file(fabric.parse_fabric(written, where="f.yaml"), halls())
    assert words(result) == ["hall", "rack"]
    assert rates(result) == [None, None, None]
    assert result.notes == ("no node has the label example.com/hallway: the level row is not used",)


def test_a_file_may_know_nothing_but_the_speed_of_a_flat_network():
    result = fabric.fabric_from_file(
        fabric.parse_fabric({"levels": [], "beyondGBps": 12.5}, where="flat.yaml"), halls()
    )
    assert (result.tiers, result.beyond) == ((), 12.5)


def test_levels_of_a_file_may_be_equally_fast():
    written = {"levels": [level(), level(name="row", label="example.com/row")], "beyondGBps": 50}
    assert rates(
        fabric.fabric_from_file(fabric.parse_fabric(written, where="f.yaml"), halls())
    ) == [
        50.0,
        50.0,
        50.0,
    ]


def level(**changes):
    written = {"name": "rack", "label": "example.com/rack", "bandwidthGBps": 50} | changes
    return {key: value for key, value in written.items() if value is not None}


RATE = "bandwidthGBps"
HALL = {"name": "hall", "label": "example.com/hall", "bandwidthGBps": 10}


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (
            {"levels": [{"name": "a", "label": "b", "bandwidthGBs": 5}]},
            "did you mean bandwidthGBps?",
        ),
        ({"levles": []}, "did you mean levels?"),
        ({"software": [{"plugin": "efaa"}]}, "did you mean efa?"),
        ({"levels": [], "plugin": "efa"}, "software: [{label: example.com/pool, "),
    ],
    ids=str,
)
def test_a_typing_error_in_a_file_is_answered_with_what_was_meant(data, hint):
    with pytest.raises(UsageError) as refused:
        fabric.parse_fabric(data, where="net.yaml")
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "the file: expected a mapping, got nothing"),
        ([HALL], "the file: expected a mapping, got a list"),
        ({}, "levels: is missing"),
        ({"levels": HALL}, "levels: expected a list, got a mapping"),
        ({"tiers": []}, "the file: object contains unknown field tiers"),
        ({True: []}, "the file: expected a text"),
        ({"levels": ["rack"]}, "levels[0]: expected a mapping, got a text"),
        (
            {"levels": [HALL, level(bandwidth=3)]},
            "levels[1]: object contains unknown field bandwidth",
        ),
        ({"levels": [level(name=None)]}, "levels[0]: object missing required field name"),
        (
            {"levels": [level(name="a\nb")]},
            "levels[0].name: 'a\\nb' is not a word of letters, digits, '-', '_', '.'",
        ),
        (
            {"levels": [level(label="no label")]},
            "levels[0].label: 'no label' is not the key of a node label",
        ),
        ({"levels": [level(name="node")]}, "levels[0].name: node is another level"),
        ({"levels": [level(name="beyond")]}, "levels[0].name: beyond is another level"),
        ({"levels": [HALL, level(name="hall")]}, "levels[1].name: hall is another level"),
        (
            {"levels": [HALL, level(label="example.com/hall")]},
            "levels[1].label: example.com/hall is the label of another level",
        ),
        *(
            (
                {"levels": [HALL, level(bandwidthGBps=value)]},
                f"levels[1].bandwidthGBps: {reason}",
            )
            for value, reason in [
                ("50", "expected a number, got a text"),
                (True, "expected a number, got true or false"),
                (0, "expected a number >= 0.001"),
                (math.nan, "expected a number >= 0.001"),
                (math.inf, "expected a number <= 1000000.0"),
            ]
        ),
        (
            {"levels": [HALL, level()], "beyondGBps": "fast"},
            "beyondGBps: expected a number, got a text",
        ),
        (
            {"levels": [HALL, level(bandwidthGBps=9.5)]},
            (
                f"levels[0].{RATE}: 10 GB/s is more than the 9.5 GB/s of"
                f" levels[1].{RATE}, which is nearer"
            ),
        ),
        (
            {
                "levels": [
                    level(name="row", label="r", bandwidthGBps=60),
                    {"name": "middle", "label": "m"},
                    level(),
                ]
            },
            (
                f"levels[0].{RATE}: 60 GB/s is more than the 50 GB/s of"
                f" levels[2].{RATE}, which is nearer"
            ),
        ),
        (
            {"levels": [HALL], "beyondGBps": 11},
            f"beyondGBps: 11 GB/s is more than the 10 GB/s of levels[0].{RATE}, which is nearer",
        ),
    ],
)
def test_a_bad_file_is_named_with_the_place_in_it(data, problem):
    with pytest.raises(UsageError) as caught:
        fabric.parse_fabric(data, where="net.yaml")
    assert caught.value.message == f"net.yaml: {problem}"


def test_a_number_of_thousands_of_digits_is_named_with_its_place():
    # The rest of the sentence is msgspec's, and differs between its versions.
    with pytest.raises(UsageError, match=r"^net\.yaml: levels\[0\]\.bandwidthGBps: "):
        fabric.parse_fabric({"levels": [level(bandwidthGBps=16**5000)]}, where="net.yaml")


# Laws

KEYS = [REGION, ZONE, CORE, SPINE, LEAF, CLIQUE]
SAID = st.sampled_from(["a", "b", "c", "a/b", "(n0)", "(a)", ""])
CLUSTERS = st.lists(st.dictionaries(st.sampled_from(KEYS), SAID), max_size=9).map(
    lambda found: {f"n{at}": labels for at, labels in enumerate(found)}
)
NICS = st.none() | st.floats(min_value=0.1, max_value=1000)


def partition(result):
    """Who shares what with whom, without the names of domains."""
    nodes = list(result.domains)
    return [[joining(result, [one, other]) for other in nodes] for one in nodes]


@given(CLUSTERS, NICS, NICS)
def test_tiers_are_a_tree_that_is_never_faster_outward(nodes, nic, nvlink):
    result = fabric.fabric_from_labels(
        nodes, rdma=dict.fromkeys(nodes, nic), nvlink=dict.fromkeys(nodes, nvlink)
    )
    assert len(set(words(result))) == len(result.tiers)
    known = [rate for rate in rates(result) if rate is not None]
    assert all(outer <= inner for outer, inner in pairwise(known))
    assert list(result.domains) == sorted(nodes)
    for path in result.domains.values():
        assert len(path) == len(result.tiers)
    for at in range(len(result.tiers)):
        ends = {path[at]: path[: at + 1] for path in result.domains.values()}
        assert all(ends[path[at]] == path[: at + 1] for path in result.domains.values())
        assert len(ends) < len(nodes)


@given(CLUSTERS)
def test_the_nearest_level_of_two_nodes_is_the_same_both_ways(nodes):
    found = partition(fabric.fabric_from_labels(nodes))
    assert found == [list(column) for column in zip(*found, strict=True)]


@given(CLUSTERS)
def test_renaming_domains_changes_nothing_but_names(nodes):
    renamed = {
        name: {key: f"{key[-4:]}-{value}" if value else "" for key, value in labels.items()}
        for name, labels in nodes.items()
    }
    before, after = fabric.fabric_from_labels(nodes), fabric.fabric_from_labels(renamed)
    assert before.tiers == after.tiers
    assert partition(before) == partition(after)


@given(CLUSTERS, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_listed_does_not_matter(nodes, random):
    shuffled = list(nodes.items())
    random.shuffle(shuffled)
    assert fabric.fabric_from_labels(dict(shuffled)) == fabric.fabric_from_labels(nodes)


@given(CLUSTERS)
def test_nodes_with_equal_labels_down_to_the_nearest_level_share_all_domains(nodes):
    result = fabric.fabric_from_labels(nodes)
    for one, labels in nodes.items():
        for other, others in nodes.items():
            if labels == others and is_word(labels.get(CLIQUE, "")):
                assert result.domains[one] == result.domains[other]


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_no_file_makes_the_reader_fall_over(data):
    for written in (data, {"levels": data}, {"levels": [data]}, {"levels": [{"name": data}]}):
        if written != {"levels": []}:
            with pytest.raises(UsageError):
                fabric.parse_fabric(written, where="f")
