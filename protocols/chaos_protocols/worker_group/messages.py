"""What the workers of a site and their controller say to each other, over one unix socket a worker.

A frame is a 4-byte big-endian length and a msgpack map tagged with the message's name. All but the hello carry the
generation, the number of the plan in force: a message of another generation changes nothing. Bulk data never crosses
this socket: activations, gradients and moved state go from worker to worker.

Both ends come with one installation of the package, which starts the workers itself, so there is no negotiation of
versions: a hello of another version is refused.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from chaos_protocols.names import WEIGHT_MAX
from chaos_protocols.streams import LAYERS_MAX, MICRO_BATCHES_MAX, WORKERS_MAX, Number, Share
from chaos_protocols.wire.worker import ContributionSpec, FiguresLogged, StateSpec
from chaos_protocols.worker_group.said import NOTHING, NotesSpec, Said
from chaos_protocols.worker_group.suspicion import Work
from chaos_protocols.worker_group.tags import Generation, Step, StepTag

VERSION = 8
FRAME_BYTES_MAX = 64 << 20
"""An order for 65,536 passes of 10 instructions takes some 20 MiB."""

STORE_VALUE_BYTES_MAX = 64 << 10
MOVES_MAX = 1 << 20

SPANS_MAX = 4096
"""Of one worker in one step; what it does after so many is not told."""

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]*\Z")]
Key: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]


class LayerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has measured of one layer: seconds of one micro-batch, bytes."""

    name: Text
    forward_s: Seconds
    backward_s: Seconds
    optimizer_step_s: Seconds
    parameter_bytes: Bytes
    optimizer_bytes: Bytes
    gradient_bytes: Bytes
    activation_bytes: Bytes
    output_bytes: Bytes


class StateMove(msgspec.Struct, frozen=True, array_like=True):
    """Bytes [start, stop) of a layer's state go from worker `source` to worker `target`."""

    layer: Number
    start: Bytes
    stop: Bytes
    source: Number
    target: Number


class Refresh(msgspec.Struct, frozen=True, array_like=True):
    """After an update the `keepers` of a layer, which alone have its optimizer's state, send its parameters to the
    other `holders`."""

    layer: Number
    holders: Annotated[tuple[Number, ...], msgspec.Meta(min_length=2, max_length=WORKERS_MAX)]
    keepers: Annotated[tuple[Number, ...], msgspec.Meta(min_length=1, max_length=WORKERS_MAX)]

    def sources(self) -> dict[int, int]:
        """Who sends to whom: target to source, in turn, so that no keeper sends to all."""
        others = [worker for worker in self.holders if worker not in self.keepers]
        return {worker: self.keepers[at % len(self.keepers)] for at, worker in enumerate(others)}


class DoneSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a worker did from `start_s` to `end_s`, on the machine's monotonic clock. `micro_batch`: of a pass; -1 of
    anything else."""

    work: Work
    start_s: Seconds
    end_s: Seconds
    micro_batch: Annotated[int, msgspec.Meta(ge=-1, le=MICRO_BATCHES_MAX)] = -1


DoneSpans: TypeAlias = Annotated[tuple[DoneSpan, ...], msgspec.Meta(max_length=SPANS_MAX)]


class RunSpecs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of institutions has to know of the whole model, in the words of `wire.worker`. `weight`: of this
    site's part of a round, the samples of a global batch."""

    state: StateSpec
    contribution: ContributionSpec
    weight: Annotated[float, msgspec.Meta(gt=0, le=WEIGHT_MAX)]
    notes: NotesSpec | None = None
    """Of the rounds, written by the controller; None: they have none, or the workers write them."""


class GroupHello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message: who it is, and what it would train. `model`: digest of the initial state of all layers and of
    what the script asks for; the same on all workers, or they would not train the same thing."""

    version: int
    token: Annotated[str, msgspec.Meta(max_length=64)]
    worker: Number
    torch: Text
    model: Digest
    layers: Annotated[tuple[LayerReport, ...], msgspec.Meta(min_length=1, max_length=LAYERS_MAX)]
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=MICRO_BATCHES_MAX)]
    micro_batch_size: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    memory_bytes: Bytes
    clip_norm: Annotated[float, msgspec.Meta(gt=0)] | None = None
    optimizer_copies: Annotated[int, msgspec.Meta(ge=0, le=WORKERS_MAX)] = 0
    """How many holders of a layer keep its optimizer's state; 0: all of them."""
    run: RunSpecs | None = None
    """None: these workers train by themselves."""
    every: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    """Local steps between two rounds; 0: each step is one (`round_steps`)."""
    samples: Annotated[int, msgspec.Meta(ge=0)] = 0
    """In its data set; which of them a micro-batch has follows from that."""
    script: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Digest of its script; empty: not known."""
    code: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Digest of the code of its loss and its layers; empty: not known."""


class PlanReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Groups are built, state has come: it could begin."""

    generation: Generation


class Reduced(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It has the sums of the step for all of its layers. `squares`: of the layers whose `lowest` it is, the sum of the
    squares of the gradient. `losses`: of the micro-batches whose loss it computed. `said`: by the script, with
    each of these, or with the step (then behind them, by the worker's number). `behind`: local steps that are in what
    it gave to a round with this step, 0 if it gave nothing of them."""

    generation: Generation
    step: Step
    squares: Annotated[tuple[tuple[Number, float], ...], msgspec.Meta(max_length=LAYERS_MAX)] = ()
    losses: Annotated[tuple[tuple[Number, float], ...], msgspec.Meta(max_length=MICRO_BATCHES_MAX)] = ()
    said: Annotated[tuple[tuple[Number, Said], ...], msgspec.Meta(max_length=MICRO_BATCHES_MAX + 1)] = ()
    behind: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Stepped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It has applied the update: `step` is that of the state it holds now. `digests`: of its layers, if the audit is
    on. `seconds`: of the step, by kind of work. `spans`: what it did since it was asked last, if steps are timed."""

    generation: Generation
    step: Step
    digests: Annotated[tuple[tuple[Number, Digest], ...], msgspec.Meta(max_length=LAYERS_MAX)] = ()
    seconds: Annotated[dict[str, float], msgspec.Meta(max_length=16)] = {}
    spans: DoneSpans = ()


class _StillAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Of a worker that stands still, to what it was told to do with the state of this step."""

    generation: Generation
    step: Step


class StateWritten(_StillAnswer, frozen=True, kw_only=True, tag=True):
    """The answer to `WriteState`."""


class StateTaken(_StillAnswer, frozen=True, kw_only=True, tag=True):
    """The answer to `TakeState`."""


class ResultMeasured(_StillAnswer, frozen=True, kw_only=True, tag=True):
    """The answer to `MeasureResult`. `squares`: of the layers whose lowest holder it is, as in `Reduced`."""

    squares: Annotated[tuple[tuple[Number, float], ...], msgspec.Meta(max_length=LAYERS_MAX)] = ()


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It has stopped, whatever it was at, and its groups are gone. `spans`: as in `Stepped`."""

    generation: Generation
    tag: StepTag
    spans: DoneSpans = ()


class PeerLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A group failed: a hint, never a verdict."""

    generation: Generation
    text: Text


SAME_STEPS = (
    "all have to make the same steps: end the loop by what is the same in every process (the step, report.loss), or "
    "give the loader fewer steps="
)
"""What a script is told that wants no further step where another one does."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Its script asks for no further step: it has trained as many as it wanted to."""

    step: Step


class ScriptFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The script raised; the same code would fail again on another worker, so the worker group ends."""

    text: Text


class EndsItself(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something failed that nothing in this worker's process can mend; the others may go on. `device`: its device."""

    text: Text
    device: bool


class StoreSet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rendezvous of groups: a key."""

    generation: Generation
    key: Key
    value: Annotated[bytes, msgspec.Meta(max_length=STORE_VALUE_BYTES_MAX)]


class StoreGet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rendezvous of groups: answered by `StoreValue` as soon as the key is there."""

    generation: Generation
    key: Key


class PlanOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Execute this from now on, beginning with this step. `moves`: transfers of state in which this worker is source or
    target, the same order on both. `audit`: report digests after every step; `timed`: report what was done when."""

    generation: Generation
    step: Step
    share: Share
    moves: Annotated[tuple[StateMove, ...], msgspec.Meta(max_length=MOVES_MAX)] = ()
    lowest: Annotated[tuple[Number, ...], msgspec.Meta(max_length=LAYERS_MAX)] = ()
    """Layers whose lowest holder it is, of those that keep their whole state."""
    keeps: Annotated[tuple[Number, ...], msgspec.Meta(max_length=LAYERS_MAX)] | None = None
    """Layers of its share whose whole state it keeps, with the optimizer's; of the others it has the parameters only.
    None: all of them."""
    refreshes: Annotated[tuple[Refresh, ...], msgspec.Meta(max_length=LAYERS_MAX)] = ()
    """Those in which it takes part, before each step that is computed and after each update."""
    audit: bool = False
    timed: bool = False
    part: bool = False
    """Some layers of the model have no state before `TakeState`: nothing is complete before."""
    vain: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How often the steps of a round led to none (`round_steps`)."""


class Go(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everybody is ready: begin. `hold`: not with a step, but by waiting for an order (`Compute` and the like)."""

    generation: Generation
    hold: bool = False


class CommitStep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everybody has the sums of the step: divide by `divisor`, multiply by `factor`, update. Telling it twice changes
    nothing. `loss`, `norm`, `said`: of the whole step, for the script's report.

    In a run of institutions (`shared`) the gradient is the result of the round, which lies in the shared memory, and
    whoever has the state of the step can follow, whether it has computed or not."""

    step: Step
    divisor: float
    factor: float
    loss: float
    norm: float
    said: Said = NOTHING
    shared: bool = False
    to: Step | None = None
    """The step of the state afterwards; None: the next one. The result of a round ends whatever phase the workers are
    in, so it may lead further."""
    void: bool = False
    """The gradient, or the result, is not finite: the state stays as it is, and counts as that of the next step."""
    vain: bool = False
    """The site had nothing to give to the round, nor had others: it is still to come, with other samples."""
    hold: bool = False
    """Compute nothing afterwards, before `Compute`."""
    digest: tuple[Bytes, Bytes] | None = None
    """Afterwards copy these bytes of the state into the shared memory, where they are digested."""

    @property
    def after(self) -> Step:
        """The step of the state afterwards."""
        return self.step + 1 if self.to is None else self.to


class _StillOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What workers that stand still are told to do with the state of this step."""

    step: Step


class Compute(_StillOrder, frozen=True, kw_only=True, tag=True):
    """Whoever holds: compute this step."""


class WriteState(_StillOrder, frozen=True, kw_only=True, tag=True):
    """Write the state of the layers whose lowest holder you are into the shared memory."""


class TakeState(_StillOrder, frozen=True, kw_only=True, tag=True):
    """Take the state of your layers from the shared memory: it is that of this step. What was computed is void, and
    nothing is computed before `Compute`."""


class MeasureResult(_StillOrder, frozen=True, kw_only=True, tag=True):
    """The result of a round lies in the shared memory: say the squares of your layers' part."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This generation ends: stop, and say where you stand."""

    generation: Generation


class StoreValue(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The value of a key that was asked for."""

    generation: Generation
    key: Key
    value: Annotated[bytes, msgspec.Meta(max_length=STORE_VALUE_BYTES_MAX)]


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker group ends. `failed`: why it could not go on; empty where the training is complete."""

    failed: Text = ""


WorkerMessage: TypeAlias = (
    GroupHello
    | PlanReady
    | Reduced
    | Stepped
    | StateWritten
    | StateTaken
    | ResultMeasured
    | Stopped
    | PeerLost
    | Done
    | ScriptFailed
    | EndsItself
    | StoreSet
    | StoreGet
)
ControllerMessage: TypeAlias = (
    PlanOrder | Go | CommitStep | Compute | WriteState | TakeState | MeasureResult | Stop | StoreValue | Finish
)

_encoder = msgspec.msgpack.Encoder()
_worker_decoder: msgspec.msgpack.Decoder[WorkerMessage | FiguresLogged] = msgspec.msgpack.Decoder(
    WorkerMessage | FiguresLogged
)
_controller_decoder: msgspec.msgpack.Decoder[ControllerMessage] = msgspec.msgpack.Decoder(ControllerMessage)


def encode(message: WorkerMessage | ControllerMessage) -> bytes:
    """One frame: length and body. `ValueError` above FRAME_BYTES_MAX."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise ValueError(f"{type(message).__name__} of {len(body)} bytes; at most {FRAME_BYTES_MAX} are allowed")
    return len(body).to_bytes(4, "big") + body


def frame_size(header: bytes) -> int:
    """The length of the body that follows these 4 bytes. `ValueError` above FRAME_BYTES_MAX."""
    size = int.from_bytes(header, "big")
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes was announced; at most {FRAME_BYTES_MAX} are allowed")
    return size


def from_worker(body: bytes) -> WorkerMessage | FiguresLogged:
    """What a worker says, or figures of its script, which are for its operator alone. `msgspec.DecodeError` on anything
    else."""
    return _worker_decoder.decode(body)


def from_controller(body: bytes) -> ControllerMessage:
    """`msgspec.DecodeError` on anything that is not a controller's message."""
    return _controller_decoder.decode(body)
