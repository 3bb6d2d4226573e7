"""The ways in which sites train together: what is given to a round, how its result is applied, what is committed.

`EveryStep` averages the gradients of every step; `LocalSGD` and `DiLoCo` let every site step by itself for a while and
average how far each has come (docs/training-modes.md). Driven by the Coordinator, and by its conversation with the
daemon; neither knows which of them runs, nor does a framework.
"""

from __future__ import annotations

from chaos.sync.base import Due, Part, SyncMode, SyncSession
from chaos.sync.every_step import EveryStep
from chaos.sync.learning_rate import LearningRateRule
from chaos.sync.local_session import LocalStepsSession
from chaos.sync.local_steps import DiLoCo, LocalSGD
from chaos.sync.outer import OuterSGD

__all__ = [
    "DiLoCo",
    "Due",
    "EveryStep",
    "LearningRateRule",
    "LocalSGD",
    "LocalStepsSession",
    "OuterSGD",
    "Part",
    "SyncMode",
    "SyncSession",
]
