"""A job on a cluster -> its Plan: placement, binding, objects, and caveats.

Nothing here writes. `decide` is the only way from a job to a placement: `plan`, `submit`, `resume`
and the controller all use it.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from arena_topo import files
from arena_topo.bandwidth import rate_is_assumed
from arena_topo.engines import Backend
from arena_topo.errors import AccessDenied, ArenaError, ClusterError, InvalidJob, TimedOut
from arena_topo.gang import fairness, shape
from arena_topo.gang.request import NOWHERE, Site, alternatives, check_preferred, levels, request_of
from arena_topo.job import BindingChoice, ConfigFile, MPIJob, PodShape
from arena_topo.manifests import Binding, Forecast, Plan, estimates, pinning, render
from arena_topo.manifests.binding import double_booked
from arena_topo.manifests.cause import Cause, in_words
from arena_topo.manifests.forecast import counted_on, forecast_of, valued_as
from arena_topo.manifests.requests import job_of
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import (
    Placement,
    Reason,
    Refusal,
    Request,
    Solver,
    Unplaceable,
    Verdict,
    distances,
)
from arena_topo.topology import Cluster, GPUSet, Knowledge, Node, published
from arena_topo.words import shortened

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.engines.kubernetes.queued import QueuedJob, Snapshot

NO_NODES = Cluster(nodes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about a job: a placement with its binding, or the reason why there is none."""

    cluster: Cluster = NO_NODES
    placement: Placement | None = None
    binding: Binding | None = None
    refused: Cause | None = None
    nearest: str | None = None

    @property
    def forecast(self) -> Forecast:
        """The forecast to record with the decision."""
        if self.placement is None or self.binding is None:
            emulated = self.cluster.emulated
            return Forecast(state="waiting", cause=self.refused, emulated=emulated)
        return forecast_of(self.placement, self.cluster, self.binding)


UNDECIDED = Decision()


# ---------------------------------------------------------------- the placement of a job


def decide(
    job: MPIJob, cluster: Cluster, site: Site, *, gated: bool = False, each: int = 1
) -> Decision:
    """The best placement that a mechanism can enforce and that gives pods the bandwidth asked for.

    `gated`: the workers wait at their gates already. `each` is how many workers were fused into
    each worker of `job`. Unplaceable says why there is none; other errors as of `Site.bind`.
    """
    found = find(job, cluster, site, gated=gated)
    if found is not None:
        return found
    request = request_of(job, cluster, site)
    refused = _explained(job, request, cluster, each=each, fusible=partial(_fusible, job, site))
    best = None
    if job.min_bandwidth:
        # An error of the binding must not hide that the job can never have its bandwidth.
        with suppress(ArenaError):
            best = find(replace(job, min_bandwidth=0.0), cluster, site, gated=gated)
    if best is not None and best.placement is not None and best.binding is not None:
        as_bound = valued_as(best.placement, cluster, best.binding)
        if counted_on(as_bound, best.binding) != as_bound.bandwidth:
            # If the kubelet may pick slower GPUs, their bandwidth must be the advice.
            check_bandwidth(job, best.placement, cluster, best.binding, verdict=refused.verdict)
    raise refused


def find(job: MPIJob, cluster: Cluster, site: Site, *, gated: bool = False) -> Decision | None:
    """The result of `decide`; None, without a reason, if the solver finds nothing.

    If the kubelet would have to pick GPUs on a node whose GPUs arena-topo allocates, the job is
    placed elsewhere.
    """
    unheld: ArenaError | None = None
    while (placement := fit(job, cluster, site)) is not None:
        try:
            binding = site.bind(job, placement, cluster, gated=gated)
        except ArenaError as error:
            nodes = (node for node in cluster.nodes if node.name in placement.nodes)
            ours = {node.name for node in nodes if double_booked(node)}
            if not ours:
                raise
            unheld = unheld or error
            left = (
                replace(one, free=GPUSet(0)) if one.name in ours else one for one in cluster.nodes
            )
            cluster = replace(cluster, nodes=tuple(left))
        else:
            check_bandwidth(job, placement, cluster, binding)
            return Decision(cluster=cluster, placement=placement, binding=binding)
    if unheld is None:
        return None
    raise Unplaceable(
        unheld.message,
        verdict=Verdict.NOT_NOW,
        refusals=(),
        why=unheld.why,
        nearest=unheld.hint,
        notes=cluster.notes,
    )


def fit(job: MPIJob, cluster: Cluster, site: Site = NOWHERE) -> Placement | None:
    """The best placement of a job by the solver, whatever enforces it; None without one."""
    return Solver.of(cluster).find(request_of(job, cluster, site))


def placed(job: MPIJob, request: Request, cluster: Cluster) -> Placement:
    """The best placement of a request of this job; Unplaceable says why there is none."""
    found = Solver.of(cluster).find(request)
    if found is None:
        raise _explained(job, request, cluster)
    return found


def _explained(
    job: MPIJob,
    request: Request,
    cluster: Cluster,
    *,
    each: int = 1,
    fusible: Callable[[Cluster], bool] = lambda _: True,
) -> Unplaceable:
    """Why a request of this job has no placement; `fusible`: whether fused pods would have one."""
    limited = bool(request.min_bandwidth or request.per_node)
    return Solver.of(cluster).explain(
        request,
        # The flags that exclude nodes are known here, not in the solver.
        others=alternatives(job, cluster) if request.excluded else (),
        notes=cluster.notes,
        each=each,
        fusible=limited and job.workers > 1 and fusible(cluster),
    )


def _fusible(job: MPIJob, site: Site, cluster: Cluster) -> bool:
    """Whether fused pods of a job without a placement would fit, now or once others have ended."""
    if job.pod_shape is PodShape.FUSED or shape.fixes_ranks(job.command):
        return False
    fused = replace(job, pod_shape=PodShape.FUSED)
    for world in (cluster, cluster.idle()):
        each = shape.best(fused, world, site)
        if each is not None:
            # If the kubelet picks the GPUs of pods, they may get less than --min-bandwidth.
            with suppress(ArenaError):
                return find(shape.merged(fused, each, site.api), world, site) is not None
            return False
    return False


def check_bandwidth(
    job: MPIJob,
    placement: Placement,
    cluster: Cluster,
    binding: Binding,
    *,
    verdict: Verdict = Verdict.NOT_NOW,
) -> None:
    """Refuse a placement whose pods get less than --min-bandwidth under their binding.

    Unplaceable, by default NOT_NOW: the GPUs among which the kubelet picks change with the use by
    other jobs.
    """
    forecast = forecast_of(placement, cluster, binding)
    if forecast.usable is None or forecast.usable >= job.min_bandwidth:
        return
    rate = math.floor(round(forecast.usable * 100, 6)) / 100
    as_bound = valued_as(placement, cluster, binding)
    cause = estimates.recorded_limit(forecast)
    if counted_on(as_bound, binding) != as_bound.bandwidth and as_bound.worst is not None:
        cause = f"the kubelet picks the GPUs, at worst {estimates.text(as_bound.worst)}"
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


# ---------------------------------------------------------------- the objects of a job


def plan(
    job: MPIJob,
    backend: Backend | None,
    *,
    namespace: str,
    api: ApiVersion | None = None,
    cluster: Cluster | None = None,
) -> Plan:
    """Plan everything about a job without writing anything; Unplaceable if it does not fit.

    `cluster` is the cluster to place on; without it the backend is read. Without both, a job that
    is not placed can still be planned.
    """
    return planned(job, Site(backend=backend, namespace=namespace, version=api), cluster)


def planned(job: MPIJob, site: Site, cluster: Cluster | None) -> Plan:
    """The plan of a job at a site; arguments and errors as of `plan`."""
    if not job.gputopology:
        shape.check(job)
        _check_size(job, site, cluster or NO_NODES)
        return built(job, site, Decision(cluster=cluster or NO_NODES))
    if cluster is None:
        cluster = seen(job, site)
    # By counting alone nothing fits better than separate pods. With these limits larger pods may:
    # the refusal names those that would fit once others have ended.
    later = bool(job.min_bandwidth or job.host_network)
    shaped = as_pods(job, cluster, site, later=later)
    each = job.workers // shaped.workers
    return built(shaped, site, decide(shaped, cluster, site, each=each))


def to_create(job: MPIJob, site: Site) -> tuple[Plan, Cluster, str | None]:
    """The plan of a job that may wait, the cluster of the plan, and the nearest change to start it.

    Unplaceable (NEVER) if it cannot fit even when all other jobs have ended.
    """
    cluster = seen(job, site) if job.gputopology else None
    try:
        return planned(job, site, cluster), cluster or NO_NODES, None
    except Unplaceable as refused:
        if refused.verdict is not Verdict.NOT_NOW or cluster is None:
            raise
        waits = Decision(cluster=cluster, refused=in_words(refused.sentence))
        return built(job, site, waits), cluster, refused.nearest


def as_pods(job: MPIJob, cluster: Cluster, site: Site, *, later: bool) -> MPIJob:
    """A job to place, in the pods of its shape; InvalidJob for flags with unknown names."""
    shape.check(job)
    check_preferred(job, cluster)
    return shape.shaped(job, cluster, site, later=later)


def seen(job: MPIJob, site: Site) -> Cluster:
    """The cluster for a new job: without the GPUs reserved for the first waiting gang."""
    queue = site.engine.queue
    with suppress(AccessDenied):
        if queue is not None:
            view = queue.read()
            cluster, priority = view.cluster(), queue.priority(job.priority)
            mine = fairness.newcomer(job, namespace=site.namespace, priority=priority)
            left, head = share(mine, cluster, view, queue, site)
            if head is None:
                return cluster
            first = f"{head.namespace}/{head.name}"
            kept = f"GPUs are reserved for {first}, which comes first in the queue"
            return replace(left, notes=(*left.notes, kept))
    return site.engine.cluster()


def share(
    mine: QueuedJob,
    cluster: Cluster,
    view: Snapshot,
    queue: Queue,
    site: Site,
    *,
    known: dict[tuple[str, str], bool] | None = None,
) -> tuple[Cluster, QueuedJob | None]:
    """The cluster for a gang, and the gang ahead of it that reserves the rest.

    `known` remembers, for the gangs of one view, which of them are blocked: that takes a request.
    """
    found = {} if known is None else known

    def blocked(head: QueuedJob) -> bool:
        if head.key not in found:
            found[head.key] = _blocked(head, view, queue, site)
        return found[head.key]

    return fairness.left_for(mine, cluster, view, partial(fit, site=site), blocked=blocked)


def _blocked(head: QueuedJob, view: Snapshot, queue: Queue, site: Site) -> bool:
    """Whether something other than GPUs prevents the start of a gang.

    That is a quota, or a binding that cannot be used, or that gives its pods less bandwidth than
    the gang requires. It is judged as if its starter may patch pods, which the caller may not know.
    """
    if fairness.short_of_quota(queue, head):
        return True
    job = job_of(head.manifest)
    # Workers that request a number of GPUs can always be bound, one way or another.
    if not (
        job.min_bandwidth
        or job.binding is not BindingChoice.AUTO
        or pinning.claims_gpus(head.manifest)
    ):
        return False
    try:
        where = replace(site, namespace=head.namespace, patches=True)
        return find(job, view.emptied(), where) is None
    except (ClusterError, TimedOut):
        raise
    except ArenaError:
        return True


def built(job: MPIJob, site: Site, decision: Decision) -> Plan:
    """The plan of a decision, with all the notes for its submitter.

    A gang without a placement is built to wait, unless nothing was decided about it.
    """
    cluster, placement, backend = decision.cluster, decision.placement, site.backend
    waits = job.gputopology and placement is None and decision is not UNDECIDED
    made = render.plan(
        job,
        namespace=site.namespace,
        api=site.api,
        owner=backend.owner() if backend else _user(),
        files=_read_files(job),
        request=request_of(job, cluster, site) if job.gputopology and cluster.nodes else None,
        placement=placement,
        cluster=cluster,
        waiting=str(decision.refused or "") if waits else None,
        binding=decision.binding,
        kept=not job.gputopology and _keeps_nodes(job, site, cluster),
    )
    remarks = (
        *made.notes,
        *_unsuspended(job, site.api),
        *(backend.remarks(job) if backend else ()),
        *_left_out(job, cluster),
        *shape.remarks(made),
        *(_doubts(placement, cluster) if placement else ()),
        *_may_be_less(job, made.forecast),
    )
    return msgspec.structs.replace(made, notes=remarks)


def _keeps_nodes(job: MPIJob, site: Site, cluster: Cluster) -> bool:
    """Whether ACK's label reserves some nodes for topology jobs, which other jobs must avoid."""
    label = published.SCHEDULE_LABEL
    return job.gpus > 0 and any(
        node.labels.get(label) == "topology" for node in _nodes(site, cluster)
    )


def _check_size(job: MPIJob, site: Site, cluster: Cluster) -> None:
    """Refuse a worker that asks for more GPUs than any node has; it would wait forever."""
    if job.gpus < 1:
        return
    # A cluster without GPU nodes may add some when a pod requests them.
    most = max((len(node.machine.gpus) for node in _nodes(site, cluster)), default=0)
    if 0 < most < job.gpus:
        raise Unplaceable(
            f"no node has {job.gpus} GPUs",
            verdict=Verdict.NEVER,
            refusals=(),
            nearest=f"the largest worker that fits on this cluster has {most} GPUs: --gpus {most}",
        )


def _nodes(site: Site, cluster: Cluster) -> tuple[Node, ...]:
    """All nodes as far as they are known."""
    return cluster.nodes or (site.backend.machines() if site.backend else ())


# ---------------------------------------------------------------- caveats


_DOUBTS = {
    Knowledge.ASSUMED: "links assumed from the GPU product and count",
    Knowledge.UNKNOWN: "links not known; every path counts as the slowest",
}


def _doubts(placement: Placement, cluster: Cluster) -> Iterator[str]:
    """The basis of the promised bandwidth, if the machines did not report everything themselves."""
    chosen = set(placement.nodes)
    machines = [node.machine for node in cluster.nodes if node.name in chosen]
    found = [
        ([one.name for one in machines if one.knowledge is knowledge], words)
        for knowledge, words in _DOUBTS.items()
    ]
    found.append(([one.name for one in machines if rate_is_assumed(one)], "NVLink rate assumed"))
    for names, words in found:
        if names:
            yield f"{shortened(names, 1)}: {words}"
    guess = cluster.guesses.get(placement.tier)
    # Else the speed of the NICs is known.
    if guess and not all(
        one.nics and None not in {nic.speed for nic in one.nics} for one in machines
    ):
        yield guess


def _may_be_less(job: MPIJob, forecast: Forecast | None) -> Iterator[str]:
    """Whether the range of a bandwidth begins below the minimum that was asked for."""
    if forecast is not None and forecast.low is not None and forecast.low < job.min_bandwidth:
        yield (
            f"{estimates.recorded(forecast)}: the low end of the range is less than"
            f" --min-bandwidth {job.min_bandwidth:g}, which the point is judged by"
        )


def _unsuspended(job: MPIJob, api: ApiVersion) -> Iterator[str]:
    """The note that a queue cannot decide when a job with --queue starts."""
    if job.queue and not api.traits.suspends:
        yield (
            f"--queue is an annotation only, since MPIJob {api} cannot be suspended: an operator"
            " that does not know it starts the job at once"
        )


def _left_out(job: MPIJob, cluster: Cluster) -> Iterator[str]:
    """The note that a preferred level does not exist on this cluster."""
    level, words = job.topology_preferred, distances(cluster)
    if level and cluster.nodes and level not in words:
        yield (
            f"--topology-preferred {level} is left out: this cluster has no such level; its levels:"
            f" {levels(words)}"
        )


# ---------------------------------------------------------------- files and users


def _read_files(job: MPIJob) -> dict[ConfigFile, str]:
    """The text of every `--config-file`; InvalidJob names the first that cannot be read."""
    texts = {}
    for one in job.config_file:
        # Path would raise for an unknown `~user`.
        path = os.path.expanduser(one.source)  # noqa: PTH111 - see above
        try:
            content = _content(path)
            texts[one] = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
        except UnicodeDecodeError as error:
            raise _unread(one, "it is not UTF-8 text") from error
        except OSError as error:
            raise _unread(one, error.strerror) from error
        except ValueError as error:
            raise _unread(one, "no path has a NUL in it") from error
    return texts


def _content(path: str) -> bytes:
    """The content of a file; a file that a shell passes is read once, as it is empty afterwards."""
    if path == files.STDIN:
        return _once(path, id(sys.stdin))
    if files.HANDED.fullmatch(path) and Path(path).is_fifo():
        return _once(path, Path(path).stat().st_ino)
    return files.whole(path, handed=True)


@cache
def _once(path: str, _pipe: int) -> bytes:
    return files.whole(path, handed=True)


def _unread(file: ConfigFile, why: str | None) -> InvalidJob:
    return InvalidJob(f"cannot read --config-file {file.source}", why=why)


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or "unknown"
