"""A job on a cluster -> its Plan: what the solver is asked, what is built, what is doubtful.

Nothing here writes. `plan`, `submit` and those who start waiting jobs all place by these functions.
"""

from __future__ import annotations

import difflib
import io
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from arena_topo import files
from arena_topo.bandwidth import Wire, rate_is_assumed
from arena_topo.engines import Backend
from arena_topo.errors import AccessDenied, InvalidJob, UsageError
from arena_topo.job import ConfigFile, MPIJob, PodShape, Toleration
from arena_topo.manifests import Binding, Forecast, Guarantee, Mechanisms, Plan, estimates, render
from arena_topo.manifests.binding import bind
from arena_topo.manifests.forecast import counted_on, forecast_of, valued_as
from arena_topo.manifests.versions import BEST, ApiVersion
from arena_topo.solver import (
    PACK_ABOVE,
    Instead,
    Placement,
    Policy,
    Reason,
    Refusal,
    Request,
    Solver,
    Unplaceable,
    Verdict,
    distances,
)
from arena_topo.topology import (
    TAINT,
    Cluster,
    Knowledge,
    Node,
    NodeName,
    Taint,
    natural,
    published,
)
from arena_topo.topology.nics import is_rdma


def plan(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    cluster: Cluster | None = None,
) -> Plan:
    """Decide everything about a job without writing anything; Unplaceable if it does not fit.

    `cluster` is what to place on; without it the backend is read. Without either a job that is
    not placed can still be planned.
    """
    from arena_topo.gang import shape  # noqa: PLC0415  it plans in its turn

    shape.check(job)
    if not job.gputopology:
        check_size(job, backend, cluster)
        kept = _kept(job, backend, cluster)
        return built(job, backend, namespace=namespace, api=api, cluster=cluster, kept=kept)
    if cluster is None:
        if backend is None:
            raise nothing_to_place_on()
        cluster = seen(job, backend, namespace)
    check_preferred(job, cluster, backend)
    asked = job
    # By numbers alone nothing fits better than separate pods. With these limits larger pods may: a
    # refusal speaks of those that would fit once others have ended.
    later = bool(asked.min_bandwidth or asked.host_network)
    job = shape.shaped(asked, cluster, backend, api=api, later=later)
    request = request_of(job, cluster, backend, api=api)
    try:
        placement = placed(
            job,
            request,
            cluster,
            each=asked.workers // job.workers,
            fusible=lambda: shape.fusible(asked, cluster, backend, namespace=namespace, api=api),
        )
    except Unplaceable as refused:
        free = replace(request, min_bandwidth=0.0)
        best = Solver(cluster).find(free) if request.min_bandwidth else None
        if best is not None:
            binding = bound(job, best, cluster, backend, namespace=namespace, api=api)
            if kubelet_decides(best, cluster, binding):
                # What the best GPUs would give, which the refusal names, is no way out.
                check_bandwidth(job, best, cluster, binding, verdict=refused.verdict)
        raise
    plan = built(
        job,
        backend,
        namespace=namespace,
        api=api,
        cluster=cluster,
        request=request,
        placement=placement,
    )
    if plan.binding is not None:
        check_bandwidth(job, placement, cluster, plan.binding)
    return plan


def seen(job: MPIJob, backend: Backend, namespace: str) -> Cluster:
    """The cluster as a new job may use it: without what is kept for a gang that waits longer."""
    from arena_topo.gang import fairness  # noqa: PLC0415  only where there is a queue

    queue = backend.queue
    if queue is None:
        return backend.cluster()
    try:
        view = queue.read()
    except AccessDenied:
        return backend.cluster()
    cluster = view.cluster()
    mine = fairness.newcomer(job, namespace=namespace, priority=queue.priority(job.priority))
    blocked = partial(fairness.short_of_quota, queue)
    left, head = fairness.left_for(mine, cluster, view, fit, blocked=blocked)
    if head is None:
        return cluster
    kept = f"GPUs are kept for {head.namespace}/{head.name}, which waits longer"
    return replace(left, notes=(*left.notes, kept))


def nothing_to_place_on() -> UsageError:
    """The mistake of placing a job where no cluster is known."""
    return UsageError(
        "there is no cluster to place on",
        hint="give a dump with --state FILE, or set KUBECONFIG; to try it without either:"
        " --image local --emulate dgx-1-v100:2",
    )


def built(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None,
    cluster: Cluster | None,
    request: Request | None = None,
    placement: Placement | None = None,
    waiting: str | None = None,
    binding: Binding | None = None,
    kept: bool = False,
) -> Plan:
    """The plan of what was decided, with all that its submitter should know.

    `binding` is how a placement is made to hold, where that was found out already.
    """
    from arena_topo.gang import shape  # noqa: PLC0415  it plans in its turn

    api = version(backend, api)
    built = render.plan(
        job,
        namespace=namespace,
        api=api,
        owner=backend.owner() if backend else _user(),
        files=_read_files(job),
        request=request,
        placement=placement,
        cluster=cluster,
        waiting=waiting,
        binding=binding or (backend.binding if backend else None),
        mechanisms=mechanisms_in(backend, namespace) if placement and binding is None else None,
        kept=kept,
    )
    remarks = (*_unsuspended(job, api), *(backend.remarks(job) if backend else ()))
    doubts = _doubts(placement, cluster) if placement and cluster else []
    doubts += _may_be_less(job, built.forecast)
    more = (*remarks, *_left_out(job, cluster), *shape.remarks(built), *doubts)
    return replace(built, notes=(*built.notes, *more))


def version(backend: Backend | None, api: ApiVersion | None = None) -> ApiVersion:
    """The MPIJob version that jobs are written in: the one given, else what the engine takes."""
    return api or (backend.api_version() if backend else BEST)


def _kept(job: MPIJob, backend: Backend | None, cluster: Cluster | None) -> bool:
    """Whether ACK's label keeps some nodes for topology jobs, which other jobs must avoid."""
    if job.gpus < 1:
        return False
    label = published.SCHEDULE_LABEL
    return any(node.labels.get(label) == "topology" for node in _nodes(backend, cluster))


def _nodes(backend: Backend | None, cluster: Cluster | None) -> tuple[Node, ...]:
    """All nodes as far as they are known."""
    if cluster is not None:
        return cluster.nodes
    return () if backend is None else backend.machines()


def mechanisms_in(backend: Backend | None, namespace: str) -> Mechanisms | None:
    """What makes placements hold in a namespace; None where there is no cluster to ask."""
    if backend is None or backend.binding is not None:
        return None
    return backend.mechanisms(namespace)


def check_size(job: MPIJob, backend: Backend | None, cluster: Cluster | None) -> None:
    """Refuse a worker that asks for more GPUs than any node has; it would wait for ever."""
    if job.gpus < 1:
        return
    # A cluster without GPU nodes may add some once a pod asks for them.
    most = max((len(node.machine.gpus) for node in _nodes(backend, cluster)), default=0)
    if 0 < most < job.gpus:
        raise Unplaceable(
            f"no node has {job.gpus} GPUs",
            verdict=Verdict.NEVER,
            refusals=(),
            nearest=f"the largest worker that fits on this cluster has {most} GPUs: --gpus {most}",
        )


def _doubts(placement: Placement, cluster: Cluster) -> list[str]:
    """What the promised bandwidth rests on, where that is not what machines said themselves."""
    chosen = set(placement.nodes)
    machines = [node.machine for node in cluster.nodes if node.name in chosen]
    found = [
        ([one.name for one in machines if one.knowledge is knowledge], words)
        for knowledge, words in _DOUBTS.items()
    ]
    found.append(([one.name for one in machines if rate_is_assumed(one)], "NVLink rate assumed"))
    doubts = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {words}"
        for names, words in found
        if names
    ]
    guess = cluster.guesses.get(placement.tier)
    if all(one.nics and None not in {nic.speed for nic in one.nics} for one in machines):
        # The NICs say how fast the nodes are.
        guess = None
    return [*doubts, *([guess] if guess is not None else [])]


def _may_be_less(job: MPIJob, forecast: Forecast | None) -> list[str]:
    """Whether the range of a bandwidth begins below the least that was asked for."""
    low = forecast.low if forecast is not None else None
    if forecast is None or low is None or low >= job.min_bandwidth:
        return []
    least = f"--min-bandwidth {job.min_bandwidth:g}, which the point is judged by"
    return [f"{estimates.recorded(forecast)}: the low end of the range is less than {least}"]


_DOUBTS = {
    Knowledge.ASSUMED: "links assumed from the GPU product and count",
    Knowledge.UNKNOWN: "links not known; every path counts as the slowest",
}


def bound(
    job: MPIJob,
    placement: Placement,
    cluster: Cluster,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None,
) -> Binding:
    """How a placement would be made to hold; InvalidJob and ArenaError as of `bind`."""
    if backend is not None and backend.binding is not None:
        return backend.binding
    found = mechanisms_in(backend, namespace)
    return bind(job, placement, cluster, version(backend, api), found)


def kubelet_decides(placement: Placement, cluster: Cluster, binding: Binding) -> bool:
    """Whether the kubelet may pick GPUs that give less than those of a placement."""
    as_bound = valued_as(placement, cluster, binding)
    return counted_on(as_bound, binding) != as_bound.bandwidth


def check_bandwidth(
    job: MPIJob,
    placement: Placement,
    cluster: Cluster,
    binding: Binding,
    *,
    verdict: Verdict = Verdict.NOT_NOW,
) -> None:
    """Refuse a placement of which the pods can use less than --min-bandwidth.

    Unplaceable, by default NOT_NOW: which GPUs the kubelet can pick changes with what other jobs
    use.
    """
    forecast = forecast_of(placement, cluster, binding)
    if forecast.usable is None or forecast.usable >= job.min_bandwidth:
        return
    rate = math.floor(round(forecast.usable * 100, 6)) / 100
    cause = _cause(valued_as(placement, cluster, binding), binding, forecast)
    raise Unplaceable(
        f"the pods of {job.name} could use {estimates.recorded(forecast)} now, less than"
        f" --min-bandwidth {job.min_bandwidth:g}",
        verdict=verdict,
        refusals=(
            Refusal(
                reason=Reason.BANDWIDTH, nodes=len(placement.nodes), example=placement.nodes[0]
            ),
        ),
        why="; ".join(filter(None, [cause, binding.why])),
        nearest=f"fits now with --min-bandwidth {rate:g}",
        notes=cluster.notes,
    )


def _cause(placement: Placement, binding: Binding, forecast: Forecast) -> str:
    """Why pods can use no more: what limits them, or the kubelet that may pick slower GPUs."""
    ours, worst = placement.bandwidth, placement.worst
    if binding.guarantee is Guarantee.GPUS or ours is None or worst is None or ours == worst:
        return estimates.recorded_limit(forecast)
    return f"the kubelet picks the GPUs, at worst {estimates.text(worst)}"


def fit(
    job: MPIJob,
    cluster: Cluster,
    backend: Backend | None = None,
    *,
    api: ApiVersion | None = None,
) -> Placement | None:
    """The best placement of a job; None, without looking for reasons, where there is none."""
    return Solver(cluster).find(request_of(job, cluster, backend, api=api))


def placed(
    job: MPIJob,
    request: Request,
    cluster: Cluster,
    *,
    each: int = 1,
    fusible: Callable[[], bool] = lambda: True,
) -> Placement:
    """The best placement of a request of this job; Unplaceable says why there is none.

    `each` is how many workers were fused into one of the job; `fusible` says, for a refusal,
    whether fused pods would be a way out.
    """
    solver = Solver(cluster)
    found = solver.find(request)
    if found is None:
        # Which flags keep the job from nodes is known here, not in the solver.
        others = _alternatives(job, cluster) if request.excluded else ()
        limited = bool(request.min_bandwidth or request.per_node)
        raise solver.explain(
            request,
            others=others,
            notes=cluster.notes,
            each=each,
            fusible=limited and job.workers > 1 and fusible(),
        )
    return found


def request_of(
    job: MPIJob,
    cluster: Cluster,
    backend: Backend | None = None,
    *,
    api: ApiVersion | None = None,
) -> Request:
    """Translate a job into what the solver needs to know of it; `backend` is whose cluster it is.

    `api` is the version that the job is written in, if not the engine's. A preferred level that
    this cluster has not is left out: whoever reads a job again may know fewer levels than its
    submitter did, for whom `check_preferred` is. InvalidJob if the job contradicts itself, or
    requires a level that is not there.
    """
    if job.gpus < 1:
        raise InvalidJob("--gputopology needs GPUs", hint="add --gpus N", flag="--gputopology")
    if job.queue and backend is not None and backend.queue is None:
        raise InvalidJob(
            "--queue and --gputopology exclude each other on this engine",
            why="there is no kube-queue that could start the job",
            hint="leave one of them out; what does not fit waits anyway",
            flag="--queue",
        )
    words = distances(cluster)
    if job.topology_required and job.topology_required not in words:
        raise _no_such_level("--topology-required", job.topology_required, cluster, backend)
    return Request(
        workers=job.workers,
        gpus=job.gpus,
        cpu=float(job.cpu.amount) if job.cpu else 0.0,
        memory=int(job.memory.amount) if job.memory else 0,
        model=job.gpu_model or None,
        mix_models=job.mix_models,
        excluded=excluded(job, cluster),
        min_bandwidth=job.min_bandwidth,
        max_nodes=job.max_nodes or None,
        per_node=1 if _one_per_node(job, backend, api) else None,
        joined=_joined(job, backend),
        wire=_wire(job, backend),
        required=job.topology_required or None,
        preferred=job.topology_preferred if job.topology_preferred in words else None,
        policy=Policy(job.policy.value) if job.policy else Policy.PACK,
        pack_above=PACK_ABOVE if job.pack_above is None else job.pack_above,
    )


def _one_per_node(job: MPIJob, backend: Backend | None, api: ApiVersion | None) -> bool:
    """Whether no two workers of a job can run on one node of this engine."""
    if not job.host_network or (backend is not None and backend.binding is not None):
        # What an engine that binds by itself runs is no pods with sshd.
        return False
    return render.one_per_node(job, version(backend, api))


def _joined(job: MPIJob, backend: Backend | None) -> bool:
    """Whether NCCL takes the workers of a node for one host."""
    together = backend is not None and backend.binding is not None and not backend.binding.separate
    return together or job.pod_shape is PodShape.SHARED


def _wire(job: MPIJob, backend: Backend | None) -> Wire:
    """RDMA where the workers are given NICs: what runs on the machine itself has all of them."""
    native = backend is not None and backend.binding is not None
    given = job.rdma or job.host_network or any(is_rdma(one.name) for one in job.device)
    return Wire.RDMA if native or given else Wire.TCP


def check_preferred(job: MPIJob, cluster: Cluster, backend: Backend | None = None) -> None:
    """Refuse, with InvalidJob, to prefer a level that nobody knows: a word that was mistyped.

    One that other clusters have is only left out: a level is preferred wherever it can be had.
    """
    from arena_topo.topology.fabric import WORDS  # noqa: PLC0415  only for submitters

    level, known = job.topology_preferred, WORDS | cluster.unused
    if level and level not in {*distances(cluster), *known}:
        raise _no_such_level("--topology-preferred", level, cluster, backend, known)


def _unsuspended(job: MPIJob, api: ApiVersion) -> Iterator[str]:
    """That a queue may not decide when a job starts, though it is to."""
    if job.queue and not api.traits.suspends:
        yield (
            f"--queue is an annotation only, since MPIJob {api} cannot be suspended: an operator"
            " that does not know it starts the job at once"
        )


def _left_out(job: MPIJob, cluster: Cluster | None) -> Iterator[str]:
    """That a preferred level is not there."""
    level = job.topology_preferred
    if level and cluster is not None and level not in (words := distances(cluster)):
        yield (
            f"--topology-preferred {level} is left out: this cluster has no such level; it knows"
            f" {', '.join(words)}"
        )


def _no_such_level(
    flag: str,
    level: str,
    cluster: Cluster,
    backend: Backend | None,
    known: Iterable[str] = (),
) -> InvalidJob:
    """The mistake of naming a level that is not there; `known` are others that could be meant."""
    words = list(distances(cluster))
    near = difflib.get_close_matches(level, [*words, *known], n=1)
    described = len(words) > len(NO_TIERS) or (backend is not None and backend.name == "local")
    if near:
        hint = f"did you mean {near[0]}?"
    elif described:
        # The local engine takes no fabric file.
        hint = f"use one of these, or leave out {flag}"
    else:
        hint = "name the levels with --fabric FILE"
    return InvalidJob(
        f"{flag} {level}: this cluster has no such level",
        why=f"it knows {', '.join(words)}",
        hint=hint,
        flag=flag,
    )


NO_TIERS = ("node", "beyond")
"""The words that every cluster knows."""


_SEEN_ELSEWHERE = {
    f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable")
}
"""Taints that come and go with what `Node.unavailable` says already; others, such as
disk-pressure, keep pods away by themselves."""


def excluded(job: MPIJob, cluster: Cluster) -> Mapping[NodeName, Reason]:
    """The nodes that the job's own words, or the nodes', keep it from."""
    # Where some nodes are set aside for topology jobs, these jobs keep to them.
    set_aside = any(node.dedicated for node in cluster.nodes)
    reasons = {}
    for node in cluster.nodes:
        reason = _reason(job, node)
        if reason is None and set_aside and not node.dedicated:
            reason = Reason.DEDICATED
        if reason is not None:
            reasons[node.name] = reason
    return reasons


def set_aside_for_topology(job: MPIJob, cluster: Cluster) -> Mapping[NodeName, Reason]:
    """The nodes that a job without --gputopology may not use, those for topology jobs too."""
    reasons = {
        node.name: Reason.DEDICATED if node.dedicated else _reason(job, node)
        for node in cluster.nodes
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _reason(job: MPIJob, node: Node) -> Reason | None:
    if any(node.labels.get(one.key) != one.value for one in job.selector):
        return Reason.SELECTOR
    if any(not borne(taint, job.toleration) for taint in node.taints):
        return Reason.TAINT
    return None


def borne(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    """Whether a taint keeps no worker with these tolerations away."""
    # Placed workers tolerate the taint that keeps nodes for them (manifests.binding).
    if taint.effect == "PreferNoSchedule" or taint.key in {TAINT, *_SEEN_ELSEWHERE}:
        return True
    return any(one.tolerates(taint.key, taint.value, taint.effect) for one in tolerations)


# ---------------------------------------------------------------- what a refused job could be


_MOST_TRIED = 4
"""Sets of taints, and nodes to set aside, that are tried one by one."""


def _alternatives(job: MPIJob, cluster: Cluster) -> tuple[Instead, ...]:
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
        *(Instead(words=said, excluded=excluded(one, cluster)) for said, one in chosen),
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
    for group, _nodes in sets.most_common(_MOST_TRIED):
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
    return tuple(one for one in taints if not borne(one, job.toleration))


def _spelled(taint: Taint) -> str:
    """A taint as `--toleration` takes it."""
    return (
        f"{taint.key}={taint.value}:{taint.effect}"
        if taint.value
        else (f"{taint.key}:{taint.effect}")
    )


def _set_aside(job: MPIJob, cluster: Cluster) -> Iterator[Instead]:
    """Nodes that the job keeps away from because others are set aside for jobs like it."""
    kept_away = excluded(job, cluster)
    names = sorted(
        (name for name, reason in kept_away.items() if reason is Reason.DEDICATED), key=natural
    )
    for name in names[:_MOST_TRIED]:
        yield Instead(
            words=f"{name} is set aside for topology jobs too",
            excluded={one: reason for one, reason in kept_away.items() if one != name},
            later=True,
        )
    if len(names) > 1:
        yield Instead(
            words="more nodes are set aside for topology jobs",
            excluded={
                one: reason for one, reason in kept_away.items() if reason is not Reason.DEDICATED
            },
            later=True,
        )


# ---------------------------------------------------------------- files and users


_CONFIG_MAP = 1 << 20
"""Bytes of a ConfigMap, at most (Kubernetes: core/validation, MaxSecretSize)."""


def _read_files(job: MPIJob) -> dict[ConfigFile, str]:
    """The text of every `--config-file`; InvalidJob names the one that cannot be read."""
    texts = {}
    for one in job.config_file:
        # Path would raise for an unknown `~user`.
        path = os.path.expanduser(one.source)  # noqa: PTH111 - see above
        try:
            with files.opened(path) as file:
                content = file.read(_CONFIG_MAP + 1)
            texts[one] = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
        except UnicodeDecodeError as error:
            raise _unread(one, "it is not UTF-8 text") from error
        except OSError as error:
            raise _unread(one, error.strerror) from error
        if len(content) > _CONFIG_MAP:
            raise _unread(one, "a ConfigMap, which it becomes, has at most 1 MiB")
    return texts


def _unread(file: ConfigFile, why: str | None) -> InvalidJob:
    return InvalidJob(f"cannot read --config-file {file.source}", why=why)


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or "unknown"
