"""The daemon's end of the unix socket to its worker: accepts one, checks who it is, carries messages, notices its
death.

Decides nothing about training: it turns bytes into typed messages for `WorkerEvents` and messages into bytes. Driven by
the event loop (uvloop or the standard one) through readiness callbacks on raw sockets, because asyncio's transports
drop the descriptor that travels with the first frame (SCM_RIGHTS). Bytes from the socket are hostile until decoded:
lengths are bounded before memory is taken, a frame that does not decode ends the conversation. Who may connect: the
same user, or root (socket mode 0600, peer credentials).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chaos_protocols.wire.worker import DaemonMessage, WorkerHello, WorkerMessage, WorkerRefused, encode
from chaosd.log_format import marked
from chaosd.os_errors import explain, files_allowed
from chaosd.unix_sockets import UnixListener
from chaosd.worker.arena import Arena, ArenaError
from chaosd.worker.channel import Channel, peer_of

log = logging.getLogger(__name__)

PENDING_MAX = 8
"""Connections that have not said hello yet, or wait to be taken; more would only be an attack or a defect."""

NO_DESCRIPTOR = (
    "the daemon may open {allowed} files and sockets, and all are in use: it cannot take the shared memory of this "
    "script. Start the daemon again after `ulimit -n 1024`"
)

ACCEPT_PAUSE_S = 1.0
"""Until a connection is tried again that could not be accepted."""

HELLO_TIMEOUT_S = 10.0
"""A worker connects when its model is ready and speaks at once; after this a silent connection is closed."""


PLACE_TAKEN = (
    "a newer Coordinator of this site has taken its place (a cell or a script was run again); go on with that one, and "
    "close() this one"
)


class WorkerEvents(Protocol):
    """What the server reports, on the loop's thread. No method may block."""

    def worker_hello(self, hello: WorkerHello, arena: Arena, knock: Knock) -> None:
        """A worker is at the door: `knock.take()` or `knock.turn_away(...)`, now or later. `arena` belongs to the
        receiver from now on, who closes it after `worker_lost`, or when the worker was turned away."""

    def worker_message(self, message: WorkerMessage) -> None:
        """Any later message of that worker."""

    def worker_lost(self, reason: str) -> None:
        """Socket closed, process dead, or rules broken: whichever is seen first, once for each worker that was taken.
        Not reported for one whose place was taken by the next, nor on `close()`."""


class Knock:
    """A worker that has said hello and waits to be taken or turned away. `rival_pid`: of the process whose session
    runs, where that is another one (0: the kernel does not say which); None: none does, or it is of the same process,
    which makes a new start."""

    def __init__(self, server: WorkerServer, channel: Channel, rival_pid: int | None) -> None:
        self.rival_pid = rival_pid
        self._server, self._channel = server, channel

    def take(self) -> None:
        """It is this site's worker from now on; one that was there is told that its place is taken."""
        self._server._take(self._channel)

    def turn_away(self, reason: str) -> None:
        """Tell it why it may not take part, and part with it."""
        self._server._turn_away(self._channel, reason)


class WorkerServer:
    """Listens on a unix socket for the one worker of this site."""

    def __init__(self, path: Path, events: WorkerEvents) -> None:
        self.path = path
        self._events = events
        self._listener: UnixListener | None = None
        self._worker: Channel | None = None
        self._pending: dict[Channel, asyncio.TimerHandle] = {}
        self._knocking: set[Channel] = set()
        self._ending: set[Channel] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connected(self) -> bool:
        """True from `worker_hello` to `worker_lost`."""
        return self._worker is not None

    @property
    def pid(self) -> int | None:
        """Of the worker that is here, as the kernel has it: what it says itself may be a number of its container.
        None: there is no worker, or the kernel does not say."""
        return self._worker.pid or None if self._worker is not None else None

    async def start(self) -> None:
        """Offer the socket. A file left by a daemon that is gone is removed. Raises UnixSocketError."""
        self._loop = asyncio.get_running_loop()
        self._listener = UnixListener(self.path, "worker_socket")
        self._listen()

    def send(self, message: DaemonMessage) -> bool:
        """Queue a message for the worker. False if there is none (its loss has been, or is about to be, reported)."""
        return self._worker is not None and self._worker.send(encode(message))

    def refuse(self, reason: str) -> None:
        """Tell the worker why it may not take part any more, and part with it. `worker_lost` is not called for it."""
        channel, self._worker = self._worker, None
        if channel is not None:
            self._refuse(channel, reason)

    def refusal(self) -> Callable[[str], None]:
        """To be told the worker that is here now, once it is known why: as `refuse`, but for no later one."""
        channel = self._worker

        def tell(reason: str) -> None:
            if channel is not None and self._worker is channel:
                self.refuse(reason)

        return tell

    def drop(self) -> None:
        """Part with the worker without a word: it sees its daemon gone, and comes back with a new hello when it can (a
        process that was stopped and goes on). `worker_lost` is not called."""
        channel, self._worker = self._worker, None
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Close everything and remove the socket file. `worker_lost` is not called."""
        assert self._loop is not None or self._listener is None
        if self._listener is not None and self._loop is not None:
            self._loop.remove_reader(self._listener.socket.fileno())
            self._listener.close()
            self._listener = None
        for timer in self._pending.values():
            timer.cancel()
        channels = [*self._pending, *self._knocking, *self._ending]
        self._pending.clear()
        self._knocking.clear()
        self._ending.clear()
        if self._worker is not None:
            self._worker.flush_for_close()
            channels.append(self._worker)
            self._worker = None
        for channel in channels:
            channel.close()

    # ---- accepting

    def _accept(self) -> None:
        assert self._listener is not None and self._loop is not None
        try:
            connection, _ = self._listener.socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # it stays in the queue of the socket, which can be read until it is taken
            log.error("a worker cannot connect: %s", explain(error, self.path))
            self._pause_accepting()
            return
        peer = peer_of(connection)
        if peer.uid not in (os.geteuid(), 0):
            log.warning("connection to the worker socket by user %s refused; only user %s may", peer.uid, os.geteuid())
            connection.close()
            return
        if len(self._pending) + len(self._knocking) >= PENDING_MAX:
            connection.close()
            return
        channel = Channel(connection, peer.pid, self._loop, received=self._received, ended=self._ended)
        self._pending[channel] = self._loop.call_later(HELLO_TIMEOUT_S, self._hello_overdue, channel)

    def _pause_accepting(self) -> None:
        """Look again in a while: at every turn of the loop it would cost a processor, and a disk for the log."""
        assert self._listener is not None and self._loop is not None
        self._loop.remove_reader(self._listener.socket.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._listen)

    def _listen(self) -> None:
        if self._listener is not None and self._loop is not None:
            self._loop.add_reader(self._listener.socket.fileno(), self._accept)

    def _hello_overdue(self, channel: Channel) -> None:
        if self._pending.pop(channel, None) is not None:
            channel.close()

    # ---- what a channel reports

    def _received(self, channel: Channel, message: WorkerMessage) -> None:
        if channel in self._ending or channel in self._knocking:
            return  # who knocks has nothing to say before it is welcome
        if channel is self._worker:
            if isinstance(message, WorkerHello):
                self._ended(channel, "it said hello twice on one connection")
            else:
                self._events.worker_message(message)
            return
        self._pending.pop(channel).cancel()
        if not isinstance(message, WorkerHello):
            self._refuse(channel, "the first message of a worker must be its hello")
            return
        fd = channel.take_fd()
        if fd is None and channel.fd_was_cut_off:
            self._refuse(channel, NO_DESCRIPTOR.format(allowed=files_allowed()))
            return
        if fd is None:
            self._refuse(channel, "the hello came without shared memory; use the SDK of the daemon's version")
            return
        try:
            arena = Arena.from_hello(message, fd)
        except ArenaError as error:
            self._refuse(channel, str(error))
            return
        self._knocking.add(channel)
        rival = self._worker
        alone = rival is None or (rival.pid == channel.pid and channel.pid > 0)
        self._events.worker_hello(message, arena, Knock(self, channel, None if alone or rival is None else rival.pid))

    def _take(self, channel: Channel) -> None:
        self._knocking.discard(channel)
        before, self._worker = self._worker, channel
        if before is not None:
            self._refuse(before, PLACE_TAKEN)
        channel.watch_process()

    def _turn_away(self, channel: Channel, reason: str) -> None:
        if channel in self._knocking:
            self._knocking.discard(channel)
            self._refuse(channel, reason)

    def _ended(self, channel: Channel, reason: str) -> None:
        timer = self._pending.pop(channel, None)
        if timer is not None:
            timer.cancel()
        self._ending.discard(channel)
        self._knocking.discard(channel)
        channel.close()
        if channel is self._worker:
            self._worker = None
            self._events.worker_lost(reason)

    def _refuse(self, channel: Channel, reason: str) -> None:
        self._ending.add(channel)
        # Where the run has another model, the first difference is told in a neighbour's words.
        if not channel.finish(encode(WorkerRefused(reason=marked(reason)[:4096]))):
            self._ending.discard(channel)
