"""The commands about machines and the network: topology presets, show, discover, publish."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from arena_topo.cli.arguments import (
    DOCUMENTS,
    PANEL,
    DryRun,
    FabricFlag,
    GraphOutputFlag,
    Output,
    OutputFlag,
    format_document,
    option,
    output,
)
from arena_topo.cli.console import Console
from arena_topo.cli.options import BackendName, Seconds
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import is_node, network_of_option, node_or_preset, open_engine
from arena_topo.drawing import network, tables
from arena_topo.drawing.machine import MachineState, assumed_nics, draw_machine
from arena_topo.errors import UsageError
from arena_topo.flag import Flag, Word, flag
from arena_topo.manifests import Manifest
from arena_topo.manifests.serialize import kubectl_name, manifests_json, manifests_yaml
from arena_topo.nodes import cluster_json
from arena_topo.topology import Cluster, Machine, Node, presets

if TYPE_CHECKING:
    import networkx as nx

_AGENT = "Agent"
_INTERVAL = Seconds(15)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form in which machines and networks are shown."""

    plain: bool = option(False, "Draw with ASCII characters only.", name="--ascii")
    output_format: GraphOutputFlag = Output.WIDE


_StateFlag = Annotated[
    tuple[str, ...],
    Flag(
        "Look at this dump of kubectl get -o json; repeat for more.",
        "FILE",
        panel=PANEL,
        completes="files",
    ),
]


@command_from_records
def topology_presets(session: Session, *, output_format: OutputFlag = Output.WIDE) -> None:
    """List the machines that are known by name.

    Presets can be emulated (--emulate); forecast takes presets and instance types of clouds. The
    NICs of a preset are those of the maker's machine, the NICs of an instance type those that the
    cloud sells.

    Examples:
      # The names for --emulate and forecast
      topology presets
      # With the source of each row
      topology presets -o yaml
    """
    console = session.console
    machines = {name: presets.preset_machine(name, name) for name in presets.preset_names()}
    types = {
        name: machine
        for name in presets.INSTANCES
        if (machine := presets.instance_type(name)) is not None
    }
    if output_format is Output.WIDE:
        console.screen(tables.machines_table(machines.items()))
        console.screen("\n" + tables.machines_table(types.items(), heading="INSTANCE TYPE"))
        return
    items = [
        {**tables.machine_value(machine), "source": presets.PRESETS[name].source or None}
        for name, machine in machines.items()
    ]
    sold = [
        {
            **tables.machine_value(machine),
            "preset": row.preset,
            "rdma": row.rdma,
            "plugin": None if row.plugin is None else str(row.plugin),
            "source": row.source,
        }
        for name, machine in types.items()
        for row in [presets.INSTANCES[name]]
    ]
    value = {
        "apiVersion": "arena-topo/v1",
        "kind": "PresetList",
        "items": items,
        "instanceTypes": sold,
    }
    console.write(format_document(value, output_format))


@command_from_records
def topology_show(
    target: Annotated[str, Word("[PRESET|NODE]", "presets nodes")],
    session: Session,
    source: _SourceFlag = "",
    state: _StateFlag = (),
    fabric: FabricFlag = "",
    *,
    form: Form,
) -> None:
    """Show how the GPUs of a machine are linked; without one, how the nodes of the cluster are.

    Examples:
      # The links between the GPUs of a node
      topology show n1
      # A machine by its preset, as a picture
      topology show dgx-a100 -o svg
    """
    console = session.console
    if source:
        from arena_topo.engines import machines  # noqa: PLC0415 - the verbs load what they need

        read = machines.read_description(source)
        console.notes(read.notes)
        _show_machine(console, read.machine, form)
        return
    named = target in presets.preset_names()
    if named and not state and not is_node(target, session):
        _show_machine(console, presets.preset_machine(target, target), form)
        return
    cluster = _cluster(state, fabric, session)
    console.notes(cluster.notes)
    if target:
        shown = node_or_preset(target, cluster)
        if isinstance(shown, Node):
            if named:
                way_out = "without --state" if state else "with --backend local"
                console.note(f"{target} is a node here; {way_out} the preset of that name is shown")
            _show_node(console, shown, cluster, form)
        else:
            _show_machine(console, shown, form)
    else:
        _show_fabric(console, cluster, form)


@command_from_records
def topology_discover(session: Session, form: Form) -> None:
    """Show how the GPUs of this machine are linked, as NVML or nvidia-smi tells it.

    Examples:
      # The links of this machine
      topology discover
    """
    from arena_topo.engines import machines  # noqa: PLC0415 - the verbs load what they need

    _show_machine(session.console, machines.discover(), form)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """The topology of a node to publish, and the way to publish it."""

    source: _SourceFlag = ""
    preset: str = option(
        "", "Preset of the node's machine; see topology presets.", "PRESET", completes="presets"
    )
    bus_bandwidth: str = option(
        "",
        "Publish the bandwidths in this file too, as logs --nccl --bus-bandwidth prints them, for"
        " the links that the cluster knows or --from says; - is stdin.",
        "FILE",
        completes="files",
    )
    dry_run: DryRun | None = option(
        None, "Print what would be written, and write nothing.", "[=client|server]"
    )
    output_format: Annotated[Output | None, output(*DOCUMENTS, help="How to print the object.")] = (
        None
    )
    watch: bool = flag(
        False,
        "Go on: keep this node's links, health and allocations up to date in namespace"
        " arena-topo-system, as the node agent does.",
        panel=_AGENT,
        excludes=_NOT_AN_AGENTS,
    )
    interval: Seconds = flag(_INTERVAL, "How often --watch looks.", "DURATION", panel=_AGENT)
    pod_resources: str = flag(
        "",
        "The kubelet's socket that lists the GPUs of each pod (default"
        " /var/lib/kubelet/pod-resources/kubelet.sock).",
        "SOCKET",
        panel=_AGENT,
        needs=("--watch",),
        completes="files",
    )


@command_from_records
def topology_publish(
    target: Annotated[str, Word("[NODE]", "nodes")],
    session: Session,
    request: PublishOptions,
) -> None:
    """Publish in the cluster how the GPUs of a node are linked, for all to read.

    Without --from and --preset the links are those of this machine, as `topology discover` shows
    them, and NODE defaults to the name of this machine, or to the variable NODE_NAME.

    Examples:
      # A table that nvidia-smi topo -m printed on the node
      topology publish n1 --from n1.txt
      # Look before anything is written
      topology publish n1 --preset dgx-a100 --dry-run
    """
    from arena_topo.engines import machines  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.topology import published  # noqa: PLC0415 - only here

    console = session.console
    if request.watch:
        _run_agent(target, session, request.interval, request.pod_resources)
        return
    if request.bus_bandwidth and target and not (request.source or request.preset):
        reading = machines.known(open_engine(session), target)
    else:
        reading = machines.publishing(target, source=request.source, preset=request.preset)
    if request.bus_bandwidth:
        reading = machines.with_measured(reading, request.bus_bandwidth)
    console.notes(reading.notes)
    if request.dry_run is DryRun.CLIENT:
        manifest = published.config_map(reading.machine, reading.machine.everything)
        console.write(_manifest(manifest, request.output_format or Output.YAML))
        console.info("Nothing was written.")
        return
    done = open_engine(session).publish(reading.machine, dry_run=request.dry_run is DryRun.SERVER)
    outcome = f"configmap/{done.manifest['metadata']['name']} {done.outcome}"
    if request.dry_run is None and request.output_format is None:
        console.write(f"{outcome}\n")
        return
    console.write(_manifest(done.manifest, request.output_format or Output.YAML))
    console.info(
        outcome if request.dry_run is None else f"{outcome} (server dry run: nothing was written)"
    )


def _run_agent(node: str, session: Session, interval: float, socket: str) -> None:
    """Run the agent of a node until SIGTERM."""
    # PID 1 of a container ignores each signal without a handler.
    signal.signal(signal.SIGTERM, _stop)
    from arena_topo.engines.kubernetes.topology_report import open_reports  # noqa: PLC0415
    from arena_topo.nodes.agent import Agent  # noqa: PLC0415
    from arena_topo.nodes.kubelet import POD_RESOURCES_SOCKET  # noqa: PLC0415 - only for agents

    if session.common.backend is BackendName.LOCAL:
        raise UsageError(
            "there is no cluster to publish in",
            why="--backend local is this machine",
            hint="leave out --watch: topology discover shows this machine",
        )
    name = node or os.environ.get("NODE_NAME", "")
    if not name:
        raise UsageError(
            "the name of the node is missing",
            why="an agent writes about its own node, whose name may differ from the host name",
            hint="set NODE_NAME to spec.nodeName by the downward API, or name the node",
        )
    reports = open_reports(session.common.options(), name)
    agent = Agent(reports, name, tell=session.console.event, socket=socket or POD_RESOURCES_SOCKET)
    agent.run(threading.Event(), interval=max(1.0, interval))


def _stop(*_signal: object) -> None:
    """Stop at once: the next agent completes an interrupted write."""
    raise SystemExit(0)


# ---------------------------------------------------------------- what is shown


def _cluster(state: tuple[str, ...], fabric: str, session: Session) -> Cluster:
    """The cluster of the dumps in `state`, or of the engine, with its reservations."""
    from arena_topo.nodes import overview  # noqa: PLC0415 - the verbs load what they need

    described = network_of_option(fabric, state)
    if state:
        return overview.read_nodes(state, described).cluster
    backend = open_engine(session, fabric=described)
    cluster = overview.with_reserved(backend.nodes(), backend).cluster
    session.names.nodes(backend, cluster)
    return cluster


def _show_machine(console: Console, machine: Machine, form: Form) -> None:
    state = MachineState(machine=machine)
    if form.output_format is Output.WIDE:
        console.screen(_drawn(console, state, plain=form.plain))
    elif form.output_format is Output.SVG:
        console.write(_picture(state))
    elif form.output_format is Output.GRAPHML:
        console.write(_graphml(machine.graph()))
    else:
        console.write(format_document(tables.machine_value(machine), form.output_format))


def _show_node(console: Console, node: Node, cluster: Cluster, form: Form) -> None:
    state, doubt = MachineState.of(node), node.unavailable or node.shared
    notes = [f"No job can start here now: {doubt}"] if doubt else []
    if form.output_format is Output.GRAPHML:
        console.write(_graphml(node.machine.graph()))
    elif form.output_format is Output.SVG:
        console.write(_picture(state, [*notes, *([tables.EMULATED] * cluster.emulated)]))
    elif form.output_format is not Output.WIDE:
        console.write(format_document(cluster_json.node_value(node, cluster), form.output_format))
    elif not node.machine.gpus:
        console.screen(f"node {node.name} has no GPUs\n{_emulated(cluster)}")
    else:
        below = [f"  {note}\n" for note in notes]
        parts = (
            _drawn(console, state, plain=form.plain),
            cluster_json.measured_text(node.machine),
            *below,
        )
        console.screen("".join((*parts, _emulated(cluster))))


def _show_fabric(console: Console, cluster: Cluster, form: Form) -> None:
    if form.output_format is Output.GRAPHML:
        console.write(_graphml(cluster.graph()))
    elif form.output_format is Output.SVG:
        console.write(network.draw_network_svg(cluster))
    elif form.output_format is Output.WIDE:
        drawn = network.draw_network(
            cluster, unicode=console.unicode(plain=form.plain), width=console.width
        )
        console.screen(drawn + _emulated(cluster))
    else:
        console.write(format_document(cluster_json.network_json(cluster), form.output_format))


def _picture(state: MachineState, notes: Sequence[str] = ()) -> str:
    from arena_topo.drawing import machine_svg  # noqa: PLC0415 - reads the solver

    return machine_svg.draw_machine_svg(state, notes=notes)


def _drawn(console: Console, state: MachineState, *, plain: bool) -> str:
    """The matrix of a machine and its GPUs; on a narrow terminal NICs are only listed below."""
    width = console.drawing_width
    matrix = tables.matrix_table(state.machine)
    if console.width and max(map(len, matrix.splitlines())) > width:
        matrix = tables.matrix_table(state.machine, cards=False)
    drawn = draw_machine(state, pairs=False, unicode=console.unicode(plain=plain), width=width)
    return f"{matrix}\n{drawn}{assumed_nics(state.machine)}"


def _graphml(graph: nx.Graph[str]) -> str:
    import networkx as nx

    return "\n".join(nx.generate_graphml(graph)) + "\n"


def _emulated(cluster: Cluster) -> str:
    return f"{tables.emulated_note()}\n" if cluster.emulated else ""


def _manifest(manifest: Manifest, output_format: Output) -> str:
    if output_format is Output.NAME:
        return f"{kubectl_name(manifest)}\n"
    write = manifests_json if output_format is Output.JSON else manifests_yaml
    return write([manifest]).rstrip("\n") + "\n"
