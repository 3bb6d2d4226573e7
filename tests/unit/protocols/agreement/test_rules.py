"""That a run has agreed on the rules of a version: known for good, also after a restart, never from an entry alone."""

from __future__ import annotations

from tests.unit.protocols.one_site import EPOCH, NOTHING_NOTED, A, B, Bench, C, roster_of, sent

from chaos_protocols.agreement.commands import SetRules, encode_command
from chaos_protocols.agreement.raft.messages import AppendRequest, LogEntry, ProofRequest
from chaos_protocols.effects import NoteReached
from chaos_protocols.wire.control import RaftEnvelope
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.versions import PROOFS_SINCE

RULES = LogEntry(
    index=EPOCH + 1, term=1, command=encode_command(SetRules(version=PROOFS_SINCE, views=roster_of(A, B, C).views))
)
"""The scheduler of term 1 proposed it."""


def restarted(*, entries: tuple[LogEntry, ...] = (), reached: Reached = NOTHING_NOTED) -> Bench:
    roster = roster_of(A, B, C)
    return Bench(B, roster, voters=(A, B, C), incarnation=2, entries=entries, reached=reached).up(A, C)


def entries_of(term: int, *entries: LogEntry, commit_index: int = EPOCH) -> RaftEnvelope:
    request = AppendRequest(
        term=term, leader=A, previous_index=EPOCH, previous_term=1, entries=entries, commit_index=commit_index, tenure=0
    )
    return RaftEnvelope(message=request)


def test_an_entry_that_the_others_may_never_have_had_asks_nobody_for_votes() -> None:
    """The scheduler died with it; the next one has nothing to show, and would wait for ever (seed 2833, 3 sites)."""
    bench = restarted(entries=(RULES,))
    bench.hear(A, entries_of(9))
    assert bench.machine.raft.leader == A


def test_what_was_noted_holds_after_a_restart() -> None:
    bench = restarted(entries=(RULES,), reached=Reached(rules=PROOFS_SINCE))
    found = bench.hear(A, entries_of(9))
    assert bench.machine.raft.leader is None
    assert [type(one.message) for _, one in sent(found, RaftEnvelope)] == [ProofRequest]


def test_up_to_where_it_was_agreed_is_known_to_the_agreement_after_a_restart() -> None:
    """Who led before that leads nothing that follows (`test_proofs`)."""
    bench = restarted(entries=(RULES,), reached=Reached(rules=PROOFS_SINCE, applied=EPOCH + 1))
    assert bench.machine.raft._core.noted_agreed == EPOCH + 1


def test_it_is_noted_when_it_is_agreed() -> None:
    bench = restarted()
    assert not [one for one in bench.hear(A, entries_of(9, RULES)) if isinstance(one, NoteReached)]
    later = AppendRequest(
        term=9, leader=A, previous_index=EPOCH + 1, previous_term=1, entries=(), commit_index=EPOCH + 1, tenure=0
    )
    noted = [one.reached.rules for one in bench.hear(A, RaftEnvelope(message=later)) if isinstance(one, NoteReached)]
    assert noted == [PROOFS_SINCE]
