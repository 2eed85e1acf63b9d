"""Families of sets of GPUs, held as one large integer each.

A set of GPUs is a number below 2^n (bit i is GPU i); a family of sets is an integer of 2^n bits, in
which bit s says whether set s belongs to it. What would be a loop over all sets becomes a few
operations on integers of kilobytes: 8 kB for 16 GPUs, 128 kB for 20.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

MOST = 20
"""GPUs of which families are kept; all rings of one family then take a tenth of a second."""


@functools.cache
def every(size: int) -> int:
    """The family of all sets of `size` GPUs."""
    return (1 << (1 << size)) - 1


@functools.cache
def having(size: int, gpu: int) -> int:
    """The family of the sets that hold a GPU."""
    half = 1 << gpu
    family, width = ((1 << half) - 1) << half, 2 * half
    while width < 1 << size:
        family |= family << width
        width *= 2
    return family


def lacking(size: int, gpu: int) -> int:
    """The family of the sets that do not hold a GPU."""
    return having(size, gpu) >> (1 << gpu)


@functools.cache
def sized(size: int, chosen: int) -> int:
    """The family of the sets of so many GPUs (Pascal's triangle, laid side by side)."""
    if not 0 <= chosen <= size:
        return 0
    if size == 0:
        return 1
    return sized(size - 1, chosen) | sized(size - 1, chosen - 1) << (1 << (size - 1))


def at_least(size: int, chosen: int) -> int:
    """The family of the sets of so many GPUs or more."""
    family = 0
    for many in range(chosen, size + 1):
        family |= sized(size, many)
    return family


def upward(size: int, family: int) -> int:
    """The sets that contain a set of the family."""
    for gpu in range(size):
        family |= (family & lacking(size, gpu)) << (1 << gpu)
    return family


def listed(family: int) -> Iterator[int]:
    """The sets of a family, as bits, ascending."""
    digits = f"{family:b}"[::-1]
    found = digits.find("1")
    while found >= 0:
        yield found
        found = digits.find("1", found + 1)


@functools.lru_cache(maxsize=64)
def rings(adjacent: tuple[int, ...]) -> int:
    """The sets through all of which a ring runs; two neighbours count as one.

    `adjacent[i]` are the neighbours of i as bits. Held and Karp's dynamic programming (1962) over
    paths from the lowest GPU of a set, for all sets at once: n rounds, each of which lets all
    paths grow by one GPU.
    """
    size = len(adjacent)
    neighbours = [[other for other in range(size) if row >> other & 1] for row in adjacent]
    above = [every(size)]
    for gpu in range(size):
        above.append(above[-1] & lacking(size, gpu))
    # A path never comes to a GPU below the one it started from.
    open_to = [(every(size) ^ above[gpu]) & lacking(size, gpu) for gpu in range(size)]
    ends = [1 << (1 << gpu) for gpu in range(size)]
    longest = list(ends)
    for _ in range(size - 1):
        grown = []
        for gpu in range(size):
            reached = _any(longest[other] for other in neighbours[gpu])
            grown.append((reached & open_to[gpu]) << (1 << gpu))
            ends[gpu] |= grown[gpu]
        longest = grown
    closed = 0
    for gpu in range(size):
        lowest = having(size, gpu) & above[gpu]
        closed |= lowest & _any(ends[other] for other in neighbours[gpu])
    return closed


def saturated(lanes: Sequence[Sequence[int]], least: int) -> int:
    """The sets each of whose GPUs has at least so many lanes to the others of the set."""
    size = len(lanes)
    family = every(size)
    for gpu, row in enumerate(lanes):
        # enough[i]: the sets that hold neighbours with i lanes or more.
        enough = [every(size)] + [0] * least
        for other, many in enumerate(row):
            if many:
                held = having(size, other)
                for wanted in range(least, 0, -1):
                    enough[wanted] |= held & enough[max(0, wanted - many)]
        family &= enough[least] | lacking(size, gpu)
    return family


def packed(size: int, family: int, chosen: int) -> tuple[int, ...]:
    """By number from one: the sets that hold so many disjoint sets of the family.

    Only its sets of `chosen` GPUs count. Each further set of a union holds the union's highest
    GPU, so that smaller unions are small integers.
    """
    groups = family & sized(size, chosen)
    unions, found = groups, []
    while unions:
        found.append(upward(size, unions))
        left = size - (len(found) + 1) * chosen
        if left < 0:
            break
        unions = _joined(size, unions, groups) if left else _filling(size, unions, groups)
    return tuple(found)


def _joined(size: int, unions: int, groups: int) -> int:
    """All unions of a set of `unions` with a disjoint set of `groups`."""
    joined = 0
    for group in listed(groups):
        highest = group.bit_length() - 1
        others = unions & every(highest)
        for gpu in range(highest):
            if not others:
                break
            if group >> gpu & 1:
                others &= lacking(highest, gpu)
        joined |= others << group
    return joined & every(size)


def _filling(size: int, unions: int, groups: int) -> int:
    """The set of everything, if a set of `groups` and one of `unions` make it up."""
    whole = (1 << size) - 1
    known = unions.to_bytes((1 << size) // 8 + 1, "little")
    halves = (whole ^ group for group in listed(groups))
    return 1 << whole if any(known[rest >> 3] >> (rest & 7) & 1 for rest in halves) else 0


def _any(families: Iterator[int]) -> int:
    union = 0
    for family in families:
        union |= family
    return union
