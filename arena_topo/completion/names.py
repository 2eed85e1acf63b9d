"""The names that TAB offers, from a cache: one file for each context that a command line may mean.

    $XDG_CACHE_HOME/arena-topo/names/context-HASH      ~/.cache/... where that is not set; mode 0700

    arena-topo names 2
    key        KEY                 flags and variables that decide which cluster is meant
    file       STAMP  PATH         a kubeconfig, or a file of settings, that decides as well
    namespace  NAME                the one that counts where the line names none
    [jobs default]     SECONDS     when all of them were read; 0: never
    bert       RUNNING, 8 GPUs

`list`, `get`, `submit`, `delete` and other commands write what they know (`cli.remembering`). What
is absent or older than FRESH is asked for at TAB, for at most LIMIT seconds; after that the known
names are offered, however old. A file is replaced as a whole, so that no reader
sees half of it; of two writers at the same moment the later one wins.

A file that is damaged, of another version, not the user's own or open to others has no names.
"""

from __future__ import annotations

import os
import time
from binascii import crc32
from stat import S_ISREG

TYPE_CHECKING = False
"""As in `typing`, which would take as long to load as all the rest."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Names = list[tuple[str, str]]

    Given = Iterable[tuple[str, str]]
    """The options of a line: their long spellings without dashes, and their values."""

    Ask = Callable[[str, Sequence[tuple[str, str]]], None]
    """Has the names of a kind read and written down, for the line with these options."""

HEAD = "arena-topo names 2"

LIMIT = 1.0
"""Seconds that TAB waits for names."""

FRESH = {"jobs": 60, "instances": 60, "namespaces": 600, "nodes": 600, "claims": 600}
"""Seconds after which names are asked for again."""
_RARELY = 3600
"""The same for other kinds."""
_AGAIN = 10
"""The same where a cluster did not answer in time."""

OWN = frozenset({"contexts", "clusters", "users", "profiles"})
"""Kinds of names that are in files of the user's, not in a cluster."""

OF_NAMESPACES = frozenset({"jobs", "instances", "claims"})
"""Kinds of names that each namespace has its own of."""

CONTAINERS = [("mpi", "")]
"""The container of each pod, as `templates/mpijob/pod.yaml.j2` calls it."""

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

LARGEST = 1 << 20
"""Bytes that a file may have: some ten thousand names."""

_SLOTS = 256
"""Files at most. Of two contexts that share one the later has it, and the other is asked again."""

_LONGEST = 253
"""Characters of a name: as many as an object of Kubernetes may have (RFC 1123, a subdomain)."""
_LONGEST_TEXT = 80
"""Characters of what is said of a name."""

MARKS = "-._@%+=:,/"
"""What names of OWN may have beside letters and digits: no shell takes any of it for its own."""


def of(
    kind: str, given: Given, words: Sequence[str], environ: Mapping[str, str], ask: Ask | None
) -> Names:
    """The names of a kind (one of `flag.KINDS`) that a line may mean, and what is said of each.

    `given` are the options before the cursor, `words` what is no option. `ask` is called where the
    cache has no fresh names; without it they are offered however old.
    """
    if kind == "containers":
        return CONTAINERS
    said = list(given)
    namespace = dict(said).get("namespace", "") if kind in OF_NAMESPACES else ""
    cache = Cache(key(said, environ), environ)
    if ask is not None and not cache.fresh(kind, namespace):
        ask(kind, said)
        cache = Cache(cache.key, environ)
        if not cache.fresh(kind, namespace):
            # The next TAB is not to wait for a server that does not answer.
            cache.put(kind, namespace, {}, whole=False, tried=True)
            cache.write()
    known = cache.names(kind, namespace)
    if kind == "instances":
        # Those of the job on the line: of the first word that is one.
        jobs = {one.partition("/")[0] for one in known}
        job = next((word for word in words if word in jobs), "") + "/"
        known = {name[len(job) :]: text for name, text in known.items() if name.startswith(job)}
    marks = MARKS if kind in OWN else "-._"
    return [
        (name, text if text.isprintable() else "")
        for name, text in known.items()
        if plain(name, marks)
    ]


def key(given: Given, environ: Mapping[str, str]) -> str:
    """What stands for a context: all of a line and its environment that decides which one it is.

    Equal only for lines that mean the same cluster, as long as no file changes.
    """
    said: dict[str, str] = {}
    for flag, text in given:
        name = "kubeconfig" if flag == "config" else flag
        if name in FLAGS and text:
            before = said.get(name) if name == "as-group" else None
            said[name] = f"{before}\n{text}" if before else text
    variables = [
        (name, text)
        for name, text in environ.items()
        if text and (name in _VARIABLES or _decides(name))
    ]
    # A relative path is another file elsewhere.
    paths = [text for name, text in variables if name.endswith("CONFIG")]
    paths.append(said.get("kubeconfig", "/"))
    here = "" if all(path[0] in "/~" for path in paths) else os.getcwd()  # noqa: PTH109
    return repr((sorted(said.items()), sorted(variables), here))


def _decides(variable: str) -> bool:
    """Whether a variable stands for an option that decides, or names files of settings.

    No other is written down: it may have a password in it.
    """
    if variable[:6] != "ARENA_":
        return False
    option = variable[6:].removeprefix("TOPO_").lower().replace("_", "-")
    return option in FLAGS or option in {"namespace", "settings"}


class Cache:
    """What is known of one context: names by kind and namespace.

    `namespace` is the one of a line that names none; empty where that is not known.
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
        if version != HEAD:
            return
        said = [line.split("\t") for line in lines]
        stamps = {each[2]: each[1] for each in said if each[0] == "file" and len(each) > 2}  # noqa: PLR2004 - a whole line
        if ["key", key] not in said or any(stamp(path) != mark for path, mark in stamps.items()):
            return
        self._stamps = stamps
        self.namespace = next((each[1] for each in said if each[0] == "namespace" and each[1:]), "")
        for section in sections:
            title, _, rest = section.partition("]\t")
            self._sections[title] = rest

    def based_on(self, stamps: Mapping[str, str]) -> bool:
        """Whether files that decide are still as these stamps say; other files decide no more."""
        if any(stamp(path) != mark for path, mark in stamps.items()):
            return False
        self._stamps = {path: mark for path, mark in stamps.items() if path.isprintable()}
        return True

    def names(self, kind: str, namespace: str = "") -> dict[str, str]:
        """The names of a kind, and what is said of each."""
        lines = self._sections.get(self._title(kind, namespace), "").split("\n")[1:]
        return {name: text for name, tab, text in (line.partition("\t") for line in lines) if tab}

    def fresh(self, kind: str, namespace: str = "") -> bool:
        """Whether all names of a kind are known, as they were a moment ago."""
        at = self._at(self._title(kind, namespace))
        # Of a time to come is what was written before the clock was set back.
        age = time.time() - at
        return at > 0 and 0 <= age < FRESH.get(kind, _RARELY)

    def put(
        self,
        kind: str,
        namespace: str,
        names: Mapping[str, str | None],
        *,
        whole: bool,
        tried: bool = False,
    ) -> None:
        """Take down names and what is said of each, None of those that are gone.

        A `whole` list has all that there are. What was `tried` in vain counts as known for a while.
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
            at = int(time.time()) - FRESH.get(kind, _RARELY) + _AGAIN
        # What was written last stands first, and is what stays where there is too much.
        self._sections.pop(title, None)
        rest = self._sections
        self._sections = {title: "\n".join([str(at), *lines]), **rest}

    def write(self) -> None:
        """Replace the file; OSError where that cannot be done, which leaves the old one."""
        lines = [HEAD, f"key\t{self.key}", f"namespace\t{self.namespace}"]
        lines += [f"file\t{mark}\t{path}" for path, mark in self._stamps.items()]
        lines += [f"[{title}]\t{text}" for title, text in self._sections.items()]
        data = ("\n".join(lines) + "\n").encode("utf-8", "replace")
        _replace(self._folder, self._file, data[:LARGEST])

    def namespaces(self, kind: str) -> list[str]:
        """The namespaces whose names of a kind are known."""
        return [one.partition(" ")[2] for one in self._sections if one.startswith(f"{kind} ")]

    def _title(self, kind: str, namespace: str) -> str:
        return f"{kind} {namespace or self.namespace}" if kind in OF_NAMESPACES else kind

    def _at(self, title: str) -> int:
        text = self._sections.get(title, "").partition("\n")[0]
        return int(text) if text.isdecimal() and len(text) < _LONGEST_TEXT else 0


def plain(name: str, marks: str = "-._") -> bool:
    """Whether a name has but letters, digits and these marks, and begins with none of them.

    It is no longer than _LONGEST: people cannot read more, and shells get slow.
    """
    rest = name if len(name) <= _LONGEST else ""
    for mark in marks:
        rest = rest.replace(mark, "")
    return rest.isalnum() and name[0] not in marks and (rest.isascii() or marks is MARKS)


def gpus(count: int) -> str:
    """So many GPUs, in words."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def _line(text: str) -> str:
    """A text on one short line, with nothing in it that a terminal would obey."""
    short = text[:_LONGEST_TEXT]
    return short if short.isprintable() else "".join(c if c.isprintable() else " " for c in short)


# ---------------------------------------------------------------- files


def stamp(path: str) -> str:
    """What changes whenever a file does: time (ns), size, number; empty where there is none.

    A device, as /dev/null, is itself and never changes.
    """
    try:
        status = os.stat(os.path.expanduser(path))  # noqa: PTH111, PTH116 - pathlib is not loaded
    except (OSError, ValueError):
        return ""
    if not S_ISREG(status.st_mode):
        return f"{status.st_dev} {status.st_ino}"
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino} {status.st_dev}"


def folder(environ: Mapping[str, str]) -> str:
    """Where the files are; empty for a user without a home folder.

    The XDG specification says to ignore relative paths.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if base[:1] != "/":
        base = f"{environ.get('HOME', '')}/.cache"
    return f"{base}/arena-topo/names" if base[:1] == "/" and base != "/.cache" else ""


def _entered(path: str) -> int:
    """The open folder of the files; OSError if it is not the user's own, and closed to others."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(opened)
        raise OSError(path)
    return opened


def _read(path: str, name: str) -> str:
    """The text of a file, up to the last whole line; empty where there is none that may be read."""
    try:
        opened = _entered(path)
        try:
            # Without waiting, should it be a pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=opened), "rb") as file:  # noqa: PTH123 - as above
                status = os.fstat(file.fileno())
                mine = S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                data = file.read(LARGEST) if mine else b""
        finally:
            os.close(opened)
    except OSError:
        return ""
    return data[: data.rfind(b"\n")].decode("utf-8", "replace") if b"\n" in data else ""


def _replace(path: str, name: str, data: bytes) -> None:
    """Write a file as a whole."""
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
    """Make the folder and those above it; OSError for root in a folder that is not root's."""
    above = path
    while not os.path.isdir(above):  # noqa: PTH112 - as above
        above = os.path.dirname(above)  # noqa: PTH120 - as above
    if above != path:
        if os.geteuid() == 0 and os.stat(above).st_uid:  # noqa: PTH116 - as above
            # It would be root's in somebody's home, who could not write there ever after.
            raise OSError(above)
        os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103 - as above
