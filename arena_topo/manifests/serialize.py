"""Objects -> YAML and JSON that kubectl reads as the same objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from arena_topo.escaping import escaped_in_quotes
from arena_topo.layout import yaml_of
from arena_topo.manifests import Manifest


def manifests_json(objects: Iterable[Manifest]) -> str:
    """The objects as JSON for `kubectl apply -f -`: one object alone, several as a v1 List."""
    listed = list(objects)
    document = (
        listed[0] if len(listed) == 1 else {"apiVersion": "v1", "kind": "List", "items": listed}
    )
    text = json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False)
    return escaped_in_quotes(text) + "\n"


def manifests_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """The objects as YAML documents that YAML 1.1 and 1.2 readers read as the same values."""
    import yaml

    return yaml_of(objects, getattr(yaml, "CSafeDumper", yaml.SafeDumper), _style)


_BARE = re.compile(r"-{0,2}[A-Za-z/][\w./:@=,+%^()$~-]*( [\w./:@=,+%^()$~-]+)*", re.ASCII)
"""Text that every YAML reader reads as text, except these words: kubectl reads `1e3` as a number
and `y` as a boolean, while PyYAML would leave both without quotes."""

_LITERAL = re.compile(r"[ -~]*[!-~]|")
"""A line that can be written unchanged below a `|`."""

_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


def _style(text: str) -> str:
    """The style of a string, by PyYAML's names."""
    lines = text.removesuffix("\n").split("\n")
    if "\n" in text and lines[0][:1].strip() and lines[-1] and all(map(_LITERAL.fullmatch, lines)):
        return "|"
    if '"' in text and re.fullmatch(r"[!-~]([ -~]*[!-~])?", text):
        return "'"
    if _BARE.fullmatch(text) and ": " not in text and not text.endswith(":"):
        return '"' if text.lower() in _WORDS else ""
    return '"'


def as_json(value: object) -> str:
    """JSON that YAML 1.1 reads as the same value, for any characters.

    JSON escapes characters beyond U+FFFF as two surrogates, which YAML does not join, and leaves
    some characters unescaped that YAML reads as line ends or refuses (DEL, U+0085, U+2028).
    """

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"  # noqa: PLR2004

    return re.sub(r"[^ -~]", escape, json.dumps(value, ensure_ascii=False, allow_nan=False))


def kubectl_name(manifest: Manifest) -> str:
    """The name of an object for kubectl: `mpijob.kubeflow.org/demo`, `configmap/demo-mpijob`."""
    group, slash, _ = manifest["apiVersion"].partition("/")
    suffix = f".{group}" if slash else ""
    return f"{manifest['kind'].lower()}{suffix}/{manifest['metadata']['name']}"
