"""Arithmetic in place and buffers that count their holders."""

from __future__ import annotations

import gc
import sys

import numpy as np
import psutil
import pytest

from chaos_protocols.errors import LocalProtocolError
from chaosd.bulk.vector import FEW, BufferPool, divide, is_finite, vector_digest, weighted_sum


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sum_has_the_bits_of_the_written_order(dtype: str) -> None:
    rng = np.random.default_rng(1)
    own, first, second = (rng.standard_normal(1000).astype(dtype) for _ in range(3))
    out = np.empty(1000, dtype=dtype)
    weighted_sum(out, own, 3.7, [first, second])
    expected = (own * np.dtype(dtype).type(3.7) + first) + second
    assert out.tobytes() == expected.tobytes()
    weighted_sum(out, None, None, [second, first])
    assert out.tobytes() == (second + first).tobytes()
    divide(out, expected, 7.3)
    assert out.tobytes() == (expected / np.dtype(dtype).type(7.3)).tobytes()
    assert out.dtype == dtype


def test_a_buffer_goes_back_to_its_pool_only_when_nobody_holds_it() -> None:
    pool = BufferPool(10_000, kept_max=1)
    first = pool.take()
    first.retain().release()
    second = pool.take()
    assert second is not first
    assert pool.taken == 2
    first.release()
    assert pool.take() is first
    first.release()
    second.release()
    assert pool.taken == 0
    assert pool.take() is first, "no more are kept than was said"
    with pytest.raises(LocalProtocolError, match="more often than it was held"):
        second.release()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads how many pages were touched as Linux tells it")
def test_taking_memory_touches_none_of_it() -> None:
    """Fresh pages of a whole result take a second where processors are busy: then neighbours call the site silent."""
    size_bytes = 64 << 20
    process, pool = psutil.Process(), BufferPool(size_bytes, kept_max=0)
    gc.collect()  # what other tests have left must not go meanwhile
    before = process.memory_info().rss
    buffer = pool.take()
    taken_bytes = process.memory_info().rss - before
    assert buffer.array.nbytes == size_bytes and taken_bytes < size_bytes // 4
    buffer.array[:] = 1
    assert process.memory_info().rss - before > size_bytes // 2, "what is used shows"


def test_a_view_is_of_the_same_bytes() -> None:
    buffer = BufferPool(16, kept_max=0).take()
    buffer.view(0, 16)[:] = np.arange(4, dtype=np.float32).tobytes()
    assert buffer.numbers(4, 16, "float32").tolist() == [1.0, 2.0, 3.0]


def test_the_digest_depends_on_the_order_of_the_chunks() -> None:
    assert vector_digest([b"a", b"b"]) != vector_digest([b"b", b"a"])
    assert len(vector_digest([])) == 64


@pytest.mark.parametrize("count", [10, FEW + 1])
def test_numbers_are_finite_unless_one_is_not_even_where_their_sum_is_too_large(count: int) -> None:
    numbers = np.full(count, 3e38, dtype=np.float32)
    assert is_finite(numbers)
    for odd in (np.nan, np.inf, -np.inf):
        numbers[-1] = odd
        assert not is_finite(numbers)
