"""The gangs that wait in vain once nodes are reserved for topology jobs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.errors import ArenaError
from arena_topo.gang import fairness
from arena_topo.gang.request import Site, request_of
from arena_topo.manifests.recorded_job import job_of
from arena_topo.solver import Reason, Verdict
from arena_topo.solver.door import Solver

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.admin import Administration

MAX_GANGS = 8
"""The most gangs that are looked at, the first of the queue."""


def hopeless_gangs(names: Sequence[str], admin: Administration) -> list[str]:
    """The first waiting gangs that no reserved node can ever take once these are reserved.

    Empty without the right to read the queue and the cluster.
    """
    try:
        snapshot = admin.backend.queue.read()
        today = snapshot.cluster()
    except ArenaError:
        return []
    nodes = (
        replace(node, dedicated=node.dedicated or node.name in names, unavailable=None)
        for node in today.nodes
    )
    empty = replace(today, nodes=tuple(nodes)).idle()
    solver, site = Solver(empty), Site(backend=admin.backend)
    waiting = fairness.order(snapshot.jobs)[:MAX_GANGS]
    stranded = []
    for own in waiting:
        with suppress(ArenaError):
            request = request_of(job_of(dict(own.manifest)), empty, site)
            fits = Reason.DEDICATED not in request.excluded.values() or solver.best(request)
            if not fits and solver.explain(request).verdict is Verdict.NEVER:
                stranded.append(f"{own.namespace}/{own.name}")
    return stranded
