"""The journal's reader against damaged, cut, spliced and random files: a true prefix of history, or a clear stop."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.daemon.storage.journal_faults import FaultyFolder
from tests.unit.daemon.storage.journal_model import Model, effect, entry, lawful

from chaosd.storage.journal.journal import FILE, Journal, JournalDamagedError, JournalError, Recovered
from chaosd.storage.journal.records import FILE_HEADER_BYTES, FRAME_BODY_BYTES_MAX, frame, scan


@functools.cache
def history() -> tuple[bytes, tuple[Model, ...], int]:
    """A file of some twenty frames, the states that it went through, and where its last frame begins."""
    rng = random.Random(40)
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    models = [Model()]
    last = journal.size_bytes
    while len(models) < 20:
        change = lawful(rng, models[-1])
        if change.snapshot is None and models[-1].after(change) != models[-1]:
            last = journal.size_bytes
            journal.persist(change)
            models.append(models[-1].after(change))
    return bytes(folder.names[FILE].current), tuple(models), last


def opened(data: bytes) -> Recovered | None:
    """What the journal makes of this file; None if it refuses it. Anything else is a failure of the test."""
    try:
        return Journal.open("data", folder=FaultyFolder({FILE: data})).recovered
    except JournalDamagedError:
        return None


def is_prefix(found: Recovered) -> bool:
    return any(model.equals(found) for model in history()[1])


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_before_the_last_frame_is_always_refused(data: st.DataObject) -> None:
    whole, _, last = history()
    at = data.draw(st.integers(0, last - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    assert opened(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]) is None


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_in_the_last_frame_drops_that_frame_with_a_note(data: st.DataObject) -> None:
    whole, models, last = history()
    at = data.draw(st.integers(last, len(whole) - 1))
    found = opened(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
    assert found is not None
    assert models[-2].equals(found)
    assert "were cut off" in found.note


def test_a_file_cut_anywhere_gives_a_prefix_of_history() -> None:
    whole, models, _ = history()
    first_frame_ends = FILE_HEADER_BYTES + 24 + len(scan(whole).bodies[0]) + 16
    places = set()
    for size in range(len(whole) + 1):
        found = opened(whole[:size])
        assert (found is None) == (size < first_frame_ends)
        if found is not None:
            places.add(next(place for place, model in enumerate(models) if model.equals(found)))
    assert places == set(range(len(models)))


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 4000), st.integers(0, 300), st.binary(max_size=40) | st.just(b"CJF\xa5")), max_size=6
    )
)
def test_spliced_files_give_a_prefix_of_history_or_are_refused(pieces: list[tuple[int, int, bytes]]) -> None:
    whole = history()[0]
    for at, removed, inserted in pieces:
        whole = whole[:at] + inserted + whole[at + removed :]
    found = opened(whole)
    assert found is None or is_prefix(found)


@settings(max_examples=300, deadline=None)
@given(noise=st.binary(max_size=600))
def test_random_bytes_are_refused_and_never_crash_the_reader(noise: bytes) -> None:
    assert opened(noise) is None
    assert opened(history()[0][:FILE_HEADER_BYTES] + noise) is None
    found = opened(history()[0] + noise)
    assert found is not None
    assert history()[1][-1].equals(found)


def test_frames_moved_about_are_refused() -> None:
    whole = history()[0]
    found = scan(whole)
    frames, at = [], FILE_HEADER_BYTES
    for body in found.bodies:
        stop = at + 24 + len(body) + 16
        frames.append(whole[at:stop])
        at = stop
    head = whole[:FILE_HEADER_BYTES]
    rng = random.Random(2)
    for _ in range(200):
        order = list(range(len(frames)))
        if rng.random() < 0.5:
            order.pop(rng.randrange(len(order) - 1))
        else:
            one, other = rng.sample(order, 2)
            order[one], order[other] = order[other], order[one]
        assert opened(head + b"".join(frames[place] for place in order)) is None


def test_a_command_that_contains_frames_does_not_make_a_torn_tail_look_like_damage() -> None:
    """A peer chooses commands; it does not know the file's salt, so no bytes of its own pass as a frame."""
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    hostile = b"".join(frame(b"\x80", number, bytes(32)) for number in range(1, 9))
    journal.persist(effect(entries=(entry(1, 1, hostile),)))
    journal.persist(effect(entries=(entry(2, 1, hostile * 3),)))
    found = opened(bytes(folder.names[FILE].current[:-30]))
    assert found is not None
    assert [old.index for old in found.entries] == [1]


def test_whole_frames_of_unknown_content_are_refused() -> None:
    head = history()[0][:FILE_HEADER_BYTES]
    salt = scan(history()[0]).salt
    for body in (b"", b"\xc1", b"\x81\xa4type\xa6closed", b"\x80", b"\x81\xa4type\xa6opened"):
        with pytest.raises(JournalDamagedError, match="record 1 is whole but not understood"):
            Journal.open("data", folder=FaultyFolder({FILE: head + frame(body, 1, salt)}))


def test_a_record_longer_than_a_frame_may_be_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FRAME_BODY_BYTES_MAX > 64 << 20
    monkeypatch.setattr("chaosd.storage.journal.records.FRAME_BODY_BYTES_MAX", 1000)
    folder = FaultyFolder()
    journal = Journal.open("data", folder=folder)
    with pytest.raises(JournalError, match="longer than the limit"):
        journal.persist(effect(entries=(entry(1, 1, bytes(2000)),)))
    journal.persist(effect(entries=(entry(1, 1),)))
