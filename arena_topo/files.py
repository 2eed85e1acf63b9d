"""Reading of files that users name, atomic replacement of our own, and packaged folders."""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

STDIN = "-"

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks of Windows PowerShell (about_Character_Encoding, `>` before version 6)."""

HANDED = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")
"""Paths of files that a shell passes, such as `<(COMMAND)`."""


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file, a pipe or standard input (`-`) for reading bytes.

    OSError, with a reason for people, for standard input that is closed, for a folder, and for a
    device, which may be endless (/dev/null is an empty file).
    """
    if path == STDIN:
        yield _stdin()
        return
    if "\0" in path:
        raise OSError(errno.EINVAL, "no path has a NUL character")
    mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or HANDED.fullmatch(path) or _null(path)):
        raise OSError(errno.ENODEV, "it is a device, not a file")
    with Path(path).open("rb") as file:
        yield file


MAX_FILE_BYTES = 1 << 20
"""The largest job or settings file, in bytes: an object in etcd has at most 1.5 MiB."""


def read_bytes(path: str, *, handed: bool = False) -> bytes:
    """The content of a small file; /dev/null is empty.

    OSError, with a reason for people, if the file cannot be read, is not a regular file, which may
    be endless or block, or is larger than `MAX_FILE_BYTES`. With `handed` it may also be standard
    input (`-`), or a file that a shell passes, such as a pipe.
    """
    if not (handed and (path == STDIN or HANDED.fullmatch(path))):
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or _null(path)):
            raise OSError(errno.ENODEV, "it is no regular file")
    with opened(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
    return data


def replace_file(
    path: str | Path,
    data: bytes | Iterable[bytes],
    *,
    folder: int | None = None,
    durable: bool = True,
) -> None:
    """Replace a file atomically: readers see the old content or the new, never a part.

    Only the user may read it. If `durable`, it is on the disk when this returns. `folder` is the
    descriptor of the folder of a relative path. After an OSError the old content remains.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            if durable:
                os.fsync(descriptor)
        os.replace(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def encoding(start: bytes) -> str:
    """The encoding of a text by its first bytes: that of its byte order mark, else UTF-8."""
    return "utf-16" if start.startswith(UTF_16) else "utf-8-sig"


def _stdin() -> IO[bytes]:
    if sys.stdin is None:  # closed by the caller: `<&-`
        raise OSError(errno.EBADF, "it is closed")
    # A program that embeds this one may have replaced it by a text stream.
    return getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def _null(path: str) -> bool:
    return Path(path).samefile(os.devnull)


def packaged(name: str) -> Path:
    """A folder of data files: inside an installed package, beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
