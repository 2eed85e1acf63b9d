"""Files -> data: dumps that `kubectl get ... -o json` or `-o yaml` has written, fabric files.

A dump of a large cluster is hundreds of megabytes. JSON is therefore read piece by piece: only
the object at hand is ever held, so that reading costs no more memory than what is kept of it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from arena_topo.clusters import safe_yaml
from arena_topo.errors import UsageError
from arena_topo.files import STDIN, opened

Object = Mapping[str, Any]

_PIECE = 1 << 20
_SPACE = " \t\r\n"
_NO_OBJECT = "this is no Kubernetes object: it has neither kind nor items"
_MOST_BYTES, _MOST_VALUES = 256 << 10, 2000
"""What a small file may have: levels of a network are few."""
_MOST_YAML = 256 << 20
"""Characters of YAML, which is held whole; that many take minutes to read."""
_LONGEST_WORD = 16
"""Characters within which JSON decides what a word is: `false`, `\\ud83d\\ude00`, `-Infinity`."""

_LOST = "what else it would say is not known, so GPUs that look free may be in use"
"""What becomes of a dump that is cut off."""

_SMALL = "give a small text file in YAML or JSON; docs/how-it-works.md shows one"
_HINT = (
    "make one with: kubectl get nodes,pods,mpijobs -A -o json > state.json"
    " && kubectl get configmaps -A -l ack.node.gpu.schedule=topology -o json"
    " > topology.json"
)


@dataclass(frozen=True, slots=True)
class Damage:
    """Stands among the objects of a dump where it is cut off or makes no sense, and says so."""

    text: str


def read(paths: Sequence[str]) -> Iterator[Object | Damage]:
    """All objects of some dumps, one after another; `-` is standard input.

    JSON or YAML, in UTF-8 or, with a byte order mark, in UTF-16; several documents in one file;
    lists of one kind or mixed; single objects. An object of a typed list (NodeList) gets the kind
    that the list implies. What is cut off or makes no sense ends its file with a Damage that names
    the file and the position; the other files go on. UsageError for a file that cannot be opened,
    and where no file has any object, for the first that is damaged.
    """
    some = False
    first: UsageError | None = None
    damages: list[Damage] = []
    for path in paths:
        with _opened(path) as file:
            try:
                for one in _file(file, _name(path)):
                    some = True
                    yield one
            except UsageError as error:
                first = first or error
                damages.append(Damage(f"{error.message}; {_LOST}"))
    if first is not None and not some:
        raise first
    yield from damages


def document(path: str) -> tuple[Any, str]:
    """The one document in a small YAML or JSON file, and the name of the file for people.

    `-` is standard input. UsageError names the file and the position of what makes no sense.
    """
    import yaml

    name = _name(path)
    with _opened(path, hint=None) as file:
        data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{name}: is larger than {_MOST_BYTES >> 10} KiB", hint=_SMALL)
        try:
            text = data.decode(encoding(data))
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{name}: is not UTF-8 text",
                hint=_SMALL,
            ) from error
        # JSON is almost YAML, which wants no tabs and takes 1e2 for a word.
        with suppress(ValueError, RecursionError):
            return json.loads(text), name
        try:
            return safe_yaml.document(text, most=_MOST_VALUES), name
        except safe_yaml.Excess as error:
            raise UsageError(f"{name}: {error}", hint=_SMALL) from error
        except RecursionError as error:
            raise UsageError(f"{name}: is nested too deeply", hint=_SMALL) from error
        except yaml.YAMLError as error:
            raise _not_yaml(name, error, hint=_SMALL) from error


def encoding(start: bytes) -> str:
    """The encoding of a text that begins so: UTF-8, or what its byte order mark says.

    Windows PowerShell writes UTF-16 with such a mark (about_Character_Encoding, `>` before
    version 6).
    """
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _name(path: str) -> str:
    return "standard input" if path == STDIN else path


@contextmanager
def _opened(path: str, *, hint: str | None = _HINT) -> Iterator[IO[bytes]]:
    try:
        with opened(path) as file:
            yield file
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{_name(path)}: cannot be read: {why}", hint=hint) from error


def _file(file: IO[bytes], name: str) -> Iterator[Object]:
    text = _Text(file, name)
    first = text.peek()
    if first == "":
        raise UsageError(f"{name}: the dump is empty", hint=_HINT)
    if first in "{[":
        while text.peek():
            yield from _document(text)
    else:
        yield from _yaml(text)


class _Text:
    """Text that is decoded as it is needed, and forgets what has been read."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._decode: codecs.IncrementalDecoder | None = None
        self._json = json.JSONDecoder()
        self.name = name
        self._text = ""
        self._at = 0
        self._lines = 1
        self._gone = 0
        self._column = 0
        self._ended = False

    def _more(self) -> bool:
        """Read another piece; False at the end."""
        if self._ended:
            return False
        try:
            raw = self._file.read(_PIECE)
            if self._decode is None:
                # A mark is two bytes, which a pipe may hand over one by one.
                raw += self._file.read(1) if len(raw) == 1 else b""
                self._decode = codecs.getincrementaldecoder(encoding(raw))()
            more = self._decode.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise self.fault("is not UTF-8 text") from error
        if "\0" in more:
            raise self.fault("is not text: it has NUL characters")
        if raw:
            self._lines += self._text.count("\n", 0, self._at)
            newline = self._text.rfind("\n", 0, self._at)
            self._column = self._at - newline - 1 if newline >= 0 else self._column + self._at
            self._gone += self._at
            self._text = self._text[self._at :]
            self._at = 0
        # At the end nothing moves: a caller may still hold a position.
        self._text += more
        self._ended = not raw
        return True

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> str:
        """Step over one of these characters."""
        found = self.peek()
        if not found:
            raise self.fault("ends here: the file is cut off")
        if found not in expected:
            raise self.fault(f"expected {' or '.join(expected)}, got {found!r}")
        self._at += 1
        return found

    def value(self) -> Any:
        """The JSON value that starts here."""
        wanted = 0
        while True:
            self.peek()
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # The value may only be cut by the end of the piece. To read on until it has
                # doubled keeps one very large value from being parsed once per piece.
                wanted = max(2 * wanted, _PIECE)
                if _is_certain(error, len(self._text)) or not self._grow(wanted):
                    raise self._nonsense(error) from error
                continue
            # A number at the end of a piece may go on in the next, with `.5` or `e-3`.
            near = len(self._text) - end < len("e-3")
            if near and isinstance(value, (int, float)) and self._grow(_PIECE):
                continue
            self._at = end
            return value

    def _grow(self, size: int) -> bool:
        before = len(self._text) - self._at
        while len(self._text) - self._at < before + size and self._more():
            pass
        return len(self._text) - self._at > before

    @property
    def end(self) -> int:
        """Where the text ends that has been read so far; the whole, after `rest`."""
        return len(self._text)

    def rest(self) -> str:
        """All that has not been read."""
        while self._more():
            if len(self._text) > _MOST_YAML:
                raise self.fault(
                    f"YAML of more than {_MOST_YAML >> 20} MB is not read; write it with -o json"
                )
        return self._text[self._at :]

    def _nonsense(self, error: Exception) -> UsageError:
        if isinstance(error, json.JSONDecodeError):
            start, self._at = self._at, min(error.pos, len(self._text))
            # An unterminated string is reported where it starts, though the end is what is missing.
            if error.msg.startswith("Unterminated string") or not self._text[self._at :].strip():
                return self.fault("the file is cut off in the object that starts here", at=start)
            return self.fault(f"not JSON: {error.msg}")
        if isinstance(error, ValueError):
            return self.fault("a number has too many digits in what starts here")
        return self.fault("is nested too deeply")

    def fault(self, problem: str, *, at: int | None = None) -> UsageError:
        """An error with the file and the position in it."""
        at = self._at if at is None else at
        line = self._lines + self._text.count("\n", 0, at)
        newline = self._text.rfind("\n", 0, at)
        column = at - newline if newline >= 0 else self._column + at + 1
        return UsageError(
            f"{self.name}: line {line}, column {column} (character {self._gone + at}): {problem}",
            hint=_HINT,
        )


def _is_certain(error: Exception, length: int) -> bool:
    """Whether text of this length stays nonsense, however it goes on."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    unfinished = error.msg.startswith("Unterminated string")
    return not unfinished and error.pos + _LONGEST_WORD < length


def _document(text: _Text) -> Iterator[Object]:
    if text.peek() == "[":
        for one in _elements(text):
            yield from _objects(one, None)
        return
    if text.peek() != "{":
        raise text.fault(f"expected another object, got {text.peek()!r}")
    yield from _members(text)


def _members(text: _Text) -> Iterator[Object]:
    """One top-level object; the items of a list are handed on as they come."""
    text.take("{")
    head: dict[str, Any] = {}
    nameless: list[Object] = []
    streamed = False
    while text.peek() != "}":
        if head or streamed:
            text.take(",")
        key = text.value()
        text.take(":")
        if key == "items" and text.peek() == "[":
            streamed = True
            for one in _elements(text):
                # A typed list says its kind once; kubectl writes it after the items.
                if isinstance(one, dict) and "kind" not in one and "kind" not in head:
                    nameless.append(one)
                else:
                    yield from _objects(one, head.get("kind"))
        else:
            head[str(key)] = text.value()
    text.take("}")
    if not streamed:
        if "kind" not in head and "items" not in head:
            raise text.fault(_NO_OBJECT)
        yield from _objects(head, None)
    for one in nameless:
        yield from _objects(one, head.get("kind"))


def _elements(text: _Text) -> Iterator[Any]:
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        yield text.value()
        if text.take(",]") == "]":
            return


def _objects(one: Any, list_kind: Any) -> Iterator[Object]:
    """The objects in one value: itself, or its items if it is a list; nonsense is nothing."""
    if not isinstance(one, dict):
        return
    if str(one.get("kind", "List" if "items" in one else "")).endswith("List"):
        items = one.get("items")
        for item in items if isinstance(items, list) else ():
            yield from _objects(item, one.get("kind"))
        return
    if "kind" not in one and isinstance(list_kind, str) and list_kind != "List":
        one["kind"] = list_kind.removesuffix("List")
    if "kind" in one:
        yield one


def _yaml(text: _Text) -> Iterator[Object]:
    import yaml

    whole = text.rest()
    try:
        yield from _yaml_objects(text, whole)
    except safe_yaml.Excess as error:
        raise UsageError(f"{text.name}: {error}", hint=_HINT) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            problem = getattr(error, "problem", None) or str(error)
            raise text.fault(f"not YAML: {problem}") from error
        yield from _yaml_before(text, whole, mark.line)
        raise _not_yaml(text.name, error, hint=_HINT) from error


def _yaml_objects(text: _Text, whole: str, *, cut: bool = False) -> Iterator[Object]:
    """The objects of YAML; of a list that is `cut` all items, else all but the doubtful last."""
    for document in safe_yaml.documents(whole):
        found = document if isinstance(document, list) else [document]
        for one in found:
            if one is not None and not (
                isinstance(one, dict) and ("kind" in one or "items" in one)
            ):
                raise text.fault(_NO_OBJECT)
            if isinstance(one, dict) and "kind" not in one:
                # kubectl sorts keys, so `kind: List` comes after the items.
                items = one["items"] if isinstance(one["items"], list) else []
                for item in items if cut else items[:-1]:
                    yield from _objects(item, None)
                if not cut:
                    raise text.fault("the file is cut off: its list says no kind", at=text.end)
                continue
            yield from _objects(one, None)


def _yaml_before(text: _Text, whole: str, line: int) -> Iterator[Object]:
    """The objects of a list that end before the item in which YAML makes no sense.

    Documents before the one that is cut have been handed on.
    """
    import yaml

    lines = whole.splitlines(keepends=True)
    start = item = 0
    for at, one in enumerate(lines[: line + 1]):
        if one.rstrip() == "---":
            start = at + 1
        elif one.startswith("- "):
            item = at
    if item > start:
        with suppress(yaml.YAMLError, safe_yaml.Excess, UsageError):
            yield from _yaml_objects(text, "".join(lines[start:item]), cut=True)


def _not_yaml(name: str, error: Exception, *, hint: str) -> UsageError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return UsageError(f"{name}: {place}not YAML: {problem}", hint=hint)
