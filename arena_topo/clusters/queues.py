"""Queues other than ours that decide when a job runs, by what they write on it."""

from __future__ import annotations

from arena_topo.clusters.objects import Object

KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of jobs that Kueue starts and stops."""

KUBE_QUEUE = "scheduling.x-k8s.io/suspend"
"""Annotation of jobs that kube-queue starts and stops."""

_OPERATOR = "kubeflow.org/mpi-operator"
"""What `managedBy` says of a job that nobody else manages."""


def suspender(mpijob: Object) -> str | None:
    """Who alone suspends and resumes a job: a queue that its labels or annotations name."""
    meta = mpijob["metadata"]
    policy = (mpijob.get("spec") or {}).get("runPolicy") or {}
    managed = str(policy.get("managedBy") or _OPERATOR)
    if (meta.get("labels") or {}).get(KUEUE_LABEL) or "kueue" in managed:
        return "Kueue"
    if KUBE_QUEUE in (meta.get("annotations") or {}):
        return "kube-queue"
    return managed if managed != _OPERATOR else None
