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

from arena_topo.solver.gpu_sets import UNLIMITED as UNLIMITED
from arena_topo.solver.gpu_sets import GPUSets as GPUSets
from arena_topo.solver.gpu_sets import sets_of as sets_of
from arena_topo.solver.request import BEYOND as BEYOND
from arena_topo.solver.request import NODE_TIER as NODE_TIER
from arena_topo.solver.request import PACK_ABOVE as PACK_ABOVE
from arena_topo.solver.request import Assignment as Assignment
from arena_topo.solver.request import Baseline as Baseline
from arena_topo.solver.request import Counts as Counts
from arena_topo.solver.request import Instead as Instead
from arena_topo.solver.request import Placement as Placement
from arena_topo.solver.request import Policy as Policy
from arena_topo.solver.request import Proof as Proof
from arena_topo.solver.request import Reason as Reason
from arena_topo.solver.request import Refusal as Refusal
from arena_topo.solver.request import Request as Request
from arena_topo.solver.request import Unplaceable as Unplaceable
from arena_topo.solver.request import Verdict as Verdict
from arena_topo.solver.request import band as band
from arena_topo.solver.request import distances as distances
from arena_topo.solver.request import once_empty as once_empty

if TYPE_CHECKING:
    from arena_topo.solver.door import Found as Found
    from arena_topo.solver.door import Objective as Objective
    from arena_topo.solver.door import Solver as Solver
    from arena_topo.solver.door import place as place
    from arena_topo.solver.door import valued as valued


def __getattr__(name: str) -> Any:
    # Most readers of placements search for none, and the search takes time to import.
    if name in {"Found", "Objective", "Solver", "place", "valued"}:
        return getattr(importlib.import_module("arena_topo.solver.door"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
