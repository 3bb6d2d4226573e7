"""The delay line without a kernel: when packets go on, and how the kernel's messages are read."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading

import pytest

from chaos_lab.delay_line import HeldBack, packet_numbers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the delay line is for Linux only (setns, epoll)")


def told(*numbers: int, kind: int = 3 << 8) -> bytes:
    """A datagram as the kernel sends it: for each packet a header, the family, and the number as first attribute."""
    parts = []
    for number in numbers:
        body = struct.pack("=BBH", 2, 0, 0) + struct.pack("=HH", 11, 1) + struct.pack(">IHB", number, 0x800, 0) + b"\0"
        parts.append(struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body)
    return b"".join(parts)


def test_the_numbers_of_all_packets_of_a_datagram_are_read() -> None:
    assert list(packet_numbers(memoryview(told(7, 8, 9)))) == [7, 8, 9]


def test_messages_of_another_kind_are_passed_over() -> None:
    assert list(packet_numbers(memoryview(told(1, kind=2) + told(5)))) == [5]


@pytest.mark.parametrize("cut", range(28))
def test_a_datagram_that_ends_early_ends_the_reading(cut: int) -> None:
    assert list(packet_numbers(memoryview(told(7)[:cut]))) == []


def test_a_length_of_zero_does_not_hang_the_reading() -> None:
    assert list(packet_numbers(memoryview(bytes(64)))) == []


def test_a_packet_goes_on_one_latency_after_it_came() -> None:
    held = HeldBack(0.010)
    held.add(1, 5.000)
    held.add(2, 5.004)
    assert held.next_s == pytest.approx(5.010)
    assert held.take(5.0099) is None
    assert held.take(5.010) == 1
    assert held.take(5.020) == 2 and held.next_s is None


def test_packets_that_are_due_together_go_with_one_verdict() -> None:
    held = HeldBack(0.010)
    for number in range(100):
        held.add(number, 1.0 + number / 1e5)
    assert held.take(2.0) == 99


def test_a_latency_that_shrinks_lets_nobody_overtake() -> None:
    held = HeldBack(0.100)
    held.add(1, 1.0)
    held.delay_s = 0.001
    held.add(2, 1.01)
    assert held.take(1.05) is None, "2 would have gone before 1"
    assert held.take(1.1) == 2


def test_the_process_refuses_nonsense_and_ends_with_its_input() -> None:
    """`serve` as it runs, over pipes; no queue is opened, so no root is needed."""
    from chaos_lab.delay_line import DelayLine

    (commands, order), (answers, answer) = os.pipe(), os.pipe()
    thread = threading.Thread(target=lambda: DelayLine().serve(commands, answer), daemon=True)
    thread.start()
    with os.fdopen(answers, "rb") as told_back:
        for line in (b"no json\n", b'{"do": "dance", "namespace": "x", "queue": 1}\n', b'{"do": "open"}\n'):
            os.write(order, line)
            assert "error" in json.loads(told_back.readline())
        missing = {"do": "open", "namespace": "/nowhere", "queue": 1, "delay_s": 0.01}
        os.write(order, json.dumps(missing).encode() + b"\n")
        assert "/nowhere" in json.loads(told_back.readline())["error"]
        os.close(order)
        thread.join(60)
        assert not thread.is_alive()
    os.close(answer)
    os.close(commands)
