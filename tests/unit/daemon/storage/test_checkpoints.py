"""Checkpoints as files: readable by anyone, whole or not there, and no wrong byte passes."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import DTYPE_BYTES, Item, fact, state_spec
from chaos_protocols.wire.worker import StateSpec
from chaosd.storage import checkpoint_file as checkpoints_file
from chaosd.storage.checkpoint_file import verify_file
from chaosd.storage.checkpoints import CheckpointError, CheckpointFolder, Interrupted

SITE = SiteId("5" * 64)
OTHER = SiteId("6" * 64)


def never() -> bool:
    return False


def spec_of_all_types() -> StateSpec:
    """Every type, odd sizes (so there are gaps), a scalar, an empty array, and two facts."""
    items = [fact("optimizer: Adam"), fact("amsgrad: False")]
    items += [Item(f"layer.{dtype}", dtype, (3, 5)) for dtype in DTYPE_BYTES]
    items += [Item("step", "float64", ()), Item("nothing", "float32", (0, 4)), Item('näme "1"', "int8", (7,))]
    return state_spec(items)


def random_state(spec: StateSpec, seed: int = 1) -> bytearray:
    """Any bytes in the arrays (booleans 0 or 1), zeros in the gaps."""
    rng, state = np.random.default_rng(seed), bytearray(spec.size_bytes)
    for tensor in spec.tensors:
        high = 2 if tensor.dtype == "bool" else 256
        data = rng.integers(0, high, tensor.size_bytes, dtype=np.uint8).tobytes()
        state[tensor.offset : tensor.offset + tensor.size_bytes] = data
    return state


def facts(spec: StateSpec, round_number: int, lineage: int = 2) -> CheckpointFacts:
    return CheckpointFacts(lineage=lineage, round=round_number, spec_digest=spec.digest)


def folder_in(
    path: Path, *, kept: int = 3, run: str = "test", site: SiteId = SITE, run_id: str = ""
) -> CheckpointFolder:
    return CheckpointFolder(path / "checkpoints", run=run, site=site, kept=kept, run_id=lambda: run_id)


def only_file(path: Path) -> Path:
    (found,) = (path / "checkpoints").iterdir()
    return found


def write_one(path: Path, round_number: int = 40) -> tuple[StateSpec, bytearray, CheckpointFacts]:
    spec = spec_of_all_types()
    state, what = random_state(spec), facts(spec, round_number)
    size = folder_in(path).write(memoryview(state), spec, what, 17, never)
    assert size == only_file(path).stat().st_size
    return spec, state, what


def load(path: Path, spec: StateSpec, what: CheckpointFacts) -> bytearray:
    folder = folder_in(path)
    assert what in folder.found()
    there = bytearray(b"\xaa" * spec.size_bytes)
    folder.load(what, memoryview(there), spec, never)
    return there


def test_what_was_written_is_loaded_byte_for_byte(tmp_path: Path) -> None:
    spec, state, what = write_one(tmp_path)
    assert load(tmp_path, spec, what) == state
    assert stat.S_IMODE(only_file(tmp_path).stat().st_mode) == 0o600


def test_the_safetensors_library_reads_every_array_as_it_was(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="numpy has not every type that the library reads; torch has")
    from safetensors.torch import load_file

    spec, state, _ = write_one(tmp_path)
    loaded = load_file(only_file(tmp_path))
    arrays = [tensor for tensor in spec.tensors if tensor.shape != (0,)]
    assert set(loaded) == {tensor.name for tensor in arrays}
    for tensor in arrays:
        value = loaded[tensor.name]
        pairs = tensor.dtype == "complex128"
        assert tuple(value.shape) == ((*tensor.shape, 2) if pairs else tensor.shape)
        assert str(value.dtype) == f"torch.{'float64' if pairs else tensor.dtype}"
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert raw == bytes(state[tensor.offset : tensor.offset + tensor.size_bytes])


def test_the_metadata_says_which_run_and_round_it_is(tmp_path: Path) -> None:
    spec, _, _ = write_one(tmp_path)
    data = only_file(tmp_path).read_bytes()
    told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert (told["chaos.run"], told["chaos.round"], told["chaos.epoch"]) == ("test", "40", "17")
    assert told["chaos.spec"] == spec.digest and len(told["chaos.hash"]) == 64 and told["format"] == "pt"


def places(size: int, header_end: int) -> dict[str, int]:
    return {
        "length": 0,
        "length, high byte": 7,
        "header, first": 8,
        "header, middle": 8 + (header_end - 8) // 2,
        "header, last": header_end - 1,
        "data, first": header_end,
        "data, middle": (size + header_end) // 2,
        "data, last": size - 1,
    }


@pytest.mark.parametrize("where", list(places(1000, 500)))
def test_a_wrong_byte_anywhere_is_seen(tmp_path: Path, where: str) -> None:
    spec, _, what = write_one(tmp_path)
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[places(len(data), 8 + int.from_bytes(data[:8], "little"))[where]] ^= 0x01
    path.write_bytes(data)
    folder = folder_in(tmp_path)
    if what in folder.found():
        with pytest.raises(CheckpointError, match=path.name):
            folder.load(what, memoryview(bytearray(spec.size_bytes)), spec, never)
        assert what not in folder._known  # and it is not tried again
    else:
        assert folder.found() == ()


def test_every_single_byte_of_the_header_is_covered(tmp_path: Path) -> None:
    write_one(tmp_path)
    path = only_file(tmp_path)
    good = path.read_bytes()
    header_end = 8 + int.from_bytes(good[:8], "little")
    rng = np.random.default_rng(3)
    for at in range(header_end):
        data = bytearray(good)
        data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        with open(path, "rb") as file, pytest.raises(CheckpointError):
            verify_file(file)
    path.write_bytes(good)
    with open(path, "rb") as file:
        verify_file(file)


@pytest.mark.parametrize("cut", ["empty", "in the length", "in the header", "in the data", "longer"])
def test_a_file_of_the_wrong_length_is_seen(tmp_path: Path, cut: str) -> None:
    spec, _, what = write_one(tmp_path)
    path = only_file(tmp_path)
    data = path.read_bytes()
    sizes = {"empty": 0, "in the length": 5, "in the header": 100, "in the data": len(data) - 3}
    path.write_bytes(data + b"x" if cut == "longer" else data[: sizes[cut]])
    folder = folder_in(tmp_path)
    if what in folder.found():
        with pytest.raises(CheckpointError):
            folder.load(what, memoryview(bytearray(spec.size_bytes)), spec, never)
    else:
        assert cut != "longer"


def test_a_damaged_file_is_named_in_the_log_and_the_one_before_is_offered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of_all_types()
    folder = folder_in(tmp_path)
    for number in (10, 20):
        folder.write(memoryview(random_state(spec, number)), spec, facts(spec, number), 3, never)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:50])
    with caplog.at_level(logging.WARNING, logger="chaosd"):
        assert folder_in(tmp_path).found() == (facts(spec, 10),)
    assert newest.name in caplog.text and "passed over" in caplog.text
    assert load(tmp_path, spec, facts(spec, 10)) == random_state(spec, 10)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    spec, _, what = write_one(tmp_path)
    other = state_spec([Item("w", "float32", (spec.size_bytes // 4,))])
    folder = folder_in(tmp_path)
    folder.found()
    with pytest.raises(CheckpointError, match="another model"):
        folder.load(what, memoryview(bytearray(other.size_bytes)), other, never)


def test_another_runs_checkpoint_is_not_offered(tmp_path: Path) -> None:
    write_one(tmp_path)
    assert folder_in(tmp_path, run="another").found() == ()


def test_the_newest_few_are_kept_and_other_sites_files_stay(tmp_path: Path) -> None:
    spec = state_spec([Item("w", "float32", (8,))])
    state = memoryview(random_state(spec))
    folder_in(tmp_path, site=OTHER).write(state, spec, facts(spec, 1), 3, never)
    folder = folder_in(tmp_path, kept=2)
    for number, lineage in ((5, 2), (30, 2), (12, 9), (20, 9)):
        folder.write(state, spec, facts(spec, number, lineage), 3, never)
    assert [one.round for one in folder_in(tmp_path).found()] == [1, 12, 20]


def test_a_fresh_checkpoint_is_never_the_one_that_goes(tmp_path: Path) -> None:
    spec = state_spec([Item("w", "float32", (8,))])
    folder = folder_in(tmp_path, kept=1)
    for number, lineage in ((50, 9), (3, 2)):
        folder.write(memoryview(random_state(spec)), spec, facts(spec, number, lineage), 3, never)
    assert [one.round for one in folder_in(tmp_path).found()] == [3]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    spec = state_spec([Item(f"w{number}", "float32", (64,)) for number in range(10)])
    for looks in range(10):
        left = iter([False] * looks + [True] * 100)
        with pytest.raises(Interrupted):
            folder_in(tmp_path).write(memoryview(random_state(spec)), spec, facts(spec, 7), 3, left.__next__)
        assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_link_that_waits_under_the_name_of_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    """The folder may be one that others can write to."""
    spec, folder = state_spec([Item("w", "float32", (64,))]), folder_in(tmp_path)
    folder.write(memoryview(random_state(spec)), spec, facts(spec, 7), 3, never)
    (written,) = (tmp_path / "checkpoints").iterdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("somebody's")
    (written.parent / f".{written.name}.partial").symlink_to(elsewhere)
    folder.write(memoryview(random_state(spec)), spec, facts(spec, 7), 3, never)
    assert elsewhere.read_text() == "somebody's"
    assert list(written.parent.iterdir()) == [written] and not written.is_symlink()


def test_a_crash_in_the_middle_of_a_write_leaves_no_checkpoint_and_is_tidied(tmp_path: Path) -> None:
    """The process is killed between two system calls: nothing of it lies under the file's own name."""
    spec = state_spec([Item("w", "float32", (1 << 21,))])
    state = memoryview(random_state(spec))
    pid = os.fork()
    if pid == 0:
        calls = iter(range(100))
        folder_in(tmp_path).write(state, spec, facts(spec, 7), 3, lambda: next(calls) == 1 and os._exit(0))
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    (partial,) = (tmp_path / "checkpoints").iterdir()
    assert partial.name.endswith(".partial")
    assert folder_in(tmp_path).found() == () and not partial.exists()


@pytest.mark.parametrize("call", ["pwrite", "replace"])
def test_a_disk_that_fails_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fails)
    spec = state_spec([Item("w", "float32", (64,))])
    with pytest.raises(CheckpointError, match="No space left on device"):
        folder_in(tmp_path).write(memoryview(random_state(spec)), spec, facts(spec, 7), 3, never)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_file_is_on_disk_before_its_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    from chaosd.storage import checkpoints
    from chaosd.storage.journal import files as journal_files

    def noted(name: str, original: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            calls.append(name)
            original(*arguments)

        return call

    monkeypatch.setattr(checkpoints_file, "sync_data", noted("sync file", journal_files.sync_data))
    monkeypatch.setattr(checkpoints, "sync_data", noted("sync folder", journal_files.sync_data))
    monkeypatch.setattr(os, "replace", noted("rename", os.replace))
    monkeypatch.setattr(os, "pwrite", noted("hash", lambda *a: None))
    spec = state_spec([Item("w", "float32", (64,))])
    folder_in(tmp_path).write(memoryview(random_state(spec)), spec, facts(spec, 7), 3, never)
    assert calls == ["hash", "sync file", "rename", "sync folder"]


def test_a_folder_that_is_made_for_the_first_checkpoint_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and its name are synced in it; its own name is in the folder above."""
    from chaosd.storage.journal import files as journal_files

    synced: list[Path] = []
    monkeypatch.setattr(journal_files, "sync_folder", synced.append)
    spec = state_spec([Item("w", "float32", (64,))])
    far = CheckpointFolder(tmp_path / "new" / "checkpoints", run="test", site=SITE, kept=3)
    far.write(memoryview(random_state(spec)), spec, facts(spec, 7), 3, never)
    assert synced == [tmp_path, tmp_path / "new"]
    assert stat.S_IMODE(far.folder.stat().st_mode) == 0o700


def test_things_that_are_no_checkpoints_are_passed_over(tmp_path: Path) -> None:
    _, _, what = write_one(tmp_path)
    there = tmp_path / "checkpoints"
    (there / "folder.safetensors").mkdir()
    (there / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    (there / "noise.safetensors").write_bytes(np.random.default_rng(1).bytes(4096))
    (there / "huge.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    (there / "plain.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    deep = b"[" * 100_000
    (there / "deep.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
    assert folder_in(tmp_path).found() == (what,)


def test_once_a_run_has_one_of_its_own_those_of_other_runs_of_its_name_are_none_of_it(tmp_path: Path) -> None:
    spec = spec_of_all_types()
    state = memoryview(random_state(spec))
    former, present = (facts(spec, 5000, lineage=7), facts(spec, 50, lineage=3))
    folder_in(tmp_path, run_id="former").write(state, spec, former, 17, never)
    folder = folder_in(tmp_path, run_id="present")
    assert folder.found() == (former,), "a run whose journals were lost goes on from what there is"
    folder.write(state, spec, present, 4, never)
    assert folder.found() == (present,), "it looks older, and is the state of this run"
    assert set(folder_in(tmp_path).found()) == {former, present}, "who is in no run offers what it has"
    assert folder_in(tmp_path, run_id="third").found() == (present, former)


def test_files_of_another_run_take_no_place_of_this_one_and_do_not_grow_in_number(tmp_path: Path) -> None:
    spec = spec_of_all_types()
    state = memoryview(random_state(spec))
    for run_id in ("first", "second"):
        folder = folder_in(tmp_path, kept=2, run_id=run_id)
        for number in (1, 2, 3):
            folder.write(state, spec, facts(spec, number, lineage=9 if run_id == "first" else 1), 17, never)
    folder = folder_in(tmp_path, kept=2, run_id="third")
    folder.write(state, spec, facts(spec, 1, lineage=2), 17, never)
    assert sorted(head.run_id for _, head in folder.heads()) == ["first", "first", "third"]


def test_a_file_that_names_no_run_is_offered_as_ever(tmp_path: Path) -> None:
    """An older release, or an import, wrote it."""
    spec, _, what = write_one(tmp_path)
    folder = folder_in(tmp_path, run_id="present")
    folder.write(memoryview(random_state(spec)), spec, facts(spec, 50), 17, never)
    assert folder.found() == (what, facts(spec, 50))


@pytest.mark.parametrize(("number", "run"), [(41, "test"), (40, "another")])
def test_a_file_that_was_replaced_since_it_was_offered_is_not_loaded_for_it(
    tmp_path: Path, number: int, run: str
) -> None:
    """By a copy from another site, or of another run: the round that was agreed on is not what it holds."""
    spec, state, what = write_one(tmp_path)
    folder = folder_in(tmp_path)
    assert folder.found() == (what,)
    other = tmp_path / "other"
    folder_in(other, run=run).write(memoryview(state), spec, facts(spec, number), 17, never)
    only_file(other).replace(only_file(tmp_path))
    with pytest.raises(CheckpointError, match="another checkpoint than its head said before"):
        folder.load(what, memoryview(bytearray(spec.size_bytes)), spec, never)
    assert not folder.known
