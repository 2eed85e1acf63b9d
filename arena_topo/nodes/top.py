"""The command that shows nodes and who uses their GPUs: top node."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from arena_topo import layout
from arena_topo.cli import remembering
from arena_topo.cli.arguments import NODES, FabricFlag, Output, OutputFlag, option
from arena_topo.cli.opening import engine, network
from arena_topo.cli.options import Globals, display, say, show, spread, tell
from arena_topo.cli.terminal import wrapped
from arena_topo.cli.watching import RefreshFlag, once, renew
from arena_topo.drawing import tables

if TYPE_CHECKING:
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


@spread
def top_node(
    options: Nodes,
    everywhere: Globals,
    *,
    names: Annotated[list[str], typer.Argument(metavar="[NODE...]", show_default=False), NODES],
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
    described = network(options.fabric, options.state)
    backend = None if options.state else engine(everywhere, stays=refresh, fabric=described)

    def look() -> Overview:
        from arena_topo.nodes import overview  # noqa: PLC0415 - only to look at nodes

        # `_Mode` parses into the modes of the nodes themselves.
        mode: Any = options.gpu_mode
        return overview.look(
            options.state if backend is None else backend,
            names,
            mode=mode,
            alone=options.frag,
            fabric=described,
            metrics=options.metric,
            tell=warn_once,
        )

    def screen(sight: Overview, width: int | None) -> str:
        moving = refresh and width is not None
        return _nodes_screen(sight, options, named=bool(names), brief=moving)

    warn_once = once(set())
    first = look()
    tell(first.occupancy.cluster.notes)
    if output_format is Output.WIDE and not options.frag and first.occupancy.cluster.emulated:
        say(tables.emulated())
    if refresh:
        value = partial(_nodes_value, options=options)
        renew(first, look, screen, value, output_format, limit=everywhere.timeout)
    elif output_format is Output.WIDE:
        display(screen(first, wrapped(sys.stdout)))
    else:
        show(layout.arenas(_nodes_value(first, options), yaml=output_format is Output.YAML))
    if backend is not None:
        remembering.nodes(backend, first.occupancy.cluster)


def _nodes_screen(sight: Overview, options: Nodes, *, named: bool, brief: bool) -> str:
    """The nodes for people; `brief` leaves out the details that do not change."""
    from arena_topo.nodes import top_view  # noqa: PLC0415 - only to look at nodes

    found = sight.occupancy
    if options.frag:
        from arena_topo.nodes import fragmentation  # noqa: PLC0415 - only for --frag

        text = fragmentation.screen(fragmentation.look(found.cluster))
        return text + (f"{tables.emulated()}\n" if found.cluster.emulated else "")
    if not options.details:
        return top_view.nodes(found.nodes, named=named)
    return top_view.details(found.nodes, top_view.by_node(sight.samples), brief=brief)


def _nodes_value(sight: Overview, options: Nodes) -> dict[str, Any]:
    if options.frag:
        from arena_topo.nodes import fragmentation  # noqa: PLC0415 - only for --frag

        cluster = sight.occupancy.cluster
        return fragmentation.value(fragmentation.look(cluster), emulated=cluster.emulated)
    from arena_topo.nodes import top_view  # noqa: PLC0415 - only to look at nodes

    return top_view.value(sight)
