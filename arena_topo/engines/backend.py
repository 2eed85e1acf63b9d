"""The protocol of every engine (`Backend`), and of how one without a queue suspends (`Pausing`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol, Self

from arena_topo.engines import Event, JobStatus, Publication, ignore_message
from arena_topo.engines.attach_request import AttachRequest

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.queue import Queue
    from arena_topo.engines.lines import Following, LogOptions, SourceFilter
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.engines.occupancy import Occupancy
    from arena_topo.engines.volume import Volume
    from arena_topo.job import MPIJob
    from arena_topo.manifests import Binding, Manifest, Mechanisms, Plan
    from arena_topo.manifests.forecast import Move
    from arena_topo.manifests.versions import ApiVersion
    from arena_topo.queueing.reservation import QueueHead
    from arena_topo.solver import Constraint, Request
    from arena_topo.topology import Cluster, Machine, Node


class Pausing(Protocol):
    """How an engine without a `queue` suspends and resumes jobs.

    NotFound if the job does not exist, NotPossible to suspend or resume a job that is over.
    """

    def asked(self, name: str, namespace: str) -> tuple[Request, Cluster]:
        """The request of a job to the solver, and the machines for which the job was submitted.

        GPUs are reserved there for the job that comes first in the queue, if that is another.
        """

    def left(self, timeout: float | None = None) -> Cluster:
        """The machines for a new job, with the GPUs reserved for the job that comes first.

        `timeout` is the limit of its running time in seconds.
        """

    def head(self, name: str = "", namespace: str = "") -> QueueHead | None:
        """The head of the queue on the machines of a job, else of a new job; None without one."""

    def foresee(self, name: str, namespace: str, constraint: Constraint) -> Move:
        """Where a job would go after a suspension; Unplaceable if it would not start at once."""

    def suspend(self, name: str, namespace: str) -> bool:
        """End a job's pods until it is resumed; False if it was suspended already."""

    def resume(self, name: str, namespace: str, constraint: Constraint = ...) -> bool:
        """Queue or start a suspended job, or start a patient job; False if it was neither.

        The constraint counts for a start at once: a job that has to wait can have any placement.
        """


class JobReads(Protocol):
    """Repeated reads of the jobs of a namespace: an unchanged job may cost no request.

    Threads may share it.
    """

    def job(self, name: str, *, fresh: bool = False) -> JobStatus:
        """A job as of its last change, or with `fresh` as of now; NotFound if it does not exist."""

    def jobs(self) -> tuple[JobStatus, ...]:
        """All jobs as of their last change."""

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: SourceFilter = lambda _: True
    ) -> Following:
        """See `Backend.follow`; the two share what they read."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_wrong: object) -> None: ...


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

    def owner(self, *, tell: Callable[[str], None] = ignore_message) -> str:
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

    def watching(self, namespace: str) -> JobReads:
        """Repeated reads of jobs of a namespace."""

    def delete(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        tell: Callable[[str], None] = ignore_message,
    ) -> None:
        """Delete a job and all that belongs to it; NotFound if it does not exist.

        With a `uid` only the job with this uid; a later job of the same name is NotFound too.
        `tell` gets the reason if its logs are lost that should have been archived.
        """

    def follow(
        self, job: JobStatus, options: LogOptions, wanted: SourceFilter = lambda _: True
    ) -> Following:
        """The merged logs of the job's pods that `wanted` accepts, future pods included.

        `tail` and `since` limit only the lines written before this call. Without `options.follow`
        each log is read to its present end.
        """

    def attach(
        self,
        job: JobStatus,
        instance: str,
        request: AttachRequest,
        *,
        tell: Callable[[str], None] = ignore_message,
    ) -> int:
        """Run a command in this pod, on the standard streams of this process; its exit code.

        Before the command starts, `tell` gets the name of the container. NotFound if the pod or the
        container does not exist, NotPossible if it does not run, ClusterError if the connection
        breaks.
        """

    def metrics(
        self,
        namespace: str | None = None,
        *,
        pods: Collection[str] = (),
        tell: Callable[[str], None] = ignore_message,
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
