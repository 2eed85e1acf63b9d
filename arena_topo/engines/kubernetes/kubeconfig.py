"""Kubeconfig files -> Access: where an API server is, and how to prove who asks.

Resolved as kubectl does: the file named, else the files of KUBECONFIG merged, else
`~/.kube/config`; the first file to name a thing decides.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from arena_topo.clusters import safe_yaml
from arena_topo.engines import Options
from arena_topo.errors import UsageError

IN_CLUSTER = "the pod's service account"

_NO_HEADER = "has characters that no request can carry"

MOST = 16 << 20
"""Bytes of a kubeconfig: a cluster and a user with their certificates take about 8,000."""

MOST_VALUES = 200_000
"""Values in a kubeconfig: a cluster and a user have some 20."""

PROVIDER = "auth-provider"
"""A credential plugin of the kind that kubectl had until 1.25."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own token, certificate authority and namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where an API server is, and how to prove who asks.

    `login` is `user:password` where the address of the server says who logs in, which `server` does
    not hold. `ca` is PEM text; `certificate` names PEM files of a client's certificate and key, or
    holds them. `groups` are those to act as a member of; whom to act as stands in `headers`.
    `plugin` is set where the credentials have to be asked of somebody: the command of a credential
    plugin, of which `exec` is all that the kubeconfig says, or the pod's service account. `rotates`
    says that the token stands in a file of its own, which others renew. `files` are the kubeconfig,
    as in KUBECONFIG; `cluster` and `identity` are the entries of it that count.
    """

    server: str = ""
    login: str = field(default="", repr=False)
    files: str = ""
    context: str | None = None
    cluster: str | None = None
    namespace: str | None = None
    user: str | None = None
    identity: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    groups: tuple[str, ...] = ()
    ca: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: tuple[str | bytes, str | bytes] | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    plugin: str | None = None
    rotates: bool = False
    exec: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def sent(self) -> tuple[tuple[str, str], ...]:
        """The headers of a request; the one of groups comes once for each."""
        return (*self.headers.items(), *(("impersonate-group", one) for one in self.groups))


def configured(options: Options) -> bool:
    """Whether there is a cluster to talk to: a kubeconfig, or a pod's service account.

    UsageError where KUBECONFIG names files and none of them is there: who names a cluster does not
    mean this machine. One that is there and empty, such as /dev/null, says that there is none.
    """
    if options.kubeconfig or options.context or options.cluster or options.user:
        return True
    if _in_cluster() or any(present(path) for path in _paths(options)):
        return True
    named = os.environ.get("KUBECONFIG", "")
    if named.strip(os.pathsep) and not any(_empty(path) for path in _paths(options)):
        raise UsageError(
            "KUBECONFIG names no file that is there",
            why=f"it is {named}",
            hint="unset it, or --backend local",
        )
    return False


def resolve(options: Options) -> Access:
    """Find the API server: by --kubeconfig, KUBECONFIG, ~/.kube/config, or from within a pod.

    Credentials of a plugin are not asked for yet. UsageError names the file and the key that is
    wrong.
    """
    if options.impersonate_groups and not options.impersonate:
        raise UsageError(
            "--as-group needs --as", hint="say whom to act as: --as NAME", flag="--as-group"
        )
    paths = [path for path in _paths(options) if present(path)]
    named = options.context or options.cluster or options.user
    if not paths:
        if options.kubeconfig:
            raise UsageError(f"{options.kubeconfig}: there is no such kubeconfig")
        if _in_cluster() and not named:
            return _acting(Access(plugin=IN_CLUSTER), options)
        raise UsageError(
            "no Kubernetes cluster is configured",
            why=f"{os.pathsep.join(map(str, _paths(options)))} does not exist",
            hint="give --kubeconfig FILE, or use --backend local",
        )
    config = _Kubeconfig.read(paths)
    name = options.context or config.current
    if not name and not options.cluster:
        if not config.contexts and not named and _in_cluster():
            return _acting(Access(plugin=IN_CLUSTER), options)
        raise UsageError(
            f"{config.where}: current-context is not set",
            why=_there_are(config.contexts),
            hint="give --context NAME",
        )
    return _acting(config.access(name, options), options)


def entries(options: Options) -> dict[str, tuple[str, ...]]:
    """The names of all `contexts`, `clusters` and `users`; UsageError as of `resolve`."""
    paths = [path for path in _paths(options) if present(path)]
    found = _Kubeconfig.read(paths)
    kinds = {"contexts": found.contexts, "clusters": found.clusters, "users": found.users}
    return {kind: tuple(some) for kind, some in kinds.items()}


def read_from(options: Options) -> tuple[tuple[str, bool], ...]:
    """The kubeconfig files that would be looked into, firmest first, and whether each is there."""
    return tuple((str(path), present(path)) for path in _paths(options))


def is_token(text: str) -> bool:
    """Whether a text can be a bearer token (RFC 6750, 2.1, and whatever else is visible ASCII)."""
    return text.isascii() and text.isprintable()


def _is_header(text: str) -> bool:
    """Whether a header can carry a text: one line of Latin-1."""
    return not any(one < " " or one == "\x7f" or one > "\xff" for one in text)


def _acting(found: Access, options: Options) -> Access:
    """The same access, on behalf of whom the options name."""
    if not options.impersonate:
        return found
    said = {"--as": [options.impersonate], "--as-group": options.impersonate_groups}
    for flag, names in said.items():
        if not all(map(_is_header, names)):
            raise UsageError(f"{flag} {_NO_HEADER}", flag=flag)
    return replace(
        found,
        user=options.impersonate,
        headers={**found.headers, "impersonate-user": options.impersonate},
        groups=options.impersonate_groups or found.groups,
    )


def _paths(options: Options) -> list[Path]:
    if options.kubeconfig:
        return [_path(options.kubeconfig)]
    named = os.environ.get("KUBECONFIG", "")
    paths = [_path(part) for part in named.split(os.pathsep) if part]
    return paths or [_path("~/.kube/config")]


def _path(text: str) -> Path:
    """The path with ~ filled in; it stays as it is where the user has no home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises an error there


def present(path: Path) -> bool:
    """Whether a file is there and says something."""
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def _empty(path: Path) -> bool:
    """Whether a file is there and says nothing."""
    try:
        return path.is_char_device() or (path.is_file() and path.stat().st_size == 0)
    except OSError:
        return False


def _in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and present(SERVICE_ACCOUNT / "token")


def _there_are(names: Mapping[str, object]) -> str:
    return "there are: " + ", ".join(sorted(names)) if names else "there are none"


_Value = TypeVar("_Value")
_IS_NONE: Mapping[type, str] = {
    str: "is no text",
    bool: "is neither true nor false",
    dict: "is no mapping",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One cluster, user or context, and the file it stands in, which its paths are relative to."""

    name: str
    value: Mapping[str, Any]
    path: Path
    kind: str

    def fault(self, key: str, problem: str) -> UsageError:
        return UsageError(f"{self.path}: {self.kind}s[{self.name}].{self.kind}.{key} {problem}")

    def _of(self, key: str, kind: type[_Value]) -> _Value | None:
        value = self.value.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, kind):
            raise self.fault(key, _IS_NONE[kind])
        return value

    def text(self, key: str) -> str | None:
        return self._of(key, str)

    def flag(self, key: str) -> bool:
        return bool(self._of(key, bool))

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        return self._of(key, dict)

    def header(self, key: str) -> str | None:
        text = self.text(key)
        if text is not None and not _is_header(text):
            raise self.fault(key, _NO_HEADER)
        return text

    def file(self, key: str) -> str | None:
        name = self.text(key)
        if name is None:
            return None
        path = self.path.parent / _path(name)
        if not os.path.isfile(path):  # noqa: PTH113 - Path raises for a name too long
            raise self.fault(key, f"names {path}, which does not exist")
        return str(path)

    def data(self, key: str) -> bytes | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.fault(key, f"is not base64: {error}") from error


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    """Several files as one: the first to name a thing decides (kubectl's rule)."""

    paths: tuple[Path, ...]
    current: str
    clusters: dict[str, _Entry]
    users: dict[str, _Entry]
    contexts: dict[str, _Entry]

    @classmethod
    def read(cls, paths: list[Path]) -> _Kubeconfig:
        current = ""
        found: dict[str, dict[str, _Entry]] = {"cluster": {}, "user": {}, "context": {}}
        for path in paths:
            document = _load(path)
            named = document.get("current-context")
            if not isinstance(named, str | None):
                raise UsageError(f"{path}: current-context is no text")
            current = current or named or ""
            for kind, entries in found.items():
                for entry in _entries(path, document, kind):
                    entries.setdefault(entry.name, entry)
        return cls(tuple(paths), current, found["cluster"], found["user"], found["context"])

    @property
    def where(self) -> str:
        return os.pathsep.join(map(str, self.paths))

    def access(self, name: str, options: Options) -> Access:
        context = _Entry("", {}, self.paths[0], "context")
        if name:
            context = self._chosen(name, "context", self.contexts)
        cluster = self._part(options.cluster, context, "cluster", self.clusters)
        user = self._part(options.user, context, "user", self.users)
        if cluster is None:
            raise context.fault("cluster", "is missing")
        server = cluster.text("server")
        if server is None:
            raise cluster.fault("server", "is missing")
        try:
            server, login = parted(server)
        except ValueError:
            problem = f"is no http or https address: {shown(server)!r}"
            raise cluster.fault("server", problem) from None
        server = server.rstrip("/")
        found = Access(
            server=server,
            login=login,
            files=self.where,
            context=name or None,
            cluster=cluster.name,
            namespace=context.text("namespace"),
            user=user.name if user else None,
            identity=user.name if user else None,
            server_name=cluster.text("tls-server-name"),
            verify=not cluster.flag("insecure-skip-tls-verify"),
        )
        ca = cluster.data("certificate-authority-data")
        found = replace(
            found,
            ca=ca.decode("latin-1") if ca else None,
            ca_file=None if ca else cluster.file("certificate-authority"),
            proxy=cluster.text("proxy-url") or proxy_of_environment(server),
        )
        if not found.verify and (found.ca or found.ca_file):
            raise cluster.fault(
                "insecure-skip-tls-verify", "is set beside a certificate-authority (kubectl's rule)"
            )
        if user is not None:
            found = _identified(found, user)
        if login and "authorization" not in found.headers:
            # Go's http.Client sends what an address says of who logs in.
            found = replace(found, headers={**found.headers, "authorization": basic(login)})
        return found

    def _chosen(self, name: str, kind: str, entries: dict[str, _Entry]) -> _Entry:
        if name in entries:
            return entries[name]
        import difflib  # noqa: PLC0415  only for the hint

        close = difflib.get_close_matches(name, entries, n=1)
        raise UsageError(
            f"{self.where}: there is no {kind} {name!r}",
            why=_there_are(entries),
            hint=f"did you mean --{kind} {close[0]}?" if close else None,
            flag=f"--{kind}",
        )

    def _part(
        self, said: str | None, context: _Entry, kind: str, entries: dict[str, _Entry]
    ) -> _Entry | None:
        """The entry that is asked for, else that of the context, if it names any."""
        if said:
            return self._chosen(said, kind, entries)
        name = context.text(kind)
        if name is not None and name not in entries:
            raise context.fault(kind, f"names {name!r}; {_there_are(entries)}")
        return None if name is None else entries[name]


def _load(path: Path) -> Mapping[str, Any]:
    import yaml  # 30 ms that most commands save

    try:
        with path.open("rb") as file:
            text = file.read(MOST + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if len(text) > MOST:
        raise UsageError(f"{path}: not a kubeconfig: it has more than {MOST >> 20} MiB")
    try:
        document = safe_yaml.document(text, most=MOST_VALUES)
    except safe_yaml.Excess as error:
        raise UsageError(f"{path}: not a kubeconfig: it {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UsageError(
            f"{path}:{line} not YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: not a kubeconfig")
    return document


def _entries(path: Path, document: Mapping[str, Any], kind: str) -> Iterator[_Entry]:
    listed = document.get(f"{kind}s")
    if listed is None:
        return
    if not isinstance(listed, list):
        raise UsageError(f"{path}: {kind}s is no list")
    for index, one in enumerate(listed):
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise UsageError(f"{path}: {kind}s[{index}].name is missing")
        value = one.get(kind)
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"{path}: {kind}s[{index}].{kind} is no mapping")
        yield _Entry(one["name"], value or {}, path, kind)


def _identified(found: Access, user: _Entry) -> Access:
    """Add a user's token, password, certificate and impersonation, or who has to be asked."""
    name = user.header("as")
    headers = {"impersonate-user": name} if name else {}
    if name and (uid := user.header("as-uid")):
        headers["impersonate-uid"] = uid
    groups = user.value.get("as-groups") or []
    if not isinstance(groups, list) or not all(isinstance(one, str) for one in groups):
        raise user.fault("as-groups", "is no list of texts")
    if not all(map(_is_header, groups)):
        raise user.fault("as-groups", _NO_HEADER)
    found = replace(found, headers=headers, groups=tuple(groups), user=name or user.name)
    if asked := user.mapping("exec"):
        return replace(found, plugin=_command(user, asked), exec=asked)
    if provider := user.mapping(PROVIDER):
        settings = provider.get("config") or {}
        if not isinstance(settings, dict) or not all(
            isinstance(one, str) for one in settings.values()
        ):
            raise user.fault(f"{PROVIDER}.config", "is no mapping of texts")
        return replace(found, plugin=PROVIDER)
    token, rotates = _token(user)
    found = replace(found, rotates=rotates)
    if token:
        headers["authorization"] = f"Bearer {token}"
    elif login := user.text("username"):
        headers["authorization"] = basic(f"{login}:{user.text('password') or ''}")
        found = replace(found, user=name or login)
    certificate = user.data("client-certificate-data") or user.file("client-certificate")
    private = user.data("client-key-data") or user.file("client-key")
    if bool(certificate) != bool(private):
        missing = "client-key" if certificate else "client-certificate"
        raise user.fault(missing, "is missing beside its other half")
    if certificate and private:
        found = replace(found, certificate=(certificate, private))
    return replace(found, headers=headers)


def _token(user: _Entry) -> tuple[str, bool]:
    """A user's token, or nothing, and whether it stands in a file of its own."""
    key, token = "token", user.text("token") or ""
    if token_file := user.file("tokenFile"):
        # It is rotated in place, so it is newer than a token written beside it.
        key = "tokenFile"
        try:
            token = Path(token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise user.fault(key, f"names {token_file}, which cannot be read") from error
    token = token.strip()
    if not is_token(token):
        raise user.fault(key, "has characters that no token has")
    return token, key == "tokenFile"


def _command(user: _Entry, asked: Mapping[str, Any]) -> str:
    """The command of a plugin; one with a slash is relative to the kubeconfig (kubectl's rule)."""
    command = asked.get("command")
    if not isinstance(command, str) or not command:
        raise user.fault("exec.command", "is missing")
    return str(user.path.parent.absolute() / _path(command)) if os.sep in command else command


def basic(login: str) -> str:
    """The header by which `user:password` logs in."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def parted(address: str) -> tuple[str, str]:
    """An http or https address without who logs in there, and `user:password` or nothing.

    ValueError, which holds no password, for what is no such address.
    """
    split = urlsplit(address)
    odd = split.scheme not in {"http", "https"} or not split.hostname or split.port == 0
    # A password with a bare slash or question mark would be taken for the name of the host.
    if odd or ("@" in address and "@" not in split.netloc):
        raise ValueError("no http or https address")
    login, _, host = split.netloc.rpartition("@")
    user, _, password = login.partition(":")
    bare = split._replace(netloc=host, query="", fragment="").geturl()
    return bare, f"{unquote(user)}:{unquote(password)}" if login else ""


def shown(address: str) -> str:
    """As much of any address, odd ones included, as a person may see: no login and no query."""
    scheme = re.match(r"[a-z][a-z0-9+.-]*://", address, re.IGNORECASE)
    rest = re.split(r"[?#]", address[scheme.end() if scheme else 0 :].rpartition("@")[2])[0]
    return f"{scheme[0] if scheme else ''}{rest}"


def proxy_of_environment(server: str) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY give an http or https address, by Go's rules."""
    scheme, _, _ = server.partition("://")
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    if not any(os.environ.get(name) for name in names):
        return None
    from urllib.request import getproxies_environment  # noqa: PLC0415

    split = urlsplit(server)
    port = split.port or (443 if scheme == "https" else 80)
    if _reached_directly(split.hostname or "", port):
        return None
    proxies = getproxies_environment()
    return proxies.get(scheme) or proxies.get("all")


def _reached_directly(host: str, port: int) -> bool:
    """Whether a host is this machine or in NO_PROXY (golang.org/x/net/http/httpproxy, v0.30)."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    listed = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    return any(_names(entry.strip(), host, port) for entry in listed.lower().split(","))


def _names(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY is, or holds, a host: `10.0.0.0/8`, `x.org`, `*.x.org:80`."""
    address = _address(host)
    with contextlib.suppress(ValueError):
        network = ip_network(entry, strict=False)
        return address is not None and address in network
    split = re.fullmatch(r"\[?([^\[\]]+?)\]?(?::(\d*))?", entry)
    if split is None or split[2] not in {None, "", str(port)}:
        return False
    if (named := _address(split[1])) is not None:
        return address == named
    domain = split[1].removeprefix("*")
    return host == domain or host.endswith(f".{domain.removeprefix('.')}") or not domain


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
