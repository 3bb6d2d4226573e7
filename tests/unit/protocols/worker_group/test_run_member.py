"""A worker group as the one worker of its site: what it says when its daemon is gone."""

from __future__ import annotations

from tests.unit.protocols.worker_group.group_bench import GroupBench, hello
from tests.unit.protocols.worker_group.run_world import SPECS

from chaos_protocols.worker_group import events as ev


def test_a_daemon_that_is_lost_is_noted_with_the_reason_and_looked_for_again() -> None:
    bench = GroupBench()
    for effect in bench.taken(ev.StartWorker):
        bench.say(effect.worker, hello(effect.worker, run=SPECS))
    bench.plan()
    bench.ready()
    bench.feed(ev.RunFound())
    assert bench.taken(ev.GreetRun)
    assert bench.taken(ev.JoinRun)
    bench.effects.clear()
    bench.feed(ev.RunLost(reason="its socket was closed"))
    assert bench.taken(ev.NoteEvent) == [
        ev.NoteEvent(kind="run-lost", reason="its socket was closed", fields={"step": 0})
    ]
    assert bench.taken(ev.JoinRun)
