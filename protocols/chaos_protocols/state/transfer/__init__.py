"""State transfer between sites (spec 11): pure machines of the joiner and of its sources.

They decide which source sends which blocks, so that all finish together (`assignment.py`), what need not be sent since
it is there (`held.py`), when a block counts (its hash; with witnesses, a second word: `witnesses.py`), and what
becomes of a source that is lost, slow, silent or wrong. `TransferMachine` is the joiner's, `TransferSource` that of a
site that sends. Driven by the replication engine (`chaosd.bulk.replication`) and by the simulator; the bytes are
theirs.
"""

from chaos_protocols.state.transfer.effects import (
    CheckBlock,
    FetchFailed,
    JoinerEffect,
    SendHeader,
    SourceDropped,
    SourceEffect,
    StateFetched,
    StreamBlocks,
)
from chaos_protocols.state.transfer.joiner import TransferMachine
from chaos_protocols.state.transfer.ranges import Range, RangeSet, Replan, SourceRate, split_by_rate
from chaos_protocols.state.transfer.source import Block, Comparison, TransferSource
from chaos_protocols.state.transfer.sources import SourceProgress, SourceState, TransferSettings

__all__ = [
    "Block",
    "CheckBlock",
    "Comparison",
    "FetchFailed",
    "JoinerEffect",
    "Range",
    "RangeSet",
    "Replan",
    "SendHeader",
    "SourceDropped",
    "SourceEffect",
    "SourceProgress",
    "SourceRate",
    "SourceState",
    "StateFetched",
    "StreamBlocks",
    "TransferMachine",
    "TransferSettings",
    "TransferSource",
    "split_by_rate",
]
