"""How long the values of a machine take: `pytest tests/benchmarks/test_table_speed.py -s`.

Bar: 25 ms of CPU time for the best sets of every size, any preset, nothing kept.
"""

from __future__ import annotations

import time

from arena_topo.solver.gpu_sets import GPUSets
from arena_topo.topology import Machine, presets


def taken(of: Machine) -> float:
    """Milliseconds of CPU time for all sizes, the least of three runs."""
    runs = []
    for _ in range(3):
        start = time.process_time()
        sets = GPUSets(of.configuration)
        for size in range(1, sets.size + 1):
            sets.best(sets.everything, size)
        runs.append(time.process_time() - start)
    return 1000 * min(runs)


def test_every_preset():
    for name in presets.preset_names():
        print(f"{name:16} {taken(presets.preset_machine(name, name)):8.1f} ms")
