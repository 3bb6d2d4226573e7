"""What is averaged, on disk: read as it was written; what this release cannot encode is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.storage.vector_file import read_vector, write_vector


@pytest.mark.parametrize("encoding", ["fp32", "int8"])
def test_a_vector_is_read_as_it_was_written(tmp_path: Path, encoding: str) -> None:
    spec = msgspec.structs.replace(contribution_spec(3, 5), encoding=encoding)
    write_vector(tmp_path / "vector.msgpack", spec)
    assert read_vector(tmp_path / "vector.msgpack") == spec


def test_a_file_of_before_encodings_is_exact(tmp_path: Path) -> None:
    plain = msgspec.to_builtins(contribution_spec(3, 5))
    del plain["encoding"]
    (tmp_path / "vector.msgpack").write_bytes(msgspec.msgpack.encode(plain))
    assert read_vector(tmp_path / "vector.msgpack") == contribution_spec(3, 5)


def test_an_encoding_of_a_newer_release_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_vector(tmp_path / "vector.msgpack", msgspec.structs.replace(contribution_spec(3, 5), encoding="int2"))
    assert read_vector(tmp_path / "vector.msgpack") is None
    assert "there is no encoding 'int2'" in caplog.text


@pytest.mark.parametrize("size_bytes", [1 << 43, 45])
def test_a_size_that_its_numbers_do_not_have_is_no_vector(tmp_path: Path, size_bytes: int) -> None:
    """A damaged file: memory of that size is taken at the start of the daemon."""
    spec = msgspec.structs.replace(contribution_spec(3, 5), size_bytes=size_bytes)
    write_vector(tmp_path / "vector.msgpack", spec)
    assert read_vector(tmp_path / "vector.msgpack") is None
