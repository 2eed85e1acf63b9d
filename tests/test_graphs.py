"""Machines and networks as graphs: `topology show -o graphml`, `.graph()` of the values."""

from __future__ import annotations

import json
from typing import Any

import networkx as nx
import pytest

import arena_topo
from arena_topo import cli
from arena_topo.topology import presets

LEAF = "network.topology.nvidia.com/leaf"


@pytest.fixture
def graph(capfd):
    """The graph that a command line prints."""

    def read(*words: str) -> nx.Graph:
        capfd.readouterr()
        assert cli.run(["topology", "show", *words, "-o", "graphml"]) == 0
        return nx.parse_graphml(capfd.readouterr().out)

    return read


def node(name: str, gpus: int, leaf: str) -> dict[str, Any]:
    offers = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": str(gpus), "rdma/hca": "1"}
    labels = {LEAF: leaf, "nvidia.com/gpu.product": "A10"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": offers, "allocatable": offers},
    }


@pytest.fixture
def state(tmp_path):
    """Four nodes on two leaves; one of them is called as the network might be."""
    names = ["n0", "n1", "beyond", "n3"]
    nodes = [node(name, 4, f"leaf-{at // 2}") for at, name in enumerate(names)]
    (tmp_path / "state.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    return str(tmp_path / "state.json")


@pytest.mark.parametrize("preset", presets.preset_names())
def test_a_machine_is_a_graph_of_its_links(graph, preset):
    found, machine = graph(preset, "--backend=local"), presets.preset_machine(preset, preset)
    assert found.number_of_nodes() == len(machine.gpus) + len(machine.nics)
    for one in machine.gpus:
        assert found.nodes[f"GPU{one.index}"]["model"] == machine.model
        for other in machine.gpus[: one.index]:
            link = machine.link(one.index, other.index)
            edge = found.edges[f"GPU{one.index}", f"GPU{other.index}"]
            assert (edge["kind"], edge["lanes"]) == (link.kind.name, link.lanes)
        for at, nic in enumerate(machine.nics):
            edge = found.edges[f"GPU{one.index}", f"NIC{at}"]
            assert edge["kind"] == nic.attachment[one.index].kind.name
    assert nx.utils.graphs_equal(
        found, nx.parse_graphml("\n".join(nx.generate_graphml(machine.graph())))
    )


def test_a_network_is_a_tree_in_which_the_way_between_nodes_is_what_joins_them(graph, state):
    found = graph("--state", state)
    assert nx.is_tree(found)
    assert nx.shortest_path(found, "n0", "n1") == ["n0", "leaf/leaf-0", "n1"]
    assert nx.shortest_path(found, "n0", "beyond") == [
        "n0", "leaf/leaf-0", "/", "leaf/leaf-1", "beyond",
    ]  # fmt: skip
    assert "bandwidth" not in found.nodes["leaf/leaf-0"]
    assert found.nodes["n0"] == {"kind": "node", "gpus": 4, "free": 4, "model": "A10"}


def test_a_node_of_a_cluster_is_the_graph_of_its_machine(graph, state):
    assert sorted(graph("n0", "--state", state)) == ["GPU0", "GPU1", "GPU2", "GPU3"]


def test_a_program_gets_the_same_graph(graph, state):
    tree = arena_topo.Client().cluster(state=state).graph()
    printed = graph("--state", state)
    assert (tree.nodes, tree.edges) == (printed.nodes, printed.edges)


def test_what_a_terminal_would_obey_is_no_part_of_a_graph(graph, tmp_path):
    odd = node("n0", 2, "leaf-0")
    odd["metadata"]["labels"]["nvidia.com/gpu.product"] = "\x1b[31m<Q>"
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    found = graph("n0", "--state", str(tmp_path / "odd.json"))
    assert "\x1b" not in found.nodes["GPU0"]["model"]
    assert "<Q>" in found.nodes["GPU0"]["model"]
