"""A simulation as text, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from arena_topo import layout
from arena_topo.job import Duration
from arena_topo.simulate.cases import (
    Trace,
    WaitCause,
)
from arena_topo.simulate.measures import (
    QUANTILES,
    ReplayMeasures,
    SeedDifference,
    SizeMeasures,
    by_setting,
    mean_min_max,
    seed_difference,
)
from arena_topo.simulate.neighbours import SENSITIVITIES
from arena_topo.simulate.replay import MIX_GPU, WORKLOAD_MIX, ReplayRules
from arena_topo.simulate.running import Simulation, SimulationPlan, done_so_far
from arena_topo.simulate.traces import LONGEST, MEAN_DURATION, MEDIAN_DURATION, MIX, trace_text
from arena_topo.topology import count
from arena_topo.words import counted, listed

CAUSES = {
    WaitCause.CAPACITY: "too few GPUs were free",
    WaitCause.FRAGMENTS: "enough were free, but no place",
    WaitCause.RESERVED: "the free ones were reserved for the head",
    WaitCause.PATIENCE: "they were too slow for its patience",
}

_KEYS = {
    WaitCause.CAPACITY: "capacity",
    WaitCause.FRAGMENTS: "fragments",
    WaitCause.RESERVED: "reserved",
    WaitCause.PATIENCE: "patience",
}


_COLUMNS = {
    WaitCause.CAPACITY: "CAPACITY",
    WaitCause.FRAGMENTS: "FRAGMENTS",
    WaitCause.RESERVED: "RESERVED",
    WaitCause.PATIENCE: "PATIENT",
}


def source_text(plan: SimulationPlan) -> str:
    """What is replayed, in one sentence."""
    if isinstance(plan.source, Trace):
        return trace_text(plan.source)
    (single, _), *larger = MIX
    shares = listed(
        [
            f"{100 * single:g} % with 1 GPU",
            *(f"{100 * share:g} % with {' or '.join(map(str, sizes))}" for share, sizes in larger),
        ]
    )
    return (
        f"{counted(plan.source.jobs, 'job')} drawn for each seed: {shares}, submitted at a constant"
        f" rate; durations log-normal, median {MEDIAN_DURATION:g} s, mean {MEAN_DURATION:g} s,"
        f" cut at {LONGEST / 86400:g} days"
    )


def cluster_text(plan: SimulationPlan) -> str:
    """The cluster of a simulation: `64 nodes, 512 GPUs: 64 x V100`."""
    cluster = plan.rules.cluster
    kinds = Counter(
        f"{len(node.machine.gpus)} x {node.machine.model or 'unknown GPU'}"
        for node in cluster.nodes
    )
    nodes = listed([f"{many} with {kind}" for kind, many in kinds.items()])
    gpus = sum(node.free_count for node in cluster.nodes)
    text = f"{counted(len(cluster.nodes), 'node')}, {counted(gpus, 'usable GPU')}: {nodes}"
    return f"{text}, emulated" if cluster.emulated else text


def assumptions_text(plan: SimulationPlan) -> list[str]:
    """The assumptions of a simulation, a sentence each."""
    rules = plan.rules
    shaped = isinstance(plan.source, Trace) and plan.source.shaped
    long = "wherever the job runs: no slowdown" if rules.as_run else "on its best placement"
    speeds = (
        ", ".join(f"{model} {speed:g} x" for model, speed in sorted(rules.speeds.items()))
        or "as fast as each other"
    )
    running = []
    if rules.running:
        ageless = sum(job.age is None for job in rules.running)
        running.append(
            f"Running: {counted(len(rules.running), 'job')} of the dump, with"
            f" {counted(_running_gpus(rules), 'GPU')}; each ends by its time limit, else after as"
            " long again as it has run" + (f", {ageless} of unknown age never" if ageless else "")
        )
    begin, end = (f"{100 * share:g} %" for share in rules.window)
    return [
        (
            f"Pods: {'workers as in the trace' if shaped else 'one GPU per worker'}, the workers"
            " of a node joined as one host"
        ),
        f"Durations: that of a job in the trace is the one {long}",
        (
            f"Steps: a job trains {listed(WORKLOAD_MIX)} (each as often unless the trace tells),"
            f" with the step measured on one {MIX_GPU}; on slower links a job takes as many times"
            " longer as its step does"
        ),
        f"GPU models: {speeds}",
        *running,
        (
            "Queue: by priority, then age; the reservation of the head is decided anew after"
            f" {Duration(int(rules.review))} of the trace"
        ),
        (
            "Interference: in no time above; shown as the factor by the nearest neighbour on the"
            " machine for several sensitivities"
        ),
        "Not modelled: failures, preemption, quotas, and jobs that share a network",
        f"Measured: jobs between {begin} and {end} of the submissions",
    ]


def _running_gpus(rules: ReplayRules) -> int:
    return sum(
        count(gpus) + unnamed for job in rules.running for gpus, unnamed in job.places.values()
    )


REACHED, QUEUED = 0.6, 0.1
"""A trace has not reached its load if less than this share of the load is in use, and fewer jobs
wait on average: our choice."""


def notes_on(simulation: Simulation) -> Iterator[str]:
    """What a reader has to know about the numbers."""
    runs = simulation.runs
    if not simulation.complete:
        yield f"interrupted: {len(runs)} of {counted(len(simulation.plan.cases), 'replay')} done"
    if any(run.load >= 1 for run in runs):
        yield (
            "a load of 1 or more has no steady state: waiting times grow with the length of the"
            " trace"
        )
    for some in by_setting(runs).values():
        load, busy = some[0].load, mean_min_max(run.gar for run in some)[0]
        queued = mean_min_max(run.queued for run in some)[0]
        measured = any(run.jobs for run in some)
        if measured and busy < REACHED * min(load, 1) and queued < QUEUED:
            yield (
                f"at a load of {load:.2f} only {100 * busy:.0f} % of the GPUs were in use, and"
                " hardly a job waited: the trace is too short to fill the cluster"
            )
            break
    never = Counter[str]()
    for run in runs[:1]:
        never.update(dict(run.never))
    for reason, many in never.items():
        yield f"{counted(many, 'job')} left out, which never fit: {reason}"
    if stuck := max((run.waiting for run in runs), default=0):
        does = "waits" if stuck == 1 else "wait"
        yield f"{counted(stuck, 'job')} {does} at the end, behind jobs that never end"
    if runs and not any(run.jobs for run in runs):
        yield "no job lies within the window"


# Text


def simulation_text(simulation: Simulation, *, wide: bool) -> str:
    """A simulation for people: what is taken for granted, and a table."""
    plan = simulation.plan
    lines = [
        f"Trace: {source_text(plan)}",
        f"Cluster: {cluster_text(plan)}",
        f"Network: {plan.network}",
        *assumptions_text(plan),
        *(f"Note: {note}" for note in notes_on(simulation)),
        "",
    ]
    settings = list(by_setting(simulation.runs).values())
    if settings:
        lines += [layout.align(_overview(settings, wide=wide)).rstrip(), ""]
        lines += [*_brief_legend(settings), ""]
    if settings and wide:
        lines += [layout.align(_classes(settings)).rstrip(), "", *_legend(), ""]
    return "\n".join(lines)


def _first_of(settings: Sequence[list[ReplayMeasures]], load: float | None) -> list[ReplayMeasures]:
    """The setting that the others of a load are compared with."""
    return next(runs for runs in settings if runs[0].case.load == load)


def _overview(settings: Sequence[list[ReplayMeasures]], *, wide: bool) -> list[str]:
    def row(runs: list[ReplayMeasures]) -> list[str]:
        first = _first_of(settings, runs[0].case.load)
        waits = [
            _hours(mean_min_max(size.mean for size in sizes)[0]) if sizes else "-"
            for sizes in (_with_jobs(runs, at) for at in range(len(runs[0].sizes)))
        ]
        more = [
            _spread(runs, lambda run: run.completion),
            f"{100 * mean_min_max(run.gar for run in runs)[0]:.0f}%",
            _whole(mean_min_max(run.lost for run in runs)[0]),
            _whole(mean_min_max(run.reserved for run in runs)[0]),
        ]
        return [
            *setting_words(runs),
            _hours(mean_min_max(run.completion for run in runs)[0]),
            "-" if runs is first else _difference(seed_difference(runs, first)),
            " ".join(waits),
            _hours(max(size.longest for run in runs for size in run.sizes)),
            *(more if wide else ()),
        ]

    sizes = ", ".join(size.name for size in settings[0][0].sizes)
    header = [
        "LOAD",
        "POLICY",
        "QUEUE",
        "PATIENCE",
        "COMPLETE",
        "FIRST",
        f"WAIT {sizes}",
        "LONGEST",
    ]
    header += ["OVER SEEDS", "IN USE", "LOST", "RESERVED"] if wide else []
    return layout.table(header, map(row, settings))


def _with_jobs(runs: Sequence[ReplayMeasures], at: int) -> list[SizeMeasures]:
    """A class of sizes in each replay that has such jobs: only these have a mean."""
    return [run.sizes[at] for run in runs if run.sizes[at].jobs]


def _offered_load(runs: Sequence[ReplayMeasures]) -> float:
    """The load of a setting: the one asked for, else the mean of its replays."""
    load = runs[0].case.load
    return mean_min_max(run.load for run in runs)[0] if load is None else load


def setting_words(runs: Sequence[ReplayMeasures]) -> list[str]:
    """Load, policy, rule of the queue and patience of a setting in words."""
    case = runs[0].case
    return [
        f"{_offered_load(runs):.2f}",
        str(case.policy),
        case.queue,
        str(Duration(int(case.patience))),
    ]


def _spread(runs: Sequence[ReplayMeasures], value: Callable[[ReplayMeasures], float]) -> str:
    mean, least, most = mean_min_max(map(value, runs))
    return _hours(mean) + (
        f" ({_hours(least)} to {_hours(most)})" if len(runs) > 1 and least < most else ""
    )


def _difference(pair: SeedDifference | None) -> str:
    if pair is None:
        return "-"
    if pair.seeds == 1:
        return f"{100 * pair.mean:+.1f}%, one seed"
    span = f"({100 * pair.least:+.0f} to {100 * pair.most:+.0f}%)"
    return f"same {span}" if pair.verdict == "no difference" else f"{100 * pair.mean:+.0f}% {span}"


def _hours(value: float) -> str:
    return f"{value:.2f}" if value < _ONE_DIGIT else f"{value:.1f}"


_ONE_DIGIT = 10


def _whole(value: float) -> str:
    return f"{round(value) + 0:d}"


def _classes(settings: Sequence[list[ReplayMeasures]]) -> list[str]:
    def row(runs: list[ReplayMeasures], at: int) -> list[str]:
        sizes = _with_jobs(runs, at)

        def mean(value: Callable[[SizeMeasures], float]) -> float:
            return mean_min_max(map(value, sizes))[0]

        def cause(which: WaitCause) -> str:
            return _hours(mean(lambda size: size.causes[which]))

        return [
            *setting_words(runs),
            runs[0].sizes[at].name,
            f"{mean_min_max(run.sizes[at].jobs for run in runs)[0]:.0f}",
            *(
                _hours(mean(value))
                for value in (
                    lambda size: size.mean,
                    lambda size: size.median,
                    lambda size: size.p95,
                )
            ),
            _hours(max(size.longest for size in sizes)),
            *map(cause, WaitCause),
            _hours(mean(lambda size: size.completion)),
            (
                f"{mean(lambda size: size.slowdown):.3f} ({mean(lambda size: size.low):.2f} to"
                f" {mean(lambda size: size.high):.2f})"
            ),
            " ".join(
                f"{mean_min_max(size.neighbours[which] for size in sizes)[0]:.2f}"
                for which in range(len(SENSITIVITIES))
            ),
            _whole(mean_min_max(run.sizes[at].lost for run in runs)[0]),
            f"{mean(lambda size: size.nodes):.2f}",
            f"{100 * mean(lambda size: size.single):.0f}%",
        ]

    header = [
        *("LOAD", "POLICY", "QUEUE", "PATIENCE", "GPUS", "JOBS", "WAIT", "MEDIAN", "P95"),
        *("LONGEST", *_COLUMNS.values(), "COMPLETION", "SLOWDOWN"),
        *("NEIGHBOURS", "LOST", "NODES", "ONE NODE"),
    ]
    return layout.table(
        header,
        (
            row(runs, at)
            for runs in settings
            for at in range(len(runs[0].sizes))
            if _with_jobs(runs, at)
        ),
    )


def _brief_legend(settings: Sequence[list[ReplayMeasures]]) -> Iterator[str]:
    yield (
        "Hours, from submission to the end (COMPLETE) and to the start (WAIT, by number of GPUs);"
        " means, and the longest wait."
    )
    if len(settings) > 1:
        yield (
            "FIRST: completion beside the first line of that load, with the least and the largest"
            " of the seeds; same where these disagree or do not differ."
        )


def _legend() -> list[str]:
    sensitivities = ", ".join(f"{sensitivity:g}" for sensitivity in SENSITIVITIES)
    return [
        *(f"{_COLUMNS[cause]}: hours in which {text}" for cause, text in CAUSES.items()),
        (
            "IN USE: share of the GPUs over time (GAR); in JSON also the share of nodes partly in"
            " use (GFR), and nodes of a gang over the fewest (JTTED)"
        ),
        "SLOWDOWN: steps here over those on the best placement, with the mean ends of the range",
        f"NEIGHBOURS: factor by the nearest other job at sensitivities {sensitivities}",
        (
            "LOST: GPU-hours by longer steps. RESERVED in the first table: of free GPUs, which"
            " were kept for the head"
        ),
    ]


# JSON


def simulation_json(simulation: Simulation) -> dict[str, Any]:
    """A simulation for programs: the same whatever machine, clock and number of processes."""
    plan = simulation.plan
    source = plan.source
    trace = (
        {"layout": source.layout, "jobs": len(source.jobs), "leftOut": dict(source.left_out)}
        if isinstance(source, Trace)
        else {"layout": "poisson", "jobs": source.jobs, "leftOut": {}}
    )
    settings = list(by_setting(simulation.runs).values())
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Simulation",
        "complete": simulation.complete,
        "trace": trace,
        "cluster": {
            "nodes": len(plan.rules.cluster.nodes),
            "gpus": sum(node.free_count for node in plan.rules.cluster.nodes),
            "emulated": plan.rules.cluster.emulated,
        },
        "assumptions": [
            source_text(plan),
            cluster_text(plan),
            plan.network,
            *assumptions_text(plan),
        ],
        "notes": list(notes_on(simulation)),
        "settings": [_setting_json(runs, settings) for runs in settings],
        "runs": [_run_json(run) for run in simulation.runs],
    }


def _setting_json(
    runs: list[ReplayMeasures], settings: Sequence[list[ReplayMeasures]]
) -> dict[str, Any]:
    mean, least, most = mean_min_max(run.completion for run in runs)
    first = _first_of(settings, runs[0].case.load)
    pair = None if runs is first else seed_difference(runs, first)
    return {
        **_case_json(runs[0]),
        "offeredLoad": _number(_offered_load(runs)),
        "seeds": len(runs),
        "completionHours": {"mean": _number(mean), "least": _number(least), "most": _number(most)},
        "toTheFirst": None
        if pair is None
        else {
            "mean": _number(pair.mean),
            "least": _number(pair.least),
            "most": _number(pair.most),
            "verdict": pair.verdict,
        },
    }


def _case_json(run: ReplayMeasures) -> dict[str, Any]:
    case = run.case
    return {
        "policy": str(case.policy),
        "queue": case.queue,
        "patienceSeconds": _number(case.patience),
        "load": None if case.load is None else _number(case.load),
    }


def _run_json(run: ReplayMeasures) -> dict[str, Any]:
    return {
        **_case_json(run),
        "seed": run.case.seed,
        "offeredLoad": _number(run.load),
        "jobs": run.jobs,
        "neverFit": dict(run.never),
        "waitingAtTheEnd": run.waiting,
        "completionHours": _number(run.completion),
        "makespanHours": _number(run.makespan),
        "meanQueue": _number(run.queued),
        "gar": _number(run.gar),
        "garWhileWaiting": _number(run.gar_waiting),
        "gfr": _number(run.gfr),
        "jtted": _number(run.jtted),
        "gpuHoursLost": _number(run.lost),
        "gpuHoursReservedIdle": _number(run.reserved),
        "sizes": [_size_json(size) for size in run.sizes],
        "samples": [
            {
                "hour": _number(sample.at / 3600),
                "gpusInUse": sample.used,
                "gpusWaiting": sample.queued,
            }
            for sample in run.samples
        ],
    }


def _size_json(size: SizeMeasures) -> dict[str, Any]:
    return {
        "gpus": size.name,
        "jobs": size.jobs,
        "waitHours": {
            "mean": _number(size.mean),
            "median": _number(size.median),
            "p95": _number(size.p95),
            "longest": _number(size.longest),
            "causes": {_KEYS[cause]: _number(size.causes[cause]) for cause in WaitCause},
            "quantiles": [
                [share, _number(value)] for share, value in zip(QUANTILES, size.curve, strict=True)
            ],
        },
        "completionHours": _number(size.completion),
        "slowdown": {
            "mean": _number(size.slowdown),
            "low": _number(size.low),
            "high": _number(size.high),
        },
        "interference": {
            f"{sensitivity:g}": _number(factor)
            for sensitivity, factor in zip(SENSITIVITIES, size.neighbours, strict=True)
        },
        "gpuHoursLost": _number(size.lost),
        "nodes": _number(size.nodes),
        "fewestNodes": _number(size.fewest),
        "onOneNode": _number(size.single),
    }


def _number(value: float) -> float | int:
    """A number in six digits, whole ones without a point."""
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) else short


# CSV

_WAITED = ("capacity_s", "fragments_s", "reserved_s", "patient_s")
"""The columns of the causes of waiting; `patience_s` is the setting, as PATIENCE on the screen."""


def simulation_csv(simulation: Simulation) -> str:
    """A line for each measured job of each replay; times are seconds since the first submission."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("policy", "queue", "patience_s", "load", "seed", "job_id", "gpus", "submit_s"),
            *("start_s", "end_s", "nodes", "slowdown", *_WAITED),
        ]
    )
    for run, jobs in done_so_far(simulation):
        case, trace = run.case, simulation.plan.trace(run.case.seed)
        for job in jobs:
            writer.writerow(
                [
                    *(case.policy, case.queue, f"{case.patience:g}", f"{run.load:.6g}", case.seed),
                    *(trace.jobs[job.row].name, job.gpus),
                    *(f"{time:.10g}" for time in (job.submitted, job.started, job.ended)),
                    *(job.nodes, f"{job.slowdown:.6g}"),
                    *(f"{job.waits[cause]:.10g}" for cause in WaitCause),
                ]
            )
    return text.getvalue()
