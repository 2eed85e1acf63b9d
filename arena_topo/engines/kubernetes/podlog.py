"""The log endpoint of a pod: which container and run it serves, and what its refusals mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from arena_topo.clusters.rules import OVER
from arena_topo.engines.kubernetes.mpijob import seconds
from arena_topo.engines.kubernetes.shapes import ContainerStatus, kube_object
from arena_topo.engines.lines import LogOptions, Source
from arena_topo.errors import BAD_REQUEST, ArenaError, ClusterError, NotFound

Object = dict[str, Any]

MAIN_CONTAINER = "mpi"
"""The name of the main container, as arena and the training operator create it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """The state of a container, as its pod's status says.

    `run` is the number of its restarts; `over`: that run has ended; `final`: there will be no other
    run. `begun` and `begun_before` are the start times of this run and of the run before it (Unix
    seconds, 0 if unknown).
    """

    run: int = 0
    readable: bool = False
    over: bool = False
    final: bool = False
    begun: float = 0.0
    begun_before: float = 0.0


def log_fields(pod: Object) -> Object:
    """The fields of a pod that its log and the address of a TensorBoard need."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return {
        "metadata": _only(meta, "name", "uid", "labels", "annotations"),
        "spec": {
            "containers": [_only(container, "name") for container in spec.get("containers") or ()],
            **_only(spec, "restartPolicy"),
        },
        "status": _only(status, "phase", "hostIP", "containerStatuses", "initContainerStatuses"),
    }


def _only(part: Object, *keys: str) -> Object:
    return {key: part[key] for key in keys if key in part}


def container_view(pod: Object, container: str) -> ContainerView:
    """The state of a container, by the rules of the kubelet that chooses the run to serve."""
    fields = kube_object(pod)
    inits, mains = fields.status.init_container_statuses, fields.status.container_statuses
    named = (status for status in (*inits, *mains) if status.name == container)
    status = next(named, ContainerStatus())
    before, ended, running = (
        status.last_state.terminated,
        status.state.terminated,
        status.state.running,
    )
    policy = fields.spec.restart_policy or "Always"
    stays = ended is not None and (
        policy == "Never" or (ended.exit_code == 0 and (policy == "OnFailure" or status in inits))
    )
    # Between two runs the last run can be read.
    run = running or ended or before
    return ContainerView(
        run=status.restart_count,
        readable=run is not None,
        over=running is None,
        final=fields.status.phase in OVER or stays,
        begun=(seconds(run.started_at) if run else None) or 0.0,
        begun_before=(seconds(before.started_at) if before else None) or 0.0,
    )


def since_parameters(options: LogOptions) -> dict[str, str]:
    """The parameters that leave out the beginning of a log."""
    query = {
        "tailLines": None if options.tail is None else str(options.tail),
        "sinceSeconds": None if options.since is None else str(options.since),
        "sinceTime": options.since_time,
    }
    return {key: value for key, value in query.items() if value is not None}


def main_container(pod: Object) -> str | None:
    """The container whose log is wanted: a running or failed init container, else the main one."""
    for status in kube_object(pod).status.init_container_statuses:
        state = status.state
        if state.running is not None and not status.started:
            return status.name
        if state.terminated is not None and state.terminated.exit_code:
            return status.name
    return default_container(pod)


def default_container(pod: Object) -> str | None:
    """The main container: the annotated one, else arena's, else the first; None without any."""
    fields = kube_object(pod)
    names = [container.name for container in fields.spec.containers]
    chosen = fields.metadata.annotations.get("kubectl.kubernetes.io/default-container")
    if chosen in names:
        return chosen
    return MAIN_CONTAINER if MAIN_CONTAINER in names else next(iter(names), None)


def too_early(error: ArenaError) -> bool:
    """Whether the kubelet says that it is too early: no node yet, or no container yet."""
    return (
        isinstance(error, ClusterError)
        and error.status == BAD_REQUEST
        and re.search(r"waiting to start|host assigned", error.message) is not None
    )


def silence_error(source: Source, seconds: float) -> ClusterError:
    """The error of a log that exists and does not come."""
    return ClusterError(
        f"no more of the log of {source.pod} came for {seconds:g} s",
        why="the API server, or the kubelet of the pod's node behind it, does not answer",
        hint=f"see how the node is: kubectl describe pod {source.pod}; then read it again",
    )


def no_earlier_run_error(source: Source) -> NotFound:
    """The error of a container without an earlier run."""
    return NotFound(
        f"container {source.container} of pod {source.pod} has no earlier run",
        why="its first run is the current one, or the run before is no longer stored",
        hint="read the current log: leave out --previous",
    )


def no_previous(error: ArenaError) -> bool:
    """Whether the kubelet says that a container has no earlier run."""
    return (
        isinstance(error, ClusterError)
        and error.status == BAD_REQUEST
        and re.search(r"previous terminated container .* not found", error.message) is not None
    )
