"""What NVIDIA tools say (`nvidia-smi topo -m`, NVML) -> Machine.

The matrix reaches us through terminals, mails, wikis and issue trackers, so the reader takes any
white space, escapes, quote marks, wrapped lines and Markdown tables. It guesses nothing: a matrix
that is cut, lopsided or from another tool is refused with the line and the reason. Only what a
machine can be described without (NICs, NUMA nodes) may be left out, and then a note says so.

    GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID     header
    GPU0     X      NV12    NODE    0-95    0               N/A             a row for each GPU
    NIC0    NODE    NODE     X                                              a row for each NIC
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    NIC,
    Link,
    LinkKind,
    Machine,
    Matrix,
    behind_nvswitch,
)
from arena_topo.topology.models import MOST_LANES, model_of

HINT = "paste the whole output of: nvidia-smi topo -m"

MOST_CHARACTERS = 1_000_000
"""The matrix of 16 GPUs and 32 NICs has about 20,000; anything near this is another file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A machine as its matrix describes it, and what of the text could not be used."""

    machine: Machine
    notes: tuple[str, ...] = ()


def parse_topo(text: str, *, name: str = "machine", model: str | None = None) -> Machine:
    """Read the output of `nvidia-smi topo -m`; UnreadableTopology names the line and the reason.

    `model` is the GPUs' model or product name, which the matrix does not tell.
    """
    return read_topo(text, name=name, model=model).machine


def read_topo(text: str, *, name: str = "machine", model: str | None = None) -> Reading:
    """Read as `parse_topo` does, with notes on what was left out."""
    if len(text) > MOST_CHARACTERS:
        raise UnreadableTopology(
            f"{len(text):,} characters are too many for a matrix", where="line 1", hint=HINT
        )
    lines = _plain_lines(text)
    blocks = tuple(_blocks(lines))
    links = tuple(block for block in blocks if block.source == _NVIDIA)
    # "GPU0 and GPU1" alone on a line looks like a header; it counts only if nothing else does.
    links = tuple(block for block in links if block.rows) or links
    if not links:
        raise _nothing_readable(lines, blocks)
    first, *others = links
    reading = _machine(first, lines, name, model)
    for other in others:
        if _machine(other, lines, name, model).machine.links != reading.machine.links:
            raise UnreadableTopology(
                f"a second matrix that differs from the one on line {first.header.number}",
                where=other.header.where,
                hint="paste the matrix of one machine at a time",
            )
    unread = tuple(
        f"{block.header.where}: {block.source} is not used"
        for block in blocks
        if block.source != _NVIDIA
    )
    return Reading(machine=reading.machine, notes=reading.notes + unread)


# --- text to blocks -------------------------------------------------------------------------

_NVIDIA = "the matrix of nvidia-smi topo -m"
_P2P = "a peer-to-peer matrix (nvidia-smi topo -p2p)"
_AMD = "a matrix of AMD's rocm-smi"

_P2P_WORDS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_AMD_WORDS = frozenset({"XGMI", "PCIE"})

# Colours and underlines, their escape character itself, as ^[, or lost on the way.
_ESCAPE = re.compile(
    r"(?:\x1b|\^\[)\[[0-9;?]*[A-Za-z]|\x1b[()].|\x1b\][^\x07\n]*\x07|\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m|[\x00\ufeff\u200b]"
)
_DEVICE = re.compile(r"[A-Za-z][\w.\-]*\d[\w.\-]*", re.ASCII)
_GPU = re.compile(r"GPU(\d{1,3})", re.ASCII)
_LINK = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC", re.ASCII)
_FRAGMENT = re.compile(r"[A-Z]{1,4}\d{0,3}|N?/A?|[\d,\-]+", re.ASCII)
_COLUMN = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID|NUMA\b")
_HEADER_WORD = re.compile(r"CPU|NUMA|GPU|ID|Affinity")
_LEGEND = re.compile(r"\s*(?:NIC )?Legend\b|\s*\S{1,4}\s+=\s|\s*NIC\d+\s*:")
_NIC_NAME = re.compile(r"\b(NIC\d{1,3})\s*:\s*(?!NIC\d+\s*:)([A-Za-z]\S*)", re.ASCII)
_RULE = re.compile(r"[\s|+:=\-]+")

_QUOTED = 64
"""Characters of a line that a message has room for."""

_WRAPS = 8
"""A line is looked for in at most so many pieces."""

_TAB = 8
"""Where a NUMA node stands right of the column before it, in columns, if nothing fills that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    text: str

    @property
    def where(self) -> str:
        return f"line {self.number}"

    @property
    def quoted(self) -> str:
        text = " ".join(self.text.split())
        # What is wrong with a line stands as often at its end as at its beginning.
        return repr(text if len(text) <= _QUOTED else f"{text[: _QUOTED // 2]} ... {text[-24:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row as it stands: fewer cells than the block has devices if it was cut."""

    line: _Line
    name: str
    cells: tuple[str, ...]
    numa: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What a header promises: devices, affinity columns, and where the first of those begins."""

    devices: tuple[str, ...]
    affinity: tuple[str, ...]
    start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One matrix in the text; `stop` is a line that broke it off without being understood."""

    header: _Line
    devices: tuple[str, ...]
    rows: tuple[_Row, ...]
    stop: _Line | None

    @property
    def source(self) -> str:
        words = {cell for row in self.rows for cell in row.cells if cell != "X"}
        if words and words <= _P2P_WORDS:
            return _P2P
        if words & _AMD_WORDS or (words and all(word.isdigit() for word in words)):
            return _AMD
        return _NVIDIA


def _plain_lines(text: str) -> tuple[_Line, ...]:
    """The lines without escapes and quote marks, numbered from 1 as an editor would."""
    plain = _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    plain = plain.replace("\u2502", "|").replace("\u2503", "|")  # the bars of drawn tables
    return tuple(
        _Line(number=number, text=re.sub(r"^(?:\s{0,3}>)+ ?", "", line))
        for number, line in enumerate(plain.split("\n"), start=1)
    )


def _blocks(lines: Sequence[_Line]) -> Iterator[_Block]:
    at = 0
    while at < len(lines):
        if table := _table_header(lines[at]):
            block, at = _table(lines, at, table)
            yield block
        elif header := _header(lines, at):
            columns, after = header
            block, at = _block(lines, at, after, columns)
            yield block
        else:
            at += 1


def _header(lines: Sequence[_Line], at: int) -> tuple[_Columns, int] | None:
    """The header that starts on a line, and the index of the line after it."""
    text = lines[at].text
    if _GPU.search(text) is None:
        return None
    found, after = _header_columns(text), at + 1
    # A terminal may have wrapped the header: take in lines as long as that makes sense.
    for index in range(at + 1, min(at + _WRAPS, len(lines))):
        words = lines[index].text.split()
        if not words or any(_LINK.fullmatch(word) for word in words):
            break
        # To a header that is whole only more columns or the last digits of one can be added.
        whole = found is None or _blank_in_header(text.split(), words[0])
        if not whole and words[0][0] not in "0123456789_":
            break
        text = _joined(text, lines[index].text, _blank_in_header)
        more = _header_columns(text)
        if more is not None and len(set(more.devices)) == len(more.devices):
            found, after = more, index + 1
    return (found, after) if found else None


def _header_columns(text: str) -> _Columns | None:
    """The columns, if the text consists of nothing but devices and affinities."""
    text = text.replace("|", " ").expandtabs()
    column = _COLUMN.search(text)
    devices = (text[: column.start()] if column else text).split()
    if column and _COLUMN.sub(" ", text[column.start() :]).split():
        return None
    if not any(_GPU.fullmatch(word) for word in devices):
        return None
    if not all(_DEVICE.fullmatch(word) and not _LINK.fullmatch(word) for word in devices):
        return None
    return _Columns(
        devices=tuple(devices),
        affinity=tuple(" ".join(name.split()) for name in _COLUMN.findall(text)),
        start=column.start() if column else None,
    )


def _blank_in_header(before: Sequence[str], first: str) -> bool:
    return all(
        _DEVICE.fullmatch(word) or _HEADER_WORD.fullmatch(word) for word in (before[-1], first)
    )


def _blank_in_row(before: Sequence[str], first: str) -> bool:
    last = before[-1]
    if _LINK.fullmatch(last + first):
        return bool(_LINK.fullmatch(last) and _LINK.fullmatch(first))
    return not (last[-1] in ",-" or first[0] in ",-")


def _joined(text: str, more: str, blank: Callable[[Sequence[str], str], bool]) -> str:
    """Put a wrapped line together again, with a blank only where two whole words meet."""
    before, after = text.split(), more.split()
    if not before or not after or blank(before, after[0]):
        return f"{text} {more}"
    return text.rstrip() + more.lstrip()


def _block(lines: Sequence[_Line], at: int, after: int, columns: _Columns) -> tuple[_Block, int]:
    """The rows under a header, and the index of the line after them."""
    rows: list[_Row] = []
    stop, header, at = None, lines[at], after
    while at < len(lines):
        line = lines[at]
        words = [] if _RULE.fullmatch(line.text) else line.text.replace("|", " ").split()
        if words and not _is_row(words, columns.devices):
            understood = _LEGEND.match(line.text) or _header_columns(line.text)
            stop = None if understood else line
            break
        at += 1
        if words:
            text = line.text.replace("|", " ")
            while at < len(lines) and _continues(text, lines[at].text, columns):
                text = _joined(text, lines[at].text, _blank_in_row)
                at += 1
            rows.append(_row(line, text, columns))
    return _Block(header=header, devices=columns.devices, rows=tuple(rows), stop=stop), at


def _is_row(words: Sequence[str], devices: Sequence[str]) -> bool:
    name, *cells = words
    if not cells:
        return name in devices
    if cells[0] in devices or _HEADER_WORD.fullmatch(cells[0]):
        return False
    if name in devices:
        return _GPU.fullmatch(name) is not None or cells[0].isupper()
    return bool(re.fullmatch(r"(?:GPU|NIC)\d+", name) and _LINK.fullmatch(cells[0]))


def _continues(text: str, more: str, columns: _Columns) -> bool:
    """Whether a line is the rest of a row that a terminal has wrapped."""
    words = more.split()
    if not words or _is_row(words, columns.devices):
        return False
    complete = len(text.split()) > len(columns.devices) + len(columns.affinity)
    return not complete and all(_FRAGMENT.fullmatch(word) for word in words)


def _row(line: _Line, text: str, columns: _Columns) -> _Row:
    size = len(columns.devices)
    words = [(found[0], found.end()) for found in re.finditer(r"\S+", text)]
    cells = tuple(word for word, _ in words[1 : size + 1])
    numa = None
    if len(cells) == size:
        end = words[size][1]
        numa = _numa(text[:end], text[end:], columns)
    return _Row(line=line, name=words[0][0], cells=cells, numa=numa)


def _numa(cells: str, rest: str, columns: _Columns) -> int | None:
    """The NUMA node in the affinity part of a row, whose cells may be empty."""
    names, words = list(columns.affinity), rest.split()
    if len(words) < len(names) and words[-1:] == ["N/A"] and names[-1] == "GPU NUMA ID":
        names, words = names[:-1], words[:-1]
    wanted = next((name for name in names if name in {"NUMA Affinity", "NUMA"}), None)
    if wanted is None or not words or len(words) > len(names):
        return None
    if len(words) == len(names):
        return _node(words[names.index(wanted)])
    if len(words) > 1:
        return None
    # One word for two columns: only its place tells a CPU from a NUMA node.
    if "\t" in rest:
        return None if rest.split("\t")[1].strip() else _node(words[0])
    start = len(cells) + rest.index(words[0])
    if columns.start is None or "  " not in rest or start < columns.start + _TAB:
        return None
    return _node(words[0])


def _node(word: str) -> int | None:
    """One NUMA node; None for `N/A` and for a GPU that is near several (`0-1`)."""
    return int(word) if re.fullmatch(r"[0-9]{1,4}", word) else None


def _cells(line: _Line) -> list[str]:
    text = line.text.strip().removeprefix("|").removesuffix("|")
    return [cell.strip(" \t*`") for cell in text.split("|")]


def _table_header(line: _Line) -> list[str] | None:
    """The cells of a line that heads a Markdown or drawn table."""
    if line.text.count("|") < 2:  # noqa: PLR2004 (the fewest bars of a row with a name and a cell)
        return None
    cells = _cells(line)
    return cells if any(_GPU.fullmatch(cell) for cell in cells) else None


def _table(lines: Sequence[_Line], at: int, head: Sequence[str]) -> tuple[_Block, int]:
    """The rows of a table, whose columns stand in any order, and the index after them."""
    header = lines[at]
    devices = {name: index for index, name in enumerate(head) if _DEVICE.fullmatch(name)}
    numa = next((i for i, name in enumerate(head) if name in {"NUMA Affinity", "NUMA"}), None)
    rows: list[_Row] = []
    stop, at = None, at + 1
    while at < len(lines):
        line = lines[at]
        if "|" not in line.text and not _RULE.fullmatch(line.text):
            stop = line if line.text.strip() and not _LEGEND.match(line.text) else None
            break
        at += 1
        if _RULE.fullmatch(line.text):
            continue
        cells = _cells(line)
        names = [
            cell
            for index, cell in enumerate(cells)
            if _DEVICE.fullmatch(cell) and index not in devices.values()
        ]
        if len(names) != 1:
            stop = line
            break
        found = [cells[index] for index in devices.values() if index < len(cells)]
        found = found[: found.index("")] if "" in found else found
        near = _node(cells[numa]) if numa is not None and numa < len(cells) else None
        rows.append(_Row(line=line, name=names[0], cells=tuple(found), numa=near))
    wanted = [name for name in head if _DEVICE.fullmatch(name)]
    return _Block(header=header, devices=tuple(wanted), rows=tuple(rows), stop=stop), at


# --- a block to a machine -------------------------------------------------------------------


def _machine(block: _Block, lines: Sequence[_Line], name: str, model: str | None) -> Reading:
    model = model_of(model)
    size = _size(block)
    rows, notes = _whole_rows(block, size)
    gpus = tuple(
        GPU(index=index, model=model, numa=rows[f"GPU{index}"].numa) for index in range(size)
    )
    _check_symmetry(block.devices, rows)
    column = {device: index for index, device in enumerate(block.devices)}
    links: Matrix = tuple(
        tuple(
            None if i == j else Link.parse(rows[f"GPU{i}"].cells[column[f"GPU{j}"]])
            for j in range(size)
        )
        for i in range(size)
    )
    names = _nic_names(lines[block.header.number :])
    nics = tuple(
        NIC(
            name=names.get(device, device),
            attachment=tuple(
                Link.parse(rows[f"GPU{i}"].cells[column[device]]) for i in range(size)
            ),
        )
        for device in block.devices
        if not _GPU.fullmatch(device)
        and all(len(rows[gpu].cells) > column[device] for gpu in (f"GPU{i}" for i in range(size)))
    )
    machine = Machine(
        name=name,
        gpus=gpus,
        links=links,
        nics=nics,
        nvswitch=behind_nvswitch(model, links),
    )
    return Reading(machine=machine, notes=notes)


def _size(block: _Block) -> int:
    """How many GPUs the header has: GPU0 to the last, each once."""
    if len(set(block.devices)) < len(block.devices):
        twice = next(name for name in block.devices if block.devices.count(name) > 1)
        raise _refused(block.header, f"{twice} has two columns")
    found = sorted(int(gpu[1]) for name in block.devices if (gpu := _GPU.fullmatch(name)))
    if len(found) > MOST_GPUS:
        raise _refused(block.header, f"{len(found)} GPUs; {MOST_GPUS} are the most there can be")
    # By name: `GPU00` is not what any row or legend calls GPU0.
    expected = [f"GPU{index}" for index in range(len(found))]
    absent = [name for name in expected if name not in block.devices]
    if absent:
        raise _refused(block.header, f"{_listed(absent)} has no column, GPU{found[-1]} has one")
    return len(found)


def _whole_rows(block: _Block, size: int) -> tuple[Mapping[str, _Row], tuple[str, ...]]:
    """The rows that are whole where it matters, by name; what is cut behind that is noted."""
    rows: dict[str, _Row] = {}
    notes: list[str] = []
    gpus = {f"GPU{index}" for index in range(size)}
    matter = 1 + max(block.devices.index(gpu) for gpu in gpus)
    for row in _without_torn_word(block):
        if row.name not in block.devices:
            raise _refused(row.line, f"{row.name} has a row but no column")
        if row.name in rows:
            raise _refused(row.line, f"{row.name} has two rows")
        cut = len(row.cells) < len(block.devices)
        last = row.line is block.rows[-1].line
        if cut and (not last or (row.name in gpus and len(row.cells) < matter)):
            raise _refused(
                row.line,
                f"the row of {row.name} is cut: {len(row.cells)} of {len(block.devices)} cells",
            )
        if cut:
            lost = block.devices[len(row.cells) :]
            what = f"{_listed(lost)} left out" if row.name in gpus else "nothing needed is lost"
            notes.append(f"{row.line.where}: the text is cut in the row of {row.name}; {what}")
        if not cut or row.name in gpus:
            rows[row.name] = row
    missing = sorted(gpus - rows.keys(), key=lambda name: int(name[3:]))
    if missing:
        line = block.stop or (block.rows[-1].line if block.rows else block.header)
        raise _refused(line, f"the matrix ends before {_listed(missing)}")
    unseen = [name for name in block.devices if name not in rows and name not in gpus]
    if unseen and len(rows) > size and not notes:
        line = block.rows[-1].line
        notes.append(
            f"{line.where}: the text is cut before {_listed(unseen)}; nothing needed is lost"
        )
    return rows, tuple(notes)


def _without_torn_word(block: _Block) -> Iterator[_Row]:
    """The rows, without a last word that the end of the text has torn (`PI` of `PIX`)."""
    for row in block.rows:
        torn = row is block.rows[-1] and row.cells and not _LINK.fullmatch(row.cells[-1])
        at_end = row.line.text.split()[-1:] == list(row.cells[-1:])
        if torn and at_end and any(link.startswith(row.cells[-1]) for link in _TEARABLE):
            yield _Row(line=row.line, name=row.name, cells=row.cells[:-1], numa=row.numa)
        else:
            yield row


_TEARABLE = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC")


def _check_symmetry(devices: Sequence[str], rows: Mapping[str, _Row]) -> None:
    """Every cell is a link, X stands on the diagonal alone, and both halves agree."""
    for name, row in rows.items():
        for device, cell in zip(devices, row.cells, strict=False):
            place = f"{name}-{device}"
            if not _LINK.fullmatch(cell) or cell == "NV0":
                raise _refused(row.line, f"{place} is {cell!r}, which is no link nvidia-smi knows")
            if (cell == "X") != (name == device):
                raise _refused(row.line, f"{place} is {cell}, but X marks a device and itself")
            other = rows.get(device)
            if other is None or devices.index(name) >= len(other.cells):
                continue
            back = other.cells[devices.index(name)]
            if back != cell and row.line.number > other.line.number:
                raise _refused(
                    row.line,
                    f"{place} is {cell}, but {device}-{name} on {other.line.where} is {back}",
                )


def _nic_names(lines: Sequence[_Line]) -> Mapping[str, str]:
    """The legend `NIC0: mlx5_0`; nothing if it contradicts itself."""
    found = _NIC_NAME.findall("\n".join(line.text for line in lines))
    names = dict(found)
    if len(set(names.values())) < len(names) or any(names[nic] != name for nic, name in found):
        return {}
    return names


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _refused(line: _Line, reason: str) -> UnreadableTopology:
    return UnreadableTopology(f"{reason}: {line.quoted}", where=line.where, hint=HINT)


_FOREIGN = (
    (re.compile(r"ROCm|rocm-smi|amd-smi|XGMI"), "the output of AMD's rocm-smi"),
    (re.compile(r"\bDevice\s+\d+\b.*\bDevice\s+\d+\b"), "a table of another tool"),
)
_HEADLESS = re.compile(r"\W*GPU\d+\s+(?:X|NV\d+|SYS|NODE|P[IXH][XB])\b")


def _nothing_readable(lines: Sequence[_Line], blocks: Sequence[_Block]) -> UnreadableTopology:
    """Say what the text is, since it is not the matrix of nvidia-smi."""
    said = [line for line in lines if line.text.strip()]
    if not said:
        return UnreadableTopology("no text at all", where="line 1", hint=HINT)
    for line in said:
        for pattern, what in _FOREIGN:
            if pattern.search(line.text):
                return _refused(line, f"this is {what}, not {_NVIDIA}")
    if blocks:
        return _refused(blocks[0].header, f"this is {blocks[0].source}, not {_NVIDIA}")
    headless = next((line for line in said if _HEADLESS.match(line.text)), None)
    if headless:
        return _refused(headless, "a row without the header that names its columns")
    return _refused(said[0], "no header (GPU0 GPU1 ...) here or below, so this is no matrix")


# --- NVML -----------------------------------------------------------------------------------

_ANCESTORS = {
    0: LinkKind.PIX,  # two GPUs of one board: "at most a single PCIe bridge"
    10: LinkKind.PIX,
    20: LinkKind.PXB,
    30: LinkKind.PHB,
    40: LinkKind.NODE,
    50: LinkKind.SYS,
}
"""nvmlGpuTopologyLevel_t (nvml.h) in the words of nvidia-smi."""

_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH (nvml.h)."""

_NODE_SCOPE = 0
"""NVML_AFFINITY_SCOPE_NODE (nvml.h)."""

_NUMA_WORDS = 16
"""Words of 64 bits for the NUMA mask: 1,024 nodes, the most that Linux can have."""


def from_nvml(nvml: Any, name: str) -> Machine:
    """Ask NVML for the machine; UnreadableTopology if it cannot list the GPUs.

    `nvml` is the initialised `pynvml` module, or anything with its functions. What an old driver
    or a container does not tell (NUMA nodes, UUIDs, the PCIe generation) stays unknown.
    """
    handles: list[Any] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))  # noqa: PERF401 (count survives)
    except nvml.NVMLError as error:
        raise UnreadableTopology(
            f"the driver does not hand out GPU {len(handles)}: {error}",
            where="NVML",
            hint="nvidia-smi tells more about the state of the GPUs",
        ) from error
    gpus = tuple(
        GPU(
            index=index,
            uuid=_text(_ask(nvml, "nvmlDeviceGetUUID", handle)),
            model=model_of(_text(_ask(nvml, "nvmlDeviceGetName", handle))),
            numa=_nvml_numa(nvml, handle),
        )
        for index, handle in enumerate(handles)
    )
    links, switched = _nvml_links(nvml, handles)
    generations = [_ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle) for handle in handles]
    known = all(generations) and bool(generations)
    model = gpus[0].model if len({gpu.model for gpu in gpus}) == 1 else None
    return Machine(
        name=name,
        gpus=gpus,
        links=links,
        nvswitch=switched or behind_nvswitch(model, links),
        pcie_generation=min(generations) if known else None,
    )


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """The answer, or None where the driver or the Python binding is too old to have one."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(answer: str | bytes | None) -> str | None:
    # Bindings before 11.515 answered in bytes.
    return answer.decode() if isinstance(answer, bytes) else answer


def _nvml_numa(nvml: Any, handle: Any) -> int | None:
    """The one NUMA node near a GPU: the column `NUMA Affinity`, not the memory of the GPU."""
    words = _ask(nvml, "nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, _NODE_SCOPE) or ()
    mask = sum(int(word) << (64 * index) for index, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def _nvml_links(nvml: Any, handles: Sequence[Any]) -> tuple[Matrix, bool]:
    """The matrix, and whether some of it runs through an NVSwitch."""
    place = {_address(_ask(nvml, "nvmlDeviceGetPciInfo", one)): i for i, one in enumerate(handles)}
    direct = [Counter[int]() for _ in handles]
    switch = [0] * len(handles)
    for index, handle in enumerate(handles):
        for lane in range(MOST_LANES):
            if _ask(nvml, "nvmlDeviceGetNvLinkState", handle, lane) != 1:
                continue
            # Behind a switch the remote address is the switch's own and matches no GPU.
            if _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, lane) == _SWITCH:
                switch[index] += 1
                continue
            remote = _address(_ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, lane))
            if remote is not None and remote in place:
                direct[index][place[remote]] += 1

    def link(one: int, other: int) -> Link:
        # A lane that only one end reports as up carries nothing.
        lanes = min(direct[one][other], direct[other][one])
        lanes += min(switch[one], switch[other])
        if lanes:
            return Link(kind=LinkKind.NVLINK, lanes=lanes)
        level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        return Link(kind=_ANCESTORS.get(level, LinkKind.SYS))

    size = len(handles)
    upper = {(i, j): link(i, j) for i in range(size) for j in range(i + 1, size)}
    links = tuple(
        tuple(None if i == j else upper[min(i, j), max(i, j)] for j in range(size))
        for i in range(size)
    )
    return links, sum(1 for lanes in switch if lanes) > 1


def _address(pci: Any) -> tuple[int, int, int] | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)
