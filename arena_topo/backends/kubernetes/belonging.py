"""Which pods are a job's: the labels that operators and arena's chart find them by, and owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from arena_topo.backends.kubernetes.status import seconds
from arena_topo.backends.kubernetes.writing import part
from arena_topo.manifests import ApiVersion

if TYPE_CHECKING:
    from arena_topo.backends.kubernetes.connection import Connection

Object = dict[str, Any]

ARENA_SELECTOR = "app=mpijob"
"""Label of everything that arena's chart creates."""

NAME_LABELS = {
    ApiVersion.V2BETA1: ("training.kubeflow.org/job-name",),
    ApiVersion.V1: ("training.kubeflow.org/job-name", "mpi-job-name"),
    ApiVersion.V1ALPHA1: ("mpi_job_name",),
}
"""Where each version's operators write a pod's job."""


def labelled(
    api: Connection,
    mpijob: Object,
    version: ApiVersion,
    namespace: str,
    keep: Callable[[Object], Object | None] | None = None,
) -> list[Object]:
    """The pods that carry a job's name in the labels of whoever made them, as far as is kept.

    ClusterError if one makes no sense.
    """
    name = mpijob["metadata"]["name"]
    path = f"/api/v1/namespaces/{part(namespace)}/pods"

    if is_arenas(mpijob):
        return api.collect(path, keep, labelSelector=f"release={name},{ARENA_SELECTOR}")
    for label in NAME_LABELS[version]:
        if found := api.collect(path, keep, labelSelector=f"{label}={name}"):
            return found
    return []


def is_arenas(mpijob: Object) -> bool:
    """Whether a job carries the labels by which arena finds its pods."""
    labels = mpijob["metadata"].get("labels") or {}
    return labels.get("app") == "mpijob" and labels.get("release") == mpijob["metadata"]["name"]


def belongs(pod: Object, mpijob: Object) -> bool:
    """Whether a pod that a selector found is the job's: no TensorBoard, no earlier namesake's."""
    meta, job = pod["metadata"], mpijob["metadata"]
    if (meta.get("labels") or {}).get("role") == "tensorboard":
        return False
    owners = [one for one in meta.get("ownerReferences") or () if one.get("kind") == "MPIJob"]
    if owners:
        return any(one.get("uid") == job.get("uid") for one in owners)
    return (seconds(meta.get("creationTimestamp")) or 0.0) >= (
        seconds(job.get("creationTimestamp")) or 0.0
    )
