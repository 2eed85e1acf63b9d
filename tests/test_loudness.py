"""How much is told on stderr: `--loglevel`, `--quiet`, and the requests for who debugs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig

from arena_topo import cli
from arena_topo.cli.console import Console, LogLevel
from arena_topo.errors import ArenaError

HERE = ("--backend=local", "--emulate=dgx-1-v100:1")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_one(*argv: str) -> tuple[int, str, str]:
        code = cli.run(argv)
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_one


@pytest.mark.parametrize(
    ("level", "quiet", "heard"),
    [
        (LogLevel.ERROR, False, ["error: e"]),
        (LogLevel.WARN, False, ["warning: w", "error: e"]),
        (LogLevel.INFO, False, ["done", "note: n", "warning: w", "error: e"]),
        (LogLevel.DEBUG, False, ["done", "note: n", "warning: w", "error: e"]),
        (LogLevel.INFO, True, ["warning: w", "error: e"]),
        (LogLevel.ERROR, True, ["error: e"]),
    ],
)
def test_a_level_lets_through_what_is_at_least_so_grave(
    level: LogLevel,
    heard: list[str],
    capfd: pytest.CaptureFixture[str],
    *,
    quiet: bool,
):
    console = Console()
    console.set_level(level, quiet=quiet)
    console.info("done")
    console.notes(["n"])
    console.warn("w")
    console.error(ArenaError("e"))
    console.close()
    assert capfd.readouterr().err.splitlines() == heard


def test_errors_are_told_at_every_level(run: Run):
    for argv in (("-q",), ("--loglevel=error",), ("-q", "--loglevel=error")):
        code, _, err = run("get", "nobody", *HERE, *argv)
        assert code == 1
        assert err.startswith("error: no job nobody in namespace"), argv


def test_a_warning_about_the_line_waits_for_the_level_that_the_line_asks_for(run: Run):
    words = ("submit", "mpi", *HERE, "--dry-run", "--name=x", "--image=i", "--workingDir=/w", "c")
    assert "deprecated" in run(*words)[2]
    assert "deprecated" in run(*words, "--loglevel=warn")[2]
    assert "deprecated" not in run(*words, "--loglevel=error")[2]


def test_requests_are_told_when_debugging_and_hold_no_secrets(run: Run, tmp_path: Path):
    api = FakeApi()
    api.tokens["s3cret"] = "bob"
    config = kubeconfig(tmp_path / "config", api.url, user={"token": "s3cret"})
    try:
        quiet = run("list", "--kubeconfig", config)
        code, out, err = run("list", "--kubeconfig", config, "--loglevel=debug")
        again = run("list", "--kubeconfig", config)
    finally:
        api.close()
    assert (code, out) == quiet[:2]
    told = [line for line in err.splitlines() if line.startswith("debug: ")]
    assert any(
        line.startswith("debug: GET /apis/kubeflow.org/") and " 200 " in line for line in told
    )
    assert all(line.endswith(" ms") for line in told)
    assert "s3cret" not in err
    assert again == quiet, "debugging ends with its command"


def test_settings_may_say_how_much_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "config.toml"
    file.write_text('loglevel = "error"\n')
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(file))
    words = ("submit", "mpi", *HERE, "--dry-run", "--name=x", "--image=i", "--workingDir=/w", "c")
    assert "deprecated" not in run(*words)[2]
    assert "deprecated" in run(*words, "--loglevel=warn")[2]
