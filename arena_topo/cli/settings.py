"""Where values come from: the line, the environment, profiles, files; the firmest source wins.

    flags on the line > the hook of a command > ARENA_TOPO_* > ARENA_* > profile
      > the user's file > the site's file > arena's own file

Files of settings are TOML; their keys are flags without the dashes in front, `[submit]` has those
of jobs, `[profile.NAME]` and `[profile.NAME.submit]` count when that profile is asked for: by
--profile, ARENA_TOPO_PROFILE, or `default-profile` in a file.

    user    $XDG_CONFIG_HOME/arena-topo/config.toml, else ~/.config/arena-topo/config.toml
    site    /etc/arena-topo/config.toml
    arena   the file of ARENA_CONFIG if it is there, else ~/.arena/config: lines of key=value
            (arena v0.15.5, pkg/apis/config/arenaconfig.go and pkg/util/config/loader.go)

ARENA_TOPO_SETTINGS names other files than the user's and the site's, as PATH does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arena_topo.argv import truth
from arena_topo.cli import reading
from arena_topo.cli.options import Globals, boolean
from arena_topo.errors import UsageError
from arena_topo.flag import BY_KEY, Flag, flags_of, spelling

LINE = "the command line"
"""The origin of what was typed."""

SITE = "/etc/arena-topo/config.toml"

SECTION = "submit"
"""The table of what only jobs have."""

_PROFILE = "profile"

_DEFAULT = "default-profile"
"""The key that chooses a profile; TOML lets no key be a text and a table at once."""

_VARIABLE = "ARENA_TOPO_SETTINGS"

_ARENAS = {
    "namespace": "namespace",
    "imagePullSecrets": "image_pull_secret",
    "prometheus_address": "prometheus_address",
}
"""Keys of arena's file -> fields. Its other keys are for arena alone."""

_SAME = {"config": "kubeconfig"}
"""Fields that are another's second name."""

_MOST_DOTS = 1000
"""In a line of a file."""

_SOMEWHERE_ELSE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source says: (field, text as typed), in order. `origin` names it to a person."""

    origin: str
    given: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One value that counts, and where it comes from."""

    name: str
    text: str
    origin: str


in_force: ContextVar[tuple[Layer, ...]] = ContextVar("in_force", default=())
"""The layers of the command that is running, firmest first."""


def merged(params: Iterable[Any], layers: Sequence[Layer]) -> tuple[Value, ...]:
    """What counts of layers that are given firmest first, in the order of a command line.

    An option that takes one value has that of the firmest layer that gives it. A repeatable one has
    all values of that layer, except that KEY=VALUE flags are merged by key.
    """
    known = {param.name: bool(getattr(param, "multiple", False)) for param in params}
    found: list[Value] = []
    settled: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for layer in layers:
        fresh = [
            Value(name, text, layer.origin)
            for name, text in ((_SAME.get(name, name), text) for name, text in layer.given)
            if name in known
            and name not in settled
            and (name not in BY_KEY or (name, text.partition("=")[0]) not in keys)
        ]
        found[:0] = fresh
        for one in fresh:
            if one.name in BY_KEY:
                keys.add((one.name, one.text.partition("=")[0]))
            else:
                settled.add(one.name)
    return tuple(found)


def agreed(values: Sequence[Value], flags: Mapping[str, tuple[Flag, object]]) -> tuple[Value, ...]:
    """The values without those that a firmer source contradicts (`Flag.excludes`).

    Contradictions of one source stay, for who checks the line. `flags` are those of the command by
    field, with their defaults.
    """
    found: list[Value] = []
    for one in reversed(values):
        if not any(
            other.origin != one.origin
            and (_excludes(one, other, flags) or _excludes(other, one, flags))
            for other in found
        ):
            found.insert(0, one)
    return tuple(found)


def _excludes(one: Value, other: Value, flags: Mapping[str, tuple[Flag, object]]) -> bool:
    if one.name not in flags or other.name not in flags:
        return False
    if any(each.text in {"false", str(flags[each.name][1])} for each in (one, other)):
        return False
    word = spelling(other.name, flags[other.name][0])
    return not {word, f"{word} {other.text}"}.isdisjoint(flags[one.name][0].excludes)


def from_environment(
    params: Iterable[Any], variables: Mapping[str, tuple[str, ...]], given: Container[str] = ()
) -> Iterator[Layer]:
    """What variables say, a layer for each: the first of a field's variables that is not empty.

    UsageError names one that makes no sense, unless its field is `given` anyway.
    """
    for param in params:
        for variable in variables.get(param.name, ()) if param.name not in given else ():
            text = os.environ.get(variable, "")
            if text:
                value = truth(variable, text) if boolean(param) else text
                yield Layer(variable, ((param.name, value),))
                break


# ---------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class File:
    """A file of settings: where it is, what it says, and whether it is there (None: broken)."""

    path: str
    says: Mapping[str, Any]
    there: bool | None = True
    site: bool = False

    def table(self, *names: str) -> Mapping[str, Any]:
        """A table by the path of its keys, empty if there is none; UsageError if it is a value."""
        found = self.says
        for depth, name in enumerate(names):
            found = found.get(name, {})
            if not isinstance(found, Mapping):
                named = ".".join(names[: depth + 1])
                chooses = f"{_DEFAULT} chooses one; " if named == _PROFILE else ""
                starts = f"[{named}.NAME]" if named == _PROFILE else f"[{named}]"
                raise UsageError(
                    f"{self.path}: {named} is no table", hint=f"{chooses}{starts} starts one"
                )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all files say to a command: those of arena-topo, firmest first, and arena's own.

    `profile` is its name and who chose it, ("", "") for none. `layers` are what the files say of
    the options of the command, firmest first, without what is wrong in them (`problems`).
    """

    files: tuple[File, ...]
    arena: File
    profile: tuple[str, str]
    layers: tuple[Layer, ...]
    problems: tuple[UsageError, ...]
    warnings: tuple[str, ...]

    @property
    def everything(self) -> tuple[File, ...]:
        """All files that were looked for."""
        return (*self.files, self.arena)


def read(
    params: Sequence[Any] = (),
    *,
    profile: tuple[str, str] = ("", ""),
    known: Callable[[], Iterable[Any]] | None = None,
    of_jobs: bool = True,
    values: bool = False,
) -> Settings:
    """Read the files that are there, for a command with these options.

    `profile` is the one asked for, and who asks; else the files choose it. `known` are all options
    that `[submit]` may have, asked for only where it has one that is not among `params`; without it
    its keys are not looked at. Only where `params` are `of_jobs` does that table say something of
    them. With `values` each value is read as its option reads it.

    A home folder that is not there, or that may not be looked into, has no files.
    """
    reading = _Reading()
    files, arena = reading.files(), reading.arena()
    chosen = reading.profile(files, *profile)
    layers = [*reading.layers(files, chosen[0], params, known, of_jobs=of_jobs)]
    layers += _of_arena(arena, {param.name for param in params})
    if values:
        layers = [reading.sound(one, params) for one in layers]
    return Settings(
        files=files,
        arena=arena,
        profile=chosen,
        layers=tuple(layers),
        problems=tuple(reading.problems),
        warnings=tuple(reading.warnings),
    )


class _Reading:
    """Reads files of settings; what is wrong is left out and noted, and the rest goes on."""

    def __init__(self) -> None:
        self.problems: list[UsageError] = []
        self.warnings: list[str] = []

    def __enter__(self) -> None:
        """Begin a part that may be wrong."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, UsageError):
            self.problems.append(error)
        return isinstance(error, UsageError)

    def files(self) -> tuple[File, ...]:
        """The files of arena-topo, firmest first."""
        named = os.environ.get(_VARIABLE)
        if named is None:
            users = [self._file(path, _toml) for path in _users()]
            return (*users, replace(self._file(SITE, _toml), site=True))
        paths = [path for path in named.split(os.pathsep) if path]
        return tuple(self._file(path, _toml, needed=True) for path in paths)

    def arena(self) -> File:
        """Arena's own file."""
        path = os.environ.get("ARENA_CONFIG", "")
        if path:
            found = self._file(path, _lines)
            if found.there:
                return found
        return self._file("~/.arena/config", _lines)

    def _file(
        self,
        path: str,
        understood: Callable[[str, bytes], Mapping[str, Any]],
        *,
        needed: bool = False,
    ) -> File:
        with self:
            return _read(path, understood, needed=needed)
        return File(at_home(path), {}, there=None)

    def _table(self, file: File, *names: str) -> Mapping[str, Any]:
        with self:
            return file.table(*names)
        return {}

    def profile(self, files: Sequence[File], name: str, origin: str) -> tuple[str, str]:
        """The name of the profile and who chose it; ("", "") for none, or one that is not there."""
        for one in files:
            if not name and _DEFAULT in one.says:
                with self:
                    name, origin = _text(one, _DEFAULT, one.says[_DEFAULT]), one.path
        known = sorted({name for one in files for name in self._table(one, _PROFILE)})
        if not name or name in known:
            return name, origin
        where = (nearest(name, known), set_in(_PROFILE, origin))
        self.problems.append(
            UsageError(
                f"there is no profile {name!r}",
                why=f"there are: {', '.join(known)}" if known else "no file of settings has one",
                hint="; ".join(filter(None, where)) or None,
                flag="--profile",
            )
        )
        return "", ""

    def layers(
        self,
        files: Sequence[File],
        profile: str,
        params: Sequence[Any],
        known: Callable[[], Iterable[Any]] | None,
        *,
        of_jobs: bool,
    ) -> Iterator[Layer]:
        """What the files of arena-topo say of these options, firmest first."""
        named = _options(params) if of_jobs else {}
        for where in ((_PROFILE, profile), ()) if profile else ((),):
            for one in files:
                table = self._table(one, *where, SECTION)
                if known is not None:
                    yield from self._layer(one, (*where, SECTION), table, named, known)
                everywhere = {
                    key: value
                    for key, value in self._table(one, *where).items()
                    if key not in {SECTION, *(() if where else (_PROFILE, _DEFAULT))}
                }
                yield from self._layer(one, where, everywhere, _options(params, _GLOBAL), None)

    def _layer(
        self,
        file: File,
        where: tuple[str, ...],
        table: Mapping[str, Any],
        options: Mapping[str, Any],
        known: Callable[[], Iterable[Any]] | None,
    ) -> Iterator[Layer]:
        """The layer of one table; none where it says nothing of these options."""
        origin = f"{file.path} [{'.'.join(where)}]" if where else file.path
        given: list[tuple[str, str]] = []
        for key, value in table.items():
            param = options.get(key)
            if param is None:
                others = {} if known is None else _options(known())
                if key not in others:
                    wrong = _unknown(origin, key, {**options, **others}, known)
                    if file.site:
                        # A slip in the site's file is not to stop everybody.
                        self.warnings.append(f"{wrong.message}, which is left out; {wrong.hint}")
                    else:
                        self.problems.append(wrong)
                continue
            with self:
                given += [(param.name, text) for text in _texts(origin, key, value, param)]
        if given:
            yield Layer(origin, tuple(given))

    def sound(self, layer: Layer, params: Iterable[Any]) -> Layer:
        """What of a layer its options can read."""
        known = {param.name: param for param in params}
        given = []
        for field, text in layer.given:
            param = known.get(field)
            if param is None or boolean(param):
                given.append((field, text))
                continue
            try:
                param.type(text, param, None)
                given.append((field, text))
            except UsageError as error:
                long = next(one for one in param.opts if one.startswith("--")).removeprefix("--")
                where = (error.hint, set_in(long, layer.origin))
                error.hint = "; ".join(filter(None, where))
                self.problems.append(error)
        return Layer(layer.origin, tuple(given))


def _of_arena(arena: File, fields: set[str]) -> Iterator[Layer]:
    given = tuple(
        (_ARENAS[key], text.strip())
        for key, value in arena.says.items()
        if _ARENAS.get(key) in fields
        for text in (value.split(",") if key == "imagePullSecrets" else (value,))
        if text.strip()
    )
    if given:
        yield Layer(arena.path, given)


def places() -> list[str]:
    """Where files of settings may be, arena's own among them."""
    named = os.environ.get(_VARIABLE)
    ours = [*_users(), SITE] if named is None else [one for one in named.split(os.pathsep) if one]
    return [*ours, *filter(None, (os.environ.get("ARENA_CONFIG"), "~/.arena/config"))]


def _users() -> Iterator[str]:
    """Where the user's file is; nowhere without a home folder."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore relative paths
        base = Path(at_home("~/.config"))
    if base.is_absolute():
        yield str(base / "arena-topo" / "config.toml")


def at_home(text: str) -> str:
    """A path with ~ filled in; it stays as it is where the user has no home folder."""
    return os.path.expanduser(text)  # noqa: PTH111 - Path's own raises an error there


def _read(
    path: str, understood: Callable[[str, bytes], Mapping[str, Any]], *, needed: bool
) -> File:
    path = at_home(path)
    try:
        data = reading.regular(path)
    except OSError as error:
        hidden = error.errno == errno.EACCES and not os.path.lexists(path)
        if not needed and (hidden or error.errno in _SOMEWHERE_ELSE):
            return File(path, {}, there=False)
        raise UsageError(
            f"{path}: cannot be read",
            why=error.strerror,
            hint=f"it is named in {_VARIABLE}" if needed else None,
        ) from error
    return File(path, understood(path, data))


def _toml(path: str, data: bytes) -> Mapping[str, Any]:
    import tomllib  # noqa: PLC0415 - only where there is a file

    # A dotted key costs the square of its dots.
    if any(line.count(b".") > _MOST_DOTS for line in data.splitlines()):
        raise UsageError(f"{path}: is nested too deeply")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is no text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path}: is no TOML",
            why=str(error),
            hint='a setting is a line such as context = "lab"',
        ) from error
    except RecursionError as error:
        raise UsageError(f"{path}: is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{path}: a number has too many digits") from error


def _lines(path: str, data: bytes) -> Mapping[str, str]:
    """Arena's format, read as arena reads it; what is a comment has no key that counts."""
    del path
    found = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip().strip("\"'")
    return found


# ---------------------------------------------------------------- keys and values


def _options(params: Iterable[Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Options by the key that sets them."""
    return {
        text.removeprefix("--"): param
        for param in params
        if param.param_type_name == "option" and (names is None or param.name in names)
        for text in param.opts
        if text.startswith("--") and param.name != "help"
    }


_GLOBAL = frozenset(name for name, flag in flags_of(Globals).items() if not flag.hidden) - {
    _PROFILE
}


def _unknown(origin: str, key: str, options: Mapping[str, Any], known: object) -> UsageError:
    from arena_topo.job import MPIJob  # noqa: PLC0415 - only for what is wrong

    hint = nearest(key, options)
    if known is None and any(
        key == spelling(name, flag).removeprefix("--") for name, flag in flags_of(MPIJob).items()
    ):
        hint = f"flags of jobs stand in the table [{SECTION}]"
    return UsageError(
        f"{origin}: there is no setting {key!r}",
        hint=hint or "keys are flags without the dashes in front",
    )


def _texts(origin: str, key: str, value: object, param: Any) -> Iterator[str]:
    """A value of TOML as it would be typed."""
    several = bool(getattr(param, "multiple", False))
    if several and isinstance(value, list):
        for one in value:
            yield _text_of(origin, key, one)
    elif several and isinstance(value, dict) and param.name in BY_KEY:
        for name, one in value.items():
            yield f"{name}={_text_of(origin, key, one)}"
    elif boolean(param):
        if not isinstance(value, bool | str):
            raise _wrong(origin, key, "true or false", value)
        yield truth(f"{origin}: {key}", value) if isinstance(value, str) else str(value).lower()
    else:
        yield _text_of(origin, key, value)


def _text_of(origin: str, key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(origin, key, "a text or a number", value)
    try:
        return str(value)
    except ValueError as error:
        # Written in hexadecimal it was read.
        raise UsageError(f"{origin}: {key} has too many digits") from error


def _wrong(origin: str, key: str, wanted: str, value: object) -> UsageError:
    kinds = {bool: "true or false", list: "a list", dict: "a table", str: "a text"}
    kind = kinds.get(type(value), "a number" if isinstance(value, int | float) else "a time")
    return UsageError(
        f"{origin}: {key} is no setting of this kind", why=f"expected {wanted}, got {kind}"
    )


def _text(file: File, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(file.path, key, "a text", value)
    return value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean` for a name that is not known; None where nothing is near."""
    import difflib  # noqa: PLC0415 - only for the hint

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else None


def set_in(key: str, origin: str) -> str | None:
    """Where a wrong value stands; None where that is the line, which the person sees."""
    if origin in {"", LINE}:
        return None
    if origin in os.environ:
        return f"{origin} is set in the environment"
    return f"{key} is set in {origin}"
