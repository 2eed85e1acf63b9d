"""The bandwidth that NCCL reaches in an all-reduce: for GPUs, their NICs and the pods around them.

`estimate` takes the hosts of a job as NCCL counts them and gives what nccl-tests would report as
bus bandwidth for large messages, in GB/s: a point and an 80 % range. Each regime is a form that
follows from the algorithm, times a constant fitted on measured rows (`fitted`). The forms:

    NVSwitch, ring     lanes x rate
    NVSwitch, NVLS     lanes x rate x 2(g-1)/(g+1), flat from 8 GPUs on: each GPU moves S(1 + 1/g)
    direct NVLinks     (g-1) x lanes x rate on a full mesh, else 2 x rate x disjoint rings
    bridged pairs      2 x the PCIe path: each port carries one direction of each of two rings
    PCIe               the slowest link of the best ring
    several hosts      the NICs of the chosen GPUs; on two hosts 2(n-1)/n of them, since a tree
                       sends each byte once; never more than one host reaches inside

g is the GPUs of a host, n those of the job, S the bytes that are reduced.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from arena_topo.bandwidth import fitted, packing
from arena_topo.bandwidth.fitted import FITTED, Constants, Factor
from arena_topo.topology import (
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    count,
    members,
)
from arena_topo.topology.models import MODELS, MOST_LANES, Architecture, Model
from arena_topo.topology.nics import NICs

ASSUMED_LANE_RATE = 20.0
"""GB/s per NVLink and direction of an unknown GPU model: the rate of V100 and A100 (topo.h)."""

ASSUMED_GENERATION = 3
"""The PCIe generation if machine and model are unknown: the oldest with measured rows."""

MOST_OF_CARDS = 4
"""NVLinks of workstation cards whose boards differ (RTX A6000, A40: one bridge of four)."""

NEWEST_GENERATION = 5
"""The newest PCIe generation with measured rows."""

FLAT = 8
"""GPUs from which NVLS no longer gains: NVL72 reaches with 32 what it reaches with 8."""

MOST_BRIDGED = 12
"""The most NVLinks between two bridged PCIe cards (NVIDIA product briefs of A100 and H100 PCIe:
three bridges of four links); more links mean an NVSwitch of which two GPUs are visible."""

NVLS_FROM = {Architecture.HOPPER: 5, Architecture.BLACKWELL: 6}
"""The fewest GPUs of one host for which NCCL chooses NVLS; measured on H100, H200 and B200."""

SOCKETS = fitted.UNKNOWN_TCP[1] / fitted.TCP_SHARE
"""The rate in GB/s of a network on which sockets reach as much as on an unknown one."""

_PAIR = 2
_RING = 3


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bus bandwidth in GB/s: a point, an 80 % range, and the bottleneck.

    `latency` is seconds per all-reduce of any size; it determines the bandwidth of a message of a
    given size (`share`, `at`). `assumed` lists the facts that were not given.
    """

    point: float
    low: float
    high: float
    regime: Regime
    limited_by: Limit
    latency: Factor
    ranks: int
    assumed: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host in the sense of NCCL: GPUs of a machine, or of several in one NVLink domain.

    A pod is a host if each pod has its own hostname, a node if its pods share one. Hosts whose
    machines have the same name are on one machine, and share its NICs.
    """

    parts: tuple[tuple[Machine, GPUSet], ...]

    @classmethod
    def of(cls, machine: Machine, gpus: GPUSet) -> Host:
        """The host of GPUs of one machine."""
        return cls(parts=((machine, gpus),))

    @property
    def size(self) -> int:
        """The number of its GPUs."""
        return sum(count(gpus) for _, gpus in self.parts)


def estimate(
    hosts: Sequence[Host],
    *,
    algorithm: Algorithm | None = None,
    wire: Wire | None = None,
    network: float | None = None,
    among: int | None = None,
    ranks: int | None = None,
    constants: Constants = FITTED,
) -> Estimate | None:
    """The bus bandwidth of an all-reduce among all GPUs of these hosts; None for a single GPU.

    Without `algorithm` it is NCCL's own choice. `wire` joins the hosts; None means RDMA if the
    chosen GPUs have NICs, else a network about which nothing is known. `network` is GB/s that the
    network lets each machine send, if that is given, and infinite for a rate that is applied
    elsewhere: NICs of known speed count up to it, assumed ones not at all. With `among`, these are
    some hosts of a job of so many hosts on several machines with `ranks` GPUs, and the result is
    the limit by these hosts: the job gets the minimum of this over its machines, and of
    `network_limit`. NotModelled for an algorithm without measured rows on such hosts.
    """
    if not all(host.size for host in hosts) or not hosts:
        raise ValueError("each host needs a GPU")
    machines = {machine.name: machine for host in hosts for machine, _ in host.parts}
    local = among is None and len(machines) == 1
    job = _Job(
        hosts=among or len(hosts),
        ranks=ranks or sum(host.size for host in hosts),
        tree=algorithm is not Algorithm.RING,
    )
    if job.ranks == 1:
        return None
    if job.hosts == 1:
        return inside(hosts[0], algorithm=algorithm, constants=constants)
    if algorithm in {Algorithm.TREE, Algorithm.NVLS} and job.hosts > _PAIR:
        raise NotModelled(
            f"no measured row has NCCL_ALGO={algorithm} forced on three or more hosts"
        )
    # Most machines of a cluster share their links and GPUs, and so their assumptions.
    distinct = {(id(own.links), id(own.gpus), own.knowledge): own for own in machines.values()}
    doubts = {note for machine in distinct.values() for note in _doubts(machine)}
    if wire is None:
        wire = Wire.RDMA if all(machine.nics for machine in machines.values()) else Wire.TCP
    if wire is Wire.RDMA:
        # Between pods of one machine only its NICs limit the traffic, not the network.
        limit = _over_nics(hosts, job, None if local else network, constants, doubts)
    elif local:
        limit = _sockets(fitted.LOCAL_TCP, job, constants, sorted(doubts))
    else:
        limit = _over_tcp(hosts, job, network, constants, doubts)
    kinds = {_likeness(host): host for host in hosts if host.size > 1}
    for host in kinds.values():
        limit = _least(limit, _ceiling(host, job, algorithm, constants))
    return limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The traffic parameters of a whole job: hosts, GPUs, and whether a tree is possible."""

    hosts: int
    ranks: int
    tree: bool = True

    @property
    def once(self) -> float:
        """The factor of a host's NICs: on two hosts a tree sends each byte once."""
        return 2 * (self.ranks - 1) / self.ranks if self.two else 1.0

    @property
    def two(self) -> bool:
        """Whether the job is a tree on two hosts, which reduces as one host does."""
        return self.tree and self.hosts == _PAIR


def network_limit(network: float, *, among: int, ranks: int, wire: Wire) -> float:
    """GB/s of a job of so many hosts and GPUs, as limited by a network of `network` GB/s."""
    if wire is Wire.TCP:
        low, high = _socket_range(network)
        return math.sqrt(low * high)
    return FITTED.network.value * _Job(hosts=among, ranks=ranks).once * network


def inside(
    host: Host, *, algorithm: Algorithm | None = None, constants: Constants = FITTED
) -> Estimate:
    """The bus bandwidth of two or more GPUs of one host; NotModelled as in `estimate`."""
    parts = tuple((_facts(machine, constants), gpus) for machine, gpus in host.parts)
    return _inside(parts, algorithm)


class Facts:
    """The facts of a machine that decide the bandwidth of its GPU sets, computed once.

    `inside` is the function of that name for these GPUs alone on one host.
    """

    def __init__(self, machine: Machine, constants: Constants = FITTED) -> None:
        self.machine = machine
        self.constants = constants
        self.measured = dict(machine.measured)
        name = machine.model
        self.model = MODELS.get(name or "")
        self.lane_rate = lane_rate(name)
        self._direct: dict[GPUSet, Estimate] = {}

    def direct(self, gpus: GPUSet) -> Estimate:
        """The bus bandwidth of two or more of these GPUs without a switch."""
        value = self._direct.get(gpus)
        if value is None:
            value = self._direct[gpus] = _direct(self, gpus)
        return value

    def inside(self, gpus: GPUSet) -> Estimate:
        """The bus bandwidth of two or more GPUs of this machine."""
        return _inside(((self, gpus),))

    def in_domain(self, gpus: GPUSet, ranks: int) -> float:
        """GB/s of an NVLink domain of `ranks` GPUs, as limited by these; 0 off the switch."""
        part = ((self, gpus),)
        if not self.machine.nvswitch or not _switched(part):
            return 0.0
        return _computed(part, ranks=ranks).point

    def twin(self, gpus: GPUSet) -> float | None:
        """The lowest measured GB/s of equivalent sets; None if none was measured.

        Sets are equivalent if their GPUs have the same links among themselves, and the same
        computed bandwidth.
        """
        return self._twins.get(self._likeness(gpus)) if self._twins else None

    @functools.cached_property
    def _twins(self) -> dict[tuple[object, ...], float]:
        lowest: dict[tuple[object, ...], float] = {}
        for gpus, value in self.measured.items():
            key = self._likeness(gpus)
            lowest[key] = min(value, lowest.get(key, value))
        return lowest

    def _likeness(self, gpus: GPUSet) -> tuple[object, ...]:
        chosen = members(gpus)
        links = sorted(
            sorted(link for peer in chosen if (link := self.machine.links[gpu][peer]) is not None)
            for gpu in chosen
        )
        computed = _computed(((self, gpus),))
        return computed.point, tuple(map(tuple, links))

    @functools.cached_property
    def nvlinks(self) -> list[list[int]]:
        """NVLinks between every two GPUs, as nvidia-smi counts them."""
        return packing.lanes(self.machine.links)

    @functools.cached_property
    def lanes(self) -> list[list[int]]:
        """NVLinks directly from GPU to GPU."""
        if self.machine.nvswitch:
            # Behind a switch no GPU has direct lanes to another: GPUs off the fabric have only
            # PCIe.
            return [[0] * len(row) for row in self.nvlinks]
        return self.nvlinks

    @functools.cached_property
    def generation(self) -> int | None:
        """The PCIe generation of the slots, else that of the GPU model."""
        return _generation(self.machine)

    @functools.cached_property
    def doubling(self) -> float:
        """The factor of PCIe bandwidth over the generation of the constants."""
        return 2.0 ** ((self.generation or ASSUMED_GENERATION) - ASSUMED_GENERATION)

    @functools.cached_property
    def rates(self) -> list[list[float]]:
        """GB/s between every two GPUs, 0 from a GPU to itself."""
        links = self.machine.links
        kinds = {link for row in links for link in row if link is not None}
        known = {link: self.rate(link) for link in kinds}
        return [[0.0 if link is None else known[link] for link in row] for row in links]

    def rate(self, link: Link) -> float:
        """GB/s of a direct link from GPU to GPU, all its lanes together."""
        if link.kind is LinkKind.NVLINK and not self.machine.nvswitch:
            return link.lanes * self.lane_rate
        return _path(link.kind, self.constants).value * self.doubling

    @functools.cached_property
    def doubts(self) -> frozenset[str]:
        """The facts about the machine that are assumed."""
        return frozenset(_doubts(self.machine))


_MOST_FACTS = 256
"""The size of the cache of facts, in machines."""

_facts_cache: dict[int, Facts] = {}


def _facts(machine: Machine, constants: Constants) -> Facts:
    """The facts of a machine; a cache by identity has the latest machines."""
    if constants is not FITTED:
        return Facts(machine, constants)
    if len(_facts_cache) > _MOST_FACTS:
        _facts_cache.clear()
    # The facts refer to their machine, so its id cannot be reused.
    return _facts_cache.setdefault(id(machine), Facts(machine))


_Parts = tuple[tuple[Facts, GPUSet], ...]


def _inside(parts: _Parts, algorithm: Algorithm | None = None) -> Estimate:
    computed = _computed(parts, algorithm)
    facts, gpus = parts[0]
    if len(parts) > 1 or algorithm is not None or not facts.measured:
        return computed
    measured = facts.measured.get(gpus)
    if measured is not None:
        return replace(computed, point=measured, low=measured, high=measured, assumed=())
    twin = facts.twin(gpus)
    return computed if twin is None else _scaled(computed, twin / computed.point)


def _computed(
    parts: _Parts, algorithm: Algorithm | None = None, *, ranks: int | None = None
) -> Estimate:
    if algorithm is Algorithm.TREE:
        raise NotModelled("no measured row has NCCL_ALGO=Tree on a single host")
    facts, _ = parts[0]
    constants = facts.constants
    size = sum(count(gpus) for _, gpus in parts) if ranks is None else ranks
    lanes = _switched(parts)
    if lanes:
        form = lanes * facts.lane_rate
        model = facts.model
        reduced = constants.nvls.get(model.architecture) if model else None
        if (
            model is not None
            and reduced is not None
            and algorithm is not Algorithm.RING
            and (algorithm is Algorithm.NVLS or size >= NVLS_FROM[model.architecture])
        ):
            at = min(size, FLAT)
            form *= 2 * (at - 1) / (at + 1)
            return _of_form(parts, Regime.NVLS, form, reduced, constants)
        if algorithm is not Algorithm.NVLS:
            return _of_form(parts, Regime.SWITCH, form, constants.nvlink, constants)
    if algorithm is Algorithm.NVLS:
        raise NotModelled("NVLS needs Hopper or Blackwell GPUs behind an NVSwitch")
    if len(parts) > 1:
        raise ValueError("GPUs of several machines are one host only in an NVLink domain")
    facts, gpus = parts[0]
    return facts.direct(gpus)


def _direct(facts: Facts, gpus: GPUSet) -> Estimate:
    """GPUs without a switch: over NVLink rings if there are any, else over PCIe."""
    parts, constants = ((facts, gpus),), facts.constants
    matrix = facts.lanes
    inside_set = members(gpus)
    rate = facts.lane_rate
    joined = packing.components(inside_set, lambda gpu, peer: matrix[gpu][peer] > 0)
    lanes = [matrix[gpu][peer] for gpu in inside_set for peer in inside_set if gpu < peer]
    if len(inside_set) == _PAIR and lanes[0]:
        all_joined = packing.components(range(len(matrix)), lambda gpu, peer: matrix[gpu][peer] > 0)
        alone = frozenset(inside_set) in all_joined
        if alone and lanes[0] <= MOST_BRIDGED:
            return _of_form(parts, Regime.BRIDGE, lanes[0] * rate, constants.bridge, constants)
        return _of_form(parts, Regime.MESH, lanes[0] * rate, constants.nvlink, constants)
    if len(inside_set) >= _RING:
        rings = packing.most_rings(matrix, gpus) if len(joined) == 1 else 0
        form = rate * max((len(inside_set) - 1) * min(lanes), 2 * rings)
        if form:
            return _of_form(parts, Regime.MESH, form, constants.nvlink, constants)
    if facts.model is not None and not facts.model.p2p:
        return _staged(facts, gpus, constants)
    return _over_pcie(facts, gpus, joined, constants)


def _over_pcie(
    facts: Facts, gpus: GPUSet, joined: Sequence[frozenset[int]], constants: Constants
) -> Estimate:
    parts = ((facts, gpus),)
    rates, doubling = facts.rates, facts.doubling
    order = packing.ring_order(rates, gpus)
    pairs = [(gpu, order[place - 1]) for place, gpu in enumerate(order)]
    slowest = min(pairs, key=lambda pair: rates[pair[0]][pair[1]])
    kind = facts.machine.link(*slowest).kind
    path = _path(kind, constants)
    if len(joined) > 1 and all(len(group) >= _PAIR for group in joined):
        # A ring enters a pair at one card and leaves it at the other, so its mirror image fits too.
        form = 2 * doubling * path.value
        return _of_form(parts, Regime.ISLANDS, form, constants.islands, constants)
    if len(joined) == 1:
        return _of_form(parts, Regime.NO_RING, doubling, _relayed(path), constants)
    return _of_form(parts, Regime.PCIE, doubling, path, constants)


def _relayed(path: Factor) -> Factor:
    """A set connected by NVLinks without a ring: its PCIe path, or relays over other GPUs."""
    return replace(path, low=path.value * fitted.UNRELAYED, high=path.value * fitted.RELAYED)


def _staged(facts: Facts, gpus: GPUSet, constants: Constants) -> Estimate:
    staged = replace(constants.staged, low=min(constants.staged.low, fitted.STAGED_LOW))
    generation = facts.machine.pcie_generation
    if generation is not None:
        port = _path(LinkKind.PIX, constants).value * 2.0 ** (generation - ASSUMED_GENERATION)
        staged = replace(
            staged, value=min(staged.value, port), high=min(staged.high, port * fitted.PORT_HIGH)
        )
        staged = replace(staged, low=min(staged.low, staged.value))
    return _of_form(((facts, gpus),), Regime.STAGED, 1.0, staged, constants)


# ---------------------------------------------------------------- between hosts


def _ceiling(host: Host, job: _Job, algorithm: Algorithm | None, constants: Constants) -> Estimate:
    """The limit by the inside of a host.

    On two hosts a tree reduces as one host does. A ring through three or more hosts leaves each
    host once, so a GPU's NVLinks carry g-1 of its g channels; but never more than one host alone
    reaches.
    """
    if algorithm is Algorithm.NVLS:
        return inside(host, algorithm=algorithm, constants=constants)
    alone = inside(host, constants=constants)
    if job.two:
        return alone
    ring = inside(host, algorithm=Algorithm.RING, constants=constants)
    if ring.regime in {Regime.SWITCH, Regime.MESH}:
        wider = host.size / (host.size - 1)
        ring = _scaled(ring, min(wider, max(1.0, alone.point / ring.point)))
    return ring


def _over_nics(
    hosts: Sequence[Host],
    job: _Job,
    network: float | None,
    constants: Constants,
    doubts: set[str],
) -> Estimate:
    """The limit by RDMA between the hosts alone."""
    rails, assumed = _rails(hosts, network, constants)
    net, once = constants.network, job.once
    point = net.value * once * rails.value
    low = min(net.low * once, fitted.RING_OF_OLD) if job.two else net.low
    return Estimate(
        point=point,
        low=min(low * rails.low, point),
        high=min(net.high, 1.0) * once * rails.high,
        regime=Regime.TWO_HOSTS if job.two else Regime.HOSTS,
        limited_by=(
            Limit.NETWORK if network is not None and rails.value >= network else Limit.NICS
        ),
        latency=constants.latency["network"],
        ranks=job.ranks,
        assumed=tuple(sorted(doubts | assumed)),
    )


def usual_nics(machine: Machine) -> Machine:
    """The machine with the usual NICs of its kind, of assumed speed, if its NICs are not known."""
    if machine.nics:
        return machine
    model = _model(machine)
    number = len(machine.gpus) if model is not None and model.nic else 1
    return NICs(number=number, speed=None).of(machine)


def _rails(
    hosts: Sequence[Host], network: float | None, constants: Constants
) -> tuple[Factor, set[str]]:
    """GB/s that the weakest host sends over its NICs and the network, and the assumptions.

    If the rate of the network is known, NICs of assumed speed do not count.
    """
    machines: dict[str, Machine] = {}
    pods: dict[str, list[tuple[int, GPUSet]]] = {}
    for at, host in enumerate(hosts):
        for machine, gpus in host.parts:
            machines[machine.name] = machine
            pods.setdefault(machine.name, []).append((at, gpus))
    totals = [(0.0, 0.0, 0.0)] * len(hosts)
    doubts: list[frozenset[str]] = [frozenset()] * len(hosts)
    for name, machine in machines.items():
        sent = _sent(usual_nics(machine), [gpus for _, gpus in pods[name]], constants)
        for (at, _), (rates, notes) in zip(pods[name], sent, strict=True):
            value, low, high = totals[at]
            totals[at] = (value + rates[0], low + rates[1], high + rates[2])
            doubts[at] |= notes
    if network is not None:
        totals = [
            (network,) * 3
            if guessed
            else (min(value, network), min(low, network), min(high, network))
            for (value, low, high), guessed in zip(totals, doubts, strict=True)
        ]
    value, low, high = (min(column) for column in zip(*totals, strict=True))
    assumed = set() if network is not None else set().union(*doubts)
    return Factor(value=value, low=low, high=high), assumed


_Range = tuple[float, float, float]


def _sent(
    machine: Machine, pods: Sequence[GPUSet], constants: Constants
) -> Iterator[tuple[_Range, frozenset[str]]]:
    """GB/s that each pod of a machine sends over its NICs, with its range, and the assumptions."""
    speeds = _speeds(machine)
    cards = [
        {card for gpu in members(gpus) for card in _nearest(machine, speeds, gpu)} for gpus in pods
    ]
    users = Counter(card for own in cards for card in own)
    generation = _generation(machine)
    for gpus, own in zip(pods, cards, strict=True):
        sent = [0.0, 0.0, 0.0]
        for card in own:
            speed = speeds[card][0]
            for at, rate in enumerate((speed.value, speed.low, speed.high)):
                sent[at] += rate / users[card]
        if generation is not None:
            port = _path(LinkKind.PIX, constants).value * 2.0 ** (generation - ASSUMED_GENERATION)
            # The efficiencies of NICs and of ports are the same loss, counted once.
            most = count(gpus) * port / constants.network.value
            sent = [min(rate, most) for rate in sent]
        notes = frozenset(speeds[card][1] for card in own) - {""}
        yield (sent[0], sent[1], sent[2]), notes


def nearest_nics(machine: Machine, gpu: int) -> tuple[int, ...]:
    """The NICs that a GPU uses: the nearest among its fastest.

    NCCL prefers the path with the most bandwidth, then the shortest (src/graph/search.cc,
    ncclTopoGetLocal), so a management port beside the GPU is not used if rails are faster.
    """
    return _nearest(machine, _speeds(machine), gpu)


_Speeds = list[tuple[Factor, str]]
"""GB/s of each NIC of a machine, and the assumption about it."""


def _nearest(machine: Machine, speeds: _Speeds, gpu: int) -> tuple[int, ...]:
    best = max((speed.value for speed, _ in speeds), default=0.0)
    if not best:
        return ()
    fast = [card for card, (speed, _) in enumerate(speeds) if speed.value == best]
    near = max(machine.nics[card].attachment[gpu].kind for card in fast)
    return tuple(card for card in fast if machine.nics[card].attachment[gpu].kind == near)


def _speeds(machine: Machine) -> _Speeds:
    model = _model(machine)
    kinds = {nic.speed: _speed(nic.speed, model) for nic in machine.nics}
    return [kinds[nic.speed] for nic in machine.nics]


def _speed(rate: float | None, model: Model | None) -> tuple[Factor, str]:
    """GB/s of a NIC; if not given, that of the maker's reference machine, with a range."""
    if rate is not None:
        return Factor(value=rate, low=rate, high=rate), ""
    if model is None or model.nic is None:
        note = f"NICs of {SLOWEST_RAIL:g} GB/s, the slowest of machines with RDMA"
        return Factor(value=SLOWEST_RAIL, low=SLOWEST_RAIL, high=FASTEST_RAIL), note
    # Reference machines have a NIC for each GPU, or one for every two (DGX-1).
    card = model.nic if model.nic >= SLOWEST_RAIL else 2 * model.nic
    note = f"NICs of {card:g} GB/s, as machines with {model.name} usually have"
    return Factor(value=card, low=card * fitted.FEWER_NICS, high=card), note


SLOWEST_RAIL, FASTEST_RAIL = 12.5, 50.0
"""GB/s of a NIC about which nothing is known: EDR and 100GbE to NDR, as in the measured rows."""


def _over_tcp(
    hosts: Sequence[Host],
    job: _Job,
    network: float | None,
    constants: Constants,
    doubts: set[str],
) -> Estimate:
    """Sockets between machines: a share of one NIC, which the pods of a machine share.

    A NIC of unknown speed is ignored: pods without RDMA seldom use the rails.
    """
    pods = Counter(name for host in hosts for name in {machine.name for machine, _ in host.parts})
    machines = {machine.name: machine for host in hosts for machine, _ in host.parts}
    rates = {
        max((nic.speed or 0.0 for nic in machine.nics), default=0.0) / pods[name]
        for name, machine in machines.items()
    }
    notes = sorted(doubts)
    known = [rate for rate in rates if rate] + ([] if network is None else [network])
    ranges = [_socket_range(min(known))] if known else []
    if network is None and 0.0 in rates:
        ranges.append(fitted.UNKNOWN_TCP)
        if ranges[0] >= fitted.UNKNOWN_TCP:
            notes.append("a network of which nothing is known: TCP")
    return _sockets(min(ranges), job, constants, notes)


def _socket_range(rate: float) -> tuple[float, float]:
    """The range in GB/s of sockets on a network of known rate."""
    high = min(fitted.TCP_SHARE * rate, fitted.MOST_TCP)
    return max(min(fitted.UNKNOWN_TCP[0], high / 2), high / fitted.TCP_WIDTH), high


def _sockets(
    span: tuple[float, float], job: _Job, constants: Constants, notes: Iterable[str]
) -> Estimate:
    """An estimate for sockets: the geometric mean of its range."""
    low, high = span
    return Estimate(
        point=math.sqrt(low * high),
        low=low,
        high=high,
        regime=Regime.TCP,
        limited_by=Limit.NETWORK,
        latency=constants.latency["network"],
        ranks=job.ranks,
        assumed=tuple(notes),
    )


def _least(network: Estimate, host: Estimate) -> Estimate:
    """The minimum of the limits between hosts and inside one, end by end, with the bottleneck."""
    point = min(network.point, host.point)
    return replace(
        network,
        point=point,
        low=min(network.low, host.low),
        high=max(min(network.high, host.high), point),
        limited_by=Limit.HOST if host.point < network.point else network.limited_by,
        assumed=tuple(sorted({*network.assumed, *host.assumed})),
    )


# ---------------------------------------------------------------- machines


def _likeness(host: Host) -> tuple[object, ...]:
    return tuple((id(machine.links), id(machine.gpus), gpus) for machine, gpus in host.parts)


def _model(machine: Machine) -> Model | None:
    return MODELS.get(machine.model or "")


def lane_rate(model: str | None) -> float:
    """GB/s that NCCL gets from one NVLink of this GPU model in one direction."""
    facts = MODELS.get(model or "")
    return facts.lane_rate if facts and facts.lane_rate else ASSUMED_LANE_RATE


def rate_is_assumed(machine: Machine) -> bool:
    """Whether the machine has NVLinks of unknown rate."""
    links = {link for row in machine.links for link in row if link is not None}
    model = _model(machine)
    unknown = model is None or model.lane_rate is None
    return unknown and any(link.kind is LinkKind.NVLINK for link in links)


def _generation(machine: Machine) -> int | None:
    """The PCIe generation of the slots, else that of the GPU model."""
    if machine.pcie_generation is not None:
        return machine.pcie_generation
    model = _model(machine)
    return model.pcie if model else None


def _switched(parts: _Parts) -> int:
    """NVLinks of each GPU to a switch that connects all GPUs of a host; 0 without one.

    The links of the set decide: one GPU off the fabric slows down only the sets with it.
    """
    fewest = MOST_LANES
    for facts, gpus in parts:
        chosen = members(gpus)
        several = len(chosen) > 1
        if not facts.machine.nvswitch and not (len(parts) == 1 and several):
            return 0
        peers = chosen if several else tuple(range(len(facts.nvlinks)))
        lanes = [facts.nvlinks[gpu][peer] for gpu in chosen for peer in peers if gpu != peer]
        if not lanes or not (facts.machine.nvswitch or min(lanes) > MOST_BRIDGED):
            return 0
        fewest = min(fewest, *lanes) if several else min(fewest, max(lanes))
    return fewest


def _path(kind: LinkKind, constants: Constants) -> Factor:
    """GB/s of a PCIe path at generation 3, by the devices that it crosses."""
    if kind in {LinkKind.PIX, LinkKind.PXB}:
        return constants.pcie_switch
    return constants.pcie_host


def _doubts(machine: Machine) -> set[str]:
    """The facts about a machine that are assumed."""
    notes: set[str] = set()
    model = _model(machine)
    nvlink = any(
        link is not None and link.kind is LinkKind.NVLINK for row in machine.links for link in row
    )
    if machine.knowledge is Knowledge.UNKNOWN:
        notes.add("links between GPUs: PCIe across sockets")
    elif machine.knowledge is Knowledge.ASSUMED:
        notes.add("links between GPUs, by model and count")
    if nvlink and (model is None or model.lane_rate is None):
        notes.add(f"{ASSUMED_LANE_RATE:g} GB/s per NVLink of a model that is not known")
    if not nvlink and machine.pcie_generation is None:
        notes.add(f"PCIe generation {_generation(machine) or ASSUMED_GENERATION}")
    return notes


_LIMITS = {
    Regime.SWITCH: Limit.NVLINK,
    Regime.NVLS: Limit.NVLINK,
    Regime.MESH: Limit.NVLINK,
    Regime.BRIDGE: Limit.BRIDGE,
    Regime.ISLANDS: Limit.PCIE,
    Regime.PCIE: Limit.PCIE,
    Regime.NO_RING: Limit.PCIE,
    Regime.STAGED: Limit.MEMORY,
}


def _of_form(
    parts: _Parts, regime: Regime, form: float, factor: Factor, constants: Constants
) -> Estimate:
    """The estimate inside a host: a form times its constant."""
    limit = _LIMITS[regime]
    kind = "pcie" if limit in {Limit.PCIE, Limit.MEMORY} else "nvlink"
    slower, faster = _unsure(parts[0][0], limit)
    return Estimate(
        point=form * factor.value,
        low=form * factor.low * slower,
        high=form * factor.high * faster,
        regime=regime,
        limited_by=limit,
        latency=constants.latency[kind],
        ranks=sum(count(gpus) for _, gpus in parts),
        assumed=tuple(sorted(frozenset().union(*(facts.doubts for facts, _ in parts)))),
    )


def _unsure(facts: Facts, limit: Limit) -> tuple[float, float]:
    """The factors on the ends of a range if the GPU model or the PCIe generation is not known."""
    if limit in {Limit.NVLINK, Limit.BRIDGE}:
        if facts.model is not None and facts.model.lane_rate is not None:
            return 1.0, 1.0
        widest = max(map(max, facts.nvlinks))
        rates = [
            model.lane_rate / ASSUMED_LANE_RATE
            for model in MODELS.values()
            if model.lane_rate and (model.nvlinks or MOST_OF_CARDS) >= widest
        ]
        return min(1.0, *rates), max(1.0, *rates)
    if limit is Limit.PCIE and facts.generation is None:
        return 1.0, 2.0 ** (NEWEST_GENERATION - ASSUMED_GENERATION)
    return 1.0, 1.0


def _scaled(value: Estimate, by: float) -> Estimate:
    return replace(value, point=value.point * by, low=value.low * by, high=value.high * by)
