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
    gpu_count,
    job_over,
    launcher_command,
    pod_over,
    worker_pod_template,
)
from arena_topo.engines import DEADLINE, Event, Instance, JobStatus, Phase
from arena_topo.errors import InvalidJob, command
from arena_topo.manifests import GPU_GROUP, PlacementForecast
from arena_topo.manifests.annotations import (
    last_stop,
    recorded_placement,
    recorded_request,
    unknown_record,
)
from arena_topo.manifests.cause import CauseCode
from arena_topo.manifests.versions import INDEX_LABEL, ApiVersion
from arena_topo.numbers import parse_count
from arena_topo.topology import natural, published
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

    Other pods may have these labels as well: `belongs` decides which are the job's.
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


def belongs(
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
        about = subject(event)
        mine = about.get("uid") in uids or (
            about.get("kind") in _MADE
            and when(event) >= created
            and made.fullmatch(str(about.get("name"))) is not None
        )
        return event if mine else None

    return keep


def is_about_pod(event: Object, pod: Object) -> bool:
    """Whether an event is about this pod, and not about an earlier one of its name."""
    about, meta = subject(event), pod["metadata"]
    if about.get("kind") != "Pod" or about.get("name") != meta["name"]:
        return False
    return not about.get("uid") or not meta.get("uid") or about["uid"] == meta["uid"]


def subject(event: Object) -> Object:
    """The kind, name and uid of an event's object."""
    return event.get("involvedObject") or {}


def event_of(event: Object) -> Event:
    """An event in the form that is shown."""
    about = subject(event)
    return Event(
        source=f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        kind=str(event.get("type") or "Normal"),
        when=when(event),
        reason=str(event.get("reason") or ""),
        message=str(event.get("message") or ""),
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


def job_status(mpijob: Object, pods: Iterable[Object], *, tensorboard: str = "") -> JobStatus:
    """The status of one job from its MPIJob and its pods."""
    meta, status = mpijob["metadata"], mpijob.get("status") or {}
    mine = sorted(pods, key=_rank)
    chief = _chief(mine)
    phase = _phase(mpijob, mine, chief)
    instances = tuple(instance_of_pod(pod, chief=pod is chief) for pod in mine)
    spec = worker_pod_template(mpijob).get("spec") or {}
    annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    code = pod_exit_code(chief)
    if phase is Phase.SUCCEEDED and code is None:
        code = 0
    finished = seconds(status.get("completionTime"))
    if phase.over and finished is None:
        finished = _finish(chief) or _changed(status, phase)
    return JobStatus(
        uid=meta.get("uid", ""),
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        phase=phase,
        created=_created(mpijob),
        finished=finished if phase.over else None,
        instances=instances,
        priority=spec.get("priorityClassName") or "N/A",
        request_gpus=_requested(mpijob, annotations, instances, spec),
        allocated_gpus=sum(instance.gpus for instance in instances if instance.holds_gpus),
        forecast=_forecast(mpijob, phase),
        reason=_reason(mpijob, phase, mine, chief, code),
        exit_code=code if phase.over else None,
        tensorboard=tensorboard,
        model_name=labels.get("modelName", ""),
        model_version=labels.get("modelVersion", ""),
        model_source=annotations.get("modelSource", ""),
        command=launcher_command(mpijob),
        last_stop=last_stop(mpijob),
        until=_until(mpijob, phase),
        training=_training(mpijob),
    )


def _training(mpijob: Object) -> Mapping[str, Any] | None:
    """What the request of a job says of its training."""
    request = recorded_request(mpijob)
    if not request.get("workload") and not request.get("gradientBytes"):
        return None
    from arena_topo.manifests.requests import training_request  # noqa: PLC0415  few jobs have one

    return training_request(request)


def _until(mpijob: Object, phase: Phase) -> float | None:
    """When the patience of a job ends (Unix seconds), if that is why it waits; else None."""
    forecast = _forecast(mpijob, phase)
    cause = None if forecast is None else forecast.cause
    if phase is not Phase.PENDING or cause is None or cause.code != CauseCode.PATIENCE:
        return None
    from arena_topo.manifests.requests import job_of, patience_end  # noqa: PLC0415  patient jobs alone

    with contextlib.suppress(InvalidJob):
        return patience_end(dict(mpijob), job_of(dict(mpijob)).patience)
    return None


def instance_of_pod(pod: Object, *, chief: bool) -> Instance:
    """One pod as a row of `get`."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase", "Unknown")
    over, launcher = pod_over(pod), is_launcher(pod)
    try:
        gpus = gpu_count(spec)
    except (TypeError, ValueError):
        gpus = 0
    lives = [state.get("running") or state.get("terminated") or {} for state in _states(pod)]
    starts = [at for life in lives if (at := seconds(life.get("startedAt"))) is not None]
    return Instance(
        name=meta["name"],
        status=pod_status(pod),
        created=_created(pod),
        started=min(starts, default=None),
        finished=_finish(pod) if over else None,
        pending=phase == "Pending",
        chief=chief,
        worker=None if launcher else worker_index(pod),
        gpus=gpus,
        node=spec.get("nodeName"),
        node_ip=status.get("hostIP"),
        ip=status.get("podIP") or "",
        holds_gpus=gpus > 0 and bool(spec.get("nodeName")) and not over,
        uid=meta.get("uid", ""),
        devices=_devices(meta),
        failure=_failed(pod) if phase == "Failed" else None,
        launcher=launcher,
    )


def _failed(pod: Object) -> str:
    """How a failed pod ended: `was evicted: ...`, `ended with exit code 7`."""
    status = pod.get("status") or {}
    reason, message = status.get("reason"), str(status.get("message") or "").strip()
    if reason:
        how = "was evicted" if reason == "Evicted" else f"failed ({reason})"
        return f"{how}: {message}" if message else how
    code = pod_exit_code(pod)
    return "failed" if not code else f"ended with exit code {code}{_named(pod)}"


def _named(pod: Object) -> str:
    """Why a pod's container ended badly, in brackets, unless the reason is just an error."""
    ended = next((end for end in _ends(pod) if end.get("exitCode")), {})
    named = ended.get("reason")
    return f" ({named})" if named not in {None, "", "Error"} else ""


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


def _devices(meta: Object) -> tuple[int, ...] | None:
    """The GPUs in a pod's annotation; None unless it has the form that arena-topo writes."""
    text = str((meta.get("annotations") or {}).get(GPU_GROUP, ""))
    if re.fullmatch(r"\d{1,3}(,\d{1,3})*", text) is None:
        return None
    return tuple(int(index) for index in text.split(","))


def is_launcher(pod: Object) -> bool:
    """Whether the operator marked the pod as the job's launcher, by the labels of any version."""
    labels = pod["metadata"].get("labels") or {}
    return not _LAUNCHER_ROLES.isdisjoint(map(labels.get, ROLE_LABELS))


def worker_index(pod: Object) -> int | None:
    """The worker's number: that in its name, which no operator shifts, else that in its label."""
    match = re.search(r"-worker-([0-9]{1,10})$", pod["metadata"]["name"])
    return parse_count(
        match[1] if match else (pod["metadata"].get("labels") or {}).get(INDEX_LABEL)
    )


def pinned_nodes(pod: Object) -> tuple[str, ...]:
    """The nodes that a pod's affinity names as the only ones; empty if it names none."""
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    names = [
        str(value)
        for term in required.get("nodeSelectorTerms") or ()
        for field in term.get("matchFields") or ()
        if field.get("key") == "metadata.name"
        for value in field.get("values") or ()
    ]
    return tuple(dict.fromkeys(names))


def job_of_pod(name: str) -> str:
    """The job of a pod with this name, by the operators' scheme of names."""
    return re.sub(r"-(worker-\d+|launcher(-\w+)?)$", "", name)


def _rank(pod: Object) -> tuple[bool, object]:
    return not is_launcher(pod), natural(pod["metadata"]["name"])


def _chief(pods: Iterable[Object]) -> Object | None:
    """The newest launcher that has left Pending, else the newest one (arena's rule)."""
    launchers = [pod for pod in pods if is_launcher(pod)]
    return max(
        launchers,
        key=lambda pod: (
            (pod.get("status") or {}).get("phase") != "Pending",
            _created(pod),
            pod["metadata"]["name"],
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


def _phase(mpijob: Object, pods: list[Object], chief: Object | None) -> Phase:
    if job_over(mpijob):
        launcher_status = (mpijob.get("status") or {}).get("launcherStatus")
        well = launcher_status == "Succeeded" or condition(mpijob, "Succeeded") == "True"
        return Phase.SUCCEEDED if well else Phase.FAILED
    if queuing(mpijob, pods=bool(pods)) is not None:
        return Phase.QUEUING
    if is_suspended(mpijob):
        return _suspension(mpijob)
    phases = [(pod.get("status") or {}).get("phase") for pod in pods]
    if chief is None or "Pending" in phases:
        return Phase.PENDING
    return Phase.RUNNING


def _suspension(mpijob: Object) -> Phase:
    """The phase of a job that arena-topo suspends: it waits for GPUs, or for `resume`."""
    forecast = recorded_placement(dict(mpijob))
    held = forecast is None or forecast.state == "held"
    return Phase.SUSPENDED if held else Phase.PENDING


def _requested(
    mpijob: Object, annotations: Object, instances: tuple[Instance, ...], spec: Object
) -> int:
    if 0 < (asked := parse_count(annotations.get(REQUESTED_GPUS)) or 0) <= _MOST_GPUS:
        return asked
    if seen := sum(instance.gpus for instance in instances):
        return seen
    described = mpijob.get("spec") or {}
    worker = (described.get("mpiReplicaSpecs") or {}).get("Worker") or described
    replicas = worker.get("replicas")
    try:
        return int(replicas or 0) * gpu_count(spec)
    except (TypeError, ValueError):
        return 0


def _reason(
    mpijob: Object, phase: Phase, pods: list[Object], chief: Object | None, code: int | None
) -> str | None:
    """Why the job waits or failed, in a sentence; None in other phases."""
    match phase:
        case Phase.FAILED:
            return _failure(mpijob, chief, code)
        case Phase.QUEUING:
            return "a queue decides when it starts"
        case Phase.SUSPENDED:
            meta = mpijob["metadata"]
            again = command("resume", meta["name"], namespace=meta["namespace"])
            return f"`{again}` starts it"
        case Phase.PENDING:
            return _wait(mpijob, pods, chief)
        case _:
            return None


def _wait(mpijob: Object, pods: list[Object], chief: Object | None) -> str | None:
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
    starting = sum((pod.get("status") or {}).get("phase") == "Pending" for pod in pods)
    return portion(starting, len(pods), "pod", noun="is starting", many="are starting")


def _failure(mpijob: Object, chief: Object | None, code: int | None) -> str:
    """Why a job failed: the end of its launcher, else the words of the operator."""
    gone = (chief or {}).get("status") or {}
    if chief is not None and gone.get("phase") == "Failed" and gone.get("reason"):
        how = f"the launcher {_failed(chief)}"
        return f"{how.rstrip('.')} (exit code {code})" if code else how
    if chief is not None and code:
        return f"the launcher ended with exit code {code}{_named(chief)}"
    failed = condition_of(mpijob, "Failed") or {}
    if failed.get("status") == "True":
        words = (failed.get("message"), failed.get("reason"))
        return next((str(word) for word in words if word), "the operator says that it failed")
    return str(gone.get("message") or gone.get("reason") or "the operator says that it failed")


def _waits(pod: Object) -> str | None:
    """Why a pod does not start, or was removed, if it has a reason."""
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    if status.get("phase") == "Failed" and status.get("reason"):
        text = str(status.get("message") or "").strip()
        return f"{name}: {status['reason']}" + (f": {text}" if text else "")
    if status.get("phase") != "Pending":
        return None
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _STUCK:
                message = waiting.get("message")
                return f"{name}: {waiting['reason']}" + (f": {message}" if message else "")
    scheduled = condition_of(pod, "PodScheduled") or {}
    if scheduled.get("status") != "False":
        return None
    if scheduled.get("reason") == "SchedulingGated":
        return f"{name} waits at its gate to be given a node"
    return f"{name}: {scheduled.get('message') or scheduled.get('reason')}"


def pod_status(pod: Object) -> str:
    """The text of kubectl's STATUS column."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase", "Unknown")
    text = status.get("reason") or phase
    if (condition_of(pod, "PodScheduled") or {}).get("reason") == "SchedulingGated":
        text = "SchedulingGated"
    initializing = _init_status(spec, status)
    if initializing is None or condition(pod, "Initialized") == "True":
        text = _main_status(pod, status, text)
    else:
        text = initializing
    if meta.get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if not pod_over(pod):
            return "Terminating"
    return text


def _init_status(spec: Object, status: Object) -> str | None:
    """The status while init containers run; None after that."""
    declared = spec.get("initContainers") or []
    sidecars = {
        container.get("name")
        for container in declared
        if container.get("restartPolicy") == "Always"
    }
    for index, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if ended and ended.get("exitCode") == 0:
            continue
        if container.get("name") in sidecars and container.get("started"):
            continue
        if ended:
            return "Init:" + (ended.get("reason") or _end(ended))
        if waiting.get("reason") not in {None, "", "PodInitializing"}:
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(declared)}"
    return None


def _main_status(pod: Object, status: Object, text: str) -> str:
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            text = waiting["reason"]
        elif ended:
            text = ended.get("reason") or _end(ended)
        elif container.get("ready") and state.get("running") is not None:
            running = True
    if text == "Completed" and running:
        return "Running" if condition(pod, "Ready") == "True" else "NotReady"
    return text


def _end(terminated: Object) -> str:
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def pod_exit_code(pod: Object | None) -> int | None:
    """The exit code of a pod's main container: the first one's, or the first that is not 0."""
    if pod is None:
        return None
    codes = [end["exitCode"] for end in _ends(pod) if isinstance(end.get("exitCode"), int)]
    return next((code for code in codes if code), codes[0] if codes else None)


def _ends(pod: Object) -> list[Object]:
    """The terminated states of a pod's main containers."""
    return [ended for state in _states(pod) if (ended := state.get("terminated"))]


def _states(pod: Object) -> list[Object]:
    """The states of the main containers of a pod."""
    listed = (pod.get("status") or {}).get("containerStatuses") or ()
    return [listed_job.get("state") or {} for listed_job in listed]


def _finish(pod: Object | None) -> float | None:
    if pod is None:
        return None
    ends = [at for end in _ends(pod) if (at := seconds(end.get("finishedAt"))) is not None]
    return max(ends, default=None)


def _changed(status: Object, phase: Phase) -> float | None:
    condition = condition_of({"status": status}, phase.value.capitalize()) or {}
    return seconds(condition.get("lastTransitionTime"))


def started(mpijob: Object) -> float | None:
    """The time of a job's last resumption, by its conditions, else of its start.

    Unix seconds; None if the operator has written neither.
    """
    resumed = condition_of(mpijob, "Suspended") or {}
    if resumed.get("status") == "False":
        return seconds(resumed.get("lastTransitionTime"))
    return seconds((mpijob.get("status") or {}).get("startTime"))


def failed_at(mpijob: Object) -> float | None:
    """When a job failed for good because its launcher did (Unix seconds); None for any other.

    Not a job whose time was over. mpi-operator adds the reason of the launcher's last pod after a
    slash (pkg/controller/mpi_job_controller.go: updateMPIJobFailedStatus), and a worker's eviction
    may be its last word (updateMPIJobStatus).
    """
    failure = condition_of(mpijob, "Failed") or {}
    reason = str(failure.get("reason") or "").partition("/")[0]
    if failure.get("status") != "True" or reason not in {"BackoffLimitExceeded", EVICTED}:
        return None
    return seconds((mpijob.get("status") or {}).get("completionTime"))


def counts_failure(launcher: Object) -> bool:
    """Whether the Job of a launcher has failed, or counts a failed pod now or in its next status.

    A Job also counts the pods that were deleted by others while it was suspended (kubernetes,
    pkg/controller/job: trackJobStatusAndRemoveFinalizers).
    """
    status = launcher.get("status") or {}
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("failed")
    return condition(launcher, "Failed") == "True" or bool(status.get("failed") or uncounted)


def reports_running(mpijob: Object) -> bool:
    """Whether the operator reports that a job runs; each version has its own words for that."""
    status = mpijob.get("status") or {}
    active = ((status.get("replicaStatuses") or {}).get("Worker") or {}).get("active")
    reported = condition(mpijob, "Running") == "True" or status.get("launcherStatus") == "Active"
    return reported or bool(active)


def overran(mpijob: Object) -> bool:
    """Whether the job was ended because it exceeded its time limit."""
    failed = condition_of(mpijob, "Failed") or {}
    sentence = f"{failed.get('reason')} {failed.get('message')}"
    return failed.get("status") == "True" and (
        DEADLINE in sentence or "longer than specified deadline" in sentence
    )


def ignored(mpijob: Object) -> bool:
    """Whether no operator has written a status on the job since it was created or resumed."""
    status = mpijob.get("status") or {}
    if condition(mpijob, "Suspended") == "True":
        return True
    return not status.get("conditions") and not status.get("launcherStatus")


def touched(mpijob: Object) -> float:
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
    return seconds(thing["metadata"].get("creationTimestamp")) or 0.0


seconds = published.parse_time


def when(event: Object) -> float:
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
