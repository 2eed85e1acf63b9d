"""Flag: how one field is shown to a person.

A field of a job is described once, here; the command line, its help, the environment variables and
the reference page are all made from this description.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from arena_topo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Flag:
    """How one field looks from the command line.

    `name` is needed only where the flag is not the field's name with dashes. `deprecated` are old
    spellings: they work, with a warning on stderr. `at_least` bounds numbers; the text of the
    error is arena's `--FLAG is invalid`. `needs` are the flags without which this one means
    nothing (`--gputopology`, `--policy adaptive`), `excludes` those that it
    contradicts, as a person types them (`--wait`, `--output json`); a word that is no flag goes by
    its name in the help (`JOB`). One that a command does not have is not asked of it. `completes`
    is what a shell offers for the value: some of KINDS, with spaces between them; choices and
    switches need none. `choices` are the values of an enumeration that a command takes, if not all.
    """

    help: str
    metavar: str | None = None
    _: KW_ONLY
    panel: str = "Job"
    name: str | None = None
    short: str | None = None
    deprecated: tuple[str, ...] = ()
    at_least: int | None = None
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    hidden: bool = False
    completes: str = ""
    choices: tuple[str, ...] = ()


Value = TypeVar("Value")


def flag(default: Value, text: str, metavar: str | None = None, **more: Any) -> Value:
    """A field of a record with its default, and the `Flag` that a person gives it by."""
    made: Value = field(default=default, metadata={"flag": Flag(text, metavar, **more)})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a shell offers for a word that is no flag: some of KINDS, with spaces between them."""

    completes: str


KINDS = frozenset(
    {
        *("jobs", "instances", "containers", "namespaces", "nodes", "claims", "priorities"),
        *("contexts", "clusters", "users", "profiles"),
        *("presets", "machines", "levels", "models", "choices", "shells"),
        *("command", "files", "folders"),
    }
)
"""What can be completed. Names of a cluster (`instances` and `containers` of the job on the line);
of a kubeconfig and of settings; of what the program knows by itself: `presets` (`machines` are
presets with their numbers), `levels` of a network, `models` of GPUs, `choices` with commas between
them; a `command` to run; names of files."""

BY_KEY = frozenset({"env", "label", "annotation", "selector"})
"""The repeatable fields whose values are KEY=VALUE, in any order: what counts is each key's."""


@cache
def hints_of(record: Any) -> Mapping[str, Any]:
    """The types of a record's fields, with their flags."""
    hints = get_type_hints(record, include_extras=True)
    for one in fields(record):
        if "flag" in one.metadata:
            hints[one.name] = Annotated[hints[one.name], one.metadata["flag"]]
    return MappingProxyType(hints)


@cache
def flags_of(record: Any) -> Mapping[str, Flag]:
    """The flags that a record declares, by field, in their order."""
    found = ((name, flag_of(hint)) for name, hint in hints_of(record).items())
    return MappingProxyType({name: flag for name, flag in found if flag is not None})


def flag_of(hint: Any) -> Flag | None:
    """The flag that the type of a field or a parameter carries."""
    return next((one for one in get_args(hint)[1:] if isinstance(one, Flag)), None)


def kind_of(hint: Any) -> tuple[Any, bool, bool]:
    """The type of one value, whether there may be several, and whether None stands for none."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True, False
    some = [one for one in get_args(hint) or (hint,) if one is not NoneType]
    return some[0], False, len(get_args(hint)) > 1


@cache
def kinds_of(record: Any) -> Mapping[str, tuple[Any, bool, bool]]:
    """What each field of a record holds, as `kind_of` says it."""
    return {name: kind_of(hint) for name, hint in hints_of(record).items()}


def spelling(field: str, flag: Flag) -> str:
    """The flag as typed: `working_dir` is `--working-dir` unless the flag has a name of its own."""
    return flag.name or "--" + field.replace("_", "-")


def check(
    flags: Mapping[str, Flag],
    given: Mapping[str, object],
    *,
    known: Collection[str],
    wrong: type[UsageError] = UsageError,
) -> None:
    """Refuse, with `wrong`, a flag below its least, without one it needs, or beside a wrong one.

    `flags` and `given` go by the words as typed; `given` has the values that are not the default,
    `known` is all that the command or the record has. The value `auto` leaves a choice open, so it
    needs nothing.
    """
    for name, flag in flags.items():
        if name not in given or str(given[name]) == "auto":
            continue
        value: Any = given[name]
        if flag.at_least is not None and value < flag.at_least:
            why = f"{value:g} is less than {flag.at_least}"
            raise wrong(f"{name} is invalid", why=why, flag=name)
        lacking = [
            one
            for one in flag.needs
            if one.partition(" ")[0] in known and not _is_given(one, given)
        ]
        if lacking:
            needed = " and ".join(lacking)
            raise wrong(f"{name} needs {needed}", hint=f"add {needed}", flag=name)
        other = next((one for one in flag.excludes if _is_given(one, given)), None)
        if other is not None:
            raise wrong(
                f"{name} and {other} exclude each other", hint="leave one of them out", flag=name
            )


def _is_given(wanted: str, given: Mapping[str, object]) -> bool:
    name, _, value = wanted.partition(" ")
    return name in given and value in {"", str(given[name])}
