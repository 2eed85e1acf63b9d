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
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from arena_topo.as_json import Logs, value
from arena_topo.engines import Backend, JobStatus, Options, Phase, opening, unheard
from arena_topo.engines.opening import known
from arena_topo.engines.waiting import Ending, Goal
from arena_topo.errors import NotFound, UsageError
from arena_topo.gang.submitting import Exists
from arena_topo.job import MPIJob
from arena_topo.jobs.filtering import Order
from arena_topo.manifests.versions import ApiVersion, VersionName
from arena_topo.reasons.viewing import Parts, SeenJob

if TYPE_CHECKING:
    import threading

    from arena_topo.admin.checks import Report
    from arena_topo.admin.inspection import Inspection
    from arena_topo.gang.comparison import Proposal
    from arena_topo.gang.submission import Submitted
    from arena_topo.nodes.overview import Overview
    from arena_topo.reasons.explanation import Explanation
    from arena_topo.topology import Cluster, Machine
    from arena_topo.topology.fabric import FabricFile

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
    "picture",
    "plan",
    "presets",
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
    api_version: ApiVersion | VersionName | None = None,
    wait: bool = False,
    timeout: float | None = None,
    tell: Tell = unheard,
) -> Submitted:
    """Submit a job; a gang that does not fit now is created waiting, and `status` says so.

    Returns when all workers have their nodes, or the job waits; with `wait` when the job is over,
    with its last status. TimedOut after `timeout` seconds; a job that was created goes on.
    `exists` says what becomes of a job that has the name: with `ok` the very same request is taken
    as submitted, and nothing is `created`; with `replace` it is deleted first. Raises Unplaceable
    (verdict NEVER) for a gang that cannot fit whatever ends, AlreadyExists, and JobFailed with the
    launcher's exit code where `wait` sees it fail.
    """
    from arena_topo.gang import submission, submitting  # noqa: PLC0415 - reads the solver

    reach = _within(_reach(options, namespace), timeout)
    limit = reach.deadline if timeout != 0 else 0.0
    end = None if limit is None else time.monotonic() + limit
    api, on_taken = _version(api_version), _one(Exists, exists)
    done: list[Submitted] = []

    def left() -> float | None:
        return None if end is None else max(0.0, end - time.monotonic())

    with _opened(reach, tell, image=job.image) as backend:
        where = backend.default_namespace()

        def create() -> None:
            made = submission.submit(
                job, backend, namespace=where, api=api, stay=wait, limit=left(), tell=tell
            )
            done.append(made)

        submitting.unless_there(
            job,
            backend,
            create,
            namespace=where,
            exists=on_taken,
            api=api,
            limit=left(),
            tell=tell,
        )
        found = done[0] if done else submission.existing(job, backend, where, api=api)
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
    api_version: ApiVersion | VersionName | None = None,
    on: str = "",
    top: int = 1,
    tell: Tell = unheard,
) -> Proposal:
    """Say where the workers of a job would go, and how good that is; nothing is created.

    `MPIJob.sketch` makes a job that needs no name, image or command. `state` are files of
    `kubectl get ... -o json` to place on instead of an engine's cluster. `on` is a placement to
    value instead of the best (`node-a/0,3;node-b/1,2`), `top` how many of the best are in `rows`.
    That a gang does not fit is part of the answer: `verdict`, and the Unplaceable in `refused`.
    """
    from arena_topo.gang import comparison  # noqa: PLC0415 - reads the solver

    api = _version(api_version)
    found = opening.world(job, _reach(options, namespace), state=_words(state), tell=tell)
    try:
        return comparison.propose(
            job,
            found.backend,
            namespace=found.namespace,
            api=api,
            cluster=found.cluster,
            on=on,
            top=top,
        )
    finally:
        if found.backend is not None:
            found.backend.close()


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
    from arena_topo.reasons import viewing  # noqa: PLC0415 - the verbs load what they need

    with _opened(_reach(options, namespace), tell) as backend:
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
    from arena_topo.jobs import filtering  # noqa: PLC0415 - the verbs load what they need

    phases = {_one(Phase, one.upper()) for one in _words(status)}
    order = _one(Order, sort_by)
    if selector:
        from arena_topo.clusters.selectors import LabelSelector  # noqa: PLC0415 - rarely

        try:
            LabelSelector.parse(selector)
        except ValueError as error:
            raise UsageError("the selector is invalid", why=str(error)) from None
    with _opened(_reach(options, namespace), tell) as backend:
        within = None if all_namespaces else backend.default_namespace()
        chosen = filtering.selection(backend, selector, mine=mine)
        return filtering.listed(
            filtering.found(backend, within, chosen), phases=phases, order=order
        )


@overload
def wait(  # type: ignore[overload-overlap]  # a text is one name, though it is iterable too
    names: str,
    *,
    until: Goal | Literal["finished", "succeeded", "running", "placed", "deleted"] = ...,
    timeout: float | None = ...,
    check: bool = ...,
    stop: threading.Event | None = ...,
    options: Options | None = ...,
    namespace: str | None = ...,
    tell: Tell = ...,
) -> Ending: ...


@overload
def wait(
    names: Iterable[str],
    *,
    until: Goal | Literal["finished", "succeeded", "running", "placed", "deleted"] = ...,
    timeout: float | None = ...,
    check: bool = ...,
    stop: threading.Event | None = ...,
    options: Options | None = ...,
    namespace: str | None = ...,
    tell: Tell = ...,
) -> tuple[Ending, ...]: ...


def wait(
    names: str | Iterable[str],
    *,
    until: Goal | Literal["finished", "succeeded", "running", "placed", "deleted"] = Goal.FINISHED,
    timeout: float | None = None,
    check: bool = False,
    stop: threading.Event | None = None,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> Ending | tuple[Ending, ...]:
    """Wait until a job has reached something, or all of several have; how it ended for each.

    Of several there is one Ending for each name, in their order. It ends as soon as one can never
    reach that any more, or when another thread sets `stop`: those still on their way are OPEN. With
    `check` what went wrong is raised: JobFailed, with the launcher's exit code, for the first that
    failed, JobDeleted for one that is gone. TimedOut after `timeout` seconds; the jobs go on. There
    is one look at least, so that 0 asks how it stands. NotFound if one is not there to begin with.
    """
    from arena_topo.engines import waiting  # noqa: PLC0415 - the verbs load what they need

    goal, several = _one(Goal, until), _words(names)
    reach = _reach(options, namespace)
    limit = _least(timeout, reach.deadline)
    # One look may take its time, even where nothing may be waited for.
    with _opened(replace(reach, repeating=True, deadline=limit or None), tell) as backend:
        where = backend.default_namespace()
        found = waiting.wait_all(
            backend,
            several,
            where,
            goal=goal,
            timeout=limit,
            tell=lambda status: _told(tell, status),
            stop=stop,
        )
    for one in found if check else ():
        if (wrong := waiting.failure(one, goal)) is not None:
            raise wrong
    by_name = {one.name: one for one in found}
    return by_name[names] if isinstance(names, str) else tuple(by_name[name] for name in several)


def why(
    name: str,
    *,
    options: Options | None = None,
    namespace: str | None = None,
    tell: Tell = unheard,
) -> Explanation:
    """Why a job waits, failed or runs where it does; NotFound if there is none."""
    from arena_topo.reasons import viewing  # noqa: PLC0415 - the verbs load what they need

    with _opened(_reach(options, namespace), tell) as backend:
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
    with _opened(_reach(options, namespace), tell) as backend:
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
    from arena_topo.gang import submission  # noqa: PLC0415 - reads the solver

    with _opened(_reach(options, namespace), tell) as backend:
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
    """Start a waiting, suspended or interrupted job in its turn; it gets a new placement.

    Returns when all workers have their nodes, with `wait` when they run. NotNow if it has to wait,
    Unplaceable if it can never fit, NotPossible for one that is over, NotFound if there is none.
    """
    from arena_topo.gang import restarting, submission  # noqa: PLC0415 - reads the solver

    with _opened(_reach(options, namespace), tell) as backend:
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
    from arena_topo.gang import restarting, submission  # noqa: PLC0415 - reads the solver

    with _opened(_reach(options, namespace), tell) as backend:
        where = backend.default_namespace()
        with known(name, where):
            outcome = submission.replan(backend, name, where, stay=wait, tell=tell)
            restarting.check(outcome, name, where)
            _each(tell, outcome.notes)
            return backend.job(name, where)


# ---------------------------------------------------------------- logs


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
    from arena_topo.engines.lines import LogOptions  # noqa: PLC0415 - only for logs
    from arena_topo.joblogs import follow as showing  # noqa: PLC0415 - only for logs
    from arena_topo.joblogs import ranks  # noqa: PLC0415 - only for logs

    if instance and (everyone or only):
        raise UsageError("one is for one pod, the other for many", hint="leave out instance")
    for said, number in (("tail", tail), ("since", since)):
        if number is not None and number < 0:
            raise UsageError(f"{said} is invalid", why=f"{number} is less than 0")
    backend = opening.engine(replace(_reach(options, namespace), repeating=follow), tell=tell)
    where = backend.default_namespace()
    asked = showing.Asked(
        instance=instance,
        everyone=everyone,
        only=ranks.only(_words(only)) if only else None,
        tags=True,
        keep=keep,
        options=LogOptions(
            follow=follow, tail=tail, since=since, container=container, previous=previous
        ),
    )
    shown = showing.show(backend, name, where, asked, tell=lambda note: tell(note.text))
    return Logs(shown, job=name, namespace=where, done=backend.close)


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
    from arena_topo.nodes import overview  # noqa: PLC0415 - only to look at nodes

    reach = options or Options()
    files, named = _words(state), _words(names)
    if files:
        return overview.look(files, named, fabric=reach.fabric, metrics=metrics, tell=tell)
    with _opened(reach, tell) as backend:
        return overview.look(backend, named, fabric=reach.fabric, metrics=metrics, tell=tell)


def top_jobs(
    *,
    options: Options | None = None,
    namespace: str | None = None,
    all_namespaces: bool = False,
    metrics: bool = True,
    tell: Tell = unheard,
) -> tuple[SeenJob, ...]:
    """The jobs, those that ask for most GPUs first, with `metrics` each with what its GPUs do."""
    from arena_topo.jobs import filtering  # noqa: PLC0415 - only here

    with _opened(_reach(options, namespace), tell) as backend:
        within = None if all_namespaces else backend.default_namespace()
        return filtering.jobs(backend, within, metrics=metrics, tell=tell)


def cluster(
    *, options: Options | None = None, state: Sequence[str] = (), tell: Tell = unheard
) -> Cluster:
    """All nodes with their machines, what is free on them now, and the network between them.

    `state` are files of `kubectl get ... -o json` to read instead.
    """
    reach = options or Options()
    if state:
        from arena_topo.engines import opening  # noqa: PLC0415 - only for dumps

        return opening.read_state(_words(state), reach.fabric)
    with _opened(reach, tell) as backend:
        return backend.cluster()


def presets() -> tuple[str, ...]:
    """The names of the machines that are known, for `machine` and for `Options.emulate`."""
    from arena_topo.topology import presets as known  # noqa: PLC0415 - reads the matrices

    return known.names()


def machine(preset: str) -> Machine:
    """A machine that is known by name (`presets`); UsageError lists the names."""
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    return presets.machine(preset, preset)


def read_machine(file: str) -> Machine:
    """The machine in a file: `nvidia-smi topo -m`, XML of NCCL, `topology show -o json`.

    `-` is standard input. UsageError names the file and the line that makes no sense.
    """
    from arena_topo.engines import machines  # noqa: PLC0415 - only for files

    return machines.read(file).machine


def read_fabric(file: str) -> FabricFile:
    """The network that a file describes, for `Options.fabric`; UsageError names what is wrong."""
    from arena_topo.engines import opening  # noqa: PLC0415 - only for files

    return opening.read_fabric(file)


def picture(shown: Proposal | Machine | Cluster) -> str:
    """What was planned, a machine or a network as a picture: the text of an SVG.

    UsageError for a plan that places nothing by topology; its `refused` where it does not fit.
    """
    from arena_topo import pictures  # noqa: PLC0415 - only for pictures

    return pictures.any_of(shown)


# ---------------------------------------------------------------- clusters


def check(
    *, options: Options | None = None, namespace: str | None = None, tell: Tell = unheard
) -> Report:
    """What a cluster and its caller lack for jobs to be placed; UsageError on the local engine."""
    from arena_topo.admin import checks  # noqa: PLC0415 - only here

    with _opened(_reach(options, namespace), tell) as backend:
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
    from arena_topo.admin import inspection  # noqa: PLC0415 - only here

    with _opened(_reach(options, namespace), tell) as backend:
        opening.administration(backend)
        where = backend.default_namespace()
        with known(name, where):
            return inspection.inspect(backend, name, where)


# ---------------------------------------------------------------- how


def _reach(options: Options | None, namespace: str | None) -> Options:
    reach = options or Options()
    return replace(reach, namespace=namespace) if namespace else reach


def _least(*seconds: float | None) -> float | None:
    """The shortest of some spans; None stands for no end."""
    return min((one for one in seconds if one is not None), default=None)


def _within(reach: Options, timeout: float | None) -> Options:
    """The same, whose requests take so long together at the most; 0 lets each have its time."""
    return replace(reach, deadline=_least(timeout or None, reach.deadline))


@contextmanager
def _opened(reach: Options, tell: Tell, *, image: str | None = None) -> Iterator[Backend]:
    """The engine that the options ask for, until this is over."""
    backend = opening.engine(reach, image=image, tell=tell)
    try:
        yield backend
    finally:
        backend.close()


def _version(said: str | None) -> ApiVersion | None:
    return None if said is None else _one(ApiVersion, said)


def _words(several: Iterable[str]) -> tuple[str, ...]:
    """What is meant by one word where several could be."""
    return (several,) if isinstance(several, str) else tuple(several)


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
