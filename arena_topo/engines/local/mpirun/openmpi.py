"""Command lines of Open MPI 4 for Open MPI itself, 4 and 5, without what only holds elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .line import (
    ARITY,
    PRIVATE,
    TWO,
    Flavour,
    Surroundings,
    Translation,
    foreign,
    is_own,
    lost,
    no_interface,
    programs,
    unheard,
    unused,
)

_LAUNCHING = re.compile(r"(plm|ras|ess|rmaps|routed)(_.*)?|hwloc_base_.*|.*_default_hostfile")
_GONE_IN_5 = re.compile(r"(orte|oob|plm|rmaps|ras|routed|opal)_.*|oob|routed|plm|ras")
_DEFAULT_IN_5 = "oversubscribe nooversubscribe use-regexp novm do-not-resolve s"
"""Options without a counterpart in Open MPI 5 that are dropped without a word: they ask for what is
so anyway, or it is told in another way."""

Option = tuple[str, tuple[str, ...]]


def to_open_mpi(words: Sequence[str], flavour: Flavour, around: Surroundings) -> Translation:
    """Say a line in the words of Open MPI 4 or 5, without what can only hold elsewhere."""
    said: list[str] = []
    oversubscribe = False
    environment = {
        name: value
        for name, value in around.environment.items()
        if not foreign(name, value, around.interfaces)
    }
    absent = [
        f"{name}={value}" for name, value in around.environment.items() if name not in environment
    ]
    remarks: dict[str, None] = {}
    for index, part in enumerate(programs(words)):
        said += [":"] if index else []
        options, rest = _options(part)
        for name, values in options:
            if _is_wanted(name, values, flavour, around):
                said += [*_word(name, flavour), *values]
                continue
            oversubscribe |= name == "oversubscribe"
            missing = _absent(name, values, around)
            absent += missing
            why = None if missing else _why_dropped(name, values, flavour)
            if why is not None:
                remarks[unused(name, values, why)] = None
        said += rest
    if absent:
        remarks[no_interface(absent)] = None
    if around.root:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            environment |= {name: "1", f"{name}_CONFIRM": "1"}
    if oversubscribe:
        environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":OVERSUBSCRIBE"
    return Translation(words=tuple(said), environment=environment, remarks=tuple(remarks))


def _options(words: Sequence[str]) -> tuple[list[Option], Sequence[str]]:
    """The options at the beginning of a program's words, and the rest, which stays as it is.

    The rest begins with the command, or with the first option that is not known here or not whole.
    """
    options = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, _ = words[at].lstrip("-").partition("=")
        if name not in ARITY or equals or at + ARITY[name] >= len(words):
            break
        end = at + 1 + ARITY[name]
        options.append((name, tuple(words[at + 1 : end])))
        at = end
    return options, words[at:]


def _word(name: str, flavour: Flavour) -> Sequence[str]:
    if flavour is Flavour.OPEN_MPI_5 and name in _NEW_WORDS:
        return _NEW_WORDS[name]
    return [("--" if len(name) > 1 else "-") + name]


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
        return not is_own(values[0])
    if name == "x":
        key, equals, value = values[0].partition("=")
        value = value if equals else around.environment.get(key, "")
        own = not equals and key in PRIVATE and around.launcher.get(key) == value
        absent = not equals and not key.endswith("*") and key not in around.environment
        return not own and not absent and not foreign(key, value, around.interfaces)
    if name in TWO.split():
        key, value = values
        if foreign(key, value, around.interfaces) or _LAUNCHING.fullmatch(key):
            return False
        if flavour is Flavour.OPEN_MPI_5 and name in {"mca", "gmca"}:
            # Excluding what is not there is an error since 5.0, which has no openib.
            return not _GONE_IN_5.fullmatch(key) and (key, value) != ("btl", "^openib")
    if flavour is Flavour.OPEN_MPI_5:
        return name not in _DEFAULT_IN_5.split() and name != "d"
    return True


def _absent(name: str, values: Sequence[str], around: Surroundings) -> list[str]:
    """The settings of an option that name network interfaces of another machine."""
    if name == "x":
        return lost(values[0], around)
    if name in TWO.split():
        key, value = values
        if foreign(key, value, around.interfaces) and not unheard(key, value):
            return [f"{key} {value}"]
    return []


def _why_dropped(name: str, values: Sequence[str], flavour: Flavour) -> str | None:
    """Why an option is not used; None if it makes no difference here."""
    if name in TWO.split():
        key, value = values
        if unheard(key, value):
            return None
        if _LAUNCHING.fullmatch(key):
            return "the workers and this machine's processors are arena-topo's to give out"
        return f"{flavour.value} does not have it"
    return f"{flavour.value} has no counterpart" if name == "d" else None
