"""The network of a cluster as a tree of domains, in text and as SVG.

Nodes in the same state share a row with a sign for every GPU. A network of more than MOST rows is
drawn less deep, and the omitted parts are counted; so are the nodes without GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from arena_topo.drawing.machine import (
    ASCII,
    BROKEN,
    DOUBT,
    FREE,
    RESERVED,
    UNHEALTHY,
    UNICODE,
    USED,
    MachineState,
)
from arena_topo.drawing.sheet import SMALL_TEXT, Sheet, frame_sheet, lines, stack, text_width
from arena_topo.drawing.tables import EMULATED
from arena_topo.layout import fold
from arena_topo.topology import BEYOND, Cluster, Node, count, natural_key
from arena_topo.words import counted, listed, shortened

MAX_DRAWN_ROWS = 60
"""The most rows of a drawing: one screen of a tall terminal."""

_USUAL = 100
"""Columns of lists of nodes if the output is no terminal."""

_SHORTEST = 24
"""The least columns for names, even if a tree is deeper than the screen is wide."""

_MEANING = {
    FREE: "free",
    USED: "in use",
    RESERVED: "reserved for a gang that waits",
    DOUBT: "some of these are {doubts}; it is not reported which",
    BROKEN: "cannot be used now",
}
_CSS = {FREE: "node", USED: "used", RESERVED: "used", DOUBT: "node doubt", BROKEN: "broken"}

_SQUARE, _STEP, _WRAPPED = 13.0, 16.0, 16
_WIDEST = 820.0
"""The most pixels of domains side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Nodes in the same state; `signs` is one of `_MEANING` for each GPU."""

    signs: tuple[str, ...]
    known: str
    what: str
    tail: str
    reserved: int = 0
    nodes: tuple[str, ...] = ()

    @property
    def free(self) -> str:
        """The number of free GPUs: `4 free`, `2 of 4 free each`, `0 free, 5 reserved`."""
        each = " each" if len(self.nodes) > 1 else ""
        return f"{self.known} free{_and_reserved(self.reserved)}{each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Domain:
    """A part of the network with its speed and its free GPUs."""

    name: str
    speed: str
    nodes: tuple[Node, ...]
    parts: tuple[_Domain | _Row, ...] = ()

    @property
    def free(self) -> tuple[int, int]:
        """The number of its free GPUs, and of all."""
        return sum(map(free_gpus, self.nodes)), sum(len(node.machine.gpus) for node in self.nodes)

    @property
    def counted(self) -> str:
        """The numbers of its nodes and its free GPUs, in words."""
        return f"{counted(len(self.nodes), 'node')}, {self.gauge}"

    @property
    def gauge(self) -> str:
        """The numbers of free and of reserved GPUs, in words."""
        free, gpus = self.free
        reserved = sum(node.reserved_count for node in self.nodes)
        return f"{free} of {counted(gpus, 'GPU')} free{_and_reserved(reserved)}"


def _and_reserved(gpus: int) -> str:
    return f", {gpus} reserved" if gpus else ""


def draw_network(cluster: Cluster, *, unicode: bool = True, width: int | None = None) -> str:
    """Draw the network as a tree; lines are wrapped at `width` columns of a terminal.

    Without a width no line is wrapped, and lists of nodes take lines of 100 columns.
    """
    tree, notes = _tree(cluster)
    if not tree.nodes:
        none = f"{counted(len(cluster.nodes), 'node')}, none with GPUs\n"
        return none if cluster.nodes else "no nodes\n"
    pen = UNICODE if unicode else ASCII
    characters = {FREE: pen.empty, USED: pen.full, RESERVED: "r", DOUBT: "?", BROKEN: "x"}

    def below(domain: _Domain, trunk: str) -> Iterator[str]:
        for part in domain.parts:
            last = part is domain.parts[-1]
            head = trunk + (pen.last if last else pen.branch)
            further = trunk + (" " * len(pen.trunk) if last else pen.trunk)
            room = max(_SHORTEST, (width or _USUAL) - len(head))
            if isinstance(part, _Domain):
                sentence = f"{part.name} ({part.speed}): {part.counted}"
            else:
                gauge = "".join(characters[sign] for sign in part.signs)
                sentence = f"{gauge}  {part.free}  {part.what}  "
                sentence += (
                    fitting_names(part.nodes, room - len(sentence) - len(part.tail)) + part.tail
                )
            # Wrapped lines stay inside the tree. Without a terminal no line is wrapped: names are
            # untrusted, and could imitate lines of ours.
            first, *rest = fold(sentence, room if width else None).splitlines()
            yield from (f"{head}{first}", *(f"{further}{line}" for line in rest))
            if isinstance(part, _Domain):
                yield from below(part, further)

    drawn = [f"{tree.name} ({tree.speed}): {tree.counted}", *below(tree, "")]
    meanings = [f"{characters[sign]} {meaning}" for sign, meaning in _signs(tree).items()]
    return "".join(
        f"{line}\n" for line in (*drawn, *(["  ".join(meanings)] * any(meanings)), *notes)
    )


def draw_network_svg(cluster: Cluster) -> str:
    """Draw the network as boxes in boxes."""
    tree, notes = _tree(cluster)
    what = tree.counted
    legend = Sheet()
    at = 0.0
    for sign, meaning in _signs(tree).items():
        legend.box((at, 0), (_SQUARE, _SQUARE), _CSS[sign], corner=3)
        legend.text((at + 20, 11), meaning, "small dim", size=SMALL_TEXT)
        at += 42 + text_width(meaning, SMALL_TEXT)
    notes += [f"{EMULATED}."] if cluster.emulated else []
    drawn = _card(tree)
    below = lines([(note, "small dim") for note in notes], max(360.0, drawn.size[0]))
    sheet = stack([lines([(what, "head")], math.inf), drawn, legend, below])
    levels = "; ".join(f"{tier.name} {_speed(cluster, tier.name)}" for tier in cluster.tiers)
    sentence = f"Levels from coarse to near: {levels}" if levels else "No levels known"
    return sheet.finish(f"Network of {what}", sentence)


# ---------------------------------------------------------------- the tree


def _tree(cluster: Cluster) -> tuple[_Domain, list[str]]:
    """The network to the depth that is drawn, and a note on what is not drawn."""
    nodes = tuple(
        sorted(
            (node for node in cluster.nodes if node.machine.gpus),
            key=lambda node: natural_key(node.name),
        )
    )
    deepest = len(cluster.tiers) + 1
    for depth in range(deepest, 0, -1):
        parts = _parts(cluster, nodes, 0, depth)
        if sum(map(_lines, parts)) < MAX_DRAWN_ROWS:
            break
    notes = []
    if sum(map(_lines, parts)) >= MAX_DRAWN_ROWS:
        what = f"{cluster.tiers[0].name} domains" if cluster.tiers else "kinds of nodes"
        notes.append(f"... and {len(parts) - MAX_DRAWN_ROWS + 2} more {what}")
        parts = parts[: MAX_DRAWN_ROWS - 2]
    if depth < deepest:
        hidden = [*(f"{tier.name} domains" for tier in cluster.tiers[depth:]), "nodes"]
        notes.append(f"Not shown, as too many: {', '.join(hidden)}")
    others = [node for node in cluster.nodes if not node.machine.gpus]
    if others:
        notes.append(f"Not shown: {counted(len(others), 'node')} without GPUs")
    speed = _speed(cluster, BEYOND)
    return _Domain(name="cluster", speed=speed, nodes=nodes, parts=parts), notes


def _parts(
    cluster: Cluster, nodes: Sequence[Node], level: int, depth: int
) -> tuple[_Domain | _Row, ...]:
    if level == depth:
        return ()
    if level == len(cluster.tiers):
        alike: dict[_Row, list[str]] = {}
        for node in nodes:
            alike.setdefault(_row(node), []).append(node.name)
        return tuple(replace(row, nodes=tuple(names)) for row, names in alike.items())
    inside: dict[str, list[Node]] = {}
    for node in nodes:
        inside.setdefault(node.domains[level], []).append(node)
    tier = cluster.tiers[level].name
    return tuple(
        _Domain(
            name=f"{tier} {name}",
            speed=_speed(cluster, tier),
            nodes=tuple(inside[name]),
            parts=_parts(cluster, inside[name], level + 1, depth),
        )
        for name in sorted(inside, key=natural_key)
    )


def _row(node: Node) -> _Row:
    """The drawing of a node, without its name."""
    state = MachineState.of(node)
    signs = tuple(word if word in _MEANING else BROKEN for word in state.words)
    slow = f"{node.network:g} GB/s to others" if math.isfinite(node.network) else None
    reserved = "reserved for topology jobs" if node.dedicated else None
    remarks = [remark for remark in (node.unavailable or node.shared, slow, reserved) if remark]
    known = f"{free_gpus(node)}"
    if DOUBT in signs and state.free is not None:
        known += f" of {count(state.free)}"
    return _Row(
        signs=signs,
        known=known,
        what=f"{len(signs)} x {node.machine.model or 'GPU'}",
        tail=f" ({'; '.join(remarks)})" if remarks else "",
        reserved=node.reserved_count,
    )


def _lines(part: _Domain | _Row) -> int:
    return 1 + (sum(map(_lines, part.parts)) if isinstance(part, _Domain) else 0)


def _drawn(part: _Domain | _Row) -> set[str]:
    """The signs in a drawing."""
    if isinstance(part, _Row):
        return set(part.signs)
    return set().union(*map(_drawn, part.parts))


def _signs(tree: _Domain) -> dict[str, str]:
    """The signs in a drawing with their meanings."""
    drawn_signs, doubts = _drawn(tree), dict[str, int]()
    for node in tree.nodes if DOUBT in drawn_signs else ():
        doubts.update(MachineState.of(node).doubts)
    words = [word for word in (USED, RESERVED, UNHEALTHY) if word in doubts]
    return {
        sign: meaning.format(doubts=listed(words, "or"))
        for sign, meaning in _MEANING.items()
        if sign in drawn_signs
    }


def _speed(cluster: Cluster, level: str) -> str:
    rate = cluster.rate(level)
    return "speed unknown" if rate is None else f"{rate:g} GB/s"


def free_gpus(node: Node) -> int:
    """The number of GPUs that a job could get on a node now: none if no job can start there."""
    return node.free_count if node.unavailable is None and node.shared is None else 0


def fitting_names(every: Sequence[str], width: int) -> str:
    """As many names as fit in `width` columns, at least one, and the number of the rest."""
    shown, used = 1, len(every[0])
    most = width - len(f" and {len(every)} more")
    while shown < len(every) and used + 2 + len(every[shown]) <= most:
        used += 2 + len(every[shown])
        shown += 1
    return shortened(every, shown)


# ---------------------------------------------------------------- boxes


def _card(part: _Domain | _Row) -> Sheet:
    """A domain as a box around its parts; nodes as a row of squares."""
    sheet = Sheet()
    if isinstance(part, _Row):
        for gpu, sign in enumerate(part.signs):
            corner = (gpu % _WRAPPED * _STEP, gpu // _WRAPPED * _STEP)
            sheet.box(corner, (_SQUARE, _SQUARE), _CSS[sign], corner=3)
        x = min(_WRAPPED, len(part.signs)) * _STEP + 8
        sentence = f"{part.free}: {fitting_names(part.nodes, 40)}, {part.what}{part.tail}"
        sheet.text((x, 11), sentence, "small", room=420, size=SMALL_TEXT)
        return sheet
    free, gpus = part.free
    sheet.text((0, 12), part.name, "strong", room=220)
    sheet.text((0, 28), f"{part.speed}; {part.gauge}", "small dim", room=260, size=SMALL_TEXT)
    sheet.box((0, 35), (180, 4), "used", corner=2)
    if free:
        sheet.box((0, 35), (180 * free / gpus, 4), "on", corner=2)
    inside = [_card(part) for part in part.parts]
    across = isinstance(part.parts[0], _Domain) if part.parts else False
    across = across and sum(card.size[0] for card in inside) <= _WIDEST
    return frame_sheet(stack([sheet, stack(inside, across=across)]), "")
