"""A whole model with local steps between rounds, of which each worker of a site has a replica.

A step's gradient is the mean over the site's micro-batches, whoever computed them, and its buffers are their mean; the
inner optimizer then steps at every replica alike. What a round gives, and what its result does, is what an ordinary
script of one process has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chaos.frameworks.base import Bytes, MadeItem, SlotKind, StateItem, Update, UpdateHook
from chaos.frameworks.local import CommittedItem
from chaos.frameworks.torch import TorchFramework
from chaos.frameworks.torch_buffers import ModelBuffer, new_buffers
from chaos.frameworks.torch_normal import in_normal_mode
from chaos.frameworks.torch_state import dtype_name, tensor_bytes
from chaos.sync.local_steps import DiLoCo
from chaos.worker_group.chain.local_phase import LocalPhase
from chaos_protocols.wire.state_spec import Item


class WholePhase(LocalPhase):
    """`on_average`: called with the site's mean gradients before each local step."""

    def __init__(
        self,
        mode: DiLoCo,
        framework: TorchFramework,
        module: torch.nn.Module,
        on_average: UpdateHook | None,
        heard: StateItem | None = None,
    ) -> None:
        super().__init__(mode, framework, heard)
        self._framework, self._on_average = framework, on_average
        self._buffers = list(new_buffers("step", module, []))
        """As the last local step left them: each micro-batch begins with these. The framework keeps them as the last
        round did."""
        trained = {slot.name for slot in framework.slots if slot.kind is SlotKind.PARAMETER}
        theirs = {each.item.name for each in self.common if not isinstance(each, CommittedItem)} - trained
        self.own: Sequence[StateItem] = [
            *(each for each in framework.items if each.item.name not in theirs),
            *map(_buffer_item, self._buffers),
            *self.marks,
        ]
        """Of this site between two rounds; to be put after what is common, which puts live values, too."""

    def step(self) -> None:
        self._average()
        super().step()
        self._keep_buffers()

    def begins_anew(self, round: int) -> None:
        super().begins_anew(round)
        self._keep_buffers()

    def end_alone(self, round: int) -> None:
        super().end_alone(round)
        self._keep_buffers()

    def void(self, round: int) -> None:
        super().void(round)
        self._keep_buffers()

    def give(self, vector: Bytes) -> None:
        """Write what the site gives to a round."""
        self._contribute(vector)

    def apply(self, vector: Bytes, round: int) -> None:
        """Apply the result of a round."""
        self.session.apply(vector, round)
        self._keep_buffers()

    def restore_buffers(self) -> None:
        """As the last local step left them."""
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.restore()

    def _keep_buffers(self) -> None:
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.commit()

    @in_normal_mode
    def _average(self) -> None:
        if self._on_average is not None:
            round = self.session.steps // self.rounds.every + 1
            told = tuple(name.removeprefix("optimizer.") for name in self._framework.optimizers)
            self._on_average(Update(round=round, optimizers=told))


def _buffer_item(buffer: ModelBuffer) -> StateItem:
    kept = buffer.committed
    return MadeItem(
        item=Item(buffer.name, dtype_name(kept.dtype), tuple(kept.shape)),
        get=lambda: tensor_bytes(kept),
        put=buffer.load,
    )
