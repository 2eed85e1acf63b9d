"""The names that TAB offers, from a cache: one file for each context that a command line may mean.

    $XDG_CACHE_HOME/arena-topo/names/context-HASH      ~/.cache/... where that is not set; mode 0700

    arena-topo names 1
    key        KEY                 flags and variables that decide which cluster is meant
    file       STAMP  PATH         a kubeconfig, or a file of settings, that decides as well
    namespace  NAME                the default namespace
    [jobs default]     SECONDS     when all of them were read; 0: never
    bert       RUNNING, 8 GPUs

`list`, `get`, `submit`, `delete` and other commands write their results (`cli.name_cache`). Names
that are absent or older than FRESH are requested at TAB, for at most LIMIT seconds; after that the
known names are offered, however old. A file is replaced atomically; of two concurrent writers the
later one wins.

A file that is damaged, of another version, not the user's own or open to others has no names.
"""

from __future__ import annotations

import os
import time
from binascii import crc32
from stat import S_ISREG

TYPE_CHECKING = False
"""As in `typing`, whose import would take as long as everything else."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Names = list[tuple[str, str]]

    Given = Iterable[tuple[str, str]]
    """The options of a line: their long spellings without dashes, and their values."""

    Ask = Callable[[str, Sequence[tuple[str, str]]], None]
    """Reads the names of a kind into the cache, for the line with these options."""

CACHE_HEAD = "arena-topo names 1"

TAB_TIMEOUT = 1.0
"""The timeout of TAB in seconds."""

FRESH_SECONDS = {"jobs": 60, "instances": 60, "namespaces": 600, "nodes": 600, "claims": 600}
"""Seconds until names are stale."""
_RARELY = 3600
"""The same for all other kinds."""
_AGAIN = 10
"""The same after a cluster did not answer in time."""

OWN = frozenset({"contexts", "clusters", "users", "profiles"})
"""Kinds of names from the user's own files, not from a cluster."""

OF_NAMESPACES = frozenset({"jobs", "instances", "claims"})
"""Kinds of names that differ between namespaces."""

CONTAINERS = [("mpi", "")]
"""The container of each pod, as named in `templates/mpijob/pod.yaml.j2`."""

FLAGS = frozenset(
    {
        *("context", "cluster", "user", "as", "as-group", "kubeconfig", "config"),
        *("profile", "backend", "emulate"),
    }
)
"""The options that decide which cluster is meant."""

_VARIABLES = frozenset(
    {"HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "XDG_CONFIG_HOME", "XDG_STATE_HOME"}
)
"""The variables that decide as well, beside those of the options."""

MAX_CACHE_BYTES = 1 << 20
"""The size limit of a file in bytes: some ten thousand names."""

_SLOTS = 256
"""The most files. Two contexts with the same file replace each other's names."""

_LONGEST = 253
"""Characters of a name: as many as an object of Kubernetes may have (RFC 1123, a subdomain)."""
_LONGEST_TEXT = 80
"""Characters of a description."""

MARKS = "-._@%+=:,/"
"""Marks that names of OWN may have beside letters and digits: no shell treats them specially."""


def names_for(
    kind: str, given: Given, words: Sequence[str], environ: Mapping[str, str], ask: Ask | None
) -> Names:
    """The names of a kind (one of `flag.KINDS`) that fit a line, and their descriptions.

    `given` are the options before the cursor, `words` the other words. `ask` is called if the cache
    has no fresh names; without it old names are offered.
    """
    if kind == "containers":
        return CONTAINERS
    with_environment = list(given)
    namespace = dict(with_environment).get("namespace", "") if kind in OF_NAMESPACES else ""
    cache = NameCache(context_key(with_environment, environ), environ)
    if ask is not None and not cache.fresh(kind, namespace):
        ask(kind, with_environment)
        cache = NameCache(cache.key, environ)
        if not cache.fresh(kind, namespace):
            # The next TAB must not wait for a server that does not answer.
            cache.put(kind, namespace, {}, whole=False, tried=True)
            cache.write()
    known = cache.names(kind, namespace)
    if kind == "instances":
        # Those of the first job on the line.
        jobs = {name.partition("/")[0] for name in known}
        job = next((word for word in words if word in jobs), "") + "/"
        known = {name[len(job) :]: text for name, text in known.items() if name.startswith(job)}
    marks = MARKS if kind in OWN else "-._"
    return [
        (name, text if text.isprintable() else "")
        for name, text in known.items()
        if plain(name, marks)
    ]


def context_key(given: Given, environ: Mapping[str, str]) -> str:
    """The key of a context: the parts of a line and its environment that decide the context.

    Two lines with the same key mean the same cluster, as long as no file changes.
    """
    parts: dict[str, str] = {}
    for flag, text in given:
        name = "kubeconfig" if flag == "config" else flag
        if name in FLAGS and text:
            before = parts.get(name) if name == "as-group" else None
            parts[name] = f"{before}\n{text}" if before else text
    variables = [
        (name, text)
        for name, text in environ.items()
        if text and (name in _VARIABLES or _decides(name))
    ]
    # A relative path depends on the current folder.
    paths = [text for name, text in variables if name.endswith("CONFIG")]
    paths.append(parts.get("kubeconfig", "/"))
    here = "" if all(path[0] in "/~" for path in paths) else os.getcwd()  # noqa: PTH109
    return repr((sorted(parts.items()), sorted(variables), here))


def _decides(variable: str) -> bool:
    """Whether a variable replaces a deciding option, or names files of settings.

    Other variables are not stored: they may contain a password.
    """
    if variable[:6] != "ARENA_":
        return False
    option = variable[6:].removeprefix("TOPO_").lower().replace("_", "-")
    return option in FLAGS or option in {"namespace", "settings"}


class NameCache:
    """The known names of one context, by kind and namespace.

    `namespace` is the default namespace; empty if unknown.
    """

    def __init__(self, key: str, environ: Mapping[str, str]) -> None:
        self.key = key
        self.namespace = ""
        self._folder = folder(environ)
        self._file = f"context-{crc32(key.encode('utf-8', 'surrogateescape')) % _SLOTS:02x}"
        self._stamps: dict[str, str] = {}
        self._sections: dict[str, str] = {}
        head, *sections = _read(self._folder, self._file).split("\n[")
        version, *lines = head.split("\n")
        if version != CACHE_HEAD:
            return
        rows = [line.split("\t") for line in lines]
        stamps = {each[2]: each[1] for each in rows if each[0] == "file" and len(each) > 2}  # noqa: PLR2004 - a whole line
        if ["key", key] not in rows or any(stamp(path) != mark for path, mark in stamps.items()):
            return
        self._stamps = stamps
        self.namespace = next((each[1] for each in rows if each[0] == "namespace" and each[1:]), "")
        for section in sections:
            title, _, rest = section.partition("]\t")
            self._sections[title] = rest

    def based_on(self, stamps: Mapping[str, str]) -> bool:
        """Set the deciding files; False if one no longer has the given stamp."""
        if any(stamp(path) != mark for path, mark in stamps.items()):
            return False
        self._stamps = {path: mark for path, mark in stamps.items() if path.isprintable()}
        return True

    def names(self, kind: str, namespace: str = "") -> dict[str, str]:
        """The names of a kind, and their descriptions."""
        lines = self._sections.get(self._title(kind, namespace), "").split("\n")[1:]
        return {name: text for name, tab, text in (line.partition("\t") for line in lines) if tab}

    def fresh(self, kind: str, namespace: str = "") -> bool:
        """Whether all names of a kind are known and not stale."""
        at = self._at(self._title(kind, namespace))
        # A time in the future was written before the clock was set back.
        age = time.time() - at
        return at > 0 and 0 <= age < FRESH_SECONDS.get(kind, _RARELY)

    def put(
        self,
        kind: str,
        namespace: str,
        names: Mapping[str, str | None],
        *,
        whole: bool,
        tried: bool = False,
    ) -> None:
        """Store names and their descriptions, None for deleted names.

        A `whole` list replaces all names. Names that were `tried` in vain count as fresh for a
        short time.
        """
        title = self._title(kind, namespace)
        known = {} if whole else self.names(kind, namespace)
        known |= {name: text for name, text in names.items() if text is not None}
        lines = [
            f"{name}\t{_line(text)}"
            for name, text in known.items()
            if names.get(name, "") is not None and plain(name, MARKS)
        ]
        at = self._at(title)
        if whole:
            at = int(time.time())
        elif tried:
            at = int(time.time()) - FRESH_SECONDS.get(kind, _RARELY) + _AGAIN
        # The newest section comes first, so that it survives a truncation.
        self._sections.pop(title, None)
        rest = self._sections
        self._sections = {title: "\n".join([str(at), *lines]), **rest}

    def write(self) -> None:
        """Write the cache: replace its file; OSError on failure, which leaves the old file."""
        lines = [CACHE_HEAD, f"key\t{self.key}", f"namespace\t{self.namespace}"]
        lines += [f"file\t{mark}\t{path}" for path, mark in self._stamps.items()]
        lines += [f"[{title}]\t{text}" for title, text in self._sections.items()]
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        _replace(self._folder, self._file, data[:MAX_CACHE_BYTES])

    def namespaces(self, kind: str) -> list[str]:
        """The namespaces with known names of a kind."""
        return [
            section.partition(" ")[2]
            for section in self._sections
            if section.startswith(f"{kind} ")
        ]

    def _title(self, kind: str, namespace: str) -> str:
        return f"{kind} {namespace or self.namespace}" if kind in OF_NAMESPACES else kind

    def _at(self, title: str) -> int:
        text = self._sections.get(title, "").partition("\n")[0]
        return int(text) if text.isdecimal() and len(text) < _LONGEST_TEXT else 0


def plain(name: str, marks: str = "-._") -> bool:
    """Whether a name has only letters, digits and these marks, and begins with no mark.

    It has at most _LONGEST characters: people cannot read more, and shells get slow.
    """
    rest = name if len(name) <= _LONGEST else ""
    for mark in marks:
        rest = rest.replace(mark, "")
    return rest.isalnum() and name[0] not in marks and (rest.isascii() or marks is MARKS)


def gpus(count: int) -> str:
    """The number of GPUs, in words."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def _line(text: str) -> str:
    """A text as one short line, without control characters for terminals."""
    short = text[:_LONGEST_TEXT]
    return short if short.isprintable() else "".join(c if c.isprintable() else " " for c in short)


# ---------------------------------------------------------------- files


def stamp(path: str) -> str:
    """A stamp that changes with a file: time (ns), size, number; empty without the file.

    The stamp of a device such as /dev/null never changes.
    """
    try:
        status = os.stat(os.path.expanduser(path))  # noqa: PTH111, PTH116 - pathlib is not loaded
    except (OSError, ValueError):
        return ""
    if not S_ISREG(status.st_mode):
        return f"{status.st_dev} {status.st_ino}"
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino} {status.st_dev}"


def folder(environ: Mapping[str, str]) -> str:
    """The folder of the files; empty for a user without a home folder.

    The XDG specification says to ignore relative paths.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if base[:1] != "/":
        base = f"{environ.get('HOME', '')}/.cache"
    return f"{base}/arena-topo/names" if base[:1] == "/" and base != "/.cache" else ""


def _entered(path: str) -> int:
    """The opened folder of the files; OSError unless it is the user's own, and closed to others."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(opened)
        raise OSError(path)
    return opened


def _read(path: str, name: str) -> str:
    """The text of a file, up to the last complete line; empty if it may not be read."""
    try:
        opened = _entered(path)
        try:
            # Non-blocking, in case it is a pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=opened), "rb") as file:  # noqa: PTH123 - as above
                status = os.fstat(file.fileno())
                mine = S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                data = file.read(MAX_CACHE_BYTES) if mine else b""
        finally:
            os.close(opened)
    except OSError:
        return ""
    return data[: data.rfind(b"\n")].decode("utf-8", "replace") if b"\n" in data else ""


def _replace(path: str, name: str, data: bytes) -> None:
    """Replace a file atomically."""
    from arena_topo.files import replace_file  # noqa: PLC0415 - not to read names

    if not path:
        raise OSError("no home folder")
    _make(path)
    opened = _entered(path)
    try:
        replace_file(name, data, folder=opened, durable=False)
    finally:
        os.close(opened)


def _make(path: str) -> None:
    """Make the folder and its parents; OSError for root in a folder that is not root's."""
    above = path
    while not os.path.isdir(above):  # noqa: PTH112 - as above
        above = os.path.dirname(above)  # noqa: PTH120 - as above
    if above != path:
        if os.geteuid() == 0 and os.stat(above).st_uid:  # noqa: PTH116 - as above
            # Otherwise root would own a folder in a user's home, and the user could not write
            # there.
            raise OSError(above)
        os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103 - as above
