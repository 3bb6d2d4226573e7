"""The averaging of a round over the sync plan's trees: pure machines that name bytes and carry none.

They decide which chunk is awaited from whom, summed in which order, sent and kept: `ReduceMachine` sums and
distributes (spec 9), `ResultExchange` hands whole results to those who lack them, `RetainedRounds` says which results
stay, `Residuals` which losses of an encoding count, `chunk_layout` what a chunk is. Driven by the reduce engine of the
daemon (`chaosd.bulk.reduce`) and by the simulator, which execute `effects.py` in order.
"""

from chaos_protocols.rounds.reduce.effects import (
    ChildRef,
    Combine,
    FetchedRef,
    Finalise,
    GoOn,
    HeldRef,
    PartialRef,
    Payload,
    Place,
    ReduceEffect,
    ReleasePartials,
    ResultComplete,
    ResultEffect,
    ResultLost,
    ResultRef,
    ResultRefuted,
    ResultUnavailable,
    ResultVerified,
    RoundEmpty,
    RoundReduced,
    SendBulk,
)
from chaos_protocols.rounds.reduce.layout import (
    ITEM_BYTES,
    Chunk,
    ChunkLayout,
    chunk_bytes_for,
    chunk_layout,
    cut,
    lay_out,
    whole_chunks,
)
from chaos_protocols.rounds.reduce.machine import CHUNKS_IN_FLIGHT_MAX, RESULTS_KEPT, ReduceMachine
from chaos_protocols.rounds.reduce.residuals import Residuals
from chaos_protocols.rounds.reduce.results import ResultExchange
from chaos_protocols.rounds.reduce.retention import RetainedRounds
from chaos_protocols.rounds.reduce.topology import TreePlace, places_of

__all__ = [
    "CHUNKS_IN_FLIGHT_MAX",
    "ITEM_BYTES",
    "RESULTS_KEPT",
    "ChildRef",
    "Chunk",
    "ChunkLayout",
    "Combine",
    "FetchedRef",
    "Finalise",
    "GoOn",
    "HeldRef",
    "PartialRef",
    "Payload",
    "Place",
    "ReduceEffect",
    "ReduceMachine",
    "ReleasePartials",
    "Residuals",
    "ResultComplete",
    "ResultEffect",
    "ResultExchange",
    "ResultLost",
    "ResultRef",
    "ResultRefuted",
    "ResultUnavailable",
    "ResultVerified",
    "RetainedRounds",
    "RoundEmpty",
    "RoundReduced",
    "SendBulk",
    "TreePlace",
    "chunk_bytes_for",
    "chunk_layout",
    "cut",
    "lay_out",
    "places_of",
    "whole_chunks",
]
