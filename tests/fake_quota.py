"""Admission by resource quota and by PodSecurity, with the texts of the real plugins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from fake_resources import RESOURCES, Object, Resource, forbidden

if TYPE_CHECKING:
    from fake_api import FakeApi

PODS = RESOURCES["pods"]
QUOTAS = RESOURCES["resourcequotas"]
CLAIMS = RESOURCES["resourceclaims.resource.k8s.io"]
ENFORCE = "pod-security.kubernetes.io/enforce"
UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}
BASELINE_CAPABILITIES = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}


def quantity(text: Any) -> Decimal:
    """A Kubernetes quantity as a number."""
    found = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", str(text))
    assert found, text
    return Decimal(found[1]) * UNITS[found[2]]


def shown(value: Decimal, like: Any = "") -> str:
    """A number as a quantity, with the unit of another one where that is exact."""
    value = Decimal(value)
    unit = re.sub(r"[+-]?[0-9.]+", "", str(like))
    for one in (unit, ""):
        if one and value and value % UNITS[one] == 0:
            return f"{value / UNITS[one]:f}" + one
    if value != value.to_integral_value():
        return f"{(value * 1000).to_integral_value():f}m"
    return f"{value.to_integral_value():f}"


def pod_requests(spec: Object, what: str = "requests") -> dict[str, Decimal]:
    """What a pod asks for: the sum of its containers, or an init container that asks for more."""
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total.update(_of_container(container, what))
    for container in spec.get("initContainers") or ():
        for name, value in _of_container(container, what).items():
            total[name] = max(total[name], value)
    return dict(total)


def _of_container(container: Object, what: str) -> Any:
    resources = container.get("resources") or {}
    found = {**(resources.get("limits") or {}), **(resources.get(what) or {})}
    return Counter({name: quantity(value) for name, value in found.items()})


def _usage(resource: Resource, thing: Object) -> dict[str, Decimal]:
    """What an object takes of the quotas of its namespace."""
    found = {f"count/{resource.name}": Decimal(1)}
    if resource.name == "pods":
        phase = (thing.get("status") or {}).get("phase")
        if phase in {"Succeeded", "Failed"}:
            return found
        found["pods"] = Decimal(1)
        spec = thing.get("spec") or {}
        for what in ("requests", "limits"):
            for name, value in pod_requests(spec, what).items():
                if what == "requests" or name in {"cpu", "memory"}:
                    found[f"{what}.{name}"] = value
                if what == "requests" and name in {"cpu", "memory"}:
                    found[name] = value
    elif resource.name in {"services", "secrets", "configmaps"}:
        found[resource.plural] = Decimal(1)
    elif resource.name == CLAIMS.name:
        for request in ((thing.get("spec") or {}).get("devices") or {}).get("requests") or ():
            alternatives = request.get("firstAvailable") or [request.get("exactly") or {}]
            # Of several alternatives the largest of each class counts.
            most: dict[str, Decimal] = {}
            for one in alternatives:
                key = f"{one.get('deviceClassName')}.deviceclass.resource.k8s.io/devices"
                most[key] = max(most.get(key, Decimal(0)), Decimal(one.get("count", 1)))
            for key, value in most.items():
                found[key] = found.get(key, Decimal(0)) + value
    return found


def _used(api: FakeApi, space: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for name, table in api.tables.items():
        for key, entry in table.items():
            if key[0] == space and space:
                total.update(_usage(RESOURCES[name], entry.thing))
    return total


def admit(api: FakeApi, resource: Resource, thing: Object, *, hand: bool) -> None:
    """Refuse what the namespace's quotas or its PodSecurity level forbid."""
    space = thing["metadata"].get("namespace", "")
    if resource.name == "pods" and not hand:
        _secure(api, thing, space)
    quotas = [
        entry.thing
        for (inside, _), entry in sorted(api.tables["resourcequotas"].items())
        if inside == space and space
    ]
    if not quotas or hand:
        return
    wanted, used = _usage(resource, thing), _used(api, space)
    name = thing["metadata"]["name"]
    for quota in quotas:
        hard = (quota.get("spec") or {}).get("hard") or {}
        label = quota["metadata"]["name"]
        if resource.name == "pods":
            missing = sorted(
                key
                for key in hard
                if key
                in {
                    "cpu",
                    "memory",
                    "requests.cpu",
                    "requests.memory",
                    "limits.cpu",
                    "limits.memory",
                }
                and key not in wanted
            )
            if missing:
                who = ",".join(
                    one["name"] for one in (thing.get("spec") or {}).get("containers", ())
                )
                said = "; ".join(f"{key} for: {who}" for key in missing)
                raise forbidden(PODS, name, f"failed quota: {label}: must specify {said}")
        over = sorted(
            key
            for key, value in wanted.items()
            if key in hard and value and used[key] + value > quantity(hard[key])
        )
        if over:
            parts = [
                ",".join(f"{key}={shown(values[key], hard[key])}" for key in over)
                for values in (wanted, used)
            ]
            limits = ",".join(f"{key}={hard[key]}" for key in over)
            raise forbidden(
                resource,
                name,
                f"exceeded quota: {label}, requested: {parts[0]}, used: {parts[1]},"
                f" limited: {limits}",
            )


def counted(api: FakeApi, resource: Resource, space: str) -> None:
    """Write what is used into the quotas of a namespace, after something in it has changed."""
    if not space or resource.name == "events" or not api.counts_quotas:
        return
    quotas = [key for key in api.tables["resourcequotas"] if key[0] == space]
    if not quotas:
        return
    used = _used(api, space)
    for key in quotas:
        quota = api.tables["resourcequotas"][key].thing
        hard = (quota.get("spec") or {}).get("hard") or {}
        status = {
            "hard": hard,
            "used": {name: shown(used[name], value) for name, value in hard.items()},
        }
        if quota.get("status") != status:
            api.put(QUOTAS, key, {**quota, "metadata": dict(quota["metadata"]), "status": status})


def _secure(api: FakeApi, pod: Object, space: str) -> None:
    labels = api.tables["namespaces"]["", space].thing["metadata"].get("labels") or {}
    level = labels.get(ENFORCE, "privileged")
    if level == "privileged":
        return
    version = labels.get(f"{ENFORCE}-version", "latest")
    spec = pod.get("spec") or {}
    found = list(_baseline(spec, restricted=level == "restricted"))
    if level == "restricted":
        found = [*found, *_restricted(spec)]
    if found:
        said = f'violates PodSecurity "{level}:{version}": {", ".join(found)}'
        raise forbidden(PODS, pod["metadata"]["name"], said)


def _containers(spec: Object) -> list[Object]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _these(names: list[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"container{'s' if len(names) > 1 else ''} {quoted}"


def _baseline(spec: Object, *, restricted: bool) -> Iterator[str]:
    host = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    if host:
        yield f"host namespaces ({', '.join(f'{key}=true' for key in host)})"
    paths = [one["name"] for one in spec.get("volumes") or () if "hostPath" in one]
    if paths:
        quoted = ", ".join(f'"{name}"' for name in paths)
        yield f"hostPath volumes (volume{'s' if len(paths) > 1 else ''} {quoted})"
    loud = [
        one["name"]
        for one in _containers(spec)
        if (one.get("securityContext") or {}).get("privileged")
    ]
    if loud:
        yield f"privileged ({_these(loud)} must not set securityContext.privileged=true)"
    if not restricted:
        extra: dict[str, list[str]] = {}
        for one in _containers(spec):
            added = ((one.get("securityContext") or {}).get("capabilities") or {}).get("add") or ()
            if bad := sorted(set(added) - BASELINE_CAPABILITIES):
                extra[one["name"]] = bad
        if extra:
            every = ", ".join(
                f'"{one}"' for one in sorted({c for bad in extra.values() for c in bad})
            )
            yield (
                f"non-default capabilities ({_these(list(extra))} must not include {every} in"
                " securityContext.capabilities.add)"
            )


def _restricted(spec: Object) -> Iterator[str]:
    contexts = [(one["name"], one.get("securityContext") or {}) for one in _containers(spec)]
    pod = spec.get("securityContext") or {}
    loose = [name for name, one in contexts if one.get("allowPrivilegeEscalation") is not False]
    if loose:
        yield (
            f"allowPrivilegeEscalation != false ({_these(loose)} must set"
            " securityContext.allowPrivilegeEscalation=false)"
        )
    kept = [
        name
        for name, one in contexts
        if "ALL" not in ((one.get("capabilities") or {}).get("drop") or ())
    ]
    added = {
        name: sorted(set((one.get("capabilities") or {}).get("add") or ()) - {"NET_BIND_SERVICE"})
        for name, one in contexts
    }
    said = []
    if kept:
        said.append(f'{_these(kept)} must set securityContext.capabilities.drop=["ALL"]')
    if any(added.values()):
        every = ", ".join(f'"{one}"' for one in sorted({c for bad in added.values() for c in bad}))
        names = [name for name, bad in added.items() if bad]
        said.append(f"{_these(names)} must not include {every} in securityContext.capabilities.add")
    if said:
        yield f"unrestricted capabilities ({'; '.join(said)})"
    bad = [
        one["name"]
        for one in spec.get("volumes") or ()
        if not set(one)
        & {
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "persistentVolumeClaim",
            "projected",
            "secret",
        }
    ]
    if bad:
        quoted = ", ".join(f'"{name}"' for name in bad)
        yield (
            f"restricted volume types (volume{'s' if len(bad) > 1 else ''} {quoted} uses restricted"
            ' volume type "hostPath")'
        )
    rooted = [
        name
        for name, one in contexts
        if one.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True
    ]
    if rooted:
        yield (
            f"runAsNonRoot != true (pod or {_these(rooted)} must set"
            " securityContext.runAsNonRoot=true)"
        )

    def profile(one: Object) -> Any:
        chosen = one.get("seccompProfile") or pod.get("seccompProfile") or {}
        return chosen.get("type")

    free = [name for name, one in contexts if profile(one) not in {"RuntimeDefault", "Localhost"}]
    if free:
        yield (
            f"seccompProfile (pod or {_these(free)} must set securityContext.seccompProfile.type to"
            ' "RuntimeDefault" or "Localhost")'
        )
