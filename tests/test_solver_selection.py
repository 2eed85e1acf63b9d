"""select(): the fewest nodes and the least price, against dynamic programming over everything."""

from __future__ import annotations

import random

import pytest
from exhaustive import all_but
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.solver.selection import KnapsackItem, Load, select


def plain(offers: list[KnapsackItem], workers: int) -> tuple[int, int] | None:
    """The fewest nodes, then the least price, node by node over all loads; slow and obvious."""
    reach: dict[int, tuple[int, int]] = {0: (0, 0)}
    for offer in offers:
        for _ in range(offer.count):
            after = dict(reach)
            for placed, (nodes, price) in reach.items():
                for load, more in offer.prices.items():
                    if placed + load <= workers:
                        worth = (nodes + 1, price + more)
                        after[placed + load] = min(after.get(placed + load, worth), worth)
            reach = after
    return reach.get(workers)


def check(offers: list[KnapsackItem], workers: int) -> None:
    found = select(offers, workers)
    expected = plain(offers, workers)
    assert (None if found is None else (found.nodes, found.price)) == expected
    if found is None:
        return
    assert sum(load.nodes for load in found.loads) == found.nodes
    assert sum(load.nodes * load.workers for load in found.loads) == workers
    assert found.price == sum(
        load.nodes * offers[load.offer].prices[load.workers] for load in found.loads
    )
    for index, offer in enumerate(offers):
        assert sum(load.nodes for load in found.loads if load.offer == index) <= offer.count


prices = st.dictionaries(st.integers(1, 8), st.integers(0, 40), min_size=1, max_size=8)
offers_strategy = st.lists(
    st.builds(KnapsackItem, count=st.integers(1, 4), prices=prices), max_size=6
)


@given(offers_strategy, st.integers(1, 40))
def test_the_choice_equals_trying_everything(offers, workers):
    check(offers, workers)


@pytest.mark.parametrize("seed", all_but(1, range(7, 13)))
def test_the_choice_equals_trying_everything_on_500_seeded_offers(seed):
    dice = random.Random(seed)
    for _ in range(500):
        most = dice.choice([2, 4, 8, 16])
        offers = []
        for _ in range(dice.randint(1, 7)):
            capacity = dice.randint(1, most)
            loads = {load: dice.randint(0, 30) for load in range(1, capacity + 1)}
            # Some machines have gaps, some prices fall with the load.
            for load in list(loads)[:-1]:
                if dice.random() < 0.15:
                    del loads[load]
            offers.append(KnapsackItem(count=dice.randint(1, 5), prices=loads))
        total = sum(offer.count * offer.capacity for offer in offers)
        check(offers, dice.randint(1, total + 1))


def test_whole_nodes_are_taken_by_price():
    offers = [KnapsackItem(count=3, prices={1: 5}), KnapsackItem(count=3, prices={1: 2})]
    found = select(offers, 4)
    assert found is not None
    assert found.loads == (Load(0, 1, 1), Load(1, 1, 3))


def test_of_equal_choices_the_earlier_offer_is_taken():
    offers = [
        KnapsackItem(count=2, prices={1: 1, 2: 3}),
        KnapsackItem(count=2, prices={1: 1, 2: 3}),
    ]
    found = select(offers, 2)
    assert found is not None
    assert found.loads == (Load(0, 2, 1),)


@pytest.mark.parametrize("workers", [3, 5])
def test_more_nodes_are_used_where_loads_have_gaps(workers):
    """Three GPUs of a cube mesh close no ring, four do, and so do two."""
    offers = [KnapsackItem(count=4, prices={2: 1, 4: 1})]
    assert select(offers, workers) is None
    assert select([*offers, KnapsackItem(count=1, prices={1: 9})], workers) is not None


def test_nothing_is_chosen_where_all_together_are_too_small():
    assert select([KnapsackItem(count=3, prices={1: 0, 2: 0})], 7) is None
    assert select([], 1) is None
