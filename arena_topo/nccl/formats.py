"""The lines of NCCL that say how ranks are joined, each as the values in it.

Taken from NCCL's own source, 2.4 to 2.30: src/init.cc, src/graph/{connect,rings,search}.cc and
src/transport/{p2p,shm,net,coll_net,nvls}.cc. A line that only begins like one of them is torn, and
nothing of it is used: half a number is another number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from arena_topo.nccl import Connection, Family, Search, Side, Tree

MOST_RANKS = 1_000_000
"""More than any job has; a larger number is two numbers glued together."""


LONGEST_SAID = 400
"""Characters of a line that are kept for people to find it by."""

LONGEST_TREES = 850
"""Characters of a `Trees` line that NCCL surely writes to its end."""


class Torn(Exception):
    """The line begins like one that is known, and does not go on like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Via:
    """A `via` line: the connection, and how it calls the GPUs of its two ranks.

    A label is the bus id up to 2.16 and the index of nvidia-smi since; None in 2.4 to 2.6 for
    networks. `writer` is the rank that speaks.
    """

    connection: Connection
    source_label: str | None
    target_label: str | None
    writer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A line that tells who a rank is: "Init START", "Init COMPLETE" or the one with nNodes."""

    pointer: str
    rank: int
    size: int
    device: int | None = None
    nvml: int | None = None
    bus_id: str | None = None
    name: str | None = None
    parent: str | None = None
    split: tuple[int, int] | None = None
    nodes: int | None = None
    local: int | None = None
    complete: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A whole ring of a channel, as rank 0 lists it; None at the end: NCCL cut a long one."""

    channel: int
    channels: int
    ranks: tuple[int | None, ...]
    said: str = ""


_VIA = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/(\d+))? : (\d+)(?:\[([0-9a-f]+)\])? -> (\d+)(?:\[([0-9a-f]+)\])?"
    r"(?: \[(send|receive)\])? via (.+)"
)
_P2P = re.compile(
    r"P2P/(?:(IPC|CUMEM|MNNVL|direct pointer|common device)|(indirect)/\d+\[[0-9a-f]+\])"
    r"(?:/read)?(?:/CE)?"
)
_SHM = re.compile(r"SHM(?:/(?:direct|CE)){1,2}|direct shared memory")
_NET = re.compile(r"NET/([^/]+)/(\d+)(?:\((\d+)\))?(/GDRDMA)?(?:\(PCI\))?(?:/Shared)?")
_COLLNET = re.compile(
    r"Coll(?:Net)? \d+(?:/\d+)? : (\d+) \[(?:send|receive)\] via COLLNET/[^/]+/\d+"
    r"(?:/GDRDMA)?(?:\(PCI\))?"
)
_STEP = re.compile(r"Ring (\d+) : (\d+) -> (\d+) -> (\d+)")
_LISTED = re.compile(r"Channel (\d{2,})/(\d{2,}) ?:((?: +\d+)+) *(?:\.\.\.)?")
_BRANCH = re.compile(
    r"(\d+)\] (-?\d+(?:/-?\d+){0,7})->(\d+)->(-?\d+)(?:\|-?\d+->\d+->-?\d+(?:/-?\d+){0,7})?"
)
_TREE = re.compile(r"Tree (\d+) : (-?\d+) -> (\d+) -> (-?\d+(?:/-?\d+){0,7})")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), "
    r"type (\w+)/(\w+), sameChannels \d+"
)
_START = re.compile(
    r"(?:\[Rank \d+\] )?(?:\w+ )?comm (0x[0-9a-f]+) rank (\d+) nranks (\d+) cudaDev (-?\d+)"
    r"(?: nvmlDev (-?\d+))?(?: busId ([0-9a-f]+))?"
    r"(?: parent (0x[0-9a-f]+))?(?: (?:splitCount|childCount) (\d+))?(?: color (-?\d+) key -?\d+)?"
    r"(?: localSize \d+ used \d+ bytes)?(?: commId (0x[0-9a-f]+))? ?- Init (START|COMPLETE)"
)
_NODES = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks \d+ localRank (\d+)"
    r"(?: MNNVL \d+)?"
)

_PATTERNS = {
    1: "balanced tree",
    2: "split tree",
    3: "tree",
    4: "ring",
    5: "nvls",
    6: "collnet direct",
}
"""NCCL_TOPO_PATTERN_* of src/include/graph.h."""

_NUMBERED = ("Channel ", "Ring ", "Tree ", "Pattern ")
_HALF_START = re.compile(r"(?:\[Rank \d+\] )?(?:ncclComm\w+ )?comm 0x")
_OVER = re.compile(r".* - (?:Destroy|Abort|Revoke)\b")
_KNOWN = (*_NUMBERED, "Coll ", "CollNet ")

Event = Via | Start | Ring | Tree | Search | tuple[int, int, int, int] | int


def events(text: str, *, whole: bool) -> Iterator[Event]:
    """What a line says of the ranks; nothing where it is of another kind.

    A tuple is (channel, previous, rank, next) of a ring, a lone number a rank that sends or
    receives via COLLNET. Torn where the line is cut. With `whole` False its last number is not
    believed.
    """
    if text.startswith("Trees "):
        yield from _trees(text, whole=whole)
    elif " via " in text and text.startswith(_KNOWN):
        yield _via(text, whole=whole)
    elif "- Init " in text and "comm 0x" in text:
        yield _start(text)
    elif text.startswith("comm 0x") and " nNodes " in text:
        yield _nodes(text, whole=whole)
    elif " nranks " in text and _HALF_START.match(text) and not _OVER.match(text):
        raise Torn
    elif text.startswith(_KNOWN):
        found = _other(text, whole=whole)
        if found is not None:
            yield found


def _other(text: str, *, whole: bool) -> Event | None:
    if (found := _LISTED.fullmatch(text)) and (whole or text.endswith(".")):
        ranks: tuple[int | None, ...] = tuple(map(int, found[3].split()))
        if text.endswith("."):
            # The dots overwrite the last three characters: the last number may be half of one.
            ranks = (*ranks[:-1], None)
        return Ring(
            channel=int(found[1]), channels=int(found[2]), ranks=ranks, said=text[:LONGEST_SAID]
        )
    if whole and (found := _STEP.fullmatch(text)):
        channel, previous, rank, following = map(int, found.groups())
        return channel, previous, rank, following
    if whole and (found := _TREE.fullmatch(text)):
        return _tree(int(found[1]), found[4], int(found[3]), found[2])
    if whole and (found := _PATTERN.fullmatch(text)):
        return Search(
            pattern=_PATTERNS.get(int(found[1]), found[1]),
            channels=int(found[2]),
            inside=found[5],
            between=found[6],
            inside_bandwidth=float(found[3]),
            between_bandwidth=float(found[4]),
            said=text[:LONGEST_SAID],
        )
    if text.startswith(_NUMBERED):
        raise Torn
    return None


def _via(text: str, *, whole: bool) -> Via | int:
    if found := _COLLNET.fullmatch(text):
        return int(found[1])
    found = _VIA.fullmatch(text)
    if found is None:
        raise Torn
    channel, index, source, source_label, target, target_label, side, detail = found.groups()
    family, kind, nic, proxy, gdr = _transport(detail, whole=whole)
    said = Side(side) if side else None
    if (family is Family.NET) != (said is not None) or max(int(source), int(target)) > MOST_RANKS:
        raise Torn
    return Via(
        connection=Connection(
            channel=int(channel),
            index=None if index is None else int(index),
            source=int(source),
            target=int(target),
            family=family,
            kind=sys.intern(kind),
            detail=sys.intern(detail),
            side=said,
            nic=nic,
            proxy=proxy,
            gdr=gdr,
            said=text[:LONGEST_SAID],
        ),
        source_label=source_label,
        target_label=target_label,
        writer=int(target if said is Side.RECEIVE else source),
    )


def _transport(
    detail: str, *, whole: bool
) -> tuple[Family, str, int | None, int | None, bool | None]:
    """Family, kind, network device, proxy and GPU Direct of what follows `via`."""
    if found := _P2P.fullmatch(detail):
        return Family.P2P, f"P2P/{found[1] or found[2]}", None, None, None
    if _SHM.fullmatch(detail):
        return Family.SHM, "SHM", None, None, None
    found = _NET.fullmatch(detail)
    if found is None:
        raise Torn
    nic: int | None = int(found[2])
    proxy = int(found[3]) if found[3] else None
    gdr: bool | None = found[4] is not None
    if not whole:
        gdr = gdr or None
        nic = None if detail[-1].isdigit() else nic
    return Family.NET, f"NET/{found[1]}", nic, proxy, gdr


def _start(text: str) -> Start:
    found = _START.match(text)
    if found is None:
        raise Torn
    pointer, rank, size, device, nvml, bus, parent, count, color, name, word = found.groups()
    if int(size) > MOST_RANKS or int(rank) >= int(size):
        raise Torn
    split = None
    if parent is not None:
        split = (int(count) if count else -1, int(color) if color else 0)
    return Start(
        pointer=pointer,
        rank=int(rank),
        size=int(size),
        device=int(device),
        nvml=None if nvml is None else int(nvml),
        bus_id=bus,
        parent=parent,
        split=split,
        name=name,
        complete=word == "COMPLETE",
        said=text[:LONGEST_SAID],
    )


def _nodes(text: str, *, whole: bool) -> Start:
    found = _NODES.fullmatch(text)
    if found is None:
        raise Torn
    if int(found[3]) > MOST_RANKS or int(found[2]) >= int(found[3]):
        raise Torn
    local = int(found[5]) if whole or not text.endswith(found[5]) else None
    return Start(
        pointer=found[1],
        rank=int(found[2]),
        size=int(found[3]),
        nodes=int(found[4]),
        local=local,
        said=text[:LONGEST_SAID],
    )


def _trees(text: str, *, whole: bool) -> Iterator[Tree]:
    """`[0] 1/-1/-1->0->-1`: children, rank, parent. 2.5 to 2.7 add a tree downwards after `|`."""
    told = text.removeprefix("Trees").split(" [")[1:]
    # NCCL writes at most 1,024 characters, prefix included: the end of a long line may be lost.
    sure = len(told) if whole and len(text) < LONGEST_TREES else len(told) - 1
    for number, one in enumerate(told):
        found = _BRANCH.fullmatch(one)
        if found is None:
            raise Torn
        if number < sure:
            yield _tree(int(found[1]), found[2], int(found[3]), found[4])


def _tree(channel: int, down: str, rank: int, up: str) -> Tree:
    parent = int(up)
    return Tree(
        channel=channel,
        rank=rank,
        up=parent if parent >= 0 else None,
        down=tuple(int(child) for child in down.split("/") if int(child) >= 0),
    )
