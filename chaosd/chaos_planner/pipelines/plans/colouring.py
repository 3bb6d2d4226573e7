"""In which rounds the layers' gradients are exchanged, so that exchanges that share no worker run at the same time.

Driven by the compiler of execution plans (colours of the gradient groups), by the planner's cost of a step and by the
benchmark. Each layer held by two or more workers needs one all-reduce among its holders. Two layers on one worker
would wait for each other there: layers are vertices, layers that share a worker are adjacent, a colour is a round, and
all layers of a colour run together. Layers with the same holders are one exchange of their sum of bytes (one group,
one call), so in symmetric training every stage is one vertex and one colour does for all of them.

Greedy colouring, three orders tried (layer order, largest degree first, most bytes first), fewest rounds kept, then the
shorter time. No colouring has fewer rounds than the exchanges of the busiest worker: they are pairwise adjacent, a
clique. Where the rounds equal that bound they are optimal, and `Colouring.optimal` says so. For pipelines of contiguous
stages they always do: if two layers share a stage, so do all between them, hence the graph is a proper interval graph,
on which greedy in layer order is exact and the largest clique is one stage of one pipeline.

Source: Chameleon IV-B (Odyssey fig. 4), "asymmetric communication"; grouping and bound: this project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LAYERS_MAX = 100_000
"""More layers than any model has; colouring is quadratic in the distinct groups of holders."""

EXCHANGES_MAX = 8192
"""Distinct groups of holders; beyond this the quadratic colouring takes longer than it can save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One all-reduce: these layers (ascending), among these workers (ascending), this many bytes a worker."""

    layers: tuple[int, ...]
    workers: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Colouring:
    """`colour_of_layer[l]` is the round of layer l, -1 where only one worker holds it (nothing to exchange).

    `lower_bound`: no schedule has fewer rounds. `serial_rounds`: one exchange after the other.
    """

    exchanges: tuple[Exchange, ...]
    colour_of_exchange: tuple[int, ...]
    colour_of_layer: tuple[int, ...]
    rounds: int
    serial_rounds: int
    lower_bound: int

    @property
    def optimal(self) -> bool:
        """True if no schedule of these exchanges has fewer rounds."""
        return self.rounds == self.lower_bound

    def exchanges_in(self, colour: int) -> tuple[Exchange, ...]:
        """The exchanges that run together in this round."""
        return tuple(e for e, c in zip(self.exchanges, self.colour_of_exchange, strict=True) if c == colour)


def colour(holders: Sequence[Iterable[int]], gradient_bytes: Sequence[int] | None = None) -> Colouring:
    """Rounds for layers held by these workers; deterministic.

    `holders[l]`: the workers that hold layer l; `gradient_bytes[l]`: its gradient on each of them (0 if not given).
    Raises `ValueError` for a layer without a holder, lengths that differ, negative bytes, or too many layers.
    """
    exchanges = exchanges_of(holders, gradient_bytes)
    clashes = _clashes(exchanges)
    degrees = [len(neighbours) for neighbours in clashes]
    indices = range(len(exchanges))
    orders = (
        list(indices),
        sorted(indices, key=lambda e: (-degrees[e], -exchanges[e].size_bytes, e)),
        sorted(indices, key=lambda e: (-exchanges[e].size_bytes, -degrees[e], e)),
    )
    tried = [_greedy(order, clashes) for order in orders]
    best = min(tried, key=lambda colours: (max(colours, default=-1), _time_bytes(exchanges, colours)))
    colour_of_layer = [-1] * len(holders)
    for exchange, chosen in zip(exchanges, best, strict=True):
        for layer in exchange.layers:
            colour_of_layer[layer] = chosen
    per_worker: dict[int, int] = {}
    for exchange in exchanges:
        for worker in exchange.workers:
            per_worker[worker] = per_worker.get(worker, 0) + 1
    return Colouring(
        exchanges=exchanges,
        colour_of_exchange=tuple(best),
        colour_of_layer=tuple(colour_of_layer),
        rounds=max(best, default=-1) + 1,
        serial_rounds=len(exchanges),
        lower_bound=max(per_worker.values(), default=0),
    )


def exchanges_of(holders: Sequence[Iterable[int]], gradient_bytes: Sequence[int] | None = None) -> tuple[Exchange, ...]:
    """One exchange per set of holders, in the order of their first layers; layers with one holder need none."""
    if len(holders) > LAYERS_MAX:
        raise ValueError(f"{len(holders)} layers are more than the {LAYERS_MAX} that can be coloured")
    sizes = [0] * len(holders) if gradient_bytes is None else list(gradient_bytes)
    if len(sizes) != len(holders):
        raise ValueError(f"holders name {len(holders)} layers and gradient_bytes {len(sizes)}")
    grouped: dict[tuple[int, ...], list[int]] = {}
    for layer, workers in enumerate(holders):
        key = tuple(sorted(set(workers)))
        if not key:
            raise ValueError(f"layer {layer} is held by no worker: its state is lost here")
        if sizes[layer] < 0:
            raise ValueError(f"gradient bytes of layer {layer} must be 0 or more, not {sizes[layer]}")
        if len(key) > 1:
            grouped.setdefault(key, []).append(layer)
    if len(grouped) > EXCHANGES_MAX:
        raise ValueError(f"{len(grouped)} different groups of holders are more than the {EXCHANGES_MAX} supported")
    return tuple(
        Exchange(layers=tuple(layers), workers=key, size_bytes=sum(sizes[layer] for layer in layers))
        for key, layers in grouped.items()
    )


def exchange_time_s(exchange: Exchange, rate_bytes_per_s: float, latency_s: float) -> float:
    """Seconds of a ring all-reduce among n workers: 2 (n - 1) steps of size/n bytes. `ValueError` for a rate <= 0."""
    if not rate_bytes_per_s > 0:
        raise ValueError(f"the rate must be above 0 bytes/s, not {rate_bytes_per_s}")
    members = len(exchange.workers)
    return 2 * (members - 1) * (exchange.size_bytes / members / rate_bytes_per_s + latency_s)


def coloured_time_s(colouring: Colouring, rate_bytes_per_s: float, latency_s: float) -> float:
    """Seconds when rounds follow each other and the exchanges of a round run together."""
    longest: dict[int, float] = {}
    for exchange, chosen in zip(colouring.exchanges, colouring.colour_of_exchange, strict=True):
        longest[chosen] = max(longest.get(chosen, 0.0), exchange_time_s(exchange, rate_bytes_per_s, latency_s))
    return sum(longest.values())


def serial_time_s(colouring: Colouring, rate_bytes_per_s: float, latency_s: float) -> float:
    """Seconds when the exchanges follow one another: what asymmetric groups do unless they are coloured (IV-B)."""
    return sum(exchange_time_s(exchange, rate_bytes_per_s, latency_s) for exchange in colouring.exchanges)


def waiting_time_s(colouring: Colouring, rate_bytes_per_s: float, latency_s: float) -> float:
    """Seconds when each worker takes its exchanges in layer order and waits for its partners (no rounds)."""
    free_at_s: dict[int, float] = {}
    for exchange in colouring.exchanges:
        start_s = max((free_at_s.get(worker, 0.0) for worker in exchange.workers), default=0.0)
        end_s = start_s + exchange_time_s(exchange, rate_bytes_per_s, latency_s)
        free_at_s.update(dict.fromkeys(exchange.workers, end_s))
    return max(free_at_s.values(), default=0.0)


def busiest_worker_time_s(colouring: Colouring, rate_bytes_per_s: float, latency_s: float) -> float:
    """Seconds that no schedule can beat: the exchanges of one worker follow one another."""
    busy_s: dict[int, float] = {}
    for exchange in colouring.exchanges:
        for worker in exchange.workers:
            busy_s[worker] = busy_s.get(worker, 0.0) + exchange_time_s(exchange, rate_bytes_per_s, latency_s)
    return max(busy_s.values(), default=0.0)


def holders_from_stages(stages: Mapping[int, Iterable[int]], num_layers: int) -> tuple[tuple[int, ...], ...]:
    """`holders` for `colour` from the layers of each worker. `ValueError` for a layer out of range."""
    found: list[list[int]] = [[] for _ in range(num_layers)]
    for worker in sorted(stages):
        for layer in stages[worker]:
            if not 0 <= layer < num_layers:
                raise ValueError(f"worker {worker} holds layer {layer}, but the model has layers 0 to {num_layers - 1}")
            found[layer].append(worker)
    return tuple(tuple(workers) for workers in found)


def _clashes(exchanges: Sequence[Exchange]) -> list[set[int]]:
    """Per exchange, the others that share a worker with it."""
    at_worker: dict[int, list[int]] = {}
    for index, exchange in enumerate(exchanges):
        for worker in exchange.workers:
            at_worker.setdefault(worker, []).append(index)
    clashes: list[set[int]] = [set() for _ in exchanges]
    for indices in at_worker.values():
        for index in indices:
            clashes[index].update(indices)
    for index, neighbours in enumerate(clashes):
        neighbours.discard(index)
    return clashes


def _greedy(order: Sequence[int], clashes: Sequence[set[int]]) -> list[int]:
    colours = [-1] * len(order)
    for index in order:
        taken = {colours[other] for other in clashes[index]}
        colours[index] = next(c for c in range(len(order)) if c not in taken)
    return colours


def _time_bytes(exchanges: Sequence[Exchange], colours: Sequence[int]) -> int:
    """Sum over the rounds of the most bytes exchanged in it: the time up to a factor."""
    most: dict[int, int] = {}
    for exchange, chosen in zip(exchanges, colours, strict=True):
        most[chosen] = max(most.get(chosen, 0), exchange.size_bytes)
    return sum(most.values())
