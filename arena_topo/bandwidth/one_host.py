"""The bandwidth inside one host: NVLinks with and without a switch, PCIe, host memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from msgspec import structs

from arena_topo.bandwidth import fitted, packing
from arena_topo.bandwidth.estimates import (
    PAIR,
    Algorithm,
    Estimate,
    Factor,
    Host,
    Limit,
    NotModelled,
    Regime,
    scaled,
)
from arena_topo.bandwidth.fitted import FITTED, Constants
from arena_topo.bandwidth.rates import (
    ASSUMED_GENERATION,
    ASSUMED_LANE_RATE,
    FROM_AMPERE,
    MOST_CACHED_MACHINES,
    assumptions,
    is_guess,
    lane_rate,
    path_rate,
    pcie_generation_of,
)
from arena_topo.topology import GPUSet, Link, LinkKind, Machine, Plugin, count, members
from arena_topo.topology.models import MODELS, MOST_LANES, Architecture

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

_RING = 3


def inside(
    host: Host, *, algorithm: Algorithm | None = None, constants: Constants = FITTED
) -> Estimate:
    """The bus bandwidth of two or more GPUs of one host; NotModelled as in `estimate`."""
    parts = tuple((facts_of(machine, constants), gpus) for machine, gpus in host.parts)
    return _inside(parts, algorithm)


class MachineFacts:
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
        self.p2p = machine.software.p2p
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
        if not self.p2p or not self.machine.nvswitch or not _switched(part):
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
    def ring(self) -> Factor:
        """The share of their NVLinks that rings reach."""
        volta = self.model is not None and self.model.architecture is Architecture.VOLTA
        return self.constants.volta if volta else self.constants.nvlink

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
        return pcie_generation_of(self.machine)

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
        return path_rate(link.kind, self.constants).value * self.doubling

    @functools.cached_property
    def sockets_known(self) -> bool:
        """Whether the links tell sockets apart: not if NVLink hides the paths, or all are SYS."""
        kinds = {link.kind for row in self.machine.links for link in row if link is not None}
        return LinkKind.NVLINK not in kinds and kinds != {LinkKind.SYS}

    @functools.cached_property
    def doubts(self) -> frozenset[str]:
        """The facts about the machine that are assumed."""
        return frozenset(assumptions(self.machine))

    @functools.cached_property
    def guess(self) -> bool:
        """Whether one of them is a guess."""
        return is_guess(self.machine)


_facts_cache: dict[tuple[object, ...], MachineFacts] = {}


def facts_of(machine: Machine, constants: Constants = FITTED) -> MachineFacts:
    """The facts of a machine; a cache by identity of its parts has the latest machines."""
    if constants is not FITTED:
        return MachineFacts(machine, constants)
    key = (
        *(id(machine.links), id(machine.gpus), id(machine.measured), machine.software),
        *(machine.nvswitch, machine.pcie_generation, machine.knowledge),
    )
    facts = _facts_cache.get(key)
    if facts is None:
        if len(_facts_cache) > MOST_CACHED_MACHINES:
            _facts_cache.clear()
        # The facts refer to their machine, so these ids cannot be reused.
        facts = _facts_cache[key] = MachineFacts(machine)
    return facts


_Parts = tuple[tuple[MachineFacts, GPUSet], ...]


def _inside(parts: _Parts, algorithm: Algorithm | None = None) -> Estimate:
    computed = _computed(parts, algorithm)
    facts, gpus = parts[0]
    if len(parts) > 1 or algorithm is not None:
        return computed
    pool = facts.machine.pool
    if pool is not None and pool.inside is not None:
        computed = structs.replace(
            computed,
            point=computed.point * pool.inside.value,
            low=computed.point * pool.inside.low,
            high=computed.point * pool.inside.high,
            measured=str(pool),
        )
    if not facts.measured:
        return computed
    measured = facts.measured.get(gpus)
    if measured is not None:
        return structs.replace(
            computed,
            point=measured,
            low=measured,
            high=measured,
            assumed=(),
            guess=False,
            measured=_table_of(facts),
        )
    twin = facts.twin(gpus)
    if twin is None:
        return computed
    return structs.replace(scaled(computed, twin / computed.point), measured=_table_of(facts))


def _table_of(facts: MachineFacts) -> str:
    """When the sets of a machine were measured, in a sentence."""
    when = facts.machine.measured_on
    return f"measured {when}" if when else ""


def _computed(
    parts: _Parts, algorithm: Algorithm | None = None, *, ranks: int | None = None
) -> Estimate:
    if algorithm is Algorithm.TREE:
        raise NotModelled("no measured row has NCCL_ALGO=Tree on a single host")
    facts, gpus = parts[0]
    constants = facts.constants
    size = sum(count(gpus) for _, gpus in parts) if ranks is None else ranks
    if not facts.p2p and len(parts) == 1:
        # The transport that is off is that of NVLink, too.
        return _staged(facts, gpus, constants)
    lanes = _switched(parts)
    if lanes:
        form = lanes * facts.lane_rate
        model = facts.model
        reduced = constants.nvls.get(model.architecture) if model else None
        plugged = facts.machine.software.plugin is Plugin.TCPX
        if (
            model is not None
            and reduced is not None
            and not plugged
            and algorithm is not Algorithm.RING
            and (algorithm is Algorithm.NVLS or size >= NVLS_FROM[model.architecture])
        ):
            at = min(size, FLAT)
            form *= 2 * (at - 1) / (at + 1)
            # A domain of several machines has rows of its own, all of Blackwell.
            several = size > count(gpus) and model.architecture is Architecture.BLACKWELL
            share = constants.domain if several else reduced
            reducing = _of_form(parts, Regime.NVLS, form, share, constants)
            if model.nvls or algorithm is Algorithm.NVLS:
                return reducing
            ring = _of_form(parts, Regime.SWITCH, lanes * facts.lane_rate, facts.ring, constants)
            return structs.replace(ring, high=reducing.high)
        if algorithm is not Algorithm.NVLS:
            share = constants.tcpx if plugged else facts.ring
            return _of_form(parts, Regime.SWITCH, form, share, constants)
    if algorithm is Algorithm.NVLS:
        raise NotModelled("NVLS needs Hopper or Blackwell GPUs behind an NVSwitch")
    if len(parts) > 1:
        raise ValueError("GPUs of several machines are one host only in an NVLink domain")
    return facts.direct(gpus)


def _direct(facts: MachineFacts, gpus: GPUSet) -> Estimate:
    """GPUs without a switch: over NVLink rings if there are any, else over PCIe."""
    parts, constants = ((facts, gpus),), facts.constants
    matrix = facts.lanes
    inside_set = members(gpus)
    rate = facts.lane_rate
    joined = packing.components(inside_set, lambda gpu, peer: matrix[gpu][peer] > 0)
    lanes = [matrix[gpu][peer] for gpu in inside_set for peer in inside_set if gpu < peer]
    if len(inside_set) == PAIR and lanes[0]:
        all_joined = packing.components(range(len(matrix)), lambda gpu, peer: matrix[gpu][peer] > 0)
        alone = frozenset(inside_set) in all_joined
        if alone and lanes[0] <= MOST_BRIDGED:
            # A pair seen alone may be two GPUs of a larger mesh.
            share = structs.replace(constants.bridge, value=facts.ring.value, high=facts.ring.high)
            return _of_form(parts, Regime.BRIDGE, lanes[0] * rate, share, constants)
        return _of_form(parts, Regime.MESH, lanes[0] * rate, facts.ring, constants)
    if len(inside_set) >= _RING:
        rings = packing.most_rings(matrix, gpus) if len(joined) == 1 else 0
        form = rate * max((len(inside_set) - 1) * min(lanes), 2 * rings)
        if form:
            modern = facts.model is not None and facts.model.architecture in FROM_AMPERE
            share = constants.mesh if modern and min(lanes) else facts.ring
            return _of_form(parts, Regime.MESH, form, share, constants)
    if facts.model is not None and not facts.model.p2p:
        return _staged(facts, gpus, constants)
    return _over_pcie(facts, gpus, joined, constants)


def _over_pcie(
    facts: MachineFacts, gpus: GPUSet, joined: Sequence[frozenset[int]], constants: Constants
) -> Estimate:
    parts = ((facts, gpus),)
    rates, doubling = facts.rates, facts.doubling
    order = packing.ring_order(rates, gpus)
    pairs = [(gpu, order[place - 1]) for place, gpu in enumerate(order)]
    slowest = min(pairs, key=lambda pair: rates[pair[0]][pair[1]])
    kind = facts.machine.link(*slowest).kind
    path = path_rate(kind, constants)
    if len(joined) > 1 and all(len(group) >= PAIR for group in joined):
        # A ring enters a pair at one card and leaves it at the other, so its mirror image fits too.
        form = 2 * doubling * path.value
        return _of_form(parts, Regime.ISLANDS, form, constants.islands, constants)
    if len(joined) == 1:
        return _of_form(parts, Regime.NO_RING, doubling, _relayed(path), constants)
    return _of_form(parts, Regime.PCIE, doubling, path, constants)


def _relayed(path: Factor) -> Factor:
    """A set connected by NVLinks without a ring: its PCIe path, or relays over other GPUs."""
    return structs.replace(
        path, low=path.value * fitted.UNRELAYED, high=path.value * fitted.RELAYED
    )


def _staged(facts: MachineFacts, gpus: GPUSet, constants: Constants) -> Estimate:
    """Copies through host memory: the middle of a wide range, as no form explains its width."""
    near = packing.components(
        members(gpus), lambda gpu, peer: facts.machine.link(gpu, peer).kind > LinkKind.SYS
    )
    low, high = fitted.STAGED
    value = math.sqrt(low * high)
    if facts.sockets_known:
        value *= fitted.SOCKETS_APART ** (0.5 if len(near) > 1 else -0.5)
    generation = facts.machine.pcie_generation
    if generation is not None:
        port = path_rate(LinkKind.PIX, constants).value * 2.0 ** (generation - ASSUMED_GENERATION)
        value, high = min(value, port), min(high, port * fitted.PORT_HIGH)
    staged = Factor(value=value, low=min(low, value), high=high)
    return _of_form(((facts, gpus),), Regime.STAGED, 1.0, staged, constants)


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
        guess=any(facts.guess for facts, _ in parts),
    )


def _unsure(facts: MachineFacts, limit: Limit) -> tuple[float, float]:
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
