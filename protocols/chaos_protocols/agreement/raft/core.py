"""What the parts of the machine share: the state of one site, its timers, and the effects of the call in progress.

`election.py`, `replication.py` and `follower.py` are functions on a `Core`, whose fields its own methods change alone;
`machine.py` drives them.
Everything that must survive a crash is gathered during a call and leaves as one `Persist` ahead of all other effects,
so no answer can outrun it (thesis 3.8).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from chaos_protocols.agreement.raft.config import RaftSettings, majority
from chaos_protocols.agreement.raft.effects import (
    ROLE_CHANGES,
    Commit,
    Effect,
    HardState,
    Persist,
    RestoreSnapshot,
    Role,
    RoleChanged,
    Send,
)
from chaos_protocols.agreement.raft.log import Log
from chaos_protocols.agreement.raft.messages import LogEntry, RaftMessage, Snapshot, TimeoutNow, Vote
from chaos_protocols.agreement.raft.progress import Progress
from chaos_protocols.changes import checked_change
from chaos_protocols.names import SiteId

NEVER_S = float("-inf")
ENDLESS_S = float("inf")


class Keys(Protocol):
    """This site's key, and what is known of others': given to the agreement by whoever makes it, as it does no
    cryptography itself."""

    @property
    def public_key(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes: ...
    def verify(self, site: SiteId, public_key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether `public_key` is the site's, and has signed these bytes. False on malformed input."""
        ...

    def counts(self, site: SiteId, public_key: bytes) -> bool:
        """Whether `public_key` is the site's."""
        ...


@dataclass(slots=True, kw_only=True)
class Core:
    """`leader_contact_s`: when a valid message of `leader` came. `leader_lost_s`: since when it is known to be
    gone, None if it is not. `agreed_before`: up to where the log was committed when this site came to hear its
    leader. `heard`: voters that answered in the current campaign; `votes`: those of them that said yes.

    What leaders show (`proof.py`): `proof_needed`: nobody is believed without; `vouched`: who sends the message of this
    call may lead, as those who vote say; `noted_agreed`: up to this entry the log was agreed on, as a former life of
    this site has noted; `ballots`: votes of this term for this
    site; `proven`: term and leader that were shown; `asked`: of whom, and when; `in_vain`: when somebody's proof was
    none."""

    site: SiteId
    settings: RaftSettings
    rng: random.Random
    term: int
    vote: SiteId | None
    log: Log
    commit_index: int
    keys: Keys | None = None
    run_id: str = ""
    proof_needed: bool = False
    vouched: bool = True
    noted_agreed: int = 0
    ballots: dict[SiteId, Vote] = field(default_factory=dict)
    gathered_s: float = NEVER_S
    proven: tuple[int, SiteId] | None = None
    asked: tuple[int, SiteId, float] = (0, SiteId(""), NEVER_S)
    in_vain: dict[tuple[SiteId, bool], float] = field(default_factory=dict)
    voters: tuple[SiteId, ...] = ()
    role: Role = Role.FOLLOWER
    leader: SiteId | None = None
    leader_contact_s: float = NEVER_S
    leader_lost_s: float | None = None
    agreed_before: int = 0
    election_at_s: float = ENDLESS_S
    campaign_started_s: float = NEVER_S
    heard: set[SiteId] = field(default_factory=set)
    votes: set[SiteId] = field(default_factory=set)
    progress: dict[SiteId, Progress] = field(default_factory=dict)
    heartbeat_at_s: float = NEVER_S
    transfer_target: SiteId | None = None
    transfer_told: bool = False
    transfer_until_s: float = NEVER_S
    violation: str | None = None
    _effects: list[Effect] = field(default_factory=list)
    _hard_state_changed: bool = False
    _truncate_from: int | None = None
    _appended: tuple[LogEntry, ...] = ()
    _snapshot: Snapshot | None = None

    def __post_init__(self) -> None:
        self.configuration_changed()

    # --- effects of the call in progress

    def take_effects(self) -> list[Effect]:
        """Ends the call: what it asks for, the `Persist` first."""
        effects = self._effects
        self._effects = []
        if self._hard_state_changed or self._appended or self._truncate_from is not None or self._snapshot is not None:
            persist = Persist(
                hard_state=HardState(self.term, self.vote) if self._hard_state_changed else None,
                truncate_from=self._truncate_from,
                entries=self._appended,
                snapshot=self._snapshot,
            )
            effects.insert(0, persist)
            self._hard_state_changed, self._truncate_from, self._appended, self._snapshot = False, None, (), None
        return effects

    def begin_receiving(self, *, vouched: bool) -> None:
        """Only what the message to come does is told by `violation`."""
        self.violation, self.vouched = None, vouched

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, destination: SiteId, message: RaftMessage) -> None:
        self._effects.append(Send(destination=destination, message=message))

    # --- what must survive a crash

    def set_term(self, term: int, vote: SiteId | None) -> None:
        if term != self.term:
            self.leader_lost_s = None
            self.ballots.clear()
        self.term, self.vote, self._hard_state_changed = term, vote, True

    def append(self, entries: tuple[LogEntry, ...]) -> None:
        self.log.append(entries)
        self._appended += entries
        if self.log.configuration_index >= entries[0].index:
            self.configuration_changed()

    def truncate(self, index: int) -> None:
        """Precedes any `append` of the same call."""
        self.log.truncate(index)
        self._truncate_from = index
        self.configuration_changed()

    def replace_prefix(self, snapshot: Snapshot) -> None:
        if not self.log.replace_prefix(snapshot):
            self._truncate_from = snapshot.index + 1
        self._snapshot = snapshot
        self.configuration_changed()

    def restore(self, snapshot: Snapshot) -> None:
        """The leader's snapshot stands for all that it contains; it goes beyond what is known to be committed."""
        self.replace_prefix(snapshot)
        self.commit_index = snapshot.index
        self.emit(RestoreSnapshot(snapshot=snapshot))

    def configuration_changed(self) -> None:
        self.voters = tuple(sorted(self.log.configuration.voters))

    def commit_to(self, index: int) -> None:
        entries = self.log.entries(self.commit_index + 1, index + 1)
        self.emit(Commit(entries=entries, late_until=self.agreed_before))
        self.commit_index = index

    # --- roles

    def change_role(self, role: Role, leader: SiteId | None, reason: str) -> None:
        """The one place where role and leader change; `self.term` has been set before."""
        self.role = checked_change(ROLE_CHANGES, self.role, role, f"agreement ({reason})")
        self.leader = leader
        self.emit(RoleChanged(role=role, term=self.term, leader=leader, reason=reason))

    def become_follower(self, term: int, leader: SiteId | None, reason: str, now_s: float) -> None:
        """In `term`, which is not below the present one. Forgets what belonged to the former role."""
        announced = (
            self.role is not Role.FOLLOWER or self.leader != leader or (leader is not None and term != self.term)
        )
        if term > self.term:
            self.set_term(term, None)
        self.progress.clear()
        self.votes.clear()
        self.heard.clear()
        self.end_transfer()
        if announced:
            self.change_role(Role.FOLLOWER, leader, reason)
        self.restart_election_timer(now_s)

    def become_candidate(self, role: Role, reason: str, now_s: float) -> None:
        """Begins to gather votes, with its own; `role`: what for."""
        self.change_role(role, None, reason)
        self.campaign_started_s = now_s
        self.heard.clear()
        self.votes.clear()
        self.votes.add(self.site)
        self.restart_election_timer(now_s)

    def hear_voter(self, voter: SiteId, *, granted: bool) -> None:
        """It has answered in the present campaign; `granted`: with a yes that counts."""
        self.heard.add(voter)
        if granted:
            self.votes.add(voter)

    def become_leader(self, reason: str) -> None:
        self.leader_lost_s = None
        self.stop_election_timer()
        self.votes.clear()
        self.heard.clear()
        self.progress.clear()
        self.change_role(Role.LEADER, self.site, reason)

    # --- the leader that is heard, and when to ask for votes

    def restart_election_timer(self, now_s: float) -> None:
        """Drawn from [1, 2) election timeouts, so that one site asks before the others do (thesis 3.4)."""
        self.election_at_s = now_s + self.settings.election_timeout_s * (1.0 + self.rng.random())

    def stop_election_timer(self) -> None:
        self.election_at_s = ENDLESS_S

    def elect_at(self, at_s: float) -> None:
        self.election_at_s = at_s

    def elect_not_before(self, at_s: float) -> None:
        self.election_at_s = max(self.election_at_s, at_s)

    def elect_not_after(self, at_s: float) -> None:
        self.election_at_s = min(self.election_at_s, at_s)

    def hear_leader(self, now_s: float) -> None:
        self.leader_contact_s = now_s

    def hears_anew(self, leader: SiteId, now_s: float) -> bool:
        """Whether nothing was heard of this one lately, or ever."""
        overdue = now_s > self.leader_contact_s + self.settings.election_timeout_s
        return self.leader != leader or self.leader_lost_s is not None or overdue

    def begin_to_hear(self, commit_index: int) -> None:
        """A leader is heard, for the first time or again, and has committed so much."""
        self.agreed_before = commit_index

    def lose_leader(self, now_s: float) -> None:
        """It is known to be gone."""
        self.leader_lost_s = now_s

    def find_leader_alive(self) -> None:
        self.leader_lost_s = None

    def stood_still(self, late_s: float, now_s: float) -> None:
        """This site did nothing for so long: that time is nobody's silence (spec 3.6)."""
        self.election_at_s += late_s
        self.leader_contact_s = min(now_s, self.leader_contact_s + late_s)
        for progress in self.progress.values():
            progress.hear(min(now_s, progress.contact_s + late_s))

    # --- what leaders show

    def in_run(self, run_id: str, *, proof_needed: bool, agreed: int) -> None:
        self.run_id, self.proof_needed, self.noted_agreed = run_id, proof_needed, agreed

    def keep_vote(self, vote: Vote) -> None:
        self.ballots[vote.voter] = vote

    def drop_votes(self, voters: Iterable[SiteId]) -> None:
        for voter in voters:
            del self.ballots[voter]

    def gathers(self, now_s: float) -> None:
        self.gathered_s = now_s

    def asks(self, term: int, leader: SiteId, now_s: float) -> None:
        self.asked = (term, leader, now_s)

    def believe(self, term: int, leader: SiteId) -> None:
        self.proven = (term, leader)

    def looked_in_vain(self, kind: tuple[SiteId, bool], now_s: float) -> None:
        self.in_vain[kind] = now_s

    # --- what only a leader has

    def beats_next(self, now_s: float) -> None:
        self.heartbeat_at_s = now_s + self.settings.heartbeat_interval_s

    def follow(self, site: SiteId, index: int, now_s: float) -> None:
        """A new member starts with the benefit of the doubt."""
        self.progress[site] = Progress(next_index=index, tenure=index, contact_s=now_s)

    def unfollow(self, site: SiteId) -> None:
        del self.progress[site]

    def begin_transfer(self, successor: SiteId, now_s: float) -> None:
        """Given up after an election timeout (thesis 3.10)."""
        self.transfer_target, self.transfer_told = successor, False
        self.transfer_until_s = now_s + self.settings.election_timeout_s

    def tell_successor(self, target: SiteId) -> None:
        self.transfer_told = True
        self.send(target, TimeoutNow(term=self.term))

    def end_transfer(self) -> None:
        self.transfer_target = None

    # --- majorities

    @property
    def may_campaign(self) -> bool:
        """A voter, or one whose removal is not known to be committed: perhaps nobody else has the log to be elected
        (thesis 4.2.2). Who has no vote in the newest two configurations is removed for certain, whatever is known to be
        committed; nobody would believe that it leads."""
        return any(self.site in configuration.voters for _, configuration in self.log.in_force(self.commit_index))

    @property
    def in_every_majority(self) -> bool:
        """In each configuration that may be in force somewhere this site is one of at most two voters: nobody is
        elected and nothing committed without it."""
        return all(
            self.site in configuration.voters and len(configuration.voters) <= 2
            for configuration in self.log.configurations_since(self.commit_index)
        )

    def has_majority(self, sites: set[SiteId]) -> bool:
        voters = self.voters
        return bool(voters) and sum(site in sites for site in voters) >= majority(len(voters))

    def breaks_rules(self, source: SiteId, what: str) -> None:
        """An honest site cannot have sent it. The message is dropped; the driver of the machine may act on
        `violation`."""
        self.violation = f"{source} broke the rules of the agreement: {what}"
