"""`mpirun` for local jobs: Open MPI 4 command lines -> the MPI that is installed.

The documentation of arena, Horovod and the MPI operator is written for Open MPI 4 in a container
with `eth0` and sshd. Here the MPI is whatever the user has, the interfaces are this machine's, and
the workers are groups of processes. So the options are read as Open MPI 4 reads them, what names
another machine is dropped, and the rest is said again in the words of the MPI found. A line that
uses words of that MPI alone is left as it is.

    line        what a command line says
    hydra       in the words of MPICH and Intel MPI
    openmpi     for Open MPI 4 and 5
    launch      the script that does it in a job

The script runs isolated from the user's environment, and not as a part of arena_topo, which would
take longer to import than an `ssh` should take: only the standard library, and relative imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from .hydra import to_hydra
from .line import (
    PRIVATE,
    Flavour,
    Surroundings,
    Translation,
    Untranslatable,
    foreign,
    interfaces,
    no_interface,
)
from .openmpi import to_open_mpi

__all__ = [
    "PRIVATE",
    "Flavour",
    "Surroundings",
    "Translation",
    "Untranslatable",
    "foreign",
    "interfaces",
    "no_interface",
    "script",
    "translate",
]


def script(verb: str, folder: Path, *words: str) -> tuple[str, ...]:
    """The command that runs `launch`, out of reach of what a job does to Python."""
    # A package of its own name, so that none of arena_topo's own is loaded.
    start = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r});"
        f" from {Path(__file__).parent.name}.launch import main; sys.exit(main())"
    )
    return (sys.executable, "-I", "-S", "-c", start, verb, str(folder), *words)


def translate(words: Sequence[str], flavour: Flavour, around: Surroundings) -> Translation:
    """Say an Open MPI 4 command line in the words of another MPI; Untranslatable if there are none.

    Lines that only that MPI understands are left alone.
    """
    if any(word.lstrip("-") in {"version", "V", "help", "h"} for word in words[:1]):
        return Translation(words=tuple(words), environment=around.environment)
    if flavour in {Flavour.HYDRA, Flavour.INTEL}:
        return to_hydra(words, flavour, around)
    if flavour in {Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5}:
        return to_open_mpi(words, flavour, around)
    return Translation(words=tuple(words), environment=around.environment)
