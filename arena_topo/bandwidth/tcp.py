"""The bandwidth between hosts over TCP: a share of one NIC, or of an unknown network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import structs

from arena_topo.bandwidth import fitted
from arena_topo.bandwidth.estimates import Estimate, Host, Limit, Regime, Traffic
from arena_topo.bandwidth.fitted import Constants
from arena_topo.bandwidth.rates import FROM_AMPERE, known_model, per_host
from arena_topo.topology import Machine


def over_tcp(
    hosts: Sequence[Host], job: Traffic, constants: Constants, doubts: set[str]
) -> Estimate:
    """Sockets between machines: a share of one NIC, which the pods of a machine share.

    A NIC of unknown speed is ignored, as pods without RDMA seldom use the rails: the NIC is as fast
    as the network, if its rate is known.
    """
    pods = Counter(name for host in hosts for name in {machine.name for machine, _ in host.parts})
    machines = {machine.name: machine for host in hosts for machine, _ in host.parts}
    rates = {
        name: per_host(
            max((nic.speed or 0.0 for nic in machine.nics), default=0.0) or job.rate, pods[name]
        )
        for name, machine in machines.items()
    }
    notes, guess = sorted(doubts), False
    span = socket_range(min([*rates.values(), job.most]))
    unnamed = [own for own in machines.values() if not any(nic.speed for nic in own.nics)]
    if job.network is None and unnamed:
        most = socket_range(min(rates[own.name] for own in unnamed))
        unknown = min(most, *map(unknown_range, unnamed))
        if span >= unknown:
            span, guess = unknown, True
            notes.append("an unknown network: TCP")
    return structs.replace(over_sockets(span, job, constants, notes), guess=guess)


def unknown_range(machine: Machine) -> tuple[float, float]:
    """The range in GB/s of sockets on an unknown network, by a machine's age."""
    model = known_model(machine)
    if model is not None and model.architecture in FROM_AMPERE:
        return fitted.UNKNOWN_TCP_NEW
    return fitted.UNKNOWN_TCP


def socket_range(rate: float) -> tuple[float, float]:
    """The range in GB/s of sockets on a network of known rate."""
    high = min(fitted.TCP_SHARE * rate, fitted.MOST_TCP)
    return max(min(fitted.UNKNOWN_TCP[0], high / 2), high / fitted.TCP_WIDTH), high


def over_sockets(
    span: tuple[float, float], job: Traffic, constants: Constants, notes: Iterable[str]
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
