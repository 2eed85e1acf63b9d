"""A job as a file: the flags of `submit mpi` in YAML or JSON, in our own or in arena v2's words.

    name: bert
    gpus: 2
    gputopology: true
    env: {NCCL_DEBUG: INFO}
    command: mpirun python train.py

Values are taken as they are typed and read as the flags read them: `no`, `012` and `22:22` are
those characters, whatever YAML 1.1 makes of them. A key that is not known is an error with its
line. The JSON schema for editors is made from the same tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn

from arena_topo.argv import shell_command
from arena_topo.cli.options import PROGRAM, CommonOptions
from arena_topo.cli.parameters import Parameter
from arena_topo.cli.settings import Layer
from arena_topo.errors import UsageError, near
from arena_topo.files import STDIN, encoding, read_bytes
from arena_topo.flag import Flag, flags_of, kinds_of, spelling
from arena_topo.job import Device, Duration, KeyValue, MPIJob, Quantity
from arena_topo.numbers import QUANTITY, SPAN_PATTERN

YamlNode = Any
"""A node of PyYAML's, which is loaded only where there is a file."""

Path = tuple[str | int, ...]
"""The place of a value: the keys of mappings, and indexes of lists."""

Pairs = list[tuple[str, str]]
"""Fields of a job, each with a text as typed."""

COMMAND = "command"
"""The one field of a job that is no flag."""

_NAMES = frozenset({"name", "generate_name"})

_FORM = f"it is lines such as gpus: 2; {PROGRAM} config schema has all keys"
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "value")
)
"""The tags of plain values and collections; others are instructions to a reader."""

_MOST_VALUES = 20_000
"""Keys and values that a file may have: as many as an object of etcd has room for, and some seconds
of reading."""


def own_keys() -> dict[str, str]:
    """Keys that are flags of a job, with the field of each; `command` and `namespace` beside."""
    flags = {spelling(name, flag)[2:]: name for name, flag in flags_of(MPIJob).items()}
    return {**flags, COMMAND: COMMAND, "namespace": "namespace", "generate-name": "generate_name"}


# ---------------------------------------------------------------- the words of arena v2


class SingleValue(NamedTuple):
    """A key of arena v2 with a single allowed value, and the reason."""

    value: str
    why: str


class Items(NamedTuple):
    """A list of arena v2: the keys of an item, and the flags that an item becomes.

    `becomes` raises ValueError for an item that no flag can express.
    """

    keys: tuple[str, ...]
    becomes: Callable[[Mapping[str, str]], Pairs]


def _sync(item: Mapping[str, str]) -> Pairs:
    """One source of code: `sync-mode`, `sync-source`, `sync-image`, and the branch."""
    modes = [mode for mode in ("git", "rsync") if mode in item]
    if len(modes) != 1:
        raise ValueError("needs git or rsync, one of them")
    values = [("sync_mode", modes[0]), ("sync_source", item[modes[0]])]
    if "image" in item:
        values.append(("sync_image", item["image"]))
    if modes == ["git"]:
        # Arena v2's default; git-sync v3 would take master.
        values.append(("env", f"{_BRANCH}={item.get('branch', 'main')}"))
    elif "branch" in item:
        raise ValueError("has a branch, which belongs to git, and this is rsync")
    return values


_BRANCH = "GIT_SYNC_BRANCH"
"""The variable of git-sync v3 for the branch; it gets the job's variables, as in arena."""


def _storage(item: Mapping[str, str]) -> Pairs:
    """One volume: a claim, a folder of the node, or the shared memory."""
    path = item.get("mount_path")
    if len({"pvc", "hostpath", "shm"} & item.keys()) != 1:
        raise ValueError("needs pvc, hostpath or shm, one of them")
    if "shm" in item:
        if path not in {None, "/dev/shm"}:  # noqa: S108 - a mount
            raise ValueError("shared memory is mounted at /dev/shm")
        return [("share_memory", item["shm"])]
    if "pvc" in item:
        return [("data", f"{item['pvc']}:{path or ''}")]
    return [("data_dir", f"{item['hostpath']}:{path or ''}")]


def _toleration(item: Mapping[str, str]) -> Pairs:
    """One toleration, in the form of --toleration."""
    operator = item.get("operator") or "Equal"
    if item.get("key"):
        text = f"{item['key']}={item.get('value', '')}:{item.get('effect', '')},{operator}"
    elif operator == "Exists" and not item.get("effect") and not item.get("value"):
        text = "all"
    else:
        raise ValueError("needs a key, or is {operator: Exists} alone")
    return [("toleration", text)]


_RESOURCE = r"/|^hugepages-|^ephemeral-storage$"
"""The form of names of resources other than cpu and memory (kubernetes.io, Manage Resources for
Containers); any other name is a typo."""

ARENA: Mapping[str, str | SingleValue | Items] = {
    "version": SingleValue("0.1.0", "it is the version of arena's schema that is known"),
    "description": "annotation kubernetes.io/description",
    "labels": "label",
    "annotations": "annotation",
    "run": COMMAND,
    "working_dir": "working-dir",
    "framework name": SingleValue("mpi", "only MPI jobs are submitted"),
    "framework options mounts_on_launcher": "mounts-on-launcher",
    "framework options run_launcher_as_worker": SingleValue("false", "the launcher runs no rank"),
    "envs": "env",
    "worker replicas": "workers",
    "worker resources cpu": "cpu",
    "worker resources memory": "memory",
    "worker resources nvidia.com/gpu": "gpus",
    "worker resources": "device",
    "launcher replicas": SingleValue("1", "there is one launcher"),
    "launcher resources cpu": "launcher-cpu",
    "launcher resources memory": "launcher-memory",
    "launcher resources nvidia.com/gpu": SingleValue("0", "the launcher gets no GPU"),
    "sync": Items(("git", "rsync", "branch", "image"), _sync),
    "storages": Items(("name", "mount_path", "pvc", "hostpath", "shm"), _storage),
    "scheduling priority_class_name": "priority",
    "scheduling gang enabled": "gang",
    "scheduling scheduler_name": "scheduler",
    "scheduling node_selector": "selector",
    "scheduling tolerations": Items(("key", "operator", "value", "effect"), _toleration),
    "scheduling affinity policy": SingleValue("none", "--gputopology works out who shares nodes"),
    "lifecycle clean_pod_policy": "clean-task-policy",
    "lifecycle active_deadline": "running-timeout",
    "lifecycle ttl_after_finished": "ttl-after-finished",
    "lifecycle backoff_limit": "retry",
    "image_pull_policy": "image-pull-policy",
    "image_pull_secrets": "image-pull-secret",
    "service_account": "service-account",
    "restart": SingleValue("Never", "a rank that fails ends the MPI job; retry starts anew"),
    "host_network": "hostNetwork",
    "host_ipc": "hostIPC",
    "host_pid": "hostPID",
    "logging tensorboard enabled": "tensorboard",
    "logging tensorboard logdir": "logdir",
    "logging tensorboard image": "tensorboard-image",
}
"""The keys of arena v2 (kubeflow/arena, keps/arena-v2/yaml-schema.md, version 0.1.0) that have a
flag, with those above them: the key of ours that means the same, perhaps one KEY of it.
`name`, `namespace`, `image` and `shell` are spelled as ours. What else is below `worker resources`
is a resource.

Its defaults are not taken over: what a file leaves open is as it is without that flag.
"""


KeyTable = dict[str, Any]
"""Keys, each with its flag, a `SingleValue`, an `Items`, or the table of the keys below."""


def _keys() -> KeyTable:
    """The keys of both vocabularies, as they are nested in a file."""
    keys: KeyTable = {key: key for key in own_keys()}
    for path, target in ARENA.items():
        *above, key = path.split(" ")
        place = keys
        for above_key in above:
            place = place.setdefault(above_key, {})
        if key in place:  # the resources that have no key of their own
            place, key = place[key], _RESOURCE
        place[key] = target
    return keys


def _hours(text: str) -> str:
    """A time span of arena v2, which may have days, in hours: `7d` is `168h`."""
    match = re.fullmatch(r"(\d{1,9})d(.*)", text)
    return f"{int(match[1]) * 24}h{match[2]}" if match else text


# ---------------------------------------------------------------- reading


class JobFile(NamedTuple):
    """The content of a file: its command, None without one, and a layer for each flag's line."""

    command: str | None
    layers: tuple[Layer, ...]


def read_job_file(
    path: str, options: Iterable[Parameter], given: Sequence[tuple[str, str]] = ()
) -> JobFile:
    """Read a job file; `-` is standard input.

    `options` are those of the command, `given` what its line says.
    UsageError names the file, the line and the key of what cannot be read.
    """
    for other in ("state", "fabric"):
        if path == STDIN and (other, STDIN) in given:
            raise UsageError(f"--file and --{other} cannot both be standard input")
    name = "standard input" if path == STDIN else path
    file = _File(name, {text for option in options for text in option.spellings})
    file.read(_composed(_text(path, name), name))
    # `name` and `generate-name` exclude each other; that of the line wins.
    named = any(field in _NAMES for field, _text in given)
    command = [command_word.text for command_word in file.values.pop(COMMAND, ())]
    layers = tuple(
        Layer(
            f"{name}, line {field_texts[0].line}",
            tuple((field, value.text) for value in field_texts),
        )
        for field, field_texts in file.values.items()
        if not (named and field in _NAMES)
    )
    return JobFile(shell_command(command) if command else None, layers)


def _text(path: str, name: str) -> str:
    try:
        data = read_bytes(path, handed=True)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name}: cannot be read: {why}") from error
    try:
        return data.decode(encoding(data))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is not UTF-8 text", hint=_FORM) from error


def _composed(text: str, name: str) -> YamlNode:
    """The one document of the text, as nodes with their lines; values are not constructed."""
    import yaml

    with suppress(ValueError, RecursionError):
        json.loads(text)
        # JSON allows tabs between tokens, and in strings characters that end a line of YAML or that
        # YAML refuses.
        text = text.replace("\t", " ")
        text = re.sub(
            "[\x7f-\x9f\u2028\u2029\ufeff]", lambda match: f"\\u{ord(match[0]):04x}", text
        )

    class Loader(yaml.SafeLoader):
        """Composes no more than a job can have."""

        values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """The next value, counted."""
            self.values += 1
            if self.values > _MOST_VALUES:
                mark: Any = self.get_mark()
                raise UsageError(f"{name}: line {mark.line + 1}: more than {_MOST_VALUES:,} values")
            return super().compose_node(parent, index)

    try:
        node: YamlNode = yaml.compose(text, Loader=Loader)
    except RecursionError as error:
        raise UsageError(f"{name}: it is nested too deeply", hint=_FORM) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{ord(text[error.position]):04X} is not allowed"
        raise UsageError(f"{name}: line {line}: {what}", hint=_FORM) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not YAML: {error.problem}"
        if error.problem == "but found another document":
            what = "a second document begins, and one file is one job"
        raise UsageError(
            f"{name}: line {mark.line + 1 if mark else 0}: {what}", hint=_FORM
        ) from error
    if node is None or (node.id == "scalar" and not node.value):
        raise UsageError(f"{name}: the file is empty", hint=_FORM)
    return node


class _Value(NamedTuple):
    """One text of a field, the place of the key that gives it, and its line."""

    text: str
    source: Path
    line: int


class _File:
    """A job file that is read; every error names the file, the line and the key.

    `values` has the values of each field of a job.
    """

    def __init__(self, name: str, options: set[str]) -> None:
        self.values: dict[str, list[_Value]] = {}
        self._name, self._options = name, options
        self._own, self._kinds = own_keys(), kinds_of(MPIJob)

    def read(self, root: YamlNode) -> None:
        """Read the whole document."""
        self._table(root, _keys(), (), 1)

    def _table(self, node: YamlNode, table: KeyTable, path: Path, line: int) -> None:
        """A mapping whose keys are known."""
        self._expect("mapping", node, path, line)
        for key, value, at in self._pairs(node, path):
            target, below = table.get(key), (*path, key)
            if target is None and _RESOURCE in table and re.search(_RESOURCE, key):
                target = f"{table[_RESOURCE]} {key}"
            if target is None:
                self._unknown(below, at, table.keys() - {_RESOURCE})
            elif _is_empty(value):
                continue
            elif isinstance(target, dict):
                self._table(value, target, below, at)
            elif isinstance(target, Items):
                self._items(value, target, below, at)
            elif isinstance(target, SingleValue):
                text = self._text(value, below, at)
                if text.lower() != target.value.lower():
                    what = f"can only be {target.value}, got {text!r}"
                    self._wrong(below, at, what, why=target.why)
            else:
                self._flag(value, target, below, at)

    def _flag(self, node: YamlNode, target: str, path: Path, line: int) -> None:
        """The value of a flag: its one, the items of a list, or KEY=VALUE of a mapping."""
        name, _, part = target.partition(" ")
        field = self._own[name]
        kind, several, _ = self._kinds.get(field, (str, False, False))
        shapes = {"sequence": "a list such as [A, B]"} if several and not part else {}
        shapes = shapes or {"scalar": "one value"}
        if issubclass(kind, KeyValue | Device) and not part:
            shapes["mapping"] = "a mapping such as {A: B}"
        if field == COMMAND:
            shapes["sequence"] = "a list"
        if node.id not in shapes:
            *_others, wanted = shapes.values()
            self._wrong(path, line, f"is {_SHAPES[node.id]}, not {wanted}")
        values: list[tuple[Path, str, int, YamlNode]] = [(path, part, line, node)]
        if node.id == "sequence":
            values = [
                ((*path, at), "", item.start_mark.line + 1, item)
                for at, item in enumerate(node.value)
            ]
        elif node.id == "mapping":
            values = [((*path, key), key, at, item) for key, item, at in self._pairs(node, path)]
        for where, key, at, value_text in values:
            text = self._text(value_text, where, at)
            if node.id == "mapping" and "=" in key:
                self._wrong(where, at, "has a '=' in its key")
            if kind is Duration and path != (name,):
                text = _hours(text)
            self._set_value(field, path, at, f"{key}={text}" if key else text)

    def _items(self, node: YamlNode, items: Items, path: Path, line: int) -> None:
        """A list of arena v2, each item a mapping."""
        self._expect("sequence", node, path, line)
        for place, item in enumerate(node.value):
            source, at = (*path, place), item.start_mark.line + 1
            self._expect("mapping", item, source, at)
            values = {}
            for key, value, where in self._pairs(item, source):
                if key not in items.keys:
                    self._unknown((*source, key), where, items.keys)
                if not _is_empty(value):
                    values[key] = self._text(value, (*source, key), where)
            try:
                pairs = items.becomes(values) if values else []
            except ValueError as error:
                self._wrong(source, at, str(error))
            for field, text in pairs:
                self._set_value(field, source, at, text)

    def _pairs(self, node: YamlNode, path: Path) -> Iterator[tuple[str, YamlNode, int]]:
        """The keys of a mapping, each with its value and its line."""
        seen: dict[str, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if name.id != "scalar":
                self._wrong(path, line, "has a key that is no text")
            key = _joined(name.value)
            if key in seen:
                self._wrong((*path, key), line, f"occurs twice; first in line {seen[key]}")
            seen[key] = line
            self._untagged(value, (*path, key), line)
            yield key, value, line

    def _untagged(self, node: YamlNode, path: Path, line: int) -> None:
        if node.tag not in _TAGS:
            self._wrong(path, line, f"has the tag {node.tag}, which is not read")

    def _expect(self, shape: str, node: YamlNode, path: Path, line: int) -> None:
        self._untagged(node, path, line)
        if node.id != shape:
            # `worker: 4`, where arena has `worker: {replicas: 4}` and our flag is `workers`.
            flag = ARENA.get(f"{_written(path)} replicas") if node.id == "scalar" else None
            hint = f"did you mean {flag}?" if isinstance(flag, str) else None
            self._wrong(path, line, f"is {_SHAPES[node.id]}, not {_SHAPES[shape]}", hint=hint)

    def _text(self, node: YamlNode, path: Path, line: int) -> str:
        """One value as it is typed."""
        self._expect("scalar", node, path, line)
        if _is_empty(node):
            self._wrong(path, line, "has no value", hint='write "" for an empty one')
        return _joined(node.value)

    def _set_value(self, field: str, source: Path, line: int, text: str) -> None:
        """Record a value of a field; two keys may not set the same."""
        kind, several, _ = self._kinds.get(field, (str, False, False))
        paired = issubclass(kind, KeyValue | Device)
        name = text.partition("=")[0]
        for before in self.values.get(field, ()):
            if before.source != source and (
                not several or (paired and before.text.partition("=")[0] == name)
            ):
                twice = f"says again what {_written(before.source)} says in line {before.line}"
                self._wrong(source, line, twice, hint="set it once")
        self.values.setdefault(field, []).append(_Value(text, source, line))

    def _unknown(self, path: Path, line: int, known: Iterable[str]) -> NoReturn:
        hint = near(str(path[-1]), sorted(known)) or _FORM
        if f"--{_written(path)}" in self._options:
            hint = f"a file describes the job; write --{_written(path)} on the command line"
        self._wrong(path, line, "is not known", hint=hint)

    def _wrong(
        self, path: Path, line: int, what: str, *, why: str | None = None, hint: str | None = None
    ) -> NoReturn:
        subject = _written(path) or "the file"
        raise UsageError(f"{self._name}: line {line}: {subject} {what}", why=why, hint=hint)


def _written(path: Path) -> str:
    """A place in the file as a person writes it: `sync[0].git`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


_SHAPES = {"mapping": "a mapping", "sequence": "a list", "scalar": "one value"}


def _is_empty(node: YamlNode) -> bool:
    """Whether a node says nothing: `~`, no value, an empty list or mapping."""
    if node.id == "scalar":
        return str(node.tag).endswith(":null") and node.style is None
    return not node.value


def _joined(text: str) -> str:
    """A text with the pairs of surrogates joined in which JSON escapes characters beyond U+FFFF."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ---------------------------------------------------------------- the schema for editors

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN: Schema = {"type": ["string", "number", "boolean"]}
"""A value that is taken as it is typed."""

_DAYS = rf"^\d+d({SPAN_PATTERN})*$"
"""A time span that has days."""

_QUANTITY: Schema = {"type": ["string", "number"], "pattern": f"^({QUANTITY})$", "minimum": 0}


def schema_text() -> str:
    """The schema as JSON, two spaces deep."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """The schema (draft 2020-12): a file that fits it can be read, but for rules across keys."""
    flags, kinds = flags_of(MPIJob), kinds_of(MPIJob)
    defaults = {record_field.name: record_field.default for record_field in fields(MPIJob)}
    own = {
        key: _of_flag(flags[name], *kinds[name][:2], defaults[name])
        for key, name in own_keys().items()
        if name in flags
    }
    own[COMMAND] = {
        "description": "What the job runs: a line for its shell, or a list of words.",
        "anyOf": [
            {"type": "string", "pattern": r"\S"},
            {"type": "array", "items": _PLAIN, "minItems": 1},
        ],
        "examples": ["mpirun -np 4 python train.py"],
    }
    own["namespace"] = {"description": flags_of(CommonOptions)["namespace"].help, "type": "string"}
    own["generate-name"] = {
        "description": "Start of the name; submit completes it.",
        "type": "string",
    }
    return {
        "$schema": _DIALECT,
        "title": "A job of arena-topo",
        "description": "The flags of `arena-topo submit mpi`, in their own words or in those of"
        " arena v2's schema 0.1.0. Flags on the command line win.",
        "type": "object",
        "properties": own
        | {key: _of_key(target) for key, target in _keys().items() if key not in own},
        "additionalProperties": False,
    }


def _of_flag(flag: Flag, kind: Any, several: bool, default: Any) -> Schema:  # noqa: FBT001
    """The schema of a key of ours."""
    schema: Schema = {"description": flag.help.replace("; repeat for more", "")}
    if default not in {MISSING, None, "", ()}:
        schema["default"] = default if kind in {int, float, bool} else str(default)
    paired = issubclass(kind, KeyValue | Device)
    item: Schema = {"type": "string"}
    if paired:
        item["pattern"] = "^[^=]+="
    elif flag.metavar:
        item["examples"] = [flag.metavar]
    listed = {"type": "array", "items": item}
    if paired:
        return schema | {"anyOf": [_pairs(kind), listed]}
    return schema | (listed if several else _value(kind, flag))


def _pairs(kind: Any) -> Schema:
    values = _QUANTITY if kind is Device else _PLAIN
    names = {"pattern": "^[^=]+$"}
    return {"type": "object", "additionalProperties": values, "propertyNames": names}


def _value(kind: Any, flag: Flag) -> Schema:
    names = {bool: "boolean", int: "integer", float: "number"}
    if kind in names:
        least = {} if flag.at_least is None else {"minimum": flag.at_least}
        return {"type": names[kind], **least}
    if kind is Quantity:
        return _QUANTITY
    if kind is Duration:
        # A number without a unit is only a time span if it is 0.
        return {"anyOf": [{"type": "string", "pattern": f"^(({SPAN_PATTERN})+|0)$"}, {"const": 0}]}
    if issubclass(kind, StrEnum):
        return {"enum": [member.value for member in kind if member.value]}
    return {"type": "string"}


def _object(*keys: str) -> Schema:
    properties = dict.fromkeys(keys, _PLAIN)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _of_key(target: str | SingleValue | Items | KeyTable) -> Schema:
    """The schema of a key of arena v2, by what it becomes."""
    if isinstance(target, dict):
        properties = {key: _of_key(subkey) for key, subkey in target.items() if key != _RESOURCE}
        others = {"patternProperties": {_RESOURCE: _QUANTITY}} if _RESOURCE in target else {}
        return _object() | {"properties": properties} | others
    if isinstance(target, Items):
        return {"type": "array", "items": _object(*target.keys)}
    if isinstance(target, SingleValue):
        # As an editor's reader of YAML may see it.
        seen: dict[str, Any] = {"false": False, "0": 0, "1": 1}
        enum = dict.fromkeys([target.value, seen.get(target.value, target.value)])
        return {"description": f"Only so: {target.why}.", "enum": list(enum)}
    same = {"$ref": f"#/properties/{target}"}
    if " " in target:
        return _PLAIN
    if kinds_of(MPIJob)[own_keys()[target]][0] is Duration:
        return {"anyOf": [same, {"type": "string", "pattern": _DAYS}]}
    return same
