"""The command that shows what the GPUs of jobs do: top job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from arena_topo.cli.arguments import (
    PANEL,
    EverywhereFlag,
    Kind,
    Output,
    OutputFlag,
    PerhapsName,
    TypeFlag,
)
from arena_topo.cli.opening import missing, namespace_of
from arena_topo.cli.options import Globals, display, say, show, spread
from arena_topo.cli.terminal import cropped, wrapped
from arena_topo.drawing import tables
from arena_topo.engines import Backend
from arena_topo.errors import NotFound
from arena_topo.flag import Flag

if TYPE_CHECKING:
    from arena_topo.reasons.viewing import SeenJob
from arena_topo.cli.renewing import RefreshFlag, arenas, once, opened, renew


@spread
def top_job(
    name: PerhapsName,
    everywhere: Globals,
    *,
    all_namespaces: EverywhereFlag = False,
    kind: TypeFlag = None,
    instance: Annotated[
        str,
        Flag(
            help="With a job, only this pod of it.",
            short="-i",
            panel=PANEL,
            needs=("JOB",),
            metavar="POD",
            completes="instances",
        ),
    ] = "",
    refresh: RefreshFlag = False,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Show the jobs by the GPUs that they ask for; with a job, what its GPUs do."""
    backend = opened(everywhere, refresh=refresh)
    namespace = namespace_of(everywhere, backend)
    heard = once(set())

    def look() -> tuple[SeenJob, ...]:
        if name:
            if kind is Kind.OTHER:
                raise missing(name, namespace)
            return _job(backend, name, namespace, instance, heard)
        if kind is Kind.OTHER:
            return ()
        from arena_topo.jobs import filtering  # noqa: PLC0415 - only here

        measured = output_format is not Output.WIDE
        within = None if all_namespaces else namespace
        return filtering.jobs(backend, within, metrics=measured, tell=heard)

    def screen(seen: tuple[SeenJob, ...], _width: int | None) -> str:
        from arena_topo.jobs import topjob  # noqa: PLC0415 - only here

        now = time.time()
        if name:
            [one] = seen
            return topjob.job(one.status, now=now, instance=instance, samples=one.samples)
        statuses = [one.status for one in seen]
        return topjob.jobs(statuses, now=now, namespaces=all_namespaces)

    first = look()
    forecasts = [one.status.forecast for one in first]
    emulated = any(one is not None and one.emulated for one in forecasts)
    if emulated and output_format is Output.WIDE:
        say(tables.EMULATED)
    if refresh:
        renew(first, look, screen, _jobs_value, output_format, limit=everywhere.timeout)
    elif output_format is Output.WIDE:
        shown = screen(first, wrapped(sys.stdout))
        display(shown if name else cropped(shown))
    else:
        show(arenas(_jobs_value(first), output_format))


def _job(
    backend: Backend,
    name: str,
    namespace: str,
    instance: str,
    heard: Callable[[str], None],
) -> tuple[SeenJob, ...]:
    from arena_topo.reasons import measuring  # noqa: PLC0415 - only here
    from arena_topo.reasons.viewing import SeenJob  # noqa: PLC0415 - only here

    try:
        status = backend.job(name, namespace)
    except NotFound:
        raise missing(name, namespace, backend) from None
    if instance and instance not in {one.name for one in status.instances}:
        raise NotFound(
            f"invalid instance name {instance} in job {name}",
            hint=", ".join(one.name for one in status.instances) or None,
        )
    return (SeenJob(status=status, samples=measuring.of_job(backend, status, tell=heard)),)


def _jobs_value(seen: tuple[SeenJob, ...]) -> list[dict[str, Any]]:
    from arena_topo.jobs import view  # noqa: PLC0415 - only for programs

    now = time.time()
    return [view.seen(one, now=now) for one in seen]
