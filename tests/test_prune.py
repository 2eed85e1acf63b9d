"""`prune`: which jobs go, who is asked, and what is said."""

import re
import subprocess
import time

import pexpect
import program
import prompt
import pytest
from worlds import planned

from arena_topo.errors import NotFound
from arena_topo.job import MPIJob
from arena_topo.jobs.prune import Age, stale_jobs

NOTHING = "No jobs to delete.\n"


arena = prompt.in_each_world
one_arena = prompt.in_one_world


def names(arena):
    return sorted(job.name for job in arena.world.backend.jobs(None))


def test_only_jobs_that_are_over_go_and_arenas_lines_name_them(arena):
    arena.finished("good")
    arena.finished("bad", 3)
    arena.applied("runs", gpus=1)
    arena.world.start("runs")
    arena.applied("waits", workers=2, gpus=8)
    code, out, err = arena("prune", "--since=0s", "--yes")
    lines = [line.split(" with Age ")[0] for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines == ["Delete mpijob good", "Delete mpijob bad"]
    assert all(re.search(r" with Age \d+[sh] $", line) for line in out.splitlines())
    assert names(arena) == ["runs", "waits"]


def test_the_age_of_a_job_counts_from_its_creation_not_from_its_end(arena):
    arena.applied("old")
    arena.world.start("old")
    if arena.flags[0] != "--backend=local":
        arena.world.api.now += 600
    arena.world.finish("old")
    (job,) = arena.world.backend.jobs(None)
    then = job.created + 3600
    backend = arena.world.backend
    assert [one.name for one in stale_jobs(backend, None, since=3600, now=then)] == ["old"]
    assert stale_jobs(backend, None, since=3601, now=then) == ()


def test_a_young_job_stays_and_that_is_said(arena):
    arena.finished("young")
    assert arena("prune", "-s", "7d", "-y") == (0, NOTHING, "")
    assert names(arena) == ["young"]


def test_a_dry_run_shows_the_jobs_deletes_none_and_asks_nobody(arena):
    arena.finished("old")
    code, out, err = arena("prune", "-s=0s", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("Delete mpijob old with Age ")
    assert out.endswith(" (dry run)\n")
    assert names(arena) == ["old"]


def test_a_job_that_took_the_name_since_the_look_survives(arena):
    arena.finished("again")
    backend = arena.world.backend
    doomed = stale_jobs(backend, None, since=0, now=time.time() + 1)
    job = MPIJob(name="again", command="sleep 60", image="local")
    backend.delete("again", "default")
    backend.apply(planned(backend, job))
    with pytest.raises(NotFound):
        backend.delete("again", "default", uid=doomed[0].uid)
    assert names(arena) == ["again"]


def test_names_alone_are_printed_when_asked_for(arena):
    arena.finished("one")
    arena.finished("two")
    expected = (0, "mpijob.kubeflow.org/one\nmpijob.kubeflow.org/two\n", "")
    assert arena("prune", "-s=0s", "--dry-run", "-o", "name") == expected
    assert arena("prune", "-s=0s", "-y", "--quiet") == expected
    assert arena("prune", "-s=0s", "-y", "-o=name") == (0, "", "")


def test_jobs_of_all_namespaces_go_only_when_asked_for_and_are_told_apart(one_arena):
    arena = one_arena
    arena.finished("here")
    with arena.world.api.edit("MPIJob", "here") as job:
        there = {**job, "metadata": {**job["metadata"], "namespace": "there", "name": "far"}}
    there["metadata"].pop("uid")
    arena.world.api.add({"kind": "Namespace", "metadata": {"name": "there"}})
    arena.world.api.add(there)
    code, out, _err = arena("prune", "-s=0s", "--dry-run")
    assert (code, out.count("\n")) == (0, 1)
    code, out, _err = arena("prune", "-s=0s", "-A", "-y")
    assert code == 0
    assert out == (
        "Delete mpijob here with Age 1h in namespace default \n"
        "Delete mpijob far with Age 1h in namespace there \n"
    )
    assert names(arena) == []


def test_one_job_that_cannot_be_deleted_does_not_save_the_others(one_arena):
    for name in ("one", "two", "three"):
        one_arena.finished(name)
    one_arena.world.api.fail("DELETE .*/mpijobs/two", status=500, times=9)
    code, out, err = one_arena("prune", "-s=0s", "-y", "-o=name")
    assert (code, out) == (1, "mpijob.kubeflow.org/one\nmpijob.kubeflow.org/three\n")
    assert err.startswith("error: cannot delete the job two: ")
    assert names(one_arena) == ["two"]


def test_a_caller_who_may_not_list_is_told_so_and_nothing_goes(one_arena):
    one_arena.finished("one")
    one_arena.world.api.deny("list mpijobs.*")
    code, out, err = one_arena("prune", "-s=0s", "-y")
    assert (code, out) == (4, "")
    assert err.startswith("error: no permission to list the training jobs in namespace default\n")


# ---------------------------------------------------------------- the line


@pytest.mark.parametrize("line", [(), ("--yes",), ("-A", "--dry-run")])
def test_without_an_age_it_says_arenas_words(one_arena, line):
    one_arena.finished("one")
    code, out, err = one_arena("prune", *line)
    assert (code, out) == (2, "")
    assert err == (
        "error: --since is needed\n  why:  it says how old the jobs are that are deleted\n"
        "  try:  arena-topo prune --since 24h --dry-run\n"
    )
    assert names(one_arena) == ["one"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("7d", 604800), ("1d12h", 129600), ("0", 0), ("0d", 0)],
)
def test_ages_are_gos_durations_and_days(text, seconds):
    assert Age.parse(text) == seconds


@pytest.mark.parametrize("text", ["10", "d", "1d2", "-1h", "-1d", "1.5d", "1h1d", "1w", "", "h"])
def test_an_age_that_makes_no_sense_is_refused_and_nothing_goes(one_arena, text):
    one_arena.finished("one")
    code, _out, err = one_arena("prune", f"--since={text}", "-y")
    assert code == 2
    assert err.startswith(("error: --since is invalid\n", "error: you need to specify"))
    assert names(one_arena) == ["one"]


# ---------------------------------------------------------------- who is asked


def line(arena):
    return [*arena.flags, "prune", "-s=0s"]


def test_where_nobody_can_be_asked_nothing_goes_without_yes(one_arena):
    one_arena.finished("one")
    done = program.run(line(one_arena), stdin=subprocess.DEVNULL, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: prune needs --yes where it cannot ask for confirmation\n"
        "  why:  standard input or standard error is not a terminal\n"
        "  try:  look first, with --dry-run; then add --yes, or set ARENA_TOPO_YES=true\n"
    )
    assert names(one_arena) == ["one"]


@pytest.mark.parametrize(("said", "code"), [("true", 0), ("1", 0), ("false", 2), ("maybe", 2)])
def test_a_variable_says_yes_for_programs_that_cannot(one_arena, monkeypatch, said, code):
    one_arena.finished("one")
    monkeypatch.setenv("ARENA_TOPO_YES", said)
    assert one_arena("prune", "--since=0s")[0] == code
    assert names(one_arena) == (["one"] if code else [])


@pytest.mark.parametrize(
    ("answer", "code", "left"),
    [
        ("y", 0, []),
        ("YES", 0, []),
        ("n", 1, ["one", "two"]),
        ("", 1, ["one", "two"]),
        ("yess", 1, ["one", "two"]),
    ],
)
def test_on_a_terminal_the_jobs_are_shown_and_the_answer_is_no_unless_said(
    one_arena, answer, code, left, monkeypatch
):
    monkeypatch.setenv("NO_COLOR", "1")
    one_arena.finished("one")
    one_arena.finished("two", 1)
    with program.at_terminal(line(one_arena), encoding="utf-8", timeout=30) as terminal:
        terminal.expect(r"Delete mpijob one with Age 1h\r\nDelete mpijob two with Age 1h\r\n")
        terminal.expect_exact("Delete these 2 jobs and all that belongs to them? [y/N] ")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        said = terminal.before
        terminal.wait()
    assert terminal.exitstatus == code
    assert ("Nothing was deleted." in said) is bool(left)
    assert names(one_arena) == left


@pytest.mark.parametrize(("key", "code"), [("c", 130), ("d", 1)])
def test_leaving_the_question_deletes_nothing(one_arena, key, code):
    one_arena.finished("one")
    with program.at_terminal(line(one_arena), encoding="utf-8", timeout=30) as terminal:
        terminal.expect_exact("Delete this job and all that belongs to it? [y/N] ")
        terminal.sendcontrol(key)
        terminal.expect(pexpect.EOF)
        terminal.wait()
    assert "Traceback" not in terminal.before
    assert terminal.exitstatus == code
    assert names(one_arena) == ["one"]
