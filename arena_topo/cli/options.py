"""What all commands share: flags as Typer's options (`spread`), global options, output streams.

Messages for people go to stderr through `say`, data to stdout through `show`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Self,
    TextIO,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from arena_topo.cli.terminal import colours, wrapped
from arena_topo.errors import ArenaError, UsageError
from arena_topo.escaping import escaped, one_line
from arena_topo.flag import (
    Flag,
    check,
    flag,
    flag_of,
    flags_of,
    hints_of,
    kind_of,
    kinds_of,
    spelling,
)
from arena_topo.layout import complaint, folded, noted, painted
from arena_topo.notes import Alert, grouped
from arena_topo.numbers import span

if TYPE_CHECKING:
    from arena_topo.engines import Options

PROGRAM = "arena-topo"

Thing = TypeVar("Thing")

# typer.BadParameter is public in every version; its base is the UsageError of whichever click
# Typer uses (its own since 0.26, the package before).
ParserError: type[Any] = typer.BadParameter.__bases__[0]

GLOBAL_PANEL = "Global options"


class LogLevel(StrEnum):
    """The least level of messages on stderr; `debug` shows tracebacks."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"

    @classmethod
    def parse(cls, text: str) -> LogLevel:
        """Read a level; ValueError carries arena's text."""
        if text not in set(cls):
            raise ValueError("unknown loglevel,only support:[info,debug,error,warn]")
        return cls(text)


_GRAVITY = tuple(LogLevel)


def listen(level: LogLevel, *, quiet: bool = False) -> None:
    """Set the least level of messages on stderr; `quiet` raises it to warnings.

    With `debug` the requests to the API server are messages too.
    """
    _Loudness.least = max(level, LogLevel.WARN, key=_GRAVITY.index) if quiet else level
    if level is LogLevel.DEBUG:
        _show_requests()


def hears(level: LogLevel) -> bool:
    """Whether messages of this level are printed."""
    return _GRAVITY.index(level) >= _GRAVITY.index(_Loudness.least)


def say(text: str, level: LogLevel = LogLevel.INFO, *, whole: bool = False) -> None:
    """Print a message of one or more lines on stderr.

    Control characters are escaped. Lines wider than the terminal are wrapped, unless `whole`.
    """
    if not hears(level) or sys.stderr is None:  # it may be closed by the caller: `2>&-`
        return
    try:
        shown = escaped(text) if whole else folded(escaped(text), wrapped(sys.stderr))
        sys.stderr.write(painted(shown, colours=colours(sys.stderr)) + "\n")
        sys.stderr.flush()
    except OSError:  # the reader of stderr has gone
        forget_output(sys.stderr)


def warn(text: str) -> None:
    """Print a warning on one line."""
    say(noted(text, alert=True), LogLevel.WARN)


def note(text: str) -> None:
    """Print a note on one line."""
    say(noted(text))


def complain(error: ArenaError) -> None:
    """Print an error: what, why, and what to try."""
    say(complaint(error, wrapped(sys.stderr)), LogLevel.ERROR, whole=True)


def act_on_each(things: Iterable[Thing], act: Callable[[Thing], None]) -> None:
    """Act on every thing, also after an error with another; the first error is the exit code."""
    code = 0
    for thing in things:
        try:
            act(thing)
        except ArenaError as error:
            complain(error)
            code = code or error.exit_code
    if code:
        raise typer.Exit(code)


def remark(text: str) -> None:
    """Print a message on one line, with everything escaped; an Alert is a warning."""
    if isinstance(text, Alert):
        warn(text)
    else:
        say(one_line(text))


def tell(notes: Iterable[str]) -> None:
    """Print notes about the cluster on stderr; many on one fault are shortened."""
    for one in grouped(notes):
        note(one)


def show(text: str) -> None:
    """Write text to stdout; OutputLost if it cannot be written.

    Control characters are escaped; documents have escaped them in their own way.
    """
    _hand_over(escaped(text))


def display(screen: str, *, whole: bool = False) -> None:
    """Write a screen for people to stdout, in colours where stdout has them.

    Lines wider than the terminal are wrapped, unless `whole`.
    """
    text = escaped(screen)
    text = text if whole else folded(text, wrapped(sys.stdout))
    _hand_over(painted(text, colours=colours(sys.stdout)))


def _hand_over(text: str) -> None:
    put(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace") if sys.stdout else b"")


def put(data: bytes) -> None:
    """Write bytes to stdout unchanged; OutputLost if they cannot be written."""
    if sys.stdout is None:  # closed by the caller: `>&-`
        raise OutputLost("cannot write the output", why="standard output is closed")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_output()
        raise OutputLost("cannot write the output", why=error.strerror) from error


def forget_output(stream: TextIO | None = None) -> None:
    """Discard what is still buffered for stdout, or for another stream.

    Python would else try to write it at exit, fail, and end with a code of its own, 120.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


class OutputLost(ArenaError):
    """The command has done its work, but its output cannot be written."""


class Seconds(float):
    """A time span as Go writes it (`90s`, `1h30m`, `1.5h`) or as plain seconds."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a span; ValueError shows the form, or how long it may be."""
        return cls(span(f"{text}s" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else text))


class _Loudness:
    """The least level of messages that are printed."""

    least = LogLevel.INFO


@cache
def _show_requests() -> None:
    """Print what the package logs about requests, at the level `debug`."""
    import logging  # noqa: PLC0415 - only for debugging

    from arena_topo.engines import REQUESTS  # noqa: PLC0415 - as above

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(f"debug: {one_line(record.getMessage())}", LogLevel.DEBUG)

    logger = logging.getLogger(REQUESTS)
    logger.addHandler(Shown())
    logger.setLevel(logging.DEBUG)


class Colour(StrEnum):
    """Whether output is coloured; `auto` depends on the environment and the terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class BackendName(StrEnum):
    """Which engine runs the jobs."""

    AUTO = "auto"
    KUBERNETES = "kubernetes"
    LOCAL = "local"


_REQUEST_TIMEOUT = Seconds(30)

_common = partial(flag, panel=GLOBAL_PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Globals:
    """The options of every command, before or after its name; the last one wins.

    The hidden ones are arena's and have no effect here; they are accepted so that scripts of arena
    keep working.
    """

    namespace: str = _common(
        "",
        "Namespace of the job; else that of the context, else default.",
        "NAME",
        short="-n",
        completes="namespaces",
    )
    context: str = _common("", "Context of the kubeconfig.", "NAME", completes="contexts")
    kubeconfig: str = _common("", "Path of the kubeconfig.", "PATH", completes="files")
    config: str = _common("", "The same as --kubeconfig.", "PATH", completes="files")
    cluster: str = _common(
        "", "Cluster of the kubeconfig, instead of the context's.", "NAME", completes="clusters"
    )
    user: str = _common(
        "", "User of the kubeconfig, instead of the context's.", "NAME", completes="users"
    )
    as_: str = _common("", "Act as this user, where the cluster lets you.", "NAME", name="--as")
    as_group: tuple[str, ...] = _common(
        (), "Act as a member of this group; repeat for more.", "GROUP"
    )
    profile: str = _common(
        "", "Use this profile of the settings file.", "NAME", completes="profiles"
    )
    backend: BackendName = _common(
        BackendName.AUTO,
        "Where jobs run: auto is kubernetes where one is configured, else local.",
    )
    emulate: str = _common(
        "",
        "Machines that the local engine emulates, such as dgx-1-v100:2.",
        "PRESET[:COUNT]",
        completes="machines",
    )
    request_timeout: Seconds = _common(
        _REQUEST_TIMEOUT, "How long one call to the API server may take.", "DURATION"
    )
    timeout: Seconds | None = _common(
        None, "Give up after this long in all; a job that was submitted goes on.", "DURATION"
    )
    prometheus_address: str = _common(
        "", "Prometheus that knows how busy the GPUs are; else that of the cluster.", "URL"
    )
    color: Colour = _common(Colour.AUTO, "Colour what is shown; auto does so on a terminal.")
    quiet: bool = _common(
        False, "Print only the essential: names, warnings and errors.", short="-q"
    )
    loglevel: LogLevel = _common(
        LogLevel.INFO,
        "How much to print on stderr; debug shows each request to the API server.",
    )
    arena_namespace: str = _common(
        "arena-system",
        "Where arena keeps its configuration; whoami reads its administrators there.",
        "NAME",
        completes="namespaces",
    )
    pprof: bool = _common(False, "Not used.", hidden=True)
    trace: bool = _common(False, "Not used.", hidden=True)
    helm_binary: bool = _common(False, "Not used.", hidden=True)

    def options(self) -> Options:
        """The options of an engine among them."""
        from arena_topo.engines import Options  # noqa: PLC0415 - not every command opens one

        return Options(
            backend=str(self.backend),
            kubeconfig=self.kubeconfig or self.config or None,
            context=self.context or None,
            cluster=self.cluster or None,
            user=self.user or None,
            impersonate=self.as_ or None,
            impersonate_groups=self.as_group,
            namespace=self.namespace or None,
            prometheus_address=self.prometheus_address or None,
            emulate=self.emulate or None,
            request_timeout=self.request_timeout,
            deadline=self.timeout,
        )


def boolean(param: Any) -> bool:
    """Whether an option of Typer's is a switch, without a value."""
    return bool(getattr(param, "is_flag", False))


def renamed(record: Any) -> dict[str, str]:
    """The deprecated spellings of a record's flags, each with the current spelling."""
    return {
        old: spelling(name, flag)
        for name, flag in flags_of(record).items()
        for old in flag.deprecated
    }


# ARENA_CONFIG is the path of arena's own configuration file. Arena has none of the others, and a
# site may use a name such as ARENA_USER for something else.
_NOT_OURS = frozenset(
    f"ARENA_{name}" for name in ("CONFIG", "CLUSTER", "USER", "AS", "PROFILE", "COLOR", "QUIET")
)


_PREFIXES = ("ARENA_TOPO_", "ARENA_")

# Arena reads this one too (pkg/prometheus/metric.go).
_PLAIN = {"prometheus_address": ("PROMETHEUS_ADDRESS",)}


def environment(record: Any) -> dict[str, tuple[str, ...]]:
    """The environment variables of each field whose flag is not given, strongest first."""
    kinds = kinds_of(record)
    return {
        name: tuple(
            variable
            for variable in (f"{prefix}{name.rstrip('_').upper()}" for prefix in _PREFIXES)
            if variable not in _NOT_OURS
        )
        + _PLAIN.get(name, ())
        for name in flags_of(record)
        if not kinds[name][1]
    }


# ---------------------------------------------------------------- one declaration -> one option


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Declare a command to Typer: each record by its fields, each Flag as an option.

    A field without a Flag is a positional argument. An option that is not given has the default of
    its record; a required text is empty then, so that the record itself refuses it. `hint_of` and
    `declared_flags` return what the command declares. The docstring may end with `Examples:`, each
    a comment and a command line (`examples_of`).
    """
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {}
    declared: dict[str, Any] = {}
    defaults: dict[str, object] = {}
    words: list[str] = []
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            records[parameter.name] = hint
            shown += _parameters(hint)
            declared |= hints_of(hint)
            defaults |= {field.name: field.default for field in dataclasses.fields(hint)}
        else:
            shown.append(_parameter(parameter.name, hint, parameter.default))
            declared[parameter.name], defaults[parameter.name] = hint, parameter.default
            if flag_of(hint) is None and get_origin(next(iter(get_args(hint)), None)) is list:
                words.append(parameter.name)
    on = {one.name for one in shown if one.default is True}

    def gather(**values: Any) -> None:
        said = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if value is not None and (value is not False or name in on) and value != []
        }
        for name, record in records.items():
            own = {
                field.name: said.pop(field.name, "")
                for field in dataclasses.fields(record)
                if field.name in said or field.default is dataclasses.MISSING
            }
            said[name] = record(**own)
        command(**dict.fromkeys(words, ()) | said)

    gather.__name__ = command.__name__
    gather.__doc__, _, examples = inspect.cleandoc(command.__doc__ or "").partition(_EXAMPLES)
    gather.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    vars(gather)["__signature__"] = inspect.Signature(shown)
    vars(gather)["hints"] = declared
    vars(gather)["flags"] = {
        name: (flag, defaults[name])
        for name, hint in declared.items()
        if (flag := flag_of(hint)) is not None
    }
    vars(gather)["examples"] = [
        (what, inspect.cleandoc(line))
        for one in f"\n{examples}".split("\n  # ")[1:]
        for what, _, line in [one.partition("\n")]
    ]
    return gather


_EXAMPLES = "\n\nExamples:\n"


def examples_of(command: Any) -> list[tuple[str, str]]:
    """The examples of a command: a comment, and the command line after the program's name.

    A line feed in it is a continued line, so that it fits a terminal of 80 columns.
    """
    examples: list[tuple[str, str]] = vars(command.callback)["examples"]
    return examples


def declared_flags(command: Any) -> Mapping[str, tuple[Flag, object]]:
    """The flags of a command by parameter, each with its default."""
    flags: Mapping[str, tuple[Flag, object]] = vars(command.callback)["flags"]
    return flags


def hint_of(command: Any, parameter: str) -> Any:
    """The type that a parameter of a command is declared with; None for one of Typer's own."""
    return vars(command.callback)["hints"].get(parameter)


def check_together(ctx: Any) -> None:
    """UsageError if options of the line exclude each other, or one needs another."""
    declared = declared_flags(ctx.command)
    flags, given, known = {}, {}, set()
    for param in ctx.command.get_params(ctx):
        value = ctx.params.get(param.name)
        if param.name in declared:
            flag, default = declared[param.name]
            word = spelling(param.name, flag)
            flags[word] = flag
        else:
            default, word = "", str(param.metavar).strip("[].")
        known.add(word)
        if value not in (None, [], "", default) and (value is not False or default is True):
            given[word] = value
    check(flags, given, known=known)


_MOST_NAMED = 5
"""Excluded flags that the help of a flag names; more than these are counted."""


def help_of(param: Any, command: Any, params: Iterable[Any]) -> str:
    """The help of an option, with the other options of the command that it excludes."""
    text = str(param.help or "")
    if param.name not in declared_flags(command):
        return text
    known = {word for one in params for word in (*one.opts, str(one.metavar).strip("[]."))}
    excluded = declared_flags(command)[param.name][0].excludes
    named = [one for one in excluded if one.partition(" ")[0] in known]
    words = ", ".join(named)
    if len(named) > _MOST_NAMED:
        some = named[: _MOST_NAMED - 1]
        words = f"{', '.join(some)} and {len(named) - len(some)} others"
    return f"{text} Not with {words}." if named else text


@cache  # most commands take the same records, and reading their hints is most of the start-up
def _parameters(record: Any) -> tuple[inspect.Parameter, ...]:
    hints = hints_of(record)
    return tuple(
        _parameter(field.name, hints[field.name], field.default)
        for field in dataclasses.fields(record)
    )


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    flag = flag_of(hint)
    shown: Any = None
    if flag is None:
        if get_origin(hint) is not Annotated:
            hint = Annotated[hint, typer.Argument(metavar=name.upper(), show_default=False)]
            shown = ""
        elif get_origin(get_args(hint)[0]) is not list:
            shown = ""
    else:
        kind, several, _ = kind_of(hint)
        hint = Annotated[
            bool if kind is bool else list[str] if several else str,
            _option(name, kind, flag, default),
        ]
        shown = default is True if kind is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=hint)


def _option(name: str, kind: Any, flag: Flag, default: Any) -> Any:
    long = spelling(name, flag)
    help_text = flag.help
    on = default is True
    if not on and default not in {None, "", 0, inspect.Parameter.empty, dataclasses.MISSING, ()}:
        help_text += f" (default {_shown(default)})"
    return typer.Option(
        *filter(None, [flag.short, f"{long}/--no-{long[2:]}" if on else long]),
        help=help_text,
        rich_help_panel=flag.panel,
        metavar=None if kind is bool else flag.metavar or _metavar(kind, flag.choices),
        hidden=flag.hidden,
        show_default=False,
        parser=_parser(kind, long, flag.choices),
    )


def _shown(default: Any) -> str:
    return f"{default:g}s" if isinstance(default, Seconds) else str(default)


def _metavar(kind: Any, choices: tuple[str, ...] = ()) -> str:
    if issubclass(kind, StrEnum):
        return "|".join(choices or (one.value for one in kind if one.value))
    return {int: "N", float: "NUMBER"}.get(kind, "TEXT")


def _parser(kind: Any, long: str, choices: tuple[str, ...]) -> Callable[[str], Any] | None:
    """The reader of a value of this kind from its text; None where the text is the value."""
    if kind in {str, bool}:
        return None
    known: dict[Any, Callable[[str], Any]] = {int: _whole, float: _number}
    read: Callable[[str], Any] = (
        getattr(kind, "parse", None)
        or known.get(kind)
        or (lambda text: _member(kind, text, choices))
    )

    def parsed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise UsageError(f"{long} is invalid", why=str(error), flag=long) from error

    return parsed


_MOST_DIGITS = 18
"""Digits of the longest number that is read: all of them fit an int64, as Go has it."""


def _whole(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    if len(text.lstrip("+-")) > _MOST_DIGITS:
        raise ValueError(f"{text!r} is out of range")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number")
    return value


def _member(kind: type[StrEnum], text: str, choices: tuple[str, ...]) -> StrEnum:
    for one in kind:
        if one.value.lower() == text.lower() and (not choices or one in choices):
            return one
    *some, last = choices or (one.value for one in kind if one.value)
    raise ValueError(f"expected {', '.join(some)} or {last}, got {text!r}")
