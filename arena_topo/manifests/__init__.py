"""A job and its placement -> a Plan of Kubernetes objects, for each version of MPIJob.

    versions     the abilities of the MPIJob versions, a row for each
    render       a job -> its Plan: the objects, through the templates, and their pins
    templates    the Jinja environment
    binding      the mechanism that enforces a placement, and its guarantee
    pinning      the job with its workers pinned, and without; the patch of a worker at its gate
    claims       the claims of GPUs that workers take
    hcas         the NICs that NCCL is to use
    cause        why a gang waits or was stopped, as data, and its sentence
    annotations  annotations of a job, written and read: its placement and the forecast of it
    requests     the request of a job to the solver: its annotation, and the job of an MPIJob
    forecast     the forecast of a placement under its binding
    patches      the JSON patches between waiting, placed, held and running
    serialize    objects -> YAML and JSON that kubectl takes for the same objects
    install      the manifests that an administrator applies once

Here are the Plan, the small values in it, and the annotations by which jobs and pods carry them.
Pure but for reading the templates and the path of a `--config-file` without a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.manifests.cause import Cause
from arena_topo.manifests.versions import ApiVersion

if TYPE_CHECKING:
    from arena_topo.job import MPIJob
    from arena_topo.solver import Placement, Request

Manifest = dict[str, Any]

FORMAT_ANNOTATION = "arena-topo.io/format"
STATE = "arena-topo.io/state"
STATES = frozenset({"waiting", "placed", "held"})
"""The states of a gang that this version knows; a later version may have recorded another."""
MAP = "arena-topo.io/placement"
"""On a job: its recorded placement. On its worker template: the map for the admission policy."""
RECORDED = "arena-topo.io/recorded"
"""When the placement was recorded, by the server's clock (RFC 3339)."""
RESERVED_ANNOTATION = "arena-topo.io/reserved"
"""On a gang that was stopped, or is about to be: the GPUs that wait for its next start (a map)."""
HEAD_RESERVATION = "arena-topo.io/head-reservation"
"""On a gang that waits: what it has reserved as the head of the queue (a time and a map)."""
WAITS_SINCE = "arena-topo.io/waits-since"
"""On a gang that a person has let go after a suspension: when that was (RFC 3339)."""
STOPPED = "arena-topo.io/stopped"
"""When and why the controller last stopped the gang, and how often it has (JSON)."""
REQUEST = "arena-topo.io/request"
"""The request to the solver, for a later start (JSON)."""
ASKED_SHAPE = "arena-topo.io/asked-pod-shape"
"""The --pod-shape `auto` of a job; the shape that was chosen at creation is in its request."""
TRIES_ANNOTATION = "arena-topo.io/tries"
"""How often the whole gang was rolled back by its own fault: an incomplete start, or another
eviction by a kubelet."""
PROPOSED = "arena-topo.io/proposed"
"""On a running job with a record that has not been checked for conflicts yet."""
INCOMPLETE = "arena-topo.io/incomplete"
"""On a job in creation: not all objects that it owns, such as its files, exist yet."""
FORECAST = "arena-topo.io/forecast"
GUARANTEE = "arena-topo.io/guarantee"
GATE = "arena-topo.io/placement"
"""The scheduling gate of workers that have no node yet."""
INLINE = "arena-topo.io/inline-placement"
"""Label of workers that the admission policy places; the value is the format of the map."""
MAP_FORMAT = "v1"
"""The grammar of the map. A policy for another grammar leaves the pods at their gate."""
CLAIMS = "arena-topo.io/claims"
"""Label of workers that the admission policy gives a claim each."""
PER_WORKER = "per-worker"
GANG = "arena-topo.io/gang"
"""Label of workers that the admission policy joins to the PodGroup of their job."""
UNPINNED = "arena-topo.io/unpinned"
"""On a pinned template: the fields that pins have replaced, as they were (JSON)."""
HCAS = "arena-topo.io/nccl-hca"
"""On a pinned template: the value of NCCL_IB_HCA in the workers of a job with --nccl-hca."""
HCA_VARIABLE = "NCCL_IB_HCA"
"""The variable that restricts NCCL to some NICs; "=" before the list matches whole names."""
GPU_GROUP = "topology.kubernetes.io/gpu-group"
GPU_VISIBLE = "topology.kubernetes.io/gpu-visible"


POD_GROUPS = ("v1beta1", "v1alpha2")
"""Versions of scheduling.k8s.io in which PodGroups can be written, best first: Kubernetes 1.37
serves the first, 1.36 the second."""


class Guarantee(StrEnum):
    """How strongly a placement is enforced."""

    GPUS = "gpus"
    """Each worker gets the GPUs of the plan."""
    NODE = "node"
    """Each worker gets its node; the kubelet picks the devices there."""
    ADVISORY = "advisory"
    """Nothing enforces the plan."""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The enforcement of a placement: mechanism, guarantee, and whether devices are injected.

    `separate`: the workers of a node are pods of their own, which NCCL cannot join directly. `why`
    is a sentence for people if the guarantee is weaker than `gpus`. `confirmed` is False if the
    mechanism could not be tested. `device_class` is that of the claims; `resource` replaces the GPU
    resource of the template ("": unchanged). `gang`: the scheduler itself starts the workers
    together, by a PodGroup of scheduling.k8s.io in `gang_version`.
    """

    name: str
    guarantee: Guarantee
    inject: bool = False
    separate: bool = True
    why: str | None = None
    confirmed: bool = True
    device_class: str = ""
    resource: str = ""
    gang: bool = False
    gang_version: str = ""


_ENFORCED_BY = {
    "admission": "an admission policy",
    "claims": "resource claims",
    "gates": "scheduling gates",
    "local": "the local engine",
    "template": "the pod template",
}


def enforced_by(binding: str) -> str:
    """The mechanism of a binding, in words; the name of a binding of another version."""
    return _ENFORCED_BY.get(binding, binding)


class Mechanisms(msgspec.Struct, frozen=True, kw_only=True):
    """The mechanisms that a cluster offers to enforce placements; None: not known.

    `admission`, `claims` and `gang` are the policies that give workers their node, their claim and
    their PodGroup, by a probe in the job's namespace; `gang_version` is the version of
    scheduling.k8s.io for PodGroups, if it is served; `patches`: the caller may list and patch pods
    there. `classes` maps each DRA driver to a DeviceClass of its GPUs (None: unreadable),
    `extended` maps such a class to its extended resource. `quotas` are the ResourceQuotas of the
    namespace, as stored. `suspends`: an MPIJob can be created suspended. `notes` name what is not
    known, and why.
    """

    admission: bool | None = None
    claims: bool | None = None
    gang: bool | None = None
    gang_version: str = ""
    patches: bool | None = None
    classes: Mapping[str, str] | None = None
    extended: Mapping[str, str] = msgspec.field(default_factory=dict)
    quotas: tuple[Mapping[str, Any], ...] = ()
    suspends: bool = True
    notes: tuple[str, ...] = ()


_SET_DECIDES = frozenset(
    {"nvlink-mesh", "nvlink-bridge", "bridged-pairs", "pcie", "nvlink-without-ring"}
)
"""Regimes, by the values of `bandwidth.Regime`, in which some sets of GPUs of a node are slower."""


class PlacementForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a placement on the job itself.

    `state` is `waiting`, `placed` or `held`. Bandwidths are GB/s; None for a job of one GPU or
    without a placement. `usable` is the estimate for these pods under the guarantee of the
    binding, `low` to `high` its 80 % range, `regime` the model behind it and `limited_by` the
    bottleneck (`bandwidth.Estimate`). `planned` is the estimate for the planned GPUs, if the
    kubelet may pick slower ones. `bus_bandwidth` is the estimate for the same GPUs if all pods of a
    node were one host. `optimal`: proven that no placement gives these pods more; `bound` is an
    upper bound; with `rated` both leave out unknown networks between nodes (`solver.Proof`).
    `assumed`: the estimate uses default values for unknown facts; with `guess` one of them is the
    network, the GPU model or the links. `measured` is the calibration that it rests on.
    `workers` has (index, node, GPU indexes); the indexes are empty if the kubelet picks them.
    `confirmed` is False if the mechanism of the binding could not be tested: the guarantee holds if
    it works. `cause` is why a gang waits or is held, if that is known.
    """

    state: str
    workers: tuple[tuple[int, str, tuple[int, ...]], ...] = ()
    bus_bandwidth: float | None = None
    usable: float | None = None
    planned: float | None = None
    low: float | None = None
    high: float | None = None
    regime: str | None = None
    limited_by: str | None = None
    tier: str | None = None
    binding: str | None = None
    guarantee: str | None = None
    confirmed: bool = True
    optimal: bool | None = None
    bound: float | None = None
    rated: bool = False
    guess: bool = False
    emulated: bool = False
    assumed: bool = False
    measured: str = ""
    cause: Cause | None = None

    @property
    def reason(self) -> str | None:
        """The cause in a sentence."""
        return None if self.cause is None else str(self.cause)

    @property
    def as_planned(self) -> float | None:
        """GB/s of the planned GPUs; None if they are not known, or are one GPU."""
        if self.planned is not None or self.at_worst:
            return self.planned
        return self.usable

    @property
    def at_worst(self) -> bool:
        """Whether `usable` is that of the slowest GPUs that the kubelet may pick."""
        if self.planned is not None:
            return True
        unknown = any(not gpus for _index, _node, gpus in self.workers)
        return unknown and self.guarantee != Guarantee.GPUS and self.regime in _SET_DECIDES

    @property
    def kept_apart(self) -> bool:
        """Whether the same GPUs would give more if the workers of a node shared one pod."""
        inside, ours = self.bus_bandwidth, self.as_planned
        nodes = {node for _index, node, _gpus in self.workers}
        several = len(nodes) < len(self.workers)
        return several and inside is not None and ours is not None and ours < inside


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Every object that `submit` creates, in order; the same is printed or applied.

    The first object is the MPIJob, which will own the others. `request` is the request to the
    solver (None for a job that is not placed); `waiting` is a sentence about why the job cannot
    start now, if it cannot. `hcas` are the NICs of --nccl-hca, if any. `notes` are about the
    cluster.
    """

    job: MPIJob
    namespace: str
    api: ApiVersion
    objects: tuple[Manifest, ...]
    request: Request | None = None
    placement: Placement | None = None
    binding: Binding | None = None
    forecast: PlacementForecast | None = None
    waiting: str | None = None
    hcas: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def reserves(state: str) -> bool:
    """Whether a gang in this state has its recorded GPUs: placed, or in a state not known here."""
    return state not in {"", "waiting", "held"}


def digest(text: str) -> str:
    """The lowercase hex MD5 of a text, by which arena names users and folders."""
    import hashlib  # noqa: PLC0415

    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
