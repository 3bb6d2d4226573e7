"""States that drift: something changed a worker's state outside of a round, so it is no longer the members' state.

The chain of results that a state stands for stays what it was; the drift is a word beside it, which goes along wherever
the state is copied: to a joiner, into a mirror, onto a disk. It lies in one of the arrays, each of 16 KiB.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from chaos_protocols.rounds.state_check import HALF_BYTES, middle
from chaos_protocols.wire.worker import StateDigests
from tests.simulator.contents import FROZEN, FROZEN_BYTES, Region, runs_of
from tests.simulator.worker import STATE_BYTES, Worker

if TYPE_CHECKING:
    from tests.simulator.node import Node

ARRAY_BYTES = 1 << 14
DRIFTED = STATE_BYTES // 2 // ARRAY_BYTES * ARRAY_BYTES
"""Where the array begins whose bytes are other ones."""
MARK = "~"


def drift(node: Node, word: str) -> None:
    """Its script changes what it should not."""
    if node.worker is not None:
        node.world.tell(f"!! {node.name}: its state drifts")
        node.worker.drift = word
        node.world.drifted = True


def word_of(worker: Worker) -> str:
    """What stands for its whole state where that is copied to."""
    return worker.state + (MARK + worker.drift if worker.drift else "")


def parted(region: Region) -> tuple[str, str]:
    """State and drift of what lies there. A joiner gets its shards from several sources: where one of them had drifted,
    it has that if the array came from there."""
    words = [word for _, _, word in region.read(0, region.size_bytes) if word != FROZEN]
    if not any(MARK in word for word in words):
        return region.state, ""
    states = {word.partition(MARK)[0] for word in words}
    whole = len(states) == 1 and region.read(0, FROZEN_BYTES) == runs_of("", FROZEN_BYTES + 1)[:1]
    if not whole:
        return region.state, ""
    ((_, _, word),) = region.read(DRIFTED, DRIFTED + 1)
    return states.pop(), word.partition(MARK)[2]


def digests_of(worker: Worker, piece: tuple[int, int] | None) -> StateDigests | None:
    """What it answers when it is asked for digests."""
    if piece is None:
        return None
    (start, stop), cut = piece, middle(piece)
    array = f"array {start // ARRAY_BYTES}" if start // ARRAY_BYTES == (stop - 1) // ARRAY_BYTES else ""
    first, second = (_digest(worker, *half) for half in ((start, cut), (cut, stop)))
    return StateDigests(start=start, stop=stop, first=first, second=second, array=array)


def _digest(worker: Worker, start: int, stop: int) -> bytes:
    drifted = worker.drift if start < DRIFTED + ARRAY_BYTES and stop > DRIFTED else ""
    return hashlib.sha256(repr((start, stop, worker.state, drifted)).encode()).digest()[:HALF_BYTES]
