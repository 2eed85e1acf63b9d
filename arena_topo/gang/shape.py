"""Pod shapes: workers fused into fewer, larger ones, and whether mpirun starts a rank per slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from arena_topo.clusters.queues import KUBE_QUEUE, KUEUE_LABEL
from arena_topo.engines import Backend
from arena_topo.engines.local import mpirun
from arena_topo.errors import ArenaError, InvalidJob
from arena_topo.gang import planning
from arena_topo.job import KeyValue, MPIJob, PodShape
from arena_topo.manifests import ASKED_SHAPE, Plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Objective, Solver
from arena_topo.topology import Cluster


def shaped(
    job: MPIJob,
    cluster: Cluster,
    backend: Backend | None = None,
    *,
    api: ApiVersion | None = None,
    later: bool = False,
) -> MPIJob:
    """The same job in the pods that `--pod-shape fused` or `auto` make of its workers.

    Every number of workers that one pod can hold is placed. Of these the placement wins that the
    solver prefers (`Objective`), then the largest pods; with `auto` that has to be in a higher
    band than separate pods. The job itself where its shape is another. Where it does not fit now
    the job in separate pods as well, or with `later` in the shape that is best on the cluster once
    it is empty, for a job that waits, or else without its least bandwidth. `api` and InvalidJob as
    for `request_of`.
    """
    automatic = job.pod_shape is PodShape.AUTO
    if job.pod_shape is not PodShape.FUSED and not automatic:
        return job
    api = planning.version(backend, api)
    if automatic and not _may_choose(job, api):
        return chosen(job, 1, api)
    found = _best(job, cluster, backend, api)
    if found is None and later:
        found = _best(job, cluster.idle(), backend, api)
    if found is None and later and job.min_bandwidth:
        found = _best(replace(job, min_bandwidth=0.0), cluster, backend, api)
    return chosen(job, found or 1, api)


def fusible(
    job: MPIJob,
    cluster: Cluster,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None,
) -> bool:
    """Whether fused pods of a job without a place would have one, now or once others have ended.

    What the solver finds for them is not enough: where the kubelet picks their GPUs, they may get
    less than --min-bandwidth.
    """
    if job.pod_shape is PodShape.FUSED or not allows(job, PodShape.FUSED):
        return False
    asked, api = replace(job, pod_shape=PodShape.FUSED), planning.version(backend, api)
    for world in (cluster, cluster.idle()):
        each = _best(asked, world, backend, api)
        if each is None:
            continue
        fused = chosen(asked, each, api)
        placement = Solver(world).find(planning.request_of(fused, world, backend, api=api))
        assert placement is not None, "the best number of workers to a pod has a place"
        try:
            binding = planning.bound(fused, placement, world, backend, namespace=namespace, api=api)
            planning.check_bandwidth(fused, placement, world, binding)
        except ArenaError:
            return False
        return True
    return False


def chosen(job: MPIJob, each: int, api: ApiVersion) -> MPIJob:
    """The job with so many workers to a pod; one of `auto` says that it was asked so."""
    if job.pod_shape is PodShape.AUTO:
        used = PodShape.FUSED if each > 1 else PodShape.SEPARATE
        asked = KeyValue(key=ASKED_SHAPE, value=str(PodShape.AUTO))
        job = replace(job, pod_shape=used, annotation=(*job.annotation, asked))
    return merged(job, each, api) if each > 1 else job


def _may_choose(job: MPIJob, api: ApiVersion) -> bool:
    """Whether the pods of a job may be others than those that its request speaks of.

    A queue that counts what jobs ask for has to find it in the request, and the operator of
    v1alpha1 divides the GPUs of a job by itself.
    """
    keys = {one.key for one in (*job.label, *job.annotation)}
    queued = job.queue or not keys.isdisjoint({KUEUE_LABEL, KUBE_QUEUE})
    return not (queued or api.traits.arenas) and allows(job, PodShape.FUSED)


def _best(job: MPIJob, cluster: Cluster, backend: Backend | None, api: ApiVersion) -> int | None:
    """The best number of workers to a pod on a cluster; None if the job fits with none."""
    solver = Solver(cluster)
    largest = max((len(node.machine.gpus) for node in cluster.nodes), default=0)
    found: dict[int, Objective] = {}
    for each in range(job.workers, 0, -1):
        if job.workers % each or each * job.gpus > largest:
            continue
        request = planning.request_of(merged(job, each, api), cluster, backend, api=api)
        placed = solver.best(request)
        if placed is not None:
            found[each] = placed.worth
    # Of equals the first: the largest pods.
    best = min(found, key=lambda each: found[each], default=None)
    if job.pod_shape is PodShape.AUTO and best is not None and 1 in found:
        return best if found[best].band < found[1].band else 1
    return best


def merged(job: MPIJob, each: int, api: ApiVersion) -> MPIJob:
    """The same job with every so many workers made one; `each` divides their number."""
    # A launcher has what a worker has unless told otherwise, and it does not grow. One that is made
    # from the template of the workers is given nothing of its own unless something is asked for it.
    alike = not api.traits.one_template or job.launcher_cpu or job.launcher_memory
    return replace(
        job,
        workers=job.workers // each,
        gpus=job.gpus * each,
        cpu=None if job.cpu is None else job.cpu.times(each),
        memory=None if job.memory is None else job.memory.times(each),
        launcher_cpu=job.launcher_cpu or job.cpu if alike else None,
        launcher_memory=job.launcher_memory or job.memory if alike else None,
        device=tuple(replace(one, quantity=one.quantity.times(each)) for one in job.device),
    )


# ---------------------------------------------------------------- mpirun's own number


_DIGITS = 9
"""Of a number of ranks; more than any job has."""

_ELSEWHERE = (
    *("H", "host", "hostfile", "machinefile", "default-hostfile", "rankfile", "rf", "app", "am"),
    *("oversubscribe", "use-hwthread-cpus"),
)
"""Options after which the slots of the workers are not what counts."""


_PLACING = frozenset(
    {
        *("N", "npernode", "pernode", "npersocket", "ppn", "perhost", "hosts", "rankfile", "rf"),
        *("H", "host", "hostfile", "machinefile", "default-hostfile", "app", "f"),
    }
)
"""Options that say where ranks run, or how many a pod gets: of Open MPI, MPICH, Intel, Horovod."""


def fixes_ranks(command: str) -> bool:
    """Whether a command says where its ranks run, so that pods of another size would break it.

    What a script that it calls says is not seen.
    """
    for words in mpirun.launches(command, mpirun.LAUNCHERS | {"horovodrun"}):
        if any("ppr" in word.lower() for word in words[1:]):
            return True
        names = (word.lstrip("-").partition("=")[0] for word in words if word.startswith("-"))
        if not _PLACING.isdisjoint(names):
            return True
    return False


def allows(job: MPIJob, pods: PodShape) -> bool:
    """Whether the command of a job runs the same in pods of a shape."""
    return pods is not PodShape.FUSED or not fixes_ranks(job.command)


def ranks(command: str) -> int | None:
    """How many ranks a command starts, where it says so beyond doubt; else None.

    One mpirun or mpiexec with options that are known, and one program after them.
    """
    found = list(mpirun.launches(command))
    if len(found) != 1 or ":" in found[0]:
        return None
    options, program = mpirun.read(found[0][1:])
    if not program or program[0].startswith("-"):
        return None
    said = set()
    for option, *values in options:
        name = option.lstrip("-")
        if name in _ELSEWHERE or (name == "map-by" and "oversubscribe" in values[0].lower()):
            return None
        if name in {"np", "n", "c"}:
            said.add(values[0])
    number = said.pop() if len(said) == 1 else ""
    plain = number.isascii() and number.isdigit() and len(number) <= _DIGITS
    return int(number) if plain else None


def check(job: MPIJob) -> None:
    """Refuse, with InvalidJob, a placed job whose mpirun starts more ranks than there are slots."""
    number, slots = ranks(job.command), _slots(job)
    if job.gputopology and number is not None and number > slots:
        raise InvalidJob(
            f"mpirun starts {_many(number, 'rank')}, but {_size(job)} make {_many(slots, 'slot')}",
            why="each GPU is a slot for one rank",
            hint=f"use -np {slots}, or ask for more workers; to run several ranks on one GPU, add"
            " --oversubscribe to mpirun",
        )


def remarks(plan: Plan) -> tuple[str, ...]:
    """What a person should know of the shape of the pods, and of the ranks that mpirun starts."""
    return (*_idle(plan.job), *_apart(plan))


def _apart(plan: Plan) -> Iterator[str]:
    if plan.job.pod_shape is not PodShape.SHARED or plan.placement is None or plan.binding is None:
        return
    loads = Counter(one.node for one in plan.placement.assignments)
    if plan.binding.separate and max(loads.values()) > 1:
        yield (
            "--pod-shape shared does not join these pods, as none of them may be shown the GPUs of"
            " its neighbours here; --pod-shape fused would"
        )


def _idle(job: MPIJob) -> tuple[str, ...]:
    number, slots = ranks(job.command) if job.gpus else None, _slots(job)
    if number is None or number == slots:
        return ()
    said = f"mpirun starts {_many(number, 'rank')}, but {_size(job)} make {_many(slots, 'slot')}"
    if number > slots:
        return (f"{said}; Open MPI refuses that without --oversubscribe",)
    return (f"{said}, so {_many(slots - number, 'GPU')} will be idle",)


def _slots(job: MPIJob) -> int:
    return job.workers * max(1, job.gpus)


def _size(job: MPIJob) -> str:
    return f"{_many(job.workers, 'worker')} x {_many(job.gpus, 'GPU')}"


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"
