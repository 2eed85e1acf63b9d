"""The logs of a job: read from pods or the archive, with notes, until the follow ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.backend import Backend, JobReads
from arena_topo.engines.daemon_thread import start_daemon
from arena_topo.engines.goals import Start, how_failed, start_of
from arena_topo.engines.lines import Line, LogTurn, Notice, Source, SourceFilter
from arena_topo.engines.polling import poll_repeatedly
from arena_topo.engines.rank_tags import tagging
from arena_topo.errors import (
    ArenaError,
    ClusterError,
    JobDeleted,
    JobFailed,
    NotFound,
    UsageError,
    command,
)
from arena_topo.joblogs import notices, pod_selection
from arena_topo.joblogs.log_request import SILENT, End, LogRequest, NoLogYet
from arena_topo.joblogs.notices import IncompleteLog, LogNote, NoticeBuffer, OnNote, pods_text
from arena_topo.joblogs.pipeline import Pipeline
from arena_topo.joblogs.ranks import Entry, SpeakerSelection, may_be_selected, rank_counts
from arena_topo.joblogs.save import Saving

if TYPE_CHECKING:
    from arena_topo.engines.archive import Archive, Keeping, Kept

POD_SILENCE = 3.0
"""Seconds that a running pod may be silent, or the job unreadable, before a note says so."""

END_GRACE = 0.5
"""Seconds of silence after the end of a job, or of the requested pod, before the follow ends."""

AFTER_END = 5.0
"""The same while pods go on, or a log stays open: kubelets close it within a second or two."""

MISSING_LOG_GRACE = 15.0
"""The same while the log of an ended pod is missing that must be read, or a connection is lost."""

BREAK_NOTE_INTERVAL = 30.0
"""Seconds before the next break of the same log is noted: a connection may be cut every second."""

_TURN = 0.1
"""Seconds of silence after which an empty batch comes, so that the screen can be redrawn."""

_ARCHIVE_BATCH = 2000
"""Archived lines in a batch."""

_BEGINS = frozenset({LogTurn.JOINED, LogTurn.RESTARTED})
_OVER = frozenset({LogTurn.ENDED, LogTurn.GONE, LogTurn.REFUSED})

_Pod = tuple[str, str]
"""The name and the uid of a pod."""


class JobPoller:
    """Polls a job in a thread of its own, so that a slow server delays no line."""

    def __init__(self, backend: Backend, reads: JobReads, job: JobStatus, *, keeps: bool) -> None:
        """`keeps`: the lines that are read are archived."""
        self._backend, self._reads, self._job, self._keeps = backend, reads, job, keeps
        self._ended = False
        """Whether a log has ended since the job was read."""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._new_states: deque[JobStatus] = deque(maxlen=64)
        self._start_decided_by: tuple[Phase, str | None] | None = None
        self.start: Start | None = None
        """Who starts the job while it waits without GPUs."""
        self.blind: str | None = None
        """Why the job cannot be read now."""
        self.lost: ArenaError | None = None
        """Why polling has ended."""

    def __enter__(self) -> Self:
        # A daemon thread: it may be in the middle of a request when the follow ends.
        start_daemon(self._run, name="job-poller")
        return self

    def __exit__(self, *_wrong: object) -> None:
        self._stop.set()
        self._wake.set()

    def poll_now(self) -> None:
        """Read the job at once: a log has ended."""
        self._ended = True
        self._wake.set()

    def new_states(self) -> Iterator[JobStatus]:
        """The states of the job since the last call, oldest first."""
        while self._new_states:
            yield self._new_states.popleft()

    def _run(self) -> None:
        job = self._job
        try:
            for status in poll_repeatedly(
                self._poll,
                every=self._backend.look_every,
                blind=self._note_outage,
                pause=self._pause,
            ):
                if status is None:
                    return
                self._update_start(status)
                self._new_states.append(status)
        except NotFound:
            archived = command("logs --kept", job.name, namespace=job.namespace)
            self.lost = JobDeleted(
                f"the job {job.name} was deleted while its log was followed",
                hint=f"{archived} shows its archived log" if self._keeps else None,
            )
        except ArenaError as error:
            self.lost = error

    def _note_outage(self, why: str | None) -> None:
        self.blind = why

    def _poll(self) -> JobStatus | None:
        if self._stop.is_set():
            return None
        if fresh := self._ended:
            self._ended = False
        status = self._reads.job(self._job.name, fresh=fresh)
        if status.uid != self._job.uid:
            raise NotFound(f"another job is called {status.name} now")
        return status

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _update_start(self, status: JobStatus) -> None:
        situation = status.phase, None if status.forecast is None else status.forecast.state
        if situation != self._start_decided_by:
            self.start = None
            with suppress(ArenaError):
                self.start = start_of(status, self._backend)
            self._start_decided_by = situation


@dataclass(slots=True, kw_only=True)
class _Log:
    """What is known of the log of a pod; `error` is why it cannot be read now."""

    source: Source
    open: bool = False
    over: bool = False
    broken: bool = False
    """Whether its connection is lost and being restored."""
    error: ArenaError | None = None
    refused: ArenaError | None = None
    """Why it can never be read."""
    noted: float = -math.inf
    """When a break was last noted."""


class FollowState:
    """The state of a follow: the job, its logs, what is to be noted, and whether it has ended.

    Times are seconds of any monotonic clock.
    """

    def __init__(self, job: JobStatus, request: LogRequest, wanted: SourceFilter) -> None:
        self._request, self._is_wanted = request, wanted
        self._first = frozenset(instance.name for instance in job.instances)
        self.tries: list[_Pod] = []
        """The names and uids of the launchers in the order of their tries, as far as is known."""
        self._failed: set[_Pod] = {
            (instance.name, instance.uid) for instance in job.instances if instance.failure
        }
        """Pods whose failure was noted, or is older than the follow."""
        self._logs: dict[_Pod, _Log] = {}
        self._notices = NoticeBuffer()
        self.ends = 0
        """The number of logs that have ended."""
        self._spoke = False
        self._wait_reason: tuple[str, Start | None] | None = None
        self._active: float | None = None
        self._over: float | None = None
        """When the job was first seen to be over; the next three fields likewise."""
        self._gone: float | None = None
        self._silent: float | None = None
        self._blind: float | None = None
        self._blind_noted = False
        self._learn_tries(job)

    @property
    def _open(self) -> list[Source]:
        return [log.source for log in self._logs.values() if log.open]

    @property
    def _names(self) -> set[str]:
        """The pods whose logs were opened, or refused."""
        return {log.source.pod for log in self._logs.values() if log.open or log.over}

    def _learn_tries(self, status: JobStatus) -> None:
        for launcher in pod_selection.launchers_by_try(status):
            if (launcher.name, launcher.uid) not in self.tries:
                self.tries.append((launcher.name, launcher.uid))

    @property
    def opened(self) -> bool:
        """Whether a log was opened, or refused."""
        return bool(self._names)

    # Events

    def update_job(self, status: JobStatus, now: float) -> None:
        """Update the state of the job; `pending_notes` returns the notes on failed pods."""
        self._learn_tries(status)
        for instance in status.instances:
            pod, source = (instance.name, instance.uid), source_of(instance)
            if instance.failure is None or pod in self._failed or not self._is_wanted(source):
                continue
            if pod in self.tries[:-1]:
                text, plural = f"{instance.name}, the launcher's try before, {instance.failure}", ""
            elif _failed_by_itself(instance, status):
                text, plural = (
                    f"{instance.name} {instance.failure}",
                    f"{{}} pods: {instance.failure}",
                )
            else:
                continue
            self._failed.add(pod)
            self._notices.add(now, LogNote(text=text, source=source, plural=plural))

    def connection_notes(self, blind: str | None, now: float) -> Iterator[LogNote]:
        """The note when the job cannot be read, and why (`blind`), or can be read again (None)."""
        if blind is None:
            if self._blind_noted:
                yield LogNote(text="the job is in sight again")
            self._blind, self._blind_noted = None, False
            return
        self._blind = now if self._blind is None else self._blind
        if not self._blind_noted and now - self._blind >= POD_SILENCE:
            self._blind_noted = True
            yield LogNote(text=f"the job's state cannot be read, retrying: {blind}", warns=True)

    def add_lines(self, lines: Sequence[Line], now: float) -> bool:
        """Count lines, or a read without any; whether they end a wait."""
        if lines or self._active is None:
            self._active = now
        self._spoke = self._spoke or bool(lines)
        ends = bool(lines) and self._wait_reason is not None
        self._wait_reason = None if ends else self._wait_reason
        return ends

    def add_notice(self, notice: Notice, now: float) -> list[LogNote]:
        """Add an event of a log; the notes to be shown before its next lines."""
        self._active = now
        source, turn, error = notice.source, notice.turn, notice.error
        begun = list(self._begin_notes(notice)) if turn in _BEGINS else []
        log = self._logs.setdefault((source.pod, source.uid), _Log(source=source))
        joined, news = log.open, True
        if turn is LogTurn.BROKEN:
            news = not log.broken and now - log.noted >= BREAK_NOTE_INTERVAL
            log.noted = now if news else log.noted
            log.broken, log.error = True, error or ClusterError("the connection is lost")
        elif turn is not LogTurn.CUT:
            log.broken, log.error = False, None
        if turn in _BEGINS:
            log.source, log.open, log.over = source, True, False
        elif turn in _OVER:
            log.open, log.over = False, True
            self.ends += 1
            # A log that does not exist lacks no lines.
            log.error = None if isinstance(error, NotFound) else error
            log.refused = error if turn is LogTurn.REFUSED else None
        after = notices.note_after(notice, many=self._request.several_pods, joined=joined)
        if after is not None and news:
            self._notices.add(now, after)
        return begun

    def _begin_notes(self, notice: Notice) -> Iterator[LogNote]:
        source, text = notice.source, None
        pod = source.pod, source.uid
        if source.chief and pod not in self.tries:
            self.tries.append(pod)
        if notice.turn is LogTurn.RESTARTED:
            text = f"{source.pod} was restarted: what follows is restart {source.run}"
        elif source.pod in self._names:
            text = f"{source.pod} was created again"
        elif source.chief and pod != self.tries[0] and source.pod not in self._first:
            text = f"{source.pod} is the launcher's next try"
        if text is not None:
            yield LogNote(text=text, turn=notice.turn, source=source)

    def pending_notes(self, before: float | None = None) -> list[LogNote]:
        """The notes on events before a time, or on all events."""
        ends = self._over is not None or self._gone is not None
        return self._notices.take(before, ends=ends)

    def raise_if_all_refused(self) -> None:
        """Raise the first error if all logs were refused."""
        refused = [log.refused for log in self._logs.values() if log.refused is not None]
        if refused and not self._open and len(refused) >= len(self._names):
            raise refused[0]

    # Waiting

    def wait_reason(
        self, status: JobStatus, start: Start | None, now: float
    ) -> tuple[bool, NoLogYet | None]:
        """Whether the reason to wait has changed, and the reason."""
        pod_reason = None
        if not status.phase.over and not (self._open and self._spoke):
            reason = self._reason(status, now)
            # `start` may belong to an earlier state of the job.
            pod_reason = None if reason is None else (reason, None if reason == SILENT else start)
        if pod_reason == self._wait_reason:
            return False, None
        self._wait_reason = pod_reason
        return True, pod_reason and NoLogYet(
            status=status, reason=pod_reason[0], start=pod_reason[1]
        )

    def _reason(self, status: JobStatus, now: float) -> str | None:
        """Why there is nothing to read; None while that needs no explanation."""
        pods = [instance for instance in status.instances if self._is_wanted(source_of(instance))]
        runs = bool(self._open) or not all(pod.pending or pod.finished is not None for pod in pods)
        if status.phase is Phase.SUSPENDED or not runs:
            self._silent = None
            early = not self._spoke and (not pods or any(pod.pending for pod in pods))
            return pod_selection.why_no_logs(status) or (
                "its pod has not started" if early else None
            )
        if self._spoke:
            return None
        for log in self._logs.values():
            if log.broken and log.error is not None:
                why = f" ({log.error.why})" if log.error.why else ""
                return f"its log cannot be read yet: {log.error.message}{why}"
        # The answer for a silent pod may come with the first byte of its log.
        self._silent = now if self._silent is None else self._silent
        return SILENT if now - self._silent >= POD_SILENCE else None

    # The end

    def end(self, status: JobStatus | None, *, lost: bool, done: bool, now: float) -> End | None:
        """What has ended the follow by a time; None while it goes on.

        `lost`: the job cannot be read any more; `done`: all known logs were read to their end.
        """
        silence = now - (self._active or now)
        if self._request.instance is not None and self._names and not self._open:
            self.raise_if_all_refused()
            return End.POD if lost or silence >= END_GRACE else None
        if lost:
            self._gone = now if self._gone is None else self._gone
            late = now - self._gone >= MISSING_LOG_GRACE
            return End.LOST if late or silence >= (END_GRACE if done else AFTER_END) else None
        if status is None:
            return None
        whole = self.is_complete(status, done=done)
        if not status.phase.over:
            self._over = None
            if whole or not self._request.several_pods:
                self.raise_if_all_refused()
            return None
        self._over = now if self._over is None else self._over
        grace = self._grace(status, whole=whole, over=now - self._over)
        return End.JOB if silence >= grace else None

    def _grace(self, status: JobStatus, *, whole: bool, over: float) -> float:
        """The silence (seconds) that ends the follow of a job that has been `over` for so long.

        The first row that holds decides.
        """
        unfinished, single = self._unfinished_logs(status), not self._request.several_pods
        must = any(source.chief or single for source in unfinished)
        workers = not any(source.chief for source in self._open)
        broken = any(log.broken for log in self._logs.values())
        still_open = (
            ("nothing", whole, END_GRACE),
            ("the log of an ended pod that must be read", must, MISSING_LOG_GRACE),
            ("workers that outlive their job", workers and over >= AFTER_END, END_GRACE),
            ("a log whose connection is lost", broken, MISSING_LOG_GRACE),
            ("other logs", True, AFTER_END),
        )
        return next(seconds for _, holds, seconds in still_open if holds)

    def is_complete(self, status: JobStatus, *, done: bool) -> bool:
        """Whether the logs of all wanted pods of the job were read to their end."""
        wanted = {
            instance.name for instance in status.instances if self._is_wanted(source_of(instance))
        }
        return done and wanted <= self._names

    def incomplete_logs(self, status: JobStatus | None, *, done: bool) -> list[IncompleteLog]:
        """The logs that could not be read to their end, if the follow ends now."""
        many = self._request.several_pods
        incomplete_logs = {
            pod: IncompleteLog(
                source=log.source, error=log.error, noted=many and log.refused is not None
            )
            for pod, log in self._logs.items()
            if log.error is not None
        }
        for source in () if done or status is None else self._unfinished_logs(status):
            error = ClusterError(f"nothing more came of the log of {source.pod}, which is over")
            incomplete_logs.setdefault(
                (source.pod, source.uid), IncompleteLog(source=source, error=error)
            )
        return list(incomplete_logs.values())

    def _unfinished_logs(self, status: JobStatus) -> list[Source]:
        """The logs of ended pods that have not come to their end."""
        return [
            source_of(instance)
            for instance in status.instances
            if status.phase.over
            and instance.finished is not None
            and not ((log := self._logs.get((instance.name, instance.uid))) and log.over)
            and self._is_wanted(source_of(instance))
        ]


def _with_stopped(job: JobStatus) -> JobStatus:
    """The job with the pods from before its suspension, whose logs can still be read."""
    return msgspec.structs.replace(job, instances=job.instances or job.stopped)


class RequestedLines:
    """The requested lines in batches, from the pods or from the archive; to be iterated once.

    With `options.follow` they end with the job, or with the named pod. `tell` gets the notes, each
    after the lines before it; `seen` each state of the job; `waits` why there is nothing to read
    now, and None as soon as there is. All three are called by the iteration. `archive` defaults to
    the user's.

    Errors: JobNotFound; NotFound for a pod that the job does not have, or where there is nothing to
    read; JobDeleted if the job is deleted meanwhile.

    A batch, maybe an empty one, comes at most 0.2 s after the last one. After the last batch `end`
    says what ended the lines, `status` is the last state of the job, and `unsaved` is the error of
    `save`.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        namespace: str,
        request: LogRequest,
        *,
        tell: OnNote = lambda _: None,
        seen: Callable[[JobStatus], None] = lambda _: None,
        waits: Callable[[NoLogYet | None], None] = lambda _: None,
        archive: Archive | None = None,
    ) -> None:
        """Requests are sent from the first batch on."""
        self._backend, self._request, self._archive = backend, request, archive
        self._reads = backend.watching(namespace)
        self._tell, self._seen, self._waits = tell, seen, waits
        self._name, self._namespace = name, namespace
        self.status: JobStatus | None = None
        self.end: End | None = None
        self.unsaved: ArenaError | None = None
        self._shown_archive: Kept | None = None
        self._consumer_spent = 0.0
        """Seconds that the consumer of the lines has spent: they do not count as silence."""

    @property
    def failure(self) -> JobFailed | None:
        """The error of a job that was followed to its end; None if the job succeeded."""
        request, status, kept = self._request, self.status, self._shown_archive
        if not request.options.follow or request.instance is not None:
            return None
        if self.end is End.JOB or (self.end is End.KEPT and status is not None):
            return how_failed(status)
        return notices.archived_error(kept) if self.end is End.KEPT and kept is not None else None

    def __iter__(self) -> Iterator[Sequence[Entry]]:
        """The lines of the pods, or of the archive where the job or its pods are gone."""
        uid: str | None = None
        try:
            if self._request.from_archive:
                raise self._not_archived_error()
            job = self._reads.job(self._name)
            self._update_status(job)
            uid = job.uid
            later = self._request.options.follow and not job.phase.over
            job = job if later else _with_stopped(job)
            return self._lines_of_tries(job, self._checked_filter(job, later=later))
        except NotFound:
            if (kept := self._find_archived(uid=uid)) is not None:
                return self._archived_lines(kept)
            others = self._open_archive().kept(self._backend.place, self._namespace, self._name)
            if uid is None and others:
                pod, container = self._request.instance, self._request.options.container
                raise pod_selection.not_archived_error(pod, container, others[0]) from None
            raise

    def _update_status(self, job: JobStatus) -> None:
        self.status = job
        self._seen(job)

    # The archive

    def _open_archive(self) -> Archive:
        if self._archive is None:
            from arena_topo.engines.archive import open_archive  # noqa: PLC0415  for who keeps logs

            self._archive = open_archive(os.environ, tell=self._warn)
        return self._archive

    def _find_archived(self, *, uid: str | None) -> Kept | None:
        """The archived logs that are wanted, of the job with a uid or of the newest job.

        A note tells the time span that they cover.
        """
        archive, container = self._open_archive(), self._request.options.container
        jobs = archive.kept(self._backend.place, self._namespace, self._name)
        for index, job in enumerate(jobs):
            logs = filter(self._filter(job.slots or None), job.sources)
            if uid in {None, job.uid} and any(container in {None, log.container} for log in logs):
                older = len(jobs) - index - 1
                self._tell(
                    notices.archive_note(
                        job, requested=self._request.from_archive, older=older, root=archive.root
                    )
                )
                return job
        return None

    def _archived_lines(self, kept: Kept) -> Iterator[Sequence[Entry]]:
        request, slots, some = self._request, kept.slots or None, False
        pipeline = Pipeline(request, slots=slots, tagging=kept.tagging, whole=True)
        lines = self._open_archive().lines(kept, request.options, self._filter(slots))
        if not request.several_pods and request.options.tail is not None:
            # The tries of a launcher count as a single log.
            lines = iter(deque(lines, request.options.tail))
        self._shown_archive = kept
        with self._open_sinks() as sinks:
            while batch := list(islice(lines, _ARCHIVE_BATCH)):
                some = True
                for sink in sinks:
                    sink.write(batch)
                yield pipeline.put(batch, 0.0)
        yield pipeline.remaining()
        if request.options.previous and not some:
            raise pod_selection.no_archived_earlier_run_error(kept)
        self._note_left_out(pipeline)
        self.end = End.KEPT

    @property
    def _stored_locally(self) -> bool:
        """Whether the logs are in the job's own folder, and archived only when it is deleted."""
        return self._backend.name == "local"

    def _not_archived_error(self) -> NotFound:
        why = "only what was followed from this machine is kept"
        hint = command("logs -f", self._name, namespace=self._namespace)
        if self._stored_locally:
            why = "the log of a local job is with the job until that is deleted"
            hint = command("logs", self._name, namespace=self._namespace)
            try:
                self._backend.job(self._name, self._namespace)
            except NotFound as unknown:
                why, hint = unknown.message, unknown.hint or ""
        return NotFound(
            f"nothing is archived of the logs of {self._name} in namespace {self._namespace}",
            why=why,
            hint=hint,
        )

    def _note_archived_pods(self, job: JobStatus, wanted: SourceFilter) -> None:
        """Note the archived logs of pods that the job no longer has."""
        if not self._request.several_pods or self._request.options.previous or self._stored_locally:
            return
        present = {instance.name for instance in job.instances}
        for kept in self._open_archive().kept(self._backend.place, self._namespace, self._name):
            gone = sorted({source.pod for source in kept.sources if wanted(source)} - present)
            if kept.uid == job.uid and gone:
                kept_logs = command("logs --kept --all", self._name, namespace=self._namespace)
                text = (
                    f"pods that are gone: {pods_text(gone)}; {kept_logs} shows their archived logs"
                )
                self._tell(LogNote(text=text))

    @contextmanager
    def _open_sinks(self, job: JobStatus | None = None) -> Iterator[list[Saving | Keeping]]:
        """Where lines go beside the screen: to files (`--save`), and of a `job` to the archive."""
        request, options = self._request, self._request.options
        sinks: list[Saving | Keeping] = []
        keeping: Keeping | None = None
        with ExitStack() as closing:
            if request.save is not None:
                saving = Saving(
                    Path(request.save),
                    container=options.container,
                    timestamps=options.timestamps,
                    tell=self._warn,
                )
                closing.callback(self._note_saved, saving)
                sinks.append(saving)
            archives = request.to_archive and not self._stored_locally
            if job is not None and options.follow and archives:
                cut = (options.tail, options.since, options.since_time) != (None, None, None)
                keeping = self._open_archive().keeping(
                    self._backend.place,
                    job,
                    slots=rank_counts(job)[0] or 0,
                    whole=not (cut or options.previous),
                )
                sinks.append(closing.enter_context(keeping))
            yield sinks
            # Not reached if the iteration was abandoned.
            if keeping is not None:
                keeping.close(self.status)

    def _note_saved(self, saving: Saving) -> None:
        self.unsaved = saving.error
        failed = saving.error is not None
        self._tell(LogNote(text=saving.summary, error=saving.error, warns=failed))

    def _warn(self, why: str) -> None:
        self._tell(LogNote(text=why, warns=True))

    # Selection

    def _filter(self, slots: int | None) -> SourceFilter:
        """The predicate of wanted logs; the job need not exist any more."""
        request = self._request
        if request.instance is not None:
            return lambda source: source.pod == request.instance
        if request.only is not None:
            only = request.only
            return lambda source: may_be_selected(only, source, slots)
        return (lambda _: True) if request.all_pods else (lambda source: source.chief)

    def _checked_filter(self, job: JobStatus, *, later: bool) -> SourceFilter:
        """The predicate of wanted logs; NotFound if there is none, nor can be `later`."""
        request = self._request
        slots, total = rank_counts(job)
        if request.only is not None:
            _check_only(request.only, slots, total, job)
        wanted = self._filter(slots)
        if request.several_pods:
            pods = [instance for instance in job.instances if wanted(source_of(instance))]
            if not later and not pods:
                raise pod_selection.no_pods_error(job, self._backend)
            if not later and all(pod.pending for pod in pods):
                raise pod_selection.not_started_error(job, self._backend, pods[0].name)
            return wanted
        if not later:
            chosen = pod_selection.readable_pod(job, self._backend, request.instance)
            return lambda source: source.pod == chosen.name
        if request.instance is not None:
            if job.instances:
                pod_selection.select_instance(job, request.instance)
            return wanted
        # Of several tries of the launcher only the last is followed.
        over = {launcher.name for launcher in pod_selection.launchers_by_try(job)[:-1]}
        return lambda source: wanted(source) and source.pod not in over

    # Pods

    def _lines_of_tries(self, job: JobStatus, wanted: SourceFilter) -> Iterator[Sequence[Entry]]:
        request = self._request
        tried = pod_selection.launchers_by_try(job)
        try:
            yield from self._lines_of_pods(job, wanted)
        except NotFound:
            single = request.instance is None and not request.several_pods
            if not (request.options.previous and single and len(tried) > 1):
                raise
            # Before the first run of this launcher came the last try.
            self._request = replace(request, options=replace(request.options, previous=False))
            self.end = None
            yield from self._lines_of_pods(job, lambda source: source.pod == tried[-2].name)

    def _lines_of_pods(self, job: JobStatus, wanted: SourceFilter) -> Iterator[Sequence[Entry]]:
        request, follows = self._request, self._request.options.follow
        slots, total = rank_counts(job)
        pipeline = Pipeline(
            request, slots=slots, total=total, tagging=tagging(job.command), whole=not follows
        )
        reads = self._reads
        poller = JobPoller(self._backend, reads, job, keeps=request.to_archive)
        state = FollowState(job, request, wanted)
        pipeline.set_launchers(state.tries)
        if not follows:
            instances = [
                instance
                for instance in job.instances
                if wanted(source_of(instance)) and not instance.pending
            ]
            pipeline.expect([instance.name for instance in instances])
            self._note_archived_pods(job, wanted)
        with (
            self._open_sinks(job) as sinks,
            reads,
            reads.follow(job, request.options, wanted) as following,
            poller if follows else nullcontext(),
        ):
            error, ends = None, 0
            while self.end is None and error is None:
                items: Sequence[Line | Notice] = ()
                try:
                    items = following.read(_TURN)
                except ArenaError as why:
                    # Lines that wait in the window are shown before the error.
                    error = why
                # Before the lines are shown: a slow screen must not cost another `read`.
                done = following.done
                for sink in sinks:
                    sink.write(items)
                came = time.monotonic()
                yield from self._pass_on(items, state, pipeline)
                yield ()
                self._consumer_spent += time.monotonic() - came
                if not follows:
                    self.end = End.READ if done else None
                    continue
                if state.ends > ends:
                    ends = state.ends
                    poller.poll_now()
                self._poll(poller, state)
                lost, done = poller.lost is not None, following.done
                self.end = state.end(self.status, lost=lost, done=done, now=self._now())
            incomplete = state.incomplete_logs(self.status, done=following.done)
        yield pipeline.remaining()
        error = error or poller.lost
        if not follows and error is None:
            state.raise_if_all_refused()
            if not (request.several_pods or state.opened):
                [pod] = [instance for instance in job.instances if wanted(source_of(instance))]
                raise pod_selection.no_log_error(job, pod, request.options.container)
        self._waits(None)
        self._note_left_out(pipeline)
        self._tell_all(state.pending_notes())
        if error is not None:
            self._tell_all(notices.incomplete_log_notes(incomplete))
            raise error
        self._note_incomplete(incomplete)

    def _note_incomplete(self, incomplete: Sequence[IncompleteLog]) -> None:
        """Note the logs that could not be read; ArenaError if that decides the exit code.

        In a follow it does for the launcher's log and for a single requested log, unless the job
        has failed.
        """
        follows = self._request.options.follow
        fails = any(index.source.chief or not self._request.several_pods for index in incomplete)
        has_failed = self.status is not None and self.status.phase is Phase.FAILED
        if incomplete and (not follows or (fails and not has_failed)):
            raise notices.unreadable_logs_error(incomplete)
        self._tell_all(notices.incomplete_log_notes(incomplete))

    def _pass_on(
        self, items: Sequence[Line | Notice], state: FollowState, pipeline: Pipeline
    ) -> Iterator[Sequence[Entry]]:
        """Pass lines and events on in their order."""
        now, lines = self._now(), list[Line]()
        for item in (*items, None):
            if isinstance(item, Line):
                lines.append(item)
                continue
            if lines or item is None:
                if state.add_lines(lines, now):
                    self._waits(None)
                if ready := pipeline.put(lines, now):
                    yield ready
                lines = []
            if item is not None:
                pipeline.add_notice(item)
                self._tell_all(state.add_notice(item, now))
        self._tell_all(state.pending_notes(now - pipeline.lag))

    def _now(self) -> float:
        return time.monotonic() - self._consumer_spent

    def _tell_all(self, notes: Iterable[LogNote]) -> None:
        for note in notes:
            self._tell(note)

    def _poll(self, poller: JobPoller, state: FollowState) -> None:
        """Add the polled states of the job, and report a new reason to wait."""
        now = self._now()
        for status in poller.new_states():
            self._update_status(status)
            state.update_job(status, now)
        self._tell_all(state.connection_notes(poller.blind, now))
        if self.status is not None:
            changed, waiting = state.wait_reason(self.status, poller.start, now)
            if changed:
                self._waits(waiting)

    def _note_left_out(self, pipeline: Pipeline) -> None:
        if pipeline.left_out_note is not None:
            self._tell(LogNote(text=pipeline.left_out_note, warns=True))


def _check_only(
    only: SpeakerSelection, slots: int | None, total: int | None, job: JobStatus
) -> None:
    """UsageError for ranks or workers that the job does not have."""
    if slots is None or total is None:
        return
    for what, spans, count in (
        ("rank", only.ranks, total),
        ("worker", only.workers, total // slots),
    ):
        beyond = [first for first, _ in spans if first >= count]
        if beyond:
            raise UsageError(
                f"the job {job.name} has no {what} {beyond[0]}",
                why=f"it has {what}s 0-{count - 1}" if count > 1 else f"it has only {what} 0",
            )


def source_of(instance: Instance) -> Source:
    """The source of a pod's log."""
    return Source(
        pod=instance.name,
        uid=instance.uid,
        chief=instance.chief or instance.launcher,
        worker=instance.worker,
    )


def _failed_by_itself(instance: Instance, status: JobStatus) -> bool:
    """Whether a pod's failure is worth a note: no launcher's, and not the end of its job."""
    if instance.chief or instance.launcher or status.phase in {Phase.SUCCEEDED, Phase.SUSPENDED}:
        return False
    chief = status.chief
    end = status.finished if chief is None or chief.finished is None else chief.finished
    return (
        not status.phase.over
        or instance.finished is None
        or (end is not None and instance.finished < end)
    )
