"""How much of a round is handed to the system ahead: a few hundredths of a second, by the rate that it tells."""

from __future__ import annotations

from typing import Any

import pytest

from chaosd.transport import ahead
from chaosd.transport.ahead import AHEAD_BYTES_MIN, AHEAD_S, LOOK_EVERY_S, Ahead, ahead_of
from chaosd.transport.settings import WRITE_BUFFER_BYTES_MAX
from chaosd.transport.sockets import UNSENT_BYTES_MAX

MOST = UNSENT_BYTES_MAX + WRITE_BUFFER_BYTES_MAX


class Channel:
    """`waiting`: what a sender may leave to the channel; its transport stands for the socket, too."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.waiting: list[int] = []

    def get_extra_info(self, name: str) -> Channel:
        return self

    def keep_waiting(self, size_bytes: int) -> None:
        self.waiting.append(size_bytes)


def test_it_follows_the_rate_between_its_limits() -> None:
    assert ahead_of(0.0) == MOST, "nothing is known"
    assert ahead_of(1e5) == AHEAD_BYTES_MIN
    assert ahead_of(10e6) == int(10e6 * AHEAD_S)
    assert ahead_of(1e9) == MOST


def test_the_limits_are_set_when_the_rate_has_changed_and_looked_at_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, unsent, rate = Channel(), list[int](), [0.0]
    monkeypatch.setattr(ahead, "delivery_bytes_per_s", lambda socket: rate[0])
    monkeypatch.setattr(ahead, "keep_unsent", lambda socket, size_bytes: unsent.append(size_bytes) or True)
    known: Any = channel
    kept = Ahead(known)
    kept.keep(100.0)
    rate[0] = 10e6
    kept.keep(100.1)
    assert not unsent and not channel.waiting
    kept.keep(100.0 + LOOK_EVERY_S)
    kept.keep(100.0 + 2 * LOOK_EVERY_S)
    assert (unsent, channel.waiting) == ([300_000], [0])
    rate[0] = 30e6
    kept.keep(100.0 + 3 * LOOK_EVERY_S)
    assert (unsent[1:], channel.waiting[1:]) == ([UNSENT_BYTES_MAX], [900_000 - UNSENT_BYTES_MAX])


def test_a_system_that_cannot_keep_less_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel()
    monkeypatch.setattr(ahead, "delivery_bytes_per_s", lambda socket: 1e6)
    monkeypatch.setattr(ahead, "keep_unsent", lambda socket, size_bytes: False)
    known: Any = channel
    Ahead(known).keep(100.0)
    assert not channel.waiting
