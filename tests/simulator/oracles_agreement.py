"""Invariants 1 and 7: one scheduler a term, one log for ever, and promises that outlive their process.

Everything is judged from outside: the votes and acknowledgements that really left a site, what its disk holds at that
moment, the entries that anybody counts as committed. Quorums are counted here, not asked of the machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from chaos_protocols import effects
from chaos_protocols.agreement.commands import apply_command, decode_command, decode_roster
from chaos_protocols.agreement.raft import Persist, Role
from chaos_protocols.agreement.raft.messages import (
    AppendRequest,
    AppendResponse,
    Configuration,
    LogEntry,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.wire.control import RaftEnvelope
from tests.simulator.oracles_keys import changes_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import Node

    Fail = Callable[[int, str], NoReturn]
    End = Callable[[str], NoReturn]

ENTRIES_KEPT = 1024


@dataclass(slots=True)
class Promises:
    """What one site has told others, over all its lives. `held`: the last entry it said it holds, and its term. Once
    its machine was copied all of it is what the copy has said, since the older daemon stores what it says elsewhere,
    but for `older_votes`, which are that one's."""

    incarnation: int = 0
    term: int = 0
    votes: dict[int, str] = field(default_factory=dict)
    older_votes: dict[int, str] = field(default_factory=dict)
    stored: dict[int, str] = field(default_factory=dict)
    held: tuple[int, int] = (0, 0)


class AgreementOracle:
    """`log`: every entry that any site counted as committed; `roster`: what follows from it, applied here."""

    def __init__(
        self, fail: Fail, end: End, nodes: dict[str, Node], committed: Callable[[int, Any, Roster], None]
    ) -> None:
        """`end`: what happened is outside of what is promised."""
        self._fail, self._end, self._nodes, self._on_commit = fail, end, nodes, committed
        self.leader_of_term: dict[int, str] = {}
        self.log: dict[int, LogEntry] = {}
        self.committed_in: dict[int, int] = {}
        self.last = 0
        self.roster: Roster | None = None
        self.roster_at: dict[int, Roster] = {}
        self.configuration: Configuration | None = None
        self._commit_of: dict[str, tuple[int, int]] = {}
        self._checked: dict[str, Roster] = {}
        self._pending: dict[str, tuple[int, int]] = {}
        self.promises: dict[str, Promises] = {}
        self._written: dict[str, dict[int, LogEntry]] = {}
        self._older: dict[str, Any] = {}
        """The disks of machines that were copied, by site."""
        self._on_older = 0
        """From this entry on a majority has what was committed only if such a disk counts; 0: it has all."""

    # -- a process begins

    def started(self, node: Node) -> None:
        """Invariant 7: what was promised before the crash is on the disk that the new process starts from."""
        disk, promised = node.disk, self.promises.setdefault(node.site, Promises())
        if disk.incarnation <= promised.incarnation:
            self._fail(7, f"{node.name} starts as incarnation {disk.incarnation}, which it has been before")
        promised.incarnation = disk.incarnation
        if disk.hard_state.term < promised.term:
            self._fail(7, f"{node.name} restarts in term {disk.hard_state.term}, it had promised {promised.term}")
        vote = promised.stored.get(disk.hard_state.term)
        if vote is not None and disk.hard_state.vote != vote:
            self._fail(7, f"{node.name} has forgotten its vote of term {disk.hard_state.term} for {vote}")
        if not holds(disk, *promised.held):
            self._fail(7, f"{node.name} has forgotten entry {promised.held[0]}, which it had acknowledged")
        if self.last == 0 and disk.snapshot is not None:
            self.last, self.roster = disk.snapshot.index, decode_roster(disk.snapshot.state)
            self.configuration = disk.snapshot.configuration
            self.roster_at[self.roster.epoch] = self.roster
            self._on_commit(self.last, None, self.roster)

    def copied(self, node: Node) -> None:
        """The machine of `node` is copied: what its daemon writes from now on the copy has not. Until all have heard of
        the newer start the older one leads and acknowledges, and what it made or acknowledged then is lost if the copy
        helps to elect a scheduler without it, or both vote in one term. No voter can see that (docs/security.md): there
        the judgement ends."""
        self._older[node.site] = node.disk
        promised = self.promises.setdefault(node.site, Promises())
        promised.older_votes = dict(promised.votes)

    def journal_moved(self, site: str) -> None:
        """Its operator moved it away: what it had stored is not asked of it any more, its votes still are."""
        before = self.promises[site]
        self.promises[site] = Promises(before.incarnation, votes=before.votes, older_votes=before.older_votes)

    def on_older(self) -> str:
        """What rests on a journal that had been copied before, in words; empty: nothing does."""
        entry = self._on_older
        return f"entry {entry} was committed with the journal of a daemon that had been copied before" if entry else ""

    def is_copied(self, site: str) -> bool:
        """There were two daemons with its key."""
        return site in self._older

    def _is_older(self, node: Node) -> bool:
        return self._older.get(node.site) is node.disk

    # -- what leaves a site, and what it writes

    def sent(self, node: Node, effect: effects.SendEnvelope) -> None:
        """Invariant 7: no answer outruns the disk. A vote, an acknowledgement, an entry of the leader's own are
        durable when they leave, or the next crash would break them."""
        envelope = effect.envelope
        if type(envelope.message) is not RaftEnvelope or envelope.source != node.site:
            return
        message, disk = envelope.message.message, node.disk
        promised = self.promises[node.site]
        match message:
            case AppendRequest(entries=entries):
                if entries and not holds(disk, entries[-1].index, entries[-1].term):
                    self._fail(7, f"{node.name} sends entry {entries[-1].index}, which is not on its own disk")
            case VoteResponse(granted=True, term=term):
                self._voted(node, promised, term, envelope.destination)
            case VoteRequest(term=term):
                self._voted(node, promised, term, node.site)
            case AppendResponse(success=True, match_index=index) | SnapshotResponse(match_index=index) if index:
                self._acknowledged(node, promised, index)
            case _:
                pass

    def _voted(self, node: Node, promised: Promises, term: int, candidate: str) -> None:
        own, other = promised.votes, promised.older_votes
        if self._is_older(node):
            own, other = other, own
        known = own.setdefault(term, candidate)
        if known != candidate:
            self._fail(1, f"{node.name} votes for {candidate} in term {term}, it had voted for {known}")
        if node.site in self._older and other.get(term, candidate) != candidate:
            self._end(f"both daemons of a copied machine have voted in term {term}")
        state = node.disk.hard_state
        if state.term < term or (state.term == term and state.vote != candidate):
            self._fail(7, f"{node.name} votes in term {term} before the vote is on its disk")
        if not self._is_older(node):
            promised.term = max(promised.term, term)
            promised.stored[term] = candidate

    def _acknowledged(self, node: Node, promised: Promises, index: int) -> None:
        assert node.machine is not None
        term = node.machine.raft.term_at(index)
        snapshot = node.disk.snapshot
        if term is None:  # before its snapshot: committed, and held as such
            if snapshot is None or snapshot.index < index:
                self._fail(7, f"{node.name} acknowledges entry {index}, which it does not have")
            return
        if not holds(node.disk, index, term):
            self._fail(7, f"{node.name} acknowledges entry {index} before it is on its disk")
        if index >= promised.held[0] and not self._is_older(node):
            promised.held = (index, term)

    def persisted(self, node: Node, effect: Persist) -> None:
        """Invariant 1: a committed entry is never dropped; a promise lapses only where a newer leader's log replaces
        the entry."""
        cut, written = effect.truncate_from, self._written.setdefault(node.site, {})
        if cut is not None:
            self._truncated(node, effect, cut)
            for index in [one for one in written if one >= cut]:
                del written[index]
        written.update((entry.index, entry) for entry in effect.entries)
        taken = effect.snapshot
        if taken is not None and (taken.index not in written or written[taken.index].term != taken.term):
            for index in [one for one in written if one <= taken.index]:
                del written[index]  # a leader's snapshot stands for the log up to there; what was here may differ
        for index in [one for one in written if one < self.last - ENTRIES_KEPT]:
            del written[index]

    def _truncated(self, node: Node, effect: Persist, cut: int) -> None:
        for entry in node.disk.entries:
            known = self.log.get(entry.index) if entry.index >= cut else None
            snapshot = effect.snapshot
            if known is not None and known.term == entry.term and not (snapshot and snapshot.index >= entry.index):
                self._fail(1, f"{node.name} drops entry {entry.index} of term {entry.term}, which is committed")
        promised = self.promises[node.site]
        if promised.held[0] >= cut:
            promised.held = (0, 0)

    # -- after every step

    def look(self, node: Node, *, final: bool) -> None:
        """What this site counts as committed now. Not `final`: its effects are still being executed, and what its disk
        does not hold yet is looked at later."""
        machine = node.machine
        assert machine is not None
        core = machine.raft._core
        commit, known = core.commit_index, self._commit_of.get(node.site, (0, 0))
        if known == (machine.incarnation, commit):
            return
        incarnation, seen = known
        if incarnation == machine.incarnation and commit < seen:
            self._fail(1, f"the commit index of {node.name} goes back from {seen} to {commit}")
        first = seen if incarnation == machine.incarnation else core.log.base_index
        self._commit_of[node.site] = (machine.incarnation, self._committed(node, core, first, final=final))

    def after_step(self, node: Node) -> None:
        machine = node.machine
        assert machine is not None
        core = machine.raft._core
        self.look(node, final=True)
        if core.role is Role.LEADER:
            self._leads(node, core)
        if machine.roster is not self._checked.get(node.site):
            self._checked[node.site] = machine.roster
            known = self.roster_at.get(machine.roster.epoch)
            if known is not None and known != machine.roster:
                self._fail(1, f"{node.name} has another roster of epoch {machine.roster.epoch} than the log makes")
            if known is None and machine.roster.epoch > 0:
                self._fail(1, f"{node.name} has a roster of epoch {machine.roster.epoch}, which nobody has committed")

    def _leads(self, node: Node, core: Any) -> None:
        known = self.leader_of_term.get(core.term)
        if known is None:
            self.leader_of_term[core.term] = node.site
            self._elected(node, core)
        elif known != node.site:
            self._fail(1, f"term {core.term} has two schedulers: {known} and {node.site}")
        committed = max(core.commit_index, min(self.last, core.log.last_index))
        resolved = core.log.configuration_index <= committed
        if (
            resolved
            and core.log.configuration_index <= core.commit_index
            and node.site not in core.log.configuration.voters
        ):
            self._fail(1, f"{node.name} leads term {core.term}, but is no voter of the committed configuration")
        pending = (core.log.configuration_index, committed)
        if not resolved and core.term == max(self.leader_of_term) and pending != self._pending.get(node.site):
            self._pending[node.site] = pending
            self._overlap(node, core.log.configurations_since(committed))

    def _has_voted(self, site: str, term: int, candidate: str) -> bool:
        """Of a copied machine either daemon may have: the journal of then has neither's vote of now."""
        promised = self.promises.get(site, Promises())
        return candidate in (promised.votes.get(term), promised.older_votes.get(term))

    def _gave_as_older(self, site: str, candidate: Node, term: int) -> bool:
        """Its vote is that of the older daemon of a copied machine, whose journal lacks what the copy acknowledged."""
        if site == candidate.site:
            return self._is_older(candidate)
        return self.promises.get(site, Promises()).votes.get(term) != candidate.site

    def _elected(self, node: Node, core: Any) -> None:
        """A majority of its voters has voted for it, and it has all that was committed in earlier terms."""
        voters = core.log.configuration.voters
        gave = [site for site in voters if site == node.site or self._has_voted(site, core.term, node.site)]
        if len(gave) < len(voters) // 2 + 1:
            self._fail(1, f"{node.name} leads term {core.term} with the votes of {gave}, its voters are {voters}")
        for index in range(core.log.base_index + 1, self.last + 1):
            entry = self.log.get(index)
            if entry is None or self.committed_in[index] >= core.term:
                continue
            if core.log.term_at(index) != entry.term:
                if 0 < self._on_older <= index:
                    self._end(self.on_older())
                if (
                    len([site for site in gave if not self._gave_as_older(site, node, core.term)])
                    < len(voters) // 2 + 1
                ):
                    self._end(f"{node.name} was elected with the vote of a daemon that had been copied before")
                self._fail(1, f"{node.name} leads term {core.term} without entry {index}, which is committed")

    def _overlap(self, node: Node, configurations: list[Configuration]) -> None:
        """Any two majorities that may decide now must share a site, or two leaders can be elected."""
        for number, one in enumerate(configurations):
            for other in configurations[number + 1 :]:
                if may_be_apart(set(one.voters), set(other.voters)):
                    self._fail(1, f"{node.name}: {one.voters} and {other.voters} may both be in force, without overlap")

    def _committed(self, node: Node, core: Any, before: int, *, final: bool) -> int:
        """Up to where it was looked at."""
        for index in range(before + 1, core.commit_index + 1):
            entry = self._written.get(node.site, {}).get(index)
            if index > core.log.base_index:
                entry = core.log.entries(index, index + 1)[0]
            if entry is None:
                continue  # it came as part of a snapshot
            known = self.log.get(index)
            if known is not None:
                if known != entry:
                    if self._on_older_alone(entry) or self._on_older_alone(known):
                        self._end(
                            f"a daemon whose machine had been copied committed another entry {index} than the copy"
                        )
                    self._fail(1, f"{node.name} has committed another entry {index} than {known.term}'s")
                continue
            if index <= self.last:
                continue  # part of the founder's snapshot
            lacking = self._quorum(core, entry, before, older=False)
            on_older = bool(lacking and self._older) and not self._quorum(core, entry, before, older=True)
            if lacking and not on_older and not final:
                return index - 1
            if lacking and not on_older:
                self._fail(1, f"{node.name} counts entry {index} as committed; {lacking}")
            self._on_older = (self._on_older or index) if on_older else 0  # who has an entry has all before it
            self.log[index], self.committed_in[index], self.last = entry, core.term, index
            self._apply(entry)
        return int(core.commit_index)

    def _quorum(self, core: Any, entry: LogEntry, before: int, *, older: bool) -> str:
        """Committed means: on the disks of a majority of the voters (thesis 3.6), in a configuration of this step. What
        lacks; empty if nothing does. `older`: the disks of machines that were copied count for their sites."""
        lacking = ""
        for configuration in core.log.configurations_since(max(before, self.last, core.log.base_index)):
            voters = configuration.voters
            there = [one for one in voters if self._has(one, entry, older=older)]
            if len(there) >= len(voters) // 2 + 1:
                return ""
            lacking = f"of the voters {voters} only {there} hold it"
        return lacking

    def _on_older_alone(self, entry: LogEntry) -> bool:
        """Of the two journals that a copied machine has made of one, only the older has it. Both daemons may have led
        the same term."""
        return any(
            holds_entry(older, entry) and not holds_entry(self._nodes[site].disk, entry)
            for site, older in self._older.items()
        )

    def is_apart(self, node: Node, index: int) -> bool:
        """Whether this is the older daemon of a copied machine, and has come to this entry over others than the run, or
        before it: with its own journal alone as a majority it leads what is another run by now (docs/security.md)."""
        if not self._is_older(node):
            return False
        own = [one for one in node.disk.entries if one.index <= index]
        return index > self.last or any(self.log.get(one.index, one) != one for one in own)

    def _has(self, site: str, entry: LogEntry, *, older: bool) -> bool:
        disks = [self._nodes[site].disk]
        if older and site in self._older:
            disks.append(self._older[site])
        return any(holds(disk, entry.index, entry.term) for disk in disks)

    def _apply(self, entry: LogEntry) -> None:
        if entry.configuration is not None:
            old, self.configuration = self.configuration, entry.configuration
            changed = set(old.voters) ^ set(entry.configuration.voters) if old is not None else set()
            if len(changed) > 1:
                self._fail(1, f"entry {entry.index} changes more than one voter: {sorted(changed)}")
        if entry.command and self.roster is not None:
            command = decode_command(entry.command)
            if changes_nothing(self.roster, command):
                return
            self.roster = apply_command(self.roster, command, entry.index)
            self.roster_at[self.roster.epoch] = self.roster
            self._on_commit(entry.index, command, self.roster)


def holds(disk: Any, index: int, term: int) -> bool:
    """Whether this disk has the entry, by itself or in its snapshot."""
    if index == 0 or (disk.snapshot is not None and disk.snapshot.index >= index):
        return True
    entries = disk.entries
    if not entries or not entries[0].index <= index <= entries[-1].index:
        return False
    return bool(entries[index - entries[0].index].term == term)


def entry_on(disk: Any, index: int) -> LogEntry | None:
    """None: it is not there, or in a snapshot."""
    return next((entry for entry in disk.entries if entry.index == index), None)


def holds_entry(disk: Any, entry: LogEntry) -> bool:
    """The same, and no other entry of that term."""
    return holds(disk, entry.index, entry.term) and entry_on(disk, entry.index) in (None, entry)


def may_be_apart(one: set[str], other: set[str]) -> bool:
    """Whether a majority of the one and a majority of the other can be without a common site."""
    common = len(one & other)
    needs = [max(0, len(a) // 2 + 1 - len(a - b)) for a, b in ((one, other), (other, one))]
    return sum(needs) <= common
