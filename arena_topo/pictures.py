"""Whatever can be drawn, as SVG: a plan, a machine, the network of a cluster."""

from __future__ import annotations

from arena_topo.drawing import machine_svg
from arena_topo.drawing.machine import State
from arena_topo.topology import Cluster, Machine


def any_of(shown: object) -> str:
    """Draw what `plan` proposes, a machine, or the network of a cluster, as SVG.

    UsageError for a proposal of a job without GPUs, what refused it for one that does not fit,
    TypeError for anything else.
    """
    if isinstance(shown, Machine):
        return machine_svg.draw(State(machine=shown))
    if isinstance(shown, Cluster):
        from arena_topo.drawing import network  # noqa: PLC0415 - only for networks

        return network.svg(shown)
    from arena_topo.gang.comparison import Proposal  # noqa: PLC0415 - reads the solver
    from arena_topo.jobs.plan_picture import drawn  # noqa: PLC0415 - reads the solver

    if isinstance(shown, Proposal):
        return drawn(shown)
    raise TypeError(f"no picture can be made of a {type(shown).__name__}")
