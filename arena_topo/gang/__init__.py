"""How a gang starts: planned, recorded, resumed in its turn, or rolled back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Tell = Callable[[str], None]


class Exists(StrEnum):
    """What `submit` makes of a job that has the name already."""

    FAIL = "fail"
    OK = "ok"
    """The very same request is as good as submitted; another one is an error."""
    REPLACE = "replace"
    """It is deleted for the new one, whatever it was submitted with."""


def _unheard(_text: str) -> None:
    """Take a message, and drop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """How a command stays with a gang, and who hears of it.

    Until all workers have their nodes, with `stay` until they run, for no longer than `end`
    (monotonic). `tell` hears what happens, `sees` at every look what there is still to wait for.
    """

    stay: bool = False
    end: float | None = None
    tell: Tell = _unheard
    sees: Tell = _unheard

    @property
    def late(self) -> bool:
        """Whether there is no time left."""
        return self.end is not None and time.monotonic() >= self.end

    def pause(self, seconds: float) -> bool:
        """Wait before the next look; False where there is no time for one."""
        if self.late:
            return False
        time.sleep(seconds)
        return True
