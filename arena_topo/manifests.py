"""A job and its placement -> a Plan of Kubernetes objects, for v1alpha1, v1 and v2beta1.

(interface written first; see below)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from arena_topo.job import ConfigFile, MPIJob
from arena_topo.solver import Placement, Request
from arena_topo.topology import Cluster

Manifest = dict[str, Any]


class ApiVersion(StrEnum):
    """The MPIJob versions there are, best first."""

    V2BETA1 = "v2beta1"
    V1 = "v1"
    V1ALPHA1 = "v1alpha1"


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
    """How a placement is made to hold: the mechanism, what it guarantees, whether devices are injected.

    `why` is one sentence for a person when the guarantee is less than `gpus`.
    """

    name: str
    guarantee: Guarantee
    inject: bool = False
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is recorded of a placement on the job itself, and shown ever after.

    `state` is `waiting`, `placed` or `held`. Bandwidths are GB/s; None for a job of one GPU or
    without a placement. `workers` holds (index, node, GPU indexes); the indexes are empty where
    the kubelet chooses.
    """

    state: str
    workers: tuple[tuple[int, str, tuple[int, ...]], ...] = ()
    bus_bandwidth: float | None = None
    usable: float | None = None
    tier: str | None = None
    binding: str | None = None
    guarantee: str | None = None
    optimal: bool | None = None
    bound: float | None = None
    emulated: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything `submit` would create, in order; printed or applied, never rebuilt.

    The first object is the MPIJob; the others will be owned by it. `request` is what the solver
    was asked (None for a job that is not placed); `waiting` says in a sentence why the job cannot
    start now, when it cannot.
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


def plan(
    job: MPIJob,
    *,
    namespace: str,
    api: ApiVersion,
    owner: str,
    files: Mapping[ConfigFile, str],
    request: Request | None = None,
    placement: Placement | None = None,
    cluster: Cluster | None = None,
    waiting: str | None = None,
) -> Plan:
    """Build every object of a job; with a placement, pinned as firmly as the template allows."""
    raise NotImplementedError
