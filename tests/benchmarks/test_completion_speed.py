"""What a TAB costs, as whole processes: `pytest tests/benchmarks/test_completion_speed.py -s`.

Beside a bare interpreter, which nothing here can beat, and what others take: importing Typer, and
kubectl's own completion where it is installed.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig
from kube_objects import job as mpijob

from arena_topo.completion import names

ROUNDS = 20
SCRIPT = "import sys; from arena_topo.__main__ import main; sys.exit(main())"
"""What the console script of an installation does."""


def milliseconds(
    command: list[str], environ: dict[str, str], before: Callable[[], None] = lambda: None
) -> tuple[float, float, str]:
    """Median and worst wall time of a command, in ms, and what it prints."""
    times = []
    for _ in range(ROUNDS):
        before()
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=True, env=environ, text=True)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times), max(times), done.stdout


def known(environ: dict[str, str], jobs: int) -> None:
    """Write down the jobs of the context, as a list does that has just been answered."""
    cache = names.NameCache(names.context_key([], environ), environ)
    cache.namespace = "default"
    found = {f"job-{number:04}-training": "RUNNING, 8 GPUs" for number in range(jobs)}
    cache.put("jobs", "", found, whole=True)
    cache.write()


def unknown(environ: dict[str, str]) -> None:
    """Remove the cache."""
    for one in Path(names.folder(environ)).glob("context-*"):
        one.unlink()


@pytest.fixture
def environ(tmp_path):
    """A user with a cluster that answers."""
    api = FakeApi()
    for number in range(100):
        api.add(mpijob(f"job-{number:04}-training", "{}", state="running"))
    config = kubeconfig(tmp_path / "config", api.url)
    yield {
        **os.environ,
        "KUBECONFIG": config,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    api.close()


def test_a_tab_beside_a_bare_interpreter(environ, tmp_path):
    python = [sys.executable]
    rows = {
        "python -c pass": [*python, "-c", "pass"],
        "python -I -S -c pass": [*python, "-I", "-S", "-c", "pass"],
        "python -c 'import typer'": [*python, "-c", "import typer"],
    }
    if kubectl := shutil.which("kubectl"):
        rows["kubectl __complete get ''"] = [kubectl, "__complete", "get", ""]
        rows["kubectl __complete get pods ''"] = [kubectl, "__complete", "get", "pods", ""]
    print(f"\n{'whole processes, ms':44} {'median':>8} {'worst':>8}")
    for name, command in rows.items():
        median, worst, _ = milliseconds(command, environ)
        print(f"{name:44} {median:8.1f} {worst:8.1f}")
    asks = environ | {"_ARENA_TOPO_COMPLETE": "zsh"}

    def told(
        what: str,
        *words: str,
        among: int,
        before: Callable[[], None] = lambda: None,
        **more: str,
    ) -> None:
        command = [*python, "-c", SCRIPT, *words]
        median, worst, said = milliseconds(command, asks | more, before)
        print(f"{f'TAB: {what}':44} {median:8.1f} {worst:8.1f}")
        assert len(said.splitlines()) > among

    told("a command", "", among=10)
    told("a flag of submit mpi", "submit", "mpi", "--", among=50)
    for jobs in (1, 100, 2000):
        known(environ, jobs)
        told(f"a job of {jobs:,}", "get", "", among=jobs)
    told("a job of 100, asked for", "get", "", among=100, before=partial(unknown, environ))
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # nobody listens
        config = kubeconfig(tmp_path / "gone", f"http://127.0.0.1:{gone.getsockname()[1]}")
        away = environ | {"KUBECONFIG": config}
        unknown(away)
        told("the API server is gone", "get", "", among=0, KUBECONFIG=config)
    known(environ, 100)
    cold = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "none")}
    told("a job of 100, nothing compiled", "get", "", among=100, **cold)
