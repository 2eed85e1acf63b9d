"""The MPIJob versions, a row for each: the fields they have and the behaviour of their operators.

Other modules read a row, and do not compare versions. A new version is a member of `ApiVersion`,
its row in `_TRAITS`, and a template if none of those in `templates/mpijob` can express it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec

HOSTFILE = "/etc/mpi/hostfile"
"""The path of the worker list in launchers of v1 and v2beta1."""

VersionName = Literal["v2beta1", "v1", "v1alpha1"]
"""The values that callers in Python may pass for an `ApiVersion`."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of one MPIJob version and of its operators.

    `template` is below `templates/mpijob`. `first_worker` are the labels of worker 0, `job_labels`
    the labels with a pod's job, `worker_labels` the labels that only workers of a placed job have.
    `{job}` is replaced by the name of the job. `launcher_env` are further variables for a launcher
    of Open MPI 5.
    """

    template: str
    first_worker: Mapping[str, str]
    job_labels: tuple[str, ...]
    launcher_env: Mapping[str, str] = msgspec.field(default_factory=dict)
    worker_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"gpu-topology": "{job}"}
    )
    sshd: bool = False
    """Workers run sshd and are reached through a Service named after the job; else through the API
    of Kubernetes."""
    one_template: bool = False
    """Launcher and workers are made from one pod template."""
    suspends: bool = True
    deadline: bool = True
    """It has a field for the maximum running time of a job."""
    ttl: bool = True
    """It has a field for the time after which a finished job is deleted."""
    claims: bool = True
    """Its pod templates keep ResourceClaims."""
    gates: bool = True
    """Its pod templates keep scheduling gates."""
    numbered: bool = True
    """Workers carry their number as a label."""
    arenas: bool = False
    """Arena itself writes this version: it reads the job's ConfigMap back, and its topology jobs
    use the network of the node and the GPUs of ACK's device plugin."""


class ApiVersion(StrEnum):
    """The supported MPIJob versions, best first."""

    V2BETA1 = "v2beta1"
    V1 = "v1"
    V1ALPHA1 = "v1alpha1"

    @property
    def traits(self) -> Traits:
        """The abilities of the version."""
        return _TRAITS[self]


JOB_LABEL = "training.kubeflow.org/job-name"
"""Label with the job of a pod, by operators that can suspend jobs."""

INDEX_LABEL = "training.kubeflow.org/replica-index"
"""Label with the number of a worker, by the same operators."""


_INDEXED = {
    JOB_LABEL: "{job}",
    INDEX_LABEL: "0",
}

_TRAITS = {
    ApiVersion.V2BETA1: Traits(
        template="replicas.yaml.j2",
        first_worker=_INDEXED,
        job_labels=(JOB_LABEL,),
        launcher_env={
            "PRTE_MCA_prte_default_hostfile": HOSTFILE,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
            "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
        },
        sshd=True,
    ),
    ApiVersion.V1: Traits(
        template="replicas.yaml.j2",
        first_worker=_INDEXED,
        job_labels=(JOB_LABEL, "mpi-job-name"),
        launcher_env={
            "PRTE_MCA_prte_default_hostfile": HOSTFILE,
            "PRTE_MCA_plm_ssh_agent": "/etc/mpi/kubexec.sh",
        },
    ),
    ApiVersion.V1ALPHA1: Traits(
        template="v1alpha1.yaml.j2",
        first_worker={
            "mpi_job_name": "{job}",
            "statefulset.kubernetes.io/pod-name": "{job}-worker-0",
        },
        job_labels=("mpi_job_name",),
        worker_labels={"mpi_job_name": "{job}", "mpi_role_type": "worker"},
        one_template=True,
        suspends=False,
        deadline=False,
        ttl=False,
        claims=False,
        gates=False,
        numbered=False,
        arenas=True,
    ),
}
"""Sources: the CRDs and controllers of kubeflow/mpi-operator (v2beta1, v1alpha1) and of
kubeflow/training-operator (v1)."""

BEST = next(iter(ApiVersion))
"""The version to write without a cluster."""


def versions_with(trait: Callable[[Traits], bool]) -> tuple[ApiVersion, ...]:
    """The versions that have a trait, best first."""
    return tuple(version for version in ApiVersion if trait(version.traits))


def version_of(mpijob: Mapping[str, Any]) -> ApiVersion:
    """The version of an MPIJob; the best one if it has no known version."""
    _, _, version = str(mpijob.get("apiVersion")).rpartition("/")
    return next((candidate for candidate in ApiVersion if candidate == version), BEST)
