"""The commands of administrators: install, check, nodes topology, default and list."""

from __future__ import annotations

import sys
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
    output,
)
from arena_topo.cli.detaching import coming_back
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import PROGRAM, Globals, display, remark, say, show, spread, tell
from arena_topo.cli.terminal import columns
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
_AckFlag = Annotated[
    bool, Flag(help="Set ACK's own label, ack.node.gpu.schedule, as well.", panel=PANEL)
]
_DryRunFlag = Annotated[bool, Flag(help="Check everything, and change nothing.", panel=PANEL)]
_ForceFlag = Annotated[
    bool, Flag(help="Change the nodes even if pods use their GPUs.", panel=PANEL)
]


@spread
def install(
    everywhere: Globals,
    *,
    image: Annotated[
        str,
        Flag(
            help="The image of arena-topo, by its digest; not needed where neither controller nor"
            " agent runs.",
            panel=PANEL,
            metavar="REPOSITORY/NAME@DIGEST",
        ),
    ] = "",
    remove: Annotated[
        bool,
        Flag(
            help="Print what is installed, for kubectl delete -f -; refused while jobs need it.",
            panel=PANEL,
            excludes=("--image",),
        ),
    ] = False,
    without_controller: Annotated[
        bool,
        Flag(
            help="Do not install the controller; users start their own waiting jobs.", panel=PANEL
        ),
    ] = False,
    without_agent: Annotated[
        bool, Flag(help="Do not install the node agent; links of GPUs are assumed.", panel=PANEL)
    ] = False,
    gang_scheduling: Annotated[
        bool,
        Flag(
            help="The cluster has the PodGroups of scheduling.k8s.io (GangScheduling): join the"
            " workers of gangs to theirs.",
            panel=PANEL,
        ),
    ] = False,
    ack: Annotated[
        bool,
        Flag(
            help="Let the controller publish topology in kube-system too, in the format of ACK that"
            " arena top node reads.",
            panel=PANEL,
            excludes=("--without-controller",),
        ),
    ] = False,
    runtime_class: Annotated[
        str,
        Flag(
            help="The RuntimeClass by which the agent sees the GPUs, often nvidia; else the"
            " default runtime.",
            panel=PANEL,
            metavar="NAME",
        ),
    ] = "",
    agent_selector: Annotated[
        tuple[KeyValue, ...],
        Flag(
            help="Nodes that the agent runs on: those with this label; with several, those with"
            " all of them. Else nodes with a known label of GPUs.",
            panel=PANEL,
            metavar="KEY=VALUE",
        ),
    ] = (),
    image_pull_secret: Annotated[
        tuple[str, ...],
        Flag(
            help="A Secret of namespace arena-topo-system by which the image is pulled.",
            panel=PANEL,
            metavar="NAME",
        ),
    ] = (),
    output_format: Annotated[Output, output(*DOCUMENTS, help="How to print it.")] = Output.YAML,
) -> None:
    """Print what an administrator applies once: policies, roles, controller, node agent.

    Examples:
      # Policies and roles alone
      install --without-controller --without-agent
    """
    if remove:
        _remove(everywhere, output_format)
        return
    from arena_topo.manifests import install as installing  # noqa: PLC0415 - loads Jinja

    for one in agent_selector:
        if not is_label_value(one.value):
            raise UsageError(
                f"--agent-selector {one} is invalid",
                why=f"{one.value!r} is not the value of a label",
                hint="repeat --agent-selector for more labels",
            )
    wanted = installing.Installation(
        image=image,
        controller=not without_controller,
        agent=not without_agent,
        gang=gang_scheduling,
        ack=ack,
        runtime_class=runtime_class,
        node_selector={one.key: one.value for one in agent_selector},
        image_pull_secrets=image_pull_secret,
    )
    tell(installing.check(wanted))
    if output_format is Output.YAML:
        # The reason of each right is a comment, which objects cannot keep.
        show(installing.text(wanted))
    else:
        objects = installing.objects(wanted)
        if output_format is Output.NAME:
            show("".join(f"{object_name(one)}\n" for one in objects))
        else:
            show(to_json(objects))


def _remove(everywhere: Globals, output_format: Output) -> None:
    from arena_topo.admin import install as removing  # noqa: PLC0415 - the verbs load late

    found = removing.removal(opening.administration(engine(everywhere)))
    if found.marked:
        many = len(found.marked)
        keep = "1 node keeps its" if many == 1 else f"{many} nodes keep their"
        back = f"{PROGRAM} nodes default {' '.join(found.marked)}"
        say(noted(f"{keep} label and taint for topology jobs: {back}"), whole=True)
    if not found.objects:
        say("Nothing of arena-topo is installed.")
    elif output_format is Output.NAME:
        show("".join(f"{object_name(one)}\n" for one in found.objects))
    else:
        write = to_json if output_format is Output.JSON else to_yaml
        show(write(found.objects))


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

    found = checks.check(admin, namespace)
    if output_format is Output.WIDE:
        wide = columns() if sys.stdout is not None and sys.stdout.isatty() else None
        # Commands in it are copied.
        display(shown.report(found, width=wide), whole=True)
    else:
        show(document(shown.report_value(found), output_format))
    if not found.passed:
        raise typer.Exit(1)


def _inspect(job: str, namespace: str, backend: Backend, output_format: Output) -> None:
    from arena_topo.admin import inspection  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    found = inspection.inspect(backend, job, namespace)
    if output_format is Output.WIDE:
        display(shown.inspection(found))
    else:
        show(document(shown.inspection_value(found), output_format))
    if not found.passed:
        raise typer.Exit(1)


@spread
def nodes_topology(
    nodes: _NodeNames,
    everywhere: Globals,
    *,
    ack: _AckFlag = False,
    force: _ForceFlag = False,
    dry_run: _DryRunFlag = False,
) -> None:
    """Reserve nodes for topology jobs; their workers get exactly the chosen GPUs.

    Examples:
      # Look before nodes are changed
      nodes topology n1 n2 --dry-run
    """
    _dedicate(nodes, "topology", everywhere, ack=ack, force=force, dry_run=dry_run)


@spread
def nodes_default(
    nodes: _NodeNames,
    everywhere: Globals,
    *,
    ack: _AckFlag = False,
    force: _ForceFlag = False,
    dry_run: _DryRunFlag = False,
) -> None:
    """Give nodes back to all jobs.

    Examples:
      # Open nodes to all jobs again
      nodes default n1 n2
    """
    _dedicate(nodes, "default", everywhere, ack=ack, force=force, dry_run=dry_run)


def _dedicate(
    names: list[str], use: str, everywhere: Globals, *, ack: bool, force: bool, dry_run: bool
) -> None:
    from arena_topo.admin import nodes  # noqa: PLC0415 - the verbs load what they need

    done = nodes.dedicate(
        names,
        nodes.Use(use),
        opening.administration(engine(everywhere)),
        ack=ack,
        force=force,
        dry_run=dry_run,
    )
    how = " (dry run)" if dry_run else ""
    show("".join(f"node/{one.node} {one.outcome}{how}\n" for one in done))


@spread
def nodes_list(everywhere: Globals, *, output_format: OutputFlag = Output.WIDE) -> None:
    """List the nodes with GPUs and who may use them.

    Examples:
      # Nodes with GPUs
      nodes list
    """
    from arena_topo.admin import nodes  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.admin import view as shown  # noqa: PLC0415 - only here

    found = nodes.standings(opening.administration(engine(everywhere)).nodes())
    if output_format is Output.WIDE:
        display(shown.standings(found))
    else:
        show(document(shown.standings_value(found), output_format))


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
