"""A release: source distribution and wheel, tried in empty environments, with bill of materials and licences.

python -m tests.packaging.release                        # what `make release` runs
python -m tests.packaging.release --without-torch        # leaves the environment with torch out
python -m tests.packaging.release --python ~/python3.13/bin/python    # this one too; any number of them

Everything lands in dist/. An environment is a fresh virtual environment into which pip puts the wheel and its needs,
from the package index that pip is set to: one for each interpreter of the releases that are promised which is named, or
found as python3.11 and so on, and one with torch. In each the program says its version, shows a page, makes a site, and
trains some rounds with a daemon of its own. Says which releases of Python were not there. Ends with 1, and says at
which step, when anything fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
STEP_TIMEOUT_S = 1800
"""torch is large."""
PROMISED = ("3.11", "3.12", "3.13")

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
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--without-torch", action="store_true")
    options.add_argument("--python", action="append", default=[], metavar="PATH")
    chosen = options.parse_args(words)
    try:
        wheel, source = build()
        check_contents(wheel, source)
        pythons = interpreters(chosen.python)
        trials = [(python, f"Python {release}", "", NUMPY_SCRIPT) for release, python in pythons.items()]
        if not chosen.without_torch:
            trials.append((sys.executable, "with torch", "[torch]", TORCH_SCRIPT))
        with tempfile.TemporaryDirectory(prefix="chaos-release-") as name:
            for number, (python, what, extras, script) in enumerate(trials):
                print(f"trying the wheel in an empty environment, {what}", flush=True)
                inside = environment(python, Path(name) / str(number), f"{wheel}{extras}")
                try_out(inside, Path(name) / f"site{number}", script)
                if not number:
                    describe(inside)
    except subprocess.CalledProcessError as error:
        print(f"failed: {error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    for release in PROMISED:
        if release not in pythons:
            print(f"not tried: Python {release}, which was not found (--python PATH names it)", file=sys.stderr)
    for path in sorted(DIST.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    return 0


def interpreters(named: Sequence[str]) -> dict[str, str]:
    """By release: the one that runs this, those that are named, and the promised ones that are on the path. One that
    does not start, or is of another release, is passed over; where it was named, ValueError is raised."""
    found: dict[str, str] = {}
    for python in (sys.executable, *named, *(f"python{release}" for release in PROMISED)):
        ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            release = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            release = ""
        if release in PROMISED:
            found.setdefault(release, python)
        elif python in named:
            raise ValueError(f"--python {python}: is no interpreter of {', '.join(PROMISED)}")
    return found


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


def environment(base: str, folder: Path, requirement: str) -> Path:
    """The interpreter of a fresh environment of `base` with the wheel in it, and nothing else."""
    run([base, "-m", "venv", str(folder)])
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
