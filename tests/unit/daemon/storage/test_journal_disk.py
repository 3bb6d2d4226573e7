"""The journal on a disk that loses power, fills up or refuses to sync: nothing is lost, nothing invented."""

from __future__ import annotations

import random

import pytest
from tests.unit.daemon.storage.journal_faults import FaultyFolder, PowerLost
from tests.unit.daemon.storage.journal_model import CONFIGURATION, Model, effect, entry, lawful

from chaos_protocols.agreement.raft.effects import HardState
from chaos_protocols.agreement.raft.messages import LogEntry, Snapshot
from chaosd.storage.journal.journal import FILE, Journal, JournalError, JournalLockedError


def test_a_power_loss_at_any_step_loses_nothing_acknowledged_and_invents_nothing() -> None:
    """Invariant 7. Each life ends at a random step; a persist is there whole or not at all."""
    lives = stopped = torn = 0
    for seed in range(150):
        rng = random.Random(seed)
        files: dict[str, bytes] = {}
        model, pending, incarnation = Model(), None, 0
        for _ in range(6):
            lives += 1
            folder = FaultyFolder(files, stop_at_step=rng.randint(1, 40))
            folder.short_writes = random.Random(seed) if rng.random() < 0.5 else None
            try:
                journal = Journal.open("data", folder=folder)
                found = journal.recovered
                torn += bool(found.note)
                assert journal.incarnation > incarnation, f"seed {seed}"
                assert model.equals(found) or (pending is not None and model.after(pending).equals(found)), (
                    f"seed {seed}"
                )
                model, pending, incarnation = Model.of(found), None, journal.incarnation
                while True:
                    pending = lawful(rng, model)
                    journal.persist(pending)
                    model, pending = model.after(pending), None
            except PowerLost:
                stopped += 1
            files = folder.after_power_loss(rng)
    assert lives == stopped == 900
    assert torn > 50


def test_a_torn_tail_is_cut_off_with_a_note_that_says_why_that_is_safe() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    journal.persist(effect(entries=(entry(1, 1),)))
    whole = bytes(folder.names[FILE].current)
    journal.persist(effect(entries=(entry(2, 1),)))
    full = bytes(folder.names[FILE].current)
    for size in range(len(whole) + 1, len(full)):
        survivor = FaultyFolder({FILE: full[:size]})
        again = Journal.open("data", folder=survivor)
        assert [old.index for old in again.recovered.entries] == [1]
        assert f"its {size - len(whole)} bytes at byte {len(whole)} were cut off" in again.recovered.note
        again.persist(effect(entries=(entry(2, 5),)))
        again.close()
        assert [old.term for old in Journal.open("data", folder=survivor).recovered.entries] == [1, 5]


def test_a_full_disk_is_a_clear_error_and_leaves_the_journal_readable() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    journal.persist(effect(entries=(entry(1, 1),)))
    before = bytes(folder.names[FILE].current)
    folder.bytes_left = 70
    with pytest.raises(JournalError, match=r"/data/journal could not be written.*the disk is full. Free space"):
        journal.persist(effect(entries=(entry(2, 1, bytes(500)),)))
    assert bytes(folder.names[FILE].current) == before
    with pytest.raises(JournalError, match=r"could not be written anew.*the disk is full"):
        journal.persist(effect(snapshot=Snapshot(index=1, term=1, configuration=CONFIGURATION, state=bytes(500))))
    assert set(folder.names) == {FILE}
    folder.bytes_left = None
    journal.persist(effect(entries=(entry(2, 9),)))
    journal.close()
    found = Journal.open("data", folder=folder).recovered
    assert ([(old.index, old.term) for old in found.entries], found.snapshot) == ([(1, 1), (2, 9)], None)


def test_a_full_disk_at_every_size_keeps_what_was_acknowledged() -> None:
    for room in range(0, 900, 7):
        folder = FaultyFolder()
        journal = Journal.open("data", folder=folder)
        folder.bytes_left = room
        rng, model = random.Random(3), Model()
        failure = None
        while failure is None:
            change = lawful(rng, model)
            try:
                journal.persist(change)
                model = model.after(change)
            except JournalError as error:
                failure = error
        assert "disk is full" in str(failure)
        journal.close()
        folder.bytes_left = None
        assert model.equals(Journal.open("data", folder=folder).recovered), f"room {room}"


def test_after_a_failed_sync_nothing_more_is_taken() -> None:
    """A second sync after a failed one reports success although the pages are gone: the error must be final."""
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    folder.sync_errors = 1
    with pytest.raises(JournalError, match="could not be synced: Input/output error"):
        journal.persist(effect(hard_state=HardState(term=1, vote=None)))
    with pytest.raises(JournalError, match=r"takes no more records: its last sync failed.*Restart the daemon"):
        journal.persist(effect(hard_state=HardState(term=1, vote=None)))


def test_a_half_written_record_that_cannot_be_taken_back_is_final() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    folder.bytes_left, folder.truncate_errors = 10, True
    with pytest.raises(JournalError, match="disk is full"):
        journal.persist(effect(hard_state=HardState(term=1, vote=None)))
    folder.bytes_left = None
    with pytest.raises(JournalError, match="half-written record could not be taken back"):
        journal.persist(effect(hard_state=HardState(term=1, vote=None)))


def test_a_disk_that_takes_no_bytes_ends_in_an_error_and_not_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open("data", folder=FaultyFolder())
    monkeypatch.setattr("tests.unit.daemon.storage.journal_faults.FaultyFile.write", lambda self, data: 0)
    with pytest.raises(JournalError, match="takes no more bytes"):
        journal.persist(effect(hard_state=HardState(term=1, vote=None)))


def test_the_lock_of_the_fake_disk_is_that_of_the_real_one() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    with pytest.raises(JournalLockedError):
        Journal.open("data", folder=folder)
    journal.close()
    assert not folder.locked


def test_a_record_that_could_not_be_read_back_is_not_written() -> None:
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    before = bytes(folder.names[FILE].current)
    text = LogEntry(index=1, term=1, command="text", configuration=None)  # type: ignore[arg-type]
    for wrong in (entry(1, -1), text):
        with pytest.raises(JournalError, match="cannot be stored"):
            journal.persist(effect(entries=(wrong,)))
    assert bytes(folder.names[FILE].current) == before
