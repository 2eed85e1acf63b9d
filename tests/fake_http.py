"""HTTP for the fake API server: requests read by hand, for speed, and routed."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import select
import socket
import ssl
import struct
import time
import traceback
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import StreamRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import fake_crd
import fake_exec
import fake_logs
import fake_rbac
from fake_resources import RESOURCES, Object, Refused, Resource
from fake_store import Change, Entry, selector

if TYPE_CHECKING:
    from fake_api import FakeApi

WHOLE = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
"""The media types of objects that are sent whole."""
VERBS = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
LOST = (BrokenPipeError, ConnectionError, TimeoutError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for an object or a list, taken apart."""

    resource: Resource
    version: str
    space: str
    name: str
    sub: str
    query: dict[str, str]
    body: Any
    user: str

    @property
    def api(self) -> str:
        """The apiVersion that answers carry."""
        group = self.resource.group
        return f"{group}/{self.version}" if group else self.version


class Handler(StreamRequestHandler):
    """One connection, with as many requests as its client sends."""

    fake: FakeApi
    # An answer in two segments must not wait for the acknowledgement of the first.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.fake.connections.add(self.connection)

    def finish(self) -> None:
        self.fake.connections.discard(self.connection)
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(*LOST):
            while self._one():
                pass

    def _one(self) -> bool:
        """Serve a request; False when there are no more."""
        line = self.rfile.readline(65536).decode("latin-1").split()
        if len(line) != 3:
            return False
        self.command, self.path, _ = line
        self.headers: dict[str, str] = {}
        while text := self.rfile.readline(65536).decode("latin-1").strip():
            name, _, value = text.partition(":")
            self.headers[name.lower()] = value.strip()
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length) if length else b""
        self.cut: int | None = None
        self.said: list[str] = []
        self._serve(raw)
        return self.headers.get("connection", "").lower() != "close"

    def _serve(self, raw: bytes) -> None:
        fake, line = self.fake, f"{self.command} {self.path}"
        fake.requests.append(line)
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        try:
            if self._faulty(line):
                return
            fake.run_hooks(line, late=False)
            user = self._user()
            try:
                body = json.loads(raw) if raw else None
            except ValueError as error:
                raise Refused(400, "BadRequest", f"error decoding: {error}") from error
            self._route(unquote(split.path), query, body, user)
        except Refused as refused:
            self.answer(refused.status, refused.body, refused.headers)
        except LOST[:3]:
            raise
        except Exception:  # noqa: BLE001
            # A mistake of the fake, or of a hook: said where a test can see it.
            fake.crashes.append(traceback.format_exc())
            self.answer(500, Refused(500, "InternalError", fake.crashes[-1]).body)

    def _faulty(self, line: str) -> bool:
        with self.fake.lock:
            for fault in self.fake.faults:
                if fault.times > 0 and re.search(fault.match, line):
                    fault.times -= 1
                    break
            else:
                return False
        if fault.delay:
            time.sleep(fault.delay)
        if fault.silent:
            select.select([self.connection], [], [], 60)
            raise BrokenPipeError
        if fault.reset:
            self._reset()
        self.cut = fault.cut
        if fault.status is None:
            return False
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        if fault.body is not None:
            self.send(fault.status, fault.body, {"Content-Type": fault.kind, **headers})
        else:
            message = "the server is currently unable to handle the request"
            body = Refused(fault.status, "ServiceUnavailable", message).body
            self.answer(fault.status, body, headers)
        return True

    def _reset(self) -> None:
        # Linger 0 makes close() send RST, as a proxy that dies does.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()
        raise BrokenPipeError

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
        wanted = self.headers.get("impersonate-user")
        if wanted:
            self._check(user, fake_rbac.Asked("impersonate", "users", name=wanted))
        return wanted or user

    def _check(self, user: str, asked: fake_rbac.Asked) -> None:
        with self.fake.lock:
            if self.fake.allowed(user, *asked):
                return
        verb, resource, group, space, name = asked
        where = f'in the namespace "{space}"' if space else "at the cluster scope"
        named = f' "{name}"' if name else ""
        plural = resource.partition("/")[0]
        qualified = f"{plural}.{group}" if group else plural
        raise Refused(
            403,
            "Forbidden",
            f'{qualified}{named} is forbidden: User "{user}" cannot {verb} resource'
            f' "{resource}" in API group "{group}" {where}',
        )

    def _route(self, path: str, query: dict[str, str], body: Any, user: str) -> None:
        parts = path.strip("/").split("/")
        if path == "/version":
            self.answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
            return
        if path in {"/healthz", "/livez", "/readyz"}:
            self.send(200, b"ok", {"Content-Type": "text/plain"})
            return
        if path.startswith(("/apis/authentication.k8s.io/", "/apis/authorization.k8s.io/")):
            self._review(parts[-1], body, user)
            return
        core = parts[0] == "api"
        group = "" if core else "".join(parts[1:2])
        version = "".join(parts[1:2] if core else parts[2:3])
        rest = parts[2:] if core else parts[3:]
        if parts[0] not in {"api", "apis"} or not rest:
            self._discover(core=core, group=group, version=version, path=path)
            return
        space = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] != "status":
            space, rest = rest[1], rest[2:]
        resource = RESOURCES.get(f"{rest[0]}.{group}" if group else rest[0])
        if resource is None or not self.fake.serves(resource, version):
            self._missing()
            return
        name, sub = (*rest[1:], "", "")[:2]
        self._object(
            Call(
                resource=resource,
                version=version,
                space=space,
                name=name,
                sub=sub,
                query=query,
                body=body,
                user=user,
            )
        )

    def _missing(self) -> None:
        self.send(404, b"404 page not found\n", {"Content-Type": "text/plain"})

    def _object(self, call: Call) -> None:
        fake, resource, space, name = self.fake, call.resource, call.space, call.name
        watch = call.query.get("watch") in {"true", "1"} and self.command == "GET"
        verb = VERBS.get(self.command, "get" if name else ("watch" if watch else "list"))
        if verb == "delete" and not name:
            verb = "deletecollection"
        if call.sub == "exec":
            # The right is to create, since 1.35 also for those who upgrade a GET.
            verb = "create"
        plural = f"{resource.plural}/{call.sub}" if call.sub else resource.plural
        self._check(call.user, fake_rbac.Asked(verb, plural, resource.group, space, name))
        if call.sub == "log":
            fake_logs.serve(self, space, name, call.query)
            return
        if call.sub == "proxy":
            self._proxy(call)
            return
        if call.sub == "exec":
            with fake.lock:
                pod = fake.get(resource, space, name)
            fake_exec.serve(self, fake.execs, pod)
            return
        if not resource.wide and not space and (name or self.command != "GET"):
            said = "the server does not allow this method on the requested resource"
            raise Refused(405, "MethodNotAllowed", said)
        if watch:
            self._watch(call)
            return
        with fake.lock:
            if verb == "get":
                raw = fake.entry(resource, space, name).json(version=call.api, bare=False)
            elif verb == "list":
                raw = self._list(call)
            else:
                raw = self._write(call)
        fake.run_hooks(f"{self.command} {self.path}", late=True)
        headers = {"Content-Type": "application/json"}
        self.send(201 if self.command == "POST" else 200, raw, headers)

    def _proxy(self, call: Call) -> None:
        """Pass a request on to what is behind a service: `http:NAME:PORT`."""
        name, _, port = call.name.removeprefix("http:").partition(":")
        with self.fake.lock:
            service = self.fake.get(call.resource, call.space, name)
        ports = [str(one["port"]) for one in service["spec"]["ports"]]
        behind = self.fake.behind.get((call.space, name))
        if port not in ports or behind is None:
            said = f'no endpoints available for service "{call.name}"'
            raise Refused(503, "ServiceUnavailable", said)
        assert urlsplit(self.path).path.endswith("/proxy/api/v1/query")
        self.answer(200, behind.answer(call.query["query"]))

    def _list(self, call: Call) -> bytes:
        resource = call.resource
        meta, entries = self.fake.page(resource, call.space, call.query)
        head = {"kind": f"{resource.kind}List", "apiVersion": call.api, "metadata": meta}
        # Items of a list carry no kind of their own, except those of CRDs.
        items = (one.json(version=call.api, bare=not resource.custom) for one in entries)
        return json.dumps(head).encode()[:-1] + b', "items": [' + b", ".join(items) + b"]}"

    def _write(self, call: Call) -> bytes:
        fake, dry = self.fake, call.query.get("dryRun") == "All"
        where, body, user = (call.resource, call.space, call.name), call.body, call.user
        more: dict[str, Any] = {"dry": dry, "user": user, "version": call.version}
        success: Object = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        answer: Object | None
        if self.command != "DELETE" and body is None:
            raise Refused(400, "BadRequest", "unexpected end of JSON input")
        kind = self.headers.get("content-type", "")
        if self.command in {"POST", "PUT"} and kind and kind.partition(";")[0] not in WHOLE:
            raise Refused(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include:"
                f" {', '.join(WHOLE)}",
            )
        if isinstance(body, dict) and self.command in {"POST", "PUT", "PATCH"}:
            validation = call.query.get("fieldValidation", "Warn")
            self.said += fake_crd.unknown(fake, call.resource, body, call.version, validation)
        match self.command:
            case "POST" if call.sub == "binding":
                fake.bind(*where[1:], body, dry=dry)
                return json.dumps({**success, "code": 201}).encode()
            case "POST" if call.sub == "eviction":
                reason, said = "EvictionByEvictionAPI", "Eviction API: evicting"
                fake.disrupt(*where[1:], reason, said, body.get("deleteOptions"), dry=dry)
                return json.dumps({**success, "code": 201}).encode()
            case "POST":
                answer = fake.create(call.resource, call.space, body, **more)
            case "PUT":
                answer = fake.replace(*where, body, sub=call.sub, **more)
            case "PATCH":
                answer = fake.patch(*where, body, kind, sub=call.sub, **more)
            case "DELETE" if not call.name:
                # The real server calls it deletecollection: all of the namespace.
                for one in fake.listing(call.resource, call.space, call.query):
                    name = one["metadata"]["name"]
                    fake.remove(call.resource, call.space, name, body, dry=dry, user=user)
                answer = None
            case _:
                options = {**call.query, **(body or {})}
                answer = fake.remove(*where, options, dry=dry, user=user)
        if answer is None:
            return json.dumps(success).encode()
        return Entry(answer, 0).json(version=call.api, bare=False)

    # Reviews and discovery.

    def _review(self, what: str, body: Any, user: str) -> None:
        fake, spec = self.fake, (body or {}).get("spec") or {}
        with fake.lock:
            if what == "selfsubjectreviews":
                info = {"username": user, "groups": fake_rbac.groups(fake, user)}
                status: Object = {"userInfo": info}
            elif what == "selfsubjectaccessreviews":
                status = fake_rbac.review(fake, user, spec)
            elif what == "selfsubjectrulesreviews":
                status = fake_rbac.rules_review(fake, user, spec.get("namespace", ""))
            else:
                self._missing()
                return
        self.answer(201, {**body, "status": status})

    def _discover(self, *, core: bool, group: str, version: str, path: str) -> None:
        fake = self.fake
        groups = self._groups()
        if path.strip("/") == "api":
            self.answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path.strip("/") == "apis":
            listed = [_api_group(name, versions) for name, versions in groups.items() if name]
            self.answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
        elif not core and group in groups and not version:
            said = {"kind": "APIGroup", "apiVersion": "v1", **_api_group(group, groups[group])}
            self.answer(200, said)
        elif version in groups.get(group, ()):
            served = [
                one
                for one in RESOURCES.values()
                if one.group == group and fake.serves(one, version)
            ]
            resources = [
                {"name": name, "singularName": "", "kind": one.kind, "namespaced": not one.wide}
                for one in served
                for name in (one.plural, *([f"{one.plural}/status"] if one.status else []))
            ]
            api = f"{group}/{version}" if group else version
            said = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api}
            self.answer(200, {**said, "resources": resources})
        else:
            self._missing()

    def _groups(self) -> dict[str, list[str]]:
        """The versions of each group that is served, the preferred one first."""
        fake = self.fake
        found: dict[str, list[str]] = {}
        for one in RESOURCES.values():
            if one.name in fake.unserved or one.group in fake.unserved:
                continue
            if versions := fake.versions_of(one):
                listed = found.setdefault(one.group, [])
                listed += [version for version in versions if version not in listed]
        if fake.kueue:
            # Versions of its group that a resource need not have.
            found["kueue.x-k8s.io"] = list(fake.kueue)
        return found

    # Watches and logs.

    def _watch(self, call: Call) -> None:
        fake, resource, space, query = self.fake, call.resource, call.space, call.query
        if query.get("resourceVersionMatch") and "sendInitialEvents" not in query:
            raise Refused(
                422,
                "Invalid",
                'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden:'
                " resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        selects = selector(resource, query)
        api = call.api
        seconds = float(query.get("timeoutSeconds") or 1800)
        deadline = time.monotonic() + seconds
        bookmarks = query.get("allowWatchBookmarks") == "true"
        asked = query.get("resourceVersion", "")
        with fake.lock:
            opened = fake.watching
            first: list[bytes] = []
            seen = int(asked) if asked.isdigit() and asked != "0" else fake.revision
            if asked in {"", "0"}:
                _, entries = fake.page(resource, space, {**query, "resourceVersion": ""})
                first = [_event("ADDED", one.json(version=api, bare=False)) for one in entries]
        self.begin({"Content-Type": "application/json"})
        for line in first:
            self.chunk(line)
        while True:
            with fake.lock:
                changes = self._changes(resource, seen)
                while not changes and seen >= fake.compacted and opened == fake.watching:
                    left = deadline - time.monotonic()
                    if left <= 0 or not fake.lock.wait(left):
                        break
                    changes = self._changes(resource, seen)
                gone = seen < fake.compacted and not changes
                ended = opened != fake.watching or time.monotonic() >= deadline
                compacted = fake.compacted
                seen = max(seen, fake.revision)
                lines = [
                    line
                    for one in changes
                    if (not space or one.key[0] == space)
                    and (line := _seen(one, selects, api)) is not None
                ]
            if gone:
                said = f"too old resource version: {asked} ({compacted})"
                self.chunk(_event("ERROR", json.dumps(Refused(410, "Expired", said).body).encode()))
                break
            for line in lines:
                self.chunk(line)
            if ended:
                if bookmarks and opened == fake.watching:
                    mark = {"kind": resource.kind, "apiVersion": api}
                    mark["metadata"] = {"resourceVersion": str(seen)}
                    self.chunk(_event("BOOKMARK", json.dumps(mark).encode()))
                break
        self.chunk(b"")

    def _changes(self, resource: Resource, seen: int) -> list[Change]:
        if seen < self.fake.compacted:
            return []
        changes = self.fake.changes[resource.name]
        start = len(changes)
        while start and changes[start - 1].revision > seen:
            start -= 1
        return changes[start:]

    # Bytes.

    def begin(self, headers: dict[str, str]) -> None:
        self._head(200, {**headers, "Transfer-Encoding": "chunked"})

    def _head(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Date: {self.fake.date()}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def no_content(self) -> None:
        """What comes of the log of a pod without a node."""
        self._head(204, {})

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def answer(
        self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        headers = {"Content-Type": "application/json", **(headers or {})}
        self.send(status, json.dumps(body).encode(), headers)

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        body = body if self.fake.rewrites is None else self.fake.rewrites(body)
        headers = {**headers, "Content-Length": str(len(body))}
        texts = [*self.said, *(self.fake.warnings if self.command != "GET" else ())]
        if texts:
            headers["Warning"] = ", ".join(f'299 - "{text}"' for text in texts)
        if self.cut is not None and self.cut < len(body):
            self._head(status, headers, body[: self.cut])
            # What was sent must arrive before the reset does.
            time.sleep(0.02)
            self._reset()
        self._head(status, headers, body)


def _api_group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _event(kind: str, raw: bytes) -> bytes:
    return b'{"type": "' + kind.encode() + b'", "object": ' + raw + b"}\n"


def _seen(change: Change, selects: Any, api: str) -> bytes | None:
    """What a watch with a selector sees of a change, if anything."""
    was = change.before is not None and (selects is None or selects(change.before.thing))
    now = change.after is not None and (selects is None or selects(change.after.thing))
    if now and change.after is not None:
        return _event("MODIFIED" if was else "ADDED", change.after.json(version=api, bare=False))
    if was and change.before is not None:
        gone = json.loads(change.before.json(version=api, bare=False))
        gone["metadata"]["resourceVersion"] = str(change.revision)
        return _event("DELETED", json.dumps(gone).encode())
    return None
