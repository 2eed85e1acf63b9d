"""What the GPUs of this machine do now, as NVML tells it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from arena_topo.engines import JobStatus, unheard
from arena_topo.engines.local import seating
from arena_topo.engines.metrics import GpuSample

Holders = Mapping[int, tuple[str, str]]
"""Namespace and pod that have each GPU (by index)."""


def holders(jobs: tuple[JobStatus, ...], node: str) -> Holders:
    """Which pods have which GPUs of a machine."""
    return {
        gpu: (job.namespace, one.name)
        for job in jobs
        if job.forecast is not None and not job.forecast.emulated
        for index, where, gpus in job.forecast.workers
        for one in job.instances
        if where == node and one.worker == index and one.holds_gpus
        for gpu in gpus
    }


def gpus(
    jobs: tuple[JobStatus, ...], *, tell: Callable[[str], None] = unheard
) -> tuple[GpuSample, ...]:
    """The samples of this machine's GPUs; none where NVML cannot be asked, told why."""
    try:
        import pynvml
    except ImportError:
        tell("what GPUs do is not known: the Python package nvidia-ml-py is not installed")
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        tell(f"what GPUs do is not known: NVML: {error}")
        return ()
    node = seating.host()
    try:
        return tuple(samples(pynvml, node, holders(jobs, node)))
    finally:
        pynvml.nvmlShutdown()


def samples(nvml: Any, node: str, have: Holders) -> Iterator[GpuSample]:
    """One sample for each GPU that `nvml`, the initialised pynvml, lists; what fails is None."""
    for index in range(nvml.nvmlDeviceGetCount()):
        values: dict[str, Any] = {}
        # A GPU that has fallen off the bus, or is divided (MIG), tells less or nothing.
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            values["uuid"] = uuid.decode() if isinstance(uuid, bytes) else uuid
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            values |= {"memory_used": float(memory.used), "memory_total": float(memory.total)}
            values["duty_cycle"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        space, pod = have.get(index, ("", ""))
        yield GpuSample(node=node, index=index, namespace=space, pod=pod, **values)
