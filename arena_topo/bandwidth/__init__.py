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

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from arena_topo.bandwidth import fitted, packing
from arena_topo.bandwidth.fitted import FITTED, Constants, Factor
from arena_topo.topology import (
    NIC,
    GPUSet,
    Knowledge,
    Link,
    LinkKind,
    Machine,
    count,
    members,
)
from arena_topo.topology.models import MODELS, MOST_LANES, Architecture, Model

ASSUMED_LANE_RATE = 20.0
"""GB/s per NVLink and direction where the GPU model is not known: V100's and A100's (topo.h)."""

ASSUMED_GENERATION = 3
"""The PCIe generation where neither machine nor model tell: the oldest with measured rows."""

MOST_OF_CARDS = 4
"""NVLinks of the workstation cards of which boards differ (RTX A6000, A40: one bridge of four)."""

NEWEST_GENERATION = 5
"""The newest PCIe generation with measured rows."""

FLAT = 8
"""GPUs from which NVLS gains nothing more: NVL72 reaches with 32 what it reaches with 8."""

MOST_BRIDGED = 12
"""NVLinks that bridges join on two PCIe cards at most (NVIDIA product briefs of A100 and H100
PCIe: three bridges of four links); more come from an NVSwitch of which two GPUs are seen."""

NVLS_FROM = {Architecture.HOPPER: 5, Architecture.BLACKWELL: 6}
"""GPUs of one host from which NCCL chooses NVLS; measured on H100, H200 and B200 by GPU count."""

EFFORT = 100_000
"""Steps for packing rings; a DGX-1 takes fewer than 2,000."""

_PAIR = 2
_RING = 3


class Algorithm(StrEnum):
    """The algorithms of NCCL that can be asked for by NCCL_ALGO."""

    RING = "ring"
    TREE = "tree"
    NVLS = "nvls"


class Wire(StrEnum):
    """How hosts reach each other."""

    RDMA = "rdma"
    TCP = "tcp"


class Regime(StrEnum):
    """What decides a bandwidth; each regime has a form and fitted constants."""

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


class Limit(StrEnum):
    """The part that would have to be faster for the bandwidth to rise."""

    NVLINK = "NVLinks"
    BRIDGE = "NVLink bridge"
    PCIE = "PCIe path"
    MEMORY = "host memory"
    NICS = "NICs"
    HOST = "one host inside"
    NETWORK = "network"


class NotModelled(ValueError):
    """No measured row supports a number for this; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Bus bandwidth in GB/s: a point and an 80 % range, and what decides it.

    `latency` is seconds that each all-reduce takes whatever its size, from which follows what a
    message of some size reaches (`share`, `at`). `assumed` are the facts that nobody gave.
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
        """The part of `point` that an all-reduce of `size` bytes reaches, from 0 to 1."""
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
    """What NCCL counts as one host: some GPUs of a machine, or of several in one NVLink domain.

    A pod is a host where each pod has its own hostname, a node where its pods share one. Hosts
    whose machines have one name are on one machine, and share its NICs.
    `p2p` says whether GPUs reach each other over PCIe; None leaves it to the GPU model.
    """

    parts: tuple[tuple[Machine, GPUSet], ...]
    p2p: bool | None = None

    @classmethod
    def of(cls, machine: Machine, gpus: GPUSet, *, p2p: bool | None = None) -> Host:
        """The host of GPUs of one machine."""
        return cls(parts=((machine, gpus),), p2p=p2p)

    @property
    def size(self) -> int:
        """How many GPUs it has."""
        return sum(count(gpus) for _, gpus in self.parts)


def estimate(
    hosts: Sequence[Host],
    *,
    algorithm: Algorithm | None = None,
    wire: Wire | None = None,
    nvls: bool = True,
    constants: Constants = FITTED,
) -> Estimate | None:
    """The bus bandwidth of an all-reduce among all GPUs of these hosts; None for a single GPU.

    Without `algorithm` it is NCCL's own choice, for which `nvls` says whether NVLS may be taken
    (NCCL_NVLS_ENABLE). `wire` joins the hosts; None means RDMA where the chosen GPUs have NICs of
    known speed, else a network of which nothing is known. NotModelled for an algorithm of which
    there are no measured rows on such hosts.
    """
    ranks = sum(host.size for host in hosts)
    if not all(host.size for host in hosts) or not hosts:
        raise ValueError("each host needs a GPU")
    if ranks == 1:
        return None
    if len(hosts) == 1:
        return inside(hosts[0], algorithm=algorithm, nvls=nvls, constants=constants)
    _check_between(len(hosts), algorithm)
    kinds = {_likeness(host): host for host in hosts}
    inner = [
        _ceiling(host, len(hosts), algorithm, nvls=nvls, constants=constants)
        for host in kinds.values()
        if host.size > 1
    ]
    outer = _between(hosts, ranks, algorithm, wire, constants)
    return _least(outer, inner, ranks)


def inside(
    host: Host,
    *,
    algorithm: Algorithm | None = None,
    nvls: bool = True,
    constants: Constants = FITTED,
) -> Estimate:
    """The bus bandwidth of two or more GPUs of one host; NotModelled as `estimate`."""
    if algorithm is Algorithm.TREE:
        raise NotModelled("no measured row has NCCL_ALGO=Tree on a single host")
    machine, gpus = host.parts[0]
    lanes = _switched(host)
    if lanes:
        form = lanes * _lane_rate(machine)
        known = _model(machine)
        reduced = constants.nvls.get(known.architecture) if known else None
        if known is not None and reduced is not None and algorithm is not Algorithm.RING:
            enough = nvls and host.size >= NVLS_FROM[known.architecture]
            if enough or algorithm is Algorithm.NVLS:
                at = min(host.size, FLAT)
                form *= 2 * (at - 1) / (at + 1)
                return _made(host, Regime.NVLS, form, reduced, constants)
        if algorithm is not Algorithm.NVLS:
            return _made(host, Regime.SWITCH, form, constants.nvlink, constants)
    if algorithm is Algorithm.NVLS:
        raise NotModelled("NVLS needs Hopper or Blackwell GPUs behind an NVSwitch")
    if len(host.parts) > 1:
        raise ValueError("GPUs of several machines are one host only in an NVLink domain")
    matrix = packing.lanes(machine.links)
    if machine.nvswitch:
        # Behind a switch no GPU has lanes to one other: those off the fabric have only PCIe.
        matrix = [[0] * len(row) for row in matrix]
    return _direct(host, machine, gpus, matrix, constants)


def _direct(
    host: Host, machine: Machine, gpus: GPUSet, matrix: list[list[int]], constants: Constants
) -> Estimate:
    """GPUs that no switch joins: over NVLink rings where there are any, else over PCIe."""
    inside_set = members(gpus)
    rate = _lane_rate(machine)
    joined = _components(matrix, inside_set)
    lanes = [matrix[one][other] for one in inside_set for other in inside_set if one < other]
    if len(inside_set) == _PAIR and lanes[0]:
        alone = len(_components(matrix, range(len(matrix)), inside_set[0])[0]) == _PAIR
        if alone and lanes[0] <= MOST_BRIDGED:
            return _made(host, Regime.BRIDGE, lanes[0] * rate, constants.bridge, constants)
        return _made(host, Regime.MESH, lanes[0] * rate, constants.nvlink, constants)
    if len(inside_set) >= _RING:
        rings = packing.ring_bounds(matrix, gpus, effort=EFFORT)[0]
        form = rate * max((len(inside_set) - 1) * min(lanes), 2 * rings)
        if form:
            return _made(host, Regime.MESH, form, constants.nvlink, constants)
    allowed = host.p2p
    if allowed is None:
        known = _model(machine)
        allowed = known.p2p if known else True
    if not allowed:
        return _staged(host, machine, constants)
    return _over_pcie(host, machine, gpus, joined, constants)


def _over_pcie(
    host: Host,
    machine: Machine,
    gpus: GPUSet,
    joined: Sequence[frozenset[int]],
    constants: Constants,
) -> Estimate:
    generation = _generation(machine) or ASSUMED_GENERATION
    doubling = 2.0 ** (generation - ASSUMED_GENERATION)
    rates = [
        [0.0 if link is None else _rate(link, machine, doubling, constants) for link in row]
        for row in machine.links
    ]
    order = packing.ring_order(rates, gpus)
    pairs = [(one, order[place - 1]) for place, one in enumerate(order)]
    slowest = min(pairs, key=lambda pair: rates[pair[0]][pair[1]])
    kind = machine.link(*slowest).kind
    path = _path(kind, constants)
    if len(joined) > 1 and all(len(one) >= _PAIR for one in joined):
        # A ring enters a pair at one card and leaves it at the other: its mirror image fits too.
        form = 2 * doubling * path.value
        return _made(host, Regime.ISLANDS, form, constants.islands, constants)
    if len(joined) == 1:
        return _made(host, Regime.NO_RING, doubling, _relayed(path), constants)
    return _made(host, Regime.PCIE, doubling, path, constants)


def _relayed(path: Factor) -> Factor:
    """A set that NVLinks join without a ring: its path over PCIe, or relays over other GPUs."""
    return replace(path, low=path.value * fitted.UNRELAYED, high=path.value * fitted.RELAYED)


def _staged(host: Host, machine: Machine, constants: Constants) -> Estimate:
    staged = replace(constants.staged, low=min(constants.staged.low, fitted.STAGED_LOW))
    known = machine.pcie_generation
    if known is not None:
        port = _path(LinkKind.PIX, constants).value * 2.0 ** (known - ASSUMED_GENERATION)
        staged = replace(
            staged, value=min(staged.value, port), high=min(staged.high, port * fitted.PORT_HIGH)
        )
        staged = replace(staged, low=min(staged.low, staged.value))
    return _made(host, Regime.STAGED, 1.0, staged, constants)


# ---------------------------------------------------------------- between hosts


def _check_between(hosts: int, algorithm: Algorithm | None) -> None:
    if algorithm in {Algorithm.TREE, Algorithm.NVLS} and hosts > _PAIR:
        raise NotModelled(
            f"no measured row has NCCL_ALGO={algorithm} forced on three or more hosts"
        )


def _ceiling(
    host: Host, hosts: int, algorithm: Algorithm | None, *, nvls: bool, constants: Constants
) -> Estimate:
    """What a host lets through from its inside.

    On two hosts a tree reduces as one host does. A ring through three and more leaves each host
    once, so that a GPU's NVLinks carry g-1 of its g channels; but never more than one host alone
    reaches.
    """
    alone = inside(host, nvls=nvls, constants=constants)
    if algorithm is Algorithm.NVLS:
        return inside(host, algorithm=algorithm, constants=constants)
    if hosts == _PAIR and algorithm is not Algorithm.RING:
        return alone
    ring = inside(host, algorithm=Algorithm.RING, constants=constants)
    if ring.regime in {Regime.SWITCH, Regime.MESH}:
        wider = host.size / (host.size - 1)
        ring = _scaled(ring, min(wider, max(1.0, alone.point / ring.point)))
    return ring


def _between(
    hosts: Sequence[Host],
    ranks: int,
    algorithm: Algorithm | None,
    wire: Wire | None,
    constants: Constants,
) -> Estimate:
    """What the network lets through, whatever the hosts are inside."""
    rails, assumed = _rails(hosts, constants)
    doubts = {note for host in hosts for note in _doubts(host)}
    sockets = wire is Wire.TCP or (wire is None and rails is None)
    if sockets and len({machine.name for host in hosts for machine, _ in host.parts}) == 1:
        return _local(ranks, constants, tuple(sorted(doubts)))
    if sockets:
        return _tcp(hosts, ranks, constants, tuple(sorted(doubts)))
    if rails is None:
        raise ValueError("no NIC reaches the chosen GPUs")
    notes = tuple(sorted(doubts | assumed))
    net = constants.network
    if len(hosts) == _PAIR and algorithm is not Algorithm.RING:
        once = 2 * (ranks - 1) / ranks
        low = min(net.low * once, fitted.RING_OF_OLD)
        regime = Regime.TWO_HOSTS
    else:
        once, low, regime = 1.0, net.low, Regime.HOSTS
    point = net.value * once * rails.value
    return Estimate(
        point=point,
        low=min(low * rails.low, point),
        high=min(net.high, 1.0) * once * rails.high,
        regime=regime,
        limited_by=Limit.NICS,
        latency=constants.latency["network"],
        ranks=ranks,
        assumed=notes,
    )


def _rails(hosts: Sequence[Host], constants: Constants) -> tuple[Factor | None, set[str]]:
    """GB/s of the NICs that the weakest host uses, None where one has none; and what is assumed."""
    users: Counter[tuple[str, str]] = Counter()
    used: list[list[tuple[Machine, int, set[int]]]] = []
    for host in hosts:
        parts = []
        for machine, gpus in host.parts:
            cards = {card for gpu in members(gpus) for card in _chosen(machine, gpu)}
            users.update((machine.name, machine.nics[card].name) for card in cards)
            parts.append((machine, count(gpus), cards))
        used.append(parts)
    assumed: set[str] = set()
    totals: list[list[float]] = []
    for parts in used:
        total = [0.0, 0.0, 0.0]
        for machine, many, cards in parts:
            rates = [0.0, 0.0, 0.0]
            for card in cards:
                nic = machine.nics[card]
                speed, note = _speed(nic, machine)
                assumed |= {note} if note else set()
                share = 1 / users[machine.name, nic.name]
                rates[0] += share * speed.value
                rates[1] += share * speed.low
                rates[2] += share * speed.high
            generation = _generation(machine)
            if generation is not None:
                port = _path(LinkKind.PIX, constants).value
                port *= 2.0 ** (generation - ASSUMED_GENERATION)
                # The efficiency of NICs and of ports is the same loss, counted once.
                rates = [min(rate, many * port / constants.network.value) for rate in rates]
            total = [one + rate for one, rate in zip(total, rates, strict=True)]
        totals.append(total)
    value, low, high = (min(column) for column in zip(*totals, strict=True))
    return (Factor(value=value, low=low, high=high) if value else None), assumed


def _chosen(machine: Machine, gpu: int) -> tuple[int, ...]:
    """The NICs that a GPU uses: the nearest among its fastest.

    NCCL takes the way with most bandwidth first, then the shortest (src/graph/search.cc,
    ncclTopoGetLocal), so a management port beside the GPU is not used where rails are faster.
    """
    speeds = [_speed(nic, machine)[0].value for nic in machine.nics]
    best = max(speeds, default=0.0)
    if not best:
        return ()
    fast = [card for card, speed in enumerate(speeds) if speed == best]
    near = max(machine.nics[card].attachment[gpu].kind for card in fast)
    return tuple(card for card in fast if machine.nics[card].attachment[gpu].kind == near)


def _speed(nic: NIC, machine: Machine) -> tuple[Factor, str]:
    """GB/s of a NIC; where nobody gave it, what the maker's reference machine has, with a range."""
    if nic.speed is not None:
        return Factor(value=nic.speed, low=nic.speed, high=nic.speed), ""
    known = _model(machine)
    if known is None or known.nic is None:
        note = f"NICs of {SLOWEST_RAIL:g} GB/s, the slowest of machines with RDMA"
        return Factor(value=SLOWEST_RAIL, low=SLOWEST_RAIL, high=FASTEST_RAIL), note
    # Reference machines have a NIC for each GPU, or one for two (DGX-1).
    card = known.nic if known.nic >= SLOWEST_RAIL else 2 * known.nic
    note = f"NICs of {card:g} GB/s, as machines with {known.name} usually have"
    return Factor(value=card, low=card * fitted.FEWER_NICS, high=card), note


SLOWEST_RAIL, FASTEST_RAIL = 12.5, 50.0
"""GB/s of a NIC of which nothing is known: EDR and 100GbE to NDR, as the measured rows have."""


def _tcp(
    hosts: Sequence[Host], ranks: int, constants: Constants, notes: tuple[str, ...]
) -> Estimate:
    """Sockets between machines: a share of one NIC, which the pods of a machine share.

    A NIC of which nobody told the speed tells nothing: pods without RDMA seldom use the rails.
    """
    pods = Counter(name for host in hosts for name in {machine.name for machine, _ in host.parts})
    rates = [
        max((nic.speed or 0.0 for nic in machine.nics), default=0.0) / pods[machine.name]
        for host in hosts
        for machine, _ in host.parts
    ]
    if not min(rates):
        return _unknown(ranks, constants, notes)
    high = min(fitted.TCP_SHARE * min(rates), fitted.MOST_TCP)
    low = max(min(fitted.UNKNOWN_NETWORK[0], high / 2), high / fitted.TCP_WIDTH)
    return _sockets(low, high, ranks, constants, notes)


def _local(ranks: int, constants: Constants, notes: tuple[str, ...]) -> Estimate:
    """Sockets between pods of one machine, which its memory carries."""
    low, high = fitted.LOCAL_TCP
    return _sockets(low, high, ranks, constants, notes)


def _unknown(ranks: int, constants: Constants, notes: tuple[str, ...]) -> Estimate:
    """A network of which nothing is known."""
    low, high = fitted.UNKNOWN_NETWORK
    note = "a network of which nothing is known: TCP"
    return _sockets(low, high, ranks, constants, (*notes, note))


def _sockets(
    low: float, high: float, ranks: int, constants: Constants, notes: tuple[str, ...]
) -> Estimate:
    """A forecast of sockets: the middle of its range, by ratio."""
    return Estimate(
        point=math.sqrt(low * high),
        low=low,
        high=high,
        regime=Regime.TCP,
        limited_by=Limit.NETWORK,
        latency=constants.latency["network"],
        ranks=ranks,
        assumed=notes,
    )


def _least(outer: Estimate, inner: Iterable[Estimate], ranks: int) -> Estimate:
    """The smallest of all, end by end; what is limited is decided by the point."""
    found = outer
    for one in inner:
        held = one.point < found.point
        found = replace(
            found,
            point=min(found.point, one.point),
            low=min(found.low, one.low),
            high=max(min(found.high, one.high), min(found.point, one.point)),
            limited_by=Limit.HOST if held else found.limited_by,
            assumed=tuple(sorted({*found.assumed, *one.assumed})),
        )
    return replace(found, ranks=ranks)


# ---------------------------------------------------------------- what machines are


def _likeness(host: Host) -> tuple[object, ...]:
    return (host.p2p, *((id(machine.links), machine.model, gpus) for machine, gpus in host.parts))


def _model(machine: Machine) -> Model | None:
    return MODELS.get(machine.model or "")


def _lane_rate(machine: Machine) -> float:
    known = _model(machine)
    return known.lane_rate if known and known.lane_rate else ASSUMED_LANE_RATE


def _generation(machine: Machine) -> int | None:
    """The PCIe generation of the slots, else that of the GPU model."""
    if machine.pcie_generation is not None:
        return machine.pcie_generation
    known = _model(machine)
    return known.pcie if known else None


def _switched(host: Host) -> int:
    """NVLinks of each GPU that lead to a switch which joins all of the host; 0 without one.

    The links of the set decide: one GPU off the fabric makes the sets with it slow, and no others.
    """
    fewest = MOST_LANES
    for machine, gpus in host.parts:
        chosen = members(gpus)
        several = len(chosen) > 1
        peers = chosen if several else tuple(range(len(machine.gpus)))
        found = [
            _nvlinks(machine.link(one, other)) for one in chosen for other in peers if one != other
        ]
        behind = machine.nvswitch or (
            len(host.parts) == 1 and several and min(found) > MOST_BRIDGED
        )
        if not behind or not found:
            return 0
        fewest = min(fewest, *found) if several else min(fewest, max(found))
    return fewest


def _nvlinks(link: Link) -> int:
    return link.lanes if link.kind is LinkKind.NVLINK else 0


def _components(
    matrix: Sequence[Sequence[int]], gpus: Iterable[int], start: int | None = None
) -> list[frozenset[int]]:
    """The groups of GPUs that NVLinks join; with `start` only the one that holds it."""
    left = set(gpus)
    found: list[frozenset[int]] = []
    while left:
        seed = start if start is not None else min(left)
        group, frontier = {seed}, [seed]
        while frontier:
            gpu = frontier.pop()
            near = {other for other in left - group if matrix[gpu][other]}
            group |= near
            frontier += near
        found.append(frozenset(group))
        if start is not None:
            return found
        left -= group
    return found


def _rate(link: Link, machine: Machine, doubling: float, constants: Constants) -> float:
    if link.kind is LinkKind.NVLINK and not machine.nvswitch:
        return link.lanes * _lane_rate(machine)
    return _path(link.kind, constants).value * doubling


def _path(kind: LinkKind, constants: Constants) -> Factor:
    """GB/s of a PCIe path at generation 3, by what it crosses."""
    if kind in {LinkKind.PIX, LinkKind.PXB}:
        return constants.pcie_switch
    return constants.pcie_host


def _doubts(host: Host) -> set[str]:
    """What of a host nobody said."""
    found: set[str] = set()
    for machine, _ in host.parts:
        known = _model(machine)
        nvlink = any(
            link is not None and link.kind is LinkKind.NVLINK
            for row in machine.links
            for link in row
        )
        if machine.knowledge is Knowledge.UNKNOWN:
            found.add("links between GPUs: PCIe across sockets")
        elif machine.knowledge is Knowledge.ASSUMED:
            found.add("links between GPUs, by model and count")
        if nvlink and (known is None or known.lane_rate is None):
            found.add(f"{ASSUMED_LANE_RATE:g} GB/s per NVLink of a model that is not known")
        if not nvlink and machine.pcie_generation is None:
            found.add(f"PCIe generation {_generation(machine) or ASSUMED_GENERATION}")
    return found


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


def _made(
    host: Host, regime: Regime, form: float, factor: Factor, constants: Constants
) -> Estimate:
    """The estimate inside a host: a form times its constant."""
    limit = _LIMITS[regime]
    kind = "pcie" if limit in {Limit.PCIE, Limit.MEMORY} else "nvlink"
    slower, faster = _unsure(host, limit)
    return Estimate(
        point=form * factor.value,
        low=form * factor.low * slower,
        high=form * factor.high * faster,
        regime=regime,
        limited_by=limit,
        latency=constants.latency[kind],
        ranks=host.size,
        assumed=tuple(sorted(_doubts(host))),
    )


def _unsure(host: Host, limit: Limit) -> tuple[float, float]:
    """How far the ends of a range move where nobody said the GPU model or the PCIe generation."""
    machine, _ = host.parts[0]
    known = _model(machine)
    if limit in {Limit.NVLINK, Limit.BRIDGE}:
        if known is not None and known.lane_rate is not None:
            return 1.0, 1.0
        widest = max(_nvlinks(link) for row in machine.links for link in row if link is not None)
        rates = [
            one.lane_rate / ASSUMED_LANE_RATE
            for one in MODELS.values()
            if one.lane_rate and (one.nvlinks or MOST_OF_CARDS) >= widest
        ]
        return min(1.0, *rates), max(1.0, *rates)
    if limit is Limit.PCIE and _generation(machine) is None:
        return 1.0, 2.0 ** (NEWEST_GENERATION - ASSUMED_GENERATION)
    return 1.0, 1.0


def _scaled(one: Estimate, by: float) -> Estimate:
    return replace(one, point=one.point * by, low=one.low * by, high=one.high * by)
