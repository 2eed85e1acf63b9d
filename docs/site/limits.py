"""Remake the figures of `docs/simulate.md`: policies, rules of the queue and patience, compared.

    python docs/site/limits.py [--processes N]

It takes some minutes of processor time, and writes `docs/simulate-figures.tsv`, which the page
quotes. Chance is drawn from the numbers of the seeds, so the file is the same on every machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from arena_topo.bandwidth import Wire
from arena_topo.simulate import ReplayPolicy
from arena_topo.simulate.emulation import emulated_cluster
from arena_topo.simulate.measures import (
    SIZE_CLASSES,
    ReplayMeasures,
    by_setting,
    over_seeds,
    paired,
)
from arena_topo.simulate.replay import ReplayRules
from arena_topo.simulate.running import (
    Simulation,
    SimulationPlan,
    cases_of,
    simulate_plan,
    usable_processors,
)
from arena_topo.simulate.traces import Poisson

FIGURES = Path(__file__).resolve().parents[1] / "simulate-figures.tsv"
JOBS, SEEDS, NODES, LOAD = 1_000, 3, "8xdgx-1-v100", 0.8
DAY, HOURS = 24 * 3600.0, 4 * 3600.0

SETTINGS = (
    (ReplayPolicy.PACK, "gpu-hours", 0.0),
    (ReplayPolicy.PACK, "gpu-hours", HOURS),
    (ReplayPolicy.PACK, "gpu-hours", DAY),
    (ReplayPolicy.PACK, "emptied", 0.0),
    (ReplayPolicy.PACK, "emptied", DAY),
    (ReplayPolicy.PACK, "none", DAY),
    (ReplayPolicy.BEST_FIT, "gpu-hours", 0.0),
)
"""Policy, rule of the queue, and seconds of patience; others are compared with the first."""

HEADER = (
    *("network", "load", "policy", "queue", "patience_h", "completion_h", "least", "most"),
    *("to_first", "to_first_least", "to_first_most"),
    *(f"wait_{name}_h" for name, _, _ in SIZE_CLASSES),
    *(f"longest_{name}_h" for name, _, _ in SIZE_CLASSES),
    *("lost_gpu_h", "reserved_gpu_h", "gar"),
)


def figures(processes: int) -> Iterator[tuple[str, ...]]:
    """A line for each setting, those of a network and a load beside each other."""
    for wire in Wire:
        rules = ReplayRules(cluster=emulated_cluster(NODES, wire), wire=wire, window=(0.2, 0.8))
        cases = [
            case
            for policy, queue, patience in SETTINGS
            for case in cases_of([policy], [queue], [patience], [LOAD], SEEDS)
        ]
        plan = SimulationPlan(
            source=Poisson(jobs=JOBS), rules=rules, cases=tuple(cases), network=""
        )
        simulation = Simulation(plan=plan)
        simulate_plan(simulation, processes=processes, keep_jobs=False, tell=lambda _: None)
        settings = list(by_setting(simulation.runs).values())
        for runs in settings:
            yield line(wire, runs, settings[0])


def line(
    wire: Wire, runs: Sequence[ReplayMeasures], first: Sequence[ReplayMeasures]
) -> tuple[str, ...]:
    """The figures of one setting."""
    case, pair = runs[0].case, paired(runs, first)
    assert pair is not None
    return (
        *(str(wire), f"{case.load:g}", str(case.policy), case.queue, f"{case.patience / 3600:g}"),
        *(f"{hours:.3f}" for hours in over_seeds(run.completion for run in runs)),
        *(f"{100 * share:.1f}" for share in (pair.mean, pair.least, pair.most)),
        *(
            f"{over_seeds(run.sizes[at].mean for run in runs)[0]:.3f}"
            for at in range(len(SIZE_CLASSES))
        ),
        *(f"{max(run.sizes[at].longest for run in runs):.2f}" for at in range(len(SIZE_CLASSES))),
        f"{over_seeds(run.lost for run in runs)[0]:.0f}",
        f"{over_seeds(run.reserved for run in runs)[0]:.0f}",
        f"{over_seeds(run.gar for run in runs)[0]:.3f}",
    )


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--processes", type=int, default=usable_processors())
    lines = [HEADER, *figures(parser.parse_args().processes)]
    FIGURES.write_text("".join("\t".join(cells) + "\n" for cells in lines))
    sys.stdout.write(f"{FIGURES.name}: {len(lines) - 1} settings\n")


if __name__ == "__main__":
    main()
