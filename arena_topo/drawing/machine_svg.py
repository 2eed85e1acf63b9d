"""One machine as a picture: its GPUs, and the links between them."""

from __future__ import annotations

from arena_topo.drawing.figure import counted, draw, draw_key, heading, key, states
from arena_topo.drawing.sheet import Sheet, wrapped
from arena_topo.topology import GPUSet, Machine


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


def _told(machine: Machine) -> str:
    return "How the GPUs of this machine are linked." if machine.gpus else "There are no GPUs."
