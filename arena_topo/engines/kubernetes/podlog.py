"""The log of one pod over HTTP: which container and which run of it, and what refusals mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from arena_topo.clusters.usage import pod_over
from arena_topo.engines.kubernetes.mpijob import seconds
from arena_topo.engines.lines import LogOptions, Source
from arena_topo.errors import ArenaError, ClusterError, NotFound

Object = dict[str, Any]

MAIN_CONTAINER = "mpi"
"""What arena and the training operator call the container that matters."""

_BAD_REQUEST = 400
_OVERLOADED = 429
_SERVER_ERRORS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a look at a pod tells of one of its containers.

    `run` counts its restarts. It is `over` when that run has ended, and `final` when no other will
    come. `begun` and `begun_before` are when this run and the one before it started: Unix seconds,
    0 where that is not told.
    """

    run: int = 0
    readable: bool = False
    over: bool = False
    final: bool = False
    begun: float = 0.0
    begun_before: float = 0.0


def slim(pod: Object) -> Object:
    """Of a pod what its log is found by."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    return {
        "metadata": {key: meta.get(key) for key in ("name", "uid", "labels", "annotations")},
        "spec": {
            "containers": [{"name": one.get("name")} for one in spec.get("containers") or ()],
            "restartPolicy": spec.get("restartPolicy"),
        },
        "status": {
            key: (pod.get("status") or {}).get(key)
            for key in ("phase", "containerStatuses", "initContainerStatuses")
        },
    }


def sight(pod: Object, container: str) -> Sight:
    """What is known of a container: as a kubelet does that decides which run's log to send."""
    status = pod.get("status") or {}
    inits, mains = status.get("initContainerStatuses") or (), status.get("containerStatuses") or ()
    one: Object = next((one for one in (*inits, *mains) if one.get("name") == container), {})
    state, before = one.get("state") or {}, (one.get("lastState") or {}).get("terminated")
    ended = state.get("terminated")
    policy = (pod.get("spec") or {}).get("restartPolicy") or "Always"
    stays = ended is not None and (
        policy == "Never"
        or (ended.get("exitCode") == 0 and (policy == "OnFailure" or one in inits))
    )
    running = state.get("running")
    # While it waits to be started again, the run before is the one that can be read.
    told = running or ended or before or {}
    return Sight(
        run=int(one.get("restartCount") or 0),
        readable=running is not None or ended is not None or before is not None,
        over=running is None,
        final=pod_over(pod) or stays,
        begun=seconds(told.get("startedAt")) or 0.0,
        begun_before=seconds((before or {}).get("startedAt")) or 0.0,
    )


def cut(options: LogOptions) -> dict[str, str]:
    """The parameters that leave out the beginning of a log."""
    query = {
        "tailLines": None if options.tail is None else str(options.tail),
        "sinceSeconds": None if options.since is None else str(options.since),
        "sinceTime": options.since_time,
    }
    return {key: value for key, value in query.items() if value is not None}


def main_container(pod: Object) -> str | None:
    """The container a person means: the init container that runs now, else the main one."""
    status = pod.get("status") or {}
    for one in status.get("initContainerStatuses") or ():
        state = one.get("state") or {}
        if "running" in state and not one.get("started"):
            return str(one["name"])
        if (state.get("terminated") or {}).get("exitCode"):
            return str(one["name"])
    return default_container(pod)


def default_container(pod: Object) -> str | None:
    """The main container: what the pod says is, else arena's, else the first; None without any."""
    names = [str(one.get("name")) for one in (pod.get("spec") or {}).get("containers") or ()]
    annotations = pod["metadata"].get("annotations") or {}
    chosen = annotations.get("kubectl.kubernetes.io/default-container")
    if chosen in names:
        return str(chosen)
    return MAIN_CONTAINER if MAIN_CONTAINER in names else next(iter(names), None)


def too_early(error: ArenaError) -> bool:
    """Whether the kubelet only says that it is too early: no node yet, no container yet."""
    return (
        isinstance(error, ClusterError)
        and error.status == _BAD_REQUEST
        and re.search(r"waiting to start|host assigned", error.message) is not None
    )


def silent(source: Source, seconds: float) -> ClusterError:
    """The error of a log that does not come, though it is there to be read."""
    return ClusterError(
        f"no more of the log of {source.pod} came for {seconds:g} s",
        why="the API server, or the kubelet of the pod's node behind it, does not answer",
        hint=f"see how the node is: kubectl describe pod {source.pod}; then read it again",
    )


def never_before(source: Source) -> NotFound:
    """The error of a container that has not run before."""
    return NotFound(
        f"container {source.container} of pod {source.pod} has no earlier run",
        why="its first run is the one that is there, or nobody has kept the one before",
        hint="read the one that is there: leave out --previous",
    )


def no_previous(error: ArenaError) -> bool:
    """Whether the kubelet says that a container has not run before, or that no one kept it."""
    return (
        isinstance(error, ClusterError)
        and error.status == _BAD_REQUEST
        and re.search(r"previous terminated container .* not found", error.message) is not None
    )


def passes(error: ArenaError) -> bool:
    """Whether a break may be over in a moment: the server restarts, or the network did."""
    status = error.status if isinstance(error, ClusterError) else None
    return status is None or status == _OVERLOADED or status >= _SERVER_ERRORS
