"""A transfer that stops midway, fails, or was cut: what its user is told, and what of it is used again (spec 11.8)."""

from __future__ import annotations

from tests.unit.protocols.follower import Follower, hello, of, plan, to_worker, views
from tests.unit.protocols.one_site import MODEL, A, B, records, roster_of

from chaos_protocols import events
from chaos_protocols.agreement.commands import Replicate
from chaos_protocols.effects import FetchState
from chaos_protocols.wire.user_words import RunPaused, RunResumed, RunWarned


def test_a_transfer_that_stops_midway_says_how_far_it_is_and_who_owes_the_rest() -> None:
    bench = Follower(B, roster_of(A, B))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(B, A)))
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=MODEL.state_bytes // 4))
    bench.alive(1.5)
    assert not bench.machine.participation.pause.reason(), "bytes may come every moment"
    bench.alive(1.0)
    told = to_worker(bench.taken(), RunPaused)[-1].reason
    assert "262,144 of 1,048,576 bytes (25 %): aaaaaaaa (linked, sends nothing)" in told
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=MODEL.state_bytes // 2))
    bench.alive(0.5)
    assert to_worker(bench.taken(), RunResumed), "it goes on"


def test_a_transfer_that_fails_tells_its_script_how_far_it_was_and_what_follows() -> None:
    bench = Follower(B, roster_of(A, B))
    hello(bench)
    bench.agreed(Replicate(views=views(bench, 1), replication=plan(B, A)))
    bench.handle(events.TransferProgressed(transfer="t", verified_bytes=MODEL.state_bytes // 4))
    bench.taken()
    bench.handle(events.TransferFailed(transfer="t", reason="no source is left (aaaaaaaa: no link)"))
    (told,) = to_worker(bench.out, RunWarned)
    assert (
        "no source is left" in told.reason and "262,144 of 1,048,576" in told.reason and "asked for anew" in told.reason
    )
    assert "262,144 of" in records(bench.taken(), "scale-out")[-1].reason


def test_what_a_transfer_had_brought_before_the_daemon_was_restarted_is_looked_at() -> None:
    for held in (True, False):
        bench = Follower(B, roster_of(A, B))
        bench.handle(events.WorkerReady(model=MODEL, round=0, held=held))
        bench.agreed(Replicate(views=views(bench, 1), replication=plan(B, A)))
        (fetch,) = of(bench.taken(), FetchState)
        assert fetch.have is held
        bench.handle(events.TransferFinished(transfer="t", held_bytes=1000))
        (told,) = records(bench.out, "transfer")
        assert "; 1,000 were here already, and not sent" in told.reason
