"""Which GPUs the workers of a job have been given, as claims and kubelets say.

What may not be read, or is not there, is left out: whoever compares this with a plan finds fewer
differences, never wrong ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from arena_topo.engines import JobStatus
from arena_topo.errors import ArenaError, NotFound, UnreadableTopology
from arena_topo.topology import GPUSet, configmap, members, published

if TYPE_CHECKING:
    from arena_topo.clusters.records import ClaimRecord, Device
    from arena_topo.engines.kubernetes.connection import Connection

MOST_NODES = 32
"""Nodes of a job whose devices are looked at; a larger job is judged by its first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """GPUs (indexes) of a node that somebody has, `who` being `NAMESPACE/POD`."""

    who: str
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """What was found: GPUs by claim, for pods of the job, and by kubelet, for all pods.

    `kubelets` names what the kubelets of the job's nodes have given out, as their agents saw it at
    `observed_at` (Unix seconds, by node).
    """

    claims: tuple[Given, ...] = ()
    kubelets: tuple[Given, ...] = ()
    observed_at: Mapping[str, float] = field(default_factory=dict)


def look(api: Connection, status: JobStatus) -> Sightings:
    """What claims and kubelets say of the nodes that a job was planned on."""
    forecast = status.forecast
    if forecast is None or not forecast.workers:
        return Sightings()
    nodes = list(dict.fromkeys(node for _, node, _ in forecast.workers))[:MOST_NODES]
    claims: tuple[Given, ...] = ()
    if forecast.binding == "claims":
        with contextlib.suppress(ArenaError):
            claims = tuple(_claims(api, status, nodes))
    kubelets, times = _kubelets(api, nodes)
    return Sightings(claims=claims, kubelets=tuple(kubelets), observed_at=times)


def _claims(api: Connection, status: JobStatus, nodes: Iterable[str]) -> Iterable[Given]:
    from arena_topo.clusters import slices  # noqa: PLC0415  only of jobs that claim their GPUs
    from arena_topo.clusters.records import (  # noqa: PLC0415  the same
        ClaimRecord,
        SliceRecord,
        page,
        record,
    )

    for version in slices.VERSIONS:
        root = f"/apis/{slices.GROUP}/{version}"
        path = f"{root}/namespaces/{status.namespace}/resourceclaims"
        try:
            claims = api.records(path, partial(record, "ResourceClaim"), page)
        except NotFound:
            continue
        told = [
            one
            for node in nodes
            for one in api.records(
                f"{root}/resourceslices",
                partial(record, "ResourceSlice"),
                page,
                fieldSelector=f"spec.nodeName={node}",
            )
            if isinstance(one, SliceRecord)
        ]
        places = slices.devices(told, {}, {}, []).places
        return _given([one for one in claims if isinstance(one, ClaimRecord)], places, status)
    return ()


def _given(
    claims: Iterable[ClaimRecord], places: Mapping[Device, tuple[str, GPUSet]], status: JobStatus
) -> list[Given]:
    pods = {one.name for one in status.instances}
    found: list[Given] = []
    for claim in claims:
        gpus: dict[str, set[int]] = {}
        for node, indexes in (places[one] for one in claim.devices if one in places):
            gpus.setdefault(node, set()).update(members(indexes))
        found += [
            Given(who=f"{status.namespace}/{user}", node=node, gpus=tuple(sorted(held)))
            for user in dict.fromkeys(claim.users)
            if user in pods
            for node, held in gpus.items()
        ]
    return found


def _kubelets(api: Connection, nodes: Iterable[str]) -> tuple[list[Given], dict[str, float]]:
    """What agents have written of the kubelets of these nodes."""
    wanted = list(nodes)
    found: list[Given] = []
    times: dict[str, float] = {}
    path = f"/api/v1/namespaces/{published.OWN_NAMESPACE}/configmaps"
    selector = f"{published.NODE_LABEL} in ({','.join(wanted)})"
    try:
        maps = api.collect(path, labelSelector=selector)
    except ArenaError:
        return [], {}
    for one in maps:
        node = str((one["metadata"].get("labels") or {}).get(published.NODE_LABEL))
        try:
            held = configmap.allocations(one)
        except UnreadableTopology:
            continue
        if held is None or node not in wanted:
            continue
        times[node] = held.observed_at
        found += [
            Given(who=who, node=node, gpus=tuple(members(gpus))) for who, gpus in held.gpus.items()
        ]
    return found, times
