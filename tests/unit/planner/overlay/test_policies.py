"""The replication policies of Chaos VI-A and VI-F behind one interface."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from chaos_planner.overlay.policies import POLICIES, DistantSource, ReplicationFacts, plan_replication
from chaos_planner.overlay.shards import NoSource

FACTS = ReplicationFacts(r_s=(0.0, 0.1, 0.2), p_s=(1.0, 0.5, 0.25), num_shards=70)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_places_all_shards(policy: str) -> None:
    found = plan_replication(FACTS, policy)
    assert sum(found.counts) == 70
    assert found.makespan_s == max(found.finish_s)
    assert found.reason


def test_no_baseline_is_faster_than_chaos_over_the_joiners_own_links() -> None:
    """Chaos VI-F, Fig. 16."""
    rng = random.Random(2)
    for _ in range(50):
        m = rng.randint(1, 6)
        facts = ReplicationFacts(
            r_s=tuple(rng.uniform(0, 0.05) for _ in range(m)),
            p_s=tuple(rng.uniform(0.001, 0.01) for _ in range(m)),
            num_shards=500,
            distant=tuple(
                DistantSource(via=rng.randrange(m), r_s=rng.uniform(0.05, 0.2), p_s=rng.uniform(0.001, 0.01))
                for _ in range(rng.randint(0, 4))
            ),
        )
        best = plan_replication(facts).makespan_s
        assert all(plan_replication(facts, policy).makespan_s >= best for policy in POLICIES)


def test_single_takes_the_neighbour_that_is_done_first() -> None:
    """Chaos VI-A: Elan selects the fastest neighbour."""
    assert plan_replication(FACTS, "single").counts == (0, 0, 70)


def test_equal_ignores_rates_but_not_dead_links() -> None:
    assert plan_replication(FACTS, "equal").counts == (24, 23, 23)
    dead = ReplicationFacts(r_s=(0.0, 0.0), p_s=(math.inf, 1.0), num_shards=5)
    assert plan_replication(dead, "equal").counts == (0, 5)
    assert plan_replication(dead, "round_robin").counts == (0, 5)


def test_multi_source_shares_the_last_hop() -> None:
    """Chaos II, Fig. 2c: what comes from further away crosses the same links of the newcomer."""
    facts = ReplicationFacts(
        r_s=(0.0, 0.0), p_s=(1.0, 1.0), num_shards=30, distant=(DistantSource(via=0, r_s=0.5, p_s=0.1),)
    )
    found = plan_replication(facts, "multi_source")
    assert found.counts == (10, 10, 10)
    assert found.finish_s == (20.0, 10.0, 20.5)
    assert plan_replication(facts).makespan_s == 15.0


def test_multi_source_drops_a_source_behind_a_dead_link() -> None:
    facts = ReplicationFacts(
        r_s=(0.0, 0.0), p_s=(math.inf, 1.0), num_shards=6, distant=(DistantSource(via=0, r_s=0.5, p_s=0.1),)
    )
    assert plan_replication(facts, "multi_source").counts == (0, 6, 0)


def test_a_users_own_function_is_a_policy() -> None:
    def all_from_the_last(r_s: Sequence[float], p_s: Sequence[float], num_shards: int) -> list[int]:
        return [0] * (len(r_s) - 1) + [num_shards]

    found = plan_replication(FACTS, all_from_the_last)
    assert found.counts == (0, 0, 70)
    assert "all_from_the_last" in found.reason


@pytest.mark.parametrize(
    ("counts", "text"),
    [([70], "1 counts for 3"), ([69, 0, 0], "placed 69 shards of 70"), ([-1, 71, 0], "-1"), ([70.0, 0, 0], "70.0")],
)
def test_a_users_wrong_answer_is_refused_by_name(counts: list[int], text: str) -> None:
    def careless(r_s: Sequence[float], p_s: Sequence[float], num_shards: int) -> list[int]:
        return counts

    with pytest.raises(ValueError, match="policy careless") as caught:
        plan_replication(FACTS, careless)
    assert text in str(caught.value)


def test_a_users_function_may_not_use_a_dead_link() -> None:
    with pytest.raises(ValueError, match="neighbour 0, which has no usable rate"):
        plan_replication(ReplicationFacts(r_s=(0.0, 0.0), p_s=(math.inf, 1.0), num_shards=2), lambda r, p, k: [1, 1])


def test_an_unknown_policy_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown replication policy 'best'; choose one of chaos, equal"):
        plan_replication(FACTS, "best")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_source_is_an_error_of_every_policy(policy: str) -> None:
    with pytest.raises(NoSource):
        plan_replication(ReplicationFacts(r_s=(0.0,), p_s=(math.nan,), num_shards=1), policy)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nothing_to_send_is_a_plan_of_every_policy(policy: str) -> None:
    found = plan_replication(ReplicationFacts(r_s=(0.0, 1.0), p_s=(1.0, 1.0), num_shards=0), policy)
    assert found.counts == (0, 0)


def test_a_neighbour_whose_one_shard_would_delay_the_join_sends_none() -> None:
    slow = ReplicationFacts(r_s=(0.01, 0.01, 0.01), p_s=(0.005, 0.004, 8.0), num_shards=1000)
    planned = plan_replication(slow)
    assert planned.counts[2] == 0 and sum(planned.counts) == 1000
    assert planned.makespan_s < 3.0, "the slow one alone would take 8 s for one shard"
    assert "too slow to help: neighbours 2" in planned.reason
