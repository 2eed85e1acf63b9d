"""The types of the Python API: the client, some functions, and all types that they use.

The package itself exports all of these names (`arena_topo.Client`). If two types have the same
name, one has another name here: `SeenDevice`.
"""

import sys

from arena_topo.admin.checks import CheckReport as CheckReport
from arena_topo.admin.checks import CheckResult as CheckResult
from arena_topo.admin.checks import Prerequisite as Prerequisite
from arena_topo.admin.inspection import Inspection as Inspection
from arena_topo.bandwidth import Estimate as Estimate
from arena_topo.bandwidth import Limit as Limit
from arena_topo.bandwidth import Regime as Regime
from arena_topo.bandwidth import Wire as Wire
from arena_topo.bandwidth.estimates import Factor as Factor
from arena_topo.client import Client as Client
from arena_topo.client import LogLine as LogLine
from arena_topo.client import Logs as Logs
from arena_topo.client import Tell as Tell
from arena_topo.client import json_value as json_value
from arena_topo.client import machine as machine
from arena_topo.client import picture as picture
from arena_topo.client import presets as presets
from arena_topo.client import read_machine as read_machine
from arena_topo.engines import Event as Event
from arena_topo.engines import Instance as Instance
from arena_topo.engines import JobStatus as JobStatus
from arena_topo.engines import Options as Options
from arena_topo.engines import Phase as Phase
from arena_topo.engines.engine_choice import read_fabric as read_fabric
from arena_topo.engines.goals import Ending as Ending
from arena_topo.engines.goals import Goal as Goal
from arena_topo.engines.goals import Standing as Standing
from arena_topo.engines.kubernetes.facts import Denied as Denied
from arena_topo.engines.metrics import GpuSample as GpuSample
from arena_topo.engines.occupancy import GpuShare as GpuShare
from arena_topo.engines.occupancy import NodePod as NodePod
from arena_topo.engines.occupancy import NodeStatus as NodeStatus
from arena_topo.engines.occupancy import Occupancy as Occupancy
from arena_topo.errors import AccessDenied as AccessDenied
from arena_topo.errors import AlreadyExists as AlreadyExists
from arena_topo.errors import ArenaError as ArenaError
from arena_topo.errors import ClusterError as ClusterError
from arena_topo.errors import InvalidJob as InvalidJob
from arena_topo.errors import InvalidValue as InvalidValue
from arena_topo.errors import JobDeleted as JobDeleted
from arena_topo.errors import JobExists as JobExists
from arena_topo.errors import JobFailed as JobFailed
from arena_topo.errors import JobNotFound as JobNotFound
from arena_topo.errors import NoGain as NoGain
from arena_topo.errors import NotFound as NotFound
from arena_topo.errors import NotNow as NotNow
from arena_topo.errors import NotPossible as NotPossible
from arena_topo.errors import TimedOut as TimedOut
from arena_topo.errors import UnreadableTopology as UnreadableTopology
from arena_topo.errors import UsageError as UsageError
from arena_topo.gang import Exists as Exists
from arena_topo.gang.submission import Submitted as Submitted
from arena_topo.job import BindingChoice as BindingChoice
from arena_topo.job import Claim as Claim
from arena_topo.job import CleanPodPolicy as CleanPodPolicy
from arena_topo.job import ConfigFile as ConfigFile
from arena_topo.job import DataSize as DataSize
from arena_topo.job import Device as Device
from arena_topo.job import Duration as Duration
from arena_topo.job import EnvVar as EnvVar
from arena_topo.job import HostPath as HostPath
from arena_topo.job import ImagePullPolicy as ImagePullPolicy
from arena_topo.job import KeyValue as KeyValue
from arena_topo.job import MPIImplementation as MPIImplementation
from arena_topo.job import MPIJob as MPIJob
from arena_topo.job import NodeLoss as NodeLoss
from arena_topo.job import PlacementPolicy as PlacementPolicy
from arena_topo.job import PodShape as PodShape
from arena_topo.job import Quantity as Quantity
from arena_topo.job import StepTime as StepTime
from arena_topo.job import SyncMode as SyncMode
from arena_topo.job import Toleration as Toleration
from arena_topo.jobs.job_order import Order as Order
from arena_topo.jobs.proposal import Proposal as Proposal
from arena_topo.jobs.proposal import SchedulerComparison as SchedulerComparison
from arena_topo.manifests import Binding as Binding
from arena_topo.manifests import Guarantee as Guarantee
from arena_topo.manifests import PlacementForecast as PlacementForecast
from arena_topo.manifests import Plan as Plan
from arena_topo.manifests.annotations import LastStop as LastStop
from arena_topo.manifests.cause import Cause as Cause
from arena_topo.manifests.forecast import Move as Move
from arena_topo.manifests.versions import ApiVersion as ApiVersion
from arena_topo.nodes.overview import Overview as Overview
from arena_topo.queueing.patience import PatientWait as PatientWait
from arena_topo.reasons import drift as _drift
from arena_topo.reasons.case import Code as Code
from arena_topo.reasons.case import Diagnosis as Diagnosis
from arena_topo.reasons.drift import Difference as Difference
from arena_topo.reasons.drift import DifferenceKind as DifferenceKind
from arena_topo.reasons.drift import WorkerGpus as WorkerGpus
from arena_topo.reasons.explanation import BlockingHolder as BlockingHolder
from arena_topo.reasons.explanation import Explanation as Explanation
from arena_topo.reasons.explanation import OwnReservation as OwnReservation
from arena_topo.reasons.explanation import QueuePosition as QueuePosition
from arena_topo.reasons.explanation import WaitingGang as WaitingGang
from arena_topo.reasons.job_reading import SeenJob as SeenJob
from arena_topo.reasons.launcher_log import LauncherLog as LauncherLog
from arena_topo.simulate import Durations as Durations
from arena_topo.simulate import ReplayPolicy as ReplayPolicy
from arena_topo.simulate import SimulationRequest as SimulationRequest
from arena_topo.simulate.cases import ReplayCase as ReplayCase
from arena_topo.simulate.cases import ReplayedJob as ReplayedJob
from arena_topo.simulate.cases import RunningJob as RunningJob
from arena_topo.simulate.cases import Sample as Sample
from arena_topo.simulate.cases import Trace as Trace
from arena_topo.simulate.cases import TraceJob as TraceJob
from arena_topo.simulate.measures import ReplayMeasures as ReplayMeasures
from arena_topo.simulate.measures import SizeMeasures as SizeMeasures
from arena_topo.simulate.replay import ReplayRules as ReplayRules
from arena_topo.simulate.running import Simulation as Simulation
from arena_topo.simulate.running import SimulationPlan as SimulationPlan
from arena_topo.simulate.traces import Poisson as Poisson
from arena_topo.solver import Assignment as Assignment
from arena_topo.solver import Placement as Placement
from arena_topo.solver import Policy as Policy
from arena_topo.solver import Proof as Proof
from arena_topo.solver import Reason as Reason
from arena_topo.solver import Refusal as Refusal
from arena_topo.solver import Request as Request
from arena_topo.solver import Unplaceable as Unplaceable
from arena_topo.solver import Verdict as Verdict
from arena_topo.topology import GPU as GPU
from arena_topo.topology import NIC as NIC
from arena_topo.topology import Cluster as Cluster
from arena_topo.topology import Holding as Holding
from arena_topo.topology import Knowledge as Knowledge
from arena_topo.topology import Link as Link
from arena_topo.topology import LinkKind as LinkKind
from arena_topo.topology import Machine as Machine
from arena_topo.topology import MeasuredRate as MeasuredRate
from arena_topo.topology import Node as Node
from arena_topo.topology import Plugin as Plugin
from arena_topo.topology import PoolRates as PoolRates
from arena_topo.topology import Reservation as Reservation
from arena_topo.topology import Software as Software
from arena_topo.topology import Taint as Taint
from arena_topo.topology import Tier as Tier
from arena_topo.topology.fabric import FabricFile as FabricFile
from arena_topo.topology.fabric import Level as Level
from arena_topo.topology.fabric import NodeNICs as NodeNICs
from arena_topo.topology.fabric import NodeSoftware as NodeSoftware
from arena_topo.topology.nics import NICs as NICs
from arena_topo.training import Ratio as Ratio
from arena_topo.training import Span as Span
from arena_topo.training import Workload as Workload
from arena_topo.training.times import PlacementTime as PlacementTime
from arena_topo.training.times import TrainingTimes as TrainingTimes

SeenDevice = _drift.SeenDevice

# `help` evaluates annotations; the modules of these types import them for checkers alone.
for _type, _annotations in (
    (JobStatus, (PlacementForecast, LastStop)),
    (Plan, (MPIJob, Placement, Request)),
    (SeenJob, (Difference, Explanation, GpuSample)),
):
    vars(sys.modules[_type.__module__]).update(
        {annotation.__name__: annotation for annotation in _annotations}
    )
