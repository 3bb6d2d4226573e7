"""Instruction streams as the workers of a site execute them: what each does in one step, in order; and the proof.

Made by the daemon from a plan (`chaosd.worker_group.lower`), sent to each worker with its order, executed by the SDK's
interpreter: workers need no planner, and what was proved is what runs. Micro-batches have their global number 0..M-1
within the step, so that neither data nor sums depend on the pipelines of a plan.

A send hands its message over and returns, and the sender keeps the bytes until they have gone. Messages from one worker
to another are matched by their order, never by a tag: each receiver is told the order in which each of its peers sends
(`FromPeer`), and posts its receives in that order. A receive waits for its message, a sum for all of its holders. Under
these rules the streams are a Kahn network: one abstract execution that finishes (`prove`) shows that every real one
does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec

from chaos_protocols.sums import Subtotal, remaining

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]

LAYERS_MAX = 4096
MICRO_BATCHES_MAX = 65_536
INSTRUCTIONS_MAX = 1 << 22
WORKERS_MAX = 65_536


class UnprovedStreams(ValueError):
    """Streams that deadlock, leave a message unmatched, or do not carry every micro-batch through every layer once."""


class ForwardPass(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """One micro-batch forward through layers first_layer up to, not including, last_layer."""

    micro_batch: Number
    first_layer: Number
    last_layer: Number


class BackwardPass(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """One micro-batch backward through the same layers; each layer's gradient is a leaf of its sum."""

    micro_batch: Number
    first_layer: Number
    last_layer: Number


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What crosses a boundary: the activation that enters `layer`, or the gradient of it on its way back."""

    gradient: bool
    micro_batch: Number
    layer: Number


class SendMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Hand a message to the peer."""

    message: Message
    peer: Number


class ReceiveMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Wait for a message from the peer."""

    message: Message
    peer: Number


class Sum(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Complete the canonical sums of these layers with their other holders.

    `subtotals[i]`: what `holders[i]` is left with of each of these layers, in ascending order.
    """

    layers: Annotated[tuple[Number, ...], msgspec.Meta(min_length=1, max_length=LAYERS_MAX)]
    holders: Annotated[tuple[Number, ...], msgspec.Meta(min_length=2, max_length=WORKERS_MAX)]
    subtotals: Annotated[tuple[tuple[Subtotal, ...], ...], msgspec.Meta(min_length=2, max_length=WORKERS_MAX)]


Instruction: TypeAlias = ForwardPass | BackwardPass | SendMessage | ReceiveMessage | Sum
Stream: TypeAlias = Annotated[tuple[Instruction, ...], msgspec.Meta(max_length=INSTRUCTIONS_MAX)]


class FromPeer(msgspec.Struct, frozen=True, array_like=True):
    """The messages of one step from one peer, in the order in which it sends them."""

    peer: Number
    messages: Annotated[tuple[Message, ...], msgspec.Meta(max_length=INSTRUCTIONS_MAX)]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part of a plan: the layers that it holds, what it does in a step, and from whom it hears in which
    order. A worker that the plan does not need holds no layers and does nothing."""

    first_layer: Number = 0
    last_layer: Number = 0
    stream: Stream = ()
    incoming: Annotated[tuple[FromPeer, ...], msgspec.Meta(max_length=WORKERS_MAX)] = ()

    def groups(self, worker: int) -> tuple[tuple[int, ...], ...]:
        """The sets of workers that this one (`worker`) communicates in: a pair for each peer, and the holders of its
        sums. A pair that also sums has one group: its sums come after all of its messages."""
        peers = {i.peer for i in self.stream if isinstance(i, SendMessage)} | {
            incoming.peer for incoming in self.incoming
        }
        pairs = {(min(worker, peer), max(worker, peer)) for peer in peers}
        return tuple(sorted(pairs | {i.holders for i in self.stream if isinstance(i, Sum)}))


Shares: TypeAlias = Mapping[int, Share]


def incoming_of(streams: Mapping[int, Sequence[Instruction]]) -> dict[int, tuple[FromPeer, ...]]:
    """Per worker what each peer sends it, in the peer's order."""
    found: dict[int, dict[int, list[Message]]] = {worker: {} for worker in streams}
    for worker in sorted(streams):
        for instruction in streams[worker]:
            if isinstance(instruction, SendMessage):
                found.setdefault(instruction.peer, {}).setdefault(worker, []).append(instruction.message)
    return {
        worker: tuple(FromPeer(peer, tuple(messages)) for peer, messages in sorted(peers.items()))
        for worker, peers in found.items()
    }


def prove(shares: Shares, *, layers: int, micro_batches: int) -> None:
    """Raise `UnprovedStreams` unless the streams finish, match all messages, pass every layer of every micro-batch
    exactly once forward and once backward, and sum each layer over all of its holders. Linear in the instructions."""
    streams = {worker: share.stream for worker, share in shares.items()}
    _check_messages(shares)
    _check_coverage(streams.values(), layers, micro_batches)
    for worker, share in sorted(shares.items()):
        _check_data_flow(worker, share, layers)
    _check_sums(shares, layers, micro_batches)
    _check_progress(streams)


def _check_messages(shares: Shares) -> None:
    expected = incoming_of({worker: share.stream for worker, share in shares.items()})
    for worker, share in sorted(shares.items()):
        if share.incoming != expected[worker]:
            raise UnprovedStreams(f"worker {worker} expects other messages, or another order, than its peers send")
        awaited = Counter((i.peer, i.message) for i in share.stream if isinstance(i, ReceiveMessage))
        sent = Counter((incoming.peer, message) for incoming in share.incoming for message in incoming.messages)
        for key in awaited.keys() | sent.keys():
            if awaited[key] != 1 or sent[key] != 1:
                peer, message = key
                raise UnprovedStreams(
                    f"{'gradient' if message.gradient else 'activation'} of micro-batch {message.micro_batch} at layer "
                    f"{message.layer} is sent {sent[key]} times by worker {peer} and received {awaited[key]} times by "
                    f"worker {worker}; allowed: once each"
                )
    unknown = expected.keys() - shares.keys()
    if unknown:
        raise UnprovedStreams(f"messages are sent to worker {min(unknown)}, which has no share")


def _check_coverage(streams: Iterable[Sequence[Instruction]], layers: int, micro_batches: int) -> None:
    passes: Counter[tuple[bool, int, int]] = Counter()
    for stream in streams:
        for i in stream:
            if isinstance(i, ForwardPass | BackwardPass):
                for layer in range(i.first_layer, i.last_layer):
                    passes[isinstance(i, ForwardPass), i.micro_batch, layer] += 1
    expected = {(way, g, layer) for way in (True, False) for g in range(micro_batches) for layer in range(layers)}
    wrong = next((key for key in sorted(expected | passes.keys()) if passes[key] != (key in expected)), None)
    if wrong is not None:
        forward, g, layer = wrong
        raise UnprovedStreams(
            f"micro-batch {g} passes layer {layer} {passes[wrong]} times {'forward' if forward else 'backward'}; "
            f"allowed: once, for micro-batches 0 to {micro_batches - 1} and layers 0 to {layers - 1}"
        )


def _check_data_flow(worker: int, share: Share, layers: int) -> None:
    """Each pass has its input on this worker, and each backward its forward before it; sums come last."""
    have: set[Message] = set()
    kept: set[tuple[int, int, int]] = set()
    for i in share.stream:
        match i:
            case ForwardPass(g, first, last):
                if not share.first_layer <= first < last <= share.last_layer:
                    raise UnprovedStreams(f"worker {worker} executes layers {first} to {last} and does not hold them")
                if first > 0 and Message(False, g, first) not in have:
                    raise UnprovedStreams(f"worker {worker} has no activation for micro-batch {g} at layer {first}")
                have.add(Message(False, g, last))
                kept.add((g, first, last))
            case BackwardPass(g, first, last):
                if (g, first, last) not in kept:
                    raise UnprovedStreams(f"worker {worker} takes micro-batch {g} backward before forward at {first}")
                if last < layers and Message(True, g, last) not in have:
                    raise UnprovedStreams(f"worker {worker} has no gradient for micro-batch {g} at layer {last}")
                kept.discard((g, first, last))
                have.add(Message(True, g, first))
            case ReceiveMessage(message, _):
                have.add(message)
            case SendMessage(message, _):
                if message not in have:
                    raise UnprovedStreams(f"worker {worker} sends what it has not computed: {message}")
            case Sum() if kept:
                raise UnprovedStreams(f"worker {worker} sums gradients before its last backward pass")
    if kept:
        raise UnprovedStreams(f"worker {worker} never goes backward in {sorted(kept)[0]}")


def _check_sums(shares: Shares, layers: int, micro_batches: int) -> None:
    """Each layer is summed once by all of its holders, with the subtotals that their passes leave them."""
    leaves: dict[tuple[int, int], list[int]] = {}
    holders: dict[int, list[int]] = {layer: [] for layer in range(layers)}
    for worker, share in sorted(shares.items()):
        for layer in range(share.first_layer, share.last_layer):
            holders[layer].append(worker)
        for i in share.stream:
            if isinstance(i, BackwardPass):
                for layer in range(i.first_layer, i.last_layer):
                    leaves.setdefault((worker, layer), []).append(i.micro_batch)
    summed: Counter[tuple[int, int]] = Counter()
    for worker, share in sorted(shares.items()):
        for i in share.stream:
            if not isinstance(i, Sum):
                continue
            for layer in i.layers:
                subtotals = tuple(
                    remaining(leaves.get((holder, layer), ()), micro_batches) for holder in holders.get(layer, ())
                )
                if tuple(holders.get(layer, ())) != i.holders or subtotals != i.subtotals:
                    raise UnprovedStreams(
                        f"worker {worker} sums layer {layer} over other holders or subtotals than there are"
                    )
                summed[worker, layer] += 1
    for layer, workers in holders.items():
        if not workers:
            raise UnprovedStreams(f"layer {layer} has no holder")
        for worker in workers:
            if summed[worker, layer] != (len(workers) > 1):
                raise UnprovedStreams(f"worker {worker} sums layer {layer} {summed[worker, layer]} times")


def _check_progress(streams: Mapping[int, Sequence[Instruction]]) -> None:
    """Execute abstractly; whoever is stuck at the end waits for someone who is stuck too."""
    at = dict.fromkeys(streams, 0)
    arrived: set[tuple[int, int, Message]] = set()
    waiting: dict[tuple[int, int, Message], int] = {}
    joined: dict[Sum, set[int]] = {}
    runnable = deque(sorted(streams))
    while runnable:
        worker = runnable.popleft()
        stream = streams[worker]
        while at[worker] < len(stream):
            match stream[at[worker]]:
                case SendMessage(message, peer):
                    key = (worker, peer, message)
                    arrived.add(key)
                    if key in waiting:
                        runnable.append(waiting.pop(key))
                case ReceiveMessage(message, peer):
                    key = (peer, worker, message)
                    if key not in arrived:
                        waiting[key] = worker
                        break
                case Sum(_, holders, _) as total:
                    here = joined.setdefault(total, set())
                    if worker in here:
                        break
                    here.add(worker)
                    if len(here) < len(holders):
                        break
                    for holder in holders:
                        if holder != worker:
                            at[holder] += 1
                            runnable.append(holder)
            at[worker] += 1
    stuck = {worker: streams[worker][at[worker]] for worker in sorted(streams) if at[worker] < len(streams[worker])}
    if stuck:
        shown = "; ".join(f"worker {worker} waits at {instruction}" for worker, instruction in list(stuck.items())[:4])
        raise UnprovedStreams(f"the streams deadlock with {len(stuck)} workers waiting: {shown}")
