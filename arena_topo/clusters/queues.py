"""Whether a job is suspended, and the other queue, if any, that alone suspends and resumes it."""

from __future__ import annotations

from arena_topo.clusters.objects import Object, mapping_at

KUEUE_NAME = "Kueue"
KUBE_QUEUE_NAME = "kube-queue"
"""The names of the queues that `suspender` knows, for people."""

KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of jobs that Kueue starts and stops."""

KUBE_QUEUE = "scheduling.x-k8s.io/suspend"
"""Annotation of jobs that kube-queue starts and stops."""

_OPERATOR = "kubeflow.org/mpi-operator"
"""The value of `managedBy` for a job of the MPI operator."""


def is_suspended(mpijob: Object) -> bool:
    """Whether the job is suspended for its operator; TypeError for an invalid object."""
    return mapping_at(mapping_at(mpijob, "spec"), "runPolicy").get("suspend") is True


def manager(mpijob: Object) -> str | None:
    """The controller that `managedBy` names in place of the MPI operator; None without one."""
    name = str(mapping_at(mapping_at(mpijob, "spec"), "runPolicy").get("managedBy") or _OPERATOR)
    return name if name != _OPERATOR else None


def suspender(mpijob: Object) -> str | None:
    """The queue that alone suspends and resumes a job, by its labels or annotations, or None."""
    meta, managed = mpijob["metadata"], manager(mpijob)
    if (meta.get("labels") or {}).get(KUEUE_LABEL) or "kueue" in (managed or ""):
        return KUEUE_NAME
    if KUBE_QUEUE in (meta.get("annotations") or {}):
        return KUBE_QUEUE_NAME
    return managed


def queuing(mpijob: Object, *, pods: bool) -> str | None:
    """The queue that prevents a job from running now; None without one.

    `pods`: whether the job has pods.
    """
    if is_suspended(mpijob):
        return suspender(mpijob)
    # With kube-queue's annotation the operators that know it hold a job without `suspend`.
    notes = mpijob["metadata"].get("annotations") or {}
    return KUBE_QUEUE_NAME if notes.get(KUBE_QUEUE) == "true" and not pods else None
