"""Reading of the files that `--config-file` names."""

from __future__ import annotations

import io
import os
import sys
from functools import cache
from pathlib import Path

from arena_topo import files
from arena_topo.errors import InvalidJob
from arena_topo.job import ConfigFile, MPIJob


def read_config_files(job: MPIJob) -> dict[ConfigFile, str]:
    """The text of every `--config-file`; InvalidJob names the first that cannot be read."""
    texts = {}
    for config_file in job.config_file:
        # Path would raise for an unknown `~user`.
        path = os.path.expanduser(config_file.source)  # noqa: PTH111 - see above
        try:
            content = _content(path)
            texts[config_file] = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
        except UnicodeDecodeError as error:
            raise _unread(config_file, "it is not UTF-8 text") from error
        except OSError as error:
            raise _unread(config_file, error.strerror) from error
        except ValueError as error:
            raise _unread(config_file, "no path has a NUL in it") from error
    return texts


def _content(path: str) -> bytes:
    """The content of a file; a file that a shell passes is read once, as it is empty afterwards."""
    if path == files.STDIN:
        return _once(path, id(sys.stdin))
    if files.HANDED.fullmatch(path) and Path(path).is_fifo():
        return _once(path, Path(path).stat().st_ino)
    return files.read_bytes(path, handed=True)


@cache
def _once(path: str, _pipe: int) -> bytes:
    return files.read_bytes(path, handed=True)


def _unread(file: ConfigFile, why: str | None) -> InvalidJob:
    return InvalidJob(f"cannot read --config-file {file.source}", why=why)
