"""One machine as a figure: its GPUs, what joins them, and the rings that a choice gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, pairwise

from arena_topo.bandwidth import packing
from arena_topo.bandwidth.packing import Ring
from arena_topo.drawing.places import BAR, NODE, Bar, Places, places
from arena_topo.drawing.sheet import SMALL, Layer, Point, Sheet, width, wrapped
from arena_topo.drawing.text import meaning
from arena_topo.manifests import estimates
from arena_topo.solver.gpu_sets import gpu_sets
from arena_topo.topology import (
    NIC,
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    gpu_set,
    members,
)

DRAWN_LANES = 4
"""Lanes between two GPUs that are drawn one by one; more are one thick line."""

_APART = 5.0
_PILLS = 100.0
"""Pixels between two labels of lines; nearer than that one is enough for both."""

_RINGS = 3
"""Rings that have a colour of their own; a DGX-1 has no more."""


class State(StrEnum):
    """What a GPU is in a picture; the value is how it looks (sheet.STYLE)."""

    PLAIN = "node"
    CHOSEN = "on"
    POOR = "poor"
    USED = "used"
    BROKEN = "broken"
    DOUBT = "node doubt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """GPUs of a machine that a job gets, with their ranks.

    `poor`: better ones are known; `slow`: and it is the links of this machine that hold it up.
    """

    gpus: GPUSet
    ranks: Mapping[int, int] = field(default_factory=dict)
    poor: bool = False
    slow: bool = False

    @property
    def order(self) -> tuple[int, ...]:
        """The GPUs from rank to rank."""
        return tuple(sorted(self.ranks, key=self.ranks.__getitem__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """How an all-reduce gets round in a set of GPUs: rings, and the links that hold it up.

    `pair` is two GPUs with all their lanes, `switched` is a set behind an NVSwitch. `gbps` is what
    the set is worth, `slow` are the slowest links of the one ring that leaves NVLink.
    """

    gbps: float
    rings: tuple[Ring, ...] = ()
    pair: bool = False
    switched: bool = False
    slow: frozenset[tuple[int, int]] = frozenset()


def rings(machine: Machine, gpus: GPUSet, order: Ring = ()) -> Rings:
    """The rings that give a set of GPUs its bandwidth; none for less than two of them."""
    shape = gpu_sets(machine.configuration)
    inside = members(gpus)
    if len(inside) < 2:  # noqa: PLR2004 one talks to nobody
        return Rings(gbps=math.inf)
    gbps = shape.value(gpus)
    links = {pair: machine.link(*pair) for pair in combinations(inside, 2)}
    nvlink = all(link.kind is LinkKind.NVLINK for link in links.values())
    if machine.nvswitch and nvlink:
        return Rings(gbps=gbps, rings=(inside,), switched=True)
    if len(inside) == 2:  # noqa: PLR2004 no ring, but a line
        slow = frozenset() if nvlink else frozenset(links)
        return Rings(gbps=gbps, rings=(inside,), pair=True, slow=slow)
    first = order if set(order) == set(inside) else shape.order(gpus)
    laid = (
        () if machine.nvswitch else packing.side_by_side(packing.lanes(machine.links), gpus, first)
    )
    if laid:
        return Rings(gbps=gbps, rings=laid)
    best = shape.order(gpus)
    rates = {pair: links[pair] for pair in _pairs(best, closed=True)}
    least = min(rates.values())
    return Rings(
        gbps=gbps, rings=(best,), slow=frozenset(pair for pair in rates if rates[pair] == least)
    )


def reason(machine: Machine, found: Rings) -> str:
    """In words why a set of GPUs is worth what it is."""
    if not found.rings:
        return "one GPU talks to nobody"
    inside = found.rings[0]
    if gpu_set(inside) in dict(machine.measured):
        return "as it was measured"
    if found.slow:
        return _held_up(machine, min(machine.link(*pair) for pair in found.slow), found)
    if found.switched:
        links = {machine.link(*pair).lanes for pair in combinations(inside, 2)}
        each = f"all its {min(links)}" if len(links) == 1 else str(min(links))
        said = f"each GPU drives {each} NVLinks to the switch"
    elif found.pair:
        said = f"two GPUs with {meaning(machine.link(inside[0], inside[1]))} between them"
    else:
        many = len(found.rings)
        said = "one ring over NVLink" if many == 1 else f"{many} rings over NVLink share no lane"
    return said


def _held_up(machine: Machine, link: Link, found: Rings) -> str:
    if found.pair:
        return f"joined {_through(link)} ({link})"
    if any(one.kind is LinkKind.NVLINK for row in machine.links for one in row if one):
        return f"no ring over NVLink, the best one is held up {_through(link)} ({link})"
    return f"a ring, held up {_through(link)} ({link})"


def _through(link: Link) -> str:
    """Where a slow link runs: `across sockets`, `by one PCIe switch`."""
    word = meaning(link)
    return word if link.kind is LinkKind.SYS else f"by {word}"


def _pairs(ring: Sequence[int], *, closed: bool) -> list[tuple[int, int]]:
    """The links of a ring, or of a line, each with its lower GPU first."""
    around = (*ring, ring[0]) if closed else tuple(ring)
    return [(min(one, other), max(one, other)) for one, other in pairwise(around)]


# ---------------------------------------------------------------- the figure


def heading(machine: Machine) -> str:
    """What is in a machine: `8 x V100`, and whether its links are known."""
    models = Counter(gpu.model or "GPU" for gpu in machine.gpus)
    kinds = " + ".join(f"{many} x {model}" for model, many in models.items()) or "no GPUs"
    return kinds + {
        Knowledge.ASSUMED: ", links assumed from the GPU product",
        Knowledge.UNKNOWN: ", links not known",
    }.get(machine.knowledge, "")


def draw(
    machine: Machine,
    states: Mapping[int, tuple[State, str]],
    choice: Choice | None = None,
    *,
    cards: bool = True,
) -> Sheet:
    """Draw a machine; `states` say how each GPU looks and what stands under its number."""
    sheet = Sheet()
    laid = places(machine)
    found = None if choice is None else rings(machine, choice.gpus, choice.order)
    if laid.mesh:
        _wires(sheet, machine, laid, found, poor=choice is not None and choice.poor)
    _bars(sheet, machine, laid, choice)
    for frame in laid.frames:
        sheet.box(frame.at, frame.size, "frame", round_=10)
        y = frame.at[1] + (frame.size[1] - 8 if frame.foot else 17)
        sheet.text(
            (frame.at[0] + frame.size[0] / 2, y), frame.words, "small dim middle", size=SMALL
        )
    if laid.mesh and len(laid.frames) == 2 and not (found and found.slow):  # noqa: PLR2004
        _between(sheet, machine, laid)
    for gpu, (x, y) in sorted(laid.spots.items()):
        state, words = states[gpu]
        _gpu(sheet, gpu, (x, y), state, words)
    if cards and not machine.nics_assumed:
        _cards(sheet, machine.nics, len(machine.gpus))
    return sheet


_INK = {State.CHOSEN: " on-text", State.POOR: " on-text", State.USED: " used-text"}


def _gpu(sheet: Sheet, gpu: int, at: Point, state: State, words: str) -> None:
    x, y = at
    sheet.box((x - NODE[0] / 2, y - NODE[1] / 2), NODE, state, layer=Layer.NODE, round_=7)
    ink = _INK.get(state, "")
    sheet.text((x, y + (4.5 if not words else -2)), f"GPU {gpu}", f"strong middle{ink}")
    if words:
        sheet.text((x, y + 14), words, f"small middle{ink}", size=SMALL)


def _rate(link: Link, machine: Machine) -> str:
    facts = gpu_sets(machine.configuration).facts
    nvlink = link.kind is LinkKind.NVLINK
    return f"{estimates.amount(link.lanes * facts.lane_rate if nvlink else facts.rate(link))} GB/s"


def _bars(sheet: Sheet, machine: Machine, laid: Places, choice: Choice | None) -> None:
    """What GPUs hang on, and on the way of a choice in its colour."""
    chosen = set(members(choice.gpus)) if choice is not None else set()
    over = min((bar for bar in laid.bars if chosen <= set(bar.gpus)), key=_many, default=None)
    for bar in laid.bars:
        near = chosen & set(bar.gpus)
        on = len(near) > 1 or (bool(near) and near != chosen)
        look = "bar"
        if on and over is not None and _many(bar) <= _many(over):
            look = "bar-slow" if choice is not None and choice.poor else "bar-on"
        sheet.box(bar.at, (bar.width, BAR), look, layer=Layer.NODE, round_=6)
        words = next(
            (one for one in _words(bar, machine) if width(one, SMALL) + 12 <= bar.width), ""
        )
        middle = (bar.at[0] + bar.width / 2, bar.at[1] + BAR / 2 + 4.5)
        sheet.text(middle, words, "small middle", size=SMALL)
    for stub in laid.stubs:
        near = chosen & set(stub.gpus)
        # A line is used where the choice is on both of its sides.
        on = bool(near) and near != chosen
        nvlink = stub.bar.link.kind is LinkKind.NVLINK
        look = "link" if nvlink else "link pcie"
        if on and choice is not None:
            look = (
                "ring0"
                if not choice.poor
                else "slow"
                if stub.bar is over and choice.slow
                else "weak"
            )
        thick = 5 if nvlink else 3.5 if on else 2
        sheet.line(stub.points, look, thick=thick, layer=Layer.RING if on else Layer.LINK)


def _many(bar: Bar) -> int:
    return len(bar.gpus)


def _words(bar: Bar, machine: Machine) -> tuple[str, ...]:
    """What stands in a bar, the longest first."""
    rate = _rate(bar.link, machine)
    if bar.switch:
        lanes = f"{bar.link.lanes} NVLinks each, {rate}"
        return (f"NVSwitch: {lanes}", f"NVSwitch, {rate}", "NVSwitch")
    said = (f"{meaning(bar.link)} ({bar.link}), {rate}", f"{bar.link}, {rate}", str(bar.link))
    return said if machine.knowledge is not Knowledge.UNKNOWN else (f"not known, {rate}", "?")


def _wires(
    sheet: Sheet, machine: Machine, laid: Places, found: Rings | None, *, poor: bool
) -> None:
    """NVLinks lane by lane, each ring on lanes of its own."""
    taken: dict[tuple[int, int], list[str]] = {}
    for at, ring in enumerate(found.rings if found is not None else ()):
        for pair in _pairs(ring, closed=len(ring) > 2):  # noqa: PLR2004 two are a line
            taken.setdefault(pair, []).append("weak" if poor else f"ring{at % _RINGS}")
    if found is not None and found.pair:
        taken = {pair: looks * machine.link(*pair).lanes for pair, looks in taken.items()}
    known = list(laid.wires)
    said: list[Point] = []
    for pair in [*known, *(pair for pair in taken if pair not in known)]:
        link = machine.link(*pair)
        path, on = laid.path(*pair), taken.get(pair, [])
        if link.kind is not LinkKind.NVLINK:
            slow = found is not None and pair in found.slow and poor
            sheet.line(path, "slow" if slow else "ring0 pcie", thick=3.5, layer=Layer.RING)
            if all(math.dist(_middle(path), other) > _PILLS for other in said):
                said.append(_middle(path))
                _pill(sheet, said[-1], f"{link}, {_rate(link, machine)}")
        elif link.lanes > DRAWN_LANES:
            sheet.line(path, on[0] if on else "link", thick=8, layer=_layer(on))
            _pill(sheet, _middle(path), f"{link}")
        else:
            for lane in range(link.lanes):
                aside = (lane - (link.lanes - 1) / 2) * _APART
                look = on[lane] if lane < len(on) else "faint" if found is not None else "link"
                thick = 3.5 if lane < len(on) else 2
                sheet.line(_beside(path, aside), look, thick=thick, layer=_layer(on[lane:]))


def _layer(on: Sequence[str]) -> Layer:
    return Layer.RING if on else Layer.LINK


def _pill(sheet: Sheet, at: Point, words: str) -> None:
    wide = width(words, SMALL) + 14
    sheet.box((at[0] - wide / 2, at[1] - 10), (wide, 20), "paper", layer=Layer.NODE, round_=10)
    sheet.text((at[0], at[1] + 4.5), words, "small middle", size=SMALL)


def _middle(path: Sequence[Point]) -> Point:
    """The middle of the longest part of a line."""
    start, end = max(pairwise(path), key=lambda part: math.dist(*part))
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2


def _beside(path: Sequence[Point], aside: float) -> list[Point]:
    """A line parallel to another."""
    normals = []
    for start, end in pairwise(path):
        away = math.dist(start, end)
        normals.append(((start[1] - end[1]) / away, (end[0] - start[0]) / away))
    moved = []
    for at, (x, y) in enumerate(path):
        one, other = normals[max(0, at - 1)], normals[min(at, len(normals) - 1)]
        share = aside / (1 + one[0] * other[0] + one[1] * other[1])
        moved.append((x + share * (one[0] + other[0]), y + share * (one[1] + other[1])))
    return moved


def _between(sheet: Sheet, machine: Machine, laid: Places) -> None:
    """The path between two sockets that stand side by side, where it is the same for all."""
    left, right = sorted(laid.frames, key=lambda frame: frame.at[0])
    start = left.at[0] + left.size[0]
    numa = [gpu.numa for gpu in machine.gpus]
    links = {
        machine.link(one, other)
        for one, other in combinations(range(len(numa)), 2)
        if numa[one] != numa[other] and machine.link(one, other).kind is not LinkKind.NVLINK
    }
    if len(links) != 1 or right.at[0] <= start:
        return
    [link] = links
    y = left.at[1] + left.size[1] / 2 + 6
    sheet.line(((start, y), (right.at[0], y)), "link pcie")
    middle = (start + right.at[0]) / 2
    sheet.text((middle, y - 8), str(link), "small dim middle", size=SMALL)
    sheet.text((middle, y + 17), _rate(link, machine), "small dim middle", size=SMALL)


def _cards(sheet: Sheet, nics: Sequence[NIC], size: int) -> None:
    """Network cards, each with the GPUs that are nearest to it."""
    words = []
    for nic in nics:
        best = max(nic.attachment, default=None)
        if best is None:
            continue
        near = [gpu for gpu, link in enumerate(nic.attachment) if link == best]
        reach = "any GPU" if len(near) == size else f"GPU {', '.join(map(str, near))}"
        words.append(f"{nic.name}: {best} to {reach}")
    if not words:
        return
    left, _top, right, bottom = sheet.edges
    right = max(right, left + 320)
    x, y = left, bottom + 16
    for one in words:
        wide = min(width(one, SMALL) + 16, right - left)
        if x > left and x + wide > right:
            x, y = left, y + 28
        sheet.box((x, y), (wide, 22), "bar", layer=Layer.NODE, round_=11)
        sheet.text((x + wide / 2, y + 15.5), one, "small middle", room=wide - 12, size=SMALL)
        x += wide + 8


# ---------------------------------------------------------------- what the lines mean


def key(machine: Machine) -> list[tuple[int, str]]:
    """For each kind of line in a mesh how many lanes it has, 0 for PCIe, and what that is."""
    if len(machine.gpus) < 2 or not places(machine).mesh:  # noqa: PLR2004
        return []
    links = {machine.link(*pair) for pair in combinations(range(len(machine.gpus)), 2)}
    found = [
        (link.lanes, f"{meaning(link)} ({link}), {_rate(link, machine)}")
        for link in sorted(links)
        if link.kind is LinkKind.NVLINK
    ]
    others = [link for link in sorted(links, reverse=True) if link.kind is not LinkKind.NVLINK]
    if others:
        said = "; ".join(f"{meaning(link)} ({link}), {_rate(link, machine)}" for link in others)
        found.append((0, f"all other pairs: {said}"))
    return found


def draw_key(sheet: Sheet, items: Sequence[tuple[int, str]], at: Point, room: float) -> float:
    """Draw what lines mean, in rows of at most so many pixels; the y below them."""
    x, y = at
    for lanes, words in items:
        lines = wrapped(words, room - 44, SMALL)
        wide = 44 + max(width(line, SMALL) for line in lines) + 22
        if x > at[0] and x + wide > at[0] + room:
            x, y = at[0], y + 22
        middle = y + 8
        if lanes == 0:
            sheet.line(((x, middle), (x + 34, middle)), "link pcie")
        elif lanes > DRAWN_LANES:
            sheet.line(((x, middle), (x + 34, middle)), "link", thick=8)
        else:
            for lane in range(lanes):
                aside = middle + (lane - (lanes - 1) / 2) * _APART
                sheet.line(((x, aside), (x + 34, aside)), "link")
        for line in lines:
            sheet.text((x + 42, y + 12), line, "small dim", size=SMALL)
            y += 17 if line is not lines[-1] else 0
        x += wide
    return y + 22


def states(
    machine: Machine,
    *,
    choice: Choice | None = None,
    free: GPUSet | None = None,
    hidden: int = 0,
    broken: GPUSet | None = None,
    away: str | None = None,
) -> dict[int, tuple[State, str]]:
    """How each GPU looks; the arguments are as in `drawing.machine`."""
    found: dict[int, tuple[State, str]] = {}
    for gpu in range(len(machine.gpus)):
        if choice is not None and choice.gpus >> gpu & 1:
            rank = choice.ranks.get(gpu)
            look = State.POOR if choice.poor else State.CHOSEN
            found[gpu] = (look, "chosen" if rank is None else f"rank {rank}")
        elif broken is not None and broken >> gpu & 1:
            found[gpu] = (State.BROKEN, "broken")
        elif free is None:
            found[gpu] = (State.PLAIN, "")
        elif not free >> gpu & 1:
            found[gpu] = (State.USED, "in use")
        elif away is not None:
            found[gpu] = (State.USED, away)
        else:
            found[gpu] = (State.DOUBT, "free?") if hidden else (State.PLAIN, "free")
    return found


def counted(said: Mapping[int, tuple[State, str]]) -> str:
    """How many GPUs are what: `4 chosen, 1 free, 3 in use`."""
    words = Counter(
        "chosen" if state in {State.CHOSEN, State.POOR} else word
        for state, word in said.values()
        if word
    )
    return ", ".join(f"{many} {word}" for word, many in words.items())
