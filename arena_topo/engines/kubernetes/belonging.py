"""What is a job's: its pods by their owners, and the events about it; one rule for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.engines.kubernetes.status import seconds, when
from arena_topo.engines.kubernetes.writing import part
from arena_topo.manifests.versions import ApiVersion

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

Object = dict[str, Any]

ARENA_SELECTOR = "app=mpijob"
"""Label of everything that arena's chart creates."""

_WORKLOADS = {"Job": "launcher", "StatefulSet": "worker"}
"""What operators make between an MPIJob and its pods, by kind: how its name ends."""

_MADE = {"Pod", *_WORKLOADS}
"""The kinds of objects that operators make of an MPIJob, and that have events of their own."""


def labelled(
    api: Connection,
    mpijob: Object,
    version: ApiVersion,
    namespace: str,
    keep: Callable[[Object], Object | None] | None = None,
) -> list[Object]:
    """The pods that carry a job's name in the labels of whoever made them, as far as is kept.

    Of arena's the TensorBoard is one. ClusterError if one makes no sense.
    """
    name = mpijob["metadata"]["name"]
    path = f"/api/v1/namespaces/{part(namespace)}/pods"

    arenas = is_arenas(mpijob)

    def kept(pod: Object) -> Object | None:
        # Jobs of other kinds have the same label, and more than one label is tried.
        if not arenas and not belongs(pod, mpijob):
            return None
        return pod if keep is None else keep(pod)

    if arenas:
        return api.collect(path, kept, labelSelector=f"release={name},{ARENA_SELECTOR}")
    for label in version.traits.job_labels:
        if found := api.collect(path, kept, labelSelector=f"{label}={name}"):
            return found
    return []


def is_arenas(mpijob: Object) -> bool:
    """Whether a job carries the labels by which arena finds its pods."""
    labels = mpijob["metadata"].get("labels") or {}
    return labels.get("app") == "mpijob" and labels.get("release") == mpijob["metadata"]["name"]


def controller_of(thing: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner that controls an object (apimachinery, metav1.GetControllerOf); None without."""
    owners = thing["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller") is True), None)


def belongs(
    pod: Mapping[str, Any],
    mpijob: Mapping[str, Any],
    controller_uid: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> bool:
    """Whether an MPIJob controls a pod, itself or through what its operator has made of it.

    Labels and names are anybody's to write. `controller_uid` tells the uid of the controller of a
    workload, given an owner reference to it; without, a workload of the name that operators give it
    counts as the job's, unless the pod is older than the job.
    """
    owner, job = controller_of(pod), mpijob["metadata"]
    if owner is None:
        return False
    if owner.get("uid") == job.get("uid"):
        return True
    ending = _WORKLOADS.get(str(owner.get("kind")))
    if ending is None or owner.get("name") != f"{job['name']}-{ending}":
        return False
    if controller_uid is not None:
        return controller_uid(owner) == str(job.get("uid"))
    return _born(pod["metadata"]) >= _born(job)


def is_about(event: Mapping[str, Any], *, name: str, created: float, uids: Collection[str]) -> bool:
    """Whether an event is about a job of this name, or about what was made of it.

    `uids` are those of the job and of its pods, as far as they are known. What is gone by now has
    no uid to go by, but the name and kind of what operators make, and belongs to the time of the
    job, which was `created` then (Unix seconds).
    """
    about = event.get("involvedObject") or {}
    if about.get("uid") in uids:
        return True
    if about.get("kind") not in _MADE or when(event) < created:
        return False
    made = rf"{re.escape(name)}-(worker|launcher|mpijob-launcher)(-\w+)*"
    return re.fullmatch(made, str(about.get("name"))) is not None


def _born(meta: Mapping[str, Any]) -> float:
    return seconds(meta.get("creationTimestamp")) or 0.0
