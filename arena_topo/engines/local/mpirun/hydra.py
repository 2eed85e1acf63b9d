"""Command lines of Open MPI 4 in the words of hydra, the mpirun of MPICH and Intel MPI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .line import (
    ARITY,
    PRIVATE,
    TWO,
    Flavour,
    Program,
    Surroundings,
    Translation,
    Untranslatable,
    foreign,
    is_own,
    lost,
    no_interface,
    pod_name,
    programs,
    read,
    unheard,
    unused,
    wanted,
)

_SILENT = """
    allow-run-as-root nooversubscribe no-oversubscribe overload-allowed disable-recovery nolocal
    novm q quiet v verbose byslot bind-to-none preload-binary s leave-session-attached stdin
    merge-stderr-to-stdout use-hwthread-cpus use-regexp noprefix do-not-resolve
"""
"""Options that ask for what is so anyway here, or say only how much Open MPI tells of itself."""

_UNBOUND = """
    bycore bysocket bind-to bind-to-core bind-to-socket cpus-per-proc cpus-per-rank cpu-set cpu-list
"""
"""Options that give processors to ranks."""

_UNSAID = """
    report-bindings display-map display-allocation display-devel-map display-devel-allocation
    display-diffable-map display-topo timestamp-output show-progress report-pid report-uri
    get-stack-traces report-state-on-timeout debug-daemons debug-daemons-file debug-devel d
    enable-recovery continuous max-restarts rank-by prefix path tmpdir personality
"""
"""Options that have no counterpart, but without which the job runs all the same."""

_SPOKEN = """
    np n c N npernode pernode map-by bynode H host hostfile machinefile default-hostfile x wdir wd
    timeout oversubscribe tag-output
"""
"""Options that are said again in hydra's words."""

_TRANSLATED = frozenset((_SILENT + _UNBOUND + _UNSAID + _SPOKEN + TWO).split())

_FIRST = """
    H host hostfile machinefile default-hostfile N npernode pernode map-by bynode timeout tag-output
"""
"""Options that are read for the first program and hold for all."""

_MAPPING = re.compile(r"(slot|node|ppr:\d+:node)?(:(NO)?OVERSUBSCRIBE)?", re.IGNORECASE)
"""What is understood of --map-by."""

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


def to_hydra(words: Sequence[str], flavour: Flavour, around: Surroundings) -> Translation:
    """Say a line in hydra's words; Untranslatable names the option that it has no words for."""
    try:
        parts = [read(part, ARITY) for part in programs(words)]
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
    remarks = tuple(_remarks(parts, flavour, around))
    return Translation(words=tuple(said), environment=environment, remarks=remarks)


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


def _exported(programs_: Sequence[Program], around: Surroundings) -> list[dict[str, str]]:
    """What `-x` exports, for each program: `NAME`, `NAME=VALUE`, or `PREFIX*`."""
    found = []
    for program in programs_:
        variables: dict[str, str] = {}
        for text in program.all("x"):
            for key, exported in wanted(text, around).items():
                own = "=" not in text and around.launcher.get(key) == exported and key in PRIVATE
                if not own and not foreign(key, exported, around.interfaces):
                    variables[key] = exported
        found.append(variables)
    return found


def _remarks(parts: Sequence[Program], flavour: Flavour, around: Surroundings) -> Iterator[str]:
    """What is said about the options that are dropped, once for each."""
    absent = []
    said: set[tuple[str, tuple[str, ...]]] = set()
    for option in (option for part in parts for option in part.options):
        name, values = option
        if name == "x":
            absent += lost(values[0], around)
        elif name in TWO.split():
            key, value = values
            if unheard(key, value):
                continue
            if foreign(key, value, around.interfaces):
                absent.append(f"{key} {value}")
            elif option not in said:
                yield unused(name, values, f"{flavour.value} has no MCA parameters")
        elif option not in said:
            why = _why_dropped(name, values, flavour)
            if why is None and name in _FIRST.split() and not _is_default(name, values):
                why = None if option in parts[0].options else "the first program's holds for all"
            if why is not None:
                yield unused(name, values, why)
        said.add(option)
    if absent:
        yield no_interface(absent)


def _why_dropped(name: str, values: Sequence[str], flavour: Flavour) -> str | None:
    """Why an option is not used; None if it is said again, or asks for what is so anyway."""
    if name in _UNBOUND.split() and values[:1] != ("none",):
        # Every worker would bind its first rank to the first core.
        return "the workers share this machine's processors"
    if name == "map-by" and _MAPPING.fullmatch(values[0]) is None:
        return "the workers share this machine's processors"
    if name == "rank-by":
        return None if values[0] == "slot" else "ranks are counted worker by worker"
    return f"{flavour.value} has no counterpart" if name in _UNSAID.split() else None


def _is_default(name: str, values: Sequence[str]) -> bool:
    """Whether an option asks for all workers in order, as none would."""
    return values[:1] == ("slot",) or ("file" in name and is_own(values[0]))


def _hosts(part: Program, around: Surroundings) -> dict[str, int]:
    """The workers to use with their slots: those named by -H, in a hostfile, or all."""
    file = part.last("hostfile", "machinefile", "default-hostfile")
    hosts = dict(around.slots)
    if file is not None and not is_own(file):
        hosts = _read_hostfile(file, around)
    named: dict[str, int] = {}
    for host in ",".join(part.all("H", "host")).split(","):
        name, colon, slots = host.partition(":")
        if name:
            pod = _pod(name, around)
            many = int(slots) if colon and slots.isdigit() else 1
            named[pod] = named.get(pod, 0) + many
    return named or hosts


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
