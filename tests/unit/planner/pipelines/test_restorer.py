"""Weight transfer: Chameleon IV-B, Odyssey figure 3."""

from __future__ import annotations

import itertools
import random

import pytest

from chaos_planner.pipelines.facts.site import ClusterFacts, DeviceFacts, LayerFacts, ModelProfile, PairRate
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Policy, Stage
from chaos_planner.pipelines.transfers.restorer import (
    Kind,
    Restoration,
    holdings,
    match_places,
    relabel,
    restore,
    spread,
)

MIB = 1 << 20


def model(num_layers: int, parameter_bytes: int = 4 * MIB, optimizer_bytes: int = 12 * MIB) -> ModelProfile:
    layers = tuple(
        LayerFacts(
            name=f"l{i}",
            forward_s=1.0,
            backward_s=2.0,
            parameter_bytes=parameter_bytes,
            optimizer_bytes=optimizer_bytes,
            gradient_bytes=parameter_bytes,
        )
        for i in range(num_layers)
    )
    return ModelProfile(name="m", layers=layers, global_micro_batches=64)


def cluster(workers: int, rate_bytes_per_s: float = 1e9, pair_rates: tuple[PairRate, ...] = ()) -> ClusterFacts:
    devices = tuple(DeviceFacts(worker=w, memory_bytes=1 << 40) for w in range(workers))
    return ClusterFacts(devices=devices, rate_bytes_per_s=rate_bytes_per_s, pair_rates=pair_rates)


def plan(layers_per_stage: list[list[int]], workers: list[int] | None = None) -> ExecutionPlan:
    """Pipelines whose stages hold so many layers each; workers in order."""
    names = iter(workers if workers is not None else range(1000))
    pipelines = []
    for sizes in layers_per_stage:
        edges = list(itertools.accumulate(sizes, initial=0))
        stages = tuple(
            Stage(worker=next(names), first_layer=low, last_layer=high) for low, high in itertools.pairwise(edges)
        )
        pipelines.append(Pipeline(stages=stages, micro_batches=4))
    return ExecutionPlan.build(policy=Policy.DYNAMIC, pipelines=pipelines)


Kept = dict[int, dict[tuple[int, Kind], tuple[tuple[int, int], ...]]]


def assert_complete(found: Restoration, facts: ModelProfile, old: Kept, zero_redundancy: int | None = None) -> None:
    """Afterwards every worker has every byte that it needs, and every source had what it sends."""
    needs = holdings(facts, found.plan, zero_redundancy=zero_redundancy)
    for worker, need in needs.items():
        for piece, ranges in need.items():
            spans = [*old.get(worker, {}).get(piece, ())]
            spans += [
                (t.start_byte, t.stop_byte)
                for t in (*found.transfers, *found.external)
                if t.target == worker and (t.layer, t.kind) == piece
            ]
            for start, stop in ranges:
                at = start
                for low, high in sorted(spans):
                    if low <= at < high:
                        at = high
                assert at >= stop, (worker, piece, start, stop, spans)
    for transfer in found.transfers:
        assert transfer.source is not None
        kept = old[transfer.source][transfer.layer, transfer.kind]
        assert any(a <= transfer.start_byte and transfer.stop_byte <= b for a, b in kept)


def test_figure_3s_matching_moves_two_layers_where_the_order_of_the_plan_moves_three() -> None:
    """Odyssey figure 3: stages 1-3, 4-6, 7-9 become 1-2, 3-4, 5-6, 7-9, with a spare that held 7-9."""
    held = [range(3), range(3, 6), range(6, 9), range(6, 9)]
    wanted = [range(2), range(2, 4), range(4, 6), range(6, 9)]
    ways = match_places(held, wanted, [1] * 9)
    moved = sum(len(set(wanted[j]) - set(held[i])) for j, i in enumerate(ways))
    printed = [[0, 1, 2, 3], [2, 1, 0, 3], [2, 2, 2, 0], [2, 2, 2, 0]]
    assert [[len(set(w) - set(h)) for w in wanted] for h in held] == printed
    assert (moved, sum(printed[j][j] for j in range(4))) == (2, 3)


@pytest.mark.parametrize("seed", range(25))
def test_matching_equals_exhaustive_search(seed: int) -> None:
    rng = random.Random(seed)
    layers, places = 8, rng.randrange(1, 6)
    held = [rng.sample(range(layers), rng.randrange(0, 5)) for _ in range(rng.randrange(places, 7))]
    wanted = [rng.sample(range(layers), rng.randrange(1, 5)) for _ in range(places)]
    sizes = [rng.randrange(1, 50) for _ in range(layers)]

    def moved(ways: tuple[int, ...]) -> int:
        return sum(sizes[x] for j, i in enumerate(ways) for x in set(wanted[j]) - set(held[i]))

    best = min(moved(ways) for ways in itertools.permutations(range(len(held)), places))
    assert moved(match_places(held, wanted, sizes)) == best


def test_a_worker_whose_place_does_not_change_moves_nothing() -> None:
    facts, old = model(8), plan([[4, 4], [4, 4]])
    found = restore(facts, cluster(4), holdings(facts, old), old)
    assert (found.moved_bytes, found.transfers, found.time_s) == (0, (), 0.0)
    assert found.ways == {w: w for w in range(4)}


def test_every_needed_byte_arrives_from_a_replica_that_has_it() -> None:
    facts, old = model(16), plan([[8, 8]] * 4)
    kept = holdings(facts, old, failed=[7])
    found = restore(facts, cluster(8), kept, plan([[8, 8], [8, 8], [6, 5, 5]]))
    assert_complete(found, facts, kept)
    assert not found.external
    assert "move" in found.reason


def test_matching_never_takes_longer_than_the_order_of_the_plan() -> None:
    facts, old = model(16), plan([[8, 8]] * 4)
    for failed in range(8):
        survivors = [w for w in range(8) if w != failed]
        new = plan([[8, 8], [8, 8], [6, 5, 5]], survivors)
        kept = holdings(facts, old, failed=[failed])
        in_order_s = spread(cluster(8), kept, holdings(facts, new))[2]
        assert restore(facts, cluster(8), kept, new).time_s <= in_order_s + 1e-12


def test_a_missing_layer_is_spread_over_all_its_replicas() -> None:
    facts = model(1, parameter_bytes=30 * MIB, optimizer_bytes=90 * MIB)
    kept = holdings(facts, plan([[1]] * 3, [0, 1, 2]))
    found = restore(facts, cluster(4, rate_bytes_per_s=float(MIB)), kept, plan([[1]] * 4))
    sent = {source: sum(t.size_bytes for t in found.transfers if t.source == source) for source in range(3)}
    assert sent == {0: 40 * MIB, 1: 40 * MIB, 2: 40 * MIB}
    # the newcomer's own downlink is then the limit
    assert found.time_s == pytest.approx(120.0)


def test_a_slow_replica_sends_less() -> None:
    facts = model(1, parameter_bytes=0, optimizer_bytes=100 * MIB)
    rates = (PairRate(source=0, target=2, rate_bytes_per_s=MIB / 4),)
    kept = holdings(facts, plan([[1], [1]], [0, 1]))
    found = restore(facts, cluster(3, float(MIB), rates), kept, plan([[1]] * 3))
    sent = {source: sum(t.size_bytes for t in found.transfers if t.source == source) for source in (0, 1)}
    assert sent == {0: 20 * MIB, 1: 80 * MIB}


def test_two_joiners_share_the_replicas_uplinks() -> None:
    facts = model(2, parameter_bytes=0, optimizer_bytes=50 * MIB)
    kept = holdings(facts, plan([[2], [2]], [0, 1]))
    found = restore(facts, cluster(4, float(MIB)), kept, plan([[2]] * 4))
    for source in (0, 1):
        assert sum(t.size_bytes for t in found.transfers if t.source == source) == 100 * MIB
    assert found.time_s == pytest.approx(100.0)


def test_state_without_a_local_replica_is_listed_as_external() -> None:
    facts, old = model(8), plan([[4, 4], [4, 4]])
    kept = holdings(facts, old, failed=[1, 3])
    found = restore(facts, cluster(4), kept, plan([[8]], [0]))
    assert {t.layer for t in found.external} == {4, 5, 6, 7}
    assert sum(t.size_bytes for t in found.external) == 4 * 16 * MIB
    assert all(t.source is None and t.target in (0, 2) for t in found.external)
    assert "layers 4-7 live nowhere here" in found.reason
    assert_complete(found, facts, kept)


@pytest.mark.parametrize("redundancy", [1, 2, 3])
def test_zero_shards_come_from_the_replica_that_keeps_them_too(redundancy: int) -> None:
    facts, old = model(8), plan([[4, 4]] * 3)
    kept = holdings(facts, old, failed=[2], zero_redundancy=redundancy)
    found = restore(facts, cluster(6), kept, plan([[4, 4], [4, 4]], [0, 1, 4, 5]), zero_redundancy=redundancy)
    assert_complete(found, facts, kept, zero_redundancy=redundancy)
    lost = {t.kind for t in found.external}
    # with one copy of each shard the failed worker's shard is gone, with two it is not
    assert lost == ({Kind.OPTIMIZER} if redundancy == 1 else set())


def test_zero_shards_tile_the_optimizer_state() -> None:
    facts = model(1, optimizer_bytes=10)
    kept = holdings(facts, plan([[1]] * 3), zero_redundancy=1)
    assert [kept[w][0, Kind.OPTIMIZER] for w in range(3)] == [((0, 3),), ((3, 6),), ((6, 10),)]
    twice = holdings(facts, plan([[1]] * 3), zero_redundancy=2)
    assert [twice[w][0, Kind.OPTIMIZER] for w in range(3)] == [((0, 6),), ((3, 10),), ((0, 3), (6, 10))]


@pytest.mark.parametrize("seed", range(15))
def test_random_losses_and_plans_restore_completely(seed: int) -> None:
    rng = random.Random(seed)
    num_layers = rng.randrange(4, 12)
    facts = model(num_layers, rng.randrange(0, 5 * MIB), rng.randrange(1, 9 * MIB))

    def cut(stages: int) -> list[int]:
        edges = [0, *sorted(rng.sample(range(1, num_layers), stages - 1)), num_layers]
        return [high - low for low, high in itertools.pairwise(edges)]

    old = plan([cut(rng.randrange(1, 4)) for _ in range(3)])
    workers = sorted(old.workers)
    failed = rng.sample(workers, rng.randrange(1, 3))
    kept = holdings(facts, old, failed=failed, zero_redundancy=2)
    survivors = sorted(kept)
    new = plan([cut(min(len(survivors), 3))], survivors)
    found = restore(facts, cluster(len(workers)), kept, new, zero_redundancy=2)
    assert_complete(found, facts, kept, zero_redundancy=2)


def test_a_slower_device_does_not_take_a_faster_ones_place() -> None:
    facts, old = model(4), plan([[2, 2]])
    devices = (
        DeviceFacts(worker=0, memory_bytes=100, speed=2.0),
        DeviceFacts(worker=1, memory_bytes=100, speed=1.0),
    )
    uneven = ClusterFacts(devices=devices, rate_bytes_per_s=1e9)
    swapped = plan([[2, 2]], [1, 0])
    assert restore(facts, uneven, holdings(facts, old), swapped).ways == {0: 0, 1: 1}
    with pytest.raises(ValueError, match="plan again"):
        match_places([[0], [1]], [[0], [1]], [1, 1], [[False, True], [False, True]])


def test_whoever_the_plan_names_stays_where_nothing_moves_also_beside_a_worker_without_a_place() -> None:
    facts, old = model(2), plan([[2]] * 4)
    new = plan([[2]] * 3, [1, 2, 3])
    found = restore(facts, cluster(4), holdings(facts, old), new)
    assert found.ways == {1: 1, 2: 2, 3: 3} and found.plan == new
    assert "3 by the worker that the plan names" in found.reason


def test_places_are_not_exchanged_where_links_are_unlike_since_steps_would_take_another_time() -> None:
    facts, old = model(4), plan([[2, 2]], [0, 1])
    new = plan([[2, 2]], [1, 0])
    unlike = cluster(3, pair_rates=(PairRate(source=1, target=0, rate_bytes_per_s=1e12),))
    assert restore(facts, cluster(3), holdings(facts, old), new).ways == {0: 1, 1: 0}
    assert restore(facts, unlike, holdings(facts, old), new).ways == {0: 0, 1: 1}


def test_relabelling_keeps_gradient_groups_valid() -> None:
    new = relabel(plan([[4, 4], [3, 3, 2]]), {0: 4, 1: 3, 2: 2, 3: 1, 4: 0})
    assert new.stage(4).last_layer == 4
    assert new.workers == frozenset(range(5))


def test_bad_input_is_refused() -> None:
    facts, old = model(4), plan([[2, 2]])
    with pytest.raises(ValueError, match="zero_redundancy"):
        holdings(facts, old, zero_redundancy=0)
    with pytest.raises(ValueError, match="places cannot be filled"):
        match_places([[0]], [[0], [1]], [1, 1])
    with pytest.raises(ValueError, match="the plan is for 4 layers"):
        restore(model(5), cluster(2), {}, old)
