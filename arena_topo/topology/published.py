"""How the machine of a node is written down in its cluster: Machine -> ConfigMap.

The format is that of ACK's GPU topology, one ConfigMap per node: devices with their health, links,
bandwidths. Our agent writes more keys: the NICs, when it looked, the UUIDs of the GPUs, and which
of them the kubelet has given to whom. `configmap` reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from arena_topo.topology import NIC, GPUSet, Knowledge, Machine, members

NAMESPACE = "kube-system"
"""Where ACK publishes."""

OWN_NAMESPACE = "arena-topo-system"
"""Where our agents publish."""

VIEW = "cluster-view"
"""The ConfigMap there in which the controller tells what is free."""

NAMESPACES = (OWN_NAMESPACE, NAMESPACE)
"""Where ConfigMaps of topology are believed, best first. Elsewhere anybody may write them, and
could steer other people's jobs."""

OBSERVED = "observedAt"
"""Data key: when the agent last looked at the node (RFC 3339)."""

ALLOCATIONS = "allocations"
"""Data key: JSON of the GPUs that the kubelet has given to pods, `{"NAMESPACE/POD": [0, 3]}`."""

NICS = "nics"
"""Data key: JSON list of the NICs, as `topology show -o json` has them."""

UUIDS = "uuids"
"""Data key: JSON list of the UUIDs of the GPUs, by index."""

STALE = 900.0
"""Seconds after which an agent that has not looked again is taken to be gone."""

SCHEDULE_LABEL = "ack.node.gpu.schedule"
NODE_LABEL = "nodename"

MIRRORED = "arena-topo.io/mirrored"
"""Label of what the controller has copied for ACK's tools, and may change or delete."""

KNOWLEDGE_ANNOTATION = "arena-topo.io/knowledge"
"""Ours: ACK's format cannot say that a matrix is only assumed."""

HEALTHY = "Healthy"
"""The one word that ACK's readers take for health."""


SELF = "N-A"
"""What ACK writes on the diagonal; nvidia-smi writes X."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The GPUs that a node's kubelet had given to pods (`NAMESPACE/POD`), and when (Unix s)."""

    observed_at: float
    gpus: Mapping[str, GPUSet]


def moment(text: object) -> float | None:
    """A time of Kubernetes (RFC 3339) as Unix seconds; None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.timestamp() if found.tzinfo is not None else None
    except (OverflowError, ValueError):
        return None


def object_name(node: str) -> str:
    """What we call the ConfigMap of a node; readers go by its labels."""
    return f"{node}-gpu-topology"


def config_map(
    machine: Machine,
    healthy: GPUSet,
    *,
    namespace: str = NAMESPACE,
    observed_at: float | None = None,
    allocations: Mapping[str, GPUSet] | None = None,
) -> dict[str, Any]:
    """The ConfigMap that `from_config_map` and ACK's readers take for this machine.

    Its format has no room for UUIDs, NUMA nodes and the PCIe generation. NICs that the machine has
    told, `observed_at` (Unix seconds) and `allocations` (`NAMESPACE/POD` -> GPUs) are what only our
    own readers know.
    """
    size = len(machine.gpus)
    data = {
        "nodeName": machine.name,
        "devices": _json(
            {str(i): HEALTHY if healthy >> i & 1 else "Unhealthy" for i in range(size)}
        ),
    }
    if machine.knowledge is not Knowledge.UNKNOWN:
        data["linkType"] = _json(
            [[SELF if link is None else str(link) for link in row] for row in machine.links]
        )
    if machine.bandwidth is not None:
        data["bandwidth"] = _json(machine.bandwidth)
    if machine.measured:
        data["busBandwidth"] = _json(
            {",".join(map(str, members(gpus))): value for gpus, value in machine.measured}
        )
    if machine.nics and not machine.nics_assumed and machine.knowledge is Knowledge.MEASURED:
        data[NICS] = _json([_nic_value(one) for one in machine.nics])
    if observed_at is not None:
        looked = datetime.fromtimestamp(observed_at, UTC).isoformat(timespec="milliseconds")
        data[OBSERVED] = looked.replace("+00:00", "Z")
    if allocations is not None:
        data[ALLOCATIONS] = _json({pod: members(gpus) for pod, gpus in allocations.items()})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": object_name(machine.name),
            "namespace": namespace,
            "labels": {SCHEDULE_LABEL: "topology", NODE_LABEL: machine.name},
            "annotations": {KNOWLEDGE_ANNOTATION: machine.knowledge.value},
        },
        "data": data,
    }


def _nic_value(nic: NIC) -> dict[str, Any]:
    return {
        "name": nic.name,
        "attachment": [str(link) for link in nic.attachment],
        "speedGBps": nic.speed,
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
