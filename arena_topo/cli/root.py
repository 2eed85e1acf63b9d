"""The command tree: what there is, in which module, of which kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import typer

from arena_topo.cli.commands import (
    EXEC,
    JOB,
    LOGS,
    NAMED,
    NODES,
    PLAIN,
    STEADY,
    ArenaCommand,
    Kind,
    group,
)
from arena_topo.cli.options import PROGRAM


class Leaf(NamedTuple):
    """A command: its summary, the function that does it and its module, its kind.

    The summary is the first paragraph of the function's docstring; it stands here so that no module
    is imported only to be listed.
    """

    summary: str
    module: str
    function: str
    kind: Kind = PLAIN


class Branch(NamedTuple):
    """A group of commands and its summary."""

    summary: str
    commands: Mapping[str, Leaf | Branch]


_TREE = Branch(
    "Submit MPI training jobs, each worker placed on the best-linked GPUs.",
    {
        "submit": Branch(
            "Submit a job.",
            {
                "mpi": Leaf(
                    "Submit an MPI job; with --gputopology each worker gets the best-linked GPUs.",
                    "jobs.submit",
                    "submit_mpi",
                    JOB,
                )
            },
        ),
        "plan": Branch(
            "Show where a job would go, without submitting it.",
            {
                "mpi": Leaf(
                    "Show where the workers of an MPI job would go and how good that is; create"
                    " nothing.",
                    "jobs.submit",
                    "plan_mpi",
                    JOB,
                )
            },
        ),
        "forecast": Leaf(
            "Say what bandwidth NCCL reaches on GPUs of a machine, and between such machines.",
            "forecast.command",
            "forecast",
        ),
        "get": Leaf(
            "Show one job: its state, its pods, where they run and why.",
            "jobs.get",
            "get",
            NAMED,
        ),
        "why": Leaf(
            "Say why a job waits, failed or runs where it does: one verdict, its cause, what to"
            " try.",
            "reasons.command",
            "why",
            NAMED,
        ),
        "list": Leaf("List the jobs, newest first.", "jobs.listing", "list_jobs"),
        "logs": Leaf(
            "Show the log of a job's launcher, of another of its pods, or of all of them at once.",
            "jobs.logs",
            "logs",
            LOGS,
        ),
        "attach": Leaf(
            "Run a command in a job's launcher, or in another of its pods; else a shell.",
            "jobs.attach",
            "attach",
            EXEC,
        ),
        "suspend": Leaf(
            "Stop jobs until they are resumed; their GPUs are free for others meanwhile.",
            "jobs.queue",
            "suspend",
            NAMED,
        ),
        "resume": Leaf(
            "Start waiting, suspended or interrupted jobs, in order; they get a new placement.",
            "jobs.queue",
            "resume",
            NAMED,
        ),
        "wait": Leaf(
            "Wait until jobs are over, or run, have their nodes, have succeeded, or are gone.",
            "jobs.wait",
            "wait",
            NAMED,
        ),
        "replan": Leaf(
            "Stop a running job and start it again on the best GPUs there are now.",
            "jobs.queue",
            "replan",
            NAMED,
        ),
        "delete": Leaf("Delete jobs and all that belongs to them.", "jobs.delete", "delete"),
        "prune": Leaf(
            "Delete jobs that have SUCCEEDED or FAILED and are old enough; no others, whatever"
            " their age.",
            "jobs.prune",
            "prune",
        ),
        "top": Branch(
            "Show who uses which GPUs.",
            {
                "node": Leaf(
                    "Show the nodes: their GPUs, the pods that use them, and their fragmentation.",
                    "nodes.top",
                    "top_node",
                ),
                "job": Leaf(
                    "Show the jobs by the GPUs that they ask for; with a job, how busy its GPUs"
                    " are.",
                    "jobs.top",
                    "top_job",
                ),
            },
        ),
        "topology": Branch(
            "Show and publish how GPUs are linked.",
            {
                "presets": Leaf(
                    "List the machines that are known by name.",
                    "nodes.topology",
                    "topology_presets",
                ),
                "show": Leaf(
                    "Show how the GPUs of a machine are linked; without one, how the nodes of the"
                    " cluster are.",
                    "nodes.topology",
                    "topology_show",
                ),
                "discover": Leaf(
                    "Show how the GPUs of this machine are linked, as NVML or nvidia-smi tells it.",
                    "nodes.topology",
                    "topology_discover",
                ),
                "publish": Leaf(
                    "Publish in the cluster how the GPUs of a node are linked, for all to read.",
                    "nodes.topology",
                    "topology_publish",
                ),
            },
        ),
        "check": Leaf(
            "Check the cluster's features and your permissions; with a job, which GPUs its workers"
            " see.",
            "admin.commands",
            "check",
        ),
        "install": Leaf(
            "Print what an administrator applies once: policies, roles, controller, node agent.",
            "admin.commands",
            "install",
        ),
        "nodes": Branch(
            "Reserve nodes for topology jobs, or give them back.",
            {
                "topology": Leaf(
                    "Reserve nodes for topology jobs; their workers get exactly the chosen GPUs.",
                    "admin.commands",
                    "nodes_topology",
                    NODES,
                ),
                "default": Leaf(
                    "Give nodes back to all jobs.", "admin.commands", "nodes_default", NODES
                ),
                "list": Leaf(
                    "List the nodes with GPUs and who may use them.", "admin.commands", "nodes_list"
                ),
            },
        ),
        "controller": Leaf(
            "Start waiting jobs in their turn, and look after those that run; runs until it is"
            " stopped.",
            "admin.commands",
            "controller",
        ),
        "data": Branch(
            "Show the data that jobs can mount.",
            {
                "list": Leaf(
                    "List the bound volume claims, which --data can mount.",
                    "jobs.data",
                    "data_list",
                )
            },
        ),
        "whoami": Leaf("Show the name that jobs are submitted under.", "cli.cluster", "whoami"),
        "config": Branch(
            "Show the settings, and where each comes from.",
            {
                "view": Leaf(
                    "Show the settings in the files; no server is asked.",
                    "cli.configuration",
                    "config_view",
                ),
                "schema": Leaf(
                    "Print the JSON schema of job files (submit mpi -f), for editors.",
                    "cli.cluster",
                    "config_schema",
                    STEADY,
                ),
            },
        ),
        "options": Leaf(
            "Show the options that every command takes.", "cli.cluster", "options", STEADY
        ),
        "version": Leaf("Show the version of the program.", "cli.cluster", "version", STEADY),
        "completion": Leaf(
            "Print the completion script for bash, zsh, fish or powershell.",
            "cli.completion",
            "completion",
            STEADY,
        ),
    },
)
"""The tree in the order of the help: people submit first and ask for the version last."""

_ARENA_V2 = {
    "run": "submit mpi",
    "get": "get",
    "list": "list",
    "status": "get",
    "logs": "logs",
    "suspend": "suspend",
    "resume": "resume",
    "delete": "delete",
}
"""What the proposal for arena v2 calls commands (kubeflow/arena, keps/arena-v2), below `job`."""

ALSO = "job"
"""The group whose commands are others by another name."""


def _found(path: str) -> Leaf | Branch:
    one: Leaf | Branch = _TREE
    for word in path.split():
        assert isinstance(one, Branch)
        one = one.commands[word]
    return one


ROOT = Branch(
    _TREE.summary,
    {
        **_TREE.commands,
        ALSO: Branch(
            "Use commands by their names in arena v2: run is submit mpi, status is get; get, list,"
            " logs, suspend, resume and delete are the same.",
            {name: _found(path) for name, path in _ARENA_V2.items()},
        ),
    },
)
"""The whole tree."""


class _Commands(Mapping[str, Any]):
    """The commands of a group; each is imported and made when it is first asked for."""

    def __init__(self, branch: Branch) -> None:
        self._of = branch.commands
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _made(self._of[name], name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def tree() -> Any:
    """The command that all sub-commands hang on."""
    return _made(ROOT, PROGRAM)


def _made(one: Leaf | Branch, name: str) -> Any:
    if isinstance(one, Leaf):
        app = typer.Typer(
            rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
        )
        module = importlib.import_module(f"arena_topo.{one.module}")
        app.command(name, cls=ArenaCommand)(getattr(module, one.function))
        command: Any = typer.main.get_command(app)
        command.kind = one.kind
        return command
    made: Any = typer.main.get_command(group(one.summary))
    made.name, made.commands = name, _Commands(one)
    made.summaries = {name: below.summary for name, below in one.commands.items()}
    return made
