"""Who becomes whom after a loss, and who sends which bytes of state to whom, so that a new plan can start soonest.

Driven by `chaosd plan`, by the policy simulator (what a re-partition costs) and by the benchmark. Three decisions:

1. Places. A new plan is a set of places (stages with their layers); which survivor takes which is free among equal
   devices. Kuhn-Munkres on the bytes that each survivor would still need finds the assignment that moves least.
2. Sources. Every byte that a worker still needs is on some live replica, or nowhere here. The bytes of each worker that
   have the same replicas are spread over all of them by the shard assigner, each replica starting when its uplink is
   free, so that no single peer carries the whole transfer. What no live replica has is listed as external: another
   institution holds it.
3. State. Parameters, and the optimizer's state with them: whole on every holder, or in ZeRO shards, of which each
   worker keeps its own ranges; a lost shard comes from the replica that keeps it too, where there is one.

Times are those of full-duplex links whose transfers may interleave: the busiest direction of a worker decides, and a
schedule that attains it exists (preemptive open shop, Gonzalez and Sahni 1976).

Source: Chameleon IV-B (weight transfer, fig. 3; ZeRO), Chaos III-B (shard assigner); ranges and the external list are
this project's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from chaos_planner.overlay.shards import assign
from chaos_planner.pipelines.facts.site import ClusterFacts, ModelProfile
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Pipeline, Route
from chaos_planner.solvers import optimize

SHARD_BYTES = 1 << 20
"""Grain of a transfer: 1 MiB, well above what a message costs and well below a layer."""

PLACES_MAX = 8192
"""Kuhn-Munkres is cubic; 2048 places take about 0.2 s."""


class Kind(Enum):
    """Which part of a layer's state a range belongs to."""

    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"


Piece: TypeAlias = tuple[int, Kind]
"""(layer, kind): one addressable vector of bytes."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ascending, disjoint (start, stop) in bytes."""

Holding: TypeAlias = Mapping[Piece, Ranges]
"""What one worker keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes [start_byte, stop_byte) of a piece go from `source` to `target`; source None: from another institution."""

    layer: int
    kind: Kind
    start_byte: int
    stop_byte: int
    source: int | None
    target: int

    @property
    def size_bytes(self) -> int:
        """Bytes that move."""
        return self.stop_byte - self.start_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """A plan whose places are filled by the survivors that need least, and the transfers that make it run.

    `external`: ranges without a live replica here. `time_s`: until the last byte from local sources is there; with
    external ranges not empty the plan cannot start before those have come too. `ways`: the plan's workers -> chosen.
    """

    plan: ExecutionPlan
    ways: Mapping[int, int]
    transfers: tuple[Transfer, ...]
    external: tuple[Transfer, ...]
    moved_bytes: int
    time_s: float
    reason: str


def restore(
    model: ModelProfile,
    cluster: ClusterFacts,
    old: Mapping[int, Holding],
    new: ExecutionPlan,
    *,
    zero_redundancy: int | None = None,
) -> Restoration:
    """Fill the places of `new` with the workers of `old` (the survivors and what each keeps) and plan the transfers.

    Survivors that `old` does not name but `new` does (a spare, a restarted worker) hold nothing. `zero_redundancy`:
    None where every holder of a layer keeps its whole optimizer state, k where it is cut in as many shards as the
    layer has holders and each keeps k of them. Raises `ValueError` for too many places or k out of range.
    """
    places = sorted(new.workers)
    candidates = sorted(set(old) | set(places))
    if len(candidates) > PLACES_MAX:
        raise ValueError(f"{len(candidates)} workers are more than the {PLACES_MAX} that can be matched")
    if len(model.layers) != new.num_layers:
        raise ValueError(f"the plan is for {new.num_layers} layers, the model {model.name} has {len(model.layers)}")
    layer_bytes = [
        facts.parameter_bytes + facts.optimizer_bytes * min(1.0, (zero_redundancy or len(holders)) / len(holders))
        for facts, holders in zip(model.layers, new.holders, strict=True)
    ]
    held = {worker: _layers_held(old.get(worker, {})) for worker in candidates}
    wanted = [range(new.stage(worker).first_layer, new.stage(worker).last_layer) for worker in places]
    allowed = _fits(cluster, candidates, places)
    index_of = {worker: index for index, worker in enumerate(candidates)}
    named = [index_of[worker] for worker in places]
    chosen = match_places([held[worker] for worker in candidates], wanted, layer_bytes, allowed, named)
    ways = {place: candidates[index] for place, index in zip(places, chosen, strict=True)}
    plan = relabel(new, ways)
    transfers, external, time_s = spread(cluster, old, holdings(model, plan, zero_redundancy=zero_redundancy))
    moved_bytes = sum(transfer.size_bytes for transfer in transfers)
    stay = sum(1 for place, worker in ways.items() if place == worker)
    reason = (
        f"{len(places)} places filled, {stay} by the worker that the plan names; {moved_bytes / 1e9:.2f} GB move in "
        f"{time_s:.2f} s from {len({t.source for t in transfers})} sources"
    )
    if external:
        layers = sorted({transfer.layer for transfer in external})
        lost_gb = sum(transfer.size_bytes for transfer in external) / 1e9
        reason += f"; {lost_gb:.2f} GB of layers {_spans(layers)} live nowhere here: they must come from elsewhere"
    return Restoration(
        plan=plan,
        ways=ways,
        transfers=transfers,
        external=external,
        moved_bytes=moved_bytes,
        time_s=time_s,
        reason=reason,
    )


def match_places(
    held: Sequence[Iterable[int]],
    wanted: Sequence[Iterable[int]],
    layer_bytes: Sequence[float],
    allowed: npt.ArrayLike | None = None,
    named: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """For each place the index of the worker that takes it, so that the bytes to move are fewest (Kuhn-Munkres).

    `held[i]`: layers of worker i, `wanted[j]`: layers of place j, at least as many workers as places. `named[j]`: the
    worker that has place j if no other would move less; worker j if not given. Raises `ValueError` where no assignment
    gives every place a device that it fits.
    """
    if len(held) < len(wanted):
        raise ValueError(f"{len(wanted)} places cannot be filled by {len(held)} workers")
    sizes = np.asarray(layer_bytes, dtype=np.float64)
    has = np.zeros((len(held), len(sizes)))
    needs = np.zeros((len(wanted), len(sizes)))
    for index, layers in enumerate(held):
        has[index, list(layers)] = 1.0
    for index, layers in enumerate(wanted):
        needs[index, list(layers)] = 1.0
    cost = (needs @ sizes)[None, :] - (has * sizes) @ needs.T
    # Among equal costs the worker already named there stays: less than a byte in all, so it decides ties only.
    cost[list(named or range(len(wanted))), range(len(wanted))] -= 1 / (2 * len(held) + 2)
    if allowed is not None:
        cost = np.where(np.asarray(allowed, dtype=bool), cost, np.inf)
    try:
        rows, columns = optimize().linear_sum_assignment(cost)
    except ValueError as error:
        raise ValueError(
            "no assignment gives every place of the plan a device with the speed and memory that it was planned for; "
            "plan again with the devices that are left"
        ) from error
    found = dict(zip(columns.tolist(), rows.tolist(), strict=True))
    return tuple(found[place] for place in range(len(wanted)))


def holdings(
    model: ModelProfile,
    plan: ExecutionPlan,
    *,
    failed: Iterable[int] = (),
    zero_redundancy: int | None = None,
) -> dict[int, dict[Piece, Ranges]]:
    """What each live worker keeps under a plan. `failed` workers keep nothing. `zero_redundancy` as in `restore`.

    With ZeRO the shards are cut among all workers that the plan names for the layer, failed ones too: that is how the
    state was laid out when they failed.
    """
    if zero_redundancy is not None and zero_redundancy < 1:
        raise ValueError(f"zero_redundancy must be at least 1 copy of each shard, not {zero_redundancy}")
    gone = frozenset(failed)
    found: dict[int, dict[Piece, Ranges]] = {worker: {} for worker in sorted(plan.workers - gone)}
    for layer, (facts, holders) in enumerate(zip(model.layers, plan.holders, strict=True)):
        for position, worker in enumerate(holders):
            if worker in gone:
                continue
            if facts.parameter_bytes:
                found[worker][layer, Kind.PARAMETERS] = ((0, facts.parameter_bytes),)
            ranges = _shards(facts.optimizer_bytes, position, len(holders), zero_redundancy)
            if ranges:
                found[worker][layer, Kind.OPTIMIZER] = ranges
    return found


def relabel(plan: ExecutionPlan, ways: Mapping[int, int]) -> ExecutionPlan:
    """The same plan with other workers in its places; lost workers keep their names. `InvalidPlan` if it is not one."""
    free = {worker: worker for worker in plan.lost}
    names = {**free, **ways}
    pipelines = tuple(
        Pipeline(
            stages=tuple(replace(stage, worker=names[stage.worker]) for stage in pipeline.stages),
            micro_batches=pipeline.micro_batches,
        )
        for pipeline in plan.pipelines
    )
    routes: tuple[Route, ...] = tuple(replace(route, worker=names[route.worker]) for route in plan.routes)
    groups = tuple(
        replace(group, workers=tuple(sorted(names[worker] for worker in group.workers)))
        for group in plan.gradient_groups
    )
    return ExecutionPlan(policy=plan.policy, pipelines=pipelines, routes=routes, gradient_groups=groups, lost=plan.lost)


def spread(
    cluster: ClusterFacts, old: Mapping[int, Holding], needs: Mapping[int, Holding]
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...], float]:
    """(local transfers, external ranges, seconds): every missing range from all its replicas at once.

    Deterministic: workers in ascending order, those that miss most first.
    """
    keepers: dict[Piece, list[tuple[int, Ranges]]] = {}
    for worker in sorted(old):
        for piece, ranges in old[worker].items():
            keepers.setdefault(piece, []).append((worker, ranges))
    missing = {worker: _missing(old.get(worker, {}), needs[worker]) for worker in sorted(needs)}
    uplink_busy_s = dict.fromkeys(old, 0.0)
    downlink_busy_s: dict[int, float] = {}
    transfers: list[Transfer] = []
    external: list[Transfer] = []
    for worker in sorted(missing, key=lambda w: (-sum(stop - start for _, (start, stop) in missing[w]), w)):
        grouped: dict[tuple[int, ...], list[tuple[Piece, tuple[int, int]]]] = {}
        for piece, span in missing[worker]:
            for part, sources in _covers(span, keepers.get(piece, [])):
                grouped.setdefault(sources, []).append((piece, part))
        # Ranges with few sources first: the others can still avoid the uplinks that these must use.
        for sources, parts in sorted(grouped.items(), key=lambda item: (len(item[0]), item[0])):
            if not sources:
                external.extend(_transfer(piece, part, None, worker) for piece, part in parts)
                continue
            found = _cut(cluster, worker, sources, parts, uplink_busy_s)
            downlink_busy_s[worker] = downlink_busy_s.get(worker, 0.0) + sum(
                transfer.size_bytes / cluster.rate(source, worker) for source, transfer in found
            )
            transfers.extend(transfer for _, transfer in found)
    busy_s = max(itertools.chain(uplink_busy_s.values(), downlink_busy_s.values()), default=0.0)
    return tuple(transfers), tuple(external), busy_s + (cluster.latency_s if transfers else 0.0)


def _cut(
    cluster: ClusterFacts,
    target: int,
    sources: tuple[int, ...],
    parts: Sequence[tuple[Piece, tuple[int, int]]],
    uplink_busy_s: dict[int, float],
) -> list[tuple[int, Transfer]]:
    """Hand the parts, as one run of bytes, to the sources in the counts that finish first; books their uplinks."""
    total_bytes = sum(stop - start for _, (start, stop) in parts)
    shards = -(-total_bytes // SHARD_BYTES)
    r_s = [uplink_busy_s[source] + cluster.latency_s for source in sources]
    p_s = [SHARD_BYTES / cluster.rate(source, target) for source in sources]
    counts = assign(r_s, p_s, shards, at_least_one=False).counts
    found: list[tuple[int, Transfer]] = []
    remaining = iter(parts)
    piece, (at, end) = next(remaining)
    for source, count in zip(sources, counts, strict=True):
        budget_bytes = min(count * SHARD_BYTES, total_bytes)
        total_bytes -= budget_bytes
        uplink_busy_s[source] += budget_bytes / cluster.rate(source, target)
        while budget_bytes:
            if at == end:
                piece, (at, end) = next(remaining)
            stop = min(end, at + budget_bytes)
            found.append((source, _transfer(piece, (at, stop), source, target)))
            budget_bytes -= stop - at
            at = stop
    return found


def _missing(own: Holding, need: Holding) -> list[tuple[Piece, tuple[int, int]]]:
    """What is needed and not already here, in order of layers."""
    found: list[tuple[Piece, tuple[int, int]]] = []
    for piece in sorted(need, key=lambda p: (p[0], p[1].value)):
        for start, stop in need[piece]:
            at = start
            for low, high in own.get(piece, ()):
                if high <= at or low >= stop:
                    continue
                if low > at:
                    found.append((piece, (at, low)))
                at = max(at, high)
            if at < stop:
                found.append((piece, (at, stop)))
    return found


def _covers(
    span: tuple[int, int], keepers: Sequence[tuple[int, Ranges]]
) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """The span cut where its set of replicas changes, each part with its replicas."""
    start, stop = span
    edges = {start, stop}
    for _, ranges in keepers:
        edges.update(edge for pair in ranges for edge in pair if start < edge < stop)
    return [
        ((low, high), tuple(w for w, ranges in keepers if any(a <= low and high <= b for a, b in ranges)))
        for low, high in itertools.pairwise(sorted(edges))
    ]


def _shards(size_bytes: int, position: int, holders: int, redundancy: int | None) -> Ranges:
    """The ranges that holder `position` of `holders` keeps: its own shard and the next ones, round the ring."""
    if not size_bytes:
        return ()
    if redundancy is None or redundancy >= holders:
        return ((0, size_bytes),)
    edges = [size_bytes * k // holders for k in range(holders + 1)]
    merged: list[tuple[int, int]] = []
    for k in sorted((position + step) % holders for step in range(redundancy)):
        if merged and merged[-1][1] == edges[k]:
            merged[-1] = (merged[-1][0], edges[k + 1])
        elif edges[k] < edges[k + 1]:
            merged.append((edges[k], edges[k + 1]))
    return tuple(merged)


def _layers_held(holding: Holding) -> list[int]:
    return sorted({layer for layer, _ in holding})


def _fits(cluster: ClusterFacts, workers: Sequence[int], places: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which worker's device is at least as fast and large as the one that each place was planned for. Where pairs have
    rates of their own nobody is like another: steps of the same pipelines in other places would take another time."""
    if cluster.pair_rates:
        return np.asarray(np.array(workers)[:, None] == np.array(places)[None, :], dtype=np.bool_)
    here, planned = (
        np.array([(cluster.device(name).speed, cluster.device(name).memory_bytes) for name in names])
        for names in (workers, places)
    )
    return np.asarray((here[:, None, :] >= planned[None, :, :]).all(axis=2), dtype=np.bool_)


def _transfer(piece: Piece, span: tuple[int, int], source: int | None, target: int) -> Transfer:
    return Transfer(layer=piece[0], kind=piece[1], start_byte=span[0], stop_byte=span[1], source=source, target=target)


def _spans(layers: Sequence[int]) -> str:
    """ "3-5, 8" for 3, 4, 5, 8."""
    shown: list[str] = []
    for _, group in itertools.groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        run = [layer for _, layer in group]
        shown.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(shown)
