"""What is mounted where in the containers, in arena's order."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from arena_topo.errors import InvalidJob
from arena_topo.job import ConfigFile, MPIJob, SyncMode
from arena_topo.manifests import Manifest


def digest(text: str) -> str:
    """The lowercase hex MD5 of a text, by which arena names users and folders."""
    import hashlib  # noqa: PLC0415

    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume and its path in the containers; `flag` and `launcher` say who asked, who gets it."""

    name: str
    source: Mapping[str, Any]
    path: str
    flag: str
    _: KW_ONLY
    launcher: bool = False

    @property
    def volume(self) -> Manifest:
        """The entry in the pod's volumes."""
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> Manifest:
        """The entry in a container's volumeMounts."""
        return {"mountPath": self.path, "name": self.name}


def by_role(
    volumes: Iterable[Mounted], part: Callable[[Mounted], Manifest]
) -> dict[str, list[Manifest]]:
    """One part of each volume for each kind of pod; `both` is a launcher that is also a worker."""
    worker = [part(one) for one in volumes]
    return {
        "both": worker,
        "worker": worker,
        "launcher": [part(one) for one in volumes if one.launcher],
    }


def mounted(job: MPIJob, namespace: str) -> list[Mounted]:
    """Every volume in arena's order; InvalidJob if two would be mounted at one path."""
    kept = job.mounts_on_launcher
    maps = {folder: _key(folder) for folder in (_place(one)[0] for one in job.config_file)}
    volumes = [
        Mounted(
            key, {"configMap": {"name": f"{job.name}-{key}"}}, path, "--config-file", launcher=True
        )
        for path, key in maps.items()
    ]
    stored: list[Mounted] = []
    for index, claim in enumerate(job.data):
        source = {"persistentVolumeClaim": {"claimName": claim.name}}
        name, flag = f"training-claim-{index}", f"--data {claim}"
        stored.append(Mounted(name, source, claim.path, flag, launcher=kept))
    for index, folder in enumerate(job.data_dir):
        host = {"hostPath": {"path": folder.host}}
        name, flag = f"training-data-{index}", f"--data-dir {folder}"
        stored.append(Mounted(name, host, folder.container, flag, launcher=kept))
    covered = any(_inside(job.logdir, one.path) for one in stored)
    if job.tensorboard and job.logdir.startswith("/") and not covered:
        number = int(digest(f"{namespace}/{job.name}"), 16) % 10**9
        host = {"hostPath": {"path": f"/arena_logs/training{number:09}"}}
        volumes.append(Mounted("training-logs-volume", host, job.logdir, "--logdir"))
    if job.sync_mode is not SyncMode.NONE:
        code = job.working_dir.rstrip("/") + "/code"
        volumes.append(Mounted("code-sync", {"emptyDir": {}}, code, "--sync-mode", launcher=True))
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": job.share_memory.text}}
    # /dev/shm is NCCL's shared memory in the container.
    shared = Mounted("dshm", memory, "/dev/shm", "--share-memory")  # noqa: S108
    volumes += [*stored, shared]
    taken: dict[str, str] = {}
    for one in volumes:
        path = one.path.rstrip("/")
        if path in taken:
            raise InvalidJob(
                f"two things would be mounted at {path}", why=f"{taken[path]} and {one.flag}"
            )
        taken[path] = one.flag
    return volumes


def config_maps(mpijob: Manifest) -> tuple[str, ...]:
    """The ConfigMaps that the pods of a stored MPIJob mount, and cannot start without."""
    spec = mpijob.get("spec") or {}
    roles = (spec.get("mpiReplicaSpecs") or {"Worker": spec}).values()
    volumes = [
        volume
        for role in roles
        for volume in ((role.get("template") or {}).get("spec") or {}).get("volumes") or ()
    ]
    sources = [volume.get("configMap") or {} for volume in volumes]
    return tuple(
        dict.fromkeys(one["name"] for one in sources if "name" in one and not one.get("optional"))
    )


def logs(job: MPIJob, volumes: Iterable[Mounted]) -> list[Mounted]:
    """What TensorBoard must see: whatever holds the folder of the logs."""
    if not job.logdir.startswith("/"):
        return []
    storage = [one for one in volumes if {"hostPath", "persistentVolumeClaim"} & one.source.keys()]
    return [one for one in storage if _inside(job.logdir, one.path)]


def _inside(path: str, folder: str) -> bool:
    folder = folder.rstrip("/")
    return path.rstrip("/") == folder or path.startswith(folder + "/")


def _place(one: ConfigFile) -> tuple[str, str]:
    """The folder and name that a file has in the containers; without a target, as on this host."""
    # Path would leave `..` as it is, and raise for an unknown `~user`.
    here = os.path.abspath(os.path.expanduser(one.source))  # noqa: PTH100, PTH111 - see above
    return posixpath.split(posixpath.normpath(one.target or here))


def _key(folder: str) -> str:
    return digest(folder)[:15]


_MOST = 1 << 20
"""Bytes that a ConfigMap may hold (Kubernetes, `MaxSecretSize`, which counts for both)."""


def folders(job: MPIJob, files: Mapping[ConfigFile, str]) -> list[dict[str, Any]]:
    """The config files grouped by their folder: a ConfigMap is mounted over a whole folder.

    InvalidJob for two files at one path, and for names and sizes that no ConfigMap can have.
    """
    grouped: dict[str, dict[str, str]] = {}
    for one in dict.fromkeys(job.config_file):
        folder, name = _place(one)
        held = grouped.setdefault(folder, {})
        if name in held:
            raise InvalidJob(f"two files would be put at {folder}/{name}", why=f"one is {one}")
        if re.fullmatch(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}", name) is None:
            raise InvalidJob(
                f"no file of --config-file can be called {name!r} in the containers",
                why="Kubernetes allows letters, digits, '-', '_' and '.'",
                hint=f"give it another name there: {one.source}:{folder.rstrip('/')}/NAME",
            )
        held[name] = files[one]
        size = sum(len(text.encode()) for pair in held.items() for text in pair)
        if size > _MOST:
            raise InvalidJob(
                f"the files of --config-file in {folder} are too large",
                why=f"they have {size} bytes, and Kubernetes keeps at most {_MOST} together",
                hint="put them on a volume, and mount that with --data",
            )
    return [{"key": _key(folder), "files": held} for folder, held in grouped.items()]
