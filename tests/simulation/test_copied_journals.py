"""What the oracle of invariant 1 makes of entries that were committed with the journal of a machine that was copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.simulator.oracles_agreement import AgreementOracle, Promises
from tests.simulator.violation import NotPromised, Violation

from chaos_protocols.agreement.raft.messages import Configuration, LogEntry
from chaos_protocols.names import SiteId

VOTERS = tuple(SiteId(name) for name in ("01a", "02b", "03c"))
A, B, C = VOTERS


@dataclass
class _Disk:
    entries: list[LogEntry] = field(default_factory=list)
    snapshot: None = None


class _Run:
    """Three voters and their disks. `commits`: these nodes write an entry, and the first counts it as committed."""

    def __init__(self) -> None:
        self.nodes = {site: SimpleNamespace(site=site, name=site, disk=_Disk()) for site in VOTERS}
        nodes: Any = self.nodes
        self.oracle = AgreementOracle(self._fail, self._end, nodes, lambda *_: None)

    def copy(self, site: SiteId) -> Any:
        """The older node; what stands in `nodes` is the copy."""
        older: Any = self.nodes[site]
        self.nodes[site] = SimpleNamespace(site=site, name=site, disk=_Disk(entries=list(older.disk.entries)))
        self.oracle.copied(older)
        return older

    def commits(self, index: int, *nodes: Any, term: int = 1) -> None:
        entry = LogEntry(index=index, term=term, command=b"", configuration=None)
        for node in nodes:
            node.disk.entries.append(entry)
        first: Any = nodes[0]
        self.oracle._committed(first, self._core(first.disk, term=1), index - 1, final=True)

    def leads(self, site: SiteId, *, term: int) -> None:
        node: Any = self.nodes[site]
        for voter in VOTERS:
            self.oracle.promises.setdefault(voter, Promises()).votes[term] = site
        self.oracle._elected(node, self._core(node.disk, term=term))

    def _core(self, disk: _Disk, *, term: int) -> Any:
        known = {entry.index: entry for entry in disk.entries}
        everybody = Configuration(voters=VOTERS, learners=())
        log = SimpleNamespace(
            base_index=0,
            configuration=everybody,
            configurations_since=lambda _: [everybody],
            entries=lambda first, stop: [known[index] for index in range(first, stop)],
            term_at=lambda index: known[index].term if index in known else None,
        )
        return SimpleNamespace(log=log, term=term, commit_index=max(known, default=0))

    def _fail(self, invariant: int, text: str) -> NoReturn:
        raise Violation(invariant, text, "here", [])

    def _end(self, reason: str) -> NoReturn:
        raise NotPromised(reason)


def test_an_entry_that_a_copied_journal_lacks_ends_the_judgement_when_somebody_leads_without_it() -> None:
    run = _Run()
    older = run.copy(A)
    run.commits(1, older, run.nodes[B])
    run.leads(B, term=2)
    with pytest.raises(NotPromised, match="entry 1"):
        run.leads(A, term=3)


def test_an_entry_that_an_older_daemon_commits_after_its_copy_has_committed_another_ends_the_judgement() -> None:
    """Its journal is that of a voter that has promised something else since: no protocol can know that."""
    run = _Run()
    older = run.copy(A)
    run.commits(1, run.nodes[A], run.nodes[B], term=2)
    run.nodes[C].disk.entries.append(LogEntry(index=1, term=1, command=b"", configuration=None))
    older.disk.entries.append(run.nodes[C].disk.entries[0])
    node: Any = run.nodes[C]
    with pytest.raises(NotPromised, match="another entry 1"):
        run.oracle._committed(node, run._core(older.disk, term=1), 0, final=True)


def test_both_daemons_of_a_copied_machine_may_lead_one_term_and_commit_different_entries() -> None:
    run = _Run()
    older = run.copy(A)
    run.commits(1, run.nodes[A], run.nodes[B])
    other = LogEntry(index=1, term=1, command=b"of the older", configuration=None)
    for node in (older, run.nodes[C]):
        node.disk.entries.append(other)
    last: Any = run.nodes[C]
    with pytest.raises(NotPromised, match="another entry 1"):
        run.oracle._committed(last, run._core(older.disk, term=1), 0, final=True)


def test_a_round_of_what_an_older_daemon_agreed_with_its_own_journal_alone_ends_the_judgement() -> None:
    """The last entry may be the same one: a round that both have resolved, say."""
    run = _Run()
    older = run.copy(A)
    run.commits(1, run.nodes[A], run.nodes[B])
    run.commits(2, run.nodes[A], run.nodes[B])
    run.oracle.one_history(A, 2)  # it has nothing: both gave to one round of one history
    older.disk.entries.append(LogEntry(index=1, term=1, command=b"of the older", configuration=None))
    run.oracle.one_history(A, 2)  # it has another first entry, and no second one
    older.disk.entries.append(run.nodes[A].disk.entries[1])
    run.oracle.one_history(A, 0)
    run.oracle.one_history(B, 2)
    with pytest.raises(NotPromised, match="has come to entry 2 otherwise"):
        run.oracle.one_history(A, 2)


def test_a_round_of_what_both_daemons_agree_on_is_judged() -> None:
    run = _Run()
    older = run.copy(A)
    run.commits(1, older, run.nodes[B])
    run.oracle.one_history(A, 1)


def test_two_entries_of_one_index_where_no_machine_was_copied_are_a_violation() -> None:
    run = _Run()
    run.commits(1, run.nodes[A], run.nodes[B], term=2)
    run.nodes[C].disk.entries.append(LogEntry(index=1, term=1, command=b"", configuration=None))
    node: Any = run.nodes[C]
    with pytest.raises(Violation, match="another entry 1"):
        run.oracle._committed(node, run._core(node.disk, term=1), 0, final=True)


def test_an_entry_that_no_majority_has_is_not_committed_where_no_machine_was_copied() -> None:
    run = _Run()
    gone = SimpleNamespace(site=A, name=A, disk=_Disk())
    with pytest.raises(Violation, match="counts entry 1 as committed"):
        run.commits(1, gone, run.nodes[B])


def test_a_copied_journal_makes_no_majority_by_itself() -> None:
    run = _Run()
    older = run.copy(A)
    with pytest.raises(Violation, match="counts entry 1 as committed"):
        run.commits(1, older)


def test_what_a_majority_has_without_the_copied_journal_is_never_lost() -> None:
    run = _Run()
    older = run.copy(A)
    run.commits(1, older, run.nodes[B])
    run.nodes[C].disk.entries.append(run.nodes[B].disk.entries[0])
    run.commits(2, run.nodes[B], run.nodes[C])
    with pytest.raises(Violation, match="without entry 1"):
        run.leads(A, term=2)
