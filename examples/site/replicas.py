"""The same small GPT with a training loop of one's own, as it would be written for DistributedDataParallel.

CHAOS_STANDALONE=1 python replicas.py --steps 30
chaosd run --standalone --nproc 4 replicas.py --steps 30

Every worker has a replica. In place of `DistributedDataParallel(model)` stands `coordinator.replicate(model)`, in place
of `DistributedSampler` and `DataLoader` the coordinator's loader, in place of `optimizer.step()` `coordinator.step()`.
"""

from __future__ import annotations

import argparse

import text_model
import torch
import train

from chaos import Coordinator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the order of samples, and of dropout")
    parser.add_argument("--sync", default="every-step", help="or diloco:H, local-sgd:H: a round after every H steps")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sync = train.mode(given.sync)
    with Coordinator() as coordinator:
        device = coordinator.device
        model = text_model.layers(width=64, blocks=6, heads=4, length=64, dropout=0.1).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        model = coordinator.replicate(model)
        coordinator.register(
            model=model,
            optimizer=optimizer,
            on_average=lambda update: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
            sync=sync,
        )
        batches = coordinator.loader(
            text_model.Text(64), global_batch=16, micro_batch=2, seed=given.seed, steps=given.steps
        )
        for inputs, targets in batches:
            before = coordinator.steps
            loss = text_model.loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            coordinator.log(loss=loss.item())
            coordinator.step()
            if coordinator.steps > before and coordinator.speaks:
                print(f"step {coordinator.steps:3d}  loss of its last micro-batch {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
