"""How long tables and placements take: `python -m pytest tests/benchmarks -s`."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from cube_mesh import HGX, P100, V100, cluster, node

from arena_topo.solver import Request, Unplaceable, place
from arena_topo.solver.configurations import Table
from arena_topo.solver.policy import Damage
from arena_topo.topology import GPUSet


def milliseconds(action: Callable[[], object], rounds: int = 7) -> tuple[float, float]:
    """Median and worst wall time of an action, in ms."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times), max(times)


def test_the_tables_of_eight_gpus():
    print(f"\n{'table of 255 sets':24} {'median ms':>10} {'worst ms':>9}")
    for machine in (V100, P100, HGX):

        def build(machine=machine):
            shape = Table(machine.configuration)
            return [shape.value(GPUSet(bits)) for bits in range(1, 256)]

        median, worst = milliseconds(build)
        print(f"{machine.name:24} {median:10.2f} {worst:9.2f}")

    def potential():
        damage = Damage(Table(V100.configuration))
        return [damage.keeps(GPUSet(bits)) for bits in range(256)]

    median, worst = milliseconds(potential)
    print(f"{'dgx-1-v100 and potential':24} {median:10.2f} {worst:9.2f}")


def test_placing_a_gang():
    dice = random.Random(4)
    print(f"\n{'nodes':>6} {'workers x GPUs':>15} {'median ms':>10} {'worst ms':>9}")
    for size in (10, 100, 1000):
        nodes = [
            node(
                f"node-{index}",
                V100 if index % 2 else HGX,
                255 if dice.random() < 0.4 else dice.randrange(256),
            )
            for index in range(size)
        ]
        whole = cluster(*nodes)
        for workers, gpus in ((4, 1), (8, 8), (3, 3), (13, 1), (33, 2), (64, 8)):
            request = Request(workers=workers, gpus=gpus)

            def solve(request=request, whole=whole):
                try:
                    return place(request, whole)
                except Unplaceable as refused:
                    return refused

            median, worst = milliseconds(solve)
            print(f"{size:6} {f'{workers} x {gpus}':>15} {median:10.2f} {worst:9.2f}")
