"""Admission policies that are stored, evaluated as the API server does: their CEL is run.

Mutating (JSONPatch and ApplyConfiguration) and validating; params are not supported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fake_cel import CelError, Lazy, evaluate
from fake_patch import json_patch, strategic
from fake_rbac import groups
from fake_resources import Object, Refused, Resource
from fake_store import label_selects

if TYPE_CHECKING:
    from fake_api import FakeApi

GROUP = "admissionregistration.k8s.io"
ATOMIC = (
    (("spec", "nodeSelector"), ".spec.nodeSelector"),
    (
        (
            "spec",
            "affinity",
            "nodeAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ),
        ".spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution,"
        " .spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms",
    ),
)
"""What ApplyConfiguration may not touch, and how the server names it."""


def _bound(
    api: FakeApi, kind: str, resource: Resource, thing: Object, operation: str
) -> Iterator[tuple[Object, Object]]:
    """The (policy, binding) pairs that apply to a request, by name."""
    policies = api.tables[f"{kind}policies.{GROUP}"]
    for _, entry in sorted(api.tables[f"{kind}policybindings.{GROUP}"].items()):
        binding = entry.thing
        found = policies.get(("", binding["spec"]["policyName"]))
        if found is None:
            continue
        where = found.thing["spec"].get("matchConstraints") or {}
        more = binding["spec"].get("matchResources") or {}
        if _matched(api, where, resource, thing, operation) and (
            not more or _matched(api, {"resourceRules": [{}], **more}, resource, thing, operation)
        ):
            yield found.thing, binding


def _matched(
    api: FakeApi, where: Object, resource: Resource, thing: Object, operation: str
) -> bool:
    rules = where.get("resourceRules") or ()
    if not any(_ruled(rule, resource, operation, thing) for rule in rules):
        return False
    if any(
        _ruled(rule, resource, operation, thing) for rule in where.get("excludeResourceRules") or ()
    ):
        return False
    if not label_selects(where.get("objectSelector"), thing["metadata"].get("labels") or {}):
        return False
    space = thing["metadata"].get("namespace")
    namespace = api.tables["namespaces"].get(("", space)) if space else None
    labels = dict((namespace.thing["metadata"].get("labels") or {}) if namespace else {})
    labels["kubernetes.io/metadata.name"] = space or ""
    return label_selects(where.get("namespaceSelector"), labels)


def _ruled(rule: Object, resource: Resource, operation: str, thing: Object) -> bool:
    def listed(key: str, value: str) -> bool:
        wanted = rule.get(key)
        return wanted is None or "*" in wanted or value in wanted

    names = rule.get("resourceNames")
    return (
        listed("apiGroups", resource.group)
        and listed("operations", operation)
        and listed("resources", resource.plural)
        and (not names or thing["metadata"].get("name") in names)
    )


def _scope(
    api: FakeApi, policy: Object, resource: Resource, thing: Object | None, old: Any, what: Any
) -> dict[str, Any]:
    operation, user = what
    either = thing if thing is not None else old
    meta = either["metadata"]
    request = {
        "operation": operation,
        "name": meta.get("name", ""),
        "namespace": meta.get("namespace", ""),
        "resource": {"group": resource.group, "resource": resource.plural},
        "userInfo": {
            "username": str(user),
            "groups": groups(api, user),
            "extra": getattr(user, "extra", None) or api.extra.get(user, {}),
        },
    }
    scope: dict[str, Any] = {"object": thing, "oldObject": old, "request": request}
    space = meta.get("namespace")
    if space and ("", space) in api.tables["namespaces"]:
        scope["namespaceObject"] = api.tables["namespaces"]["", space].thing
    sources = {one["name"]: one["expression"] for one in policy["spec"].get("variables") or ()}
    scope["variables"] = Lazy(sources, scope)
    return scope


def _run(text: str, scope: dict[str, Any]) -> Any:
    try:
        return evaluate(text, scope)
    except CelError as error:
        raise CelError(f"expression '{text.strip()}' resulted in error: {error}") from error


def _applies(policy: Object, scope: dict[str, Any]) -> bool:
    return all(
        _run(one["expression"], scope) for one in policy["spec"].get("matchConditions") or ()
    )


def _denial(policy: Object, binding: Object, why: str) -> Refused:
    names = f"policy '{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
    return Refused(403, "Forbidden", f"{names} denied request: {why}")


def mutated(
    api: FakeApi,
    resource: Resource,
    thing: Object,
    operation: str,
    user: str,
    old: Object | None = None,
) -> Object:
    """An object as the mutating policies leave it; 403 where one of them fails."""
    if resource.group == GROUP:
        return thing
    for policy, binding in list(_bound(api, "mutatingadmission", resource, thing, operation)):
        try:
            thing = _one(api, policy, resource, thing, old, (operation, user))
        except CelError as error:
            if policy["spec"].get("failurePolicy", "Fail") == "Fail":
                raise _denial(policy, binding, str(error)) from error
    return thing


def _one(
    api: FakeApi, policy: Object, resource: Resource, thing: Object, old: Any, what: Any
) -> Object:
    if not _applies(policy, _scope(api, policy, resource, thing, old, what)):
        return thing
    for mutation in policy["spec"].get("mutations") or ():
        # Each mutation sees the object that the one before it made, and so do its variables.
        now = _scope(api, policy, resource, thing, old, what)
        if mutation["patchType"] == "JSONPatch":
            steps = _run(mutation["jsonPatch"]["expression"], now)
            try:
                thing = json_patch(thing, steps)
            except Refused as error:
                raise CelError(f"error applying patch: {error.message}") from error
        else:
            change = _run(mutation["applyConfiguration"]["expression"], now)
            thing = strategic(copy.deepcopy(thing), _checked(change))
    return thing


def _checked(change: Object) -> Object:
    for path, said in ATOMIC:
        at: Any = change
        for part in path:
            at = (at or {}).get(part)
        if at is not None:
            raise CelError(
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays,"
                f" maps or structs: {said}"
            )
    return change


def validated(
    api: FakeApi,
    resource: Resource,
    thing: Object | None,
    old: Object | None,
    operation: str,
    user: str,
) -> None:
    """Refuse what a validating policy denies."""
    if resource.group == GROUP:
        return
    either = thing if thing is not None else old
    assert either is not None
    for policy, binding in _bound(api, "validatingadmission", resource, either, operation):
        scope = _scope(api, policy, resource, thing, old, (operation, user))
        try:
            if not _applies(policy, scope):
                continue
            for one in policy["spec"].get("validations") or ():
                if not _run(one["expression"], scope):
                    _deny(policy, binding, resource, either, one, scope)
        except CelError as error:
            if policy["spec"].get("failurePolicy", "Fail") == "Fail":
                _deny(policy, binding, resource, either, {"message": str(error)}, scope)


def _deny(
    policy: Object, binding: Object, resource: Resource, thing: Object, one: Object, scope: Any
) -> None:
    if "Deny" not in (binding["spec"].get("validationActions") or ["Deny"]):
        return
    said = one.get("message") or f"failed expression: {one.get('expression', '').strip()}"
    if "messageExpression" in one:
        said = _run(one["messageExpression"], scope)
    reason = one.get("reason", "Invalid")
    raise Refused(
        {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}.get(reason, 422),
        reason,
        f'{resource.name} "{thing["metadata"]["name"]}" is forbidden: ValidatingAdmissionPolicy'
        f" '{policy['metadata']['name']}' with binding '{binding['metadata']['name']}' denied"
        f" request: {said}",
    )
