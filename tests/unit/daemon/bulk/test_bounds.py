"""What a site gives and what a neighbour sends, at the edge of the numbers that there are: squares that none can hold,
factors of which a type has not all digits, weights of 0, and chunks that come again."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.rigs.reduce import SITES, SPEC

from chaos_protocols.errors import RemoteProtocolError
from chaos_protocols.rounds.reduce.layout import Chunk, chunk_bytes_for, cut
from chaos_protocols.wire.bounds import NORM_SLACK, Bounds
from chaos_protocols.wire.bulk import ChunkDown, ChunkUp
from chaos_protocols.wire.plans import Tag
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.bounds import NormLimit, RoundBounds
from chaosd.bulk.reduce.centre import Centre
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.reduce.results import Result
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


def given(numbers: np.ndarray, spec: ContributionSpec, norm_max: float) -> tuple[bool, float]:  # type: ignore[type-arg]
    """Whether a part of these numbers counts, and the norm with which it is given."""
    chunks, own = cut(spec, chunk_bytes_for(spec.size_bytes)), numbers.view(np.uint8)
    bounds = RoundBounds(Bounds(norm_max=norm_max), spec)
    counts = bounds.look_at(own, chunks)
    parts = [bounds.clip(own[chunk.start : chunk.stop], chunk).astype(np.float64) for chunk in chunks]
    return counts, float(np.linalg.norm(np.concatenate(parts)))


def test_squares_that_no_number_can_hold_are_a_norm_all_the_same() -> None:
    numbers = np.zeros(60_000)
    numbers[0] = numbers[-1] = 1.2e154
    counts, norm = given(numbers, contribution_spec(len(numbers), 0), 1.0)
    assert counts and norm == pytest.approx(1.0)


def test_the_widest_part_is_given_with_the_smallest_norm_that_is_agreed() -> None:
    numbers = np.full(100_000, 3e38, dtype=np.float32)
    _, norm = given(numbers, contribution_spec(0, len(numbers)), 1e-4)
    assert norm == pytest.approx(1e-4, rel=1e-3), "a third longer, and its parent would refuse it"


def test_a_result_whose_squares_no_number_can_hold_is_too_long() -> None:
    spec = contribution_spec(60_000, 0)
    coded = CodedVector(spec, cut(spec, chunk_bytes_for(spec.size_bytes)))
    buffer = BufferPool(spec.size_bytes, 1).take()
    numbers = buffer.numbers(0, spec.size_bytes, "float64")
    numbers[:] = 0.0
    numbers[0] = numbers[-1] = 1.2e154
    limit = NormLimit(Bounds(norm_max=1.0), spec)
    result = Result(1, buffer, coded, [b""] * len(coded.chunks), limit=limit)
    for index in range(len(coded.chunks)):
        result.look(index)
    assert not result.is_applied()


def test_a_chunk_that_comes_again_since_it_lacked_its_hash_counts_once() -> None:
    spec = contribution_spec(0, 1_000)
    bounds, coded = RoundBounds(Bounds(norm_max=1.0), spec), CodedVector(spec, cut(spec, 2_000))
    buffer = BufferPool(spec.size_bytes, 1).take()
    buffer.numbers(0, spec.size_bytes, "float32")[:] = 1.0 / np.sqrt(1_000)
    for index in (0, 0, 1, 1):
        message = ChunkDown(tag=Tag(epoch=1, round=1), tree=0, chunk=index, weights=(1.0,) if index == 0 else ())
        bounds.judge(SITES[1], message, index, buffer, coded)


@pytest.mark.parametrize(
    ("encoding", "norm", "kept"), [("fp32", 1.5, False), ("int8", 1.5, True), ("int8", 2.1, False)]
)
def test_what_travels_encoded_may_be_longer_by_what_sites_on_the_way_lose(
    encoding: str, norm: float, kept: bool
) -> None:
    spec = msgspec.structs.replace(SPEC, encoding=encoding)
    held, coded = np.zeros(spec.size_bytes, dtype=np.uint8), CodedVector(spec, cut(spec, 4_000))
    assert NormLimit(Bounds(norm_max=1.0), spec).is_kept(norm * norm, held, coded) is kept


@pytest.mark.parametrize(("encoding", "allowed"), [("fp32", NORM_SLACK * RADIUS), ("int8", None)])
def test_around_zero_nobody_is_judged_by_what_an_encoding_lost_of_a_longer_result(
    encoding: str, allowed: float | None
) -> None:
    """What was lost of the results before is owed; after a change of the overlay nobody knows how long they were."""
    centre = Centre(RADIUS, msgspec.structs.replace(SPEC, encoding=encoding))
    assert centre.allowed([CHUNK]) == allowed


def comes(message: ChunkUp | ChunkDown, *numbers: float) -> None:
    """Chunks of 1,000 such numbers each come from a neighbour, where a norm of 1 and a weight of 5 are agreed."""
    spec = contribution_spec(0, 1_000 * len(numbers))
    bounds = RoundBounds(Bounds(norm_max=1.0, weight_max=5.0), spec)
    coded = CodedVector(spec, cut(spec, 4_000))
    for index, number in enumerate(numbers):
        buffer = BufferPool(spec.size_bytes, 1).take()
        buffer.numbers(0, spec.size_bytes, "float32")[:] = number
        weights = message.weights if index == 0 else ()
        bounds.judge(SITES[1], msgspec.structs.replace(message, chunk=index, weights=weights), index, buffer, coded)


def a_sum(weight: float) -> ChunkUp:
    return ChunkUp(tag=Tag(epoch=1, round=1), tree=0, chunk=0, weights=(weight,))


A_RESULT = ChunkDown(tag=Tag(epoch=1, round=1), tree=0, chunk=0, weights=(1.0,))
SHORT = 0.9 / np.sqrt(1_000)


def test_a_weight_above_the_agreed_one_is_refused() -> None:
    comes(a_sum(5.0), SHORT)
    with pytest.raises(RemoteProtocolError, match=r"sent a weight of 5\.1"):
        comes(a_sum(5.1), SHORT)


@pytest.mark.parametrize("number", [2 * SHORT, float("nan"), float("inf")])
def test_a_sum_whose_mean_is_too_long_or_no_number_is_refused(number: float) -> None:
    with pytest.raises(RemoteProtocolError, match=r"sent a sum .* longer than the run allows"):
        comes(a_sum(1.0), number)


@pytest.mark.parametrize("message", [a_sum(1.0), A_RESULT], ids=["sum", "result"])
def test_chunks_that_are_short_each_and_too_long_together_are_refused(message: ChunkUp | ChunkDown) -> None:
    comes(message, SHORT)
    with pytest.raises(RemoteProtocolError, match="longer than the run allows"):
        comes(message, SHORT, SHORT)


def test_a_result_that_is_too_long_is_refused_from_its_parent() -> None:
    with pytest.raises(RemoteProtocolError, match=r"sent a result .* longer than the run allows"):
        comes(A_RESULT, 2 * SHORT)
