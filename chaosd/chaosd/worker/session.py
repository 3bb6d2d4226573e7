"""A site's worker as a session: what begins with a hello and ends with the loss of the worker.

Decides nothing. `WorkerSessions` is what the worker server reports to: it makes a session of a hello that speaks this
version, turns the worker's messages into events of the site's machine, and carries out what the machine wants of the
worker. A `AttachedWorker` holds what belongs to one worker's life (its hello, its arena): that is a script's process,
or the controller of several (`chaosd.worker_group`), which speaks for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import numpy as np

from chaos_protocols import events
from chaos_protocols.agreement.roster import ModelFacts
from chaos_protocols.names import WEIGHT_MIN, SiteId
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.versions import SPOKEN, agreed
from chaos_protocols.wire.worker import (
    FIGURES_MAX,
    ApplyResult,
    DaemonMessage,
    FiguresLogged,
    PartReady,
    ResultApplied,
    RoundContributed,
    RoundSkipped,
    SnapshotMissed,
    SnapshotTaken,
    StateLoaded,
    StateSpec,
    UpdateStarted,
    WorkerHello,
    WorkerLeaveRequest,
    WorkerMessage,
    WorkerPaused,
    WorkerResumed,
    WorkerWelcome,
)
from chaosd.bulk.reduce.coded import coded_bytes
from chaosd.bulk.reduce.engine import ReduceEngine
from chaosd.bulk.reduce.own_part import bytes_of
from chaosd.bulk.vector import is_finite
from chaosd.storage.vector_file import read_vector, write_vector
from chaosd.worker.arena import Arena
from chaosd.worker.memory import memory_problem
from chaosd.worker.server import Knock, WorkerServer

OLD_ARENAS_MAX = 2
"""A transfer under way may still read from the arena of a worker that is gone; two of them mean that it has had
time."""

SKIPS_SINCE = 4
"""Scripts of this version on look whether what they give is finite, and can leave out a result that is not."""

CANNOT_SKIP = (
    "the result of round {round} is not finite, and no site applies it; this script's chaos package is of a release "
    "that cannot leave it out: install the release of the daemon, then start the script again"
)


CANNOT_BOUND = (
    "this run bounds what a site gives from now on ({bounds}), and this script's chaos package is of a release that "
    "does not say which of its numbers are gradients: install the release of the daemon, then start the script again"
)


@dataclass(frozen=True, slots=True)
class AttachedWorker:
    """One worker's life. `arena` outlives the worker: what it gave to a round lies there."""

    hello: WorkerHello
    arena: Arena

    @property
    def model(self) -> ModelFacts:
        """What sites compare before any state moves."""
        state = self.hello.state
        return ModelFacts(
            spec_digest=state.digest,
            state_bytes=state.size_bytes,
            shard_bytes=state.shard_bytes,
            encoding=self.hello.contribution.encoding,
        )

    def contribution_is_finite(self) -> bool:
        """Whether what lies in the arena is."""
        start, numbers = 0, bytes_of(self.arena.contribution)
        for segment in self.hello.contribution.segments:
            stop = start + segment.count * np.dtype(segment.dtype).itemsize
            if not is_finite(numbers[start:stop].view(segment.dtype)):
                return False
            start = stop
        return True


class WorkerSessions:
    """See the module. `feed`: where events go. `averaging`: the engine that reads contributions from the arena."""

    def __init__(
        self,
        socket: Path,
        feed: Callable[[events.Event], None],
        averaging: ReduceEngine,
        *,
        site: SiteId,
        run: str,
        vector_file: Path,
    ) -> None:
        self._feed = feed
        self._averaging = averaging
        self._site, self._run = site, run
        self._vector_file = vector_file
        self._server = WorkerServer(socket, self)
        self._old_arenas: deque[Arena] = deque()
        self._at_the_door: tuple[AttachedWorker, Knock] | None = None
        """Said hello; the machine is about to say what becomes of it."""
        self.figures: dict[str, tuple[int, float | None]] = {}
        """What the script has told its operator last: the round, and the value (None: not finite)."""
        self.session: AttachedWorker | None = None
        """The present one, or the last: a daemon without a worker still knows what it trains."""

    @property
    def connected(self) -> bool:
        return self._server.connected

    @property
    def arena(self) -> Arena | None:
        return self.session.arena if self.session is not None else None

    @property
    def spec(self) -> StateSpec | None:
        """Of the state that this site trains, if a worker has said hello."""
        return self.session.hello.state if self.session is not None else None

    @property
    def pid(self) -> int | None:
        """Of the worker that is here now, if that is known."""
        return self._server.pid

    async def start(self) -> None:
        """Raises UnixSocketError. A daemon that was restarted knows what is averaged before its worker is back: it
        relays, with weight 0."""
        spec = read_vector(self._vector_file)
        if spec is not None:
            self._averaging.configure(spec, memoryview(bytearray(spec.size_bytes)))
            self._averaging.detach_contribution()
        await self._server.start()

    async def close(self) -> None:
        """No worker hears anything after this; arenas stay until `release`, for the engines may still read."""
        await self._server.close()

    def release(self) -> None:
        """Give the shared memory back, when no engine runs any more."""
        if self.session is not None:
            self._old_arenas.append(self.session.arena)
        if self._at_the_door is not None:
            self._old_arenas.append(self._at_the_door[0].arena)
        self.session = self._at_the_door = None
        for arena in self._old_arenas:
            arena.close()
        self._old_arenas.clear()

    # -- what the machine wants of the worker

    def take(self) -> None:
        """The worker at the door is this site's: only now is anything of the one before let go of."""
        assert self._at_the_door is not None, "a worker is taken once, and only after its hello"
        (session, knock), self._at_the_door = self._at_the_door, None
        hello, arena, version = session.hello, session.arena, agreed(SPOKEN, session.hello.versions)
        assert version is not None, "looked at when it knocked"
        if self.session is not None:
            self._averaging.detach_contribution()
            self._old_arenas.append(self.session.arena)
            while len(self._old_arenas) > OLD_ARENAS_MAX:
                self._old_arenas.popleft().close()
        self.session = session
        self.figures.clear()
        knock.take()
        self._averaging.configure(hello.contribution, arena.contribution)
        self._averaging.region.attach(bytes_of(arena.result))
        write_vector(self._vector_file, hello.contribution)
        self._server.send(WorkerWelcome(site=self._site, run=self._run, version=version))

    def turned_away(self) -> tuple[StateSpec, Knock]:
        """The worker at the door is not taken: what it would have trained, and whom to tell why. Nothing of the present
        session, nor of what is averaged, is touched."""
        assert self._at_the_door is not None, "a worker is refused once, and only after its hello"
        (session, knock), self._at_the_door = self._at_the_door, None
        session.arena.close()
        return session.hello.state, knock

    def send(self, message: DaemonMessage) -> None:
        self._server.send(message)

    def under(self, bounds: Bounds) -> None:
        """Rounds are done under these from now on: a script that does not say which of its numbers they concern would
        take over results that all others leave out."""
        if self.session is not None and self.connected and bounds.is_beyond(self.session.hello.versions.newest):
            self._server.refuse(CANNOT_BOUND.format(bounds=bounds))
            self.worker_lost("its release does not say which of its numbers the run's bounds concern")

    def deliver(self, number: int, sites: int, weight: float, digest: tuple[int, int] | None) -> None:
        """The result of a round: into the arena, then tell the worker. One that is not finite is only told."""
        if self.session is None:
            return
        held = self._averaging.held(number)
        assert held is not None, f"the result of round {number} was dropped before the worker had it"
        void = not held.is_applied()
        if void and self.session.hello.versions.newest < SKIPS_SINCE:
            self._server.refuse(CANNOT_SKIP.format(round=number))
            self.worker_lost("its release cannot leave out a result that nobody may apply")
            return
        if not void:
            self._averaging.region.hand_over(held)
        self._server.send(ApplyResult(round=number, sites=sites, weight=weight, void=void, digest=digest))

    def refusal(self) -> Callable[[str], None]:
        """What tells the present worker why it may not take part, and parts with it; a later one is not concerned."""
        return self._server.refusal()

    def end(self) -> None:
        """The machine gave the worker up: it is told nothing, and what it may still write into its arena counts no
        more."""
        self._server.drop()
        self._averaging.detach_contribution()

    # -- facts from the worker (WorkerEvents)

    def worker_hello(self, hello: WorkerHello, arena: Arena, knock: Knock) -> None:
        version = agreed(SPOKEN, hello.versions)
        if version is None:
            arena.close()
            knock.turn_away(
                f"the script's chaos package speaks protocol {hello.versions}, this daemon {SPOKEN}, and they share "
                "none; install the same chaos-train in both environments"
            )
            return
        vectors = self._averaging.vectors
        if problem := memory_problem(hello.contribution, vectors.spec if vectors is not None else None):
            arena.close()
            knock.turn_away(problem)
            return
        session = AttachedWorker(hello, arena)
        self._at_the_door = (session, knock)
        ready = events.WorkerReady(
            model=session.model,
            round=hello.round,
            contribution_bytes=coded_bytes(hello.contribution),
            rival_pid=knock.rival_pid,
            held=hello.held,
            damaged_round=hello.damaged_round,
            version=hello.version,
        )
        self._feed(ready)  # the machine says whether it is taken

    def worker_message(self, message: WorkerMessage) -> None:
        match message:
            case RoundContributed(round=number, weight=weight):
                self._contributed(number, weight)
            case PartReady(round=number, weight=weight, ready_bytes=ready):
                if weight >= WEIGHT_MIN:
                    self._feed(events.WorkerContributed(round=number, weight=weight, ready_bytes=ready))
            case RoundSkipped(round=number, reason=reason):
                self._feed(events.WorkerContributed(round=number, weight=0.0, reason=reason))
            case WorkerPaused(reason=reason):
                self._feed(events.ScriptPaused(reason=reason))
            case WorkerResumed():
                self._feed(events.ScriptResumed())
            case FiguresLogged(round=number, figures=figures):
                self._logged(number, figures)
            case UpdateStarted(round=number):
                self._feed(events.WorkerUpdating(round=number))
            case ResultApplied(round=number, digests=digests):
                self._averaging.region.applied(number)
                self._feed(events.WorkerApplied(round=number, digests=digests))
            case SnapshotTaken(round=number):
                self._feed(events.WorkerSnapshotTaken(round=number))
            case SnapshotMissed(round=number, now=now):
                self._feed(events.WorkerSnapshotMissed(round=number, now=now))
            case StateLoaded(round=number):
                self._feed(events.WorkerLoaded(round=number))
            case WorkerLeaveRequest(reason=reason, contributes=contributes):
                self._feed(events.LeaveRequested(request="", reason=reason, contributes=contributes, by_worker=True))
            case WorkerHello():
                pass  # the server takes the first one, and refuses a second
            case _:
                assert_never(message)

    def _logged(self, number: int, figures: dict[str, float | None]) -> None:
        """The newest of each name; of names beyond the limit those that were told longest ago go."""
        for name, value in figures.items():
            self.figures.pop(name, None)
            self.figures[name] = (number, value)
        while len(self.figures) > FIGURES_MAX:
            del self.figures[next(iter(self.figures))]

    def _contributed(self, number: int, weight: float) -> None:
        """Its part lies in the arena. A script of a release that looks itself has done so."""
        session, reason = self.session, ""
        assert session is not None
        if weight < WEIGHT_MIN:
            reason = f"a weight of {weight:g} is none: at least {WEIGHT_MIN:g}"
        elif session.hello.versions.newest < SKIPS_SINCE and not session.contribution_is_finite():
            reason = "a number in it is not finite (a newer chaos-train beside the script says which)"
        if reason:
            self._feed(events.WorkerContributed(round=number, weight=0.0, reason=reason))
            return
        self._averaging.keep_contribution(number)  # its own, even if the worker dies
        self._feed(events.WorkerContributed(round=number, weight=weight))

    def worker_lost(self, reason: str) -> None:
        self._averaging.detach_contribution()
        self._feed(events.WorkerLost(reason=reason))
