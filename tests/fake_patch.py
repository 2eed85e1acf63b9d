"""The three kinds of patches that a Kubernetes API server takes."""

from __future__ import annotations

from typing import Any

from fake_resources import Refused, copied

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
    "conditions": "type",
    "addresses": "type",
}
"""patchMergeKey of the lists that a strategic merge joins (k8s.io/api v0.36, `types.go`)."""

PRIMITIVES = {"finalizers", "podCIDRs"}


def merged(old: Any, new: Any) -> Any:
    """RFC 7386: null removes, lists are replaced whole."""
    if not isinstance(new, dict):
        return new
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategic(old: Any, new: Any, field: str = "") -> Any:
    """A strategic merge patch: known lists are joined by key, `$patch` deletes or replaces."""
    if isinstance(new, list):
        return _strategic_list(old if isinstance(old, list) else [], new, field)
    if not isinstance(new, dict):
        return new
    directive = new.get("$patch")
    if directive == "delete":
        return None
    if directive == "replace":
        return {key: value for key, value in new.items() if key != "$patch"}
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [one for one in result.get(name, ()) if one not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            changed = strategic(result.get(key), value, key)
            if changed is None:
                result.pop(key, None)
            else:
                result[key] = changed
    return result


def _strategic_list(old: list[Any], new: list[Any], field: str) -> list[Any]:
    if field in PRIMITIVES:
        return [*old, *(one for one in new if one not in old)]
    key = MERGE_KEYS.get(field)
    if any(isinstance(one, dict) and one.get("$patch") == "replace" for one in new):
        return [one for one in new if "$patch" not in one]
    if key is None:
        return new
    result = list(old)
    for one in new:
        at = next((i for i, other in enumerate(result) if other.get(key) == one.get(key)), None)
        if one.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(one)
        else:
            result[at] = strategic(result[at], one)
    return result


def _rejected() -> Refused:
    return Refused(422, "Invalid", "the server rejected our request due to an error in our request")


def json_patch(old: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """RFC 6902; whatever cannot be applied is 422, and nothing of the patch is."""
    if not isinstance(steps, list):
        raise Refused(400, "BadRequest", "error decoding patch: json: cannot unmarshal object")
    result = copied(old)
    for step in steps:
        try:
            result = _step(result, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise _rejected() from error
    return result


def _parts(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError(path)
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _look(at: Any, parts: list[str]) -> Any:
    for part in parts:
        at = at[_index(at, part)] if isinstance(at, list) else at[part]
    return at


def _index(at: list[Any], part: str) -> int:
    index = int(part)
    if not 0 <= index < len(at):
        raise IndexError(part)
    return index


def _step(document: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    *parents, last = _parts(step["path"])
    at = _look(document, parents)
    match step["op"]:
        case "test":
            if _look(at, [last]) != step["value"]:
                raise ValueError(step["path"])
        case "remove":
            del at[_index(at, last) if isinstance(at, list) else last]
        case "add":
            _put(at, last, copied(step["value"]))
        case "replace":
            # Of a member that an object does not have, the server takes it for `add`.
            if not isinstance(at, (dict, list)):
                raise TypeError(step["path"])
            at[_index(at, last) if isinstance(at, list) else last] = copied(step["value"])
        case "copy" | "move":
            value = copied(_look(document, _parts(step["from"])))
            if step["op"] == "move":
                document = _step(document, {"op": "remove", "path": step["from"]})
                at = _look(document, parents)
            _put(at, last, value)
        case other:
            raise ValueError(other)
    return document


def _put(at: Any, last: str, value: Any) -> None:
    if isinstance(at, list):
        index = len(at) if last == "-" else int(last)
        if not 0 <= index <= len(at):
            raise IndexError(last)
        at.insert(index, value)
    else:
        at[last] = value
