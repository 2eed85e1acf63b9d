"""Files that make no sense, are too much, or have no end: one plain error, and never a traceback.

Of each flag that takes a file, as of a file that a stranger wrote.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arena_topo.clusters import dump

Run = Callable[..., tuple[int, str, str]]

DUMP = Path(__file__).parent / "dumps" / "two-dgx-1.json"
MANY_DIGITS = "1" + "0" * 5000
FABRIC = "levels: [{name: rack, label: example.com/rack}]\n"

READERS = {
    "--from": ("topology", "show", "--from"),
    "--bus-bandwidth": (
        *("topology", "publish", "node-1", "--preset=dgx-1-v100", "--dry-run"),
        "--bus-bandwidth",
    ),
    "--fabric": ("topology", "show", "--state", str(DUMP), "--fabric"),
    "--state": ("top", "node", "--state"),
    "--nccl --from": ("logs", "--nccl", "--from"),
    "--file": ("plan", "mpi", "--file"),
}
"""A command for each flag that reads a file, but for its name."""


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], str]:
    def written(text: str | bytes) -> str:
        path = tmp_path / "odd.file"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return written


def refused(done: tuple[int, str, str], *said: str) -> None:
    code, out, err = done
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for one in said:
        assert one in err


# ---------------------------------------------------------------- what is no file


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_standard_input_that_is_closed_is_an_error(
    words: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", None)
    refused(run(*words, "-"), "standard input", "it is closed")


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_a_device_without_an_end_is_no_file(words: tuple[str, ...], run: Run):
    refused(run(*words, "/dev/zero"), "/dev/zero")


@pytest.mark.parametrize("flag", ["--state", "--fabric", "--from", "--file"])
def test_zeros_without_end_from_a_pipe_are_no_text(
    flag: str, run: Run, monkeypatch: pytest.MonkeyPatch
):
    with Path("/dev/zero").open("rb") as zeros:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=zeros))
        refused(run(*READERS[flag], "-"), "standard input")


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    writers: list[threading.Thread] = []

    def made(text: str) -> str:
        path = tmp_path / f"pipe-{len(writers)}"
        os.mkfifo(path)
        writers.append(threading.Thread(target=path.write_text, args=(text,), daemon=True))
        writers[-1].start()
        return str(path)

    yield made
    for one in writers:
        one.join(10)


def test_pipes_are_files(run: Run, pipe: Callable[[str], str]):
    fabric, state = pipe(FABRIC), pipe(DUMP.read_text(encoding="utf-8"))
    assert run("topology", "show", "--fabric", fabric, "--state", state)[0] == 0


def test_dumps_and_networks_come_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch):
    for flag, text in (("--state", DUMP.read_bytes()), ("--fabric", FABRIC.encode())):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        assert run(*READERS[flag], "-")[0] == 0


# ---------------------------------------------------------------- numbers, dates, depths


def node(**labels: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": labels}}


@pytest.mark.parametrize("place", ["--state", "--fabric", "--from", "--bus-bandwidth", "--file"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f'{{"kind": "Node", "x": {MANY_DIGITS}}}', id="JSON"),
        pytest.param(f"kind: Node\nx: {MANY_DIGITS}\n", id="YAML"),
        pytest.param(f"kind: Node\nx: 0x{'f' * 5000}\n", id="hexadecimal"),
        pytest.param("kind: Node\nx: 2020-13-45\n", id="date"),
        pytest.param("kind: Node\nx: 0b_\n", id="binary"),
        pytest.param("kind: Node\nx: !!int ''\n", id="no digits"),
        pytest.param("kind: Node\nx: !!timestamp soon\n", id="no time"),
        pytest.param("kind: Node\nx: !!bool perhaps\n", id="no truth"),
        pytest.param('{"x": ' + '{"x": ' * 5000, id="deep JSON"),
        pytest.param("x: " + "[" * 5000, id="deep YAML"),
        pytest.param("- " * 100_000, id="deep lists"),
        pytest.param("a: &a [*a]\nkind: Node\n", id="a value in itself"),
    ],
)
def test_values_that_no_program_can_read_are_refused_with_the_file(
    place: str, text: str, run: Run, file: Callable[[str], str]
):
    path = file(text)
    refused(run(*READERS[place], path), path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Node\nx: [\n", "line 3, column 1: not YAML"),
        ("kind: Node\nx: " + "[" * 5000, "is nested too deeply (line 2)"),
    ],
)
def test_of_a_dump_the_line_is_named(text: str, said: str, run: Run, file: Callable[[str], str]):
    refused(run(*READERS["--state"], file(text)), said)


def test_a_number_that_nobody_reads_may_have_many_digits(run: Run, file: Callable[[str], str]):
    whole = json.loads(DUMP.read_text(encoding="utf-8"))
    nodes = "".join(json.dumps(one) for one in whole["items"])
    code, out, err = run(
        *("top", "node", "--state"),
        file(f'{nodes}{{"kind": "Pod", "metadata": {{"name": "p"}}, "x": {MANY_DIGITS}}}'),
    )
    assert (code, "dgx-1" in out) == (0, True)
    assert err == ""


@pytest.mark.parametrize("place", ["--state", "--fabric"])
def test_aliases_which_can_stand_for_any_number_of_values_are_refused(
    place: str, run: Run, file: Callable[[str], str]
):
    path = file("kind: Node\nmetadata: &a {name: a}\nlevels: [*a]\n")
    refused(run(*READERS[place], path), path, "has an alias, and aliases are not read (line 3)")


# ---------------------------------------------------------------- jobs, machines and pods


JOB = "name: x\nimage: i\ncommand: train\ngputopology: true\ngpus: 1\nworkers: 2\n"


@pytest.mark.parametrize(
    "more",
    [
        "env:\n" + "".join(f"  A{at}: b\n" for at in range(20_000)),
        pytest.param(
            "toleration:\n" + "- k=v:NoSchedule,Equal\n" * 20_000, marks=pytest.mark.exhaustive
        ),
    ],
    ids=["env", "toleration"],
)
def test_a_job_file_of_more_values_than_any_object_holds_is_refused(
    more: str, run: Run, file: Callable[[str], str]
):
    path = file(JOB + more)
    refused(run("plan", "mpi", "--file", path), f"{path}: line ", "more than 20,000 values")


def test_a_job_file_of_many_values_is_read(run: Run, file: Callable[[str], str]):
    path = file(JOB + "env:\n" + "".join(f"  A{at}: b\n" for at in range(500)))
    code, out, _err = run(
        *("submit", "mpi", "--file", path, "--dry-run", "-o", "yaml", "--state", str(DUMP))
    )
    assert (code, "name: A499" in out) == (0, True)


def test_a_path_that_no_system_takes_is_refused(run: Run, file: Callable[[str], str]):
    path = file(JOB + 'config-file: ["\\0:/etc/x"]\n')
    refused(run("plan", "mpi", "--file", path, "--state", str(DUMP)), "--config-file", "NUL")


@pytest.mark.parametrize("path", ["/dev/zero", "large"])
def test_a_config_file_without_an_end_is_refused(
    path: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("large").write_bytes(b"x" * (1 << 20) + b"y")
    words = (*("--gpus=1", "--image=i", "--gputopology"), f"--config-file={path}:/etc/x", "train")
    code, out, err = run("plan", "mpi", "--name=x", *words, "--state", str(DUMP))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot read --config-file {path}\n  why:  ")


@pytest.mark.parametrize("cpu", ["1e-320", "0.1n", "1n"])
def test_a_part_of_a_cpu_that_is_next_to_nothing_is_placed(cpu: str, run: Run):
    code, out, _err = run(
        *("plan", "mpi", "--name=x", "--gpus=1", "--workers=2", "--gputopology", "--image=i"),
        *(f"--cpu={cpu}", "--state", str(DUMP), "train"),
    )
    assert (code, "2 workers" in out or "dgx" in out) == (0, True)


@pytest.mark.parametrize(
    ("meta", "data", "said"),
    [
        ({"labels": {"nodename": ["a"]}}, {}, "data.nodeName: is missing"),
        ({"labels": {"nodename": "a"}}, {"nodeName": {"a": "a"}}, "expected a text, got a mapping"),
    ],
)
def test_a_published_machine_without_a_name_is_refused(
    meta: dict[str, Any], data: dict[str, Any], said: str, run: Run, file: Callable[[str], str]
):
    whole = {"kind": "ConfigMap", "metadata": meta, "data": {"devices": '{"0": "Healthy"}', **data}}
    refused(run("topology", "show", "--from", file(json.dumps(whole))), said)


@pytest.mark.parametrize("odd", [{"a": "b"}, ["0"], 7, None])
@pytest.mark.parametrize("place", ["annotation", "nodeName"])
def test_a_pod_that_is_somewhere_odd_costs_one_note_at_most(
    place: str, odd: object, run: Run, file: Callable[[str], str]
):
    whole = json.loads(DUMP.read_text(encoding="utf-8"))
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {
            "name": "j",
            "namespace": "default",
            "annotations": {
                "arena-topo.io/state": "placed",
                "arena-topo.io/placement": "dgx-0/0",
                "arena-topo.io/forecast": '{"guarantee": "node"}',
            },
        },
        "spec": {
            "mpiReplicaSpecs": {
                "Worker": {
                    "replicas": 1,
                    "template": {
                        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}
                    },
                }
            }
        },
    }
    annotations = {"topology.kubernetes.io/gpu-group": odd} if place == "annotation" else {}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "j-worker-0", "namespace": "default", "annotations": annotations},
        "spec": {
            "nodeName": odd if place == "nodeName" else "dgx-0",
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}],
        },
        "status": {"phase": "Running"},
    }
    whole["items"] += [job, pod]
    code, out, err = run("top", "node", "--state", file(json.dumps(whole)))
    assert (code, "dgx-0" in out) == (0, True)
    assert sum("j-worker-0" in line for line in err.splitlines()) <= 1


def test_a_network_of_more_levels_than_any_has_is_refused(run: Run, file: Callable[[str], str]):
    levels = [{"name": f"l{at}", "label": f"example.com/l{at}"} for at in range(20_000)]
    path = file(json.dumps({"levels": levels[:17]}))
    refused(
        run(*READERS["--fabric"], path), f"{path}: line 1: levels: expected a list of length <= 16"
    )
    path = file(json.dumps({"levels": levels}))
    refused(run(*READERS["--fabric"], path), f"{path}: is larger than 256 KiB")
    path = file("levels:\n" + "- {name: a, label: b}\n" * 1000)
    refused(run(*READERS["--fabric"], path), f"{path}: has more than 2,000 values (line ")
    path = file(json.dumps({"levels": levels[:16]}))
    assert run(*READERS["--fabric"], path)[0] == 0


@pytest.mark.parametrize("place", ["--state", "--fabric"])
def test_yaml_is_read_as_deep_as_any_object_is_and_no_deeper(
    place: str, run: Run, file: Callable[[str], str]
):
    for depth, said in ((98, ""), (200, "is nested too deeply (line 3)")):
        deep = f"kind: Node\nmetadata: {{name: a}}\nx: {'[' * depth}{']' * depth}\n"
        path = file(deep if place == "--state" else f"#\n#\nlevels: {'[' * depth}{']' * depth}\n")
        code, _out, err = run(*READERS[place], path)
        assert (said in err, "Traceback" in err) == (True, False)
        assert (code == 0) == (place == "--state" and not said)


def test_yaml_without_an_end_is_left_at_a_bound(run: Run, monkeypatch: pytest.MonkeyPatch):
    class Endless:
        def read(self, size: int) -> bytes:
            return b"kind: Node\n---\n" * (size // 15)

    monkeypatch.setattr(dump, "_MOST_YAML", 4 << 20)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Endless()))
    refused(run(*READERS["--state"], "-"), "YAML of more than 4 MB is not read")
