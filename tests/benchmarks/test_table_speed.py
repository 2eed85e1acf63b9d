"""How long tables take: `python -m pytest tests/benchmarks/test_table_speed.py -s`.

Bars: 25 ms for 8 GPUs; 1 s once for an irregular machine of 16, then cached; none behind an
NVSwitch.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from cube_mesh import HGX, P100, PCIE, V100, V100_LANES, cluster, machine, matrix, node

from arena_topo.solver import configurations, families, layers
from arena_topo.solver.configurations import Table
from arena_topo.solver.policy import Damage, Spread, proximity
from arena_topo.topology import GPUSet, Link, LinkKind, Machine, flat
from arena_topo.workflow import tables

SYS = Link(kind=LinkKind.SYS)
MESHES = V100_LANES | {(one + 8, other + 8): lanes for (one, other), lanes in V100_LANES.items()}


def tree(size: int) -> Machine:
    """PCIe switches of four GPUs, two of them to a host bridge."""

    def link(one: int, other: int) -> Link | None:
        if one == other:
            return None
        if one // 8 != other // 8:
            return SYS
        return Link(kind=LinkKind.PIX if one // 4 == other // 4 else LinkKind.PHB)

    return machine(
        f"PCIe tree of {size}",
        "L40S",
        tuple(tuple(link(a, b) for b in range(size)) for a in range(size)),
    )


LARGE = [
    machine("two cube meshes", "V100", matrix(16, MESHES, SYS)),
    machine("NVLink pairs", "A100", matrix(16, {(one, one + 1): 12 for one in range(0, 16, 2)})),
    machine(
        "NVLink quads",
        "A100",
        matrix(
            16,
            {
                (one + first, other + first): 4
                for first in (0, 4, 8, 12)
                for one, other in itertools.combinations(range(4), 2)
            },
            SYS,
        ),
    ),
    machine(
        "hypercube",
        "V100",
        matrix(
            16,
            {
                (one, one | 1 << bit): 2 if bit < 2 else 1
                for one in range(16)
                for bit in range(4)
                if not one >> bit & 1
            },
            SYS,
        ),
    ),
    machine(
        "two meshes joined",
        "A100",
        matrix(16, MESHES | {(one, one + 8): 2 for one in range(8)}, SYS),
    ),
    tree(16),
    tree(20),
    machine("NVSwitch of 16", "V100", flat(16, Link(kind=LinkKind.NVLINK, lanes=6))),
]


def forget() -> None:
    """What an earlier table left behind in this process."""
    families.rings.cache_clear()
    layers._rings_of.cache_clear()
    configurations.table.cache_clear()


def milliseconds(action: Callable[[], object], rounds: int = 5) -> tuple[float, float]:
    """Median and worst wall time in ms, each time from the start."""
    times = []
    for _ in range(rounds):
        forget()
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times), max(times)


def once(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def test_tables_of_8_gpus_with_every_set_and_every_potential():
    print(f"\n{'8 GPUs: 255 sets':24} {'median ms':>10} {'worst ms':>9} {'with potential':>15}")
    for of in (V100, P100, HGX, PCIE):

        def sets(of: Machine = of) -> Table:
            shape = Table(of.configuration)
            for bits in range(1, 256):
                shape.value(GPUSet(bits))
            return shape

        def potentials(sets: Callable[[], Table] = sets) -> None:
            price = Damage(sets())
            for bits in range(256):
                price.keeps(GPUSet(bits))

        median, worst = milliseconds(sets)
        print(f"{of.name:24} {median:10.2f} {worst:9.2f} {milliseconds(potentials)[0]:15.2f}")


def test_large_tables_built_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    print(
        f"\n{'':18} {'build ms':>9} {'worst':>7} {'prepare':>8} {'again':>7} {'bytes':>7} "
        " certified"
    )
    for of in LARGE:
        shape = Table(of.configuration)

        def build(of: Machine = of) -> bool:
            shape = Table(of.configuration)
            return shape.uniform or bool(shape.layers and shape.ceiling)

        median, worst = milliseconds(build, rounds=3)
        on = cluster(node("a", of))
        forget()
        first = once(lambda on=on: tables.prepare(on))
        forget()
        again = once(lambda on=on: tables.prepare(on))
        values = tables.load(of.configuration)
        print(
            f"{of.name:18} {median:9.2f} {worst:7.1f} {first:8.2f} {again:7.2f} "
            f"{len(values) if values else 0:7}  {shape.certified}"
        )


QUERIES = (("best", 7), ("worst", 7), ("hidden", 7), ("cheapest", 9), ("any Z", 8), ("spread", 8))


def asked(shape: Table, price: Damage, apart: Spread, free: GPUSet, size: int) -> list[float]:
    """The time that each query takes, in ms."""
    half = free.bit_count() // 2
    return [
        once(lambda: shape.best(free, size)),
        once(lambda: shape.worst(free, size)),
        once(lambda: shape.best_hidden(free, half, size)),
        once(lambda: price.cheapest(free, size, shape.best(free, size))),
        once(lambda: price.cheapest(free, size, 0.0)),
        once(lambda: apart.cheapest(free, size, 0.0)),
    ]


def test_queries_on_large_tables():
    """First answers, in ms, on an empty machine and with four GPUs in use; then all again."""
    head = " ".join(f"{name:>{width}}" for name, width in QUERIES)
    print(f"\n{'':18} {'free':>4} {'k':>2} {head} {'again':>7} {'halves':>7}")
    for of in LARGE:
        shape = Table(of.configuration)
        assert shape.uniform or shape.layers
        price, apart = Damage(shape), Spread(shape, proximity(of))
        for free in (of.everything, GPUSet(of.everything & ~0x1111)):
            for size in (1, 2, 4, 8):
                first = asked(shape, price, apart, free, size)
                again = sum(asked(shape, price, apart, free, size))
                shown = " ".join(
                    f"{one:{width}.2f}" for one, (_, width) in zip(first, QUERIES, strict=True)
                )
                found = price.cheapest(free, size, 0.0)
                assert found is not None
                split = once(functools.partial(shape.split, found[1], max(1, size // 2)))
                row = f"{of.name:18} {free.bit_count():4} {size:2} {shown}"
                print(f"{row} {again:7.3f} {split:7.2f}")
