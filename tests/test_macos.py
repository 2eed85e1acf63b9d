"""On macOS the program plans, and talks to clusters; jobs run on Linux.

macOS is simulated: what it lacks is taken away from Python (see `macos/sitecustomize.py`).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import doc_worlds
import program
import pytest

TESTS = Path(__file__).parent
README = TESTS.parent / "README.md"
MACOS = {"PYTHONPATH": os.pathsep.join([str(TESTS / "macos"), str(TESTS.parent)])}
LINUX = {"PYTHONPATH": str(TESTS.parent)}
EMULATED = {"ARENA_TOPO_EMULATE": "dgx-1-v100:2"}


def commands(subcommand: str) -> list[list[str]]:
    """The words of the README's commands that begin with `$ arena-topo SUBCOMMAND`."""
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    start = f"$ arena-topo {subcommand} "
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith(start)]


(PLAN,) = commands("plan")
LOCAL_JOB, CLUSTER_JOB = commands("submit")
(WHY,) = commands("why")
DRY_RUN = [*(word for word in LOCAL_JOB if word != "--wait"), "--dry-run"]


def run(words, home, **env):
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "TZ": "UTC", **env}
    streams = {"text": True, "stdin": subprocess.DEVNULL, "timeout": 60}
    if env["PYTHONPATH"] == LINUX["PYTHONPATH"]:
        return program.run(words, env=env, **streams)
    # What Python lacks there is taken away as it starts.
    line = [*program.LINE, *words]
    return subprocess.run(line, env=env, capture_output=True, check=False, **streams)


def test_the_simulated_machine_has_no_proc_and_calls_itself_darwin(tmp_path):
    look = "import os, sys; print(os.path.exists('/proc/self/stat'), sys.platform)"
    line = [sys.executable, "-c", look]
    done = subprocess.run(line, env=MACOS, capture_output=True, text=True, check=True)
    assert done.stdout == "False darwin\n"
    assert "Platform: darwin/arm64" in run(["version"], tmp_path, **MACOS).stdout


@pytest.mark.parametrize(
    "words",
    [PLAN, DRY_RUN, ["list"], ["top", "node"], ["topology", "show"]],
    ids=" ".join,
)
def test_emulated_machines_show_the_same_screens_as_on_linux(words, tmp_path):
    there, here = (run(words, tmp_path, **EMULATED, **on) for on in (LINUX, MACOS))
    assert here.returncode == there.returncode == 0, here.stderr
    assert (here.stdout, here.stderr) == (there.stdout, there.stderr)


@pytest.mark.parametrize("words", [LOCAL_JOB, [*DRY_RUN[:-1], "--dry-run=server"]], ids=" ".join)
def test_a_job_of_the_local_engine_is_refused_and_nothing_is_left_of_it(words, tmp_path):
    done = run(words, tmp_path, **EMULATED, **MACOS)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "ARENA_TOPO_EMULATE: using this machine (--backend local).\n"
        "error: the local engine runs jobs on Linux only\n"
        "  why:  it finds their processes through /proc\n"
        "  try:  use a cluster: --backend kubernetes; `plan` and --dry-run work here\n"
    )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_job_of_a_linux_machine_with_the_same_home_is_left_to_that_machine(tmp_path):
    """Also if both machines have the same name, as a virtual machine may have its host's."""
    submitted = run(["submit", "mpi", "--name=far", "--image=local", "sleep 60"], tmp_path, **LINUX)
    assert submitted.returncode == 0, submitted.stderr
    try:
        seen = run(["list"], tmp_path, **MACOS)
        refused = run(["suspend", "far"], tmp_path, **MACOS)
        assert "far   UNKNOWN" in seen.stdout
        assert refused.returncode == 1
        assert "far cannot be suspended" in refused.stderr
        assert run(["get", "far", "-o", "name"], tmp_path, **LINUX).returncode == 0
    finally:
        assert run(["delete", "far"], tmp_path, **LINUX).returncode == 0


def test_the_readmes_job_runs_on_a_cluster_from_its_submission_to_its_removal(tmp_path):
    job = CLUSTER_JOB[CLUSTER_JOB.index("mpi") + 1].removeprefix("--name=")
    with doc_worlds.opened("cluster", tmp_path):
        for words, seen in (
            (PLAN, "Bus bandwidth of an all-reduce"),
            ([*CLUSTER_JOB, "--dry-run"], "kind: MPIJob"),
            (CLUSTER_JOB, f"mpijob.kubeflow.org/{job} created"),
            (["wait", job, "--for=running", "--timeout=50s"], ""),
            (WHY, f"{job}: "),
            (["list"], job),
            (["get", job], job),
            (["logs", job], ""),
            (["top", "node"], "node-0"),
            (["top", "job"], job),
            (["check"], "API server"),
            (["install", "--without-controller", "--without-agent"], "ClusterRole"),
            (["suspend", job], job),
            (["resume", job], job),
            (["delete", job], ""),
        ):
            done = run(words, tmp_path, **MACOS)
            assert done.returncode == 0, (words, done.stderr)
            assert seen in done.stdout, (words, done.stdout, done.stderr)
