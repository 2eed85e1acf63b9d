"""The commands about jobs that are there: logs, delete."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import typer

from arena_topo import output
from arena_topo.backends import JobStatus, LogOptions
from arena_topo.cli.arguments import PANEL, Kind, Name, Names, Told, ToldFlag, TypeFlag
from arena_topo.cli.detaching import detaching
from arena_topo.cli.opening import alike, engine, missing, namespace_of
from arena_topo.cli.options import Globals, LogLevel, put, say, show, spread
from arena_topo.errors import ArenaError, NotFound, UsageError
from arena_topo.flag import Flag


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
    known: list[JobStatus] = []
    pieces = workflow.follow(
        backend,
        name,
        namespace,
        instance=instance or None,
        options=options,
        tell=say,
        seen=known.append,
    )
    with detaching(backend, name, namespace, there=lambda: bool(known)):
        try:
            for piece in pieces:
                put(piece)
        except workflow.NoSuchJob as error:
            error.hint = alike(name, namespace, backend)
            raise


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
    output_format: ToldFlag = Told.WIDE,
) -> None:
    """Delete jobs and all that belongs to them."""
    names_only = output_format is Told.NAME or everywhere.quiet
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
                say(output.complaint(missing(name, namespace, backend)), LogLevel.ERROR)
                code = code or 1
        except ArenaError as error:
            # The other jobs are deleted all the same; the first failure decides the exit code.
            say(output.complaint(error), LogLevel.ERROR)
            code = code or error.exit_code
        else:
            if names_only:
                show(f"{output.RESOURCE}/{name}\n")
            else:
                say(f"The training job {name} has been deleted successfully")
    if code:
        raise typer.Exit(code)
