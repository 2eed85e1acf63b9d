"""Value tables of large irregular machines, kept on disk between runs.

    $XDG_CACHE_HOME/arena-topo/tables/<fingerprint>.bin     ~/.cache/... where that is not set

The fingerprint is a hash of all that the values depend on: links, model, PCIe generation, NVSwitch,
the rates of the model, the format. A file holds a head, the checksum of the rest, and the rest; it
is data, never code. A cache is a convenience: what cannot be read, is cut short, is not ours or
belongs to another user is worked out again, and where nothing can be written nothing is kept. None
of it is ever an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from arena_topo.solver import cost, layers
from arena_topo.solver.configurations import table
from arena_topo.topology import Cluster, Configuration

KEPT_ABOVE = 8
"""GPUs of a machine up to which its table takes a few milliseconds and is not kept."""

FORMAT = 1
"""Changes with the layout of the file, and with the algorithm behind the values."""

HEAD = b"arena-topo table %d\n" % FORMAT

LARGEST = 64 << 20
"""Bytes of a file that is read at all; the largest table has a tenth of that."""


def prepare(cluster: Cluster) -> None:
    """Have the tables of large irregular machines ready before jobs are placed on them.

    Each is loaded, or worked out and stored. Other machines never touch the disk.
    """
    large: dict[tuple[object, ...], Configuration] = {}
    for node in cluster.nodes:
        one = node.machine
        if len(one.gpus) > KEPT_ABOVE:
            # Comparing matrices takes long, and most nodes of a kind share one object.
            key = (id(one.links), one.model, one.nvswitch, one.pcie_generation, one.measured)
            if key not in large:
                large[key] = one.configuration
    for configuration in large.values():
        shape = table(configuration)
        if shape.uniform or shape.built:
            continue
        values = load(configuration)
        if values is not None and shape.restore(values):
            continue
        if shape.tabulated:
            store(configuration, shape.values())


def load(configuration: Configuration) -> bytes | None:
    """The stored values of a configuration; None if there are none that can be trusted."""
    path = _path(configuration)
    content = b"" if path is None else _read(path)
    start = len(HEAD) + hashlib.sha256().digest_size
    values = content[start:]
    return values if content[:start] == HEAD + hashlib.sha256(values).digest() else None


def _read(path: Path) -> bytes:
    """The content of a file of ours; nothing if it cannot be read or is somebody else's."""
    # Without waiting, should somebody have put a pipe there.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123  flags of its own
            status = os.fstat(file.fileno())
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            return file.read() if ours and status.st_size <= LARGEST else b""
    except OSError:
        return b""


def store(configuration: Configuration, values: bytes) -> None:
    """Keep the values of a configuration for later runs, if that is possible."""
    path = _path(configuration)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(HEAD + hashlib.sha256(values).digest() + values)
            # Whoever comes last replaces the file whole; readers see one or the other.
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)


def folder() -> Path | None:
    """Where tables are kept; None for a user without a home."""
    # The XDG specification says to ignore relative paths.
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "arena-topo" / "tables"
    if os.environ.get("HOME") == "":
        return None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "arena-topo" / "tables" if home.is_absolute() else None


def fingerprint(configuration: Configuration) -> str:
    """A hash of all that the values of a configuration depend on; measured values are none."""
    rates = {
        str(link): cost.link_rate(link, configuration)
        for row in configuration.links
        for link in row
        if link is not None
    }
    told = (
        FORMAT,
        [[str(link) for link in row] for row in configuration.links],
        sorted(rates.items()),
        configuration.model,
        configuration.pcie_generation,
        configuration.nvswitch,
        cost.lane_rate(configuration.model),
        layers.EFFORT,
    )
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _path(configuration: Configuration) -> Path | None:
    at = folder()
    return None if at is None else at / f"{fingerprint(configuration)}.bin"
