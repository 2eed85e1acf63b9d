"""The commands that take a whole job: submit and plan."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from arena_topo import output
from arena_topo.backends import Backend, JobStatus, Phase
from arena_topo.cli.arguments import PANEL, Document, DryRun, FabricFlag, PlanFormat
from arena_topo.cli.detaching import detaching
from arena_topo.cli.opening import engine, namespace_of, network
from arena_topo.cli.options import (
    PROGRAM,
    BackendName,
    Globals,
    OutputLost,
    say,
    show,
    spread,
    tell,
)
from arena_topo.cli.terminal import columns, draws, wrapped
from arena_topo.errors import ArenaError, JobFailed, NotFound, UsageError
from arena_topo.flag import Flag
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion, Plan

if TYPE_CHECKING:
    from arena_topo.topology import Cluster
    from arena_topo.workflow import Submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """What `plan` and `submit --dry-run` share."""

    state: Annotated[
        tuple[str, ...],
        Flag(
            help="Place on the cluster in this dump of kubectl get -o json; repeat for more.",
            panel=PANEL,
            metavar="FILE",
        ),
    ] = ()
    fabric: FabricFlag = ""
    api_version: Annotated[
        ApiVersion | None,
        Flag(help="Version of the MPIJob to write; else what the cluster serves.", panel=PANEL),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """How a job is submitted: the options that are not about the job."""

    dry_run: Annotated[
        DryRun | None,
        Flag(
            help="Print what would be created, and create nothing.",
            panel=PANEL,
            metavar="[=client|server]",
        ),
    ] = None
    output: Annotated[
        Document | None, Flag(help="How to print the objects.", short="-o", panel=PANEL)
    ] = None
    wait: Annotated[
        bool, Flag(help="Wait for the end, and end with the launcher's exit code.", panel=PANEL)
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
        Flag(help="Only count how many such gangs fit; choose no GPUs.", panel=PANEL),
    ] = False,
    plain: Annotated[
        bool, Flag(help="Draw with ASCII characters only.", name="--ascii", panel=PANEL)
    ] = False,
    output_format: Annotated[
        PlanFormat, Flag(help="How to show it.", name="--output", short="-o", panel=PANEL)
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
