"""The bandwidth that NCCL reaches on GPUs of a machine and between machines.

command           the command forecast
forecasting       a machine and a request -> a forecast; its comparison with a log
view              a forecast as text and as JSON
picture           a forecast as SVG
calibrating       the command calibrate
measurements      measured placements in files -> values
calibration_view  a calibration as text, and how it was made as JSON
"""

from __future__ import annotations

from dataclasses import dataclass

from arena_topo.bandwidth import Algorithm
from arena_topo.cli.arguments import option
from arena_topo.cli.site_flags import CalibrationFlag, NoGDRFlag, NoP2PFlag, PluginFlag
from arena_topo.job import BatchFlag, GradientBytesFlag, PodShape, StepTimeFlag, WorkloadFlag


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """The part of a request about machines alike: their NICs, their software, the training."""

    nics: str = option(
        "",
        "Network cards of each node instead of its own: 8x400G (Gb/s) or 8x50GB (GB/s).",
        "COUNTxSPEED",
    )
    gpu_model: str = option(
        "",
        "The GPU model, for files that do not tell it: nvidia-smi topo -m never does.",
        "MODEL",
        completes="models",
    )
    tcp: bool = option(False, "Hosts talk over TCP: pods get no RDMA device.")
    no_p2p: NoP2PFlag = False
    no_gdr: NoGDRFlag = False
    plugin: PluginFlag = None
    workload: WorkloadFlag = ""
    batch: BatchFlag = None
    gradient_bytes: GradientBytesFlag = None
    step_time: StepTimeFlag = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest(PoolRequest):
    """The request of a forecast on the command line: GPUs of a node, and how many equal nodes."""

    gpus: int | None = option(
        None, "GPUs of each node, the best ones (default all).", excludes=("--set",)
    )
    chosen: str = option("", "These GPUs of each node, by index.", "0,1,...", name="--set")
    nodes: int = option(1, "How many nodes alike take part.")
    pod_shape: PodShape = option(
        PodShape.SHARED,
        "A pod for each GPU, which NCCL takes for a host (separate), or one host for the GPUs of a"
        " node (the others).",
    )
    algorithm: Algorithm | None = option(
        None, "The algorithm that NCCL_ALGO forces (default its own choice)."
    )
    calibration: CalibrationFlag = ()
    against: str = option(
        "",
        "Compare it with this output of nccl-tests, text or JSON; - is standard input.",
        "FILE",
        completes="files",
    )
