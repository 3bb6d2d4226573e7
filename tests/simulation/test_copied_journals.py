"""What the oracles of invariants 1 and 3 make of a machine that was copied: of entries that were committed with the
journal of its older daemon, and of what each of its two daemons gives and promises."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.simulator.faults import Trial, not_live, run_trial
from tests.simulator.oracles_agreement import AgreementOracle, Promises
from tests.simulator.oracles_given import GivenParts
from tests.simulator.piecewise import Given
from tests.simulator.violation import NotPromised, Violation

from chaos_protocols.agreement.raft import HardState
from chaos_protocols.agreement.raft.messages import Configuration, LogEntry
from chaos_protocols.effects import Contribute
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import Tag

VOTERS = tuple(SiteId(name) for name in ("01a", "02b", "03c"))
A, B, C = VOTERS
TAG = Tag(epoch=1, round=7)


@dataclass
class _Disk:
    entries: list[LogEntry] = field(default_factory=list)
    snapshot: None = None
    hard_state: HardState = field(default_factory=lambda: HardState(term=0, vote=None))
    incarnation: int = 0


class _Run:
    """Three voters and their disks. `commits`: these nodes write an entry, and the first counts it as committed."""

    def __init__(self) -> None:
        self.nodes = {site: SimpleNamespace(site=site, name=site, disk=_Disk()) for site in VOTERS}
        nodes: Any = self.nodes
        self.voter_before: tuple[SiteId, ...] = ()
        """Before entry 1."""
        self.oracle = AgreementOracle(self._fail, self._end, nodes, lambda *_: None)

    def copy(self, site: SiteId) -> Any:
        """The older node; what stands in `nodes` is the copy."""
        older: Any = self.nodes[site]
        disk = _Disk(entries=list(older.disk.entries), incarnation=older.disk.incarnation)
        self.nodes[site] = SimpleNamespace(site=site, name=site, disk=disk)
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

    def acknowledges(self, node: Any, index: int, *, term: int = 1) -> None:
        """This entry is the next one on its disk."""
        node.disk.entries.append(LogEntry(index=index, term=term, command=b"", configuration=None))
        node.machine = SimpleNamespace(raft=self._core(node.disk, term=term).log)
        self.oracle._acknowledged(node, self.oracle.promises.setdefault(node.site, Promises()), index)

    def votes(self, node: Any, candidate: SiteId, *, term: int) -> None:
        node.disk.hard_state = HardState(term=term, vote=candidate)
        self.oracle._voted(node, self.oracle.promises.setdefault(node.site, Promises()), term, candidate)

    def starts(self, site: SiteId) -> None:
        """Once more, from its disk."""
        node: Any = self.nodes[site]
        node.disk.incarnation += 1
        self.oracle.last = max(self.oracle.last, 1)
        self.oracle.started(node)

    def _core(self, disk: _Disk, *, term: int) -> Any:
        known = {entry.index: entry for entry in disk.entries}
        everybody = Configuration(voters=VOTERS, learners=())
        former = [Configuration(voters=self.voter_before, learners=())] if self.voter_before else []
        log = SimpleNamespace(
            base_index=0,
            configuration=everybody,
            configurations_since=lambda index: [everybody] if index else [*former, everybody],
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


def test_an_older_daemon_is_apart_where_its_own_journal_has_come_to_an_entry_otherwise_or_first() -> None:
    """The last entry may be the same one: a round that both have resolved, say."""
    run = _Run()
    older = run.copy(A)
    run.commits(1, run.nodes[A], run.nodes[B])
    run.commits(2, run.nodes[A], run.nodes[B])
    older.disk.entries.append(LogEntry(index=1, term=1, command=b"of the older", configuration=None))
    older.disk.entries.append(run.nodes[A].disk.entries[1])
    assert run.oracle.is_apart(older, 2) and run.oracle.is_apart(older, 1) and not run.oracle.is_apart(older, 0)
    assert not run.oracle.is_apart(run.nodes[A], 2) and not run.oracle.is_apart(run.nodes[B], 2)
    assert run.oracle.is_apart(older, 3), "nobody else has come so far"


def test_an_older_daemon_is_not_apart_in_what_both_agree_on() -> None:
    run = _Run()
    older = run.copy(A)
    run.commits(1, older, run.nodes[B])
    assert not run.oracle.is_apart(older, 1)


def test_what_an_older_daemon_acknowledges_is_not_asked_of_its_copy() -> None:
    run = _Run()
    run.acknowledges(run.nodes[A], 1)
    older = run.copy(A)
    run.acknowledges(older, 2)
    run.starts(A)
    run.nodes[A].disk.entries.clear()
    with pytest.raises(Violation, match="forgotten entry 1,"):
        run.starts(A)


def test_what_an_older_daemon_votes_is_not_asked_of_its_copy_but_both_vote_once() -> None:
    run = _Run()
    older = run.copy(A)
    run.votes(older, B, term=2)
    run.nodes[A].disk.hard_state = HardState(term=2, vote=None)
    run.starts(A)
    run.votes(run.nodes[A], B, term=2)
    run.nodes[A].disk.hard_state = HardState(term=2, vote=None)
    with pytest.raises(Violation, match="forgotten its vote of term 2"):
        run.starts(A)
    with pytest.raises(Violation, match="had voted for"):
        run.votes(older, C, term=2)


def test_a_vote_of_either_daemon_of_a_copied_machine_against_the_other_ends_the_judgement() -> None:
    """Seed 9079591, 3 sites: the older one had led that term."""
    for first, second in (("older", "copy"), ("copy", "older")):
        run = _Run()
        daemons = {"older": run.copy(A), "copy": run.nodes[A]}
        run.votes(daemons[first], B, term=2)
        with pytest.raises(NotPromised, match="both daemons of a copied machine have voted in term 2"):
            run.votes(daemons[second], C, term=2)
        with pytest.raises(Violation, match="had voted for"):
            run.votes(daemons[first], C, term=2)


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


def test_a_majority_of_former_voters_commits_nothing() -> None:
    """Who starts anew looks at its log from its beginning, where it may have been the only voter."""
    run = _Run()
    run.oracle.last, run.voter_before = 1, (C,)
    older = run.copy(A)
    entries = [LogEntry(index=index, term=1, command=b"", configuration=None) for index in (1, 2)]
    older.disk.entries, run.nodes[C].disk.entries = list(entries), list(entries)
    run.oracle._committed(run.nodes[C], run._core(older.disk, term=1), 0, final=True)
    assert run.oracle.on_older()


def test_what_an_older_daemon_does_by_itself_as_the_only_voter_is_not_judged() -> None:
    """Seed 9468103, 3 sites: a site that came back heard of its rounds from it, and had once been the only voter."""
    run_trial(Trial(seed=9468103, sites=3))


def test_what_a_majority_has_without_the_copied_journal_is_never_lost() -> None:
    run = _Run()
    older = run.copy(A)
    run.commits(1, older, run.nodes[B])
    run.nodes[C].disk.entries.append(run.nodes[B].disk.entries[0])
    run.commits(2, run.nodes[B], run.nodes[C])
    with pytest.raises(Violation, match="without entry 1"):
        run.leads(A, term=2)


def test_a_run_that_stands_is_judged_unless_it_rests_on_a_journal_that_had_been_copied() -> None:
    """Seed 9051655: what the older daemon made alone was in all journals but the copy's, without which nobody leads."""
    run = _Run()
    older = run.copy(A)
    world: Any = SimpleNamespace(liar=None, oracles=SimpleNamespace(agreement=run.oracle, fail=run._fail))
    with pytest.raises(Violation, match="nobody leads"):
        not_live(world, "nobody leads")
    run.commits(1, older, run.nodes[B])
    with pytest.raises(NotPromised, match=r"entry 1 was committed .* nobody leads"):
        not_live(world, "nobody leads")


class _Parts:
    """Both daemons of a copied machine give to round 7 of epoch 1. `apart`: the older one has come there otherwise."""

    def __init__(self) -> None:
        self.apart = True
        self.judged = GivenParts(self._fail)
        self.judged.is_apart = lambda node, _: node is self.older and self.apart
        self.older, self.copy = self._daemon("of the older"), self._daemon("of the copy")

    def _daemon(self, state: str) -> Any:
        unbounded = SimpleNamespace(bounds_of=lambda _: SimpleNamespace(clip_radius=0.0))
        return SimpleNamespace(
            site=A,
            name=A,
            contribution=(TAG.round, 1, state),
            world=SimpleNamespace(chunk_count=2),
            machine=SimpleNamespace(incarnation=1, roster=unbounded),
            bulk=SimpleNamespace(averaging=None),
        )

    def gives(self, node: Any) -> Given | None:
        return self.judged.gives(node, Contribute(tag=TAG, weight=1.0, has_bytes=True))

    def _fail(self, invariant: int, text: str) -> NoReturn:
        raise Violation(invariant, text, "here", [])


def test_each_daemon_of_a_copied_machine_gives_to_what_its_own_journal_has_come_to() -> None:
    """Seeds 2400919 (`--guest`) and 5500279 (`--liar`): the judge went on with what the older one had given."""
    run = _Parts()
    assert run.gives(run.older) is None, "it is not judged by the run's state"
    given = run.gives(run.copy)
    assert given is not None and run.judged.given[TAG] == {A: given}
    assert not run.judged.late(TAG)


def test_an_older_daemon_that_gives_twice_by_itself_is_seen_apart_too() -> None:
    run = _Parts()
    run.gives(run.older)
    with pytest.raises(Violation, match="gives to round 7 of epoch 1 twice"):
        run.gives(run.older)


def test_what_an_older_daemon_gave_before_the_run_came_to_its_entry_is_a_part_of_the_round_and_is_judged() -> None:
    run = _Parts()
    run.gives(run.older)
    run.apart = False
    ((node, given),) = run.judged.late(TAG)
    assert node is run.older and run.judged.given[TAG] == {A: given} and given.token == run.older.contribution


def test_both_daemons_in_one_round_of_one_history_are_a_violation() -> None:
    run = _Parts()
    run.gives(run.older)
    run.gives(run.copy)
    run.apart = False
    with pytest.raises(Violation, match="both daemons"):
        run.judged.late(TAG)


def test_a_vote_of_the_older_daemon_of_a_copied_machine_elects_as_one_of_the_copy_does() -> None:
    """Seed 9120791, 7 sites: ten milliseconds after it was copied, which nobody could know yet."""
    for whose in ("older", "copy", ""):
        run = _Run()
        daemons = {"older": run.copy(A), "copy": run.nodes[A]}
        if whose:
            run.votes(daemons[whose], B, term=2)
        leader: Any = run.nodes[B]
        with contextlib.nullcontext() if whose else pytest.raises(Violation, match="leads term 2 with the votes of"):
            run.oracle._elected(leader, run._core(leader.disk, term=2))


@pytest.mark.parametrize("whose", ["older", "copy"])
def test_the_vote_of_an_older_daemon_for_one_without_what_its_copy_has_acknowledged_ends_the_judgement(
    whose: str,
) -> None:
    """Seed 6053591, 7 sites: no site that takes part can know of the copy, which is linked with another one."""
    run = _Run()
    daemons = {"older": run.copy(A), "copy": run.nodes[A]}
    run.commits(1, run.nodes[A], run.nodes[C])
    run.votes(daemons[whose], B, term=2)
    leader: Any = run.nodes[B]
    with pytest.raises(
        NotPromised if whose == "older" else Violation, match="copied" if whose == "older" else "entry 1"
    ):
        run.oracle._elected(leader, run._core(leader.disk, term=2))
