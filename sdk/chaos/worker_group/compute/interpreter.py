"""Executes a worker's stream: one loop, no decisions.

The layers of a worker are one graph, cut off from what enters the first. Its gradients have the bits that each layer
has by itself (`backward`), so they are the same wherever the boundaries of stages lie, and whoever runs the layer
before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import torch

from chaos.worker_group.chain.backward import gradients_of
from chaos.worker_group.chain.layers import Layer
from chaos.worker_group.compute.passes import Passes, numbers
from chaos.worker_group.compute.seeding import seed_of, seeded
from chaos.worker_group.exchange.channels import Receipt
from chaos.worker_group.exchange.devices import HOST, Device
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.moving import pair
from chaos.worker_group.exchange.notes import SiteNotes
from chaos.worker_group.exchange.spans import SpanLog
from chaos.worker_group.exchange.summing import StepSums, private, whole
from chaos_protocols.message_order import Event, Passage, event_of
from chaos_protocols.streams import BackwardPass, ForwardPass, Message, ReceiveMessage, SendMessage, Share, Sum
from chaos_protocols.worker_group.said import Said
from chaos_protocols.worker_group.suspicion import Work

AHEAD = 2
"""Receives that are posted at each peer before they are needed: its message comes while this worker computes, and has
not to ask for a place first."""

Loss = Callable[[Any, Any], torch.Tensor]
MicroBatch = Callable[[int], tuple[Any, Any]]
"""Number to (input, target)."""


class Doing(Protocol):
    """Says what comes next, and raises `GenerationEnded` if it is not to come."""

    def __call__(self, work: Work, peer: int = -1) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What stays the same from step to step under one plan."""

    share: Share
    layers: Sequence[Layer]
    """All of the model; only those of the share are held."""
    loss: Loss
    boundaries: Sequence[tuple[tuple[int, ...], torch.dtype]]
    """Shape and type of what enters each layer (unused for layer 0)."""
    me: int
    groups: Groups | None
    seed: int
    micro_batches: int
    part: int = 0
    parts: int = 1
    """This process computes part `part` of `parts` of each micro-batch, with the random numbers of a micro-batch of its
    own."""
    spans: SpanLog | None = None
    device: Device = HOST
    notes: SiteNotes | None = None
    order: Sequence[Event] = ()
    """In which this worker begins its messages and sums, for groups whose messages block (`message_order`); none: as it
    comes to them, with receives begun early, which sockets allow."""


@dataclass(slots=True)
class _Pass:
    """What a run of layers keeps of one micro-batch from its forward to its backward pass."""

    entered: torch.Tensor
    left: torch.Tensor


class StepRun:
    """One step of a task."""

    def __init__(self, task: Task, step: int, micro_batch: MicroBatch, doing: Doing) -> None:
        self._task, self._step, self._micro_batch, self._doing = task, step, micro_batch, doing
        held = task.layers[task.share.first_layer : task.share.last_layer]
        self.sums = StepSums(held, task.micro_batches)
        self.losses: dict[int, float] = {}
        self.said: dict[int, Said] = {}
        self.seconds: dict[str, float] = {"waiting": 0.0, "summing": 0.0}
        self._losses: dict[int, torch.Tensor] = {}
        self._computing = Passes(task.device, task.spans)
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._values: dict[Message, torch.Tensor] = {}
        self._samples: dict[int, tuple[Any, Any]] = {}
        self._expected = {each.peer: deque(each.messages) for each in task.share.incoming}
        self._posted: dict[tuple[int, Message], tuple[Receipt, torch.Tensor]] = {}
        self._order = deque(task.order)
        self._ahead = 0 if task.order else AHEAD
        self._trained = {layer.index: layer.parameters for layer in held}

    def run(self) -> None:
        """From the first instruction to the last. Raises `GroupFailed`, `GenerationEnded`, what the model raises."""
        for peer, expected in self._expected.items():
            for _ in range(min(self._ahead, len(expected))):
                self._post(peer)
        for instruction in self._task.share.stream:
            if self._order:
                self._begin_before(event_of(self._task.me, instruction))
            match instruction:
                case ForwardPass(g, first, last):
                    began = self._read(g) if first == 0 or last == len(self._task.layers) else None
                    self._doing(Work.FORWARD)
                    mark = self._computing.mark() if began is None else began
                    self._forward(g, first, last)
                    self._computing.add(Work.FORWARD, g, mark)
                case BackwardPass(g, first, last):
                    self._doing(Work.BACKWARD)
                    mark = self._computing.mark()
                    self._backward(g, first, last)
                    self._computing.add(Work.BACKWARD, g, mark)
                case SendMessage(message, peer):
                    self._computing.wait()  # what is sent must be there: the time is the pass's
                    self._timed(Work.WAITING, partial(self._send, message, peer))
                case ReceiveMessage(message, peer):
                    self._timed(Work.WAITING, partial(self._receive, message, peer))
                case Sum() as total:
                    self._computing.wait()
                    self._doing(Work.SUMMING)
                    self._timed(Work.SUMMING, partial(self._sum, total))
        self._computing.wait()
        self.seconds |= {work.name.lower(): took_s for work, took_s in self._computing.seconds.items()}
        self.losses = dict(zip(self._losses, numbers(list(self._losses.values())), strict=True))

    def squares(self, layers: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """Each of these layers, and the sum of the squares of its summed gradient."""
        found = [self._task.layers[layer].squared(self.sums.total(layer)) for layer in layers]
        return tuple(zip(layers, numbers(found), strict=True))

    def _timed(self, work: Work, call: Callable[[], None]) -> None:
        began_s = perf_counter()
        call()
        ended_s = perf_counter()
        self.seconds[work.name.lower()] += ended_s - began_s
        if self._task.spans is not None:
            self._task.spans.add(work, began_s, ended_s)

    def _sum(self, total: Sum) -> None:
        assert self._task.groups is not None
        self.sums.close(total, self._task.me, self._task.groups, self._waits)

    # ---- passes

    def _forward(self, g: int, first: int, last: int) -> None:
        task = self._task
        value = self._sample(g)[0] if first == 0 else self._values.pop(Message(False, g, first))
        for run in runs_of(task.layers[first:last]):
            entered = left = _leaf(value)
            for layer in run:
                left = self._apply(layer, left, g)
            self._passes[g, run[0].index] = _Pass(entered, left)
            value = left.detach()
        if last < len(task.layers):
            self._values[Message(False, g, last)] = value
            self._samples.pop(g, None)
            return
        output = _leaf(value)
        target = self._sample(g)[1]
        with self._seeded(g, len(task.layers)):
            loss = task.loss(output, target)
        self._samples.pop(g, None)
        if loss.dim() != 0:
            raise ValueError(f"loss= gave a tensor of shape {tuple(loss.shape)}; it must be the mean, one number")
        if task.notes is not None:
            self.said[g] = task.notes.passed()
        self._losses[g] = loss.detach().clone()  # a script may add up in place
        (gradient,) = torch.autograd.grad(loss, output)
        self._values[Message(True, g, last)] = gradient

    def _apply(self, layer: Layer, entered: torch.Tensor, g: int) -> torch.Tensor:
        with self._seeded(g, layer.index):
            left = layer.run(entered)
        if not isinstance(left, torch.Tensor):
            raise ValueError(
                f"layer {layer.name} gave a {type(left).__name__}; each layer must take one tensor and give one"
            )
        return left

    def _seeded(self, g: int, layer: int) -> AbstractContextManager[None]:
        """For all: this takes 5 us, and whether something draws may change at any step (dropout that grows)."""
        number = g * self._task.parts + self._task.part
        return seeded(seed_of(self._task.seed, self._step, number, layer), self._task.device)

    def _backward(self, g: int, first: int, last: int) -> None:
        gradient: torch.Tensor | None = self._values.pop(Message(True, g, last))
        for run in reversed(runs_of(self._task.layers[first:last])):
            kept = self._passes.pop((g, run[0].index))
            parameters = [self._trained[layer.index] for layer in run]
            found: Sequence[Sequence[torch.Tensor | None]] = [()] * len(run)
            onto = [self.sums.left_of(layer.index, g) if layer.adds else None for layer in run]
            if (kept.entered.requires_grad or any(parameters)) and gradient is not None and kept.left.requires_grad:
                if run[0].adds:
                    gradient, found = gradients_of(parameters, kept.entered, kept.left, gradient, onto)
                else:
                    gradient, of_layer = run[0].gradients(kept.entered, kept.left, gradient)
                    found = [of_layer]
            else:
                gradient = None
            wholes = [whole(*each) for each in zip(parameters, found, strict=True)]
            for layer, there, own in zip(run, onto, private(wholes, gradient), strict=True):
                if there is None:
                    self.sums.leaf(layer.index, g, own)
                else:
                    self.sums.pair(layer.index, g, there)
        if first > 0:
            boundary = self._task.boundaries[first]
            value = (
                self._task.device.moved(torch.zeros(boundary[0], dtype=boundary[1])) if gradient is None else gradient
            )
            self._values[Message(True, g, first)] = value

    def _read(self, g: int) -> Any:
        """Have the samples of a micro-batch, and give the mark before that: it is a part of the pass. But it is the
        data set's own code, which may wait for a disk, and so no measure for passes."""
        mark = self._computing.mark()
        self._doing(Work.READING)
        self._sample(g)
        return mark

    def _sample(self, g: int) -> tuple[Any, Any]:
        if g not in self._samples:
            value, target = self._micro_batch(g)
            self._samples[g] = self._task.device.moved(value), self._task.device.moved(target)
        return self._samples[g]

    # ---- messages

    def _group(self) -> Groups:
        assert self._task.groups is not None
        return self._task.groups

    def _send(self, message: Message, peer: int) -> None:
        value = self._values.pop(message).contiguous()
        shape, dtype = self._task.boundaries[message.layer]
        if tuple(value.shape) != tuple(shape) or value.dtype != dtype:
            raise ValueError(
                f"layer {message.layer} takes {tuple(value.shape)} {value.dtype} now and took {tuple(shape)} {dtype} "
                "in the first micro-batch; micro-batches must all have one shape"
            )
        self._group().send(pair(self._task.me, peer), peer, value)

    def _receive(self, message: Message, peer: int) -> None:
        """Post what the peer sends up to this message, in its order, then wait for this one."""
        while (peer, message) not in self._posted:
            self._post(peer)
        work, value = self._posted.pop((peer, message))
        self._waits(peer)
        self._group().wait(work)
        self._values[message] = value
        if self._ahead and self._expected[peer]:
            self._post(peer)

    def _begin_before(self, event: Event | None) -> None:
        """The receives that stand before it in the order, and the event itself if it is one of them."""
        if isinstance(event, Passage) and (event.source, event.message) in self._posted:
            return
        while event is not None:
            first = self._order.popleft()
            if isinstance(first, Passage) and first.target == self._task.me:
                self._post(first.source)
            if first == event:
                return

    def _post(self, peer: int) -> None:
        """The next receive from this peer, in the order in which it sends."""
        each = self._expected[peer].popleft()
        shape, dtype = self._task.boundaries[each.layer]
        value = torch.empty(shape, dtype=dtype, device=self._task.device.name)
        self._posted[peer, each] = (self._group().receive(pair(self._task.me, peer), peer, value), value)

    def _waits(self, peer: int) -> None:
        self._doing(Work.WAITING, peer)


def runs_of(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers whose backward passes are one, in order: those that can; any other is by itself."""
    found: list[list[Layer]] = []
    for layer in layers:
        if found and layer.adds and found[-1][0].adds:
            found[-1].append(layer)
        else:
            found.append([layer])
    return found


def _leaf(value: Any) -> torch.Tensor:
    """The same numbers, cut off from whatever made them."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"a {type(value).__name__} enters a layer; each layer must take one tensor and give one")
    cut: torch.Tensor = value.detach()
    return cut.requires_grad_() if cut.is_floating_point() else cut
