"""Whatever is around it, the program behaves: no home, no room, no terminal, nobody who reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import program
import pytest
from exhaustive import all_but

MACHINES = ["--backend", "local", "--emulate", "dgx-1-v100:2"]
JOB = ["--name", "demo", "--image", "local", "--gpus", "2", "--workers", "4", "--gputopology"]

LOOKING = {
    "plan": ["plan", "mpi", *JOB, *MACHINES, "true"],
    "logs": ["logs", "demo", *MACHINES],
    "get json": ["get", "demo", "-o", "json", *MACHINES],
    "help": ["--help"],
    "topology": ["topology", "show", *MACHINES],
    "version": ["version"],
    "list": ["list", *MACHINES],
    "get": ["get", "demo", *MACHINES],
    "why": ["why", "demo", *MACHINES],
    "dry run": ["submit", "mpi", *JOB, "--dry-run", *MACHINES, "true"],
    "presets": ["topology", "presets"],
    "top node": ["top", "node", *MACHINES],
    "top job": ["top", "job", *MACHINES],
    "fragmentation": ["top", "node", "--frag", *MACHINES],
    "settings": ["config", "view", "--resolved"],
    "completion": ["completion", "bash"],
}
"""Commands that print something and change nothing."""

FIRST = 5
"""As many of them are tried in every run, around every odd thing."""
FEW = 2
"""As many where each is loaded anew, for what is about the first or last moment of a process."""


def surroundings(home: Path, **more: str) -> dict[str, str]:
    """The environment of a user with this home and nothing else."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "UTC", **more}


def run(*words, env, **more):
    return program.run(words, env=env, **{"text": True, "stdin": subprocess.DEVNULL, **more})


def loaded_anew(*words, env, **more):
    """Run the program as users start it, not in a fork of these tests."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = [*program.LINE, *words]
    return subprocess.run(
        line, env=env, check=False, timeout=60, stdin=subprocess.DEVNULL, **(pipes | more)
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home in which a job has run."""
    folder = tmp_path_factory.mktemp("home")
    done = run("submit", "mpi", *JOB, "--wait", *MACHINES, "echo done", env=surroundings(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("words", all_but(FEW, LOOKING.values()), ids=LOOKING)
def test_nobody_is_told_of_a_reader_that_has_gone(words, home):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        done = loaded_anew(*words, env=surroundings(home), stdout=gone)
    assert done.returncode in {0, 1}
    assert "Traceback" not in done.stderr
    assert "roken pipe" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [["list", "-w"], ["get", "demo", "-w"], ["top", "node", "-r"]],
    ids=" ".join,
)
def test_who_watches_for_a_reader_that_has_gone_stops_though_nothing_happens(words, tmp_path):
    env = surroundings(tmp_path)
    asleep = ["submit", "mpi", *JOB, *MACHINES, "sleep 600"]
    assert run(*asleep, env=env).returncode == 0
    try:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        watching = program.start([*words, *MACHINES], env=env, **pipes)
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.stdout.close()
        try:
            assert watching.wait(20) == 1
        finally:
            watching.kill()
            _, said = watching.communicate()
        assert b"roken" not in said
    finally:
        run("delete", "demo", *MACHINES, env=env)


@pytest.mark.parametrize("words", all_but(FEW, LOOKING.values()), ids=LOOKING)
def test_output_that_cannot_be_written_is_an_error(words, home):
    with Path("/dev/full").open("w") as full:
        done = loaded_anew(*words, env=surroundings(home), stdout=full)
    assert done.returncode == 1
    assert "error: cannot write the output\n  why:  No space left on device" in done.stderr


@pytest.mark.parametrize("words", all_but(FEW, LOOKING.values()), ids=LOOKING)
@pytest.mark.parametrize("said", [{"LANG": "C"}, {"LC_ALL": "POSIX"}])
def test_a_locale_without_unicode_gets_none(words, said, home):
    done = loaded_anew(*words, env=surroundings(home, **said), text=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert done.stderr.isascii()


@pytest.mark.parametrize("words", all_but(FIRST, LOOKING.values()), ids=LOOKING)
def test_what_goes_into_a_pipe_has_no_escape_sequences_and_no_width(words, home):
    narrow = run(*words, env=surroundings(home, COLUMNS="20", TERM="xterm-256color"))
    wide = run(*words, env=surroundings(home, COLUMNS="300", TERM="xterm-256color"))
    assert narrow.returncode == wide.returncode == 0
    assert "\x1b" not in narrow.stdout + narrow.stderr
    if words != ["--help"]:
        assert without_times(narrow.stdout) == without_times(wide.stdout)


def without_times(text: str) -> list[str]:
    """The lines that do not grow older between two runs."""
    return [line for line in text.splitlines() if "Duration" not in line and '"age"' not in line]


@pytest.mark.parametrize("words", all_but(FEW, LOOKING.values()), ids=LOOKING)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_the_caller_has_closed_is_no_mistake_of_ours(words, closed, home):
    line = subprocess.list2cmdline([*program.LINE, *words]) + " " + closed
    done = subprocess.run(
        ["sh", "-c", line], env=surroundings(home), capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if closed == ">&-" else 0), done.stderr
    assert "Traceback" not in done.stderr


HOMES = {
    "a home that is no folder": "/dev/null",
    "a home that cannot be written to": "/proc",
    "no home": None,
    "an empty home": "",
}

HOMELESS = {name: words for name, words in LOOKING.items() if "demo" not in words or name == "plan"}


@pytest.mark.parametrize("words", all_but(3, HOMELESS.values()), ids=HOMELESS)
@pytest.mark.parametrize("where", HOMES.values(), ids=HOMES)
def test_looking_needs_no_home(words, where, tmp_path):
    env = surroundings(tmp_path, XDG_STATE_HOME=str(tmp_path))
    del env["HOME"]
    if where is not None:
        env["HOME"] = where
    done = run(*words, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["/dev/null", "/proc"])
def test_a_job_that_cannot_be_kept_is_refused_with_a_way_out(where, tmp_path):
    env = surroundings(Path(where))
    done = run("submit", "mpi", *JOB, *MACHINES, "true", env=env, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: cannot keep local jobs in " in done.stderr
    assert "XDG_STATE_HOME" in done.stderr


@pytest.mark.parametrize("where", ["relative", "~", "~/x"])
def test_a_home_that_is_no_path_is_none_and_nothing_is_made_below_it(where, tmp_path):
    env = surroundings(tmp_path) | {"HOME": where, "XDG_CACHE_HOME": "relative"}
    done = run("submit", "mpi", *JOB, *MACHINES, "true", env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: there is no place to keep local jobs\n" in done.stderr
    for words in (LOOKING["topology"], ["logs", "demo", "--kept"]):
        assert "Traceback" not in run(*words, env=env, cwd=tmp_path).stderr
    assert [*tmp_path.iterdir()] == []


SMALL = """
mount -t tmpfs -o size=4k,nr_inodes=4 none "$1" || exit 99
shift
exec "$@"
"""
"""Runs a command with a file system without room at a folder."""


def test_a_cache_without_room_costs_time_and_nothing_else(home, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    env = surroundings(home, XDG_CACHE_HOME=str(cache))
    wanted = run(*LOOKING["plan"], env=surroundings(home))
    words = [*program.LINE, *LOOKING["plan"]]
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL, "sh", str(cache)]
    # Where nobody may have a file system of his own, files of no size are nearly the same.
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
    may = shutil.which("unshare") and subprocess.run([*own, "true"], check=False).returncode == 0
    done = subprocess.run(
        [*(own if may else limited), *words], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == wanted.stdout
    assert "Traceback" not in done.stderr
