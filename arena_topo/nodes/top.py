"""The command that shows nodes and who uses their GPUs: top node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from arena_topo import layout
from arena_topo.cli.arguments import FabricFlag, Output, OutputFlag, option
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.refresh import RefreshFlag, print_once, redraw_screen
from arena_topo.cli.session import Session
from arena_topo.cli.targets import network_of_option, open_engine
from arena_topo.drawing import tables
from arena_topo.flag import Word

if TYPE_CHECKING:
    from arena_topo.engines.backend import Backend
    from arena_topo.nodes.overview import Overview


class _Mode:
    """The parser of a node mode on the command line; `occupancy` is imported only for that."""

    choices: ClassVar[tuple[str, ...]] = ("none", "exclusive", "topology", "share")

    @classmethod
    def parse(cls, text: str) -> Any:
        """Read a mode; ValueError carries arena's text."""
        from arena_topo.engines.occupancy import Mode  # noqa: PLC0415 - only to look at nodes

        return Mode.parse(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The part of the nodes to show, and their source."""

    details: bool = option(False, "Show each node with its pods, GPUs and links.", short="-d")
    gpu_mode: _Mode | None = option(
        None,
        "Only nodes with this GPU mode: n(none), e(exclusive), t(topology) or s(share).",
        "MODE",
        short="-m",
    )
    metric: bool = option(False, "With --details, show the GPU usage that Prometheus has.")
    frag: bool = option(
        False,
        "Show how fragmented the free GPUs are: which gangs still fit.",
        excludes=("--details", "--metric", "--gpu-mode"),
    )
    state: tuple[str, ...] = option(
        (),
        "Look at this dump of kubectl get -o json; repeat for more.",
        "FILE",
        excludes=("--refresh", "--metric"),
        completes="files",
    )
    fabric: FabricFlag = ""


@command_from_records
def top_node(
    options: Nodes,
    session: Session,
    *,
    names: Annotated[tuple[str, ...], Word("[NODE...]", "nodes")],
    refresh: RefreshFlag = False,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Show the nodes: their GPUs, the pods that use them, and their fragmentation.

    Examples:
      # Who has which GPUs of a node
      top node -d n1
      # What the free GPUs are good for
      top node --frag
    """
    console = session.console
    described = network_of_option(options.fabric, options.state)
    backend = None if options.state else open_engine(session, stays=refresh, fabric=described)

    def look() -> Overview:
        from arena_topo.nodes import overview  # noqa: PLC0415 - only to look at nodes

        # `_Mode` parses into the modes of the nodes themselves.
        mode: Any = options.gpu_mode
        return overview.read_overview(
            options.state if backend is None else backend,
            names,
            mode=mode,
            alone=options.frag,
            fabric=described,
            metrics=options.metric,
            tell=warn_once,
        )

    def screen(overview: Overview, width: int | None) -> str:
        moving = refresh and width is not None
        now = console.clock()
        return _nodes_screen(
            overview, options, backend, named=bool(names), brief=moving, now=now, width=width
        )

    warn_once = print_once(console)
    first = look()
    console.notes(first.occupancy.cluster.notes)
    if output_format is Output.WIDE and not options.frag and first.occupancy.cluster.emulated:
        console.info(tables.emulated_note())
    if refresh:
        value = partial(_nodes_value, options=options, backend=backend)
        limit = session.common.timeout
        redraw_screen(console, first, look, screen, value, output_format=output_format, limit=limit)
    elif output_format is Output.WIDE:
        console.screen(screen(first, console.width))
    else:
        console.write(
            layout.arena_document(
                _nodes_value(first, options, backend), yaml=output_format is Output.YAML
            )
        )
    if backend is not None:
        session.names.nodes(backend, first.occupancy.cluster)


def _nodes_screen(
    overview: Overview,
    options: Nodes,
    backend: Backend | None,
    *,
    named: bool,
    brief: bool,
    now: float,
    width: int | None,
) -> str:
    """The nodes for people; `brief` leaves out the details that do not change."""
    from arena_topo.nodes import top_view  # noqa: PLC0415 - only to look at nodes

    occupancy = overview.occupancy
    if options.frag:
        from arena_topo.nodes import fragmentation  # noqa: PLC0415 - only for --frag

        text = fragmentation.fragmentation_screen(
            fragmentation.measure_fragmentation(occupancy.cluster, backend)
        )
        return text + (f"{tables.emulated_note()}\n" if occupancy.cluster.emulated else "")
    if not options.details:
        return top_view.nodes_table(occupancy.nodes, named=named, now=now, width=width)
    return top_view.details(occupancy.nodes, top_view.by_node(overview.samples), brief=brief)


def _nodes_value(overview: Overview, options: Nodes, backend: Backend | None) -> dict[str, Any]:
    if options.frag:
        from arena_topo.nodes import fragmentation  # noqa: PLC0415 - only for --frag

        cluster = overview.occupancy.cluster
        return fragmentation.fragmentation_json(
            fragmentation.measure_fragmentation(cluster, backend), emulated=cluster.emulated
        )
    from arena_topo.nodes import top_view  # noqa: PLC0415 - only to look at nodes

    return top_view.nodes_json(overview)
