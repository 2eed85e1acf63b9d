"""Jobs on this machine: real processes, a real mpirun, GPUs that are only emulated."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import select
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from log_bytes import log_of
from replacing import replace

from arena_topo import layout
from arena_topo.engines import JobStatus, Options, Phase, private
from arena_topo.engines.lines import LogOptions
from arena_topo.engines.local import engine as local
from arena_topo.engines.local import job_end, processes, scheduler, store, supervisor
from arena_topo.engines.local.engine import LocalBackend, open_local, search_path
from arena_topo.errors import AlreadyExists, ArenaError, NotFound, UsageError
from arena_topo.examples import allreduce
from arena_topo.gang import submission
from arena_topo.job import Claim, Duration, EnvVar, MPIImplementation, MPIJob, Quantity
from arena_topo.jobs.proposal import propose
from arena_topo.jobs.view import job_value
from arena_topo.manifests import PlacementForecast, render
from arena_topo.manifests.versions import ApiVersion
from arena_topo.nodes import overview, top_view
from arena_topo.reasons.case import Code
from arena_topo.reasons.explanation import explain_job
from arena_topo.solver import Policy, Reason, Request, Unplaceable
from arena_topo.solver.door import place
from arena_topo.topology import NodeName, gpu_set

ARENA = (
    "mpirun --allow-run-as-root -np 4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO"
    " -x NCCL_SOCKET_IFNAME=eth0 -x LD_LIBRARY_PATH -x PATH --mca pml ob1"
    " --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0"
    " --mca orte_keep_fqdn_hostnames t --mca btl ^openib"
    " python -m arena_topo.examples.allreduce --rounds 2 --size 64K"
)
LONG = "sleep 600"
PATIENCE = 30.0


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An engine with a state of its own that leaves no process behind."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # As if called by its path in the environment that the tests run in.
    monkeypatch.setattr(sys, "argv", [str(Path(sys.executable).parent / "arena-topo")])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    backend = open_local(Options(emulate="dgx-1-v100:2"))
    yield backend
    for job in backend.jobs(None):
        backend.delete(job.name, job.namespace)
    nothing_runs(str(tmp_path / "state"))


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch):
    """Supervisors start from nothing, as they do for users; in other tests they are forks."""
    monkeypatch.setattr(local, "subprocess", subprocess)


def test_a_request_is_read_back_as_it_was_written(tmp_path):
    request = Request(
        workers=4,
        gpus=2,
        excluded={NodeName("a"): Reason.TAINT},
        required="node",
        policy=Policy.ADAPTIVE,
        pack_above=0.25,
    )
    written = store.StoredRequest(
        uid="00000000-0000-4000-8000-000000000001",
        name="demo",
        namespace="default",
        created=0.0,
        host="me",
        workers=4,
        gpus=2,
        request=request,
    )
    record = store.JobState(phase=Phase.SUCCEEDED, forecast=PlacementForecast(state="placed"))
    jobs = store.JobStore(tmp_path / "state")
    myself = processes.process(os.getpid())
    entry = jobs.create(written, record, [], lambda *_: myself)
    assert jobs.job("demo", "default") == entry
    assert entry.submission.request == request


def nothing_runs(state: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := running(state):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def running(state: str) -> list[str]:
    """The command lines of processes that were started by the engine with this state."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"XDG_STATE_HOME={state}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def job(name: str, command: str, **changes) -> MPIJob:
    return MPIJob(
        **{
            "name": name,
            "command": command,
            "image": "local",
            "gpus": 1,
            "workers": 4,
            "gang": True,
            "gputopology": True,
        }
        | changes
    )


def submit(engine: LocalBackend, wanted: MPIJob, api: ApiVersion = ApiVersion.V2BETA1) -> JobStatus:
    """What `submit` does: place if it fits, render, apply."""
    request = placement = None
    cluster = engine.cluster()
    if wanted.gputopology:
        request = Request(workers=wanted.workers, gpus=wanted.gpus)
        with suppress(Unplaceable):
            placement = place(request, cluster)
    plan = render.build_plan(
        wanted,
        namespace="default",
        api=api,
        owner="me",
        files={},
        request=request,
        placement=placement,
        cluster=cluster,
        binding=engine.binding,
    )
    assert engine.apply(plan) == (f"mpijob.kubeflow.org/{wanted.name}",)
    return engine.job(wanted.name, "default")


def until(engine: LocalBackend, name: str, reached) -> JobStatus:
    deadline = time.monotonic() + PATIENCE
    while True:
        status = engine.job(name, "default")
        if reached(status):
            return status
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


def ended(engine: LocalBackend, name: str) -> JobStatus:
    return until(engine, name, lambda status: status.phase.over)


def started(engine: LocalBackend, name: str) -> JobStatus:
    return until(engine, name, lambda status: status.phase is not Phase.PENDING)


def log(engine: LocalBackend, name: str, instance: str = "", **options) -> str:
    status = engine.job(name, "default")
    return log_of(engine, status, instance or f"{name}-launcher", LogOptions(**options)).decode()


def record_of(tmp_path: Path, name: str) -> dict:
    """What is written down of a job, without the engine's looking after it."""
    folder = tmp_path / "state/arena-topo/jobs/default"
    return json.loads((folder / name / "record").read_text())["record"]


def eventually(reached) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gpus(status: JobStatus) -> list[tuple[str, tuple[int, ...]]]:
    return [(node, devices) for _, node, devices in status.forecast.workers]


# ---------------------------------------------------------------------------- running


@pytest.mark.usefixtures("anew")
def test_arenas_own_command_line_runs_on_a_quad_of_nvlinks(engine):
    submit(engine, job("demo", ARENA))
    status = ended(engine, "demo")
    written = log(engine, "demo")
    assert (status.phase, status.exit_code, status.reason) == (Phase.SUCCEEDED, 0, None), written
    rounds = [line for line in written.splitlines() if line.startswith("Iter #")]
    assert [line.partition(":")[0] for line in rounds] == ["Iter #1", "Iter #2"]
    assert all(line.endswith(" GB/s") for line in rounds)
    assert sorted(line for line in written.splitlines() if line.startswith("rank")) == [
        f"rank {index}/4 on demo-worker-{index} GPUs {index}" for index in range(4)
    ]
    assert "every sum 10" in written
    assert gpus(status) == [("dgx-1-v100-0", (index,)) for index in range(4)]
    forecast = status.forecast
    assert forecast.usable == pytest.approx(86.4)
    assert (forecast.binding, forecast.guarantee) == ("local", "gpus")
    assert (forecast.emulated, forecast.optimal, forecast.tier) == (True, True, "node")


def test_a_finished_job_still_shows_its_pods_with_their_gpus(engine):
    submit(engine, job("demo", "exit 0"))
    status = ended(engine, "demo")
    assert [(one.name, one.status, one.gpus, one.node) for one in status.instances] == [
        ("demo-launcher", "Completed", 0, "dgx-1-v100-0"),
        *((f"demo-worker-{index}", "Completed", 1, "dgx-1-v100-0") for index in range(4)),
    ]
    assert (status.request_gpus, status.allocated_gpus) == (4, 0)
    assert engine.cluster().nodes[0].free == 0xFF


@pytest.mark.parametrize("api", [ApiVersion.V1, ApiVersion.V1ALPHA1])
def test_manifests_of_every_version_run(engine, api):
    submit(
        engine,
        job(
            "demo",
            "mpirun sh -c 'echo $A $CUDA_VISIBLE_DEVICES'",
            env=(EnvVar(key="A", value="x"),),
            workers=2,
        ),
        api,
    )
    assert ended(engine, "demo").exit_code == 0, log(engine, "demo")
    written = log(engine, "demo", "demo-launcher").splitlines()
    assert sorted(written) == ["x 0", "x 3"]


def test_an_ordinary_job_counts_its_gpus_and_has_them_alone(engine):
    submit(engine, job("first", LONG, gang=False, gputopology=False, workers=2, gpus=3))
    second = submit(engine, job("second", LONG, gang=False, gputopology=False, workers=1, gpus=3))
    first = engine.job("first", "default")
    assert gpus(first) == [("dgx-1-v100-0", (0, 1, 2)), ("dgx-1-v100-0", (3, 4, 5))]
    assert gpus(second) == [("dgx-1-v100-1", (0, 1, 2))]
    assert first.forecast.bus_bandwidth is not None
    # Nothing was searched for, so nothing is said to be proven or not.
    assert (first.forecast.optimal, first.forecast.bound) == (None, None)
    # A worker without GPUs is not shown on its node.
    submit(engine, job("third", LONG, gang=False, gputopology=False, workers=1, gpus=0))
    placed = {node.name: node for node in engine.nodes().nodes}
    shown = [(pod.name, pod.devices) for pod in placed["dgx-1-v100-0"].pods]
    assert shown == [("first-worker-0", (0, 1, 2)), ("first-worker-1", (3, 4, 5))]
    assert placed["dgx-1-v100-0"].node.free_count == 2


def test_a_job_without_gpus_or_mpirun_just_runs(engine, tmp_path):
    submit(
        engine, job("demo", "pwd; echo $0 $K_MPI_JOB_ROLE", gpus=0, gputopology=False, shell="bash")
    )
    assert ended(engine, "demo").exit_code == 0
    assert gpus(engine.job("demo", "default")) == [("dgx-1-v100-0", ())] * 4
    assert log(engine, "demo") == f"{tmp_path / 'work'}\nbash launcher\n"


@pytest.mark.parametrize("command", ["exit 7", "mpirun sh -c 'exit 7'"])
@pytest.mark.usefixtures("anew")
def test_the_exit_code_of_the_command_is_the_jobs(engine, command):
    submit(engine, job("demo", command))
    status = ended(engine, "demo")
    assert (status.phase, status.exit_code) == (Phase.FAILED, 7)
    assert status.reason == "the launcher ended with exit code 7"
    assert status.chief.status == "Error"


def test_a_worker_sees_its_own_gpus_and_only_what_is_exported(engine):
    submit(
        engine,
        job(
            "demo",
            "export A=1 B=2; echo launcher [$CUDA_VISIBLE_DEVICES];"
            " mpirun -x B -x CUDA_VISIBLE_DEVICES"
            " sh -c 'echo $OMPI_COMM_WORLD_RANK $HOSTNAME [$CUDA_VISIBLE_DEVICES] [$A] [$B]'",
            gpus=2,
            workers=2,
        ),
    )
    status = ended(engine, "demo")
    lines = log(engine, "demo").splitlines()
    assert lines[0] == "launcher []"
    (_, one), (_, other) = gpus(status)
    # Two slots each, as a worker on a cluster has as many as it has GPUs.
    assert sorted(lines[1:]) == [
        f"{rank} demo-worker-{rank // 2} [{','.join(map(str, devices))}] [] [2]"
        for rank, devices in enumerate((one, one, other, other))
    ]


def test_too_many_ranks_are_refused_in_open_mpis_words(engine):
    submit(engine, job("demo", "mpirun -np 5 hostname"))
    assert ended(engine, "demo").exit_code == 1
    assert "There are not enough slots available in the system" in log(engine, "demo")


def test_a_failing_launcher_is_started_again_as_often_as_asked(engine):
    submit(engine, job("demo", "echo x >> tries; test $(wc -l < tries) = 3", retry=2))
    assert ended(engine, "demo").exit_code == 0
    assert Path("tries").read_text() == "x\nx\nx\n"


def test_a_folder_that_is_not_there_fails_the_job_and_says_so(engine):
    submit(engine, job("demo", "true", working_dir="/nowhere/at/all"))
    status = ended(engine, "demo")
    assert (status.phase, status.reason) == (
        Phase.FAILED,
        "the folder to start in, /nowhere/at/all, does not exist",
    )
    assert "/nowhere/at/all" in log(engine, "demo")


@pytest.mark.usefixtures("engine", "anew")
@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "TMPDIR"])
@pytest.mark.parametrize("name", ["O'Brien", "a;touch${IFS}ran;b", "$(touch${IFS}ran)", "a:b"])
def test_no_shell_reads_the_path_of_the_state_or_temporary_folder(monkeypatch, variable, name):
    # Short, since a longer folder for temporary files is never used. The supervisor tells others of
    # its end while the folder is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short:
        folder = Path(short) / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        # Where the path of the state folder is odd, the files of mpirun are in the temporary one.
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        if variable == "TMPDIR":
            monkeypatch.setenv("XDG_STATE_HOME", f"{short}/a b")
            monkeypatch.setenv("TMPDIR", str(folder))
        odd = open_local(Options(emulate="dgx-1-v100:2"))
        try:
            submit(odd, job("demo", "mpirun --allow-run-as-root -np 2 echo rank", workers=2))
            status = ended(odd, "demo")
            written = log(odd, "demo")
            assert (status.exit_code, written) == (0, "rank\nrank\n")
        finally:
            odd.delete("demo", "default")
        assert list(Path(short).rglob("ran")) == []


def test_a_relative_folder_for_temporary_files_is_not_used(engine, monkeypatch):
    # There is such a folder for the supervisor as well, which is in `/`.
    monkeypatch.setenv("TMPDIR", "tmp")
    submit(engine, job("demo", "test -d $TMPDIR && echo $TMPDIR"))
    assert ended(engine, "demo").exit_code == 0
    assert log(engine, "demo").startswith("/tmp/arena-topo-")


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.usefixtures("anew")
def test_no_process_of_a_job_ignores_a_signal(engine, queued):
    # As under nohup, or in the background of a script.
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    look = "grep SigIgn /proc/self/status"
    try:
        if queued:
            submit(engine, job("before", LONG, workers=16))
        submit(engine, job("demo", f"{look}; mpirun -np 2 {look}", workers=2))
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
    if queued:
        engine.delete("before", "default")
    assert ended(engine, "demo").exit_code == 0
    # Hydra itself ignores the signals of terminals, and some machines those without a name.
    ours = {*numbers, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1}
    ignored = [int(line.split()[1], 16) for line in log(engine, "demo").splitlines()]
    assert [mask & sum(1 << number - 1 for number in ours) for mask in ignored] == [0, 0, 0]


@pytest.mark.usefixtures("anew")
def test_the_end_of_a_terminal_is_none_of_a_jobs_business(engine, tmp_path):
    submit(engine, job("demo", "while ! test -e go; do sleep 0.05; done; exit 3"))
    started(engine, "demo")
    keeper = record_of(tmp_path, "demo")["supervisor"]["pid"]
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(keeper, number)
    Path("go").touch()
    assert ended(engine, "demo").exit_code == 3


def test_a_job_that_somebody_else_shall_start_is_refused_and_leaves_nothing(engine):
    with pytest.raises(UsageError) as refused:
        submit(engine, job("demo", "exit 0", queue=True))
    assert (refused.value.exit_code, refused.value.message) == (2, "--queue is for clusters")
    assert "kube-queue" in refused.value.why
    assert "leave --queue out" in refused.value.hint
    assert engine.jobs(None) == ()


def test_what_is_only_for_containers_is_said_in_the_log(engine):
    asked = job(
        "demo",
        "echo mine",
        rdma=True,
        data=(Claim(name="mnist", path="/data"),),
        env=(EnvVar(key="NCCL_SOCKET_IFNAME", value="none0"),),
    )
    submit(engine, asked)
    assert ended(engine, "demo").exit_code == 0
    assert log(engine, "demo") == (
        "arena-topo: not used on this machine, where jobs are plain processes: --data, --rdma\n"
        "arena-topo: not used, since this machine has no such network interface:"
        " NCCL_SOCKET_IFNAME=none0\n"
        "mine\n"
    )


def test_what_only_operators_see_to_is_said_by_flag(engine):
    asked = job(
        "demo",
        "true",
        launcher_cpu=Quantity.parse("1"),
        launcher_memory=Quantity.parse("1Gi"),
        priority="high",
        service_account="trainer",
        mpi_implementation=MPIImplementation.MPICH,
        cpu=Quantity.parse("1"),
        memory=Quantity.parse("512Mi"),
        share_memory=Quantity.parse("1Gi"),
        ttl_after_finished=Duration(0),
    )
    [remark] = engine.remarks(asked)
    assert remark == (
        "not used on this machine, where jobs are plain processes: --cpu, --memory,"
        " --launcher-cpu, --launcher-memory, --share-memory, --priority, --service-account,"
        " --mpi-implementation, --ttl-after-finished"
    )
    assert engine.remarks(job("demo", "true", running_timeout=Duration(60))) == ()


@pytest.mark.parametrize("command", [LONG, "mpirun sh -c 'trap true TERM; sleep 600; sleep 600'"])
def test_a_job_that_runs_for_longer_than_it_may_is_ended(engine, run, command, tmp_path):
    submit(engine, job("demo", command, running_timeout=Duration(1), retry=3))
    status = ended(engine, "demo")
    assert (status.phase, status.exit_code) == (Phase.FAILED, None)
    assert status.reason == (
        "DeadlineExceeded: the job ran for longer than its --running-timeout allows"
    )
    eventually(lambda: len(running(str(tmp_path / "state"))) == 0)
    code, out, _ = run("why", "demo", "--backend", "local")
    assert code == 0
    assert out.startswith("demo: FAILED, RunningTimeout\n")
    assert "longer --running-timeout" in out


def test_the_time_of_a_job_begins_when_it_starts_and_holds_for_all_its_tries(engine):
    submit(engine, job("all", "while ! test -e go; do sleep 0.05; done", workers=16))
    submit(engine, job("demo", "touch ran; exit 1", running_timeout=Duration(1), retry=99))
    time.sleep(1.2)
    assert engine.job("demo", "default").phase is Phase.PENDING
    Path("go").touch()
    # Its tries, and the pauses between them, are short: none of them alone takes so long.
    assert ended(engine, "demo").reason.startswith("DeadlineExceeded")
    assert Path("ran").exists()


def test_why_advises_nothing_that_this_engine_does_not_do(engine, run):
    submit(engine, job("first", LONG, workers=1))
    submit(engine, job("large", LONG, workers=16))
    submit(engine, job("small", LONG, workers=1))
    code, out, _ = run("why", "small", "--backend", "local")
    assert code == 0
    assert "--running-timeout" not in out
    assert "the job starts by itself in its turn\n" in out


# ---------------------------------------------------------------------------- the queue


def test_gangs_get_a_quad_each_and_the_fifth_waits_until_one_ends(engine):
    quads = []
    for name in ("one", "two", "three", "four"):
        placed = gpus(submit(engine, job(name, LONG)))
        quads.append((placed[0][0], sorted(device for _, (device,) in placed)))
    assert sorted(quads) == [
        (node, quad)
        for node in ("dgx-1-v100-0", "dgx-1-v100-1")
        for quad in ([0, 1, 2, 3], [4, 5, 6, 7])
    ]
    assert quads[0][0] == quads[1][0]
    fifth = submit(engine, job("five", LONG))
    assert (fifth.phase, fifth.forecast.state, fifth.forecast.workers) == (
        Phase.PENDING,
        "waiting",
        (),
    )
    assert "not enough free GPUs" in fifth.reason
    assert all(one.pending for one in fifth.instances)
    engine.delete("three", "default")
    assert gpus(started(engine, "five")) == gpus_of(quads[2])


def gpus_of(quad: tuple[str, list[int]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(quad[0], (device,)) for device in quad[1]]


def test_a_job_that_is_submitted_has_nobody_who_waits_look_at_all_jobs_again(engine, tmp_path):
    changes = tmp_path / "state/arena-topo/changes"
    submit(engine, job("before", "exit 0"))
    ended(engine, "before")
    eventually(changes.exists)
    told = changes.stat().st_mtime_ns
    submit(engine, job("first", "echo runs; sleep 600", workers=8))
    submit(engine, job("second", LONG, workers=16))
    eventually(lambda: log(engine, "first") == "runs\n")
    assert changes.stat().st_mtime_ns == told
    engine.delete("first", "default")
    assert changes.stat().st_mtime_ns > told
    started(engine, "second")


FIRST = "default/whole comes first in the queue, and the GPUs that would fit are reserved for it"


def test_a_younger_job_does_not_overtake_the_gang_that_has_waited_longest(engine):
    submit(engine, job("small", LONG, workers=1))
    whole = submit(engine, job("whole", LONG, workers=16))
    assert whole.phase is Phase.PENDING
    asked = replace(job("younger", "exit 0", workers=1), gputopology=False)
    done = submission.submit(asked, engine, namespace="default")
    younger = done.status
    assert younger is not None
    assert younger.phase is Phase.PENDING
    assert younger.reason == FIRST
    assert job_value(younger, now=0.0)["reservedBy"] == "default/whole"
    assert done.starter == "It starts by itself once it can."
    engine.delete("whole", "default")
    assert ended(engine, "younger").exit_code == 0


@pytest.fixture
def waiting_for_all(engine):
    """A waiting job that needs all GPUs; eight of them have a job that may run for 5 minutes."""
    submit(engine, job("first", LONG, workers=1, gpus=8, running_timeout=Duration(300)))
    assert started(engine, "first").phase is Phase.RUNNING
    assert submit(engine, job("whole", LONG, workers=2, gpus=8)).phase is Phase.PENDING


@pytest.mark.usefixtures("waiting_for_all")
def test_a_younger_job_that_ends_in_time_starts_before_the_gang_that_has_waited_longest(engine):
    for name, changes in {
        "late": {"running_timeout": Duration(600)},
        "endless": {},
        "large": {"running_timeout": Duration(60), "workers": 3},
        "short": {"running_timeout": Duration(60), "gputopology": False},
    }.items():
        submit(engine, job(name, LONG, **{"workers": 1, "gpus": 4, **changes}))
    assert started(engine, "short").phase is Phase.RUNNING
    for name in ("whole", "late", "endless", "large"):
        assert engine.job(name, "default").phase is Phase.PENDING
    assert engine.job("late", "default").reason == FIRST


def test_what_a_job_reserves_that_was_deleted_meanwhile_is_not_known(engine):
    assert engine.head("gone", "default") is None


@pytest.mark.usefixtures("waiting_for_all")
def test_why_tells_how_long_the_jobs_that_are_waited_for_may_still_run(run):
    code, out, _ = run("why", "whole", "--backend=local", "--emulate=dgx-1-v100:2")
    assert code == 0
    assert re.search(r"^Start: in [45]m at the latest, once jobs", out, re.MULTILINE)
    assert re.search(r"^ +default/first +8 +\w+ +[45]m +dgx-1-v100-0$", out, re.MULTILINE)
    assert "\nReserved for it: 16 GPUs; 8 are still in use\n" in out
    asked = ("--gpus=8", "--gang", "--backend=local", "--emulate=dgx-1-v100:2")
    code, _, err = run("plan", "mpi", *asked)
    assert code == 3
    assert re.search(r"  try:  with a --running-timeout shorter than [34]m it may start fi", err)
    line = ("submit", "mpi", "--name=new", "--image=local", "--gputopology", "c")
    code, _, err = run(*line, *asked)
    assert code == 0
    assert re.search(r"  try:  with a --running-timeout shorter than [34]m it may start fi", err)


def test_reserved_gpus_read_the_same_in_plan_submit_and_why_on_this_machine(engine):
    submit(engine, job("small", LONG, workers=1))
    submit(engine, job("whole", LONG, workers=16))
    asked = job("younger", LONG, workers=2)
    for wanted in (asked, replace(asked, workers=8)):
        refused = propose(wanted, engine, namespace="default").refused
        assert refused is not None
        assert "2 nodes (dgx-1-v100-0, ...): reserved for default/whole" in str(refused.why)
        assert refused.nearest is None
    assert submission.submit(asked, engine, namespace="default").nearest is None
    nodes = overview.read_overview(engine).occupancy.nodes
    assert [one.reserved for one in nodes] == [7, 8]
    shown = top_view.nodes_table(nodes, now=engine.job("whole", "default").created + 3600)
    assert shown.endswith("15 GPUs for default/whole, at most 15.0 GPU-hours so far\n")
    found = explain_job(engine, "younger", "default", now=time.time())
    assert (found.verdict.code, found.nearest) == (Code.WAITING_FOR_TURN, None)
    assert found.verdict.why == (
        "15 GPUs of dgx-1-v100-0 and dgx-1-v100-1 are reserved for default/whole, which comes first"
        " in the queue"
    )


@pytest.fixture
def slow_pair(engine, monkeypatch):
    """A function that submits two workers for which the free GPUs of a machine are slow."""
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:1")
    one = open_local(Options(emulate="dgx-1-v100:1"))
    for index in range(8):
        submit(one, job(f"u{index}", LONG, workers=1))
        started(engine, f"u{index}")
    for name in ("u0", "u5"):
        engine.delete(name, "default")

    def pair(**changes) -> JobStatus:
        asked = job("pair", LONG, workers=2, **changes)
        status = submission.submit(asked, one, namespace="default").status
        assert status is not None
        assert status.waits
        return status

    return pair


SLOW = "it waits for 43.2 GB/s on one node; less than a third of that is offered"


def test_every_command_says_what_a_patient_job_waits_for_and_until_when(run, slow_pair):
    status = slow_pair(patience=Duration(3600))
    end, clock = status.created + 3600, layout.clock(status.created + 3600)
    assert (status.reason, status.until) == (SLOW, end)
    found = json.loads(run("why", "pair", "-o", "json", "--backend=local")[1])
    assert (found["code"], found["until"]) == ("WaitingForBandwidth", int(end))
    assert found["waitsFor"]["place"] == "one node"
    code, why, _err = run("why", "pair", "--backend=local")
    assert code == 0
    assert "it is patient: it waits for one node, where it has more bandwidth\n" in why
    hint = f"from {clock} on it starts wherever it fits; now: arena-topo resume pair -n default\n"
    assert hint in re.sub(r"\n {8}", " ", why)
    shown = json.loads(run("get", "pair", "-o", "json", "--backend=local")[1])
    assert shown["until"] == int(end)
    assert (
        f"  starts wherever it fits from {clock} on\n" in run("get", "pair", "--backend=local")[1]
    )


def test_submit_says_until_when_a_job_is_patient(run, slow_pair):
    slow_pair()
    line = "submit mpi --name=more --gpus=1 --workers=2 --gputopology --image=local --patience=1h"
    _code, _out, err = run(*line.split(), "--backend=local", "exit 0")
    assert "starts wherever it fits from" not in err  # it waits behind another
    run("delete", "pair", "more", "--backend=local")
    _code, _out, err = run(*line.split(), "--backend=local", "exit 0")
    clock = layout.clock(open_local(Options()).job("more", "default").created + 3600)
    assert f"  It starts wherever it fits from {clock} on; --patience 0 starts at once\n" in err


def test_resume_starts_a_patient_job_wherever_it_fits(run, slow_pair):
    slow_pair()
    assert run("resume", "pair", "--backend=local")[:2] == (0, "mpijob.kubeflow.org/pair resumed\n")
    placed = gpus(started(open_local(Options()), "pair"))
    assert [devices for _node, devices in placed] == [(0,), (5,)]


def test_a_job_starts_wherever_it_fits_as_soon_as_its_patience_ends(slow_pair):
    end = slow_pair(patience=Duration(2)).created + 2
    status = started(open_local(Options()), "pair")
    begun = min(one.started for one in status.instances if one.started)
    assert end <= begun < end + 3


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({"workers": 17}, "fits now with --workers 16"),
        ({"gpus": 9}, "fits now with --gpus 4"),
    ],
)
def test_a_job_that_can_never_fit_is_refused_and_leaves_nothing(engine, more, advice):
    with pytest.raises(Unplaceable) as refused:
        submit(engine, job("never", LONG, gputopology=False, **more))
    assert (refused.value.exit_code, refused.value.nearest) == (5, advice)
    with pytest.raises(NotFound):
        engine.job("never", "default")
    assert engine.jobs(None) == ()


def test_a_plan_whose_gpus_were_taken_meanwhile_is_made_anew(engine):
    plans = []
    for name in ("one", "two"):
        wanted = job(name, LONG)
        request = Request(workers=4, gpus=1)
        plans.append(
            render.build_plan(
                wanted,
                namespace="default",
                api=ApiVersion.V2BETA1,
                owner="me",
                files={},
                request=request,
                placement=place(request, engine.cluster()),
                binding=engine.binding,
            )
        )
    assert plans[0].placement == plans[1].placement
    for plan in plans:
        engine.apply(plan)
    placed = [sorted(gpus(engine.job(name, "default"))) for name in ("one", "two")]
    assert placed[0] != placed[1]
    assert {node for one in placed for node, _ in one} == {"dgx-1-v100-0"}


def test_a_job_that_had_to_wait_gets_the_best_place_there_is_when_its_turn_comes(engine):
    submit(engine, job("all", LONG, workers=16))
    # Planned when two GPUs were free that no NVLink joins.
    request = Request(workers=2, gpus=1)
    machines = scheduler.local_machines("dgx-1-v100:2")
    free = gpu_set((0, 6)), gpu_set(())
    nodes = (replace(node, free=own) for node, own in zip(machines.nodes, free, strict=True))
    poor = place(request, replace(machines, nodes=tuple(nodes)))
    assert (poor.assignments[0].gpus, poor.bandwidth.point < 20) == ((0,), True)
    plan = render.build_plan(
        job("pair", LONG, workers=2),
        namespace="default",
        api=ApiVersion.V2BETA1,
        owner="me",
        files={},
        request=request,
        placement=poor,
        binding=engine.binding,
    )
    engine.apply(plan)
    assert engine.job("pair", "default").phase is Phase.PENDING
    engine.delete("all", "default")
    forecast = started(engine, "pair").forecast
    assert (forecast.usable, forecast.optimal) == (43.2, True)


def test_replan_starts_a_job_again_on_the_best_gpus_there_are_now(engine, run):
    for name in ("one", "two", "three", "four"):
        submit(engine, job(name, LONG, workers=3))
    poor = submit(engine, job("demo", "echo runs; sleep 600", workers=4)).forecast
    eventually(lambda: log(engine, "demo") == "runs\n")
    engine.delete("one", "default")
    code, out, err = run("replan", "demo", "-y", "--backend", "local")
    assert (code, out) == (0, "mpijob.kubeflow.org/demo replanned\n"), err
    better = started(engine, "demo").forecast
    assert better.usable > poor.usable
    assert {node for _, node, _ in better.workers} == {"dgx-1-v100-0"}
    assert f"Bus bandwidth: {better.usable:.3g} GB/s (" in err
    eventually(lambda: log(engine, "demo") == "runs\n")
    assert log(engine, "demo", previous=True) == "runs\n"


def test_replan_of_a_job_that_would_lose_its_gpus_to_a_waiting_job_leaves_it_running(engine, run):
    submit(engine, job("demo", LONG, workers=16))
    submit(engine, job("next", LONG, workers=8))
    before = started(engine, "demo")
    assert run("replan", "demo", "-y", "--backend", "local") == (
        3,
        "",
        (
            "error: demo cannot be replanned, and goes on running\n"
            "  why:  next waits and would start on its GPUs\n"
            "  try:  arena-topo suspend demo -n default stops it and frees its GPUs, until it"
            " is resumed\n"
        ),
    )
    after = engine.job("demo", "default")
    assert (after.phase, after.instances) == (before.phase, before.instances)
    assert engine.job("next", "default").phase is Phase.PENDING
    engine.delete("next", "default")
    submit(engine, job("none", LONG, workers=16))
    engine.suspend("none", "default")
    assert run("replan", "demo", "-y", "--force", "--backend", "local")[0] == 0


def test_replan_goes_before_a_younger_job_that_waits_for_gpus_of_others_too(engine, run):
    submit(engine, job("other", LONG, workers=8))
    submit(engine, job("demo", LONG, workers=4))
    submit(engine, job("large", LONG, workers=16))
    started(engine, "demo")
    code, _, err = run("replan", "demo", "-y", "--force", "--backend", "local")
    assert code == 0, err
    started(engine, "demo")
    assert engine.job("large", "default").phase is Phase.PENDING


def test_replan_does_not_stop_a_job_that_a_broken_setting_would_keep_from_starting(
    engine, run, monkeypatch
):
    submit(engine, job("demo", LONG))
    before = started(engine, "demo")
    monkeypatch.setenv("ARENA_TOPO_LOCAL_LOG_LIMIT", "much")
    code, _, err = run("replan", "demo", "-y", "--backend", "local")
    assert code == 2, err
    assert engine.job("demo", "default").instances == before.instances


def test_a_job_that_is_over_or_not_there_cannot_be_placed_anew(engine, run):
    submit(engine, job("demo", "exit 0"))
    ended(engine, "demo")
    assert run("replan", "demo", "-y", "--backend", "local", "-q") == (
        1,
        "",
        (
            "error: demo cannot be replanned\n  why:  it has SUCCEEDED\n"
            "  try:  arena-topo delete demo -n default, and submit it again\n"
        ),
    )
    code, _, err = run("replan", "nobody", "-y", "--backend", "local")
    assert code == 1
    assert "Not found training job nobody" in err


@pytest.mark.parametrize("verb", ["suspend", "resume", "replan"])
def test_a_job_that_another_command_deletes_is_gone_and_not_failed(engine, run, verb):
    submit(engine, job("demo", "exit 1"))
    ended(engine, "demo")
    jobs = store.JobStore(private.state_folder(os.environ))
    with jobs.deleting(jobs.job("demo", "default")):
        code, _, err = run(verb, "demo", "--backend", "local")
    assert (code, err.splitlines()[0]) == (1, "error: no job demo in namespace default")


@pytest.mark.parametrize("record", ["", "{", '{"format": 99, "record": {}}'])
def test_a_job_whose_files_cannot_be_read_stops_nobody_and_can_be_deleted(engine, tmp_path, record):
    submit(engine, job("all", LONG, workers=16))
    submit(engine, job("demo", "exit 0"))
    submit(engine, job("odd", LONG))
    (tmp_path / "state/arena-topo/jobs/default/odd/record").write_text(record)
    assert {one.name: one.phase for one in engine.jobs(None)}["odd"] is Phase.UNKNOWN
    assert "arena-topo delete odd" in (engine.job("odd", "default").reason or "")
    assert any("odd" in note for note in engine.cluster().notes)
    engine.delete("all", "default")
    assert ended(engine, "demo").exit_code == 0
    engine.delete("odd", "default")
    with pytest.raises(NotFound):
        engine.job("odd", "default")


# ---------------------------------------------------------------------------- surviving

SUBMITTER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_local_engine as here
from arena_topo.engines import Options
from arena_topo.engines.local.engine import open_local
here.submit(open_local(Options(emulate="dgx-1-v100:2")), here.job("demo", "sleep 1; exit 3"))
print("submitted", flush=True)
input()
"""


def test_killing_the_shell_that_submitted_changes_nothing(engine):
    shell = subprocess.Popen(
        [
            "sh",
            "-c",
            '"$@"; true',
            "sh",
            sys.executable,
            "-c",
            SUBMITTER,
            str(Path(__file__).parent),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with shell:
        assert shell.stdout.readline() == b"submitted\n"
        os.killpg(shell.pid, signal.SIGKILL)
    assert ended(engine, "demo").exit_code == 3


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_local_engine as here
from arena_topo.engines import Options
from arena_topo.engines.local import engine, store

def then_die(work):
    def done(*words, **more):
        work(*words, **more)
        os.kill(os.getpid(), signal.SIGKILL)
    return done

steps = {"spawn": (engine.LocalBackend, "_start"), "create": (store.JobStore, "create")}
where, what = steps[sys.argv[2]]
setattr(where, what, then_die(getattr(where, what)))
here.submit(engine.open_local(Options(emulate="dgx-1-v100:2")), here.job("demo", "exit 3"))
"""


@pytest.mark.parametrize("after", ["spawn", "create"])
def test_a_submitter_killed_at_any_point_leaves_a_job_that_runs_or_none(engine, tmp_path, after):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), after], check=False
    )
    assert done.returncode == -signal.SIGKILL
    if after == "spawn":
        nothing_runs(str(tmp_path / "state"))
        assert engine.jobs(None) == ()
        submit(engine, job("demo", "exit 3"))
    assert ended(engine, "demo").exit_code == 3


def test_a_job_that_a_job_submits_lives_on(engine):
    command = "while ! test -e go; do sleep 0.05; done; mpirun sh -c 'echo $HOSTNAME'"
    told = SUBMITTER.replace('"demo", "sleep 1; exit 3"', f'"inner", {command!r}, workers=2')
    Path("submit.py").write_text(told.replace("input()", ""))
    submit(engine, job("demo", f"{sys.executable} submit.py {Path(__file__).parent}"))
    assert ended(engine, "demo").exit_code == 0, log(engine, "demo")
    Path("go").touch()
    assert ended(engine, "inner").exit_code == 0, log(engine, "inner")
    assert sorted(log(engine, "inner").split()) == ["inner-worker-0", "inner-worker-1"]


def test_a_job_is_run_by_its_own_supervisor_alone(engine, tmp_path):
    submit(engine, job("demo", f"echo x >> tries; {LONG}"))
    started(engine, "demo")
    eventually(lambda: Path("tries").exists())
    folder = tmp_path / "state/arena-topo/jobs/default/demo"
    module = "arena_topo.engines.local.supervisor"
    subprocess.run([sys.executable, "-m", module, folder], check=True, timeout=PATIENCE)
    assert Path("tries").read_text() == "x\n"


def test_a_supervisor_does_not_take_a_namesakes_folder_for_its_own(engine, tmp_path):
    submit(engine, job("demo", LONG))
    old = started(engine, "demo").uid
    keeper = record_of(tmp_path, "demo")["supervisor"]["pid"]
    (tmp_path / "state/arena-topo/jobs/default/demo").rename(tmp_path / "elsewhere")
    submit(engine, job("demo", LONG))
    new = started(engine, "demo").uid
    eventually(lambda: processes.process(keeper) is None)
    assert not processes.processes_of_job(old)
    assert (engine.job("demo", "default").uid, record_of(tmp_path, "demo")["phase"]) == (
        new,
        "RUNNING",
    )


def test_a_supervisor_in_another_container_is_seen_to_live(engine, tmp_path):
    submit(engine, job("demo", "while ! test -e go; do sleep 0.05; done; exit 3"))
    started(engine, "demo")
    path = tmp_path / "state/arena-topo/jobs/default/demo/record"
    record = json.loads(path.read_text())
    # There its process has a number that means nothing here.
    record["record"]["supervisor"]["pid"] = 1 << 30
    path.write_text(json.dumps(record))
    assert engine.job("demo", "default").phase is Phase.RUNNING
    Path("go").touch()
    eventually(lambda: record_of(tmp_path, "demo")["phase"] == "FAILED")
    assert engine.job("demo", "default").exit_code == 3


class Stopped(subprocess.Popen):
    """A process that does nothing yet, as on a busy machine."""

    last: int

    def __init__(self, *words, **more) -> None:
        super().__init__(*words, **more)
        Stopped.last = self.pid
        os.kill(self.pid, signal.SIGSTOP)


@pytest.mark.usefixtures("anew")
def test_no_package_beside_this_one_hides_a_module_of_python_from_a_supervisor(
    engine, monkeypatch, mocker
):
    package = str(Path(local.__file__).resolve().parents[3])
    begin = mocker.spy(subprocess, "Popen")
    for installed in (True, False):
        # A backport such as `dataclasses` of Python 3.6 may be in the same folder.
        folders = [package] if installed else []
        monkeypatch.setattr(site, "getsitepackages", lambda folders=folders: folders)
        submit(engine, job(f"demo-{installed}".lower(), "true"))
        first, *_ = begin.call_args.kwargs["env"].get("PYTHONPATH", "").split(os.pathsep)
        assert (first == package) is not installed
    assert ended(engine, "demo-true").phase is Phase.SUCCEEDED


def test_a_job_whose_supervisor_starts_is_no_orphan_for_another_container(
    engine, tmp_path, monkeypatch
):
    monkeypatch.setattr(local, "subprocess", SimpleNamespace(Popen=Stopped, DEVNULL=-3))
    (tmp_path / "proc").mkdir()

    def begins() -> None:
        with monkeypatch.context() as container:
            # It sees no processes but its own.
            container.setattr(processes, "PROC", tmp_path / "proc")
            assert engine.job("demo", "default").phase is Phase.PENDING
        os.kill(Stopped.last, signal.SIGCONT)
        assert started(engine, "demo").phase is Phase.RUNNING

    submit(engine, job("demo", LONG))
    begins()
    assert engine.suspend("demo", "default")
    assert engine.resume("demo", "default")
    begins()


def test_a_program_without_a_free_file_takes_no_job_for_an_orphan(engine, tmp_path):
    submit(engine, job("demo", LONG))
    started(engine, "demo")
    one = store.JobStore(tmp_path / "state/arena-topo").job("demo", "default")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] + 1, limits[1]))
    try:
        with suppress(OSError):
            while True:
                files.append(os.open(os.devnull, os.O_RDONLY))
        assert not job_end.is_orphaned(one)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for file in files:
            os.close(file)


def test_a_job_that_is_deleted_from_another_container_has_ended_then(engine, tmp_path):
    # It takes a while, and its last words are archived.
    uid = submit(
        engine, job("demo", "trap 'sleep 0.5; echo bye; exit' TERM; touch go; sleep 600 & wait")
    ).uid
    eventually(lambda: Path("go").exists())
    (tmp_path / "proc").mkdir()
    with pytest.MonkeyPatch.context() as container:
        container.setattr(processes, "PROC", tmp_path / "proc")
        engine.delete("demo", "default")
    assert not processes.processes_of_job(uid)
    assert b"bye" in b"".join(
        one.read_bytes() for one in (tmp_path / "state/arena-topo/logs").rglob("*.log")
    )


def test_a_job_can_be_suspended_from_another_container(engine, tmp_path):
    submit(engine, job("demo", f"echo x >> tries; {LONG}"))
    started(engine, "demo")
    eventually(lambda: Path("tries").exists())
    (tmp_path / "proc").mkdir()
    with pytest.MonkeyPatch.context() as container:
        container.setattr(processes, "PROC", tmp_path / "proc")
        assert engine.suspend("demo", "default")
        assert engine.job("demo", "default").phase is Phase.SUSPENDED
    assert engine.resume("demo", "default")
    eventually(lambda: Path("tries").read_text() == "x\nx\n")


@pytest.mark.usefixtures("anew")
def test_a_supervisor_that_breaks_down_leaves_no_process(engine, tmp_path, monkeypatch):
    # A fault of this program.
    Path("sitecustomize.py").write_text(
        "from arena_topo.engines.local import logs\n"
        "def broken():\n"
        "    raise RuntimeError('at fault')\n"
        "logs.pipe = broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "work"))
    uid = submit(engine, job("demo", "sleep 600")).uid
    eventually(lambda: record_of(tmp_path, "demo")["phase"] == "FAILED")
    assert record_of(tmp_path, "demo")["reason"] == "the process that ran the job broke down"
    assert not processes.processes_of_job(uid)
    diary = tmp_path / "state/arena-topo/jobs/default/demo/supervisor.log"
    # It writes down why once the job has its end.
    eventually(lambda: "RuntimeError: at fault" in diary.read_text())


def test_ending_gives_up_on_what_cannot_be_ended(monkeypatch):
    monkeypatch.setattr(processes, "INSIST", 0.1)
    assert processes.terminate(lambda: {1 << 30}, grace=0.0) == {1 << 30}


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_ending_leaves_what_runs_as_another_user(monkeypatch, kernel):
    told = []

    def refuse(_process, number):
        told.append(number)
        raise PermissionError

    if kernel == "old":
        monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    ours = os.getpid()
    assert processes.terminate(lambda: {ours}, grace=PATIENCE) == {ours}
    assert told == [signal.SIGTERM]


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_ending_spares_a_stranger_who_has_taken_over_the_id_of_a_process(monkeypatch, kernel):
    if kernel == "old":
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "600"]) as stranger:
        looks = iter([{stranger.pid}])
        assert not processes.terminate(lambda: next(looks, set()))
        assert stranger.poll() is None
        stranger.kill()


def test_a_shell_that_is_ended_writes_nothing_of_the_end_of_its_child(monkeypatch, tmp_path):
    def later(send):
        def send_and_wait(*words):
            send(*words)
            time.sleep(0.05)

        return send_and_wait

    monkeypatch.setattr(os, "kill", later(os.kill))
    monkeypatch.setattr(signal, "pidfd_send_signal", later(signal.pidfd_send_signal))
    with (tmp_path / "log").open("wb") as written:
        for _ in range(64):
            shell = subprocess.Popen(["/bin/sh", "-c", "sleep 600; true"], stderr=written)
            eventually(lambda shell=shell: processes.descendants(shell.pid))
            [child] = processes.descendants(shell.pid)
            # In a set of two such numbers the child comes first, as it must not.
            unlucky = [*{shell.pid, child}] == [child, shell.pid]
            pair = {shell.pid, child}
            processes.terminate(
                lambda pair=pair: {pid for pid in pair if processes.process(pid)},
                reap=shell.poll,
            )
            shell.wait()
            if unlucky:
                break
    assert (tmp_path / "log").read_text() == ""


def guards(keeper: int) -> set[int]:
    """The children of a supervisor that are no part of its job."""
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return set(map(int, children)) - processes.descendants(keeper)


@pytest.fixture
def unendable(engine, monkeypatch, tmp_path):
    """A running job without its supervisor, one of whose processes is not ours to end."""
    submit(engine, job("demo", "echo $TMPDIR; echo $$; exec sleep 600", workers=1))
    eventually(lambda: log(engine, "demo").count("\n") == 2)
    scratch, pid = log(engine, "demo").split()
    keeper = record_of(tmp_path, "demo")["supervisor"]["pid"]
    kill = os.kill

    send = signal.pidfd_send_signal

    def refuse(descriptor, number):
        about = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        if f"Pid:\t{pid}\n" in about:
            raise PermissionError
        send(descriptor, number)

    with monkeypatch.context() as world:
        world.setattr(signal, "pidfd_send_signal", refuse)
        # Its guard too, which would end them in a process that is not patched.
        for one in (*guards(keeper), keeper):
            kill(one, signal.SIGKILL)
        eventually(lambda: processes.process(keeper) is None)
        yield pid, Path(scratch).parent
    kill(int(pid), signal.SIGKILL)


def test_a_job_is_over_even_if_a_process_of_it_cannot_be_ended(engine, unendable):
    pid, scratch = unendable
    # Threads of a killed process may hold its locks for some moments more.
    status = ended(engine, "demo")
    assert (status.phase, status.reason) == (
        Phase.FAILED,
        f"the process that ran the job was killed; process {pid} of it cannot be ended",
    )
    assert not scratch.exists()


def test_deleting_says_which_process_cannot_be_ended(engine, unendable):
    pid, scratch = unendable
    with pytest.raises(ArenaError) as left:
        engine.delete("demo", "default")
    assert left.value.message == (
        f"the job demo is deleted, but process {pid} of it cannot be ended"
    )
    assert engine.jobs(None) == ()
    assert not scratch.exists()


@pytest.mark.usefixtures("anew")
def test_a_killed_supervisor_fails_the_job_and_frees_its_gpus(engine, tmp_path):
    submit(engine, job("demo", "mpirun sleep 600"))
    uid = started(engine, "demo").uid
    until(engine, "demo", lambda _: len(processes.processes_of_job(uid)) > 8)
    record = json.loads((tmp_path / "state/arena-topo/jobs/default/demo/record").read_text())
    os.kill(record["record"]["supervisor"]["pid"], signal.SIGKILL)
    status = ended(engine, "demo")
    assert (status.phase, status.reason) == (
        Phase.FAILED,
        "the process that ran the job was killed",
    )
    assert not processes.processes_of_job(uid)
    assert engine.cluster().nodes[0].free == 0xFF


@pytest.mark.parametrize("room", [True, False])
def test_a_killed_supervisor_fails_the_job_on_a_full_disk_too(engine, tmp_path, monkeypatch, room):
    submit(engine, job("demo", LONG))
    uid = started(engine, "demo").uid
    supervised = record_of(tmp_path, "demo")["supervisor"]["pid"]
    children = Path(f"/proc/{supervised}/task/{supervised}/children")
    (guard,) = {int(pid) for pid in children.read_text().split()} - processes.descendants(
        supervised
    )
    for pid in (guard, supervised):
        os.kill(pid, signal.SIGKILL)
    reserved = tmp_path / "state/arena-topo/jobs/default/demo/room"
    replace_file = store.replace_file

    def full(*words, **more) -> None:
        if reserved.exists() or not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(*words, **more)

    monkeypatch.setattr(store, "replace_file", full)
    assert ended(engine, "demo").reason == "the process that ran the job was killed"
    assert (record_of(tmp_path, "demo")["phase"] == "FAILED") is room
    assert not processes.processes_of_job(uid)
    assert [one.phase for one in engine.jobs(None)] == [Phase.FAILED]
    assert engine.cluster().nodes[0].free == 0xFF
    engine.delete("demo", "default")
    assert engine.jobs(None) == ()


@pytest.mark.usefixtures("anew")
def test_the_processes_of_a_killed_supervisor_end_although_nobody_looks(engine, run, tmp_path):
    submit(engine, job("demo", "mpirun sleep 600"))
    uid = started(engine, "demo").uid
    until(engine, "demo", lambda _: len(processes.processes_of_job(uid)) > 8)
    os.kill(record_of(tmp_path, "demo")["supervisor"]["pid"], signal.SIGKILL)
    eventually(lambda: not processes.processes_of_job(uid))
    eventually(lambda: record_of(tmp_path, "demo")["phase"] == "FAILED")
    code, out, err = run("get", "demo", "--backend", "local")
    assert code == 0
    assert "The Job demo is FAILED: the process that ran the job was killed" in err
    assert out.count("Error") == 5
    assert "Completed" not in out


def test_a_job_that_ends_while_another_is_submitted_keeps_its_exit_code(engine, monkeypatch):
    submit(engine, job("demo", "while ! test -e go; do sleep 0.02; done; exit 0"))
    started(engine, "demo")
    alive = processes.alive

    def alive_after_the_end(supervisor: processes.Process) -> bool:
        """The job ends after its record was read, and before its supervisor is looked for."""
        Path("go").touch()
        eventually(lambda: not alive(supervisor))
        return alive(supervisor)

    wanted = job("other", LONG)
    cluster = engine.cluster()
    plan = render.build_plan(
        wanted,
        namespace="default",
        api=ApiVersion.V2BETA1,
        owner="me",
        files={},
        request=Request(workers=4, gpus=1),
        cluster=cluster,
        binding=engine.binding,
    )
    with monkeypatch.context() as patch:
        patch.setattr(processes, "alive", alive_after_the_end)
        engine.apply(plan)
    status = engine.job("demo", "default")
    assert (status.phase, status.exit_code, status.reason) == (Phase.SUCCEEDED, 0, None)


@pytest.mark.usefixtures("anew")
def test_delete_ends_even_what_will_not_listen_and_frees_the_name(engine):
    # The launcher ignores SIGTERM, and one child has left the session and lost its mark.
    hidden = "setsid env -i sh -c 'echo $$ > new; mv new hidden; exec sleep 600'"
    submit(engine, job("demo", f"trap '' TERM; {hidden} & while :; do sleep 1; done"))
    until(engine, "demo", lambda _: Path("hidden").exists())
    assert processes.process(int(Path("hidden").read_text())) is not None
    engine.delete("demo", "default")
    assert processes.process(int(Path("hidden").read_text())) is None
    assert engine.jobs(None) == ()
    assert engine.cluster().nodes[0].free == 0xFF
    submit(engine, job("demo", "exit 0"))
    assert ended(engine, "demo").exit_code == 0


def test_a_job_that_is_deleted_is_never_seen_to_fail(engine):
    # A long log takes a while to be kept, and the job is not there any more meanwhile.
    submit(engine, job("demo", "seq 1 300000; touch said; exec sleep 600"))
    eventually(Path("said").exists)
    # Its supervisor says that it runs a moment after it does.
    eventually(lambda: engine.job("demo", "default").phase is Phase.RUNNING)
    deleting = threading.Thread(target=engine.delete, args=("demo", "default"))
    deleting.start()
    seen = set()
    with suppress(NotFound):
        while True:
            seen.add(engine.job("demo", "default").phase)
            seen |= {one.phase for one in engine.jobs(None)}
    deleting.join()
    assert seen == {Phase.RUNNING}


def test_a_job_can_delete_itself(engine, tmp_path):
    delete = f"{sys.executable} -m arena_topo delete demo --backend local"
    submit(engine, job("demo", f"mpirun sleep 600 & {delete}; sleep 600"))
    eventually(lambda: engine.jobs(None) == ())
    nothing_runs(str(tmp_path / "state"))
    assert not list((tmp_path / "state/arena-topo/jobs").rglob("demo"))


def test_what_a_launcher_leaves_behind_ends_with_it(engine):
    submit(engine, job("demo", "sleep 600 & exit 0"))
    uid = ended(engine, "demo").uid
    assert not processes.processes_of_job(uid)


def test_a_supervisor_whose_job_is_gone_ends_its_pods(engine, tmp_path):
    submit(engine, job("demo", LONG))
    uid = started(engine, "demo").uid
    folder = tmp_path / "state/arena-topo/jobs/default/demo"
    folder.rename(tmp_path / "elsewhere")
    deadline = time.monotonic() + PATIENCE
    while processes.processes_of_job(uid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_jobs_of_another_machine_are_left_alone(engine, tmp_path):
    submit(engine, job("demo", "exit 0"))
    ended(engine, "demo")
    folder = tmp_path / "state/arena-topo/jobs/default/demo"
    submission = json.loads((folder / "submission.json").read_text())
    (folder / "submission.json").write_text(json.dumps(submission | {"host": "elsewhere"}))
    record = json.loads((folder / "record").read_text())
    record["record"] |= {"phase": "RUNNING", "finished": None}
    record["record"]["supervisor"]["boot"] = "another"
    (folder / "record").write_text(json.dumps(record))
    status = engine.job("demo", "default")
    assert (status.phase, status.reason) == (
        Phase.UNKNOWN,
        "it runs on elsewhere, which cannot be looked into from here",
    )
    assert engine.cluster().nodes[0].free == 0xFF


# ---------------------------------------------------------------------------- words and files


def test_a_name_can_be_used_once(engine):
    submit(engine, job("demo", LONG))
    with pytest.raises(AlreadyExists) as refused:
        submit(engine, job("demo", LONG))
    assert str(refused.value) == "job demo already exists"


def test_no_name_leads_out_of_the_state_folder(engine):
    for name, namespace in (
        ("..", "default"),
        ("a/b", "default"),
        ("demo", "../x"),
        ("", "default"),
    ):
        with pytest.raises(UsageError):
            engine.job(name, namespace)


def test_nobody_else_can_read_a_job(engine, tmp_path):
    submit(engine, job("demo", "exit 0"))
    ended(engine, "demo")
    modes = {(path.stat().st_mode & 0o077) for path in (tmp_path / "state/arena-topo").rglob("*")}
    assert modes == {0}


@pytest.mark.parametrize("state", ["/proc/nowhere", "/dev/null/state"])
def test_a_state_folder_that_cannot_be_written_is_said(monkeypatch, state):
    monkeypatch.setenv("XDG_STATE_HOME", state)
    other = open_local(Options(emulate="dgx-1-v100:2"))
    with pytest.raises(ArenaError) as refused:
        submit(other, job("demo", "exit 0"))
    assert refused.value.message == f"cannot keep local jobs in {state}/arena-topo"
    assert "XDG_STATE_HOME" in refused.value.hint


def test_a_submit_to_a_full_disk_says_so_and_leaves_nothing(engine, monkeypatch, tmp_path):
    def full(_descriptor, _start, count):
        assert count > 1 << 16
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArenaError) as refused:
        submit(engine, job("demo", "true"))
    assert refused.value.message == f"cannot keep local jobs in {tmp_path / 'state/arena-topo'}"
    assert refused.value.why == "No space left on device"
    assert engine.jobs(None) == ()


def test_the_last_output_that_a_full_disk_did_not_take_is_counted(engine, monkeypatch, tmp_path):
    room = tmp_path / "state/arena-topo/jobs/default/demo/room"
    write, replace_file = os.write, store.replace_file

    def checked() -> None:
        if room.exists() and Path(tmp_path / "work/full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def written(descriptor: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".log":
            checked()
        return write(descriptor, data)

    def replaced(*words, **more) -> None:
        checked()
        replace_file(*words, **more)

    # The supervisor is a fork of this process.
    monkeypatch.setattr(os, "write", written)
    monkeypatch.setattr(store, "replace_file", replaced)
    submit(engine, job("demo", "echo first; until test -s log; do sleep 0.02; done; exec sh end"))
    Path("end").write_text("touch full; echo lost; exit 3")
    eventually(lambda: "first" in log(engine, "demo"))
    Path("log").write_text("it is there")
    assert ended(engine, "demo").exit_code == 3
    assert log(engine, "demo") == (
        "first\narena-topo: 5 bytes are missing here, since they could not be written\n"
    )


def test_a_full_disk_keeps_no_launcher_from_its_next_try(engine, monkeypatch):
    replace_file, full = store.replace_file, Path("full").absolute()

    def replaced(*words, **more) -> None:
        if full.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(*words, **more)

    # The supervisor is a fork of this process.
    monkeypatch.setattr(store, "replace_file", replaced)
    again = "if test -e full; then sleep 0.5; rm full; exit 4; fi"
    first = "while ! test -e go; do sleep 0.02; done; touch full; exit 3"
    submit(engine, job("demo", f"{again}; {first}", retry=1))
    # A job stops at a disk that is full before it runs.
    started(engine, "demo")
    Path("go").touch()
    assert ended(engine, "demo").exit_code == 4


def test_the_cause_of_an_error_before_the_launcher_is_in_the_log_and_the_reason(
    engine, monkeypatch
):
    def refused(*_words, **_more) -> None:
        raise ArenaError("cannot start", why="No space left on device")

    monkeypatch.setattr(supervisor.Supervisor, "_prepare", refused)
    submit(engine, job("demo", "true"))
    assert ended(engine, "demo").reason == "cannot start: No space left on device"
    assert log(engine, "demo") == "arena-topo: cannot start: No space left on device\n"


def test_a_supervisor_that_cannot_write_the_end_of_its_job_ends_when_it_is_told(engine, tmp_path):
    submit(engine, job("demo", "while ! test -e go; do sleep 0.02; done; exit 3"))
    started(engine, "demo")
    supervisor = record_of(tmp_path, "demo")["supervisor"]["pid"]
    # Nothing can be written in the place of a folder, as nothing can on a full disk.
    record = tmp_path / "state/arena-topo/jobs/default/demo/record"
    record.unlink()
    record.mkdir()
    Path("go").touch()
    uid = json.loads((record.parent / "submission.json").read_text())["uid"]
    eventually(lambda: not processes.processes_of_job(uid))
    os.kill(supervisor, signal.SIGTERM)
    eventually(lambda: processes.process(supervisor) is None)
    engine.delete("demo", "default")


@pytest.mark.usefixtures("anew")
def test_files_that_a_job_writes_follow_the_submitters_umask(engine):
    before = os.umask(0o002)
    try:
        submit(engine, job("demo", "umask"))
    finally:
        os.umask(before)
    ended(engine, "demo")
    assert log(engine, "demo") == "0002\n"


def test_jobs_can_be_listed_while_others_come_and_go(engine):
    seen, failed = set(), []
    over = threading.Event()

    def look():
        while not over.is_set():
            try:
                seen.update(one.name for one in engine.jobs(None))
            except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
                failed.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    for name in ("one", "two", "three", "four"):
        submit(engine, job(name, "exit 0", workers=1))
        engine.delete(name, "default")
    over.set()
    looking.join()
    assert (failed, bool(seen)) == ([], True)


def test_the_priority_is_known_from_the_submission(engine, tmp_path):
    submit(engine, job("demo", "exit 0", priority="high"))
    submit(engine, job("plain", "exit 0"))
    ended(engine, "demo")
    # A delete at the same moment takes the files away one by one.
    (tmp_path / "state/arena-topo/jobs/default/demo/manifest.json").unlink()
    assert [one.priority for one in engine.jobs(None)] == ["N/A", "high"]


def test_jobs_are_listed_newest_first_by_namespace(engine):
    for name in ("one", "two"):
        submit(engine, job(name, "exit 0"))
    assert [one.name for one in engine.jobs("default")] == ["two", "one"]
    assert [one.name for one in engine.jobs(None)] == ["two", "one"]
    assert engine.jobs("other") == ()


def test_events_tell_the_jobs_story(engine):
    submit(engine, job("demo", "exit 7"))
    status = ended(engine, "demo")
    assert [(one.reason, one.source, one.kind, one.message) for one in engine.events(status)] == [
        ("Placed", "mpijob/demo", "Normal", "dgx-1-v100-0: 0,1,2,3"),
        ("Started", "mpijob/demo", "Normal", "4 workers ready for mpirun"),
        ("Started", "pod/demo-launcher", "Normal", "sh -c 'exit 7'"),
        ("Failed", "pod/demo-launcher", "Warning", "the launcher ended with exit code 7"),
    ]


# ---------------------------------------------------------------------------- machines


def test_what_to_emulate_is_the_flag_then_the_variable_then_the_published_cluster():
    assert scheduler.emulation("hgx-h100", {"ARENA_TOPO_EMULATE": "dgx-2"}) == "hgx-h100"
    assert scheduler.emulation(None, {"ARENA_TOPO_EMULATE": "dgx-2"}) == "dgx-2"


def test_emulated_machines_are_marked(engine):
    cluster = engine.cluster()
    assert cluster.emulated
    assert [node.name for node in cluster.nodes] == ["dgx-1-v100-0", "dgx-1-v100-1"]
    assert all(node.machine.model == "V100" for node in cluster.nodes)


SMI = """#!/bin/sh
if [ "$1" != topo ]; then
  echo "0, GPU-aa, Tesla V100-SXM2-16GB"
  echo "1, GPU-bb, Tesla V100-SXM2-16GB"
else
  printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tNV2\\t0-7\\nGPU1\\tNV2\\t X \\t0-7\\n'
fi
"""


@pytest.mark.usefixtures("engine")
def test_a_machine_with_nvidia_smi_is_itself_and_its_jobs_see_uuids(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler.this_machine.cache_clear()
    real = open_local(Options())
    (node,) = real.cluster().nodes
    assert (node.name, node.machine.model, str(node.machine.link(0, 1))) == (
        scheduler.host(),
        "V100",
        "NV2",
    )
    assert not real.cluster().emulated
    submit(real, job("demo", "mpirun sh -c 'echo $CUDA_VISIBLE_DEVICES'", workers=2))
    status = ended(real, "demo")
    assert sorted(log(real, "demo").split()) == ["GPU-aa", "GPU-bb"]
    assert (status.forecast.emulated, status.forecast.usable) == (False, 43.2)
    scheduler.this_machine.cache_clear()


@pytest.fixture
def smi(monkeypatch, tmp_path):
    """The file of a program nvidia-smi on the PATH; it fails as long as it cannot be run."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler.this_machine.cache_clear()
    yield tool
    scheduler.this_machine.cache_clear()


@pytest.mark.usefixtures("engine", "anew")
def test_a_job_that_waits_outlives_a_moment_in_which_the_gpus_cannot_be_listed(smi):
    real = open_local(Options())
    submit(real, job("busy", LONG, workers=2))
    smi.chmod(0o600)
    submit(real, job("next", "true", workers=2))
    until(real, "next", lambda status: "no GPUs that NVML" in str(status.reason))
    smi.chmod(0o700)
    real.delete("busy", "default")
    assert ended(real, "next").phase is Phase.SUCCEEDED


@pytest.mark.usefixtures("engine")
def test_a_program_that_found_no_gpus_once_asks_again(smi):
    smi.chmod(0o600)
    assert open_local(Options()).cluster().emulated
    smi.chmod(0o700)
    assert not open_local(Options()).cluster().emulated


def test_the_path_of_jobs_prefers_the_environment_that_was_called(monkeypatch):
    own = str(Path(sys.executable).parent)
    for started_as, first in (
        (f"{own}/arena-topo", True),
        ("/usr/lib/arena_topo/__main__.py", True),
        ("/home/me/.local/bin/arena-topo", False),
    ):
        monkeypatch.setattr(sys, "argv", [started_as])
        path = search_path({"PATH": "/conda/bin:/bin"})
        assert path == (f"{own}:/conda/bin:/bin" if first else f"/conda/bin:/bin:{own}")


# ---------------------------------------------------------------------------- the example


@pytest.mark.parametrize(
    ("text", "count"), [("4", 4), ("64K", 65536), ("4M", 4194304), ("1GiB", 1 << 30)]
)
def test_sizes_are_in_powers_of_1024(text, count):
    assert allreduce.parse_size(text) == count


@pytest.mark.parametrize("text", ["0", "-1", "4X", "", "1.5M"])
def test_a_size_that_is_none_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="is not a size such as 64K"):
        allreduce.parse_size(text)


def test_the_example_runs_for_as_long_as_asked_and_without_numpy(engine):
    Path("numpy.py").write_text("raise ImportError\n")
    submit(
        engine,
        job(
            "demo",
            "PYTHONPATH=$PWD mpirun -x PYTHONPATH -np 2"
            " python -m arena_topo.examples.allreduce --seconds 0.2 --rounds 1 --size 4K",
            workers=2,
        ),
    )
    assert ended(engine, "demo").exit_code == 0, log(engine, "demo")
    assert log(engine, "demo").count("Iter #") > 1


def test_a_wrong_sum_fails_the_example(engine):
    Path("wrong.py").write_text(
        "from arena_topo.examples import allreduce\n"
        "right = allreduce.buffer\n"
        "allreduce.buffer = lambda count, value: right(count, value and 7.0)\n"
        "allreduce.main()\n"
    )
    submit(engine, job("demo", "mpirun -np 2 python wrong.py", workers=2))
    assert ended(engine, "demo").exit_code == 1
    assert "wrong sum 14.0, expected 3.0" in log(engine, "demo")


def test_a_pause_between_two_tries_may_end_while_its_rest_is_worked_out(mocker):
    one = mocker.Mock(_deadline=math.inf, _job=mocker.Mock(is_marked=lambda _mark: False))
    one._signals.wait = lambda seconds: select.select([], [], [], seconds)
    supervisor.Supervisor._wait(one, -1e-6)


def test_why_asks_the_machines_that_a_job_was_submitted_for(engine):
    submit(engine, job("all", LONG, workers=16))
    assert submit(engine, job("whole", LONG, workers=8)).phase is Phase.PENDING
    # In another shell, without the flag.
    other = open_local(Options(emulate="dgx-a100:4"))
    found = explain_job(other, "whole", "default", now=time.time())
    assert found.verdict.code == Code.WAITING_FOR_GPUS
    assert "dgx-1-v100" in (found.verdict.why or "")
    assert found.turn is not None
    assert (found.turn.place, found.turn.of) == (1, 1)
