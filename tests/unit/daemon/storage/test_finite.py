"""Which states are worth a checkpoint: none with a NaN, none with an infinity that was not there before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.daemon.storage.test_checkpoint_keeper import Bench

from chaos_protocols import effects, events
from chaos_protocols.wire.state_spec import Item, state_spec
from chaosd.storage.finite import LOOKS, PIECE_BYTES, infinite_arrays, not_finite


def go_on() -> bool:
    return False


@pytest.mark.parametrize("dtype", sorted(LOOKS))
def test_every_type_of_numbers_is_looked_at_as_torch_reads_it(dtype: str) -> None:
    """All codes of a byte, or of two, against torch's own reading of them; wider types by their special values."""
    kind = getattr(torch, dtype)
    width = torch.empty(0, dtype=kind).element_size()
    if width == 1:
        raw = np.arange(256, dtype=np.uint8)
    elif width == 2:
        raw = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    else:
        real = torch.float64 if width in (8, 16) and dtype != "complex64" else torch.float32
        values = [0.0, 1.0, -1e30, float("nan"), float("inf"), float("-inf"), -0.0, 3.0]
        raw = torch.tensor(values, dtype=real).view(torch.uint8).numpy().copy()
    unit = width // 2 if dtype.startswith("complex") else width
    for start in range(0, len(raw), unit):
        one = np.ascontiguousarray(raw[start : start + unit])
        number = torch.from_numpy(one.copy())
        real_kind = {"complex64": torch.float32, "complex128": torch.float64}.get(dtype, kind)
        value = number.view(real_kind).to(torch.float64)
        assert LOOKS[dtype](one) == (bool(value.isnan().any()), bool(value.isinf().any())), one


def test_the_first_array_that_is_not_finite_is_named_wherever_it_is() -> None:
    count = PIECE_BYTES // 4 + 100
    spec = state_spec([Item("mask", "float32", (4,)), Item("w", "float32", (count,)), Item("n", "int64", (3,))])
    state = memoryview(bytearray(spec.size_bytes))
    numbers = np.frombuffer(state, dtype=np.float32)
    assert not_finite(state, spec, frozenset(), go_on) == ""
    numbers[0] = -np.inf
    assert infinite_arrays(state, spec, go_on) == {"mask"}
    assert not_finite(state, spec, frozenset(), go_on) == "mask holds an infinity"
    assert not_finite(state, spec, {"mask"}, go_on) == ""
    numbers[spec.tensors[1].offset // 4 + count - 1] = np.nan
    assert not_finite(state, spec, {"mask"}, go_on) == "w holds NaN"


async def test_a_state_with_a_nan_is_not_written_and_the_file_before_it_stays(tmp_path: object) -> None:
    bench = Bench(tmp_path)  # type: ignore[arg-type]
    for number, poison in ((1, False), (2, True), (3, False)):
        bench.fill(number)
        if poison:
            np.frombuffer(bench.arena.state, dtype=np.float32)[7] = np.nan
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        await bench.next()
        bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(number), epoch=1))
        written = await bench.next()
        assert isinstance(written, events.CheckpointWritten)
        assert bool(written.reason) is poison and ("w holds NaN" in written.reason) is poison
    assert bench.folder is not None
    assert [one.round for one in bench.folder.found()] == [1, 3]
    await bench.keeper.close()


async def test_a_disk_is_not_filled(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    bench = Bench(tmp_path)  # type: ignore[arg-type]
    needed = bench.arena.state.nbytes
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    free = [100_000 + needed - 1]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(2_000_000, 0, free[0]))
    for number, room in ((1, False), (2, True)):
        free[0] += number - 1
        bench.fill(number)
        bench.do(effects.SaveMemoryCheckpoint(round=number))
        await bench.next()
        bench.do(effects.WriteCheckpoint(checkpoint=bench.checkpoint(number), epoch=1))
        written = await bench.next()
        assert isinstance(written, events.CheckpointWritten)
        assert (not written.reason) is room and ("is left out" in written.reason) is not room
        if not room:  # in MiB all three would be 0, and the sentence would say that nothing is less than nothing
            told = " has 102 KiB free: a checkpoint of 4 KiB would leave less than 98 KiB, and is left out"
            assert told in written.reason
    await bench.keeper.close()
