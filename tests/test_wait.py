"""Waiting for jobs: what is reached, what never will be, and what is said meanwhile."""

import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from fake_api import rfc3339
from proxy import Proxy, Trouble
from worlds import WORLDS, living_world

from arena_topo import cli
from arena_topo.cli.console import Console
from arena_topo.engines import Instance, JobStatus, Phase, goals
from arena_topo.engines.goals import Goal, Standing, goal_standing
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import job_watch
from arena_topo.errors import ClusterError
from arena_topo.manifests import PlacementForecast

REACHED, OPEN, LOST = Standing.REACHED, Standing.OPEN, Standing.LOST


def job(phase, *workers, **more):
    """A job with workers that are at work ("up"), have a node only ("node"), or nothing ("")."""
    instances = tuple(
        Instance(
            name=f"demo-worker-{index}",
            status="?",
            created=0.0,
            worker=index,
            node="a" if state else None,
            pending=state != "up",
        )
        for index, state in enumerate(workers)
    )
    base = {"uid": "1", "name": "demo", "namespace": "default", "created": 0.0}
    return JobStatus(**base, phase=phase, instances=instances, **more)


PLACED = PlacementForecast(state="placed")
WAITING = PlacementForecast(state="waiting")
JOBS = {
    "waits": job(Phase.PENDING, forecast=WAITING),
    "held": job(Phase.SUSPENDED, forecast=PlacementForecast(state="held")),
    "pulls": job(Phase.PENDING, "node", "node"),
    "placed": job(Phase.PENDING, forecast=PLACED),
    "half": job(Phase.RUNNING, "up", ""),
    "runs": job(Phase.RUNNING, "up", "up"),
    "unknown": job(Phase.UNKNOWN),
    "succeeded": job(Phase.SUCCEEDED),
    "failed": job(Phase.FAILED),
    "gone": None,
}


@pytest.mark.parametrize(
    ("goal", "reached", "lost"),
    [
        (Goal.FINISHED, "succeeded failed", "gone"),
        (Goal.SUCCEEDED, "succeeded", "failed gone"),
        (Goal.RUNNING, "runs succeeded", "failed gone"),
        (Goal.PLACED, "placed pulls runs succeeded", "failed gone"),
        (Goal.DELETED, "gone", ""),
    ],
)
def test_each_state_of_a_job_has_reached_a_goal_or_lost_it_or_may_still_reach_it(
    goal, reached, lost
):
    for name, status in JOBS.items():
        expected = REACHED if name in reached.split() else LOST if name in lost.split() else OPEN
        assert goal_standing(goal, status) is expected, name


def test_a_failed_job_that_was_placed_has_been_placed():
    assert goal_standing(Goal.PLACED, job(Phase.FAILED, forecast=PLACED)) is REACHED


# ---------------------------------------------------------------- on every engine


class Line:
    """The program on one world's engine."""

    def __init__(self, world, words, capfd, monkeypatch):
        self.world, self.words, self._capfd = world, words, capfd
        self.code, self.out, self.err = 0, "", ""
        self._acts = []
        # What `wait` says first is what it saw at its first look.
        info = Console.info
        monkeypatch.setattr(
            Console,
            "info",
            lambda console, *words, **more: self._said(info, console, *words, **more),
        )

    def __call__(self, *arguments):
        self._capfd.readouterr()
        self.code = cli.run([*self.words, *arguments])
        for thread in threading.enumerate():
            if thread.name == "act":
                thread.join()
        self.out, self.err = self._capfd.readouterr()
        return self

    def submit(self, name):
        made = self.world.job(name)
        self("submit", "mpi", f"--name={name}", "--image=local", made.command)
        assert self.code == 0, self.err

    def later(self, act, *arguments):
        """Let something happen once `wait` has had its first look."""
        self._acts.append((act, arguments))

    def _said(self, info, *words, **more):
        info(*words, **more)
        while self._acts:
            act, arguments = self._acts.pop()
            threading.Thread(target=act, args=arguments, name="act").start()


@contextmanager
def opened(which, folder, capfd, monkeypatch):
    with WORLDS[which](folder) as world:
        words = ["--backend=local", "--emulate=dgx-1-v100:2"]
        config = [f"--kubeconfig={folder / 'config'}"]
        yield Line(world, words if which == "local" else config, capfd, monkeypatch)


@pytest.fixture(params=WORLDS)
def line(request, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(kubernetes.KubernetesBackend, "look_every", 0.05)
    with opened(request.param, tmp_path, capfd, monkeypatch) as made:
        yield made


@pytest.fixture
def local(tmp_path, capfd, monkeypatch):
    with opened("local", tmp_path, capfd, monkeypatch) as made:
        yield made


@pytest.fixture
def living(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(kubernetes.KubernetesBackend, "look_every", 0.05)
    with living_world(tmp_path) as world:
        yield Line(world, [f"--kubeconfig={tmp_path / 'config'}"], capfd, monkeypatch)


def test_waiting_ends_with_the_job_and_with_the_code_of_its_launcher(line):
    line.submit("demo")
    line.world.start("demo")
    line.later(line.world.finish, "demo", 7)
    line("wait", "demo")
    assert (line.code, line.out) == (7, "mpijob.kubeflow.org/demo failed\n")
    told = line.err.splitlines()
    assert told[0] == "The Job demo is RUNNING"
    # The result and the error say how it ended; a message would be the same line once more.
    assert told[1:] == [
        "error: the job demo failed",
        "  why:  the launcher ended with exit code 7, and so does this command",
        "  try:  arena-topo why demo -n default",
    ]


def test_what_has_been_reached_already_is_not_waited_for(line):
    line.submit("demo")
    line.world.start("demo")
    line.world.finish("demo", 0)
    for goal, how in (
        ("finished", "succeeded"),
        ("succeeded", "succeeded"),
        ("running", "running"),
    ):
        line("wait", "demo", f"--for={goal}")
        assert (line.code, line.out) == (0, f"mpijob.kubeflow.org/demo {how}\n")


def test_a_goal_that_can_never_be_reached_any_more_ends_the_waiting(line):
    for name in ("one", "two"):
        line.submit(name)
        line.world.start(name)
    line.later(line.world.finish, "two", 3)
    line("wait", "one", "two", "--for=succeeded", "--timeout=20s")
    assert (line.code, line.out) == (1, "")
    assert line.err.endswith(
        "error: the job two failed\n  why:  the launcher ended with exit code 3\n"
        "  try:  arena-topo why two -n default\n"
    )


def test_all_jobs_are_waited_for_and_the_first_failure_is_the_exit_code(line):
    for name in ("one", "two", "three"):
        line.submit(name)
        line.world.start(name)
    line.world.finish("three", 4)
    line.world.finish("two", 3)
    line.later(line.world.finish, "one", 0)
    line("wait", "one", "two", "three")
    assert line.code == 3
    assert sorted(line.out.splitlines()) == [
        "mpijob.kubeflow.org/one succeeded",
        "mpijob.kubeflow.org/three failed",
        "mpijob.kubeflow.org/two failed",
    ]
    assert "error: the job two failed" in line.err
    assert "error: the job three failed" in line.err


def test_more_jobs_than_a_few_are_read_with_one_list(line):
    names = [f"job-{index}" for index in range(5)]
    for name in names:
        line.submit(name)
        line.world.start(name)
        line.world.finish(name, 0)
    requests = getattr(getattr(line.world, "api", None), "requests", [])
    requests.clear()
    line("wait", *names)
    assert line.code == 0
    assert len(line.out.splitlines()) == 5
    assert not any("/mpijobs/job-" in one for one in requests)


def test_a_job_that_runs_has_all_its_workers(line):
    line.submit("demo")
    line.later(line.world.start, "demo")
    line("wait", "demo", "--for=running", "--timeout=20s")
    assert (line.code, line.out) == (0, "mpijob.kubeflow.org/demo running\n")


def test_deleted_is_reached_by_a_job_that_goes_and_by_one_that_never_was(line):
    line.submit("demo")
    line.later(line.world.backend.delete, "demo", "default")
    line("wait", "demo", "never", "--for=deleted", "--timeout=20s")
    assert line.code == 0
    assert sorted(line.out.splitlines()) == [
        "mpijob.kubeflow.org/demo deleted",
        "mpijob.kubeflow.org/never deleted",
    ]


def test_a_job_that_is_deleted_meanwhile_has_lost_every_other_goal(line):
    line.submit("demo")
    line.later(line.world.backend.delete, "demo", "default")
    line("wait", "demo", "--timeout=20s")
    assert (line.code, line.out) == (1, "")
    assert line.err.endswith("error: the job demo was deleted while it was waited for\n")


def test_another_job_of_the_same_name_is_not_the_one_that_was_waited_for(local):
    def replaced():
        local.world.backend.delete("demo", "default")
        (local.world._folder / "demo").unlink()
        again = local.world.job("demo")
        local.world.backend.apply(local.world.plan(again))

    local.submit("demo")
    local.later(replaced)
    local("wait", "demo", "--for=deleted", "--timeout=20s")
    assert local.code == 0


def test_a_job_that_is_not_there_is_an_error_at_once(line):
    line.submit("demo")
    line("wait", "demo", "dema", "--timeout=20s")
    assert line.code == 1
    assert line.err.endswith(
        "error: no job dema in namespace default\n  try:  did you mean demo?\n"
        "  arena: Not found training job dema in namespace default,"
        "please use 'arena submit' to create it.\n"
    )


def test_time_that_is_over_names_where_each_job_stands(line):
    for name in ("one", "two"):
        line.submit(name)
        line.world.start(name)
    line.world.finish("two", 0)
    line("wait", "one", "two", "--timeout=1s")
    assert line.code == 6
    assert line.out == "mpijob.kubeflow.org/two succeeded\n"
    assert line.err.endswith(
        "error: 1 of 2 jobs are not finished after 1 s\n  why:  one is RUNNING\n"
        "  try:  the job goes on; see arena-topo get one -n default\n"
    )


def test_quiet_leaves_the_names_of_what_has_been_reached(line):
    line.submit("demo")
    line.world.start("demo")
    line.world.finish("demo", 0)
    line("wait", "demo", "-q")
    assert (line.code, line.out, line.err) == (0, "mpijob.kubeflow.org/demo\n", "")


def test_a_gang_is_placed_when_it_has_its_nodes(living):
    gang = ("--gputopology", "--gpus=8", "--workers=2", "--image=i")
    living("submit", "mpi", "--name=first", *gang, "c")
    living("submit", "mpi", "--name=demo", *gang, "c")
    living("wait", "first", "--for=placed", "--timeout=20s")
    assert (living.code, living.out) == (0, "mpijob.kubeflow.org/first placed\n")
    living("wait", "demo", "--for=placed", "--timeout=1s")
    assert living.code == 6
    assert living.err.splitlines()[-2:] == [
        living.err.splitlines()[-2],
        "  try:  start it once it fits: arena-topo resume demo -n default",
    ]


def test_who_waits_for_a_gang_that_nobody_starts_hears_how_to_start_it(living):
    gang = ("--gputopology", "--gpus=8", "--workers=2", "--image=i")
    living("submit", "mpi", "--name=first", *gang, "c")
    living("submit", "mpi", "--name=demo", *gang, "c")
    living("wait", "demo", "--timeout=1s")
    assert "start it once it fits: arena-topo resume demo -n default\n" in living.err
    living("wait", "demo", "--for=deleted", "--timeout=1s")
    assert "once it fits" not in living.err


# ---------------------------------------------------------------- what to do when time is over


def test_a_suspended_job_does_not_go_on_before_it_is_resumed(living):
    living("submit", "mpi", "--name=demo", "--gputopology", "--gpus=2", "--image=i", "c")
    living("suspend", "demo")
    living("wait", "demo", "--timeout=0.5s")
    assert living.code == 6
    assert living.err.splitlines()[-1] == (
        "  try:  start it once it fits: arena-topo resume demo -n default"
    )


def test_a_job_that_others_suspended_is_resumed_by_whoever_may(living):
    living.submit("demo")
    living.world.api.find("MPIJob", "demo")["spec"].setdefault("runPolicy", {})["suspend"] = True
    living("wait", "demo", "--timeout=1.5s")
    assert living.code == 6
    assert living.err.splitlines()[-1] == (
        "  try:  start it once it fits: arena-topo resume demo -n default"
    )


def test_a_job_that_the_controller_starts_is_left_to_it(living):
    gang = ("--gputopology", "--gpus=8", "--workers=2", "--image=i")
    living("submit", "mpi", "--name=first", *gang, "c")
    living("submit", "mpi", "--name=demo", *gang, "c")
    now = rfc3339(time.time())
    lease = {"holderIdentity": "one", "renewTime": now}
    meta = {"name": "arena-topo-controller", "namespace": "arena-topo-system"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "arena-topo-system"}}
    living.world.api.add(space)
    living.world.api.add({"kind": "Lease", "metadata": meta, "spec": lease})
    living("wait", "demo", "--timeout=1.5s")
    assert living.code == 6
    assert living.err.splitlines()[-1] == (
        "  try:  the controller starts it once it fits: arena-topo get demo -n default"
    )


@pytest.mark.parametrize("over", [False, True])
def test_a_job_that_nobody_deletes_is_not_deleted_by_waiting(line, over):
    line.submit("demo")
    line.world.start("demo")
    if over:
        line.world.finish("demo", 3)
    line("wait", "demo", "--for=deleted", "--timeout=0.5s")
    assert line.code == 6
    assert line.err.splitlines()[-1] == ("  try:  see arena-topo get demo -n default")


def test_for_several_jobs_that_are_left_the_list_is_named(living):
    gang = ("--gputopology", "--gpus=1", "--image=i")
    for name in ("one", "two", "three"):
        living("submit", "mpi", f"--name={name}", *gang, "c")
    living("suspend", "one", "three")
    living("wait", "one", "two", "three", "--timeout=0.5s")
    assert living.code == 6
    assert living.err.splitlines()[-1] == ("  try:  see arena-topo list -n default")


def test_the_error_of_what_is_done_at_each_look_does_not_end_the_waiting(line):
    line.submit("demo")
    looks = []

    def each():
        looks.append(len(looks))
        if len(looks) == 1:
            line.world.start("demo")
            line.world.finish("demo", 0)
        raise ClusterError("this is not for you", status=500)

    status = goals.wait_for_job(
        line.world.backend, "demo", "default", timeout=20.0, hears=goals.Listener(each=each)
    )
    assert status.phase is Phase.SUCCEEDED
    assert len(looks) >= 2


# ---------------------------------------------------------------- who may not list


def test_who_may_not_list_jobs_waits_for_many_by_looking_at_each(faulty):
    names = [f"job-{index}" for index in range(5)]
    for name in names:
        faulty("submit", "mpi", f"--name={name}", "--image=i", "c")
        faulty.world.start(name)
        faulty.world.finish(name, 0)
    faulty.proxy.fail("GET .*/mpijobs($|[?])", status=403, reason="Forbidden", times=99)
    faulty("wait", *names)
    assert faulty.code == 0, faulty.err
    assert len(faulty.out.splitlines()) == 5


def test_who_may_not_list_is_refused_the_list_once_and_not_at_each_look(faulty):
    names = [f"job-{index}" for index in range(4)]
    for name in names:
        faulty("submit", "mpi", f"--name={name}", "--image=i", "c")
        faulty.world.start(name)
    faulty.proxy.fail("GET .*/mpijobs($|[?])", status=403, reason="Forbidden", times=99)
    faulty.proxy.requests.clear()
    faulty("wait", *names, "--timeout=1s")
    assert faulty.code == 6
    asked = [one for one in faulty.proxy.requests if re.search("/mpijobs($|[?])", one)]
    assert len([one for one in asked if "watch=1" not in one]) == 1
    # Nor is the watch of a job asked for again.
    assert len([one for one in asked if "watch=1" in one]) == 4


# ---------------------------------------------------------------- a server in trouble


@pytest.fixture
def faulty(tmp_path, capfd, monkeypatch):
    """A living cluster behind a proxy; the line talks to the proxy."""
    monkeypatch.setattr(kubernetes.KubernetesBackend, "look_every", 0.05)
    with living_world(tmp_path) as world:
        proxy = Proxy(tmp_path / "config")
        config = proxy.kubeconfig(tmp_path / "proxied")
        made = Line(world, [f"--kubeconfig={config}"], capfd, monkeypatch)
        made.proxy = proxy
        yield made
        proxy.close()


HANGS = (
    ("wait", "demo"),
    ("get", "demo"),
    ("get", "demo", "--watch"),
    ("list",),
    ("logs", "-f", "demo"),
    ("delete", "demo"),
    ("why", "demo"),
    ("submit", "mpi", "--name=other", "--image=i", "c"),
    ("submit", "mpi", "--name=other", "--image=i", "--gputopology", "--gpus=1", "c"),
    ("submit", "mpi", "--name=other", "--image=i", "--wait", "c"),
    ("submit", "mpi", "--name=demo", "--image=i", "--exists=ok", "c"),
    ("submit", "mpi", "--name=demo", "--image=i", "--exists=replace", "c"),
    ("suspend", "demo"),
    ("resume", "demo", "--wait"),
)


@pytest.mark.parametrize("words", HANGS, ids=" ".join)
def test_a_server_that_hangs_holds_no_command_beyond_its_time(faulty, words):
    faulty("submit", "mpi", "--name=demo", "--image=i", "c")
    # Nothing else than --timeout would end these.
    faulty.proxy.slow(".", 600, times=1000)
    faulty(*words, "--timeout=1s", "--request-timeout=0")
    assert faulty.code == 6
    assert "error: " in faulty.err
    assert "Traceback" not in faulty.err


def test_a_watched_job_that_nobody_saw_may_be_there_or_not(faulty):
    faulty.proxy.slow(".", 600, times=1000)
    faulty("get", "demo", "--watch", "--timeout=1s", "--request-timeout=0")
    assert (faulty.code, faulty.err) == (
        6,
        (
            "Could not check whether job demo exists (no answer); check with:"
            " arena-topo get demo -n default\n"
            "error: --timeout is over\n  try:  allow more with --timeout\n"
        ),
    )


def test_a_job_to_wait_for_that_nobody_saw_does_not_go_on(faulty):
    faulty.proxy.slow(".", 600, times=1000)
    faulty("wait", "demo", "--timeout=1s", "--request-timeout=0.3s")
    assert (faulty.code, faulty.err) == (
        6,
        (
            "warning: API server not reachable, retrying: "
            f"{faulty.proxy.url} did not answer in time\n"
            "error: job demo is out of sight after 1 s\n"
            "  try:  see arena-topo get demo -n default\n"
        ),
    )


def test_each_spell_in_which_nothing_is_seen_is_told_once(faulty, monkeypatch):
    faulty.submit("demo")
    # Who may not watch looks at the job every so often.
    monkeypatch.setattr(job_watch, "REREAD", 0.05)
    faulty.proxy.fail("watch=1", status=403, reason="Forbidden", times=99)
    looks = "GET .*/mpijobs/demo"
    for skip in (3, 8):
        faulty.proxy.troubles.append(Trouble(match=looks, times=2, delay=600, skip=skip))
    faulty.proxy.requests.clear()

    def finish():
        # It ends by what has happened, however long that takes on a busy machine.
        while sum(bool(re.match(looks, one)) for one in tuple(faulty.proxy.requests)) < 18:
            time.sleep(0.02)
        faulty.world.finish("demo", 0)

    threading.Thread(target=finish, name="act", daemon=True).start()
    faulty("wait", "demo", "--timeout=60s", "--request-timeout=0.6s")
    assert faulty.code == 0, faulty.err
    said = [line for line in faulty.err.splitlines() if line.startswith("warning: ")]
    blind = f"API server not reachable, retrying: {faulty.proxy.url} did not answer in time"
    assert said == [f"warning: {blind}"] * 2


def test_a_log_that_falls_silent_ends_with_the_time_of_the_command(faulty):
    faulty("submit", "mpi", "--name=demo", "--image=i", "c")
    faulty.world.start("demo")
    faulty("logs", "-f", "demo", "--timeout=2s")
    assert faulty.code == 6
    assert "The job demo goes on. Come back: arena-topo logs -f demo -n default" in faulty.err


@pytest.mark.parametrize("asked", ["mpijobs/demo", "pods.*watch"])
def test_a_log_whose_server_falls_silent_ends_with_the_time_of_the_command_too(faulty, asked):
    faulty("submit", "mpi", "--name=demo", "--image=i", "c")
    faulty.world.start("demo")
    faulty.proxy.troubles.append(Trouble(match=f"GET .*/{asked}", times=99, delay=600, skip=1))
    faulty("logs", "-f", "demo", "--timeout=2s")
    assert faulty.code == 6
    back, end = "arena-topo logs -f demo -n default", "arena-topo delete demo -n default"
    assert faulty.err.splitlines()[-3:] == [
        f"The job demo goes on. Come back: {back}; delete it: {end}",
        "error: --timeout is over",
        "  try:  allow more with --timeout",
    ]


def test_a_server_that_stumbles_does_not_end_the_waiting(faulty):
    faulty("submit", "mpi", "--name=demo", "--image=i", "c")
    faulty.world.start("demo")
    faulty.proxy.fail("GET .*/mpijobs/demo", status=503, retry_after=9999, times=2)
    faulty.later(faulty.world.finish, "demo", 0)
    faulty("wait", "demo")
    assert faulty.code == 0


def test_the_local_engine_keeps_to_the_time_of_a_command_too(local):
    local.submit("demo")
    local.world.start("demo")
    local("logs", "-f", "demo", "--timeout=1s")
    assert local.code == 6
    assert "error: --timeout is over" in local.err


def test_a_time_that_is_over_is_no_limit_for_what_comes_after_it(local):
    local.submit("demo")
    local("wait", "demo", "--timeout=0.2s")
    assert local.code == 6
    time.sleep(1)
    assert local("list").code == 0


def test_waiting_takes_no_rich(tmp_path):
    program = (
        "import sys; from arena_topo import cli;"
        " code = cli.run(['--backend=local', 'wait', 'x', '--for=deleted']);"
        " sys.exit(code or int('rich' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert done.returncode == 0
