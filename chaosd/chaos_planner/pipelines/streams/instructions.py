"""Instruction streams: what each worker does in one step, in order; and the proof that they can be executed.

Produced by `compile`; read by the estimator and by every simulation; a runtime that executes them runs what was
estimated. Sends are buffered: a send hands its message to the link and returns; messages are matched by their tag
(kind, pipeline, micro-batch, boundary), never by arrival order. A receive waits for its message, a reduce for all of
its workers. Under these rules the streams are a Kahn network: whether they finish does not depend on speed or order of
events, so one abstract execution that finishes (`prove`) shows that every real one does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from chaos_planner.pipelines.facts.checks import InvalidPlan
from chaos_planner.pipelines.plans.execution import ExecutionPlan


class InvalidStreams(InvalidPlan):
    """Streams that deadlock, leave a message unmatched, or do not carry every micro-batch through every layer once."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One micro-batch forward through layers first_layer up to, not including, last_layer."""

    pipeline: int
    micro_batch: int
    first_layer: int
    last_layer: int


@dataclass(frozen=True, slots=True)
class Backward:
    """One micro-batch backward through the same layers; frees the activations, adds to the gradients."""

    pipeline: int
    micro_batch: int
    first_layer: int
    last_layer: int


@dataclass(frozen=True, slots=True)
class SendActivation:
    """Hand what layer `layer - 1` gave to the peer that executes `layer`."""

    pipeline: int
    micro_batch: int
    layer: int
    peer: int


@dataclass(frozen=True, slots=True)
class ReceiveActivation:
    """Wait for what layer `layer - 1` gave on the peer."""

    pipeline: int
    micro_batch: int
    layer: int
    peer: int


@dataclass(frozen=True, slots=True)
class SendGradient:
    """Hand the gradient of what entered layer `layer` to the peer that executed `layer - 1`."""

    pipeline: int
    micro_batch: int
    layer: int
    peer: int


@dataclass(frozen=True, slots=True)
class ReceiveGradient:
    """Wait for the gradient of what entered layer `layer` on the peer."""

    pipeline: int
    micro_batch: int
    layer: int
    peer: int


@dataclass(frozen=True, slots=True)
class ReduceLayer:
    """Sum the gradients of these layers over these workers, in round `colour`."""

    colour: int
    layers: tuple[int, ...]
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """The optimizer's step on the worker's own layers."""

    first_layer: int
    last_layer: int


Instruction: TypeAlias = (
    Forward | Backward | SendActivation | ReceiveActivation | SendGradient | ReceiveGradient | ReduceLayer | Step
)
Streams: TypeAlias = Mapping[int, tuple[Instruction, ...]]
"""Worker to its instructions, in order."""

MessageTag: TypeAlias = tuple[bool, int, int, int, int, int]
"""(is a gradient, pipeline, micro-batch, boundary, source, target)."""


def sent_tag(worker: int, send: SendActivation | SendGradient) -> MessageTag:
    """The tag of the message that this send on this worker makes."""
    return (type(send) is SendGradient, send.pipeline, send.micro_batch, send.layer, worker, send.peer)


def awaited_tag(worker: int, receive: ReceiveActivation | ReceiveGradient) -> MessageTag:
    """The tag of the message that this receive on this worker waits for."""
    gradient = type(receive) is ReceiveGradient
    return (gradient, receive.pipeline, receive.micro_batch, receive.layer, receive.peer, worker)


def prove(streams: Streams, plan: ExecutionPlan) -> None:
    """Raise `InvalidStreams` unless the streams finish, match all messages and pass every layer exactly once.

    Linear in the number of instructions.
    """
    if streams.keys() != plan.workers:
        raise InvalidStreams(
            f"streams are for workers {sorted(streams)}; the plan's live ones are {sorted(plan.workers)}"
        )
    _check_messages(streams)
    _check_coverage(streams, plan)
    for worker in sorted(streams):
        _check_data_flow(worker, streams[worker], plan)
    _check_progress(streams)


def _check_messages(streams: Streams) -> None:
    sent: Counter[MessageTag] = Counter()
    awaited: Counter[MessageTag] = Counter()
    for worker, stream in streams.items():
        for instruction in stream:
            if isinstance(instruction, SendActivation | SendGradient):
                sent[sent_tag(worker, instruction)] += 1
            elif isinstance(instruction, ReceiveActivation | ReceiveGradient):
                awaited[awaited_tag(worker, instruction)] += 1
    for tag in sent.keys() | awaited.keys():
        if sent[tag] != 1 or awaited[tag] != 1:
            gradient, pipeline, micro_batch, layer, source, target = tag
            raise InvalidStreams(
                f"{'gradient' if gradient else 'activation'} of pipeline {pipeline} micro-batch {micro_batch} at layer "
                f"{layer} is sent {sent[tag]} times by worker {source} and received {awaited[tag]} times by worker "
                f"{target}; allowed: once each"
            )


def _check_coverage(streams: Streams, plan: ExecutionPlan) -> None:
    passes: Counter[tuple[bool, int, int, int]] = Counter()
    for stream in streams.values():
        for i in stream:
            if isinstance(i, Forward | Backward):
                forward = type(i) is Forward
                for layer in range(i.first_layer, i.last_layer):
                    passes[forward, i.pipeline, i.micro_batch, layer] += 1
    expected = 2 * plan.micro_batches * plan.num_layers
    wrong = next((key for key, count in passes.items() if count != 1), None)
    if wrong is None and len(passes) == expected:
        inside = all(
            0 <= p < len(plan.pipelines) and 0 <= m < plan.pipelines[p].micro_batches and 0 <= layer < plan.num_layers
            for _, p, m, layer in passes
        )
        if inside:
            return
    raise InvalidStreams(
        f"{len(passes)} of {expected} passes of a micro-batch through a layer are in the streams"
        + (f", and (forward, pipeline, micro-batch, layer) {wrong} {passes[wrong]} times" if wrong else "")
        + "; allowed: each exactly once"
    )


def _check_data_flow(worker: int, stream: tuple[Instruction, ...], plan: ExecutionPlan) -> None:
    """Each pass has its input on this worker, each backward its forward before it, and the step ends the stream."""
    stage = plan.stage(worker)
    have: set[tuple[bool, int, int, int]] = set()
    kept: set[tuple[int, int, int, int]] = set()
    for i in stream:
        match i:
            case Forward(p, m, first, last):
                if not stage.first_layer <= first < last <= stage.last_layer:
                    raise InvalidStreams(f"worker {worker} executes layers {first} to {last} and does not hold them")
                if first > 0 and (False, p, m, first) not in have:
                    raise InvalidStreams(f"worker {worker} has no activation for forward {p}/{m} at layer {first}")
                have.add((False, p, m, last))
                kept.add((p, m, first, last))
            case Backward(p, m, first, last):
                if (p, m, first, last) not in kept:
                    raise InvalidStreams(f"worker {worker} goes backward before forward in {p}/{m} at layer {first}")
                if last < plan.num_layers and (True, p, m, last) not in have:
                    raise InvalidStreams(f"worker {worker} has no gradient for backward {p}/{m} at layer {last}")
                kept.discard((p, m, first, last))
                have.add((True, p, m, first))
            case ReceiveActivation(p, m, layer, _):
                have.add((False, p, m, layer))
            case ReceiveGradient(p, m, layer, _):
                have.add((True, p, m, layer))
            case SendActivation(p, m, layer, _) | SendGradient(p, m, layer, _):
                if (type(i) is SendGradient, p, m, layer) not in have:
                    raise InvalidStreams(f"worker {worker} sends what it has not computed: {i}")
            case ReduceLayer() | Step():
                if kept:
                    raise InvalidStreams(f"worker {worker} reduces gradients before its last backward pass")
    _check_tail(worker, stream, plan)


def _check_tail(worker: int, stream: tuple[Instruction, ...], plan: ExecutionPlan) -> None:
    stage = plan.stage(worker)
    reduces = [(i.colour, i.layers, i.workers) for i in stream if isinstance(i, ReduceLayer)]
    expected = sorted((g.colour, g.layers, g.workers) for g in plan.gradient_groups if worker in g.workers)
    if reduces != expected:
        raise InvalidStreams(f"worker {worker} reduces {reduces}; allowed: its gradient groups by colour, {expected}")
    if not stream or stream[-1] != Step(stage.first_layer, stage.last_layer):
        raise InvalidStreams(f"the stream of worker {worker} does not end with the step of its own layers")


def _check_progress(streams: Streams) -> None:
    """Execute abstractly; whoever is stuck at the end waits for someone who is stuck too."""
    at = dict.fromkeys(streams, 0)
    arrived: set[MessageTag] = set()
    waiting: dict[MessageTag, int] = {}
    joined: dict[ReduceLayer, int] = {}
    runnable = deque(sorted(streams))
    while runnable:
        worker = runnable.popleft()
        stream = streams[worker]
        while at[worker] < len(stream):
            instruction = stream[at[worker]]
            if isinstance(instruction, SendActivation | SendGradient):
                tag = sent_tag(worker, instruction)
                arrived.add(tag)
                if tag in waiting:
                    runnable.append(waiting.pop(tag))
            elif isinstance(instruction, ReceiveActivation | ReceiveGradient):
                tag = awaited_tag(worker, instruction)
                if tag not in arrived:
                    waiting[tag] = worker
                    break
            elif isinstance(instruction, ReduceLayer):
                joined[instruction] = joined.get(instruction, 0) + 1
                if joined[instruction] < len(instruction.workers):
                    break
                for member in instruction.workers:
                    if member != worker:
                        at[member] += 1
                        runnable.append(member)
            at[worker] += 1
    stuck = {worker: streams[worker][at[worker]] for worker in sorted(streams) if at[worker] < len(streams[worker])}
    if stuck:
        shown = "; ".join(f"worker {worker} waits at {instruction}" for worker, instruction in list(stuck.items())[:4])
        raise InvalidStreams(f"the streams deadlock with {len(stuck)} workers waiting: {shown}")
