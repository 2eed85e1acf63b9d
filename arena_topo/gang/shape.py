"""Pod shapes: fusing workers into fewer, larger pods, and the check of mpirun's ranks per slot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from arena_topo.clusters.queues import KUBE_QUEUE, KUEUE_LABEL
from arena_topo.engines.local import mpirun
from arena_topo.errors import InvalidJob
from arena_topo.gang.request import ANY_SITE, Site, request_of
from arena_topo.job import KeyValue, MPIJob, PodShape
from arena_topo.manifests import ASKED_SHAPE, Plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.numbers import parse_count
from arena_topo.solver.door import Objective, Solver
from arena_topo.topology import Cluster
from arena_topo.words import counted


def choose_pod_shape(
    job: MPIJob, cluster: Cluster, site: Site = ANY_SITE, *, later: bool = False
) -> MPIJob:
    """The same job with the pods that `--pod-shape fused` or `auto` make of its workers.

    Every number of workers that fits in one pod is tried. The placement that the solver prefers
    (`Objective`) wins, then the largest pods; with `auto` only if it is in a higher band than
    separate pods, or if these do not fit. Placements count as they are planned, also where the
    kubelet picks the GPUs: it prefers those that NVLink joins. A job of another shape is returned
    unchanged. If the job does not fit now, the result has separate pods; with `later`, for a job
    that waits, it has the shape that is best on the empty cluster, else the shape that is best now
    without --min-bandwidth. InvalidJob as for `request_of`.
    """
    if job.pod_shape not in {PodShape.FUSED, PodShape.AUTO}:
        return job
    if job.pod_shape is PodShape.AUTO and not _may_choose(job, site.api):
        return with_pod_shape(job, 1, site.api)
    each = best_shape(job, cluster, site)
    if each is None and later:
        each = best_shape(job, cluster.idle(), site)
        if each is None and job.min_bandwidth:
            each = best_shape(replace(job, min_bandwidth=0.0), cluster, site)
    return with_pod_shape(job, each or 1, site.api)


def with_pod_shape(job: MPIJob, each: int, api: ApiVersion) -> MPIJob:
    """The job with `each` workers per pod; an annotation records that `auto` was asked for."""
    if job.pod_shape is PodShape.AUTO:
        used = PodShape.FUSED if each > 1 else PodShape.SEPARATE
        asked = KeyValue(key=ASKED_SHAPE, value=str(PodShape.AUTO))
        job = replace(job, pod_shape=used, annotation=(*job.annotation, asked))
    return merge_workers(job, each, api) if each > 1 else job


def _may_choose(job: MPIJob, api: ApiVersion) -> bool:
    """Whether the pods of a job may differ from the pods in its request.

    They may not for a job of a queue, which counts the pods in the request, for the operator of
    v1alpha1, which divides the GPUs of a job by itself, and for a command that places its ranks.
    """
    keys = {label.key for label in (*job.label, *job.annotation)}
    queued = job.queue or not keys.isdisjoint({KUEUE_LABEL, KUBE_QUEUE})
    return not (queued or api.traits.arenas or fixes_ranks(job.command))


def best_shape(job: MPIJob, cluster: Cluster, site: Site) -> int | None:
    """The best number of workers per pod on a cluster; None if the job fits with none."""
    solver = Solver.of(cluster)
    largest = max((len(node.machine.gpus) for node in cluster.nodes), default=0)
    objectives: dict[int, Objective] = {}
    for each in range(job.workers, 0, -1):
        if job.workers % each or each * job.gpus > largest:
            continue
        request = request_of(merge_workers(job, each, site.api), cluster, site)
        placed = solver.best(structs.replace(request, blind=False))
        if placed is not None:
            objectives[each] = placed.worth
    # Of equal placements the first: the largest pods.
    first = min(objectives, key=lambda each: objectives[each], default=None)
    if job.pod_shape is PodShape.AUTO and first is not None and 1 in objectives:
        return first if objectives[first].band < objectives[1].band else 1
    return first


def merge_workers(job: MPIJob, each: int, api: ApiVersion) -> MPIJob:
    """The same job with every `each` workers merged into one; `each` divides their number."""
    # The launcher defaults to the resources of one original worker. A launcher from the template of
    # the workers has resources of its own only if the job asks for some.
    alike = not api.traits.one_template or job.launcher_cpu or job.launcher_memory
    return replace(
        job,
        workers=job.workers // each,
        gpus=job.gpus * each,
        cpu=None if job.cpu is None else job.cpu.times(each),
        memory=None if job.memory is None else job.memory.times(each),
        launcher_cpu=job.launcher_cpu or job.cpu if alike else None,
        launcher_memory=job.launcher_memory or job.memory if alike else None,
        device=tuple(
            replace(device, quantity=device.quantity.times(each)) for device in job.device
        ),
    )


# ---------------------------------------------------------------- the ranks of mpirun


_ELSEWHERE = (
    *("H", "host", "hostfile", "machinefile", "default-hostfile", "rankfile", "rf", "app", "am"),
    *("oversubscribe", "use-hwthread-cpus"),
)
"""Options that replace the slots of the workers."""


_PLACING = frozenset(
    {
        *("N", "npernode", "pernode", "npersocket", "ppn", "perhost", "hosts", "rankfile", "rf"),
        *("H", "host", "hostfile", "machinefile", "default-hostfile", "app", "f"),
    }
)
"""Options that place ranks, or set their number per pod: of Open MPI, MPICH, Intel, Horovod."""


def fixes_ranks(command: str) -> bool:
    """Whether a command places its ranks, so that pods of another size would break it.

    The options inside a script that it calls are not known.
    """
    for words in mpirun.launches(command, mpirun.LAUNCHERS | {"horovodrun"}):
        if any("ppr" in word.lower() for word in words[1:]):
            return True
        names = (word.lstrip("-").partition("=")[0] for word in words if word.startswith("-"))
        if not _PLACING.isdisjoint(names):
            return True
    return False


def ranks_of_command(command: str) -> int | None:
    """The number of ranks that a command starts, if that is certain; else None.

    It is certain for one mpirun or mpiexec with known options only, followed by one program.
    """
    launches = list(mpirun.launches(command))
    if len(launches) != 1 or ":" in launches[0]:
        return None
    options, program = mpirun.parse_options(launches[0][1:])
    if not program or program[0].startswith("-"):
        return None
    counts = set()
    for option, *values in options:
        name = option.lstrip("-")
        if name in _ELSEWHERE or (name == "map-by" and "oversubscribe" in values[0].lower()):
            return None
        if name in {"np", "n", "c"}:
            counts.add(values[0])
    return parse_count(counts.pop()) if len(counts) == 1 else None


class _Ranks(NamedTuple):
    """The ranks that the mpirun of a job starts, and its slots: each GPU is one for one rank."""

    job: MPIJob
    number: int

    @property
    def slots(self) -> int:
        return self.job.workers * max(1, self.job.gpus)

    @property
    def mismatch(self) -> str:
        size = f"{counted(self.job.workers, 'worker')} x {counted(self.job.gpus, 'GPU')}"
        ranks = counted(self.number, "rank")
        return f"mpirun starts {ranks}, but {size} make {counted(self.slots, 'slot')}"


def _ranks(job: MPIJob) -> _Ranks | None:
    """The ranks of a job; None if their number is not certain."""
    number = ranks_of_command(job.command)
    return None if number is None else _Ranks(job, number)


def check_ranks(job: MPIJob) -> None:
    """Raise InvalidJob for a placed job whose mpirun starts more ranks than there are slots."""
    ranks = _ranks(job) if job.gputopology else None
    if ranks is not None and ranks.number > ranks.slots:
        raise InvalidJob(
            ranks.mismatch,
            why="each GPU is a slot for one rank",
            hint=f"use -np {ranks.slots}, or ask for more workers; to run several ranks on one"
            " GPU, add --oversubscribe to mpirun",
        )


def shape_remarks(plan: Plan) -> tuple[str, ...]:
    """Remarks on the shape of the pods, and on the ranks that mpirun starts."""
    job = plan.job
    ranks = _ranks(job) if job.gpus else None
    sentences = []
    if ranks is not None and ranks.number > ranks.slots:
        sentences.append(f"{ranks.mismatch}; Open MPI refuses that without --oversubscribe")
    elif ranks is not None and ranks.number < ranks.slots:
        idle = counted(ranks.slots - ranks.number, "GPU")
        sentences.append(f"{ranks.mismatch}, so {idle} will be idle")
    placement, binding = plan.placement, plan.binding
    if job.pod_shape is PodShape.SHARED and placement is not None and binding is not None:
        loads = Counter(assignment.node for assignment in placement.assignments)
        if binding.separate and max(loads.values()) > 1:
            sentences.append(
                "--pod-shape shared does not join these pods, as none of them may be shown the GPUs"
                " of its neighbours here; --pod-shape fused would"
            )
    return tuple(sentences)
