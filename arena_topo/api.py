"""The verbs as functions, for programs that submit jobs and ask about them.

They are exported by the package: `import arena_topo; arena_topo.submit(...)`. Each goes the way of
the command of its name, and returns what that prints as a value; `value` makes its JSON of it.

Nothing here prints, exits, heeds signals or keeps anything between two calls; each call opens an
engine of its own, so they may be made from many threads, for many clusters. No settings file and no
variable that stands for a flag is read: a program says all it means in `Options`. What goes wrong
is an ArenaError. `tell` hears what the commands say on stderr meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Self, TypeVar, overload

from arena_topo.backends import Backend, JobStatus, Options, Phase, unheard
from arena_topo.errors import JobFailed, NotFound, UsageError
from arena_topo.job import MPIJob
from arena_topo.manifests import ApiVersion
from arena_topo.output.values import LogLine, Records, value
from arena_topo.workflow import opening
from arena_topo.workflow.listing import Order
from arena_topo.workflow.opening import known
from arena_topo.workflow.submitting import Exists
from arena_topo.workflow.viewing import Parts, SeenJob
from arena_topo.workflow.waiting import Ending, Goal

if TYPE_CHECKING:
    from arena_topo.topology import Cluster, Machine
    from arena_topo.topology.fabricfile import FabricFile
    from arena_topo.workflow.checks import Report
    from arena_topo.workflow.comparison import Proposal
    from arena_topo.workflow.inspection import Inspection
    from arena_topo.workflow.logs import Shown
    from arena_topo.workflow.overview import Overview
    from arena_topo.workflow.submission import Submitted
    from arena_topo.workflow.why import Explanation

__all__ = [
    "Logs",
    "Tell",
    "check",
    "cluster",
    "delete",
    "get",
    "inspect",
    "list_jobs",
    "logs",
    "machine",
    "plan",
    "read_fabric",
    "read_machine",
    "replan",
    "resume",
    "submit",
    "suspend",
    "top_jobs",
    "top_nodes",
    "value",
    "wait",
    "why",
]

_Kind = TypeVar("_Kind", bound=StrEnum)

Tell = Callable[[str], None]
"""Hears what happens, in sentences for people, from the thread that made the call."""


# ---------------------------------------------------------------- new jobs


def submit(
    job: MPIJob,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    exists: Exists | Literal["fail", "ok", "replace"] = Exists.FAIL,
    api_version: ApiVersion | None = None,
    wait: bool = False,
    timeout: float | None = None,
    tell: Tell = unheard,
) -> Submitted:
    """Submit a job; a gang that does not fit now is created waiting, and `status` says so.

    Returns when all workers have their nodes, or the job waits. With `wait` it returns when the job
    is over, with its last status, for at most `timeout` seconds (TimedOut; the job goes on).
    `exists` says what becomes of a job that has the name: with `ok` the very same request is taken
    as submitted, and nothing is `created`; with `replace` it is deleted first. Raises Unplaceable
    (verdict NEVER) for a gang that cannot fit whatever ends, AlreadyExists, and JobFailed with the
    launcher's exit code where `wait` sees it fail.
    """
    from arena_topo.workflow import submission, submitting  # noqa: PLC0415 - reads the solver

    end = None if timeout is None else time.monotonic() + timeout
    backend = _engine(options, namespace, tell, image=job.image)
    where = backend.default_namespace()
    done: list[Submitted] = []

    def left() -> float | None:
        return None if end is None else max(0.0, end - time.monotonic())

    def create() -> None:
        made = submission.submit(
            job, backend, namespace=where, api=api_version, stay=wait, limit=left(), tell=tell
        )
        done.append(made)

    submitting.unless_there(
        job,
        backend,
        create,
        namespace=where,
        exists=_one(Exists, exists),
        api=api_version,
        limit=left(),
        tell=tell,
    )
    found = done[0] if done else submission.existing(job, backend, where, api=api_version)
    if not wait:
        return found
    status = submitting.to_the_end(
        backend, job.name, where, timeout=left(), tell=lambda one: _told(tell, one)
    )
    return replace(found, status=status)


def plan(
    job: MPIJob,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    state: Sequence[str] = (),
    api_version: ApiVersion | None = None,
    tell: Tell = unheard,
) -> Proposal:
    """Say where the workers of a job would go, and how good that is; nothing is created.

    `state` are files of `kubectl get ... -o json` to place on instead of an engine's cluster. That
    a gang does not fit is part of the answer: `verdict`, and the Unplaceable in `refused`.
    """
    from arena_topo.workflow import comparison  # noqa: PLC0415 - reads the solver

    found = opening.world(job, _reach(options, namespace), state=_words(state), tell=tell)
    return comparison.propose(
        job, found.backend, namespace=found.namespace, api=api_version, cluster=found.cluster
    )


# ---------------------------------------------------------------- jobs that are there


def get(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    metrics: bool = True,
    events: bool = False,
    explain: bool = False,
    tell: Tell = unheard,
) -> SeenJob:
    """Look at one job: its `status`, and what of it is not as planned (`drift`).

    `metrics` asks what its GPUs do, `events` what happened to it, `explain` why it is as it is.
    NotFound if there is none.
    """
    from arena_topo.workflow import viewing  # noqa: PLC0415 - the verbs load what they need

    backend = _engine(options, namespace, tell)
    parts = Parts(metrics=metrics, events=events, explain=explain)
    return viewing.look(backend, name, backend.default_namespace(), parts, tell=tell)


def list_jobs(
    *,
    options: Options | None = None,
    namespace: str | None = None,
    all_namespaces: bool = False,
    status: Sequence[Phase | str] = (),
    selector: str = "",
    mine: bool = False,
    sort_by: Order | Literal["age", "name", "status", "gpus", "namespace"] = Order.AGE,
    tell: Tell = unheard,
) -> tuple[JobStatus, ...]:
    """The jobs of a namespace, newest first: those in these phases, with these labels, or `mine`.

    `selector` is one of labels, such as `team=vision`; UsageError if it cannot be read.
    """
    from arena_topo.workflow import listing  # noqa: PLC0415 - the verbs load what they need

    phases = {_one(Phase, one) for one in _words(status)}
    order = _one(Order, sort_by)
    if selector:
        from arena_topo.backends.selectors import LabelSelector  # noqa: PLC0415 - rarely

        try:
            LabelSelector.parse(selector)
        except ValueError as error:
            raise UsageError("the selector is invalid", why=str(error)) from None
    backend = _engine(options, namespace, tell)
    within = None if all_namespaces else backend.default_namespace()
    chosen = listing.selection(backend, selector, mine=mine)
    return listing.listed(listing.found(backend, within, chosen), phases=phases, order=order)


@overload
def wait(
    names: str,
    *,
    until: Goal | Literal["finished", "succeeded", "running", "placed", "deleted"] = ...,
    timeout: float | None = ...,
    check: bool = ...,
    options: Options | None = ...,
    namespace: str | None = ...,
    tell: Tell = ...,
) -> Ending: ...


@overload
def wait(
    names: list[str] | tuple[str, ...],
    *,
    until: Goal | Literal["finished", "succeeded", "running", "placed", "deleted"] = ...,
    timeout: float | None = ...,
    check: bool = ...,
    options: Options | None = ...,
    namespace: str | None = ...,
    tell: Tell = ...,
) -> tuple[Ending, ...]: ...


def wait(
    names: str | list[str] | tuple[str, ...],
    *,
    until: Goal | Literal["finished", "succeeded", "running", "placed", "deleted"] = Goal.FINISHED,
    timeout: float | None = None,
    check: bool = False,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> Ending | tuple[Ending, ...]:
    """Wait until a job has reached something, or all of several have; how it ended for each.

    It ends as soon as one can never reach that any more, without those still on their way. With
    `check` that is raised: JobFailed, with the launcher's exit code, for the first that failed.
    TimedOut after `timeout` seconds; the jobs go on. NotFound if one is not there to begin with.
    """
    from arena_topo.workflow import waiting  # noqa: PLC0415 - the verbs load what they need

    goal = _one(Goal, until)
    reach = replace(_reach(options, namespace), repeating=True)
    if timeout is not None:
        reach = replace(reach, deadline=timeout)
    backend = opening.engine(reach, tell=tell)
    where = backend.default_namespace()
    ends = waiting.wait_all(
        backend,
        [names] if isinstance(names, str) else names,
        where,
        goal=goal,
        timeout=timeout,
        tell=lambda status: _told(tell, status),
    )
    for one in ends if check else ():
        if (wrong := waiting.failure(one, goal, where)) is not None:
            raise wrong
    return ends[0] if isinstance(names, str) else ends


def why(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> Explanation:
    """Why a job waits, failed or runs where it does; NotFound if there is none."""
    from arena_topo.workflow import viewing  # noqa: PLC0415 - the verbs load what they need

    backend = _engine(options, namespace, tell)
    return viewing.explained(backend, name, backend.default_namespace())


def delete(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    ignore_not_found: bool = False,
    tell: Tell = unheard,
) -> None:
    """Delete a job and all that belongs to it; NotFound if there is none, unless ignored."""
    backend = _engine(options, namespace, tell)
    where = backend.default_namespace()
    try:
        with known(name, where):
            backend.delete(name, where)
    except NotFound:
        if not ignore_not_found:
            raise


def suspend(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> None:
    """Stop a job until it is resumed; its GPUs are free for others meanwhile.

    NotPossible for one that is over, or that somebody else suspends; NotFound if there is none.
    """
    from arena_topo.workflow import submission  # noqa: PLC0415 - reads the solver

    backend = _engine(options, namespace, tell)
    where = backend.default_namespace()
    with known(name, where):
        submission.suspend(backend, name, where)


def resume(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    wait: bool = False,
    tell: Tell = unheard,
) -> JobStatus:
    """Start a job that waits, was suspended, or was left half-started; placed anew, in its turn.

    Returns when all workers have their nodes, with `wait` when they run. NotNow if it has to wait,
    Unplaceable if it can never fit, NotPossible for one that is over, NotFound if there is none.
    """
    from arena_topo.workflow import restarting, submission  # noqa: PLC0415 - reads the solver

    backend = _engine(options, namespace, tell)
    where = backend.default_namespace()
    with known(name, where):
        if not restarting.runs(backend, name, where):
            outcome = submission.resume(backend, name, where, stay=wait, tell=tell)
            restarting.check(outcome, name, where)
            _each(tell, outcome.notes)
        return backend.job(name, where)


def replan(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    wait: bool = False,
    tell: Tell = unheard,
) -> JobStatus:
    """Stop a running job and start it again on the best GPUs there are now; as `resume`."""
    from arena_topo.workflow import restarting, submission  # noqa: PLC0415 - reads the solver

    backend = _engine(options, namespace, tell)
    where = backend.default_namespace()
    with known(name, where):
        outcome = submission.replan(backend, name, where, stay=wait, tell=tell)
        restarting.check(outcome, name, where)
        _each(tell, outcome.notes)
        return backend.job(name, where)


# ---------------------------------------------------------------- logs


class Logs(Iterator[LogLine]):
    """The lines of a log as they come; to be gone through once, and closed if left before its end.

    `close` ends it where it is not gone through to its end, and so does the end of a `with`.
    """

    def __init__(self, shown: Shown, *, job: str, namespace: str) -> None:
        """Nothing is asked of anybody before the first line is."""
        self._shown = shown
        self._lines = self._made(Records(job=job, namespace=namespace))

    def _made(self, records: Records) -> Iterator[LogLine]:
        for batch in self._shown:
            yield from records.lines(batch)

    def __next__(self) -> LogLine:
        return next(self._lines)

    @property
    def status(self) -> JobStatus | None:
        """The job as it was last seen; None where it was not."""
        return self._shown.status

    @property
    def failure(self) -> JobFailed | None:
        """How the job failed that was followed to its end; None as long as it did not."""
        return self._shown.failure

    def close(self) -> None:
        """Read no more of it, and give back its connections."""
        close = getattr(self._lines, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.close()


def logs(
    name: str,
    *,
    follow: bool = False,
    instance: str | None = None,
    everyone: bool = False,
    only: Sequence[str] = (),
    container: str | None = None,
    previous: bool = False,
    tail: int | None = None,
    since: int | None = None,
    keep: bool = False,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> Logs:
    """The lines of a job's launcher, of the pod `instance`, or of `everyone`, each with its rank.

    `only` names some of them, as --only does (`rank:0-3`, `worker:2`, `launcher`). With `follow`
    it waits for the pods, and goes on until the job ends; `keep` keeps what is followed for when
    its pods are gone, as the command does. `tail` and `since` (seconds) cut off what is older.
    The loop over the lines raises NotFound if there is no such job or pod, or nothing to read.
    """
    from arena_topo.backends.logs import LogOptions  # noqa: PLC0415 - only for logs
    from arena_topo.workflow import logs as showing  # noqa: PLC0415 - only for logs
    from arena_topo.workflow import speakers  # noqa: PLC0415 - only for logs

    if instance and (everyone or only):
        raise UsageError("one is for one pod, the other for many", hint="leave out instance")
    backend = opening.engine(replace(_reach(options, namespace), repeating=follow), tell=tell)
    where = backend.default_namespace()
    asked = showing.Asked(
        instance=instance,
        everyone=everyone,
        only=speakers.only(_words(only)) if only else None,
        tags=True,
        keep=keep,
        options=LogOptions(
            follow=follow, tail=tail, since=since, container=container, previous=previous
        ),
    )
    shown = showing.show(backend, name, where, asked, tell=lambda note: tell(note.text))
    return Logs(shown, job=name, namespace=where)


# ---------------------------------------------------------------- nodes and machines


def top_nodes(
    names: Sequence[str] = (),
    *,
    options: Options | None = None,
    state: Sequence[str] = (),
    metrics: bool = False,
    tell: Tell = unheard,
) -> Overview:
    """The nodes, who has which of their GPUs, and with `metrics` what those do now.

    `state` are files of `kubectl get ... -o json` to look at instead. NotFound if a name is no
    node's.
    """
    from arena_topo.workflow import overview  # noqa: PLC0415 - only to look at nodes

    reach = options or Options()
    files = tuple(_words(state))
    source = files or opening.engine(reach, tell=tell)
    named = _words(names)
    return overview.look(source, named, fabric=reach.fabric, metrics=metrics, tell=tell)


def top_jobs(
    *,
    options: Options | None = None,
    namespace: str | None = None,
    all_namespaces: bool = False,
    metrics: bool = True,
    tell: Tell = unheard,
) -> tuple[SeenJob, ...]:
    """The jobs, those that ask for most GPUs first, with `metrics` each with what its GPUs do."""
    from arena_topo.workflow import overview  # noqa: PLC0415 - only here

    backend = _engine(options, namespace, tell)
    within = None if all_namespaces else backend.default_namespace()
    return overview.jobs(backend, within, metrics=metrics, tell=tell)


def cluster(
    *, options: Options | None = None, state: Sequence[str] = (), tell: Tell = unheard
) -> Cluster:
    """All nodes with their machines, what is free on them now, and the network between them.

    `state` are files of `kubectl get ... -o json` to read instead.
    """
    reach = options or Options()
    if state:
        from arena_topo import workflow  # noqa: PLC0415 - only for dumps

        return workflow.read_state(_words(state), reach.fabric)
    return opening.engine(reach, tell=tell).cluster()


def machine(preset: str) -> Machine:
    """A machine that is known by name, such as `dgx-1-v100`; UsageError lists the names."""
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    return presets.machine(preset, preset)


def read_machine(file: str) -> Machine:
    """The machine in a file: `nvidia-smi topo -m`, XML of NCCL or hwloc, `topology show -o json`.

    UsageError names the file and the line that makes no sense.
    """
    from arena_topo.workflow import machines  # noqa: PLC0415 - only for files

    return machines.read(file).machine


def read_fabric(file: str) -> FabricFile:
    """The network that a file describes, for `Options.fabric`; UsageError names what is wrong."""
    from arena_topo import workflow  # noqa: PLC0415 - only for files

    return workflow.read_fabric(file)


# ---------------------------------------------------------------- clusters


def check(
    *, options: Options | None = None, namespace: str | None = None, tell: Tell = unheard
) -> Report:
    """What a cluster and its caller lack for jobs to be placed; UsageError on the local engine."""
    from arena_topo.workflow import checks  # noqa: PLC0415 - only here

    backend = _engine(options, namespace, tell)
    return checks.check(opening.administration(backend), backend.default_namespace())


def inspect(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> Inspection:
    """Look into the workers of a job: what they really see, beside what was planned.

    UsageError on the local engine, NotFound if there is no such job.
    """
    from arena_topo.workflow import inspection  # noqa: PLC0415 - only here

    backend = _engine(options, namespace, tell)
    opening.administration(backend)
    where = backend.default_namespace()
    with known(name, where):
        return inspection.inspect(backend, name, where)


# ---------------------------------------------------------------- how


def _reach(options: Options | None, namespace: str | None) -> Options:
    reach = options or Options()
    return replace(reach, namespace=namespace) if namespace else reach


def _engine(
    options: Options | None, namespace: str | None, tell: Tell, *, image: str | None = None
) -> Backend:
    return opening.engine(_reach(options, namespace), image=image, tell=tell)


def _words(several: Sequence[str]) -> Sequence[str]:
    """What is meant by one word where several could be."""
    return [several] if isinstance(several, str) else several


def _one(kind: type[_Kind], said: str) -> _Kind:
    """The member of an enumeration that a word means; UsageError lists them."""
    try:
        return kind(said)
    except ValueError:
        known = ", ".join(one.value for one in kind)
        raise UsageError(f"there is no {said!r} here", why=f"it is one of {known}") from None


def _told(tell: Tell, status: JobStatus) -> None:
    tell(f"{status.name} is {status.phase}{f': {status.reason}' if status.reason else ''}")


def _each(tell: Tell, notes: Iterable[str]) -> None:
    for note in notes:
        tell(note)
