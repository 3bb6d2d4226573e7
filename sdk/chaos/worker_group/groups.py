"""Communication groups of one generation: made with those a worker talks to, severed when the generation ends.

Gloo process groups are made directly and not registered with `torch.distributed`: nothing to clean up after a failure,
no order of creation, no world group. Their rendezvous is the controller's store. One group for each pair that exchanges
messages, one for each set of holders: a death breaks the groups of the dead alone, and what a generation costs does not
grow with the worker group.

A thread that is blocked in gloo is freed by nothing but the end of its connection (`abort` and time limits free
nobody), so a stop shuts the TCP connections down that came with the groups; the listening one stays, since its end
would stop gloo's own loop. And even that frees nobody whose message is half over: when a connection ends, gloo (torch
2.13) fails what is yet to begin, and forgets what it was just reading or writing. So the thread that trains never waits
in gloo: threads of each generation do, one for what it has sent, which nobody needs to know, one for each peer from
which it receives, and a stop lets it go on without them. They wait from the moment a receive is posted, so a message
that came while this process computed is there without another word. A thread that gloo has forgotten stays until the
process ends, with the one message that it waits for.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from chaos.worker_group.devices import HOST, Device
from chaos.worker_group.line import ControlLine, GenerationEnded
from chaos_protocols.worker_group.lanes import lane_prefix

BUILD_TIMEOUT = timedelta(seconds=60)
"""A group whose other member died while it was made gives up by itself, on a thread that nobody waits for."""

FOREVER = timedelta(days=30)
"""A receive takes as long as the peer computes; the controller says when to stop."""

Group = tuple[int, ...]


class GroupFailed(Exception):
    """Communication with a peer failed, or was severed."""


class LineStore(dist.Store):  # type: ignore[misc, name-defined]
    """A `torch.distributed` store that is the controller's memory, for one group of one generation."""

    def __init__(self, line: ControlLine, generation: int, prefix: str) -> None:
        super().__init__()
        self._line, self._generation, self._prefix = line, generation, prefix

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._line.store_set(f"{self._prefix}/{key}", data)

    def get(self, key: str) -> bytes:
        return self._line.store_get(f"{self._prefix}/{key}", self._generation)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)


class Receipt:
    """A message that was begun, and the host memory in which it lies; `lands`: the tensor of a device in which a
    received message ends; `error`: why it failed."""

    def __init__(self, work: Any, host: torch.Tensor, lands: torch.Tensor | None = None) -> None:
        self._work, self._tensor = work, host
        self.landed = None if lands is None or lands is host else (host, lands)
        self.over, self.error = False, ""

    def complete(self) -> None:
        """Wait in the library, for as long as that takes."""
        try:
            self._work.wait(FOREVER)
        except RuntimeError as error:
            self.error = _first_line(error)
        del self._work, self._tensor
        self.over = True


class Groups:
    """The groups of one generation. Everything that belongs to it hangs on this object, and goes with it. `device`: on
    which the tensors lie that are sent and received."""

    def __init__(self, line: ControlLine, generation: int, device: Device = HOST) -> None:
        self._line, self._generation, self._device = line, generation, device
        self._made: dict[Group, Any] = {}
        self._before = _connections()
        self._severed = False
        self._changed = threading.Condition()
        self._sent: SimpleQueue[Receipt | None] = SimpleQueue()
        self._awaited: dict[tuple[Group, int], SimpleQueue[Receipt | None]] = {}
        """By group and peer: from each peer messages come in the order in which they are awaited."""

    def build(self, groups: Iterable[Group]) -> None:
        """Make all of them at once. Raises `GenerationEnded` if the generation stops meanwhile, `GroupFailed`."""
        wanted = sorted(set(groups))
        changed, failed = self._changed, list[BaseException]()

        def make(members: Group) -> None:
            try:
                made = self._make(members)
            except BaseException as error:
                with changed:
                    failed.append(error)
                    changed.notify_all()
                return
            with changed:
                self._made[members] = made
                changed.notify_all()

        self._line.on_stop(self.sever)
        for members in wanted:
            threading.Thread(target=make, args=(members,), name=f"chaos-group-{members}", daemon=True).start()
        with changed:
            changed.wait_for(lambda: failed or self._severed or len(self._made) == len(wanted))
        self._line.check()
        if failed:
            if isinstance(failed[0], GenerationEnded):
                raise GenerationEnded
            raise GroupFailed(f"a group could not be made: {failed[0]}")
        if self._severed:
            raise GenerationEnded
        threading.Thread(target=_complete, args=(self._sent, None), name="chaos-messages", daemon=True).start()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is begun inside belongs together: a backend whose messages block in their order begins it as one. gloo
        need not know."""
        yield

    def send(self, group: Group, peer: int, tensor: torch.Tensor, *, awaited: bool = False) -> Receipt:
        """Hand a contiguous tensor over, which nobody changes any more. That it has arrived its receiver says; the
        sender waits for that only if it is to be `awaited`."""
        host = self._device.leave(tensor)
        receipt = Receipt(self._do(lambda made: made.send([host], group.index(peer), 0), group), host)
        if awaited:
            self._await(((), self._line.worker), receipt)
        else:
            self._sent.put(receipt)
        return receipt

    def receive(self, group: Group, peer: int, tensor: torch.Tensor) -> Receipt:
        """Post a receive into a contiguous tensor. Receives from one peer take its sends in order."""
        host = self._device.landing(tensor)
        receipt = Receipt(self._do(lambda made: made.recv([host], group.index(peer), 0), group), host, tensor)
        self._await((group, peer), receipt)
        return receipt

    def _await(self, which: tuple[Group, int], receipt: Receipt) -> None:
        with self._changed:
            if self._severed:
                return
            queue = self._awaited.get(which)
            if queue is None:
                queue = self._awaited[which] = SimpleQueue()
                args = (queue, self._changed)
                threading.Thread(target=_complete, args=args, name="chaos-messages", daemon=True).start()
            queue.put(receipt)

    def wait(self, receipt: Receipt) -> None:
        """Until it is done. Raises `GroupFailed`, at once where the connections are severed."""
        if not receipt.over:
            with self._changed:
                self._changed.wait_for(lambda: receipt.over or self._severed)
        if not receipt.over:
            raise GroupFailed("the connections of this generation were severed")
        if receipt.error:
            raise GroupFailed(receipt.error)
        if receipt.landed is not None:
            self._device.arrive(*receipt.landed)
            receipt.landed = None

    def sever(self) -> None:
        """End the connections, which fails whatever waits for them. Called by the line's thread."""
        with self._changed:
            self._severed = True
            self._changed.notify_all()
        for descriptor, inode in _connections().items():
            if self._before.get(descriptor) != inode:
                with suppress(OSError), closing(socket.socket(fileno=os.dup(descriptor))) as connection:
                    if _is_group_connection(connection):
                        connection.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Nothing more is sent or awaited."""
        with self._changed:
            queues = [self._sent, *self._awaited.values()]
        for queue in queues:
            with suppress(Empty):  # behind a message that gloo has forgotten, tensors would stay for ever
                while True:
                    queue.get_nowait()
            queue.put(None)

    def _make(self, members: Group) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = BUILD_TIMEOUT
        options._threads = 1
        prefix = lane_prefix(self._line.lane) + "-".join(map(str, members))
        store = LineStore(self._line, self._generation, prefix)
        rank = members.index(self._line.worker)
        return gloo(store, rank, len(members), options)

    def _do(self, start: Callable[[Any], Any], group: Group) -> Any:
        try:
            return start(self._made[group])
        except RuntimeError as error:
            raise GroupFailed(_first_line(error)) from None


def _complete(queue: SimpleQueue[Receipt | None], changed: threading.Condition | None) -> None:
    """A thread of a generation: complete one after the other. `changed`: of somebody who waits for it."""
    while (receipt := queue.get()) is not None:
        receipt.complete()
        if changed is not None:
            with changed:
                changed.notify_all()


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


def _connections() -> dict[int, str]:
    """Descriptors of this process's sockets, with what the kernel calls each."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _is_group_connection(connection: socket.socket) -> bool:
    """A connected TCP socket between this machine's processes."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return str(connection.getpeername()[0]) in ("127.0.0.1", "::1")
