"""`forecast`: the bandwidth that NCCL reaches on GPUs of a machine and between machines."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from arena_topo.cli.arguments import Output, PictureOutputFlag, format_document
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import calibrations_of_option
from arena_topo.errors import UsageError
from arena_topo.files import STDIN
from arena_topo.flag import Word
from arena_topo.forecast import ForecastRequest
from arena_topo.job import PodShape

if TYPE_CHECKING:
    from arena_topo.topology import Machine


@command_from_records
def forecast_command(
    target: Annotated[str, Word("MACHINE", "presets nodes files")],
    session: Session,
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
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    console = session.console
    sold = presets.INSTANCES.get(presets.instance_type_name(target) or "")
    if sold is not None and not sold.rdma and not (request.tcp or request.nics):
        if request.nodes > 1:
            console.note(f"nodes of type {target} have no RDMA, so they communicate over TCP")
        request = replace(request, tcp=True)
    if sold is not None and sold.plugin and _over_nics(request) and request.plugin is None:
        console.note(
            f"nodes of type {target} have RDMA with the plug-in {sold.plugin} of NCCL, which this"
            " forecast takes for granted; --plugin names another"
        )
        request = replace(request, plugin=sold.plugin)
    machine = machine_of(target, session)
    pools = calibrations_of_option(request.calibration, session)
    result = forecasting.forecast(machine, request, pools)
    beside = forecasting.against(result, request.against) if request.against else None
    if output_format is Output.SVG:
        from arena_topo.forecast.picture import forecast_svg as drawn  # noqa: PLC0415 - as above

        console.write(drawn(result, beside))
    elif output_format is Output.WIDE:
        console.screen(shown.forecast_text(result, beside, unicode=console.unicode()))
    else:
        console.write(format_document(shown.forecast_json(result, beside), output_format))


def _over_nics(request: ForecastRequest) -> bool:
    """Whether the hosts of a forecast reach each other over NICs with RDMA."""
    several = request.nodes > 1 or request.pod_shape is PodShape.SEPARATE
    return several and not request.tcp


def machine_of(target: str, session: Session) -> Machine:
    """The machine with this name: a preset, an instance type, a file, a node."""
    from arena_topo.cli.targets import cluster_of, node_or_preset  # noqa: PLC0415 - only here
    from arena_topo.engines import machines  # noqa: PLC0415 - only for files
    from arena_topo.topology import Node, presets  # noqa: PLC0415 - reads the matrices

    if not target:
        raise UsageError("no machine is named", hint=f"{PROGRAM} topology presets lists machines")
    if target in presets.preset_names():
        return presets.preset_machine(target, target)
    known = presets.instance_type(target)
    if known is not None:
        return known
    # Path would raise for an impossible file name.
    if target == STDIN or os.path.isfile(target):  # noqa: PTH113 - see above
        reading = machines.read_description(target)
        session.console.notes(reading.notes)
        return reading.machine
    cluster = cluster_of(session)
    node = node_or_preset(target, cluster, others=presets.INSTANCES)
    return node.machine if isinstance(node, Node) else node
