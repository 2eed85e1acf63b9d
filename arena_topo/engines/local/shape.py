"""What the engine reads of the objects of a job, and of which types that must be.

As much of an MPIJob, of any version, as runs here; what else there is is for clusters.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Metadata(TypedDict):
    """How an object is found."""

    name: str
    labels: NotRequired[dict[str, str] | None]
    annotations: NotRequired[dict[str, str] | None]


class Object(TypedDict):
    """Any object of a job."""

    kind: str
    metadata: Metadata
    data: NotRequired[dict[str, str] | None]


class Variable(TypedDict):
    """A variable of a container; without a value it comes from the cluster."""

    name: str
    value: NotRequired[str]


class Container(TypedDict, total=False):
    """The launcher or a worker."""

    command: list[str]
    args: list[str]
    env: list[Variable] | None
    workingDir: str


class PodSpec(TypedDict, total=False):
    """The containers of a pod, of which the first counts."""

    containers: list[Container]


class Template(TypedDict, total=False):
    """What pods are made of."""

    spec: PodSpec


class Replica(TypedDict, total=False):
    """The launcher or the workers; the whole specification in v1alpha1."""

    template: Template


class Policy(TypedDict, total=False):
    """How the job is run; part of the specification in v1alpha1."""

    backoffLimit: int | None
    activeDeadlineSeconds: int | None


class Spec(Replica, Policy, total=False):
    """What an MPIJob asks for."""

    mpiReplicaSpecs: dict[str, Replica]
    runPolicy: Policy
    slotsPerWorker: int | None


class MPIJob(Object):
    """The MPIJob."""

    spec: Spec
