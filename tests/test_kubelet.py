"""PodResources over a real gRPC server on a socket, which speaks the bytes of the protocol."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from fake_kubelet import Kubelet, claim, container, plugin, pod, text, varint

from arena_topo.errors import ArenaError
from arena_topo.nodes import kubelet
from arena_topo.nodes.kubelet import PluginDevice, PodDevices, PodResources


@pytest.fixture
def node(tmp_path):
    served = Kubelet(tmp_path / "kubelet.sock")
    yield served
    served.close()


# ---------------------------------------------------------------- what is read of it


def test_pods_are_listed_with_the_device_ids_of_their_plugins(node):
    node.pods = [
        pod("web", container()),
        pod(
            "train",
            container(plugin("nvidia.com/gpu", "GPU-a", "GPU-d")),
            container(plugin("rdma/hca", "mlx5_0"), plugin("nvidia.com/gpu", "GPU-b")),
            namespace="team-a",
        ),
    ]
    assert PodResources(node.socket).holders() == (
        PodDevices(
            namespace="team-a",
            name="train",
            devices=(
                PluginDevice(resource="nvidia.com/gpu", name="GPU-a"),
                PluginDevice(resource="nvidia.com/gpu", name="GPU-d"),
                PluginDevice(resource="rdma/hca", name="mlx5_0"),
                PluginDevice(resource="nvidia.com/gpu", name="GPU-b"),
            ),
        ),
    )


def test_a_pod_that_has_its_devices_by_a_claim_alone_is_not_listed(node):
    node.pods = [pod("train", container(claims=(claim("gpu.nvidia.com", "node-1", "gpu-3"),)))]
    assert PodResources(node.socket).holders() == ()


def test_healthy_devices_are_those_that_are_allocatable(node):
    node.devices = [plugin("nvidia.com/gpu", "GPU-a", "GPU-b"), plugin("rdma/hca", "mlx5_0")]
    found = PodResources(node.socket).allocatable()
    assert [(one.resource, one.name) for one in found] == [
        ("nvidia.com/gpu", "GPU-a"),
        ("nvidia.com/gpu", "GPU-b"),
        ("rdma/hca", "mlx5_0"),
    ]


def test_a_node_with_more_pods_than_fit_in_grpcs_usual_message_is_read_whole(node):
    held = container(plugin("nvidia.com/gpu", "GPU-a"))
    node.pods = [pod(f"pod-{at}", held, namespace="n" * 6000) for at in range(1000)]
    assert sum(map(len, node.pods)) > 4 << 20
    assert len(PodResources(node.socket).holders()) == 1000


# ---------------------------------------------------------------- what goes wrong


def test_a_missing_kubelet_is_reported_with_advice(tmp_path):
    with pytest.raises(ArenaError, match=r"nobody\.sock does not exist") as caught:
        PodResources(str(tmp_path / "nobody.sock")).holders()
    assert "--pod-resources" in (caught.value.hint or "")


def test_a_lost_kubelet_is_reported_and_asked_again_once_it_is_back(tmp_path):
    socket = tmp_path / "kubelet.sock"
    first = Kubelet(socket)
    client = PodResources(str(socket))
    assert client.holders() == ()
    first.close()
    socket.touch()  # a socket may outlive the kubelet
    with pytest.raises(ArenaError, match="does not answer"):
        client.holders()
    socket.unlink()
    second = Kubelet(socket)
    second.pods = [pod("train", container(plugin("nvidia.com/gpu", "GPU-a")))]
    assert len(client.holders()) == 1
    second.close()


def test_a_refusal_is_reported_in_the_kubelets_words(node):
    node.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(ArenaError, match="does not answer") as caught:
        PodResources(node.socket).holders()
    assert caught.value.why == "rejected by rate limit"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x0a\xff", "a number is cut off"),
        (b"\x0a\x05ab", "field 1 is cut off"),
        (b"\x0b", "field 1 is of wire type 3"),
        (text(1, text(1, b"\xff")), "utf-8"),
    ],
)
def test_an_answer_that_is_no_message_is_refused(node, raw, why):
    node.raw = raw
    with pytest.raises(ArenaError, match="makes no sense") as caught:
        PodResources(node.socket).holders()
    assert why in caught.value.why


def test_fields_of_other_kinds_are_passed_over(node):
    numbers = varint(9 << 3) + varint(1 << 60) + varint(10 << 3 | 1) + b"8 bytes."
    more = numbers + varint(11 << 3 | 5) + b"four"
    node.raw = more + text(1, more + pod("train", container(plugin("a.b/c", "x")))) + more
    (holder,) = PodResources(node.socket).holders()
    assert (holder.name, len(holder.devices)) == ("train", 1)


def test_without_grpcio_the_error_names_the_package(node, monkeypatch):
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(kubelet, "import_module", missing)
    with pytest.raises(ArenaError, match="grpcio is not installed") as caught:
        PodResources(node.socket).holders()
    assert caught.value.hint == "install arena-topo with its extra 'agent' (docs/installation.md)"
