"""Groups of real connections, each worker a thread: made together, in order, severed under a blocked receive."""

from __future__ import annotations

import errno
import gc
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from chaos.errors import TooFewFiles
from chaos.worker_group.exchange.channels import GroupFailed, bytes_of
from chaos.worker_group.exchange.groups import Groups
from chaos.worker_group.exchange.line import GenerationEnded
from chaos_protocols.worker_group.messages import StoreGet, StoreSet
from chaos_protocols.worker_group.store import GroupStore
from chaos_protocols.worker_group.suspicion import BEAT_INTERVAL_S, FIRST_LIMIT_S, Reading, Suspicion, Work

LIMIT_S = 60.0
OPEN: list[Groups] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def kept(groups: Groups) -> Groups:
    """Closed after the test."""
    OPEN.append(groups)
    return groups


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
        self.word = (Work.BUILDING, -1)
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

    def doing(self, work: Work, peer: int = -1) -> None:
        self.word = (work, peer)

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
    made = [kept(Groups(line, 1)) for line in lines]  # type: ignore[arg-type]
    mine = [[group for group in groups if worker in group] for worker in range(count)]
    assert together(*(lambda w=w: made[w].build(mine[w]) for w in range(count))) == [None] * count  # type: ignore[misc]
    return lines, made


@pytest.mark.parametrize("late", [0, 1], ids=("who-calls", "who-is-called"))
def test_who_waits_for_a_worker_that_comes_late_to_the_next_plan_is_not_suspected(late: int) -> None:
    """The late one may be in its script, which has four times its longest pause: the others were killed after 60 s."""
    desk = Desk()
    lines = [Thread(worker, desk) for worker in range(2)]
    made = [kept(Groups(line, 1)) for line in lines]  # type: ignore[arg-type]
    here = 1 - late
    waits = threading.Thread(target=made[here].build, args=([(0, 1)],), daemon=True)
    waits.start()
    end_s = time.monotonic() + LIMIT_S
    while lines[here].word != (Work.WAITING, late) and time.monotonic() < end_s:
        time.sleep(0.005)
    suspicion, (work, peer) = Suspicion(1.0), lines[here].word
    for beat in range(int(3 * FIRST_LIMIT_S / BEAT_INTERVAL_S)):
        reading = Reading(count=7, work=work, peer=peer, beat=beat)
        assert not suspicion.observe(beat * BEAT_INTERVAL_S, {here: reading}, interval_s=BEAT_INTERVAL_S)
    made[late].build([(0, 1)])
    waits.join(LIMIT_S)
    assert [line.word[0] for line in lines] == [Work.BUILDING] * 2


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


@pytest.mark.parametrize("count", [1 << 10, 1 << 24])
def test_the_end_of_a_peer_is_seen_at_once_also_in_the_middle_of_a_message(count: int) -> None:
    """Nobody has told this worker to stop yet. The large one is more than the system takes."""
    (sending, _), (first, second) = built(2, (0, 1))
    receipt = second.receive((0, 1), 0, torch.zeros(count))
    later = second.receive((0, 1), 0, torch.zeros(count))
    first.send((0, 1), 1, torch.ones(count))
    ending = threading.Timer(0.1, sending.stop)  # as of a killed sender, its end of the connection goes
    ending.start()

    def wait() -> None:
        second.wait(receipt)
        second.wait(later)

    with pytest.raises(GroupFailed, match="worker 0: its end of the connection is over"):
        wait()
    ending.join()


def test_a_stop_frees_a_thread_whose_message_came_half() -> None:
    (_, receiving), (first, second) = built(2, (0, 1))
    came = torch.zeros(1 << 24)
    receipt = second.receive((0, 1), 0, came)
    whole = bytes_of(torch.ones(1 << 24))
    channel = first._channels[(0, 1), 1]
    channel._socket.sendall(struct.pack("!Q", len(whole)))
    channel._socket.sendall(whole[: len(whole) // 2])
    began_s: list[float] = []

    def stop() -> None:
        while came[(1 << 23) - 1] == 0:
            time.sleep(0.001)
        began_s.append(time.monotonic())
        receiving.stop()

    def wait() -> float:
        with pytest.raises(GroupFailed, match="severed"):
            second.wait(receipt)
        return time.monotonic()

    _, freed_s = together(stop, wait)
    assert freed_s >= began_s[0]


def test_both_may_send_more_than_the_system_takes_before_either_receives() -> None:
    _, (first, second) = built(2, (0, 1))

    def exchange(groups: Groups, peer: int) -> list[bool]:
        for i in range(3):
            groups.send((0, 1), peer, torch.full((3 << 20,), float(i + peer)))
        came = [torch.zeros(3 << 20) for _ in range(3)]
        for receipt in [groups.receive((0, 1), peer, each) for each in came]:
            groups.wait(receipt)
        return [bool((each == i + 1 - peer).all()) for i, each in enumerate(came)]

    assert together(lambda: exchange(first, 1), lambda: exchange(second, 0)) == [[True] * 3] * 2


def test_messages_of_all_sizes_keep_their_order_whoever_writes_them() -> None:
    """What is behind one that the system does not take at once must not overtake it."""
    _, (first, second) = built(2, (0, 1))
    sizes = [3, 1 << 19, 5, 1, 1 << 23, 0, 7, 1 << 22, 2]
    came = [torch.zeros(size, dtype=torch.bfloat16) for size in sizes]
    for round in range(3):
        for i, size in enumerate(sizes):
            first.send((0, 1), 1, torch.full((size,), float(i + round), dtype=torch.bfloat16))
        receipts = [second.receive((0, 1), 0, each) for each in came]
        for receipt in reversed(receipts):
            second.wait(receipt)
        assert all(bool((each == i + round).all()) for i, each in enumerate(came))


def test_who_sends_small_messages_wakes_no_other_thread() -> None:
    _, (first, second) = built(2, (0, 1))
    for i in range(20):
        first.send((0, 1), 1, torch.full((1 << 12,), float(i)))
        second.wait(second.receive((0, 1), 0, torch.zeros(1 << 12)))
    assert [each.name for each in threading.enumerate() if each.name == "chaos-write"] == []


def test_a_message_of_another_size_is_none() -> None:
    _, (first, second) = built(2, (0, 1))
    first.send((0, 1), 1, torch.zeros(5))
    with pytest.raises(GroupFailed, match="20 bytes came where 16 were expected"):
        second.wait(second.receive((0, 1), 0, torch.zeros(4)))


def test_what_was_awaited_outlives_its_sender() -> None:
    _, (first, second) = built(2, (0, 1))
    came = torch.zeros(1 << 22)
    receipt = second.receive((0, 1), 0, came)
    first.wait(first.send((0, 1), 1, torch.ones(1 << 22), awaited=True))
    first.close()
    second.wait(receipt)
    assert bool((came == 1).all())


def test_who_calls_without_being_asked_is_no_member() -> None:
    """It knows the address, and says something, half of it, another generation, or a group that is not wanted."""
    desk = Desk()
    lines = [Thread(worker, desk) for worker in range(2)]
    made = [kept(Groups(line, 1)) for line in lines]  # type: ignore[arg-type]

    def call() -> None:
        address = lines[0].store_get("1", 1)
        hello = struct.Struct("!QII")
        for said in (
            b"",
            b"GET / HTTP/1.1",
            hello.pack(2, 0, 2) + struct.pack("!2I", 0, 1),
            hello.pack(1, 0, 1 << 30),
            hello.pack(1, 0, 3) + struct.pack("!3I", 0, 1, 2),
            hello.pack(1, 0, 2) + b"half",
        ):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(address)
                stranger.sendall(said)
        made[0].build([(0, 1)])

    assert together(call, lambda: made[1].build([(0, 1)])) == [None, None]
    made[0].send((0, 1), 1, torch.ones(3))
    came = torch.zeros(3)
    made[1].wait(made[1].receive((0, 1), 0, came))
    assert came.tolist() == [1.0] * 3


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


def test_who_may_open_no_further_socket_says_so_and_is_no_failure_of_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same generation was begun anew six times, and then the training ended without a word of the cause."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    groups = kept(Groups(Thread(0, Desk()), 1))  # type: ignore[arg-type]
    monkeypatch.setattr(socket, "socket", refused)
    with pytest.raises(TooFewFiles, match="as many files and sockets open as it may"):
        groups.build([(0, 1)])


def test_connections_of_the_script_are_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
        (line, _), _groups = built(2, (0, 1))
        line.stop()
        mine.sendall(b"still here")
        assert other.recv(100) == b"still here"
        mine.close()
        other.close()
