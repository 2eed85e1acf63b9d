"""The mechanism that enforces a placement, and its guarantee.

    claims      the scheduler allocates exactly these devices (nodes of a DRA driver)
    admission   a policy gives each worker its node and GPUs when the pod is created
    gates       the submitter or the controller patches each worker while it waits at a gate
    template    node affinity in the one template of all workers; the only way of v1alpha1

No container is shown a GPU that the kubelet or a claim may give to another container. Device
plugins do their own accounting: GPUs are injected past it only for all containers of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from arena_topo.errors import ArenaError, InvalidJob
from arena_topo.job import BindingChoice, MPIJob, PodShape
from arena_topo.manifests import Binding, Guarantee, Mechanisms
from arena_topo.manifests.claims import missing_quota_line, uuids_of
from arena_topo.manifests.versions import ApiVersion, versions_with
from arena_topo.solver import Assignment, Placement
from arena_topo.topology import ORDINARY, PUBLISHED, TAINT, Cluster, GPUSet, Node, NodeName, gpu_set

_INSTALL = "an administrator installs it: arena-topo install"
_PATCHES = (
    'ask for this rule in a Role: {apiGroups: [""], resources: ["pods"], verbs: ["list", "patch"]}'
)


class _Refused(Exception):
    """Why a mechanism cannot be used, and the advice about it."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A placement to enforce, and the cluster; `nodes` are the chosen nodes that are known."""

    job: MPIJob
    placement: Placement
    api: ApiVersion
    mechanisms: Mechanisms
    nodes: dict[NodeName, Node]
    resource: str
    injects: bool

    @property
    def driver(self) -> str:
        """The DRA driver that publishes the chosen GPUs, if one does."""
        return next((node.driver for node in self.nodes.values() if node.driver), "")

    @property
    def device_class(self) -> str | None:
        """The DeviceClass of the chosen GPUs; if they cannot be read, the usual name of one."""
        classes = self.mechanisms.classes
        return self.driver if classes is None else classes.get(self.driver)

    @property
    def together(self) -> bool:
        """Whether some workers share a node."""
        return len(self.placement.nodes) < len(self.placement.assignments)

    @property
    def known(self) -> bool:
        """Whether the placement names the GPUs of each worker."""
        return all(assignment.gpus for assignment in self.placement.assignments)


def bind(
    job: MPIJob,
    placement: Placement,
    cluster: Cluster | None,
    api: ApiVersion,
    mechanisms: Mechanisms | None = None,
    *,
    gated: bool = False,
) -> Binding:
    """The strongest mechanism that the cluster and the chosen nodes support.

    `mechanisms` is what the cluster offers; without it only mechanisms that do not depend on
    the cluster are tried. `gated`: the workers exist at their gates already and can only be
    patched. InvalidJob if the job asks for a mechanism that cannot be used; ArenaError if none can.
    """
    case = _Case(
        job=job,
        placement=placement,
        api=api,
        mechanisms=mechanisms or Mechanisms(),
        nodes={node.name: node for node in _chosen(placement, cluster)},
        resource=offered(job, placement, cluster, api),
        injects=not gated,
    )
    forced = job.binding is not BindingChoice.AUTO and not gated
    refusals = []
    for name in [job.binding.value] if forced else _order(case, known=mechanisms is not None):
        try:
            binding = _MECHANISMS[name](case)
        except _Refused as refused:
            refusals.append(refused)
            continue
        gang = bool(job.gang and case.mechanisms.gang and api.traits.numbered)
        return replace(
            binding, gang=gang, gang_version=case.mechanisms.gang_version if gang else ""
        )
    # The first refusal is that of the mechanism meant for these nodes.
    first = refusals[0]
    if forced:
        raise InvalidJob(
            f"--binding {job.binding} cannot pin the workers of {job.name}",
            flag="--binding",
            why=first.why,
            hint=first.hint or "leave it out: the strongest way that there is will be used",
        )
    raise ArenaError(
        f"the workers of {job.name} cannot be pinned to their GPUs", why=first.why, hint=first.hint
    )


def _order(case: _Case, *, known: bool) -> list[str]:
    """The mechanisms to try, strongest first; `known`: the cluster's offer is known."""
    if not case.injects:
        return ["claims" if case.driver else "gates"]
    offer = case.mechanisms
    between = [("admission", offer.admission is not False), ("gates", offer.patches)]
    if case.job.pod_shape is PodShape.SHARED and case.together:
        # The policy shows each worker its own GPUs; a patch can show those of its neighbours too.
        between.reverse()
    tried = [("claims", case.driver), *(between if known else ()), ("template", True)]
    return [name for name, usable in tried if usable]


# The mechanisms


def _claims(case: _Case) -> Binding:
    plugin = next((name for name, node in case.nodes.items() if not node.driver), None)
    if not case.driver or plugin is not None:
        where = plugin or next(iter(case.placement.nodes))
        raise _Refused(f"no DRA driver publishes the GPUs of node {where}, so none can be claimed")
    if not case.api.traits.claims:
        version = versions_with(lambda traits: traits.claims)[0]
        raise _Refused(
            f"workers of MPIJob {case.api} cannot claim GPUs, and these can only be claimed",
            f"install an operator that serves MPIJob {version}",
        )
    if case.device_class is None:
        raise _Refused(
            f"no DeviceClass of the cluster offers the GPUs of driver {case.driver}",
            "an administrator installs the one that comes with the driver",
        )
    if line := missing_quota_line(case.mechanisms.quotas, case.device_class):
        raise _Refused(
            "the namespace has a quota of GPUs, and claims would bypass it",
            f"an administrator adds to spec.hard of the ResourceQuota: {line}",
        )
    try:
        for assignment in case.placement.assignments:
            uuids_of(assignment, case.nodes)
    except ValueError as error:
        raise _Refused(str(error)) from error
    policies = case.mechanisms.claims, case.mechanisms.admission
    if False in policies:
        raise _Refused(
            "no admission policies give each worker its node and a claim of its own",
            "an administrator installs them: arena-topo install --without-controller"
            " --without-agent | kubectl apply -f -",
        )
    return Binding(
        name="claims",
        guarantee=Guarantee.GPUS if case.known else Guarantee.NODE,
        why=None if case.known else _UNKNOWN.format("scheduler"),
        device_class=case.device_class,
        confirmed=all(policies),
    )


def _admission(case: _Case) -> Binding:
    if not case.api.traits.numbered:
        raise _Refused(f"workers of MPIJob {case.api} do not know their number: no policy helps")
    if case.mechanisms.admission is False:
        raise _Refused("no admission policy places workers in this namespace", _INSTALL)
    return replace(_by_number(case, "admission"), confirmed=bool(case.mechanisms.admission))


def _gates(case: _Case) -> Binding:
    if not case.api.traits.gates:
        raise _Refused(f"the operator of MPIJob {case.api} drops scheduling gates")
    if case.mechanisms.patches is False:
        raise _Refused("workers at a gate wait to be patched, and you may not patch pods", _PATCHES)
    binding = _by_number(case, "gates")
    sees = case.job.pod_shape is PodShape.SHARED and binding.inject
    return replace(binding, separate=not sees, confirmed=bool(case.mechanisms.patches))


def _by_number(case: _Case, name: str) -> Binding:
    """The binding of workers that request a number of GPUs, each by itself or by one template.

    The guarantee is `gpus` only if the kubelet has no choice (a worker takes its whole node), or
    if only arena-topo uses the nodes, so that injected GPUs are taken from no other pod. One
    template for all workers can name GPUs only if they are the same for each, and spread the
    workers only in equal numbers.
    """
    workers, driver = case.placement.assignments, case.driver
    per_node = Counter(worker.node for worker in workers)
    templated = name == "template"
    alone = len(per_node) == len(workers)
    same = alone and len({frozenset(worker.gpus) for worker in workers}) == 1
    # A launcher from the same template would see the GPUs as well.
    sayable = not templated or (same and not case.api.traits.one_template)
    injects = case.known and case.job.gpus > 0 and case.injects and not driver and sayable
    shared = [worker for worker in workers if not _is_whole(worker, case)]
    shown = all(_is_dedicated(case.nodes.get(worker.node)) for worker in shared)
    binding = Binding(name=name, guarantee=Guarantee.GPUS, resource=_resource_of(case))
    if not shared or (injects and shown):
        return replace(binding, inject=injects)
    uneven = templated and len(set(per_node.values())) > 1
    why = next(
        why
        for applies, why in (
            (uneven, _UNEVEN),
            (driver, "the workers ask for a number of GPUs, and the scheduler picks which"),
            (not case.known, _UNKNOWN.format("kubelet")),
            (templated and not injects, _ALIKE),
            (
                shown,
                "the workers were made before their GPUs were known, so the kubelet picks them",
            ),
            (True, _OTHERS),
        )
        if applies
    )
    # The kubelet does not know of injected GPUs, and may allocate them again.
    double = next((name for name, node in case.nodes.items() if double_booked(node)), None)
    if double is not None:
        raise _Refused(
            f"jobs on node {double} were given GPUs that the kubelet does not know of, and it would"
            " give them to these workers too",
            "wait for those jobs, choose other nodes with --selector, or have arena-topo say which"
            " GPUs each worker gets: arena-topo install",
        )
    return replace(binding, guarantee=Guarantee.ADVISORY if uneven else Guarantee.NODE, why=why)


_ALIKE = "one template for all workers cannot tell them apart, so the kubelet picks each one's GPUs"
_OTHERS = "other pods may use GPUs of the same nodes, so the kubelet picks the workers' GPUs"
_UNEVEN = "the nodes take different numbers of workers, which one template for all cannot say"
_UNKNOWN = "a node does not say which of its GPUs are free, so the {} picks them"

_MECHANISMS: dict[str, Callable[[_Case], Binding]] = {
    "claims": _claims,
    "admission": _admission,
    "gates": _gates,
    "template": partial(_by_number, name="template"),
}


# Properties of nodes and bindings


def _resource_of(case: _Case) -> str:
    """The resource that workers without claims request for the GPUs of the chosen nodes."""
    if not case.driver:
        return case.resource
    extended = case.mechanisms.extended.get(case.device_class or "")
    if extended is None:
        raise _Refused(
            f"the GPUs of node {next(iter(case.nodes))} are published by the DRA driver"
            f" {case.driver}, and pods get them by claims alone",
            "use --binding auto or claims",
        )
    return extended


def double_booked(node: Node) -> bool:
    """Whether containers of a node use GPUs that its kubelet believes to be free."""
    return _is_dedicated(node) and bool(node.healthy & ~node.free)


def leaves_choice(binding: Binding) -> bool:
    """Whether the kubelet picks the GPUs of the workers, by its own accounting."""
    return binding.name != "claims" and not binding.inject and binding.guarantee is Guarantee.NODE


def is_certain(node: Node, gpus: GPUSet) -> bool:
    """Whether pods can be sure of these GPUs of a node: by claims, by injection, or as its all."""
    return node.pins or gpus == node.healthy


def _is_dedicated(node: Node | None) -> bool:
    """Whether GPUs may be injected into containers of this node."""
    return node is not None and node.pins and not node.driver


def _is_whole(worker: Assignment, case: _Case) -> bool:
    """Whether a worker takes all healthy GPUs of its node."""
    node = case.nodes.get(worker.node)
    return node is not None and bool(worker.gpus) and gpu_set(worker.gpus) == node.healthy


def _chosen(placement: Placement, cluster: Cluster | None) -> list[Node]:
    names = set(placement.nodes)
    return [node for node in cluster.nodes if node.name in names] if cluster is not None else []


def taint_effects(placement: Placement, cluster: Cluster | None) -> set[str]:
    """The effects of the taints that reserve the chosen nodes for arena-topo."""
    return {
        taint.effect
        for node in _chosen(placement, cluster)
        for taint in node.taints
        if taint.key == TAINT
    }


def offered(
    job: MPIJob, placement: Placement | None, cluster: Cluster | None, api: ApiVersion
) -> str:
    """The GPU resource of the chosen nodes; ArenaError if they differ, as workers are all alike.

    A job without a placement requests the resource of most GPUs of the cluster, or of its topology
    nodes if it has some; without a cluster the resource that arena requests.
    """
    names = set()
    if placement is not None:
        names = {node.resource for node in _chosen(placement, cluster)}
    if len(names) > 1:
        raise ArenaError(
            "the chosen nodes offer their GPUs under different names",
            why=f"{' and '.join(sorted(names))}, and all workers ask for the same",
            hint="choose nodes of one kind with --selector",
        )
    if names:
        return names.pop()
    nodes = cluster.nodes if job.gputopology and cluster is not None else ()
    gpus: Counter[str] = Counter()
    for candidate in [node for node in nodes if node.dedicated] or nodes:
        gpus[candidate.resource] += len(candidate.machine.gpus)
    usual = PUBLISHED if job.gputopology and api.traits.arenas else ORDINARY
    return max(gpus, key=gpus.__getitem__, default=usual)
