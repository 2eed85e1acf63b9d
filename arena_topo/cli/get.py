"""The command that shows one job, once or for as long as it goes on: get."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from arena_topo import output
from arena_topo.backends import Backend, Event, JobStatus
from arena_topo.cli import stopping, why
from arena_topo.cli.arguments import PANEL, Format, FormatFlag, Kind, Name, TypeFlag
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, display, say, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.errors import AccessDenied, ArenaError, NotFound
from arena_topo.escaping import one_line
from arena_topo.flag import Flag
from arena_topo.output import progress

if TYPE_CHECKING:
    from arena_topo.backends.metrics import GpuSample
    from arena_topo.workflow.drift import Difference
    from arena_topo.workflow.why import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of a job is shown beside its state."""

    events: Annotated[
        bool, Flag(help="Show what happened to the job and its pods.", short="-e", panel=PANEL)
    ] = False
    gpus: Annotated[bool, Flag(help="Show the GPUs of each pod.", short="-g", panel=PANEL)] = False
    explain: Annotated[bool, Flag(help="Say why it is as it is, as `why` does.", panel=PANEL)] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A job as it was at one look: `drift` is what is not as planned, `samples` what GPUs do."""

    status: JobStatus
    drift: Sequence[Difference] = ()
    samples: Sequence[GpuSample] = ()
    events: Sequence[Event] | None = None
    explanation: Explanation | None = None

    def screen(self, parts: Parts, now: float, width: int | None) -> str:
        """The job for people; `now` is Unix seconds."""
        text = output.job(
            self.status,
            now=now,
            gpus=parts.gpus,
            samples=self.samples,
            events=self.events,
            width=width,
        )
        return "\n".join([text, *why.blocks(self.drift, self.explanation, width=width)])

    def trouble(self) -> str | None:
        """Why it does not run, where the screen does not say so."""
        if self.explanation is not None or output.explained(self.status):
            return None
        return output.trouble(self.status)

    def value(self, now: float) -> dict[str, Any]:
        """The job for programs."""
        value = output.job_value(self.status, now=now, samples=self.samples)
        return value | why.values(self.drift, self.explanation)


@spread
def get(
    name: Name,
    parts: Parts,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    watch: Annotated[
        bool,
        Flag(
            help="Go on showing it until it is over; in a pipe, a line for each change.",
            short="-w",
            panel=PANEL,
        ),
    ] = False,
    output_format: FormatFlag = Format.WIDE,
) -> None:
    """Show one job: its state, its pods, where they run and why."""
    if everywhere.quiet and output_format is Format.WIDE:
        output_format = Format.NAME
    # What is watched is looked at for as long as --timeout allows, each time with patience.
    backend = engine(replace(everywhere, timeout=None) if watch else everywhere)
    stopping.limit(everywhere.timeout)
    namespace = namespace_of(everywhere, backend)
    if kind is Kind.OTHER:
        raise missing(name, namespace)
    if watch:
        _watch(backend, name, namespace, parts, output_format, limit=everywhere.timeout)
        return
    seen = _look(backend, name, namespace, parts, output_format, tell=say)
    now = time.time()
    if output_format is Format.NAME:
        show(f"{output.RESOURCE}/{seen.status.name}\n")
        return
    if output_format is not Format.WIDE:
        value = seen.value(now)
        yaml = output_format is Format.YAML
        show(output.to_yaml(output.for_yaml(value)) if yaml else output.to_json(value))
        return
    display(seen.screen(parts, now, wrapped(sys.stdout)))
    if (trouble := seen.trouble()) is not None:
        say(output.fold(trouble, wrapped(sys.stderr)))


def _look(
    backend: Backend,
    name: str,
    namespace: str,
    parts: Parts,
    output_format: Format,
    *,
    tell: Callable[[str], None] | None = None,
) -> Seen:
    from arena_topo.workflow.listing import privileged  # noqa: PLC0415 - the verbs are loaded late

    now, may = time.time(), f"get the training job in namespace {namespace}"
    with privileged(may):
        found = why.explained(backend, name, namespace, now) if parts.explain else None
    try:
        with privileged(may):
            status = backend.job(name, namespace)
    except NotFound:
        raise missing(name, namespace, backend) from None
    except AccessDenied:
        # The pods may not be listed: what can be said without them was asked for.
        if found is None:
            raise
        status = found.status
    if output_format is Format.NAME:
        return Seen(status=status)
    events = parts.events and output_format is Format.WIDE
    return Seen(
        status=status,
        samples=_samples(backend, status, parts, output_format, tell),
        drift=why.drifted(backend, status),
        events=backend.events(status) if events else None,
        explanation=found,
    )


def _samples(
    backend: Backend,
    status: JobStatus,
    parts: Parts,
    output_format: Format,
    tell: Callable[[str], None] | None,
) -> tuple[GpuSample, ...]:
    """What the GPUs do, for those who ask, and once for programs, which arena tells it too."""
    if not parts.gpus and (tell is None or output_format is Format.WIDE):
        return ()
    from arena_topo.workflow import measuring  # noqa: PLC0415 - only for who measures

    def note(text: str) -> None:
        if parts.gpus and tell is not None:
            tell(f"note: {one_line(text)}")

    return measuring.of_job(backend, status, tell=note)


# ---------------------------------------------------------------- for as long as it goes on


def _watch(
    backend: Backend,
    name: str,
    namespace: str,
    parts: Parts,
    output_format: Format,
    *,
    limit: float | None,
) -> None:
    from arena_topo.cli.detaching import detaching  # noqa: PLC0415 - only for who stays
    from arena_topo.cli.watching import watch  # noqa: PLC0415 - only for who stays

    known: list[JobStatus] = []

    def look() -> Seen:
        try:
            seen = _look(backend, name, namespace, parts, output_format)
        except NotFound:
            if not known:
                raise
            raise ArenaError(f"the job {name} was deleted while it was watched") from None
        known[:] = [seen.status]
        return seen

    def draw(seen: Seen, now: float, width: int | None) -> str:
        trouble = seen.trouble()
        below = "" if trouble is None else f"\n{output.fold(trouble, width)}\n"
        return seen.screen(parts, now, width) + below

    def changes(before: Seen | None, seen: Seen, now: float) -> str:
        if before is not None and _signs(before, output_format) == _signs(seen, output_format):
            return ""
        return _change(seen, now, output_format)

    back = _line(name, namespace, parts, output_format)
    with detaching(backend, name, namespace, there=lambda: bool(known), back=back):
        watch(
            look,
            draw=draw if output_format is Format.WIDE else None,
            changes=changes,
            over=lambda seen: seen.status.phase.over,
            every=backend.look_every,
            limit=limit,
        )


def _line(name: str, namespace: str, parts: Parts, output_format: Format) -> str:
    """What to type to go on watching."""
    asked = [("-e", parts.events), ("-g", parts.gpus), ("--explain", parts.explain)]
    flags = ["-w", *(flag for flag, said in asked if said)]
    if output_format is not Format.WIDE:
        flags.append(f"-o {output_format}")
    return f"{PROGRAM} get {name} {' '.join(flags)} -n {namespace}"


def _signs(seen: Seen, output_format: Format) -> Any:
    """What of a job makes a change worth a line or a document."""
    status = seen.status
    pods = [(one.name, one.status, one.node) for one in status.instances]
    if output_format in {Format.JSON, Format.YAML}:
        return status.phase, status.reason, status.forecast, pods, tuple(map(str, seen.drift))
    if output_format is Format.NAME:
        return status.name
    return status.phase, status.reason, progress.running(status)


def _change(seen: Seen, now: float, output_format: Format) -> str:
    if output_format is Format.WIDE:
        return progress.change(seen.status, now=now) + "\n"
    if output_format is Format.NAME:
        return f"{output.RESOURCE}/{seen.status.name}\n"
    if output_format is Format.YAML:
        return "---\n" + output.to_yaml(output.for_yaml(seen.value(now)))
    return json.dumps(seen.value(now), ensure_ascii=False) + "\n"
