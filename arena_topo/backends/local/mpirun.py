"""`mpirun` for local jobs: Open MPI 4 command lines -> the MPI that is installed.

    mpirun.py run FOLDER PROGRAM ARGUMENT...     what `mpirun` and `mpiexec` of a launcher start
    mpirun.py agent FOLDER [OPTION...] HOST ...  what the real mpirun starts instead of ssh

The documentation of arena, Horovod and the MPI operator is written for Open MPI 4 in a container
with `eth0` and sshd. Here the MPI is whatever the user has, the interfaces are this machine's, and
the workers are groups of processes. So the options are read as Open MPI 4 reads them, what names
another machine is dropped, and the rest is said again in the words of the MPI found. A line that
uses words of that MPI alone is left as it is.

The file runs as a script too, isolated from the user's environment: only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

NOT_FOUND = 127
"""The exit code where there is no mpirun, as of a shell that does not find a command."""


class Flavour(Enum):
    """Whose mpirun it is, as far as its options differ."""

    HYDRA = "MPICH"
    INTEL = "Intel MPI"
    OPEN_MPI_4 = "Open MPI 4"
    OPEN_MPI_5 = "Open MPI 5"
    OTHER = "another MPI"


class Untranslatable(Exception):
    """A command line that the MPI found cannot run; the text is for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a translation depends on besides the command line.

    `slots` are the workers in rank order with how many ranks each takes. `private` are variables
    that each pod has its own value of; `launcher` holds the launcher's values of them.
    """

    slots: Mapping[str, int]
    environment: Mapping[str, str]
    launcher: Mapping[str, str]
    interfaces: Collection[str]
    root: bool = False


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
_TWO = "mca gmca prtemca pmixmca omca tmca"
_ARITY = {name: count for count, names in enumerate((_NONE, _ONE, _TWO)) for name in names.split()}

_QUIET = """
    allow-run-as-root nooversubscribe no-oversubscribe overload-allowed report-bindings display-map
    display-allocation display-devel-map display-devel-allocation display-diffable-map display-topo
    enable-recovery disable-recovery continuous nolocal novm q quiet v verbose byslot bycore
    bysocket bind-to bind-to-core bind-to-socket bind-to-none rank-by preload-binary s
    debug-daemons debug-daemons-file debug-devel d leave-session-attached merge-stderr-to-stdout
    use-hwthread-cpus use-regexp noprefix do-not-resolve prefix path max-restarts cpus-per-proc
    cpus-per-rank cpu-set cpu-list stdin report-pid report-uri tmpdir personality get-stack-traces
    report-state-on-timeout timestamp-output show-progress mca gmca prtemca pmixmca omca tmca
"""
"""Options that only say how Open MPI itself goes about it: other MPIs need not be told."""

_SPOKEN = """
    np n c N npernode pernode map-by bynode H host hostfile machinefile default-hostfile x wdir wd
    timeout oversubscribe tag-output
"""
"""Options that are said again in hydra's words."""

_TRANSLATED = frozenset((_QUIET + _SPOKEN).split())

_HYDRA_NONE = """
    genvnone genvall envnone envall enable-x disable-x disable-auto-cleanup
    disable-hostname-propagation hybrid-hosts info l prepend-rank print-all-exitcodes profile
    skip-launch-node verbose v localonly
"""
_HYDRA_ONE = """
    genvlist envlist f hosts host hostfile machinefile rankmap wdir wd configfile n np c
    memory-alloc-kinds launcher launcher-exec bootstrap bootstrap-exec rmk topolib bind-to map-by
    membind demux errfile-pattern outfile-pattern gpus-per-proc iface localhost nameserver
    order-nodes ppn pmi-port prepend-pattern usize perhost
"""
_HYDRA_TWO = "genv env"
_HYDRA = {
    name: count
    for count, names in enumerate((_HYDRA_NONE, _HYDRA_ONE, _HYDRA_TWO))
    for name in names.split()
}

PRIVATE = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HOSTNAME",
    "TMPDIR",
    "ARENA_TOPO_POD",
    "K_MPI_JOB_ROLE",
)
"""Variables that each pod has its own value of; the launcher's never overwrite a worker's."""


# ---------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program of a command line (they are separated by `:`), with its options as written."""

    options: tuple[tuple[str, tuple[str, ...]], ...]
    command: tuple[str, ...]

    def last(self, *names: str) -> str | None:
        """The value of the last of these options."""
        values = [values[0] for name, values in self.options if name in names]
        return values[-1] if values else None

    def all(self, *names: str) -> tuple[str, ...]:
        """The values of all of these options, in order."""
        return tuple(values[0] for name, values in self.options if name in names)

    def has(self, *names: str) -> bool:
        """Whether one of these options is given."""
        return any(name in names for name, _ in self.options)


def programs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The words of each program of a command line."""
    start = 0
    for at, word in enumerate([*words, ":"]):
        if word == ":":
            yield tuple(words[start:at])
            start = at + 1


def read(words: Sequence[str], arities: Mapping[str, int]) -> Program:
    """Split a program's words into options and command; KeyError names an unknown option.

    One dash or two, and `--option=value`, are the same. The command starts at the first word that
    is no option.
    """
    options: list[tuple[str, tuple[str, ...]]] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = word.lstrip("-").partition("=")
        if name not in arities:
            raise KeyError(word)
        wanted = arities[name]
        values = [value] if equals else []
        taken = wanted - len(values)
        values += words[at + 1 : at + 1 + taken]
        if taken < 0 or len(values) < wanted:
            raise Untranslatable(f"option {word} wants {wanted} value{'s' * (wanted != 1)}")
        options.append((name, tuple(values)))
        at += 1 + taken
    return Program(options=tuple(options), command=tuple(words[at:]))


# ---------------------------------------------------------------------------------- names of others

_INTERFACES = re.compile(
    r"(OMPI_MCA_|PRTE_MCA_)?(btl_tcp_if_include|btl_tcp_if_exclude|oob_tcp_if_include"
    r"|oob_tcp_if_exclude)|(NCCL|GLOO)_SOCKET_IFNAME"
)


def foreign(name: str, value: str, interfaces: Collection[str]) -> bool:
    """Whether a setting names network interfaces that this machine does not have.

    NCCL reads prefixes (`eth`), exact names (`=eth0`) and exclusions (`^docker`). Subnets count as
    another machine's: workers on one machine do not need them.
    """
    if _INTERFACES.fullmatch(name) is None or not value or value.startswith("^"):
        return False
    exact = value.startswith("=") or not name.startswith("NCCL")
    for word in value.removeprefix("=").split(","):
        interface = word.partition(":")[0]
        if any(one == interface or (not exact and one.startswith(interface)) for one in interfaces):
            return False
    return True


def interfaces() -> frozenset[str]:
    """The network interfaces of this machine."""
    try:
        return frozenset(os.listdir("/sys/class/net"))  # noqa: PTH208  names are all we need
    except OSError:
        return frozenset({"lo"})


def _exported(programs_: Sequence[Program], around: Surroundings) -> list[dict[str, str]]:
    """What `-x` exports, for each program: `NAME`, `NAME=VALUE`, or `PREFIX*`."""
    found = []
    for program in programs_:
        variables: dict[str, str] = {}
        for text in program.all("x"):
            name, equals, value = text.partition("=")
            if equals:
                wanted = {name: value}
            elif name.endswith("*"):
                wanted = {k: v for k, v in around.environment.items() if k.startswith(name[:-1])}
            else:
                wanted = {k: v for k, v in around.environment.items() if k == name}
            for key, exported in wanted.items():
                own = not equals and around.launcher.get(key) == exported and key in PRIVATE
                if not own and not foreign(key, exported, around.interfaces):
                    variables[key] = exported
        found.append(variables)
    return found


# ---------------------------------------------------------------------------------- hydra


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The words after `mpirun`, the environment to start it with, and remarks for the person."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    remarks: tuple[str, ...] = ()


def translate(words: Sequence[str], flavour: Flavour, around: Surroundings) -> Translation:
    """Say an Open MPI 4 command line in the words of another MPI; Untranslatable if there are none.

    Lines that only that MPI understands are left alone.
    """
    if any(word.lstrip("-") in {"version", "V", "help", "h"} for word in words[:1]):
        return Translation(words=tuple(words), environment=around.environment)
    if flavour in {Flavour.HYDRA, Flavour.INTEL}:
        return _to_hydra(words, flavour, around)
    if flavour in {Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5}:
        return _to_open_mpi(words, flavour, around)
    return Translation(words=tuple(words), environment=around.environment)


def _to_hydra(words: Sequence[str], flavour: Flavour, around: Surroundings) -> Translation:
    try:
        parts = [read(part, _ARITY) for part in programs(words)]
    except KeyError as unknown:
        if _is_hydra(words):
            return _left_alone(words, around)
        raise Untranslatable(
            f"option {unknown.args[0]} is neither Open MPI's nor known to {flavour.value},"
            " which is the MPI installed here"
        ) from None
    for part in parts:
        for name, _ in part.options:
            if name not in _TRANSLATED:
                raise Untranslatable(
                    f"option --{name} has no counterpart in {flavour.value},"
                    " which is the MPI installed here; Open MPI would know it"
                )
        if not part.command:
            raise Untranslatable("there is no program to run")
    hosts = _hosts(parts[0], around)
    counts = [_ranks(part, hosts, sole=len(parts) == 1) for part in parts]
    _check_slots(parts, counts, hosts)
    exported = _exported(parts, around)
    # Hydra's daemons call back by name, and this machine's own name need not resolve.
    said = ["-localhost", "127.0.0.1"]
    said += ["-hosts", ",".join(f"{name}:{n}" for name, n in _by(parts[0], hosts).items())]
    # Each worker has an environment of its own, as behind ssh: only -x adds to it.
    said.append("-genvnone")
    if parts[0].has("tag-output"):
        said.append("-prepend-rank")
    for index, (part, ranks, variables) in enumerate(zip(parts, counts, exported, strict=True)):
        said += [":"] if index else []
        for name, value in variables.items():
            said += ["-genv" if len(parts) == 1 else "-env", name, value]
        said += ["-n", str(ranks)]
        folder = part.last("wdir", "wd")
        said += ["-wdir", folder] if folder else []
        said += part.command
    environment = dict(around.environment)
    limit = parts[0].last("timeout")
    if limit:
        environment["MPIEXEC_TIMEOUT"] = limit
    return Translation(words=tuple(said), environment=environment, remarks=_unbound(parts))


def _is_hydra(words: Sequence[str]) -> bool:
    try:
        for part in programs(words):
            read(part, _HYDRA)
    except (KeyError, Untranslatable):
        return False
    return True


def _left_alone(words: Sequence[str], around: Surroundings) -> Translation:
    """A line in hydra's own words: it passes on the whole environment, except what is private."""
    kept = {
        name: value
        for name, value in around.environment.items()
        if not (name in PRIVATE and around.launcher.get(name) == value)
    }
    return Translation(words=tuple(words), environment=kept)


def _unbound(parts: Sequence[Program]) -> tuple[str, ...]:
    wanted = [value for part in parts for value in part.all("bind-to") if value != "none"]
    if not wanted:
        return ()
    # Every worker would bind its first rank to the first core of the one machine they share.
    return (f"--bind-to {wanted[-1]} is not used: the workers share this machine's processors",)


def _hosts(part: Program, around: Surroundings) -> dict[str, int]:
    """The workers to use with their slots: those named by -H, in a hostfile, or all."""
    file = part.last("hostfile", "machinefile", "default-hostfile")
    hosts = dict(around.slots)
    if file is not None and not _is_own(file):
        hosts = _read_hostfile(file, around)
    named: dict[str, int] = {}
    for host in ",".join(part.all("H", "host")).split(","):
        name, colon, slots = host.partition(":")
        if name:
            pod = _pod(name, around)
            many = int(slots) if colon and slots.isdigit() else 1
            named[pod] = named.get(pod, 0) + many
    return named or hosts


def _is_own(file: str) -> bool:
    """Whether a hostfile is the one that an operator mounts, which stands for all workers."""
    return file.startswith("/etc/mpi/") or file.endswith("/arena-topo-hostfile")


def _read_hostfile(file: str, around: Surroundings) -> dict[str, int]:
    hosts: dict[str, int] = {}
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Untranslatable(f"cannot read the hostfile {file}: {error.strerror}") from error
    for line in lines:
        words = line.partition("#")[0].split()
        if words:
            name, colon, count = words[0].partition(":")
            slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
            many = slots[-1] if slots else count if colon else "1"
            pod = _pod(name, around)
            hosts[pod] = hosts.get(pod, 0) + (int(many) if many.isdigit() else 1)
    if not hosts:
        raise Untranslatable(f"the hostfile {file} names no worker")
    return hosts


def _pod(host: str, around: Surroundings) -> str:
    pod = pod_name(host, around.slots)
    if pod is None:
        known = ", ".join(around.slots)
        raise Untranslatable(f"{host} is no worker of this job; its workers are {known}")
    return pod


def pod_name(host: str, pods: Collection[str]) -> str | None:
    """The pod that a host name means, with or without its domain; None if there is none."""
    bare = host.partition("@")[2] or host
    return next((one for one in (bare, bare.partition(".")[0]) if one in pods), None)


def _per_host(part: Program) -> int | None:
    """How many ranks each host shall get, where the line says so."""
    number = part.last("N", "npernode")
    if part.has("pernode"):
        return 1
    found = re.match(r"ppr:(\d+):node", part.last("map-by") or "")
    text = found[1] if found else number
    if text is None:
        return None
    if not text.isdigit() or int(text) == 0:
        raise Untranslatable(f"{text!r} is not a number of processes per node")
    return int(text)


def _by(part: Program, hosts: Mapping[str, int]) -> dict[str, int]:
    """How many consecutive ranks each host gets in turn."""
    each = _per_host(part)
    if part.has("bynode") or (part.last("map-by") or "").partition(":")[0] == "node":
        each = 1
    return dict(hosts) if each is None else dict.fromkeys(hosts, each)


def _ranks(part: Program, hosts: Mapping[str, int], *, sole: bool) -> int:
    number = part.last("np", "n", "c")
    if number is None:
        each = _per_host(part)
        if each is not None:
            return each * len(hosts)
        return sum(hosts.values()) if sole else 1
    if not number.isdigit() or int(number) == 0:
        raise Untranslatable(f"{number!r} is not a number of processes")
    return int(number)


def _oversubscribed(part: Program) -> bool:
    modifiers = (part.last("map-by") or "").upper().split(":")[1:]
    return part.has("oversubscribe") or "OVERSUBSCRIBE" in ",".join(modifiers).split(",")


def _check_slots(parts: Sequence[Program], counts: Sequence[int], hosts: Mapping[str, int]) -> None:
    """Refuse more ranks than slots, as Open MPI does (hydra would start them all the same)."""
    if any(_oversubscribed(part) for part in parts):
        return
    each = _per_host(parts[0])
    room = sum(slots if each is None else min(slots, each) for slots in hosts.values())
    if sum(counts) > room:
        raise Untranslatable(
            f"There are not enough slots available in the system to satisfy the {sum(counts)}\n"
            f"slots that were requested by the application:\n\n  {parts[0].command[0]}\n\n"
            f"The {len(hosts)} worker{'s' * (len(hosts) != 1)} of this job"
            f" {'have' if len(hosts) != 1 else 'has'} {room} slots.\n"
            "Either request fewer processes, or more workers or GPUs, or add --oversubscribe."
        )


# ---------------------------------------------------------------------------------- Open MPI

_LAUNCHING = re.compile(r"(plm|ras|ess|rmaps|routed)(_.*)?|hwloc_base_.*|.*_default_hostfile")
_GONE_IN_5 = re.compile(r"(orte|oob|plm|rmaps|ras|routed|opal)_.*|oob|routed|plm|ras")


def _to_open_mpi(words: Sequence[str], flavour: Flavour, around: Surroundings) -> Translation:
    said: list[str] = []
    oversubscribe = False
    for index, part in enumerate(programs(words)):
        said += [":"] if index else []
        rewritten, wanted = _reworded(part, flavour, around)
        said += rewritten
        oversubscribe |= wanted
    environment = {
        name: value
        for name, value in around.environment.items()
        if not foreign(name, value, around.interfaces)
    }
    if around.root:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            environment |= {name: "1", f"{name}_CONFIRM": "1"}
    if oversubscribe:
        environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":OVERSUBSCRIBE"
    return Translation(words=tuple(said), environment=environment)


def _reworded(
    words: Sequence[str], flavour: Flavour, around: Surroundings
) -> tuple[list[str], bool]:
    """One program's words for Open MPI itself, and whether slots may be oversubscribed.

    From the first option on that is not known here, everything stays as it is written.
    """
    said: list[str] = []
    oversubscribe = False
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, _ = words[at].lstrip("-").partition("=")
        if name not in _ARITY or equals:
            break
        end = at + 1 + _ARITY[name]
        values = list(words[at + 1 : end])
        at = end
        if not _is_wanted(name, values, flavour, around):
            continue
        if flavour is Flavour.OPEN_MPI_5 and name == "oversubscribe":
            oversubscribe = True
            continue
        if flavour is Flavour.OPEN_MPI_5 and name in _NEW_WORDS:
            said += _NEW_WORDS[name]
        else:
            said.append(("--" if len(name) > 1 else "-") + name)
        said += values
    return said + list(words[at:]), oversubscribe


_NEW_WORDS = {
    "np": ["-n"],
    "c": ["-n"],
    "npernode": ["-N"],
    "pernode": ["-N", "1"],
    "bynode": ["--map-by", "node"],
    "byslot": ["--map-by", "slot"],
    "tag-output": ["--output", "tag"],
    "timestamp-output": ["--output", "timestamp"],
    "merge-stderr-to-stdout": ["--output", "merge"],
    "display-map": ["--display", "map"],
    "display-allocation": ["--display", "allocation"],
    "report-bindings": ["--display", "bindings"],
    "machinefile": ["--hostfile"],
    "bind-to-none": ["--bind-to", "none"],
    "bind-to-core": ["--bind-to", "core"],
    "bind-to-socket": ["--bind-to", "package"],
}
"""Options of Open MPI 4 that Open MPI 5 spells otherwise (its manual, mpirun(1), "Deprecated")."""


def _is_wanted(name: str, values: Sequence[str], flavour: Flavour, around: Surroundings) -> bool:
    if name in {"hostfile", "machinefile", "default-hostfile"}:
        # The workers are the default already, through the environment.
        return not _is_own(values[0])
    if name == "x":
        key, equals, value = values[0].partition("=")
        value = value if equals else around.environment.get(key, "")
        own = not equals and key in PRIVATE and around.launcher.get(key) == value
        absent = not equals and not key.endswith("*") and key not in around.environment
        return not own and not absent and not foreign(key, value, around.interfaces)
    if name in _TWO.split():
        key, value = values
        if foreign(key, value, around.interfaces) or _LAUNCHING.fullmatch(key):
            return False
        if flavour is Flavour.OPEN_MPI_5 and name in {"mca", "gmca"}:
            # Excluding what is not there is an error since 5.0, which has no openib.
            return not _GONE_IN_5.fullmatch(key) and (key, value) != ("btl", "^openib")
    if flavour is Flavour.OPEN_MPI_5:
        return name not in {"nooversubscribe", "use-regexp", "novm", "do-not-resolve", "d", "s"}
    return True


# ---------------------------------------------------------------------------------- the machine


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


def flavour_at(program: Path, cache: Path) -> Flavour:
    """Whose mpirun this file is; asked once and remembered until the file changes."""
    key = f"{program}@{program.stat().st_mtime_ns}"
    try:
        known: dict[str, str] = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        known = {}
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
        os.execve(found, [str(found), *said.words], dict(said.environment))  # noqa: S606
    except OSError as error:
        _say(f"{program}: cannot run {found}: {error.strerror}")
        return 126


def agent(folder: Path, words: Sequence[str]) -> int:
    """Do what `ssh HOST COMMAND...` would: become the command, within the worker of that name."""
    rest = list(words)
    # Options of ssh that mpirun passes (hydra says -x); none of them takes a value.
    while rest and rest[0].startswith("-"):
        rest.pop(0)
    job = json.loads((folder / "pods.json").read_bytes())
    pod = pod_name(rest[0], job["slots"]) if rest else None
    if pod is None:
        _say(f"there is no worker {rest[0] if rest else ''} in this job")
        return 255
    environment = json.loads((folder / "pods" / pod / "env").read_bytes())
    with contextlib.suppress(OSError):
        os.chdir(job["folder"])
    command = ["sh", "-c", " ".join(rest[1:])]
    return os.execve("/bin/sh", command, environment)  # noqa: S606  what ssh does


def _say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"arena-topo: {line}\n")


def main() -> int:
    """Run as the script that the shims start."""
    verb, folder, *words = sys.argv[1:]
    if verb == "agent":
        return agent(Path(folder), words)
    return run(Path(folder), words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
