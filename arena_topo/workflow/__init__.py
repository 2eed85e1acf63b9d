"""The verbs: plan, submit, wait, follow. Each is one path of readers, solver, manifests, backend.

Nothing here prints: progress goes to the `tell` that the caller hands in, results are values.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arena_topo import manifests
from arena_topo.backends import Backend, Instance, JobStatus, LogOptions, Options
from arena_topo.errors import ArenaError, ClusterError, InvalidJob, NotFound, TimedOut, UsageError
from arena_topo.job import ConfigFile, MPIJob, Toleration
from arena_topo.manifests import ApiVersion, Guarantee, Plan
from arena_topo.solver import (
    PACK_ABOVE,
    Placement,
    Policy,
    Reason,
    Request,
    Unplaceable,
    Verdict,
    cost,
    gang,
)
from arena_topo.solver.classes import Index
from arena_topo.solver.configurations import has_nvlink
from arena_topo.topology import TAINT, Cluster, Knowledge, Machine, Node, NodeName, Taint
from arena_topo.topology.fabricfile import FabricFile

LOCAL_IMAGE = "local"
"""The image name that means "whatever is installed on this machine"."""

PATIENCE = 60.0
"""Seconds that a job may be out of sight, its server not answering, before waiting for it ends."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What `submit` did: the plan, the names of what was created, the job as it stands.

    `status` is None where the job was created but cannot be read; `unread` says why. `starter` says
    who starts a job that has to wait, `nearest` what would have let it start now.
    """

    plan: Plan
    created: tuple[str, ...]
    status: JobStatus | None
    unread: str | None = None
    starter: str | None = None
    nearest: str | None = None


def open_backend(options: Options, *, image: str | None = None) -> Backend:
    """Open the engine asked for; `auto` is Kubernetes where it is configured, else local.

    A job whose image is not `local` never runs locally by accident: UsageError with both ways out.
    """
    if options.backend not in {"auto", "kubernetes", "local"}:
        raise UsageError(
            f"unknown backend {options.backend!r}", hint="use auto, kubernetes or local"
        )
    if _engine(options) == "kubernetes":
        from arena_topo.backends.kubernetes import engine as kubernetes  # noqa: PLC0415  heavy

        return kubernetes.open_backend(options)
    if options.backend == "auto" and image not in {None, "", LOCAL_IMAGE}:
        raise UsageError(
            f"no Kubernetes cluster is configured, and image {image} cannot run on this machine",
            why="no --kubeconfig, KUBECONFIG, ~/.kube/config or in-cluster account was found",
            hint="set KUBECONFIG, or run the command outside its image with --backend local; to try"
            " it without a cluster or GPUs: --image local --emulate dgx-1-v100:2",
        )
    if options.fabric is not None:
        raise UsageError(
            "--fabric is not for the local engine",
            why="its machines have no labels that could say where in a network they are",
            hint="give --state FILE, or a cluster with --backend kubernetes",
        )
    from arena_topo.backends.local import engine as local  # noqa: PLC0415  heavy

    return local.open_backend(options)


def nowhere(options: Options, image: str) -> bool:
    """Whether `auto` finds no engine that a job of this image could run on."""
    return (
        options.backend == "auto" and image not in {"", LOCAL_IMAGE} and _engine(options) == "local"
    )


def _engine(options: Options) -> str:
    if options.backend != "auto":
        return options.backend
    from arena_topo.backends.kubernetes import kubeconfig  # noqa: PLC0415  only for `auto`

    if options.kubeconfig or options.context or kubeconfig.configured(options):
        return "kubernetes"
    return "local"


def read_state(paths: Sequence[str], fabric: FabricFile | None = None) -> Cluster:
    """The cluster that dumps of `kubectl get ... -o json` describe; `-` is standard input.

    `fabric` says what joins the nodes, where it is given, whatever their labels say. UsageError if
    there is no node in them.
    """
    from arena_topo.backends import dump, observed  # noqa: PLC0415  YAML, only for dumps

    source = ", ".join(paths)
    found = observed.cluster(dump.read(paths), source=source, file=fabric)
    if not found.nodes:
        raise UsageError(
            f"{source}: the dump holds no nodes",
            why="; ".join(found.notes[:3]) or None,
            hint="make one with: kubectl get nodes,pods,mpijobs -A -o json > state.json",
        )
    return found


def read_fabric(path: str) -> FabricFile:
    """The network that a file describes; `-` is standard input.

    UsageError names the file and the place in it that makes no sense.
    """
    from arena_topo.backends import dump  # noqa: PLC0415  YAML, only for files
    from arena_topo.topology import fabricfile  # noqa: PLC0415  only for files

    data, name = dump.document(path)
    return fabricfile.read(data, where=name)


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
    if not job.gputopology:
        check_size(job, backend, cluster)
        return _built(job, backend, namespace=namespace, api=api, cluster=cluster)
    if cluster is None:
        if backend is None:
            raise nothing_to_place_on()
        cluster = backend.cluster()
    request = request_of(job, cluster, backend)
    placement = _placed(job, request, cluster)
    return _built(
        job,
        backend,
        namespace=namespace,
        api=api,
        cluster=cluster,
        request=request,
        placement=placement,
    )


def nothing_to_place_on() -> UsageError:
    """The mistake of placing a job where no cluster is known."""
    return UsageError(
        "--gputopology needs a cluster to place on",
        hint="give a dump with --state FILE, or set KUBECONFIG; to try it without either:"
        " --image local --emulate dgx-1-v100:2",
    )


def _built(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None,
    cluster: Cluster | None,
    request: Request | None = None,
    placement: Placement | None = None,
    waiting: str | None = None,
) -> Plan:
    """The plan of what was decided, with all that its submitter should know."""
    built = manifests.plan(
        job,
        namespace=namespace,
        api=api or (backend.api_version() if backend else ApiVersion.V2BETA1),
        owner=backend.owner() if backend else _user(),
        files=_read_files(job),
        request=request,
        placement=placement,
        cluster=cluster,
        waiting=waiting,
        binding=backend.binding if backend else None,
    )
    remarks = backend.remarks(job) if backend else ()
    doubts = _doubts(placement, cluster) if placement and cluster else []
    short = _short(built)
    return replace(built, notes=(*built.notes, *remarks, *doubts, *short))


def submit(
    job: MPIJob, backend: Backend, *, namespace: str, api: ApiVersion | None = None
) -> Submitted:
    """Plan a job and make it real; a gang that does not fit now is created waiting.

    Unplaceable (NEVER) if it cannot fit whatever ends; AlreadyExists if the name is taken.
    """
    cluster = backend.cluster() if job.gputopology else None
    nearest = None
    try:
        decided = plan(job, backend, namespace=namespace, api=api, cluster=cluster)
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW or cluster is None:
            raise
        nearest = refused.nearest
        decided = _waiting(job, backend, cluster, refused, namespace=namespace, api=api)
    created = backend.apply(decided)
    status, unread, starter = None, None, None
    try:
        status = backend.job(job.name, namespace)
    except ArenaError as error:
        # From here on the job exists, and whoever submitted it must hear that.
        unread = error.message
    if decided.waiting is not None:
        starter = (
            "It starts by itself once it can."
            if backend.starts_waiting
            else "It waits suspended and holds nothing. Nobody starts it: delete it, and submit it"
            " again when it fits."
        )
    return Submitted(
        plan=decided,
        created=created,
        status=status,
        unread=unread,
        starter=starter,
        nearest=nearest,
    )


def check_size(job: MPIJob, backend: Backend | None, cluster: Cluster | None) -> None:
    """Refuse a worker that asks for more GPUs than any node has; it would wait for ever."""
    if job.gpus < 1:
        return
    if cluster is not None:
        most = max((len(node.machine.gpus) for node in cluster.nodes), default=0) or None
    else:
        most = backend.most_gpus() if backend is not None else None
    if most is not None and most < job.gpus:
        raise Unplaceable(
            f"no node has {job.gpus} GPUs",
            verdict=Verdict.NEVER,
            refusals=(),
            nearest=f"the largest worker that fits on this cluster has {most} GPUs: --gpus {most}",
        )


def _waiting(
    job: MPIJob,
    backend: Backend,
    cluster: Cluster,
    refused: Unplaceable,
    *,
    namespace: str,
    api: ApiVersion | None,
) -> Plan:
    """The plan of a gang that has to wait: suspended, with the reason, reserving nothing."""
    version = api or backend.api_version()
    if version is ApiVersion.V1ALPHA1 and not backend.starts_waiting:
        raise Unplaceable(
            refused.message,
            verdict=refused.verdict,
            refusals=refused.refusals,
            nearest=f"{refused.nearest or 'submit again later'} (MPIJob v1alpha1 cannot wait)",
            notes=refused.notes,
        )
    return _built(
        job,
        backend,
        namespace=namespace,
        api=version,
        cluster=cluster,
        request=request_of(job, cluster, backend),
        waiting=refused.reason,
    )


def _doubts(placement: Placement, cluster: Cluster) -> list[str]:
    """What the promised bandwidth rests on, where that is not what machines said themselves."""
    chosen = set(placement.nodes)
    machines = [node.machine for node in cluster.nodes if node.name in chosen]
    found = [
        ([one.name for one in machines if one.knowledge is knowledge], words)
        for knowledge, words in _DOUBTS.items()
    ]
    found.append(([one.name for one in machines if _rate_assumed(one)], "NVLink rate assumed"))
    doubts = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {words}"
        for names, words in found
        if names
    ]
    guess = cluster.guesses.get(placement.tier)
    return [*doubts, *([guess] if guess is not None else [])]


def _rate_assumed(machine: Machine) -> bool:
    return cost.rate_is_assumed(machine.model) and has_nvlink(machine.configuration)


_DOUBTS = {
    Knowledge.ASSUMED: "links assumed from the GPU product and count",
    Knowledge.UNKNOWN: "links not known; every path counts as the slowest",
}


def _short(plan: Plan) -> list[str]:
    """What is missing where the pods can use less than the least bandwidth asked for."""
    least = plan.job.min_bandwidth
    usable = plan.forecast.usable if plan.forecast is not None else None
    if usable is None or usable >= least:
        return []
    said = f"these pods can use {round(usable, 2):g} GB/s, less than --min-bandwidth {least:g}"
    return [f"{said}: {shortfall(plan)}"]


def shortfall(plan: Plan) -> str:
    """Why the pods of a plan can use less than their GPUs allow; empty where they can use it all.

    The same reasons as in `manifests.forecast_of`.
    """
    placement, binding, forecast = plan.placement, plan.binding, plan.forecast
    if placement is None or binding is None or forecast is None or forecast.usable is None:
        return ""
    causes = []
    if binding.guarantee is not Guarantee.GPUS and placement.worst < placement.bandwidth:
        causes.append(f"the kubelet picks the GPUs, at worst {round(placement.worst, 2):g} GB/s")
    if forecast.usable < min(placement.bandwidth, placement.worst) or (
        not causes and forecast.usable < placement.bandwidth
    ):
        causes.append(
            f"pods that share a node talk through its memory, {round(forecast.usable, 2):g} GB/s"
        )
    return "; ".join(causes)


def _placed(job: MPIJob, request: Request, cluster: Cluster) -> Placement:
    from arena_topo.workflow import tables  # noqa: PLC0415  only for placing

    tables.prepare(cluster)
    index = Index(cluster)
    found = gang.best(request, index)
    if found is None:
        from arena_topo.solver.refusal import refusal  # noqa: PLC0415  only for refusals
        from arena_topo.workflow.alternatives import alternatives  # noqa: PLC0415

        # Which flags keep the job from nodes is known here, not in the solver.
        others = alternatives(job, cluster) if request.excluded else ()
        raise refusal(request, cluster, others=others, notes=cluster.notes)
    return gang.placement(request, index, found)


def request_of(job: MPIJob, cluster: Cluster, backend: Backend | None = None) -> Request:
    """Translate a job into what the solver needs to know of it; `backend` is whose cluster it is.

    InvalidJob if the job contradicts itself, or names what this cluster has not.
    """
    if job.gpus < 1:
        raise InvalidJob("--gputopology needs GPUs", hint="add --gpus N")
    if job.queue:
        raise InvalidJob(
            "--queue and --gputopology exclude each other",
            why="GPUs chosen now may be taken when the queue starts the job",
            hint="leave one of them out",
        )
    for flag, level in (
        ("--topology-required", job.topology_required),
        ("--topology-preferred", job.topology_preferred),
    ):
        _check_level(flag, level, cluster, backend)
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
        required=job.topology_required or None,
        preferred=job.topology_preferred or None,
        policy=Policy(job.policy.value) if job.policy else Policy.PACK,
        pack_above=PACK_ABOVE if job.pack_above is None else job.pack_above,
    )


def _check_level(flag: str, level: str, cluster: Cluster, backend: Backend | None) -> None:
    words = list(gang.distances(cluster))
    if level and level not in words:
        described = len(words) > len(NO_TIERS) or (backend is not None and backend.name == "local")
        raise InvalidJob(
            f"{flag} {level}: this cluster has no such level",
            why=f"it knows {', '.join(words)}",
            # The local engine takes no fabric file.
            hint=f"use one of these, or leave out {flag}"
            if described
            else "name the levels with --fabric FILE",
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


def _read_files(job: MPIJob) -> dict[ConfigFile, str]:
    """The text of every `--config-file`; InvalidJob names the one that cannot be read."""
    texts = {}
    for one in job.config_file:
        path = Path(one.source).expanduser().absolute()
        try:
            texts[replace(one, source=str(path))] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidJob(f"cannot read --config-file {one.source}", why=reason) from error
    return texts


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or "unknown"


def wait(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    timeout: float | None = None,
    tell: Callable[[JobStatus], None] = lambda _: None,
    clock: Clock = time.monotonic,
) -> JobStatus:
    """Wait until a job is over; `tell` hears of every change of phase or reason.

    TimedOut after `timeout` seconds; the job goes on. A server that does not answer for a while
    does not end the waiting.
    """
    started, known, seen = clock(), None, clock()
    while True:
        try:
            job = backend.job(name, namespace)
        except (ClusterError, TimedOut) as error:
            if not _passing(error) or clock() - seen > PATIENCE:
                raise
            time.sleep(backend.look_every)
            continue
        seen = clock()
        if (job.phase, job.reason) != known:
            known = (job.phase, job.reason)
            tell(job)
        if job.phase.over:
            return job
        if timeout is not None and clock() - started >= timeout:
            raise TimedOut(
                f"job {name} is still {job.phase} after {timeout:g} s",
                why=job.reason,
                hint=f"it goes on: arena-topo get {name} -n {namespace}",
            )
        time.sleep(backend.look_every)


def _passing(error: ClusterError | TimedOut) -> bool:
    """Whether asking again may help: no answer, or a server in trouble."""
    return isinstance(error, TimedOut) or error.status is None or error.status >= SERVER_ERROR


SERVER_ERROR = 500
"""HTTP codes from here on are the server's fault, not the caller's (RFC 9110, 15.6)."""


def follow(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    instance: str | None,
    options: LogOptions,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[bytes]:
    """The log of one pod of a job, the launcher's unless another is named.

    With `options.follow` it waits for the pod (`tell` hears why) and ends with it.
    """
    job = _existing(backend, name, namespace)
    told = None
    while True:
        chosen = _instance(job, instance, follow=options.follow)
        if chosen is not None and not chosen.pending:
            yield from backend.log(job, chosen.name, options)
            return
        if not options.follow or job.phase.over:
            raise NotFound(
                f"instance {chosen.name if chosen else name} is not running",
                why=job.reason,
                hint=f"wait for it: arena-topo logs -f {name} -n {namespace}",
            )
        waiting = job.reason or "waiting for the pod to start"
        if waiting != told:
            told = waiting
            tell(waiting)
        time.sleep(backend.look_every)
        job = _existing(backend, name, namespace)


def _existing(backend: Backend, name: str, namespace: str) -> JobStatus:
    try:
        return backend.job(name, namespace)
    except NotFound as missing:
        raise NotFound(
            "training job not found,please use 'arena-topo list' to make sure job is existed",
            why=missing.message,
        ) from None


def _instance(job: JobStatus, named: str | None, *, follow: bool) -> Instance | None:
    """The pod whose log is meant; None while there is none yet."""
    if named is not None:
        for one in job.instances:
            if one.name == named:
                return one
        raise NotFound(
            f"invalid instance name {named} in job {job.name},please use"
            f" 'arena-topo get {job.name}' to make sure instance name"
        )
    if job.chief is not None:
        return job.chief
    if follow and not job.phase.over:
        return None
    if len(job.instances) == 1:
        return job.instances[0]
    if not job.instances:
        raise NotFound(f"not found instances of the job {job.name}", why=job.reason)
    names = "\n".join(one.name for one in job.instances)
    raise UsageError(
        f"There is {len(job.instances)} instances have been found:\n\n{names}\n\n"
        "please use '-i' or '--instance' to filter."
    )
