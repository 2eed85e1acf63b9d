"""ResourceQuotas -> the shortage for a gang as a whole, its launcher included.

Pure. The API server checks one pod at a time, so a quota one GPU short admits all workers but one;
this checks all pods before any is created.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from arena_topo.clusters.objects import Object, items, mapping_at
from arena_topo.clusters.rules import parse_quantity, pod_request
from arena_topo.manifests import Manifest
from arena_topo.manifests.cause import Cause, CauseCode, because

_PODS = ("pods", "count/pods")
_SYNONYMS = {"cpu": "requests.cpu", "memory": "requests.memory"}
"""Other names of the same limits (kubernetes, resource-quotas)."""


_REFUSED = re.compile(r"\b(exceeded|failed) quota: ")
"""The API server's text for an object that a quota refuses (kubernetes, plugin/pkg/admission/
resourcequota)."""


def quota_cause(text: str) -> Cause:
    """The cause of a refusal by the server to create an object of a gang."""
    by_quota = _REFUSED.search(text) is not None
    return because(CauseCode.QUOTA_REFUSED if by_quota else CauseCode.TEXT, text=text)


def shortfall(
    mpijob: Manifest,
    quotas: Iterable[Object],
    *,
    claims: Iterable[Object] = (),
    held: Iterable[Object] = (),
    ending: Iterable[Object] = (),
) -> Cause | None:
    """The shortage of a namespace for all pods of an MPIJob; None if its quotas suffice.

    `mpijob` is the job in the form in which it would run, `claims` are the claims that it would
    have, `held` its existing claims, which count already, `ending` its existing pods, which end
    before the new ones start. Scoped quotas count if their scope is the job's priority class or
    pods without a deadline; invalid quantities are skipped, as the server itself decides in the
    end.
    """
    needs = _needs(mpijob)
    for name, value in _claimed(claims).items():
        needs[name] += value
    for name, value in _claimed(held).items():
        needs[name] -= value
    freed = _of_pods((1, mapping_at(pod, "spec")) for pod in ending)
    classes = {
        str(mapping_at(mapping_at(role, "template"), "spec").get("priorityClassName") or "")
        for role in mapping_at(mapping_at(mpijob, "spec"), "mpiReplicaSpecs").values()
    }
    for quota in quotas:
        if not _concerns(quota, classes):
            continue
        status = mapping_at(quota, "status")
        hard, used = (
            mapping_at(status, "hard") or mapping_at(mapping_at(quota, "spec"), "hard"),
            mapping_at(status, "used"),
        )
        for key, limit in hard.items():
            needed = needs.get(_SYNONYMS.get(key, key), 0.0)
            try:
                remaining = parse_quantity(limit) - parse_quantity(used.get(key))
                remaining += min(parse_quantity(used.get(key)), freed[_SYNONYMS.get(key, key)])
            except ValueError:
                continue
            if needed > max(0.0, remaining):
                return because(
                    CauseCode.QUOTA,
                    quota=str(quota["metadata"]["name"]),
                    left=f"{max(0.0, remaining):g}",
                    resource=key,
                    needs=f"{needed:g}",
                )
    return None


def _needs(mpijob: Manifest) -> dict[str, float]:
    """The use of all pods of a job, by the names that quotas have."""
    return _of_pods(
        (int(role.get("replicas", 1)), mapping_at(mapping_at(role, "template"), "spec"))
        for role in mapping_at(mapping_at(mpijob, "spec"), "mpiReplicaSpecs").values()
    )


def _of_pods(pods: Iterable[tuple[int, Object]]) -> dict[str, float]:
    """The use of pods, each given by its number of replicas and its spec."""
    total: dict[str, float] = defaultdict(float)
    for replicas, pod in pods:
        for key in _PODS:
            total[key] += replicas
        for name, value in _of_pod(pod).items():
            total[name] += replicas * value
    return total


def _claimed(claims: Iterable[Object]) -> dict[str, float]:
    """The use of claims: their number, and their devices by class (KEP-4840, quota of DRA)."""
    total: dict[str, float] = defaultdict(float)
    for claim in claims:
        if claim.get("kind", "ResourceClaim") != "ResourceClaim":
            continue
        total["count/resourceclaims.resource.k8s.io"] += 1
        for request in items(mapping_at(mapping_at(claim, "spec"), "devices"), "requests"):
            exactly = mapping_at(request, "exactly")
            name = f"{exactly.get('deviceClassName')}.deviceclass.resource.k8s.io/devices"
            total[name] += float(exactly.get("count", 1))
    return total


def _of_pod(pod: Object) -> dict[str, float]:
    """The use of a pod, by the rule of the scheduler; invalid quantities are skipped."""
    use: dict[str, float] = {}
    for container in (*items(pod, "containers"), *items(pod, "initContainers")):
        resources = mapping_at(container, "resources")
        for name in {*mapping_at(resources, "limits"), *mapping_at(resources, "requests")}:
            with suppress(ValueError):
                use[f"requests.{name}"] = pod_request(pod, name)
                use[f"limits.{name}"] = pod_request(pod, name, limits=True)
    return use


def _concerns(quota: Object, classes: set[str]) -> bool:
    spec = mapping_at(quota, "spec")
    if not set(spec.get("scopes") or ()) <= {"NotTerminating", "NotBestEffort"}:
        return False
    for term in items(mapping_at(spec, "scopeSelector"), "matchExpressions"):
        values = set(term.get("values") or ())
        fits = {
            "In": bool(values & classes),
            "NotIn": not values & classes,
            "Exists": any(classes),
            "DoesNotExist": not any(classes),
        }
        if term.get("scopeName") != "PriorityClass" or not fits.get(str(term.get("operator"))):
            return False
    return True
