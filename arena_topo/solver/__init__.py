"""Solver(cluster): which nodes and which GPUs each worker of a gang gets.

The solver knows requests, not jobs, and does not touch the world: values in, values out. An answer
carries its proof; a refusal carries its reasons as values. Other packages import from here alone.

    request         what is asked, and what is answered
    door            Solver: all answers about one cluster
    gang            the search: bandwidth by bandwidth, level by level
    classes         nodes that a job cannot tell apart, and where they are
    domains         which domain of a level
    selection       how many nodes of each class, and how full: fewest, then cheapest
    gpu_sets        the bandwidth of every set of GPUs of a machine
    loads           what a set of GPUs of a node is worth to a job
    valuing         what a placement is worth: its hosts as NCCL counts them
    fragmentation   which of the equally good placements: what is left, and who is nearby
    explain         why a gang has no place, and the smallest change that would give it one
    freeing         the fewest GPUs or nodes that others would have to free
    baselines       what schedulers that only count would do: the comparison
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from arena_topo.solver.gpu_sets import UNLIMITED, GPUSets, sets_of
from arena_topo.solver.request import (
    BEYOND,
    NODE_TIER,
    PACK_ABOVE,
    Assignment,
    Baseline,
    Counts,
    Instead,
    Placement,
    Policy,
    Proof,
    Reason,
    Refusal,
    Request,
    Unplaceable,
    Verdict,
    band,
    distances,
    once_empty,
)

if TYPE_CHECKING:
    from arena_topo.solver.door import Found, Objective, Solver, place, valued

__all__ = [
    "BEYOND",
    "NODE_TIER",
    "PACK_ABOVE",
    "UNLIMITED",
    "Assignment",
    "Baseline",
    "Counts",
    "Found",
    "GPUSets",
    "Instead",
    "Objective",
    "Placement",
    "Policy",
    "Proof",
    "Reason",
    "Refusal",
    "Request",
    "Solver",
    "Unplaceable",
    "Verdict",
    "band",
    "distances",
    "once_empty",
    "place",
    "sets_of",
    "valued",
]


def __getattr__(name: str) -> Any:
    # Most readers of placements search for none, and the search takes time to import.
    if name in {"Found", "Objective", "Solver", "place", "valued"}:
        return getattr(importlib.import_module("arena_topo.solver.door"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
