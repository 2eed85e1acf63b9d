"""The Python API: a `Client` has the commands as methods, for programs that submit and watch jobs.

Each method does the work of the command of its name, and returns the result as a value; `value`
converts it to the JSON of the command. Nothing here prints, exits, sets signal handlers or stores
state between two calls: each call opens an engine of its own, so threads can share a client.
Settings files and the environment variables of flags are not read. Errors are ArenaErrors.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from html import escape
from typing import Any, Literal, Self, TypeVar

from arena_topo.admin import checks, inspection
from arena_topo.admin import view as admin_view
from arena_topo.admin.checks import CheckReport
from arena_topo.admin.inspection import Inspection
from arena_topo.clusters.selectors import LabelSelector
from arena_topo.drawing import machine_svg, network, tables
from arena_topo.drawing.machine import MachineState
from arena_topo.engines import (
    JobStatus,
    Options,
    Phase,
    engine_choice,
    goals,
    ignore_message,
    machines,
    state_of,
)
from arena_topo.engines.backend import Backend
from arena_topo.engines.goals import Ending, Goal
from arena_topo.engines.lines import LogOptions
from arena_topo.errors import ArenaError, JobFailed, NotFound, UsageError, near
from arena_topo.gang import Exists, Watcher, planning, submission
from arena_topo.gang.protocol import StartOutcome
from arena_topo.gang.replan import foresee_replan, replan_job
from arena_topo.gang.resume import all_instances_run, check_started, resume_job
from arena_topo.gang.submission import Submitted
from arena_topo.gang.suspend import suspend_job
from arena_topo.gang.wait import wait_until_over
from arena_topo.job import MPIJob
from arena_topo.joblogs import follow as following
from arena_topo.joblogs import ranks
from arena_topo.joblogs import view as log_view
from arena_topo.joblogs.log_request import LogRequest
from arena_topo.jobs import job_order, plan_picture, plan_view, view
from arena_topo.jobs.job_order import Order
from arena_topo.jobs.proposal import Proposal, propose
from arena_topo.layout import render_styles
from arena_topo.manifests.forecast import Move
from arena_topo.manifests.versions import ApiVersion, VersionName
from arena_topo.nodes import cluster_json, overview, top_view
from arena_topo.nodes.overview import Overview
from arena_topo.reasons import view as reasons_view
from arena_topo.reasons.explanation import Explanation
from arena_topo.reasons.job_reading import SeenJob, explain_now, read_job
from arena_topo.simulate import SimulationRequest
from arena_topo.simulate import view as simulation_view
from arena_topo.simulate.request import plan_of
from arena_topo.simulate.running import Simulation, simulate_plan, usable_processors
from arena_topo.topology import Cluster, Machine
from arena_topo.topology import presets as known_machines

_Kind = TypeVar("_Kind", bound=StrEnum)

Tell = Callable[[str], None]
"""Called with messages for people, in the thread that made the call."""


class Client:
    """The commands, for the engine and the namespace of `options`; `tell` gets their messages."""

    def __init__(self, options: Options | None = None, *, tell: Tell = ignore_message) -> None:
        self.options = options or Options()
        self.tell = tell

    def __repr__(self) -> str:
        where = self.options.namespace or "the default namespace"
        return f"<Client of {self.options.backend}, {where}>"

    # ------------------------------------------------------------ new jobs

    def submit(
        self,
        job: MPIJob,
        *,
        exists: Exists | Literal["fail", "ok", "replace"] = Exists.FAIL,
        api_version: ApiVersion | VersionName | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Submitted:
        """Submit a job; a gang that does not fit now is created waiting, and `status` says so.

        Returns as soon as all workers have their nodes, or the job waits; with `wait` at the end of
        the job, with its last status. TimedOut after `timeout` seconds; a created job goes on.
        `exists` is for a name that is taken: `ok` accepts a job with the same request, and creates
        nothing; `replace` deletes the old job first. Raises Unplaceable (verdict NEVER) for a gang
        that would not fit on the empty cluster, AlreadyExists, and with `wait` JobFailed with the
        launcher's exit code.
        """
        api, on_taken = _version(api_version), _member(Exists, exists)
        # A timeout of 0 does not limit requests, so that one look is possible.
        limit = _least(timeout or None, self.options.deadline)
        end = None if limit is None else time.monotonic() + limit
        end = time.monotonic() if timeout == 0 else end
        with self._opened(image=job.image, deadline=limit) as backend:
            where = backend.default_namespace()
            submitted = submission.submit(
                job,
                backend,
                namespace=where,
                api=api,
                exists=on_taken,
                watcher=Watcher(stay=wait, end=end, tell=self.tell),
            )
            if not wait:
                return submitted
            left = None if end is None else max(0.0, end - time.monotonic())
            hears = goals.Listener(tell=self._tell_status)
            status = wait_until_over(backend, job.name, where, timeout=left, hears=hears)
            return replace(submitted, status=status)

    def plan(
        self,
        job: MPIJob,
        *,
        state: Sequence[str] = (),
        api_version: ApiVersion | VersionName | None = None,
        on: str = "",
        top: int = 1,
        implied: bool = False,
    ) -> Proposal:
        """Place the workers of a job and estimate the bandwidth; nothing is created.

        `MPIJob.sketch` makes a job that needs no name, image or command. `state` are files of
        `kubectl get ... -o json` to use instead of an engine's cluster. `on` is a placement to
        evaluate instead of the best (`node-a/0,3;node-b/1,2`), `top` the number of placements in
        `rows`. `implied`: the job has `gputopology` only because another field needs it, as
        `MPIJob.sketch` adds it; it is then compared with what it gets without. A gang that does not
        fit is a result, not an error: `verdict`, and `refused`.
        """
        api = _version(api_version)
        world = engine_choice.world(job, self.options, state=_words(state), tell=self.tell)
        queue = None
        if world.queue is not None:
            queue = planning.queue_in_dumps(world.queue, world.namespace, job)
        try:
            return propose(
                job,
                world.backend,
                namespace=world.namespace,
                api=api,
                queue=queue,
                on=on,
                top=top,
                implied=implied,
            )
        finally:
            if world.backend is not None:
                world.backend.close()

    # ------------------------------------------------------------ existing jobs

    def get(
        self, name: str, *, metrics: bool = True, events: bool = False, explain: bool = False
    ) -> SeenJob:
        """The `status` of one job, and its differences from the plan (`drift`).

        `metrics` adds the load of its GPUs, `events` its events, `explain` the explanation of its
        state. NotFound if the job does not exist.
        """
        with self._opened() as backend:
            return read_job(
                backend,
                name,
                backend.default_namespace(),
                metrics=metrics,
                events=events,
                explain=explain,
                tell=self.tell,
            )

    def list_jobs(
        self,
        *,
        all_namespaces: bool = False,
        status: Sequence[Phase | str] = (),
        selector: str = "",
        mine: bool = False,
        sort_by: Order | Literal["age", "name", "status", "gpus", "namespace"] = Order.AGE,
    ) -> tuple[JobStatus, ...]:
        """The jobs, newest first: those in these phases, with these labels, or `mine`.

        `selector` is a label selector, such as `team=vision`; UsageError if it is invalid.
        """
        phases = {_member(Phase, word.upper()) for word in _words(status)}
        order = _member(Order, sort_by)
        try:
            _ = selector and LabelSelector.parse(selector)
        except ValueError as error:
            raise UsageError("the selector is invalid", why=str(error)) from None
        with self._opened() as backend:
            within = None if all_namespaces else backend.default_namespace()
            chosen = job_order.selection(backend, selector, mine=mine)
            statuses = job_order.list_statuses(backend, within, chosen)
            return job_order.select_jobs(statuses, phases=phases, order=order)

    def wait(
        self,
        names: str | Iterable[str],
        *,
        until: Goal
        | Literal["finished", "succeeded", "running", "placed", "deleted"] = Goal.FINISHED,
        timeout: float | None = None,
        check: bool = False,
        stop: threading.Event | None = None,
    ) -> tuple[Ending, ...]:
        """Wait until all of these jobs have reached a condition; the end of each, in order.

        Returns early when a job can never reach it, or when another thread sets `stop`: the
        unfinished jobs are OPEN. With `check` a failure is raised: JobFailed, with the launcher's
        exit code, for the first failed job, JobDeleted for a deleted one. TimedOut after `timeout`
        seconds; the jobs go on. A timeout of 0 looks once. NotFound if a job does not exist at the
        start.
        """
        goal, several = _member(Goal, until), _words(names)
        limit = _least(timeout, self.options.deadline)
        # One look may take its time, even with a timeout of 0.
        with self._opened(deadline=limit or None) as backend:
            endings = goals.wait_all(
                backend,
                several,
                backend.default_namespace(),
                goal=goal,
                timeout=limit,
                hears=goals.Listener(tell=self._tell_status),
                stop=stop,
            )
        for ending in endings if check else ():
            if (wrong := goals.goal_failure(ending, goal)) is not None:
                raise wrong
        by_name = {ending.name: ending for ending in endings}
        return tuple(by_name[name] for name in several)

    def why(self, name: str) -> Explanation:
        """Why a job waits, failed or runs where it does; NotFound if the job does not exist."""
        with self._opened() as backend:
            return explain_now(backend, name, backend.default_namespace())

    def delete(self, name: str, *, ignore_not_found: bool = False) -> None:
        """Delete a job and all that belongs to it; NotFound without the job, unless ignored."""
        try:
            with self._in_namespace() as (backend, where):
                backend.delete(name, where, tell=self.tell)
        except NotFound:
            if not ignore_not_found:
                raise

    def suspend(self, name: str) -> None:
        """Stop a job until it is resumed; its GPUs are free for others meanwhile.

        NotPossible if it is over, or another system suspends it; NotFound if it does not exist.
        """
        with self._in_namespace() as (backend, where):
            suspend_job(backend, name, where)

    def resume(self, name: str, *, wait: bool = False) -> JobStatus:
        """Start a waiting, suspended or interrupted job in its turn, with a new placement.

        Returns as soon as all workers have their nodes, with `wait` as soon as they run. NotNow if
        it has to wait, Unplaceable if it can never fit, NotPossible if it is over, NotFound if it
        does not exist.
        """
        with self._in_namespace() as (backend, where):
            if not all_instances_run(backend, name, where):
                self._started(resume_job, backend, name, where, stay=wait)
            return backend.job(name, where)

    def foresee(self, name: str, *, avoid: Sequence[str] = (), on: str = "") -> Move:
        """What `replan` would do with a job: its forecasts before and after. Nothing is changed.

        NotNow if the job would have to wait, Unplaceable if it could never fit.
        """
        with self._in_namespace() as (backend, where):
            return foresee_replan(backend, name, where, avoid=_words(avoid), on=on)

    def replan(
        self,
        name: str,
        *,
        avoid: Sequence[str] = (),
        on: str = "",
        force: bool = False,
        wait: bool = False,
    ) -> JobStatus:
        """Stop a running job and start it again on the best GPUs available now; as `resume`.

        `avoid` are nodes that it may not use, `on` is the placement that it gets (`node-a/0,3`).
        These leave it running: NoGain where the move would give no higher band of bandwidth (unless
        `force`, `avoid` or `on` is given), NotNow where it would have to wait, and Unplaceable if
        it could never fit. Nobody is asked.
        """
        start = partial(replan_job, avoid=_words(avoid), on=on, force=force)
        with self._in_namespace() as (backend, where):
            self._started(start, backend, name, where, stay=wait)
            return backend.job(name, where)

    # ------------------------------------------------------------ logs

    def logs(
        self,
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
    ) -> Logs:
        """The lines of a job's launcher, of the pod `instance`, or of `everyone`, with their ranks.

        `only` selects some of them, as --only (`rank:0-3`, `worker:2`, `launcher`). With `follow`
        it waits for the pods, and ends with the job; `keep` archives followed logs beyond the life
        of the pods, as the command does. `tail` and `since` (seconds) leave out older lines. The
        loop over the lines raises NotFound if the job or the pod does not exist, or there is
        nothing to read.
        """
        if instance and (everyone or only):
            raise UsageError("one is for one pod, the other for many", hint="leave out instance")
        for limit, number in (("tail", tail), ("since", since)):
            if number is not None and number < 0:
                raise UsageError(f"{limit} is invalid", why=f"{number} is less than 0")
        request = LogRequest(
            instance=instance,
            all_pods=everyone,
            only=ranks.parse_only(_words(only)) if only else None,
            tags=True,
            to_archive=keep,
            options=LogOptions(
                follow=follow, tail=tail, since=since, container=container, previous=previous
            ),
        )
        backend = engine_choice.choose_engine(self.options, tell=self.tell)
        where = backend.default_namespace()
        shown = following.RequestedLines(
            backend, name, where, request, tell=lambda note: self.tell(note.text)
        )
        return Logs(shown, job=name, namespace=where, done=backend.close)

    # ------------------------------------------------------------ nodes and the cluster

    def top_nodes(
        self, names: Sequence[str] = (), *, state: Sequence[str] = (), metrics: bool = False
    ) -> Overview:
        """The nodes, the pods that use their GPUs, and with `metrics` the load of the GPUs.

        `state` are files of `kubectl get ... -o json` to read instead. NotFound for a name that no
        node has.
        """
        with self._opened_unless(state) as source:
            return overview.read_overview(
                source,
                _words(names),
                fabric=self.options.fabric,
                metrics=metrics,
                tell=self.tell,
            )

    def top_jobs(
        self, *, all_namespaces: bool = False, metrics: bool = True
    ) -> tuple[SeenJob, ...]:
        """The jobs by requested GPUs, the most first; with `metrics` the load of their GPUs."""
        with self._opened() as backend:
            within = None if all_namespaces else backend.default_namespace()
            return job_order.jobs_by_gpus(backend, within, metrics=metrics, tell=self.tell)

    def cluster(self, *, state: Sequence[str] = ()) -> Cluster:
        """All nodes with their machines and free GPUs, and the network between them.

        `state` are files of `kubectl get ... -o json` to read instead.
        """
        if state:
            return engine_choice.read_state(_words(state), self.options.fabric)
        with self._opened() as backend:
            return backend.cluster()

    def simulate(self, trace: str = "", *, request: SimulationRequest) -> Simulation:
        """Replay the trace in a file, or a generated one, on a cluster that need not exist.

        `request` has the flags of the command; nothing is asked of an engine. Replays that run at
        the same time are forked processes: 1 in `request.processes` replays in this one. UsageError
        for an invalid trace or request.
        """
        simulation = Simulation(plan=plan_of(trace, request, self.options.fabric))
        simulate_plan(
            simulation,
            processes=request.processes or usable_processors(),
            keep_jobs=True,
            tell=lambda _: None,
        )
        return simulation

    def check(self) -> CheckReport:
        """The missing features and rights for placed jobs; UsageError on the local engine."""
        with self._opened() as backend:
            return checks.check_cluster(
                engine_choice.administration(backend), backend.default_namespace()
            )

    def inspect(self, name: str) -> Inspection:
        """Compare the GPUs that the workers of a job really see with the plan.

        UsageError on the local engine, NotFound if the job does not exist.
        """
        with self._in_namespace() as (backend, where):
            engine_choice.administration(backend)
            return inspection.inspect_workers(backend, name, where)

    # ------------------------------------------------------------ how

    @contextmanager
    def _opened(self, *, image: str | None = None, **changes: Any) -> Iterator[Backend]:
        """The engine of the options, with some of them changed, for the duration of a block."""
        backend = engine_choice.choose_engine(
            replace(self.options, **changes), image=image, tell=self.tell
        )
        try:
            yield backend
        finally:
            backend.close()

    @contextmanager
    def _opened_unless(self, state: Sequence[str]) -> Iterator[Backend | tuple[str, ...]]:
        """The files of a dump, or the engine if there are none."""
        if state:
            yield _words(state)
        else:
            with self._opened() as backend:
                yield backend

    @contextmanager
    def _in_namespace(self) -> Iterator[tuple[Backend, str]]:
        """The engine, opened for one call, and the namespace of its jobs."""
        with self._opened() as backend:
            yield backend, backend.default_namespace()

    def _started(
        self,
        start: Callable[..., StartOutcome],
        backend: Backend,
        name: str,
        where: str,
        *,
        stay: bool,
    ) -> None:
        outcome = start(backend, name, where, Watcher(stay=stay, tell=self.tell))
        check_started(outcome, backend, name, where)
        for note in outcome.notes:
            self.tell(note)

    def _tell_status(self, status: JobStatus) -> None:
        self.tell(state_of(status))


def _least(*seconds: float | None) -> float | None:
    """The shortest of some time limits; None means no limit."""
    return min((second for second in seconds if second is not None), default=None)


def _version(text: str | None) -> ApiVersion | None:
    return None if text is None else _member(ApiVersion, text)


def _words(several: str | Iterable[str]) -> tuple[str, ...]:
    """One word or several, as a tuple."""
    return (several,) if isinstance(several, str) else tuple(several)


def _member(kind: type[_Kind], word: str) -> _Kind:
    """The member of an enumeration with this value; UsageError lists the values."""
    try:
        return kind(word)
    except ValueError:
        names = ", ".join(member.value for member in kind)
        hint = near(word, [member.value for member in kind])
        raise UsageError(
            f"there is no {word!r} here", why=f"it is one of {names}", hint=hint
        ) from None


# ---------------------------------------------------------------- the lines of a log


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log: its writer, its time (RFC 3339), its text without the tag of the rank.

    Unknown values are None. `run` counts the restarts of the container. Invalid UTF-8 is U+FFFD in
    `message`. A line of more than 256 KiB is truncated.
    """

    time: str | None
    job: str
    namespace: str
    pod: str
    container: str
    worker: int | None
    rank: int | None
    run: int
    message: str


class Logs(Iterator[LogLine]):
    """The lines of a log as they come: an iterator, to be closed if it is left before its end.

    `close`, or the end of a `with` block, ends it early. Another thread may close it: the loop then
    ends as at the end of the log.
    """

    def __init__(
        self, shown: following.RequestedLines, *, job: str, namespace: str, done: Callable[[], None]
    ) -> None:
        """No request is sent before the first line is read; `done` is called after the last."""
        self._shown = shown
        self._closed = threading.Event()
        # Not a method: its generator would keep an abandoned log alive.
        self._lines = _lines(
            shown, log_view.Records(job=job, namespace=namespace), self._closed, done
        )

    def __next__(self) -> LogLine:
        return next(self._lines)

    @property
    def status(self) -> JobStatus | None:
        """The last known status of the job; None without one."""
        return self._shown.status

    @property
    def failure(self) -> JobFailed | None:
        """The failure of a job that was followed to its end; None without one."""
        return self._shown.failure

    def close(self) -> None:
        """Stop reading, and close the connections."""
        self._closed.set()
        # If a thread waits for the next line, that thread closes the log a moment later.
        with suppress(ValueError):
            self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.close()


def _lines(
    shown: following.RequestedLines,
    records: log_view.Records,
    closed: threading.Event,
    done: Callable[[], None],
) -> Generator[LogLine, None, None]:
    try:
        for batch in shown:
            for record in records.lines(batch).split(b"\n"):
                if closed.is_set():
                    return
                if record:
                    yield LogLine(**json.loads(record))
            if closed.is_set():
                return
    finally:
        done()


# ---------------------------------------------------------------- values, machines, pictures

_SHOWN: dict[type, Callable[[Any], dict[str, Any]]] = {
    Proposal: plan_view.plan_json,
    Explanation: reasons_view.explanation_json,
    Overview: top_view.nodes_json,
    CheckReport: admin_view.check_json,
    Inspection: admin_view.inspection_json,
    Simulation: simulation_view.simulation_json,
    Cluster: cluster_json.network_json,
    Machine: tables.machine_value,
}
"""The conversion of each value to JSON, for values without ages."""


def json_value(shown: object, *, now: float | None = None) -> dict[str, Any]:
    """The dictionary that `-o json` prints for a value.

    Ages are relative to `now` (Unix seconds), by default the present. TypeError for a value that no
    command prints.
    """
    now = time.time() if now is None else now
    if isinstance(shown, JobStatus):
        return view.job_value(shown, now=now)
    if isinstance(shown, SeenJob):
        return view.job_json(shown, now=now)
    if isinstance(shown, LogLine):
        return asdict(shown)
    if type(shown) not in _SHOWN:
        raise TypeError(f"no command prints a {type(shown).__name__}")
    return _SHOWN[type(shown)](shown)


def presets() -> tuple[str, ...]:
    """The names of the known machines, for `machine` and for `Options.emulate`."""
    return known_machines.preset_names()


def machine(preset: str) -> Machine:
    """A known machine by name (`presets`); UsageError lists the names."""
    return known_machines.preset_machine(preset, preset)


def read_machine(file: str) -> Machine:
    """The machine in a file: `nvidia-smi topo -m`, XML of NCCL, `topology show -o json`.

    `-` is standard input. UsageError names the file and the invalid line.
    """
    return machines.read_description(file).machine


def picture(shown: Proposal | Machine | Cluster) -> str:
    """A plan, a machine or a network as a picture: the text of an SVG.

    UsageError for a plan without a placement by topology; its `refused` if it does not fit.
    """
    if isinstance(shown, Machine):
        return machine_svg.draw_machine_svg(MachineState(machine=shown))
    if isinstance(shown, Cluster):
        return network.draw_network_svg(shown)
    if isinstance(shown, Proposal):
        return plan_picture.draw_plan(shown)
    raise TypeError(f"no picture can be made of a {type(shown).__name__}")


def _in_notebook(shown: Proposal | Machine | Cluster) -> str | None:
    """The picture of a value for a notebook; None if there is nothing to draw."""
    try:
        return picture(shown)
    except ArenaError:
        return None


def _on_screen(shown: JobStatus | SeenJob | Explanation) -> str:
    """The screen of `get` or of `why` for a notebook."""
    if isinstance(shown, Explanation):
        return _preformatted(reasons_view.explanation_text(shown))
    seen = shown if isinstance(shown, SeenJob) else SeenJob(status=shown)
    text = view.job_text(seen.status, now=time.time(), events=seen.events, samples=seen.samples)
    text = "\n".join([text, *reasons_view.below(seen, width=None)])
    return _preformatted(text)


def _preformatted(screen: str) -> str:
    return f"<pre>{escape(render_styles(screen, colours=False))}</pre>"


for _seen in (JobStatus, SeenJob, Explanation):
    setattr(_seen, "_repr_html_", _on_screen)  # noqa: B010 - as below

for _drawn in (Proposal, Machine, Cluster):
    # The types are in lower layers than their drawings.
    setattr(_drawn, "_repr_svg_", _in_notebook)  # noqa: B010 - checkers know no such method
