"""What the free GPUs are good for, in a screen: a sentence, the gangs that fit, the nodes at fault.

Nodes that are alike share a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arena_topo import layout
from arena_topo.manifests import estimates
from arena_topo.nodes.fragmentation import Alike, Fragmentation, Gang, Kind
from arena_topo.topology import natural

LINES = 12
"""Lines of nodes that are shown; with the gangs of a thousand nodes that is one screen."""

_NAMES = 2
"""Names that stand for all nodes of a line."""

_SET_NAMES = {2: "PAIRS", 4: "QUADS", 8: "EIGHTS", 16: "SIXTEENS"}

_LEGEND = """\
WHOLE: gangs that fit at once, as fast and compact as on the empty cluster
EMPTY: the same number on the empty cluster
COUNTED: gangs that fit by numbers of free GPUs alone
BEST NOW: what one gang of any shape gets
PAIRS, QUADS, EIGHTS: sets of GPUs of one node at full speed, free / taken apart
"""


def screen(found: Fragmentation) -> str:
    """Everything about a cluster, kind by kind."""
    blocks = [_kind(one, alone=len(found.kinds) == 1) for one in found.kinds]
    if not blocks:
        blocks = ["No node has GPUs that a gang could get.\n"]
    else:
        blocks.append(_LEGEND)
    if found.shared_nodes:
        share, cut = ("shares", "cuts") if found.shared_nodes == 1 else ("share", "cut")
        blocks.append(
            f"{_many(found.shared_nodes, 'more node')} {share} GPUs or {cut} them up: no gang gets"
            " those.\n"
        )
    return "\n".join(blocks)


def verdict(kind: Kind) -> str:
    """What the free GPUs of a kind are good for, in a sentence."""
    free = f"{kind.free} of {_many(kind.total, 'GPU')} {'is' if kind.free == 1 else 'are'} free"
    missing = kind.missing
    if not kind.free:
        return f"no GPU is free, of {kind.total}"
    if missing is None:
        if kind.largest <= 1:
            return free
        return f"{free}, and gangs of up to {kind.largest} get full speed"
    speed = "" if missing.full is None else f" ({estimates.amount(missing.full)} GB/s)"
    said = f"{free}, but no gang of {missing.size} gets full speed{speed}"
    return f"{said}; one fits {kind.release}" if kind.release else said


def _kind(kind: Kind, *, alone: bool) -> str:
    named = kind.model is not None or not alone
    model = f"{kind.model or f'unknown model, {kind.resource}'}: " if named else ""
    lines = [f"{model}{verdict(kind)}."]
    if kind.stranded:
        one = kind.stranded == 1
        lines.append(
            f"{_many(kind.stranded, 'GPU')} {'is' if one else 'are'} stranded: free, but the"
            f" neighbours that {'it is' if one else 'they are'} joined to best are not."
        )
    if kind.away:
        lines.append(
            f"{_many(kind.away, 'more GPU')} {'is' if kind.away == 1 else 'are'} idle on nodes"
            " where no job can start."
        )
    if kind.assumed:
        lines.append("The speed of these NVLinks is assumed.")
    return "\n".join([*lines, "", _gangs(kind), _nodes(kind)])


def _gangs(kind: Kind) -> str:
    header = ("GANG", "SHAPE", "GB/s", "WHOLE", "EMPTY", "COUNTED", "BEST NOW")
    rows = [
        (
            str(one.size),
            f"{one.workers} x {one.gpus}",
            "-" if one.full is None else estimates.amount(one.full),
            str(one.whole),
            str(one.whole_empty),
            str(one.counted),
            _best(one),
        )
        for one in kind.gangs
    ]
    return layout.align(layout.table(header, rows))


def _best(one: Gang) -> str:
    if not one.fits:
        return "-"
    where = "1 node" if one.nodes == 1 else f"{one.nodes} nodes"
    return where if one.best is None else f"{estimates.amount(one.best)} GB/s on {where}"


def _nodes(kind: Kind) -> str:
    sizes = sorted({some.size for one in kind.alike for some in one.sets})
    header = ["NODES", "FREE", *(_SET_NAMES[size] for size in sizes), "STRANDED", "WHICH"]
    ordered = sorted(kind.alike, key=_fault)
    rows = []
    for one in ordered[:LINES]:
        sets = {some.size: f"{some.whole}/{some.broken}" for some in one.sets}
        free = f"{one.free}/{one.gpus}{'?' if one.opaque else ''}"
        row = [str(len(one.names)), free, *(sets.get(size, "-") for size in sizes)]
        rows.append([*row, str(one.stranded), _which(one)])
    sums = {some.size: f"{some.whole}/{some.broken}" for some in kind.sets}
    total = sum(one.gpus * len(one.names) for one in kind.working)
    rows.append(
        [
            *(str(sum(len(one.names) for one in kind.working)), f"{kind.free}/{total}"),
            *(sums.get(size, "-") for size in sizes),
            *(str(kind.stranded), "all" if kind.working == kind.alike else "all that take jobs"),
        ]
    )
    lines = layout.table(header, rows)
    left = ordered[LINES:]
    if left:
        nodes = sum(len(one.names) for one in left)
        lines.insert(-1, f"... {_many(nodes, 'more node')} of {_many(len(left), 'sort')}")
    if any(one.opaque for one in ordered):
        lines.append("? which GPUs are free there is not reported; only what is certain counts")
    return layout.align(lines)


def _fault(one: Alike) -> tuple[object, ...]:
    """First the nodes that are only partly free, those with most broken sets before others."""
    partly = 0 < one.free < one.gpus
    broken = sum(some.broken * some.size for some in one.sets) + one.stranded
    return (not partly, -broken * len(one.names), -one.free, natural(one.names[0]))


def _which(one: Alike) -> str:
    names = ", ".join(one.names[:_NAMES]) + (", ..." if len(one.names) > _NAMES else "")
    return f"{names} ({one.unavailable})" if one.unavailable else names


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


# ---------------------------------------------------------------- documents


def value(found: Fragmentation, *, emulated: bool = False) -> dict[str, Any]:
    """The same for programs, kind `FragmentationReport` of our API.

    `kinds` are the nodes that one gang may combine, by `model` and `resource`, with the numbers of
    GPUs `totalGPUs`, `freeGPUs`, `unavailableGPUs` (idle where no job can start) and
    `strandedGPUs`, the `largestWholeGang`, and in a sentence the `verdict`. With `assumedSpeed`
    the speed of their NVLinks is a guess. `gangs`: by `size` the shape `workers` x `gpusPerWorker`
    that is compact, its `fullGBps` on the empty cluster, how many fit at once at that speed
    (`whole`, and `wholeEmpty` on the empty cluster), by numbers alone (`counted`), and what one
    gang of any shape gets now: `bestGBps` on `bestNodes` nodes within `bestTier`; null where there
    is none, or a single GPU. `sets` and those of `nodes`: disjoint sets by `size`, `whole`,
    `broken`, and `most` of the empty machines. `nodes` are listed by likeness: `names`, `gpus` and
    `free` of each, `stranded`, `opaque` (it is not known which GPUs are free) and `unavailable`.
    `sharedGPUs` on `sharedNodes` are cut up or shared.
    """
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "FragmentationReport",
        "kinds": [_kind_value(one) for one in found.kinds],
        "sharedGPUs": found.shared,
        "sharedNodes": found.shared_nodes,
        "emulated": emulated,
    }


def _kind_value(kind: Kind) -> dict[str, Any]:
    return {
        "model": kind.model,
        "resource": kind.resource,
        "totalGPUs": kind.total,
        "freeGPUs": kind.free,
        "unavailableGPUs": kind.away,
        "strandedGPUs": kind.stranded,
        "largestWholeGang": kind.largest,
        "verdict": verdict(kind),
        "assumedSpeed": kind.assumed,
        "gangs": [
            {
                "size": one.size,
                "workers": one.workers,
                "gpusPerWorker": one.gpus,
                "fullGBps": layout.number(one.full),
                "whole": one.whole,
                "wholeEmpty": one.whole_empty,
                "counted": one.counted,
                "bestGBps": layout.number(one.best),
                "bestNodes": one.nodes,
                "bestTier": one.tier,
            }
            for one in kind.gangs
        ],
        "sets": list(_sets_value(kind)),
        "nodes": [
            {
                "names": list(one.names),
                "gpus": one.gpus,
                "free": one.free,
                "sets": list(_sets_value(one)),
                "stranded": one.stranded,
                "opaque": one.opaque,
                "unavailable": one.unavailable,
            }
            for one in sorted(kind.alike, key=_fault)
        ],
    }


def _sets_value(of: Kind | Alike) -> Iterator[dict[str, int]]:
    for one in of.sets:
        yield {"size": one.size, "whole": one.whole, "broken": one.broken, "most": one.most}
