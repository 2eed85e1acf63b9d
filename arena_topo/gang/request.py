"""A job and its site -> the request to the solver, and the changes that would let the job fit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec

from arena_topo.bandwidth import Wire
from arena_topo.engines.backend import Backend
from arena_topo.errors import InvalidJob, UsageError
from arena_topo.job import ConfigFile, MPIJob, PodShape, Toleration
from arena_topo.manifests import Binding, Mechanisms
from arena_topo.manifests.binding import bind
from arena_topo.manifests.versions import BEST, ApiVersion
from arena_topo.solver import (
    PACK_ABOVE,
    UNCONSTRAINED,
    Constraint,
    Instead,
    Placement,
    Policy,
    Reason,
    Request,
)
from arena_topo.topology import TAINT, Cluster, Node, NodeName, Taint, natural_key
from arena_topo.topology.fabric import KNOWN_LEVELS, check_level
from arena_topo.topology.nics import is_rdma


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The site of a job: an engine (None: only a dump), a namespace, a version of MPIJob.

    Without a `version` the engine's own is used. `gates` is False if the operator drops scheduling
    gates, so that only templates place pods. `patches` tells whether the starter of the job may
    patch pods; None: as the engine finds it for the caller. `constraint` is that of one start.
    `files` holds the text of each `--config-file`, which only the objects of a new job need.
    """

    backend: Backend | None = None
    namespace: str = ""
    version: ApiVersion | None = None
    gates: bool = True
    patches: bool | None = None
    constraint: Constraint = UNCONSTRAINED
    files: Mapping[ConfigFile, str] = field(default_factory=dict)

    @property
    def api(self) -> ApiVersion:
        """The version of MPIJob; the engine is asked only here, as it may have none yet."""
        return self.version or (self.backend.api_version() if self.backend else BEST)

    @property
    def engine(self) -> Backend:
        """The engine; UsageError without one."""
        if self.backend is None:
            raise UsageError(
                "there is no cluster to place on",
                hint="give a dump with --state FILE, or set KUBECONFIG; to try it without either:"
                " --image local --emulate dgx-1-v100:2",
            )
        return self.backend

    @property
    def owner(self) -> str:
        """The user who submits: as the engine knows the user, or, without an engine, the shell."""
        if self.backend is not None:
            return self.backend.owner()
        return os.environ.get("USER") or os.environ.get("LOGNAME") or "unknown"

    @property
    def native(self) -> Binding | None:
        """The engine's own way to enforce placements; None if manifests enforce them."""
        return None if self.backend is None else self.backend.binding

    @property
    def mechanisms(self) -> Mechanisms | None:
        """The mechanisms that enforce placements in the namespace; None without a cluster."""
        if self.backend is None or self.native is not None:
            return None
        mechanisms = self.backend.mechanisms(self.namespace)
        if self.patches is not None:
            mechanisms = msgspec.structs.replace(mechanisms, patches=self.patches)
        if self.gates:
            return mechanisms
        return msgspec.structs.replace(mechanisms, admission=False, patches=False, claims=False)

    def bind(
        self, job: MPIJob, placement: Placement, cluster: Cluster, *, gated: bool = False
    ) -> Binding:
        """The binding that enforces a placement; errors as of `manifests.binding.bind`."""
        if self.native is not None:
            return self.native
        return bind(job, placement, cluster, self.api, self.mechanisms, gated=gated)


ANY_SITE = Site()
"""No engine: MPIJobs of the newest version, on any given cluster."""


def request_of(job: MPIJob, cluster: Cluster, site: Site = ANY_SITE) -> Request:
    """The request to the solver for a job.

    A preferred level that this cluster does not have is left out: a later reader of the job may
    know fewer levels than its submitter, whose input `check_preferred` checks. InvalidJob if the
    job contradicts itself, or requires a level that does not exist.
    """
    native = site.native
    if job.gpus < 1:
        raise InvalidJob("--gputopology needs GPUs", hint="add --gpus N", flag="--gputopology")
    if job.queue and native is not None:
        raise InvalidJob(
            "--queue and --gputopology exclude each other on this engine",
            why="there is no kube-queue that could start the job",
            hint="leave one of them out; what does not fit waits anyway",
            flag="--queue",
        )
    excluded = excluded_nodes(job, cluster)
    # On the network of a node only one worker gets the port of sshd (kubeflow/mpi-operator issue
    # 593). Processes that an engine runs on the machine itself have no sshd, and have all NICs.
    alone = job.on_host_network and native is None and site.api.traits.sshd
    rdma = job.rdma or job.host_network or any(is_rdma(device.name) for device in job.device)
    check_level("--topology-required", job.topology_required, cluster)
    request = Request(
        workers=job.workers,
        gpus=job.gpus,
        cpu=float(job.cpu.amount) if job.cpu else 0.0,
        memory=int(job.memory.amount) if job.memory else 0,
        model=job.gpu_model or None,
        mix_models=job.mix_models,
        excluded=excluded,
        min_bandwidth=job.min_bandwidth,
        max_nodes=job.max_nodes or None,
        per_node=1 if alone else None,
        joined=job.pod_shape is PodShape.SHARED or (native is not None and not native.separate),
        wire=Wire.RDMA if native is not None or rdma else Wire.TCP,
        required=job.topology_required or None,
        preferred=job.topology_preferred if job.topology_preferred in cluster.distances else None,
        policy=Policy(job.policy.value) if job.policy else Policy.PACK,
        pack_above=PACK_ABOVE if job.pack_above is None else job.pack_above,
        blind=native is None,
    )
    return request if site.constraint == UNCONSTRAINED else site.constraint.on(request)


def check_preferred(job: MPIJob, cluster: Cluster) -> None:
    """Raise InvalidJob for a preferred level that is not known at all: a misspelt word.

    A known level that this cluster does not have is only ignored.
    """
    elsewhere = KNOWN_LEVELS | cluster.unused
    check_level("--topology-preferred", job.topology_preferred, cluster, elsewhere)


_SEEN_ELSEWHERE = {
    f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable", "unschedulable")
}
"""Taints that Kubernetes sets and removes together with what `Node.unavailable` already says;
others, such as disk-pressure, exclude pods by themselves."""


def excluded_nodes(job: MPIJob, cluster: Cluster) -> Mapping[NodeName, Reason]:
    """The nodes excluded by the job's flags, by taints or by a reservation, and the reasons."""
    # If some nodes are reserved for topology jobs, these jobs use no others.
    set_aside = any(map(_dedicated, cluster.nodes))
    any_node = set_aside or job.selector
    return {
        node.name: reason
        for node in (cluster.nodes if any_node else filter(_taints, cluster.nodes))
        if (reason := _reason(job, node, apart=set_aside and not node.dedicated)) is not None
    }


_dedicated, _taints = attrgetter("dedicated"), attrgetter("taints")


def set_aside_for_topology(job: MPIJob, cluster: Cluster) -> Mapping[NodeName, Reason]:
    """The nodes that a job without --gputopology may not use, also those reserved for topology."""
    return {
        node.name: Reason.DEDICATED if node.dedicated else reason
        for node in cluster.nodes
        if (reason := _reason(job, node, apart=node.dedicated)) is not None
    }


def _reason(job: MPIJob, node: Node, *, apart: bool) -> Reason | None:
    if any(node.labels.get(selector.key) != selector.value for selector in job.selector):
        return Reason.SELECTOR
    if _unborne(job, node.taints):
        return Reason.TAINT
    return Reason.DEDICATED if apart else None


def _unborne(job: MPIJob, taints: Sequence[Taint]) -> tuple[Taint, ...]:
    """The taints that the workers of a job do not tolerate."""
    # Placed workers tolerate the taint that reserves nodes for them (manifests.binding).
    borne = {TAINT, *_SEEN_ELSEWHERE}
    return tuple(
        taint
        for taint in taints
        if taint.effect != "PreferNoSchedule"
        and taint.key not in borne
        and not any(
            toleration.tolerates(taint.key, taint.value, taint.effect)
            for toleration in job.toleration
        )
    )


# ---------------------------------------------------------------- changes for a refused job


_MOST_TRIED = 4
"""The largest number of sets of taints that are tried."""


def alternatives(job: MPIJob, cluster: Cluster) -> tuple[Instead, ...]:
    """Changes of a job, or of the nodes reserved for topology jobs, that let it use other nodes.

    The smallest changes come first; the last that is not `later` gives up everything at once.
    """
    everything = (*job.toleration, Toleration(operator="Exists"))
    taints = Counter(filter(None, (_unborne(job, node.taints) for node in cluster.nodes)))
    tried = [
        (
            f"without --selector {selector}",
            replace(job, selector=tuple({*job.selector} - {selector})),
        )
        for selector in job.selector
    ]
    if len(job.selector) > 1:
        tried.append(("without --selector", replace(job, selector=())))
    for group, _nodes in taints.most_common(_MOST_TRIED):
        words = " and ".join(f"--toleration {_spelled(taint)}" for taint in group)
        more = (
            Toleration(
                key=taint.key,
                operator="Equal" if taint.value else "Exists",
                value=taint.value,
                effect=taint.effect,
            )
            for taint in group
        )
        tried.append((f"with {words}", replace(job, toleration=(*job.toleration, *more))))
    if len(taints) > 1:
        tried.append(("with --toleration all", replace(job, toleration=everything)))
    if job.selector and taints:
        words = "without --selector and with --toleration all"
        tried.append((words, replace(job, selector=(), toleration=everything)))
    changes = [Instead(words=words, excluded=excluded_nodes(job, cluster)) for words, job in tried]
    excluded = excluded_nodes(job, cluster)
    closed = [node for node in cluster.nodes if excluded.get(node.name) is Reason.DEDICATED]
    closed.sort(key=lambda node: (node.unhealthy_count, -node.free_count, natural_key(node.name)))
    # Of nodes that are alike, one is tried.
    kinds = {
        (node.machine.model, node.free_count, node.healthy_count, node.unavailable): node.name
        for node in reversed(closed)
    }
    ways = [
        ([name], f"{name} is reserved for topology jobs as well")
        for name in sorted(kinds.values(), key=[node.name for node in closed].index)
    ]
    names = [node.name for node in closed]
    ways = [*ways[:_MOST_TRIED], (names, "more nodes are reserved for topology jobs")]
    for opened, words in ways if closed else ():
        free = {name: why for name, why in excluded.items() if name not in opened}
        changes.append(Instead(words=words, excluded=free, later=True))
    return tuple(changes)


def _spelled(taint: Taint) -> str:
    """A taint as `--toleration` takes it."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
