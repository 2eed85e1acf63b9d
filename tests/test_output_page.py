"""docs/output.md names each key of the JSON that commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from arena_topo import cli

PAGE = Path(__file__).parent.parent / "docs" / "output.md"


def named(section: str) -> set[str]:
    """The words in code of a section."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    assert text, section
    return set(re.findall(r"`([^`]+)`", text.partition("\n## ")[0]))


@pytest.fixture
def printed(capfd, monkeypatch, tmp_path):
    """Run a command on emulated machines: its JSON."""
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*argv):
        capfd.readouterr()
        assert cli.run([*argv, "-o", "json"]) == 0
        return json.loads(capfd.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("section", "argv"),
    [
        ("top node", ("top", "node")),
        ("topology", ("topology", "show", "dgx-1-v100")),
        ("topology", ("topology", "presets")),
        ("forecast", ("forecast", "dgx-1-v100")),
        ("version, whoami and config view", ("version",)),
        ("version, whoami and config view", ("whoami",)),
        ("version, whoami and config view", ("config", "view")),
    ],
)
def test_each_key_of_a_command_is_named(printed, section, argv):
    assert set(printed(*argv)) - named(section) == set()


def test_each_key_of_a_job_is_named(printed):
    job = ("--name=ring", "--gpus=1", "--workers=2", "--image=local", "--gputopology")
    assert cli.run(["submit", "mpi", *job, "true"]) == 0
    assert cli.run(["wait", "ring", "--timeout", "60s"]) == 0
    shown, listed = printed("get", "ring"), printed("list")
    assert set(shown) == set(listed[0])
    keys = {*shown, *shown["placement"], *shown["instances"][0], *shown["placement"]["bandwidth"]}
    assert keys - named("get, list and top job") == set()
    assert set(printed("why", "ring")) - named("why") == set()


def test_each_key_of_plan_is_named(printed):
    page = (PAGE.parent / "plan-output.md").read_text(encoding="utf-8")
    keys = printed("plan", "mpi", "--gpus=1", "--workers=2")
    assert {key for key in keys if f"`{key}`" not in page and f"`{key}." not in page} == set()
