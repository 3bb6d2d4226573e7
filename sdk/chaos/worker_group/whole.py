"""A whole model as the one part of a training: what a replica holds, in the words of an ordinary script.

Gradients, buffers, optimizers and schedulers are read, written and stepped by the session that `Coordinator.register`
makes for a script of one process, so a site of replicas has the state and the vector of a round that such a script has,
and both train in one run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from chaos.frameworks.base import Bytes, Framework, SlotKind, StateItem, UpdateHook, What, in_vector_order
from chaos.frameworks.torch import TorchFramework
from chaos.frameworks.torch_state import TensorItem
from chaos.sync.base import SyncSession
from chaos.sync.every_step import EveryStepSession
from chaos.sync.local_steps import DiLoCo
from chaos.worker_group.chain.held import HeldPart
from chaos.worker_group.chain.layout import ItemBytes
from chaos.worker_group.chain.vectors import HOST, Vectors
from chaos.worker_group.exchange.summing import Parts, private, whole
from chaos.worker_group.local_whole import WholePhase
from chaos_protocols.wire.encodings import FP32


class WholeModel(HeldPart):
    """`session`: of the training that `framework` has.

    Its gradient is what a round averages, flat: gradients of parameters and values of buffers. Buffers are as the last
    step left them before each micro-batch, so that what a micro-batch gives depends on no other.
    """

    phase: WholePhase | None = None

    def __init__(
        self,
        module: torch.nn.Module,
        framework: Framework,
        session: EveryStepSession,
        mode: DiLoCo | None = None,
        on_average: UpdateHook | None = None,
        heard: StateItem | None = None,
    ) -> None:
        """`on_average`: of a mode with local steps; otherwise the framework calls it. `heard`: see `LocalPhase`."""
        super().__init__(0)
        self.module, self._framework, self._session = module, framework, session
        slots = self._slots = in_vector_order(framework.slots)
        self._wide = sum(slot.count for slot in slots if slot.summed_as == "float64")
        self._narrow = sum(slot.count for slot in slots) - self._wide
        self._gradients = _runs([(slot.count, slot.kind is SlotKind.PARAMETER) for slot in slots])
        self._plain = framework.plain_parameters() if isinstance(framework, TorchFramework) else []
        """Whose gradients are taken and given as they are; none: everything is copied, through these."""
        self._dtypes = {parameter.dtype for parameter in self._plain}
        self.device = self._plain[0].device if self._plain else self.device
        size_bytes = 0 if self._plain else session.contribution.size_bytes
        self._given: Bytes = np.zeros(size_bytes, dtype=np.uint8)
        self._taken: Bytes = np.zeros(size_bytes, dtype=np.uint8)
        parameters = [each for each in session.items if isinstance(each, TensorItem)]
        if mode is not None:
            assert isinstance(framework, TorchFramework)
            self.phase = WholePhase(mode, framework, module, on_average, heard)
        items = session.items if self.phase is None else [*self.phase.common, *self.phase.own]
        self._consists_of(items, sum(each.get().size for each in parameters))

    @property
    def name(self) -> str:
        return f"{type(self.module).__name__} (replicated)"

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def gradient_size(self) -> int:
        return self._wide + self._narrow

    @property
    def gradient_dtype(self) -> torch.dtype:
        """float64 for a model with buffers or parameters of float64."""
        return torch.float64 if self._wide else torch.float32

    def squared(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of the parameters' gradients alone: a buffer has none."""
        found = [super(WholeModel, self).squared(gradient[a:b]) for a, b in self._gradients]
        return sum(found, torch.zeros((), dtype=torch.float64, device=gradient.device))

    def take(self) -> Parts:
        """What the script has computed of one micro-batch; gradients and buffers are then as before it. Raises
        ValueError on what cannot be averaged."""
        if not self._plain:
            self._session.contribute(self._given)
            self.forget()
            flat = self.flat(self._given)
            return [flat if self._wide else flat.clone()]
        assert isinstance(self._framework, TorchFramework)
        self._framework.check_frozen()
        found = whole(self._plain, [p.grad for p in self._plain])
        self.forget()
        dense = [each.to_dense() if each.is_sparse else each for each in found]
        if self._dtypes == {torch.float32}:
            return private([dense])[0]
        flat = torch.empty(self._narrow, dtype=torch.float32, device=self.device)
        views = [part.view_as(each) for part, each in zip(self._split(flat), dense, strict=True)]
        torch._foreach_copy_(views, dense)  # all of them in few kernels: on a device each has its price
        return [flat]

    def flat(self, vector: Bytes) -> torch.Tensor:
        """The vector of a round as a gradient; a view where that has one type."""
        wide = torch.from_numpy(vector[: 8 * self._wide]).view(torch.float64)
        narrow = torch.from_numpy(vector[8 * self._wide :]).view(torch.float32)
        return torch.cat([wide, narrow.double()]) if self._wide else narrow

    def lay_out(self, gradient: torch.Tensor, vector: Bytes) -> None:
        """A gradient as the vector of a round."""
        torch.from_numpy(vector[: 8 * self._wide]).view(torch.float64).copy_(gradient[: self._wide])
        torch.from_numpy(vector[8 * self._wide :]).view(torch.float32).copy_(gradient[self._wide :])

    def update(self, gradient: torch.Tensor, round: int) -> None:
        if not self._plain:
            self.lay_out(gradient, self._taken)
            if self.phase is None:
                self._session.apply(self._taken, round)
                return
            self._framework.write(What.GRADIENT, self._slots, self._taken)
            self.phase.step()
            return
        if len(self._dtypes) == 1:
            gradient = gradient.to(device=self.device, dtype=next(iter(self._dtypes)))
        for parameter, part in zip(self._plain, self._split(gradient), strict=True):
            parameter.grad = part.view_as(parameter).to(device=parameter.device, dtype=parameter.dtype)
        if self.phase is None:
            self._session.update(round)
        else:
            self.phase.step()

    def _split(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(flat, [parameter.numel() for parameter in self._plain])

    def forget(self) -> None:
        self._framework.discard()
        if self.phase is not None:
            self.phase.restore_buffers()

    def loaded(self) -> None:
        self.forget()
        self._framework.settle()

    def check_step(self) -> None:
        """See `Framework.check_step`, of a step of all optimizers."""
        self._framework.check_step(self._framework.optimizers)

    def look(self, round: int) -> str:
        """See `Framework.changed_outside`."""
        return self._framework.changed_outside(round)

    def drop(self) -> None:
        """It stays where it is: the script has it in its hands."""
        self.held = False

    def revive(self) -> None:
        self.held = True


def _runs(counts: Sequence[tuple[int, bool]]) -> list[tuple[int, int]]:
    """Where elements lie that are wanted, as few ranges as there can be. `counts`: how many, and whether wanted."""
    found: list[tuple[int, int]] = []
    at = 0
    for count, wanted in counts:
        if wanted and found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + count)
        elif wanted:
            found.append((at, at + count))
        at += count
    return found


class WholeVectors(Vectors):
    """The vector of a round, and the state, as an ordinary script of this training has them."""

    def __init__(self, whole: WholeModel, session: SyncSession, encoding: str = FP32) -> None:
        places = [[ItemBytes(index, 0, 0, each.get().size)] for index, each in enumerate(session.items)]
        super().__init__([each.item for each in session.items], [places], session.contribution, encoding)
        self._whole = whole

    def give(self, vector: Bytes, part: HeldPart, mean: torch.Tensor | None) -> None:
        assert mean is not None
        self._whole.lay_out(mean, vector)

    def gradient(self, vector: Bytes, part: int, device: torch.device = HOST) -> torch.Tensor:
        return self._whole.flat(vector).to(device)


class LocalWholeVectors(WholeVectors):
    """The same in a mode with local steps: how far the site has come, in place of gradients."""

    def __init__(self, whole: WholeModel, phase: WholePhase, encoding: str = FP32) -> None:
        super().__init__(whole, phase.session, encoding)
        self._phase = phase

    def give(self, vector: Bytes, part: HeldPart, mean: torch.Tensor | None) -> None:
        self._phase.give(vector)

    def update(self, vector: Bytes, part: HeldPart, factor: float, round: int) -> None:
        self._phase.apply(vector, round)
