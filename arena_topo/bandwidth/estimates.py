"""Estimates of bandwidth, and what they are of: hosts as NCCL counts them, regimes, limits."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from arena_topo.topology import GPUSet, Machine, count

PAIR = 2


class Algorithm(StrEnum):
    """The algorithms of NCCL that NCCL_ALGO can select."""

    RING = "ring"
    TREE = "tree"
    NVLS = "nvls"


class Wire(StrEnum):
    """The transport between hosts."""

    RDMA = "rdma"
    TCP = "tcp"


class Regime(StrEnum):
    """The bottleneck model of a bandwidth; each regime has a form and fitted constants."""

    SWITCH = "nvswitch-ring"
    NVLS = "nvls"
    MESH = "nvlink-mesh"
    BRIDGE = "nvlink-bridge"
    ISLANDS = "bridged-pairs"
    PCIE = "pcie"
    NO_RING = "nvlink-without-ring"
    STAGED = "host-staged"
    TWO_HOSTS = "two-hosts"
    HOSTS = "several-hosts"
    TCP = "tcp"


BETWEEN_HOSTS = frozenset({Regime.TWO_HOSTS, Regime.HOSTS, Regime.TCP})
"""The regimes of jobs that NCCL treats as several hosts."""


class Limit(StrEnum):
    """The bottleneck: the part that must become faster to raise the bandwidth."""

    NVLINK = "NVLinks"
    BRIDGE = "NVLink bridge"
    PCIE = "PCIe path"
    MEMORY = "host memory"
    NICS = "NICs"
    HOST = "one host inside"
    NETWORK = "network"


class NotModelled(ValueError):
    """No measured row supports a number; the message says what is missing."""


class Factor(msgspec.Struct, frozen=True, kw_only=True):
    """A constant that turns a form into GB/s: the point, an 80 % range, and its number of rows."""

    value: float
    low: float
    high: float
    rows: int = 0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Bus bandwidth in GB/s: a point, an 80 % range, and the bottleneck.

    `latency` is seconds per all-reduce of any size; it determines the bandwidth of a message of a
    given size (`share`, `at`). `assumed` lists the facts that were not given; it is a `guess` if
    one of them is the network, the GPU model or the links. `measured` is who measured it, and
    when, for a bandwidth of a calibration.
    """

    point: float
    low: float
    high: float
    regime: Regime
    limited_by: Limit
    latency: Factor
    ranks: int
    assumed: tuple[str, ...] = ()
    guess: bool = False
    measured: str = ""

    def share(self, size: int) -> float:
        """The share of `point` that an all-reduce of `size` bytes reaches, from 0 to 1."""
        return self._reached(size, self.point, self.latency.value) / self.point

    def at(self, size: int) -> tuple[float, float, float]:
        """The point, the low and the high end for an all-reduce of `size` bytes, in GB/s."""
        return (
            self._reached(size, self.point, self.latency.value),
            self._reached(size, self.low, self.latency.high),
            self._reached(size, self.high, self.latency.low),
        )

    def _reached(self, size: int, plateau: float, latency: float) -> float:
        moved = 2 * (self.ranks - 1) / self.ranks * size / 1e9
        return moved / (latency + moved / plateau)


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One host in the sense of NCCL: GPUs of a machine, or of several in one NVLink domain.

    A pod is a host if each pod has its own hostname, a node if its pods share one. Hosts whose
    machines have the same name are on one machine, and share its NICs. `limit` is GB/s that none of
    its machines sends more than to others, which says nothing about their NICs.
    """

    parts: tuple[tuple[Machine, GPUSet], ...]
    limit: float = math.inf

    @classmethod
    def of(cls, machine: Machine, gpus: GPUSet, *, limit: float = math.inf) -> Host:
        """The host of GPUs of one machine."""
        return cls(parts=((machine, gpus),), limit=limit)

    @property
    def size(self) -> int:
        """The number of its GPUs."""
        return sum(count(gpus) for _, gpus in self.parts)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic parameters of a whole job: hosts, GPUs, and whether a tree is possible.

    `network` is GB/s of the network between machines, if its rate is known; else `nearer` is the
    known rate of a nearer network. `limit` is the most that a machine sends for another reason.
    None of them limits the traffic of hosts on one machine (`local`), which only its NICs carry.
    """

    hosts: int
    ranks: int
    tree: bool = True
    network: float | None = None
    nearer: float = math.inf
    limit: float = math.inf
    local: bool = False

    @property
    def rate(self) -> float:
        """GB/s that the network takes from a machine, or at most takes; infinite if not known.

        NICs of unknown speed send that in all. A network farther out is never faster than a nearer
        one, whose rate thus bounds one of unknown rate.
        """
        return self.nearer if self.network is None else self.network

    @property
    def most(self) -> float:
        """GB/s that no machine sends more than."""
        return math.inf if self.local else min(self.rate, self.limit)

    @property
    def once(self) -> float:
        """The factor of a host's NICs: on two hosts a tree sends each byte once."""
        return 2 * (self.ranks - 1) / self.ranks if self.two else 1.0

    @property
    def two(self) -> bool:
        """Whether the job is a tree on two hosts, which reduces as one host does."""
        return self.tree and self.hosts == PAIR


def scaled(value: Estimate, by: float) -> Estimate:
    """The estimate with point and range times a factor."""
    return msgspec.structs.replace(
        value, point=value.point * by, low=value.low * by, high=value.high * by
    )
