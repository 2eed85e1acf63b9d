"""The queue in dumps: the jobs that wait there, and what their order follows from."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property

from arena_topo.clusters import dump
from arena_topo.clusters.observed import ClusterReader
from arena_topo.clusters.records import PodRecord, Record, StatusOf, Unread
from arena_topo.engines.kubernetes.queued import (
    Clusters,
    QueuedJob,
    Snapshot,
    priority_values,
    queued,
)
from arena_topo.engines.kubernetes.shapes import object_error
from arena_topo.errors import ArenaError
from arena_topo.manifests import Manifest
from arena_topo.manifests.recorded_job import job_of
from arena_topo.topology.fabric import FabricFile
from arena_topo.words import listed


class DumpedQueue:
    """The queue in dumps of `kubectl get ... -o json`, as of the time at which they were written.

    That is when their files were changed last; for standard input it is now.
    """

    def __init__(
        self,
        paths: Sequence[str],
        fabric: FabricFile | None = None,
        *,
        status_of: StatusOf | None = None,
    ) -> None:
        self.source = ", ".join(paths)
        self._written = max(map(_written, paths), default=0.0)
        self._whole: defaultdict[str, list[Manifest]] = defaultdict(list)
        read = dump.read_dumps(paths, status_of=status_of, whole=self._keep)
        self.records: tuple[Record | Unread, ...] = tuple(read)
        self._reader = ClusterReader(source=self.source, file=fabric)
        classes = self._whole["PriorityClass"]
        self._priorities = priority_values(classes) if classes else {}
        jobs = (queued(job, self._priorities) for job in self._whole["MPIJob"])
        self.jobs: tuple[QueuedJob, ...] = tuple(job for job in jobs if job is not None)

    def _keep(self, kind: str, manifest: Manifest) -> None:
        # What one tenant writes must not stop others.
        if object_error(manifest) is None:
            self._whole[kind].append(manifest)

    @property
    def waiting(self) -> bool:
        """Whether a gang waits for GPUs in the queue of arena-topo."""
        return any(job.waits_for_starter for job in self.jobs)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Everything in the dumps, as the starters of gangs read it."""
        return Snapshot(
            jobs=self.jobs,
            now=max((self._written, *self._times())),
            clusters=Clusters(self.records, lambda records: self._reader.read(records).cluster),
        )

    def _times(self) -> Iterator[float]:
        """The times that the objects name: the clock of the cluster may be ahead of this one."""
        for job in self.jobs:
            # Not from annotations: a tenant may write any time there.
            yield max(job.created, job.started or 0.0)
        for record in self.records:
            if isinstance(record, PodRecord) and record.started is not None:
                yield record.started

    def priority(self, name: str) -> int:
        """The value of a PriorityClass, or without a name of the default; 0 if it is not dumped."""
        return self._priorities.get(name, 0)

    def quotas(self, namespace: str) -> list[Manifest]:
        """The ResourceQuotas of a namespace, as far as they are dumped."""
        quotas = self._whole["ResourceQuota"]
        return [quota for quota in quotas if quota["metadata"].get("namespace") == namespace]

    def doubts(self, *priorities: str) -> tuple[str, ...]:
        """Notes on what decides the order of the queue, and is not in the dumps.

        `priorities` are the classes of jobs that are yet to come.
        """
        if not self.waiting:
            return ()
        named = {*priorities, *(_priority_class(job) for job in self.jobs if job.waits_for_starter)}
        missing = sorted(named - {"", *self._priorities})
        if not missing:
            return ()
        which = "priority class" if len(missing) == 1 else "priority classes"
        note = f"this dump lacks {which} {listed(missing)}: another gang may come first"
        return (note,)


def _priority_class(job: QueuedJob) -> str:
    """The priority class of a job; none for an invalid request, which is ahead of nobody."""
    with suppress(ArenaError):
        return job_of(job.manifest).priority
    return ""


def _written(path: str) -> float:
    """When a file was changed last (Unix seconds); now for what is no file."""
    return os.stat(path).st_mtime if os.path.isfile(path) else time.time()  # noqa: PTH113, PTH116
