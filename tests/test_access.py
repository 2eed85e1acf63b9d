"""Who asks, through what, and how that is said: identities, plugins, pods and proxies."""

from __future__ import annotations

import base64
import json
import os
import pwd
import select
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.kubernetes import connection as connections
from arena_topo.engines.kubernetes import kubeconfig as files
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.kubeconfig import configured
from arena_topo.errors import AccessDenied, TimedOut, UsageError

TLS = Path(__file__).parent / "tls"

CLUSTER = {"certificate-authority": str(TLS / "ca.pem")}


def whoami(options: Options) -> str:
    """The name that a server knows the caller by."""
    connection = Connection(options)
    answer, _ = connection.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    connection.close()
    return answer["status"]["userInfo"]["username"]


def several(path: Path, *servers: str) -> str:
    """A kubeconfig with contexts, clusters and users `a`, `b`, ...; no context is current."""
    names = "abcdef"[: len(servers)]
    document = {
        "clusters": [
            {"name": f"cluster-{name}", "cluster": {"server": server}}
            for name, server in zip(names, servers, strict=True)
        ],
        "users": [{"name": f"user-{name}", "user": {"token": f"token-{name}"}} for name in names],
        "contexts": [
            {
                "name": name,
                "context": {
                    "cluster": f"cluster-{name}",
                    "user": f"user-{name}",
                    "namespace": f"space-{name}",
                },
            }
            for name in names
        ],
    }
    path.write_text(json.dumps(document))
    return str(path)


# ---------------------------------------------------------------- entries of the kubeconfig


def test_a_cluster_and_a_user_stand_in_for_those_of_the_context(tmp_path: Path):
    config = several(tmp_path / "config", "http://a", "http://b")
    found = files.resolve(Options(kubeconfig=config, context="a", cluster="cluster-b"))
    assert (found.server, found.identity, found.namespace) == ("http://b", "user-a", "space-a")
    found = files.resolve(Options(kubeconfig=config, context="a", user="user-b"))
    assert (found.server, found.headers["authorization"]) == ("http://a", "Bearer token-b")
    # kubectl needs no context either where the cluster is named.
    found = files.resolve(Options(kubeconfig=config, cluster="cluster-a", user="user-b"))
    assert (found.server, found.context, found.namespace) == ("http://a", None, None)


@pytest.mark.parametrize("kind", ["context", "cluster", "user"])
def test_an_entry_that_is_not_there_gets_a_suggestion(kind: str, tmp_path: Path):
    config = several(tmp_path / "config", "http://a")
    known = "a" if kind == "context" else f"{kind}-a"
    named: dict[str, str] = {"context": "a", kind: f"{known}x"}
    with pytest.raises(UsageError) as caught:
        files.resolve(Options(kubeconfig=config, **named))
    assert caught.value.message == f"{config}: there is no {kind} '{known}x'"
    assert caught.value.why == f"there are: {known}"
    assert (caught.value.hint or "") in {"", f"did you mean {known}?"}
    assert caught.value.hint or kind == "context"


def test_the_flags_reach_the_kubeconfig_and_errors_name_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", several(tmp_path / "config", "http://a", "http://b"))
    words = ("config", "view", "--context=a", "--cluster=cluster-b", "--user=user-b")
    assert cli.run([*words, "--as=carol", "--as-group=ops", "-o", "json"]) == 0
    reached = json.loads(capfd.readouterr().out)["cluster"]
    assert (reached["server"], reached["user"]) == ("http://b", "user-b")
    assert (reached["as"], reached["asGroups"]) == ("carol", ["ops"])
    assert cli.run(["list", "--context=a", "--as-group=ops"]) == 2
    assert capfd.readouterr().err == ("error: --as-group needs --as\n  try:  set --as NAME\n")


def test_a_kubeconfig_named_on_the_line_is_not_merged_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBECONFIG", several(tmp_path / "other", "http://a"))
    config = kubeconfig(tmp_path / "named", "http://named")
    with pytest.raises(UsageError, match="there is no context 'a'"):
        files.resolve(Options(kubeconfig=config, context="a"))


@pytest.mark.parametrize("named", ["{0}/gone", "{0}/gone:{0}/gone-too", "{0}", "{0}/pipe"])
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("get", "x"),
        ("wait", "x", "--for=deleted"),
        ("prune", "--yes", "--since=1s"),
        ("delete", "x"),
        ("whoami",),
        ("top", "node"),
        ("submit", "mpi", "--name=x", "--image=local", "--dry-run", "true"),
    ],
    ids=" ".join,
)
def test_who_names_a_kubeconfig_that_is_not_there_does_not_mean_this_machine(
    named: str,
    words: tuple[str, ...],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    os.mkfifo(tmp_path / "pipe")
    said = named.format(tmp_path)
    monkeypatch.setenv("KUBECONFIG", said)
    assert cli.run(words) == 2
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == (
        "",
        (
            f"error: KUBECONFIG names no file that exists\n  why:  it is {said}\n"
            "  try:  unset it, or --backend local\n"
        ),
    )
    assert cli.run(["list", "--backend=local"]) == 0


@pytest.mark.parametrize("named", ["/dev/null", "{0}/empty", "{0}/gone:{0}/empty", "", ":"])
def test_a_kubeconfig_that_is_there_and_empty_means_no_cluster(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "empty").touch()
    monkeypatch.setenv("KUBECONFIG", named.format(tmp_path))
    assert files.configured(Options()) is False


def test_who_has_no_home_folder_has_no_kubeconfig_there(monkeypatch: pytest.MonkeyPatch):
    def nobody(_uid: int) -> Any:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert not configured(Options())
    with pytest.raises(UsageError, match="no Kubernetes cluster is configured"):
        files.resolve(Options())


@pytest.mark.parametrize("key", ["tokenFile", "client-key", "certificate-authority"])
def test_files_that_cannot_be_read_are_named(
    key: str, https: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    secret = tmp_path / "secret"
    secret.write_bytes(b"\xff\xfe")
    user: dict[str, Any] = {key: str(secret)}
    if key == "client-key":
        user["client-certificate"] = str(TLS / "alice.pem")
    if key != "tokenFile":
        # The tests may run as root, who may read everything.
        def refused(*_args: Any, **_more: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        target = (ssl, "create_default_context") if "authority" in key else None
        if target:
            monkeypatch.setattr(*target, refused)
        else:
            monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refused)
    cluster = {key: str(secret)} if "authority" in key else {}
    config = kubeconfig(
        tmp_path / "config",
        https.url,
        user={} if "authority" in key else user,
        cluster={**CLUSTER, **cluster},
    )
    with pytest.raises(UsageError, match="cannot be read"):
        Connection(Options(kubeconfig=config))


def test_a_key_that_is_in_a_file_is_copied_nowhere(
    https: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not-there"))
    user = {
        "client-certificate": str(TLS / "alice.pem"),
        "client-key": str(TLS / "alice.key"),
    }
    config = kubeconfig(tmp_path / "config", https.url, user=user, cluster=CLUSTER)
    assert whoami(Options(kubeconfig=config)) == "alice"


# ---------------------------------------------------------------- acting as somebody else


class Listener:
    """A server that answers each request with an empty object, and keeps its raw head."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                with peer, peer.makefile("rb") as file:
                    lines = iter(lambda: file.readline().decode().strip(), "")
                    self.heads.append("\n".join(lines))
                    peer.sendall(
                        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
                    )

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def said(self, header: str) -> list[str]:
        """All values of a header of the last request."""
        pairs = (line.partition(": ") for line in self.heads[-1].splitlines()[1:])
        return [value for name, _, value in pairs if name.lower() == header]


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener()
    yield one
    one.close()


def test_groups_are_sent_one_header_each(listener: Listener, tmp_path: Path):
    config = kubeconfig(tmp_path / "config", listener.url)
    options = Options(
        kubeconfig=config, impersonate="bob", impersonate_groups=("devs", "system:masters")
    )
    Connection(options).get("/version")
    assert listener.said("impersonate-user") == ["bob"]
    assert listener.said("impersonate-group") == ["devs", "system:masters"]


def test_the_kubeconfig_may_say_whom_to_act_as_and_flags_win(listener: Listener, tmp_path: Path):
    user = {"as": "bob", "as-uid": "42", "as-groups": ["devs", "ops"]}
    config = kubeconfig(tmp_path / "config", listener.url, user=user)
    Connection(Options(kubeconfig=config)).get("/version")
    assert listener.said("impersonate-user") == ["bob"]
    assert listener.said("impersonate-uid") == ["42"]
    assert listener.said("impersonate-group") == ["devs", "ops"]
    Connection(Options(kubeconfig=config, impersonate="carol", impersonate_groups=("qa",))).get(
        "/version"
    )
    assert listener.said("impersonate-user") == ["carol"]
    assert listener.said("impersonate-group") == ["qa"]


def test_groups_that_are_no_list_are_a_fault_of_the_file(tmp_path: Path):
    config = kubeconfig(tmp_path / "config", "http://x", user={"as": "bob", "as-groups": "devs"})
    with pytest.raises(UsageError, match=r"users\[0\]\.user\.as-groups: expected a list"):
        files.resolve(Options(kubeconfig=config))


# ---------------------------------------------------------------- credential plugins


def plugin(folder: Path, body: str, **more: Any) -> dict[str, Any]:
    """A user whose credentials a script gives; `answer` prints them."""
    script = folder / "give-token"
    script.write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent(
            """
            import json, os, subprocess, sys, time
            V1 = "client.authentication.k8s.io/v1"
            def answer(kind="ExecCredential", version=V1, **status):
                print(json.dumps({"apiVersion": version, "kind": kind, "status": status}))
            """
        )
        + textwrap.dedent(body)
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(script), **more}}


def test_a_plugin_gets_what_the_kubeconfig_says_and_what_kubectl_tells(
    https: FakeApi, tmp_path: Path
):
    https.tokens["t"] = "eve"
    user = plugin(
        tmp_path,
        """
        info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
        with open(sys.argv[1], "w") as file:
            json.dump([os.environ["ZONE"], info], file)
        answer(token="t")
        """,
        args=[str(tmp_path / "told")],
        env=[{"name": "ZONE", "value": "eu"}],
        provideClusterInfo=True,
    )
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    other = {"name": "other", "extension": 5}
    cluster = {**CLUSTER, "extensions": [other, extension]}
    config = kubeconfig(tmp_path / "config", https.url, user=user, cluster=cluster)
    assert whoami(Options(kubeconfig=config)) == "eve"
    zone, info = json.loads((tmp_path / "told").read_text())
    assert zone == "eu"
    assert info == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": https.url,
                "certificate-authority-data": base64.b64encode(
                    (TLS / "ca.pem").read_bytes()
                ).decode(),
                "config": {"audience": "a"},
            },
        },
    }


def test_a_plugin_may_give_a_certificate(https: FakeApi, tmp_path: Path):
    certificate, key = ((TLS / f"alice.{one}").read_text() for one in ("pem", "key"))
    user = plugin(tmp_path, f"answer(clientCertificateData={certificate!r}, clientKeyData={key!r})")
    config = kubeconfig(tmp_path / "config", https.url, user=user, cluster=CLUSTER)
    assert whoami(Options(kubeconfig=config)) == "alice"


def test_a_plugin_is_found_beside_the_kubeconfig_or_in_the_path(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    api.tokens["t"] = "eve"
    user = plugin(tmp_path, 'answer(token="t")')
    for command in ("./give-token", "give-token"):
        user["exec"]["command"] = command
        config = kubeconfig(tmp_path / "config", api.url, user=user)
        if command == "give-token":
            monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        assert whoami(Options(kubeconfig=config)) == "eve"


def test_a_plugin_speaks_for_the_user_that_is_named(api: FakeApi, tmp_path: Path):
    api.tokens["t"] = "eve"
    path = tmp_path / "config"
    document = json.loads(Path(kubeconfig(path, api.url, user={"token": "other"})).read_text())
    document["users"].append({"name": "cloud", "user": plugin(tmp_path, 'answer(token="t")')})
    path.write_text(json.dumps(document))
    assert whoami(Options(kubeconfig=str(path), user="cloud")) == "eve"


@pytest.mark.parametrize(
    ("body", "more", "kind", "said", "why"),
    [
        ("sys.exit('no ticket')", {}, AccessDenied, "gave no credentials", "no ticket"),
        ("sys.exit(3)", {}, AccessDenied, "gave no credentials", "it ended with code 3"),
        ("print('hello')", {}, AccessDenied, "gave no credentials", "it printed no ExecCredential"),
        ("print('[]')", {}, AccessDenied, "gave no credentials", "it printed no ExecCredential"),
        (
            "answer()",
            {},
            AccessDenied,
            "gave no credentials",
            "its ExecCredential has no token and no certificate",
        ),
        (
            "answer(token={'a': 1})",
            {},
            AccessDenied,
            "gave no credentials",
            "it printed no ExecCredential: status.token: expected a text, got a mapping",
        ),
        *(
            (
                f"answer(token='t', {odd})",
                {},
                AccessDenied,
                "gave no credentials",
                "it printed no ExecCredential of client.authentication.k8s.io/v1",
            )
            for odd in (
                "kind='Pod'",
                "version='client.authentication.k8s.io/v1beta1'",
                "version=''",
            )
        ),
        (
            "answer(token='t', clientCertificateData='c')",
            {},
            AccessDenied,
            "gave no credentials",
            "its ExecCredential has only one of certificate and key",
        ),
        *(
            (
                f"while True: sys.{stream}.write('x' * 65536)",
                {},
                AccessDenied,
                "gave no credentials",
                "it printed more than 4 MiB",
            )
            for stream in ("stdout", "stderr")
        ),
        (
            "answer(token='t')",
            {"interactiveMode": "Always"},
            AccessDenied,
            "gave no credentials",
            "it wants to ask you something, and there is no terminal",
        ),
    ],
)
def test_a_plugin_that_gives_nothing_says_why(
    tmp_path: Path, *, body: str, more: dict[str, Any], kind: type[Exception], said: str, why: str
):
    user = plugin(tmp_path, body, **more)
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
    with pytest.raises(kind) as caught:
        Connection(Options(kubeconfig=config))
    assert str(caught.value) == f"the credential plugin of user 'alice' {said}"
    assert caught.value.why == why


def test_a_plugin_that_is_not_installed_says_how_to_install_it(tmp_path: Path):
    user = plugin(tmp_path, "", installHint="get it\nwith: cloud install auth")
    user["exec"]["command"] = "no-such-plugin"
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
    with pytest.raises(UsageError, match="cannot be started") as caught:
        Connection(Options(kubeconfig=config))
    assert caught.value.why == "no-such-plugin: No such file or directory"
    assert caught.value.hint == "get it with: cloud install auth"


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"command": ""}, "command is missing"),
        ({"apiVersion": ""}, "apiVersion is missing"),
        (
            {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
            "apiVersion is not client.authentication.k8s.io/v1 or its v1beta1",
        ),
        (
            {"interactiveMode": "Bogus"},
            "interactiveMode is not one of Never, IfAvailable, Always",
        ),
    ],
)
def test_a_plugin_that_kubectl_refuses_is_a_fault_of_the_file(
    tmp_path: Path, odd: dict[str, str], said: str
):
    user = plugin(tmp_path, "answer(token='t')", **odd)
    config = kubeconfig(tmp_path / "config", "http://x", user=user)
    with pytest.raises(UsageError) as caught:
        files.resolve(Options(kubeconfig=config))
    assert caught.value.message == f"{config}: users[alice].user.exec.{said}"


def test_a_plugin_whose_time_is_over_leaves_no_process(tmp_path: Path):
    child = tmp_path / "child"
    user = plugin(
        tmp_path,
        f"""
        child = subprocess.Popen(["sleep", "100"])
        with open({str(child)!r}, "w") as file:
            file.write(str(child.pid))
        time.sleep(100)
        """,
    )
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
    limit = 0.5
    while not child.exists():  # on a busy machine the plugin takes longer to start
        with pytest.raises(TimedOut):
            Connection(Options(kubeconfig=config, request_timeout=limit))
        limit *= 2
    status = Path(f"/proc/{child.read_text()}/stat")
    while status.exists() and ") Z " not in status.read_text():
        time.sleep(0.02)


@pytest.mark.parametrize(("tail", "loads"), [("", False), (" # a note", True)])
def test_only_a_kubeconfig_that_is_not_json_needs_a_reader_of_yaml(
    tmp_path: Path, tail: str, *, loads: bool
):
    config = kubeconfig(tmp_path / "config", "http://x")
    text = Path(config).read_text()
    assert text.startswith("{")
    Path(config).write_text(text + tail)
    code = f"""if True:
        import sys
        from arena_topo.engines import Options
        from arena_topo.engines.kubernetes.connection import Connection
        print(Connection(Options(kubeconfig={config!r})).access.server, "yaml" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"http://x {loads}\n"


def test_a_plugin_needs_no_kubernetes_package(api: FakeApi, tmp_path: Path):
    api.tokens["t"] = "eve"
    config = kubeconfig(tmp_path / "config", api.url, user=plugin(tmp_path, 'answer(token="t")'))
    code = f"""if True:
        import sys
        from arena_topo.engines import Options
        from arena_topo.engines.kubernetes.connection import Connection
        Connection(Options(kubeconfig={config!r})).get("/version")
        print("kubernetes" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def jwt(**claims: Any) -> str:
    parts = ({"alg": "none"}, claims)
    coded = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in parts)
    return ".".join(one.rstrip("=") for one in (*coded, "c2ln"))


def test_an_auth_provider_is_asked_through_the_kubernetes_package(api: FakeApi, tmp_path: Path):
    token = jwt(exp=4102444800, sub="frank")
    api.tokens[token] = "frank"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    config = kubeconfig(tmp_path / "config", api.url, user=user)
    assert whoami(Options(kubeconfig=config)) == "frank"
    with pytest.raises(UsageError, match="auth-provider, which --cluster and --user cannot have"):
        whoami(Options(kubeconfig=config, user="alice"))


# ---------------------------------------------------------------- tokens that run out


def test_a_token_file_is_read_again_once_its_token_has_run_out(api: FakeApi, tmp_path: Path):
    api.tokens = {"old": "bob"}
    token = tmp_path / "token"
    token.write_text("old")
    config = kubeconfig(tmp_path / "config", api.url, user={"tokenFile": str(token)})
    connection = Connection(Options(kubeconfig=config))
    connection.get("/version")
    api.tokens = {"new": "bob"}
    token.write_text("new")
    connection.get("/version")
    api.tokens = {"newer": "bob"}
    with pytest.raises(AccessDenied):
        connection.get("/version")


def test_who_is_not_known_to_the_server_ends_with_4_and_words(
    api: FakeApi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    api.tokens["fresh"] = "bob"
    config = kubeconfig(tmp_path / "config", api.url, user={"token": "expired"})
    assert cli.run(["list", "--kubeconfig", config]) == 4
    assert capfd.readouterr().err == (
        "error: the API server does not know who is asking\n"
        "  why:  Unauthorized\n"
        "  try:  log in again, or name another --context\n"
    )


# ---------------------------------------------------------------- in a pod


@pytest.fixture
def pod(https: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a pod finds its service account in."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("of-the-pod\n")
    (folder / "namespace").write_text("team-a\n")
    (folder / "ca.crt").write_text((TLS / "ca.pem").read_text())
    https.tokens = {"of-the-pod": "system:serviceaccount:team-a:default"}
    host, port = https.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(files, "SERVICE_ACCOUNT", folder)
    return folder


def test_a_pod_asks_as_its_service_account_in_its_own_namespace(pod: Path):
    del pod
    assert configured(Options())
    assert whoami(Options()) == "system:serviceaccount:team-a:default"
    assert Connection(Options()).access.namespace == "team-a"


def test_a_pods_token_is_read_again_once_it_has_run_out(pod: Path, https: FakeApi):
    connection = Connection(Options())
    connection.get("/version")
    https.tokens = {"renewed": "bob"}
    (pod / "token").write_text("renewed")
    connection.get("/version")


def test_a_pod_may_act_as_somebody_else(pod: Path, https: FakeApi):
    del pod
    account = "system:serviceaccount:team-a:default"
    https.allowed = lambda user, *_asked: user == account
    assert whoami(Options(impersonate="dave")) == "dave"


def test_a_kubeconfig_wins_over_the_pod_and_a_context_needs_one(
    pod: Path, api: FakeApi, tmp_path: Path
):
    del pod
    with pytest.raises(UsageError, match="no Kubernetes cluster is configured"):
        Connection(Options(context="test"))
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "carol"})
    assert whoami(Options(kubeconfig=config, context="test")) == "carol"


def test_an_address_of_version_6_is_written_in_brackets(pod: Path, monkeypatch: pytest.MonkeyPatch):
    del pod
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert connections.access(Options()).server == "https://[fd00::1]:443"


# ---------------------------------------------------------------- proxies


class Proxy:
    """An HTTP proxy that leads every connection to one server, whatever host was asked for.

    With `tls` one speaks TLS to it.
    """

    def __init__(self, server: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        host, port = server.partition("://")[2].split(":")
        self.asked: list[str] = []
        self.logins: list[str] = []
        self._relays: list[threading.Thread] = []
        self._target = (host, int(port))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                self._relays.append(threading.Thread(target=self._relay, args=(peer,)))
                self._relays[-1].start()

    def _relay(self, peer: socket.socket) -> None:
        if self._tls is not None:
            peer = self._tls.wrap_socket(peer, server_side=True)
        head = b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(1 << 16)
        first, *lines = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        self.asked.append(first)
        self.logins += (line for line in lines if line.lower().startswith("proxy-authorization"))
        server = socket.create_connection(self._target)
        if first.startswith("CONNECT "):
            # Interim answers may come first (RFC 9110, 15.2).
            peer.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
            peer.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            method, url, version = first.split(" ")
            path = "/" + url.partition("://")[2].partition("/")[2]
            server.sendall(f"{method} {path} {version}\r\n".encode() + head.partition(b"\r\n")[2])
        if isinstance(peer, ssl.SSLSocket):
            self._take_turns(peer, server)
        else:
            back = threading.Thread(target=self._pump, args=(server, peer), daemon=True)
            back.start()
            self._pump(peer, server)
            back.join()
        peer.close()
        server.close()

    @staticmethod
    def _take_turns(peer: ssl.SSLSocket, server: socket.socket) -> None:
        """As two threads would; but one connection of TLS is not for two threads."""
        with suppress(OSError):
            while True:
                ready = [peer] if peer.pending() else select.select([peer, server], [], [])[0]
                for one in ready:
                    if not (data := one.recv(1 << 16)):
                        return
                    (server if one is peer else peer).sendall(data)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Stop; every connection has been let go of by then."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for one in self._relays:
            one.join()


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Proxy]]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    opened: list[Proxy] = []

    def start(server: str) -> Proxy:
        opened.append(Proxy(server))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_proxy_of_the_kubeconfig_is_used_with_its_login(
    https: FakeApi, tmp_path: Path, proxied: Any
):
    proxy = proxied(https.url)
    cluster = {**CLUSTER, "proxy-url": f"http://me:p%40w@127.0.0.1:{proxy.port}"}
    config = kubeconfig(tmp_path / "config", https.url, cluster=cluster)
    assert whoami(Options(kubeconfig=config)) == "system:anonymous"
    host = https.url.removeprefix("https://")
    assert [one.rpartition(" ")[0] for one in proxy.asked] == [f"CONNECT {host}"]
    login = base64.b64encode(b"me:p@w").decode()
    assert [one.partition(": ")[2] for one in proxy.logins] == [f"Basic {login}"]


def test_proxies_of_the_environment_carry_both_kinds_of_servers(
    https: FakeApi, api: FakeApi, tmp_path: Path, proxied: Any, monkeypatch: pytest.MonkeyPatch
):
    for server, variable in ((https, "HTTPS_PROXY"), (api, "HTTP_PROXY")):
        proxy = proxied(server.url)
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        scheme = server.url.partition("://")[0]
        cluster = CLUSTER if scheme == "https" else {}
        config = kubeconfig(
            tmp_path / "config", f"{scheme}://kubernetes.test:6443", cluster=cluster
        )
        assert whoami(Options(kubeconfig=config)) == "system:anonymous"
        assert "kubernetes.test:6443" in proxy.asked[0]


def test_who_is_in_no_proxy_is_asked_directly(
    https: FakeApi, tmp_path: Path, proxied: Any, monkeypatch: pytest.MonkeyPatch
):
    proxy = proxied(https.url)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", "kubernetes.test")
    config = kubeconfig(tmp_path / "config", "https://kubernetes.test:1", cluster=CLUSTER)
    assert files.resolve(Options(kubeconfig=config)).proxy is None
    monkeypatch.setenv("NO_PROXY", "other.test")
    assert files.resolve(Options(kubeconfig=config)).proxy == f"http://127.0.0.1:{proxy.port}"
