"""What an administrator asks of a cluster: what is installed, who may do what, nodes as they are.

Reads raise AccessDenied where the caller lacks the right; who asks decides what that means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.shapes import bare, oddity
from arena_topo.engines.kubernetes.writing import part
from arena_topo.errors import ClusterError, NotFound
from arena_topo.manifests import Manifest
from arena_topo.manifests.install import CONTROLLER, SYSTEM, VIEW, Right
from arena_topo.topology import published

if TYPE_CHECKING:
    from arena_topo.engines.kubernetes.engine import KubernetesBackend

Object = dict[str, Any]

_GROUP = "kubeflow.org"

_OPERATORS = ("mpi-operator", "training-operator")
"""What the images of the operators are called."""

GANG_GROUPS = {
    "scheduling.x-k8s.io": "scheduler-plugins or Koordinator",
    "scheduling.volcano.sh": "Volcano",
    "scheduling.k8s.io": "kube-scheduler",
}
"""Groups that have a PodGroup, and whose it is."""

_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Administration:
    """One cluster, seen by its administrator."""

    def __init__(self, backend: KubernetesBackend) -> None:
        self.backend = backend
        self._api: Connection = backend.api

    def now(self) -> float:
        """The server's time (Unix seconds), as of its last answer."""
        return self._api.now()

    def version(self) -> str:
        """The version of the API server, such as v1.36.2."""
        return str(self._api.get("/version").get("gitVersion") or "unknown")

    # What is installed

    def find(self, manifest: Manifest) -> Object | None:
        """The stored object of this kind and name; None if there is none, or no such kind."""
        try:
            return self._api.get(f"{_collection(manifest)}/{manifest['metadata']['name']}")
        except NotFound:
            return None

    def policy(self, name: str) -> Object | None:
        """A MutatingAdmissionPolicy; None if there is none, or if this cluster has no such kind."""
        try:
            return self._api.get(f"{_POLICIES}/{name}")
        except NotFound:
            return None

    def lease(self) -> Object | None:
        """The Lease that the controller at work renews; None where there is none."""
        return self._maybe(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{CONTROLLER}")

    def view(self) -> Object | None:
        """The ConfigMap cluster-view; None where nobody publishes one."""
        return self._maybe(f"/api/v1/namespaces/{SYSTEM}/configmaps/{VIEW}")

    def namespace(self, name: str) -> Object | None:
        """A namespace; None if there is none."""
        return self._maybe(f"/api/v1/namespaces/{part(name)}")

    def _maybe(self, path: str) -> Object | None:
        try:
            return self._api.get(path)
        except NotFound:
            return None

    def served(self) -> tuple[str, ...]:
        """The versions of MPIJob that are served; none without an operator."""
        try:
            group = self._api.get(f"/apis/{_GROUP}")
        except NotFound:
            return ()
        found = []
        for one in group.get("versions") or ():
            version = str(one.get("version"))
            try:
                listed = self._api.get(f"/apis/{_GROUP}/{version}")
            except NotFound:
                continue
            if any(each.get("name") == "mpijobs" for each in listed.get("resources") or ()):
                found.append(version)
        return tuple(found)

    def operators(self) -> list[Object]:
        """The Deployments of all namespaces that run an MPI operator."""

        def keep(one: Object) -> Object | None:
            pod = ((one.get("spec") or {}).get("template") or {}).get("spec") or {}
            images = [str(each.get("image")) for each in pod.get("containers") or ()]
            named = [image for image in images if any(word in image for word in _OPERATORS)]
            return {**one, "image": named[0]} if named else None

        return self._api.collect("/apis/apps/v1/deployments", keep)

    def gangs(self) -> dict[str, tuple[str, ...]]:
        """The groups of `GANG_GROUPS` that have a PodGroup here, and in which versions."""
        found: dict[str, tuple[str, ...]] = {}
        for group in GANG_GROUPS:
            try:
                said = self._api.get(f"/apis/{group}")
            except NotFound:
                continue
            for one in said.get("versions") or ():
                try:
                    listed = self._api.get(f"/apis/{group}/{one.get('version')}")
                except NotFound:
                    continue
                if any(each.get("name") == "podgroups" for each in listed.get("resources") or ()):
                    found[group] = (*found.get(group, ()), str(one.get("version")))
        return found

    def topologies(self, namespace: str) -> list[Object]:
        """The ConfigMaps of a namespace that publish the links of a node."""
        return self._api.collect(
            f"/api/v1/namespaces/{part(namespace)}/configmaps",
            labelSelector=f"{published.SCHEDULE_LABEL}=topology",
        )

    def allowed(self, right: Right, namespace: str) -> bool:
        """Whether the caller has a right, in a namespace or everywhere (SelfSubjectAccessReview).

        Anybody who has logged in may ask.
        """
        resource, _, sub = right.resource.partition("/")
        asked = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            **({"subresource": sub} if sub else {}),
            **({} if right.everywhere else {"namespace": namespace}),
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer, _ = self._api.post(_REVIEWS, review)
        return (answer.get("status") or {}).get("allowed") is True

    # Jobs, nodes and pods

    def jobs(self) -> list[Object]:
        """The MPIJobs of all namespaces; none without an operator.

        Of one that makes no sense only its name.
        """
        served = self.served()
        if not served:
            return []
        version = self.backend.api_version()

        def keep(one: Object) -> Object:
            return one if oddity(one) is None else bare(one)

        return self._api.collect(f"/apis/{_GROUP}/{version}/mpijobs", keep, judged=True)

    def nodes(self) -> list[Object]:
        """All nodes, without what kubelets say of images."""

        def keep(one: Object) -> Object:
            status = one.get("status") or {}
            return {
                "metadata": one["metadata"],
                "spec": one.get("spec") or {},
                "status": {"capacity": status.get("capacity") or {}},
            }

        return self._api.collect("/api/v1/nodes", keep)

    def node(self, name: str) -> Object:
        """One node; NotFound if there is none, UsageError if none can be called so."""
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
        """Change a node by a JSON patch; ClusterError with status 422 where a `test` fails."""
        query = {"dryRun": "All"} if dry_run else {}
        return self._api.patch(f"/api/v1/nodes/{part(name)}", list(steps), "json", **query)


def overtaken(error: ClusterError) -> bool:
    """Whether somebody else has changed an object since it was read."""
    return error.status in {409, 422}


def _collection(manifest: Manifest) -> str:
    """Where objects of a kind are; those without a namespace belong to the cluster."""
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    root = "apis" if "/" in version else "api"
    space = manifest["metadata"].get("namespace")
    return f"/{root}/{version}{f'/namespaces/{space}' if space else ''}/{plural}"
