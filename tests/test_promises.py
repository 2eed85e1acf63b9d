"""What pages of explanation name is there: each verdict, each test that holds a promise, counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, permutations, product
from pathlib import Path

from cube_mesh import V100

from arena_topo.bandwidth import packing
from arena_topo.reasons.case import Code
from arena_topo.topology import GPUSet, members

ROOT = Path(__file__).parent.parent


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, down to the next of its level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = re.split(rf"^{re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    part = part.split(f"\n{heading.split(maxsplit=1)[0]} ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_verdict_that_why_can_give_is_in_the_table_of_verdicts_once():
    shown = [one for row in rows("howto/pending.md", "## All verdicts") for one in row[:1]]
    named = re.findall(r"`(\w+)`", " ".join(shown))
    assert sorted(named) == sorted(code.value for code in Code)


def test_every_promise_names_tests_that_are_there():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    promises = re.findall(r"^\| (?!promise|---)(.*) \| (.*) \|$", text, flags=re.MULTILINE)
    assert len(promises) > 25
    for promise, cell in promises:
        for part in cell.split("; "):
            named = re.fullmatch(r"`(test_\w+\.py)`: ([a-z0-9 ,]+)", part)
            assert named, f"{promise}: {part}"
            there = names_in(ROOT / "tests" / named[1])
            said = {f"test_{one.replace(' ', '_')}" for one in named[2].split(", ")}
            assert said <= there, f"{promise}: {named[1]} has no {sorted(said - there)}"


def test_every_supported_version_names_a_test_that_is_there():
    table = rows("versions.md", "## Tested with")[1:]
    assert len(table) > 8
    for software, version, _how, cell in table:
        named = re.fullmatch(r"`((?:cluster/)?test_\w+\.py)`: ([a-z0-9 ]+)", cell)
        assert named, f"{software} {version}: {cell}"
        there = names_in(ROOT / "tests" / named[1])
        assert f"test_{named[2].replace(' ', '_')}" in there, f"{software} {version}: {cell}"


def names_in(path: Path) -> set[str]:
    """The names of the test functions in a file."""
    return set(re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


Lane = tuple[int, int]


def relayed(lanes: list[list[int]], hops: list[Lane]) -> Iterator[Counter[Lane]]:
    """The lanes that one ring takes each way, for every choice of one GPU between two; if any."""
    between: list[list[tuple[Lane, ...]]] = []
    for one, other in hops:
        inside = {gpu for hop in hops for gpu in hop} - {one, other}
        relays = [gpu for gpu in inside if lanes[one][gpu] and lanes[gpu][other]]
        direct: list[tuple[Lane, ...]] = [((one, other),)] if lanes[one][other] else []
        between.append(direct or [((one, gpu), (gpu, other)) for gpu in relays])
    for chosen in product(*between):
        yield Counter(lane for hop in chosen for lane in hop)


def test_how_it_works_counts_the_sets_that_relays_of_nccl_could_help() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    told = re.search(
        r"There (\d+) of the (\d+) sets.*?Of\s+these (\d+) hang.*? one way, and through (\d+)",
        text,
        re.DOTALL,
    )
    lanes = packing.lanes(V100.links)
    every = [GPUSet(bits) for bits in range(1, 256) if bits.bit_count() > 2]
    ringless = [one for one in every if not packing.most_rings(lanes, one)]
    one_way: set[GPUSet] = set()
    both_ways: set[GPUSet] = set()
    for gpus in ringless:
        first, *rest = members(gpus)
        for order in permutations(rest):
            hops = list(pairwise((first, *order, first)))
            for used in relayed(lanes, hops):
                if all(lanes[a][b] >= many for (a, b), many in used.items()):
                    one_way.add(gpus)
                if all(lanes[a][b] >= used[a, b] + used[b, a] for a, b in used):
                    both_ways.add(gpus)
    assert told
    counted = len(ringless), len(every), len(one_way), len(both_ways)
    assert counted == tuple(map(int, told.groups()))
