"""What an MPI operator, a scheduler and kubelets would do to the objects of a fake API server.

By hand and by name: nothing happens unless a test asks for it. The shapes are those that
mpi-operator (v2beta1, v1alpha1) and training-operator (v1) were seen to make.
"""

from __future__ import annotations

from typing import Any

from fake_api import FakeApi, rfc3339
from fake_resources import copied

from arena_topo.manifests.annotations import parse_map

MAP = "arena-topo.io/placement"


class FakeOperator:
    """Makes and moves the pods of MPIJobs."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    def job(self, name: str, namespace: str = "default") -> dict[str, Any]:
        found = self.api.find("MPIJob", name, namespace)
        assert found is not None
        return found

    def start(self, name: str, namespace: str = "default", *, on: str = "node-0") -> None:
        """Create all pods, bind them as the placement says (else to one node), and run them."""
        job = self.job(name, namespace)
        placement = job["metadata"].get("annotations", {}).get(MAP)
        places = {index: node for index, node, _ in parse_map(placement)} if placement else {}
        spec = job["spec"]
        if "mpiReplicaSpecs" in spec:
            worker = spec["mpiReplicaSpecs"]["Worker"]
            launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]
        else:
            worker = {"replicas": spec["replicas"], "template": spec["template"]}
            launcher = copied(spec["template"])
            for container in launcher["spec"]["containers"]:
                container.pop("resources", None)
        for index in range(worker.get("replicas", 1)):
            self._pod(job, worker["template"], f"{name}-worker-{index}", places.get(index, on))
        suffix = "" if self.version == "v1" else "-x7k2p"
        self._pod(job, launcher, f"{name}-launcher{suffix}", places.get(0, on))
        if self.version == "v1alpha1":
            job["status"] = {"launcherStatus": "Active"}
        else:
            job["status"] = {"conditions": [{"type": "Running", "status": "True"}]}

    @property
    def version(self) -> str:
        return self.api.versions[0]

    def _pod(self, job: dict[str, Any], template: dict[str, Any], name: str, node: str) -> None:
        meta = copied(template.get("metadata") or {})
        role = "worker" if "-worker-" in name else "launcher"
        job_name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        labels = {
            "v2beta1": {
                "training.kubeflow.org/operator-name": "mpi-operator",
                "training.kubeflow.org/job-name": job_name,
                "training.kubeflow.org/job-role": role,
            },
            "v1": {
                "training.kubeflow.org/job-name": job_name,
                "training.kubeflow.org/job-role": role,
            },
            "v1alpha1": {
                "group_name": "kubeflow.org",
                "mpi_job_name": job_name,
                "mpi_role_type": role,
            },
        }[self.version]
        owner = {"kind": "MPIJob", "name": job_name, "uid": uid, "controller": True}
        spec = {**copied(template["spec"]), "nodeName": node}
        # A pod that has its node has passed its gates.
        spec.pop("schedulingGates", None)
        self.api.add(
            {
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": job["metadata"]["namespace"],
                    "labels": {**(meta.get("labels") or {}), **labels},
                    "annotations": meta.get("annotations") or {},
                    "ownerReferences": [owner],
                },
                "spec": spec,
                "status": {
                    "phase": "Running",
                    "hostIP": "10.0.0.1",
                    "podIP": "172.27.0.10",
                    "startTime": rfc3339(self.api.clock()),
                    "containerStatuses": [
                        {
                            "name": template["spec"]["containers"][0]["name"],
                            "ready": True,
                            "state": {"running": {"startedAt": rfc3339(self.api.clock())}},
                        }
                    ],
                },
            }
        )

    def launcher(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """The pod of its launcher, the newest if it was tried again."""
        found = [
            pod
            for pod in self.api.all("Pod")
            if pod["metadata"]["name"].startswith(f"{name}-launcher")
            and pod["metadata"]["namespace"] == namespace
        ]
        return found[-1]

    def finish(self, name: str, code: int = 0, namespace: str = "default") -> None:
        """Let the launcher end, and clean up the workers as `cleanPodPolicy: All` does."""
        job, pod = self.job(name, namespace), self.launcher(name, namespace)
        now = rfc3339(self.api.clock())
        state = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": pod["status"]["startTime"],
            "finishedAt": now,
        }
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        pod["status"]["containerStatuses"][0] |= {"ready": False, "state": {"terminated": state}}
        self.api.end_log(pod["metadata"]["name"], namespace)
        word = "Failed" if code else "Succeeded"
        if self.version == "v1alpha1":
            job["status"] = {"launcherStatus": word}
        else:
            condition = {"type": word, "status": "True", "lastTransitionTime": now}
            job["status"] = {"conditions": [condition], "completionTime": now}
        for worker in self.api.all("Pod"):
            if worker["metadata"]["name"].startswith(f"{name}-worker-"):
                self.api.remove("pods", namespace, worker["metadata"]["name"], {})

    def retry(self, name: str, code: int = 1, namespace: str = "default") -> None:
        """Let the launcher fail, and another one start; training-operator gives it the same name.

        The pod of a batch Job stays when it has failed.
        """
        job, old = self.job(name, namespace), self.launcher(name, namespace)
        pod = old["metadata"]["name"]
        template = {"metadata": copied(old["metadata"]), "spec": copied(old["spec"])}
        node = template["spec"].pop("nodeName")
        self.api.end_log(pod, namespace)
        if self.version == "v1":
            self.api.remove("pods", namespace, pod, {})
            del self.api.logs[namespace, pod]
            self._pod(job, template, pod, node)
            return
        ended = {"exitCode": code, "reason": "Error", "finishedAt": rfc3339(self.api.clock())}
        with self.api.edit("Pod", pod, namespace) as thing:
            thing["status"]["phase"] = "Failed"
            status = thing["status"]["containerStatuses"][0]
            status |= {"ready": False, "state": {"terminated": ended}}
        self._pod(job, template, f"{name}-launcher-{len(self.api.all('Pod')):05}", node)

    def say(self, name: str, line: str | bytes, namespace: str = "default") -> None:
        """Let the launcher write a line, or these very bytes."""
        pod = self.launcher(name, namespace)["metadata"]["name"]
        log = self.api.logs.get((namespace, pod))
        number = len(log.lines) if log else 0
        at = f"2026-11-21T07:00:00.{number:09}Z"
        self.api.write(pod, line, at=at, namespace=namespace)
