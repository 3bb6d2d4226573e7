"""This site's own part comes in pieces: what is summed, and what may come down, follows it (spec 9.38)."""

from __future__ import annotations

import pytest
from tests.unit.protocols.rounds.reduce.test_machine import TAG, A, B, C, down, grant, opened, sent, up

from chaos_protocols.errors import LocalProtocolError, RemoteProtocolError
from chaos_protocols.rounds.reduce import Chunk, Combine, lay_out, whole_chunks


def combined(effects):  # type: ignore[no-untyped-def]
    return [(effect.chunk, effect.weight) for effect in effects if isinstance(effect, Combine)]


def test_a_chunk_is_summed_and_sent_when_the_own_part_of_it_is_there() -> None:
    machine = opened(B, in_flight=4)
    machine.received(A, grant(0, 4))
    for chunk in range(3):
        machine.received(C, up(chunk, *([2.0] if chunk == 0 else [])))
    assert combined(machine.contribute(TAG, 3.0, has_bytes=True, ready=[0])) == []
    effects = machine.contribute(TAG, 3.0, has_bytes=True, ready=[2])
    assert combined(effects) == [(0, 3.0), (1, 3.0)]
    assert [header.chunk for site, header in sent(effects) if site == A] == [0, 1]
    assert combined(machine.contribute(TAG, 3.0, has_bytes=True, ready=[1])) == [], "what was ready stays so"
    assert combined(machine.contribute(TAG, 3.0, has_bytes=True)) == [(2, 3.0)]
    with pytest.raises(LocalProtocolError, match=r"no \(further\) part"):
        machine.contribute(TAG, 3.0, has_bytes=True)


def test_a_result_may_come_down_as_far_as_the_own_part_was_given() -> None:
    machine = opened(B, in_flight=4)
    machine.received(A, grant(0, 4))
    machine.received(C, up(0, 2.0))
    machine.contribute(TAG, 3.0, has_bytes=True, ready=[1])
    assert machine.place(A, down(0, 1.0, 3.0, 2.0)) is not None
    machine.received(A, down(0, 1.0, 3.0, 2.0))
    with pytest.raises(RemoteProtocolError, match="no result is complete without this site's part"):
        machine.place(A, down(1))


def test_a_part_that_breaks_off_goes_on_in_the_weight_that_was_told() -> None:
    machine = opened(B, in_flight=4)
    machine.received(A, grant(0, 4))
    for chunk in range(2):
        machine.received(C, up(chunk, *([2.0] if chunk == 0 else [])))
    machine.contribute(TAG, 3.0, has_bytes=True, ready=[1])
    assert combined(machine.contribute(TAG, 0.0, has_bytes=False)) == [(1, 3.0)]


def test_a_part_that_goes_on_with_another_weight_is_refused() -> None:
    machine = opened(B)
    machine.contribute(TAG, 3.0, has_bytes=True, ready=[1])
    with pytest.raises(LocalProtocolError):
        machine.contribute(TAG, 4.0, has_bytes=True)


@pytest.mark.parametrize(("ready_bytes", "chunks"), [(0, 0), (7, 0), (8, 1), (23, 2), (24, 2), (1 << 40, 2)])
def test_whole_chunks_within_what_is_ready_but_never_the_last(ready_bytes: int, chunks: int) -> None:
    cut = [Chunk(start=at, stop=at + 8, dtype="float32") for at in (0, 8, 16)]
    assert whole_chunks(cut, ready_bytes) == chunks


def test_what_is_ready_is_spread_over_the_trees_as_the_chunks_are() -> None:
    cut = tuple(Chunk(start=at, stop=at + 1, dtype="float32") for at in range(9))
    layout = lay_out(cut, [2.0, 1.0], chunks_a_tree_min=1)
    for ready in range(10):
        assert layout.ready(ready) == tuple(len([one for one in carried if one < ready]) for carried in layout.of_tree)
