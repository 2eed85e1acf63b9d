"""What an administrator applies once: admission policies, roles, the controller, the node agent.

    namespace    where the controller and the agent live
    policies     what gives each worker its node, its GPUs, its claim
    roles        submitters in a namespace, people who place jobs themselves, everybody
    controller   starts what waits; keeps cluster-view and published topology true
    agent        says of its node how its GPUs are linked and who has them

The text that is printed keeps the comments of the templates, among them the reason of each right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from arena_topo.errors import UsageError
from arena_topo.manifests import Manifest, templates
from arena_topo.topology import published

SYSTEM = published.OWN_NAMESPACE
"""The namespace of the controller, the agent, and what they publish."""

VIEW = published.VIEW
"""The ConfigMap there by which everybody may plan."""

CONTROLLER = "arena-topo-controller"
"""The controller's Deployment, ServiceAccount and Lease."""

PLACEMENT_POLICY = "arena-topo-placement"
CLAIMS_POLICY = "arena-topo-claims"
GANG_POLICY = "arena-topo-gang"

FORMAT_LABEL = "arena-topo.io/map-format"
"""Label of the placement policy: the format of the map that it reads."""

SUBMITTER = "arena-topo-submitter"
ATTACH = "arena-topo-attach"
SELF_PLACER = "arena-topo-self-placer"
CLUSTER_READER = "arena-topo-cluster-reader"

HEARTBEAT = "ARENA_TOPO_HEARTBEAT"
"""The variable that names the file which a loop touches in every round; see `heartbeat`."""

ALIVE = ("sh", "-c", "find /run/arena-topo -name alive -mmin -2 | grep -q .")
"""Whether that file was touched within two minutes, with nothing but what a Debian image has."""

GPU_LABELS = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.present",
    "aliyun.accelerator/nvidia_name",
    "cloud.google.com/gke-accelerator",
    "ack.node.gpu.schedule",
    "arena-topo.io/topology",
)
"""Labels by which nodes say that they have GPUs: NVIDIA's feature discovery and operator, ACK, GKE,
ourselves."""

_PARTS = ("namespace", "policies", "roles", "controller", "agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is installed. `image` is REPOSITORY/NAME@DIGEST, or :TAG where that must do.

    It may be empty where neither controller nor agent runs in it.
    `gang`: the cluster has the gang scheduling of scheduling.k8s.io. `ack`: the controller also
    publishes in the format and namespace that ACK's tools read. `node_selector` says which nodes
    have GPUs (empty: those with a label that says so), `runtime_class` by which container runtime
    the agent sees them.
    """

    image: str
    controller: bool = True
    agent: bool = True
    gang: bool = False
    ack: bool = False
    runtime_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()


_REPOSITORY = r"[A-Za-z0-9][\w.-]*(?::[0-9]+)?(?:/[\w.-]+)*"
_IMAGE = re.compile(rf"{_REPOSITORY}(?::(?P<tag>[\w][\w.-]*))?(?:@(?P<digest>\S+))?", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


def check(installation: Installation) -> tuple[str, ...]:
    """What a person should know of it; UsageError where it contradicts itself.

    The form of an image is that of github.com/distribution/reference.
    """
    image, runs = installation.image, installation.controller or installation.agent
    found = _IMAGE.fullmatch(image)
    if found is None and (image or runs):
        raise UsageError(
            f"{image!r} is not the name of an image" if image else "which image is it?",
            why="the controller and the agent are containers of arena-topo",
            hint="arena-topo install --image REPOSITORY/NAME@sha256:...; the Dockerfile of"
            " arena-topo builds one",
        )
    digest = found["digest"] if found is not None else None
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise UsageError(
            f"{digest!r} is not the digest of an image",
            why="it is sha256: and 64 hexadecimal digits",
        )
    if digest is None and runs:
        return (
            f"{image} can become another image at any time: name it by its digest, NAME@sha256:...",
        )
    return ()


def text(installation: Installation) -> str:
    """Every object in the order in which it is to be created, as YAML with its reasons."""
    context: dict[str, Any] = {
        "image": installation.image,
        "agent": installation.agent,
        "gang": installation.gang,
        "ack": installation.ack,
        "runtime_class": installation.runtime_class,
        "node_selector": dict(installation.node_selector),
        "image_pull_secrets": [{"name": one} for one in installation.image_pull_secrets],
        "gpu_labels": list(GPU_LABELS),
        "alive": list(ALIVE),
    }
    wanted = {"controller": installation.controller, "agent": installation.agent}
    parts = [one for one in _PARTS if wanted.get(one, True)]
    return "---\n".join(templates.text(f"install/{one}.yaml.j2", context) for one in parts)


def objects(installation: Installation) -> tuple[Manifest, ...]:
    """The same as values."""
    return tuple(templates.objects(text(installation)))


def everything() -> tuple[Manifest, ...]:
    """Every object that any `install` of this version may have created, in that order."""
    return objects(Installation(image="any", gang=True, ack=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource of a group; `everywhere`: in all namespaces, or in none."""

    verb: str
    group: str
    resource: str
    everywhere: bool = False

    def __str__(self) -> str:
        """As RBAC says it: `list pods`, `create mpijobs.kubeflow.org`."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def rights(role: str) -> tuple[Right, ...]:
    """What a ClusterRole of `install` allows, each verb by itself."""
    found = next(
        one
        for one in everything()
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == role
    )
    return tuple(_rights(found["rules"], everywhere=role == CLUSTER_READER))


def _rights(rules: list[Manifest], *, everywhere: bool) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(verb=verb, group=group, resource=resource, everywhere=everywhere)
