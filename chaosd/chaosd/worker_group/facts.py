"""What steps really take, fed back to the planner: its first facts are those of one micro-batch on one worker, before
anything ran beside it.

Every worker says with each update how many seconds it computed forward and backward. Against what the plan's stream
would take by the first facts, that is a ratio; the median ratio of a layer's holders is the layer's, and a worker that
is slower or faster than the others by more than `STRAGGLER` is a device of that speed. Waiting and messages are in
neither: so a step that takes longer than expected by these facts too says what they do not know.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chaos_planner.pipelines.facts.site import ModelProfile
from chaos_protocols.streams import BackwardPass, ForwardPass, Share
from chaos_protocols.worker_group.messages import GroupHello

STEPS_KEPT = 20
STEPS_MIN = 5
"""Before anything is said: the first steps of a plan also warm it up."""

DRIFT = 0.1
"""Facts that differ from those told before by less change no plan."""

STRAGGLER = 1.3
"""Of equal devices on one machine one is this much slower now and then: no reason for a plan of unequal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFactors:
    """What the first facts are multiplied with: seconds of each layer, forward and backward; speeds of workers that are
    no device of speed 1."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    speeds: Mapping[int, float] = field(default_factory=dict)

    def applied(self, profile: ModelProfile) -> ModelProfile:
        """The layers of a profile as they were measured."""
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * forward,
                backward_s=layer.backward_s * backward,
                backward_input_s=layer.backward_input_s * backward,
            )
            for layer, forward, backward in zip(profile.layers, self.forward, self.backward, strict=True)
        )
        return replace(profile, layers=layers)

    def differ(self, other: MeasuredFactors) -> bool:
        """By more than `DRIFT`, in anything."""
        mine, others = (*self.forward, *self.backward), (*other.forward, *other.backward)
        if any(abs(one - two) > DRIFT * two for one, two in zip(mine, others, strict=True)):
            return True
        workers = self.speeds.keys() | other.speeds.keys()
        return any(abs(self.speeds.get(w, 1.0) - other.speeds.get(w, 1.0)) > DRIFT for w in workers)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a step of one worker would take by the first facts."""

    layers: range
    forward_s: float
    backward_s: float


class StepFacts:
    """Of one worker group. Fed with what its workers say; tells factors that are new."""

    def __init__(self) -> None:
        self._shares: tuple[GroupHello, Mapping[int, Share]] | None = None
        """What is executed, before it is known what its steps would take: nobody asks for that before `STEPS_MIN` of
        them, and a recovery does not wait for it."""
        self._planned: dict[int, _Planned] = {}
        self._seconds: dict[int, deque[tuple[float, float]]] = {}
        self._layers = 0
        self._unread = 0
        self.told: MeasuredFactors | None = None

    def begin(self, hello: GroupHello, shares: Mapping[int, Share]) -> None:
        """A plan is executed from now on."""
        self._layers = len(hello.layers)
        self._unread = 0
        self._shares = hello, shares
        holders = (worker for worker, share in shares.items() if share.last_layer > share.first_layer)
        self._seconds = {worker: deque(maxlen=STEPS_KEPT) for worker in holders}

    def take(self, worker: int, seconds: Mapping[str, float], *, judge: bool = True) -> MeasuredFactors | None:
        """What a worker says of its step; factors, if they are known now and differ from those told before. `judge`:
        they are of use now; if not, it is only kept."""
        if worker not in self._seconds or not {"forward", "backward"} <= seconds.keys():
            return None
        self._seconds[worker].append((seconds["forward"], seconds["backward"]))
        self._unread += 1
        if self._unread < len(self._seconds):
            return None  # once a step, not once a worker and step
        self._unread = 0
        if not judge or any(len(each) < STEPS_MIN for each in self._seconds.values()):
            return None
        found = self._found()
        if found is None or not found.differ(self.told or _ones(self._layers)):
            return None
        self.told = found
        return found

    def _found(self) -> MeasuredFactors | None:
        if self._shares is not None:
            (hello, shares), self._shares = self._shares, None
            self._planned = {worker: _planned(hello, shares[worker]) for worker in self._seconds}
        ratios: dict[int, tuple[float, float]] = {}
        for worker, planned in self._planned.items():
            if planned.forward_s <= 0 or planned.backward_s <= 0:
                continue  # it holds layers and was given no micro-batch
            forward_s, backward_s = (statistics.median(each) for each in zip(*self._seconds[worker], strict=True))
            ratios[worker] = (forward_s / planned.forward_s, backward_s / planned.backward_s)
        forward, backward = [], []
        for layer in range(self._layers):
            mine = [ratios[w] for w, planned in self._planned.items() if w in ratios and layer in planned.layers]
            if not mine or min(min(each) for each in mine) <= 0:
                return None
            forward.append(statistics.median(each[0] for each in mine))
            backward.append(statistics.median(each[1] for each in mine))
        speeds: dict[int, float] = {}
        for worker, ratio in ratios.items():
            layers = self._planned[worker].layers
            usual = statistics.fmean(forward[layer] + backward[layer] for layer in layers)
            speed = usual / sum(ratio)
            if not 1 / STRAGGLER <= speed <= STRAGGLER:
                speeds[worker] = speed
        return MeasuredFactors(forward=tuple(forward), backward=tuple(backward), speeds=speeds)


def _planned(hello: GroupHello, share: Share) -> _Planned:
    forward_s = backward_s = 0.0
    for each in share.stream:
        if isinstance(each, ForwardPass):
            forward_s += sum(layer.forward_s for layer in hello.layers[each.first_layer : each.last_layer])
        elif isinstance(each, BackwardPass):
            backward_s += sum(layer.backward_s for layer in hello.layers[each.first_layer : each.last_layer])
    return _Planned(range(share.first_layer, share.last_layer), forward_s, backward_s)


def _ones(layers: int) -> MeasuredFactors:
    return MeasuredFactors(forward=(1.0,) * layers, backward=(1.0,) * layers)
