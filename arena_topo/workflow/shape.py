"""Pod shapes: workers fused into fewer, larger ones, and whether mpirun starts a rank per slot."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from arena_topo.backends import Backend
from arena_topo.errors import InvalidJob
from arena_topo.job import MPIJob, PodShape
from arena_topo.manifests import Plan
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import gang
from arena_topo.solver.classes import Index
from arena_topo.topology import Cluster
from arena_topo.workflow import planning


def fused(
    job: MPIJob,
    cluster: Cluster,
    backend: Backend | None = None,
    *,
    api: ApiVersion | None = None,
    later: bool = False,
) -> MPIJob:
    """The same job with fewer, larger workers, as `--pod-shape fused` runs it.

    Every number of workers that one pod can hold is placed. Of these the placement wins that the
    solver prefers (`gang.Worth`), then the largest pods. The job itself where its shape is another.
    Where it does not fit now the job itself as well, or with `later` the shape that is best on the
    cluster once it is empty, for a job that waits. `api` and InvalidJob as for `request_of`.
    """
    if job.pod_shape is not PodShape.FUSED:
        return job
    api = planning.version(backend, api)
    found = _best(job, cluster, backend, api)
    if found is None and later:
        found = _best(job, cluster.idle(), backend, api)
    return found or job


def _best(job: MPIJob, cluster: Cluster, backend: Backend | None, api: ApiVersion) -> MPIJob | None:
    """The best shape of a job on a cluster; None if it fits in none."""
    index = Index(cluster)
    largest = max((len(node.machine.gpus) for node in cluster.nodes), default=0)
    best: tuple[gang.Worth, MPIJob] | None = None
    for each in range(job.workers, 0, -1):
        if job.workers % each or each * job.gpus > largest:
            continue
        shape = merged(job, each, api)
        request = planning.request_of(shape, cluster, backend, api=api)
        found = gang.best(request, index)
        if found is None:
            continue
        rank = found.worth
        if best is None or rank < best[0]:
            best = rank, shape
    return None if best is None else best[1]


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

_LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})

_BEFORE = re.compile(r"exec|time|[A-Za-z_]\w*=.*", re.DOTALL)
"""What may stand before the name of a program."""

_ELSEWHERE = (
    *("H", "host", "hostfile", "machinefile", "default-hostfile", "rankfile", "rf", "app", "am"),
    *("oversubscribe", "use-hwthread-cpus"),
)
"""Options after which the slots of the workers are not what counts."""


def ranks(command: str) -> int | None:
    """How many ranks a command starts, where it says so beyond doubt; else None.

    One mpirun or mpiexec with options that are known, and one program after them.
    """
    found = list(_launches(command))
    if len(found) != 1:
        return None
    from arena_topo.backends.local.mpirun import line  # noqa: PLC0415  only for such commands

    if ":" in found[0]:
        return None
    try:
        program = line.read(found[0], line.ARITY)
    except (KeyError, line.Untranslatable):
        return None
    mapping = program.last("map-by") or ""
    if program.has(*_ELSEWHERE) or "oversubscribe" in mapping.lower() or not program.command:
        return None
    said = {number for name in ("np", "n", "c") for number in program.all(name)}
    number = said.pop() if len(said) == 1 else ""
    plain = number.isascii() and number.isdigit() and len(number) <= _DIGITS
    return int(number) if plain else None


def _launches(command: str) -> Iterator[list[str]]:
    """The words after each mpirun of a shell command; none where it cannot be split."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return
    simple: list[str] = []
    for word in [*words, ";"]:
        if word and not set(word) <= set("();<>|&\n"):
            simple.append(word)
            continue
        while simple and _BEFORE.fullmatch(simple[0]):
            simple.pop(0)
        if simple and simple[0].rpartition("/")[2] in _LAUNCHERS:
            yield simple[1:]
        simple = []


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
