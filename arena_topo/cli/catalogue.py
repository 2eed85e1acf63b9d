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
from functools import cache
from typing import Any

from arena_topo.cli.commands import ALIASES, old_spellings, variables
from arena_topo.cli.options import GLOBAL_PANEL
from arena_topo.cli.parameters import Declaration, Parameter
from arena_topo.cli.root import ALSO, ROOT, Branch, Leaf, command_tree
from arena_topo.completion import SHELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueOption:
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
    options: tuple[CatalogueOption, ...]
    commands: tuple[str, ...]
    examples: tuple[tuple[str, str], ...] = ()


@cache
def commands() -> tuple[Command, ...]:
    """Every command and group, in the order of the help, each group before its commands.

    Aliases of whole commands (`job run`) are not among them.
    """
    return tuple(
        command for command in _every() if len(command.path) == 1 or command.path[:1] != (ALSO,)
    )


def _every() -> Iterator[Command]:
    return _walk(ROOT, command_tree(), ())


def _walk(leaf: Leaf | Branch, command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    below = leaf.commands if isinstance(leaf, Branch) else {}
    declaration: Declaration = command.declaration
    options = [_option(option, command) for option in declaration.options]
    panels = sorted(
        dict.fromkeys(option.panel for option in options), key=lambda panel: panel == GLOBAL_PANEL
    )
    yield Command(
        path=path,
        summary=leaf.summary,
        text=inspect.cleandoc(command.help or leaf.summary),
        aliases=tuple(alias for alias, name in ALIASES.items() if path and name == path[-1]),
        arguments=tuple(
            _argument(argument, command, at) for at, argument in enumerate(declaration.arguments)
        ),
        options=tuple(sorted(options, key=lambda option: panels.index(option.panel))),
        commands=tuple(below),
        examples=declaration.examples,
    )
    for name, child in below.items():
        yield from _walk(child, command.commands[name], (*path, name))


def _option(option: Parameter, command: Any) -> CatalogueOption:
    commas = bool(option.choices) and _is_set(option.kind)
    old = old_spellings(takes_job=command.takes_job)
    return CatalogueOption(
        names=(*option.spellings, *filter(None, [option.negation])),
        metavar=option.metavar,
        choices=option.choices,
        completes="choices" if commas else option.flag.completes if option.flag else "",
        help=command.declaration.help_of(option),
        panel=option.panel,
        repeats=option.repeats,
        hidden=option.hidden,
        # A group has none of its own: its commands apply the global options.
        variables=variables(takes_job=command.takes_job).get(option.name, ()),
        deprecated=tuple(before for before, now in old.items() if now in option.spellings),
    )


def _argument(argument: Parameter, command: Any, at: int) -> Argument:
    metavar = str(argument.metavar)
    runs = command.named is not None and at >= command.named
    return Argument(
        metavar=metavar,
        several=argument.repeats,
        required=not metavar.startswith("[") and not command.takes_job,
        completes="command" if runs else argument.word.completes if argument.word else "",
    )


def _is_set(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, frozenset)


# ---------------------------------------------------------------- the words of completion

_TITLE = "# Made of the command tree: python -m arena_topo.cli.catalogue > {path}\n"
WORDS_FILE = "arena_topo/completion/words.txt"
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
    sections = [
        ("*", [_flag(option) for option in program.options if option.panel == GLOBAL_PANEL])
    ]
    summaries = {command.path: command for command in every}
    for command in every:
        below = [summaries[*command.path, name] for name in command.commands]
        sections.append(
            (
                " ".join(command.path),
                [
                    *(
                        f"+{command.path[-1]}\t{' '.join(command.aliases)}"
                        f"\t{_brief(command.summary)}"
                        for command in below
                    ),
                    *(
                        f".{argument.completes}\t{'s' * argument.several}"
                        for argument in command.arguments
                    ),
                    *(_flag(option) for option in command.options if option.panel != GLOBAL_PANEL),
                ],
            )
        )
    sections += [(f"={name}", lines) for name, lines in _own_names().items()]
    text = "".join(
        f"[{title}]\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections
    )
    return _TITLE.format(path=WORDS_FILE) + text


def _flag(option: CatalogueOption) -> str:
    only_joined = (option.metavar or "").startswith("[=")
    kind = "s" if option.metavar is None else "o" if only_joined else "v"
    return "\t".join(
        [
            " ".join([*option.names, *(f"~{old}" for old in option.deprecated)]),
            kind + "r" * option.repeats + "h" * option.hidden,
            option.completes,
            " ".join(option.choices),
            _brief(option.help),
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


_LEVELS = ("node", "nvlink", "leaf", "spine", "zone", "region", "beyond")
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
