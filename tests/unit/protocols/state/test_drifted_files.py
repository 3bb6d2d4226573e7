"""What lies on the disk of a site whose state was found to differ.

Not mended: a site knows of each file its round and lineage alone."""

from __future__ import annotations

import pytest
from tests.unit.protocols.follower import training_member
from tests.unit.protocols.one_site import MODEL, A, B, D

from chaos_protocols import events
from chaos_protocols.effects import DeliverResult
from chaos_protocols.rounds.state_check import encode_check
from chaos_protocols.wire.plans import CheckpointFacts
from chaos_protocols.wire.worker import StateDigests


def digests(second: bytes, array: str = "fc.weight") -> StateDigests:
    return StateDigests(start=0, stop=8, first=b"s" * 8, second=second, array=array)


@pytest.mark.xfail(strict=True, reason="files of a state that was outvoted stay on offer until the next one is written")
def test_a_file_of_a_state_that_was_found_to_differ_is_offered_no_more() -> None:
    bench = training_member()
    mine, theirs = encode_check(digests(b"o" * 8)), encode_check(digests(b"s" * 8))
    for _ in range(8):
        tag = bench.machine.rounds.running
        assert tag is not None
        bench.handle(events.WorkerContributed(round=tag.round, weight=1.0))
        weights = ((A, 1.0), (B, 1.0), (D, 1.0))
        said = ((A, theirs), (B, theirs), (D, mine)) if tag.round == 5 else ()
        if said:
            written = CheckpointFacts(lineage=1, round=4, spec_digest=MODEL.spec_digest)
            bench.handle(events.CheckpointsFound(checkpoints=(written,)))
        out = bench.handle(events.ReduceFinished(tag=tag, digest=f"d{tag.round}", weights=weights, checks=said))
        if said:
            break
        (delivered,) = (one for one in out if isinstance(one, DeliverResult))
        told = digests(b"o" * 8) if delivered.digest is not None else None
        bench.handle(events.WorkerApplied(round=tag.round, digests=told))
    assert bench.machine.rounds.worker_round is None, "it is outvoted"
    assert bench.machine.state.files.offered(MODEL.spec_digest) is None
