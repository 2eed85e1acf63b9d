"""A network as a person writes it down: its levels, and how fast each of them is.

    levels:
      - name: spine
        label: example.com/spine
        bandwidthGBps: 25
      - name: leaf
        label: example.com/leaf
        bandwidthGBps: 50
    beyondGBps: 3.1
    nics:
      - label: example.com/pool
        value: training
        nics: 4x200G
        near: [[0, 1], [2, 3], [4, 5], [6, 7]]

The format is documented in docs/how-it-works.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NoReturn

from arena_topo.errors import UsageError
from arena_topo.names import is_key, is_label_value, is_word
from arena_topo.topology import MOST_GPUS, gpu_set
from arena_topo.topology.fields import Field, show
from arena_topo.topology.nics import NICs, parse_nics

BEYOND = "beyond"
"""What joins nodes that share no tier."""

RESERVED = frozenset({"node", BEYOND})
"""Level words that no tier may have: they stand for less and for more than any of them."""

MOST_LEVELS = 16
"""Levels of a network: from zones down to hosts there are half as many, which is what Kueue allows
(TopologySpec.levels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of a fabric: the word for it, the label that tells it, GB/s where given."""

    name: str
    label: str
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNICs:
    """The NICs of all nodes on which a label has this value."""

    label: str
    value: str
    nics: NICs


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFile:
    """What a fabric file says: levels from coarse to near, GB/s beyond them where it is given.

    `levels` is None where the file leaves them to the cluster. Of `nics` the first that fits a node
    counts. `where` names the file for people.
    """

    where: str
    levels: tuple[Level, ...] | None
    beyond: float | None = None
    nics: tuple[NodeNICs, ...] = ()


_EXPECTED = "levels run from coarse to near; each has a name, the key of a node label, maybe GB/s"
_HINTS = {
    "nics": "nics: [{label: example.com/pool, value: training, nics: 8x400G}]",
    "": "levels: [{name: rack, label: example.com/rack, bandwidthGBps: 50}]",
}
"""What a person may have meant, by the beginning of the path."""


def read(data: Any, *, where: str) -> FabricFile:
    """Check a file as parsed; UsageError names the file (`where`) and the path in it.

    `levels`, coarse to near, each have `name`, `label` and maybe `bandwidthGBps`; beside them there
    may be `beyondGBps`. Bandwidths must not grow outward. `nics` are entries of `label`, `value`,
    `nics` (as `parse_nics` reads them) and maybe `near`, the GPUs near each NIC. A file with `nics`
    alone needs no levels.
    """

    def refuse(path: str, problem: str) -> NoReturn:
        hint = next(hint for start, hint in _HINTS.items() if path.startswith(start))
        why = _EXPECTED if hint == _HINTS[""] else None
        raise UsageError(f"{where}: {path or 'the file'} {problem}", why=why, hint=hint)

    file = Field(data, "", refuse)
    file.mapping("levels", "beyondGBps", "nics")
    nics = tuple(map(_nics, file["nics"].maybe(Field.items) or ()))
    beyond = file["beyondGBps"].maybe(Field.rate)
    if nics and beyond is None and file["levels"].value is None:
        return FabricFile(where=where, levels=None, nics=nics)
    levels: list[Level] = []
    for one in file["levels"].items(most=MOST_LEVELS):
        levels.append(_level(one, levels))
    given = [("beyondGBps", beyond)]
    given += [(f"levels[{at}].bandwidthGBps", one.bandwidth) for at, one in enumerate(levels)]
    for (path, rate), (nearer, less) in pairwise((path, rate) for path, rate in given if rate):
        if rate > less:
            raise UsageError(
                f"{where}: {path} is {rate:g}, more than the {less:g} of {nearer}, which is nearer",
                hint="levels run from coarse to near, and bandwidth must not grow outward",
            )
    return FabricFile(where=where, levels=tuple(levels), beyond=beyond, nics=nics)


def _level(told: Field, before: Sequence[Level]) -> Level:
    told.mapping("name", "label", "bandwidthGBps")
    name = told["name"].text(is_word, "a word of letters, digits, '-', '_', '.'")
    label = told["label"].text(is_key, "the key of a node label")
    if name in RESERVED:
        told["name"].refuse(f"is {name}, which is a level of its own")
    for at, other in enumerate(before):
        if other.name == name:
            told["name"].refuse(f"is {name}, as is levels[{at}].name")
        if other.label == label:
            told["label"].refuse(f"is {label}, as is levels[{at}].label")
    return Level(name=name, label=label, bandwidth=told["bandwidthGBps"].maybe(Field.rate))


def _nics(told: Field) -> NodeNICs:
    told.mapping("label", "value", "nics", "near")
    label = told["label"].text(is_key, "the key of a node label")
    value = told["value"].text(is_label_value, "the value of a node label, as a text")
    try:
        nics = parse_nics(told["nics"].text(None, "a number and a speed, 8x400G"))
    except ValueError as error:
        told["nics"].refuse(f"is {show(told['nics'].value)}: {error}")
    near = told["near"].maybe(
        lambda listed: tuple(
            gpu_set(gpu.whole(range(MOST_GPUS)) for gpu in gpus.items())
            for gpus in listed.items(nics.number)
        )
    )
    return NodeNICs(label=label, value=value, nics=replace(nics, near=near))
