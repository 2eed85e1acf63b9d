"""Patience: a gang waits, up to a limit, while it could have far more bandwidth than is offered.

Best is the bandwidth that the gang could get on the nodes that are ready and not cordoned if no job
of arena-topo ran, within its own limits. Only known rates count: if the offer rests on an assumed
network, nobody knows what waiting is worth. Where the kubelet picks the GPUs, the worst set counts
on both sides: emptier nodes would promise no better one.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import structs

from arena_topo.queueing import Situation, Waiting
from arena_topo.solver import Placement, Request, band, band_edge

WORTHWHILE = 1 / 3
"""The share of the best bandwidth from which a gang starts: our choice. In replays
(docs/simulate.md) a fifth and a half did as well with a reservation; two thirds made the mean time
to completion longer with RDMA, in each of three seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientWait:
    """What a gang waits for, and until when (Unix seconds), in place of a placement offered now."""

    best: Placement
    offer: Placement
    until: float

    @property
    def times(self) -> float:
        """How many times slower the offer is."""
        best, offer = self.best.bandwidth, self.offer.bandwidth
        assert best is not None
        assert offer is not None
        return best.point / offer.point

    @property
    def place(self) -> str:
        """The place of the best placement: `one node`."""
        return nodes_text(self.best)

    @property
    def value(self) -> dict[str, object]:
        """What the gang waits for, for JSON: the place and GB/s there."""
        assert self.best.bandwidth is not None
        return {"place": self.place, "bandwidthGBps": float(f"{self.best.bandwidth.point:.6g}")}

    def __str__(self) -> str:
        """Both in words: `one node: 8.5 x slower on two now`."""
        here = (
            "on others" if self.place == nodes_text(self.offer) else f"on {len(self.offer.nodes)}"
        )
        return f"{self.place}: {self.times:.1f} x slower {here} now"


def nodes_text(placement: Placement) -> str:
    """The number of nodes of a placement."""
    nodes = len(placement.nodes)
    return "one node" if nodes == 1 else f"{nodes} nodes"


def least_bandwidth(
    request: Request, best: Placement | None, *, share: float = WORTHWHILE
) -> float:
    """The least GB/s with which a gang should start, by its best placement; 0 if any will do."""
    rate = None if best is None else _promised(request, best).bandwidth
    return 0.0 if rate is None or rate.guess else band_edge(band(rate.point)) * share


def _promised(request: Request, placement: Placement) -> Placement:
    """The placement with the bandwidth that is promised to a gang."""
    worst = placement.worst if request.blind else None
    return placement if worst is None else structs.replace(placement, bandwidth=worst)


def patient_request(gang: Waiting, situation: Situation, *, share: float = WORTHWHILE) -> Request:
    """The request of a gang, with the least bandwidth for which it waits now."""
    if situation.now >= gang.until:
        return gang.request
    least = least_bandwidth(gang.request, situation.best_ever(gang.request), share=share)
    return structs.replace(gang.request, min_bandwidth=max(least, gang.request.min_bandwidth))


def waits_for(
    request: Request,
    offer: Placement,
    best: Placement | None,
    *,
    until: float,
    share: float = WORTHWHILE,
) -> PatientWait | None:
    """The wait for the best placement that would be worth it in place of an offer; else None.

    `best` is the best placement on the emptied cluster; the gang is patient `until` a time.
    """
    least, rate = least_bandwidth(request, best, share=share), _promised(request, offer).bandwidth
    if best is None or rate is None or rate.guess or rate.point >= least:
        return None
    best, offer = (_promised(request, placement) for placement in (best, offer))
    return PatientWait(best=best, offer=offer, until=until)
