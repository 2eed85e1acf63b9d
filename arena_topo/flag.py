"""Flag: the declaration of a field as a command-line option.

Each field is declared once; the command line, its help, the environment variables and the reference
page are generated from the declaration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from arena_topo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Flag:
    """One field as an option of the command line.

    `name` is given only if the flag is not the field's name with dashes. `deprecated` spellings
    work, with a warning on stderr. `at_least` is the minimum of a number; the text of the error is
    arena's `--FLAG is invalid`. `needs` are the flags that this one requires (`--gputopology`,
    `--policy adaptive`), `excludes` those that it excludes, as typed (`--wait`, `--output json`);
    an argument has its name in the help (`JOB`). Flags that a command does not have are ignored
    there. `completes` are the kinds of KINDS that a shell offers for the value, separated by
    spaces; choices and switches need none. `choices` are the allowed values of an enumeration, if
    not all, or the examples of a text that a shell offers.
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
    """A field of a record with its default and its `Flag`."""
    made: Value = field(default=default, metadata={"flag": Flag(text, metavar, **more)})
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Completion of a positional argument: some of KINDS, separated by spaces."""

    completes: str


KINDS = frozenset(
    {
        *("jobs", "instances", "containers", "namespaces", "nodes", "claims", "priorities"),
        *("contexts", "clusters", "users", "profiles"),
        *("presets", "machines", "levels", "models", "choices", "shells"),
        *("command", "files", "folders"),
    }
)
"""The kinds of completion. Names of a cluster (`instances` and `containers` of the job on the
line), of a kubeconfig and of settings; names of the program: `presets` (`machines` are presets with
their numbers), `levels` of a network, `models` of GPUs, `choices` separated by commas; a `command`
to run; names of files."""

BY_KEY = frozenset({"env", "label", "annotation", "selector"})
"""The repeatable fields with values KEY=VALUE, whose order does not matter."""


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
    """The type of one value, whether the field is repeatable, and whether it may be None."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True, False
    some = [one for one in get_args(hint) or (hint,) if one is not NoneType]
    return some[0], False, len(get_args(hint)) > 1


@cache
def kinds_of(record: Any) -> Mapping[str, tuple[Any, bool, bool]]:
    """The `kind_of` each field of a record."""
    return {name: kind_of(hint) for name, hint in hints_of(record).items()}


def spelling(field: str, flag: Flag) -> str:
    """The flag as typed: `working_dir` is `--working-dir` unless the flag has a name of its own."""
    return flag.name or "--" + field.replace("_", "-")


def words_of(record: Any) -> list[str]:
    """The fields of a record that differ from their defaults, as words of a command line."""
    words, kind = list[str](), cast("Any", type(record))
    for name, flag in flags_of(kind).items():
        value, text = getattr(record, name), spelling(name, flag)
        if value == kind.__dataclass_fields__[name].default:
            continue
        if isinstance(value, bool):
            words.append((flag.short or text) if value else f"{text}=false")
        else:
            words += (f"{text}={one}" for one in (value if isinstance(value, tuple) else (value,)))
    return words


def check(
    flags: Mapping[str, Flag],
    given: Mapping[str, object],
    *,
    known: Collection[str],
    wrong: type[UsageError] = UsageError,
) -> None:
    """Refuse, with `wrong`, a flag below its minimum, without a needed or beside an excluded one.

    The keys of `flags` and `given` are the flags as typed; `given` has the values that are not the
    default, `known` are all flags and arguments of the command or record. The value `auto` leaves a
    choice open, so it needs nothing.
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
