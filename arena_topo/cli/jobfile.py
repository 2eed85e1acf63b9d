"""A job as a file: the flags of `submit mpi` in YAML or JSON, in our own or in arena v2's words.

    name: bert
    gpus: 2
    gputopology: true
    env: {NCCL_DEBUG: INFO}
    command: mpirun python train.py

Values are taken as they are typed and read as the flags read them: `no`, `012` and `22:22` are
those characters, whatever YAML 1.1 makes of them. Nothing in a file is left out in silence: what
cannot be read is an error that names the key and its line.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from arena_topo.argv import shell_command, truth
from arena_topo.cli import reading
from arena_topo.cli.jobkeys import ARENA, BRANCH, COMMAND, ONE_OF, Key, below, kinds, own_keys
from arena_topo.cli.options import PROGRAM, boolean
from arena_topo.cli.settings import Layer
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, encoding
from arena_topo.flag import flags_of, spelling
from arena_topo.job import WORKING_DIR, KeyValue, MPIJob

Node = Any
"""A node of PyYAML's, which is loaded only where there is a file."""

_NAMES = frozenset({"name", "generate_name"})

_FORM = f"it is lines such as gpus: 2; {PROGRAM} config schema has all keys"
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "value")
)
"""What plain values and collections are by themselves; other tags want something of a reader."""

_RESOURCE = re.compile(r"/|^hugepages-|^ephemeral-storage$")
"""What the names of resources other than cpu and memory look like (kubernetes.io, Manage Resources
for Containers); anything else is a slip of the pen."""

_MOST_VALUES = 20_000
"""Keys and values that a file may have: as many as an object of etcd has room for, and some seconds
of reading."""

_TOO_DEEP = "it is nested too deeply"


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
    text = _text(path, name)
    found = _File(name, {param.name: param for param in params}).read(_composed(text, name))
    # A job is called by its name or by the start of one; of the two the line's wins.
    if any(field in _NAMES for field, _text in given):
        found = replace(
            found, layers=tuple(one for one in found.layers if one.given[0][0] not in _NAMES)
        )
    return found


def _text(path: str, name: str) -> str:
    try:
        data = reading.handed(path, name)
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
        raise UsageError(f"{name}: {_TOO_DEEP}", hint=_FORM) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            f"{name}: line {line}: the character U+{ord(text[error.position]):04X} is not allowed",
            hint=_FORM,
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line + 1
        if error.problem == "but found another document":
            raise UsageError(
                f"{name}: line {line}: a second document begins", hint="one file is one job"
            ) from error
        raise UsageError(f"{name}: line {line}: not YAML: {error.problem}", hint=_FORM) from error
    if node is None or (node.id == "scalar" and not node.value):
        raise UsageError(f"{name}: the file is empty", hint=_FORM)
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A value as typed, None for none, and where it stands."""

    text: str | None
    key: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """The values of one field from one place; `own` are our words, `adds` may stand beside."""

    key: str
    line: int
    own: bool
    adds: bool
    values: tuple[str, ...]


class _File:
    """A job file under examination: every complaint names it, the line and the key."""

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        self._name = name
        self._params = params
        self._kinds = kinds()
        self._said: dict[str, list[_Said]] = {}
        self._later: list[Callable[[], None]] = []
        self._arena = False
        self._items: Mapping[str, Callable[[Mapping[str, _Text], int], None]] = {
            "sync[]": self._sync,
            "storages[]": self._storage,
            "scheduling.tolerations[]": self._toleration,
        }

    def read(self, root: Node) -> JobFile:
        """The command and the flags that the file says."""
        own = own_keys()
        entries = list(self._mapping(root, ""))
        self._arena = any(key == "version" for key, _node, _line in entries)
        for key, node, line in entries:
            if key in own:
                self._own(key, own[key], node, line)
            elif key in below():
                self._entry(below()[key], key, node, line)
            else:
                self._unknown(key, key, line, [*own, *below()])
        for check in self._later:
            check()
        layers = tuple(
            Layer(
                f"{self._name}, line {said[0].line}",
                tuple((field, value) for one in said for value in one.values),
            )
            for field, said in self._said.items()
            if field != COMMAND
        )
        return JobFile(command=self._value(COMMAND), layers=layers)

    # ------------------------------------------------------------ our own words

    def _own(self, key: str, field: str, node: Node, line: int) -> None:
        if self._null(node):
            return
        if field == COMMAND:
            words = (
                [self._scalar(one, f"{key}[{at}]").text or "" for at, one in enumerate(node.value)]
                if node.id == "sequence"
                else [self._scalar(node, key, "a text, or a list of words").text or ""]
            )
            self._say(field, key, line, [shell_command(words)] if words else [], own=True)
        elif field not in self._params:
            self._wrong(key, line, "is not known to this command")
        else:
            self._values(field, key, node, line, own=True)

    def _values(
        self,
        field: str,
        key: str,
        node: Node,
        line: int,
        *,
        own: bool = False,
        carried: Key | None = None,
    ) -> None:
        """The values of a flag: one, a list, or a mapping where the flag takes KEY=VALUE."""
        kind, several = self._kinds.get(field, (str, False))
        pairs = isinstance(kind, type) and issubclass(kind, KeyValue)
        paired = pairs or field == "device"
        if carried is not None and carried.adds:
            several, paired = False, False
        if not several:
            form = "true or false" if kind is bool else "one value"
            values = [self._scalar(node, key, form)]
        elif node.id == "sequence" and (own or not paired):
            values = [self._scalar(one, f"{key}[{at}]") for at, one in enumerate(node.value)]
        elif node.id == "mapping" and paired:
            values = list(self._pairs(node, key))
        else:
            wanted = "a mapping such as {A: B}" if paired else "a list such as [A, B]"
            self._wrong(key, line, f"is {self._shape(node)}, not {wanted}")
        texts = []
        for one in values:
            text = "" if one.text is None else one.text
            texts.append(carried.written(text) if carried else text)
            self._check(field, one, texts[-1])
        if field == "shell" and self._arena and texts == [""]:
            return  # arena v2: an empty shell is the default one
        self._say(field, key, line, texts, own=own, adds=bool(carried and carried.adds))

    def _pairs(self, node: Node, key: str) -> Iterator[_Text]:
        for name, value, line in self._mapping(node, key):
            here = f"{key}.{name}"
            if value.id == "mapping" and key == "envs":
                self._wrong(
                    here,
                    line,
                    "refers to a secret or a configmap, and no flag can say that",
                    hint="let the command read it, or mount a volume claim with it",
                )
            found = self._scalar(value, here)
            if "=" in name:
                self._wrong(here, line, "has a '=' in its key")
            if found.text is None:
                self._wrong(here, line, "has no value", hint='write "" for an empty one')
            yield _Text(text=f"{name}={found.text}", key=here, line=line)

    # ------------------------------------------------------------ the words of arena v2

    def _entry(self, path: str, shown: str, node: Node, line: int) -> None:
        """A key of arena's with its value; `shown` is its path with the numbers of items."""
        key = ARENA.get(path)
        if key is not None and key.refused:
            # Said even where it is empty: whoever writes it expects something of it.
            self._wrong(shown, line, "cannot be carried over", why=key.why, hint=key.hint)
        if self._null(node):
            return
        if key is None:
            (self._list if path.endswith("[]") else self._section)(path, shown, node, line)
        elif key.only:
            self._only(key, self._scalar(node, shown))
        elif key.agrees:
            said = self._scalar(node, shown)
            self._later.append(lambda: self._slots(said, key.why))
        elif key.field == COMMAND:
            self._say(COMMAND, shown, line, [self._scalar(node, shown, "a text").text or ""])
        else:
            self._values(key.field, shown, node, line, carried=key)

    def _only(self, key: Key, said: _Text) -> None:
        if (said.text or "").lower() not in [one.lower() for one in key.only]:
            self._wrong(
                said.key,
                said.line,
                f"can only be {' or '.join(key.only)}, got {said.text!r}",
                why=key.why,
                hint=key.hint,
            )

    def _keys(self, path: str, shown: str, node: Node) -> list[tuple[str, Node, int]]:
        """The keys of a mapping of arena's, none of which is missing."""
        found = list(self._mapping(node, shown))
        for name, whole in below(path).items():
            if whole in ARENA and ARENA[whole].needed and name not in [one[0] for one in found]:
                self._wrong(f"{shown}.{name}", node.start_mark.line + 1, "is missing")
        return found

    def _section(self, path: str, shown: str, node: Node, _line: int) -> None:
        known, others = below(path), ARENA.get(f"{path}.*")
        more = []
        for name, value, at in self._keys(path, shown, node):
            here = f"{shown}.{name}"
            if name in known:
                self._entry(known[name], here, value, at)
            elif others is not None and _RESOURCE.search(name):
                text = f"{name}={self._scalar(value, here).text or ''}"
                self._check(others.field, _Text(text=text, key=here, line=at), text)
                more.append((at, text))
            else:
                self._unknown(here, name, at, known)
        if others is not None and more:
            self._say(others.field, shown, more[0][0], [text for _line, text in more])

    def _list(self, path: str, shown: str, node: Node, line: int) -> None:
        if node.id != "sequence":
            self._wrong(shown, line, f"is {self._shape(node)}, not a list")
        known, one_of = below(path), ONE_OF.get(path, ())
        for at, one in enumerate(node.value):
            here = f"{shown}[{at}]"
            found: dict[str, _Text] = {}
            for name, value, where in self._keys(path, here, one):
                if name not in known:
                    self._unknown(f"{here}.{name}", name, where, known)
                if ARENA[known[name]].refused:
                    self._entry(known[name], f"{here}.{name}", value, where)
                found[name] = self._scalar(value, f"{here}.{name}")
            kinds_of = [name for name in one_of if name in found]
            if one_of and len(kinds_of) != 1:
                which = " and ".join(kinds_of) or "none"
                start = one.start_mark.line + 1
                self._wrong(here, start, f"has {which} of {', '.join(one_of)}, not one")
            self._items[path](found, one.start_mark.line + 1)

    def _sync(self, item: Mapping[str, _Text], line: int) -> None:
        """One source of code: `sync-mode`, `sync-source`, `sync-image`, and the branch."""
        mode = "git" if "git" in item else "rsync"
        source = item[mode]
        if self._value("sync_source"):
            self._wrong(source.key, source.line, "comes too", why="code comes from one place only")
        self._text_of("sync_mode", source, mode)
        self._text_of("sync_source", source)
        if "image" in item:
            self._text_of("sync_image", item["image"])
        branch = item.get("branch")
        if mode == "git":
            # arena v2's default; git-sync v3 would take master.
            text = f"{BRANCH}={'main' if branch is None else branch.text or ''}"
            if branch is not None or not self._has("env", BRANCH):
                self._later.append(lambda: self._branch(branch, text, line))
        elif branch is not None:
            self._wrong(branch.key, branch.line, "belongs to git, and this is rsync")
        path = item["local_path"]
        self._later.append(lambda: self._local_path(path))

    def _branch(self, said: _Text | None, text: str, line: int) -> None:
        if said is None:
            if not self._has("env", BRANCH):
                self._say("env", "sync", line, [text], adds=True)
            return
        if self._has("env", BRANCH):
            self._wrong(said.key, said.line, f"says again what {BRANCH} says in the environment")
        self._say("env", said.key, said.line, [text], adds=True)

    def _has(self, field: str, key: str) -> bool:
        said = self._said.get(field, [])
        return any(value.startswith(f"{key}=") for one in said for value in one.values)

    def _local_path(self, said: _Text) -> None:
        folder = self._value("working_dir") or WORKING_DIR
        wanted = f"{folder.rstrip('/')}/code"
        if (said.text or "").rstrip("/") != wanted:
            self._wrong(
                said.key,
                said.line,
                f"can only be {wanted}, got {said.text!r}",
                why="code is put into the folder code of the working directory",
                hint="set working_dir, or use that path in the command",
            )

    def _slots(self, said: _Text, why: str) -> None:
        gpus = self._value("gpus") or "0"
        slots = max(1, int(gpus))
        if said.text != str(slots):
            self._wrong(
                said.key,
                said.line,
                f"can only be {slots}, got {said.text!r}",
                why=why,
                hint="leave it out, or say as many GPUs in worker.resources",
            )

    def _storage(self, item: Mapping[str, _Text], line: int) -> None:
        """One volume: a claim, a folder of the node, or the shared memory."""
        path = item.get("mount_path")
        if "shm" in item:
            if path is not None and path.text not in {None, "/dev/shm"}:  # noqa: S108 - a mount
                self._wrong(path.key, path.line, f"can only be /dev/shm, got {path.text!r}")
            if item["shm"].text is not None:
                self._text_of("share_memory", item["shm"])
            return
        if path is None or path.text is None:
            self._wrong(f"{item['name'].key.rpartition('.')[0]}.mount_path", line, "is missing")
        one, field = (item["pvc"], "data") if "pvc" in item else (item["hostpath"], "data_dir")
        for part in (one, path):
            if ":" in (part.text or ""):
                self._wrong(part.key, part.line, "may not have a ':' in it")
        self._text_of(field, one, f"{one.text or ''}:{path.text}")

    def _toleration(self, item: Mapping[str, _Text], line: int) -> None:
        """One taint to bear, in the form of --toleration."""
        said = {name: one.text or "" for name, one in item.items()}
        where = next(iter(item.values()), None)
        if where is None:
            self._wrong("scheduling.tolerations", line, "has an entry without any key")
        operator = said.get("operator") or "Equal"
        if said.get("key"):
            text = f"{said['key']}={said.get('value', '')}:{said.get('effect', '')},{operator}"
        elif operator == "Exists" and not said.get("effect") and not said.get("value"):
            text = "all"
        else:
            self._wrong(
                where.key.rpartition(".")[0],
                line,
                "names no key",
                why="only every taint can be borne without naming one",
                hint="say {operator: Exists} alone, or name the key",
            )
        self._text_of("toleration", where, text)

    def _text_of(self, field: str, said: _Text, text: str | None = None) -> None:
        written = (said.text or "") if text is None else text
        self._check(field, said, written)
        self._say(field, said.key, said.line, [written])

    # ------------------------------------------------------------ what both have in common

    def _say(
        self,
        field: str,
        key: str,
        line: int,
        values: Sequence[str],
        *,
        own: bool = False,
        adds: bool = False,
    ) -> None:
        """Keep what a key says of a field; nothing may be said twice in different words."""
        before = self._said.setdefault(field, [])
        _kind, several = self._kinds.get(field, (str, False))
        for one in before:
            if not (adds or one.adds) and (one.own != own or not several):
                self._wrong(
                    key,
                    line,
                    f"says again what {one.key} says in line {one.line}",
                    hint="say it once",
                )
        taken = {value.partition("=")[0]: one for one in before for value in one.values}
        for value in values if adds or any(one.adds for one in before) else ():
            twice = taken.get(value.partition("=")[0])
            if twice is not None:
                self._wrong(key, line, f"says again what {twice.key} says in line {twice.line}")
        if values:
            before.append(_Said(key=key, line=line, own=own, adds=adds, values=tuple(values)))
        if not before:
            del self._said[field]

    def _value(self, field: str) -> str | None:
        said = self._said.get(field)
        return said[-1].values[-1] if said else None

    def _check(self, field: str, said: _Text, text: str) -> None:
        """Read a value as its flag reads it; the flag's own error, with the line in front."""
        param = self._params.get(field)
        if param is None:
            return
        flag = flags_of(MPIJob).get(field)
        long = spelling(field, flag) if flag else f"--{field}"
        try:
            if boolean(param):
                truth(long, text)
            else:
                param.type(text, param, None)
        except UsageError as error:
            shown = "" if said.key.partition("[")[0] == long[2:] else f"{said.key}: "
            raise UsageError(
                f"{self._name}: line {said.line}: {shown}{error.message}",
                why=error.why,
                hint=error.hint,
            ) from error

    def _mapping(self, node: Node, path: str) -> Iterator[tuple[str, Node, int]]:
        """The keys of a mapping with their values and lines; none may be there twice."""
        inside = f"{path}." if path else ""
        if node.id != "mapping":
            self._no_mapping(node, path)
        self._untagged(node, path)
        seen: dict[str, int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if name.id != "scalar":
                self._wrong(path, line, "has a key that is no text")
            key = _joined(name.value)
            if key in seen:
                self._wrong(f"{inside}{key}", line, f"is there twice; first in line {seen[key]}")
            seen[key] = line
            yield key, value, line

    def _no_mapping(self, node: Node, path: str) -> NoReturn:
        """Refuse what is no mapping; where a flag has nearly this name, that may be meant."""
        line = node.start_mark.line + 1
        near = difflib.get_close_matches(path, own_keys(), n=1) if path in below() else []
        if near and node.id == "scalar":
            self._wrong(
                path,
                line,
                f"is a mapping in arena v2, found {node.value}",
                hint=f"did you mean {near[0]}?",
            )
        self._wrong(path, line, f"is {self._shape(node)}, not a mapping")

    def _scalar(self, node: Node, key: str, wanted: str = "one value") -> _Text:
        line = node.start_mark.line + 1
        if node.id != "scalar":
            self._wrong(key, line, f"is {self._shape(node)}, not {wanted}")
        self._untagged(node, key)
        text = None if self._null(node) else _joined(node.value)
        if text is None and "[" in key.rpartition(".")[2]:
            self._wrong(key, line, "has no value", hint='write "" for an empty one')
        return _Text(text=text, key=key, line=line)

    def _untagged(self, node: Node, key: str) -> None:
        if node.tag not in _TAGS:
            self._wrong(key, node.start_mark.line + 1, f"has the tag {node.tag}, which is not read")

    @staticmethod
    def _null(node: Node) -> bool:
        """Whether nothing is said: the key stands alone, or with null."""
        return bool(node.id == "scalar" and node.tag.endswith(":null") and node.style is None)

    @staticmethod
    def _shape(node: Node) -> str:
        return {"mapping": "a mapping", "sequence": "a list", "scalar": "one value"}[node.id]

    def _unknown(self, path: str, key: str, line: int, known: Iterable[str]) -> NoReturn:
        names = list(known)
        options = {text for param in self._params.values() for text in param.opts}
        if path == key and f"--{key}" in options:
            self._wrong(
                path,
                line,
                "is not about the job",
                why="a file says what the job is, not how it is submitted",
                hint=f"say --{key} on the command line",
            )
        # Where both vocabularies have a key, the last one counts: that in whose words the rest is.
        plain = {_plain(one): one for one in (names if self._arena else reversed(names))}
        near = [_plain(key)] if _plain(key) in plain else []
        near = near or difflib.get_close_matches(_plain(key), plain, n=1)
        hint = f"did you mean {plain[near[0]]}?" if near else _FORM
        self._wrong(path, line, "is not known", hint=hint)

    def _wrong(
        self, key: str, line: int, what: str, *, why: str | None = None, hint: str | None = None
    ) -> NoReturn:
        subject = f"{key} " if key else "the file "
        raise UsageError(f"{self._name}: line {line}: {subject}{what}", why=why, hint=hint)


def _plain(key: str) -> str:
    """A key without what people mix up: capitals, dashes, underscores."""
    return re.sub(r"[-_]", "", key.lower())


def _joined(text: str) -> str:
    """A text whose characters beyond U+FFFF came as the two escapes that JSON writes them in."""
    if not any("\ud800" <= one <= "\udfff" for one in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
