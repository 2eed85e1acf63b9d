"""A terminal that remembers what stands on it, and a program that runs in it."""

from __future__ import annotations

import functools
import os
import re
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import pexpect
import program
import pytest

_PIECE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|[\r\n\a\b]|[^\x00-\x1f]|.", re.DOTALL)


class FakeTerminal:
    """Rows of characters, most of them scrolled away; what ECMA-48 a live screen needs.

    `reflows` has it break lines anew when its width changes, as most terminals do.
    """

    def __init__(self, columns: int, rows: int, *, reflows: bool = True) -> None:
        self.columns, self.rows, self.reflows = columns, rows, reflows
        self.lines: list[str] = [""]
        self.soft: list[bool] = [False]
        self.y = self.x = 0
        self.codes: list[str] = []

    @property
    def top(self) -> int:
        """The first row that is not scrolled away."""
        return max(0, len(self.lines) - self.rows)

    @property
    def text(self) -> str:
        """All that stands there, scrolled away or not, without trailing blanks."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")

    @property
    def visible(self) -> str:
        """What can be seen of it."""
        return "\n".join(line.rstrip() for line in self.lines[self.top :]).rstrip("\n")

    def feed(self, data: str) -> None:
        """Take what a program writes."""
        for piece in _PIECE.finditer(data):
            if piece[2]:
                self.codes.append(f"{piece[1]}{piece[2]}")
                self._control(piece[1], piece[2])
            elif piece[0] == "\r":
                self.x = 0
            elif piece[0] == "\n":
                self._down()
            elif piece[0].isprintable():
                self._write(piece[0])

    def _write(self, character: str) -> None:
        if self.x == self.columns:
            self.soft[self.y] = True
            self.x = 0
            self._down()
        line = self.lines[self.y].ljust(self.x)
        self.lines[self.y] = line[: self.x] + character + line[self.x + 1 :]
        self.x += 1

    def _down(self) -> None:
        self.y += 1
        if self.y == len(self.lines):
            self.lines.append("")
            self.soft.append(False)

    def _control(self, said: str, kind: str) -> None:
        count = int(said) if said.isdigit() else 1
        if kind == "A":
            self.y = max(self.top, self.y - count)
        elif kind == "J" and said in {"", "0"}:
            self._cut(self.y)
            for row in range(self.y + 1, len(self.lines)):
                self.lines[row], self.soft[row] = "", False
        elif kind == "K":
            self.lines[self.y] = "" if said == "2" else self.lines[self.y][: self.x]
        elif kind not in "mhl":
            raise AssertionError(f"what does {said}{kind} do?")

    def _cut(self, row: int) -> None:
        self.lines[row], self.soft[row] = self.lines[row][: self.x], False

    def resize(self, columns: int, rows: int) -> None:
        """Become so large."""
        self.rows = rows
        if columns == self.columns:
            return
        if self.reflows:
            self._reflow(columns)
        self.columns = columns

    def _reflow(self, columns: int) -> None:
        lines, soft, at = [], [], (0, 0)
        whole, offset = "", 0
        for row, line in enumerate(self.lines):
            if row == self.y:
                offset = len(whole) + self.x
                at = (len(lines), offset)
            whole += line.ljust(self.columns) if self.soft[row] else line
            if self.soft[row]:
                continue
            parts = [whole[i : i + columns] for i in range(0, max(1, len(whole)), columns)]
            lines += parts
            soft += [True] * (len(parts) - 1) + [False]
            whole = ""
        first, offset = at
        down = max(0, offset - 1) // columns
        self.lines, self.soft = lines, soft
        self.y, self.x = first + down, offset - down * columns


class Running:
    """The program in such a terminal, with these words."""

    def __init__(self, words: list[str], env: dict[str, str], **terminal: Any) -> None:
        self._start(functools.partial(program.at_terminal, words), env, **terminal)

    @classmethod
    def of(cls, line: list[str], env: dict[str, str], **terminal: Any) -> Running:
        """Any program."""
        one = cls.__new__(cls)
        one._start(functools.partial(pexpect.spawn, line[0], line[1:]), env, **terminal)
        return one

    def _start(
        self,
        spawn: Callable[..., Any],
        env: dict[str, str],
        *,
        columns: int = 80,
        rows: int = 24,
        reflows: bool = True,
    ) -> None:
        self.screen = FakeTerminal(columns, rows, reflows=reflows)
        self.program = spawn(
            env={"PATH": os.environ["PATH"], "TZ": "UTC", **env},
            dimensions=(rows, columns),
            encoding="utf-8",
            timeout=30,
        )

    def until(self, seen: Callable[[FakeTerminal], bool] | str, *, within: float = 30.0) -> str:
        """Let it run until that is seen, a text or more; all that stands there then."""
        wanted = seen if callable(seen) else lambda screen: seen in screen.text
        end = time.monotonic() + within
        while not wanted(self.screen):
            if time.monotonic() > end or not self._take():
                assert wanted(self.screen), f"not seen:\n{self.screen.text}"
        return self.screen.text

    def during(self, seconds: float) -> str:
        """Let it run for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._take():
            pass
        return self.screen.text

    def _take(self) -> bool:
        try:
            self.screen.feed(self.program.read_nonblocking(4096, timeout=0.1))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            self._take_the_rest()
            return False
        return True

    def _take_the_rest(self) -> None:
        # A program that ends just when nobody looks has its last words unread.
        fd, rest = self.program.child_fd, b""
        with suppress(OSError):
            while select.select([fd], [], [], 0)[0] and (piece := os.read(fd, 4096)):
                rest += piece
        self.screen.feed(rest.decode(errors="replace"))

    def _does_not_end(self) -> NoReturn:
        text = self.screen.text
        with suppress(OSError):
            self.program.kill(program.SHOW)
        self.during(1.0)
        pytest.fail(f"does not end:\n{text}\n\nthen, with its stacks:\n{self.screen.text}")

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self.during(0.05)
        self.screen.resize(columns, rows)
        self.program.setwinsize(rows, columns)

    def end(self, *, within: float = 30.0) -> int:
        """Let it run to its end; its exit code."""
        end = time.monotonic() + within
        while self._take():
            if time.monotonic() > end:
                self._does_not_end()
        self.program.close()
        return self.program.exitstatus if self.program.exitstatus is not None else -1
