"""Reader of NVIDIA tools (`nvidia-smi topo -m`, NVML) -> Machine.

The matrix is read as the command prints it, with or without its colours and a shell's prompt. The
reader guesses nothing: a matrix that is truncated, wrapped, asymmetric or from another tool is
refused with the line, the reason and the command that writes a complete one.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID     header
    GPU0     X      NV12    NODE    0-95    0               N/A             a row for each GPU
    NIC0    NODE    NODE     X                                              a row for each NIC
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

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
    common_model,
    symmetric,
)
from arena_topo.topology.models import MOST_LANES, model_of

SMI_HINT = "on the machine itself, run: nvidia-smi topo -m > FILE"

MAX_MATRIX_CHARACTERS = 1_000_000
"""The limit of characters: 16 GPUs and 32 NICs have some 20,000, so more is another file."""

# Colours and titles of a terminal, and the byte order mark that some editors write.
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()].|\x1b\][^\x07\n]*\x07|[\x00\ufeff]")
_DEVICE = re.compile(r"[A-Za-z][\w.\-]*\d[\w.\-]*", re.ASCII)
_GPU = re.compile(r"GPU\d{1,3}", re.ASCII)
_GLUED = re.compile(r"(?:GPU|NIC|mlx\d_)\d+(?=GPU\d|NIC\d|mlx\d_)", re.ASCII)
_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|NUMA(?=\s|$)")
_BONDED = re.compile(r"NV\d{1,3}", re.ASCII)
_LEGEND = re.compile(r"\s*(NIC\d{1,3}):\s+([A-Za-z]\S*)\s*", re.ASCII)

_QUOTED = 64
"""Characters of a line in an error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The machine in a file, with notes on unused parts of the file."""

    machine: Machine
    notes: tuple[str, ...] = ()


def parse_topo(text: str, *, name: str = "machine", model: str | None = None) -> Machine:
    """Read the output of `nvidia-smi topo -m`; UnreadableTopology names the line and the reason.

    `model` is the GPUs' model or product name, which is not part of the matrix.
    """
    if len(text) > MAX_MATRIX_CHARACTERS:
        raise UnreadableTopology(
            f"{len(text):,} characters are too many for a matrix", where="line 1", hint=SMI_HINT
        )
    matrix = _Matrix(_ESCAPE.sub("", text.replace("\r\n", "\n")).split("\n"))
    model, names = model_of(model), matrix.gpus
    links = symmetric(len(names), lambda i, j: matrix.link(names[i], names[j]))
    return Machine(
        name=name,
        gpus=tuple(
            GPU(index=index, model=model, numa=matrix.numa(gpu)) for index, gpu in enumerate(names)
        ),
        links=links,
        nics=tuple(
            NIC(
                name=matrix.names.get(nic, nic),
                attachment=tuple(matrix.link(gpu, nic) for gpu in matrix.gpus),
            )
            for nic in matrix.devices
            if nic not in names
        ),
        nvswitch=behind_nvswitch(model, links),
    )


def nvlink_matrix(
    direct: Sequence[Mapping[int, int]], switch: Sequence[int], path: Callable[[int, int], Link]
) -> tuple[Matrix, bool]:
    """The matrix of GPUs from the NVLinks of each, and whether an NVSwitch connects some.

    `direct` has the lanes of each GPU to each other, `switch` those to switches; `path` is the PCIe
    path of two GPUs without NVLinks between them.
    """

    def link(gpu: int, peer: int) -> Link:
        # A lane that only one end reports carries no traffic.
        lanes = min(direct[gpu].get(peer, 0), direct[peer].get(gpu, 0))
        lanes += min(switch[gpu], switch[peer])
        return Link(kind=LinkKind.NVLINK, lanes=lanes) if lanes else path(gpu, peer)

    return symmetric(len(direct), link), sum(1 for lanes in switch if lanes) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of the matrix: its line number, a cell per device, and the affinities at its end."""

    at: int
    cells: Mapping[str, str]
    rest: str


class _Matrix:
    """The checked matrix of a text: complete rows, valid cells, both halves equal."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        headers = [at for at, line in enumerate(lines) if _columns(line)[0]]
        if not headers:
            at = next((at for at, line in enumerate(lines) if line.strip()), 0)
            self._refuse(at, "no header (GPU0 GPU1 ...) here or below, so this is no matrix")
        devices, self._affinities = _columns(lines[headers[0]])
        self.devices = dict.fromkeys(devices)
        for device in filter(_GLUED.match, devices):
            self._refuse(headers[0], f"{device} is two devices, as a blank is missing")
        if len(self.devices) < len(devices):
            self._refuse(headers[0], "a device has two columns")
        self.gpus = self._numbered(headers[0])
        self._rows: dict[str, _Row] = {}
        end = self._read(headers[0] + 1)
        for gpu in self.gpus:
            if gpu not in self._rows:
                self._refuse(end, f"the matrix ends before the row of {gpu}")
        for name, row in self._rows.items():
            self._check(name, row)
        if headers[1:]:
            self._refuse(headers[1], "a second matrix, and a file describes one machine")
        legend = (_LEGEND.fullmatch(line) for line in lines[end:])
        self.names = {entry[1]: entry[2] for entry in legend if entry}

    def link(self, gpu: str, device: str) -> Link:
        """The link between a GPU and another device."""
        return Link.parse(self._rows[gpu].cells[device])

    def numa(self, gpu: str) -> int | None:
        """The one NUMA node near a GPU; None if its row has none, or several.

        In a row with a word for each column blanks and tabs are equivalent; with empty cells only
        tabs separate columns.
        """
        numa = {"NUMA Affinity", "NUMA"}
        at = next((at for at, title in enumerate(self._affinities) if title in numa), None)
        cells = self._rows[gpu].rest.split()
        if len(cells) < len(self._affinities):
            cells = [cell.strip() for cell in self._rows[gpu].rest.split("\t")[1:]]
        if at is None or len(cells) <= at or not re.fullmatch(r"[0-9]{1,4}", cells[at]):
            return None
        return int(cells[at])

    def _numbered(self, at: int) -> list[str]:
        """The GPUs from GPU0 to the last, without a gap."""
        gpus = [device for device in self.devices if _GPU.fullmatch(device)]
        if len(gpus) > MOST_GPUS:
            self._refuse(at, f"{len(gpus)} GPUs; {MOST_GPUS} are the most there can be")
        expected = [f"GPU{index}" for index in range(len(gpus))]
        for gpu in expected:
            if gpu not in self.devices:
                self._refuse(at, f"{gpu} has no column, {gpus[-1]} has one")
        return expected

    def _read(self, start: int) -> int:
        """Read rows from a line on; returns the first line that is not a row, or the last line."""
        complete = re.compile(rf"\s*\S+(?:\s+\S+){{{len(self.devices)}}}")
        for at in range(start, len(self._lines)):
            line = self._lines[at]
            name, *cells = line.split() or [""]
            if name in self._rows or (name and name not in self.devices):
                unknown = name not in self.devices and _is_device(name)
                if unknown and _are_links(cells[: len(self.devices)]):
                    self._refuse(at, f"{name} has a row, but no column")
                return at
            if name:
                match = complete.match(line)
                if match is None:
                    size = f"{len(cells)} of {len(self.devices)} cells"
                    self._refuse(at, f"the row of {name} is cut or wrapped: {size}")
                by_device = dict(zip(self.devices, cells, strict=False))
                self._rows[name] = _Row(at=at, cells=by_device, rest=line[match.end() :])
        return max(at for at, line in enumerate(self._lines) if line.strip())

    def _check(self, name: str, row: _Row) -> None:
        for other, word in row.cells.items():
            try:
                _ = word == "X" or Link.parse(word)
            except ValueError as error:
                self._refuse(row.at, f"{name}-{other}: {error}")
            where = f"{name}-{other} is {word}"
            if (word == "X") != (name == other):
                self._refuse(row.at, f"{where}, but X marks a device and itself")
            above = self._rows.get(other, row)
            if above.at < row.at and above.cells[name] != word:
                mirror = f"{other}-{name} on line {above.at + 1} is {above.cells[name]}"
                self._refuse(row.at, f"{where}, but {mirror}")

    def _refuse(self, at: int, reason: str) -> NoReturn:
        text = " ".join(self._lines[at].split())
        # The error may be at the end of a line as well as at its beginning.
        quoted = text if len(text) <= _QUOTED else f"{text[: _QUOTED // 2]} ... {text[-24:]}"
        raise UnreadableTopology(f"{reason}: {quoted!r}", where=f"line {at + 1}", hint=SMI_HINT)


def _columns(line: str) -> tuple[list[str], list[str]]:
    """The devices and the affinities in a header; both empty if the line is no header."""
    affinities = _AFFINITY.findall(line)
    devices = _AFFINITY.sub(" ", line).split() if "GPU" in line else []
    header = any(map(_GPU.fullmatch, devices)) and all(map(_is_device, devices))
    return (devices, affinities) if header else ([], [])


def _is_device(word: str) -> bool:
    return _DEVICE.fullmatch(word) is not None and not _BONDED.fullmatch(word)


def _are_links(cells: Sequence[str]) -> bool:
    """Whether these are cells of a matrix, at least one."""
    words = {"X", "SOC", *LinkKind.__members__} - {"NVLINK"}
    return bool(cells) and all(cell in words or _BONDED.fullmatch(cell) for cell in cells)


# --- NVML -----------------------------------------------------------------------------------

_ANCESTORS = {
    0: LinkKind.PIX,  # two GPUs of one board: "at most a single PCIe bridge"
    10: LinkKind.PIX,
    20: LinkKind.PXB,
    30: LinkKind.PHB,
    40: LinkKind.NODE,
    50: LinkKind.SYS,
}
"""nvmlGpuTopologyLevel_t (nvml.h) -> the path in the words of nvidia-smi."""

_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH (nvml.h)."""

_NODE_SCOPE = 0
"""NVML_AFFINITY_SCOPE_NODE (nvml.h)."""

_NUMA_WORDS = 16
"""Words of 64 bits for the NUMA mask: 1,024 nodes, the most that Linux can have."""


def machine_from_nvml(nvml: Any, name: str) -> Machine:
    """Read the machine from NVML; UnreadableTopology if it cannot list the GPUs.

    `nvml` is the initialised `pynvml` module, or an object with its functions. Facts that an old
    driver or a container does not report (NUMA nodes, UUIDs, the PCIe generation) stay unknown.
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
    return Machine(
        name=name,
        gpus=gpus,
        links=links,
        nvswitch=switched or behind_nvswitch(common_model(gpus), links),
        pcie_generation=min(generations) if known else None,
    )


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """The result, or None if the driver or the Python binding is too old for the call."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(answer: str | bytes | None) -> str | None:
    # Bindings before 11.515 returned bytes.
    return answer.decode() if isinstance(answer, bytes) else answer


def _nvml_numa(nvml: Any, handle: Any) -> int | None:
    """The one NUMA node near a GPU: the column `NUMA Affinity`, not the GPU's own memory."""
    words = _ask(nvml, "nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, _NODE_SCOPE) or ()
    mask = sum(int(word) << (64 * index) for index, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def _nvml_links(nvml: Any, handles: Sequence[Any]) -> tuple[Matrix, bool]:
    """The matrix, and whether some links run through an NVSwitch."""
    addresses = (_address(_ask(nvml, "nvmlDeviceGetPciInfo", handle)) for handle in handles)
    place = {address: index for index, address in enumerate(addresses)}
    direct = [Counter[int]() for _ in handles]
    switch = [0] * len(handles)
    for index, handle in enumerate(handles):
        for lane in range(MOST_LANES):
            if _ask(nvml, "nvmlDeviceGetNvLinkState", handle, lane) != 1:
                continue
            # Behind a switch the remote address is that of the switch and matches no GPU.
            if _ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, lane) == _SWITCH:
                switch[index] += 1
                continue
            remote = _address(_ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, lane))
            if remote is not None and remote in place:
                direct[index][place[remote]] += 1

    def path(gpu: int, peer: int) -> Link:
        level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[gpu], handles[peer])
        return Link(kind=_ANCESTORS.get(level, LinkKind.SYS))

    return nvlink_matrix(direct, switch, path)


def _address(pci: Any) -> tuple[int, int, int] | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)
