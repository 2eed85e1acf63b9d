"""Write docs/fidelity.md: `python docs/site/fidelity.py [--check | --fit]`.

The bandwidth model beside measured all-reduces (`tests/bandwidth/`): errors by class, each source
left out of the fit in turn. `--fit` prints the constants that the healthy rows give.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import training_pairs
import training_pools
from msgspec import structs

from arena_topo.bandwidth import Algorithm, Estimate, Host, Limit, Regime, Wire
from arena_topo.bandwidth.estimates import Factor
from arena_topo.bandwidth.fitted import FITTED, Constants
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.topology import (
    GPU,
    Link,
    LinkKind,
    Machine,
    Plugin,
    Software,
    flat,
    gpu_set,
    members,
    presets,
)
from arena_topo.topology.models import MODELS, Architecture
from arena_topo.topology.nics import NICs
from arena_topo.topology.nvidia import parse_topo

DOCS = Path(__file__).resolve().parents[1]
PAGE = DOCS / "fidelity.md"
ROWS = DOCS.parent / "tests" / "bandwidth" / "busbw.tsv"
SWEEPS = DOCS.parent / "tests" / "bandwidth" / "busbw_sizes.tsv"

TCP_ROWS = frozenset({"6", "324"})
"""Rows over sockets; every other row between hosts has RDMA or what stands in for it (TCPXO)."""

SOFTWARE = {
    **dict.fromkeys(("37", "39", "48", "49"), Software(plugin=Plugin.EFA)),
    "82": Software(plugin=Plugin.TCPXO),
    # EFA before NCCL 2.9, and p3dn: no GPUDirect RDMA.
    **dict.fromkeys(("321", "322"), Software(plugin=Plugin.EFA, gdr=False)),
    "329": Software(plugin=Plugin.TCPX),
    **dict.fromkeys(("331", "332", "335"), Software(plugin=Plugin.CXI)),
}
"""What the sources of rows say of the software: a user can say it to the forecast as well."""


SETS = {"137": (0, 1, 6, 7)}
"""The GPUs of rows that are not the first ones of their machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured all-reduce, and the job that it was measured on."""

    name: str
    source: str
    url: str
    case: str
    kind: str
    note: str
    healthy: bool
    measured: float
    hosts: tuple[Host, ...]
    algorithm: Algorithm | None
    wire: Wire | None

    def estimate(self, constants: Constants = FITTED) -> Estimate:
        """What the model says of it."""
        estimated = estimate(
            self.hosts, algorithm=self.algorithm, wire=self.wire, constants=constants
        )
        if estimated is None:
            raise ValueError(f"row {self.name} has a single GPU")
        return estimated


# ---------------------------------------------------------------- rows


def rows() -> tuple[tuple[Row, ...], dict[str, str]]:
    """The usable rows, and why each of the others is not one."""
    usable: list[Row] = []
    left: dict[str, str] = {}
    with ROWS.open(encoding="utf-8") as file:
        for fields in csv.DictReader(file, delimiter="\t"):
            if fields["algo"] == "SHARP":
                left[fields["id"]] = "SHARP: switches of the network reduce, which is not modelled"
            elif fields["usable"] != "1":
                left[fields["id"]] = fields["note"]
            else:
                usable.append(_row(fields))
    return tuple(usable), left


def _without_p2p(machine: Machine) -> Machine:
    """The same machine with cards that do not reach each other over PCIe."""
    return replace(machine, gpus=tuple(replace(gpu, model="RTX 4090") for gpu in machine.gpus))


def _row(fields: Mapping[str, str]) -> Row:
    nodes = int(fields["nodes"])
    cards, speed = int(fields["nics_per_node"]), float(fields["nic_GBps"])
    machines = [_machine(fields["machine"], f"node-{node}") for node in range(nodes)]
    size = 2 if fields["gpus_per_node"] == "any" else int(fields["gpus_per_node"])
    # The NICs of a row are those of its GPUs, or of the whole machine where it has one for each.
    many = size if 0 < cards < len(machines[0].gpus) and size < len(machines[0].gpus) else 0
    gpus = gpu_set(SETS.get(fields["id"], range(size)))
    if cards and nodes > 1:
        served = size if many else len(machines[0].gpus)
        machines = [_carded(machine, cards, speed, served) for machine in machines]
    software = SOFTWARE.get(fields["id"])
    if software is not None:
        machines = [replace(machine, software=software) for machine in machines]
    if fields["class"] == "pcie-staged":
        machines = [_without_p2p(machine) for machine in machines]
    if fields["class"].startswith("mnnvl"):
        racks = 2 if fields["class"] == "mnnvl-2racks" else 1
        trays = nodes // racks
        hosts = [
            Host(parts=tuple((machine, gpus) for machine in machines[start : start + trays]))
            for start in range(0, nodes, trays)
        ]
    else:
        hosts = [Host.of(machine, gpus) for machine in machines]
    algorithm = Algorithm.RING if fields["algo"] == "ring" else None
    wire = Wire.TCP if fields["id"] in TCP_ROWS else Wire.RDMA
    return Row(
        name=fields["id"],
        source=fields["source"],
        url=fields["url"],
        case=fields["class"],
        kind=fields["kind"],
        note=fields["note"],
        healthy=fields["healthy"] == "1",
        measured=float(fields["measured_busbw"]),
        hosts=tuple(hosts),
        algorithm=algorithm,
        wire=wire if nodes > 1 else None,
    )


def _carded(machine: Machine, cards: int, speed: float, served: int) -> Machine:
    if served == len(machine.gpus):
        return NICs(number=cards, speed=speed).of(machine)
    part = replace(machine, gpus=machine.gpus[:served], nics=())
    nics = NICs(number=cards, speed=speed).of(part).nics
    far = (Link(kind=LinkKind.SYS),) * (len(machine.gpus) - served)
    return replace(
        machine, nics=tuple(replace(nic, attachment=nic.attachment + far) for nic in nics)
    )


def _machine(name: str, node: str) -> Machine:
    if name in presets.preset_names():
        return presets.preset_machine(name, node)
    if name.startswith("@"):
        path = ROWS.parent / "machines" / f"{name[1:]}.txt"
        machine = parse_topo(path.read_text(encoding="utf-8"), name=node, model=_CARD)
        return replace(machine, pcie_generation=5)
    return _OTHERS[name](node)


def _pcie(
    size: int,
    link: str,
    generation: int | None,
    *,
    model: str | None = None,
    pairs: str = "",
    sockets: int = 1,
) -> Callable[[str], Machine]:
    """A machine whose GPUs PCIe joins, neighbours by `pairs` where given, over some sockets."""

    def made(node: str) -> Machine:
        links = [list(line) for line in flat(size, Link.parse(link))]
        for first, other in itertools.permutations(range(size), 2):
            if first * sockets // size != other * sockets // size:
                links[first][other] = Link.parse("SYS")
            if pairs and first // 2 == other // 2:
                links[first][other] = Link.parse(pairs)
        return Machine(
            name=node,
            gpus=tuple(GPU(index=index, model=model) for index in range(size)),
            links=tuple(map(tuple, links)),
            pcie_generation=generation,
        )

    return made


_CARD = "RTX PRO 6000 Blackwell Server Edition"
"""The card of the rows whose machine is a captured matrix: RTX 6000D, its twin for China."""

_OTHERS: Mapping[str, Callable[[str], Machine]] = {
    "pix2-gen4": _pcie(2, "PIX", 4),
    "pix2-gen5": _pcie(2, "PIX", 5),
    "pcie8-node-gen5": _pcie(8, "NODE", 5),
    "pcie8-sys-gen5": _pcie(8, "NODE", 5, sockets=2),
    "pcie8-node-sys-gen5": _pcie(8, "NODE", 5, model="RTX 5090", sockets=2),
    # Nobody said the generation of this one.
    "pcie8-node-sys-gen4": _pcie(8, "NODE", None, sockets=2),
    "a40-4-pairs": _pcie(4, "SYS", 4, model="A40", pairs="NV4"),
    "nc96": _pcie(4, "SYS", 4, model="A100", pairs="NV12"),
    "h100pcie-2-nv12": _pcie(2, "NODE", 5, model="H100", pairs="NV12"),
    "2080ti-2-nv2": _pcie(2, "PHB", 3, pairs="NV2"),
    "titan-rtx-2": _pcie(2, "PHB", 3, model="TITAN RTX", pairs="NV2"),
    "p100-4": _pcie(4, "PHB", 3, model="P100"),
}
"""Machines of rows that no preset describes, as their sources do."""


# ---------------------------------------------------------------- the fit


def fit(given: Iterable[Row], start: Constants = FITTED) -> Constants:
    """The constants that the healthy rows give, and latencies that their sweeps do.

    A constant without a row stays as it was, or is that of rings.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in given:
        estimated = row.estimate(start)
        key = _constant(estimated, row)
        if key is not None and row.healthy:
            ratios[key].append(row.measured / estimated.point)

    def new(key: str, old: Factor) -> Factor:
        return _factor(old, ratios[key]) if ratios[key] else old

    changes = {key: new(key, getattr(start, key)) for key in _SIMPLE}
    # Pairs with a bridge reach all of their links or half: the point says all, the range both.
    whole = changes["nvlink"]
    changes["bridge"] = structs.replace(changes["bridge"], value=whole.value, high=whole.high)
    # What is less than a ring, or than one host inside, is so by choice of NCCL: it may be as fast.
    # So may a slow NIC without GPUDirect RDMA: one GPU of a g7e.8xlarge reaches 12.37 of 12.5 GB/s
    # (https://github.com/gnosia93/slurm-on-aws/blob/a3ec8e5/lesson/3-nccl-test.md).
    most_of = {"mesh": whole.value, "tcpx": whole.value, "tree": 1.0, "no_gdr": 1.0}
    for key, most in most_of.items():
        changes[key] = structs.replace(changes[key], high=most)
    # Who has no row of a special case would forecast the general one.
    changes |= {key: whole for key in ("volta", "mesh", "tcpx") if not ratios[key]}
    return structs.replace(
        start,
        **changes,
        nvls=MappingProxyType({key: new(key, old) for key, old in start.nvls.items()}),
        latency=MappingProxyType(latencies()),
    )


_SIMPLE = (
    *("nvlink", "volta", "mesh", "bridge", "islands", "pcie_switch", "pcie_host"),
    *("network", "tree", "domain", "cxi", "tcpx", "no_gdr"),
)


def _constant(estimated: Estimate, row: Row) -> str | None:
    """The constant that decides an estimate's point; None for those without rows here."""
    machine, _ = row.hosts[0].parts[0]
    architecture = MODELS[machine.model].architecture if machine.model in MODELS else None
    software = machine.software
    if estimated.limited_by is Limit.HOST:
        old = architecture in {Architecture.VOLTA, Architecture.AMPERE}
        key = "tree" if old and estimated.regime is Regime.TWO_HOSTS else None
    elif estimated.regime in {Regime.TWO_HOSTS, Regime.HOSTS}:
        key = "network" if software.gdr else "no_gdr"
        key = "cxi" if software.plugin is Plugin.CXI else key
    elif estimated.regime is Regime.NVLS:
        key = architecture if len(row.hosts[0].parts) == 1 else "domain"
    elif estimated.regime in {Regime.SWITCH, Regime.MESH}:
        key = "volta" if architecture is Architecture.VOLTA else "nvlink"
        mesh = estimated.regime is Regime.MESH and architecture is Architecture.AMPERE
        key = "mesh" if mesh and _paths(row) == {LinkKind.NVLINK} else key
        key = "tcpx" if software.plugin is Plugin.TCPX else key
    elif estimated.regime is Regime.PCIE:
        key = "pcie_switch" if min(_paths(row)) >= LinkKind.PXB else "pcie_host"
    else:
        key = {Regime.BRIDGE: "bridge", Regime.ISLANDS: "islands"}.get(estimated.regime)
    return key


def _paths(row: Row) -> set[LinkKind]:
    """The kinds of links between the GPUs of a host."""
    machine, gpus = row.hosts[0].parts[0]
    return {machine.link(*pair).kind for pair in itertools.combinations(members(gpus), 2)}


def _factor(old: Factor, ratios: Sequence[float]) -> Factor:
    return _spread([old.value * ratio for ratio in ratios])


def _spread(values: Sequence[float]) -> Factor:
    """The geometric mean of values, and the range of their middle 80 % with room."""
    ordered = sorted(values)
    slack = 1 + REPEAT + FEW / len(ordered)
    return Factor(
        value=_rounded(statistics.geometric_mean(ordered)),
        low=_rounded(quantile(ordered, 0.1) / slack),
        high=_rounded(quantile(ordered, 0.9) * slack),
        rows=len(ordered),
    )


REPEAT = 0.03
FEW = 0.2
"""How far a range reaches beyond the middle 80 % of its rows: one machine repeats its readings
within some 3 %, and the fewer rows there are, the less they say of the next one."""


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of ordered values lies, between two values linearly."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


_KINDS = {"p4de 2": "network", "p5 2": "network", "a3-mega": "network", "B200 4": "network"}
_KINDS |= {"DGX H100 2x2": "network", "NC96": "pcie"}
"""What joins the GPUs of a sweep, by how its name begins; NVLink for all others."""

SMALLEST = 1 << 20
"""Bytes from which the shares of a sweep are fitted: below, NCCL changes its protocol."""


def sweeps() -> dict[tuple[str, int], list[tuple[int, float]]]:
    """Bytes and bus bandwidth of each sweep, by its name and its ranks."""
    points: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    with SWEEPS.open(encoding="utf-8") as file:
        for fields in csv.DictReader(file, delimiter="\t"):
            size, rate = int(fields["bytes"]), float(fields["busbw_GBps"])
            points[fields["sweep"], int(fields["ranks"])].append((size, rate))
    return dict(points)


def latency(ranks: int, points: Sequence[tuple[int, float]]) -> float:
    """The seconds of t = latency + bytes / plateau that fit a sweep best, in mean log error."""
    plateau = max(rate for _, rate in points) * 1e9
    moved = [
        (2 * (ranks - 1) / ranks * size / plateau, rate * 1e9 / plateau)
        for size, rate in points
        if size >= SMALLEST
    ]

    def error(seconds: float) -> float:
        return sum(abs(math.log(time / (time + seconds) / share)) for time, share in moved)

    return min((1e-6 * 1.05**step for step in range(150)), key=error)


def latencies() -> dict[str, Factor]:
    """The latency of the sweeps over NVLink, over PCIe and between hosts."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for (name, ranks), points in sweeps().items():
        kind = next((kind for begin, kind in _KINDS.items() if name.startswith(begin)), "nvlink")
        by_kind[kind].append(latency(ranks, points))
    return {kind: _spread(some) for kind, some in by_kind.items()}


# ---------------------------------------------------------------- how far it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A row, and what the model says with the source of that row left out of the fit."""

    row: Row
    found: Estimate

    @property
    def error(self) -> float:
        """The relative error of the point."""
        return self.found.point / self.row.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the range holds what was measured."""
        return self.found.low <= self.row.measured <= self.found.high


@functools.cache
def tried(given: tuple[Row, ...]) -> tuple[Tried, ...]:
    """Each row, forecast without its source."""
    without = {
        source: fit([row for row in given if row.source != source])
        for source in {row.source for row in given}
    }
    return tuple(Tried(row=row, found=row.estimate(without[row.source])) for row in given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Pairs of rows of one source that differ by 5 % and more: how the model orders them."""

    right: int
    wrong: int
    ties: int


def order(given: Sequence[Tried]) -> Order:
    """How pairs within a source are ordered; forecasts within 1 % of each other are a tie."""
    right = wrong = ties = 0
    for first, other in itertools.combinations(given, 2):
        if first.row.source != other.row.source:
            continue
        if max(first.row.measured, other.row.measured) < 1.05 * min(
            first.row.measured, other.row.measured
        ):
            continue
        if abs(math.log(first.found.point / other.found.point)) < math.log(1.01):
            ties += 1
        elif (first.found.point > other.found.point) == (first.row.measured > other.row.measured):
            right += 1
        else:
            wrong += 1
    return Order(right=right, wrong=wrong, ties=ties)


def spearman(given: Sequence[Tried]) -> float:
    """The rank correlation of forecast and measured values."""
    pairs = (
        _ranks([trial.found.point for trial in given]),
        _ranks([trial.row.measured for trial in given]),
    )
    return statistics.correlation(*pairs)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def absolute(given: Sequence[Tried]) -> list[float]:
    """The sizes of the errors, smallest first."""
    return sorted(abs(trial.error) for trial in given)


WIDE = frozenset({Regime.TCP, Regime.STAGED})
"""Regimes whose ranges are wide by nature: the host or the network decides, and nobody tells."""


def width(given: Sequence[Tried]) -> float:
    """The median width (high / low) of ranges, without those that are wide by nature."""
    return statistics.median(
        trial.found.high / trial.found.low for trial in given if trial.found.regime not in WIDE
    )


def counted(given: Sequence[Tried]) -> list[Tried]:
    """The rows of classes with two sources and more: others are only compared with themselves."""
    sources: dict[str, set[str]] = defaultdict(set)
    for trial in given:
        sources[trial.row.case].add(trial.row.source)
    return [trial for trial in given if len(sources[trial.row.case]) > 1]


# ---------------------------------------------------------------- the page

MARK = "python docs/site/fidelity.py"


def page() -> str:
    """The whole page."""
    usable, left = rows()
    every = tried(usable)
    healthy = [trial for trial in every if trial.row.healthy]
    return "\n".join(
        [
            *_head(healthy, every),
            *_outside(every),
            *_classes(healthy, every),
            *_sources(healthy, every),
            *_constants(),
            *_shares(),
            *_worst(every),
            *_out(left),
            *_tried(),
            *training_pairs.section(training_pairs.pairs(_machine)),
            *training_pools.section(),
        ]
    )


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _summary(name: str, given: Sequence[Tried]) -> str:
    errors, pairs = absolute(given), order(given)
    return (
        f"| {name} | {len(given)} | {_percent(statistics.median(errors))}"
        f" | {_percent(quantile(errors, 0.9))}"
        f" | {_percent(sum(trial.inside for trial in given) / len(given), 0)}"
        f" | {width(given):.2f} | {spearman(given):.3f}"
        f" | {pairs.right} / {pairs.wrong} / {pairs.ties} |"
    )


KINDS = {
    "tuned": "tuned: published by a vendor, a cloud or a benchmark as what its machine reaches",
    "posted": "posted: shown by somebody as what theirs gives",
}
"""The kinds of sources."""


def _head(healthy: Sequence[Tried], every: Sequence[Tried]) -> list[str]:
    sources = len({trial.row.source for trial in every})
    judged = counted(healthy)
    alone = sorted({trial.row.case for trial in healthy} - {trial.row.case for trial in judged})
    return [
        "# How true the forecasts are",
        "",
        "How far the bandwidths that [`forecast`](reference/forecast.md) gives are from measured",
        f"ones: {len(every)} all-reduces of {sources} sources. Each is forecast with constants",
        "that were fitted without its source. `python docs/site/fidelity.py` writes this page.",
        "",
        "Constants are fitted on *healthy* rows alone. The others were posted as slow, or their",
        "machine is not named, or a NIC was left out by hand: a reader's cluster may be one of",
        "them, so they stand beside the healthy ones.",
        "",
        "| rows | | median | 90th | in range | width | Spearman | pairs: right / wrong / tie |",
        "|---|---|---|---|---|---|---|---|",
        *(
            _summary(words, [trial for trial in judged if trial.row.kind == kind])
            for kind, words in KINDS.items()
        ),
        _summary("healthy", healthy),
        _summary("all usable", every),
        "",
        "Median and 90th percentile are of the relative error. A range is meant to hold four",
        "measurements of five; width is the median of high / low, without TCP and copies through",
        "host memory, whose ranges are wide by nature. Pairs are two rows of one source that",
        "differ by 5 % and more; forecasts within 1 % of each other are a tie. The first two lines",
        "have the healthy rows of classes with several sources; classes with one are",
        f"{_listed(alone)}.",
        "",
    ]


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}" if words[1:] else "".join(words)


CAUSES = {
    "100": "eight GPUs of this machine reach 0.86 of their rings, four 0.96",
    "103": "measured above the rate of its NIC",
    "139": "half of the links of its bridge, as row 140; others reach all",
    "321": "EFA without GPUDirect RDMA: two examples of one repository, a factor of three apart",
    "322": "EFA without GPUDirect RDMA: two examples of one repository, a factor of three apart",
    "329": "the only row of plug-in tcpx: without it, that of rings",
    "330": "the only row of a mesh of A100: without it, that of rings",
    "335": "Slingshot plug-in, years newer than the other two rows of it, which are slower",
}
"""Why rows lie outside their ranges; of others the note in the table says it, if anything."""


def _outside(every: Sequence[Tried]) -> list[str]:
    lines = [
        "## Outside the range",
        "",
        "| row | source | kind | healthy | measured | range | cause |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {trial.row.name} ({trial.row.case}) | {trial.row.source} | {trial.row.kind}"
        f" | {'yes' if trial.row.healthy else 'no'} | {trial.row.measured:g}"
        f" | {trial.found.low:.1f} to {trial.found.high:.1f}"
        f" | {CAUSES.get(trial.row.name) or trial.row.note or 'not known'} |"
        for trial in sorted(every, key=lambda trial: (not trial.row.healthy, int(trial.row.name)))
        if not trial.inside
    ]
    return [*lines, ""]


def _classes(healthy: Sequence[Tried], every: Sequence[Tried]) -> list[str]:
    def cells(given: Sequence[Tried]) -> str:
        if not given:
            return "0 | | | |"
        errors = absolute(given)
        worst = max((trial.error for trial in given), key=abs)
        return (
            f"{len(given)} | {_percent(statistics.median(errors))}"
            f" | {_percent(quantile(errors, 0.9))}"
            f" | {_signed(statistics.mean(trial.error for trial in given))} | {_signed(worst)}"
        )

    lines = [
        "## By class",
        "",
        "Bias is the mean of forecast / measured - 1; healthy rows left, all usable ones right.",
        "",
        "| class | rows | median | 90th | bias | worst | rows | median | 90th | bias | worst |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in sorted({trial.row.case for trial in every}):
        good = [trial for trial in healthy if trial.row.case == kind]
        some = [trial for trial in every if trial.row.case == kind]
        lines.append(f"| {kind} | {cells(good)} | {cells(some)} |")
    return [*lines, ""]


def _sources(healthy: Sequence[Tried], every: Sequence[Tried]) -> list[str]:
    lines = [
        "## Each source left out",
        "",
        "| source | healthy | median | worst | pairs | usable | median | worst | pairs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def cells(given: Sequence[Tried]) -> str:
        if not given:
            return "0 | | | "
        pairs = order(given)
        worst = max((trial.error for trial in given), key=abs)
        return (
            f"{len(given)} | {_percent(statistics.median(absolute(given)))} | {_signed(worst)}"
            f" | {pairs.right} / {pairs.wrong} / {pairs.ties}"
        )

    for source in sorted({trial.row.source for trial in every}):
        good = [trial for trial in healthy if trial.row.source == source]
        some = [trial for trial in every if trial.row.source == source]
        url = some[0].row.url
        name = f"[{source}]({url})" if url else source
        lines.append(f"| {name} | {cells(good)} | {cells(some)} |")
    return [*lines, ""]


_MEANS = {
    "nvlink": "rings over NVLink: share of lanes x rate",
    "volta": "the same on V100, whose links carry more than the 20 GB/s that NCCL counts",
    "mesh": "full meshes of Ampere and newer: share of (g-1) x lanes x rate",
    "hopper": "NVLS on Hopper: share of lanes x rate x 2(g-1)/(g+1)",
    "blackwell": "NVLS on Blackwell: the same",
    "bridge": "two cards with an NVLink bridge: the same point, the range of their own rows",
    "islands": "bridged pairs joined by PCIe: share of twice the PCIe path",
    "pcie_switch": "within a PCIe switch: GB/s at generation 3, doubled by each one after",
    "pcie_host": "across host bridges or sockets: the same",
    "network": "share of the NICs of the chosen GPUs",
    "tree": "two hosts of Ampere and older: share of one host inside",
    "domain": "NVLS over several nodes of an NVLink domain: share of lanes x rate x 14/9",
    "cxi": "plug-in cxi (Slingshot): share of the NICs",
    "tcpx": "plug-in tcpx: share of rings inside a host",
    "no_gdr": "without GPUDirect RDMA: share of the NICs",
}


def _constants() -> list[str]:
    lines = [
        "## Constants",
        "",
        "`low` and `high` are the range that the constant gives; `rows` stand behind it.",
        "",
        "| what | value | low | high | rows |",
        "|---|---|---|---|---|",
    ]
    every = {key: getattr(FITTED, key) for key in _SIMPLE} | dict(FITTED.nvls)
    for key, what in _MEANS.items():
        row = every[key]
        lines.append(f"| {what} | {row.value:g} | {row.low:g} | {row.high:g} | {row.rows} |")
    return [*lines, ""]


def _shares() -> list[str]:
    lines = [
        "## Message size",
        "",
        "Time is a latency plus bytes / plateau. The share of its plateau that each sweep reached,",
        "measured and by the latency that all sweeps of its kind share:",
        "",
        "| sweep | latency alone | shared | 1 MiB | 16 MiB | 64 MiB | 256 MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, ranks), points in sweeps().items():
        kind = next((kind for begin, kind in _KINDS.items() if name.startswith(begin)), "nvlink")
        plateau = max(rate for _, rate in points)
        shared = FITTED.latency[kind].value
        cells = []
        for mebibytes in (1, 16, 64, 256):
            measured = dict(points)[mebibytes << 20] / plateau
            time = 2 * (ranks - 1) / ranks * (mebibytes << 20) / (plateau * 1e9)
            cells.append(f"{_percent(measured, 0)}, {_percent(time / (time + shared), 0)}")
        own = 1e6 * latency(ranks, points)
        lines.append(f"| {name} | {own:.0f} us | {1e6 * shared:.0f} us | {' | '.join(cells)} |")
    return [*lines, ""]


def _worst(every: Sequence[Tried]) -> list[str]:
    lines = [
        "## The worst rows",
        "",
        "| row | source | healthy | measured | forecast | range | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for trial in sorted(every, key=lambda trial: -abs(trial.error))[:15]:
        healthy = "yes" if trial.row.healthy else "no"
        lines.append(
            f"| {trial.row.name} ({trial.row.case}) | {trial.row.source} | {healthy}"
            f" | {trial.row.measured:g} | {trial.found.point:.1f}"
            f" | {trial.found.low:.1f} to {trial.found.high:.1f} | {_signed(trial.error)} |"
        )
    return [*lines, ""]


def _out(left: Mapping[str, str]) -> list[str]:
    lines = [
        "## What is left out",
        "",
        "| rows | why |",
        "|---|---|",
    ]
    reasons = sorted(set(left.values()))
    for why in reasons:
        named = [name for name, reason in left.items() if reason == why]
        lines.append(f"| {', '.join(named)} | {why} |")
    return [
        *lines,
        "",
        "Not modelled: AMD GPUs, which are unknown cards, and a forecast says so; reductions in",
        "the network's switches (SHARP); NCCL_ALGO=Tree",
        "inside one host, Tree and NVLS forced on three or more; jobs beside other jobs on one",
        "network; a network plug-in without rows, a NIC behind a host bridge or socket, and more",
        "than three racks, which widen the range downwards and leave the point. The host path of",
        "machines without P2P is a property of the machine: its range is wide until a measured",
        "value replaces it.",
        "",
    ]


def _tried() -> list[str]:
    return [
        "## What was tried",
        "",
        "Other forms, with the 90th percentile of the error on the healthy rows below 300, each",
        "source left out, when the model was made; it had 13.6 % as a whole.",
        "",
        "| instead of | form | error |",
        "|---|---|---|",
        "| NVLS: 2(g-1)/(g+1) | 2(g-1)/g | class nvls 4.6 %, not 1.3 % |",
        "| two hosts: 2(n-1)/n of the NICs | the NICs, as a ring | 21.1 % |",
        "| full mesh: (g-1) x lanes | twice its rings | class nvlink-mesh 22.5 %, not 6.1 % |",
        "| bridged pairs: two rings | one ring | 37.7 % |",
        "| two bridged cards: all their links | a share of its own (half or all) | 17.0 % |",
        "| one PCIe rate outside a switch | one more across sockets | 30.9 % |",
        "| three hosts: ring x g/(g-1) | the ring | 11.5 %, but 380 is measured above 370 |",
        "| geometric means | medians | 14.9 %, median 1.4 % |",
        "",
    ]


def main(words: Sequence[str]) -> int:
    """Write the page; `--check` compares it, `--fit` prints constants."""
    if words == ["--fit"]:
        text = fit(rows()[0])
        lines = [f"    {key}={getattr(text, key)}," for key in _SIMPLE]
        lines += [f"    nvls={dict(text.nvls)},", f"    latency={dict(text.latency)},"]
        lines.append(f"    overlap={training_pairs.fit(training_pairs.pairs(_machine))},")
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    if words == ["--check"]:
        same = PAGE.read_text(encoding="utf-8") == page()
        sys.stdout.write("as it should be\n" if same else f"run {MARK}\n")
        return 0 if same else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
