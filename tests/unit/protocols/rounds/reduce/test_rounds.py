"""Rounds over random trees, delivery orders and faults: every site ends with the reference average, bit for bit
(invariants 2, 3, 5 and 6 as far as rounds are concerned)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.protocols.rounds.reduce.overlay import (
    Overlay,
    Vector,
    check_of,
    random_part,
    random_plan,
    reference,
    site,
)

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import SyncPlan, Tag

TAG = Tag(epoch=3, round=7)


def weights_of(rng: random.Random, members: list[SiteId], standby: int) -> dict[SiteId, float]:
    chosen = {member: float(rng.randint(1, 500)) for member in members}
    for member in rng.sample(members, min(standby, len(members) - 1)):
        chosen[member] = 0.0
    return chosen


Parts = dict[SiteId, dict[int, list[Vector]]]


def check(
    overlay: Overlay, tag: Tag, plan: SyncPlan, counts: list[int], weights: dict[SiteId, float], parts: Parts
) -> None:
    expected = {
        (index, chunk): reference(tree, index, chunk, weights, parts).tobytes()
        for index, tree in enumerate(plan.trees)
        for chunk in range(counts[index])
    }
    for name, end in overlay.sites.items():
        assert end.finished.get(tag) == tuple(sorted(weights.items())), f"{name} knows exactly the members' weights"
        checks = dict(end.checks[tag])
        assert checks == dict(next(iter(overlay.sites.values())).checks[tag]), "what is known of states is one thing"
        assert all(checks[one] == check_of(one) for one in weights)
        got = {key: chunk.tobytes() for key, chunk in end.rounds[tag].result.items()}
        assert got == expected, f"{name} has the reference average"
        assert end.partials_held_max <= end.in_flight
        assert not end.rounds[tag].scratch


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    size=st.integers(1, 9),
    trees=st.integers(1, 4),
    listeners=st.integers(0, 3),
    standby=st.integers(0, 3),
    in_flight=st.integers(1, 5),
    faults=st.integers(0, 6),
)
def test_every_site_gets_the_reference_average_whatever_the_order_and_the_links(
    seed: int, size: int, trees: int, listeners: int, standby: int, in_flight: int, faults: int
) -> None:
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    names = [site(number) for number in rng.sample(range(1000), size + listeners)]
    members, listening = names[:size], names[size:]
    plan = random_plan(rng, members, listening, trees)
    counts = [rng.randint(0, 7) for _ in plan.trees]
    counts[rng.randrange(trees)] += 1
    weights = weights_of(rng, members, standby)
    parts = {member: random_part(numbers, counts) for member in members if weights[member]}
    overlay = Overlay(names, rng, in_flight=in_flight)
    overlay.connect_all()

    todo = [("open", name) for name in names] + [("fault", name) for name in rng.choices(names, k=faults)]
    rng.shuffle(todo)
    while todo:
        for _ in range(rng.randint(0, 40)):
            overlay.step()
        what, name = todo.pop()
        if what == "open":
            overlay.sites[name].open(TAG, plan, counts, frozenset(listening))
            if name in weights:
                todo.insert(rng.randint(0, len(todo)), ("part", name))
        elif what == "part":
            overlay.sites[name].contribute(TAG, weights[name], parts.get(name))
        elif len(names) > 1:
            other = rng.choice([far for far in names if far != name])
            overlay.connect(name, other)
    overlay.resolve()
    check(overlay, TAG, plan, counts, weights, parts)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), size=st.integers(2, 7), trees=st.integers(1, 3), lost=st.booleans())
def test_a_newer_tag_in_the_middle_leaves_only_results_of_the_newer_tag(
    seed: int, size: int, trees: int, lost: bool
) -> None:
    """A site fails in round 7 (epoch 3); the survivors reduce the round again under epoch 4, at different times."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    names = [site(number) for number in range(size)]
    plan = random_plan(rng, names, [], trees)
    counts = [rng.randint(1, 6) for _ in plan.trees]
    weights = weights_of(rng, names, 1)
    overlay = Overlay(names, rng)
    overlay.connect_all()
    gone = rng.choice(names)
    survivors = [name for name in names if name != gone]
    parts = {name: random_part(numbers, counts) for name in names if weights[name]}
    for name in survivors:
        overlay.sites[name].open(TAG, plan, counts, frozenset())
        overlay.sites[name].contribute(TAG, weights[name], parts.get(name))
        for _ in range(rng.randint(0, 30)):
            overlay.step()
    new_tag, new_plan = Tag(epoch=4, round=7), random_plan(rng, survivors, [], trees)
    new_weights = {name: weights[name] for name in survivors}
    new_weights[survivors[0]] = 5.0
    parts.setdefault(survivors[0], random_part(numbers, counts))
    for name in rng.sample(survivors, len(survivors)):
        if lost:
            overlay.connect(name, rng.choice(names) if size > 2 else gone) if name != gone else None
        overlay.sites[name].machine.stop(TAG)
        overlay.sites[name].open(new_tag, new_plan, counts, frozenset())
        for _ in range(rng.randint(0, 30)):
            overlay.step()
        part = parts.get(name) if new_weights[name] else None
        overlay.sites[name].contribute(new_tag, new_weights[name], part)
    overlay.resolve()
    del overlay.sites[gone]
    check(overlay, new_tag, new_plan, counts, new_weights, parts)
    assert all(TAG not in overlay.sites[name].finished for name in survivors)


@pytest.mark.parametrize("seed", range(5))
def test_rounds_follow_each_other_while_some_sites_lag(seed: int) -> None:
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    names = [site(number) for number in range(6)]
    plan = random_plan(rng, names[:5], names[5:], 2)
    counts = [3, 4]
    overlay = Overlay(names, rng)
    overlay.connect_all()
    parts, weights = {}, {}
    done = dict.fromkeys(names, 0)
    for number in range(1, 8):
        weights[number] = weights_of(rng, names[:5], 1)
        parts[number] = {name: random_part(numbers, counts) for name in names[:5] if weights[number][name]}
    for _ in range(100_000):
        overlay.step()
        for name, end in overlay.sites.items():
            tag = Tag(epoch=1, round=done[name] + 1)
            if tag in end.finished:
                done[name] += 1
            elif tag not in end.rounds and tag.round < 8 and rng.random() < 0.1:
                end.open(tag, plan, counts, frozenset(names[5:]))
                if name != names[5]:
                    end.contribute(tag, weights[tag.round][name], parts[tag.round].get(name))
        if rng.random() < 0.01:
            overlay.connect(*rng.sample(names, 2))
        if min(done.values()) == 7:
            break
    for number in range(1, 8):
        check(overlay, Tag(epoch=1, round=number), plan, counts, weights[number], parts[number])
