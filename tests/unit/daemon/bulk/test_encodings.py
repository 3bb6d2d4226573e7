"""The encodings: sizes, errors, what is not finite, and that what is lost is added to what comes next."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from chaos_protocols.rounds.reduce import chunk_bytes_for, cut
from chaos_protocols.wire.encodings import FORMS, FP32
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.bulk.reduce.coded import CodedVector, coded_bytes
from chaosd.bulk.reduce.encodings import codec_of

LOSSY = [name for name in FORMS if name != FP32]
COUNT_MAX = 700
BOUND = {"bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "int4": 0.5 / 7}
"""Of the error of one number: of the number itself, or of the largest in its block."""


def there_and_back(name: str, values: np.ndarray) -> tuple[np.ndarray, bool]:  # type: ignore[type-arg]
    codec = codec_of(name, COUNT_MAX)
    assert codec is not None
    data, back = np.full(FORMS[name].size_bytes(len(values)), 0xA5, np.uint8), np.empty(len(values), np.float32)
    codec.encode(values, data)
    codec.decode(data, back)
    return back, codec.is_finite(data, len(values))


@pytest.mark.parametrize("name", LOSSY)
@hypothesis.given(
    arrays.arrays(
        np.float32,
        st.integers(0, COUNT_MAX),
        elements=st.floats(-60_000, 60_000, width=32, allow_subnormal=False),
    )
)
def test_a_number_comes_back_within_half_a_step(name: str, values: np.ndarray) -> None:  # type: ignore[type-arg]
    back, finite = there_and_back(name, values)
    assert finite
    block = FORMS[name].block
    for start in range(0, len(values), block or 1):
        one, other = values[start : start + (block or 1)], back[start : start + (block or 1)]
        largest = float(np.abs(one).max())
        least = 2**-24 if name == "fp16" else 1e-35  # below its smallest number, or scale
        assert float(np.abs(one.astype(np.float64) - other).max()) <= largest * BOUND[name] * 1.001 + least


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 64, 65, 257, 600])
def test_what_is_not_finite_stays_so(name: str, odd: float, count: int) -> None:
    values = np.linspace(-1, 1, count, dtype=np.float32)
    values[count // 2] = odd
    back, finite = there_and_back(name, values)
    assert not finite and not np.isfinite(back[count // 2])


def test_a_nan_of_any_bits_is_none_in_bf16() -> None:
    """Rounded up as a number it would become one: minus zero."""
    values = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    back, finite = there_and_back("bf16", values)
    assert not finite and np.isnan(back).all()


def test_half_precision_says_that_a_number_is_too_large_for_it() -> None:
    back, finite = there_and_back("fp16", np.array([1.0, 70_000.0], np.float32))
    assert not finite and back[1] == np.inf


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_any_bytes_of_a_peer_are_numbers_or_told_as_none(name: str) -> None:
    codec = codec_of(name, COUNT_MAX)
    assert codec is not None
    rng = np.random.default_rng(1)
    for _ in range(300):
        count = int(rng.integers(1, COUNT_MAX))
        data, out = rng.bytes(FORMS[name].size_bytes(count)), np.empty(count, np.float32)
        got = np.frombuffer(bytearray(data), np.uint8)
        codec.decode(got, out)
        assert not codec.is_finite(got, count) or np.isfinite(out).all()


@pytest.mark.parametrize("name", LOSSY)
def test_chunks_lie_apart_and_float64_stays_whole(name: str) -> None:
    spec = contribution_spec(5_000, 60_001)
    spec = type(spec)(segments=spec.segments, size_bytes=spec.size_bytes, encoding=name)
    chunks = cut(spec, chunk_bytes_for(spec.size_bytes))
    coded = CodedVector(spec, chunks)
    assert coded.size_bytes == coded_bytes(spec) < 40_000 + 4 * 60_001 * 0.51
    for one, other in zip(coded.places, coded.places[1:], strict=False):
        assert one.stop <= other.start < one.stop + 8 and other.start % 8 == 0
    for index, (chunk, place) in enumerate(zip(chunks, coded.places, strict=True)):
        assert coded.codes(index) == (chunk.dtype == "float32")
        assert coded.codes(index) or chunk.size_bytes == place.size_bytes


@pytest.mark.parametrize("name", LOSSY)
def test_with_feedback_the_sum_of_many_rounds_is_nearer_than_without(name: str) -> None:
    rng = np.random.default_rng(3)
    constant = rng.standard_normal(5_000).astype(np.float32)  # as gradients have a common direction
    parts = [constant + rng.standard_normal(5_000).astype(np.float32) for _ in range(30)]
    errors = {}
    for feedback in (True, False):
        coded = vector(name, 5_000, feedback=feedback)
        total = np.zeros(5_000)
        for number, part in enumerate(parts, 1):
            total += encoded_round(coded, number, part)
            coded.held(number)
        errors[feedback] = float(np.linalg.norm(total - np.sum(parts, axis=0, dtype=np.float64)))
    assert errors[True] < errors[False] / 2


def vector(name: str, count: int, *, feedback: bool = True) -> CodedVector:
    spec = contribution_spec(0, count)
    spec = type(spec)(segments=spec.segments, size_bytes=spec.size_bytes, encoding=name)
    return CodedVector(spec, cut(spec, chunk_bytes_for(spec.size_bytes)), feedback=feedback)


def encoded_round(coded: CodedVector, number: int, values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """What comes out of a round to which this site alone gives."""
    coded.begin(number)
    (place,) = coded.places
    data = np.zeros(place.size_bytes, np.uint8)
    coded.encode(0, values.copy(), data)
    return coded.decoded(0, data, 1.0).astype(np.float64)


def test_a_round_that_begins_again_starts_from_the_loss_of_the_one_before() -> None:
    coded = vector("int8", 1_000)
    rng = np.random.default_rng(5)
    parts = [rng.standard_normal(1_000).astype(np.float32) for _ in range(4)]
    encoded_round(coded, 1, parts[0])
    coded.held(1)
    for _ in range(3):
        again = encoded_round(coded, 2, parts[1])
        np.testing.assert_array_equal(again, encoded_round(coded, 2, parts[1]))
    coded.held(2)
    third = encoded_round(coded, 3, parts[2])
    coded.held(3)
    np.testing.assert_array_equal(
        third, encoded_round(coded, 3, parts[2]), "its result was held, and was void after all"
    )


def test_nothing_of_a_number_that_is_none_is_kept() -> None:
    coded = vector("int8", 1_000)
    values = np.linspace(-1, 1, 1_000, dtype=np.float32)
    encoded_round(coded, 1, values)
    coded.held(1)
    wanted = encoded_round(coded, 2, values)
    for number, odd in ((2, np.nan), (3, np.inf)):
        broken = values.copy()
        broken[7] = odd
        encoded_round(coded, number, broken)
        coded.held(number, finite=False)
    np.testing.assert_array_equal(encoded_round(coded, 4, values), wanted)


def test_the_error_of_a_round_is_told_when_it_counts() -> None:
    coded = vector("int8", 1_000)
    encoded_round(coded, 1, np.linspace(-1, 1, 1_000, dtype=np.float32))
    assert coded.error is None
    coded.held(1)
    assert coded.error is not None and 1e-4 < coded.error < 0.01


def test_parts_in_turn_owe_each_their_own() -> None:
    """Three parts of one vector are three vectors, each with a round in three."""
    rng = np.random.default_rng(8)
    spec = contribution_spec(0, 700, parts=3)
    spec = type(spec)(segments=spec.segments, size_bytes=spec.size_bytes, encoding="int8", parts=spec.parts)
    together = CodedVector(spec, cut(spec, chunk_bytes_for(spec.size_bytes)))
    apart = [vector("int8", 700) for _ in range(3)]
    numbers = [*range(1, 9), 8, 7, 8, 9, *range(10, 13)]  # 8 begins again, then 7 and 8 turn out to be void
    for number in numbers:
        values = np.random.default_rng(number).standard_normal(700).astype(np.float32)
        part, turn = (number - 1) % 3, (number - 1) // 3 + 1
        wanted = encoded_round(apart[part], turn, values)
        np.testing.assert_array_equal(encoded_round(together, number, values), wanted, f"round {number}")
        again = bool(rng.integers(2))
        if again:
            np.testing.assert_array_equal(encoded_round(together, number, values), wanted)
            encoded_round(apart[part], turn, values)
        together.held(number)
        apart[part].held(turn)


@pytest.mark.parametrize("after", [1, 2])
def test_who_goes_on_after_a_round_in_another_history_owes_nothing(after: int) -> None:
    """Also of a round of that number: it may have been done under a tag that is void since (seed 2504, 4 sites)."""
    coded = vector("int8", 1_000)
    values = np.linspace(-1, 1, 1_000, dtype=np.float32)
    first = encoded_round(coded, 1, values)
    coded.held(1)
    assert not np.array_equal(encoded_round(coded, 2, values), first), "what was lost is added"
    coded.held(2)
    coded.begin_after(after)
    np.testing.assert_array_equal(encoded_round(coded, after + 1, values), first)
    coded.held(after + 1)
    assert not np.array_equal(encoded_round(coded, after + 2, values), first)


def test_who_only_listens_owes_nothing_of_any_part() -> None:
    spec = contribution_spec(0, 700, parts=3)
    spec = type(spec)(segments=spec.segments, size_bytes=spec.size_bytes, encoding="int8", parts=spec.parts)
    coded = CodedVector(spec, cut(spec, chunk_bytes_for(spec.size_bytes)))
    values = np.linspace(-1, 1, 700, dtype=np.float32)
    first = encoded_round(coded, 1, values)
    coded.held(1)
    assert not np.array_equal(encoded_round(coded, 4, values), first), "what was lost of part 1 is added"
    for number in (2, 3):
        encoded_round(coded, number, values)
        coded.held(number)
    coded.begin(4, member=False)
    coded.held(4)
    for number in (5, 6, 7):
        np.testing.assert_array_equal(encoded_round(coded, number, values), first)
        coded.held(number)
