"""The rounds of one site: when it opens a round, when it gives its part, what its worker is told (protocols.md section
4).

The rule behind everything: a round belongs to exactly one view of the committed roster, its bulk messages carry that
view's epoch, and a site that learns of a newer view for the running round starts it again under the new tag (its
contribution still lies in the arena). While the roster is settling no round is open. So each round is applied once, by
all final members, with the same result.

Driven by `SiteMachine`; executed by the reduce engine and the worker. A site whose worker is missing, or not level
yet, takes part with weight 0 (standby): it relays, it keeps the results for its worker, and no round completes without
its daemon.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from chaos_protocols.effects import (
    Contribute,
    DeliverResult,
    DropResults,
    Effect,
    FetchResult,
    OpenRound,
    StopRound,
    ToWorker,
    VoidResults,
)
from chaos_protocols.kept import RESULTS_QUEUED_MAX, KeptResults, Result
from chaos_protocols.names import SiteId
from chaos_protocols.plans import Tag
from chaos_protocols.roster import Roster
from chaos_protocols.worker import TrainFrom


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """Notice: the result of `round` is here; who took part with which weight."""

    round: int
    epoch: int
    digest: str
    weights: tuple[tuple[SiteId, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLost:
    """Notice: this site cannot get level by applying results; its state must be replaced."""

    reason: str


RoundNotice = RoundCompleted | StateLost


class RoundMachine:
    """See the module. `done`: the last round whose result is here, or that this site is not waited for in;
    `known_round`: the newest that it has seen done; `worker_round`: the last one its worker has applied; `takes_part`:
    false for a site that was removed: it gives to no round, not even to one that it knows."""

    def __init__(self, site: SiteId, roster: Roster) -> None:
        self.site = site
        self.roster = roster
        self.done = self.known_round = 0
        self.digest = ""
        self.running: Tag | None = None
        self.contributed = False
        self.contributed_round = 0
        self.active = False
        self.takes_part = False
        self.worker_round: int | None = None
        self.notices: list[RoundNotice] = []
        self.hold_round: int | None = None
        self._contribution: tuple[int, float] | None = None
        self._training = False
        self._updating = False
        self._collecting = False
        self._fetching: int | None = None
        self._delivering: int | None = None
        self._queue: deque[Result] = deque()
        self.results_max = RESULTS_QUEUED_MAX
        self.kept = KeptResults()
        self.waited_for: int | None = None

    @property
    def phase(self) -> str:
        """The step tag's phase (FlashRecovery III-D)."""
        if self._updating:
            return "update"
        if not self.active:
            return "standby"
        return "reduce" if self.contributed and self.running is not None else "compute"

    @property
    def level(self) -> bool:
        """The worker has applied every result that is here."""
        return self.worker_round is not None and self.worker_round == self.done

    # -- the roster

    def install(self, roster: Roster) -> list[Effect]:
        """A newer committed roster."""
        self.roster = roster
        self.takes_part = True
        effects: list[Effect] = []
        if roster.settling:
            self._fetching = None
            effects += self._stop()
        return effects + self.advance()

    def settled(self, round_number: int) -> list[Effect]:
        """The round that stands was agreed. Whoever counted further without having held a result begins there."""
        if self.done <= round_number:
            return []
        self._fall_behind(f"it counted from round {self.done}, but round {round_number} is the last that stands")
        return self.begin_at(round_number)

    def begin_at(self, done: int) -> list[Effect]:
        """Take part from round `done + 1` on; the state of `done` is being fetched: collect the results after it."""
        effects = [*self._stop(), *self._void_after(done)]
        self.takes_part = True
        self.done, self.digest = done, ""
        self.known_round = min(self.known_round, done)
        self.contributed_round = 0
        self._contribution = None
        return effects + self.collect_from(done)

    def _void_after(self, done: int) -> list[Effect]:
        """The run goes on after `done`, whatever this site counted: later results are of a history that was given up,
        and none before `done + 1` is kept for a mirror."""
        self.kept.forget()
        self._fetching = None
        return [VoidResults(after_round=done)] if done < self.done else []

    def collect_from(self, snapshot_round: int) -> list[Effect]:
        """A transfer of the state of `snapshot_round` begins: keep what comes after it for the worker."""
        self._queue.clear()
        self._collecting = True
        self._forget_worker()
        return self._pump()

    def leave_run(self) -> list[Effect]:
        """This site is out of the roster: nothing is open, nothing collected."""
        effects = self._stop()
        self.takes_part = False
        self._collecting = False
        self._queue.clear()
        self._contribution = None
        self.hold_round = None
        self._fetching = None
        self.known_round = 0
        self.kept.forget()
        self._forget_worker()
        return effects

    def _forget_worker(self) -> None:
        self.worker_round = self.waited_for = None
        self.active = self._training = self._updating = False
        self._delivering = None

    # -- the worker

    def adopt_worker(self, done: int) -> list[Effect]:
        """The worker's own state counts as that of the end of `done` (founding a run)."""
        effects = [*self._stop(), *self._void_after(done)]
        self.takes_part = True
        self.done = self.known_round = self.worker_round = done
        self.digest = ""
        self._collecting = True
        self._queue.clear()
        self.active = True
        self._training = False
        self.contributed_round = 0
        self._contribution = None
        return effects + self.advance() + self._pump()

    def worker_loaded(self, round_number: int) -> list[Effect]:
        """The worker took over the transferred state of the end of `round_number`."""
        self.worker_round = round_number
        self.known_round = max(self.known_round, round_number)
        return self._pump()

    def replay_after(self, round_number: int) -> bool:
        """A worker is about to load the mirror's state of `round_number`; false: later results are not all here."""
        later = self.kept.since(round_number, self.done)
        if later is None:
            return False
        self._queue, self._collecting = later, True
        self._forget_worker()
        return True

    def activate(self) -> list[Effect]:
        """This site's worker is level and contributes from now on."""
        self.active = True
        return self._pump()

    def worker_lost(self) -> list[Effect]:
        """No worker: standby. A contribution already in the arena still counts."""
        self._forget_worker()
        self._collecting = False
        self._queue.clear()
        return self.advance()

    def worker_leaves(self) -> list[Effect]:
        """The worker applies results until it is dismissed, but contributes nothing more."""
        self.active, self.waited_for = False, None
        return self.advance()

    def worker_contributed(self, round_number: int, weight: float) -> list[Effect]:
        if round_number != self.done + 1 or not self._training:
            return []
        self._contribution = (round_number, weight)
        return self.advance()

    def worker_updating(self) -> None:
        self._updating = True

    def worker_applied(self, round_number: int) -> list[Effect]:
        self._updating = False
        if self._delivering != round_number:
            return []
        self._delivering = None
        self.worker_round = round_number
        first_needed = self._queue[0][0] if self._queue else self.done
        needed = self.kept.first_kept(min(self.done, first_needed))
        return [DropResults(before_round=needed), *self._pump()]

    # -- the engine

    def reduce_finished(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> list[Effect]:
        if tag != self.running:
            return []  # of an older epoch: changes nothing
        self.running = None
        self.contributed = False
        return self._complete(tag.round, tag.epoch, digest, weights)

    def result_fetched(self, round_number: int, digest: str) -> list[Effect]:
        agreed = (self.roster.settled_round, self.roster.settled_digest)
        if self._fetching != round_number or round_number != self.done + 1 or agreed != (round_number, digest):
            return []
        self._fetching = None
        return self._complete(round_number, self.roster.epoch, digest, ())

    @property
    def fetching(self) -> int | None:
        """The settled round whose result is being fetched."""
        return self._fetching

    def result_missed(self, tag: Tag) -> list[Effect]:
        """The neighbour that was to send the result of the running round has dropped it: this site is too far
        behind."""
        if tag != self.running:
            return []  # of an older epoch: changes nothing
        self._fall_behind(f"the result of round {tag.round} is not kept any more")
        return self.advance()

    def give_up_fetching(self) -> list[Effect]:
        """Nobody near keeps the settled result."""
        assert self._fetching is not None
        self._fall_behind(f"the result of round {self._fetching} is not kept any more")
        self.done, self.digest, self._fetching = self._fetching, "", None  # on in standby: nobody waits for it
        return self.advance()

    def _complete(
        self, round_number: int, epoch: int, digest: str, weights: tuple[tuple[SiteId, float], ...]
    ) -> list[Effect]:
        self.done, self.digest = round_number, digest
        self.known_round = max(self.known_round, round_number)
        self._contribution = None
        self.notices.append(RoundCompleted(round=round_number, epoch=epoch, digest=digest, weights=weights))
        result = (round_number, len(weights), sum(weight for _, weight in weights))
        self.kept.add(result)
        if self._collecting:
            self._queue.append(result)
            if len(self._queue) > self.results_max:
                self._fall_behind(f"more than {self.results_max} results wait for the worker")
        effects = self._pump()
        if not self._queue and self._delivering is None:
            effects.append(DropResults(before_round=self.kept.first_kept(self.done)))
        return effects + self.advance()

    # -- deciding

    def advance(self) -> list[Effect]:
        """Open the next round if it can be, and contribute to it if we may."""
        roster = self.roster
        if not self.takes_part or roster.settling or not roster.started or roster.model is None:
            return []
        if self.done < roster.settled_round:
            return self._catch_up(roster)
        effects: list[Effect] = []
        if self.worker_round is None:
            effects += self._skip_ahead(roster)
        if roster.views and self.done + 1 < roster.views[0].first_round:
            if self.worker_round is not None or self._collecting:
                self._fall_behind(f"round {self.done + 1} is long over: this site is too far behind")
            effects += self._skip_ahead(roster)
        next_round = self.done + 1
        view = roster.view_of(next_round)
        if view is None:
            return effects
        member, listener = self.site in view.members, self.site in view.listeners
        if not member and not listener:
            return [*effects, *self._stop()]
        tag = Tag(epoch=view.epoch, round=next_round)
        if self.running != tag:
            effects += self._stop()
            effects.append(OpenRound(tag=tag, plan=view.plan, listeners=view.listeners, member=member))
            self.running = tag
        if member and not self.contributed:
            effects += self._contribute(tag)
        return effects + self._pump()

    def _skip_ahead(self, roster: Roster) -> list[Effect]:
        """Promoted while its state was lost: the results up to its first round as a member concern it no more, and the
        others wait for its contribution (of weight 0) from then on."""
        first = next((view.first_round for view in roster.views if self.site in view.members), None)
        if first is None or self.done >= first - 1:
            return []
        effects = self._stop()
        self.done, self.digest = first - 1, ""
        return effects

    def _contribute(self, tag: Tag) -> list[Effect]:
        if self.hold_round is not None and tag.round >= self.hold_round:
            return []
        if self._contribution is not None and self._contribution[0] == tag.round:
            weight, has_bytes = self._contribution[1], True
        elif not self.active and tag.round != self.waited_for:
            weight, has_bytes = 0.0, False
        else:
            return []
        self.contributed = True
        self.contributed_round = max(self.contributed_round, tag.round)
        return [Contribute(tag=tag, weight=weight, has_bytes=has_bytes)]

    def _catch_up(self, roster: Roster) -> list[Effect]:
        if self._fetching == roster.settled_round:
            return []
        effects = self._stop()
        if self.done != roster.settled_round - 1 or not roster.settled_digest:
            self._fall_behind(f"round {roster.settled_round} was settled while this site held only {self.done}")
            self.done, self.digest = roster.settled_round, ""  # goes on in standby: no round waits for its state
            return effects + self.advance()
        self._fetching = roster.settled_round
        return [*effects, FetchResult(round=roster.settled_round, digest=roster.settled_digest)]

    def _pump(self) -> list[Effect]:
        """Give the worker the next result, or let it train when it is level and this site is a member."""
        if self.worker_round is None or self._delivering is not None:
            return []
        while self._queue and self._queue[0][0] <= self.worker_round:
            self._queue.popleft()
        if self._queue:
            round_number, sites, weight = self._queue[0]
            if round_number != self.worker_round + 1:
                self._fall_behind(f"the worker is at round {self.worker_round}, the next result here is {round_number}")
                return []
            self._queue.popleft()
            self._delivering = round_number
            return [DeliverResult(round=round_number, sites=sites, weight=weight)]
        if self.worker_round < self.done:  # a state that was loaded twice: the results between were delivered before
            self._fall_behind(f"the worker is at round {self.worker_round}, and the results since are delivered")
            return []
        if self.active and not self._training and self.level and self._member_next():
            self._training = True
            return [ToWorker(message=TrainFrom(round=self.done + 1))]
        return []

    def _member_next(self) -> bool:
        view = self.roster.view_of(self.done + 1)
        return view is not None and self.site in view.members

    def _stop(self) -> list[Effect]:
        tag, self.running, self.contributed = self.running, None, False
        return [] if tag is None else [StopRound(tag=tag)]

    def fall_behind(self, reason: str) -> None:
        """This site's worker is not waited for any more: its state must be replaced."""
        self._fall_behind(reason)

    def _fall_behind(self, reason: str) -> None:
        self._queue.clear()
        self._collecting = False
        self._forget_worker()
        self.notices.append(StateLost(reason=reason))
