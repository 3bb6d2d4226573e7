"""What a step costs by `parallelize` and `replicate` on the device that there is, over a plain loop of the same model.

One process trains a GPT (`examples/site/text_model.py`) in three ways that take turns, in float32 and in bfloat16; the
device is an accelerator if this machine has one, else the CPU with a tiny model. Then: what the memory that a site
shares with its daemon gives and takes, as such and pinned.
"""

from __future__ import annotations

import importlib
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.measure import Figures, alternating, ratios, spread
from chaos import Coordinator
from chaos.pinning import pin
from chaos.worker_group.exchange.devices import Device, device_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "site"))
text_model = importlib.import_module("text_model")

MICRO_BATCHES = 4
TURN_STEPS = 3
COPIED_BYTES = 500_000_000


Steps: TypeAlias = Generator[None, None, None]
"""A training that makes a step with each `next`."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of the model, and of a step."""

    width: int
    blocks: int
    heads: int
    length: int
    micro_batch: int


ON_DEVICE = Size(1024, 12, 16, 512, 4)
"""152 million parameters."""
ON_CPU = Size(64, 4, 4, 64, 2)


def _model(size: Size, dtype: torch.dtype, device: str) -> torch.nn.Sequential:
    made: torch.nn.Sequential = text_model.layers(size.width, size.blocks, size.heads, size.length, 0.0)
    return made.to(device=device, dtype=dtype)


def _numbers(size: Size, steps: int) -> dict[str, Any]:
    return {
        "global_batch": MICRO_BATCHES * size.micro_batch,
        "micro_batch": size.micro_batch,
        "seed": 1,
        "steps": steps,
    }


def _optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)


def _plain(size: Size, dtype: torch.dtype, device: str, steps: int) -> Steps:
    """The loop that somebody writes who has one process and nothing else: one `next` a step."""
    model = _model(size, dtype, device)
    optimizer = _optimizer(model.parameters())
    data = text_model.Text(size.length)
    for step in range(steps):
        for g in range(MICRO_BATCHES):
            first = (step * MICRO_BATCHES + g) * size.micro_batch
            pairs = [data[index % len(data)] for index in range(first, first + size.micro_batch)]
            value, target = (torch.stack(list(each)).to(device) for each in zip(*pairs, strict=True))
            (text_model.loss(model(value), target) / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def _layers(size: Size, dtype: torch.dtype, device: str, steps: int) -> Steps:
    with Coordinator(standalone=True) as coordinator:
        parallel = coordinator.parallelize(_model(size, dtype, device), loss=text_model.loss)
        coordinator.register(model=parallel, optimizer=_optimizer)
        for batch in coordinator.loader(text_model.Text(size.length), **_numbers(size, steps)):
            parallel.step(batch)
            yield


def _replicas(size: Size, dtype: torch.dtype, device: str, steps: int) -> Steps:
    with Coordinator(standalone=True) as coordinator:
        model = _model(size, dtype, device)
        coordinator.replicate(model)
        coordinator.register(model=model, optimizer=_optimizer(model.parameters()))
        batches = coordinator.loader(text_model.Text(size.length), **_numbers(size, steps))
        for number, (value, target) in enumerate(batches):
            text_model.loss(model(value.to(device)), target.to(device)).backward()
            coordinator.step()
            if number % MICRO_BATCHES == MICRO_BATCHES - 1:
                yield


WAYS: dict[str, Callable[..., Steps]] = {
    "plain": _plain,
    "parallelize": _layers,
    "replicate": _replicas,
}


def _in_turn(size: Size, dtype: torch.dtype, device: Device, turns: int) -> dict[str, list[float]]:
    """Seconds of a step, a median for each turn of each way, after one that does not count."""
    running = {way: make(size, dtype, str(device.name), (turns + 1) * TURN_STEPS + 1) for way, make in WAYS.items()}

    def step_s(steps: Steps) -> float:
        device.synchronize()
        began_s = time.perf_counter()
        next(steps)
        device.synchronize()
        return time.perf_counter() - began_s

    def turn_s(steps: Steps) -> float:
        return statistics.median(step_s(steps) for _ in range(TURN_STEPS))

    took_s = alternating({way: partial(turn_s, steps) for way, steps in running.items()}, repeats=turns, warm_up=1)
    for steps in running.values():
        steps.close()
    return took_s


def _copies(device: Device) -> Figures:
    """Shared memory to and from the device, in one piece: GB/s, and what pinning takes."""
    memory = mmap.mmap(-1, COPIED_BYTES)
    whole = np.frombuffer(memory, dtype=np.uint8)
    whole[:] = 1
    host = torch.from_numpy(whole).view(torch.float32)
    there = torch.empty_like(host, device=device.name)
    figures: Figures = {}
    for name in ("shared", "pinned"):
        if name == "pinned":
            began_s = time.perf_counter()
            unpin = pin(whole)
            figures["pin_s"] = time.perf_counter() - began_s
        for way, target, source in (("out", host, there), ("in", there, host)):
            rates = []
            for _ in range(6):
                device.synchronize()
                began_s = time.perf_counter()
                target.copy_(source)
                device.synchronize()
                rates.append(COPIED_BYTES / (time.perf_counter() - began_s) / 1e9)
            figures[f"{name}_{way}_gb_per_s"] = spread(rates[1:])
    unpin()
    return figures


def run(*, short: bool, seed: int) -> Figures:
    """`WAY_over_plain_DTYPE`: turn by turn; `seconds_WAY_DTYPE`; the copies, where there is an accelerator."""
    torch.manual_seed(seed)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device_of(torch.nn.Linear(1, 1, device=found))
    size, dtypes = (ON_CPU, [torch.float32]) if found is None else (ON_DEVICE, [torch.float32, torch.bfloat16])
    figures: Figures = {"device": str(device.name)}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        took_s = _in_turn(size, dtype, device, 5 if short else 12)
        for way, each in took_s.items():
            figures[f"seconds_{way}_{name}"] = spread(each)
            if way != "plain":
                figures[f"{way}_over_plain_{name}"] = ratios(each, took_s["plain"])
    return figures if found is None else {**figures, **_copies(device)}
