"""A listener may be the first that has a round's result, where there are several trees (spec 9.26): the machine, the
resolution of a round that it alone holds, and what the simulator's oracle makes of it (seed 946, 6 sites)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from tests.simulator.averaging import CHUNK, Result
from tests.simulator.contents import Numbers, vector_digest
from tests.simulator.oracles_rounds import RoundsOracle
from tests.simulator.piecewise import Given
from tests.unit.protocols.one_site import EPOCH, MODEL, A, B, C, D, leader_of, link, roster_of
from tests.unit.protocols.scheduler.scheduler_kit import lose

from chaos_protocols import events
from chaos_protocols.agreement.commands import RoundResolved, SetRestorePoint
from chaos_protocols.names import SiteId
from chaos_protocols.rounds.reduce import ReduceEffect, ReduceMachine, RoundReduced, SendBulk, lay_out
from chaos_protocols.wire.bulk import ChunkDown
from chaos_protocols.wire.control import RoundStatusReply
from chaos_protocols.wire.plans import SyncPlan, Tag, Tree

TAG = Tag(epoch=EPOCH, round=58)
TWO_TREES = SyncPlan(
    trees=(
        Tree(weight=0.5, root=A, parent=((B, A), (C, A))),
        Tree(weight=0.5, root=B, parent=((A, B), (C, B))),
    ),
    reason="c listens at both roots",
)


def test_a_listener_has_all_trees_while_each_member_still_lacks_one() -> None:
    machines = {site: ReduceMachine(site) for site in (A, B, C)}
    done: list[SiteId] = []
    under_way: list[tuple[SiteId, SendBulk]] = []

    def take(site: SiteId, asked: list[ReduceEffect]) -> None:
        done.extend(site for effect in asked if isinstance(effect, RoundReduced))
        under_way.extend((site, effect) for effect in asked if isinstance(effect, SendBulk))

    def deliver(*, slow: bool) -> list[tuple[SiteId, SendBulk]]:
        """All frames, but those of results between the members where `slow`."""
        kept = []
        while under_way:
            source, frame = under_way.pop(0)
            if slow and isinstance(frame.header, ChunkDown) and frame.site != C:
                kept.append((source, frame))
            else:
                take(frame.site, machines[frame.site].received(source, frame.header))
        return kept

    for site, machine in machines.items():
        opened = machine.open(TAG, TWO_TREES, chunk_counts=[1, 1], listeners=frozenset([C]), member=site != C)
        take(site, opened)
    for site in (A, B):
        take(site, machines[site].contribute(TAG, 1.0, has_bytes=True))
    under_way.extend(deliver(slow=True))
    assert done == [C]
    deliver(slow=False)
    assert sorted(done) == [A, B, C]


def test_a_round_that_only_a_listener_holds_stands_where_members_have_the_state_before_it() -> None:
    """They fetch it there (spec 10.9)."""
    bench = leader_of(roster=roster_of(A, B, C, learners=(D,), links=tuple(link(A, one) for one in (B, C, D))))
    bench.machine.rounds.begin_from_worker(57)
    lose(bench, C)
    epoch = bench.machine.roster.epoch
    bench.hear(B, RoundStatusReply(epoch=epoch, done_round=57, digest="bb", has_state=True))
    bench.hear(D, RoundStatusReply(epoch=epoch, done_round=58, digest="dd"))
    roster = bench.machine.roster
    assert (roster.resolving, roster.resolved_round, roster.resolved_digest) == (False, 58, "dd")
    assert roster.site_ids() == (A, B, D)


class Broken(Exception):
    """What the oracle says."""


def fail(number: int, text: str) -> NoReturn:
    raise Broken(f"{number}: {text}")


def part(site: SiteId, chunk: int) -> tuple[SiteId, float, Any, int]:
    return (site, 1.0, (TAG.round, "", "state 57"), chunk)


def summed(*sites: SiteId) -> Result:
    """Of two chunks."""
    chunks = [Numbers(tuple(part(site, index) for site in sites), float(len(sites))) for index in range(2)]
    return Result(TAG.round, lay_out((CHUNK,) * 2, [1.0]), chunks, vector_digest(chunks))


class Judged:
    """An oracle of a run of the members a and b, which have given to round 58, and the listener c."""

    def __init__(self) -> None:
        self.roster = roster_of(A, B, learners=(C,), resolved_round=57)
        nodes: Any = {site: SimpleNamespace(machine=None, world=SimpleNamespace(now_s=0.0)) for site in (A, B, C)}
        self.oracle = RoundsOracle(fail, nodes)
        self.oracle.roster_at = {EPOCH: self.roster}
        self.oracle.committed(EPOCH, None, self.roster)
        self.oracle.parts.given[TAG] = {site: Given(1, 1.0, part(site, 0)[2]) for site in (A, B)}

    def reduced(self, site: SiteId, result: Result, *, knows_epoch: int = EPOCH) -> None:
        machine = SimpleNamespace(roster=SimpleNamespace(epoch=knows_epoch))
        node: Any = SimpleNamespace(site=site, name=site[0], machine=machine, disk=SimpleNamespace(incarnation=1))
        weights = ((A, 1.0), (B, 1.0))
        self.oracle.reduced(node, events.ReduceFinished(tag=TAG, digest=result.digest, weights=weights), result)


def test_the_first_result_at_a_listener_is_the_one_that_all_others_must_have() -> None:
    judged = Judged()
    judged.reduced(C, summed(A, B))
    judged.reduced(A, summed(A, B))
    assert judged.oracle.result(judged.oracle.era_of(EPOCH), TAG.round) == summed(A, B).digest


def test_the_first_result_at_a_listener_is_judged_by_its_parts() -> None:
    with pytest.raises(Broken, match="3: chunk 0 of round 58 at c is not the sum of its parts"):
        Judged().reduced(C, summed(A))


def test_another_result_than_that_of_the_listener_or_than_that_of_the_members_is_seen() -> None:
    judged = Judged()
    judged.reduced(A, summed(A, B))
    with pytest.raises(Broken, match="2: c is handed"):
        judged.reduced(C, summed(A))
    judged = Judged()
    judged.reduced(C, summed(A, B))
    judged.oracle.parts.given[TAG][B] = Given(1, 1.0, (TAG.round, "", "another"))
    judged.oracle._right.clear()
    other = summed(A, B)
    for index, chunk in enumerate(other.chunks):
        other.chunks[index] = Numbers((chunk.parts[0], (B, 1.0, (TAG.round, "", "another"), index)), 2.0)
    other.digest = vector_digest(other.chunks)
    with pytest.raises(Broken, match=r"2: a has .* others have"):
        judged.reduced(A, other)


def test_who_has_left_applies_what_it_holds_of_the_history_in_which_it_took_part() -> None:
    """Seed 9049849: the run went on from a state after it had left, and its script had slept."""
    judged = Judged()
    without = roster_of(A, B, resolved_round=58, epoch=EPOCH + 1)
    judged.oracle.roster_at[EPOCH + 1] = without
    choice = SetRestorePoint(record=without.sites[0], links=(), model=MODEL, round=58, views=without.views)
    judged.oracle.committed(EPOCH + 1, choice, without)
    for site, index in ((C, EPOCH), (A, EPOCH + 1)):
        node: Any = SimpleNamespace(site=site, machine=SimpleNamespace(roster=without, incarnation=1))
        assert judged.oracle.era_at(node).index == index


def test_a_listener_is_handed_nothing_of_a_history_that_it_knows_to_be_over() -> None:
    judged = Judged()
    later = roster_of(A, B, learners=(C,), resolved_round=57, epoch=EPOCH + 1)
    judged.oracle.roster_at[EPOCH + 1] = later
    judged.oracle.committed(EPOCH + 1, RoundResolved(round=57, digest="", holders=(), views=later.views), later)
    with pytest.raises(Broken, match=r"2: c is handed .* as round 58; its result is None"):
        judged.reduced(C, summed(A, B), knows_epoch=EPOCH + 1)
