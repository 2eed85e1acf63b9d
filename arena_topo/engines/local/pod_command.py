"""A command in the place of a worker or launcher: its environment, its folder, its GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from arena_topo.engines import raw_terminal
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.local import processes
from arena_topo.engines.local.store import CONTAINER, Job, load
from arena_topo.errors import ArenaError, NotPossible


class _Pods(msgspec.Struct):
    """The fields of `pods.json` for a command: its folder and variables."""

    folder: str
    common: dict[str, str]
    own: dict[str, dict[str, str]]


def attach_process(
    job: Job,
    instance: str,
    request: AttachRequest,
    *,
    tell: Callable[[str], None],
) -> int:
    """Run a command on the streams of this process as if in a pod; its exit code.

    The command ends with the job. NotPossible if the pod does not run, ArenaError if the command
    cannot be started.
    """
    _check(job, instance)
    try:
        pods = load(job.folder, "pods.json", _Pods)
    except (OSError, ValueError) as error:
        raise ArenaError(f"instance {instance} is ending, or its files cannot be read") from error
    environment = {**pods.common, **pods.own.get(instance, {})}
    tell(f"Attached to container {CONTAINER} of {instance}")
    if request.terminal and "TERM" in os.environ:
        # The job may have been submitted from another terminal, or from none.
        environment["TERM"] = os.environ["TERM"]
    with raw_terminal.restore_terminal():
        fed = request.terminal or raw_terminal.offers_input(shell=not request.words)
        return _run(request.command, environment, pods.folder, fed=fed)


def _check(stored: Job, instance: str) -> None:
    job, state = stored.submission, stored.state
    pod = state.pods.get(instance)
    if state.phase.over or (pod is not None and pod.finished is not None):
        phase = "Failed" if pod is None or pod.exit_code else "Succeeded"
        raise NotPossible(
            f"cannot attach to {instance}: it has ended ({phase})",
            hint=f"arena-topo logs {job.name} -i {instance} -n {job.namespace}",
        )
    if pod is None:
        raise NotPossible(
            f"container {CONTAINER} of instance {instance} is not running",
            why=state.reason,
            hint=f"arena-topo why {job.name} -n {job.namespace}",
        )


def _run(words: Sequence[str], environment: dict[str, str], folder: str, *, fed: bool) -> int:
    """Run a command to its end; it gets all input of a terminal, Ctrl-C included."""
    before: dict[int, Any] = {}
    early: list[int] = []
    # A signal that arrives before the command has started is handled once it has.
    handlers = {
        key: signal.signal(key, lambda number, _frame: early.append(number))
        for key in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        child = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=None if fed else subprocess.DEVNULL,
        )
    except (OSError, ValueError) as error:
        for key, handler in handlers.items():
            signal.signal(key, handler)
        # A ValueError is about words or variables with a zero byte.
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ArenaError(f"`{words[0]}` cannot be run in {folder}", why=why) from error

    def typed(number: int, _frame: object) -> None:
        # A terminal sends its signals to the command as well.
        if not os.isatty(raw_terminal.STDIN_FD):
            child.send_signal(number)

    try:
        for key in (signal.SIGINT, signal.SIGQUIT):
            before[key] = signal.signal(key, typed)
        for key, handler in handlers.items():
            signal.signal(key, handler)
        for number in early:
            signal.raise_signal(number)
        code = child.wait()
    except BaseException:
        # An interactive shell ignores SIGTERM.
        child.send_signal(signal.SIGHUP)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return processes.shell_exit_code(code)
