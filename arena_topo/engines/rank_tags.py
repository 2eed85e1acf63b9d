"""The rank tags that a job's command asks for: the prefix of a line that names its rank."""

from __future__ import annotations

import re
from enum import StrEnum


class Tagging(StrEnum):
    """The program whose rank tags are on the lines of a log."""

    OPEN_MPI = "open-mpi"
    HYDRA = "hydra"
    SLURM = "slurm"


_LAUNCHES = re.compile(r"(?:.*/)?(?:(srun)|(?:mpirun|mpiexec|orterun|prterun)(?:[._-]\w+)*)")
_BETWEEN = re.compile(r"[\s;&|()\"'`]+")
_OUTPUTS = re.compile(r"(?:^|[,:])(?:tag(?:-detailed|-fullname)?|rank)(?:$|[,:=])")
_PAIRS = frozenset({"genv", "env", "mca", "gmca", "prtemca", "pmixmca"})
"""Options with two words after them; every other option may have one."""


def tagging(command: str) -> Tagging | None:
    """The rank tags that a job's command asks of `mpirun` or `srun`; None if it shows none.

    Open MPI: mpirun(1), `--tag-output`, and prterun(1), `--output`. MPICH and Intel MPI:
    hydra/src/mpiexec/uiu.h and get_parameters.c, `-prepend-rank`, `-l`. Slurm: srun(1), `--label`.
    """
    slurm, rest = None, 0
    # The program's name is the first word that belongs to no option; its own options follow.
    for word in _BETWEEN.split(command):
        if (match := _LAUNCHES.fullmatch(word)) is not None:
            slurm, rest, before = match[1] is not None, 0, ""
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
