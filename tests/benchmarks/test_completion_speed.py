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

from arena_topo.cli.remembering import cluster_of
from arena_topo.completion import keeping, names, place
from arena_topo.engines import Options
from arena_topo.engines.kubernetes.connection import written

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


def left_alone(environ: dict[str, str]) -> None:
    """Wait until no child is under way, and let names be old and nobody's turn."""
    folder = Path(names.folder(environ))
    while any(one.read_text().startswith("running") for one in folder.glob("turn-*")):
        time.sleep(0.05)
    for one in folder.glob("turn-*"):
        one.unlink()
    for one in folder.glob("*-jobs-*"):
        one.unlink()
    known(environ, 100, ago=60)


def known(environ: dict[str, str], jobs: int, *, ago: float = 0.0) -> None:
    """Write down which cluster is meant, and its jobs, as a list of so many seconds ago does."""
    line = place.Line([], environ)
    found = {f"job-{number:04}-training": "RUNNING, 8 GPUs" for number in range(jobs)}
    # That of the children, who read the kubeconfig.
    cluster = cluster_of(written(Options(kubeconfig=environ["KUBECONFIG"])))
    with keeping.Folder(environ) as folder:
        keeping.locate(
            folder, line, engine="kubernetes", cluster=cluster, namespace="default", also={}
        )
        at = keeping.now() - int(ago * 1000)
        keeping.update(folder, f"{cluster}-jobs-default", found, at, whole=True)


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
    told(
        "a job of 100, which a child asks for anew",
        "get",
        "",
        among=100,
        before=partial(left_alone, environ),
    )
    told("a job, nothing known", "get", "", among=0, XDG_CACHE_HOME=str(tmp_path / "empty"))
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # nobody listens
        config = kubeconfig(tmp_path / "gone", f"http://127.0.0.1:{gone.getsockname()[1]}")
        away = environ | {"KUBECONFIG": config}
        left_alone(away)
        told("a job of 100, the API server is gone", "get", "", among=100, KUBECONFIG=config)
    left_alone(environ)
    cold = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "none")}
    told("a job of 100, nothing compiled", "get", "", among=100, **cold)
    left_alone(environ)
