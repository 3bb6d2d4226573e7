"""The lines of a device group: its leader's to the controller, and its followers' to the leader.

The leader speaks for all: what a worker says is said once all lanes could say it, and what it is told is told on in the
order in which it is acted upon. A stop alone is told on at once, by the thread that reads, since a follower may be
blocked in a receive of its own; it severs that, and says so at the next place at which all meet.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import get_args

from chaos.worker_group.exchange.channels import GroupFailed
from chaos.worker_group.exchange.lacks import begin
from chaos.worker_group.exchange.lanes import Lanes
from chaos.worker_group.exchange.line import ControlLine, GenerationEnded, GroupEnded, Ordered, Wanted
from chaos_protocols.worker_group.lanes import (
    Beat,
    Concord,
    FollowerMessage,
    Here,
    LeaderMessage,
    Through,
    Together,
    apart,
    from_follower,
    from_leader,
    joined,
    lane_frame,
    lane_of,
    order_for,
)
from chaos_protocols.worker_group.messages import (
    ControllerMessage,
    Finish,
    GroupHello,
    PeerLost,
    PlanOrder,
    ScriptFailed,
    Stop,
    StoreGet,
    StoreSet,
    StoreValue,
    WorkerMessage,
    frame_size,
)
from chaos_protocols.worker_group.settings import PEER_LOST_EXIT
from chaos_protocols.worker_group.suspicion import BEAT_INTERVAL_S, Work
from chaos_protocols.worker_group.tags import StepTag

TOGETHER = get_args(Together)

END_SEEN_S = 0.5
"""The end of a process is in all of its connections within that."""


def line_of(lanes: Lanes, environment: Mapping[str, str], tag: Callable[[], StepTag]) -> ControlLine:
    """This process's line, as a lane of its worker."""
    if lanes.lane:
        return FollowerLine(environment, tag, lanes)
    return LeaderLine(environment, tag, lanes)


class _Follower:
    """The leader's end of one follower's line."""

    def __init__(self, connection: socket.socket) -> None:
        self.here: SimpleQueue[Here | Through | None] = SimpleQueue()
        """None: its line has ended."""
        self.state_bytes: list[int] = []
        self.beaten = False
        self.ended = threading.Event()
        self._connection, self._sending = connection, threading.Lock()

    def tell(self, message: LeaderMessage) -> None:
        """To a follower that may be gone: then this process ends with it, by another's hand."""
        try:
            with self._sending:
                self._connection.sendall(lane_frame(message))
        except OSError:
            self.here.put(None)

    def read(self, pass_on: Callable[[WorkerMessage], None]) -> None:
        """A thread's work, until the line ends."""
        try:
            with suppress(OSError), self._connection.makefile("rb") as stream:
                while len(header := stream.read(4)) == 4:
                    message = from_follower(stream.read(frame_size(header)))
                    if isinstance(message, Here | Through):
                        self.here.put(message)
                    elif isinstance(message, Beat):
                        self.beaten = True
                    else:
                        pass_on(message)
        finally:
            self.ended.set()
            self.here.put(None)


class LeaderLine(ControlLine):
    """To the controller, for all lanes."""

    def __init__(self, environment: Mapping[str, str], tag: Callable[[], StepTag], lanes: Lanes) -> None:
        self._followers = [_Follower(connection) for connection in lanes.connections]
        self._state_bytes: list[int] = []
        self._apart = False
        """All lanes know that this generation is over for them."""
        super().__init__(environment, tag)
        for each in self._followers:
            begin(each.read, "chaos-lane", super().send)

    def send(self, message: WorkerMessage) -> None:
        """See `ControlLine`; what all lanes say together also raises `GenerationEnded`, `GroupFailed`."""
        if not isinstance(message, TOGETHER):
            super().send(message)
            return
        said = [message, *self._meet(able=True)]
        if isinstance(message, GroupHello):
            hellos = [each for each in said if isinstance(each, GroupHello)]
            self._state_bytes, *others = (
                [r.parameter_bytes + r.optimizer_bytes for r in each.layers] for each in hellos
            )
            for follower, sizes in zip(self._followers, others, strict=True):
                follower.state_bytes = sizes
        super().send(joined(said))

    def agree(self) -> None:
        self._meet(able=not self.stopping)

    def halted(self) -> bool:
        over = super().halted()
        self._tell(Concord(onward=not over))
        return over

    def halt(self) -> None:
        try:
            if not self._apart:
                self._meet(able=False)
        except (GenerationEnded, GroupFailed):
            pass  # that is what was to be known
        self._apart = False
        try:
            super().halt()
        except GroupEnded as error:
            self._tell(Finish(failed=str(error)))
            raise

    def take(self, *wanted: type[Wanted]) -> Wanted:
        try:
            message = super().take(*wanted)
        except GenerationEnded:
            self._apart = True
            self._tell(Concord(onward=False))
            raise
        except GroupEnded as error:
            self._tell(Finish(failed=str(error)))
            raise
        for each in self._followers:
            order: Ordered = message
            if isinstance(order, PlanOrder):
                order = order_for(order, self._state_bytes, each.state_bytes)
            each.tell(order)
        return message

    def close(self, step: int) -> bool:
        """When all lanes want no further step: one that begins it has another end of its loop."""
        if self._closed:
            return False
        self._tell(Through(step=step))
        for lane, each in enumerate(self._followers, start=1):
            if isinstance(self._word_of(each), Here):
                text = apart(0, step, lane)
                super().send(ScriptFailed(text=text))
                self._tell(Finish(failed=text))
                self.ended()
                return False
        return super().close(step)

    def raised(self) -> None:
        if any(each.ended.wait(END_SEEN_S / len(self._followers)) for each in self._followers):
            os._exit(PEER_LOST_EXIT)

    def _meet(self, *, able: bool) -> list[Together]:
        """Until all lanes are here: what the followers say. Raises `GenerationEnded`, `GroupFailed` unless all are
        able."""
        here = [self._wait_for(lane, each) for lane, each in enumerate(self._followers, start=1)]
        onward = able and all(each.able for each in here)
        self._tell(Concord(onward=onward))
        if not onward:
            self._apart = True
            for each in here:
                if each.text:
                    raise GroupFailed(each.text)
            raise GenerationEnded
        return [each.said for each in here if each.said is not None]

    def _wait_for(self, lane: int, follower: _Follower) -> Here:
        """Raises `GroupEnded` where its script has left the loop, and this one has not."""
        word = self._word_of(follower)
        if isinstance(word, Here):
            return word
        super().send(ScriptFailed(text=apart(lane, word.step, 0)))
        with self._changed:
            self._changed.wait_for(lambda: self._finish is not None)
        assert self._finish is not None
        self._tell(self._finish)
        raise GroupEnded(self._finish.failed)

    def _word_of(self, follower: _Follower) -> Here | Through:
        word = follower.here.get()
        if word is None:
            os._exit(PEER_LOST_EXIT)  # this device group is dead; the controller says which process was the first
        return word

    def _tell(self, message: LeaderMessage) -> None:
        for each in self._followers:
            each.tell(message)

    def _receive(self, message: ControllerMessage) -> None:
        if isinstance(message, StoreValue) and (lane := lane_of(message.key)):
            self._followers[lane - 1].tell(message)
            return
        if isinstance(message, Stop):
            self._tell(message)
        elif isinstance(message, Finish):
            self._tell(Stop(generation=self.generation))
        super()._receive(message)

    def _runs(self) -> bool:
        if not all(each.beaten for each in self._followers):
            return False
        for each in self._followers:
            each.beaten = False
        return True


class FollowerLine(ControlLine):
    """To the leader, which is this process's controller."""

    def __init__(self, environment: Mapping[str, str], tag: Callable[[], StepTag], lanes: Lanes) -> None:
        self.lane = lanes.lane
        self._words_of_leader: SimpleQueue[LeaderMessage] = SimpleQueue()
        self._apart, self._why = False, ""
        super().__init__(environment, tag, lanes.connections[0])

    def send(self, message: WorkerMessage) -> None:
        if isinstance(message, PeerLost):
            self._why = message.text
        elif isinstance(message, TOGETHER):
            self._meet(Here(able=True, said=message))
        elif isinstance(message, StoreSet | StoreGet | ScriptFailed):
            self._say(message)

    def doing(self, work: Work, peer: int = -1) -> None:
        """The leader says what this worker is at."""

    def agree(self) -> None:
        self._meet(Here(able=not self.stopping))

    def raised(self) -> None:
        time.sleep(END_SEEN_S)  # the thread that reads ends this process with its leader's

    def halted(self) -> bool:
        return not self._is_onward()

    def halt(self) -> None:
        why, self._why = self._why, ""
        try:
            if not self._apart:
                self._meet(Here(able=False, text=why))
        except GenerationEnded:
            pass  # that is what was to be known
        self._apart = False

    def take(self, *wanted: type[Wanted]) -> Wanted:
        message = self._next()
        if isinstance(message, Concord):
            self._apart = True
            raise GenerationEnded
        if isinstance(message, PlanOrder):
            self.generation = message.generation
        assert isinstance(message, wanted)
        return message

    def close(self, step: int) -> bool:
        """When the leader wants no further step either: the end of a lane alone would be a death. Until then nothing
        that it says is for this lane."""
        if self._closed:
            return False
        self._say(Through(step=step))
        try:
            while not isinstance(self._next(), Through):
                pass
        except GroupEnded:
            self.ended()
            return False
        self._closed = True
        return True

    def _meet(self, here: Here) -> None:
        self._say(here)
        if not self._is_onward():
            self._apart = True
            raise GenerationEnded

    def _is_onward(self) -> bool:
        concord = self._next()
        while isinstance(concord, Through):  # it has left the loop, and hears that this lane has not
            self._say(Here(able=False))
            concord = self._next()
        assert isinstance(concord, Concord)
        return concord.onward

    def _next(self) -> LeaderMessage:
        message = self._words_of_leader.get()
        if isinstance(message, Finish):
            raise GroupEnded(message.failed)
        return message

    def _say(self, message: FollowerMessage) -> None:
        try:
            with self._sending:
                self._socket.sendall(lane_frame(message))
        except OSError:
            if not self._closed:
                self._lost()

    def _heard(self, body: bytes) -> None:
        message = from_leader(body)
        if isinstance(message, Stop | StoreValue):
            self._receive(message)
        else:
            self._words_of_leader.put(message)

    def _hears_no_more(self) -> None:
        self._words_of_leader.put(Finish(failed=""))

    def _answer(self) -> None:
        self._answered = self._stop_generation

    def _beat(self) -> None:
        never = threading.Event()
        while not never.wait(BEAT_INTERVAL_S):
            if self._closed:
                return
            self._say(Beat())

    def _lost(self) -> None:
        os._exit(PEER_LOST_EXIT)  # its device group is dead, and the controller knows of what
