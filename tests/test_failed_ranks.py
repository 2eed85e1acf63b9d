"""`why` of a job that failed or is silent: which rank ended it, where, and the end of its log.

Reports are those of Open MPI 4.1.8 and 5.0.7, MPICH 5.0.2, Intel MPI 2021.13 and torchrun 2.5.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from job_shapes import (
    CREATED,
    RUNNING,
    condition,
    ended,
    launcher,
    mpijob,
    node,
    ours,
    runs,
    worker,
)

OPEN_MPI_SIGNAL = """\
epoch 3
--------------------------------------------------------------------------
mpirun noticed that process rank 5 with PID 0 on node demo-worker-2 exited on
signal 11 (Segmentation fault).
--------------------------------------------------------------------------
"""
OPEN_MPI_EXIT = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    batch = load("data.bin")
FileNotFoundError: data.bin
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[16807,1],3]
  Exit code:    1
--------------------------------------------------------------------------
[vm][[16807,1],0][btl_tcp.c:559:mca_btl_tcp_recv_blocking] recv(18) failed: Connection reset
[vm:00311] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[vm:00311] PMIX ERROR: UNREACHABLE in file src/server/pmix_server.c at line 2198
"""
OPEN_MPI_5_EXIT = """\
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-demo-launcher-1@1,7]
   Exit code:    137
--------------------------------------------------------------------------
"""
OPEN_MPI_ABORT = """\
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
with errorcode 77.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
--------------------------------------------------------------------------
"""
MPICH_SIGNAL = """\
epoch 3

===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 16652 RUNNING AT demo-worker-1
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
[proxy:0@vm] HYD_pmcd_pmip_control_cmd_cb (pmip_cb.c:490): assert (!closed) failed
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""
MPICH_ABORT = (
    "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7)"
    " - process 1\n"
)
INTEL_SIGNAL = """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 6 PID 1193 RUNNING AT demo-worker-3
=   KILLED BY SIGNAL: 6 (Aborted)
===================================================================================
"""
TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_07:01:00
  host      : demo-worker-0
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 311)
  error_file: <N/A>
============================================================
"""

FAILED = condition("Failed", reason="BackoffLimitExceeded", message="Job has reached the limit")
POD = "demo-launcher-x7k2p"


@pytest.fixture
def cluster(api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    """A job of four workers with two ranks each, whose launcher has a log."""
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    monkeypatch.setenv("KUBECONFIG", str(config))
    for index in range(4):
        api.add(node(f"gpu-{index}"))
    return api


def fail(api: FakeApi, log: str, code: int = 1) -> None:
    places = ";".join(f"gpu-{index}/0,1" for index in range(4))
    api.add(mpijob(CREATED, FAILED, notes=ours("placed", map=places)))
    api.add(launcher("Failed", **ended(code)))
    for index in range(4):
        api.add(worker(index, "Running", node=f"gpu-{index}", **runs()))
    for line in log.removesuffix("\n").split("\n"):
        api.write(POD, line, at="2026-11-21T07:01:00.000000000Z", namespace="team-a")
    api.end_log(POD, "team-a")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (OPEN_MPI_SIGNAL, "rank 5 (demo-worker-2 on gpu-2) was ended by signal 11 (SIGSEGV)"),
        (OPEN_MPI_EXIT, "rank 3 (demo-worker-1 on gpu-1) ended with exit code 1"),
        (OPEN_MPI_5_EXIT, "rank 7 (demo-worker-3 on gpu-3) was ended by signal 9 (SIGKILL)"),
        (OPEN_MPI_ABORT, "rank 2 (demo-worker-1 on gpu-1) called MPI_Abort with code 77"),
        (MPICH_SIGNAL, "a rank (demo-worker-1 on gpu-1) was ended by signal 9 (SIGKILL)"),
        (MPICH_ABORT, "rank 1 (demo-worker-0 on gpu-0) called MPI_Abort with code 7"),
        (INTEL_SIGNAL, "rank 6 (demo-worker-3 on gpu-3) was ended by signal 6 (SIGABRT)"),
        (TORCHRUN, "rank 1 (demo-worker-0 on gpu-0) was ended by signal 9 (SIGKILL)"),
    ],
)
def test_why_names_the_rank_that_ended_the_job_its_worker_and_its_node(
    cluster: FakeApi, run: Callable[..., Any], log: str, said: str
):
    fail(cluster, log)
    code, out, _ = run("why", "demo", "-n", "team-a")
    assert code == 0
    assert out.startswith(
        f"demo: FAILED, LauncherFailed\n  {said}\n  why:  the launcher ended with exit code 1"
    )


def test_why_shows_the_last_lines_of_the_program_without_the_report_of_its_mpi(
    cluster: FakeApi, run: Callable[..., Any]
):
    fail(cluster, OPEN_MPI_EXIT)
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert out.split("\n\n")[1] == (
        "Last lines of demo-launcher-x7k2p:\n"
        "  Traceback (most recent call last):\n"
        '    File "train.py", line 9, in <module>\n'
        '      batch = load("data.bin")\n'
        "  FileNotFoundError: data.bin\n"
    )
    _, out, _ = run("why", "demo", "-n", "team-a", "-o", "json")
    log = json.loads(out)["log"]
    assert log["lines"][-1] == "FileNotFoundError: data.bin"
    assert log["failedRank"] == {
        "rank": 3,
        "host": None,
        "signal": None,
        "exit_code": 1,
        "aborted": False,
    }


def test_a_report_is_left_out_where_a_rule_of_another_is_cut_off_by_the_program(
    cluster: FakeApi, run: Callable[..., Any]
):
    fail(cluster, f"half a line{'-' * 74}\nIt terminated.\n{'-' * 74}\ndata.bin?\n{OPEN_MPI_EXIT}")
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert "exit code 1; last line of its log: FileNotFoundError: data.bin\n" in out
    assert "  data.bin?\n" in out
    assert "Process name:" not in out


def test_what_open_mpi_says_of_a_peer_that_is_gone_is_not_the_last_line(
    cluster: FakeApi, run: Callable[..., Any]
):
    rule = "-" * 60
    warning = (
        f"{rule}\nWARNING: Open MPI failed to TCP connect to a peer MPI process.  This\n"
        "should not happen.\n\nYour Open MPI job may now hang or fail.\n\n"
        "  Local host: demo-worker-0\n  PID:        23\n  Message:    connect() to"
        f" 10.0.0.2:1024 failed\n  Error:      Operation now in progress (115)\n{rule}\n"
    )
    fail(cluster, f"ValueError: no data\n{warning}{OPEN_MPI_ABORT}")
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert "last line of its log: ValueError: no data\n" in out
    assert "Local host" not in out


def test_a_rule_without_a_report_is_not_the_last_line_of_a_log(
    cluster: FakeApi, run: Callable[..., Any]
):
    fail(cluster, f"ValueError: no data\n{'-' * 74}\n", code=3)
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert "last line of its log: ValueError: no data\n" in out


def test_a_log_without_a_report_gives_its_last_line_as_the_cause(
    cluster: FakeApi, run: Callable[..., Any]
):
    fail(cluster, "==========\nTraining\n==========\n  10%\r  90%\rValueError: no data\n", code=3)
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert out == (
        "demo: FAILED, LauncherFailed\n"
        "  the launcher ended with exit code 3\n"
        "  why:  last line of its log: ValueError: no data\n"
        "  try:  arena-topo logs demo -n team-a\n"
        "\n"
        "Last lines of demo-launcher-x7k2p:\n"
        "  ==========\n"
        "  Training\n"
        "  ==========\n"
        "  ValueError: no data\n"
    )


@pytest.mark.parametrize(
    "said",
    [
        "process rank {0} with PID 1 on node demo-worker-2 exited on signal 9",
        "process rank 5 with PID 1 on node demo-worker-2 exited on signal {0}",
        "Process name: [[1,1],3] Exit code: {0}",
        "Abort({0}) on node 0 (rank 1 in comm 0)",
    ],
)
def test_a_program_may_write_numbers_of_any_length(
    cluster: FakeApi, run: Callable[..., Any], said: str
):
    fail(cluster, said.format("9" * 5000) + "\nValueError: no data\n")
    code, out, _ = run("why", "demo", "-n", "team-a")
    assert code == 0
    assert "\n  why:  last line of its log: ValueError: no data\n" in out


def test_a_line_of_the_longest_is_searched_once(cluster: FakeApi, run: Callable[..., Any]):
    fail(cluster, "x" * 260_000 + "\nlast\n")
    began = time.process_time()
    code, out, _ = run("why", "demo", "-n", "team-a")
    assert (code, "\n  why:  last line of its log: last\n" in out) == (0, True)
    # A search from each of its characters took 35 s.
    assert time.process_time() - began < 15


@pytest.mark.parametrize(("ago", "silent"), [(540, None), (1530, "no output for 25m")])
def test_a_running_job_without_output_for_ten_minutes_says_so(
    cluster: FakeApi, run: Callable[..., Any], ago: int, silent: str | None
):
    cluster.add(mpijob(CREATED, RUNNING))
    cluster.add(launcher(node="gpu-0", **runs()))
    stamp = datetime.fromtimestamp(time.time() - ago, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
    cluster.write(POD, "epoch 3", at=stamp, namespace="team-a")
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert ("no output" in out) == (silent is not None)
    if silent is not None:
        assert f"  why:  {silent}\n" in out
        assert "look into it: arena-topo attach demo -n team-a -- ps aux\n" in out


def test_whoever_may_not_read_logs_is_told_which_right_that_takes(
    cluster: FakeApi, run: Callable[..., Any]
):
    fail(cluster, OPEN_MPI_EXIT)
    cluster.deny("get .*log.*")
    _, out, _ = run("why", "demo", "-n", "team-a")
    assert "Last lines" not in out
    assert "not allowed to get pods/log in namespace team-a\n" in out
