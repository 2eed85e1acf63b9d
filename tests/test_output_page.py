"""docs/output.md names each command that prints JSON, all of its keys, and its columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import doc_worlds
import pytest
from test_data import claim

from arena_topo import cli
from arena_topo.cli import catalogue

PAGES = Path(__file__).parents[1] / "docs"
JOBS = "job_id,submit_s,duration_s,gpus\na,0,100,4\nb,10,100,8\nc,20,3000,16\n"
STEPS = "placement,step_ms\n1,921.5\n1+1,1481.5\n1+1+1,1289.6\n2,919.0\n2+2,2115.7\n"
LOG = (
    "# Collective test starting: all_reduce_perf\n"
    "#  Rank  0 Group  0 Pid  1 on  node-0 device  0 [0000:07:00] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid  1 on  node-0 device  1 [0000:0f:00] NVIDIA H100 80GB HBM3\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    "  1073741824     268435456     float     sum      -1   5366.0  200.10  200.10      0\n"
    "# Avg bus bandwidth    : 200.1\n"
)


class Case(NamedTuple):
    """A command line, by the command and what follows it, and the section that describes it."""

    command: str
    section: str
    more: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.command.split(), *self.more)


QUEUE, CHECKS = "get, list and top job", "check and nodes list"
PROGRAM, PLAN = "version, whoami and config view", "plan"
FIT = ("pcie-4", "--tcp", "--name=t4", "--date=2020-06-01", "--workload=bert-base-squad")
EMULATED = (
    Case("plan mpi", PLAN, ("--gpus=1", "--workers=2", "--top=2")),
    Case("plan mpi", PLAN, ("--gpus=1", "--workers=2", "--count-only")),
    Case("top node", "top node"),
    Case("top node", "top node", ("--frag",)),
    Case("topology show", "topology"),
    Case("topology show", "topology", ("dgx-1-v100",)),
    Case("topology presets", "topology"),
    Case("forecast", "forecast", ("dgx-1-v100", "--workload=vgg16")),
    Case("forecast", "forecast", ("hgx-h100", "--gpus=2", "--against=all-reduce.log")),
    Case("calibrate", "calibrate", (*FIT, "--measured=steps.csv")),
    Case("simulate", "simulate", ("jobs.csv", "--nodes=2xdgx-1-v100", "--processes=1")),
    Case("version", PROGRAM),
    Case("whoami", PROGRAM),
    Case("config view", PROGRAM, ("--resolved",)),
)
ON_A_CLUSTER = (
    Case("get", QUEUE, ("ring",)),
    Case("list", QUEUE, ("-A",)),
    Case("top job", QUEUE),
    Case("top job", QUEUE, ("ring",)),
    Case("top node", "top node"),
    Case("why", "why", ("ring",)),
    Case("topology show", "topology", ("node-0",)),
    Case("check", CHECKS),
    Case("check", CHECKS, ("ring",)),
    Case("nodes list", CHECKS),
    Case("data list", "data list", ("-A",)),
)
NOT_RUN = {
    "logs": "it is a stream of lines: docs/logs.md shows one",
    "topology discover": "it needs GPUs, and prints what `topology show PRESET` prints",
    "submit mpi": "an object of Kubernetes",
    "install": "objects of Kubernetes",
    "topology publish": "an object of Kubernetes",
}
DATA = {"shares", "leftOut", "neverFit", "interference"}
"""Keys of objects whose own keys are data: sizes, reasons, sensitivities."""


DRAWN = {"plan mpi", "topology show"}
"""Commands whose screens are drawings, which docs/plan-output.md explains, and matrices."""


def section(name: str) -> str:
    """The beginning of the page and a section of it; for `plan` the page of its own as well."""
    text = (PAGES / "output.md").read_text(encoding="utf-8")
    begins, body = text.partition("\n## ")[0], text.partition(f"\n## {name}\n")[2]
    assert body, name
    more = (PAGES / "plan-output.md").read_text(encoding="utf-8") if name == PLAN else ""
    return begins + body.partition("\n## ")[0] + more


def named(name: str) -> set[str]:
    """The words in code of a section, and the parts of `comparison.bestNowGBps`."""
    words = re.findall(r"`([^`\n]+)`", section(name))
    return {part for word in words for part in (word, *word.split("."))}


def keys(value: Any) -> Iterator[str]:
    """All keys of a document; what an object of Kubernetes holds as text is of it, too."""
    if isinstance(value, dict):
        if value.get("kind") == "ConfigMap":
            value = json.loads(value["data"]["calibration"])
        for key, inner in value.items():
            yield key
            if key not in DATA:
                yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


COLUMN = re.compile(r"[A-Z][A-Z0-9_ ]+|GPU\(\w+\)|GPU_MEMORY\(Used/Total\)|GB/s|P95|WAIT 1, .*")


def columns(screen: str) -> set[str]:
    """The headings of the tables of a screen: lines of nothing but capital words."""
    rows = (re.split(r"  +", line.strip()) for line in screen.splitlines())
    headings = (row for row in rows if len(row) > 1 and all(map(COLUMN.fullmatch, row)))
    return {"WAIT" if cell.startswith("WAIT") else cell for row in headings for cell in row}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a cluster with a job and a volume claim."""
    home = tmp_path_factory.mktemp("cluster")
    with doc_worlds.opened("cluster", home) as world, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(home / ".kube" / "config"))
        patch.setenv("HOME", str(home))
        world.cluster.api.add(claim("imagenet"))
        job = ("--name=ring", "--gpus=2", "--workers=2", "--gputopology", "--image=a/train:1")
        assert cli.run(["submit", "mpi", *job, "mpirun python train.py"]) == 0
        world.settle()
        yield home / ".kube" / "config"


def check_named(case: Case, arena: Callable[..., tuple[int, str, str]]) -> None:
    """The section of a command names the keys and columns that the command prints."""
    code, out, err = arena(*case.argv, "-o", "json")
    assert code == 0, err
    assert set(keys(json.loads(out))) - named(case.section) == set()
    for form in ((), ("-o", "wide")) if case.command not in DRAWN | {"whoami"} else ():
        code, out, err = arena(*case.argv, *form)
        assert code == 0, err
        assert columns(out) - named(case.section) == set()


@pytest.mark.parametrize("case", EMULATED, ids=lambda case: " ".join(case.argv))
def test_what_a_command_prints_about_emulated_machines_is_named(case, arena, monkeypatch, tmp_path):
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
    monkeypatch.chdir(tmp_path)
    for name, text in (("jobs.csv", JOBS), ("steps.csv", STEPS), ("all-reduce.log", LOG)):
        Path(name).write_text(text, encoding="utf-8")
    check_named(case, arena)


@pytest.mark.parametrize("case", ON_A_CLUSTER, ids=lambda case: " ".join(case.argv))
def test_what_a_command_prints_about_a_cluster_is_named(case, arena, monkeypatch, cluster):
    monkeypatch.setenv("KUBECONFIG", str(cluster))
    check_named(case, arena)


def test_the_page_has_each_command_that_prints_json():
    printing = {
        " ".join(command.path)
        for command in catalogue.commands()
        if any("json" in (option.metavar or "") for option in command.options)
    }
    assert printing == {case.command for case in (*EMULATED, *ON_A_CLUSTER)} | set(NOT_RUN)
    text = (PAGES / "output.md").read_text(encoding="utf-8")
    for command in printing:
        word = command.partition(" ")[0]
        assert re.search(rf"^## .*\b{word}\b|`{word}\b", text, re.MULTILINE), command
