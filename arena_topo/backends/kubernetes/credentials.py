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
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from arena_topo.errors import AccessDenied, UsageError

if TYPE_CHECKING:
    from arena_topo.backends.kubernetes.kubeconfig import Access

_VERSIONS = tuple(f"client.authentication.k8s.io/{one}" for one in ("v1", "v1beta1"))

_MODES = ("Never", "IfAvailable", "Always")


def asked(found: Access) -> Access:
    """The same access with what the command of its user answers.

    The command may talk to the person where there is a terminal. UsageError if it cannot be
    started, AccessDenied if it gives nothing.
    """
    wanted = found.exec or {}
    command, version = found.plugin or "", str(wanted.get("apiVersion") or "")
    if version not in _VERSIONS:
        raise UsageError(
            f"the credential plugin of user {found.identity!r} is of apiVersion {version!r}",
            why=f"known are {' and '.join(_VERSIONS)}",
            hint="write the kubeconfig again with the current tool of your cluster",
        )
    talks = _talks(found, str(wanted.get("interactiveMode") or "IfAvailable"))
    try:
        done = subprocess.run(
            [command, *(str(one) for one in wanted.get("args") or ())],
            env={**os.environ, **_added(wanted), "KUBERNETES_EXEC_INFO": _info(found, talks)},
            stdin=None if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if talks else subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"the credential plugin of user {found.identity!r} cannot be started",
            why=f"{command}: {error.strerror}",
            hint=" ".join(str(wanted.get("installHint") or "").split()) or "is it in PATH?",
        ) from error
    said = (done.stderr or b"").decode("utf-8", "replace").strip()
    if done.returncode:
        raise _nothing(found, said or f"it ended with code {done.returncode}")
    try:
        status = json.loads(done.stdout)["status"]
        token = str(status.get("token") or "")
        certificate = str(status.get("clientCertificateData") or "")
        key = str(status.get("clientKeyData") or "")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _nothing(found, said or "it printed no ExecCredential") from error
    if not token and not (certificate and key):
        raise _nothing(found, said or "its ExecCredential has no token and no certificate")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    pair = (certificate.encode(), key.encode()) if certificate and key else found.certificate
    return replace(found, headers={**found.headers, **headers}, certificate=pair)


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


def _added(wanted: Mapping[str, Any]) -> dict[str, str]:
    return {
        str(one.get("name")): str(one.get("value") or "")
        for one in wanted.get("env") or ()
        if isinstance(one, dict) and one.get("name")
    }


def _info(found: Access, talks: bool) -> str:  # noqa: FBT001  the field of the document
    wanted = found.exec or {}
    spec: dict[str, Any] = {"interactive": talks}
    if wanted.get("provideClusterInfo") is True:
        spec["cluster"] = {
            "server": found.server,
            **({"tls-server-name": found.server_name} if found.server_name else {}),
            **({} if found.verify else {"insecure-skip-tls-verify": True}),
            **({"certificate-authority-data": ca} if (ca := _authority(found)) else {}),
            **({"proxy-url": found.proxy} if found.proxy else {}),
        }
    return json.dumps({"apiVersion": wanted["apiVersion"], "kind": "ExecCredential", "spec": spec})


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
        why=" ".join(why.split()),
        hint=f"run it by hand: {found.plugin}",
    )
