"""Solver(cluster): which nodes and which GPUs each worker of a gang gets.

The solver has requests, not jobs, as input and no side effects: values in, values out. An answer
contains its proof, a refusal its reasons as values. Other packages import from here, and from
`door` what searches.

    door            Solver: all answers about one cluster
    search          the search: bandwidth by bandwidth, level by level
    index           the nodes by state, and the tree of network domains; follows changes
    classes         equivalence classes of nodes for a request
    domains         which domain of a level
    parts           several NVLink domains, each with a part of the gang
    selection       how many nodes of each class, and how full: fewest, then cheapest
    gpu_sets        the bandwidth of every set of GPUs of a machine
    loads           the value of a set of GPUs of a node for a job
    valuation       the value of a placement: its hosts as NCCL counts them
    fragmentation   which of the equally good placements: packing or spreading
    explain         why a gang has no place, and the smallest change that gives it one
    release         the smallest release: the GPUs or nodes that others would have to free
    baselines       schedulers that only count, for comparison

This module has the request and the answers.

Rules with one home each: the rate of a network level, and what bounds an unknown one, in
`valuation`; NVLink domains in `valuation.nvlink_domain`; nearness in `loads.Loads.nearness`. What
is assumed of an unknown network is in `bandwidth.tcp` for sockets, in `bandwidth.nics` for RDMA.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from arena_topo.bandwidth import Estimate, Wire
from arena_topo.errors import ArenaError, InvalidJob
from arena_topo.topology import Node, NodeName
from arena_topo.words import listed

UNLIMITED = math.inf
"""The bandwidth of a single GPU, which communicates with no other."""

BAND = 1.1
"""Bandwidths within this factor count as equal: about the error of the model on rows that it was
not fitted on (p90)."""

PACK_ABOVE = 0.5
"""The share of GPUs in use from which the adaptive policy packs: our choice, as no published figure
says where interference costs less than fragmentation."""


class Reason(Enum):
    """Why a node cannot take a worker; people see the values."""

    NOT_READY = "not ready"
    CORDONED = "cordoned"
    SHARED = "MIG or shared GPUs"
    SELECTOR = "node selector does not match"
    TAINT = "taint not tolerated"
    DEDICATED = "not among the nodes reserved for topology jobs"
    AVOIDED = "to be avoided, by --avoid"
    MODEL = "another GPU model"
    NO_GPUS = "no GPUs"
    TOO_SMALL = "fewer GPUs than one worker needs"
    RESERVED = "reserved for a gang that comes first in the queue"
    BUSY = "not enough free GPUs"
    BROKEN = "too few healthy GPUs"
    RESOURCES = "not enough free CPU or memory"
    BANDWIDTH = "no placement reaches the bandwidth asked for"
    MAX_NODES = "no placement on so few nodes holds all workers"
    PER_NODE = "one worker at most, as each would run sshd on the network of the node"
    LEVEL = "no domain of the level asked for holds all workers"
    ROOM = "room for some workers, and nowhere for the rest"


class Policy(Enum):
    """The choice among equally fast placements (solver/fragmentation.py)."""

    PACK = "pack"
    SPREAD = "spread"
    ADAPTIVE = "adaptive"


Seats = tuple[tuple[NodeName, tuple[int, ...]], ...]
"""The node and the GPUs of each worker, in rank order; no GPUs where the kubelet picks them."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The solver's view of a job.

    `workers` pods of `gpus` GPUs each. `cpu` (cores) and `memory` (bytes) are per worker.
    `excluded` names nodes that the job may not use, each with the reason. `min_bandwidth` is GB/s
    of all-reduce bus bandwidth; `max_nodes` limits the number of nodes. `per_node` is the most
    workers that may share a node, even if it has room for more. For NCCL the workers of a node are
    one host if they are `joined`, else a host each. Hosts reach each other over `wire`. `required`
    is the level that all nodes must share (`node`, a tier of the cluster, `beyond`). `preferred` is
    the level that they share if possible, even at the cost of bandwidth. `pack_above` is the share
    of GPUs in use above which the adaptive policy packs. `seats` is the only placement that will
    do, if there are any. If the gang is `blind`, the kubelet picks its GPUs on each node that does
    not pin them (`Node.pins`), so such a node counts with the worst set that its pods may get.
    InvalidJob for a gang without workers or without GPUs.
    """

    workers: int
    gpus: int
    cpu: float = 0.0
    memory: int = 0
    model: str | None = None
    mix_models: bool = False
    excluded: Mapping[NodeName, Reason] = msgspec.field(default_factory=dict)
    min_bandwidth: float = 0.0
    max_nodes: int | None = None
    per_node: int | None = None
    joined: bool = True
    wire: Wire = Wire.TCP
    required: str | None = None
    preferred: str | None = None
    policy: Policy = Policy.PACK
    pack_above: float = PACK_ABOVE
    seats: Seats = ()
    blind: bool = False

    def __post_init__(self) -> None:
        for count, noun in ((self.workers, "worker"), (self.gpus, "GPU for each worker")):
            if count < 1:
                raise InvalidJob(f"a gang needs at least one {noun}", why=f"{count} were asked for")


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on one start of a job, beyond its own flags: nodes to avoid, or its seats."""

    avoid: tuple[NodeName, ...] = ()
    seats: Seats = ()

    def on(self, request: Request) -> Request:
        """The request under this constraint."""
        avoided = dict.fromkeys(self.avoid, Reason.AVOIDED)
        return msgspec.structs.replace(
            request, excluded={**request.excluded, **avoided}, seats=self.seats
        )


UNCONSTRAINED = Constraint()


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's node and GPUs.

    `gpus` are device indexes in ring order; empty if it is not known which devices of the node are
    free, so that the kubelet picks.
    """

    worker: int
    node: NodeName
    gpus: tuple[int, ...]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of an answer: no placement gives these pods more than `bound` GB/s.

    If a level is preferred, that holds for placements as near as the one found. `optimal`: no
    placement is in a higher band of bandwidth, and of those in this band none is nearer together,
    on fewer nodes, or has more bandwidth inside. Fragmentation is not proven. If `rated`, both hold
    only among placements without a network, or NICs, of unknown rate: those come after known ones,
    but may give more than `bound`.
    """

    optimal: bool
    bound: float
    rated: bool = False


UNPROVEN = Proof(optimal=False, bound=UNLIMITED)
"""The proof of a placement that was not searched for."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The place of every worker, in rank order, and its estimates.

    `bandwidth` is the all-reduce bandwidth of these pods, `inside` that of the same GPUs if all
    pods of a node are one host, `worst` that of the slowest GPUs that the kubelet may pick instead
    if devices cannot be pinned. All are None for a job of one GPU, and `worst` is None for
    baselines. `tier` is `node`, the network level that joins the nodes, or `beyond`. `gpus` (of
    each worker), `joined` and `wire` are those of the request.
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
        return tuple(self.loads)

    @property
    def loads(self) -> Mapping[NodeName, int]:
        """The workers of each node, the nodes in rank order."""
        return Counter(assignment.node for assignment in self.assignments)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How often a gang fits by counting; bandwidth and distance are ignored.

    `gangs` of them fit at the same time now. `largest` is the most workers of a gang that fits now,
    `largest_empty` on the cluster without other jobs.
    """

    gangs: int
    largest: int
    largest_empty: int


class Verdict(Enum):
    """The answer to "does it fit?"."""

    PLACEABLE = "Placeable"
    NOT_NOW = "NotNow"
    NEVER = "Never"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why nodes take no worker (or not enough), the number of nodes, one of them.

    `jobs` are the gangs for which they are reserved, if that is the reason.
    """

    reason: Reason
    nodes: int
    example: NodeName
    jobs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The reason in words: `reserved for team-a/bert`."""
        return f"reserved for {listed(self.jobs)}" if self.jobs else self.reason.value


class Unplaceable(ArenaError):
    """No set of GPUs fits. NOT_NOW (exit 3) may change by itself; NEVER (exit 5) cannot.

    `refusals` counts the nodes by reason; `nearest` says what would fit; `notes` are oddities of
    the cluster that may be the cause. `why` lists the refusals if it is not given; the notes are
    not part of it.
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
            f"{refusal.nodes} node{'s' if refusal.nodes != 1 else ''} ({refusal.example}"
            f"{', ...' if refusal.nodes > 1 else ''}): {refusal.text}"
            for refusal in refusals
        ]
        super().__init__(message, why=why or "; ".join(counted) or None, hint=nearest)
        self.verdict = verdict
        self.refusals = refusals
        self.nearest = nearest
        self.notes = notes
        self.exit_code = 5 if verdict is Verdict.NEVER else 3


class Instead(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the job that lets it use other nodes; the solver gets only their names.

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
    return max(number for number in (near - 1, near, near + 1) if band_edge(number) <= value)


def band_edge(band: float) -> float:
    """The lower edge of a band in GB/s."""
    return BAND**band if math.isfinite(band) else band


def in_cents(rate: float) -> float:
    """The largest number of GB/s with two decimal places that is not above a rate."""
    cents = math.floor(round(rate * 100, 6))
    return (cents if cents / 100 <= rate else cents - 1) / 100


def once_empty(today: Iterable[Node]) -> str:
    """The clause for the time when these nodes have their full capacity."""
    closed = any(node.unavailable is not None for node in today)
    return f"once all other jobs have ended{' and all nodes are ready' if closed else ''}"
