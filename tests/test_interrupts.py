"""The program as processes that people start, interrupt, and ask for what cannot be."""

import io
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo import cli
from arena_topo.cli import interruption
from arena_topo.errors import TimedOut
from arena_topo.topology import presets, published

GANG = ("--name=demo", "--gpus=1", "--workers=4", "--gputopology", "--image=i")


@pytest.fixture
def full(tmp_path):
    """The kubeconfig of a living cluster with two machines, whose GPUs are all taken."""
    api = FakeApi()
    cluster = FakeCluster(api)
    for index in range(2):
        cluster.node(f"node-{index}", 8)
        machine = presets.preset_machine("dgx-1-v100", f"node-{index}")
        api.add(published.config_map(machine, machine.everything))
        cluster.pod(f"theirs-{index}", f"node-{index}", 8)
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    with cluster.running():
        yield config
    api.close()


def test_an_interrupted_wait_for_gpus_says_who_starts_the_job(full):
    line = [
        sys.executable,
        "-m",
        "arena_topo",
        f"--kubeconfig={full}",
        "submit",
        "mpi",
        "--wait",
        "--timeout=30s",
    ]
    with subprocess.Popen(
        [*line, *GANG, "c"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as waits:
        for said in waits.stderr:
            if said.startswith("demo waits: "):
                waits.send_signal(signal.SIGINT)
                break
        rest = waits.stderr.read()
    assert waits.returncode == 130
    assert rest == (
        "The job demo goes on. Come back: arena-topo logs -f demo -n default; delete it:"
        " arena-topo delete demo -n default\n"
    )


MOMENTS = (
    "typer",
    "arena_topo.engines",
    "arena_topo.nodes.topology",
    "arena_topo.topology.presets",
)
"""Modules that are loaded early, in the middle, last, and by the command itself."""


@pytest.mark.parametrize("way", ["arena-topo", "python -m arena_topo"])
@pytest.mark.parametrize("moment", [*MOMENTS, "exit"])
def test_an_interrupt_ends_the_program_quietly_at_any_moment(moment, way):
    start = {
        "arena-topo": "from arena_topo.__main__ import main; main()",
        "python -m arena_topo": "import runpy; runpy.run_module('arena_topo', None, '__main__')",
    }
    program = f"""
import atexit, os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            os.kill(os.getpid(), signal.SIGINT)

if {moment == "exit"}:
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.meta_path.insert(0, Interrupting())
{start[way]}
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "topology", "presets"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert ("dgx-1-v100" in done.stdout) is (moment == "exit")


@pytest.mark.parametrize("moment", ["typer", "arena_topo.engines.local.engine"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("submit", "mpi", "--name=demo", "--image=local", "true"), "Nothing was created.\n"),
        (("-n", "team", "delete", "demo"), "Nothing was deleted.\n"),
        # A job may be called like a command.
        (("replan", "submit", "--yes"), ""),
    ],
)
def test_an_interrupt_before_anything_was_done_says_that_nothing_was(moment, line, words):
    program = f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from arena_topo.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *line, "--backend=local", "--emulate=dgx-1-v100"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", words)


def test_who_has_the_program_ignore_interrupts_is_heeded():
    done = subprocess.run(
        [sys.executable, "-m", "arena_topo", "topology", "presets"],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    program = (
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from arena_topo.__main__ import main;"
        "import atexit; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT)); main()"
    )
    command = [sys.executable, "-c", program, "version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_script_that_is_installed_is_guarded_from_its_first_moment():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    names = ("arena-topo", "kubectl-arena_topo")
    assert project["project"]["scripts"] == dict.fromkeys(names, "arena_topo.__main__:main")


def test_what_a_job_cannot_do_as_it_stands_is_no_mistake_of_the_command_line(full):
    line = [sys.executable, "-m", "arena_topo", f"--kubeconfig={full}"]
    submit = [*line, "submit", "mpi", "--name=plain", "--image=i", "--workers=2", "c"]
    subprocess.run(submit, capture_output=True, check=True)
    done = subprocess.run([*line, "replan", "plain"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: plain cannot be replanned\n  why:  it was not submitted with --gputopology\n"
    )


def test_a_time_that_is_over_while_an_error_is_written_is_no_traceback(monkeypatch):
    class Rings(io.StringIO):
        """A stream in the middle of which the alarm of --timeout rings, once."""

        rang = False

        def write(self, text: str) -> int:
            if not self.rang:
                self.rang = True
                raise interruption.OutOfTime
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Rings())
    code = cli.run(["list", "--kubeconfig", "/nonexistent"])
    assert code == TimedOut.exit_code
    assert "error: --timeout is over" in sys.stderr.getvalue()
