"""Whole pools of machines beside calibrations from eight placements (for docs/fidelity.md).

The step times of four trainings on every placement of a pool: tests/training/pools.tsv, explained
in tests/training/README.md.
"""

from __future__ import annotations

import csv
import functools
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arena_topo.bandwidth import Estimate, Host, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.topology import GPU, Link, Machine, flat, gpu_set, presets
from arena_topo.topology.nics import NICs
from arena_topo.training import (
    WORKLOADS,
    Overlap,
    Span,
    Workload,
    all_reduce_time,
    step_time,
)
from arena_topo.training.calibration import Calibration, MeasuredPlacement, calibrate
from arena_topo.training.step_time import FITTED_OVERLAP

POOLS = Path(__file__).resolve().parents[2] / "tests" / "training" / "pools.tsv"

MEASURED = ("bert-base-squad", 12)
"""The training whose placements calibrate, and its batch."""

DRAWS = 8
"""Random choices of eight placements of the measured training, at any of its batches."""


def _cards(size: int, model: str) -> Machine:
    gpus = tuple(GPU(index=index, model=model) for index in range(size))
    machine = Machine(name="", gpus=gpus, links=flat(size, Link.parse("PHB")), pcie_generation=3)
    return NICs(number=1, speed=6.25).of(machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool of equal machines, and the placements that calibrate it: few and many GPUs a node."""

    title: str
    machine: Machine
    wire: Wire
    chosen: tuple[tuple[int, ...], ...]


_BY_TWO = ((2,), (4,), (8,), (1, 1), (2, 2), (4, 4), (8, 8), (8, 1))

KNOWN: Mapping[str, Pool] = {
    "T4": Pool(
        title="T4: 4 x T4 a node, 50 Gb/s Ethernet (Pollux)",
        machine=_cards(4, "T4"),
        wire=Wire.TCP,
        chosen=((2,), (4,), (1, 1), (2, 2), (4, 4), (1, 1, 1), (4, 4, 4), (1, 1, 1, 1)),
    ),
    "RTX": Pool(
        title="RTX: 8 x RTX 2080 Ti a node, 50 Gb/s Ethernet (Sia)",
        machine=_cards(8, "RTX 2080 Ti"),
        wire=Wire.TCP,
        chosen=_BY_TWO,
    ),
    "DGX": Pool(
        title="DGX: 8 x A100 a node, 8 NICs of 200 Gb/s (Sia)",
        machine=NICs(number=8, speed=25.0).of(presets.preset_machine("dgx-a100", "dgx")),
        wire=Wire.RDMA,
        chosen=_BY_TWO,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A published step of several GPUs, with that of one GPU in its workload."""

    name: str
    batch: int
    measured: MeasuredPlacement


def steps() -> dict[str, list[Step]]:
    """All steps of each pool whose single-GPU step was published as well."""
    with POOLS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    cells = {
        (row["pool"], row["workload"], tuple(map(int, row["placement"].split("+")))): {
            int(batch): float(step) / 1e3
            for batch, step in (cell.split(":") for cell in row["step_ms by batch"].split())
        }
        for row in rows
    }
    by_pool: dict[str, list[Step]] = {pool: [] for pool in KNOWN}
    for (pool, name, hosts), some in cells.items():
        alone = cells[pool, name, (1,)]
        for batch, seconds in some.items():
            if sum(hosts) > 1 and batch in alone:
                measured = MeasuredPlacement(
                    where=f"{name} {hosts}",
                    hosts=tuple(sorted(hosts, reverse=True)),
                    estimate=_estimate(pool, tuple(sorted(hosts, reverse=True))),
                    workload=Workload(
                        name=name,
                        gradient_bytes=WORKLOADS[name].gradient_bytes,
                        step=Span.exactly(alone[batch]),
                    ),
                    value=seconds,
                )
                by_pool[pool].append(Step(name=name, batch=batch, measured=measured))
    return by_pool


@functools.cache
def _estimate(pool: str, hosts: tuple[int, ...]) -> Estimate:
    known = KNOWN[pool]
    value = estimate(
        [
            Host.of(replace(known.machine, name=f"{pool}-{at}"), gpu_set(range(gpus)))
            for at, gpus in enumerate(hosts)
        ],
        wire=known.wire if len(hosts) > 1 else None,
    )
    assert value is not None
    return value


def cover(pool: str, given: Iterable[Step]) -> list[Step]:
    """The chosen eight placements of the measured training."""
    return [
        step
        for step in given
        if (step.name, step.batch) == MEASURED and step.measured.hosts in KNOWN[pool].chosen
    ]


def draw(given: Sequence[Step], seed: int) -> list[Step]:
    """Eight random placements of the measured training, at one of its batches."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    own = [step for step in given if step.name == MEASURED[0]]
    batch = chance.choice(sorted({step.batch for step in own}))
    return chance.sample([step for step in own if step.batch == batch], 8)


def errors(
    given: Iterable[Step], chosen: Sequence[Step], calibration: Calibration | None
) -> tuple[float, float]:
    """The median and the 90th percentile of the relative errors of all other steps."""
    used, shares = {id(step) for step in chosen}, []
    overlap = FITTED_OVERLAP
    if calibration is not None and calibration.floor and calibration.hidden:
        overlap = Overlap(
            floor=Span(**calibration.floor._asdict()), hidden=Span(**calibration.hidden._asdict())
        )
    for step in given:
        if id(step) in used:
            continue
        measured, gbps = step.measured, None
        if calibration is not None and measured.kind in calibration.rates:
            gbps = calibration.rates[measured.kind].value * measured.per_rate(
                each=bool(calibration.each)
            )
        assert measured.workload is not None
        reduce = all_reduce_time(measured.workload.gradient_bytes, measured.estimate, gbps)
        seconds = step_time(
            measured.workload.step.value, reduce, overlap.floor.value, overlap.hidden.value
        )
        shares.append(abs(seconds / measured.value - 1))
    shares.sort()
    return statistics.median(shares), shares[math.ceil(0.9 * len(shares)) - 1]


def calibrated(given: Sequence[Step], chosen: Sequence[Step]) -> tuple[float, float]:
    """The errors of the rest of a pool after a calibration from these steps."""
    return errors(given, chosen, calibrate([step.measured for step in chosen]))


def section() -> list[str]:
    """The section of the page."""
    lines = [
        "## Calibration: eight placements, and the rest of a pool",
        "",
        "`calibrate` from eight placements of BERT on SQuAD at one batch, and the steps of all",
        "other placements, batches and trainings (ResNet-18, ResNet-50, YOLOv3) of the pool, whose",
        "single-GPU steps are known: median and 90th percentile of the relative error. Chosen are",
        "one, two and more nodes, each with few GPUs and with many; drawn are any eight, of which",
        f"the middle and the worst of {DRAWS} draws are shown.",
        "",
        "| pool | steps | nothing measured | eight chosen | eight drawn | the worst draw |",
        "|---|---|---|---|---|---|",
    ]
    for pool, given in steps().items():
        chosen = cover(pool, given)
        drawn = [calibrated(given, draw(given, seed)) for seed in range(DRAWS)]
        middle = tuple(statistics.median(column) for column in zip(*drawn, strict=True))
        cells = [
            _pair(errors(given, (), None)),
            _pair(calibrated(given, chosen)),
            _pair((middle[0], middle[1])),
            _pair(max(drawn)),
        ]
        lines.append(f"| {KNOWN[pool].title} | {len(given)} | {' | '.join(cells)} |")
    return [*lines, "", *cause(steps()["DGX"]), ""]


def cause(given: Sequence[Step]) -> list[str]:
    """Why no network explains the DGX pool: its single-GPU steps, in figures."""

    def ratios(name: str, *, one_node: bool = False) -> list[float]:
        return sorted(
            step.measured.value / step.measured.workload.step.value
            for step in given
            if step.name == name
            and step.measured.workload is not None
            and (not one_node or len(step.measured.hosts) == 1)
        )

    small, yolo = ratios("resnet18-cifar"), ratios("yolov3", one_node=True)
    faster = 100 * sum(ratio < 1 for ratio in small) / len(small)
    slow = [
        all_reduce_time(step.measured.workload.gradient_bytes, step.measured.estimate)
        for step in given
        if step.name == "yolov3" and step.measured.workload and len(step.measured.hosts) == 1
    ]
    return [
        "The DGX pool is as far off after a calibration as before, since its network limits next",
        "to nothing: the spread is in its single-GPU steps.",
        f"{faster:.0f} % of the steps of ResNet-18 on several GPUs are shorter than that on one,",
        "which no all-reduce explains; and on one node YOLOv3 takes",
        f"{statistics.median(yolo):.1f} times its single-GPU step, {yolo[-1]:.1f} times at most,",
        f"though its all-reduce there takes {1e3 * max(slow):.0f} ms.",
    ]


def _pair(values: tuple[float, float]) -> str:
    return f"{100 * values[0]:.0f} %, {100 * values[1]:.0f} %"
