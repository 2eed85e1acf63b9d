"""The controllers of built-in objects, and machines with their kubelets, for a fake API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_scheduler
from fake_operators import JOBS, LABEL, PODS, SETS, condition, is_ready, is_true, owner_of, phase
from fake_resources import RESOURCES, Key, Object, Refused, copied, rfc3339, seconds

if TYPE_CHECKING:
    from fake_cluster import FakeCluster

NODES = RESOURCES["nodes"]
TRACKED = "batch.kubernetes.io/job-tracking"
"""The finalizer by which a Job counts each of its pods once."""
WAITS = "wait-for-workers"
PULLS = {
    "missing": (
        "rpc error: code = NotFound desc = failed to pull and unpack image"
        ' "{image}": failed to resolve reference "{image}": {image}: not found'
    ),
    "denied": (
        "failed to pull and unpack image"
        ' "{image}": failed to resolve reference "{image}": failed to authorize: failed to fetch'
        " anonymous token: unexpected status from GET request: 401 Unauthorized"
    ),
    "forbidden": (
        "failed to pull and unpack image"
        ' "{image}": failed to resolve reference "{image}": unexpected status from HEAD request:'
        " 403 Forbidden"
    ),
    "timeout": (
        "failed to pull and unpack image"
        ' "{image}": failed to resolve reference "{image}": dial tcp: i/o timeout'
    ),
}
"""What containerd says of an image that cannot be had."""


class Controllers:
    """Jobs and StatefulSets: as much of them as launchers and v1alpha1 workers need."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.done: dict[str, object] = {}

    def step(self) -> None:
        self._orphans()
        for key, entry in list(self.api.tables[JOBS.name].items()):
            uid = entry.thing["metadata"]["uid"]
            before = (entry.revision, self.cluster.print_of(uid))
            if self.done.get(uid) == before or "deletionTimestamp" in entry.thing["metadata"]:
                continue
            self._job(key, entry.thing)
            after = (self.api.tables[JOBS.name][key].revision, self.cluster.print_of(uid))
            waits = not entry.thing["spec"].get("suspend") and not self.cluster.pods_of(entry.thing)
            if before == after and not waits and self.cluster.counts:
                self.done[uid] = before
        for key, entry in list(self.api.tables[SETS.name].items()):
            if "deletionTimestamp" not in entry.thing["metadata"]:
                self._set(key, entry.thing)
        if self.cluster.evicts:
            self._taints()

    def _orphans(self) -> None:
        """Let go of the pods of Jobs that are gone."""
        for key, entry in list(self.api.tables["pods"].items()):
            meta = entry.thing["metadata"]
            if TRACKED in (meta.get("finalizers") or ()) and not any(
                self.api.tables[JOBS.name].get((key[0], owner["name"]))
                for owner in meta["ownerReferences"]
            ):
                self._release(key, entry.thing)

    def _release(self, key: Key, pod: Object) -> None:
        """Let go of a pod of a Job, which is counted, or never will be."""
        changed = copied(pod)
        changed["metadata"]["finalizers"].remove(TRACKED)
        self.api.settle(PODS, key, changed)

    def _counted(self, status: Object, pods: list[Object], spec: Object) -> bool:
        """Count the pods of a Job that have ended, suspended or not, each once; whether it is over.

        What ends once it is over is not counted.
        """
        over = is_true(status, "Complete") or is_true(status, "Failed")
        for pod in pods:
            meta, word = pod["metadata"], phase(pod)
            if TRACKED not in (meta.get("finalizers") or ()) or not self.cluster.counts:
                continue
            deleted = "deletionTimestamp" in meta and spec.get("podReplacementPolicy") != "Failed"
            if over or word in {"Succeeded", "Failed"} or deleted:
                self._release((meta["namespace"], meta["name"]), pod)
                kind = "succeeded" if word == "Succeeded" else "failed"
                if not over:
                    status[kind] = status.get(kind, 0) + 1
        return over

    def _taints(self) -> None:
        """Delete the pods on tainted machines, once they no longer tolerate the taint."""
        nodes = {
            name: taints
            for (_, name), entry in self.api.tables["nodes"].items()
            if (taints := _evicting(entry.thing))
        }
        for key, entry in list(self.api.tables["pods"].items()) if nodes else ():
            pod = entry.thing
            taints = nodes.get((pod.get("spec") or {}).get("nodeName"), [])
            if "deletionTimestamp" in pod["metadata"] or phase(pod) in {"Succeeded", "Failed"}:
                continue
            if any(self._expired(taint, pod) for taint in taints):
                said = "Taint manager: deleting due to NoExecute taint"
                self.api.disrupt(*key, "DeletionByTaintManager", said)

    def _expired(self, taint: Object, pod: Object) -> bool:
        """Whether a pod does not tolerate a taint, or no longer."""
        bears = [
            one
            for one in pod["spec"].get("tolerations") or ()
            if fake_scheduler.tolerates(one, taint)
        ]
        limits = [one["tolerationSeconds"] for one in bears if "tolerationSeconds" in one]
        if bears and not limits:
            return False
        added = seconds(taint.get("timeAdded"))
        return self.api.clock() - (added or 0.0) >= min(limits, default=0)

    def _job(self, key: Key, job: Object) -> None:
        changed = copied(job)
        status, spec = changed.setdefault("status", {}), changed["spec"]
        pods = self.cluster.pods_of(job)
        live = [
            one
            for one in pods
            if phase(one) in {"Pending", "Running"} and "deletionTimestamp" not in one["metadata"]
        ]
        now = rfc3339(self.api.clock())
        if self._counted(status, pods, spec):
            return
        if status.get("succeeded"):
            status["completionTime"] = now
            _conditioned(
                status, "Complete", "True", reason="CompletionsReached", message="", now=now
            )
        elif status.get("failed", 0) > spec.get("backoffLimit", 6):
            said = "Job has reached the specified backoff limit"
            _conditioned(
                status, "Failed", "True", reason="BackoffLimitExceeded", message=said, now=now
            )
        elif spec.get("suspend"):
            for one in live:
                # Not counted, as the Job itself deletes them.
                name = one["metadata"]["name"]
                self._release((key[0], name), one)
                self.api.remove(PODS, key[0], name)
            live = []
            status.pop("startTime", None)
            _conditioned(
                status, "Suspended", "True", reason="JobSuspended", message="Job suspended", now=now
            )
        else:
            if condition(status, "Suspended"):
                _conditioned(
                    status,
                    "Suspended",
                    "False",
                    reason="JobResumed",
                    message="Job resumed",
                    now=now,
                )
            status.setdefault("startTime", now)
            if not live and not self._awaits_an_end(spec, pods):
                live = self._launch(key, job)
        if live:
            status["active"] = len(live)
        else:
            status.pop("active", None)
        if changed != self.api.tables[JOBS.name][key].thing:
            self.api.store(JOBS, key, changed)

    @staticmethod
    def _awaits_an_end(spec: Object, pods: list[Object]) -> bool:
        """Whether a pod on its way out has to be gone before another one takes its place."""
        return spec.get("podReplacementPolicy") == "Failed" and any(
            "deletionTimestamp" in one["metadata"] and phase(one) in {"Pending", "Running"}
            for one in pods
        )

    def _launch(self, key: Key, job: Object) -> list[Object]:
        template = copied(job["spec"]["template"])
        meta = template.get("metadata") or {}
        labels = {"batch.kubernetes.io/job-name": key[1], "job-name": key[1]}
        self.cluster.serial += 1
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{key[1]}-{self.cluster.serial:05x}",
                "namespace": key[0],
                "labels": {**(meta.get("labels") or {}), **labels},
                "annotations": meta.get("annotations") or {},
                "ownerReferences": owner_of(job, "batch/v1"),
                "finalizers": [TRACKED],
            },
            "spec": template["spec"],
        }
        try:
            return [self.api.create(PODS, key[0], pod)]
        except Refused as error:
            said = f"Error creating: {error.message}"
            self.cluster.event(job, "FailedCreate", said, source="job-controller")
            return []

    def _set(self, key: Key, one: Object) -> None:
        count, name = one["spec"]["replicas"], one["metadata"]["name"]
        mine = {pod["metadata"]["name"]: pod for pod in self.cluster.pods_of(one)}
        for pod in mine.values():
            index = int(pod["metadata"]["name"].rpartition("-")[2])
            gone = index >= count or phase(pod) in {"Failed", "Succeeded"}
            if gone and "deletionTimestamp" not in pod["metadata"]:
                self.api.remove(PODS, key[0], pod["metadata"]["name"])
        for index in range(count):
            if f"{name}-{index}" in mine:
                continue
            template = copied(one["spec"]["template"])
            meta = template.get("metadata") or {}
            own = {
                "statefulset.kubernetes.io/pod-name": f"{name}-{index}",
                "apps.kubernetes.io/pod-index": str(index),
            }
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}",
                    "namespace": key[0],
                    "labels": {**(meta.get("labels") or {}), **own},
                    "annotations": meta.get("annotations") or {},
                    "ownerReferences": owner_of(one, "apps/v1"),
                },
                "spec": template["spec"],
            }
            try:
                self.api.create(PODS, key[0], pod)
            except Refused as error:
                said = (
                    f"create Pod {name}-{index} in StatefulSet {name} failed error: {error.message}"
                )
                self.cluster.event(one, "FailedCreate", said, source="statefulset-controller")
                break
        ready = sum(is_ready(pod) for pod in self.cluster.pods_of(one))
        status = {"replicas": len(mine), "readyReplicas": ready}
        if one.get("status") != status:
            self.api.store(SETS, key, {**copied(one), "status": status})


def _evicting(node: Object) -> list[Object]:
    taints = (node.get("spec") or {}).get("taints") or ()
    return [taint for taint in taints if taint.get("effect") == "NoExecute"]


def _conditioned(
    status: Object, kind: str, value: str, *, reason: str, message: str, now: str
) -> None:
    old = condition(status, kind)
    if old and old["status"] == value:
        return
    kept = [one for one in status.get("conditions") or () if one["type"] != kind]
    new = {"type": kind, "status": value, "reason": reason, "message": message}
    status["conditions"] = [*kept, {**new, "lastTransitionTime": now}]


class Kubelets:
    """What machines do with the pods that are bound to them."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.since: dict[str, float] = {}
        """When a kubelet first saw a pod, by uid."""

    def step(self) -> None:
        nodes = self.api.tables["nodes"]
        for key, entry in list(self.api.tables["pods"].items()):
            pod = entry.thing
            node = (pod.get("spec") or {}).get("nodeName")
            if not node:
                continue
            if ("", node) not in nodes:
                # The pod garbage collector: nobody else will confirm its end.
                said = "PodGC: node no longer exists"
                self._failed(key, pod)
                self.api.disrupt(*key, "DeletionByPodGC", said, {"gracePeriodSeconds": 0})
            elif node in self.cluster.dead or not self.cluster.kubelets:
                continue
            elif "deletionTimestamp" in pod["metadata"]:
                if not self.cluster.keeps_terminating:
                    self.api.end_log(key[1], key[0])
                    self._failed(key, pod)
                    self.api.remove(PODS, *key, {"gracePeriodSeconds": 0})
            elif phase(pod) == "Pending" or self._ends(key, pod):
                changed = copied(pod)
                self._sync(key, changed)
                if changed != pod:
                    self.api.store(PODS, key, changed)

    def _failed(self, key: Key, pod: Object) -> None:
        """Say of a pod on its way out that it has failed, where its Job has to count it."""
        if pod["metadata"].get("finalizers") and phase(pod) in {"Pending", "Running"}:
            changed = copied(pod)
            changed.setdefault("status", {})["phase"] = "Failed"
            self.api.store(PODS, key, changed)

    def _sync(self, key: Key, pod: Object) -> None:
        status, spec = pod.setdefault("status", {}), pod["spec"]
        uid = pod["metadata"]["uid"]
        now = self.api.clock()
        if uid not in self.since:
            self.since[uid] = now
            status |= {"startTime": rfc3339(now), "hostIP": "10.0.0.1"}
            for image in _images(spec):
                said = f'Pulling image "{image}"'
                self.cluster.event(pod, "Pulling", said, kind="Normal", source="kubelet")
        for image in _images(spec):
            outcome = self.cluster.images.get(image, 0.0)
            if isinstance(outcome, str):
                self._unpulled(pod, image, PULLS[outcome].format(image=image))
                return
            if now - self.since[uid] < outcome:
                self._waiting(pod, "ContainerCreating", None)
                return
        if phase(pod) == "Pending":
            if not self._initialised(key, pod):
                return
            self._run(key, pod, now)
        else:
            self.end(key, pod, self.cluster.exits.pop((key[0], self._job(pod)), 0))

    @staticmethod
    def _role(pod: Object) -> str:
        labels = pod["metadata"].get("labels") or {}
        return labels.get(f"{LABEL}/job-role") or labels.get("mpi_role_type") or ""

    @staticmethod
    def _job(pod: Object) -> str:
        labels = pod["metadata"].get("labels") or {}
        return labels.get(f"{LABEL}/job-name") or labels.get("mpi_job_name") or ""

    def _waiting(self, pod: Object, reason: str, message: str | None) -> None:
        state = {"reason": reason, **({"message": message} if message else {})}
        pod["status"]["containerStatuses"] = [
            {
                "name": one["name"],
                "image": one.get("image", ""),
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": state},
            }
            for one in pod["spec"]["containers"]
        ]

    def _unpulled(self, pod: Object, image: str, why: str) -> None:
        before = (pod["status"].get("containerStatuses") or [{}])[0].get("state") or {}
        if (before.get("waiting") or {}).get("reason") in {"ErrImagePull", "ImagePullBackOff"}:
            said = f'Back-off pulling image "{image}": ErrImagePull: {why}'
            self._waiting(pod, "ImagePullBackOff", said)
            self.cluster.event(
                pod, "BackOff", f'Back-off pulling image "{image}"', kind="Normal", source="kubelet"
            )
        else:
            self._waiting(pod, "ErrImagePull", why)
            said = f'Failed to pull image "{image}": {why}'
            self.cluster.event(pod, "Failed", said, source="kubelet")

    def _initialised(self, key: Key, pod: Object) -> bool:
        """Whether all init containers are done; the launcher's waits for the workers."""
        inits = pod["spec"].get("initContainers") or ()
        statuses = []
        for one in inits:
            state: Object = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            missing = self._missing(key, pod) if one["name"] == WAITS else []
            if missing:
                late = self.api.clock() - self.since[pod["metadata"]["uid"]]
                if late >= self.cluster.patience:
                    said = f"not ready after {self.cluster.patience:g} s: {' '.join(missing)}\n"
                    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": said}}
                else:
                    state = {"running": {"startedAt": pod["status"]["startTime"]}}
            statuses.append({"name": one["name"], "ready": not missing, "state": state})
            if missing:
                break
        if inits:
            pod["status"]["initContainerStatuses"] = statuses
        if not statuses or statuses[-1]["ready"]:
            return True
        if "terminated" in statuses[-1]["state"]:
            pod["status"]["phase"] = "Failed"
        self._waiting(pod, "PodInitializing", None)
        return False

    def _missing(self, key: Key, pod: Object) -> list[str]:
        job = self._job(pod)
        waits = next(one for one in pod["spec"]["initContainers"] if one["name"] == WAITS)
        words = [str(word) for word in waits.get("command") or ()]
        count = int(words[words.index(job) + 1]) if job in words else 0
        names = [f"{job}-worker-{index}" for index in range(count)]
        pods = self.api.tables["pods"]
        return [
            name
            for name in names
            if (key[0], name) not in pods or not is_ready(pods[key[0], name].thing)
        ]

    def _run(self, key: Key, pod: Object, now: float) -> None:
        status = pod["status"]
        status["phase"] = "Running"
        status["podIP"] = f"172.27.{len(self.since) // 250}.{len(self.since) % 250 + 1}"
        ready = self.cluster.sshd or self._role(pod) != "worker"
        status["containerStatuses"] = [
            {
                "name": one["name"],
                "image": one.get("image", ""),
                "ready": ready,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": rfc3339(now)}},
            }
            for one in pod["spec"]["containers"]
        ]
        at = rfc3339(now)
        for kind in ("Initialized", "ContainersReady", "Ready"):
            value = "True" if ready or kind == "Initialized" else "False"
            _conditioned(
                status,
                kind,
                value,
                reason="" if value == "True" else "ContainersNotReady",
                message="",
                now=at,
            )
        if key not in self.api.logs or self.api.logs[key].ended:
            self.api.logs[key] = self.cluster.new_log()
        self.cluster.event(pod, "Started", "Container started", kind="Normal", source="kubelet")

    def _ends(self, key: Key, pod: Object) -> bool:
        """Whether a launcher that runs is due to end."""
        if phase(pod) != "Running" or self._role(pod) != "launcher":
            return False
        if (key[0], self._job(pod)) in self.cluster.exits:
            return True
        lasts, uid = self.cluster.duration, pod["metadata"]["uid"]
        return lasts is not None and self.api.clock() - self.since.get(uid, 0.0) >= lasts

    def end(self, key: Key, pod: Object, code: int) -> None:
        """Let the containers of a pod end with a code."""
        now = rfc3339(self.api.clock())
        status = pod["status"]
        status["phase"] = "Failed" if code else "Succeeded"
        for one in status.get("containerStatuses") or ():
            started = ((one.get("state") or {}).get("running") or {}).get("startedAt", now)
            ended = {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                "startedAt": started,
                "finishedAt": now,
            }
            one |= {"ready": False, "state": {"terminated": ended}}
        for kind in ("ContainersReady", "Ready"):
            _conditioned(status, kind, "False", reason="PodCompleted", message="", now=now)
        self.api.end_log(key[1], key[0])


def _images(spec: Object) -> list[Any]:
    found = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return list(dict.fromkeys(one.get("image", "") for one in found))
