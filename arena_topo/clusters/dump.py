"""Reader of files: dumps of `kubectl get ... -o json` or `-o yaml`, and fabric files.

A dump of a large cluster has hundreds of megabytes. It is decoded one object at a time, and of each
object only the fields that are read become values.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from arena_topo.clusters import safe_yaml
from arena_topo.clusters.objects import invalid_object_text
from arena_topo.clusters.records import Record, StatusOf, Unread, known_kind, read_record
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, UTF_16, opened
from arena_topo.manifests import FORMAT_ANNOTATION

_MOST_BYTES, _MOST_VALUES = 256 << 10, 2000
"""Limits of a small file, in bytes and values: the levels of a network are few."""
_MOST_YAML = 64 << 20
"""The limit of YAML in bytes: it takes far more memory than JSON, and this much takes a minute."""

_SMALL = (
    "give a small text file in YAML or JSON;"
    ' "The network and the fabric file" in the documentation shows one'
)
_HINT = (
    "make one with: kubectl get nodes,pods,mpijobs -A -o json > state.json"
    " && kubectl get configmaps -A -l ack.node.gpu.schedule=topology -o json"
    " > topology.json"
)
_NO_OBJECT = "this is no Kubernetes object: it has neither kind nor items"


Whole = Callable[[str, dict[str, Any]], None]
"""A function that gets the kind of an object, and the object with all of its fields."""

_QUEUE_KINDS = {"PriorityClass": "scheduling.k8s.io", "ResourceQuota": ""}
"""The API groups of kinds that have no record, and that decide the order of the queue."""


def read_dumps(
    paths: Sequence[str], *, status_of: StatusOf | None = None, whole: Whole | None = None
) -> Iterator[Record | Unread]:
    """The records of all objects of some dumps, one after another; `-` is standard input.

    JSON or YAML, in UTF-8; several documents in one file; lists of one kind or mixed; single
    objects. An object of a typed list (NodeList) gets the kind that the list implies. `status_of`
    is as of `read_record`. `whole` gets what the queue follows from: the jobs of arena-topo,
    priority classes and quotas. UsageError, with the position, for a file that cannot be opened, is
    truncated or is invalid: the rest of its content is unknown, so GPUs that look free might be in
    use.
    """
    for path in paths:
        name, data = _content(path, _HINT)
        if _START.search(data) is None:
            raise UsageError(f"{name}: the dump is empty", hint=_HINT)
        objects = _of_json(name, data) if _is_json(data) else _of_yaml(name, data)
        for kind, item in objects:
            if whole is not None and _in_queue(kind, item):
                with suppress(ValueError, RecursionError):
                    whole(str(kind), msgspec.json.decode(item, type=dict))
            if kind is not None and kind not in _QUEUE_KINDS:
                yield read_record(kind, item, status_of=status_of)


def _in_queue(kind: str | None, item: msgspec.Raw) -> bool:
    """Whether an object may be needed whole; most jobs of a cluster may not be of arena-topo."""
    return kind in _QUEUE_KINDS or (kind == "MPIJob" and FORMAT_ANNOTATION.encode() in bytes(item))


def _kind(kind: object, version: object) -> str | None:
    """The kind if it is read, as `known_kind` says."""
    if not isinstance(kind, str) or kind not in _QUEUE_KINDS:
        return known_kind(kind, version)
    known = version is None or str(version).rpartition("/")[0] == _QUEUE_KINDS[kind]
    return kind if known else None


def _is_json(data: bytearray) -> bool:
    start = _START.search(data)
    return start is None or start[0] in b"{["


_PIECE = 1 << 20
_START = re.compile(rb"[^ \t\r\n]")


def read_document(path: str) -> tuple[Any, str, Mapping[str, int]]:
    """The one document of a small YAML or JSON file, the name of the file, and its lines.

    The lines are those of the values by their paths; empty for JSON that is no YAML. UsageError as
    in `read_small` and `parse_small`.
    """
    name, text = read_small(path)
    value, lines = parse_small(name, text)
    return value, name, lines


def read_small(path: str) -> tuple[str, str]:
    """The name and the text of a small file; `-` is standard input. UsageError names the file."""
    name, data = _content(path, None, _MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{name}: is larger than {_MOST_BYTES >> 10} KiB", hint=_SMALL)
    return name, _text(name, data, _SMALL)


def parse_small(name: str, text: str) -> tuple[Any, Mapping[str, int]]:
    """The one document of a small YAML or JSON file, and the lines of its values.

    UsageError names the file and the position of an invalid value.
    """
    import yaml

    # JSON is almost YAML, but YAML allows no tabs and reads 1e2 as a word.
    with suppress(ValueError, RecursionError):
        value, lines = json.loads(text), safe_yaml.YamlLines({})
        with suppress(safe_yaml.Excess, yaml.YAMLError):
            lines = safe_yaml.key_lines(text, most=_MOST_VALUES)
        return value, _once(name, lines)
    try:
        value = safe_yaml.parse_document(text, most=_MOST_VALUES)
        return value, _once(name, safe_yaml.key_lines(text, most=_MOST_VALUES))
    except safe_yaml.Excess as error:
        raise UsageError(f"{name}: {error}", hint=_SMALL) from error
    except RecursionError as error:
        raise UsageError(f"{name}: is nested too deeply", hint=_SMALL) from error
    except yaml.YAMLError as error:
        raise _not_yaml(name, error, hint=_SMALL) from error


def _once(name: str, lines: safe_yaml.YamlLines) -> Mapping[str, int]:
    """The lines of a text; UsageError if a key is given twice, of which only one would count."""
    if lines.repeated is not None:
        path, line = lines.repeated
        raise UsageError(f"{name}: line {line}: {path} is given twice", hint="keep one of the two")
    return lines.of


def _content(path: str, hint: str | None, most: int | None = None) -> tuple[str, bytearray]:
    """The name of a file for messages, and its content; UsageError if it cannot be read."""
    name, data = "standard input" if path == STDIN else path, bytearray()
    try:
        with opened(path) as file:
            while (most is None or len(data) < most) and (piece := file.read(_PIECE)):
                if piece.startswith(UTF_16) and not data:
                    hint = "in PowerShell: COMMAND | Out-File -Encoding utf8"
                    raise UsageError(f"{name}: is UTF-16, not UTF-8", hint=hint)
                # A pipe may be endless.
                if b"\0" in piece:
                    raise UsageError(f"{name}: is not text: it has NUL characters", hint=hint)
                data += piece
                if len(data) > _MOST_YAML and most is None and not _is_json(data):
                    raise UsageError(
                        f"{name}: YAML of more than {_MOST_YAML >> 20} MB is not read; write it"
                        " with -o json",
                        hint=hint,
                    )
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{name}: cannot be read: {why}", hint=hint) from error
    if data.startswith(codecs.BOM_UTF8):
        del data[: len(codecs.BOM_UTF8)]
    return name, data


def _text(name: str, data: bytearray, hint: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is not UTF-8 text", hint=hint) from error


# ---------------------------------------------------------------- JSON


_Objects = Iterator[tuple[str | None, msgspec.Raw]]
"""Objects, each with its kind, or None for a kind that is not read."""


class _Head(msgspec.Struct, rename="camel"):
    """The fields that identify an object, or a list of objects, and its kind."""

    kind: Any = None
    api_version: Any = None
    # Go writes an empty list as null.
    items: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


_HEAD = msgspec.json.Decoder(_Head)
_DOCUMENT = msgspec.json.Decoder(_Head | list[msgspec.Raw])


def _of_json(name: str, data: bytes | bytearray) -> _Objects:
    view, at = memoryview(data), 0
    while (start := _START.search(data, at)) is not None:
        at = start.start()
        text = view[at:]
        try:
            head = _DOCUMENT.decode(text)
        except ValueError as error:
            # Another document follows; this one was parsed completely.
            more = re.search(r"trailing characters \(byte (\d+)\)", str(error))
            if more is None:
                _refuse(name, data, at, error)
            text = text[: int(more[1]) - 1]  # msgspec names the byte behind it
            head = _DOCUMENT.decode(text)
        except RecursionError as error:
            raise UsageError(f"{name}: is nested too deeply", hint=_HINT) from error
        at += len(text)
        if isinstance(head, list):
            head = _Head(kind="List", items=head)
        elif head.kind is None and head.items is msgspec.UNSET:
            raise UsageError(f"{name}: {_NO_OBJECT}", hint=_HINT)
        try:
            yield from _of_head(head, msgspec.Raw(text))
        except UnicodeDecodeError as error:
            _refuse(name, data, at, error)


def _of_head(head: _Head, raw: msgspec.Raw, implied: str | None = None, of: Any = None) -> _Objects:
    """An object, or the objects of a list; values that are not objects are skipped.

    `implied` is the kind that a typed list implies, `of` its version.
    """
    kind = implied if head.kind is None else head.kind
    version = of if head.kind is head.api_version is None else head.api_version
    if head.items is msgspec.UNSET or (head.kind and not str(head.kind).endswith("List")):
        yield _kind(kind, version), raw
        return
    typed = str(kind).removesuffix("List") or None if kind is not None else None
    for item in head.items or ():
        with suppress(msgspec.ValidationError):
            yield from _of_head(_HEAD.decode(item), item, typed, head.api_version)


def _refuse(name: str, data: bytes | bytearray, start: int, error: ValueError) -> NoReturn:
    """Raise UsageError with the position of the error in the JSON that begins at `start`."""
    located = re.search(r"(.*) \(byte (\d+)\)$", str(error))
    if isinstance(error, UnicodeDecodeError):
        raise UsageError(f"{name}: is not UTF-8 text", hint=_HINT) from error
    if located is None and "truncated" not in str(error):
        raise UsageError(f"{name}: {invalid_object_text(error)}", hint=_HINT) from error
    if located is None:
        at, problem = len(data), "the file is cut off here"
    else:
        at, problem = start + int(located[2]), located[1].replace("JSON is malformed", "not JSON")
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    raise UsageError(
        f"{name}: line {line}, column {column} (byte {at}): {problem}", hint=_HINT
    ) from error


# ---------------------------------------------------------------- YAML


def _of_yaml(name: str, data: bytearray) -> _Objects:
    import yaml

    try:
        for document in safe_yaml.documents(_text(name, data, _HINT)):
            for item in document if isinstance(document, list) else [document]:
                if item is None:
                    continue
                if not isinstance(item, dict) or not item.keys() & {"kind", "items"}:
                    raise UsageError(f"{name}: {_NO_OBJECT}", hint=_HINT)
                if "kind" not in item:
                    # kubectl sorts keys, so `kind: List` comes after the items.
                    raise UsageError(
                        f"{name}: the file is cut off: its list has no kind", hint=_HINT
                    )
                yield from _of_json(name, msgspec.json.encode(item))
    except safe_yaml.Excess as error:
        raise UsageError(f"{name}: {error}", hint=_HINT) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name}: not what JSON could say: {error}", hint=_HINT) from error
    except yaml.YAMLError as error:
        raise _not_yaml(name, error, hint=_HINT) from error


def _not_yaml(name: str, error: Exception, *, hint: str) -> UsageError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return UsageError(f"{name}: {place}not YAML: {problem}", hint=hint)
