"""Which names belong to a command line: what it, the environment and files say of the cluster.

A key to press and a command that just ran ask the same functions, so that both mean the same
cluster. Nothing here reads a file: what a kubeconfig or a file of settings says is known from an
earlier command, and holds for as long as the file has the same size, time and number.

Every TAB loads this, so it loads nothing that takes a millisecond.
"""

from __future__ import annotations

import os
from stat import S_ISCHR, S_ISREG

TYPE_CHECKING = False
"""As in `typing`, which would take as long to load as all the rest."""

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SITE = "/etc/arena-topo/config.toml"
"""The site's file of settings, as `cli.settings` has it."""

IN_CLUSTER = "/var/run/secrets/kubernetes.io/serviceaccount/token"
"""Where a pod finds its own token, as `engines.kubernetes.kubeconfig` has it."""

OURS = {
    "--namespace": "namespace",
    "--context": "context",
    "--cluster": "cluster",
    "--user": "user",
    "--as": "as",
    "--as-group": "groups",
    "--kubeconfig": "kubeconfig",
    "--config": "kubeconfig",
    "--profile": "profile",
    "--backend": "backend",
    "--emulate": "emulate",
}
"""The flags that decide which jobs are meant, and what each of them says."""

VARIABLES = {
    "namespace": ("ARENA_TOPO_NAMESPACE", "ARENA_NAMESPACE"),
    "context": ("ARENA_TOPO_CONTEXT", "ARENA_CONTEXT"),
    "cluster": ("ARENA_TOPO_CLUSTER",),
    "user": ("ARENA_TOPO_USER",),
    "as": ("ARENA_TOPO_AS",),
    "kubeconfig": ("ARENA_TOPO_KUBECONFIG", "ARENA_KUBECONFIG", "ARENA_TOPO_CONFIG"),
    "profile": ("ARENA_TOPO_PROFILE",),
    "backend": ("ARENA_TOPO_BACKEND", "ARENA_BACKEND"),
    "emulate": ("ARENA_TOPO_EMULATE", "ARENA_EMULATE"),
}
"""The variables that stand for those flags, the firmest first."""


class Line:
    """What a command line says of the cluster.

    `key` names all that decides which one it is, `files` the part of it that is files; both change
    whenever a file does. `engine` is `local`, `kubernetes`, or empty where settings decide.
    `namespace` is the one that is asked for, empty where none is, and `default` the one that then
    counts, empty where files decide. `paths` are the kubeconfig files that count, unless settings
    name another. `emulate` are the machines to pretend. `words` are those that are no flags.
    """

    __slots__ = (
        "default",
        "emulate",
        "engine",
        "environ",
        "files",
        "key",
        "namespace",
        "paths",
        "said",
        "settings",
        "words",
    )

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.words = list(words[words.index("--") + 1 :]) if "--" in words else []
        said = spoken(words)
        for field, variables in VARIABLES.items():
            for variable in variables if field not in said else ():
                if environ.get(variable):
                    said[field] = environ[variable]
                    break
        self.said = {field: text for field, text in said.items() if text}
        self.namespace = self.said.get("namespace", "")
        self.emulate = self.said.get("emulate", "")
        self.paths = kubeconfigs(self.said.get("kubeconfig", ""), environ)
        settings, arenas = _settings(environ)
        seen = [(path, stamp(path)) for path in (*settings, *arenas)]
        self.settings = any(mark for _, mark in seen[: len(settings)])
        self.engine = self._engine(environ)
        self.default = ""
        if self.engine == "local" and not any(mark for _, mark in seen):
            self.default = "default"
        kube = [(path, stamp(path)) for path in self.paths]
        self.files = repr((kube, seen))
        # A named file is among `kube`; that it was named matters to who has settings.
        told = {**self.said, "namespace": "", "kubeconfig": ""}
        if self.settings and "kubeconfig" in self.said:
            told["kubeconfig"] = "named"
        self.key = repr(
            (sorted(told.items()), environ.get("KUBERNETES_SERVICE_HOST", ""), kube, seen)
        )

    def _engine(self, environ: Mapping[str, str]) -> str:
        """Which engine is meant, by the rule of `engines.opening.open_backend`."""
        chosen = self.said.get("backend", "").lower()
        if chosen in {"local", "kubernetes"}:
            return chosen
        if self.settings and not (chosen and self.emulate):
            return ""
        if self.emulate:
            return "local"
        if any(field in self.said for field in ("kubeconfig", "context", "cluster", "user")):
            return "kubernetes"
        named = environ.get("KUBECONFIG", "").strip(os.pathsep)
        if any(map(present, self.paths)) or (named and not any(map(_empty, self.paths))):
            return "kubernetes"
        inside = environ.get("KUBERNETES_SERVICE_HOST") and present(IN_CLUSTER)
        return "kubernetes" if inside else "local"


def spoken(words: Sequence[str]) -> dict[str, str]:
    """What the flags of a line say of the cluster; the last of each counts, groups all do.

    They are of the form `--flag=value`, as whoever has read the line writes them again; after `--`
    there are none.
    """
    said: dict[str, str] = {}
    for word in words:
        if word == "--":
            break
        name, equals, value = word.partition("=")
        field = OURS.get(name)
        if field and equals:
            before = said.get(field)
            said[field] = f"{before}\n{value}" if field == "groups" and before else value
    return said


def kubeconfigs(named: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The paths of the kubeconfig files: the one named, else those of KUBECONFIG, else kubectl's.

    A relative path is made absolute: the same words mean another file elsewhere.
    """
    if not named:
        named = environ.get("KUBECONFIG", "")
        parts = [part for part in named.split(os.pathsep) if part] or ["~/.kube/config"]
    else:
        parts = [named]
    return tuple(absolute(part, environ) for part in parts)


def _settings(environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Where files of settings and arena's may be, as `cli.settings` looks for them."""
    named = environ.get("ARENA_TOPO_SETTINGS")
    if named is None:
        base = environ.get("XDG_CONFIG_HOME", "")
        if base[:1] != "/":
            base = absolute("~/.config", environ)
        files = [f"{base}/arena-topo/config.toml", SITE]
    else:
        files = [absolute(part, environ) for part in named.split(os.pathsep) if part]
    arenas = [part for part in (environ.get("ARENA_CONFIG", ""), "~/.arena/config") if part]
    return files, [absolute(part, environ) for part in arenas]


def home(environ: Mapping[str, str]) -> str:
    """The user's home folder; empty for one who has none. An empty HOME is none given."""
    if named := environ.get("HOME"):
        return named
    import pwd  # noqa: PLC0415 - hardly ever

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def below(variable: str, default: str, environ: Mapping[str, str]) -> str:
    """The folder that an XDG variable names, else one below the home folder; empty without one.

    The XDG specification says to ignore relative paths.
    """
    base = environ.get(variable, "")
    if base[:1] == "/":
        return base
    base = home(environ)
    return f"{base.rstrip('/')}/{default}" if base[:1] == "/" else ""


def absolute(path: str, environ: Mapping[str, str]) -> str:
    """A path from the root on, with the home folder filled in where it starts with `~/`."""
    if path[:1] == "~":
        first, slash, rest = path.partition("/")
        base = home(environ) if first == "~" else os.path.expanduser(first)  # noqa: PTH111
        path = base.rstrip("/") + slash + rest if base else path
    if path[:1] == "/":
        return path
    try:
        return f"{os.getcwd()}/{path}"  # noqa: PTH109 - pathlib is not loaded here
    except OSError:
        return path


def stamp(path: str) -> tuple[int, ...]:
    """What changes whenever a file does: time (ns), size, number; nothing of one that is not there.

    A device, as /dev/null, is itself and never changes.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return ()
    if not S_ISREG(status.st_mode):
        return (status.st_dev, status.st_ino)
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)


def present(path: str) -> bool:
    """Whether a file is there and says something."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return S_ISREG(status.st_mode) and status.st_size > 0


def _empty(path: str) -> bool:
    """Whether a file is there and says nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return S_ISCHR(status.st_mode) or (S_ISREG(status.st_mode) and not status.st_size)


def digest(text: str) -> str:
    """Sixteen digits that stand for a text: FNV-1a of 64 bits (draft-eastlake-fnv, 4).

    Whoever relies on them compares the text as well: they are no secret's.
    """
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogateescape"):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"
