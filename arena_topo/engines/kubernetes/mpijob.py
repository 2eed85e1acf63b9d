"""Every rule about a job: its pods and events, and its JobStatus in arena's words.

Pure. Two rules are in lower layers, which count GPUs in use: `clusters.queues` knows what suspends
a job, `clusters.rules` whether it has ended. The rules of the status are arena's
(pkg/training/trainer_mpi.go, pkg/apis/utils/pods.go) if the operator writes only `launcherStatus`,
else those of the conditions; the status of a pod is kubectl's (pkg/printers/internalversion:
printPod).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from arena_topo.clusters.queues import is_suspended, queuing
from arena_topo.clusters.rules import (
    EVICTED,
    OVER,
    gpu_count,
    job_over,
    launcher_command,
    worker_pod_template,
    worker_replicas,
)
from arena_topo.engines import DEADLINE, Event, Instance, JobStatus, Phase
from arena_topo.engines.kubernetes.shapes import (
    Condition,
    KubeObject,
    Terminated,
    kube_object,
)
from arena_topo.errors import InvalidJob, command
from arena_topo.manifests import GPU_GROUP, PlacementForecast
from arena_topo.manifests.annotations import (
    last_stop,
    recorded_placement,
    recorded_request,
    unknown_record,
    waits_since,
)
from arena_topo.manifests.cause import CauseCode
from arena_topo.manifests.versions import INDEX_LABEL, ApiVersion
from arena_topo.numbers import parse_count
from arena_topo.topology import natural_key, published
from arena_topo.words import portion

Object = Mapping[str, Any]

NOT_REVIVED = "NotRevived"
"""The reason of the controller's event about a gang that was lost, and that stays failed."""

REQUESTED_GPUS = "requestGPUsOfJobOwner"
"""Arena's annotation for workers x GPUs."""

_MOST_GPUS = 2**31 - 1
"""Replicas are an int32, and arena reads its annotation into an int; larger values are invalid."""

ROLE_LABELS = ("training.kubeflow.org/job-role", "mpi-job-role", "mpi_role_type")
_LAUNCHER_ROLES = frozenset({"launcher", "master"})

NO_PODS = "the MPI operator has not created its pods yet"

_STUCK = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
"""Reasons of a waiting container that need a person to fix them."""

MPIJOB_GROUP = "kubeflow.org"
PLURAL = "mpijobs"
"""The resource name of MPIJobs, in every version."""

ARENA_SELECTOR = "app=mpijob"
"""The label of all objects of arena's chart."""

_WORKLOADS = {"Job": "launcher", "StatefulSet": "worker"}
"""The workloads that operators create between an MPIJob and its pods: the suffix of the name by
kind."""

_MADE = {"Pod", *_WORKLOADS}
"""The kinds of objects that operators create for an MPIJob, and that have their own events."""


def pod_selectors(mpijob: Object, version: ApiVersion) -> tuple[str, ...]:
    """The label selectors of a job's pods, to be tried in this order.

    Other pods may have these labels as well: `is_pod_of` decides which are the job's.
    """
    name = mpijob["metadata"]["name"]
    if is_arenas(mpijob):
        return (f"release={name},{ARENA_SELECTOR}",)
    return tuple(f"{label}={name}" for label in version.traits.job_labels)


def is_arenas(mpijob: Object) -> bool:
    """Whether a job has the labels by which arena finds its pods."""
    labels = mpijob["metadata"].get("labels") or {}
    return labels.get("app") == "mpijob" and labels.get("release") == mpijob["metadata"]["name"]


def controller_of(thing: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner that controls an object (apimachinery, metav1.GetControllerOf), if any."""
    owners = thing["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller") is True), None)


def is_owned(thing: Mapping[str, Any], mpijob: Mapping[str, Any]) -> bool:
    """Whether an object is deleted together with a job."""
    uid = mpijob["metadata"]["uid"]
    return any(owner.get("uid") == uid for owner in thing["metadata"].get("ownerReferences") or ())


def is_namesakes(thing: Mapping[str, Any], mpijob: Mapping[str, Any]) -> bool:
    """Whether an object is owned by an earlier or later job of the same kind and name."""
    job = mpijob["metadata"]
    return any(
        owner.get("kind") == mpijob["kind"]
        and owner.get("name") == job["name"]
        and owner.get("uid") != job["uid"]
        for owner in thing["metadata"].get("ownerReferences") or ()
    )


def is_pod_of(
    pod: Mapping[str, Any],
    mpijob: Mapping[str, Any],
    controller_uid: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> bool:
    """Whether an MPIJob controls a pod, directly or through a workload of its operator.

    Labels and names prove nothing: anyone can write them. `controller_uid` returns the uid of a
    workload's controller for an owner reference to the workload. Without it a workload with the
    operators' name counts as the job's, unless the pod is older than the job.
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
    return _created(pod) >= _created(mpijob)


def events_filter(
    name: str, created: float, uids: Collection[str]
) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """A filter for a list: the events about a job of this name, and about objects made for it.

    `uids` are those of the job and of its pods, as far as they are known. Events of deleted objects
    match by the name and kind of what operators create, if they are not older than the job, which
    was `created` at that time (Unix seconds).
    """
    made = re.compile(rf"{re.escape(name)}-(worker|launcher|mpijob-launcher)(-\w+)*")

    def keep(event: dict[str, Any]) -> dict[str, Any] | None:
        about = object_of_event(event)
        mine = about.get("uid") in uids or (
            about.get("kind") in _MADE
            and event_time(event) >= created
            and made.fullmatch(str(about.get("name"))) is not None
        )
        return event if mine else None

    return keep


def is_about_pod(event: Object, pod: Object) -> bool:
    """Whether an event is about this pod, and not about an earlier one of its name."""
    about, meta = object_of_event(event), pod["metadata"]
    if about.get("kind") != "Pod" or about.get("name") != meta["name"]:
        return False
    return not about.get("uid") or not meta.get("uid") or about["uid"] == meta["uid"]


def object_of_event(event: Object) -> Object:
    """The kind, name and uid of an event's object."""
    return event.get("involvedObject") or {}


def event_of(event: Object) -> Event:
    """An event in the form that is shown."""
    fields = kube_object(event)
    return Event(
        source=f"{fields.involved_object.kind.lower()}/{fields.involved_object.name}",
        kind=fields.type or "Normal",
        when=event_time(event),
        reason=fields.reason,
        message=fields.message,
    )


_EVENT_LIMIT = 1024
"""The most characters of an event's message (kubernetes, pkg/apis/core/validation/events.go)."""


def report_of(
    mpijob: Object, *, name: str, at: str, source: str, reason: str, message: str
) -> dict[str, Any]:
    """An event about what a program (`source`) did to a job, at a time (RFC 3339)."""
    meta = mpijob["metadata"]
    about = {key: meta[key] for key in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": meta["namespace"]},
        "involvedObject": {"apiVersion": mpijob["apiVersion"], "kind": mpijob["kind"], **about},
        # Warnings of a job are read as its present trouble, which this is not.
        "type": "Normal",
        "reason": reason,
        "message": message[:_EVENT_LIMIT],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": source},
        "reportingComponent": source,
    }


def job_status(mpijob: Object, pods: Iterable[Object]) -> JobStatus:
    """The status of one job from its MPIJob and its pods."""
    job = kube_object(mpijob)
    counted = sorted(map(_counted, pods), key=_rank)
    mine = [pod for pod, _ in counted]
    chief = _chief(mine)
    phase = _phase(mpijob, job, mine, chief)
    forecast = _forecast(mpijob, phase)
    instances = tuple(_instance(pod, gpus, chief=pod is chief) for pod, gpus in counted)
    spec = worker_pod_template(mpijob).get("spec") or {}
    meta = job.metadata
    code = _exit_code(chief)
    if phase is Phase.SUCCEEDED and code is None:
        code = 0
    finished, replicas = seconds(job.status.completion_time), worker_replicas(mpijob)
    if phase.over and finished is None:
        finished = _finish(chief) or _changed(job, phase)
    return JobStatus(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        phase=phase,
        created=_creation(meta.creation_timestamp),
        finished=finished if phase.over else None,
        instances=instances,
        priority=spec.get("priorityClassName") or "N/A",
        replicas=max(0, replicas) if isinstance(replicas, int) else 0,
        request_gpus=_requested(mpijob, meta.annotations, instances, spec),
        allocated_gpus=sum(instance.gpus for instance in instances if instance.holds_gpus),
        forecast=forecast,
        reason=_reason(mpijob, job, phase, mine, chief),
        exit_code=code if phase.over else None,
        model_name=meta.labels.get("modelName", ""),
        model_version=meta.labels.get("modelVersion", ""),
        model_source=meta.annotations.get("modelSource", ""),
        command=launcher_command(mpijob),
        last_stop=last_stop(mpijob),
        until=_until(mpijob, phase, forecast),
        training=_training(mpijob),
    )


def _training(mpijob: Object) -> Mapping[str, Any] | None:
    """What the request of a job says of its training."""
    request = recorded_request(mpijob)
    if not request.get("workload") and not request.get("gradientBytes"):
        return None
    from arena_topo.manifests.requests import training_request  # noqa: PLC0415  few jobs have one

    return training_request(request)


def _until(mpijob: Object, phase: Phase, forecast: PlacementForecast | None) -> float | None:
    """When the patience of a job ends (Unix seconds), if that is why it waits; else None."""
    cause = None if forecast is None else forecast.cause
    if phase is not Phase.PENDING or cause is None or cause.code != CauseCode.PATIENCE:
        return None
    from arena_topo.manifests.recorded_job import job_of  # noqa: PLC0415  patient jobs alone

    with contextlib.suppress(InvalidJob):
        return waits_since(mpijob) + job_of(dict(mpijob)).patience
    return None


def _counted(pod: Object) -> tuple[KubeObject, int]:
    """The fields of a pod, and the GPUs that it holds."""
    return kube_object(pod), _gpus(pod.get("spec"))


def _gpus(spec: Object | None) -> int:
    """The GPUs that a pod of this spec holds; 0 for invalid quantities."""
    try:
        return gpu_count(spec or {})
    except (TypeError, ValueError):
        return 0


def _instance(pod: KubeObject, gpus: int, *, chief: bool) -> Instance:
    meta, status = pod.metadata, pod.status
    launcher, over = _has_launcher_role(meta.labels), status.phase in OVER
    lives = (
        container.state.running or container.state.terminated
        for container in status.container_statuses
    )
    starts = [at for life in lives if life and (at := seconds(life.started_at)) is not None]
    return Instance(
        name=meta.name,
        status=_status_text(pod),
        created=_creation(meta.creation_timestamp),
        started=min(starts, default=None),
        finished=_finish(pod) if over else None,
        pending=status.phase == "Pending",
        chief=chief,
        worker=None if launcher else _worker_number(meta.name, meta.labels),
        gpus=gpus,
        node=pod.spec.node_name or None,
        node_ip=status.host_ip or None,
        ip=status.pod_ip,
        holds_gpus=gpus > 0 and bool(pod.spec.node_name) and not over,
        uid=meta.uid,
        devices=_devices(meta.annotations),
        failure=_failed(pod) if status.phase == "Failed" else None,
        launcher=launcher,
    )


def _failed(pod: KubeObject) -> str:
    """How a failed pod ended: `was evicted: ...`, `ended with exit code 7`."""
    reason, message = pod.status.reason, pod.status.message.strip()
    if reason:
        how = "was evicted" if reason == "Evicted" else f"failed ({reason})"
        return f"{how}: {message}" if message else how
    code = _exit_code(pod)
    return "failed" if not code else f"ended with exit code {code}{_named(pod)}"


def _named(pod: KubeObject) -> str:
    """Why a pod's container ended badly, in brackets, unless the reason is just an error."""
    reason = next((end.reason for end in _ends(pod) if end.exit_code), "")
    return f" ({reason})" if reason not in {"", "Error"} else ""


def _forecast(mpijob: Object, phase: Phase) -> PlacementForecast | None:
    """The recorded placement, without the note that another queue has not started the job yet.

    The note remains only while the job is QUEUING. A finished job has only its last placement, if
    any.
    """
    forecast = recorded_placement(dict(mpijob))
    if forecast is not None and phase.over and not forecast.workers:
        return None
    if forecast is None or phase is Phase.QUEUING:
        return forecast
    handed_over = forecast.cause is not None and forecast.cause.code == CauseCode.OTHER_QUEUE
    return msgspec.structs.replace(forecast, cause=None) if handed_over else forecast


def _devices(annotations: Mapping[str, str]) -> tuple[int, ...] | None:
    """The GPUs in a pod's annotation; None unless it has the form that arena-topo writes."""
    text = annotations.get(GPU_GROUP, "")
    if re.fullmatch(r"\d{1,3}(,\d{1,3})*", text) is None:
        return None
    return tuple(int(index) for index in text.split(","))


def is_launcher(pod: Object) -> bool:
    """Whether the operator marked the pod as the job's launcher, by the labels of any version."""
    return _has_launcher_role(pod["metadata"].get("labels") or {})


def _has_launcher_role(labels: Mapping[str, str]) -> bool:
    return not _LAUNCHER_ROLES.isdisjoint(map(labels.get, ROLE_LABELS))


def worker_index(pod: Object) -> int | None:
    """The worker's number: that in its name, which no operator shifts, else that in its label."""
    return _worker_number(pod["metadata"]["name"], pod["metadata"].get("labels") or {})


def _worker_number(name: str, labels: Mapping[str, str]) -> int | None:
    match = re.search(r"-worker-([0-9]{1,10})$", name)
    return parse_count(match[1] if match else labels.get(INDEX_LABEL))


def pinned_nodes(pod: Object) -> tuple[str, ...]:
    """The nodes that a pod's affinity names as the only ones; empty if it names none."""
    required = kube_object(pod).spec.affinity.node_affinity.required
    fields = (field for term in required.node_selector_terms for field in term.match_fields)
    names = (name for field in fields if field.key == "metadata.name" for name in field.values)
    return tuple(dict.fromkeys(names))


def job_of_pod(name: str) -> str:
    """The job of a pod with this name, by the operators' scheme of names."""
    return re.sub(r"-(worker-\d+|launcher(-\w+)?)$", "", name)


def _rank(counted: tuple[KubeObject, int]) -> tuple[bool, object]:
    meta = counted[0].metadata
    return not _has_launcher_role(meta.labels), natural_key(meta.name)


def _chief(pods: Iterable[KubeObject]) -> KubeObject | None:
    """The newest launcher that has left Pending, else the newest one (arena's rule)."""
    return max(
        (pod for pod in pods if _has_launcher_role(pod.metadata.labels)),
        key=lambda pod: (
            pod.status.phase != "Pending",
            _creation(pod.metadata.creation_timestamp),
            pod.metadata.name,
        ),
        default=None,
    )


def condition(thing: Object, kind: str) -> str | None:
    """The status of a condition, `True`, `False` or `Unknown`; None without the condition."""
    entry = condition_of(thing, kind)
    return None if entry is None else str(entry.get("status"))


def condition_of(thing: Object, kind: str) -> Object | None:
    """A condition of any object; None without a condition of this type."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry.get("type") == kind), None)


def _condition(obj: KubeObject, kind: str) -> Condition:
    """A condition of an object; an empty one without a condition of this type."""
    conditions = (entry for entry in obj.status.conditions if entry.type == kind)
    return next(conditions, Condition())


def _phase(
    mpijob: Object, job: KubeObject, pods: list[KubeObject], chief: KubeObject | None
) -> Phase:
    if job_over(mpijob):
        ends = job.status.launcher_status, _condition(job, "Succeeded").status
        return Phase.SUCCEEDED if ends[0] == "Succeeded" or ends[1] == "True" else Phase.FAILED
    if queuing(mpijob, pods=bool(pods)) is not None:
        return Phase.QUEUING
    if is_suspended(mpijob):
        return _suspension(mpijob)
    if chief is None or any(pod.status.phase == "Pending" for pod in pods):
        return Phase.PENDING
    return Phase.RUNNING


def _suspension(mpijob: Object) -> Phase:
    """The phase of a job that arena-topo suspends: it waits for GPUs, or for `resume`."""
    forecast = recorded_placement(dict(mpijob))
    by_user = forecast is None or forecast.state == "held"
    return Phase.SUSPENDED if by_user else Phase.PENDING


def _requested(
    mpijob: Object,
    annotations: Mapping[str, str],
    instances: tuple[Instance, ...],
    spec: Object,
) -> int:
    if 0 < (annotated := parse_count(annotations.get(REQUESTED_GPUS)) or 0) <= _MOST_GPUS:
        return annotated
    if requested := sum(instance.gpus for instance in instances):
        return requested
    replicas = worker_replicas(mpijob)
    return replicas * _gpus(spec) if isinstance(replicas, int) else 0


def _reason(
    mpijob: Object,
    job: KubeObject,
    phase: Phase,
    pods: list[KubeObject],
    chief: KubeObject | None,
) -> str | None:
    """Why the job waits or failed, in a sentence; None in other phases."""
    match phase:
        case Phase.FAILED:
            return _failure(job, chief)
        case Phase.QUEUING:
            return "a queue decides when it starts"
        case Phase.SUSPENDED:
            again = command("resume", job.metadata.name, namespace=job.metadata.namespace)
            return f"`{again}` starts it"
        case Phase.PENDING:
            return _wait(mpijob, pods, chief)
        case _:
            return None


def _wait(mpijob: Object, pods: list[KubeObject], chief: KubeObject | None) -> str | None:
    if is_suspended(mpijob):
        forecast = recorded_placement(dict(mpijob))
        return (forecast.reason if forecast else None) or unknown_record(mpijob)
    waits = [why for pod in pods if (why := _waits(pod))]
    if waits:
        return waits[0] if len(waits) == 1 else f"{waits[0]} ({len(waits)} pods wait)"
    if not pods:
        return NO_PODS
    if chief is None:
        return "the launcher has not been created yet"
    starting = sum(pod.status.phase == "Pending" for pod in pods)
    return portion(starting, len(pods), "pod", noun="is starting", many="are starting")


def _failure(job: KubeObject, chief: KubeObject | None) -> str:
    """Why a job failed: the end of its launcher, else the words of the operator."""
    pod, code = chief or KubeObject(), _exit_code(chief)
    if pod.status.phase == "Failed" and pod.status.reason:
        how = f"the launcher {_failed(pod)}"
        return f"{how.rstrip('.')} (exit code {code})" if code else how
    if chief is not None and code:
        return f"the launcher ended with exit code {code}{_named(chief)}"
    failed = _condition(job, "Failed")
    words = failed if failed.status == "True" else pod.status
    return words.message or words.reason or "the operator says that it failed"


def _waits(pod: KubeObject) -> str | None:
    """Why a pod does not start, or was removed, if it has a reason."""
    status, name = pod.status, pod.metadata.name
    if status.phase == "Failed" and status.reason:
        text = status.message.strip()
        return f"{name}: {status.reason}" + (f": {text}" if text else "")
    if status.phase != "Pending":
        return None
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting.reason in _STUCK:
            return f"{name}: {waiting.reason}" + (f": {waiting.message}" if waiting.message else "")
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.status != "False":
        return None
    if scheduled.reason == "SchedulingGated":
        return f"{name} waits at its gate to be given a node"
    return f"{name}: {scheduled.message or scheduled.reason}"


def pod_status(pod: Object) -> str:
    """The text of kubectl's STATUS column."""
    return _status_text(kube_object(pod))


def _status_text(pod: KubeObject) -> str:
    status = pod.status
    text = status.reason or status.phase or "Unknown"
    if _condition(pod, "PodScheduled").reason == "SchedulingGated":
        text = "SchedulingGated"
    initializing = _init_status(pod)
    if initializing is None or _condition(pod, "Initialized").status == "True":
        text = _main_status(pod, text)
    else:
        text = initializing
    if pod.metadata.deletion_timestamp:
        if status.reason == "NodeLost":
            return "Unknown"
        if status.phase not in OVER:
            return "Terminating"
    return text


def _init_status(pod: KubeObject) -> str | None:
    """The status while init containers run; None after that."""
    declared = pod.spec.init_containers
    sidecars = {container.name for container in declared if container.restart_policy == "Always"}
    for index, container in enumerate(pod.status.init_container_statuses):
        ended, waiting = container.state.terminated, container.state.waiting
        if ended and ended.exit_code == 0:
            continue
        if container.name in sidecars and container.started:
            continue
        if ended:
            return "Init:" + (ended.reason or _end(ended))
        if waiting.reason not in {"", "PodInitializing"}:
            return f"Init:{waiting.reason}"
        return f"Init:{index}/{len(declared)}"
    return None


def _main_status(pod: KubeObject, text: str) -> str:
    running = False
    for container in reversed(pod.status.container_statuses):
        state = container.state
        if state.waiting.reason:
            text = state.waiting.reason
        elif state.terminated:
            text = state.terminated.reason or _end(state.terminated)
        elif container.ready and state.running is not None:
            running = True
    if text == "Completed" and running:
        return "Running" if _condition(pod, "Ready").status == "True" else "NotReady"
    return text


def _end(terminated: Terminated) -> str:
    if terminated.signal:
        return f"Signal:{terminated.signal}"
    return f"ExitCode:{terminated.exit_code or 0}"


def _exit_code(pod: KubeObject | None) -> int | None:
    """The exit code of a pod's main container: the first one's, or the first that is not 0."""
    codes = [end.exit_code for end in _ends(pod) if end.exit_code is not None] if pod else []
    return next((code for code in codes if code), codes[0] if codes else None)


def _ends(pod: KubeObject) -> list[Terminated]:
    """The ends of a pod's main containers."""
    states = (container.state for container in pod.status.container_statuses)
    return [state.terminated for state in states if state.terminated]


def _finish(pod: KubeObject | None) -> float | None:
    ends = [seconds(end.finished_at) for end in _ends(pod)] if pod else []
    return max((at for at in ends if at is not None), default=None)


def _changed(job: KubeObject, phase: Phase) -> float | None:
    return seconds(_condition(job, phase.value.capitalize()).last_transition_time)


def started(mpijob: Object) -> float | None:
    """The time of a job's last resumption, by its conditions, else of its start.

    Unix seconds; None if the operator has written neither.
    """
    job = kube_object(mpijob)
    resumed = _condition(job, "Suspended")
    return seconds(
        resumed.last_transition_time if resumed.status == "False" else job.status.start_time
    )


def failed_at(mpijob: Object) -> float | None:
    """When a job failed for good because its launcher did (Unix seconds); None for any other.

    Not a job whose time was over. mpi-operator adds the reason of the launcher's last pod after a
    slash (pkg/controller/mpi_job_controller.go: updateMPIJobFailedStatus), and a worker's eviction
    may be its last word (updateMPIJobStatus).
    """
    job = kube_object(mpijob)
    failure = _condition(job, "Failed")
    final = failure.reason.partition("/")[0] in {"BackoffLimitExceeded", EVICTED}
    return seconds(job.status.completion_time) if failure.status == "True" and final else None


def counts_failure(launcher: Object) -> bool:
    """Whether the Job of a launcher has failed, or counts a failed pod now or in its next status.

    A Job also counts the pods that were deleted by others while it was suspended (kubernetes,
    pkg/controller/job: trackJobStatusAndRemoveFinalizers).
    """
    status = launcher.get("status") or {}
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("failed")
    return condition(launcher, "Failed") == "True" or bool(status.get("failed") or uncounted)


def launcher_stopped(launcher: Object) -> bool:
    """Whether the Job of a launcher runs no pod, as it has failed or is suspended."""
    spec = launcher.get("spec") or {}
    return spec.get("suspend") is True or condition(launcher, "Failed") == "True"


def reports_running(mpijob: Object) -> bool:
    """Whether the operator reports that a job runs; each version has its own words for that."""
    job = kube_object(mpijob)
    reported = _condition(job, "Running").status == "True" or job.status.launcher_status == "Active"
    return reported or job.status.replica_statuses.worker.active > 0


def overran(mpijob: Object) -> bool:
    """Whether the job was ended because it exceeded its time limit."""
    failed = _condition(kube_object(mpijob), "Failed")
    sentence = f"{failed.reason} {failed.message}"
    return failed.status == "True" and (
        DEADLINE in sentence or "longer than specified deadline" in sentence
    )


def ignored(mpijob: Object) -> bool:
    """Whether no operator has written a status on the job since it was created or resumed."""
    job = kube_object(mpijob)
    if _condition(job, "Suspended").status == "True":
        return True
    return not job.status.conditions and not job.status.launcher_status


def last_changed(mpijob: Object) -> float:
    """The time of the last change of a job, its status apart (Unix seconds)."""
    meta = mpijob["metadata"]
    times = [seconds(meta.get("creationTimestamp"))]
    times += [
        seconds(entry.get("time"))
        for entry in meta.get("managedFields") or ()
        if entry.get("subresource") != "status"
    ]
    return max((at for at in times if at is not None), default=0.0)


def _created(thing: Object) -> float:
    return _creation(thing["metadata"].get("creationTimestamp"))


def _creation(timestamp: object) -> float:
    return seconds(timestamp) or 0.0


seconds = published.parse_time


def event_time(event: Object) -> float:
    """The time at which an event was last seen, Unix seconds; 0 if unknown."""
    series = event.get("series") or {}
    for text in (
        event.get("lastTimestamp"),
        series.get("lastObservedTime"),
        event.get("eventTime"),
        (event.get("metadata") or {}).get("creationTimestamp"),
    ):
        if (at := seconds(text)) is not None:
            return at
    return 0.0
