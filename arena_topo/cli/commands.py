"""Commands and groups of the command line: parsing, settings, help.

`argv` reads the words, `parameters` their values; Typer holds the tree and the help. Nothing here
depends on which click Typer brings along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from arena_topo import argv
from arena_topo.cli.console import Colour, Console, LogLevel
from arena_topo.cli.options import (
    GLOBAL_PANEL,
    PROGRAM,
    CommonOptions,
    flag_variables,
    renamed,
)
from arena_topo.cli.parameters import (
    Declaration,
    Parameter,
    command_from_records,
    declaration_of,
    take_record,
    typer_parameters,
)
from arena_topo.cli.session import Session
from arena_topo.cli.settings import (
    LINE,
    Layer,
    Value,
    from_environment,
    merge_layers,
    misspellings,
    origin_hint,
    without_overruled_conflicts,
)
from arena_topo.cli.settings import read_settings as settings
from arena_topo.errors import NEAR_WORD, UsageError, near

ALIASES = {"ls": "list", "log": "logs", "del": "delete", "mpijob": "mpi", "mj": "mpi"}
"""Short names of commands, arena's own; they work but are not listed."""

HELP_COMMAND = "help"
"""`help COMMAND` shows the help of a command, as in every program of cobra's."""


class _LineState:
    """What was read of the line so far: options of groups, which their commands use, and others.

    `command` is the command of a job file, `dash` the number of words before `--`.
    """

    def __init__(self) -> None:
        self.given: tuple[tuple[str, str], ...] = ()
        self.warnings: tuple[str, ...] = ()
        self.layers: tuple[Layer, ...] = ()
        self.values: tuple[Value, ...] = ()
        self.command: str | None = None
        self.dash: int | None = None


def _line_state(ctx: Any) -> _LineState:
    """The record that the contexts of a line share."""
    state: _LineState = ctx.meta.setdefault("arena_topo.line_state", _LineState())
    return state


@cache
def variables(*, takes_job: bool) -> Mapping[str, tuple[str, ...]]:
    """The environment variables of each option, strongest first."""
    if not takes_job:
        return flag_variables(CommonOptions)
    from arena_topo.job import MPIJob  # noqa: PLC0415 - other commands do without it

    return {**flag_variables(MPIJob), **flag_variables(CommonOptions)}


@cache
def old_spellings(*, takes_job: bool) -> Mapping[str, str]:
    """Deprecated spellings of options, each with the current spelling."""
    everywhere = {"--allNamespaces": "--all-namespaces"}
    if not takes_job:
        return everywhere
    from arena_topo.job import MPIJob  # noqa: PLC0415 - other commands do without it

    return {**everywhere, **renamed(MPIJob)}


class _DescribedByTyper:
    """A command whose options Typer has, made for help and usage alone: `argv` reads the words."""

    callback: Any
    _made: list[Any] | None = None

    @property
    def declaration(self) -> Declaration:
        """What it takes, and its examples."""
        return declaration_of(self.callback)

    @property
    def params(self) -> list[Any]:
        """Its options and arguments; made when they are first read, as most runs show no help."""
        if self._made is None:
            self._made = typer_parameters(self.declaration)
        return self._made

    @params.setter
    def params(self, none: list[Any]) -> None:
        """Take the empty list of Typer's constructor."""


class ArenaCommand(_DescribedByTyper, TyperCommand):
    """A command whose words are read as pflag reads them.

    A `steady` command works with invalid settings, and ignores them. The metavars of its arguments
    decide how they are read: COMMAND is a command to run; as first argument it is that of a job.
    """

    steady = False

    @property
    def metavars(self) -> list[str]:
        """The names of its arguments in the help."""
        return [str(argument.metavar) for argument in self.declaration.arguments]

    @property
    def named(self) -> int | None:
        """The number of words before a command to run; None for a command that runs none."""
        return next((at for at, metavar in enumerate(self.metavars) if "COMMAND" in metavar), None)

    @property
    def takes_job(self) -> bool:
        """Whether it has the options of a job, reads job files, and uses settings of jobs."""
        return self.named == 0

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line, merge options of groups, variables and settings, and parse all values."""
        options, state = self.declaration.options, _line_state(ctx)
        known = line_options(options, old_spellings(takes_job=self.takes_job))
        reader = argv.PflagParser(known, launches=self.named is not None, named=self.named or 0)
        line = argv.parse_line(reader, args)
        state.given, state.dash = (*state.given, *line.given_options), line.dash
        if line.help:
            _help(ctx)
        state.layers = self._layers(ctx, options)
        state.values = without_overruled_conflicts(merge_layers(options, state.layers), options)
        console: Console = ctx.obj
        _adjust(console, state.values)
        for warning in (
            *state.warnings,
            *line.warnings,
            # Those of jobs take time to load.
            *misspellings(partial(variables, takes_job=job) for job in (False, True)),
        ):
            console.warn(warning)
        try:
            ctx.params = parse_values(options, state.values)
            ctx.params |= self._arguments(ctx, self._positional(ctx, line.positionals))
        except UsageError as error:
            name_origin(error, options, state.values)
            raise
        return []

    def _arguments(self, ctx: Any, words: Sequence[str]) -> dict[str, Any]:
        """The values of the positional arguments; UsageError if there are too many words."""
        values: dict[str, Any] = {}
        rest = list(words)
        for argument in self.declaration.arguments:
            if argument.repeats:
                values[argument.name], rest = tuple(map(argument.parse, rest)), []
            elif rest:
                values[argument.name] = argument.parse(rest.pop(0))
        if rest:
            usage = ctx.get_usage().split()[1:]
            raise UsageError(f"too many words: {' '.join(rest)}", hint=" ".join(usage))
        return values

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about an option names its source, if that is not the line."""
        try:
            self.declaration.check_together(ctx.params)
            ctx.params["session"] = Session(
                common=take_record(CommonOptions, ctx.params),
                console=ctx.obj,
                layers=_line_state(ctx).layers,
            )
            return super().invoke(ctx)
        except UsageError as error:
            name_origin(error, self.declaration.options, _line_state(ctx).values)
            raise

    def _layers(self, ctx: Any, options: Sequence[Parameter]) -> tuple[Layer, ...]:
        """Every source of options, strongest first."""
        state = _line_state(ctx)
        above = (
            Layer(LINE, state.given),
            *self._job_file(ctx, options),
            *from_environment(options, variables(takes_job=self.takes_job)),
        )
        try:
            in_files = settings(
                options, above=above, of_jobs=partial(job_options, ctx) if self.takes_job else None
            )
        except UsageError as error:
            if not self.steady:
                raise
            ctx.obj.warn(f"{error.message}; settings are left out")
            return above
        if not self.steady:
            state.warnings = (*state.warnings, *in_files.warnings)
        return (*above, *in_files.layers)

    def _job_file(self, ctx: Any, options: Sequence[Parameter]) -> Iterable[Layer]:
        """The layers of the job file, if one is given."""
        state = _line_state(ctx)
        path = dict(state.given).get("file") if self.takes_job else None
        if not path:
            return ()
        from arena_topo.cli import jobfile  # noqa: PLC0415 - only for files

        job = jobfile.read_job_file(path, options, state.given)
        state.command = job.command
        return job.layers

    def _positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The words for the arguments; UsageError where one is missing."""
        state = _line_state(ctx)
        if self.takes_job:
            # The command as one shell string: that of the line, else that of the job file.
            command = argv.shell_command(words) if words else state.command
            return [] if command is None else [command]
        if words and self.named is not None and state.dash == 0:
            raise UsageError(
                f"expected '{ctx.info_name} JOB_NAME [ARG1] [ARG2] ... [ARGN]'. "
                f"JOB_NAME is required argument for the {ctx.info_name} command",
                hint=f"{ctx.command_path} JOB -- COMMAND",
            )
        word = next(iter(self.metavars), "[]").removesuffix("...")
        if words or word[0] == "[":
            return words
        given = {value.name for value in state.values}
        if any(
            option.flag and word in option.flag.excludes
            for option in self.declaration.options
            if option.name in given
        ):
            return [""]
        if word == "NODE":
            raise UsageError("no node is named", hint=f"{PROGRAM} nodes list shows them")
        if word == "MACHINE":
            names = f"{PROGRAM} topology presets lists machines"
            raise UsageError("no machine is named", hint=names)
        usage = " ".join([ctx.command_path, *self.collect_usage_pieces(ctx)])
        raise UsageError("no job is named", hint=f"{usage}; --help says more")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line; only optional arguments are in brackets.

        To Typer all arguments are optional, as the commands report missing ones themselves.
        """
        needed = {} if self.takes_job else {f"[{name}]": name for name in self.metavars}
        return [needed.get(piece, piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description of the command, then its examples."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            for what, line in self.declaration.examples:
                # Never wrapped: an example is copied.
                formatter.write(f"  # {what}\n  {shell_line(line)}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options grouped by panel, in the order of their declaration."""
        _write_panels(self, ctx, formatter)


def make_command(function: Callable[..., None], name: str, *, steady: bool = False) -> Any:
    """The command of a function that `command_from_records` has declared."""
    made = ArenaCommand(name, callback=function, help=function.__doc__, rich_markup_mode=None)
    made.steady = steady
    return made


def shell_line(words: str) -> str:
    """An example as a shell command, with a continued line for each line feed."""
    return f"{PROGRAM} {words}".replace("\n", " \\\n      ")


def line_options(options: Iterable[Parameter], old: Mapping[str, str]) -> list[argv.Option]:
    """Options for the parser of a line; `old` are deprecated spellings, each with the current."""
    return [
        argv.Option(
            option.name,
            option.spellings,
            old=[before for before, now in old.items() if now in option.spellings],
            switch=option.switch,
            no_value_default=option.alone,
            hidden=option.hidden,
        )
        for option in options
    ]


def parse_values(options: Iterable[Parameter], values: Iterable[Value]) -> dict[str, Any]:
    """The values of the options that are given, by name; UsageError for an invalid one.

    Of an option that takes one value only the last text is read.
    """
    known = {option.name: option for option in options}
    texts: dict[str, list[str]] = {}
    for name, text, _ in values:
        texts[name] = [*texts.get(name, ()), text] if known[name].repeats else [text]
    parsed = {name: tuple(map(known[name].parse, given)) for name, given in texts.items()}
    return {name: value if known[name].repeats else value[0] for name, value in parsed.items()}


def _help(ctx: Any) -> NoReturn:
    """Show the help of a command, and end."""
    ctx.obj.write(ctx.get_help() + "\n")
    ctx.exit()
    raise AssertionError("exit does not come back")


def _adjust(console: Console, values: Iterable[Value]) -> None:
    """Apply the options about messages and colours; invalid values are refused later."""
    texts = {value.name: value.text for value in values}
    level = texts.get("loglevel", LogLevel.INFO)
    if level in set(LogLevel):
        console.set_level(LogLevel(level), quiet=texts.get("quiet") == "true")
    if texts.get("color") in set(Colour):
        console.colour = Colour(texts["color"])


def name_origin(error: UsageError, options: Iterable[Parameter], values: Iterable[Value]) -> None:
    """Add to an error about an option where that was set, unless on the line."""
    origins = {value.name: value.origin for value in values}
    for option in options:
        if error.flag in option.spellings and option.name in origins:
            where = origin_hint(error.flag.lstrip("-"), origins[option.name])
            if where and where not in (error.hint or ""):
                error.hint = f"{error.hint}; {where}" if error.hint else where


def job_options(ctx: Any) -> Iterator[Parameter]:
    """Every option of the commands that take a whole job."""
    root = ctx.find_root().command
    for verb in ("submit", "plan"):
        yield from root.get_command(ctx, verb).get_command(ctx, "mpi").declaration.options


class ArenaGroup(_DescribedByTyper, TyperGroup):
    """A group of commands: shows help when called alone, resolves aliases, suggests names."""

    takes_job = False
    summaries: ClassVar[Mapping[str, str]] = {}
    """The summaries of its commands, so that listing them imports none."""
    headings: ClassVar[Mapping[str, str]] = {}
    """The headings of the help, by the command that is first below each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the sub-command, which applies them."""
        if ctx.parent is None and args[:1] in (["--version"], ["-v"]):
            args = ["version", *args[1:]]
        state = _line_state(ctx)
        try:
            known = line_options(self.declaration.options, {})
            line = argv.parse_line(argv.PflagParser(known), args, leading=True)
        except argv.UnknownFlag as error:
            if "mpi" not in self.commands:
                raise
            hint = f"write the kind of job before its flags: {ctx.command_path} mpi"
            raise UsageError(error.message, hint=hint) from None
        # The sub-command prints warnings, once --loglevel is known.
        state.given = (*state.given, *line.given_options)
        if line.help or not line.positionals:
            _help(ctx)
        if ctx.parent is None and line.positionals[0] == HELP_COMMAND:
            return self.parse_args(ctx, [*line.positionals[1:], "--help"])
        state.warnings = (*state.warnings, *line.warnings)
        words = list(line.positionals)
        ctx.args = words
        return words

    def invoke(self, ctx: Any) -> Any:
        """Run the sub-command."""
        name, command, words = self.resolve_command(ctx, ctx.args)
        with command.make_context(name, words, parent=ctx) as below:
            return command.invoke(below)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands; none is imported."""
        del ctx
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name or by arena's alias."""
        return super().get_command(ctx, cmd_name) or super().get_command(
            ctx, ALIASES.get(cmd_name, cmd_name)
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word; UsageError suggests another."""
        if self.get_command(ctx, args[0]) is None:
            raise self.unknown(ctx, args[0])
        return super().resolve_command(ctx, args)

    def unknown(self, ctx: Any, name: str) -> UsageError:
        """The error of a command that does not exist."""
        if ctx.parent is None and name in UNSUPPORTED_ARENA_COMMANDS:
            return UsageError(
                f"arena's command {name} is not carried over", hint=UNSUPPORTED_ARENA_COMMANDS[name]
            )
        if "mpi" in self.commands:
            return UsageError(
                f"cannot submit {name} jobs: only MPI jobs are supported",
                hint=f"{ctx.command_path} mpi --name NAME --image IMAGE 'COMMAND'",
            )
        if ctx.parent is None and name in FOREIGN_COMMANDS:
            return UsageError(
                f'unknown command "{name}" for "{ctx.command_path}"',
                hint=f"{PROGRAM} {FOREIGN_COMMANDS[name]}",
            )
        names = [*self.list_commands(ctx), *ALIASES]
        return UsageError(
            f'unknown command "{name}" for "{ctx.command_path}"',
            hint=near(name, names, alike=NEAR_WORD) or f"{ctx.command_path} --help",
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below their headings, with whole summaries, then the options."""
        heading, below = "Commands", dict[str, list[tuple[str, str]]]()
        for name in self.commands:
            heading = self.headings.get(name, heading)
            below.setdefault(heading, []).append((name, self.summaries[name]))
        for heading, commands in below.items():
            with formatter.section(heading):
                # Click would truncate summaries to one line.
                _write_definitions(commands, formatter)
        _write_panels(self, ctx, formatter)


_ONLY_MPI = f"{PROGRAM} knows MPI jobs only; keep arena for this"

UNSUPPORTED_ARENA_COMMANDS = {
    "logviewer": f"{PROGRAM} logs JOB shows what it links to",
    **dict.fromkeys(
        ("cron", "evaluate", "llm", "model", "scalein", "scaleout", "serve"), _ONLY_MPI
    ),
}
"""Commands of arena that do not exist here, each with advice."""

_SUBMIT = "submit mpi --name NAME --image IMAGE 'COMMAND'"
FOREIGN_COMMANDS = {
    **dict.fromkeys(("run", "create", "apply", "sbatch", "srun", "salloc"), _SUBMIT),
    **dict.fromkeys(("ps", "jobs", "squeue", "sacct"), "list"),
    "sinfo": "top node",
    **dict.fromkeys(("cancel", "kill", "rm", "stop", "scancel"), "delete JOB"),
    **dict.fromkeys(("describe", "status", "show"), f"get JOB; the reason: {PROGRAM} why JOB"),
    **dict.fromkeys(("exec", "ssh"), "attach JOB -- COMMAND"),
}
"""Commands of kubectl, docker and Slurm, each with its equivalent here."""


_NON_BREAKING_HYPHEN = "\N{NON-BREAKING HYPHEN}"

_NAMES = 30
"""Columns that names of options have at most, as Click has them."""


def _write_definitions(records: Iterable[tuple[str, str]], formatter: Any) -> None:
    """Write names and texts in two columns, without a line break at a hyphen."""
    written = len(formatter.buffer)
    # On a narrow terminal the texts have three fifths, so that their words stay whole.
    most = min(_NAMES, formatter.width * 2 // 5)
    records = [(name, text.replace("-", _NON_BREAKING_HYPHEN)) for name, text in records]
    formatter.write_dl(records, col_max=most)
    formatter.buffer[written:] = [
        part.replace(_NON_BREAKING_HYPHEN, "-") for part in formatter.buffer[written:]
    ]


def _write_panels(command: Any, ctx: Any, formatter: Any, *, common: bool = False) -> None:
    """Write the options of a command by panel; with `everywhere` the global ones alone."""
    panels: dict[str, list[tuple[str, str]]] = {}
    options = {option.name: option for option in command.declaration.options}
    for param in command.get_params(ctx):
        option, record = options.get(param.name), param.get_help_record(ctx)
        if option is not None and record is not None:  # else it is an argument, or hidden
            # An optional value is joined to its flag by `=`.
            names = record[0].replace(" [=", "[=")
            help_text = command.declaration.help_of(option)
            panels.setdefault(option.panel, []).append((names, help_text))
    for title, records in panels.items():
        if (title == GLOBAL_PANEL) is common:
            with formatter.section(title):
                _write_definitions(records, formatter)
    if not common:
        formatter.write_paragraph()
        formatter.write_text(f"{PROGRAM} options shows the options that every command takes.")


def options_of_all(root: Any) -> str:
    """The help of the global options."""
    context = typer.Context(root, info_name=PROGRAM, **root.context_settings)
    formatter = context.make_formatter()
    _write_panels(root, context, formatter, common=True)
    text: str = formatter.getvalue()
    return text.lstrip("\n")


@command_from_records
def _take(common: CommonOptions) -> None:
    """Declare the options before a sub-command, which reads them again and uses them."""
    del common


def make_group(text: str, name: str) -> ArenaGroup:
    """A new group of commands, with the global options."""
    return ArenaGroup(
        name=name,
        callback=_take,
        help=text,
        rich_markup_mode=None,
        # Help is at most 120 columns wide, in a pipe as well.
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
