"""What `config view` shows: files, settings with their origins, and the cluster they lead to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arena_topo.layout import align, table

_SECRET = re.compile(
    r"token|secret|passw|pass(?:_|$)|credential|api_?key|access_?key|private_?key"
    r"|(?:^|_)(?:pat|pwd|auth|creds?|key)(?:_|$)",
    re.IGNORECASE,
)
"""Names of variables whose values are nobody's business."""

_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
"""Who logs in, and how, in a URL."""

HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: `values` as typed, one unless it may be repeated, and where they come from."""

    name: str
    values: tuple[str, ...]
    origins: tuple[str, ...]
    several: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the settings lead to: an engine, and a cluster of the kubeconfig.

    `trouble` says why none is reached.
    """

    backend: str
    kubeconfig: tuple[str, ...] = ()
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    acting: str | None = None
    groups: tuple[str, ...] = ()
    namespace: str | None = None
    server: str | None = None
    proxy: str | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All that is set: `profile` is (name, who chose).

    `files` are (path, whether it is there); None is for one that is there and cannot be read.
    """

    files: tuple[tuple[str, bool | None], ...]
    profile: tuple[str, str]
    settings: tuple[Setting, ...]
    reached: Reached


def safe(text: str) -> str:
    """A value without what proves who somebody is: logins in URLs, values of secret variables."""
    name, equals, _ = text.partition("=")
    if equals and _SECRET.search(name):
        return f"{name}={HIDDEN}"
    return _LOGIN.sub(f"{HIDDEN}@", text)


def configuration(found: Configuration, *, home: str = "") -> str:
    """Files, settings and the cluster, each part with a head of its own; `home` is written ~."""

    def short(path: str) -> str:
        return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path

    blocks = [
        align(
            table(("FILE", "STATE"), ((short(path), _state(there)) for path, there in found.files))
        )
    ]
    name, origin = found.profile
    if name:
        blocks.append(align([f"Profile:\t{name} (chosen by {short(origin)})"]))
    if found.settings:
        rows = (
            (
                one.name,
                ", ".join(map(safe, one.values)) or "-",
                ", ".join(short(origin) for origin in one.origins),
            )
            for one in found.settings
        )
        blocks.append(align(table(("SETTING", "VALUE", "FROM"), rows)))
    else:
        blocks.append("No file sets anything.\n")
    blocks.append(align([f"{key}:\t{value}" for key, value in _lines(found.reached, short)]))
    return "\n".join(blocks)


def _state(there: bool | None) -> str:  # noqa: FBT001 - the value is what is printed
    return "broken" if there is None else "read" if there else "not there"


def _lines(found: Reached, short: Callable[[str], str]) -> list[tuple[str, str]]:
    groups = f" in {', '.join(found.groups)}" if found.groups else ""
    lines = [
        ("Backend", found.backend),
        ("Kubeconfig", ", ".join(map(short, found.kubeconfig))),
        ("Context", found.context),
        ("Cluster", found.cluster),
        ("User", found.user),
        ("Acting as", found.acting and f"{found.acting}{groups}"),
        ("Server", found.server and safe(found.server)),
        ("Proxy", found.proxy and safe(found.proxy)),
        ("Namespace", found.namespace),
        ("Trouble", found.trouble),
    ]
    return [(key, value) for key, value in lines if value]


def configuration_value(found: Configuration) -> dict[str, Any]:
    """The same for programs."""
    name, origin = found.profile
    reached = found.reached
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Configuration",
        "files": [{"path": path, "read": bool(there)} for path, there in found.files],
        "profile": {"name": name, "origin": origin} if name else None,
        "settings": [_value(one) for one in found.settings],
        "cluster": {
            "backend": reached.backend,
            "kubeconfig": list(reached.kubeconfig),
            "context": reached.context,
            "cluster": reached.cluster,
            "user": reached.user,
            "as": reached.acting,
            "asGroups": list(reached.groups),
            "server": safe(reached.server) if reached.server else None,
            "proxy": safe(reached.proxy) if reached.proxy else None,
            "namespace": reached.namespace,
            "trouble": reached.trouble,
        },
    }


def _value(one: Setting) -> dict[str, Any]:
    shown: Sequence[str] = [safe(text) for text in one.values]
    value = list(shown) if one.several else (shown[0] if shown else None)
    return {"name": one.name, "value": value, "origins": list(one.origins)}
