"""The commands that take a whole job: submit and plan."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from arena_topo.cli.arguments import (
    DOCUMENTS,
    DryRun,
    FabricFlag,
    FileFlag,
    Output,
    PictureOutputFlag,
    format_document,
    option,
    output,
    seats,
)
from arena_topo.cli.console import Console, OutputLost
from arena_topo.cli.interrupt_message import job_goes_on
from arena_topo.cli.options import PROGRAM, BackendName, Seconds
from arena_topo.cli.parameters import command_from_records, declaration_of
from arena_topo.cli.session import Session
from arena_topo.cli.settings import LINE
from arena_topo.cli.site_flags import CalibrationFlag, NoGDRFlag, NoP2PFlag, PluginFlag
from arena_topo.cli.targets import (
    calibrations_of_option,
    namespace_of,
    network_of_option,
    open_engine,
)
from arena_topo.engines import JobStatus, engine_choice
from arena_topo.engines.backend import Backend
from arena_topo.errors import InvalidJob, UsageError
from arena_topo.gang import Exists
from arena_topo.job import SKETCH, MPIJob, implying_placement
from arena_topo.jobs import view
from arena_topo.jobs.wait_progress import WaitProgress, summarise, wait_for_end
from arena_topo.manifests import Manifest
from arena_topo.manifests.serialize import kubectl_name, manifests_json, manifests_yaml
from arena_topo.manifests.versions import ApiVersion
from arena_topo.topology import USUAL, Software

if TYPE_CHECKING:
    from arena_topo.gang.planning import QueueView
    from arena_topo.gang.submission import Submitted
    from arena_topo.topology.fabric import FabricFile


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
    no_p2p: NoP2PFlag = False
    no_gdr: NoGDRFlag = False
    plugin: PluginFlag = None
    calibration: CalibrationFlag = ()
    api_version: ApiVersion | None = option(
        None, "Version of the MPIJob to write; else what the cluster serves."
    )

    def network(self, session: Session) -> FabricFile | None:
        """What the options say of the network and the machines; None for nothing."""
        known = self if self.state else self._for_engine(session)
        site = Software(p2p=not known.no_p2p, gdr=not known.no_gdr, plugin=known.plugin)
        pools = calibrations_of_option(known.calibration, session)
        return network_of_option(known.fabric, self.state, None if site == USUAL else site, pools)

    def _for_engine(self, session: Session) -> Self:
        """The options without those that the engine has no use for, with a note on each source.

        The nodes of the local engine have no network. One on the command line is refused when the
        engine is opened; one in a settings file is of a site's clusters, and not of this machine.
        """
        defaults: dict[str, Any] = {
            name: type(self).__dataclass_fields__[name].default for name in _NETWORK
        }
        given = (name for name, default in defaults.items() if getattr(self, name) != default)
        origins = {name: session.origin_of(name) for name in given}
        unused = {name: origin for name, origin in origins.items() if origin not in {None, LINE}}
        if not unused or engine_choice.engine_of(session.common.options()) == "kubernetes":
            return self
        for origin in dict.fromkeys(unused.values()):
            session.console.note(
                f"the network in {origin} is left out: it is not for the local engine"
            )
        return replace(self, **{name: defaults[name] for name in unused})


_NETWORK = ("fabric", "no_p2p", "no_gdr", "plugin", "calibration")
"""The options about the network and the machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
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
@command_from_records
def submit_mpi(job: MPIJob, how: SubmitOptions, offline: Offline, session: Session) -> None:
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
        _preview(job, how, offline, session)
        return
    # --timeout limits the whole command, not each request: the rest of it is for the job's end.
    backend = open_engine(
        session, image=job.image, fabric=offline.network(session), stays=how.stays
    )
    timeout = session.common.timeout
    order = _Order(
        how=how,
        session=session,
        console=session.console,
        backend=backend,
        namespace=namespace_of(session, backend),
        api=offline.api_version,
        end=None if timeout is None else time.monotonic() + timeout,
    )
    # Replacing a job may have filled the archive of logs beyond its limits.
    with closing(backend):
        order.carry_out(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """One submission: its options and its engine; `end` is the deadline (monotonic)."""

    how: SubmitOptions
    session: Session
    console: Console
    backend: Backend
    namespace: str
    api: ApiVersion | None
    end: float | None

    def carry_out(self, job: MPIJob) -> None:
        """Submit a job, unless it exists already; AlreadyExists for another job of its name."""
        from arena_topo.gang import submission  # noqa: PLC0415 - the verbs load what they need

        made: list[str] = []
        with (
            job_goes_on(
                self.console,
                self.backend,
                job.name,
                self.namespace,
                exists=lambda: bool(made),
                creates=True,
            ),
            WaitProgress(self.console, job.name, "is created") as stays,
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
        with job_goes_on(self.console, self.backend, job.name, self.namespace, exists=lambda: True):
            if done.existing:
                self._tell_unchanged(job, done)
            else:
                self._tell(job, done)
        if self.how.follow:
            self._follow(job.name)
        elif self.how.wait:
            wait_for_end(
                self.console,
                self.backend,
                job.name,
                self.namespace,
                timeout=self._left(),
                done=None if done.existing else done,
                ended=self._ended,
            )

    def _follow(self, name: str) -> None:
        """Follow the log, as `logs -f`."""
        from arena_topo.jobs import logs  # noqa: PLC0415 - only for who follows

        left = self._left()
        common = replace(
            self.session.common,
            namespace=self.namespace,
            # The engine is known by now.
            backend=BackendName(self.backend.name),
            timeout=None if left is None else Seconds(left),
        )
        logs.show_logs(name, logs.LogsOptions(follow=True), replace(self.session, common=common))

    def _ended(self, status: JobStatus) -> None:
        """Print the finished job as a document."""
        if self._prints_end:
            form = self.how.output_format or Output.JSON
            self.console.write(
                format_document(view.job_value(status, now=self.console.clock()), form)
            )

    @property
    def _prints_end(self) -> bool:
        """Whether the document on stdout is the finished job, and not its objects."""
        return self.how.wait and self.how.output_format in {Output.JSON, Output.YAML}

    def _announce(self, job: MPIJob, names: Sequence[str]) -> None:
        """Print what was created, at once."""
        text = "".join(f"{name} created\n" for name in names)
        if self._names_only:
            _announce(self.console, job.name, lambda: f"{view.RESOURCE}/{job.name}\n")
        elif self.how.output_format is None and self.how.follow:
            # Standard output is for the log.
            self.console.info(text.rstrip("\n"))
        elif self.how.output_format is None:
            _announce(self.console, job.name, lambda: text)
        self.session.names.created(self.backend, self.namespace, job)

    @property
    def _names_only(self) -> bool:
        """Whether only the name of the job goes to stdout."""
        quiet = self.session.common.quiet and self.how.output_format is None
        return quiet or self.how.output_format is Output.NAME

    def _left(self) -> float | None:
        """The seconds left of --timeout."""
        return None if self.end is None else max(0.0, self.end - time.monotonic())

    def _tell(self, job: MPIJob, done: Submitted) -> None:
        document = self.how.output_format
        if document is not None and not self._names_only and not self._prints_end:
            _announce(self.console, job.name, lambda: _printed(done.plan.objects, document))
        self.console.info(f"The Job {job.name} has been submitted successfully")
        self.console.info(
            f"You can run `{PROGRAM} get {job.name} --type mpijob -n {self.namespace}`"
            " to check the job status"
        )
        summarise(self.console, done, waits=self.how.stays)

    def _tell_unchanged(self, job: MPIJob, submitted: Submitted) -> None:
        if self._names_only:
            self.console.write(f"{view.RESOURCE}/{job.name}\n")
        elif self.how.output_format is None:
            self.console.write(
                f"{view.RESOURCE}/{job.name} {'resumed' if submitted.resumed else 'unchanged'}\n"
            )
        elif not self._prints_end:
            self.console.write(_printed(submitted.existing, self.how.output_format))
        change = "it was resumed" if submitted.resumed else "nothing was changed"
        self.console.info(f"Job {job.name} exists already with the same request; {change}")
        self.session.names.created(self.backend, self.namespace, job)


def _announce(console: Console, name: str, text: Callable[[], str]) -> None:
    """Print what was created; a lost output is only a warning, as the job exists."""
    try:
        console.write(text())
    except (OutputLost, BrokenPipeError) as error:
        console.warn(f"job {name} was created, but its output could not be written: {error}")


def _preview(job: MPIJob, how: SubmitOptions, offline: Offline, session: Session) -> None:
    from arena_topo.gang import planning  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.gang.config_files import read_config_files  # noqa: PLC0415 - as above

    console = session.console
    queue, backend, namespace = _world(job, offline, session)
    files = read_config_files(job)
    plan = planning.plan(
        job,
        backend,
        namespace=namespace,
        api=offline.api_version,
        cluster=None if queue is None else queue.left,
        files=files,
    )
    console.notes(plan.notes)
    if how.dry_run is DryRun.SERVER:
        if backend is None:
            raise UsageError("--dry-run=server needs a cluster", hint="set KUBECONFIG")
        for warning in backend.validate(plan):
            console.warn(warning)
    console.write(_printed(plan.objects, how.output_format or Output.YAML))
    console.info(
        "Nothing was created. If you apply this yourself, another submission may take the same"
        " GPUs."
    )


def _sketched(command: Callable[..., None]) -> Callable[..., None]:
    """Fill in what a plan does not need of a job; it learns whether --gputopology is `implied`."""

    @wraps(command)
    def sketched(**values: Any) -> None:
        left_open: dict[str, Any] = {
            name: text for name, text in SKETCH.items() if not values.get(name)
        }
        flag = implying_placement(values)
        if flag and not values.get("gpus"):
            raise InvalidJob(f"{flag} needs GPUs", hint="add --gpus N", flag=flag)
        placed = {"gputopology": True, "implied": True} if flag else {}
        command(**values | left_open | placed)

    declared = replace(declaration_of(command), implied=("--gputopology",))
    vars(sketched)["declaration"] = declared
    return sketched


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Options of `plan`: the question, and the format of the answer."""

    on: Annotated[
        str,
        seats(
            "Evaluate this placement instead of the best: the node and the GPUs of each worker."
            " GPUs may be in use."
        ),
    ] = ""
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
@command_from_records
def plan_mpi(
    job: MPIJob, offline: Offline, asked: Question, session: Session, **implied: bool
) -> None:
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
    from arena_topo.jobs import plan_view as plans  # noqa: PLC0415 - reads the solver
    from arena_topo.jobs.proposal import count_only, propose  # noqa: PLC0415 - as above

    console, form = session.console, asked.output_format
    queue, backend, namespace = _world(job, offline, session)
    if asked.count_only and (job.gputopology or job.gpus):
        counts = count_only(job, backend, None if queue is None else queue.left)
        if form is Output.WIDE:
            console.screen(plans.gangs_by_count(counts, job))
        else:
            console.write(
                format_document(plans.counted_value(counts, job, namespace=namespace), form)
            )
        if counts.refused is not None:
            raise counts.refused
        return
    proposal = propose(
        job,
        backend,
        namespace=namespace,
        api=offline.api_version,
        queue=queue,
        on=asked.on,
        top=asked.top,
        implied=implied.get("implied", False),
    )
    if proposal.plan is not None:
        console.notes(proposal.notes)
    # A placement that cannot be had is drawn all the same, so the error comes before the drawing.
    refused = proposal.refused if asked.on and form is Output.WIDE else None
    if refused is not None:
        console.error(refused)
    if form is Output.SVG:
        from arena_topo.jobs.plan_picture import draw_plan  # noqa: PLC0415 - only pictures

        console.write(draw_plan(proposal))
    elif form is not Output.WIDE:
        console.write(format_document(plans.plan_json(proposal), form))
    elif proposal.plan is not None and proposal.plan.placement is not None:
        console.screen(
            plans.plan_text(
                proposal, unicode=console.unicode(plain=asked.plain), width=console.drawing_width
            )
        )
    if refused is not None:
        raise typer.Exit(refused.exit_code)
    if proposal.refused is not None:
        raise proposal.refused
    if proposal.verdict is None:
        console.info(f"The job {job.name} asks for no GPUs: add --gpus N.")


def _world(
    job: MPIJob, offline: Offline, session: Session
) -> tuple[QueueView | None, Backend | None, str]:
    """The queue in a dump as a job sees it, or the engine; and the namespace."""
    session.set_deadline(session.common.timeout)
    options = replace(session.common.options(), fabric=offline.network(session))
    world = engine_choice.world(
        job, options, state=offline.state, emulating=session.emulating, tell=session.console.info
    )
    queue = None
    if world.queue is not None:
        from arena_topo.gang import planning  # noqa: PLC0415 - the verbs load what they need

        queue = planning.queue_in_dumps(world.queue, world.namespace, job)
    return queue, world.backend, world.namespace


def _printed(objects: Sequence[Manifest], document: Output) -> str:
    if document is Output.NAME:
        return "".join(f"{kubectl_name(manifest)}\n" for manifest in objects)
    text = manifests_json(objects) if document is Output.JSON else manifests_yaml(objects)
    return text if text.endswith("\n") else text + "\n"
