"""Sources of option values, strongest first: the line, the environment, profiles, files.

    flags on the line > the job file > ARENA_TOPO_* > ARENA_* > profile
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from arena_topo.argv import parse_bool
from arena_topo.cli.options import CommonOptions
from arena_topo.cli.parameters import Parameter
from arena_topo.errors import UsageError, near
from arena_topo.files import encoding, read_bytes
from arena_topo.flag import BY_KEY, flags_of, spelling

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


class Layer(NamedTuple):
    """The options of one source: (field, text as typed), in order. `origin` is its name."""

    origin: str
    given: tuple[tuple[str, str], ...]


class Value(NamedTuple):
    """A value in effect, and its source."""

    name: str
    text: str
    origin: str


def merge_layers(options: Iterable[Parameter], layers: Sequence[Layer]) -> tuple[Value, ...]:
    """The values in effect of some layers, strongest first, in the order of a command line.

    An option that takes one value has that of the strongest layer that gives it. A repeatable
    option has all values of that layer; KEY=VALUE flags are merged by key.
    """
    known = {option.name: option for option in options}
    in_effect: list[Value] = []
    settled: set[str] = set()
    keys: set[tuple[str, str]] = set()
    for layer in layers:
        fresh = [
            Value(name, _truth(known[name], text, layer.origin), layer.origin)
            for name, text in ((_SAME.get(name, name), text) for name, text in layer.given)
            if name in known
            and name not in settled
            and (name not in BY_KEY or (name, text.partition("=")[0]) not in keys)
        ]
        in_effect[:0] = fresh
        for value in fresh:
            if value.name in BY_KEY:
                keys.add((value.name, value.text.partition("=")[0]))
            else:
                settled.add(value.name)
    return tuple(in_effect)


def _truth(option: Parameter, text: str, origin: str) -> str:
    """The text of a switch as `true` or `false`; others stay."""
    if not option.switch:
        return text
    try:
        return parse_bool(option.long, text)
    except UsageError as error:
        error.hint = origin_hint(option.long[2:], origin)
        raise


def without_overruled_conflicts(
    values: Sequence[Value], options: Iterable[Parameter]
) -> tuple[Value, ...]:
    """The values without those that a value of a stronger source excludes (`Flag.excludes`).

    Values of one source that exclude each other remain: the command refuses them.
    """
    known = {option.name: option for option in options}
    agreeing: list[Value] = []
    for value in reversed(values):
        if not any(
            other.origin != value.origin
            and (_excludes(value, other, known) or _excludes(other, value, known))
            for other in agreeing
        ):
            agreeing.insert(0, value)
    return tuple(agreeing)


def _excludes(value: Value, other: Value, known: Mapping[str, Parameter]) -> bool:
    if any(each.text in {"false", str(known[each.name].default)} for each in (value, other)):
        return False
    flag, word = known[value.name].flag, known[other.name].long
    return flag is not None and not {word, f"{word} {other.text}"}.isdisjoint(flag.excludes)


def from_environment(
    options: Iterable[Parameter], variables: Mapping[str, tuple[str, ...]]
) -> Iterator[Layer]:
    """A layer for each variable that is set: of a field's variables the first that is not empty."""
    for option in options:
        set_ = (name for name in variables.get(option.name, ()) if os.environ.get(name))
        if variable := next(set_, None):
            yield Layer(variable, ((option.name, os.environ[variable]),))


_OURS = "ARENA_TOPO_"

_OTHERS = frozenset(
    _OURS + name
    for name in (
        *("SETTINGS", "YES", "DEBUG", "LOG_ARCHIVE", "LOCAL_LOG_LIMIT"),
        *("JOB_UID", "POD", "KEEPER_UID", "NODE", "HEARTBEAT"),
    )
)
"""Our variables that replace no flag: for people, and in the processes of jobs and of the agent."""


def misspellings(variables: Iterable[Callable[[], Mapping[str, tuple[str, ...]]]]) -> Iterator[str]:
    """A warning for each variable with our prefix that has no effect.

    Each of `variables` gives those of some flags; it is called only while a variable is unknown.
    """
    known = {*_OTHERS}
    # The tests of this program have some of their own.
    unknown = {name for name in os.environ if name.startswith(_OURS) and name not in known}
    unknown = {name for name in unknown if not name.startswith(f"{_OURS}TEST_")}
    for of_flags in variables:
        if unknown:
            known |= {name for names in of_flags().values() for name in names}
            unknown -= known
    for name in sorted(unknown):
        ours = sorted(name for name in known if name.startswith(_OURS))
        hint = near(name, ours, prefix=_OURS)
        yield f"there is no variable {name}, which is left out" + (f"; {hint}" if hint else "")


# ---------------------------------------------------------------- files


class File(NamedTuple):
    """A settings file: its path, its content, and whether it exists."""

    path: str
    content: Mapping[str, Any]
    exists: bool = True

    def table(self, *names: str) -> Mapping[str, Any]:
        """A table by the path of its keys, empty if there is none; UsageError for a value there."""
        tables = self.content
        for depth, name in enumerate(names):
            tables = tables.get(name, {})
            if not isinstance(tables, Mapping):
                named = ".".join(names[: depth + 1])
                starts = f"{named}.NAME" if named == _PROFILE else named
                raise UsageError(f"{self.path}: {named} is no table", hint=f"[{starts}] starts one")
        return tables


class Settings(NamedTuple):
    """The settings of a command: from arena-topo's files, strongest first, and arena's own file.

    `profile` is the profile and the source that chooses it, ("", "") for none. `layers` are the
    options of the command in the files, strongest first.
    """

    files: tuple[File, ...]
    profile: tuple[str, str]
    layers: tuple[Layer, ...]
    warnings: tuple[str, ...]


def read_settings(
    params: Sequence[Parameter] = (),
    *,
    above: Sequence[Layer] = (),
    of_jobs: Callable[[], Iterable[Parameter]] | None = None,
) -> Settings:
    """Read the files that are there, for a command with these options; UsageError names a mistake.

    `above` are the sources that win over files; if none of them chooses a profile, the files do.
    `of_jobs` returns all options that `[submit]` may have, and is called only where that table has
    a key that is not among `params`; without it the command ignores the table. A mistake in a
    profile that is not chosen is a warning. So is a key of the site's file, as it may be meant for
    another version. A home folder that does not exist, or cannot be read, has no files.
    """
    files, arena = tuple(_files()), _arenas()
    chosen = (value for value in merge_layers(params, above) if value.name == _PROFILE)
    profile = _profile(files, *next(((value.text, value.origin) for value in chosen), ("", "")))
    named = _options(params)
    everywhere = {key: param for key, param in named.items() if param.name in _GLOBAL}
    layers: list[Layer] = []
    warnings: list[str] = []
    given_tables: list[tuple[tuple[str, ...], Mapping[str, Any], dict[str, Any], Any]]
    wheres: list[tuple[str, ...]] = [(_PROFILE, profile[0]), ()] if profile[0] else [()]
    unused = [(_PROFILE, name) for name in _profiles(files) if name != profile[0]]
    for where in (*wheres, *unused):
        for file in files:
            try:
                settings = file.table(*where)
                jobs = {} if of_jobs is None else file.table(*where, SECTION)
            except UsageError as slip:
                if where not in unused:
                    raise
                warnings.append(f"{slip.message}, which is left out; {slip.hint}")
                continue
            tables = {SECTION, *(() if where else (_PROFILE, _DEFAULT))}
            own = {key: setting for key, setting in settings.items() if key not in tables}
            given_tables = [(where, own, everywhere, None)]
            if of_jobs is not None:
                given_tables.append(((*where, SECTION), jobs, named, of_jobs))
            for at, table, options, others in given_tables:
                origin = f"{file.path} [{'.'.join(at)}]" if at else file.path
                unknown = tuple(_unknown(origin, table, options, others))
                if unknown and file.path != SITE and where not in unused:
                    raise unknown[0]
                warnings += [
                    f"{usage_error.message}, which is left out; {usage_error.hint}"
                    for usage_error in unknown
                ]
                if where not in unused and (given := _given(origin, table, options)):
                    layers.append(Layer(origin, given))
    layers += _of_arena(arena, {param.name for param in params})
    return Settings(
        files=(*files, arena), profile=profile, layers=tuple(layers), warnings=tuple(warnings)
    )


def _given(
    origin: str, table: Mapping[str, Any], options: Mapping[str, Parameter]
) -> tuple[tuple[str, str], ...]:
    """The options that a table sets: the name and the text of each."""
    return tuple(
        (options[key].name, text)
        for key, value in table.items()
        if key in options
        for text in _texts(origin, key, value, options[key])
    )


def _unknown(
    origin: str,
    table: Mapping[str, Any],
    options: Mapping[str, Any],
    others: Callable[[], Iterable[Parameter]] | None,
) -> Iterator[UsageError]:
    """The errors of the unknown keys of a table; `others` returns more options that it may have."""
    for key in table:
        if key not in options and (others is None or key not in (known := _options(others()))):
            yield _no_setting(origin, key, options if others is None else known)


def _files() -> Iterator[File]:
    """The files of arena-topo, strongest first."""
    for path in _ours():
        yield _read(path, _toml, needed=_VARIABLE in os.environ)


def _arenas() -> File:
    """Arena's own file."""
    path = os.environ.get("ARENA_CONFIG", "")
    file = _read(path, _lines) if path else None
    return file if file is not None and file.exists else _read("~/.arena/config", _lines)


def _profiles(files: Iterable[File]) -> list[str]:
    """The names of all profiles."""
    return sorted({name for file in files for name in file.table(_PROFILE)})


def _profile(files: Sequence[File], name: str, origin: str) -> tuple[str, str]:
    """The name of the profile and the source that chooses it; ("", "") for none."""
    for file in files:
        if not name and _DEFAULT in file.content:
            name, origin = _text(file.path, _DEFAULT, file.content[_DEFAULT]), file.path
    known = _profiles(files)
    if not name or name in known:
        return name, origin
    raise UsageError(
        f"there is no profile {name!r}",
        why=f"there are: {', '.join(known)}" if known else "no file of settings has one",
        hint="; ".join(filter(None, (near(name, known), origin_hint(_PROFILE, origin)))) or None,
        flag="--profile",
    )


def _of_arena(arena: File, fields: set[str]) -> Iterator[Layer]:
    given = tuple(
        (_ARENAS[key], text.strip())
        for key, value in arena.content.items()
        if _ARENAS.get(key) in fields
        for text in (value.split(",") if key == "imagePullSecrets" else (value,))
        if text.strip()
    )
    if given:
        yield Layer(arena.path, given)


def settings_paths() -> list[str]:
    """The paths where files of settings may be, arena's own among them."""
    return [*_ours(), *filter(None, (os.environ.get("ARENA_CONFIG"), "~/.arena/config"))]


def _ours() -> list[str]:
    """The paths of arena-topo's files, strongest first; without a home folder the site's alone."""
    if (named := os.environ.get(_VARIABLE)) is not None:
        return [path for path in named.split(os.pathsep) if path]
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore relative paths
        base = Path(at_home("~/.config"))
    return [str(base / "arena-topo" / "config.toml")] * base.is_absolute() + [SITE]


def at_home(text: str) -> str:
    """A path with `~` expanded; unchanged for a user without a home folder."""
    return os.path.expanduser(text)  # noqa: PTH111 - Path's own raises an error there


def _read(
    path: str, understood: Callable[[str, bytes], Mapping[str, Any]], *, needed: bool = False
) -> File:
    path = at_home(path)
    try:
        data = read_bytes(path)
    except OSError as error:
        hidden = error.errno == errno.EACCES and not os.path.lexists(path)
        if not needed and (hidden or error.errno in _SOMEWHERE_ELSE):
            return File(path, {}, exists=False)
        raise UsageError(
            f"{path}: cannot be read",
            why=error.strerror,
            hint=f"correct {_VARIABLE} in the environment, or unset it" if needed else None,
        ) from error
    return File(path, understood(path, data))


def _toml(path: str, data: bytes) -> Mapping[str, Any]:
    import tomllib  # noqa: PLC0415 - only where there is a file

    # A dotted key costs the square of its dots.
    if any(line.count(b".") > _MOST_DOTS for line in data.splitlines()):
        raise UsageError(f"{path}: is nested too deeply")
    try:
        return tomllib.loads(data.decode(encoding(data)))
    except RecursionError as error:
        raise UsageError(f"{path}: is nested too deeply") from error
    except ValueError as error:
        hint = 'a setting is a line such as context = "lab"'
        raise UsageError(f"{path}: is not valid TOML", why=str(error), hint=hint) from error


def _lines(path: str, data: bytes) -> Mapping[str, str]:
    """Arena's format, read as arena reads it; a comment becomes a key that nothing uses."""
    del path
    numbers = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            numbers[key.strip()] = value.strip().strip("\"'")
    return numbers


# ---------------------------------------------------------------- keys and values


def _options(options: Iterable[Parameter]) -> dict[str, Parameter]:
    """Options by the key that sets them."""
    return {option.key: option for option in options if option.name != "help"}


_GLOBAL = frozenset(name for name, flag in flags_of(CommonOptions).items() if not flag.hidden) - {
    _PROFILE
}


def _no_setting(origin: str, key: str, known: Mapping[str, Any]) -> UsageError:
    from arena_topo.job import MPIJob  # noqa: PLC0415 - only for what is wrong

    hint = near(key, known)
    if key not in known and key in {
        spelling(name, flag).removeprefix("--") for name, flag in flags_of(MPIJob).items()
    }:
        hint = f"flags of jobs stand in the table [{SECTION}]"
    return UsageError(
        f"{origin}: there is no setting {key!r}",
        hint=hint or "keys are flags without the dashes in front",
    )


def _texts(origin: str, key: str, value: Any, option: Parameter) -> Iterator[str]:
    """A TOML value as the texts of a command line."""
    if option.repeats and isinstance(value, list):
        yield from (_text(origin, key, item) for item in value)
    elif option.repeats and isinstance(value, dict) and option.name in BY_KEY:
        yield from (f"{name}={_text(origin, key, item)}" for name, item in value.items())
    elif isinstance(value, bool) and option.switch:
        yield str(value).lower()
    else:
        yield _text(origin, key, value)


def _text(origin: str, key: str, value: object) -> str:
    with suppress(ValueError):  # a number in hexadecimal may have too many digits in decimal
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
    kinds: dict[type, str] = {
        bool: "true or false",
        list: "a list",
        dict: "a table",
        int: "a number",
    }
    kind = kinds.get(type(value), "a time")
    why = f"expected a text or a number, got {kind}"
    raise UsageError(f"{origin}: {key} is no setting of this kind", why=why)


def origin_hint(key: str, origin: str) -> str | None:
    """The place of a wrong value as advice; None for the command line, which the user sees."""
    if origin in {"", LINE}:
        return None
    if origin in os.environ:
        return f"correct {origin} in the environment, or unset it"
    return f"correct {key} in {origin}"
