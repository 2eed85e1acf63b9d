"""The kinds of commands and groups; how their words are read and their help is laid out.

`pflag` reads the words; Typer fills in the commands and keeps the tree and the help. Nothing here
depends on which click Typer brings along.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    display,
    environment,
    listen,
    renamed,
    say,
    spread,
)
from arena_topo.cli.settings import (
    LINE,
    Layer,
    Value,
    from_environment,
    in_force,
    merged,
    set_in,
    sound,
)
from arena_topo.cli.settings import read as settings
from arena_topo.cli.terminal import COLOUR
from arena_topo.errors import UsageError

ALIASES = {"ls": "list", "log": "logs", "del": "delete", "mpijob": "mpi", "mj": "mpi"}
"""Short names of commands, arena's own; they work but are not listed."""

HELP = "help"
"""The command before the name of another that shows its help; every program of cobra's has it."""

_ALONE = {"dry_run": "client"}
"""What an option means that stands without a value (pflag's NoOptDefVal)."""

_COMMAND = "arena_topo.command"
"""Where the command of a job file is left, in the meta of the context."""
_DASH = "arena_topo.dash"
"""Where a command leaves how many words stood before `--`."""
_SAID = "arena_topo.said"
"""Where groups leave the options said before the sub-command, in the meta of the context."""
_WARNINGS = "arena_topo.warnings"
"""Where they leave what to warn of."""
_VALUES = "arena_topo.values"
"""Where a command leaves what counts, and where that comes from."""
_ABOUT = re.compile(r"there is no (context|cluster|user|profile) ")
"""What errors say of an entry that the options name."""


class ArenaCommand(TyperCommand):
    """A command whose words are read as pflag reads them."""

    launches: ClassVar[bool] = False
    named: ClassVar[int] = 0
    reads_jobs: ClassVar[bool] = False
    needs_settings: ClassVar[bool] = True

    @classmethod
    @cache
    def variables(cls) -> Mapping[str, tuple[str, ...]]:
        """Which variables of the environment stand for which option, best first."""
        return environment(Globals)

    @classmethod
    @cache
    def renamed(cls) -> Mapping[str, str]:
        """Old spellings of options, and what they are now."""
        return {"--allNamespaces": "--all-namespaces"}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line, with what groups and the environment say, and let Typer fill it in."""
        params = self.get_params(ctx)
        options = options_of(params, self.renamed())
        reader = argv.Reader(options, launches=self.launches, named=self.named)
        line = argv.read(reader, args)
        if line.help:
            _help(ctx, line.given)
        layers = tuple(self._layers(ctx, params, (*ctx.meta.get(_SAID, ()), *line.given)))
        in_force.set(layers)
        values = merged(params, layers)
        _listen(values)
        for warning in (*ctx.meta.get(_WARNINGS, ()), *line.warnings):
            say(warning, LogLevel.WARN)
        ctx.meta[_VALUES], ctx.meta[_DASH] = values, line.dash
        words = _for_parser(params, values)
        try:
            return super().parse_args(ctx, [*words, "--", *self.positional(ctx, line.words)])
        except UsageError as error:
            _blame(error, params, values)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Do it; an error about an option says where that was set, if not on the line."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _blame(error, self.get_params(ctx), ctx.meta.get(_VALUES, ()))
            raise

    def extra_layers(self, ctx: Any, given: Sequence[tuple[str, str]]) -> Iterable[Layer]:
        """What else than the line, the environment and settings says something; none here.

        `given` are the options of the line. It goes before the environment.
        """
        del ctx, given
        return ()

    def amiss(self, error: UsageError) -> None:
        """What becomes of something wrong in the files of settings: the command ends."""
        raise error

    def _layers(
        self, ctx: Any, params: Sequence[Any], given: tuple[tuple[str, str], ...]
    ) -> Iterator[Layer]:
        """Every source of options, firmest first."""
        above = [
            Layer(LINE, given),
            *self.extra_layers(ctx, given),
            *from_environment(params, self.variables(), {name for name, _ in given}),
        ]
        yield from above
        name, origin = "", ""
        for one in merged(params, above):
            if one.name == "profile":
                name, origin = one.text, one.origin
        odd: list[str] = []
        try:
            found = settings(self.amiss, odd.append)
            profile, _ = found.profile(name, origin)
            # A slip in a table that is for other commands is one all the same.
            known = partial(of_jobs, ctx) if self.needs_settings else None
            below = tuple(found.layers(params, profile, known, of_jobs=self.reads_jobs))
        except UsageError as error:
            if self.needs_settings:
                raise
            say(f"warning: {error.message}; settings are left out", LogLevel.WARN)
        else:
            if self.needs_settings:
                warnings = (f"warning: {one}" for one in dict.fromkeys(odd))
                ctx.meta[_WARNINGS] = (*ctx.meta.get(_WARNINGS, ()), *warnings)
            yield from below

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The words that Typer gets."""
        del ctx
        return words

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the usage has: only what may be missing stands in brackets.

        Typer takes every word for one of those, as the commands say themselves what is missing.
        """
        needed = {
            f"[{one.metavar}]": str(one.metavar)
            for one in self.get_params(ctx)
            if one.param_type_name == "argument" and not self.reads_jobs
        }
        return [needed.get(piece, piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options grouped by panel, in the order of their declaration."""
        _write_panels(self.get_params(ctx), ctx, formatter)


def options_of(params: Iterable[Any], old: Mapping[str, str]) -> list[argv.Option]:
    """The options of a command, as the reader of its line knows them."""
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
    """The same options in the one form that every parser reads alike; switches are worked out."""
    by_name = {param.name: param for param in params}
    switches: dict[str, list[str]] = {}
    words: list[str] = []
    for one in values:
        param = by_name[one.name]
        long = next(text for text in param.opts if text.startswith("--"))
        if boolean(param):
            # What is off unless it is said has no word for that.
            switches[long] = [long] if one.text == "true" else param.secondary_opts[:1]
        else:
            words.append(f"{long}={one.text}")
    return [*(word for said in switches.values() for word in said), *words]


def _help(ctx: Any, given: Iterable[tuple[str, str]]) -> NoReturn:
    """Show the help of a command, coloured as the line says, and end."""
    for name, text in (*ctx.meta.get(_SAID, ()), *given):
        if name == "color" and text in set(Colour):
            COLOUR.set(text)
    display(ctx.get_help() + "\n")
    ctx.exit()
    raise AssertionError("exit does not come back")


def _listen(values: Iterable[Value]) -> None:
    """Tell as much as the options say; what makes no sense is refused a moment later."""
    said = {one.name: one.text for one in values}
    level = said.get("loglevel", LogLevel.INFO)
    if level in set(LogLevel):
        listen(LogLevel(level), quiet=said.get("quiet") == "true")
    if said.get("color") in set(Colour):
        COLOUR.set(said["color"])


def _blame(error: UsageError, params: Iterable[Any], values: Iterable[Value]) -> None:
    """Say where the value stands that an error is about, unless that is the line."""
    about = _ABOUT.search(error.message)
    flag = f"--{about[1]}" if about else error.message.partition(" ")[0]
    origins = {one.name: one.origin for one in values}
    for param in params:
        if flag in param.opts and param.name in origins:
            where = set_in(flag.lstrip("-"), origins[param.name])
            if where and where not in (error.hint or ""):
                error.hint = f"{error.hint}; {where}" if error.hint else where


def of_jobs(ctx: Any) -> Iterator[Any]:
    """Every option that the commands about a job's request have."""
    root = ctx.find_root().command
    for verb in ("submit", "plan"):
        yield from root.get_command(ctx, verb).get_command(ctx, "mpi").get_params(ctx)


class SteadyCommand(ArenaCommand):
    """A command that works whatever the files of settings say."""

    needs_settings = False


class ConfigCommand(ArenaCommand):
    """`config`: reads what the files say of jobs as well; says itself what is wrong in them."""

    reads_jobs = True

    def amiss(self, error: UsageError) -> None:
        """Nothing yet: the command looks again."""
        del error

    def _layers(
        self, ctx: Any, params: Sequence[Any], given: tuple[tuple[str, str], ...]
    ) -> Iterator[Layer]:
        for one in super()._layers(ctx, params, given):
            said = one.origin == LINE or one.origin in os.environ
            yield one if said else sound(one, params, self.amiss)


class NamedCommand(ArenaCommand):
    """A command about a job; without a name it ends with arena's words."""

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The names, of which there must be one."""
        if not words:
            usage = " ".join([ctx.command_path, *self.collect_usage_pieces(ctx)])
            raise UsageError("not set job name,please set it", hint=f"{usage}; --help says more")
        return words


class LogsCommand(NamedCommand):
    """A command about a job, or about files that are named instead of one (`--from`)."""

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The name; an empty one where there are files."""
        if not words and any(one.name == "files" for one in ctx.meta[_VALUES]):
            return [""]
        return super().positional(ctx, words)


class ExecCommand(NamedCommand):
    """A command about a job that runs a command in it: the words after the name."""

    launches = True
    named = 1

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The name, then the command; UsageError, in arena's words, where `--` comes first."""
        if words and ctx.meta.get(_DASH) == 0:
            raise UsageError(
                f"expected '{ctx.info_name} JOB_NAME [ARG1] [ARG2] ... [ARGN]'. "
                f"JOB_NAME is required argument for the {ctx.info_name} command",
                hint=f"{ctx.command_path} JOB -- COMMAND",
            )
        return super().positional(ctx, words)


class NodesCommand(ArenaCommand):
    """A command about nodes, of which it takes at least one."""

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The names, of which there must be one."""
        del ctx
        if not words:
            raise UsageError("which nodes?", hint=f"name them; {PROGRAM} nodes list shows them all")
        return words


class JobCommand(ArenaCommand):
    """A command that takes all of a job: its flags, and the command to run as words."""

    launches = True
    reads_jobs = True

    @classmethod
    @cache
    def variables(cls) -> Mapping[str, tuple[str, ...]]:
        """Those of the job's flags too."""
        from arena_topo.job import MPIJob  # noqa: PLC0415 - other commands do without it

        return {**environment(MPIJob), **super().variables()}

    @classmethod
    @cache
    def renamed(cls) -> Mapping[str, str]:
        """Those of the job's flags too."""
        from arena_topo.job import MPIJob  # noqa: PLC0415 - other commands do without it

        return {**super().renamed(), **renamed(MPIJob)}

    def extra_layers(self, ctx: Any, given: Sequence[tuple[str, str]]) -> Iterable[Layer]:
        """What the job file says, if there is one."""
        path = dict(given).get("file")
        if not path:
            return ()
        from arena_topo.cli import jobfile  # noqa: PLC0415 - only for files

        job = jobfile.read(path, self.get_params(ctx), given)
        ctx.meta[_COMMAND] = job.command
        return job.layers

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The command as one shell string: that of the line, else that of the job file."""
        if words:
            return [argv.shell_command(words)]
        command = ctx.meta.get(_COMMAND)
        return [] if command is None else [command]


class ArenaGroup(TyperGroup):
    """A group of commands: shows its help when called alone, knows aliases, suggests names."""

    summaries: ClassVar[Mapping[str, str]] = {}
    """What each command does, so that none is made only to be listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the options said before the sub-command for the sub-command to read."""
        line = argv.read(argv.Reader(options_of(self.get_params(ctx), {})), args, leading=True)
        if line.help or not line.words:
            _help(ctx, line.given)
        if ctx.parent is None and line.words[0] == HELP:
            return self.parse_args(ctx, [*args[: -len(line.words)], *line.words[1:], "--help"])
        # The sub-command passes them on, once it knows how much is to be told.
        ctx.meta[_WARNINGS] = (*ctx.meta.get(_WARNINGS, ()), *line.warnings)
        ctx.meta[_SAID] = (*ctx.meta.get(_SAID, ()), *line.given)
        return super().parse_args(ctx, list(line.words))

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, none of which is made for that."""
        del ctx
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name or by arena's short name for it."""
        return super().get_command(ctx, cmd_name) or super().get_command(
            ctx, ALIASES.get(cmd_name, cmd_name)
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; UsageError suggests another."""
        if self.get_command(ctx, args[0]) is None:
            raise self.unknown(ctx, args[0])
        return super().resolve_command(ctx, args)

    def unknown(self, ctx: Any, name: str) -> UsageError:
        """What to say of a command that there is not."""
        if ctx.parent is None and name in NOT_CARRIED_OVER:
            return UsageError(
                f"arena's command {name} is not carried over", hint=NOT_CARRIED_OVER[name]
            )
        names = [*self.list_commands(ctx), *ALIASES]
        near = difflib.get_close_matches(name, names, n=1)
        return UsageError(
            f'unknown command "{name}" for "{ctx.command_path}"',
            hint=f"did you mean {near[0]}?" if near else f"{ctx.command_path} --help",
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its whole summary, then the options."""
        with formatter.section("Commands"):
            # A summary that is cut off to the width of a line says nothing.
            formatter.write_dl([(name, self.summaries[name]) for name in self.commands])
        _write_panels(self.get_params(ctx), ctx, formatter)


_ONLY_MPI = f"{PROGRAM} knows MPI jobs only; keep arena for this"

NOT_CARRIED_OVER = {
    "logviewer": f"{PROGRAM} logs JOB shows what it links to",
    **dict.fromkeys(
        ("cron", "evaluate", "llm", "model", "scalein", "scaleout", "serve"), _ONLY_MPI
    ),
}
"""Commands of arena that are not here, and what to do instead."""

OTHER_KINDS = frozenset(
    {
        *("tf", "tfjob", "tensorflow", "py", "pytorch", "pytorchjob", "horovod", "horovodjob"),
        *("volcano", "volcanojob", "et", "etjob", "elastictraining", "spark", "sparkjob"),
        *("dp", "deepspeed", "deepspeedjob", "ray", "rayjob", "rj", "cron", "serve"),
    }
)
"""Kinds of jobs that arena knows and arena-topo does not."""


class SubmitGroup(ArenaGroup):
    """`submit`: only MPI jobs; the other kinds of arena get an answer of their own."""

    def unknown(self, ctx: Any, name: str) -> UsageError:
        """What to say of another kind of job."""
        if name.lower() in OTHER_KINDS:
            return UsageError(
                f"cannot submit {name} jobs: only MPI jobs are supported",
                hint=f"{ctx.command_path} mpi --name NAME --image IMAGE 'COMMAND'",
            )
        return super().unknown(ctx, name)


def _write_panels(params: Iterable[Any], ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    everywhere: list[tuple[str, str]] = []
    for param in params:
        record = param.get_help_record(ctx)
        if record is None or param.param_type_name != "option":
            continue
        panel = getattr(param, "rich_help_panel", None) or GLOBAL_PANEL
        names, text = record
        # A value that only `=` joins to its flag is shown so.
        written = (names.replace(" [=", "[="), text)
        (everywhere if panel == GLOBAL_PANEL else panels.setdefault(panel, [])).append(written)
    for title, records in (*panels.items(), (GLOBAL_PANEL, everywhere)):
        with formatter.section(title):
            formatter.write_dl(records)


def group(text: str, cls: type[ArenaGroup] = ArenaGroup) -> typer.Typer:
    """Start a group of commands that also takes the global options."""

    def take(everywhere: Globals) -> None:
        # Read again, and used, by the sub-command.
        del everywhere

    return typer.Typer(
        cls=cls,
        callback=spread(take),
        help=text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        # Lines of help are as long as reads well; in a pipe they are as long as anywhere.
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
