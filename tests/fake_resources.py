"""What a fake API server serves: groups, versions, kinds, and the errors it answers with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from re import compile as pattern
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for what belongs to the whole cluster."""

NAME = pattern(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain (RFC 1123), but for its length."""


def copied(value: Any) -> Any:
    """A deep copy of JSON, without what `copy.deepcopy` does for other objects."""
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of objects; `status` says that it is written apart, at /status."""

    plural: str
    kind: str
    group: str = ""
    versions: tuple[str, ...] = ("v1",)
    wide: bool = False
    status: bool = False
    custom: bool = False

    @property
    def name(self) -> str:
        """`plural.group`, as error messages and resource rules call it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _all() -> Iterator[Resource]:
    for plural, kind in (
        ("configmaps", "ConfigMap"),
        ("secrets", "Secret"),
        ("events", "Event"),
        ("serviceaccounts", "ServiceAccount"),
        ("persistentvolumeclaims", "PersistentVolumeClaim"),
        ("limitranges", "LimitRange"),
    ):
        yield Resource(plural=plural, kind=kind)
    for plural, kind in (
        ("pods", "Pod"),
        ("services", "Service"),
        ("resourcequotas", "ResourceQuota"),
    ):
        yield Resource(plural=plural, kind=kind, status=True)
    yield Resource(plural="nodes", kind="Node", wide=True, status=True)
    yield Resource(plural="namespaces", kind="Namespace", wide=True, status=True)
    for plural, kind in (
        ("deployments", "Deployment"),
        ("statefulsets", "StatefulSet"),
        ("daemonsets", "DaemonSet"),
        ("replicasets", "ReplicaSet"),
    ):
        yield Resource(plural=plural, kind=kind, group="apps", status=True)
    yield Resource(plural="jobs", kind="Job", group="batch", status=True)
    yield Resource(plural="leases", kind="Lease", group="coordination.k8s.io")
    group = "rbac.authorization.k8s.io"
    yield Resource(plural="roles", kind="Role", group=group)
    yield Resource(plural="rolebindings", kind="RoleBinding", group=group)
    yield Resource(plural="clusterroles", kind="ClusterRole", group=group, wide=True)
    yield Resource(plural="clusterrolebindings", kind="ClusterRoleBinding", group=group, wide=True)
    group = "admissionregistration.k8s.io"
    for kind in (
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ):
        plural = kind.lower().removesuffix("y") + "ies" if kind.endswith("y") else f"{kind}s"
        yield Resource(plural=plural.lower(), kind=kind, group=group, wide=True)
    group = "resource.k8s.io"
    yield Resource(plural="resourceclaims", kind="ResourceClaim", group=group, status=True)
    yield Resource(plural="resourceclaimtemplates", kind="ResourceClaimTemplate", group=group)
    yield Resource(plural="resourceslices", kind="ResourceSlice", group=group, wide=True)
    yield Resource(plural="deviceclasses", kind="DeviceClass", group=group, wide=True)
    group = "scheduling.k8s.io"
    yield Resource(plural="priorityclasses", kind="PriorityClass", group=group, wide=True)
    # Kubernetes 1.36 serves the first of these, 1.37 the others.
    later = ("v1alpha2", "v1beta1", "v1alpha3")
    yield Resource(plural="podgroups", kind="PodGroup", group=group, versions=later, status=True)
    yield Resource(plural="workloads", kind="Workload", group=group, versions=later)
    for group, version in (
        ("scheduling.x-k8s.io", "v1alpha1"),
        ("scheduling.volcano.sh", "v1beta1"),
    ):
        yield Resource(
            plural="podgroups", kind="PodGroup", group=group, versions=(version,), custom=True
        )
    yield Resource(
        plural="customresourcedefinitions",
        kind="CustomResourceDefinition",
        group="apiextensions.k8s.io",
        wide=True,
        status=True,
    )
    yield Resource(
        plural="mpijobs",
        kind="MPIJob",
        group="kubeflow.org",
        versions=("v2beta1", "v1", "v1alpha1"),
        status=True,
        custom=True,
    )
    group = "kueue.x-k8s.io"
    versions = ("v1beta2", "v1beta1", "v1alpha1")
    more: Any = {"group": group, "versions": versions, "custom": True}
    yield Resource(plural="topologies", kind="Topology", wide=True, **more)
    yield Resource(plural="workloads", kind="Workload", status=True, **more)
    yield Resource(plural="localqueues", kind="LocalQueue", status=True, **more)
    yield Resource(plural="clusterqueues", kind="ClusterQueue", wide=True, status=True, **more)


RESOURCES: dict[str, Resource] = {one.name: one for one in _all()}
"""By `plural.group`."""

UNUSUAL = frozenset(
    {
        "podgroups.scheduling.k8s.io",
        "workloads.scheduling.k8s.io",
        "podgroups.scheduling.x-k8s.io",
        "podgroups.scheduling.volcano.sh",
    }
)
"""What a plain cluster does not serve: alpha gates, and schedulers that somebody must install."""


def named(kind: str, group: str | None = None) -> Resource:
    """The resource of a kind, or of `Kind.group`; the first one where several have the kind."""
    kind, _, within = kind.partition(".")
    group = within or group
    found = [one for one in RESOURCES.values() if one.kind == kind]
    if not found:
        raise KeyError(kind)
    return next((one for one in found if group is not None and one.group == group), found[0])


def of(thing: Object) -> Resource:
    """The resource that an object belongs to, by its kind and its apiVersion if it says one."""
    version = thing.get("apiVersion")
    group = None if version is None else version.rpartition("/")[0]
    if thing.get("kind") == "Workload" and group is None:
        group = "kueue.x-k8s.io"
    return named(thing["kind"], group)


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


class Refused(Exception):
    """An HTTP error on its way out."""

    def __init__(self, status: int, reason: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers: dict[str, str] = more.pop("headers", {})
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": more.pop("metadata", {}),
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": status,
            **more,
        }


def invalid(kind: str, name: str, *causes: str) -> Refused:
    """422, in the words of the real server: one cause plain, several in brackets."""
    said = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    return Refused(422, "Invalid", f'{kind} "{name}" is invalid: {said}')


def forbidden(resource: Resource, name: str, why: str) -> Refused:
    return Refused(403, "Forbidden", f'{resource.name} "{name}" is forbidden: {why}')


def conflict(resource: Resource, name: str, why: str) -> Refused:
    said = f'Operation cannot be fulfilled on {resource.name} "{name}": {why}'
    return Refused(409, "Conflict", said)
