"""Communication groups of one generation: made with those a worker talks to, severed when the generation ends.

Workers of a machine exchange messages over unix sockets, whose addresses go through the controller's store: one for
each pair of workers in each group, nothing to clean up after a failure, no order of creation, no world group. A death
breaks the connections of the dead alone, and what a generation costs does not grow with the worker group.

A thread that is blocked in a receive is freed by nothing but the end of its connection, so a stop ends the connections
of its generation.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from chaos.worker_group.exchange.channels import GroupFailed, PeerSocket, Receipt, shut
from chaos.worker_group.exchange.devices import HOST, Device
from chaos.worker_group.exchange.lacks import lacks_files, too_few_files
from chaos.worker_group.exchange.line import ControlLine, GenerationEnded
from chaos_protocols.worker_group.lanes import lane_prefix
from chaos_protocols.worker_group.suspicion import Work

Group = tuple[int, ...]

BACKLOG = 4096
"""Connections that wait to be accepted: all may come before the first one is."""

WORKERS_MAX = 1 << 16
"""In a group, by the word of who calls."""

_HELLO = struct.Struct("!QII")
"""Generation, worker, and how many members of a group follow."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user, group: of who called."""


class Groups:
    """The groups of one generation. Everything that belongs to it hangs on this object, and goes with it. `device`: on
    which the tensors lie that are sent and received."""

    def __init__(self, line: ControlLine, generation: int, device: Device = HOST) -> None:
        self._line, self._generation, self._device = line, generation, device
        self._channels: dict[tuple[Group, int], PeerSocket] = {}
        self._making: list[socket.socket] = []
        self._lock = threading.Lock()
        self._severed = False

    def build(self, groups: Iterable[Group]) -> None:
        """Make all of them. Raises `GenerationEnded` if the generation stops meanwhile, `GroupFailed`; and
        `TooFewFiles` where this process may open no further socket, which no other generation would change."""
        me = self._line.worker
        wanted = {(group, peer) for group in groups for peer in group if peer != me}
        self._line.on_stop(self.sever)
        try:
            if wanted:
                self._connect(wanted)
        except OSError as error:
            self._line.check()
            if not self._severed:
                if lacks_files(error):
                    raise too_few_files() from error
                raise GroupFailed(f"a group could not be made: {error}"[:500]) from None
        finally:
            with self._lock:
                for each in self._making:
                    each.close()
                self._making.clear()
        self._line.check()
        if self._severed:
            raise GenerationEnded

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is begun inside belongs together: a backend whose messages block in their order begins it as one.
        Sockets need not know."""
        yield

    def send(self, group: Group, peer: int, tensor: torch.Tensor, *, awaited: bool = False) -> Receipt:
        """Hand a contiguous tensor over, which nobody changes any more. That it has arrived its receiver says; the
        sender waits, if it is to be `awaited`, until the system has all of it, which then outlives this process."""
        channel = self._channels[group, peer]
        receipt = Receipt(channel, self._device.leave(tensor))
        channel.send(receipt)
        return receipt

    def receive(self, group: Group, peer: int, tensor: torch.Tensor) -> Receipt:
        """Post a receive into a contiguous tensor. Receives from one peer take its sends in order."""
        channel = self._channels[group, peer]
        receipt = Receipt(channel, self._device.landing(tensor), tensor)
        channel.expect(receipt)
        return receipt

    def wait(self, receipt: Receipt) -> None:
        """Until it is done. Raises `GroupFailed`, at once where the connections are severed."""
        receipt.channel.wait(receipt)
        if receipt.landed is not None:
            self._device.arrive(*receipt.landed)
            receipt.landed = None

    def sever(self) -> None:
        """End the connections, which fails whatever waits for them. Called by the line's thread."""
        with self._lock:
            self._severed = True
            for making in self._making:
                shut(making)
            for channel in self._channels.values():
                channel.sever()

    def close(self) -> None:
        """Nothing more is sent or awaited."""
        with self._lock:
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.close()

    # ---- connections

    def _connect(self, wanted: set[tuple[Group, int]]) -> None:
        """Of two workers the lower one calls. Whom it waits for it says: that one may still be in its script's own
        code, an evaluation say, which takes as long as it takes."""
        line, me, prefix = self._line, self._line.worker, lane_prefix(self._line.lane)
        listening = self._kept(socket.socket(socket.AF_UNIX))
        listening.bind("")  # the kernel gives it a name, which lies in no folder
        listening.listen(BACKLOG)
        line.store_set(f"{prefix}{me}", listening.getsockname())
        addresses: dict[int, bytes] = {}
        for group, peer in sorted(wanted):
            if peer < me:
                continue
            if peer not in addresses:
                line.doing(Work.WAITING, peer)
                addresses[peer] = line.store_get(f"{prefix}{peer}", self._generation)
            connection = self._kept(socket.socket(socket.AF_UNIX))
            connection.connect(addresses[peer])
            connection.sendall(_HELLO.pack(self._generation, me, len(group)) + struct.pack(f"!{len(group)}I", *group))
            self._made(group, peer, connection)
        left = {each for each in wanted if each[1] < me}
        while left:
            line.doing(Work.WAITING, min(peer for _, peer in left))
            connection = self._kept(listening.accept()[0])
            called = self._called_for(connection)
            if called in left:
                left.remove(called)
                self._made(*called, connection)
        line.doing(Work.BUILDING)

    def _called_for(self, connection: socket.socket) -> tuple[Group, int] | None:
        """The group, and the worker of it that calls; None: it is somebody else."""
        _, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != os.getuid():
            return None
        hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
        if len(hello) < _HELLO.size:
            return None
        generation, worker, count = _HELLO.unpack(hello)
        if generation != self._generation or count > WORKERS_MAX:
            return None
        members = connection.recv(4 * count, socket.MSG_WAITALL)
        return (struct.unpack(f"!{count}I", members), worker) if len(members) == 4 * count else None

    def _kept(self, making: socket.socket) -> socket.socket:
        """So that a stop ends it, too."""
        with self._lock:
            self._making.append(making)
            if self._severed:
                raise GenerationEnded
        return making

    def _made(self, group: Group, peer: int, connection: socket.socket) -> None:
        with self._lock:
            if self._severed:
                raise GenerationEnded
            self._making.remove(connection)
            self._channels[group, peer] = PeerSocket(connection, peer)
