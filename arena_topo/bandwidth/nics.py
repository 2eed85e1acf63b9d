"""The bandwidth between hosts over RDMA: the NICs of the chosen GPUs, and the network's limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import structs

from arena_topo.bandwidth import fitted
from arena_topo.bandwidth.estimates import Estimate, Factor, Host, Limit, Regime, Traffic
from arena_topo.bandwidth.fitted import FITTED, Constants
from arena_topo.bandwidth.rates import (
    ASSUMED_GENERATION,
    MOST_CACHED_MACHINES,
    known_model,
    path_rate,
    pcie_generation_of,
    per_host,
)
from arena_topo.topology import GPUSet, LinkKind, Machine, Plugin, count, members
from arena_topo.topology.models import Model
from arena_topo.topology.nics import NICs

SLOWEST_RAIL, FASTEST_RAIL = 12.5, 50.0
"""GB/s of a NIC about which nothing is known: EDR and 100GbE to NDR, as in the measured rows."""


def over_nics(
    hosts: Sequence[Host], job: Traffic, constants: Constants, doubts: set[str]
) -> Estimate:
    """The limit by RDMA between the hosts alone."""
    rails, assumed = _rails(hosts, job, constants)
    open_ended = rails.low < rails.high or rails.value >= job.nearer
    net, once = constants.network, job.once
    point = net.value * once * rails.value
    low = min(net.low, fitted.UNTUNED)
    return Estimate(
        point=point,
        low=min(low * rails.low, point),
        high=min(net.high, 1.0) * once * rails.high,
        regime=Regime.TWO_HOSTS if job.two else Regime.HOSTS,
        limited_by=Limit.NETWORK if rails.value >= job.most else Limit.NICS,
        latency=constants.latency["network"],
        ranks=job.ranks,
        assumed=tuple(sorted(doubts | assumed)),
        # An assumed NIC is no guess at what it cannot limit; a network of unknown rate is one, as
        # it may have less than a nearer one.
        guess=job.network is None and bool(assumed) and open_ended,
    )


def ring_over_nics(host: Host, job: Traffic, constants: Constants) -> float:
    """GB/s of a ring through the NICs of one host."""
    alone = structs.replace(job, network=None, nearer=math.inf, limit=math.inf)
    return constants.network.value * _rails([host], alone, constants)[0].value


def usual_nics(machine: Machine) -> Machine:
    """The machine with the usual NICs of its kind, of assumed speed, if its NICs are not known."""
    if machine.nics:
        return machine
    model = known_model(machine)
    number = len(machine.gpus) if model is not None and model.nic else 1
    return NICs(number=number, speed=None).of(machine)


def _rails(hosts: Sequence[Host], job: Traffic, constants: Constants) -> tuple[Factor, set[str]]:
    """GB/s that the weakest host sends over its NICs and the network, and the assumptions."""
    machines: dict[str, Machine] = {}
    pods: dict[str, list[tuple[int, GPUSet]]] = {}
    for at, host in enumerate(hosts):
        for machine, gpus in host.parts:
            machines[machine.name] = machine
            pods.setdefault(machine.name, []).append((at, gpus))
    totals = [(0.0, 0.0, 0.0)] * len(hosts)
    doubts: list[frozenset[str]] = [frozenset()] * len(hosts)
    for name, machine in machines.items():
        own = [gpus for _, gpus in pods[name]]
        by_pod = _sent(machine, own, job, constants)
        for (at, _), (sent, notes) in zip(pods[name], by_pod, strict=True):
            rates = _at_most(sent, job.most)
            value, low, high = totals[at]
            totals[at] = (value + rates[0], low + rates[1], high + rates[2])
            doubts[at] |= notes
    value, low, high = (min(column) for column in zip(*totals, strict=True))
    return Factor(value=value, low=low, high=high), set().union(*doubts)


_Range = tuple[float, float, float]


def _at_most(rates: _Range, most: float) -> _Range:
    value, low, high = rates
    return min(value, most), min(low, most), min(high, most)


def sent_by(
    machine: Machine,
    gpus: GPUSet,
    *,
    among: int,
    ranks: int,
    network: float | None = None,
    nearer: float = math.inf,
    limit: float = math.inf,
) -> float:
    """GB/s that these GPUs of a machine send over their NICs, which add up over machines.

    The job has `among` hosts and `ranks` GPUs; `network`, `nearer` and `limit` as in `estimate`.
    """
    job = Traffic(hosts=among, ranks=ranks, network=network, nearer=nearer, limit=limit)
    return _rails([Host.of(machine, gpus)], job, FITTED)[0].value


def _sent(
    machine: Machine, pods: Sequence[GPUSet], job: Traffic, constants: Constants
) -> Iterator[tuple[_Range, frozenset[str]]]:
    """GB/s that each pod of a machine sends over its NICs, with its range, and the assumptions.

    NICs of unknown speed send as much as the network takes from a machine, if that is known, in all
    pods together; if it is only known what the network takes at most, they send no more than that.
    """
    nics = _nics_of(machine)
    speeds = nics.speeds
    cards = [{card for gpu in members(gpus) for card in nics.nearest[gpu]} for gpus in pods]
    users = Counter(card for own in cards for card in own)
    generation = pcie_generation_of(machine)
    by_software = _share_of_nics(machine, constants)
    for gpus, own in zip(pods, cards, strict=True):
        sent = [0.0, 0.0, 0.0]
        for card in own:
            speed = speeds[card][0]
            for at, rate in enumerate((speed.value, speed.low, speed.high)):
                sent[at] += rate / users[card]
        notes = frozenset(speeds[card][1] for card in own) - {""}
        part = per_host(job.rate, len(pods))
        if notes and job.network is None:
            sent = [min(sent[0], part), min(sent[1], part), sent[2]]
        elif notes:
            sent = [part, part, max(part, sent[2])]
            notes = frozenset()
            if len(pods) > 1 and math.isfinite(part):
                notes = frozenset({f"NICs of a node that send {job.network:g} GB/s in all"})
        if generation is not None:
            port = path_rate(LinkKind.PIX, constants).value * 2.0 ** (
                generation - ASSUMED_GENERATION
            )
            # The efficiencies of NICs and of ports are the same loss, counted once.
            most = count(gpus) * port / constants.network.value
            sent = [min(rate, most) for rate in sent]
        if gpus & nics.far:
            sent[1] *= fitted.FAR_NIC
        sent = [rate * share for rate, share in zip(sent, by_software, strict=True)]
        yield (sent[0], sent[1], sent[2]), notes


def _share_of_nics(machine: Machine, constants: Constants) -> _Range:
    """The part of what NICs usually send that the software of a machine lets through."""
    plugin, gdr, unknown = machine.software.plugin or machine.nics_plugin, machine.software.gdr, 1.0
    rows = constants.cxi if plugin is Plugin.CXI else None if gdr else constants.no_gdr
    if plugin in UNMEASURED:
        unknown = fitted.UNKNOWN_PLUGIN
    if rows is None:
        return 1.0, unknown, 1.0
    usual = constants.network
    low = min(rows.low / min(usual.low, fitted.UNTUNED), 1.0)
    high = min(rows.high / min(usual.high, 1.0), 1.0)
    return rows.value / usual.value, low * unknown, high


UNMEASURED = frozenset({Plugin.TCPX, Plugin.GIB, Plugin.UCX, Plugin.SPCX})
"""Network plug-ins without rows between hosts: they change the range alone."""


def own_nics(machine: Machine, gpus: GPUSet, constants: Constants) -> Factor | None:
    """GB/s through the NICs of each of these GPUs; None unless each has known ones nearby."""
    if not machine.nics:
        return None
    nics = _nics_of(machine)
    speeds = nics.speeds
    cards = {gpu: nics.nearest[gpu] for gpu in members(gpus)}
    used = [(gpu, machine.nics[card]) for gpu, own in cards.items() for card in own]
    shared = len({card for own in cards.values() for card in own}) < len(used)
    near = all(nic.speed and nic.attachment[gpu].kind >= LinkKind.PXB for gpu, nic in used)
    if not used or shared or not near:
        return None
    slowest = min(sum(speeds[card][0].value for card in own) for own in cards.values())
    generation = pcie_generation_of(machine) or ASSUMED_GENERATION
    port = path_rate(LinkKind.PIX, constants)
    doubling = 2.0 ** (generation - ASSUMED_GENERATION)
    net = constants.network
    return Factor(
        value=min(port.value * doubling, net.value * slowest),
        low=min(port.low * doubling, net.low * slowest),
        high=min(port.high * doubling, min(net.high, 1.0) * slowest),
    )


def nearest_nics(machine: Machine, gpu: int) -> tuple[int, ...]:
    """The NICs that a GPU uses: the nearest among its fastest.

    NCCL prefers the path with the most bandwidth, then the shortest (src/graph/search.cc,
    ncclTopoGetLocal), so a management port beside the GPU is not used if rails are faster.
    """
    return _nics_of(machine).nearest[gpu] if machine.nics else ()


class _NICFacts:
    """The NICs of a machine, or the usual ones of its kind, as its GPUs use them.

    `speeds` has GB/s of each NIC, and the assumption about it. `nearest` has the NICs of each GPU,
    and `far` the GPUs that reach theirs through the CPU.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        cards, model = usual_nics(machine).nics, known_model(machine)
        kinds = {nic.speed: _speed(nic.speed, model) for nic in cards}
        self.speeds = [kinds[nic.speed] for nic in cards]
        best = max(speed.value for speed, _ in self.speeds)
        fast = [card for card, (speed, _) in enumerate(self.speeds) if speed.value == best]
        self.nearest: list[tuple[int, ...]] = []
        self.far = GPUSet(0)
        for gpu in range(len(machine.gpus)):
            if not best:
                self.nearest.append(())
                continue
            paths = {card: cards[card].attachment[gpu].kind for card in fast}
            near = max(paths.values())
            self.nearest.append(tuple(card for card in fast if paths[card] == near))
            # GPUDirect RDMA is meant for PCIe switches (NCCL_NET_GDR_LEVEL is PXB).
            if near < LinkKind.PXB:
                self.far = GPUSet(self.far | 1 << gpu)


_nics_cache: dict[tuple[int, int], _NICFacts] = {}


def _nics_of(machine: Machine) -> _NICFacts:
    """The NICs of a machine; a cache by identity of its parts has the latest machines."""
    key = id(machine.nics), id(machine.gpus)
    facts = _nics_cache.get(key)
    if facts is None:
        if len(_nics_cache) > MOST_CACHED_MACHINES:
            _nics_cache.clear()
        # The facts refer to GPUs and NICs, so these ids cannot be reused.
        facts = _nics_cache[key] = _NICFacts(machine)
    return facts


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
