"""The project's own text files, for the tests of house rules: what a checkout holds, without caches, environments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("chaosd/chaosd", "chaosd/chaos_planner", "chaosd/chaos_lab", "sdk/chaos", "protocols/chaos_protocols")
CODE_FOLDERS = ("chaosd", "sdk", "protocols", "tests", "benchmarks", "examples", "docker")
BYTES_MAX = 2 << 20
"""Longer files are data."""


def text_files() -> list[Path]:
    """Every text file that .gitignore does not name."""
    ignored = [line.strip() for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()]
    return sorted(path for path in _walk(ROOT, ignored) if path.stat().st_size <= BYTES_MAX and _is_text(path))


def python_files(folders: tuple[str, ...] = CODE_FOLDERS) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _walk(folder: Path, ignored: list[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        place = str(path.relative_to(ROOT))
        if path.name == ".git" or any(_matches(path, place, pattern) for pattern in ignored):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, ignored)
        elif path.is_file():
            yield path


def _matches(path: Path, place: str, pattern: str) -> bool:
    """The few forms of patterns that this project's .gitignore uses: a name, a name with *, a path."""
    bare = pattern.rstrip("/").lstrip("/")
    return place == bare if "/" in bare else path.match(bare)


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(4096)
