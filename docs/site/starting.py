"""`arena-topo` in the shell of a page: a fork of a process that has loaded the program.

A page has many commands, and most of the time of a short one goes into loading the program. So a
fork of this process waits in the session of the shell. The shell runs a client instead, which loads
nothing: it hands over its words, its folder, its environment and its streams, and ends as the fork
ends that becomes the program. That is in the same group of processes, so that the terminal's keys
reach it. Whatever is not typed at the prompt (jobs, the python blocks) starts the program itself.
"""

from __future__ import annotations

import ast
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import program

from arena_topo.cli import settings

_CLIENT = """
import _signal, _socket, os, sys
for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
    _signal.signal(number, _signal.SIG_IGN)
door = _socket.socket(_socket.AF_UNIX)
door.connect(sys.argv[1])
said = repr((sys.argv[2:], os.getcwd(), dict(os.environ), os.getpgrp())).encode()
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
door.sendmsg([len(said).to_bytes(8, "big")], rights)
door.sendall(said)
code = int.from_bytes(door.recv(4), "big", signed=True)
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""

_SITE = settings.SITE
"""As users have it; tests have one of their own."""

_DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class Server:
    """What waits beside a shell; its client and its socket are in this folder."""

    def __init__(self, folder: Path) -> None:
        self._door = str(folder / "door")
        self._client = folder / "client.py"
        self._client.write_text(_CLIENT, encoding="utf-8")

    @property
    def function(self) -> str:
        """A line of bash: from then on the program is the client."""
        return f'arena-topo() {{ {sys.executable} -IS {self._client} {self._door} "$@"; }}'

    def start(self) -> None:
        """Start the server, in the process that is about to become the shell."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self._door)
        listening.listen()
        if os.fork() == 0:
            try:
                self._serve(listening.detach())
            finally:
                os._exit(1)
        listening.close()

    def _serve(self, listening: int) -> None:
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)
        os.dup2(listening, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with socket.socket(fileno=3) as door:
            while True:
                client, _ = door.accept()
                with client:
                    _handle(client)


def _handle(client: socket.socket) -> None:
    """Start what this client asks for; a fork of this process waits for its end."""
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    if not head:  # it was interrupted before it could ask
        return
    request = client.makefile("rb").read(int.from_bytes(head, "big"))
    words, folder, env, group = ast.literal_eval(request.decode())
    become = program.becoming(words, env)
    if os.fork() == 0:
        _wait(client, lambda: _become(become, folder, group, streams), streams)
    for number in streams:
        os.close(number)


def _become(become: Callable[[], Any], folder: str, group: int, streams: list[int]) -> None:
    os.setpgid(0, group)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    settings.SITE = _SITE
    become()


def _wait(client: socket.socket, become: Callable[[], None], streams: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    try:
        if pid == 0:
            become()
        for number in streams:
            os.close(number)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        client.sendall(code.to_bytes(4, "big", signed=True))
    finally:
        os._exit(0)
