"""What the CRDs of the three MPIJob versions keep of an object; the rest is pruned, as recorded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fake_resources import Object, Refused, Resource, invalid

if TYPE_CHECKING:
    from fake_api import FakeApi


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


POD_SPEC = _words(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy"
    " enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers"
    " hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead"
    " preemptionPolicy priority priorityClassName readinessGates resourceClaims resources"
    " restartPolicy runtimeClassName schedulerName schedulingGates securityContext serviceAccount"
    " serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain"
    " terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
    " workloadRef"
)
"""The pod spec in mpi-operator's v2beta1 CRD, which knows no `schedulingGroup`."""

OLD_POD_SPEC = POD_SPEC - {
    "schedulingGates",
    "resourceClaims",
    "os",
    "hostUsers",
    "hostnameOverride",
    "resources",
    "workloadRef",
}
"""The pod spec in the CRD that arena ships (v1alpha1)."""

SPEC = {
    "v2beta1": _words(
        "launcherCreationPolicy mpiImplementation mpiReplicaSpecs runLauncherAsWorker runPolicy"
        " slotsPerWorker sshAuthMountPath"
    ),
    "v1": _words("cleanPodPolicy mainContainer mpiReplicaSpecs runPolicy slotsPerWorker"),
    "v1alpha1": _words(
        "backoffLimit cleanPodPolicy gpus launcherOnMaster launcherResources mountsOnLauncher"
        " replicas template"
    ),
}
RUN_POLICY = {
    "v2beta1": _words(
        "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend"
        " ttlSecondsAfterFinished"
    ),
    "v1": _words(
        "activeDeadlineSeconds backoffLimit cleanPodPolicy schedulingPolicy suspend"
        " ttlSecondsAfterFinished"
    ),
}
TEMPLATE_META = frozenset({"annotations", "finalizers", "labels", "name", "namespace"})
MANAGERS = {"kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue"}


def _stray(api: FakeApi, thing: Object, version: str) -> Iterator[tuple[str, Object, str]]:
    """(path, where, key) of all that the CRD does not know."""
    spec = thing.get("spec")
    if not isinstance(spec, dict):
        return
    yield from _beyond("spec", spec, SPEC[version])
    old = version == "v1alpha1"
    policy = spec.get("runPolicy")
    if isinstance(policy, dict) and version in RUN_POLICY:
        known = RUN_POLICY[version] if api.suspends else RUN_POLICY[version] - {"suspend"}
        yield from _beyond("spec.runPolicy", policy, known)
    if old:
        yield from _in_template("spec.template", spec.get("template"), old=True)
        return
    for role, replica in (spec.get("mpiReplicaSpecs") or {}).items():
        path = f"spec.mpiReplicaSpecs.{role}"
        yield from _beyond(path, replica, {"replicas", "restartPolicy", "template"})
        yield from _in_template(f"{path}.template", replica.get("template"), old=False)


def _beyond(path: str, there: Object, known: Any) -> Iterator[tuple[str, Object, str]]:
    for key in list(there):
        if key not in known:
            yield f"{path}.{key}", there, key


def _in_template(path: str, template: Any, *, old: bool) -> Iterator[tuple[str, Object, str]]:
    if not isinstance(template, dict):
        return
    yield from _beyond(path, template, {"metadata", "spec"})
    yield from _beyond(f"{path}.metadata", template.get("metadata") or {}, TEMPLATE_META)
    pod = template.get("spec") or {}
    yield from _beyond(f"{path}.spec", pod, OLD_POD_SPEC if old else POD_SPEC)
    if old:
        for group in ("initContainers", "containers"):
            for index, one in enumerate(pod.get(group) or ()):
                where = f"{path}.spec.{group}[{index}].resources"
                resources = one.get("resources") or {}
                yield from _beyond(where, resources, {"limits", "requests"})


def prune(api: FakeApi, resource: Resource, thing: Object, version: str) -> None:
    """Drop from an MPIJob what the CRD of a version does not know."""
    if resource.name == "mpijobs.kubeflow.org" and version in SPEC:
        for _, where, key in list(_stray(api, thing, version)):
            del where[key]


def unknown(
    api: FakeApi, resource: Resource, thing: Object, version: str, validation: str
) -> list[str]:
    """Warnings about what will be pruned; an error where the request asked for that."""
    if resource.name != "mpijobs.kubeflow.org" or version not in SPEC or validation == "Ignore":
        return []
    paths = [path for path, _, _ in _stray(api, copy.deepcopy(thing), version)]
    if paths and validation == "Strict":
        said = ", ".join(f'unknown field "{path}"' for path in paths)
        raise Refused(
            400,
            "BadRequest",
            f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}:'
            f" strict decoding error: {said}",
        )
    return [f'unknown field \\"{path}\\"' for path in paths]


def check_update(old: Object, new: Object) -> None:
    """Refuse what the CRD says is immutable."""

    def manager(thing: Object) -> Any:
        return ((thing.get("spec") or {}).get("runPolicy") or {}).get("managedBy")

    if manager(old) is not None and manager(new) != manager(old):
        raise invalid(
            "MPIJob",
            new["metadata"]["name"],
            f'spec.runPolicy.managedBy: Invalid value: "{manager(new)}": field is immutable',
        )
