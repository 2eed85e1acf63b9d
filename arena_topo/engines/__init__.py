"""What engines take and return: Options, JobStatus, Instance, Event. `backend` has their protocol.

    kubernetes  an API server with an MPI operator
    local       the embedded engine: jobs as processes on this machine

`engine_choice.open_backend` imports an engine when it opens it, so a command pays for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.escaping import one_line
from arena_topo.manifests.cause import CauseCode

if TYPE_CHECKING:
    from arena_topo.manifests import Manifest, PlacementForecast
    from arena_topo.manifests.annotations import LastStop
    from arena_topo.topology.fabric import FabricFile


REQUESTS = "arena_topo.requests"
"""The logger of requests to an API server: method, path, status, milliseconds."""


class Phase(StrEnum):
    """The phase of a job, in arena's words."""

    PENDING = "PENDING"
    """Waiting for GPUs, for pods, or for an image."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    QUEUING = "QUEUING"
    """Suspended by a queue, which decides when the job starts."""
    SUSPENDED = "SUSPENDED"
    """Suspended by `suspend`."""
    UNKNOWN = "UNKNOWN"

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self in {Phase.SUCCEEDED, Phase.FAILED}


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job. Times are Unix seconds; None means not yet.

    `status` is kubectl's STATUS column. `worker` is the index of the worker, None for the launcher.
    `pending`: the pod has no node yet, or has not started there. `devices` are the indexes of the
    GPUs in the pod's annotation, None without one. `failure` says how the pod ended badly, as a
    phrase to follow its name; None if it did not. Each retry of a launcher is a `launcher`; the one
    that counts is the `chief`.
    """

    name: str
    status: str
    created: float
    started: float | None = None
    finished: float | None = None
    pending: bool = False
    chief: bool = False
    worker: int | None = None
    gpus: int = 0
    node: str | None = None
    node_ip: str | None = None
    ip: str = ""
    holds_gpus: bool = False
    uid: str = ""
    devices: tuple[int, ...] | None = None
    failure: str | None = None
    launcher: bool = False


DEADLINE = "DeadlineExceeded"
"""The reason of a job that was ended because it exceeded its time limit."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one job. Times are Unix seconds; None means not yet.

    `forecast` is the recorded placement with its promised bandwidth. `reason` is a sentence: why
    the job waits or failed. `deadline` is when the engine ends a running job, None if that is not
    known. `exit_code` and `command` are those of the launcher, if known. `stopped` are the pods
    that a suspended job had, as far as their logs still exist. `replicas` is the number of worker
    pods that it asks for, 0 where that is not known. `last_stop` is when and why the
    controller last stopped it. `until` is when its patience ends, if that is why it waits.
    `training` is what its request says of its training, as it is recorded; None if nothing.
    """

    uid: str
    name: str
    namespace: str
    phase: Phase
    created: float
    finished: float | None = None
    deadline: float | None = None
    instances: tuple[Instance, ...] = ()
    stopped: tuple[Instance, ...] = ()
    priority: str = "N/A"
    replicas: int = 0
    request_gpus: int = 0
    allocated_gpus: int = 0
    forecast: PlacementForecast | None = None
    reason: str | None = None
    exit_code: int | None = None
    tensorboard: str = ""
    model_name: str = ""
    model_version: str = ""
    model_source: str = ""
    command: str = ""
    last_stop: LastStop | None = None
    until: float | None = None
    training: Mapping[str, Any] | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for a placement, which a program or a person starts it on."""
        waiting = self.forecast is not None and self.forecast.state == "waiting"
        return self.phase is Phase.PENDING and waiting

    def waits_because(self, code: CauseCode) -> Mapping[str, str] | None:
        """The parameters of the recorded cause for which it waits, if it has this code."""
        cause = None if self.forecast is None else self.forecast.cause
        return cause.parameters if cause is not None and cause.code == code else None

    @property
    def chief(self) -> Instance | None:
        """The launcher that counts; None without one."""
        return next((instance for instance in self.instances if instance.chief), None)

    def stop_sentence(self, now: float) -> str | None:
        """When and why the controller last stopped the job, and the next start; None if never."""
        if self.last_stop is None:
            return None
        runs = self.forecast is None or self.forecast.state == "placed"
        return self.last_stop.sentence(now, runs=runs)

    def __repr__(self) -> str:
        """The job on one line: `<JobStatus default/bert RUNNING, 8 GPUs, 130 GB/s>`."""
        words = [f"{self.namespace}/{self.name} {self.phase}", f"{self.request_gpus} GPUs"]
        if self.forecast is not None and self.forecast.usable is not None:
            words.append(f"{self.forecast.usable:.3g} GB/s")
        if self.reason:
            words.append(one_line(self.reason))
        return f"<JobStatus {', '.join(words)}>"


def state_of(status: JobStatus) -> str:
    """The phase of a job and its reason: `NAME is PHASE: REASON`."""
    reason = f": {one_line(status.reason)}" if status.reason else ""
    return f"{status.name} is {status.phase}{reason}"


def slots_of(forecast: PlacementForecast, status: JobStatus) -> int:
    """The number of ranks of each worker: one for each of its GPUs."""
    # With DRA claims the containers of a worker request no GPUs.
    known = {len(gpus) for _index, _node, gpus in forecast.workers if gpus}
    if len(known) == 1:
        return known.pop()
    return max(1, status.request_gpus // max(1, len(forecast.workers)))


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object of a job."""

    source: str
    kind: str
    when: float
    reason: str
    message: str


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The published manifest, and the outcome: `created`, `configured` or `unchanged`."""

    manifest: Manifest
    outcome: str


def ignore_message(_text: str) -> None:
    """Ignore a message: the default of callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to reach an engine: all settings of the command line.

    `request_timeout` (seconds, 0: none) limits each request, `deadline` (seconds, None: none) all
    requests together. `cluster` and `user` are kubeconfig entries that replace those of the
    context; `impersonate` and `impersonate_groups` are the user and the groups to act as.
    `prometheus_address` is the URL of a Prometheus with metrics of GPUs. `fabric` is the network
    between the nodes; it overrides their labels.
    """

    backend: str = "auto"
    kubeconfig: str | None = None
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    impersonate: str | None = None
    impersonate_groups: tuple[str, ...] = ()
    namespace: str | None = None
    prometheus_address: str | None = None
    emulate: str | None = None
    request_timeout: float = 30.0
    deadline: float | None = None
    fabric: FabricFile | None = None
