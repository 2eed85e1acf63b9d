"""Why a gang has no place, and the smallest change that would give it one.

Changes of the request are tried by counting (`counting`), the gentlest first; a number named is the
largest or smallest that fits. What others could free instead is a knapsack (`freeing`). No change
is tried by placing the gang.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from arena_topo.solver.classes import Index, refused, room
from arena_topo.solver.counting import View
from arena_topo.solver.freeing import Freeing, counted
from arena_topo.solver.loads import AMONG, Hosts
from arena_topo.solver.request import Instead, Reason, Refusal, Request, Unplaceable, Verdict
from arena_topo.topology import Cluster, Node

MOST_CHANGES = 3
"""Changes of the request named at once, the smallest first."""

TRIES = 16
"""Sizes of a gang, or of its workers, that are tried one by one."""

Change = tuple[str, Request]
"""What to say after "fits now", and the request that then has a place."""


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
    now = View(index, request)
    idle = View(index, request, idle=True)
    # Where not all sets are looked at, one may yet be fast enough.
    never = not idle.fits(request) and idle.certain
    search = _Changes(
        request, now, idle if never else now, others, each=each, fusible=fusible and each == 1
    )
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


def _refusals(request: Request, view: View) -> Iterator[Refusal]:
    """Why nodes take no worker, or not enough of them, counted by reason."""
    found: dict[Reason, tuple[int, Node]] = {}
    scarce: Reason | None = None
    for group in view.groups:
        reason = refused(request, group.node)
        if reason is None and room(request, group.node):
            reason = scarce = scarce or _scarce(request, view)
        elif reason is None:
            busy = group.node.free_count < request.gpus
            reason = Reason.BUSY if busy else Reason.RESOURCES
        nodes, example = found.get(reason, (0, group.node))
        found[reason] = (nodes + group.many, example)
    for reason, (nodes, example) in found.items():
        yield Refusal(reason=reason, nodes=nodes, example=example.name)


def _scarce(request: Request, view: View) -> Reason:
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


class _Changes:
    """The changes that would give a request its place in a view, the gentlest first."""

    def __init__(
        self,
        request: Request,
        now: View,
        view: View,
        others: Sequence[Instead],
        *,
        each: int,
        fusible: bool,
    ) -> None:
        self.request = request
        self.now = now
        self.view = view
        self.others = others
        self.each = each
        self.fusible = fusible

    def nearest(self, *, never: bool) -> str | None:
        """Say what would make the gang fit; None where nothing tried here would."""
        changes = list(itertools.islice(self._single(), MOST_CHANGES)) or list(self._together())
        now = [words for words, asked in changes if not never or self.fits(asked, self.now)]
        then = [words for words, _ in changes if words not in now]
        cluster = self.view.index.cluster
        parts = [f"now {', or '.join(now)}"] if now else []
        parts += [f"{', or '.join(then)} {once_empty(cluster)}"] if then else []
        release = None if never else Freeing(self.request, self.view).words()
        later = None if release else self._later()
        if later is not None:
            empty = "the cluster is empty and " if never and not self._is_idle() else ""
            release = f"when {empty}{later}"
        parts += [release] if release else []
        return f"fits {'; or '.join(parts)}" if parts else None

    def _is_idle(self) -> bool:
        return all(node == node.idle() for node in self.view.index.cluster.nodes)

    def fits(self, request: Request, view: View | None = None) -> bool:
        """Whether a changed request fits, in the view unless another is given."""
        view = view or self.view
        if request.excluded is not view.excluded:
            view = View(view.index, request, idle=view.idle)
        return view.fits(request)

    def _single(self) -> Iterator[Change]:
        """Single changes that would do it."""
        request = self.request
        mixed = replace(request, mix_models=True)
        models = {group.node.machine.model for group in self.view.groups} - {None}
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
            if self.fusible:
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
        return max((group.node.free_count for group in self.view.groups), default=0)

    def _resources(self) -> Iterator[Change]:
        """Less CPU (cut to millicores) or memory (to whole Gi, or Mi) for each worker."""
        request = self.request
        nodes = [one for group in self.view.groups if not refused(request, one := group.node)]
        shares = [
            (node, share)
            for node in nodes
            for share in range(1, min(request.workers, node.free_count // request.gpus) + 1)
        ]
        if request.cpu:
            amounts = {
                self.each * _millicores(node.cpu / share / self.each)
                for node, share in shares
                if node.cpu
            }
            yield from self._less("cpu", amounts, _cores)
        if request.memory:
            sizes = {
                self.each * _whole(node.memory // share // self.each)
                for node, share in shares
                if node.memory
            }
            yield from self._less("memory", sizes, _bytes)

    def _less(
        self, flag: str, amounts: Iterable[float], spelled: Callable[[float], str]
    ) -> Iterator[Change]:
        """The most of a resource that fits, of amounts that nodes have; else none of it."""
        asked = getattr(self.request, flag)
        some = [0, *sorted(one for one in amounts if 0 < one < asked)]
        most = _last(some, lambda one: self.fits(_with(self.request, {flag: one})))
        if most is not None:
            words = f"with --{flag} {spelled(most / self.each)}" if most else f"without --{flag}"
            yield words, _with(self.request, {flag: most})

    def _size(self) -> Iterator[Change]:
        request = self.request
        workers = self.most_workers(request)
        if workers:
            yield f"with --workers {workers * self.each}", replace(request, workers=workers)
        gpus = self._most_gpus(lambda gpus: self.fits(replace(request, gpus=gpus)))
        if gpus:
            yield f"with --gpus {gpus // self.each}", replace(request, gpus=gpus)

    def most_workers(self, request: Request) -> int:
        """The largest smaller gang that fits; 0 if there is none.

        A smaller gang gets no more of a network than a larger one, so that what no node or network
        could take on the terms of the larger is passed over. Where some loads are impossible, a
        size between two that fit need not fit itself.
        """
        view = self.view
        if request.excluded is not view.excluded:
            view = View(view.index, request, idle=view.idle)
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
        # A single GPU has no bandwidth, which is no help to who asks for some.
        alone = self.request.min_bandwidth and self.request.workers * self.each == 1
        least = 2 if alone else self.each
        sizes = range(least, min(self.request.gpus - 1, self._largest) + 1, self.each)
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
        sizes = [f"--gpus {gpus // self.each}"] if gpus < request.gpus else []
        sizes += [f"--workers {workers * self.each}"] if workers < request.workers else []
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


def _with(request: Request, fields: Mapping[str, Any]) -> Request:
    return replace(request, **fields)


_GI, _MI = 1 << 30, 1 << 20


def _whole(size: int) -> int:
    unit = _GI if size >= _GI else _MI
    return size // unit * unit


def _bytes(size: float) -> str:
    return f"{size // _GI:.0f}Gi" if size >= _GI else f"{size // _MI:.0f}Mi"


def _millicores(cores: float) -> float:
    return math.floor(cores * 1000) / 1000


def _cores(amount: float) -> str:
    return f"{amount:.3f}".rstrip("0").rstrip(".")
