"""Logs of a job: waited for, followed, selected, put in order, folded; and when that ends."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from arena_topo.engines import Backend, JobStatus, Phase
from arena_topo.engines.lines import Following, Line, LogOptions, Notice, Source, Turn, Wanted
from arena_topo.engines.opening import UnknownJob
from arena_topo.engines.tagging import tagging
from arena_topo.engines.waiting import command
from arena_topo.errors import ArenaError, JobFailed, NotFound, UsageError
from arena_topo.joblogs import choosing, telling, unread
from arena_topo.joblogs.course import Course, End, Looker, Waiting, source_of
from arena_topo.joblogs.pipeline import Pipeline
from arena_topo.joblogs.ranks import Entry, Only, ranks_of, wants
from arena_topo.joblogs.telling import Note, Tell, named

if TYPE_CHECKING:
    from arena_topo.engines.archive import Archive, Keeping, Kept
    from arena_topo.joblogs.save import Saving
    from arena_topo.joblogs.unread import Lacking

__all__ = [
    "Asked",
    "End",
    "Entry",
    "NoSuchJob",
    "Note",
    "Shown",
    "Waiting",
    "copied",
    "existing",
    "failed",
    "show",
]

_TURN = 0.1
"""Seconds that nothing may come before the screen has its turn: it must look alive."""

_MANY = 2000
"""Lines of what is kept that are handed on at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which lines of which pods are wanted.

    Without `everyone` and `only` it is one pod: `instance`, else the launcher. `include` and
    `exclude` are searched in a line's text without its tag: some of the first must be found, none
    of the second. `fold`: equal lines of several speakers become one, where several are shown.
    `keep`: what is followed goes to the archive. `kept`: only what is there is wanted.
    `tags`: who speaks is wanted even of one pod (JSON).
    """

    instance: str | None = None
    everyone: bool = False
    only: Only | None = None
    include: tuple[re.Pattern[str], ...] = ()
    exclude: tuple[re.Pattern[str], ...] = ()
    fold: bool = False
    tags: bool = False
    keep: bool = True
    kept: bool = False
    save: str | None = None
    options: LogOptions = field(default_factory=LogOptions)

    @property
    def many(self) -> bool:
        """Whether several pods may be shown, so that each line must say whose it is."""
        return self.everyone or self.only is not None

    @property
    def plain(self) -> bool:
        """Whether it is the log of one pod as it is now, which can be copied as it comes."""
        return not (
            self.many
            or self.include
            or self.exclude
            or self.tags
            or self.kept
            or self.save
            or self.options.follow
        )


def failed(job: JobStatus) -> JobFailed | None:
    """How a job failed, with the code of its launcher; None if it did not."""
    if job.phase is not Phase.FAILED:
        return None
    return JobFailed(
        f"the job {job.name} failed",
        exit_code=job.exit_code or 1,
        why=telling.how_failed(job),
        hint=command("why", job.name, namespace=job.namespace),
    )


class NoSuchJob(NotFound):
    """The job whose log is wanted is not there."""


class Shown:
    """Lines in batches; each at the latest 0.2 s after the one before, though it may be empty.

    After the last one, `end` says what ended it, and `status` is the job as it was last seen. To be
    gone through once.
    """

    def __init__(self, show: _Show) -> None:
        """Nothing is asked of anybody before the first batch is."""
        self._show = show

    @property
    def status(self) -> JobStatus | None:
        """The job as it was last seen; None where it was not."""
        return self._show.status

    @property
    def end(self) -> End | None:
        """What ended it; None as long as nothing has."""
        return self._show.end

    @property
    def failure(self) -> JobFailed | None:
        """What who has followed a whole job is told of its end; None if it ended well."""
        return self._show.failure()

    @property
    def unsaved(self) -> ArenaError | None:
        """What could not be saved of what was to be; None if all is."""
        return self._show.unsaved

    def __iter__(self) -> Iterator[Sequence[Entry]]:
        return self._show.batches()


def copied(
    backend: Backend,
    name: str,
    namespace: str,
    asked: Asked,
    *,
    seen: Callable[[JobStatus], None] = lambda _: None,
) -> Iterator[bytes]:
    """The log of one pod as it is now, byte for byte, for what is asked so (`Asked.plain`).

    NoSuchJob, or NotFound where there is no such pod, or nothing to read of it (yet): what is kept
    of it has `show`.
    """
    job = _with_stopped(existing(backend, name, namespace))
    seen(job)
    pod, begun = choosing.readable(job, backend, asked.instance), False
    try:
        for piece in backend.log(job, pod.name, asked.options):
            begun = True
            yield piece
    except NotFound:
        before = None if begun else _before(job, asked)
        if before is None:
            raise
        yield from backend.log(job, before, replace(asked.options, previous=False))


def _before(job: JobStatus, asked: Asked) -> str | None:
    """The launcher that was tried before the last one, if `previous` means that."""
    if not asked.options.previous or asked.instance is not None or asked.many:
        return None
    tried = choosing.launchers(job)
    return tried[-2].name if len(tried) > 1 else None


def show(
    backend: Backend,
    name: str,
    namespace: str,
    asked: Asked,
    *,
    tell: Tell = lambda _: None,
    seen: Callable[[JobStatus], None] = lambda _: None,
    waits: Callable[[Waiting | None], None] = lambda _: None,
    archive: Archive | None = None,
) -> Shown:
    """The lines that are asked for, from the pods or from what was kept of them.

    `tell` hears what is to be known beside the lines, after the lines before it; `seen` of each
    look at the job; `waits` why there is nothing to read now, and None as soon as there is. All are
    called from the loop over the result. With `options.follow` it ends with the job, or with the
    pod that is named. NoSuchJob at once; NotFound for a pod that is not the job's, and where there
    is nothing to read; JobDeleted if the job is deleted meanwhile. `archive` is where lines are
    kept, the user's if none is given.
    """
    hears = _Hears(tell=tell, seen=seen, waits=waits)
    return Shown(_Show(backend, (name, namespace), asked, hears, archive))


def existing(backend: Backend, name: str, namespace: str) -> JobStatus:
    """The job as it is now; NoSuchJob, in arena's words, if there is none."""
    try:
        return backend.job(name, namespace)
    except NotFound:
        unknown = UnknownJob(name, namespace)
        raise NoSuchJob(unknown.message, hint=unknown.hint) from None


def _with_stopped(job: JobStatus) -> JobStatus:
    """The job with the pods that it had before it was suspended, to read their logs."""
    return replace(job, instances=job.instances or job.stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hears:
    """Who is told of what there is to know beside the lines."""

    tell: Tell
    seen: Callable[[JobStatus], None]
    waits: Callable[[Waiting | None], None]


class _Show:
    """One showing, while it goes on."""

    def __init__(
        self,
        backend: Backend,
        job: tuple[str, str],
        asked: Asked,
        hears: _Hears,
        archive: Archive | None,
    ) -> None:
        self._backend, self._asked, self._hears, self._archive = backend, asked, hears, archive
        self._name, self._namespace = job
        self.status: JobStatus | None = None
        self.end: End | None = None
        self.kept: Kept | None = None
        self.unsaved: ArenaError | None = None
        self._stood = 0.0
        """Seconds spent elsewhere while all that there is was read."""

    def failure(self) -> JobFailed | None:
        """See `Shown`."""
        asked, status, kept = self._asked, self.status, self.kept
        if not asked.options.follow or asked.instance is not None:
            return None
        if self.end is End.JOB or (self.end is End.KEPT and status is not None):
            return None if status is None else failed(status)
        return telling.ended_as(kept) if self.end is End.KEPT and kept is not None else None

    def batches(self) -> Iterator[Sequence[Entry]]:
        """All of it."""
        if self._asked.kept:
            kept = self.found(uid=None)
            if kept is None:
                self._unlike()
                raise self._unkept()
            return self._served(kept)
        try:
            job = existing(self._backend, self._name, self._namespace)
        except NoSuchJob:
            kept = self.found(uid=None)
            if kept is None:
                self._unlike()
                raise
            return self._served(kept)
        self._see(job)
        try:
            following = self._asked.options.follow and not job.phase.over
            if not following:
                job = _with_stopped(job)
            wanted = self._wanted(job, later=following)
        except NotFound:
            kept = self.found(uid=job.uid)
            if kept is None:
                raise
            return self._served(kept)
        return (
            self._followed(job, wanted) if self._asked.options.follow else self._read(job, wanted)
        )

    def _unlike(self) -> None:
        """NotFound where others are kept than those that are asked for."""
        for one in self._kept().kept(self._backend.place, self._namespace, self._name):
            raise choosing.unkept(self._asked.instance, one)

    def _see(self, job: JobStatus) -> None:
        self.status = job
        self._hears.seen(job)

    # What is kept

    def _kept(self) -> Archive:
        if self._archive is None:
            from arena_topo.engines import archive as kept  # noqa: PLC0415  only for who keeps logs

            self._archive = kept.open_archive(os.environ, tell=self._warn)
        return self._archive

    def found(self, *, uid: str | None) -> Kept | None:
        """What is kept of the pods that are asked for, of the job with a uid or of the newest.

        `tell` hears from when to when that is.
        """
        archive = self._kept()
        jobs = archive.kept(self._backend.place, self._namespace, self._name)
        for index, one in enumerate(jobs):
            if uid in {None, one.uid} and any(map(self._asks(one.slots or None), one.sources)):
                older = len(jobs) - index - 1
                self._hears.tell(
                    telling.served(one, asked=self._asked.kept, older=older, root=archive.root)
                )
                return one
        return None

    def _sinks(self, job: JobStatus | None, pods: Iterable[str]) -> _Sinks:
        """Where the lines of pods go beside the screen; of a `job` that is there they are kept."""
        options, save, saving = self._asked.options, self._asked.save, None
        if save is not None:
            from arena_topo.joblogs.save import Saving  # noqa: PLC0415  only for who saves

            saving = Saving(
                Path(save),
                pods=pods,
                container=options.container,
                timestamps=options.timestamps,
                tell=self._warn,
            )
        if job is None or not (options.follow and self._asked.keep):
            return _Sinks(saving=saving, tell=self._hears.tell, fails=self._unsaved)
        cut = (options.tail, options.since, options.since_time) != (None, None, None)
        keeping = self._kept().keeping(
            self._backend.place,
            job,
            slots=ranks_of(job)[0] or 0,
            whole=not (cut or options.previous),
        )
        return _Sinks(keeping=keeping, saving=saving, tell=self._hears.tell, fails=self._unsaved)

    def _unsaved(self, error: ArenaError) -> None:
        self.unsaved = error

    def _warn(self, why: str) -> None:
        self._hears.tell(Note(text=why, warns=True))

    def lines_of(self, kept: Kept) -> Iterator[Line]:
        """The lines of it that are asked for."""
        asked, archive = self._asked, self._kept()
        lines = archive.lines(kept, asked.options, self._asks(kept.slots or None))
        if asked.many or asked.options.tail is None:
            return lines
        from arena_topo.engines.archive import last  # noqa: PLC0415  only for who reads it

        # It is one log for whoever asks, though the launcher was tried more than once.
        return last(lines, asked.options.tail)

    def _runs(self, lines: Sequence[Line], known: list[Source]) -> Iterator[list[Line]]:
        """Lines of one log, cut where another run of it begins, which `tell` hears."""
        if self._asked.many:
            yield list(lines)
            return
        for source, some in groupby(lines, key=attrgetter("source")):
            if source not in known:
                if known:
                    self._hears.tell(telling.run_of(source, known[-1]))
                known.append(source)
            yield list(some)

    def _served(self, kept: Kept) -> Iterator[Sequence[Entry]]:
        slots, tags = kept.slots or None, kept.tags
        flow = Pipeline(self._asked, slots=slots, tagging=tags, whole=True)
        lines, known = self.lines_of(kept), list[Source]()
        self.kept = kept
        asks = self._asks(slots)
        with self._sinks(None, {one.pod for one in kept.sources if asks(one)}) as sinks:
            while batch := list(islice(lines, _MANY)):
                sinks.write(batch)
                for run in self._runs(batch, known):
                    yield flow.put(run, 0.0)
        yield flow.rest()
        if self._asked.options.previous and not sinks.lines:
            raise choosing.first_run(kept)
        self._advise(flow)
        self.end = End.KEPT

    def _unkept(self) -> NotFound:
        return NotFound(
            f"nothing is kept of the logs of {self._name} in namespace {self._namespace}",
            why="what was followed is kept on the machine and for the user that followed it",
            hint=command("logs -f", self._name, namespace=self._namespace),
        )

    # Whose logs

    def _asks(self, slots: int | None) -> Wanted:
        """Whether a log is asked for, of a job that need not be there any more."""
        asked = self._asked
        if asked.instance is not None:
            return lambda source: source.pod == asked.instance
        if asked.only is not None:
            only = asked.only
            return lambda source: wants(only, source, slots)
        return (lambda _: True) if asked.everyone else (lambda source: source.chief)

    def _wanted(self, job: JobStatus, *, later: bool) -> Wanted:
        """Which logs are to be read; NotFound where there is none, now and `later`."""
        asked = self._asked
        slots, total = ranks_of(job)
        if asked.only is not None:
            _check(asked.only, slots, total, job)
        wanted = self._asks(slots)
        if asked.many:
            pods = [one for one in job.instances if wanted(source_of(one))]
            if not later and not pods:
                raise choosing.nothing(job, self._backend)
            if not later and all(one.pending for one in pods):
                raise choosing.early(job, self._backend, pods[0].name)
            return wanted
        if later and asked.instance is not None:
            if job.instances:
                choosing.instance(job, asked.instance)
            return wanted
        if later:
            # Of launchers that were tried before, as without following, the last counts.
            over = {one.name for one in choosing.launchers(job)[:-1]}
            return lambda source: wanted(source) and source.pod not in over
        chosen = choosing.readable(job, self._backend, asked.instance)
        return lambda source: source.pod == chosen.name

    # Pods

    def _read(self, job: JobStatus, wanted: Wanted) -> Iterator[Sequence[Entry]]:
        before = _before(job, self._asked)
        try:
            yield from self._read_of(job, wanted)
        except NotFound:
            if before is None:
                raise
            options = replace(self._asked.options, previous=False)
            self._asked = replace(self._asked, options=options)
            yield from self._read_of(job, lambda source: source.pod == before)

    def _read_of(self, job: JobStatus, wanted: Wanted) -> Iterator[Sequence[Entry]]:
        slots, total = ranks_of(job)
        tags = tagging(job.command)
        flow = Pipeline(self._asked, slots=slots, total=total, tagging=tags, whole=True)
        with (
            self._sinks(job, _names(job, wanted)) as sinks,
            self._backend.follow(job, self._asked.options, wanted) as following,
        ):
            course = Course(job, self._asked, wanted)
            there = [one for one in job.instances if wanted(source_of(one)) and not one.pending]
            flow.await_([one.name for one in there])
            flow.tried(course.tries)
            self._tell_all(course.begins(job))
            gone = self._kept_too(job, wanted, flow)
            while True:
                more = list(islice(gone, _MANY))
                items, error = _came(following, 0.0 if more else _TURN)
                came = time.monotonic()
                yield from self._passed(items, course, flow, sinks)
                yield flow.put(more, self._now())
                # While somebody looks at what is there no log is silent.
                self._stood += time.monotonic() - came
                self._tell_all(telling.late(flow.late(self._now())))
                if error is not None or (following.done and not items and not more):
                    break
        yield flow.rest()
        if error is not None:
            raise error
        course.nothing_but_errors()
        self._advise(flow)
        self._tell_all(course.told())
        self.end = End.READ
        lacking = course.lacking(None, done=True)
        if lacking:
            raise unread.failure(lacking)

    def _kept_too(self, job: JobStatus, wanted: Wanted, flow: Pipeline) -> Iterator[Line]:
        """What is kept of pods that the job had, and has no more, where several are shown."""
        if not self._asked.many or self._asked.options.previous:
            return
        archive, there = self._kept(), {one.name for one in job.instances}
        for kept in archive.kept(self._backend.place, self._namespace, self._name):
            if kept.uid != job.uid:
                continue
            gone = [one for one in kept.sources if wanted(one) and one.pod not in there]
            pods = sorted({one.pod for one in gone})
            if not pods:
                return
            text = f"pods that are gone: {named(pods)}; this is what was kept of them"
            self._hears.tell(Note(text=text))
            for one in gone:
                flow.notice(Notice(turn=Turn.JOINED, source=one))
            yield from archive.lines(kept, self._asked.options, set(gone).__contains__)
            for one in gone:
                flow.notice(Notice(turn=Turn.ENDED, source=one))
            return

    def _followed(self, job: JobStatus, wanted: Wanted) -> Iterator[Sequence[Entry]]:
        slots, total = ranks_of(job)
        flow = Pipeline(self._asked, slots=slots, total=total, tagging=tagging(job.command))
        looker = Looker(self._backend, job, keeps=self._asked.keep)
        course = Course(job, self._asked, wanted)
        with (
            looker,
            self._sinks(job, _names(job, wanted)) as sinks,
            self._backend.follow(job, self._asked.options, wanted) as following,
        ):
            error, ends = None, 0
            flow.tried(course.tries)
            self._tell_all(course.begins(job))
            while self.end is None and error is None:
                items, error = _came(following, _TURN)
                came = time.monotonic()
                yield from self._passed(items, course, flow, sinks)
                yield ()
                course.stood(time.monotonic() - came)
                if course.ends > ends:
                    ends = course.ends
                    looker.hurry()
                self._look(looker, course)
                lost, done = looker.lost is not None, following.done
                self.end = course.end(self.status, lost=lost, done=done, now=time.monotonic())
            lacking = course.lacking(self.status, done=following.done)
            if self.status is not None:
                sinks.close(self.status)
        yield flow.rest()
        self._hears.waits(None)
        self._advise(flow)
        self._tell_all(course.told())
        error = error or looker.lost
        if error is not None:
            self._tell_all(unread.notes(lacking))
            raise error
        self._account_for(lacking)

    def _account_for(self, lacking: Sequence[Lacking]) -> None:
        """Tell which logs could not be read; ArenaError where that spoils what a job ended with.

        That of the launcher does, and so does the only one that was asked for.
        """
        fails = any(one.source.chief or not self._asked.many for one in lacking)
        if fails and (self.status is None or self.status.phase is not Phase.FAILED):
            raise unread.failure(lacking)
        self._tell_all(unread.notes(lacking))

    def _passed(
        self, items: Sequence[Line | Notice], course: Course, flow: Pipeline, sinks: _Sinks
    ) -> Iterator[Sequence[Entry]]:
        """Hand on what came, and tell of what happened, in that order."""
        now = self._now()
        for lines, notice in _pieces(items):
            sinks.write(lines)
            if lines or notice is None:
                course.came(lines, now)
                ready = flow.put(lines, now)
                if course.speaks():
                    self._hears.waits(None)
                if ready:
                    yield ready
            if notice is not None:
                flow.notice(notice)
                sinks.notice(notice)
                self._tell_all(course.notice(notice, now))
        self._tell_all(course.told(now - flow.lag))

    def _now(self) -> float:
        return time.monotonic() - self._stood

    def _tell_all(self, notes: Iterable[Note]) -> None:
        for one in notes:
            self._hears.tell(one)

    def _look(self, looker: Looker, course: Course) -> None:
        """Take over what the looker has seen, and say what is waited for."""
        now = time.monotonic()
        for status in looker.news():
            self._see(status)
            course.saw(status, now)
        self._tell_all(course.sight(looker.blind, now))
        if self.status is not None:
            changed, waiting = course.waiting(self.status, looker.start, looker.blind, now)
            if changed:
                self._hears.waits(waiting)

    def _advise(self, flow: Pipeline) -> None:
        if flow.left_out is not None:
            self._hears.tell(Note(text=flow.left_out, warns=True))


class _Sinks:
    """Where lines go beside the screen: the archive, and the folder that was named."""

    def __init__(
        self,
        *,
        keeping: Keeping | None = None,
        saving: Saving | None = None,
        tell: Tell,
        fails: Callable[[ArenaError], None],
    ) -> None:
        """`fails` hears, at the end, what could not be saved."""
        self._keeping, self._saving = keeping, saving
        self._tell, self._fails = tell, fails
        self.lines = 0
        """How many came."""

    def write(self, lines: Sequence[Line]) -> None:
        """These came, or none."""
        self.lines += len(lines)
        if self._keeping is not None:
            self._keeping.write(lines)
        if self._saving is not None:
            self._saving.write(lines)

    def notice(self, notice: Notice) -> None:
        """Something happened to a log."""
        if self._keeping is not None and notice.turn is Turn.ENDED:
            self._keeping.ended(notice.source)
        elif self._keeping is not None and notice.turn is Turn.CUT:
            self._keeping.cut(notice.source)

    def close(self, job: JobStatus | None = None) -> None:
        """Nothing more comes."""
        if self._keeping is not None:
            self._keeping.close(job)
        saving, self._saving = self._saving, None
        if saving is not None:
            if saving.error is not None:
                self._fails(saving.error)
            failed = saving.error is not None
            self._tell(Note(text=saving.told, error=saving.error, warns=failed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_wrong: object) -> None:
        self.close()


def _names(job: JobStatus, wanted: Wanted) -> list[str]:
    """The pods there are whose logs are wanted."""
    return [one.name for one in job.instances if wanted(source_of(one))]


def _came(following: Following, wait: float) -> tuple[Sequence[Line | Notice], ArenaError | None]:
    """What came, or why nothing can come any more: what was held back is shown before that."""
    try:
        return following.read(wait), None
    except ArenaError as error:
        return (), error


def _pieces(items: Sequence[Line | Notice]) -> Iterator[tuple[list[Any], Notice | None]]:
    """What came, cut behind each notice; the last piece has none."""
    start = 0
    for index, one in enumerate(items):
        if isinstance(one, Notice):
            yield list(items[start:index]), one
            start = index + 1
    yield list(items[start:]), None


def _check(only: Only, slots: int | None, total: int | None, job: JobStatus) -> None:
    """UsageError where ranks or workers are asked for that the job has not."""
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
