"""What operators ask of the cluster around them: the objects that a job owns, and its events."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from fake_resources import Key, Object, rfc3339

LONGEST = 1024
"""Characters of an event's message (Kubernetes: events.NoteLengthLimit)."""


class World(ABC):
    """A cluster as operators see it; `api` has its objects, its clock and takes their writes.

    `_record` and `_repeat` say how an event is written.
    """

    def __init__(self, api: Any, numbers: Iterator[int] | None = None) -> None:
        self.api = api
        self._numbers = numbers or itertools.count(1)
        self._events: dict[tuple[str, str, str], Object] = {}

    def pods_of(self, owner: Object) -> list[Object]:
        """The pods that an object owns, by name."""
        found = sorted(self.api.owned.get(owner["metadata"]["uid"], ()))
        return [self.api.tables[name][key].thing for name, key in found if name == "pods"]

    def print_of(self, uid: str) -> tuple[tuple[str, Key, int], ...]:
        """What an object owns, with revisions: as long as it is the same there is nothing to do."""
        return tuple(
            (name, key, self.api.tables[name][key].revision)
            for name, key in sorted(self.api.owned.get(uid, ()))
            if name != "events"
        )

    def event(
        self,
        thing: Object,
        reason: str,
        message: str,
        *,
        kind: str = "Warning",
        source: str = "mpi-job-controller",
    ) -> None:
        """Record an event of an object; the same one again only counts, every ten seconds."""
        meta = thing["metadata"]
        space = meta.get("namespace", "default")
        now = rfc3339(self.api.clock())
        same = (meta["uid"], reason, message)
        before = self._events.get(same)
        if before is not None and self._exists(before):
            if now[:-2] > before["lastTimestamp"][:-2]:
                again = {**before, "count": before["count"] + 1, "lastTimestamp": now}
                self._events[same] = self._repeat(again)
            return
        made = self._record(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": f"{meta['name']}.{next(self._numbers):016x}",
                    "namespace": space,
                },
                "involvedObject": {
                    "apiVersion": thing.get("apiVersion", "v1"),
                    "kind": thing.get("kind"),
                    "name": meta["name"],
                    "namespace": space,
                    "uid": meta["uid"],
                },
                "type": kind,
                "reason": reason,
                "message": message[:LONGEST],
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": source},
            }
        )
        if made is not None:
            self._events[same] = made

    def _exists(self, _event: Object) -> bool:
        return True

    @abstractmethod
    def _record(self, event: Object) -> Object | None:
        """Create an event; None where the server refuses it."""

    @abstractmethod
    def _repeat(self, event: Object) -> Object:
        """Replace an event by its next count."""
