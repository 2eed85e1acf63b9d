"""Why a gang has no place, and the smallest change that would give it one.

Nodes that a request cannot tell apart are counted together. For each group a table says which
numbers of workers (loads) one of its nodes takes now, and how many GPUs must become free for more.
Whether a changed request fits is then a sum over the groups of a domain, and the fewest GPUs to
free are a knapsack: each worker more costs GPUs, and the cheapest are taken. Nothing is placed.

A number named is the best of its kind. The fewest GPUs or nodes are found exactly where each worker
more costs no less than the one before, and by dynamic programming for small gangs. Where neither
holds, or the sets of a machine are too many to look at, "for example" says so.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from arena_topo.bandwidth import network_limit
from arena_topo.solver import UNLIMITED, Reason, Refusal, Request, Unplaceable, Verdict
from arena_topo.solver.classes import WHOLE, Index, NodeClass, refused, room
from arena_topo.solver.gpu_sets import choices
from arena_topo.solver.loads import AMONG, Hosts, Terms
from arena_topo.solver.selection import Offer, select
from arena_topo.solver.valuing import NVLINK
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, members, natural

MOST_CHANGES = 3
"""Changes of the request named at once, the smallest first."""

MOST_NAMES = 3
"""Nodes named of those that would have to become free together."""

TRIES = 16
"""Sizes of a gang that are tried one by one, and domains searched for GPUs to free."""

WORK = 60_000
"""Steps of dynamic programming, some 30 ms."""

LISTED = 8
"""GPUs of a machine up to which all of its sets are looked at for the fewest to free."""

Change = tuple[str, Request]
"""What to say after "fits now", and the request that then has a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """A change of the job that lets it use other nodes; the solver knows only which.

    `words` come after "fits now" (`without --selector a=b`), or after "when" if `later`.
    """

    words: str
    excluded: Mapping[NodeName, Reason]
    later: bool = False


def explain(
    request: Request,
    index: Index,
    *,
    others: Sequence[Instead] = (),
    notes: tuple[str, ...] = (),
) -> Unplaceable:
    """Why a gang has no place, counted by reason, and what would give it one.

    `others` are changes of the job that lie outside the request; they are tried with the rest.
    """
    wanted = f"{_many(request.workers, 'worker')} x {_many(request.gpus, 'GPU')}"
    if not index.cluster.nodes:
        return Unplaceable(
            f"{wanted} cannot be placed: there are no nodes",
            verdict=Verdict.NEVER,
            refusals=(),
            notes=notes,
        )
    now = _View(index, request)
    idle = _View(index, request, idle=True)
    never = not idle.fits(request)
    search = _Changes(request, now, idle if never else now, others)
    when = "can never be placed on this cluster" if never else "cannot be placed now"
    return Unplaceable(
        f"{wanted} {when}",
        verdict=Verdict.NEVER if never else Verdict.NOT_NOW,
        refusals=tuple(_refusals(request, search.view)),
        nearest=search.nearest(never=never),
        notes=notes,
    )


def once_empty(today: Cluster) -> str:
    """When the cluster could take what it can take at most."""
    closed = any(node.unavailable is not None for node in today.nodes)
    return f"once the cluster is empty{' and all its nodes are ready' if closed else ''}"


def _refusals(request: Request, view: _View) -> Iterator[Refusal]:
    """Why nodes take no worker, or not enough of them, counted by reason."""
    counted: dict[Reason, tuple[int, Node]] = {}
    scarce: Reason | None = None
    for group in view.groups(0):
        reason = refused(request, group.node)
        if reason is None and room(request, group.node):
            reason = scarce = scarce or _scarce(request, view)
        elif reason is None:
            busy = group.node.free_count < request.gpus
            reason = Reason.BUSY if busy else Reason.RESOURCES
        nodes, example = counted.get(reason, (0, group.node))
        counted[reason] = (nodes + group.many, example)
    for reason, (nodes, example) in counted.items():
        yield Refusal(reason=reason, nodes=nodes, example=example.name)


def _scarce(request: Request, view: _View) -> Reason:
    """The limit without which nodes with room for some workers would take all."""
    limits: list[tuple[Reason, dict[str, Any]]] = [
        (Reason.BANDWIDTH, {"min_bandwidth": 0.0}),
        (Reason.MAX_NODES, {"max_nodes": None}),
        (Reason.PER_NODE, {"per_node": None}),
        (Reason.LEVEL, {"required": None}),
    ]
    asked = [one for one in limits if any(getattr(request, name) for name in one[1])]
    for reason, without in asked:
        if view.fits(replace(request, **without)):
            return reason
    loosest = {name: value for _, without in asked for name, value in without.items()}
    if len(asked) > 1 and view.fits(replace(request, **loosest)):
        return asked[0][0]
    return Reason.ROOM


# ---------------------------------------------------------------- what fits, by counting


class _Group(NamedTuple):
    """Nodes of one domain that a request cannot tell apart: the first by name, and how many."""

    node: Node
    many: int
    home: tuple[str, ...]
    key: tuple[object, ...]


class _Way(NamedTuple):
    """One way for a gang to be on nodes: within one domain at a depth, on at most so many nodes.

    `terms` say what GPUs are worth there; None where no bandwidth is asked for.
    """

    depth: int
    most: int
    terms: Terms | None


Offers = Mapping[tuple[object, ...], Counter[Sequence[int]]]
"""By what one gang may combine: how many nodes take which loads."""


class _View:
    """The nodes of a cluster in groups, as a request and its changes see them.

    With `idle` as if every job had ended, and every node and GPU were well.
    """

    def __init__(self, index: Index, request: Request, *, idle: bool = False) -> None:
        self.index = index
        self.idle = idle
        self.excluded = request.excluded
        self._resources = bool(request.cpu), bool(request.memory)
        self._groups: dict[int, list[_Group]] = {}
        self._classes: dict[NodeName, NodeClass] = {}
        self._speeds: dict[tuple[NodeName, Terms, int], float] = {}
        self._offers: dict[tuple[object, ...], Offers] = {}

    def groups(self, depth: int) -> list[_Group]:
        """The nodes in groups, apart where they differ in so many levels of the network."""
        found = self._groups.get(depth)
        if found is None:
            first: dict[tuple[object, ...], Node] = {}
            many: Counter[tuple[object, ...]] = Counter()
            for key, node, nodes in self._keys(depth):
                many[key] += nodes
                first.setdefault(key, node)
            found = self._groups[depth] = [
                _Group(self._seen(node), many[key], node.domains[:depth], key)
                for key, node in first.items()
            ]
        return found

    def _keys(self, depth: int) -> Iterator[tuple[tuple[object, ...], Node, int]]:
        plain = not (self.excluded or any(self._resources))
        if plain and not depth:
            for at, (node, many) in enumerate(self.index.alike()):
                yield self._key(at, node, depth), node, many
            return
        for classes, nodes in self.index.leaves:
            for at, node in zip(classes, nodes, strict=True):
                yield self._key(at, node, depth), node, 1

    def _key(self, at: int, node: Node, depth: int) -> tuple[object, ...]:
        cpu, memory = self._resources
        key = (node.domains[:depth], self.excluded.get(node.name) if self.excluded else None)
        if self.idle:
            loads = self.index.loads(node.machine)
            rest = (node.all_cpu if cpu else None, node.all_memory if memory else None)
            return (*key, loads, node.resource, node.network, node.shared is None, *rest)
        return (*key, at, node.cpu if cpu else None, node.memory if memory else None)

    def _seen(self, node: Node) -> Node:
        return node.idle() if self.idle else node

    def members(self, group: _Group, depth: int) -> Iterator[Node]:
        """The nodes of a group as they are now, in the order of their domains and names."""
        for classes, nodes in self.index.leaves:
            if nodes[0].domains[:depth] == group.home:
                for at, node in zip(classes, nodes, strict=True):
                    if self._key(at, node, depth) == group.key:
                        yield node

    def fits(self, request: Request) -> bool:
        """Whether there is any placement."""
        return any(
            _hold(offers, request.workers, way.most)
            for way in self.ways(request)
            for offers in self.offers(request, way).values()
        )

    def most(self, request: Request) -> int:
        """No more workers than this fit on the terms of so many."""
        return max(
            (
                _largest(offers, way.most)
                for way in self.ways(request)
                for offers in self.offers(request, way).values()
            ),
            default=0,
        )

    def offers(self, request: Request, way: _Way) -> Offers:
        """How many nodes take which loads."""
        key = (
            *(request.gpus, request.cpu, request.memory, request.model, request.mix_models),
            *(request.per_node, request.min_bandwidth, way, way.terms and request.workers),
        )
        found = self._offers.get(key)
        if found is None:
            counted: dict[tuple[object, ...], Counter[Sequence[int]]] = {}
            for group in self.groups(way.depth):
                loads = self.loads(group, request, way)
                if loads:
                    home = self.home(group, request)
                    counted.setdefault(home, Counter())[loads] += group.many
            found = self._offers[key] = counted
        return found

    def home(self, group: _Group, request: Request) -> tuple[object, ...]:
        """What the nodes of one gang have in common."""
        model = "" if request.mix_models else group.node.machine.model or ""
        return (model, group.node.resource, *group.home)

    def loads(self, group: _Group, request: Request, way: _Way) -> Sequence[int]:
        """The numbers of workers that a node of a group takes, ascending."""
        most, terms = room(request, group.node), way.terms
        if terms is None:
            return range(1, most + 1)
        most = min(most, request.workers - (terms.hosts is not Hosts.NODE))
        floor = request.min_bandwidth
        return tuple(
            load for load in range(1, most + 1) if self.speed(group.node, load, terms) >= floor
        )

    def speed(self, node: Node, workers: int, terms: Terms) -> float:
        """GB/s that a gang gets as far as so many workers on a node limit it."""
        key = (node.name, terms, workers)
        found = self._speeds.get(key)
        if found is None:
            found = self._speeds[key] = self.class_of(node).best(workers, terms)
        return found

    def class_of(self, node: Node) -> NodeClass:
        """What the GPUs of a node are worth."""
        found = self._classes.get(node.name)
        if found is None:
            found = self._classes[node.name] = self.index.class_of(node)
        return found

    def ways(self, request: Request) -> Iterator[_Way]:
        """How a gang may be on nodes; with a least bandwidth as far apart as that allows."""
        tiers = [tier.name for tier in self.index.cluster.tiers]
        alone = request.required == "node" or request.max_nodes == 1 or request.workers == 1
        start = tiers.index(request.required) + 1 if request.required in tiers else 0
        most = request.workers if request.max_nodes is None else request.max_nodes
        if not request.min_bandwidth:
            yield _Way(0, 1, None) if alone else _Way(start, most, None)
            return
        yield _Way(0, 1, _terms(request, Hosts.NODE, rated=False))
        if alone:
            return
        if NVLINK in tiers and tiers.index(NVLINK) + 1 >= start:
            yield _Way(tiers.index(NVLINK) + 1, most, _terms(request, Hosts.DOMAIN, rated=False))
        for hosts, possible in (
            (Hosts.TWO, request.joined or request.workers == AMONG[Hosts.TWO]),
            (Hosts.SEVERAL, request.workers > AMONG[Hosts.TWO]),
        ):
            for depth in range(start, len(tiers) + 1) if possible else ():
                network, rated = self.network(request, hosts, depth)
                if network >= request.min_bandwidth:
                    few = min(most, AMONG[hosts]) if hosts is Hosts.TWO else most
                    yield _Way(depth, few, _terms(request, hosts, rated=rated))
                    break

    def network(self, request: Request, hosts: Hosts, depth: int) -> tuple[float, bool]:
        """GB/s between nodes that share so many levels, and whether somebody gave a rate."""
        rate = self.index.rate(depth + WHOLE, request.wire)
        if rate is None:
            return UNLIMITED, False
        ranks = request.workers * request.gpus
        return network_limit(rate, among=AMONG[hosts], ranks=ranks, wire=request.wire), True

    def rates(self, request: Request) -> set[float]:
        """What the loads of nodes and the network allow a gang; its bandwidth is one of them."""
        found: set[float] = set()
        for hosts in (Hosts.TWO, Hosts.SEVERAL):
            for depth in range(len(self.index.cluster.tiers) + 1):
                found.add(self.network(request, hosts, depth)[0])
        for way in self.ways(replace(request, min_bandwidth=math.ulp(0.0))):
            for group in self.groups(way.depth):
                for load in range(1, min(room(request, group.node), request.workers) + 1):
                    assert way.terms is not None, "a bandwidth is asked for"
                    found.add(self.speed(group.node, load, way.terms))
        return found


def _terms(request: Request, hosts: Hosts, *, rated: bool) -> Terms:
    return Terms(
        hosts=hosts,
        gpus=request.gpus,
        ranks=request.workers * request.gpus,
        joined=request.joined,
        wire=request.wire,
        rated=rated,
    )


def _largest(offers: Counter[Sequence[int]], most: int) -> int:
    """How many workers the largest nodes take."""
    held, left = 0, most
    for loads in sorted(offers, key=lambda loads: -loads[-1]):
        held += loads[-1] * min(left, offers[loads])
        left -= min(left, offers[loads])
    return held


def _hold(offers: Counter[Sequence[int]], workers: int, most: int) -> bool:
    """Whether at most so many nodes take all workers."""
    if _largest(offers, most) < workers:
        return False
    if all(loads[-1] == len(loads) for loads in offers):
        return True
    # Some loads are impossible: three GPUs of a cube mesh close no ring, four do.
    alike = [Offer(count=many, prices=dict.fromkeys(loads, 0)) for loads, many in offers.items()]
    return select(alike, workers, most=most) is not None


# ---------------------------------------------------------------- changes of the request


class _Changes:
    """The changes that would give a request its place in a view, the gentlest first."""

    def __init__(
        self, request: Request, now: _View, view: _View, others: Sequence[Instead]
    ) -> None:
        self.request = request
        self.now = now
        self.view = view
        self.others = others

    def nearest(self, *, never: bool) -> str | None:
        """Say what would make the gang fit; None where nothing tried here would."""
        changes = list(itertools.islice(self._single(), MOST_CHANGES)) or list(self._together())
        now = [words for words, asked in changes if not never or self.fits(asked, self.now)]
        then = [words for words, _ in changes if words not in now]
        cluster = self.view.index.cluster
        parts = [f"now {', or '.join(now)}"] if now else []
        parts += [f"{', or '.join(then)} {once_empty(cluster)}"] if then else []
        release = None if never else Release(self.request, self.view).words()
        later = None if release else self._later()
        if later is not None:
            empty = "the cluster is empty and " if never and not self._is_idle() else ""
            release = f"when {empty}{later}"
        parts += [release] if release else []
        return f"fits {'; or '.join(parts)}" if parts else None

    def _is_idle(self) -> bool:
        return all(node == node.idle() for node in self.view.index.cluster.nodes)

    def fits(self, request: Request, view: _View | None = None) -> bool:
        """Whether a changed request fits, in the view unless another is given."""
        view = view or self.view
        if request.excluded is not view.excluded:
            view = _View(view.index, request, idle=view.idle)
        return view.fits(request)

    def _single(self) -> Iterator[Change]:
        """Single changes that would do it."""
        request = self.request
        mixed = replace(request, mix_models=True)
        models = {group.node.machine.model for group in self.view.groups(0)} - {None}
        own = (request.model or "").casefold()
        wider = [
            ("with --mix-models", mixed, not request.mix_models),
            *(
                (f"with --gpu-model {model}", replace(request, model=model), bool(own))
                for model in sorted(filter(None, models))
                if model.casefold() != own
            ),
        ]
        instead = [
            (one.words, replace(request, excluded=one.excluded), True)
            for one in self.others
            if not one.later
        ]
        yield from self._speed()
        yield from self._first(wider[:1])
        yield from self._first(wider[1:])
        yield from self._first(instead)
        yield from self._distance()
        yield from self._resources()
        yield from self._size()

    def _first(self, changes: Iterable[tuple[str, Request, bool]]) -> Iterator[Change]:
        """The first of some changes that would do it, if any."""
        for words, changed, sensible in changes:
            if sensible and self.fits(changed):
                yield words, changed
                return

    def _speed(self) -> Iterator[Change]:
        request = self.request
        if not request.min_bandwidth or not self.fits(replace(request, min_bandwidth=0.0)):
            return
        rates = sorted(one for one in self.view.rates(request) if 0 < one < request.min_bandwidth)
        found = _last(rates, lambda rate: self.fits(replace(request, min_bandwidth=rate)))
        # Rounded down: what is asked for must be there.
        rate = math.floor(round((found or 0.0) * 100, 6)) / 100
        if rate:
            yield f"with --min-bandwidth {rate:g}", replace(request, min_bandwidth=rate)

    def _distance(self) -> Iterator[Change]:
        request = self.request
        if request.max_nodes is not None:
            many = range(request.max_nodes + 1, request.workers + 1)
            fewest = _first(many, lambda most: self.fits(replace(request, max_nodes=most)))
            if fewest is not None:
                yield f"with --max-nodes {fewest}", replace(request, max_nodes=fewest)
        if request.per_node is not None or (request.min_bandwidth and not request.joined):
            yield from self._first(self._fused())
            shared = replace(request, per_node=None)
            yield from self._first(
                [("without --hostNetwork", shared, request.per_node is not None)]
            )
        if request.required is not None:
            tiers = (tier.name for tier in reversed(self.view.index.cluster.tiers))
            levels = ["node", *tiers, "beyond"]
            yield from self._first(
                (f"with --topology-required {level}", replace(request, required=level), True)
                for level in levels[levels.index(request.required) + 1 :]
            )

    def _fused(self) -> Iterator[tuple[str, Request, bool]]:
        """Fewer, larger workers."""
        request = self.request
        for each in range(2, min(request.workers, self._largest // request.gpus) + 1):
            fused = replace(
                request,
                workers=request.workers // each,
                gpus=request.gpus * each,
                cpu=request.cpu * each,
                memory=request.memory * each,
            )
            yield "with --pod-shape fused", fused, request.workers % each == 0

    @cached_property
    def _largest(self) -> int:
        """However much is asked for, no node has more GPUs free."""
        return max((group.node.free_count for group in self.view.groups(0)), default=0)

    def _resources(self) -> Iterator[Change]:
        """Less CPU (cut to millicores) or memory (to whole Gi, or Mi) for each worker."""
        request = self.request
        usable = [one for group in self.view.groups(0) if not refused(request, one := group.node)]
        shares = {
            node.name: range(1, min(request.workers, node.free_count // request.gpus) + 1)
            for node in usable
        }
        if request.cpu and self.fits(replace(request, cpu=0.0)):
            amounts = {
                math.floor(node.cpu / share * 1000) / 1000
                for node in usable
                if node.cpu is not None
                for share in shares[node.name]
            }
            some = sorted(one for one in amounts if 0 < one < request.cpu)
            cores = _last(some, lambda one: self.fits(replace(request, cpu=one))) or 0.0
            text = f"{cores:.3f}".rstrip("0").rstrip(".") if cores else ""
            yield f"with --cpu {text}" if text else "without --cpu", replace(request, cpu=cores)
        if request.memory and self.fits(replace(request, memory=0)):
            sizes = {
                _cut(node.memory // share)
                for node in usable
                if node.memory is not None
                for share in shares[node.name]
            }
            fewer = sorted(one for one in sizes if 0 < one < request.memory)
            size = _last(fewer, lambda one: self.fits(replace(request, memory=one))) or 0
            words = f"with --memory {_bytes(size)}" if size else "without --memory"
            yield words, replace(request, memory=size)

    def _size(self) -> Iterator[Change]:
        request = self.request
        workers = self.most_workers(request)
        if workers:
            yield f"with --workers {workers}", replace(request, workers=workers)
        gpus = self._most_gpus(lambda gpus: self.fits(replace(request, gpus=gpus)))
        if gpus:
            yield f"with --gpus {gpus}", replace(request, gpus=gpus)

    def most_workers(self, request: Request) -> int:
        """The largest smaller gang that fits; 0 if there is none.

        A smaller gang gets no more of a network than a larger one, so that what no node or network
        could take on the terms of the larger is passed over. Where some loads are impossible, a
        size between two that fit need not fit itself.
        """
        view = self.view
        if request.excluded is not view.excluded:
            view = _View(view.index, request, idle=view.idle)
        # A single GPU has no bandwidth, which is no help to who asks for some.
        least = 2 if request.min_bandwidth and request.gpus == 1 else 1
        workers = min(request.workers - 1, view.most(replace(request, min_bandwidth=0.0)))
        for _ in range(TRIES):
            if workers < least:
                break
            smaller = replace(request, workers=workers)
            if view.fits(smaller):
                return workers
            # Two pods are two hosts, which get more than three.
            workers = min(workers - 1, max(view.most(smaller), AMONG[Hosts.TWO]))
        return 0

    def _most_gpus(self, fits: Callable[[int], bool]) -> int:
        """The most GPUs of a worker, fewer than asked for, that will do; 0 if none."""
        sizes = range(1, min(self.request.gpus - 1, self._largest) + 1)
        if not self.request.min_bandwidth:
            return _last(sizes, fits) or 0
        return next((size for size in sizes[: -TRIES - 1 : -1] if fits(size)), 0)

    def _together(self) -> Iterator[Change]:
        """What must be given up at once, where no single change would do; no less of it would."""
        request = self.request
        limits: list[tuple[str, dict[str, Any]]] = [
            (words, fields)
            for asked, words, fields in (
                (request.min_bandwidth, "without --min-bandwidth", {"min_bandwidth": 0.0}),
                (request.model, "without --gpu-model", {"model": None}),
                (not request.mix_models, "with --mix-models", {"mix_models": True}),
                (request.max_nodes, "without --max-nodes", {"max_nodes": None}),
                (request.per_node, "without --hostNetwork", {"per_node": None}),
                (request.required, "without --topology-required", {"required": None}),
                (request.cpu, "without --cpu", {"cpu": 0.0}),
                (request.memory, "without --memory", {"memory": 0}),
            )
            if asked
        ]
        # The last gives up all that keeps the job from nodes.
        widest = [one for one in self.others if not one.later][-1:]
        limits += [(other.words, {"excluded": other.excluded}) for other in widest]

        def without(given_up: Sequence[tuple[str, dict[str, Any]]]) -> Request:
            fields = {name: value for _, more in given_up for name, value in more.items()}
            return replace(request, **fields)

        gpus, workers = self._fitting(without(limits))
        # A single GPU has no bandwidth, which is no help to who asks for some.
        if not workers or (request.min_bandwidth and workers * gpus == 1):
            return
        kept = limits
        for one in limits:
            fewer = [other for other in kept if other is not one]
            if self.fits(replace(without(fewer), gpus=gpus, workers=workers)):
                kept = fewer
        sizes = [f"--gpus {gpus}"] if gpus < request.gpus else []
        sizes += [f"--workers {workers}"] if workers < request.workers else []
        words = [f"with {' and '.join(sizes)}"] if sizes else []
        said = " and ".join([*words, *(one for one, _ in kept)])
        yield said, replace(without(kept), gpus=gpus, workers=workers)

    def _fitting(self, request: Request) -> tuple[int, int]:
        """The GPUs and workers nearest to those asked for that fit: larger workers before more."""
        gpus = request.gpus
        if not self.fits(replace(request, workers=1)):
            gpus = self._most_gpus(lambda gpus: self.fits(replace(request, gpus=gpus, workers=1)))
        if not gpus:
            return 0, 0
        sized = replace(request, gpus=gpus)
        return gpus, request.workers if self.fits(sized) else self.most_workers(sized)

    def _later(self) -> str | None:
        """What others could do about the nodes that the job may not use, in words."""
        return next(
            (
                other.words
                for other in self.others
                if other.later and self.fits(replace(self.request, excluded=other.excluded))
            ),
            None,
        )


_T = TypeVar("_T")


def _last(ascending: Sequence[_T], fits: Callable[[_T], bool]) -> _T | None:
    """The largest that fits, as all smaller ones do; None if none does."""
    at = _first(range(len(ascending)), lambda at: not fits(ascending[at]))
    at = len(ascending) if at is None else at
    return ascending[at - 1] if at else None


def _first(ascending: range, fits: Callable[[int], bool]) -> int | None:
    """The smallest that fits, as all larger ones do; None if none does."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(ascending[middle]) else (middle + 1, high)
    return ascending[low] if low < len(ascending) else None


_GI, _MI = 1 << 30, 1 << 20


def _cut(size: int) -> int:
    unit = _GI if size >= _GI else _MI
    return size // unit * unit


def _bytes(size: int) -> str:
    return f"{size // _GI}Gi" if size >= _GI else f"{size // _MI}Mi"


# ---------------------------------------------------------------- GPUs and nodes to free


Table = Mapping[int, int]
"""For each number of workers that a node may take, what must be freed for it; 0 for nothing."""

Tables = Sequence[tuple[_Group, Table]]
Costs = Callable[[_Group, _Way], Table]


class _Pick(NamedTuple):
    """So many nodes of a group take so many workers each, for which so much must be freed."""

    group: _Group
    load: int
    cost: int
    times: int


class _Release(NamedTuple):
    """The least to free for a whole gang; `proven` unless there may be less."""

    cost: int
    proven: bool
    picks: tuple[_Pick, ...] = ()
    way: _Way | None = None


class Release:
    """What others would have to free for a gang: the fewest GPUs, else the fewest nodes."""

    def __init__(self, request: Request, view: _View) -> None:
        self.request = request
        self.view = view
        self.idle = _View(view.index, request, idle=True)
        self._fast: dict[tuple[object, ...], list[GPUSet]] = {}

    def words(self) -> str | None:
        """What to free, as it follows "fits": `when 2 more GPUs of node a are free`."""
        found = self._least(self._gpus)
        if found is not None:
            return f"{_when(found)} {self._released(found)}"
        found = self._least(self._nodes)
        return None if found is None else f"{_when(found)} {self._recovered(found)}"

    def _least(self, costs: Costs) -> _Release | None:
        """The least to free, over all ways and domains; None where nothing is enough."""
        best: _Release | None = None
        proven = True
        for way in self.view.ways(self.request):
            homes: dict[tuple[object, ...], list[tuple[_Group, Table]]] = {}
            for group in self.view.groups(way.depth):
                table = costs(group, way)
                if table:
                    homes.setdefault(self.view.home(group, self.request), []).append((group, table))
            bounded = [
                (bound, at, some)
                for at, some in enumerate(homes.values())
                if (bound := _bound(some, self.request.workers)) is not None
            ]
            for tried, (bound, _, some) in enumerate(sorted(bounded, key=lambda one: one[:2])):
                if best is not None and bound >= best.cost:
                    break
                if tried == TRIES:
                    proven = False
                    break
                found = _cheapest(some, self.request.workers, way.most)
                proven = proven and (found is None or found.proven)
                if found is not None and (best is None or found.cost < best.cost):
                    best = found._replace(way=way)
        return None if best is None else best._replace(proven=proven or best.cost == 1)

    def _gpus(self, group: _Group, way: _Way) -> Table:
        """How many GPUs of a node must become free, by load."""
        request, node = self.request, group.node
        most = min(room(request, _without_jobs(node)), request.workers)
        if way.terms is None:
            return {
                load: max(0, load * request.gpus - node.free_count) for load in range(1, most + 1)
            }
        table: dict[int, int] = {}
        most = min(most, request.workers - (way.terms.hosts is not Hosts.NODE))
        for load in range(1, most + 1):
            if self.view.speed(node, load, way.terms) >= request.min_bandwidth:
                table[load] = 0
            elif (chosen := self._chosen(node, load, way.terms)) is not None:
                table[load] = len(chosen)
        return table

    def _chosen(self, node: Node, load: int, terms: Terms) -> tuple[int | None, ...] | None:
        """The fewest GPUs whose release gives a load its bandwidth; None for one of any."""
        size, floor = load * self.request.gpus, self.request.min_bandwidth
        any_more = max(0, size - node.free_count)
        least = self.view.index.class_of(replace(node, hidden=max(0, node.hidden - any_more)))
        if 0 < any_more < node.hidden and least.best(load, terms) >= floor:
            return (None,) * any_more
        healthy = _without_jobs(node)
        whole = self.view.index.class_of(healthy)
        if whole.best(load, terms) < floor:
            return None
        terms = whole.terms(terms)
        if whole.loads.by_count(terms):
            return (None,) * any_more
        key = (whole.loads, healthy.free, size, terms)
        fast = self._fast.get(key)
        if fast is None:
            alike = tuple(range(whole.sets.size))
            every = (
                choices(healthy.free, size, alike)
                if whole.sets.size <= LISTED
                else whole.loads.choices(healthy.free, size, terms)
            )
            fast = [one for one in every if whole.loads.got(one, terms) >= floor]
            self._fast[key] = fast
        chosen = min(fast, key=lambda one: (count(GPUSet(one & ~node.free)), members(one)))
        return (*members(GPUSet(chosen & ~node.free)), *(None,) * node.hidden)

    def _nodes(self, group: _Group, way: _Way) -> Table:
        """Which loads a node takes once it has no other jobs and is well, by whether it must."""
        well = group._replace(node=group.node.idle())
        now = set(self.view.loads(group, self.request, way))
        some = now.union(self.idle.loads(well, self.request, way))
        return {load: int(load not in now) for load in sorted(some) if load <= self.request.workers}

    # In words

    def _named(self, found: _Release) -> Iterator[tuple[Node, _Pick]]:
        """The nodes of which something must become free, by cost and name."""
        picks = sorted(
            (pick for pick in found.picks if pick.cost),
            key=lambda pick: (-pick.cost, natural(pick.group.node.name)),
        )
        passed: Counter[tuple[object, ...]] = Counter()
        assert found.way is not None, "what was found has its way"
        for pick in picks:
            nodes = self.view.members(pick.group, found.way.depth)
            start = passed[pick.group.key]
            passed[pick.group.key] += pick.times
            for node in itertools.islice(nodes, start, start + pick.times):
                yield node, pick

    def _released(self, found: _Release) -> str:
        """How many more GPUs of which nodes are free; most of a node first."""
        picks = [pick for pick in found.picks if pick.cost]
        many = sum(pick.times for pick in picks)
        shown = list(itertools.islice(self._named(found), MOST_NAMES))
        every = all(
            pick.cost == len(pick.group.node.machine.gpus) - pick.group.node.free_count
            for pick in picks
        )
        if every and many > 1:
            return f"all GPUs of {_names([node.name for node, _ in shown], many)} are free"
        parts = [
            self._some(node, pick, found, first=not at) for at, (node, pick) in enumerate(shown)
        ]
        if many > len(shown):
            rest = found.cost - sum(pick.cost for _, pick in shown)
            parts.append(f"{rest} of {_many(many - len(shown), 'more node')}")
        return f"{_listed(parts)} {'is' if found.cost == 1 else 'are'} free"

    def _some(self, node: Node, pick: _Pick, found: _Release, *, first: bool) -> str:
        """The GPUs of a node to free, by index where it matters which."""
        assert found.way is not None, "what was found has its way"
        where = node.name if not first or node.name.startswith("node") else f"node {node.name}"
        terms = found.way.terms
        chosen = (None,) if terms is None else self._chosen(node, pick.load, terms) or (None,)
        named = [str(one) for one in chosen if one is not None]
        held = len(node.machine.gpus) - node.free_count
        if named and len(named) == pick.cost and pick.cost < held:
            return f"GPU{'s' * (len(named) > 1)} {_listed(named)} of {where}"
        return f"{_many(pick.cost, 'more GPU') if first else pick.cost} of {where}"

    def _recovered(self, found: _Release) -> str:
        """What must become of nodes: `a and b are free of other jobs, and c is uncordoned`."""
        some: dict[str, list[str]] = {}
        for node, _ in self._named(found):
            some.setdefault(_recovery(node), []).append(node.name)
        parts = []
        for well in sorted(some, key=_ORDER.index):
            names = sorted(some[well], key=natural)
            listed = _names(names[:MOST_NAMES], len(names))
            are = "is" if len(names) == 1 else "are"
            parts.append(
                f"all GPUs of {listed} are {well}" if well == _HEALTHY else f"{listed} {are} {well}"
            )
        return ", and ".join(parts)


_FREE, _HEALTHY = "free of other jobs", "free and healthy"
_ORDER = (_FREE, _HEALTHY, "uncordoned", "ready")


def _recovery(node: Node) -> str:
    """What a node lacks until it is well."""
    if node.unavailable is not None:
        return "uncordoned" if node.unavailable == "cordoned" else "ready"
    return _FREE if _without_jobs(node).free == node.machine.everything else _HEALTHY


def _without_jobs(node: Node) -> Node:
    """The node with all its healthy GPUs free."""
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    return replace(node, free=GPUSet(healthy | node.free), hidden=0)


def _when(found: _Release) -> str:
    return "when" if found.proven else "for example when"


def _names(shown: Sequence[str], many: int) -> str:
    return _listed([*shown, f"{many - len(shown)} more"] if many > len(shown) else shown)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


# ---------------------------------------------------------------- the knapsack


class _Step(NamedTuple):
    """A cheapest way to more workers on a node: cost of each, up to this load, from which load."""

    price: float
    of: int
    start: int
    stop: int


def _steps(table: Table, of: int) -> Iterator[_Step]:
    """The lower convex hull of a table, from what a node takes now."""
    start, paid = _now(table), 0
    loads = [load for load in table if load > start]
    while loads:
        price, stop = min(((table[load] - paid) / (load - start), -load) for load in loads)
        yield _Step(price, of, start, -stop)
        start, paid = -stop, table[-stop]
        loads = [load for load in loads if load > start]


def _now(table: Table) -> int:
    return max((load for load in table if not table[load]), default=0)


def _bound(tables: Tables, workers: int) -> int | None:
    """No less than this need be freed for all workers; None where no release is enough."""
    if sum(group.many * max(table) for group, table in tables) < workers:
        return None
    missing = workers - sum(group.many * _now(table) for group, table in tables)
    prices = [step.price for _, table in tables for step in itertools.islice(_steps(table, 0), 1)]
    return max(1, math.ceil(missing * min(prices) - 1e-9)) if prices else None


def _cheapest(tables: Tables, workers: int, most: int) -> _Release | None:
    """The least to free so that at most so many nodes take all workers."""
    found = _greedy(tables, workers)
    if found is not None and found.proven and _nodes_of(found) <= most:
        return found
    largest = max(max(table) for _, table in tables)
    ordered = sorted(tables, key=lambda one: _row(one[1], largest))
    rows = [_row(table, largest) for _, table in ordered]
    if all(
        one <= other
        for row, later in itertools.pairwise(rows)
        for one, other in zip(row, later, strict=True)
    ):
        # Each node is as good as the next at every load, so that the first are the best.
        found = _greedy(_first_nodes(ordered, most), workers)
        if found is not None:
            return found
    exact = _programmed(tables, workers, most)
    if exact is not None:
        return exact
    mean = min(largest, math.ceil(workers / most))
    fair = sorted(tables, key=lambda one: _row(one[1], largest)[mean - 1])
    found = _greedy(_first_nodes(fair, most), workers)
    return None if found is None else found._replace(proven=False)


def _row(table: Table, largest: int) -> list[float]:
    return [table.get(load, math.inf) for load in range(1, largest + 1)]


def _nodes_of(found: _Release) -> int:
    return sum(pick.times for pick in found.picks)


def _first_nodes(tables: Tables, most: int) -> list[tuple[_Group, Table]]:
    """The first so many nodes."""
    some: list[tuple[_Group, Table]] = []
    for group, table in tables:
        if most > 0:
            some.append((group._replace(many=min(most, group.many)), table))
            most -= group.many
    return some


def _greedy(tables: Tables, workers: int) -> _Release | None:
    """Take the cheapest steps of all nodes until all workers have a place.

    That is the least where it is no more than the steps cost as fractions.
    """
    now = [_now(table) for _, table in tables]
    missing = workers - sum(group.many * load for (group, _), load in zip(tables, now, strict=True))
    seated = [
        _Pick(group, load, 0, group.many) for (group, _), load in zip(tables, now, strict=True)
    ]
    bound = _bound(tables, workers) or 0
    for at, (group, table) in enumerate(tables):
        # A single node reads better than several.
        alone = table.get(now[at] + missing)
        if alone is not None and alone <= bound:
            seated[at] = seated[at]._replace(times=group.many - 1)
            seated.append(_Pick(group, now[at] + missing, alone, 1))
            return _Release(alone, True, tuple(pick for pick in seated if pick.load and pick.times))
    taken = [[(load, group.many)] for (group, _), load in zip(tables, now, strict=True)]
    steps = sorted(step for at, (_, table) in enumerate(tables) for step in _steps(table, at))
    least = 0.0
    for step in steps:
        if missing <= 0:
            break
        many, gain = tables[step.of][0].many, step.stop - step.start
        times, rest = divmod(min(missing, many * gain), gain)
        least += step.price * min(missing, many * gain)
        missing -= times * gain + rest
        taken[step.of] = [(step.stop, times), (step.start + rest, int(rest > 0))]
        taken[step.of].append((step.start, many - times - (rest > 0)))
    picks = tuple(
        _Pick(group, load, table.get(load, -1) if load else 0, times)
        for (group, table), some in zip(tables, taken, strict=True)
        for load, times in some
        if load and times
    )
    if missing > 0 or any(pick.cost < 0 for pick in picks):
        return None
    cost = sum(pick.cost * pick.times for pick in picks)
    return _Release(cost, cost <= math.ceil(least - 1e-9), picks)


def _programmed(tables: Tables, workers: int, most: int) -> _Release | None:
    """The least by dynamic programming over nodes; None where that takes too long or none does."""
    limited = most < workers
    nodes = min(most, workers)
    chosen: Counter[int] = Counter()
    for load in sorted({load for _, table in tables for load in table}):
        # Of the nodes that take a load, more than the cheapest are never needed for it.
        left = min(nodes, workers // load)
        asked = [at for at, (_, table) in enumerate(tables) if load in table]
        for at in sorted(asked, key=lambda at: tables[at][1][load]):
            some = min(left, tables[at][0].many)
            chosen[at] = max(chosen[at], some)
            left -= some
            if not left:
                break
    work = sum(chosen[at] * len(tables[at][1]) for at in chosen) * workers
    if work * (nodes if limited else 1) > WORK:
        return None
    reached: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = {(0, 0): (0, ())}
    for at in chosen.elements():
        for (used, held), (cost, chain) in list(reached.items()):
            for load, more in tables[at][1].items():
                state = (used + limited, held + load)
                if state[1] > workers or state[0] > nodes:
                    continue
                if state not in reached or cost + more < reached[state][0]:
                    reached[state] = (cost + more, ((at, load), chain))
    ends = [reached[state] for state in reached if state[1] == workers]
    if not ends:
        return None
    cost, chain = min(ends, key=lambda end: end[0])
    loads: Counter[tuple[int, int]] = Counter()
    while chain:
        loads[chain[0]] += 1
        chain = chain[1]
    picks = [
        _Pick(tables[at][0], load, tables[at][1][load], times)
        for (at, load), times in loads.items()
    ]
    return _Release(cost, True, tuple(picks))
