"""The cluster beside its jobs: installed components, rights and nodes.

Reads raise AccessDenied if the caller lacks the right; the caller decides what that means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.completion.names import gpus
from arena_topo.engines.kubernetes import lease
from arena_topo.engines.kubernetes.binding_probe import allowed
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import part, path_of
from arena_topo.engines.kubernetes.mpijob import MPIJOB_GROUP, PLURAL
from arena_topo.engines.kubernetes.shapes import (
    KubeObject,
    identity_only,
    kube_object,
    object_error,
)
from arena_topo.engines.kubernetes.sources import NoOperator
from arena_topo.errors import NotFound
from arena_topo.manifests import Manifest
from arena_topo.manifests.install import SYSTEM, VIEW, Right
from arena_topo.manifests.versions import ApiVersion
from arena_topo.numbers import parse_count
from arena_topo.topology import published

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.engine import KubernetesBackend

Object = dict[str, Any]

_OPERATORS = ("mpi-operator", "training-operator")
"""Names in the images of the operators."""

_GPUS = "nvidia.com/gpu"

_NAMED: Mapping[str, str] = {
    "nodes": "/api/v1/nodes",
    "namespaces": "/api/v1/namespaces",
    "priorities": "/apis/scheduling.k8s.io/v1/priorityclasses",
}

_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"


class Administration:
    """A cluster as its administrator sees it."""

    def __init__(self, backend: KubernetesBackend) -> None:
        self.backend = backend
        self._api: Connection = backend.api

    def now(self) -> float:
        """The server's time (Unix seconds), based on its last answer."""
        return self._api.now()

    def version(self) -> str:
        """The version of the API server, such as v1.36.2."""
        return str(self._api.get("/version").get("gitVersion") or "unknown")

    # What is installed

    def find(self, manifest: Manifest) -> Object | None:
        """The stored object of this kind and name; None if the object or the kind is missing."""
        return self._api.find(f"{path_of(manifest)}/{part(manifest['metadata']['name'])}")

    def policy(self, name: str) -> Object | None:
        """A MutatingAdmissionPolicy; None if the policy or the kind does not exist."""
        return self._api.find(f"{_POLICIES}/{name}")

    def lease(self) -> Object | None:
        """The Lease that the active controller renews; None without one."""
        return self._api.find(lease.LEASES_PATH)

    def view(self) -> Object | None:
        """The ConfigMap cluster-view; None if no controller publishes it."""
        return self._api.find(f"/api/v1/namespaces/{SYSTEM}/configmaps/{VIEW}")

    def namespace(self, name: str) -> Object | None:
        """A namespace; None if it does not exist."""
        return self._api.find(f"/api/v1/namespaces/{part(name)}")

    def served(self) -> tuple[ApiVersion, ...]:
        """The versions of MPIJob that are served and known; `no_operator` says why none is."""
        return tuple(
            version for version in ApiVersion if self._api.serves(MPIJOB_GROUP, version, PLURAL)
        )

    def no_operator(self) -> NoOperator:
        """The error of a cluster that serves no known version of MPIJob."""
        return NoOperator.of(self._api)

    def operators(self) -> list[Object]:
        """The Deployments of all namespaces that run an MPI operator."""

        def keep(obj: Object) -> Object | None:
            images = (
                container.image for container in kube_object(obj).spec.template.spec.containers
            )
            named = (image for image in images if any(word in image for word in _OPERATORS))
            return {**obj, "image": image} if (image := next(named, "")) else None

        return self._api.collect("/apis/apps/v1/deployments", keep)

    def topologies(self, namespace: str) -> list[Object]:
        """The ConfigMaps of a namespace that publish the links of a node."""
        return self._api.collect(
            f"/api/v1/namespaces/{part(namespace)}/configmaps",
            labelSelector=f"{published.SCHEDULE_LABEL}=topology",
        )

    def allowed(self, right: Right, namespace: str) -> bool:
        """Whether the caller has a right, in a namespace or, without one, in the whole cluster."""
        space = "" if right.everywhere else namespace
        return allowed(self._api, right.verb, right.resource, group=right.group, namespace=space)

    # Jobs, nodes and pods

    def jobs(self) -> list[Object]:
        """The MPIJobs of all namespaces; empty without an operator.

        Of an invalid one only the name.
        """
        served = self.served()
        if not served:
            return []

        def keep(obj: Object) -> Object:
            return obj if object_error(obj) is None else identity_only(obj)

        return self._api.collect(f"/apis/{MPIJOB_GROUP}/{served[0]}/{PLURAL}", keep, judged=True)

    def nodes(self) -> list[Object]:
        """All nodes, without their lists of images."""

        def keep(obj: Object) -> Object:
            status = obj.get("status") or {}
            return {
                "metadata": obj["metadata"],
                "spec": obj.get("spec") or {},
                "status": {
                    "capacity": status.get("capacity") or {},
                    "conditions": status.get("conditions") or [],
                },
            }

        return self._api.collect("/api/v1/nodes", keep)

    def node(self, name: str) -> Object:
        """One node; NotFound if it does not exist, UsageError for an invalid name."""
        path = f"/api/v1/nodes/{part(name)}"
        try:
            return self._api.get(path)
        except NotFound as error:
            raise NotFound(
                f"there is no node {name} in this cluster",
                why=error.message,
                hint="kubectl get nodes lists them",
            ) from error

    def pods_on(self, node: str) -> list[Object]:
        """The pods that are bound to a node, in all namespaces."""
        return self._api.collect("/api/v1/pods", fieldSelector=f"spec.nodeName={part(node)}")

    def patch_node(
        self, name: str, steps: Iterable[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Object:
        """Change a node by a JSON patch; ClusterError with status 422 if a `test` fails."""
        query = {"dryRun": "All"} if dry_run else {}
        return self._api.patch(f"/api/v1/nodes/{part(name)}", list(steps), "json", **query)

    def named(self, kind: str) -> dict[str, str]:
        """All nodes, namespaces or priorities: a description by name.

        AccessDenied if they may not be listed; KeyError for another kind.
        """
        by_name: dict[str, str] = {}

        def keep(obj: Object) -> None:
            by_name[str(obj["metadata"]["name"])] = _description(kind, kube_object(obj))

        self._api.collect(_NAMED[kind], keep)
        return by_name


def _description(kind: str, fields: KubeObject) -> str:
    if kind == "priorities":
        return str(fields.value)
    # A quantity; for GPUs it is a whole number.
    offered = parse_count(fields.status.allocatable.get(_GPUS))
    return gpus(offered) if kind == "nodes" and offered is not None else ""
