"""Machines and the network between them, drawn in text.

A machine is a row of boxes, one for each GPU, over the links that join them: brackets where the
links form a tree (PCIe switches and sockets, bridged pairs, an NVSwitch), else a triangle with a
cell for every pair. The network is a tree of domains in which nodes that are alike share a line.
Lines stay within `width` columns (only a triangle of more than ten GPUs may be wider); names that
do not fit are counted, never cut in the middle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from arena_topo.layout import fold
from arena_topo.topology import (
    BEYOND,
    Cluster,
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    Node,
    count,
    natural,
)

FABRIC_LINES = 60
"""Lines that a drawing of the network may take: one screen of a tall terminal."""

NONE = GPUSet(0)

_INDENT = 2
_DOUBT = "?"
_AWAY = "x"
_SHORTEST = 24
"""Columns that are left for names even where a tree is deeper than the screen is wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pen:
    """The characters of a drawing; each kind of box is its corners, its edges and its sides."""

    chosen: tuple[str, ...]
    free: tuple[str, ...]
    used: tuple[str, ...]
    bracket: tuple[str, str, str]
    nothing: str
    full: str
    empty: str
    branch: str
    last: str
    trunk: str


_UNICODE = _Pen(
    chosen=tuple("┏━┓┃┗┛"),
    free=tuple("┌─┐│└┘"),
    used=tuple("┌╌┐┊└┘"),
    bracket=("╰", "─", "╯"),
    nothing="·",
    full="■",
    empty="□",
    branch="├─ ",
    last="└─ ",
    trunk="│  ",
)
_ASCII = _Pen(
    chosen=tuple("#=####"),
    free=tuple("+-+|++"),
    used=tuple("+.+:++"),
    bracket=("'", "-", "'"),
    nothing=".",
    full="#",
    empty=".",
    branch="|- ",
    last="`- ",
    trunk="|  ",
)

_MEANING = {
    LinkKind.PIX: "one PCIe switch",
    LinkKind.PXB: "PCIe switches",
    LinkKind.PHB: "one host bridge",
    LinkKind.NODE: "one NUMA node",
    LinkKind.SYS: "across sockets",
}
"""What the words of nvidia-smi stand for (its own legend, shortened)."""


def machine(
    machine: Machine,
    *,
    chosen: GPUSet = NONE,
    free: GPUSet | None = None,
    hidden: int = 0,
    broken: GPUSet = NONE,
    away: str | None = None,
    pairs: bool = True,
    unicode: bool = True,
    width: int = 100,
) -> str:
    """Draw the GPUs of a machine and the links between them, the chosen set marked.

    `free` are the GPUs not known to be in use, None where nobody asked; `hidden` of them are in use
    all the same. `broken` ones are not healthy. `away` is what free ones are called on a machine
    that takes no jobs. Without `pairs` links that form no tree are left to
    the matrix that stands beside. Without `unicode` only ASCII is drawn.
    """
    pen = _UNICODE if unicode else _ASCII
    asked = free is not None or bool(chosen) or bool(broken)
    states = [_state(gpu, chosen, free, hidden, broken) for gpu in range(len(machine.gpus))]
    if away is not None:
        hidden = 0
        states = [away if state in {"free", "free?"} else state for state in states]
    # Not folded: names in it are of others, and could pass for lines of ours.
    lines = [_title(machine, states if asked else (), hidden)]
    if machine.gpus:
        names = [f"GPU {gpu}" for gpu in range(len(states))]
        inner = max(map(len, [*names, "in use" if asked else ""]))
        boxes = [
            _box(name, state if asked else None, pen, inner)
            for name, state in zip(names, states, strict=True)
        ]
        groups = tree(machine)
        if groups is None:
            lines += _rows(boxes, _sockets(machine), pen, width)
            lines += _triangle(machine, chosen, pen, width) if pairs else _legend(machine, width)
        else:
            lines += _rows(boxes, groups, pen, width)
        lines += [] if machine.nics_assumed else _nics(machine, width)
    if hidden:
        verb = "is" if hidden == 1 else "are"
        doubt = f"  {hidden} of the GPUs marked free? {verb} in use or unhealthy; not known which"
        lines.append(fold(doubt, width, indent="    "))
    return "".join(f"{line.rstrip()}\n" for line in lines)


_STATES = frozenset({"chosen", "free", "free?", "in use", "broken"})


def _state(gpu: int, chosen: GPUSet, free: GPUSet | None, hidden: int, broken: GPUSet) -> str:
    if chosen >> gpu & 1:
        return "chosen"
    if broken >> gpu & 1:
        return "broken"
    if free is None:
        return ""
    if free >> gpu & 1:
        return "free?" if hidden else "free"
    return "in use"


def _title(machine: Machine, states: Sequence[str], hidden: int) -> str:
    models = Counter(gpu.model or "GPU" for gpu in machine.gpus)
    kinds = " + ".join(f"{number} x {model}" for model, number in models.items())
    text = f"{machine.name}: {kinds or 'no GPUs'}"
    counted = Counter(state for state in states if state)
    if counted:
        order = ("chosen", "free", "free?", *sorted(counted.keys() - _STATES), "in use", "broken")
        said = {one: f"{counted[one]} {one}" for one in order if counted[one]}
        if "free?" in said:
            said["free?"] = f"{max(0, counted['free?'] - hidden)} of {counted['free?']} free"
        text += "; " + ", ".join(said.values())
    return text + {
        Knowledge.ASSUMED: " (links assumed from the GPU product)",
        Knowledge.UNKNOWN: " (links not known)",
    }.get(machine.knowledge, "")


def _box(name: str, state: str | None, pen: _Pen, inner: int) -> tuple[str, ...]:
    """The lines of one box around `inner` columns; None is no state at all, not even an empty."""
    left, edge, right, side, low_left, low_right = {
        "chosen": pen.chosen,
        "in use": pen.used,
        "broken": pen.used,
    }.get(state or "", pen.free)
    texts = [name] if state is None else [name, state]
    return (
        f"{left}{edge * inner}{right}",
        *(f"{side}{text.center(inner)}{side}" for text in texts),
        f"{low_left}{edge * inner}{low_right}",
    )


# ---------------------------------------------------------------- links that form a tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """GPUs that one thing joins: its word, and what that means if there is room to say so."""

    gpus: tuple[int, ...]
    word: str
    meaning: str = ""

    @property
    def label(self) -> str:
        """The word and its meaning."""
        return f"{self.word}, {self.meaning}" if self.meaning else self.word


Level = tuple[Group, ...]
"""Groups that do not overlap; of two levels the nearer comes first."""


def tree(machine: Machine) -> list[Level] | None:
    """The groups that links join, nearest first; None where the links form no tree.

    They form one if "joined at least so well" is an equivalence at every level.
    """
    size = len(machine.gpus)
    links = sorted(
        {machine.link(one, other) for one, other in combinations(range(size), 2)}, reverse=True
    )
    levels: list[Level] = []
    known: set[tuple[int, ...]] = set()
    for link in links:
        groups: list[tuple[int, ...]] = []
        for gpu in range(size):
            near = tuple(
                other for other in range(size) if other == gpu or machine.link(gpu, other) >= link
            )
            if near[0] == gpu:
                groups.append(near)
            elif near not in groups:
                return None
        if sum(map(len, groups)) != size:
            return None
        new = [group for group in groups if len(group) > 1 and group not in known]
        known.update(new)
        levels.append(tuple(_group(machine, one, link) for one in new))
    return levels


def _group(machine: Machine, gpus: tuple[int, ...], slowest: Link) -> Group:
    """The group that links no slower than `slowest` join."""
    links = {machine.link(one, other) for one, other in combinations(gpus, 2)}
    if machine.nvswitch and slowest.kind is LinkKind.NVLINK and len(links) == 1:
        return Group(gpus=gpus, word=f"NVSwitch: {slowest} between any two")
    return Group(gpus=gpus, word=str(slowest), meaning=meaning(slowest))


def meaning(link: Link) -> str:
    """What a link is, for who does not know the words of nvidia-smi: `2 NVLinks`."""
    if link.kind is LinkKind.NVLINK:
        return f"{link.lanes} NVLink{'s' if link.lanes != 1 else ''}"
    return _MEANING[link.kind]


def _sockets(machine: Machine) -> list[Level]:
    """The GPUs of each NUMA node, where they are known and several."""
    numa = [gpu.numa for gpu in machine.gpus]
    known = sorted({one for one in numa if one is not None})
    if None in numa or len(known) == 1:
        return []
    return [
        tuple(
            Group(gpus=tuple(at for at, one in enumerate(numa) if one == node), word=f"NUMA {node}")
            for node in known
        )
    ]


def _rows(
    boxes: Sequence[tuple[str, ...]], levels: Sequence[Level], pen: _Pen, width: int
) -> list[str]:
    """Rows of boxes, with a bracket under every group that one row holds."""
    place: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(boxes)), ())
    for level in reversed(levels):
        for group in level:
            for gpu in group.gpus:
                place[gpu] = (*place[gpu], group.gpus[0])
    order = sorted(place, key=lambda gpu: (*place[gpu], gpu))
    size = len(boxes[0][0])
    most = max(1, (width - _INDENT + 1) // (size + 1))
    lines: list[str] = []
    broken: set[Group] = {group for level in levels for group in level}
    for row in _broken_up(order, levels, most):
        column = {gpu: _INDENT + at * (size + 1) for at, gpu in enumerate(row)}
        lines += [
            " " * _INDENT + " ".join(boxes[gpu][line] for gpu in row)
            for line in range(len(boxes[0]))
        ]
        for level in levels:
            whole = [group for group in level if set(group.gpus) <= set(row)]
            broken.difference_update(whole)
            if whole:
                lines.append(_brackets(whole, column, size, pen))
    for level in levels:
        lines += [
            f"  {group.label}: all {len(boxes)} GPUs"
            if len(group.gpus) == len(boxes)
            else f"  {group.label}: GPUs {', '.join(map(str, group.gpus))}"
            for group in level
            if group in broken
        ]
    return lines


def _broken_up(order: Sequence[int], levels: Sequence[Level], most: int) -> Iterator[Sequence[int]]:
    """Rows of at most so many GPUs, as even as they can be, broken between groups if possible."""
    even = -(-len(order) // -(-len(order) // most))
    sizes = [group.gpus for level in levels for group in level if len(group.gpus) <= most]
    row: list[int] = []
    left = list(order)
    while left:
        block = max((group for group in sizes if left[0] in group), key=len, default=(left[0],))
        if row and len(row) + len(block) > (even if len(block) == 1 else most):
            yield row
            row = []
        row += [gpu for gpu in left if gpu in block]
        left = [gpu for gpu in left if gpu not in block]
    yield row


def _brackets(groups: Iterable[Group], column: Mapping[int, int], size: int, pen: _Pen) -> str:
    left, edge, right = pen.bracket
    text = ""
    for group in sorted(groups, key=lambda group: column[group.gpus[0]]):
        start = min(column[gpu] for gpu in group.gpus)
        inner = max(column[gpu] for gpu in group.gpus) + size - start - 2
        labels = (f" {group.label} ", f" {group.word} ", group.word)
        label = next((one for one in labels if len(one) <= inner), "")
        text = text.ljust(start) + left + label.center(inner, edge) + right
    return text


# ---------------------------------------------------------------- links that form none


def _triangle(machine: Machine, chosen: GPUSet, pen: _Pen, width: int) -> list[str]:
    """A cell for every pair: its link, in brackets inside the chosen set."""
    size = len(machine.gpus)
    pairs = list(combinations(range(size), 2))
    slowest = min(machine.link(one, other) for one, other in pairs)
    words = {
        pair: pen.nothing if (link := machine.link(*pair)) == slowest else str(link)
        for pair in pairs
    }
    cell = max(map(len, words.values())) + 2
    inside = {pair for pair in pairs if all(chosen >> gpu & 1 for gpu in pair)}
    label = len(str(size - 1))
    lines = [""]
    for one in range(1, size):
        cells = (
            f"[{words[other, one]}]".center(cell)
            if (other, one) in inside
            else words[other, one].center(cell)
            for other in range(one)
        )
        lines.append(f"  {one:>{label + 4}} {''.join(cells)}")
    lines.append(
        f"  {'':>{label + 4}} " + "".join(str(one).center(cell) for one in range(size - 1))
    )
    meanings = [
        f"{link} = {meaning(link)}"
        for link in sorted({machine.link(*pair) for pair in pairs}, reverse=True)
        if link != slowest
    ]
    legend = f"{pen.nothing} = {slowest}, {meaning(slowest)}"
    marked = ["[ ] inside the chosen set"] if inside else []
    return [*lines, *_wrapped("", [*meanings, legend, *marked], width)]


def _legend(machine: Machine, width: int) -> list[str]:
    """What the words in the matrix of a machine mean."""
    links = {link for row in machine.links for link in row if link is not None}
    return _wrapped(
        "", [f"{link} = {meaning(link)}" for link in sorted(links, reverse=True)], width
    )


def _nics(machine: Machine, width: int) -> list[str]:
    """Which GPUs are nearest to each network card."""
    words = []
    for nic in machine.nics:
        best = max(nic.attachment, default=None)
        if best is None:
            continue
        near = [gpu for gpu, link in enumerate(nic.attachment) if link == best]
        reach = "all" if len(near) == len(machine.gpus) else ",".join(map(str, near))
        words.append(f"{nic.name} {best} {reach}")
    return _wrapped("NICs and their nearest GPUs: ", words, width) if words else []


def assumed_nics(machine: Machine) -> str:
    """A line on NICs that neither the machine nor a person told; nothing where there are none."""
    if not machine.nics_assumed:
        return ""
    speed = machine.nics[0].speed if machine.nics else None
    rate = f" of {speed:g} GB/s" if speed else ", their speed not known"
    return f"  NICs: {len(machine.nics)}{rate} (assumed: {machine.nics_assumed})\n"


def _wrapped(head: str, words: Sequence[str], width: int) -> list[str]:
    lines, line = [], " " * _INDENT + head
    for at, word in enumerate(words):
        piece = word + (";" if at + 1 < len(words) else "")
        if line.strip() and len(line) + len(piece) > width:
            lines.append(line.rstrip())
            line = " " * (_INDENT + 2)
        line += piece + " "
    return [*lines, line.rstrip()]


# ---------------------------------------------------------------- the network


def fabric(cluster: Cluster, *, unicode: bool = True, width: int = 100) -> str:
    """Draw the network as a tree: tiers with their GB/s, domains, nodes with free and used GPUs.

    Nodes that are alike share a line. A network that takes more than FABRIC_LINES is drawn less
    deep, and what is left out is counted; so are the nodes without GPUs.
    """
    if not cluster.nodes:
        return "no nodes\n"
    pen = _UNICODE if unicode else _ASCII
    nodes = sorted(
        (node for node in cluster.nodes if node.machine.gpus), key=lambda node: natural(node.name)
    )
    others = len(cluster.nodes) - len(nodes)
    if not nodes:
        return f"{_many(others)}, none with GPUs\n"
    deepest = len(cluster.tiers) + 1
    for depth in range(deepest, 0, -1):
        tree = _Tree(cluster, depth, pen, width)
        lines = [
            _domain_line("cluster", cluster.beyond, nodes, assumed=cluster.guessed(BEYOND)),
            *tree.below(nodes, 0, ""),
        ]
        if len(lines) <= FABRIC_LINES:
            break
    if len(lines) > FABRIC_LINES:
        more = len(lines) - FABRIC_LINES + 1
        what = f"{cluster.tiers[0].name} domains" if cluster.tiers else "kinds of nodes"
        lines[FABRIC_LINES - 1 :] = [f"{pen.last}... and {more} more {what}"]
    if depth < deepest:
        hidden = [f"{tier.name} domains" for tier in cluster.tiers[depth:]]
        lines.append(f"Not shown, as too many for one screen: {', '.join([*hidden, 'nodes'])}")
    elif tree.signs:
        meanings = {
            pen.empty: "free",
            pen.full: "in use",
            _DOUBT: "some of these are in use or unhealthy; which ones is not reported",
            _AWAY: "cannot be used now",
        }
        lines.append("  ".join(f"{a} {what}" for a, what in meanings.items() if a in tree.signs))
    if others:
        lines.append(f"Not shown: {_many(others)} without GPUs")
    return "".join(f"{line}\n" for line in lines)


class _Tree:
    """The lines under a domain, down to a depth; the level after the tiers are the nodes."""

    def __init__(self, cluster: Cluster, depth: int, pen: _Pen, width: int) -> None:
        self.tiers = cluster.tiers
        self.guessed = cluster.guessed
        self.signs: set[str] = set()
        self.depth = depth
        self.pen = pen
        self.width = width

    def below(self, nodes: Sequence[Node], level: int, trunk: str) -> list[str]:
        """What stands under the domain of these nodes, each line after its trunk."""
        if level == self.depth:
            return []
        if level == len(self.tiers):
            room = max(_SHORTEST, self.width - len(trunk) - len(self.pen.branch))
            texts = list(self._folded(nodes, room))
            return [trunk + self._branch(at, texts) + text for at, text in enumerate(texts)]
        tier = self.tiers[level]
        domains: dict[str, list[Node]] = {}
        for node in nodes:
            domains.setdefault(node.domains[level], []).append(node)
        names = sorted(domains, key=natural)
        lines: list[str] = []
        for at, name in enumerate(names):
            inside = domains[name]
            assumed = self.guessed(tier.name)
            head = _domain_line(f"{tier.name} {name}", tier.bandwidth, inside, assumed=assumed)
            lines.append(trunk + self._branch(at, names) + head)
            more = self.pen.trunk if at + 1 < len(names) else " " * len(self.pen.trunk)
            lines += self.below(inside, level + 1, trunk + more)
        return lines

    def _folded(self, nodes: Iterable[Node], width: int) -> Iterator[str]:
        """A line for each kind of node, in the order of its first."""
        alike: dict[tuple[object, ...], list[Node]] = {}
        for node in nodes:
            gauge = _gauge(node, self.pen)
            doubt = node.unavailable or node.shared
            key = (node.machine.model, gauge, node.hidden, doubt, node.network)
            alike.setdefault(key, []).append(node)
            self.signs.update(gauge)
        for group in alike.values():
            first = group[0]
            gauge = _gauge(first, self.pen)
            free = f"{_free(first)} of {count(first.free)}" if _DOUBT in gauge else _free(first)
            each = " each" if len(group) > 1 else ""
            head = f"{gauge}  {free} free{each}"
            head += f"  {len(gauge)} x {first.machine.model or 'GPU'}  "
            slow = f"{first.network:g} GB/s to others" if math.isfinite(first.network) else None
            said = [one for one in (first.unavailable or first.shared, slow) if one]
            tail = f" ({'; '.join(said)})" if said else ""
            yield head + names([node.name for node in group], width - len(head) - len(tail)) + tail

    def _branch(self, at: int, of: Sequence[str]) -> str:
        return self.pen.branch if at + 1 < len(of) else self.pen.last


def _domain_line(name: str, bandwidth: float, nodes: Sequence[Node], *, assumed: bool) -> str:
    gpus = sum(len(node.machine.gpus) for node in nodes)
    free = sum(_free(node) for node in nodes)
    speed = "speed unknown" if assumed else f"{bandwidth:g} GB/s"
    plural = "s" if gpus != 1 else ""
    return f"{name} ({speed}): {_many(len(nodes))}, {free} of {gpus} GPU{plural} free"


def _many(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes != 1 else ''}"


def _free(node: Node) -> int:
    return node.free_count if node.unavailable is None and node.shared is None else 0


def _gauge(node: Node, pen: _Pen) -> str:
    """A character for each GPU, in the order of their indexes."""
    takes = node.unavailable is None and node.shared is None
    free = (_DOUBT if node.hidden else pen.empty) if takes else _AWAY
    healthy = node.machine.everything if node.allocatable is None else node.allocatable
    return "".join(
        free if node.free >> gpu & 1 else pen.full if healthy >> gpu & 1 else _AWAY
        for gpu in range(len(node.machine.gpus))
    )


def names(every: Sequence[str], width: int) -> str:
    """As many names as fit in `width` columns, at least one, and how many more there are."""
    shown, used = 1, len(every[0])
    most = width - len(f" and {len(every)} more")
    while shown < len(every) and used + 2 + len(every[shown]) <= most:
        used += 2 + len(every[shown])
        shown += 1
    left = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {left} more" if left else "")
