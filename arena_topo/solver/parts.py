"""Several NVLink domains: a part of the gang in each of them, which is one host for NCCL.

A part has the NICs of all its nodes, so nodes of a domain cannot be valued one by one. The search
is a knapsack of two levels: in a domain over its nodes, and then over the domains. Nothing is lost
by what each table leaves out: an entry that another one beats in nodes, bandwidth and cost at once.
With `--mix-models` a node outside all NVLink domains is a part of its own. The slowest network of a
node limits all nodes of a gang, so each such limit has a search of its own, without the nodes below
it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from arena_topo.bandwidth import Host, Wire
from arena_topo.bandwidth.nics import sent_by
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.solver.classes import Candidates, ModelAndResource, NodeClass
from arena_topo.solver.domains import Choice, NodeLoad, domains_of
from arena_topo.solver.index import Domain
from arena_topo.solver.loads import AMONG, NEARNESS, Hosts, Terms
from arena_topo.solver.memo import remembered
from arena_topo.solver.valuation import limit_of_level, rate_of_level
from arena_topo.topology import NVLINK, GPUSet, Machine, NodeName, count

MOST_PARTS = 32
"""The most parts that a gang is chosen from in a domain of the network, the largest first."""

MOST_ENTRIES = 24
"""The most entries for the same number of workers; with more, the answer is not proven."""

Costs = Sequence[Mapping[int, int]]
"""The cost of each load (number of workers) of each class of nodes; other loads are impossible."""

ClassShare = tuple[int, int]
"""The class of a node, and its number of workers."""


class DomainPart(NamedTuple):
    """Workers on some nodes of a domain: `sent` is GB/s of their NICs, `shares` are the nodes."""

    nodes: int
    sent: float
    cost: int
    shares: tuple[ClassShare, ...]


class Parts(NamedTuple):
    """Parts of a gang: GB/s of the slowest, and the shares of each domain by its position."""

    nodes: int
    rate: float
    cost: int
    shares: tuple[tuple[int, tuple[ClassShare, ...]], ...]


def searches_of(
    candidates: Candidates,
    kind: ModelAndResource,
    terms: Terms,
    level: int,
    *,
    known: bool,
    costs: Costs | None = None,
) -> list[PartSearch]:
    """A search for each limit that the networks of the nodes set."""
    limits = {_network_of(nodes, terms) for _, nodes in candidates.of(kind)}
    return [
        PartSearch(candidates, kind, terms, level, known=known, least=least, costs=costs)
        for least in sorted(limits)
    ]


def _network_of(nodes: NodeClass, terms: Terms) -> float:
    return nodes.network if terms.wire is Wire.RDMA else math.inf


def preference(rated_choice: tuple[Choice, float]) -> tuple[object, ...]:
    """The order of choices, each with its GB/s: the least is the best."""
    choice, rate = rated_choice
    return choice.nodes, -rate, choice.domains, choice.cost, choice.touched


class PartSearch:
    """The search for a gang of one kind of nodes whose parts first meet at a level.

    `terms` are those of two hosts, or of three and more. `least` is GB/s: only nodes with no slower
    network of their own are used, and none counts for more. `costs` has the cost of each load of a
    class if it is not that of fragmentation. `exact` is False once a table was cut.
    """

    def __init__(
        self,
        candidates: Candidates,
        kind: ModelAndResource,
        terms: Terms,
        level: int,
        *,
        known: bool,
        least: float,
        costs: Costs | None = None,
    ) -> None:
        self.candidates = candidates
        self.index = candidates.index
        self.terms = terms
        self.level = level
        self.exact = True
        self._costs = costs
        self._workers = terms.ranks // terms.gpus
        self._own = {
            at: nodes
            for at, nodes in candidates.of(kind)
            if _network_of(nodes, terms) >= least and not (known and nodes.assumed(terms))
        }
        cluster = self.index.fabric
        # The limits of the terms, and those that are applied to the gang elsewhere.
        self._limited = terms._replace(
            network=rate_of_level(cluster, level),
            nearer=limit_of_level(cluster, level),
            limit=least,
        )
        self._nvlink = [tier.name for tier in cluster.tiers].index(NVLINK)
        self._machines: dict[tuple[int, int], Machine] = {}

    def rates(self) -> set[float]:
        """GB/s of the parts; that of a gang is one of them."""
        return {
            part.rate
            for domain in self.index.levels[self.level]
            for item in self._items(domain)
            for parts in self._table(item).values()
            for part in parts
        }

    def choice(self, floor: float, most: int) -> tuple[Choice, float] | None:
        """The fewest nodes that give `floor` GB/s, at most so many, and of these the most GB/s.

        With costs of loads the cheapest nodes.
        """
        choices = (
            (self._choice(domain, parts), parts.rate)
            for domain in self.index.levels[self.level]
            for parts in self._gangs(domain)
            if parts.rate >= floor and parts.nodes <= most
        )
        cheapest = self._costs is not None
        return min(
            choices,
            key=lambda choice: (choice[0].cost if cheapest else 0, preference(choice)),
            default=None,
        )

    # The parts of a domain

    def gpus(self, at: int, workers: int) -> GPUSet | None:
        """The GPUs planned for so many workers on a node of a class; None if none are known.

        Those with the most NICs of the sets that NVLink joins to the domain, or if there is none,
        with the most bandwidth.
        """
        nodes, domain = self._own[at], self.terms._replace(hosts=Hosts.DOMAIN)
        if nodes.unattributed:
            return None
        loads, size = nodes.loads, workers * self.terms.gpus
        joined = nodes.domain

        def key(gpus: GPUSet) -> tuple[float, ...]:
            inside = loads.rate(gpus, domain) if joined else 0.0
            own = self._sent(nodes, gpus) if inside else loads.rate(gpus, self.terms)
            return bool(inside), own, inside, -nodes.cost.cost(nodes.free, gpus)

        return max(loads.choices(nodes.free, size, domain, self.terms), key=key)

    def _counted(self, at: int, workers: int) -> GPUSet | None:
        """The GPUs that a job can count on; None if the kubelet picks them."""
        return None if self._own[at].picked else self.gpus(at, workers)

    def _sent(self, nodes: NodeClass, gpus: GPUSet) -> float:
        if self.terms.wire is not Wire.RDMA:
            return 0.0
        terms = self._limited
        return sent_by(
            nodes.loads.machine,
            gpus,
            among=AMONG[terms.hosts],
            ranks=terms.ranks,
            network=terms.network,
            nearer=terms.nearer,
            limit=terms.limit,
        )

    @remembered
    def _loads(self, at: int) -> list[DomainPart]:
        """The loads of a node of a class that NVLink joins to its domain, if it is in one."""
        lone = not self._own[at].domain
        return [load for load in self._all_loads(at) if lone or self._joins(at, load.shares[0][1])]

    @remembered
    def _all_loads(self, at: int) -> list[DomainPart]:
        nodes = self._own[at]
        result = []
        for workers in range(1, min(nodes.capacity, self._workers - 1) + 1):
            if self._costs is not None and workers not in self._costs[at]:
                continue
            gpus, size = self._counted(at, workers), workers * self.terms.gpus
            if gpus is None:
                worst = nodes.loads.choices(nodes.free, size, self.terms)
                rate = min(self._sent(nodes, some) for some in worst)
                cost = NEARNESS * nodes.cost.counted(count(nodes.free) - nodes.unattributed, size)
            else:
                rate = self._sent(nodes, gpus)
                cost = NEARNESS * nodes.cost.cost(nodes.free, gpus)
            if self._costs is not None:
                cost = self._costs[at][workers]
            result.append(DomainPart(1, rate, cost, ((at, workers),)))
        return result

    def _joins(self, at: int, workers: int) -> bool:
        """Whether NVLink joins so many workers of a node to its domain."""
        nodes = self._own[at]
        return nodes.domain and nodes.best(workers, self.terms._replace(hosts=Hosts.DOMAIN)) > 0

    @remembered
    def _table(self, item: tuple[tuple[int, int], ...]) -> dict[int, list[Parts]]:
        """For each number of workers in a domain with so many nodes of each class, the parts."""
        table: dict[int, list[DomainPart]] = {0: [DomainPart(0, 0.0, 0, ())]}
        for at, many in item:
            for _ in range(min(many, self._workers)):
                grown: dict[int, list[DomainPart]] = {
                    total: [*parts] for total, parts in table.items()
                }
                for total, parts in table.items():
                    for load in self._loads(at):
                        after = total + load.shares[0][1]
                        if after < self._workers:
                            grown.setdefault(after, []).extend(_joined(parts, load))
                better = {total: self._best(parts) for total, parts in grown.items()}
                if better == table:
                    break
                table = better
        return {
            total: [
                Parts(part.nodes, self._rate(part.shares), part.cost, ((0, part.shares),))
                for part in parts
            ]
            for total, parts in table.items()
            if total
        }

    def _best(self, parts: Iterable[DomainPart]) -> list[DomainPart]:
        """The parts that no other one beats in nodes, NICs and cost at once."""
        frontier: list[DomainPart] = []
        for part in sorted(set(parts), key=lambda part: (part.nodes, -part.sent, part.cost)):
            if not any(other.sent >= part.sent and other.cost <= part.cost for other in frontier):
                frontier.append(part)
        self.exact = self.exact and len(frontier) <= MOST_ENTRIES
        return frontier[:MOST_ENTRIES]

    @remembered
    def _rate(self, shares: tuple[ClassShare, ...]) -> float:
        """GB/s that the part of a domain, or a node outside of all, allows to the job."""
        (at, workers), *_ = shares
        if not self._own[at].domain:
            return self._own[at].best(workers, self._limited._replace(limit=math.inf))
        copies, parts = Counter[int](), []
        for at, workers in shares:
            nodes = self._own[at]
            gpus = self._counted(at, workers)
            if gpus is None:
                size = workers * self.terms.gpus
                gpus = nodes.loads.worst_set(nodes.free, size, self.terms)
            parts.append((self._machine(at, copies[at]), gpus))
            copies[at] += 1
        return self._valued([Host(parts=tuple(parts), limit=self._limited.limit)])

    def _machine(self, at: int, copy: int) -> Machine:
        """The machine of a class under a name of its own: hosts tell machines apart by name."""
        key = (at, copy)
        if key not in self._machines:
            self._machines[key] = replace(self._own[at].loads.machine, name=f"{at}/{copy}")
        return self._machines[key]

    def _valued(self, hosts: Sequence[Host]) -> float:
        terms = self._limited
        value = estimate(
            hosts,
            among=AMONG[terms.hosts],
            ranks=terms.ranks,
            wire=terms.wire,
            network=terms.network,
            nearer=terms.nearer,
        )
        assert value is not None, "a part is one of several hosts"
        return value.point

    # The domains

    def _parts_of(self, domain: Domain) -> Iterator[tuple[range, Counter[int]]]:
        """What can be a part in a domain of the network: its leaves, and the nodes by class.

        That is each NVLink domain, and each node outside of all.
        """
        for inner in self.index.levels[self._nvlink]:
            if inner.leaves.start in domain.leaves:
                classes = self._counts_in(inner, joined=True)
                if classes:
                    yield inner.leaves, classes
        lone = self._counts_in(domain, joined=False)
        # What the pods of a lone node would have as one host is not compared.
        self.exact = self.exact and (self.terms.joined or not lone)
        for at, many in lone.items():
            for _ in range(min(many, self._workers)):
                yield domain.leaves, Counter({at: 1})

    def _counts_in(self, domain: Domain, *, joined: bool) -> Counter[int]:
        """The nodes of each class in a domain of the network that are in NVLink domains, or not."""
        counts = self.candidates.counts_in(domain.leaves)
        own = ((at, nodes) for at, nodes in counts.items() if at in self._own)
        return Counter({at: nodes for at, nodes in own if self._own[at].domain is joined})

    def _items(self, domain: Domain) -> Iterator[tuple[tuple[int, int], ...]]:
        for _, classes in self._parts_of(domain):
            yield tuple(sorted(classes.items()))

    @remembered
    def _gangs(self, domain: Domain) -> list[Parts]:
        """The gangs in a domain of the network that no other one beats."""
        exactly = self.terms.hosts is Hosts.TWO
        wanted = AMONG[self.terms.hosts]
        table: dict[tuple[int, int], list[Parts]] = {(0, 0): [Parts(0, math.inf, 0, ())]}
        items = sorted(
            enumerate(self._items(domain)), key=lambda item: -max(self._table(item[1]), default=0)
        )
        self.exact = self.exact and len(items) <= MOST_PARTS
        for position, item in items[:MOST_PARTS]:
            grown = {key: [*gangs] for key, gangs in table.items()}
            for (hosts, total), gangs in table.items():
                lone = not self._own[item[0][0]].domain
                for workers, parts in self._table(item).items():
                    after = hosts + (workers if lone and not self.terms.joined else 1)
                    after = after if exactly else min(wanted, after)
                    if total + workers <= self._workers and after <= wanted:
                        grown.setdefault((after, total + workers), []).extend(
                            Parts(
                                gang.nodes + part.nodes,
                                min(gang.rate, part.rate),
                                gang.cost + part.cost,
                                (*gang.shares, (position, part.shares[0][1])),
                            )
                            for gang in gangs
                            for part in parts
                        )
            table = {key: self._better(gangs) for key, gangs in grown.items()}
        return table.get((wanted, self._workers), [])

    def _better(self, gangs: Sequence[Parts]) -> list[Parts]:
        frontier: list[Parts] = []
        for gang in sorted(gangs, key=lambda gang: (gang.nodes, -gang.rate, gang.cost)):
            if not any(other.rate >= gang.rate and other.cost <= gang.cost for other in frontier):
                frontier.append(gang)
        self.exact = self.exact and len(frontier) <= MOST_ENTRIES
        return frontier[:MOST_ENTRIES]

    def _choice(self, domain: Domain, parts: Parts) -> Choice:
        """The nodes of a gang, along the network."""
        inner = [leaves for leaves, _ in self._parts_of(domain)]
        seats: dict[NodeName, tuple[int, NodeLoad]] = {}
        for position, shares in sorted(parts.shares):
            loads: dict[int, list[int]] = {}
            for at, workers in sorted(shares, key=lambda share: share[1]):
                loads.setdefault(at, []).append(workers)
            for leaf in inner[position]:
                for at, node in self.candidates.members(leaf):
                    if loads.get(at) and node.name not in seats:
                        seats[node.name] = leaf, NodeLoad(node, at, loads[at].pop())
        along = sorted(seats.values(), key=lambda seat: seat[0])
        domains, touched = domains_of(self.index, dict.fromkeys(leaf for leaf, _ in along))
        return Choice(len(along), domains, parts.cost, touched, tuple(seat for _, seat in along))


def _joined(parts: Iterable[DomainPart], load: DomainPart) -> Iterator[DomainPart]:
    for part in parts:
        yield DomainPart(
            part.nodes + 1,
            part.sent + load.sent,
            part.cost + load.cost,
            tuple(sorted((*part.shares, *load.shares))),
        )
