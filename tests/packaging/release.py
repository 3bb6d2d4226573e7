"""A release: source distribution and wheel, tried in empty environments, with bill of materials and licences.

python -m tests.packaging.release                # what `make release` runs
python -m tests.packaging.release --without-torch    # leaves the environment with torch out

Everything lands in dist/. An environment is a fresh virtual environment into which pip puts the wheel and its needs,
from the package index that pip is set to. In each the program says its version, shows a page, makes a site, and trains
some rounds with a daemon of its own. Ends with 1, and says at which step, when anything fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
STEP_TIMEOUT_S = 1800
"""torch is large."""

NUMPY_SCRIPT = """
import numpy as np
from chaos import Coordinator
weights = {"w": np.zeros(3)}
def apply(averaged, round):
    weights["w"] -= 0.1 * averaged["w"]
with Coordinator() as coordinator:
    coordinator.register(arrays=weights, apply=apply)
    for _ in range(5):
        coordinator.gradients["w"][...] = weights["w"] - 1.0
        coordinator.step()
assert coordinator.round == 5 and weights["w"][0] > 0.4, (coordinator.round, weights)
"""
TORCH_SCRIPT = """
import torch
from chaos import Coordinator
model = torch.nn.Linear(2, 1)
with Coordinator() as coordinator:
    coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(5):
        model(torch.ones(4, 2)).square().mean().backward()
        coordinator.step()
assert coordinator.round == 5
"""


def main(words: Sequence[str]) -> int:
    """The exit code."""
    try:
        wheel, source = build()
        check_contents(wheel, source)
        with tempfile.TemporaryDirectory(prefix="chaos-release-") as name:
            environments = [("plain", "", NUMPY_SCRIPT)]
            if "--without-torch" not in words:
                environments.append(("with torch", "[torch]", TORCH_SCRIPT))
            for number, (what, extras, script) in enumerate(environments):
                print(f"trying the wheel in an empty environment, {what}", flush=True)
                python = environment(Path(name) / str(number), f"{wheel}{extras}")
                try_out(python, Path(name) / f"site{number}", script)
                if not number:
                    describe(python)
    except subprocess.CalledProcessError as error:
        print(f"failed: {error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
        return 1
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    return 0


def build() -> tuple[Path, Path]:
    """(wheel, source distribution), made anew in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    run([sys.executable, "-m", "hatchling", "build", "--directory", str(DIST)], folder=ROOT)
    return next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))


def check_contents(wheel: Path, source: Path) -> None:
    """What a user needs is in; what belongs to this machine is not. Raises ValueError."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    wanted = (
        "chaosd/pages/quick-start.md",
        "chaosd/page/assets/index.html",
        "chaos_lab/heart/demo.toml",
        "chaos/py.typed",
    )
    missing = [name for name in wanted if name not in names]
    with tarfile.open(source) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    missing += [
        name for name in ("Makefile", "mkdocs.yml", "README.md", "LICENSE", "tests/conftest.py") if name not in inside
    ]
    foreign = [name for name in (*names, *inside) if "__pycache__" in name or name.startswith(("build/", ".venv"))]
    if missing or foreign:
        raise ValueError(f"missing: {missing}; does not belong: {foreign[:5]}")


def environment(folder: Path, requirement: str) -> Path:
    """The interpreter of a fresh environment with the wheel in it, and nothing of this one."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement])
    return python


def try_out(python: Path, folder: Path, script: str) -> None:
    """As a user would, outside of the repository."""
    folder.mkdir()
    (folder / "train.py").write_text(script, encoding="utf-8")
    chaosd = str(python.parent / "chaosd")
    told = run([chaosd, "version"], folder=folder)
    print(told.strip())
    assert "Quick start" in run([chaosd, "help", "quick-start"], folder=folder)
    run([chaosd, "--help"], folder=folder)
    run([chaosd, "lab", "run", "--help"], folder=folder)
    run([chaosd, "up", "site", "--alone", "--", str(python), "train.py"], folder=folder)


def describe(python: Path) -> None:
    """dist/sbom.cdx.json (CycloneDX) and dist/licences.json of what the wheel brings with it. Raises ValueError where a
    licence is not known."""
    tools = [sys.executable, "-m"]
    run([*tools, "cyclonedx_py", "environment", str(python), "--output-file", str(DIST / "sbom.cdx.json")])
    told = run([*tools, "piplicenses", "--python", str(python), "--format", "json", "--with-urls"])
    rows = [row for row in json.loads(told) if row["Name"] not in ("pip", "setuptools")]
    unknown = [row["Name"] for row in rows if row["License"] in ("", "UNKNOWN")]
    if unknown:
        raise ValueError(f"no licence is known of {', '.join(unknown)}")
    (DIST / "licences.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def run(command: Sequence[str], *, folder: Path | None = None) -> str:
    """What it printed. Raises CalledProcessError."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if folder is not None:
        variables["XDG_CONFIG_HOME"] = str(folder / "config")
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=True, timeout=STEP_TIMEOUT_S
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
