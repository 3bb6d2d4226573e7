"""Whose word counts here, whom this site takes for the scheduler, and when it asks again what it has not got yet.

Asking again, at every beat if need be, is what makes a lost message, or a lost scheduler, harmless. What is asked for
is said by `joining.py`, `leaving.py` and the state's parts. Driven by `Participation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos_protocols.agreement.raft.config import majority
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.events import Event, PeersChanged, Started
from chaos_protocols.links.network import Network
from chaos_protocols.membership.own import Membership
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.control import Heartbeat, Message
from chaos_protocols.wire.site_status import BANS_MAX, SiteStatus
from chaos_protocols.wishes import BansChanged, BoundsWanted

EPOCHS_AHEAD_MAX = 1 << 20
"""A roster changes a few times an hour. Who names an epoch further ahead than this has made it up."""


class SchedulerClient:
    """See the module."""

    def __init__(
        self,
        outbox: Outbox,
        replica: RosterReplica,
        network: Network,
        membership: Membership,
        report: Callable[[], SiteStatus],
    ) -> None:
        self._report = report
        self._outbox = outbox
        self._replica = replica
        self._network = network
        self._membership = membership
        self._sponsors: frozenset[SiteId] | None = None
        """Whom it believes until it has been in a run; None: whoever is linked with it."""
        self.bans: tuple[SiteId, ...] = ()
        """Whom this site's operator wants out of the run."""
        self._bounds: tuple[Bounds, tuple[Bounds, int]] | None = None
        """What he wants a site to be allowed to give, and what held when he said so."""
        self._hint: SiteId | None = None
        """Whom a neighbour named, whose roster was the newest."""
        self._hint_epoch = -1
        self._hint_by: SiteId | None = None
        self._last_words: dict[SiteId, SiteId] = {}
        """Whom each neighbour of the run named last, whatever roster it has. Who is of it no more is forgotten when
        another one speaks for the first time."""
        self._asked_s = float("-inf")
        self._apart_s: float | None = None
        """Since when no way has led to the scheduler; None: one does, or none is known."""

    @property
    def takes(self) -> dict[type[Event], Callable[[Any], None]]:
        """Which of its methods takes which event: what the operator wants."""
        return {BansChanged: self.bans_changed, BoundsWanted: self.want_bounds}

    @property
    def scheduler(self) -> SiteId | None:
        """Whoever leads, as far as is known here."""
        replica = self._replica
        if replica.leads:
            return replica.site
        if replica.raft.leader is not None and self._membership.in_roster:
            return replica.raft.leader
        return self._hint if self._hint != replica.site else None  # whoever says so does not know yet that it is over

    @property
    def is_lost(self) -> bool:
        """None is known for a while, it is known to be gone, or silent: a site takes its leader for one until the
        time has passed that it has drawn, two election timeouts at most. Or no way has led to it for a while: its words
        may come late then, or over sites outside the run, and nothing can be agreed. Or this one leads, and hears no
        majority: one of two voters stays the leader all the same (spec 5.10)."""
        outbox, replica = self._outbox, self._replica
        if replica.leads:
            since_s: float | None = replica.raft.majority_heard_s(outbox.now_s) + outbox.settings.election_timeout_s
        else:
            since_s = replica.raft.leader_lost_s
        if since_s is None and replica.raft.leader is None:
            since_s = replica.leader_seen_s
        elif since_s is None:
            since_s = replica.raft.leader_due_s
        since = [one for one in (since_s, self._apart_s) if one is not None]
        return bool(since) and outbox.now_s - min(since) > outbox.settings.failure_timeout_s

    def look(self) -> None:
        """At every beat: since when it is apart. That does not end where the scheduler gives its role up for it."""
        if self.is_apart:
            self._apart_s = self._outbox.now_s if self._apart_s is None else self._apart_s
        elif self._replica.raft.leader is not None:
            self._apart_s = None

    @property
    def is_apart(self) -> bool:
        """No way over sites of the run leads to the leader or, where this site leads, to a majority of the voters.
        Where outsiders hand on the words between them, the role lives on, and nothing can be agreed."""
        replica, reachable = self._replica, self._network.reachable()
        if not replica.leads:
            return replica.raft.leader is not None and replica.raft.leader not in reachable
        voters = replica.configuration.voters
        return len(reachable.intersection(voters)) < majority(len(voters))

    def has_resigned(self, site: SiteId, beat: Heartbeat) -> bool:
        """The leader says itself that it does not lead: whoever does names itself in every beat."""
        return site == self._replica.raft.leader and beat.scheduler != site

    def tell(self, message: Message) -> bool:
        """To the scheduler; False when nobody is known."""
        target = self.scheduler
        if target is None:
            return False
        self._network.tell(target, message)
        return True

    def sponsored_by(self, event: Started | PeersChanged) -> None:
        """Whom this site believes until it has been in a run: the peers of its configuration. One that has none
        believes whoever is linked with it, unless everybody may be."""
        peers = frozenset(site for site, _ in event.peers)
        self._sponsors = frozenset(event.sponsors) if event.sponsors is not None else peers or None

    def bans_changed(self, event: BansChanged) -> None:
        """The operator has said so, or takes it back: at once, and in each report from then on."""
        changed, self.bans = event.sites != self.bans, event.sites[:BANS_MAX]
        if changed and self._membership.in_roster:  # before a link is closed for it: who has no link counts as failed
            self.tell(self._report())

    def want_bounds(self, event: BoundsWanted) -> None:
        """The operator wants the run to have these, or takes it back."""
        self._bounds = None if event.bounds is None else (event.bounds, self._held)
        if self._membership.in_roster:
            self.tell(self._report())

    @property
    def bounds_wanted(self) -> Bounds | None:
        """What he still wants: once the run has got other bounds, it is no longer asked for. From which round on they
        hold says only so much, for who goes on from a state forgets it."""
        if self._bounds is None:
            return None
        wanted, (held, begins) = self._bounds
        roster = self._replica.roster
        return wanted if roster.bounds == held and roster.bounds_from in (begins, 0) else None

    @property
    def _held(self) -> tuple[Bounds, int]:
        return self._replica.roster.bounds, self._replica.roster.bounds_from

    def named(self, site: SiteId, beat: Heartbeat) -> bool:
        """A neighbour says who schedules. Whether that is news. Only who is of the run may name somebody, and a word
        of a newer roster counts for as long as there is a link to who said it, and that one is of the run still."""
        if beat.scheduler is None or not self.is_of_run(site) or self.is_made_up(beat):
            return False
        if site not in self._last_words:
            self._last_words = {one: said for one, said in self._last_words.items() if self.is_of_run(one)}
        self._last_words[site] = beat.scheduler
        other = self._hint_by if self._hint_by != site else None  # its own word of before is over
        holds = other is not None and self._network.links.is_up(other) and self.is_of_run(other)
        if beat.epoch < self._hint_epoch and holds:
            return False
        news = self._hint != beat.scheduler
        self._hint, self._hint_epoch, self._hint_by = beat.scheduler, beat.epoch, site
        return news

    def forget_named(self) -> None:
        """What was named so far may be of another run: the next word counts."""
        self._hint, self._hint_epoch, self._hint_by = None, -1, None
        self._last_words.clear()

    def is_made_up(self, beat: Heartbeat) -> bool:
        """No roster has come so far since this site's own."""
        return beat.epoch > self._replica.roster.epoch + EPOCHS_AHEAD_MAX

    def may_be_out(self, told_by: SiteId) -> bool:
        """Whether this site may have been removed without knowing: who hears its scheduler has not, unless that one
        says so."""
        raft, outbox = self._replica.raft, self._outbox
        silent_s = raft.leader_silence_s(outbox.now_s)
        return raft.leader == told_by or silent_s > outbox.settings.failure_timeout_s

    def is_of_run(self, site: SiteId) -> bool:
        """Whether it is one of those that this site knows the run to consist of: its roster's and the agreement's, as
        its journal has them, in whatever life of its daemon. A site that was never in a run has none, and takes its
        peers for it; one that has no peers, whoever is linked with it, which its operator has let in by name. Where
        everybody may connect, only those that he has named."""
        replica = self._replica
        if site == replica.site or replica.has(site):
            return True
        return not replica.was_in_run and (self._sponsors is None or site in self._sponsors)

    def is_trusted(self, source: SiteId) -> bool:
        """Whether `source` may say what only sites of the run say (spec 4.12): one of them, or whom this site takes for
        the scheduler. That is whom one of them names to a site that follows none, and stays so once this site follows
        him, though the roster that he is in has yet to come from him."""
        return self.is_of_run(source) or source == self.scheduler

    def may_lead(self, source: SiteId) -> bool:
        """Whether `source`, a site of the run, may be the leader: it has a vote, as far as is known here, or one that
        has names it as the scheduler: one that was left behind itself, with an older roster, too. A change of the
        voters that is not known to be committed takes no vote yet: who votes without it may have been elected. A
        learner, and whoever was let in just now, would lead by saying so otherwise. To a newcomer the votes that it
        knows of may be old ones."""
        replica, voters = self._replica, self._replica.raft.voters_in_force
        if not replica.was_in_run or source in voters:
            return True
        return any(self._last_words.get(voter) == source for voter in voters)

    def may_answer(self, source: SiteId) -> bool:
        """Whether `source` may answer what only the scheduler is asked: it is the one, as far as this site knows; of a
        newcomer that knows of none yet, anybody whose word counts. A refusal for good sends the worker away."""
        scheduler = self.scheduler
        return source == scheduler or (scheduler is None and not self._membership.in_roster)

    # -- asking again

    @property
    def is_due(self) -> bool:
        """It is time to ask for what is still wanted."""
        return self._outbox.now_s >= self._asked_s + self._outbox.settings.retry_s

    def asked(self) -> None:
        """Just now."""
        self._asked_s = self._outbox.now_s

    def ask_soon(self) -> None:
        """Something has changed: at the next beat at the latest."""
        self._asked_s = float("-inf")
