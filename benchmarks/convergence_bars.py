"""What encodings and rare rounds cost in loss, over five seeds: is the difference to fp32 in every step more than
noise?

The sites and the small GPT of `convergence`, the daemons' arithmetic of `encodings` on a star, two sites, one process.
A seed is another model and other batches. Three beginnings: `fresh`, from nothing; `trained`, from a model that
`every_step` has trained before for as many steps, as DiLoCo's own experiments begin (Douillard et al., 2023); and
`long`, from nothing for five times as many steps. DiLoCo with the first rounds as plain means, which is the default,
and with its momentum from the first round on (`at_once`). The rate is the same everywhere, tuned for none.

Bars: bf16 and int8 with feedback within noise of fp32, which is here: the mean over the seeds of the loss over fp32's
of the same seed differs from 1 by at most twice its standard error, or by less than fp32's losses spread over the
seeds (standard deviation over mean). DiLoCo with H = 50: at least 40 times fewer bytes, loss within 2 %.

The long form takes hours: with `--resume FILE` it may be stopped, and goes on behind its last finished training.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

from benchmarks import convergence
from benchmarks.encodings import EncodedSites
from benchmarks.kept_trainings import KeptTrainings
from benchmarks.measure import PROGRESS, Figures, spread
from chaos.sync import DiLoCo, EveryStep, SyncMode
from chaos_protocols.wire.encodings import FP32

SITES, SEEDS, SEEDS_SHORT = 2, 5, 2
STEPS, STEPS_SHORT = 400, 50
SIZE = {"width": 48, "blocks": 2, "length": 32}
REFERENCE = "every_step_fp32"
BEGINNINGS = ("fresh", "trained", "long")
LONGER = 5
MODES: Mapping[str, tuple[SyncMode, str, tuple[str, ...]]] = {
    REFERENCE: (EveryStep(), FP32, BEGINNINGS),
    "every_step_bf16": (EveryStep(), "bf16", ("fresh",)),
    "every_step_int8": (EveryStep(), "int8", ("fresh",)),
    "diloco_50_fp32": (DiLoCo(every=50), FP32, BEGINNINGS),
    "diloco_50_at_once_fp32": (DiLoCo(every=50, warmup_rounds=0), FP32, BEGINNINGS),
    "diloco_50_int8": (DiLoCo(every=50), "int8", ("trained", "long")),
}
"""Each with its encoding, and from which beginnings it is tried."""

FEWER_BYTES_MIN, LOSS_OVER_MAX = 40, 1.02
TRAINED_SEEDS = 1000
"""Added to a seed after the training before: its batches are others."""


def run(*, short: bool, seed: int, resume: Path | None = None) -> Figures:
    """short: 50 steps, two seeds: too little for the bars, enough to see that it runs. resume: a file that keeps each
    finished training; those that it has already are not done again."""
    import torch

    torch.set_num_threads(1)
    steps = STEPS_SHORT if short else STEPS
    kept = KeptTrainings(resume, {"benchmark": "convergence_bars", "sites": SITES, "steps": steps, **SIZE})
    figures: Figures = {"sites": SITES, "steps": steps}
    losses: dict[str, dict[str, list[float]]] = {begin: {} for begin in BEGINNINGS}
    carried: dict[str, int] = {}
    for number in range(seed, seed + (SEEDS_SHORT if short else SEEDS)):
        of_seed = _Seed(convergence._example(), number, steps)
        for begin in losses:
            for name, (_, _, tried) in MODES.items():
                if begin not in tried:
                    continue
                PROGRESS.at = f"{name}, {begin}, with seed {number}"
                gave = kept.get((number, begin, name))
                if gave is None:
                    gave = of_seed.train(begin, name)
                    kept.keep((number, begin, name), gave)
                losses[begin].setdefault(name, []).append(gave["loss"])
                carried[f"{begin}_{name}"] = int(gave["bytes"])
                print(f"seed {number}, {begin}, {name}: {gave['loss']:.4f}", flush=True)
    for begin, found in losses.items():
        for name, of_seeds in found.items():
            figures[f"{begin}_{name}_loss"] = spread([round(loss, 4) for loss in of_seeds])
            if name != REFERENCE:
                figures |= _against(f"{begin}_{name}", of_seeds, found[REFERENCE])
                fewer = round(carried[f"{begin}_{REFERENCE}"] / carried[f"{begin}_{name}"], 2)
                figures[f"{begin}_{name}_fewer_bytes"] = fewer
                figures[f"{begin}_{name}_fewer_by_{FEWER_BYTES_MIN}"] = fewer >= FEWER_BYTES_MIN
    return figures


class _Seed:
    """The trainings of one seed, in any order: a model that others begin from is trained where it is not there yet."""

    def __init__(self, text: ModuleType, number: int, steps: int) -> None:
        self._text, self._number, self._steps = text, number, steps
        self._trained: Any = None

    def train(self, begin: str, name: str) -> Mapping[str, float]:
        """Held-out loss, and the bytes that a site has given."""
        source, drawn = self._text, self._number
        if begin == "trained":
            if self._trained is None:
                self.train("fresh", REFERENCE)
            source, drawn = _begun_with(self._text, self._trained), TRAINED_SEEDS + self._number
        mode, encoding, _ = MODES[name]
        sites = _sites(source, mode, encoding, drawn)
        sites.train(LONGER * self._steps if begin == "long" else self._steps)
        if name == REFERENCE and begin == "fresh":
            self._trained = sites._models[0]
        return {"loss": sites.loss(), "bytes": sites.bytes_given}


def _sites(text: Any, mode: SyncMode, encoding: str, seed: int) -> convergence._Sites:
    if encoding == FP32:
        return convergence._Sites(text, mode, SITES, SIZE, seed)
    return EncodedSites(encoding, True, text, mode, SITES, SIZE, seed)


def _begun_with(text: ModuleType, model: Any) -> ModuleType:
    """The example, whose new models are copies of this one."""
    begun = SimpleNamespace(new_model=lambda seed, **size: copy.deepcopy(model), Text=text.Text, loss_of=text.loss_of)
    return cast(ModuleType, begun)


def _against(label: str, found: Sequence[float], reference: Sequence[float]) -> Figures:
    """Loss over that of fp32 in every step with the same seed: the mean over the seeds, its standard error, and how far
    fp32 itself spreads over them."""
    ratios = [loss / base for loss, base in zip(found, reference, strict=True)]
    mean, error = statistics.fmean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    noise = statistics.stdev(reference) / statistics.fmean(reference)
    return {
        f"{label}_over_fp32": round(mean, 4),
        f"{label}_over_fp32_standard_error": round(error, 4),
        f"{label}_noise_of_fp32": round(noise, 4),
        f"{label}_within_noise": abs(mean - 1) <= max(2 * error, noise),
        f"{label}_within_2_percent": mean <= LOSS_OVER_MAX,
    }
