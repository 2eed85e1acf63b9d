"""What else a refused job could be: other selectors, more tolerations, more nodes set aside.

The solver knows only which nodes a job may use. Here the flags behind that are known, so that it
can try what another choice of them would give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from arena_topo.gang import planning
from arena_topo.job import MPIJob, Toleration
from arena_topo.solver import Instead, Reason
from arena_topo.topology import Cluster, Taint, natural

MOST_TRIED = 4
"""Sets of taints, and nodes to set aside, that are tried one by one."""


def alternatives(job: MPIJob, cluster: Cluster) -> tuple[Instead, ...]:
    """Changes of a job, or of what is set aside for jobs, that let it use other nodes.

    The gentlest come first; the last that is not `later` gives up everything at once.
    """
    taints = [_unborne(job, node.taints) for node in cluster.nodes]
    chosen = [*_selectors(job), *_tolerations(job, taints)]
    everything = replace(job, selector=(), toleration=(*job.toleration, Toleration.parse("all")))
    words = {Reason.SELECTOR: "without --selector", Reason.TAINT: "with --toleration all"}
    if job.selector and any(taints):
        chosen.append((" and ".join(words.values()), everything))
    return (
        *(Instead(words=said, excluded=planning.excluded(one, cluster)) for said, one in chosen),
        *_set_aside(job, cluster),
    )


def _selectors(job: MPIJob) -> Iterator[tuple[str, MPIJob]]:
    for one in job.selector:
        kept = tuple(other for other in job.selector if other is not one)
        yield f"without --selector {one}", replace(job, selector=kept)
    if len(job.selector) > 1:
        yield "without --selector", replace(job, selector=())


def _tolerations(job: MPIJob, taints: Iterable[tuple[Taint, ...]]) -> Iterator[tuple[str, MPIJob]]:
    sets = Counter(filter(None, taints))
    for group, _nodes in sets.most_common(MOST_TRIED):
        try:
            more = [Toleration.parse(_spelled(taint)) for taint in group]
        except ValueError:
            continue
        said = " and ".join(f"--toleration {_spelled(taint)}" for taint in group)
        yield f"with {said}", replace(job, toleration=(*job.toleration, *more))
    if len(sets) > 1:
        everything = (*job.toleration, Toleration.parse("all"))
        yield "with --toleration all", replace(job, toleration=everything)


def _unborne(job: MPIJob, taints: Sequence[Taint]) -> tuple[Taint, ...]:
    return tuple(one for one in taints if not planning.borne(one, job.toleration))


def _spelled(taint: Taint) -> str:
    """A taint as `--toleration` takes it."""
    return (
        f"{taint.key}={taint.value}:{taint.effect}"
        if taint.value
        else (f"{taint.key}:{taint.effect}")
    )


def _set_aside(job: MPIJob, cluster: Cluster) -> Iterator[Instead]:
    """Nodes that the job keeps away from because others are set aside for jobs like it."""
    excluded = planning.excluded(job, cluster)
    names = sorted(
        (name for name, reason in excluded.items() if reason is Reason.DEDICATED), key=natural
    )
    for name in names[:MOST_TRIED]:
        yield Instead(
            words=f"{name} is set aside for topology jobs too",
            excluded={one: reason for one, reason in excluded.items() if one != name},
            later=True,
        )
    if len(names) > 1:
        yield Instead(
            words="more nodes are set aside for topology jobs",
            excluded={
                one: reason for one, reason in excluded.items() if reason is not Reason.DEDICATED
            },
            later=True,
        )
