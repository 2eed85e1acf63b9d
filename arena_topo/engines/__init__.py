"""Backend: what an engine must do; JobStatus: what it says of a job; open one by name.

    kubernetes  an API server with an MPI operator
    local       the embedded engine: jobs as processes on this machine

Engines are imported when they are opened, so that a command pays only for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from arena_topo.engines.lines import Following, LogOptions, Wanted
from arena_topo.escaping import one_line
from arena_topo.manifests import Binding, Forecast, Manifest, Mechanisms, Plan
from arena_topo.manifests.versions import ApiVersion

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.engines.occupancy import Occupancy
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.solver import Request
    from arena_topo.topology import Cluster, Machine, Node
    from arena_topo.topology.fabric import FabricFile


REQUESTS = "arena_topo.requests"
"""The logger that is told of each request to an API server: method, path, status, milliseconds."""


class Phase(StrEnum):
    """Where a job stands, in arena's words."""

    PENDING = "PENDING"
    """Waiting for GPUs, for pods, or for an image."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    QUEUING = "QUEUING"
    """Suspended by a queue that decides when it starts."""
    SUSPENDED = "SUSPENDED"
    """Held by `suspend`."""
    UNKNOWN = "UNKNOWN"

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self in {Phase.SUCCEEDED, Phase.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One pod of a job. Times are Unix seconds; None means not yet.

    `status` is what kubectl prints in its STATUS column. `worker` is the worker's index, None for
    the launcher. `pending` says that the pod has no node yet or has not started there. `devices`
    are the GPUs (indexes) that its annotation names, None where it names none. `failure` says how
    it ended badly, in words that go behind its name; None where it did not. Of launchers that were
    tried one after the other each is a `launcher`, and the one that counts the `chief`.
    """

    name: str
    status: str
    created: float
    started: float | None = None
    finished: float | None = None
    pending: bool = False
    chief: bool = False
    worker: int | None = None
    gpus: int = 0
    node: str | None = None
    node_ip: str | None = None
    ip: str = ""
    holds_gpus: bool = False
    uid: str = ""
    devices: tuple[int, ...] | None = None
    failure: str | None = None
    launcher: bool = False


DEADLINE = "DeadlineExceeded"
"""The reason of a job that was ended since it ran for longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What is known of one job. Times are Unix seconds; None means not yet.

    `forecast` is the recorded placement with its promised bandwidth; `reason` says why the job
    waits or failed, in a sentence. `exit_code` is the launcher's, where it is known. `command` is
    what the launcher was told to run, where that is known. `stopped` are the pods that a suspended
    job had, as far as their logs are still there.
    """

    uid: str
    name: str
    namespace: str
    phase: Phase
    created: float
    finished: float | None = None
    instances: tuple[Instance, ...] = ()
    stopped: tuple[Instance, ...] = ()
    priority: str = "N/A"
    request_gpus: int = 0
    allocated_gpus: int = 0
    forecast: Forecast | None = None
    reason: str | None = None
    exit_code: int | None = None
    tensorboard: str = ""
    model_name: str = ""
    model_version: str = ""
    model_source: str = ""
    command: str = ""

    @property
    def chief(self) -> Instance | None:
        """The launcher, if there is one."""
        return next((one for one in self.instances if one.chief), None)

    def __repr__(self) -> str:
        """The job on one line: `<JobStatus default/bert RUNNING, 8 GPUs, 115 GB/s>`."""
        words = [f"{self.namespace}/{self.name} {self.phase}", f"{self.request_gpus} GPUs"]
        if self.forecast is not None and self.forecast.usable is not None:
            words.append(f"{self.forecast.usable:.3g} GB/s")
        if self.reason:
            words.append(one_line(self.reason))
        return f"<JobStatus {', '.join(words)}>"


def slots_of(forecast: Forecast, status: JobStatus) -> int:
    """Ranks of each worker: one for each of its GPUs."""
    # Workers that claim their GPUs request none of their containers.
    known = {len(gpus) for _index, _node, gpus in forecast.workers if gpus}
    if len(known) == 1:
        return known.pop()
    return max(1, status.request_gpus // max(1, len(forecast.workers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to an object of a job."""

    source: str
    kind: str
    when: float
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What was published, and whether that was `created`, `configured` or `unchanged`."""

    manifest: Manifest
    outcome: str


def unheard(_text: str) -> None:
    """Take a message, and drop it."""


class Pausing(Protocol):
    """What an engine that has no `queue` does with its jobs itself.

    NotFound if there is no such job, NotPossible to suspend or resume a job that is over.
    """

    def asked(self, name: str, namespace: str) -> tuple[Request, Cluster]:
        """What a job asks of the solver, and the machines that it was submitted for."""

    def suspend(self, name: str, namespace: str) -> bool:
        """End a job's pods until it is resumed; False if it was suspended already."""

    def resume(self, name: str, namespace: str) -> bool:
        """Let a job that is held wait for its turn again, or start; False if it was not held."""


class Backend(Protocol):
    """What every engine can do. Jobs are named by name and namespace; all reads are fresh."""

    name: str
    place: str
    """Which engine it is, for what is kept of its jobs: the API server's address, or `local`."""
    look_every: float
    """Seconds between two looks at a job that are no burden to the engine."""
    starts_waiting: bool
    """Whether the engine itself starts a job that has to wait, once it can."""

    @property
    def binding(self) -> Binding | None:
        """How the engine itself makes placements hold; None leaves it to the manifests."""

    @property
    def queue(self) -> Queue | None:
        """Where gangs wait for GPUs and placements are recorded; None if the engine sees to it."""

    @property
    def pausing(self) -> Pausing | None:
        """How jobs are suspended where there is no queue; None where there is."""

    def close(self) -> None:
        """Let go of its connections; who asks again gets new ones."""

    def default_namespace(self) -> str:
        """The namespace of jobs when the user names none."""

    def owner(self, *, tell: Callable[[str], None] = unheard) -> str:
        """The name of the user that jobs are submitted for; `tell` hears where that is a guess."""

    def api_version(self) -> ApiVersion:
        """The MPIJob version to write; ClusterError if the engine serves none."""

    def cluster(self) -> Cluster:
        """All nodes with what is free on them now."""

    def nodes(self) -> Occupancy:
        """All nodes with the pods on their GPUs, and the cluster of the same moment."""

    def mechanisms(self, namespace: str) -> Mechanisms:
        """What the engine offers for making placements hold in a namespace, found by trying it."""

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """What of a job the engine will not heed, for its submitter to know."""

    def machines(self) -> tuple[Node, ...]:
        """All nodes, whatever runs on them, read once; none where they may not be listed."""

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Make the plan's objects real, all or none; the names of what was created.

        AlreadyExists if the job's name is taken.
        """

    def validate(self, plan: Plan) -> tuple[str, ...]:
        """Check the plan's objects as `apply` would, without creating any; warnings about them."""

    def stored(self, plan: Plan) -> tuple[Manifest | None, ...]:
        """What is there under the names of a plan's objects, in their order; None: nothing.

        Nor does it tell of what an earlier job of this name has left.
        """

    def job(self, name: str, namespace: str) -> JobStatus:
        """One job; NotFound if there is none."""

    def jobs(self, namespace: str | None, selector: str = "") -> tuple[JobStatus, ...]:
        """All jobs of a namespace, or of all namespaces (None), newest first.

        `selector` keeps those with certain labels; it is one that `LabelSelector` can read.
        """

    def delete(self, name: str, namespace: str, *, uid: str | None = None) -> None:
        """Delete a job and all that belongs to it; NotFound if there is none.

        With a `uid` only that very job: another that has its name by now is NotFound too.
        """

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: Wanted = lambda _: True
    ) -> Following:
        """The logs of the job's pods that are wanted, of those to come too, in one.

        `tail` and `since` cut off only what was written before this call. Without
        `options.follow` each log is read to where it ends now.
        """

    def attach(
        self,
        job: JobStatus,
        instance: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        terminal: bool = False,
        tell: Callable[[str], None] = unheard,
    ) -> int:
        """Run a command in a pod, on the standard streams of this process; its exit code.

        With `terminal` stdin and stdout are one, which the command gets for its own. Before it
        starts, `tell` hears which container that is. NotFound if there is no such pod or container,
        NotPossible if it does not run, ClusterError if the connection to it breaks.
        """

    def metrics(
        self,
        namespace: str | None = None,
        *,
        pods: Collection[str] = (),
        tell: Callable[[str], None] = unheard,
    ) -> tuple[GpuSample, ...]:
        """What GPUs do now, by node and index: all, or those of a namespace or of some pods.

        Never an error, and bounded in time: none where nothing measures, or that cannot be asked,
        and then `tell` hears why.
        """

    def events(self, job: JobStatus) -> tuple[Event, ...]:
        """What happened to the job and its pods, oldest first."""

    def volumes(self, namespace: str | None) -> tuple[Volume, ...]:
        """The bound volume claims of a namespace, or of all (None), by namespace and name."""

    def administrators(self, namespace: str) -> frozenset[str]:
        """Who is an administrator to the arena of this namespace; none where that is not known."""

    def publish(self, machine: Machine, *, dry_run: bool = False) -> Publication:
        """Write down the links of the node that the machine is named after, for all to read.

        NotFound if there is no such node. With `dry_run` everything is checked, nothing stored.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to reach an engine: everything a person may say about it on the command line.

    `request_timeout` (seconds, 0: none) is for each request, `deadline` (seconds, None: none) for
    all of them together. `cluster` and `user` are entries of the kubeconfig that stand in for those
    of the context; `impersonate` and `impersonate_groups` are whom to act as. `prometheus_address`
    is the URL of the Prometheus that knows of GPUs. `fabric` says what joins its nodes, whatever
    their labels say.
    """

    backend: str = "auto"
    kubeconfig: str | None = None
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    impersonate: str | None = None
    impersonate_groups: tuple[str, ...] = ()
    namespace: str | None = None
    prometheus_address: str | None = None
    emulate: str | None = None
    request_timeout: float = 30.0
    deadline: float | None = None
    fabric: FabricFile | None = None
