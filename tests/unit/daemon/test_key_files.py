"""The key file and the next one: at any moment of a crash the site has a key that counts (spec 20.1)."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import msgspec
import pytest

from chaos_protocols.wire.keys import CHANGES_MAX, KeyChain, with_change
from chaosd import key_files
from chaosd.config.model import SiteConfig
from chaosd.daemon import run_daemon
from chaosd.identity import (
    KEY_FILE,
    KEY_FILE_BYTES_MAX,
    Checks,
    Identity,
    IdentityError,
    chain_of_certificate,
    site_of_certificate,
)
from chaosd.key_files import NEXT_KEY_FILE, drop_next, make_next, next_key, note_agreed, take_agreed
from chaosd.storage import durable
from chaosd.storage.journal.journal import Journal, JournalError
from chaosd.transport.tls import server_context

RUN = "ab" * 16


def agreed(folder: Path) -> KeyChain:
    """The run has agreed on the next key that is there."""
    present, following = Identity.load(folder), next_key(folder)
    assert following is not None
    chain = with_change(present.chain, RUN, present, following)
    assert note_agreed(folder, chain)
    return chain


def test_the_next_key_is_taken_when_the_run_has_agreed_on_it(tmp_path: Path) -> None:
    first = Identity.create(tmp_path)
    following = make_next(tmp_path)
    assert make_next(tmp_path).public_key == following.public_key, "made once"
    assert (tmp_path / NEXT_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert not take_agreed(tmp_path), "nobody has agreed on it yet"
    chain = agreed(tmp_path)
    assert Identity.load(tmp_path).public_key == first.public_key, "it is used from the next start on"
    assert take_agreed(tmp_path) and not take_agreed(tmp_path)
    taken = Identity.load(tmp_path)
    assert (taken.site, taken.public_key, taken.chain) == (first.site, following.public_key, chain)
    assert sorted(path.name for path in tmp_path.iterdir()) == [KEY_FILE]
    server_context(taken)  # the file serves TLS as it is


def test_it_changes_as_often_as_a_chain_allows_and_stays_one_file(tmp_path: Path) -> None:
    first = Identity.create(tmp_path)
    for _ in range(CHANGES_MAX):
        make_next(tmp_path)
        agreed(tmp_path)
        assert take_agreed(tmp_path)
    last = Identity.load(tmp_path)
    assert last.site == first.site and len(last.chain.changes) == CHANGES_MAX
    assert (tmp_path / KEY_FILE).stat().st_size < KEY_FILE_BYTES_MAX
    assert site_of_certificate(last.certificate_der) == first.site
    assert chain_of_certificate(last.certificate_der) == last.chain
    assert chain_of_certificate(first.certificate_der) == KeyChain(first=first.public_key)


@pytest.mark.parametrize("step", ["os.replace", "sync_folder"])
@pytest.mark.parametrize("when", ["note", "take"])
def test_a_crash_leaves_a_key_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    first = Identity.create(tmp_path)
    following = make_next(tmp_path)
    if when == "take":
        agreed(tmp_path)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for place in [os] if step == "os.replace" else [key_files, durable]:
            patch.setattr(place, step.removeprefix("os."), dies)
        with pytest.raises(KeyboardInterrupt):
            agreed(tmp_path) if when == "note" else take_agreed(tmp_path)
    found = Identity.load(tmp_path)
    assert found.site == first.site and found.public_key in (first.public_key, following.public_key)
    if found.public_key == first.public_key:
        agreed(tmp_path)  # the run says so again
        assert take_agreed(tmp_path)
    assert Identity.load(tmp_path).public_key == following.public_key


def test_another_key_than_the_one_here_is_not_noted(tmp_path: Path) -> None:
    first, other = Identity.create(tmp_path), Identity.create(tmp_path / "other")
    make_next(tmp_path)
    assert not note_agreed(tmp_path, with_change(first.chain, RUN, first, other))
    assert not take_agreed(tmp_path)
    drop_next(tmp_path)
    assert next_key(tmp_path) is None
    assert not note_agreed(tmp_path, with_change(first.chain, RUN, first, other)), "there is none"


def test_a_key_that_was_taken_back_is_taken_if_the_run_has_agreed_on_it_all_the_same(tmp_path: Path) -> None:
    """It was approved in that moment, or whoever schedules has kept the offer: the run takes no other one before it."""
    present, following = Identity.create(tmp_path), make_next(tmp_path)
    chain = with_change(present.chain, RUN, present, following)
    drop_next(tmp_path)
    assert next_key(tmp_path) is None and not take_agreed(tmp_path)
    another = make_next(tmp_path)
    assert another.public_key != following.public_key
    assert note_agreed(tmp_path, chain) and take_agreed(tmp_path)
    assert Identity.load(tmp_path).public_key == following.public_key
    assert sorted(path.name for path in tmp_path.iterdir()) == [KEY_FILE]


def test_a_next_key_of_another_site_is_not_taken(tmp_path: Path) -> None:
    Identity.create(tmp_path / "one")
    Identity.create(tmp_path / "other")
    make_next(tmp_path / "other")
    agreed(tmp_path / "other")
    (tmp_path / "other" / NEXT_KEY_FILE).rename(tmp_path / "one" / NEXT_KEY_FILE)
    with pytest.raises(IdentityError, match="does not follow"):
        take_agreed(tmp_path / "one")


def test_a_chain_that_is_not_signed_is_refused(tmp_path: Path) -> None:
    first = Identity.create(tmp_path)
    thief = Identity.create(tmp_path / "thief")
    right = with_change(first.chain, RUN, first, thief)
    false = msgspec.structs.replace(right, changes=(msgspec.structs.replace(right.changes[0], by_former=bytes(64)),))
    (tmp_path / "thief" / KEY_FILE).write_bytes(thief.text_with(false))
    with pytest.raises(IdentityError, match="is wrong"):
        Identity.load(tmp_path / "thief")
    (tmp_path / "thief" / KEY_FILE).write_bytes(first.text_with(right))  # of another key than the one in the file
    with pytest.raises(IdentityError, match="is wrong"):
        Identity.load(tmp_path / "thief")
    for rest in (b"", b"AAAA\n", bytes(100)):
        text = first.text_with(right)
        begins = text.index(b"-----BEGIN CHAOS")
        (tmp_path / "thief" / KEY_FILE).write_bytes(text[: begins + 32] + rest)
        with pytest.raises(IdentityError, match="not a readable private key"):
            Identity.load(tmp_path / "thief")


def test_a_certificate_that_lies_about_its_chain_is_nobodys(tmp_path: Path) -> None:
    first, thief = Identity.create(tmp_path), Identity.create(tmp_path / "thief")
    right = with_change(first.chain, RUN, first, thief)
    for change in (
        msgspec.structs.replace(right.changes[0], by_former=bytes(64)),
        msgspec.structs.replace(right.changes[0], by_new=bytes(64)),
    ):
        false = msgspec.structs.replace(right, changes=(change,))
        lying = Identity(thief._key, tmp_path / "thief" / KEY_FILE, false)
        assert lying.site == first.site and site_of_certificate(lying.certificate_der) is None
    foreign = Identity(first._key, tmp_path / KEY_FILE, right)
    assert chain_of_certificate(foreign.certificate_der) is None, "its chain ends with another key"
    assert right.is_sound(Checks()) and isinstance(ssl.DER_cert_to_PEM_cert(first.certificate_der), str)


def test_a_second_daemon_in_the_directory_of_one_that_runs_leaves_its_keys_alone(tmp_path: Path) -> None:
    identity = Identity.create(tmp_path)
    make_next(tmp_path)
    agreed(tmp_path)
    with (
        Journal.open(tmp_path, incarnation_floor=1, site=identity.site),
        pytest.raises(JournalError, match="another chaosd"),
    ):
        run_daemon(SiteConfig(name="one", data_dir=tmp_path, listen="127.0.0.1:7400"))
    assert Identity.load(tmp_path).public_key == identity.public_key and (tmp_path / NEXT_KEY_FILE).exists()
