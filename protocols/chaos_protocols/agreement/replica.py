"""This site's copy of what was agreed: its agreement machine, the committed roster, and how far that is applied.

Driven by `SiteMachine`, which carries the agreement's effects out and tells the other parts of a new roster.
"""

from __future__ import annotations

import msgspec

from chaos_protocols.agreement.chain import LogChain
from chaos_protocols.agreement.commands import (
    Command,
    SetRules,
    apply_proven,
    decode_command,
    decode_roster,
    encode_roster,
)
from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.raft import Effect, RaftMachine, Unproven
from chaos_protocols.agreement.raft.messages import (
    COMMAND_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Configuration,
    LogEntry,
    Snapshot,
)
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.effects import Effect as SiteEffect
from chaos_protocols.effects import Record
from chaos_protocols.names import SiteId, short
from chaos_protocols.wire.versions import NAMES_SINCE, PROOFS_SINCE

SPLIT = (
    "this site and that one were told different things by whoever scheduled, or that one says so falsely: compare what "
    "`chaosd status` and `chaosd events` show at all sites; who differs from most others moves `journal` in its data "
    "folder away and starts its daemon again. Of a run with honest voters this is never said"
)

LATE = "; agreed before this site heard the scheduler again"

COMPACT_AFTER_ENTRIES = 256
"""Log entries kept before the roster itself replaces them: a joiner then gets the roster, not its history."""

UNPROVEN_TOLD_MAX = 3
"""Claims to schedule that one site cannot show, and that are told: it may make up a new one at every word."""

UNPROVEN = (
    "it cannot show the votes of those who elect the scheduler, as far as this site's journal knows them: nothing that "
    "it says as the scheduler is taken. If others follow it, this site was away while those who vote were replaced "
    "many times, or elected by an older release: move `journal` in this site's data folder away, set `bootstrap = "
    "false` and start its daemon again; it then joins as a newcomer"
)


class RosterReplica:
    """See the module."""

    def __init__(
        self,
        site: SiteId,
        raft: RaftMachine,
        roster: Roster,
        last_known: Roster,
        *,
        keys: KeyRing,
        rules: int = 0,
        agreed: int = 0,
        now_s: float,
    ) -> None:
        """`rules`: those that this site's journal has noted as agreed; `agreed`: up to which entry."""
        self.site = site
        self.keys = keys
        """Which keys count for whom."""
        # Who is to join a run that it knows by name alone has nothing to hold a key to, until it has the roster.
        self.keys.follow(last_known.run_id if last_known.sites else "", last_known.keys)
        self.raft = raft
        self.roster = roster
        """The committed one, as far as it is applied here."""
        self.last_known = last_known
        """After a restart: the roster as the whole journal has it. Not agreed; good only to know where to dial."""
        self.leads = False
        """This site has the scheduler's role."""
        self.leader_seen_s = now_s
        """When a leader was last known here; without one so far, when this daemon started."""
        self.leader_was_seen = False
        """Since this daemon started."""
        self._knew_leader = False
        self.applied = raft.commit_index
        """The last entry of the log whose command is applied here."""
        self.chain = LogChain(raft.snapshot)
        """What stands for all that was agreed, and applied here."""
        self._split_told: set[SiteId] = set()
        """Neighbours that were told to have agreed on something else."""
        self._fence: tuple[int, int] | None = None
        """Index and term of a proposed entry, until whose fate is known this site gives to no round that it changes."""
        self._unproven: dict[SiteId, set[int]] = {}
        """Of which terms each site's claim to schedule was told."""
        self._journal = {entry.index: entry.term for entry in raft.uncommitted}
        """Entries that this site's journal had when its daemon started."""
        self.known = False
        """What is applied now is no news here: a former life of this daemon has told of it, or it was agreed before
        this site ever was of the run."""
        self.late = ""
        """Of what is applied now, and was agreed some time ago: that it was."""
        self._rules, self._agreed = rules, agreed
        self._tell_rules(last_known.run_id, roster)

    @property
    def configuration(self) -> Configuration:
        return self.raft.configuration

    @property
    def rules(self) -> int:
        """The version whose rules the run has agreed on, as far as this site has ever known; 0: none."""
        return self._rules

    def has(self, site: SiteId) -> bool:
        """It is in the roster, in the agreement's configuration, or has a vote in the one before, while that one may be
        in force still."""
        if self.roster.record(site) is not None:
            return True
        raft, configuration = self.raft, self.raft.configuration
        return site in configuration.voters or site in configuration.learners or site in raft.voters_in_force

    @property
    def others(self) -> set[SiteId]:
        """All for which `has` holds, without this site."""
        raft, configuration = self.raft, self.raft.configuration
        agreed = {*configuration.voters, *configuration.learners, *raft.voters_in_force}
        return {*self.roster.site_ids(), *agreed} - {self.site}

    @property
    def was_in_run(self) -> bool:
        """This site is, or was, in one, as its journal says; and so that says who else is. A newcomer may have an old
        roster already, in which it is not."""
        return self.has(self.site) or self.roster.gone(self.site) is not None

    @property
    def _was_never_in(self) -> bool:
        """This site never was in the run, as far as the log is applied here."""
        return not self.roster.knows(self.site)

    def can_propose(self) -> bool:
        """Only when everything that went before is committed, and so applied here: a command is made from the roster
        that it will be applied to."""
        return self.raft.can_propose and self.is_newest()

    def is_newest(self) -> bool:
        """For a leader: an entry of its own term is committed, so all earlier ones are, and are applied here."""
        return self.raft.term_at(self.raft.commit_index) == self.raft.term

    # -- what the agreement did

    def committed(self, entry: LogEntry, *, late: bool) -> Command | None:
        """The command of a committed entry, to be applied now; None: it has none. `late`: it was committed when this
        site came to hear the leader."""
        self.applied = entry.index
        told = self._journal.pop(entry.index, None) == entry.term
        self.known, self.late = told or self._was_never_in, LATE if late else ""
        command = decode_command(entry.command) if entry.command else None
        self.chain.agreed(entry, begins=isinstance(command, SetRules) and command.version >= NAMES_SINCE)
        return command

    def apply(self, command: Command, index: int) -> Roster:
        """The roster after the command."""
        return apply_proven(self.roster, command, index, self.keys.signer)

    def restored(self, snapshot: Snapshot) -> Roster:
        """The roster that a snapshot brings. Which run this is was known before: a site of a release that does not
        know the field leaves it out."""
        self.applied = snapshot.index
        self.known, self.late = self._was_never_in, LATE
        roster = decode_roster(snapshot.state)
        self.chain.restored(snapshot, begun=roster.rules >= NAMES_SINCE)
        return roster if roster.run_id else msgspec.structs.replace(roster, run_id=self.roster.run_id)

    def install(self, roster: Roster) -> tuple[Roster, list[SiteId]]:
        """It is in force from now on; the one before, and sites of which other keys count."""
        old, self.roster = self.roster, roster
        self._tell_rules(roster.run_id, roster)
        return old, self.keys.follow(roster.run_id, roster.keys)

    def _tell_rules(self, run_id: str, agreed: Roster) -> None:
        """Rules that were agreed hold for good, also while it is not known again, after a restart, that they were."""
        self._rules = max(self._rules, agreed.rules)
        self.raft.in_run(run_id, proof_needed=self._rules >= PROOFS_SINCE, agreed=self._agreed)

    def unproven(self, effect: Unproven) -> list[SiteEffect]:
        """Told once for each claim; of one site only so many, for it may claim any term."""
        told = self._unproven.setdefault(effect.leader, set())
        if effect.term in told or len(told) >= UNPROVEN_TOLD_MAX:
            return []
        told.add(effect.term)
        return [
            Record(
                kind="refused",
                subject=short(effect.leader),
                cause=f"claims to schedule in term {effect.term}",
                outcome="refused",
                duration_s=None,
                reason=UNPROVEN,
            )
        ]

    def heard_log(self, site: SiteId, index: int, head: bytes) -> list[SiteEffect]:
        """A site of the run tells what stands for its log. Told once for each."""
        if site in self._split_told or not self.chain.differs(index, head):
            return []
        self._split_told.add(site)
        return [
            Record(
                kind="split",
                subject=short(site),
                cause=f"it has agreed on something else up to entry {index}",
                outcome="",
                duration_s=None,
                reason=SPLIT,
            )
        ]

    def unfit(self, command: bytes) -> str:
        """Why a command cannot be agreed on, so that it must not be proposed; empty: it can."""
        if len(command) > COMMAND_BYTES_MAX:
            return f"it takes {len(command)} bytes, and {COMMAND_BYTES_MAX} are allowed"
        try:
            decode_command(command)
        except (msgspec.DecodeError, ValueError) as error:
            return f"no site could read it: {error}"
        return ""

    def compact(self) -> list[Effect]:
        """Replace the log by the roster, if it has grown long, and that is not too long for a message itself."""
        snapshot = self.raft.snapshot
        first = snapshot.index if snapshot is not None else 0
        if self.applied - first < COMPACT_AFTER_ENTRIES:
            return []
        state = encode_roster(self.roster)
        return self.raft.compact(self.applied, state, self.chain.head) if len(state) <= SNAPSHOT_BYTES_MAX else []

    def role_changed(self, leader: SiteId | None, *, leads: bool, now_s: float) -> bool:
        """Whether this site got, or lost, the scheduler's role."""
        if leader is not None or self._knew_leader:
            # One that fell silent was not lost when the timer ended that was drawn here, but when its word was due.
            silent = leader is None and not self.leads
            self.leader_seen_s = min(now_s, self.raft.leader_due_s) if silent else now_s
            self.leader_was_seen = True
        self._knew_leader = leader is not None
        changed, self.leads = leads is not self.leads, leads
        return changed

    # -- the fence before a planned change

    def fence(self, index: int) -> None:
        """Until the entry at `index`, which was proposed in this term, is applied or lost."""
        self._fence = (index, self.raft.term)

    def lift_fence(self) -> bool:
        """Whether there was a fence, and the fate of its entry is known now."""
        if self._fence is None:
            return False
        index, term = self._fence
        if self.applied < index and self.raft.term_at(index) == term:
            return False
        self._fence = None
        return True
