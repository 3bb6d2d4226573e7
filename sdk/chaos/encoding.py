"""In which form the rounds of a run travel between the sites (docs/training-modes.md#encodings).

The arithmetic is the daemon's: the script gives and gets float32 and float64. Here is what a user may ask for, and how
the state says so, so that a site with another encoding is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chaos.frameworks.base import StateItem, fact_item
from chaos.sync import EveryStep, SyncMode
from chaos_protocols.wire.encodings import COARSE, FACT, FP32, encoding_problem
from chaos_protocols.wire.state_spec import fact
from chaos_protocols.wire.worker import ContributionSpec


def check_encoding(name: str, mode: SyncMode, *, allow_lossy: bool) -> None:
    """Raises ValueError for one that is none, or too coarse for a mode."""
    check_name(name)
    if name in COARSE and isinstance(mode, EveryStep) and not allow_lossy:
        raise ValueError(
            f"encoding={name!r} with EveryStep: so few bits are for the differences of modes with local steps "
            "(sync=DiLoCo(every=...)); a gradient of one step loses up to half of its length, and is made up for only "
            "in the rounds after it. Coordinator(allow_lossy=True), at all sites, if that is what you want"
        )


def check_name(name: str) -> None:
    """Raises ValueError for an encoding that is none."""
    if problem := encoding_problem(name):
        raise ValueError(f"encoding={name!r}: {problem}")


def encoded(given: ContributionSpec, name: str) -> ContributionSpec:
    """The vector of a round, to travel so. Raises ValueError where nothing of it would be encoded."""
    if name == FP32:
        return given
    if not any(segment.count for segment in given.segments if segment.dtype == "float32"):
        raise ValueError(
            f"encoding={name!r} would change nothing: all that is averaged here is float64, which is never encoded; "
            "leave out encoding=, or train in float32 or less"
        )
    return msgspec.structs.replace(given, encoding=name)


def facts(name: str) -> Sequence[StateItem]:
    """What the state says of it; nothing in fp32, as sites of releases from before encodings."""
    return () if name == FP32 else (fact_item(fact(f"{FACT}{name}")),)
