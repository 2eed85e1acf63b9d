"""A job and its placement -> a Plan of Kubernetes objects, for v1alpha1, v1 and v2beta1.

    values      Plan and the small values in it
    render      a job -> its objects, through the templates; nothing is pinned yet
    volumes     what is mounted where in the containers
    binding     how a placement is made to hold: which mechanism, and what that guarantees
    pinning     the job with its workers pinned, and without
    claims      the claims of GPUs that workers take
    gates       the patch that gives one worker its place
    request     what a job asked of the solver, for whoever starts it later
    transition  the JSON patches between waiting, placed, held and running
    record      what is written on a job about its placement, and read back
    text        objects -> YAML and JSON that kubectl takes for the same objects

Pure but for reading the templates and the path of a `--config-file` without a target.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.manifests.values import (
    ApiVersion,
    Binding,
    Forecast,
    Guarantee,
    Manifest,
    Mechanisms,
    Plan,
)

if TYPE_CHECKING:
    from arena_topo.job import ConfigFile, MPIJob
    from arena_topo.manifests.binding import bind
    from arena_topo.manifests.claims import claims_of
    from arena_topo.manifests.gates import waits_at_gate, worker_patch
    from arena_topo.manifests.pinning import claims_gpus, dropped, gated, placed, unplaced
    from arena_topo.manifests.record import (
        is_node_name,
        parse_map,
        placement_map,
        recorded,
    )
    from arena_topo.manifests.render import check, render
    from arena_topo.manifests.request import job_of, requested
    from arena_topo.manifests.text import object_name, to_json, to_yaml
    from arena_topo.solver import Placement, Request
    from arena_topo.topology import Cluster

__all__ = [
    "ApiVersion",
    "Binding",
    "Forecast",
    "Guarantee",
    "Manifest",
    "Mechanisms",
    "Plan",
    "bind",
    "check",
    "claims_gpus",
    "claims_of",
    "dropped",
    "gated",
    "is_node_name",
    "job_of",
    "object_name",
    "parse_map",
    "placed",
    "placement_map",
    "plan",
    "recorded",
    "render",
    "requested",
    "to_json",
    "to_yaml",
    "unplaced",
    "waits_at_gate",
    "worker_patch",
]


_ROOMS = {
    "binding": ("bind",),
    "claims": ("claims_of",),
    "gates": ("waits_at_gate", "worker_patch"),
    "pinning": ("claims_gpus", "dropped", "gated", "placed", "unplaced"),
    "record": ("is_node_name", "parse_map", "placement_map", "recorded"),
    "render": ("check", "render"),
    "request": ("job_of", "requested"),
    "text": ("object_name", "to_json", "to_yaml"),
}


def __getattr__(name: str) -> Any:
    """What commands that only look never need is imported when it is first asked for (PEP 562)."""
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def plan(
    job: MPIJob,
    *,
    namespace: str,
    api: ApiVersion,
    owner: str,
    files: Mapping[ConfigFile, str],
    request: Request | None = None,
    placement: Placement | None = None,
    cluster: Cluster | None = None,
    waiting: str | None = None,
    binding: Binding | None = None,
    mechanisms: Mechanisms | None = None,
    kept: bool = False,
) -> Plan:
    """Build every object of a job; with a placement, pinned as firmly as the template allows.

    `owner` is the user's name; `files` holds the text of each `--config-file`. A job that must
    wait is built suspended and unpinned. `binding` is for an engine that binds by itself; without
    it, `bind` chooses by what `mechanisms` say that the cluster offers. `kept`: some nodes are kept
    for topology jobs by ACK's label, so other GPU jobs go elsewhere. InvalidJob if this version
    cannot express the job, or no namespace can be called so.
    """
    from arena_topo.job.syntax import check_namespace  # noqa: PLC0415
    from arena_topo.manifests.binding import bind, keeping, offered  # noqa: PLC0415
    from arena_topo.manifests.claims import claims_of  # noqa: PLC0415
    from arena_topo.manifests.pinning import kept_off, placed  # noqa: PLC0415
    from arena_topo.manifests.record import annotated, forecast_of  # noqa: PLC0415
    from arena_topo.manifests.render import check, remarks, render  # noqa: PLC0415
    from arena_topo.topology.published import SCHEDULE_LABEL  # noqa: PLC0415

    check_namespace(namespace)
    check(job, api)
    pinned = None if waiting is not None else placement
    bound = None if pinned is None else binding or bind(job, pinned, cluster, api, mechanisms)
    first, *others = render(
        job,
        namespace=namespace,
        api=api,
        owner=owner,
        files=files,
        resource=offered(job, pinned, cluster, api),
        suspend=job.queue or waiting is not None,
        topology=job.gputopology or pinned is not None,
    )
    forecast = None
    if waiting is not None:
        emulated = cluster is not None and cluster.emulated
        forecast = Forecast(state="waiting", reason=waiting, emulated=emulated)
    elif pinned is not None and bound is not None:
        forecast = forecast_of(pinned, cluster, bound)
        first = placed(first, pinned, bound, kept=keeping(pinned, cluster))
        others += claims_of(first, pinned, bound, cluster)
    elif kept and job.gpus and not any(one.key == SCHEDULE_LABEL for one in job.selector):
        first = kept_off(first)
    if forecast is not None:
        first = annotated(first, forecast)
    return Plan(
        job=job,
        namespace=namespace,
        api=api,
        objects=(first, *others),
        request=request,
        placement=placement,
        binding=bound,
        forecast=forecast,
        waiting=waiting,
        notes=(*remarks(job, api), *(cluster.notes if cluster is not None else ())),
    )
