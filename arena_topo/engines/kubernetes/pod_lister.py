"""When the pods of a followed job are listed, and what an error of that means."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from arena_topo.engines.kubernetes.podlog import Object
from arena_topo.errors import ClusterError, TimedOut, temporary

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

LOOK = 1.0
"""Seconds between two looks whether pods have changed; more if their list takes long."""

MAX_UNREACHABLE = 60.0
"""Seconds that the API server may be unreachable, as in `wait`."""

_GAP = 0.1
"""The least seconds between two lists of the pods."""


class PodList(NamedTuple):
    """The pods, when they were read (`time.monotonic`), and the seconds that this took."""

    pods: list[Object]
    read_at: float
    spent: float


class PodLister:
    """The schedule of the lists, of which one is made at a time, in any thread.

    `pods` returns the pods and when they were read; True: they are read now. Without `follows`
    there is a single list.
    """

    def __init__(
        self,
        api: Connection,
        pods: Callable[[bool], tuple[list[Object], float]],
        *,
        every: float,
        follows: bool,
    ) -> None:
        self._api, self._pods, self._every, self._follows = api, pods, every, follows
        self.read_at = 0.0
        """When the pods of the newest list were read (`time.monotonic`; 0: there is none)."""
        self._ended = self._failing = 0.0
        """When the last list ended, and since when lists fail (0: never)."""
        self._begun, self._pause = 0.0, 0.0
        """When the list began that has not ended (0: none); the seconds from its end to the next.
        """
        self._hurries = False
        """Whether somebody waits for the next list."""

    @property
    def due(self) -> float:
        """When the next list begins; infinite during a list, and after a single one."""
        if self._begun or (self._ended and not self._follows):
            return math.inf
        return self._ended + (min(_GAP, self._pause) if self._hurries else self._pause)

    def hurry(self) -> None:
        """Begin the next list soon: somebody waits for one that begins from now on."""
        self._hurries = True

    def begin(self) -> Callable[[], PodList]:
        """Begin a list: the call that makes it, in any thread; then `end` takes its result."""
        fresh, begun = self._hurries, time.monotonic()
        self._begun, self._hurries = begun, False

        def listed() -> PodList:
            pods, read = self._pods(fresh)
            return PodList(pods, read, time.monotonic() - begun)

        return listed

    def end(self, listed: PodList | None, error: Exception | None) -> list[Object] | None:
        """The pods; None after an error that may pass. Another error is raised.

        An error that lasts for `MAX_UNREACHABLE` seconds does not pass, nor does one of the first
        list.
        """
        begun, self._begun, self._ended = self._begun, 0.0, time.monotonic()
        if listed is not None:
            self.read_at, self._failing = listed.read_at, 0.0
            self._pause = max(self._every, 10 * listed.spent)
            return listed.pods
        self._pause, self._failing = self._every, self._failing or begun
        passes = isinstance(error, ClusterError | TimedOut) and temporary(error)
        late = self._ended - self._failing > MAX_UNREACHABLE or self._api.left <= 0
        if error is not None and (late or not passes or not self.read_at):
            raise error
        return None
