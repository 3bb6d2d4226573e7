"""The journal's promises: durable on return, one holder, nothing lost or invented at any crash, full disk survived."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from tests.rigs.keys import RigKeys
from tests.unit.daemon.storage.journal_faults import FaultyFolder, PowerLost
from tests.unit.daemon.storage.journal_model import CONFIGURATION, Model, effect, entry, lawful

from chaos_protocols.agreement.raft.effects import HardState, Persist
from chaos_protocols.agreement.raft.messages import Snapshot
from chaos_protocols.effects import StartOver
from chaos_protocols.names import SiteId
from chaos_protocols.wire.plans import Reached
from chaos_protocols.wire.recovered import NUMBER_BYTES, Origin, make_statement
from chaosd.storage.journal.journal import (
    FILE,
    FILE_NEW,
    Journal,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalOfAnotherError,
)
from chaosd.storage.journal.records import FILE_HEADER, FILE_HEADER_BYTES, FILE_MAGIC, VERSION, frame, scan

SECOND_DAEMON = """
import sys
from chaosd.storage.journal.journal import Journal, JournalLockedError
try:
    Journal.open(sys.argv[1])
except JournalLockedError:
    sys.exit(9)
"""


def test_a_new_journal_is_empty_and_counts_its_openings(tmp_path: Path) -> None:
    for times in (1, 2, 3):
        with Journal.open(tmp_path / "site") as journal:
            assert journal.incarnation == times
            assert Model().equals(journal.recovered)
            assert journal.recovered.note == ""


def test_what_was_persisted_is_there_after_reopening(tmp_path: Path) -> None:
    rng = random.Random(1)
    model = Model()
    for _ in range(12):
        with Journal.open(tmp_path) as journal:
            assert model.equals(journal.recovered)
            for _ in range(rng.randint(0, 8)):
                change = lawful(rng, model)
                journal.persist(change)
                model = model.after(change)


def test_a_vote_is_never_forgotten(tmp_path: Path) -> None:
    """Raft (Ongaro 2014, section 3.8): term and vote are on stable storage before any answer."""
    with Journal.open(tmp_path) as journal:
        journal.persist(effect(hard_state=HardState(term=7, vote=SiteId("a" * 32))))
    with Journal.open(tmp_path) as journal:
        assert journal.recovered.hard_state == HardState(term=7, vote=SiteId("a" * 32))


def test_files_are_for_the_owner_only(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "site") as journal:
        journal.persist(effect(snapshot=Snapshot(index=3, term=1, configuration=CONFIGURATION, state=b"roster")))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "site").iterdir()}
    assert modes == {"journal": 0o600, "lock": 0o600}
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700


def test_a_second_daemon_on_the_same_directory_is_refused_by_name(tmp_path: Path) -> None:
    with Journal.open(tmp_path):
        with pytest.raises(JournalLockedError, match=f"process {os.getpid()}.*Stop the other one"):
            Journal.open(tmp_path)
        other = subprocess.run([sys.executable, "-c", SECOND_DAEMON, tmp_path], check=False)
        assert other.returncode == 9
    Journal.open(tmp_path).close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(JournalError, match="file: Not a directory"):
        Journal.open(tmp_path / "file")


def test_a_snapshot_shortens_the_file_and_keeps_what_it_does_not_cover() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    journal.persist(effect(entries=tuple(entry(index, 1, bytes(1000)) for index in range(1, 101))))
    before = journal.size_bytes
    journal.persist(effect(snapshot=Snapshot(index=98, term=1, configuration=CONFIGURATION, state=b"roster")))
    assert journal.size_bytes < before / 20
    assert journal.size_bytes == len(folder.names[FILE].current)
    assert FILE_NEW not in folder.names
    journal.close()
    found = Journal.open("data", folder=folder).recovered
    assert [old.index for old in found.entries] == [99, 100]
    assert found.snapshot is not None and found.snapshot.state == b"roster"


def test_the_same_snapshot_twice_keeps_the_entries_after_it() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    journal.persist(effect(entries=(entry(1, 1), entry(2, 1))))
    snapshot = Snapshot(index=1, term=1, configuration=CONFIGURATION, state=b"")
    for _ in range(2):
        journal.persist(effect(snapshot=snapshot))
    journal.close()
    assert [old.index for old in Journal.open("data", folder=folder).recovered.entries] == [2]


def test_many_entries_survive_a_rewrite_in_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaosd.storage.journal.state.REWRITE_FRAME_BYTES", 100)
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    log = tuple(entry(index, 1, bytes(30)) for index in range(1, 40))
    journal.persist(effect(hard_state=HardState(term=1, vote=None), entries=log))
    journal.persist(effect(snapshot=Snapshot(index=2, term=1, configuration=CONFIGURATION, state=b"s")))
    journal.persist(effect(entries=(entry(40, 1),)))
    journal.close()
    assert len(scan(bytes(folder.names[FILE].current)).bodies) == 1 + 10 + 1
    found = Journal.open("data", folder=folder).recovered
    assert found.entries == (*log[2:], entry(40, 1))
    assert found.hard_state == HardState(term=1, vote=None)


def test_an_effect_that_does_not_follow_is_refused_and_changes_nothing() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    journal.persist(effect(entries=(entry(1, 1),)))
    size = journal.size_bytes
    with pytest.raises(JournalError, match="entry 3 where entry 2 should follow"):
        journal.persist(effect(entries=(entry(3, 1),)))
    assert journal.size_bytes == size
    journal.persist(effect(entries=(entry(2, 1),)))
    snapshot = Snapshot(index=2, term=1, configuration=CONFIGURATION, state=b"")
    journal.persist(effect(snapshot=snapshot))
    with pytest.raises(JournalError, match="a snapshot of entry 1 after one of entry 2"):
        journal.persist(effect(snapshot=Snapshot(index=1, term=1, configuration=CONFIGURATION, state=b"")))


def test_an_effect_without_content_writes_nothing() -> None:
    journal = Journal.open("data", folder=FaultyFolder())
    size = journal.size_bytes
    journal.persist(effect())
    assert journal.size_bytes == size


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="it is closed"):
        journal.persist(effect(hard_state=HardState(term=1, vote=None)))


def test_the_left_over_of_an_interrupted_rewrite_is_removed(tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    (tmp_path / FILE_NEW).write_bytes(b"half a file")
    Journal.open(tmp_path).close()
    assert not (tmp_path / FILE_NEW).exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: b"", "it has 0 bytes, fewer than its header"),
        (lambda data: data[:40], "it has 40 bytes"),
        (lambda data: b"\0" * len(data), "does not begin like a journal"),
        (lambda data: data[:20] + b"X" + data[21:], "its header is damaged"),
        (lambda data: data[:FILE_HEADER_BYTES], "no whole record, not even its first"),
        (lambda data: data[:90] + bytes([data[90] ^ 1]) + data[91:], "is damaged, and frame 2 follows"),
    ],
)
def test_a_damaged_journal_stops_the_daemon_says_what_to_do_and_is_left_as_it_is(
    tmp_path: Path, change: object, text: str
) -> None:
    with Journal.open(tmp_path) as journal:
        journal.persist(effect(entries=(entry(1, 1), entry(2, 1))))
        journal.persist(effect(entries=(entry(3, 1),)))
    assert callable(change)
    damaged = change((tmp_path / FILE).read_bytes())
    (tmp_path / FILE).write_bytes(damaged)
    with pytest.raises(JournalDamagedError, match=text) as caught:
        Journal.open(tmp_path)
    assert str(tmp_path / FILE) in str(caught.value)
    for step in ("move this directory aside", "`chaosd init`", "`chaosd accept ID`"):  # without a key nothing starts
        assert step in str(caught.value)
    assert (tmp_path / FILE).read_bytes() == damaged


@pytest.mark.parametrize("what", ["format", "record"])
def test_a_journal_of_a_later_release_is_no_reason_to_give_the_sites_key_up(tmp_path: Path, what: str) -> None:
    """Who goes back to an older release by mistake has lost nothing, and must not be told to begin anew."""
    Journal.open(tmp_path).close()
    data = (tmp_path / FILE).read_bytes()
    head, salt = data[:FILE_HEADER_BYTES], scan(data).salt
    later = FILE_HEADER.pack(FILE_MAGIC, VERSION + 1, bytes(6), salt)
    head = later + blake3(later).digest(length=16) if what == "format" else head
    (tmp_path / FILE).write_bytes(head + frame(msgspec.msgpack.encode({"type": "of later"}), 1, salt))
    with pytest.raises(JournalDamagedError, match="A later release of chaosd has written it") as caught:
        Journal.open(tmp_path)
    assert "aside" not in str(caught.value) and "chaosd init" not in str(caught.value)


def test_votes_and_openings_do_not_add_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaosd.storage.journal.journal.FRAMES_MAX", 20)
    folder = FaultyFolder()
    sizes = []
    for opening in range(1, 61):
        journal = Journal.open("data", folder=folder)
        assert journal.incarnation == opening
        journal.persist(effect(hard_state=HardState(term=opening, vote=None)))
        sizes.append(journal.size_bytes)
        journal.close()
    assert max(sizes) == max(sizes[:15])
    assert Journal.open("data", folder=folder).recovered.hard_state.term == 60


def test_a_failed_start_lets_go_of_the_directory() -> None:
    folder = FaultyFolder()
    folder.bytes_left = 10
    with pytest.raises(JournalError, match="disk is full"):
        Journal.open("data", folder=folder)
    assert not folder.locked
    folder.bytes_left = None
    assert Journal.open("data", folder=folder).incarnation == 1


def test_missing_parents_of_the_directory_are_made(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "a" / "b" / "c") as journal:
        assert journal.incarnation == 1
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_a_note_of_how_far_the_run_has_come_survives_and_costs_a_hundred_bytes(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        assert journal.recovered.reached == Reached()
        before = journal.size_bytes
        journal.note_reached(Reached(lineage=3, round=70, active=True))
        cost = journal.size_bytes - before
        journal.note_reached(Reached(lineage=3, round=90, active=False))
        journal.persist(effect(hard_state=HardState(5, None)))
    assert cost < 150
    with Journal.open(tmp_path) as journal:
        assert journal.recovered.reached == Reached(lineage=3, round=90)
        assert journal.recovered.hard_state == HardState(5, None)


def test_notes_do_not_add_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaosd.storage.journal.journal.NOTES_MAX", 20)
    with Journal.open(tmp_path) as journal:
        journal.persist(effect(hard_state=HardState(5, None)))
        sizes = []
        for number in range(1, 101):
            journal.note_reached(Reached(lineage=3, round=number, active=True))
            sizes.append(journal.size_bytes)
    assert max(sizes) <= max(sizes[:25]) + 150
    with Journal.open(tmp_path) as journal:
        assert journal.recovered.reached.round == 100 and journal.recovered.hard_state.term == 5


def test_a_note_that_the_disk_does_not_take_leaves_the_one_before(tmp_path: Path) -> None:
    folder = FaultyFolder()
    journal = Journal.open(tmp_path, folder=folder)
    journal.note_reached(Reached(lineage=3, round=1, active=True))
    folder.sync_errors = 1
    with pytest.raises(JournalError):
        journal.note_reached(Reached(lineage=3, round=2))
    left = {name: bytes(one.current) for name, one in folder.names.items()}
    with Journal.open(tmp_path, folder=FaultyFolder(left)) as again:
        assert again.recovered.reached == Reached(lineage=3, round=1, active=True)


def test_a_journal_knows_whose_it_is_and_serves_no_other_site(tmp_path: Path) -> None:
    one, other = "1" * 32, "2" * 32
    voted = HardState(term=7, vote=SiteId(one))
    with Journal.open(tmp_path) as former:  # of a release that did not record it
        former.persist(Persist(hard_state=voted, truncate_from=None, entries=(), snapshot=None))
    for _ in range(2):
        with Journal.open(tmp_path, site=one) as journal:
            assert journal.recovered.hard_state == voted
        with pytest.raises(
            JournalOfAnotherError, match=f"is that of site {one}, and the key beside it is that of {other}"
        ):
            Journal.open(tmp_path, site=other)
    with Journal.open(tmp_path) as unnamed:
        assert unnamed.recovered.hard_state == voted, "a reader that names no site"


def another_run(*, joins: bool = False) -> StartOver:
    site = SiteId("a" * 32)
    statement = make_statement(None, "ab" * 16, site, (SiteId("b" * 32),), bytes(NUMBER_BYTES), RigKeys(site))
    snapshot = None if joins else Snapshot(index=30, term=9, configuration=CONFIGURATION, state=b"new")
    term = 0 if joins else 9
    origin = Origin(statement=statement, sites=(SiteId("c" * 32),))
    return StartOver(hard_state=HardState(term, None), snapshot=snapshot, reached=Reached(round=5), origin=origin)


@pytest.mark.parametrize("joins", [False, True])
def test_another_run_takes_the_place_of_the_one_before(tmp_path: Path, joins: bool) -> None:
    start = another_run(joins=joins)
    with Journal.open(tmp_path, site="a" * 32) as journal:
        journal.persist(effect(hard_state=HardState(8, None), entries=(entry(1, 8), entry(2, 8))))
        journal.start_over(start)
        with pytest.raises(JournalError, match="it holds another run now"):
            journal.persist(effect(hard_state=HardState(10, None)))
        before = journal.incarnation
    for _ in range(2):  # also after the file was read and written anew
        with Journal.open(tmp_path, site="a" * 32) as journal:
            found = journal.recovered
            assert (found.hard_state, found.snapshot, found.entries) == (start.hard_state, start.snapshot, ())
            assert (found.reached, found.origin) == (start.reached, start.origin)
            assert journal.incarnation > before
            snapshot = Snapshot(index=40, term=9, configuration=CONFIGURATION, state=b"later")
            start = StartOver(
                hard_state=start.hard_state, snapshot=snapshot, reached=start.reached, origin=start.origin
            )
            journal.persist(effect(snapshot=snapshot))


def test_a_crash_at_any_point_leaves_one_run_whole() -> None:
    """Power goes at every step of the writing in turn, and what was not synced is cut at any byte, or is gone."""
    rng, found = random.Random(7), set()
    steps = 1
    while True:
        folder = FaultyFolder()
        with Journal.open("/data", folder=folder) as journal:
            journal.persist(effect(hard_state=HardState(8, None), entries=(entry(1, 8),)))
            folder.stop_at_step = folder.steps + steps
            try:
                journal.start_over(another_run())
                over = True
            except PowerLost:
                over = False
        with Journal.open("/data", folder=FaultyFolder(folder.after_power_loss(rng))) as journal:
            known = journal.recovered
        if known.origin is None:
            assert known.hard_state.term == 8 and [one.index for one in known.entries] == [1] and not over
        else:
            assert known.origin == another_run().origin and known.snapshot == another_run().snapshot
            assert not known.entries and known.hard_state.term == 9
        found.add(known.origin is None)
        if over:
            break
        steps += 1
    assert found == {True, False} and steps > 3


def test_a_disk_that_does_not_take_it_leaves_the_run_before() -> None:
    folder = FaultyFolder()
    with Journal.open("/data", folder=folder) as journal:
        journal.persist(effect(hard_state=HardState(8, None), entries=(entry(1, 8),)))
        folder.bytes_left = 0
        with pytest.raises(JournalError):
            journal.start_over(another_run())
        folder.bytes_left = None
        journal.persist(effect(hard_state=HardState(9, None)))
    with Journal.open("/data", folder=folder) as journal:
        assert journal.recovered.hard_state.term == 9 and journal.recovered.origin is None
