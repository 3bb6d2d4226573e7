"""Checkpoints out and in: what the safetensors library reads is the state, and what it wrote comes in as one."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.state_spec import Item, fact, state_spec
from chaosd.cli.app import app
from chaosd.storage import exchange
from chaosd.storage.checkpoint_file import CheckpointError
from chaosd.storage.checkpoints import CheckpointFolder
from chaosd.storage.exchange import export_file, import_file, newest_in

SITE = SiteId("5" * 64)
SPEC = state_spec(
    [
        Item("model.w", "float32", (10, 3)),
        fact("opt: Adam"),
        Item("opt.step", "float64", ()),
        Item("z", "complex128", (2,)),
    ]
)


def go_on() -> bool:
    return False


def state(seed: int) -> bytearray:
    data = bytearray(SPEC.size_bytes)
    random = np.random.default_rng(seed)
    for tensor in SPEC.tensors:
        data[tensor.offset : tensor.offset + tensor.size_bytes] = random.bytes(tensor.size_bytes)
    return data


def folder(path: Path, *rounds: int, lineage: int = 2) -> CheckpointFolder:
    made = CheckpointFolder(path, run="ward", site=SITE, kept=2)
    for number in rounds:
        facts = CheckpointFacts(lineage=lineage, round=number, spec_digest=SPEC.digest)
        made.write(memoryview(state(number)), SPEC, facts, 4, go_on)
    return made


def loaded(made: CheckpointFolder, round_number: int) -> bytes:
    (facts,) = [one for one in made.found() if one.round == round_number]
    data = bytearray(SPEC.size_bytes)
    made.load(facts, memoryview(data), SPEC, go_on)
    return bytes(data)


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoint", *map(str, words)])
    return result.exit_code, result.output


def test_an_export_is_what_the_library_reads_and_comes_in_elsewhere_as_it_was(tmp_path: Path) -> None:
    folder(tmp_path / "a", 10, 20)
    head = export_file(newest_in(tmp_path / "a", None), tmp_path / "out.safetensors")
    assert head.facts.round == 20
    read = load_file(tmp_path / "out.safetensors")
    weights = SPEC.tensors[0]
    assert read["model.w"].tobytes() == bytes(state(20)[weights.offset : weights.offset + weights.size_bytes])
    assert set(read) == {"model.w", "opt.step", "z"}
    _, facts = import_file(tmp_path / "out.safetensors", tmp_path / "b", run="ward", round_number=None)
    assert facts.round == 20
    assert loaded(CheckpointFolder(tmp_path / "b", run="ward", site=SITE, kept=2), 20) == bytes(state(20))


def test_numbers_of_another_program_come_in_by_names_types_and_shapes(tmp_path: Path) -> None:
    made = folder(tmp_path / "a", 10)
    read = load_file(newest_in(tmp_path / "a", None))
    changed = {name: np.full(read[name].shape, 3, read[name].dtype) for name in sorted(read, reverse=True)}
    save_file(changed, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="--round"):
        import_file(tmp_path / "other.safetensors", tmp_path / "a", run="ward", round_number=None)
    import_file(tmp_path / "other.safetensors", tmp_path / "a", run="ward", round_number=4)
    found = np.frombuffer(loaded(made, 4)[: SPEC.tensors[0].size_bytes], dtype=np.float32)
    assert (found == 3).all()
    for number in (30, 40):
        folder(tmp_path / "a", number)
    assert {one.round for one in made.found()} == {4, 30, 40}, "it is not removed to make room"


@pytest.mark.parametrize("name", ["model.w", "opt.step", "z"])
def test_a_file_of_another_program_with_a_nan_stays_outside_and_one_with_an_infinity_may_mean_it(
    tmp_path: Path, name: str
) -> None:
    """A run that went on from it would have nothing finite to give, at any site."""
    folder(tmp_path / "a", 10)
    read = load_file(newest_in(tmp_path / "a", None))
    changed = {one: np.full(read[one].shape, 3, read[one].dtype) for one in read}
    file = tmp_path / "other.safetensors"
    for number, refused in ((np.inf, False), (np.nan, True)):
        changed[name].flat[changed[name].size - 1] = number
        save_file(changed, file)
        if not refused:
            import_file(file, tmp_path / "a", run="ward", round_number=4)
            continue
        with pytest.raises(CheckpointError, match=f"{name} holds NaN"):
            import_file(file, tmp_path / "a", run="ward", round_number=5)
    assert not list((tmp_path / "a").glob("round-0000000005*"))


def test_other_arrays_and_damaged_checkpoints_stay_outside(tmp_path: Path) -> None:
    folder(tmp_path / "a", 10)
    save_file({"model.w": np.zeros((3, 10), dtype=np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="names, types and shapes"):
        import_file(tmp_path / "other.safetensors", tmp_path / "a", run="ward", round_number=4)
    whole = newest_in(tmp_path / "a", 10).read_bytes()
    for number, data in enumerate((whole[:-1] + b"\x99", whole[:-20], b"", b"\xff" * 100, whole[:8])):
        file = tmp_path / f"damaged-{number}.safetensors"
        file.write_bytes(data)
        with pytest.raises(CheckpointError):
            import_file(file, tmp_path / "a", run="ward", round_number=4)
        with pytest.raises(CheckpointError):
            export_file(file, tmp_path / "out")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [newest_in(tmp_path / "a", None).name]
    assert not (tmp_path / "out").exists()


def test_the_commands_say_what_they_did_and_overwrite_nothing(tmp_path: Path) -> None:
    folder(tmp_path / "checkpoints", 10, 20)
    out = tmp_path / "out.safetensors"
    code, text = run("export", out, "--data-dir", tmp_path, "--round", 10)
    assert code == 0 and "round 10 of 'ward'" in text and "verified" in text
    code, text = run("export", out, "--data-dir", tmp_path)
    assert code == 1 and "exists already" in text
    code, text = run("export", tmp_path / "more", "--data-dir", tmp_path, "--round", 11)
    assert code == 1 and "no checkpoint of round 11" in text
    code, text = run("import", out, "--data-dir", tmp_path, "--round", 7)
    assert code == 0 and "round 7 of run 'default'" in text
    code, text = run("import", tmp_path / "nothing", "--data-dir", tmp_path)
    assert code == 1 and "No such file" in text


def test_the_file_that_is_damaged_or_without_room_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "checkpoints"
    folder(place, 10, 20)
    out = tmp_path / "out.safetensors"
    assert run("export", out, "--data-dir", tmp_path, "--round", 10)[0] == 0

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "sync_data", full)
        code, text = run("import", out, "--data-dir", tmp_path, "--round", 7)
    assert code == 1 and text.startswith(str(place)) and "the disk is full; free space" in text
    newest = newest_in(place, None)
    newest.write_bytes(newest.read_bytes()[:-1])
    code, text = run("export", tmp_path / "more", "--data-dir", tmp_path)
    assert code == 1 and text.startswith(f"{newest}: ") and "--round" in text
    (tmp_path / "no").touch()
    code, text = run("export", tmp_path / "no" / "out", "--data-dir", tmp_path, "--round", 10)
    assert code == 1 and text.startswith(str(tmp_path / "no" / "out"))
