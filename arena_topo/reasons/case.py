"""Values: `Case`, all that is known of a job, and `Diagnosis`, the verdict on it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import is_suspended, queuing, suspender
from arena_topo.engines import Event, Phase
from arena_topo.engines.kubernetes.facts import JobFacts, Object
from arena_topo.engines.kubernetes.mpijob import condition_of, started
from arena_topo.manifests import FORMAT_ANNOTATION, STATE
from arena_topo.manifests.annotations import unknown_record
from arena_topo.manifests.cause import Cause, CauseCode
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.reasons.live_events import current
from arena_topo.solver import Verdict as Fits

if TYPE_CHECKING:
    from arena_topo.queueing.patience import PatientWait

PROGRAM = "arena-topo"


class Code(StrEnum):
    """The codes of verdicts, for programs."""

    SUCCEEDED = "Succeeded"
    OUT_OF_MEMORY = "OutOfMemory"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    REJECTED_BY_NODE = "RejectedByNode"
    PREEMPTED = "Preempted"
    RUNNING_TIMEOUT = "RunningTimeout"
    NO_SSHD = "NoSshd"
    WORKER_FAILED = "WorkerFailed"
    LAUNCHER_FAILED = "LauncherFailed"
    HOSTFILE_NOT_READ = "HostfileNotRead"
    FAILED = "Failed"
    DELETING = "Deleting"
    KUEUE_QUOTA = "KueueQuota"
    SUSPENDED_BY_KUEUE = "SuspendedByKueue"
    SUSPENDED_BY_KUBE_QUEUE = "SuspendedByKubeQueue"
    SUSPENDED_BY_MANAGER = "SuspendedByManager"
    SUSPENDED_BY_USER = "SuspendedByUser"
    NEVER_FITS = "NeverFits"
    TAKEN_BACK = "TakenBack"
    WAITING_FOR_GPUS = "WaitingForGPUs"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_BANDWIDTH = "WaitingForBandwidth"
    NOBODY_STARTS = "NobodyStarts"
    PODS_TERMINATING = "PodsTerminating"
    NOT_RESUMED = "NotResumed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_SECURITY = "PodSecurity"
    POLICY_DENIED = "PolicyDenied"
    FORBIDDEN = "Forbidden"
    PODS_REFUSED = "PodsRefused"
    NAME_TAKEN = "NameTaken"
    INVALID_JOB = "InvalidJob"
    IMAGE_PULL = "ImagePull"
    CONTAINER_ERROR = "ContainerError"
    VOLUME_MISSING = "VolumeMissing"
    POLICY_NOT_EFFECTIVE = "PolicyNotEffective"
    GATED_NO_PATCHER = "GatedNoPatcher"
    GATED_BY_OTHERS = "GatedByOthers"
    PINNED_NODE_GONE = "PinnedNodeGone"
    UNSCHEDULABLE = "Unschedulable"
    NO_SCHEDULER = "NoScheduler"
    OPERATOR_NOT_RESPONDING = "OperatorNotResponding"
    RUNNING = "Running"
    STARTING = "Starting"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict in one sentence, its cause, and what to try; the last two where known."""

    code: Code
    what: str
    why: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a waiting gang fits; `verdict` is None where that is not known.

    `message` is the answer in a sentence, `why` the refusals with their number of nodes, `nearest`
    the nearest change with which the gang would fit. `behind` names the older gang that has
    reserved the GPUs, `opening` the seconds until that one starts at the latest, if that is known.
    `wait` is what the gang waits for while it is patient.
    """

    verdict: Fits | None = None
    message: str = ""
    why: str | None = None
    nearest: str | None = None
    behind: str | None = None
    wait: PatientWait | None = None
    opening: float | None = None


class Case:
    """All that is known of a job, computed once.

    The `facts` of a local job are its status alone, with an empty MPIJob. `fit` is empty for a job
    that does not wait for GPUs. `watched` is called once, if needed: whether a program starts
    waiting jobs; None if that is not known. `log` is the end of the launcher's log, None if it was
    not read. `state` is `waiting`, `placed`, `held`, or empty for a job of another program; `cause`
    is the recorded reason for which it waits or is suspended; `owner` the queue that alone starts
    and stops it, and `queue` the queue that blocks it now. `events` are the current events.
    """

    def __init__(
        self,
        facts: JobFacts,
        *,
        fit: Fit | None = None,
        watched: Callable[[], bool | None] = lambda: None,
        log: LauncherLog | None = None,
        start: Sequence[bytes] = (),
    ) -> None:
        self.facts, self.status, self.now = facts, facts.status, facts.now
        self.fit, self.log, self._watched = fit or Fit(), log, watched
        self.start = start
        """The first lines of the launcher's log."""
        self.mpijob, self.pods, self.nodes = facts.mpijob, facts.pods, facts.nodes
        self.meta: Object = self.mpijob.get("metadata") or {}
        self.notes: Object = self.meta.get("annotations") or {}
        self.suspended = is_suspended(self.mpijob)
        self.workload: Object = facts.workload or {}
        self.owner = suspender(self.mpijob) if self.mpijob else None
        self.queue = queuing(self.mpijob, pods=bool(self.pods)) if self.mpijob else None
        phase, forecast = self.status.phase, self.status.forecast
        self.cause: Cause | None = None if forecast is None else forecast.cause
        known = FORMAT_ANNOTATION in self.notes and unknown_record(self.mpijob) is None
        self.state = str(self.notes.get(STATE) or "") if known else ""
        if not self.mpijob and forecast is not None:
            self.state = forecast.state
        self.pending, self.runs, self.over = (
            phase is Phase.PENDING,
            phase is Phase.RUNNING,
            phase.over,
        )
        waits = self.state == "waiting" and self.pending
        self.waits = waits and (self.suspended or not self.mpijob)
        """Whether it waits for GPUs, without any pod that runs."""
        self.at_gates = waits and self.owner is not None and not self.suspended
        """Whether a queue has started it, and its workers wait at their gates to be placed."""
        self.rolled_back = self.suspended and not self.over
        """Whether the whole gang was rolled back, so that the errors of its pods are past."""
        self.events: tuple[Event, ...] = ()
        if phase is not Phase.SUCCEEDED:
            events, worker_count = facts.events, self.worker_count()
            since = 0.0 if self.suspended else started(self.mpijob) or 0.0
            self.events = current(
                events,
                self.pods,
                worker_count=worker_count,
                now=self.now,
                over=self.over,
                since=since,
            )

    @cached_property
    def starts(self) -> bool | None:
        """Whether a program starts waiting jobs; None if that is not known."""
        return self._watched()

    def worker_count(self) -> int:
        """The number of workers in the manifest."""
        spec = self.mpijob.get("spec") or {}
        worker = (spec.get("mpiReplicaSpecs") or {}).get("Worker") or spec
        replicas = worker.get("replicas")
        return replicas if isinstance(replicas, int) else 0

    def is_because(self, code: CauseCode) -> bool:
        """Whether the recorded cause has this code."""
        return self.cause is not None and self.cause.code == code

    @cached_property
    def words(self) -> Mapping[str, str]:
        """The fields of texts: name and namespace of the job, and command lines about it."""
        name, namespace = self.status.name, self.status.namespace
        verbs = ("logs", "resume", "replan", "delete", "attach")
        words = {verb: f"{PROGRAM} {verb} {name} -n {namespace}" for verb in verbs}
        anew = f"{words['delete']}, and submit it again"
        restarted = self.state and self.owner is None and not self.over
        return {
            **words,
            "anew": anew,
            "again": words["replan"] if restarted else anew,
            "room": words["replan"]
            if restarted
            else f"wait for room, or {words['delete']}, and submit it with what a node offers",
            "describe": f"kubectl describe mpijob {name} -n {namespace}",
            "name": name,
            "namespace": namespace,
        }

    def unusable(self, node: str) -> str | None:
        """Why no pod can run on a node; None if pods can, or the node was not read."""
        if self.nodes.get(node, {}) is None:
            return f"node {node} does not exist any more"
        ready = condition_of(self.nodes.get(node) or {}, "Ready")
        if ready is None or ready.get("status") == "True":
            return None
        message = str(ready.get("message") or ready.get("reason") or "").rstrip(".")
        return f"node {node} is not ready" + (f": {message}" if message else "")

    def cordoned(self, node: str) -> bool:
        """Whether a node is cordoned: it takes no new pods."""
        return bool(((self.nodes.get(node) or {}).get("spec") or {}).get("unschedulable"))

    def messages_of(self, reasons: str) -> dict[str, str]:
        """The messages of pods, their nodes and events with a reason (a pattern), by pod."""
        messages: dict[str, str] = {}
        for pod, reason, message in self._signs:
            if re.fullmatch(reasons, reason):
                messages.setdefault(pod, message or reason)
        return messages

    @cached_property
    def _signs(self) -> list[tuple[str, str, str]]:
        """(pod, reason, message) of all conditions, states and events of pods."""
        return [*self._signs_of_pods(), *self._signs_of_events()]

    def _signs_of_pods(self) -> Iterator[tuple[str, str, str]]:
        for pod in self.pods:
            name, status = name_of(pod), pod.get("status") or {}
            signs = [status, *waiting_states(pod), *ends(pod)]
            for kind, bad in (("DisruptionTarget", "True"), ("PodScheduled", "False")):
                condition = condition_of(pod, kind) or {}
                signs += [condition] if condition.get("status") == bad else []
            why = self.unusable(node_of(pod))
            signs += [{"reason": "NodeLost", "message": why}] if why is not None else []
            for sign in signs:
                yield name, str(sign.get("reason") or ""), str(sign.get("message") or "")

    def _signs_of_events(self) -> Iterator[tuple[str, str, str]]:
        for event in self.events:
            yield event.source.partition("/")[2], event.reason, event.message


# ---------------------------------------------------------------- fields of pods


def name_of(pod: Object) -> str:
    """The name of a pod or another object."""
    return str(pod["metadata"]["name"])


def node_of(pod: Object) -> str:
    """The node of a pod; empty without a node."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def phase_of(pod: Object) -> str:
    """The phase of a pod in the words of Kubernetes."""
    return str((pod.get("status") or {}).get("phase") or "Unknown")


def _states(pod: Object, how: str) -> Iterator[Object]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in (pod.get("status") or {}).get(kind) or ():
            for state in ("state", "lastState"):
                if state_now := (container.get(state) or {}).get(how):
                    yield state_now


def waiting_states(pod: Object) -> Iterator[Object]:
    """The states of containers of a pod that wait, with `reason` and `message`."""
    return _states(pod, "waiting")


def ends(pod: Object) -> Iterator[Object]:
    """The states of containers of a pod that ended, restarted containers included."""
    return _states(pod, "terminated")
