"""The training script of `python -m tests.tidy.passes`: a torch model whose numbers say what a buffer holds.

Every parameter is `STATE` and stays so (a learning rate of 0), every gradient is the number of the site: a buffer full
of one number is known by it, whatever process it is met in, and a copy of the state is never taken for a gradient.
"""

from __future__ import annotations

import sys
import time

import torch
from tests.tidy.passes_watch import STATE

from chaos import Coordinator

LAYERS, WIDTH = 4, 128
"""256 KiB of gradients: several chunks in a round, and each of them far larger than any message."""

PACE_S = 0.25
"""Between rounds, so that what is watched keeps up."""


def main() -> None:
    socket, gradient = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, STATE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Coordinator(socket=socket, connect_s=60.0) as coordinator:
        coordinator.register(model=model, optimizer=optimizer)
        going_on = True
        while going_on:
            torch.stack([gradient * parameter.sum() for parameter in model.parameters()]).sum().backward()
            going_on = coordinator.step(samples=1)
            time.sleep(PACE_S)


if __name__ == "__main__":
    main()
