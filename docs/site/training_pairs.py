"""Published pairs of placements beside the ratios that `training` gives (for docs/fidelity.md).

A pair is one job on two placements, or on one node against several of them with the same batch for
each GPU: tests/training/pairs.tsv, explained in tests/training/README.md.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arena_topo.bandwidth import Estimate, Host, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.topology import Link, Machine, flat, gpu_set
from arena_topo.topology.nics import NICs
from arena_topo.training import Overlap, Ratio, Span, Workload, all_reduce_time, ratio, step_time
from arena_topo.training.step_time import FITTED_OVERLAP

PAIRS = Path(__file__).resolve().parents[2] / "tests" / "training" / "pairs.tsv"

PACKED = 0.8
"""The least share of a packed placement's step that the single GPU takes, where only the step of
the packed placement was published."""

NO_SIGN = math.log(1.03)
TIE = math.log(1.01)
"""Measured ratios nearer to 1 have no order, as repeated runs differ by more; forecasts nearer to 1
are a tie."""

BIG = "DLPerf v1"
"""The source with so many pairs that the page lists only those outside the range."""

MakeMachine = Callable[[str, str], Machine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A job on two placements: `than` and the slower `other`, with the measured ratio of steps."""

    name: str
    source: str
    url: str
    note: str
    workload: Workload
    other: Estimate | None
    than: Estimate | None
    measured: float
    known: bool
    healthy: bool

    def forecast(self, overlap: Overlap = FITTED_OVERLAP) -> Ratio:
        """What the model says of it."""
        return ratio(self.workload, self.other, self.than, overlap=overlap)


def pairs(machine: MakeMachine) -> list[Pair]:
    """All rows of the table; `machine` makes a named machine for a node."""
    with PAIRS.open(encoding="utf-8") as file:
        return [_pair(fields, machine) for fields in csv.DictReader(file, delimiter="\t")]


def _pair(fields: Mapping[str, str], machine: MakeMachine) -> Pair:
    step = float(fields["step_ms"]) / 1e3
    least = step if fields["step_from"] == "solo" else PACKED * step
    size = int(1e6 * float(fields["gradient_MB"]))
    span = Span(value=step, low=least, high=step)
    return Pair(
        name=fields["id"],
        source=fields["source"],
        url=fields["url"],
        note=fields["note"],
        workload=Workload(name=fields["workload"], gradient_bytes=size, step=span),
        other=_estimate(fields, "b", machine),
        than=_estimate(fields, "a", machine),
        measured=float(fields["ratio"]),
        known=fields["known"] == "1",
        healthy=fields["healthy"] == "1",
    )


def _estimate(fields: Mapping[str, str], side: str, machine: MakeMachine) -> Estimate | None:
    number, gpus, detail = (fields[f"{key}_{side}"] for key in ("nodes", "gpus", "set"))
    nodes = [machine(fields["machine"], f"node-{node}") for node in range(int(number))]
    if detail == "no-p2p":
        nodes = [replace(node, links=flat(len(node.gpus), Link.parse("PHB"))) for node in nodes]
    if fields["nics"]:
        cards, speed = fields["nics"].split("x")
        nodes = [NICs(number=int(cards), speed=float(speed)).of(node) for node in nodes]
    chosen = detail.split(",") if detail[:1].isdigit() else range(int(gpus))
    wire = detail if fields["wire"] == "both" else fields["wire"]
    hosts = [Host.of(node, gpu_set(map(int, chosen))) for node in nodes]
    return estimate(hosts, wire=Wire(wire) if len(nodes) > 1 else None)


def fit(given: Iterable[Pair]) -> Overlap:
    """The points of f and a with the least squares of the logarithms, on the healthy pairs.

    In steps of 0.1; the ranges stay as they are.
    """
    known = [
        (
            pair.workload.step.value,
            *(
                all_reduce_time(pair.workload.gradient_bytes, side)
                for side in (pair.other, pair.than)
            ),
            pair.measured,
        )
        for pair in given
        if pair.healthy
    ]

    def loss(point: tuple[float, float]) -> float:
        return sum(
            math.log(step_time(step, other, *point) / step_time(step, than, *point) / measured) ** 2
            for step, other, than, measured in known
        )

    grid = itertools.product((at / 10 for at in range(11)), (at / 10 for at in range(7)))
    floor, hidden = min(grid, key=loss)
    return replace(
        FITTED_OVERLAP,
        floor=replace(FITTED_OVERLAP.floor, value=floor),
        hidden=replace(FITTED_OVERLAP.hidden, value=hidden),
    )


# ---------------------------------------------------------------- how far it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPair:
    """A pair, and its ratio with the source of the pair left out of the fit."""

    pair: Pair
    found: Ratio

    @property
    def error(self) -> float:
        """The relative error of the ratio, as a size."""
        return abs(self.found.value / self.pair.measured - 1)

    @property
    def inside(self) -> bool:
        """Whether the range holds what was measured."""
        return self.found.low <= self.pair.measured <= self.found.high

    @property
    def order(self) -> str:
        """Right, wrong or tie; empty where the measured ratio has no order."""
        measured, found = math.log(self.pair.measured), math.log(self.found.value)
        if abs(measured) < NO_SIGN:
            return ""
        if abs(found) < TIE:
            return "tie"
        return "right" if (measured > 0) == (found > 0) else "wrong"


def tried(given: Sequence[Pair]) -> list[TriedPair]:
    """Each pair, forecast without its source."""
    without = {
        source: fit(pair for pair in given if pair.source != source)
        for source in {pair.source for pair in given}
    }
    return [TriedPair(pair=pair, found=pair.forecast(without[pair.source])) for pair in given]


def held(given: Sequence[TriedPair]) -> float:
    """The share of pairs inside their range."""
    return sum(pair.inside for pair in given) / len(given)


def orders(given: Iterable[TriedPair]) -> tuple[int, int, int]:
    """Pairs ordered right, wrong and as a tie."""
    answers = [pair.order for pair in given]
    return answers.count("right"), answers.count("wrong"), answers.count("tie")


def _line(name: str, given: Sequence[TriedPair]) -> str:
    errors = sorted(pair.error for pair in given)
    ninth = errors[math.ceil(0.9 * len(errors)) - 1]
    width = statistics.median(pair.found.high / pair.found.low for pair in given)
    return (
        f"| {name} | {len(given)} | {100 * statistics.median(errors):.0f} % | {100 * ninth:.0f} %"
        f" | {100 * held(given):.0f} % | {width:.2f}"
        f" | {' / '.join(map(str, orders(given)))} |"
    )


def _named(given: Iterable[TriedPair]) -> str:
    names = [f"{pair.pair.name}{'' if pair.pair.healthy else ' (unhealthy)'}" for pair in given]
    return ", ".join(names) or "none"


def section(given: Sequence[Pair]) -> list[str]:
    """The section of the page."""
    every = tried(given)
    healthy = [trial for trial in every if trial.pair.healthy]
    known = [trial for trial in healthy if trial.pair.known]
    sources = list(dict.fromkeys(pair.source for pair in given))
    head = "| pairs | | median | 90th | in range | width | order: right / wrong / tie |"
    lines = [
        "## Step time: published pairs of placements",
        "",
        "How many times longer a step of one job takes on one placement than on another:",
        "T = Tc + max(f Tm, Tm - a Tc), Tc the step on one GPU, Tm the all-reduce of the",
        f"gradients; {len(given)} pairs of {len(sources)} sources, each forecast with f and a",
        "fitted without its source. f is 0 to 1, a 0 to 0.6; both, Tc and a shared network are",
        "the same on both sides. Pairs within 3 % have no order; forecasts within 1 % of each",
        "other are a tie. Where the network was not named, the screens say a guess and give the",
        "order alone. In most pairs one node stands against several of the same machines, so",
        "the order is the easier half of the question.",
        "",
        head,
        "|---|---|---|---|---|---|---|",
        _line("network known", known),
        _line(f"the same without {BIG}", [trial for trial in known if trial.pair.source != BIG]),
        _line("network not named", [trial for trial in healthy if not trial.pair.known]),
        _line("all, unhealthy ones too", every),
        "",
        f"Ordered wrong: {_named(trial for trial in every if trial.order == 'wrong')}.",
        "",
        head.replace("| pairs |", "| without |").replace("order", "f, a | order"),
        "|---|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        own = [trial for trial in healthy if trial.pair.source == source]
        overlap = fit(pair for pair in given if pair.source != source)
        cells = _line(source, own).rsplit("|", 2)
        numbers = f"{overlap.floor.value:g}, {overlap.hidden.value:g}"
        lines.append(f"{cells[0]}| {numbers} |{cells[1]}|")
    lines += [
        "",
        f"Every pair, of {BIG} only those outside:",
        "",
        "| pair | source | workload | measured | forecast | range | |",
        "|---|---|---|---|---|---|---|",
    ]
    for trial in every:
        pair, found = trial.pair, trial.found
        if pair.source == BIG and trial.inside:
            continue
        doubt = ("" if pair.known else " (guess)") + ("" if pair.healthy else " (unhealthy)")
        lines.append(
            f"| {pair.name} | {pair.source} | {pair.workload.name} | {pair.measured:.2f}"
            f" | {found.value:.2f}{doubt} | {found.low:.2f} to {found.high:.2f}"
            f" | {'' if trial.inside else 'OUT; '}{pair.note} |"
        )
    return [
        *lines,
        "",
        "Pairs 2 and 1, ACK's TensorFlow runs, are in range, and wide: nobody published their",
        "network. Pair 3, its PyTorch run of VGG16 (1.89 times), is not. Pods that are hosts of",
        "their own talk over TCP on both sides, which gives 1.00; pods that NCCL joined have rings",
        "of NVLinks on one side and a PCIe path on the other, which gives the row above. Of 312 ms",
        "to 588 ms, 276 ms are 3 GB/s for 553 MB among four: less than any PCIe path, as much as",
        "copies through host memory (2 to 38 GB/s). So the pair fits pods that NVLink joins and",
        "PCIe does not, as without a shared /dev/shm; no pod shape of arena-topo says that.",
        "Pairs 100 and 101 are Baskerville's two nodes with two GPUs each: the source's own",
        "all-reduce there has 6.8 GB/s, a quarter of the NIC.",
        "",
    ]
