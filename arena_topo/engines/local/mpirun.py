"""The stand-ins for `mpirun` and `ssh` in a local job, and a parser of mpirun command lines.

    run FOLDER PROGRAM ARGUMENT...     what `mpirun` and `mpiexec` of a launcher start
    agent FOLDER [OPTION...] HOST ...  what the real mpirun starts instead of ssh

The documentation of arena, Horovod and the MPI operator is written for Open MPI 4. Its command
lines reach Open MPI unchanged, except for settings of other machines, such as `eth0`. Another MPI
gets the lines that it understands; others are refused before a rank starts.

FOLDER is the job's, where its supervisor has written what is known of the pods. The file runs as a
script of an isolated Python, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

INSTALL = (
    "install arena-topo with its extra 'mpi' (docs/installation.md), which is Open MPI 4 for Linux"
    " with glibc on x86_64 or aarch64, or put the folder of yours first on the PATH"
)

LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})

SHIMS = "arena-topo-bin"
"""The folder of the commands that stand in for mpirun, first on the PATH of a launcher."""

PRIVATE = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HOSTNAME",
    "TMPDIR",
    "ARENA_TOPO_POD",
    "K_MPI_JOB_ROLE",
)
"""Variables that each pod has its own value of; the launcher's never overwrite a worker's."""

COMMAND_NOT_FOUND = 127
"""The exit code where there is no mpirun, as of a shell that does not find a command."""

_USAGE = 2
"""The exit code of a command line that is refused."""

# ---------------------------------------------------------------- what a command line says

_NONE = """
    allow-run-as-root oversubscribe nooversubscribe no-oversubscribe overload-allowed tag-output
    timestamp-output report-bindings display-map display-allocation display-devel-map
    display-devel-allocation display-diffable-map display-topo enable-recovery disable-recovery
    continuous nolocal novm q quiet v verbose bynode byslot bycore bysocket bind-to-core
    bind-to-socket bind-to-none pernode preload-binary s xml debug-daemons debug-daemons-file
    debug-devel d leave-session-attached merge-stderr-to-stdout get-stack-traces
    use-hwthread-cpus use-regexp show-progress noprefix do-not-resolve report-state-on-timeout
"""
_ONE = """
    np n c N npernode npersocket map-by bind-to rank-by H host hostfile machinefile
    default-hostfile rankfile rf x wdir wd path prefix output-filename tune am app timeout stdin
    max-restarts cpu-set cpu-list cpus-per-proc cpus-per-rank report-pid report-uri ompi-server
    preload-files xterm personality tmpdir
"""
_MCA = frozenset({"mca", "gmca"})
_VALUES = {
    **{name: count for count, names in enumerate((_NONE, _ONE)) for name in names.split()},
    **dict.fromkeys(_MCA, 2),
}
"""The options of Open MPI 4 (its manual, mpirun(1)), and how many words follow each."""

_HYDRA = frozenset(
    ("np", "n", "N", "map-by", "bind-to", "host", "hostfile", "machinefile", "wdir", "v", "verbose")
)
"""The options of Open MPI 4 that MPICH and Intel MPI have too (tried with MPICH 5.0.2)."""

_NOT_IN_5 = frozenset(
    (
        *("overload-allowed", "display-devel-allocation", "display-topo", "novm", "q", "quiet"),
        *("bysocket", "bind-to-socket", "bind-to-none", "debug-devel", "d", "use-regexp"),
        "do-not-resolve",
    )
)
"""The options of Open MPI 4 that Open MPI 5 refuses (tried with 5.0.11)."""

_TWO_DASHES_IN_5 = frozenset({"-map-by", "-bind-to", "-rank-by"})
"""What Open MPI 5 understands with two dashes only (tried with 5.0.11)."""

_BEFORE = re.compile(r"exec|time|[A-Za-z_]\w*=.*", re.DOTALL)
"""What may stand before the name of a program."""


def launches(command: str, launchers: Collection[str] = LAUNCHERS) -> Iterator[list[str]]:
    """The words of each mpirun of a shell command; none where it cannot be split."""
    for simple in _simple_commands(command):
        while simple and _BEFORE.fullmatch(simple[0]):
            simple.pop(0)
        if simple and simple[0].rpartition("/")[2] in launchers:
            yield simple


def _simple_commands(command: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return
    simple: list[str] = []
    for word in [*words, ";"]:
        if word and not set(word) <= set("();<>|&\n"):
            simple.append(word)
        else:
            yield simple
            simple = []


def parse_options(words: Sequence[str]) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The options at the beginning of a program's words, each with its values, and the rest.

    The rest begins with the command, or with the first option that Open MPI 4 does not have.
    """
    options = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at].lstrip("-") in _VALUES:
        end = at + 1 + _VALUES[words[at].lstrip("-")]
        if end > len(words):
            break
        options.append(tuple(words[at:end]))
        at = end
    return tuple(options), tuple(words[at:])


def _programs(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The words of each program of a command line; `:` separates them."""
    start = 0
    for at, word in enumerate([*words, ":"]):
        if word == ":":
            yield words[start:at]
            start = at + 1


# ---------------------------------------------------------------- whose mpirun it is

OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL = "Open MPI 4", "Open MPI 5", "MPICH", "Intel MPI"


def flavour(program: Path) -> str | None:
    """Whose mpirun a file is, as `--version` tells; None for another."""
    import subprocess  # noqa: PLC0415  slow to import, and `parse_options` is used on clusters too

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
        return None
    output = done.stdout + done.stderr
    if "Intel(R) MPI" in output:
        return INTEL
    if "HYDRA" in output:
        return MPICH
    match = re.search(r"\((Open MPI|OpenRTE|PRRTE)\) (\d+)", output)
    if match is None:
        return None
    return OPEN_MPI_5 if match[1] == "PRRTE" or int(match[2]) > 4 else OPEN_MPI_4  # noqa: PLR2004


def find_program(program: str, path: str, shims: Path | None = None) -> Path | None:
    """The first `program` on a PATH that is not in the folder of the stand-ins."""
    for folder in path.split(os.pathsep):
        here = Path(folder or ".")
        with contextlib.suppress(OSError):
            if shims is not None and here.samefile(shims):
                continue
        program_path = shutil.which(program, path=str(here))
        if program_path is not None:
            return Path(program_path)
    return None


def misuse_text(words: Sequence[str], program: Path, mpi: str | None) -> str | None:
    """Why this mpirun, of that flavour, does not understand a command line; None if it does."""
    for part in _programs(words):
        for option, *_ in parse_options(part)[0]:
            name = option.lstrip("-")
            if (mpi in {MPICH, INTEL} and name not in _HYDRA) or (
                mpi == OPEN_MPI_5 and (name in _NOT_IN_5 or option in _TWO_DASHES_IN_5)
            ):
                return f"{program} is {mpi}'s, which does not understand {option}"
    return None


# ---------------------------------------------------------------- settings of other machines

_INTERFACES = frozenset({"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"})

ROUTES = re.compile(
    r"((?:OMPI|PRTE)_MCA_)?((plm|ras|ess)(_.*)?|(btl|oob)_tcp_if_(include|exclude))"
)
"""MCA parameters that say how workers are reached, which is arena-topo's to know here."""


def interfaces() -> frozenset[str]:
    """The network interfaces of this machine."""
    try:
        return frozenset(os.listdir("/sys/class/net"))  # noqa: PTH208  names are all we need
    except OSError:
        return frozenset({"lo"})


def foreign(name: str, value: str, here: Collection[str]) -> bool:
    """Whether a setting names network interfaces that are not among those `here`.

    NCCL reads prefixes (`eth`), exact names (`=eth0`) and exclusions (`^docker`). Subnets count as
    another machine's: workers on one machine do not need them.
    """
    if name not in _INTERFACES or not value or value.startswith("^"):
        return False
    exact = value.startswith("=") or not name.startswith("NCCL")
    for word in value.removeprefix("=").split(","):
        wanted = word.partition(":")[0]
        if any(host == wanted or (not exact and host.startswith(wanted)) for host in here):
            return False
    return True


def no_interface(settings: Collection[str]) -> str:
    """The remark about settings that are `foreign`."""
    named = ", ".join(dict.fromkeys(settings))
    return f"not used, since this machine has no such network interface: {named}"


_HOSTS = ("hostfile", "machinefile")
"""The ends of the names of options for a file of hosts."""


def local_words(
    words: Sequence[str], environment: Mapping[str, str], here: Collection[str]
) -> tuple[list[str], list[str]]:
    """A line of Open MPI without what holds elsewhere only, and the settings that are `foreign`.

    Without -x of variables that are not in the environment too: Open MPI would complain of each.
    """
    notes: list[str] = []
    absent: list[str] = []
    for index, program in enumerate(_programs(words)):
        notes += [":"] if index else []
        options, rest = parse_options(program)
        for option in options:
            name, text = option[0].lstrip("-"), option[-1]
            key, equals, value = text.partition("=")
            if name == "x" and foreign(key, value, here):
                absent.append(text)
            elif name == "x":
                notes += option if equals or key[-1:] == "*" or key in environment else ()
            elif name in _MCA:
                notes += () if ROUTES.fullmatch(option[1]) else option
            elif not (name.endswith(_HOSTS) and text.startswith("/etc/mpi/")):
                notes += option
        notes += rest
    return notes, absent


# ---------------------------------------------------------------- the stand-ins


def script(verb: str, folder: Path, *words: str) -> str:
    """A shell script that runs a stand-in, out of reach of what a job does to Python."""
    started = (sys.executable, "-I", "-S", __file__, verb, str(folder), *words)
    return f'#!/bin/sh\nexec {shlex.join(started)} "$@"\n'


def exec_program(folder: Path, program: str, words: Sequence[str]) -> int:
    """Become the real mpirun; the exit code is returned only where that cannot be."""
    job = json.loads((folder / "pods.json").read_bytes())
    path = find_program(program, os.environ.get("PATH", ""), Path(job["bin"]))
    if path is None:
        _say(f"{program}: no MPI is installed on this machine", INSTALL)
        return COMMAND_NOT_FOUND
    mpi = flavour(path)
    why = misuse_text(words, path, mpi)
    if why is not None:
        _say(f"{program}: {why}", INSTALL)
        return _USAGE
    here = interfaces()
    own = job["launcher"].items()
    # MPICH passes the whole environment on, which would overwrite what is a worker's own.
    environment = dict(os.environ.items() - own)
    absent = [f"{key}={value}" for key, value in environment.items() if foreign(key, value, here)]
    for setting in absent:
        del environment[setting.partition("=")[0]]
    notes, named = local_words(words, environment, here)
    if absent or named:
        _say(f"{program}: {no_interface(absent + named)}")
    sys.stderr.flush()
    if mpi == OPEN_MPI_4:
        environment["OPAL_OUTPUT_STDERR_FD"] = str(_filtered())
        daemon = path.resolve().with_name("orted")
        if daemon.exists():
            # Else ranks would find the programs beside mpirun before those of their own PATH.
            # A shell reads it.
            environment["OMPI_MCA_orte_launch_agent"] = shlex.quote(str(daemon))
            notes.insert(0, "--noprefix")
    _hear_again()
    try:
        os.execve(path, [str(path), *notes], environment)  # noqa: S606
    except OSError as error:
        _say(f"{program}: cannot run {path}: {error.strerror}")
        return 126


_HARMLESS = "plm:rsh: Warning: setpgid("
"""What Open MPI 4 says where a daemon starts faster than it expects, as on a busy machine."""

_FILTER = """
trap '' TERM INT HUP
exec 3<&0
{ grep -a -v -F --line-buffered "$0" 2>/dev/null || exec cat; } <&3 >&2 &
"""
"""A filter in the background of a shell that ends, so that mpirun is not its parent: a process that
ends mpirun and its children must not lose the last messages."""


def _filtered() -> int:
    """Where Open MPI shall write its own messages: to stderr, without those that are harmless.

    What ranks write does not come this way.
    """
    import subprocess  # noqa: PLC0415  slow to import, and an agent needs none of it

    messages, written = os.pipe()
    subprocess.run(["/bin/sh", "-c", _FILTER, _HARMLESS], stdin=messages, check=False)
    os.close(messages)
    os.set_inheritable(written, True)
    return written


_WITH_VALUE = frozenset({"-F", "-i", "-l", "-o", "-p"})
"""Options of ssh after which a word follows."""


def agent(folder: Path, words: Sequence[str]) -> int:
    """Do what `ssh HOST COMMAND...` would: become the command, within the worker of that name."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in _WITH_VALUE else 1]
    job = json.loads((folder / "pods.json").read_bytes())
    # With or without who logs in, and with or without the domain.
    host = rest[0].rpartition("@")[2] if rest else ""
    pod = next((name for name in (host, host.partition(".")[0]) if name in job["slots"]), None)
    if pod is None:
        _say(f"there is no worker {host} in this job; its workers are {', '.join(job['slots'])}")
        return 255
    environment = {**job["common"], **job["own"][pod]}
    # The wheel's mpirun says so where its files are, to itself alone where --noprefix is given.
    environment |= {key: os.environ[key] for key in ("OPAL_PREFIX",) if key in os.environ}
    with contextlib.suppress(OSError):
        os.chdir(job["folder"])
    _hear_again()
    command = ["sh", "-c", " ".join(rest[1:])]
    return os.execve("/bin/sh", command, environment)  # noqa: S606  what ssh does


def _hear_again() -> None:
    """Reset the signals that Python ignores, since a command would inherit that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"arena-topo: {line}\n")


def main() -> int:
    """Run one of the stand-ins, as its words say."""
    verb, folder, *words = sys.argv[1:]
    if verb == "agent":
        return agent(Path(folder), words)
    return exec_program(Path(folder), words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
