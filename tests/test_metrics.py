"""What GPUs do: read from the series of exporters, found as arena finds it, shown as arena does."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from fake_prometheus import FakePrometheus, Served
from hypothesis import given
from hypothesis import strategies as st
from worlds import WORLDS, KubernetesWorld

from arena_topo import cli, layout
from arena_topo.engines import Options, metrics
from arena_topo.engines.kubernetes import engine, prometheus
from arena_topo.engines.metrics import GpuSample
from arena_topo.reasons import job_reading

MIB = 1 << 20
LABELS = ("kubernetes.io/service-name", "prometheus-server")


@pytest.fixture(autouse=True)
def _no_prometheus(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(prometheus.ADDRESS_VARIABLE, raising=False)
    monkeypatch.delenv(prometheus.TOKEN, raising=False)


def opened(api: FakeApi, folder: Path, **said: Any) -> engine.KubernetesBackend:
    config = kubeconfig(folder / "config", api.url, user={"username": "alice"})
    return engine.open_kubernetes(Options(kubeconfig=config, **said))


def service(
    api: FakeApi, behind: FakePrometheus, name: str = "prom", *ports: Any, **labels: str
) -> None:
    """A service that passes requests on to a Prometheus."""
    meta = {"name": name, "namespace": "kube-system", "labels": labels or dict([LABELS])}
    listed = [{"port": one} if isinstance(one, int) else one for one in ports or (9090,)]
    api.add({"kind": "Service", "metadata": meta, "spec": {"ports": listed}})
    api.behind["kube-system", name] = behind


def result(fake: FakePrometheus) -> list[Any]:
    return fake.answer(prometheus.query())["data"]["result"]


# What the series mean.


def test_arenas_exporter_is_read():
    fake = FakePrometheus()
    fake.arenas("demo-worker-0", "node-a", (10, 98.0, 15641), (2, 0.5, 3))
    assert prometheus.samples(result(fake)) == (
        GpuSample(
            node="node-a",
            index=2,
            namespace="default",
            pod="demo-worker-0",
            uuid="GPU-node-a-2",
            duty_cycle=0.5,
            memory_used=3 * MIB,
            memory_total=16160 * MIB,
        ),
        GpuSample(
            node="node-a",
            index=10,
            namespace="default",
            pod="demo-worker-0",
            uuid="GPU-node-a-10",
            duty_cycle=98.0,
            memory_used=15641 * MIB,
            memory_total=16160 * MIB,
        ),
    )


@pytest.mark.parametrize("honors", [True, False])
def test_dcgm_exporter_is_read_whatever_prometheus_makes_of_its_labels(honors: bool):  # noqa: FBT001
    fake = FakePrometheus()
    fake.dcgms("node-a", (0, 87.0, 12000), pod="demo-worker-0", honors=honors)
    fake.dcgms("node-a", (1, 0.0, 4), honors=honors)
    busy, idle = prometheus.samples(result(fake))
    assert (busy.node, busy.index, busy.uuid) == ("node-a", 0, "GPU-node-a-0")
    assert (busy.namespace, busy.pod) == ("default", "demo-worker-0")
    assert (busy.duty_cycle, busy.memory_used, busy.memory_total) == (
        87.0,
        12000 * MIB,
        16160 * MIB,
    )
    # The exporter's own pod does not use the GPU.
    assert (idle.namespace, idle.pod, idle.duty_cycle) == ("", "", 0.0)


def test_of_two_exporters_that_measure_one_gpu_arenas_is_believed():
    fake = FakePrometheus()
    fake.dcgms("node-a", (0, 50.0, 100), pod="demo-worker-0")
    fake.add(
        "nvidia_gpu_duty_cycle",
        60,
        pod_name="demo-worker-0",
        namespace_name="default",
        node_name="node-a",
        minor_number="0",
    )
    (one,) = prometheus.samples(result(fake))
    assert (one.duty_cycle, one.memory_used) == (60.0, 100 * MIB)


def test_only_the_gpus_of_a_namespace_are_told_where_one_is_named():
    fake = FakePrometheus()
    fake.arenas("a", "n", (0, 1, 1), space="team-a")
    fake.arenas("b", "n", (1, 1, 1), space="team-b")
    found = prometheus.samples(result(fake), namespace="team-b")
    assert [one.pod for one in found] == ["b"]


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node_name": "a", "Hostname": "b", "instance": "c:1"}, "a"),
        ({"node": "a", "Hostname": "dcgm-exporter-x"}, "a"),
        ({"kubernetes_node": "a", "instance": "c:1"}, "a"),
        ({"Hostname": "b", "instance": "c:1"}, "b"),
        ({"instance": "10.0.0.1:9445"}, "10.0.0.1"),
        ({}, ""),
    ],
)
def test_the_node_is_named_by_the_best_label_there_is(labels: dict[str, str], node: str):
    metric = {"__name__": "nvidia_gpu_duty_cycle", "gpu": "0", **labels}
    (one,) = prometheus.samples([{"metric": metric, "value": [0, "1"]}])
    assert one.node == node


_TEXT = st.text(max_size=8)
_LABELS = st.dictionaries(
    st.sampled_from(
        [*prometheus.POD_LABELS, *prometheus.NAMESPACE_LABELS, "gpu", "device", "node"]
    ),
    _TEXT | st.sampled_from(["0", "nvidia3", "-1", "1.5"]),
)
_VALUE = st.sampled_from(["1", "NaN", "+Inf", "x", None, "1e400", "1e308", "-1", 10**400, "101"])


@given(
    st.lists(
        st.builds(
            lambda name, labels, value: {
                "metric": {"__name__": name, **labels},
                "value": [0.0, value],
            },
            st.sampled_from([*prometheus.SERIES, "up"]),
            _LABELS,
            _VALUE,
        )
        | st.sampled_from([None, {}, {"metric": 1, "value": [0, "1"]}, {"metric": {}, "value": []}])
    )
)
def test_no_answer_is_too_odd_to_be_read(results: list[Any]):
    found = prometheus.samples(results)
    keys = [(one.node, one.index, one.namespace, one.pod) for one in found]
    assert keys == sorted(set(keys))
    for one in found:
        for value in (one.duty_cycle, one.memory_used, one.memory_total):
            assert value is None or 0 <= value <= 1 << 50
        assert one.duty_cycle is None or one.duty_cycle <= 100


def odd(name: Any, value: Any, **labels: Any) -> dict[str, Any]:
    known = {"node_name": "n", "minor_number": "0", "pod_name": "p", "namespace_name": "s"}
    return {"metric": {**known, "__name__": name, **labels}, "value": [0, value]}


@pytest.mark.parametrize(
    "series",
    [
        [odd("nvidia_gpu_duty_cycle", "3", minor_number="1" * 5_000)],
        [odd("nvidia_gpu_duty_cycle", "3", minor_number=["1"])],
        [odd(["nvidia_gpu_duty_cycle"], "3")],
        [odd({"a": 1}, "3")],
        [odd("nvidia_gpu_duty_cycle", value) for value in ("NaN", "1e308", "-1", "100.5")],
        [odd("nvidia_gpu_memory_used_bytes", value) for value in ("NaN", "-1", "1e16", 10**400)],
        [odd("DCGM_FI_DEV_FB_USED", "1e10")],
    ],
)
def test_what_no_gpu_can_do_is_left_out(series: list[Any]):
    for one in prometheus.samples(series):
        assert (one.duty_cycle, one.memory_used, one.memory_total) == (None, None, None)


@pytest.mark.parametrize(
    "words", [("get", "demo", "-o", "json"), ("get", "demo", "-g"), ("top", "job", "demo")]
)
def test_a_strange_prometheus_stops_no_command(
    shown, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    said = {"pod_name": "demo-worker-0", "namespace_name": "default", "node_name": "node-0"}
    for name in prometheus.SERIES:
        for value in ("1e308", "NaN", "-5"):
            for index in ("2", "9" * 5_000):
                for container in ("a", "b"):
                    labels = {"minor_number": index, "container_name": container, **said}
                    shown.fake.add(name, value, **labels)
    code = cli.run([f"--kubeconfig={tmp_path / 'config'}", *words])
    out, err = capsys.readouterr()
    assert (code, "mistake" in err) == (0, False), err
    assert max(map(len, out.splitlines())) < 200


def test_an_answer_that_is_nested_without_end_is_a_note(
    api, tmp_path, served: tuple[FakePrometheus, Served]
):
    fake, server = served
    fake.broken = b"[" * 200_000
    heard: list[str] = []
    found = opened(api, tmp_path, prometheus_address=server.url).metrics(tell=heard.append)
    assert (found, len(heard)) == ((), 1)
    assert heard[0].startswith("what GPUs do is not known: ")


# What is asked.


def test_the_pods_of_a_job_are_asked_for_by_every_name_of_that_label():
    assert prometheus.query(["demo-worker-1", "demo-worker.0"]) == " or ".join(
        f'{{__name__=~"{"|".join(prometheus.SERIES)}",{label}=~"demo-worker-1|demo-worker[.]0"}}'
        for label in ("exported_pod", "pod_name", "pod")
    )


def test_a_list_of_pods_that_no_address_holds_is_left_out():
    many = [f"a-very-long-name-of-a-job-worker-{index}" for index in range(500)]
    assert prometheus.query(many) == prometheus.query()
    assert "worker" not in prometheus.query(many)


# Where it is asked.


def test_a_prometheus_is_found_by_its_labels_and_asked_through_the_api_server(api, tmp_path):
    fake = FakePrometheus()
    fake.arenas("demo-worker-0", "node-a", (0, 1.0, 2))
    service(api, fake)
    heard: list[str] = []
    found = opened(api, tmp_path).metrics(tell=heard.append)
    assert [(one.node, one.index) for one in found] == [("node-a", 0)]
    assert heard == []
    assert api.requests[-1].startswith(
        "GET /api/v1/namespaces/kube-system/services/http:prom:9090/proxy/api/v1/query?query=%7B"
    )


@pytest.mark.parametrize(
    ("labels", "ports", "chosen"),
    [
        ({"kubernetes.io/service-name": "prometheus-admin"}, (9090, 9335), 9335),
        ({"kubernetes.io/service-name": "prometheus-server"}, (80, 9090), 9090),
        ({"kubernetes.io/name": "Prometheus"}, (9090,), 9090),
        ({"operated-prometheus": "true"}, (10901, {"name": "http-web", "port": 9099}), 9099),
        (
            {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"},
            (80,),
            80,
        ),
    ],
)
def test_arenas_services_and_those_of_common_charts_are_known(
    api, tmp_path, labels: dict[str, str], ports: tuple[Any, ...], chosen: int
):
    fake = FakePrometheus()
    service(api, fake, "prom", *ports, **labels)
    opened(api, tmp_path).metrics()
    assert fake.queries
    assert f"http:prom:{chosen}/proxy" in api.requests[-1]


def test_without_a_prometheus_it_is_said_how_one_is_found(api, tmp_path):
    heard: list[str] = []
    assert opened(api, tmp_path).metrics(tell=heard.append) == ()
    (said,) = heard
    assert said == (
        "no Prometheus was found that could say what GPUs do; if there is one, set"
        " PROMETHEUS_ADDRESS, or label its service kubernetes.io/service-name=prometheus-server"
    )


@pytest.mark.parametrize("what", ["list services", "get services/proxy kube-system"])
def test_who_may_not_ask_through_the_api_server_is_told_the_other_way(api, tmp_path, what: str):
    service(api, FakePrometheus())
    api.deny(what)
    heard: list[str] = []
    assert opened(api, tmp_path).metrics(tell=heard.append) == ()
    verb, resource, *where = what.split()
    space = f" in namespace {where[0]}" if where else ""
    (said,) = heard
    assert said == (
        f"what GPUs do is not known: not allowed to {verb} {resource}{space};"
        " set PROMETHEUS_ADDRESS to ask Prometheus itself"
    )


@pytest.mark.parametrize(
    "answer",
    [[], {"status": "error", "error": "bad query"}, {"status": "success", "data": {"result": 1}}],
)
def test_what_is_no_vector_is_no_error(api, tmp_path, answer: Any):
    fake = FakePrometheus()
    fake.broken = answer
    service(api, fake)
    heard: list[str] = []
    assert opened(api, tmp_path).metrics(tell=heard.append) == ()
    assert len(heard) == 1
    assert heard[0].startswith("what GPUs do is not known: ")


@pytest.mark.parametrize("trouble", [{"status": 503, "times": 99}, {"silent": True}])
def test_a_prometheus_that_does_not_answer_is_not_waited_for(
    api, tmp_path, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, Any]
):
    monkeypatch.setattr(prometheus, "PROMETHEUS_TIMEOUT", 0.3)
    service(api, FakePrometheus())
    api.fail("/proxy/", **trouble)
    heard: list[str] = []
    backend = opened(api, tmp_path)
    began = time.monotonic()
    assert backend.metrics(tell=heard.append) == ()
    # Far from the 30 s of other requests.
    assert time.monotonic() - began < 10
    assert len(heard) == 1
    # Afterwards requests have their own time again.
    assert backend.api_version()


@pytest.fixture
def served() -> Iterator[tuple[FakePrometheus, Served]]:
    fake = FakePrometheus()
    one = Served(fake)
    yield fake, one
    one.close()


def test_an_address_that_was_said_is_asked_itself(
    api, tmp_path, served: Any, monkeypatch: pytest.MonkeyPatch
):
    fake, here = served
    fake.arenas("demo-worker-0", "node-a", (0, 1.0, 2))
    monkeypatch.setenv(
        prometheus.ADDRESS_VARIABLE, here.url.replace("//", "//me:pass@") + "/prefix/"
    )
    backend = opened(api, tmp_path)
    before = len(api.requests)
    assert [one.pod for one in backend.metrics()] == ["demo-worker-0"]
    assert here.paths == ["/prefix/api/v1/query"]
    assert here.headers[0]["authorization"] == "Basic bWU6cGFzcw=="
    assert len(api.requests) == before


def test_a_token_for_prometheus_is_sent_to_it_and_the_clusters_is_not(
    api, tmp_path, served: Any, monkeypatch: pytest.MonkeyPatch
):
    fake, here = served
    del fake
    backend = opened(api, tmp_path, prometheus_address=here.url)
    backend.metrics()
    assert "authorization" not in here.headers[-1]
    monkeypatch.setenv(prometheus.TOKEN, "t0ken")
    opened(api, tmp_path, prometheus_address=here.url).metrics()
    assert here.headers[-1]["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("prometheus:9090", "PROMETHEUS_ADDRESS is no address such as http://10.0.0.1:9090"),
        (
            "http://127.0.0.1:1",
            "http://127.0.0.1:1 does not accept connections: Connection refused",
        ),
    ],
)
def test_an_address_where_nobody_answers_is_a_note(api, tmp_path, address: str, said: str):
    heard: list[str] = []
    backend = opened(api, tmp_path, prometheus_address=address)
    assert backend.metrics(tell=heard.append) == ()
    assert heard == [f"what GPUs do is not known: {said}"]


def test_an_address_that_answers_nonsense_or_late_is_a_note(
    api, tmp_path, served: Any, monkeypatch: pytest.MonkeyPatch
):
    fake, here = served
    monkeypatch.setattr(prometheus, "PROMETHEUS_TIMEOUT", 0.3)
    backend = opened(api, tmp_path, prometheus_address=here.url)
    heard: list[str] = []
    here.status = 502
    backend.metrics(tell=heard.append)
    here.status, fake.broken = 200, "login please"
    backend.metrics(tell=heard.append)
    here.delay = 5.0
    backend.metrics(tell=heard.append)
    known = "what GPUs do is not known:"
    assert heard[0] == f"{known} {here.url} answers 502 Bad Gateway"
    assert heard[1] == f"{known} Prometheus gave no samples"
    assert heard[2].startswith(f"{known} {here.url} did not answer in time")


# What is shown.


@pytest.fixture
def shown(api, tmp_path, capsys, monkeypatch: pytest.MonkeyPatch):
    """`get` of a job that runs on two nodes, whose GPUs a Prometheus measures."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    fake = FakePrometheus()
    fake.arenas("demo-worker-0", "node-0", (10, 98.0, 15641), (2, 0.04, 15481))
    fake.dcgms("node-1", (0, 100.0, 1), pod="demo-worker-1")
    fake.arenas("other-worker-0", "node-1", (1, 7.0, 7))
    service(api, fake)
    world = KubernetesWorld(api, opened(api, tmp_path))
    job = world.job("demo", workers=2, gpus=2)
    world.backend.apply(world.plan(job))
    world.start("demo")

    def run(*line: str) -> tuple[str, str]:
        assert cli.run([f"--kubeconfig={tmp_path / 'config'}", "get", "demo", *line]) == 0
        return capsys.readouterr()

    run.fake = fake
    run.world = world
    return run


def test_get_shows_each_gpu_of_a_pod_in_arenas_columns(shown):
    out, err = shown("-g")
    assert out[out.index("GPUs:") :] == (
        "GPUs:\n"
        "  INSTANCE             NODE(IP)  GPU(Requested)  GPU(IndexId)  GPU(DutyCycle)"
        "  GPU Memory(Used/Total)\n"
        "  --------             --------  --------------  ------------  --------------"
        "  ----------------------\n"
        "  demo-launcher-x7k2p  10.0.0.1  0               N/A           N/A"
        "             N/A\n"
        "  demo-worker-0        10.0.0.1  2               2             0.0%"
        "            15481.0/16160.0(MiB)\n"
        "                                                 10            98.0%"
        "           15641.0/16160.0(MiB)\n"
        "  demo-worker-1        10.0.0.1  2               0             100.0%"
        "          1.0/16160.0(MiB)\n"
        "\n"
        "  Allocated/Requested GPUs of Job: 4/4\n"
    )
    assert "note" not in err


def test_json_has_arenas_metrics_of_each_instance(shown):
    value = json.loads(shown("-o", "json").out)
    launcher, first, second = value["instances"]
    assert launcher["gpuMetrics"] == {}
    assert list(first["gpuMetrics"]) == ["2", "10"]
    assert first["gpuMetrics"]["10"] == {
        "gpuDutyCycle": 98,
        "usedGPUMemory": 15641 * MIB,
        "totalGPUMemory": 16160 * MIB,
    }
    assert list(second["gpuMetrics"]) == ["0"]


def test_who_does_not_ask_for_gpus_pays_nothing_for_them(shown):
    shown.world.api.requests.clear()
    shown()
    shown("-o", "name")
    assert shown.fake.queries == []
    assert not any("/services?labelSelector=kubernetes" in one for one in shown.world.api.requests)


def test_without_measures_gpus_are_not_available_and_why_is_said_to_who_asked(shown):
    shown.world.api.behind.clear()
    out, err = shown("-g")
    assert out.count("N/A             N/A\n") == 3
    # The time for asking again may be over while the server answers.
    assert re.search("note: what GPUs do is not known: .*(no endpoints|took too long)", err)
    out, err = shown("-o", "json")
    assert all(one["gpuMetrics"] == {} for one in json.loads(out)["instances"])
    assert err == ""


def test_a_job_that_is_over_is_not_measured(shown):
    shown.world.finish("demo")
    shown("-g", "-o", "json")
    assert shown.fake.queries == []


@pytest.mark.parametrize("which", WORLDS)
def test_every_engine_tells_what_its_gpus_do_or_nothing(
    which: str, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    with ExitStack() as stack:
        world = stack.enter_context(WORLDS[which](tmp_path))
        world.backend.apply(world.plan(world.job("demo", workers=2, gpus=2)))
        world.start("demo")
        status = world.backend.job("demo", "default")
        assert job_reading.gpu_load(world.backend, status) == ()
        if which == "local":
            # Nobody measures what does not exist.
            assert world.backend.metrics() == ()
            return
        fake = FakePrometheus()
        fake.arenas("demo-worker-1", "node-0", (3, 5.0, 6))
        # A namesake elsewhere, and one of the same job's past.
        fake.arenas("demo-worker-1", "node-1", (3, 5.0, 6), space="team-a")
        fake.arenas("demo-worker-7", "node-1", (3, 5.0, 6))
        service(world.api, fake)
        # Of a few pods Prometheus is asked, of many for all, to choose from.
        for longest in (2000, 0):
            monkeypatch.setattr(prometheus, "_LONGEST_FILTER", longest)
            # Each of them a command: that there was none is remembered for one.
            found = job_reading.gpu_load(opened(world.api, tmp_path), status)
            assert [(one.node, one.pod) for one in found] == [("node-0", "demo-worker-1")]


def test_the_metrics_of_an_unmeasured_gpu_are_zero_in_json():
    one = GpuSample(node="n", index=0, pod="p")
    assert layout.go_json(metrics.gpu_metrics_json([one], "p")) == layout.go_json(
        {"0": {"gpuDutyCycle": 0, "usedGPUMemory": 0, "totalGPUMemory": 0}}
    )
