"""Shared memory and CUDA, played by a runtime that only notes what it is told."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from chaos.arena import WorkerArena
from chaos.pinning import pin


class Runtime:
    """`error`: what it answers to a wish to pin."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.pinned, self.calls = error, {}, 0  # type: ignore[var-annotated]

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls += 1
        if not self.error:
            self.pinned[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def runtime(monkeypatch: pytest.MonkeyPatch, *, used: bool = True, error: int = 0) -> Runtime:
    made = Runtime(error)
    cuda = SimpleNamespace(is_initialized=lambda: used, cudart=lambda: made)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return made


def test_an_arena_is_pinned_as_long_as_it_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = runtime(monkeypatch)
    arena = WorkerArena(5000, 24)
    address, size = arena.contribution.ctypes.data, arena.layout.state_offset
    assert cuda.pinned == {address: size}, "what moves in every round"
    mapped = arena._map
    assert mapped is not None
    undo, closed = arena._unpin, []
    arena._unpin = lambda: (closed.append(mapped.closed), undo())[1]  # type: ignore[func-returns-value]
    arena.close()
    arena.close()
    assert cuda.pinned == {} and closed == [False], "what is mapped there next would be taken for these pages"


def test_nothing_is_pinned_for_a_process_that_computes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = runtime(monkeypatch, used=False)
    pin(np.zeros(8, dtype=np.uint8))()
    monkeypatch.delitem(sys.modules, "torch")
    pin(np.zeros(8, dtype=np.uint8))()
    assert cuda.calls == 0


def test_memory_that_cannot_be_pinned_is_used_as_it_is_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda = runtime(monkeypatch, error=2)
    pin(np.zeros(8, dtype=np.uint8))()
    assert cuda.calls == 1 and "8 bytes" in capsys.readouterr().err


def test_the_memory_of_a_site_is_unpinned_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from chaos.worker_group.memory import RunMemory
    from chaos_protocols.rounds.state_check import piece_bytes
    from chaos_protocols.wire.arena import arena_layout

    cuda = runtime(monkeypatch)
    contribution, state = SimpleNamespace(size_bytes=64), SimpleNamespace(size_bytes=128)
    vectors = SimpleNamespace(contribution=contribution, state=state, left_out=0)
    layout = arena_layout(64, 128)
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), layout.size_bytes + piece_bytes(128))
        memory = RunMemory(vectors, file.fileno())  # type: ignore[arg-type]
        assert list(cuda.pinned.values()) == [layout.state_offset]
        del memory
        gc.collect()
    assert cuda.pinned == {}
