"""Several clients of one API server, one request at a time, in every order there is.

The clients are the real ones, down to their connection; the server is the fake one, called without
a socket. A client stops before each request that others could see or be seen by, and a chooser says
who goes on. `explore` goes through all orders that differ by more than swapping requests that do
not know of each other (sleep sets: Godefroid 1996, "Partial-Order Methods for the Verification of
Concurrent Systems", chapter 5).
"""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fake_api import FakeApi
from fake_http import Handler

WATCHED = frozenset({"mpijobs"})
"""What is written while clients race. All else stands still, so that its reads need no turn."""


class Killed(BaseException):
    """What a process that is killed does not live to see."""


@dataclass(frozen=True, slots=True)
class Step:
    """A request that is about to be made: on what, on which object of it, and if it writes."""

    line: str
    kind: str
    name: str | None
    writes: bool

    def disturbs(self, other: Step) -> bool:
        """Whether it matters which of two requests comes first."""
        if "*" in {self.kind, other.kind}:
            return True
        if self.kind != other.kind or not (self.writes or other.writes):
            return False
        # Two writes are ordered by their revisions, whatever they are of.
        both = self.writes and other.writes
        return both or None in {self.name, other.name} or self.name == other.name


def step_of(method: str, path: str, body: Any, *, alone: bool) -> Step | None:
    """The turn that a request needs; None for one that nobody else can notice.

    `alone`: nobody else works on the objects that this client names.
    """
    split = urlsplit(path)
    parts = split.path.strip("/").split("/")
    kind = next((one for one in WATCHED if one in parts), None)
    if kind is None:
        return None
    after = parts[parts.index(kind) + 1 :]
    name = after[0] if after else None
    dry = "dryRun=All" in split.query
    if method == "POST" and name is None:
        name = ((body or {}).get("metadata") or {}).get("name")
    writes = method != "GET" and not dry
    if alone and name is not None and not writes:
        return None
    line = f"{method} {split.path.rpartition('/')[2] if name else kind}{' dry' if dry else ''}"
    if "resourceVersionMatch" in split.query:
        line += f" at {dict(parse_qsl(split.query))['resourceVersion']}"
    return Step(line, kind, name, writes)


class Answer:
    """What the connection pool would have returned."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.reason = status, ""
        self._body = io.BytesIO(body)
        self.headers = Message()
        for key, value in headers.items():
            self.headers[key] = value

    def pieces(self, _rest: object = None) -> Iterator[bytes]:
        yield self._body.read()

    def close(self) -> None:
        pass


class _Direct(Handler):
    """The server's own handler of one request, without the bytes."""

    def __init__(self, fake: FakeApi) -> None:
        self.fake, self.connection, self.cut, self.said = fake, None, None, []
        self.answered: Answer | None = None

    def _head(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.answered = Answer(status, {"Date": self.fake.date(), **headers}, body)


class Wire:
    """A connection pool that calls the fake server itself; `each` hears of every request first."""

    def __init__(
        self,
        fake: FakeApi,
        before: Callable[[Step], None],
        *,
        alone: bool = True,
        each: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._fake, self._before, self._alone, self._each = fake, before, alone, each

    def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None = None,
        **_: Any,
    ) -> Answer:
        self._each(f"{method} {path}")
        said = json.loads(body) if body else None
        step = step_of(method, path, said, alone=self._alone)
        if step is not None:
            self._before(step)
        handler = _Direct(self._fake)
        handler.command, handler.path = method, path
        handler.headers = {key.lower(): value for key, value in headers}
        handler._serve(body or b"")
        assert handler.answered is not None
        return handler.answered


@dataclass(slots=True)
class Actor:
    """One client: a thread that waits for its turn before each step."""

    name: str
    act: Callable[[Callable[[Step], None]], Any]
    next: Step | None = None
    result: Any = None
    error: BaseException | None = None
    dead: bool = False
    ended: bool = False
    steps: int = 0
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Run up to the first step."""
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.name)
        self._thread.start()
        self._stopped.acquire()

    def proceed(self) -> None:
        """Do the step it waits before, and run up to the one after."""
        self.steps += 1
        self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        """Let it do nothing more, not even tidy up."""
        self.dead = True
        if not self.ended:
            self._go.release()
            self._stopped.acquire()
            assert self._thread is not None
            self._thread.join()

    def _run(self) -> None:
        try:
            self.result = self.act(self._point)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - told by whoever looks at it
            self.error = error
        self.ended, self.next = True, None
        self._stopped.release()

    def _point(self, step: Step) -> None:
        if self.dead:
            raise Killed
        self.next = step
        self._stopped.release()
        self._go.acquire()
        if self.dead:
            raise Killed


Choose = Callable[[dict[str, Actor]], str | None]
"""Whose turn it is of those who have one; `!NAME` kills; None gives up on this order."""


def play(
    actors: list[Actor], choose: Choose, check: Callable[[], None]
) -> list[tuple[str, str]] | None:
    """Let actors run to their ends in a chosen order; what happened. None if it was given up."""
    history: list[tuple[str, str]] = []
    # One after another up to their first steps, which nobody else can notice.
    for one in actors:
        one.begin()
    try:
        while True:
            ready = {one.name: one for one in actors if not one.ended}
            if not ready:
                return history
            chosen = choose(ready)
            if chosen is None:
                return None
            if chosen.startswith("!"):
                history.append((chosen, ""))
                ready[chosen[1:]].kill()
                continue
            actor = ready[chosen]
            assert actor.next is not None
            history.append((chosen, actor.next.line))
            actor.proceed()
            try:
                check()
            except AssertionError as error:
                said = "\n".join(f"  {who}: {what}" for who, what in history)
                raise AssertionError(f"{error}\nafter\n{said}") from error
    finally:
        for one in actors:
            if not one.ended:
                one.kill()


@dataclass(slots=True)
class _Node:
    """A place in the tree of orders: who could go on, who did already, who need not."""

    steps: dict[str, Step]
    sleep: set[str]
    done: set[str] = field(default_factory=set)
    chosen: str = ""

    def following(self) -> str | None:
        return next((one for one in self.steps if one not in self.sleep | self.done), None)


def explore(run: Callable[[Choose], bool], *, kill: str | None = None) -> Iterator[int]:
    """Call `run` with a chooser for each order, until there is no other; the number so far.

    `run` builds a world, plays it and looks at how it ended; it returns whether it was played to
    the end. With `kill`, that actor is also killed once, at each place where that can be.
    """
    path: list[_Node] = []
    count = 0

    def chooser(ready: dict[str, Actor], depth: list[int]) -> str | None:
        here = depth[0]
        depth[0] += 1
        if here < len(path):
            return path[here].chosen
        steps = {name: one.next for name, one in ready.items() if one.next is not None}
        if kill in steps:
            steps[f"!{kill}"] = Step("", "!", None, True)
        sleep: set[str] = set()
        if path:
            last = path[-1]
            sleep = {
                one
                for one in last.sleep | last.done
                if one in steps and not _dependent(one, last, last.chosen)
            }
        node = _Node(steps, sleep)
        following = node.following()
        if following is None:
            return None
        node.chosen = following
        path.append(node)
        return following

    while True:
        depth = [0]
        whole = run(lambda ready, depth=depth: chooser(ready, depth))
        count += whole
        if whole:
            yield count
        while path:
            last = path[-1]
            last.done.add(last.chosen)
            following = last.following()
            if following is not None:
                last.chosen = following
                break
            path.pop()
        if not path:
            return


def _dependent(one: str, node: _Node, chosen: str) -> bool:
    """Whether a sleeping actor must wake because of what the chosen one did."""
    if one.lstrip("!") == chosen.lstrip("!"):
        return True
    if "!" in one + chosen:
        # To be killed is to do nothing more: others do not notice.
        return False
    return node.steps[one].disturbs(node.steps[chosen])


def at_random(seed: int) -> Choose:
    """A chooser by dice, which often lets the same one go on."""
    dice = random.Random(seed)
    last = ""

    def choose(ready: dict[str, Actor]) -> str:
        nonlocal last
        if last not in ready or dice.random() < 0.6:
            last = dice.choice(sorted(ready))
        return last

    return choose


def with_one_switch(who: list[str], at: int, to: str) -> Choose:
    """A chooser that lets one after another finish, but turns once, after `at` steps, to another.

    With all of `who`, `at` and `to` these are all orders with at most one preemption.
    """
    steps = 0

    def choose(ready: dict[str, Actor]) -> str:
        nonlocal steps
        steps += 1
        if steps > at and to in ready:
            return to
        return next(one for one in who if one in ready)

    return choose


def scripted(script: str) -> Choose:
    """A chooser that goes by a script of one-letter names, and then lets each finish in turn."""
    letters = iter(script.replace(" ", ""))

    def choose(ready: dict[str, Actor]) -> str:
        letter = next(letters, None)
        return letter if letter in ready else next(iter(ready))

    return choose


class Memory:
    """What a server stored at a moment, to go back to as often as is wanted."""

    def __init__(self, fake: FakeApi) -> None:
        self._fake = fake
        self._saved = self._copied()

    def _copied(self) -> dict[str, Any]:
        fake = self._fake
        return {
            "revision": fake.revision,
            "compacted": fake.compacted,
            "tables": {name: dict(table) for name, table in fake.tables.items()},
            "past": {
                name: {key: list(one) for key, one in past.items()}
                for name, past in fake.past.items()
            },
            "changed": dict(fake.changed),
            "changes": {name: list(one) for name, one in fake.changes.items()},
            "now": fake.now,
            "skew": fake.skew,
        }

    def restore(self) -> None:
        """Go back: all that was written since never was."""
        fake = self._fake
        saved, self._saved = self._saved, {}
        for name, value in saved.items():
            setattr(fake, name, value)
        self._saved = self._copied()
        fake.requests.clear()
        assert not fake.crashes, fake.crashes
