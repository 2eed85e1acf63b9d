"""The program as a process of its own, without the time that loading it takes.

Whoever sends it signals, closes its pipes or gives it a terminal needs a process. Most of the time
of a short command goes into loading the program, which a process that runs tests has done long ago:
so the process is a fork of that one. What is about loading it, or about the very end of a process,
starts it from nothing, as `python -m arena_topo`.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pexpect

from arena_topo import __main__, cli
from arena_topo.engines.local import supervisor

LINE = [sys.executable, "-m", "arena_topo"]
"""How the program is started from nothing."""

SHOW = signal.SIGUSR1
"""The signal at which a program at a terminal shows its stacks."""

_LATE = (
    *("arena_topo.engines.local.engine", "arena_topo.engines.kubernetes.engine"),
    *("arena_topo.cli.live", "rich.console", "rich.live", "rich.text"),
)
"""What commands load while they run."""


def start(
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    first: Callable[[], object] | None = None,
    **more: Any,
) -> subprocess.Popen[Any]:
    """Start the program with these words, in this environment.

    `first` is done in its process before it begins; `more` is Popen's.
    """
    becomes = becoming(words, os.environ if env is None else env, first)
    with _threads_are_no_matter():
        line = [*LINE, *words]
        return subprocess.Popen(line, preexec_fn=becomes, **more)  # noqa: PLW1509  see there


def run(
    words: Sequence[str],
    *,
    input: Any = None,  # noqa: A002  as subprocess.run names it
    timeout: float = 180.0,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run the program to its end; what it writes is captured unless `more`, Popen's, says else."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    streams |= {} if input is None else {"stdin": subprocess.PIPE}
    with start(words, **{**streams, **more}) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


def at_terminal(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, **more: Any
) -> pexpect.spawn[Any]:
    """Start the program at a terminal of its own; `more` is that of pexpect.spawn.

    At `SHOW` it writes there where each of its threads is.
    """
    env = os.environ if env is None else env

    def first() -> None:
        faulthandler.register(SHOW)

    with _threads_are_no_matter():
        return pexpect.spawn(
            LINE[0], [*LINE[1:], *words], env=env, preexec_fn=becoming(words, env, first), **more
        )


def becoming(
    words: Sequence[str], env: Mapping[str, str], first: Callable[[], object] | None = None
) -> Callable[[], NoReturn]:
    """Have a fork run the program with these words: for `preexec_fn` of Popen and of pexpect."""
    _load(words)
    return _becoming(__main__, words, dict(env), first)


def _becoming(
    module: Any,
    words: Sequence[str],
    env: dict[str, str],
    first: Callable[[], object] | None = None,
) -> Callable[[], NoReturn]:
    def become() -> NoReturn:
        code = 1
        try:
            _forget(env)
            # Who started it goes on once the last pipe between them is closed.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            if first is not None:
                first()
            sys.argv = [str(module.__file__), *words]
            code = _ended(module.main)
        except BaseException:  # noqa: BLE001  nothing goes back to the tests from here
            traceback.print_exc()
        finally:
            os._exit(code)

    return become


class Supervisors:
    """`subprocess` for the local engine: its supervisors are forks of whoever submits the job.

    Others find them by their environment, which the kernel shows as it was at the start of a
    process: so a fork writes what they look for over what is shown of this one.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(  # noqa: N802  as subprocess names it
        self, line: Sequence[str], *, env: Mapping[str, str], **more: Any
    ) -> subprocess.Popen[Any]:
        """Start a supervisor; the last word of its line is the folder of its job."""
        sought = ("ARENA_TOPO_", "XDG_STATE_HOME", "HOME")
        shown = "".join(f"{key}={env[key]}\0" for key in env if key.startswith(sought)).encode()
        start, end = _place_of_environment()
        if end - start < len(shown):
            return subprocess.Popen(line, env=env, **more)

        def show() -> None:
            ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)

        with _threads_are_no_matter():
            become = _becoming(supervisor, line[-1:], dict(env), show)
            return subprocess.Popen(line, preexec_fn=become, **more)  # noqa: PLW1509


def _place_of_environment() -> tuple[int, int]:
    """Where the first environment of this process is: fields 50 and 51 of proc_pid_stat(5)."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[47]), int(fields[48])


@contextmanager
def _threads_are_no_matter() -> Iterator[None]:
    """From 3.12 on, who forks beside threads is warned; this fork needs nothing that they hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _load(words: Sequence[str]) -> None:
    """Load what these words need, so that this and each later fork has it."""
    for name in _LATE:
        importlib.import_module(name)
    command = cli.command_tree()
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)


def _forget(env: Mapping[str, str]) -> None:
    """Be as a new process: nothing of the tests is left but modules that are loaded."""
    # Files of theirs that a collection closed might have the number of a new one.
    gc.freeze()
    gc.enable()
    atexit._clear()
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__
    # A new process ignores what its parent ignores, and handles nothing; Python adds the rest.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = _stream(0, "r", "strict")
    sys.stdout = _stream(1, "w", "strict")
    sys.stderr = _stream(2, "w", "backslashreplace")


def _stream(number: int, mode: str, errors: str) -> io.TextIOWrapper | None:
    try:
        os.fstat(number)
    except OSError:  # whoever started it has closed it
        return None
    raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
    lines = number == 2 or (mode == "w" and os.isatty(number))
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=lines)


def _ended(main: Callable[[], None]) -> int:
    """Run it; its exit code, once all is done that Python does at the end of a process."""
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = 120
    return code
