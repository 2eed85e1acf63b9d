"""What the program answers a shell at TAB: at once, without complaint, what the parser takes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from functools import cache, reduce
from pathlib import Path
from typing import Any

import program
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from arena_topo import argv, cli, completion
from arena_topo.cli import catalogue, commands
from arena_topo.cli.commands import ALIASES, old_spellings
from arena_topo.cli.root import command_tree
from arena_topo.errors import UsageError
from arena_topo.topology import presets

ROOT = Path(__file__).parents[1]
ALL = {command.path: command for command in catalogue.commands()}
PROGRAM = "import sys; from arena_topo.__main__ import main; sys.exit(main())"
LEVELS = ["node", "nvlink", "leaf", "spine", "zone", "region", "beyond"]


def option(name: str) -> catalogue.CatalogueOption:
    """A flag of jobs."""
    return next(one for one in ALL["submit", "mpi"].options if name in one.names)


def nowhere() -> dict[str, str]:
    """An environment in which no name is known."""
    return {"HOME": "/dev/null", "ARENA_TOPO_BACKEND": "local"}


def said(*words: str, shell: str = "bash") -> tuple[str, dict[str, str]]:
    """The directive of an answer, and the candidates with what is said of each."""
    directive, *lines = completion.answer(shell, list(words), nowhere()).splitlines()
    return directive, {value: what for value, _, what in (line.partition("\t") for line in lines)}


def offered(*words: str) -> list[str]:
    return list(said(*words)[1])


def test_the_words_are_those_of_the_command_tree():
    again = f"make it again: python -m arena_topo.cli.catalogue > {catalogue.WORDS_FILE}"
    assert (ROOT / catalogue.WORDS_FILE).read_text() == catalogue.words(), again


# ---------------------------------------------------------------- what is offered where


def test_commands_in_the_order_of_the_help_each_with_its_summary():
    directive, found = said("")
    assert directive == "words keep"
    assert list(found) == [*ALL[()].commands, "help"]
    assert found["delete"] == "Delete jobs and all that belongs to them"
    assert offered("to") == ["top", "topology"]
    assert offered("topology", "") == ["presets", "show", "discover", "publish"]
    assert offered("submit", "m") == ["mpi"]
    assert offered("-n", "team", "--quiet", "top", "") == ["node", "job"]


def test_aliases_are_understood_and_completed_only_when_they_are_whole():
    assert offered("l") == ["list", "logs"]
    assert offered("ls") == ["ls"]
    assert offered("submit", "mj", "--image-pull-p") == ["--image-pull-policy"]
    assert offered("nodes", "ls", "-o", "") == ["wide", "json", "yaml"]


def test_help_is_followed_by_commands_alone():
    assert offered("hel") == ["help"]
    assert offered("help", "") == [*ALL[()].commands]
    assert offered("help", "top", "") == ["node", "job"]
    assert offered("help", "topology", "show", "") == []
    assert offered("topology", "help", "") == []


def test_after_a_command_that_there_is_not_nothing_is_offered():
    assert said("serve", "") == ("words keep", {})
    assert said("submit", "tfjob", "--") == ("words keep", {})


def test_flags_of_the_command_come_before_those_of_all():
    names = offered("get", "--")
    assert names[:3] == ["--events", "--gpus", "--explain"]
    assert names[-1] == "--help"
    assert names.index("--output") < names.index("--namespace")
    # One hyphen: the short ones too.
    assert offered("get", "-")[:4] == ["-e", "--events", "-g", "--gpus"]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_flag_is_offered_for_its_first_letters_unless_it_is_hidden(path):
    for one in ALL[path].options:
        for name in one.names:
            if not name.startswith("--"):
                assert (name in offered(*path, "-")) is not one.hidden
                continue
            for letters in {name[:3], name[: len(name) // 2 + 1], name}:
                assert (name in offered(*path, letters)) is not one.hidden, (name, letters)


def test_a_flag_that_was_given_is_offered_again_only_if_it_repeats():
    assert "--image" not in offered("submit", "mpi", "--image=x", "--im")
    assert "--priority" not in offered("submit", "mpi", "-phigh", "--pr")
    assert "--env" in offered("submit", "mpi", "-e", "A=1", "--e")
    assert offered("-n", "team", "get", "--names") == []
    assert offered("logs", "--fold=false", "--no-f") == []
    assert offered("submit", "mpi", "--workingDir", "/x", "--working") == []


def test_values_of_flags_however_they_are_written():
    assert offered("get", "-o", "") == ["wide", "json", "yaml", "name"]
    assert offered("get", "--output", "j") == ["json"]
    assert offered("get", "--output=j") == ["--output=json"]
    assert offered("get", "-oj") == ["-ojson"]
    assert offered("get", "-o=j") == ["-o=json"]
    assert offered("get", "-ewo") == ["-ewo"]
    assert offered("get", "-ewoj") == ["-ewojson"]
    assert offered("get", "-ewo", "j") == ["json"]
    assert offered("submit", "mpi", "--syncMode", "g") == ["git"]
    # What begins with a hyphen is a value all the same.
    assert offered("get", "-o", "-") == []
    assert offered("submit", "mpi", "--name", "--gang", "--policy", "p") == ["pack"]


def test_switches_take_no_word_and_can_be_told_true_or_false():
    assert offered("submit", "mpi", "--gang=") == ["--gang=true", "--gang=false"]
    assert offered("list", "-A=f") == ["-A=false"]
    assert offered("logs", "--no-") == ["--no-fold", "--no-keep"]
    assert offered("logs", "--no-fold", "-o", "t") == ["text"]
    assert offered("submit", "mpi", "--dry-run=") == ["--dry-run=client", "--dry-run=server"]
    assert "--output" in offered("submit", "mpi", "--dry-run", "--o")


def test_choices_with_capitals_can_be_typed_without():
    assert offered("submit", "mpi", "--mpi-implementation", "op") == ["openmpi"]
    assert offered("submit", "mpi", "--mpi-implementation", "O") == ["OpenMPI"]
    assert offered("submit", "mpi", "--clean-task-policy=RU") == ["--clean-task-policy=RUnning"]
    assert offered("list", "--status", "run") == ["running"]


def test_which_pods_of_logs_are_completed():
    assert offered("logs", "--only", "") == ["launcher", "rank:0", "worker:0"]
    assert offered("logs", "--only=r") == ["--only=rank:0"]


def test_states_are_completed_after_a_comma_and_none_twice():
    assert offered("list", "--status", "RUNNING,P") == ["RUNNING,PENDING"]
    assert offered("list", "--status=running,f") == ["--status=running,failed"]
    assert "RUNNING,RUNNING" not in offered("list", "--status", "RUNNING,")


def test_machines_with_their_numbers():
    assert offered("topology", "show", "dgx-1-v") == ["dgx-1-v100"]
    assert offered("topology", "show", "dgx-2", "")[0] == "--from"
    directive, found = said("--emulate", "dgx-1-v")
    assert (directive, list(found)) == ("words nospace keep", ["dgx-1-v100"])
    assert offered("--emulate=dgx-1-v100:")[0] == "--emulate=dgx-1-v100:2"
    assert offered("--emulate", "pcie-4:2,dgx-2")[:2] == ["pcie-4:2,dgx-2", "pcie-4:2,dgx-2:2"]
    assert offered("submit", "mpi", "--topology-required", "sp") == ["spine"]
    assert offered("submit", "mpi", "--gpu-model", "H") == ["H100", "H200", "H800", "H20"]
    assert all(level in option("--topology-required").help for level in LEVELS)
    assert offered("submit", "mpi", "--topology-preferred", "") == LEVELS
    assert offered("completion", "") == ["bash", "zsh", "fish", "powershell"]


def test_files_are_left_to_the_shell():
    for line in (
        ("submit", "mpi", "-f", ""),
        ("submit", "mpi", "--file=x"),
        ("--kubeconfig", "a"),
        ("submit", "mpi", "train"),
        ("submit", "mpi", "mpirun", ""),
        ("submit", "mpi", "mpirun", "-n"),
        ("submit", "mpi", "--", "mpirun", "-n"),
        ("attach", "job", "--", ""),
        ("attach", "job", "ls"),
    ):
        assert said(*line) == ("files", {}), line
    assert said("logs", "job", "--save", "") == ("folders", {})
    # To a shell this is one word, and no file begins like it.
    assert said("submit", "mpi", "-ftrain") == ("words keep", {})


def test_what_runs_in_a_job_has_no_flags_of_ours_unless_it_is_quoted():
    assert offered("submit", "mpi", "mpirun -np 4 x", "--gan") == ["--gang", "--gang-timeout"]
    assert offered("submit", "mpi", "mpirun -np 4 x", "")[:2] == ["--name", "--image"]
    assert said("attach", "job", "ls", "--cont") == ("files", {})


def test_where_no_word_fits_an_empty_one_becomes_a_flag():
    assert offered("list", "")[:2] == ["--all-namespaces", "--sort-by"]
    assert "--namespace" not in offered("list", "")
    assert offered("submit", "mpi", "")[:2] == ["--name", "--image"]
    assert offered("get", "job", "")[0] == "--events"
    assert offered("attach", "job", "")[0] == "--instance"
    assert offered("list", "x") == []


def test_arena_v2_s_names_of_commands_complete_as_those_do():
    assert offered("job", "s") == ["status", "suspend"]
    assert offered("job", "run", "--gang") == offered("submit", "mpi", "--gang")


def test_other_shells_and_older_scripts_get_nothing():
    for shell in ("", "complete_bash", "tcsh", "BASH"):
        assert completion.answer(shell, [""], nowhere()) == ""
    for shell in completion.SHELLS:
        assert completion.answer(shell, [], nowhere()) == completion.answer("bash", [""], nowhere())


# ---------------------------------------------------------------- names of the living world


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The environment of a user with two jobs on this machine, and one in another namespace."""
    folder = tmp_path_factory.mktemp("home")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "ARENA_TOPO_BACKEND": "local"}
    for name, at in (("one", []), ("two", []), ("three", ["-n", "team"])):
        line = [*at, "submit", "mpi", "--name", name, "--image=local", "--wait", "true"]
        assert program.run(line, env=environ).returncode == 0
    return environ


def named(environ: dict[str, str], *words: str) -> list[str]:
    answer = completion.answer("zsh", list(words), environ)
    return [line.partition("\t")[0] for line in answer.splitlines()[1:]]


def test_jobs_are_offered_once_each_in_the_namespace_of_the_line(home):
    assert named(home, "get", "") == ["one", "two"]
    assert named(home, "get", "t") == ["two"]
    assert named(home, "delete", "one", "") == ["two"]
    assert named(home, "delete", "one", "two", "") == []
    assert named(home, "delete", "--", "t") == ["two"]
    assert named(home, "--namespace=team", "logs", "-f", "") == ["three"]
    assert named(home, "get", "-gn", "team", "") == ["three"]
    assert named(home, "get", "-n", "default", "-nteam", "") == ["three"]
    assert named(home, "list", "--namespace=te") == ["--namespace=team"]
    # Another flag's value is no namespace, whatever it looks like.
    assert named(home, "list", "--selector", "-nteam", "--namespace", "") == ["default", "team"]
    assert named(home, "logs", "--include", "--namespace=team", "") == ["one", "two"]


def test_pods_are_those_of_the_job_on_the_line(home):
    assert program.run(["list"], env=home).returncode == 0
    (launcher, *_) = named(home, "logs", "one", "-i", "one-l")
    assert launcher.startswith("one-launcher")
    assert named(home, "logs", "one", "--instance=two") == []
    assert named(home, "logs", "-f", "two", "-itwo-l")[0].startswith("-itwo-launcher")
    # The name of the command is not that of a job.
    assert named(home, "logs", "-i", "") == []


# ---------------------------------------------------------------- as the parser reads it


@cache
def params(path: tuple[str, ...]) -> Any:
    """The real command of a path."""
    return reduce(lambda group, name: group.commands[name], path, command_tree())


def reader_of(path: tuple[str, ...]) -> argv.PflagParser:
    """What reads the line of a command when it runs."""
    command = params(path)
    group = hasattr(command, "commands")
    launches = not group and command.named is not None
    how = {"launches": launches, "named": command.named or 0} if launches else {}
    return argv.PflagParser(
        commands.line_options(command.declaration.options, old_spellings(takes_job=True)), **how
    )


def parsed(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The path, the flags and the words of a line, as the commands themselves read it."""
    path: tuple[str, ...] = ()
    flags: list[str] = []
    while True:
        command = params(path)
        group = hasattr(command, "commands")
        line = argv.parse_line(reader_of(path), words, leading=group)
        longs = {option.name: option.long for option in command.declaration.options}
        flags += [f"{longs[name]}={value}" for name, value in line.given_options]
        if not group or not line.positionals:
            return list(path), flags, line.positionals
        name = line.positionals[0]
        if name not in command.commands:
            name = ALIASES.get(name, name)
        if name not in command.commands:
            raise UsageError("no such command")
        path, words = (*path, name), list(line.positionals[1:])


def understood(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The same, as completion reads it; None as the path of what it does not understand."""
    line = completion.PartialLine({})
    for word in words:
        line.read(word)
    if line.reader.waiting is not None or line.unknown:
        raise UsageError("not whole")
    flags = [f"--{name}={value}" for name, value in line.reader.given_options]
    return line.path, flags, line.reader.positionals


def _spelled(option: catalogue.CatalogueOption) -> st.SearchStrategy[list[str]]:
    names = st.sampled_from((*option.names, *option.deprecated))
    short = option.names[0]
    if option.metavar is None:
        switches = [
            names,
            st.sampled_from(["=true", "=f", "=1", "=x"]).map(option.names[0].__add__),
        ]
        return st.one_of(*switches).map(lambda word: [word])
    values = st.sampled_from((*option.choices[:2], "x", "--", "-1", "=", "-o", "a b", "true", "f"))
    spelled = [
        st.tuples(names, values).map(list),
        st.tuples(names, values).map(lambda pair: ["=".join(pair)]),
        names.map(lambda name: [name]),
    ]
    if not short.startswith("--"):
        spelled.append(values.map(lambda value: [f"{short}{value}"]))
    return st.one_of(*spelled)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(catalogue.commands()))
    everywhere = st.sampled_from(ALL[()].options[:-1]).flatmap(_spelled)  # but --help
    loose = st.sampled_from(["--", "-", "job", "a b", "mpirun", "--no-gang", "-Aw", "-ewojson"])
    own = st.sampled_from(command.options[:-1]).flatmap(_spelled)
    words: list[str] = []
    for name in command.path:
        words += [one for each in draw(st.lists(everywhere, max_size=1)) for one in each]
        words += draw(st.sampled_from([[name], ["--", name]]))
    rest = st.one_of(own, everywhere, loose.map(lambda word: [word]))
    return words + [one for each in draw(st.lists(rest, max_size=5)) for one in each]


@settings(max_examples=4 * settings.default.max_examples, suppress_health_check=list(HealthCheck))
@given(lines())
@example(["--", "list", "-o", "json"])
@example(["attach", "--no-tty"])
@example(["logs", "--no-fold"])
@example(["list", "--no-mine"])
@example(["-q=f", "list", "-Aw=false"])
@example(["submit", "mpi", "--dry-run", "a b", "--syncMode", "git"])
def test_a_line_is_read_as_the_parser_reads_it(words):
    try:
        expected = parsed(words)
        assert understood(words) == expected
    except UsageError:
        # What the parser refuses may be understood, or not; it is to be survived.
        completion.answer("bash", [*words, ""], nowhere())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_flag_and_choice_that_is_offered_is_taken(path):
    command = params(path)
    known = {option.long: option for option in command.declaration.options}
    for one in ALL[path].options:
        long = next(name for name in one.names if name.startswith("--"))
        if one.hidden or long == "--help":
            continue
        for word in offered(*path, f"{long}="):
            (given,) = argv.parse_line(reader_of(path), [word]).given_options
            assert given[0] == known[long].name
            if known[long].switch:
                assert given[1] in {"true", "false"}
            else:
                assert known[long].parse(given[1])
        for choice in one.choices:
            lower = offered(*path, f"{long}={choice[:1].lower()}")
            for word in lower:
                assert known[long].parse(word.partition("=")[2])
            assert any(word.lower() == f"{long}={choice}".lower() for word in lower)


def test_names_of_machines_that_are_offered_are_machines():
    for name in offered("--emulate", ""):
        assert presets.emulated_machines(name)
        for several in offered("--emulate", f"{name}:"):
            assert presets.emulated_machines(several)


@pytest.mark.parametrize(
    "line",
    [
        ("version", "-o"),
        ("topology", "show"),
        ("topology", "presets", "--output"),
        ("plan", "mpi", "--name=j", "--image=i", "--gputopology", "--gpus=2", "c d", "--policy"),
        ("plan", "mpi", "--name=j", "--image=i", "--gputopology", "--gpus=2", "c d", "--pod-shape"),
        ("submit", "mpi", "--name=j", "--image=i", "--dry-run", "c d", "-o"),
        ("config", "view", "--color"),
        ("list", "--sort-by"),
        ("list", "--status"),
    ],
    ids=" ".join,
)
def test_what_is_offered_runs(line, capfd, monkeypatch, tmp_path):
    for name, value in {**nowhere(), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
    values = offered(*line, "")
    assert values
    for value in values:
        assert cli.run([*line, value]) == 0, (value, capfd.readouterr().err)


# ---------------------------------------------------------------- whatever is typed

_WORD = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *(name for one in ALL.values() for name in (*one.commands, *one.aliases)),
            *(name for one in ALL["submit", "mpi"].options for name in one.names),
            *(
                "--",
                "-",
                "",
                "--=",
                "-=",
                "---",
                "=",
                "-o=",
                "--status=A,,",
                "--emulate=:,",
                "\udcff",
            ),
        ]
    ),
)


@settings(max_examples=4 * settings.default.max_examples, suppress_health_check=list(HealthCheck))
@given(st.lists(_WORD, max_size=6))
@example(["list", "--status=\x1b,"])
@example(["list", "--status", "\x85\u2028,"])
def test_whatever_the_words_every_candidate_begins_with_the_one_at_the_cursor(words):
    answer = completion.answer("zsh", words, nowhere())
    directive, *lines = answer.split("\n")[:-1]
    kind, *more = directive.split(" ")
    assert kind in {"words", "files", "folders"}
    assert set(more) <= {"nospace", "keep"}
    values = [line.partition("\t")[0] for line in lines]
    assert all(value.startswith(words[-1] if words else "") for value in values)
    assert len(set(values)) == len(values)
    assert all(" " <= letter < "\x7f" or letter >= "\xa0" for value in values for letter in value)
    assert all(line.count("\t") <= 1 and len(line.splitlines()) == 1 for line in lines)


def tab(
    *words: str | bytes, shell: str = "bash", environ: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """A whole process that answers a shell."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**nowhere(), **(environ or {}), completion.ASKED: shell},
        check=False,
        timeout=60,
        **{"capture_output": True} | more,
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "complete_zsh", ""])
def test_the_process_answers_and_ends_well_for_any_shell(shell):
    done = tab("topology", "sh", shell=shell)
    known = b"words keep\nshow\tShow how the GPUs of a machine are linked\n"
    expected = known if shell in completion.SHELLS else b""
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")


def test_bytes_that_are_no_text_come_back_as_they_are():
    done = tab("list", "--status", b"\xff,", environ={"PYTHONUTF8": "1"})
    assert done.stdout.splitlines()[1] == b"\xff,PENDING"
    assert (done.returncode, done.stderr) == (0, b"")
    done = tab("list", "--status", b"\xe9,", environ={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"})
    assert done.stdout.splitlines()[1] == b"\xe9,PENDING"


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "", "XDG_CACHE_HOME": "/dev/null", "XDG_STATE_HOME": "/dev/null"},
        {"HOME": "relative"},
        {"HOME": "/proc/nobody"},
        {"XDG_CACHE_HOME": "/proc", "KUBECONFIG": "/dev/null:\n:/"},
        {"ARENA_TOPO_BACKEND": "nonsense"},
        {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "PYTHONWARNDEFAULTENCODING": "1"},
    ],
    ids=str,
)
def test_a_strange_environment_is_nothing_to_tell(environ, tmp_path):
    anew = any(name.startswith("PYTHON") for name in environ)
    for line in (("get", ""), ("--context", ""), ("logs", "j", "-i", ""), ("top", "node", "")):
        if anew:
            done = tab(*line, environ=environ, cwd=tmp_path)
        else:
            asked = {**nowhere(), **environ, completion.ASKED: "bash"}
            done = program.run(line, env=asked, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b""), line
        assert done.stdout.startswith(b"words keep\n")


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_closed_and_full_streams_are_nothing_to_tell(closed):
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" get "" {closed}', sys.executable, PROGRAM],
        env={**nowhere(), completion.ASKED: "bash"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_is_gone_is_nothing_to_tell():
    ours, theirs = os.pipe()
    os.close(ours)
    done = tab("submit", "mpi", "--", stdout=theirs, stderr=subprocess.PIPE, capture_output=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupted_answer_is_silent():
    ours, theirs = os.pipe()
    # A page is less than the answer: the process waits for a reader that never comes.
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "submit", "mpi", "--"],
        env={**nowhere(), completion.ASKED: "bash"},
        stdout=theirs,
        stderr=subprocess.PIPE,
        # What a shell started in the background ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as asked:
        try:
            os.close(theirs)
            assert os.read(ours, 1)  # it answers
            asked.send_signal(signal.SIGINT)
            _, err = asked.communicate(timeout=60)
        finally:
            asked.kill()
            os.close(ours)
    assert (asked.returncode, err) == (-signal.SIGINT, b"")


LOADED = """
import os, sys
bare = set(sys.modules)
from arena_topo import completion
for line in ["get", ""], ["submit", "mpi", "--"], ["logs", "job", "-i", ""], ["--context", ""]:
    completion.answer("bash", line, {"HOME": "/dev/null"})
print(*sorted(set(sys.modules) - bare))
"""


def test_an_answer_loads_nothing_that_python_has_not_loaded_already():
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}){LOADED}",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = {name for name in done.stdout.split() if not name.startswith("arena_topo")}
    assert loaded <= {"__future__", "time", "binascii"}
