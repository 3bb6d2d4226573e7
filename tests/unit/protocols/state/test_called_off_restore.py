"""A worker that was told to load what lay at its site does so, whatever is called off meanwhile (spec 12.8)."""

from __future__ import annotations

from tests.unit.protocols.follower import hello, of, to_worker
from tests.unit.protocols.one_site import A, heartbeat, sent
from tests.unit.protocols.state.test_local_checkpoint import copied, keeper

from chaos_protocols import events
from chaos_protocols.effects import RestoreMemoryCheckpoint
from chaos_protocols.wire.control import JoinRequest
from chaos_protocols.wire.worker import LoadState


def test_a_state_that_a_worker_loads_while_its_site_is_removed_is_said_to_be_there() -> None:
    """It may be the newest that there is (seed 9163620, 2 sites)."""
    bench = keeper()
    number = copied(bench)
    bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    bench.handle(events.WorkerLost(reason="killed"))
    (asked,) = of(hello(bench), RestoreMemoryCheckpoint)
    assert to_worker(bench.handle(events.StateRestored(attempt=asked.attempt)), LoadState)
    bench.hear(A, heartbeat(epoch=bench.roster.epoch + 9, scheduler=A, knows_you=False))
    assert not bench.machine.membership.in_roster, "removed while it was cut off"
    bench.taken()
    bench.handle(events.WorkerLoaded(round=number))
    bench.alive(2.0)
    requests = sent(bench.taken(), JoinRequest)
    assert requests and requests[-1][1].worker_round == number and not bench.machine.rounds.active
