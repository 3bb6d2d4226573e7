"""One site's machine in a chosen standing, with a clock of its own: what the unit tests and the fuzzer make rules of.

The machine is the real one, started from a journal's content (snapshot, log); neighbours are words in the test's mouth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from chaos_protocols import effects, events
from chaos_protocols.agreement.commands import encode_roster
from chaos_protocols.agreement.key_ring import KeyRing, NoKeys
from chaos_protocols.agreement.raft import HardState, RaftMachine, RaftSettings
from chaos_protocols.agreement.raft.core import Keys
from chaos_protocols.agreement.raft.messages import Configuration, LogEntry, Snapshot
from chaos_protocols.agreement.roster import LinkRecord, ModelFacts, Roster, SiteRecord
from chaos_protocols.agreement.views import make_view
from chaos_protocols.links.naming import RunNaming
from chaos_protocols.links.router import Router
from chaos_protocols.links.site_versions import SiteVersions
from chaos_protocols.membership.facts import SiteFacts, empty_roster
from chaos_protocols.names import SiteId, link_key
from chaos_protocols.rounds.machine import RoundMachine
from chaos_protocols.settings import SiteSettings
from chaos_protocols.site import SiteMachine
from chaos_protocols.wire import control as messages
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import Origin
from chaos_protocols.wire.versions import NEWEST, SPOKEN
from chaosd.plan_adapter import DaemonPlanner

A, B, C, D, E = (SiteId(letter * 32) for letter in "abcde")
MODEL = ModelFacts(spec_digest="5e" * 32, state_bytes=1 << 20, shard_bytes=4096)
SETTINGS = SiteSettings()
PLANNER = DaemonPlanner(averaging="tree")
NOTHING_NOTED = Reached()
EPOCH = 7
"""Log index of the snapshot that a site starts from."""

Kind = TypeVar("Kind")


def record(site: SiteId, *, state: str = "member", incarnation: int = 1, **changes: Any) -> SiteRecord:
    facts: dict[str, Any] = {"name": f"site {site[:1]}", "address": f"{site[:1]}.example:7400", "public_key": b""}
    return SiteRecord(site=site, state=state, incarnation=incarnation, **{**facts, **changes})


def link(one: SiteId, other: SiteId, *, rate_bytes_per_s: float = 1e7, rtt_s: float = 0.01) -> LinkRecord:
    first, second = link_key(one, other)
    return LinkRecord(one=first, other=second, rate_bytes_per_s=rate_bytes_per_s, rtt_s=rtt_s)


def mesh(sites: Iterable[SiteId]) -> tuple[LinkRecord, ...]:
    """Everybody with everybody."""
    known = sorted(sites)
    return tuple(link(one, other) for number, one in enumerate(known) for other in known[number + 1 :])


def roster_of(
    *members: SiteId,
    learners: tuple[SiteId, ...] = (),
    links: tuple[LinkRecord, ...] | None = None,
    first_round: int = 1,
    **changes: Any,
) -> Roster:
    """A run that has begun: one view over all members, every learner listening."""
    everybody = (*members, *learners)
    links = mesh(everybody) if links is None else links
    records = [record(site) for site in members] + [record(site, state="learner") for site in learners]
    view = make_view(PLANNER, first_round=first_round, members=members, listeners=learners, links=links)
    base = msgspec.structs.replace(
        empty_roster("hearts"),
        epoch=EPOCH,
        started=True,
        model=MODEL,
        sites=tuple(sorted(records, key=lambda one: one.site)),
        links=links,
        views=(msgspec.structs.replace(view, epoch=EPOCH),),
    )
    return msgspec.structs.replace(base, **changes)


def heartbeat(
    *, round: int = 0, epoch: int = EPOCH, scheduler: SiteId | None = None, knows_you: bool = True
) -> messages.Heartbeat:
    """The first one over a link."""
    return messages.Heartbeat(
        sequence=1, echo_sequence=0, echo_delay_s=0.0, round=round, phase="compute", epoch=epoch,
        scheduler=scheduler, knows_you=knows_you,
    )  # fmt: skip


def router_of(site: SiteId) -> Router:
    """One that has heard of no version, and of no run."""
    return Router(site, b"", 1, RunNaming(SiteVersions(site, 1, SPOKEN)))


def round_machine(site: SiteId, roster: Roster) -> RoundMachine:
    """Of a run that signs nothing."""
    return RoundMachine(site, roster, KeyRing(NoKeys()))


def moving(site: SiteId) -> events.LinkProgressed:
    """Bytes of its control connection move, both ways: it is not silent."""
    control = events.ConnectionProgress(stream=None, received=True, acknowledged=True)
    return events.LinkProgressed(site=site, connections=(control,))


class Bench:
    """`machine` and its clock. What it asked for since the last look is in `out`."""

    def __init__(
        self,
        site: SiteId,
        roster: Roster | None = None,
        *,
        voters: tuple[SiteId, ...] | None = None,
        incarnation: int = 1,
        entries: tuple[LogEntry, ...] = (),
        seed: int = 1,
        peers: tuple[SiteId, ...] = (),
        settings: SiteSettings = SETTINGS,
        reached: Reached = NOTHING_NOTED,
        keys: Keys | None = None,
        ring: KeyRing | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Without a roster: a site that was never admitted. `voters`: all members where left out; the sole voter leads
        as soon as it reaches the others. `reached`: what its journal says."""
        self.site, self.now_s = site, 100.0
        self.sequence = 0
        snapshot, term = None, 0
        if roster is not None:
            chosen = roster.member_ids() if voters is None else voters
            learners = tuple(one for one in roster.site_ids() if one not in chosen)
            configuration = Configuration(voters=chosen, learners=learners)
            snapshot = Snapshot(index=EPOCH, term=1, configuration=configuration, state=encode_roster(roster))
            term = 1
        rng = random.Random(seed)
        self.machine = SiteMachine(
            SiteFacts(
                site=site,
                name=f"site {site[:1]}",
                address=f"{site[:1]}.example:7400",
                public_key=ring.public_key if ring is not None else b"",
                incarnation=incarnation,
                run="hearts",
                reached=reached,
                origin=origin,
            ),
            settings=settings,
            planner=PLANNER,
            raft=RaftMachine(
                site,
                settings=RaftSettings(
                    election_timeout_s=SETTINGS.election_timeout_s, heartbeat_interval_s=SETTINGS.raft_heartbeat_s
                ),
                rng=rng,
                hard_state=HardState(term, None),
                snapshot=snapshot,
                entries=entries,
                now_s=self.now_s,
                keys=ring or keys,
            ),
            keys=ring,
            roster=roster,
            entries=entries,
            now_s=self.now_s,
        )
        self.out: list[Any] = []
        self.handle(events.Started(peers=tuple((peer, f"{peer[:1]}.example:7400") for peer in peers)))

    def handle(self, event: events.Event, *, after_s: float = 0.0) -> list[Any]:
        """One event, a while later; what the machine asks for then."""
        self.now_s += after_s
        found = self.machine.handle(event, now_s=self.now_s)
        self.out += found
        return found

    def wait(self, seconds: float, *, step_s: float = 0.05) -> list[Any]:
        """Let time pass, with the timer firing on the way."""
        found: list[Any] = []
        for _ in range(round(seconds / step_s)):
            found += self.handle(events.TimerFired(), after_s=step_s)
        return found

    def up(self, *sites: SiteId, incarnation: int = 1) -> Bench:
        """Links to these come up."""
        for site in sites:
            self.handle(events.LinkUp(site=site, incarnation=incarnation, address=f"{site[:1]}.example:7400"))
        return self

    def hear(
        self, source: SiteId, message: messages.Message, *, by: SiteId | None = None, incarnation: int = 1
    ) -> list[Any]:
        """A message of `source` arrives, over the link to `by` where it was relayed."""
        return self.handle(
            events.EnvelopeReceived(neighbour=by or source, envelope=self.envelope(source, message, incarnation))
        )

    def envelope(
        self, source: SiteId, message: messages.Message, incarnation: int = 1, destination: SiteId | None = None
    ) -> messages.Envelope:
        """As `source` would send it, each with a number of its own."""
        self.sequence += 1
        flooded = messages.EVERYBODY if isinstance(message, messages.LinkStateAdvertisement) else self.site
        return messages.Envelope(
            version=NEWEST,
            source=source,
            destination=destination or flooded,
            incarnation=incarnation,
            sequence=self.sequence,
            epoch=self.machine.roster.epoch,
            event_id="",
            hops=0,
            public_key=b"",
            signature=b"",
            message=message,
        )

    def pretend(self, roster: Roster) -> None:
        """This is the committed roster; its site has not acted on it yet."""
        self.machine.replica.install(roster)
        self.machine.membership.follow(roster)

    def taken(self) -> list[Any]:
        """What was asked for since the last look."""
        found, self.out = self.out, []
        return found


def sent(out: list[Any], kind: type[Kind]) -> list[tuple[SiteId, Kind]]:
    """Messages of this kind in a list of effects, each with its destination."""
    return [
        (one.envelope.destination, one.envelope.message)
        for one in out
        if isinstance(one, effects.SendEnvelope) and isinstance(one.envelope.message, kind)
    ]


def records(out: list[Any], kind: str = "") -> list[effects.Record]:
    """What was written to the event history."""
    return [one for one in out if isinstance(one, effects.Record) and kind in ("", one.kind)]


def leader_of(*others: SiteId, **changes: Any) -> Bench:
    """Site A leads a run of A and `others`, alone with a vote, its links up; its worker trains."""
    roster = changes.pop("roster", None) or roster_of(A, *others, **changes)
    bench = Bench(A, roster, voters=(A,))
    bench.up(*[one for one in roster.site_ids() if one != A])
    bench.wait(0.1)
    return bench
