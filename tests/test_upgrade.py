"""Commands of two versions on one cluster, as during an upgrade: each respects the other's records.

The later version is the wheel of a copy of this clone that writes records of the next format, reads
both, and has an annotation, a state, a reason and a field of the request more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import doc_worlds
import program
import pytest

import arena_topo

CLONE = Path(__file__).parent.parent
SOURCES = (
    *("arena_topo", "templates", "completions", "docs/man", "docs/site/metadata.py"),
    *("pyproject.toml", "README.md", "LICENSE"),
)
NEXT = "0.99.0"
CHANGES = {
    "__init__.py": [(f'__version__ = "{arena_topo.__version__}"', f'__version__ = "{NEXT}"')],
    "manifests/annotations.py": [
        ('FORMAT_ANNOTATION: "v1"', 'FORMAT_ANNOTATION: "v2"'),
        ('FORMAT_ANNOTATION, {"v1"}', 'FORMAT_ANNOTATION, {"v1", "v2"}'),
        ("STATE: forecast.state}", 'STATE: forecast.state.replace("placed", "settled")}'),
    ],
    "manifests/__init__.py": [('"placed", "held"}', '"placed", "held", "settled"}')],
    "manifests/requests.py": [('"gpus": job.gpus}', '"gpus": job.gpus, "mood": "good"}')],
    "manifests/cause.py": [
        ('TEXT = "text"', 'TEXT = "mood"'),
        ("if cause.code != CauseCode.TEXT:", "if cause.code:"),
    ],
    "manifests/pins.py": [
        ('FORMAT_ANNOTATION: "v1"', 'FORMAT_ANNOTATION: "v2", "arena-topo.io/mood": "good"')
    ],
}
"""What the later version has otherwise; each of these texts must be there."""


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """The folder from which Python loads the later version."""
    folder = tmp_path_factory.mktemp("later")
    for source in SOURCES:
        path = folder / "clone" / source
        path.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (CLONE / source).is_dir() else shutil.copy)(CLONE / source, path)
    for name, changes in CHANGES.items():
        path = folder / "clone" / "arena_topo" / name
        text = path.read_text(encoding="utf-8")
        for before, after in changes:
            assert before in text, f"{name}: {before}"
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder]
    subprocess.run([*build, folder / "clone"], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.fixture
def run(later, tmp_path):
    """Run the program of a version in an empty folder: its exit code, stdout and stderr."""

    def run(version, *words):
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        place = {"text": True, "cwd": tmp_path, "stdin": subprocess.DEVNULL, "timeout": 120}
        if version == "present":
            done = program.run(words, env=env, **place)
        else:
            env["PYTHONPATH"] = str(later)
            line = [*program.LINE, *words]
            done = subprocess.run(line, env=env, capture_output=True, check=False, **place)
        return done.returncode, done.stdout, done.stderr

    return run


def create(run, version, name, *flags):
    flags = (f"--name={name}", *flags, "--gputopology", "--image=a/b:1")
    code, out, err = run(version, "submit", "mpi", *flags, "mpirun true")
    assert (code, f"{name} created" in out) == (0, True), err


def submit(run, version, name, gpus):
    create(run, version, name, f"--gpus={gpus}", "--workers=1")
    code, _, err = run(version, "wait", name, "--for=running", "--timeout=100s")
    assert code == 0, err


def test_jobs_of_both_versions_are_seen_by_both_and_changed_by_who_knows_them(run, tmp_path):
    assert run("later", "version", "--short")[1].strip().endswith(NEXT)
    with doc_worlds.opened("cluster", tmp_path):
        submit(run, "later", "new", 8)
        submit(run, "present", "old", 8)

        # An older command beside a newer one: all is shown and counted, and nothing changed.
        code, out, err = run("present", "get", "new", "-o", "json")
        assert code == 0, err
        shown = json.loads(out)
        assert (shown["status"], shown["placement"]["state"]) == ("RUNNING", "settled")
        _, out, _ = run("present", "list")
        assert {line.split()[0] for line in out.splitlines()[1:3]} == {"new", "old"}
        table = run("present", "top", "node")[1].splitlines()
        assert [line.split()[-1] for line in table[1:5]] == ["8", "8", "0", "0"]
        code, _, err = run("present", "suspend", "new")
        assert code == 1
        assert re.search(
            r"its record has the format 'v2',\s+which this version\s+does not know", err
        )
        assert run("present", "why", "new")[0] == 0

        # A gang that waits for a reason of the later version: the sentence beside it is shown.
        create(run, "later", "next", "--gpus=8", "--workers=3")
        code, out, err = run("present", "get", "next", "-o", "json")
        assert code == 0, err
        assert json.loads(out)["status"] == "PENDING"
        code, out, err = run("present", "why", "next")
        assert code == 0, err
        assert "cannot be placed now" in out
        listed = run("present", "list", "-o", "wide")[1].splitlines()
        # Jobs of the same second come in the order of their names.
        [row] = [line for line in listed if line.startswith("next ")]
        assert "3 workers x 8 GPUs cannot be placed now" in row
        assert run("present", "delete", "next")[0] == 0

        # A newer command beside an older one: what the version before wrote is fully known.
        for words in (["get", "old"], ["why", "old"], ["suspend", "old"], ["resume", "old"]):
            code, _, err = run("later", *words)
            assert code == 0, (words, err)

        # Who knows a record least may still remove its job.
        assert run("present", "delete", "new")[0] == 0
        assert run("later", "delete", "old")[0] == 0
