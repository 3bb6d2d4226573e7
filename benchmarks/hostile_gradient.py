"""What a hostile member's gradients do to a model of real patients, without bounds, with a norm, with a radius.

The four hospitals of `examples/heart` and a fifth member, which sees their gradients, train the example's model in one
process; every part goes through the daemons' own arithmetic (`chaosd.bulk.reduce.bounds`, `centre`), each site with the
same weight. The liar gives the opposite of the others' mean a million times as long (`opposite`), or a long vector in
one direction that never changes (`steady`, the small steady lie, once it is bounded); `none`: it is not there. Bounds
as an operator finds them in a healthy run: `norm` is above 99 % of the honest gradients, `norm_tight` above half of
them; `radius` is half, `radius_tight` a tenth of the usual distance from the round before, under the former `norm`.
Modes: the gradient of every step, or the difference after 10 local steps.

Told for each: the area under the ROC curve on the patients of all hospitals that nobody trained on, and how far the
liar has moved the model: distance from what the same bounds give without it, over the length of that training.
Links, trees, time and what a hostile daemon sends past its own bounds are not in it (`tests/integration`).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measure import Figures, spread
from chaos_protocols.rounds.reduce import chunk_bytes_for, cut
from chaos_protocols.wire.bounds import Bounds
from chaos_protocols.wire.state_spec import contribution_spec
from chaosd.bulk.reduce.bounds import RoundBounds
from chaosd.bulk.reduce.centre import Centre

HEART = Path(__file__).resolve().parents[1] / "examples" / "heart"
RATE, LOCAL_STEPS = 0.1, 10
Numbers = npt.NDArray[np.float64]
Lie = Callable[[Numbers], Numbers]

LIES: dict[str, Lie | None] = {
    "none": None,
    "opposite": lambda honest: -1e6 * honest,
    "steady": lambda honest: np.full_like(honest, 1e6),
}
"""By name: what the liar makes of the others' mean."""


class Hospitals:
    """The honest sites, and what they give to a round."""

    def __init__(self, seed: int) -> None:
        sys.path.insert(0, str(HEART))
        try:
            self._data, self._model = importlib.import_module("heart_data"), importlib.import_module("heart_model")
        finally:
            sys.path.remove(str(HEART))
        self._seed = seed
        self.names: tuple[str, ...] = self._data.HOSPITALS
        self._patients: dict[str, Any] = {name: self._data.load(name) for name in self.names}
        self._net = self._model.new_model(seed)
        self.start = torch.nn.utils.parameters_to_vector(self._net.parameters()).detach().numpy().copy()

    def given(self, hospital: str, parameters: Numbers, number: int, steps: int) -> Numbers:
        """The gradient of a step (`steps` 1), or the difference that so many make."""
        if steps == 1:
            return self._gradient(hospital, parameters, number)
        at = parameters.copy()
        for step in range(steps):
            at -= RATE * self._gradient(hospital, at, number * steps + step)
        return parameters - at

    def area(self, parameters: Numbers) -> float:
        """Under the ROC curve, on the test patients of each hospital: the mean."""
        self._put(parameters)
        tests = [self._patients[name][1] for name in self.names]
        found = [self._model.area_under_roc(self._model.scores_of(self._net, one), one.sick) for one in tests]
        return float(np.mean(found))

    def _gradient(self, hospital: str, parameters: Numbers, number: int) -> Numbers:
        self._put(parameters)
        self._net.zero_grad()
        patients = self._patients[hospital][0]
        batch = self._model.batch_of(patients, hospital=hospital, seed=self._seed, round=number)
        self._model.loss_of(self._net, *batch).backward()
        parts = [parameter.grad for parameter in self._net.parameters()]
        found: Numbers = torch.cat([part.reshape(-1) for part in parts if part is not None]).numpy()
        return found

    def _put(self, parameters: Numbers) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(parameters), self._net.parameters())


def run(*, short: bool, seed: int) -> Figures:
    """short: 2 seeds; else 10. 300 rounds of one step, or 60 of ten."""
    torch.set_num_threads(1)
    figures: Figures = {}
    for mode, steps, rounds in (("every_step", 1, 300), ("local_steps", LOCAL_STEPS, 60)):
        areas: dict[str, list[float]] = {}
        moved: dict[str, list[float]] = {}
        for one in range(seed, seed + (2 if short else 10)):
            hospitals = Hospitals(one)
            _, norms, steps_away = _train(hospitals, Bounds(), None, steps, rounds)
            for name, bounds in _bounds(norms, steps_away).items():
                without: Numbers | None = None
                for lie, makes in LIES.items():
                    end, _, _ = _train(hospitals, bounds, makes, steps, rounds)
                    without = end if without is None else without
                    length = float(np.linalg.norm(without - hospitals.start))
                    key = f"{mode}_{lie}_{name}"
                    areas.setdefault(key, []).append(hospitals.area(end))
                    moved.setdefault(key, []).append(min(float(np.linalg.norm(end - without)) / length, 1e6))
        figures |= {f"{key}_area": spread(values) for key, values in areas.items()}
        figures |= {f"{key}_moved": spread(values) for key, values in moved.items() if "_none_" not in key}
    return figures


def _bounds(norms: Sequence[float], away: Sequence[float]) -> dict[str, Bounds]:
    """As an operator finds them in a healthy run: lengths of its gradients, and distances from the round before."""
    longest, usual, apart = float(np.quantile(norms, 0.99)), float(np.median(norms)), float(np.median(away))
    return {
        "unbounded": Bounds(),
        "norm": Bounds(norm_max=longest),
        "norm_tight": Bounds(norm_max=usual),
        "radius": Bounds(norm_max=longest, clip_radius=apart / 2),
        "radius_tight": Bounds(norm_max=longest, clip_radius=apart / 10),
    }


def _train(
    hospitals: Hospitals, bounds: Bounds, lie: Lie | None, steps: int, rounds: int
) -> tuple[Numbers, list[float], list[float]]:
    """Parameters at the end; of the honest parts the norms and the distances from the last result."""
    parameters, last = hospitals.start.copy(), np.zeros_like(hospitals.start)
    norms: list[float] = []
    away: list[float] = []
    for number in range(1, rounds + 1):
        parts = [hospitals.given(name, parameters, number, steps) for name in hospitals.names]
        norms += [float(np.linalg.norm(part)) for part in parts]
        away += [float(np.linalg.norm(part - last)) for part in parts]
        if lie is not None:
            parts.append(lie(np.mean(parts, axis=0)))
        last = np.mean([_as_given(part, last, bounds, first=number == 1) for part in parts], axis=0)
        parameters = parameters - (RATE if steps == 1 else 1.0) * last
    return parameters, norms, away


def _as_given(part: Numbers, last: Numbers, bounds: Bounds, *, first: bool) -> Numbers:
    """What a daemon gives of this part."""
    spec = contribution_spec(len(part), 0)
    chunks = cut(spec, chunk_bytes_for(spec.size_bytes))
    centre = None
    if bounds.clip_radius:
        centre = Centre(bounds.clip_radius, spec, vector=None if first else last.view(np.uint8))
    kept, own = RoundBounds(bounds, spec, centre), part.view(np.uint8)
    kept.look_at(own, chunks)
    clipped = [kept.clip(own[chunk.start : chunk.stop], chunk) for chunk in chunks]
    return np.concatenate(clipped).astype(np.float64)
