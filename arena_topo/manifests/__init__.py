"""A job and its placement -> a Plan of Kubernetes objects, for each version of MPIJob.

    versions     what the MPIJob versions can do, a row for each
    render       a job -> its Plan: the objects, through the templates, and their pins
    templates    the Jinja environment
    binding      how a placement is made to hold: which mechanism, and what that guarantees
    pinning      the job with its workers pinned, and without; the patch of a worker at its gate
    claims       the claims of GPUs that workers take
    hcas         the NICs that NCCL is to use
    cause        why a gang waits or was stopped, as data, and its sentence
    annotations  what is written on a job and read back: its placement, what it asked of the solver
    forecast     what to expect of a placement under its binding
    patches      the JSON patches between waiting, placed, held and running
    serialize    objects -> YAML and JSON that kubectl takes for the same objects
    install      what an administrator applies once

Here are the Plan, the small values in it, and the annotations by which jobs and pods carry them.
Pure but for reading the templates and the path of a `--config-file` without a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from arena_topo.manifests.cause import Cause
from arena_topo.manifests.versions import ApiVersion

if TYPE_CHECKING:
    from arena_topo.job import MPIJob
    from arena_topo.solver import Placement, Request

Manifest = dict[str, Any]

FORMAT = "arena-topo.io/format"
STATE = "arena-topo.io/state"
MAP = "arena-topo.io/placement"
"""On a job: its recorded placement. On its worker template: what the admission policy reads."""
RECORDED = "arena-topo.io/recorded"
"""When the placement was recorded, by the server's clock (RFC 3339)."""
REQUEST = "arena-topo.io/request"
"""What the job asked of the solver, for whoever starts it later (JSON)."""
ASKED_SHAPE = "arena-topo.io/asked-pod-shape"
"""The --pod-shape of a job whose shape was chosen as it was created; that is in its request."""
TRIES = "arena-topo.io/tries"
"""How often the whole gang was taken back after a start that could not complete."""
PROPOSED = "arena-topo.io/proposed"
"""On a running job with a record that its author has not compared with others yet."""
INCOMPLETE = "arena-topo.io/incomplete"
"""On a job that is being created: what it owns, such as its files, is not all there yet."""
FORECAST = "arena-topo.io/forecast"
GUARANTEE = "arena-topo.io/guarantee"
GATE = "arena-topo.io/placement"
"""The scheduling gate of workers that have no node yet."""
INLINE = "arena-topo.io/inline-placement"
"""Label of workers that the admission policy places; its value is the format of the map."""
MAP_FORMAT = "v1"
"""The grammar of the map. A policy for another one leaves the pods alone, at their gate."""
CLAIMS = "arena-topo.io/claims"
"""Label of workers that the admission policy gives a claim each."""
PER_WORKER = "per-worker"
GANG = "arena-topo.io/gang"
"""Label of workers that the admission policy joins to the PodGroup of their job."""
UNPINNED = "arena-topo.io/unpinned"
"""On a pinned template: what of it the pins have replaced (JSON), where they did."""
HCAS = "arena-topo.io/nccl-hca"
"""On a pinned template: what NCCL_IB_HCA says in the workers of a job with --nccl-hca."""
HCA_VARIABLE = "NCCL_IB_HCA"
"""By which NCCL uses some NICs and no others; "=" before the list asks for whole names."""
GPU_GROUP = "topology.kubernetes.io/gpu-group"
GPU_VISIBLE = "topology.kubernetes.io/gpu-visible"


POD_GROUPS = ("v1beta1", "v1alpha2")
"""Versions of scheduling.k8s.io in which PodGroups can be written, best first: Kubernetes 1.37
serves the first, 1.36 the second."""


class Guarantee(StrEnum):
    """What holds of a placement when the job runs."""

    GPUS = "gpus"
    """Each worker gets the GPUs of the plan."""
    NODE = "node"
    """Each worker gets its node; the kubelet picks the devices there."""
    ADVISORY = "advisory"
    """Nothing enforces the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """How a placement is made to hold: the mechanism, what it guarantees, if devices are injected.

    `separate` says that the workers of one node are pods of their own, which NCCL cannot join
    directly. `why` is one sentence for a person when the guarantee is less than `gpus`. `confirmed`
    is False where the cluster could not be asked whether the mechanism works. `device_class` is
    what claims name; `resource` what the workers ask for instead ("": what their template says).
    `gang`: the scheduler itself holds the workers back until all can run, by a PodGroup of
    scheduling.k8s.io in `gang_version`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What a cluster was found to offer for making placements hold; None: it could not be asked.

    `admission`, `claims` and `gang` are the policies that give workers their node, their claim and
    their PodGroup, as answered by a probe in the job's namespace; `gang_version` is that of
    scheduling.k8s.io in which PodGroups are written, where there are any; `patches` whether the
    caller may list and patch pods there. `classes` maps each DRA driver to a DeviceClass of its
    GPUs (None: they could not be read), `extended` each of those classes to the extended resource
    that it stands for, where it does. `quotas` are the ResourceQuotas of the namespace, as they are
    stored. `suspends` says whether an MPIJob can be created suspended. `notes` say what could not
    be found out, and why.
    """

    admission: bool | None = None
    claims: bool | None = None
    gang: bool | None = None
    gang_version: str = ""
    patches: bool | None = None
    classes: Mapping[str, str] | None = None
    extended: Mapping[str, str] = field(default_factory=dict)
    quotas: tuple[Mapping[str, Any], ...] = ()
    suspends: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is recorded of a placement on the job itself, and shown ever after.

    `state` is `waiting`, `placed` or `held`. Bandwidths are GB/s; None for a job of one GPU or
    without a placement. `usable` is the point of what these pods get, with the guarantee of the
    binding, `low` to `high` its 80 % range, `regime` what decides it and `limited_by` the part that
    would have to be faster (`bandwidth.Estimate`). `bus_bandwidth` is what the same GPUs give where
    all pods of a node are one host. `optimal`: no placement gives these pods more, as far as is
    known; `bound` is the most that any does. `assumed`: the bandwidth rests on facts that nobody
    gave.
    `workers` holds (index, node, GPU indexes); the indexes are empty where
    the kubelet chooses. `confirmed` is False where the cluster could not be asked whether the
    binding works, so that the guarantee is what it gives if it does. `cause` is why a gang waits
    or is held, where that is known.
    """

    state: str
    workers: tuple[tuple[int, str, tuple[int, ...]], ...] = ()
    bus_bandwidth: float | None = None
    usable: float | None = None
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
    emulated: bool = False
    assumed: bool = False
    cause: Cause | None = None

    @property
    def reason(self) -> str | None:
        """The cause in a sentence."""
        return None if self.cause is None else str(self.cause)

    @property
    def falls_short(self) -> bool:
        """Whether the pods can use less than their GPUs have, so that others may give them more."""
        ours, usable = self.bus_bandwidth, self.usable
        return ours is not None and usable is not None and usable < ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything `submit` would create, in order; printed or applied, never rebuilt.

    The first object is the MPIJob; the others will be owned by it. `request` is what the solver
    was asked (None for a job that is not placed); `waiting` says in a sentence why the job cannot
    start now, when it cannot. `hcas` are the NICs that --nccl-hca names, if any.
    `notes` are what a person should know of the cluster it was made on.
    """

    job: MPIJob
    namespace: str
    api: ApiVersion
    objects: tuple[Manifest, ...]
    request: Request | None = None
    placement: Placement | None = None
    binding: Binding | None = None
    forecast: Forecast | None = None
    waiting: str | None = None
    hcas: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def digest(text: str) -> str:
    """The lowercase hex MD5 of a text, by which arena names users and folders."""
    import hashlib  # noqa: PLC0415

    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
