"""A site's key: made once, private, named by its own fingerprint."""

from __future__ import annotations

import os
import ssl
import stat
import tempfile
from pathlib import Path

import blake3
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chaosd.identity import KEY_FILE, Identity, IdentityError, site_of, site_of_certificate, verify


def test_a_key_is_loaded_as_it_was_made(tmp_path: Path) -> None:
    made = Identity.create(tmp_path / "new" / "site")
    loaded = Identity.load(tmp_path / "new" / "site")
    assert (loaded.site, loaded.public_key, loaded.certificate_der) == (
        made.site,
        made.public_key,
        made.certificate_der,
    )
    assert stat.S_IMODE((tmp_path / "new" / "site" / KEY_FILE).stat().st_mode) == 0o600


def test_the_site_id_is_the_fingerprint_of_the_public_key(tmp_path: Path) -> None:
    made = Identity.create(tmp_path)
    assert made.site == blake3.blake3(made.public_key).hexdigest()[:32] == site_of_certificate(made.certificate_der)
    with pytest.raises(ValueError, match="32 bytes"):
        site_of(made.public_key[:31])


def test_signatures_hold_for_their_data_and_key_alone(tmp_path: Path) -> None:
    one, other = Identity.create(tmp_path / "one"), Identity.create(tmp_path / "other")
    signature = one.sign(b"data")
    assert verify(one.public_key, signature, b"data")
    assert not verify(one.public_key, signature, b"date")
    assert not verify(other.public_key, signature, b"data")
    assert not verify(one.public_key, signature[:-1], b"data") and not verify(b"short", signature, b"data")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    made = Identity.create(tmp_path)
    with pytest.raises(IdentityError, match="already has a key"):
        Identity.create(tmp_path)
    assert Identity.load(tmp_path).site == made.site


def test_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="chaosd init"):
        Identity.load(tmp_path)


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o640)
    with pytest.raises(IdentityError, match=r"mode 640.*chmod 600"):
        Identity.load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    Identity.create(tmp_path)
    (tmp_path / KEY_FILE).write_bytes(content)
    with pytest.raises(IdentityError, match="not a readable private key"):
        Identity.load(tmp_path)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    Identity.create(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / KEY_FILE).write_bytes(pem)
    with pytest.raises(IdentityError, match="Ed25519"):
        Identity.load(tmp_path)


def test_a_certificate_needs_no_folder_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be full, or read-only as in a container: the daemon did not start then."""
    made = Identity.create(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    for memory in (True, False):
        if not memory:
            monkeypatch.delattr(os, "memfd_create", raising=False)
        made.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    assert [one.name for one in tmp_path.iterdir()] == [KEY_FILE]


def test_a_certificate_that_is_none_belongs_to_no_site() -> None:
    assert site_of_certificate(b"") is None
    assert site_of_certificate(bytes(500)) is None
