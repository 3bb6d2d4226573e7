"""The gradients of a torch training, one by one, while a backward pass computes them (`EveryStep(overlap=True)`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from chaos.frameworks.base import Bytes, Slot
from chaos.frameworks.torch_scaling import refuse_scaled_losses

Came = Callable[[Slot], None]


class GradientsAsTheyCome:
    """Told by hooks of torch, in the thread that computes the gradient: for a model on a processor the script's own."""

    def __init__(self, parameters: Sequence[tuple[Slot, torch.Tensor]], check: Callable[[], None]) -> None:
        self.check = check
        self._parameters: Mapping[str, torch.Tensor] = {slot.name: parameter for slot, parameter in parameters}
        self._hooks: list[Any] = []
        for slot, parameter in parameters:
            hook = partial(self._accumulated, slot)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._came: Came | None = None
        self._seen: dict[str, tuple[torch.Tensor, int]] = {}
        self._looked_for_scaling = False

    def begins(self) -> None:
        """Looks for scaled losses, once: whether a gradient was scaled it does not show."""
        if not self._looked_for_scaling:
            refuse_scaled_losses("overlap() gives gradients as they come, before anything could unscale them")
            self._looked_for_scaling = True

    def follow(self, came: Came | None) -> None:
        """Call it for each gradient that is complete, from now on; None: no more."""
        self._came = came
        if came is not None:
            self._seen.clear()

    def copy(self, slot: Slot, out: Bytes) -> None:
        """As `Framework.read` does it, for one."""
        gradient = self._parameters[slot.name].grad
        view = torch.from_numpy(out.view(slot.summed_as)).view(slot.shape)
        with torch.no_grad():
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)

    def changed(self, slots: Sequence[Slot], copies: Sequence[Bytes]) -> Slot | None:
        """The first of these whose gradient is not what it was when it came; `copies`: where it was copied to. torch
        counts most changes; of those that it does not count (a scaler's) the first number of each tensor tells."""
        firsts = []
        for slot in slots:
            seen, now = self._seen.get(slot.name), self._parameters[slot.name].grad
            if seen is None or now is not seen[0] or now._version != seen[1]:
                return slot
            dense = now.coalesce().values() if now.is_sparse else now
            firsts.append(None if now.is_sparse or not slot.count else dense.detach().reshape(-1)[0].float())
        known = [
            (slot, copy, first) for slot, copy, first in zip(slots, copies, firsts, strict=True) if first is not None
        ]
        if not known:
            return None
        present = torch.stack([first.cpu() for _, _, first in known]).numpy()
        given = np.array([copy.view(slot.summed_as)[0] for slot, copy, _ in known], dtype=np.float32)
        odd = np.flatnonzero(~((present == given) | (np.isnan(present) & np.isnan(given))))
        return known[int(odd[0])][0] if odd.size else None

    def close(self) -> None:
        """Look no more. Safe to call twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _accumulated(self, slot: Slot, parameter: torch.Tensor) -> None:
        if self._came is None or parameter.grad is None:
            return
        self._came(slot)
        self._seen[slot.name] = (parameter.grad, parameter.grad._version)
