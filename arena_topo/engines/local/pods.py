"""The pods of a local job, as its manifest has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from arena_topo.manifests import Manifest


class Pods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of a manifest, whatever its version is; `folder` is None where it names none."""

    launcher: Sequence[str]
    launcher_environment: Mapping[str, str]
    worker_environment: Mapping[str, str]
    folder: str | None
    slots: int
    retries: int
    seconds: float = math.inf
    """How long the job may run."""


def read_pods(manifest: Manifest, gpus: int) -> Pods:
    """Read an MPIJob of v2beta1, v1 or v1alpha1."""
    spec = manifest["spec"]
    replicas = spec.get("mpiReplicaSpecs") or {"Launcher": spec, "Worker": spec}
    launcher, worker = (
        replicas[name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker")
    )
    policy = spec.get("runPolicy", spec)
    return Pods(
        launcher=[*launcher["command"], *launcher.get("args", ())],
        launcher_environment=_environment(launcher),
        worker_environment=_environment(worker),
        folder=launcher.get("workingDir"),
        slots=spec.get("slotsPerWorker") or max(1, gpus),
        retries=policy.get("backoffLimit") or 0,
        seconds=policy.get("activeDeadlineSeconds") or math.inf,
    )


def _environment(container: Manifest) -> dict[str, str]:
    # Variables without a value get it from a cluster, and here is none.
    return {
        variable["name"]: variable["value"]
        for variable in container.get("env") or ()
        if "value" in variable
    }
