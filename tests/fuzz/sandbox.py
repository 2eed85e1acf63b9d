"""Runs command lines through the entry function of the program, where they can harm nothing.

The worker that does so is a process of its own, whose home, state and caches are in a folder of its
own. An audit hook refuses what reaches beyond: programs, signals, other hosts, and changes to files
elsewhere. The program sees what it would see as a user who may not do that.
"""

from __future__ import annotations

import errno
import functools
import gc
import io
import os
import re
import resource
import shlex
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from arena_topo import cli
from arena_topo.cli.interruption import Interruption

CPU_LIMIT = 5.0
"""Seconds of computing after which a run is slow, and ended."""

WALL_LIMIT = 45.0
"""Seconds after which a run hangs, and is ended; generous, since machines may be busy."""

ADDRESS_SPACE = 4 << 30
"""Bytes beyond which a worker gets no more memory."""

_FRAME = re.compile(r'File "[^"]*/arena_topo/([^"]+)", line (\d+), in (\S+)')

_KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?=:|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One command line, and the files, variables and the text of stdin that it reads.

    Files are relative to the folder in which it runs; the value None takes a variable away.
    """

    line: Sequence[str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    about: str = ""
    """What else was done to it, such as the fault of a server."""

    def shell(self) -> str:
        """The line and its variables as a shell would take them."""
        given = [f"{key}={shlex.quote(said or '')}" for key, said in self.variables.items()]
        return " ".join([*given, "arena-topo", *map(shlex.quote, self.line)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the program an exception was raised, or a run was ended."""

    kind: str
    at: str
    trace: str

    @classmethod
    def of(cls, trace: str) -> Place:
        """Read a traceback."""
        frames = _FRAME.findall(trace)
        where = "{}:{} {}".format(*frames[-1]) if frames else "outside the program"
        kinds = _KIND.findall(trace)
        return cls(kind=kinds[-1] if kinds else "?", at=where, trace=trace)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a run did."""

    code: int
    out: bytes
    err: bytes
    crash: Place | None = None
    ended: Place | None = None
    """Where it was when it was ended for having no end."""
    computed: float
    """Seconds of CPU, of all threads."""
    took: float
    peak: int
    """Bytes of memory that the process had at most, in this run."""
    grown: int
    """Bytes by which its peak of memory was above what was there before."""
    refused: tuple[str, ...] = ()
    """What the sandbox did not let it do."""


class _NoEnd(BaseException):
    """A run has used up its time."""


class Sandbox:
    """Runs inputs in the folder it is given, which is the current one of the process."""

    def __init__(self, folder: Path, entry: Callable[[Sequence[str]], int] = cli.run) -> None:
        self._entry = entry
        # What the program sets and makes once in a process.
        gc.set_threshold(100_000, 20, 20)
        cli.command_tree = functools.cache(cli.command_tree)
        self._folder = folder
        self._reports = Path(os.environ["TMPDIR"])
        self._streams = [_stream(number) for number in (1, 2)]
        self._hook = _Hook(folder)
        self._trusts = False
        self._watch = _Watch()
        self._peak = os.open("/proc/self/clear_refs", os.O_WRONLY)

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Let runs do as they like: targets make their worlds with them."""
        self._trusts = True
        try:
            yield
        finally:
            self._trusts = False

    def run(self, given: Input) -> Outcome:
        """Run one input to its end, whatever that is."""
        changed = {key: os.environ.get(key) for key in given.variables}
        _set(given.variables)
        self._hook.refused.clear()
        streams = sys.stdin, sys.stdout, sys.stderr
        for descriptor in self._streams:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
        sys.stdin = io.TextIOWrapper(
            io.BytesIO(given.stdin), encoding="utf-8", errors="surrogateescape"
        )
        sys.stdout = _writer(self._streams[0], "strict")
        sys.stderr = _writer(self._streams[1], "backslashreplace")
        crash = ended = None
        memory = self._forget_peak()
        begun, computed = time.monotonic(), time.process_time()
        self._hook.armed = not self._trusts
        try:
            with self._watch:
                code = self._entry([*given.line])
        except _NoEnd as stop:
            code, ended = -1, Place.of("".join(traceback.format_exception(stop)))
        except BaseException as error:  # noqa: BLE001 - nothing may come out of that function
            code, crash = -1, Place.of("".join(traceback.format_exception(error)))
        finally:
            self._hook.armed = False
            Interruption().remove_deadline()
            sys.stdin, sys.stdout, sys.stderr = streams
            _set(changed)
        peak = _highest()
        out, err = map(_written, self._streams)
        outcome = Outcome(
            code=code,
            out=out,
            err=err,
            crash=crash,
            ended=ended,
            computed=time.process_time() - computed,
            took=time.monotonic() - begun,
            peak=peak,
            grown=peak - memory,
            refused=tuple(self._hook.refused),
        )
        if b"made a mistake" in err:
            outcome.crash = crash or self._report()
        elif b"Traceback (most recent" in err:
            outcome.crash = crash or Place.of(err.decode("utf-8", "replace"))
        return outcome

    def _forget_peak(self) -> int:
        """Let the peak of memory be what is used now; that."""
        os.write(self._peak, b"5")
        return _highest()

    def _report(self) -> Place | None:
        """What the program has written down about its mistake."""
        found = None
        for path in self._reports.glob("arena-topo-*.txt"):
            found = Place.of(path.read_text(encoding="utf-8", errors="replace"))
            path.unlink()
        return found


def bounded_memory() -> None:
    """Let this process have no more than ADDRESS_SPACE: a bomb is an error and not the end."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, hard))


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _set(variables: Mapping[str, str | None]) -> None:
    for key, said in variables.items():
        if said is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = said


def _stream(number: int) -> int:
    """Let a stream of this process be a file in memory; its descriptor."""
    made = os.memfd_create(f"stream-{number}")
    os.dup2(made, number)
    os.close(made)
    return number


def _writer(descriptor: int, errors: str) -> io.TextIOWrapper:
    raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - a descriptor
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors)


def _written(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES: Mapping[str, Sequence[tuple[int, int | None]]] = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "shutil.rmtree": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.truncate": ((0, None),),
    "os.setxattr": ((0, None),),
}
"""Audit events of changes: where they tell a path, and the open folder that it is relative to."""


class _Watch:
    """Ends a block that computes or waits for too long, by an exception in the first thread."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._deadline = float("inf")
        signal.signal(signal.SIGPROF, self._end)
        signal.signal(signal.SIGUSR1, self._end)
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> None:
        self._deadline = time.monotonic() + WALL_LIMIT
        # Again and again, where the first exception is caught in a destructor or a callback.
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT, 1.0)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._deadline = float("inf")

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self._deadline != float("inf"):
            raise _NoEnd("computes" if number == signal.SIGPROF else "waits")

    def _look(self) -> None:
        while True:
            time.sleep(1.0)
            if time.monotonic() > self._deadline:
                signal.pthread_kill(self._main, signal.SIGUSR1)


class _Hook:
    """The audit hook of the process; it cannot be taken away, only disarmed."""

    def __init__(self, folder: Path) -> None:
        self.armed = False
        self.refused: list[str] = []
        self._own = f"{folder}/"
        refuse = self._refuse
        self._rules = {
            "subprocess.Popen": lambda *_: refuse(errno.ENOENT, "a program"),
            "os.posix_spawn": lambda *_: refuse(errno.ENOENT, "a program"),
            "os.exec": lambda *_: refuse(errno.ENOENT, "a program"),
            "os.system": lambda *_: refuse(errno.ENOENT, "a program"),
            "os.fork": lambda *_: refuse(errno.EAGAIN, "a process"),
            "os.forkpty": lambda *_: refuse(errno.EAGAIN, "a process"),
            "os.kill": self._kill,
            "os.killpg": lambda pid, number: refuse(errno.EPERM, f"signal {number} to -{pid}"),
            "socket.connect": self._connect,
            "socket.getaddrinfo": self._resolve,
            "open": self._open,
            **{event: functools.partial(self._change, at) for event, at in _CHANGES.items()},
        }
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if self.armed and (rule := self._rules.get(event)) is not None:
            rule(*given)

    def _refuse(self, number: int, what: str) -> None:
        self.refused.append(what)
        raise OSError(number, os.strerror(number))

    def _kill(self, pid: int, number: int) -> None:
        if number:
            self._refuse(errno.EPERM, f"signal {int(number)} to {pid}")

    def _connect(self, one: socket.socket, address: Any) -> None:
        if one.family == socket.AF_UNIX:
            self._refuse(errno.ECONNREFUSED, f"a connection to {address!r}")
        elif not str(address[0]).startswith("127.") and address[0] != "::1":
            self._refuse(errno.ECONNREFUSED, f"a connection to {address[0]}")

    def _resolve(self, host: Any, *_: object) -> None:
        name = host.decode("latin-1") if isinstance(host, bytes) else host
        if name not in {None, "localhost", "::1"} and not str(name).startswith("127."):
            self.refused.append(f"the address of {name}")
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def _open(self, path: Any, _mode: object, flags: int) -> None:
        if isinstance(path, int) or not flags & _WRITING:
            return
        self._keep_to_folder(os.path.realpath(os.fsdecode(path)))

    def _change(self, places: Sequence[tuple[int, int | None]], *given: Any) -> None:
        """Refuse a change elsewhere; a name below an open folder is where that is."""
        for at, folder in places:
            path = given[at]
            if isinstance(path, int):
                continue
            parent, name = os.path.split(os.fsdecode(path))
            opened = None if folder is None else given[folder]
            if os.path.isabs(parent) or opened in {None, -1}:  # noqa: PTH117 - text alone
                self._keep_to_folder(os.path.join(os.path.realpath(parent), name))  # noqa: PTH118

    def _keep_to_folder(self, path: str) -> None:
        if not f"{path}/".startswith(self._own) and path != os.devnull:
            self._refuse(errno.EACCES, f"a change to {path}")
