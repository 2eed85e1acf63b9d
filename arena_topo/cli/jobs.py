"""The commands about jobs that are there: get, list, logs, delete."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from arena_topo import output
from arena_topo.backends import LogOptions
from arena_topo.cli.arguments import PANEL, Format, Kind, Name, Names, TypeFlag
from arena_topo.cli.detaching import detaching
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import Globals, put, say, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.errors import AccessDenied, ArenaError, NotFound, UsageError
from arena_topo.flag import Flag


@spread
def get(
    name: Name,
    everywhere: Globals,
    *,
    kind: TypeFlag = None,
    events: Annotated[
        bool, Flag(help="Show what happened to the job and its pods.", short="-e", panel=PANEL)
    ] = False,
    gpus: Annotated[bool, Flag(help="Show the GPUs of each pod.", short="-g", panel=PANEL)] = False,
    explain: Annotated[bool, Flag(help="Say why it is as it is, as `why` does.", panel=PANEL)] = (
        False
    ),
    output_format: Annotated[
        Format, Flag(help="How to show it.", name="--output", short="-o", panel=PANEL)
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
        bool, Flag(help="Show the jobs of all namespaces.", short="-A", panel=PANEL)
    ] = False,
    output_format: Annotated[
        Format, Flag(help="How to show it.", name="--output", short="-o", panel=PANEL)
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
        Flag(help="Wait for the pod, and go on until it ends.", short="-f", panel=PANEL),
    ] = False,
    since: Annotated[
        str,
        Flag(help="Only what is newer than this, such as 1h30m.", panel=PANEL, metavar="DURATION"),
    ] = "",
    since_time: Annotated[
        str, Flag(help="Only what is newer than this moment.", panel=PANEL, metavar="RFC3339")
    ] = "",
    tail: Annotated[
        int, Flag(help="Only so many of the last lines; -1 shows all.", short="-t", panel=PANEL)
    ] = -1,
    timestamps: Annotated[bool, Flag(help="Start each line with its time.", panel=PANEL)] = False,
    instance: Annotated[
        str, Flag(help="Pod to read; else the launcher.", short="-i", panel=PANEL, metavar="POD")
    ] = "",
    container: Annotated[
        str, Flag(help="Container to read.", short="-c", panel=PANEL, metavar="NAME")
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
        bool, Flag(help="Do not mind jobs that are not there.", panel=PANEL)
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
