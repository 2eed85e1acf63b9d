"""Which tags the command of a job asks for: what says, before a line, which rank wrote it."""

from __future__ import annotations

import re
from enum import StrEnum


class Tagging(StrEnum):
    """Whose tags stand before the lines of a log."""

    OPEN_MPI = "open-mpi"
    HYDRA = "hydra"
    SLURM = "slurm"
    NONE = "none"
    """Nobody's: there is nothing that could write them."""


_LAUNCHES = re.compile(r"(?:.*/)?(?:(srun)|(?:mpirun|mpiexec|orterun|prterun)(?:[._-]\w+)*)")
_BETWEEN = re.compile(r"[\s;&|()\"'`]+")
_OUTPUTS = re.compile(r"(?:^|[,:])(?:tag(?:-detailed|-fullname)?|rank)(?:$|[,:=])")
_PAIRS = frozenset({"genv", "env", "mca", "gmca", "prtemca", "pmixmca"})
"""Options with two words after them; after all others one may stand."""


def asked_for(command: str) -> Tagging | None:
    """Which tags a job's command asks `mpirun` or `srun` for, where that can be seen in it.

    Open MPI: mpirun(1), `--tag-output`, and prterun(1), `--output`. MPICH and Intel MPI:
    hydra/src/mpiexec/uiu.h and get_parameters.c, `-prepend-rank`, `-l`. Slurm: srun(1), `--label`.
    """
    slurm, rest = None, 0
    # Options of the program come after its name, which is the first word that is no option's.
    for word in _BETWEEN.split(command):
        if (found := _LAUNCHES.fullmatch(word)) is not None:
            slurm, rest, before = found[1] is not None, 0, ""
        elif slurm is None:
            continue
        elif word.startswith("-"):
            before, _, value = word.lstrip("-").partition("=")
            rest = 0 if value else 2 if before in _PAIRS else 1
            if before == "output" and _OUTPUTS.search(value):
                return Tagging.OPEN_MPI
            if (tagging := _option(before, slurm=slurm)) is not None:
                return tagging
        elif rest:
            rest -= 1
            if before == "output" and not slurm and _OUTPUTS.search(word):
                return Tagging.OPEN_MPI
        else:
            slurm = None
    return None


def _option(name: str, *, slurm: bool) -> Tagging | None:
    if slurm:
        return Tagging.SLURM if name in {"l", "label"} else None
    if name == "tag-output":
        return Tagging.OPEN_MPI
    return Tagging.HYDRA if name in {"l", "prepend-rank"} else None


_NO_PROGRAM = re.compile(r"\$\(\([^()]*\)\)|\d*[<>]+&[\d-]+")
"""Sums, and `2>&1`: what looks as if a command began in it."""

_PARTS = re.compile(r"[;&|()`\n]+")

_BEFORE = frozenset(
    ("!", "{", "if", "then", "elif", "else", "while", "until", "do", "time", "exec", "command")
)
"""Words after which a command begins."""

_SHELL = re.compile(r"(?:/(?:usr/)?bin/)?(?:sh|bash|dash|ash)")

_SILENT = frozenset(
    (
        *(":", "[", "[[", "}", "break", "case", "cat", "cd", "continue", "date", "done", "echo"),
        *("esac", "exit", "export", "false", "fi", "for", "hostname", "local", "printf", "pwd"),
        *("read", "return", "seq", "set", "shift", "sleep", "test", "true", "umask", "unset"),
        "wait",
    )
)
"""Words of the shell, and small programs, that start no others."""


def tagging(command: str) -> Tagging | None:
    """What a job's command says of its tags: which it asks for, or that there can be none.

    `NONE` where it is known, and starts nothing but what the shell itself can do. None where
    nothing is known: `mpirun` can be told by a variable too, and a program or a script may call it.
    """
    asked = asked_for(command)
    if asked is not None or not command.strip():
        return asked
    parts = _PARTS.split(_NO_PROGRAM.sub("0", command))
    starts = any(_program(part) not in _SILENT for part in parts if part.strip("\"' \t$"))
    return None if starts else Tagging.NONE


def _program(part: str) -> str:
    """What a part of a shell's line starts; `:` where it only sets variables."""
    shell = False
    for word in part.replace('"', " ").replace("'", " ").split():
        if _SHELL.fullmatch(word):
            shell = True
        elif re.match(r"[A-Za-z_]\w*=", word):
            shell = False
        elif word in _BEFORE or (shell and word[0] == "-"):
            continue
        else:
            return word
    # A shell by itself runs what it reads.
    return "sh" if shell else ":"
