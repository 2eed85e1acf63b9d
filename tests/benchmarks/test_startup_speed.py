"""Start-up of whole processes: `python -m pytest tests/benchmarks/test_startup_speed.py -s`.

Bars: `version` and `--help` 150 ms. Beside them stand a bare interpreter, which nothing here can
beat, an import of Typer, on which the command line is built, and kubectl where there is one. The
rows take turns, so that a moment in which the machine is busy strikes them all alike. What a TAB
costs is in test_completion_speed.py, what commands on a cluster cost in test_cluster_speed.py.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time

ROUNDS = 20
SCRIPT = "import sys; from arena_topo.__main__ import main; sys.exit(main())"
"""What the console script of an installation does."""


def milliseconds(command: list[str]) -> float:
    """Wall time of a command, in ms."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return (time.perf_counter() - start) * 1000


def test_start_up_beside_a_bare_interpreter():
    python = [sys.executable, "-c"]
    rows = {
        "python -c pass": [*python, "pass"],
        "python -c 'import typer'": [*python, "import typer"],
        "python -c 'import kubernetes.client'": [*python, "import kubernetes.client"],
        "import arena_topo": [*python, "import arena_topo"],
        "import arena_topo, and its client": [*python, "import arena_topo; arena_topo.Client"],
    }
    if kubectl := shutil.which("kubectl"):
        rows["kubectl version --client"] = [kubectl, "version", "--client"]
        rows["kubectl --help"] = [kubectl, "--help"]
    for words in (
        "version",
        "--help",
        "get --help",
        "submit mpi --help",
        "config schema",
        "topology show dgx-1-v100",
        "list --backend=local",
    ):
        rows[f"arena-topo {words}"] = [*python, SCRIPT, *words.split()]
    for command in rows.values():  # modules are compiled
        milliseconds(command)
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, command in rows.items():
            times[name].append(milliseconds(command))
    print(f"\n{'whole processes, ms':40} {'best':>8} {'median':>8} {'worst':>8}")
    for name, found in times.items():
        print(f"{name:40} {min(found):8.0f} {statistics.median(found):8.0f} {max(found):8.0f}")
