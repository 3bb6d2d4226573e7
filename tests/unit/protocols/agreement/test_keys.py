"""A site's key changes in two commands, each with what proves it; what is false changes nothing (spec 20)."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from tests.rigs.keys import RigKeys
from tests.unit.protocols.one_site import A, B, C, D, roster_of

from chaos_protocols.agreement.commands import (
    Command,
    apply_command,
    decode_command,
    decode_roster,
    encode_command,
    encode_roster,
)
from chaos_protocols.agreement.key_commands import ApproveKey, SettleKey, keys_of, why_not
from chaos_protocols.agreement.key_ring import KeyRing, NoKeys
from chaos_protocols.agreement.raft import HardState, RaftMachine, RaftSettings
from chaos_protocols.agreement.raft.messages import LogEntry
from chaos_protocols.agreement.replica import RosterReplica
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.membership.facts import last_known_roster
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import (
    CHANGES_MAX,
    KEYS_KEPT_MAX,
    KeyApproval,
    KeyChain,
    SiteKeys,
    approval_words,
    use_words,
    with_change,
)
from chaos_protocols.wire.versions import KEYS_SINCE

RUN = "ab" * 16
OTHER_RUN = "cd" * 16


def chain_of(site: SiteId, *, changes: int = 1, run: str = RUN) -> KeyChain:
    """The chain of a site that has changed its key so often."""
    chain = KeyChain(first=RigKeys(site).public_key)
    for number in range(changes):
        chain = with_change(chain, run, RigKeys(site, number), RigKeys(site, number + 1))
    return chain


def approval_of(site: SiteId, number: int, by: RigKeys, *, run: str = RUN, key_id: str = "") -> KeyApproval:
    """By whoever has these keys."""
    key_id = key_id or by.owner(RigKeys(site, number).public_key)
    return KeyApproval(
        site=site,
        number=number,
        key_id=SiteId(key_id),
        public_key=by.public_key,
        signature=by.sign(approval_words(run, site, number, key_id)),
    )


def approved(site: SiteId = A, *, number: int = 1, by: SiteId = B) -> ApproveKey:
    """The command with which the change of this number counts."""
    approval = approval_of(site, number, RigKeys(by))
    return ApproveKey(site=site, chain=chain_of(site, changes=number), by=by, approval=approval)


def settled(site: SiteId = A, *, number: int = 1, run: str = RUN) -> SettleKey:
    """The command with which it is settled."""
    return SettleKey(site=site, number=number, signature=RigKeys(site, number).sign(use_words(run, site, number)))


def of_run(*commands: Command, **changes: object) -> Roster:
    """A, B, C are members, D is a learner."""
    roster = roster_of(A, B, C, learners=(D,), run_id=RUN, **changes)
    for command in commands:
        roster = apply_command(roster, command, roster.epoch + 1)
    return roster


def changed(command: Command, **fields: object) -> Command:
    return msgspec.structs.replace(command, **fields)  # type: ignore[type-var]


def test_both_keys_count_and_then_the_new_one_alone() -> None:
    signer = RigKeys(C)
    assert why_not(of_run(), signer, approved()) == ""
    both = of_run(approved())
    known = keys_of(both, A)
    assert known is not None and known.counting == (RigKeys(A).public_key, RigKeys(A, 1).public_key)
    assert why_not(both, signer, settled()) == ""
    alone = of_run(approved(), settled())
    known = keys_of(alone, A)
    assert known is not None and known.counting == (RigKeys(A, 1).public_key,)
    record = alone.record(A)
    assert record is not None and record.public_key == RigKeys(A, 1).public_key
    assert why_not(alone, signer, approved(number=2)) == "", "and so on"


def test_an_approval_may_be_signed_with_the_newest_key_of_its_site() -> None:
    roster = of_run(approved(B, by=C), settled(B))
    command = changed(approved(), approval=approval_of(A, 1, RigKeys(B, 1)))
    assert why_not(roster, RigKeys(C), command) == ""  # type: ignore[arg-type]
    assert "does not count" in why_not(roster, RigKeys(C), approved())


TWO_CHANGES = chain_of(A, changes=2)
FALSE: dict[str, tuple[Callable[[], Roster], Callable[[], Command]]] = {
    "by the site itself": (of_run, lambda: approved(by=A)),
    "by a learner": (of_run, lambda: approved(by=D)),
    "by nobody of the run": (of_run, lambda: approved(by=SiteId("e" * 32))),
    "of another run": (of_run, lambda: changed(approved(), chain=chain_of(A, run=OTHER_RUN))),
    "approved in another run": (
        of_run,
        lambda: changed(approved(), approval=approval_of(A, 1, RigKeys(B), run=RUN[2:])),
    ),
    "another key was approved": (
        of_run,
        lambda: changed(approved(), approval=approval_of(A, 1, RigKeys(B), key_id="f" * 32)),
    ),
    "another number was approved": (of_run, lambda: changed(approved(), approval=approval_of(A, 2, RigKeys(B)))),
    "the approval of another site's change": (
        of_run,
        lambda: changed(approved(), approval=approval_of(C, 1, RigKeys(B))),
    ),
    "signed by somebody else than who approves": (
        of_run,
        lambda: changed(approved(), approval=changed_signature(approval_of(A, 1, RigKeys(B)), RigKeys(C))),
    ),
    "without the former key": (of_run, lambda: changed(approved(), chain=forged(former=RigKeys(C)))),
    "without the new key": (of_run, lambda: changed(approved(), chain=forged(new=RigKeys(C)))),
    "to the key that it has": (of_run, lambda: to_the_same_key()),
    "of a site that is not in the run": (
        lambda: msgspec.structs.replace(of_run(), sites=of_run().sites[1:]),
        approved,
    ),
    "before the last one is settled": (lambda: of_run(approved()), lambda: approved(number=2)),
    "twice": (lambda: of_run(approved(), settled()), approved),
    "with one left out": (of_run, lambda: changed(approved(number=2), chain=TWO_CHANGES)),
    "in a run without an id": (lambda: msgspec.structs.replace(of_run(), run_id=""), approved),
    "settled before it is agreed": (of_run, settled),
    "settled twice": (lambda: of_run(approved(), settled()), settled),
    "settled by the former key": (
        lambda: of_run(approved()),
        lambda: changed(settled(), signature=RigKeys(A).sign(use_words(RUN, A, 1))),
    ),
    "settled in another run": (lambda: of_run(approved()), lambda: settled(run=OTHER_RUN)),
    "settled with another number": (lambda: of_run(approved()), lambda: settled(number=2)),
    "settled for another site": (lambda: of_run(approved()), lambda: changed(settled(), site=B)),
}


def changed_signature(approval: KeyApproval, by: RigKeys) -> KeyApproval:
    words = approval_words(RUN, approval.site, approval.number, approval.key_id)
    return msgspec.structs.replace(approval, signature=by.sign(words))


def forged(*, former: RigKeys | None = None, new: RigKeys | None = None) -> KeyChain:
    """One change of A's key that these have signed in place of the right ones."""
    right = chain_of(A)
    change = right.changes[0]
    wrong = with_change(KeyChain(first=right.first), RUN, former or RigKeys(A), new or RigKeys(A, 1)).changes[0]
    return msgspec.structs.replace(
        right,
        changes=(
            msgspec.structs.replace(
                change,
                by_former=wrong.by_former if former else change.by_former,
                by_new=wrong.by_new if new else change.by_new,
            ),
        ),
    )


def to_the_same_key() -> ApproveKey:
    same = with_change(KeyChain(first=RigKeys(A).public_key), RUN, RigKeys(A), RigKeys(A))
    return ApproveKey(site=A, chain=same, by=B, approval=approval_of(A, 1, RigKeys(B), key_id=A))


def replica_of(roster: Roster) -> RosterReplica:
    raft = RaftMachine(
        C,
        settings=RaftSettings(election_timeout_s=1.0, heartbeat_interval_s=0.25),
        rng=random.Random(1),
        hard_state=HardState(0, None),
        snapshot=None,
        entries=(),
        now_s=0.0,
    )
    return RosterReplica(C, raft, roster, roster, keys=KeyRing(RigKeys(C)), now_s=0.0)


@pytest.mark.parametrize("case", FALSE)
def test_what_is_not_proven_changes_nothing(case: str) -> None:
    roster, command = (make() for make in FALSE[case])
    assert isinstance(command, ApproveKey | SettleKey) and isinstance(roster, Roster)
    assert why_not(roster, RigKeys(C), command) != ""
    replica = replica_of(roster)
    assert replica.apply(command, roster.epoch + 1) == roster


@pytest.mark.parametrize("case", FALSE)
def test_what_is_not_proven_counts_for_nothing_after_a_restart_either(case: str) -> None:
    """The end of a journal may hold what a scheduler has made up (simulator, a member that lies: seeds 21 and 29)."""
    roster, command = (make() for make in FALSE[case])
    assert isinstance(command, ApproveKey | SettleKey) and isinstance(roster, Roster)
    entry = LogEntry(index=roster.epoch + 1, term=1, command=encode_command(command))
    assert last_known_roster(roster, (entry,), RigKeys(C)) == roster


def test_what_is_proven_counts_after_a_restart() -> None:
    roster = of_run()
    commands = enumerate((approved(), settled()), start=roster.epoch + 1)
    entries = tuple(LogEntry(index=index, term=1, command=encode_command(command)) for index, command in commands)
    known = keys_of(last_known_roster(roster, entries, RigKeys(C)), A)
    assert known is not None and known.is_settled


def test_a_chain_that_its_keys_have_not_signed_counts_in_no_roster() -> None:
    """A snapshot brings a roster as whoever schedules has it."""
    for chain in (forged(former=RigKeys(C)), forged(new=RigKeys(C)), chain_of(B)):
        ring = KeyRing(RigKeys(C))
        assert ring.follow(RUN, (SiteKeys(site=A, chain=chain, settled=1),)) == []
        assert ring.counts(A, RigKeys(A).public_key)


def test_what_is_proven_is_applied_and_counts() -> None:
    replica = replica_of(of_run())
    for command in (approved(), settled()):
        _, news = replica.install(replica.apply(command, replica.roster.epoch + 1))
        assert news == [A]
    assert not replica.keys.counts(A, RigKeys(A).public_key)
    assert replica.keys.counts(A, RigKeys(A, 1).public_key)
    assert replica.install(replica.roster)[1] == [], "no news"


def test_a_run_agrees_on_the_keys_of_so_many_sites_alone() -> None:
    many = tuple(SiteKeys(site=SiteId(f"{n:032d}"), chain=chain_of(B), settled=1) for n in range(KEYS_KEPT_MAX))
    assert "already" in why_not(of_run(keys=many), RigKeys(C), approved())
    assert why_not(of_run(keys=many[1:]), RigKeys(C), approved()) == ""


def test_commands_and_rosters_are_read_as_they_were_written() -> None:
    for command in (approved(), settled()):
        assert decode_command(encode_command(command)) == msgspec.structs.replace(command, needs=KEYS_SINCE)
    roster = of_run(approved(), settled())
    assert decode_roster(encode_roster(roster)) == roster


def test_the_longest_chain_fits_the_bounds() -> None:
    chain = chain_of(A, changes=CHANGES_MAX)
    assert chain.is_sound(RigKeys(B))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chain), type=KeyChain) == chain
    longer = chain_of(A, changes=CHANGES_MAX + 1)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=KeyChain)


# --- the ring


def test_without_a_change_the_key_counts_that_the_id_names() -> None:
    ring = KeyRing(RigKeys(C))
    assert ring.counts(A, RigKeys(A).public_key)
    assert not ring.counts(A, RigKeys(B).public_key)
    assert not ring.counts(A, RigKeys(A, 1).public_key)
    assert not KeyRing(NoKeys()).counts(A, RigKeys(A).public_key)


def test_who_slept_follows_a_chain_from_a_key_that_counts() -> None:
    ring = KeyRing(RigKeys(C))
    ring.follow(RUN, ())
    assert ring.accepts(A, chain_of(A, changes=3))
    assert not ring.accepts(B, chain_of(A, changes=3)), "of another site"
    assert not ring.accepts(A, chain_of(A, changes=3, run=OTHER_RUN)), "of another run"
    assert not ring.accepts(A, forged(former=RigKeys(C)))
    assert not ring.accepts(A, forged(new=RigKeys(C)))
    ring.follow(RUN, of_run(approved(), settled()).keys)
    assert ring.accepts(A, chain_of(A, changes=3)), "from the second on"
    assert not ring.accepts(A, chain_of(A, changes=0)), "the former key"


def test_a_chain_that_a_thief_has_made_ends_with_the_settlement() -> None:
    """Who has the former key can sign a change to a key of his own, which nobody has approved."""
    mine = with_change(KeyChain(first=RigKeys(A).public_key), RUN, RigKeys(A), RigKeys(SiteId("thief"), 7))
    ring = KeyRing(RigKeys(C))
    ring.follow(RUN, ())
    assert ring.accepts(A, mine), "as the key that he has counts itself"
    ring.follow(RUN, of_run(approved()).keys)
    assert ring.accepts(A, mine), "as that still counts"
    ring.follow(RUN, of_run(approved(), settled()).keys)
    assert not ring.accepts(A, mine)
    ring.told(B, [mine])
    assert not ring.counts(A, mine.key)
    assert not ring.counts(A, mine.first)


def test_a_neighbour_tells_of_others_and_takes_nothing_away() -> None:
    ring, key = KeyRing(RigKeys(C)), RigKeys(A, 1).public_key
    ring.follow(RUN, ())
    ring.told(B, [chain_of(A)])
    assert ring.counts(A, key) and ring.verify(A, key, RigKeys(A, 1).sign(b"a word"), b"a word")
    assert not ring.verify(A, key, RigKeys(A).sign(b"a word"), b"a word")
    ring.told(D, [with_change(KeyChain(first=RigKeys(A).public_key), RUN, RigKeys(A), RigKeys(D, 1))])
    assert ring.counts(A, key), "another one tells of another chain"
    ring.forget(B)
    assert not ring.counts(A, key), "with its link goes what it has told"


def test_what_was_agreed_is_never_taken_back() -> None:
    """The journal of a site that is started again knows more than what is known to be agreed."""
    ring = KeyRing(RigKeys(C))
    assert ring.follow(RUN, of_run(approved(), settled()).keys) == [A]
    assert ring.follow(RUN, of_run(approved()).keys) == []
    assert ring.follow(RUN, ()) == []
    assert not ring.counts(A, RigKeys(A).public_key)
    assert ring.follow(RUN, of_run(approved(), settled(), approved(number=2)).keys) == [A]


def test_it_tells_what_is_agreed_and_its_own_chain() -> None:
    ring = KeyRing(RigKeys(C, 1), chain_of(C))
    assert ring.chains() == (chain_of(C),)
    ring.follow(RUN, of_run(approved(), settled()).keys)
    assert set(ring.chains()) == {chain_of(C), chain_of(A)}
    ring.follow(RUN, of_run(approved(C, by=B), settled(C), approved(C, number=2, by=B)).keys)
    assert set(ring.chains()) == {chain_of(C, changes=2), chain_of(A)}, "the longer one"
