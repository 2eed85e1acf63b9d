"""The house keeps its shape: layers, start-up, words that do not belong in it, links that live."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import kubernetes_world

from arena_topo import workflow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "arena_topo"
HEAVY = ["kubernetes", "networkx", "jinja2", "yaml", "rich", "urllib3", "pydantic", "numpy"]

LOADED = """
import sys
from arena_topo.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("LOADED", [name for name in {names!r} if name in sys.modules])
"""
"""Runs a command and says in the last line which of these modules it has loaded."""


def test_each_layer_knows_only_the_layers_below_it():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_layers_in_the_docs_are_the_layers_that_are_enforced():
    declared = re.search(r"layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert declared
    layers = [one.replace("arena_topo.", "") for one in re.findall(r'"([^"]+)"', declared[1])]
    drawn = re.search(
        r"```text\n(cli.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL
    )
    assert drawn
    assert [line.split("  ")[0].strip() for line in drawn[1].strip().splitlines()] == layers


@pytest.mark.parametrize("words", [["--help"], ["version"], ["submit", "mpi", "--help"]])
def test_a_command_that_needs_no_cluster_loads_no_heavy_package(words):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(names=HEAVY), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED []"


PLACING = [
    "arena_topo.solver",
    "arena_topo.workflow.planning",
    "arena_topo.workflow.submission",
    "arena_topo.backends.observed",
    *(name for name in HEAVY if name not in {"yaml", "urllib3"}),
]
"""What only those need who place jobs; a kubeconfig is YAML, and servers are asked by urllib3."""


@pytest.mark.parametrize("words", [["get", "placed"], ["list"]])
def test_looking_at_jobs_of_a_cluster_does_not_load_what_places_them(tmp_path, words):
    with kubernetes_world("v2beta1")(tmp_path) as world:
        job = world.job("placed", gputopology=True, gang=True, workers=2, gpus=1)
        backend = world.backend
        backend.apply(workflow.plan(job, backend, namespace="default"))
        world.start("placed")
        done = subprocess.run(
            [sys.executable, "-c", LOADED.format(names=PLACING), *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "KUBECONFIG": str(tmp_path / "config")},
        )
    assert done.returncode == 0, done.stderr
    assert "RUNNING" in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_no_module_outgrows_one_sitting():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 700
    }
    assert not long


def texts():
    kinds = ("*.py", "*.md", "*.j2", "*.toml")
    found = [path for kind in kinds for path in ROOT.rglob(kind)]
    return [
        path
        for path in found
        if not any(
            part.startswith(".") or part in {"build", "dist"}
            for part in path.relative_to(ROOT).parts
        )
    ]


def test_every_link_between_pages_leads_somewhere():
    dead = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        dead += [
            f"{page.relative_to(ROOT)}: {target}"
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
        ]
    assert not dead


def test_no_path_of_a_developers_machine_is_written_down():
    mine = Path(__file__)
    pattern = re.compile(r"/(work|farm)/|/home/(?!me/)\w+/|/Users/\w+/")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts()
        if path != mine
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    assert not found
