"""Small files that a site is made of: whole, or not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from chaosd.config.making import make_site
from chaosd.identity import KEY_FILE, Identity, IdentityError
from chaosd.storage import durable


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
