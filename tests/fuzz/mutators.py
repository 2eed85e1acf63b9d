"""Mutations of text and of values: wrong types, sizes, depths, characters, and cuts.

A value is changed along one path, and shares all else with its sample, so a mutation costs little
however large the sample is. What no encoder of Python writes (an integer of thousands of digits,
100,000 open brackets) stands in a value as a text `@digits:5000@`, which `encoded` replaces.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[Any, ...]

MOST = 1 << 20
"""Bytes that a mutated text never exceeds, the bound that the program has for job files."""

INTEGERS = (
    *(0, -1, 1, 2, 7, 8, 9, 64, 128, 1024, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -(2**63)),
    *(10**18, 10**30, 10**300),
)
FLOATS = (float("nan"), float("inf"), float("-inf"), 1e308, -0.0, 1e-320, 0.1)
TEXTS = (
    *("", " ", "\t", "\n", "\r\n", "a\nb", "\x00", "\x7f", "\x9b31m", "\ufeff", "\u2028", "\ufffe"),
    # No style that the program uses itself.
    *("\x1b[5;45mX\x1b[0m", "\x1b]0;TITLE\x07", "\u202eevil", "\ud800", "\udcff", "\U0010ffff"),
    *("a" * 300, "a" * 5000, "9" * 20, "9" * 5000, "0" * 400 + "1", "-1", "1e999", "NaN", "0x10"),
    *(
        "\u0663",
        "\u00b2",
        "\uff11\uff12",
        "é",
        "\U0001d4b3",
        "\U0001f600",
        "null",
        "true",
        "~",
        "no",
        "1_000",
        "0b",
        "0b_",
    ),
    *("2020-13-45", "190:20:30", "../../etc/passwd", "/etc/passwd", "/dev/zero", "-", "--", "="),
    *(":", ",", "<script>alert(1)</script>", "{{7*7}}", "${IFS}", "$(id)", "`id`", "'; ls #"),
    *("%s%n", "0,1,2,3", "node-0/0,1;node-1/2", "&a", "*a", "!!python/object/apply:os.system [id]"),
    *("<<", "?", "|", ">", "@", "%"),
)
WRITTEN = (
    "@digits:30@",
    "@digits:5000@",
    "@deep:50@",
    "@deep:1100@",
    "@deep:100000@",
    "@deepmap:200@",
    "@deepmap:20000@",
)
"""What `encoded` replaces."""

FRAGMENTS = (
    *(one.encode("utf-8", "surrogatepass") for one in TEXTS),
    *(b"\xff", b"\xfe\xff", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\x00" * 100),
    *(b"[" * 3000, b'{"a":' * 3000, b"(" * 2000, b"- " * 3000, b"<a>" * 200, b"9" * 6000),
    *(b"1e" + b"9" * 400, b"\r", b"\x0c", b"\x1a", b"#", b'"', b"'", b"]", b"}", b"X"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z_.-]{2,}")
_WRITTEN = re.compile(rb"""['"]@(digits|deepmap|deep):(\d{1,9})@['"]""")

ALIAS_BOMB = b"bomb:\n- &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"- &%c [%s]\n" % (at + 1, b",".join([b"*%c" % at] * 9)) for at in range(ord("a"), ord("i"))
)
"""Nine levels of YAML aliases: 9^10 texts to whoever copies or prints them."""


# ---------------------------------------------------------------- text


def text(
    rng: random.Random,
    data: bytes,
    others: Sequence[bytes] = (),
    fragments: Sequence[bytes] = FRAGMENTS,
) -> bytes:
    """A text with one change or some; `others` are texts of its kind, to take pieces from."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 10))):
        data = rng.choice(_CHANGES)(rng, data, others or (data,), fragments)[:MOST]
    return data


_Change = Callable[[random.Random, bytes, Sequence[bytes], Sequence[bytes]], bytes]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 1, 2, 4, 8, 16, 64, 256)))


def _flip(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    start, _ = _span(rng, data)
    changed = bytes([data[start] ^ 1 << rng.randrange(8)]) if start < len(data) else b"\xff"
    return data[:start] + changed + data[start + 1 :]


def _remove(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _insert(rng: random.Random, data: bytes, _others: object, fragments: Sequence[bytes]) -> bytes:
    start, _ = _span(rng, data)
    return data[:start] + rng.choice(fragments) + data[start:]


def _overwrite(
    rng: random.Random, data: bytes, _others: object, fragments: Sequence[bytes]
) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + rng.choice(fragments) + data[end:]


def _cut_end(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _cut_start(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    return data[rng.randrange(len(data) + 1) :]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes], _fragments: object) -> bytes:
    start, end = _span(rng, data)
    other = rng.choice(others)
    at = rng.randrange(len(other) + 1)
    return data[:start] + other[at : at + rng.choice((8, 64, 512))] + data[end:]


def _append(rng: random.Random, data: bytes, others: Sequence[bytes], _fragments: object) -> bytes:
    return data + rng.choice(others)


def _lines(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        case 2:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        case 3:
            lines[at:] = reversed(lines[at:])
        case _:
            lines[at] = lines[at][:2000] * rng.choice((2, 10, 100))
    return b"\n".join(lines)


def _number(rng: random.Random, data: bytes, _others: object, _fragments: object) -> bytes:
    found = list(_NUMBER.finditer(data, 0, 20_000))
    if not found:
        return data
    one = rng.choice(found)
    new = b"9" * 5000 if rng.random() < 0.03 else b"%a" % rng.choice(INTEGERS + FLOATS)
    return data[: one.start()] + new + data[one.end() :]


def _word(rng: random.Random, data: bytes, _others: object, fragments: Sequence[bytes]) -> bytes:
    found = list(_WORD.finditer(data, 0, 20_000))
    if not found:
        return data
    one = rng.choice(found)
    new = rng.choice(found)[0] if rng.random() < 0.5 else rng.choice(fragments)
    return data[: one.start()] + new + data[one.end() :]


_CHANGES: tuple[_Change, ...] = (
    *(_flip, _remove, _repeat, _insert, _overwrite, _cut_end, _cut_start, _splice, _append),
    *(_lines, _number, _word),
)


# ---------------------------------------------------------------- values


class _Embedded:
    """A step of a path: into the JSON that a text holds, as annotations and ConfigMaps have it."""

    __slots__ = ()


_EMBEDDED = _Embedded()
_GONE = object()


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of JSON or YAML, and the paths to all that is in it."""

    value: Any
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, value: Any) -> Sample:
        """The sample of a value, which nobody may change from now on."""
        return cls(value, tuple(_paths(value)))


def _paths(value: Any) -> list[Path]:
    found: list[Path] = []
    left: list[tuple[Path, Any]] = [((), value)]
    while left:
        path, one = left.pop()
        found.append(path)
        if isinstance(one, dict):
            left += [((*path, key), inner) for key, inner in one.items()]
        elif isinstance(one, list):
            left += [((*path, at), inner) for at, inner in enumerate(one)]
        elif isinstance(one, str) and one[:1] in {"{", "["}:
            try:
                left += [((*path, _EMBEDDED), json.loads(one))]
            except ValueError:
                continue
    return found


def value(rng: random.Random, sample: Sample) -> Any:
    """The value of a sample with one change or some."""
    changed = sample.value
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
        path = rng.choice(sample.paths)
        if not path:
            if rng.random() < 0.1:
                return hostile(rng)
            continue
        changed = _changed(rng, changed, path, sample)
    return changed


def hostile(rng: random.Random, depth: int = 0) -> Any:
    """Any value but the one that was expected."""
    kind = rng.choice(_HOSTILE)
    if kind is list:
        return [] if depth > 2 else [hostile(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind is dict:
        keys = rng.choices((*TEXTS, "name", "kind", "metadata"), k=rng.randrange(3))
        return {} if depth > 2 else {key: hostile(rng, depth + 1) for key in keys}
    return rng.choice(kind)


_HOSTILE: tuple[Any, ...] = (
    *(INTEGERS, INTEGERS, FLOATS, FLOATS, TEXTS, TEXTS, TEXTS, TEXTS, (None,), (None,)),
    *((True, False), list, list, dict, dict, WRITTEN),
)


def _changed(rng: random.Random, at: Any, path: Path, sample: Sample) -> Any:
    """`at` with a change at the end of a path; the same where an earlier change took that away."""
    step, rest = path[0], path[1:]
    if step is _EMBEDDED:
        if not isinstance(at, str):
            return at
        try:
            inner = json.loads(at)
        except (ValueError, RecursionError):
            return at
        inner = _changed(rng, inner, rest, sample) if rest else hostile(rng)
        return encoded(inner).decode("utf-8", "surrogatepass")
    if isinstance(at, dict) and step in at:
        copy: Any = dict(at)
    elif isinstance(at, list) and isinstance(step, int) and step < len(at):
        copy = list(at)
    else:
        return at
    if rest:
        copy[step] = _changed(rng, copy[step], rest, sample)
        return copy
    new = _instead(rng, copy, step, sample)
    if new is _GONE:
        del copy[step]
    else:
        copy[step] = new
    return copy


def _instead(rng: random.Random, at: Any, step: Any, sample: Sample) -> Any:  # noqa: PLR0911
    """What comes to a place instead of what is there; neighbours may change, too."""
    old = at[step]
    match rng.randrange(9):
        case 0:
            return _GONE
        case 1 | 2:
            return hostile(rng)
        case 3:
            return _found(sample.value, rng.choice(sample.paths))
        case 4 if isinstance(at, dict):
            at[rng.choice(TEXTS) if rng.random() < 0.7 else f"{step}x"] = old
            return _GONE
        case 5 if isinstance(at, list):
            at.extend([old] * rng.choice((1, 1, 2, 300)))
            return old
        case 6:
            return rng.choice(([old], {"a": old}, [old, old], {"name": old}))
        case _:
            return _tweaked(rng, old)


def _tweaked(rng: random.Random, old: Any) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return rng.choice((*INTEGERS, *FLOATS, str(old), "@digits:5000@"))
    if isinstance(old, str):
        more = rng.choice(TEXTS)
        cut = rng.randrange(len(old) + 1)
        return rng.choice((old + more, more + old, old[:cut], old[:cut] + more + old[cut:]))
    return hostile(rng)


def _found(at: Any, path: Path) -> Any:
    for step in path:
        at = json.loads(at) if step is _EMBEDDED else at[step]
    return at


def encoded(given: Any, rng: random.Random | None = None) -> bytes:
    """A value as JSON; with `rng`, one time in five with characters as they are."""
    plain = rng is not None and rng.random() < 0.2
    try:
        raw = json.dumps(given, ensure_ascii=not plain).encode("utf-8", "surrogatepass")
    except RecursionError:
        raw = b'"@deep:4000@"'
    return _WRITTEN.sub(_write, raw)[:MOST]


def yaml(given: Any, rng: random.Random) -> bytes:
    """A value as YAML in one of its styles, now and then with an alias bomb; else as JSON."""
    import yaml as library  # noqa: PLC0415 - the function has the better right to the name

    dumper = getattr(library, "CSafeDumper", library.SafeDumper)
    flow = rng.choice((False, False, None, True))
    try:
        raw: bytes = library.dump(
            given, Dumper=dumper, allow_unicode=True, default_flow_style=flow
        ).encode("utf-8", "surrogatepass")
    except (library.YAMLError, RecursionError, UnicodeEncodeError, ValueError):
        return encoded(given, rng)
    raw = _WRITTEN.sub(_write, raw)
    if rng.random() < 0.01 and flow is not True and isinstance(given, dict) and given:
        chosen = json.dumps(str(rng.choice(list(given)))).encode()
        raw = ALIAS_BOMB + raw + chosen + b": *i\n"
    return raw[:MOST]


def _write(found: re.Match[bytes]) -> bytes:
    # Digits beside the mark, which another mutation put there, make it a number of any size.
    count = min(int(found[2]), MOST)
    if found[1] == b"digits":
        return b"9" * count
    opened, closed = (b"[", b"]") if found[1] == b"deep" else (b'{"a": ', b"}")
    return opened * count + b"1" + closed * count
