"""Commands and groups of the command line: parsing, settings, help.

`argv` reads the words; Typer converts the values and holds the tree and the help. Nothing here
depends on which click Typer brings along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from arena_topo import argv
from arena_topo.cli.options import (
    GLOBAL_PANEL,
    PROGRAM,
    Colour,
    Globals,
    LogLevel,
    boolean,
    check_together,
    declared_flags,
    environment,
    examples_of,
    help_of,
    listen,
    renamed,
    show,
    spread,
    warn,
)
from arena_topo.cli.settings import (
    LINE,
    Layer,
    Value,
    agreed,
    from_environment,
    in_force,
    merged,
    set_in,
)
from arena_topo.cli.settings import read as settings
from arena_topo.cli.terminal import COLOUR, keep_styles
from arena_topo.errors import UsageError, near

ALIASES = {"ls": "list", "log": "logs", "del": "delete", "mpijob": "mpi", "mj": "mpi"}
"""Short names of commands, arena's own; they work but are not listed."""

HELP = "help"
"""`help COMMAND` shows the help of a command, as in every program of cobra's."""

_ALONE = {"dry_run": "client"}
"""The values of options that stand without one (pflag's NoOptDefVal)."""


@dataclass(slots=True)
class _Said:
    """What was read of the line so far: options of groups, which their commands use, and others.

    `command` is the command of a job file, `dash` the number of words before `--`.
    """

    given: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()
    command: str | None = None
    dash: int | None = None


def _said(ctx: Any) -> _Said:
    """The record that the contexts of a line share."""
    said: _Said = ctx.meta.setdefault("arena_topo.said", _Said())
    return said


@cache
def variables(*, takes_job: bool) -> Mapping[str, tuple[str, ...]]:
    """The environment variables of each option, strongest first."""
    if not takes_job:
        return environment(Globals)
    from arena_topo.job import MPIJob  # noqa: PLC0415 - other commands do without it

    return {**environment(MPIJob), **environment(Globals)}


@cache
def old_spellings(*, takes_job: bool) -> Mapping[str, str]:
    """Deprecated spellings of options, each with the current spelling."""
    everywhere = {"--allNamespaces": "--all-namespaces"}
    if not takes_job:
        return everywhere
    from arena_topo.job import MPIJob  # noqa: PLC0415 - other commands do without it

    return {**everywhere, **renamed(MPIJob)}


class ArenaCommand(TyperCommand):
    """A command whose words are read as pflag reads them.

    A `steady` command works with invalid settings, and ignores them. The metavars of its arguments
    decide how they are read: COMMAND is a command to run; as first argument it is that of a job.
    """

    steady = False

    @property
    def metavars(self) -> list[str]:
        """The names of its arguments in the help."""
        return [str(one.metavar) for one in self.params if one.param_type_name == "argument"]

    @property
    def named(self) -> int | None:
        """The number of words before a command to run; None for a command that runs none."""
        return next((at for at, one in enumerate(self.metavars) if "COMMAND" in one), None)

    @property
    def takes_job(self) -> bool:
        """Whether it has the options of a job, reads job files, and uses settings of jobs."""
        return self.named == 0

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line, merge options of groups, variables and settings, and pass all to Typer."""
        params, said = self.get_params(ctx), _said(ctx)
        options = options_of(params, old_spellings(takes_job=self.takes_job))
        reader = argv.Reader(options, launches=self.named is not None, named=self.named or 0)
        line = argv.read(reader, args)
        said.given, said.dash = (*said.given, *line.given), line.dash
        if line.help:
            _help(ctx)
        layers = self._layers(ctx, params)
        in_force.set(layers)
        said.values = agreed(merged(params, layers), declared_flags(self))
        _listen(said.values)
        for warning in (*said.warnings, *line.warnings):
            warn(warning)
        words = _for_parser(params, said.values)
        try:
            return super().parse_args(ctx, [*words, "--", *self._positional(ctx, line.words)])
        except UsageError as error:
            name_origin(error, params, said.values)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about an option names its source, if that is not the line."""
        try:
            check_together(ctx)
            return super().invoke(ctx)
        except UsageError as error:
            name_origin(error, self.get_params(ctx), _said(ctx).values)
            raise

    def _layers(self, ctx: Any, params: Sequence[Any]) -> tuple[Layer, ...]:
        """Every source of options, strongest first."""
        said = _said(ctx)
        above = (
            Layer(LINE, said.given),
            *self._job_file(ctx, params),
            *from_environment(params, variables(takes_job=self.takes_job)),
        )
        try:
            found = settings(
                params, above=above, of_jobs=partial(of_jobs, ctx) if self.takes_job else None
            )
        except UsageError as error:
            if not self.steady:
                raise
            warn(f"{error.message}; settings are left out")
            return above
        if not self.steady:
            said.warnings = (*said.warnings, *found.warnings)
        return (*above, *found.layers)

    def _job_file(self, ctx: Any, params: Sequence[Any]) -> Iterable[Layer]:
        """The layers of the job file, if one is given."""
        said = _said(ctx)
        path = dict(said.given).get("file") if self.takes_job else None
        if not path:
            return ()
        from arena_topo.cli import jobfile  # noqa: PLC0415 - only for files

        job = jobfile.read(path, params, said.given)
        said.command = job.command
        return job.layers

    def _positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The words that Typer gets; UsageError where one is missing."""
        said = _said(ctx)
        if self.takes_job:
            # The command as one shell string: that of the line, else that of the job file.
            command = argv.shell_command(words) if words else said.command
            return [] if command is None else [command]
        if words and self.named is not None and said.dash == 0:
            raise UsageError(
                f"expected '{ctx.info_name} JOB_NAME [ARG1] [ARG2] ... [ARGN]'. "
                f"JOB_NAME is required argument for the {ctx.info_name} command",
                hint=f"{ctx.command_path} JOB -- COMMAND",
            )
        word = next(iter(self.metavars), "[]").removesuffix("...")
        if words or word[0] == "[":
            return words
        flags = declared_flags(self)
        if any(word in flags[one.name][0].excludes for one in said.values if one.name in flags):
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
        needed = {
            f"[{one.metavar}]": str(one.metavar)
            for one in self.get_params(ctx)
            if one.param_type_name == "argument" and not self.takes_job
        }
        return [needed.get(piece, piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description of the command, then its examples."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Examples"):
            for what, line in examples_of(self):
                # Never wrapped: an example is copied.
                formatter.write(f"  # {what}\n  {shell_line(line)}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options grouped by panel, in the order of their declaration."""
        _write_panels(self.get_params(ctx), ctx, formatter)


def shell_line(words: str) -> str:
    """An example as a shell command, with a continued line for each line feed."""
    return f"{PROGRAM} {words}".replace("\n", " \\\n      ")


def options_of(params: Iterable[Any], old: Mapping[str, str]) -> list[argv.Option]:
    """The options of a command for the reader of its line."""
    return [
        argv.Option(
            param.name,
            [text for text in param.opts if text.startswith("-")],
            old=[before for before, now in old.items() if now in param.opts],
            switch=boolean(param),
            alone=_ALONE.get(param.name, ""),
            hidden=param.hidden,
        )
        for param in params
        if param.param_type_name == "option"
    ]


def _for_parser(params: Iterable[Any], values: Iterable[Value]) -> list[str]:
    """The options in the one form that every parser reads alike: `--NAME=VALUE`, or a switch."""
    by_name = {param.name: param for param in params}
    switches: dict[str, list[str]] = {}
    words: list[str] = []
    for one in values:
        param = by_name[one.name]
        long = next(text for text in param.opts if text.startswith("--"))
        if boolean(param):
            # A switch that is off by default has no word for off.
            switches[long] = [long] if one.text == "true" else param.secondary_opts[:1]
        else:
            words.append(f"{long}={one.text}")
    return [*(word for said in switches.values() for word in said), *words]


def _help(ctx: Any) -> NoReturn:
    """Show the help of a command, and end."""
    show(ctx.get_help() + "\n")
    ctx.exit()
    raise AssertionError("exit does not come back")


def _listen(values: Iterable[Value]) -> None:
    """Apply the options about messages and colours; invalid values are refused later."""
    said = {one.name: one.text for one in values}
    level = said.get("loglevel", LogLevel.INFO)
    if level in set(LogLevel):
        listen(LogLevel(level), quiet=said.get("quiet") == "true")
    if said.get("color") in set(Colour):
        COLOUR.set(said["color"])
        keep_styles()


def name_origin(error: UsageError, params: Iterable[Any], values: Iterable[Value]) -> None:
    """Add to an error about an option where that was set, unless on the line."""
    origins = {one.name: one.origin for one in values}
    for param in params:
        if error.flag in param.opts and param.name in origins:
            where = set_in(error.flag.lstrip("-"), origins[param.name])
            if where and where not in (error.hint or ""):
                error.hint = f"{error.hint}; {where}" if error.hint else where


def of_jobs(ctx: Any) -> Iterator[Any]:
    """Every option of the commands that take a whole job."""
    root = ctx.find_root().command
    for verb in ("submit", "plan"):
        yield from root.get_command(ctx, verb).get_command(ctx, "mpi").get_params(ctx)


class ArenaGroup(TyperGroup):
    """A group of commands: shows help when called alone, resolves aliases, suggests names."""

    takes_job = False
    summaries: ClassVar[Mapping[str, str]] = {}
    """The summaries of its commands, so that listing them imports none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the sub-command, which applies them."""
        if ctx.parent is None and args[:1] in (["--version"], ["-v"]):
            args = ["version", *args[1:]]
        said = _said(ctx)
        try:
            line = argv.read(argv.Reader(options_of(self.get_params(ctx), {})), args, leading=True)
        except argv.UnknownFlag as error:
            if "mpi" not in self.commands:
                raise
            hint = f"say the kind of job before its flags: {ctx.command_path} mpi"
            raise UsageError(error.message, hint=hint) from None
        # The sub-command prints warnings, once --loglevel is known.
        said.given = (*said.given, *line.given)
        if line.help or not line.words:
            _help(ctx)
        if ctx.parent is None and line.words[0] == HELP:
            return self.parse_args(ctx, [*line.words[1:], "--help"])
        said.warnings = (*said.warnings, *line.warnings)
        return super().parse_args(ctx, list(line.words))

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
        if ctx.parent is None and name in NOT_CARRIED_OVER:
            return UsageError(
                f"arena's command {name} is not carried over", hint=NOT_CARRIED_OVER[name]
            )
        if "mpi" in self.commands:
            return UsageError(
                f"cannot submit {name} jobs: only MPI jobs are supported",
                hint=f"{ctx.command_path} mpi --name NAME --image IMAGE 'COMMAND'",
            )
        if ctx.parent is None and name in HABITS:
            return UsageError(
                f'unknown command "{name}" for "{ctx.command_path}"',
                hint=f"{PROGRAM} {HABITS[name]}",
            )
        names = [*self.list_commands(ctx), *ALIASES]
        return UsageError(
            f'unknown command "{name}" for "{ctx.command_path}"',
            hint=near(name, names) or f"{ctx.command_path} --help",
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its whole summary, then the options."""
        with formatter.section("Commands"):
            # Click would truncate summaries to one line.
            _write_definitions([(name, self.summaries[name]) for name in self.commands], formatter)
        _write_panels(self.get_params(ctx), ctx, formatter)


_ONLY_MPI = f"{PROGRAM} knows MPI jobs only; keep arena for this"

NOT_CARRIED_OVER = {
    "logviewer": f"{PROGRAM} logs JOB shows what it links to",
    **dict.fromkeys(
        ("cron", "evaluate", "llm", "model", "scalein", "scaleout", "serve"), _ONLY_MPI
    ),
}
"""Commands of arena that do not exist here, each with advice."""

_SUBMIT = "submit mpi --name NAME --image IMAGE 'COMMAND'"
HABITS = {
    **dict.fromkeys(("run", "create", "apply", "sbatch", "srun", "salloc"), _SUBMIT),
    **dict.fromkeys(("ps", "jobs", "squeue", "sacct"), "list"),
    "sinfo": "top node",
    **dict.fromkeys(("cancel", "kill", "rm", "stop", "scancel"), "delete JOB"),
    **dict.fromkeys(("describe", "status", "show"), f"get JOB; the reason: {PROGRAM} why JOB"),
    **dict.fromkeys(("exec", "ssh"), "attach JOB -- COMMAND"),
}
"""Commands of kubectl, docker and Slurm, each with its equivalent here."""


_GLUE = "\N{NON-BREAKING HYPHEN}"

_NAMES = 30
"""Columns that names of options have at most, as Click has them."""


def _write_definitions(records: Iterable[tuple[str, str]], formatter: Any) -> None:
    """Write names and texts in two columns, without a line break at a hyphen."""
    written = len(formatter.buffer)
    # On a narrow terminal the texts have three fifths, so that their words stay whole.
    most = min(_NAMES, formatter.width * 2 // 5)
    records = [(name, text.replace("-", _GLUE)) for name, text in records]
    formatter.write_dl(records, col_max=most)
    formatter.buffer[written:] = [part.replace(_GLUE, "-") for part in formatter.buffer[written:]]


def _write_panels(
    params: Iterable[Any], ctx: Any, formatter: Any, *, everywhere: bool = False
) -> None:
    """Write the options of a command by panel; with `everywhere` the global ones alone."""
    panels: dict[str, list[tuple[str, str]]] = {}
    params = list(params)
    for param in params:
        record = param.get_help_record(ctx)
        if record is None or param.param_type_name != "option":
            continue
        panel = getattr(param, "rich_help_panel", None) or GLOBAL_PANEL
        names, text = record[0], help_of(param, ctx.command, params)
        # An optional value is joined to its flag by `=`.
        panels.setdefault(panel, []).append((names.replace(" [=", "[="), text))
    for title, records in panels.items():
        if (title == GLOBAL_PANEL) is everywhere:
            with formatter.section(title):
                _write_definitions(records, formatter)
    if not everywhere:
        formatter.write_paragraph()
        formatter.write_text(f"{PROGRAM} options shows the options that every command takes.")


def options_of_all(root: Any) -> str:
    """The help of the global options."""
    context = typer.Context(root, info_name=PROGRAM, **root.context_settings)
    formatter = context.make_formatter()
    _write_panels(root.get_params(context), context, formatter, everywhere=True)
    text: str = formatter.getvalue()
    return text.lstrip("\n")


def group(text: str) -> typer.Typer:
    """A new group of commands, with the global options."""

    def take(everywhere: Globals) -> None:
        # Read again, and used, by the sub-command.
        del everywhere

    return typer.Typer(
        cls=ArenaGroup,
        callback=spread(take),
        help=text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        # Help is at most 120 columns wide, in a pipe as well.
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
