"""The policy that a run averages by: what is planned, what gives way to one tree, and what is said of it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos_planner.overlay.choice import PACKED_LINKS_MAX, check, choose, policy_named
from chaos_planner.overlay.trees import (
    Disconnected,
    LinkFacts,
    TreePlan,
    WeightedTree,
    pack,
    ring,
    star,
    tree,
)

FOUR = ("a", "b", "c", "d")


def mesh(sites: tuple[str, ...], rate: float = 1e7) -> dict[tuple[str, str], LinkFacts]:
    return {pair: LinkFacts(rate_bytes_per_s=rate, latency_s=0.01) for pair in itertools.combinations(sites, 2)}


def test_a_mesh_is_averaged_along_several_trees_and_the_one_of_least_delay_is_first() -> None:
    links = mesh(FOUR)
    links["a", "b"] = LinkFacts(rate_bytes_per_s=1e7, latency_s=0.2)
    found = choose(pack, FOUR, links)
    check(found, FOUR, links)
    assert len(found.trees) > 1
    assert found.rate_bytes_per_s >= 1.9 * tree(FOUR, links).rate_bytes_per_s
    assert ("a", "b") not in found.trees[0].edges


def test_roots_are_spread_over_sites_that_are_as_near() -> None:
    found = choose(pack, FOUR, {pair: replace(facts, latency_s=0.0) for pair, facts in mesh(FOUR).items()})
    assert len({each.root for each in found.trees}) >= min(3, len(found.trees))


def test_several_trees_that_gain_little_give_way_to_one() -> None:
    links = {("a", "b"): LinkFacts(rate_bytes_per_s=1e7, latency_s=0.01), **mesh(("b", "c"))}
    links["a", "c"] = LinkFacts(rate_bytes_per_s=1e5, latency_s=0.01)
    found = choose(pack, ("a", "b", "c"), links)
    assert len(found.trees) == 1
    assert "not several trees: several trees would average only 1.0" in found.reason


def test_a_daemon_plans_several_trees_without_scipy() -> None:
    """scipy is an extra; the daemon's own requirements must do."""
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "import itertools\n"
        "from chaos_planner.overlay.choice import choose\n"
        "from chaos_planner.overlay.trees import LinkFacts, pack\n"
        "facts = LinkFacts(rate_bytes_per_s=1e7, latency_s=0.01)\n"
        "links = {pair: facts for pair in itertools.combinations('abcd', 2)}\n"
        "print(len(choose(pack, 'abcd', links).trees))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) > 1


def test_an_overlay_too_large_to_be_packed_at_once_gets_one_tree() -> None:
    sites = tuple(f"s{number:02}" for number in range(20))
    assert len(mesh(sites)) > PACKED_LINKS_MAX
    found = choose(pack, sites, mesh(sites))
    assert len(found.trees) == 1
    assert f"more than {PACKED_LINKS_MAX} links" in found.reason


def test_a_ring_of_many_sites_is_cut_at_eight_of_its_links() -> None:
    sites = tuple(f"s{number:02}" for number in range(11))
    found = choose(ring, sites, mesh(sites))
    check(found, sites, mesh(sites))
    assert len(found.trees) == 8
    assert "8 of its 11 trees" in found.reason
    assert len(choose(star, sites, mesh(sites)).trees) == 1


def test_an_overlay_in_parts_is_an_error_whatever_the_policy() -> None:
    with pytest.raises(Disconnected):
        choose(pack, FOUR, mesh(("a", "b", "c")))


def plan_of(*trees: WeightedTree) -> TreePlan:
    return TreePlan(trees=trees, rate_bytes_per_s=1.0, bound_bytes_per_s=1.0, reason="my own")


CHAIN = WeightedTree(weight=1.0, root="a", parent=(("b", "a"), ("c", "b"), ("d", "c")))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (plan_of(replace(CHAIN, weight=0.5)), "add up to 1"),
        (plan_of(), "add up to 1"),
        (plan_of(replace(CHAIN, parent=CHAIN.parent[:-1])), "each site once"),
        (plan_of(replace(CHAIN, root="x")), "each site once"),
        (plan_of(replace(CHAIN, parent=(("b", "c"), ("c", "b"), ("d", "a")))), "a cycle"),
        (plan_of(replace(CHAIN, parent=(("b", "a"), ("c", "a"), ("d", "c")))), "no usable link"),
        ("a text", "returned a str"),
    ],
)
def test_a_users_function_that_gives_no_plan_gives_way_to_one_tree(answer: object, why: str) -> None:
    links = mesh(FOUR)
    del links["a", "c"]

    def mine(*_: object, **__: object) -> TreePlan:
        return answer  # type: ignore[return-value]

    found = choose(mine, FOUR, links)
    assert found.trees == tree(FOUR, links).trees
    assert "mine gave no plan" in found.reason and why in found.reason


def test_a_users_function_that_raises_gives_way_and_one_that_plans_is_taken() -> None:
    def broken(*_: object, **__: object) -> TreePlan:
        raise ZeroDivisionError("my mistake")

    assert "my mistake" in choose(broken, FOUR, mesh(FOUR)).reason
    assert choose(lambda *_, **__: plan_of(CHAIN), FOUR, mesh(FOUR)).trees == (CHAIN,)


def test_a_users_function_whose_own_links_leave_members_apart_gives_way() -> None:
    """Over all links there is a tree: that the ones that it chose connect nobody ends no plan."""
    links = mesh(FOUR)

    def narrower(sites: Sequence[str], _: object, *__: object, **more: object) -> TreePlan:
        return pack(sites, {("a", "b"): links["a", "b"], ("c", "d"): links["c", "d"]})

    found = choose(narrower, FOUR, links)
    assert found.trees == tree(FOUR, links).trees
    assert "narrower gave no plan: the members fall into 2 groups" in found.reason


def test_a_users_function_that_changes_what_it_was_given_plans_over_the_links_that_are_there() -> None:
    """One that adds the links that it wishes for: a round along them would never end."""
    links = mesh(FOUR)
    del links["a", "d"]

    def wishful(sites: list[str], known: dict[tuple[str, str], LinkFacts], *_: object, **__: object) -> TreePlan:
        known["a", "d"] = LinkFacts(rate_bytes_per_s=1e9, latency_s=0.0)
        sites.reverse()
        return plan_of(WeightedTree(weight=1.0, root="a", parent=(("b", "a"), ("c", "a"), ("d", "a"))))

    found = choose(wishful, FOUR, links)
    assert found.trees == tree(FOUR, links).trees
    assert "uses a - d, which is no usable link" in found.reason


def test_a_policy_is_named_by_the_package_or_by_its_module() -> None:
    assert policy_named("trees") is pack
    assert policy_named("chaos_planner.overlay.trees:star") is star
    for name, why in (("fastest", "must be tree, trees"), ("nowhere:plan", "PYTHONPATH"), ("sys:path", "is a list")):
        with pytest.raises(ValueError, match=why):
            policy_named(name)
