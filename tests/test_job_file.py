"""A job as a file: what it says is what the flags say, and what it cannot say is an error."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import jsonschema
import prompt
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arena_topo import cli
from arena_topo import job as small
from arena_topo.cli import commands, jobfile
from arena_topo.cli.arguments import FileFlag
from arena_topo.cli.console import Console
from arena_topo.cli.jobfile import ARENA, Items, SingleValue, own_keys
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.errors import ArenaError, InvalidJob, UsageError
from arena_topo.flag import Flag, flags_of, spelling
from arena_topo.job import Duration, MPIJob, PlacementPolicy, Quantity, SyncMode, Toleration

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "job-file.md").read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a command line asks for."""

    job: MPIJob
    namespace: str


FOUND: list[Read] = []
"""What the command below was asked for, the last at the end."""


@command_from_records
def take(
    job: MPIJob,
    session: Session,
    *,
    file: FileFlag = "",
    state: Annotated[tuple[str, ...], Flag(help="As plan has it.")] = (),
    wait: Annotated[bool, Flag(help="As submit has it.")] = False,
) -> None:
    del file, state, wait
    FOUND.append(Read(job=job, namespace=session.common.namespace))


@cache
def command() -> Any:
    return commands.make_command(take, "mpi")


def asked(*argv: str) -> Read:
    """What a command that takes a job makes of a line, files and environment included."""
    command().main(args=list(argv), prog_name="take", standalone_mode=False, obj=Console())
    return FOUND.pop()


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., Read]:
    """What a file says, with more words on the line."""

    def tell(text: str | bytes, *argv: str, name: str = "job.yaml") -> Read:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return asked("-f", str(path), *argv)

    return tell


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., UsageError]:
    """The error of a file, which is called job.yaml."""
    monkeypatch.chdir(tmp_path)

    def refuse(text: str | bytes, *argv: str) -> UsageError:
        Path("job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UsageError) as caught:
            asked("-f", "job.yaml", *argv)
        return caught.value

    return refuse


LEAST = {"name": "a", "image": "i", "command": "c"}
"""What every job must have."""

EXAMPLES: dict[str, str | list[str]] = {
    "name": "bert",
    "image": "team/bert:1",
    "gpus": "2",
    "workers": "3",
    "cpu": "500m",
    "memory": "1e9",
    "launcher_cpu": "1",
    "launcher_memory": "2Gi",
    "share_memory": "64Mi",
    "device": ["rdma/hca=1", "amd.com/gpu=2"],
    "rdma": "true",
    "gputopology": "true",
    "gang": "true",
    "gpu_model": "V100",
    "mix_models": "true",
    "min_bandwidth": "12.5",
    "max_nodes": "2",
    "topology_required": "leaf",
    "topology_preferred": "node",
    "policy": "spread",
    "pack_above": "0.25",
    "binding": "template",
    "pod_shape": "separate",
    "gang_timeout": "1h30m",
    "patience": "2h",
    "on_node_loss": "hold",
    "selector": ["disk=ssd", "zone=no"],
    "toleration": ["all", "a=b:NoSchedule,Equal"],
    "scheduler": "volcano",
    "priority": "high",
    "queue": "true",
    "workload": "vgg16",
    "batch": "64",
    "gradient_bytes": "553MB",
    "step_time": "180ms",
    "env": ["A=no", "B=012", "C=22:22", "D=x=y", "E="],
    "nccl_debug": "true",
    "nccl_hca": "true",
    "working_dir": "/data",
    "shell": "bash",
    "label": ["team=vision"],
    "annotation": ["note=a b: c"],
    "image_pull_secret": ["one", "two"],
    "image_pull_policy": "Never",
    "service_account": "trainer",
    "mpi_implementation": "MPICH",
    "ssh_auth_mount_path": "/home/me/.ssh",
    "host_network": "true",
    "host_ipc": "true",
    "host_pid": "true",
    "data": ["claim:/data", "other:/more"],
    "data_dir": ["/mnt", "/host:/in"],
    "config_file": ["train.cfg", "a.cfg:/etc/a.cfg"],
    "sync_mode": "git",
    "sync_source": "https://example.com/a.git",
    "sync_image": "git-sync:v3.3.5",
    "mounts_on_launcher": "true",
    "tensorboard": "true",
    "tensorboard_image": "board:1",
    "logdir": "/logs",
    "model_name": "bert",
    "model_source": "s3://models/bert",
    "running_timeout": "48h",
    "ttl_after_finished": "0",
    "retry": "3",
    "clean_task_policy": "Running",
}
"""A value of every flag, as it is typed."""

BESIDE: dict[str, dict[str, str | list[str]]] = {
    "policy": {"gputopology": "true", "gpus": "1"},
    "pack_above": {"gputopology": "true", "gpus": "1", "policy": "adaptive"},
    "sync_mode": {"sync_source": "x", "sync_image": "i"},
    "tensorboard": {"tensorboard_image": "i"},
    "model_name": {"model_source": "x"},
    "batch": {"workload": "vgg16"},
    "gradient_bytes": {"step_time": "1s"},
    "step_time": {"workload": "vgg16"},
}
"""What else must be said."""


def typed(said: dict[str, str | list[str]]) -> list[str]:
    """These values as a command line."""
    flags = flags_of(MPIJob)
    command = said.get("command")
    return [
        f"{spelling(field, flags[field])}={one}"
        for field, value in said.items()
        if field != "command"
        for one in ([value] if isinstance(value, str) else value)
    ] + ([] if command is None else ["--", str(command)])


def written(said: dict[str, str | list[str]]) -> dict[str, str | list[str]]:
    """These values as the keys of a file."""
    keys = {field: key for key, field in own_keys().items()}
    return {keys[field]: value for field, value in said.items()}


def unquoted(said: dict[str, str | list[str]]) -> str:
    """A file with the values as bare as YAML allows; YAML 1.1 would read many as something else."""
    lines = []
    for key, value in written(said).items():
        if isinstance(value, str):
            lines.append(f"{key}: {bare(value)}")
        else:
            lines += [f"{key}:", *(f"- {bare(one)}" for one in value)]
    return "\n".join(lines) + "\n"


def bare(text: str) -> str:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return json.dumps(text)
    plain = isinstance(node, yaml.ScalarNode) and node.value == text and node.style is None
    return text if plain and not node.tag.endswith(":null") else json.dumps(text)


def needed(field: str) -> dict[str, str | list[str]]:
    needs = flags_of(MPIJob)[field].needs
    more = {"gputopology": "true", "gpus": "1"} if needs == ("--gputopology",) else {}
    return {**more, **BESIDE.get(field, {})}


def test_every_flag_has_an_example_here():
    assert list(EXAMPLES) == list(flags_of(MPIJob))


@pytest.mark.parametrize("field", EXAMPLES)
def test_a_file_says_what_the_line_says(told, field):
    said = {**LEAST, **needed(field), field: EXAMPLES[field]}
    if field == "gputopology":
        said["gpus"] = "1"
    line = asked(*typed(said))
    default = next(one.default for one in dataclasses.fields(MPIJob) if one.name == field)
    if field != "pod_shape":
        assert getattr(line.job, field) != default
    assert told(unquoted(said)) == line
    assert told(json.dumps(written(said))) == line
    assert told(json.dumps(written(said), indent="\t")) == line


def test_key_value_flags_are_mappings_too(told):
    said = {
        field: EXAMPLES[field] for field in ("env", "label", "annotation", "selector", "device")
    }
    keys = {key: dict(one.split("=", 1) for one in value) for key, value in written(said).items()}
    assert told(yaml.safe_dump({**keys, **LEAST}, sort_keys=False)) == asked(
        *typed({**said, **LEAST})
    )


def test_values_are_the_text_that_is_typed(told):
    text = """
name: a
image: 012
command: off
memory: 1e3
env: {A: no, B: 012, C: 22:22, D: 0x1F, E: 2001-01-01, F: 1_000, G: .inf, H: "~", on: yes}
"""
    job = told(text).job
    assert (job.image, job.command, str(job.memory)) == ("012", "off", "1e3")
    assert [str(one) for one in job.env] == [
        *("A=no", "B=012", "C=22:22", "D=0x1F", "E=2001-01-01", "F=1_000", "G=.inf", "H=~"),
        "on=yes",
    ]


def test_a_command_is_a_line_for_the_shell_or_a_list_of_words(told):
    line = "{name: a, image: i, command: 'mpirun python \"a b\"'}"
    assert told(line).job.command == 'mpirun python "a b"'
    words = "{name: a, image: i, command: [mpirun, -np, 4, 'a b']}"
    assert told(words).job.command == "mpirun -np 4 'a b'"
    block = "name: a\nimage: i\ncommand: |\n  set -e\n  mpirun python a.py\n"
    assert told(block).job.command == "set -e\nmpirun python a.py\n"


def test_flags_and_words_of_the_line_win(told):
    text = "{name: a, image: i, command: c, gpus: 2, gang: true, data: ['aa:/a'], namespace: far}"
    found = told(text, "--gpus=4", "--gang=false", "-d", "bb:/b", "-n", "near", "--", "d", "e")
    assert (found.job.gpus, found.job.gang, found.job.command) == (4, False, "d e")
    assert [str(one) for one in found.job.data] == ["bb:/b"]
    assert found.namespace == "near"


def test_key_value_flags_of_the_line_win_key_by_key(told):
    text = "{name: a, image: i, command: c, env: {A: 1, B: 2}}"
    job = told(text, "-e", "B=3", "-e", "C=4").job
    assert {one.key: one.value for one in job.env} == {"A": "1", "B": "3", "C": "4"}


def test_the_file_wins_over_the_environment(told, monkeypatch):
    monkeypatch.setenv("ARENA_TOPO_GPUS", "8")
    monkeypatch.setenv("ARENA_GANG", "true")
    monkeypatch.setenv("ARENA_TOPO_WORKERS", "5")
    job = told("{name: a, image: i, command: c, gpus: 2, gang: false}").job
    assert (job.gpus, job.gang, job.workers) == (2, False, 5)


def test_a_key_without_a_value_says_nothing(told, monkeypatch):
    monkeypatch.setenv("ARENA_TOPO_GPUS", "8")
    text = "name: a\nimage: i\ncommand: c\ngpus:\nenv: ~\ncpu: null\nworker:\n"
    assert told(text).job == asked(*typed({**LEAST, "gpus": "8"})).job


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_editors_may_write_a_file_in_their_ways(told, encoding):
    text = "name: a\r\nimage: i\r\ncommand: echo Grüße \U0001f600\r\n"
    assert told(text.encode(encoding)).job.command == "echo Grüße \U0001f600"


def test_json_may_write_its_escapes(told):
    text = '{"name":"a","image":"a\\/b","command":"\\ud83d\\ude00 \\t\\u00fc"}'
    job = told(text, name="job.json").job
    assert (job.image, job.command) == ("a/b", "\U0001f600 \tü")


@pytest.mark.parametrize("letter", ["\x7f", "\x85", "\x9f", "\u2028", "\u2029", "\ufeff"])
def test_json_may_have_characters_that_yaml_takes_for_a_line_break_or_refuses(told, letter):
    said = {"name": "a", "image": "i", "command": f"echo 1 {letter} 2"}
    assert told(json.dumps(said, ensure_ascii=False)).job.command == said["command"]


def test_an_anchor_may_stand_for_a_value(told):
    text = "name: &n bert\nimage: *n\ncommand: c\nlabel: &l {a: b}\nannotation: *l\n"
    job = told(text).job
    assert (job.image, str(job.annotation[0])) == ("bert", "a=b")


class Stdin(io.TextIOWrapper):
    """Standard input with a text in it."""

    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()))


def test_standard_input_is_a_file_too(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(json.dumps(LEAST)))
    assert asked("-f", "-").job == asked(*typed(LEAST)).job
    monkeypatch.setattr(sys, "stdin", Stdin("gpuz: 1"))
    with pytest.raises(UsageError, match=r"^standard input: line 1: gpuz is not known(\n|$)"):
        asked("-f", "-")


def test_two_files_cannot_both_be_standard_input():
    with pytest.raises(
        UsageError, match=r"^--file and --state cannot both be standard input(\n|$)"
    ):
        asked("-f", "-", "--state", "-")


def test_plan_and_submit_take_the_same_file(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    text = unquoted({**LEAST, "gpus": "1", "workers": "4", "gputopology": "true"})
    Path("job.yaml").write_text(text)
    where = ("--backend", "local", "--emulate", "dgx-1-v100:2")
    assert cli.run(["plan", "mpi", "-f", "job.yaml", *where, "-o", "json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert [worker["gpus"] for worker in plan["workers"]] == [[0], [1], [2], [3]]
    assert cli.run(["submit", "mpi", "-f", "job.yaml", *where, "--dry-run", "-o", "json"]) == 0
    assert "dgx-1-v100-0/0;dgx-1-v100-0/1;dgx-1-v100-0/2" in capfd.readouterr().out


# ---------------------------------------------------------------- what cannot be read

WRONG = {
    "an unknown key": ("gpuz: 2", "1: gpuz is not known", "did you mean gpus?"),
    "an underscore": (
        "launcher_cpu: 2",
        "1: launcher_cpu is not known",
        "did you mean launcher-cpu?",
    ),
    "a key of both vocabularies in neither's spelling": (
        "name: a\nworkingDir: /a",
        "2: workingDir is not known",
        "did you mean working-dir?",
    ),
    "nothing near": (
        "zzz: 2",
        "1: zzz is not known",
        "it is lines such as gpus: 2; arena-topo config schema has all keys",
    ),
    "an option of the command": (
        "name: a\nwait: true",
        "2: wait is not known",
        "a file describes the job; write --wait on the command line",
    ),
    "where it is submitted": (
        "context: lab",
        "1: context is not known",
        "a file describes the job; write --context on the command line",
    ),
    "a key twice": ("gpus: 2\nname: a\ngpus: 3", "3: gpus occurs twice; first in line 1", None),
    "a key of a mapping twice": (
        "env:\n  A: 1\n  A: 2",
        "3: env.A occurs twice; first in line 2",
        None,
    ),
    "a list for one value": ("image: [a]", "1: image is a list, not one value", None),
    "a mapping for a switch": ("gang: {a: b}", "1: gang is a mapping, not one value", None),
    "one value for many": (
        "data: claim:/x",
        "1: data is one value, not a list such as [A, B]",
        None,
    ),
    "a mapping for a list": (
        "data: {claim: /x}",
        "1: data is a mapping, not a list such as [A, B]",
        None,
    ),
    "one value for pairs": ("env: A", "1: env is one value, not a mapping such as {A: B}", None),
    "a mapping in a list": ("env: [{A: B}]", "1: env[0] is a mapping, not one value", None),
    "a list as a command's word": (
        "command: [a, [b]]",
        "1: command[1] is a list, not one value",
        None,
    ),
    "a variable without a value": (
        "env: {A: }",
        "1: env.A has no value",
        'write "" for an empty one',
    ),
    "an item without a value": (
        "data: [~]",
        "1: data[0] has no value",
        'write "" for an empty one',
    ),
    "an equals sign in a key": ("env: {A=B: C}", "1: env.A=B has a '=' in its key", None),
    "a list for a file": ("- name: a", "1: the file is a list, not a mapping", None),
    "a word for a file": ("name", "1: the file is one value, not a mapping", None),
    "a second document": (
        "name: a\n---\nname: b",
        "2: a second document begins, and one file is one job",
        "it is lines such as gpus: 2; arena-topo config schema has all keys",
    ),
    "a tag": ("name: !env USER", "1: name has the tag !env, which is not read", None),
    "a tag of a mapping": (
        "env: !vault {A: B}",
        "1: env has the tag !vault, which is not read",
        None,
    ),
    "a tag of an empty list": (
        "data: !vault []",
        "1: data has the tag !vault, which is not read",
        None,
    ),
    "binary": (
        "name: !!binary aGk=",
        "1: name has the tag tag:yaml.org,2002:binary, which is not read",
        None,
    ),
    "a merge key": (
        "<<: {gpus: 1}",
        "1: << is not known",
        "it is lines such as gpus: 2; arena-topo config schema has all keys",
    ),
    "a key that is a list": ("? [a]\n: b", "1: the file has a key that is no text", None),
    "YAML that is cut": (
        "name: [a",
        "1: not YAML: expected ',' or ']', but got '<stream end>'",
        "it is lines such as gpus: 2; arena-topo config schema has all keys",
    ),
    "a control character": (
        "name: a\nimage: \x07",
        "2: the character U+0007 is not allowed",
        "it is lines such as gpus: 2; arena-topo config schema has all keys",
    ),
    "a word for a mapping of arena's": (
        "lifecycle: x",
        "1: lifecycle is one value, not a mapping",
        None,
    ),
    "both vocabularies": (
        "gpus: 2\nworker:\n  resources:\n    nvidia.com/gpu: 2",
        "4: worker.resources.nvidia.com/gpu says again what gpus says in line 1",
        "set it once",
    ),
    "both vocabularies, the other way": (
        "envs: {A: 1}\nenv: {A: 1}",
        "2: env says again what envs says in line 1",
        "set it once",
    ),
    "both commands": (
        "run: a\ncommand: b",
        "2: command says again what run says in line 1",
        "set it once",
    ),
    "two shared memories": (
        "storages:\n- {name: a, shm: 1Gi}\n- {name: b, shm: 2Gi}",
        "3: storages[1] says again what storages[0] says in line 2",
        "set it once",
    ),
    "a description said twice": (
        "annotations: {kubernetes.io/description: a}\ndescription: b",
        "2: description says again what annotations says in line 1",
        "set it once",
    ),
    "another version": ("version: 0.2.0", "1: version can only be 0.1.0, got '0.2.0'", None),
    "another framework": (
        "framework: {name: pytorch}",
        "1: framework.name can only be mpi, got 'pytorch'",
        None,
    ),
    "a working launcher": (
        "framework: {name: mpi, options: {run_launcher_as_worker: true}}",
        "1: framework.options.run_launcher_as_worker can only be false, got 'true'",
        None,
    ),
    "a secret variable": (
        "envs: {A: {secret: a, key: b}}",
        "1: envs.A is a mapping, not one value",
        None,
    ),
    "a slip in a resource": (
        "worker: {resources: {memroy: 1Gi}}",
        "1: worker.resources.memroy is not known",
        "did you mean memory?",
    ),
    "a device of the launcher": (
        "launcher: {resources: {amd.com/gpu: 1}}",
        "1: launcher.resources.amd.com/gpu is not known",
        "did you mean nvidia.com/gpu?",
    ),
    "a GPU of the launcher": (
        "launcher: {resources: {nvidia.com/gpu: 1}}",
        "1: launcher.resources.nvidia.com/gpu can only be 0, got '1'",
        None,
    ),
    "a number for arena's workers": (
        "worker: 4",
        "1: worker is one value, not a mapping",
        "did you mean workers?",
    ),
    "a word for an item": ("storages: [x]", "1: storages[0] is one value, not a mapping", None),
    "a word for items": ("storages: x", "1: storages is one value, not a list", None),
    "a list for a value of an item": (
        "sync: [{git: [a]}]",
        "1: sync[0].git is a list, not one value",
        None,
    ),
    "a list for a mapping of arena's": (
        "worker: [a]",
        "1: worker is a list, not a mapping",
        None,
    ),
    "code from two places": (
        "sync: [{git: a}, {rsync: b}]",
        "1: sync[1] says again what sync[0] says in line 1",
        "set it once",
    ),
    "code from both": (
        "sync: [{git: a, rsync: b}]",
        "1: sync[0] needs git or rsync, one of them",
        None,
    ),
    "a branch said twice": (
        "envs: {GIT_SYNC_BRANCH: a}\nsync: [{git: a, branch: b}]",
        "2: sync[0] says again what envs says in line 1",
        "set it once",
    ),
    "a volume of no kind": (
        "storages: [{name: a, mount_path: /a}]",
        "1: storages[0] needs pvc, hostpath or shm, one of them",
        None,
    ),
    "a volume of two kinds": (
        "storages: [{pvc: c, hostpath: /h, mount_path: /d}]",
        "1: storages[0] needs pvc, hostpath or shm, one of them",
        None,
    ),
    "a branch of rsync": (
        "sync: [{rsync: u, image: i, branch: b}]",
        "1: sync[0] has a branch, which belongs to git, and this is rsync",
        None,
    ),
    "shared memory elsewhere": (
        "storages: [{name: a, shm: 1Gi, mount_path: /memory}]",
        "1: storages[0] shared memory is mounted at /dev/shm",
        None,
    ),
    "affinity": (
        "scheduling: {affinity: {policy: spread}}",
        "1: scheduling.affinity.policy can only be none, got 'spread'",
        None,
    ),
    "a taint without a key": (
        "scheduling: {tolerations: [{operator: Exists, effect: NoSchedule}]}",
        "1: scheduling.tolerations[0] needs a key, or is {operator: Exists} alone",
        None,
    ),
    "restarts": ("restart: OnFailure", "1: restart can only be Never, got 'OnFailure'", None),
    "init containers": (
        "init: []",
        "1: init is not known",
        "it is lines such as gpus: 2; arena-topo config schema has all keys",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_read_names_the_line_and_the_key(refused, what):
    text, message, hint = WRONG[what]
    error = refused(text)
    assert (error.message, error.hint) == (f"job.yaml: line {message}", hint)
    assert error.exit_code == 2


VALUES = {
    "gpus: two": "--gpus=two",
    "gpus: 2.0": "--gpus=2.0",
    "gputopology: yes": "--gputopology=yes",
    "policy: pile": "--policy=pile",
    "gang-timeout: 5": "--gang-timeout=5",
    "memory: lots": "--memory=lots",
    "min-bandwidth: fast": "--min-bandwidth=fast",
    "env: [A]": "--env=A",
    "data: [claim]": "--data=claim",
    "label: [A]": "--label=A",
    "device: {amd.com/gpu: x}": "--device=amd.com/gpu=x",
    "sync-mode: hdfs": "--sync-mode=hdfs",
}


@pytest.mark.parametrize("text", VALUES)
def test_a_value_that_its_flag_refuses_is_refused_in_the_same_words_and_with_its_line(
    refused, text
):
    with pytest.raises(UsageError) as caught:
        asked(VALUES[text])
    error = refused(f"name: a\n{text}")
    assert (error.message, error.why) == (caught.value.message, caught.value.why)
    assert str(error.hint).endswith(f"correct {text.partition(':')[0]} in job.yaml, line 2")


def test_a_value_in_arenas_words_is_refused_in_its_flags_words_with_its_line(refused):
    error = refused("lifecycle:\n  active_deadline: soon")
    assert error.message == "--running-timeout is invalid"
    assert error.hint == "correct running-timeout in job.yaml, line 2"


def test_a_job_that_makes_no_sense_says_where_the_file_says_so(refused):
    error = refused("name: a\nimage: i\ncommand: c\nworkers: 0")
    assert error.flag == "--workers"
    assert error.message == "--workers is invalid"
    assert error.hint == "correct workers in job.yaml, line 4"


def test_a_name_on_the_line_takes_the_place_of_a_generated_one_and_the_other_way(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    submit = ("submit", "mpi", "-f", "job.yaml", "--dry-run", "-o", "name", "--backend", "local")
    for key, words, name in (
        ("name: mine", ("--generate-name", "one-"), r"one-[a-z0-9]{5}"),
        ("generate-name: one-", ("--name", "mine"), "mine"),
        ("generate-name: one-", (), r"one-[a-z0-9]{5}"),
    ):
        Path("job.yaml").write_text(f"{key}\nimage: local\ncommand: c\n")
        assert cli.run([*submit, *words]) == 0
        out = capfd.readouterr().out
        assert re.fullmatch(rf"mpijob\.kubeflow\.org/{name}", out.splitlines()[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus: 1", "--name, --image and the command are missing"),
        ("name: a", "--image and the command are missing"),
        ("{name: a, command: ' '}", "--image and the command are missing"),
        ("{name: a, command: c}", "--image is missing"),
        ("{name: a, image: i}", "the command is missing"),
    ],
)
def test_all_that_a_job_must_have_is_named_at_once(refused, text, message):
    assert refused(text).message == message
    line = [f"--{key}={value}" for key, value in yaml.safe_load(text).items() if key != "command"]
    command = yaml.safe_load(text).get("command")
    with pytest.raises(UsageError) as caught:
        asked(*line, *([] if command is None else ["--", command]))
    assert caught.value.message == message


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n"])
def test_an_empty_file_is_an_error(refused, text):
    assert refused(text).message == "job.yaml: the file is empty"


def test_a_file_that_is_no_text_is_an_error(refused):
    assert refused(b"name: \xff\xfea").message == "job.yaml: is not UTF-8 text"


def test_a_file_that_is_nested_without_end_is_an_error(refused):
    deep = "[" * 3_000
    assert refused(f"name: {deep}").message == "job.yaml: it is nested too deeply"


@pytest.mark.parametrize(
    ("path", "why"), [("nowhere.yaml", "No such file or directory"), (".", "Is a directory")]
)
def test_a_file_that_cannot_be_opened_is_an_error(tmp_path, monkeypatch, path, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        asked("-f", path)
    assert caught.value.message == f"{path}: cannot be read: {why}"
    assert caught.value.hint is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (os.mkfifo, "cannot be read: it is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "cannot be read: it is no regular file"),
        (
            lambda path: path.write_text("command: |\n" + "  'a' b\n" * 500_000),
            "cannot be read: it is larger than",
        ),
        (
            lambda path: path.write_text(
                "env:\n" + "".join(f"  A{n}: b\n" for n in range(200_000))
            ),
            "cannot be read: it is larger than",
        ),
        (lambda path: path.symlink_to("/dev/null"), "the file is empty"),
    ],
    ids=["fifo", "endless", "command", "variables", "nothing"],
)
def test_what_is_no_file_or_has_no_end_is_refused_before_it_is_read(
    tmp_path, monkeypatch, made, said
):
    monkeypatch.chdir(tmp_path)
    made(Path("job.yaml"))
    with pytest.raises(UsageError, match=rf"^job\.yaml: {said}"):
        asked("-f", "job.yaml")


@pytest.mark.parametrize("where", ["/dev/fd/{0}", "/proc/self/fd/{0}"])
def test_what_a_shell_hands_over_is_a_file_too(where):
    def hand(data: bytes) -> Read:
        reader, writer = os.pipe()

        def write() -> None:
            # Whoever has read enough closes its end.
            with suppress(BrokenPipeError), os.fdopen(writer, "wb") as pipe:
                pipe.write(data)

        writing = threading.Thread(target=write)
        writing.start()
        try:
            return asked("-f", where.format(reader))
        finally:
            os.close(reader)
            writing.join()

    assert hand(json.dumps(LEAST).encode()).job == asked(*typed(LEAST)).job
    with pytest.raises(UsageError, match="is larger than 1 MiB"):
        hand(b"#" * (3 << 20))


def test_standard_input_is_not_read_without_end_either(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin("#" * (2 << 20)))
    with pytest.raises(
        UsageError, match=r"^standard input: cannot be read: it is larger than 1 MiB(\n|$)"
    ):
        asked("-f", "-")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"^standard input: cannot be read: it is closed(\n|$)"):
        asked("-f", "-")


@given(st.text(max_size=60) | st.binary(max_size=60))
@settings(max_examples=3 * settings.default.max_examples)
def test_no_file_is_a_mistake_of_the_program(tmp_path_factory, junk):
    path = tmp_path_factory.getbasetemp() / "junk.yaml"
    path.write_bytes(junk if isinstance(junk, bytes) else junk.encode("utf-8", "surrogatepass"))
    with pytest.raises(ArenaError):
        asked("-f", str(path))


# ---------------------------------------------------------------- arena v2


SCHEMA_OF_ARENA = """
version name namespace description labels annotations image run shell working_dir framework.name
framework.options.nproc_per_node framework.options.slots_per_worker
framework.options.mounts_on_launcher framework.options.run_launcher_as_worker envs worker.replicas
worker.envs worker.resources.nvidia.com/gpu worker.resources.cpu worker.resources.memory
worker.resources.* launcher.replicas launcher.envs launcher.resources.nvidia.com/gpu
launcher.resources.cpu launcher.resources.memory master chief ps evaluator sync[].git
sync[].rsync sync[].hdfs sync[].branch sync[].local_path sync[].image sync[].mounts init
storages[].name storages[].mount_path storages[].sub_path storages[].pvc storages[].shm
storages[].tmp storages[].hostpath storages[].configmap storages[].secret storages[].key
scheduling.priority scheduling.priority_class_name scheduling.gang.enabled
scheduling.scheduler_name scheduling.queue scheduling.node_selector scheduling.tolerations[].key
scheduling.tolerations[].operator scheduling.tolerations[].value scheduling.tolerations[].effect
scheduling.affinity.policy scheduling.affinity.constraint scheduling.affinity.target
scheduling.affinity.rules lifecycle.clean_pod_policy lifecycle.active_deadline
lifecycle.ttl_after_finished lifecycle.backoff_limit lifecycle.success_policy image_pull_policy
image_pull_secrets service_account restart host_network host_ipc host_pid
logging.tensorboard.enabled logging.tensorboard.logdir logging.tensorboard.image logging.wandb
"""
"""The keys of arena's schema 0.1.0 (kubeflow/arena, keps/arena-v2/yaml-schema.md, Full Schema)."""


def flat() -> Iterator[tuple[str, Any]]:
    """Every key of arena's that is read, by its path, with what becomes of it."""
    for path, target in ARENA.items():
        here = path.replace(" ", ".")
        if isinstance(target, Items):
            yield from ((f"{here}[].{one}", None) for one in target.keys)
        else:
            yield here + ".*" * (target == "device"), target


def test_what_is_read_of_arenas_words_is_in_its_schema_and_on_the_page():
    read = dict(flat())
    assert set(read) <= set(SCHEMA_OF_ARENA.split())
    assert not own_keys().keys() & ARENA.keys()
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)
    assert {path for path, _becomes, _why in rows} == set(read)
    for path, becomes, why in rows:
        target = read[path]
        if isinstance(target, SingleValue):
            assert (becomes, why) == (f"only {target.value}", target.why)
        elif target is not None and target.partition(" ")[0] in own_keys():
            assert becomes.strip("`").removeprefix("--") == target.partition(" ")[0]


@pytest.mark.parametrize(
    "path",
    sorted(set(SCHEMA_OF_ARENA.split()) - {path for path, _ in flat()} - own_keys().keys()),
)
def test_what_no_flag_says_of_arenas_words_is_refused(refused, path):
    content: Any = {"a": "b"}
    for key in reversed(path.split(".")):
        item = key.removesuffix("[]")
        content = {item: [content] if key != item else content}
    folder = path.replace("[]", "[0]")
    assert refused(json.dumps(content)).message == f"job.yaml: line 1: {folder} is not known"


def blocks(kind: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


ANYWHERE = "plan mpi -f job.yaml --emulate dgx-1-v100:2"


def joined(one: Any, other: Any) -> Any:
    """Two files as one: mappings and lists have what is in both, else the second wins."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = {key: joined(one[key], other[key]) for key in one.keys() & other.keys()}
        return {**one, **other, **both}
    return one + other if isinstance(one, list) and isinstance(other, list) else other


def examples() -> dict[str, str]:
    """The jobs of the page: the first of each vocabulary, and with what its site adds."""
    own, more, _editor, arenas, more_of_arenas = blocks("yaml")

    def both(*texts: str) -> str:
        # Every value as its text, as job files are read.
        loaded = [yaml.load(text, Loader=yaml.BaseLoader) for text in texts]
        return json.dumps(joined(*loaded)).replace('"true"', "true").replace('"false"', "false")

    return {
        "own": own,
        "arena": arenas,
        "own, on a site": both(own, more),
        "arena, on a site": both(arenas, more_of_arenas),
    }


def test_the_examples_of_the_page_are_the_same_job_in_both_vocabularies(told):
    page = examples()
    assert told(page["own"]) == told(page["arena"])
    assert told(page["own, on a site"]) == told(page["arena, on a site"])
    assert told(page["own, on a site"]).namespace == "vision"
    assert told(page["own"]).job.ttl_after_finished == Duration(7 * 86400)


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("name", ["own", "arena"])
def test_the_first_examples_of_the_page_can_be_planned_anywhere_as_they_stand(
    name, configured, tmp_path, monkeypatch, capfd
):
    assert blocks("bash")[0] == f"arena-topo {ANYWHERE}\n"
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(examples()[name])
    if configured:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "of-a-cluster"))
    code = cli.run(shlex.split(ANYWHERE))
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "bert: 4 workers x 2 GPUs can be placed now, on one node" in out
    assert "note: --topology-preferred leaf is left out: this cluster has no such level" in err


@pytest.mark.parametrize("name", ["own, on a site", "arena, on a site"])
def test_the_examples_of_the_page_can_be_submitted_on_a_site_that_has_what_they_need(
    name, tmp_path, capfd
):
    (tmp_path / "job.yaml").write_text(examples()[name])
    with prompt.opened("kubernetes-v2beta1", tmp_path, capfd) as arena:
        line = ("submit", "mpi", "-f", str(tmp_path / "job.yaml"), "--dry-run", "-o", "json")
        assert arena(*line)[0] != 0
        api = arena.world.api
        api.add({"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7})
        for node in ("node-0", "node-1"):
            with api.edit("Node", node) as one:
                one["metadata"].setdefault("labels", {})["pool"] = "training"
        code, out, err = arena(*line)
    assert code == 0, err
    found = json.loads(out)
    mpijob = found["items"][0] if "items" in found else found
    assert mpijob["metadata"]["namespace"] == "vision"
    worker = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 4
    assert worker["template"]["spec"]["priorityClassName"] == "high"


def test_the_command_lines_of_the_page_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(blocks("yaml")[0])
    lines = [shlex.split(line, comments=True) for line in blocks("bash")[1].splitlines()]
    found = [asked(*words[3:]).job for words in lines]
    assert [words[:3] for words in lines] == [
        ["arena-topo", verb, "mpi"] for verb in ("plan", *["submit"] * 4)
    ]
    assert [one.workers for one in found] == [4, 4, 8, 4, 4]
    assert {one.key: one.value for one in found[3].env}["NCCL_DEBUG"] == "WARN"
    assert found[4].command == "python smoke.py"


def test_what_has_no_flag_of_its_own_becomes_what_it_means(told):
    text = """
version: 0.1.0
name: a
image: i
run: c
description: an experiment
storages:
- {name: host, hostpath: /mnt, mount_path: /in}
- {name: shm, shm: 3Gi}
sync: [{git: x.git, image: g}]
scheduling:
  tolerations: [{operator: Exists}, {key: a, value: b, effect: NoExecute}]
  affinity: {policy: none}
logging: {tensorboard: {enabled: true, logdir: /logs, image: b}}
restart: Never
"""
    job = told(text).job
    assert [str(one) for one in job.annotation] == ["kubernetes.io/description=an experiment"]
    assert job.shell == "sh"
    assert [str(one) for one in job.data_dir] == ["/mnt:/in"]
    assert str(job.share_memory) == "3Gi"
    assert (job.sync_mode, job.sync_source) == (SyncMode.GIT, "x.git")
    assert [str(one) for one in job.env] == ["GIT_SYNC_BRANCH=main"]
    assert [str(one) for one in job.toleration] == ["all", "a=b:NoExecute,Equal"]
    assert (job.tensorboard, job.logdir, job.tensorboard_image) == (True, "/logs", "b")


def carried() -> Iterator[tuple[str, str]]:
    """Every key of arena's that is the word for a flag, with the flag's field."""
    for path, target in flat():
        field = own_keys().get(target) if isinstance(target, str) else None
        if field in flags_of(MPIJob) and not path.endswith("*"):
            yield re.sub(r"\.(?!com/)", "|", path), field


@pytest.mark.parametrize(("path", "field"), list(carried()))
def test_each_key_of_arenas_says_what_its_flag_says(told, path, field):
    value: Any = EXAMPLES[field]
    if isinstance(value, list) and field != "image_pull_secret":
        value = dict(one.split("=", 1) for one in value)
    *folders, key = path.split("|")
    content: dict[str, Any] = {key: value}
    for folder in reversed(folders):
        content = {folder: content}
    least = {**LEAST, **BESIDE.get(field, {})}
    text = json.dumps({**content, **{key.replace("_", "-"): one for key, one in least.items()}})
    assert told(text) == asked(*typed({field: EXAMPLES[field], **least}))


# ---------------------------------------------------------------- any job

words = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\x85\u2028\u2029"), max_size=12
)
amounts = st.sampled_from(["1", "500m", "0.5", "8Gi", "1e9", "+2", ".5", "3."])


def value_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of the type of a field."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from([*kind])
    made: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(1, 64),
        float: st.floats(0, 1, allow_nan=False),
        str: words,
        Quantity: amounts.map(Quantity.parse),
        Duration: st.integers(1, 10**6).map(Duration),
        small.DataSize: st.sampled_from(["553MB", "0.5GB", "12MiB"]).map(small.DataSize.parse),
        small.StepTime: st.sampled_from(["180ms", "1.5s", "1m"]).map(small.StepTime.parse),
        small.EnvVar: st.builds(small.EnvVar, key=words, value=texts),
        small.KeyValue: st.builds(small.KeyValue, key=words, value=words),
        small.Claim: st.builds(
            small.Claim,
            name=st.from_regex(r"[a-z]{2,6}", fullmatch=True),
            path=words.map("/{}".format),
        ),
        small.HostPath: st.builds(
            small.HostPath, host=words.map("/{}".format), container=words.map("/{}".format)
        ),
        small.ConfigFile: st.builds(
            small.ConfigFile, source=words, target=st.none() | words.map("/{}".format)
        ),
        small.Device: st.builds(
            small.Device,
            name=words.map("example.com/{}".format),
            quantity=st.integers(0, 9).map(str).map(Quantity.parse),
        ),
        small.Toleration: st.just(Toleration(operator="Exists"))
        | st.builds(Toleration, key=words, value=words, effect=st.sampled_from(["", "NoSchedule"])),
    }
    return made[kind]


@st.composite
def jobs(draw: st.DrawFn) -> MPIJob:
    """Any job that can be made, with some of its flags."""
    hints = get_type_hints(MPIJob)
    flags = flags_of(MPIJob)
    said: dict[str, Any] = {}
    for field in draw(st.lists(st.sampled_from([*flags]), unique=True)):
        hint = hints[field]
        if get_origin(hint) is tuple:
            kind = get_args(hint)[0]
            unique = (lambda one: one.name) if kind is small.Claim else repr
            said[field] = tuple(draw(st.lists(value_of(kind), max_size=3, unique_by=unique)))
        else:
            some = [one for one in get_args(hint) if one is not type(None)]
            said[field] = draw(value_of(some[0] if some else hint))
    said |= {"name": draw(words), "image": draw(words), "command": draw(texts.filter(str.strip))}
    if "pack_above" in said:
        said["policy"] = PlacementPolicy.ADAPTIVE
    if any(flags[field].needs for field in said if field in flags):
        said["gputopology"] = True
    if {"gradient_bytes", "step_time"} & said.keys():
        said = {key: value for key, value in said.items() if key not in {"workload", "batch"}}
        said["step_time"] = said.get("step_time", small.StepTime.parse("1s"))
        said.setdefault("gradient_bytes", small.DataSize.parse("1GB"))
    elif "batch" in said:
        said["workload"] = "vgg16"
    if said.get("gputopology"):
        said["gpus"] = max(1, said.get("gpus", 1))
    said["logdir"] = "/logs"
    for field in ("working_dir", "ssh_auth_mount_path"):
        if field in said:
            said[field] = f"/{said[field]}"
    if "image_pull_policy" in said:
        said["image_pull_policy"] = "IfNotPresent"
    said.setdefault("sync_source", "x")
    said.setdefault("sync_image", "i")
    said.setdefault("tensorboard_image", "i")
    said.setdefault("model_source", "y")
    try:
        return MPIJob(**said)
    except InvalidJob:
        assume(False)
        raise


def document(job: MPIJob) -> dict[str, Any]:
    """A job as the keys of a file: what is not by default."""
    keys = {field: key for key, field in own_keys().items()}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(MPIJob):
        value = getattr(job, field.name)
        if value == field.default:
            continue
        if isinstance(value, tuple):
            value = [str(one) for one in value]
        elif not isinstance(value, bool | float) and type(value) is not int:
            value = str(value)
        found[keys[field.name]] = value
    return found


@given(job=jobs(), style=st.sampled_from(["yaml", "flow", "json"]))
@settings(max_examples=2 * settings.default.max_examples)
def test_any_job_is_read_back_from_its_file(tmp_path_factory, job, style):
    data = document(job)
    if style == "json":
        text = json.dumps(data)
    else:
        text = yaml.safe_dump(data, default_flow_style=style == "flow", allow_unicode=True)
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    assert asked("-f", str(path)).job == job
    CHECKER.validate(data)


# ---------------------------------------------------------------- the schema

CHECKER = jsonschema.Draft202012Validator(jobfile.schema())


def test_the_schema_in_the_docs_is_the_one_that_is_printed(capfd):
    assert cli.run(["config", "schema"]) == 0
    out, err = capfd.readouterr()
    assert out == (ROOT / "docs" / "job.schema.json").read_text(encoding="utf-8")
    assert err == ""


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(jobfile.schema())
    assert jobfile.schema()["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]


def test_the_schema_takes_the_examples_of_the_page():
    for text in (blocks("yaml")[at] for at in (0, 1, 3)):
        CHECKER.validate(yaml.load(text, Loader=Editor))


class Editor(yaml.SafeLoader):
    """Reads YAML 1.2's core schema, as the language servers of editors do."""


Editor.yaml_implicit_resolvers = {
    letter: [
        (tag, re.compile(r"true|True|TRUE|false|False|FALSE") if tag.endswith(":bool") else form)
        for tag, form in found
        if tag.rpartition(":")[2] in {"bool", "int", "float", "null"}
    ]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    if letter not in {"y", "Y", "o", "O"}
}


def test_the_schema_knows_every_key_that_is_read_and_no_other():
    properties = jobfile.schema()["properties"]
    assert set(properties) == {*own_keys(), *(path.split(" ")[0] for path in ARENA)}
    assert all("description" in properties[key] for key in own_keys())


REFUSED_BY_SCHEMA = [
    what
    for what in WRONG
    if what
    not in {
        *("a key twice", "a key of a mapping twice", "a second document", "a tag", "binary"),
        *("a tag of a mapping", "a tag of an empty list"),
        *("YAML that is cut", "a control character", "a key that is a list"),
        # What keys say together is beyond what the schema checks.
        *("both vocabularies", "both vocabularies, the other way", "both commands"),
        *("two shared memories", "a description said twice"),
        *("code from two places", "code from both"),
        *("a branch said twice", "a volume of no kind", "shared memory elsewhere"),
        *("a volume of two kinds", "a branch of rsync", "a taint without a key"),
    }
]


@pytest.mark.parametrize("what", REFUSED_BY_SCHEMA)
def test_an_editor_marks_what_cannot_be_read(what):
    data = yaml.load(WRONG[what][0], Loader=Editor)
    assert not CHECKER.is_valid(data)


@pytest.mark.parametrize("text", VALUES)
def test_an_editor_marks_values_that_a_flag_refuses(text):
    # The form of a text is not in the schema, and to it 2.0 is as whole as 2.
    beyond = {"data: [claim]", "toleration: [a]", "gpus: 2.0"}
    assert CHECKER.is_valid(yaml.load(text, Loader=Editor)) is (text in beyond)


@given(st.from_regex(r"[+-]?[0-9.]{0,2}[KMGTPEinumk]{0,2}[eE]?[+-]?[0-9]?", fullmatch=True))
def test_the_schema_knows_a_quantity_when_it_sees_one(text):
    try:
        real = Quantity.parse(text).amount >= 0
    except ValueError as error:
        assume("out of range" not in str(error))
        real = False
    assert CHECKER.is_valid({"memory": text}) is real


@given(st.from_regex(r"[0-9.]{0,3}(h|m|s|ms|us|d|)[0-9]{0,2}(h|m|s|ms|)", fullmatch=True))
def test_the_schema_knows_a_time_span_when_it_sees_one(text):
    try:
        Duration.parse(text)
        real = True
    except ValueError:
        real = False
    assert CHECKER.is_valid({"gang-timeout": text}) is real
