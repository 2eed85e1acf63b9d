"""How long values and placements take: `python -m pytest tests/benchmarks -s`."""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from cube_mesh import HGX, P100, PCIE, V100, V100_LANES, cluster, machine, matrix, node

from arena_topo.bandwidth import Wire
from arena_topo.clusters import observed
from arena_topo.clusters.dump import read_dumps
from arena_topo.manifests import GPU_GROUP
from arena_topo.solver import Reason, Request
from arena_topo.solver.door import Solver
from arena_topo.solver.fragmentation import PackingCost
from arena_topo.solver.gpu_sets import GPUSets
from arena_topo.topology import (
    Cluster,
    GPUSet,
    Link,
    LinkKind,
    Machine,
    Node,
    Tier,
    flat,
    members,
    published,
)

MIX = (
    *((8, 8), (64, 8), (256, 8), (3, 3), (5, 2), (7, 2), (13, 1), (21, 1)),
    *((33, 2), (50, 3), (130, 2), (301, 2), (500, 1), (1001, 2), (4000, 1)),
)
"""Workers and GPUs of each: whole machines, awkward numbers, large gangs."""

RACK, SPINE = 16, 25 * 16
"""Nodes in a rack, and in 25 racks, which is a spine."""

TIERS = (Tier(name="spine", bandwidth=12.5), Tier(name="rack", bandwidth=12.5))
BEYOND = 6.0
"""GB/s in a rack and in a spine: 100 Gb/s; between spines half of that."""

DGX2 = machine("dgx-2", "V100", flat(16, Link(kind=LinkKind.NVLINK, lanes=6)))
TWO_MESHES = machine(
    "two cube meshes",
    "V100",
    matrix(
        16,
        V100_LANES | {(one + 8, other + 8): lanes for (one, other), lanes in V100_LANES.items()},
    ),
)
"""Sixteen GPUs that are not all alike: two DGX-1 V100 in one box."""


def milliseconds(action: Callable[[], object], rounds: int = 7) -> tuple[float, float]:
    """Least and worst CPU time of an action, in ms; the program collects garbage as seldom."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)
    times = [timed(action)[0] for _ in range(rounds)]
    gc.set_threshold(*before)
    return min(times), max(times)


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """CPU time of an action in ms, and what it gave."""
    start = time.process_time()
    answer = action()
    return (time.process_time() - start) * 1000, answer


def test_the_tables_of_eight_gpus():
    print(f"\n{'table of 255 sets':24} {'least ms':>10} {'worst ms':>9}")
    for of in (V100, P100, HGX, PCIE):

        def build(of=of):
            shape = GPUSets(of.configuration)
            return [shape.value(GPUSet(bits)) for bits in range(1, 256)]

        least, worst = milliseconds(build)
        print(f"{of.name:24} {least:10.2f} {worst:9.2f}")

    def potential():
        cost = PackingCost(GPUSets(V100.configuration))
        return [cost.potential(GPUSet(bits)) for bits in range(256)]

    least, worst = milliseconds(potential)
    print(f"{'dgx-1-v100 and potential':24} {least:10.2f} {worst:9.2f}")


def indexed(on: Cluster) -> Solver:
    """A solver that has sorted the nodes of a cluster."""
    solver = Solver(on)
    assert solver.index.cluster is on
    return solver


def sixteen(of: Machine, sizes: tuple[int, ...], free: int) -> None:
    for size in sizes:
        request = Request(workers=1, gpus=size)
        solver = indexed(cluster(node("a", of, free)))
        first, answer = timed(lambda request=request, solver=solver: solver.find(request))
        shown = [first, *milliseconds(lambda: solver.find(request))]  # noqa: B023 - run at once
        proof = "-" if answer is None else "optimal" if answer.proof.optimal else "not proven"
        numbers = " ".join(f"{one:10.3f}" for one in shown)
        print(f"{of.name:18} {free.bit_count():5} {size:3} {numbers}  {proof}")


def test_sixteen_gpus():
    """All sizes behind an NVSwitch, where partitions are many; and a box that is not uniform."""
    print(
        f"\n{'':18} {'free':>5} {'k':>3} {'first ms':>10} {'least ms':>10} {'worst ms':>10}  proof"
    )
    sixteen(DGX2, tuple(range(1, 17)), 0xFFFF)
    sixteen(DGX2, tuple(range(1, 13)), 0xFFFF & ~0x1111)
    sixteen(TWO_MESHES, (1, 2, 4, 8), 0xFFFF)
    sixteen(TWO_MESHES, (1, 2, 4, 8), 0xFFFF & ~0x1111)


def datacentre(size: int, load: float) -> Cluster:
    """DGX-1 V100 and HGX A100 side by side; so many of them partly in use, at random."""
    dice = random.Random(4)
    nodes = [
        node(
            f"node-{at}",
            V100 if at % 2 else HGX,
            dice.randrange(256) if dice.random() < load else 255,
            domains=(f"spine-{at // SPINE}", f"rack-{at // RACK}"),
        )
        for at in range(size)
    ]
    return cluster(*nodes, tiers=TIERS, beyond=BEYOND)


MEDIANS: dict[tuple[bool, float, int], float] = {}
"""The median over the mix by shape, load and size, for the growth."""


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("load", [0.60, 0.97])
@pytest.mark.parametrize("joined", [True, False])
def test_placing_a_gang(load: float, size: int, *, joined: bool):
    on = datacentre(size, load)
    built, solver = timed(lambda: indexed(on))
    print(
        f"\n{size:,} nodes, {load:.0%} partly in use, {'joined' if joined else 'separate'} pods;"
        f" index {built:.1f} ms\n"
        f"{'workers x GPUs':>15} {'first ms':>10} {'least ms':>10} {'worst ms':>9} {'nodes':>6} "
        f"{'GB/s':>6} {'tier':>7}  proof"
    )
    medians = []
    for workers, gpus in MIX:
        request = Request(workers=workers, gpus=gpus, wire=Wire.RDMA, joined=joined)
        solve = lambda request=request: solver.find(request)  # noqa: E731
        first, answer = timed(solve)
        if answer is None:
            print(f"{f'{workers} x {gpus}':>15} {first:10.2f} {'-':>10}")
            continue
        least, worst = milliseconds(solve)
        medians.append(least)
        print(
            f"{f'{workers} x {gpus}':>15} {first:10.2f} {least:10.2f} {worst:9.2f} "
            f"{len(answer.nodes):6} {answer.bandwidth.point:6.1f} {answer.tier:>7}  "
            f"{'optimal' if answer.proof.optimal else 'not proven'}"
        )
    MEDIANS[joined, load, size] = statistics.median(medians)
    print(
        f"{'median':>15} {'':10} {MEDIANS[joined, load, size]:10.2f} {max(medians):9.2f} of medians"
    )
    before = MEDIANS.get((joined, load, size // 10))
    if before is not None:
        print(f"10 times the nodes, {MEDIANS[joined, load, size] / before:.1f} times the time")


def refused_jobs(on: Cluster) -> list[Request]:
    """Jobs that are a little too large, or ask for what there is not."""
    free = sum(one.free_count for one in on.nodes)
    whole = sum(one.free_count == len(one.machine.gpus) for one in on.nodes)
    size = len(on.nodes)
    return [
        Request(workers=size // 2 + 1, gpus=8),
        Request(workers=whole // 2 + 10, gpus=8),
        Request(workers=free // 4, gpus=4),
        Request(workers=free + 10, gpus=1),
        Request(workers=RACK * 2, gpus=8, required="rack"),
        Request(workers=RACK // 2, gpus=8, required="rack"),
        Request(workers=20, gpus=6, max_nodes=10),
        Request(workers=size // 4, gpus=8, min_bandwidth=40.0),
        Request(workers=6, gpus=8, min_bandwidth=500.0),
        Request(workers=4, gpus=1, min_bandwidth=50.0, joined=False),
    ]


class Site:
    """A data centre as a reader gives it: machines of their own, with CPU and memory in use."""

    def __init__(self, size: int, load: float) -> None:
        dice = random.Random(5)
        on = datacentre(size, load)
        self.on = replace(on, nodes=tuple(self._used(one, dice) for one in on.nodes))
        names = [one.name for one in dice.sample(self.on.nodes, size // 50)]
        self.requests: dict[str, dict[str, object]] = {
            "": {},
            "with CPU and memory": {"cpu": CORES_EACH, "memory": MEMORY_EACH},
            "2 % of the nodes tainted": {"excluded": dict.fromkeys(names, Reason.TAINT)},
        }
        self.dice = dice

    def _used(self, one: Node, dice: random.Random) -> Node:
        used = len(one.machine.gpus) - one.free_count
        cores, memory = (used * each + dice.choice(OTHER_USE) * each for each in PER_GPU)
        return replace(
            one,
            cpu=max(0.0, CORES - cores),
            memory=max(0, MEMORY - memory),
            all_cpu=CORES,
            all_memory=MEMORY,
        )

    def request(self, workers: int, gpus: int, more: str) -> Request:
        fields = dict(self.requests[more])
        for name in fields.keys() & {"cpu", "memory"}:
            fields[name] *= gpus
        return Request(workers=workers, gpus=gpus, wire=Wire.RDMA, **fields)

    def anew(self) -> Cluster:
        """The same cluster, of values that no solver has seen."""
        nodes = (
            replace(one, machine=replace(one.machine, name=str(one.name))) for one in self.on.nodes
        )
        return replace(self.on, nodes=tuple(nodes))

    def change(self) -> Node:
        """A node with other GPUs in use."""
        one = self.dice.choice(self.on.nodes)
        return replace(one, free=GPUSet(self.dice.randrange(256)))

    def dump(self) -> Iterator[dict[str, object]]:
        """The nodes, their ConfigMaps, and a pod on each node in use, as an API server has them."""
        offers = {"cpu": str(CORES), "memory": str(MEMORY), "nvidia.com/gpu": "8"}
        ready = [{"type": "Ready", "status": "True"}]
        for one in self.on.nodes:
            keys = (f"network.topology.nvidia.com/{level}" for level in ("spine", "leaf"))
            labels = dict(zip(keys, one.domains, strict=True))
            labels["nvidia.com/gpu.product"] = f"NVIDIA-{one.machine.model}-SXM4-40GB"
            status = {"capacity": offers, "allocatable": offers, "conditions": ready}
            yield {
                "kind": "Node",
                "metadata": {"name": one.name, "labels": labels},
                "status": status,
            }
            machine = replace(one.machine, name=str(one.name))
            yield {"kind": "ConfigMap", **published.config_map(machine, machine.everything)}
            used = GPUSet(one.machine.everything & ~one.free)
            if used:
                requests = {"nvidia.com/gpu": str(used.bit_count())}
                group = ",".join(map(str, members(used)))
                yield {
                    "kind": "Pod",
                    "metadata": {
                        "name": f"on-{one.name}",
                        "namespace": "default",
                        "annotations": {GPU_GROUP: group},
                    },
                    "spec": {
                        "nodeName": one.name,
                        "containers": [{"name": "worker", "resources": {"limits": requests}}],
                    },
                    "status": {"phase": "Running"},
                }


CORES, MEMORY = 96, 768 << 30
CORES_EACH, MEMORY_EACH = 6.0, 48 << 30
"""CPU and memory of a node, and what is asked for with each GPU."""

PER_GPU = (8, 64 << 30)
"""Cores and bytes that jobs use with each of their GPUs."""

OTHER_USE = (0, 0, 1, 2, 3, 5)
"""What else is in use on a node, in shares of a GPU: on some nodes too much for all free GPUs."""

ROUNDS = 3


Prepared = Callable[[Request], Callable[[], object]]
"""What comes before the clock starts, for one request, and what is timed."""


def table_row(name: str, requests: Sequence[Request], prepared: Prepared) -> None:
    """A row of least CPU times; the garbage of each run is collected after it."""
    times = []
    for request in requests:
        runs = []
        for _ in range(ROUNDS):
            action = prepared(request)
            gc.collect()
            gc.disable()
            runs.append(timed(action)[0])
            gc.enable()
        times.append(min(runs))
    print(f"{name:52} {statistics.median(times):8.1f} {max(times):8.1f} {len(times):5}")


def print_searches(site: Site) -> None:
    follower = Solver(site.anew())
    gc.freeze()

    def first(request: Request) -> Callable[[], object]:
        on = site.anew()
        return lambda: Solver(on).find(request)

    def changed(request: Request) -> Callable[[], object]:
        node = site.change()
        return lambda: (follower.put(node), follower.find(request))

    for more in site.requests:
        name = f", {more}" if more else ""
        requests = [site.request(*shape, more) for shape in MIX]
        # This also warms the tables.
        placed = [request for request in requests if follower.find(request) is not None]
        table_row(f"first search, index included{name}", placed, first)
        table_row(f"after a change of one node{name}", placed, changed)
    requests = [site.request(*shape, "") for shape in MIX]
    placed = [request for request in requests if follower.find(request) is not None]
    table_row("the same request once more", placed, lambda one: lambda: follower.find(one))

    def first_refusal(request: Request) -> Callable[[], object]:
        on = site.anew()
        return lambda: Solver(on).explain(request)

    def changed_refusal(request: Request) -> Callable[[], object]:
        node = site.change()
        return lambda: (follower.put(replace(node, free=GPUSet(0))), follower.explain(request))

    refused = [one for one in refused_jobs(site.on) if follower.best(one) is None]
    table_row("refusal, index included", refused, first_refusal)
    table_row("refusal after a change of one node", refused, changed_refusal)
    gc.unfreeze()


@pytest.mark.parametrize("size", [10_000, 100_000])
@pytest.mark.parametrize("load", [0.60, 0.97])
def test_searches_that_users_meet(load: float, size: int, tmp_path: Path):
    """The first search on a cluster, that after a change of one node, and refusals.

    Bars (median, worst): 30 ms for the first search at 10,000 nodes and 250 at 100,000, index
    included; after a change 10 (40) and 30 (120); with CPU and memory twice that; refusals twice a
    placement. The tables of machines are warm.
    """
    site = Site(size, load)
    print(f"\n{size:,} nodes of 8 GPUs, {load:.0%} partly in use; CPU ms, least of {ROUNDS} runs")
    print(f"{'15 shapes of gangs':52} {'median':>8} {'worst':>8} {'gangs':>5}")
    print_searches(site)
    path = tmp_path / "cluster.json"
    with path.open("w") as file:
        encode = json.JSONEncoder(separators=(",", ":")).encode
        file.write('{"kind":"List","items":[')
        for at, item in enumerate(site.dump()):
            file.write(f"{',' * bool(at)}{encode(item)}")
        file.write("]}")
    gc.collect()
    gc.freeze()
    taken, read = timed(lambda: observed.cluster(read_dumps([str(path)]), source="dump"))
    assert isinstance(read, Cluster)
    assert [one.free for one in read.nodes] == [one.free for one in site.on.nodes]
    print(f"{f'reading the cluster, {path.stat().st_size / 1e6:.0f} MB':52} {taken:8.1f}")


@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("load", [0.60, 0.97])
def test_refusing_a_gang(load: float, size: int):
    """A refusal with what would make it fit, beside a placement on the same cluster."""
    on = datacentre(size, load)
    solver = indexed(on)
    placed = []
    for workers, gpus in MIX:
        request = Request(workers=workers, gpus=gpus, wire=Wire.RDMA)
        if solver.best(request) is not None:
            placed.append(milliseconds(lambda request=request: solver.find(request), 3)[0])
    placement = statistics.median(placed)
    print(
        f"\n{size:,} nodes, {load:.0%} partly in use: a placement {placement:.1f} ms CPU (median),"
        f" the slowest {max(placed):.1f}\n{'refused':>20} {'ms CPU':>8} {'times':>6}  nearest"
    )
    times = []
    for request in refused_jobs(on):
        if solver.best(request) is not None:
            continue
        spent = milliseconds(lambda request=request: solver.explain(request), 5)[0]
        times.append(spent)
        name = f"{request.workers} x {request.gpus}"
        nearest = solver.explain(request).nearest
        print(f"{name:>20} {spent:8.1f} {spent / placement:6.1f}  {nearest}")
    print(f"{'median':>20} {statistics.median(times):8.1f} {max(times):8.1f} the slowest")
