"""What a mode costs in bytes and in loss: the same small GPT on the same text, averaged in every step, or seldom.

The sites of `examples/text` in one process, on the sessions of the SDK: each has pages of its own, its own AdamW and
its own mode session, and a round is the weighted mean of what they give, as the daemons take it. So bytes and
arithmetic are those of a run; links, time and failures are not in it. Compared at the same number of steps of each
site: `every_step` has made one update where the others have made one at each site. The learning rate is the same in all
modes, tuned for none; DiLoCo has its momentum from the first round on, since a short run would be over in its warm-up
(`convergence_bars` has both); `alone` is one site on its own pages. The loss is that of pages that nobody trains on,
in nats a byte, beside the same for a model that knows how often each byte comes, and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.measure import PROGRESS, Figures, spread
from chaos.frameworks import framework_of
from chaos.frameworks.base import Bytes
from chaos.state import State
from chaos.sync import DiLoCo, Due, EveryStep, LocalSGD, LocalStepsSession, Part, SyncMode, SyncSession

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "text" / "text_model.py"
BATCH, WARM_UP_STEPS, TEST_PIECES = 8, 40, 256


def run(*, short: bool, seed: int) -> Figures:
    """short: 2 sites, 400 steps, 0.1 M parameters, one seed; else 4 sites, 2,000 steps, 0.4 M parameters, 3 seeds."""
    import torch

    torch.set_num_threads(1)
    text = _example()
    sites, steps = (2, 400) if short else (4, 2000)
    size = {"width": 48, "blocks": 2, "length": 32} if short else {"width": 96, "blocks": 3, "length": 64}
    often, seldom = (10, 50)
    modes: Mapping[str, tuple[SyncMode | None, int]] = {
        "alone": (None, 1),
        "every_step": (EveryStep(), sites),
        f"local_sgd_{often}": (LocalSGD(every=often), sites),
        f"diloco_{often}": (DiLoCo(every=often, warmup_rounds=0), sites),
        f"local_sgd_{seldom}": (LocalSGD(every=seldom), sites),
        f"diloco_{seldom}": (DiLoCo(every=seldom, warmup_rounds=0), sites),
        f"fragments_{seldom}": (DiLoCo(every=seldom, fragments=5, warmup_rounds=0), sites),
        f"streaming_{seldom}": (DiLoCo(every=seldom, fragments=5, delay=8, warmup_rounds=0), sites),
    }
    losses: dict[str, list[float]] = {name: [] for name in modes}
    carried: dict[str, int] = {}
    equal = True
    for number in range(1 if short else 3):
        for name, (mode, count) in modes.items():
            PROGRESS.at = f"{name} with seed {seed + number}"
            ring = _Sites(text, mode or EveryStep(), count, size, seed + number)
            ring.train(steps)
            losses[name].append(ring.loss())
            carried[name] = ring.bytes_given if mode is not None else 0
            equal = equal and ring.all_equal()
    return _figures(losses, carried, equal, steps, sites, _by_frequency(text, size["length"]))


def _figures(
    losses: Mapping[str, list[float]], carried: Mapping[str, int], equal: bool, steps: int, sites: int, frequency: float
) -> Figures:
    figures: Figures = {"sites": sites, "steps": steps, "states_equal": equal, "loss_by_frequency": round(frequency, 4)}
    reference = losses["every_step"]
    for name, found in losses.items():
        figures[f"{name}_loss"] = spread([round(loss, 4) for loss in found])
        if name not in ("alone", "every_step"):
            ratios = [loss / base for loss, base in zip(found, reference, strict=True)]
            figures[f"{name}_loss_over_every_step"] = spread([round(ratio, 4) for ratio in ratios])
            figures[f"{name}_fewer_bytes"] = round(carried["every_step"] / carried[name], 1)
        figures[f"{name}_bytes_a_step"] = round(carried[name] / steps)
    return figures


class _Sites:
    """So many sites of one run, in step."""

    def __init__(self, text: ModuleType, mode: SyncMode, sites: int, size: Mapping[str, int], seed: int) -> None:
        import torch

        self._text = text
        self._models = [text.new_model(seed, **size) for _ in range(sites)]
        self._pages = [text.Text(site=site, sites=max(sites, 2), length=size["length"]) for site in range(sites)]
        self._generators = [torch.Generator().manual_seed(1000 * seed + site) for site in range(sites)]
        self._sessions: list[SyncSession] = []
        for model in self._models:
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=WARM_UP_STEPS)
            framework = framework_of(
                model, optimizer, schedule, arrays=None, apply=None, gradients=None, set_to_none=True
            )
            self._sessions.append(mode.start(framework))
        self._round = 0
        self._result: Bytes = np.zeros(0, dtype=np.uint8)
        """Of the last round; with a delay it is applied when it must be there, at the latest."""
        self.bytes_given = 0
        """By one site to the rounds so far; as many come back."""

    def train(self, steps: int) -> None:
        """So many steps at each site, and the rounds that fall due."""
        import torch

        for _ in range(steps):
            due = Due.NOTHING
            for model, pages, generator, session in zip(
                self._models, self._pages, self._generators, self._sessions, strict=True
            ):
                self._text.loss_of(model, *pages.batch(BATCH, generator)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                due = session.stepped(Part(samples=float(BATCH)))
            if due in (Due.ROUND, Due.GIVE):
                self._average()
            if due in (Due.ROUND, Due.RESULT):
                for session in self._sessions:
                    session.apply(self._result, self._round)

    def _average(self) -> None:
        """A round, up to its result."""
        self._round += 1
        spec = self._sessions[0].contribution
        parts: list[Bytes] = [np.zeros(spec.size_bytes, dtype=np.uint8) for _ in self._sessions]
        weights = [session.contribute(part, self._round) for session, part in zip(self._sessions, parts, strict=True)]
        result: Bytes = np.zeros(spec.size_bytes, dtype=np.uint8)
        start = 0
        for segment in spec.segments:
            stop = start + segment.count * np.dtype(segment.dtype).itemsize
            mean = result[start:stop].view(segment.dtype)
            for part, weight in zip(parts, weights, strict=True):
                mean += part[start:stop].view(segment.dtype) * mean.dtype.type(weight)
            mean /= mean.dtype.type(sum(weights))
            start = stop
        self._result = result
        self.bytes_given += spec.size_bytes

    def loss(self) -> float:
        """Of the common model, on the pages that nobody trains on."""
        import torch

        session = self._sessions[0]
        common = session.common_model() if isinstance(session, LocalStepsSession) else contextlib.nullcontext()
        with torch.no_grad(), common:
            found: Any = self._text.loss_of(self._models[0], *self._pages[0].test(TEST_PIECES))
        return float(found)

    def all_equal(self) -> bool:
        """Whether all sites have the same shared state, bit for bit."""
        return len({State(session.items).digest() for session in self._sessions}) == 1


def _by_frequency(text: ModuleType, length: int) -> float:
    """Loss of a model that knows how often each byte comes in the test, and nothing else."""
    wanted = text.Text(site=0, sites=1, length=length).test(TEST_PIECES)[1].flatten().numpy()
    counts = np.bincount(wanted)
    shares = counts[counts > 0] / counts.sum()
    return -math.fsum(float(share) * math.log(share) for share in shares)


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("text_model", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["text_model"] = module
    spec.loader.exec_module(module)
    return module
