"""The GPUs in the labels of a node -> Machine, or why they cannot be placed by links.

The GPU product and count match a well-known machine, or tell the model only. GPUs that are divided
or shared have no links of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from arena_topo.numbers import parse_count
from arena_topo.topology import GPU, Knowledge, Machine, flat, presets
from arena_topo.topology.models import model_of
from arena_topo.topology.published import SCHEDULE_LABEL

PRODUCT_LABELS = ("nvidia.com/gpu.product", "aliyun.accelerator/nvidia_name")
"""Set by NVIDIA's GPU feature discovery, and by ACK."""

REPLICAS_LABEL = "nvidia.com/gpu.replicas"
"""How many times the device plugin offers each GPU (GPU feature discovery)."""

_SHARED_SCHEDULES = frozenset({"share", "cgpu", "core_mem"})
"""Values of ACK's schedule label for GPUs that are divided by memory or compute."""

_MIG_COUNT = re.compile(r"nvidia\.com/mig-[^/]+\.count")


def machine_from_labels(name: str, labels: Mapping[str, str], count: int) -> Machine:
    """The machine of a node with labels for GPU product and count only.

    The links of a well-known board are marked assumed. Otherwise the machine is unknown, and every
    link is SYS. Divided or shared GPUs never count as a well-known board.
    """
    product = next((labels[label] for label in PRODUCT_LABELS if labels.get(label)), None)
    if product and why_shared(labels) is None:
        preset = presets.known_machine(product, count, name)
        if preset is not None:
            return preset
    model = model_of(re.sub(r"-(?:MIG-.*|SHARED)$", "", product) if product else None)
    return Machine(
        name=name,
        gpus=tuple(GPU(index=index, model=model) for index in range(count)),
        links=flat(count),
        knowledge=Knowledge.UNKNOWN,
    )


def why_shared(labels: Mapping[str, str]) -> str | None:
    """Why a node's GPUs are not whole (MIG, time slices, gpushare), or None if they are."""
    return next(_reasons(labels), None)


def _reasons(labels: Mapping[str, str]) -> Iterator[str]:
    product = labels.get("nvidia.com/gpu.product", "")
    if "-MIG-" in product:
        yield f"MIG slices ({product})"
    config = labels.get("nvidia.com/mig.config", "")
    if config not in {"", "all-disabled"}:
        yield f"MIG is configured ({config})"
    for label in sorted(labels):
        if _MIG_COUNT.fullmatch(label) and _int(labels[label]) > 0:
            yield f"MIG slices ({label.removeprefix('nvidia.com/').removesuffix('.count')})"
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "")
    if strategy not in {"", "none"}:
        yield f"GPUs are shared ({strategy})"
    if product.endswith("-SHARED"):
        yield f"GPUs are shared ({product})"
    replicas = _int(labels.get(REPLICAS_LABEL, ""))
    if replicas > 1:
        yield f"GPUs are shared ({replicas} replicas of each)"
    for label in ("gpushare", "cgpu"):
        if labels.get(label) == "true":
            yield f"GPUs are shared ({label})"
    schedule = labels.get(SCHEDULE_LABEL, "")
    if schedule in _SHARED_SCHEDULES:
        yield f"GPUs are shared ({SCHEDULE_LABEL}={schedule})"


def _int(text: str) -> int:
    return parse_count(text) or 0
