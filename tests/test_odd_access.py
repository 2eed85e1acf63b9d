"""Kubeconfigs, plugins and servers as people really have them: odd, and never a mistake of ours."""

from __future__ import annotations

import gc
import json
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApi, kubeconfig
from test_top_commands import run

from arena_topo.engines import Options
from arena_topo.engines.kubernetes import connection, podexec, transport
from arena_topo.engines.kubernetes import kubeconfig as files
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.errors import (
    AccessDenied,
    ArenaError,
    NotFound,
    TimedOut,
    UsageError,
)

SECRET = "s3cr3t"
NO_HEADER = "has characters that no request can carry"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# ---------------------------------------------------------------- what a header cannot carry


@pytest.mark.parametrize("ending", ["\n", "\r\n", "  \n\n", " "])
def test_a_token_that_ends_with_its_line_is_that_token(api: FakeApi, tmp_path: Path, ending: str):
    api.tokens = {"t0ken": "bob"}
    config = kubeconfig(tmp_path / "config", api.url, user={"token": f"t0ken{ending}"})
    Connection(Options(kubeconfig=config)).get("/version")


SAID: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"token": "{}"}, {}, f"config: authorization {NO_HEADER}"),
    ({"as": "{}"}, {}, f"config: impersonate-user {NO_HEADER}"),
    ({"as": "x", "as-uid": "{}"}, {}, f"config: impersonate-uid {NO_HEADER}"),
    ({"as": "x", "as-groups": ["{}"]}, {}, f"config: impersonate-group {NO_HEADER}"),
    ({}, {"impersonate": "{}"}, f"config: impersonate-user {NO_HEADER}"),
    (
        {},
        {"impersonate": "x", "impersonate_groups": ("{}",)},
        f"config: impersonate-group {NO_HEADER}",
    ),
]


def odd_ones(user: dict[str, Any]) -> str:
    """What a name must not hold. No YAML holds half a character."""
    return "\n\r\0\x7f" + ("" if user else "\ud800")


@pytest.mark.parametrize(
    ("odd", "user", "options", "said"),
    [(odd, *one) for one in SAID for odd in odd_ones(one[0])],
)
def test_what_no_header_can_carry_is_refused_and_never_shown(
    tmp_path: Path, odd: str, user: dict[str, Any], options: dict[str, Any], said: str
):
    value = f"{SECRET}{odd}{SECRET}"
    filled = json.loads(json.dumps(user).replace('"{}"', json.dumps(value)))
    chosen = {
        key: tuple(value if one == "{}" else one for one in given)
        if isinstance(given, tuple)
        else given.replace("{}", value)
        for key, given in options.items()
    }
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=filled)
    with pytest.raises(UsageError) as caught:
        Connection(Options(kubeconfig=config, **chosen))
    assert caught.value.message.endswith(said)
    assert SECRET not in f"{caught.value.message}{caught.value.why}{caught.value.hint}"


def test_a_file_with_an_odd_token_is_named(tmp_path: Path):
    (tmp_path / "token").write_text(f"{SECRET}\n{SECRET}\n")
    config = kubeconfig(tmp_path / "config", "http://x", user={"tokenFile": "token"})
    with pytest.raises(UsageError, match=f"authorization {NO_HEADER}"):
        files.resolve(Options(kubeconfig=config))


def test_the_command_line_ends_with_2_for_a_name_that_no_header_can_carry(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    code, out, err = run(capfd, "list", "--kubeconfig", config, "--as", f"{SECRET}\nx")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {config}: impersonate-user {NO_HEADER}\n")
    assert SECRET not in err


# ---------------------------------------------------------------- proxies


class Socks:
    """A SOCKS5 proxy (RFC 1928) that leads to one server; it keeps the names it was asked for."""

    def __init__(self, url: str) -> None:
        host, port = url.rpartition("/")[2].split(":")
        self._target = (host, int(port))
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._relay, args=(peer,), daemon=True).start()

    def _relay(self, peer: socket.socket) -> None:
        _, methods = peer.recv(2)
        peer.recv(methods)
        peer.sendall(b"\x05\x00")
        _, _, _, kind = peer.recv(4)
        name = peer.recv(peer.recv(1)[0]).decode() if kind == 3 else "an address"
        self.asked.append(f"{name}:{struct.unpack('!H', peer.recv(2))[0]}")
        server = socket.create_connection(self._target)
        peer.sendall(b"\x05\x00\x00\x01" + bytes(6))
        threading.Thread(target=self._pump, args=(server, peer), daemon=True).start()
        self._pump(peer, server)
        server.close()
        peer.close()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def through(tmp_path: Path, url: str, proxy: str) -> Options:
    path = kubeconfig(tmp_path / "config", url, cluster={"proxy-url": proxy})
    return Options(kubeconfig=path)


def test_a_socks_proxy_finds_the_host_itself(api: FakeApi, tmp_path: Path):
    with closing(Socks(api.url)) as proxy:
        options = through(tmp_path, "http://api.test:6443", f"socks5://127.0.0.1:{proxy.port}")
        Connection(options).get("/version")
        assert proxy.asked == ["api.test:6443"]


@contextmanager
def swallowing() -> Iterator[tuple[str, int]]:
    """An address that answers no SYN, as behind a firewall: its queue is full."""
    with socket.socket() as server, ExitStack() as stack:
        server.bind(("127.0.0.2", 0))
        server.listen(0)
        for _ in range(2):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield server.getsockname()


@pytest.mark.parametrize("kind", ["server", "SOCKS proxy"])
def test_a_host_of_which_an_address_does_not_answer_is_reached_at_the_next(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """As a name with an address of IPv6 that the network does not route."""
    monkeypatch.setattr(transport, "LEAST_SHARE", 0.05)
    real = socket.getaddrinfo
    with swallowing() as silent, closing(Socks(api.url)) as proxy:

        def resolved(host: Any, *more: Any, **named: Any) -> list[Any]:
            if str(host) not in {"two.test", "b'two.test'"}:
                return real(host, *more, **named)
            stream = socket.AF_INET, socket.SOCK_STREAM, 0, ""
            port = proxy.port if kind == "SOCKS proxy" else int(api.url.rpartition(":")[2])
            return [(*stream, silent), (*stream, ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        options = Options(kubeconfig=kubeconfig(tmp_path / "config", "http://two.test:6443"))
        if kind == "SOCKS proxy":
            options = through(tmp_path, "http://api.test:6443", f"socks5://two.test:{proxy.port}")
        options = replace(options, request_timeout=1.0)
        assert Connection(options).get("/version")["major"]


def test_a_socks_proxy_leads_to_pods_too(api: FakeApi, tmp_path: Path):
    with closing(Socks(api.url)) as proxy:
        options = through(tmp_path, "http://api.test:6443", f"socks5://127.0.0.1:{proxy.port}")
        with pytest.raises(NotFound):
            podexec.execute(Connection(options), "default", "none", ["true"])
        assert proxy.asked == ["api.test:6443"]


def test_to_a_proxy_over_tls_no_command_sends_a_login_in_clear_text(api: FakeApi, tmp_path: Path):
    with closing(socket.create_server(("127.0.0.1", 0))) as proxy:
        address = f"https://me:{SECRET}@127.0.0.1:{proxy.getsockname()[1]}"
        config = kubeconfig(tmp_path / "config", api.url, cluster={"proxy-url": address})
        sent: list[bytes] = []

        def listen() -> None:
            peer, _ = proxy.accept()
            with closing(peer):
                sent.append(peer.recv(1 << 16))

        listening = threading.Thread(target=listen)
        listening.start()
        with pytest.raises(ArenaError) as caught:
            podexec.execute(Connection(Options(kubeconfig=config)), "default", "none", ["true"])
        listening.join()
        assert SECRET not in str(caught.value)
        # The first byte of TLS (RFC 8446, section 5.1).
        assert sent[0][:1] == b"\x16"
        assert b"CONNECT" not in sent[0]


def test_a_socks_proxy_without_what_speaks_to_it_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "socks", None)
    with pytest.raises(UsageError, match="SOCKS proxy, and PySocks is missing") as caught:
        Connection(through(tmp_path, "http://x", f"socks5://me:{SECRET}@127.0.0.1:1080"))
    assert caught.value.hint == "install arena-topo with its extra 'socks' (docs/installation.md)"
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    "proxy",
    [
        "ftp://me:{}@h:1",
        "socks4://me:{}@h:1",
        "http://me:{}@[::1",
        "{}",
        "http://",
        "http://me:{}@h:x",
    ],
)
def test_a_proxy_that_cannot_be_used_is_a_usage_error_without_its_password(
    tmp_path: Path, proxy: str, capfd: pytest.CaptureFixture[str]
):
    options = through(tmp_path, "http://127.0.0.1:1", proxy.replace("{}", SECRET))
    code, out, err = run(capfd, "list", "--kubeconfig", str(options.kubeconfig))
    assert (code, out) == (2, "")
    assert "the proxy to the API server has no address that can be used" in err
    assert SECRET not in err


# ---------------------------------------------------------------- plugins without an end


def credential(token: str) -> str:
    version = "client.authentication.k8s.io/v1"
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}})


def plugin(folder: Path, body: str) -> dict[str, Any]:
    script = folder / "plugin"
    script.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    script.chmod(0o700)
    return {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)},
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("time.sleep(60)", "it may wait for input, and there is no terminal to ask on"),
        ("print('open the browser', file=sys.stderr, flush=True); time.sleep(60)", "open the brow"),
    ],
)
def test_a_plugin_that_cannot_ask_anybody_has_the_time_of_a_request(
    tmp_path: Path, body: str, why: str
):
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=plugin(tmp_path, body))
    begun = time.monotonic()
    with pytest.raises(
        TimedOut, match=r"plugin of user 'alice' did not answer in 0\.5 s"
    ) as caught:
        Connection(Options(kubeconfig=config, request_timeout=0.5))
    assert time.monotonic() - begun < 30
    assert (caught.value.why or "").startswith(why)
    assert "--request-timeout" in (caught.value.hint or "")


def test_a_plugin_has_no_more_time_than_the_whole_command(tmp_path: Path):
    user = plugin(tmp_path, "time.sleep(60)")
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
    with pytest.raises(TimedOut, match=r"did not answer in 0\.5 s"):
        Connection(Options(kubeconfig=config, request_timeout=0, deadline=0.5))


def test_a_plugin_that_may_ask_somebody_has_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    body = f"time.sleep(1); print({credential('t')!r})"
    config = kubeconfig(tmp_path / "config", "http://x", user=plugin(tmp_path, body))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    found = connection.access(Options(kubeconfig=config, request_timeout=0.1))
    assert found.headers["authorization"] == "Bearer t"


def test_a_plugin_with_an_odd_token_gives_no_credentials(tmp_path: Path):
    body = f"print({credential(f'{SECRET}{chr(10)}x')!r})"
    config = kubeconfig(tmp_path / "config", "http://x", user=plugin(tmp_path, body))
    with pytest.raises(UsageError, match=f"authorization {NO_HEADER}") as caught:
        connection.access(Options(kubeconfig=config))
    assert SECRET not in f"{caught.value.message}{caught.value.why}"


# ---------------------------------------------------------------- odd kubeconfigs


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


ODDLY = "not a kubeconfig: it {} (line 1)"
ODD = {
    "aliases": ("clusters: &a [*a]", ODDLY.format("has an alias, and aliases are not read")),
    "deep": ("[" * 100_000, ODDLY.format("is nested too deeply")),
    "number": (f"\nusers:\n- {'9' * 5000}", "not a kubeconfig: users[0]: expected a mapping, got "),
    "binary": ("\nusers: 0b_", "not a kubeconfig: users: expected a list, got a text"),
    "cut off": ("\nusers: [", "line 3: not YAML"),
    "context": (
        "current-context: [a]",
        "not a kubeconfig: current-context: expected a text",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_kubeconfig_that_makes_no_sense_is_named_within_a_gigabyte(tmp_path: Path, kind: str):
    text, said = ODD[kind]
    config = tmp_path / "config"
    config.write_text(text)
    line = [sys.executable, "-m", "arena_topo", "list", f"--kubeconfig={config}"]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=60, preexec_fn=limited, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {config}: {said}")


def test_a_name_that_no_file_can_have_names_no_file(tmp_path: Path):
    config = tmp_path / "config"
    name = "a" * 300
    config.write_text(
        "clusters: [{name: c, cluster: {server: 'http://x'}}]\n"
        f"users: [{{name: u, user: {{tokenFile: {name}}}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
    )
    with pytest.raises(UsageError, match=r"tokenFile names .*, which does not exist"):
        files.resolve(Options(kubeconfig=str(config)))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"args": 5}, "args: expected a list, got a whole number"),
        ({"args": [5]}, "args[0]: expected a text, got a whole number"),
        ({"env": 5}, "env: expected a list, got a whole number"),
        ({"env": ["A=b"]}, "env[0]: expected a mapping, got a text"),
        ({"env": [{"name": "A", "value": 5}]}, "env[0].value: expected a text, got a whole number"),
        ({"interactiveMode": []}, "interactiveMode: expected a text, got a list"),
    ],
)
def test_a_plugin_of_which_the_file_says_nonsense_is_a_fault_of_the_file(
    tmp_path: Path, asked: dict[str, Any], said: str
):
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "true", **asked}
    config = kubeconfig(tmp_path / "config", "http://x", user={"exec": plugin})
    with pytest.raises(UsageError) as caught:
        Connection(Options(kubeconfig=config))
    assert caught.value.message == f"{config}: not a kubeconfig: users[0].user.exec.{said}"


@pytest.mark.parametrize("asked", [{"args": ["a\0b"]}, {"env": [{"name": "A=B", "value": "c"}]}])
def test_a_plugin_that_no_process_can_be_cannot_be_started(tmp_path: Path, asked: dict[str, Any]):
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "true", **asked}
    config = kubeconfig(tmp_path / "config", "http://x", user={"exec": plugin})
    with pytest.raises(UsageError, match="cannot be started"):
        Connection(Options(kubeconfig=config))


@pytest.mark.parametrize(
    "provider",
    [
        "oidc",
        {"name": "oidc", "config": 5},
        {"name": "oidc", "config": {"id-token": 5}},
        {"name": "oidc", "config": {"id-token": ["a"]}},
        {"name": "oidc", "config": {"id-token": "a.b"}},
        {"name": "gcp", "config": {"expiry": "x"}},
        {"name": 5},
    ],
)
def test_an_auth_provider_that_makes_no_sense_is_no_mistake_of_ours(tmp_path: Path, provider: Any):
    user = {"auth-provider": provider}
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
    with pytest.raises((UsageError, AccessDenied)):
        Connection(Options(kubeconfig=config))


def test_what_the_kubernetes_package_cannot_read_is_a_fault_of_the_file(tmp_path: Path):
    user = {"auth-provider": {"name": "gcp"}, "another": "x"}
    config = Path(kubeconfig(tmp_path / "config", "http://x", user=user))
    # JSON is YAML, in which libyaml takes a tab where the other reader does not.
    config.write_text(yaml.safe_dump(json.loads(config.read_text())).replace("another", "a\tkey"))
    with pytest.raises(UsageError, match=r"cannot start any token"):
        Connection(Options(kubeconfig=str(config)))


def test_certificates_are_skipped_or_checked_but_not_both_as_with_kubectl(tmp_path: Path):
    both = {"insecure-skip-tls-verify": True, "certificate-authority-data": "eA=="}
    config = kubeconfig(tmp_path / "config", "https://x", cluster=both)
    with pytest.raises(UsageError, match=r"insecure-skip-tls-verify is set beside a certificate"):
        files.resolve(Options(kubeconfig=config))


def test_whether_certificates_are_skipped_is_never_guessed(tmp_path: Path):
    cluster = {"insecure-skip-tls-verify": "true"}
    config = kubeconfig(tmp_path / "config", "https://x", cluster=cluster)
    with pytest.raises(UsageError, match=r"insecure-skip-tls-verify: expected true or false"):
        files.resolve(Options(kubeconfig=config))


# ---------------------------------------------------------------- addresses with a login


@pytest.mark.parametrize("words", [["list"], ["whoami"], ["check"], ["config", "view"]])
@pytest.mark.parametrize(
    ("address", "said"),
    [
        (f"https://admin:{SECRET}@127.0.0.1:1", "127.0.0.1:1"),
        (f"htps://admin:{SECRET}@127.0.0.1:1", "is no http or https address"),
        (f"https://admin:{SECRET}/x@127.0.0.1:1", "is no http or https address"),
        (f"admin:{SECRET}@127.0.0.1:1", "is no http or https address"),
        (f"https://admin:{SECRET}@[::1", "is no http or https address"),
        ("https://[::1", "is no http or https address"),
        ("https://127.0.0.1:99999", "is no http or https address"),
    ],
)
def test_the_password_of_a_servers_address_is_never_shown(
    tmp_path: Path,
    words: list[str],
    address: str,
    said: str,
    capfd: pytest.CaptureFixture[str],
):
    config = kubeconfig(tmp_path / "config", address)
    _, out, err = run(capfd, *words, "--kubeconfig", config, "--loglevel", "debug")
    assert SECRET not in out + err
    assert "Traceback" not in err
    assert said in out + err


def test_who_logs_in_by_the_address_of_a_server_is_sent_as_by_kubectl(api: FakeApi, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", api.url.replace("//", "//bob:p%40w@"))
    answer, _ = Connection(Options(kubeconfig=config)).post(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}
    )
    assert answer["status"]["userInfo"]["username"] == "bob"


# ---------------------------------------------------------------- whom no proxy is asked for


@pytest.mark.parametrize(
    ("listed", "server", "direct"),
    [
        ("10.0.0.0/8,.svc", "https://10.1.2.3:6443", True),
        ("10.0.0.0/8", "https://11.1.2.3:6443", False),
        ("10.1.2.3/8", "https://10.9.9.9", True),
        ("10.1.2.3", "https://10.1.2.3:6443", True),
        ("10.1.2.3:6443", "https://10.1.2.3:6443", True),
        ("10.1.2.3:443", "https://10.1.2.3:6443", False),
        ("10.1.2.3:443", "https://10.1.2.3", True),
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", True),
        ("fd00:0::1", "https://[fd00::1]:6443", True),
        ("*.corp.example", "https://api.corp.example:6443", True),
        ("*.corp.example", "https://corp.example:6443", False),
        (".corp.example", "https://api.corp.example:6443", True),
        (".corp.example", "https://corp.example:6443", False),
        ("corp.example", "https://corp.example", True),
        ("corp.example", "https://API.corp.example", True),
        ("corp.example", "https://notcorp.example", False),
        (" api.corp.example:6443 ", "https://api.corp.example:6443", True),
        ("api.corp.example:443", "https://api.corp.example:6443", False),
        ("a, *", "https://api.corp.example", True),
        (",:80,/8,[", "https://api.corp.example", False),
        ("", "https://127.1.2.3:6443", True),
        ("", "https://[::1]:6443", True),
        ("", "https://localhost", True),
        ("", "https://127.example", False),
    ],
)
def test_no_proxy_means_what_it_means_to_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, server: str, *, direct: bool
):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", listed)
    found = files.resolve(Options(kubeconfig=kubeconfig(tmp_path / "config", server)))
    assert found.proxy == (None if direct else "http://proxy:3128")


# ---------------------------------------------------------------- odd servers

DEEP = b"[" * 200_000


@pytest.fixture
def _nothing_is_collected() -> Iterator[None]:
    """What other tests left is not finalized at the bottom of a recursion, where that fails."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[null,5,{"metadata":null}]}',
        b'{"items":[{}]}',
        b'{"items":[[]]}',
        b'{"items":{"metadata":{}}}',
        b'{"items":5}',
        b'{"items":[],"metadata":5}',
        b'{"items":[{"metadata":{}}]}',
        b'{"items":[{"metadata":{"name":5}}]}',
        DEEP,
        b'{"items":' + DEEP,
        b"5",
        b"\xff",
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["top", "node"],
        ["top", "job"],
        ["topology", "show"],
        ["data", "list"],
        ["nodes", "list"],
        ["prune", "--since", "1s", "--dry-run"],
        ["controller", "--once"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("_nothing_is_collected")
def test_a_list_of_what_is_no_object_is_no_answer_of_an_api_server(
    api: FakeApi,
    tmp_path: Path,
    body: bytes,
    words: list[str],
    capfd: pytest.CaptureFixture[str],
):
    config = kubeconfig(tmp_path / "config", api.url)
    api.fail(r"/(mpijobs|nodes|pods|persistentvolumeclaims)\b", status=200, body=body, times=99)
    code, _, err = run(capfd, *words, "--kubeconfig", config)
    assert code == 1
    assert f"error: {api.url} does not answer like a Kubernetes API server\n" in err


@pytest.mark.usefixtures("_nothing_is_collected")
@pytest.mark.parametrize("status", [200, 400, 404, 500])
def test_json_without_a_bottom_is_no_answer(api: FakeApi, tmp_path: Path, status: int):
    config = kubeconfig(tmp_path / "config", api.url)
    api.fail("version", status=status, body=DEEP, times=9)
    with pytest.raises(ArenaError):
        Connection(Options(kubeconfig=config, request_timeout=1)).get("/version")


def test_who_has_no_socks_proxy_needs_nothing_for_it(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "socks", None)
    config = kubeconfig(tmp_path / "config", api.url)
    with pytest.raises(NotFound):
        podexec.execute(Connection(Options(kubeconfig=config)), "default", "none", ["true"])
