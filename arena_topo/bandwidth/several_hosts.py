"""The bandwidth of a whole job: the minimum between its hosts and inside each.

What a calibration measured between hosts limits the machines of its pool, and no others.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from arena_topo.bandwidth import fitted
from arena_topo.bandwidth.estimates import (
    PAIR,
    Algorithm,
    Estimate,
    Factor,
    Host,
    Limit,
    NotModelled,
    Regime,
    Traffic,
    Wire,
    scaled,
)
from arena_topo.bandwidth.fitted import FITTED, Constants
from arena_topo.bandwidth.nics import over_nics, own_nics, ring_over_nics
from arena_topo.bandwidth.one_host import facts_of, inside
from arena_topo.bandwidth.rates import FROM_HOPPER, known_model
from arena_topo.bandwidth.tcp import over_sockets, over_tcp, socket_range
from arena_topo.topology import Machine, PoolRates


def estimate(
    hosts: Sequence[Host],
    *,
    algorithm: Algorithm | None = None,
    wire: Wire | None = None,
    network: float | None = None,
    nearer: float = math.inf,
    among: int | None = None,
    ranks: int | None = None,
    constants: Constants = FITTED,
) -> Estimate | None:
    """The bus bandwidth of an all-reduce among all GPUs of these hosts; None for a single GPU.

    Without `algorithm` it is NCCL's own choice. `wire` joins the hosts; None means RDMA if the
    chosen GPUs have NICs, else a network about which nothing is known. `network` is GB/s that the
    network lets each machine send, if that is given, and infinite for a rate that is applied
    elsewhere: NICs of known speed count up to it, unless all hosts are on one machine, and those of
    unknown speed send as much in all. Where it is not given, `nearer` is that of a nearer network:
    no NICs send more than that, of unknown speed in all. With `among`, these are some hosts of a
    job of so many hosts on several machines with `ranks` GPUs, and the result is the limit by these
    hosts: the job gets the minimum of this over its machines, and of `network_limit`. NotModelled
    for an algorithm without measured rows on such hosts.
    """
    if not all(host.size for host in hosts) or not hosts:
        raise ValueError("each host needs a GPU")
    machines = {machine.name: machine for host in hosts for machine, _ in host.parts}
    local = among is None and len(machines) == 1
    job = Traffic(
        hosts=among or len(hosts),
        ranks=ranks or sum(host.size for host in hosts),
        tree=algorithm is not Algorithm.RING,
        network=network,
        nearer=nearer,
        local=local,
    )
    if job.ranks == 1:
        return None
    if job.hosts == 1:
        return inside(hosts[0], algorithm=algorithm, constants=constants)
    if algorithm in {Algorithm.TREE, Algorithm.NVLS} and job.hosts > PAIR:
        raise NotModelled(
            f"no measured row has NCCL_ALGO={algorithm} forced on three or more hosts"
        )
    if wire is None:
        wire = Wire.RDMA if all(machine.nics for machine in machines.values()) else Wire.TCP
    groups: dict[tuple[object, ...], list[Host]] = {}
    for host in hosts:
        key = () if local else (host.limit, *_measured(host, job, wire))
        groups.setdefault(key, []).append(host)
    values = [_limit(group, job, wire, algorithm, constants) for group in groups.values()]
    return functools.reduce(_slower, values)


def _measured(host: Host, job: Traffic, wire: Wire) -> tuple[object, ...]:
    """The calibration that counts for a host, and whether its NICs do as well; else empty."""
    machines = [machine for machine, _ in host.parts]
    if not measured_between(machines, job.hosts, wire):
        return ()
    return machines[0].pool, _known_nics(host)


def _known_nics(host: Host) -> bool:
    """Whether the speed of all NICs of a host is given."""
    return all(own.nics and None not in {nic.speed for nic in own.nics} for own, _ in host.parts)


def _limit(
    hosts: Sequence[Host],
    job: Traffic,
    wire: Wire,
    algorithm: Algorithm | None,
    constants: Constants,
) -> Estimate:
    """The limit by hosts with the same calibration, if any, and the same limit of their own.

    It is that between them, and inside each.
    """
    job = structs.replace(job, limit=hosts[0].limit)
    machines = {machine.name: machine for host in hosts for machine, _ in host.parts}
    doubts = set().union(*(facts_of(machine).doubts for machine in machines.values()))
    if wire is Wire.RDMA:
        between = over_nics(hosts, job, constants, doubts)
    elif job.local:
        between = over_sockets(fitted.LOCAL_TCP, job, constants, sorted(doubts))
    else:
        between = over_tcp(hosts, job, constants, doubts)
    own = None if job.local else next(iter(machines.values())).pool
    pool = own if measured_between(list(machines.values()), job.hosts, wire) else None
    if pool is not None:
        between = _calibrated(between, pool, hosts, job)
    elif own is not None:
        lacks = f"calibration {own.name} has no job on {job.hosts} such hosts over {wire.upper()}"
        between = structs.replace(between, assumed=(*between.assumed, lacks))
    kinds = {_likeness(host): host for host in hosts if host.size > 1}
    for host in kinds.values():
        ceiling = _ceiling(host, job, wire, algorithm, constants)
        # What was measured between hosts includes their insides, as far as it can.
        between = _least(
            between, ceiling if pool is None else structs.replace(ceiling, point=ceiling.high)
        )
    return between


def measured_between(machines: Sequence[Machine], hosts: int, wire: Wire) -> bool:
    """Whether one calibration, of all these machines, measured jobs of so many hosts."""
    pool = machines[0].pool
    if pool is None or pool.wire != wire or any(machine.pool != pool for machine in machines):
        return False
    return (pool.two if hosts == PAIR else pool.more) is not None


def _calibrated(value: Estimate, pool: PoolRates, hosts: Sequence[Host], job: Traffic) -> Estimate:
    """The limit between hosts that a calibration measured.

    Known NICs still limit their GPUs, and a network of known rate what a host sends.
    """
    rate = pool.two if job.hosts == PAIR else pool.more
    assert rate is not None, "a pool without this rate does not count"
    # A machine was measured with one host; its pods share its network.
    pods = max(Counter(machine.name for host in hosts for machine, _ in host.parts).values())
    by = min(host.size for host in hosts) if pool.each else 1 / pods
    known = value.regime is not Regime.TCP and all(map(_known_nics, hosts))
    most = value.high if known else job.once * job.most
    farther = f"{job.hosts} hosts reach what {pool.hosts} did, the most that were measured"
    return structs.replace(
        value,
        point=min(rate.value * by, most),
        low=min(rate.low * by, most),
        high=min(rate.high * by, most),
        guess=False,
        assumed=(farther,) if job.hosts > pool.hosts else (),
        measured=str(pool),
    )


def network_limit(network: float, *, among: int, ranks: int, wire: Wire) -> float:
    """GB/s of a job of so many hosts and GPUs, as limited by a network of `network` GB/s."""
    if wire is Wire.TCP:
        low, high = socket_range(network)
        return math.sqrt(low * high)
    return FITTED.network.value * Traffic(hosts=among, ranks=ranks).once * network


def _ceiling(
    host: Host, job: Traffic, wire: Wire, algorithm: Algorithm | None, constants: Constants
) -> Estimate:
    """The limit by the inside of a host.

    On two hosts a tree reduces as one host does. That of Ampere and older has less bandwidth inside
    (NCCL's tuning.cc: 24 GB/s a channel, and 39 to 41 on Hopper), so there NCCL chooses the ring
    where the NICs are fast. A ring through three or more hosts leaves each host once, so a GPU's
    NVLinks carry g-1 of its g channels; but never more than one host alone reaches.
    """
    if algorithm is Algorithm.NVLS:
        return inside(host, algorithm=algorithm, constants=constants)
    alone = inside(host, constants=constants)
    if len(host.parts) > 1:
        # An NVLink domain: what leaves it goes over the NICs of its machines.
        racks = fitted.RACKS
        if job.hosts > fitted.FEW_RACKS:
            racks = structs.replace(racks, low=min(racks.low, fitted.MANY_RACKS))
        return _shared(alone, racks)
    architecture = known.architecture if (known := known_model(host.parts[0][0])) else None
    if job.two:
        direct = alone.regime in {Regime.SWITCH, Regime.MESH}
        if direct and architecture is not None and architecture not in FROM_HOPPER:
            tree = _shared(alone, constants.tree)
            if wire is Wire.RDMA:
                over_nics_alone = min(ring_over_nics(host, job, constants), alone.point)
                tree = structs.replace(tree, point=max(tree.point, over_nics_alone))
            return tree
        return _around_sockets(alone, host, wire, constants)
    ring = inside(host, algorithm=Algorithm.RING, constants=constants)
    if ring.regime in {Regime.SWITCH, Regime.MESH}:
        wider = host.size / (host.size - 1)
        ring = scaled(ring, min(wider, max(1.0, alone.point / ring.point)))
    return _around_sockets(ring, host, wire, constants)


def _shared(value: Estimate, share: Factor) -> Estimate:
    """The part of an estimate that a job of several hosts reaches."""
    return structs.replace(
        value,
        point=value.point * share.value,
        low=value.low * share.low,
        high=value.high * share.high,
    )


def _around_sockets(value: Estimate, host: Host, wire: Wire, constants: Constants) -> Estimate:
    """PCIe cards that each have a NIC: the ring goes from NIC to NIC instead of across sockets.

    Then the limit is the port of each card, or its NIC.
    """
    machine, gpus = host.parts[0]
    if value.regime is not Regime.PCIE or wire is not Wire.RDMA:
        return value
    own = own_nics(machine, gpus, constants)
    if own is None or own.value <= value.point:
        return value
    return structs.replace(value, point=own.value, high=max(value.high, own.high))


def _least(network: Estimate, host: Estimate) -> Estimate:
    """The minimum of the limits between hosts and inside one, end by end, with the bottleneck.

    What is assumed inside does not count where a measured network is the limit.
    """
    point = min(network.point, host.point)
    matters = not network.measured or host.point < network.point
    return structs.replace(
        network,
        point=point,
        low=min(network.low, host.low),
        high=max(min(network.high, host.high), point),
        limited_by=Limit.HOST if host.point < network.point else network.limited_by,
        assumed=tuple(sorted({*network.assumed, *(host.assumed if matters else ())})),
        measured=host.measured if host.point < network.point else network.measured,
        # An assumed network is no guess at what it cannot limit.
        guess=(matters and host.guess) or (network.guess and network.low < host.point),
    )


def _slower(value: Estimate, other: Estimate) -> Estimate:
    """The minimum of the limits by different hosts, end by end."""
    slow, fast = sorted((value, other), key=lambda own: own.point)
    return structs.replace(
        slow,
        low=min(slow.low, fast.low),
        high=max(min(slow.high, fast.high), slow.point),
        assumed=tuple(sorted({*slow.assumed, *fast.assumed})),
        guess=slow.guess or (fast.guess and fast.low < slow.point),
    )


def _likeness(host: Host) -> tuple[object, ...]:
    return tuple(
        (id(machine.links), id(machine.gpus), id(machine.nics), machine.software, gpus)
        for machine, gpus in host.parts
    )
