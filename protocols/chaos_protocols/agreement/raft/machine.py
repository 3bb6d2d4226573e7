"""Agreement among the voters on one log, and so on who is the scheduler and what is the roster (spec 5).

`RaftMachine` takes messages, the passing of time and proposals, and answers with effects (`effects.py`). It does no
I/O, reads no clock, and is deterministic for equal inputs. Driven by the site's machine, in the daemon and in the
simulator.

In short: a leader is elected by a majority of voters and holds the role while a majority answers it. It alone appends
to the log; an entry that a majority has stored is committed and never lost. Whoever has less in its log than a
majority cannot be elected.

Source: Ongaro, "Consensus: bridging theory and practice", 2014; membership changes one site at a time (chapter 4) with
the correction published in 2015: none before the leader's first own entry is committed.
"""

from __future__ import annotations

import random
from typing import assert_never

from chaos_protocols.agreement.raft import election, follower, proof, replication
from chaos_protocols.agreement.raft.config import RaftSettings, fault_of, voters_changed
from chaos_protocols.agreement.raft.core import ENDLESS_S, Core, Keys
from chaos_protocols.agreement.raft.effects import Effect, HardState, Role
from chaos_protocols.agreement.raft.log import Log
from chaos_protocols.agreement.raft.messages import (
    COMMAND_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    AppendRequest,
    AppendResponse,
    Configuration,
    LeaderProof,
    LogEntry,
    PreVoteRequest,
    PreVoteResponse,
    ProofRequest,
    RaftMessage,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.names import SiteId

TERMS_AHEAD_MAX = 1 << 20
"""Terms last for days. Who names one further ahead than this has made it up: terms are numbers below 2^53, and nobody
could be elected after the last."""


class RaftMachine:
    """One site's part in the agreement. Times are in seconds on the site's own monotonic clock.

    `refusal`: why the last `propose` or `transfer_leadership` did nothing, "" if it did. `violation`: why the last
    message was dropped as one that no honest site sends, None if it was not.
    """

    __slots__ = ("_core", "_settings", "refusal")

    def __init__(
        self,
        site: SiteId,
        *,
        settings: RaftSettings,
        rng: random.Random,
        hard_state: HardState,
        snapshot: Snapshot | None,
        entries: tuple[LogEntry, ...],
        now_s: float,
        keys: Keys | None = None,
    ) -> None:
        """From what was persisted; a site that was never in a configuration starts with HardState(0, None), no
        snapshot, no entries, and is passive. The state machine starts from `snapshot`. `keys`: to sign votes with, and
        to check others' (`proof.py`). Raises ValueError if the parts do not fit together."""
        log = Log(snapshot, entries)
        if hard_state.term < log.last_term:
            raise ValueError(f"the stored term {hard_state.term} is below that of the last log entry, {log.last_term}")
        self._settings = settings
        self._core = Core(
            site=site,
            settings=settings,
            rng=rng,
            term=hard_state.term,
            vote=hard_state.vote,
            log=log,
            commit_index=log.base_index,
            keys=keys,
        )
        self.refusal = ""
        if self._core.voters == (site,):
            self._core.elect_at(now_s + (settings.election_timeout_s if self.configuration.learners else 0.0))
        elif self._core.may_campaign:
            self._core.restart_election_timer(now_s)

    # --- what it knows

    @property
    def site(self) -> SiteId:
        return self._core.site

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def leader(self) -> SiteId | None:
        """The leader of the present term as far as known; itself if it leads."""
        return self._core.leader

    @property
    def leader_lost_s(self) -> float | None:
        """Since when that leader is known to be gone; None: it is not, or was heard since (spec 5.9)."""
        return self._core.leader_lost_s

    @property
    def leader_due_s(self) -> float:
        """Until then nothing needs to be heard of the leader: an election timeout after its last word."""
        return self._core.leader_contact_s + self._core.settings.election_timeout_s

    @property
    def commit_index(self) -> int:
        return self._core.commit_index

    @property
    def last_index(self) -> int:
        return self._core.log.last_index

    @property
    def snapshot(self) -> Snapshot | None:
        return self._core.log.snapshot

    @property
    def uncommitted(self) -> tuple[LogEntry, ...]:
        """Entries of this log of which it is not known that they are agreed."""
        return self._core.log.entries(self._core.commit_index + 1, self._core.log.last_index + 1)

    @property
    def configuration(self) -> Configuration:
        """The latest in the log, committed or not."""
        return self._core.log.configuration

    @property
    def configuration_pending(self) -> bool:
        """The latest configuration is not known to be committed."""
        return self._core.log.configuration_index > self._core.commit_index

    @property
    def voters_in_force(self) -> frozenset[SiteId]:
        """Who votes by the newest configuration, and, while that one is not known to be committed, by the one before:
        it may never be, and whoever is elected then has been so by the one before."""
        in_force = self._core.log.in_force(self._core.commit_index)
        return frozenset(site for _, configuration in in_force for site in configuration.voters)

    @property
    def violation(self) -> str | None:
        return self._core.violation

    @property
    def can_propose(self) -> bool:
        return self._core.role is Role.LEADER and self._core.transfer_target is None

    @property
    def transfer_pending(self) -> bool:
        return self._core.transfer_target is not None

    @property
    def compaction_due(self) -> bool:
        """So many entries are committed since the snapshot that `compact` is worth its price."""
        return self._core.commit_index - self._core.log.base_index >= self._settings.snapshot_after_entries

    @property
    def deadline_s(self) -> float | None:
        """When to call `tick`; None: only a message can change anything."""
        core = self._core
        if core.role is not Role.LEADER:
            return None if core.election_at_s == ENDLESS_S else core.election_at_s
        if core.transfer_target is not None:
            return min(core.heartbeat_at_s, core.transfer_until_s)
        return core.heartbeat_at_s

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`; None where the log has none (any more): its fate is then known."""
        return self._core.log.term_at(index)

    def match_index(self, site: SiteId) -> int:
        """Up to where `site` is known to hold the log; 0 for unknown sites, and where this one does not lead."""
        core = self._core
        if core.role is not Role.LEADER:
            return 0
        if site == core.site:
            return core.log.last_index
        progress = core.progress.get(site)
        return 0 if progress is None else progress.match_index

    def quorum_contact(self, now_s: float) -> bool:
        """Within an election timeout a leader heard a majority, itself included; any other site a leader."""
        return election.hears_leader(self._core, now_s)

    def majority_heard_s(self, now_s: float) -> float:
        """Leader only: when a majority of the voters, itself included, was last heard."""
        return replication.majority_heard_s(self._core, now_s)

    def leader_silence_s(self, now_s: float) -> float:
        """How long the leader was not heard; endless where none is known, 0 on the leader itself."""
        core = self._core
        if core.role is Role.LEADER:
            return 0.0
        return now_s - core.leader_contact_s if core.leader is not None else ENDLESS_S

    def missing_voters(self, now_s: float) -> tuple[SiteId, ...]:
        """Leader: voters not heard within an election timeout. A site that asks for votes: those that have not
        answered. Followers: none."""
        if self._core.role is Role.LEADER:
            return replication.missing_voters(self._core, now_s)
        if self._core.role is Role.FOLLOWER:
            return ()
        return election.unheard(self._core)

    # --- what happens to it

    def receive(self, source: SiteId, message: RaftMessage, *, now_s: float, vouched: bool = True) -> list[Effect]:
        """`source`: the authenticated author. Not `vouched`: it has to show who elected it before it leads here."""
        core = self._core
        core.begin_receiving(vouched=vouched)
        if source == core.site:
            core.breaks_rules(source, "a message of this site came from outside")
            return []
        if (term := getattr(message, "term", 0)) > core.term + TERMS_AHEAD_MAX and core.log.last_index > 0:
            core.breaks_rules(source, f"it is in term {term}, this site in {core.term}")
            return []
        match message:
            case AppendRequest():
                follower.receive_append(core, source, message, now_s)
            case AppendResponse():
                replication.receive_append_response(core, source, message, now_s)
            case PreVoteRequest():
                election.receive_pre_vote(core, source, message, now_s)
            case PreVoteResponse():
                election.receive_pre_vote_answer(core, source, message, now_s)
            case VoteRequest():
                election.receive_vote(core, source, message, now_s)
            case VoteResponse():
                election.receive_vote_answer(core, source, message, now_s)
            case SnapshotRequest():
                follower.receive_snapshot(core, source, message, now_s)
            case SnapshotResponse():
                replication.receive_snapshot_response(core, source, message, now_s)
            case TimeoutNow():
                election.receive_timeout_now(core, source, message, now_s)
            case ProofRequest():
                proof.receive_proof_request(core, source, message, now_s)
            case LeaderProof():
                proof.receive_proof(core, source, message, now_s)
            case _:
                assert_never(message)
        return core.take_effects()

    def tick(self, *, now_s: float) -> list[Effect]:
        """To be called when `deadline_s` has come; earlier calls do nothing."""
        if self._core.role is Role.LEADER:
            replication.tick_leader(self._core, now_s)
        else:
            election.tick_election(self._core, now_s)
        return self._core.take_effects()

    def stood_still(self, late_s: float, *, now_s: float) -> None:
        """This site did nothing for so long, and what the others said meanwhile lies unread: that time is nobody's
        silence (spec 3.6)."""
        self._core.stood_still(late_s, now_s)

    def leader_lost(self, *, now_s: float) -> list[Effect]:
        """The leader is known to be gone (end-of-file, or its word). This site asks for votes within milliseconds,
        and grants them, until a leader is heard again."""
        election.leader_lost(self._core, now_s)
        return self._core.take_effects()

    @property
    def waits_alone(self) -> bool:
        """No other vote is needed, and this site does not lead yet."""
        return self._core.role is Role.FOLLOWER and self._core.voters == (self._core.site,)

    def all_reached(self, *, now_s: float) -> list[Effect]:
        """All that this site may lead can be reached, over all the links that there should be. A sole voter that was
        started anew leads from now on: no site and no link is removed because it was not up again yet."""
        if not self.waits_alone:
            return []
        self._core.elect_not_after(now_s)
        return self.tick(now_s=now_s)

    # --- what leaders show

    def in_run(self, run_id: str, *, proof_needed: bool, agreed: int = 0) -> None:
        """Which run this is, as its votes are to say; `proof_needed`: its sites have agreed that a leader of a newer
        term is believed when it shows its votes. `agreed`: up to where it has noted, before its start, that all is."""
        self._core.in_run(run_id, proof_needed=proof_needed, agreed=agreed)

    def keys_changed(self, *, now_s: float) -> list[Effect]:
        """Of some site another key counts than before."""
        proof.keys_changed(self._core, now_s)
        return self._core.take_effects()

    @property
    def shows_votes(self) -> bool:
        """This site leads, and can show signed votes of a majority of those who vote now."""
        return proof.shows_votes(self._core)

    def gather_votes(self, *, now_s: float) -> list[Effect]:
        """A leader asks those voters whose signed vote it lacks, if it was elected by a release that signs none."""
        if self._core.role is Role.LEADER:
            proof.gather(self._core, now_s)
        return self._core.take_effects()

    # --- what is wanted of it

    def propose(
        self, command: bytes, *, configuration: Configuration | None = None, now_s: float
    ) -> tuple[int | None, list[Effect]]:
        """Appends an entry, if this site leads; it is committed when `Commit` says so, or lost with the leadership.
        Returns its index, or None and `refusal`. Raises ValueError for a command that is too long or a configuration
        that nobody can have."""
        if len(command) > COMMAND_BYTES_MAX:
            raise ValueError(f"command of {len(command)} bytes; allowed: {COMMAND_BYTES_MAX}")
        fault = None if configuration is None else fault_of(configuration)
        if fault is not None:
            raise ValueError(f"impossible configuration: {fault}")
        self.refusal = self._refusal(configuration)
        if self.refusal:
            return None, []
        index = replication.append(self._core, command, configuration, now_s)
        return index, self._core.take_effects()

    def _refusal(self, configuration: Configuration | None) -> str:
        core = self._core
        if core.role is not Role.LEADER:
            return f"this site does not lead; {core.leader or 'nobody known'} does"
        if core.transfer_target is not None:
            return f"the leadership is being handed over to {core.transfer_target}"
        if configuration is None:
            return ""
        if core.log.term_at(core.commit_index) != core.term:
            return "this leader has not committed an entry of its term yet"
        if voters_changed(core.log.configuration, configuration) > 1:
            return "more than one voter would change at once"
        if core.proof_needed and not self.shows_votes and tuple(sorted(configuration.voters)) != core.voters:
            return "this leader lacks signed votes, which it would have to show with the change"
        if self.configuration_pending and not self._alone_in_every_majority(configuration):
            return f"the configuration change at index {core.log.configuration_index} is not committed yet"
        for site in sorted(set(configuration.voters) - {core.site, *core.voters}):
            # Thesis 4.2.1: a voter far behind is a gap in availability; one without a log has no say (`election.py`).
            if self.match_index(site) < core.log.configuration_index:
                return f"{site} must catch up as a learner before it votes"
        return ""

    def _alone_in_every_majority(self, configuration: Configuration) -> bool:
        """The way back for a sole voter whose new second voter died before the change was committed: the new
        configuration names this site alone, and every majority of any earlier one contains it. That overlap is all
        that the rule against changes on top of each other protects (thesis 4.1)."""
        return configuration.voters == (self._core.site,) and self._core.in_every_majority

    def transfer_leadership(self, target: SiteId | None, *, now_s: float) -> list[Effect]:
        """Brings `target` (None: the best voter) up to date and asks it to start an election. No proposals meanwhile;
        given up after an election timeout (thesis 3.10). `refusal` says why it was not begun."""
        core = self._core
        successor = replication.best_successor(core) if core.role is Role.LEADER and target is None else target
        if core.role is not Role.LEADER:
            self.refusal = f"this site does not lead; {core.leader or 'nobody known'} does"
        elif core.transfer_target is not None:
            self.refusal = f"the leadership is already being handed over to {core.transfer_target}"
        elif successor is None:
            self.refusal = "there is no other voter"
        elif successor == core.site or successor not in core.voters:
            self.refusal = f"{successor} is not another voter"
        else:
            self.refusal = ""
            core.begin_transfer(successor, now_s)
            replication.hand_over_when_caught_up(core)
        return core.take_effects()

    def compact(self, index: int, state: bytes, chain: bytes = b"") -> list[Effect]:
        """`state`: the state machine after the committed entry `index`, `chain`: the number of the log up to there. The
        log up to it is dropped. Nothing happens if the snapshot is already as new. Raises ValueError for an index that
        is not committed or a state that no message could carry."""
        core = self._core
        if index > core.commit_index:
            raise ValueError(f"snapshot at {index}, but only {core.commit_index} is committed")
        if len(state) > SNAPSHOT_BYTES_MAX:
            raise ValueError(f"snapshot of {len(state)} bytes; allowed: {SNAPSHOT_BYTES_MAX}")
        term = core.log.term_at(index)
        if index <= core.log.base_index or term is None:
            return []
        configuration = core.log.configuration_at(index)
        mandates = core.log.mandates_between(-1, index)
        core.replace_prefix(
            Snapshot(index=index, term=term, configuration=configuration, state=state, mandates=mandates, chain=chain)
        )
        return core.take_effects()
