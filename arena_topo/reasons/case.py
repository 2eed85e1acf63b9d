"""What a verdict on a job is made from, and what it is.

Pure values. `Case` holds all that is known of a job, in the words of whichever engine has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from arena_topo.clusters.queues import queuing, suspended, suspender
from arena_topo.engines import Event, JobStatus, Phase
from arena_topo.engines.kubernetes.facts import Object
from arena_topo.manifests import FORMAT, STATE
from arena_topo.manifests.cause import Cause, CauseCode
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.reasons.live_events import standing
from arena_topo.solver import Verdict as Fits

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.facts import Facts

PROGRAM = "arena-topo"


class Code(StrEnum):
    """What is the matter with a job, for programs."""

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
    NOBODY_STARTS = "NobodyStarts"
    PODS_TERMINATING = "PodsTerminating"
    NOT_RESUMED = "NotResumed"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_SECURITY = "PodSecurity"
    POLICY_DENIED = "PolicyDenied"
    FORBIDDEN = "Forbidden"
    PODS_REFUSED = "PodsRefused"
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
    """What is the matter in one sentence, why, and what to try; the last two where known."""

    code: Code
    what: str
    why: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a waiting gang fits; `verdict` is None where that cannot be said.

    `message` is the answer in a sentence, `why` the nodes counted by what refuses the gang,
    `nearest` the nearest change that would fit. `behind` names the older gang that the GPUs it
    could take are kept for.
    """

    verdict: Fits | None = None
    message: str = ""
    why: str | None = None
    nearest: str | None = None
    behind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a verdict is made from.

    `facts` is None on an engine that has no objects to look at: then `status` tells it all. `fit`
    is None for a job that does not wait for GPUs. `starts` says whether somebody starts waiting
    jobs by itself, None that this is not known. `log` is the end of the launcher's log, None
    where it was not read. `now` is Unix seconds.
    """

    status: JobStatus
    now: float
    facts: Facts | None = None
    fit: Fit | None = None
    starts: bool | None = None
    log: LauncherLog | None = None

    @property
    def mpijob(self) -> Object:
        """The object; empty where the engine has none."""
        return self.facts.mpijob if self.facts is not None else {}

    @property
    def notes(self) -> Object:
        """Its annotations."""
        return (self.mpijob.get("metadata") or {}).get("annotations") or {}

    @property
    def suspended(self) -> bool:
        """Whether somebody keeps the operator from starting it."""
        return suspended(self.mpijob)

    @property
    def state(self) -> str:
        """`waiting`, `placed`, `held`, or nothing for a job that is not ours."""
        if self.facts is None:
            forecast = self.status.forecast
            return forecast.state if forecast is not None else ""
        return str(self.notes.get(STATE) or "") if FORMAT in self.notes else ""

    @property
    def cause(self) -> Cause | None:
        """Why it waits or is held, as whoever wrote its state said."""
        return None if self.status.forecast is None else self.status.forecast.cause

    def is_because(self, code: CauseCode) -> bool:
        """Whether that is the recorded cause."""
        return self.cause is not None and self.cause.code == code

    @property
    def recorded_reason(self) -> str:
        """The cause in a sentence; empty where none is recorded."""
        return str(self.cause or "")

    @property
    def owner(self) -> str | None:
        """The queue that alone starts and stops it."""
        return suspender(self.mpijob) if self.mpijob else None

    @property
    def queue(self) -> str | None:
        """The queue that keeps it from running now."""
        return queuing(self.mpijob, pods=bool(self.pods)) if self.mpijob else None

    @property
    def nodes(self) -> Mapping[str, Object | None]:
        """The nodes that were looked at; None for one that does not exist."""
        return self.facts.nodes if self.facts is not None else {}

    @property
    def pods(self) -> tuple[Object, ...]:
        """Its pods."""
        return self.facts.pods if self.facts is not None else ()

    @property
    def wanted(self) -> int:
        """How many workers it is to have."""
        spec = self.mpijob.get("spec") or {}
        worker = (spec.get("mpiReplicaSpecs") or {}).get("Worker") or spec
        replicas = worker.get("replicas")
        return replicas if isinstance(replicas, int) else 0

    @property
    def workload(self) -> Object:
        """Kueue's stand-in; empty where there is none."""
        return (self.facts.workload if self.facts is not None else None) or {}

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that still hold."""
        if self.facts is None or self.status.phase is Phase.SUCCEEDED:
            return ()
        return standing(
            self.facts.events,
            self.pods,
            wanted=self.wanted,
            now=self.now,
            over=self.status.phase.over,
        )

    def command(self, verb: str) -> str:
        """A command line of this program about the job."""
        return f"{PROGRAM} {verb} {self.status.name} -n {self.status.namespace}"

    @property
    def again(self) -> str:
        """How to start the whole gang anew."""
        if self.state and self.owner is None and not self.status.phase.over:
            return self.command("replan")
        return f"{self.command('delete')}, and submit it again"
