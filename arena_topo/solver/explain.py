"""Explanation of a refusal: why a gang has no place, and the smallest change that gives it one.

Each limit of a request is a row of a table: what relaxes it, the smallest change first. Changes are
tried by counting (`search.Search.fits`), and a number in an answer is the largest or smallest that
fits. What others could free instead is a knapsack (`release`). No change is tried by placing the
gang.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from arena_topo.solver import (
    Instead,
    Reason,
    Refusal,
    Request,
    Unplaceable,
    Verdict,
    in_cents,
    once_empty,
)
from arena_topo.solver.classes import NodeGroups, groups_for, is_withheld, refusal_reason, room
from arena_topo.solver.index import Index
from arena_topo.solver.loads import AMONG, Hosts
from arena_topo.solver.release import Freeing
from arena_topo.solver.search import Search
from arena_topo.topology import Node
from arena_topo.words import counted

MOST_CHANGES = 3
"""The most changes of the request in one answer, the smallest first."""

MAX_SIZES_TRIED = 16
"""The most sizes of a gang, or of its workers, that are tried."""

RequestChange = tuple[str, dict[str, Any]]
"""The words after "fits now", and the changed fields of the request."""

_T = TypeVar("_T")


class _Limit(NamedTuple):
    """A limit of a request: the change that drops it, and smaller changes, the smallest first.

    `ordered`: if a change fits, all changes after it do. `reason` is the limit's reason if it alone
    prevents nodes with room for some workers from taking all.
    """

    dropped: RequestChange
    changes: Callable[[], Sequence[RequestChange]] | None = None
    reason: Reason | None = None
    ordered: bool = True


def explain_refusal(
    request: Request,
    index: Index,
    *,
    others: Sequence[Instead] = (),
    notes: tuple[str, ...] = (),
    each: int = 1,
    fusible: bool = True,
    anew: Index | None = None,
) -> Unplaceable:
    """Why a gang has no place, counted by reason, and what would give it one.

    A changed gang is submitted anew; `anew` is the cluster for that, if it differs.
    """
    workers, gpus = request.workers * each, request.gpus // each
    gang = f"{counted(workers, 'worker')} x {counted(gpus, 'GPU')}"
    if each > 1:
        gang += f" in {counted(request.workers, 'pod')} of {each}"
    if not index.nodes:
        return Unplaceable(
            f"{gang} cannot be placed: there are no nodes",
            verdict=Verdict.NEVER,
            refusals=(),
            nearest="submit it once nodes have joined: arena-topo top node lists them",
            notes=notes,
        )
    changes = _Changes(request, index, others, each=each, fusible=fusible and each == 1)
    changed = changes
    if anew is not None:
        changed = _Changes(request, anew, others, each=each, fusible=fusible and each == 1)
    when = "can never be placed on this cluster" if changes.never else "cannot be placed now"
    return Unplaceable(
        f"{gang} {when}",
        verdict=Verdict.NEVER if changes.never else Verdict.NOT_NOW,
        refusals=tuple(changes.refusals()),
        nearest=changed.nearest(changes.release()),
        notes=notes,
    )


class _Changes:
    """The changes that give a request its place; on the idle cluster if it `never` fits."""

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
        self.now = groups_for(request, index)
        self.idle = groups_for(request, index, idle=True)
        # Where the kubelet picks, a node may promise more while others use a part of it.
        search = Search(structs.replace(request, blind=False), self.idle)
        # If not all sets are enumerated, one of the others may be fast enough.
        self.never = search.certain and not search.fits()
        self.pool = self.idle if self.never else self.now
        self.largest = max(node.free_count for node in self.pool.nodes)
        # A single GPU has no bandwidth, so it does not help a job that requires some.
        self.least = 2 if request.min_bandwidth else 1

    def refusals(self) -> Iterator[Refusal]:
        """Why nodes take no worker, or not enough of them, counted by reason."""
        counts: dict[tuple[Reason, tuple[str, ...]], tuple[int, Node]] = {}
        for group, node in enumerate(self.pool.nodes):
            reason = refusal_reason(self.request, node)
            if reason is None and is_withheld(self.request, node):
                reason = Reason.RESERVED
            elif reason is None and room(self.request, node):
                reason = self._scarce
            elif reason is None:
                busy = node.free_count < self.request.gpus
                reason = Reason.BUSY if busy else Reason.RESOURCES
                reason = Reason.BROKEN if node.healthy_count < self.request.gpus else reason
            cause = reason, node.reserved_for if reason is Reason.RESERVED else ()
            nodes, example = counts.get(cause, (0, node))
            counts[cause] = (nodes + self.pool.counts[group], example)
        for (reason, jobs), (nodes, example) in counts.items():
            yield Refusal(reason=reason, nodes=nodes, example=example.name, jobs=jobs)

    @cached_property
    def _scarce(self) -> Reason:
        """The limit without which nodes with room for some workers would take all."""
        limits = [(limit.reason, limit.dropped) for limit in self._limits() if limit.reason]
        for reason, change in limits:
            if self.fits(change):
                return reason
        if len(limits) > 1 and self.fits(*(change for _, change in limits)):
            return limits[0][0]
        return Reason.ROOM

    def release(self) -> str | None:
        """What others would have to free, or do about excluded nodes; None if nothing helps."""
        release = None if self.never else Freeing(self.request, self.now).clause()
        later = None if release else self._later()
        return release if later is None else f"when {later}"

    def nearest(self, release: str | None) -> str | None:
        """The changes that would make the gang fit, and a release, in words; None without any."""
        changes = list(itertools.islice(self._single(), MOST_CHANGES)) or list(self._together())
        now = [way[0] for way in changes if not self.never or self.fits(way, pool=self.now)]
        then = [words for words, _ in changes if words not in now]
        parts = [f"now {', or '.join(now)}"] if now else []
        empty = once_empty(group.node for group in self.index.groups)
        parts += [f"{', or '.join(then)} {empty}"] if then else []
        parts += [release] if release else []
        return f"fits {'; or '.join(parts)}" if parts else None

    def fits(self, *changes: RequestChange, pool: NodeGroups | None = None) -> bool:
        """Whether the request fits with some changes."""
        return self._search(self._with(*changes), pool).fits()

    def _with(self, *changes: RequestChange) -> Request:
        return structs.replace(
            self.request, **{k: v for _, fields in changes for k, v in fields.items()}
        )

    def _search(self, request: Request, pool: NodeGroups | None = None) -> Search:
        pool = pool or self.pool
        if request.excluded is not pool.excluded:
            pool = groups_for(request, self.index, idle=pool.idle)
        return Search(request, pool)

    # Single changes

    def _single(self) -> Iterator[RequestChange]:
        """Single changes that are sufficient, the smallest first."""
        for limit in self._limits():
            changes = limit.changes() if limit.changes else [limit.dropped]
            if limit.ordered:
                change = _first(changes, self.fits)
            else:
                change = next(filter(self.fits, changes), None)
            if change is not None:
                yield change
        yield from itertools.islice(filter(self.fits, self._fused()), 1)
        workers = self.most_workers(self.request)
        if workers:
            yield f"with --workers {workers * self.each}", {"workers": workers}
        gpus = self._most_gpus(self.request.workers)
        if gpus:
            yield f"with --gpus {gpus // self.each}", {"gpus": gpus}

    def _limits(self) -> Iterator[_Limit]:
        """The limits of the request, those with the smallest changes first."""
        request = self.request
        if request.min_bandwidth:
            dropped: RequestChange = ("without --min-bandwidth", {"min_bandwidth": 0.0})
            yield _Limit(dropped, self._rates, Reason.BANDWIDTH)
        if not request.mix_models:
            yield _Limit(("with --mix-models", {"mix_models": True}))
        if request.model:
            yield _Limit(("without --gpu-model", {"model": None}), self._models, ordered=False)
        instead = [(way.words, {"excluded": way.excluded}) for way in self.others if not way.later]
        if instead:
            # The last change drops everything that excludes nodes.
            yield _Limit(instead[-1], lambda: instead, ordered=False)
        if request.max_nodes is not None:
            dropped = ("without --max-nodes", {"max_nodes": None})
            yield _Limit(dropped, self._wider, Reason.MAX_NODES)
        if request.per_node is not None:
            yield _Limit(("without --hostNetwork", {"per_node": None}), reason=Reason.PER_NODE)
        if request.required is not None:
            dropped = ("without --topology-required", {"required": None})
            yield _Limit(dropped, self._farther, Reason.LEVEL)
        for flag, none in (("cpu", 0.0), ("memory", 0)):
            if getattr(request, flag):
                dropped = (f"without --{flag}", {flag: none})
                yield _Limit(dropped, partial(self._less, flag, dropped))

    def _rates(self) -> Sequence[RequestChange]:
        """Lower bandwidths, highest first; rounded down, as the nodes must reach the number."""
        floor = self.request.min_bandwidth
        speeds = self._search(structs.replace(self.request, min_bandwidth=0.0)).rates()
        lower = sorted((speed for speed in speeds if speed < floor), reverse=True)
        rates = [rate for speed in lower if (rate := in_cents(speed))]
        return [(f"with --min-bandwidth {rate:g}", {"min_bandwidth": rate}) for rate in rates]

    def _models(self) -> Sequence[RequestChange]:
        """Other GPU models."""
        own = (self.request.model or "").casefold()
        models = (model for model in sorted(self.pool.models) if model.casefold() != own)
        return [(f"with --gpu-model {model}", {"model": model}) for model in models]

    def _wider(self) -> Sequence[RequestChange]:
        """More nodes, the fewest first."""
        most = min(self.request.workers, len(self.index.nodes))
        limits = range((self.request.max_nodes or 0) + 1, most + 1)
        return [(f"with --max-nodes {most}", {"max_nodes": most}) for most in limits]

    def _farther(self) -> Sequence[RequestChange]:
        """Levels further out, the nearest first."""
        levels = list(self.index.fabric.distances)
        outward = levels[levels.index(self.request.required or "") + 1 :]
        return [(f"with --topology-required {level}", {"required": level}) for level in outward]

    def _less(self, flag: str, dropped: RequestChange) -> Sequence[RequestChange]:
        """Less CPU or memory per worker: the shares of nodes, largest first; then none."""
        request = self.request
        unit = 0.001 if flag == "cpu" else 1 << 20
        requested = getattr(request, flag) / self.each
        shares = {
            math.floor(round(free / (share * self.each) / unit, 6))
            for node in self.pool.nodes
            if (free := getattr(node, flag)) and not refusal_reason(request, node)
            for share in range(1, min(request.workers, node.free_count // request.gpus) + 1)
        }
        units = sorted((share for share in shares if 0 < share * unit < requested), reverse=True)
        changes: list[RequestChange] = [
            (f"with --{flag} {_spelled(flag, unit_count)}", {flag: unit_count * self.each * unit})
            for unit_count in units
        ]
        return [*changes, dropped]

    # Sizes

    def _fused(self) -> Iterator[RequestChange]:
        """Fewer, larger workers, if fused pods can be a way out."""
        request = self.request
        if self.fusible and (request.per_node or (request.min_bandwidth and not request.joined)):
            for each in range(2, min(request.workers, self.largest // request.gpus) + 1):
                if request.workers % each == 0:
                    size = {"workers": request.workers // each, "gpus": request.gpus * each}
                    needs = {"cpu": request.cpu * each, "memory": request.memory * each}
                    yield "with --pod-shape fused", {**size, **needs}

    def most_workers(self, request: Request) -> int:
        """The largest smaller gang that fits; 0 if there is none.

        A smaller gang gets no more of a network than a larger one, so a size that no node or
        network could take on the terms of the larger gang is skipped. If some loads are impossible,
        a size between two that fit need not fit itself.
        """
        free = self._search(structs.replace(request, min_bandwidth=0.0))
        workers = min(request.workers - 1, free.most_workers())
        for _ in range(MAX_SIZES_TRIED):
            if workers < 1 or workers * request.gpus < self.least:
                break
            search = self._search(structs.replace(request, workers=workers))
            if search.fits():
                return workers
            # Two pods are two hosts, which get more than three.
            workers = min(workers - 1, max(search.most_workers(), AMONG[Hosts.TWO]))
        return 0

    def _most_gpus(self, workers: int, *given_up: RequestChange) -> int:
        """The most GPUs per worker, fewer than requested, that fit; 0 if none."""
        least = max(self.each, -(-self.least // workers))
        sizes = range(least, min(self.request.gpus - 1, self.largest) + 1, self.each)[::-1]

        def fits(gpus: int) -> bool:
            return self.fits(*given_up, ("", {"gpus": gpus, "workers": workers}))

        if not self.request.min_bandwidth:
            return _first(sizes, fits) or 0
        return next(filter(fits, sizes[:MAX_SIZES_TRIED]), 0)

    # Several changes at once

    def _together(self) -> Iterator[RequestChange]:
        """A minimal set of changes that is sufficient together, if no single change is."""
        request = self.request
        dropped = [limit.dropped for limit in self._limits()]
        gpus = request.gpus
        if not self.fits(*dropped, ("", {"workers": 1})):
            gpus = self._most_gpus(1, *dropped)
        if not gpus:
            return
        # Prefer larger workers to more workers.
        sized = self._with(*dropped, ("", {"gpus": gpus}))
        workers = sized.workers if self._search(sized).fits() else self.most_workers(sized)
        if not workers or workers * gpus < self.least:
            return
        size: RequestChange = ("", {"gpus": gpus, "workers": workers})
        for change in dropped:
            fewer = [other for other in dropped if other is not change]
            if self.fits(*fewer, size):
                dropped = fewer
        sizes = [f"--gpus {gpus // self.each}"] if gpus < request.gpus else []
        sizes += [f"--workers {workers * self.each}"] if workers < request.workers else []
        words = [f"with {' and '.join(sizes)}"] if sizes else []
        fields = {name: value for _, more in (*dropped, size) for name, value in more.items()}
        yield " and ".join([*words, *(text for text, _ in dropped)]), fields

    def _later(self) -> str | None:
        """What others could do about the excluded nodes, now or on the idle cluster, in words."""
        ended = [(self.idle, "all other jobs have ended and ")] if self.never else []
        for pool, when in ((self.now, ""), *ended):
            for other in self.others:
                if other.later and self.fits(("", {"excluded": other.excluded}), pool=pool):
                    return f"{when}{other.words}"
        return None


def _first(changes: Sequence[_T], fits: Callable[[_T], bool]) -> _T | None:
    """The first change that fits, by binary search; None if not even the last does."""
    if not changes or not fits(changes[-1]):
        return None
    return changes[bisect_left(range(len(changes) - 1), 1, key=lambda at: fits(changes[at]))]


def _spelled(flag: str, units: int) -> str:
    """Millicores as cores, mebibytes as a Kubernetes quantity."""
    if flag == "cpu":
        return f"{units / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{units >> 10}Gi" if units >= 1 << 10 and units % (1 << 10) == 0 else f"{units}Mi"
