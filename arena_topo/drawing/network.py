"""The network of a cluster as a tree, from the whole on the left to the nodes on the right.

Each domain says how fast its nodes are joined and how many of its GPUs are free; each node has a
box for every GPU. Nodes that are alike share a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arena_topo.drawing.sheet import HEAD, SMALL, Layer, Point, Sheet, width, wrapped
from arena_topo.drawing.tables import EMULATED
from arena_topo.drawing.text import FABRIC_LINES, names
from arena_topo.topology import BEYOND, Cluster, Node, count, natural

_DOMAIN = (176.0, 62.0)
_COLUMN = 204.0
_ROW = 26.0
_SPACE = 12.0
_SQUARE = 13.0
_STEP = 16.0
_WRAPPED = 16
"""GPUs in one row of a node's boxes."""

_NAMES = 60
"""Characters of names in one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Nodes that are alike."""

    nodes: tuple[Node, ...]

    @property
    def high(self) -> float:
        """Pixels that the row takes."""
        return _ROW + _STEP * ((len(self.nodes[0].machine.gpus) - 1) // _WRAPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Domain:
    """A part of the network; `level` is that of its tier, -1 for the whole."""

    name: str
    level: int
    nodes: tuple[Node, ...]
    parts: tuple[_Domain | _Row, ...] = ()

    @property
    def high(self) -> float:
        """Pixels that the domain and all below it take."""
        inside = sum(part.high for part in self.parts)
        if self.parts and isinstance(self.parts[0], _Domain):
            inside += _SPACE * (len(self.parts) - 1)
        return max(_DOMAIN[1], inside)


def fabric(cluster: Cluster) -> str:
    """Draw the network of a cluster as SVG.

    As `drawing.fabric` does it draws a large network less deep, at most FABRIC_LINES domains or
    rows, and counts what it leaves out.
    """
    nodes = tuple(
        sorted(
            (one for one in cluster.nodes if one.machine.gpus), key=lambda one: natural(one.name)
        )
    )
    tree = _Domain(name="cluster", level=-1, nodes=nodes)
    deepest = len(cluster.tiers) + 1
    depth = deepest
    while nodes:
        tree = _Domain(
            name="cluster", level=-1, nodes=nodes, parts=_parts(nodes, 0, depth, len(cluster.tiers))
        )
        if depth == 1 or _lines(tree) <= FABRIC_LINES:
            break
        depth -= 1
    notes = []
    if len(tree.parts) > FABRIC_LINES:
        more = len(tree.parts) - FABRIC_LINES
        what = f"{cluster.tiers[0].name} domains" if cluster.tiers else "kinds of nodes"
        tree = _Domain(name=tree.name, level=-1, nodes=nodes, parts=tree.parts[:FABRIC_LINES])
        notes.append(f"... and {more} more {what}")
    if depth < deepest:
        hidden = [f"{tier.name} domains" for tier in cluster.tiers[depth:]]
        notes.append(f"Not shown, as too many: {', '.join([*hidden, 'nodes'])}")
    if len(nodes) < len(cluster.nodes):
        notes.append(f"Not shown: {_many(len(cluster.nodes) - len(nodes))} without GPUs")
    if cluster.emulated:
        notes.append(EMULATED)
    what = f"{_many(len(nodes))}, {_counted(nodes)}"
    sheet = Sheet()
    sheet.text((0, 14), what, "head", size=HEAD)
    signs: set[str] = set()
    _draw(sheet, tree, (0, 36), cluster, signs)
    y = 36 + tree.high + 22
    y = _legend(sheet, signs, (0, y))
    room = max(360.0, sheet.edges[2])
    for note in notes:
        for line in wrapped(note, room, SMALL):
            sheet.text((0, y + 10), line, "small dim", size=SMALL)
            y += 17
    levels = ", ".join(
        tier.name if cluster.guessed(tier.name) else f"{tier.name} {tier.bandwidth:g} GB/s"
        for tier in cluster.tiers
    )
    return sheet.finish(
        f"Network of {what}",
        f"Levels from coarse to near: {levels}" if levels else "No levels known",
    )


def _parts(nodes: Sequence[Node], level: int, depth: int, tiers: int) -> tuple[_Domain | _Row, ...]:
    if level == depth:
        return ()
    if level == tiers:
        alike: dict[tuple[object, ...], list[Node]] = {}
        for node in nodes:
            doubt = node.unavailable or node.shared
            key = (node.machine.model, tuple(_looks(node)), node.hidden, doubt, node.network)
            alike.setdefault(key, []).append(node)
        return tuple(_Row(nodes=tuple(group)) for group in alike.values())
    inside: dict[str, list[Node]] = {}
    for node in nodes:
        inside.setdefault(node.domains[level], []).append(node)
    return tuple(
        _Domain(
            name=name,
            level=level,
            nodes=tuple(inside[name]),
            parts=_parts(inside[name], level + 1, depth, tiers),
        )
        for name in sorted(inside, key=natural)
    )


def _lines(domain: _Domain) -> int:
    return sum(_lines(part) if isinstance(part, _Domain) else 1 for part in domain.parts) or 1


# ---------------------------------------------------------------- domains


def _draw(sheet: Sheet, domain: _Domain, at: Point, cluster: Cluster, signs: set[str]) -> None:
    """A domain as high as all that is in it, and that to its right."""
    x, y = at
    high = domain.high
    sheet.box(at, (_DOMAIN[0], high), "frame", layer=Layer.NODE)
    middle = y + high / 2
    tier = cluster.tiers[domain.level] if domain.level >= 0 else None
    speed = cluster.beyond if tier is None else tier.bandwidth
    assumed = cluster.guessed(BEYOND if tier is None else tier.name)
    name = domain.name if tier is None else f"{tier.name} {domain.name}"
    room = _DOMAIN[0] - 24
    sheet.text((x + 12, middle - 14), name, "strong", room=room / 1.08)
    said = "speed unknown" if assumed else f"{speed:g} GB/s"
    sheet.text((x + 12, middle + 1), said, "small dim", room=room, size=SMALL)
    sheet.text((x + 12, middle + 16), _counted(domain.nodes), "small", room=room, size=SMALL)
    gpus = sum(len(node.machine.gpus) for node in domain.nodes)
    share = sum(map(_free, domain.nodes)) / gpus if gpus else 0.0
    sheet.box((x + 12, middle + 22), (room, 4), "used", layer=Layer.LABEL, round_=2)
    if share:
        sheet.box((x + 12, middle + 22), (room * share, 4), "on", layer=Layer.LABEL, round_=2)
    right = x + _COLUMN
    # What is lower than its domain stands in its middle.
    gaps = _SPACE if domain.parts and isinstance(domain.parts[0], _Domain) else 0.0
    below = sum(part.high for part in domain.parts) + gaps * max(0, len(domain.parts) - 1)
    low = y + (high - below) / 2
    for part in domain.parts:
        centre = low + part.high / 2
        start, turn = x + _DOMAIN[0], x + (_DOMAIN[0] + _COLUMN) / 2
        points = [(start, middle), (turn, middle), (turn, centre), (right, centre)]
        straight = abs(middle - centre) < 1
        sheet.line([points[0], (right, middle)] if straight else points, "link", thick=1.5)
        if isinstance(part, _Domain):
            _draw(sheet, part, (right, low), cluster, signs)
        else:
            _row(sheet, part, (right, low), signs)
        low += part.high + gaps


def _counted(nodes: Sequence[Node]) -> str:
    gpus = sum(len(node.machine.gpus) for node in nodes)
    return f"{sum(map(_free, nodes))} of {gpus} GPU{'s' if gpus != 1 else ''} free"


def _many(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes != 1 else ''}"


def _free(node: Node) -> int:
    return node.free_count if node.unavailable is None and node.shared is None else 0


# ---------------------------------------------------------------- nodes


_MEANING = {
    "node": "free",
    "used": "in use",
    "node doubt": "some of these are in use, nobody says which",
    "broken": "cannot be used now",
}


def _looks(node: Node) -> Iterable[str]:
    takes = node.unavailable is None and node.shared is None
    free = ("node doubt" if node.hidden else "node") if takes else "broken"
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    for gpu in range(len(node.machine.gpus)):
        yield free if node.free >> gpu & 1 else "used" if healthy >> gpu & 1 else "broken"


def _row(sheet: Sheet, row: _Row, at: Point, signs: set[str]) -> None:
    """A box for each GPU, how many are free, and the names of the nodes."""
    x, y = at
    node = row.nodes[0]
    top = y + (_ROW - _SQUARE) / 2
    looks = list(_looks(node))
    for gpu, look in enumerate(looks):
        corner = (x + gpu % _WRAPPED * _STEP + 4, top + gpu // _WRAPPED * _STEP)
        sheet.box(corner, (_SQUARE, _SQUARE), look, layer=Layer.NODE, round_=3)
    signs.update(looks)
    x += min(_WRAPPED, len(looks)) * _STEP + 12
    each = " each" if len(row.nodes) > 1 else ""
    free = f"{_free(node)} of {count(node.free)}" if "node doubt" in looks else f"{_free(node)}"
    slow = f"{node.network:g} GB/s to others" if math.isfinite(node.network) else None
    said = [one for one in (node.unavailable or node.shared, slow) if one]
    tail = f" ({'; '.join(said)})" if said else ""
    listed = names([str(one.name) for one in row.nodes], _NAMES)
    middle = top + _SQUARE / 2 + 4.5 + (row.high - _ROW) / 2
    sheet.text((x, middle), f"{free} free{each}", "small dim", size=SMALL)
    x += max(84.0, width(f"{free} free{each}", SMALL) + 14)
    text = f"{listed}, {len(looks)} x {node.machine.model or 'GPU'}{tail}"
    sheet.text((x, middle), text, "small", room=520, size=SMALL)


def _legend(sheet: Sheet, signs: set[str], at: Point) -> float:
    """What the boxes mean that were drawn; the y below them."""
    x, y = at
    for look, words in _MEANING.items():
        if look in signs:
            sheet.box((x, y), (_SQUARE, _SQUARE), look, layer=Layer.NODE, round_=3)
            sheet.text((x + 20, y + 11), words, "small dim", size=SMALL)
            x += 20 + width(words, SMALL) + 22
    return y + (24 if signs else 0)
