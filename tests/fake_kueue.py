"""Kueue, as an owner of suspension: jobs of its queues run when a test admits them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fake_operators import MPIJOBS, owner_of
from fake_resources import RESOURCES, Key, Object, Resource, copied, rfc3339

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fake_cluster import FakeCluster

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOADS = RESOURCES["workloads.kueue.x-k8s.io"]


class Kueue:
    """Suspends jobs of its queues at creation; `admit` and `evict` do as their names say."""

    def __init__(self, cluster: FakeCluster, version: str = "v1beta1") -> None:
        self.cluster, self.api, self.version = cluster, cluster.api, version
        self.api.kueue = [version]
        self.api.mutators.append(self._webhook)

    @staticmethod
    def _webhook(resource: Resource, thing: Object, operation: str) -> None:
        labels = thing["metadata"].get("labels") or {}
        if resource is MPIJOBS and operation == "CREATE" and QUEUE in labels:
            thing.setdefault("spec", {}).setdefault("runPolicy", {})["suspend"] = True

    def step(self) -> None:
        """A Workload for each job that has none; a job that is not admitted is suspended again."""
        for key, entry in list(self.api.tables[MPIJOBS.name].items()):
            labels = entry.thing["metadata"].get("labels") or {}
            if QUEUE not in labels or "deletionTimestamp" in entry.thing["metadata"]:
                continue
            at = key[0], workload_name(entry.thing)
            if at not in self.api.tables[WORKLOADS.name]:
                self._workload(key, entry.thing, labels[QUEUE])
            workload = self.api.tables[WORKLOADS.name][at].thing
            suspended = (entry.thing["spec"].get("runPolicy") or {}).get("suspend")
            if not suspended and not (workload["status"].get("admission")):
                with self.api.edit("MPIJob", key[1], key[0]) as job:
                    job["spec"]["runPolicy"]["suspend"] = True

    def _workload(self, key: Key, job: Object, queue: str) -> None:
        sets = [
            {
                "name": role.lower(),
                "count": one.get("replicas", 1),
                "template": copied(one["template"]),
            }
            for role, one in job["spec"]["mpiReplicaSpecs"].items()
        ]
        self.api.add(
            {
                "apiVersion": f"kueue.x-k8s.io/{self.version}",
                "kind": "Workload",
                "metadata": {
                    "name": workload_name(job),
                    "namespace": key[0],
                    "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]},
                    "ownerReferences": owner_of(job, "kubeflow.org/v2beta1"),
                },
                "spec": {"active": True, "queueName": queue, "podSets": sets},
                "status": {
                    "conditions": [
                        self._condition(
                            "QuotaReserved",
                            "False",
                            "Pending",
                            "couldn't assign flavors to pod set worker: insufficient unused quota"
                            " for nvidia.com/gpu in flavor default, 2 more needed",
                        )
                    ]
                },
            }
        )

    def _of(self, name: str, namespace: str) -> AbstractContextManager[Object]:
        """The Workload of a job, to be edited."""
        job = self.api.tables[MPIJOBS.name][namespace, name].thing
        return self.api.edit("Workload.kueue.x-k8s.io", workload_name(job), namespace)

    def _condition(self, kind: str, value: str, reason: str, message: str) -> Object:
        return {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(self.api.clock()),
        }

    def admit(
        self, name: str, namespace: str = "default", *, selector: dict[str, str] | None = None
    ) -> None:
        """Admit a job: its pods get the flavor's nodeSelector, and it is resumed."""
        with self.api.lock:
            self.step()
            with self._of(name, namespace) as workload:
                workload["status"] = {
                    "admission": {"clusterQueue": "queue", "podSetAssignments": []},
                    "conditions": [
                        self._condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved"),
                        self._condition("Admitted", "True", "Admitted", "The workload is admitted"),
                    ],
                }
            with self.api.edit("MPIJob", name, namespace) as job:
                for one in job["spec"]["mpiReplicaSpecs"].values():
                    spec = one["template"]["spec"]
                    if selector:
                        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}
                job["spec"].setdefault("runPolicy", {})["suspend"] = False

    def evict(self, name: str, namespace: str = "default", *, reason: str = "Preempted") -> None:
        """Take a job back: it is suspended, with the templates that it was queued with."""
        with self.api.lock:
            with self._of(name, namespace) as workload:
                sets: dict[str, Any] = {one["name"]: one for one in workload["spec"]["podSets"]}
                said = "Preempted to accommodate a workload of higher priority"
                workload["status"] = {
                    "conditions": [
                        self._condition("QuotaReserved", "False", "Pending", said),
                        self._condition("Evicted", "True", reason, said),
                        self._condition("Admitted", "False", "NoReservation", said),
                    ]
                }
            with self.api.edit("MPIJob", name, namespace) as job:
                job["spec"].setdefault("runPolicy", {})["suspend"] = True
                for role, one in job["spec"]["mpiReplicaSpecs"].items():
                    _restore(one["template"], sets[role.lower()]["template"])


def _restore(template: Object, queued: Object) -> None:
    """Kueue's RestorePodSetsInfo: these parts become what they were."""
    for part in ("labels", "annotations"):
        template.setdefault("metadata", {}).pop(part, None)
        if part in (queued.get("metadata") or {}):
            template["metadata"][part] = copied(queued["metadata"][part])
    for part in ("nodeSelector", "tolerations", "schedulingGates"):
        template["spec"].pop(part, None)
        if part in queued["spec"]:
            template["spec"][part] = copied(queued["spec"][part])


def workload_name(job: Object) -> str:
    """The name of a job's Workload (Kueue, pkg/controller/jobframework/workload_names.go).

    Kind and name, and five digits of a hash over kind, group, name and uid; 253 characters at most.
    """
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    seed = f"MPIJob\nkubeflow.org\n{name}\n{uid}"
    digest = hashlib.sha1(seed.encode(), usedforsecurity=False).hexdigest()
    return f"mpijob-{name}"[: 253 - 1 - 5] + f"-{digest[:5]}"
