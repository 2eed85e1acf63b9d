"""The names of the living world, as a TAB reads them: from files, at once, never from a server.

    of("jobs", ["delete", "bert", ""], os.environ) -> [("bert", "RUNNING, 8 GPUs"), ...]

The files are written by the commands that know such names anyway (`keeping`), and by a child that
is started here where they are old (`refresh`). Those of jobs on this machine are not needed: their
folders are looked at.

    $XDG_CACHE_HOME/arena-topo/names/         ~/.cache/... where that is not set; of mode 0700
      where-<line>                            which cluster a line means: see `place`
      <cluster>-jobs-<namespace>              a name a line, what is said of it, and when
      <cluster>-instances-<namespace>         the pods of each job
      <cluster>-{namespaces,nodes,priorities}, <cluster>-claims-<namespace>
      <files>-{contexts,clusters,users,profiles}
      turn-<question>                         that a child is under way, or has failed

Whatever is wrong with a file, there are no names in it. What is not the user's own, or open to
others, is not read, and neither is more of it than LARGEST.
"""

from __future__ import annotations

import os
import time
from stat import S_ISREG

from arena_topo.completion import place

TYPE_CHECKING = False
"""As in `typing`, which would take as long to load as all the rest."""

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Names = list[tuple[str, str]]

    Known = dict[str, tuple[int, str | None]]
    """Names, when each was known to be true (ms), and what is said of it; None: it is gone."""

LARGEST = 1 << 20
"""Bytes that are read of a file: some ten thousand names."""

HEAD = "arena-topo names 1"
"""How a file of names begins; then comes when all of them were asked for (ms), and its key."""

OWN = frozenset({"contexts", "clusters", "users", "profiles"})
"""Kinds of names that stand in files of the user's, not in a cluster."""

OF_NAMESPACES = frozenset({"jobs", "instances", "claims"})

FRESH = {"jobs": 5, "instances": 5, "namespaces": 60, "nodes": 60, "claims": 60, "priorities": 600}
"""Seconds after which names are asked for anew; those of OWN change with their files alone."""

CONTAINERS = [("mpi", "")]
"""The container of each pod, as `templates/mpijob/pod.yaml.j2` calls it."""

_DESCRIBED = 64
"""Local jobs up to which it is read how each stands: that takes a moment for each of them."""

_DIGITS = 5
"""Digits from which on a number of emulated machines is too large to be offered."""

LONGEST = 80
"""Characters that are said of a name."""

_LONGEST_NAME = 253
"""Characters of a name: as many as an object of Kubernetes may have (RFC 1123, a subdomain)."""

MARKS = "-._@%+=:,/"
"""What names of OWN may have beside letters and digits: no shell takes any of it for its own."""


def of(kind: str, words: Sequence[str], environ: Mapping[str, str]) -> Names:
    """The names of a kind (one of `flag.KINDS`) that a line may mean, and what is said of each.

    `words` are those after the program's name, up to the one at the cursor, which does not count:
    flags as `--flag=value`, then `--` and the words that are none.
    Names have no character that a shell takes for anything but itself. Never an error: where
    nothing is known there are no names, and where what is known is old, a child goes and asks.
    """
    try:
        return _of(kind, words[:-1], environ)
    except Exception:  # noqa: BLE001 - nothing may get into the way of typing
        return []


def _of(kind: str, words: Sequence[str], environ: Mapping[str, str]) -> Names:
    if kind == "containers":
        return CONTAINERS
    line = place.Line(words, environ)
    if kind in OWN:
        as_of, known = load(read(line.environ, f"{place.digest(line.files)}-{kind}"), line.files)
        if not as_of:
            _ask(kind, line)
        return _shown(known, MARKS)
    if kind not in FRESH:
        return []
    engine, cluster, namespace = line.engine, "", line.namespace or line.default
    if engine != "local" or not namespace:
        engine, cluster, default = where(line)
        namespace = namespace or default
    if engine != "local":
        return _kept(kind, cluster, namespace, line)
    if kind == "nodes":
        return _kept(kind, local(line), namespace, line) or _emulated(line.emulate)
    return _local(kind, namespace, line)


def _kept(kind: str, cluster: str, namespace: str, line: place.Line) -> Names:
    """Names of a cluster, from its file."""
    if not cluster or (kind in OF_NAMESPACES and not namespace):
        _ask("jobs" if kind == "instances" else kind, line)
        return []
    name = f"{cluster}-{kind}" + (f"-{namespace}" if kind in OF_NAMESPACES else "")
    as_of, known = load(read(line.environ, name))
    if kind == "instances":
        return _instances(known, as_of, line)
    if not 0 <= time.time() - as_of / 1000 < FRESH[kind]:
        _ask(kind, line)
    return _shown(known)


def _ask(kind: str, line: place.Line, job: str = "") -> None:
    try:
        from arena_topo.completion import refresh  # noqa: PLC0415 - most names are fresh

        refresh.start(kind, line, job)
    except Exception:  # noqa: BLE001, S110 - what is known is shown all the same
        pass


def _instances(known: Known, as_of: int, line: place.Line) -> Names:
    """The pods of the job that the line names: of the first word that is one."""
    for word in line.words:
        at, text = known.get(word, (0, None))
        if text is not None:
            if not 0 <= time.time() - max(at, as_of) / 1000 < FRESH["instances"]:
                _ask("instances", line, word)
            pods = (one.partition("=") for one in text.split(";"))
            return _shown({pod: (0, said) for pod, mark, said in pods if mark})
    _ask("jobs", line)
    return []


def _shown(known: Known, marks: str = "-._") -> Names:
    """What may be shown of what is known, in its order."""
    return [
        (name, said if said.isprintable() else "")
        for name, (_, said) in known.items()
        if said is not None and plain(name, marks)
    ]


def plain(name: str, marks: str = "-._") -> bool:
    """Whether a name has but letters, digits and these marks, and begins with none of them.

    It is no longer than _LONGEST_NAME: nobody can read more, and shells get slow.
    """
    rest = name if len(name) <= _LONGEST_NAME else ""
    for mark in marks:
        rest = rest.replace(mark, "")
    return rest.isalnum() and name[0] not in marks and (rest.isascii() or marks is MARKS)


# ---------------------------------------------------------------- files


def folder(environ: Mapping[str, str]) -> str:
    """Where the files are; empty for a user without a home folder."""
    base = place.below("XDG_CACHE_HOME", ".cache", environ)
    return base and f"{base}/arena-topo/names"


def entered(path: str) -> int:
    """The open folder of the files; OSError if it is not the user's own, and closed to others."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(opened)
        raise OSError(path)
    return opened


def read(environ: Mapping[str, str], name: str) -> str:
    """The text of a file; empty where there is none that may be read."""
    try:
        opened = entered(folder(environ))
    except OSError:
        return ""
    try:
        return content(opened, name)
    finally:
        os.close(opened)


def content(opened: int, name: str) -> str:
    """The text of a file in the open folder, up to the last whole line; empty if there is none."""
    # Without waiting, should somebody have put a pipe there.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=opened)
    except (OSError, ValueError):
        return ""
    try:
        status = os.fstat(file)
        if not S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return ""
        data = os.read(file, LARGEST)
    finally:
        os.close(file)
    return data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")


def load(text: str, key: str = "") -> tuple[int, Known]:
    """When all names of a file were asked for (ms, 0: never), and what is known of each.

    Nothing of a file with another key. What is said to be of the future is of no time at all:
    somebody has set the clock back.
    """
    head, _, rest = text.partition("\n")
    if not head.startswith(HEAD):
        return 0, {}
    told, _, its = head[len(HEAD) + 1 :].partition(" ")
    if its != key:
        return 0, {}
    now = int(time.time() * 1000)
    as_of = _past(told, now)
    known: Known = {}
    for one in rest.split("\n"):
        name, tab, said = one.partition("\t")
        if not tab:
            continue
        said, _, told = said.partition("\t")
        at = _past(told, now) if told else as_of
        if name[0:1] == "!":
            known[name[1:]] = (at, None)
        else:
            known[name] = (at, said)
    return as_of, known


def _past(text: str, now: int) -> int:
    """A time of the past in ms; 0 for any other text."""
    if not text.isdecimal() or len(text) > len(str(now)):
        return 0
    at = int(text)
    return at if at <= now else 0


# ---------------------------------------------------------------- which cluster

WHERE = "arena-topo where 1"


def where(line: place.Line) -> tuple[str, str, str]:
    """The engine, the cluster and the namespace that a line means; empty what is not known."""
    known = found(read(line.environ, f"where-{place.digest(line.key)}"), line)
    if not known:
        return line.engine, "", ""
    engine = line.engine or known.get("engine", "")
    return engine, known.get("cluster", ""), known.get("namespace", "")


def found(text: str, line: place.Line) -> dict[str, str]:
    """What such a file says of a line; nothing where it is of another, or has become untrue."""
    lines = text.split("\n")
    if lines[0] != WHERE:
        return {}
    known: dict[str, str] = {}
    for one in lines[1:]:
        field, _, said = one.partition(" ")
        if field == "also":
            mark, _, path = said.partition("\t")
            if repr(place.stamp(path)) != mark:
                return {}
        else:
            known[field] = said
    return known if known.get("key") == line.key else {}


def local(line: place.Line) -> str:
    """What stands for this machine, or for the machines that it pretends to be."""
    return place.digest(f"local {line.emulate} {line.files if line.settings else ''}")


# ---------------------------------------------------------------- this machine


def _local(kind: str, namespace: str, line: place.Line) -> Names:
    """Names of the local engine, from its folders (see `engines.local.ledger`)."""
    base = place.below("XDG_STATE_HOME", ".local/state", line.environ)
    jobs = f"{base}/arena-topo/jobs"
    if kind == "namespaces":
        return [(one, "") for one in sorted({"default", *_folders(jobs)})]
    if not plain(namespace):
        return []
    if kind == "jobs":
        names = _folders(f"{jobs}/{namespace}")
        if len(names) > _DESCRIBED:
            return [(one, "") for one in names]
        return [(one, _standing(f"{jobs}/{namespace}/{one}")) for one in names]
    if kind == "instances":
        for word in line.words:
            if plain(word) and (pods := _folders(f"{jobs}/{namespace}/{word}/pods")):
                return [(one, "") for one in pods]
    return []


def _emulated(spec: str) -> Names:
    """The machines that `topology.presets.emulated` makes of this; none where it has a mistake."""
    found: Names = []
    made: dict[str, int] = {}
    presets: dict[str, str] = {}
    if spec:
        with open(f"{__file__.rpartition('/')[0]}/words.txt", encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().partition("[=presets]\n")[2].partition("\n[")[0].split("\n")
        presets = dict(line.partition("\t")[::2] for line in lines)
    for part in spec.split(",") if spec else ():
        preset, colon, written = (one.strip() for one in part.partition(":"))
        count = int(written) if written.isdecimal() and len(written) < _DIGITS else 0
        if preset not in presets or (colon and not count):
            return []
        said = gpus(int(presets[preset].partition(" ")[0]))
        first = made.get(preset, 0)
        made[preset] = first + (count or 1)
        found += [(f"{preset}-{number}", said) for number in range(first, made[preset])]
    return found


def _folders(path: str) -> list[str]:
    """The names of the folders in one; those that start with a dot are not finished."""
    try:
        with os.scandir(path) as entries:
            return sorted(one.name for one in entries if plain(one.name) and one.is_dir())
    except OSError:
        return []


def _standing(path: str) -> str:
    """How a local job stands, as far as its files say."""
    parts = []
    phase = _said(f"{path}/record", '"phase": "')
    if phase.isalpha():
        parts.append(phase)
    wanted = [_said(f"{path}/submission.json", f'"{key}": ') for key in ("workers", "gpus")]
    if all(one.isdecimal() and len(one) < _DIGITS for one in wanted):
        parts.append(gpus(int(wanted[0]) * int(wanted[1])))
    return ", ".join(parts)


def _said(path: str, key: str) -> str:
    """The value behind a key of a small JSON file of ours; empty where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        text = os.read(file, 4096).decode("utf-8", "replace")
    finally:
        os.close(file)
    _, found, rest = text.partition(key)
    return rest[:LONGEST].replace('"', ",").partition(",")[0] if found else ""


def gpus(count: int) -> str:
    """So many GPUs, in words."""
    return f"{count} GPU{'' if count == 1 else 's'}"
