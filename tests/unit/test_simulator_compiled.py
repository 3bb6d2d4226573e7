"""The compiled simulator, without compiling: what names its folder, when that is whole, what is refused and how."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from tests.simulator import __main__ as simulator
from tests.simulator import compiled
from tests.simulator.compiled import CannotCompile, Finder, build, check_loaded, key_of, loaded_sources, to_compile
from tests.simulator.fingerprint import FORGETFUL, SEEDS_COMPARED, fingerprint


@pytest.fixture
def needs_mypy() -> None:
    pytest.importorskip("mypy", reason="mypyc comes with the check extra")


@pytest.fixture
def sources(tmp_path: Path, needs_mypy: None) -> dict[str, Path]:
    path = tmp_path / "one.py"
    path.write_text("ONE = 1\n")
    return {"one": path}


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "check_tools", lambda: None)
    return tmp_path / "builds"


def make(folder: Path, modules: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True)
    (folder / "made").touch()


def approve(folder: Path) -> None:
    assert (folder / "made").exists()


def test_a_changed_source_is_compiled_anew_and_a_touched_one_is_not(builds: Path, sources: dict[str, Path]) -> None:
    first = build(sources, builds=builds, make=make, check=approve)
    os.utime(sources["one"], (1, 1))
    assert build(sources, builds=builds, make=pytest.fail, check=pytest.fail) == first
    sources["one"].write_text("ONE = 2\n")
    assert build(sources, builds=builds, make=make, check=approve) != first


def test_another_mypy_compiles_anew(sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(sources)
    monkeypatch.setattr("mypy.version.__version__", "0.0")
    assert key_of(sources) != before


@pytest.mark.parametrize("stage", ["make", "check"])
def test_an_interrupted_build_is_not_used(stage: str, builds: Path, sources: dict[str, Path]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    steps = {"make": make, "check": approve} | {stage: interrupt}
    with pytest.raises(KeyboardInterrupt):
        build(sources, builds=builds, **steps)  # type: ignore[arg-type]
    assert not (builds / key_of(sources)).exists()
    assert (build(sources, builds=builds, make=make, check=approve) / "made").exists()
    assert [one.name for one in builds.iterdir()] == [key_of(sources)]


def test_sources_that_change_while_they_are_compiled_are_refused(builds: Path, sources: dict[str, Path]) -> None:
    def make_slowly(folder: Path, modules: Mapping[str, Path]) -> None:
        make(folder, modules)
        sources["one"].write_text("ONE = 3\n")

    with pytest.raises(CannotCompile, match="changed meanwhile"):
        build(sources, builds=builds, make=make_slowly, check=approve)
    assert not (builds / key_of(sources)).exists()


def test_only_the_newest_folders_are_kept(builds: Path, sources: dict[str, Path]) -> None:
    made = []
    for number in range(compiled.BUILDS_KEPT + 2):
        sources["one"].write_text(f"ONE = {number}\n")
        made.append(build(sources, builds=builds, make=make, check=approve))
        os.utime(made[-1], (number, number))
    kept = {one.name for one in builds.iterdir()}
    assert made[0].name not in kept and made[-1].name in kept
    assert len(kept) == compiled.BUILDS_KEPT


@pytest.mark.usefixtures("needs_mypy")
def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pipe")
    with pytest.raises(CannotCompile, match=r"no C compiler \(no-such-compiler\): install it"):
        compiled.check_tools()


def test_a_missing_mypy_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotCompile, match=r"mypyc is not installed: pip install -e '.\[check\]'"):
        compiled.check_tools()


@pytest.mark.usefixtures("needs_mypy")
def test_the_command_ends_with_2_where_it_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(sys, "argv", ["simulator", "--compiled", "--seeds", "0:1"])
    assert simulator.main() == 2
    assert "no C compiler" in capsys.readouterr().err


def test_a_module_that_is_loaded_interpreted_is_refused() -> None:
    native, plain = ModuleType("native"), ModuleType("plain")
    native.__file__, plain.__file__ = f"native{compiled.ENDING}", "plain.py"
    modules = {"native": native, "plain": plain}
    check_loaded(["native"], modules)
    for names in (["native", "plain"], ["native", "absent"]):
        with pytest.raises(CannotCompile, match=names[1]):
            check_loaded(names, modules)


def test_a_compiled_module_is_found_by_its_whole_name_and_others_are_left_to_python(tmp_path: Path) -> None:
    path = tmp_path / "package" / f"one{compiled.ENDING}"
    path.parent.mkdir()
    path.touch()
    finder = Finder(tmp_path)
    found = finder.find_spec("package.one")
    assert found is not None and found.origin == str(path)
    assert isinstance(found.loader, importlib.machinery.ExtensionFileLoader)
    assert finder.find_spec("package") is None and finder.find_spec("one") is None


def test_what_msgspec_reads_stays_interpreted_and_all_that_is_named_is_there() -> None:
    chosen = set(to_compile(loaded_sources(sys.modules)))
    assert {f"tests.simulator.{name}" for name in compiled.SIMULATOR} | set(compiled.PLANNERS) <= chosen
    assert "chaos_protocols.site" in chosen
    assert (
        not {"chaos_protocols.agreement.roster", "chaos_protocols.wire.control", *compiled.ANNOTATIONS_ARE_READ}
        & chosen
    )


def test_a_run_that_is_not_the_interpreters_is_named(tmp_path: Path) -> None:
    interpreted = {"seed 0": "ab", "seed 1": "cd"}
    compiled.compare(tmp_path, told=lambda folder: dict(interpreted))
    for other in ({"seed 0": "ab", "seed 1": "ce"}, {"seed 0": "ab"}):
        with pytest.raises(CannotCompile, match="interpreted: seed 1;"):
            compiled.compare(tmp_path, told=lambda folder, other=other: interpreted if folder == "-" else other)


def test_a_folder_without_compiled_modules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotCompile, match="nothing compiled is in"):
        compiled.compare(tmp_path)


def test_a_fingerprint_tells_runs_apart_and_an_oracle_speaks_in_the_forgetful_one() -> None:
    plain, forgetful = fingerprint(SEEDS_COMPARED), fingerprint(SEEDS_COMPARED, forgetful=True)
    assert fingerprint(SEEDS_COMPARED) == plain != fingerprint(SEEDS_COMPARED + 6)
    assert "invariant" not in plain and "invariant" in forgetful, FORGETFUL
