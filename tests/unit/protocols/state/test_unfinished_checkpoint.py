"""A checkpoint that is being made while the worker of its site is away: it is offered, and read when it is whole."""

from __future__ import annotations

import itertools

from tests.unit.protocols.follower import Follower, hello, of
from tests.unit.protocols.one_site import MODEL, A, B, D, records, sent
from tests.unit.protocols.state.test_local_checkpoint import copied, keeper

from chaos_protocols import events
from chaos_protocols.agreement.commands import SetRestorePoint
from chaos_protocols.agreement.views import make_view
from chaos_protocols.effects import LoadCheckpoint, WriteCheckpoint
from chaos_protocols.wire.control import SiteStatus, StateRequest
from chaos_protocols.wire.plans import CheckpointFacts

COPYING, WRITING = "its state is being copied", "it is being written"
"""How far it is when the worker dies."""


def unfinished(step: str = WRITING) -> tuple[Follower, CheckpointFacts, CheckpointFacts]:
    """Its worker died and came back while a file was made; the one before, and that one."""
    bench = keeper(checkpoint="fixed", checkpoint_every_rounds=1)
    saved(bench, copied(bench))
    (older,) = bench.machine.state.files.offers
    number = copied(bench)
    if step is WRITING:
        bench.handle(events.MemoryCheckpointSaved(round=number, reason=""))
    newer = bench.machine.state.files.writing
    assert newer is not None and newer.round == number
    bench.handle(events.WorkerLost(reason="killed"))
    bench.taken()
    hello(bench)
    return bench, older, newer


def saved(bench: Follower, number: int) -> list[object]:
    """The copy is whole, and so is the file."""
    (written,) = of(bench.handle(events.MemoryCheckpointSaved(round=number, reason="")), WriteCheckpoint)
    return bench.handle(events.CheckpointWritten(checkpoint=written.checkpoint, size_bytes=1, took_s=0.1))


def chosen(bench: Follower, checkpoint: CheckpointFacts) -> list[object]:
    """The run goes on from this site's state of that round; what the site does."""
    number = checkpoint.round
    members = {A, B, D}
    links = bench.roster.links
    view = make_view(bench.machine.planner, first_round=number + 1, members=members, listeners=(), links=links)
    own = bench.roster.record(D)
    assert own is not None
    bench.taken()
    bench.agreed(SetRestorePoint(record=own, links=(), round=number, model=MODEL, views=(view,)))
    return bench.taken()


def test_it_is_offered_and_reported_before_it_is_whole() -> None:
    for step in (COPYING, WRITING):
        bench, older, newer = unfinished(step)
        assert newer > older
        ((_, asked),) = sent(bench.taken(), StateRequest)
        assert asked.checkpoint == newer, step
        assert {status.checkpoint for _, status in sent(bench.alive(1.0), SiteStatus)} == {newer}, step


def test_it_is_read_when_it_is_whole() -> None:
    for step in (COPYING, WRITING):
        bench, _, newer = unfinished(step)
        assert not of(chosen(bench, newer), LoadCheckpoint) and bench.machine.state.is_coming, step
        if step is COPYING:
            out = saved(bench, newer.round)
        else:
            out = bench.handle(events.CheckpointWritten(checkpoint=newer, size_bytes=1, took_s=0.1))
        assert [one.checkpoint for one in of(out, LoadCheckpoint)] == [newer], step


def test_where_it_could_not_be_made_the_one_before_is_offered() -> None:
    for step, is_chosen in itertools.product((COPYING, WRITING), (True, False)):
        bench, older, newer = unfinished(step)
        if is_chosen:
            chosen(bench, newer)
        if step is COPYING:
            out = bench.handle(events.MemoryCheckpointSaved(round=newer.round, reason="the disk is full"))
        else:
            out = bench.handle(
                events.CheckpointWritten(checkpoint=newer, size_bytes=0, took_s=0.1, reason="the disk is full")
            )
        assert not of(out, LoadCheckpoint) and not bench.machine.state.is_coming, step
        assert not is_chosen or records(out, "restore")[-1].reason == "the disk is full", step
        out += bench.alive(1.0)
        assert [asked.checkpoint for _, asked in sent(out, StateRequest)][-1] == older, step


def test_of_another_round_or_model_the_one_before_is_the_newest() -> None:
    bench, older, newer = unfinished()
    files = bench.machine.state.files
    assert files.offered(MODEL.spec_digest, older.round) == older
    assert files.offered(MODEL.spec_digest, newer.round) == newer
    assert files.offered("another") is None
