"""Messages between two workers of a machine: a connection in which they keep their order, and who reads and writes it.

The thread that trains sends by itself, as much as the kernel takes at once; what is left is written by a thread. What
comes is read by a thread of the connection as soon as it is expected, while the other one computes. It is not read by
who waits for it, though that takes the fewest turns: the kernel wakes the reader of a socket beside the writer, on the
same processor, since a writer is thought to wait for an answer. But a worker goes on computing, and with fewer
processors than workers one stood idle meanwhile: steps took a fifth longer. The reading thread is over at once, and
wakes the other one where there is room. The end of the connection frees all of them.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from chaos.worker_group.exchange.lacks import begin

KERNEL_BYTES = 4 << 20
"""That a connection may hold, if the system lets it: a message is on its way though nobody reads it yet."""

_SIZE = struct.Struct("!Q")


class GroupFailed(Exception):
    """Communication with a peer failed, or was severed."""


class Receipt:
    """A message that was begun, and the host memory in which it lies; `lands`: the tensor of a device in which a
    received message ends; `error`: why it failed."""

    def __init__(self, channel: PeerSocket, host: torch.Tensor, lands: torch.Tensor | None = None) -> None:
        data = bytes_of(host)
        self.channel, self.size_bytes = channel, len(data)
        self.landed = None if lands is None or lands is host else (host, lands)
        self.over, self.error = False, ""
        self._head = bytearray(_SIZE.pack(len(data)))
        self.left = [memoryview(self._head), data] if data else [memoryview(self._head)]
        """What is not carried yet."""

    def carried(self, count: int) -> None:
        """So many bytes more."""
        while count and count >= len(self.left[0]):
            count -= len(self.left.pop(0))
        if count:
            self.left[0] = self.left[0][count:]

    def is_other(self) -> str:
        """Why what comes is not what was expected, once its size is here."""
        if len(self.left) and self.left[0].obj is self._head:
            return ""
        (size,) = _SIZE.unpack(self._head)
        return "" if size == self.size_bytes else f"{size} bytes came where {self.size_bytes} were expected"

    def end(self, error: str = "") -> None:
        """It is done, or failed."""
        self.left, self.error = [], error
        self.over = True


class PeerSocket:
    """One connection to a peer. Sending and waiting is for one thread."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        self._socket, self._peer = connection, peer
        self._changed = threading.Condition()
        self._severed = False
        self._reader = _Helper("chaos-read", self._read)
        self._writer = _Helper("chaos-write", self._write)

    def send(self, receipt: Receipt) -> None:
        """Raises `GroupFailed`."""
        if self._writer.idle:
            try:
                while receipt.left:
                    receipt.carried(self._socket.sendmsg(receipt.left, [], socket.MSG_DONTWAIT))
            except BlockingIOError:
                pass
            except OSError as error:
                raise GroupFailed(self._why(error)) from None
            else:
                receipt.end()
                return
        self._writer.give(receipt)

    def expect(self, receipt: Receipt) -> None:
        """The next message of the peer ends there."""
        self._reader.give(receipt)

    def wait(self, receipt: Receipt) -> None:
        """Until it is done. Raises `GroupFailed`, at once where the connection is severed."""
        if not receipt.over:
            with self._changed:
                self._changed.wait_for(lambda: receipt.over or self._severed)
        if not receipt.over:
            raise GroupFailed(self._why())
        if receipt.error:
            raise GroupFailed(receipt.error)

    def sever(self) -> None:
        """End the connection, which frees whoever reads or writes it. For any thread."""
        with self._changed:
            self._severed = True
            self._changed.notify_all()
        shut(self._socket)

    def close(self) -> None:
        """Nothing more is sent or awaited."""
        self.sever()
        for helper in (self._reader, self._writer):
            helper.end()
        self._socket.close()

    def _read(self, receipt: Receipt) -> None:
        other = ""
        try:
            while receipt.left and not other:
                count = self._socket.recvmsg_into(receipt.left)[0]
                if not count:
                    raise ConnectionResetError("its end of the connection is over")
                receipt.carried(count)
                other = receipt.is_other()
        except OSError as error:
            other = self._why(error)
        self._end(receipt, other)

    def _write(self, receipt: Receipt) -> None:
        try:
            while receipt.left:
                receipt.carried(self._socket.sendmsg(receipt.left))
        except OSError as error:
            self._end(receipt, self._why(error))
        else:
            self._end(receipt, "")

    def _end(self, receipt: Receipt, error: str) -> None:
        receipt.end(error)
        with self._changed:
            self._changed.notify_all()

    def _why(self, error: OSError | None = None) -> str:
        if self._severed or error is None:
            return "the connections of this generation were severed"
        return f"worker {self._peer}: {error}"[:500]


class _Helper:
    """A thread that does one message after the other; it begins with the first one."""

    def __init__(self, name: str, do: Callable[[Receipt], None]) -> None:
        self._name, self._do = name, do
        self._queue: SimpleQueue[Receipt | None] = SimpleQueue()
        self._given = self._done = 0
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Nothing that was given to it is left."""
        return self._done == self._given

    def give(self, receipt: Receipt) -> None:
        if self._thread is None:
            self._thread = begin(self._run, self._name)
        self._given += 1
        self._queue.put(receipt)

    def end(self) -> None:
        """After the end of the connection, which everything that is left fails with."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (receipt := self._queue.get()) is not None:
            self._do(receipt)
            del receipt
            self._done += 1


def bytes_of(host: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor of the host."""
    return host.detach().reshape(-1).view(torch.uint8).numpy().data


def shut(connection: socket.socket) -> None:
    """End a connection, or a listening socket, under whoever waits for it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is over already
        return
