"""The wheel that a release leaves for the next one to be tested beside."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.packaging.make_former import build


def test_the_wheel_has_the_packages_under_the_version_that_was_asked_for_and_takes_the_former_ones_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "chaos_train-0.0.1-py3-none-any.whl").touch()
    wheel = build("0.9.1", tmp_path)
    assert list(tmp_path.iterdir()) == [wheel] and wheel.name == "chaos_train-0.9.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for wanted in (
        "chaosd/daemon.py",
        "chaos/coordinator.py",
        "chaos_protocols/names.py",
        "chaosd/page/assets/index.html",
    ):
        assert wanted in names
    assert not [name for name in names if name.endswith((".csv", ".pyc"))]
