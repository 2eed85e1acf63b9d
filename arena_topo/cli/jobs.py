"""The commands about jobs: submit, plan, get, list, logs, delete."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from arena_topo import output
from arena_topo.backends import Backend, JobStatus, LogOptions, Phase
from arena_topo.cli.detaching import detaching
from arena_topo.cli.options import (
    PROGRAM,
    BackendName,
    Globals,
    OutputLost,
    put,
    say,
    show,
    spread,
    tell,
)
from arena_topo.errors import AccessDenied, ArenaError, JobFailed, NotFound, UsageError
from arena_topo.flag import Flag
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion, Plan

if TYPE_CHECKING:
    from arena_topo.topology import Cluster
    from arena_topo.topology.fabricfile import FabricFile
    from arena_topo.workflow import Submitted

_PANEL = "Options"

Name = Annotated[str, typer.Argument(metavar="JOB", show_default=False)]
Names = Annotated[list[str], typer.Argument(metavar="JOB...", show_default=False)]


class Format(StrEnum):
    """How `get` and `list` show jobs."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @classmethod
    def parse(cls, text: str) -> Format:
        """Read a format; ValueError carries arena's text."""
        if text not in set(cls):
            raise ValueError(f"unknown output format,only support:[{'|'.join(cls)}], got {text!r}")
        return cls(text)


class Document(StrEnum):
    """How manifests are printed."""

    YAML = "yaml"
    JSON = "json"
    NAME = "name"


class PlanFormat(StrEnum):
    """How `plan` shows a placement."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class DryRun(StrEnum):
    """Who looks at a job that is not created."""

    CLIENT = "client"
    SERVER = "server"


_KINDS: Mapping[str, tuple[str, str]] = {
    "tf": ("tfjob", "Tensorflow"),
    "mpi": ("mpijob", "MPI"),
    "py": ("pytorchjob", "Pytorch"),
    "horovod": ("horovodjob", "Horovod"),
    "volcano": ("volcanojob", "Volcano"),
    "et": ("etjob", "ElasticTraining"),
    "spark": ("sparkjob", "Spark"),
    "dp": ("deepspeedjob", "DeepSpeed"),
    "rj": ("rayjob", "RayJob"),
}


class Kind(StrEnum):
    """What `--type` means: jobs of arena-topo, or jobs of a kind that it never has."""

    MPI = "mpijob"
    OTHER = "other"

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read a type by any of arena's names for it; ValueError lists the types."""
        wanted = text.lower()
        if wanted in {"mpijob", "mpi", "mj"}:
            return cls.MPI
        if any(
            wanted in {short, *(name.lower() for name in names)} for short, names in _KINDS.items()
        ):
            return cls.OTHER
        known = ",".join(f"{short}({names[1]})" for short, names in _KINDS.items())
        raise ValueError(f"unsupport job type,arena only supports: [{known}], got {text!r}")


TypeFlag = Annotated[
    Kind | None,
    Flag(help="Kind of job.", name="--type", short="-T", panel=_PANEL, metavar="KIND"),
]
FabricFlag = Annotated[
    str,
    Flag(
        help="Take the levels of the network and their speed from this file; - is stdin.",
        panel=_PANEL,
        metavar="FILE",
    ),
]
FormatFlag = Annotated[Format, Flag(help="How to show it.", short="-o", panel=_PANEL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """What `plan` and `submit --dry-run` share."""

    state: Annotated[
        tuple[str, ...],
        Flag(
            help="Place on the cluster in this dump of kubectl get -o json; repeat for more.",
            panel=_PANEL,
            metavar="FILE",
        ),
    ] = ()
    fabric: FabricFlag = ""
    api_version: Annotated[
        ApiVersion | None,
        Flag(help="Version of the MPIJob to write; else what the cluster serves.", panel=_PANEL),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """How a job is submitted: the options that are not about the job."""

    dry_run: Annotated[
        DryRun | None,
        Flag(
            help="Print what would be created, and create nothing.",
            panel=_PANEL,
            metavar="[=client|server]",
        ),
    ] = None
    output: Annotated[
        Document | None, Flag(help="How to print the objects.", short="-o", panel=_PANEL)
    ] = None
    wait: Annotated[
        bool, Flag(help="Wait for the end, and end with the launcher's exit code.", panel=_PANEL)
    ] = False


@spread
def submit_mpi(job: MPIJob, how: Submission, offline: Offline, everywhere: Globals) -> None:
    """Submit an MPI job; with --gputopology each worker gets the best-linked GPUs."""
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    if how.dry_run is not None:
        _preview(job, how, offline, everywhere)
        return
    if offline.state:
        raise UsageError(
            "--state is only for --dry-run and plan",
            why="a job is created on the cluster as it is, not as a file says it was",
            hint="add --dry-run",
        )
    begun = time.monotonic()
    # The end of the job is waited for with patience; what is left of --timeout is for that.
    asking = replace(everywhere, timeout=None) if how.wait else everywhere
    backend = engine(asking, image=job.image, fabric=network(offline.fabric))
    namespace = namespace_of(everywhere, backend)
    made: list[str] = []

    def announce(names: Sequence[str]) -> None:
        made.extend(names)
        if how.output is None:
            _announce(job.name, lambda: "".join(f"{name} created\n" for name in names))

    with detaching(backend, job.name, namespace, made=lambda: bool(made)):
        done = workflow.submit(
            job,
            backend,
            namespace=namespace,
            api=offline.api_version,
            stay=how.wait,
            limit=everywhere.timeout,
            announce=announce,
            tell=say,
        )
    if how.output is not None:
        document = how.output
        _announce(job.name, lambda: _printed(done.plan, document))
    say(f"The Job {job.name} has been submitted successfully")
    say(
        f"You can run `{PROGRAM} get {job.name} --type mpijob -n {namespace}`"
        " to check the job status"
    )
    _summarise(done, waits=how.wait)
    if how.wait:
        limit = everywhere.timeout
        left = None if limit is None else max(0.0, limit - (time.monotonic() - begun))
        _wait(backend, job.name, namespace, left)


def _announce(name: str, text: Callable[[], str]) -> None:
    """Print what was created; the job is there even where nobody can read that."""
    try:
        show(text())
    except (OutputLost, BrokenPipeError) as error:
        say(f"warning: the job {name} was created, but not its output: {error}")


def _preview(job: MPIJob, how: Submission, offline: Offline, everywhere: Globals) -> None:
    if how.dry_run is DryRun.SERVER and offline.state:
        raise UsageError(
            "--dry-run=server and --state exclude each other",
            why="a dump has no server that could look at the objects",
            hint="use --dry-run=client",
        )
    if how.wait:
        raise UsageError("--wait and --dry-run exclude each other", hint="leave one of them out")
    plan, backend = _planned(job, offline, everywhere)
    if how.dry_run is DryRun.SERVER:
        if backend is None:
            raise UsageError("--dry-run=server needs a cluster", hint="set KUBECONFIG")
        for warning in backend.validate(plan):
            say(f"warning: {warning}")
    show(_printed(plan, how.output or Document.YAML))
    say(f"Nothing was created; only `{PROGRAM} submit` guards against other submitters.")


@spread
def plan_mpi(
    job: MPIJob,
    offline: Offline,
    everywhere: Globals,
    *,
    count_only: Annotated[
        bool,
        Flag(help="Only count how many such gangs fit; choose no GPUs.", panel=_PANEL),
    ] = False,
    plain: Annotated[
        bool, Flag(help="Draw with ASCII characters only.", name="--ascii", panel=_PANEL)
    ] = False,
    output_format: Annotated[
        PlanFormat, Flag(help="How to show it.", name="--output", short="-o", panel=_PANEL)
    ] = PlanFormat.WIDE,
) -> None:
    """Show where the workers of an MPI job would go and how good that is; create nothing."""
    from arena_topo.output import plan as plans  # noqa: PLC0415 - reads the solver
    from arena_topo.workflow import comparison  # noqa: PLC0415 - the verbs load what they need

    cluster, backend, namespace = _world(job, offline, everywhere)
    if count_only and job.gputopology:
        counts = comparison.count_only(job, backend, cluster)
        if output_format is PlanFormat.WIDE:
            show(plans.counted(counts, job))
        else:
            show(_data(plans.counted_value(counts, job, namespace=namespace), output_format))
        if counts.refused is not None:
            raise counts.refused
        return
    proposal = comparison.propose(
        job, backend, namespace=namespace, api=offline.api_version, cluster=cluster
    )
    if proposal.plan is not None:
        tell(proposal.notes)
    if output_format is not PlanFormat.WIDE:
        show(_data(plans.value(proposal), output_format))
    elif proposal.plan is not None and proposal.plan.placement is not None:
        show(plans.text(proposal, unicode=draws(plain=plain), width=columns()))
    if proposal.refused is not None:
        raise proposal.refused
    if proposal.verdict is None:
        say(f"The job {job.name} is not placed: add --gputopology.")


def _data(value: Mapping[str, Any], output_format: PlanFormat) -> str:
    if output_format is PlanFormat.YAML:
        return output.to_yaml(value)
    return output.to_json(value) + "\n"


def draws(*, plain: bool) -> bool:
    """Whether drawings may use Unicode: nobody asked for ASCII, and locale and output take it."""
    encoding = (sys.stdout.encoding if sys.stdout else None) or "utf-8"
    return not plain and not _plain_locale() and encoding.lower().startswith("utf")


def _plain_locale() -> bool:
    """Whether the locale is said to be C or POSIX; Python writes UTF-8 there all the same."""
    character = os.environ.get("LC_CTYPE", "")
    if character == "C.UTF-8":
        # Python itself puts this where the locale is C (PEP 538).
        character = ""
    said = os.environ.get("LC_ALL") or character or os.environ.get("LANG", "")
    return said in {"C", "POSIX"}


def columns() -> int:
    """Columns of the terminal, at least 60; 100 where the output is no terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return 100
    return max(60, shutil.get_terminal_size().columns)


def wrapped(stream: TextIO | None) -> int | None:
    """Columns to wrap sentences at: those of a terminal; None where the output is none."""
    return columns() if stream is not None and stream.isatty() else None


def _planned(job: MPIJob, offline: Offline, everywhere: Globals) -> tuple[Plan, Backend | None]:
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    cluster, backend, namespace = _world(job, offline, everywhere)
    plan = workflow.plan(
        job, backend, namespace=namespace, api=offline.api_version, cluster=cluster
    )
    tell(plan.notes)
    return plan, backend


def _world(
    job: MPIJob, offline: Offline, everywhere: Globals
) -> tuple[Cluster | None, Backend | None, str]:
    """The cluster of a dump, if one is given; else the engine, if there is one; the namespace."""
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    for flag, said in (
        ("--emulate", bool(everywhere.emulate)),
        (f"--backend {everywhere.backend}", everywhere.backend is not BackendName.AUTO),
    ):
        if offline.state and said:
            raise UsageError(
                f"--state and {flag} exclude each other",
                why="a dump is placed on as it is, and no engine is asked",
                hint="leave one of them out",
            )
    fabric = network(offline.fabric, offline.state)
    cluster = workflow.read_state(offline.state, fabric) if offline.state else None
    # Objects can be made without a cluster; only placing needs one.
    offline_only = cluster is not None or workflow.nowhere(everywhere.options(), job.image)
    backend = None if offline_only else engine(everywhere, image=job.image, fabric=fabric)
    namespace = namespace_of(everywhere, backend) if backend else everywhere.namespace or "default"
    return cluster, backend, namespace


def _printed(plan: Plan, document: Document) -> str:
    from arena_topo import manifests  # noqa: PLC0415 - loads YAML

    if document is Document.NAME:
        return "".join(f"{manifests.object_name(one)}\n" for one in plan.objects)
    text = (
        manifests.to_json(plan.objects)
        if document is Document.JSON
        else manifests.to_yaml(plan.objects)
    )
    return text if text.endswith("\n") else text + "\n"


def _summarise(done: Submitted, *, waits: bool) -> None:
    plan, status = done.plan, done.status
    tell((*plan.notes, *done.notes))
    # What was recorded, not what was planned: an engine may have had to decide anew.
    forecast = (status.forecast if status else None) or plan.forecast
    if forecast is not None and forecast.workers:
        slots = max(1, plan.job.gpus)
        table = output.placement(
            forecast, plan.job.name, slots=slots, binding=plan.binding, width=wrapped(sys.stderr)
        )
        say(table.rstrip("\n"))
        from arena_topo.workflow import comparison  # noqa: PLC0415 - the verbs load what they need

        if plan.waiting is None and (advice := comparison.advised(plan)) is not None:
            say(output.fold(f"Advice: {advice}", wrapped(sys.stderr)))
    if status is None:
        say(f"warning: the job {plan.job.name} was created, but cannot be read: {done.unread}")
    elif not waits and (trouble := output.trouble(status)) is not None:
        say(output.fold(trouble, wrapped(sys.stderr)))
    if done.nearest is not None:
        say(output.fold(f"  try:  {done.nearest}", wrapped(sys.stderr), indent="        "))
    if done.starter is not None:
        say(output.fold(f"  {done.starter}", wrapped(sys.stderr)))


def _wait(backend: Backend, name: str, namespace: str, timeout: float | None) -> None:
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.workflow import submission  # noqa: PLC0415

    def changed(status: JobStatus) -> None:
        reason = f": {status.reason}" if status.reason else ""
        say(f"The Job {name} is {status.phase}{reason}")

    try:
        with detaching(backend, name, namespace):
            status = workflow.wait(
                backend,
                name,
                namespace,
                timeout=timeout,
                tell=changed,
                each=lambda: submission.tend(backend, name, namespace),
            )
    except NotFound:
        raise ArenaError(f"the job {name} was deleted while it was waited for") from None
    if status.phase is Phase.FAILED:
        raise JobFailed(
            f"the job {name} failed",
            exit_code=status.exit_code or 1,
            hint=f"{PROGRAM} logs {name} -n {namespace}",
        )


@spread
def get(
    name: Name,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    events: Annotated[
        bool, Flag(help="Show what happened to the job and its pods.", short="-e", panel=_PANEL)
    ] = False,
    gpus: Annotated[
        bool, Flag(help="Show the GPUs of each pod.", short="-g", panel=_PANEL)
    ] = False,
    explain: Annotated[bool, Flag(help="Say why it is as it is, as `why` does.", panel=_PANEL)] = (
        False
    ),
    output_format: Annotated[
        Format, Flag(help="How to show it.", name="--output", short="-o", panel=_PANEL)
    ] = Format.WIDE,
) -> None:
    """Show one job: its state, its pods, where they run and why."""
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    if kind is Kind.OTHER:
        raise missing(name, namespace)
    from arena_topo.cli import why  # noqa: PLC0415 - it takes this module's words

    now = time.time()
    found = why.explained(backend, name, namespace, now) if explain else None
    try:
        status = backend.job(name, namespace)
    except NotFound:
        raise missing(name, namespace) from None
    except AccessDenied:
        # The pods may not be listed: what can be said without them was asked for.
        if found is None:
            raise
        status = found.status
    if output_format is Format.NAME:
        show(f"{output.RESOURCE}/{status.name}\n")
        return
    drift = why.drifted(backend, status)
    if output_format is not Format.WIDE:
        value = output.job_value(status, now=now) | why.values(drift, found)
        show(_document(value, output_format))
        return
    happened = backend.events(status) if events else None
    width = wrapped(sys.stdout)
    screen = output.job(status, now=now, gpus=gpus, events=happened, width=width)
    show("\n".join([screen, *why.blocks(drift, found, width=width)]))
    trouble = output.trouble(status)
    if found is None and trouble is not None and not output.explained(status):
        say(output.fold(trouble, wrapped(sys.stderr)))


def _document(value: dict[str, Any] | list[dict[str, Any]], output_format: Format) -> str:
    """One job or many, as JSON or in YAML's spelling of the keys."""
    if output_format is Format.JSON:
        return output.to_json(value)
    if isinstance(value, list):
        return output.to_yaml([output.for_yaml(one) for one in value])
    return output.to_yaml(output.for_yaml(value))


@spread
def list_jobs(
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    all_namespaces: Annotated[
        bool, Flag(help="Show the jobs of all namespaces.", short="-A", panel=_PANEL)
    ] = False,
    output_format: Annotated[
        Format, Flag(help="How to show it.", name="--output", short="-o", panel=_PANEL)
    ] = Format.WIDE,
) -> None:
    """List the jobs, newest first."""
    backend = engine(everywhere)
    namespace = None if all_namespaces else namespace_of(everywhere, backend)
    statuses = () if kind is Kind.OTHER else backend.jobs(namespace)
    now = time.time()
    if output_format is Format.NAME:
        show("".join(f"{output.RESOURCE}/{one.name}\n" for one in statuses))
    elif output_format is not Format.WIDE:
        show(_document([output.job_value(one, now=now) for one in statuses], output_format))
    else:
        show(output.jobs(statuses, now=now, namespaces=all_namespaces))
        if any(one.forecast is not None and one.forecast.emulated for one in statuses):
            say(output.EMULATED)


@spread
def logs(
    name: Name,
    everywhere: Globals,
    *,
    follow: Annotated[
        bool,
        Flag(help="Wait for the pod, and go on until it ends.", short="-f", panel=_PANEL),
    ] = False,
    since: Annotated[
        str,
        Flag(help="Only what is newer than this, such as 1h30m.", panel=_PANEL, metavar="DURATION"),
    ] = "",
    since_time: Annotated[
        str, Flag(help="Only what is newer than this moment.", panel=_PANEL, metavar="RFC3339")
    ] = "",
    tail: Annotated[
        int, Flag(help="Only so many of the last lines; -1 shows all.", short="-t", panel=_PANEL)
    ] = -1,
    timestamps: Annotated[bool, Flag(help="Start each line with its time.", panel=_PANEL)] = False,
    instance: Annotated[
        str, Flag(help="Pod to read; else the launcher.", short="-i", panel=_PANEL, metavar="POD")
    ] = "",
    container: Annotated[
        str, Flag(help="Container to read.", short="-c", panel=_PANEL, metavar="NAME")
    ] = "",
    kind: TypeFlag = None,
) -> None:
    """Show the log of a job's launcher, or of another of its pods."""
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    options = LogOptions(
        follow=follow,
        tail=tail if tail > 0 else None,
        since=_since(since) if since else None,
        since_time=_moment(since_time) if since_time else None,
        timestamps=timestamps,
        container=container or None,
    )
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    if kind is Kind.OTHER:
        raise missing(name, namespace)
    pieces = workflow.follow(
        backend, name, namespace, instance=instance or None, options=options, tell=say
    )
    with detaching(backend, name, namespace):
        for piece in pieces:
            put(piece)


def _since(text: str) -> int:
    """Seconds of arena's `--since`: whole numbers of h, m and s, summed."""
    if re.fullmatch(r"([0-9]+[hms])+", text) is None:
        raise UsageError(
            "failed to validate log args: failed to parse since seconds,invalid format,"
            "should like: ['1h','1m','1s','1h1m1s'...]",
            why=f"--since is {text!r}",
        )
    sizes = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * sizes[unit] for number, unit in re.findall(r"([0-9]+)([hms])", text))


def _moment(text: str) -> str:
    try:
        aware = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise UsageError(
            "failed to validate log args: --since-time is invalid",
            why=f"expected a time such as 2026-01-31T08:00:00Z, got {text!r}",
        )
    return text


@spread
def delete(
    names: Names,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    ignore_not_found: Annotated[
        bool, Flag(help="Do not mind jobs that are not there.", panel=_PANEL)
    ] = False,
) -> None:
    """Delete jobs and all that belongs to them."""
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    code = 0
    for name in dict.fromkeys(names):
        try:
            if kind is Kind.OTHER:
                raise missing(name, namespace)
            backend.delete(name, namespace)
        except NotFound:
            if not ignore_not_found:
                say(output.complaint(missing(name, namespace)))
                code = code or 1
        except ArenaError as error:
            # The other jobs are deleted all the same; the first failure decides the exit code.
            say(output.complaint(error))
            code = code or error.exit_code
        else:
            say(f"The training job {name} has been deleted successfully")
    if code:
        raise typer.Exit(code)


def missing(name: str, namespace: str) -> NotFound:
    """The error of a job that is not there."""
    # Programs built on arena look for the first part of this text.
    return NotFound(
        f"Not found training job {name} in namespace {namespace},"
        f"please use '{PROGRAM} submit' to create it."
    )


def network(file: str, state: tuple[str, ...] = ()) -> FabricFile | None:
    """The network as `--fabric` describes it; None without one. `state` are the dumps read too."""
    if not file:
        return None
    if file == "-" and "-" in state:
        raise UsageError("--fabric and --state cannot both be standard input")
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    return workflow.read_fabric(file)


def engine(
    everywhere: Globals, *, image: str | None = None, fabric: FabricFile | None = None
) -> Backend:
    """Open the engine that the options ask for, and say so where nobody asked for a local one.

    `fabric` says what joins the nodes of its cluster.
    """
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need

    options = replace(everywhere.options(), fabric=fabric)
    backend = workflow.open_backend(options, image=image)
    if options.backend == "auto" and backend.name == "local":
        say("No Kubernetes cluster is configured: using this machine (--backend local).")
    return backend


def namespace_of(everywhere: Globals, backend: Backend) -> str:
    """The namespace asked for, else the engine's own."""
    return everywhere.namespace or backend.default_namespace()
