"""Workers of a site that only talk: one process in which each has a socket of its own and says what a worker says.

Started by `controller_scale` with the group's socket and token. Its input: `come N` (worker N connects), `go N` (its
socket is closed, its process is dead), `step` (whoever trains has the sums of a step). What a worker does with numbers
takes no time here: an order is answered when the keys of its groups' other members have come, a commit at once.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from chaos_protocols.worker_group.messages import (
    VERSION,
    CommitStep,
    ControllerMessage,
    Go,
    GroupHello,
    LayerReport,
    PlanOrder,
    PlanReady,
    Reduced,
    Stepped,
    Stop,
    Stopped,
    StoreGet,
    StoreSet,
    StoreValue,
    WorkerMessage,
    encode,
    frame_size,
    from_controller,
)
from chaos_protocols.worker_group.tags import StepPhase, StepTag

STAGES = 8
"""Layers of the model, one a stage."""
MICRO_BATCHES = 4
ADDRESS = bytes(6)
"""What the kernel calls a socket."""


class Worker(asyncio.Protocol):
    """One of them."""

    def __init__(self, number: int, token: str) -> None:
        self._number, self._token = number, token
        self._unread = bytearray()
        self._awaited: set[str] = set()
        self._order: PlanOrder | None = None
        self._step = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        report = LayerReport(
            name="layer",
            forward_s=0.1,
            backward_s=0.2,
            optimizer_step_s=0.01,
            parameter_bytes=1 << 20,
            optimizer_bytes=2 << 20,
            gradient_bytes=1 << 20,
            activation_bytes=1 << 20,
            output_bytes=1 << 16,
        )
        hello = GroupHello(
            version=VERSION,
            token=self._token,
            worker=self._number,
            torch="none",
            model="00",
            layers=(report,) * STAGES,
            micro_batches=MICRO_BATCHES,
            micro_batch_size=1,
            memory_bytes=1 << 34,
        )
        self._say(hello)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= 4 and len(self._unread) >= 4 + frame_size(bytes(self._unread[:4])):
            end = 4 + frame_size(bytes(self._unread[:4]))
            message = from_controller(bytes(self._unread[4:end]))
            del self._unread[:end]
            self._hear(message)

    def close(self) -> None:
        """Its process is dead."""
        self._transport.abort()

    def reduce(self) -> None:
        """It has the sums of the step, if it trains."""
        order = self._order
        if order is not None and order.share.last_layer > order.share.first_layer:
            squares = tuple((layer, 1.0) for layer in order.lowest)
            first = 0 in order.lowest  # the holder of the losses, as good as any
            losses = tuple((g, 1.0) for g in range(MICRO_BATCHES)) if first else ()
            self._say(Reduced(generation=order.generation, step=self._step, squares=squares, losses=losses))

    def _hear(self, message: ControllerMessage) -> None:
        match message:
            case PlanOrder(generation=generation, share=share):
                self._order, self._step = message, message.step
                me = self._number
                self._awaited = {str(other) for members in share.groups(me) for other in members if other > me}
                said: list[WorkerMessage] = [StoreSet(generation=generation, key=str(me), value=ADDRESS)]
                said += (StoreGet(generation=generation, key=key) for key in sorted(self._awaited))
                self._say(*said)
                self._built()
            case StoreValue(key=key):
                self._awaited.discard(key)
                self._built()
            case CommitStep(step=step):
                assert self._order is not None
                self._step = step + 1
                took = {"forward": 0.4, "backward": 0.8}
                self._say(Stepped(generation=self._order.generation, step=self._step, seconds=took))
            case Stop(generation=generation):
                self._awaited = {"stopped"}
                tag = StepTag(generation=generation, step=self._step, phase=StepPhase.COMPUTE)
                self._say(Stopped(generation=generation, tag=tag))
            case Go():
                pass  # it computes until it is told that it has
            case _:
                self.close()

    def _built(self) -> None:
        if not self._awaited and self._order is not None:
            self._say(PlanReady(generation=self._order.generation))

    def _say(self, *messages: WorkerMessage) -> None:
        self._transport.write(b"".join(map(encode, messages)))


async def main(path: str, token: str) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    workers: dict[int, Worker] = {}
    while line := await lines.readline():
        word, _, number = line.decode().strip().partition(" ")
        if word == "come":
            connection = socket.socket(socket.AF_UNIX)
            await asyncio.to_thread(connection.connect, path)
            worker = workers[int(number)] = Worker(int(number), token)
            await loop.create_unix_connection(lambda worker=worker: worker, sock=connection)  # type: ignore[misc]
        elif word == "go":
            workers.pop(int(number)).close()
        else:
            for worker in workers.values():
                worker.reduce()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
