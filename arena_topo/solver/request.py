"""What the solver is asked, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from arena_topo.bandwidth import Estimate, Wire
from arena_topo.errors import ArenaError, InvalidJob
from arena_topo.topology import Cluster, NodeName

NODE_TIER = "node"
BEYOND = "beyond"

BAND = 1.1
"""Bandwidths within such a factor are not told apart: the model's own error on rows that it was
not fitted on is about that (p90)."""

PACK_ABOVE = 0.5
"""The share of GPUs in use from which the adaptive policy packs: our choice, there is no published
figure for where interference costs less than fragmentation."""


class Reason(Enum):
    """Why a node cannot take a worker; the words are shown to people."""

    UNAVAILABLE = "not ready or cordoned"
    SHARED = "MIG or shared GPUs"
    SELECTOR = "node selector does not match"
    TAINT = "taint not tolerated"
    DEDICATED = "reserved for topology jobs, or not a topology node"
    MODEL = "another GPU model"
    NO_GPUS = "no GPUs"
    TOO_SMALL = "fewer GPUs than one worker needs"
    BUSY = "not enough free GPUs"
    RESOURCES = "not enough free CPU or memory"
    BANDWIDTH = "no placement reaches the bandwidth asked for"
    MAX_NODES = "no placement on so few nodes holds all workers"
    PER_NODE = "one worker at most, as each would run sshd on the network of the node"
    PODS = "one worker at most, as pods that share a node are slower than what was asked for"
    LEVEL = "no domain of the level asked for holds all workers"
    ROOM = "room for some of the workers, not for all"


class Policy(Enum):
    """Which of the equally fast placements a job gets (solver/fragmentation.py)."""

    PACK = "pack"
    SPREAD = "spread"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All the solver knows of a job.

    `workers` pods of `gpus` GPUs each. `cpu` (cores) and `memory` (bytes) are per worker.
    `excluded` names nodes that the job may not use, each with the reason.
    `min_bandwidth` is GB/s of all-reduce bus bandwidth; `max_nodes` bounds how far it may spread.
    `per_node` is the most workers that may share a node, however much room it has. Workers of a
    node are one host for NCCL where they are `joined`, else each is one. Hosts reach each other
    over `wire`.
    `required` names the level that all nodes must share (`node`, a tier of the cluster, `beyond`);
    `preferred` the level that they share if that is possible at all, before any bandwidth.
    `pack_above` is the share of GPUs in use above which the adaptive policy packs.
    InvalidJob for a gang without workers or without GPUs.
    """

    workers: int
    gpus: int
    cpu: float = 0.0
    memory: int = 0
    model: str | None = None
    mix_models: bool = False
    excluded: Mapping[NodeName, Reason] = field(default_factory=dict)
    min_bandwidth: float = 0.0
    max_nodes: int | None = None
    per_node: int | None = None
    joined: bool = True
    wire: Wire = Wire.TCP
    required: str | None = None
    preferred: str | None = None
    policy: Policy = Policy.PACK
    pack_above: float = PACK_ABOVE

    def __post_init__(self) -> None:
        for count, what in ((self.workers, "worker"), (self.gpus, "GPU for each worker")):
            if count < 1:
                raise InvalidJob(f"a gang needs at least one {what}", why=f"{count} were asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One worker's node and GPUs.

    `gpus` are device indexes in ring order; empty where the node does not let us know which of
    its devices are free, so that the kubelet chooses.
    """

    worker: int
    node: NodeName
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How good the answer is known to be: no placement gives these pods more than `bound` GB/s.

    Where a level is preferred that speaks of placements as near as the one found.
    `optimal`: no placement is in a higher band of bandwidth, and of those in this band none is
    nearer together, on fewer nodes, or of more bandwidth inside. Fragmentation is not proven.
    """

    optimal: bool
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every worker's place, in rank order, and what that is worth.

    `bandwidth` is what these pods get in an all-reduce, `inside` what the same GPUs give where all
    pods of a node are one host, `worst` what the pods get of the slowest GPUs that the kubelet may
    pick instead where devices cannot be pinned. All are None for a job of one GPU. `tier` is
    `node`, the network level that joins the nodes, or `beyond`. `gpus` (of each worker), `joined`
    and `wire` are those of the request.
    """

    assignments: tuple[Assignment, ...]
    bandwidth: Estimate | None
    inside: Estimate | None
    worst: Estimate | None
    tier: str
    proof: Proof
    gpus: int = 1
    joined: bool = True
    wire: Wire = Wire.TCP

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The nodes used, in rank order."""
        return tuple(dict.fromkeys(one.node for one in self.assignments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Where a scheduler that only counts GPUs would put a gang; the numbers as in Placement.

    `loads` is the number of workers of each node, in the order in which the nodes were taken.
    """

    bandwidth: Estimate | None
    inside: Estimate | None
    tier: str
    loads: Mapping[NodeName, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often a gang fits by numbers alone; bandwidth and distance are not looked at.

    `gangs` of them fit at the same time now, and one of at most `largest` workers; `largest_empty`
    is that of a cluster without other jobs.
    """

    gangs: int
    largest: int
    largest_empty: int


class Verdict(Enum):
    """The answer to "does it fit?"."""

    PLACEABLE = "Placeable"
    NOT_NOW = "NotNow"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why some nodes take no worker (or not enough): a reason, how many nodes, one of them."""

    reason: Reason
    nodes: int
    example: NodeName


class Unplaceable(ArenaError):
    """No set of GPUs fits. NOT_NOW (exit 3) may change by itself; NEVER (exit 5) cannot.

    `refusals` counts the nodes by what refuses the job; `nearest` says in words what would fit;
    `notes` are oddities of the cluster that may be behind it; they are no part of `why`, which is
    made of the refusals where it is not given.
    """

    def __init__(
        self,
        message: str,
        *,
        verdict: Verdict,
        refusals: tuple[Refusal, ...],
        nearest: str | None = None,
        notes: tuple[str, ...] = (),
        why: str | None = None,
    ) -> None:
        counted = [
            f"{one.nodes} node{'s' if one.nodes != 1 else ''} ({one.example}"
            f"{', ...' if one.nodes > 1 else ''}): {one.reason.value}"
            for one in refusals
        ]
        super().__init__(message, why=why or "; ".join(counted) or None, hint=nearest)
        self.verdict = verdict
        self.refusals = refusals
        self.nearest = nearest
        self.notes = notes
        self.exit_code = 5 if verdict is Verdict.NEVER else 3

    @property
    def reason(self) -> str:
        """What and why in one sentence, as it is recorded on a job that waits."""
        return f"{self.message}: {self.why}" if self.why else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """A change of the job that lets it use other nodes; the solver knows only which.

    `words` come after "fits now" (`without --selector a=b`), or after "when" if `later`.
    """

    words: str
    excluded: Mapping[NodeName, Reason]
    later: bool = False


def band(value: float) -> float:
    """The band of a bandwidth in GB/s: the larger, the faster; fixed, not relative to the best."""
    if value <= 0 or math.isinf(value):
        return value if value > 0 else -math.inf
    near = math.floor(math.log(value, BAND))
    return max(one for one in (near - 1, near, near + 1) if edge(one) <= value)


def edge(band: float) -> float:
    """The least GB/s of a band."""
    return BAND**band if math.isfinite(band) else band


def distances(cluster: Cluster) -> dict[str, int]:
    """The words for how far nodes may be apart, nearest first, each with its distance."""
    words = [NODE_TIER, *(tier.name for tier in reversed(cluster.tiers)), BEYOND]
    return {word: distance for distance, word in enumerate(words)}


def once_empty(today: Cluster) -> str:
    """When the cluster could take what it can take at most."""
    closed = any(node.unavailable is not None for node in today.nodes)
    return f"once the cluster is empty{' and all its nodes are ready' if closed else ''}"
