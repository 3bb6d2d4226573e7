"""The parts that one site consists of, put together, and what is asked of them: nothing here changes anything but the
making itself. What they do together is the matter of `site.py`."""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft import RaftMachine
from chaos_protocols.agreement.raft.messages import Configuration, LogEntry
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.agreement.roster import Roster, SiteRecord
from chaos_protocols.agreement.views import Planner
from chaos_protocols.links.keys import LinkKeys
from chaos_protocols.links.liveness import LinkTable
from chaos_protocols.links.network import Network
from chaos_protocols.links.orders import LinkOrders
from chaos_protocols.membership.facts import SiteFacts, empty_roster, last_known_roster
from chaos_protocols.membership.own import Membership
from chaos_protocols.membership.participation import Participation
from chaos_protocols.membership.starting_over import StartingOver
from chaos_protocols.names import SiteId
from chaos_protocols.outbox import Outbox
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.settings import SiteSettings
from chaos_protocols.state.machine import WorkerState
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.control import RoundStatusReply, SiteStatus
from chaos_protocols.wire.keys import KeyNews
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.versions import Versions


def _outside(facts: SiteFacts) -> Roster:
    """What a site knows that has no roster: nothing, or which run it is to join, as its operator has said."""
    run_id = facts.origin.statement.run_id if facts.origin is not None else ""
    return msgspec.structs.replace(empty_roster(facts.run), run_id=run_id)


class SiteParts:
    """See the module. To the site's scheduler these are its `scheduler.facts.Facts`, which say what each means."""

    def __init__(
        self,
        facts: SiteFacts,
        *,
        settings: SiteSettings,
        planner: Planner,
        raft: RaftMachine,
        roster: Roster | None,
        entries: tuple[LogEntry, ...],
        keys: KeyRing,
        now_s: float,
    ) -> None:
        roster = roster if roster is not None else _outside(facts)
        self.facts, self.settings = facts, settings
        self.planner = planner
        self.outbox = Outbox(facts, settings, now_s=now_s)
        last_known = last_known_roster(roster, entries, keys.signer)
        reached = facts.reached
        self.replica = RosterReplica(
            facts.site, raft, roster, last_known, keys=keys, rules=reached.rules, agreed=reached.applied, now_s=now_s
        )
        self.network = Network(self.outbox, self.replica)
        self.link_keys = LinkKeys(self.outbox, self.replica, self.network)
        self.rounds = RoundMachine(facts.site, roster, keys)
        parts = self.participation = Participation(self.outbox, self.replica, self.network, self.rounds)
        self.network.router.overlay.believe(parts.client.is_of_run)
        self.orders = LinkOrders(self.outbox, self.replica, self.network, parts.client, parts.links)
        self.starting_over = StartingOver(self.outbox, self.replica, self.network, self.rounds, parts, planner)

    @property
    def site(self) -> SiteId:
        return self.facts.site

    @property
    def incarnation(self) -> int:
        return self.facts.incarnation

    @property
    def now_s(self) -> float:
        return self.outbox.now_s

    @property
    def awake_s(self) -> float:
        return self.outbox.awake_s

    @property
    def raft(self) -> RaftMachine:
        return self.replica.raft

    @property
    def roster(self) -> Roster:
        return self.replica.roster

    @property
    def keys(self) -> KeyRing:
        return self.replica.keys

    @property
    def configuration(self) -> Configuration:
        return self.replica.configuration

    @property
    def term(self) -> int:
        return self.replica.raft.term

    @property
    def links(self) -> LinkTable:
        return self.network.links

    @property
    def overlay_version(self) -> int:
        return self.network.overlay_version

    @property
    def restarts_seen(self) -> int:
        return self.network.restarts_seen

    @property
    def membership(self) -> Membership:
        return self.participation.membership

    @property
    def state(self) -> WorkerState:
        return self.participation.state

    @property
    def empty_tag(self) -> Tag | None:
        return self.rounds.empty_round

    @property
    def done_round(self) -> int:
        return self.rounds.completed_round

    @property
    def contributed_round(self) -> int:
        return self.rounds.own.given_round

    @property
    def leaving(self) -> bool:
        return self.membership.leaving

    @property
    def active(self) -> bool:
        """The worker here has the state and trains, and this site is in the roster."""
        return self.rounds.active and self.membership.in_roster

    def can_propose(self) -> bool:
        return self.replica.can_propose()

    def roster_is_newest(self) -> bool:
        return self.replica.is_newest()

    def reachable(self, *, sound: bool = False) -> frozenset[SiteId]:
        return self.network.reachable(sound=sound)

    def has_answered(self, site: SiteId) -> bool:
        return self.raft.match_index(site) > 0

    def link_is_up(self, one: SiteId, other: SiteId) -> bool:
        return self.network.link_is_up(one, other)

    def has_said_up(self, site: SiteId, outsider: SiteId) -> bool:
        return self.network.has_said_up(site, outsider)

    def restarted_as(self, site: SiteId) -> int | None:
        return self.network.restarted_as(site)

    def is_trusted(self, source: SiteId) -> bool:
        return self.participation.client.is_trusted(source)

    def may_hold_results(self, site: SiteId) -> bool:
        """Whether it is asked for a round's result (spec 10.9): it is of the run, or was until lately."""
        return self.is_trusted(site) or self.roster.gone(site) is not None

    def round_status(self) -> RoundStatusReply:
        return self.participation.reporting.round_status()

    def own_report(self) -> SiteStatus:
        return self.participation.report()

    @property
    def bounds_wanted(self) -> Bounds | None:
        return self.participation.client.bounds_wanted

    def key_news(self) -> KeyNews | None:
        return self.participation.keys.news()

    def scheduler_site(self) -> SiteId | None:
        return self.participation.client.scheduler

    def versions_of(self, record: SiteRecord, incarnation: int) -> Versions:
        return self.network.versions.of_start(record.site, incarnation, record.versions)
