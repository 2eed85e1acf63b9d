"""Remake the figures of `docs/simulate.md`: policies, rules of the queue and patience, compared.

    python docs/site/limits.py [--processes N] [STUDY ...]

It takes some six minutes of processor time, and writes `docs/simulate-figures.tsv` and the
tables of the page; with the names of studies only their lines are made again. With `--page` the
tables alone are written anew, from the file. Chance is drawn from the numbers of the seeds, so the
file is the same on every machine.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from arena_topo.bandwidth import Wire
from arena_topo.simulate import QUEUE_NAMES, ReplayPolicy
from arena_topo.simulate.cases import ReplayCase, RunningJob, Trace
from arena_topo.simulate.emulation import NETWORKS, emulated_cluster
from arena_topo.simulate.measures import (
    SIZE_CLASSES,
    ReplayMeasures,
    by_setting,
    mean_min_max,
    seed_difference,
)
from arena_topo.simulate.replay import ReplayRules
from arena_topo.simulate.running import (
    Simulation,
    SimulationPlan,
    simulate_plan,
    usable_processors,
)
from arena_topo.simulate.traces import Poisson
from arena_topo.topology import Cluster, GPUSet, Tier

FIGURES = Path(__file__).resolve().parents[1] / "simulate-figures.tsv"
PAGE = FIGURES.with_name("simulate.md")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared: the policy, the rule of the queue, hours of patience, and the ratio.

    A gang waits while its offer is more than `ratio` times slower than its best place.
    """

    policy: ReplayPolicy = ReplayPolicy.PACK
    queue: str = "gpu-hours"
    hours: float = 24.0
    ratio: float = 3.0

    @property
    def words(self) -> tuple[str, ...]:
        """The cells that name it."""
        return str(self.policy), self.queue, f"{self.hours:g}", f"{self.ratio:g}"

    def case(self, load: float, seed: int) -> ReplayCase:
        """The replay of this setting."""
        return ReplayCase(
            policy=self.policy,
            queue=self.queue,
            patience=self.hours * 3600,
            load=load,
            seed=seed,
            worthwhile=1 / self.ratio,
        )


DEFAULT = Setting()
"""The defaults of arena-topo."""

BEFORE = (
    *(Setting(hours=hours) for hours in (0.0, 4.0, 24.0)),
    *(Setting(queue="emptied", hours=hours) for hours in (0.0, 24.0)),
    Setting(queue="none"),
    Setting(policy=ReplayPolicy.BEST_FIT, hours=0.0),
)
"""Rules and patience, and a scheduler that counts, beside no patience."""

FEWEST = (DEFAULT, Setting(hours=0.0))
FEW = (*FEWEST, Setting(ratio=1.5), Setting(queue="none"))
"""Each of the choices made otherwise."""

RULES = (*FEWEST, Setting(queue="emptied"), Setting(queue="none"))
"""The defaults beside no patience and beside other rules."""

TOGETHER = tuple(
    setting
    for queue in ("gpu-hours", "none")
    for setting in (
        Setting(queue=queue),
        Setting(queue=queue, hours=0.0),
        *(
            Setting(queue=queue, hours=hours, ratio=ratio)
            for hours, ratio in product((4.0, 24.0), (1.5, 2.0, 3.0, 5.0))
            if (hours, ratio) != (DEFAULT.hours, DEFAULT.ratio)
        ),
    )
)
"""All of them together: each rule, without patience and with each duration and ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A cluster, its jobs, and what is compared there.

    A drawn gang of 8 GPUs or more has one of `times` as many, so that the largest have about a
    quarter of the cluster. With `endless` a job without end has one GPU of each node.
    """

    name: str
    nodes: str
    jobs: int
    times: tuple[int, ...] = (1,)
    loads: tuple[float, ...]
    seeds: int
    settings: tuple[Setting, ...]
    endless: bool = False
    networks: tuple[Wire, ...] = (Wire.TCP, Wire.RDMA)

    @property
    def text(self) -> str:
        """The size of the study in words."""
        return f"{self.jobs:,} drawn jobs for each of {self.seeds} seeds"

    def cluster(self, wire: Wire) -> Cluster:
        """The cluster of the study."""
        if self.nodes:
            return emulated_cluster(self.nodes, wire)
        return clos(wire)

    def rules(self, wire: Wire) -> ReplayRules:
        """What all replays on a network have in common."""
        cluster = self.cluster(wire)
        endless = (
            RunningJob(name=f"endless-{node.name}", places={node.name: (GPUSet(1), 0)}, age=None)
            for node in cluster.nodes
            if self.endless
        )
        return ReplayRules(cluster=cluster, wire=wire, window=(0.2, 0.8), running=tuple(endless))


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderGangs(Poisson):
    """Drawn jobs, of which the gangs of 8 GPUs or more have some `times` as many."""

    times: tuple[int, ...]

    def trace(self, seed: int, largest: int) -> Trace:
        """The trace of a seed."""
        drawn = Poisson.trace(self, seed, largest)
        chance = random.Random(f"width {seed}")  # noqa: S311 - nothing is secret here
        jobs = (
            job._replace(gpus=job.gpus * chance.choice(self.times)) if job.gpus >= 8 else job  # noqa: PLR2004
            for job in drawn.jobs
        )
        return replace(drawn, jobs=tuple(jobs))


LEAVES = (
    "88676787767476678554687555662",
    "878888888888888888877887887588886678688888738788",
    "788888888678858886888887888888882277867768",
)
"""The hosts below each leaf switch of three pods: a training cluster of Alibaba, as its topology
was published (alibaba/alibaba-lingjun-dataset-2023)."""


def clos(wire: Wire) -> Cluster:
    """A three-level Clos of 847 hosts, here with eight V100 each."""
    hosts = [
        (pod, leaf, int(number))
        for pod, leaves in enumerate(LEAVES)
        for leaf, number in enumerate(leaves)
    ]
    places = [
        (f"pod-{pod}", f"leaf-{pod}-{leaf}") for pod, leaf, number in hosts for _ in range(number)
    ]
    network = NETWORKS[wire]
    cluster = emulated_cluster(f"{len(places)}xdgx-1-v100", wire)
    return replace(
        cluster,
        nodes=tuple(
            replace(node, domains=domains)
            for node, domains in zip(cluster.nodes, places, strict=True)
        ),
        tiers=(
            Tier(name="pod", bandwidth=network.beyond),
            Tier(name="leaf", bandwidth=network.leaf),
        ),
        beyond=network.beyond if wire is Wire.TCP else network.beyond / 2,
    )


STUDIES = (
    Study(
        name="16 DGX-1, long traces",
        nodes="16xdgx-1-v100",
        jobs=1_500,
        loads=(0.8,),
        seeds=5,
        settings=BEFORE,
    ),
    Study(
        name="16 DGX-1",
        nodes="16xdgx-1-v100",
        jobs=700,
        loads=(1.3,),
        seeds=3,
        settings=TOGETHER,
    ),
    Study(
        name="16 DGX-1, one GPU of each in use without end",
        nodes="16xdgx-1-v100",
        jobs=600,
        loads=(1.0,),
        seeds=3,
        settings=FEW,
        endless=True,
        networks=(Wire.TCP,),
    ),
    Study(
        name="64 DGX-1",
        nodes="64xdgx-1-v100",
        jobs=1_500,
        times=(1, 2, 4),
        loads=(0.8, 0.9, 1.0, 1.1, 1.2),
        seeds=5,
        settings=RULES,
    ),
    Study(
        name="16 DGX-1, 8 HGX A100, 8 PCIe",
        nodes="16xdgx-1-v100,8xhgx-a100,8xpcie-8",
        jobs=1_200,
        times=(1, 2),
        loads=(0.9, 1.1, 1.3),
        seeds=3,
        settings=RULES,
    ),
    Study(
        name="Clos of 847 hosts",
        nodes="",
        jobs=1_000,
        times=(16, 64),
        loads=(0.8, 1.2, 1.5),
        seeds=3,
        settings=RULES,
    ),
)

Row = Sequence[str]

HEADER = (
    *("study", "network", "load", "policy", "queue", "patience_h", "ratio"),
    *("completion_h", "least", "most", "to_first", "to_first_least", "to_first_most"),
    *(f"wait_{name}_h" for name, _, _ in SIZE_CLASSES),
    *(f"longest_{name}_h" for name, _, _ in SIZE_CLASSES),
    *("lost_gpu_h", "reserved_gpu_h", "gar"),
)


def figures(study: Study, processes: int) -> Iterator[Row]:
    """A line for each setting, those of a network and a load beside each other."""
    for wire, load in product(study.networks, study.loads):
        cases = [
            setting.case(load, seed) for setting in study.settings for seed in range(study.seeds)
        ]
        plan = SimulationPlan(
            source=WiderGangs(jobs=study.jobs, times=study.times),
            rules=study.rules(wire),
            cases=tuple(cases),
            network="",
        )
        simulation = Simulation(plan=plan)
        simulate_plan(simulation, processes=processes, keep_jobs=False, tell=lambda _: None)
        runs = list(by_setting(simulation.runs).values())
        for setting, some in zip(study.settings, runs, strict=True):
            cells = (study.name, str(wire), f"{load:g}", *setting.words)
            yield (*cells, *measured(some, runs[0]))


def measured(runs: Sequence[ReplayMeasures], first: Sequence[ReplayMeasures]) -> Row:
    """The figures of one setting."""
    pair = seed_difference(runs, first)
    assert pair is not None
    return (
        *(f"{hours:.3f}" for hours in mean_min_max(run.completion for run in runs)),
        *(f"{100 * share:.1f}" for share in (pair.mean, pair.least, pair.most)),
        *(
            f"{mean_min_max(run.sizes[at].mean for run in runs)[0]:.3f}"
            for at in range(len(SIZE_CLASSES))
        ),
        *(f"{max(run.sizes[at].longest for run in runs):.2f}" for at in range(len(SIZE_CLASSES))),
        f"{mean_min_max(run.lost for run in runs)[0]:.0f}",
        f"{mean_min_max(run.reserved for run in runs)[0]:.0f}",
        f"{mean_min_max(run.gar for run in runs)[0]:.3f}",
    )


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """The page with a table of each study, between its marks."""
    tables = []
    for study in STUDIES:
        some = [dict(zip(HEADER, row, strict=True)) for row in rows if row[0] == study.name]
        table = ratios_beside(some) if study.settings is TOGETHER else loads_beside(some)
        tables += [f"**{study.name}**, {study.text}", table]
    start, rest = page.split(BEGIN, 1)
    return start + BEGIN + "\n\n" + "\n\n".join(tables) + "\n\n" + END + rest.split(END, 1)[1]


def loads_beside(rows: Sequence[Mapping[str, str]]) -> str:
    """A line for each setting on a network, with the loads beside each other."""
    loads = list(dict.fromkeys(row["load"] for row in rows))
    settings = defaultdict[tuple[str, ...], list[Mapping[str, str]]](list)
    for row in rows:
        settings[tuple(row[name] for name in SETTING)].append(row)
    return markdown(
        [*SETTING_WORDS, *(f"load {load}" for load in loads), *COSTS],
        (
            [
                *words_of(key),
                *(beside_first(row) for row in some),
                ", ".join(longest(some, name) for name in ("5-8", ">8")) + " h",
                *(f"{fmean(float(row[name]) for row in some):.0f}" for name in SUMS),
            ]
            for key, some in settings.items()
        ),
    )


def ratios_beside(rows: Sequence[Mapping[str, str]]) -> str:
    """A line for each rule and patience on a network, with the ratios beside each other."""
    by_setting = {tuple(row[name] for name in SETTING): row for row in rows}
    ratios = sorted({key[-1] for key in by_setting}, key=float)
    lines = sorted(
        {key[:-1] for key in by_setting},
        key=lambda key: (key[0], QUEUE_NAMES.index(key[2]), float(key[3])),
    )

    def cell(key: tuple[str, ...]) -> str:
        row = by_setting.get(key)
        return "" if row is None else f"{beside_first(row)}; {longest([row], '>8')} h"

    return markdown(
        [*SETTING_WORDS[:-1], *(f"ratio {ratio}" for ratio in ratios)],
        ([*words_of((*key, ""))[:-1], *(cell((*key, ratio)) for ratio in ratios)] for key in lines),
    )


SETTING = ("network", "policy", "queue", "patience_h", "ratio")
SETTING_WORDS = ("network", "policy", "queue", "patience", "ratio")
SUMS = ("lost_gpu_h", "reserved_gpu_h")
COSTS = ("longest wait of 5-8, >8", "lost", "reserved")


def words_of(key: Sequence[str]) -> list[str]:
    """The cells that name a setting."""
    *first, patience, ratio = key
    return [*first, f"{patience} h", ratio if float(patience) else "-"]


def beside_first(row: Mapping[str, str]) -> str:
    """Its completion time beside that of the first setting, or in hours if it is that one."""
    cells = first, least, most = [
        row[name] for name in ("to_first", "to_first_least", "to_first_most")
    ]
    if cells == ["0.0"] * 3:
        return f"{float(row['completion_h']):.1f} h"
    return f"{first} % ({least} to {most})"


def longest(rows: Iterable[Mapping[str, str]], size: str) -> str:
    """The longest wait of a class in hours."""
    return f"{max(float(row[f'longest_{size}_h']) for row in rows):.1f}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def main() -> None:
    """Write the file and the tables of the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--processes", type=int, default=usable_processors())
    parser.add_argument("--page", action="store_true")
    parser.add_argument("study", nargs="*")
    arguments = parser.parse_args()
    names = [study.name for study in STUDIES]
    chosen = [] if arguments.page else arguments.study or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no study {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    rows: list[Row] = [text.split("\t") for text in FIGURES.read_text().splitlines()[1:]]
    for study in (study for study in STUDIES if study.name in chosen):
        rows = [row for row in rows if row[0] != study.name]
        for made in figures(study, arguments.processes):
            rows.append(made)
            # What is done stays if this program is ended.
            rows.sort(key=lambda row: names.index(row[0]))
            FIGURES.write_text("".join("\t".join(cells) + "\n" for cells in (HEADER, *rows)))
    PAGE.write_text(with_tables(PAGE.read_text(), rows))


if __name__ == "__main__":
    main()
