"""Where the blocks of a page run: a shell at a terminal, and an interpreter beside it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pexpect
from fake_terminal import FakeTerminal
from starting import Server

COLUMNS, ROWS = 100, 60
PATIENCE = 180.0
"""Seconds that a command may take, on a machine that does other things as well."""

AGAIN = 3.0
"""Seconds after which Ctrl-C is pressed again."""

HOME = "/home/you"
"""What pages call the home that they run in."""

_MARK = re.compile(rb"\x1b\]7777;(\d+)\x07")
_OTHER_CODES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]")
_KEPT = ("LD_LIBRARY_PATH", "SSL_CERT_FILE")


class TooSlow(Exception):
    """A command that does not end; `seen` is what it has said."""

    def __init__(self, seen: str) -> None:
        super().__init__(f"did not end within {PATIENCE:.0f} seconds")
        self.seen = seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An empty home with an empty folder in it, and the environment of who lives there."""

    home: Path
    folder: Path
    env: dict[str, str]

    def shown(self, text: str) -> str:
        """A text as a page has it: nothing of this machine is in it."""
        text = text.replace(str(self.home), HOME)
        text = re.sub(r"127\.0\.0\.1:\d{4,5}\b", "127.0.0.1:6443", text)
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "this-machine", text)

    def path(self, name: str) -> Path:
        """Where a page's file is; `~/` is the home."""
        if name.startswith("~/"):
            return self.home / name[2:]
        return self.folder / name


@contextmanager
def place() -> Iterator[Place]:
    """Make one; all that still runs in it is ended at the end."""
    home = _short_folder()
    folder = home / "work"
    folder.mkdir()
    temporary = home / ".tmp"
    temporary.mkdir()
    env = {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "USER": "you",
        "LOGNAME": "you",
        "SHELL": "/bin/bash",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "NO_COLOR": "1",
        "PAGER": "cat",
        # Goes with the home: jobs that are ended without their supervisor leave their scratch.
        "TMPDIR": str(temporary),
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
    }
    if shutil.which("nvidia-smi"):
        # Pages show what is seen where there are no GPUs.
        env["ARENA_TOPO_EMULATE"] = "dgx-1-v100:2"
    try:
        yield Place(home=home, folder=folder, env=env)
    finally:
        _end_all(home)
        shutil.rmtree(home, ignore_errors=True)


def _short_folder() -> Path:
    """A new folder whose path is as long as HOME: tables are as wide as readers see them."""
    root = Path("/tmp")  # noqa: S108 (the name is a new one, the folder its owner's alone)
    if not os.access(root, os.W_OK):
        root = Path(tempfile.gettempdir())
    while True:
        path = root / secrets.token_hex(8)[: len(HOME) - len(f"{root}/")]
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path


def _end_all(home: Path) -> None:
    """End each process of this home: supervisors of jobs, refreshes in the background."""
    wanted = f"HOME={home}".encode()
    for _ in range(5):
        running = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    running.append(int(entry.name))
        if not running:
            return
        for pid in running:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


class _Terminal(FakeTerminal):
    """A terminal with tabs, whose long lines are whole lines."""

    def feed(self, data: str) -> None:
        data = _OTHER_CODES.sub("", data)
        for number, piece in enumerate(data.split("\t")):
            for _ in range(8 - self.x % 8 if number else 0):
                super().feed(" ")
            super().feed(piece)

    def whole_lines(self) -> list[str]:
        whole, line = [], ""
        for part, goes_on in zip(self.lines, self.soft, strict=True):
            line += part.ljust(self.columns) if goes_on else part
            if not goes_on:
                whole.append(line.rstrip())
                line = ""
        while whole and not whole[-1]:
            whole.pop()
        return whole


class Shell:
    """An interactive bash at a terminal of 100 columns, which lives as long as its page."""

    def __init__(self, where: Place) -> None:
        self._where = where
        server = Server(Path(where.env["TMPDIR"]))
        self._bash = pexpect.spawn(
            "/bin/bash",
            ["--norc", "--noprofile", "--noediting", "-i"],
            # Prompts are marks that no screen shows: where a command ends, and how.
            env={**where.env, "PS1": r"\e]7777;$?\a", "PS2": ""},
            cwd=str(where.folder),
            dimensions=(ROWS, COLUMNS),
            echo=False,
            timeout=PATIENCE,
            preexec_fn=server.start,
        )
        self._bash.delaybeforesend = None
        self._until_mark(b"", None)
        self.run(server.function)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bash.close(force=True)

    def run(self, command: str, *, stop: str | None = None) -> tuple[list[str], int]:
        """Run a command to its end: what is seen of it, line by line, and its exit code.

        Ctrl-C is pressed when `stop` is seen. TooSlow where it does not end.
        """
        self._bash.send(command.encode() + b"\n")
        raw, code = self._until_mark(b"", stop)
        return self._screen(raw), code

    def _screen(self, raw: bytes) -> list[str]:
        terminal = _Terminal(COLUMNS, ROWS)
        terminal.feed(raw.decode(errors="replace"))
        return [self._where.shown(line) for line in terminal.whole_lines()]

    def _until_mark(self, raw: bytes, stop: str | None) -> tuple[bytes, int]:
        end = time.monotonic() + PATIENCE
        press_at = 0.0
        while True:
            if mark := _MARK.search(raw):
                return raw[: mark.start()], int(mark[1])
            text = self._where.shown(raw.decode(errors="replace")) if stop else ""
            if stop and stop in text and time.monotonic() > press_at and self._interrupted():
                # A program that has just started may not hear it.
                press_at = time.monotonic() + AGAIN
            try:
                raw += self._bash.read_nonblocking(65536, timeout=0.05 if stop else 0.2)
            except pexpect.TIMEOUT:
                if time.monotonic() > end:
                    raise TooSlow("\n".join(self._screen(raw))) from None
            except pexpect.EOF:
                raise TooSlow("the shell of this page has ended: does it say `exit`?") from None

    def _interrupted(self) -> bool:
        """Press Ctrl-C for a program that runs; the shell itself, between two, does not hear it."""
        if os.tcgetpgrp(self._bash.child_fd) == self._bash.pid:
            return False
        self._bash.sendintr()
        return True


_INTERPRETER = r"""
import ast, contextlib, doctest, io, json, sys, traceback
answers = sys.stdout
scope = {"__name__": "__main__"}
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
for line in sys.stdin:
    source, name, first = json.loads(line)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if source.lstrip().startswith(">>> "):
                test = doctest.DocTestParser().get_doctest(source, scope, name, name, first)
                runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
                good = not runner.run(test, clear_globs=False).failed
                scope.update(test.globs)
            else:
                exec(compile("\n" * first + source, name, "exec"), scope)
                good = True
        except BaseException:
            traceback.print_exc()
            good = False
    answers.write(json.dumps([good, said.getvalue()]) + "\n")
    answers.flush()
"""


class Interpreter:
    """A Python that runs the python blocks of a page one after the other."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._python: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            self._python.kill()
            self._python.communicate()

    def run(self, source: str, page: str, line: int) -> str | None:
        """Run a block; None if all went well, else what was said."""
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._where.env,
                cwd=self._where.folder,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps([source, page, line]) + "\n")
        self._python.stdin.flush()
        alarm = threading.Timer(PATIENCE, self._python.kill)
        alarm.start()
        answer = self._python.stdout.readline()
        alarm.cancel()
        if not answer:
            raise TooSlow("the interpreter of this page has ended")
        good, text = json.loads(answer)
        return None if good else self._where.shown(text)
