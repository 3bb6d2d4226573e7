"""The rounds of one site: when it opens a round, when it gives its part, what its worker is told (spec 9).

The rule behind everything: a round belongs to exactly one view of the committed roster, its bulk messages carry that
view's epoch, and a site that learns of a newer view for the running round starts it again under the new tag (its
contribution still lies in the arena). While the roster is resolving no round is open. So each round is applied once, by
all final members, with the same result.

Driven by `SiteMachine`; executed by the reduce engine and the worker. A site whose worker is missing, or has not caught
up yet, takes part with weight 0 (standby): it relays, it keeps the results for its worker, and no round completes
without its daemon. Which round is next is in `next_round.py`, what the site gives to it in `contribution.py`, what its
worker is told in `delivery.py`.
"""

from __future__ import annotations

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import DropResults, Effect, FetchResult, StopRound, VoidResults
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.contribution import NOTHING, OwnContribution
from chaos_protocols.rounds.delivery import ResultDelivery
from chaos_protocols.rounds.next_round import NextRound, first_round_of, next_round
from chaos_protocols.rounds.notices import NothingToClipAround, PartGivenUp, RoundCompleted, RoundNotice, StateLost
from chaos_protocols.rounds.phases import RoundPhase
from chaos_protocols.rounds.state_check import StateCheck
from chaos_protocols.wire.bounds import UNBOUNDED
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.worker import StateDigests


class RoundMachine:
    """See the module. Its effects are to be carried out in their order; its notices are for its owner."""

    def __init__(self, site: SiteId, roster: Roster, keys: KeyRing) -> None:
        self.site = site
        self.roster = roster
        self.completed_round = 0
        """The last round whose result is here, or that this site is not waited for in."""
        self.known_round = 0
        """The newest that this site has seen completed."""
        self.digest = ""
        """Of the result of `completed_round`; empty where that was not here."""
        self.running: Tag | None = None
        """The round that is open."""
        self.empty_round: Tag | None = None
        """The last one to which every site gave weight 0."""
        self.takes_part = False
        """False for a site that was removed: it gives to no round, not even to one that it knows."""
        self.fetching: int | None = None
        """The resolved round whose result is being fetched."""
        self.notices: list[RoundNotice] = []
        self.own = OwnContribution()
        self.delivery = ResultDelivery()
        self.check = StateCheck(site, keys)

    # -- what others ask

    @property
    def phase(self) -> RoundPhase:
        if self.delivery.updating:
            return RoundPhase.UPDATE
        if not self.delivery.active:
            return RoundPhase.STANDBY
        return RoundPhase.REDUCE if self.own.given and self.running is not None else RoundPhase.COMPUTE

    @property
    def active(self) -> bool:
        """The worker has the state and contributes."""
        return self.delivery.active

    @property
    def worker_round(self) -> int | None:
        """The last round that the worker has applied; None: it has not the state (yet)."""
        return self.delivery.worker_round

    @property
    def caught_up(self) -> bool:
        """The worker has applied every result that is here."""
        return self.delivery.caught_up(self.completed_round)

    def take_notices(self) -> list[RoundNotice]:
        """What the owner has to hear of, in order; nothing is left."""
        notices, self.notices = self.notices, []
        return notices

    # -- the roster

    def learn(self, roster: Roster) -> None:
        """The newest roster; what follows from it comes with `install`, or with where the rounds begin."""
        self.roster = roster

    def install(self, roster: Roster) -> list[Effect]:
        """A newer committed roster."""
        self.roster = roster
        self.takes_part = True
        effects: list[Effect] = []
        if roster.resolving:
            self.fetching = None
            effects += self._stop()
        return effects + self.advance()

    def resolved(self, round_number: int) -> list[Effect]:
        """The round that stands was agreed. Whoever counted further without having held a result begins there; a worker
        with the state after a later one, from whoever did that and is gone, needs another (spec 10.9)."""
        if self.completed_round > round_number:
            self.fall_behind(
                f"it counted from round {self.completed_round}, but round {round_number} is the last that stands"
            )
            return self.begin_at(round_number)
        self.known_round = min(self.known_round, round_number)
        if self.worker_round is not None and self.worker_round > round_number:
            self.fall_behind(
                f"its state is that of round {self.worker_round}, but round {round_number} is the last that stands"
            )
        return []

    def begin_at(self, done: int) -> list[Effect]:
        """Take part from round `done + 1` on; the state of `done` is being fetched: collect the results after it."""
        effects = [*self._stop(), *self._discard_after(done)]
        self.takes_part = True
        self.completed_round, self.digest = done, ""
        self.known_round = min(self.known_round, done)
        self.own.begin()
        return effects + self.collect_from(done)

    def _discard_after(self, done: int) -> list[Effect]:
        """The run goes on after `done`, whatever this site counted, `done` itself maybe under a tag that is void: later
        results are of a history that was given up, and none before `done + 1` is kept for a checkpoint."""
        self.delivery.forget_history()
        self.check.said(done, None)
        self.fetching = None
        return [VoidResults(after_round=done)]

    def collect_from(self, snapshot_round: int) -> list[Effect]:
        """A transfer of the state of `snapshot_round` begins: keep what comes after it for the worker."""
        self.delivery.collect(snapshot_round)
        self.own.worker_stops()
        return self._deliver_next()

    def leave_run(self) -> list[Effect]:
        """This site is out of the roster: nothing is open, nothing collected."""
        effects = self._stop()
        self.takes_part = False
        self.delivery.stop_collecting()
        self.own.withdraw()
        self.own.fence(None)
        self.fetching = None
        self.known_round = 0
        self.delivery.forget_history()
        self._forget_worker()
        return effects

    def _forget_worker(self) -> None:
        self.delivery.forget_worker()
        self.own.worker_stops()

    # -- a planned change

    def fence(self, round_number: int) -> None:
        """This site gives nothing from that round on, until it is known whether the change is agreed."""
        self.own.fence(round_number)

    def lift_fence(self) -> list[Effect]:
        """It is known."""
        self.own.fence(None)
        return self.advance()

    # -- the worker

    def worker_came(self, contribution_bytes: int, damaged_round: int = 0) -> None:
        """A worker said hello; of this size is a result. `damaged_round`: of what it has a part of the state."""
        self.delivery.bound(contribution_bytes)
        self.delivery.came_damaged(damaged_round, self.completed_round)

    def begin_from_worker(self, done: int) -> list[Effect]:
        """The worker's own state counts as that of the end of `done` (founding a run)."""
        effects = [*self._stop(), *self._discard_after(done)]
        self.takes_part = True
        self.completed_round, self.known_round, self.digest = done, done, ""
        self.delivery.begin(done)
        self.own.begin()
        return effects + self.advance() + self._deliver_next()

    def worker_loaded(self, round_number: int) -> list[Effect]:
        """The worker took over the transferred state of the end of `round_number`."""
        self.delivery.loaded(round_number)
        self.check.said(round_number, None)  # what was found of one before may be of another history
        self.known_round = max(self.known_round, round_number)
        return self._deliver_next()

    def replay_after(self, round_number: int) -> bool:
        """A worker that has just come is about to load the state of `round_number` from memory; false: later results
        are not all here. Nobody waits for it: the one before was lost first."""
        return self.delivery.replay_after(round_number, self.completed_round)

    def activate(self) -> list[Effect]:
        """This site's worker has caught up and contributes from now on."""
        self.delivery.activate()
        return self._deliver_next()

    def worker_lost(self) -> list[Effect]:
        """No worker: standby. A contribution already in the arena still counts."""
        self._forget_worker()
        self.delivery.stop_collecting()
        return self.advance()

    def worker_leaves(self) -> list[Effect]:
        """The worker applies results until it is dismissed, but contributes nothing more."""
        self.delivery.deactivate()
        self.own.worker_stops()
        return self.advance()

    def needed_in(self, round_number: int) -> None:
        """That round waits for this site's worker."""
        self.own.need(round_number)

    def worker_contributed(self, round_number: int, weight: float, ready_bytes: int | None = None) -> list[Effect]:
        if round_number != self.completed_round + 1 or not self.delivery.trains():
            return []
        self.own.offer(round_number, weight, ready_bytes)
        return self.advance()

    def worker_updating(self) -> None:
        self.delivery.update_started()

    def worker_applied(self, round_number: int, digests: StateDigests | None = None) -> list[Effect]:
        self.check.said(round_number, digests)
        needed = self.delivery.applied(round_number, self.completed_round)
        return [] if needed is None else [DropResults(before_round=needed), *self._deliver_next()]

    # -- the engine

    def reduce_finished(
        self,
        tag: Tag,
        digest: str,
        weights: tuple[tuple[SiteId, float], ...],
        checks: tuple[tuple[SiteId, bytes], ...] = (),
    ) -> list[Effect]:
        if tag != self.running:
            return []  # of an older epoch: changes nothing
        self._judge(tag, dict(weights), dict(checks))
        self.running = None
        self.own.round_ended()
        return self._complete(tag, digest, weights)

    def _judge(self, tag: Tag, weights: dict[SiteId, float], checks: dict[SiteId, bytes]) -> None:
        """Are the states still the same? If this site's is not that of most, it is not trained on (spec 11.17)."""
        found = self.check.judge(self.roster, tag, weights, checks)
        if found is None:
            return
        self.notices.append(found)
        if self.site in found.outvoted and self.worker_round is not None:
            self.fall_behind(f"its state of round {found.round} is not that of most sites, first in {found.array!r}")

    def round_came_up_empty(self, tag: Tag) -> None:
        """Every site of the round gave weight 0: it has no result."""
        self.empty_round = tag

    def result_fetched(self, round_number: int, digest: str) -> list[Effect]:
        agreed = (self.roster.resolved_round, self.roster.resolved_digest)
        if agreed != (round_number, digest) or not self.fetching == round_number == self.completed_round + 1:
            return []
        self.fetching = None
        return self._complete(Tag(epoch=self.roster.epoch, round=round_number), digest, ())

    def result_missed(self, tag: Tag) -> list[Effect]:
        """The neighbour that was to send the result of the running round has dropped it: this site is too far
        behind."""
        if tag != self.running or not self.delivery.is_awaited:
            return []  # of an older epoch, or no worker is brought forward by it: changes nothing
        self.fall_behind(f"the result of round {tag.round} is not kept any more", outrun=True)
        return self.advance()

    def give_up_fetching(self) -> list[Effect]:
        """Nobody near keeps the resolved result."""
        assert self.fetching is not None
        self.fall_behind(f"the result of round {self.fetching} is not kept any more")
        self.completed_round, self.digest, self.fetching = self.fetching, "", None  # on in standby: nobody waits for it
        return self.advance()

    def _complete(self, tag: Tag, digest: str, weights: tuple[tuple[SiteId, float], ...]) -> list[Effect]:
        self.completed_round, self.digest = tag.round, digest
        self.known_round = max(self.known_round, tag.round)
        self.own.withdraw()
        self.notices.append(RoundCompleted(round=tag.round, epoch=tag.epoch, digest=digest, weights=weights))
        lost = self.delivery.add((tag.round, len(weights), sum(weight for _, weight in weights)))
        if lost:
            self.fall_behind(lost, outrun=True)
        effects = self._deliver_next()
        if self.delivery.nothing_waits:
            effects.append(DropResults(before_round=self.delivery.log.first_kept(self.completed_round)))
        return effects + self.advance()

    # -- deciding

    def advance(self) -> list[Effect]:
        """Open the next round if it can be, and contribute to it if we may."""
        roster = self.roster
        if not self.takes_part or roster.resolving or not roster.started or roster.model is None:
            return []
        if self.completed_round < roster.resolved_round:
            return self._catch_up(roster)
        effects = self._skip_what_is_over(roster)
        ahead = next_round(roster, self.site, self.completed_round)
        return effects if ahead is None else effects + self._open(ahead)

    def _skip_what_is_over(self, roster: Roster) -> list[Effect]:
        """On to the first round of this site's views, where those before it concern it no more."""
        effects: list[Effect] = []
        if self.worker_round is None:
            effects += self._skip_ahead(roster)
        if roster.views and self.completed_round + 1 < roster.views[0].first_round:
            if self.delivery.is_awaited:
                told = f"round {self.completed_round + 1} is long over: this site is too far behind"
                self.fall_behind(told, outrun=True)
            effects += self._skip_ahead(roster)
        return effects

    def _open(self, ahead: NextRound) -> list[Effect]:
        """Open the round after the completed one, unless it is open, and give to it."""
        if not ahead.enough or not (ahead.member or ahead.listener):
            return self._stop()
        effects: list[Effect] = []
        if self.running != ahead.tag:
            effects += [*self._stop(), ahead.opened()]
            self.running = ahead.tag
        if ahead.member and not self.own.given:
            effects += self._contribute(ahead)
        return effects + self._deliver_next()

    def _skip_ahead(self, roster: Roster) -> list[Effect]:
        """Promoted while its state was lost: the results up to its first round as a member concern it no more, and the
        others wait for its contribution (of weight 0) from then on."""
        first = first_round_of(roster, self.site)
        if first is None or self.completed_round >= first - 1:
            return []
        effects = self._stop()
        self.completed_round, self.digest = first - 1, ""
        return effects

    def _contribute(self, ahead: NextRound) -> list[Effect]:
        tag, bounds = ahead.tag, ahead.bounds
        part = self.own.give(tag.round, active=self.active, pieces=bounds == UNBOUNDED)  # they look at the whole
        if part is None:
            return []
        if ahead.centred and part.has_bytes and not self.digest:
            self.notices.append(NothingToClipAround(round=tag.round))
            part = NOTHING
        if part.given_up:
            self.notices.append(PartGivenUp(round=tag.round))
        check = self.check.part(self.roster, tag, idle=not self.active and self._to_digest() is not None)
        return [part.given(tag, bounds, check)]

    def _catch_up(self, roster: Roster) -> list[Effect]:
        resolved, digest = roster.resolved_round, roster.resolved_digest
        if self.fetching == resolved:
            return []
        effects = self._stop()
        if self.completed_round != resolved - 1 or not digest:
            self.fall_behind(f"round {resolved} was resolved while this site held only {self.completed_round}")
            self.completed_round, self.digest = resolved, ""  # on in standby: no round waits for it
            return effects + self.advance()
        self.fetching = resolved
        return [*effects, FetchResult(round=resolved, digest=digest, bounds=roster.bounds_of(resolved))]

    def _deliver_next(self) -> list[Effect]:
        """Give the worker the next result, or let it train when it has caught up and this site is a member."""
        digest = self._to_digest() if self.delivery.may_deliver else None
        effects, lost = self.delivery.next(self.completed_round, digest)
        if lost:
            self.fall_behind(lost)
        elif not effects and self.delivery.may_train(self.completed_round) and self._is_member_next():
            effects = self.delivery.train(self.completed_round + 1)
        return effects

    def _to_digest(self) -> tuple[int, int] | None:
        """What the worker is to say of its state of the end of the newest round."""
        view, model = self.roster.view_of(self.completed_round + 1), self.roster.model
        if view is None or model is None:
            return None
        return self.check.due(self.completed_round, state_bytes=model.state_bytes, sites=len(view.members))

    def _is_member_next(self) -> bool:
        ahead = next_round(self.roster, self.site, self.completed_round)
        return ahead is not None and ahead.member

    def _stop(self) -> list[Effect]:
        tag, self.running = self.running, None
        if self.own.round_ended():
            self.delivery.ask_again()
        return [] if tag is None else [StopRound(tag=tag)]

    def fall_behind(self, reason: str, *, outrun: bool = False) -> None:
        """This site's worker is not waited for any more: its state must be replaced."""
        self.delivery.stop_collecting()
        self._forget_worker()
        self.notices.append(StateLost(reason=reason, outrun=outrun))
