"""What a command line of Open MPI 4 says, and what it says that can only hold elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The words after `mpirun`, the environment to start it with, and remarks for the person."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    remarks: tuple[str, ...] = ()


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
TWO = "mca gmca prtemca pmixmca omca tmca"
ARITY = {name: count for count, names in enumerate((_NONE, _ONE, TWO)) for name in names.split()}

PRIVATE = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "HOSTNAME",
    "TMPDIR",
    "ARENA_TOPO_POD",
    "K_MPI_JOB_ROLE",
)
"""Variables that each pod has its own value of; the launcher's never overwrite a worker's."""


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


def wanted(text: str, around: Surroundings) -> dict[str, str]:
    """The variables that `-x TEXT` means: `NAME`, `NAME=VALUE`, or `PREFIX*`."""
    name, equals, value = text.partition("=")
    if equals:
        return {name: value}
    prefix = name.removesuffix("*")
    return {
        key: value
        for key, value in around.environment.items()
        if key == name or (prefix != name and key.startswith(prefix))
    }


def lost(text: str, around: Surroundings) -> list[str]:
    """Which variables that `-x TEXT` means are not exported since they are `foreign`."""
    return [
        f"{name}={value}"
        for name, value in wanted(text, around).items()
        if foreign(name, value, around.interfaces)
    ]


def unused(name: str, values: Iterable[str], why: str) -> str:
    """The remark about an option that is dropped."""
    dashes = "--" if len(name) > 1 else "-"
    return f"{' '.join([dashes + name, *values])} is not used: {why}"


def no_interface(settings: Iterable[str]) -> str:
    """The remark about settings that are `foreign`."""
    named = ", ".join(dict.fromkeys(settings))
    return f"not used, since this machine has no such network interface: {named}"


_DAEMONS = re.compile(r"(plm|ras|ess|routed|oob)(_.*)?|orte_keep_fqdn_hostnames")


def unheard(key: str, value: str) -> bool:
    """Whether an MCA parameter can be dropped without a word.

    Those that say how Open MPI starts and reaches its daemons, which is arena-topo's to know here,
    and two of the line that arena and Horovod document, which ask for what is so anyway.
    """
    return _DAEMONS.fullmatch(key) is not None or (key, value) in {
        ("pml", "ob1"),
        ("btl", "^openib"),
    }


def interfaces() -> frozenset[str]:
    """The network interfaces of this machine."""
    try:
        return frozenset(os.listdir("/sys/class/net"))  # noqa: PTH208  names are all we need
    except OSError:
        return frozenset({"lo"})


def pod_name(host: str, pods: Collection[str]) -> str | None:
    """The pod that a host name means, with or without its domain; None if there is none."""
    bare = host.partition("@")[2] or host
    return next((one for one in (bare, bare.partition(".")[0]) if one in pods), None)


def is_own(file: str) -> bool:
    """Whether a hostfile is the one that an operator mounts, which stands for all workers."""
    return file.startswith("/etc/mpi/") or file.endswith("/arena-topo-hostfile")
