"""The objects to delete to uninstall what `install` prints, and the jobs that need them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arena_topo.clusters.rules import job_over, worker_pod_template
from arena_topo.errors import AccessDenied, ArenaError
from arena_topo.manifests import CLAIMS, GANG, INLINE, STATE, Manifest, install
from arena_topo.topology import TAINT
from arena_topo.words import counted, shortened_clauses

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.admin import Administration

_SHOWN = 5
"""The most names in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The input of `kubectl delete -f -`, in order; `marked` nodes keep their label or taint."""

    objects: tuple[Manifest, ...]
    marked: tuple[str, ...] = ()


def removal(admin: Administration) -> Removal:
    """The installed objects, the last created first; ArenaError names the dependent jobs."""
    depending = list(dependents(admin.jobs()))
    if depending:
        jobs = [f"{job} {why}" for job, why in depending]
        raise ArenaError(
            f"{counted(len(depending), 'job')} would be left unfinished",
            why=shortened_clauses(jobs, _SHOWN),
            hint="wait until they have ended, or delete them: arena-topo delete NAME -n NAMESPACE",
        )
    marked: list[str] = []
    with contextlib.suppress(AccessDenied):
        marked = [node["metadata"]["name"] for node in admin.nodes() if _marked(node)]
    newest_first = reversed(install.all_objects())
    installed = (manifest for manifest in newest_first if _installed(manifest, admin))
    return Removal(objects=tuple(map(_reference, installed)), marked=tuple(marked))


def _installed(manifest: Manifest, admin: Administration) -> bool:
    """Whether an object exists; True if that may not be read."""
    try:
        return admin.find(manifest) is not None
    except AccessDenied:
        return True


def _reference(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    named = {key: metadata[key] for key in ("name", "namespace") if key in metadata}
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": named}


def dependents(jobs: Iterable[Manifest]) -> Iterator[tuple[str, str]]:
    """The jobs that need the installed parts, as NAMESPACE/NAME, and what they need them for."""
    for job in jobs:
        if job_over(job):
            continue
        metadata = job["metadata"]
        name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        labels = (worker_pod_template(job).get("metadata") or {}).get("labels") or {}
        if (metadata.get("annotations") or {}).get(STATE) == "waiting":
            yield name, "waits to be started, by the controller where one runs"
        elif INLINE in labels:
            yield name, f"has workers that get their node from {install.PLACEMENT_POLICY}"
        elif CLAIMS in labels:
            yield name, f"has workers that get their GPUs from {install.CLAIMS_POLICY}"
        elif GANG in labels:
            yield name, f"has workers that get their PodGroup from {install.GANG_POLICY}"


def _marked(node: Mapping[str, Any]) -> bool:
    labels = node["metadata"].get("labels") or {}
    taints = (node.get("spec") or {}).get("taints") or ()
    return TAINT in labels or any(taint.get("key") == TAINT for taint in taints)
