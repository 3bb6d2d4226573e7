"""A worker's line to its controller: messages, the order to stop, the rendezvous of groups, the words of its progress.

Two threads beside the script's: one reads the socket, one counts the beat. The order to stop is taken by the reading
thread, since the script's thread may be blocked in a receive: it severs the groups, which makes that receive fail.
Between two steps, when the script runs its own code, the reading thread answers in its stead.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeAlias, TypeVar

from chaos.saying import say
from chaos.worker_group.exchange.lacks import begin
from chaos.worker_group.exchange.spans import SpanLog
from chaos_protocols.wire.worker import FiguresLogged
from chaos_protocols.wire.worker import encode as encode_logged
from chaos_protocols.worker_group.messages import (
    CommitStep,
    Compute,
    ControllerMessage,
    Done,
    Finish,
    Go,
    MeasureResult,
    PlanOrder,
    Stop,
    Stopped,
    StoreGet,
    StoreSet,
    StoreValue,
    TakeState,
    WorkerMessage,
    WriteState,
    encode,
    frame_size,
    from_controller,
)
from chaos_protocols.worker_group.settings import PEER_LOST_EXIT
from chaos_protocols.worker_group.suspicion import BEAT_INTERVAL_S, Work
from chaos_protocols.worker_group.tags import StepTag
from chaos_protocols.worker_group.words import SLOT_BYTES, SLOTS, write_beat, write_doing

Ordered: TypeAlias = PlanOrder | Go | CommitStep | Compute | WriteState | TakeState | MeasureResult
Wanted = TypeVar("Wanted", bound=Ordered)

NOT_ITSELF = (
    "this process has the variables of worker {} of `chaosd run` (CHAOS_WORKER_*), and is not that worker: a program "
    "that a worker starts is none itself. One that trains by itself is started without them: "
    "env={{name: value for name, value in os.environ.items() if not name.startswith('CHAOS_')}}"
)


class GenerationEnded(Exception):
    """This generation ends: the step under way does not count."""


class GroupEnded(Exception):
    """The worker group is over; the text says why where it failed."""


class ControlLine:
    """One to the controller named in the environment. `tag` is where the script's thread stands; it alone sets it."""

    lane = 0
    """Which process of its device group this one is; 0 where the worker is one process."""

    def __init__(
        self, environment: Mapping[str, str], tag: Callable[[], StepTag], connection: socket.socket | None = None
    ) -> None:
        """`connection`: of a line to somebody else than the controller. Raises ValueError in a process that is not the
        worker that the environment names."""
        self.worker = int(environment["CHAOS_WORKER"])
        self.token = environment["CHAOS_WORKER_TOKEN"]
        self.generation = 0
        """Of the order taken last."""
        self.spans = SpanLog()
        self._tag = tag
        try:
            self._words = mmap.mmap(int(environment["CHAOS_WORKER_WORDS"]), SLOT_BYTES * SLOTS)
        except (OSError, ValueError) as error:  # no such descriptor, or a smaller file: it goes to the worker alone
            raise ValueError(NOT_ITSELF.format(self.worker)) from error
        at = self.worker * SLOT_BYTES
        self._slot = memoryview(self._words)[at : at + SLOT_BYTES]
        self._count = 0
        if connection is None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(environment["CHAOS_WORKER_GROUP"])
            except (FileNotFoundError, ConnectionError):  # it was killed while this process started
                self._lost()
        self._socket = connection
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._inbox: deque[Ordered] = deque()
        self._store: dict[str, bytes] = {}
        self._finish: Finish | None = None
        self._stop_generation = -1
        self._answered = -1
        self._inside = True
        self._closed = False
        self._sever: Callable[[], None] = lambda: None
        begin(self._read, "chaos-line")
        begin(self._beat, "chaos-beat")

    # ---- the script's thread

    def send(self, message: WorkerMessage) -> None:
        """Say something; the process ends if nobody hears it any more."""
        self._write(encode(message))

    def log(self, figures: FiguresLogged) -> None:
        """As a script of one process tells its daemon; the controller hands it on. It follows the hello."""
        self._write(encode_logged(figures))

    def _write(self, frame: bytes) -> None:
        try:
            with self._sending:
                self._socket.sendall(frame)
        except OSError:
            if not self._closed:
                self._lost()

    def doing(self, work: Work, peer: int = -1) -> None:
        """Say, in shared memory, what comes next; `peer`: whom it waits for."""
        self._count += 1
        write_doing(self._slot, self._count, work, peer)

    @property
    def stopping(self) -> bool:
        """Whether this generation is to stop."""
        return self._stop_generation >= self.generation or self._finish is not None

    def check(self) -> None:
        """Raises `GenerationEnded` if this generation is to stop."""
        if self.stopping:
            raise GenerationEnded

    def agree(self) -> None:
        """Before a pass: all processes of this worker begin it, or none. Raises `GenerationEnded`, `GroupFailed`."""
        self.check()

    def raised(self) -> None:
        """The script has raised; does not return where this device group is dying, which looks like an error of the
        script's."""

    def enter(self) -> None:
        """The script's thread is in a step from now on: it answers for itself."""
        with self._changed:
            self._inside = True

    def leave(self) -> None:
        """The script runs its own code from now on."""
        self.doing(Work.OUTSIDE)
        with self._changed:
            self._inside = False
            if self._stop_generation > self._answered:
                self._answer()

    def halted(self) -> bool:
        """Whether the end of this generation was answered already."""
        return self._answered >= self.generation

    def halt(self) -> None:
        """Wait until this generation is told to stop, if it is not yet, and answer. Raises `GroupEnded`."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop_generation >= self.generation or self._finish is not None)
            self._raise_if_ended()
            if self._answered < self._stop_generation:
                self._answer()

    def take(self, *wanted: type[Wanted]) -> Wanted:
        """The next message of these kinds; others are dropped.

        Raises `GenerationEnded` if a stop comes first, `GroupEnded` at the end.

        What arrived before the stop counts: a commit must be carried out.
        """
        with self._changed:
            while True:
                while self._inbox:
                    message = self._inbox.popleft()
                    if isinstance(message, PlanOrder) and message.generation <= self._answered:
                        continue
                    if isinstance(message, PlanOrder) and PlanOrder in wanted:
                        self.generation = message.generation
                    if isinstance(message, wanted):
                        return message
                self._raise_if_ended()
                if self._stop_generation >= self.generation:
                    if PlanOrder not in wanted:
                        raise GenerationEnded
                    if self._answered < self._stop_generation:
                        self._answer()
                self._changed.wait()

    def on_stop(self, sever: Callable[[], None]) -> None:
        """What makes blocked communication fail: called by the reading thread, at once if the stop is here already."""
        with self._changed:
            self._sever = sever
            if self.stopping:
                sever()

    def store_set(self, key: str, value: bytes) -> None:
        """Rendezvous: a key of this generation."""
        self.send(StoreSet(generation=self.generation, key=key, value=value))

    def store_get(self, key: str, generation: int) -> bytes:
        """Rendezvous: wait for a key. Raises `GenerationEnded` when the generation stops."""
        self.send(StoreGet(generation=generation, key=key))
        whole = f"{generation}/{key}"
        with self._changed:
            while whole not in self._store:
                if self._stop_generation >= generation or self.generation != generation or self._finish is not None:
                    raise GenerationEnded
                self._changed.wait()
            return self._store[whole]

    def forget_store(self) -> None:
        """Its groups stand: the keys are not needed any more."""
        with self._changed:
            self._store.clear()

    def close(self, step: int) -> bool:
        """No further step is wanted. False: that was said before."""
        if self._closed:
            return False
        self.doing(Work.ENDED)
        self.send(Done(step=step))
        self._closed = True
        return True

    def ended(self) -> None:
        """The worker group is over: the end of the line is no failure."""
        self._closed = True
        self.doing(Work.ENDED)

    # ---- the other threads

    def _raise_if_ended(self) -> None:
        if self._finish is not None:
            raise GroupEnded(self._finish.failed)

    def _answer(self) -> None:
        self._answered = self._stop_generation
        self.spans.waited(perf_counter())
        self.send(Stopped(generation=self._stop_generation, tag=self._tag(), spans=self.spans.taken()))

    def _read(self) -> None:
        try:
            while True:
                size = frame_size(self._exactly(4))
                self._heard(self._exactly(size))
        except (OSError, EOFError):
            if self._closed:
                self._hears_no_more()
            else:
                self._lost()

    def _hears_no_more(self) -> None:
        """Who waits for a last order waits in vain."""
        self._receive(Finish(failed=""))

    def _heard(self, body: bytes) -> None:
        self._receive(from_controller(body))

    def _receive(self, message: ControllerMessage) -> None:
        with self._changed:
            match message:
                case StoreValue():
                    self._store[f"{message.generation}/{message.key}"] = message.value
                case Stop():
                    self._stop_generation = message.generation
                    self._sever()
                    if not self._inside:
                        self._answer()
                case Finish():
                    self._finish = message
                    self._sever()
                case _:
                    self._inbox.append(message)
            self._changed.notify_all()

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _beat(self) -> None:
        never = threading.Event()
        beat = 0
        while not never.wait(BEAT_INTERVAL_S):
            if self._runs():
                beat += 1
                write_beat(self._slot, beat)

    def _runs(self) -> bool:
        """Whether all of this worker has run since the last beat."""
        return True

    def _lost(self) -> None:
        """Nobody says any more what counts: training on would make a state of its own."""
        say(f"worker {self.worker} ends: its controller (chaosd run) is gone; start `chaosd run` again")
        os._exit(PEER_LOST_EXIT)
