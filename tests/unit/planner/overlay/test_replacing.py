"""Few trees, placed anew where the links have room."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.unit.planner.overlay.overlays import check_spans, random_overlay

from chaos_planner.overlay.graph import LinkFacts, overlay_of, spanning_links, spanning_tree
from chaos_planner.overlay.programme import Programme
from chaos_planner.overlay.replacing import Room
from chaos_planner.overlay.trees import pack, plan_rate_bytes_per_s

LINKS = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
"""All links of four sites, where two trees without a common link fill every one."""


def best_rates(trees: list[tuple[tuple[str, str], ...]]) -> np.ndarray:
    uses = np.array([[float(link in tree) for tree in trees] for link in LINKS])
    programme = Programme(np.ones(len(LINKS)))
    programme.add(uses, np.ones(len(trees)))
    programme.solve()
    return programme.values


def room(rates: list[float]) -> Room:
    return Room(LINKS, ["a", "b", "c", "d"], np.eye(len(LINKS)), np.array(rates))


def test_two_trees_on_the_same_links_are_moved_apart() -> None:
    sharing = [(("a", "b"), ("b", "c"), ("c", "d"))] * 2
    assert best_rates(sharing).sum() == pytest.approx(1.0, rel=1e-4)
    trees, found = room([1.0] * 6).placed_anew(sharing, np.array([0.5, 0.5]), 2.0 * 0.99, best_rates)
    assert found.sum() == pytest.approx(2.0, rel=1e-4)
    assert not set(trees[0]) & set(trees[1])


def test_trees_that_carry_enough_stay_where_they_are() -> None:
    apart = [(("a", "b"), ("b", "c"), ("c", "d")), (("a", "c"), ("a", "d"), ("b", "d"))]
    trees, found = room([1.0] * 6).placed_anew(apart, best_rates(apart), 1.9, best_rates)
    assert trees == apart and found.sum() == pytest.approx(2.0, rel=1e-4)


def test_what_is_asked_beyond_the_possible_ends_no_worse_than_it_began() -> None:
    apart = [(("a", "b"), ("b", "c"), ("c", "d")), (("a", "c"), ("a", "d"), ("b", "d"))]
    _, found = room([1.0] * 6).placed_anew(apart, best_rates(apart), 100.0, best_rates)
    assert found.sum() == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("rates", [[1.0] * 6, [1e-9, 1.0, 1.0, 1.0, 1.0, 1.0], [1e-6] * 3 + [1.0] * 3])
def test_rates_far_apart_give_finite_plans(rates: list[float]) -> None:
    sharing = [(("a", "b"), ("a", "c"), ("a", "d")), (("a", "b"), ("b", "c"), ("b", "d"))]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        trees, found = room(rates).placed_anew(sharing, best_rates(sharing), 3.0, best_rates)
    assert len(trees) == 2 and np.isfinite(found).all()


def test_equal_overlays_have_equal_plans_and_each_tree_spans_them() -> None:
    rng = random.Random(23)
    for _ in range(5):
        sites, links = random_overlay(rng, 14, 5)
        plan = pack(sites, links)
        check_spans(plan, sites, links)
        shuffled = list(links.items())
        rng.shuffle(shuffled)
        assert pack(sites[::-1], dict(shuffled)) == plan
        assert plan.rate_bytes_per_s == pytest.approx(plan_rate_bytes_per_s(plan, links), rel=1e-5)


def test_a_large_overlay_with_many_links_gets_a_plan() -> None:
    """As many turns as there are on small ones would take a minute."""
    rng = random.Random(29)
    sites, links = random_overlay(rng, 60, 8)
    plan = pack(sites, links)
    check_spans(plan, sites, links)
    assert len(plan.trees) <= 8


def test_spanning_links_are_those_of_the_tree_by_name() -> None:
    rng = random.Random(31)
    sites, links = random_overlay(rng, 12, 5)
    overlay = overlay_of(sites, {pair: LinkFacts(rate_bytes_per_s=1.0, latency_s=0.0) for pair in links})
    rank = {link: rng.random() for link in overlay.links}
    ordered = sorted(overlay.links, key=lambda link: rank[link])
    place = {site: number for number, site in enumerate(overlay.sites)}
    taken = spanning_links(range(len(ordered)), [(place[one], place[other]) for one, other in ordered], len(sites))
    assert tuple(sorted(ordered[number] for number in taken)) == spanning_tree(
        overlay, lambda link: (rank[link], 0.0, link)
    )
