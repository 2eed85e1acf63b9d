"""The kinds of commands and groups; how their words are read and their help is laid out.

`pflag` reads the words; Typer fills in the commands and keeps the tree, the help and the
completion. Nothing here depends on which click Typer brings along.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from arena_topo.cli.options import GLOBAL_PANEL, PROGRAM, RENAMED, Globals, environment, say, spread
from arena_topo.cli.pflag import Reader, boolean, for_parser, shell_command, truth
from arena_topo.errors import UsageError
from arena_topo.job import MPIJob

ALIASES = {"ls": "list", "log": "logs", "del": "delete", "mpijob": "mpi", "mj": "mpi"}
"""Short names of commands, arena's own; they work but are not listed."""

COMPLETE_VARIABLE = "_ARENA_TOPO_COMPLETE"
"""Set by the completion scripts when they ask the program for words."""

_NO_LIMIT = 1000
"""Characters of a summary; the formatter wraps what is longer than a line."""
_SAID = "arena_topo.said"
"""Where groups leave the options said before the sub-command, in the meta of the context."""


def _fromenvironment(
    params: Iterable[Any], variables: Mapping[str, tuple[str, ...]], given: set[str]
) -> Iterator[tuple[str, str, str]]:
    """(parameter, value, variable) for what the line leaves open and the environment says."""
    for param in params:
        for variable in variables.get(param.name, ()) if param.name not in given else ():
            text = os.environ.get(variable, "")
            if text:
                yield param.name, truth(variable, text) if boolean(param) else text, variable
                break


class ArenaCommand(TyperCommand):
    """A command whose words are read as pflag reads them."""

    launches: ClassVar[bool] = False
    variables: ClassVar[Mapping[str, tuple[str, ...]]] = environment(Globals)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the line, with what groups and the environment say, and let Typer fill it in."""
        if ctx.resilient_parsing:  # completion hands over lines that are not finished
            return super().parse_args(ctx, args)
        params = self.get_params(ctx)
        line = Reader(params, renamed=RENAMED, launches=self.launches).read(args)
        if line.help:
            return super().parse_args(ctx, ["--help"])
        for warning in line.warnings:
            say(warning)
        given = (*ctx.meta.get(_SAID, ()), *line.given)
        known = {name for name, _value in given}
        ambient = list(_fromenvironment(params, self.variables, known))
        variables = {name: variable for name, _value, variable in ambient}
        options = for_parser(params, [*(one[:2] for one in ambient), *given])
        try:
            return super().parse_args(ctx, [*options, "--", *self.positional(ctx, line.words)])
        except UsageError as error:
            said = error.message.partition(" ")[0]
            for param in params:
                if said in param.opts and param.name in variables:
                    error.hint = f"{variables[param.name]} is set in the environment"
            raise

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The words that Typer gets."""
        del ctx
        return words

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options grouped by panel, in the order of their declaration."""
        _write_panels(self.get_params(ctx), ctx, formatter)


class NamedCommand(ArenaCommand):
    """A command about a job; without a name it shows its help and ends with arena's words."""

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The names, of which there must be one."""
        if not words:
            typer.echo(ctx.get_help())
            raise UsageError("not set job name,please set it")
        return words


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
    variables: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **environment(MPIJob),
        **environment(Globals),
    }

    def positional(self, ctx: Any, words: Sequence[str]) -> Sequence[str]:
        """The command as one shell string."""
        del ctx
        return [shell_command(words)] if words else []


class ArenaGroup(TyperGroup):
    """A group of commands: shows its help when called alone, knows aliases, suggests names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the options said before the sub-command for the sub-command to read."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        line = Reader(self.get_params(ctx), renamed=RENAMED, leading=True).read(args)
        if line.help or not line.words:
            return super().parse_args(ctx, ["--help"])
        for warning in line.warnings:
            say(warning)
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
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            raise self.unknown(ctx, args[0])
        return super().resolve_command(ctx, args)

    def unknown(self, ctx: Any, name: str) -> UsageError:
        """What to say of a command that there is not."""
        names = [*self.list_commands(ctx), *ALIASES]
        near = difflib.get_close_matches(name, names, n=1)
        return UsageError(
            f'unknown command "{name}" for "{ctx.command_path}"',
            hint=f"did you mean {near[0]}?" if near else f"{ctx.command_path} --help",
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its whole summary, then the options."""
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_NO_LIMIT)) for name, one in shown])
        _write_panels(self.get_params(ctx), ctx, formatter)


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
        (everywhere if panel == GLOBAL_PANEL else panels.setdefault(panel, [])).append(record)
    for title, records in (*panels.items(), (GLOBAL_PANEL, everywhere)):
        with formatter.section(title):
            formatter.write_dl(records)


def group(text: str, cls: type[ArenaGroup] = ArenaGroup, *, completes: bool = False) -> typer.Typer:
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
        add_completion=completes,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
