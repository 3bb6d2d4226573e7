"""Layers whose tensors the processes of a device group share while all compute the same micro-batch (tensor
parallelism: `parallelize_module`, DTensor).

What of a layer the script has cut, a process has its piece of; what it has left whole, all have alike, and all compute
the same gradient of it, which is checked once. Everything else is as with `sharded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Shard

from chaos.worker_group.chain.sharded import ShardedLayer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class TensorParallelLayer(ShardedLayer):
    """`mesh`: of the processes that share it."""

    alike = True

    def __init__(self, index: int, whole: torch.nn.Module, mesh: DeviceMesh) -> None:
        super().__init__(index, whole)
        self._mesh = mesh
        self._checked = False

    def _compute(self, entered: torch.Tensor) -> Any:
        left = self.whole(entered)
        if isinstance(left, DTensor):
            raise ValueError(
                f"layer {self.name} gives a DTensor; what leaves a layer must be whole in every process: let its last "
                "module have output_layouts=Replicate() and use_local_output=True"
            )
        return left.clone() if isinstance(left, AsyncCollectiveTensor) else left  # what is still on its way: waits

    def gradients(
        self,
        entered: torch.Tensor,
        left: torch.Tensor,
        gradient: torch.Tensor,
        onto: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor | None, Sequence[torch.Tensor | None]]:
        into, found = super().gradients(entered, left, gradient, onto)
        into = into.clone() if isinstance(into, AsyncCollectiveTensor) else into
        if not self._checked:
            self._checked = True
            self._check_alike(into, found)
        return into, found

    def _piece_of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Cut as the parameter is."""
        found = parameter.grad
        if not isinstance(found, DTensor) or not isinstance(parameter, DTensor):
            return found
        if found.placements != parameter.placements:
            found = found.redistribute(parameter.device_mesh, parameter.placements)
        local: torch.Tensor = found.to_local()
        return local.clone() if isinstance(local, AsyncCollectiveTensor) else local

    def squared(self, gradient: torch.Tensor) -> torch.Tensor:
        """Those of the pieces, and in the first process of what all have alike: lanes are added up."""
        parts = torch.split(gradient, [piece.numel() for piece in self.parameters])
        counted = [
            part
            for piece, part in zip(self.parameters, parts, strict=True)
            if self._mesh.get_local_rank() == 0 or _is_cut(self._cut[piece])
        ]
        return super().squared(torch.cat(counted) if counted else gradient[:0])

    def whole_squares(self, gradient: torch.Tensor) -> float:
        return float(super().squared(gradient))

    def _check_alike(self, into: torch.Tensor | None, found: Sequence[torch.Tensor | None]) -> None:
        """Raises ValueError, in all processes, where the same gradient has not the same bits in all of them."""
        names = [name for name, _ in self.module.named_parameters()]
        alike = [
            (f"the parameter {name!r}", gradient)
            for name, piece, gradient in zip(names, self._all, self._by_piece(found), strict=True)
            if gradient is not None and not _is_cut(self._cut[piece])
        ]
        for what, gradient in ([] if into is None else [("what enters it", into)]) + alike:
            own = gradient.contiguous().view(torch.uint8)
            others = [torch.empty_like(own) for _ in range(self._mesh.size())]
            dist.all_gather(others, own, group=self._mesh.get_group())
            if any(not torch.equal(each, others[0]) for each in others):
                raise ValueError(
                    f"the processes of a device group have unlike gradients of {what} of layer {self.name}, which each "
                    "of them has whole: it takes part between two tensors that device_group= has cut; cut it as well"
                )

    def _by_piece(self, found: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Of all parameters, None for those that are not trained."""
        trained = dict(zip(self.parameters, found, strict=True))
        return [trained.get(piece) for piece in self._all]


def _is_cut(parameter: torch.Tensor) -> bool:
    return isinstance(parameter, DTensor) and any(isinstance(each, Shard) for each in parameter.placements)
