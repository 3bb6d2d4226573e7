"""Two sources must name one hash before a block counts (`verify = "witness"`): who is asked, who is believed, when it
ends without a decision."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.protocols.state.transfer.test_joiner import SETTINGS, A, B, C, plan

from chaos_protocols.names import SiteId
from chaos_protocols.state.transfer import (
    CheckBlock,
    FetchFailed,
    JoinerEffect,
    SendHeader,
    SourceDropped,
    SourceState,
    StateFetched,
    TransferMachine,
)
from chaos_protocols.state.transfer.assignment import REPLAN_INTERVAL_S
from chaos_protocols.state.transfer.sources import BLOCK_BYTES_FIRST as BLOCK
from chaos_protocols.wire.bulk import BlockData, BlockDrop, BlockWait, BlockWant, WitnessHash, WitnessWant

RIGHT, WRONG = b"r" * 32, b"w" * 32


class Court:
    """A joiner that believes no source alone, and what it asked for. One block a source, unless the plan says more."""

    def __init__(self, links: str = "ab", **sizes: int) -> None:
        settings = replace(SETTINGS, witness=True)
        self.machine = TransferMachine(plan(**(sizes or dict.fromkeys(links, BLOCK))), settings=settings)
        self.now_s = 100.0
        self.wanted: list[tuple[SiteId, int]] = []
        self.asked: list[tuple[SiteId, int]] = []
        self.log: list[JoinerEffect] = []
        self.take(self.machine.start(frozenset(SiteId(name) for name in links), now_s=self.now_s))

    def take(self, effects: list[JoinerEffect]) -> list[JoinerEffect]:
        for effect in effects:
            match effect:
                case SendHeader(site=site, header=WitnessWant(start=start)):
                    self.asked.append((site, start))
                case SendHeader(site=site, header=BlockWant(start=start)):
                    self.wanted.append((site, start))
                case SendHeader() | CheckBlock():
                    pass
                case _:
                    self.log.append(effect)
        return effects

    def come(self, site: SiteId, start: int, digest: bytes = RIGHT) -> None:
        """A block arrives with this hash."""
        header = BlockData(transfer="t", start=start, hash=digest)
        self.take(self.machine.received(site, header, BLOCK, now_s=self.now_s))

    def check(self, site: SiteId, start: int) -> None:
        """It has the hash that came with it."""
        self.take(self.machine.verified(site, start, start + BLOCK, now_s=self.now_s))

    def say(self, site: SiteId, start: int, digest: bytes = RIGHT) -> list[JoinerEffect]:
        """A witness names its hash."""
        told = WitnessHash(transfer="t", start=start, stop=start + BLOCK, hash=digest)
        return self.take(self.machine.told(site, told, now_s=self.now_s))

    def lose(self, site: SiteId) -> None:
        self.take(self.machine.link_lost(site, now_s=self.now_s))

    @property
    def dropped(self) -> list[tuple[SiteId, bool]]:
        return [(one.source, one.wrong) for one in self.log if isinstance(one, SourceDropped)]


def test_with_a_single_source_there_is_no_witness_and_the_transfer_fails_at_once() -> None:
    court = Court("a")
    (failed,) = court.log
    assert isinstance(failed, FetchFailed) and "needs two sources" in failed.reason
    assert court.machine.ended and not court.wanted
    assert Court("a", a=0).log == [StateFetched()], "nothing to vouch for"


def test_a_block_counts_when_it_is_checked_and_another_source_names_its_hash() -> None:
    court = Court()
    court.come(A, 0)
    assert court.asked == [(B, 0)]
    court.check(A, 0)
    assert court.machine.verified_bytes == 0, "by the word of its own source alone"
    court.say(B, 0)
    assert court.machine.verified_bytes == BLOCK
    court.come(B, BLOCK)
    court.say(A, BLOCK)
    assert court.machine.verified_bytes == BLOCK, "its witness was faster than its own check"
    court.check(B, BLOCK)
    assert court.log == [StateFetched()]


def test_a_word_that_nobody_asked_for_vouches_for_nothing() -> None:
    court = Court("abc")
    court.come(A, 0)
    court.check(A, 0)
    ((witness, _),) = court.asked
    assert witness == B
    court.say(C, 0)
    told = WitnessHash(transfer="t", start=0, stop=BLOCK // 2, hash=RIGHT)
    assert court.machine.told(B, told, now_s=court.now_s) == [], "of another range"
    court.say(B, BLOCK)
    assert court.machine.verified_bytes == 0


def test_of_two_hashes_the_one_that_a_third_source_names_stands() -> None:
    court = Court("abc")
    court.come(A, 0, WRONG)
    court.check(A, 0)
    court.say(B, 0)
    assert court.asked == [(B, 0), (C, 0)]
    court.say(C, 0)
    assert court.dropped == [(A, True)]
    assert court.machine.verified_bytes == 0
    assert (B, 0) in court.wanted or (C, 0) in court.wanted, "it is fetched from one that is believed"


def test_a_witness_that_is_outvoted_is_excluded_and_the_block_counts() -> None:
    court = Court("abc")
    court.come(A, 0)
    court.check(A, 0)
    court.say(B, 0, WRONG)
    court.say(C, 0)
    assert court.dropped == [(B, True)]
    assert court.machine.verified_bytes == BLOCK
    assert court.machine.sources()[B] is SourceState.EXCLUDED


def test_where_two_disagree_and_no_third_is_left_the_transfer_fails_and_names_both() -> None:
    court = Court()
    court.come(A, 0)
    court.check(A, 0)
    court.say(B, 0, WRONG)
    assert court.dropped == [(A, True), (B, True)]
    failed = court.log[-1]
    assert isinstance(failed, FetchFailed) and "a, b have different states" in failed.reason
    assert court.machine.ended and court.machine.verified_bytes == 0


def test_a_source_that_is_excluded_already_is_not_dropped_again_by_a_later_verdict() -> None:
    court = Court("abc", a=2 * BLOCK, b=BLOCK, c=BLOCK)
    for start in (0, BLOCK):
        court.come(A, start, WRONG)
        court.check(A, start)
    court.say(B, 0)
    court.say(C, BLOCK)
    assert court.asked[2:] == [(C, 0), (B, BLOCK)]
    court.say(C, 0)
    court.say(B, BLOCK)
    assert court.dropped == [(A, True)]
    assert not court.machine.ended


def test_a_block_that_came_while_no_witness_was_there_is_vouched_for_by_the_next_one() -> None:
    court = Court()
    court.lose(B)
    court.come(A, 0)
    court.check(A, 0)
    assert not court.asked and court.machine.verified_bytes == 0
    court.take(court.machine.link_up(B, now_s=court.now_s))
    assert court.asked == [(B, 0)]
    court.say(B, 0)
    assert court.machine.verified_bytes == BLOCK


def test_the_word_of_a_lost_witness_is_asked_of_another_source() -> None:
    court = Court("abc")
    court.come(A, 0)
    court.check(A, 0)
    court.lose(B)
    assert court.asked == [(B, 0), (C, 0)]
    court.say(C, 0)
    assert court.machine.verified_bytes == BLOCK


def test_a_witness_that_says_nothing_is_given_up_like_a_source_that_sends_nothing() -> None:
    court = Court("abc")
    for site, start in ((B, BLOCK), (C, 2 * BLOCK)):
        court.come(site, start)
    assert court.asked == [(A, BLOCK), (B, 2 * BLOCK)]
    court.say(B, 2 * BLOCK)
    court.now_s += SETTINGS.stall_timeout_s
    court.take(court.machine.due(now_s=court.now_s))
    assert court.dropped == [(A, False)] and court.asked[2:] == [(C, BLOCK)]


def test_a_block_with_a_wrong_hash_needs_no_witness() -> None:
    court = Court("abc")
    court.come(A, 0)
    court.take(court.machine.refuted(A, 0, BLOCK, now_s=court.now_s))
    assert court.dropped == [(A, True)]
    court.say(B, 0)
    assert court.machine.verified_bytes == 0


def test_nothing_is_judged_after_the_end() -> None:
    court = Court()
    court.come(A, 0)
    court.take(court.machine.cancel())
    assert court.machine.verified(A, 0, BLOCK, now_s=court.now_s) == []
    assert court.say(B, 0) == []
    assert court.machine.verified_bytes == 0


def test_what_a_waiting_source_owes_goes_with_its_words_to_those_that_have_the_snapshot() -> None:
    court = Court("abc")
    court.come(A, 0)
    assert court.asked == [(B, 0)]
    court.take(court.machine.told(B, BlockWait(transfer="t"), now_s=court.now_s))
    court.come(C, 2 * BLOCK)
    court.now_s += 2 * REPLAN_INTERVAL_S
    out = court.take(court.machine.due(now_s=court.now_s))
    assert SendHeader(site=B, header=BlockDrop(transfer="t")) in out
    assert (C, 0) in court.asked, "B would hash it only when its snapshot is taken"
    assert {(A, BLOCK), (C, BLOCK)} & set(court.wanted)


def test_the_patience_with_a_witness_does_not_grow_because_others_send() -> None:
    court = Court(a=4 * BLOCK, b=BLOCK)
    court.come(B, 4 * BLOCK)
    court.check(B, 4 * BLOCK)
    court.say(A, 4 * BLOCK)  # from now on B has nothing to send, only to vouch
    court.come(A, 0)
    assert court.asked[-1] == (B, 0)
    court.now_s += SETTINGS.stall_timeout_s / 2
    court.come(A, BLOCK)
    court.take(court.machine.due(now_s=court.now_s))
    assert court.dropped == []
    court.now_s += SETTINGS.stall_timeout_s / 2
    court.take(court.machine.due(now_s=court.now_s))
    assert court.dropped == [(B, False)]
