"""Dynamic resource allocation: slices, classes, claims, and the scheduler's choice of devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fake_cel import CelError, evaluate
from fake_resources import RESOURCES, Object, copied

if TYPE_CHECKING:
    from fake_api import FakeApi

GROUP = "resource.k8s.io"
CLAIMS = RESOURCES[f"resourceclaims.{GROUP}"]
Device = tuple[str, str, str]
"""(driver, pool, name), unique in a cluster."""


def device_class(driver: str = "gpu.nvidia.com", name: str | None = None) -> Object:
    """A DeviceClass of the GPUs of a driver."""
    text = f"device.driver == '{driver}' && device.attributes['{driver}'].type == 'gpu'"
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name or driver},
        "spec": {"selectors": [{"cel": {"expression": text}}]},
    }


def resource_slice(
    node: str, uuids: list[str], *, driver: str = "gpu.nvidia.com", product: str = "NVIDIA H100"
) -> Object:
    """A ResourceSlice with one GPU for each UUID, in the order of their indexes."""
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": uuid},
                "index": {"int": index},
                "productName": {"string": product},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:0{index // 2}"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index, uuid in enumerate(uuids)
    ]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _devices(api: FakeApi, node: str) -> Iterator[tuple[Device, Any]]:
    """The devices of a node with what a CEL selector sees of each, in the order of their slices."""
    for _, entry in sorted(api.tables[f"resourceslices.{GROUP}"].items()):
        spec = entry.thing["spec"]
        if spec.get("nodeName") != node:
            continue
        driver = spec["driver"]
        for one in spec.get("devices") or ():
            inside = one.get("basic") or one
            attributes: dict[str, dict[str, Any]] = {driver: {}}
            for name, value in (inside.get("attributes") or {}).items():
                domain, _, short = name.rpartition("/")
                attributes.setdefault(domain or driver, {})[short] = next(iter(value.values()))
            seen = {"driver": driver, "attributes": attributes, "capacity": {driver: {}}}
            yield (driver, spec["pool"]["name"], one["name"]), seen


def taken(api: FakeApi) -> set[Device]:
    """The devices that some claim holds."""
    found = set()
    for entry in api.tables[CLAIMS.name].values():
        allocation = (entry.thing.get("status") or {}).get("allocation") or {}
        for one in (allocation.get("devices") or {}).get("results") or ():
            found.add((one["driver"], one["pool"], one["device"]))
    return found


def _chosen(api: FakeApi, request: Object, seen: Any) -> bool:
    found = api.tables[f"deviceclasses.{GROUP}"].get(("", request.get("deviceClassName", "")))
    if found is None:
        return False
    both = [
        *((found.thing.get("spec") or {}).get("selectors") or ()),
        *(request.get("selectors") or ()),
    ]
    try:
        return all(evaluate(one["cel"]["expression"], {"device": seen}) for one in both)
    except CelError:
        return False


def fits(api: FakeApi, claim: Object, node: str, held: set[Device]) -> list[Object] | None:
    """The results of an allocation of a claim on a node: first fit in the order of the slices."""
    results: list[Object] = []
    used = set(held)
    for request in (claim["spec"].get("devices") or {}).get("requests") or ():
        alternatives = [
            (f"{request['name']}/{one['name']}", one) for one in request.get("firstAvailable") or ()
        ] or [(request["name"], request.get("exactly") or {})]
        for name, one in alternatives:
            wanted = one.get("count", 1)
            free = [
                device
                for device, seen in _devices(api, node)
                if device not in used and _chosen(api, one, seen)
            ]
            if len(free) >= wanted:
                for driver, pool, device in free[:wanted]:
                    results.append(
                        {"request": name, "driver": driver, "pool": pool, "device": device}
                    )
                    used.add((driver, pool, device))
                break
        else:
            return None
    return results


def claims_of(api: FakeApi, pod: Object) -> list[Object] | str:
    """The claims that a pod refers to, or what it waits for."""
    found = []
    space = pod["metadata"]["namespace"]
    made = {
        one["name"]: one["resourceClaimName"]
        for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    for one in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = one.get("resourceClaimName") or made.get(one["name"])
        if name is None:
            return (
                "waiting for dynamic resource controller to create the resourceclaim for pod"
                f' "{pod["metadata"]["name"]}"'
            )
        entry = api.tables[CLAIMS.name].get((space, name))
        if entry is None:
            return f'waiting for resourceclaim "{name}": not found'
        found.append(entry.thing)
    return found


def node_of(claim: Object) -> str | None:
    """The node that an allocated claim is bound to."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for one in term.get("matchFields") or ():
            return str(one["values"][0])
    return None


def allocate(api: FakeApi, claim: Object, node: str, results: list[Object], pod: Object) -> None:
    """Write an allocation, if there is none yet, and reserve the claim for a pod."""
    changed = copied(claim)
    status = changed.setdefault("status", {})
    if not status.get("allocation"):
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        status["allocation"] = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        }
    meta = pod["metadata"]
    user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
    if user not in status.setdefault("reservedFor", []):
        status["reservedFor"].append(user)
    key = (meta["namespace"], changed["metadata"]["name"])
    api.store(CLAIMS, key, changed)


def step(api: FakeApi) -> None:
    """The claim controller: claims from templates, and claims whose pods are gone let go."""
    pods = api.tables["pods"]
    for key, entry in list(pods.items()):
        pod = entry.thing
        made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
        done = {one["name"] for one in made}
        for one in (pod.get("spec") or {}).get("resourceClaims") or ():
            template = one.get("resourceClaimTemplateName")
            found = api.tables[f"resourceclaimtemplates.{GROUP}"].get((key[0], template or ""))
            if template is None or one["name"] in done or found is None:
                continue
            owner = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": key[1],
                "uid": pod["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
            claim = {
                "apiVersion": f"{GROUP}/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "generateName": f"{key[1]}-{one['name']}-",
                    "ownerReferences": [owner],
                },
                "spec": copied(found.thing["spec"]["spec"]),
            }
            name = api.create(CLAIMS, key[0], claim)["metadata"]["name"]
            pod = copied(pod)
            statuses = pod.setdefault("status", {}).setdefault("resourceClaimStatuses", [])
            statuses.append({"name": one["name"], "resourceClaimName": name})
            api.store(RESOURCES["pods"], key, pod)
    for key, entry in list(api.tables[CLAIMS.name].items()):
        status = entry.thing.get("status") or {}
        kept = [one for one in status.get("reservedFor") or () if _alive(api, key[0], one)]
        if kept != (status.get("reservedFor") or []):
            changed = copied(entry.thing)
            changed["status"]["reservedFor"] = kept
            if not kept:
                changed["status"] = {}
            api.store(CLAIMS, key, changed)


def _alive(api: FakeApi, space: str, user: Object) -> bool:
    entry = api.tables["pods"].get((space, user["name"]))
    if entry is None or entry.thing["metadata"]["uid"] != user["uid"]:
        return False
    return (entry.thing.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
