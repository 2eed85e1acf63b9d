"""Submit MPI training jobs with arena's commands, each worker placed on the best-linked GPUs.

What a program needs is here: `submit`, `plan`, `get` and the other verbs (`arena_topo.api`), the
values they take and return, and what they raise. It is loaded when it is asked for, as the command
line does this import each time that somebody presses TAB.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, whose import would take longer than all of this
if TYPE_CHECKING:
    from arena_topo.api import (
        Tell,
        check,
        cluster,
        delete,
        get,
        inspect,
        list_jobs,
        logs,
        machine,
        picture,
        plan,
        presets,
        read_fabric,
        read_machine,
        replan,
        resume,
        submit,
        suspend,
        top_jobs,
        top_nodes,
        value,
        wait,
        why,
    )
    from arena_topo.backends import Event, Instance, JobStatus, Options, Phase
    from arena_topo.errors import (
        AccessDenied,
        AlreadyExists,
        ArenaError,
        ClusterError,
        InvalidJob,
        InvalidValue,
        JobDeleted,
        JobFailed,
        NotFound,
        NotPossible,
        TimedOut,
        UnreadableTopology,
        UsageError,
    )
    from arena_topo.job import (
        BindingChoice,
        Claim,
        CleanPodPolicy,
        ConfigFile,
        Device,
        Duration,
        EnvVar,
        HostPath,
        ImagePullPolicy,
        KeyValue,
        MPIImplementation,
        MPIJob,
        NodeLoss,
        PlacementPolicy,
        PodShape,
        Quantity,
        SyncMode,
        Toleration,
    )
    from arena_topo.manifests import Forecast, Plan
    from arena_topo.manifests.versions import ApiVersion
    from arena_topo.output.values import LogLine, Logs
    from arena_topo.solver import Placement, Unplaceable, Verdict
    from arena_topo.topology import Cluster, Machine
    from arena_topo.workflow.checks import Report
    from arena_topo.workflow.comparison import Proposal
    from arena_topo.workflow.inspection import Inspection
    from arena_topo.workflow.listing import Order
    from arena_topo.workflow.overview import Overview
    from arena_topo.workflow.restarting import NotNow
    from arena_topo.workflow.submission import Submitted
    from arena_topo.workflow.submitting import Exists
    from arena_topo.workflow.viewing import SeenJob
    from arena_topo.workflow.waiting import Ending, Goal, Standing
    from arena_topo.workflow.why import Explanation

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "ApiVersion",
    "ArenaError",
    "BindingChoice",
    "Claim",
    "CleanPodPolicy",
    "Cluster",
    "ClusterError",
    "ConfigFile",
    "Device",
    "Duration",
    "Ending",
    "EnvVar",
    "Event",
    "Exists",
    "Explanation",
    "Forecast",
    "Goal",
    "HostPath",
    "ImagePullPolicy",
    "Inspection",
    "Instance",
    "InvalidJob",
    "InvalidValue",
    "JobDeleted",
    "JobFailed",
    "JobStatus",
    "KeyValue",
    "LogLine",
    "Logs",
    "MPIImplementation",
    "MPIJob",
    "Machine",
    "NodeLoss",
    "NotFound",
    "NotNow",
    "NotPossible",
    "Options",
    "Order",
    "Overview",
    "Phase",
    "Placement",
    "PlacementPolicy",
    "Plan",
    "PodShape",
    "Proposal",
    "Quantity",
    "Report",
    "SeenJob",
    "Standing",
    "Submitted",
    "SyncMode",
    "Tell",
    "TimedOut",
    "Toleration",
    "Unplaceable",
    "UnreadableTopology",
    "UsageError",
    "Verdict",
    "__version__",
    "check",
    "cluster",
    "delete",
    "get",
    "inspect",
    "list_jobs",
    "logs",
    "machine",
    "picture",
    "plan",
    "presets",
    "read_fabric",
    "read_machine",
    "replan",
    "resume",
    "submit",
    "suspend",
    "top_jobs",
    "top_nodes",
    "value",
    "wait",
    "why",
]

# What is not of `api`, by the module that it comes from.
_HOMES = {
    "backends": "Event Instance JobStatus Options Phase",
    "errors": "AccessDenied AlreadyExists ArenaError ClusterError InvalidJob InvalidValue"
    " JobDeleted JobFailed NotFound NotPossible TimedOut UnreadableTopology UsageError",
    "job": "BindingChoice Claim CleanPodPolicy ConfigFile Device Duration EnvVar HostPath"
    " ImagePullPolicy KeyValue MPIImplementation MPIJob NodeLoss PlacementPolicy PodShape Quantity"
    " SyncMode Toleration",
    "manifests": "Forecast Plan",
    "manifests.versions": "ApiVersion",
    "output.values": "LogLine Logs",
    "solver": "Placement Unplaceable Verdict",
    "topology": "Cluster Machine",
    "workflow.checks": "Report",
    "workflow.comparison": "Proposal",
    "workflow.inspection": "Inspection",
    "workflow.listing": "Order",
    "workflow.overview": "Overview",
    "workflow.restarting": "NotNow",
    "workflow.submission": "Submitted",
    "workflow.submitting": "Exists",
    "workflow.viewing": "SeenJob",
    "workflow.waiting": "Ending Goal Standing",
    "workflow.why": "Explanation",
}

if not TYPE_CHECKING:

    def __getattr__(name):  # noqa: ANN001, ANN202 - checkers read the imports above
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - nothing is loaded before it is needed

        room = next((room for room, names in _HOMES.items() if name in names.split()), "api")
        found = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
