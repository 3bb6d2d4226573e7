"""Whether a step has the gradients that its script means to give. The numbers do not show it, and nothing of it is
certain, so it is told, once each, and training goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from chaos.frameworks.torch_scaling import Unscaled, scaled_by


class GivenGradients:
    """Of one registered training."""

    def __init__(
        self, parameters: Mapping[str, Sequence[torch.Tensor]], optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        """`parameters`: by optimizer, those that it trains."""
        self._optimizers = optimizers
        self._parameters = {name: trained for name, trained in parameters.items() if trained}
        self._unscaled: Unscaled | None = None
        self._told_of_zeros = False
        self._told_of: set[str] = set()

    def look(self, round: int, optimizers: Sequence[str] | None, *, averaged: bool) -> str:
        """See `Framework.odd_gradients`."""
        chosen = [name for name in self._parameters if optimizers is None or name in optimizers]
        without = [name for name in chosen if all(each.grad is None for each in self._parameters[name])]
        if len(without) == len(chosen):
            return self._none_at_all(round)
        if self._unscaled is None:
            self._unscaled = Unscaled()
            if factor := scaled_by():
                return (
                    f"the step after round {round} comes before anything was unscaled, and this script has a "
                    f"GradScaler that has scaled a loss by {factor:g}: if these gradients come from that loss, all "
                    "sites step by so many times too much; say scaler.unscale_(optimizer) before coordinator.step(), "
                    "and scaler.update() after it"
                )
        if self._unscaled.forgotten(self._optimizers[name] for name in chosen):
            return (
                f"the step after round {round} comes without scaler.unscale_(optimizer), which earlier steps had: "
                "if these gradients come from a scaled loss, all sites step by so many times too much; say it before "
                "each coordinator.step(), and scaler.update() after it"
            )
        if averaged and (new := [name for name in without if name not in self._told_of]):
            self._told_of.update(without)
            return self._some_without(round, new[0].removeprefix("optimizer."))
        return ""

    def _none_at_all(self, round: int) -> str:
        """A step before any backward pass, or after `zero_grad()`: its zeros count as any gradient."""
        if self._told_of_zeros:
            return ""
        self._told_of_zeros = True
        return (
            f"no parameter had a gradient at the step after round {round}, so this site gave zeros, which count in the "
            "average: coordinator.step() follows backward(), and clears the gradients itself (no zero_grad() between "
            "the two); a site that has nothing to give says step(skip=True)."
        )

    def _some_without(self, round: int, name: str) -> str:
        return (
            f"no parameter of the optimizer {name!r} had a gradient at the step after round {round}, though others "
            "had: it steps all the same, from zeros of this site, so its momentum goes on and its weight decay, too; "
            "where optimizers take turns (a GAN), say whose turn it is: register(..., sync=EveryStep(notes=True)), on "
            f"all sites, and step(optimizers=({name!r},)) for the gradients of that one"
        )
