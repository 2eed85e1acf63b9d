"""For each bandwidth a machine can have: which sets of GPUs reach it.

A set can only reach a bandwidth inside a *part*: GPUs that hang together by links of that rate or
by NVLink. Where all GPUs of a part are joined at that rate (every level of a PCIe tree, an NVLink
quad), any set of them reaches it, which needs no table. Elsewhere the part keeps the family of its
sets (`families`). Parts of a machine are small, so questions about the best of all sets are
answered part by part, without going through the sets.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from arena_topo.bandwidth import packing
from arena_topo.solver import families
from arena_topo.topology import GPUSet, count, gpu_set, members

EFFORT = 200_000
"""Steps spent on packing rings through all sets of one NVLink mesh, at 1 to 3 us each; after that
what was found counts, and what cannot be excluded is the bound."""

EFFORT_EACH = 10_000
"""Steps spent on one set. Of 90 random dense meshes of 8 GPUs the hardest took 2,700."""

SEARCHED = 16
"""GPUs of an NVLink mesh up to which sets are searched one by one for more rings side by side."""


class Part:
    """GPUs of which any set of `least` or more reaches a bandwidth, or the sets of a family."""

    def __init__(self, gpus: GPUSet, *, least: int = 2, family: int | None = None) -> None:
        self.gpus = gpus
        self.least = least
        self.size = count(gpus)
        self._members = members(gpus)
        self._locals: dict[int, int] = {0: 0}
        self._fitting: dict[int, bytes] = {}
        self._slower: dict[int, bytes] = {}
        self._evading: dict[int, list[bytes]] = {}
        self._packing: dict[int, list[bytes]] = {}
        self.family = family
        self._bytes = b"" if family is None else _packed_bits(self.size, family)

    def holds(self, gpus: int) -> bool:
        """Whether this set reaches the bandwidth; it must lie inside the part."""
        if self.family is None:
            return gpus.bit_count() >= self.least
        return _has(self._bytes, self.local(gpus))

    def fits(self, free: int, size: int) -> bool:
        """Whether some `size` of these GPUs reach the bandwidth."""
        inside = free & self.gpus
        if inside.bit_count() < size:
            return False
        if self.family is None:
            return size >= self.least
        known = self._fitting.get(size)
        if known is None:
            chosen = self.family & families.sized(self.size, size)
            known = self._fitting[size] = _packed_bits(
                self.size, families.upward(self.size, chosen)
            )
        return _has(known, self.local(inside))

    def most_without(self, free: int, size: int) -> int:
        """The most of these GPUs among which no `size` reach the bandwidth."""
        inside = free & self.gpus
        if self.family is None:
            many = inside.bit_count()
            return min(many, size - 1) if size >= self.least else many
        return max(
            (
                many + 1
                for many, known in enumerate(self._without(size))
                if _has(known, self.local(inside))
            ),
            default=0,
        )

    def has_slower(self, free: int, size: int) -> bool:
        """Whether some `size` of these GPUs do not reach the bandwidth."""
        inside = free & self.gpus
        if inside.bit_count() < size:
            return False
        if self.family is None:
            return size < self.least
        known = self._slower.get(size)
        if known is None:
            slower = families.sized(self.size, size) & ~self.family
            known = self._slower[size] = _packed_bits(self.size, families.upward(self.size, slower))
        return _has(known, self.local(inside))

    def groups(self, free: int, size: int) -> int:
        """How many disjoint sets of `size` of these GPUs reach the bandwidth at once."""
        inside = free & self.gpus
        if self.family is None:
            return inside.bit_count() // size if size >= self.least else 0
        if not self.fits(inside, size):
            return 0
        if self.size > SEARCHED:
            # Unions of sets take too long here: one is certain, as many as there is room for taken.
            return inside.bit_count() // size
        known = self._packing.get(size)
        if known is None:
            known = self._packing[size] = [
                _packed_bits(self.size, family)
                for family in families.packed(self.size, self.family, size)
            ]
        at = self.local(inside)
        return sum(_has(family, at) for family in known)

    def first(self, free: int, size: int) -> GPUSet:
        """A set of `size` of these GPUs that reaches the bandwidth; `fits` must say there is one.

        GPUs of high index are left out as long as that is possible.
        """
        inside = members(GPUSet(free & self.gpus))
        if self.family is None:
            return gpu_set(inside[:size])
        left = free & self.gpus
        for gpu in reversed(inside):
            if self.fits(left & ~(1 << gpu), size):
                left &= ~(1 << gpu)
        return GPUSet(left)

    def local(self, gpus: int) -> int:
        """The same set in the numbering of the part."""
        found = self._locals.get(gpus)
        if found is None:
            found = self._locals[gpus] = sum(
                1 << place for place, gpu in enumerate(self._members) if gpus >> gpu & 1
            )
        return found

    def _without(self, size: int) -> list[bytes]:
        """By number from one: the sets that hold so many GPUs without `size` that are fast."""
        known = self._evading.get(size)
        if known is None:
            assert self.family is not None
            chosen = self.family & families.sized(self.size, size)
            slow = families.every(self.size) ^ families.upward(self.size, chosen)
            known = self._evading[size] = [
                _packed_bits(
                    self.size,
                    families.upward(self.size, slow & families.sized(self.size, many)),
                )
                for many in range(1, self.size + 1)
            ]
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The sets of two or more GPUs that have a bandwidth (GB/s) or more: disjoint parts."""

    bandwidth: float
    parts: tuple[Part, ...]

    def holds(self, gpus: int) -> bool:
        """Whether this set has the bandwidth."""
        for part in self.parts:
            if gpus & part.gpus:
                return not gpus & ~part.gpus and part.holds(gpus)
        return False

    def fits(self, free: int, size: int) -> bool:
        """Whether some `size` of these GPUs have the bandwidth."""
        return any(part.fits(free, size) for part in self.parts)

    def fits_any(self, free: int, left: int, size: int) -> bool:
        """Whether any `left` of these GPUs hold `size` that have the bandwidth."""
        outside = free
        evading = 0
        for part in self.parts:
            outside &= ~part.gpus
            evading += part.most_without(free, size)
        return left > evading + outside.bit_count()

    def has_slower(self, free: int, size: int) -> bool:
        """Whether some `size` of these GPUs, two or more, do not have the bandwidth."""
        if free.bit_count() < size:
            return False
        # GPUs of two parts have no ring at this bandwidth.
        if not any(free & ~part.gpus == 0 for part in self.parts):
            return True
        return any(part.has_slower(free, size) for part in self.parts)

    def examples(self, free: int, size: int) -> Iterator[GPUSet]:
        """A set of `size` of these GPUs that has the bandwidth, from each part that holds one."""
        return (part.first(free, size) for part in self.parts if part.fits(free, size))

    def groups(self, free: int, size: int) -> int:
        """How many disjoint sets of `size` of these GPUs have the bandwidth at once."""
        return sum(part.groups(free, size) for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """GPUs that hang together by NVLink; by number of rings from one up, the sets with so many.

    `found` are the sets in which the rings are known, `bound` those in which they may be.
    """

    gpus: GPUSet
    found: tuple[Part, ...]
    bound: tuple[Part, ...]


def layers(
    rates: Sequence[Sequence[float]],
    lanes: Sequence[Sequence[int]],
    lane_rate: float,
    *,
    bound: bool = False,
) -> tuple[Layer, ...]:
    """Every bandwidth of a machine, most first, with the sets that are known to reach it.

    `rates` are GB/s of each link, `lanes` the NVLinks among them, of `lane_rate` each. With
    `bound` the sets that may reach it: no others can.
    """
    meshes = [_mesh(lanes, one) for one in _components(_adjacent(lanes, 1)) if count(one) >= RING]
    meshes = [one for one in meshes if one.bound]
    most = max((len(one.bound) for one in meshes), default=0)
    speeds = {rate for at, row in enumerate(rates) for rate in row[:at]}
    speeds |= {2 * many * lane_rate for many in range(1, most + 1)}
    found = []
    for speed in sorted(speeds, reverse=True):
        needed = next(many for many in itertools.count(1) if 2 * many * lane_rate >= speed)
        parts = _Parts(rates, meshes, speed, needed, bound=bound)
        found.append(Layer(bandwidth=speed, parts=tuple(parts.all())))
    return tuple(found)


class _Parts:
    """The parts of one bandwidth, which takes `needed` rings side by side over NVLink."""

    def __init__(
        self,
        rates: Sequence[Sequence[float]],
        meshes: Sequence[Mesh],
        speed: float,
        needed: int,
        *,
        bound: bool,
    ) -> None:
        self.adjacent = _adjacent(rates, speed)
        self.meshes = meshes
        self.needed = needed
        self.bound = bound

    def all(self) -> Iterator[Part]:
        """All parts, by their first GPU."""
        joined = list(self.adjacent)
        for one in self.meshes:
            if self._rings(one):
                for gpu in members(one.gpus):
                    joined[gpu] |= one.gpus & ~(1 << gpu)
        for gpus in _components(joined):
            if count(gpus) > 1:
                yield from self._split(gpus)

    def _rings(self, one: Mesh) -> Part | None:
        """The sets of a mesh with as many rings as needed."""
        parts = one.bound if self.bound else one.found
        return parts[self.needed - 1] if len(parts) >= self.needed else None

    def _split(self, gpus: GPUSet) -> Iterator[Part]:
        inside = [one for one in self.meshes if count(GPUSet(one.gpus & gpus)) >= RING]
        if self._complete(gpus):
            # An NVLink ring over links of this rate has lanes enough for as many rings.
            yield Part(gpus)
        elif len(inside) == 1 and inside[0].gpus == gpus and not self._linked(gpus):
            part = self._rings(inside[0])
            if part is not None:
                yield part
        elif count(gpus) <= families.MOST and all(one.found for one in inside):
            yield Part(gpus, family=self._family(gpus, inside))
        elif self.bound:
            yield Part(gpus)
        else:
            yield from self._cliques(gpus)

    def _family(self, gpus: GPUSet, inside: Iterable[Mesh]) -> int:
        family = families.rings(_within(self.adjacent, gpus))
        for one in inside:
            # A set with an NVLink ring is worth its rings, even where PCIe alone is faster. The
            # first part holds all sets with a ring: that one is always exact.
            family &= ~_embedded(one.found[0], gpus)
            part = self._rings(one)
            if part is not None:
                family |= _embedded(part, gpus)
        return family

    def _complete(self, gpus: GPUSet) -> bool:
        return all(gpus & ~self.adjacent[gpu] == 1 << gpu for gpu in members(gpus))

    def _linked(self, gpus: GPUSet) -> bool:
        return any(self.adjacent[gpu] & gpus for gpu in members(gpus))

    def _cliques(self, gpus: GPUSet) -> Iterator[Part]:
        """Disjoint groups of GPUs that are all joined, each as large as it gets by index."""
        while gpus:
            group, near = 0, int(gpus)
            while near:
                low = near & -near
                group |= low
                near &= self.adjacent[low.bit_length() - 1]
            if group.bit_count() > 1:
                yield Part(GPUSet(group))
            gpus = GPUSet(gpus & ~group)


def same(some: Sequence[Layer], others: Sequence[Layer]) -> bool:
    """Whether layers hold the same sets, told by their parts."""

    def spelled(all_of: Sequence[Layer]) -> list[object]:
        return [
            (one.bandwidth, [(part.gpus, part.least, part.family) for part in one.parts])
            for one in all_of
            if one.parts
        ]

    return spelled(some) == spelled(others)


# ---------------------------------------------------------------- layers as bytes

_LAYER = struct.Struct("<dI")
"""Bandwidth, number of parts."""

_PART = struct.Struct("<16sII")
"""GPUs as bits, the fewest of them in a set, bytes of the family that follow (0: all sets)."""


def dump(both: tuple[tuple[Layer, ...], tuple[Layer, ...]], size: int) -> bytes:
    """Layers of known and of possible sets as bytes; `load` takes them back."""
    assert size <= 8 * 16
    out = bytearray()
    for some in both:
        out += len(some).to_bytes(4, "little")
        for layer in some:
            out += _LAYER.pack(layer.bandwidth, len(layer.parts))
            for part in layer.parts:
                family = part.family
                bits = b"" if family is None else _packed_bits(part.size, family)
                out += _PART.pack(part.gpus.to_bytes(16, "little"), part.least, len(bits)) + bits
    return bytes(out)


def load(values: bytes, size: int) -> tuple[tuple[Layer, ...], tuple[Layer, ...]] | None:
    """The layers that `dump` wrote for so many GPUs; None if the bytes make no sense."""
    try:
        reader = _Reader(values)
        known, possible = reader.layers(size), reader.layers(size)
    except (ValueError, struct.error):
        return None
    return (known, possible) if reader.at == len(values) else None


class _Reader:
    def __init__(self, values: bytes) -> None:
        self.values = values
        self.at = 0

    def take(self, size: int) -> bytes:
        found = self.values[self.at : self.at + size]
        if len(found) < size:
            raise ValueError("the bytes end early")
        self.at += size
        return found

    def layers(self, size: int) -> tuple[Layer, ...]:
        many = int.from_bytes(self.take(4), "little")
        found: list[Layer] = []
        for _ in range(many):
            bandwidth, parts = _LAYER.unpack(self.take(_LAYER.size))
            if found and not 0 <= bandwidth < found[-1].bandwidth:
                raise ValueError("bandwidths must fall")
            found.append(
                Layer(bandwidth=bandwidth, parts=tuple(self.part(size) for _ in range(parts)))
            )
        # The last layer is what every value falls back on.
        if size > 1 and not (found and found[-1].holds((1 << size) - 1)):
            raise ValueError("some sets have no bandwidth")
        return tuple(found)

    def part(self, size: int) -> Part:
        bits, least, length = _PART.unpack(self.take(_PART.size))
        gpus = GPUSet(int.from_bytes(bits, "little"))
        inside = count(gpus)
        if gpus >> size or inside < PAIR or least < PAIR:
            raise ValueError("a part that the machine does not have")
        if not length:
            return Part(gpus, least=least)
        if inside > families.MOST or length != len(_packed_bits(inside, 0)):
            raise ValueError("a family of another size")
        return Part(gpus, least=least, family=int.from_bytes(self.take(length), "little"))


# ---------------------------------------------------------------- the parts of a machine


def _mesh(lanes: Sequence[Sequence[int]], gpus: GPUSet) -> Mesh:
    inside = members(gpus)
    found, bound = _rings_of(tuple(tuple(lanes[one][other] for other in inside) for one in inside))
    return Mesh(
        gpus=gpus,
        found=tuple(Part(gpus, least=least, family=family) for least, family in found),
        bound=tuple(Part(gpus, least=least, family=family) for least, family in bound),
    )


Rings = tuple[tuple[int, int | None], ...]
"""By number of rings from one up: the fewest GPUs, and the family of sets or None for all."""


@functools.lru_cache(maxsize=64)
def _rings_of(lanes: tuple[tuple[int, ...], ...]) -> tuple[Rings, Rings]:
    """The sets of a mesh with so many rings side by side, known ones and possible ones."""
    size = len(lanes)
    most = max(map(sum, lanes)) // 2
    kinds = {lanes[one][other] for one in range(size) for other in range(one)}
    if len(kinds) == 1:
        # All alike: only the number of GPUs counts.
        by_size = [
            packing.most_rings(lanes, GPUSet((1 << many) - 1)) if many >= RING else 0
            for many in range(size + 1)
        ]
        alike: Rings = tuple(
            (next(many for many in range(size + 1) if by_size[many] >= rings), None)
            for rings in range(1, max(by_size) + 1)
        )
        return alike, alike
    if size > families.MOST:
        return (), ((RING, None),) * most
    closed = families.rings(_adjacent(lanes, 1)) & families.at_least(size, RING)
    bound = [closed & families.saturated(lanes, 2 * many) for many in range(1, most + 1)]
    bound = [one for one in bound if one]
    found = [closed & families.rings(_adjacent(lanes, many)) for many in range(1, len(bound) + 1)]
    if size <= SEARCHED:
        _search(lanes, found, bound)
    return (
        tuple((RING, one) for one in found if one),
        tuple((RING, one) for one in bound if one),
    )


def _search(lanes: tuple[tuple[int, ...], ...], found: list[int], bound: list[int]) -> None:
    """Settle one by one the sets whose rings side by side are not known, while effort is left."""
    size = len(lanes)
    doubtful = 0
    for least, most in zip(found, bound, strict=True):
        doubtful |= most & ~least
    ordered = [
        families.listed(doubtful & families.sized(size, many))
        for many in sorted(range(RING, size + 1), key=lambda many: (many & (many - 1) != 0, many))
    ]
    left = EFFORT
    more = [bytearray((1 << size) // 8 + 1) for _ in found]
    less = [bytearray((1 << size) // 8 + 1) for _ in found]
    for gpus in itertools.chain.from_iterable(ordered):
        least, most, steps = packing.ring_bounds(lanes, GPUSet(gpus), effort=min(left, EFFORT_EACH))
        left -= steps
        for rings in range(least):
            more[rings][gpus >> 3] |= 1 << (gpus & 7)
        for rings in range(most, len(bound)):
            less[rings][gpus >> 3] |= 1 << (gpus & 7)
        if left <= 0:
            break
    for rings in range(len(found)):
        found[rings] |= int.from_bytes(more[rings], "little")
        bound[rings] &= ~int.from_bytes(less[rings], "little")


PAIR = 2
"""GPUs that have a bandwidth: a single one talks to nobody."""

RING = 3
"""GPUs that make a ring; two are a pair, whose link counts once."""


def _embedded(part: Part, gpus: GPUSet) -> int:
    """The sets of a part inside these GPUs, as a family in their numbering."""
    family = part.family
    if family is None:
        family = families.at_least(part.size, part.least)
    if part.gpus == gpus:
        return family
    outer = members(gpus)
    places = [1 << outer.index(gpu) if gpus >> gpu & 1 else 0 for gpu in members(part.gpus)]
    found = bytearray((1 << len(outer)) // 8 + 1)
    for one in families.listed(family):
        chosen = [places[place] for place in range(one.bit_length()) if one >> place & 1]
        if all(chosen):
            at = sum(chosen)
            found[at >> 3] |= 1 << (at & 7)
    return int.from_bytes(found, "little")


def _adjacent(worth: Sequence[Sequence[float]], least: float) -> tuple[int, ...]:
    """For each GPU those whose link is worth at least so much, as bits."""
    size = len(worth)
    return tuple(
        sum(1 << other for other in range(size) if other != one and worth[one][other] >= least)
        for one in range(size)
    )


def _within(adjacent: Sequence[int], gpus: GPUSet) -> tuple[int, ...]:
    """The neighbours inside a set, in its own numbering."""
    inside = members(gpus)
    return tuple(
        sum(1 << place for place, other in enumerate(inside) if adjacent[one] >> other & 1)
        for one in inside
    )


def _components(adjacent: Sequence[int]) -> list[GPUSet]:
    """The GPUs that hang together, by the first of each."""
    found, seen = [], 0
    for start in range(len(adjacent)):
        if seen >> start & 1:
            continue
        group, border = 0, 1 << start
        while border:
            group |= border
            reached = 0
            for gpu in members(GPUSet(border)):
                reached |= adjacent[gpu]
            border = reached & ~group
        seen |= group
        found.append(GPUSet(group))
    return found


def _packed_bits(size: int, family: int) -> bytes:
    return family.to_bytes(max(1, (1 << size) >> 3), "little")


def _has(family: bytes, gpus: int) -> bool:
    return bool(family[gpus >> 3] >> (gpus & 7) & 1)
