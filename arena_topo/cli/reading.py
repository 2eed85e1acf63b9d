"""The files that people name for jobs and settings: read whole, and not without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from arena_topo.errors import UsageError
from arena_topo.files import HANDED, STDIN, opened

MOST = 1 << 20
"""Bytes that a file of a job or of settings may have: etcd takes 1.5 MiB of an object at most."""


def regular(path: str, name: str | None = None) -> bytes:
    """What a file holds; /dev/null holds nothing. OSError if it cannot be read.

    UsageError, with the path or another `name`, if it is no file, which may have no end or be
    waited for in vain, or if it is larger than `MOST`.
    """
    name = name or path
    found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(found, "rb") as file:  # noqa: PTH123 - it is open already
        mode = os.fstat(found).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if stat.S_ISREG(mode):
            return _bounded(file, name)
        if os.path.samestat(os.fstat(found), Path(os.devnull).stat()):
            return b""
    raise UsageError(f"{name}: is no regular file")


def handed(path: str, name: str) -> bytes:
    """The same, also of standard input (`-`) and of what a shell hands over, pipes among them."""
    if path == STDIN or HANDED.fullmatch(path):
        with opened(path) as file:
            return _bounded(file, name)
    return regular(path, name)


def _bounded(file: IO[bytes], name: str) -> bytes:
    data = file.read(MOST + 1)
    if len(data) > MOST:
        raise UsageError(f"{name}: is larger than {MOST >> 20} MiB")
    return data
