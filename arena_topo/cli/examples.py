"""Examples of each command, for its help, its page of the reference and its man page.

Every line is one that the parser takes; a test reads them all.
"""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "submit mpi": (
        (
            "Four workers with two GPUs each, on the best-linked free GPUs",
            (
                "submit mpi --name bert --gpus 2 --workers 4 --gputopology\n"
                "--image IMAGE 'mpirun python train.py'"
            ),
        ),
        ("Show the log until the job ends", "submit mpi -f job.yaml --follow"),
        (
            "Print the objects for kubectl",
            "submit mpi -f job.yaml --dry-run -o yaml",
        ),
    ),
    "plan mpi": (
        ("Where would eight pairs of GPUs go?", "plan mpi --gpus 2 --workers 8"),
        (
            "The same on a dump of another cluster",
            "plan mpi --gpus 2 --workers 8 --state dump.json",
        ),
        ("What is this placement worth?", "plan mpi --gpus 2 --workers 2 --on 'n1/0,3;n1/1,2'"),
    ),
    "forecast": (
        ("All-reduce on eight H100 of one machine", "forecast hgx-h100"),
        ("Between two of these machines", "forecast hgx-h100 --nodes 2"),
    ),
    "get": (
        ("State, pods and placement", "get bert"),
        ("With the reason, for scripts", "get bert --explain -o json"),
        ("Watch it to its end", "get bert -w"),
    ),
    "why": (("Why does it wait, or why did it fail?", "why bert"),),
    "list": (
        ("Jobs of all namespaces that wait or run", "list -A --status PENDING,RUNNING"),
        ("With nodes, bandwidth and run time", "list -o wide"),
        ("My jobs with a label", "list --mine -l team=vision"),
    ),
    "logs": (
        ("Follow the log of the launcher", "logs -f bert"),
        ("All ranks in the order of time", "logs bert --all"),
        ("What NCCL chose, beside the plan", "logs bert --nccl"),
    ),
    "attach": (
        ("A shell in the launcher", "attach bert"),
        ("A command in a worker", "attach bert -i bert-worker-0 -- nvidia-smi"),
    ),
    "suspend": (("Free the GPUs of a job", "suspend bert"),),
    "resume": (("Start a waiting job now, if it fits", "resume bert"),),
    "wait": (
        ("Until both jobs have ended", "wait bert eval"),
        ("At most ten minutes until it runs", "wait bert --for running --timeout 10m"),
    ),
    "replan": (("Move a job to better GPUs", "replan bert"),),
    "delete": (
        ("Two jobs by name", "delete bert eval"),
        ("All jobs that wait", "delete --status PENDING"),
        ("My jobs with a label", "delete --mine -l team=vision"),
    ),
    "prune": (("What has ended more than a day ago", "prune --since 24h --dry-run"),),
    "top node": (
        ("Who has which GPUs of a node", "top node -d n1"),
        ("What the free GPUs are good for", "top node --frag"),
    ),
    "top job": (
        ("Jobs by the GPUs that they ask for", "top job"),
        ("How busy the GPUs of a job are", "top job bert"),
    ),
    "topology presets": (("The names for --emulate and forecast", "topology presets"),),
    "topology show": (
        ("The links between the GPUs of a node", "topology show n1"),
        ("A machine by its preset, as a picture", "topology show dgx-a100 -o svg"),
    ),
    "topology discover": (("The links of this machine", "topology discover"),),
    "topology publish": (
        ("Look before anything is written", "topology publish n1 --preset dgx-a100 --dry-run"),
    ),
    "check": (
        ("What the cluster offers, and what you may do", "check"),
        ("Do the workers see the GPUs that were planned?", "check bert"),
    ),
    "install": (("Policies and roles alone", "install --without-controller --without-agent"),),
    "nodes topology": (("Look before nodes are changed", "nodes topology n1 n2 --dry-run"),),
    "nodes default": (("Open nodes to all jobs again", "nodes default n1 n2"),),
    "nodes list": (("Nodes with GPUs", "nodes list"),),
    "controller": (("One round, for a CronJob", "controller --once"),),
    "data list": (("Claims that --data can mount", "data list"),),
    "whoami": (("The name that jobs are submitted under", "whoami"),),
    "config view": (("Where each setting comes from", "config view"),),
    "config schema": (("The schema of job files, for an editor", "config schema"),),
    "options": (("The options of every command", "options"),),
    "version": (("The version and the Python below it", "version"),),
    "completion": (("The script for bash", "completion bash"),),
}
"""By the words of the command: what an example does, and its words after the program's name.

A line feed is where the line goes on in the next one, for terminals of 80 columns.
"""


def shell_line(program: str, words: str) -> str:
    """An example as a shell takes it, on two lines where it has a line feed."""
    return f"{program} {words}".replace("\n", " \\\n      ")
