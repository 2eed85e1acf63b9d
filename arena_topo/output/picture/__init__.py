"""Machines, placements and networks as pictures: SVG text out of values.

    sheet       shapes in layers, text that fits, the look in light and dark
    places      where the GPUs of a machine stand, and how lines get from one to another
    figure      one machine, and the rings that a choice of its GPUs gives
    placement   what `plan` proposes, beside the first GPUs by index
    fabric      the network as a tree, with free GPUs
    forecast    bandwidth over message size, and what was measured

A picture is one file that needs nothing else: no script, no font, nothing from elsewhere. It has
the colours of the reader's screen, light or dark (`prefers-color-scheme`), a title and a
description for those who do not see it, and the same bytes for the same values.
"""

from __future__ import annotations

from arena_topo.output.picture.figure import counted, draw, draw_key, heading, key, states
from arena_topo.output.picture.sheet import Sheet, wrapped
from arena_topo.topology import Cluster, GPUSet, Machine


def machine(
    machine: Machine,
    *,
    free: GPUSet | None = None,
    hidden: int = 0,
    broken: GPUSet | None = None,
    away: str | None = None,
    notes: tuple[str, ...] = (),
) -> str:
    """Draw the GPUs of a machine and the links between them, as SVG.

    The arguments are those of `drawing.machine`; `notes` are sentences that stand below.
    """
    said = states(machine, free=free, hidden=hidden, broken=broken, away=away)
    drawn = draw(machine, said)
    sheet = Sheet()
    left, _top, right, _bottom = drawn.edges
    room = max(right - left, 360)
    sheet.text((0, 14), machine.name, "head", room=room, size=17)
    what = heading(machine) + (f"; {counted(said)}" if counted(said) else "")
    y = 36.0
    for line in wrapped(what, room):
        sheet.text((0, y), line, "dim")
        y += 18
    _wide, high = sheet.inset(drawn, (0, y + 6))
    y += high + 24
    y = draw_key(sheet, key(machine), (0, y), room) if key(machine) else y
    for note in notes:
        for line in wrapped(note, room, 12):
            sheet.text((0, y + 10), line, "small dim", size=12)
            y += 17
    return sheet.finish(f"{machine.name}: {what}", " ".join((_told(machine), *notes)))


def any_of(shown: object) -> str:
    """Draw what `plan` proposes, a machine, or the network of a cluster, as SVG.

    UsageError for a proposal of a job without GPUs, what refused it for one that does not fit,
    TypeError for anything else.
    """
    if isinstance(shown, Machine):
        return machine(shown)
    if isinstance(shown, Cluster):
        from arena_topo.output.picture.network import fabric  # noqa: PLC0415 - only for networks

        return fabric(shown)
    from arena_topo.output.picture.placement import drawn  # noqa: PLC0415 - reads the solver
    from arena_topo.workflow.comparison import Proposal  # noqa: PLC0415 - reads the solver

    if isinstance(shown, Proposal):
        return drawn(shown)
    raise TypeError(f"no picture can be made of a {type(shown).__name__}")


def _told(machine: Machine) -> str:
    return "How the GPUs of this machine are linked." if machine.gpus else "There are no GPUs."
