"""Parameters: the options and arguments of a command, declared by the records that it takes.

A field becomes a `Parameter`, which the parser of the line, settings, job files, help, completion
and the reference read. Typer gets an option or argument made of it; nothing reads those of Typer.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, get_type_hints

import typer

from arena_topo import argv
from arena_topo.cli.options import GLOBAL_PANEL, CommonOptions
from arena_topo.errors import UsageError, near
from arena_topo.flag import (
    Flag,
    Word,
    check_flags,
    flag_of,
    hints_of,
    spelling,
    type_of_value,
    values_of,
    word_of,
)

_ALONE = {"dry_run": "client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An option of a command, or a positional argument, which has no `flag`.

    `kind` is the type of one value, `default` the value of a parameter that is not given. A switch
    has no `metavar`.
    """

    name: str
    kind: Any
    default: object
    metavar: str | None
    repeats: bool = False
    flag: Flag | None = None
    word: Word | None = None

    @property
    def switch(self) -> bool:
        """Whether it is an option without a value."""
        return self.metavar is None

    @property
    def long(self) -> str:
        """The spelling with two dashes; of an argument the name in the help, without brackets."""
        if self.flag is None:
            return str(self.metavar).strip("[].")
        return spelling(self.name, self.flag)

    @property
    def key(self) -> str:
        """The key of an option in files: its spelling without dashes in front."""
        return self.long.removeprefix("--")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The spellings of an option, the short one first."""
        short = self.flag.short if self.flag else None
        return (short, self.long) if short else (self.long,)

    @property
    def negation(self) -> str | None:
        """The spelling that turns off a switch that is on by default."""
        return f"--no-{self.long[2:]}" if self.switch and self.default is True else None

    @property
    def help(self) -> str:
        """The text of the help, with the default."""
        text = self.flag.help if self.flag else ""
        if self.default is True or self.default in {None, "", 0, dataclasses.MISSING, ()}:
            return text
        return f"{text} (default {self.default})"

    @property
    def panel(self) -> str:
        """The panel of the help."""
        return self.flag.panel if self.flag else ""

    @property
    def hidden(self) -> bool:
        """Whether the help leaves it out."""
        return self.flag is not None and self.flag.hidden

    @property
    def alone(self) -> str:
        """The value of an option that is given without one (pflag's NoOptDefVal)."""
        return _ALONE.get(self.name, "")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that can be listed."""
        return values_of(self.kind, self.flag.choices if self.flag else ())

    def parse(self, text: str) -> Any:
        """The value of a text, as the kind says; UsageError tells what is expected."""
        if self.kind is bool:
            return argv.parse_bool(self.long, text) == "true"
        if self.word is not None and self.word.parse is not None:
            return self.word.parse(text)
        if self.kind is str:
            return text
        try:
            return self._parser()(text)
        except ValueError as error:
            # Of several values between commas one is wrong.
            several = (part.strip() for part in text.split(","))
            known = [*map(str.upper, self.choices)]
            wrong = next((part for part in several if part.upper() not in known), "")
            # Of few values a rather unlike one may be meant: `sucess` is `succeeded`, but `xml` is
            # not `yaml`.
            alike = [choice for choice in self.choices if choice[:1].lower() == wrong[:1].lower()]
            hint = (near(wrong, self.choices) or near(wrong, alike, alike=0.5)) if wrong else None
            raise UsageError(
                f"{self.long} is invalid", why=str(error), hint=hint, flag=self.long
            ) from error

    def _parser(self) -> Callable[[str], Any]:
        numbers: dict[Any, Callable[[str], Any]] = {int: _parse_int, float: _parse_number}
        return getattr(self.kind, "parse", None) or numbers.get(self.kind) or self._parse_choice

    def _parse_choice(self, text: str) -> StrEnum:
        allowed = self.flag.choices if self.flag else ()
        for member in self.kind:
            if member.value.lower() == text.lower() and (not allowed or member in allowed):
                matching: StrEnum = member
                return matching
        *some, last = self.choices
        raise ValueError(f"expected {', '.join(some)} or {last}, got {text!r}")


HELP_OPTION = Parameter(
    name="help",
    kind=bool,
    default=False,
    metavar=None,
    flag=Flag("Show this message and exit.", panel=GLOBAL_PANEL, short="-h"),
)
"""The option of every command that Typer adds by itself."""

_MOST_DIGITS = 18
"""Digits of the longest number that is read: all of them fit an int64, as Go has it."""


def _parse_int(text: str) -> int:
    """The int that the text of a flag stands for."""
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    if len(text.lstrip("+-")) > _MOST_DIGITS:
        raise ValueError(f"{text!r} is out of range")
    return int(text)


def _parse_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number")
    return value


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    flag, word = flag_of(hint), word_of(hint)
    kind, repeats, _ = type_of_value(hint)
    metavar: str | None = word.metavar if word else name.upper()
    if flag is not None:
        metavar = None if kind is bool else flag.metavar or _metavar(kind, flag.choices)
    return Parameter(
        name=name,
        kind=kind,
        default=default,
        metavar=metavar,
        repeats=repeats,
        flag=flag,
        word=word,
    )


def _metavar(kind: Any, choices: tuple[str, ...]) -> str:
    if issubclass(kind, StrEnum):
        return "|".join(values_of(kind, choices))
    return {int: "N", float: "NUMBER"}.get(kind, "TEXT")


@cache  # most commands take the same records, and reading their hints is most of the start-up
def _of_record(record: Any) -> tuple[Parameter, ...]:
    hints = hints_of(record)
    return tuple(
        _parameter(field.name, hints[field.name], field.default)
        for field in dataclasses.fields(record)
    )


# ---------------------------------------------------------------- the declaration of a command


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a command takes, and its examples: each a comment and a line after the program's name.

    A line feed in an example is a continued line, so that it fits a terminal of 80 columns. Flags
    that need an `implied` one may be given without it.
    """

    parameters: tuple[Parameter, ...]
    examples: tuple[tuple[str, str], ...]
    implied: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Parameter, ...]:
        """The options, `--help` last."""
        return (*(each for each in self.parameters if each.flag is not None), HELP_OPTION)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """The positional arguments."""
        return tuple(each for each in self.parameters if each.flag is None)

    def check_together(self, values: Mapping[str, object]) -> None:
        """UsageError if given values, by name, exclude each other or lack another."""
        given = {
            each.long: values[each.name]
            for each in self.parameters
            if each.name in values and values[each.name] not in ((), "", each.default)
        }
        flags = {each.long: each.flag for each in self.parameters if each.flag is not None}
        known = {each.long for each in self.parameters} - {*self.implied}
        check_flags(flags, given, known=known)

    def help_of(self, option: Parameter) -> str:
        """The help of an option, with the other options of the command that it excludes."""
        excludes = option.flag.excludes if option.flag else ()
        if not excludes:
            return option.help
        known = {
            word
            for each in (*self.parameters, HELP_OPTION)
            for word in (*each.spellings, each.long)
        }
        excluded = [each for each in excludes if each.partition(" ")[0] in known]
        words = ", ".join(excluded)
        if len(excluded) > _MOST_NAMED:
            some = excluded[: _MOST_NAMED - 1]
            words = f"{', '.join(some)} and {len(excluded) - len(some)} others"
        return f"{option.help} Not with {words}." if excluded else option.help


_MOST_NAMED = 5
"""Excluded flags that the help of a flag names; more than these are counted."""

_EXAMPLES = "\n\nExamples:\n"

_EMPTY = inspect.Parameter.empty


def command_from_records(command: Callable[..., None]) -> Callable[..., None]:
    """Declare a command by its records and parameters: each Flag is an option.

    The result takes the values of parameters by name, and calls the command with its records;
    `declaration_of` returns its declaration. A parameter `session` is the Session of the line, and
    stands for the common options. A field without a Flag is a positional argument. A parameter that
    is not given has the default of its record; a required text is empty then, so that the record
    itself refuses it. What a `**` parameter takes is no part of the declaration: a wrapper of the
    result gives it. The docstring may end with `Examples:`, each a comment and a command line.
    """
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {}
    parameters: list[Parameter] = []
    required: dict[str, object] = {}
    for each in inspect.signature(command).parameters.values():
        hint: Any = hints[each.name]
        if each.name == "session":
            parameters += _of_record(CommonOptions)
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            records[each.name] = hint
            parameters += _of_record(hint)
        elif each.kind is not each.VAR_KEYWORD:
            parameters.append(_parameter(each.name, hint, each.default))
            if each.default is _EMPTY:
                required[each.name] = () if parameters[-1].repeats else ""

    def gather(**values: Any) -> None:
        built = {name: take_record(record, values) for name, record in records.items()}
        command(**required | values | built)

    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition(_EXAMPLES)
    gather.__name__, gather.__doc__ = command.__name__, text
    vars(gather)["declaration"] = Declaration(
        parameters=tuple(parameters),
        examples=tuple(
            (what, inspect.cleandoc(line))
            for what, _, line in (
                part.partition("\n") for part in f"\n{examples}".split("\n  # ")[1:]
            )
        ),
    )
    return gather


def take_record(record: Any, values: dict[str, Any]) -> Any:
    """A record with the values of its fields, which are removed from `values`.

    A required field without a value is an empty text.
    """
    return record(
        **{
            field.name: values.pop(field.name, "")
            for field in dataclasses.fields(record)
            if field.name in values or field.default is dataclasses.MISSING
        }
    )


def declaration_of(command: Any) -> Declaration:
    """The declaration of a command that `command_from_records` has made."""
    declaration: Declaration = vars(command)["declaration"]
    return declaration


def typer_parameters(declaration: Declaration) -> list[Any]:
    """The options and arguments of a declaration as Typer has them, which writes help and usage."""

    def declared() -> None:
        raise AssertionError("only its signature is read")

    signature = inspect.Signature([_for_typer(each) for each in declaration.parameters])
    vars(declared)["__signature__"] = signature
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(declared)
    made: Any = typer.main.get_command(app)
    parameters: list[Any] = made.params
    return parameters


@cache  # the commands of a module share the common options
def _for_typer(parameter: Parameter) -> inspect.Parameter:
    """The parameter of a function that declares it to Typer."""
    of: Any
    if parameter.flag is None:
        of = typer.Argument(metavar=parameter.metavar, show_default=False)
    else:
        spelled = f"{parameter.long}/{parameter.negation}" if parameter.negation else parameter.long
        of = typer.Option(
            *parameter.spellings[:-1],
            spelled,
            help=parameter.help,
            rich_help_panel=parameter.flag.panel,
            metavar=parameter.metavar,
            hidden=parameter.flag.hidden,
            show_default=False,
        )
    hint: Any = bool if parameter.switch else list[str] if parameter.repeats else str
    default = (
        parameter.default is True if parameter.switch else "" if parameter.flag is None else None
    )
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=[] if parameter.flag is None and parameter.repeats else default,
        annotation=Annotated[hint, of],
    )
