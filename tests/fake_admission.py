"""Admission policies that are stored, evaluated as the API server does: their CEL is run.

Mutating (JSONPatch and ApplyConfiguration) and validating; params are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fake_cel import CelError, Lazy, evaluate
from fake_patch import json_patch, strategic
from fake_rbac import groups
from fake_resources import Object, Refused, Resource, copied
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
        (
            ".spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution,"
            " .spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
            ".nodeSelectorTerms"
        ),
    ),
)
"""What ApplyConfiguration may not touch, and how the server names it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write that policies look at: of what, which, by whom, and of which object."""

    resource: Resource
    operation: str
    user: str
    old: Object | None = None


def _bound(
    api: FakeApi, kind: str, attempt: Attempt, thing: Object
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
        if _matched(api, where, attempt, thing) and (
            not more or _matched(api, {"resourceRules": [{}], **more}, attempt, thing)
        ):
            yield found.thing, binding


def _matched(api: FakeApi, where: Object, attempt: Attempt, thing: Object) -> bool:
    rules = where.get("resourceRules") or ()
    if not any(_ruled(rule, attempt, thing) for rule in rules):
        return False
    if any(_ruled(rule, attempt, thing) for rule in where.get("excludeResourceRules") or ()):
        return False
    if not label_selects(where.get("objectSelector"), thing["metadata"].get("labels") or {}):
        return False
    space = thing["metadata"].get("namespace")
    namespace = api.tables["namespaces"].get(("", space)) if space else None
    labels = dict((namespace.thing["metadata"].get("labels") or {}) if namespace else {})
    labels["kubernetes.io/metadata.name"] = space or ""
    return label_selects(where.get("namespaceSelector"), labels)


def _ruled(rule: Object, attempt: Attempt, thing: Object) -> bool:
    def listed(key: str, value: str) -> bool:
        wanted = rule.get(key)
        return wanted is None or "*" in wanted or value in wanted

    names = rule.get("resourceNames")
    return (
        listed("apiGroups", attempt.resource.group)
        and listed("operations", attempt.operation)
        and listed("resources", attempt.resource.plural)
        and (not names or thing["metadata"].get("name") in names)
    )


def _scope(api: FakeApi, policy: Object, attempt: Attempt, thing: Object | None) -> dict[str, Any]:
    """What the expressions of a policy see."""
    either = thing if thing is not None else attempt.old
    assert either is not None
    meta, user = either["metadata"], attempt.user
    request = {
        "operation": attempt.operation,
        "name": meta.get("name", ""),
        "namespace": meta.get("namespace", ""),
        "resource": {"group": attempt.resource.group, "resource": attempt.resource.plural},
        "userInfo": {
            "username": str(user),
            "groups": groups(api, user),
            "extra": getattr(user, "extra", None) or api.extra.get(user, {}),
        },
    }
    scope: dict[str, Any] = {"object": thing, "oldObject": attempt.old, "request": request}
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


def mutated(api: FakeApi, attempt: Attempt, thing: Object) -> Object:
    """An object as the mutating policies leave it; 403 where one of them fails."""
    if attempt.resource.group == GROUP:
        return thing
    for policy, binding in list(_bound(api, "mutatingadmission", attempt, thing)):
        try:
            thing = _one(api, policy, attempt, thing)
        except CelError as error:
            if policy["spec"].get("failurePolicy", "Fail") == "Fail":
                raise _denial(policy, binding, str(error)) from error
    return thing


def _one(api: FakeApi, policy: Object, attempt: Attempt, thing: Object) -> Object:
    if not _applies(policy, _scope(api, policy, attempt, thing)):
        return thing
    for mutation in policy["spec"].get("mutations") or ():
        # Each mutation sees the object that the one before it made, and so do its variables.
        now = _scope(api, policy, attempt, thing)
        if mutation["patchType"] == "JSONPatch":
            steps = _run(mutation["jsonPatch"]["expression"], now)
            try:
                thing = json_patch(thing, steps)
            except Refused as error:
                raise CelError(f"error applying patch: {error.message}") from error
        else:
            change = _run(mutation["applyConfiguration"]["expression"], now)
            thing = strategic(copied(thing), _checked(change))
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


def validated(api: FakeApi, attempt: Attempt, thing: Object | None) -> None:
    """Refuse what a validating policy denies; `thing` is None for a deletion."""
    either = thing if thing is not None else attempt.old
    if attempt.resource.group == GROUP or either is None:
        return
    for policy, binding in _bound(api, "validatingadmission", attempt, either):
        why = _objection(policy, _scope(api, policy, attempt, thing))
        if why and "Deny" in (binding["spec"].get("validationActions") or ["Deny"]):
            said, reason = why
            raise Refused(
                {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}.get(
                    reason, 422
                ),
                reason,
                f'{attempt.resource.name} "{either["metadata"]["name"]}" is forbidden:'
                f" ValidatingAdmissionPolicy '{policy['metadata']['name']}' with binding"
                f" '{binding['metadata']['name']}' denied request: {said}",
            )


def _objection(policy: Object, scope: dict[str, Any]) -> tuple[str, str] | None:
    """What a validating policy has against a request: (text, reason)."""
    try:
        if not _applies(policy, scope):
            return None
        for one in policy["spec"].get("validations") or ():
            if not _run(one["expression"], scope):
                said = one.get("message") or f"failed expression: {one['expression'].strip()}"
                if "messageExpression" in one:
                    said = _run(one["messageExpression"], scope)
                return said, one.get("reason", "Invalid")
    except CelError as error:
        if policy["spec"].get("failurePolicy", "Fail") == "Fail":
            return str(error), "Invalid"
    return None
