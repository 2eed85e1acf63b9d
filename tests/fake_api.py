"""An API server over real HTTP, in a thread: enough of Kubernetes to be wrong like it.

Status bodies, conflicts, paging with continue tokens that go stale, dry runs, owner references,
label and field selectors, patches, logs that are followed, discovery, and faults on demand. Texts
are those of a 1.36 control plane.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import re
import socket
import ssl
import struct
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

CORE = {
    "nodes": "Node",
    "namespaces": "Namespace",
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "services": "Service",
    "events": "Event",
    "secrets": "Secret",
}
GROUPS = {
    "apps": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "batch": {"jobs": "Job"},
    "kubeflow.org": {"mpijobs": "MPIJob"},
    "kueue.x-k8s.io": {"topologies": "Topology"},
}
CLUSTER_WIDE = {"nodes", "namespaces", "topologies"}
KINDS = {kind: plural for table in (CORE, *GROUPS.values()) for plural, kind in table.items()}

STALE = (
    "The provided continue parameter is too old to display a consistent list result. You can start"
    " a new list without the continue parameter, or use the continue token in this response to"
    " retrieve the remainder of the results. Continuing with the provided token results in an"
    " inconsistent list - objects that were created, modified, or deleted between the time the"
    " first chunk was returned and now may show up in the list."
)


def kubeconfig(
    path: Path,
    url: str,
    *,
    user: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    namespace: str | None = None,
) -> str:
    """Write a kubeconfig with one context, `test`, for a server; the path as text."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [
            {
                "name": "test",
                "context": {
                    "cluster": "fake",
                    "user": "alice",
                    **({"namespace": namespace} if namespace else {}),
                },
            }
        ],
        "clusters": [{"name": "fake", "cluster": {"server": url, **(cluster or {})}}],
        "users": [{"name": "alice", "user": user or {}}],
    }
    # JSON is YAML, which is what kubeconfigs are.
    path.write_text(json.dumps(document))
    return str(path)


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to requests whose `METHOD /path` matches, so many times."""

    match: str
    times: int = 1
    status: int | None = None
    retry_after: int | None = None
    delay: float = 0.0
    reset: bool = False
    body: bytes | None = None


@dataclass(slots=True)
class Log:
    """What a container has written: (time, line) pairs, and whether it is still there."""

    lines: list[tuple[str, bytes]] = field(default_factory=list)
    ended: bool = False
    breaks_after: int | None = None
    """Followers lose their connection once after so many lines."""


class Refused(Exception):
    """An HTTP error on its way out."""

    def __init__(self, status: int, reason: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.more = more
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": more.pop("metadata", {}),
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": status,
        }


class FakeApi:
    """The server, and the hands that its world has: add, change and look at what it stores."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.lock = threading.Condition()
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {
            plural: {} for plural in KINDS.values()
        }
        self.versions = ["v2beta1"]
        self.kueue: list[str] = []
        """The versions of its group, the preferred one first; none where there is no Kueue."""
        self.topologies: list[str] = []
        """Those of them that have topologies."""
        self.faults: list[Fault] = []
        self.denied: list[re.Pattern[str]] = []
        self.tokens: dict[str, str] = {}
        self.logs: dict[tuple[str, str], Log] = {}
        self.requests: list[str] = []
        self.warnings: list[str] = []
        self.collects_garbage = True
        self.revision = 100
        self.pages: dict[str, list[dict[str, Any]]] = {}
        self.now = 0.0
        self.connections: set[socket.socket] = set()
        for name in ("default", "kube-system", "team-a"):
            self.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api = self

        class Handler(_Handler):
            fake = api

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # A client that leaves is no news.
            handle_error = staticmethod(lambda *_: None)

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering; the port refuses connections from now on."""
        with self.lock:
            for log in self.logs.values():
                log.ended = True
            self.lock.notify_all()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def deny(self, pattern: str) -> None:
        """Forbid what matches `verb resource namespace`, such as `list nodes`."""
        self.denied.append(re.compile(pattern))

    def fail(self, match: str, **fault: Any) -> None:
        """Let requests that match go wrong, once unless `times` says more."""
        self.faults.append(Fault(match=match, **fault))

    def compact(self) -> None:
        """Forget old revisions: continue tokens go stale."""
        self.pages.clear()

    def clock(self) -> float:
        return self.now or time.time()

    def add(self, thing: dict[str, Any]) -> dict[str, Any]:
        """Store an object as its creator would."""
        plural = KINDS[thing["kind"]]
        space = "" if plural in CLUSTER_WIDE else thing["metadata"].get("namespace", "default")
        return self.create(plural, space, copy.deepcopy(thing), dry=False)

    def find(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """The stored object itself, to be looked at or changed."""
        plural = KINDS[kind]
        return self.objects[plural].get(("" if plural in CLUSTER_WIDE else namespace, name))

    def all(self, kind: str) -> list[dict[str, Any]]:
        return list(self.objects[KINDS[kind]].values())

    def write(self, pod: str, line: str, *, at: str, namespace: str = "default") -> None:
        """Let a container write a line at a time such as `2026-11-21T07:00:00.000000000Z`."""
        with self.lock:
            self.logs.setdefault((namespace, pod), Log()).lines.append((at, line.encode() + b"\n"))
            self.lock.notify_all()

    def end_log(self, pod: str, namespace: str = "default") -> None:
        with self.lock:
            self.logs.setdefault((namespace, pod), Log()).ended = True
            self.lock.notify_all()

    # What requests do.

    def create(
        self, plural: str, space: str, thing: dict[str, Any], *, dry: bool
    ) -> dict[str, Any]:
        meta = thing.setdefault("metadata", {})
        name = meta.get("name") or ""
        if space and ("", space) not in self.objects["namespaces"]:
            raise Refused(404, "NotFound", f'namespaces "{space}" not found')
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
            raise Refused(
                422,
                "Invalid",
                f'{thing["kind"]} "{name}" is invalid: metadata.name: Invalid value: "{name}":'
                " a lowercase RFC 1123 subdomain must consist of lower case alphanumeric"
                " characters, '-' or '.'",
            )
        if (space, name) in self.objects[plural]:
            raise Refused(409, "AlreadyExists", f'{_qualified(plural)} "{name}" already exists')
        if space:
            meta["namespace"] = space
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", rfc3339(self.clock()))
        if not dry:
            self.touch(meta)
            self.objects[plural][space, name] = thing
        return thing

    def touch(self, meta: dict[str, Any]) -> None:
        self.revision += 1
        meta["resourceVersion"] = str(self.revision)

    def get(self, plural: str, space: str, name: str) -> dict[str, Any]:
        found = self.objects[plural].get((space, name))
        if found is None:
            raise Refused(404, "NotFound", f'{_qualified(plural)} "{name}" not found')
        return found

    def remove(self, plural: str, space: str, name: str, options: dict[str, Any]) -> None:
        found = self.get(plural, space, name)
        wanted = (options.get("preconditions") or {}).get("uid")
        uid = found["metadata"]["uid"]
        if wanted and wanted != uid:
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {_qualified(plural)} "{name}": the UID in the'
                f" precondition ({wanted}) does not match the UID in record ({uid}). The object"
                " might have been deleted and then recreated",
            )
        del self.objects[plural][space, name]
        if self.collects_garbage and options.get("propagationPolicy") != "Orphan":
            self.collect(uid)

    def collect(self, uid: str) -> None:
        for plural, things in self.objects.items():
            for (space, name), thing in list(things.items()):
                owners = thing["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == uid for owner in owners) and (space, name) in things:
                    self.remove(plural, space, name, {})

    def replace(
        self, plural: str, space: str, name: str, thing: dict[str, Any], *, dry: bool
    ) -> dict[str, Any]:
        found = self.get(plural, space, name)
        self.unchanged(found, thing, plural)
        if not dry:
            kept = {key: found["metadata"][key] for key in ("uid", "creationTimestamp")}
            found.clear()
            found.update(copy.deepcopy(thing))
            found["metadata"] |= kept
            self.touch(found["metadata"])
        return found

    def patch(self, found: dict[str, Any], kind: str, body: Any, plural: str) -> dict[str, Any]:
        self.unchanged(found, body, plural)
        changed = _json_patch(found, body) if "json-patch" in kind else _merged(found, body)
        found.clear()
        found.update(changed)
        self.touch(found["metadata"])
        return found

    @staticmethod
    def unchanged(found: dict[str, Any], body: Any, plural: str) -> None:
        """Refuse a write that was meant for an older version of the object."""
        wanted = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
        if wanted and wanted != found["metadata"]["resourceVersion"]:
            raise Refused(
                409,
                "Conflict",
                f"Operation cannot be fulfilled on {_qualified(plural)}"
                f' "{found["metadata"]["name"]}": the object has been modified; please apply your'
                " changes to the latest version and try again",
            )

    def listing(self, plural: str, space: str, query: dict[str, str]) -> dict[str, Any]:
        if token := query.get("continue"):
            things = self.pages.get(token)
            if things is None:
                raise Refused(410, "Expired", STALE, metadata={"continue": "inconsistent"})
        else:
            things = [
                copy.deepcopy(thing)
                for key, thing in sorted(self.objects[plural].items())
                if space in {"", key[0]} and _selected(thing, query)
            ]
            # Items of a list carry no kind of their own.
            for thing in things:
                thing.pop("kind", None)
                thing.pop("apiVersion", None)
        meta = {"resourceVersion": str(self.revision)}
        limit = int(query.get("limit", 0))
        if limit and len(things) > limit:
            token = base64.b64encode(uuid.uuid4().bytes).decode()
            self.pages[token] = things[limit:]
            meta["continue"] = token
            meta["remainingItemCount"] = len(things) - limit
            things = things[:limit]
        kind = next(kind for kind, name in KINDS.items() if name == plural)
        return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": meta, "items": things}


def _qualified(plural: str) -> str:
    group = next((group for group, table in GROUPS.items() if plural in table), "")
    return f"{plural}.{group}" if group else plural


def _selected(thing: dict[str, Any], query: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    for term in re.split(r",(?![^(]*\))", query.get("labelSelector", "")):
        if term and not _matches(labels, term.strip()):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, wanted = re.split(r"==?", term, maxsplit=1)
        value: Any = thing
        for key in path.split("."):
            value = (value or {}).get(key)
        if str(value or "") != wanted:
            return False
    return True


def _matches(labels: dict[str, str], term: str) -> bool:
    if found := re.fullmatch(r"(\S+) (in|notin) \(([^)]*)\)", term):
        values = {value.strip() for value in found[3].split(",")}
        return (labels.get(found[1]) in values) == (found[2] == "in")
    if "!=" in term:
        key, value = term.split("!=")
        return labels.get(key) != value
    if "=" in term:
        key, value = re.split(r"==?", term)
        return labels.get(key) == value
    return term[1:] not in labels if term.startswith("!") else term in labels


def _merged(old: Any, new: Any) -> Any:
    """A merge patch; lists of named things with `$patch: delete` as in a strategic one."""
    if isinstance(old, list) and isinstance(new, list) and any("$patch" in one for one in new):
        gone = {one["name"] for one in new if one.get("$patch") == "delete"}
        return [one for one in old if one.get("name") not in gone]
    if not isinstance(new, dict):
        return new
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _json_patch(old: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    result = copy.deepcopy(old)
    for step in steps:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        )
        at: Any = result
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key: Any = int(last) if isinstance(at, list) and last != "-" else last
        match step["op"]:
            case "test":
                there = at[key] if isinstance(at, list) else at.get(key)
                if there != step["value"]:
                    raise Refused(
                        422,
                        "Invalid",
                        "the server rejected our request due to an error in our request",
                    )
            case "remove":
                del at[key]
            case "add" if isinstance(at, list):
                at.insert(len(at) if key == "-" else key, step["value"])
            case _:
                at[key] = step["value"]
    return result


class _Handler(BaseHTTPRequestHandler):
    fake: FakeApi
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.fake.connections.add(self.connection)

    def finish(self) -> None:
        self.fake.connections.discard(self.connection)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *_: Any) -> None:
        """Say nothing on stderr."""

    def do_GET(self) -> None:
        self._serve()

    def __getattr__(self, name: str) -> Any:
        # http.server looks up do_POST, do_DELETE, ... by the method's name.
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length) if length else b""
        self.fake.requests.append(f"{self.command} {self.path}")
        try:
            if self._faulty(f"{self.command} {self.path}"):
                return
            user = self._user()
            self._route(split.path, query, json.loads(raw) if raw else None, user)
        except Refused as refused:
            self._answer(refused.status, refused.body)
        except BrokenPipeError:
            pass

    def _faulty(self, line: str) -> bool:
        for fault in self.fake.faults:
            if fault.times > 0 and re.search(fault.match, line):
                fault.times -= 1
                break
        else:
            return False
        if fault.delay:
            time.sleep(fault.delay)
        if fault.reset:
            # Linger 0 makes close() send RST, as a proxy that dies does.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RD)
            self.connection.close()
            raise BrokenPipeError
        if fault.status is None:
            return False
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        if fault.body is not None:
            self._send(fault.status, fault.body, {"Content-Type": "text/html", **headers})
        else:
            message = "the server is currently unable to handle the request"
            body = Refused(fault.status, "ServiceUnavailable", message).body
            self._answer(fault.status, body, headers)
        return True

    def _user(self) -> str:
        said = self.headers.get("authorization", "")
        user = "system:anonymous"
        if said.startswith("Bearer ") and said[7:] in self.fake.tokens:
            user = self.fake.tokens[said[7:]]
        elif said.startswith("Basic "):
            user = base64.b64decode(said[6:]).decode().partition(":")[0]
        elif isinstance(self.connection, ssl.SSLSocket) and (peer := self.connection.getpeercert()):
            names = dict(pair for group in peer["subject"] for pair in group)
            user = names["commonName"]
        elif self.fake.tokens:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return self.headers.get("impersonate-user") or user

    def _route(self, path: str, query: dict[str, str], body: Any, user: str) -> None:
        fake = self.fake
        if path == "/version":
            self._answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
            return
        if path.endswith("/selfsubjectreviews"):
            self._answer(201, {**body, "status": {"userInfo": {"username": user}}})
            return
        parts = path.strip("/").split("/")
        group = "" if parts[0] == "api" else parts[1]
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        version = parts[1] if parts[0] == "api" else (parts[2] if len(parts) > 2 else "")
        table = CORE if not group else GROUPS.get(group, {})
        if group == "kubeflow.org" and not rest:
            self._discover(version)
            return
        if group == "kueue.x-k8s.io" and not rest and fake.kueue:
            versions = [{"version": one} for one in fake.kueue]
            self._answer(
                200, {"kind": "APIGroup", "versions": versions, "preferredVersion": versions[0]}
            )
            return
        limited = {"kubeflow.org": fake.versions, "kueue.x-k8s.io": fake.topologies}
        served = version in limited.get(group, [version])
        space = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            space, rest = rest[1], rest[2:]
        plural = rest[0] if rest else ""
        if not served or plural not in table:
            self._send(404, b"404 page not found\n", {"Content-Type": "text/plain"})
            return
        name, sub = (*rest[1:], "", "")[:2]
        self._allowed(plural, space, name, sub=sub, group=group, user=user)
        if sub == "log":
            self._log(space, name, query)
            return
        with fake.lock:
            answer = self._do(plural, space, name, query, body)
            if group and "items" not in answer:
                answer = {**answer, "apiVersion": f"{group}/{version}"}
        self._answer(201 if self.command == "POST" else 200, answer)

    def _do(
        self, plural: str, space: str, name: str, query: dict[str, str], body: Any
    ) -> dict[str, Any]:
        fake = self.fake
        match self.command:
            case "GET":
                one = fake.get(plural, space, name) if name else None
                return one or fake.listing(plural, space, query)
            case "POST":
                return fake.create(plural, space, body, dry=query.get("dryRun") == "All")
            case "PUT":
                return fake.replace(plural, space, name, body, dry=query.get("dryRun") == "All")
            case "DELETE" if not name:
                # The real server calls it deletecollection: all of the namespace.
                for one in fake.listing(plural, space, {})["items"]:
                    fake.remove(plural, space, one["metadata"]["name"], body or {})
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case "DELETE":
                fake.remove(plural, space, name, body or {})
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case _:
                kind = self.headers.get("content-type", "")
                return fake.patch(fake.get(plural, space, name), kind, body, plural)

    def _discover(self, version: str) -> None:
        fake = self.fake
        if version in fake.versions:
            resources = [{"name": "mpijobs", "kind": "MPIJob", "namespaced": True}]
            self._answer(200, {"kind": "APIResourceList", "resources": resources})
        elif not version and fake.versions:
            versions = [{"version": one} for one in fake.versions]
            self._answer(200, {"kind": "APIGroup", "name": "kubeflow.org", "versions": versions})
        else:
            self._send(404, b"404 page not found\n", {"Content-Type": "text/plain"})

    def _allowed(
        self, plural: str, space: str, name: str, *, sub: str, group: str, user: str
    ) -> None:
        verbs = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
        verb = verbs.get(self.command, "get" if name else "list")
        resource = f"{plural}/{sub}" if sub else plural
        if any(rule.fullmatch(f"{verb} {resource} {space}".strip()) for rule in self.fake.denied):
            where = f'in the namespace "{space}"' if space else "at the cluster scope"
            named = f' "{name}"' if name else ""
            raise Refused(
                403,
                "Forbidden",
                f'{_qualified(plural)}{named} is forbidden: User "{user}" cannot {verb} resource'
                f' "{resource}" in API group "{group}" {where}',
            )

    def _log(self, space: str, name: str, query: dict[str, str]) -> None:
        fake = self.fake
        pod = fake.get("pods", space, name)
        containers = [one["name"] for one in pod.get("spec", {}).get("containers", ())]
        wanted = query.get("container")
        if wanted is None and len(containers) > 1:
            raise Refused(
                400,
                "BadRequest",
                f"a container name must be specified for pod {name}, choose one of:"
                f" [{' '.join(containers)}]",
            )
        if (space, name) not in fake.logs:
            raise Refused(
                400,
                "BadRequest",
                f'container "{wanted}" in pod "{name}" is waiting to start: ContainerCreating',
            )
        log = fake.logs[space, name]
        follow = query.get("follow") == "true"
        since = query.get("sinceTime", "")
        start = 0
        if "tailLines" in query:
            start = max(0, len(log.lines) - int(query["tailLines"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while True:
            with fake.lock:
                while follow and len(log.lines) <= start and not log.ended:
                    fake.lock.wait()
                lines, start = log.lines[start:], len(log.lines)
                ended = log.ended or not follow
            for at, line in lines:
                # A time with seconds only lets all lines of that second through.
                if since and at[: len(since) - 1] < since[:-1]:
                    continue
                self._chunk(f"{at} ".encode() + line if "timestamps" in query else line)
                sent += 1
                if log.breaks_after == sent:
                    log.breaks_after = None
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    raise BrokenPipeError
            if ended and start == len(log.lines):
                break
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _answer(
        self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        headers = {"Content-Type": "application/json", **(headers or {})}
        self._send(status, json.dumps(body).encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "GET":
            for text in self.fake.warnings:
                self.send_header("Warning", f'299 - "{text}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
