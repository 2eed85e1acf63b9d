"""Writer of the ConfigMap that describes a node's machine: Machine -> ConfigMap.

The format is that of ACK's GPU topology, one ConfigMap per node: devices with their health, links,
bandwidths. Our agent writes more keys: the NICs, the time of its observation, the UUIDs of the
GPUs, and the pods to which the kubelet has given them. `documents` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from arena_topo.topology import NIC, GPUSet, Knowledge, Machine, members

ACK_NAMESPACE = "kube-system"
"""The namespace in which ACK publishes."""

OWN_NAMESPACE = "arena-topo-system"
"""The namespace in which our agents publish."""

VIEW = "cluster-view"
"""The ConfigMap there with the controller's view of free GPUs."""

TRUSTED_NAMESPACES = (OWN_NAMESPACE, ACK_NAMESPACE)
"""The trusted namespaces of topology ConfigMaps, best first. Elsewhere any user may write them, and
could steer other people's jobs."""

OBSERVED = "observedAt"
"""Data key: the time of the agent's last observation (RFC 3339)."""

ALLOCATIONS = "allocations"
"""Data key: JSON of the GPUs that the kubelet has given to pods, `{"NAMESPACE/POD": [0, 3]}`."""

NICS = "nics"
"""Data key: JSON list of the NICs, as `topology show -o json` has them."""

UUIDS = "uuids"
"""Data key: JSON list of the UUIDs of the GPUs, by index."""

STALE_REPORT_SECONDS = 900.0
"""Seconds after which an agent without a new observation counts as gone."""

SCHEDULE_LABEL = "ack.node.gpu.schedule"
NODE_LABEL = "nodename"

MIRRORED = "arena-topo.io/mirrored"
"""Label of the controller's copies for ACK's tools, which it may change or delete."""

KNOWLEDGE_ANNOTATION = "arena-topo.io/knowledge"
"""Ours: ACK's format cannot express that a matrix is only assumed."""

HEALTHY = "Healthy"
"""The only value that ACK's readers accept as healthy."""


SELF = "N-A"
"""ACK's word on the diagonal; nvidia-smi writes X."""


MEASURED_ON = "busBandwidthMeasured"
"""The day and the version of NCCL of `busBandwidth`: `2026-05-31, NCCL 2.21.5`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The GPUs that a node's kubelet had given to pods (`NAMESPACE/POD`), and when (Unix s)."""

    observed_at: float
    gpus: Mapping[str, GPUSet]


def parse_time(text: object) -> float | None:
    """A time of Kubernetes (RFC 3339) as Unix seconds; None for an invalid one."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.timestamp() if parsed.tzinfo is not None else None
    except (OverflowError, ValueError):
        return None


def config_map_name(node: str) -> str:
    """Our name for the ConfigMap of a node; readers go by its labels."""
    return f"{node}-gpu-topology"


def config_map(
    machine: Machine,
    healthy: GPUSet,
    *,
    namespace: str = ACK_NAMESPACE,
    observed_at: float | None = None,
    allocations: Mapping[str, GPUSet] | None = None,
) -> dict[str, Any]:
    """The ConfigMap for this machine in the format of `from_config_map` and of ACK's readers.

    The format has no field for UUIDs, NUMA nodes and the PCIe generation. Only our own readers use
    the keys for NICs that the machine reported, `observed_at` (Unix seconds) and `allocations`
    (`NAMESPACE/POD` -> GPUs).
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
        if machine.measured_on:
            data[MEASURED_ON] = machine.measured_on
    if machine.nics and not machine.nics_assumed and machine.knowledge is Knowledge.MEASURED:
        data[NICS] = _json([nic_value(nic) for nic in machine.nics])
    if observed_at is not None:
        looked = datetime.fromtimestamp(observed_at, UTC).isoformat(timespec="milliseconds")
        data[OBSERVED] = looked.replace("+00:00", "Z")
    if allocations is not None:
        data[ALLOCATIONS] = _json({pod: members(gpus) for pod, gpus in allocations.items()})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(machine.name),
            "namespace": namespace,
            "labels": {SCHEDULE_LABEL: "topology", NODE_LABEL: machine.name},
            "annotations": {KNOWLEDGE_ANNOTATION: machine.knowledge.value},
        },
        "data": data,
    }


def nic_value(nic: NIC) -> dict[str, Any]:
    """A NIC for JSON."""
    return {
        "name": nic.name,
        "attachment": [str(link) for link in nic.attachment],
        "speedGBps": nic.speed,
    }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
