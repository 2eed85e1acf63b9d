"""Objects -> YAML and JSON that kubectl takes for the same objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from arena_topo.escaping import escaped_in_quotes
from arena_topo.manifests import Manifest


def to_json(objects: Iterable[Manifest]) -> str:
    """The objects as JSON that `kubectl apply -f -` takes: one alone, several as a v1 List."""
    listed = list(objects)
    document = (
        listed[0] if len(listed) == 1 else {"apiVersion": "v1", "kind": "List", "items": listed}
    )
    text = json.dumps(document, indent=4, ensure_ascii=False, allow_nan=False)
    return escaped_in_quotes(text) + "\n"


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """The objects as YAML documents that YAML 1.1 and 1.2 readers take for the same values."""
    import yaml

    text: str = yaml.dump_all(
        list(objects),
        Dumper=_dumper(),
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1 << 30,
    )
    return escaped_in_quotes(text)


_BARE = re.compile(r"-{0,2}[A-Za-z/][\w./:@=,+%^()$~-]*( [\w./:@=,+%^()$~-]+)*", re.ASCII)
"""Text that no reader of YAML takes for anything but text, unless it is one of these words: kubectl
reads `1e3` as a number and `y` as a boolean, where PyYAML would leave both bare."""

_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


@cache
def _dumper() -> Any:
    import yaml

    def text(dumper: Any, value: str) -> Any:
        lines = value.removesuffix("\n").split("\n")
        style = '"'
        if "\n" in value and lines[0][:1].strip() and lines[-1] and all(map(_is_plain, lines)):
            style = "|"
        elif '"' in value and re.fullmatch(r"[!-~]([ -~]*[!-~])?", value):
            style = "'"
        elif _BARE.fullmatch(value) and ": " not in value and not value.endswith(":"):
            style = '"' if value.lower() in _WORDS else ""
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    # Aliases are legal YAML, but nobody wants to read one in a manifest.
    base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper: Any = type("Dumper", (base,), {"ignore_aliases": lambda _self, _data: True})
    dumper.add_representer(str, text)
    return dumper


def _is_plain(line: str) -> bool:
    """Whether a line can stand as it is, below a `|`."""
    return re.fullmatch(r"[ -~]*[!-~]|", line) is not None


def as_json(value: object) -> str:
    """JSON that YAML 1.1 reads as the same value, whatever the characters.

    JSON escapes characters beyond U+FFFF as two surrogates, which YAML does not join, and leaves
    others bare that YAML takes for line ends or refuses (DEL, U+0085, U+2028).
    """

    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"  # noqa: PLR2004

    return re.sub(r"[^ -~]", escape, json.dumps(value, ensure_ascii=False, allow_nan=False))


def object_name(manifest: Manifest) -> str:
    """An object as kubectl names it: `mpijob.kubeflow.org/demo`, `configmap/demo-mpijob`."""
    group, slash, _ = manifest["apiVersion"].partition("/")
    suffix = f".{group}" if slash else ""
    return f"{manifest['kind'].lower()}{suffix}/{manifest['metadata']['name']}"
