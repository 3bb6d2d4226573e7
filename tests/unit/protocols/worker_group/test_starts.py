"""Workers that have been started and do not come: told, and ended where they do nothing at all."""

from __future__ import annotations

from collections.abc import Mapping

from tests.unit.protocols.worker_group.early_deaths import mortal_group
from tests.unit.protocols.worker_group.group_bench import GroupBench, hello
from tests.unit.protocols.worker_group.group_world import World
from tests.unit.protocols.worker_group.test_suspects import notes

from chaos_protocols.worker_group import events as ev
from chaos_protocols.worker_group.starts import IDLE_MAX_S, LOOK_INTERVAL_S


def forming(*here: int, restarts: int = 1) -> GroupBench:
    """Four workers were started, and these have come."""
    bench = GroupBench(restarts=restarts)
    bench.taken(ev.StartWorker)
    for worker in here:
        bench.say(worker, hello(worker))
    bench.taken(ev.NoteEvent)
    return bench


def watch(bench: GroupBench, seconds: float, *, busy: Mapping[int, float]) -> None:
    """So long, while these workers use that share of a processor, and the others none."""
    until_s = bench.now_s + seconds
    while bench.now_s < until_s:
        bench.now_s += LOOK_INTERVAL_S
        bench.feed(
            ev.StartsSeen(processor_s={worker: 1.0 + bench.now_s * busy.get(worker, 0.0) for worker in range(4)})
        )


def killed(bench: GroupBench) -> list[int]:
    return [each.worker for each in bench.taken(ev.KillWorker)]


def test_who_does_not_come_is_told_more_and_more_rarely_with_what_is_seen_of_it() -> None:
    bench = forming(0, 2)
    watch(bench, 35.0, busy={1: 0.9})
    (told,) = notes(bench, "workers-start")
    assert told.fields["workers"] == [1, 3]
    assert "workers 1, 3: not at the first step yet, 30 s after the start; 2 that are here wait" in told.reason
    assert "worker 3: no processor time used for 30 s" in told.reason
    watch(bench, 600.0, busy={1: 0.9, 3: 0.1})
    later = notes(bench, "workers-start")
    assert len(later) == 4 and not any("no processor time" in each.reason for each in later), later
    assert killed(bench) == [], "both do something"


def test_who_does_nothing_while_others_wait_is_ended_and_started_anew() -> None:
    bench = forming(0, 1, 2)
    watch(bench, IDLE_MAX_S, busy={0: 0.5})
    assert killed(bench) == []
    watch(bench, LOOK_INTERVAL_S, busy={0: 0.5})
    assert killed(bench) == [3]
    (told,) = notes(bench, "worker-suspected")
    assert (
        "has not come to its first step 300 s after its start" in told.reason and "--failure-timeout-s" in told.reason
    )
    watch(bench, 60.0, busy={})
    assert killed(bench) == [], "once"
    bench.feed(ev.WorkerGone(worker=3, reason="its process was ended by SIGKILL", killed=True))
    assert [each.worker for each in bench.taken(ev.StartWorker)] == [4]


def test_who_may_wait_for_another_that_starts_is_not_ended() -> None:
    """Two of them want a file that the third is still making, with pauses."""
    bench = forming(0)
    for _ in range(4):
        watch(bench, IDLE_MAX_S / 2, busy={})
        watch(bench, LOOK_INTERVAL_S, busy={3: 0.5})
    assert killed(bench) == []
    watch(bench, 2 * IDLE_MAX_S, busy={})
    assert killed(bench) == [1, 2, 3], "now none of them does anything"


def test_nobody_is_ended_while_nobody_waits() -> None:
    bench = forming()
    watch(bench, 3 * IDLE_MAX_S, busy={})
    assert killed(bench) == [] and notes(bench, "workers-start")


def test_a_controller_that_was_stopped_itself_takes_nobody_for_idle() -> None:
    bench = forming(0, 1, 2)
    watch(bench, 20.0, busy={})
    bench.now_s += 3 * IDLE_MAX_S
    watch(bench, 60.0, busy={})
    assert killed(bench) == []


def test_one_in_the_place_of_a_worker_that_was_lost_is_ended_as_well_and_nobody_is_said_to_wait() -> None:
    bench = GroupBench(restarts=2)
    bench.train()
    bench.lose(3)
    for worker in (0, 1, 2):
        bench.stopped(worker, 0)
    bench.plan((0, 1))
    bench.ready()
    bench.taken(ev.NoteEvent)
    seconds = 0.0
    while seconds < 31.0:
        seconds += LOOK_INTERVAL_S
        bench.now_s += LOOK_INTERVAL_S
        bench.feed(ev.StartsSeen(processor_s={0: seconds, 4: 2.0}))
    (told,) = notes(bench, "workers-start")
    assert "worker 4: not at the first step yet" in told.reason and "wait for that" not in told.reason
    while seconds < IDLE_MAX_S + 2 * LOOK_INTERVAL_S:
        seconds += LOOK_INTERVAL_S
        bench.now_s += LOOK_INTERVAL_S
        bench.feed(ev.StartsSeen(processor_s={0: seconds, 4: 2.0}))
    assert killed(bench) == [4]


class HungWorld(World):
    """Whoever stands still before its hello does so by itself: its process is not stopped, and only that it is idle
    tells."""

    hung_ended, hangs = 0, 6

    def actions(self) -> list[tuple[str, int]]:
        coming = [worker for worker in self.workers.values() if worker.alive and not worker.greeted]
        if self.hangs and coming and self.draw.random() < 0.1:
            self.hangs -= 1
            self.draw.choice(coming).hanging = True
        hung = [number for number, worker in self.workers.items() if self.is_hung(number) and worker.alive]
        found = [(name, number) for name, number in super().actions() if name != "suspect" or number not in hung]
        return [*found, ("look", hung[0])] if hung else found

    def is_hung(self, number: int) -> bool:
        return self.workers[number].hanging and not self.workers[number].greeted

    def look(self, hung: int) -> None:
        """For a while; what a worker waits for comes in the end where nobody waits for it."""
        if not any(worker.alive and worker.greeted for worker in self.workers.values()):
            self.stir(hung)
        for _ in range(self.draw.randrange(1, 60)):
            self.now_s += LOOK_INTERVAL_S
            used_s = {number: 1.0 if self.is_hung(number) else self.now_s for number in self.workers}
            self.feed(ev.StartsSeen(processor_s=used_s))

    def killed(self, number: int) -> None:
        worker = self.workers[number]
        assert worker.greeted or worker.hanging, "who does something is not ended before its first step"
        self.hung_ended += not worker.greeted
        super().killed(number)


def test_hung_starts_among_deaths_are_ended_and_no_group_waits_for_ever() -> None:
    ended = 0
    for seed in range(200):
        world = HungWorld(seed, **mortal_group(seed))
        world.run()
        ended += world.hung_ended
        if world.ended:
            right = ("layers are lost", "no worker with state is left", "ended before the training began")
            assert any(each in world.ended for each in right), (seed, world.ended)
        else:
            assert world.committed == set(range(world.steps))
    assert ended > 20
