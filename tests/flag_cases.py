"""For every flag of a job: a value, and what it changes in the objects of each MPIJob version.

A change is a path and what stands there. Before the colon of a path is the place: `job` the MPIJob;
`run` what v1 and v2beta1 call its runPolicy, which v1alpha1 has no name for; `pods` every pod
template, `worker` and `launcher` one of them (v1alpha1 has a single one, which is the worker's);
else a kind, or kind and name. Items of a list go by their names where they all have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arena_topo.flag import flags_of, spelling
from arena_topo.job import (
    ConfigFile,
    KeyValue,
    MPIJob,
    SyncMode,
)
from arena_topo.manifests.versions import ApiVersion

V2BETA1, V1, V1ALPHA1 = ApiVersion.V2BETA1, ApiVersion.V1, ApiVersion.V1ALPHA1

ABSENT = object()
"""Stands for what a flag takes away."""

PLAIN: Mapping[str, Any] = {
    "name": "demo",
    "command": "mpirun python train.py",
    "image": "horovod:0.20",
    "gpus": 2,
    "workers": 2,
}
"""The job that flags are added to."""

FILE = ConfigFile(source="/srv/app.json", target="/etc/app/app.json")
FOLDER = "1b54ecc04896c8f"
"""How arena names the folder /etc/app: the first 15 digits of its MD5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A flag with a value; `within` is said with it and without it.

    `more` adds to `changes`, or replaces what is there, in one version; `refused` is the text where
    a version cannot express it. `asks` is what the annotation for later starters gains.
    """

    said: Mapping[str, Any]
    within: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[ApiVersion, Mapping[str, Any]] = field(default_factory=dict)
    refused: Mapping[ApiVersion, str] = field(default_factory=dict)
    asks: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def job(self, *, without: bool = False) -> MPIJob:
        """The job with the flag, or without it."""
        return MPIJob(**({**PLAIN, **self.within} | ({} if without else {**self.said})))

    def changed(self, api: ApiVersion) -> dict[str, Any]:
        """What the flag changes in one version."""
        return {**self.changes, **self.more.get(api, {})}

    def words(self) -> list[str]:
        """The job as a command line would say it."""
        said = {**PLAIN, **self.within, **self.said}
        command = said.pop("command")
        flags = flags_of(MPIJob)
        line = []
        for name, value in said.items():
            word = spelling(name, flags[name])
            if value is True or value is False:
                line.append(f"{word}={str(value).lower()}")
            else:
                several = value if isinstance(value, tuple) else (value,)
                line += [f"{word}={one}" for one in several]
        return [*line, str(command)]


def pair(text: str) -> KeyValue:
    return KeyValue.parse(text)


def asking(**amounts: str) -> dict[str, dict[str, str]]:
    """What a container asks for, and is held to."""
    return {"requests": amounts, "limits": amounts}


MAIN = "spec.containers[mpi]"
WAIT = "spec.initContainers[wait-for-workers]"
CODE = "spec.initContainers[init-code]"
POD_GROUP = "metadata.labels[pod-group.scheduling.sigs.k8s.io/"
PREFERRED = "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]"
NEAR_WORKERS = {
    "weight": 100,
    "podAffinityTerm": {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"gpu-topology": "demo"}},
    },
}
PLACED: Mapping[str, Any] = {"gputopology": True}
GIT: Mapping[str, Any] = {
    "sync_mode": SyncMode.GIT,
    "sync_source": "https://example.com/team/model.git",
    "sync_image": "git-sync:v3",
}
BOARD: Mapping[str, Any] = {"tensorboard": True, "tensorboard_image": "tensorflow:2"}
ENV = {"gpus": "2", "workers": "2"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
BOARD_MAIN = "Deployment/demo-tensorboard:spec.template.spec.containers[tensorboard]"


def env(**more: str) -> list[dict[str, str]]:
    """The variables of an init container: those of the job, and more."""
    said = {**ENV, **more}
    return [{"name": name, "value": said[name]} for name in sorted(said)]


def claimed(role: str, claim: str, path: str) -> dict[str, Any]:
    """A volume claim, the first of a job, and where it is mounted."""
    name = "training-claim-0"
    return {
        f"{role}:spec.volumes[{name}]": {
            "name": name,
            "persistentVolumeClaim": {"claimName": claim},
        },
        f"{role}:{MAIN}.volumeMounts[{name}]": {"name": name, "mountPath": path},
    }


def on_node(role: str, name: str, host: str, path: str) -> dict[str, Any]:
    """A folder of the node and where it is mounted."""
    return {
        f"{role}:spec.volumes[{name}]": {"name": name, "hostPath": {"path": host}},
        f"{role}:{MAIN}.volumeMounts[{name}]": {"name": name, "mountPath": path},
    }


def synced(image: str, **more: Any) -> dict[str, Any]:
    """The init container that fetches the code, and the folder that it puts it into."""
    return {
        "pods:" + CODE: {
            "name": "init-code",
            "image": image,
            "imagePullPolicy": "Always",
            "volumeMounts": [{"mountPath": "/code", "name": "code-sync"}],
            **more,
        },
        "pods:spec.volumes[code-sync]": {"name": "code-sync", "emptyDir": {}},
        f"pods:{MAIN}.volumeMounts[code-sync]": {"name": "code-sync", "mountPath": "/root/code"},
    }


def needs_operator(flag: str) -> dict[ApiVersion, str]:
    return dict.fromkeys((V1, V1ALPHA1), f"{flag} needs MPIJob v2beta1")


BOARD_LABELS = {
    "app": "mpijob",
    "chart": "mpijob-0.28.0",
    "release": "demo",
    "heritage": "Helm",
    "createdBy": "MPIJob",
    "arena.kubeflow.org/uid": "2e40ad879e955201df4dedbf8d479a12",
    "role": "tensorboard",
}
BOARD_SELECTOR = {"app": "mpijob", "release": "demo", "role": "tensorboard"}
LOGS = {"name": "training-logs-volume", "hostPath": {"path": "/arena_logs/training116651042"}}
LOGS_MOUNT = {"name": "training-logs-volume", "mountPath": "/training_logs"}


def board(*, volumes: list[Any], mounts: list[Any], near: Any = None) -> dict[str, Any]:
    """TensorBoard: a Service and a Deployment, near the first worker if its logs are there."""
    pod: dict[str, Any] = {
        "containers": [
            {
                "name": "tensorboard",
                "image": "tensorflow:2",
                "imagePullPolicy": "Always",
                "command": ["tensorboard", "--logdir", "/training_logs", "--host", "0.0.0.0"],
                "ports": [{"containerPort": 6006}],
                **({"volumeMounts": mounts} if mounts else {}),
            }
        ],
        **({"volumes": volumes} if volumes else {}),
    }
    if near:
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": near}}
        pod["affinity"] = {
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
    meta = {"name": "demo-tensorboard", "namespace": "team-a", "labels": BOARD_LABELS}
    return {
        "Service/demo-tensorboard": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "type": "NodePort",
                "ports": [
                    {"name": "tensorboard", "port": 6006, "targetPort": 6006, "protocol": "TCP"}
                ],
                "selector": BOARD_SELECTOR,
            },
        },
        "Deployment/demo-tensorboard": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": BOARD_SELECTOR},
                "template": {"metadata": {"labels": BOARD_LABELS}, "spec": pod},
            },
        },
    }


NEAR_V1 = {"training.kubeflow.org/job-name": "demo", "training.kubeflow.org/replica-index": "0"}
NEAR_V1ALPHA1 = {
    "mpi_job_name": "demo",
    "statefulset.kubernetes.io/pod-name": "demo-worker-0",
}
