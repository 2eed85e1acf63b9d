"""mpi-operator (v2beta1, v1alpha1) and training-operator (v1) on a fake API server.

After mpi-operator's controller and what was recorded of it: what it creates, labels, retries and
deletes, which conditions it sets, and what it syncs when a job resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fake_resources import RESOURCES, Key, Object, Refused, copied, rfc3339

if TYPE_CHECKING:
    from fake_world import World

MPIJOBS = RESOURCES["mpijobs.kubeflow.org"]
PODS = RESOURCES["pods"]
JOBS = RESOURCES["jobs.batch"]
SETS = RESOURCES["statefulsets.apps"]
LABEL = "training.kubeflow.org"
MANAGED_BY = "kubeflow.org/mpi-operator"
KEY = "bm8ga2V5"
"""Where real operators put the keys of ssh that they make."""


def owner_of(thing: Object, version: str) -> list[Object]:
    """A controller reference, as operators write it."""
    return [
        {
            "apiVersion": version,
            "kind": thing["kind"],
            "name": thing["metadata"]["name"],
            "uid": thing["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def owned_by(thing: Object, owner: Object) -> bool:
    return any(
        one.get("uid") == owner["metadata"]["uid"]
        for one in thing["metadata"].get("ownerReferences") or ()
    )


def condition(status: Object, kind: str) -> Object | None:
    return next((one for one in status.get("conditions") or () if one["type"] == kind), None)


def is_true(status: Object, kind: str) -> bool:
    found = condition(status, kind)
    return found is not None and found["status"] == "True"


def is_ready(pod: Object) -> bool:
    return is_true(pod.get("status") or {}, "Ready")


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


class Operator:
    """One pass over an MPIJob of the served version."""

    def __init__(self, cluster: World) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.done: dict[str, object] = {}
        """How each job and what it owns looked when there was nothing more to do, by uid."""

    def step(self) -> None:
        version = self.api.preferred(MPIJOBS)
        reconcile = {"v2beta1": self._v2beta1, "v1": self._v1, "v1alpha1": self._v1alpha1}[version]
        for key, entry in list(self.api.tables[MPIJOBS.name].items()):
            job = entry.thing
            if "deletionTimestamp" in job["metadata"] or not self._ours(job):
                continue
            if not entry.exposed and self.done.get(job["metadata"]["uid"]) == self._print(key):
                continue
            changed = copied(job)
            status = changed.setdefault("status", {})
            before = self._print(key)
            try:
                reconcile(key, changed, status)
            except Refused as error:
                self._refused(error)
                before = None
            if changed != self.api.tables[MPIJOBS.name][key].thing:
                self.api.store(MPIJOBS, key, changed)
            elif before == self._print(key):
                self.done[job["metadata"]["uid"]] = before

    def _refused(self, error: Refused) -> None:
        """A pass that ended early: said in an event where people need it, and tried again."""

    def _print(self, key: Key) -> object:
        entry = self.api.tables[MPIJOBS.name][key]
        launcher = self.api.tables[JOBS.name].get((key[0], f"{key[1]}-launcher"))
        return (
            entry.revision,
            self.cluster.print_of(entry.thing["metadata"]["uid"]),
            launcher and self.cluster.print_of(launcher.thing["metadata"]["uid"]),
        )

    def _ours(self, job: Object) -> bool:
        policy = (job.get("spec") or {}).get("runPolicy") or {}
        return bool(policy.get("managedBy", MANAGED_BY) == MANAGED_BY)

    def _set(self, job: Object, kind: str, value: str, reason: str, message: str) -> None:
        status = job["status"]
        old = condition(status, kind)
        if old and (old["status"], old["reason"]) == (value, reason):
            return
        now = rfc3339(self.api.clock())
        since = old["lastTransitionTime"] if old and old["status"] == value else now
        new = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
            "lastUpdateTime": now,
        }
        kept = [one for one in status.get("conditions") or () if one["type"] != kind]
        if kind in {"Succeeded", "Failed"}:
            for one in kept:
                if one["type"] == "Running":
                    one["status"] = "False"
        status["conditions"] = [*kept, new]

    def _create(self, resource: Any, space: str, thing: Object, job: Object, what: str) -> Object:
        """Create a thing of a job; a refusal is an event, and the pass ends."""
        try:
            return self.api.create(
                resource, space, thing, user="system:serviceaccount:mpi-operator:mpi-operator"
            )
        except Refused as error:
            said = f"{what} pod created failed: {error.message}"
            self.cluster.event(job, "MPIJobFailed", said, source="mpi-job-controller")
            raise

    def _made(self, job: Object, name: str, kind: str, **more: Any) -> None:
        """Create a Service, a ConfigMap or a Secret of a job, once."""
        space = job["metadata"]["namespace"]
        if self.api.find(kind, name, space) is None:
            meta = {
                "name": name,
                "namespace": space,
                "labels": {"app": job["metadata"]["name"]},
                "ownerReferences": owner_of(job, "kubeflow.org/v2beta1"),
            }
            self.api.add({"apiVersion": "v1", "kind": kind, "metadata": meta, **more})

    # v2beta1

    def _v2beta1(self, key: Key, job: Object, status: Object) -> None:
        name, spec = key[1], job["spec"]
        policy = spec.get("runPolicy") or {}
        suspended = bool(policy.get("suspend"))
        if not status.get("conditions"):
            said = f"MPIJob {key[0]}/{name} is created."
            self._set(job, "Created", "True", "MPIJobCreated", said)
            self.cluster.event(job, "MPIJobCreated", said, kind="Normal")
        # A finished job is only cleaned up, also one that is suspended (mpi-operator,
        # pkg/controller/mpi_job_controller.go: syncHandler; isFinished looks at the conditions).
        # Without its failure and completionTime it is synced again, by the Job of its launcher: one
        # that has failed fails it again (updateMPIJobStatus), a missing one is created.
        over = is_true(status, "Succeeded") or is_true(status, "Failed")
        if over and status.get("completionTime"):
            if policy.get("cleanPodPolicy", "None") in {"All", "Running"}:
                self._delete_workers(key, job)
            return
        if not suspended:
            status.setdefault("startTime", rfc3339(self.api.clock()))
        launcher = self.api.tables[JOBS.name].get((key[0], f"{name}-launcher"))
        workers: list[Object] = []
        if launcher is None or not _job_over(launcher.thing):
            replicas = spec["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0)
            hosts = "".join(
                f"{name}-worker-{index}.{name}.{key[0]}.svc slots={spec.get('slotsPerWorker', 1)}\n"
                for index in range(replicas)
            )
            labels = {**_labels(name, None), "job-name": name}
            self._made(job, name, "Service", spec={"clusterIP": "None", "selector": labels})
            self._made(job, f"{name}-config", "ConfigMap", data={"hostfile": hosts})
            keys = {"ssh-privatekey": KEY, "ssh-publickey": KEY}
            self._made(job, f"{name}-ssh", "Secret", type="kubernetes.io/ssh-auth", data=keys)
            if not suspended:
                workers = self._workers(key, job, "kubeflow.org/v2beta1")
            ready = all(is_ready(one) for one in workers)
            early = spec.get("launcherCreationPolicy", "AtStartup") == "AtStartup"
            if launcher is None and (early or ready):
                made = self._launcher(job, suspended=suspended)
                self._create(JOBS, key[0], made, job, "launcher")
                launcher = self.api.tables[JOBS.name][key[0], f"{name}-launcher"]
        if launcher is not None and suspended != bool(launcher.thing["spec"].get("suspend")):
            self._align(launcher.thing, job, suspended=suspended)
        if suspended:
            self._delete_workers(key, job)
            workers = []
        self._status(key, job, workers, suspended=suspended)

    def _workers(self, key: Key, job: Object, version: str) -> list[Object]:
        """The workers that exist, after those that are missing have been created."""
        replica = job["spec"]["mpiReplicaSpecs"].get("Worker") or {}
        count = replica.get("replicas", 0)
        for pod in self.cluster.pods_of(job):
            name = pod["metadata"]["name"]
            index = name.removeprefix(f"{key[1]}-worker-")
            if (
                index.isdigit()
                and int(index) >= count
                and "deletionTimestamp" not in pod["metadata"]
            ):
                self.api.remove(PODS, key[0], name)
        found = []
        for index in range(count):
            name = f"{key[1]}-worker-{index}"
            entry = self.api.tables["pods"].get((key[0], name))
            if entry is None:
                pod = self._worker(job, replica.get("template") or {}, index, version)
                self._create(PODS, key[0], pod, job, "worker")
                entry = self.api.tables["pods"][key[0], name]
            if not owned_by(entry.thing, job):
                said = (
                    f'Resource "{name}" of Kind "Pod" already exists and is not managed by MPIJob'
                )
                self.cluster.event(job, "ErrResourceExists", said)
                raise Refused(409, "Conflict", said)
            found.append(entry.thing)
        return found

    def _worker(self, job: Object, template: Object, index: int, version: str) -> Object:
        meta, spec = copied(template.get("metadata") or {}), copied(template["spec"])
        job_name = job["metadata"]["name"]
        name = f"{job_name}-worker-{index}"
        shift = 1 if job["spec"].get("runLauncherAsWorker") else 0
        if version.endswith("v1"):
            labels = _v1_labels(job_name, "worker")
            spec["containers"][0].setdefault("command", ["sleep", "365d"])
        else:
            labels = _labels(job_name, "worker")
            container = spec["containers"][0]
            if not container.get("command") and not container.get("args"):
                container["command"] = ["/usr/sbin/sshd", "-De"]
            role = {"name": "K_MPI_JOB_ROLE", "value": "worker"}
            container["env"] = [*(container.get("env") or ()), role]
            self._with_keys(spec, job)
            spec |= {"hostname": name, "subdomain": job_name}
        spec["restartPolicy"] = "Never"
        labels[f"{LABEL}/replica-index"] = str(index + shift)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": job["metadata"]["namespace"],
                "labels": {**(meta.get("labels") or {}), **labels},
                "annotations": meta.get("annotations") or {},
                "ownerReferences": owner_of(job, version),
            },
            "spec": spec,
        }

    def _with_keys(self, spec: Object, job: Object) -> None:
        name = job["metadata"]["name"]
        volume = {"name": "ssh-auth", "secret": {"secretName": f"{name}-ssh", "defaultMode": 384}}
        spec["volumes"] = [*(spec.get("volumes") or ()), volume]
        mount = {"name": "ssh-auth", "mountPath": job["spec"].get("sshAuthMountPath", "/root/.ssh")}
        container = spec["containers"][0]
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]

    def _launcher(self, job: Object, *, suspended: bool) -> Object:
        """The batch Job of the launcher; suspended from the start where the MPIJob is."""
        name, space = job["metadata"]["name"], job["metadata"]["namespace"]
        replica = job["spec"]["mpiReplicaSpecs"]["Launcher"]
        template = copied(replica["template"])
        meta = template.setdefault("metadata", {})
        meta["labels"] = {**(meta.get("labels") or {}), **_labels(name, "launcher")}
        spec = template["spec"]
        spec |= {"hostname": f"{name}-launcher", "subdomain": name}
        container = spec["containers"][0]
        container["env"] = [
            *(container.get("env") or ()),
            {"name": "K_MPI_JOB_ROLE", "value": "launcher"},
            {"name": "OMPI_MCA_orte_keep_fqdn_hostnames", "value": "true"},
            {"name": "OMPI_MCA_orte_default_hostfile", "value": "/etc/mpi/hostfile"},
            {"name": "OMPI_MCA_plm_rsh_args", "value": "-o ConnectionAttempts=10"},
            {"name": "NVIDIA_VISIBLE_DEVICES"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES"},
        ]
        self._with_keys(spec, job)
        spec["restartPolicy"] = replica.get("restartPolicy", "OnFailure")
        policy = job["spec"].get("runPolicy") or {}
        more = {
            key: policy[key]
            for key in ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
            if key in policy
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": f"{name}-launcher",
                "namespace": space,
                "labels": {"app": name},
                "ownerReferences": owner_of(job, "kubeflow.org/v2beta1"),
            },
            "spec": {
                "template": template,
                "suspend": suspended,
                "podReplacementPolicy": "Failed",
                **more,
            },
        }

    def _align(self, launcher: Object, job: Object, *, suspended: bool) -> None:
        """Suspend or resume the launcher's Job; on resume some of its template is synced."""
        changed = copied(launcher)
        changed["spec"]["suspend"] = suspended
        if not suspended:
            new = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
            old = changed["spec"]["template"]
            for part in ("labels", "annotations"):
                wanted = (new.get("metadata") or {}).get(part) or {}
                old["metadata"][part] = {**(old["metadata"].get(part) or {}), **wanted}
            for part in ("nodeSelector", "tolerations", "schedulingGates"):
                old["spec"].pop(part, None)
                if part in new["spec"]:
                    old["spec"][part] = copied(new["spec"][part])
        key = (launcher["metadata"]["namespace"], launcher["metadata"]["name"])
        self.api.store(JOBS, key, changed)

    def _delete_workers(self, key: Key, job: Object) -> None:
        policy = (job["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "None")
        for index in range((job["spec"]["mpiReplicaSpecs"].get("Worker") or {}).get("replicas", 0)):
            name = f"{key[1]}-worker-{index}"
            entry = self.api.tables["pods"].get((key[0], name))
            if entry is None or "deletionTimestamp" in entry.thing["metadata"]:
                continue
            if policy == "Running" and phase(entry.thing) not in {"Running", "Pending"}:
                continue
            self.api.remove(PODS, key[0], name)

    def _status(self, key: Key, job: Object, workers: list[Object], *, suspended: bool) -> None:
        status, name = job["status"], key[1]
        if suspended:
            self._set(job, "Suspended", "True", "MPIJobSuspended", "MPIJob suspended")
        elif condition(status, "Suspended") is not None:
            if is_true(status, "Suspended"):
                status["startTime"] = rfc3339(self.api.clock())
            self._set(job, "Suspended", "False", "MPIJobResumed", "MPIJob resumed")
        running = self._launcher_status(key, job)
        counts = status["replicaStatuses"]
        phases = [phase(one) for one in workers]
        for word, what in (("Running", "active"), ("Failed", "failed"), ("Succeeded", "succeeded")):
            if phases.count(word):
                counts["Worker"][what] = phases.count(word)
        evicted = sum(
            (one.get("status") or {}).get("reason") == "Evicted" and phase(one) == "Failed"
            for one in workers
        )
        if evicted:
            said = f"{evicted}/{len(workers)} workers are evicted"
            self._set(job, "Failed", "True", "MPIJobEvicted", said)
            self.cluster.event(job, "MPIJobEvicted", said)
        if suspended:
            said = f"MPIJob {key[0]}/{name} is suspended."
            self._set(job, "Running", "False", "MPIJobSuspended", said)
        elif running and phases.count("Running") == len(workers):
            said = f"MPIJob {key[0]}/{name} is running."
            self._set(job, "Running", "True", "MPIJobRunning", said)

    def _launcher_status(self, key: Key, job: Object) -> int:
        """What the launcher's Job says, written on the MPIJob; how many of its pods run."""
        status, name = job["status"], key[1]
        launcher = self.api.tables[JOBS.name].get((key[0], f"{name}-launcher"))
        counts = status["replicaStatuses"] = {"Worker": {}}
        if launcher is None:
            return 0
        done = launcher.thing.get("status") or {}
        pods = self.cluster.pods_of(launcher.thing)
        running = sum(phase(pod) == "Running" for pod in pods)
        counts["Launcher"] = {"failed": done["failed"]} if done.get("failed") else {}
        if is_true(done, "Complete"):
            counts["Launcher"]["succeeded"] = 1
            said = f"MPIJob {key[0]}/{name} successfully completed."
            status.setdefault("completionTime", done["completionTime"])
            self._set(job, "Succeeded", "True", "MPIJobSucceeded", said)
            self.cluster.event(job, "MPIJobSucceeded", said, kind="Normal")
        elif is_true(done, "Failed"):
            failed = condition(done, "Failed") or {}
            status.setdefault("completionTime", rfc3339(self.api.clock()))
            self._set(job, "Failed", "True", failed["reason"], failed["message"])
            self.cluster.event(job, failed["reason"], failed["message"])
        elif running:
            counts["Launcher"]["active"] = running
        return running

    # v1: the launcher is a pod.

    def _v1(self, key: Key, job: Object, status: Object) -> None:
        name, spec = key[1], job["spec"]
        policy = spec.get("runPolicy") or {}
        if not status.get("conditions"):
            said = f"MPIJob {key[0]}/{name} is created."
            self._set(job, "Created", "True", "MPIJobCreated", said)
        launcher_key = (key[0], f"{name}-launcher")
        if is_true(status, "Succeeded") or is_true(status, "Failed"):
            clean = policy.get("cleanPodPolicy") or spec.get("cleanPodPolicy") or "None"
            if clean in {"All", "Running"}:
                self._delete_workers(key, job)
            return
        if policy.get("suspend"):
            self._delete_workers(key, job)
            entry = self.api.tables["pods"].get(launcher_key)
            if entry is not None and "deletionTimestamp" not in entry.thing["metadata"]:
                self.api.remove(PODS, *launcher_key)
            said = f"MPIJob {name} is suspended."
            self._set(job, "Suspended", "True", "MPIJobSuspended", said)
            self._set(job, "Running", "False", "MPIJobSuspended", said)
            return
        if is_true(status, "Suspended"):
            said = f"MPIJob {name} is resumed."
            self._set(job, "Suspended", "False", "MPIJobResumed", said)
        status.setdefault("startTime", rfc3339(self.api.clock()))
        workers = self._workers(key, job, "kubeflow.org/v1")
        entry = self.api.tables["pods"].get(launcher_key)
        if entry is None:
            replica = spec["mpiReplicaSpecs"]["Launcher"]
            pod = self._worker(job, replica["template"], 0, "kubeflow.org/v1")
            pod["metadata"] |= {"name": launcher_key[1]}
            labels = pod["metadata"]["labels"] | _v1_labels(name, "launcher")
            del labels[f"{LABEL}/replica-index"]
            pod["metadata"]["labels"] = labels
            self._create(PODS, key[0], pod, job, "launcher")
            entry = self.api.tables["pods"][launcher_key]
        word = phase(entry.thing)
        phases = [phase(one) for one in workers]
        status["replicaStatuses"] = {
            "Launcher": {"active": 1} if word == "Running" else {},
            "Worker": {"active": phases.count("Running")} if "Running" in phases else {},
        }
        if word in {"Succeeded", "Failed"}:
            status["completionTime"] = rfc3339(self.api.clock())
            done = "successfully completed." if word == "Succeeded" else "has failed"
            self._set(job, word, "True", f"MPIJob{word}", f"MPIJob {key[0]}/{name} {done}")
        elif word == "Running" and phases.count("Running") == len(workers):
            said = f"MPIJob {key[0]}/{name} is running."
            self._set(job, "Running", "True", "MPIJobRunning", said)

    # v1alpha1: a StatefulSet, and a launcher once all workers are ready.

    def _v1alpha1(self, key: Key, job: Object, status: Object) -> None:
        name, spec = key[1], job["spec"]
        version = "kubeflow.org/v1alpha1"
        count = spec.get("replicas", 0)
        launcher = self.api.tables[JOBS.name].get((key[0], f"{name}-launcher"))
        done = launcher.thing.get("status") or {} if launcher else {}
        over = launcher is not None and _job_over(launcher.thing)
        if over and spec.get("cleanPodPolicy", "Running") in {"All", "Running"}:
            count = 0
        template = copied(spec["template"])
        meta = template.setdefault("metadata", {})
        labels = {"group_name": "kubeflow.org", "mpi_job_name": name, "mpi_role_type": "worker"}
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
        meta.pop("name", None)
        for container in template["spec"]["containers"]:
            container["command"] = ["sleep"]
            container["args"] = ["365d"]
        template["spec"]["restartPolicy"] = "Always"
        held = self.api.tables[SETS.name].get((key[0], f"{name}-worker"))
        if held is None:
            meta = {
                "name": f"{name}-worker",
                "namespace": key[0],
                "labels": labels,
                "ownerReferences": owner_of(job, version),
            }
            body = {
                "podManagementPolicy": "Parallel",
                "replicas": count,
                "selector": {"matchLabels": labels},
                "serviceName": f"{name}-worker",
                "template": template,
            }
            made = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": body}
            self._create(SETS, key[0], made, job, "worker")
        elif held.thing["spec"]["replicas"] != count:
            changed = copied(held.thing)
            changed["spec"]["replicas"] = count
            self.api.store(SETS, (key[0], f"{name}-worker"), changed)
        held = self.api.tables[SETS.name][key[0], f"{name}-worker"]
        ready = (held.thing.get("status") or {}).get("readyReplicas", 0)
        status["workerReplicas"] = ready
        if launcher is None and ready == count:
            template = copied(spec["template"])
            meta = template.setdefault("metadata", {})
            labels = {**labels, "mpi_role_type": "launcher"}
            meta["labels"] = {**(meta.get("labels") or {}), **labels}
            for container in template["spec"]["containers"]:
                container.pop("resources", None)
            made = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": f"{name}-launcher",
                    "namespace": key[0],
                    "labels": labels,
                    "ownerReferences": owner_of(job, version),
                },
                "spec": {"template": template, "backoffLimit": spec.get("backoffLimit", 6)},
            }
            self._create(JOBS, key[0], made, job, "launcher")
        elif done.get("active"):
            status["launcherStatus"] = "Active"
        elif over:
            status["launcherStatus"] = "Succeeded" if is_true(done, "Complete") else "Failed"


def _labels(name: str, role: str | None) -> dict[str, str]:
    found = {f"{LABEL}/operator-name": "mpi-operator", f"{LABEL}/job-name": name}
    return found if role is None else {**found, f"{LABEL}/job-role": role}


def _v1_labels(name: str, role: str) -> dict[str, str]:
    return {
        f"{LABEL}/operator-name": "mpijob-controller",
        f"{LABEL}/job-name": name,
        "mpi-job-name": name,
        f"{LABEL}/job-role": role,
    }


def _job_over(job: Object) -> bool:
    status = job.get("status") or {}
    return is_true(status, "Complete") or is_true(status, "Failed")
