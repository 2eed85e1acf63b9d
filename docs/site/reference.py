"""Write docs/reference/ from the command tree: `python docs/site/reference.py [--check]`.

One page per command, an index, and a page of the machines that are known by name. What stands in
them is what the parser (`arena_topo.cli.catalogue`) and the tables of `arena_topo.topology` know:
nothing in these pages is written by hand.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from arena_topo.cli.catalogue import Argument, CatalogueOption, Command, commands
from arena_topo.cli.commands import shell_line
from arena_topo.cli.options import GLOBAL_PANEL, PROGRAM
from arena_topo.topology import Machine, presets
from arena_topo.topology.models import MODELS

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "reference"
SITE = DOCS / "site" / "mkdocs.yml"
_MARK = "      # Made by reference.py, down to the end of the list.\n"

GUIDES: Mapping[str, tuple[str, ...]] = {
    "submit mpi": ("local-engine", "on-kubernetes", "how-it-works", "fabric-file", "job-file"),
    "plan mpi": ("plan-output", "how-it-works", "fabric-file", "job-file"),
    "forecast": ("forecast", "fidelity"),
    "calibrate": ("howto/calibrating", "fidelity"),
    "simulate": ("simulate",),
    "get": ("howto/pending",),
    "why": ("howto/pending",),
    "list": (),
    "logs": ("logs", "nccl"),
    "attach": ("local-engine",),
    "suspend": ("on-kubernetes",),
    "resume": ("on-kubernetes",),
    "wait": ("conventions",),
    "replan": ("on-kubernetes",),
    "top": ("observing",),
    "top node": ("observing",),
    "top job": ("observing",),
    "topology": ("how-it-works",),
    "topology presets": ("local-engine",),
    "topology show": ("how-it-works", "fabric-file"),
    "topology discover": ("howto/calibrating",),
    "topology publish": ("on-kubernetes", "howto/calibrating"),
    "check": ("on-kubernetes", "howto/pending"),
    "install": ("installation", "fabric-file", "on-kubernetes"),
    "nodes": ("howto/ack",),
    "nodes topology": ("howto/ack",),
    "nodes default": ("howto/ack",),
    "controller": ("on-kubernetes", "fabric-file", "reliability"),
    "config": ("configuration",),
    "config view": ("configuration",),
    "config schema": ("job-file",),
    "completion": ("howto/completion",),
}
"""The pages that tell more than a command's help."""

_SHELL_WORDS = re.compile(r"(?<![\w`/.-])(--[a-zA-Z][\w-]*)(?![\w`])")
_DEFAULT = re.compile(r" ?\(default ([^()]+)\)$")


def shown(command: Command) -> list[CatalogueOption]:
    """The flags of a command that its help shows."""
    return [option for option in command.options if not option.hidden]


def own(command: Command) -> list[CatalogueOption]:
    """Those that not every command has."""
    return [option for option in shown(command) if option.panel != GLOBAL_PANEL]


def help_and_default(option: CatalogueOption) -> tuple[str, str | None]:
    """What a flag does, and its default where it has one."""
    default = _DEFAULT.search(option.help)
    return (option.help[: default.start()], default[1]) if default else (option.help, None)


def line(command: Command) -> str:
    """How a command is written, as its help has it."""
    words = [PROGRAM, *command.path, "[OPTIONS]"]
    words += ["COMMAND [ARGS]..."] if command.commands else map(word, command.arguments)
    return " ".join(words)


def word(argument: Argument) -> str:
    """An argument as a usage line has it."""
    name = argument.metavar.strip("[]") if "--" not in argument.metavar else argument.metavar
    return name if argument.required or name.startswith("[") else f"[{name}]"


def file_name(path: tuple[str, ...]) -> str:
    """The name of a command's page."""
    return f"{'-'.join(path) or 'index'}.md"


def code(text: str) -> str:
    """A text as code, also within a table."""
    if "|" in text or "`" in text:
        return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
    return f"`{text}`"


def sentence(text: str) -> str:
    """A text of the help, whose flags are code; what stands in backticks there stays so."""
    parts = re.split(r"(`[^`]*`)", text)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            escaped = re.sub(r"([<>|*_])", r"\\\1", part)
            parts[number] = _SHELL_WORDS.sub(lambda match: f"`{match[1]}`", escaped)
    return "".join(parts)


def _flag(option: CatalogueOption) -> str:
    names = ", ".join(code(name) for name in option.names)
    if option.metavar is None:
        return names
    glue = "" if option.metavar.startswith("[=") else " "
    return ", ".join(
        [
            *(code(name) for name in option.names[:-1]),
            code(f"{option.names[-1]}{glue}{option.metavar}"),
        ]
    )


def _table(options: list[CatalogueOption]) -> Iterator[str]:
    yield "| Flag | What it does | Default |"
    yield "|---|---|---|"
    for option in options:
        text, default = help_and_default(option)
        meaning = sentence(text)
        if option.deprecated:
            old = " and ".join(code(name) for name in option.deprecated)
            meaning += (
                f" {old} {'are' if len(option.deprecated) > 1 else 'is'} the old way to write it."
            )
        yield f"| {_flag(option)} | {meaning} | {code(default) if default else ''} |"


def _panels(options: list[CatalogueOption]) -> Iterator[str]:
    for panel, group in groupby(options, key=lambda option: option.panel):
        if panel != "Options":
            yield f"### {panel}\n"
        yield from _table(list(group))
        yield ""


def _see_also(command: Command) -> Iterator[str]:
    pages = GUIDES.get(" ".join(command.path), ())
    if not pages:
        return
    yield "## See also\n"
    for page in pages:
        path = DOCS / f"{page}.md"
        yield f"- [{title(path)}](../{page}.md)"
    yield ""


def title(path: Path) -> str:
    """The heading of a page."""
    for text in path.read_text(encoding="utf-8").splitlines():
        if text.startswith("# "):
            return text[2:]
    raise ValueError(f"{path} has no title")


def page(command: Command) -> str:
    """The page of a command."""
    parts = [f"# {PROGRAM} {' '.join(command.path)}", ""]
    parts += [sentence(text.replace("\n", " ")) + "\n" for text in command.text.split("\n\n")]
    parts += ["```text", line(command), "```", ""]
    if command.aliases:
        names = [f"`{PROGRAM} {' '.join((*command.path[:-1], part))}`" for part in command.aliases]
        parts += [f"It can also be written {' or '.join(names)}.", ""]
    if _below(command):
        parts += ["## Commands", "", *_list(_below(command)), ""]
    if command.examples:
        shown_lines = [f"# {what}\n{shell_line(words)}" for what, words in command.examples]
        parts += ["## Examples", "", "<!-- not run: they need jobs and machines of yours -->"]
        parts += ["```bash", "\n\n".join(shown_lines), "```", ""]
    if own(command):
        parts += ["## Flags", "", *_panels(own(command))]
    also = "Also the" if own(command) else "The"
    options = f"{also} [global options](index.md#global-options)"
    codes = "exit codes are those of [every command](index.md#exit-codes)"
    columns = ""
    if any("--output" in part.names for part in own(command)):
        columns = f"; [columns and JSON keys](../output.md{_output_section(command)})"
    parts += [f"{options}{columns}; {codes}.", "", *_see_also(command)]
    return "\n".join(parts).rstrip() + "\n"


def _output_section(command: Command) -> str:
    """The anchor of what docs/output.md says about a command, or about its group; else empty."""
    text = (DOCS / "output.md").read_text(encoding="utf-8")
    for words in (" ".join(command.path), command.path[0]):
        for heading in re.findall(r"^## (.+)$", text, re.MULTILINE):
            if words in re.split(", | and ", heading):
                return f"#{heading.lower().replace(',', '').replace(' ', '-')}"
    return ""


def _below(command: Command) -> list[Command]:
    depth = len(command.path) + 1
    return [
        other
        for other in commands()
        if other.path[: depth - 1] == command.path and len(other.path) == depth
    ]


def _list(listed: list[Command]) -> Iterator[str]:
    yield "| Command | What it does |"
    yield "|---|---|"
    for command in listed:
        name = f"[{PROGRAM} {' '.join(command.path)}]({file_name(command.path)})"
        yield f"| {name} | {sentence(command.summary)} |"


def exit_codes() -> list[tuple[str, str]]:
    """The table of exit codes of docs/conventions.md."""
    text = (DOCS / "conventions.md").read_text(encoding="utf-8")
    table = text.partition("## Exit codes\n")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ", 1) for row in table.splitlines() if row.startswith("|")]
    return [(code, means) for code, means in rows[2:]]


def index() -> str:
    """The page of the program itself."""
    program, *rest = commands()
    leaves = [part for part in rest if not part.commands]
    same = f"`{PROGRAM} COMMAND --help` and `man {PROGRAM}` say the same"
    parts = [
        "# Commands",
        "",
        f"Every command with every flag, made from what the program itself knows. {same}.",
        "",
        *_list(leaves),
        "",
        "## Global options",
        "",
        "Every command takes these, before its name or after it.",
        "",
        *_table([part for part in shown(program) if part.panel == GLOBAL_PANEL]),
        "",
        (
            "Most flags can also be set by [a variable](environment.md), or in [a file of"
            " settings](../configuration.md)."
        ),
        "",
        "## Exit codes",
        "",
        "| Code | Means |",
        "|---|---|",
        *(f"| {number} | {means} |" for number, means in exit_codes()),
    ]
    return "\n".join(parts) + "\n"


def environment() -> str:
    """The page of all variables that set a flag, with the commands that have the flag."""
    users: dict[tuple[str, tuple[str, ...]], list[Command]] = {}
    for command in commands():
        for option in own(command) if command.path else shown(command):
            if option.variables:
                users.setdefault((option.names[-1], option.variables), []).append(command)
    parts = [
        "# Environment variables",
        "",
        (
            "Each of these variables sets a flag for all commands that have it. A flag on the"
            " command line wins over its variable, the first variable over the second, and both"
            " over [the files of settings](../configuration.md#every-setting)."
        ),
        "",
        "| Flag | Variables | Commands |",
        "|---|---|---|",
    ]
    for (flag, variables), having in sorted(users.items(), key=lambda row: row[0]):
        every = any(not command.path for command in having)
        names = ", ".join(
            f"[{' '.join(command.path)}]({file_name(command.path)})" for command in having
        )
        names = "all" if every else names
        parts.append(f"| `{flag}` | {', '.join(map(code, variables))} | {names} |")
    return "\n".join(parts) + "\n"


def _machine_row(machine: Machine) -> str:
    links = {str(link) for row in machine.links for link in row if link is not None}
    speeds = sorted({nic.speed for nic in machine.nics if nic.speed is not None})
    nics = f"{len(machine.nics)}{f' x {speeds[0]:g} GB/s' if speeds else ''}"
    switch = ", NVSwitch" if machine.nvswitch else ""
    return (
        f"{len(machine.gpus)} x {machine.model} | {', '.join(sorted(links)) or '-'}{switch}"
        f" | {nics if machine.nics else '-'}"
    )


def machines() -> str:
    """The page of presets, instance types and GPU models, with their sources."""
    parts = [
        "# Machines known by name",
        "",
        (
            "Made from the tables of the program. Names of presets and of instance types go to"
            " [forecast](forecast.md); presets can also be emulated (`--emulate`). A node whose"
            " label `node.kubernetes.io/instance-type` is in the second table has these NICs,"
            " unless its own are known. Links of instance types are assumed."
        ),
        "",
        "## Presets",
        "",
        "NICs without a speed are those of the maker's machine; the GPU model gives their speed.",
        "",
        "| Preset | GPUs | Links | NICs | Source |",
        "|---|---|---|---|---|",
    ]
    for name, known in presets.PRESETS.items():
        source = known.source or "NVIDIA data sheet"
        parts.append(
            f"| `{name}` | {_machine_row(presets.preset_machine(name, name))} | {source} |"
        )
    parts += [
        "",
        "## Instance types",
        "",
        "| Instance type | GPUs | Links | NICs | Network | Source |",
        "|---|---|---|---|---|---|",
    ]
    for name, sold in presets.INSTANCES.items():
        machine = presets.instance_type(name)
        assert machine is not None
        plugged = f"RDMA with plug-in {sold.plugin}" if sold.plugin else "RDMA"
        network = plugged if sold.rdma else "TCP"
        parts.append(f"| `{name}` | {_machine_row(machine)} | {network} | {sold.source} |")
    parts += [
        "",
        "## GPU models",
        "",
        (
            "A product belongs to the model with the longest name that its own name begins with:"
            " `NVIDIA RTX PRO 6000 Blackwell Workstation Edition` is an `RTX PRO 6000`. P2P says"
            " whether the driver lets two GPUs reach each other over PCIe. The number of NVLinks"
            " is given where all boards of a model have the same."
        ),
        "",
        "| Model | Architecture | PCIe | NVLinks | P2P |",
        "|---|---|---|---|---|",
    ]
    for name, model in MODELS.items():
        lanes = "-" if model.nvlinks is None else str(model.nvlinks)
        p2p = "yes" if model.p2p else "no"
        parts.append(f"| `{name}` | {model.architecture} | {model.pcie} | {lanes} | {p2p} |")
    return "\n".join(parts) + "\n"


def texts() -> dict[str, str]:
    """All pages by the names of their files."""
    made = {file_name(command.path): page(command) for command in commands() if command.path}
    known = {"environment.md": environment(), "machines.md": machines()}
    return {"index.md": index(), **made, **known}


def write(folder: Path, made: Callable[[], dict[str, str]], pattern: str) -> int:
    """Write the files that are made, and remove others; how many changed."""
    folder.mkdir(exist_ok=True)
    wanted, changed = made(), 0
    for path in folder.glob(pattern):
        if path.name not in wanted:
            path.unlink()
            changed += 1
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed += 1
    return changed


def navigation() -> str:
    """The file of the site with all these pages in its navigation."""
    before, mark, after = SITE.read_text(encoding="utf-8").partition(_MARK)
    after = re.sub(r"\A(?: +- reference/.*\n)*", "", after)
    pages = "".join(f"      - reference/{name}\n" for name in texts() if name != "index.md")
    return before + mark + pages + after


if __name__ == "__main__":
    SITE.write_text(navigation(), encoding="utf-8")
    sys.stdout.write(f"{write(FOLDER, texts, '*.md')} pages changed\n")
