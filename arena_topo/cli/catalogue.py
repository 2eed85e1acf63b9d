"""The catalogue: every command, option and argument of the program, from the command tree.

Completion, the reference and the man pages are generated from it, so that all agree with the
parser. It imports every command, which is slow: no command uses it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_args

import typer

from arena_topo.cli.commands import ALIASES, old_spellings, variables
from arena_topo.cli.options import (
    GLOBAL_PANEL,
    PROGRAM,
    boolean,
    examples_of,
    help_of,
    hint_of,
)
from arena_topo.cli.root import ALSO, ROOT, Branch, Leaf, tree
from arena_topo.completion import SHELLS
from arena_topo.flag import Word, flag_of, kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of one command.

    `names` are its spellings, the short one first, `--no-x` last if there is one; `deprecated`
    spellings work with a warning. A switch has no `metavar`. `choices` are its values if they can
    be listed. `completes` are the kinds of `flag.KINDS` to offer, separated by spaces. `variables`
    are its environment variables, strongest first.
    """

    names: tuple[str, ...]
    metavar: str | None
    choices: tuple[str, ...]
    completes: str
    help: str
    panel: str
    repeats: bool
    hidden: bool
    variables: tuple[str, ...]
    deprecated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A positional argument of one command; `completes` is as for options."""

    metavar: str
    several: bool
    required: bool
    completes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command or a group of commands; the program itself has the empty path.

    `summary` is one sentence, `text` the help before the options, in paragraphs. `aliases` are
    other names for the last word of the path. `commands` are the names of a group's commands, in
    the order of the help, like the options, of which the global ones are last. `examples` are a
    comment and a command line after the program's name.
    """

    path: tuple[str, ...]
    summary: str
    text: str
    aliases: tuple[str, ...]
    arguments: tuple[Argument, ...]
    options: tuple[Option, ...]
    commands: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()


@cache
def commands() -> tuple[Command, ...]:
    """Every command and group, in the order of the help, each group before its commands.

    Aliases of whole commands (`job run`) are not among them.
    """
    return tuple(one for one in _every() if len(one.path) == 1 or one.path[:1] != (ALSO,))


def _every() -> Iterator[Command]:
    return _walk(ROOT, tree(), None, ())


def _walk(one: Leaf | Branch, made: Any, parent: Any, path: tuple[str, ...]) -> Iterator[Command]:
    context = typer.Context(
        made, info_name=path[-1] if path else PROGRAM, parent=parent, **made.context_settings
    )
    below = one.commands if isinstance(one, Branch) else {}
    params = made.get_params(context)
    options = [
        _option(param, hint_of(made, param.name), made, params)
        for param in params
        if param.param_type_name == "option"
    ]
    panels = sorted(
        dict.fromkeys(option.panel for option in options), key=lambda panel: panel == GLOBAL_PANEL
    )
    words = [param for param in params if param.param_type_name == "argument"]
    yield Command(
        path=path,
        summary=one.summary,
        text=inspect.cleandoc(made.help or one.summary),
        aliases=tuple(alias for alias, name in ALIASES.items() if path and name == path[-1]),
        arguments=tuple(
            _argument(param, hint_of(made, param.name), made, at) for at, param in enumerate(words)
        ),
        options=tuple(sorted(options, key=lambda option: panels.index(option.panel))),
        commands=tuple(below),
        examples=tuple(examples_of(made)),
    )
    for name, child in below.items():
        yield from _walk(child, made.commands[name], context, (*path, name))


def _option(param: Any, hint: Any, command: Any, params: list[Any]) -> Option:
    flag = flag_of(hint)
    names = (*sorted(param.opts, key=lambda name: name.startswith("--")), *param.secondary_opts)
    choices = (flag.choices if flag else ()) or _choices(hint)
    commas = bool(choices) and _is_set(kind_of(hint)[0])
    return Option(
        names=names,
        metavar=None if boolean(param) else param.metavar,
        choices=choices,
        completes="choices" if commas else flag.completes if flag else "",
        help=help_of(param, command, params),
        panel=getattr(param, "rich_help_panel", None) or GLOBAL_PANEL,
        repeats=bool(param.multiple),
        hidden=bool(param.hidden),
        # A group has none of its own: its commands apply the global options.
        variables=variables(takes_job=command.takes_job).get(param.name, ()),
        deprecated=tuple(
            old for old, new in old_spellings(takes_job=command.takes_job).items() if new in names
        ),
    )


def _argument(param: Any, hint: Any, command: Any, at: int) -> Argument:
    word = next((one for one in get_args(hint) if isinstance(one, Word)), None)
    metavar = param.metavar or param.name.upper()
    runs = command.named is not None and at >= command.named
    return Argument(
        metavar=metavar,
        several=param.nargs != 1,
        required=not metavar.startswith("[") and not command.takes_job,
        completes="command" if runs else word.completes if word else "",
    )


def _is_set(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, frozenset)


def _choices(hint: Any) -> tuple[str, ...]:
    """The values of an enumeration that its reader accepts; of a set those of its members."""
    kind = kind_of(hint)[0]
    if _is_set(kind):
        kind = get_args(vars(kind)["__orig_bases__"][0])[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(one.value for one in kind if one.value)
    return tuple(getattr(kind, "choices", ()))


# ---------------------------------------------------------------- the words of completion

_TITLE = "# Made of the command tree: python -m arena_topo.cli.catalogue > {path}\n"
WORDS = "arena_topo/completion/words.txt"
"""The file of `words`, from the root of the repository."""

_WIDE = 68
"""Characters of a description: beside the longest flag it still fits into 100 columns."""


def words() -> str:
    """The file that completion reads: commands, options and the program's own names.

    A section has a title, `[submit mpi]`; `[*]` has the global options, `[=NAME]` names of the
    program. In the section of a command, `+NAME ALIASES SUMMARY` is a sub-command, `.KINDS SEVERAL`
    an argument, every other line an option: `SPELLINGS KIND KINDS CHOICES HELP`, separated by TABs.
    Deprecated spellings begin with `~`. The kind is `s` for a switch, `v` for a value, `o` for a
    value that only `=` gives; then `r` if it is repeatable, `h` if it is hidden.
    """
    every = tuple(_every())
    program = every[0]
    sections = [("*", [_flag(one) for one in program.options if one.panel == GLOBAL_PANEL])]
    summaries = {one.path: one for one in every}
    for command in every:
        below = [summaries[*command.path, name] for name in command.commands]
        sections.append(
            (
                " ".join(command.path),
                [
                    *(
                        f"+{one.path[-1]}\t{' '.join(one.aliases)}\t{_brief(one.summary)}"
                        for one in below
                    ),
                    *(f".{one.completes}\t{'s' * one.several}" for one in command.arguments),
                    *(_flag(one) for one in command.options if one.panel != GLOBAL_PANEL),
                ],
            )
        )
    sections += [(f"={name}", lines) for name, lines in _own_names().items()]
    text = "".join(
        f"[{title}]\n" + "".join(f"{one}\n" for one in lines) for title, lines in sections
    )
    return _TITLE.format(path=WORDS) + text


def _flag(one: Option) -> str:
    only_joined = (one.metavar or "").startswith("[=")
    kind = "s" if one.metavar is None else "o" if only_joined else "v"
    return "\t".join(
        [
            " ".join([*one.names, *(f"~{old}" for old in one.deprecated)]),
            kind + "r" * one.repeats + "h" * one.hidden,
            one.completes,
            " ".join(one.choices),
            _brief(one.help),
        ]
    )


def _own_names() -> dict[str, list[str]]:
    from arena_topo.topology import presets  # noqa: PLC0415 - only to write them down

    known = presets.PRESETS.items()
    return {
        "presets": [f"{name}\t{_brief(preset.summary)}" for name, preset in known],
        "models": list(dict.fromkeys(preset.model for _, preset in known)),
        "levels": list(_LEVELS),
        "shells": list(SHELLS),
    }


_LEVELS = ("node", "nvlink", "leaf", "spine", "zone", "region")
"""What the help of --topology-required names, near to far."""


def _brief(text: str) -> str:
    """The first sentence of a help text, truncated if it is long, at a comma if possible."""
    first = re.split(r"\.( |$)|; | \(default", text, maxsplit=1)[0]
    if len(first) <= _WIDE:
        return first
    room = first[: _WIDE - len(" ...")]
    part = max((cut.start() for cut in re.finditer(r",| that | which ", room)), default=0)
    return room[: part if part > _WIDE // 2 else room.rindex(" ")] + " ..."


if __name__ == "__main__":
    sys.stdout.write(words())
