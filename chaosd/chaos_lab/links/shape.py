"""How a link behaves, in words: the one value that the lab's links are told. Decides nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

LATENCY_MAX_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """How the lab makes a link behave, in the direction out of this site (`cut_in` alone concerns what comes in).

    A cut is a black hole as TCP sees one: nothing arrives, nothing fails, no end-of-file is seen; when it is lifted
    while the connection still stands, what was held arrives late, as retransmission would have it.
    """

    rate_bytes_per_s: float | None = None
    latency_s: float = 0.0
    """One way."""
    cut_in: bool = False
    cut_out: bool = False
    corrupt_probability: float = 0.0
    """For each outgoing bulk payload: the chance that one byte of it is changed before it is encrypted."""
    corrupt_random: random.Random | None = None
    corrupt_stream_min: int = 0
    """Payloads of the streams below are left alone (stream 0 carries the averaging)."""

    def __post_init__(self) -> None:
        if self.rate_bytes_per_s is not None and not self.rate_bytes_per_s > 0:
            raise ValueError(f"rate_bytes_per_s = {self.rate_bytes_per_s}: must be above 0 (None = not limited)")
        if not 0 <= self.latency_s <= LATENCY_MAX_S:
            raise ValueError(f"latency_s = {self.latency_s}: must be 0 to {LATENCY_MAX_S:g} seconds")
        if not 0 <= self.corrupt_probability <= 1:
            raise ValueError(f"corrupt_probability = {self.corrupt_probability}: must be 0 to 1")
        if self.corrupt_probability > 0 and self.corrupt_random is None:
            raise ValueError("corrupt_random is missing: corruption draws from a generator that the caller seeds")

    @property
    def shapes_sending(self) -> bool:
        """False when bytes go out as if there were no shape."""
        return bool(self.rate_bytes_per_s or self.latency_s or self.cut_out or self.corrupt_probability)

    def spoil(self, stream: int, payload: memoryview) -> memoryview:
        """The payload of a bulk stream, or a copy of it with one byte changed."""
        if self.corrupt_random is None or not len(payload) or stream < self.corrupt_stream_min:
            return payload
        if self.corrupt_random.random() >= self.corrupt_probability:
            return payload
        spoilt = bytearray(payload)
        spoilt[self.corrupt_random.randrange(len(spoilt))] ^= self.corrupt_random.randrange(1, 256)
        return memoryview(spoilt)


UNSHAPED = LinkShape()
