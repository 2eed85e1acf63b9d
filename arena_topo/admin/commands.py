"""The commands of administrators: install, check, nodes topology, default and list."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from arena_topo.cli.arguments import (
    DOCUMENTS,
    NODES,
    PANEL,
    Output,
    OutputFlag,
    PerhapsName,
    document,
    option,
    output,
)
from arena_topo.cli.detaching import coming_back
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, display, remark, say, show, spread, tell
from arena_topo.cli.terminal import columns, wrapped
from arena_topo.engines import opening
from arena_topo.errors import UsageError
from arena_topo.flag import Flag
from arena_topo.job import KeyValue
from arena_topo.layout import noted
from arena_topo.manifests.serialize import object_name, to_json, to_yaml
from arena_topo.names import is_label_value

if TYPE_CHECKING:
    from arena_topo.engines import Backend


_NodeNames = Annotated[list[str], typer.Argument(metavar="NODE...", show_default=False), NODES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
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
        excludes=("--image",),
    )
    without_controller: bool = option(
        False, "Do not install the controller; users start their own waiting jobs."
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


@spread
def install(
    everywhere: Globals,
    request: InstallOptions,
    *,
    output_format: Annotated[Output, output(*DOCUMENTS, help="How to print it.")] = Output.YAML,
) -> None:
    """Print what an administrator applies once: policies, roles, controller, node agent.

    It prints manifests for kubectl apply -f -, and changes nothing in the cluster.

    Examples:
      # All of it
      install --image REPOSITORY/NAME@sha256:DIGEST
      # Policies and roles alone
      install --without-controller --without-agent
    """
    if request.remove:
        _remove(everywhere, output_format)
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
        runtime_class=request.runtime_class,
        node_selector={label.key: label.value for label in request.agent_selector},
        image_pull_secrets=request.image_pull_secret,
    )
    tell(installing.check(installation))
    if output_format is Output.YAML:
        # The reason of each right is a comment, which a parsed object would lose.
        show(installing.text(installation))
    else:
        objects = installing.objects(installation)
        if output_format is Output.NAME:
            show("".join(f"{object_name(manifest)}\n" for manifest in objects))
        else:
            show(to_json(objects))


def _remove(everywhere: Globals, output_format: Output) -> None:
    from arena_topo.admin import install as removing  # noqa: PLC0415 - the verbs load late

    removal = removing.removal(opening.administration(engine(everywhere)))
    if removal.marked:
        number = len(removal.marked)
        subject = "1 node keeps its" if number == 1 else f"{number} nodes keep their"
        back = f"{PROGRAM} nodes default {' '.join(removal.marked)}"
        say(noted(f"{subject} label and taint for topology jobs: {back}"), whole=True)
    if not removal.objects:
        say("Nothing of arena-topo is installed.")
    elif output_format is Output.NAME:
        show("".join(f"{object_name(manifest)}\n" for manifest in removal.objects))
    else:
        write = to_json if output_format is Output.JSON else to_yaml
        show(write(removal.objects))


@spread
def check(
    job: PerhapsName,
    everywhere: Globals,
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
    backend = engine(everywhere)
    admin = opening.administration(backend)
    namespace = namespace_of(everywhere, backend)
    if job:
        _inspect(job, namespace, backend, output_format)
        return
    from arena_topo.admin import checks  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    report = checks.check(admin, namespace)
    if output_format is Output.WIDE:
        wide = wrapped(sys.stdout) and columns()
        # Its commands are copied, so lines are not wrapped.
        display(shown.report(report, width=wide), whole=True)
    else:
        show(document(shown.report_value(report), output_format))
    if not report.passed:
        raise typer.Exit(1)


def _inspect(job: str, namespace: str, backend: Backend, output_format: Output) -> None:
    from arena_topo.admin import inspection  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    result = inspection.inspect(backend, job, namespace)
    if output_format is Output.WIDE:
        display(shown.inspection(result))
    else:
        show(document(shown.inspection_value(result), output_format))
    if not result.passed:
        raise typer.Exit(1)


@spread
def nodes_topology(nodes: _NodeNames, everywhere: Globals, how: Change) -> None:
    """Reserve nodes for topology jobs; their workers get exactly the chosen GPUs.

    Topology jobs are jobs with --gputopology. As soon as a node is reserved, they use reserved
    nodes only, and other jobs with GPUs use the other nodes.

    Examples:
      # Look before nodes are changed
      nodes topology n1 n2 --dry-run
    """
    _dedicate(nodes, "topology", everywhere, how)


@spread
def nodes_default(nodes: _NodeNames, everywhere: Globals, how: Change) -> None:
    """Give nodes back to all jobs.

    Examples:
      # Open nodes to all jobs again
      nodes default n1 n2
    """
    _dedicate(nodes, "default", everywhere, how)


def _dedicate(names: list[str], use: str, everywhere: Globals, how: Change) -> None:
    from arena_topo.admin import nodes  # noqa: PLC0415 - the verbs load what they need

    admin = opening.administration(engine(everywhere))
    done = nodes.dedicate(
        names, nodes.Use(use), admin, ack=how.ack, force=how.force, dry_run=how.dry_run
    )
    dry = " (dry run)" if how.dry_run else ""
    show("".join(f"node/{change.node} {change.outcome}{dry}\n" for change in done))


@spread
def nodes_list(everywhere: Globals, *, output_format: OutputFlag = Output.WIDE) -> None:
    """List the nodes with GPUs and who may use them.

    Examples:
      # Nodes with GPUs
      nodes list
    """
    from arena_topo.admin import nodes  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    states = nodes.standings(opening.administration(engine(everywhere)).nodes())
    if output_format is Output.WIDE:
        display(shown.standings(states))
        if not states:
            say("No node offers GPUs by a device plugin; GPUs of a DRA driver need no reservation.")
    else:
        show(document(shown.standings_value(states), output_format))


@spread
def controller(
    everywhere: Globals,
    *,
    ack: Annotated[
        bool,
        Flag(
            help="Publish the links of GPUs in kube-system too, as ACK's tools read.", panel=PANEL
        ),
    ] = False,
    once: Annotated[bool, Flag(help="Look at the queue once, and end.", panel=PANEL)] = False,
) -> None:
    """Start waiting jobs in their turn, and look after those that run; runs until it is stopped.

    Stopping it loses nothing: all it knows is written on the jobs.

    Examples:
      # One round, for a CronJob
      controller --once
    """
    from arena_topo.admin import controller as loop  # noqa: PLC0415 - for this command only

    backend = engine(everywhere)
    back = f"{PROGRAM} controller; all it knows is written on the jobs"
    with coming_back(back, "The jobs go on."):
        loop.run(backend, ack=ack, once=once, tell=remark)
