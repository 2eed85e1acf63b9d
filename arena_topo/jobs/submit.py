"""The commands that take a whole job: submit and plan."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from arena_topo.cli import remembering, stopping
from arena_topo.cli.arguments import (
    DOCUMENTS,
    DryRun,
    FabricFlag,
    FileFlag,
    Output,
    PictureOutputFlag,
    document,
    option,
    output,
)
from arena_topo.cli.detaching import detaching
from arena_topo.cli.opening import emulating, engine, namespace_of, network
from arena_topo.cli.options import (
    PROGRAM,
    BackendName,
    Globals,
    OutputLost,
    Seconds,
    display,
    say,
    show,
    spread,
    tell,
    warn,
)
from arena_topo.cli.terminal import columns, draws
from arena_topo.engines import Backend, JobStatus, opening
from arena_topo.errors import UsageError
from arena_topo.gang import Exists
from arena_topo.job import SKETCH, MPIJob
from arena_topo.jobs import view
from arena_topo.jobs.staying import Staying, summarise, wait_for_end
from arena_topo.manifests import Manifest
from arena_topo.manifests.serialize import object_name, to_json, to_yaml
from arena_topo.manifests.versions import ApiVersion

if TYPE_CHECKING:
    from arena_topo.gang.submission import Submitted
    from arena_topo.topology import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """Options that `plan` and `submit` share."""

    file: FileFlag = ""
    generate_name: str = option(
        "",
        "Generate the name: this prefix and five random characters.",
        "PREFIX",
        excludes=("--name", "--exists"),
    )
    state: tuple[str, ...] = option(
        (),
        "Place on the cluster in this dump of kubectl get -o json; repeat for more.",
        "FILE",
        needs=("--dry-run",),
        excludes=("--dry-run server", "--backend", "--emulate"),
        completes="files",
    )
    fabric: FabricFlag = ""
    api_version: ApiVersion | None = option(
        None, "Version of the MPIJob to write; else what the cluster serves."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Options of a submission that are not about the job."""

    dry_run: DryRun | None = option(
        None, "Print what would be created, and create nothing.", "[=client|server]"
    )
    output_format: Annotated[
        Output | None,
        output(
            *DOCUMENTS, help="How to print the objects; with --wait the job as it ended, like get."
        ),
    ] = None
    exists: Exists = option(
        Exists.FAIL,
        "If the name is taken: fail; ok accepts an identical job; replace deletes the job first.",
        excludes=("--dry-run",),
    )
    wait: bool = option(
        False, "Wait for the end, and end with the launcher's exit code.", excludes=("--dry-run",)
    )
    follow: bool = option(
        False,
        "Show the launcher's log to its end, and end with its exit code.",
        excludes=("--wait", "--output", "--dry-run"),
    )

    @property
    def stays(self) -> bool:
        """Whether the command waits for the end of the job."""
        return self.wait or self.follow


_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""The letters of generated names in Kubernetes (apimachinery, pkg/util/rand): no words."""

_RANDOM = 5
"""Characters after a prefix, as in `generateName` of Kubernetes."""


def _named(command: Callable[..., None]) -> Callable[..., None]:
    """Generate the name of a job from a prefix."""

    @wraps(command)
    def named(**values: Any) -> None:
        if prefix := values.get("generate_name"):
            drawn = random.choices(_ALPHABET, k=_RANDOM)  # noqa: S311 - no secret
            values["name"] = prefix + "".join(drawn)
        command(**values)

    return named


@_named
@spread
def submit_mpi(job: MPIJob, how: Submission, offline: Offline, everywhere: Globals) -> None:
    """Submit an MPI job; with --gputopology each worker gets the best-linked GPUs.

    Examples:
      # Four workers with two GPUs each, on the best-linked GPUs
      submit mpi --name bert --gpus 2 --workers 4
      --gputopology --image IMAGE 'mpirun python train.py'
      # Show the log until the job ends
      submit mpi -f job.yaml --follow
      # Print the objects for kubectl
      submit mpi -f job.yaml --dry-run -o yaml
    """
    if how.dry_run is not None:
        _preview(job, how, offline, everywhere)
        return
    # --timeout limits the whole command, not each request: the rest of it is for the job's end.
    asking = replace(everywhere, timeout=None) if how.stays else everywhere
    backend = engine(asking, image=job.image, fabric=network(offline.fabric))
    order = _Order(
        how=how,
        everywhere=everywhere,
        backend=backend,
        namespace=namespace_of(everywhere, backend),
        api=offline.api_version,
        end=None if everywhere.timeout is None else time.monotonic() + everywhere.timeout,
    )
    stopping.limit(everywhere.timeout)
    order.carry_out(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """One submission: its options and its engine; `end` is the deadline (monotonic)."""

    how: Submission
    everywhere: Globals
    backend: Backend
    namespace: str
    api: ApiVersion | None
    end: float | None

    def carry_out(self, job: MPIJob) -> None:
        """Submit a job, unless it exists already; AlreadyExists for another job of its name."""
        from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

        made: list[str] = []
        with (
            detaching(
                self.backend, job.name, self.namespace, there=lambda: bool(made), creates=True
            ),
            Staying(job.name, "is created") as stays,
        ):

            def announce(names: Sequence[str]) -> None:
                made.extend(names)
                self._announce(job, names)
                stays.show()

            done = submission.submit(
                job,
                self.backend,
                namespace=self.namespace,
                api=self.api,
                exists=self.how.exists,
                watcher=stays.watcher(stay=self.how.stays, end=self.end),
                announce=announce,
            )
        with detaching(self.backend, job.name, self.namespace, there=lambda: True):
            if done.found:
                self._tell_unchanged(job, done)
            else:
                self._tell(job, done)
        if self.how.follow:
            self._follow(job.name)
        elif self.how.wait:
            wait_for_end(
                self.backend,
                job.name,
                self.namespace,
                timeout=self._left(),
                done=None if done.found else done,
                ended=self._ended,
            )

    def _follow(self, name: str) -> None:
        """Follow the log, as `logs -f`."""
        from arena_topo.jobs import logs  # noqa: PLC0415 - only for who follows

        left = self._left()
        everywhere = replace(
            self.everywhere,
            namespace=self.namespace,
            # The engine is known by now.
            backend=BackendName(self.backend.name),
            timeout=None if left is None else Seconds(left),
        )
        logs.show_logs(name, logs.Wanted(follow=True), everywhere)

    def _ended(self, status: JobStatus) -> None:
        """Print the finished job as a document."""
        if self._prints_end:
            form = self.how.output_format or Output.JSON
            show(document(view.job_value(status, now=time.time()), form))

    @property
    def _prints_end(self) -> bool:
        """Whether the document on stdout is the finished job, and not its objects."""
        return self.how.wait and self.how.output_format in {Output.JSON, Output.YAML}

    def _announce(self, job: MPIJob, names: Sequence[str]) -> None:
        """Print what was created, at once."""
        text = "".join(f"{name} created\n" for name in names)
        if self._names_only:
            _announce(job.name, lambda: f"{view.RESOURCE}/{job.name}\n")
        elif self.how.output_format is None and self.how.follow:
            # Standard output is for the log.
            say(text.rstrip("\n"))
        elif self.how.output_format is None:
            _announce(job.name, lambda: text)
        remembering.created(self.backend, self.namespace, job)

    @property
    def _names_only(self) -> bool:
        """Whether only the name of the job goes to stdout."""
        quiet = self.everywhere.quiet and self.how.output_format is None
        return quiet or self.how.output_format is Output.NAME

    def _left(self) -> float | None:
        """The seconds left of --timeout."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def _tell(self, job: MPIJob, done: Submitted) -> None:
        document = self.how.output_format
        if document is not None and not self._names_only and not self._prints_end:
            _announce(job.name, lambda: _printed(done.plan.objects, document))
        say(f"The Job {job.name} has been submitted successfully")
        say(
            f"You can run `{PROGRAM} get {job.name} --type mpijob -n {self.namespace}`"
            " to check the job status"
        )
        summarise(done, waits=self.how.stays)

    def _tell_unchanged(self, job: MPIJob, there: Submitted) -> None:
        if self._names_only:
            show(f"{view.RESOURCE}/{job.name}\n")
        elif self.how.output_format is None:
            show(f"{view.RESOURCE}/{job.name} {'resumed' if there.resumed else 'unchanged'}\n")
        elif not self._prints_end:
            show(_printed(there.found, self.how.output_format))
        say(f"The Job {job.name} is there already, with the very same request")
        remembering.created(self.backend, self.namespace, job)


def _announce(name: str, text: Callable[[], str]) -> None:
    """Print what was created; a lost output is only a warning, as the job exists."""
    try:
        show(text())
    except (OutputLost, BrokenPipeError) as error:
        warn(f"the job {name} was created, but not its output: {error}")


def _preview(job: MPIJob, how: Submission, offline: Offline, everywhere: Globals) -> None:
    from arena_topo.gang import planning  # noqa: PLC0415 - the verbs load what they need

    cluster, backend, namespace = _world(job, offline, everywhere)
    plan = planning.plan(
        job, backend, namespace=namespace, api=offline.api_version, cluster=cluster
    )
    tell(plan.notes)
    if how.dry_run is DryRun.SERVER:
        if backend is None:
            raise UsageError("--dry-run=server needs a cluster", hint="set KUBECONFIG")
        for warning in backend.validate(plan):
            warn(warning)
    show(_printed(plan.objects, how.output_format or Output.YAML))
    say(
        "Nothing was created. If you apply this yourself, another submission may take the same"
        " GPUs."
    )


def _sketched(command: Callable[..., None]) -> Callable[..., None]:
    """Fill in the fields of a job that a plan does not need."""

    @wraps(command)
    def sketched(**values: Any) -> None:
        left_open = {name: text for name, text in SKETCH.items() if not values.get(name)}
        command(**values | left_open)

    return sketched


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Options of `plan`: the question, and the format of the answer."""

    on: str = option(
        "",
        "Evaluate this placement instead of the best: the node and the GPUs of each worker. GPUs"
        " may be in use.",
        "NODE/GPU,GPU;...",
    )
    top: int = option(
        1,
        "List the best N placements: each is the best without the nodes of those above it.",
        at_least=1,
        excludes=("--output svg", "--on"),
    )
    count_only: bool = option(
        False,
        "Only count how many such gangs fit; choose no GPUs.",
        excludes=(
            *("--output svg", "--on", "--top"),
            *("--min-bandwidth", "--max-nodes", "--topology-required"),
        ),
    )
    plain: bool = option(False, "Draw with ASCII characters only.", name="--ascii")
    output_format: PictureOutputFlag = Output.WIDE


@_named
@_sketched
@spread
def plan_mpi(job: MPIJob, offline: Offline, asked: Question, everywhere: Globals) -> None:
    """Show where the workers of an MPI job would go, and their bandwidth; create nothing.

    Examples:
      # Where would eight pairs of GPUs go?
      plan mpi --gpus 2 --workers 8
      # The same on a dump of another cluster
      plan mpi --gpus 2 --workers 8 --state dump.json
      # What is this placement worth?
      plan mpi --gpus 2 --workers 2
      --on 'n1/0,3;n1/1,2'
    """
    from arena_topo.gang import comparison  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.jobs import plan_view as plans  # noqa: PLC0415 - reads the solver

    form = asked.output_format
    cluster, backend, namespace = _world(job, offline, everywhere)
    if asked.count_only and (job.gputopology or job.gpus):
        counts = comparison.count_only(job, backend, cluster)
        if form is Output.WIDE:
            display(plans.counted(counts, job))
        else:
            show(document(plans.counted_value(counts, job, namespace=namespace), form))
        if counts.refused is not None:
            raise counts.refused
        return
    proposal = comparison.propose(
        job,
        backend,
        namespace=namespace,
        api=offline.api_version,
        cluster=cluster,
        on=asked.on,
        top=asked.top,
    )
    if proposal.plan is not None:
        tell(proposal.notes)
    if form is Output.SVG:
        from arena_topo.jobs.plan_picture import drawn  # noqa: PLC0415 - only pictures

        show(drawn(proposal))
    elif form is not Output.WIDE:
        show(document(plans.value(proposal), form))
    elif proposal.plan is not None and proposal.plan.placement is not None:
        display(plans.text(proposal, unicode=draws(plain=asked.plain), width=columns()))
    if proposal.refused is not None:
        raise proposal.refused
    if proposal.verdict is None:
        say(f"The job {job.name} asks for no GPUs: add --gpus N.")


def _world(
    job: MPIJob, offline: Offline, everywhere: Globals
) -> tuple[Cluster | None, Backend | None, str]:
    """The cluster of a dump, or the engine, if there is one; and the namespace."""
    stopping.limit(everywhere.timeout)
    options = replace(everywhere.options(), fabric=network(offline.fabric, offline.state))
    found = opening.world(job, options, state=offline.state, emulating=emulating(), tell=say)
    return found.cluster, found.backend, found.namespace


def _printed(objects: Sequence[Manifest], document: Output) -> str:
    if document is Output.NAME:
        return "".join(f"{object_name(one)}\n" for one in objects)
    text = to_json(objects) if document is Output.JSON else to_yaml(objects)
    return text if text.endswith("\n") else text + "\n"
