"""The rules of pods and of DRA requests, in the words of a 1.36 API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fake_resources import NAME, RESOURCES, Object, Resource, conflict, copied, forbidden, invalid

if TYPE_CHECKING:
    from fake_api import FakeApi

PODS = RESOURCES["pods"]
MAY_CHANGE = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions"
    " to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it"
    " was previously negative)"
)
CEL_BYTES = 10240
ALTERNATIVES = 8


def admit_new(api: FakeApi, pod: Object) -> None:
    """Default and validate a pod that is to be created."""
    spec = pod.setdefault("spec", {})
    name = pod["metadata"]["name"]
    if "scheduling.k8s.io" in api.unserved or "podgroups.scheduling.k8s.io" in api.unserved:
        # The feature gate is off: the field is dropped without a word.
        spec.pop("schedulingGroup", None)
    priority = spec.get("priorityClassName")
    if priority and priority not in {"system-node-critical", "system-cluster-critical"}:
        found = api.tables["priorityclasses.scheduling.k8s.io"].get(("", priority))
        if found is None:
            raise forbidden(PODS, name, f"no PriorityClass with name {priority} was found")
        spec["priority"] = found.thing.get("value", 0)
    _tolerate_silence(spec)
    causes = [*_gates(spec), *_affinity(spec), *_claims(spec), *_environment(spec)]
    if causes:
        raise invalid("Pod", name, *causes)
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", "BestEffort")
    if spec.get("schedulingGates"):
        status.setdefault("conditions", []).append(
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        )


def _tolerate_silence(spec: Object) -> None:
    """Let a pod tolerate a machine that does not answer for 300 s (DefaultTolerationSeconds)."""
    mine = spec.get("tolerations") or []
    for word in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{word}"
        if not any(
            one.get("key") in {None, "", key} and one.get("effect") in {None, "", "NoExecute"}
            for one in mine
        ):
            more = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            mine = [*mine, {**more, "tolerationSeconds": 300}]
    spec["tolerations"] = mine


def _gates(spec: Object) -> Iterator[str]:
    if spec.get("schedulingGates") and spec.get("nodeName"):
        yield "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"


def _terms(spec: Object) -> list[Object]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return list(required.get("nodeSelectorTerms") or ())


_REQUIRED = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


def _affinity(spec: Object) -> Iterator[str]:
    for index, term in enumerate(_terms(spec)):
        for number, one in enumerate(term.get("matchFields") or ()):
            where = f"{_REQUIRED}.nodeSelectorTerms[{index}].matchFields[{number}]"
            values = one.get("values") or []
            if one.get("key") != "metadata.name":
                yield (
                    f'{where}.key: Unsupported value: "{one.get("key")}": supported values:'
                    ' "metadata.name"'
                )
            elif len(values) != 1:
                yield (
                    f"{where}.values: Required value: must be only one value when `operator` is"
                    " 'In' or 'NotIn' for node field selector"
                )
            elif not NAME.fullmatch(values[0]):
                yield (
                    f'{where}.values[0]: Invalid value: "{values[0]}": a lowercase RFC 1123'
                    " subdomain must consist of lower case alphanumeric characters, '-' or '.', and"
                    " must start and end with an alphanumeric character (e.g. 'example.com', regex"
                    r" used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?"
                    r"(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                )


def _claims(spec: Object) -> Iterator[str]:
    known = [one.get("name") for one in spec.get("resourceClaims") or ()]
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            for number, claim in enumerate((container.get("resources") or {}).get("claims") or ()):
                if claim.get("name") not in known:
                    said = "which is empty" if not known else f"{json.dumps(known)}"
                    yield (
                        f"spec.{group}[{index}].resources.claims[{number}]: Not found:"
                        f' "{claim.get("name")}": must be one of the names in'
                        f" pod.spec.resourceClaims {said}"
                    )


def _environment(spec: Object) -> Iterator[str]:
    for index, container in enumerate(spec.get("containers") or ()):
        for number, one in enumerate(container.get("env") or ()):
            path = ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
            where = f"spec.containers[{index}].env[{number}].valueFrom.fieldRef.fieldPath"
            if path.startswith("metadata.annotations[") and "['" not in path:
                yield (
                    f'{where}: Invalid value: "{path}": error converting fieldPath: field label not'
                    f" supported: {path}"
                )
            elif path == "metadata.annotations":
                yield f'{where}: Unsupported value: "metadata.annotations"'


def check_update(old: Object, new: Object) -> None:
    """Refuse what may not be changed of a pod, gated or not."""
    name = old["metadata"]["name"]
    before, after = old.get("spec") or {}, new.get("spec") or {}
    gates = [one["name"] for one in before.get("schedulingGates") or ()]
    wanted = [one["name"] for one in after.get("schedulingGates") or ()]
    causes = [
        f"spec.schedulingGates[{index}].name: Forbidden: only deletion is allowed, but found new"
        f" scheduling gate '{one}'"
        for index, one in enumerate(wanted)
        if one not in gates
    ]
    same = copied(after)
    _put(same, "schedulingGates", before.get("schedulingGates"))
    if _more(before.get("tolerations"), after.get("tolerations")):
        _put(same, "tolerations", before.get("tolerations"))
    for group in ("initContainers", "containers"):
        for one, other in zip(same.get(group) or (), before.get(group) or (), strict=False):
            if "image" in other:
                one["image"] = other["image"]
    for key in ("activeDeadlineSeconds", "terminationGracePeriodSeconds"):
        _put(same, key, before.get(key))
    if gates:
        causes += _narrowed(before, after, same)
    if same != before:
        causes.append(MAY_CHANGE)
    if causes:
        raise invalid("Pod", name, *causes)


def _put(spec: Object, key: str, value: Any) -> None:
    if value is None:
        spec.pop(key, None)
    else:
        spec[key] = value


def _more(old: Any, new: Any) -> bool:
    return all(one in (new or ()) for one in old or ())


def _narrowed(before: Object, after: Object, same: Object) -> Iterator[str]:
    """What a gated pod may change besides: its selector and its node affinity, narrower only."""
    chosen, wanted = before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    if any(wanted.get(key) != value for key, value in chosen.items()):
        shown = json.dumps(wanted, separators=(",", ":"))
        yield (
            f"spec.nodeSelector: Invalid value: {shown}: only additions to spec.nodeSelector are"
            " allowed (no mutations or deletions)"
        )
    _put(same, "nodeSelector", before.get("nodeSelector"))
    old, new = _terms(before), _terms(after)
    yield from _narrower(old, new)
    _put(same, "affinity", before.get("affinity"))
    ours = copied(after.get("affinity") or {})
    theirs = copied(before.get("affinity") or {})
    for one in (ours, theirs):
        node = one.get("nodeAffinity") or {}
        node.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
        if not node:
            one.pop("nodeAffinity", None)
    if ours != theirs:
        same["affinity"] = after.get("affinity")


def _narrower(old: list[Object], new: list[Object]) -> Iterator[str]:
    if not old:
        return
    where = f"{_REQUIRED}.nodeSelectorTerms"
    if len(old) != len(new):
        yield (
            f"{where}: Invalid value: {json.dumps(new, separators=(',', ':'))}: no"
            " additions/deletions to non-empty NodeSelectorTerms list are allowed"
        )
        return
    for index, (one, other) in enumerate(zip(old, new, strict=True)):
        if not all(
            _more(one.get(key), other.get(key)) for key in ("matchExpressions", "matchFields")
        ):
            yield (
                f"{where}[{index}]: Invalid value: {json.dumps(other, separators=(',', ':'))}: only"
                " additions are allowed (no mutations or deletions)"
            )


def check_binding(pod: Object) -> None:
    """Refuse to bind a pod that waits at a gate, has a node, or is going."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    binding = Resource(plural="pods/binding", kind="Binding")
    name = meta["name"]
    if "deletionTimestamp" in meta:
        raise conflict(binding, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        said = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict(binding, name, said)
    if spec.get("schedulingGates"):
        raise conflict(binding, name, f"pod {name} has non-empty .spec.schedulingGates")


def check_others(resource: Resource, thing: Object) -> None:
    """Validate a new object that is no pod."""
    if resource.name == "secrets":
        _check_secret(thing)
    else:
        _check_devices(resource, thing)


def _check_secret(thing: Object) -> None:
    if thing.get("type") == "kubernetes.io/ssh-auth":
        held = {**(thing.get("data") or {}), **(thing.get("stringData") or {})}
        if "ssh-privatekey" not in held:
            raise invalid(
                "Secret", thing["metadata"]["name"], "data[ssh-privatekey]: Required value"
            )


def _check_devices(resource: Resource, thing: Object) -> None:
    """Validate the device requests of claims and of their templates."""
    spec = thing.get("spec") or {}
    path = "spec.devices.requests"
    if resource.plural == "resourceclaimtemplates":
        spec, path = spec.get("spec") or {}, "spec.spec.devices.requests"
    elif resource.plural != "resourceclaims":
        return
    causes: list[str] = []
    for index, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        where = f"{path}[{index}]"
        several = request.get("firstAvailable") or ()
        if len(several) > ALTERNATIVES:
            causes.append(
                f"{where}.firstAvailable: Too many: {len(several)}: must have at most"
                f" {ALTERNATIVES} items"
            )
        named = [(f"{where}.firstAvailable[{i}]", one) for i, one in enumerate(several)]
        if "exactly" in request:
            named.append((f"{where}.exactly", request["exactly"]))
        for at, one in named:
            if not one.get("deviceClassName"):
                causes.append(f"{at}.deviceClassName: Required value")
            for number, chosen in enumerate(one.get("selectors") or ()):
                if len(chosen["cel"]["expression"].encode()) > CEL_BYTES:
                    causes.append(
                        f"{at}.selectors[{number}].cel.expression: Too long: may not be more than"
                        f" {CEL_BYTES} bytes"
                    )
    if causes:
        raise invalid(resource.kind, thing["metadata"]["name"], *causes)
