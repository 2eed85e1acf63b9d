"""What the child does that completion starts (`completion.refresh`): ask for names, keep them, end.

It has no terminal and says nothing. It reads flags, variables and settings as every command does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

import typer

from arena_topo.cli import remembering, settings
from arena_topo.cli.commands import SteadyCommand
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, LogLevel, listen, spread
from arena_topo.completion import keeping, names, refresh


def main(asked: str, words: Sequence[str]) -> NoReturn:
    """Ask for one kind of names, as `asked` says, and end: 0 where they were found."""
    kind, turn, cluster, job = (*asked.split(" "), "", "", "", "")[:4]
    if not names.plain(turn) or not names.plain(cluster):
        os._exit(2)
    with contextlib.suppress(OSError):  # it is one already, where the system could do it
        os.setsid()
    os.nice(5)

    def done(code: int) -> NoReturn:
        with contextlib.suppress(OSError), keeping.Folder(os.environ) as folder:
            if code:
                folder.write(turn, f"failed {keeping.now()}\n")
            else:
                folder.remove(turn)
        if code and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # what it has started ends with it
        os._exit(code)

    late = threading.Timer(refresh.LIMIT, done, (1,))
    late.daemon = True
    late.start()
    listen(LogLevel.ERROR)
    code = 1
    with contextlib.suppress(BaseException), _alone(cluster):
        _ask(kind, job, words)
        code = 0
    done(code)


@contextlib.contextmanager
def _alone(cluster: str) -> Iterator[None]:
    """Wait until no other child asks the same cluster; OSError where there is no folder."""
    opened = names.entered(names.folder(os.environ))
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open(f"busy-{cluster}", flags, 0o600, dir_fd=opened)
    finally:
        os.close(opened)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _ask(kind: str, job: str, words: Sequence[str]) -> None:
    @spread
    def look(everywhere: Globals) -> None:
        """Ask for names."""
        _look(kind, job, everywhere)

    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command("refresh", cls=SteadyCommand)(look)
    command = typer.main.get_command(app)
    command.main(args=list(words), prog_name=PROGRAM, standalone_mode=False)


def _look(kind: str, job: str, everywhere: Globals) -> None:
    remembering.begin(everywhere)
    if kind in names.OWN:
        _own(kind, everywhere)
        return
    remembering.meant(everywhere)
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    if kind == "instances" and job:
        remembering.jobs(backend, namespace, [backend.job(job, namespace)], whole=False)
    elif kind in {"jobs", "instances"}:
        remembering.jobs(backend, namespace, backend.jobs(namespace), whole=True)
    elif kind == "claims":
        remembering.claims(backend, backend.volumes(namespace), namespace)
    elif backend.name == "local":
        remembering.nodes(backend, backend.cluster())
    else:
        from arena_topo.engines.kubernetes import naming  # noqa: PLC0415 - only here
        from arena_topo.engines.kubernetes.connection import Connection  # noqa: PLC0415

        found = naming.named(Connection(everywhere.options()), kind)
        remembering.others(backend, kind, found)


def _own(kind: str, everywhere: Globals) -> None:
    """Keep what the user's own files have."""
    if kind == "profiles":
        found = settings.read(lambda _: None)
        remembering.own(kind, {name for one in found.files for name in one.table("profile")})
    else:
        from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415 - loads YAML

        remembering.own(kind, kubeconfig.entries(everywhere.options())[kind])
