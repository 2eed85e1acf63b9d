"""The command of a kubeconfig's user -> a token or a certificate, asked for as kubectl does.

KEP-541, `client.authentication.k8s.io`: the command gets KUBERNETES_EXEC_INFO and prints an
ExecCredential. Versions v1 and v1beta1 are the same but for the default of `interactiveMode`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.clusters.objects import misfit
from arena_topo.engines.kubernetes.kubeconfig import is_token
from arena_topo.errors import AccessDenied, TimedOut, UsageError
from arena_topo.escaping import brief

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.kubeconfig import Access

_VERSIONS = tuple(f"client.authentication.k8s.io/{one}" for one in ("v1", "v1beta1"))

_MODES = ("Never", "IfAvailable", "Always")


class _Variable(msgspec.Struct, frozen=True):
    name: str = ""
    value: str | None = None


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    """What a kubeconfig says of a plugin (KEP-541); its command stands in `Access.plugin`."""

    api_version: str | None = None
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    install_hint: str | None = None
    interactive_mode: str | None = None
    provide_cluster_info: bool | None = None


def _read(found: Access) -> _Exec:
    """What the kubeconfig says of the plugin; UsageError with the place of what has no sense."""
    try:
        return msgspec.convert(found.exec or {}, _Exec)
    except msgspec.ValidationError as error:
        where = f"{found.files}: users[{found.identity}].user.exec"
        raise UsageError(f"{where}.{misfit(error)}") from error


def asked(found: Access, *, patience: float | None = None) -> Access:
    """The same access with what the command of its user answers.

    The command may talk to the person where there is a terminal, and then takes as long as the
    person does, such as in a browser; else `patience` seconds. UsageError if it cannot be started,
    AccessDenied if it gives nothing, TimedOut if it takes longer.
    """
    wanted = _read(found)
    command, version = found.plugin or "", wanted.api_version or ""
    if version not in _VERSIONS:
        raise UsageError(
            f"the credential plugin of user {found.identity!r} is of apiVersion {version!r}",
            why=f"known are {' and '.join(_VERSIONS)}",
            hint="write the kubeconfig again with the current tool of your cluster",
        )
    talks = _talks(found, wanted.interactive_mode or "IfAvailable")
    try:
        done = subprocess.run(
            [command, *(wanted.args or ())],
            env={
                **os.environ,
                **{one.name: one.value or "" for one in wanted.env or () if one.name},
                "KUBERNETES_EXEC_INFO": _info(found, wanted, talks),
            },
            stdin=None if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if talks else subprocess.PIPE,
            timeout=None if talks else patience,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(
            f"the credential plugin of user {found.identity!r} did not answer in {patience:g} s",
            why=_late(error.stderr),
            hint=f"allow more with --request-timeout, or run it by hand: {found.plugin}",
        ) from error
    # ValueError: a word or a variable that no process can have.
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the credential plugin of user {found.identity!r} cannot be started",
            why=f"{command}: {reason}",
            hint=brief(wanted.install_hint or "") or "is it in PATH?",
        ) from error
    said = (done.stderr or b"").decode("utf-8", "replace").strip()
    if done.returncode:
        raise _nothing(found, said or f"it ended with code {done.returncode}")
    try:
        status = json.loads(done.stdout)["status"]
        token = str(status.get("token") or "").strip()
        certificate = str(status.get("clientCertificateData") or "")
        key = str(status.get("clientKeyData") or "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _nothing(found, said or "it printed no ExecCredential") from error
    if not token and not (certificate and key):
        raise _nothing(found, said or "its ExecCredential has no token and no certificate")
    if not is_token(token):
        raise _nothing(found, "its token has characters that no token has")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    pair = (certificate.encode(), key.encode()) if certificate and key else found.certificate
    return replace(found, headers={**found.headers, **headers}, certificate=pair)


def _late(said: bytes | None) -> str:
    """What kept the command, as far as it says so."""
    text = brief((said or b"").decode("utf-8", "replace"))
    return text or "it may wait for somebody, and there is no terminal on which it could ask"


def _talks(found: Access, mode: str) -> bool:
    """Whether the command may ask the person."""
    if mode not in _MODES:
        raise UsageError(
            f"the credential plugin of user {found.identity!r} has interactiveMode {mode!r}",
            why=f"known are {', '.join(_MODES)}",
        )
    terminal = all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if mode == "Always" and not terminal:
        raise _nothing(found, "it wants to ask you something, and there is no terminal")
    return terminal and mode != "Never"


def _info(found: Access, wanted: _Exec, talks: bool) -> str:  # noqa: FBT001  the document's field
    spec: dict[str, Any] = {"interactive": talks}
    if wanted.provide_cluster_info:
        spec["cluster"] = {
            "server": found.server,
            **({"tls-server-name": found.server_name} if found.server_name else {}),
            **({} if found.verify else {"insecure-skip-tls-verify": True}),
            **({"certificate-authority-data": ca} if (ca := _authority(found)) else {}),
            **({"proxy-url": found.proxy} if found.proxy else {}),
        }
    return json.dumps({"apiVersion": wanted.api_version, "kind": "ExecCredential", "spec": spec})


def _authority(found: Access) -> str | None:
    if found.ca is not None:
        return base64.b64encode(found.ca.encode("latin-1")).decode()
    if found.ca_file is None:
        return None
    with open(found.ca_file, "rb") as file:  # noqa: PTH123  a path as text
        return base64.b64encode(file.read()).decode()


def _nothing(found: Access, why: str) -> AccessDenied:
    return AccessDenied(
        f"the credential plugin of user {found.identity!r} gave no credentials",
        why=brief(why),
        hint=f"run it by hand: {found.plugin}",
    )
