"""The command that shows one job, once or for as long as it goes on: get."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from arena_topo import layout
from arena_topo.cli import remembering, stopping
from arena_topo.cli.arguments import PANEL, JobsOutputFlag, Kind, Name, Output, TypeFlag
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, display, say, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.engines import Backend, JobStatus
from arena_topo.engines.opening import UnknownJob
from arena_topo.errors import JobDeleted, NotFound
from arena_topo.escaping import one_line
from arena_topo.flag import Flag
from arena_topo.jobs import progress, view
from arena_topo.reasons import command

if TYPE_CHECKING:
    from arena_topo.reasons.viewing import SeenJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of a job is shown beside its state."""

    events: Annotated[
        bool, Flag(help="Show what happened to the job and its pods.", short="-e", panel=PANEL)
    ] = False
    gpus: Annotated[bool, Flag(help="Show the GPUs of each pod.", short="-g", panel=PANEL)] = False
    explain: Annotated[bool, Flag(help="Explain its state, as `why` does.", panel=PANEL)] = False


def _screen(seen: SeenJob, parts: Parts, now: float, width: int | None) -> str:
    """The job for people; `now` is Unix seconds."""
    text = view.job(
        seen.status,
        now=now,
        gpus=parts.gpus,
        samples=seen.samples,
        events=seen.events,
    )
    return "\n".join([text, *command.blocks(seen.drift, seen.explanation, width=width)])


def _trouble(seen: SeenJob) -> str | None:
    """Why it does not run, where the screen does not say so."""
    if seen.explanation is not None or view.explained(seen.status):
        return None
    return view.trouble(seen.status)


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
            help="Keep showing it until it ends; in a pipe, one line for each change.",
            short="-w",
            panel=PANEL,
        ),
    ] = False,
    output_format: JobsOutputFlag = Output.WIDE,
) -> None:
    """Show one job: its state, its pods, where they run and why."""
    if everywhere.quiet and output_format is Output.WIDE:
        output_format = Output.NAME
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
    if output_format is Output.NAME:
        show(f"{view.RESOURCE}/{seen.status.name}\n")
    elif output_format is not Output.WIDE:
        value = view.seen(seen, now=now)
        yaml = output_format is Output.YAML
        show(layout.to_yaml(layout.for_yaml(value)) if yaml else layout.to_json(value))
    else:
        display(_screen(seen, parts, now, wrapped(sys.stdout)))
        if (trouble := _trouble(seen)) is not None:
            say(layout.fold(trouble, wrapped(sys.stderr)))
    remembering.jobs(backend, namespace, [seen.status], whole=False)


def _look(
    backend: Backend,
    name: str,
    namespace: str,
    parts: Parts,
    output_format: Output,
    *,
    tell: Callable[[str], None] | None = None,
) -> SeenJob:
    from arena_topo.reasons import viewing  # noqa: PLC0415 - the verbs are loaded late

    def note(text: str) -> None:
        if parts.gpus and tell is not None:
            tell(f"note: {one_line(text)}")

    shown = output_format is not Output.NAME
    # Once for programs, which arena tells it too.
    once = tell is not None and output_format is not Output.WIDE
    wanted = viewing.Parts(
        drift=shown,
        metrics=shown and (parts.gpus or once),
        events=parts.events and output_format is Output.WIDE,
        explain=parts.explain,
    )
    try:
        return viewing.look(backend, name, namespace, wanted, tell=note)
    except UnknownJob:
        raise missing(name, namespace, backend) from None


# ---------------------------------------------------------------- for as long as it goes on


def _watch(
    backend: Backend,
    name: str,
    namespace: str,
    parts: Parts,
    output_format: Output,
    *,
    limit: float | None,
) -> None:
    from arena_topo.cli.detaching import detaching  # noqa: PLC0415 - only for who stays
    from arena_topo.cli.watching import watch  # noqa: PLC0415 - only for who stays

    known: list[JobStatus] = []

    def look() -> SeenJob:
        try:
            seen = _look(backend, name, namespace, parts, output_format)
        except NotFound:
            if not known:
                raise
            raise JobDeleted(f"the job {name} was deleted while it was watched") from None
        known[:] = [seen.status]
        return seen

    def draw(seen: SeenJob, now: float, width: int | None) -> str:
        trouble = _trouble(seen)
        below = "" if trouble is None else f"\n{trouble}\n"
        return layout.folded(_screen(seen, parts, now, width) + below, width)

    def changes(before: SeenJob | None, seen: SeenJob, now: float) -> str:
        if before is not None and _signs(before, output_format) == _signs(seen, output_format):
            return ""
        return _change(seen, now, output_format)

    back = _line(name, namespace, parts, output_format)
    with detaching(backend, name, namespace, there=lambda: bool(known), back=back):
        watch(
            look,
            draw=draw if output_format is Output.WIDE else None,
            changes=changes,
            over=lambda seen: seen.status.phase.over,
            every=backend.look_every,
            limit=limit,
        )


def _line(name: str, namespace: str, parts: Parts, output_format: Output) -> str:
    """What to type to go on watching."""
    asked = [("-e", parts.events), ("-g", parts.gpus), ("--explain", parts.explain)]
    flags = ["-w", *(flag for flag, said in asked if said)]
    if output_format is not Output.WIDE:
        flags.append(f"-o {output_format}")
    return f"{PROGRAM} get {name} {' '.join(flags)} -n {namespace}"


def _signs(seen: SeenJob, output_format: Output) -> Any:
    """What of a job makes a change worth a line or a document."""
    status = seen.status
    pods = [(one.name, one.status, one.node) for one in status.instances]
    if output_format in {Output.JSON, Output.YAML}:
        return status.phase, status.reason, status.forecast, pods, tuple(map(str, seen.drift))
    if output_format is Output.NAME:
        return status.name
    return status.phase, status.reason, progress.running(status)


def _change(seen: SeenJob, now: float, output_format: Output) -> str:
    if output_format is Output.WIDE:
        return progress.change(seen.status, now=now) + "\n"
    if output_format is Output.NAME:
        return f"{view.RESOURCE}/{seen.status.name}\n"
    if output_format is Output.YAML:
        return "---\n" + layout.to_yaml(layout.for_yaml(view.seen(seen, now=now)))
    return json.dumps(view.seen(seen, now=now), ensure_ascii=False) + "\n"
