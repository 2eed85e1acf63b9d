"""What makes up machines on a real cluster, tried on a server that has no kubelets either."""

from __future__ import annotations

import contextlib
from pathlib import Path

import clusters
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from wire_objects import made, mpijob

GROUP = "kubeflow.org/v2beta1"


def test_made_up_machines_run_their_pods_and_all_is_removed_after(tmp_path: Path):
    api = FakeApi()
    world = FakeCluster(api)
    world.kubelets = False
    config = kubeconfig(tmp_path / "c", api.url, user={"username": "admin"})
    with contextlib.closing(api), world.running():
        before = len(api.all("Namespace"))
        with clusters.opened(tmp_path, real=config) as live:
            assert live.fake is None
            node = live.node("node-0", labels={"a": "b"})
            assert node.startswith("node-0-")
            made(live, mpijob("j", suspend=False, nodeSelector={"a": "b"}), group=GROUP)

            def running() -> bool:
                pods = live.call("GET", live.path("pods")).body["items"]
                workers = [one for one in pods if "-worker-" in one["metadata"]["name"]]
                return len(workers) == 2 and all(
                    one["status"]["phase"] == "Running" and one["spec"]["nodeName"] == node
                    for one in workers
                )

            live.until(running, "the workers run")
            live.call("DELETE", live.path("mpijobs", "j", group=GROUP))
            live.until(
                lambda: not live.call("GET", live.path("pods")).body["items"], "the pods are gone"
            )
        assert api.all("Node") == []
        assert api.all("Pod") == []
        assert len(api.all("Namespace")) == before
    assert not api.crashes


@pytest.mark.cluster
def test_without_a_real_cluster_tests_get_the_fake_one(live: clusters.Live):
    assert (live.fake is None) == bool(clusters.REAL)
    name = live.node("node-0", 4)
    node = live.call("GET", f"/api/v1/nodes/{name}").body
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
