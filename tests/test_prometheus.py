"""Asking a Prometheus: how long that may take, what an address may be, what is asked only once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from fake_prometheus import FakePrometheus, Served
from kube_objects import node
from replacing import replace

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import connection, engine, prometheus
from arena_topo.engines.kubernetes.transport import ConnectionPool
from arena_topo.engines.metrics import GpuSample

MIB = 1 << 20
KNOWN = "what GPUs do is not known: "


@pytest.fixture(autouse=True)
def _no_prometheus(monkeypatch: pytest.MonkeyPatch):
    for name in (prometheus.ADDRESS_VARIABLE, prometheus.TOKEN, "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def opened(api: FakeApi, folder: Path, **said: Any) -> engine.KubernetesBackend:
    config = kubeconfig(folder / "config", api.url, user={"username": "alice"})
    return engine.open_kubernetes(Options(kubeconfig=config, **said))


def service(
    api: FakeApi,
    behind: FakePrometheus,
    namespace: str = "kube-system",
    label: str = "kubernetes.io/service-name=prometheus-server",
) -> None:
    if api.find("Namespace", namespace, "") is None:
        api.add({"kind": "Namespace", "metadata": {"name": namespace}})
    meta = {"name": "prom", "namespace": namespace, "labels": dict([label.split("=")])}
    api.add({"kind": "Service", "metadata": meta, "spec": {"ports": [{"port": 9090}]}})
    api.behind[namespace, "prom"] = behind


def asked(backend: engine.KubernetesBackend) -> tuple[tuple[GpuSample, ...], list[str]]:
    heard: list[str] = []
    return backend.metrics(tell=heard.append), heard


# How long it may take, and how much it may be.


class Dripping:
    """A server that answers every request with these bytes, and a pause after each piece."""

    def __init__(self, head: bytes, *, drop: bytes = b" ", every: float = 0.05) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._over = threading.Event()
        self.asked = 0
        self._what = (head, drop, every)
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._socket.accept()
                self.asked += 1
                self._threads.append(threading.Thread(target=self._answer, args=(one,)))
                self._threads[-1].start()

    def _answer(self, one: socket.socket) -> None:
        head, drop, every = self._what
        with one, suppress(OSError):
            one.recv(1 << 16)
            one.sendall(head)
            while not self._over.wait(every):
                one.sendall(drop)

    def close(self) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for one in self._threads:
            one.join()


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


@pytest.fixture
def dripping() -> Iterator[Callable[..., Dripping]]:
    made: list[Dripping] = []

    def make(*words: Any, **more: Any) -> Dripping:
        made.append(Dripping(*words, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("drip", [(JSON, b" "), (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n")])
def test_an_answer_that_comes_byte_by_byte_is_given_up_like_none(
    api: FakeApi,
    tmp_path: Path,
    dripping: Any,
    monkeypatch: pytest.MonkeyPatch,
    drip: tuple[bytes, bytes],
):
    monkeypatch.setattr(prometheus, "PROMETHEUS_TIMEOUT", 0.4)
    head, drop = drip
    slow = dripping(head, drop=drop)
    found, heard = asked(opened(api, tmp_path, prometheus_address=slow.url))
    assert found == ()
    (said,) = heard
    assert said.startswith(f"{KNOWN}{slow.url} did not answer in time")


def test_behind_the_api_server_a_slow_answer_is_given_up_too(
    api: FakeApi, tmp_path: Path, dripping: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prometheus, "PROMETHEUS_TIMEOUT", 0.4)
    service(api, FakePrometheus())
    backend = opened(api, tmp_path)
    asked(backend)
    # From here on whatever answers at its address takes for ever.
    slow = dripping(JSON)
    backend.api.access = replace(backend.api.access, server=slow.url)
    backend.api._pool = ConnectionPool(backend.api.access)
    _, heard = asked(backend)
    (said,) = heard
    assert said.startswith(f"{KNOWN}{slow.url} did not answer in time")


def test_an_answer_without_end_is_not_kept(
    api: FakeApi, tmp_path: Path, dripping: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "MAX_RESPONSE_BYTES", MIB)
    monkeypatch.setattr(prometheus, "PROMETHEUS_TIMEOUT", 60.0)
    flood = dripping(JSON, drop=b" " * MIB, every=0.0)
    _, heard = asked(opened(api, tmp_path, prometheus_address=flood.url))
    (said,) = heard
    assert said.startswith(f"{KNOWN}{flood.url} does not answer")
    assert said.endswith("returned more than 1 MiB")


# What an address may be.


@pytest.mark.parametrize(
    "address",
    [
        "user:secret@prom:9090",
        "ftp://user:secret@prom:9090",
        "http://user:sec/ret@prom:9090",
        "http://user:secret?@prom:9090",
        "ftp://prom/?token=secret",
        "http://[::1",
        "http://me:secret@[::1",
        "http://prom:99999",
        "http://prom:web",
    ],
)
def test_an_address_that_makes_no_sense_is_a_note_without_its_password(
    api: FakeApi, tmp_path: Path, address: str
):
    found, heard = asked(opened(api, tmp_path, prometheus_address=address))
    assert found == ()
    assert heard == [f"{KNOWN}PROMETHEUS_ADDRESS is no address such as http://10.0.0.1:9090"]


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served(FakePrometheus())
    yield one
    one.close()


@pytest.mark.parametrize(
    ("login", "sent"),
    [
        ("me%40corp:p%40ss", "Basic bWVAY29ycDpwQHNz"),
        ("me:p%C3%A9", "Basic bWU6cMOp"),
        ("me", "Basic bWU6"),
    ],
)
def test_who_logs_in_is_sent_unquoted(
    api: FakeApi, tmp_path: Path, served: Served, login: str, sent: str
):
    address = served.url.replace("//", f"//{login}@")
    assert asked(opened(api, tmp_path, prometheus_address=address)) == ((), [])
    assert served.headers[0]["authorization"] == sent


def test_a_token_that_no_header_takes_is_never_shown(
    api: FakeApi, tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
):
    backend = opened(api, tmp_path, prometheus_address=served.url)
    monkeypatch.setenv(prometheus.TOKEN, "t0ken\n")
    assert asked(backend) == ((), [])
    assert served.headers[0]["authorization"] == "Bearer t0ken"
    monkeypatch.setenv(prometheus.TOKEN, "t0\nken")
    (said,) = asked(opened(api, tmp_path, prometheus_address=served.url))[1]
    assert said.startswith(f"{KNOWN}PROMETHEUS_TOKEN: authorization has characters that no request")
    assert "t0" not in said


def test_no_token_is_sent_on_to_where_an_answer_points(
    api: FakeApi, tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(prometheus.TOKEN, "t0ken")
    with socket.create_server(("127.0.0.1", 0)) as first:

        def point() -> None:
            peer, _ = first.accept()
            with peer:
                peer.recv(65536)
                head = f"HTTP/1.1 307 Elsewhere\r\nLocation: {served.url}\r\n"
                peer.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())

        threading.Thread(target=point, daemon=True).start()
        address = f"http://127.0.0.1:{first.getsockname()[1]}"
        _, heard = asked(opened(api, tmp_path, prometheus_address=address))
    assert heard == [f"{KNOWN}{address} answers 307 Elsewhere"]
    assert served.headers == []


# Whom to believe.


def test_a_prometheus_of_the_cluster_is_asked_before_that_of_a_tenant(api: FakeApi, tmp_path: Path):
    tenants, clusters = FakePrometheus(), FakePrometheus()
    tenants.arenas("p", "n", (0, 99.0, 2))
    clusters.arenas("p", "n", (0, 1.0, 2))
    service(api, tenants, "a-team", prometheus.SERVICES[0][0])
    service(api, clusters, "monitoring", "operated-prometheus=true")
    found, heard = asked(opened(api, tmp_path))
    assert ([one.duty_cycle for one in found], heard) == ([1.0], [])


def test_a_prometheus_of_a_tenant_is_not_believed_without_a_word(api: FakeApi, tmp_path: Path):
    tenants = FakePrometheus()
    tenants.arenas("p", "n", (0, 99.0, 2))
    service(api, tenants, "a-team")
    found, heard = asked(opened(api, tmp_path))
    assert [one.duty_cycle for one in found] == [99.0]
    [said] = heard
    assert said == (
        "the load of GPUs is from service prom of namespace a-team; set PROMETHEUS_ADDRESS if that"
        " is not the cluster's Prometheus"
    )


# What is asked only once.


def test_where_prometheus_is_is_looked_up_once_for_a_command(api: FakeApi, tmp_path: Path):
    service(api, FakePrometheus())
    backend = opened(api, tmp_path)
    for _ in range(3):
        assert asked(backend) == ((), [])
    assert len([one for one in api.requests if "services?labelSelector" in one]) == 2
    assert len([one for one in api.requests if "/proxy/" in one]) == 3


def test_that_there_is_none_is_remembered_for_a_command(api: FakeApi, tmp_path: Path):
    backend = opened(api, tmp_path)
    said = [asked(backend)[1] for _ in range(2)]
    assert said[0] == said[1]
    assert "no Prometheus was found" in said[0][0]
    assert len(api.requests) == len(prometheus.SERVICES)


def test_a_prometheus_that_is_gone_is_looked_for_again(api: FakeApi, tmp_path: Path):
    fake = FakePrometheus()
    service(api, fake)
    backend = opened(api, tmp_path)
    asked(backend)
    api.behind.clear()
    assert "no endpoints available" in asked(backend)[1][0]
    api.behind["kube-system", "prom"] = fake
    fake.arenas("p", "n", (0, 1.0, 2))
    found, heard = asked(backend)
    assert ([one.pod for one in found], heard) == (["p"], [])


# What is one GPU.


def result(fake: FakePrometheus) -> list[Any]:
    return fake.answer(prometheus.query())["data"]["result"]


def scraped(fake: FakePrometheus, **more: str) -> None:
    """The same series once more, as another job of Prometheus has them."""
    fake.series += [({**labels, **more}, value) for labels, value in list(fake.series)]


def test_a_gpu_that_two_jobs_scrape_counts_once():
    fake = FakePrometheus()
    fake.dcgms("node-a", (0, 50.0, 100), pod="demo-worker-0")
    fake.arenas("demo-worker-1", "node-b", (1, 50.0, 100))
    once = prometheus.samples(result(fake))
    scraped(fake, job="gpu-metrics-2", instance="10.0.0.9:9400")
    assert prometheus.samples(result(fake)) == once
    assert [one.memory_used for one in once] == [100 * MIB, 100 * MIB]
    assert [one.memory_total for one in once] == [16160 * MIB, 16160 * MIB]


def test_a_gpu_that_two_exporters_call_by_different_nodes_is_one_by_its_uuid():
    fake = FakePrometheus()
    fake.dcgms("dcgm-exporter-x7k2p", (0, 50.0, 100), pod="demo-worker-0")
    for labels, _ in fake.series:
        labels["UUID"] = "GPU-node-a-0"
    fake.arenas("demo-worker-0", "node-a", (0, 60.0, 100))
    (one,) = prometheus.samples(result(fake))
    assert (one.node, one.uuid, one.duty_cycle) == ("node-a", "GPU-node-a-0", 60.0)


def test_who_has_a_gpu_is_heard_from_the_exporter_that_knows():
    fake = FakePrometheus()
    fake.dcgms("node-a", (0, 50.0, 100))
    fake.arenas("demo-worker-0", "node-a", (0, 60.0, 100))
    (one,) = prometheus.samples(result(fake))
    assert (one.pod, one.duty_cycle) == ("demo-worker-0", 60.0)


@pytest.mark.parametrize(
    ("label", "used", "total"), [("GPU_I_ID", 10, 20), ("exported_container", 9, 18)]
)
def test_the_memory_of_the_parts_of_a_gpu_adds_up_however_often_they_are_scraped(
    label: str, used: int, total: int
):
    """Of each container that uses a GPU its exporter tells the memory of the whole GPU."""
    fake = FakePrometheus()
    for part, full, free in (("1", 9, 1), ("2", 1, 9)):
        labels = {
            "node": "n",
            "gpu": "0",
            "exported_pod": "p",
            "exported_namespace": "default",
            "pod": "exporter",
            "container": "exporter",
            label: part,
        }
        fake.add("DCGM_FI_DEV_FB_USED", full, **labels)
        fake.add("DCGM_FI_DEV_FB_FREE", free, **labels)
        fake.add("DCGM_FI_DEV_GPU_UTIL", full, **labels)
    scraped(fake, job="2", container="exporter-2", pod="exporter-2")
    (one,) = prometheus.samples(result(fake))
    assert (one.memory_used, one.memory_total) == (used * MIB, total * MIB)
    assert one.duty_cycle == 9.0


def test_labels_that_make_no_sense_do_no_harm():
    metric = {"__name__": "DCGM_FI_DEV_FB_USED", "gpu": "0", "pod": ["x"], "container": {"a": 1}}
    assert len(prometheus.samples([{"metric": metric, "value": [0, "1"]}])) == 1


# What a command says.


def test_a_bad_address_does_not_keep_top_node_from_showing_nodes(
    api: FakeApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    api.add(node("node-a", gpus=2))
    monkeypatch.setenv(prometheus.ADDRESS_VARIABLE, "http://me:secret@[::1")
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    assert cli.run(["--kubeconfig", config, "top", "node", "-d", "--metric", "-o", "json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)
    assert f"note: {KNOWN}PROMETHEUS_ADDRESS is no address" in err
    assert "secret" not in err
