"""Bodies of many HTTP answers, read by one thread: sockets, heads, chunks and lines of logs.

A kubelet sends not even the head of an answer before there is something in the log, so heads are
read here too, when they come. All of it is fed with bytes as they arrive and keeps what is not yet
whole; the formats are those of RFC 9112 (HTTP/1.1) and of a kubelet's `timestamps=true`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from arena_topo.engines.kubernetes.failures import odd_body
from arena_topo.engines.lines import LONGEST, Line, Source

PIECE = 65_536
"""Bytes that are taken from a socket at once."""

_LONGEST_HEAD = 65_536
_LONGEST_SIZE = 1024
"""Bytes of the line that says how long a chunk is, with its extensions."""
_CONTINUE, _GOOD, _REDIRECT = 100, 200, 300
_MOST_INTERIM = 100
"""Heads that say no more than that the real one will come."""
_LONGEST_LENGTH = 18
"""Digits of a Content-Length: an int64 has no more."""
_NANO = 1_000_000_000
_FRACTION, _ZONE = 20, 29
"""Where the nanoseconds begin and end in `2026-11-21T07:00:00.000000000Z`."""
_USUAL = _ZONE + 1
_NO_CONTENT = 204
_HELD_LINES, _HELD_BYTES = 10_000, 1 << 20
"""What is held back of an answer that may be known; a minute of a busy log."""
_OPENING = 1024
"""Bytes of a line by which it is known again."""
_END = 2
"""Bytes of the line end behind a chunk."""


class Broken(Exception):
    """The bytes of an answer are no HTTP, or end too early."""


class Foreign(Exception):
    """An answer that came whole, but not from what keeps logs; another try gets the same."""


class Handed(Exception):
    """A request was sent; who asked for that reads the answer from the socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__("the answer is read elsewhere")
        self.sock = sock


def handing(pool: Any) -> Any:
    """The same urllib3 pool, whose requests end with `Handed` as soon as they are sent."""
    pool.pool_classes_by_scheme = {
        scheme: type(kind.__name__, (kind,), {"ConnectionCls": _handing(kind.ConnectionCls)})
        for scheme, kind in pool.pool_classes_by_scheme.items()
    }
    return pool


def _handing(connection: type[Any]) -> type[Any]:
    def getresponse(self: Any) -> None:
        sock, self.sock = self.sock, None
        raise Handed(sock)

    return type(connection.__name__, (connection,), {"getresponse": getresponse})


class Answer:
    """The answer to one GET as its bytes come: `status` once the head is there, then the body."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.over = False
        """Whether the body has come to its end."""
        self._rest = b""
        self._chunked = False
        self._interim = 0
        self._left: int | None = None
        """Bytes of the body, or of its chunk, that are still to come; None: until it closes."""

    def feed(self, data: bytes) -> bytes:
        """What these bytes add to the body; Broken if they are no HTTP, Foreign if no log."""
        if self.over:
            return b""
        if self.status is None:
            data = self._head(self._rest + data)
            if self.status is None:
                return b""
        if self._chunked:
            return self._chunks(data)
        if self._left is None:
            return data
        found = data[: self._left]
        self._left -= len(found)
        self.over = not self._left
        return found

    def close(self) -> None:
        """The other side has closed; Broken if that is too early."""
        endless = self.status is not None and not self._chunked and self._left is None
        if not self.over and not endless:
            raise Broken("the connection was closed before the answer had ended")
        self.over = True

    def _head(self, data: bytes) -> bytes:
        """Read the head if it is whole; what follows it."""
        while True:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                if len(head) > _LONGEST_HEAD:
                    raise Broken("the head of the answer has no end")
                self._rest = head
                return b""
            first, *lines = head.decode("latin-1").split("\r\n")
            told = re.fullmatch(r"HTTP/1\.[01] ([0-9]{3})(?: (.*))?", first)
            if told is None:
                raise Broken("the answer is no HTTP")
            status = int(told[1])
            if status // 100 * 100 != _CONTINUE:
                break
            self._interim += 1
            if self._interim > _MOST_INTERIM:
                raise Broken("the answer is announced again and again, and never comes")
        self._rest = b""
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status, self.reason = status, told[2] or ""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked, self._left = True, 0
        elif "content-length" in self.headers:
            self._left = _length(self.headers["content-length"])
        if status == _NO_CONTENT or (self._left == 0 and not self._chunked):
            self.over = True
        why = odd_body(self.headers) if _GOOD <= status < _REDIRECT else None
        if why is not None:
            raise Foreign(why)
        return data

    def _chunks(self, data: bytes) -> bytes:
        """The contents of chunks; `_left` counts the line end behind a chunk too."""
        data, at = self._rest + data, 0
        size, left = len(data), self._left or 0
        found = []
        while at < size:
            if left:
                # The rest of a chunk that came in pieces; the last two bytes are its line end.
                if left > _END:
                    found.append(data[at : at + left - _END])
                skip = min(left, size - at)
                at, left = at + skip, left - skip
                continue
            end = data.find(b"\n", at)
            if end < 0:
                if size - at > _LONGEST_SIZE:
                    raise Broken("the size of a chunk has no end")
                break
            length = _size(data[at:end])
            if not length:
                self.over = True
                break
            at = end + 1
            found.append(data[at : at + length])
            left = length + _END
            if at + left <= size:
                at, left = at + left, 0
            else:
                at, left = size, left - (size - at)
        self._rest, self._left = data[at:], left
        return b"".join(found)


def _length(said: str) -> int:
    """What a Content-Length says; Broken if that is no length."""
    if re.fullmatch(rf"[0-9]{{1,{_LONGEST_LENGTH}}}", said) is None:
        raise Broken("the answer has a length that is none")
    return int(said)


def _size(line: bytes) -> int:
    """The size of a chunk, in the line before it; Broken if there is none."""
    try:
        # Spaces around it are left out by `int`; what follows a semicolon has no meaning here.
        size = int(line.split(b";", 1)[0] if b";" in line else line, 16)
    except ValueError as error:
        raise Broken("a chunk of the answer has no size") from error
    if size < 0:
        raise Broken("a chunk of the answer has no size")
    return size


@dataclass(slots=True)
class Place:
    """How far a log was read: what to ask for to go on, and what of the answer is known."""

    at: int = 0
    stamp: bytes = b""
    count: int = 0
    """Lines of the very last time that were seen to their end."""
    given: int = 0
    """Bytes of the next line of that time that were handed on already."""
    top: int = 0
    """The latest time of all lines before, where that is later: the clock was set back."""
    first: tuple[int, bytes] | None = None
    """Of a log whose beginning was cut off: the time of its first line, and how that begins."""

    @property
    def since(self) -> str:
        """The last time in whole seconds, as an API server takes it (it has no finer ones)."""
        return re.sub(r"\.\d+", "", self.stamp.decode("latin-1"))


class Lines:
    """Lines with their times, cut from the body of a log; those seen before are left out.

    A kubelet's answer begins with the whole second of `place`: until its last line is found, lines
    are skipped that are older, of the very same time as many as were seen. After a clock was set
    back times do not tell what is older: lines are held back then until it is found. Where it never
    is, a line may come twice, and none is lost. `place` is kept up to date.

    `early` says that an answer was asked for that begins before `place`, `cut` that lines of the
    log are left out by their number, so that others of the same time may be in the next answer.
    """

    def __init__(
        self, place: Place, source: Source, *, early: bool = False, cut: bool = False
    ) -> None:
        self._place = place
        self._source = source
        self._early, self._cut = early, cut
        self._held: deque[tuple[bytes, bool]] = deque()
        """Lines, or parts of them (and whether these are the last), that may be known."""
        self._size = 0
        self._holding = False
        """Whether the last one of them goes on."""
        self._rest = b""
        self._usual = False
        """Whether the next line begins anew, is not known, and `_seconds` and the like are."""
        self._seconds = self._zone = b""
        self._base = self._text = 0
        self._inside = False
        """Whether the last text was a part of a line that goes on."""
        self._own = True
        """Whether that line has a time, as all lines of containers have."""
        self._skip: int | None = 0
        """Bytes of the line that goes on which are not handed on; None: all of them."""
        self._known = (place.at, place.count, place.given) if place.stamp else None
        self._again = 0

    def feed(self, data: bytes) -> list[Line]:
        """The lines that these bytes complete, and pieces of one that is too long to wait for."""
        *whole, rest = (self._rest + data if self._rest else data).split(b"\n")
        found: list[Line] = []
        place, source = self._place, self._source
        for line in whole:
            # The usual line: of the same second and zone as the last one.
            if (
                self._usual
                and line.startswith(self._seconds)
                and line.startswith(self._zone, _ZONE)
                and (digits := line[_FRACTION:_ZONE]).isdigit()
                and len(line) <= LONGEST
            ):
                end = self._text
                at, stamp = self._base + int(digits), line[: end - 1]
                if at > place.at:
                    place.at, place.stamp, place.count = at, stamp, 1
                elif at == place.at:
                    place.count += 1
                else:
                    self._set_back(at, stamp)
                    place.count = 1
                found.append(Line(source=source, at=at, stamp=stamp, text=line[end:]))
            else:
                self._slow(line, ends=True, found=found)
        while len(rest) > LONGEST:
            self._slow(rest[:LONGEST], ends=False, found=found)
            rest = rest[LONGEST:]
        self._rest = rest
        return found

    def finish(self) -> list[Line]:
        """What the log ends with, if that is no whole line."""
        found: list[Line] = []
        unfed = bool(self._rest or self._inside or self._holding)
        if unfed:
            self._slow(self._rest, ends=True, found=found)
        self._rest = b""
        self._release(found)
        if unfed and found:
            found[-1] = found[-1]._replace(fed=False)
        return found

    def _slow(self, line: bytes, *, ends: bool, found: list[Line]) -> None:
        """A line, or a part of one, of whatever shape."""
        place = self._place
        if self._inside:
            text = line
        elif self._holding:
            self._hold(line, ends=ends, found=found)
            return
        else:
            stamp, _, text = line.partition(b" ")
            at = moment(stamp)
            if at is None:
                # No line of the container: what the kubelet itself has to say.
                at, stamp, text = place.at, b"", line
            if self._known and stamp and self._doubtful(at, self._known[0], found):
                self._hold(line, ends=ends, found=found)
                return
            self._begin(at, stamp, text)
            if len(stamp) >= _USUAL and stamp[_FRACTION - 1 : _FRACTION] == b".":
                self._seconds, self._zone = stamp[:_FRACTION], stamp[_ZONE:] + b" "
                self._base, self._text = at // _NANO * _NANO, len(stamp) + 1
        self._inside = not ends
        self._usual = ends and self._known is None and self._seconds != b""
        if self._skip is None:
            return
        if self._skip:
            skipped = min(self._skip, len(text))
            text, self._skip = text[skipped:], self._skip - skipped
            if not text and not ends:
                return
        at, stamp = place.at, place.stamp if self._own else b""
        pieces = [text[start : start + LONGEST] for start in range(0, len(text), LONGEST)] or [b""]
        source, last = self._source, len(pieces) - 1
        found += [
            Line(source=source, at=at, stamp=stamp, text=piece, ends=ends and index == last)
            for index, piece in enumerate(pieces)
        ]
        if not self._own:
            return
        if ends:
            place.count, place.given = place.count + 1, 0
        else:
            place.given += len(text)

    def _begin(self, at: int, stamp: bytes, text: bytes) -> None:
        """Note the time of a line, and whether it was seen before (`_skip`)."""
        place, self._skip, self._own = self._place, 0, bool(stamp)
        if not stamp:
            return
        if self._known:
            last, count, given = self._known
            if at < last or (at == last and not self._again and not self._is_first(at, text)):
                self._skip = None
                return
            if at == last:
                self._again += 1
                self._held.clear()
                self._size = 0
                # All that comes behind the last line is new, whatever its time.
                if self._again == count and not given:
                    self._known = None
                if self._again <= count:
                    self._skip = None
                    return
                self._skip = given
            self._known = None
        if not place.stamp and self._cut:
            place.first = at, text[:_OPENING]
        if at < place.at:
            self._set_back(at, stamp)
        elif at > place.at or not place.stamp:
            place.at, place.stamp, place.count, place.given = at, stamp, 0, 0

    def _is_first(self, at: int, text: bytes) -> bool:
        """Whether a line may be the first that was seen of its time: those before were cut off."""
        first = self._place.first
        return first is None or first[0] != at or first[1] == text[:_OPENING]

    def _set_back(self, at: int, stamp: bytes) -> None:
        """The clock has gone back: this line comes behind one of a later time."""
        place = self._place
        place.top = max(place.top, place.at)
        place.at, place.stamp, place.count, place.given = at, stamp, 0, 0

    def _doubtful(self, at: int, last: int, found: list[Line]) -> bool:
        """Whether its time does not tell if a line was seen before; else what is held may go on."""
        if last < at <= self._place.top or (at < last and self._early):
            return True
        if at > last:
            self._release(found)
        return False

    def _hold(self, line: bytes, *, ends: bool, found: list[Line]) -> None:
        """Keep a line, or a part of one, until it is known whether it was seen before."""
        self._held.append((line, ends))
        self._size += len(line)
        self._holding, self._usual = not ends, False
        while len(self._held) > _HELD_LINES or self._size > _HELD_BYTES:
            if not self._early:
                self._release(found)
                return
            # Most likely the clock has always been ahead, and all of them are old.
            dropped, whole = self._held.popleft()
            self._size -= len(dropped)
            while self._held and not whole:
                dropped, whole = self._held.popleft()
                self._size -= len(dropped)

    def _release(self, found: list[Line]) -> None:
        """Hand on what was held back: the last line that was seen is not there."""
        held, self._held, self._size, self._holding = self._held, deque(), 0, False
        if held:
            self._known = None
        for line, ends in held:
            self._slow(line, ends=ends, found=found)


_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


def moment(stamp: bytes) -> int | None:
    """Unix nanoseconds of an RFC 3339 time with any zone and up to nine digits; None if none."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    try:
        seconds = datetime.fromisoformat((found[1] + found[3]).decode()).timestamp()
    except ValueError:
        return None
    return int(seconds) * _NANO + int((found[2] or b"0").ljust(9, b"0"))


class _Piped(socket.socket):
    """What a thread reads from elsewhere; to close it ends that as well."""

    __slots__ = ("line",)
    line: socket.socket

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)
        self.line.close()
        super().close()


def plain(sock: Any) -> socket.socket:
    """A socket that can be waited for, with what this one says.

    A TLS connection inside that to an HTTPS proxy can only be read by waiting; that is left to a
    thread of its own, which ends when either side is closed.
    """
    if isinstance(sock, socket.socket):
        return sock
    near, theirs = socket.socketpair()
    ours = _Piped(fileno=near.detach())
    ours.line = socket.socket(fileno=os.dup(sock.fileno()))
    threading.Thread(target=_pump, args=(sock, theirs), daemon=True).start()
    return ours


def _pump(source: Any, target: socket.socket) -> None:
    with contextlib.closing(source), target, contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            target.sendall(data)


def received(sock: socket.socket) -> Iterator[bytes]:
    """What has come on a socket that does not block; b"" at its end. OSError if it broke.

    Of a TLS connection all that it has decrypted: nobody would be told of that again.
    """
    try:
        data = sock.recv(PIECE)
        yield data
        while data and isinstance(sock, ssl.SSLSocket) and sock.pending():
            data = sock.recv(PIECE)
            yield data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return
