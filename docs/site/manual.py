"""Write docs/man/ from the command tree: `python docs/site/manual.py`.

One manual page per command in the words of man(7), which every man knows, and one of the program.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from reference import exit_codes, help_and_default, line, own, shown, write

from arena_topo import __version__
from arena_topo.cli.catalogue import CatalogueOption, Command, commands
from arena_topo.cli.commands import shell_line
from arena_topo.cli.options import GLOBAL_PANEL, PROGRAM

FOLDER = Path(__file__).resolve().parents[1] / "man"
DATE = "2026-11-22"
"""When the words of these pages last changed much; readers of man look there for their age."""

FILES = (
    ("~/.config/arena-topo/config.toml", "Settings: flags without the dashes in front."),
    ("/etc/arena-topo/config.toml", "Settings of all users of this machine."),
    ("~/.local/state/arena-topo/", "Jobs of the local engine, and the logs of jobs that are gone."),
    ("~/.cache/arena-topo/", "Names for completion, and what a cluster serves."),
    ("~/.kube/config", "Where clusters are, and who you are there; KUBECONFIG names others."),
)

_EMPHASIS = re.compile(r"`([^`]+)`|(?<![\w.-])(--?[a-zA-Z][\w-]*)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def plain(text: str) -> str:
    """A text that troff shows as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = text.replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha")
    return text.replace("~", "\\(ti")


def prose(text: str) -> str:
    """Sentences, one a line, with flags and code in bold; hyphens of words stay hyphens."""
    marked, at = "", 0
    text = " ".join(_LINK.sub(r"\1", text).split())
    for match in _EMPHASIS.finditer(text):
        marked += plain(text[at : match.start()]).replace("\\-", "-")
        marked += rf"\fB{plain(match[1] or match[2])}\fR"
        at = match.end()
    marked += plain(text[at:]).replace("\\-", "-")
    lines = re.sub(r"(?<=[.:;]) (?=[A-Z])", "\n", marked).split("\n")
    return "\n".join(rf"\&{line}" if line[:1] in {".", "\\(aq"} else line for line in lines)


def name(command: Command) -> str:
    """The name of a command's page."""
    return "-".join((PROGRAM, *command.path))


def page(command: Command) -> str:
    """The manual page of a command."""
    title, program = plain(name(command).upper()), plain(PROGRAM)
    parts = [
        f'.TH "{title}" 1 "{DATE}" "{PROGRAM} {__version__}" "{program} manual"',
        ".SH NAME",
        f"{plain(name(command))} \\- {_summary(command)}",
        ".SH SYNOPSIS",
        rf"\fB{plain(' '.join((PROGRAM, *command.path)))}\fR"
        + plain(line(command).removeprefix(" ".join((PROGRAM, *command.path)))),
        ".SH DESCRIPTION",
        "\n.PP\n".join(prose(part) for part in command.text.split("\n\n")),
    ]
    if command.aliases:
        also = " or ".join(
            rf"\fB{plain(' '.join((PROGRAM, *command.path[:-1], part)))}\fR"
            for part in command.aliases
        )
        parts += [".PP", f"It can also be written {also}."]
    below = [part for part in commands() if part.path and part.path[:-1] == command.path]
    if below:
        parts += [".SH COMMANDS"]
        for part in below:
            parts += [".TP", rf"\fB{plain(' '.join(part.path))}\fR", prose(part.summary)]
    if command.examples:
        parts += [".SH EXAMPLES"]
        for what, words in command.examples:
            typed = shell_line(words).split("\n")
            parts += [
                ".TP",
                plain(what),
                ".nf",
                *(rf"\fB{plain(part)}\fR" for part in typed),
                ".fi",
            ]
    if own(command):
        parts += [".SH OPTIONS", *_panels(own(command))]
    parts += _everywhere() if not command.path else _elsewhere()
    parts += [".SH SEE ALSO", *_see_also(command, below)]
    return "\n".join(parts) + "\n"


def _summary(command: Command) -> str:
    text = command.summary.rstrip(".")
    return prose(text[:1].lower() + text[1:]).replace("\n", " ")


def _panels(options: list[CatalogueOption]) -> Iterator[str]:
    for panel, group in groupby(options, key=lambda option: option.panel):
        if panel not in {"Options", GLOBAL_PANEL}:
            yield f'.SS "{panel}"'
        for option in group:
            yield from _option(option)


def _option(option: CatalogueOption) -> Iterator[str]:
    yield ".TP"
    names = ", ".join(rf"\fB{plain(each)}\fR" for each in option.names)
    glue = "" if (option.metavar or "").startswith("[=") else " "
    yield names + (rf"{glue}\fI{plain(option.metavar)}\fR" if option.metavar else "")
    text, default = help_and_default(option)
    yield prose(text)
    if default:
        yield rf"Default: \fB{plain(default)}\fR."
    if option.variables:
        variables = ", ".join(rf"\fB{plain(each)}\fR" for each in option.variables)
        yield f"Environment: {variables}."


def _everywhere() -> Iterator[str]:
    program = commands()[0]
    yield ".SH GLOBAL OPTIONS"
    yield "Every command takes these, before its name or after it."
    yield from _panels([option for option in shown(program) if option.panel == GLOBAL_PANEL])
    yield ".SH EXIT STATUS"
    for number, means in exit_codes():
        yield ".TP"
        yield rf"\fB{number}\fR"
        yield prose(means)
    yield ".SH ENVIRONMENT"
    yield "Each option lists its variables."
    yield "The option wins, then the first variable."
    yield ".SH FILES"
    for path, what in FILES:
        yield ".TP"
        yield rf"\fI{plain(path)}\fR"
        yield prose(what)


def _elsewhere() -> Iterator[str]:
    yield ".PP"
    yield f"Global options, exit codes and files are those of \\fB{plain(PROGRAM)}\\fR(1)."


def _see_also(command: Command, below: list[Command]) -> Iterator[str]:
    near = [
        other
        for other in commands()
        if other is not command and (other.path == command.path[:-1] or other in below)
    ]
    names = [rf"\fB{plain(name(other))}\fR(1)" for other in near] or [rf"\fB{plain(PROGRAM)}\fR(1)"]
    yield ",\n".join(names)


def texts() -> dict[str, str]:
    """All pages by the names of their files."""
    return {f"{name(command)}.1": page(command) for command in commands()}


if __name__ == "__main__":
    sys.stdout.write(f"{write(FOLDER, texts, '*.1')} pages changed\n")
