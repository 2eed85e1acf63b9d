"""`forecast`: the bandwidth that NCCL reaches on GPUs of a machine and between machines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from arena_topo.cli.arguments import Output, PictureOutputFlag, document
from arena_topo.cli.options import PROGRAM, Globals, display, show, spread, tell
from arena_topo.cli.terminal import draws
from arena_topo.errors import UsageError
from arena_topo.files import STDIN
from arena_topo.flag import Word
from arena_topo.forecast import ForecastRequest

if TYPE_CHECKING:
    from arena_topo.topology import Machine


@spread
def forecast(
    target: Annotated[
        str,
        typer.Argument(metavar="MACHINE", show_default=False),
        Word(completes="presets nodes files"),
    ],
    everywhere: Globals,
    request: ForecastRequest,
    output_format: PictureOutputFlag = Output.WIDE,
) -> None:
    """Say what bandwidth NCCL reaches on GPUs of a machine, and between such machines.

    MACHINE is a preset (topology presets), an instance type of a cloud, a node of the cluster, or a
    file: nvidia-smi topo -m, XML of NCCL, or JSON of topology show. The number is what
    nccl-tests would report as bus bandwidth of an all-reduce of large messages.

    Examples:
      # All-reduce on eight H100 of one machine
      forecast hgx-h100
      # Between two of these machines
      forecast hgx-h100 --nodes 2
    """
    from arena_topo.forecast import forecasting  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.forecast import view as shown  # noqa: PLC0415 - not for help

    result = forecasting.forecast(_machine(target, everywhere), request)
    beside = forecasting.against(result, request.against) if request.against else None
    if output_format is Output.SVG:
        from arena_topo.forecast.picture import forecast as drawn  # noqa: PLC0415 - as above

        show(drawn(result, beside))
    elif output_format is Output.WIDE:
        display(shown.text(result, beside, unicode=draws()))
    else:
        show(document(shown.value(result, beside), output_format))


def _machine(target: str, everywhere: Globals) -> Machine:
    """The machine with this name: a preset, an instance type, a file, a node."""
    from arena_topo.cli.opening import cluster_of, node_or_preset  # noqa: PLC0415 - only here
    from arena_topo.engines import machines  # noqa: PLC0415 - only for files
    from arena_topo.topology import Node, presets  # noqa: PLC0415 - reads the matrices

    if not target:
        raise UsageError("no machine is named", hint=f"{PROGRAM} topology presets lists machines")
    if target in presets.names():
        return presets.machine(target, target)
    known = presets.instance_type(target)
    if known is not None:
        return known
    # Path would raise for an impossible file name.
    if target == STDIN or os.path.isfile(target):  # noqa: PTH113 - see above
        reading = machines.read(target)
        tell(reading.notes)
        return reading.machine
    cluster = cluster_of((), "", everywhere)
    node = node_or_preset(target, cluster)
    return node.machine if isinstance(node, Node) else node
