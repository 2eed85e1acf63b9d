"""The commands that show who uses which GPUs: top node, top job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from arena_topo import output
from arena_topo.backends import Backend
from arena_topo.cli import remembering, stopping
from arena_topo.cli.arguments import (
    NODES,
    PANEL,
    EverywhereFlag,
    FabricFlag,
    Kind,
    PerhapsName,
    PlanFormat,
    PlanFormatFlag,
    TypeFlag,
)
from arena_topo.cli.opening import engine, missing, namespace_of, network
from arena_topo.cli.options import PROGRAM, Globals, display, say, show, spread, tell
from arena_topo.cli.terminal import window, wrapped
from arena_topo.errors import NotFound, UsageError
from arena_topo.escaping import escaped_in_quotes, one_line
from arena_topo.flag import Flag

if TYPE_CHECKING:
    from arena_topo.topology.fabricfile import FabricFile
    from arena_topo.workflow.overview import Overview
    from arena_topo.workflow.viewing import SeenJob

REFRESH = 2.0
"""Seconds between two looks with --refresh (arena's)."""


class _Mode:
    """A mode of nodes as it is written; what it means is looked up where nodes are."""

    choices: ClassVar[tuple[str, ...]] = ("none", "exclusive", "topology", "share")

    @classmethod
    def parse(cls, text: str) -> Any:
        """Read a mode; ValueError carries arena's text."""
        from arena_topo.backends.occupancy import Mode  # noqa: PLC0415 - only to look at nodes

        return Mode.parse(text)


RefreshFlag = Annotated[
    bool,
    Flag(help="Go on showing it, every two seconds.", short="-r", panel=PANEL),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What of nodes is shown, and where it comes from."""

    details: Annotated[
        bool,
        Flag(help="Show each node with its pods, GPUs and links.", short="-d", panel=PANEL),
    ] = False
    gpu_mode: Annotated[
        _Mode | None,
        Flag(
            help="Only nodes that give out their GPUs so: n(none), e(exclusive), t(topology) or"
            " s(share).",
            short="-m",
            panel=PANEL,
            metavar="MODE",
        ),
    ] = None
    metric: Annotated[
        bool,
        Flag(help="With --details, show what GPUs do now, where Prometheus knows it.", panel=PANEL),
    ] = False
    frag: Annotated[
        bool,
        Flag(help="Show which gangs the free GPUs are still good for.", panel=PANEL),
    ] = False
    state: Annotated[
        tuple[str, ...],
        Flag(
            help="Look at this dump of kubectl get -o json; repeat for more.",
            panel=PANEL,
            metavar="FILE",
            completes="files",
        ),
    ] = ()
    fabric: FabricFlag = ""


@spread
def top_node(
    what: Nodes,
    everywhere: Globals,
    *,
    names: Annotated[list[str], typer.Argument(metavar="[NODE...]", show_default=False), NODES],
    refresh: RefreshFlag = False,
    output_format: PlanFormatFlag = PlanFormat.WIDE,
) -> None:
    """Show the nodes: their GPUs, who has which, and what the free ones are good for."""
    _check(what, refresh=refresh)
    described = network(what.fabric, what.state)
    backend = None if what.state else opened(everywhere, refresh=refresh, fabric=described)

    def look() -> Overview:
        from arena_topo.workflow import overview  # noqa: PLC0415 - only to look at nodes

        # What `_Mode` parses are the modes of nodes themselves.
        mode: Any = what.gpu_mode
        return overview.look(
            what.state if backend is None else backend,
            names,
            mode=mode,
            alone=what.frag,
            fabric=described,
            metrics=what.metric,
            tell=heard,
        )

    def screen(sight: Overview, width: int | None, rows: int | None = None) -> str:
        return _nodes_screen(sight, what, named=bool(names), width=width, rows=rows)

    heard = once(set())
    first = look()
    tell(first.found.cluster.notes)
    if output_format is PlanFormat.WIDE and not what.frag and first.found.cluster.emulated:
        say(output.EMULATED)
    if refresh:
        value = partial(_nodes_value, what=what)
        renew(first, look, screen, value, output_format, limit=everywhere.timeout)
    elif output_format is PlanFormat.WIDE:
        display(screen(first, wrapped(sys.stdout)))
    else:
        show(arenas(_nodes_value(first, what), output_format))
    if backend is not None:
        remembering.nodes(backend, first.found.cluster)


def _check(what: Nodes, *, refresh: bool) -> None:
    for given, flag in (
        (what.details, "--details"),
        (what.metric, "--metric"),
        (what.gpu_mode, "--gpu-mode"),
    ):
        if what.frag and given:
            raise UsageError(
                f"--frag and {flag} exclude each other",
                why="it shows all nodes together, by what their free GPUs are good for",
                hint=f"leave out {flag}, or --frag",
            )
    if what.state and refresh:
        raise UsageError(
            "--state and --refresh exclude each other",
            why="a dump never changes",
            hint="leave out --refresh",
        )
    if what.state and what.metric:
        raise UsageError(
            "--state and --metric exclude each other",
            why="a dump does not say what GPUs do",
            hint="leave out --metric",
        )


def _nodes_screen(
    sight: Overview, what: Nodes, *, named: bool, width: int | None, rows: int | None
) -> str:
    """The nodes for people; where there are only so many `rows`, details without what stays."""
    from arena_topo.output import top  # noqa: PLC0415 - only to look at nodes

    found = sight.found
    if what.frag:
        from arena_topo.output import fragmentation as shown  # noqa: PLC0415 - only for --frag
        from arena_topo.workflow import fragmentation  # noqa: PLC0415 - only for --frag

        text = shown.screen(fragmentation.look(found.cluster), width=width)
        return text + (f"{output.EMULATED}\n" if found.cluster.emulated else "")
    if not what.details:
        return top.nodes(found.nodes, named=named)
    samples = top.by_node(sight.samples)
    text = top.details(found.nodes, samples)
    if rows is not None and text.count("\n") > rows:
        return top.details(found.nodes, samples, brief=True)
    return text


def _nodes_value(sight: Overview, what: Nodes) -> dict[str, Any]:
    if what.frag:
        found = sight.found
        from arena_topo.output import fragmentation as shown  # noqa: PLC0415 - only for --frag
        from arena_topo.workflow import fragmentation  # noqa: PLC0415 - only for --frag

        return shown.value(fragmentation.look(found.cluster), emulated=found.cluster.emulated)
    from arena_topo.output import values  # noqa: PLC0415 - only for programs

    return values.nodes(sight)


# ---------------------------------------------------------------- jobs


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
            metavar="POD",
            completes="instances",
        ),
    ] = "",
    refresh: RefreshFlag = False,
    output_format: PlanFormatFlag = PlanFormat.WIDE,
) -> None:
    """Show the jobs by the GPUs that they ask for; with a job, what its GPUs do."""
    _check_job(name, all_namespaces=all_namespaces, instance=instance, refresh=refresh)
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
        from arena_topo.workflow import overview  # noqa: PLC0415 - only here

        measured = output_format is not PlanFormat.WIDE
        within = None if all_namespaces else namespace
        return overview.jobs(backend, within, metrics=measured, tell=heard)

    def screen(seen: tuple[SeenJob, ...], width: int | None, rows: int | None = None) -> str:
        from arena_topo.output import topjob  # noqa: PLC0415 - only here

        del width, rows
        now = time.time()
        if name:
            [one] = seen
            return topjob.job(one.status, now=now, instance=instance, samples=one.samples)
        statuses = [one.status for one in seen]
        return topjob.jobs(statuses, now=now, namespaces=all_namespaces)

    first = look()
    forecasts = [one.status.forecast for one in first]
    emulated = any(one is not None and one.emulated for one in forecasts)
    if emulated and output_format is PlanFormat.WIDE:
        say(output.EMULATED)
    if refresh:
        renew(first, look, screen, _jobs_value, output_format, limit=everywhere.timeout)
    elif output_format is PlanFormat.WIDE:
        display(screen(first, wrapped(sys.stdout)))
    else:
        show(arenas(_jobs_value(first), output_format))


def _check_job(name: str, *, all_namespaces: bool, instance: str, refresh: bool) -> None:
    if refresh and not name:
        raise UsageError("you must specify the job name when using `-r` flag")
    if instance and not name:
        raise UsageError(
            "you must specify the job name when using `-i` flag",
            hint=f"{PROGRAM} top job JOB --instance {instance}",
        )
    if name and all_namespaces:
        raise UsageError(
            "JOB and --all-namespaces exclude each other",
            why="jobs of several namespaces may have this name",
            hint=f"{PROGRAM} top job {name} --namespace NAMESPACE",
        )


def _job(
    backend: Backend,
    name: str,
    namespace: str,
    instance: str,
    heard: Callable[[str], None],
) -> tuple[SeenJob, ...]:
    from arena_topo.workflow import measuring  # noqa: PLC0415 - only here
    from arena_topo.workflow.viewing import SeenJob  # noqa: PLC0415 - only here

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
    from arena_topo.output import values  # noqa: PLC0415 - only for programs

    now = time.time()
    return [values.seen(one, now=now) for one in seen]


# ---------------------------------------------------------------- again and again


def opened(everywhere: Globals, *, refresh: bool, fabric: FabricFile | None = None) -> Backend:
    """The engine; with `refresh` each look has patience of its own, and all have `--timeout`."""
    backend = engine(replace(everywhere, timeout=None) if refresh else everywhere, fabric=fabric)
    stopping.limit(everywhere.timeout)
    return backend


def renew(
    first: Any,
    look: Callable[[], Any],
    screen: Callable[[Any, int | None, int | None], str],
    value: Callable[[Any], Any],
    output_format: PlanFormat,
    *,
    limit: float | None,
) -> None:
    """Show what is seen every two seconds: in its place on a terminal, else one after another."""
    from arena_topo.cli.watching import watch  # noqa: PLC0415 - only for who stays

    waiting = [first]

    def again() -> Any:
        return waiting.pop() if waiting else look()

    def text(_before: Any, seen: Any, now: float) -> str:
        if output_format is PlanFormat.JSON:
            return escaped_in_quotes(json.dumps(value(seen), ensure_ascii=False)) + "\n"
        if output_format is PlanFormat.YAML:
            return "---\n" + output.to_yaml(value(seen))
        return f"{screen(seen, None, None)}{'-' * 25} {output.clock(now)} {'-' * 37}\n"

    terminal = sys.stdout

    def draw(seen: Any, _now: float, width: int | None) -> str:
        # One row is left to whatever is written next, one to how old this is.
        return screen(seen, width, window(terminal)[1] - 2)

    watch(
        again,
        draw=draw if output_format is PlanFormat.WIDE else None,
        changes=text,
        every=REFRESH,
        limit=limit,
    )


def once(said: set[str]) -> Callable[[str], None]:
    """Say each thing one time only."""

    def heard(text: str) -> None:
        if text not in said:
            said.add(text)
            say(f"note: {one_line(text)}")

    return heard


def arenas(value: dict[str, Any] | list[dict[str, Any]], output_format: PlanFormat) -> str:
    """Arena's JSON has no newline at its end, and some keys of jobs are other words in YAML."""
    if output_format is PlanFormat.JSON:
        return output.to_json(value)
    if isinstance(value, list):
        return output.to_yaml([output.for_yaml(one) for one in value])
    return output.to_yaml(value)
