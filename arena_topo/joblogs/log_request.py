"""Which logs are wanted (LogRequest), why there are none (NoLogYet), what ended them (End)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.goals import Start
from arena_topo.engines.lines import LogOptions
from arena_topo.joblogs import pod_selection
from arena_topo.joblogs.ranks import SpeakerSelection

SILENT = "it runs, but has written nothing yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """Which lines of which pods are wanted.

    Without `all_pods` and `only` that is a single pod: `instance`, else the launcher. A line passes
    if `include` is empty or a pattern of it matches the text without its tag, and no pattern of
    `exclude` does. `fold`: equal lines of several speakers become a single entry. `to_archive`:
    followed lines go to the archive. `from_archive`: only the archive is read. `tags`: the rank is
    wanted even of a single pod (JSON). `save`: the folder that the logs are also written to.
    """

    instance: str | None = None
    all_pods: bool = False
    only: SpeakerSelection | None = None
    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()
    fold: bool = False
    tags: bool = False
    to_archive: bool = True
    from_archive: bool = False
    save: str | None = None
    options: LogOptions = field(default_factory=LogOptions)

    @property
    def several_pods(self) -> bool:
        """Whether several pods may be shown, so that each line needs a prefix."""
        return self.all_pods or self.only is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLogYet:
    """Why there is no log to read now: `reason` is a sentence, `start` says who starts the job."""

    status: JobStatus
    reason: str
    start: Start | None = None

    @property
    def what(self) -> str:
        """What the job does, as a predicate of its name."""
        if self.reason == SILENT:
            return "runs, but has written nothing yet"
        if self.status.phase is Phase.SUSPENDED:
            return pod_selection.suspension_text(self.status)
        return f"waits: {self.reason}"


class End(StrEnum):
    """What ended the lines."""

    READ = "read"
    """All lines that existed were shown; nothing was followed."""
    JOB = "job"
    """The job is over."""
    POD = "pod"
    """The requested pod is over."""
    LOST = "lost"
    """The job was deleted, or cannot be read any more."""
    KEPT = "kept"
    """The archived lines were shown; the pods are gone."""
