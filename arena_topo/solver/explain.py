"""Why a gang has no place, and the smallest change that would give it one.

Each limit of a request is a row of a table: what loosens it, the gentlest first. Rows are tried by
counting (`gang.Search.fits`), and a number named is the largest or smallest that fits. What others
could free instead is a knapsack (`freeing`). No change is tried by placing the gang.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from arena_topo.solver.classes import Index, Pool, refused, room
from arena_topo.solver.freeing import Freeing, counted
from arena_topo.solver.gang import Search
from arena_topo.solver.loads import AMONG, Hosts
from arena_topo.solver.request import (
    Instead,
    Reason,
    Refusal,
    Request,
    Unplaceable,
    Verdict,
    once_empty,
)
from arena_topo.topology import Node

MOST_CHANGES = 3
"""Changes of the request named at once, the smallest first."""

TRIES = 16
"""Sizes of a gang, or of its workers, that are tried one by one."""

Change = tuple[str, dict[str, Any]]
"""What to say after "fits now", and the fields of a request that then has a place."""

_T = TypeVar("_T")


class _Limit(NamedTuple):
    """A limit of a request: its changes, the gentlest first, and what gives it up altogether.

    With `ordered` changes, where one fits all after it do. `reason` names the limit where it keeps
    nodes that have room for some workers from taking all. `gone` is None for what is no limit.
    """

    gone: Change | None
    changes: Callable[[], Sequence[Change]]
    reason: Reason | None = None
    ordered: bool = True


def explain(
    request: Request,
    index: Index,
    *,
    others: Sequence[Instead] = (),
    notes: tuple[str, ...] = (),
    each: int = 1,
    fusible: bool = True,
) -> Unplaceable:
    """Why a gang has no place, counted by reason, and what would give it one.

    `others` are changes of the job that lie outside the request; they are tried with the rest.
    `each` is how many workers of the job one worker of the request stands for (fused pods); sizes
    are named as the job has them. `fusible` says whether fused pods would be a way out at all.
    """
    workers, gpus = request.workers * each, request.gpus // each
    wanted = f"{counted(workers, 'worker')} x {counted(gpus, 'GPU')}"
    if each > 1:
        wanted += f" in {counted(request.workers, 'pod')} of {each}"
    if not index.cluster.nodes:
        return Unplaceable(
            f"{wanted} cannot be placed: there are no nodes",
            verdict=Verdict.NEVER,
            refusals=(),
            notes=notes,
        )
    found = _Changes(request, index, others, each=each, fusible=fusible and each == 1)
    when = "can never be placed on this cluster" if found.never else "cannot be placed now"
    return Unplaceable(
        f"{wanted} {when}",
        verdict=Verdict.NEVER if found.never else Verdict.NOT_NOW,
        refusals=tuple(found.refusals()),
        nearest=found.nearest(),
        notes=notes,
    )


class _Changes:
    """The changes that would give a request its place, the gentlest first.

    What `never` fits is asked of the idle cluster.
    """

    def __init__(
        self,
        request: Request,
        index: Index,
        others: Sequence[Instead],
        *,
        each: int,
        fusible: bool,
    ) -> None:
        self.request = request
        self.index = index
        self.others = others
        self.each = each
        self.fusible = fusible
        self.now = index.pool(request)
        self.idle = index.pool(request, idle=True)
        search = Search(request, self.idle)
        # Where not all sets are looked at, one may yet be fast enough.
        self.never = search.certain and not search.fits()
        self.pool = self.idle if self.never else self.now

    def refusals(self) -> Iterator[Refusal]:
        """Why nodes take no worker, or not enough of them, counted by reason."""
        found: dict[Reason, tuple[int, Node]] = {}
        for group, node in enumerate(self.pool.nodes):
            reason = refused(self.request, node)
            if reason is None and room(self.request, node):
                reason = self._scarce
            elif reason is None:
                busy = node.free_count < self.request.gpus
                reason = Reason.BUSY if busy else Reason.RESOURCES
            nodes, example = found.get(reason, (0, node))
            found[reason] = (nodes + self.pool.counts[group], example)
        for reason, (nodes, example) in found.items():
            yield Refusal(reason=reason, nodes=nodes, example=example.name)

    @cached_property
    def _scarce(self) -> Reason:
        """The limit without which nodes with room for some workers would take all."""
        asked = [(one.reason, one.gone) for one in self._limits() if one.reason and one.gone]
        for reason, gone in asked:
            if self.fits(gone):
                return reason
        if len(asked) > 1 and self.fits(*(gone for _, gone in asked)):
            return asked[0][0]
        return Reason.ROOM

    def nearest(self) -> str | None:
        """Say what would make the gang fit; None where nothing tried here would."""
        changes = list(itertools.islice(self._single(), MOST_CHANGES)) or list(self._together())
        now = [one[0] for one in changes if not self.never or self.fits(one, pool=self.now)]
        then = [words for words, _ in changes if words not in now]
        cluster = self.index.cluster
        parts = [f"now {', or '.join(now)}"] if now else []
        parts += [f"{', or '.join(then)} {once_empty(cluster)}"] if then else []
        release = None if self.never else Freeing(self.request, self.now).words()
        later = None if release else self._later()
        if later is not None:
            idle = all(node == node.idle() for node in cluster.nodes)
            empty = "the cluster is empty and " if self.never and not idle else ""
            release = f"when {empty}{later}"
        parts += [release] if release else []
        return f"fits {'; or '.join(parts)}" if parts else None

    def fits(self, *changes: Change, pool: Pool | None = None) -> bool:
        """Whether the request fits with some changes."""
        return self._search(self._with(*changes), pool).fits()

    def _with(self, *changes: Change) -> Request:
        return replace(self.request, **{k: v for _, fields in changes for k, v in fields.items()})

    def _search(self, request: Request, pool: Pool | None = None) -> Search:
        pool = pool or self.pool
        if request.excluded is not pool.excluded:
            pool = self.index.pool(request, idle=pool.idle)
        return Search(request, pool)

    def _single(self) -> Iterator[Change]:
        """Single changes that would do it."""
        for limit in self._limits():
            changes = limit.changes()
            if limit.ordered:
                found = _first(changes, self.fits)
            else:
                found = next(filter(self.fits, changes), None)
            if found is not None:
                yield found
        workers = self.most_workers(self.request)
        if workers:
            yield f"with --workers {workers * self.each}", {"workers": workers}
        gpus = self._most_gpus(self.request.workers)
        if gpus:
            yield f"with --gpus {gpus // self.each}", {"gpus": gpus}

    def _limits(self) -> Iterator[_Limit]:
        """The limits of the request, those first that are the gentlest to loosen."""
        request = self.request
        if request.min_bandwidth:
            gone: Change = ("without --min-bandwidth", {"min_bandwidth": 0.0})
            yield _Limit(gone, lambda: self._rates(gone), Reason.BANDWIDTH)
        if not request.mix_models:
            mixed: Change = ("with --mix-models", {"mix_models": True})
            yield _Limit(mixed, lambda: [mixed])
        if request.model:
            own = request.model.casefold()
            wanted = [
                (f"with --gpu-model {model}", {"model": model})
                for model in sorted(self.pool.models)
                if model.casefold() != own
            ]
            gone_model: Change = ("without --gpu-model", {"model": None})
            yield _Limit(gone_model, lambda: wanted, ordered=False)
        instead: list[Change] = [
            (one.words, {"excluded": one.excluded}) for one in self.others if not one.later
        ]
        if instead:
            # The last gives up all that keeps the job from nodes.
            yield _Limit(instead[-1], lambda: instead, ordered=False)
        if request.max_nodes is not None:
            gone_nodes: Change = ("without --max-nodes", {"max_nodes": None})
            yield _Limit(gone_nodes, self._wider, Reason.MAX_NODES)
        if self.fusible and (request.per_node or (request.min_bandwidth and not request.joined)):
            yield _Limit(None, self._fused, ordered=False)
        if request.per_node is not None:
            shared: Change = ("without --hostNetwork", {"per_node": None})
            yield _Limit(shared, lambda: [shared], Reason.PER_NODE)
        if request.required is not None:
            tiers = (tier.name for tier in reversed(self.index.cluster.tiers))
            levels = ["node", *tiers, "beyond"]
            outward = [
                (f"with --topology-required {level}", {"required": level})
                for level in levels[levels.index(request.required) + 1 :]
            ]
            gone_level: Change = ("without --topology-required", {"required": None})
            yield _Limit(gone_level, lambda: outward, Reason.LEVEL)
        for flag, none in (("cpu", 0.0), ("memory", 0)):
            if getattr(request, flag):
                gone_flag: Change = (f"without --{flag}", {flag: none})
                yield _Limit(gone_flag, partial(self._less, flag, gone_flag))

    def _rates(self, gone: Change) -> Sequence[Change]:
        """Less bandwidth, the most first; rounded down, as what is asked for must be there."""
        if not self.fits(gone):
            return ()
        least = self.request.min_bandwidth
        every = self._search(self._with(gone)).rates()
        found = sorted((one for one in every if one < least), reverse=True)
        rates = [rate for one in found if (rate := math.floor(round(one * 100, 6)) / 100)]
        return [(f"with --min-bandwidth {rate:g}", {"min_bandwidth": rate}) for rate in rates]

    def _wider(self) -> Sequence[Change]:
        """More nodes: the fewest that will do."""
        least = (self.request.max_nodes or 0) + 1
        many = range(least, self.request.workers + 1)
        most = _first(many, lambda most: self.fits(("", {"max_nodes": most})))
        return [] if most is None else [(f"with --max-nodes {most}", {"max_nodes": most})]

    def _fused(self) -> Sequence[Change]:
        """Fewer, larger workers."""
        request = self.request
        return [
            (
                "with --pod-shape fused",
                {
                    "workers": request.workers // each,
                    "gpus": request.gpus * each,
                    "cpu": request.cpu * each,
                    "memory": request.memory * each,
                },
            )
            for each in range(2, min(request.workers, self._largest // request.gpus) + 1)
            if request.workers % each == 0
        ]

    @cached_property
    def _largest(self) -> int:
        """However much is asked for, no node has more GPUs free."""
        return max((node.free_count for node in self.pool.nodes), default=0)

    def _less(self, flag: str, gone: Change) -> Sequence[Change]:
        """Less CPU or memory for each worker: the shares of nodes, the most first; then none."""
        request = self.request
        unit = 0.001 if flag == "cpu" else 1 << 20
        asked = getattr(request, flag) / self.each
        shares = {
            math.floor(round(left / (share * self.each) / unit, 6))
            for node in self.pool.nodes
            if (left := getattr(node, flag)) and not refused(request, node)
            for share in range(1, min(request.workers, node.free_count // request.gpus) + 1)
        }
        units = sorted((one for one in shares if 0 < one * unit < asked), reverse=True)
        changes: list[Change] = [
            (f"with --{flag} {_spelled(flag, one)}", {flag: one * self.each * unit})
            for one in units
        ]
        return [*changes, gone]

    def most_workers(self, request: Request) -> int:
        """The largest smaller gang that fits; 0 if there is none.

        A smaller gang gets no more of a network than a larger one, so that what no node or network
        could take on the terms of the larger is passed over. Where some loads are impossible, a
        size between two that fit need not fit itself.
        """
        # A single GPU has no bandwidth, which is no help to who asks for some.
        least = 2 if request.min_bandwidth and request.gpus == 1 else 1
        free = self._search(replace(request, min_bandwidth=0.0))
        workers = min(request.workers - 1, free.most_workers())
        for _ in range(TRIES):
            if workers < least:
                break
            search = self._search(replace(request, workers=workers))
            if search.fits():
                return workers
            # Two pods are two hosts, which get more than three.
            workers = min(workers - 1, max(search.most_workers(), AMONG[Hosts.TWO]))
        return 0

    def _most_gpus(self, workers: int, *given_up: Change) -> int:
        """The most GPUs of a worker, fewer than asked for, that will do; 0 if none."""
        # A single GPU has no bandwidth, which is no help to who asks for some.
        alone = self.request.min_bandwidth and self.request.workers * self.each == 1
        least = 2 if alone else self.each
        sizes = range(least, min(self.request.gpus - 1, self._largest) + 1, self.each)[::-1]

        def fits(gpus: int) -> bool:
            return self.fits(*given_up, ("", {"gpus": gpus, "workers": workers}))

        if not self.request.min_bandwidth:
            return _first(sizes, fits) or 0
        return next(filter(fits, sizes[:TRIES]), 0)

    def _together(self) -> Iterator[Change]:
        """What must be given up at once, where no single change would do; no less of it would."""
        request = self.request
        kept = [limit.gone for limit in self._limits() if limit.gone]
        gpus, workers = self._fitting(*kept)
        # A single GPU has no bandwidth, which is no help to who asks for some.
        if not workers or (request.min_bandwidth and workers * gpus == 1):
            return
        size: Change = ("", {"gpus": gpus, "workers": workers})
        for one in kept:
            fewer = [other for other in kept if other is not one]
            if self.fits(*fewer, size):
                kept = fewer
        sizes = [f"--gpus {gpus // self.each}"] if gpus < request.gpus else []
        sizes += [f"--workers {workers * self.each}"] if workers < request.workers else []
        words = [f"with {' and '.join(sizes)}"] if sizes else []
        fields = {name: value for _, more in (*kept, size) for name, value in more.items()}
        yield " and ".join([*words, *(one for one, _ in kept)]), fields

    def _fitting(self, *given_up: Change) -> tuple[int, int]:
        """The GPUs and workers nearest to those asked for that fit: larger workers before more."""
        gpus = self.request.gpus
        if not self.fits(*given_up, ("", {"workers": 1})):
            gpus = self._most_gpus(1, *given_up)
        if not gpus:
            return 0, 0
        sized = self._with(*given_up, ("", {"gpus": gpus}))
        return gpus, sized.workers if self._search(sized).fits() else self.most_workers(sized)

    def _later(self) -> str | None:
        """What others could do about the nodes that the job may not use, in words."""
        later = (one for one in self.others if one.later)
        return next(
            (one.words for one in later if self.fits(("", {"excluded": one.excluded}))), None
        )


def _first(changes: Sequence[_T], fits: Callable[[_T], bool]) -> _T | None:
    """The first that fits, as all after it do; None where not even the last does."""
    if not changes or not fits(changes[-1]):
        return None
    return changes[bisect_left(range(len(changes) - 1), 1, key=lambda at: fits(changes[at]))]


def _spelled(flag: str, units: int) -> str:
    """Millicores as cores, mebibytes as a quantity."""
    if flag == "cpu":
        return f"{units / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{units >> 10}Gi" if units >= 1 << 10 and units % (1 << 10) == 0 else f"{units}Mi"
