"""The latency of a lab's links where the kernel has no netem: one process that holds packets back, over NFQUEUE.

A rule in the namespace of the receiving site hands every packet of a link to a queue; the kernel tells this process the
packet's number and nothing else (the payload stays where it is), and one latency later gets the verdict "accept" for
all numbers up to it. Decides when packets go on; driven by lines of JSON on its standard input, each answered by one
line on its standard output. It ends with its standard input, so it cannot outlive the lab that started it; packets that
are held then are lost, as are all later ones until the rule is gone.

Standard library only. Linux only. Latency is constant for a link and direction: packets leave in the order in which
they came, also when the latency is changed meanwhile. Source of the message formats: linux/netfilter/nfnetlink_queue.h.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

QUEUE_PACKETS_MAX = 100_000
"""Packets that one queue holds before the kernel drops: 64 KiB each with segmentation offload."""
RECEIVE_BUFFER_BYTES = 16 << 20
READS_AT_ONCE = 128
"""Datagrams read from one queue before the others get their turn."""
REALTIME_PRIORITY = 10
"""Wakes up in time while the sites keep all cores busy."""
LINE_BYTES_MAX = 4096
REST_S = 0.0002
"""Between two passes over what has arrived and what is due: packets then come in company, which halves the work. What
is due before the next pass goes now, since what came during the last one was seen late: right in the mean."""

_QUEUE = 3 << 8  # NFNL_SUBSYS_QUEUE; message types below it
_PACKET, _CONFIG, _VERDICT_BATCH = _QUEUE | 0, _QUEUE | 2, _QUEUE | 3
_NETLINK_NETFILTER, _SOL_NETLINK, _NO_ENOBUFS, _RCVBUFFORCE, _CLONE_NEWNET = 12, 270, 5, 33, 0x40000000
_REQUEST, _ACK = 1, 4
_COMMAND, _PARAMETERS, _MAXLEN, _MASK, _FLAGS = 1, 2, 3, 4, 5  # attributes of a configuration
_BIND, _COPY_META, _HAND_OVER_WHOLE_SEGMENTS, _ACCEPT = 1, 1, 4, 1


def _attribute(kind: int, body: bytes) -> bytes:
    return struct.pack("=HH", len(body) + 4, kind) + body + b"\0" * (-len(body) % 4)


def _message(kind: int, queue: int, body: bytes, *, ack: bool) -> bytes:
    payload = struct.pack("=BBH", 0, 0, socket.htons(queue)) + body
    flags = _REQUEST | (_ACK if ack else 0)
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, 1, 0) + payload


def packet_numbers(datagram: memoryview) -> Iterator[int]:
    """The numbers of the packets that a datagram of the kernel tells of; the number is the first attribute."""
    at = 0
    while at + 16 <= len(datagram):
        size_bytes, kind = struct.unpack_from("=IH", datagram, at)
        if size_bytes < 16:
            return
        if kind == _PACKET and at + 28 <= len(datagram):
            yield struct.unpack_from(">I", datagram, at + 24)[0]
        at += (size_bytes + 3) & ~3


def socket_in(namespace: str) -> socket.socket:
    """A netfilter socket that belongs to the network namespace at this path, opened without staying there."""
    libc = ctypes.CDLL(None, use_errno=True)
    home, there = os.open("/proc/self/ns/net", os.O_RDONLY), -1
    try:
        there = os.open(namespace, os.O_RDONLY)
        if libc.setns(there, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter the network namespace {namespace}: {os.strerror(number)}")
        try:
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        finally:
            libc.setns(home, _CLONE_NEWNET)
    finally:
        os.close(home)
        if there >= 0:
            os.close(there)


class HeldBack:
    """When which packet goes on: pure arithmetic. Numbers leave in the order in which they came."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._waiting: deque[tuple[float, int]] = deque()

    def add(self, number: int, now_s: float) -> None:
        due_s = now_s + self.delay_s
        if self._waiting:
            due_s = max(due_s, self._waiting[-1][0])
        self._waiting.append((due_s, number))

    @property
    def next_s(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def take(self, now_s: float) -> int | None:
        """The last number that is due, with which all before it go; None if none is."""
        last = None
        while self._waiting and self._waiting[0][0] <= now_s:
            last = self._waiting.popleft()[1]
        return last


class Queue:
    """One direction of one link. Raises OSError where the kernel has no NFQUEUE, or the number is taken."""

    def __init__(self, namespace: str, number: int, delay_s: float) -> None:
        self.number, self.held = number, HeldBack(delay_s)
        self.socket = socket_in(namespace)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
            self.socket.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
            self.socket.bind((0, 0))
            whole = struct.pack(">I", _HAND_OVER_WHOLE_SEGMENTS)
            self._configure(_attribute(_COMMAND, struct.pack(">BBH", _BIND, 0, 0)))
            self._configure(_attribute(_PARAMETERS, struct.pack(">IB", 0, _COPY_META)))
            self._configure(_attribute(_MAXLEN, struct.pack(">I", QUEUE_PACKETS_MAX)))
            self._configure(_attribute(_FLAGS, whole) + _attribute(_MASK, whole))
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def _configure(self, body: bytes) -> None:
        self.socket.send(_message(_CONFIG, self.number, body, ack=True))
        error = struct.unpack_from("=i", self.socket.recv(4096), 16)[0]
        if error:
            raise OSError(-error, f"NFQUEUE {self.number}: {os.strerror(-error)}")

    def read(self, buffer: bytearray) -> None:
        """Take in what arrived."""
        now_s, view = time.monotonic(), memoryview(buffer)
        for _ in range(READS_AT_ONCE):
            try:
                size_bytes = self.socket.recv_into(buffer)
            except BlockingIOError:
                return
            for number in packet_numbers(view[:size_bytes]):
                self.held.add(number, now_s)

    def release(self, now_s: float) -> bool:
        """Let go what is due. False when nothing is held any more."""
        last = self.held.take(now_s)
        if last is not None:
            verdict = _attribute(2, struct.pack(">II", _ACCEPT, last))
            self.socket.send(_message(_VERDICT_BATCH, self.number, verdict, ack=False))
        return self.held.next_s is not None


class DelayLine:
    """All queues of one lab, served by one thread."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, int], Queue] = {}
        self._of_descriptor: dict[int, Queue] = {}
        self._holding: set[Queue] = set()
        self._epoll = select.epoll()
        self._buffer = bytearray(65536)

    def serve(self, commands: int, answers: int) -> None:
        """Until `commands` (a file descriptor) ends."""
        os.set_blocking(commands, False)
        self._epoll.register(commands, select.EPOLLIN)
        text = b""
        while True:
            now_s = time.monotonic()
            due = [queue.held.next_s for queue in self._holding]
            timeout_s = min((max(0.0, at_s - REST_S - now_s) for at_s in due if at_s is not None), default=None)
            # select on the epoll: its timeout is in microseconds, that of epoll.poll in milliseconds
            ready = self._epoll.poll(0) if select.select([self._epoll], [], [], timeout_s)[0] else []
            for descriptor, _ in ready:
                queue = self._of_descriptor.get(descriptor)
                if queue is not None:
                    queue.read(self._buffer)
                    self._holding.add(queue)
                    continue
                chunk = os.read(commands, LINE_BYTES_MAX)
                if not chunk:
                    return
                *lines, text = (text + chunk).split(b"\n")
                for line in lines:
                    os.write(answers, json.dumps(self._obey(line)).encode() + b"\n")
            time.sleep(REST_S)
            now_s = time.monotonic() + REST_S
            for queue in list(self._holding):
                if not queue.release(now_s):
                    self._holding.discard(queue)

    def _obey(self, line: bytes) -> dict[str, str]:
        """`open`, `delay` or `close` a queue; an empty answer means done."""
        try:
            order = json.loads(line)
            key = (str(order["namespace"]), int(order["queue"]))
            match order["do"]:
                case "open":
                    queue = self._queues[key] = Queue(*key, float(order["delay_s"]))
                    self._of_descriptor[queue.socket.fileno()] = queue
                    self._epoll.register(queue.socket, select.EPOLLIN)
                case "delay":
                    self._queues[key].held.delay_s = float(order["delay_s"])
                case "close":
                    queue = self._queues.pop(key)
                    self._holding.discard(queue)
                    self._epoll.unregister(queue.socket)
                    del self._of_descriptor[queue.socket.fileno()]
                    queue.socket.close()
                case other:
                    return {"error": f"unknown order {other}"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {}


def main() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(REALTIME_PRIORITY))
    except OSError as error:
        print(f"runs without real-time priority ({error}): latencies grow under load", file=sys.stderr)
    DelayLine().serve(sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
