"""The command `get`: shows one job, once or until it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arena_topo import layout
from arena_topo.cli.arguments import (
    JobsOutputFlag,
    Name,
    Output,
    TypeFlag,
    names_only,
    option,
)
from arena_topo.cli.console import Console
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine, suggest_similar_job
from arena_topo.engines.backend import Backend
from arena_topo.errors import JobDeleted, NotFound
from arena_topo.jobs import progress, view
from arena_topo.reasons import view as reasons
from arena_topo.reasons.job_reading import read_job

if TYPE_CHECKING:
    from arena_topo.reasons.job_reading import SeenJob


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """The parts of a job to show beside its status, and the format."""

    events: bool = option(False, "Show what happened to the job and its pods.", short="-e")
    gpus: bool = option(False, "Show the GPUs of each pod.", short="-g")
    explain: bool = option(False, "Explain its state, as `why` does.")
    kind: TypeFlag = None
    watch: bool = option(
        False,
        "Keep showing it until it ends; in a pipe, one line for each change.",
        short="-w",
        excludes=("--output name",),
    )
    output_format: JobsOutputFlag = Output.WIDE


@command_from_records
def get(name: Name, wanted: GetOptions, session: Session) -> None:
    """Show one job: its state, its pods, where they run and why.

    Examples:
      # State, pods and placement
      get bert
      # With the reason, for scripts
      get bert --explain -o json
      # Watch it to its end
      get bert -w
    """
    backend = open_engine(session, stays=wanted.watch)
    namespace = namespace_of(session, backend)
    console = session.console
    shown = _Shown(console, backend, name, namespace, wanted)
    if wanted.watch:
        shown.watch(session.common.timeout)
        return
    names = names_only(wanted.output_format, session.common)
    seen = shown.look(tell=console.info, names=names)
    now = console.clock()
    if names:
        console.write(f"{view.RESOURCE}/{seen.status.name}\n")
    elif wanted.output_format is Output.WIDE:
        console.screen(shown.screen(seen, now, console.width))
        if (trouble := _trouble(seen)) is not None:
            console.info(trouble)
    else:
        console.write(
            layout.arena_document(
                view.job_json(seen, now=now), yaml=wanted.output_format is Output.YAML
            )
        )
    session.names.jobs(backend, namespace, [seen.status], whole=False)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A job to show, as requested."""

    console: Console
    backend: Backend
    name: str
    namespace: str
    wanted: GetOptions

    def look(self, *, tell: Callable[[str], None] | None = None, names: bool = False) -> SeenJob:
        """The job as it is now; `tell` gets notes, and is None while the job is watched."""
        gpus, wide = self.wanted.gpus, self.wanted.output_format is Output.WIDE

        def note(text: str) -> None:
            if gpus and tell is not None:
                tell(layout.note_line(text))

        with suggest_similar_job(self.name, self.namespace, self.backend, self.wanted.kind):
            return read_job(
                self.backend,
                self.name,
                self.namespace,
                drift=not names,
                # Once for programs, which arena tells it too.
                metrics=not names and (gpus or (tell is not None and not wide)),
                events=self.wanted.events and wide,
                explain=self.wanted.explain,
                tell=note,
            )

    def screen(self, seen: SeenJob, now: float, width: int | None) -> str:
        """The job for people; `now` is Unix seconds."""
        text = view.job_text(
            seen.status,
            now=now,
            gpus=self.wanted.gpus,
            samples=seen.samples,
            events=seen.events,
            width=width,
        )
        return "\n".join([text, *reasons.below(seen, width=width)])

    def watch(self, limit: float | None) -> None:
        """Show the job until it ends."""
        from arena_topo.cli.interrupt_message import job_goes_on  # noqa: PLC0415 - only for who stays
        from arena_topo.cli.refresh import watch  # noqa: PLC0415 - only for who stays

        known: list[str] = []

        def look() -> SeenJob:
            try:
                seen = self.look()
            except NotFound:
                if not known:
                    raise
                raise JobDeleted(f"the job {self.name} was deleted while it was watched") from None
            known.append(seen.status.name)
            return seen

        def draw(seen: SeenJob, now: float, width: int | None) -> str:
            trouble = _trouble(seen)
            below = "" if trouble is None else f"\n{trouble}\n"
            return layout.fold_text(self.screen(seen, now, width) + below, width)

        back = f"{PROGRAM} get {self.name} -w -n {self.namespace}"
        with job_goes_on(
            self.console,
            self.backend,
            self.name,
            self.namespace,
            exists=lambda: bool(known),
            back=back,
        ):
            watch(
                self.console,
                look,
                draw=draw if self.wanted.output_format is Output.WIDE else None,
                changes=self._changes,
                over=lambda seen: seen.status.phase.over,
                every=self.backend.look_every,
                limit=limit,
            )

    def _changes(self, before: SeenJob | None, seen: SeenJob, now: float) -> str:
        """A line or a document if something has changed."""
        wide = self.wanted.output_format is Output.WIDE
        if before is not None and _signs(before, wide=wide) == _signs(seen, wide=wide):
            return ""
        if wide:
            return progress.progress_line(seen.status, now=now) + "\n"
        form = self.wanted.output_format
        return layout.stream_document(view.job_json(seen, now=now), yaml=form is Output.YAML)


def _trouble(seen: SeenJob) -> str | None:
    """Why the job does not run, if the screen does not say it."""
    if seen.explanation is not None or view.shows_reason(seen.status):
        return None
    return view.why_not_running(seen.status)


def _signs(seen: SeenJob, *, wide: bool) -> Any:
    """The parts of a job whose change is worth a line or a document."""
    status = seen.status
    if wide:
        return status.phase, status.reason, progress.running(status)
    pods = [(instance.name, instance.status, instance.node) for instance in status.instances]
    return status.phase, status.reason, status.forecast, pods, tuple(map(str, seen.drift))
