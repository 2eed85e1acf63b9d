"""Kubeconfig files -> Access: the address of an API server, and the credentials.

Resolved as in kubectl: the given file, else the merged files of KUBECONFIG, else `~/.kube/config`,
else a pod's service account; of two entries with one name the first counts. Tokens, passwords,
certificates and credential plugins (KEP-541) are read here; users with an auth-provider go through
the `kubernetes` package, whose import takes a third of a second.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec.structs import replace

from arena_topo.clusters import safe_yaml
from arena_topo.clusters.objects import fields_of, invalid_object_text
from arena_topo.engines import Options
from arena_topo.errors import AccessDenied, TimedOut, UsageError, near
from arena_topo.escaping import brief

IN_CLUSTER = "the pod's service account"

MOST_VALUES = 200_000
"""The limit of values in a kubeconfig: a cluster and a user have some 20."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder of a pod's own token, certificate authority and namespace."""


class _Extension(msgspec.Struct, frozen=True):
    name: str = ""
    extension: Any = None


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[_Extension] = []

    @property
    def secure(self) -> bool:
        """Whether https is the scheme of a server without one.

        The rule is client-go's (v0.30, rest/url_utils.go: defaultServerUrlFor).
        """
        authority = self.certificate_authority or self.certificate_authority_data
        return bool(authority) or self.insecure_skip_tls_verify


class _Variable(msgspec.Struct, frozen=True):
    name: str = ""
    value: str = ""


class _Plugin(msgspec.Struct, frozen=True, rename="camel"):
    """A command that returns credentials (KEP-541)."""

    command: str = ""
    api_version: str = ""
    args: list[str] = []
    env: list[_Variable] = []
    interactive_mode: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    acts_as: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}
    auth_provider: dict[str, Any] = {}
    exec: _Plugin = _Plugin()

    @property
    def secure(self) -> bool:
        """As of a cluster."""
        certificate = self.client_certificate or self.client_certificate_data
        return bool(certificate or self.client_key or self.client_key_data)


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Named(msgspec.Struct, frozen=True):
    """An entry of `clusters`, `users` or `contexts`, which has one of the three."""

    name: str | None = None
    cluster: _Cluster = _Cluster()
    user: _User = _User()
    context: _Context = _Context()


class _Config(msgspec.Struct, frozen=True, rename="kebab"):
    """The parts of a kubeconfig that are read."""

    current_context: str = ""
    clusters: list[_Named] = []
    users: list[_Named] = []
    contexts: list[_Named] = []


class _CredentialStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """What a credential plugin prints."""

    status: _CredentialStatus = _CredentialStatus()
    api_version: str = ""
    kind: str = ""


_EXEC_API = "client.authentication.k8s.io"
_EXEC_VERSIONS = (f"{_EXEC_API}/v1", f"{_EXEC_API}/v1beta1")
_EXEC_MODES = ("Never", "IfAvailable", "Always")

_PRINTED = 4 << 20
"""The limit of bytes that a credential plugin prints on each stream: a token and a certificate have
some 10 KB."""

_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that no header can have."""

_Value = TypeVar("_Value", _Cluster, _User, _Context)


class _Entry(msgspec.Struct, Generic[_Value], frozen=True):
    """A named entry of a kubeconfig, and its file, to which its paths are relative."""

    kind: str
    name: str
    value: _Value
    path: Path

    def fault(self, key: str, problem: str) -> UsageError:
        return UsageError(f"{self.path}: {self.kind}s[{self.name}].{self.kind}.{key} {problem}")

    def file(self, key: str, name: str) -> str | None:
        """The path of a file that the value of a key names; None for an empty one."""
        if not name:
            return None
        path = self.path.parent / _path(name)
        if not os.path.isfile(path):  # noqa: PTH113 - Path raises for a name too long
            raise self.fault(key, f"names {path}, which does not exist")
        return str(path)

    def data(self, key: str, text: str) -> bytes | None:
        """The bytes that the value of a key encodes; None for an empty one."""
        try:
            return base64.b64decode("".join(text.split()), validate=True) or None
        except (binascii.Error, ValueError) as error:
            raise self.fault(key, f"is not base64: {error}") from error


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The address of an API server, and the credentials.

    `login` is `user:password` from the address of the server; `server` is without it. `ca` is PEM
    text; `certificate` is a client's certificate and key, as names of PEM files or as their
    content. `headers` include the user to act as; `groups` are that user's groups, and `extra` are
    the headers of what else describes it. `plugin` and `provider` are the sources of credentials,
    `plugin_config` is what the cluster's entry has for the plugin; `renewable`: another read or
    call may return others. `files` are the kubeconfig, as in KUBECONFIG; `cluster` and `identity`
    are the names of its entries in use.
    """

    server: str
    login: str = ""
    files: str = ""
    context: str | None = None
    cluster: str | None = None
    namespace: str | None = None
    user: str | None = None
    identity: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    ca: str | None = None
    ca_file: str | None = None
    certificate: tuple[str | bytes, str | bytes] | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None
    plugin: _Entry[_User] | None = None
    plugin_config: Any = None
    provider: bool = False
    renewable: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError, which shows no value, if a header is not one line of UTF-8."""
        for name, text in self.sent:
            if _UNFIT.search(text):
                where = self.files or IN_CLUSTER
                raise UsageError(f"{where}: {name} has characters that no request can carry")

    def __repr__(self) -> str:
        """Without credentials."""
        return f"Access(server={self.server!r}, context={self.context!r}, user={self.user!r})"

    @property
    def sent(self) -> tuple[tuple[str, str], ...]:
        """The headers of a request; the header of groups is repeated for each."""
        groups = (("impersonate-group", group) for group in self.groups)
        return (*self.headers.items(), *groups, *self.extra)


def configured(options: Options) -> bool:
    """Whether a cluster is configured: by a kubeconfig, or by a pod's service account.

    UsageError if KUBECONFIG names files and none of them exists: the user means a cluster, not this
    machine. A file that exists and is empty, such as /dev/null, means no cluster.
    """
    if options.kubeconfig or options.context or options.cluster or options.user:
        return True
    paths = _paths(options)
    if _in_cluster() or any(map(_present, paths)):
        return True
    named = os.environ.get("KUBECONFIG", "")
    if named.strip(os.pathsep) and 0 not in map(_length, paths):
        raise UsageError(
            "KUBECONFIG names no file that exists",
            why=f"it is {named}",
            hint="unset it, or --backend local",
        )
    return False


def resolve(options: Options) -> Access:
    """Find the API server: by --kubeconfig, KUBECONFIG, ~/.kube/config, or from within a pod.

    Plugins and providers are not called yet. UsageError names the file and the invalid key.
    """
    if options.impersonate_groups and not options.impersonate:
        raise UsageError("--as-group needs --as", hint="set --as NAME", flag="--as-group")
    paths, named = _paths(options), options.context or options.cluster or options.user
    present = [path for path in paths if _present(path)]
    if not present and options.kubeconfig:
        raise UsageError(f"{options.kubeconfig}: there is no such kubeconfig")
    config = _Kubeconfig(present)
    context = options.context or config.current
    if not config.contexts and not context and not named and _in_cluster():
        access = _in_pod()
    elif not present:
        raise UsageError(
            "no Kubernetes cluster is configured",
            why=f"{os.pathsep.join(map(str, paths))} does not exist",
            hint="give --kubeconfig FILE, or use --backend local",
        )
    elif not context and not options.cluster:
        raise UsageError(
            f"{config.where}: current-context is not set",
            why=_there_are(config.contexts),
            hint="give --context NAME",
        )
    else:
        access = config.access(context, options)
    if options.impersonate:
        access = replace(
            access,
            user=options.impersonate,
            headers={**access.headers, "impersonate-user": options.impersonate},
            groups=options.impersonate_groups or access.groups,
        )
    return access


def entries(options: Options) -> dict[str, tuple[str, ...]]:
    """The names of all `contexts`, `clusters` and `users`; UsageError as in `resolve`."""
    kubeconfig = _Kubeconfig([path for path in _paths(options) if _present(path)])
    kinds: Mapping[str, Mapping[str, object]] = {
        "contexts": kubeconfig.contexts,
        "clusters": kubeconfig.clusters,
        "users": kubeconfig.users,
    }
    return {kind: tuple(some) for kind, some in kinds.items()}


def read_from(options: Options) -> tuple[str, ...]:
    """The kubeconfig files that are read, in the order of precedence."""
    return tuple(str(path) for path in _paths(options) if _present(path))


# ---------------------------------------------------------------- files


def _paths(options: Options) -> list[Path]:
    named = options.kubeconfig or os.environ.get("KUBECONFIG", "")
    parts = [named] if options.kubeconfig else [path for path in named.split(os.pathsep) if path]
    return [_path(part) for part in parts or ["~/.kube/config"]]


def _path(text: str) -> Path:
    """The path with ~ expanded; unchanged if the user has no home folder."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path's own raises an error there


def _present(path: Path) -> bool:
    """Whether a file exists and is not empty."""
    return bool(_length(path))


def _length(path: Path) -> int | None:
    """The size of a file in bytes, 0 for a device such as /dev/null; None if it does not exist."""
    with contextlib.suppress(OSError):
        if path.is_char_device():
            return 0
        return path.stat().st_size if path.is_file() else None
    return None


def _there_are(names: Mapping[str, object]) -> str:
    return "there are: " + ", ".join(sorted(names)) if names else "there are none"


class _Kubeconfig:
    """Several files merged: of two entries with one name the first counts (kubectl's rule)."""

    def __init__(self, paths: list[Path]) -> None:
        self.where = os.pathsep.join(map(str, paths))
        self.current = ""
        self.clusters: dict[str, _Entry[_Cluster]] = {}
        self.users: dict[str, _Entry[_User]] = {}
        self.contexts: dict[str, _Entry[_Context]] = {}
        kinds: Mapping[str, dict[str, Any]] = {
            "cluster": self.clusters,
            "user": self.users,
            "context": self.contexts,
        }
        for path in paths:
            config = _load(path)
            self.current = self.current or config.current_context
            for kind, entries in kinds.items():
                for index, named in enumerate(getattr(config, f"{kind}s")):
                    if named.name is None:
                        raise UsageError(f"{path}: {kind}s[{index}].name is missing")
                    entry = _Entry(kind, named.name, getattr(named, kind), path)
                    entries.setdefault(named.name, entry)

    def access(self, name: str, options: Options) -> Access:
        context = _Entry("context", "", _Context(), Path(self.where))
        if name:
            context = self._chosen(name, "context", self.contexts)
        names = context.value
        cluster = self._part(options.cluster, names.cluster, context, "cluster", self.clusters)
        user = self._part(options.user, names.user, context, "user", self.users)
        if cluster is None:
            raise context.fault("cluster", "is missing")
        settings = cluster.value
        address = settings.server
        if not address:
            raise cluster.fault("server", "is missing")
        if re.fullmatch(r"[^/@?#]+", address):
            secure = settings.secure or (user is not None and user.value.secure)
            address = f"{'https' if secure else 'http'}://{address}"
        try:
            server, login = parted(address)
        except ValueError:
            raise cluster.fault("server", "is no http or https address") from None
        server = server.rstrip("/")
        ca = cluster.data("certificate-authority-data", settings.certificate_authority_data)
        access = Access(
            server=server,
            login=login,
            files=self.where,
            context=name or None,
            cluster=cluster.name,
            namespace=names.namespace or None,
            server_name=settings.tls_server_name or None,
            verify=not settings.insecure_skip_tls_verify,
            ca=ca.decode("latin-1") if ca else None,
            ca_file=None
            if ca
            else cluster.file("certificate-authority", settings.certificate_authority),
            proxy=settings.proxy_url or proxy_of_environment(server),
            # As in Go's http.Client the address may contain the user and the password.
            headers={"authorization": basic(login)} if login else {},
            plugin_config=next(
                (
                    extension.extension
                    for extension in settings.extensions
                    if extension.name == f"{_EXEC_API}/exec"
                ),
                None,
            ),
        )
        if not access.verify and (access.ca or access.ca_file):
            raise cluster.fault(
                "insecure-skip-tls-verify", "is set beside a certificate-authority (kubectl's rule)"
            )
        if user is None:
            return access
        access = _identified(access, user)
        if not options.impersonate and not user.value.acts_as:
            more = {
                "as-uid": user.value.as_uid,
                "as-groups": user.value.as_groups,
                "as-user-extra": user.value.as_user_extra,
            }
            for key in filter(more.get, more):
                raise user.fault(key, "needs `as` beside it (kubectl's rule)")
        if access.provider and (options.cluster or options.user):
            raise UsageError(
                f"user {user.name!r} has an auth-provider, which --cluster and --user cannot have",
                hint="name a --context",
            )
        return access

    def _part(
        self,
        given: str | None,
        of_context: str,
        context: _Entry[_Context],
        kind: str,
        entries: Mapping[str, _Entry[_Value]],
    ) -> _Entry[_Value] | None:
        """The given entry, else that of the context; None if neither is named."""
        if given:
            return self._chosen(given, kind, entries)
        if of_context and of_context not in entries:
            raise context.fault(kind, f"names {of_context!r}, and {_there_are(entries)}")
        return entries.get(of_context)

    def _chosen(
        self, name: str, kind: str, entries: Mapping[str, _Entry[_Value]]
    ) -> _Entry[_Value]:
        if name in entries:
            return entries[name]
        raise UsageError(
            f"{self.where}: there is no {kind} {name!r}",
            why=_there_are(entries),
            hint=near(name, entries),
            flag=f"--{kind}",
        )


def _load(path: Path) -> _Config:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    document = _from_json(text) or _from_yaml(path, text)
    try:
        return fields_of(document, _Config)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a kubeconfig: {invalid_object_text(error)}") from error


def _from_json(text: bytes) -> Any:
    """The value of a text in JSON, which needs no import of `yaml`; None of any other text."""
    if text.startswith(b"{") and len(text) <= MOST_VALUES:
        with contextlib.suppress(ValueError, RecursionError):
            return msgspec.json.decode(text)
    return None


def _from_yaml(path: Path, text: bytes) -> Any:
    import yaml  # 30 ms

    try:
        return safe_yaml.parse_document(text, most=MOST_VALUES)
    except safe_yaml.Excess as error:
        raise UsageError(f"{path}: not a kubeconfig: it {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise UsageError(
            f"{path}:{line} not YAML: {getattr(error, 'problem', None) or error}"
        ) from error


# ---------------------------------------------------------------- credentials


_UNQUOTED = "!#$&'*+^`|"
"""Characters that the name of a header can have (RFC 9110, 5.6.2), beside those that are never
quoted; others are quoted (client-go, v0.30, transport/round_trippers.go: headerKeyEscape)."""


def _identified(access: Access, user: _Entry[_User]) -> Access:
    """Add a user's token, password, certificate and impersonation, or the source of credentials."""
    headers, settings, plugin = dict(access.headers), user.value, user.value.exec
    if settings.acts_as:
        headers["impersonate-user"] = settings.acts_as
    if settings.as_uid:
        headers["impersonate-uid"] = settings.as_uid
    access = replace(
        access,
        identity=user.name,
        user=settings.acts_as or user.name,
        headers=headers,
        groups=tuple(settings.as_groups),
        extra=tuple(
            (f"impersonate-extra-{quote(key, safe=_UNQUOTED)}", group)
            for key, several in settings.as_user_extra.items()
            for group in several
        ),
    )
    if plugin != _Plugin():
        for key, text in {"command": plugin.command, "apiVersion": plugin.api_version}.items():
            if not text:
                raise user.fault(f"exec.{key}", "is missing")
        if plugin.api_version not in _EXEC_VERSIONS:
            raise user.fault("exec.apiVersion", f"is not {_EXEC_VERSIONS[0]} or its v1beta1")
        if plugin.interactive_mode not in {"", *_EXEC_MODES}:
            raise user.fault("exec.interactiveMode", f"is not one of {', '.join(_EXEC_MODES)}")
        return replace(access, plugin=user, renewable=True)
    if settings.auth_provider:
        return replace(access, provider=True, renewable=True)
    if token := _token(user):
        headers["authorization"] = f"Bearer {token}"
    elif login := settings.username:
        headers["authorization"] = basic(f"{login}:{settings.password}")
        access = replace(access, user=settings.acts_as or login)
    certificate = user.data(
        "client-certificate-data", settings.client_certificate_data
    ) or user.file("client-certificate", settings.client_certificate)
    private = user.data("client-key-data", settings.client_key_data) or user.file(
        "client-key", settings.client_key
    )
    if bool(certificate) != bool(private):
        missing = "client-key" if certificate else "client-certificate"
        raise user.fault(missing, "is missing beside its other half")
    pair = (certificate, private) if certificate and private else None
    return replace(access, certificate=pair, renewable=bool(settings.token_file))


def _token(user: _Entry[_User]) -> str:
    """A user's token; a token file takes precedence, since it is rotated in place."""
    token = user.value.token
    if token_file := user.file("tokenFile", user.value.token_file):
        try:
            token = Path(token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problem = f"names {token_file}, which cannot be read"
            raise user.fault("tokenFile", problem) from error
    return token.strip()


def _in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and _present(SERVICE_ACCOUNT / "token")


def _in_pod() -> Access:
    """The server, the credentials and the namespace from within a pod."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    authority, space = SERVICE_ACCOUNT / "ca.crt", SERVICE_ACCOUNT / "namespace"
    try:
        server, _ = parted(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")
        token = (SERVICE_ACCOUNT / "token").read_text(encoding="utf-8").strip()
        namespace = space.read_text(encoding="utf-8").strip() if _present(space) else None
    except (OSError, ValueError) as error:
        raise UsageError(f"{IN_CLUSTER} cannot be used", why=str(error)) from error
    return Access(
        server=server,
        namespace=namespace,
        headers={"authorization": f"Bearer {token}"},
        ca_file=str(authority) if _present(authority) else None,
        proxy=proxy_of_environment(server),
        renewable=True,
    )


def provided(access: Access) -> Access:
    """The same access with the auth-provider's credentials, by the `kubernetes` package."""
    from kubernetes.client.configuration import Configuration
    from kubernetes.config import load_kube_config

    settings: Any = Configuration()
    load: Any = load_kube_config
    try:
        load(config_file=access.files, context=access.context, client_configuration=settings)
        bearer_token = settings.auth_settings().get("BearerToken") or {}
    except Exception as error:  # its readers raise any error for invalid text
        raise UsageError(f"{access.files}: {brief(str(error))}") from error
    if not bearer_token.get("value"):
        raise AccessDenied(
            f"the auth-provider of user {access.identity!r} gave no credentials",
            hint="log in again with the tool of your cluster",
        )
    headers = {**access.headers, "authorization": str(bearer_token["value"])}
    return replace(access, headers=headers)


def with_plugin_credentials(
    access: Access, user: _Entry[_User], *, patience: float | None = None
) -> Access:
    """The same access with the credentials that the user's plugin returns.

    On a terminal the plugin may prompt, for example by a browser, and has no time limit; else it
    has `patience` seconds. UsageError if it cannot be started, AccessDenied if it returns nothing,
    TimedOut if it takes longer.
    """
    plugin = user.value.exec
    command = plugin.command
    if os.sep in command:
        # Relative to the kubeconfig, as in kubectl.
        command = str(user.path.parent.absolute() / _path(command))
    variables = {variable.name: variable.value for variable in plugin.env}
    who = f"the credential plugin of user {access.identity!r}"
    by_hand = f"run it by hand: {command}"

    def nothing(why: str) -> AccessDenied:
        return AccessDenied(f"{who} gave no credentials", why=brief(why), hint=by_hand)

    mode = plugin.interactive_mode
    talks = all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if mode == "Always" and not talks:
        raise nothing("it wants to ask you something, and there is no terminal")
    talks = talks and mode != "Never"
    environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": _info(access, plugin, talks)}
    try:
        code, output, errors, late = _printed(
            [command, *plugin.args],
            environment,
            patience=None if talks else patience,
            talks=talks,
        )
    # ValueError: an argument or a variable that no process can have.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{who} cannot be started",
            why=f"{command}: {reason}",
            hint=brief(plugin.install_hint) or "check that it is in PATH",
        ) from error
    text = errors.decode("utf-8", "replace").strip()
    if late:
        raise TimedOut(
            f"{who} did not answer in {patience:g} s",
            why=brief(text) or "it may wait for input, and there is no terminal to ask on",
            hint=f"allow more with --request-timeout, or {by_hand}",
        )
    if max(len(output), len(errors)) > _PRINTED:
        raise nothing(f"it printed more than {_PRINTED >> 20} MiB")
    if code:
        raise nothing(text or f"it ended with code {code}")
    try:
        token, certificate, key = _credential(output, plugin.api_version)
    except ValueError as error:
        raise nothing(text or str(error)) from error
    headers = {"authorization": f"Bearer {token}"} if token else {}
    pair = (certificate.encode(), key.encode()) if certificate else access.certificate
    return replace(access, headers={**access.headers, **headers}, certificate=pair)


def _credential(output: bytes, version: str) -> tuple[str, str, str]:
    """The token, the certificate and the key in an ExecCredential; ValueError says what is wrong.

    The rules are those of client-go (v0.30, plugin/pkg/client/auth/exec/exec.go).
    """
    try:
        answer = json.loads(output)
        known = "status" in answer
    except (ValueError, TypeError, RecursionError):
        known = False
    if not known:
        raise ValueError("it printed no ExecCredential")
    try:
        credential = fields_of(answer, _ExecCredential)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it printed no ExecCredential: {invalid_object_text(error)}") from error
    if credential.kind != "ExecCredential" or credential.api_version != version:
        raise ValueError(f"it printed no ExecCredential of {version}")
    status = credential.status
    token, certificate, key = map(
        str.strip, (status.token, status.client_certificate_data, status.client_key_data)
    )
    if bool(certificate) != bool(key):
        raise ValueError("its ExecCredential has only one of certificate and key")
    if not token and not certificate:
        raise ValueError("its ExecCredential has no token and no certificate")
    return token, certificate, key


def _printed(
    line: list[str], environment: Mapping[str, str], *, patience: float | None, talks: bool
) -> tuple[int, bytes, bytes, bool]:
    """The exit code of a command, its output and errors, and whether it took too long.

    It is ended, with its children, after `patience` seconds (None: no limit) and if it prints more
    than `_PRINTED` bytes. If it `talks`, this process's terminal has its input and its errors.
    """
    import selectors  # noqa: PLC0415  3 ms that most commands save
    import subprocess  # noqa: PLC0415

    # In a session of its own it ends with its children. A leader of a session, as the process
    # that completes names, ends all of its own.
    apart = not talks and os.getsid(0) != os.getpid()
    limit = math.inf if patience is None else patience
    end = time.monotonic() + limit
    process = subprocess.Popen(
        line,
        env=environment,
        stdin=None if talks else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if talks else subprocess.PIPE,
        start_new_session=apart,
    )
    pipes = [pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe is not None]
    printed = {pipe: bytearray() for pipe in pipes}
    ended = False
    try:
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() and max(map(len, printed.values())) <= _PRINTED:
                left = end - time.monotonic()
                if left <= 0:
                    break
                for key, _ in selector.select(left if left < math.inf else None):
                    data = os.read(key.fd, 1 << 16)
                    printed[key.fd] += data
                    if not data:
                        selector.unregister(key.fd)
            silent = not selector.get_map()
        if silent:
            left = max(0.0, end - time.monotonic())
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left if left < math.inf else None)
                ended = True
    finally:
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if apart else process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    output, errors = (*map(bytes, printed.values()), b"")[:2]
    late = not ended and max(map(len, printed.values())) <= _PRINTED
    return process.returncode, output, errors, late


def _info(access: Access, plugin: _Plugin, talks: bool) -> str:  # noqa: FBT001  the document's field
    spec: dict[str, Any] = {"interactive": talks}
    if plugin.provide_cluster_info:
        authority = access.ca.encode("latin-1") if access.ca else b""
        if access.ca_file:
            authority = Path(access.ca_file).read_bytes()
        cluster = {
            "server": access.server,
            "tls-server-name": access.server_name,
            "insecure-skip-tls-verify": not access.verify,
            "certificate-authority-data": base64.b64encode(authority).decode(),
            "proxy-url": access.proxy,
            "config": access.plugin_config,
        }
        spec["cluster"] = {key: value for key, value in cluster.items() if value}
    document = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return json.dumps(document)


# ---------------------------------------------------------------- addresses


def basic(login: str) -> str:
    """The header of HTTP basic authentication by `user:password`."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def parted(address: str) -> tuple[str, str]:
    """An http or https address without its user, and `user:password`, or "" without one.

    ValueError, without the password, for any other address.
    """
    split = urlsplit(address)
    odd = split.scheme not in {"http", "https"} or not split.hostname or split.port == 0
    # Without this check, a bare slash or question mark in a password would make a wrong host.
    if odd or ("@" in address and "@" not in split.netloc):
        raise ValueError("no http or https address")
    login, _, host = split.netloc.rpartition("@")
    user, _, password = login.partition(":")
    bare = split._replace(netloc=host, query="", fragment="").geturl()
    return bare, f"{unquote(user)}:{unquote(password)}" if login else ""


def proxy_of_environment(server: str) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY give an http or https address, by Go's rules."""
    split = urlsplit(server)
    proxy = _variable(f"{split.scheme}_proxy")
    host, port = split.hostname or "", split.port or (443 if split.scheme == "https" else 80)
    if not proxy or _reached_directly(host, str(port)):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(name: str) -> str | None:
    return os.environ.get(name.upper()) or os.environ.get(name)


def _reached_directly(host: str, port: str) -> bool:
    """Whether a host is this machine or in NO_PROXY (golang.org/x/net/http/httpproxy, v0.30).

    Entries are like `10.0.0.0/8`, `x.org` and `*.x.org:80`.
    """
    address = own[0] if (own := _network(host)) is not None else None
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in map(str.strip, (_variable("no_proxy") or "").lower().split(",")):
        named, network = entry, _network(entry)
        if network is None:
            split = re.fullmatch(r"\[?([^\[\]]+?)\]?(?::(\d*))?", entry)
            if split is None or split[2] not in {None, "", port}:
                continue
            named, network = split[1], _network(split[1])
        domain = named.removeprefix("*")
        if network is not None:
            if address is not None and address in network:
                return True
        elif host == domain or host.endswith(f".{domain.removeprefix('.')}") or not domain:
            return True
    return False


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
