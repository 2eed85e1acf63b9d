"""The types of what is found inside the values that the verbs return, to be named in annotations.

The values themselves are in the package (`arena_topo.JobStatus`). Two that have the name of another
are called otherwise here: `SeenDevice` and `Baseline`.
"""

from __future__ import annotations

from arena_topo.admin.checks import Finding, Outcome
from arena_topo.bandwidth import Estimate, Limit, Regime, Wire
from arena_topo.bandwidth.fitted import Factor
from arena_topo.engines.kubernetes.facts import Denied
from arena_topo.engines.metrics import GpuSample
from arena_topo.engines.occupancy import NodePod, NodeStatus, Occupancy, Share
from arena_topo.gang.comparison import Comparison
from arena_topo.manifests import Binding, Guarantee
from arena_topo.reasons.case import Code, Diagnosis
from arena_topo.reasons.drift import Device as SeenDevice
from arena_topo.reasons.drift import Difference, Kind, Sight
from arena_topo.reasons.explanation import Holder, Turn, Waiting
from arena_topo.reasons.launcher_log import LauncherLog
from arena_topo.solver import Assignment, Policy, Proof, Reason, Refusal, Request
from arena_topo.solver.baselines import Outcome as Baseline
from arena_topo.topology import GPU, NIC, Knowledge, Link, LinkKind, Node, Taint, Tier
from arena_topo.topology.fabric import FabricFile, Level, NodeNICs
from arena_topo.topology.nics import NICs

__all__ = [
    "GPU",
    "NIC",
    "Assignment",
    "Baseline",
    "Binding",
    "Code",
    "Comparison",
    "Denied",
    "Diagnosis",
    "Difference",
    "Estimate",
    "FabricFile",
    "Factor",
    "Finding",
    "GpuSample",
    "Guarantee",
    "Holder",
    "Kind",
    "Knowledge",
    "LauncherLog",
    "Level",
    "Limit",
    "Link",
    "LinkKind",
    "NICs",
    "Node",
    "NodeNICs",
    "NodePod",
    "NodeStatus",
    "Occupancy",
    "Outcome",
    "Policy",
    "Proof",
    "Reason",
    "Refusal",
    "Regime",
    "Request",
    "SeenDevice",
    "Share",
    "Sight",
    "Taint",
    "Tier",
    "Turn",
    "Waiting",
    "Wire",
]
