"""A node's links -> the ConfigMap that ACK's readers and ours take them from."""

from __future__ import annotations

import contextlib
from typing import Any

from arena_topo.backends import Publication, observed
from arena_topo.backends.kubernetes.connection import CONFLICT, Connection
from arena_topo.errors import AlreadyExists, ArenaError, ClusterError, NotFound, UsageError
from arena_topo.manifests import is_node_name
from arena_topo.topology import Machine, published

Object = dict[str, Any]

_PATH = f"/api/v1/namespaces/{published.NAMESPACE}/configmaps"

_ATTEMPTS = 3
"""Others, such as ACK's own agent, may write the same object between our reading and writing."""


def publish(api: Connection, machine: Machine, *, dry_run: bool) -> Publication:
    """Create or replace the ConfigMap of the node that the machine is named after.

    NotFound if there is no such node; ArenaError if it has another number of GPUs, or shares them.
    """
    _check(api, machine)
    query = {"dryRun": "All"} if dry_run else {}
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(_Overtaken):
            return _write(api, machine, query)
    raise ClusterError(
        f"the topology of node {machine.name} is being written by somebody else",
        hint="try again",
    )


class _Overtaken(ArenaError):
    """Somebody else has written the object since it was read."""


def _write(api: Connection, machine: Machine, query: dict[str, str]) -> Publication:
    found = _existing(api, machine.name)
    if found is None:
        manifest = published.config_map(machine, machine.everything)
        try:
            api.post(_PATH, manifest, **query)
        except AlreadyExists as error:
            raise _Overtaken(error.message) from error
        return Publication(manifest=manifest, outcome="created")
    manifest = published.updated(found, machine, machine.everything)
    if manifest == {**found, "apiVersion": "v1", "kind": "ConfigMap"}:
        return Publication(manifest=manifest, outcome="unchanged")
    try:
        api.put(f"{_PATH}/{manifest['metadata']['name']}", manifest, **query)
    except ClusterError as error:
        if error.status != CONFLICT:
            raise
        raise _Overtaken(error.message) from error
    except NotFound as error:
        raise _Overtaken(error.message) from error
    return Publication(manifest=manifest, outcome="configured")


def _check(api: Connection, machine: Machine) -> None:
    """Refuse what no reader could use: another machine's links, or those of shared GPUs."""
    name = machine.name
    if not is_node_name(name):
        raise UsageError(f"{name!r} is not a name that a node can have")
    try:
        found = api.get(f"/api/v1/nodes/{name}")
    except NotFound as error:
        raise NotFound(
            f"there is no node {name} in this cluster",
            why=error.message,
            hint="kubectl get nodes lists them; name one: arena-topo topology publish NODE",
        ) from error
    seen = observed.cluster([{**found, "kind": "Node"}], source="").nodes
    has = len(seen[0].machine.gpus) if seen else 0
    if has != len(machine.gpus):
        raise ArenaError(
            f"node {name} has {has} GPUs, not {len(machine.gpus)}",
            why="its capacity says so: " + (seen[0].resource if has else "no GPU resource in it"),
            hint="is it another machine, does its device plugin run, has a GPU fallen off the bus?",
        )
    if seen[0].shared is not None:
        raise ArenaError(
            f"the GPUs of node {name} are not whole: {seen[0].shared}",
            why="workers get GPUs by their links only where each has whole GPUs",
        )


def _existing(api: Connection, node: str) -> Object | None:
    """The ConfigMap that readers find for the node, else one of our name; None without either."""
    selector = f"{published.SCHEDULE_LABEL}=topology,{published.NODE_LABEL}={node}"
    found = api.collect(_PATH, labelSelector=selector)
    if not found:
        try:
            found = [api.get(f"{_PATH}/{published.object_name(node)}")]
        except NotFound:
            return None
    # Items of a list say neither their version nor their kind.
    return {"apiVersion": "v1", "kind": "ConfigMap", **found[0], "data": found[0].get("data") or {}}
