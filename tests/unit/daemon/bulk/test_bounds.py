"""What a neighbour sends is judged by its weight: bytes that come without any are no mean of anything."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rigs.reduce import SITES, SPEC

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.rounds.reduce.layout import Chunk
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.bulk import ChunkUp
from chaos_protocols.wire.plans import Tag
from chaosd.bulk.reduce.bounds import RoundBounds
from chaosd.bulk.reduce.centre import Centre
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.vector import BufferPool

RADIUS = 2.0
CHUNK = Chunk(start=0, stop=4_000, dtype="float32")


def judged(weight: float, number: float) -> None:
    """A chunk of a child's sum, of 1,000 such numbers with that weight."""
    bounds = RoundBounds(Bounds(clip_radius=RADIUS), SPEC, Centre(RADIUS, SPEC))
    buffer = BufferPool(CHUNK.stop, 1).take()
    buffer.array[:] = np.full(1_000, number, dtype=np.float32).view(np.uint8)
    message = ChunkUp(tag=Tag(epoch=1, round=2), tree=0, chunk=0, weights=(weight,))
    bounds.judge(SITES[1], message, 0, buffer, CodedVector(SPEC, [CHUNK]))


def test_around_a_centre_a_sum_counts_by_its_mean() -> None:
    judged(4.0, 0.1)
    with pytest.raises(RemoteProtocolError, match="further from the last result"):
        judged(1.0, 0.1)


@pytest.mark.parametrize("number", [0.1, 1e-6])
def test_bytes_without_any_weight_are_beyond_every_radius(number: float) -> None:
    with pytest.raises(RemoteProtocolError, match="further from the last result"):
        judged(0.0, number)
