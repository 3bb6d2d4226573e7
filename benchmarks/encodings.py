"""What an encoding costs and saves: speed of the codecs, error of a round, and the loss of a small GPT beside fp32.

Speed: GB of float32 that one core encodes with feedback, and decodes, a second, in pieces of 512 KiB, as chunks are.
Error: of one mean along a chain of 8 sites with heavy-tailed numbers, and of the sum of 30 such rounds with and without
feedback (norms, over what is exact). Loss: the sites of `convergence`, in one process, whose rounds go through the
daemons' own arithmetic (`chaosd.bulk.reduce.coded`) on a star: the first site is the root, the others its leaves. The
same model, text, steps and seeds in all encodings; links, time and failures are not in it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks import convergence
from benchmarks.measure import Figures, spread
from chaos.frameworks.base import Bytes
from chaos.sync import DiLoCo, EveryStep, SyncMode
from chaos_protocols.rounds.reduce import chunk_bytes_for, cut
from chaos_protocols.wire.encodings import FORMS, FP32
from chaos_protocols.wire.state_spec import contribution_spec
from chaos_protocols.wire.worker import ContributionSpec
from chaosd.bulk.reduce.coded import CodedVector
from chaosd.bulk.vector import divide, weighted_sum

PIECE = (512 << 10) // 4
LOSSY = tuple(name for name in FORMS if name != FP32)
CHAIN_SITES, CHAIN_ROUNDS, CHAIN_NUMBERS = 8, 30, 1 << 16
Floats = npt.NDArray[np.float32]


def run(*, short: bool, seed: int) -> Figures:
    """short: 2 sites, 400 steps, one seed; else 4 sites, 2,000 steps, 5 seeds."""
    figures: Figures = {}
    for name in LOSSY:
        figures |= _speed(name)
        figures |= _errors(name, seed)
    return figures | _losses(short, seed)


# ---- codecs


def coded_vector(name: str, spec: ContributionSpec, *, feedback: bool = True) -> CodedVector:
    """Of one site."""
    spec = msgspec.structs.replace(spec, encoding=name)
    return CodedVector(spec, cut(spec, chunk_bytes_for(spec.size_bytes)), feedback=feedback)


def _speed(name: str) -> Figures:
    spec = contribution_spec(0, 64 * PIECE)  # as large a vector as has chunks of that size
    coded = coded_vector(name, spec)
    place, values = coded.places[0], np.random.default_rng(0).standard_normal(PIECE).astype(np.float32)
    data, piece = np.zeros(place.size_bytes, np.uint8), values.copy()
    coded.begin(1)
    encoding, decoding = [], []
    for _ in range(15):
        began_s = time.perf_counter()
        for _ in range(8):
            np.copyto(piece, values)
            coded.encode(0, piece, data)
        middle_s = time.perf_counter()
        for _ in range(8):
            coded.decoded(0, data, 2.0)
        encoding.append(8 * values.nbytes / (middle_s - began_s) / 1e9)
        decoding.append(8 * values.nbytes / (time.perf_counter() - middle_s) / 1e9)
    return {f"{name}_encode_gb_per_s": spread(encoding), f"{name}_decode_gb_per_s": spread(decoding)}


# ---- errors


def _errors(name: str, seed: int) -> Figures:
    errors = {feedback: _chain(name, seed, feedback=feedback) for feedback in (True, False)}
    return {
        f"{name}_error_one_round": errors[True][0],
        f"{name}_error_{CHAIN_ROUNDS}_rounds": errors[True][1],
        f"{name}_error_{CHAIN_ROUNDS}_rounds_without_feedback": errors[False][1],
    }


def _chain(name: str, seed: int, *, feedback: bool) -> tuple[float, float]:
    """Of the first round, and of the sum of all."""
    rng = np.random.default_rng(seed)
    spec = contribution_spec(0, CHAIN_NUMBERS)
    sites = [coded_vector(name, spec, feedback=feedback) for _ in range(CHAIN_SITES)]
    common = rng.standard_normal(CHAIN_NUMBERS)
    first, total, wanted = 0.0, np.zeros(CHAIN_NUMBERS), np.zeros(CHAIN_NUMBERS)
    for number in range(1, CHAIN_ROUNDS + 1):
        parts = [(common + rng.standard_t(3, CHAIN_NUMBERS)).astype(np.float32) for _ in range(CHAIN_SITES)]
        found = average(sites, number, parts, [1.0] * CHAIN_SITES, chain=True)
        mean = np.asarray(np.mean(parts, axis=0, dtype=np.float64))
        first = first or _distance(found, mean)
        total += found
        wanted += mean
    return first, _distance(total, wanted)


def _distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def average(
    sites: Sequence[CodedVector], number: int, parts: Sequence[Floats], weights: Sequence[float], *, chain: bool
) -> Floats:
    """Round `number` over float32 numbers; the first site is the root, the others its leaves, or a chain below it."""
    for site in sites:
        site.begin(number)
    result = np.empty_like(parts[0])
    start = 0
    for index, place in enumerate(sites[0].places):
        stop = start + _numbers(sites[0], index)
        below: list[tuple[Bytes, float]] = []
        for at in range(len(sites) - 1, -1, -1):
            site, children = sites[at], below if chain or at == 0 else []
            summed = np.empty(stop - start, np.float32)
            sums = (site.decoded(index, data, weight) for data, weight in children)
            weighted_sum(summed, parts[at][start:stop], weights[at], sums)
            weight = weights[at] + sum(one for _, one in children)
            divide(summed, summed, weight)
            data = np.zeros(place.size_bytes, np.uint8)
            site.encode(index, summed, data)
            below = [(data, weight)] if chain else [*below, (data, weight)]
        result[start:stop] = sites[0].decoded(index, data, 1.0)
        start = stop
    for site in sites:
        site.held(number)
    return result


def _numbers(coded: CodedVector, index: int) -> int:
    return coded.chunks[index].size_bytes // 4


# ---- losses


class EncodedSites(convergence._Sites):
    """The sites of `convergence`, whose float32 numbers travel in an encoding."""

    def __init__(self, name: str, feedback: bool, *arguments: Any) -> None:
        super().__init__(*arguments)
        spec = self._sessions[0].contribution
        self._wide_bytes = sum(8 * segment.count for segment in spec.segments if segment.dtype == "float64")
        narrow = contribution_spec(0, (spec.size_bytes - self._wide_bytes) // 4, parts=spec.parts)
        self._coded = [coded_vector(name, narrow, feedback=feedback) for _ in self._sessions]

    def _average(self) -> None:
        self._round += 1
        size, wide = self._sessions[0].contribution.size_bytes, self._wide_bytes
        parts: list[Bytes] = [np.zeros(size, dtype=np.uint8) for _ in self._sessions]
        weights = [session.contribute(part, self._round) for session, part in zip(self._sessions, parts, strict=True)]
        result: Bytes = np.zeros(size, dtype=np.uint8)
        notes = sum(part[:wide].view(np.float64) * weight for part, weight in zip(parts, weights, strict=True))
        result[:wide].view(np.float64)[:] = notes / sum(weights)
        narrow = [part[wide:].view(np.float32) for part in parts]
        result[wide:].view(np.float32)[:] = average(self._coded, self._round, narrow, weights, chain=False)
        self._result = result
        self.bytes_given += wide + sum(place.size_bytes for place in self._coded[0].places)


def _losses(short: bool, seed: int) -> Figures:
    import torch

    torch.set_num_threads(1)
    text = convergence._example()
    sites, steps, seeds = (2, 400, 1) if short else (4, 2000, 5)
    size = {"width": 48, "blocks": 2, "length": 32} if short else {"width": 96, "blocks": 3, "length": 64}
    every: tuple[str, SyncMode] = ("every_step", EveryStep())
    seldom: tuple[str, SyncMode] = ("diloco_50", DiLoCo(every=50, warmup_rounds=0))
    streaming: tuple[str, SyncMode] = ("streaming_50", DiLoCo(every=50, fragments=5, delay=8, warmup_rounds=0))
    cases: list[tuple[tuple[str, SyncMode], str, bool]] = [
        *((every, name, True) for name in ("bf16", "int8", "int4")),
        *((every, name, False) for name in ("int8", "int4")),
        *((seldom, name, True) for name in ("int8", "int4")),
        (streaming, "int8", True),
    ]
    losses: dict[str, list[float]] = {}
    carried: dict[str, int] = {}
    equal = True
    for number in range(seeds):
        for name, mode in (every, seldom):
            ring = convergence._Sites(text, mode, sites, size, seed + number)
            _train(ring, f"{name}_{FP32}", steps, losses, carried)
        for (name, mode), encoding, feedback in cases:
            label = f"{name}_{encoding}" + ("" if feedback else "_without_feedback")
            encoded = EncodedSites(encoding, feedback, text, mode, sites, size, seed + number)
            _train(encoded, label, steps, losses, carried)
            equal = equal and encoded.all_equal()
    return _loss_figures(losses, carried) | {"sites": sites, "steps": steps, "states_equal": equal}


def _train(
    ring: convergence._Sites, label: str, steps: int, losses: dict[str, list[float]], carried: dict[str, int]
) -> None:
    ring.train(steps)
    losses.setdefault(label, []).append(round(ring.loss(), 4))
    carried[label] = ring.bytes_given


def _loss_figures(losses: Mapping[str, list[float]], carried: Mapping[str, int]) -> Figures:
    figures: Figures = {}
    for label, found in losses.items():
        exact = "every_step_fp32" if label.startswith("every_step") else f"diloco_50_{FP32}"
        ratios = [one / other for one, other in zip(found, losses[exact], strict=True)]
        figures[f"{label}_loss"] = spread(found)
        figures[f"{label}_loss_over_fp32"] = spread([round(ratio, 4) for ratio in ratios])
        figures[f"{label}_fewer_bytes_than_every_step_fp32"] = round(carried["every_step_fp32"] / carried[label], 2)
    return figures
