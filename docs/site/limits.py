"""Remake the figures of `docs/simulate.md`: policies, rules of the queue and patience, compared.

    python docs/site/limits.py [--processes N]

It takes some minutes of processor time, and writes `docs/simulate-figures.tsv` and the table of the
page. With `--page` the table alone is written anew, from the file. Chance is drawn from the numbers
of the seeds, so the file is the same on every machine.
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
PAGE = FIGURES.with_name("simulate.md")
JOBS, SEEDS, NODES, LOAD = 1_500, 5, "16xdgx-1-v100", 0.8
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


def with_table(page: str, rows: Sequence[Sequence[str]]) -> str:
    """The page with the table of these figures, between its marks."""
    at = {name: HEADER.index(name) for name in HEADER}
    table = [
        (
            "| network | policy | queue | patience | completion | beside the first, over the seeds"
            " | mean wait of 5-8 and >8 GPUs | longest wait of >8 | lost | reserved |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first, least, most = (
            row[at[name]] for name in ("to_first", "to_first_least", "to_first_most")
        )
        beside = "-" if first == least == most == "0.0" else f"{first} % ({least} to {most})"
        cells = [
            *(row[at[name]] for name in ("network", "policy", "queue")),
            f"{row[at['patience_h']]} h",
            f"{float(row[at['completion_h']]):.1f} h",
            beside,
            f"{float(row[at['wait_5-8_h']]):.1f}, {float(row[at['wait_>8_h']]):.1f} h",
            f"{float(row[at['longest_>8_h']]):.0f} h",
            *(row[at[name]] for name in ("lost_gpu_h", "reserved_gpu_h")),
        ]
        table.append("| " + " | ".join(cells) + " |")
    start, rest = page.split(BEGIN, 1)
    return start + BEGIN + "\n\n" + "\n".join(table) + "\n\n" + END + rest.split(END, 1)[1]


BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def main() -> None:
    """Write the file and the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--processes", type=int, default=usable_processors())
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    if not arguments.page:
        lines = [HEADER, *figures(arguments.processes)]
        FIGURES.write_text("".join("\t".join(cells) + "\n" for cells in lines))
        sys.stdout.write(f"{FIGURES.name}: {len(lines) - 1} settings\n")
    rows = [text.split("\t") for text in FIGURES.read_text().splitlines()[1:]]
    PAGE.write_text(with_table(PAGE.read_text(), rows))


if __name__ == "__main__":
    main()
