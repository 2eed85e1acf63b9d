"""The nearest changes that would give a refused gang its place: of the request, or of the cluster.

Every change named was tried and fits; a number named is the best one of its kind. GPUs to release
are the fewest there are; where they were found by trying, and fewer may do, "for example" says so.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arena_topo.solver import Reason, Request, gang
from arena_topo.solver.classes import Index, refused, room
from arena_topo.solver.gang import BEYOND, NODE_TIER, Found
from arena_topo.solver.gpu_sets import gpu_sets
from arena_topo.topology import Cluster, GPUSet, Node, NodeName, count, gpu_set, members, natural

Change = tuple[str, Request]
"""What to say after "fits now", and the request that then is placed."""

Best = Callable[[Request, Cluster], Found | None]
"""The best choice of nodes for a request; None if there is none."""

MOST_CHANGES = 3
"""Changes named at once, the smallest first."""

WORK = 20_000
"""Nodes looked at, over all searches, for the GPUs whose release would help."""

MOST_NAMES = 3
"""Nodes named of those that would have to become free together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """A change of the job that lets it use other nodes; the solver knows only which.

    `words` come after "fits now" (`without --selector a=b`), or after "when" if `later`.
    """

    words: str
    excluded: Mapping[NodeName, Reason]
    later: bool = False


def nearest(
    request: Request,
    cluster: Cluster,
    *,
    never: bool,
    best: Best,
    others: Sequence[Instead] = (),
    today: Cluster | None = None,
) -> str | None:
    """Say what would make a gang fit that does not; None where nothing tried here would.

    With `never`, `cluster` is the emptied one, `today` what it is now, and only the request can
    change. `best` is asked often about the same clusters, so the caller may keep an index of each.
    `others` are tried as they are.
    """
    changes = list(itertools.islice(_flags(request, cluster, best, others), MOST_CHANGES))
    if not changes:
        changes = list(_together(request, cluster, best, others))
    now = [
        words
        for words, asked in changes
        if not never or (today is not None and best(asked, today) is not None)
    ]
    then = [words for words, _asked in changes if words not in now]
    parts = []
    if now:
        parts.append(f"now {', or '.join(now)}")
    if then:
        parts.append(f"{', or '.join(then)} {once_empty(today or cluster)}")
    release = None if never else _release(request, cluster, best)
    if release is None:
        release = _later(request, cluster, best, others)
        if release is not None:
            empty = "the cluster is empty and " if never and cluster != today else ""
            release = f"when {empty}{release}"
    if release is not None:
        parts.append(release)
    return f"fits {'; or '.join(parts)}" if parts else None


def once_empty(today: Cluster) -> str:
    """When the cluster could take what it can take at most."""
    closed = any(node.unavailable is not None for node in today.nodes)
    return f"once the cluster is empty{' and all its nodes are ready' if closed else ''}"


# ---------------------------------------------------------------- changes of the request


def _flags(
    request: Request, cluster: Cluster, best: Best, others: Sequence[Instead]
) -> Iterator[Change]:
    """The flags that would do it, the gentlest change of the job first."""
    for flags in (_speed, _hardware):
        yield from flags(request, cluster, best)
    for other in others:
        changed = replace(request, excluded=other.excluded)
        if not other.later and best(changed, cluster) is not None:
            yield other.words, changed
            break
    for flags in (_distance, _resources, _size):
        yield from flags(request, cluster, best)


def _together(
    request: Request, cluster: Cluster, best: Best, others: Sequence[Instead]
) -> Iterator[Change]:
    """What must be given up at once, where no single change would do; no less of it would."""
    limits: list[tuple[str, Mapping[str, Any]]] = [
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
    widest = [one for one in others if not one.later][-1:]
    limits += [(other.words, {"excluded": other.excluded}) for other in widest]

    def without(given_up: Sequence[tuple[str, Mapping[str, Any]]]) -> Request:
        fields: dict[str, Any] = {}
        for _words, more in given_up:
            fields |= more
        return replace(request, **fields)

    loosest = without(limits)
    gpus, workers = _fitting(loosest, cluster, best)
    # A single GPU has no bandwidth, which is no help to who asks for some.
    if not workers or (request.min_bandwidth and workers * gpus == 1):
        return
    kept = limits
    for one in limits:
        fewer = [other for other in kept if other is not one]
        if best(replace(without(fewer), gpus=gpus, workers=workers), cluster) is not None:
            kept = fewer
    sizes = [f"--gpus {gpus}"] if gpus < request.gpus else []
    sizes += [f"--workers {workers}"] if workers < request.workers else []
    words = [f"with {' and '.join(sizes)}"] if sizes else []
    said = " and ".join([*words, *(one for one, _fields in kept)])
    yield said, replace(without(kept), gpus=gpus, workers=workers)


def _fitting(request: Request, cluster: Cluster, best: Best) -> tuple[int, int]:
    """The GPUs and workers nearest to those asked for that fit: larger workers before more."""
    if best(request, cluster) is not None:
        return request.gpus, request.workers
    workers = _most_workers(request, cluster, best)
    if workers:
        return request.gpus, workers
    # However much is asked for, no node has more.
    most = max((node.free_count for node in cluster.nodes), default=0)
    for gpus in range(min(request.gpus - 1, most), 0, -1):
        smaller = replace(request, gpus=gpus)
        if best(smaller, cluster) is not None:
            return gpus, request.workers
        workers = _most_workers(smaller, cluster, best)
        if workers:
            return gpus, workers
    return request.gpus, 0


def _later(request: Request, cluster: Cluster, best: Best, others: Sequence[Instead]) -> str | None:
    """What others could do about the nodes that the job may not use, in words."""
    for other in others:
        changed = replace(request, excluded=other.excluded)
        if other.later and best(changed, cluster) is not None:
            return other.words
    return None


def _speed(request: Request, cluster: Cluster, best: Best) -> Iterator[Change]:
    if request.min_bandwidth:
        # A preferred level would come before the bandwidth.
        found = _fastest(replace(request, min_bandwidth=0.0, preferred=None), cluster, best)
        if found:
            # Rounded down: what is asked for must be there.
            rate = math.floor(round(found * 100, 6)) / 100
            yield f"with --min-bandwidth {rate:g}", replace(request, min_bandwidth=rate)


def _fastest(request: Request, cluster: Cluster, best: Best) -> float:
    """The most bandwidth (GB/s) that the workers can use; 0 if they do not fit."""
    found = best(request, cluster)
    if found is None:
        return 0.0
    return found.bandwidth


def _hardware(request: Request, cluster: Cluster, best: Best) -> Iterator[Change]:
    mixed = replace(request, mix_models=True)
    if not request.mix_models and best(mixed, cluster) is not None:
        yield "with --mix-models", mixed
    if request.model is None:
        return
    own = request.model.casefold()
    models = {node.machine.model for node in cluster.nodes if node.machine.model}
    others = sorted(one for one in models if one.casefold() != own)
    for model in others:
        changed = replace(request, model=model)
        if best(changed, cluster) is not None:
            yield f"with --gpu-model {model}", changed
            return


def _distance(request: Request, cluster: Cluster, best: Best) -> Iterator[Change]:
    if request.max_nodes is not None:
        found = best(replace(request, max_nodes=None), cluster)
        if found is not None:
            most = _fewest(request, cluster, best, found.worth.nodes)
            yield f"with --max-nodes {most}", replace(request, max_nodes=most)
    if request.per_node is not None or (request.min_bandwidth and not request.joined):
        yield from _apart(request, cluster, best)
    if request.required is None:
        return
    for level in _beyond(request.required, cluster):
        changed = replace(request, required=level)
        if best(changed, cluster) is not None:
            yield f"with --topology-required {level}", changed
            return


def _apart(request: Request, cluster: Cluster, best: Best) -> Iterator[Change]:
    """Fewer, larger workers, or none on the network of its node.

    Where few workers may share a node, or are hosts of their own there and get too little.
    """
    for each in range(2, request.workers + 1):
        fused = replace(
            request,
            workers=request.workers // each,
            gpus=request.gpus * each,
            cpu=request.cpu * each,
            memory=request.memory * each,
        )
        if request.workers % each == 0 and best(fused, cluster) is not None:
            yield "with --pod-shape fused", fused
            break
    shared = replace(request, per_node=None)
    if request.per_node is not None and best(shared, cluster) is not None:
        yield "without --hostNetwork", shared


_GI, _MI = 1 << 30, 1 << 20


def _resources(request: Request, cluster: Cluster, best: Best) -> Iterator[Change]:
    """Less CPU (cut to millicores) or memory (to whole Gi, or Mi) for each worker."""
    usable = [one for one in cluster.nodes if refused(request, one) is None]
    if request.cpu and best(replace(request, cpu=0.0), cluster) is not None:
        amounts = {
            math.floor(node.cpu / share * 1000) / 1000
            for node in usable
            if node.cpu is not None
            for share in _shares(request, node)
        }
        cores = _largest_amount(
            sorted(amount for amount in amounts if 0 < amount < request.cpu),
            lambda amount: best(replace(request, cpu=amount), cluster) is not None,
        )
        text = f"{cores:.3f}".rstrip("0").rstrip(".") if cores else ""
        yield f"with --cpu {text}" if text else "without --cpu", replace(request, cpu=cores)
    if request.memory and best(replace(request, memory=0), cluster) is not None:
        sizes = {
            _cut(node.memory // share)
            for node in usable
            if node.memory is not None
            for share in _shares(request, node)
        }
        size = _largest_amount(
            sorted(one for one in sizes if 0 < one < request.memory),
            lambda one: best(replace(request, memory=int(one)), cluster) is not None,
        )
        words = f"with --memory {_bytes(int(size))}" if size else "without --memory"
        yield words, replace(request, memory=int(size))


def _shares(request: Request, node: Node) -> range:
    """How many workers may have to share a node."""
    return range(1, min(request.workers, node.free_count // request.gpus) + 1)


def _largest_amount(amounts: Sequence[float], fits: Callable[[float], bool]) -> float:
    """The largest of these ascending amounts that fits, as all smaller ones do; 0 for none."""
    low, high = 0, len(amounts)
    while low < high:
        middle = (low + high) // 2
        if fits(amounts[middle]):
            low = middle + 1
        else:
            high = middle
    return amounts[low - 1] if low else 0.0


def _cut(size: int) -> int:
    unit = _GI if size >= _GI else _MI
    return size // unit * unit


def _bytes(size: int) -> str:
    return f"{size // _GI}Gi" if size >= _GI else f"{size // _MI}Mi"


def _size(request: Request, cluster: Cluster, best: Best) -> Iterator[Change]:
    workers = _most_workers(request, cluster, best)
    if workers:
        yield f"with --workers {workers}", replace(request, workers=workers)
    # However much is asked for, no node has more.
    most = max((node.free_count for node in cluster.nodes), default=0)
    for gpus in range(min(request.gpus - 1, most), 0, -1):
        changed = replace(request, gpus=gpus)
        if best(changed, cluster) is not None:
            yield f"with --gpus {gpus}", changed
            return


def _fewest(request: Request, cluster: Cluster, best: Best, enough: int) -> int:
    """The fewest nodes that hold the gang; the fastest placement may take more."""
    low, high = request.max_nodes or 1, enough
    while high - low > 1:
        middle = (low + high) // 2
        if best(replace(request, max_nodes=middle), cluster) is None:
            low = middle
        else:
            high = middle
    return high


def _beyond(level: str, cluster: Cluster) -> Iterable[str]:
    """The levels further out than one, nearest first."""
    levels = [NODE_TIER, *(tier.name for tier in reversed(cluster.tiers)), BEYOND]
    return levels[levels.index(level) + 1 :]


def _most_workers(request: Request, cluster: Cluster, best: Best) -> int:
    """The largest smaller gang that fits; 0 if there is none.

    Gangs of a size between two that fit need not fit themselves (with a least bandwidth, four GPUs
    of a cube mesh may close a ring that three do not), so sizes are tried one by one, from what
    the nodes could hold at most.
    """
    limits = _Limits(request, cluster)
    # A single GPU has no bandwidth, which is no help to who asks for some.
    least = 2 if request.min_bandwidth and request.gpus == 1 else 1
    for workers in range(min(request.workers - 1, limits.most()), least - 1, -1):
        if best(replace(request, workers=workers), cluster) is not None:
            return workers
    return 0


# ---------------------------------------------------------------- how many workers at most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Nodes that one gang may combine, as the most workers that each takes, most first."""

    loads: tuple[int, ...]
    most_nodes: int
    total: int
    """Workers of all the nodes that a gang may use at once."""

    @classmethod
    def of(cls, loads: Iterable[int], most_nodes: int) -> _Group:
        """The group of nodes with these loads, in any order."""
        ordered = tuple(sorted(loads, reverse=True))
        return cls(loads=ordered, most_nodes=most_nodes, total=sum(ordered[:most_nodes]))

    def without(self, load: int) -> int:
        """The total with one place kept for a node that has this load now."""
        if len(self.loads) <= self.most_nodes:
            return self.total - load
        edge = self.loads[self.most_nodes - 1]
        return self.total - max(load, edge)


class _Limits:
    """Upper bounds on the workers that fit, exact where no least bandwidth is asked for."""

    def __init__(self, request: Request, cluster: Cluster) -> None:
        self.request = request
        self.cluster = cluster
        self.depth = self._depth()
        self.loads = {node.name: self.load(node) for node in cluster.nodes}
        gathered: dict[tuple[object, ...], list[int]] = {}
        for node in cluster.nodes:
            gathered.setdefault(self.home(node), []).append(self.loads[node.name])
        most = len(cluster.nodes) if request.max_nodes is None else request.max_nodes
        self.groups = {home: _Group.of(loads, most) for home, loads in gathered.items()}

    def most(self) -> int:
        """No more workers than this fit."""
        return max((group.total for group in self.groups.values()), default=0)

    def load(self, node: Node, *, more: int = 0) -> int:
        """The most workers of a node if `more` of its GPUs were free, whichever they are."""
        request = self.request
        if more:
            size = min(len(node.machine.gpus), node.free_count + more)
            node = replace(node, free=gpu_set(range(size)), hidden=0)
        most = room(request, node)
        if not request.min_bandwidth:
            return most
        sets = gpu_sets(node.machine.configuration)
        for workers in range(most, 0, -1):
            size = workers * request.gpus
            if more:
                found = sets.best(node.machine.everything, size)
            elif node.hidden:
                found = sets.worst(node.free, size)
            else:
                found = sets.best(node.free, size)
            if found >= request.min_bandwidth:
                return workers
        return 0

    def needed(self, node: Node) -> int | None:
        """A lower bound on the GPUs to release on a node; None where the machine has not so many.

        It counts GPUs only, which is cheap enough for every node of a large cluster.
        """
        gone = self.groups[self.home(node)].without(self.loads[node.name])
        workers = self.request.workers - gone
        more = max(1, workers * self.request.gpus - node.free_count)
        return more if more <= _held(node) else None

    def allow(self, node: Node, more: int) -> bool:
        """Whether the gang may fit once `more` GPUs of a node are released."""
        gone = self.groups[self.home(node)].without(self.loads[node.name])
        return gone + self.load(node, more=more) >= self.request.workers

    def home(self, node: Node) -> tuple[object, ...]:
        """What a gang must have in common: model, resource, and the domain it may not leave."""
        model = "" if self.request.mix_models else node.machine.model or ""
        domain = (node.name,) if self.depth is None else node.domains[: self.depth]
        return (model, node.resource, *domain)

    def _depth(self) -> int | None:
        """How many levels of the network all nodes must share; None for a single node."""
        request, tiers = self.request, self.cluster.tiers
        if request.required == NODE_TIER or request.max_nodes == 1:
            return None
        rates = [self.cluster.beyond, *(tier.bandwidth for tier in tiers)]
        words = [BEYOND, *(tier.name for tier in tiers)]
        start = words.index(request.required) if request.required is not None else 0
        return next(
            (at for at in range(start, len(words)) if rates[at] >= request.min_bandwidth), None
        )


# ---------------------------------------------------------------- GPUs that others hold


def _release(request: Request, cluster: Cluster, best: Best) -> str | None:
    """What others would have to release, in words: GPUs, else whole nodes."""
    limits = _Limits(request, cluster)
    if not request.min_bandwidth and (limits.depth is None or request.max_nodes is None):
        # Then numbers of GPUs are all that counts.
        fewest = _fewest_gpus(request, cluster, limits)
        if fewest is not None:
            return f"when {_released(fewest, cluster)}"
    else:
        found = _of_one_node(request, cluster, limits, best)
        if found is not None:
            return found
    return _several(request, cluster, best)


def _fewest_gpus(request: Request, cluster: Cluster, limits: _Limits) -> dict[str, int] | None:
    """The fewest GPUs whose release would do it, by node; None if no number of them would.

    One more worker on a node never costs fewer GPUs than the one before, so the cheapest of all
    nodes together are the fewest GPUs. Of equally many those of a single node are named.
    """
    prices: dict[tuple[object, ...], dict[str, list[int]]] = {}
    for node in sorted(cluster.nodes, key=lambda node: natural(node.name)):
        held, now = _held(node), limits.loads[node.name]
        most = limits.load(node, more=held) if held and refused(request, node) is None else now
        prices.setdefault(limits.home(node), {})[node.name] = [
            workers * request.gpus - max(node.free_count, (workers - 1) * request.gpus)
            for workers in range(now + 1, most + 1)
        ]
    fewest: dict[str, int] = {}
    for home, offers in prices.items():
        missing = request.workers - limits.groups[home].total
        cheapest = sorted(
            (more, place, name)
            for place, (name, some) in enumerate(offers.items())
            for more in some
        )[:missing]
        if len(cheapest) < missing:
            continue
        found: Counter[str] = Counter()
        for more, _, name in cheapest:
            found[name] += more
        for name, some in offers.items():
            if len(some) >= missing and sum(some[:missing]) == found.total():
                found = Counter({name: found.total()})
                break
        if not fewest or found.total() < sum(fewest.values()):
            fewest = dict(found)
    return fewest or None


def _released(gpus: Mapping[str, int], cluster: Cluster) -> str:
    """How many more GPUs of which nodes are free, in words; most of a node first."""
    nodes = [node for node in cluster.nodes if node.name in gpus]
    nodes.sort(key=lambda node: (-gpus[node.name], natural(node.name)))
    first, *others = nodes[:MOST_NAMES]
    if len(nodes) == 1:
        return _words(gpus[first.name], first)
    if all(gpus[one.name] == len(one.machine.gpus) - one.free_count for one in nodes):
        return _becoming(nodes, emptied=False)
    parts = [_gpus_of(gpus[first.name], first)]
    parts += [f"{gpus[node.name]} of {node.name}" for node in others]
    rest = nodes[MOST_NAMES:]
    if rest:
        many = f"{len(rest)} more node{'s' if len(rest) > 1 else ''}"
        parts.append(f"{sum(gpus[node.name] for node in rest)} of {many}")
    return f"{', '.join(parts[:-1])} and {parts[-1]} are free"


def _of_one_node(request: Request, cluster: Cluster, limits: _Limits, best: Best) -> str | None:
    """The fewest GPUs of one node whose release would do it, in words."""
    wanted: dict[int, list[Node]] = {}
    for node in cluster.nodes:
        needed = limits.needed(node) if refused(request, node) is None else None
        if needed is not None:
            wanted.setdefault(needed, []).append(node)
    work = WORK
    most = max((len(node.machine.gpus) for node in cluster.nodes), default=0)
    for more in range(1, most + 1):
        nodes = [node for needed in sorted(wanted) if needed <= more for node in wanted[needed]]
        for node in _first_of_each(nodes):
            if not limits.allow(node, more):
                continue
            when = "when" if more == 1 else "for example when"
            if not request.min_bandwidth:
                # The bounds are exact then.
                return f"{when} {_words(more, node)}"
            for freed in _freed(node, more):
                work -= len(cluster.nodes)
                if work < 0:
                    return None
                nodes_then = (freed if one is node else one for one in cluster.nodes)
                if best(request, replace(cluster, nodes=tuple(nodes_then))) is not None:
                    return f"{when} {_words(more, node)}"
    return None


def _several(request: Request, cluster: Cluster, best: Best) -> str | None:
    """Nodes that would have to become free together, in words."""
    for well in (_without_gpu_jobs, made_well):
        ready = replace(cluster, nodes=tuple(map(well, cluster.nodes)))
        index = Index(ready)
        if gang.best(request, index) is None:
            continue
        used = set(gang.search(request, index).nodes)
        then = {one.name: well(one) for one in cluster.nodes if one.name in used}
        needed = [one for one in cluster.nodes if one.name in used and then[one.name] != one]

        def enough(some: Sequence[Node], then: Mapping[NodeName, Node] = then) -> bool:
            names = {one.name for one in some}
            nodes = (then[it.name] if it.name in names else it for it in cluster.nodes)
            return best(request, replace(cluster, nodes=tuple(nodes))) is not None

        needed = _less(needed, enough, WORK // len(cluster.nodes))
        others = sum(well(one) != one for one in cluster.nodes) > len(needed)
        when = "for example when" if others and len(needed) > 1 else "when"
        return f"{when} {_becoming(needed, emptied=well is made_well)}"
    return None


def _less(
    nodes: Sequence[Node], enough: Callable[[Sequence[Node]], bool], tries: int
) -> list[Node]:
    """As few of these nodes as are found to be enough; after enough tries, none of them in vain.

    Nodes that many GPUs would have to be waited for are given up first: as many as can be at once,
    then one by one.
    """
    ordered = sorted(nodes, key=lambda node: (-_held(node), natural(node.name)))
    low, high = 0, len(ordered)
    while high - low > 1 and tries > 0:
        middle = (low + high) // 2
        tries -= 1
        low, high = (middle, high) if enough(ordered[middle:]) else (low, middle)
    kept = ordered[low:]
    for one in kept[1:] if low else kept:
        if tries <= 0:
            break
        tries -= 1
        fewer = [other for other in kept if other is not one]
        kept = fewer if enough(fewer) else kept
    return kept


def _without_gpu_jobs(node: Node) -> Node:
    """The node with all its healthy GPUs free."""
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    return replace(node, free=GPUSet(healthy | node.free), hidden=0)


def made_well(node: Node) -> Node:
    """The node without jobs, it and all its GPUs well."""
    return replace(
        node,
        free=node.machine.everything,
        hidden=0,
        cpu=node.all_cpu,
        memory=node.all_memory,
        unavailable=None,
    )


def _becoming(nodes: Sequence[Node], *, emptied: bool) -> str:
    """What must become of these nodes: `all GPUs of a and b are free, and c is uncordoned`."""
    ordered = sorted(nodes, key=lambda node: natural(node.name))
    held = [node.name for node in ordered if node.unavailable == "cordoned"]
    down = [node.name for node in ordered if node.unavailable not in {None, "cordoned"}]
    ill = [
        node.name
        for node in ordered
        if emptied
        and node.unavailable is None
        and _without_gpu_jobs(node).free != node.machine.everything
    ]
    busy = [node.name for node in ordered if node.name not in {*held, *down, *ill}]
    parts = []
    if busy and emptied:
        parts.append(f"{_names(busy)} {'is' if len(busy) == 1 else 'are'} free of other jobs")
    elif busy:
        parts.append(f"all GPUs of {_names(busy)} are free")
    if ill:
        parts.append(f"all GPUs of {_names(ill)} are free and healthy")
    for some, well in ((held, "uncordoned"), (down, "ready")):
        if some:
            parts.append(f"{_names(some)} {'is' if len(some) == 1 else 'are'} {well}")
    return ", and ".join(parts)


def _names(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _first_of_each(nodes: Iterable[Node]) -> Iterator[Node]:
    """Of nodes that a job cannot tell apart the first by name."""
    kinds = set()
    for node in sorted(nodes, key=lambda node: natural(node.name)):
        kind = (
            # Nodes of a kind share their matrix, and comparing matrices takes long.
            id(node.machine.links),
            node.machine.model,
            node.resource,
            node.free,
            node.hidden,
            node.allocatable,
            node.cpu,
            node.memory,
            node.domains,
        )
        if kind not in kinds:
            kinds.add(kind)
            yield node


def _held(node: Node) -> int:
    """How many healthy GPUs others hold."""
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    return count(GPUSet(healthy | node.free)) - node.free_count


def _freed(node: Node, more: int) -> Iterator[Node]:
    """The node with `more` GPUs released, in every way that may matter."""
    machine = node.machine
    healthy = machine.everything if node.allocatable is None else node.allocatable
    known = members(GPUSet(healthy & ~node.free))
    alike = gpu_sets(machine.configuration).uniform
    for secret in range(min(node.hidden, more), -1, -1):
        for chosen in itertools.combinations(known, more - secret):
            yield replace(
                node, free=GPUSet(node.free | gpu_set(chosen)), hidden=node.hidden - secret
            )
            if alike:
                break


def _words(more: int, node: Node) -> str:
    return f"{_gpus_of(more, node)} {'is' if more == 1 else 'are'} free"


def _gpus_of(more: int, node: Node) -> str:
    gpus = "1 more GPU" if more == 1 else f"{more} more GPUs"
    where = node.name if node.name.startswith("node") else f"node {node.name}"
    return f"{gpus} of {where}"
