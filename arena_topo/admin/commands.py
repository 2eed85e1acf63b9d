"""The commands of administrators: install, check, nodes topology, default and list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from arena_topo.cli.arguments import (
    DOCUMENTS,
    PANEL,
    FabricFlag,
    Output,
    OutputFlag,
    PerhapsName,
    format_document,
    option,
    output,
)
from arena_topo.cli.console import Console
from arena_topo.cli.interrupt_message import say_how_to_return
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, network_of_option, open_engine
from arena_topo.engines import engine_choice
from arena_topo.errors import UsageError
from arena_topo.flag import Flag, Word
from arena_topo.job import KeyValue
from arena_topo.layout import note_line
from arena_topo.manifests.serialize import kubectl_name, manifests_json, manifests_yaml
from arena_topo.names import is_label_value

if TYPE_CHECKING:
    from arena_topo.engines.backend import Backend


_NodeNames = Annotated[tuple[str, ...], Word("NODE...", "nodes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChangeOptions:
    """The options of a change of nodes."""

    ack: bool = option(False, "Set ACK's own label, ack.node.gpu.schedule, as well.")
    force: bool = option(False, "Change the nodes even if pods use their GPUs.")
    dry_run: bool = option(False, "Check everything, and change nothing.")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """The installed parts of arena-topo, and their settings."""

    image: str = option(
        "",
        "The image of arena-topo, by its digest; not needed where neither controller nor agent"
        " runs.",
        "REPOSITORY/NAME@DIGEST",
    )
    remove: bool = option(
        False,
        "Print what is installed, for kubectl delete -f -; refused while jobs need it.",
        excludes=("--image", "--fabric"),
    )
    without_controller: bool = option(
        False,
        "Do not install the controller; users start their own waiting jobs.",
        excludes=("--fabric",),
    )
    without_agent: bool = option(False, "Do not install the node agent; links of GPUs are assumed.")
    gang_scheduling: bool = option(
        False,
        "Put the workers of each gang into a PodGroup of scheduling.k8s.io, where the cluster's"
        " scheduler has them (gate GangScheduling).",
    )
    ack: bool = option(
        False,
        "Let the controller publish topology in kube-system too, in the format of ACK that arena"
        " top node reads.",
        excludes=("--without-controller",),
    )
    runtime_class: str = option(
        "",
        "The RuntimeClass by which the agent sees the GPUs, often nvidia; else the default"
        " runtime.",
        "NAME",
    )
    agent_selector: tuple[KeyValue, ...] = option(
        (),
        "Nodes that the agent runs on: those with this label; with several, those with all of"
        " them. Else nodes with a known label of GPUs.",
        "KEY=VALUE",
    )
    image_pull_secret: tuple[str, ...] = option(
        (), "A Secret of namespace arena-topo-system by which the image is pulled.", "NAME"
    )


@command_from_records
def install(
    session: Session,
    request: InstallOptions,
    *,
    fabric: FabricFlag = "",
    output_format: Annotated[Output, output(*DOCUMENTS, help="How to print it.")] = Output.YAML,
) -> None:
    """Print what an administrator applies once: policies, roles, controller, node agent.

    It prints manifests for kubectl apply -f -, and changes nothing in the cluster.

    Examples:
      # All of it
      install --image REPOSITORY/NAME@sha256:DIGEST
      # With the speed of the network, by which the controller decides what a job waits for
      install --image REPOSITORY/NAME@sha256:DIGEST --fabric fabric.yaml
      # Policies and roles alone
      install --without-controller --without-agent
    """
    console = session.console
    if request.remove:
        _remove(session, output_format)
        return
    from arena_topo.manifests import install as installing  # noqa: PLC0415 - loads Jinja

    for label in request.agent_selector:
        if not is_label_value(label.value):
            raise UsageError(
                f"--agent-selector {label} is invalid",
                why=f"{label.value!r} is not the value of a label",
                hint="repeat --agent-selector for more labels",
            )
    installation = installing.Installation(
        image=request.image,
        controller=not request.without_controller,
        agent=not request.without_agent,
        gang=request.gang_scheduling,
        ack=request.ack,
        fabric=engine_choice.read_fabric_text(fabric) if fabric else "",
        runtime_class=request.runtime_class,
        node_selector={label.key: label.value for label in request.agent_selector},
        image_pull_secrets=request.image_pull_secret,
    )
    console.notes(installing.check_installation(installation))
    if output_format is Output.YAML:
        # The reason of each right is a comment, which a parsed object would lose.
        console.write(installing.installation_yaml(installation))
    else:
        objects = installing.installation_objects(installation)
        if output_format is Output.NAME:
            console.write("".join(f"{kubectl_name(manifest)}\n" for manifest in objects))
        else:
            console.write(manifests_json(objects))


def _remove(session: Session, output_format: Output) -> None:
    console = session.console
    from arena_topo.admin import install as removing  # noqa: PLC0415 - the verbs load late

    removal = removing.removal(engine_choice.administration(open_engine(session)))
    if removal.marked:
        number = len(removal.marked)
        subject = "1 node keeps its" if number == 1 else f"{number} nodes keep their"
        back = f"{PROGRAM} nodes default {' '.join(removal.marked)}"
        console.info(note_line(f"{subject} label and taint for topology jobs: {back}"), whole=True)
    if not removal.objects:
        console.info("Nothing of arena-topo is installed.")
    elif output_format is Output.NAME:
        console.write("".join(f"{kubectl_name(manifest)}\n" for manifest in removal.objects))
    else:
        write = manifests_json if output_format is Output.JSON else manifests_yaml
        console.write(write(removal.objects))


@command_from_records
def check_command(
    job: PerhapsName,
    session: Session,
    *,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Check the cluster's features and your permissions; with a job, which GPUs its workers see.

    Examples:
      # What the cluster offers, and what you may do
      check
      # Do the workers see the GPUs that were planned?
      check bert
    """
    console, backend = session.console, open_engine(session)
    admin = engine_choice.administration(backend)
    namespace = namespace_of(session, backend)
    if job:
        _inspect(console, job, namespace, backend, output_format)
        return
    from arena_topo.admin import checks  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    report = checks.check_cluster(admin, namespace)
    if output_format is Output.WIDE:
        wide = console.width and console.drawing_width
        # Its commands are copied, so lines are not wrapped.
        console.screen(shown.check_text(report, width=wide), whole=True)
    else:
        console.write(format_document(shown.check_json(report), output_format))
    if not report.passed:
        raise typer.Exit(1)


def _inspect(
    console: Console, job: str, namespace: str, backend: Backend, output_format: Output
) -> None:
    from arena_topo.admin import inspection  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    result = inspection.inspect_workers(backend, job, namespace)
    if output_format is Output.WIDE:
        console.screen(shown.inspection_text(result))
    else:
        console.write(format_document(shown.inspection_json(result), output_format))
    if not result.passed:
        raise typer.Exit(1)


@command_from_records
def nodes_topology(nodes: _NodeNames, session: Session, how: NodeChangeOptions) -> None:
    """Reserve nodes for topology jobs; their workers get exactly the chosen GPUs.

    Topology jobs are jobs with --gputopology. As soon as a node is reserved, they use reserved
    nodes only, and other jobs with GPUs use the other nodes.

    Examples:
      # Look before nodes are changed
      nodes topology n1 n2 --dry-run
    """
    _dedicate(nodes, "topology", session, how)


@command_from_records
def nodes_default(nodes: _NodeNames, session: Session, how: NodeChangeOptions) -> None:
    """Give nodes back to all jobs.

    Examples:
      # Open nodes to all jobs again
      nodes default n1 n2
    """
    _dedicate(nodes, "default", session, how)


def _dedicate(names: Sequence[str], use: str, session: Session, how: NodeChangeOptions) -> None:
    from arena_topo.admin import nodes  # noqa: PLC0415 - the verbs load what they need

    console, admin = session.console, engine_choice.administration(open_engine(session))
    done = nodes.dedicate(
        names, nodes.Use(use), admin, ack=how.ack, force=how.force, dry_run=how.dry_run
    )
    dry = " (dry run)" if how.dry_run else ""
    console.write("".join(f"node/{change.node} {change.outcome}{dry}\n" for change in done))
    if use == nodes.Use.TOPOLOGY and (text := nodes.closing_sentence(names, admin)):
        from arena_topo.admin import stranded_gangs  # noqa: PLC0415 - only where nodes are closed

        console.note(text)
        if waiting := stranded_gangs.hopeless_gangs(names, admin):
            console.warn(f"these gangs wait, and fit on no reserved node: {', '.join(waiting)}")


@command_from_records
def nodes_list(session: Session, *, output_format: OutputFlag = Output.WIDE) -> None:
    """List the nodes with GPUs and who may use them.

    Examples:
      # Nodes with GPUs
      nodes list
    """
    from arena_topo.admin import nodes  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    console = session.console
    states = nodes.node_states(engine_choice.administration(open_engine(session)).nodes())
    if output_format is Output.WIDE:
        console.screen(shown.node_states_table(states))
        if not states:
            console.info(
                "No node offers GPUs by a device plugin; GPUs of a DRA driver need no reservation."
            )
    else:
        console.write(format_document(shown.node_states_json(states), output_format))


@command_from_records
def controller(
    session: Session,
    *,
    ack: Annotated[
        bool,
        Flag(
            help="Publish the links of GPUs in kube-system too, as ACK's tools read.", panel=PANEL
        ),
    ] = False,
    once: Annotated[bool, Flag(help="Look at the queue once, and end.", panel=PANEL)] = False,
    fabric: FabricFlag = "",
) -> None:
    """Run the controller: start waiting jobs in order, repair running ones.

    Stopping it loses nothing: all it knows is written on the jobs.

    Examples:
      # One round, for a CronJob
      controller --once

      # With the speed of the network, which decides what a job waits for
      controller --fabric fabric.yaml
    """
    from arena_topo.admin import controller as loop  # noqa: PLC0415 - for this command only

    backend = open_engine(session, fabric=network_of_option(fabric))
    back = f"{PROGRAM} controller; all it knows is written on the jobs"
    with say_how_to_return(session.console, back, "The jobs go on."):
        loop.run_controller(backend, ack=ack, once=once, tell=session.console.event)
