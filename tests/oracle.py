"""What the best placement is worth, found without the solver: by trying everything, by CP-SAT.

The order of preference is written down here a second time, from its description alone. Of the code
under test only the values that it is given are used: the bandwidth of a set of GPUs
(`GPUSets.value`), the potential of a free set (`Damage.keeps`) and how many workers a node may take
(`room`). Everything answers with the fields of a worth, in their order, as a plain tuple:

    reach, bandwidth negated, distance, nodes, domains, damage, broken
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from arena_topo.solver import Placement, Request
from arena_topo.solver.classes import room
from arena_topo.solver.gpu_sets import GPUSets
from arena_topo.solver.policy import Damage
from arena_topo.topology import Cluster, GPUSet, Machine, Node, count, gpu_set

Worth = tuple[int, float, int, int, tuple[int, ...], int, tuple[int, ...]]
Set = tuple[float, int]
"""The bandwidth of a set of GPUs, and the damage of taking it."""

_shapes: dict[int, tuple[Machine, GPUSets, Damage]] = {}


def shape(machine: Machine) -> tuple[GPUSets, Damage]:
    """The sets of a machine and its damages, worked out once for each machine object."""
    if id(machine) not in _shapes:
        sets_of = GPUSets(machine.configuration)
        _shapes[id(machine)] = (machine, sets_of, Damage(sets_of))
    return _shapes[id(machine)][1:]


@functools.cache
def _sets(sets_of: GPUSets, damage: Damage, free: GPUSet, hidden: int) -> dict[int, list[Set]]:
    """By size: every set of free GPUs. Of an opaque node the GPUs can only be counted."""
    found: dict[int, list[Set]] = {}
    if hidden:
        known = count(free) - hidden
        for size in range(1, known + 1):
            speed = sets_of.worst(free, size)
            found[size] = [(speed, damage.counted(known, size))]
        return found
    chosen = free
    while chosen:
        lost = damage.keeps(free) - damage.keeps(GPUSet(free & ~chosen))
        found.setdefault(count(chosen), []).append((sets_of.value(chosen), lost))
        chosen = GPUSet((chosen - 1) & free)
    return found


def sets(node: Node) -> dict[int, list[Set]]:
    """By size: every set of GPUs that a node can give, as bandwidth and damage."""
    return _sets(*shape(node.machine), node.free, node.hidden)


@functools.cache
def _undominated(
    sets_of: GPUSets, damage: Damage, free: GPUSet, hidden: int
) -> dict[int, list[Set]]:
    kept: dict[int, list[Set]] = {}
    for size, some in _sets(sets_of, damage, free, hidden).items():
        front: list[Set] = []
        for speed, lost in sorted(set(some), key=lambda one: (-one[0], one[1])):
            if not front or lost < front[-1][1]:
                front.append((speed, lost))
        kept[size] = front
    return kept


def undominated(node: Node) -> dict[int, list[Set]]:
    """The same without sets that another beats in bandwidth and in damage; fastest first."""
    return _undominated(*shape(node.machine), node.free, node.hidden)


def sides(request: Request, on: Cluster) -> Iterator[list[tuple[Node, int]]]:
    """The nodes that one gang may combine (a model, a resource name), and how many workers each."""
    kinds: dict[tuple[str, str], list[tuple[Node, int]]] = {}
    for node in on.nodes:
        most = room(request, node)
        if most:
            model = "" if request.mix_models else node.machine.model or ""
            kinds.setdefault((model, node.resource), []).append((node, most))
    yield from kinds.values()


def distance_of(level: str, on: Cluster) -> int:
    """How far out a level is: 0 for a node, 1 for the nearest tier, most for `beyond`."""
    names = ["node", *(tier.name for tier in reversed(on.tiers)), "beyond"]
    return names.index(level)


def joined(nodes: Sequence[Node], on: Cluster) -> tuple[int, float]:
    """How far apart nodes are, and the bandwidth of what joins them, their own NICs included."""
    if len(nodes) == 1:
        return 0, math.inf
    slowest = min(node.network for node in nodes)
    for distance, (tier, *entries) in enumerate(
        reversed(list(zip(on.tiers, *(node.domains for node in nodes), strict=True))), start=1
    ):
        if len(set(entries)) == 1:
            return distance, min(tier.bandwidth, slowest)
    return len(on.tiers) + 1, min(on.beyond, slowest)


def domains_used(nodes: Sequence[Node], on: Cluster) -> list[set[str]]:
    """The domains of some nodes at each tier, coarse to near."""
    return [{node.domains[tier] for node in nodes} for tier in range(len(on.tiers))]


def free_in_domains(on: Cluster) -> Counter[tuple[int, str]]:
    """The GPUs that anybody could take in each domain, by tier and name."""
    free: Counter[tuple[int, str]] = Counter()
    for node in on.nodes:
        if node.unavailable is None and node.shared is None:
            for tier, name in enumerate(node.domains):
                free[tier, name] += node.free_count
    return free


def worth(
    request: Request, on: Cluster, nodes: Sequence[Node], taken: Sequence[Set], free: Counter
) -> Worth | None:
    """What one choice is worth: the nodes used, and the set taken of each; None if not allowed."""
    distance, network = joined(nodes, on)
    bandwidth = min([network, *(speed for speed, _ in taken)])
    if request.required is not None and distance > distance_of(request.required, on):
        return None
    if request.max_nodes is not None and len(nodes) > request.max_nodes:
        return None
    if bandwidth < request.min_bandwidth:
        return None
    reach = 0
    if request.preferred is not None:
        reach = max(0, distance - distance_of(request.preferred, on))
    used = domains_used(nodes, on)
    broken = [sum(free[tier, name] for name in names) for tier, names in enumerate(used)]
    return (
        reach,
        -bandwidth,
        distance,
        len(nodes),
        tuple(map(len, used)),
        sum(lost for _, lost in taken),
        tuple(reversed(broken)),
    )


def _loads(rooms: Sequence[int], workers: int) -> Iterator[tuple[int, ...]]:
    """Every way to share out workers to nodes with room for so many."""
    if not rooms:
        if not workers:
            yield ()
        return
    rest = sum(rooms[1:])
    for load in range(max(0, workers - rest), min(rooms[0], workers) + 1):
        for others in _loads(rooms[1:], workers - load):
            yield (load, *others)


def by_the_letter(request: Request, on: Cluster) -> Worth | None:
    """The best of every set of GPUs on every node, with nothing left out and nothing clever."""
    free = free_in_domains(on)
    found: list[Worth] = []
    for side in sides(request, on):
        for loads in _loads([most for _, most in side], request.workers):
            used = [(node, load) for (node, _), load in zip(side, loads, strict=True) if load]
            nodes = [node for node, _ in used]
            choices = [sets(node).get(load * request.gpus, []) for node, load in used]
            for taken in itertools.product(*choices):
                one = worth(request, on, nodes, taken, free)
                if one is not None:
                    found.append(one)
    return min(found, default=None)


def brute_force(request: Request, on: Cluster) -> Worth | None:
    """The best of every way to share the workers out, the best sets for each worked out at once.

    Once it is settled how many workers each node takes, everything but bandwidth and damage is
    settled too. Each node then gives its fastest set, which settles the bandwidth, and then the
    least harmful set that is no slower than that.
    """
    free = free_in_domains(on)
    best: Worth | None = None
    for side in sides(request, on):
        for loads in _loads([most for _, most in side], request.workers):
            if request.max_nodes is not None and sum(map(bool, loads)) > request.max_nodes:
                continue
            used = [(node, load) for (node, _), load in zip(side, loads, strict=True) if load]
            nodes = [node for node, _ in used]
            choices = [undominated(node).get(load * request.gpus, []) for node, load in used]
            if not all(choices):
                continue
            _, network = joined(nodes, on)
            bandwidth = min([network, *(some[0][0] for some in choices)])
            if bandwidth < request.min_bandwidth or (best and not best[0] and -bandwidth > best[1]):
                continue
            taken = [
                min((one for one in some if one[0] >= bandwidth), key=lambda one: one[1])
                for some in choices
            ]
            one = worth(request, on, nodes, taken, free)
            if one is not None and (best is None or one < best):
                best = one
    return best


def realised(request: Request, on: Cluster, answer: Placement) -> Worth | None:
    """What the very GPUs of an answer are worth; AssertionError if nobody could hand them out."""
    assert [one.worker for one in answer.assignments] == list(range(request.workers))
    names = {node.name: node for node in on.nodes}
    held: dict[str, list[tuple[int, ...]]] = {}
    for one in answer.assignments:
        held.setdefault(one.node, []).append(one.gpus)
    nodes, taken = [names[name] for name in held], []
    for node, groups in zip(nodes, held.values(), strict=True):
        sets_of, damage = shape(node.machine)
        assert 0 < len(groups) <= room(request, node)
        size = len(groups) * request.gpus
        if node.hidden:
            assert not any(groups)
            assert size <= node.free_count
            taken += sets(node)[size]
            continue
        assert all(len(group) == request.gpus for group in groups)
        gpus = [gpu for group in groups for gpu in group]
        assert len(set(gpus)) == size
        chosen = gpu_set(gpus)
        assert chosen & ~node.free == 0
        lost = damage.keeps(node.free) - damage.keeps(GPUSet(node.free & ~chosen))
        taken.append((sets_of.value(chosen), lost))
    if not request.mix_models:
        assert len({node.machine.model for node in nodes}) == 1
    assert len({node.resource for node in nodes}) == 1
    distance, _ = joined(nodes, on)
    assert distance_of(answer.tier, on) == distance
    return worth(request, on, nodes, taken, free_in_domains(on))


# CP-SAT


def cp_sat(request: Request, on: Cluster) -> Worth | None:
    """The best placement by a general solver, proven optimal criterion after criterion."""
    found = [_Model(request, on, side).solve() for side in sides(request, on)]
    return min((one for one in found if one is not None), default=None)


class _Model:
    """One gang on the nodes of one kind: a variable for every undominated set of every node."""

    def __init__(self, request: Request, on: Cluster, side: Sequence[tuple[Node, int]]) -> None:
        from ortools.sat.python import cp_model  # noqa: PLC0415 - heavy, and only for this

        self.cp = cp_model
        self.request, self.on = request, on
        self.model = model = cp_model.CpModel()
        self.options = [
            [
                (load, speed, lost)
                for load in range(1, most + 1)
                for speed, lost in undominated(node).get(load * request.gpus, [])
                if speed >= request.min_bandwidth
            ]
            for node, most in side
        ]
        takes = [[model.new_bool_var("") for _ in some] for some in self.options]
        used = [model.new_bool_var("") for _ in side]
        for one, mine in zip(used, takes, strict=True):
            model.add(sum(mine) == one)
        pairs = [
            (take, option)
            for mine, some in zip(takes, self.options, strict=True)
            for take, option in zip(mine, some, strict=True)
        ]
        model.add(sum(load * take for take, (load, _, _) in pairs) == request.workers)

        self.nodes = model.new_int_var(1, len(side), "")
        model.add(self.nodes == sum(used))
        if request.max_nodes is not None:
            model.add(self.nodes <= request.max_nodes)
        spread = self._several(self.nodes, len(side))

        free = free_in_domains(on)
        self.domains, self.broken, splits = [], [], []
        for tier in range(len(on.tiers)):
            members: dict[str, list[object]] = {}
            for one, (node, _) in zip(used, side, strict=True):
                members.setdefault(node.domains[tier], []).append(one)
            entered = {name: model.new_bool_var("") for name in members}
            for name, some in members.items():
                model.add_max_equality(entered[name], some)
            many = model.new_int_var(1, len(members), "")
            model.add(many == sum(entered.values()))
            splits.append(self._several(many, len(members)))
            self.domains.append(many)
            self.broken.append(sum(free[tier, name] * one for name, one in entered.items()))
        # Domains are nested: where nodes are apart at a tier, they are apart at all nearer ones.
        self.distance = model.new_int_var(0, len(on.tiers) + 1, "")
        model.add(self.distance == spread + sum(splits))
        if request.required is not None:
            model.add(self.distance <= distance_of(request.required, on))
        self.reach = model.new_int_var(0, len(on.tiers) + 1, "")
        near = len(on.tiers) + 1
        if request.preferred is not None:
            near = distance_of(request.preferred, on)
        model.add_max_equality(self.reach, [0, self.distance - near])

        rates = [on.beyond, *(tier.bandwidth for tier in on.tiers)]
        assert rates == sorted(rates), "tiers never get slower going near"
        self.speeds = sorted(
            {*rates, *(node.network for node, _ in side), *(speed for _, (_, speed, _) in pairs)}
        )
        rank = {speed: at for at, speed in enumerate(self.speeds)}
        top = len(self.speeds) - 1
        self.rank = model.new_int_var(0, top, "")
        for mine, some in zip(takes, self.options, strict=True):
            lacking = (
                (top - rank[speed]) * take for take, (_, speed, _) in zip(mine, some, strict=True)
            )
            model.add(self.rank <= top - sum(lacking))
        self._network(rank, zip(rates, [*splits, spread], strict=True))
        for one, (node, _) in zip(used, side, strict=True):
            joins = model.new_bool_var("")
            model.add(joins >= one + spread - 1)
            self._network(rank, [(node.network, joins)])
        self._fast_enough()
        self.damage = sum(lost * take for take, (_, _, lost) in pairs)
        self.variables = [*used, *(take for take, _ in pairs)]

    def _fast_enough(self) -> None:
        """The bandwidth is not below what is asked for."""
        fast = [at for at, speed in enumerate(self.speeds) if speed >= self.request.min_bandwidth]
        self.model.add(self.rank >= fast[0] if fast else self.rank > len(self.speeds) - 1)

    def _network(self, rank: dict[float, int], limits: Iterable[tuple[float, object]]) -> None:
        """The gang is no faster than each rate that applies to it."""
        top = len(self.speeds) - 1
        for rate, applies in limits:
            self.model.add(self.rank <= top - (top - rank[rate]) * applies)

    def _several(self, number, most: int):
        """A variable: whether a number from 1 to `most` is 2 or more."""
        several = self.model.new_bool_var("")
        self.model.add(number >= 1 + several)
        self.model.add(number <= 1 + (most - 1) * several)
        return several

    def solve(self) -> Worth | None:
        """The worth of the best choice; None if there is none."""
        tiers, everything = len(self.on.tiers), sum(node.free_count for node in self.on.nodes)
        top = len(self.speeds) - 1
        first = [
            (self.reach, tiers + 2),
            (top - self.rank, top + 1),
            (self.distance, tiers + 2),
            (self.nodes, len(self.on.nodes) + 1),
            *((many, len(self.on.nodes) + 1) for many in self.domains),
        ]
        values = self._minimise(first)
        if values is None:
            return None
        (damage,) = self._minimise([(self.damage, 1)]) or ()
        last = [(broken, everything + 1) for broken in reversed(self.broken)]
        broken = (self._minimise(last) or ()) if last else ()
        reach, lacking, distance, nodes, *domains = values
        bandwidth = self.speeds[top - lacking]
        return (reach, -bandwidth, distance, nodes, tuple(domains), damage, tuple(broken))

    def _minimise(self, criteria: Sequence[tuple[object, int]]) -> list[int] | None:
        """The least values of some criteria in order, each below its bound; they are kept then.

        One number orders them all: each criterion is a digit of it. Numbers that CP-SAT has no
        room for (64 bits) are never made.
        """
        digits, unit = [], 1
        for criterion, bound in reversed(criteria):
            digits.append(unit * criterion)
            unit *= bound
        assert unit < 1 << 62, "one number can hold all criteria"
        self.model.minimize(sum(digits))
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        status = solver.solve(self.model)
        if status == self.cp.INFEASIBLE:
            return None
        assert status == self.cp.OPTIMAL, solver.status_name(status)
        found = [solver.value(criterion) for criterion, _ in criteria]
        self.model.clear_hints()
        for variable in self.variables:
            self.model.add_hint(variable, solver.value(variable))
        for (criterion, _), value in zip(criteria, found, strict=True):
            self.model.add(criterion == value)
        return found
