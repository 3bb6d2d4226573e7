"""What operators see of their site's key and do to it, by command (spec 20)."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.daemon.api.local_api import FakeControl, served
from tests.unit.protocols.one_site import A, B, Bench, roster_of
from typer.testing import CliRunner

from chaos_protocols.agreement.key_ring import KeyRing
from chaos_protocols.agreement.roster import Roster
from chaos_protocols.events import Event
from chaos_protocols.fingerprint import words_of
from chaos_protocols.names import SiteId
from chaos_protocols.wire.keys import KeyNews, SiteKeys
from chaos_protocols.wire.versions import KEYS_SINCE, SPOKEN, Versions
from chaosd.api.status import KeyStatus
from chaosd.cli.app import app
from chaosd.identity import Identity
from chaosd.key_changes import KeyChanges
from chaosd.key_files import NEXT_KEY_FILE, take_agreed
from chaosd.storage import durable

RUN = "ab" * 16


class Driver:
    """A machine, and the door for its events."""

    def __init__(self, identity: Identity, roster: Roster) -> None:
        self.bench = Bench(identity.site, roster, voters=(A,), ring=KeyRing(identity, identity.chain))
        self.machine = self.bench.machine

    def feed(self, event: Event) -> None:
        self.bench.handle(event)

    @property
    def news(self) -> KeyNews | None:
        return self.machine.key_news()


def roster_with(*members: SiteId, versions: Versions = SPOKEN, **changes: Any) -> Roster:
    """Whatever a new identity's id begins with: its name is no other site's."""
    roster = roster_of(*members, run_id=RUN, **changes)
    sites = tuple(
        msgspec.structs.replace(one, versions=versions, name=one.name if one.site in (A, B) else f"site {one.site}")
        for one in roster.sites
    )
    return msgspec.structs.replace(roster, sites=sites)


class Place:
    """A site's folder, served by a daemon's local API."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.identity = folder, Identity.create(folder)
        self.use(roster_with(A, B, self.identity.site))

    def use(self, roster: Roster) -> KeyChanges:
        """The daemon is started with this roster in its journal."""
        self.driver = Driver(Identity.load(self.folder), roster)
        self.keys = KeyChanges(self.folder, Identity.load(self.folder), self.driver)
        self.keys.started()
        return self.keys

    def run(self, *words: str) -> tuple[int, str]:
        """A command of the shell."""
        with served(self.folder / "api.sock", FakeControl(), further=self.keys.local_routes()):
            done = CliRunner().invoke(app, ["key", *words, "--data-dir", str(self.folder)], catch_exceptions=False)
        return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="chaos") as name:  # a socket's path is short
        yield Place(Path(name))


def test_a_key_that_was_never_changed_is_shown(place: Place) -> None:
    code, told = place.run("--json")
    assert code == 0 and msgspec.json.decode(told, type=KeyStatus) == place.keys.tell()
    code, told = place.run()
    assert code == 0 and f"site {place.identity.site} key {place.identity.site}, never changed" in told


def test_the_next_key_is_offered_until_it_is_cancelled(place: Place) -> None:
    code, told = place.run("rotate")
    key = SiteId(place.keys.tell().next_key)
    assert code == 0 and key in told and words_of(key) in told and "key approve" in told
    assert place.driver.news is not None and place.driver.news.offers is not None
    code, told = place.run()
    assert code == 0 and f"next {key}" in told and "waits for the operator of another member" in told
    again = place.use(roster_with(A, B, place.identity.site))
    assert again.tell().next_key == key and place.driver.news is not None, "after a restart, too"
    assert place.run("cancel") == (0, "key cancel: done after 0.000 s: site.key.new is gone; the key of this site "
                                      "stays as it is")  # fmt: skip
    assert place.driver.news is None and not (place.folder / NEXT_KEY_FILE).exists()
    assert "there is no next key" in place.run("cancel")[1]


def test_what_is_agreed_is_noted_and_taken_with_the_next_start(place: Place) -> None:
    place.run("rotate")
    offer = place.driver.news
    assert offer is not None and offer.offers is not None
    chain = offer.offers
    both = SiteKeys(site=place.identity.site, chain=chain, settled=0)
    place.use(roster_with(A, B, place.identity.site, keys=(both,))).agreed(chain)
    assert place.driver.news is None, "it is not offered again"
    assert "the next start of this daemon takes it" in place.run()[1]
    code, told = place.run("cancel")
    assert code == 1 and "for good" in told
    code, told = place.run("rotate")
    assert code == 1 and "does not use yet" in told
    assert take_agreed(place.folder)
    place.use(roster_with(A, B, place.identity.site, keys=(both,)))
    assert place.driver.news is not None and place.driver.news.uses, "it says that it uses it"
    assert "changed once the former key still counts" in place.run()[1]
    alone = SiteKeys(site=place.identity.site, chain=chain, settled=1)
    place.use(roster_with(A, B, place.identity.site, keys=(alone,)))
    assert place.driver.news is None and "still counts" not in place.run()[1]


@pytest.mark.parametrize(
    ("roster", "why"),
    [
        (lambda own: roster_with(A, B), "no member of the run"),
        (lambda own: roster_with(own), "only member"),
        (lambda own: msgspec.structs.replace(roster_with(A, own), run_id=""), "has no id"),
        (lambda own: roster_with(A, own, versions=Versions(oldest=2, newest=KEYS_SINCE - 1)), "site a"),
    ],
)
def test_a_key_that_cannot_be_changed_says_why(place: Place, roster: Callable[[SiteId], Roster], why: str) -> None:
    place.use(roster(place.identity.site))
    code, told = place.run("rotate")
    assert code == 1 and why in told
    assert not (place.folder / NEXT_KEY_FILE).exists()


def test_a_next_key_for_which_the_disk_has_no_room_is_told_with_its_file_and_the_remedy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", full)
    code, text = place.run("rotate")
    assert code == 1 and f"{place.folder / NEXT_KEY_FILE}: No space left on device: the disk is full; free" in text


def test_another_sites_next_key_is_approved_by_its_id_or_its_words(place: Place) -> None:
    key = SiteId(bytes(range(16)).hex())
    for said in ((key,), tuple(words_of(key).split()), (words_of(key),)):
        code, told = place.run("approve", "site a", *said)
        assert code == 0 and key in told
        assert place.driver.news is not None
        (approval,) = place.driver.news.approves
        assert (approval.site, approval.number, approval.key_id) == (A, 1, key)
        place.use(roster_with(A, B, place.identity.site))
    assert place.driver.news is None, "it is not kept over a restart"
    place.run("approve", A[:4], key)
    assert f"approved here: site a may change its key to {key}" in place.run()[1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("site a", "acorn", "actor"), "16 words"),
        (("site a", "0" * 31), "16 words"),
        (("site x", "0" * 32), "there are: site a (aaaaaaaa), site b (bbbbbbbb)"),
        (("", "0" * 32), "there are"),
    ],
)
def test_what_is_not_understood_is_not_approved(place: Place, words: tuple[str, ...], why: str) -> None:
    code, told = place.run("approve", *words)
    assert code == 1 and why in told and place.driver.news is None


def test_who_has_not_taken_the_last_key_gets_no_approval(place: Place) -> None:
    other = Identity.create(place.folder / "other")
    chain = place.identity.chain  # whoever's: it is agreed
    later = msgspec.structs.replace(chain, run_id=RUN, changes=())
    place.use(roster_with(A, B, place.identity.site, keys=(SiteKeys(site=A, chain=later, settled=1),)))
    code, told = place.run("approve", "site a", other.site)
    assert code == 1 and "does not use the key yet" in told
