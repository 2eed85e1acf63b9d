"""How a gang starts: planned, recorded, resumed in its turn, or rolled back.

A module for each verb: `submission` (submit), `resume`, `suspend`, `replan`, and `wait`.
`planning` decides what a job needs, `protocol` which gang gets which GPUs, and `rollout` whether
all workers of a gang started. Jobs that arena-topo does not place have no record and no place in
the queue: only their `runPolicy.suspend` counts, which the operators of MPIJob v1 and v2beta1 obey.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Tell = Callable[[str], None]


class Exists(StrEnum):
    """How `submit` treats an existing job of the same name."""

    FAIL = "fail"
    OK = "ok"
    """A job with the same request counts as submitted; a job with another request is an error."""
    REPLACE = "replace"
    """The job is deleted and submitted anew, whatever its request was."""


def _unheard(_text: str) -> None:
    """Ignore a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """How long a command watches a gang, and its callbacks.

    It watches until all workers have their nodes, with `stay` until they run, but not past the
    deadline `end` (monotonic seconds). `tell` gets each event as a sentence, `sees` at each poll
    the progress.
    """

    stay: bool = False
    end: float | None = None
    tell: Tell = _unheard
    sees: Tell = _unheard

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 once it has passed; infinite without one."""
        return math.inf if self.end is None else max(0.0, self.end - time.monotonic())

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.left <= 0


UNWATCHED = Watcher()
"""Until all workers have their nodes, without a deadline; nobody hears of it."""
