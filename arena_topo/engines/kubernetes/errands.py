"""What may block, done by a few threads for one that must not: its news come back through a socket.

The threads are daemons that nobody waits for: whoever stops does so at once, and what is still
under way is undone when it comes back.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable

News = Callable[[], None]
"""What the thread that must not block does about something that has happened."""


class Errands:
    """Runs work elsewhere, at most `most` pieces at once, and hands its news to `heed`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads = 0
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._news: deque[News] = deque()
        self._waker: socket.socket
        self.bell, self._waker = socket.socketpair()
        """Readable when there is news."""
        self.bell.setblocking(False)
        self._waker.setblocking(False)
        self.closed = threading.Event()

    @property
    def pending(self) -> bool:
        """Whether there is news that was not heeded."""
        return bool(self._news)

    def run(self, work: Callable[[], None]) -> None:
        """Let a thread do this as soon as one is free."""
        if self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._serve, daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            if not self.closed.is_set():
                work()

    def post(self, news: News) -> None:
        """Bring news from any thread; who has closed undoes at once what it brings."""
        self._news.append(news)
        with contextlib.suppress(OSError):
            self._waker.send(b".")
        if self.closed.is_set():
            self.heed()

    def heed(self) -> None:
        """Do what the news ask for, in the order in which they came."""
        with contextlib.suppress(BlockingIOError, OSError):
            while self.bell.recv(4096):
                pass
        while True:
            try:
                news = self._news.popleft()
            except IndexError:
                return
            news()

    def close(self) -> None:
        """Start nothing more. What comes back from now on finds `closed` set."""
        self.closed.set()
        for _ in range(self._threads):
            self._work.put(None)
        self.heed()
        self.bell.close()
        self._waker.close()
