"""Text as Go lays it out: aligned tables, JSON, YAML; styles of words; errors in three lines."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from arena_topo.errors import ArenaError
from arena_topo.escaping import escaped_in_quotes, one_line
from arena_topo.notes import grouped

_T = TypeVar("_T")

NOTHING = "N/A"

_PADDING = 2

# ---------------------------------------------------------------- styles


class Style(StrEnum):
    """The meaning of a word, with the SGR code (ECMA-48, 8.3.117) of its colour."""

    GOOD = "32"
    WAITS = "33"
    BAD = "31"
    NOTE = "36"
    WARNING = "1;33"
    ERROR = "1;31"


class Styled(NamedTuple):
    """A cell or a word of a sentence with its style. Its `str` has as many characters.

    The style is encoded as letters of a private plane of Unicode, 256 to a style, so that text is
    aligned, folded and cropped as without styles. `render_styles` decodes them before text is
    written; `one_line` escapes these letters in untrusted text.
    """

    text: str
    style: Style

    def __str__(self) -> str:
        text = one_line(self.text)
        first = _PLANE + 256 * list(Style).index(self.style)
        return "".join(
            chr(first + ord(character)) if "!" <= character <= "~" else character
            for character in text
        )


Cell = str | Styled

_PLANE = 0xF0000
"""The first character of Supplementary Private Use Area-A."""

_LETTERS = re.compile(
    "|".join(
        f"([{chr(_PLANE + 256 * at + 0x21)}-{chr(_PLANE + 256 * at + 0x7E)}]+)"
        for at in range(len(Style))
    )
)


def render_styles(text: str, *, colours: bool) -> str:
    """A text with its styles as terminal colours, or without them."""

    def shown(match: re.Match[str]) -> str:
        plain = "".join(chr(ord(character) & 0xFF) for character in match[0])
        style = list(Style)[(match.lastindex or 1) - 1]
        return f"\x1b[{style}m{plain}\x1b[0m" if colours else plain

    return _LETTERS.sub(shown, text)


_STATES = {
    **dict.fromkeys(("RUNNING", "SUCCEEDED", "Running", "Succeeded", "Completed"), Style.GOOD),
    **dict.fromkeys(("PENDING", "QUEUING", "SUSPENDED", "UNKNOWN", "Pending"), Style.WAITS),
    **dict.fromkeys(("ContainerCreating", "PodInitializing", "SchedulingGated"), Style.WAITS),
    **dict.fromkeys(("Terminating", "Unknown"), Style.WAITS),
    **dict.fromkeys(("FAILED", "Failed", "Error", "Evicted", "OOMKilled"), Style.BAD),
    **dict.fromkeys(("CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff"), Style.BAD),
    "NotReady": Style.BAD,
    "ok": Style.GOOD,
    "warn": Style.WAITS,
    "fail": Style.BAD,
}
"""The styles of states of jobs, pods and nodes, and of results of checks."""


def state(word: str) -> Cell:
    """The state of a job, a pod or a node, or the result of a check, as a cell."""
    return Styled(word, _STATES[word]) if word in _STATES else word


# ---------------------------------------------------------------- Go's formats


def align(lines: Iterable[str], least: Sequence[int] = ()) -> str:
    """Align tab-separated cells as Go's tabwriter does, and join the lines.

    A column is as wide as necessary in the run of neighbouring lines that have it, and at least as
    wide as in `least`; text after the last tab of a line belongs to no column and is never padded.
    """
    rows = [line.split("\t") for line in lines]
    done = [""] * len(rows)
    _align(rows, done, 0, len(rows), 0, least=least)
    return "".join(f"{text}{row[-1]}\n" for text, row in zip(done, rows, strict=True))


def _align(
    rows: list[list[str]],
    done: list[str],
    start: int,
    end: int,
    column: int,
    *,
    least: Sequence[int],
) -> None:
    at = start
    while at < end:
        stop = at
        while stop < end and len(rows[stop]) - 1 > column:
            stop += 1
        if stop == at:
            at += 1
            continue
        width = max(0, *least[column : column + 1], *(len(row[column]) for row in rows[at:stop]))
        for index in range(at, stop):
            done[index] += rows[index][column].ljust(width + _PADDING)
        _align(rows, done, at, stop, column + 1, least=least)
        at = stop


def widths(lines: Iterable[str], least: Sequence[int] = ()) -> tuple[int, ...]:
    """The width of each column of such lines, at least that in `least`."""
    rows = [[len(cell) for cell in line.split("\t")[:-1]] for line in lines]
    return tuple(max(column) for column in zip_longest(least, *rows, fillvalue=0))


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]], *, indent: str = "") -> list[str]:
    """A header and its rows as lines for `align`; with an indent also arena's row of dashes.

    Each cell becomes one line.
    """
    dashes = [indent + "\t".join("-" * len(word) for word in header)] if indent else []
    body = (indent + "\t".join(map(cell_text, row)) for row in rows)
    return [indent + "\t".join(header), *dashes, *body]


def cell_text(cell: Cell) -> str:
    """A cell on one line, with control characters escaped."""
    return str(cell) if isinstance(cell, Styled) else one_line(cell)


Column = tuple[str, Callable[[_T], Cell]]
"""A column of a table: its header, and the cell of a row."""


def column_table(
    columns: Sequence[Column[_T]], rows: Iterable[_T], *, indent: str = ""
) -> list[str]:
    """A table, as `table`, by columns that compute their cells from a row."""
    header = [name for name, _cell in columns]
    return table(header, [[cell(row) for _name, cell in columns] for row in rows], indent=indent)


def fitting_columns(
    columns: Sequence[Column[_T]], rows: Iterable[_T], width: int | None, spare: Iterable[str]
) -> list[Column[_T]]:
    """The columns of a table that fit in `width` columns of a terminal; all without a width.

    Those named in `spare` are left out one by one, the least important first.
    """
    fit, rows = list(columns), list(rows)
    for name in (*spare, "") if width is not None else ():
        lines = [f"{line}\t" for line in column_table(fit, rows)]
        if sum(widths(lines)) + _PADDING * (len(fit) - 1) <= (width or 0):
            break
        fit = [column for column in fit if column[0] != name]
    return fit


def go_json(value: Any) -> str:
    """JSON as Go's encoder writes it: four spaces, HTML characters escaped, no final newline."""
    import json  # noqa: PLC0415 - most screens are no documents

    text = json.dumps(value, indent=4, ensure_ascii=False)
    # These five occur only inside strings, so the whole text can be replaced.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return escaped_in_quotes(text)


def go_yaml(value: Any) -> str:
    """YAML as Go's yaml.v2 writes it: lists not indented, ambiguous strings in double quotes."""
    import yaml

    def style(text: str) -> str:
        if not text.replace("\n", "").isprintable():
            # Other line ends and control characters survive only as escapes.
            return '"'
        if "\n" in text:
            return "|"
        forms: Any = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], ())
        tag_of_text = next(
            (tag for tag, form in forms if form.match(text)), "tag:yaml.org,2002:str"
        )
        return "" if tag_of_text == "tag:yaml.org,2002:str" else '"'

    return yaml_of([value], yaml.SafeDumper, style)


def yaml_of(documents: Iterable[Any], base: Any, style: Callable[[str], str]) -> str:
    """YAML documents, written by a dumper based on one of PyYAML's.

    `style` returns PyYAML's style for a string: a quote, `|`, or empty for a bare one.
    """
    import yaml

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style(value))

    # Aliases are legal YAML, but hard to read: values are repeated.
    dumper: Any = type("Dumper", (base,), {"ignore_aliases": lambda _self, _data: True})
    dumper.add_representer(str, text)
    dumped: str = yaml.dump_all(
        list(documents),
        Dumper=dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1 << 30,
    )
    return escaped_in_quotes(dumped)


def duration(seconds: float) -> str:
    """A time span as arena shows it: in one unit, rounded down."""
    if seconds < -1:
        return "<invalid>"
    for limit, size, unit in (
        (60, 1, "s"),
        (3600, 60, "m"),
        (86400, 3600, "h"),
        (365 * 86400, 86400, "d"),
    ):
        if seconds < limit:
            return f"{max(0, int(seconds)) // size}{unit}"
    return f"{int(seconds) // (365 * 86400)}y"


def clock(when: float) -> str:
    """A moment in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def number(value: float | None) -> int | float | None:
    """A bandwidth as Go would print it: whole numbers without a point, others to the cent."""
    if value is None:
        return None
    return int(value) if value == int(value) else round(value, 2)


# ---------------------------------------------------------------- errors


def error_text(error: ArenaError, width: int | None = None) -> str:
    """An error as text: notes about the cluster, then what went wrong, why, and what to try.

    Each is a line, folded at `width` columns.
    """
    lines = [fold(note_line(note), width) for note in grouped(error.notes)]
    lines.append(refusal(error, width, label=f"{Styled('error:', Style.ERROR)} "))
    if error.arena:
        lines.append(f"  arena: {error.arena}")
    return "\n".join(lines)


def refusal(error: ArenaError, width: int | None = None, *, label: str = "") -> str:
    """What an error says, why, and what to try, as an answer; `label` comes before it.

    Each is a line, folded at `width` columns.
    """
    lines = [fold(f"{label}{_sentence(error.message)}", width)]
    if error.why:
        lines.append(fold(f"  why:  {_sentence(error.why)}", width, indent=" " * 8))
    if error.hint:
        lines.append(fold(f"  try:  {_sentence(error.hint)}", width, indent=" " * 8))
    return "\n".join(lines)


def note_line(text: str, *, alert: bool = False) -> str:
    """A note, or a warning, on one line."""
    word = Styled("warning:", Style.WARNING) if alert else Styled("note:", Style.NOTE)
    return f"{word} {one_line(text)}"


def _sentence(text: str) -> str:
    """The text on one line; unchanged if it is one: some texts are arena's, or to be copied."""
    return text if text.isprintable() else one_line(text)


_COMMAND = re.compile(
    r"(?:^\w+: +)?(?:arena-topo|kubectl|helm|nvidia-smi)(?: [^\s`()]*[^\s,;:`()])+"
)
"""A command in a sentence, as far as the next punctuation, with the label of a line before it."""

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def unbreakable(text: str) -> str:
    """A part of a sentence that `fold` does not break."""
    return text.replace(" ", _NO_BREAK_SPACE)


def fold(line: str, width: int | None, *, indent: str = "  ") -> str:
    """A sentence wrapped at `width` columns, if given; further lines are indented.

    A command in the sentence stays on one line, to be copied; so does an `unbreakable` part.
    """
    if width is None or len(line) <= width:
        return line.replace(_NO_BREAK_SPACE, " ")
    start = _start(line)
    wrapped = textwrap.fill(
        _COMMAND.sub(lambda match: unbreakable(match[0]), line.strip(" ")),
        width,
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace(_NO_BREAK_SPACE, " ")


def fold_text(screen: str, width: int | None) -> str:
    """A screen whose lines are wrapped at `width` columns, if given, and indented by two more.

    Rows of a table continue at the same column, so that cells stay below their headers. Words
    longer than a line stay whole, except rules of dashes; without a width all lines stay whole.
    """
    lines = screen.split("\n")
    if width is None or max(map(len, lines)) <= width:
        return screen
    lines = [line[:width] if set(line) == {"-"} else line for line in lines]
    return "\n".join(line for block in _blocks(lines) for line in _narrowed(block, width))


def _blocks(lines: Iterable[str]) -> Iterable[list[str]]:
    """Neighbouring lines with one indent; a first line may have more, like a header over rows."""
    block: list[str] = []
    for line in lines:
        more = len(_start(block[-1])) - len(_start(line)) if block else 0
        if block and (not line or not block[-1] or more < 0 or (more and len(block) > 1)):
            yield block
            block = []
        block.append(line)
    yield block


_ROOM = 16
"""The least width of a last cell that is wrapped in place instead of moved below."""


def _narrowed(block: Sequence[str], width: int) -> Iterable[str]:
    """The lines of a block, wrapped."""
    if max(map(len, block)) <= width:
        return block
    columns = _columns(block)
    fits = [at for at in columns if all(len(line[:at].rstrip()) <= width for line in block)]
    if len(columns) < _TABLE or columns[-1] + _ROOM <= width or not fits:
        return [
            line if len(line) <= width else fold(line, width, indent=f"{_start(line)}  ")
            for line in block
        ]
    indent = f"{_start(block[-1])}  "
    rest = _narrowed([(indent + line[fits[-1] :]).rstrip() for line in block], width)
    heads = [line[: fits[-1]].rstrip() for line in block]
    pairs = zip(heads, rest, strict=True)
    return [f"{head}\n{below}" if below.strip() else head for head, below in pairs]


_TABLE = 2
"""The least columns beside the first in a table."""


def _columns(block: Sequence[str]) -> list[int]:
    """The columns, without the first, at which header cells begin and all rows have a gap."""
    header, *rows = block
    starts = [match.end() for match in re.finditer(r"(?<=\S)\s\s+(?=\S)", header)]
    return [at for at in starts if rows and all(not row[at - 2 : at].strip() for row in rows)]


def _start(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


_YAML_KEYS = {
    "modelName": "modelname",
    "modelVersion": "modelversion",
    "modelSource": "modelsource",
}


def arena_document(value: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, yaml: bool) -> str:
    """An object or a list of objects as arena prints it; YAML spells some keys differently."""
    if not yaml:
        return go_json(value)
    if isinstance(value, Mapping):
        return go_yaml(_for_yaml(value))
    return go_yaml([_for_yaml(item) for item in value])


def stream_document(value: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, yaml: bool) -> str:
    """A value of a stream: JSON on one line, or a document of YAML."""
    if yaml:
        return "---\n" + arena_document(value, yaml=True)
    import json  # noqa: PLC0415 - as above

    return escaped_in_quotes(json.dumps(value, ensure_ascii=False)) + "\n"


def _for_yaml(value: Mapping[str, Any]) -> dict[str, Any]:
    return {_YAML_KEYS.get(key, key): item for key, item in value.items()}


def go_bool(value: bool) -> str:  # noqa: FBT001 - the value is what is printed
    """A truth value as Go prints it."""
    return "true" if value else "false"
