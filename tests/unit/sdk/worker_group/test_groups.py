"""Groups of real gloo connections, each worker a thread: made together, in order, severed under a blocked receive."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from chaos.worker_group.groups import GroupFailed, Groups
from chaos.worker_group.line import GenerationEnded
from chaos_protocols.worker_group.messages import StoreGet, StoreSet
from chaos_protocols.worker_group.store import GroupStore

ROOT = Path(__file__).resolve().parents[4]
LIMIT_S = 60.0


class Desk:
    """The controller's memory, for threads."""

    def __init__(self) -> None:
        self.store = GroupStore()
        self.store.begin(1)
        self.values: dict[tuple[int, str], bytes] = {}
        self.changed = threading.Condition()

    def take(self, worker: int, message: StoreSet | StoreGet) -> None:
        with self.changed:
            for each, answer in self.store.take(worker, message):
                self.values[each, answer.key] = answer.value
            self.changed.notify_all()


class Thread:
    """What groups need of a line."""

    lane = 0

    def __init__(self, worker: int, desk: Desk) -> None:
        self.worker, self.desk, self.stopped = worker, desk, False
        self.sever: Callable[[], None] = lambda: None

    def store_set(self, key: str, value: bytes) -> None:
        self.desk.take(self.worker, StoreSet(generation=1, key=key, value=value))

    def store_get(self, key: str, generation: int) -> bytes:
        self.desk.take(self.worker, StoreGet(generation=generation, key=key))
        with self.desk.changed:
            while (self.worker, key) not in self.desk.values:
                if self.stopped:
                    raise GenerationEnded
                self.desk.changed.wait(0.05)
            return self.desk.values[self.worker, key]

    def on_stop(self, sever: Callable[[], None]) -> None:
        self.sever = sever

    def check(self) -> None:
        if self.stopped:
            raise GenerationEnded

    def stop(self) -> None:
        self.stopped = True
        self.sever()


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run at the same time; results or errors in order."""
    found: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        try:
            found[index] = works[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a thread is still blocked"
    return found


def built(count: int, *groups: tuple[int, ...]) -> tuple[list[Thread], list[Groups]]:
    desk = Desk()
    lines = [Thread(worker, desk) for worker in range(count)]
    made = [Groups(line, 1) for line in lines]  # type: ignore[arg-type]
    mine = [[group for group in groups if worker in group] for worker in range(count)]
    assert together(*(lambda w=w: made[w].build(mine[w]) for w in range(count))) == [None] * count  # type: ignore[misc]
    return lines, made


def test_messages_from_one_peer_arrive_in_the_order_in_which_they_were_sent() -> None:
    _, (first, second, third) = built(3, (0, 1), (0, 1, 2))

    def send() -> None:
        for i in range(5):
            first.send((0, 1), 1, torch.full((4,), float(i)))
        first.send((0, 1, 2), 2, torch.full((2,), 9.0))

    def receive(groups: Groups, group: tuple[int, ...], shape: int, count: int) -> list[float]:
        tensors = [torch.zeros(shape) for _ in range(count)]
        for work in [groups.receive(group, 0, tensor) for tensor in tensors]:
            groups.wait(work)
        return [float(tensor[0]) for tensor in tensors]

    found = together(send, lambda: receive(second, (0, 1), 4, 5), lambda: receive(third, (0, 1, 2), 2, 1))
    assert found == [None, [0.0, 1.0, 2.0, 3.0, 4.0], [9.0]]


def test_a_stop_frees_a_thread_that_waits_for_a_live_peer() -> None:
    (line, _), (first, second) = built(2, (0, 1))
    began_s: list[float] = []

    def wait() -> float:
        work = first.receive((0, 1), 1, torch.zeros(3))
        began_s.append(time.monotonic())
        with pytest.raises(GroupFailed):
            first.wait(work)
        return time.monotonic()

    def stop() -> float:
        while not began_s:
            time.sleep(0.001)
        time.sleep(0.05)
        stopped_s = time.monotonic()
        line.stop()
        return stopped_s

    freed_s, stopped_s = together(wait, stop)
    assert freed_s >= stopped_s
    with pytest.raises(GroupFailed):  # the peer's end of the connection is over as well
        second.wait(second.receive((0, 1), 0, torch.zeros(3)))


def half_way() -> None:
    """A receive whose message came half and whose peer is gone: gloo forgets it, and nothing fails it."""
    for _ in range(10):
        (sending, receiving), (first, second) = built(2, (0, 1))
        came = torch.zeros(1 << 24)
        receipt = second.receive((0, 1), 0, came)
        first.send((0, 1), 1, torch.ones(1 << 24))
        while came[0] == 0:
            time.sleep(0)
        sending.stop()  # as of a killed sender, its end of the connection goes
        if came[-1] == 0:
            waited, _ = together(partial(second.wait, receipt), partial(stop_soon, receiving))
            assert isinstance(waited, GroupFailed)
            return
    raise AssertionError("64 MB were never caught half-way")


def stop_soon(line: Thread) -> None:
    time.sleep(0.2)
    line.stop()


def test_a_stop_frees_a_thread_whose_message_came_half() -> None:
    """In a process of its own, which gloo's forgotten thread leaves with it."""
    code = f"from {__name__} import half_way; half_way()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr


def test_a_sender_waits_for_nobody_and_what_it_sent_is_kept_until_it_has_arrived() -> None:
    _, (first, second) = built(2, (0, 1))
    for i in range(3):
        first.send((0, 1), 1, torch.full((1 << 20,), float(i)))  # returns, and the tensor is nobody's
    gc.collect()
    for i in range(3):
        came = torch.zeros(1 << 20)
        second.wait(second.receive((0, 1), 0, came))
        assert bool((came == i).all())


def test_a_stop_frees_who_builds_a_group_with_somebody_who_never_comes() -> None:
    line = Thread(0, Desk())
    groups = Groups(line, 1)  # type: ignore[arg-type]

    def stop() -> None:
        time.sleep(0.1)
        line.stop()

    built_, _ = together(lambda: groups.build([(0, 1)]), stop)
    assert isinstance(built_, GenerationEnded)
    for thread in threading.enumerate():
        if thread.name.startswith("chaos-group"):
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "the abandoned attempt ends by itself"


def test_connections_of_the_script_are_left_alone() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
        (line, _), _groups = built(2, (0, 1))
        line.stop()
        mine.sendall(b"still here")
        assert other.recv(100) == b"still here"
        mine.close()
        other.close()
