"""What the system says that a connection's path takes: a rate, that there was too little to send, or nothing."""

from __future__ import annotations

import struct
import sys

import pytest

from chaosd.transport.sockets import delivery_bytes_per_s, path_bytes_per_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems measure nothing")


class Told:
    """A socket of which the kernel tells this."""

    def __init__(self, *, rate: int = 0, little: bool = False, peer: str = "192.0.2.7", bytes_told: int = 168) -> None:
        info = bytearray(168)
        info[7] = (1 if sys.byteorder == "little" else 0x80) if little else 0
        struct.pack_into("=Q", info, 160, rate)
        self._info, self._peer = bytes(info[:bytes_told]), peer

    def getpeername(self) -> tuple[str, int]:
        return self._peer, 7400

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]


def test_a_rate_that_was_measured_with_more_to_send_is_that_of_the_path() -> None:
    assert path_bytes_per_s(Told(rate=12_500_000)) == 12_500_000


def test_of_one_that_was_measured_with_too_little_to_send_nothing_follows() -> None:
    told = Told(rate=12_500_000, little=True)
    assert path_bytes_per_s(told) == 0 and delivery_bytes_per_s(told) == 12_500_000


def test_on_loopback_and_where_the_system_does_not_tell_there_is_none() -> None:
    assert path_bytes_per_s(Told(rate=1, peer="127.0.0.1")) is None
    assert path_bytes_per_s(Told(rate=1, bytes_told=104)) is None
    assert path_bytes_per_s(None) is None
