"""`list`: which jobs, in which order, in which shape; and what is said where it cannot be known."""

import json
import signal
import subprocess
from urllib.parse import unquote_plus

import pexpect
import program
import prompt
import pytest
from prompt import relabelled
from replacing import replace
from worlds import planned

from arena_topo.clusters.selectors import LabelSelector
from arena_topo.engines import JobStatus, Phase
from arena_topo.job import KeyValue
from arena_topo.jobs.job_order import Order, select_jobs

HEADER = "NAME  STATUS  TRAINER  DURATION  GPU(Requested)  GPU(Allocated)  NODE\n"


arena = prompt.in_each_world
one_arena = prompt.in_one_world


def names(arena, *line):
    code, out, err = arena("list", "-o", "name", *line)
    assert (code, err) == (0, "")
    return [line.removeprefix("mpijob.kubeflow.org/") for line in out.splitlines()]


# ---------------------------------------------------------------- which jobs


def test_labels_select_jobs(arena):
    arena.applied("a", label=(KeyValue.parse("team=vision"), KeyValue.parse("tier=1")))
    arena.applied("b", label=(KeyValue.parse("team=speech"),))
    arena.applied("c")
    assert names(arena, "-l", "team=vision") == ["a"]
    assert names(arena, "--selector", "team in (vision, speech)") == ["b", "a"]
    assert names(arena, "-l", "team,tier!=1") == ["b"]
    assert names(arena, "-l", "!team") == ["c"]
    assert names(arena, "-l=team==nobody") == []


def test_a_selected_job_is_told_as_it_is_without_a_selector(arena):
    arena.applied("a", gpus=1, workers=2, label=(KeyValue.parse("team=vision"),))
    arena.world.start("a")
    backend = arena.world.backend
    (job,) = backend.jobs("default")
    assert job.instances
    assert backend.jobs("default", "team=vision") == (job,)
    assert backend.jobs("default", "team=speech") == ()


def test_pods_of_jobs_that_are_not_selected_are_not_asked_for(one_arena):
    for name in ("a", "b"):
        one_arena.applied(name, label=(KeyValue.parse(f"for={name}"),))
        one_arena.world.start(name)
    api = one_arena.world.api
    before = len(api.requests)
    assert names(one_arena, "-l", "for=a") == ["a"]
    lines = [one for one in api.requests[before:] if "/pods" in one]
    assert len(lines) == 1
    assert "release in (a)" in unquote_plus(lines[0])


def test_my_jobs_are_those_that_i_submitted(arena):
    arena.applied("mine")
    theirs = planned(arena.world.backend, arena.world.job("theirs"))
    arena.world.backend.apply(relabelled(theirs, {"arena.kubeflow.org/uid": "0" * 32}))
    assert sorted(names(arena)) == ["mine", "theirs"]
    assert names(arena, "--mine") == ["mine"]
    assert names(arena, "--mine", "-l", "app!=mpijob") == []


def test_states_select_jobs(arena):
    arena.finished("good")
    arena.finished("bad", 3)
    arena.applied("waits", workers=2, gpus=8)
    arena.applied("runs")
    arena.world.start("runs")
    assert names(arena, "--status=SUCCEEDED") == ["good"]
    assert names(arena, "--status=succeeded,Failed") == ["bad", "good"]
    assert names(arena, "--status=SUCCEEDED", "--status", "RUNNING")[-1] == "good"
    assert "runs" in names(arena, "--status=RUNNING")
    assert names(arena, "--status=QUEUING") == []


def test_a_state_that_there_is_not_is_a_usage_error(one_arena):
    code, out, err = one_arena("list", "--status", "RUNNING,DONE")
    assert (code, out) == (2, "")
    assert err == (
        "error: --status is invalid\n"
        "  why:  expected PENDING, RUNNING, SUCCEEDED, FAILED, QUEUING, SUSPENDED or UNKNOWN,"
        " got 'RUNNING,DONE'\n"
    )


# ---------------------------------------------------------------- order and shape


def job(name, **more):
    some = {"uid": name, "namespace": "default", "phase": Phase.RUNNING, "created": 0.0}
    return JobStatus(**{"name": name, **some, **more})


JOBS = (
    job("job-10", created=5, request_gpus=8, phase=Phase.SUCCEEDED, namespace="team-2"),
    job("job-9", created=4, request_gpus=16, phase=Phase.PENDING, namespace="team-10"),
    job("a", created=3, request_gpus=8, namespace="default"),
)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.AGE, ["job-10", "job-9", "a"]),
        (Order.NAME, ["a", "job-9", "job-10"]),
        (Order.STATUS, ["job-9", "a", "job-10"]),
        (Order.GPUS, ["job-9", "job-10", "a"]),
        (Order.NAMESPACE, ["a", "job-10", "job-9"]),
    ],
)
def test_jobs_are_sorted_by_what_is_asked_for_and_equals_stay_newest_first(order, expected):
    assert [one.name for one in select_jobs(JOBS, order=order)] == expected
    same = [replace(one, name="x", namespace="x", request_gpus=1) for one in JOBS]
    assert list(select_jobs(same, order=order, phases={Phase.PENDING})) == [same[1]]


def test_the_order_of_the_line_is_the_order_of_the_list(one_arena):
    for name in ("b", "c", "a"):
        one_arena.applied(name)
    assert names(one_arena) == ["a", "c", "b"]
    assert names(one_arena, "--sort-by=name") == ["a", "b", "c"]
    assert one_arena("list", "--sort-by=colour")[0] == 2


def test_a_list_for_scripts_has_no_headers(one_arena):
    one_arena.applied("demo", gpus=2)
    assert one_arena("list", "--no-headers") == (
        0,
        "demo  PENDING  MPIJOB  1h  2  0  N/A\n",
        "",
    )
    assert one_arena("list")[1].startswith("NAME  STATUS   TRAINER  DURATION  GPU(Requested)")


def test_a_quiet_list_has_only_names(one_arena):
    one_arena.applied("demo")
    assert one_arena("list", "-q") == (0, "mpijob.kubeflow.org/demo\n", "")
    assert json.loads(one_arena("list", "-q", "-o", "json")[1])[0]["name"] == "demo"


def test_no_jobs_are_a_header_and_in_json_an_empty_array(arena):
    assert arena("list")[:2] == (0, HEADER)
    assert arena("list", "-o", "json") == (0, "[]", "")
    assert arena("list", "-o", "yaml") == (0, "[]\n", "")
    assert arena("list", "-o", "name") == (0, "", "")
    assert arena("list", "--no-headers") == (0, "", "")
    assert arena("list", "-T", "tfjob")[:2] == (0, HEADER)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((), "No jobs in namespace default; -A shows those of all namespaces."),
        (("-n", "tema"), "No jobs in namespace tema; -A shows those of all namespaces."),
        (("-A",), "No jobs in any namespace."),
        (("-A", "--mine"), "No such jobs in any namespace."),
        (("-l", "a=b"), "No such jobs in namespace default; -A shows those of all namespaces."),
        (("--status=FAILED", "-A"), "No such jobs in any namespace."),
        (("-T", "tfjob", "-A"), "No such jobs in any namespace."),
        (("-T", "mpijob", "-A"), "No jobs in any namespace."),
    ],
)
def test_of_an_empty_list_is_said_where_was_looked(one_arena, line, said):
    assert one_arena("list", *line)[2] == f"{said}\n"
    assert one_arena("list", *line, "--loglevel=warn")[2] == ""
    assert one_arena("list", *line, "-q")[2] == ""


def test_of_a_list_with_jobs_nothing_is_said(one_arena):
    one_arena.applied("demo")
    assert one_arena("list")[2] == ""


@pytest.mark.parametrize("flag", ["-A", "--all-namespaces", "--allNamespaces"])
def test_arenas_spellings_of_all_namespaces_work(one_arena, flag):
    one_arena.applied("demo")
    code, out, err = one_arena("ls", flag)
    assert (code, out.startswith("NAMESPACE  NAME")) == (0, True)
    assert ("deprecated" in err) is (flag == "--allNamespaces")


# ---------------------------------------------------------------- what cannot be known


@pytest.mark.parametrize(
    ("line", "where"),
    [((), "namespace default"), (("-n", "team"), "namespace team"), (("-A",), "all namespaces")],
)
@pytest.mark.parametrize("what", ["mpijobs", "pods"])
def test_who_may_not_list_is_told_so_in_arenas_words(one_arena, line, where, what):
    one_arena.applied("demo")
    with one_arena.world.api.edit("MPIJob", "demo") as demo:
        theirs = {**demo, "metadata": {"name": "theirs", "namespace": "team"}}
    one_arena.world.api.add({"kind": "Namespace", "metadata": {"name": "team"}})
    one_arena.world.api.add(theirs)
    one_arena.world.api.deny(f"list {what}.*")
    code, out, err = one_arena("list", *line)
    assert (code, out) == (4, "")
    first, why, hint = err.splitlines()
    assert first == f"error: no permission to list the training jobs in {where}"
    assert what in why
    assert what in hint


@pytest.mark.parametrize("line", [(), ("-o", "json"), ("-w",), ("--explain",), ("-n", "team")])
@pytest.mark.parametrize("rule", ["get mpijobs.*", "list pods.*"])
def test_who_may_not_get_a_job_is_told_so_in_arenas_words(one_arena, line, rule):
    one_arena.world.api.add({"kind": "Namespace", "metadata": {"name": "team"}})
    one_arena.applied("demo")
    with one_arena.world.api.edit("MPIJob", "demo") as demo:
        theirs = {**demo, "metadata": {"name": "demo", "namespace": "team"}}
    one_arena.world.api.add(theirs)
    one_arena.world.api.deny(rule)
    code, out, err = one_arena("get", "demo", *line)
    if rule == "list pods.*" and "--explain" in line:
        # That explains what it can without them.
        assert code == 0
        return
    where = "team" if "team" in line else "default"
    said = err.splitlines()
    assert (code, out) == (4, "")
    assert f"error: no permission to get the training job in namespace {where}" in said
    assert any(rule.split()[1].removesuffix(".*") in line for line in said if "try:" in line)


@pytest.mark.parametrize("line", [(), ("-A",)])
def test_whom_the_server_does_not_know_lacks_no_right_but_a_login(one_arena, line):
    one_arena.world.api.fail("mpijobs", status=401)
    code, out, err = one_arena("list", *line)
    assert (code, out) == (4, "")
    assert err.startswith("error: the API server does not know who is asking\n")
    assert "privileges" not in err


def test_a_cluster_without_mpijobs_is_no_cluster_without_jobs(one_arena):
    one_arena.world.api.versions = []
    code, out, err = one_arena("list")
    assert (code, out) == (1, "")
    assert err.startswith("error: the MPI operator is not installed")


# ---------------------------------------------------------------- selectors


@pytest.mark.parametrize(
    ("text", "labels", "selected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "2"}, False),
        ("a=", {"a": ""}, True),
        ("a!=1", {}, True),
        ("a!=1", {"a": "1"}, False),
        ("a", {"a": "x"}, True),
        ("a", {"b": "x"}, False),
        ("!a", {"b": "x"}, True),
        ("! a", {"a": ""}, False),
        ("a in (1,2)", {"a": "2"}, True),
        ("a in (1, 2)", {}, False),
        ("a in(1)", {"a": "1"}, True),
        ("a notin (1,2)", {}, True),
        ("a notin ( 1 , 2 )", {"a": "1"}, False),
        ("a in ()", {"a": ""}, True),
        ("a in (x,  ,)", {"a": ""}, True),
        ("a=1,b!=2,c", {"a": "1", "c": ""}, True),
        (" a = 1 , b in (x,y) ", {"a": "1", "b": "y"}, True),
        ("in=1", {"in": "1"}, True),
        ("example.com/a=b.c_d-e", {"example.com/a": "b.c_d-e"}, True),
    ],
)
def test_selectors_mean_what_they_mean_to_kubectl(text, labels, selected):
    assert LabelSelector.parse(text).matches(labels) is selected


@pytest.mark.parametrize(
    "text",
    [
        "a=1,",
        ",a",
        "a=b c",
        "a in b",
        "a in (b",
        "=1",
        "-a",
        "a=é",
        "a b",
        "a,,b",
        "a=b=c",
        "a in (" + ",  " * 40,
    ],
)
def test_selectors_that_make_no_sense_are_refused_with_the_form(one_arena, text):
    code, out, err = one_arena("list", f"--selector={text}")
    assert (code, out) == (2, "")
    assert err.startswith("error: --selector is invalid\n  why:  expected labels such as ")


# ---------------------------------------------------------------- watching


def follow(arena, *line):
    """The program at work, whose stdout is a pipe."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return program.start([*arena.flags, "list", "--watch", *line], **pipes, text=True)


@pytest.mark.parametrize("arena", ["kubernetes-v2beta1", "local"], indirect=True)
def test_in_a_pipe_a_watched_list_tells_each_job_that_changes(arena):
    arena.applied("first")
    with follow(arena, "-A") as watching:
        assert watching.stdout.readline().split()[:3] == ["NAMESPACE", "NAME", "STATUS"]
        assert watching.stdout.readline().split()[:2] == ["default", "first"]
        arena.finished("second")
        while (said := watching.stdout.readline().split())[:3] != [
            "default",
            "second",
            "SUCCEEDED",
        ]:
            assert said[1] in {"first", "second"}
        arena.world.backend.delete("second", "default")
        while (said := watching.stdout.readline()) != "default    second  GONE\n":
            assert said.split()[1] == "first"  # which may change meanwhile, too
        watching.send_signal(signal.SIGINT)
        assert {said.split()[1] for said in watching.stdout} <= {"first"}
        assert "Traceback" not in watching.stderr.read()
    assert watching.returncode == 130


def test_in_a_pipe_later_lines_stand_under_the_columns_of_the_first(one_arena):
    one_arena.applied("a-long-name")
    with follow(one_arena) as watching:
        header = watching.stdout.readline()
        first = watching.stdout.readline()
        one_arena.applied("b")
        second = watching.stdout.readline()
        one_arena.applied("a-name-that-is-longer-still")
        third = watching.stdout.readline()
        one_arena.applied("c")
        fourth = watching.stdout.readline()
        one_arena.world.backend.delete("b", "default")
        gone = watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.communicate()
    assert header.index("STATUS") == first.index("PENDING") == second.index("PENDING")
    # A cell that is wider pushes the others, and stays the measure from then on.
    assert third.index("PENDING") > second.index("PENDING")
    assert fourth.index("PENDING") == third.index("PENDING") == gone.index("GONE")


def test_watching_ends_when_its_time_is_over(one_arena):
    one_arena.applied("demo")
    code, out, err = one_arena("list", "-w", "--timeout=1s", "--no-headers")
    assert (code, out.split()[0], out.count("\n")) == (6, "demo", 1)
    assert err.startswith("error: timed out after 1 s\n")


@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_what_is_watched_is_a_table(one_arena, form):
    code, out, err = one_arena("list", "-w", "-o", form)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --watch and --output {form} exclude each other\n")


def test_on_a_terminal_a_watched_list_is_renewed_in_its_place(one_arena, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    one_arena.applied("first")
    words = [*one_arena.flags, "list", "-w"]
    with program.at_terminal(words, encoding="utf-8", timeout=30) as terminal:
        terminal.expect(r"first\s+PENDING")
        one_arena.applied("second")
        terminal.expect(r"second\s+PENDING[^\n]*\n[^\n]*first\s+PENDING")
        terminal.sendcontrol("c")
        terminal.expect(pexpect.EOF)
        terminal.wait()
    assert terminal.exitstatus == 130
