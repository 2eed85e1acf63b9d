"""The times of one training on several placements, as values."""

from __future__ import annotations

from dataclasses import dataclass

from arena_topo.training.step_time import Ratio, Span, Workload

AS_PLANNED = "as planned"
"""The name of the placement asked about where the kubelet may pick other GPUs."""


def own_name(*, at_worst: bool, asked: bool = True) -> str:
    """The name of the placement asked about beside others, on every screen.

    `at_worst`: the kubelet may pick slower GPUs. Not `asked`: a job without --gputopology.
    """
    if not asked:
        return f"with --gputopology{f', {AS_PLANNED}' if at_worst else ''}"
    return AS_PLANNED if at_worst else "this placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementTime:
    """One placement: seconds of its all-reduce, and its step relative to the placement asked about.

    `guess`: its bandwidth is one. `ratio` is None for the placement asked about itself.
    """

    name: str
    all_reduce: Span
    guess: bool
    ratio: Ratio | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTimes:
    """The times of a training on several placements, the one asked about first.

    `gpu` is the model whose single-GPU step counts, `source` who measured that. `unknown` is why
    nothing can be said; then all else is empty.
    """

    workload: Workload | None = None
    gpu: str = ""
    source: str = ""
    rows: tuple[PlacementTime, ...] = ()
    unknown: str = ""
