"""The meaning of an answer of the API server, or of no answer: errors with advice."""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
import ssl
from collections.abc import Collection, Mapping
from email.message import Message
from typing import Any

import msgspec

from arena_topo.engines import REQUESTS
from arena_topo.engines.kubernetes.shapes import ANY, BadAnswer, MaybeWritten
from arena_topo.engines.kubernetes.transport import Obstacle, Unopened
from arena_topo.errors import (
    ABSENT,
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    SERVER_ERROR,
    UNKNOWN_CALLER,
    AccessDenied,
    AlreadyExists,
    ArenaError,
    ClusterError,
    NotFound,
    TimedOut,
)
from arena_topo.escaping import MAX_MESSAGE_CHARACTERS, brief

_requests = logging.getLogger(REQUESTS)

_WHY = 200
"""Characters of a cause; for a peer that does not speak HTTP it is its first line."""
IN_BETWEEN = "look for a proxy or a login page in between: `kubectl version`"
"""The advice for an answer that seems to come from something other than an API server."""


class _Late(MaybeWritten, TimedOut):
    pass


def maybe_written(error: BaseException) -> bool:
    """Whether a failed write may have been applied."""
    status = error.status if isinstance(error, ClusterError) else None
    return isinstance(error, MaybeWritten) or (status is not None and status >= SERVER_ERROR)


def cause(error: BaseException) -> str:
    """The innermost reason, truncated (it may be a server's text), without names of objects."""
    innermost: BaseException = error
    while (inner := innermost.__cause__ or innermost.__context__) is not None:
        innermost = inner
    return brief(
        (innermost.strerror if isinstance(innermost, OSError) else None) or str(innermost), _WHY
    )


_ELSEWHERE = (
    "check that the cluster is up; `--context` names another, `--backend local` is this machine"
)

_UNOPENED: Mapping[Obstacle, tuple[str, str]] = {
    "proxy": ("the proxy to {} does not answer", "see HTTPS_PROXY, proxy-url"),
    "trust": (
        "{} cannot be trusted",
        "check that certificate-authority in the kubeconfig belongs to this cluster",
    ),
    "handshake": ("{} broke the connection during the TLS handshake", _ELSEWHERE),
    "name": ("the host of {} is not known", _ELSEWHERE),
    "server": ("{} does not accept connections", _ELSEWHERE),
}
"""The meaning of what is in the way of a connection, and the advice."""


def broken(error: Exception) -> bool:
    """Whether a connection broke off, so that another attempt may succeed."""
    if isinstance(error, Unopened):
        return error.obstacle == "handshake"
    final = isinstance(error, TimeoutError) or _distrusts(error)
    return isinstance(error, (OSError, http.client.HTTPException)) and not final


def _distrusts(error: Exception) -> bool:
    """Whether TLS refuses a connection; an end without notice is a broken connection."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)


def unreachable(server: str, method: str, error: Exception, limit: str) -> ArenaError:
    """The error for a missing answer; `limit` names the time limit, in words."""
    why = cause(error)
    obstacle = error.obstacle if isinstance(error, Unopened) else None
    if _distrusts(error):
        obstacle = "trust"
    if obstacle is not None and obstacle in _UNOPENED:
        text, hint = _UNOPENED[obstacle]
        return ClusterError(text.format(server), why=why, hint=hint)
    sent = method != "GET" and obstacle is None
    doubt = "; whether it took the request is not known" if sent else ""
    if obstacle == "time" or isinstance(error, TimeoutError):
        return (_Late if sent else TimedOut)(
            f"{server} did not answer in time{doubt}",
            why=why,
            hint=f"check the route to it (VPN, firewall); {limit}",
        )
    kind = BadAnswer if sent else ClusterError
    return kind(f"{server} broke the connection{doubt}", why=why, hint=_ELSEWHERE)


API_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+)(?:/.*)?)?"
)
"""The path of a kind of objects, or of one object."""


def answers_object(method: str, path: str, body: object) -> bool:
    """Whether the answer to a request, unless it is an error, is one object with a name."""
    target = API_PATH.fullmatch(path)
    if target is None or target["sub"]:
        return False
    if method == "POST":
        # Reviews (of the caller's identity or rights) have no name.
        meta = body.get("metadata") if isinstance(body, Mapping) else None
        return isinstance(meta, Mapping) and "name" in meta
    return method != "DELETE" and target["name"] is not None


_NO_RIGHT = re.compile(r"\bcannot \w+ (resource|path)\b")
"""The API server's text for a missing right (apiserver, handlers/responsewriters/errors.go)."""

_ADMISSION = re.compile(r"is forbidden: |\bdenied (the )?request")
"""Texts of admission: of its plugins and of missing rights, and of webhooks and policies."""

_VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}


def odd_body(
    headers: Mapping[str, str] | Message, *, unpacks: Collection[str] = (), log: bool = False
) -> str | None:
    """Why the body of an answer cannot be read; None if it can.

    `unpacks` are the encodings that the reader decodes. `log`: the answer is to be a log,
    which API servers send as plain text.
    """
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in {"", "identity", *unpacks}:
        return f"the answer is compressed ({brief(coding, 40)}), which was not requested"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/html":
        return "the answer is a web page"
    if log and kind == "application/json":
        return "the answer is JSON, and no log"
    return None


def parsed(body: bytes | msgspec.Raw, *readers: msgspec.json.Decoder[Any]) -> Any:
    """The JSON in an answer, by the first of `readers` whose type it has; without them as it is.

    None for other text, or for JSON nested too deeply.
    """
    for reader in readers or (ANY,):
        with contextlib.suppress(ValueError, RecursionError):
            return reader.decode(body)
    return None


def is_object(value: object) -> bool:
    """Whether a value is an object of Kubernetes, as in every list."""
    meta = value.get("metadata") if isinstance(value, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("name"), str)


def status_error_code(answer: object) -> int | None:
    """The code of the error in a Status, unless it is a Success; None for other objects."""
    if not isinstance(answer, dict) or answer.get("kind") != "Status":
        return None
    if answer.get("status") == "Success":
        return None
    code = answer.get("code")
    # Of a failure without a code it is unknown what the server did.
    return code if isinstance(code, int) and code >= BAD_REQUEST else SERVER_ERROR


def refusal_error(
    method: str, path: str, status: int, reason: str | None, body: bytes
) -> ArenaError:
    """The error for a failed request, with the API server's message, never a raw body.

    A long message is truncated; the log of requests has all of it.
    """
    status_object = parsed(body)
    status_object = (
        status_object
        if isinstance(status_object, dict) and status_object.get("kind") == "Status"
        else {}
    )
    whole = str(status_object.get("message") or "")
    message = brief(whole) or None
    if len(whole) > MAX_MESSAGE_CHARACTERS:
        _requests.debug("the API server says: %s", whole)
    target = API_PATH.fullmatch(path)
    what = target["resource"] if target else path
    if target and target["sub"]:
        what += f"/{target['sub']}"
    verb = _VERBS.get(method, "get" if target and target["name"] else "list")
    if status == UNKNOWN_CALLER:
        return AccessDenied(
            "the API server does not know who is asking",
            status=status,
            why=message,
            hint="log in again, or name another --context",
        )
    if status == FORBIDDEN:
        space = target["namespace"] if target else None
        where = f" in namespace {space}" if space else ""
        if target:
            rule = f'apiGroups: ["{target["group"] or ""}"], resources: ["{what}"]'
        else:
            # Discovery; rights to it use HTTP's verbs.
            verb, rule = method.lower(), f'nonResourceURLs: ["{path}"]'
        hint = (
            f"ask for this rule in a {'Role' if space else 'ClusterRole'}: "
            f'{{{rule}, verbs: ["{verb}"]}}'
        )
        # A quota or an admission policy refuses with 403 too, and no right helps against it.
        by_admission = _ADMISSION.search(whole) and not _NO_RIGHT.search(whole)
        denied = AccessDenied(
            f"not allowed to {verb} {what}{where}",
            status=status,
            why=message,
            hint=None if by_admission else hint,
        )
        denied.resource = what
        return denied
    if status == ABSENT:
        return NotFound(message or f"the API server has no {what}")
    if status == CONFLICT and status_object.get("reason") == "AlreadyExists":
        return AlreadyExists(message or f"{what} already exists")
    return ClusterError(
        message or f"the API server answered {status} {brief(reason or '', 80)}".rstrip(),
        status=status,
        why=f"{verb} {what} failed" if message else None,
        hint=IN_BETWEEN if status < BAD_REQUEST else None,
    )
