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

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NoReturn

from arena_topo.errors import UsageError
from arena_topo.topology import MOST_GPUS, GPUSet, gpu_set
from arena_topo.topology.nics import NICs, parse_nics

BEYOND = "beyond"
"""What joins nodes that share no tier."""

RESERVED = frozenset({"node", BEYOND})
"""Level words that no tier may have: they stand for less and for more than any of them."""

MOST_LEVELS = 16
"""Levels of a network: from zones down to hosts there are half as many, which is what Kueue allows
(TopologySpec.levels)."""

LABEL = re.compile(
    r"(?=.{1,316}\Z)([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
)
"""A label key; the pattern and the length that Kueue allows (TopologyLevel.nodeLabel)."""


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


def read(data: Any, *, where: str) -> FabricFile:
    """Check a file as parsed; UsageError names the file (`where`) and the path in it.

    `levels`, coarse to near, each have `name`, `label` and maybe `bandwidthGBps`; beside them there
    may be `beyondGBps`. Bandwidths must not grow outward. `nics` are entries of `label`, `value`,
    `nics` (as `parse_nics` reads them) and maybe `near`, the GPUs near each NIC. A file with `nics`
    alone needs no levels.
    """
    return _File(where).read(data)


_EXPECTED = "levels run from coarse to near; each has a name, the key of a node label, maybe GB/s"
_EXAMPLE = "levels: [{name: rack, label: example.com/rack, bandwidthGBps: 50}]"

_NICS = "nics: [{label: example.com/pool, value: training, nics: 8x400G}]"
_SPEED = "write their number and the speed of each: 8x400G (Gb/s) or 8x50GB (GB/s)"
_NEAR = "near has a list of GPUs for each NIC: nics: 2x200G with near: [[0, 1], [2, 3]]"

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
"""The value of a label (Kubernetes, "Labels and Selectors")."""

_ANYTHING = re.compile(r".{1,64}")

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class _File:
    """A fabric file under examination: every complaint names it and the path inside."""

    def __init__(self, where: str) -> None:
        self._where = where

    def read(self, data: Any) -> FabricFile:
        """The levels, and the bandwidth beyond them where it is given."""
        file = self._mapping(data, "", ("levels", "beyondGBps", "nics"))
        nics = tuple(
            self._nics(one, f"nics[{at}]") for at, one in enumerate(self._list(file, "nics"))
        )
        listed = file.get("levels")
        if listed is None and nics and "beyondGBps" not in file:
            return FabricFile(where=self._where, levels=None, nics=nics)
        if not isinstance(listed, list):
            state = "is missing" if listed is None else f"is {show(listed)}, not a list"
            self._wrong("levels", state)
        if len(listed) > MOST_LEVELS:
            self._wrong("levels", f"has {len(listed)} levels; {MOST_LEVELS} are the most")
        levels: list[Level] = []
        for at, one in enumerate(listed):
            levels.append(self._level(one, f"levels[{at}]", levels))
        beyond = self._rate(file, "beyondGBps")
        self._check_growth(levels, beyond)
        return FabricFile(where=self._where, levels=tuple(levels), beyond=beyond, nics=nics)

    def _nics(self, data: Any, path: str) -> NodeNICs:
        entry = self._mapping(data, path, ("label", "value", "nics", "near"))
        label = self._text(entry, f"{path}.label", LABEL, "the key of a node label")
        value = self._text(entry, f"{path}.value", _VALUE, "the value of a node label, as a text")
        written = self._text(entry, f"{path}.nics", _ANYTHING, "a number and a speed, 8x400G")
        try:
            nics = parse_nics(written)
        except ValueError as error:
            self._wrong(f"{path}.nics", f"is {show(written)}: {error}", hint=_SPEED)
        near = self._near(entry, path, nics.number)
        return NodeNICs(label=label, value=value, nics=replace(nics, near=near))

    def _near(self, entry: Mapping[str, Any], path: str, number: int) -> tuple[GPUSet, ...] | None:
        if entry.get("near") is None:
            return None
        path = f"{path}.near"
        listed = self._list(entry, path)
        if len(listed) != number:
            problem = f"has {len(listed)} entries for {number} NICs"
            self._wrong(path, problem, hint=_NEAR)
        near: list[GPUSet] = []
        for at, gpus in enumerate(listed):
            if not isinstance(gpus, list) or not all(
                type(gpu) is int and 0 <= gpu < MOST_GPUS for gpu in gpus
            ):
                self._wrong(f"{path}[{at}]", f"is {show(gpus)}, not a list of GPUs", hint=_NEAR)
            near.append(gpu_set(gpus))
        return tuple(near)

    def _list(self, entry: Mapping[str, Any], path: str) -> list[Any]:
        value = entry.get(path.rpartition(".")[2])
        if value is None:
            return []
        if not isinstance(value, list):
            self._wrong(path, f"is {show(value)}, not a list", hint=_NICS)
        return value

    def _level(self, data: Any, path: str, before: Sequence[Level]) -> Level:
        entry = self._mapping(data, path, ("name", "label", "bandwidthGBps"))
        name = self._text(entry, f"{path}.name", _NAME, "a word of letters, digits, '-', '_', '.'")
        label = self._text(entry, f"{path}.label", LABEL, "the key of a node label")
        if name in RESERVED:
            self._wrong(f"{path}.name", f"is {name}, which is a level of its own")
        for at, other in enumerate(before):
            if other.name == name:
                self._wrong(f"{path}.name", f"is {name}, as is levels[{at}].name")
            if other.label == label:
                self._wrong(f"{path}.label", f"is {label}, as is levels[{at}].label")
        rate = self._rate(entry, f"{path}.bandwidthGBps")
        return Level(name=name, label=label, bandwidth=rate)

    def _mapping(self, data: Any, path: str, known: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            self._wrong(path, f"is {show(data)}, not a mapping of {', '.join(known)}")
        for key in data:
            if key not in known:
                inside = f"{path}." if path else ""
                shown = key if isinstance(key, str) and _NAME.fullmatch(key) else show(key)
                self._wrong(f"{inside}{shown}", f"is not known here; known: {', '.join(known)}")
        return data

    def _text(
        self, entry: Mapping[str, Any], path: str, pattern: re.Pattern[str], what: str
    ) -> str:
        value = entry.get(path.rpartition(".")[2])
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        return self._wrong(path, "is missing" if value is None else f"is {show(value)}, not {what}")

    def _rate(self, entry: Mapping[str, Any], path: str) -> float | None:
        value = entry.get(path.rpartition(".")[2])
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                rate = float(value)
            except OverflowError:
                rate = math.inf
            if math.isfinite(rate) and rate > 0:
                return rate
        return self._wrong(path, f"is {show(value)}, not a number of GB/s above 0")

    def _check_growth(self, levels: Sequence[Level], beyond: float | None) -> None:
        given = [("beyondGBps", beyond)]
        given += [(f"levels[{at}].bandwidthGBps", one.bandwidth) for at, one in enumerate(levels)]
        said = [(path, rate) for path, rate in given if rate is not None]
        for (path, rate), (nearer, less) in pairwise(said):
            if rate > less:
                self._wrong(
                    path,
                    f"is {rate:g}, more than the {less:g} of {nearer}, which is nearer",
                    hint="levels run from coarse to near, and bandwidth must not grow outward",
                )

    def _wrong(self, path: str, problem: str, *, hint: str | None = None) -> NoReturn:
        raise UsageError(
            f"{self._where}: {path or 'the file'} {problem}",
            why=None if hint else _EXPECTED,
            hint=hint or _EXAMPLE,
        )


def show(value: object) -> str:
    """Show a foreign value on one line, cut where it is long."""
    try:
        shown = repr(value)
    except ValueError:
        # Python refuses to print integers of more than 4300 digits.
        return "a huge number"
    return f"{shown[:37]}..." if shown[40:] else shown
