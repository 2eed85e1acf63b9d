"""The cluster that a test runs against: the fake one, or a real one that a kubeconfig names.

ARENA_TOPO_TEST_KUBECONFIG names a cluster in which machines may be made up: Node objects without a
kubelet, whose pods this module runs by patching their status, unless ARENA_TOPO_TEST_KUBELETS says
that the cluster simulates kubelets itself, for nodes with the label `arena-topo.io/kubelet`
(tests/cluster). All that a test creates carries the label `arena-topo.io/test` or lies in its
namespace, and is removed after it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo.engines import Options
from arena_topo.engines.kubernetes.connection import Connection

VARIABLE = "ARENA_TOPO_TEST_KUBECONFIG"
REAL = os.environ.get(VARIABLE)
"""Read before any test hides the environment."""
KUBELETS = bool(os.environ.get("ARENA_TOPO_TEST_KUBELETS"))

KUBELET = "arena-topo.io/kubelet"
"""Label of the machines whose kubelet the cluster simulates."""
LABEL = "arena-topo.io/test"
PATIENCE = 180.0
HEARTBEAT = 5.0
"""Seconds between two signs of life of a machine; 40 without one make it unreachable."""

Object = dict[str, Any]
KINDS = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered: the status, the body as JSON, and the headers in lower case."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def said(self) -> str:
        """The message of an error."""
        return str(self.body.get("message", ""))


@dataclass(slots=True)
class Live:
    """A cluster to test against; `fake` is None where it is a real one."""

    config: str
    namespace: str
    fake: FakeApi | None = None
    living: FakeCluster | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(3))
    _connection: Connection | None = None
    _made: list[str] = field(default_factory=list)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(Options(kubeconfig=self.config))
        return self._connection

    def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "", **query: str
    ) -> Answer:
        """One request as it is, with no second try: `kind` is merge, json or strategic."""
        access = self.connection.access
        headers = {**access.headers, "accept": "application/json"}
        if body is not None:
            headers["content-type"] = KINDS.get(kind, "application/json")
        target = path + (f"?{urlencode(query)}" if query else "")
        sent = None if body is None else json.dumps(body).encode()
        answer = self._request(method, target, headers, sent)
        try:
            data = b"".join(answer.pieces())
        finally:
            answer.close()
        try:
            said = json.loads(data)
        except ValueError:
            said = {"message": data.decode(errors="replace")}
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status, said, lower)

    def watch(self, path: str, **query: str) -> Iterator[Object]:
        """The events of a watch until it ends."""
        target = f"{path}?{urlencode({'watch': 'true', **query})}"
        answer = self._request("GET", target, dict(self.connection.access.headers), None)
        rest = b""
        try:
            for piece in answer.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(json.loads, filter(None, lines))
        finally:
            answer.close()

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Any:
        pool = self.connection._pool
        return pool.request(method, path, headers.items(), body, connect=10, rest=lambda: math.inf)

    def path(self, plural: str, name: str = "", *, group: str = "v1") -> str:
        """The path of something in the test's namespace; group as in `kubeflow.org/v2beta1`."""
        root = "/api/v1" if group == "v1" else f"/apis/{group}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def node(self, name: str, gpus: int = 8, **more: Any) -> str:
        """Make up a machine; the name it got, which only on the fake one is the name asked for."""
        if self.living is not None:
            self.living.node(name, gpus, **more)
            return name
        name = f"{name}-{self.run}"
        offers = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        labels = {"kubernetes.io/hostname": name, LABEL: self.run, **(more.get("labels") or {})}
        if KUBELETS:
            labels[KUBELET] = "kwok"
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": more.get("taints") or []},
        }
        assert self.call("POST", "/api/v1/nodes", body).status == 201
        self._made.append(name)
        if KUBELETS:
            offered = {"status": {"capacity": offers, "allocatable": offers}}
            self.call("PATCH", f"/api/v1/nodes/{name}/status", offered, kind="strategic")
        else:
            self._beat(name, capacity=offers, allocatable=offers)
        return name

    def _beat(self, name: str, **status: Any) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        ready["lastHeartbeatTime"] = now
        status = {"conditions": [ready], **status}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind="strategic")

    def until(self, wanted: Any, what: str) -> None:
        """Wait until something holds of the cluster, letting a fake one live meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not wanted():
            assert time.monotonic() < deadline, what
            if self.living is not None:
                self.living.step()
            else:
                time.sleep(0.1)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Let the cluster live by itself meanwhile, as a real one always does."""
        if self.living is None:
            yield
            return
        with self.living.running():
            yield

    # Machines by hand, where no kubelet is.

    def play(self, stop: threading.Event) -> None:
        """Run what is bound to the made-up machines, and confirm what is deleted there."""
        beaten = 0.0
        while not stop.is_set():
            if time.monotonic() - beaten > HEARTBEAT:
                beaten = time.monotonic()
                for name in list(self._made):
                    self._beat(name)
            pods = self.call("GET", "/api/v1/pods").body.get("items") or []
            for pod in pods:
                if pod["spec"].get("nodeName") in self._made:
                    self._tend(pod)
            stop.wait(0.1)

    def _tend(self, pod: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            self.call("DELETE", path, {"gracePeriodSeconds": 0})
        elif (pod.get("status") or {}).get("phase") == "Pending":
            ready = [
                {"type": kind, "status": "True"}
                for kind in ("Initialized", "ContainersReady", "Ready")
            ]
            status = {"status": {"phase": "Running", "conditions": ready}}
            self.call("PATCH", f"{path}/status", status, kind="strategic")

    def clean(self) -> None:
        """Remove what a test has left."""
        with contextlib.suppress(Exception):
            for plural, group in (
                ("mpijobs", "kubeflow.org/v2beta1"),
                ("pods", "v1"),
                ("resourceclaims", "resource.k8s.io/v1"),
                ("resourceclaimtemplates", "resource.k8s.io/v1"),
            ):
                self.call("DELETE", self.path(plural, group=group), {"gracePeriodSeconds": 0})
        for name in self._made:
            self.call("DELETE", f"/api/v1/nodes/{name}")
        self.call("DELETE", f"/api/v1/namespaces/{self.namespace}")


@contextmanager
def opened(folder: Path, *, real: str | None = REAL) -> Iterator[Live]:
    """A cluster with an empty namespace of its own."""
    with _real(real) if real else _fake(folder) as live:
        yield live


@contextmanager
def _fake(folder: Path) -> Iterator[Live]:
    api = FakeApi()
    try:
        meta = {"name": "arena-test"}
        api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        # Its admin may do everything, and anybody else what roles allow.
        api.rbac = True
        config = kubeconfig(
            folder / "live", api.url, user={"username": "admin"}, namespace="arena-test"
        )
        yield Live(config, "arena-test", fake=api, living=FakeCluster(api))
        assert not api.crashes, api.crashes[0]
    finally:
        api.close()


@contextmanager
def _real(config: str) -> Iterator[Live]:
    live = Live(config, f"arena-test-{secrets.token_hex(3)}")
    meta = {"name": live.namespace, "labels": {LABEL: live.run}}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    made = live.call("POST", "/api/v1/namespaces", body)
    assert made.status == 201, f"{VARIABLE}: {made.said}"
    stop = threading.Event()
    # A pool of its own: the counting of retries is not for two threads.
    hand = Live(config, live.namespace, run=live.run, _made=live._made)
    thread = threading.Thread(target=hand.play, args=(stop,), daemon=True)
    if not KUBELETS:
        thread.start()
    try:
        yield live
    finally:
        live.clean()
        stop.set()
        if not KUBELETS:
            thread.join()
