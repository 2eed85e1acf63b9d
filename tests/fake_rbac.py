"""Who may do what, by the roles and bindings that a fake API server stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fake_resources import Object

if TYPE_CHECKING:
    from fake_api import FakeApi

RBAC = "rbac.authorization.k8s.io"
MASTERS = "system:masters"


class User(str):
    """A name with what the server knows of its token besides, such as the node it is bound to."""

    __slots__ = ("extra",)

    def __new__(cls, name: str, **extra: list[str]) -> Self:
        user = super().__new__(cls, name)
        user.extra = extra
        return user


def groups(api: FakeApi, user: str) -> list[str]:
    """The groups of a user, service accounts included."""
    found = list(api.groups.get(user, ()))
    if user == "system:anonymous":
        return [*found, "system:unauthenticated"]
    if user.startswith("system:serviceaccount:"):
        space = user.split(":")[2]
        found += ["system:serviceaccounts", f"system:serviceaccounts:{space}"]
    return [*found, "system:authenticated"]


def _subject(api: FakeApi, user: str, binding: Object, space: str) -> bool:
    for one in binding.get("subjects") or ():
        kind, name = one.get("kind"), one.get("name")
        if kind == "User" and name == user:
            return True
        if kind == "Group" and name in groups(api, user):
            return True
        if kind == "ServiceAccount":
            where = one.get("namespace") or space
            if user == f"system:serviceaccount:{where}:{name}":
                return True
    return False


def _rules(api: FakeApi, user: str, space: str) -> Iterator[tuple[Object, str]]:
    """The rules that hold for a user in a namespace (or cluster-wide), and who grants them."""
    for (_, name), entry in api.tables[f"clusterrolebindings.{RBAC}"].items():
        if _subject(api, user, entry.thing, ""):
            role = entry.thing["roleRef"]["name"]
            said = f'ClusterRoleBinding "{name}" of ClusterRole "{role}"'
            for rule in _role(api, "ClusterRole", "", role):
                yield rule, said
    for (inside, name), entry in api.tables[f"rolebindings.{RBAC}"].items():
        if inside == space and space and _subject(api, user, entry.thing, inside):
            ref = entry.thing["roleRef"]
            said = f'RoleBinding "{name}/{inside}" of {ref["kind"]} "{ref["name"]}"'
            for rule in _role(api, ref["kind"], inside, ref["name"]):
                yield rule, said


def _role(api: FakeApi, kind: str, space: str, name: str) -> list[Object]:
    wide = kind == "ClusterRole"
    table = api.tables[f"{'clusterroles' if wide else 'roles'}.{RBAC}"]
    found = table.get(("" if wide else space, name))
    return [] if found is None else list(found.thing.get("rules") or ())


class Asked(NamedTuple):
    """What somebody wants to do; `resource` may be `pods/log`."""

    verb: str
    resource: str
    group: str = ""
    space: str = ""
    name: str = ""


def _covers(rule: Object, asked: Asked) -> bool:
    def any_of(key: str, *wanted: str) -> bool:
        listed = rule.get(key) or ()
        return "*" in listed or any(one in listed for one in wanted)

    sub = asked.resource.partition("/")[2]
    kinds = (asked.resource, f"*/{sub}") if sub else (asked.resource,)
    if not any_of("verbs", asked.verb) or not any_of("apiGroups", asked.group):
        return False
    names = rule.get("resourceNames") or ()
    return any_of("resources", *kinds) and (not names or asked.name in names)


def granted(api: FakeApi, user: str, asked: Asked) -> str | None:
    """Which binding lets a user do something; None if none does."""
    if MASTERS in groups(api, user):
        return f'group "{MASTERS}"'
    for rule, said in _rules(api, user, asked.space):
        if _covers(rule, asked):
            return said
    return None


def review(api: FakeApi, user: str, spec: Object) -> Object:
    """The status of a SelfSubjectAccessReview."""
    asked: dict[str, Any] = spec.get("resourceAttributes") or {}
    if not asked:
        return {"allowed": True}
    resource = asked.get("resource", "")
    if asked.get("subresource"):
        resource += f"/{asked['subresource']}"
    what = Asked(
        asked.get("verb", ""),
        resource,
        asked.get("group", ""),
        asked.get("namespace", ""),
        asked.get("name", ""),
    )
    if not api.allowed(user, *what):
        return {"allowed": False}
    said = granted(api, user, what) if api.rbac else None
    subject = f'RBAC: allowed by {said} to User "{user}"' if said else ""
    return {"allowed": True, "reason": subject}


def rules_review(api: FakeApi, user: str, space: str) -> Object:
    """The status of a SelfSubjectRulesReview."""
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    if not api.rbac or MASTERS in groups(api, user):
        rules = [everything]
    else:
        rules = [rule for rule, _ in _rules(api, user, space) if rule.get("resources")]
    return {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
