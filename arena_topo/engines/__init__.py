"""The protocol of an engine (`Backend`) and its values: JobStatus, Instance, Event, Options.

    kubernetes  an API server with an MPI operator
    local       the embedded engine: jobs as processes on this machine

`opening.open_backend` imports an engine when it opens it, so a command pays only for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from arena_topo.escaping import one_line

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.engines.lines import Following, LogOptions, Wanted
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.engines.occupancy import Occupancy
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.manifests import Binding, Forecast, Manifest, Mechanisms, Plan
    from arena_topo.manifests.versions import ApiVersion
    from arena_topo.solver import Request
    from arena_topo.topology import Cluster, Machine, Node
    from arena_topo.topology.fabric import FabricFile


REQUESTS = "arena_topo.requests"
"""The logger of requests to an API server: method, path, status, milliseconds."""


class Phase(StrEnum):
    """The phase of a job, in arena's words."""

    PENDING = "PENDING"
    """Waiting for GPUs, for pods, or for an image."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    QUEUING = "QUEUING"
    """Suspended by a queue, which decides when the job starts."""
    SUSPENDED = "SUSPENDED"
    """Suspended by `suspend`."""
    UNKNOWN = "UNKNOWN"

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self in {Phase.SUCCEEDED, Phase.FAILED}


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job. Times are Unix seconds; None means not yet.

    `status` is kubectl's STATUS column. `worker` is the index of the worker, None for the launcher.
    `pending`: the pod has no node yet, or has not started there. `devices` are the indexes of the
    GPUs in the pod's annotation, None without one. `failure` says how the pod ended badly, as a
    phrase to follow its name; None if it did not. Each retry of a launcher is a `launcher`; the one
    that counts is the `chief`.
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
"""The reason of a job that was ended because it exceeded its time limit."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one job. Times are Unix seconds; None means not yet.

    `forecast` is the recorded placement with its promised bandwidth. `reason` is a sentence: why
    the job waits or failed. `exit_code` and `command` are those of the launcher, if known.
    `stopped` are the pods that a suspended job had, as far as their logs still exist.
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
        """The launcher that counts; None without one."""
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
    """The number of ranks of each worker: one for each of its GPUs."""
    # With DRA claims the containers of a worker request no GPUs.
    known = {len(gpus) for _index, _node, gpus in forecast.workers if gpus}
    if len(known) == 1:
        return known.pop()
    return max(1, status.request_gpus // max(1, len(forecast.workers)))


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object of a job."""

    source: str
    kind: str
    when: float
    reason: str
    message: str


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The published manifest, and the outcome: `created`, `configured` or `unchanged`."""

    manifest: Manifest
    outcome: str


def unheard(_text: str) -> None:
    """Ignore a message: the default of callbacks."""


class Pausing(Protocol):
    """How an engine without a `queue` suspends and resumes jobs.

    NotFound if the job does not exist, NotPossible to suspend or resume a job that is over.
    """

    def asked(self, name: str, namespace: str) -> tuple[Request, Cluster]:
        """The request of a job to the solver, and the machines for which the job was submitted."""

    def check_restart(self, name: str, namespace: str) -> None:
        """Unplaceable if a job that has GPUs would not start at once after a suspension."""

    def suspend(self, name: str, namespace: str) -> bool:
        """End a job's pods until it is resumed; False if it was suspended already."""

    def resume(self, name: str, namespace: str) -> bool:
        """Queue or start a suspended job; False if it was not suspended."""


class Backend(Protocol):
    """The protocol of every engine. A job is a name and a namespace; all reads are fresh."""

    name: str
    place: str
    """The identity of the engine in stored data about its jobs: the API server's address, or
    `local`."""
    look_every: float
    """The poll interval in seconds that does not burden the engine."""
    starts_waiting: bool
    """Whether the engine itself starts a waiting job as soon as possible."""

    @property
    def binding(self) -> Binding | None:
        """The binding by which the engine itself enforces placements; None: the manifests do it."""

    @property
    def queue(self) -> Queue | None:
        """The queue of gangs and recorded placements; None if the engine queues jobs by itself."""

    @property
    def pausing(self) -> Pausing | None:
        """The way to suspend jobs without a queue; None with a queue."""

    def close(self) -> None:
        """Close the connections; later requests open new ones."""

    def default_namespace(self) -> str:
        """The namespace of jobs when the user names none."""

    def owner(self, *, tell: Callable[[str], None] = unheard) -> str:
        """The user in whose name jobs are submitted; `tell` gets a note if the name is a guess."""

    def api_version(self) -> ApiVersion:
        """The MPIJob version to write; ClusterError if the engine serves none."""

    def cluster(self) -> Cluster:
        """All nodes with what is free on them now."""

    def nodes(self) -> Occupancy:
        """All nodes with the pods on their GPUs, and the cluster of the same moment."""

    def mechanisms(self, namespace: str) -> Mechanisms:
        """The mechanisms that bind placements in a namespace, found by trying them."""

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """The settings of a job that the engine ignores, as notes for the submitter."""

    def machines(self) -> tuple[Node, ...]:
        """All nodes, busy or free, read once; empty if the caller may not list them."""

    def apply(self, plan: Plan) -> tuple[str, ...]:
        """Create the plan's objects, all or none; the names of the created objects.

        AlreadyExists if the job's name is taken.
        """

    def validate(self, plan: Plan) -> tuple[str, ...]:
        """Check the plan's objects as `apply` would, without creating any; their warnings."""

    def stored(self, plan: Plan) -> tuple[Manifest | None, ...]:
        """The stored objects under the names of a plan's objects, in their order; None if absent.

        Leftovers of an earlier job of this name count as absent.
        """

    def job(self, name: str, namespace: str) -> JobStatus:
        """One job; NotFound if it does not exist."""

    def jobs(self, namespace: str | None, selector: str = "") -> tuple[JobStatus, ...]:
        """All jobs of a namespace, or of all namespaces (None), newest first.

        `selector` selects jobs by their labels, in the syntax of `LabelSelector`.
        """

    def delete(self, name: str, namespace: str, *, uid: str | None = None) -> None:
        """Delete a job and all that belongs to it; NotFound if it does not exist.

        With a `uid` only the job with this uid; a later job of the same name is NotFound too.
        """

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: Wanted = lambda _: True
    ) -> Following:
        """The merged logs of the job's pods that `wanted` accepts, future pods included.

        `tail` and `since` limit only the lines written before this call. Without `options.follow`
        each log is read to its present end.
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

        With `terminal`, stdin and stdout are one terminal, which the command controls. Before the
        command starts, `tell` gets the name of the container. NotFound if the pod or the container
        does not exist, NotPossible if it does not run, ClusterError if the connection breaks.
        """

    def metrics(
        self,
        namespace: str | None = None,
        *,
        pods: Collection[str] = (),
        tell: Callable[[str], None] = unheard,
    ) -> tuple[GpuSample, ...]:
        """The load of the GPUs, by node and index: all, or those of a namespace or of some pods.

        Never raises, and returns in bounded time. Empty if nothing measures the GPUs or the source
        does not answer; `tell` then gets the reason.
        """

    def events(self, job: JobStatus) -> tuple[Event, ...]:
        """The events of the job and its pods, oldest first."""

    def volumes(self, namespace: str | None) -> tuple[Volume, ...]:
        """The bound volume claims of a namespace, or of all (None), by namespace and name."""

    def administrators(self, namespace: str) -> frozenset[str]:
        """The administrators in a namespace's arena configuration; empty if that is unknown."""

    def publish(self, machine: Machine, *, dry_run: bool = False) -> Publication:
        """Publish the links of a node, whose name is the machine's, for all readers.

        NotFound if the node does not exist. With `dry_run` everything is checked and nothing is
        stored.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to reach an engine: all settings of the command line.

    `request_timeout` (seconds, 0: none) limits each request, `deadline` (seconds, None: none) all
    requests together. `cluster` and `user` are kubeconfig entries that replace those of the
    context; `impersonate` and `impersonate_groups` are the user and the groups to act as.
    `prometheus_address` is the URL of a Prometheus with metrics of GPUs. `fabric` is the network
    between the nodes; it overrides their labels.
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
