"""How near two jobs of one machine are, and what that costs: interference."""

from __future__ import annotations

import functools
import operator

from arena_topo.solver.door import proximity
from arena_topo.topology import GPUSet, Machine, gpu_set, members

SENSITIVITIES = (0.0, 0.05, 0.12, 0.19, 0.4)
"""How much a neighbour on the same PCIe switch slows a job down. Measured: 0 (ResNet-50) to 0.19
(language models) for two jobs of one GPU each on a switch (Xiao et al., Gandiva, OSDI 2018), 0.12
(TensorFlow) to 0.4 (CNTK) for recurrent networks. All of that is of 2016 to 2018; nothing published
separates neighbours from the network on machines with NVSwitch."""

SHARE_BY_PLACE = (0.25, 0.5, 1.0)
"""The share of the sensitivity that counts for a neighbour on the same machine, socket and PCIe
switch: the order is measured, the shares are our choice."""


def interference(sensitivity: float, near: float) -> float:
    """How many times longer a job takes beside its nearest neighbour; others do not add to it."""
    return 1 + sensitivity * near


def nearness(machine: Machine, gpus: GPUSet, others: GPUSet) -> float:
    """How near the nearest GPU of other jobs is, from 0 (no other job) to 1 (the same switch)."""
    if not others:
        return 0.0
    socket, switch = _reaches(machine, gpus)
    return (
        SHARE_BY_PLACE[2]
        if switch & others
        else SHARE_BY_PLACE[1]
        if socket & others
        else SHARE_BY_PLACE[0]
    )


_KNOWN: dict[tuple[int, int, GPUSet], tuple[Machine, tuple[GPUSet, GPUSet]]] = {}


def _reaches(machine: Machine, gpus: GPUSet) -> tuple[GPUSet, GPUSet]:
    """The GPUs that share a socket, and a switch, with some GPUs."""
    key = (id(machine.links), id(machine.nics), gpus)
    known = _KNOWN.get(key)
    if known is None:
        rows = [proximity(machine)[gpu] for gpu in members(gpus)]
        reaches = tuple(
            functools.reduce(
                operator.or_,
                (gpu_set(gpu for gpu, near in enumerate(row) if near >= level) for row in rows),
                GPUSet(0),
            )
            for level in (1, 2)
        )
        # The machine stays referenced, so that nothing else gets these ids.
        known = _KNOWN[key] = machine, (GPUSet(reaches[0]), GPUSet(reaches[1]))
    return known[1]
