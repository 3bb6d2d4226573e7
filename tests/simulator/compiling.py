"""`python -m tests.simulator.compiling FOLDER PATH ...`: compile modules with mypyc into FOLDER, a file a module.

Run by `compiled`, in the repository's root. Progress goes to the standard error, what mypyc and the C compiler say to
FOLDER/build.log. Ends with 1 where something does not compile.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import setuptools  # type: ignore[import-untyped]
from mypyc.build import mypycify
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

OPTIMIZE = "1"
"""-O3 takes more than twice as long, and what it makes is no faster here (docs/decisions/0014)."""


class BuildOnAllCores(build_ext):  # type: ignore[misc]
    """The C files of an extension are compiled side by side."""

    def build_extensions(self) -> None:
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            with ThreadPool(os.cpu_count() or 1) as pool:
                parts = pool.map(lambda source: one_by_one([source], **options), sources, chunksize=1)
            return [made for part in parts for made in part]

        self.compiler.compile = compile_all
        super().build_extensions()


def compile_into(folder: Path, paths: list[str], tell: Any) -> None:
    """Raises SystemExit where the types are wrong, setuptools' errors where the C compiler fails."""
    scratch = folder / "scratch"
    config = ["--config-file", "pyproject.toml", "--cache-dir", os.devnull]
    extensions = mypycify(
        [*config, *paths], opt_level=OPTIMIZE, debug_level="0", multi_file=True, target_dir=str(scratch / "c")
    )
    size_mb = sum(path.stat().st_size for path in (scratch / "c").rglob("*.c")) / 1e6
    tell(f"... {len(paths)} modules became {size_mb:.0f} MB of C, which is compiled now")
    distribution = setuptools.Distribution(
        {"name": "simulator", "ext_modules": extensions, "packages": [], "py_modules": []}
    )
    command = BuildOnAllCores(distribution)
    command.build_lib, command.build_temp = str(folder), str(scratch / "objects")
    command.ensure_finalized()
    command.run()


def main() -> None:
    folder, paths = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    output = os.dup(2)
    log = os.open(folder / "build.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    compile_into(folder, paths, lambda line: os.write(output, f"{line}\n".encode()))


if __name__ == "__main__":
    main()
