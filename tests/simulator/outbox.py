"""Frames on their way out on one bulk stream, as in the daemon (`chaosd.bulk.send_queue`): in order for each link.

What is modelled: the sockets. They take SOCKET_FRAMES frames that the far end has not read; the others wait here, and
are dropped with their round. A link that is lost takes all of them along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chaos_protocols.wire.bulk import decode_bulk_header, encode_bulk_header
from chaos_protocols.wire.plans import Tag

SOCKET_FRAMES = 6
"""On one connection, sent and not read yet: socket buffers hold a few chunks."""

AVERAGING = "averaging"
STATES = ("states", "states 2")
"""The first one carries what joiner and source say to each other, too; blocks go over both, so they overtake."""


@dataclass(slots=True)
class Frame:
    """`payload`: what stands for its bytes, `size_bytes` of them (of a state; a chunk's size is not modelled). `key`:
    the round that it belongs to. `faulty`: a fault made it, so whoever gets it may refuse it. `announced`: its first
    bytes are on their way by themselves; `begun`: they have arrived."""

    stream: str
    header: Any
    payload: Any = None
    size_bytes: int = 0
    key: Tag | None = None
    faulty: bool = False
    announced: bool = False
    begun: bool = False


def encoded(frame: Frame) -> Frame:
    """Its header once through the real codec."""
    frame.header = decode_bulk_header(encode_bulk_header(frame.header))
    return frame


@dataclass(slots=True)
class _Lane:
    frames: deque[Frame] = field(default_factory=deque)
    under_way: int = 0


class Outbox:
    """See the module. `send(site, frame)` hands a frame to the socket."""

    def __init__(self, send: Callable[[str, Frame], None]) -> None:
        self._send = send
        self._lanes: dict[str, _Lane] = {}

    def link_up(self, site: str) -> None:
        self._lanes[site] = _Lane()

    def link_lost(self, site: str) -> None:
        self._lanes.pop(site, None)

    def has_room(self, site: str) -> bool:
        lane = self._lanes.get(site)
        return lane is not None and lane.under_way < SOCKET_FRAMES

    def put(self, site: str, frame: Frame) -> None:
        """Send it after those before. Without a link it is dropped."""
        lane = self._lanes.get(site)
        if lane is None:
            return
        if lane.under_way >= SOCKET_FRAMES:
            lane.frames.append(frame)
            return
        lane.under_way += 1
        self._send(site, frame)

    def taken(self, site: str) -> None:
        """The far end has read one."""
        lane = self._lanes.get(site)
        if lane is None:
            return
        lane.under_way -= 1
        if lane.frames and lane.under_way < SOCKET_FRAMES:
            lane.under_way += 1
            self._send(site, lane.frames.popleft())

    def drop(self, key: Tag) -> None:
        """Forget what waits and belongs to this round."""
        for lane in self._lanes.values():
            if lane.frames:
                lane.frames = deque(frame for frame in lane.frames if frame.key != key)
