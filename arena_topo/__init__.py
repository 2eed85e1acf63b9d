"""Submit MPI training jobs with arena's commands, each worker placed on the best-linked GPUs.

What a program needs is here: `submit`, `plan`, `get` and the other verbs (`arena_topo.client`), the
values they take and return, and what they raise. It is loaded when it is asked for, as the command
line does this import each time that somebody presses TAB.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in `typing`, whose import would take longer than all of this
if TYPE_CHECKING:
    from arena_topo.admin.checks import Report
    from arena_topo.admin.inspection import Inspection
    from arena_topo.as_json import LogLine, Logs
    from arena_topo.client import (
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
    from arena_topo.engines import Event, Instance, JobStatus, Options, Phase
    from arena_topo.engines.waiting import Ending, Goal, Standing
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
    from arena_topo.gang.comparison import Proposal
    from arena_topo.gang.restarting import NotNow
    from arena_topo.gang.submission import Submitted
    from arena_topo.gang.submitting import Exists
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
    from arena_topo.jobs.filtering import Order
    from arena_topo.manifests import Forecast, Plan
    from arena_topo.manifests.versions import ApiVersion
    from arena_topo.nodes.overview import Overview
    from arena_topo.reasons.explanation import Explanation
    from arena_topo.reasons.viewing import SeenJob
    from arena_topo.solver import Placement, Unplaceable, Verdict
    from arena_topo.topology import Cluster, Machine

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

# What is not of `client`, by the module that it comes from.
_HOMES = {
    "admin.checks": "Report",
    "admin.inspection": "Inspection",
    "as_json": "LogLine Logs",
    "engines": "Event Instance JobStatus Options Phase",
    "engines.waiting": "Ending Goal Standing",
    "errors": "AccessDenied AlreadyExists ArenaError ClusterError InvalidJob InvalidValue"
    " JobDeleted JobFailed NotFound NotPossible TimedOut UnreadableTopology"
    " UsageError",
    "gang.comparison": "Proposal",
    "gang.restarting": "NotNow",
    "gang.submission": "Submitted",
    "gang.submitting": "Exists",
    "job": "BindingChoice Claim CleanPodPolicy ConfigFile Device Duration EnvVar HostPath"
    " ImagePullPolicy KeyValue MPIImplementation MPIJob NodeLoss PlacementPolicy"
    " PodShape Quantity SyncMode Toleration",
    "jobs.filtering": "Order",
    "manifests": "Forecast Plan",
    "manifests.versions": "ApiVersion",
    "nodes.overview": "Overview",
    "reasons.explanation": "Explanation",
    "reasons.viewing": "SeenJob",
    "solver": "Placement Unplaceable Verdict",
    "topology": "Cluster Machine",
}

if not TYPE_CHECKING:

    def __getattr__(name):  # noqa: ANN001, ANN202 - checkers read the imports above
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - nothing is loaded before it is needed

        room = next((room for room, names in _HOMES.items() if name in names.split()), "client")
        found = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
