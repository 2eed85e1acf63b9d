"""A machine drawn as SVG: its GPUs, and the links between them.

Links that form a tree, or a switch, are boxes around their GPUs. NVLinks from GPU to GPU are lines
between GPUs on a circle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from arena_topo.bandwidth import packing
from arena_topo.drawing.machine import (
    BROKEN,
    CHOSEN,
    DOUBT,
    FREE,
    LinkGroup,
    MachineState,
    link_text,
    link_tree,
    nics_text,
    numa_groups,
)
from arena_topo.drawing.sheet import SMALL_TEXT, Sheet, SheetPoint, frame_sheet, lines, stack
from arena_topo.manifests import estimates
from arena_topo.solver.door import sets_of
from arena_topo.topology import Knowledge, Link, LinkKind, Machine, members

LEAST = 470.0
"""The least width in pixels of a line of text, on a machine that is narrower."""

_WIDE, _HIGH = 62.0, 44.0
"""Width and height of a GPU's box in pixels."""

_LANE, _THICKEST = 2.5, 10.0
"""Pixels of width of a line between two GPUs for each NVLink, and their maximum."""

_ROW = 360.0
"""Pixels of a row of boxes: four GPUs, or two pairs."""

_CSS = {CHOSEN: "on", "": "node", FREE: "node", DOUBT: "node doubt", BROKEN: "broken"}
_USED = "used"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRanks:
    """The ranks that a job puts on the chosen GPUs; `poor` if better GPUs are known."""

    of: Mapping[int, int] = field(default_factory=dict)
    poor: bool = False


def draw_machine_svg(state: MachineState, *, notes: Sequence[str] = ()) -> str:
    """Draw a machine as SVG; `notes` are sentences below it."""
    name, what = state.machine.name, state.what
    drawn = machine_figure(state)
    room = max(drawn.size[0], LEAST)
    cards = nics_text(state.machine)
    captions = [*([f"NICs and their nearest GPUs: {'; '.join(cards)}"] if cards else []), *notes]
    sheet = stack(
        [
            lines([(name, "head"), (what, "dim")], room),
            drawn,
            draw_legend(state.machine, room),
            lines([(note, "small dim") for note in captions], room),
        ]
    )
    return sheet.finish(f"{name}: {what}", " ".join(("How its GPUs are linked.", *notes)))


def machine_figure(state: MachineState, ranks: PlacedRanks | None = None) -> Sheet:
    """The GPUs of a machine and their links; the links of the chosen GPUs are marked."""
    machine = state.machine
    of = ranks or PlacedRanks()
    if _meshed(machine):
        return _mesh(state, of)
    every = tuple(range(len(machine.gpus)))
    levels = link_tree(machine)
    # Links that form neither a tree nor a mesh of NVLinks are only counted: the matrix shows them.
    groups = (
        [LinkGroup(gpus=every, link=min(_links(machine)))] if levels is None else sum(levels, ())
    )
    numa = [LinkGroup(gpus=gpus, numa=at) for at, gpus in numa_groups(machine).items()]
    if all(_nest(set(group.gpus), set(two.gpus)) for group in numa for two in groups):
        groups = [*numa, *groups]
    boxes: dict[tuple[int, ...], list[LinkGroup]] = {}
    for group in sorted(groups, key=lambda group: len(group.gpus)):
        boxes.setdefault(group.gpus, []).append(group)
    chosen = set(members(state.chosen))
    lit = next((gpus for gpus in boxes if len(chosen) > 1 and chosen <= set(gpus)), ())
    return _nested(every, boxes, state, of, lit)


def _nest(group: set[int], other: set[int]) -> bool:
    """Whether two boxes can be drawn without crossing each other."""
    return group <= other or other <= group or not group & other


def draw_legend(machine: Machine, room: float) -> Sheet:
    """The legend of the lines of a mesh."""
    sheet = Sheet()
    if not _meshed(machine):
        return sheet
    y = 0.0
    pcie = []
    for link in sorted(_links(machine)):
        sentence = f"{link_text(link)} ({link}), {_rate(link, machine)}"
        if link.kind is not LinkKind.NVLINK:
            pcie.append(sentence)
            continue
        sheet.line(((0, y + 8), (34, y + 8)), "link", thick=_thickness(link))
        sheet.text((42, y + 12), sentence, "small dim", size=SMALL_TEXT)
        y += 20
    if pcie:
        sheet.line(((0, y + 8), (34, y + 8)), "link dashed")
        words = lines([(f"other pairs: {'; '.join(reversed(pcie))}", "small dim")], room - 42)
        sheet.inset(words, (42, y + 1))
    return sheet


def _links(machine: Machine) -> set[Link]:
    return {machine.link(*pair) for pair in combinations(range(len(machine.gpus)), 2)}


def _rate(link: Link, machine: Machine) -> str:
    facts = sets_of(machine).facts
    nvlink = link.kind is LinkKind.NVLINK
    return (
        f"{estimates.gbps_text(link.lanes * facts.lane_rate if nvlink else facts.rate(link))} GB/s"
    )


def _gpu(sheet: Sheet, at: SheetPoint, gpu: int, word: str, ranks: PlacedRanks) -> None:
    """The box of a GPU around a point."""
    x, y = at
    css = _CSS.get(word, _USED)
    if word == CHOSEN and ranks.poor:
        css = "poor"
    ink = " on-text" if css in {"on", "poor"} else " used-text" if css == _USED else ""
    sheet.box((x - _WIDE / 2, y - _HIGH / 2), (_WIDE, _HIGH), css, corner=7)
    sheet.text((x, y + (-2 if word else 4.5)), f"GPU {gpu}", f"strong middle{ink}")
    if word:
        sentence = f"rank {ranks.of[gpu]}" if word == CHOSEN and gpu in ranks.of else word
        sheet.text((x, y + 14), sentence, f"small middle{ink}", size=SMALL_TEXT)


# ---------------------------------------------------------------- boxes in boxes


def _nested(
    gpus: Sequence[int],
    groups: Mapping[tuple[int, ...], Sequence[LinkGroup]],
    state: MachineState,
    ranks: PlacedRanks,
    lit: tuple[int, ...],
) -> Sheet:
    """Some GPUs, and boxes around those with a common link."""
    parts: list[Sheet] = []
    left = list(gpus)
    while left:
        around = [own for own in groups if left[0] in own and set(own) <= set(left)]
        if around:
            inner = max(around, key=len)
            rest = {own: joins for own, joins in groups.items() if own != inner}
            css = "frame" if inner != lit else "poor-frame" if ranks.poor else "on-frame"
            content = _nested(inner, rest, state, ranks, lit)
            parts.append(frame_sheet(content, _label(groups[inner], state.machine), css))
            left = [gpu for gpu in left if gpu not in inner]
        else:
            sheet = Sheet()
            _gpu(sheet, (0, 0), left[0], state.words[left[0]], ranks)
            parts.append(sheet)
            left = left[1:]
    most = max(1, int(_ROW / max(part.size[0] for part in parts)))
    row = -(-len(parts) // -(-len(parts) // most))
    rows = [stack(parts[at : at + row], across=True) for at in range(0, len(parts), row)]
    return stack(rows)


def _label(groups: Sequence[LinkGroup], machine: Machine) -> str:
    """The common link of the GPUs of a box: `NUMA 0: one NUMA node (NODE), 19.9 GB/s`."""
    phrases = []
    for group in groups:
        if group.link is None:
            phrases.append(group.word)
            continue
        rate = _rate(group.link, machine)
        if group.switch:
            phrases.append(f"NVSwitch: {group.link.lanes} NVLinks each, {rate}")
        elif machine.knowledge is Knowledge.UNKNOWN:
            phrases.append(f"not known, {rate}")
        elif len(group.gpus) > 2:  # noqa: PLR2004 there is no room for more below two GPUs
            phrases.append(f"{link_text(group.link)} ({group.link}), {rate}")
        else:
            phrases.append(f"{group.link}, {rate}")
    return ": ".join(phrases)


# ---------------------------------------------------------------- lines


def _meshed(machine: Machine) -> bool:
    """Whether more than two GPUs are linked by NVLinks of their own."""
    lanes = packing.lanes(machine.links)
    parts = packing.components(range(len(lanes)), lambda first, other: lanes[first][other] > 0)
    return not machine.nvswitch and any(len(part) > 2 for part in parts)  # noqa: PLR2004


def _mesh(state: MachineState, ranks: PlacedRanks) -> Sheet:
    machine = state.machine
    spots = _circle(machine)
    sheet = Sheet()
    css = "slow" if ranks.poor else "lit"
    chosen = set(members(state.chosen))
    others = "faint" if chosen else "link"
    # Marked lines are drawn above the others.
    for pair in sorted(combinations(spots, 2), key=lambda pair: set(pair) <= chosen):
        if (link := machine.link(*pair)).kind is LinkKind.NVLINK:
            shown = css if set(pair) <= chosen else others
            sheet.line([spots[gpu] for gpu in pair], shown, thick=_thickness(link))
    for first, other in _off_nvlink(state):
        sheet.line((spots[first], spots[other]), f"{css} dashed", thick=3)
    for gpu, spot in spots.items():
        _gpu(sheet, spot, gpu, state.words[gpu], ranks)
    return sheet


def _thickness(link: Link) -> float:
    return min(_THICKEST, _LANE * link.lanes)


def _off_nvlink(state: MachineState) -> list[tuple[int, int]]:
    """The pairs of the best ring of the chosen GPUs that have no NVLink."""
    ring = sets_of(state.machine).order(state.chosen) if state.chosen else ()
    pairs = {(min(pair), max(pair)) for pair in pairwise((*ring, *ring[:1])) if len(set(pair)) > 1}
    return sorted(pair for pair in pairs if state.machine.link(*pair).kind is not LinkKind.NVLINK)


def _circle(machine: Machine) -> dict[int, SheetPoint]:
    """GPUs on a circle, those of a NUMA node side by side, the first at the upper left."""
    order = sorted(range(len(machine.gpus)), key=lambda gpu: (machine.gpus[gpu].numa or 0, gpu))
    # A line to the next but one must pass beside the box of the GPU between them.
    radius = max(110.0, len(order) * 120 / (2 * math.pi))
    turn = 2 * math.pi / len(order)
    return {
        gpu: (
            round(-1.15 * radius * math.sin((at + 0.5) * turn), 1),
            round(-radius * math.cos((at + 0.5) * turn), 1),
        )
        for at, gpu in enumerate(order)
    }
