"""Well-known trainings: bytes of gradients, and the measured steps on a single GPU.

Gradients have four bytes per parameter, those named `-amp` two. A batch is per GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from arena_topo.errors import UsageError, near
from arena_topo.training.step_time import Span, Workload
from arena_topo.words import listed

FRAMEWORKS_DIFFER = 1.2
"""How far the step of another framework lies from that of a row: six trainers of BERT-base and
eight of ResNet-50 on one V100 are within this factor of their middle (DLPerf)."""

TF = "TensorFlow benchmarks, May 2017, DGX-1"
DLPERF = "DLPerf v1, NGC PyTorch"
POOLS = "Pollux and Sia, measured pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleGPU:
    """Measured steps on one GPU of a model: seconds by batch, with their source."""

    gpu: str
    steps: Mapping[int, float]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkload:
    """A training of the catalogue: bytes that each step reduces, and its measured steps."""

    gradient_bytes: int
    measured: tuple[SingleGPU, ...]


_MILLIONS = {
    "alexnet": 61.1,
    "bert-base": 109.5,
    "bert-base-squad": 109.5,
    "bert-large": 336.2,
    "gpt2": 124.4,
    "gpt2-large": 708,
    "inception-v3": 23.8,
    "resnet18-cifar": 11.2,
    "resnet50": 25.6,
    "resnet101": 44.5,
    "resnet152": 60.2,
    "vgg16": 138.36,
    "vit-b16": 86.6,
    "yolov3": 61.9,
}
"""Millions of parameters (torchvision, transformers, ultralytics; gpt2-large: its source)."""

_HALF = {"bert-base-amp": 109.5, "llama-8b": 8030, "resnet50-amp": 25.6}
"""Trainings whose gradients have two bytes per parameter."""

_STEPS: tuple[tuple[str, str, Mapping[int, float], str], ...] = (
    ("alexnet", "P100", {512: 0.171}, TF),
    ("bert-base", "V100", {32: 0.268, 48: 0.394}, DLPERF),
    ("bert-base-amp", "V100", {64: 0.144, 96: 0.208}, DLPERF),
    ("bert-base-squad", "T4", {4: 0.455, 8: 0.703, 12: 0.922}, POOLS),
    ("bert-base-squad", "A100", {4: 0.149, 8: 0.156, 16: 0.186, 48: 0.342}, POOLS),
    ("bert-base-squad", "RTX 2080 Ti", {4: 0.252, 8: 0.368, 12: 0.447}, POOLS),
    ("bert-large", "V100", {11: 1.11}, "OpenBMB ModelCenter, transformers"),
    ("gpt2", "TITAN RTX", {4: 0.51}, "Hugging Face perf_hardware, one of two"),
    ("gpt2-large", "A100", {16: 0.225}, "scale-ops, Baskerville"),
    ("inception-v3", "P100", {32: 0.25, 64: 0.451}, TF),
    ("resnet18-cifar", "T4", {32: 0.0428, 129: 0.104, 513: 0.355, 1024: 0.702}, POOLS),
    ("resnet18-cifar", "A100", {32: 0.035, 129: 0.0387, 513: 0.0719, 1025: 0.119}, POOLS),
    ("resnet18-cifar", "RTX 2080 Ti", {32: 0.0435, 129: 0.0745, 513: 0.169, 1024: 0.31}, POOLS),
    ("resnet50", "P100", {32: 0.164, 64: 0.292}, TF),
    ("resnet50", "V100", {64: 0.174, 128: 0.349}, "ACK, one of four, and DLPerf v1"),
    ("resnet50", "T4", {40: 0.253, 81: 0.421, 163: 0.762, 200: 0.924}, POOLS),
    ("resnet50", "A100", {40: 0.157, 81: 0.18, 163: 0.244, 327: 0.369, 800: 0.774}, POOLS),
    ("resnet50", "RTX 2080 Ti", {40: 0.23, 115: 0.33, 200: 0.463}, POOLS),
    ("resnet50-amp", "V100", {256: 0.319}, DLPERF),
    ("resnet101", "P100", {64: 0.536}, "Horovod README, 2017"),
    ("resnet152", "P100", {32: 0.387, 64: 0.697}, TF),
    ("vgg16", "P100", {32: 0.222, 64: 0.416}, TF),
    ("vgg16", "V100", {64: 0.258}, "ACK, one of four"),
    ("yolov3", "T4", {4: 0.267, 8: 0.326, 16: 0.573}, POOLS),
    ("yolov3", "A100", {4: 0.247, 8: 0.302, 16: 0.34, 32: 0.393}, POOLS),
    ("yolov3", "RTX 2080 Ti", {4: 0.429, 8: 0.591}, POOLS),
)
"""Seconds of a step on one GPU by batch, with their source (addresses: tests/training)."""

WORKLOADS: Mapping[str, KnownWorkload] = MappingProxyType(
    {
        name: KnownWorkload(
            gradient_bytes=round(millions * 1e6) * width,
            measured=tuple(
                SingleGPU(gpu=gpu, steps=steps, source=source)
                for of, gpu, steps, source in _STEPS
                if of == name
            ),
        )
        for millions_of, width in ((_MILLIONS, 4), (_HALF, 2))
        for name, millions in millions_of.items()
    }
)
"""The trainings that `--workload` names."""


def known_workload(name: str) -> KnownWorkload:
    """The training of a name; UsageError with the nearest names."""
    known = WORKLOADS.get(name.lower())
    if known is not None:
        return known
    raise UsageError(
        f"--workload {name}: no workload of this name is known",
        hint=near(name, WORKLOADS) or f"the known ones are {', '.join(sorted(WORKLOADS))}",
    )


def workload_on(
    gpu: str | None,
    *,
    name: str = "",
    gradient_bytes: int | None = None,
    batch: int | None = None,
    step: float | None = None,
) -> tuple[Workload, str]:
    """A training on one GPU model, and the source of its step.

    Either a `name` of the catalogue, or `gradient_bytes` with the measured `step` in seconds, which
    may take the place of the catalogue's as well. Without `batch` it is the largest measured one;
    between two measured batches the step lies on a line. UsageError where nothing was measured.
    """
    size = gradient_bytes or known_workload(name).gradient_bytes
    if step is not None:
        own = name or "your own"
        return Workload(name=own, gradient_bytes=size, step=Span.exactly(step)), "as you measured"
    known = known_workload(name)
    ways = f"measure the step on one GPU: --workload {name} --step-time 180ms"
    row = next((row for row in known.measured if row.gpu == gpu), None)
    if row is None:
        models = [row.gpu for row in known.measured]
        where = f", only on {listed(models)}" if models else ""
        on = gpu or "GPU of an unknown model"
        raise UsageError(f"no step of {name} on one {on} is known{where}", hint=ways)
    batches = sorted(row.steps)
    batch = batch or batches[-1]
    if not batches[0] <= batch <= batches[-1]:
        ends = " to ".join(map(str, dict.fromkeys((batches[0], batches[-1]))))
        raise UsageError(
            f"--batch {batch}: the steps of {name} on one {gpu} are known for batch {ends} alone",
            hint=ways,
        )
    below = max(known for known in batches if known <= batch)
    above = min(known for known in batches if known >= batch)
    part = (batch - below) / (above - below) if above > below else 0.0
    value = row.steps[below] + part * (row.steps[above] - row.steps[below])
    span = Span(value=value, low=value / FRAMEWORKS_DIFFER, high=value * FRAMEWORKS_DIFFER)
    return Workload(name=f"{name}, batch {batch}", gradient_bytes=size, step=span), row.source


def gigabytes(size: int) -> str:
    """Bytes in words: `553 MB`, `16.1 GB`."""
    return f"{size / 1e9:.3g} GB" if size >= GIGA else f"{size / 1e6:.3g} MB"


GIGA = 10**9
"""The bytes from which a size is shown in GB."""
