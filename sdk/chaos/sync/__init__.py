"""The ways in which sites train together: what is given to a round, how its result is applied, what is committed.

`EveryStep` averages the gradients of every step. A mode with local steps between rounds is a further class here;
neither the Coordinator nor a framework knows which one runs.
"""

from __future__ import annotations

from chaos.sync.base import Due, Part, SyncMode, SyncSession
from chaos.sync.every_step import EveryStep

__all__ = ["Due", "EveryStep", "Part", "SyncMode", "SyncSession"]
