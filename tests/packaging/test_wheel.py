"""What is shipped: the wheel's content and metadata, and that the daemon needs neither an extra nor the source tree."""

from __future__ import annotations

import email.message
import email.parser
import os
import re
import statistics
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tidy.tree import PACKAGES, ROOT, python_files

COMMAND_TIMEOUT_S = 150
STARTS = 5

EXTRAS = ("torch", "scipy", "msgpack", "matplotlib")
"""What a site's daemon is never asked to install."""

WITHOUT_EXTRAS = f"""
import importlib, pkgutil, sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusal())
names = ["chaosd", "chaos_lab", "chaos_planner", "chaos_protocols"]
for package in list(names):
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")
    names += [module.name for module in found if not module.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(sys.modules["chaosd"].__file__)
print(len(names))
assert not set(sys.modules) & set({EXTRAS!r})
"""

HEAVY = ("torch", "numpy", "scipy", "aiohttp", "pydantic", "cryptography", "asyncio")

LIGHT_START = f"""
import sys
import chaosd.cli.app
print([name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as an installation lays it down."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def metadata(installed: Path) -> email.message.Message:
    (path,) = installed.glob("*.dist-info/METADATA")
    return email.parser.Parser().parsestr(path.read_text(encoding="utf-8"))


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with `folder` before everything else, started far from the source tree."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )


def test_the_wheel_holds_every_module_of_the_packages_and_nothing_else(installed: Path) -> None:
    shipped = {str(path.relative_to(installed)) for path in installed.rglob("*.py")}
    expected = {
        str(path.relative_to((ROOT / package).parent)) for package in PACKAGES for path in python_files((package,))
    }
    expected |= {f"chaos_lab/heart/{path.name}" for path in (ROOT / "examples" / "heart").glob("*.py")}
    assert shipped == expected
    folders = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert folders == {"chaosd", "chaos", "chaos_lab", "chaos_planner", "chaos_protocols"}


def test_the_wheel_says_that_it_is_typed(installed: Path) -> None:
    assert all(
        (installed / package / "py.typed").is_file()
        for package in ("chaosd", "chaos", "chaos_lab", "chaos_planner", "chaos_protocols")
    )


def test_the_metadata_name_version_licence_and_pythons(wheel: Path, metadata: email.message.Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert wheel.name == f"chaos_train-{project['version']}-py3-none-any.whl"
    assert (metadata["Name"], metadata["Version"]) == ("chaos-train", project["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == "<3.14,>=3.11"


def test_the_licence_is_shipped(installed: Path) -> None:
    (path,) = installed.glob("*.dist-info/licenses/LICENSE")
    assert path.read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("library", EXTRAS)
def test_what_no_daemon_needs_is_required_only_by_extras(metadata: email.message.Message, library: str) -> None:
    lines = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith(library)]
    assert lines
    assert all("extra ==" in line for line in lines)


def test_the_solver_is_the_extra_that_the_planners_name(metadata: email.message.Message) -> None:
    lines = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("scipy")]
    assert any(re.search(r"extra == .planner.", line) for line in lines)


def test_both_scripts_are_the_same_commands(installed: Path) -> None:
    (path,) = installed.glob("*.dist-info/entry_points.txt")
    lines = path.read_text().split()
    assert lines.count("chaosd.cli:main") == 2
    assert {"chaosd", "chaos-train"} <= set(lines)


def test_the_lab_is_a_plug_in_of_the_command_line(installed: Path) -> None:
    (path,) = installed.glob("*.dist-info/entry_points.txt")
    assert "[chaosd.commands]\nlab = chaos_lab.cli:register" in path.read_text()
    assert "run" in run(installed, "-m", "chaosd", "lab", "--help").stdout


def test_what_is_no_module_is_shipped_too(installed: Path) -> None:
    """The pages with their scripts and style, the files for those who watch a site, the example of the demo."""
    sources = {"chaosd": "chaosd/chaosd", "chaos_lab": "chaosd/chaos_lab", "chaos_lab/heart": "examples/heart"}
    for package, source in sources.items():
        files = {path.relative_to(ROOT / source) for path in (ROOT / source).rglob("*") if path.is_file()}
        wanted = {
            one for one in files if one.suffix in (".js", ".css", ".html", ".svg", ".yml", ".json", ".csv", ".toml")
        }
        assert wanted
        assert {one for one in wanted if not (installed / package / one).is_file()} == set()


def test_the_demo_needs_nothing_but_the_wheel(installed: Path) -> None:
    asked = "from chaos_lab.cli import example_folder; print(example_folder())"
    folder = Path(run(installed, "-c", asked).stdout.strip())
    assert folder.is_relative_to(installed)
    scenario = "from chaos_lab.scenario import load_scenario; import sys; print(load_scenario(sys.argv[1]).name)"
    code = f"from pathlib import Path; {scenario.replace('sys.argv[1]', 'Path(sys.argv[1])')}"
    assert run(installed, "-c", code, str(folder / "demo.toml")).stdout.strip() == "demo"
    assert "choose one of churn, demo, steady" in run(installed, "-m", "chaosd", "demo", "--scenario", "x").stderr


def test_every_module_of_the_daemon_is_imported_without_extras_from_the_wheel_alone(installed: Path) -> None:
    result = run(installed, "-c", WITHOUT_EXTRAS)
    assert result.returncode == 0, result.stderr
    place, count = result.stdout.split()
    assert Path(place).is_relative_to(installed)
    assert int(count) > 40


def test_the_commands_start_without_the_heavy_libraries(installed: Path) -> None:
    result = run(installed, "-c", LIGHT_START)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_python_minus_m_chaosd_is_the_command(installed: Path, record_property: Callable[[str, object], None]) -> None:
    """The start time is reported, not judged: it belongs to the machine. Aim: 0.2 s."""
    times_s = []
    for _ in range(STARTS):
        started_s = time.perf_counter()
        result = run(installed, "-m", "chaosd", "--help")
        times_s.append(time.perf_counter() - started_s)
        assert result.returncode == 0, result.stderr
        assert "Institutions train one model together" in result.stdout
    record_property("cli_start_s", statistics.median(times_s))
    print(f"chaosd --help: median of {STARTS} starts {statistics.median(times_s):.3f} s")
