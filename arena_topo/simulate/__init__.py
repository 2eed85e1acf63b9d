"""A trace of jobs on a cluster, under several policies.

traces      traces of clusters as they are published, and generated ones
dumps       the cluster and the running jobs of dumps
emulation   known machines on a network that somebody chose -> a cluster
request     what the request on the command line means -> a plan
cases       the values: traces, cases to replay, and what became of the jobs
policies    where a gang goes: the solver, or a scheduler that only counts
neighbours  how near jobs on one machine are, and what that costs
replay      what starts when and where, event by event
running     all replays of a simulation, perhaps in several processes
measures    what a replay measured, and differences between replays
view        a simulation as text, as JSON and as CSV
picture     a simulation as SVG and as HTML
command     the command
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from arena_topo.bandwidth import Wire
from arena_topo.flag import flag

_option = partial(flag, panel="Options")


class ReplayPolicy(StrEnum):
    """Who chooses the GPUs of a gang: the solver by a policy, or a scheduler that counts."""

    PACK = "pack"
    SPREAD = "spread"
    ADAPTIVE = "adaptive"
    FIRST_FIT = "first-fit"
    RANDOM = "random"
    BEST_FIT = "best-fit"


QUEUE_NAMES = ("gpu-hours", "gpus", "emptied", "none", "strict")
"""The rules of the queue (`replay.QUEUE_RULES`)."""


class Durations(StrEnum):
    """What the duration of a job in a trace is."""

    BEST = "best"
    AS_RUN = "as-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """The request of a simulation on the command line."""

    generate: str = _option(
        "",
        "Draw jobs in place of TRACE, for each seed: poisson:2000 is 2,000 jobs.",
        "poisson:JOBS",
        excludes=("TRACE",),
    )
    nodes: str = _option(
        "",
        "The cluster: 64xdgx-1-v100, or several kinds with commas.",
        "COUNTxPRESET,...",
        excludes=("--state",),
    )
    state: tuple[str, ...] = _option(
        (),
        "The cluster of this dump of kubectl get -o json, with the jobs that run there; repeat for"
        " more.",
        "FILE",
        completes="files",
    )
    policy: str = _option(
        "pack",
        "Who chooses GPUs: the solver (pack, spread, adaptive) or a scheduler that counts"
        " (first-fit, random, best-fit).",
        "POLICY,...",
        choices=tuple(ReplayPolicy),
        completes="choices",
    )
    queue: str = _option(
        "gpu-hours",
        "What the head of the queue reserves: GPUs where the fewest GPU-hours are missing"
        " (gpu-hours) or the fewest GPUs (gpus), those of the emptied cluster (emptied), nothing"
        " (none), or everything (strict).",
        "RULE,...",
        choices=QUEUE_NAMES,
        completes="choices",
    )
    patience: str = _option(
        "24h", "How long gangs wait for a third of their best bandwidth.", "DURATION,..."
    )
    load: str = _option(
        "",
        "GPU time asked for over GPU time there is: stretches the times of submission"
        " (default those of the trace).",
        "SHARE,...",
    )
    seeds: int = _option(1, "How often chance is drawn: workloads, random, --generate.", at_least=1)
    window: str = _option(
        "20%-80%", "Measure the jobs between these shares of the submissions.", "FROM-TO"
    )
    network: Wire | None = _option(
        None,
        "The transport between nodes, and with --nodes their network (default rdma; with --state"
        " tcp, unless all nodes offer pods RDMA).",
    )
    durations: Durations = _option(
        Durations.BEST,
        "What a duration in the trace is: that of the best placement, or that of any (as-run).",
    )
    speed: str = _option(
        "", "How fast GPU models are beside the others: A100=2.5,H100=6.", "MODEL=FACTOR,..."
    )
    processes: int = _option(
        0, "Replays at the same time (default the processors that may be used).", at_least=0
    )
