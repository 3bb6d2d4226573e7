"""Imported by the interpreter from which scripts with torch are forked: an optimizer's first step takes two seconds,
too, and starts no thread."""

from __future__ import annotations

import torch

import chaos.coordinator
import chaos.worker_group.model

assert chaos.coordinator and chaos.worker_group.model
torch.set_num_threads(1)
_parameter = torch.nn.Parameter(torch.zeros(2))
_parameter.grad = torch.zeros(2)
_optimizer = torch.optim.AdamW([_parameter])
_optimizer.step()
_optimizer.zero_grad()
