"""What only a cluster has: asked of one machine, the answer is that there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arena_topo.job import MPIJob

if TYPE_CHECKING:
    from arena_topo.engines.volume import Volume

OWN_SOFTWARE = "local"
"""The image that means what is installed on this machine."""

_ONLY_ON_CLUSTERS = (
    "data",
    "data_dir",
    "config_file",
    "sync_mode",
    "tensorboard",
    "rdma",
    "device",
    "cpu",
    "memory",
    "launcher_cpu",
    "launcher_memory",
    "share_memory",
    "service_account",
    "mpi_implementation",
)
"""What a job may ask of its containers, of which there are none here."""

_UNTIMED = ("ttl_after_finished",)
"""What an operator does once a job has been over for some time."""


class Clusterless:
    """An engine without containers, volume claims, and an arena that knows administrators."""

    def close(self) -> None:
        """Nothing: there are no connections."""

    def volumes(self, namespace: str | None) -> tuple[Volume, ...]:
        """None: jobs see the folders of the machine."""
        del namespace
        return ()

    def administrators(self, namespace: str) -> frozenset[str]:
        """Nobody."""
        del namespace
        return frozenset()

    def remarks(self, job: MPIJob) -> tuple[str, ...]:
        """What of a job is not used on this machine."""
        unused, untimed = (
            [
                f"--{name.replace('_', '-')}"
                for name in names
                if getattr(job, name) != MPIJob.__dataclass_fields__[name].default
            ]
            for names in (_ONLY_ON_CLUSTERS, _UNTIMED)
        )
        if job.image != OWN_SOFTWARE:
            unused.insert(0, f"the image {job.image}")
        return tuple(
            f"not used on this machine, where {why}: {', '.join(names)}"
            for why, names in (
                ("there are no containers", unused),
                ("no operator keeps the time of a job", untimed),
            )
            if names
        )
