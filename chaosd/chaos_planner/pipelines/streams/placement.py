"""Where rerouted passes stand among the host's own: into its bubbles, as ReCycle does, by list scheduling.

Driven by `compile` for plans with routes. The step is played through with the facts' durations; whenever a worker is
free it takes one of the passes whose input has arrived. A worker's own passes stay in 1F1B order, those routed away
from it left out. A guest's forward pass may be taken while it is fewer than N_pp - i routed micro-batches ahead of the
stage's lowest that has not come back, the lead that 1F1B itself allows. (A mere count of micro-batches held would not
do: later ones that arrive early could fill the stage and shut out the one that all wait for.) Three rules for the
choice (own passes first and guests only into bubbles, guests first, backward passes first) are played, then again with
a longer lead; of the orders that fit in memory the one that ends first is kept.

No order so found can deadlock: it is the order of an execution that ended. It always ends: in each pipeline no pass
waits for one of a micro-batch that 1F1B puts after it, and no rule keeps a free worker from a pass that may be taken.
Sources: Chameleon IV-A ("overlap them with bubbles as much as possible"), ReCycle; the rules are this project's.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias, assert_never

from chaos_planner.pipelines.costs.durations import Costs
from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.plans.layout import Hop


class Pass(NamedTuple):
    """A forward or backward pass of a micro-batch over one hop; `at` is the hop's place on the way."""

    forward: bool
    pipeline: int
    micro_batch: int
    at: int
    hop: Hop


FURTHER_LEAD = 2
"""Also tried: guests so many micro-batches further ahead than 1F1B lets them; costs memory, may fill more bubbles."""


FURTHER_PASSES_MAX = 1_000
"""With more passes than this only the best rule is played with the longer lead: some 20 ms a playing."""


class Rule(Enum):
    """What a free worker takes first among the passes that are ready."""

    OWN = auto()
    GUESTS = auto()
    BACKWARD = auto()


Orders: TypeAlias = dict[int, list[Pass]]
PassKey: TypeAlias = tuple[bool, int, int, int]
"""(is forward, pipeline, micro-batch, index on the way)."""


def order_1f1b(stages: int, stage: int, micro_batches: int) -> Iterator[tuple[bool, int]]:
    """(is forward, micro-batch) of one stage in 1F1B order."""
    warm_up = min(micro_batches, stages - stage - 1)
    for m in range(warm_up):
        yield True, m
    for m in range(micro_batches):
        if warm_up + m < micro_batches:
            yield True, warm_up + m
        yield False, m


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Passes of the workers whose pipelines have routes or host guests, and when each of them ends its last pass."""

    orders: Orders
    ends_s: dict[int, float]


def place(plan: ExecutionPlan, costs: Costs) -> Placed:
    """Best orders for the pipelines that routes tie together; pipelines without routes are not in the result.

    Pipelines that share no route do not touch each other's workers, so each tied set is placed by itself.
    """
    orders: Orders = {}
    ends_s: dict[int, float] = {}
    for tied in tied_pipelines(plan):
        tried = [_tried(plan, costs, rule, 0, tied) for rule in Rule]
        rules = list(Rule)
        if sum(len(order) for order in tried[0][1].values()) > FURTHER_PASSES_MAX:
            rules = [min(zip(tried, Rule, strict=True), key=lambda entry: entry[0][0])[1]]
        tried += [_tried(plan, costs, rule, FURTHER_LEAD, tied) for rule in rules]
        _, found, ends = min(tried, key=lambda entry: entry[0])
        orders.update(found)
        ends_s.update(ends)
    return Placed(orders=orders, ends_s=ends_s)


def _tried(
    plan: ExecutionPlan, costs: Costs, rule: Rule, lead: int, tied: tuple[int, ...]
) -> tuple[tuple[int, float], Orders, dict[int, float]]:
    """((bytes over memory, seconds), orders, ends) of one way to place the guests."""
    found = _Player(plan, costs, rule, lead, tied).play()
    last_s, ends_s = _replay(plan, costs, found)
    return (_over_memory(plan, costs, found), last_s), found, ends_s


def peak_of_order(plan: ExecutionPlan, worker: int, order: list[Pass], costs: Costs) -> int:
    """Most bytes that the worker holds in this order: as `memory.peak_bytes` of the stream."""
    held = peak = 0
    for item in order:
        size = costs.range_bytes(item.hop.first_layer, item.hop.last_layer)[1]
        held += size if item.forward else -size
        peak = max(peak, held)
    stage = plan.stage(worker)
    return peak + costs.range_bytes(stage.first_layer, stage.last_layer)[0]


def _over_memory(plan: ExecutionPlan, costs: Costs, orders: Orders) -> int:
    """Bytes by which workers exceed their memory, together."""
    return sum(
        max(0, peak_of_order(plan, worker, order, costs) - costs.cluster.device(worker).memory_bytes)
        for worker, order in orders.items()
    )


def _replay(plan: ExecutionPlan, costs: Costs, orders: Orders) -> tuple[float, dict[int, float]]:
    """When the last pass ends, and each worker's, if passes start as soon as order and input allow: as `timeline`.

    The playing itself may have held a guest back that the order alone lets start sooner.
    """
    free_s = dict.fromkeys(orders, 0.0)
    at = dict.fromkeys(orders, 0)
    link_s: dict[tuple[int, int], float] = {}
    input_s: dict[PassKey, float] = {}
    waiting: dict[PassKey, int] = {}
    ways: dict[tuple[int, int], tuple[Hop, ...]] = {}
    runnable = sorted(orders)
    while runnable:
        worker = runnable.pop()
        order = orders[worker]
        while at[worker] < len(order):
            item = order[at[worker]]
            p, m = item.pipeline, item.micro_batch
            if (p, m) not in ways:
                ways[p, m] = plan.hops(p, m)
            way, key = ways[p, m], (item.forward, p, m, item.at)
            has_input = item.at > 0 if item.forward else item.at + 1 < len(way)
            if has_input and key not in input_s:
                waiting[key] = worker
                break
            start_s = max(free_s[worker], input_s[key]) if has_input else free_s[worker]
            cost = costs.forward_s if item.forward else costs.backward_s
            end_s = free_s[worker] = start_s + cost(worker, item.hop.first_layer, item.hop.last_layer)
            at[worker] += 1
            then = item.at + 1 if item.forward else item.at - 1
            if not 0 <= then < len(way):
                continue
            target, boundary = way[then].worker, item.hop.last_layer if item.forward else item.hop.first_layer
            then_key = (item.forward, p, m, then)
            if target == worker:
                input_s[then_key] = end_s
            else:
                departure_s = max(end_s, link_s.get((worker, target), 0.0))
                link_s[worker, target] = departure_s + costs.transfer_s(worker, target, boundary)
                input_s[then_key] = link_s[worker, target] + costs.cluster.latency_s
            if then_key in waiting:
                runnable.append(waiting.pop(then_key))
    return max(free_s.values()), free_s


def tied_pipelines(plan: ExecutionPlan) -> tuple[tuple[int, ...], ...]:
    """Sets of pipelines that routes connect, ascending."""
    parent = {route.pipeline: route.pipeline for route in plan.routes}

    def root(p: int) -> int:
        while parent.setdefault(p, p) != p:
            parent[p] = parent[parent[p]]
            p = parent[p]
        return p

    for route in plan.routes:
        parent[root(plan.stage_of_worker[route.worker][0])] = root(route.pipeline)
    sets: dict[int, list[int]] = {}
    for p in sorted(parent):
        sets.setdefault(root(p), []).append(p)
    return tuple(tuple(members) for members in sets.values())


class _Player:
    def __init__(self, plan: ExecutionPlan, costs: Costs, rule: Rule, lead: int, pipelines: tuple[int, ...]) -> None:
        self.plan, self.costs, self.rule, self.lead, self.pipelines = plan, costs, rule, lead, pipelines
        named = {stage.worker for p in pipelines for stage in plan.pipelines[p].stages}
        workers = sorted(named - plan.lost_set)
        self.orders: Orders = {worker: [] for worker in workers}
        self.own: Orders = {worker: [] for worker in workers}
        self.own_at = dict.fromkeys(workers, 0)
        self.ready: set[PassKey] = set()
        self.guests: dict[tuple[int, bool], list[tuple[int, int, int, Pass]]] = {}
        self.blocked: dict[tuple[int, int], set[int]] = {}
        self.windows = _windows(plan)
        self.busy: set[int] = set()
        self.link_free_s: dict[tuple[int, int], float] = {}
        self.events: list[tuple[float, int, bool, Pass]] = []
        self.count = 0
        self.left = 0
        self.ways = {(p, m): plan.hops(p, m) for p in pipelines for m in range(plan.pipelines[p].micro_batches)}
        self._collect_own()

    def _collect_own(self) -> None:
        for p in self.pipelines:
            pipeline = self.plan.pipelines[p]
            depth = len(pipeline.stages)
            index_of = {(m, s): i for m in range(pipeline.micro_batches) for i, s in self._own_hops(p, m)}
            for s, stage in enumerate(pipeline.stages):
                for forward, m in order_1f1b(depth, s, pipeline.micro_batches):
                    index = index_of.get((m, s))
                    if index is not None:
                        self.own[stage.worker].append(Pass(forward, p, m, index, self.ways[p, m][index]))

    def _own_hops(self, p: int, m: int) -> list[tuple[int, int]]:
        return [(i, hop.stage) for i, hop in enumerate(self.ways[p, m]) if not self._is_guest(p, m, hop.stage)]

    def _is_guest(self, p: int, m: int, s: int) -> bool:
        return (p, s, m) in self.plan.routes_at

    def play(self) -> Orders:
        """Play the step through: per worker its passes in the order in which it took them."""
        for p, m in self.ways:
            self._announce(0.0, Pass(True, p, m, 0, self.ways[p, m][0]))
        self.left = 2 * sum(len(way) for way in self.ways.values())
        while self.events:
            now_s = self.events[0][0]
            touched: set[int] = set()
            while self.events and self.events[0][0] == now_s:
                _, _, ended, item = heapq.heappop(self.events)
                touched.add(item.hop.worker)
                if ended:
                    touched.update(self._end(now_s, item))
                else:
                    self._arrive(item)
            for worker in sorted(touched):
                self._dispatch(now_s, worker)
        assert self.left == 0, "list scheduling ended with passes left"
        return self.orders

    def _announce(self, at_s: float, item: Pass) -> None:
        self.count += 1
        heapq.heappush(self.events, (at_s, self.count, False, item))

    def _arrive(self, item: Pass) -> None:
        p, m, s = item.pipeline, item.micro_batch, item.hop.stage
        if self._is_guest(p, m, s):
            queue = self.guests.setdefault((item.hop.worker, item.forward), [])
            insort(queue, (m, p, item.at, item))
        else:
            self.ready.add((item.forward, p, m, item.at))

    def _dispatch(self, now_s: float, worker: int) -> None:
        if worker in self.busy:
            return
        item = self._choose(worker)
        if item is None:
            return
        self.busy.add(worker)
        self.orders[worker].append(item)
        hop = item.hop
        cost = self.costs.forward_s if item.forward else self.costs.backward_s
        self.count += 1
        end_s = now_s + cost(worker, hop.first_layer, hop.last_layer)
        heapq.heappush(self.events, (end_s, self.count, True, item))

    def _opens_stage(self, item: Pass) -> bool:
        """Guests are counted once a stage, on its first hop."""
        stage = self.plan.pipelines[item.pipeline].stages[item.hop.stage]
        guest = self._is_guest(item.pipeline, item.micro_batch, item.hop.stage)
        return guest and item.hop.first_layer == stage.first_layer

    def _choose(self, worker: int) -> Pass | None:
        own = self._next_own(worker)
        backward = self._next_guest(worker, forward=False)
        forward = self._next_guest(worker, forward=True)
        options: tuple[Pass | None, ...]
        match self.rule:
            case Rule.OWN:
                options = (own, backward, forward)
            case Rule.GUESTS:
                options = (backward, forward, own)
            case Rule.BACKWARD:
                if own is not None and not own.forward:
                    options = (own, backward, forward)
                elif own is not None and forward is not None and own.micro_batch <= forward.micro_batch:
                    options = (backward, own, forward)
                else:
                    options = (backward, forward, own)
            case _:
                assert_never(self.rule)
        chosen = next((item for item in options if item is not None), None)
        if chosen is None:
            return None
        if chosen is own:
            self.own_at[worker] += 1
        else:
            key = (chosen.micro_batch, chosen.pipeline, chosen.at, chosen)
            self.guests[worker, chosen.forward].remove(key)
        return chosen

    def _next_own(self, worker: int) -> Pass | None:
        at = self.own_at[worker]
        if at == len(self.own[worker]):
            return None
        item = self.own[worker][at]
        return item if (item.forward, item.pipeline, item.micro_batch, item.at) in self.ready else None

    def _next_guest(self, worker: int, *, forward: bool) -> Pass | None:
        """The lowest ready guest that its stage's limit lets in; workers held up are remembered per stage."""
        for _, _, _, item in self.guests.get((worker, forward), ()):
            if not (forward and self._opens_stage(item) and self._is_full(item)):
                return item
            self.blocked.setdefault((item.pipeline, item.hop.stage), set()).add(worker)
        return None

    def _is_full(self, item: Pass) -> bool:
        depth = len(self.plan.pipelines[item.pipeline].stages)
        return self.windows[item.pipeline, item.hop.stage].ahead(item.micro_batch) >= depth - item.hop.stage + self.lead

    def _end(self, now_s: float, item: Pass) -> set[int]:
        """The pass is over: hand on what it gave; workers whose blocked guests may now start are returned."""
        p, m = item.pipeline, item.micro_batch
        way = self.ways[p, m]
        self.busy.discard(item.hop.worker)
        self.left -= 1
        freed: set[int] = set()
        if not item.forward and self._opens_stage(item):
            self.windows[p, item.hop.stage].finish(m)
            freed = self.blocked.pop((p, item.hop.stage), set())
        if item.forward and item.at + 1 < len(way):
            self._hand_on(now_s, item, Pass(True, p, m, item.at + 1, way[item.at + 1]), item.hop.last_layer)
        elif item.forward:
            self._arrive(item._replace(forward=False))
        elif item.at > 0:
            self._hand_on(now_s, item, Pass(False, p, m, item.at - 1, way[item.at - 1]), item.hop.first_layer)
        return freed

    def _hand_on(self, now_s: float, item: Pass, then: Pass, boundary: int) -> None:
        source, target = item.hop.worker, then.hop.worker
        if source == target:
            self._arrive(then)
            return
        departure_s = max(now_s, self.link_free_s.get((source, target), 0.0))
        free_s = departure_s + self.costs.transfer_s(source, target, boundary)
        self.link_free_s[source, target] = free_s
        self._announce(free_s + self.costs.cluster.latency_s, then)


class _Window:
    """The routed micro-batches of one stage; how far one is ahead of the lowest that has not come back."""

    def __init__(self, micro_batches: list[int]) -> None:
        self.rank = {m: rank for rank, m in enumerate(micro_batches)}
        self.finished = [False] * len(micro_batches)
        self.low = 0

    def ahead(self, micro_batch: int) -> int:
        return self.rank[micro_batch] - self.low

    def finish(self, micro_batch: int) -> None:
        self.finished[self.rank[micro_batch]] = True
        while self.low < len(self.finished) and self.finished[self.low]:
            self.low += 1


def _windows(plan: ExecutionPlan) -> dict[tuple[int, int], _Window]:
    found: dict[tuple[int, int], list[int]] = {}
    for p, s, m in sorted(plan.routes_at):
        found.setdefault((p, s), []).append(m)
    return {key: _Window(micro_batches) for key, micro_batches in found.items()}
