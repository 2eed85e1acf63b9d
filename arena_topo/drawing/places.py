"""Where the GPUs of a machine stand in its picture, and how lines get from one to another.

Links that form a tree, or a switch, are bars on which the GPUs hang. A mesh of NVLinks is drawn
link by link: two quads as NVIDIA draws a DGX-1, one quad as a square, any other on a circle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from arena_topo.bandwidth import packing
from arena_topo.drawing.sheet import Point
from arena_topo.drawing.text import tree
from arena_topo.topology import Link, LinkKind, Machine

NODE = (62.0, 44.0)
"""Width and height of a GPU's box."""

BAR = 24.0
"""Height of what several GPUs hang on."""

_GAP = 10.0
_LEVEL = 50.0
_ROW = 4
"""GPUs that hang on a switch on one side only; more hang on both."""

_QUAD = 4
_PITCH = (112.0, 124.0)
_BETWEEN = 142.0
"""From the inner GPUs of one quad to those of the other."""

_CLEAR = 4.0
_PAD = 14.0
_LABEL = 16.0
_TRACK = 13.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What joins some GPUs, by its upper left corner: an NVSwitch, a bridge, a socket."""

    gpus: tuple[int, ...]
    link: Link
    switch: bool
    at: Point
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """What hangs some GPUs on a bar: a line down, or up, to it."""

    gpus: tuple[int, ...]
    bar: Bar
    points: tuple[Point, Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A NUMA node: its name, and the box around its GPUs; `foot` where the name stands below."""

    words: str
    at: Point
    size: tuple[float, float]
    foot: bool = False


@dataclass(slots=True, kw_only=True)
class Places:
    """A machine laid out; `spots` are the middles of the GPUs' boxes."""

    spots: dict[int, Point]
    bars: list[Bar] = field(default_factory=list)
    stubs: list[Stub] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    wires: dict[tuple[int, int], tuple[Point, ...]] = field(default_factory=dict)
    mesh: bool = False

    def path(self, one: int, other: int) -> tuple[Point, ...]:
        """The line between two GPUs of a mesh, around the boxes of all others."""
        pair = (min(one, other), max(one, other))
        if pair not in self.wires:
            self.wires[pair] = self._routed(*pair)
        return self.wires[pair]

    def _routed(self, one: int, other: int) -> tuple[Point, ...]:
        start, end = self.spots[one], self.spots[other]
        others = [spot for gpu, spot in self.spots.items() if gpu not in {one, other}]
        if _clear((start, end), others):
            return start, end
        if start[1] == end[1]:
            return self._around(start, end)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        away = math.dist(start, end)
        normal = ((start[1] - end[1]) / away, (end[0] - start[0]) / away)
        for bow in (30, -30, 50, -50, 75, -75, 100, -100):
            bent = (start, (middle[0] + normal[0] * bow, middle[1] + normal[1] * bow), end)
            if _clear(bent, others):
                return bent
        return start, end

    def _around(self, start: Point, end: Point) -> tuple[Point, ...]:
        """Over everything, or under it, each such line farther out than those before."""
        ys = [y for _x, y in self.spots.values()]
        over = start[1] <= (min(ys) + max(ys)) / 2
        edges = [y for path in self.wires.values() for _x, y in path]
        edges += [frame.at[1] + (0 if over else frame.size[1]) for frame in self.frames]
        edges += [y + (-NODE[1] / 2 if over else NODE[1] / 2) for y in ys]
        y = min(edges) - _TRACK if over else max(edges) + _TRACK
        # Two lines at one GPU leave it side by side.
        used = sum(
            len(path) > 2 and point == path[0]  # noqa: PLR2004 a line of two points is straight
            for path in self.wires.values()
            for point in (start, end)
        )
        aside = 12.0 * used
        return (
            (start[0] + aside, start[1]),
            (start[0] + aside, y),
            (end[0] - aside, y),
            (end[0] - aside, end[1]),
        )


def _clear(points: Sequence[Point], others: Iterable[Point]) -> bool:
    """Whether a line keeps its distance from the boxes around these points."""
    half = (NODE[0] / 2 + _CLEAR, NODE[1] / 2 + _CLEAR)
    for start, end in pairwise(points):
        steps = max(2, int(math.dist(start, end) / 4))
        for spot in others:
            for step in range(steps + 1):
                x = start[0] + (end[0] - start[0]) * step / steps
                y = start[1] + (end[1] - start[1]) * step / steps
                if abs(x - spot[0]) < half[0] and abs(y - spot[1]) < half[1]:
                    return False
    return True


def places(machine: Machine) -> Places:
    """Lay a machine out; the upper left is about 0, 0, and lines may reach beyond it."""
    size = len(machine.gpus)
    if size == 1:
        return Places(spots={0: (NODE[0] / 2, NODE[1] / 2)})
    levels = tree(machine)
    if levels is not None and (machine.nvswitch or not _meshed(machine)):
        if machine.nvswitch and len(levels) == 1 and size > _ROW:
            return _two_rows(machine)
        return _hanging(machine, [[group.gpus for group in level] for level in levels])
    return _mesh(machine)


def _meshed(machine: Machine) -> bool:
    """Whether more than two GPUs are joined by NVLinks of their own."""
    return any(len(part) > 2 for part in _parts(machine))  # noqa: PLR2004 two are a bridge


def _joined(machine: Machine, gpus: Sequence[int]) -> Link:
    """The slowest link among some GPUs."""
    return min(machine.link(one, other) for one, other in combinations(gpus, 2))


# ---------------------------------------------------------------- what hangs on bars


def _hanging(machine: Machine, levels: Sequence[Sequence[tuple[int, ...]]]) -> Places:
    """One row of GPUs over the bars that join them, the nearest bar first."""
    place: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(machine.gpus)), ())
    for level in reversed(levels):
        for group in level:
            for gpu in group:
                place[gpu] = (*place[gpu], group[0])
    order = sorted(place, key=lambda gpu: (*place[gpu], gpu))
    drawn = [level for level in levels if level]
    spots: dict[int, Point] = {}
    x = NODE[0] / 2
    for at, gpu in enumerate(order):
        if at:
            before = order[at - 1]
            depth = next(
                (
                    depth
                    for depth, level in enumerate(drawn)
                    if any(gpu in group and before in group for group in level)
                ),
                len(drawn),
            )
            apart = machine.gpus[gpu].numa != machine.gpus[before].numa
            x += NODE[0] + _GAP + 8 * depth + (2 * _PAD if apart else 0)
        spots[gpu] = (x, NODE[1] / 2)
    found = Places(spots=spots)
    top: dict[int, tuple[float, float]] = {
        gpu: (spot[0], spot[1] + NODE[1] / 2) for gpu, spot in spots.items()
    }
    under: dict[int, tuple[int, ...]] = {gpu: (gpu,) for gpu in spots}
    # A bar that joins several NUMA nodes keeps off their frames.
    y = NODE[1] + 26 - _LEVEL + (_PAD if _numa(machine) and len(drawn) == 1 else 0)
    for level in drawn:
        y += _LEVEL
        for group in level:
            left = min(spots[gpu][0] for gpu in group) - NODE[0] / 2
            right = max(spots[gpu][0] for gpu in group) + NODE[0] / 2
            link = _joined(machine, group)
            bar = Bar(
                gpus=group,
                link=link,
                switch=machine.nvswitch and link.kind is LinkKind.NVLINK,
                at=(left, y),
                width=right - left,
            )
            found.bars.append(bar)
            for start, gpus in {top[gpu]: under[gpu] for gpu in group}.items():
                found.stubs.append(Stub(gpus=gpus, bar=bar, points=(start, (start[0], y))))
            for gpu in group:
                top[gpu] = ((left + right) / 2, y + BAR)
                under[gpu] = group
    found.frames = _around_bars(machine, found, order)
    return found


def _around_bars(machine: Machine, found: Places, order: Sequence[int]) -> list[Frame]:
    """A frame for each NUMA node, around its GPUs and what joins no others."""
    frames = []
    for numa, gpus in _numa(machine).items():
        at = sorted(order.index(gpu) for gpu in gpus)
        if at[-1] - at[0] + 1 != len(at):
            return []
        bars = [bar for bar in found.bars if set(bar.gpus) <= set(gpus)]
        left = min(found.spots[gpu][0] for gpu in gpus) - NODE[0] / 2
        right = max(found.spots[gpu][0] for gpu in gpus) + NODE[0] / 2
        bottom = max([NODE[1], *(bar.at[1] + BAR for bar in bars)])
        frames.append(
            Frame(
                words=f"NUMA {numa}",
                at=(left - _PAD, -_PAD - _LABEL),
                size=(right - left + 2 * _PAD, bottom + 2 * _PAD + _LABEL),
            )
        )
    return frames


def _numa(machine: Machine) -> dict[int, list[int]]:
    """The GPUs of each NUMA node, where all are known and there are several."""
    known: dict[int, list[int]] = {}
    for at, gpu in enumerate(machine.gpus):
        if gpu.numa is None:
            return {}
        known.setdefault(gpu.numa, []).append(at)
    return known if len(known) > 1 else {}


def _two_rows(machine: Machine) -> Places:
    """GPUs over and under the switch that joins them all."""
    size = len(machine.gpus)
    numa = _numa(machine)
    order = [gpu for gpus in numa.values() for gpu in gpus] or list(range(size))
    half = -(-size // 2)
    top = NODE[1] + 34 + (_PAD if numa else 0)
    low = top + BAR + 34 + (_PAD if numa else 0)
    spots: dict[int, Point] = {}
    runs: list[list[int]] = []
    for row, gpus in enumerate((order[:half], order[half:])):
        x = NODE[0] / 2
        for at, gpu in enumerate(gpus):
            new = at == 0 or machine.gpus[gpu].numa != machine.gpus[gpus[at - 1]].numa
            if new:
                runs.append([])
            runs[-1].append(gpu)
            if at:
                x += NODE[0] + _GAP + (2 * _PAD if new and numa else 0)
            spots[gpu] = (x, NODE[1] / 2 + row * low)
    found = Places(spots=spots)
    right = max(x for x, _y in spots.values()) + NODE[0] / 2
    everything = tuple(range(size))
    bar = Bar(
        gpus=everything,
        link=_joined(machine, everything),
        switch=True,
        at=(0, top),
        width=right,
    )
    found.bars.append(bar)
    for gpu, (x, y) in spots.items():
        start, end = (
            ((x, y + NODE[1] / 2), (x, top)) if y < top else ((x, y - NODE[1] / 2), (x, top + BAR))
        )
        found.stubs.append(Stub(gpus=(gpu,), bar=bar, points=(start, end)))
    for run in runs if numa else ():
        x, y = spots[run[0]]
        foot = y > top
        found.frames.append(
            Frame(
                words=f"NUMA {machine.gpus[run[0]].numa}",
                at=(x - NODE[0] / 2 - _PAD, y - NODE[1] / 2 - _PAD - (0 if foot else _LABEL)),
                size=(
                    spots[run[-1]][0] - x + NODE[0] + 2 * _PAD,
                    NODE[1] + 2 * _PAD + _LABEL,
                ),
                foot=foot,
            )
        )
    return found


# ---------------------------------------------------------------- meshes


def _mesh(machine: Machine) -> Places:
    """Every part that NVLinks hold together, side by side; GPUs without NVLink in a block."""
    parts = _parts(machine)
    alone = [gpu for part in parts if len(part) == 1 for gpu in part]
    blocks = [_shaped(machine, part) for part in parts if len(part) > 1]
    if alone:
        blocks.append(
            {gpu: (at // 2 * (NODE[0] + 20), at % 2 * _PITCH[1]) for at, gpu in enumerate(alone)}
        )
    spots: dict[int, Point] = {}
    x = 0.0
    for block in blocks:
        left = min(at for at, _y in block.values()) - NODE[0] / 2
        up = min(y for _x, y in block.values()) - NODE[1] / 2
        spots |= {gpu: (at - left + x, y - up) for gpu, (at, y) in block.items()}
        x = max(at for at, _y in spots.values()) + NODE[0] / 2 + 60
    found = Places(spots=spots, mesh=True)
    found.frames = _boxes(machine, spots)
    lanes = packing.lanes(machine.links)
    for one, other in combinations(range(len(lanes)), 2):
        if lanes[one][other]:
            found.path(one, other)
    return found


def _parts(machine: Machine) -> list[list[int]]:
    """The GPUs that hang together by NVLink."""
    lanes = packing.lanes(machine.links)
    parts: list[list[int]] = []
    left = list(range(len(lanes)))
    while left:
        part = [left.pop(0)]
        for gpu in part:
            near = [other for other in left if lanes[gpu][other]]
            part += near
            left = [other for other in left if other not in near]
        parts.append(sorted(part))
    return parts


def _shaped(machine: Machine, part: Sequence[int]) -> dict[int, Point]:
    """One part of a mesh; its upper left corner is anywhere."""
    size = len(part)
    if size == 2:  # noqa: PLR2004 a line
        return {part[0]: (0, 0), part[1]: (NODE[0] + 84, 0)}
    if size == _QUAD:
        return _square(machine, part)
    if size == 2 * _QUAD and (quads := _quads(machine, part)):
        return quads
    # So far apart that a line to the next but one passes a GPU's box.
    radius = max(110.0, size * 120 / (2 * math.pi))
    turn = 2 * math.pi / size
    return {
        gpu: (
            round(1.15 * radius * math.sin(at * turn), 1),
            round(-radius * math.cos(at * turn), 1),
        )
        for at, gpu in enumerate(part)
    }


_CORNERS = ((0, 0), (1, 0), (1, 1), (0, 1))


def _square(machine: Machine, part: Sequence[int]) -> dict[int, Point]:
    """Four GPUs, those of one NUMA node in a column."""
    numa = sorted(part, key=lambda gpu: (machine.gpus[gpu].numa or 0, gpu))
    order = (numa[0], numa[2], numa[3], numa[1])
    wide = 1.3 * _PITCH[0]
    return {gpu: (x * wide, y * _PITCH[1]) for gpu, (x, y) in zip(order, _CORNERS, strict=True)}


def _quads(machine: Machine, part: Sequence[int]) -> dict[int, Point] | None:
    """Two quads whose GPUs are joined one to one, as in a DGX-1; None where it is no such mesh.

    The drawing is NVIDIA's (DGX-1 system architecture white paper, figure 4): partners lie on one
    line, the inner ones side by side.
    """
    lanes = packing.lanes(machine.links)

    def full(gpus: Iterable[int]) -> bool:
        return all(lanes[one][other] for one, other in combinations(gpus, 2))

    first, *rest = part
    for others in combinations(rest, _QUAD - 1):
        left = [first, *others]
        right = [gpu for gpu in part if gpu not in left]
        if not (full(left) and full(right)):
            continue
        partner = {gpu: [other for other in right if lanes[gpu][other]] for gpu in left}
        if sorted(tuple(one) for one in partner.values()) != [(gpu,) for gpu in right]:
            continue
        # Opposite corners: the pair with the fewest lanes, as diagonals cross.
        opposite = min(
            (others[1], others[0], others[2]),
            key=lambda gpu: (
                lanes[first][gpu] + lanes[min(set(others) - {gpu})][max(set(others) - {gpu})]
            ),
        )
        second, last = sorted(set(others) - {opposite})
        spots: dict[int, Point] = {}
        columns = (0.0, _PITCH[0], _PITCH[0] + _BETWEEN, 2 * _PITCH[0] + _BETWEEN)
        for gpu, (x, y) in zip((first, second, opposite, last), _CORNERS, strict=True):
            spots[gpu] = (columns[x], y * _PITCH[1])
            spots[partner[gpu][0]] = (columns[3 - x], y * _PITCH[1])
        return spots
    return None


def _boxes(machine: Machine, spots: dict[int, Point]) -> list[Frame]:
    """A frame around the GPUs of each NUMA node; none where they would overlap."""
    frames = []
    for numa, gpus in _numa(machine).items():
        left = min(spots[gpu][0] for gpu in gpus) - NODE[0] / 2 - _PAD
        right = max(spots[gpu][0] for gpu in gpus) + NODE[0] / 2 + _PAD
        top = min(spots[gpu][1] for gpu in gpus) - NODE[1] / 2 - _PAD - _LABEL
        bottom = max(spots[gpu][1] for gpu in gpus) + NODE[1] / 2 + _PAD
        frames.append(
            Frame(words=f"NUMA {numa}", at=(left, top), size=(right - left, bottom - top))
        )
    for one, other in combinations(frames, 2):
        if (
            one.at[0] < other.at[0] + other.size[0]
            and other.at[0] < one.at[0] + one.size[0]
            and one.at[1] < other.at[1] + other.size[1]
            and other.at[1] < one.at[1] + one.size[1]
        ):
            return []
    return frames
