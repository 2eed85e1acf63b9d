"""The command tree: every command and the module that has it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from arena_topo.cli.commands import make_command, make_group
from arena_topo.cli.options import PROGRAM


class Leaf(NamedTuple):
    """A command: its summary, its function as MODULE:NAME, and whether it is `steady`.

    The summary is the first paragraph of the function's docstring; it is repeated here so that
    listing a command does not import its module. A steady command ignores invalid settings.
    """

    summary: str
    function: str
    steady: bool = False

    def imported(self) -> Any:
        """The function."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"arena_topo.{module}"), name)


class Branch(NamedTuple):
    """A group of commands and its summary."""

    summary: str
    commands: dict[str, Leaf | Branch]


_GROUPS = {
    "": "Submit MPI training jobs, each worker placed on the best-linked GPUs.",
    "submit": "Submit a job.",
    "plan": "Show where a job would go, without submitting it.",
    "top": "Show who uses which GPUs.",
    "topology": "Show and publish how GPUs are linked.",
    "nodes": "Reserve nodes for topology jobs, or give them back.",
    "data": "Show the data that jobs can mount.",
    "config": "Show the settings, and where each comes from.",
    "job": "Aliases: the command names of arena v2 (run = submit mpi, status = get; get, list,"
    " logs, suspend, resume and delete are the same).",
}
"""Groups of commands, each with its summary."""

_COMMANDS: Mapping[str, Leaf] = {
    "submit mpi": Leaf(
        "Submit an MPI job; with --gputopology each worker gets the best-linked GPUs.",
        "jobs.submit:submit_mpi",
    ),
    "plan mpi": Leaf(
        "Show where the workers of an MPI job would go, and their bandwidth; create nothing.",
        "jobs.submit:plan_mpi",
    ),
    "forecast": Leaf(
        "Say what bandwidth NCCL reaches on GPUs of a machine, and between such machines.",
        "forecast.command:forecast_command",
    ),
    "calibrate": Leaf(
        "Fit the bandwidths of a pool of machines to two to eight measured placements.",
        "forecast.calibrating:calibrate_command",
    ),
    "simulate": Leaf(
        "Replay a trace of jobs on a cluster, to compare policies, queue rules and patience.",
        "simulate.command:simulate_command",
    ),
    "get": Leaf("Show one job: its state, its pods, where they run and why.", "jobs.get:get"),
    "why": Leaf(
        "Say why a job waits, failed or runs where it does: one verdict, its cause, what to try.",
        "reasons.command:why",
    ),
    "list": Leaf("List the jobs, newest first.", "jobs.listing:list_jobs"),
    "logs": Leaf(
        "Show the log of a job's launcher, of another of its pods, or of all of them at once.",
        "jobs.logs:logs",
    ),
    "attach": Leaf(
        "Run a command in a job's launcher, or in another of its pods; else a shell.",
        "jobs.attach:attach",
    ),
    "suspend": Leaf(
        "Stop jobs until they are resumed; their GPUs are free for others meanwhile.",
        "jobs.queue:suspend_jobs",
    ),
    "resume": Leaf(
        "Start waiting, suspended or interrupted jobs, in order; they get a new placement.",
        "jobs.queue:resume_jobs",
    ),
    "wait": Leaf(
        "Wait until jobs are over, or run, have their nodes, have succeeded, or are gone.",
        "jobs.wait:wait",
    ),
    "replan": Leaf(
        "Stop a running job and start it again on the best GPUs available now.",
        "jobs.queue:replan_job",
    ),
    "delete": Leaf("Delete jobs and all that belongs to them.", "jobs.delete:delete"),
    "prune": Leaf(
        "Delete jobs that have SUCCEEDED or FAILED and are older than --since.",
        "jobs.prune:prune",
    ),
    "top node": Leaf(
        "Show the nodes: their GPUs, the pods that use them, and their fragmentation.",
        "nodes.top:top_node",
    ),
    "top job": Leaf(
        "Show the jobs by the GPUs that they ask for; with a job, how busy its GPUs are.",
        "jobs.top:top_job",
    ),
    "topology presets": Leaf(
        "List the machines that are known by name.", "nodes.topology:topology_presets"
    ),
    "topology show": Leaf(
        "Show how the GPUs of a machine are linked; without one, how the nodes of the cluster are.",
        "nodes.topology:topology_show",
    ),
    "topology discover": Leaf(
        "Show how the GPUs of this machine are linked, as NVML or nvidia-smi tells it.",
        "nodes.topology:topology_discover",
    ),
    "topology publish": Leaf(
        "Publish in the cluster how the GPUs of a node are linked, for all to read.",
        "nodes.topology:topology_publish",
    ),
    "check": Leaf(
        "Check the cluster's features and your permissions; with a job, which GPUs its"
        " workers see.",
        "admin.commands:check_command",
    ),
    "install": Leaf(
        "Print what an administrator applies once: policies, roles, controller, node agent.",
        "admin.commands:install",
    ),
    "nodes topology": Leaf(
        "Reserve nodes for topology jobs; their workers get exactly the chosen GPUs.",
        "admin.commands:nodes_topology",
    ),
    "nodes default": Leaf("Give nodes back to all jobs.", "admin.commands:nodes_default"),
    "nodes list": Leaf(
        "List the nodes with GPUs and who may use them.", "admin.commands:nodes_list"
    ),
    "controller": Leaf(
        "Run the controller: start waiting jobs in order, repair running ones.",
        "admin.commands:controller",
    ),
    "data list": Leaf(
        "List the bound volume claims, which --data can mount.", "jobs.data:data_list"
    ),
    "whoami": Leaf("Show the name that jobs are submitted under.", "cli.program:whoami"),
    "config view": Leaf(
        "Show the settings in the files; no server is asked.", "cli.configuration:config_view"
    ),
    "config schema": Leaf(
        "Print the JSON schema of job files (submit mpi -f), for editors.",
        "cli.program:config_schema",
        steady=True,
    ),
    "options": Leaf(
        "Show the options that every command takes.", "cli.program:options", steady=True
    ),
    "version": Leaf("Show the version of the program.", "cli.build:version", steady=True),
    "completion": Leaf(
        "Print the completion script for bash, zsh, fish or powershell.",
        "cli.completion:completion",
        steady=True,
    ),
}
"""The commands in the order of the help, from `submit` to `version`."""

_HEADINGS = {
    "submit": "Plan and submit",
    "get": "Look at jobs",
    "suspend": "Control jobs",
    "top": "Machines",
    "check": "For administrators",
    "data": "Data, settings and the program",
}
"""The headings of the help: each is printed above this command and those after it."""

_ARENA_V2 = {
    "run": "submit mpi",
    "get": "get",
    "list": "list",
    "status": "get",
    **{name: name for name in ("logs", "suspend", "resume", "delete")},
}
"""Names of commands in the proposal for arena v2 (kubeflow/arena, keps/arena-v2), below `job`."""

ALSO = "job"
"""The group of aliases."""


def _whole() -> Branch:
    root = Branch(_GROUPS[""], {})
    also = {f"{ALSO} {name}": _COMMANDS[path] for name, path in _ARENA_V2.items()}
    for path, leaf in {**_COMMANDS, **also}.items():
        above, _, name = path.rpartition(" ")
        below: Any = root
        if above:
            below = root.commands.setdefault(above, Branch(_GROUPS[above], {}))
        below.commands[name] = leaf
    return root


ROOT = _whole()
"""The whole tree."""


class _Commands(Mapping[str, Any]):
    """The commands of a group; each is imported on first use."""

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


def command_tree() -> Any:
    """The command of the whole program."""
    return _made(ROOT, PROGRAM)


def _made(leaf: Leaf | Branch, name: str) -> Any:
    if isinstance(leaf, Leaf):
        return make_command(leaf.imported(), name, steady=leaf.steady)
    made: Any = make_group(leaf.summary, name)
    made.commands = _Commands(leaf)
    made.summaries = {name: below.summary for name, below in leaf.commands.items()}
    made.headings = _HEADINGS if leaf is ROOT else {}
    return made
