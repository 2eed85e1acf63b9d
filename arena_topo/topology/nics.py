"""NICs of a machine by number, speed and nearest GPUs, as a person or a catalogue gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from arena_topo.topology import NIC, GPUSet, Link, LinkKind, Machine

MOST_NICS = 256
"""More network cards than any machine has."""

_NEAR, _FAR = Link(kind=LinkKind.PXB), Link(kind=LinkKind.SYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NICs:
    """A number of NICs of `speed` GB/s each (None if unknown).

    `near` has the GPUs near each NIC; without it the NICs are distributed evenly: with more NICs
    than GPUs each GPU has its own, with fewer NICs neighbours share one.
    """

    number: int
    speed: float | None
    near: tuple[GPUSet, ...] | None = None

    def of(self, machine: Machine, *, assumed: str = "") -> Machine:
        """The machine with these NICs instead of its own; `assumed` as in `Machine.nics_assumed`.

        If the machine has the same number of NICs, and `near` is not given, its own NICs get this
        speed.
        """
        if self.near is None and len(machine.nics) == self.number and not machine.nics_assumed:
            own = tuple(replace(nic, speed=self.speed) for nic in machine.nics)
            return replace(machine, nics=own)
        size = len(machine.gpus)
        near = self.near or tuple(map(GPUSet, _shared_out(self.number, size)))
        nics = tuple(
            NIC(
                name=f"nic{card}",
                attachment=tuple(_NEAR if gpus >> gpu & 1 else _FAR for gpu in range(size)),
                speed=self.speed,
            )
            for card, gpus in enumerate(near)
        )
        return replace(machine, nics=nics, nics_assumed=assumed)


def _shared_out(nics: int, gpus: int) -> list[int]:
    """The GPUs of each NIC, as bits."""
    shares = [0] * nics
    if nics >= gpus:
        for card in range(nics):
            shares[card] = 1 << card * gpus // nics
    else:
        for gpu in range(gpus):
            shares[gpu * nics // gpus] |= 1 << gpu
    return shares


_UNITS = {"G": 8.0, "Gb": 8.0, "Gb/s": 8.0, "GB": 1.0, "GB/s": 1.0}
"""The divisor to GB/s of each unit: `400G` means Gb/s, as in the names of cards."""


def parse_nics(text: str) -> NICs:
    """The number and speed of NICs: `8x400G` or `8x50GB`; ValueError explains an invalid text."""
    match = re.fullmatch(r"(\d{1,4})x(\d{1,5}(?:\.\d{1,3})?)([A-Za-z/]*)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no count and speed")
    number, rate, unit = int(match[1]), float(match[2]), match[3]
    per = _UNITS.get(unit)
    if per is None:
        raise ValueError(f"{unit or 'a number alone'} is no unit of speed")
    if not 0 < number <= MOST_NICS:
        raise ValueError(f"{number} NICs: a machine has 1 to {MOST_NICS}")
    if not rate:
        raise ValueError("a NIC of speed 0 joins nothing")
    return NICs(number=number, speed=rate / per)


_RDMA_NAMES = frozenset(
    {
        # aws/eks-charts, aws-efa-k8s-device-plugin
        "vpc.amazonaws.com/efa",
        # Mellanox/network-operator, its examples of a HostDeviceNetwork and of InfiniBand VFs
        "nvidia.com/hostdev",
        "nvidia.com/mlnxnics",
    }
)


RDMA_DEVICE = "rdma/hca"
"""The resource that `--rdma` requests, as arena does."""


@lru_cache(maxsize=1024)
def is_rdma(resource: str) -> bool:
    """Whether a resource of Kubernetes is RDMA.

    `rdma/...` is the prefix of Mellanox/k8s-rdma-shared-dev-plugin; the names of GKE
    (networking.gke.io.networks/rdma-0) and OKE (nvidia.com/sriov-rdma-vf) contain the word.
    """
    return resource in _RDMA_NAMES or "rdma" in resource
