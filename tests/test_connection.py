"""Kubeconfigs, certificates, plugins and everything that goes wrong between here and a server."""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from fake_api import FakeApi, kubeconfig

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import kubeconfig as files
from arena_topo.engines.kubernetes import podexec
from arena_topo.engines.kubernetes.connection import PAGE, Connection
from arena_topo.engines.kubernetes.kubeconfig import Access, configured
from arena_topo.engines.kubernetes.transport import ConnectionPool, Unopened
from arena_topo.errors import (
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    NotFound,
    TimedOut,
    UsageError,
)

TLS = Path(__file__).parent / "tls"


@pytest.fixture
def connect(api: FakeApi, tmp_path: Path):
    def open_one(**options: Any) -> Connection:
        return Connection(Options(kubeconfig=kubeconfig(tmp_path / "config", api.url), **options))

    return open_one


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def whoami(connection: Connection) -> str:
    answer, _ = connection.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    return answer["status"]["userInfo"]["username"]


# Which kubeconfig, and what it says.


def test_kubeconfig_named_on_the_command_line_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    named = kubeconfig(tmp_path / "named", "http://named")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "other", "http://other"))
    assert files.resolve(Options(kubeconfig=named)).server == "http://named"
    assert files.resolve(Options()).server == "http://other"


def test_without_anything_else_the_home_folder_is_looked_in():
    home = Path(os.environ["HOME"]) / ".kube"
    assert not configured(Options())
    home.mkdir(parents=True)
    kubeconfig(home / "config", "http://home", namespace="team-a")
    assert configured(Options())
    found = files.resolve(Options())
    assert (found.server, found.namespace, found.user) == ("http://home", "team-a", "alice")


def test_several_files_are_merged_and_the_first_to_name_a_thing_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    kubeconfig(first, "http://first")
    document = json.loads(Path(kubeconfig(second, "http://second")).read_text())
    document["clusters"].append({"name": "more", "cluster": {"server": "http://more"}})
    document["contexts"].append({"name": "more", "context": {"cluster": "more"}})
    second.write_text(json.dumps({**document, "current-context": "more"}))
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", f"{missing}{os.pathsep}{first}{os.pathsep}{second}")
    assert files.resolve(Options()).server == "http://first"
    assert files.resolve(Options(context="more")).server == "http://more"


def test_paths_in_a_kubeconfig_are_relative_to_it(tmp_path: Path):
    (tmp_path / "ca.pem").write_text((TLS / "ca.pem").read_text())
    config = kubeconfig(
        tmp_path / "config", "https://x", cluster={"certificate-authority": "ca.pem"}
    )
    assert files.resolve(Options(kubeconfig=config)).ca_file == str(tmp_path / "ca.pem")


def test_no_configuration_at_all_is_a_usage_error_with_the_ways_out():
    with pytest.raises(UsageError, match="no Kubernetes cluster is configured") as caught:
        files.resolve(Options())
    assert "--backend local" in (caught.value.hint or "")


def test_an_unknown_context_lists_those_there_are(tmp_path: Path):
    config = kubeconfig(tmp_path / "config", "http://x")
    with pytest.raises(UsageError, match="no context 'tset'") as caught:
        files.resolve(Options(kubeconfig=config, context="tset"))
    assert caught.value.why == "there are: test"
    assert caught.value.hint == "did you mean test?"


_CONTEXT = "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b: c", r"config: line 1: not YAML"),
        ("just words", "config: not a kubeconfig"),
        (
            "clusters: {}\ncurrent-context: x",
            "config: not a kubeconfig: clusters: expected a list",
        ),
        ("clusters: [{cluster: {}}]", r"config: clusters\[0\]\.name is missing"),
        ("users: [{name: a, user: text}]", r"users\[0\]\.user: expected a mapping, got a text"),
        ("apiVersion: v1", "config: current-context is not set"),
        (
            _CONTEXT,
            r"config: contexts\[c\]\.context\.cluster names 'k', and there are none",
        ),
        (
            _CONTEXT + "clusters: [{name: k, cluster: {}}]",
            r"config: clusters\[k\]\.cluster\.server is missing",
        ),
        (
            _CONTEXT + "clusters: [{name: k, cluster: {server: 'host:6443/path'}}]",
            r"clusters\[k\]\.cluster\.server is no http or https address",
        ),
    ],
)
def test_a_bad_kubeconfig_names_the_file_and_the_key(tmp_path: Path, text: str, said: str):
    (tmp_path / "config").write_text(text)
    with pytest.raises(UsageError, match=said):
        files.resolve(Options(kubeconfig=str(tmp_path / "config")))


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"client-certificate-data": "%%%", "client-key-data": ""}, "is not base64"),
        ({"client-certificate": "nowhere.pem"}, r"nowhere\.pem, which does not exist"),
        ({"client-key-data": "YQ=="}, "client-certificate is missing"),
        ({"token": 7}, r"users\[0\]\.user\.token: expected a text, got a whole number"),
    ],
)
def test_bad_credentials_name_the_key(tmp_path: Path, user: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        files.resolve(Options(kubeconfig=kubeconfig(tmp_path / "c", "https://x", user=user)))


def test_access_does_not_print_secrets(tmp_path: Path):
    config = kubeconfig(tmp_path / "config", "http://x", user={"token": "very-secret"})
    assert "very-secret" not in repr(files.resolve(Options(kubeconfig=config)))


@pytest.mark.parametrize(
    ("environment", "server", "proxy"),
    [
        ({"HTTPS_PROXY": "http://p:3128"}, "https://api.example:6443", "http://p:3128"),
        ({"HTTPS_PROXY": "p.corp:3128"}, "https://api.example:6443", "http://p.corp:3128"),
        ({"ALL_PROXY": "socks5://127.0.0.1:1080"}, "https://api.example:6443", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://127.0.0.1:6443", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://api.example", None),
        (
            {"https_proxy": "http://p:3128", "no_proxy": ".example"},
            "https://api.example:6443",
            None,
        ),
        ({}, "https://api.example:6443", None),
    ],
)
def test_proxies_of_the_environment_follow_gos_rules(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    server: str,
    proxy: str | None,
):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert files.resolve(Options(kubeconfig=kubeconfig(tmp_path / "c", server))).proxy == proxy


# Who asks.


def test_tokens_passwords_and_impersonation_reach_the_server(api: FakeApi, tmp_path: Path):
    api.tokens["s3cret"] = "bob"
    rotated = tmp_path / "token"
    rotated.write_text("s3cret\n")
    for user, name in (
        ({"token": "s3cret"}, "bob"),
        ({"token": "old", "tokenFile": str(rotated)}, "bob"),
        ({"username": "carol", "password": "x"}, "carol"),
        ({"token": "s3cret", "as": "dave"}, "dave"),
    ):
        config = kubeconfig(tmp_path / "config", api.url, user=user)
        assert whoami(Connection(Options(kubeconfig=config))) == name


def test_whom_to_act_as_is_sent_as_client_go_sends_it(canned, tmp_path: Path):
    extra = {"scopes": ["a", "b"], "acme.com/project%1": ["größe"]}
    user = {
        "as": "m\u00fcller \u540d",
        "as-groups": ["\u00fc"],
        "as-uid": "7",
        "as-user-extra": extra,
    }
    server = canned(whole({}))
    config = kubeconfig(tmp_path / "config", server.url, user=user)
    Connection(Options(kubeconfig=config)).get("/version")
    assert [line for line in server.lines[0] if line.lower().startswith("impersonate")] == [
        "impersonate-user: m\u00fcller \u540d",
        "impersonate-uid: 7",
        "impersonate-group: \u00fc",
        "impersonate-extra-scopes: a",
        "impersonate-extra-scopes: b",
        "impersonate-extra-acme.com%2Fproject%251: größe",
    ]


@pytest.mark.parametrize(
    "more", [{"as-uid": "7"}, {"as-groups": ["a"]}, {"as-user-extra": {"a": ["b"]}}]
)
def test_groups_uid_and_extra_need_a_user_to_act_as(tmp_path: Path, more: dict[str, Any]):
    config = kubeconfig(tmp_path / "config", "http://x", user=more)
    with pytest.raises(UsageError, match=rf"users\[alice\]\.user\.{next(iter(more))} needs `as`"):
        files.resolve(Options(kubeconfig=config))
    files.resolve(Options(kubeconfig=config, impersonate="bob"))


@pytest.mark.parametrize(
    ("server", "cluster", "user", "full"),
    [
        ("host:6443", {}, {}, "http://host:6443"),
        ("127.0.0.1", {"insecure-skip-tls-verify": True}, {}, "https://127.0.0.1"),
        ("host:6443", {"certificate-authority": "ca.pem"}, {}, "https://host:6443"),
        (
            "host:6443",
            {},
            {"client-certificate-data": "YQ==", "client-key-data": "YQ=="},
            "https://host:6443",
        ),
    ],
)
def test_a_server_without_a_scheme_gets_that_of_client_go(
    tmp_path: Path, server: str, cluster: dict[str, Any], user: dict[str, Any], full: str
):
    (tmp_path / "ca.pem").write_text((TLS / "ca.pem").read_text())
    config = kubeconfig(tmp_path / "config", server, cluster=cluster, user=user)
    assert files.resolve(Options(kubeconfig=config)).server == full


@pytest.mark.parametrize("as_data", [True, False])
def test_certificates_prove_both_sides_and_leave_no_key_behind(
    https: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_data: bool
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if as_data:
        cluster = {"certificate-authority-data": encoded(TLS / "ca.pem")}
        user = {
            "client-certificate-data": encoded(TLS / "alice.pem"),
            "client-key-data": encoded(TLS / "alice.key"),
        }
    else:
        cluster = {"certificate-authority": str(TLS / "ca.pem")}
        user = {
            "client-certificate": str(TLS / "alice.pem"),
            "client-key": str(TLS / "alice.key"),
        }
    config = kubeconfig(tmp_path / "config", https.url, user=user, cluster=cluster)
    assert whoami(Connection(Options(kubeconfig=config))) == "alice"
    assert [one.name for one in tmp_path.iterdir()] == ["config"]


def test_a_server_that_another_authority_vouches_for_is_not_trusted(https: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", https.url)
    with pytest.raises(ClusterError, match="cannot be trusted") as caught:
        whoami(Connection(Options(kubeconfig=config)))
    assert "certificate-authority" in (caught.value.hint or "")


def test_a_server_of_another_name_needs_tls_server_name(https: FakeApi, tmp_path: Path):
    cluster = {"certificate-authority": str(TLS / "ca.pem")}
    url = https.url.replace("127.0.0.1", "localhost")
    config = kubeconfig(tmp_path / "config", url, cluster=cluster)
    with pytest.raises(ClusterError, match="cannot be trusted"):
        whoami(Connection(Options(kubeconfig=config)))
    named = {**cluster, "tls-server-name": "kubernetes.test"}
    config = kubeconfig(tmp_path / "config", url, cluster=named)
    assert whoami(Connection(Options(kubeconfig=config))) == "system:anonymous"


def test_insecure_skip_tls_verify_is_obeyed_in_silence(https: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", https.url, cluster={"insecure-skip-tls-verify": True})
    assert whoami(Connection(Options(kubeconfig=config))) == "system:anonymous"


def test_keys_that_do_not_belong_together_are_a_usage_error(https: FakeApi, tmp_path: Path):
    user = {"client-certificate": str(TLS / "alice.pem"), "client-key": str(TLS / "server.key")}
    config = kubeconfig(tmp_path / "config", https.url, user=user)
    with pytest.raises(UsageError, match="context test: client-certificate and client-key"):
        Connection(Options(kubeconfig=config))


def plugin(folder: Path, body: str) -> dict[str, Any]:
    script = folder / "plugin.py"
    script.write_text(textwrap.dedent(body))
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
            "interactiveMode": "Never",
        }
    }


def test_a_credential_plugin_is_asked_and_asked_again_when_its_token_has_run_out(
    api: FakeApi, tmp_path: Path
):
    count = tmp_path / "count"
    user = plugin(
        tmp_path,
        f"""
        import json, pathlib
        count = pathlib.Path({str(count)!r})
        number = int(count.read_text()) + 1 if count.exists() else 1
        count.write_text(str(number))
        print(json.dumps({{
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {{"token": f"token-{{number}}"}},
        }}))
        """,
    )
    api.tokens = {"token-1": "eve"}
    connection = Connection(Options(kubeconfig=kubeconfig(tmp_path / "config", api.url, user=user)))
    assert whoami(connection) == "eve"
    api.tokens = {"token-2": "eve"}
    assert whoami(connection) == "eve"
    api.tokens = {"none": "eve"}
    with pytest.raises(AccessDenied, match="does not know who is asking"):
        whoami(connection)
    assert count.read_text() == "3"


def test_a_plugin_that_fails_is_named_and_its_words_are_kept(
    api: FakeApi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    user = plugin(tmp_path, "import sys; sys.exit('no ticket')")
    config = kubeconfig(tmp_path / "config", api.url, user=user)
    with pytest.raises(AccessDenied, match="credential plugin of user 'alice'") as caught:
        Connection(Options(kubeconfig=config))
    assert "no ticket" in (caught.value.why or "")
    assert sys.executable in (caught.value.hint or "")
    assert capfd.readouterr() == ("", "")


def test_ordinary_credentials_never_import_the_kubernetes_package(api: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", api.url, user={"token": "t"})
    code = textwrap.dedent(
        f"""
        import sys
        from arena_topo.engines import Options
        from arena_topo.engines.kubernetes.connection import Connection
        Connection(Options(kubeconfig={config!r})).get("/version")
        print([name for name in sys.modules if name.split(".")[0] in ("kubernetes", "requests")])
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# What goes wrong.


def test_a_refused_connection_is_said_at_once(api: FakeApi, connect):
    connection = connect()
    api.close()
    with pytest.raises(ClusterError, match="does not accept connections") as caught:
        connection.get("/version")
    assert caught.value.why == "Connection refused"
    assert "--context" in (caught.value.hint or "")
    assert caught.value.exit_code == 1


def test_a_limit_of_months_leaves_time_for_an_answer(api: FakeApi, connect):
    # As milliseconds in a C int this is a tenth of a second.
    api.fail("/version", delay=0.4)
    assert connect(request_timeout=(2**32 + 100) / 1000).get("/version")["major"]


def test_a_server_that_does_not_answer_times_out(api: FakeApi, connect):
    api.fail("/version", silent=True)
    with pytest.raises(TimedOut, match="did not answer in time") as caught:
        connect(request_timeout=0.05).get("/version")
    assert "--request-timeout is 0.05 s" in (caught.value.hint or "")
    assert caught.value.exit_code == 6


@dataclass(slots=True)
class Dripping:
    """Answers one request a byte each twentieth of a second, after a first part at once."""

    url: str
    sent: int = 0


@contextlib.contextmanager
def dripping(answer: bytes, at_once: int) -> Iterator[Dripping]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = Dripping(f"http://127.0.0.1:{server.getsockname()[1]}")

        def drip() -> None:
            # Until the one who listens is gone.
            with contextlib.suppress(OSError):
                peer, _ = server.accept()
                with peer:
                    peer.recv(65536)
                    peer.sendall(answer[:at_once])
                    for one.sent in range(at_once, len(answer)):
                        time.sleep(0.05)
                        peer.sendall(answer[one.sent : one.sent + 1])

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        yield one
        thread.join()


OK = b"HTTP/1.1 200 OK\r\n"
PACKED = OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"{")

DRIPS = {
    "a body": (OK + b"Content-Length: 100\r\n\r\n", b" " * 100),
    "headers": (OK, b"x: y\r\n" * 20),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x: y\r\n" * 20),
    "zeros behind a gzip member": (PACKED, b"\0" * 100),
    "empty gzip members": (PACKED, gzip.compress(b"") * 5),
}


@pytest.mark.parametrize("limits", [{"request_timeout": 0.5}, {"deadline": 0.5}])
@pytest.mark.parametrize("kind", DRIPS)
def test_an_answer_that_drips_ends_with_the_time_of_its_call(
    tmp_path: Path, kind: str, limits: dict[str, float]
):
    at_once, rest = DRIPS[kind]
    with dripping(at_once + rest, len(at_once)) as server:
        connection = Connection(
            Options(kubeconfig=kubeconfig(tmp_path / "c", server.url), **limits)
        )
        with pytest.raises(TimedOut, match=r"in time|took too long"):
            connection.get("/api/v1/nodes/a")
    assert server.sent < len(at_once) + len(rest) / 2


def test_a_proxy_that_drips_its_answer_ends_with_the_time_of_the_call(tmp_path: Path):
    head = OK + b"x: y\r\n" * 20
    with dripping(head, len(OK)) as proxy:
        cluster = {"proxy-url": proxy.url}
        config = kubeconfig(tmp_path / "c", "https://kubernetes.test", cluster=cluster)
        with pytest.raises(ClusterError, match=r"the proxy to .* does not answer"):
            Connection(Options(kubeconfig=config, request_timeout=0.5)).get("/version")
    assert proxy.sent < len(head) / 2


def test_a_proxy_that_drips_its_answer_ends_with_the_time_of_connecting():
    head = OK + b"x: y\r\n" * 20
    with dripping(head, len(OK)) as proxy:
        pool = ConnectionPool(Access(server="https://kubernetes.test", proxy=proxy.url))
        with pytest.raises(Unopened, match="proxy"):
            pool.dialled(0.5, lambda: 60.0)
    assert proxy.sent < len(head) / 2


def test_a_handshake_of_a_command_in_a_pod_that_drips_ends_with_its_time(tmp_path: Path):
    head = b"HTTP/1.1 101 Switching Protocols\r\n"
    with dripping(head + b"x: y\r\n" * 20, len(head)) as server:
        connection = Connection(Options(kubeconfig=kubeconfig(tmp_path / "c", server.url)))
        with pytest.raises(TimedOut, match=r"did not take a command within 0\.5 s"):
            podexec.execute(connection, "default", "a-worker-0", ["true"], timeout=0.5)
    assert server.sent < len(head) + 60


def test_what_is_read_as_it_comes_may_take_longer_than_a_call(tmp_path: Path):
    answer = chunked(b"two", b"lines")
    with dripping(answer, len(answer) - 30) as server:
        config = kubeconfig(tmp_path / "c", server.url)
        connection = Connection(Options(kubeconfig=config, request_timeout=0.5))
        assert (
            b"".join(connection.streamed("/api/v1/namespaces/x/pods/y/log", {}, silence=0.5))
            == b"twolines"
        )


def test_an_unknown_host_is_named(tmp_path: Path):
    config = kubeconfig(tmp_path / "config", "http://nowhere.invalid:6443")
    with pytest.raises(ClusterError, match=r"host of http://nowhere\.invalid:6443 is not known"):
        Connection(Options(kubeconfig=config)).get("/version")


def test_the_zone_of_an_ipv6_address_is_quoted_as_go_reads_it(tmp_path: Path):
    config = kubeconfig(tmp_path / "config", "https://[fe80::1%25lo]:6443")
    with pytest.raises(ArenaError) as caught:
        Connection(Options(kubeconfig=config, request_timeout=0.5)).get("/version")
    assert "is not known" not in caught.value.message


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_passing_troubles_are_tried_again(api: FakeApi, connect, status: int):
    api.fail("/version", status=status, retry_after=0, times=2)
    assert connect().get("/version")["major"] == "1"
    assert api.requests == ["GET /version"] * 3


def test_a_reset_connection_is_tried_again(api: FakeApi, connect):
    api.fail("/version", reset=True)
    assert connect().get("/version")["major"] == "1"


def test_trouble_that_stays_is_one_clear_error(api: FakeApi, connect):
    api.fail("/version", status=503, retry_after=0, times=99)
    with pytest.raises(ClusterError, match="currently unable to handle the request") as caught:
        connect().get("/version")
    assert caught.value.status == 503
    assert len(api.requests) == 5


def test_a_long_retry_after_is_not_waited_for(api: FakeApi, connect):
    api.fail("/version", status=429, retry_after=3600, times=99)
    with pytest.raises(ClusterError) as caught:
        connect().get("/version")
    assert caught.value.status == 429
    assert len(api.requests) == 1


def test_what_may_have_been_taken_is_not_sent_twice(api: FakeApi, connect):
    api.fail("POST", reset=True)
    path = "/api/v1/namespaces/default/configmaps"
    with pytest.raises(ClusterError, match="whether it took the request is not known"):
        connect().post(path, {"kind": "ConfigMap", "metadata": {"name": "a"}})
    assert len(api.requests) == 1


def test_a_creation_that_was_turned_away_is_sent_again(api: FakeApi, connect):
    api.fail("POST", status=429, retry_after=0)
    path = "/api/v1/namespaces/default/configmaps"
    connect().post(path, {"kind": "ConfigMap", "metadata": {"name": "a"}})
    assert api.find("ConfigMap", "a") is not None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>login</html>", "the API server answered 502 Bad Gateway"),
        (b"[]", "the API server answered 502 Bad Gateway"),
    ],
)
def test_a_raw_body_is_never_shown(api: FakeApi, connect, body: bytes, said: str):
    api.fail("/version", status=502, body=body, retry_after=0, times=99)
    with pytest.raises(ClusterError) as caught:
        connect().get("/version")
    assert caught.value.message == said


def test_a_login_page_is_no_api_server(api: FakeApi, connect):
    api.fail("/version", status=200, body=b"<html>please log in</html>")
    with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
        connect().get("/version")


def test_refusals_say_verb_resource_and_namespace_and_offer_the_rule(api: FakeApi, connect):
    api.deny("create mpijobs team-a")
    api.deny("get pods/log default")
    api.add({"kind": "Pod", "metadata": {"name": "w"}})
    with pytest.raises(AccessDenied) as caught:
        connect().post(
            "/apis/kubeflow.org/v2beta1/namespaces/team-a/mpijobs",
            {"kind": "MPIJob", "metadata": {"name": "a"}},
        )
    assert caught.value.message == "not allowed to create mpijobs in namespace team-a"
    assert caught.value.hint == (
        'ask for this rule in a Role: {apiGroups: ["kubeflow.org"], resources: ["mpijobs"],'
        ' verbs: ["create"]}'
    )
    assert 'User "system:anonymous" cannot create resource "mpijobs"' in (caught.value.why or "")
    assert caught.value.exit_code == 4
    with pytest.raises(AccessDenied, match="not allowed to get pods/log in namespace default"):
        connect().get("/api/v1/namespaces/default/pods/w/log")


@pytest.mark.parametrize(
    "said",
    [
        'mpijobs.kubeflow.org "a" is forbidden: exceeded quota: few, requested: count/mpijobs=1',
        'mpijobs.kubeflow.org "a" is forbidden: unable to create new content in namespace team-a',
        'admission webhook "guard.example" denied the request: no label team',
    ],
)
def test_no_right_is_advised_where_a_quota_or_a_policy_has_refused(
    canned, tmp_path: Path, said: str
):
    answer = whole({"kind": "Status", "message": said}, status="403 Forbidden")
    with pytest.raises(AccessDenied) as caught:
        canned(answer).connect(tmp_path).post(
            "/apis/kubeflow.org/v2beta1/namespaces/team-a/mpijobs", {"metadata": {"name": "a"}}
        )
    assert (caught.value.why, caught.value.hint) == (said, None)


@pytest.mark.parametrize("path", ["/apis/kubeflow.org/v2beta1", "/apis/kueue.x-k8s.io", "/version"])
def test_the_right_to_see_what_a_server_offers_is_asked_for_by_its_path(
    canned, tmp_path: Path, path: str
):
    answer = whole({"kind": "Status", "message": "forbidden"}, status="403 Forbidden")
    with pytest.raises(AccessDenied) as caught:
        canned(answer).connect(tmp_path).get(path)
    assert caught.value.message == f"not allowed to get {path}"
    assert caught.value.hint == (
        f'ask for this rule in a ClusterRole: {{nonResourceURLs: ["{path}"], verbs: ["get"]}}'
    )


def test_statuses_become_errors_with_the_servers_words(api: FakeApi, connect):
    connection = connect()
    path = "/api/v1/namespaces/default/configmaps"
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        connection.get(f"{path}/a")
    created, _ = connection.post(path, {"kind": "ConfigMap", "metadata": {"name": "a"}})
    with pytest.raises(AlreadyExists, match='configmaps "a" already exists'):
        connection.post(path, {"kind": "ConfigMap", "metadata": {"name": "a"}})
    with pytest.raises(ClusterError, match="does not match the UID in record") as caught:
        connection.delete(f"{path}/a", {"preconditions": {"uid": "other"}})
    assert caught.value.status == 409
    with pytest.raises(ClusterError, match="lowercase RFC 1123") as caught:
        connection.post(path, {"kind": "ConfigMap", "metadata": {"name": "A"}})
    assert caught.value.status == 422
    connection.delete(f"{path}/a", {"preconditions": {"uid": created["metadata"]["uid"]}})
    assert api.find("ConfigMap", "a") is None


def test_the_servers_warnings_are_handed_on(api: FakeApi, connect):
    api.warnings = ['unknown field \\"spec.x\\"', "deprecated"]
    _, warnings = connect().post(
        "/api/v1/namespaces/default/configmaps",
        {"kind": "ConfigMap", "metadata": {"name": "a"}},
    )
    assert warnings == ('unknown field "spec.x"', "deprecated")


# Lists.


def add_config_maps(api: FakeApi, number: int) -> None:
    for index in range(number):
        api.add({"kind": "ConfigMap", "metadata": {"name": f"c{index:05}"}})


def test_long_lists_come_in_pages_and_whole(api: FakeApi, connect):
    add_config_maps(api, 2 * PAGE + 1)
    found = connect().collect("/api/v1/configmaps")
    assert [one["metadata"]["name"] for one in found] == [
        f"c{index:05}" for index in range(2 * PAGE + 1)
    ]
    assert len(api.requests) == 3
    assert all(f"limit={PAGE}" in line for line in api.requests)


def test_only_what_is_wanted_of_each_object_is_kept(api: FakeApi, connect):
    add_config_maps(api, 3)
    found = connect().collect(
        "/api/v1/configmaps",
        lambda one: None if one["metadata"]["name"] == "c00001" else {"n": one["metadata"]["name"]},
    )
    assert found == [{"n": "c00000"}, {"n": "c00002"}]


def test_a_list_that_went_stale_between_pages_is_read_again_without_doubles(api: FakeApi, connect):
    add_config_maps(api, PAGE + 1)
    seen = []

    def keep(one: dict[str, Any]) -> dict[str, Any]:
        if not seen:
            api.compact()
        seen.append(one)
        return one

    found = connect().collect("/api/v1/configmaps", keep)
    assert len(found) == PAGE + 1


def test_a_list_that_goes_stale_again_and_again_is_read_in_one_piece(api: FakeApi, connect):
    add_config_maps(api, PAGE + 1)

    def keep(one: dict[str, Any]) -> dict[str, Any]:
        api.compact()
        return one

    assert len(connect().collect("/api/v1/configmaps", keep)) == PAGE + 1
    assert "limit=" not in api.requests[-1]


def test_a_request_timeout_of_0_is_no_limit_as_in_kubectl(api: FakeApi, connect):
    api.fail("/version", delay=0.2)
    assert connect(request_timeout=0.0).get("/version")["major"] == "1"


# A server that says exactly what it is told to, once for each connection.


class Canned:
    """Answers one request per connection with the bytes given, in order, then closes or resets.

    `asked` holds (method, path, query) of each request, `lines` its headers, `bodies` and `types`
    what came with it.
    """

    def __init__(self, *answers: bytes, reset: bool = False) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.types: list[str] = []
        self.lines: list[list[str]] = []
        self._answers, self._reset = answers, reset
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed before all was asked for
            self._answer_all()

    def _answer_all(self) -> None:
        for answer in self._answers:
            peer, _ = self._socket.accept()
            with peer, peer.makefile("rb") as file:
                method, target, _ = file.readline().decode().split(" ")
                headers = {}
                self.lines.append([])
                while (line := file.readline().decode().strip()) != "":
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                    self.lines[-1].append(line)
                split = urlsplit(target)
                self.asked.append((method, split.path, dict(parse_qsl(split.query))))
                self.types.append(headers.get("content-type", ""))
                length = int(headers.get("content-length", 0))
                self.bodies.append(json.loads(file.read(length)) if length else None)
                peer.sendall(answer)
                if self._reset:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def connect(self, folder: Path, **options: Any) -> Connection:
        return Connection(Options(kubeconfig=kubeconfig(folder / "config", self.url), **options))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def canned() -> Iterator[Any]:
    opened = []

    def serve(*answers: bytes, reset: bool = False) -> Canned:
        opened.append(Canned(*answers, reset=reset))
        return opened[-1]

    yield serve
    for one in opened:
        one.close()


def whole(thing: Any, *headers: str, status: str = "200 OK") -> bytes:
    body = json.dumps(thing).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*pieces: bytes, ended: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(f"{len(one):x}\r\n".encode() + one + b"\r\n" for one in pieces)
    return head + body + (b"0\r\n\r\n" if ended else b"")


def event(change: str, **thing: Any) -> bytes:
    return json.dumps({"type": change, "object": thing}).encode() + b"\n"


MAP = "/api/v1/namespaces/default/configmaps"


def a_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": data}


# Changes.


def test_the_three_kinds_of_patches_change_what_they_name(api: FakeApi, connect):
    connection = connect()
    api.add(a_map(x="1", y="2"))
    path = f"{MAP}/a"
    done = connection.patch(path, [{"op": "add", "path": "/data/z", "value": "3"}])
    assert done["data"] == {"x": "1", "y": "2", "z": "3"}
    done = connection.patch(path, {"data": {"x": None}}, "merge")
    assert done["data"] == {"y": "2", "z": "3"}
    done = connection.patch(path, {"data": {"y": "4"}}, kind="strategic")
    assert done["data"] == {"y": "4", "z": "3"}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("json", "application/json-patch+json"),
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
    ],
)
def test_a_patch_says_which_kind_it_is(canned, tmp_path: Path, kind: Any, said: str):
    server = canned(whole(a_map()))
    server.connect(tmp_path).patch(f"{MAP}/a", {"data": {}}, kind, dryRun="All")
    assert server.types == [said]
    assert server.asked == [("PATCH", f"{MAP}/a", {"dryRun": "All"})]


def test_a_patch_that_comes_too_late_is_a_409_and_a_failed_test_a_422(api: FakeApi, connect):
    connection = connect()
    old = api.add(a_map(x="1"))["metadata"]["resourceVersion"]
    connection.patch(f"{MAP}/a", {"data": {"x": "2"}}, "merge")
    stale = {"metadata": {"resourceVersion": old}, "data": {"x": "3"}}
    with pytest.raises(ClusterError, match="the object has been modified") as caught:
        connection.patch(f"{MAP}/a", stale, "merge")
    assert caught.value.status == 409
    steps = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "4"},
    ]
    with pytest.raises(ClusterError, match="the server rejected our request") as caught:
        connection.patch(f"{MAP}/a", steps)
    assert caught.value.status == 422
    assert connection.get(f"{MAP}/a")["data"] == {"x": "2"}


@pytest.mark.parametrize("method", ["patch", "put", "delete"])
def test_changes_are_sent_again_only_when_they_were_not_taken(api: FakeApi, connect, method: str):
    connection = connect(deadline=30.0)
    api.add(a_map())
    change = getattr(connection, method)
    body: Any = [] if method == "patch" else a_map() if method == "put" else {}
    for fault in ({"reset": True}, {"status": 503}, {"status": 500}):
        api.fail(method.upper(), **fault)
        with pytest.raises(ClusterError):
            change(f"{MAP}/a", body)
    assert len(api.requests) == 3
    api.fail(method.upper(), status=429, retry_after=0)
    change(f"{MAP}/a", body)
    assert len(api.requests) == 5


def test_what_was_deleted_needs_no_options(api: FakeApi, connect):
    api.add(a_map())
    connect().delete(f"{MAP}/a", propagationPolicy="Background")
    assert api.requests == [f"DELETE {MAP}/a?propagationPolicy=Background"]
    assert api.find("ConfigMap", "a") is None


def test_a_change_that_is_not_answered_may_have_been_taken(api: FakeApi, connect):
    api.fail("POST", silent=True)
    with pytest.raises(TimedOut, match="in time; whether it took the request is not known"):
        connect(request_timeout=0.05).post(MAP, a_map())


# Lists at a revision, and what changes after it.


def page(*names: str, revision: str, more: str = "") -> bytes:
    meta = {"resourceVersion": revision, **({"continue": more} if more else {})}
    items = [{"metadata": {"name": one}} for one in names]
    return whole({"kind": "PodList", "metadata": meta, "items": items})


def test_a_list_at_an_exact_revision_names_it_on_the_first_page_only(canned, tmp_path: Path):
    server = canned(page("a", "b", revision="7", more="token"), page("c", revision="7"))
    found, revision = server.connect(tmp_path).listed(
        "/api/v1/pods",
        lambda one: one["metadata"],
        labelSelector="app",
        resourceVersion="7",
        resourceVersionMatch="Exact",
    )
    assert (found, revision) == ([{"name": "a"}, {"name": "b"}, {"name": "c"}], "7")
    first, second = (query for _method, _path, query in server.asked)
    assert first == {
        "labelSelector": "app",
        "limit": str(PAGE),
        "resourceVersion": "7",
        "resourceVersionMatch": "Exact",
    }
    assert second == {"labelSelector": "app", "limit": str(PAGE), "continue": "token"}


def test_a_revision_that_is_forgotten_is_told_to_the_caller(canned, tmp_path: Path):
    text = "The resourceVersion for the provided list is too old."
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": text}
    server = canned(*[whole(gone, status="410 Gone")] * 3)
    with pytest.raises(ClusterError, match="too old") as caught:
        server.connect(tmp_path).collect(
            "/api/v1/pods", resourceVersion="7", resourceVersionMatch="Exact"
        )
    assert caught.value.status == 410
    assert {query["resourceVersion"] for _method, _path, query in server.asked} == {"7"}


def test_a_watch_hands_on_each_change_until_the_server_closes(canned, tmp_path: Path):
    first = event("ADDED", metadata={"name": "a"})
    second = event("BOOKMARK", metadata={"resourceVersion": "9"})
    # A line may arrive in pieces, and two lines in one.
    server = canned(chunked(first[:10], first[10:] + second, event("DELETED", kind="Pod")))
    found = list(
        server.connect(tmp_path).watch(
            "/api/v1/pods", resource_version="5", timeout=90, labelSelector="app"
        )
    )
    assert found == [
        ("ADDED", {"metadata": {"name": "a"}}),
        ("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        ("DELETED", {"kind": "Pod"}),
    ]
    assert server.asked[0][2] == {
        "labelSelector": "app",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": "90",
    }


def test_a_watch_of_a_forgotten_revision_is_a_410_in_either_form(canned, tmp_path: Path):
    gone = {
        "kind": "Status",
        "code": 410,
        "reason": "Expired",
        "message": "too old resource version: 5 (99)",
    }
    for answer in (chunked(event("ERROR", **gone)), whole(gone, status="410 Gone")):
        watch = canned(answer).connect(tmp_path).watch("/x", resource_version="5", timeout=1)
        with pytest.raises(ClusterError, match="too old resource version") as caught:
            list(watch)
        assert caught.value.status == 410


@pytest.mark.parametrize("reset", [False, True])
def test_a_watch_that_breaks_is_told_apart_from_one_that_ends(canned, tmp_path: Path, reset):
    server = canned(chunked(event("ADDED", kind="Pod"), ended=False), reset=reset)
    watch = server.connect(tmp_path).watch("/x", resource_version="5", timeout=1)
    with pytest.raises(ClusterError, match="broke") as caught:
        list(watch)
    assert caught.value.status is None


def test_a_watch_that_sends_something_else_is_no_api_server(canned, tmp_path: Path):
    server = canned(chunked(b"<html>\n"))
    with pytest.raises(ClusterError, match="does not answer like a Kubernetes API server"):
        list(server.connect(tmp_path).watch("/x", resource_version="5", timeout=1))


def test_a_watch_that_sends_a_line_without_end_is_given_up(
    canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("arena_topo.engines.kubernetes.connection.MAX_RESPONSE_BYTES", 1 << 20)
    server = canned(chunked(event("ADDED", kind="Pod"), *[b"x" * (1 << 16)] * 20))
    watch = server.connect(tmp_path).watch("/x", resource_version="5", timeout=1)
    assert next(watch) == ("ADDED", {"kind": "Pod"})
    with pytest.raises(ClusterError, match="does not answer like") as caught:
        next(watch)
    assert caught.value.why == "a watch of /x sent a line of over 1 MiB"


def test_the_time_is_that_of_the_servers_last_answer(canned, tmp_path: Path):
    server = canned(
        whole({}, "Date: Sat, 21 Nov 2026 17:00:00 GMT"),
        whole({}, "Date: Sat, 21 Nov 2026 17:00:05 GMT", status="404 Not Found"),
        whole({}, "Date: yesterday"),
    )
    connection = server.connect(tmp_path)
    assert connection.server_time is None
    connection.get("/version")
    assert connection.server_time == 1795280400.0
    with pytest.raises(NotFound):
        connection.get("/version")
    assert connection.server_time == 1795280405.0
    connection.get("/version")
    assert connection.server_time == 1795280405.0


# A total deadline.


class Clock:
    """What `connection` sees of the clock: it goes on while somebody sleeps, and else stands."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("arena_topo.engines.kubernetes.connection.time", clock)
    return clock


@pytest.mark.parametrize("deadline", [None, 30.0])
@pytest.mark.parametrize("trouble", [{"status": 503}, {"status": 429, "retry_after": 0}])
def test_trouble_that_does_not_pass_is_the_error_after_five_tries(
    api: FakeApi, connect, clock: Clock, trouble: dict[str, int], deadline: float | None
):
    api.fail("/version", times=99, **trouble)
    with pytest.raises(ClusterError) as caught:
        connect(deadline=deadline).get("/version")
    assert caught.value.status == trouble["status"]
    assert len(api.requests) == 5
    assert clock.now < 1030.0


def test_a_server_that_stays_silent_past_the_deadline_names_the_flag(api: FakeApi, connect):
    api.fail("/version", silent=True, times=9)
    with pytest.raises(TimedOut, match=r"did not answer in time|took too long") as caught:
        connect(deadline=0.2).get("/version")
    assert "--timeout is 0.2 s in all" in (caught.value.hint or "")


def test_the_deadline_is_for_all_requests_together(api: FakeApi, connect, clock: Clock):
    connection = connect(deadline=30.0)
    connection.get("/version")
    clock.sleep(30.0)
    with pytest.raises(TimedOut, match="took too long") as caught:
        connection.get("/version")
    assert (len(api.requests), caught.value.exit_code) == (1, 6)
    # What tidies up still gets its time.
    with connection.grace():
        connection.get("/version")
    with pytest.raises(TimedOut):
        connection.get("/version")
    assert len(api.requests) == 2


def test_a_wait_beyond_the_deadline_is_not_begun(api: FakeApi, connect):
    api.fail("/version", status=429, retry_after=3600, times=99)
    with pytest.raises(ClusterError) as caught:
        connect(deadline=60.0).get("/version")
    assert caught.value.status == 429
    assert len(api.requests) == 1


def test_a_page_that_breaks_off_is_read_again_and_nothing_twice(canned, tmp_path: Path):
    rest = page("b", revision="7")
    server = canned(page("a", revision="7", more="token"), rest[:-5], rest)
    found = server.connect(tmp_path).collect("/api/v1/pods")
    assert [one["metadata"]["name"] for one in found] == ["a", "b"]
    assert [query.get("continue") for *_, query in server.asked] == [None, "token", "token"]


def test_a_connection_that_the_server_has_closed_is_not_used_again(tmp_path: Path):
    heads: list[bytes] = []
    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with peer:
                    heads.append(peer.recv(65536).partition(b"\r\n")[0])
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                closed.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/clusters/\u00fc"
        connection = Connection(Options(kubeconfig=kubeconfig(tmp_path / "c", url)))
        connection.get("/version")
        assert closed.wait(5)
        connection.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {})
        thread.join()
    assert heads == [
        b"GET /clusters/%C3%BC/version HTTP/1.1",
        b"POST /clusters/%C3%BC/apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1",
    ]


# Answers that come beside the one that was asked for.


@pytest.fixture(params=["http", "https"])
def answering(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Starts a server: a connection to it, and the connections that it has taken.

    It answers each request with the pieces that a function returns for its number and its path.
    """
    server = socket.create_server(("127.0.0.1", 0))
    taken: list[int] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")

    def start(pieces: Callable[[int, str], list[bytes]]) -> tuple[Connection, list[int]]:
        number = itertools.count()

        def converse(peer: socket.socket) -> None:
            with contextlib.suppress(OSError):
                if request.param == "https":
                    peer = context.wrap_socket(peer, server_side=True)
                with peer:
                    while data := peer.recv(65536):
                        target = data.split(b" ")[1].decode()
                        for piece in pieces(next(number), target):
                            peer.sendall(piece)
                            time.sleep(0.05)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    taken.append(peer.fileno())
                    threading.Thread(target=converse, args=(peer,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        url = f"{request.param}://127.0.0.1:{server.getsockname()[1]}"
        trust = {"certificate-authority": str(TLS / "ca.pem")} if request.param == "https" else {}
        config = kubeconfig(tmp_path / "config", url, cluster=trust)
        return Connection(Options(kubeconfig=config, request_timeout=5.0)), taken

    yield start
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
    server.close()


def stays(thing: Any, status: str = "200 OK") -> bytes:
    """An answer after which the connection stays open."""
    body = json.dumps(thing).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def named(target: str) -> bytes:
    return stays(a_map(target.rpartition("/")[2]))


@pytest.mark.parametrize("size", [1, 12_000])
def test_what_lies_behind_an_answer_is_never_the_answer_to_the_next_request(
    answering: Any, size: int
):
    evil = stays(a_map("evil"), status="201 Created")

    def pieces(number: int, target: str) -> list[bytes]:
        return [stays(a_map("a", x="x" * size)) + evil] if number == 0 else [named(target)]

    connection, taken = answering(pieces)
    assert connection.get(f"{MAP}/a")["metadata"]["name"] == "a"
    assert connection.get(f"{MAP}/b")["metadata"]["name"] == "b"
    assert len(taken) == 2


def test_what_lies_behind_an_answer_through_a_proxy_of_tls_is_no_answer_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two records of the server lie in one of the proxy: the client has read the second too."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    taken: list[int] = []

    def converse(proxy: ssl.SSLSocket) -> None:
        proxy.recv(65536)
        proxy.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(came, goes, server_side=True)

        def done(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    if goes.pending:
                        proxy.sendall(goes.read())
                    if not came.write(proxy.recv(65536)):
                        raise ConnectionError from None  # the client has gone

        done(server.do_handshake)
        while data := done(lambda: server.read(65536)):
            server.write(named(data.split(b" ")[1].decode()))
            server.write(stays(a_map("evil")))
            proxy.sendall(goes.read())

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                taken.append(peer.fileno())
                with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as p:
                    converse(p)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        cluster = {
            "certificate-authority": str(TLS / "ca.pem"),
            "proxy-url": f"https://127.0.0.1:{listener.getsockname()[1]}",
        }
        config = kubeconfig(tmp_path / "config", "https://127.0.0.1:6443", cluster=cluster)
        connection = Connection(Options(kubeconfig=config, request_timeout=5.0))
        for name in "ab":
            assert connection.get(f"{MAP}/{name}")["metadata"]["name"] == name
        connection.close()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(taken) == 2


@pytest.mark.parametrize("status", ["102 Processing", "103 Early Hints", "199 Odd"])
def test_an_interim_answer_is_skipped_and_its_connection_not_used_again(
    answering: Any, status: str
):
    hint = f"HTTP/1.1 {status}\r\nLink: </a>\r\n\r\n".encode()
    connection, taken = answering(lambda _number, target: [hint, named(target)])
    for name in "ab":
        assert connection.get(f"{MAP}/{name}")["metadata"]["name"] == name
    assert len(taken) == 2


def test_a_connection_whose_answer_was_read_to_its_end_serves_the_next_request(answering: Any):
    connection, taken = answering(
        lambda number, target: [named(target) if number else chunked(json.dumps(a_map()).encode())]
    )
    for name in "ab":
        assert connection.get(f"{MAP}/{name}")["metadata"]["name"] == name
    assert len(taken) == 1


def test_interim_answers_without_end_are_no_answer(answering: Any):
    connection, _ = answering(lambda _number, _target: [b"HTTP/1.1 102 Processing\r\n\r\n" * 9000])
    with pytest.raises(ClusterError, match="broke the connection"):
        connection.post(MAP, a_map())


def test_a_server_that_closes_during_the_handshake_breaks_the_connection(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    with peer:
                        peer.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        connection = Connection(Options(kubeconfig=kubeconfig(tmp_path / "c", url)))
        with pytest.raises(
            ClusterError, match="broke the connection during the TLS handsh"
        ) as sent:
            connection.post(MAP, a_map())
        server.shutdown(socket.SHUT_RDWR)
    # Nothing was sent, and nothing is wrong with the certificates.
    assert "whether it took" not in sent.value.message
    assert "certificate" not in (sent.value.hint or "")
