"""Names written down for completion, by commands that know them anyway.

All of it may fail, and then it is as if nobody had known the names; who writes never waits longer
than PATIENCE for another who does. A file is replaced as a whole, so no reader sees half of it.

What was known later counts, whoever writes later: a list that was asked for before a job was
submitted, or deleted, does not drop that job, or bring it back.
"""

from __future__ import annotations

import os
import time

from arena_topo.completion import names, place

TYPE_CHECKING = False
"""As in `typing`, which would take as long to load as all the rest."""

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE = 0.05
"""Seconds to wait for another writer; one takes a fiftieth of that."""

MOST = 5000
"""Names that are kept in one file."""

FILES = 300
"""Files that are kept in all."""

_UNUSED = 30 * 24 * 3600
"""Seconds after which a file that nobody wrote goes."""

_LEFT_OVER = 3600
"""Seconds after which nobody is writing a file any more that has no name yet."""

_DAY = 24 * 3600


class Folder:
    """The open folder of names, of which this process is the only writer until it is closed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Make the folder where it is missing; OSError where nothing can be written."""
        import fcntl  # noqa: PLC0415 - who only reads needs none

        path = names.folder(environ)
        if not path:
            raise OSError("no home folder")
        self._path = path
        self._opened = names.entered(_made(path))
        self._lock = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._lock = os.open("lock", flags, 0o600, dir_fd=self._opened)
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    # Not lockf: its locks are the process's, so threads would share them.
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.001)
                else:
                    break
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Folder:  # noqa: PYI034 - typing is not loaded here
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._lock, self._opened):
            if one >= 0:
                os.close(one)

    def read(self, name: str) -> str:
        """The text of a file; empty where there is none that may be read."""
        return names.content(self._opened, name)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            os.stat(name, dir_fd=self._opened, follow_symlinks=False)
        except OSError:
            return False
        return True

    def age(self, name: str) -> float:
        """Seconds since a file was written; infinite where there is none."""
        try:
            status = os.stat(name, dir_fd=self._opened, follow_symlinks=False)
        except OSError:
            return float("inf")
        return time.time() - status.st_mtime

    def write(self, name: str, text: str) -> None:
        """Replace a file as a whole; OSError leaves the old one."""
        if not self.has(name):
            self._make_room()
        new = f".new-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(new, flags, 0o600, dir_fd=self._opened)
        try:
            data = text.encode("utf-8", "replace")
            try:
                if os.write(file, data) != len(data):
                    raise OSError(name)
            finally:
                os.close(file)
            os.rename(new, name, src_dir_fd=self._opened, dst_dir_fd=self._opened)
        except BaseException:
            os.unlink(new, dir_fd=self._opened)
            raise

    def remove(self, name: str) -> bool:
        """Remove a file; False where there is none, or it is a folder, which is nobody's."""
        try:
            os.unlink(name, dir_fd=self._opened)
        except OSError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of all files."""
        return os.listdir(self._opened)  # noqa: PTH208

    def _make_room(self) -> None:
        """Remove what nobody wrote for long, and the oldest of what are too many files."""
        kept = []
        now = time.time()
        with os.scandir(self._opened) as entries:
            every = list(entries)
        for one in every:
            if one.name == "lock":
                continue
            age = now - one.stat(follow_symlinks=False).st_mtime
            if age > (_LEFT_OVER if one.name[0] == "." else _UNUSED):
                self.remove(one.name)
            else:
                kept.append((age, one.name))
        if len(kept) >= FILES:
            kept.sort()
            for _, name in kept[FILES - FILES // 10 :]:
                self.remove(name)


def _made(path: str) -> str:
    """The folder, with those above it; OSError for root in a folder that is not root's."""
    missing = []
    above = path
    while above not in {"", "/"} and not os.path.isdir(above):  # noqa: PTH112
        missing.append(above)
        above = os.path.dirname(above)  # noqa: PTH120
    if missing and os.geteuid() == 0 and os.stat(above).st_uid:  # noqa: PTH116
        # It would be root's in somebody's home, who could not write there ever after.
        raise OSError(above)
    for one in reversed(missing):
        try:
            os.mkdir(one, 0o700)  # noqa: PTH102
        except FileExistsError:
            continue  # another made it
    return path


def now() -> int:
    """The time as the files have it, in ms."""
    return int(time.time() * 1000)


def update(
    folder: Folder,
    name: str,
    found: Mapping[str, str | None],
    at: int,
    *,
    whole: bool = False,
    key: str = "",
) -> None:
    """Write down what is said of some names, as it was at a time (ms); None: it was not there.

    A `whole` list has all that there are. What is not a name goes nowhere.
    """
    marks = names.MARKS if name.rpartition("-")[2] in names.OWN else "-._"
    longest = names.LONGEST * (1 if "-instances-" not in name else 100)
    known = {
        one: None if said is None else _line(said[:longest])
        for one, said in found.items()
        if names.plain(one, marks)
    }
    as_of, before = names.load(folder.read(name), key)
    as_of, after = merged(as_of, before, known, at, whole=whole)
    folder.write(name, written(as_of, after, key))


def merged(
    as_of: int,
    before: names.Known,
    found: Mapping[str, str | None],
    at: int,
    *,
    whole: bool,
) -> tuple[int, names.Known]:
    """What is known once it is known what was found at a time (ms), and when all was asked for."""
    if whole and as_of > at:
        return as_of, before
    if not whole:
        # What a later list does not have was gone by then.
        fresh = {
            one: (at, said)
            for one, said in found.items()
            if before.get(one, (as_of, None))[0] <= at
        }
        return as_of, fresh | {one: it for one, it in before.items() if one not in fresh}
    # In doubt it was later; what the last list had is as old as that.
    late = {one: it for one, it in before.items() if it[0] >= at and it[0] > as_of}
    fresh = {one: (at, said) for one, said in found.items() if one not in late}
    return at, late | fresh


def written(as_of: int, known: names.Known, key: str = "") -> str:
    """The text of a file; of too many names the first."""
    lines = [f"{names.HEAD} {as_of} {key}".rstrip(" ")]
    left = names.LARGEST // 2
    for one, (at, said) in known.items():
        if said is not None:
            lines.append(f"{one}\t{said}" if at == as_of else f"{one}\t{said}\t{at}")
        elif at > as_of:
            # Once everything was asked for later, nobody needs to know what was gone before.
            lines.append(f"!{one}\t\t{at}")
        left -= len(lines[-1])
        if len(lines) > MOST or left < 0:
            break
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """A text on one short line, with nothing in it that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def locate(
    folder: Folder,
    line: place.Line,
    *,
    engine: str,
    cluster: str,
    namespace: str,
    also: Mapping[str, object],
) -> None:
    """Write down which cluster a line means; an empty namespace is one that is not known.

    `also` are files that decide and that the line does not name, with their stamps.
    """
    if any("\n" in path for path in also):
        return
    name = f"where-{place.digest(line.key)}"
    known = names.found(folder.read(name), line)
    namespace = namespace or known.get("namespace", "")
    told = {"engine": engine, "cluster": cluster, "namespace": namespace}
    same = all(known.get(field, "") == said for field, said in told.items())
    if same and folder.age(name) < _DAY:
        return
    lines = [names.WHERE, f"key {line.key}"]
    lines += [f"{field} {said}" for field, said in told.items()]
    lines += [f"also {mark!r}\t{path}" for path, mark in also.items()]
    folder.write(name, "\n".join(lines) + "\n")


def kept(environ: Mapping[str, str], act: Callable[[Folder], None]) -> None:
    """Write in the folder, or do without: never an error."""
    try:
        with Folder(environ) as folder:
            act(folder)
    except Exception:  # noqa: BLE001, S110 - names are a convenience
        pass
