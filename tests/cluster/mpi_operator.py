"""The simulated MPI operator (v2beta1) as a process, on the API server that a kubeconfig names.

The rules are those of `fake_operators`; only where objects are read from and written to differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_operators import JOBS, MPIJOBS, PODS, Operator
from fake_resources import RESOURCES, Key, Object, Refused, Resource, named, of
from fake_store import Entry
from fake_world import World

VERSION = "v2beta1"
WATCHED = (
    MPIJOBS,
    PODS,
    JOBS,
    *(RESOURCES[name] for name in ("services", "configmaps", "secrets")),
)
WATCH_SECONDS = 120
RETRY_SECONDS = 0.5
PAUSE = 0.05
"""Between two rounds, so that what changes together is looked at together."""


class Client:
    """Requests as the user of a kubeconfig with a token."""

    def __init__(self, config: Path) -> None:
        document = json.loads(config.read_text())
        cluster = document["clusters"][0]["cluster"]
        self.server = cluster["server"]
        self.headers = {"authorization": f"Bearer {document['users'][0]['user']['token']}"}
        trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.pool = urllib3.PoolManager(maxsize=16, ssl_context=trust)

    def call(self, method: str, path: str, body: object = None) -> Object:
        """One request; the object that it is answered with.

        Raises:
            Refused: in the server's words.
        """
        headers = {**self.headers, "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        answer = self.pool.request(method, self.server + path, body=data, headers=headers)
        said = json.loads(answer.data)
        if answer.status >= 400:
            raise Refused(answer.status, said.get("reason", ""), said.get("message", ""))
        return said

    def watch(self, path: str, revision: str) -> Iterator[Object]:
        """What happens after a revision, until the server ends the watch."""
        query = {"watch": "true", "resourceVersion": revision, "timeoutSeconds": WATCH_SECONDS}
        answer = self.pool.request(
            "GET",
            f"{self.server}{path}?{urlencode(query)}",
            headers=self.headers,
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=WATCH_SECONDS + 30),
        )
        try:
            rest = b""
            for piece in answer.stream(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                yield from map(json.loads, filter(None, lines))
        finally:
            answer.close()


class Mirror:
    """What an API server stores of the watched resources; writes go to the server first."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lock = threading.Condition()
        self.revision = 0
        """Raised by each change that is heard of."""
        self.tables: dict[str, dict[Key, Entry]] = {one.name: {} for one in WATCHED}
        self.owned: dict[str, set[tuple[str, Key]]] = {}
        self.gone: set[str] = set()
        self.listed: set[str] = set()

    @staticmethod
    def preferred(_resource: Resource) -> str:
        """The version of MPIJobs."""
        return VERSION

    @staticmethod
    def clock() -> float:
        """The time, in Unix seconds."""
        return time.time()

    # Reading.

    def find(self, kind: str, name: str, space: str) -> Object | None:
        """An object as it was last heard of."""
        entry = self.tables[named(kind).name].get((space, name))
        return entry.thing if entry else None

    def follow(self, resource: Resource) -> None:
        """List and watch a resource for good."""
        pause = threading.Event()
        while True:
            try:
                found = self.client.call("GET", _path(resource))
                self._listed(resource, found["items"])
                revision = found["metadata"]["resourceVersion"]
                while revision:
                    revision = self._watched(resource, revision)
            except (Refused, urllib3.exceptions.HTTPError, OSError, ValueError):
                pause.wait(RETRY_SECONDS)

    def _watched(self, resource: Resource, revision: str) -> str:
        """Follow one watch to its end; where to go on, nothing if a new list is needed."""
        for event in self.client.watch(_path(resource), revision):
            thing = event["object"]
            if event["type"] == "ERROR":
                return ""
            revision = thing["metadata"]["resourceVersion"]
            with self.lock:
                self._heard(resource, thing, gone=event["type"] == "DELETED")
        return revision

    def _listed(self, resource: Resource, items: list[Object]) -> None:
        with self.lock:
            kept = {_key(one) for one in items}
            for key in [key for key in self.tables[resource.name] if key not in kept]:
                self._heard(resource, self.tables[resource.name][key].thing, gone=True)
            for one in items:
                self._heard(resource, one)
            self.listed.add(resource.name)
            self.lock.notify_all()

    def _heard(self, resource: Resource, thing: Object, *, gone: bool = False) -> None:
        """Take over what the server says of an object, unless something newer is known."""
        if resource.name not in self.tables:
            return
        meta, key = thing["metadata"], _key(thing)
        table = self.tables[resource.name]
        revision, known = int(meta["resourceVersion"]), table.get(key)
        if meta["uid"] in self.gone or (known and not gone and known.revision >= revision):
            return
        owners = [one["uid"] for one in meta.get("ownerReferences") or ()]
        if gone:
            self.gone.add(meta["uid"])
            if known and known.thing["metadata"]["uid"] == meta["uid"]:
                del table[key]
            for uid in owners:
                self.owned.get(uid, set()).discard((resource.name, key))
        else:
            thing.setdefault("kind", resource.kind)
            table[key] = Entry(thing, revision)
            for uid in owners:
                self.owned.setdefault(uid, set()).add((resource.name, key))
        self.revision += 1
        self.lock.notify_all()

    # Writing.

    def add(self, thing: Object) -> Object:
        """Create an object of a namespace."""
        return self.create(of(thing), thing["metadata"]["namespace"], thing)

    def create(self, resource: Resource, space: str, thing: Object, **_: Any) -> Object:
        """Create an object of a namespace."""
        made = self.client.call("POST", _path(resource, space), thing)
        self._heard(resource, made)
        return made

    def store(self, resource: Resource, key: Key, thing: Object) -> None:
        """Replace an object: of an MPIJob its status, of others all but their status."""
        path = f"{_path(resource, key[0])}/{key[1]}"
        thing.setdefault("apiVersion", _version(resource))
        if resource is MPIJOBS:
            path += "/status"
        elif (thing.get("status") or {}).get("startTime") and not thing["spec"].get("suspend"):
            # A Job's template may only be changed as long as the Job says that it never began.
            del thing["status"]["startTime"]
            cleared = {**thing, "spec": self.tables[resource.name][key].thing["spec"]}
            written = self.client.call("PUT", f"{path}/status", cleared)
            thing["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"]
        self._heard(resource, self.client.call("PUT", path, thing))

    def remove(self, resource: Resource, space: str, name: str) -> None:
        """Delete an object."""
        try:
            left = self.client.call("DELETE", f"{_path(resource, space)}/{name}")
        except Refused as error:
            if error.status != 404:
                raise
        else:
            # What went at once is told without a revision; the watch says that it is gone.
            if {"deletionTimestamp", "resourceVersion"} <= left["metadata"].keys():
                self._heard(resource, left)


class Reporting(Operator):
    """The simulated operator, which logs what it is refused."""

    def _refused(self, error: Refused) -> None:
        print(error.message, file=sys.stderr, flush=True)


class Cluster(World):
    """The cluster of a real API server, for the simulated operator."""

    def __init__(self, api: Mirror) -> None:
        super().__init__(api, itertools.count(int(api.clock() * 1000)))
        self.operator = Reporting(self)

    def _record(self, event: Object) -> Object | None:
        return self._write("POST", "", event)

    def _repeat(self, event: Object) -> Object:
        return self._write("PUT", f"/{event['metadata']['name']}", event) or event

    def _write(self, method: str, name: str, event: Object) -> Object | None:
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events{name}"
        try:
            return self.api.client.call(method, path, event)
        except Refused:
            # An event is news and no more: the namespace may be on its way out.
            return None

    def run(self) -> None:
        """Reconcile for good, whenever something has changed, and once a second."""
        for resource in WATCHED:
            threading.Thread(target=self.api.follow, args=(resource,), daemon=True).start()
        lock = self.api.lock
        with lock:
            lock.wait_for(lambda: len(self.api.listed) == len(WATCHED))
        print("ready", flush=True)
        pause = threading.Event()
        while True:
            with lock:
                before = self.api.revision
                self._step()
                if self.api.revision == before:
                    lock.wait(1)
            pause.wait(PAUSE)

    def _step(self) -> None:
        try:
            self.operator.step()
        except Refused as error:
            # A status that somebody else has changed meanwhile: the next round knows more.
            print(error.message, file=sys.stderr, flush=True)
        except urllib3.exceptions.HTTPError as error:
            print(f"{error!r}", file=sys.stderr, flush=True)


def _version(resource: Resource) -> str:
    version = VERSION if resource is MPIJOBS else resource.versions[0]
    return f"{resource.group}/{version}" if resource.group else version


def _path(resource: Resource, space: str = "") -> str:
    root = "/apis" if resource.group else "/api"
    within = f"/namespaces/{space}" if space else ""
    return f"{root}/{_version(resource)}{within}/{resource.plural}"


def _key(thing: Object) -> Key:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    Cluster(Mirror(Client(parser.parse_args().kubeconfig))).run()
