"""What stands in for `mpirun` and ssh in a job; `script` of the package starts it.

    run FOLDER PROGRAM ARGUMENT...     what `mpirun` and `mpiexec` of a launcher start
    agent FOLDER [OPTION...] HOST ...  what the real mpirun starts instead of ssh

FOLDER is the job's, where its supervisor has written down what is known of the workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import translate
from .line import Flavour, Surroundings, Untranslatable, interfaces, pod_name

NOT_FOUND = 127
"""The exit code where there is no mpirun, as of a shell that does not find a command."""

_LAST_OF_ORTE = 4
"""The last Open MPI with the runtime whose options arena's documentation uses."""


def flavour_of(version: str) -> Flavour:
    """Whose mpirun it is, from what `mpirun --version` prints."""
    if "Intel(R) MPI" in version:
        return Flavour.INTEL
    if "HYDRA" in version:
        return Flavour.HYDRA
    found = re.search(r"\((?:Open MPI|OpenRTE|PRRTE)\) (\d+)", version)
    if found is None:
        return Flavour.OTHER
    old = int(found[1]) <= _LAST_OF_ORTE and "PRRTE" not in version
    return Flavour.OPEN_MPI_4 if old else Flavour.OPEN_MPI_5


def find(program: str, path: str, own: Path) -> Path | None:
    """The first `program` on the path that is not the one in our `own` folder."""
    for folder in path.split(os.pathsep):
        here = Path(folder or ".")
        with contextlib.suppress(OSError):
            if here.exists() and here.samefile(own):
                continue
        found = shutil.which(program, path=str(here))
        if found is not None:
            return Path(found)
    return None


def _remembered(cache: Path) -> dict[str, str]:
    """What is known of programs, without what makes no sense: that is asked again."""
    try:
        found = json.loads(cache.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {
        key: name for key, name in pairs if isinstance(name, str) and name in Flavour.__members__
    }


def flavour_at(program: Path, cache: Path) -> Flavour:
    """Whose mpirun this file is; asked once and remembered until the file changes."""
    key = f"{program}@{program.stat().st_mtime_ns}"
    known = _remembered(cache)
    if key not in known:
        try:
            done = subprocess.run(
                [program, "--version"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=60,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            return Flavour.OTHER
        known = {**known, key: flavour_of(done.stdout + done.stderr).name}
        with contextlib.suppress(OSError):
            fresh = cache.with_name(f"{cache.name}.{os.getpid()}")
            fresh.write_text(json.dumps(known), encoding="utf-8")
            fresh.replace(cache)
    return Flavour[known[key]]


def run(folder: Path, program: str, words: Sequence[str]) -> int:
    """Become the real mpirun; the exit code is returned only where that cannot be."""
    job = json.loads((folder / "pods.json").read_bytes())
    own = Path(job["bin"])
    found = find(program, os.environ.get("PATH", ""), own)
    if found is None:
        _say(
            f"{program}: no MPI is installed on this machine",
            "install one beside arena-topo: pip install 'arena-topo[mpi]',"
            " or put the folder of yours on the PATH",
        )
        return NOT_FOUND
    around = Surroundings(
        slots=job["slots"],
        environment=dict(os.environ),
        launcher=job["launcher"],
        interfaces=interfaces(),
        root=os.geteuid() == 0,
    )
    try:
        said = translate(words, flavour_at(found, Path(job["cache"])), around)
    except Untranslatable as error:
        _say(f"{program}: {error}")
        return 1
    for remark in said.remarks:
        _say(f"{program}: {remark}")
    sys.stderr.flush()
    try:
        _hear_again()
        os.execve(found, [str(found), *said.words], dict(said.environment))  # noqa: S606
    except OSError as error:
        _say(f"{program}: cannot run {found}: {error.strerror}")
        return 126


def agent(folder: Path, words: Sequence[str]) -> int:
    """Do what `ssh HOST COMMAND...` would: become the command, within the worker of that name."""
    rest = list(words)
    # Options of ssh that mpirun passes (hydra says -x), or the manifest (-o NAME=VALUE).
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] == "-o" else 1]
    job = json.loads((folder / "pods.json").read_bytes())
    pod = pod_name(rest[0], job["slots"]) if rest else None
    if pod is None:
        _say(f"there is no worker {rest[0] if rest else ''} in this job")
        return 255
    environment = json.loads((folder / "pods" / pod / "env").read_bytes())
    with contextlib.suppress(OSError):
        os.chdir(job["folder"])
    command = ["sh", "-c", " ".join(rest[1:])]
    _hear_again()
    return os.execve("/bin/sh", command, environment)  # noqa: S606  what ssh does


def _hear_again() -> None:
    """Let go of the signals that Python ignores, which a command would go on ignoring."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"arena-topo: {line}\n")


def main() -> int:
    """Run as the script that the shims start."""
    verb, folder, *words = sys.argv[1:]
    if verb == "agent":
        return agent(Path(folder), words)
    return run(Path(folder), words[0], words[1:])
