"""Start-up of whole processes beside a bare interpreter: `python -m pytest tests/benchmarks -s`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 9


def milliseconds(command: list[str]) -> tuple[float, float]:
    """Best and median wall time of a command, in ms."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append((time.perf_counter() - start) * 1000)
    return min(times), statistics.median(times)


def test_start_up_beside_a_bare_interpreter():
    python = [sys.executable]
    rows = {
        "python -c pass": [*python, "-c", "pass"],
        "import typer": [*python, "-c", "import typer"],
        "import kubernetes.client": [*python, "-c", "import kubernetes.client"],
        "arena-topo version": [*python, "-m", "arena_topo", "version"],
        "arena-topo --help": [*python, "-m", "arena_topo", "--help"],
        "arena-topo submit mpi --help": [*python, "-m", "arena_topo", "submit", "mpi", "--help"],
        "arena-topo list (local, empty)": [*python, "-m", "arena_topo", "list"],
    }
    print(f"\n{'command':34} {'best ms':>8} {'median ms':>10}")
    for name, command in rows.items():
        best, median = milliseconds(command)
        print(f"{name:34} {best:8.0f} {median:10.0f}")
