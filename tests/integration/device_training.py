"""The training of `site_training` on the fake device: what `test_worker_devices` runs.

MISTAKE: one that is planted in the worker's handling of its device, by name.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from tests.integration import site_training
from tests.rigs import fake_device

from chaos.worker_group.exchange.devices import Accelerator


def make_model(dropout: float = 0.1) -> torch.nn.Sequential:
    model: torch.nn.Sequential = MADE(dropout).to("npu:0")
    return model


def leaves_without_waiting(self: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes are handed to a socket before they are there."""
    if tensor.device.type == "cpu":
        return tensor
    host = self.landing(tensor)
    self._leaving.wait_stream(self._module.current_stream(self.name))
    with self._module.stream(self._leaving):
        host.copy_(tensor, non_blocking=True)
    KEPT.append(host)
    return host


def leaves_without_order(self: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The copy does not wait for what computes the tensor."""
    if tensor.device.type == "cpu":
        return tensor
    host = self.landing(tensor)
    with self._module.stream(self._leaving):
        host.copy_(tensor, non_blocking=True)
    self._leaving.synchronize()
    return host


def arrives_without_order(self: Any, host: torch.Tensor, tensor: torch.Tensor) -> None:
    """What is computed next does not wait for the copy."""
    if host is not tensor:
        self._arriving.wait_stream(self._module.current_stream(self.name))
        with self._module.stream(self._arriving):
            tensor.copy_(host, non_blocking=True)
        KEPT.append(host)


def arrives_and_forgets(self: Any, host: torch.Tensor, tensor: torch.Tensor) -> None:
    """The memory of the message is used again before the copy has read it."""
    if host is not tensor:
        ARRIVES(self, host, tensor)
        host.fill_(1)


def seeds_the_host_alone(self: Any, seed: int) -> None:
    torch.default_generator.manual_seed(seed)


MADE, ARRIVES = site_training.make_model, Accelerator.arrive
KEPT: list[torch.Tensor] = []
MISTAKES = {
    "no wait": ("leave", leaves_without_waiting),
    "no order out": ("leave", leaves_without_order),
    "no order in": ("arrive", arrives_without_order),
    "reused": ("arrive", arrives_and_forgets),
    "generator": ("seed", seeds_the_host_alone),
    "device tensor": ("leave", lambda self, tensor: tensor),
}

if __name__ == "__main__":
    fake_device.install()
    site_training.make_model = make_model
    if "MISTAKE" in os.environ:
        setattr(Accelerator, *MISTAKES[os.environ["MISTAKE"]])
    site_training.main()
