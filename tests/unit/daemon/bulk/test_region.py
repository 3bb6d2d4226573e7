"""The worker's region for results: filled chunk by chunk, never under a worker that reads it."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from chaos_protocols.rounds.reduce import chunk_bytes_for, cut
from chaos_protocols.wire.encodings import FP32
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.bulk.reduce.coded import CodedVector, coded_bytes
from chaosd.bulk.reduce.encodings import codec_of
from chaosd.bulk.reduce.region import ResultRegion
from chaosd.bulk.reduce.results import Result
from chaosd.bulk.vector import BufferPool, Bytes

NUMBERS = 40_000


class Site:
    """Results of one site, of rising rounds, in one encoding."""

    def __init__(self, encoding: str) -> None:
        self.spec = msgspec.structs.replace(contribution_spec(3, NUMBERS), encoding=encoding)
        self.coded = CodedVector(self.spec, cut(self.spec, chunk_bytes_for(self.spec.size_bytes)))
        self.chunks = range(len(self.coded.chunks))
        self.pool = BufferPool(coded_bytes(self.spec), 2)
        self.region = ResultRegion()
        self.rounds = 0

    def attach(self) -> Bytes:
        out = np.zeros(self.spec.size_bytes, dtype=np.uint8)
        self.region.attach(out)
        return out

    def result(self) -> Result:
        self.rounds += 1
        hashes = [b""] * len(self.chunks)
        return Result(self.rounds, self.pool.take(), self.coded, hashes, region=self.region)

    def come(self, result: Result, index: int, seed: int) -> None:
        """The final bytes of a chunk."""
        chunk, place = self.coded.chunks[index], self.coded.places[index]
        numbers = np.random.default_rng(seed).standard_normal(chunk.size_bytes // np.dtype(chunk.dtype).itemsize)
        target, values = result.buffer.array[place.start : place.stop], numbers.astype(chunk.dtype)
        codec = codec_of(self.spec.encoding, NUMBERS)
        if codec is not None and self.coded.codes(index):
            codec.encode(values, target)
        else:
            target[:] = values.view(np.uint8)
        result.look(index)


def test_a_chunk_lies_there_as_soon_as_it_is_final() -> None:
    """So that handing the whole over copies nothing: with a large vector that would hold up every heartbeat."""
    site = Site(FP32)
    out, result = site.attach(), site.result()
    for index in site.chunks:
        site.come(result, index, seed=index)
    expected = bytes(result.numbers())
    assert len(site.chunks) > 2 and out.tobytes() == expected
    result.buffer.array[:] = 0  # what is copied now would show
    site.region.hand_over(result)
    assert out.tobytes() == expected


@pytest.mark.parametrize("encoding", [FP32, "bf16", "int8"])
def test_what_is_handed_over_is_the_result_and_stays_so_while_it_is_read(encoding: str) -> None:
    """Chunks of several results, some twice, in any order, workers that come and go: random runs."""
    for seed in range(60):
        draw, site = random.Random(seed), Site(encoding)
        out = site.attach()
        reading: tuple[int, bytes] | None = None
        made = [site.result(), site.result()]
        for step in range(40):
            match draw.randrange(8):
                case 0 if reading is None:
                    result = draw.choice(made)
                    site.region.hand_over(result)
                    reading = result.round, out.tobytes()
                    assert reading[1] == bytes(result.numbers())
                case 1 if reading is not None:
                    site.region.applied(reading[0])
                    reading = None
                case 2:
                    made.append(site.result())  # another tag: of the one before some chunks lie there
                    made.pop(0)
                case 3 if draw.random() < 0.3:
                    site.region.detach()
                    before, reading = out.tobytes(), None
                    site.come(made[-1], 0, seed=step)
                    assert out.tobytes() == before, "a region that is gone is not touched"
                    out = site.attach()
                case _:
                    site.come(draw.choice(made), draw.choice(site.chunks), seed=1000 * seed + step)
            if reading is not None:
                assert out.tobytes() == reading[1], "nobody writes under the worker"


def test_only_the_result_that_was_handed_over_is_answered() -> None:
    site = Site(FP32)
    out, first, second = site.attach(), site.result(), site.result()
    site.region.hand_over(first)
    before = out.tobytes()
    site.region.applied(second.round)
    site.come(second, 0, seed=1)
    assert out.tobytes() == before
    site.region.applied(first.round)
    site.come(second, 0, seed=1)
    assert out.tobytes() != before
