"""Why nothing moves: what the worker is told of it, and what is recorded."""

from __future__ import annotations

from tests.unit.protocols.follower import to_worker
from tests.unit.protocols.one_site import MODEL, A, Bench, D, records

from chaos_protocols import events
from chaos_protocols.wire.control import JoinAnswer
from chaos_protocols.wire.worker import RunPaused


def test_a_new_reason_for_the_same_pause_is_told_to_the_worker_and_not_recorded_again() -> None:
    bench = Bench(D).up(A)
    bench.handle(events.WorkerReady(model=MODEL, round=0))
    bench.wait(0.3)
    bench.taken()
    bench.hear(A, JoinAnswer(incarnation=1, accepted=False, final=False, reason="resolving"))
    bench.wait(0.3)
    assert [one.reason for one in to_worker(bench.out, RunPaused)] == ["resolving"]
    assert not records(bench.out, "pause")
