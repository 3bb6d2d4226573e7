"""State transfer between sites: pure machines of the joiner and of its sources (spec 11)."""

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
from chaos_protocols.state.transfer.sources import SourceState, TransferSettings

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
    "SourceRate",
    "SourceState",
    "StateFetched",
    "StreamBlocks",
    "TransferMachine",
    "TransferSettings",
    "TransferSource",
    "split_by_rate",
]
