"""The SDK against the daemon's real worker server: both ends of the conversation as they ship."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from tests.unit.sdk.line import Line, ShortFolder

from chaos import Coordinator, LeftRun, Refused
from chaos_protocols.wire.worker import (
    ApplyResult,
    Dismissed,
    RoundContributed,
    SnapshotTaken,
    TakeSnapshot,
    TrainFrom,
    WorkerHello,
    WorkerLeaveRequest,
    WorkerMessage,
    WorkerWelcome,
)
from chaosd.worker.arena import Arena
from chaosd.worker.server import Knock, WorkerServer


class LonelySite:
    """A daemon without neighbours: every result is the worker's own contribution. Takes a snapshot after round 2."""

    def __init__(self, path: Path) -> None:
        self.server = WorkerServer(path, self)
        self.arena: Arena | None = None
        self.lost: list[str] = []
        self.snapshots: list[tuple[int, bytes]] = []
        self.refusal = ""

    def worker_hello(self, hello: WorkerHello, arena: Arena, knock: Knock) -> None:
        if self.refusal:
            arena.close()
            knock.turn_away(self.refusal)
            return
        self.close()
        self.arena = arena
        knock.take()
        self.server.send(WorkerWelcome(site="alone", run="test"))
        self.server.send(TrainFrom(round=hello.round + 1))

    def worker_message(self, message: WorkerMessage) -> None:
        assert self.arena is not None
        match message:
            case RoundContributed(round=number):
                self.arena.result[:] = self.arena.contribution
                if number == 2:
                    self.server.send(TakeSnapshot(round=2))
                self.server.send(ApplyResult(round=number, sites=1, weight=1.0))
            case SnapshotTaken(round=number):
                self.snapshots.append((number, bytes(self.arena.state)))
            case WorkerLeaveRequest():
                self.server.send(Dismissed(last_round=0, graceful=True, reason="left"))

    def worker_lost(self, reason: str) -> None:
        self.lost.append(reason)

    def close(self) -> None:
        if self.arena is not None:
            self.arena.close()
            self.arena = None


@pytest.fixture(params=["asyncio", "uvloop"])
def site(request: pytest.FixtureRequest) -> Iterator[LonelySite]:
    """Runs in a thread, as another process would."""
    started = threading.Event()
    stopping: list[asyncio.Event] = []

    async def serve() -> None:
        stopping.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        await lonely.server.start()
        started.set()
        await stopping[0].wait()
        await lonely.server.close()
        lonely.close()

    loops: list[asyncio.AbstractEventLoop] = []
    with ShortFolder() as folder:
        lonely = LonelySite(Path(folder) / "w")
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

        def run() -> None:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(serve())

        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(60)
        yield lonely
        loops[0].call_soon_threadsafe(stopping[0].set)
        thread.join(60)
        assert not thread.is_alive() and not lonely.server.path.exists()


def test_training_through_the_real_server_is_the_training_alone(site: LonelySite) -> None:
    with Line(site.server.path) as line:
        coordinator = line.register()
        for gradient in (1.0, 2.0, 3.0):
            assert line.step(gradient)
        assert line.weights.tolist() == [-6.0] * 3
        coordinator.request_node_exit()
        assert coordinator.left
    assert site.snapshots == [(2, (b"\0\0\0\0\0\0\x08\xc0") * 3)]  # -3.0: the state of round 2, taken at its end


def test_a_second_coordinator_of_the_process_takes_the_place_of_the_first(site: LonelySite) -> None:
    """A cell of a notebook that was run again: the newer one trains, the older one hears why it does not."""
    with Line(site.server.path) as first:
        first.register()
        assert first.step()
        with Line(site.server.path) as second:
            second.register()
            assert second.step()
            with pytest.raises(Refused, match="newer Coordinator of this site has taken its place"):
                first.step()
            assert not first.step() and first.coordinator.left
            with pytest.raises(LeftRun, match="newer Coordinator"):
                first.step()
            first.coordinator.close()
            assert second.step()
            assert site.lost == [], "who was replaced was not lost"
            second.coordinator.request_node_exit()
    with Line(site.server.path) as third:
        third.register()
        assert third.step()
        third.coordinator.request_node_exit()


def test_an_older_coordinator_that_was_replaced_leaves_nothing_by_closing(site: LonelySite) -> None:
    """It has no run to leave any more: its end must not be the newer one's, nor an error at the end of the script."""
    with Line(site.server.path) as first:
        first.register()
        with Line(site.server.path) as second:
            second.register()
            first.coordinator.close()
            assert second.step() and second.step()
            second.coordinator.request_node_exit()


def test_refusal_by_the_daemon_reaches_the_script(site: LonelySite) -> None:
    site.refusal = "the model differs from the run's: 'weights' is float64[3] here and float64[4] there"
    with Line(site.server.path) as line:
        with pytest.raises(Refused, match=r"float64\[4\] there"):
            line.register()


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors through /proc")
def test_fifty_workers_in_a_row_leave_no_descriptor_behind(site: LonelySite) -> None:
    def one() -> None:
        with Line(site.server.path) as line:
            line.register()
            line.step()
            line.coordinator.request_node_exit()

    one()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        one()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the last one's, until the server sees its end


def test_coordinator_finds_the_daemon_through_the_environment(
    site: LonelySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_SOCKET", str(site.server.path))
    Coordinator(handle_signals=False).close()
