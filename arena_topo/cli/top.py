"""The commands that show who uses which GPUs: top node, top job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arena_topo import output
from arena_topo.backends import Backend, JobStatus
from arena_topo.cli import stopping
from arena_topo.cli.arguments import (
    PANEL,
    EverywhereFlag,
    FabricFlag,
    Kind,
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
    from arena_topo.backends.metrics import GpuSample
    from arena_topo.backends.occupancy import Occupancy
    from arena_topo.topology.fabricfile import FabricFile

REFRESH = 2.0
"""Seconds between two looks with --refresh (arena's)."""


class _Mode:
    """A mode of nodes as it is written; what it means is looked up where nodes are."""

    @classmethod
    def parse(cls, text: str) -> Any:
        """Read a mode; ValueError carries arena's text."""
        from arena_topo.backends.occupancy import Mode  # noqa: PLC0415 - only to look at nodes

        return Mode.parse(text)


_Refresh = Annotated[
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
        ),
    ] = ()
    fabric: FabricFlag = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """Nodes at one look, and what was measured of their GPUs."""

    found: Occupancy
    samples: Mapping[str, Mapping[int, GpuSample]]


@spread
def top_node(
    what: Nodes,
    everywhere: Globals,
    *,
    names: Annotated[list[str], typer.Argument(metavar="[NODE...]", show_default=False)],
    refresh: _Refresh = False,
    output_format: PlanFormatFlag = PlanFormat.WIDE,
) -> None:
    """Show the nodes: their GPUs, who has which, and what the free ones are good for."""
    _check(what, refresh=refresh)
    described = network(what.fabric, what.state)
    backend = None if what.state else _opened(everywhere, refresh=refresh, fabric=described)

    def look() -> _Sight:
        from arena_topo.output import top  # noqa: PLC0415 - only to look at nodes
        from arena_topo.workflow import overview  # noqa: PLC0415 - only to look at nodes

        found = overview.read(what.state, described) if backend is None else backend.nodes()
        if what.frag:
            found = overview.only(found, names)
        else:
            # What `_Mode` parses are the modes of nodes themselves.
            mode: Any = what.gpu_mode
            found = replace(found, nodes=overview.chosen(found, names, mode))
        samples: tuple[GpuSample, ...] = ()
        if what.metric and backend is not None:
            samples = backend.metrics(tell=heard)
        return _Sight(found=found, samples=top.by_node(samples))

    def screen(sight: _Sight, width: int | None, rows: int | None = None) -> str:
        return _nodes_screen(sight, what, named=bool(names), width=width, rows=rows)

    heard = _once(set())
    first = look()
    tell(first.found.cluster.notes)
    if output_format is PlanFormat.WIDE and not what.frag and first.found.cluster.emulated:
        say(output.EMULATED)
    if refresh:
        value = partial(_nodes_value, what=what)
        _refresh(first, look, screen, value, output_format, limit=everywhere.timeout)
    elif output_format is PlanFormat.WIDE:
        display(screen(first, wrapped(sys.stdout)))
    else:
        show(_arenas(_nodes_value(first, what), output_format))


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
    sight: _Sight, what: Nodes, *, named: bool, width: int | None, rows: int | None
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
    text = top.details(found.nodes, sight.samples)
    if rows is not None and text.count("\n") > rows:
        return top.details(found.nodes, sight.samples, brief=True)
    return text


def _nodes_value(sight: _Sight, what: Nodes) -> dict[str, Any]:
    found = sight.found
    emulated = found.cluster.emulated
    if what.frag:
        from arena_topo.output import fragmentation as shown  # noqa: PLC0415 - only for --frag
        from arena_topo.workflow import fragmentation  # noqa: PLC0415 - only for --frag

        return shown.value(fragmentation.look(found.cluster), emulated=emulated)
    from arena_topo.output import top  # noqa: PLC0415 - only to look at nodes

    return top.nodes_value(found.nodes, sight.samples, emulated=emulated)


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jobs:
    """Jobs at one look, and what was measured of the GPUs of the one asked for."""

    statuses: tuple[JobStatus, ...]
    samples: tuple[GpuSample, ...] = ()


@spread
def top_job(
    name: Annotated[str, typer.Argument(metavar="[JOB]", show_default=False)],
    everywhere: Globals,
    *,
    all_namespaces: EverywhereFlag = False,
    kind: TypeFlag = None,
    instance: Annotated[
        str, Flag(help="With a job, only this pod of it.", short="-i", panel=PANEL, metavar="POD")
    ] = "",
    refresh: _Refresh = False,
    output_format: PlanFormatFlag = PlanFormat.WIDE,
) -> None:
    """Show the jobs by the GPUs that they ask for; with a job, what its GPUs do."""
    _check_job(name, all_namespaces=all_namespaces, instance=instance, refresh=refresh)
    backend = _opened(everywhere, refresh=refresh)
    namespace = namespace_of(everywhere, backend)
    heard = _once(set())

    def look() -> _Jobs:
        if name:
            if kind is Kind.OTHER:
                raise missing(name, namespace)
            return _job(backend, name, namespace, instance, heard)
        from arena_topo.output import topjob  # noqa: PLC0415 - only here

        within = None if all_namespaces else namespace
        found = () if kind is Kind.OTHER else backend.jobs(within)
        measured = output_format is not PlanFormat.WIDE and found
        return _Jobs(
            statuses=tuple(topjob.by_requested(found)),
            samples=backend.metrics(within, tell=heard) if measured else (),
        )

    def screen(seen: _Jobs, width: int | None, rows: int | None = None) -> str:
        from arena_topo.output import topjob  # noqa: PLC0415 - only here

        del width, rows
        now = time.time()
        if name:
            [status] = seen.statuses
            return topjob.job(status, now=now, instance=instance, samples=seen.samples)
        return topjob.jobs(seen.statuses, now=now, namespaces=all_namespaces)

    first = look()
    emulated = any(one.forecast is not None and one.forecast.emulated for one in first.statuses)
    if emulated and output_format is PlanFormat.WIDE:
        say(output.EMULATED)
    if refresh:
        _refresh(first, look, screen, _jobs_value, output_format, limit=everywhere.timeout)
    elif output_format is PlanFormat.WIDE:
        display(screen(first, wrapped(sys.stdout)))
    else:
        show(_arenas(_jobs_value(first), output_format))


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
) -> _Jobs:
    from arena_topo.workflow import measuring  # noqa: PLC0415 - only here

    try:
        status = backend.job(name, namespace)
    except NotFound:
        raise missing(name, namespace, backend) from None
    if instance and instance not in {one.name for one in status.instances}:
        raise NotFound(
            f"invalid instance name {instance} in job {name}",
            hint=", ".join(one.name for one in status.instances) or None,
        )
    return _Jobs(statuses=(status,), samples=measuring.of_job(backend, status, tell=heard))


def _jobs_value(seen: _Jobs) -> list[dict[str, Any]]:
    now = time.time()
    return [
        output.job_value(
            one,
            now=now,
            samples=[
                sample
                for sample in seen.samples
                if sample.namespace in {"", one.namespace}
                and sample.pod in {pod.name for pod in one.instances}
            ],
        )
        for one in seen.statuses
    ]


# ---------------------------------------------------------------- again and again


def _opened(everywhere: Globals, *, refresh: bool, fabric: FabricFile | None = None) -> Backend:
    """The engine; with `refresh` each look has patience of its own, and all have `--timeout`."""
    backend = engine(replace(everywhere, timeout=None) if refresh else everywhere, fabric=fabric)
    stopping.limit(everywhere.timeout)
    return backend


def _refresh(
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


def _once(said: set[str]) -> Callable[[str], None]:
    """Say each thing one time only."""

    def heard(text: str) -> None:
        if text not in said:
            said.add(text)
            say(f"note: {one_line(text)}")

    return heard


def _arenas(value: dict[str, Any] | list[dict[str, Any]], output_format: PlanFormat) -> str:
    """Arena's JSON has no newline at its end, and some keys of jobs are other words in YAML."""
    if output_format is PlanFormat.JSON:
        return output.to_json(value)
    if isinstance(value, list):
        return output.to_yaml([output.for_yaml(one) for one in value])
    return output.to_yaml(value)
