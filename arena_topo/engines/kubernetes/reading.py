"""What is known of a log that is followed: whose, how far it was read, and what comes next."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from arena_topo.engines.kubernetes import streaming
from arena_topo.engines.kubernetes.podlog import Sight
from arena_topo.engines.lines import Source
from arena_topo.errors import ArenaError

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.kubeconfig import Access


class State(Enum):
    """What is done about a log now."""

    WAITING = 0
    """There is nothing to read yet: of the container, or of its next run."""
    OPENING = 1
    OPEN = 2
    PAUSED = 3
    """It broke, and is taken up again at `when`."""
    ENDED = 4
    """Its stream has ended at `when`; the next look says what that means."""
    SETTLED = 5


@dataclass(slots=True, kw_only=True, eq=False)
class Reading:
    """The log of one container of one pod, run after run."""

    source: Source
    path: str
    whole: bool
    """Whether nothing of it is cut off (`tail`, `since`)."""
    sight: Sight
    state: State = State.WAITING
    when: float = 0.0
    place: streaming.Place = field(default_factory=streaming.Place)
    anchor: streaming.Place = field(default_factory=streaming.Place)
    """`place` when the stream was opened."""
    ahead: streaming.Place | None = None
    """How far the next run was read already, by a stream that was to be this run's."""
    overdue: float = 0.0
    """When a stream is no longer taken for this run's; 0 unless there is a newer one."""
    run_read: bool = False
    """Whether all of the run's log was read."""
    last: bool = False
    """Whether what is open is of a run that is over, and so to its end."""
    previous: bool = False
    joined: bool = False
    broken: bool = False
    trouble: ArenaError | None = None
    """Why it could not be read the last time, until it can."""
    refused: bool = False
    missing: bool = False
    renewed: bool = False
    superseded: bool = False
    after: Reading | None = None
    """What is read before: the init container of the same pod."""
    begun: str = ""
    """The server's time when it was first asked for, for a log of which no line came."""
    delay: float = 0.0
    tries: int = 0
    sock: socket.socket | None = None
    answer: streaming.Answer = field(default_factory=streaming.Answer)
    lines: streaming.Lines | None = None
    body: bytes = b""
    used: Access | None = None
    sent: float = 0.0
    heard: float = 0.0
    came: float = 0.0
    """When its last line came; all other times but this leave out what the reader spends
    elsewhere."""

    @property
    def settled(self) -> bool:
        """Whether nothing more is done about it."""
        return self.state is State.SETTLED
