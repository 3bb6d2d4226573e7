"""What an encoding lost at a site is in its heartbeats, and what others said of theirs is known here, by member."""

from __future__ import annotations

import msgspec
from tests.unit.protocols.follower import Follower, training_member
from tests.unit.protocols.one_site import A, B, D, heartbeat, sent

from chaos_protocols import events
from chaos_protocols.names import SiteId
from chaos_protocols.wire.control import Heartbeat

STRANGER = SiteId("e" * 32)


def reduced(bench: Follower, error: float | None) -> None:
    """The running round's result comes, and the worker applies it."""
    tag = bench.machine.rounds.running
    assert tag is not None
    weights = ((A, 1.0), (B, 1.0), (D, 1.0))
    bench.handle(events.ReduceFinished(tag=tag, digest="d", weights=weights, encoding_error=error))
    bench.handle(events.WorkerApplied(round=tag.round))


def hear_of(bench: Follower, site: SiteId, error: float | None) -> None:
    bench.hear(site, msgspec.structs.replace(heartbeat(), sequence=9, encoding_error=error))


def test_heartbeats_tell_what_the_last_round_lost_here_and_nothing_before_it() -> None:
    bench = training_member()
    assert {beat.encoding_error for _, beat in sent(bench.alive(1.0), Heartbeat)} == {None}
    reduced(bench, 0.25)
    reduced(bench, 0.5)
    assert {beat.encoding_error for _, beat in sent(bench.alive(1.0), Heartbeat)} == {0.5}


def test_what_is_known_is_of_members_that_say_it_and_of_this_site() -> None:
    bench = training_member()
    hear_of(bench, A, 0.0)
    hear_of(bench, B, None)
    assert bench.machine.network.encoding_errors() == {A: 0.0}
    reduced(bench, 0.25)
    handed_on = msgspec.structs.replace(heartbeat(), sequence=10, encoding_error=0.125)
    bench.machine.network.steps.heard(STRANGER, 1, handed_on, now_s=bench.now_s)
    assert bench.machine.network.encoding_errors() == {A: 0.0, D: 0.25}, "a stranger's is not counted"


def test_a_result_of_a_round_that_does_not_run_changes_nothing() -> None:
    bench = training_member()
    tag = bench.machine.rounds.running
    assert tag is not None
    other = msgspec.structs.replace(tag, round=tag.round + 1)
    bench.handle(events.ReduceFinished(tag=other, digest="d", weights=((D, 1.0),), encoding_error=0.25))
    assert bench.machine.network.encoding_errors() == {}
