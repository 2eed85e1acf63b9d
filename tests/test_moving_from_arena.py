"""docs/moving-from-arena.md against arena's commands (arena_commands.json) and ours.

The facts are arena's, retyped from its source; the page judges each of them; the command tree
decides whether the page is right.
"""

import json
import re
import shlex
from pathlib import Path

import prompt
import pytest

from arena_topo import cli
from arena_topo.cli.commands import ALIASES, old_spellings
from arena_topo.cli.options import GLOBAL_PANEL
from arena_topo.cli.root import command_tree

PAGE = Path(__file__).parents[1] / "docs" / "moving-from-arena.md"
ARENA = json.loads((Path(__file__).parent / "arena_commands.json").read_text(encoding="utf-8"))
COMMANDS = ARENA["commands"]
GLOBAL = "arena"
TREE = command_tree()
JUDGEMENTS = {"same", "better", "not carried over"}


def rows(section):
    """The cells of the table below a heading, without the code marks of the first."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"\n{section}\n")
    assert found, f"the page has no {section}"
    text = re.split(r"\n#", rest, maxsplit=1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def title(command):
    return "### Global flags" if command == GLOBAL else f"### {command}"


def judged(command):
    """Flag -> what the page says of it."""
    if not COMMANDS[command]["flags"]:
        return {}
    return {row[0].strip("`"): row[1] for row in rows(title(command))}


JUDGED = [
    (command, flag, judgement)
    for command in COMMANDS
    for flag, judgement in judged(command).items()
]


def ours(command):
    """The command of ours that a name of arena's calls; None if there is none."""
    found = TREE
    for word in () if command == GLOBAL else command.split():
        commands = getattr(found, "commands", {})
        found = commands.get(word) or commands.get(ALIASES.get(word, word))
        if found is None:
            return None
    return found


def options(command):
    """Every option of a command of ours by its long spelling."""
    return {param.opts[-1]: param for param in command.params if param.param_type_name == "option"}


# ---------------------------------------------------------------- the page and arena


def test_the_page_judges_every_command_of_arena_and_no_other():
    names = [row[0].strip("`").removeprefix("arena ") for row in rows("## Commands")]
    assert sorted(names) == sorted([*COMMANDS.keys() - {GLOBAL}, *ARENA["others"]])


@pytest.mark.parametrize("command", [name for name in COMMANDS if COMMANDS[name]["flags"]])
def test_the_page_judges_every_flag_of_a_command_and_no_other(command):
    assert list(judged(command)) == list(COMMANDS[command]["flags"])


def test_every_judgement_is_one_of_three_and_says_why_unless_it_is_the_same():
    for section in ("## Commands", *(title(one) for one in COMMANDS if COMMANDS[one]["flags"])):
        for name, judgement, why in rows(section):
            assert judgement in JUDGEMENTS, name
            assert judgement == "same" or why, name


# ---------------------------------------------------------------- the page and us


def test_commands_are_there_or_not_as_the_page_says():
    for name, judgement, _why in rows("## Commands"):
        command = name.strip("`").removeprefix("arena ")
        there = ours(command) is not None
        assert there is (judgement != "not carried over"), command


@pytest.mark.parametrize(
    ("alias", "command"),
    [(alias, name) for name, one in COMMANDS.items() for alias in one.get("aliases", ())],
)
def test_short_names_of_commands_are_arenas(alias, command):
    assert ALIASES.get(alias, alias) == ALIASES.get(command.split()[-1], command.split()[-1])


@pytest.mark.parametrize(("command", "flag", "judgement"), JUDGED)
def test_a_flag_is_there_or_not_as_the_page_says(command, flag, judgement):
    found = ours(command)
    fact = COMMANDS[command]["flags"][flag]
    if judgement == "not carried over":
        known = {} if found is None else options(found)
        assert flag not in known or known[flag].hidden
        return
    if now := old_spellings(takes_job=True).get(flag):
        assert fact.get("deprecated", now) == now
        flag = now
    else:
        assert "deprecated" not in fact
    option = options(found)[flag]
    assert not option.hidden
    assert option.is_flag is (fact["kind"] == "bool")
    assert option.multiple is (fact["kind"] == "list")
    if "short" in fact:
        assert fact["short"] in option.opts
    if judgement == "same":
        said = re.search(r"\(default (.*)\)$", option.help)
        assert (said[1] if said else "") == str(fact["default"] or "")


def test_what_is_not_carried_over_says_so_when_it_is_typed(capfd):
    for name, judgement, _why in rows("## Commands"):
        if judgement == "not carried over":
            words = name.strip("`").split()[1:]
            assert cli.run([*words, "x"]) == 2
            said = capfd.readouterr().err
            if words[0] == "submit":
                assert f"cannot submit {words[1]} jobs: only MPI jobs are supported\n" in said
            else:
                assert said.startswith(f"error: arena's command {words[0]} is not carried over\n")


GUIDE = [
    '--gpus=1 --workers=1 --image=centos:7 --tensorboard --config-file {file} "sleep 600"',
    (
        "--gpus=1 --workers=2 --image=uber/horovod:0.13.11-tf1.10.0-torch0.4.0-py3.5"
        " --env=GIT_SYNC_BRANCH=cnn_tf_v1.9_compatible --sync-mode=git"
        " --sync-source=https://github.com/tensorflow/benchmarks.git --tensorboard"
        ' "mpirun python code/benchmarks/scripts/tf_cnn_benchmarks.py --model resnet101"'
    ),
    (
        '--gpus=1 --workers=4 --gputopology=true --image=tensorflow-benchmark:tf2.3.0 "mpirun'
        ' --allow-run-as-root -np "4" -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x PATH --mca'
        ' pml ob1 --mca btl ^openib python tf_cnn_benchmarks.py --model=vgg16 --batch_size=64"'
    ),
    '--priority=medium --gpus=1 --workers=1 --image=horovod "mpirun tail -f /dev/null"',
    (
        "--rdma --gpus=1 --workers=2 --image=uber/horovod --syncMode=git"
        ' --syncSource=https://github.com/tensorflow/benchmarks.git --tensorboard "mpirun true"'
    ),
    '--gpus=1 --workers=1 --selector gpu_node=true --image=horovod --tensorboard "mpirun true"',
    (
        "--gpus=1 --workers=1 --toleration ssd_node --toleration gpu_node --image=horovod"
        ' --tensorboard --loglevel debug "mpirun true"'
    ),
]
"""The options and commands of the lines in docs/training/mpijob of arena, shortened."""


@pytest.mark.parametrize("line", GUIDE)
def test_lines_of_arenas_guide_are_taken_once_the_images_are_in_the_settings(
    line, tmp_path, capfd, monkeypatch
):
    settings = re.search(
        r"```toml\n(\[submit\]\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "settings.toml").write_text(settings[1])
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(tmp_path / "settings.toml"))
    (tmp_path / "conf").write_text("{}")
    words = shlex.split(line.format(file=f"{tmp_path / 'conf'}:/etc/config/config.json"))
    with prompt.opened("kubernetes-v2beta1", tmp_path, capfd) as arena:
        code, out, err = arena("submit", "mpi", "--name=mpi-dist", *words, "--dry-run", "-o=json")
    assert code == 0, err
    found = json.loads(out)
    mpijob = found["items"][0] if "items" in found else found
    assert mpijob["metadata"]["name"] == "mpi-dist"
    if "--toleration" in words:
        worker = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
        assert {"key": "ssd_node", "operator": "Exists"} in worker["tolerations"]


def test_what_only_we_have_is_all_on_the_page():
    listed = [(row[0].strip("`"), row[1].strip("`")) for row in rows("## Only here")]
    expected = set()

    def walk(command, path):
        name = " ".join(path)
        theirs = next((one for one in COMMANDS if ours(one) is command), None)
        if theirs is None and path and not getattr(command, "commands", None):
            expected.add((name, ""))
        elif theirs is not None:
            for flag, option in options(command).items():
                shared = flag in COMMANDS[theirs]["flags"] or option.hidden
                if not shared and (not path or option.rich_help_panel not in {GLOBAL_PANEL, None}):
                    expected.add((name or "all commands", flag))
        for word, one in getattr(command, "commands", {}).items():
            walk(one, (*path, word))

    walk(TREE, ())
    assert len(listed) == len(set(listed))
    assert set(listed) - expected == set(), "on the page, but not there"
    assert expected - set(listed) == set(), "there, but not on the page"


def test_each_of_our_own_flags_is_explained():
    assert all(row[2] for row in rows("## Only here"))
