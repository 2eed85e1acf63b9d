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

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, NoReturn

from arena_topo.argv import shell_command
from arena_topo.cli.options import PROGRAM, Globals
from arena_topo.cli.settings import Layer
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, encoding, whole
from arena_topo.flag import Flag, flags_of, kinds_of, spelling
from arena_topo.job import WORKING_DIR, Device, Duration, KeyValue, MPIJob, Quantity

Node = Any
"""A node of PyYAML's, which is loaded only where there is a file."""

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
"""What plain values and collections are by themselves; other tags want something of a reader."""

_MOST_VALUES = 20_000
"""Keys and values that a file may have: as many as an object of etcd has room for, and some seconds
of reading."""


def own_keys() -> dict[str, str]:
    """Keys that are flags of a job, with the field of each; `command` and `namespace` beside."""
    flags = {spelling(name, flag)[2:]: name for name, flag in flags_of(MPIJob).items()}
    return {**flags, COMMAND: COMMAND, "namespace": "namespace", "generate-name": "generate_name"}


# ---------------------------------------------------------------- the words of arena v2


@dataclass(frozen=True, slots=True)
class Only:
    """A key of arena v2 that may say nothing else than what is so anyway, and why."""

    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list of arena v2: the keys of an item, and what flags an item becomes.

    `becomes` raises ValueError for an item that no flag can say.
    """

    keys: tuple[str, ...]
    becomes: Callable[[Mapping[str, str]], Pairs]


def _sync(item: Mapping[str, str]) -> Pairs:
    """One source of code: `sync-mode`, `sync-source`, `sync-image`, and the branch."""
    modes = [mode for mode in ("git", "rsync") if mode in item]
    if len(modes) != 1:
        raise ValueError("needs git or rsync, one of them")
    found = [("sync_mode", modes[0]), ("sync_source", item[modes[0]])]
    if "image" in item:
        found.append(("sync_image", item["image"]))
    if modes == ["git"]:
        # Arena v2's default; git-sync v3 would take master.
        found.append(("env", f"{_BRANCH}={item.get('branch', 'main')}"))
    elif "branch" in item:
        raise ValueError("has a branch, which belongs to git, and this is rsync")
    return found


_BRANCH = "GIT_SYNC_BRANCH"
"""What git-sync v3 takes the branch from; job variables reach it, as they do in arena."""


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


_SLOTS = "slots_per_worker"
_CODE = "local_path"
_RESOURCE = r"/|^hugepages-|^ephemeral-storage$"
"""What the names of resources other than cpu and memory look like (kubernetes.io, Manage Resources
for Containers); anything else is a slip of the pen."""

ARENA: Mapping[str, Any] = {
    "version": Only("0.1.0", "it is the version of arena's schema that is known"),
    "description": "annotation kubernetes.io/description",
    "labels": "label",
    "annotations": "annotation",
    "run": COMMAND,
    "working_dir": "working-dir",
    "framework": {
        "name": Only("mpi", "only MPI jobs are submitted"),
        "options": {
            _SLOTS: _SLOTS,
            "mounts_on_launcher": "mounts-on-launcher",
            "run_launcher_as_worker": Only("false", "the launcher runs no rank"),
        },
    },
    "envs": "env",
    "worker": {
        "replicas": "workers",
        "resources": {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpus", "*": "device"},
    },
    "launcher": {
        "replicas": Only("1", "there is one launcher"),
        "resources": {
            "cpu": "launcher-cpu",
            "memory": "launcher-memory",
            "nvidia.com/gpu": Only("0", "the launcher gets no GPU"),
        },
    },
    "sync": Items(("git", "rsync", "branch", "image", _CODE), _sync),
    "storages": Items(("name", "mount_path", "pvc", "hostpath", "shm"), _storage),
    "scheduling": {
        "priority_class_name": "priority",
        "gang": {"enabled": "gang"},
        "scheduler_name": "scheduler",
        "node_selector": "selector",
        "tolerations": Items(("key", "operator", "value", "effect"), _toleration),
        "affinity": {"policy": Only("none", "--gputopology works out who shares nodes")},
    },
    "lifecycle": {
        "clean_pod_policy": "clean-task-policy",
        "active_deadline": "running-timeout",
        "ttl_after_finished": "ttl-after-finished",
        "backoff_limit": "retry",
    },
    "image_pull_policy": "image-pull-policy",
    "image_pull_secrets": "image-pull-secret",
    "service_account": "service-account",
    "restart": Only("Never", "a rank that fails ends the MPI job; retry starts anew"),
    "host_network": "hostNetwork",
    "host_ipc": "hostIPC",
    "host_pid": "hostPID",
    "logging": {
        "tensorboard": {"enabled": "tensorboard", "logdir": "logdir", "image": "tensorboard-image"}
    },
}
"""The keys of arena v2 (kubeflow/arena, keps/arena-v2/yaml-schema.md, version 0.1.0) that can be
said with flags: the key of ours that means the same, perhaps one KEY of it. `name`, `namespace`,
`image` and `shell` are spelled as ours. `*` is any other resource.

Its defaults are not taken over: what a file leaves open is as it is without that flag.
"""


def _hours(text: str) -> str:
    """A time span of arena v2, which may have days: `7d` is `168h`."""
    found = re.fullmatch(r"(\d{1,9})d(.*)", text)
    return f"{int(found[1]) * 24}h{found[2]}" if found else text


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """What a file says: its command, None without one, and a layer for each flag and its line."""

    command: str | None
    layers: tuple[Layer, ...]


def read(path: str, params: Iterable[Any], given: Sequence[tuple[str, str]] = ()) -> JobFile:
    """Read a job file; `-` is standard input.

    `params` are the options of the command as Typer knows them, `given` what its line says.
    UsageError names the file, the line and the key of what cannot be read.
    """
    for other in ("state", "fabric"):
        if path == STDIN and (other, STDIN) in given:
            raise UsageError(f"--file and --{other} cannot both be standard input")
    name = "standard input" if path == STDIN else path
    options = {text for param in params for text in param.opts}
    file = _File(name, options)
    file.read(_composed(_text(path, name), name))
    # A job is called by its name or by the start of one; of the two the line's wins.
    named = any(field in _NAMES for field, _text in given)
    layers = tuple(
        Layer(f"{name}, line {line}", tuple((field, text) for text in texts))
        for field, (line, texts) in file.said.items()
        if field != COMMAND and not (named and field in _NAMES)
    )
    return JobFile(command=file.value(COMMAND), layers=layers)


def _text(path: str, name: str) -> str:
    try:
        data = whole(path, handed=True)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name}: cannot be read: {why}") from error
    try:
        return data.decode(encoding(data))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is not UTF-8 text", hint=_FORM) from error


def _composed(text: str, name: str) -> Node:
    """The one document of the text, as nodes that know their lines; nothing is made of values."""
    import yaml

    with suppress(ValueError, RecursionError):
        json.loads(text)
        # A tab in JSON that is no escape stands between words, where YAML wants none.
        text = text.replace("\t", " ")

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
        node: Node = yaml.compose(text, Loader=Loader)
    except RecursionError as error:
        raise UsageError(f"{name}: it is nested too deeply", hint=_FORM) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{ord(text[error.position]):04X} is not allowed"
        raise UsageError(f"{name}: line {line}: {what}", hint=_FORM) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line + 1
        what = f"not YAML: {error.problem}"
        if error.problem == "but found another document":
            what = "a second document begins, and one file is one job"
        raise UsageError(f"{name}: line {line}: {what}", hint=_FORM) from error
    if node is None or (node.id == "scalar" and not node.value):
        raise UsageError(f"{name}: the file is empty", hint=_FORM)
    return node


class _File:
    """A job file under examination; every complaint names it, the line and the key.

    `said` has the texts of each field, and the line of the first.
    """

    def __init__(self, name: str, options: set[str]) -> None:
        self.said: dict[str, tuple[int, list[str]]] = {}
        self._name, self._options = name, options
        self._keys: dict[str, str] = {}
        self._own = own_keys()
        self._kinds = kinds_of(MPIJob)
        self._agree: list[tuple[str, int, str, Callable[[], str]]] = []

    def read(self, root: Node) -> None:
        """Take down what the file says."""
        for key, node, line in self._mapping(root, ""):
            if key in self._own:
                self._flag(key, key, node, line)
            else:
                self._arena(ARENA, key, key, node, line)
        for key, line, text, wanted in self._agree:
            if text.rstrip("/") != wanted():
                self._wrong(key, line, f"can only be {wanted()}, got {text!r}")

    def value(self, field: str) -> str | None:
        """What is said of a field that has one value."""
        return self.said[field][1][-1] if field in self.said else None

    def _arena(self, known: Mapping[str, Any], key: str, path: str, node: Node, line: int) -> None:
        """A key of arena's with its value; `path` is all of it."""
        target = known.get(key)
        if target is None and "*" in known and re.search(_RESOURCE, key):
            target = f"{known['*']} {key}"
        if target is None:
            self._unknown(path, line, [*known, *(self._own if known is ARENA else ())])
        if _null(node):
            return
        if isinstance(target, Mapping):
            for name, value, at in self._mapping(node, path):
                self._arena(target, name, f"{path}.{name}", value, at)
        elif isinstance(target, Items):
            self._items(target, path, node, line)
        elif isinstance(target, Only):
            text = self._scalar(node, path)
            if text.lower() != target.value.lower():
                what = f"can only be {target.value}, got {text!r}"
                self._wrong(path, line, what, why=target.why)
        elif target == _SLOTS:
            text = self._scalar(node, path)
            self._agree.append((path, line, text, self._slots))
        else:
            self._flag(target, path, node, line)

    def _items(self, items: Items, path: str, node: Node, line: int) -> None:
        if node.id != "sequence":
            self._wrong(path, line, f"is {_shape(node)}, not a list")
        for at, one in enumerate(node.value):
            here = f"{path}[{at}]"
            found: dict[str, str] = {}
            start = one.start_mark.line + 1
            for name, value, where in self._mapping(one, here):
                if name not in items.keys:
                    self._unknown(f"{here}.{name}", where, items.keys)
                if _null(value):
                    continue
                found[name] = self._scalar(value, f"{here}.{name}")
                if name == _CODE:
                    self._agree.append((f"{here}.{name}", where, found[name], self._code))
            try:
                pairs = items.becomes(found) if found else []
            except ValueError as error:
                self._wrong(here, start, str(error))
            for field, text in pairs:
                self._say(field, path, start, [text])

    def _slots(self) -> str:
        """How many slots a worker has: one for each GPU, at least one."""
        gpus = self.value("gpus") or "0"
        return "1" if gpus == "0" else gpus

    def _code(self) -> str:
        """Where code is put: into the folder code of the working directory."""
        return f"{(self.value('working_dir') or WORKING_DIR).rstrip('/')}/code"

    def _flag(self, target: str, path: str, node: Node, line: int) -> None:
        """The values of a flag: one, a list, or a mapping where the flag takes KEY=VALUE."""
        key, _, part = target.partition(" ")
        field = self._own[key]
        kind, several, _ = self._kinds.get(field, (str, False, False))
        if _null(node):
            return
        if part or not several:
            listed = field == COMMAND and node.id == "sequence"
            texts = self._list(node, path) if listed else [self._scalar(node, path)]
            if listed:
                texts = [shell_command(texts)] if texts else []
        elif node.id == "mapping" and issubclass(kind, KeyValue | Device):
            texts = []
            for name, value, at in self._mapping(node, path):
                if "=" in name:
                    self._wrong(f"{path}.{name}", at, "has a '=' in its key")
                texts.append(f"{name}={self._scalar(value, f'{path}.{name}')}")
        elif node.id == "sequence":
            texts = self._list(node, path)
        else:
            mapping = "a mapping such as {A: B}" if issubclass(kind, KeyValue | Device) else ""
            wanted = mapping or "a list such as [A, B]"
            self._wrong(path, line, f"is {_shape(node)}, not {wanted}")
        if kind is Duration and path != key:
            texts = [_hours(text) for text in texts]
        self._say(field, path, line, [f"{part}={text}" for text in texts] if part else texts)

    def _list(self, node: Node, path: str) -> list[str]:
        return [self._scalar(one, f"{path}[{at}]") for at, one in enumerate(node.value)]

    def _say(self, field: str, path: str, line: int, texts: Sequence[str]) -> None:
        """Take down what a key says of a field; nothing may be said twice."""
        start, before = self.said.get(field, (line, []))
        kind, several, _ = self._kinds.get(field, (str, False, False))
        names = {text.partition("=")[0] for text in before}
        paired = isinstance(kind, type) and issubclass(kind, KeyValue | Device)
        if (before and not several) or (
            paired and not names.isdisjoint(text.partition("=")[0] for text in texts)
        ):
            twice = f"says again what {self._keys[field]} says in line {start}"
            self._wrong(path, line, twice, hint="say it once")
        if texts:
            self.said[field] = (start, [*before, *texts])
            self._keys.setdefault(field, path)

    # ------------------------------------------------------------ nodes

    def _mapping(self, node: Node, path: str) -> Iterator[tuple[str, Node, int]]:
        """The keys of a mapping with their values and lines; none may be there twice."""
        if node.id != "mapping":
            self._wrong(path, node.start_mark.line + 1, f"is {_shape(node)}, not a mapping")
        self._untagged(node, path)
        seen: dict[str, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if name.id != "scalar":
                self._wrong(path, line, "has a key that is no text")
            key = _joined(name.value)
            if key in seen:
                whole_path = f"{path}.{key}" if path else key
                self._wrong(whole_path, line, f"is there twice; first in line {seen[key]}")
            seen[key] = line
            yield key, value, line

    def _scalar(self, node: Node, key: str) -> str:
        line = node.start_mark.line + 1
        if node.id != "scalar":
            self._wrong(key, line, f"is {_shape(node)}, not one value")
        self._untagged(node, key)
        if _null(node):
            self._wrong(key, line, "has no value", hint='write "" for an empty one')
        return _joined(node.value)

    def _untagged(self, node: Node, key: str) -> None:
        if node.tag not in _TAGS:
            self._wrong(key, node.start_mark.line + 1, f"has the tag {node.tag}, which is not read")

    def _unknown(self, path: str, line: int, known: Iterable[str]) -> NoReturn:
        key = path.rpartition(".")[2]
        # Without what people mix up: capitals, dashes, underscores.
        plain = {re.sub(r"[-_]", "", one.lower()): one for one in known}
        near = difflib.get_close_matches(re.sub(r"[-_]", "", key.lower()), plain, n=1)
        hint = f"did you mean {plain[near[0]]}?" if near else _FORM
        if f"--{path}" in self._options:
            hint = f"a file says what the job is; say --{path} on the command line"
        self._wrong(path, line, "is not known", hint=hint)

    def _wrong(
        self, key: str, line: int, what: str, *, why: str | None = None, hint: str | None = None
    ) -> NoReturn:
        subject = key or "the file"
        raise UsageError(f"{self._name}: line {line}: {subject} {what}", why=why, hint=hint)


def _null(node: Node) -> bool:
    """Whether nothing is said: the key stands alone, or with null."""
    return bool(node.id == "scalar" and node.tag.endswith(":null") and node.style is None)


def _shape(node: Node) -> str:
    return {"mapping": "a mapping", "sequence": "a list", "scalar": "one value"}[node.id]


def _joined(text: str) -> str:
    """A text whose characters beyond U+FFFF came as the two escapes that JSON writes them in."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ---------------------------------------------------------------- the schema for editors

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN: Schema = {"type": ["string", "number", "boolean"]}
"""A value that is taken as it is typed."""

_SPAN = r"(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|ms|us|ns|m|s))+|0"
"""A time span as Go writes it (time.ParseDuration)."""

_DAYS = r"0|(\d+d)?(\d+(\.\d*)?(h|ms|us|ns|m|s))*"
"""A time span that may have days."""

_AMOUNT = r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
"""A Kubernetes quantity, as `Quantity` reads it."""

_QUANTITY: Schema = {"type": ["string", "number"], "pattern": f"^({_AMOUNT})$", "minimum": 0}


def schema_text() -> str:
    """The schema as JSON, two spaces deep."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> Schema:
    """The schema (draft 2020-12): what fits it can be read, except for what keys say together."""
    flags, kinds = flags_of(MPIJob), kinds_of(MPIJob)
    defaults = {one.name: one.default for one in fields(MPIJob)}
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
    own["namespace"] = {"description": flags_of(Globals)["namespace"].help, "type": "string"}
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
        "properties": own | _of_arena(ARENA)["properties"],
        "additionalProperties": False,
    }


def _of_flag(flag: Flag, kind: Any, several: bool, default: Any) -> Schema:  # noqa: FBT001
    """What a key of ours may be."""
    said: Schema = {"description": flag.help.replace("; repeat for more", "")}
    if default not in {MISSING, None, "", ()}:
        said["default"] = default if kind in {int, float, bool} else str(default)
    paired = issubclass(kind, KeyValue | Device)
    item: Schema = {"type": "string"}
    if paired:
        item["pattern"] = "^[^=]+="
    elif flag.metavar:
        item["examples"] = [flag.metavar]
    listed = {"type": "array", "items": item}
    if paired:
        return said | {"anyOf": [_pairs(kind), listed]}
    return said | (listed if several else _value(kind, flag))


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
        return {"anyOf": [{"type": "string", "pattern": f"^({_SPAN})$"}, {"const": 0}]}
    if issubclass(kind, StrEnum):
        return {"enum": [one.value for one in kind if one.value]}
    return {"type": "string"}


def _of_arena(known: Mapping[str, Any]) -> Schema:
    """What a mapping of arena v2 may be."""
    made: Schema = {
        "type": "object",
        "properties": {name: _of_key(one) for name, one in known.items() if name != "*"},
        "additionalProperties": False,
    }
    if "*" in known:
        made["patternProperties"] = {_RESOURCE: _QUANTITY}
    return made


def _of_key(target: Any) -> Schema:
    """What a key of arena v2 may be, by what it becomes."""
    if isinstance(target, Mapping):
        return _of_arena(target)
    if isinstance(target, Items):
        return {"type": "array", "items": _of_arena(dict.fromkeys(target.keys, _SLOTS))}
    if isinstance(target, Only):
        # As an editor's reader of YAML may see it.
        seen: dict[str, Any] = {"false": False, "0": 0, "1": 1}
        enum = dict.fromkeys([target.value, seen.get(target.value, target.value)])
        return {"description": f"Only so: {target.why}.", "enum": list(enum)}
    key, _, part = target.partition(" ")
    return _of_same(key, anything=bool(part) or key == _SLOTS)


def _of_same(key: str, *, anything: bool) -> Schema:
    """What a key of arena v2 may be that means the same as one of ours."""
    if key == COMMAND:
        return {"description": "What the job runs, a line for its shell.", "type": "string"}
    if anything:
        return {"type": ["string", "number"]}
    field = own_keys()[key]
    kind = kinds_of(MPIJob)[field][0]
    help_text = flags_of(MPIJob)[field].help.replace("; repeat for more", "")
    if issubclass(kind, KeyValue):
        return {"description": help_text, **_pairs(kind)}
    if kind is Duration:
        spans = [{"type": "string", "pattern": f"^({_DAYS})$"}, {"const": 0}]
        return {"description": help_text, "anyOf": spans}
    return {"$ref": f"#/properties/{key}"}
