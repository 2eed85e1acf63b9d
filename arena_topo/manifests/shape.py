"""How the workers of one node become pods: what each of them sees."""

from __future__ import annotations

from collections.abc import Iterable


def visible(
    workers: Iterable[tuple[int, str, tuple[int, ...]]], *, shared: bool
) -> tuple[tuple[int, ...], ...]:
    """The GPUs that each worker sees, by worker; `workers` are as `parse_map` returns them.

    Its own, in ring order. Under `--pod-shape shared` then those of the job's other workers on its
    node as well, in theirs; there nobody of a node is told anything unless all its workers are.
    """
    ordered = sorted(workers)
    if not shared:
        return tuple(gpus for _index, _node, gpus in ordered)
    held: dict[str, list[tuple[int, ...]]] = {}
    for _index, node, gpus in ordered:
        held.setdefault(node, []).append(gpus)
    return tuple(
        tuple(dict.fromkeys([*gpus, *(gpu for each in held[node] for gpu in each)]))
        if all(held[node])
        else ()
        for _index, node, gpus in ordered
    )
