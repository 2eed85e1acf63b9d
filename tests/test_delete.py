"""`delete`: which jobs, chosen by name, by label, by state or all; and `submit --follow`."""

from __future__ import annotations

import os
from pathlib import Path

import pexpect
import program
import prompt
import pytest
import typer

from arena_topo.cli.console import Console, act_on_each
from arena_topo.errors import NotFound, NotNow
from arena_topo.job import KeyValue

arena = prompt.in_each_world
one_arena = prompt.in_one_world


def left(arena):
    _code, out, _err = arena("list", "-o", "name", "-A", "--sort-by", "name")
    return [line.removeprefix("mpijob.kubeflow.org/") for line in out.splitlines()]


def test_jobs_are_deleted_by_label_state_and_namespace(arena):
    vision = (KeyValue.parse("team=vision"),)
    arena.finished("a", 3, label=vision)
    arena.finished("b")
    arena.applied("c", label=vision)
    code, out, err = arena("delete", "--status", "failed", "-l", "team=vision", "-y")
    assert (code, out) == (0, "")
    assert err == "The training job a has been deleted successfully\n"
    assert left(arena) == ["b", "c"]
    assert arena("delete", "-l", "team=speech", "-y")[2] == "No such jobs in namespace default.\n"
    assert (
        arena("delete", "--all", "-y", "-n", "elsewhere")[2]
        == "No such jobs in namespace elsewhere.\n"
    )
    assert left(arena) == ["b", "c"]
    code, out, _err = arena("delete", "--all", "-y", "-q")
    assert (code, sorted(out.splitlines())) == (
        0,
        ["mpijob.kubeflow.org/b", "mpijob.kubeflow.org/c"],
    )
    assert left(arena) == []


@pytest.mark.parametrize("line", [("--all",), ("--status", "PENDING"), ("-l", "a=b"), ("--mine",)])
def test_jobs_that_are_chosen_and_not_named_need_yes_where_nobody_can_be_asked(one_arena, line):
    one_arena.applied("a")
    code, out, err = one_arena("delete", *line)
    assert (code, out) == (2, "")
    assert err.startswith("error: delete needs --yes where it cannot ask for confirmation\n")
    assert left(one_arena) == ["a"]


@pytest.mark.parametrize(("answer", "code", "rest"), [("", 1, ["a", "b"]), ("y", 0, [])])
def test_on_a_terminal_jobs_that_are_chosen_are_listed_and_asked_about(
    one_arena, answer, code, rest
):
    for name in ("a", "b"):
        one_arena.finished(name)
    line = [*one_arena.flags, "delete", "--status", "SUCCEEDED"]
    with program.at_terminal(line, encoding="utf-8", timeout=30) as terminal:
        terminal.expect(r"b\r\na\r\n")
        terminal.expect_exact("Delete 2 jobs of namespace default, and all that belongs to them? ")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        terminal.wait()
    assert terminal.exitstatus == code
    assert left(one_arena) == rest


def test_names_and_flags_that_choose_jobs_exclude_each_other(one_arena):
    one_arena.applied("a")
    code, _out, err = one_arena("delete", "a", "--all")
    assert code == 2
    assert err.startswith("error: --all and JOB exclude each other\n")
    code, _out, err = one_arena("delete")
    assert code == 2
    assert "--all" in err
    assert left(one_arena) == ["a"]


def test_jobs_of_others_are_left_where_only_mine_are_chosen(one_arena):
    one_arena.applied("a")
    code, _out, err = one_arena("delete", "--mine", "--status", "SUCCEEDED", "-y")
    assert (code, err) == (0, "No such jobs in namespace default.\n")
    assert left(one_arena) == ["a"]


def test_a_job_of_another_kind_is_never_deleted(one_arena):
    one_arena.applied("a")
    code, _out, err = one_arena("delete", "a", "--type", "tfjob")
    assert code == 1
    assert err.startswith("error: no job a in namespace default")
    assert one_arena("delete", "a", "--type", "tfjob", "--ignore-not-found") == (0, "", "")
    assert one_arena("delete", "--all", "-y", "--type", "tfjob")[0] == 0
    assert left(one_arena) == ["a"]
    assert one_arena("delete", "a", "--type", "mpijob")[0] == 0
    assert left(one_arena) == []


def test_of_several_jobs_the_first_error_is_the_exit_code_and_the_others_are_done(capfd):
    errors = {"a": NotNow("a waits"), "b": NotFound("there is no b")}
    done = []

    def act(name: str) -> None:
        if name in errors:
            raise errors[name]
        done.append(name)

    with pytest.raises(typer.Exit) as caught:
        act_on_each(Console(), "abc", act)
    assert (caught.value.exit_code, done) == (NotNow.exit_code, ["c"])
    assert capfd.readouterr().err == "error: a waits\nerror: there is no b\n"


def test_a_job_whose_files_are_damaged_is_one_of_all(tmp_path, capfd):
    with prompt.opened("local", tmp_path, capfd) as arena:
        arena.applied("a")
        broken = Path(os.environ["XDG_STATE_HOME"], "arena-topo/jobs/default/b")
        broken.mkdir()
        (broken / "submission.json").write_text("{")
        code, _out, err = arena("delete", "--all", "-y")
        assert (code, sorted(err.splitlines())) == (
            0,
            [f"The training job {name} has been deleted successfully" for name in "ab"],
        )
        assert left(arena) == []


def test_submit_follow_shows_the_log_and_ends_with_the_code_of_the_launcher(tmp_path, capfd):
    with prompt.opened("local", tmp_path, capfd) as arena:
        line = ("--name=demo", "--image=local", "--workers=1", "--gpus=1", "--gputopology")
        code, out, err = arena("submit", "mpi", *line, "--follow", "echo one; exit 3")
    assert (code, out) == (3, "one\n")
    assert "mpijob.kubeflow.org/demo created\n" in err
    assert err.endswith(
        "error: the job demo failed\n"
        "  why:  the launcher ended with exit code 3, and so does this command\n"
        "  try:  arena-topo why demo -n default\n"
    )


def test_follow_wait_and_output_exclude_each_other(one_arena):
    for flag in ("--wait", "--output=json"):
        code, out, err = one_arena("submit", "mpi", "--name=x", "--image=i", "--follow", flag, "c")
        assert (code, out) == (2, "")
        assert err.startswith(f"error: --follow and {flag.partition('=')[0]} exclude each other\n")
