"""Objects with revisions: what etcd and the watch cache of an API server remember.

Objects are never changed in place by the server, so that every old revision can be read again
until it is compacted. A test that changes what `find` gave it changes what is stored as well.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fake_resources import RESOURCES, Key, Object, Refused, Resource

STALE = (
    "The provided continue parameter is too old to display a consistent list result. You can start"
    " a new list without the continue parameter, or use the continue token in this response to"
    " retrieve the remainder of the results. Continuing with the provided token results in an"
    " inconsistent list - objects that were created, modified, or deleted between the time the"
    " first chunk was returned and now may show up in the list."
)
TOO_OLD = "The resourceVersion for the provided list is too old."


@dataclass(slots=True, eq=False)
class Entry:
    """One object at one revision, and its JSON while nobody can change it."""

    thing: Object
    revision: int
    exposed: bool = False
    raw: dict[str, bytes] = field(default_factory=dict)

    def json(self, *, version: str, bare: bool) -> bytes:
        """The object as bytes; `bare` without its kind, as items of most lists are."""
        how = f"{version} {bare}"
        found = None if self.exposed else self.raw.get(how)
        if found is None:
            said = {"kind": self.thing.get("kind"), **self.thing, "apiVersion": version}
            if bare:
                del said["kind"], said["apiVersion"]
            found = self.raw[how] = json.dumps(said).encode()
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """One write, as watches see it: the entry before and after, None where there was none."""

    revision: int
    key: Key
    before: Entry | None
    after: Entry | None


class Store:
    """All objects, by resource and key, at every revision since the last compaction."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.revision = 100
        self.compacted = 0
        self.tables: dict[str, dict[Key, Entry]] = {name: {} for name in RESOURCES}
        self.past: dict[str, dict[Key, list[tuple[int, Entry | None]]]] = {
            name: {} for name in RESOURCES
        }
        self.changed: dict[str, int] = dict.fromkeys(RESOURCES, 0)
        self.changes: dict[str, list[Change]] = {name: [] for name in RESOURCES}
        self.owned: dict[str, set[tuple[str, Key]]] = {}
        """What names an owner, by the owner's uid."""

    def put(self, resource: Resource, key: Key, thing: Object) -> Entry:
        """Store an object under the next revision."""
        with self.lock:
            self.revision += 1
            thing["metadata"]["resourceVersion"] = str(self.revision)
            entry = Entry(thing, self.revision)
            self._remember(resource, key, entry)
            return entry

    def drop(self, resource: Resource, key: Key) -> None:
        """Forget an object; those who watch see it with the revision of its end."""
        with self.lock:
            self.revision += 1
            self._remember(resource, key, None)

    def _remember(self, resource: Resource, key: Key, entry: Entry | None) -> None:
        name = resource.name
        table = self.tables[name]
        before = table.get(key)
        if entry is None:
            del table[key]
        else:
            table[key] = entry
        for one in _owners(before):
            self.owned[one].discard((name, key))
        for one in _owners(entry):
            self.owned.setdefault(one, set()).add((name, key))
        self.past[name].setdefault(key, []).append((self.revision, entry))
        self.changed[name] = self.revision
        self.changes[name].append(Change(self.revision, key, before, entry))
        self.lock.notify_all()

    def written(self, path: str, selectors: Mapping[str, str]) -> int:
        """The revision of the last write that a list sees; `selectors` are label selectors."""
        head, _, rest = path.strip("/").partition("/")
        parts = rest.split("/")
        group = "" if head == "api" else parts.pop(0)
        space = parts[2] if parts[1] == "namespaces" else ""
        resource = RESOURCES[f"{parts[-1]}.{group}" if group else parts[-1]]
        chosen = selector(resource, {"labelSelector": selectors.get(parts[-1], "")})
        if chosen is None and not space:
            return self.changed[resource.name]
        for change in reversed(self.changes[resource.name]):
            entries = (change.before, change.after)
            if (not space or change.key[0] == space) and any(
                one is not None and (chosen is None or chosen(one.thing)) for one in entries
            ):
                return change.revision
        return 0

    def compact(self) -> None:
        """Forget what was before: the cluster goes on, and older revisions are gone."""
        with self.lock:
            self.revision += 1
            self.compacted = self.revision
            for name, pasts in self.past.items():
                table = self.tables[name]
                self.past[name] = {key: list(pasts[key][-1:]) for key in pasts if key in table}
                self.changes[name].clear()
            self.lock.notify_all()

    def at(self, name: str, revision: int) -> dict[Key, Entry]:
        """The table of a resource as it was at a revision."""
        if revision >= self.changed[name]:
            return self.tables[name]
        found = {}
        for key, versions in self.past[name].items():
            index = bisect_right(versions, revision, key=lambda one: one[0])
            entry = versions[index - 1][1] if index else None
            if entry is not None:
                found[key] = entry
        return found

    def page(
        self, resource: Resource, space: str, query: dict[str, str]
    ) -> tuple[dict[str, Any], list[Entry]]:
        """The metadata and the entries of a list: exact, paged and selected as asked."""
        check_options(query)
        start: Key | None = None
        limit = int(query.get("limit") or 0)
        if token := query.get("continue"):
            revision, start = self._continued(token, query)
        else:
            revision, ignored = self._revision(query, limit)
            limit = 0 if ignored else limit
        table = self.at(resource.name, revision)
        selects = selector(resource, query)
        keys = sorted(key for key in table if not space or key[0] == space)
        if start is not None:
            keys = [key for key in keys if key >= start]
        entries: list[Entry] = []
        meta: dict[str, Any] = {"resourceVersion": str(revision)}
        for index, key in enumerate(keys):
            entry = table[key]
            if selects is not None and not selects(entry.thing):
                continue
            if limit and len(entries) == limit:
                said = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(key)}
                meta["continue"] = base64.b64encode(json.dumps(said).encode()).decode()
                if selects is None:
                    meta["remainingItemCount"] = len(keys) - index
                break
            entries.append(entry)
        return meta, entries

    def _continued(self, token: str, query: dict[str, str]) -> tuple[int, Key]:
        if query.get("resourceVersion", "0") not in {"", "0"}:
            raise Refused(
                400,
                "BadRequest",
                "specifying resource version is not allowed when using continue",
            )
        try:
            said = json.loads(base64.b64decode(token))
            space, _, name = said["start"].partition("/")
        except ValueError as error:
            raise Refused(
                400, "BadRequest", "continue key is not valid: illegal base64 data"
            ) from error
        if said["rv"] == -1:
            return self.revision, (space, name)
        if said["rv"] < self.compacted:
            again = base64.b64encode(json.dumps({**said, "rv": -1}).encode()).decode()
            raise Refused(410, "Expired", STALE, metadata={"continue": again})
        return said["rv"], (space, name)

    def _revision(self, query: dict[str, str], limit: int) -> tuple[int, bool]:
        """At which revision to list, and whether the limit is ignored (reads from the cache)."""
        asked = query.get("resourceVersion", "")
        if not asked:
            return self.revision, False
        if not asked.isdigit():
            raise Refused(400, "BadRequest", f'invalid resource version "{asked}"')
        match = query.get("resourceVersionMatch", "")
        if int(asked) > self.revision:
            raise Refused(
                504,
                "Timeout",
                f"Timeout: Too large resource version: {asked}, current: {self.revision}",
                details={
                    "causes": [
                        {
                            "reason": "ResourceVersionTooLarge",
                            "message": "Too large resource version",
                        }
                    ],
                    "retryAfterSeconds": 1,
                },
                headers={"Retry-After": "1"},
            )
        # Without a match a limit makes it exact, as it always has.
        if match == "Exact" or (not match and limit and asked != "0"):
            if int(asked) < self.compacted:
                raise Refused(410, "Expired", TOO_OLD)
            return int(asked), False
        return self.revision, asked == "0"


def _owners(entry: Entry | None) -> list[str]:
    if entry is None:
        return []
    return [
        one["uid"] for one in entry.thing["metadata"].get("ownerReferences") or () if "uid" in one
    ]


def check_options(query: dict[str, str]) -> None:
    """Refuse list options that exclude each other, as `ValidateListOptions` does."""
    match, asked = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if not match:
        return
    said = []
    if not asked:
        said.append(
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    if query.get("continue"):
        said.append("Forbidden: resourceVersionMatch is forbidden when continue is provided")
    if match not in {"Exact", "NotOlderThan"}:
        said.append(f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""')
    if match == "Exact" and asked == "0":
        said.append('Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if said:
        causes = [f"resourceVersionMatch: {one}" for one in said]
        text = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
        raise Refused(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {text}')


FIELDS = {
    "pods": {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    },
    "nodes": {"spec.unschedulable"},
    "secrets": {"type"},
    "jobs.batch": {"status.successful"},
    "namespaces": {"status.phase"},
    "resourceslices.resource.k8s.io": {"spec.nodeName", "spec.driver"},
    "events": {
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    },
}
"""What a field selector may name, besides name and namespace."""


def selector(resource: Resource, query: dict[str, str]) -> Any:
    """Whether an object is chosen by label and field selectors; None where there are none."""
    terms = [
        term.strip()
        for term in re.split(r",(?![^(]*\))", query.get("labelSelector", ""))
        if term.strip()
    ]
    fields = []
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, sign, wanted = re.split(r"(!=|==?)", term, maxsplit=1)
        known = {"metadata.name", "metadata.namespace"} | FIELDS.get(resource.name, set())
        if path not in known:
            raise Refused(400, "BadRequest", f"field label not supported: {path}")
        fields.append((path.split("."), wanted, sign != "!="))
    if not terms and not fields:
        return None

    def selects(thing: Object) -> bool:
        labels = thing["metadata"].get("labels") or {}
        if not all(_matches(labels, term) for term in terms):
            return False
        for path, wanted, same in fields:
            value: Any = thing
            for part in path:
                value = (value or {}).get(part)
            text = str(value).lower() if isinstance(value, bool) else str(value or "")
            if (text == wanted) != same:
                return False
        return True

    return selects


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


def label_selects(selector: Object | None, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector object chooses these labels; none and {} choose all."""
    selector = selector or {}
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(expression_holds(one, labels) for one in selector.get("matchExpressions") or ())


def expression_holds(one: Object, labels: dict[str, str]) -> bool:
    """Whether one requirement (In, NotIn, Exists, DoesNotExist, Gt, Lt) holds of some labels."""
    key, values = one["key"], one.get("values") or ()
    match one["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return key in labels and int(labels[key]) < int(values[0])
        case other:
            raise ValueError(other)
