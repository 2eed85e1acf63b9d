"""Answers of proxies, login pages and servers that stop in the middle: read, or told in short."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from fake_operator import FakeOperator
from kube_objects import node
from worlds import planned

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import connection
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.kubeconfig import Access
from arena_topo.engines.kubernetes.shapes import MaybeWritten
from arena_topo.errors import ArenaError, ClusterError, TimedOut
from arena_topo.job import MPIJob

Run = Callable[..., tuple[int, str, str]]
Serve = Callable[..., Connection]
TLS = Path(__file__).parent / "tls"
LOG = "/api/v1/namespaces/default/pods/a/log"


def answer(*headers: str, status: str = "200 OK", body: bytes = b"") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1") + body


class Still:
    """Gives every request the same bytes; then closes, or is `silent` until it is left."""

    def __init__(self, said: bytes, *, silent: bool) -> None:
        self._said, self._silent = said, silent
        self._left = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.recv(65536)
            self.asked += 1
            peer.sendall(self._said)
            if self._silent:
                self._left.wait(30)
            # Whoever closes while bytes of a request are still to come resets the connection.
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):
                pass

    def close(self) -> None:
        self._left.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    opened: list[Still] = []

    def connect(said: bytes, *, silent: bool = False, **options: Any) -> Connection:
        opened.append(Still(said, silent=silent))
        config = kubeconfig(tmp_path / "config", opened[-1].url)
        return Connection(Options(kubeconfig=config, **{"request_timeout": 5.0, **options}))

    yield connect
    for one in opened:
        one.close()


def test_a_server_that_stops_in_the_middle_of_a_log_is_left_after_the_time_of_a_request(
    serve: Serve,
):
    said = answer("Transfer-Encoding: chunked", body=b"4\r\none\n\r\n")
    pieces = serve(said, silent=True, request_timeout=0.3).streamed(LOG, {}, silence=0.3)
    assert next(pieces) == b"one\n"
    with pytest.raises(ClusterError, match="broke") as caught:
        next(pieces)
    assert caught.value.why == "nothing came for 0.3 s"
    assert caught.value.hint == "--request-timeout is 0.3 s"


def test_a_server_that_never_begins_a_log_is_left_after_the_time_of_a_request(serve: Serve):
    with pytest.raises(TimedOut, match="did not answer in time") as caught:
        list(serve(b"", silent=True, request_timeout=0.3).streamed(LOG, {}, silence=0.3))
    assert "--request-timeout is 0.3 s" in (caught.value.hint or "")


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect", "101 Switching"])
def test_what_is_read_as_it_comes_is_never_looked_for_elsewhere(serve: Serve, status: str):
    connection = serve(answer("Location: /elsewhere", "Content-Length: 0", status=status))
    with pytest.raises(ClusterError, match=f"the API server answered {status}") as caught:
        list(connection.streamed(LOG, {}, silence=None))
    assert "a proxy or a login page in between" in (caught.value.hint or "")


def test_a_web_page_is_no_log(serve: Serve):
    connection = serve(answer("Content-Type: text/html; charset=utf-8", body=b"<html>log in"))
    with pytest.raises(
        ClusterError, match="does not answer like a Kubernetes API server"
    ) as caught:
        list(connection.streamed(LOG, {}, silence=None))
    assert caught.value.why == "the answer is a web page"


def test_a_log_that_is_compressed_is_unpacked_or_refused(serve: Serve):
    packed = gzip.compress(b"one\n")
    unpacked = serve(answer("Content-Encoding: gzip", body=packed))
    assert b"".join(unpacked.streamed(LOG, {}, silence=None)) == b"one\n"
    unknown = serve(answer("Content-Encoding: br", body=b"\x0b\x01"))
    with pytest.raises(ClusterError, match="does not answer like") as caught:
        list(unknown.streamed(LOG, {}, silence=None))
    assert caught.value.why == "the answer is compressed (br), which was not requested"
    broken = serve(answer("Content-Encoding: gzip", body=b"no such thing"))
    with pytest.raises(ClusterError, match="broke"):
        list(broken.streamed(LOG, {}, silence=None))


@pytest.mark.parametrize(
    "said",
    [
        b"x" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n",
        answer(status="500 " + "no" * 3000),
        answer("Transfer-Encoding: chunked", body=b"-5\r\nabc\r\n"),
        answer(*["x: y"] * 1000),
    ],
)
@pytest.mark.parametrize(
    "read", [lambda one: one.get("/version"), lambda one: list(one.streamed(LOG, {}, silence=None))]
)
def test_what_a_server_says_wrong_is_told_in_short(
    serve: Serve, said: bytes, read: Callable[[Connection], Any]
):
    with pytest.raises(ArenaError) as caught:
        read(serve(said, request_timeout=0.5))
    assert len(caught.value.message) < 300
    assert len(caught.value.why or "") < 700


def test_a_length_that_is_none_leaves_an_answer_that_ends_when_it_closes(serve: Serve):
    said = answer("Content-Length: " + "9" * 5000, body=b"one\n")
    assert list(serve(said).streamed(LOG, {}, silence=None)) == [b"one\n"]


@pytest.mark.parametrize("zone", ["GMT", "+99999999999999999999", "+9999"])
def test_a_date_that_no_clock_has_is_no_date(serve: Serve, zone: str):
    head = f"Date: Mon, 01 Jan 99999 00:00:00 {zone}"
    connection = serve(answer(head, "Content-Length: 2", body=b"{}"))
    assert connection.get("/version") == {}
    assert connection.server_time is None


@pytest.mark.parametrize("status", ["301 Moved", "303 See Other", "307 Temporary", "308 Permanent"])
def test_no_request_is_sent_on_to_where_an_answer_points(api: FakeApi, serve: Serve, status: str):
    there = f"Location: {api.url}/api/v1/namespaces/default/configmaps"
    connection = serve(answer(there, "Content-Length: 0", "Connection: close", status=status))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    for call in (
        lambda: connection.post("/api/v1/namespaces/default/configmaps", body),
        lambda: connection.get("/api/v1/namespaces/default/configmaps/a"),
        lambda: connection.delete("/api/v1/namespaces/default/configmaps/a"),
    ):
        with pytest.raises(ClusterError, match=f"the API server answered {status}"):
            call()
    assert api.requests == []


def test_one_object_that_is_none_is_no_answer_of_an_api_server(serve: Serve):
    connection = serve(answer("Content-Length: 2", "Connection: close", body=b"{}"))
    for call in (
        lambda: connection.get("/api/v1/nodes/a"),
        lambda: connection.patch("/api/v1/nodes/a", {}),
        lambda: connection.put("/api/v1/nodes/a", {}),
        lambda: connection.post("/api/v1/nodes", {"metadata": {"name": "a"}}),
    ):
        with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
            call()


MIB = 1 << 20


@pytest.mark.parametrize("coding", ["gzip", "deflate", ""])
def test_an_answer_without_bound_is_given_up(
    serve: Serve, coding: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "MAX_RESPONSE_BYTES", MIB)
    body = b" " * (64 * MIB)
    if coding:
        body = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    said = answer(f"Content-Encoding: {coding}" if coding else "x: y", body=body)
    with pytest.raises(ClusterError, match="does not answer like") as caught:
        serve(said).get("/api/v1/nodes/a")
    assert caught.value.why == "GET /api/v1/nodes/a returned more than 1 MiB"


def test_an_answer_that_comes_compressed_is_read_to_its_end(serve: Serve):
    items = [{"metadata": {"name": f"pod-{index}"}} for index in range(20_000)]
    body = gzip.compress(json.dumps({"kind": "PodList", "items": items}).encode())
    for head in (f"Content-Length: {len(body)}", "Connection: close"):
        found = serve(answer("Content-Encoding: gzip", head, body=body)).collect("/api/v1/pods")
        assert found == items


def test_a_list_that_goes_on_where_it_was_is_given_up(serve: Serve):
    body = b'{"kind":"PodList","metadata":{"continue":"abc"},"items":[]}'
    with pytest.raises(ClusterError, match="does not answer like") as caught:
        serve(answer("Connection: close", body=body)).collect("/api/v1/pods")
    assert caught.value.why == "the list of /api/v1/pods does not end"


def test_a_list_that_always_goes_on_is_given_up(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "PAGE", 1)
    monkeypatch.setattr(connection, "PAGES", 4, raising=False)
    reads = Connection(Options(kubeconfig=kubeconfig(tmp_path / "config", api.url)))
    for name in "abcd":
        api.add(node(name))
    assert len(reads.collect("/api/v1/nodes")) == 4
    api.add(node("e"))
    with pytest.raises(ClusterError, match="does not answer like"):
        reads.collect("/api/v1/nodes")


FAILURE = (
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no quorum",'
    b'"reason":"InternalError","code":500}'
)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"kind":"PodList","apiVersion":"v1","metadata":{}}',
        b'{"items":[]}',
        b'{"kind":"Pod","metadata":{"name":"a"},"items":[]}',
        b'{"kind":"Status","status":"Success","items":[]}',
        b'{"kind":["List"],"items":[]}',
    ],
)
def test_a_list_without_its_kind_or_its_items_is_never_an_empty_list(serve: Serve, body: bytes):
    with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
        serve(answer("Content-Length: -5", body=body)).collect("/api/v1/pods")


@pytest.mark.parametrize("half", [rb"\ud800", rb"\udFff"])
def test_half_a_character_is_no_answer_of_an_api_server(serve: Serve, half: bytes):
    body = rb'{"kind":"Node","metadata":{"name":"a","labels":{"b":"%s"}}}' % half
    with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
        serve(answer("Connection: close", body=body)).get("/api/v1/nodes/a")


def test_what_is_no_utf_8_is_no_answer_of_an_api_server(serve: Serve):
    body = b'{"kind":"PodList","metadata":{"continue":"\xed\xa0\x80"},"items":[]}'
    with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
        serve(answer("Connection: close", body=body)).collect("/api/v1/pods")


def test_a_character_that_json_escapes_in_two_halves_is_whole(serve: Serve):
    body = rb'{"kind":"Node","metadata":{"name":"a","labels":{"b":"\ud83d\ude00"}}}'
    found = serve(answer("Connection: close", body=body)).get("/api/v1/nodes/a")
    assert found["metadata"]["labels"] == {"b": "\N{GRINNING FACE}"}


def test_a_list_whose_items_are_null_is_empty_as_servers_in_go_write_it(serve: Serve):
    body = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}'
    assert serve(answer("Connection: close", body=body)).collect("/api/v1/pods") == []


def test_a_status_of_failure_is_an_error_whatever_the_code_of_its_answer(serve: Serve):
    connection = serve(answer("Connection: close", body=FAILURE))
    for call in (
        lambda: connection.collect("/api/v1/pods"),
        lambda: connection.get("/api/v1/nodes/a"),
        lambda: connection.get("/version"),
        lambda: connection.delete("/api/v1/nodes/a"),
        lambda: connection.patch("/api/v1/nodes/a", {}),
        lambda: connection.post("/api/v1/nodes", {"metadata": {"name": "a"}}),
    ):
        with pytest.raises(ClusterError, match="no quorum") as caught:
            call()
        assert caught.value.status == 500


def test_a_failure_that_names_no_code_of_an_error_is_one(serve: Serve):
    body = b'{"kind":"Status","status":"Failure","message":"no","code":200}'
    with pytest.raises(ClusterError, match="no"):
        serve(answer("Connection: close", body=body)).delete("/api/v1/nodes/a")


def test_what_says_nothing_of_a_deletion_is_no_deletion(serve: Serve):
    with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
        serve(answer("Connection: close", body=b"{}")).delete("/api/v1/nodes/a")


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "said", [b"{}", FAILURE, b'{"kind":"PodList","metadata":{}}'], ids=["empty", "status", "bare"]
)
def test_gpus_that_nobody_speaks_of_are_never_free(
    api: FakeApi, tmp_path: Path, run: Run, said: bytes
):
    api.add(node("node-0", gpus=8))
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    gang = ["--name=a", "--gpus=8", "--workers=1", "--gputopology", "--image=i", "x"]
    words = ("plan", "mpi", *gang, "--kubeconfig", config)
    assert run(*words)[0] == 0
    api.fail(r"^GET /api/v1/pods\b", status=200, body=said, times=99)
    code, out, _ = run(*words)
    assert (code, out) == (1, "")


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
@pytest.mark.parametrize("words", [[], ["--all"], ["-f"], ["--nccl"]], ids="".join)
def test_a_login_page_is_never_shown_as_a_log(
    api: FakeApi, tmp_path: Path, run: Run, words: list[str], kind: str
):
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    backend.apply(planned(backend, MPIJob(name="demo", command="true", image="i", workers=1)))
    operator = FakeOperator(api)
    operator.start("demo")
    operator.finish("demo")
    api.fail(r"/log\b", status=200, body=b"<html>\x1b[31mlog in</html>\n", kind=kind, times=99)
    code, out, err = run("logs", "demo", *words, "--kubeconfig", config)
    assert code == 1
    assert "log in<" not in out
    assert re.search("does not answer like a Kubernetes API server", err)


@pytest.mark.parametrize("odd", ["../../apis/x", "a?b", ""])
def test_the_name_of_a_node_in_an_affinity_never_makes_another_path(
    api: FakeApi, tmp_path: Path, run: Run, odd: str
):
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    backend.apply(planned(backend, MPIJob(name="demo", command="true", image="i", workers=1)))
    FakeOperator(api).start("demo")
    with api.edit("Pod", "demo-worker-0") as pod:
        field = {"key": "metadata.name", "operator": "In", "values": [odd]}
        terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        pod["spec"] = {**pod["spec"], "affinity": {"nodeAffinity": required}}
        pod["spec"].pop("nodeName", None)
        pod["status"] = {"phase": "Pending"}
    api.requests.clear()
    code, _, err = run("why", "demo", "--kubeconfig", config)
    assert code == 0, err
    asked = {line for line in api.requests if (odd and odd in line) or "/nodes" in line}
    assert asked <= {"GET /api/v1/nodes/node-0"}  # the launcher's


@pytest.mark.parametrize("more", [b"", b"\0" * 9])
def test_an_answer_of_several_gzip_members_is_read_to_its_end(serve: Serve, more: bytes):
    said = json.dumps({"kind": "Node", "metadata": {"name": "a"}}).encode()
    body = gzip.compress(said[:9]) + gzip.compress(b"") + gzip.compress(said[9:]) + more
    whole = answer("Content-Encoding: gzip", f"Content-Length: {len(body)}", body=body)
    assert serve(whole).get("/api/v1/nodes/a")["metadata"]["name"] == "a"
    assert b"".join(serve(whole).streamed(LOG, {}, silence=5.0)) == said
    with pytest.raises(ClusterError, match="broke the connection"):
        serve(answer("Content-Encoding: gzip", body=body[: len(body) - len(more) - 9])).delete("/a")


def test_tls_that_ends_within_a_request_leaves_it_open_whether_it_was_taken():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with context.wrap_socket(peer, server_side=True) as peer:
                peer.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        reads = Connection(Options(), Access(server=url, ca_file=str(TLS / "ca.pem")))
        lost = "broke the connection; whether it took the request is no"
        with pytest.raises(MaybeWritten, match=lost):
            reads.post("/api/v1/nodes", {"a": "b" * (8 << 20)})
        thread.join()


def test_a_compressed_answer_that_is_cut_short_is_no_answer(serve: Serve):
    cut = gzip.compress(json.dumps({"kind": "PodList", "items": []}).encode())[:-9]
    head = ("Content-Encoding: gzip", f"Content-Length: {len(cut)}")
    with pytest.raises(ClusterError, match="broke the connection"):
        serve(answer(*head, body=cut)).delete("/api/v1/nodes/a")


def test_pods_come_without_managed_fields_and_odd_ones_are_named(serve: Serve):
    pod = {"metadata": {"name": "a", "uid": "u"}, "spec": {"nodeName": "n"}, "status": {}}
    full = pod | {"metadata": {**pod["metadata"], "managedFields": [{"manager": "kubelet"}]}}
    for item, found in ((full, [pod]), ({"metadata": "text"}, None)):
        body = json.dumps({"kind": "PodList", "metadata": {}, "items": [item]}).encode()
        reads = serve(answer(f"Content-Length: {len(body)}", "Connection: close", body=body))
        if found is not None:
            assert reads.collect("/api/v1/pods") == found
            continue
        with pytest.raises(ClusterError, match="does not answer like") as caught:
            reads.collect("/api/v1/pods")
        assert caught.value.why == "the list of /api/v1/pods holds what is no object"
