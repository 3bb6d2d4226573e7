"""Passes within torch.autocast, which keeps the weights that it has rounded until its outermost block ends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from tests.integration.site_training import Points, make_model, make_optimizer
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from chaos import Coordinator
from chaos.worker_group.chain.cutting import shard_layers
from chaos.worker_group.chain.layers import Layer


def rounded() -> AbstractContextManager[None]:
    return torch.autocast("cpu", torch.bfloat16)


def digests(around: AbstractContextManager[None], inside: type[AbstractContextManager[None]] | None) -> list[str]:
    """Of all layers after three steps: `around` the loop, or anew for each step."""
    with Coordinator(standalone=True, handle_signals=False) as coordinator, around:
        model = coordinator.parallelize(
            make_model(0.0), loss=lambda o, t: torch.nn.functional.cross_entropy(o.float(), t)
        )
        coordinator.register(model=model, optimizer=make_optimizer)
        for batch in coordinator.loader(Points(), global_batch=8, micro_batch=4, seed=7, steps=3):
            with rounded() if inside else nullcontext():
                model.step(batch)
        return list(model.digests().values())


def test_each_step_computes_with_the_weights_of_now() -> None:
    """Around the whole loop all steps computed with the weights of the first one. What is loaded within a step, as at
    a site that joins a run, was not seen by its passes either."""
    assert digests(rounded(), None) == digests(nullcontext(), torch.autocast)


def test_a_sharded_layer_has_the_gradients_of_each_micro_batch(mesh: DeviceMesh) -> None:
    """Weights that were rounded in an earlier pass come last in the backward one: the library had dealt the gradients
    by then, and gave these to the micro-batch after it."""
    plain, cut = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    cut.load_state_dict(plain.state_dict())
    (sharded,) = shard_layers([Layer(0, cut)], lambda layer, mesh: fully_shard(layer, mesh=mesh), mesh)
    values = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))
    found: list[list[torch.Tensor]] = []
    for layer in (Layer(0, plain), sharded):
        layer.train_with(make_optimizer)
        with rounded():
            gradients = []
            for value in values:
                entered = value.clone().requires_grad_()
                left = layer.run(entered)
                gradients += [
                    each for each in layer.gradients(entered, left, torch.ones_like(left))[1] if each is not None
                ]
        found.append(gradients)
    assert len(found[1]) == 6 and all(map(torch.equal, *found))
