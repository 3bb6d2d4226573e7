"""Effects that concern the bulk engines: rounds, results, states."""

from __future__ import annotations

from typing import assert_never

from chaos_protocols import effects
from chaos_protocols.names import SiteId
from chaosd.arena import Arena
from chaosd.bulk_streams import BulkStreams


def execute_bulk(
    bulk: BulkStreams,
    effect: effects.OpenRound
    | effects.Contribute
    | effects.StopRound
    | effects.FetchResult
    | effects.DropResults
    | effects.VoidResults
    | effects.ServeState
    | effects.ReleaseState
    | effects.FetchState
    | effects.CancelTransfer,
    arena: Arena | None,
    neighbours: tuple[SiteId, ...],
) -> None:
    """Carry out one effect that concerns the engines. `arena`: the worker's, if there is one."""
    match effect:
        case effects.OpenRound(tag=tag, plan=plan, listeners=listeners, member=member):
            bulk.reduce.open(tag, plan, listeners, member)
        case effects.Contribute(tag=tag, weight=weight, has_bytes=has_bytes):
            bulk.reduce.contribute(tag, weight, has_bytes)
        case effects.StopRound(tag=tag):
            bulk.reduce.stop(tag)
        case effects.FetchResult(round=number, digest=digest):
            bulk.reduce.fetch_result(number, digest, neighbours)
        case effects.DropResults(before_round=before_round):
            bulk.reduce.drop_results(before_round)
        case effects.VoidResults(after_round=after_round):
            bulk.reduce.drop_results(0, after_round=after_round)
        case effects.ServeState(plan=plan):
            if arena is not None:
                bulk.replication.serve(plan.transfer, plan.joiner, plan.round, arena.state)
        case effects.ReleaseState(transfer=transfer):
            bulk.replication.release(transfer)
        case effects.FetchState(plan=plan, have=have):
            if arena is not None:
                bulk.replication.fetch(plan, arena.state, have=have)
        case effects.CancelTransfer(transfer=transfer):
            bulk.replication.cancel(transfer)
        case _:
            assert_never(effect)
