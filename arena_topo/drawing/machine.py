"""A machine drawn in text: a box for each GPU over the links between them.

Links that form a tree (PCIe switches and sockets, bridged pairs, an NVSwitch) are brackets below
the boxes; others are a triangle with a cell for every pair. Lines have at most `width` columns
(only a triangle of more than ten GPUs may be wider).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from arena_topo.layout import fold, unbreakable
from arena_topo.topology import GPUSet, Knowledge, Link, LinkKind, Machine, Node, count

NONE = GPUSet(0)

CHOSEN, FREE, DOUBT, USED, BROKEN = "chosen", "free", "free?", "in use", "broken"
RESERVED, UNHEALTHY = "reserved", "unhealthy"

_INDENT = 2

_MEANING = {
    LinkKind.PIX: "one PCIe switch",
    LinkKind.PXB: "PCIe switches",
    LinkKind.PHB: "one host bridge",
    LinkKind.NODE: "one NUMA node",
    LinkKind.SYS: "across sockets",
}
"""The meaning of nvidia-smi's words (its own legend, shortened)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """The characters of a drawing; each kind of box has its corners, edges and sides."""

    chosen: tuple[str, ...] = tuple("┏━┓┃┗┛")
    free: tuple[str, ...] = tuple("┌─┐│└┘")
    used: tuple[str, ...] = tuple("┌╌┐┊└┘")
    bracket: tuple[str, ...] = tuple("╰─╯")
    nothing: str = "·"
    full: str = "■"
    empty: str = "□"
    branch: str = "├─ "
    last: str = "└─ "
    trunk: str = "│  "


UNICODE = Pen()
ASCII = Pen(
    chosen=tuple("#=####"),
    free=tuple("+-+|++"),
    used=tuple("+.+:++"),
    bracket=tuple("'-'"),
    nothing=".",
    full="#",
    empty=".",
    branch="|- ",
    last="`- ",
    trunk="|  ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineState:
    """A machine and the state of its GPUs.

    `free` are the GPUs not known to be in use, None if the state is unknown; `unattributed` of them
    are not free nonetheless: `reserved_unnamed` are reserved, `broken_unnamed` are unhealthy, the
    others are in use. `reserved` GPUs wait for another gang, `broken` GPUs are unhealthy. `away` is
    the word for free GPUs on a machine that takes no jobs.
    """

    machine: Machine
    chosen: GPUSet = NONE
    free: GPUSet | None = None
    unattributed: int = 0
    reserved: GPUSet = NONE
    reserved_unnamed: int = 0
    broken_unnamed: int = 0
    broken: GPUSet = NONE
    away: str = ""

    @classmethod
    def of(cls, node: Node, chosen: GPUSet = NONE) -> MachineState:
        """The machine of a node, under the name of the node."""
        machine = replace(node.machine, name=node.name)
        healthy = machine.everything if node.allocatable is None else node.allocatable
        away = "shared" if node.shared else "unused" if node.unavailable else ""
        reserved = node.reserved_idle
        free = GPUSet(node.unreserved.free & ~reserved)
        return cls(
            machine=machine,
            chosen=chosen,
            free=free,
            unattributed=count(free) - node.free_count,
            reserved=reserved,
            reserved_unnamed=max(0, node.reserved_count - count(reserved)),
            broken_unnamed=node.broken,
            broken=GPUSet(machine.everything & ~healthy),
            away=away,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The state of each GPU in a word, empty if unknown."""
        return tuple(map(self._word, range(len(self.machine.gpus))))

    def _word(self, gpu: int) -> str:
        if self.chosen >> gpu & 1:
            return CHOSEN
        if self.broken >> gpu & 1:
            return BROKEN
        if self.free is None:
            return ""
        if self.free >> gpu & 1:
            return self.away or (DOUBT if self.unattributed else FREE)
        return RESERVED if self.reserved >> gpu & 1 else USED

    @property
    def what(self) -> str:
        """The models in the machine, the GPUs in each state, and a note on unknown links."""
        models = Counter(gpu.model or "GPU" for gpu in self.machine.gpus)
        text = " + ".join(f"{number} x {model}" for model, number in models.items()) or "no GPUs"
        counted = Counter(filter(None, self.words))
        counted[RESERVED] += self.reserved_unnamed if counted[DOUBT] else 0
        order = dict.fromkeys((CHOSEN, FREE, DOUBT, self.away, RESERVED, USED, BROKEN))
        phrases = {word: f"{counted[word]} {word}" for word in order if counted[word]}
        if DOUBT in phrases:
            phrases[DOUBT] = (
                f"{max(0, counted[DOUBT] - self.unattributed)} of {counted[DOUBT]} free"
            )
        if phrases:
            text += f"; {', '.join(phrases.values())}"
        return text + {
            Knowledge.ASSUMED: " (links assumed from the GPU product)",
            Knowledge.UNKNOWN: " (links not known)",
        }.get(self.machine.knowledge, "")

    @property
    def doubt(self) -> str:
        """A sentence on GPUs that may be free or not; empty without any."""
        doubts = self.doubts
        if not doubts or self.away:
            return ""
        are = "is" if self.unattributed == 1 else "are"
        what = next(iter(doubts))
        if len(doubts) > 1:
            what = f"not free: {', '.join(f'{number} {word}' for word, number in doubts.items())}"
        return f"{self.unattributed} of the GPUs marked free? {are} {what}; not known which"

    @property
    def doubts(self) -> Mapping[str, int]:
        """The number of GPUs marked free? that are in use, reserved or unhealthy, in these words.

        Those that do not occur are left out.
        """
        reserved, broken = self.reserved_unnamed, self.broken_unnamed
        in_use = self.unattributed - reserved - broken
        numbers = {USED: in_use, RESERVED: reserved, UNHEALTHY: broken}
        return {word: number for word, number in numbers.items() if number > 0}


def draw_machine(
    state: MachineState, *, pairs: bool = True, unicode: bool = True, width: int = 100
) -> str:
    """Draw the GPUs of a machine and the links between them, the chosen set marked.

    Without `pairs`, links that form no tree are not drawn: the matrix beside shows them. Without
    `unicode` only ASCII is drawn.
    """
    machine, pen = state.machine, UNICODE if unicode else ASCII
    # Not folded: names in it are untrusted, and could imitate lines of ours.
    lines = [f"{machine.name}: {state.what}"]
    if machine.gpus:
        groups = link_tree(machine)
        lines += _boxes(state, _numa(machine) if groups is None else groups, pen, width)
        if groups is None:
            lines += _triangle(state, pen, width) if pairs else _legend(machine, width)
        words = nics_text(machine)
        lines += _wrapped("NICs and their nearest GPUs: ", words, width) if words else []
    if state.doubt:
        lines.append(fold(f"  {state.doubt}", width, indent="    "))
    return "".join(f"{line.rstrip()}\n" for line in lines)


# ---------------------------------------------------------------- links that form a tree


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGroup:
    """GPUs with one link in common, None for a NUMA node; `switch` if it is an NVSwitch."""

    gpus: tuple[int, ...]
    link: Link | None = None
    numa: int | None = None
    switch: bool = False

    @property
    def word(self) -> str:
        """The link between the GPUs, in a word."""
        if self.switch:
            return f"NVSwitch: {self.link} between any two"
        return f"NUMA {self.numa}" if self.link is None else str(self.link)

    @property
    def label(self) -> str:
        """The word and its meaning."""
        if self.link is None or self.switch:
            return self.word
        return f"{self.word}, {link_text(self.link)}"


LinkLevel = tuple[LinkGroup, ...]
"""Disjoint groups; of two levels the nearer comes first."""


def link_tree(machine: Machine) -> list[LinkLevel] | None:
    """The groups by links, nearest first; None if the links form no tree.

    They form a tree if "joined at least so well" is an equivalence at every level.
    """
    every = range(len(machine.gpus))
    pairs = {machine.link(gpu, other) for gpu, other in combinations(every, 2)}
    levels: list[LinkLevel] = []
    known: set[tuple[int, ...]] = set()
    for link in sorted(pairs, reverse=True):
        near = [
            tuple(other for other in every if other == gpu or machine.link(gpu, other) >= link)
            for gpu in every
        ]
        groups = list(dict.fromkeys(near))
        if sum(map(len, groups)) != len(every):
            return None
        new = [group for group in groups if len(group) > 1 and group not in known]
        known.update(new)
        levels.append(tuple(_group(machine, gpus, link) for gpus in new))
    return levels


def _group(machine: Machine, gpus: tuple[int, ...], slowest: Link) -> LinkGroup:
    links = {machine.link(gpu, other) for gpu, other in combinations(gpus, 2)}
    switch = machine.nvswitch and slowest.kind is LinkKind.NVLINK and len(links) == 1
    return LinkGroup(gpus=gpus, link=slowest, switch=switch)


def _numa(machine: Machine) -> list[LinkLevel]:
    return [tuple(LinkGroup(gpus=gpus, numa=numa) for numa, gpus in numa_groups(machine).items())]


def numa_groups(machine: Machine) -> Mapping[int, tuple[int, ...]]:
    """The GPUs of each NUMA node; empty unless all are known and there are several."""
    numa = [gpu.numa for gpu in machine.gpus]
    known = sorted({socket for socket in numa if socket is not None})
    if None in numa or len(known) == 1:
        return {}
    return {node: tuple(at for at, socket in enumerate(numa) if socket == node) for node in known}


def link_text(link: Link) -> str:
    """The plain meaning of one of nvidia-smi's words: `2 NVLinks`."""
    if link.kind is LinkKind.NVLINK:
        return f"{link.lanes} NVLink{'s' if link.lanes != 1 else ''}"
    return _MEANING[link.kind]


def _boxes(state: MachineState, levels: Sequence[LinkLevel], pen: Pen, width: int) -> list[str]:
    """Rows of boxes of one size, with a bracket under every group within one row."""
    words = state.words
    names = [f"GPU {gpu}" for gpu in range(len(words))]
    several = any(words)
    inner = max(map(len, [*names, *words, USED if several else ""]))
    place = {
        gpu: [group.gpus[0] for level in reversed(levels) for group in level if gpu in group.gpus]
        for gpu in range(len(words))
    }
    order = sorted(place, key=lambda gpu: (place[gpu], gpu))
    most = max(1, (width - _INDENT + 1) // (inner + 3))
    row = -(-len(order) // -(-len(order) // most))
    lines: list[str] = []
    broken = dict.fromkeys(group for level in levels for group in level)
    for start in range(0, len(order), row):
        gpus = order[start : start + row]
        drawn = [_box(names[gpu], words[gpu], pen, inner, several=several) for gpu in gpus]
        lines += [" " * _INDENT + " ".join(parts) for parts in zip(*drawn, strict=True)]
        for level in levels:
            whole = [group for group in level if set(group.gpus) <= set(gpus)]
            if whole:
                lines.append(_brackets(whole, gpus, inner + 2, pen))
            for group in whole:
                del broken[group]
    for group in broken:
        every = len(group.gpus) == len(words)
        which = f"all {len(words)} GPUs" if every else f"GPUs {', '.join(map(str, group.gpus))}"
        lines.append(f"  {group.label}: {which}")
    return lines


def _box(name: str, word: str, pen: Pen, inner: int, *, several: bool) -> list[str]:
    looks = {CHOSEN: pen.chosen, **dict.fromkeys((USED, RESERVED, BROKEN), pen.used)}
    left, edge, right, side, low_left, low_right = looks.get(word, pen.free)
    return [
        f"{left}{edge * inner}{right}",
        *(f"{side}{text.center(inner)}{side}" for text in ([name, word] if several else [name])),
        f"{low_left}{edge * inner}{low_right}",
    ]


def _brackets(groups: Sequence[LinkGroup], row: Sequence[int], size: int, pen: Pen) -> str:
    left, edge, right = pen.bracket
    text = ""
    for group in sorted(groups, key=lambda group: row.index(group.gpus[0])):
        start = _INDENT + min(map(row.index, group.gpus)) * (size + 1)
        inner = len(group.gpus) * (size + 1) - 3
        labels = (f" {group.label} ", f" {group.word} ", group.word, "")
        label = next(label for label in labels if len(label) <= inner)
        text = text.ljust(start) + left + label.center(inner, edge) + right
    return text


# ---------------------------------------------------------------- links that form none


def _triangle(state: MachineState, pen: Pen, width: int) -> list[str]:
    """A cell for every pair: its link, in brackets inside the chosen set."""
    machine = state.machine
    size = len(machine.gpus)
    slowest = min(machine.link(*pair) for pair in combinations(range(size), 2))
    words = {
        pair: pen.nothing if (link := machine.link(*pair)) == slowest else str(link)
        for pair in combinations(range(size), 2)
    }
    inside = {pair for pair in words if all(state.chosen >> gpu & 1 for gpu in pair)}
    cell = max(map(len, words.values())) + 2
    label = len(str(size - 1)) + 4
    lines = [""]
    for gpu in range(1, size):
        pairs = [(other, gpu) for other in range(gpu)]
        cells = (f"[{words[pair]}]" if pair in inside else words[pair] for pair in pairs)
        lines.append(f"  {gpu:>{label}} " + "".join(row.center(cell) for row in cells))
    lines.append(f"  {'':>{label}} " + "".join(str(row).center(cell) for row in range(size - 1)))
    marked = "[ ] inside the chosen set" if inside else ""
    return [*lines, *_legend(machine, width, slowest, pen.nothing, marked)]


def _legend(
    machine: Machine, width: int, slowest: Link | None = None, sign: str = "", more: str = ""
) -> list[str]:
    """The meaning of the words of the links; with `sign` the slowest link is shown by a sign."""
    links = sorted({link for row in machine.links for link in row if link}, reverse=True)
    meanings = [
        f"{sign} = {link}, {link_text(link)}" if link == slowest else f"{link} = {link_text(link)}"
        for link in links
    ]
    return _wrapped("", [*meanings, *([more] if more else [])], width)


def nics_text(machine: Machine) -> list[str]:
    """The GPUs nearest to each NIC: `mlx5_0 PIX 0,1`; without assumed NICs."""
    words = []
    for nic in () if machine.nics_assumed else machine.nics:
        best = max(nic.attachment, default=None)
        if best is not None:
            near = [gpu for gpu, link in enumerate(nic.attachment) if link == best]
            reach = "all" if len(near) == len(machine.gpus) else ",".join(map(str, near))
            words.append(f"{nic.name} {best} {reach}")
    return words


def assumed_nics(machine: Machine) -> str:
    """A line on assumed NICs, which neither the machine nor a person named; empty without any."""
    if not machine.nics_assumed:
        return ""
    speed = machine.nics[0].speed if machine.nics else None
    rate = f" of {speed:g} GB/s" if speed else ", their speed not known"
    return f"  NICs: {len(machine.nics)}{rate} (assumed: {machine.nics_assumed})\n"


def _wrapped(head: str, words: Sequence[str], width: int) -> list[str]:
    """Words after a head, wrapped only between words."""
    line = " " * _INDENT + head + "; ".join(map(unbreakable, words))
    return fold(line, width, indent=" " * (_INDENT + 2)).splitlines()
