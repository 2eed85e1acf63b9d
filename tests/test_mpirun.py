"""Command lines of Open MPI 4 in a local job, and what other MPIs are given and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arena_topo.engines import Options
from arena_topo.engines.local import mpirun
from arena_topo.engines.local.engine import open_local
from arena_topo.errors import UsageError
from arena_topo.job import MPIJob
from arena_topo.manifests import render
from arena_topo.manifests.versions import BEST
from arena_topo.words import with_extra

VERSIONS = {
    "Open MPI 4": "mpirun (Open MPI) 4.1.8",
    "OpenRTE 3": "mpiexec (OpenRTE) 3.1.3",
    "Open MPI 5": "mpirun (Open MPI) 5.0.11",
    "PRRTE": "prterun (PRRTE) 3.0.11",
    "MPICH": "HYDRA build details:\n    Version:    5.0.2",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.13",
    "srun": "srun 23.11",
}
OPEN_MPI = ("Open MPI 4", "Open MPI 5")

DOCUMENTED = (
    "-np 2 --allow-run-as-root -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH"
    " -x PATH -mca pml ob1 -mca btl ^openib"
)
"""The line of arena's documentation."""


ECHO = 'echo "$*"; env >&2'


def an_mpi(folder: Path, whose: str, does: str = ECHO) -> Path:
    """An mpirun that tells its version, and else its words and the environment it got."""
    folder.mkdir(exist_ok=True)
    program = folder / "mpirun"
    program.write_text(
        f"#!/bin/sh\ncase \"$1\" in --version) echo '{VERSIONS[whose]}';;\n*) {does};; esac\n"
    )
    program.chmod(0o700)
    return program


def called(
    tmp_path: Path, whose: str, line: str, does: str = ECHO, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `mpirun LINE` in a launcher does, on this machine."""
    shims = tmp_path / "shims"
    shims.mkdir(exist_ok=True)
    job = {"bin": str(shims), "slots": {"j-worker-0": 1}, "launcher": {"CUDA_VISIBLE_DEVICES": ""}}
    (tmp_path / "pods.json").write_text(json.dumps(job))
    shim = shims / "mpirun"
    shim.write_text(mpirun.script("run", tmp_path, "mpirun"))
    shim.chmod(0o700)
    path = f"{shims}:{an_mpi(tmp_path / 'mpi', whose, does).parent}:/usr/bin:/bin"
    return subprocess.run(
        ["sh", "-c", f"mpirun {line}"],
        env={"PATH": path, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def words(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().removeprefix("--noprefix ")


@pytest.mark.parametrize("whose", ["Open MPI 4", "OpenRTE 3"])
def test_the_documented_line_reaches_open_mpi_4_as_it_is(tmp_path, whose):
    done = called(tmp_path, whose, f"{DOCUMENTED} python train.py --lr 0.1", LD_LIBRARY_PATH="/l")
    assert words(done) == f"{DOCUMENTED} python train.py --lr 0.1"
    assert "arena-topo" not in done.stderr.replace(str(tmp_path), "")


def test_a_daemon_in_a_folder_with_a_blank_in_its_name_is_a_word_for_a_shell(tmp_path):
    folder = tmp_path / "my clone"
    folder.mkdir()
    daemon = folder / "mpi" / "orted"
    daemon.parent.mkdir()
    daemon.write_text("#!/bin/sh\necho started\n")
    daemon.chmod(0o700)
    done = called(folder, "Open MPI 4", "-np 2 x", 'sh -c "$OMPI_MCA_orte_launch_agent"')
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.parametrize("whose", OPEN_MPI)
def test_interfaces_that_are_not_here_are_left_out_and_named(tmp_path, whose):
    done = called(
        tmp_path,
        whose,
        "-np 2 -x NCCL_SOCKET_IFNAME=eth77 -x GLOO_SOCKET_IFNAME x"
        " : -np 1 -x NCCL_SOCKET_IFNAME=lo y",
        GLOO_SOCKET_IFNAME="ib77",
    )
    assert words(done) == "-np 2 x : -np 1 -x NCCL_SOCKET_IFNAME=lo y"
    assert done.stderr.splitlines()[0] == (
        "arena-topo: mpirun: not used, since this machine has no such network interface:"
        " GLOO_SOCKET_IFNAME=ib77, NCCL_SOCKET_IFNAME=eth77"
    )
    assert "ib77" not in done.stderr.partition("\n")[2]


@pytest.mark.parametrize("whose", OPEN_MPI)
@pytest.mark.parametrize(
    "options",
    [
        "-mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0",
        "-mca btl_tcp_if_exclude lo,docker0 -mca plm_rsh_args '-p 12345'",
        "--mca plm_rsh_agent /etc/mpi/kubexec.sh --hostfile /etc/mpi/hostfile",
        "-machinefile /etc/mpi/hostfile",
        "-x UNSET -x CUDA_VISIBLE_DEVICES",
    ],
)
def test_how_workers_are_reached_on_a_cluster_is_left_out_without_a_word(tmp_path, whose, options):
    done = called(tmp_path, whose, f"-np 2 {options} x {options}")
    assert words(done) == f"-np 2 x {options.replace(chr(39), '')}"
    assert "arena-topo" not in done.stderr.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("name", "value", "foreign"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", False),
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "^docker", False),
        ("NCCL_SOCKET_IFNAME", "ib0,bond0", True),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("NCCL_DEBUG", "eth9", False),
    ],
)
def test_names_of_interfaces_that_are_not_here_are_known(name, value, foreign):
    assert mpirun.foreign(name, value, {"lo", "eth0"}) is foreign


@pytest.mark.parametrize(
    ("whose", "line"),
    [
        ("MPICH", "-n 2 -ppn 1 -prepend-rank python x -x y"),
        ("MPICH", "-np 2 -bind-to none -map-by slot python x --mca y"),
        ("Intel MPI", "-genv A 1 -n 2 python x"),
        ("Open MPI 5", "-n 2 --output tag --map-by slot:OVERSUBSCRIBE --display map python x"),
        ("Open MPI 5", "--allow-run-as-root -np 2 -tag-output --mca pml ob1 --mca btl ^openib x"),
        ("PRRTE", "--runtime-options recoverable -n 2 python x -n"),
        ("srun", "-n 2 --mpi=pmix x"),
    ],
)
def test_a_line_that_another_mpi_understands_reaches_it_as_it_is(tmp_path, whose, line):
    assert words(called(tmp_path, whose, line)) == line


UNKNOWN = [
    ("MPICH", DOCUMENTED, "--allow-run-as-root"),
    ("MPICH", "-np 2 -x A=b", "-x"),
    ("Intel MPI", "-n 1 -mca pml ob1", "-mca"),
    ("Open MPI 5", DOCUMENTED, "-bind-to"),
    ("PRRTE", "-n 1 a : -n 1 --novm", "--novm"),
]


@pytest.mark.parametrize(("whose", "line", "option"), UNKNOWN)
def test_a_line_that_another_mpi_does_not_understand_starts_no_rank(tmp_path, whose, line, option):
    done = called(tmp_path, whose, f"{line} x")
    mpi = "Open MPI 5" if whose == "PRRTE" else whose
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"arena-topo: mpirun: {tmp_path}/mpi/mpirun is {mpi}'s, which does not understand {option}",
        f"arena-topo: {mpirun.INSTALL}",
    ]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["/elsewhere/arena-topo"])
    monkeypatch.chdir(tmp_path)
    return lambda: open_local(Options(emulate="dgx-1-v100"))


def planned(command: str):
    job = MPIJob(name="demo", command=command, image="local", workers=2)
    return render.build_plan(job, namespace="default", api=BEST, owner="me", files={})


@pytest.mark.parametrize(("whose", "line", "option"), UNKNOWN)
def test_it_is_refused_before_there_is_a_job(monkeypatch, engine, whose, line, option):
    program = an_mpi(Path.cwd() / "mpi", whose)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    local, command = engine(), f"mpirun {line} x"
    for attempt in (local.apply, local.validate):
        with pytest.raises(UsageError) as refused:
            attempt(planned(command))
        assert refused.value.exit_code == 2
        assert str(refused.value.why).endswith(f"which does not understand {option}")
        assert f"install {with_extra('mpi')}" in str(refused.value.hint)
    assert local.jobs(None) == ()
    # Which mpirun these call is known once they run.
    for other in (f"PATH=/opt/mpi/bin {command}", f". ./env.sh; {command}", "python train.py"):
        assert local.validate(planned(other)) == ()


def test_a_machine_without_mpi_says_how_to_get_one(monkeypatch, engine):
    # The folder of the Python that runs this is searched too.
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError) as refused:
        engine().validate(planned("mpirun -np 2 x"))
    assert (refused.value.why, refused.value.hint) == (
        "there is no MPI on this machine",
        mpirun.INSTALL,
    )


def test_a_script_that_calls_mpirun_without_mpi_is_told_the_same(tmp_path):
    called(tmp_path, "MPICH", "-n 1 x")
    (tmp_path / "mpi/mpirun").unlink()
    shim = [str(tmp_path / "shims/mpirun"), "-np", "2", "x"]
    env = {"PATH": f"{tmp_path / 'shims'}:/nowhere"}
    done = subprocess.run(shim, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 127
    assert done.stderr.splitlines() == [
        "arena-topo: mpirun: no MPI is installed on this machine",
        f"arena-topo: {mpirun.INSTALL}",
    ]


@pytest.mark.parametrize(
    "options", [[], ["-x"], ["-o", "ConnectionAttempts=10"], ["-p", "22", "-x", "-q"]], ids=str
)
@pytest.mark.parametrize("host", ["demo-worker-0", "root@demo-worker-0.demo.team-a.svc"])
def test_what_mpirun_says_to_ssh_runs_in_the_worker(options, host, tmp_path):
    job = {
        "slots": {"demo-worker-0": 2},
        "folder": str(tmp_path),
        "common": {"ARENA_TOPO_POD": "none"},
        "own": {"demo-worker-0": {"ARENA_TOPO_POD": "demo-worker-0"}},
    }
    (tmp_path / "pods.json").write_text(json.dumps(job))
    (tmp_path / "agent").write_text(mpirun.script("agent", tmp_path))
    done = subprocess.run(
        ["sh", str(tmp_path / "agent"), *options, host, "echo", "$ARENA_TOPO_POD", "; pwd"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"demo-worker-0\n{tmp_path}\n"


def test_of_what_open_mpi_says_itself_only_a_harmless_warning_is_left_out(tmp_path):
    told = ["sorry: no slots", "[vm:1] plm:rsh: Warning: setpgid(2,2) failed", "at the end"]
    lines = "; ".join(f"echo '{line}' >&$OPAL_OUTPUT_STDERR_FD" for line in told)
    done = called(tmp_path, "Open MPI 4", "-np 9 x", does=lines)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [told[0], told[2]]


def test_without_grep_nothing_that_open_mpi_says_is_lost(tmp_path):
    # As with busybox, whose grep has no --line-buffered.
    grep = tmp_path / "shims/grep"
    grep.parent.mkdir()
    grep.write_text("#!/bin/sh\nexit 2\n")
    grep.chmod(0o755)
    done = called(tmp_path, "Open MPI 4", "-np 9 x", does="echo sorry >&$OPAL_OUTPUT_STDERR_FD")
    assert (done.returncode, done.stderr) == (0, "sorry\n")
