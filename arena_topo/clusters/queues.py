"""Whether a job is suspended, and which queue other than ours alone suspends and resumes it."""

from __future__ import annotations

from arena_topo.clusters.objects import Object, of

KUEUE = "Kueue"
KUBE_QUEUE_NAME = "kube-queue"
"""What people call the queues that `suspender` knows by name."""

KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of jobs that Kueue starts and stops."""

KUBE_QUEUE = "scheduling.x-k8s.io/suspend"
"""Annotation of jobs that kube-queue starts and stops."""

_OPERATOR = "kubeflow.org/mpi-operator"
"""What `managedBy` says of a job that nobody else manages."""


def suspended(mpijob: Object) -> bool:
    """Whether the operator is not to run a job; TypeError if it makes no sense as one."""
    return of(of(mpijob, "spec"), "runPolicy").get("suspend") is True


def manager(mpijob: Object) -> str | None:
    """Who runs a job in place of the MPI operator, as its `managedBy` says; None if nobody."""
    name = str(of(of(mpijob, "spec"), "runPolicy").get("managedBy") or _OPERATOR)
    return name if name != _OPERATOR else None


def suspender(mpijob: Object) -> str | None:
    """Who alone suspends and resumes a job: a queue that its labels or annotations name."""
    meta, managed = mpijob["metadata"], manager(mpijob)
    if (meta.get("labels") or {}).get(KUEUE_LABEL) or "kueue" in (managed or ""):
        return KUEUE
    if KUBE_QUEUE in (meta.get("annotations") or {}):
        return KUBE_QUEUE_NAME
    return managed


def queuing(mpijob: Object, *, pods: bool) -> str | None:
    """The queue that keeps a job from running now; None where none does.

    `pods` says whether the job has any.
    """
    if suspended(mpijob):
        return suspender(mpijob)
    # Operators that know kube-queue need no `suspend` beside its annotation.
    notes = mpijob["metadata"].get("annotations") or {}
    return KUBE_QUEUE_NAME if notes.get(KUBE_QUEUE) == "true" and not pods else None
