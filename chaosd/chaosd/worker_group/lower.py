"""From a plan's instruction streams, as the planner compiled them, to what workers execute.

The planner counts micro-batches by pipeline, workers by their number within the step, so that data, random numbers and
sums do not depend on the plan: pipeline 0 has the first ones, and so on. Each exchange of gradients becomes the closing
of canonical sums; layers of one exchange whose micro-batches are spread alike are closed together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from chaos_planner.pipelines.plans.execution import ExecutionPlan
from chaos_planner.pipelines.streams import instructions as planned
from chaos_planner.pipelines.streams.instructions import Streams
from chaos_protocols.streams import (
    BackwardPass,
    ForwardPass,
    Instruction,
    Message,
    ReceiveMessage,
    SendMessage,
    Share,
    Sum,
    incoming_of,
    prove,
)
from chaos_protocols.sums import Subtotal, remaining


def lower(plan: ExecutionPlan, streams: Streams) -> dict[int, Share]:
    """The shares of the plan's workers, proved. `UnprovedStreams` never but by our own mistake."""
    first_of = list(itertools.accumulate((p.micro_batches for p in plan.pipelines), initial=0))
    sums = _sums(plan, streams, first_of)
    lowered = {worker: tuple(_lowered(stream, first_of, sums)) for worker, stream in streams.items()}
    incoming = incoming_of(lowered)
    shares = {}
    for worker, stream in lowered.items():
        stage = plan.stage(worker)
        shares[worker] = Share(
            first_layer=stage.first_layer, last_layer=stage.last_layer, stream=stream, incoming=incoming[worker]
        )
    prove(shares, layers=plan.num_layers, micro_batches=plan.micro_batches)
    return shares


def _lowered(
    stream: Sequence[planned.Instruction], first_of: Sequence[int], sums: dict[planned.ReduceLayer, tuple[Sum, ...]]
) -> list[Instruction]:
    found: list[Instruction] = []
    for i in stream:
        match i:
            case planned.Forward(p, m, first, last):
                found.append(ForwardPass(first_of[p] + m, first, last))
            case planned.Backward(p, m, first, last):
                found.append(BackwardPass(first_of[p] + m, first, last))
            case planned.SendActivation(p, m, layer, peer):
                found.append(SendMessage(Message(False, first_of[p] + m, layer), peer))
            case planned.SendGradient(p, m, layer, peer):
                found.append(SendMessage(Message(True, first_of[p] + m, layer), peer))
            case planned.ReceiveActivation(p, m, layer, peer):
                found.append(ReceiveMessage(Message(False, first_of[p] + m, layer), peer))
            case planned.ReceiveGradient(p, m, layer, peer):
                found.append(ReceiveMessage(Message(True, first_of[p] + m, layer), peer))
            case planned.ReduceLayer():
                found.extend(sums[i])
            case planned.Step():
                pass  # the update waits for the commit, which is no instruction
    return found


def _sums(plan: ExecutionPlan, streams: Streams, first_of: Sequence[int]) -> dict[planned.ReduceLayer, tuple[Sum, ...]]:
    """What becomes of each exchange."""
    leaves: dict[tuple[int, int], list[int]] = {}
    for worker, stream in streams.items():
        for i in stream:
            if isinstance(i, planned.Backward):
                for layer in range(i.first_layer, i.last_layer):
                    leaves.setdefault((worker, layer), []).append(first_of[i.pipeline] + i.micro_batch)
    found: dict[planned.ReduceLayer, tuple[Sum, ...]] = {}
    for group in plan.gradient_groups:
        alike: dict[tuple[tuple[Subtotal, ...], ...], list[int]] = {}
        for layer in group.layers:
            subtotals = tuple(
                remaining(leaves.get((holder, layer), ()), plan.micro_batches) for holder in group.workers
            )
            alike.setdefault(subtotals, []).append(layer)
        exchange = planned.ReduceLayer(group.colour, group.layers, group.workers)
        found[exchange] = tuple(Sum(tuple(layers), group.workers, subtotals) for subtotals, layers in alike.items())
    return found
