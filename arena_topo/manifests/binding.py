"""How a placement is made to hold: which mechanism, and what it guarantees.

    claims      the scheduler allocates the very devices (nodes of a DRA driver)
    admission   a policy gives each worker its node and GPUs as it is created
    gates       somebody patches each worker while it waits at a gate
    template    one template for all workers says what it can; all that v1alpha1 has

No container is ever shown a GPU that the kubelet or a claim may give to another one. Device plugins
keep books of their own: where our choice goes past them, it does so for every container of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from arena_topo.errors import ArenaError, InvalidJob
from arena_topo.job import BindingChoice, MPIJob, PodShape
from arena_topo.manifests import Binding, Guarantee, Mechanisms
from arena_topo.manifests.claims import missing_quota_line, uuids_of
from arena_topo.manifests.versions import ApiVersion, having
from arena_topo.solver import Assignment, Placement
from arena_topo.topology import ORDINARY, PUBLISHED, TAINT, Cluster, Node, NodeName, gpu_set

_INSTALL = "an administrator installs it: arena-topo install"
_PATCHES = (
    'ask for this rule in a Role: {apiGroups: [""], resources: ["pods"], verbs: ["list", "patch"]}'
)


class _Refused(Exception):
    """Why a mechanism does not serve, and what to do about it."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A placement, and where it is to hold; `nodes` are the chosen ones that are known."""

    job: MPIJob
    placement: Placement
    api: ApiVersion
    found: Mechanisms
    nodes: dict[NodeName, Node]
    resource: str
    injects: bool

    @property
    def driver(self) -> str:
        """The DRA driver that publishes the chosen GPUs, if one does."""
        return next((one.driver for one in self.nodes.values() if one.driver), "")

    @property
    def device_class(self) -> str | None:
        """The DeviceClass of the chosen GPUs; where none can be read, by the custom of drivers."""
        classes = self.found.classes
        return self.driver if classes is None else classes.get(self.driver)

    @property
    def together(self) -> bool:
        """Whether some workers share a node."""
        return len(self.placement.nodes) < len(self.placement.assignments)

    @property
    def known(self) -> bool:
        """Whether it is known which GPUs the workers are to get."""
        return all(one.gpus for one in self.placement.assignments)


def bind(
    job: MPIJob,
    placement: Placement,
    cluster: Cluster | None,
    api: ApiVersion,
    mechanisms: Mechanisms | None = None,
    *,
    gated: bool = False,
) -> Binding:
    """The strongest way to hold a placement that the cluster and the chosen nodes allow.

    `mechanisms` is what the cluster was found to offer; without it only what needs nothing of the
    cluster is taken to work. `gated`: the workers were made at their gates already, so that they
    can be patched and nothing else. InvalidJob if the job asks for a way that does not serve;
    ArenaError if none does.
    """
    case = _Case(
        job=job,
        placement=placement,
        api=api,
        found=mechanisms or Mechanisms(),
        nodes={one.name: one for one in _chosen(placement, cluster)},
        resource=offered(job, placement, cluster, api),
        injects=not gated,
    )
    forced = job.binding is not BindingChoice.AUTO and not gated
    refusals = []
    for way in [job.binding.value] if forced else _order(case, known=mechanisms is not None):
        try:
            binding = _WAYS[way](case)
        except _Refused as refused:
            refusals.append(refused)
            continue
        gang = bool(job.gang and case.found.gang and api.traits.numbered)
        return replace(binding, gang=gang, gang_version=case.found.gang_version if gang else "")
    # The first says most: it is the way that was meant for these nodes.
    first = refusals[0]
    if forced:
        raise InvalidJob(
            f"--binding {job.binding} cannot hold the workers of {job.name}",
            flag="--binding",
            why=first.why,
            hint=first.hint or "leave it out: the strongest way that there is will be used",
        )
    raise ArenaError(
        f"nothing holds the workers of {job.name} to their GPUs", why=first.why, hint=first.hint
    )


def _order(case: _Case, *, known: bool) -> list[str]:
    """The ways to try, strongest first; `known`: what the cluster offers."""
    if not case.injects:
        return ["claims" if case.driver else "gates"]
    between = [("admission", case.found.admission is not False), ("gates", case.found.patches)]
    if case.job.pod_shape is PodShape.SHARED and case.together:
        # The policy shows each worker its own GPUs; a patch can show it those of its neighbours.
        between.reverse()
    tried = [("claims", case.driver), *(between if known else ()), ("template", True)]
    return [way for way, serves in tried if serves]


# The ways


def _claims(case: _Case) -> Binding:
    plugin = next((name for name, one in case.nodes.items() if not one.driver), None)
    if not case.driver or plugin is not None:
        where = plugin or next(iter(case.placement.nodes))
        raise _Refused(f"no DRA driver publishes the GPUs of node {where}, so none can be claimed")
    if not case.api.traits.claims:
        raise _Refused(
            f"workers of MPIJob {case.api} cannot claim GPUs, and these can only be claimed",
            f"install an operator that serves MPIJob {having(lambda one: one.claims)[0]}",
        )
    if case.device_class is None:
        raise _Refused(
            f"no DeviceClass of the cluster offers the GPUs of driver {case.driver}",
            "an administrator installs the one that comes with the driver",
        )
    if line := missing_quota_line(case.found.quotas, case.device_class):
        raise _Refused(
            "the namespace has a quota of GPUs, and claims of them would go past it",
            f"an administrator adds to spec.hard of the ResourceQuota: {line}",
        )
    try:
        for one in case.placement.assignments:
            uuids_of(one, case.nodes)
    except ValueError as error:
        raise _Refused(str(error)) from error
    policies = case.found.claims, case.found.admission
    if False in policies:
        raise _Refused(
            "no admission policies give each worker its node and a claim of its own",
            "an administrator installs them: arena-topo install --without-controller"
            " --without-agent",
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
    if case.found.admission is False:
        raise _Refused("no admission policy places workers in this namespace", _INSTALL)
    return replace(_by_number(case, "admission"), confirmed=bool(case.found.admission))


def _gates(case: _Case) -> Binding:
    if not case.api.traits.gates:
        raise _Refused(f"the operator of MPIJob {case.api} drops scheduling gates")
    if case.found.patches is False:
        raise _Refused(
            "workers at a gate wait for somebody to patch them, and you may not", _PATCHES
        )
    binding = _by_number(case, "gates")
    sees = case.job.pod_shape is PodShape.SHARED and binding.inject
    return replace(binding, separate=not sees, confirmed=bool(case.found.patches))


def _by_number(case: _Case, name: str) -> Binding:
    """What holds where workers ask for a number of GPUs, each on its own or all by one template.

    `gpus` only where the kubelet has no choice (a worker takes its whole node), or where nobody
    but arena-topo uses the nodes, so that showing a container GPUs of our choice takes them from
    nobody. One template for all workers says which GPUs only if they are the same for each, and how
    many workers each node gets only if that is the same for all.
    """
    workers, driver = case.placement.assignments, case.driver
    per_node = Counter(one.node for one in workers)
    alike = name == "template"
    same = len({frozenset(one.gpus) for one in workers}) == 1 and len(per_node) == len(workers)
    # A launcher that is made from the same template would see the GPUs as well.
    sayable = not alike or (same and not case.api.traits.one_template)
    injects = case.known and case.job.gpus > 0 and case.injects and not driver and sayable
    whole = all(_is_whole(one, case) for one in workers)
    shown = all(_is_whole(one, case) or _is_ours(case.nodes.get(one.node)) for one in workers)
    binding = Binding(name=name, guarantee=Guarantee.GPUS, resource=_asked(case))
    if whole or (injects and shown):
        return replace(binding, inject=injects)
    uneven = alike and len(set(per_node.values())) > 1
    why = next(
        why
        for holds, why in (
            (uneven, _UNEVEN),
            (driver, "the workers ask for a number of GPUs, and the scheduler picks which"),
            (not case.known, _UNKNOWN.format("kubelet")),
            (alike and not injects, _ALIKE),
            (
                shown,
                "the workers were made before their GPUs were known, so the kubelet picks them",
            ),
            (True, _OTHERS),
        )
        if holds
    )
    # The kubelet does not know of GPUs that we have shown to containers: on a node where we do that
    # it may give them away again.
    taken = next((name for name, node in case.nodes.items() if double_booked(node)), None)
    if taken is not None:
        raise _Refused(
            f"jobs on node {taken} were given GPUs that the kubelet does not know of, and it would"
            " give them to these workers too",
            "wait for those jobs, choose other nodes with --selector, or have arena-topo say which"
            " GPUs each worker gets: arena-topo install",
        )
    return replace(binding, guarantee=Guarantee.ADVISORY if uneven else Guarantee.NODE, why=why)


_ALIKE = "one template for all workers cannot tell them apart, so the kubelet picks each one's GPUs"
_OTHERS = "other pods may use GPUs of the same nodes, so the kubelet picks the workers' GPUs"
_UNEVEN = "the nodes take different numbers of workers, which one template for all cannot say"
_UNKNOWN = "a node does not say which of its GPUs are free, so the {} picks them"

_WAYS: dict[str, Callable[[_Case], Binding]] = {
    "claims": _claims,
    "admission": _admission,
    "gates": _gates,
    "template": partial(_by_number, name="template"),
}


# What they rest on


def _asked(case: _Case) -> str:
    """What workers that take no claims ask for to get the GPUs of the chosen nodes."""
    if not case.driver:
        return case.resource
    extended = case.found.extended.get(case.device_class or "")
    if extended is None:
        raise _Refused(
            f"the GPUs of node {next(iter(case.nodes))} are published by the DRA driver"
            f" {case.driver}, and pods get them by claims alone",
            "use --binding auto or claims",
        )
    return extended


def double_booked(node: Node) -> bool:
    """Whether containers of a node hold GPUs that its kubelet takes for free."""
    return _is_dedicated(node) and bool(node.healthy & ~node.free)


def leaves_choice(binding: Binding) -> bool:
    """Whether the kubelet picks the GPUs of the workers, by its own books."""
    return binding.name != "claims" and not binding.inject and binding.guarantee is Guarantee.NODE


def _is_dedicated(node: Node) -> bool:
    """Whether containers of this node may be shown GPUs of our choice."""
    return node.dedicated and not node.foreign and not node.unattributed and not node.driver


def _is_ours(node: Node | None) -> bool:
    return node is not None and _is_dedicated(node)


def _is_whole(one: Assignment, case: _Case) -> bool:
    """Whether a worker takes all GPUs that its node can give."""
    node = case.nodes.get(one.node)
    return node is not None and bool(one.gpus) and gpu_set(one.gpus) == node.healthy


def _chosen(placement: Placement, cluster: Cluster | None) -> list[Node]:
    names = set(placement.nodes)
    return [one for one in cluster.nodes if one.name in names] if cluster is not None else []


def taint_effects(placement: Placement, cluster: Cluster | None) -> set[str]:
    """The effects of the taints that keep the chosen nodes for arena-topo."""
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

    A job that has yet to be placed asks for what most GPUs of the cluster are called, of the nodes
    for topology jobs where there are some; without a cluster for what arena asks for.
    """
    names = set()
    if placement is not None:
        names = {one.resource for one in _chosen(placement, cluster)}
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
    for one in [node for node in nodes if node.dedicated] or nodes:
        gpus[one.resource] += len(one.machine.gpus)
    usual = PUBLISHED if job.gputopology and api.traits.arenas else ORDINARY
    return max(gpus, key=gpus.__getitem__, default=usual)
