"""Flag: the declaration of a field as a command-line option.

Each field is declared once; the command line, its help, the environment variables and the reference
page are generated from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import StrEnum
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


_Value = TypeVar("_Value")


def flag(default: _Value, text: str, metavar: str | None = None, **more: Any) -> _Value:
    """A field of a record with its default and its `Flag`."""
    made: _Value = field(default=default, metadata={"flag": Flag(text, metavar, **more)})
    return made


@dataclass(frozen=True, slots=True)
class Word:
    """One positional argument of the command line; only an optional one has brackets in the help.

    `completes` are the kinds of KINDS that a shell offers for it, separated by spaces. `parse`
    reads it; without that it is a text.
    """

    metavar: str
    completes: str = ""
    parse: Callable[[str], str] | None = None


COMPLETION_KINDS = frozenset(
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
    for record_field in fields(record):
        if "flag" in record_field.metadata:
            hints[record_field.name] = Annotated[
                hints[record_field.name], record_field.metadata["flag"]
            ]
    return MappingProxyType(hints)


@cache
def flags_of(record: Any) -> Mapping[str, Flag]:
    """The flags that a record declares, by field, in their order."""
    flags = ((name, flag_of(hint)) for name, hint in hints_of(record).items())
    return MappingProxyType({name: flag for name, flag in flags if flag is not None})


def flag_of(hint: Any) -> Flag | None:
    """The flag that the type of a field or a parameter carries."""
    return next((each for each in get_args(hint)[1:] if isinstance(each, Flag)), None)


def word_of(hint: Any) -> Word | None:
    """The positional argument that the type of a parameter carries."""
    return next((each for each in get_args(hint)[1:] if isinstance(each, Word)), None)


def type_of_value(hint: Any) -> tuple[Any, bool, bool]:
    """The type of one value, whether the field is repeatable, and whether it may be None."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) in {tuple, list}:
        return get_args(hint)[0], True, False
    some = [arm for arm in get_args(hint) or (hint,) if arm is not NoneType]
    return some[0], False, len(get_args(hint)) > 1


def values_of(kind: Any, choices: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The values of an enumeration that a flag accepts; of a set those of its members."""
    if choices:
        return choices
    if isinstance(kind, type) and issubclass(kind, frozenset):
        kind = get_args(vars(kind)["__orig_bases__"][0])[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(member.value for member in kind if member.value)
    return tuple(getattr(kind, "choices", ()))


@cache
def kinds_of(record: Any) -> Mapping[str, tuple[Any, bool, bool]]:
    """The `type_of_value` each field of a record."""
    return {name: type_of_value(hint) for name, hint in hints_of(record).items()}


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
            words += (
                f"{text}={item}" for item in (value if isinstance(value, tuple) else (value,))
            )
    return words


def check_flags(
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
            flag
            for flag in flag.needs
            if flag.partition(" ")[0] in known and not _is_given(flag, given)
        ]
        if lacking:
            needed = " and ".join(lacking)
            raise wrong(f"{name} needs {needed}", hint=f"add {needed}", flag=name)
        other = next((flag for flag in flag.excludes if _is_given(flag, given)), None)
        if other is not None:
            raise wrong(
                f"{name} and {other} exclude each other", hint="leave one of them out", flag=name
            )


def _is_given(wanted: str, given: Mapping[str, object]) -> bool:
    name, _, value = wanted.partition(" ")
    return name in given and value in {"", str(given[name])}
