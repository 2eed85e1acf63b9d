"""Which GPUs the workers of a job have been given, as claims and kubelets say.

What may not be read, or is not there, is left out: whoever compares this with a plan finds fewer
differences, never wrong ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arena_topo.clusters import slices
from arena_topo.engines import JobStatus
from arena_topo.errors import ArenaError, NotFound, UnreadableTopology
from arena_topo.topology import configmap, members, published

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.connection import Connection

Object = Mapping[str, Any]

DRA = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")

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
    for version in VERSIONS:
        root = f"/apis/{DRA}/{version}"
        try:
            claims = api.collect(
                f"{root}/namespaces/{status.namespace}/resourceclaims", slices.project_claim
            )
        except NotFound:
            continue
        published_here = [
            one
            for node in nodes
            for one in api.collect(
                f"{root}/resourceslices",
                slices.project_slice,
                fieldSelector=f"spec.nodeName={node}",
            )
        ]
        places = slices.inventory(published_here, {}, {}, []).places
        return _given(claims, places, status)
    return ()


def _given(claims: Iterable[Object], places: Mapping[Any, Any], status: JobStatus) -> list[Given]:
    pods = {one.name for one in status.instances}
    found: list[Given] = []
    for claim in claims:
        inside = claim["status"]
        users = [
            str(one["name"])
            for one in inside["reservedFor"]
            if one.get("resource") == "pods" and one.get("name") in pods
        ]
        gpus: dict[str, set[int]] = {}
        for result in inside["allocation"]["devices"]["results"]:
            device = (result.get("driver", ""), result.get("pool", ""), result.get("device", ""))
            if device in places:
                node, indexes = places[device]
                gpus.setdefault(str(node), set()).update(members(indexes))
        found += [
            Given(who=f"{status.namespace}/{user}", node=node, gpus=tuple(sorted(held)))
            for user in users
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
