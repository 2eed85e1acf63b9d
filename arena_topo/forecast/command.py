"""`forecast`: what NCCL reaches on GPUs of a machine and between machines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from arena_topo.bandwidth import Algorithm, Wire
from arena_topo.cli.arguments import PANEL, Output, PictureOutputFlag, document
from arena_topo.cli.options import Globals, display, show, spread, tell
from arena_topo.cli.terminal import draws
from arena_topo.files import STDIN
from arena_topo.flag import Flag, Word
from arena_topo.job import PodShape

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
    *,
    gpus: Annotated[
        int | None,
        Flag(
            help="GPUs of each node, the best ones (default all).",
            panel=PANEL,
            excludes=("--set",),
        ),
    ] = None,
    chosen: Annotated[
        str,
        Flag(
            help="These GPUs of each node, by index.", name="--set", panel=PANEL, metavar="0,1,..."
        ),
    ] = "",
    nodes: Annotated[int, Flag(help="How many nodes alike take part.", panel=PANEL)] = 1,
    nics: Annotated[
        str,
        Flag(
            help="Network cards of each node instead of its own: 8x400G (Gb/s) or 8x50GB (GB/s).",
            panel=PANEL,
            metavar="COUNTxSPEED",
        ),
    ] = "",
    gpu_model: Annotated[
        str,
        Flag(
            help="The GPU model, for files that do not tell it: nvidia-smi topo -m never does.",
            panel=PANEL,
            metavar="MODEL",
            completes="models",
        ),
    ] = "",
    tcp: Annotated[
        bool, Flag(help="Hosts talk over TCP: pods get no RDMA device.", panel=PANEL)
    ] = False,
    pod_shape: Annotated[
        PodShape,
        Flag(
            help="A pod for each GPU, which NCCL takes for a host (separate), or one host for the"
            " GPUs of a node (the others).",
            panel=PANEL,
        ),
    ] = PodShape.SHARED,
    algorithm: Annotated[
        Algorithm | None,
        Flag(help="The algorithm that NCCL_ALGO forces (default its own choice).", panel=PANEL),
    ] = None,
    against: Annotated[
        str,
        Flag(
            help="Compare it with this output of nccl-tests, text or JSON; - is standard input.",
            panel=PANEL,
            metavar="FILE",
            completes="files",
        ),
    ] = "",
    output_format: PictureOutputFlag = Output.WIDE,
) -> None:
    """Say what bandwidth NCCL reaches on GPUs of a machine, and between such machines.

    MACHINE is a preset (topology presets), an instance type of a cloud, a node of the cluster, or a
    file: nvidia-smi topo -m, XML of NCCL, or JSON of topology show. The number is what
    nccl-tests would report as bus bandwidth of an all-reduce of large messages.
    """
    from arena_topo.forecast import forecasting  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.forecast import view as shown  # noqa: PLC0415 - not for help

    found = forecasting.forecast(
        _machine(target, everywhere),
        forecasting.Asked(
            gpus=gpus,
            chosen=chosen,
            nodes=nodes,
            nics=nics,
            pod_shape=pod_shape,
            algorithm=algorithm,
            wire=Wire.TCP if tcp else None,
            model=gpu_model,
        ),
    )
    beside = forecasting.against(found, against) if against else None
    if output_format is Output.SVG:
        from arena_topo.forecast.picture import forecast as drawn  # noqa: PLC0415 - as above

        show(drawn(found, beside))
    elif output_format is Output.WIDE:
        display(shown.text(found, beside, unicode=draws()))
    else:
        show(document(shown.value(found, beside), output_format))


def _machine(target: str, everywhere: Globals) -> Machine:
    """The machine of that name: a preset, an instance type, a file, a node."""
    from arena_topo.cli.machines import cluster_of, node_or_preset  # noqa: PLC0415 - only here
    from arena_topo.engines import machines  # noqa: PLC0415 - only for files
    from arena_topo.topology import Node, instances, presets  # noqa: PLC0415 - reads the matrices

    if target in presets.names():
        return presets.machine(target, target)
    known = instances.machine(target)
    if known is not None:
        return known
    # Path would raise for a name that no file can have.
    if target == STDIN or os.path.isfile(target):  # noqa: PTH113 - see above
        found = machines.read(target)
        tell(found.notes)
        return found.machine
    cluster = cluster_of((), "", everywhere)
    node = node_or_preset(target, cluster)
    return node.machine if isinstance(node, Node) else node
