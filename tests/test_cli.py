"""The program as a whole: a command line in, exact stdout, stderr and exit code out."""

import io
import json
import os
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import program
import pytest
from replacing import replace

from arena_topo import cli
from arena_topo.engines import Event, Instance, JobStatus, Phase, engine_choice, goals
from arena_topo.engines.occupancy import Occupancy
from arena_topo.engines.polling import RereadJobs
from arena_topo.errors import AccessDenied, AlreadyExists, ClusterError, JobNotFound
from arena_topo.manifests import Mechanisms
from arena_topo.manifests.versions import ApiVersion
from arena_topo.topology import Cluster, Node, NodeName, gpu_set, presets

SCREENS = Path(__file__).parent / "screens"

CREATED = 1795244400.0  # 2026-11-21 07:00:00 UTC

GANG = ("--name=demo", "--gpus=1", "--workers=4", "--gang", "--gputopology", "--image=local")


class FakeBackend:
    """A whole cluster in memory: one DGX-1 V100, on which jobs run at once and for ever.

    `ends` is how a job stands when it is next looked at, by name.
    """

    name = place = "fake"
    look_every = 0.01
    starts_waiting = True
    pausing = None
    binding = None
    queue = None

    def __init__(self, free=range(8)):
        machine = presets.preset_machine("dgx-1-v100", "dgx-0")
        node = Node(name=NodeName("dgx-0"), machine=machine, free=gpu_set(free))
        self.gpu_nodes = (node,)
        self.known = {}
        self.plans = []
        self.ends = {}
        self.refusal = None

    def close(self):
        pass

    def default_namespace(self):
        return "default"

    def watching(self, namespace):
        return RereadJobs(self, namespace)

    def owner(self, *, tell=None):
        del tell
        return "kubernetes-admin"

    def api_version(self):
        return ApiVersion.V2BETA1

    def machines(self):
        return ()

    def metrics(self, _namespace=None, **_more):
        return ()

    def mechanisms(self, _namespace):
        return Mechanisms(admission=False, patches=False)

    def remarks(self, _job):
        return ()

    def cluster(self):
        return Cluster(nodes=self.gpu_nodes, notes=("a ConfigMap made no sense",))

    def nodes(self):
        return Occupancy(nodes=(), cluster=self.cluster())

    def apply(self, plan):
        if self.refusal is not None:
            raise self.refusal
        name, namespace = plan.job.name, plan.namespace
        if (name, namespace) in self.known:
            raise AlreadyExists(
                f"the job {name} is already exist, please delete it first."
                f" use 'arena-topo delete {name}'"
            )
        self.plans.append(plan)
        waiting = plan.waiting is not None
        self.known[name, namespace] = JobStatus(
            uid="6c0f0a2e",
            name=name,
            namespace=namespace,
            phase=Phase.PENDING if waiting else Phase.RUNNING,
            created=CREATED,
            request_gpus=plan.job.total_gpus,
            allocated_gpus=0 if waiting else plan.job.total_gpus,
            forecast=plan.forecast,
            reason=plan.waiting,
            instances=()
            if waiting
            else (
                Instance(
                    name=f"{name}-launcher",
                    status="Running",
                    created=CREATED,
                    started=CREATED,
                    chief=True,
                    node="dgx-0",
                    node_ip="10.0.0.1",
                ),
            ),
        )
        return (f"mpijob.kubeflow.org/{name}",)

    def job(self, name, namespace):
        if self.refusal is not None:
            raise self.refusal
        if (name, namespace) not in self.known:
            raise JobNotFound(name, namespace)
        status = self.known[name, namespace]
        changes = self.ends.get(name)
        if changes:
            self.known[name, namespace] = replace(status, **changes.pop(0))
        return status

    def jobs(self, namespace, _selector=""):
        return tuple(one for key, one in self.known.items() if namespace in {None, key[1]})

    def delete(self, name, namespace, *, uid=None, tell=None):
        del uid, tell
        if self.known.pop((name, namespace), None) is None:
            raise JobNotFound(name, namespace)

    def administrators(self, namespace):
        del namespace
        return frozenset()

    def events(self, job):
        source = f"pod/{job.name}-worker-0"
        return (
            Event(
                source=source, kind="Normal", when=CREATED, reason="Pulled", message="Image is here"
            ),
        )


@pytest.fixture
def world(monkeypatch):
    """The program with its engine replaced by a cluster in memory, at five past seven."""
    fake = FakeBackend()
    monkeypatch.setattr(engine_choice, "open_backend", lambda _options, **_more: fake)
    monkeypatch.setattr(time, "time", lambda: CREATED + 5)
    time.tzset()
    return fake


def screen(name):
    return (SCREENS / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- submit and plan


def test_a_submitted_gang_shows_what_was_created_and_where_it_went(arena, world):
    code, out, err = arena("submit", "mpi", *GANG, "mpirun -np 4 true")
    assert (code, out) == (0, "mpijob.kubeflow.org/demo created\n")
    assert err == screen("submit.stderr.txt")
    planned = json.loads(arena("plan", "mpi", *GANG, "-o", "json", "c")[1])
    assert err.splitlines()[-1] == f"Advice: {planned['advice'][0]}"
    assert world.plans[0].job.command == "mpirun -np 4 true"


def test_names_alone_are_printed_when_asked_for(arena, world):
    code, out, _err = arena("submit", "mpi", *GANG, "-o", "name", "c")
    assert (code, out.splitlines()[0]) == (0, "mpijob.kubeflow.org/demo")
    assert len(world.plans) == 1


def test_a_gang_that_must_wait_is_submitted_pending_with_the_reason(arena, world):
    world.gpu_nodes = (replace(world.gpu_nodes[0], free=gpu_set((0, 5))),)
    code, out, err = arena("submit", "mpi", *GANG, "c")
    assert (code, out) == (0, "mpijob.kubeflow.org/demo created\n")
    pending, change, starter = err.splitlines()[-3:]
    assert pending.startswith("The Job demo is PENDING: 4 workers x 1 GPU cannot be placed now: ")
    assert "made no sense" not in pending
    assert change == (
        "  try:  fits now with --workers 2; or when 2 more GPUs of node dgx-0 are free"
    )
    assert starter == "  It starts by itself once it can."
    assert "Placement:" not in err


def test_who_waits_for_a_gang_reads_that_it_is_pending_before_what_starts_it_and_once(arena, world):
    world.gpu_nodes = (replace(world.gpu_nodes[0], free=gpu_set((0, 5))),)
    code, _out, err = arena("submit", "mpi", *GANG, "--wait", "--timeout=1s", "c")
    assert code == 6
    lines = [line.partition(":")[0].strip() for line in err.splitlines()]
    assert lines.count("The Job demo is PENDING") == 1
    assert lines.index("The Job demo is PENDING") < lines.index("It starts by itself once it can.")


def test_why_a_job_waits_is_said_once(arena, world):
    world.gpu_nodes = (replace(world.gpu_nodes[0], free=gpu_set((0, 5))),)
    arena("submit", "mpi", *GANG, "c")
    _code, out, err = arena("get", "demo")
    assert (out + err).count("4 workers x 1 GPU cannot be placed now") == 1


@pytest.mark.parametrize("engine", ["--emulate=dgx-1-v100", "--backend=local"])
def test_a_dump_and_an_engine_exclude_each_other(arena, engine):
    code, out, err = arena("plan", "mpi", *GANG, "--state=dump.json", engine, "c")
    assert (code, out) == (2, "")
    flag = engine.partition("=")[0]
    assert err.startswith(f"error: --state and {flag} exclude each other\n")


def test_a_dump_is_read_whatever_engine_a_variable_names(arena, monkeypatch):
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100")
    monkeypatch.setenv("ARENA_TOPO_BACKEND", "local")
    code, out, err = arena("plan", "mpi", *GANG, "--state=no-such.json", "c")
    assert (code, out) == (2, "")
    assert err.startswith("error: no-such.json: cannot be read: ")


def test_a_gang_that_never_fits_ends_with_5_and_nothing_is_created(arena, world):
    code, out, err = arena("submit", "mpi", *GANG, "--workers=9", "c")
    assert (code, out) == (5, "")
    assert err == (
        "note: a ConfigMap made no sense\n"
        "error: 9 workers x 1 GPU can never be placed on this cluster\n"
        "  why:  1 node (dgx-0): room for some workers, and nowhere for the rest\n"
        "  try:  fits now with --workers 8\n"
    )
    assert not world.known


def test_a_name_that_is_taken_gets_the_text_that_arenas_sdk_looks_for(arena, world):
    arena("submit", "mpi", *GANG, "c")
    code, out, err = arena("submit", "mpi", *GANG, "c")
    assert (code, out) == (1, "")
    assert "the job demo is already exist, please delete it first." in err
    assert len(world.plans) == 1


@pytest.mark.usefixtures("world")
def test_a_plan_is_the_table_of_ranks_a_drawing_and_what_it_is_measured_against(arena):
    code, out, _err = arena("plan", "mpi", *GANG, "c")
    assert (code, out) == (0, screen("plan.txt"))


@pytest.mark.usefixtures("world")
def test_a_plan_in_json_has_the_placement_that_get_shows(arena):
    code, out, _err = arena("plan", "mpi", *GANG, "-o", "json", "c")
    assert (code, out) == (0, screen("plan.json"))
    planned = json.loads(out)
    arena("submit", "mpi", *GANG, "c")
    _code, got, _err = arena("get", "demo", "-o", "json")
    shown = json.loads(got)["placement"]
    assert shown["bandwidth"].items() <= planned["bandwidth"].items()
    same = shown.keys() - {"state", "reason", "bandwidth"}
    assert {key: planned[key] for key in same} == {key: shown[key] for key in same}


def test_a_plan_that_fits_later_but_not_now_ends_with_3(arena, world):
    world.gpu_nodes = (replace(world.gpu_nodes[0], free=gpu_set((0, 5))),)
    code, out, err = arena("plan", "mpi", *GANG, "c")
    assert (code, out) == (3, "")
    assert err.splitlines()[:2] == [
        "note: a ConfigMap made no sense",
        "error: 4 workers x 1 GPU cannot be placed now",
    ]


def test_a_plan_of_a_job_without_gpus_says_that_it_asks_for_none(arena, world):
    code, out, err = arena("plan", "mpi", "--name=demo", "--image=i", "c")
    assert (code, out) == (0, "")
    assert err == "The job demo asks for no GPUs: add --gpus N.\n"
    assert not world.plans


def test_a_dry_run_prints_the_objects_and_creates_nothing(arena, world):
    code, out, err = arena("submit", "mpi", *GANG, "--dry-run", "c")
    assert code == 0
    assert out.startswith("apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\n")
    assert err == (
        "note: a ConfigMap made no sense\n"
        "Nothing was created. If you apply this yourself, another submission may take the same"
        " GPUs.\n"
    )
    assert not world.plans


def test_a_dry_run_in_json_can_be_read_by_programs(arena, world):
    code, out, _err = arena("submit", "mpi", *GANG, "--dry-run=client", "-o=json", "c")
    assert code == 0
    assert json.loads(out)
    assert not world.plans


def test_a_dry_run_never_takes_the_command_for_its_value(arena, world):
    arena("submit", "mpi", *GANG, "--dry-run", "client")
    assert not world.plans


@pytest.mark.usefixtures("world")
def test_a_dump_is_only_for_looking(arena):
    code, _out, err = arena("submit", "mpi", *GANG, "--state=dump.json", "c")
    assert code == 2
    assert err.startswith("error: --state needs --dry-run\n")


def test_the_names_of_arena_v2_are_other_names_of_the_same_commands(arena):
    dry = ("--dry-run", "-o", "json", *GANG, "c")
    assert arena("job", "run", *dry) == arena("submit", "mpi", *dry)
    assert arena("submit", "mpi", *GANG, "c")[0] == 0
    assert arena("job", "status", "demo", "-o", "name") == arena("get", "demo", "-o", "name")
    assert arena("job", "stat")[2].endswith("did you mean status?\n")


def test_waiting_tells_each_change_and_ends_with_the_launchers_code(arena, world):
    world.ends["demo"] = [
        {"phase": Phase.PENDING, "reason": "pulling images"},
        {"phase": Phase.RUNNING, "reason": None},
        {"phase": Phase.FAILED, "exit_code": 7, "reason": None},
    ]
    code, _out, err = arena("submit", "mpi", *GANG, "--wait", "c")
    assert code == 7
    assert err.splitlines()[-6:] == [
        "The Job demo is PENDING: pulling images",
        "The Job demo is RUNNING",
        "The Job demo is FAILED",
        "error: the job demo failed",
        "  why:  the launcher ended with exit code 7, and so does this command",
        "  try:  arena-topo why demo -n default",
    ]


def test_the_exit_code_of_a_job_can_be_told_from_ours(arena, world):
    world.ends["demo"] = [{"phase": Phase.FAILED, "exit_code": 3}]
    code, out, _err = arena("submit", "mpi", *GANG, "--wait", "-o", "json", "c")
    found = json.loads(out)
    assert (code, found["status"], found["exitCode"]) == (3, "FAILED", 3)
    never = (*GANG, "--workers=400")
    code, out, _err = arena("submit", "mpi", *never, "--wait", "-o", "json", "c")
    assert (code, out) == (5, "")


def test_waiting_for_a_job_that_succeeds_ends_with_0(arena, world):
    world.ends["demo"] = [{"phase": Phase.SUCCEEDED, "exit_code": 0}]
    code, _out, err = arena("submit", "mpi", *GANG, "--wait", "c")
    assert (code, err.splitlines()[-1]) == (0, "The Job demo is SUCCEEDED")


@pytest.mark.usefixtures("world")
def test_waiting_too_long_ends_with_6_and_the_job_goes_on(arena):
    code, _out, err = arena("submit", "mpi", *GANG, "--wait", "--timeout=0s", "c")
    assert code == 6
    assert "try:  the job goes on; see arena-topo get demo -n default" in err


@pytest.mark.parametrize(
    ("created", "refusal", "said"),
    [
        (False, None, "Nothing was created."),
        (True, None, "A job demo exists, maybe incomplete; delete it: arena-topo delete demo -n x"),
        (
            False,
            ClusterError("no answer"),
            (
                "Could not check whether job demo was created (no answer); check with:"
                " arena-topo get demo -n x"
            ),
        ),
    ],
)
def test_what_is_interrupted_while_it_is_created_says_what_is_there(
    created, refusal, said, arena, world
):
    create = world.apply

    def interrupted(plan):
        if created:
            create(plan)
        world.refusal = refusal
        raise KeyboardInterrupt

    world.apply = interrupted
    assert arena("submit", "mpi", *GANG, "-n", "x", "c") == (130, "", f"{said}\n")


def test_resuming_what_runs_says_so_and_is_no_error(arena, world):
    arena("submit", "mpi", *GANG, "c")
    assert arena("resume", "demo") == (0, "", "demo runs already\n")
    # One whose worker is not there yet is helped; here no queue can do that.
    [launcher] = world.known["demo", "default"].instances
    late = Instance(name="demo-worker-0", status="SchedulingGated", created=CREATED, pending=True)
    world.ends["demo"] = [{}, {}]
    world.known["demo", "default"] = replace(
        world.known["demo", "default"], instances=(launcher, late)
    )
    code, out, err = arena("resume", "demo")
    assert (code, out) == (1, "")
    assert err.startswith("error: jobs of this engine cannot be suspended or resumed\n")


def test_an_interrupted_wait_says_how_to_come_back(arena, world, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(goals, "wait_for_job", interrupted)
    code, _out, err = arena("submit", "mpi", *GANG, "--wait", "c")
    assert code == 130
    assert err.splitlines()[-1] == (
        "The job demo goes on. Come back: arena-topo logs -f demo -n default;"
        " delete it: arena-topo delete demo -n default"
    )
    assert ("demo", "default") in world.known


@pytest.mark.parametrize("kind", ["tfjob", "pytorch", "horovod", "volcano", "et", "spark", "ray"])
@pytest.mark.usefixtures("world")
def test_other_kinds_of_jobs_are_refused_clearly(kind, arena):
    code, out, err = arena("submit", kind, "--name=x", "c")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot submit {kind} jobs: only MPI jobs are supported\n")


# ---------------------------------------------------------------- get, list, logs, delete


@pytest.mark.usefixtures("world")
def test_a_job_is_shown_with_its_placement_and_events(arena):
    arena("submit", "mpi", *GANG, "c")
    code, out, err = arena("get", "demo", "--type", "mpijob", "-e")
    assert (code, out, err) == (0, screen("get.txt"), "")


@pytest.mark.usefixtures("world")
def test_json_of_a_job_ends_without_a_new_line_as_arenas_does(arena):
    arena("submit", "mpi", *GANG, "c")
    code, out, _err = arena("get", "demo", "-o", "json")
    assert code == 0
    assert list(json.loads(out))[-2:] == ["reservedBy", "exitCode"]
    assert out.endswith("\n}")


@pytest.mark.parametrize("kind", [(), ("-T", "tfjob"), ("-T", "MPI")])
@pytest.mark.usefixtures("world")
def test_a_missing_job_gets_the_text_that_arenas_sdk_looks_for(kind, arena):
    code, out, err = arena("get", "ghost", "-n", "ns1", *kind)
    assert (code, out) == (1, "")
    assert err == (
        "error: no job ghost in namespace ns1\n"
        "  try:  arena-topo list -n ns1 shows its jobs, with -A those of all namespaces\n"
        "  arena: Not found training job ghost in namespace ns1,"
        "please use 'arena submit' to create it.\n"
    )


@pytest.mark.parametrize("command", ["get", "logs", "delete"])
@pytest.mark.usefixtures("world")
def test_a_command_about_a_job_without_a_name_fails_and_says_on_stderr_how_it_is_used(
    command, arena
):
    code, out, err = arena(command)
    assert (code, out) == (2, "")
    said, tries = err.splitlines()
    assert said == "error: no job is named"
    assert tries.startswith(f"  try:  arena-topo {command} ")
    code, out, err = arena(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: arena-topo {command} ")


@pytest.mark.usefixtures("world")
def test_the_list_shows_jobs_of_one_namespace_or_all(arena):
    arena("submit", "mpi", *GANG, "c")
    arena("submit", "mpi", "-n", "other", "--name=plain", "--image=i", "c")
    _code, one, _err = arena("list")
    assert [line.split()[0] for line in one.splitlines()] == ["NAME", "demo"]
    code, both, _err = arena("ls", "-A")
    assert (code, both) == (0, screen("list-both.txt"))
    _code, none, _err = arena("list", "-T", "tf")
    assert [line.split()[0] for line in none.splitlines()] == ["NAME"]


@pytest.mark.usefixtures("world")
def test_no_jobs_at_all_are_an_empty_array_in_json(arena):
    assert arena("list", "-o", "json") == (0, "[]", "")
    assert arena("list", "-o", "yaml") == (0, "[]\n", "")
    assert arena("list", "-o", "name") == (0, "", "")


@pytest.mark.usefixtures("world")
def test_the_log_of_a_missing_job_is_an_error_at_once(arena):
    code, out, err = arena("logs", "-f", "ghost")
    assert (code, out) == (1, "")
    assert err == (
        "error: no job ghost in namespace default\n"
        "  try:  arena-topo list -n default shows its jobs, with -A those of all namespaces\n"
        "  arena: Not found training job ghost in namespace default,"
        "please use 'arena submit' to create it.\n"
    )


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("since", ["5", "1.5h", "1h30", "h"])
def test_a_span_that_arena_refuses_is_refused(since, arena):
    code, _out, err = arena("logs", "demo", "--since", since)
    assert code == 2
    assert err.startswith("error: --since is invalid")


@pytest.mark.usefixtures("world")
def test_a_moment_without_a_time_zone_is_refused(arena):
    assert arena("logs", "demo", "--since-time=2026-11-21T07:00:00")[0] == 2


def test_deleting_goes_on_after_a_job_that_is_not_there(arena, world):
    arena("submit", "mpi", *GANG, "c")
    code, out, err = arena("delete", "ghost", "demo")
    assert (code, out) == (1, "")
    assert err == (
        "error: no job ghost in namespace default\n"
        "  try:  arena-topo list -n default shows its jobs, with -A those of all namespaces\n"
        "  arena: Not found training job ghost in namespace default,"
        "please use 'arena submit' to create it.\n"
        "The training job demo has been deleted successfully\n"
    )
    assert not world.known


@pytest.mark.usefixtures("world")
def test_a_job_that_is_not_there_can_be_ignored(arena):
    assert arena("del", "ghost", "--ignore-not-found") == (0, "", "")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("delete", "demo", "--no-namespace", "other"), "--no-namespace"),
        (("list", "--no-namespace", "other"), "--no-namespace"),
        (("plan", "mpi", "--name=x", "--no-gpus", "2"), "--no-gpus"),
        (("plan", "mpi", "--name=x", "--no-dry-run", "c"), "--no-dry-run"),
    ],
)
def test_only_switches_can_be_negated_and_nothing_is_done_otherwise(words, flag, arena, world):
    arena("submit", "mpi", *GANG, "-n", "other", "c")
    there = dict(world.known)
    code, out, err = arena(*words)
    assert (code, out) == (2, "")
    assert f"error: unknown flag: {flag}\n" in err
    assert world.known == there


# ---------------------------------------------------------------- machines and the program


@pytest.mark.usefixtures("world")
def test_presets_are_listed_and_shown(arena):
    code, out, _err = arena("topology", "presets")
    assert code == 0
    own, sold = out.split("\n\n")
    assert [line.split()[0] for line in own.splitlines()] == ["NAME", *presets.preset_names()]
    assert [line.split()[0] for line in sold.splitlines()] == ["INSTANCE", *presets.INSTANCES]
    code, out, _err = arena("topology", "presets", "-o", "json")
    assert code == 0
    known = json.loads(out)
    assert [item["name"] for item in known["items"]] == list(presets.preset_names())
    assert all(item["source"] for item in known["instanceTypes"])
    code, out, _err = arena("topology", "show", "hgx-a100-4", "-o", "json")
    assert code == 0
    assert json.loads(out)["links"][0] == ["X", "NV4", "NV4", "NV4"]


@pytest.mark.usefixtures("world")
def test_a_captured_matrix_is_shown(arena, tmp_path, monkeypatch):
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-3\nGPU1\tNV2\t X \t0-3\n"
    shown = "      GPU0  GPU1  NUMA\nGPU0  X     NV2   N/A\nGPU1  NV2   X     N/A\n"
    file = tmp_path / "topo.txt"
    file.write_text(text, encoding="utf-8")
    code, out, _err = arena("topology", "show", "--from", str(file))
    assert (code, out.partition("\n\n")[0] + "\n") == (0, shown)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    again = arena("topology", "show", "--from=-")
    assert again[:2] == (0, out.replace("topo:", "stdin:"))


@pytest.mark.usefixtures("world")
def test_a_matrix_that_cannot_be_read_says_where(arena, tmp_path):
    code, out, err = arena("topology", "show", "--from", str(tmp_path / "none.txt"))
    assert (code, out) == (2, "")
    assert err.splitlines()[1] == "  why:  No such file or directory"


@pytest.mark.usefixtures("world")
def test_the_machine_of_a_node_is_shown_with_the_notes_on_the_cluster(arena):
    code, out, err = arena("topology", "show", "dgx-0")
    assert (code, err) == (0, "note: a ConfigMap made no sense\n")
    assert out.startswith("      GPU0  GPU1")
    code, _out, err = arena("topology", "show", "dgx-00")
    assert (code, err.splitlines()[-1]) == (1, "  try:  did you mean dgx-0?")


@pytest.mark.usefixtures("world")
def test_whoami_is_arenas_one_line(arena):
    assert arena("whoami") == (
        0,
        '{"Name":"kubernetes-admin","Id":"e16c40557a88702ed3185af342a7429e","IsAdminUser":false}\n',
        "",
    )


def test_the_program_alone_and_a_group_alone_show_their_help(arena):
    code, out, err = arena()
    assert (code, err) == (0, "")
    assert out.startswith("Usage: arena-topo [OPTIONS] COMMAND [ARGS]...\n")
    assert arena("submit")[0] == 0
    assert arena("topology")[1].startswith("Usage: arena-topo topology ")


def test_the_version_is_one_line_when_short(arena):
    code, out, _err = arena("version", "--short")
    assert (code, out) == (0, f"arena-topo: v{cli.__version__}\n")
    assert arena("version")[1].startswith(out)


def test_an_unknown_command_gets_a_suggestion(arena):
    assert arena("lits") == (
        2,
        "",
        'error: unknown command "lits" for "arena-topo"\n  try:  did you mean list?\n',
    )


# ---------------------------------------------------------------- when things go wrong


def test_a_refusal_of_the_api_server_keeps_its_exit_code(arena, world):
    world.refusal = AccessDenied("not allowed to get mpijobs", status=403, hint="ask")
    assert arena("get", "x") == (
        4,
        "",
        (
            "error: no permission to get the training job in namespace default\n"
            "  why:  not allowed to get mpijobs\n  try:  ask\n"
        ),
    )
    world.refusal = ClusterError("no answer", why="connection refused")
    assert arena("get", "x") == (1, "", "error: no answer\n  why:  connection refused\n")


def test_a_mistake_of_ours_is_one_line_and_a_report_without_the_command_line(
    arena, world, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    world.refusal = KeyError("oops")
    code, out, err = arena("submit", "mpi", *GANG, "-e", "TOKEN=secret", "c")
    assert (code, out) == (1, "")
    (report,) = tmp_path.iterdir()
    assert err == (
        "error: arena-topo made a mistake: KeyError: 'oops'\n"
        f"  try:  report it with {report}, or see more with ARENA_TOPO_DEBUG=1\n"
    )
    text = report.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "secret" not in text


@pytest.mark.parametrize("how", ["variable", "flag"])
def test_a_mistake_of_ours_is_shown_whole_to_who_debugs(how, arena, world, monkeypatch):
    world.refusal = KeyError("oops")
    if how == "variable":
        monkeypatch.setenv("ARENA_TOPO_DEBUG", "1")
    code, _out, err = arena("get", "x", *(["--loglevel=debug"] if how == "flag" else []))
    assert code == 1
    assert err.startswith("Traceback")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_ends_the_program_quietly(unbuffered):
    # A pipe nobody reads from: `arena-topo topology presets | head -0`.
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "arena_topo", "topology", "presets"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.usefixtures("world")
def test_nothing_is_cut_or_boxed_where_the_output_is_no_terminal(arena):
    name = "a" * 49
    arena("submit", "mpi", *GANG, f"--name={name}", "c")
    _code, out, _err = arena("get", name)
    assert f"{name}-worker-3" in out
    assert not set(out) & set("│┃╭…")


def test_a_reader_that_is_gone_or_full_does_not_hide_that_the_job_was_created(tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        line = ["submit", "mpi", "--backend=local", "--name=demo", "--image=local", "true"]
        done = program.run(["-n", "x", *line], stdout=full, text=True, env=environment)
        assert done.returncode == 0
        assert "warning: job demo was created" in done.stderr
        line = [*program.LINE, "-n", "x", "list"]
        listed = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert listed.returncode == 1
    assert "error: cannot write the output\n  why:  No space left on device" in listed.stderr
    assert program.run(["-n", "x", "delete", "demo"], env=environment).returncode == 0


def test_an_ordinary_job_that_can_never_run_is_no_plan(arena, world):
    code, _out, err = arena("plan", "mpi", "--name=big", "--image=local", "--gpus=9", "c")
    assert code == 5
    assert "--gpus 8" in err
    assert not world.plans


@pytest.mark.usefixtures("world")
def test_a_job_that_is_deleted_while_waited_for_is_said_to_be(arena, monkeypatch):
    def vanished(*_names, **_more):
        raise JobNotFound("demo", "default")

    monkeypatch.setattr(goals, "wait_for_job", vanished)
    code, _out, err = arena("submit", "mpi", *GANG, "--wait", "c")
    assert code == 1
    assert err.endswith("error: the job demo was deleted while it was waited for\n")


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("run", "submit mpi --name NAME --image IMAGE 'COMMAND'"),
        ("sbatch", "submit mpi --name NAME --image IMAGE 'COMMAND'"),
        ("ps", "list"),
        ("squeue", "list"),
        ("sinfo", "top node"),
        ("cancel", "delete JOB"),
        ("kill", "delete JOB"),
        ("describe", "get JOB; the reason: arena-topo why JOB"),
        ("status", "get JOB; the reason: arena-topo why JOB"),
        ("exec", "attach JOB -- COMMAND"),
    ],
)
def test_commands_of_other_programs_are_answered_with_ours(run, word, instead):
    assert run(word, "x") == (
        2,
        "",
        f'error: unknown command "{word}" for "arena-topo"\n  try:  arena-topo {instead}\n',
    )


def test_a_flag_before_the_kind_of_job_is_answered_with_its_place(run):
    said = (
        "error: unknown flag: --gpus\n"
        "  try:  write the kind of job before its flags: arena-topo plan mpi\n"
    )
    assert run("plan", "--gpus=1", "c") == (2, "", said)


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_the_version_is_told_to_who_asks_with_a_flag(run, flag):
    assert run(flag) == run("version")
    assert run(flag, "--short") == run("version", "--short")


def test_kubectl_finds_the_program_as_a_plugin():
    (plugin,) = entry_points(group="console_scripts", name="kubectl-arena_topo")
    assert plugin.value == "arena_topo.__main__:main"


def test_a_number_of_lines_that_is_read_as_a_namespace_is_told(run):
    code, _, err = run("logs", "sl", "-n", "10", "--backend=local")
    assert code == 1
    assert err.endswith(
        "  try:  -n is the namespace; --tail 10 shows the last 10 lines\n"
        "  arena: Not found training job sl in namespace 10,"
        "please use 'arena submit' to create it.\n"
    )


# ---------------------------------------------------------------- slips


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (("wait", "demo", "--for", "sucess"), "succeeded"),
        (("submit", "mpi", "--pod-shape=fuse", "true"), "fused"),
        (("list", "--backend", "lcoal"), "local"),
        (("list", "--status", "failed,RUNING"), "RUNNING"),
        (("get", "demo", "-o", "jason"), "json"),
    ],
)
def test_a_misspelt_value_is_answered_with_the_one_that_is_meant(arena, line, meant):
    code, out, err = arena(*line)
    assert (code, out) == (2, "")
    assert err.endswith(f"  try:  did you mean {meant}?\n")


def test_a_value_that_is_like_no_other_is_answered_without_a_guess(arena):
    code, _out, err = arena("get", "demo", "-o", "xml")
    assert (code, err) == (
        2,
        "error: --output is invalid\n  why:  expected wide, json, yaml or name, got 'xml'\n",
    )


def test_a_misspelt_variable_is_named_with_the_one_that_is_meant(arena, monkeypatch):
    monkeypatch.setenv("ARENA_TOPO_BAKEND", "local")
    monkeypatch.setenv("ARENA_TOPO_GPU_MODEL", "V100")
    code, _out, err = arena("version")
    assert (code, err) == (
        0,
        (
            "warning: there is no variable ARENA_TOPO_BAKEND, which is left out; did you mean"
            " ARENA_TOPO_BACKEND?\n"
        ),
    )


def test_a_job_that_is_of_another_kind_than_asked_for_is_named(arena):
    arena("submit", "mpi", *GANG, "c")
    code, _out, err = arena("get", "demo", "--type", "tfjob")
    assert code == 1
    assert "  try:  demo exists as an mpijob: leave out --type, or write --type mpijob\n" in err
    assert "Not found training job demo" in err
