"""What steps really take, fed back to the planner: its first facts are those of one micro-batch on one worker, before
anything ran beside it.

Every worker says with each update how many seconds it computed forward and backward. Against what the plan's stream
would take by the first facts, that is a ratio. A worker that is slower or faster than the others with its layers by
more than `STRAGGLER` is a device of that speed, and the median ratio of a layer's holders, so far as that does not
explain it, is the layer's. Waiting and messages are in neither: so a step that takes longer than expected by these
facts too says what they do not know. A worker that is given nothing to compute, or alone has its layers, shows no
speed: what it had before stands until it is measured anew.
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
    no device of speed 1. `before`: of those, the ones that show none under the plan in force."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    speeds: Mapping[int, float] = field(default_factory=dict)
    before: frozenset[int] = frozenset()

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
        self._known: dict[int, float] = {}
        """Of workers that are not like the others; of who shows none by now, what was measured last."""
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

    def forget(self, workers: frozenset[int]) -> None:
        """They count as fast until they have shown what they are."""
        self._known = {worker: speed for worker, speed in self._known.items() if worker not in workers}
        if self.told is not None:
            speeds = {worker: speed for worker, speed in self.told.speeds.items() if worker not in workers}
            self.told = replace(self.told, speeds=speeds, before=self.told.before - workers)

    def settled(self) -> MeasuredFactors | None:
        """By the last `STEPS_KEPT` steps of the plan in force; None: there are not so many yet."""
        if any(len(each) < STEPS_KEPT for each in self._seconds.values()):
            return None
        return self._found()

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
        held = self._by_layer(ratios)
        if held is None:
            return None
        # Of two holders the slower one is slow, and not the other fast; of one alone nobody knows.
        usual = {
            layer: sum(map(statistics.median_low, zip(*each.values(), strict=True)))
            for layer, each in enumerate(held)
            if len(each) > 1
        }
        shown: dict[int, float] = {}
        for worker, ratio in ratios.items():
            if shared := [usual[layer] for layer in self._planned[worker].layers if layer in usual]:
                shown[worker] = statistics.fmean(shared) / sum(ratio)
        before = {worker: speed for worker, speed in self._known.items() if worker not in shown}
        uneven = {worker: speed for worker, speed in shown.items() if not 1 / STRAGGLER <= speed <= STRAGGLER}
        self._known = speeds = {**before, **uneven}
        forward, backward = (
            tuple(statistics.median(each[w][kind] * speeds.get(w, 1.0) for w in each) for each in held)
            for kind in (0, 1)
        )
        return MeasuredFactors(forward=forward, backward=backward, speeds=speeds, before=frozenset(before))

    def _by_layer(self, ratios: Mapping[int, tuple[float, float]]) -> list[dict[int, tuple[float, float]]] | None:
        """The ratios of each layer's holders; None where some layer's are not known."""
        found = []
        for layer in range(self._layers):
            mine = {w: ratios[w] for w, planned in self._planned.items() if w in ratios and layer in planned.layers}
            if not mine or min(map(min, mine.values())) <= 0:
                return None
            found.append(mine)
        return found


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
