"""The request of a job to the solver, as the annotation of its MPIJob has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arena_topo.job import MPIJob

REQUEST_KEYS = {
    "model": "gpu_model",
    "mixModels": "mix_models",
    "minBandwidthGBps": "min_bandwidth",
    "maxNodes": "max_nodes",
    "required": "topology_required",
    "preferred": "topology_preferred",
    "policy": "policy",
    "packAbove": "pack_above",
    "binding": "binding",
    "podShape": "pod_shape",
    "gangTimeout": "gang_timeout",
    "patience": "patience",
    "onNodeLoss": "on_node_loss",
    "ncclHca": "nccl_hca",
    "workload": "workload",
    "batch": "batch",
    "gradientBytes": "gradient_bytes",
    "stepTime": "step_time",
}
"""The keys of the annotation, and the field of each."""


def request_annotation(job: MPIJob) -> str:
    """The annotation of a job: its size, and the placement flags that are not the default."""
    request: dict[str, Any] = {"workers": job.workers, "gpus": job.gpus}
    for key, name in REQUEST_KEYS.items():
        value = getattr(job, name)
        if value != type(job).__dataclass_fields__[name].default:
            request[key] = value if isinstance(value, bool | int | float) else str(value)
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False)


_TRAINING = {"workload", "batch", "gradientBytes", "stepTime"}


def training_request(request: str | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part of a request about its training, and its size; None if it names no training."""
    known = json.loads(request) if isinstance(request, str) else request
    if not known.get("workload") and not known.get("gradientBytes"):
        return None
    return {key: known[key] for key in ("workers", "gpus", *_TRAINING) if key in known}
