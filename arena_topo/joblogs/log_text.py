"""Logs of programs made safe for a terminal: their colours and progress bars stay.

`LogText` is for a log in pieces, `log_line` for single lines of it.
"""

from __future__ import annotations

import re
from functools import cache

from arena_topo.escaping import OBEYED, as_escape

_ORDINARY = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
"""Tab, line feed and the printable characters of ASCII: most of every log."""

_LONGEST_SEQUENCE = 64
"""Bytes of the longest escape sequence for colours: more than five true colours."""

_LONGEST_LINK = 2083
"""Characters of the longest address of a link, as in browsers."""

_OF_PROGRAMS = re.compile(
    f"\x1b\\[(?:([0-9;:]{{0,{_LONGEST_SEQUENCE}}})m|[0-2]?(K)|(\\?(?:7|12|25|2004|2026)[hl]))"
    f"|\x1b\\](8;[ -~]{{0,{_LONGEST_LINK}}}(?:\x07|\x1b\\\\))|\x1b+(?![][])|\x1b"
)
"""SGR, EL (ECMA-48, 8.3.117 and 8.3.41); sequences that hide the cursor, or switch wrapping,
bracketed paste or synchronized output (DEC private modes, xterm's ctlseqs); links (OSC 8); and
every other escape character."""

_CONTROLS = re.compile(f"{OBEYED.pattern}(?<![\x1b\r])")
"""Control characters that mean nothing in a log, whatever follows."""

_UNFINISHED = re.compile(
    rb"(?:\x1b(?:\[(?:[0-9;:]{0,%d}|\?[0-9]{0,4})|\](?:8(?:;[ -~]{0,%d}\x1b?)?)?)?"
    % (_LONGEST_SEQUENCE, _LONGEST_LINK)
    + rb"|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
"""An incomplete colour, link or character at the end of the data so far."""

_LONGEST_HELD = _LONGEST_LINK + 8
"""Bytes of the longest incomplete sequence."""

_RESET = "\x1b[0m"

_LOOK = re.compile("\x1b\\[[0-9;:]*m")

_LOOK_PARAMETER = (
    # A colour of the 256, or a true one (ITU-T T.416, 13.1.8), with semicolons as most write it.
    r"(?:[34]8[;:](?:5[;:][0-9]{1,3}|2[;:](?:[0-9]{0,3}:)?[0-9]{1,3}(?:[;:][0-9]{1,3}){2})"
    r"|0*(?:[0-4]|7|9|2[1-79]|[34][0-79]|9[0-7]|10[0-7])|)"
)
_LOOKS = re.compile(rf"{_LOOK_PARAMETER}(?:;{_LOOK_PARAMETER})*")
"""Allowed SGR attributes: colours, bold, faint, italic, underlined, reversed, crossed out, and
their ends. Not allowed are concealed (8), blinking (5, 6) and other fonts: a sequence with any of
these is removed."""


def ordinary(data: bytes, *, returns: bool = False) -> bool:
    """Whether data is UTF-8 without control characters, so that it needs no change.

    With `returns` carriage returns are allowed.
    """
    odd = data.translate(None, _ORDINARY + b"\r" if returns else _ORDINARY)
    if not odd:
        return True
    if min(odd) < 0x80:  # noqa: PLR2004 - ASCII ends there
        return False
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    # Characters above ASCII may be control characters too.
    return OBEYED.search(text if not returns else text.replace("\r", "")) is None


def cut_short(data: bytes) -> int:
    """The start of an incomplete sequence or character at the end of the data; else its length."""
    match = _UNFINISHED.search(data, max(0, len(data) - _LONGEST_HELD))
    return len(data) if match is None else match.start()


def log_line(text: bytes, *, colours: bool) -> str:
    """A line of a log for use behind a prefix: its final state on a terminal.

    Of text that was overwritten (carriage returns) the last remains. Invalid UTF-8 becomes U+FFFD.
    Colours of the program pass with `colours`, and end with the line.
    """
    line = text.decode(errors="replace")
    if ordinary(text):
        return line
    if "\r" in line:
        line = next(filter(None, reversed(line.split("\r"))), "")
    done = _shown(line, colours=colours, moves=False)
    return done + _RESET if colours and _colour_after(done, before=False) else done


class LogText:
    """A log in pieces of any size, made safe for a terminal.

    Colours pass with `colours`, and end with their line; so do sequences that erase the rest of a
    line. Carriage returns pass: progress bars move, and overwrite only their own line. Sequences
    that hide the cursor and the like are removed, and so are links, but for their text. Others are
    escaped, and invalid UTF-8 becomes U+FFFD. Ordinary text passes unchanged, byte for byte.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._held = b""
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        """The safe text so far; an incomplete sequence or character waits for its rest."""
        if self._held:
            data, self._held = self._held + data, b""
        if not self._coloured and ordinary(data, returns=True):
            return data
        at = cut_short(data)
        data, self._held = data[:at], data[at:]
        return self._shown(data)

    def end(self) -> bytes:
        """The rest at the end of the log: an incomplete sequence, and the end of colours."""
        rest, self._held = self._shown(self._held), b""
        if self._coloured:
            rest, self._coloured = rest + _RESET.encode(), False
        return rest

    def _shown(self, data: bytes) -> bytes:
        text = _shown(data.decode(errors="replace"), colours=self._colours, moves=True)
        if not self._colours or ("\x1b" not in text and not self._coloured):
            return text.encode()
        *lines, last = text.split("\n")
        done = []
        for line in lines:
            ends = _RESET if _colour_after(line, before=self._coloured) else ""
            self._coloured = False
            done.append(line + ends)
        self._coloured = _colour_after(last, before=self._coloured)
        return "\n".join([*done, last]).encode()


def _shown(text: str, *, colours: bool, moves: bool) -> str:
    """Text of a log with the allowed sequences only; `moves`: also those that move the cursor.

    Carriage returns stay.
    """
    done = _OF_PROGRAMS.sub(lambda match: _allowed(match, colours=colours, moves=moves), text)
    # A table is several times as fast as a call for each character, of which a log of binary data
    # has millions.
    return done.translate(_escapes()) if _CONTROLS.search(done) else done


@cache
def _escapes() -> dict[int, str]:
    """The escapes of what `_CONTROLS` finds in text that was decoded, by code point."""
    characters = map(chr, (*range(0xA0), *range(0x2000, 0x2070)))
    return {
        ord(character): repr(character)[1:-1]
        for character in characters
        if _CONTROLS.match(character)
    }


def _allowed(match: re.Match[str], *, colours: bool, moves: bool) -> str:
    """The replacement of a sequence, or of escape characters, in a log."""
    asked, erases, mode, link = match.groups()
    if asked is not None:
        return match[0] if colours and _LOOKS.fullmatch(asked) else ""
    if erases:
        return match[0] if moves and colours else ""
    if mode or link:
        return ""
    return as_escape(match)


def _colour_after(line: str, *, before: bool) -> bool:
    """Whether a colour is on at the end of a line with allowed sequences only."""
    looks = _LOOK.findall(line)
    return looks[-1] not in {_RESET, "\x1b[m"} if looks else before
