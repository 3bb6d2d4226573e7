"""Builds the wheel of the former release, beside which the present one is tested (integration/test_two_versions.py).

    python -m tests.packaging.make_former [VERSION]

takes the packages as they stand, gives them VERSION (default: the one in `VERSION` below), and leaves their wheel in
tests/packaging/former, in place of the one before, without the documentation and the data of the demo. To be run once a
release, from the tree that is released; what comes after it must then get on with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "former"
VERSION = "0.2.0"
WHEEL_BYTES_MAX = 2_000_000
"""It lies in the repository."""
BUILD_TIMEOUT_S = 120
PARTS = ("chaosd", "sdk", "protocols", "pyproject.toml", "README.md", "LICENSE")


def build(version: str, folder: Path) -> Path:
    """The wheel of this tree under that version. Raises ValueError when it is too long for the repository."""
    with tempfile.TemporaryDirectory(prefix="chaos-former-") as scratch:
        tree = Path(scratch)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, tree / part)
        project = tree / "pyproject.toml"
        project.write_text(as_former(project.read_text(), version))
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tree / "dist")]
        subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=BUILD_TIMEOUT_S)
        (wheel,) = (tree / "dist").glob("*.whl")
        if wheel.stat().st_size > WHEEL_BYTES_MAX:
            raise ValueError(f"the wheel has {wheel.stat().st_size} bytes; at most {WHEEL_BYTES_MAX} are wanted here")
        folder.mkdir(exist_ok=True)
        for before in folder.glob("*.whl"):
            before.unlink()
        return Path(shutil.copy(wheel, folder / wheel.name))


def as_former(project: str, version: str) -> str:
    """pyproject.toml with that version, and with nothing that comes from other folders than the packages'."""
    text, count = re.subn(r'^version = "[^"]*"$', f'version = "{version}"', project, count=1, flags=re.M)
    if count != 1:
        raise ValueError("pyproject.toml has no version")
    return re.sub(r"^\[tool\.hatch\.build\.targets\.wheel\.force-include\]\n(?:[^\[\n].*\n)*", "", text, flags=re.M)


if __name__ == "__main__":
    made = build(sys.argv[1] if len(sys.argv) > 1 else VERSION, FOLDER)
    print(f"{made} ({made.stat().st_size:,} bytes)")
