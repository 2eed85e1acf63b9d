"""Manifests that an administrator applies once: policies, roles, the controller, the node agent.

    namespace    for the controller and the agent
    policies     admission: give each worker its node, its GPUs, its claim
    roles        submitters in a namespace, people who place jobs themselves, everybody
    controller   starts waiting gangs; updates cluster-view and published topology
    agent        publishes the links of its node's GPUs and the pods that use them

The printed text includes the comments of the templates, among them the reason of each right.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from arena_topo.errors import UsageError
from arena_topo.layout import go_json
from arena_topo.manifests import Manifest, templates
from arena_topo.topology import published

SYSTEM = published.OWN_NAMESPACE
"""The namespace of the controller, the agent, and their ConfigMaps."""

VIEW = published.VIEW
"""The ConfigMap of that namespace with which users plan without the right to list nodes."""

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
"""The variable with the path of the file that a loop touches in every round; see `heartbeat`."""

ALIVE = ("sh", "-c", "find /run/arena-topo -name alive -mmin -2 | grep -q .")
"""A test of whether that file was touched within two minutes, with tools of a Debian image only."""

GPU_LABELS = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.present",
    "aliyun.accelerator/nvidia_name",
    "cloud.google.com/gke-accelerator",
    "ack.node.gpu.schedule",
    "arena-topo.io/topology",
)
"""Labels of nodes with GPUs: NVIDIA's feature discovery and operator, ACK, GKE, ourselves."""

_PARTS = ("namespace", "policies", "roles", "controller", "agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The options of `install`. `image` is REPOSITORY/NAME@DIGEST, or :TAG without a digest.

    The image may be empty if neither controller nor agent is installed. `gang`: the cluster has the
    gang scheduling of scheduling.k8s.io. `ack`: the controller also publishes in the format and
    namespace of ACK's tools. `fabric` is the text of the controller's fabric file, or empty.
    `node_selector` selects the nodes with GPUs (empty: those with a label of GPUs), `runtime_class`
    is the container runtime that shows them to the agent.
    """

    image: str
    controller: bool = True
    agent: bool = True
    gang: bool = False
    ack: bool = False
    fabric: str = ""
    runtime_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()


MAX_APPLIED_BYTES = (256 << 10) - 1024
"""Bytes of a fabric file as JSON that surely fit into the annotation in which `kubectl apply`
stores a copy of its ConfigMap: all annotations of an object have 256 KiB (kubernetes,
apimachinery, pkg/api/validation: TotalAnnotationSizeLimitB), and 1 KiB is for the rest of it."""

_IMAGE = re.compile(
    r"[A-Za-z0-9][\w.-]*(?::[0-9]+)?(?:/[\w.-]+)*(?::\w[\w.-]*)?"
    r"(?P<digest>@sha256:[0-9a-f]{64}|@sha512:[0-9a-f]{128})?",
    re.ASCII,
)
"""The name of an image: REPOSITORY/NAME:TAG@DIGEST (github.com/distribution/reference)."""


def check_installation(installation: Installation) -> tuple[str, ...]:
    """Notes for a person; UsageError if the image has no name or an invalid one."""
    image, runs = installation.image, installation.controller or installation.agent
    match = _IMAGE.fullmatch(image)
    if match is None and (image or runs):
        raise UsageError(
            f"{image!r} is not the name of an image" if image else "--image is missing",
            why="the controller and the agent are containers of arena-topo",
            hint="arena-topo install --image REPOSITORY/NAME@sha256:... (64 hexadecimal digits);"
            " the Dockerfile of arena-topo builds one; without image: --without-controller"
            " --without-agent",
        )
    notes = []
    if match is not None and match["digest"] is None and runs:
        notes.append(
            f"{image} can become another image at any time: name it by its digest, NAME@sha256:..."
        )
    if installation.controller and len(go_json(installation.fabric).encode()) > MAX_APPLIED_BYTES:
        notes.append(
            "the fabric file is too large for the annotation in which kubectl apply stores a copy"
            " of it: apply this with kubectl apply --server-side -f -, or shorten the file"
        )
    return tuple(notes)


def installation_yaml(installation: Installation) -> str:
    """Every object in the order of creation, as YAML with comments."""
    context: dict[str, Any] = {
        **{option.name: getattr(installation, option.name) for option in fields(Installation)},
        "image_pull_secrets": [{"name": secret} for secret in installation.image_pull_secrets],
        "gpu_labels": GPU_LABELS,
        "alive": ALIVE,
        "fabric_digest": hashlib.sha256(installation.fabric.encode()).hexdigest(),
    }
    parts = [part for part in _PARTS if context.get(part, True)]
    return "---\n".join(
        templates.render_template(f"install/{part}.yaml.j2", context) for part in parts
    )


def installation_objects(installation: Installation) -> tuple[Manifest, ...]:
    """Every object in the order of creation, as plain values."""
    return tuple(templates.template_objects(installation_yaml(installation)))


def all_objects() -> tuple[Manifest, ...]:
    """Every object that any `install` of this version may have created, in that order."""
    return installation_objects(Installation(image="any", gang=True, ack=True, fabric="any"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A verb on a resource of a group; `everywhere`: in all namespaces, or in none."""

    verb: str
    group: str
    resource: str
    everywhere: bool = False

    def __str__(self) -> str:
        """The right in RBAC's words: `list pods`, `create mpijobs.kubeflow.org`."""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def rights(role: str) -> tuple[Right, ...]:
    """The rights in a ClusterRole of `install`, one per verb."""
    return tuple(
        Right(verb=verb, group=group, resource=resource, everywhere=role == CLUSTER_READER)
        for manifest in all_objects()
        if manifest["kind"] == "ClusterRole" and manifest["metadata"]["name"] == role
        for rule in manifest["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )
