"""The commands about machines and the network: topology presets, show, discover, publish."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from arena_topo.cli.arguments import (
    DOCUMENTS,
    NODES,
    PANEL,
    DryRun,
    FabricFlag,
    GraphOutputFlag,
    Output,
    OutputFlag,
    document,
    output,
)
from arena_topo.cli.opening import engine
from arena_topo.cli.options import (
    BackendName,
    Globals,
    Seconds,
    display,
    note,
    remark,
    say,
    show,
    spread,
    tell,
)
from arena_topo.cli.terminal import columns, draws, wrapped
from arena_topo.drawing import network, tables
from arena_topo.drawing.machine import State, assumed_nics, draw
from arena_topo.errors import UsageError
from arena_topo.flag import Flag, Word
from arena_topo.manifests import Manifest
from arena_topo.manifests.serialize import object_name, to_json, to_yaml
from arena_topo.nodes import fabric
from arena_topo.topology import Cluster, Machine, Node, presets

if TYPE_CHECKING:
    import networkx as nx

from arena_topo.cli.opening import cluster_of, is_node, node_or_preset

_AGENT = "Agent"
_INTERVAL = Seconds(15)

_PlainFlag = Annotated[
    bool, Flag(help="Draw with ASCII characters only.", name="--ascii", panel=PANEL)
]
_NOT_AN_AGENTS = ("--from", "--preset", "--bus-bandwidth", "--dry-run", "--output")

_SourceFlag = Annotated[
    str,
    Flag(
        help="Read the machine from this file: the output of nvidia-smi topo -m, XML of NCCL,"
        " or what topology show -o json has printed; - is standard input.",
        name="--from",
        panel=PANEL,
        excludes=("PRESET|NODE", "--state", "--fabric", "--preset"),
        metavar="FILE",
        completes="files",
    ),
]


@spread
def topology_presets(everywhere: Globals, *, output_format: OutputFlag = Output.WIDE) -> None:
    """List the machines that are known by name.

    Examples:
      # The names for --emulate and forecast
      topology presets
    """
    del everywhere
    if output_format is not Output.WIDE:
        known = [tables.machine_value(presets.machine(name, name)) for name in presets.names()]
        value = {"apiVersion": "arena-topo/v1", "kind": "PresetList", "items": known}
        show(document(value, output_format))
        return
    display(tables.machines((name, presets.machine(name, name)) for name in presets.names()))


@spread
def topology_show(
    target: Annotated[
        str,
        typer.Argument(metavar="[PRESET|NODE]", show_default=False),
        Word(completes="presets nodes"),
    ],
    everywhere: Globals,
    source: _SourceFlag = "",
    state: Annotated[
        tuple[str, ...],
        Flag(
            help="Look at this dump of kubectl get -o json; repeat for more.",
            panel=PANEL,
            metavar="FILE",
            completes="files",
        ),
    ] = (),
    fabric: FabricFlag = "",
    *,
    plain: _PlainFlag = False,
    output_format: GraphOutputFlag = Output.WIDE,
) -> None:
    """Show how the GPUs of a machine are linked; without one, how the nodes of the cluster are.

    Examples:
      # The links between the GPUs of a node
      topology show n1
      # A machine by its preset, as a picture
      topology show dgx-a100 -o svg
    """
    if source:
        from arena_topo.engines import machines  # noqa: PLC0415 - the verbs load what they need

        read = machines.read(source)
        tell(read.notes)
        _show_machine(read.machine, plain=plain, output_format=output_format)
        return
    named = target in presets.names()
    if named and not state and not is_node(target, everywhere):
        _show_machine(presets.machine(target, target), plain=plain, output_format=output_format)
        return
    cluster = cluster_of(state, fabric, everywhere)
    tell(cluster.notes)
    if target:
        found = node_or_preset(target, cluster)
        if isinstance(found, Node):
            if named:
                other = "without --state" if state else "with --backend local"
                note(f"{target} is a node here; {other} the preset of that name is shown")
            _show_node(found, cluster, plain=plain, output_format=output_format)
        else:
            _show_machine(found, plain=plain, output_format=output_format)
    else:
        _show_fabric(cluster, plain=plain, output_format=output_format)


@spread
def topology_discover(
    everywhere: Globals,
    *,
    plain: _PlainFlag = False,
    output_format: GraphOutputFlag = Output.WIDE,
) -> None:
    """Show how the GPUs of this machine are linked, as NVML or nvidia-smi tells it.

    Examples:
      # The links of this machine
      topology discover
    """
    from arena_topo.engines import machines  # noqa: PLC0415 - the verbs load what they need

    del everywhere
    _show_machine(machines.discover(), plain=plain, output_format=output_format)


@spread
def topology_publish(
    target: Annotated[str, typer.Argument(metavar="[NODE]", show_default=False), NODES],
    everywhere: Globals,
    *,
    source: _SourceFlag = "",
    preset: Annotated[
        str,
        Flag(
            help="Preset of the node's machine; see topology presets.",
            panel=PANEL,
            metavar="PRESET",
            completes="presets",
        ),
    ] = "",
    bus_bandwidth: Annotated[
        str,
        Flag(
            help="Publish the bandwidths in this file too, as logs --nccl --bus-bandwidth prints"
            " them, for the links that the cluster knows or --from says; - is stdin.",
            panel=PANEL,
            metavar="FILE",
            completes="files",
        ),
    ] = "",
    dry_run: Annotated[
        DryRun | None,
        Flag(
            help="Print what would be written, and write nothing.",
            panel=PANEL,
            metavar="[=client|server]",
        ),
    ] = None,
    output_format: Annotated[
        Output | None,
        output(*DOCUMENTS, help="How to print the object."),
    ] = None,
    watch: Annotated[
        bool,
        Flag(
            help="Go on: keep this node's links, health and allocations up to date in namespace"
            " arena-topo-system, as the node agent does.",
            panel=_AGENT,
            excludes=_NOT_AN_AGENTS,
        ),
    ] = False,
    interval: Annotated[
        Seconds,
        Flag(help="How often --watch looks.", panel=_AGENT, metavar="DURATION"),
    ] = _INTERVAL,
    pod_resources: Annotated[
        str,
        Flag(
            help="The kubelet's socket that lists the GPUs of each pod (default"
            " /var/lib/kubelet/pod-resources/kubelet.sock).",
            panel=_AGENT,
            needs=("--watch",),
            metavar="SOCKET",
            completes="files",
        ),
    ] = "",
) -> None:
    """Publish in the cluster how the GPUs of a node are linked, for all to read.

    Examples:
      # Look before anything is written
      topology publish n1 --preset dgx-a100 --dry-run
    """
    from arena_topo.engines import machines  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.topology import published  # noqa: PLC0415 - only here

    if watch:
        _keep(target, everywhere, interval, pod_resources)
        return
    if bus_bandwidth and target and not (source or preset):
        found = machines.known(engine(everywhere), target)
    else:
        found = machines.publishing(target, source=source, preset=preset)
    if bus_bandwidth:
        found = machines.with_measured(found, bus_bandwidth)
    tell(found.notes)
    if dry_run is DryRun.CLIENT:
        manifest = published.config_map(found.machine, found.machine.everything)
        show(_manifest(manifest, output_format or Output.YAML))
        say("Nothing was written.")
        return
    done = engine(everywhere).publish(found.machine, dry_run=dry_run is DryRun.SERVER)
    said = f"configmap/{done.manifest['metadata']['name']} {done.outcome}"
    if dry_run is None and output_format is None:
        show(f"{said}\n")
        return
    show(_manifest(done.manifest, output_format or Output.YAML))
    say(said if dry_run is None else f"{said} (server dry run: nothing was written)")


def _keep(node: str, everywhere: Globals, interval: float, socket: str) -> None:
    """Be the agent of a node, until SIGTERM."""
    # The first process of a container dies of no signal that it does not ask for.
    signal.signal(signal.SIGTERM, _end)
    from arena_topo.engines.kubernetes.publishing import open_reports  # noqa: PLC0415
    from arena_topo.nodes.agent import Agent  # noqa: PLC0415
    from arena_topo.nodes.kubelet import SOCKET  # noqa: PLC0415 - only for agents

    if everywhere.backend is BackendName.LOCAL:
        raise UsageError(
            "there is no cluster to publish in",
            why="--backend local is this machine",
            hint="leave out --watch: topology discover shows this machine",
        )
    name = node or os.environ.get("NODE_NAME", "")
    if not name:
        raise UsageError(
            "no node is named",
            why="an agent writes of its own node, which the host's name may not tell",
            hint="set NODE_NAME to spec.nodeName by the downward API, or name the node",
        )
    reports = open_reports(everywhere.options(), name)
    agent = Agent(reports, name, say=remark, socket=socket or SOCKET)
    agent.run(threading.Event(), interval=max(1.0, interval))


def _end(*_signal: object) -> None:
    """Stop at once; a write on its way is made whole by the next agent."""
    raise SystemExit(0)


# ---------------------------------------------------------------- what is shown


def _show_machine(machine: Machine, *, plain: bool, output_format: Output) -> None:
    if output_format is Output.WIDE:
        display(_drawn(State(machine=machine), plain=plain))
    elif output_format is Output.SVG:
        show(_picture(State(machine=machine)))
    elif output_format is Output.GRAPHML:
        show(_graphml(machine.graph()))
    else:
        show(document(tables.machine_value(machine), output_format))


def _show_node(node: Node, cluster: Cluster, *, plain: bool, output_format: Output) -> None:
    if output_format is Output.GRAPHML:
        show(_graphml(node.machine.graph()))
    elif output_format not in {Output.WIDE, Output.SVG}:
        show(document(fabric.node_value(node, cluster), output_format))
    elif not node.machine.gpus and output_format is Output.WIDE:
        display(f"node {node.name} has no GPUs\n{_emulated(cluster)}")
    else:
        doubt = node.unavailable or node.shared
        notes = [f"No job can start here now: {doubt}"] if doubt else []
        state = State.of(node)
        if output_format is Output.SVG:
            notes += [tables.EMULATED] if cluster.emulated else []
            show(_picture(state, notes))
            return
        below = [f"  {note}\n" for note in notes]
        parts = (_drawn(state, plain=plain), fabric.measured(node.machine), *below)
        display("".join((*parts, _emulated(cluster))))


def _picture(state: State, notes: Sequence[str] = ()) -> str:
    from arena_topo.drawing import machine_svg  # noqa: PLC0415 - reads the solver

    return machine_svg.draw(state, notes=notes)


def _drawn(state: State, *, plain: bool) -> str:
    """The matrix of a machine and its GPUs; a narrow terminal has NICs only below them."""
    width = columns()
    matrix = tables.matrix(state.machine)
    if (
        sys.stdout is not None
        and sys.stdout.isatty()
        and max(map(len, matrix.splitlines())) > width
    ):
        matrix = tables.matrix(state.machine, cards=False)
    drawn = draw(state, pairs=False, unicode=draws(plain=plain), width=width)
    return f"{matrix}\n{drawn}{assumed_nics(state.machine)}"


def _show_fabric(cluster: Cluster, *, plain: bool, output_format: Output) -> None:
    if output_format is Output.GRAPHML:
        show(_graphml(cluster.graph()))
    elif output_format is Output.SVG:
        show(network.svg(cluster))
    elif output_format is Output.WIDE:
        drawn = network.text(cluster, unicode=draws(plain=plain), width=wrapped(sys.stdout))
        display(drawn + _emulated(cluster))
    else:
        show(document(fabric.value(cluster), output_format))


def _graphml(graph: nx.Graph[str]) -> str:
    import networkx as nx

    return "\n".join(nx.generate_graphml(graph)) + "\n"


def _emulated(cluster: Cluster) -> str:
    return f"{tables.emulated()}\n" if cluster.emulated else ""


def _manifest(manifest: Manifest, document: Output) -> str:
    if document is Output.NAME:
        return f"{object_name(manifest)}\n"
    write = to_json if document is Output.JSON else to_yaml
    return write([manifest]).rstrip("\n") + "\n"
