"""Small files that a site is made of: whole, or not there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from chaosd.config.making import make_site
from chaosd.identity import KEY_FILE, Identity, IdentityError
from chaosd.os_errors import explain
from chaosd.storage import durable
from chaosd.storage.durable import write_durably, write_new


def test_a_disk_that_is_full_leaves_no_half_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    room = durable.os.fsync
    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(IdentityError, match=r"site.key: No space left on device: the disk is full; free space there"):
        make_site(tmp_path, {})
    assert not (tmp_path / "data" / KEY_FILE).exists()
    monkeypatch.setattr(durable.os, "fsync", room)
    key = Identity.create(tmp_path / "data")
    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        make_site(tmp_path, {})
    assert caught.value.filename == str(tmp_path / "chaosd.toml") and not (tmp_path / "chaosd.toml").exists()
    monkeypatch.setattr(durable.os, "fsync", room)
    path, site, _ = make_site(tmp_path, {})
    assert path.exists() and site == key.site


@pytest.mark.parametrize(
    ("write", "step"),
    [(write_durably, "open"), (write_durably, "fsync"), (write_durably, "replace"), (write_new, "fsync")],
)
def test_what_the_system_refuses_is_told_of_the_file_that_was_to_be_written_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes, int], None], step: str
) -> None:
    path = tmp_path / "changes.toml"

    def refused(*words: object) -> None:
        names = [str(one) for one in words if isinstance(one, Path)]
        raise OSError(errno.EIO, "Input/output error", *names[:1], None, *names[1:2])

    monkeypatch.setattr(durable.os, step, refused)
    with pytest.raises(OSError, match="Input/output error") as caught:
        write(path, b"x", 0o600)
    assert str(caught.value) == f"[Errno {errno.EIO}] Input/output error: '{path}'"
    assert explain(caught.value) == f"{path}: Input/output error"
