"""A joiner's bookkeeping, event by event, with the time given by hand (spec 11)."""

from __future__ import annotations

import pytest

from chaos_protocols.errors import LocalProtocolError
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
    TransferSettings,
)
from chaos_protocols.state.transfer.assignment import OUTSTANDING_BYTES_MAX, REPLAN_INTERVAL_S
from chaos_protocols.state.transfer.ranges import cut
from chaos_protocols.wire.bulk import (
    BLOCK_BYTES_MAX,
    BLOCK_BYTES_MIN,
    BlockData,
    BlockDrop,
    BlockGone,
    BlockReady,
    BlockWait,
    BlockWant,
)
from chaos_protocols.wire.plans import ReplicationPlan, SourceRange

A, B, C = (SiteId(name) for name in "abc")
MIB = 1 << 20
SETTINGS = TransferSettings(stall_timeout_s=2.0, wait_timeout_s=10.0)
HASH = bytes(32)


def plan(**sizes: int) -> ReplicationPlan:
    ranges, start = [], 0
    for name, size in sizes.items():
        ranges.append(SourceRange(source=SiteId(name), start=start, stop=start + size))
        start += size
    return ReplicationPlan(
        transfer="t", joiner=C, round=1, state_bytes=start, shard_bytes=4096, ranges=tuple(ranges), reason="by hand"
    )


class Run:
    """A machine, and a world that delivers what was asked when the test says so."""

    def __init__(self, plan: ReplicationPlan, links: str = "ab", rates: dict[SiteId, float] | None = None) -> None:
        self.machine = TransferMachine(plan, settings=SETTINGS, rates=rates)
        self.now_s = 100.0
        self.asked: dict[SiteId, list[tuple[int, int]]] = {A: [], B: []}
        self.log: list[JoinerEffect] = []
        self.take(self.machine.start(frozenset(SiteId(name) for name in links), now_s=self.now_s))

    def take(self, effects: list[JoinerEffect]) -> list[JoinerEffect]:
        for effect in effects:
            match effect:
                case SendHeader(site=site, header=BlockWant(start=start, stop=stop, block_bytes=block)):
                    assert 0 < block <= BLOCK_BYTES_MAX and block.bit_count() == 1
                    self.asked[site] += cut(start, stop, block)
                case SendHeader(site=site, header=BlockDrop()):
                    self.asked[site].clear()
                case _:
                    self.log.append(effect)
        return effects

    def deliver(self, site: SiteId, count: int = 1, *, right: bool = True, after_s: float = 0.01) -> None:
        """The next blocks that a source was asked for arrive and are checked."""
        for _ in range(count):
            self.now_s += after_s
            start, stop = self.asked[site].pop(0)
            header = BlockData(transfer="t", start=start, hash=HASH)
            assert self.machine.takes(site, header, stop - start)
            self.machine.begins(site, start, now_s=self.now_s)
            self.take(self.machine.received(site, header, stop - start, now_s=self.now_s))
            assert self.log.pop(-1) == CheckBlock(source=site, start=start, stop=stop, hash=HASH)
            check = CheckBlock(source=site, start=start, stop=stop, hash=HASH)
            self.take(self.machine.checked(check, HASH if right else b"other" + HASH[5:], now_s=self.now_s))

    def finish(self) -> None:
        for _ in range(10_000):
            if self.machine.ended:
                return
            for site in (A, B):
                if self.asked[site] and not self.machine.ended:
                    self.deliver(site)
            self.pass_time(0.01)
        raise AssertionError("the transfer does not end")

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        deadline_s = self.machine.deadline_s
        if deadline_s is not None and self.now_s >= deadline_s:
            self.take(self.machine.due(now_s=self.now_s))

    @property
    def dropped(self) -> list[tuple[SiteId, str]]:
        return [(effect.source, effect.reason) for effect in self.log if isinstance(effect, SourceDropped)]


def test_each_source_is_asked_for_its_own_ranges_and_the_end_is_told_once() -> None:
    run = Run(plan(a=3 * MIB, b=2 * MIB))
    assert run.asked[A][0][0] == 0 and run.asked[A][-1][1] == 3 * MIB
    assert run.asked[B][0][0] == 3 * MIB
    run.finish()
    assert run.log == [StateFetched()]
    assert run.machine.deadline_s is None
    assert run.machine.due(now_s=run.now_s + 99) == []
    assert run.machine.verified_bytes == 5 * MIB
    assert all(one.rate_bytes_per_s > 0 for one in run.machine.progress().values())
    assert {site: one.received_bytes for site, one in run.machine.progress().items()} == {A: 3 * MIB, B: 2 * MIB}


def test_an_empty_state_is_there_at_once() -> None:
    assert Run(plan()).log == [StateFetched()]
    assert Run(plan(a=0)).log == [StateFetched()]


@pytest.mark.parametrize(
    "ranges", [((A, 0, 5), (B, 6, 10)), ((A, 0, 6), (B, 5, 10)), ((A, 0, 9),), ((A, 0, 10), (B, 0, 10)), ((A, 1, 11),)]
)
def test_a_plan_that_does_not_cover_the_state_once_is_refused(ranges: tuple[tuple[SiteId, int, int], ...]) -> None:
    parts = tuple(SourceRange(source=site, start=start, stop=stop) for site, start, stop in ranges)
    wrong = ReplicationPlan(
        transfer="t", joiner=C, round=1, state_bytes=10, shard_bytes=1, ranges=parts, reason="wrong"
    )
    with pytest.raises(LocalProtocolError, match="does not cover the state exactly once"):
        TransferMachine(wrong)


@pytest.mark.parametrize("name", ["stall_timeout_s", "wait_timeout_s"])
def test_a_timeout_must_be_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0.0"):
        TransferSettings(**{name: 0.0})


def test_the_rest_of_a_lost_source_goes_to_the_others() -> None:
    run = Run(plan(a=8 * MIB, b=8 * MIB))
    run.deliver(A, 2)
    run.asked[A].clear()
    run.take(run.machine.link_lost(A, now_s=run.now_s))
    assert run.dropped == [(A, "its link was lost")]
    assert run.machine.link_lost(A, now_s=run.now_s) == []
    assert run.machine.sources() == {A: SourceState.DOWN, B: SourceState.READY}
    run.finish()
    assert StateFetched() in run.log
    assert not run.asked[A]


def test_a_source_whose_link_comes_back_gets_a_part_again() -> None:
    run = Run(plan(a=30 * MIB, b=30 * MIB))
    run.deliver(A, 2)
    run.asked[A].clear()
    run.take(run.machine.link_lost(A, now_s=run.now_s))
    run.pass_time(0.5)
    run.take(run.machine.link_up(A, now_s=run.now_s))
    assert run.asked[A]
    assert run.machine.link_up(C, now_s=run.now_s) == []
    assert run.machine.link_lost(C, now_s=run.now_s) == []
    run.finish()


def test_links_that_are_down_at_the_start_are_waited_for_then_the_transfer_fails() -> None:
    run = Run(plan(a=MIB, b=MIB), links="")
    assert run.log == []
    run.pass_time(1.9)
    assert not run.machine.ended
    run.take(run.machine.link_up(B, now_s=run.now_s))
    assert run.asked[B][0][0] == 0, "it takes over the part of the one that is down"
    run.take(run.machine.link_lost(B, now_s=run.now_s))
    run.pass_time(1.9)
    assert not run.machine.ended
    run.pass_time(0.2)
    (failed,) = [effect for effect in run.log if isinstance(effect, FetchFailed)]
    assert failed.reason == "no source is left (a: no link; b: no link)"
    assert run.machine.link_up(A, now_s=run.now_s) == []
    assert run.machine.told(A, BlockGone(transfer="t"), now_s=run.now_s) == []


def test_a_source_without_progress_is_given_up_after_the_timeout() -> None:
    run = Run(plan(a=MIB, b=9 * MIB))
    while run.asked[B]:
        run.deliver(B)
        run.pass_time(0.0)
    run.machine.progressed(A, now_s=101.0)
    run.machine.progressed(C, now_s=101.0)
    run.pass_time(102.9 - run.now_s)
    assert run.dropped == []
    run.machine.progressed(B, now_s=run.now_s)
    run.pass_time(0.2)
    assert run.dropped == [(A, "it showed no progress for 2 s")]
    late = BlockData(transfer="t", start=0, hash=HASH)
    assert not run.machine.takes(A, late, MIB)
    assert run.machine.received(A, late, MIB, now_s=run.now_s) == []
    run.finish()


def test_what_still_comes_of_an_earlier_transfer_shows_that_its_source_is_not_silent() -> None:
    run = Run(plan(a=MIB), links="a")
    for _ in range(6):
        run.pass_time(1.5)
        run.machine.passed_by(A, 1 << 16, now_s=run.now_s)
        run.machine.passed_by(C, 1 << 16, now_s=run.now_s)
    assert run.dropped == []
    run.finish()
    run = Run(plan(a=MIB), links="a")
    while not run.dropped:
        run.machine.passed_by(A, 0, now_s=run.now_s)
        run.pass_time(1.5)
    waited_s = run.now_s - 100.0
    assert SETTINGS.wait_timeout_s < waited_s < SETTINGS.wait_timeout_s + 3 * SETTINGS.stall_timeout_s


def test_of_a_source_that_was_slow_over_its_link_little_is_asked_when_the_transfer_begins_anew() -> None:
    """What was asked for comes, wanted or not: the next transfer waits for it (seed 2641, 3 sites, slow links)."""
    run = Run(plan(a=8 * MIB), links="a")
    assert sum(stop - start for start, stop in run.asked[A]) == 4 * MIB, "nothing is known of it"
    for _ in range(8):
        run.now_s += 0.5
        run.machine.passed_by(A, 1 << 16, now_s=run.now_s)
    rates = run.machine.rates()
    assert rates == {A: pytest.approx(131_072)} and run.machine.sources()[A] is SourceState.READY
    again = Run(plan(a=8 * MIB), links="a", rates=rates)
    assert sum(stop - start for start, stop in again.asked[A]) == 2 * BLOCK_BYTES_MIN
    assert again.machine.rates() == rates
    run.take(run.machine.link_lost(A, now_s=run.now_s))
    assert run.machine.rates() == {}, "its next link may be another one"


def test_a_source_without_its_snapshot_is_waited_for_much_longer() -> None:
    run = Run(plan(a=MIB), links="a")
    run.take(run.machine.told(A, BlockWait(transfer="t"), now_s=run.now_s))
    run.take(run.machine.told(A, BlockWait(transfer="t"), now_s=run.now_s + 5))
    assert run.machine.told(A, BlockWait(transfer="other"), now_s=run.now_s) == []
    run.pass_time(9.9)
    assert run.machine.sources()[A] is SourceState.WAITING
    run.machine.progressed(A, now_s=run.now_s)
    run.finish()
    run = Run(plan(a=MIB, b=MIB))
    for site in (A, B):
        run.take(run.machine.told(site, BlockWait(transfer="t"), now_s=run.now_s))
    run.pass_time(10.1)
    assert [reason for _, reason in run.dropped] == ["its snapshot was not taken within 10 s"] * 2
    run.pass_time(2.1)
    assert isinstance(run.log[-1], FetchFailed)


def test_sources_that_have_the_snapshot_do_the_part_of_one_that_waits() -> None:
    run = Run(plan(a=20 * MIB, b=2 * MIB))
    run.take(run.machine.told(A, BlockWait(transfer="t"), now_s=run.now_s))
    run.finish()
    assert run.dropped == []
    assert run.now_s < 100.0 + SETTINGS.wait_timeout_s


def test_a_source_that_no_longer_has_the_snapshot_is_not_asked_again() -> None:
    run = Run(plan(a=4 * MIB, b=4 * MIB))
    run.take(run.machine.told(A, BlockGone(transfer="t"), now_s=run.now_s))
    run.asked[A].clear()
    run.take(run.machine.link_up(A, now_s=run.now_s))
    assert not run.asked[A]
    run.take(run.machine.told(B, BlockGone(transfer="t"), now_s=run.now_s))
    (failed,) = [effect for effect in run.log if isinstance(effect, FetchFailed)]
    assert "has nothing right to give" in failed.reason


def test_a_wrong_block_is_fetched_from_another_source_and_reported() -> None:
    run = Run(plan(a=4 * MIB, b=4 * MIB))
    first = run.asked[A][0]
    run.deliver(A, right=False)
    run.asked[A].clear()
    assert [(effect.source, effect.wrong) for effect in run.log if isinstance(effect, SourceDropped)] == [(A, True)]
    run.finish()
    assert not run.asked[A]
    assert not run.machine.verified_ranges.missing(*first)


def test_the_only_source_is_asked_again_for_a_wrong_block_three_times() -> None:
    run = Run(plan(a=MIB), links="a")
    run.deliver(A, right=False)
    run.deliver(A, right=False)
    assert not run.machine.ended
    run.deliver(A, right=False)
    assert isinstance(run.log[-1], FetchFailed)
    run = Run(plan(a=MIB), links="a")
    run.deliver(A, right=False)
    run.finish()
    assert run.log[-1] == StateFetched()


def test_a_slow_source_keeps_only_what_it_can_do_in_time() -> None:
    run = Run(plan(a=60 * MIB, b=60 * MIB))
    given = {A: 0, B: 0}
    while not run.machine.ended:
        for site, share in ((A, 8), (B, 1)):
            for _ in range(share):
                if run.asked[site] and not run.machine.ended:
                    given[site] += run.asked[site][0][1] - run.asked[site][0][0]
                    run.deliver(site, after_s=0.0)
        run.pass_time(0.02)
    assert given[A] + given[B] == 120 * MIB, "nothing is sent twice"
    assert given[B] < 30 * MIB
    assert run.dropped == []


def test_cancelling_tells_the_sources_and_late_blocks_change_nothing() -> None:
    run = Run(plan(a=MIB, b=MIB))
    start, stop = run.asked[A][0]
    header = BlockData(transfer="t", start=start, hash=HASH)
    run.machine.received(A, header, stop - start, now_s=run.now_s)
    assert run.machine.cancel() == [SendHeader(site=site, header=BlockDrop(transfer="t")) for site in (A, B)]
    assert run.machine.verified(A, start, stop, now_s=run.now_s) == []
    assert run.machine.refuted(B, start, stop, now_s=run.now_s) == []
    assert not run.machine.takes(A, header, stop - start)
    assert run.machine.link_lost(A, now_s=run.now_s) == []
    assert not run.machine.takes(A, BlockData(transfer="other", start=0, hash=HASH), 1)


def test_what_is_outstanding_is_bounded_for_all_sources_together() -> None:
    size = 40 * MIB
    names = [SiteId(f"s{number:02}") for number in range(90)]
    ranges = tuple(
        SourceRange(source=site, start=size * index, stop=size * (index + 1)) for index, site in enumerate(names)
    )
    many = ReplicationPlan(
        transfer="t", joiner=C, round=1, state_bytes=90 * size, shard_bytes=1, ranges=ranges, reason="many"
    )
    effects = TransferMachine(many).start(frozenset(names), now_s=0.0)
    wanted = [effect.header for effect in effects if isinstance(effect, SendHeader)]
    total = sum(header.stop - header.start for header in wanted if isinstance(header, BlockWant))
    assert 240 * MIB < total <= OUTSTANDING_BYTES_MAX


def test_a_joiner_that_stood_still_itself_blames_no_source() -> None:
    run = Run(plan(a=MIB, b=MIB))
    run.pass_time(100.0)
    assert run.dropped == []
    run.pass_time(SETTINGS.stall_timeout_s + 0.1)
    assert len(run.dropped) == 2, "and from then on they have their usual time"


def test_while_every_source_waits_for_its_snapshot_nothing_is_planned_anew() -> None:
    run = Run(plan(a=MIB, b=MIB))
    for site in (A, B):
        run.take(run.machine.told(site, BlockWait(transfer="t"), now_s=run.now_s))
    assert run.machine.due(now_s=run.now_s + 2 * REPLAN_INTERVAL_S) == []
    assert run.asked[A] and run.asked[B] and run.dropped == []


def test_a_source_that_has_its_snapshot_at_last_takes_a_part_of_what_nobody_was_asked_for() -> None:
    run = Run(plan(a=MIB, b=20 * MIB))
    run.take(run.machine.told(A, BlockWait(transfer="t"), now_s=run.now_s))
    assert run.asked[A][-1][1] == MIB
    run.take(run.machine.told(A, BlockReady(transfer="t"), now_s=run.now_s))
    assert run.machine.sources()[A] is SourceState.READY
    assert run.asked[A][-1][1] > MIB
    run.finish()
    assert run.dropped == []


def test_a_source_whose_snapshot_arrives_late_is_used_as_soon_as_its_bytes_begin_to_come() -> None:
    run = Run(plan(a=MIB, b=MIB))
    run.machine.told(A, BlockWait(transfer="t"), now_s=run.now_s)
    assert run.machine.sources()[A] is SourceState.WAITING
    start, stop = run.asked[A][0]
    run.machine.received(A, BlockData(transfer="t", start=start, hash=HASH), stop - start, now_s=run.now_s)
    assert run.machine.sources()[A] is SourceState.READY, "who sends has its snapshot"


def test_a_source_that_sends_whole_blocks_is_not_given_up_for_want_of_progress() -> None:
    run = Run(plan(a=4 * MIB, b=0), links="a")
    for _ in range(4):
        run.now_s += 0.7 * SETTINGS.stall_timeout_s
        start, stop = run.asked[A].pop(0)
        header = BlockData(transfer="t", start=start, hash=HASH)
        run.take(run.machine.received(A, header, stop - start, now_s=run.now_s))
        run.take(run.machine.due(now_s=run.now_s))
    assert run.dropped == []


def test_a_source_that_is_gone_is_not_waited_for_when_its_link_is_back() -> None:
    """Its next daemon says for minutes that the snapshot is not taken yet (seed 2100731, 7 sites)."""
    run = Run(plan(a=MIB, b=MIB))
    run.take(run.machine.link_lost(B, now_s=run.now_s))
    run.take(run.machine.gone(B, now_s=run.now_s))
    run.take(run.machine.link_up(B, now_s=run.now_s))
    assert run.machine.sources()[B] is SourceState.EXCLUDED
    assert not run.machine.gone(B, now_s=run.now_s), "once"
    run.take(run.machine.told(A, BlockGone(transfer="t"), now_s=run.now_s))
    assert isinstance(run.log[-1], FetchFailed)
