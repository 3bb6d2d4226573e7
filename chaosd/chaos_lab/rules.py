"""What a lab's network tells tc, iptables and nft: texts from numbers, nothing is done here.

Sizes of the token bucket (measured over veth with segmentation offload): the bucket must hold what a link carries while
the kernel's timer is late, and a packet of 64 KiB at rates where those matter; a larger one lets a short transfer run
at the rate of the machine. 2.5 ms of the rate does both from 10 Mbit/s to 10 Gbit/s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BUCKET_S = 0.0025
BUCKET_BYTES_MIN = 32 << 10
SEGMENT_BYTES_MAX = (64 << 10) + 14
"""What one packet may have before it is cut into those of the wire, with its Ethernet header."""
BACKLOG_S = 0.05
"""Bytes that wait for their turn, in seconds of the rate; what does not fit is dropped, as in a router."""
PACKET_BYTES = 1500
NETEM_PACKETS_MIN = 1000
UNLIMITED_MBIT = 10_000.0
"""The rate for which netem's queue is made where there is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """What happens to packets that arrive over one link; `queue`: the delay line's number for it."""

    device: str
    cut: bool
    loss: float
    queue: int | None


def bucket_bytes(rate_mbit: float) -> float:
    """The bucket of a rate (inf: there is none). A packet larger than it never gets out."""
    return math.inf if math.isinf(rate_mbit) else max(BUCKET_BYTES_MIN, round(_bits(rate_mbit) / 8 * BUCKET_S))


def blocks(before_mbit: float, rate_mbit: float) -> bool:
    """Whether a packet that waits under the rate before may be too large for the new one's bucket. It would wait for
    ever, and all others behind it: what waits has to be dropped with the change."""
    return bucket_bytes(rate_mbit) < min(bucket_bytes(before_mbit), SEGMENT_BYTES_MAX)


def limit(device: str, rate_mbit: float, *, emptied: bool = False) -> str:
    """For `tc -batch`: at most this rate out of the device (inf: no limit); `emptied`: what waits is dropped."""
    free = f"qdisc replace dev {device} root handle 1: pfifo limit 1000\n"
    if math.isinf(rate_mbit):
        return free
    return (free if emptied else "") + f"qdisc replace dev {device} root handle 2: {_bucket(rate_mbit)}\n"


def netem(device: str, rate_mbit: float, latency_ms: float, loss: float, *, emptied: bool = False) -> str:
    """For `tc -batch`: latency and loss by netem, and behind it the rate; `emptied`: what waits for the rate is
    dropped, what is on its way is not."""
    carried_mbit = UNLIMITED_MBIT if math.isinf(rate_mbit) else rate_mbit
    packets = NETEM_PACKETS_MIN + int(carried_mbit * 125 * latency_ms / PACKET_BYTES)
    lost = f" loss {100 * loss:.6g}%" if loss else ""
    text = f"qdisc replace dev {device} root handle 1: netem limit {packets} delay {latency_ms:g}ms{lost}\n"
    free = f"qdisc replace dev {device} parent 1:1 handle 3: pfifo limit 1000\n"
    if math.isinf(rate_mbit):
        return text + free
    return text + (free if emptied else "") + f"qdisc replace dev {device} parent 1:1 handle 2: {_bucket(rate_mbit)}\n"


def _bucket(rate_mbit: float) -> str:
    bits, burst_bytes = _bits(rate_mbit), bucket_bytes(rate_mbit)
    return f"tbf rate {bits}bit burst {burst_bytes} latency {round(BACKLOG_S * 1000)}ms"


def _bits(rate_mbit: float) -> int:
    return max(8_000, round(rate_mbit * 1e6))


def redirect(device: str, shared: str) -> str:
    """For `tc -batch`: what leaves the device goes through `shared` first, whose limit then holds for all that do."""
    return (
        f"qdisc replace dev {device} clsact\n"
        f"filter replace dev {device} egress protocol all prio 1 handle 800::1 u32 match u32 0 0 "
        f"action mirred egress redirect dev {shared}\n"
    )


def iptables(arriving: Sequence[Arriving]) -> str:
    """For `iptables-restore --noflush`. The chain alone is emptied: packets that the delay line holds stay."""
    lines = ["*mangle", "-F PREROUTING"]
    for one in arriving:
        match = f"-A PREROUTING -i {one.device}"
        if one.cut:
            lines.append(f"{match} -j DROP")
            continue
        if one.loss:
            lines.append(f"{match} -m statistic --mode random --probability {one.loss:.9f} -j DROP")
        if one.queue is not None:
            lines.append(f"{match} -j NFQUEUE --queue-num {one.queue}")
    return "\n".join([*lines, "COMMIT"]) + "\n"


def nft(arriving: Sequence[Arriving]) -> str:
    """For `nft -f -`: cuts only, where netem makes the rest."""
    drops = [f'add rule ip chaos arriving iifname "{one.device}" drop' for one in arriving if one.cut]
    chain = "add chain ip chaos arriving { type filter hook prerouting priority -150; policy accept; }"
    return "\n".join(["add table ip chaos", chain, "flush chain ip chaos arriving", *drops]) + "\n"
