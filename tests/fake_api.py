"""An API server over real HTTP, in a thread: enough of Kubernetes to be wrong like it.

Revisions with their past, exact and paged lists, watches, conflicts, dry runs, owner references
and finalizers, the three kinds of patches, status written apart, what CRDs prune, rules of pods,
admission policies, quotas, PodSecurity, RBAC, logs that are followed, discovery, and faults on
demand. Texts are those of a 1.36 control plane.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import ssl
import string
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import fake_admission
import fake_crd
import fake_exec
import fake_logs
import fake_pods
import fake_quota
import fake_rbac
from fake_http import Handler
from fake_logs import Log
from fake_patch import json_patch, merged, strategic
from fake_prometheus import FakePrometheus
from fake_resources import (
    NAME,
    RESOURCES,
    UNUSUAL,
    Key,
    Object,
    Refused,
    Resource,
    conflict,
    copied,
    invalid,
    named,
    of,
    rfc3339,
)
from fake_store import Entry, Store, selector

__all__ = ["FakeApi", "Fault", "Log", "Refused", "kubeconfig", "rfc3339"]

WRITTEN_APART = {"uid", "creationTimestamp", "namespace", "name", "generation", "deletionTimestamp"}
"""Metadata that no update changes."""


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


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to requests whose `METHOD /path` matches, so many times.

    `silent` gives no answer until the client hangs up; `cut` breaks the connection after so many
    bytes of the answer's body. `kind` is the content type of `body`.
    """

    match: str
    times: int = 1
    status: int | None = None
    retry_after: int | None = None
    delay: float = 0.0
    silent: bool = False
    reset: bool = False
    body: bytes | None = None
    kind: str = "text/html"
    cut: int | None = None


@dataclass(slots=True, kw_only=True)
class Hook:
    """What a test does before, or after, requests whose `METHOD /path` matches."""

    match: str
    call: Callable[[], object]
    times: int = 1
    late: bool = False


class FakeApi(Store):
    """The server, and the hands that its world has: add, change and look at what it stores."""

    gangs: tuple[str, ...] = ("v1alpha2",)
    """The versions of PodGroup and Workload of `scheduling.k8s.io`, where they are served."""
    logging = 0
    """Raised to cut all logs that are followed."""
    watching = 0
    """Raised to end all watches that are open."""
    rewrites: Callable[[bytes], bytes] | None = None
    """What becomes of the body of each answer on its way out."""

    counts_quotas = True
    """Whether the usage of quotas follows each change."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.versions = ["v2beta1"]
        self.suspends = True
        """Whether MPIJobs have `runPolicy.suspend`; older CRDs prune it."""
        self.kueue: list[str] = []
        """The versions of its group, the preferred one first; none where there is no Kueue."""
        self.topologies: list[str] = []
        """Those of them that have topologies."""
        self.unserved: set[str] = set(UNUSUAL)
        """Groups, and resources as `plural.group`, that this server does not have."""
        self.faults: list[Fault] = []
        self.hooks: list[Hook] = []
        self.denied: list[re.Pattern[str]] = []
        self.rbac = False
        """Whether stored roles and bindings decide; else everybody may do all but `deny`."""
        self.groups: dict[str, list[str]] = {"admin": ["system:masters"]}
        self.extra: dict[str, dict[str, list[str]]] = {}
        """What the server knows of users besides: {user: {key: values}}."""
        self.tokens: dict[str, str] = {}
        self.logs: dict[Key, Log] = {}
        # Of the other containers of pods, whose main ones are in `logs`.
        self.container_logs: dict[tuple[str, str, str], Log] = {}
        self.execs = fake_exec.Execs()
        self.behind: dict[Key, FakePrometheus] = {}
        """What answers behind services, by namespace and name."""
        self.requests: list[str] = []
        self.crashes: list[str] = []
        """Tracebacks of mistakes inside the server, which its clients see as 500."""
        self.warnings: list[str] = []
        self.mutators: list[Callable[[Resource, Object, str], None]] = []
        """Webhooks: called with the resource, the new object and CREATE or UPDATE."""
        self.collects_garbage = True
        self.graceful = False
        """Whether pods that are deleted stay on their node until a kubelet confirms."""
        self.going: dict[str, tuple[Resource, Key]] = {}
        """What waits for the end of all that it owns (foreground deletion), by uid."""
        self.now = 0.0
        self.skew = 0.0
        """Seconds by which the server's clock is ahead of this machine's."""
        self.connections: set[socket.socket] = set()
        for name in ("default", "kube-system", "team-a"):
            self.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api = self

        class Connected(Handler):
            fake = api

        class Server(ThreadingMixIn, TCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128
            # A client that leaves is no news.
            handle_error = staticmethod(lambda *_: None)

        self._server = Server(("127.0.0.1", 0), Connected)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering; the port refuses connections from now on."""
        self.close_watches()
        self.cut_logs()
        with self.lock:
            for log in (*self.logs.values(), *self.container_logs.values()):
                log.ended = True
            self.lock.notify_all()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    # What tests say about how it behaves.

    def deny(self, pattern: str) -> None:
        """Forbid what matches `verb resource namespace`, such as `list nodes`."""
        self.denied.append(re.compile(pattern))

    def fail(self, match: str, **fault: Any) -> None:
        """Let requests that match go wrong, once unless `times` says more."""
        self.faults.append(Fault(match=match, **fault))

    def before(self, match: str, call: Callable[[], object], *, times: int = 1) -> None:
        """Do something once a request that matches has arrived, before it is looked at."""
        self.hooks.append(Hook(match=match, call=call, times=times))

    def after(self, match: str, call: Callable[[], object], *, times: int = 1) -> None:
        """Do something once a request that matches has been done, before it is answered."""
        self.hooks.append(Hook(match=match, call=call, times=times, late=True))

    def run_hooks(self, line: str, *, late: bool) -> None:
        """Call what waits for a request such as `GET /api/v1/pods`."""
        for hook in list(self.hooks):
            if hook.late == late and re.search(hook.match, line):
                with self.lock:
                    due = hook.times > 0
                    hook.times -= 1
                if due:
                    hook.call()

    def close_watches(self) -> None:
        """End all watches that are open, as a server does that restarts."""
        with self.lock:
            self.watching += 1
            self.lock.notify_all()

    def cut_logs(self) -> None:
        """Break all logs that are followed, as a server does that restarts."""
        with self.lock:
            self.logging += 1
            self.lock.notify_all()

    def clock(self) -> float:
        """The server's idea of the time, in Unix seconds."""
        return (self.now or time.time()) + self.skew

    def date(self) -> str:
        """The time as the Date header has it."""
        return formatdate(self.clock(), usegmt=True)

    def service_account(
        self, name: str, namespace: str = "default", *, node: str | None = None
    ) -> str:
        """A token for a service account, which is stored if it is new; for a pod of a node."""
        if not self.find("ServiceAccount", name, namespace):
            meta = {"name": name, "namespace": namespace}
            self.add({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
        extra = {} if node is None else {"authentication.kubernetes.io/node-name": [node]}
        token = f"token-of-{namespace}-{name}-{node or ''}"
        user = fake_rbac.User(f"system:serviceaccount:{namespace}:{name}", **extra)
        self.tokens[token] = user
        return token

    # What tests do to the objects.

    def add(self, thing: Object) -> Object:
        """Store an object as its creator would, with its status if it has one."""
        resource = of(thing)
        space = "" if resource.wide else thing["metadata"].get("namespace", "default")
        with self.lock:
            return self.create(resource, space, copied(thing), dry=False, hand=True)

    def find(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The stored object itself, to be looked at or changed."""
        resource = named(kind)
        with self.lock:
            entry = self.tables[resource.name].get(("" if resource.wide else namespace, name))
            return None if entry is None else _exposed(entry)

    def all(self, kind: str) -> list[Object]:
        with self.lock:
            return [_exposed(one) for one in self.tables[named(kind).name].values()]

    @contextmanager
    def edit(self, kind: str, name: str, namespace: str = "default") -> Iterator[Object]:
        """A copy of an object that becomes its next revision; no rule stands in the way."""
        resource = named(kind)
        key = ("" if resource.wide else namespace, name)
        with self.lock:
            thing = copied(self.get(resource, *key))
            yield thing
            self.store(resource, key, thing)

    def touch(self, meta: Object) -> None:
        """Give an object that was changed in place a new revision."""
        with self.lock:
            for name, table in self.tables.items():
                for key, entry in table.items():
                    if entry.thing["metadata"] is meta:
                        self.put(RESOURCES[name], key, entry.thing).exposed = True
                        return
        raise KeyError(meta.get("name"))

    def write(self, pod: str, line: str | bytes, *, at: str, namespace: str = "default") -> None:
        """Let a container write at a time such as `2026-11-21T07:00:00.000000000Z`.

        A text is a whole line, bytes are themselves.
        """
        with self.lock:
            raw = line if isinstance(line, bytes) else line.encode() + b"\n"
            log = self.logs.setdefault((namespace, pod), Log())
            log.lines += [(at, part) for part in fake_logs.parts(raw)]
            self.lock.notify_all()

    def end_log(self, pod: str, namespace: str = "default") -> None:
        with self.lock:
            self.logs.setdefault((namespace, pod), Log()).ended = True
            self.lock.notify_all()

    # What requests do. All of it under the lock.

    def create(
        self,
        which: Resource | str,
        space: str,
        thing: Object,
        *,
        dry: bool = False,
        user: str = "admin",
        version: str | None = None,
        hand: bool = False,
    ) -> Object:
        """Admit and store a new object; `hand` keeps a status, which a request cannot write."""
        resource = resolved(which)
        meta = thing.setdefault("metadata", {})
        if space and ("", space) not in self.tables["namespaces"]:
            raise Refused(404, "NotFound", f'namespaces "{space}" not found')
        if meta.get("resourceVersion") and not hand:
            said = "resourceVersion should not be set on objects to be created"
            raise Refused(500, "InternalError", said)
        if not meta.get("name") and meta.get("generateName"):
            letters = string.ascii_lowercase + string.digits
            meta["name"] = meta["generateName"] + "".join(random.choices(letters, k=5))
        name = meta.get("name") or ""
        self._named_well(resource, thing, name, space)
        if space:
            meta["namespace"] = space
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", rfc3339(self.clock()))
        if resource.status and not resource.wide:
            meta.setdefault("generation", 1)
        if resource.status and not hand:
            thing.pop("status", None)
        fake_crd.prune(self, resource, thing, version or self.preferred(resource))
        if not hand:
            fake_crd.check(resource, thing, version or self.preferred(resource))
        fake_crd.fill(self, resource, thing, version or self.preferred(resource))
        for mutate in self.mutators:
            mutate(resource, thing, "CREATE")
        attempt = fake_admission.Attempt(resource, "CREATE", user)
        thing = fake_admission.mutated(self, attempt, thing)
        if resource.name == "pods":
            fake_pods.admit_new(self, thing)
        else:
            fake_pods.check_others(resource, thing)
        fake_admission.validated(self, attempt, thing)
        fake_quota.admit(self, resource, thing, hand=hand)
        if (space, name) in self.tables[resource.name]:
            raise Refused(409, "AlreadyExists", f'{resource.name} "{name}" already exists')
        if not dry:
            self.store(resource, (space, name), thing)
        return thing

    @staticmethod
    def _named_well(resource: Resource, thing: Object, name: str, space: str) -> None:
        inside = thing["metadata"].get("namespace")
        if space and inside and inside != space:
            raise Refused(
                400,
                "BadRequest",
                "the namespace of the provided object does not match the namespace sent on the"
                " request",
            )
        rbac = resource.group == "rbac.authorization.k8s.io"
        if not (name and rbac) and (not NAME.fullmatch(name) or len(name) > 253):
            raise invalid(
                thing.get("kind", resource.kind),
                name,
                f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must'
                " consist of lower case alphanumeric characters, '-' or '.', and must start and end"
                " with an alphanumeric character (e.g. 'example.com', regex used for validation is"
                r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            )

    def store(self, resource: Resource, key: Key, thing: Object) -> None:
        """Keep an object as its next revision, and what follows from that."""
        self.put(resource, key, thing)
        fake_quota.counted(self, resource, key[0])

    def get(self, which: Resource | str, space: str, name: str) -> Object:
        resource = resolved(which)
        return self.entry(resource, space, name).thing

    def entry(self, resource: Resource, space: str, name: str) -> Entry:
        """One object with its JSON; 404 if there is none."""
        found = self.tables[resource.name].get((space, name))
        if found is None:
            raise Refused(404, "NotFound", f'{resource.name} "{name}" not found')
        return found

    def remove(
        self,
        which: Resource | str,
        space: str,
        name: str,
        options: Object | None = None,
        *,
        dry: bool = False,
        user: str = "admin",
    ) -> Object | None:
        """Delete an object, or mark it where something has to happen first: what is left of it."""
        resource, options = resolved(which), options or {}
        found = self.get(resource, space, name)
        meta = found["metadata"]
        self._preconditions(resource, meta, options.get("preconditions") or {})
        attempt = fake_admission.Attempt(resource, "DELETE", user, found)
        fake_admission.validated(self, attempt, None)
        if dry:
            return found
        policy = options.get("propagationPolicy")
        if policy == "Foreground" and self.collects_garbage:
            self.collect(meta["uid"])
            if self.owned.get(meta["uid"]):
                kept = {*(meta.get("finalizers") or ()), "foregroundDeletion"}
                self.going[meta["uid"]] = (resource, (space, name))
                return self._mark(resource, (space, name), finalizers=sorted(kept))
        running = (found.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        bound = resource.name == "pods" and (found.get("spec") or {}).get("nodeName")
        seconds = (
            options.get("gracePeriodSeconds", 30) if self.graceful and bound and running else 0
        )
        if seconds or meta.get("finalizers"):
            return self._mark(resource, (space, name), grace=seconds)
        self.drop(resource, (space, name))
        if resource.plural == "namespaces":
            self._empty(name)
        fake_quota.counted(self, resource, space)
        if self.collects_garbage and policy != "Orphan":
            self.collect(meta["uid"])
        self._finish_owners(meta)
        return None

    def disrupt(
        self,
        space: str,
        name: str,
        reason: str,
        message: str,
        options: Object | None = None,
        **how: Any,
    ) -> None:
        """End a pod from outside: its condition says why, then it is deleted."""
        with self.lock:
            pod = copied(self.get("pods", space, name))
            target = {"type": "DisruptionTarget", "status": "True"}
            target |= {"reason": reason, "message": message}
            target |= {"lastTransitionTime": rfc3339(self.clock())}
            status = pod.setdefault("status", {})
            others = [
                one for one in status.get("conditions") or () if one["type"] != target["type"]
            ]
            status["conditions"] = [*others, target]
            if not how.get("dry"):
                self.store(RESOURCES["pods"], (space, name), pod)
            self.remove("pods", space, name, options, **how)

    def _empty(self, space: str) -> None:
        """Drop all that a namespace held."""
        for name, table in self.tables.items():
            for key in [key for key in table if key[0] == space]:
                self.drop(RESOURCES[name], key)

    @staticmethod
    def _preconditions(resource: Resource, meta: Object, wanted: Object) -> None:
        for key, word, more in (
            ("uid", "UID", ". The object might have been deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", ". The object might have been modified"),
        ):
            if wanted.get(key) and wanted[key] != meta[key]:
                raise conflict(
                    resource,
                    meta["name"],
                    f"the {word} in the precondition ({wanted[key]}) does not match the {word} in"
                    f" record ({meta[key]}){more}",
                )

    def _mark(
        self, resource: Resource, key: Key, *, grace: int | None = None, **meta: Any
    ) -> Object:
        """Let an object know that it is to go, and a pod by when: later calls only end the wait."""
        if grace:
            meta["deletionGracePeriodSeconds"] = grace
        thing = copied(self.get(resource, *key))
        if "deletionTimestamp" not in thing["metadata"]:
            thing["metadata"] |= {"deletionTimestamp": rfc3339(self.clock()), **meta}
            self.store(resource, key, thing)
        elif grace == 0 != thing["metadata"].get("deletionGracePeriodSeconds", 0):
            thing["metadata"]["deletionGracePeriodSeconds"] = 0
            self.store(resource, key, thing)
        return thing

    def collect(self, uid: str) -> None:
        """Delete what an object owned that is gone, as the garbage collector does."""
        for name, key in sorted(self.owned.get(uid, ())):
            if key in self.tables[name]:
                self.remove(name, *key)

    def _finish_owners(self, meta: Object) -> None:
        """Let owners go that only waited for this one (foreground deletion)."""
        for owner in meta.get("ownerReferences") or ():
            uid = owner.get("uid")
            if uid in self.going and not self.owned.get(uid):
                resource, key = self.going.pop(uid)
                thing = copied(self.get(resource, *key))
                thing["metadata"]["finalizers"].remove("foregroundDeletion")
                self.settle(resource, key, thing)

    def settle(self, resource: Resource, key: Key, thing: Object) -> None:
        """Store an object, or drop it if it was to go and nothing holds it any more."""
        meta = thing["metadata"]
        # Pods wait for their kubelet as well.
        waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" in meta and not waits:
            self.drop(resource, key)
            fake_quota.counted(self, resource, key[0])
            if self.collects_garbage:
                self.collect(meta["uid"])
            self._finish_owners(meta)
        else:
            self.store(resource, key, thing)

    def replace(
        self,
        which: Resource | str,
        space: str,
        name: str,
        thing: Object,
        **how: Any,
    ) -> Object:
        """PUT: the whole object, of the version it was read at if it says one."""
        resource = resolved(which)
        found = self.get(resource, space, name)
        if resource.custom and not thing.get("metadata", {}).get("resourceVersion"):
            raise invalid(
                resource.kind,
                name,
                "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
            )
        return self._update(resource, found, copied(thing), **how)

    def patch(
        self,
        which: Resource | str,
        space: str,
        name: str,
        body: Any,
        kind: str,
        **how: Any,
    ) -> Object:
        """PATCH with the content type `kind`."""
        resource = resolved(which)
        found = self.get(resource, space, name)
        if "strategic" in kind and resource.custom:
            kind = ""
        if "json-patch" in kind:
            changed = json_patch(found, body)
        elif "strategic" in kind:
            changed = strategic(copied(found), body)
        elif "merge-patch" in kind:
            changed = merged(copied(found), body)
        else:
            types = ["application/json-patch+json", "application/merge-patch+json"]
            if not resource.custom:
                types.append("application/strategic-merge-patch+json")
            types.append("application/apply-patch+yaml")
            raise Refused(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include:"
                f" {', '.join(types)}",
            )
        return self._update(resource, found, changed, **how)

    def _update(
        self,
        resource: Resource,
        found: Object,
        changed: Object,
        *,
        sub: str = "",
        dry: bool = False,
        user: str = "admin",
        version: str | None = None,
    ) -> Object:
        old, name = found["metadata"], found["metadata"]["name"]
        meta = changed.setdefault("metadata", {})
        if meta.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
            raise conflict(
                resource,
                name,
                "the object has been modified; please apply your changes to the latest version and"
                " try again",
            )
        if meta.get("uid", old["uid"]) != old["uid"]:
            raise conflict(
                resource,
                name,
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta:"
                f" {old['uid']}",
            )
        if meta.get("name", name) != name:
            raise Refused(
                400,
                "BadRequest",
                f"the name of the object ({meta['name']}) does not match the name on the URL"
                f" ({name})",
            )
        attempt = fake_admission.Attempt(resource, "UPDATE", user, found)
        if sub == "status":
            changed = {**copied(found), "status": changed.get("status", {})}
        else:
            if resource.status:
                changed.pop("status", None)
                if "status" in found:
                    changed["status"] = copied(found["status"])
            changed["metadata"] = {
                **{key: value for key, value in meta.items() if key not in WRITTEN_APART},
                **{key: old[key] for key in WRITTEN_APART if key in old},
                "resourceVersion": old["resourceVersion"],
            }
            fake_crd.prune(self, resource, changed, version or self.preferred(resource))
            fake_crd.check(resource, changed, version or self.preferred(resource))
            fake_crd.fill(self, resource, changed, version or self.preferred(resource))
            for mutate in self.mutators:
                mutate(resource, changed, "UPDATE")
            changed = fake_admission.mutated(self, attempt, changed)
        if resource.name == "pods" and not sub:
            fake_pods.check_update(found, changed)
        if resource.name == "mpijobs.kubeflow.org":
            fake_crd.check_update(found, changed, version or self.preferred(resource))
        fake_admission.validated(self, attempt, changed)
        changed.setdefault("kind", found.get("kind"))
        if changed.get("spec") != found.get("spec") and "generation" in old:
            changed["metadata"]["generation"] = old["generation"] + 1
        if not dry and changed != found:
            self.settle(
                resource, (old.get("namespace", "") if not resource.wide else "", name), changed
            )
        return changed

    def bind(self, space: str, name: str, body: Object, *, dry: bool = False) -> None:
        """POST pods/NAME/binding: what a scheduler does."""
        found = self.get("pods", space, name)
        fake_pods.check_binding(found)
        if not dry:
            pod = copied(found)
            pod["spec"]["nodeName"] = body["target"]["name"]
            status = pod.setdefault("status", {})
            status["conditions"] = [
                *(one for one in status.get("conditions", ()) if one["type"] != "PodScheduled"),
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastTransitionTime": rfc3339(self.clock()),
                },
            ]
            self.store(RESOURCES["pods"], (space, name), pod)

    def serves(self, resource: Resource, version: str) -> bool:
        """Whether a resource can be asked for in a version."""
        if resource.name in self.unserved or resource.group in self.unserved:
            return False
        return version in self.versions_of(resource)

    def versions_of(self, resource: Resource) -> tuple[str, ...]:
        """The versions in which a resource is served, the preferred one first."""
        if resource.name == "mpijobs.kubeflow.org":
            return tuple(self.versions)
        if resource.plural == "topologies":
            return tuple(self.topologies)
        if resource.group == "kueue.x-k8s.io":
            return tuple(self.kueue)
        if resource.group == "scheduling.k8s.io" and len(resource.versions) > 1:
            return self.gangs
        return resource.versions

    def preferred(self, resource: Resource) -> str:
        return next(iter(self.versions_of(resource)), resource.versions[0])

    def allowed(self, user: str, *asked: str) -> bool:
        """Whether a user may do something: verb, resource (or `pods/log`), group, space, name."""
        what = fake_rbac.Asked(*asked)
        where = f"{what.verb} {what.resource} {what.space}".strip()
        if any(rule.fullmatch(where) for rule in self.denied):
            return False
        return not self.rbac or fake_rbac.granted(self, user, what) is not None

    def listing(self, which: Resource | str, space: str, query: dict[str, str]) -> list[Object]:
        """The objects of a list, as a request would get them."""
        return [entry.thing for entry in self.page(resolved(which), space, query)[1]]

    def selects(self, resource: Resource, query: dict[str, str]) -> Any:
        return selector(resource, query)


def resolved(which: Resource | str) -> Resource:
    """A resource by its plural, with its group where the plural is not enough."""
    if isinstance(which, Resource):
        return which
    return RESOURCES.get(which) or next(one for one in RESOURCES.values() if one.plural == which)


def _exposed(entry: Entry) -> Object:
    entry.exposed = True
    return entry.thing
