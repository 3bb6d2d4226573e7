"""Learning rates that follow how much a round averages over: the same factor, and the same bits, at every site."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon

from chaos import Coordinator, EveryStep, LearningRateRule, Refused
from chaos.frameworks.torch import TorchFramework
from chaos.state import State
from chaos.sync import Part
from chaos.sync.every_step import EveryStepSession
from chaos.sync.learning_rate import LearningRates
from chaos.testing import LocalRun
from chaos_protocols.wire.worker import ApplyResult, ResultApplied, RoundContributed, UpdateStarted


def linear(reference: float, largest: float = 16.0) -> LearningRateRule:
    return LearningRateRule(kind="linear", reference=reference, largest=largest)


# ---- the rule


@pytest.mark.parametrize(
    ("kind", "weight", "factor"),
    [
        ("linear", 4.0, 1.0),
        ("linear", 5.0, 1.25),
        ("linear", 1.0, 0.25),
        ("sqrt", 16.0, 2.0),
        ("sqrt", 1.0, 0.5),
        ("linear", 4.0 * (1 + 1e-12), 1.0),  # an average of equal numbers that was rounded
        ("linear", 1e15, 16.0),
        ("sqrt", 1e-6, 1 / 16),
    ],
)
def test_factor(kind: str, weight: float, factor: float) -> None:
    assert LearningRateRule(kind=kind, reference=4).factor(weight) == factor


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"kind": "cubic", "reference": 4}, "kind = 'cubic': \"linear\""),
        ({"kind": "linear", "reference": 0}, "reference = 0"),
        ({"kind": "linear", "reference": float("nan")}, "reference = nan"),
        ({"kind": "sqrt", "reference": 4, "largest": 0.5}, "largest = 0.5"),
    ],
)
def test_rule_that_makes_no_sense_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        LearningRateRule(**arguments)


def test_what_is_no_rule_is_refused_with_how_to_write_one() -> None:
    with pytest.raises(ValueError, match=r"lr_rule = 'linear': give chaos\.LearningRateRule"):
        EveryStep(lr_rule="linear")  # type: ignore[arg-type]


def test_numbers_that_make_no_sense_change_nothing() -> None:
    rates = LearningRates(linear(4))
    rates.read(np.array([6.0, 1.0]))
    assert rates.factor == 1.5
    for told in ([0.0, 0.0], [-3.0, 1.0], [np.inf, 1.0], [np.nan, 1.0], [3.0, np.nan]):
        rates.read(np.array(told))
        assert rates.factor == 1.5
    rates.read(np.array([3.0, 0.5]))  # half of the weight knew it
    assert rates.factor == 1.5
    rates.read(np.array([2.0, 0.5]))
    assert rates.factor == 1.0


# ---- torch: what a step does


class Site:
    """One training of a line by AdamW with a schedule, driven without a daemon."""

    def __init__(self, rule: LearningRateRule | None, *, rate: float | torch.Tensor = 0.5) -> None:
        self.model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.ones_(self.model.weight)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        framework = TorchFramework(
            {"model": self.model}, {"optimizer": self.optimizer}, {"scheduler": schedule}, set_to_none=True
        )
        session = EveryStep(lr_rule=rule).start(framework)
        assert isinstance(session, EveryStepSession)
        self.session = session
        self.rate_in_step: list[float] = []
        self.optimizer.register_step_pre_hook(
            lambda *_: self.rate_in_step.append(float(self.optimizer.param_groups[0]["lr"]))
        )

    def gives(self, gradient: float, samples: float) -> tuple[np.ndarray, float]:
        self.model.weight.grad = torch.full((1, 3), gradient)
        self.session.stepped(Part(samples=samples))
        vector = np.zeros(self.session.contribution.size_bytes, dtype=np.uint8)
        return vector, self.session.contribute(vector)

    def digest(self) -> str:
        return State(self.session.items).digest()


def average(parts: Sequence[tuple[np.ndarray, float]], session: EveryStepSession) -> tuple[np.ndarray, float]:
    """sum(w g) / sum(w), each segment in its own type, and the weight."""
    whole = sum(weight for _, weight in parts)
    out = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
    start = 0
    for segment in session.contribution.segments:
        kind: Any = np.dtype(segment.dtype)
        stop = start + segment.count * kind.itemsize
        total = sum(kind.type(weight) * part[start:stop].view(kind) for part, weight in parts)
        out[start:stop].view(kind)[...] = total / kind.type(whole)
        start = stop
    return out, whole


def play(members: Sequence[Site], round: int, unknown: Sequence[Site] = (), listening: Sequence[Site] = ()) -> None:
    """A round of these sites. `unknown`: of them, those that took its result from a neighbour, without its weight.
    `listening`: sites that catch up."""
    parts = [site.gives(0.1 * (number + 1), 3.0 + number) for number, site in enumerate(members)]
    mean, whole = average(parts, members[0].session)
    for site in (*members, *listening):
        site.session.apply(mean, round)
        site.session.averaged_over(0.0 if site in unknown else whole)


def test_rate_follows_the_weight_of_the_round_before_and_the_registered_one_stays() -> None:
    sites = [Site(linear(7)) for _ in range(3)]
    play(sites[:2], 1)  # 3 + 4 samples; nobody knows how many yet
    play(sites[:2], 2)
    play(sites, 3)  # 3 + 4 + 5
    play(sites, 4)
    assert sites[0].rate_in_step == pytest.approx([0.5, 0.45, 0.405, 0.3645 * 12 / 7])
    assert sites[0].optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.9**4), "the schedule's own"


def test_joiner_in_the_middle_and_one_that_fetched_its_result_have_the_bits_of_the_others() -> None:
    members = [Site(linear(7)) for _ in range(3)]
    newcomer = Site(linear(7))
    for number in range(1, 4):
        play(members, number)
    data = np.zeros(State(members[0].session.items).spec.size_bytes, dtype=np.uint8)
    State(members[0].session.items).write(data)
    State(newcomer.session.items).load(data)
    newcomer.session.reset(3)
    play(members, 4, listening=[newcomer])  # it catches up, and gave nothing to this one
    everybody = [*members, newcomer]
    for number in range(5, 9):
        play(everybody, number, unknown=members[:2] if number % 2 else ())
        assert len({site.digest() for site in everybody}) == 1
        assert len({site.session.lr_factor for site in everybody}) == 1
    assert newcomer.session.lr_factor == pytest.approx(18 / 7)
    play(everybody[:2], 9, unknown=everybody[:2])
    play(everybody[:2], 10)
    assert everybody[0].session.lr_factor == pytest.approx(18 / 7), "nobody knew: what was known last holds"


def test_rate_that_is_a_tensor_is_multiplied_in_place_and_comes_back() -> None:
    rate = torch.tensor(0.5)
    site = Site(linear(1), rate=rate)
    play([site], 1)
    play([site], 2)
    assert site.rate_in_step == pytest.approx([0.5, 3 * 0.45])
    assert site.optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.5 * 0.81)


def test_rule_leaves_a_run_at_its_reference_as_it_is() -> None:
    plain, ruled = Site(None), Site(LearningRateRule(kind="sqrt", reference=3))
    for number in range(1, 5):
        play([plain], number)
        play([ruled], number)
    assert torch.equal(plain.model.weight, ruled.model.weight)


def test_optimizer_without_a_learning_rate_is_refused() -> None:
    class Halving(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"share": 0.5})

        def step(self, closure: Any = None) -> None:
            pass

    model = torch.nn.Linear(2, 1)
    with (
        Coordinator(standalone=True, verbose=False, handle_signals=False) as coordinator,
        pytest.raises(ValueError, match=r"optimizer \(Halving\) has none under 'lr'"),
    ):
        coordinator.register(model=model, optimizer=Halving(model.parameters()), sync=EveryStep(lr_rule=linear(2)))


# ---- scripts


class Script:
    """Descent of two numbers by a gradient of 1, with the factor that `apply` is told."""

    def __init__(self, steps: int, rule: LearningRateRule | None) -> None:
        self.weights = np.zeros(2)
        self.steps, self.rule = steps, rule
        self.factors: dict[int, float] = {}
        self.digests: dict[int, str] = {}
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, socket: Path | None) -> None:
        options: dict[str, Any] = {"verbose": False, "handle_signals": False}
        with Coordinator(socket, standalone=socket is None, reconnect_s=0, **options) as coordinator:

            def apply(mean: Any, round: int) -> None:
                self.factors[round] = coordinator.lr_factor
                self.weights[...] -= coordinator.lr_factor * mean["w"]

            coordinator.register(arrays={"w": self.weights}, apply=apply, sync=EveryStep(lr_rule=self.rule))
            done = 0
            while done < self.steps or not self.may_end.is_set():
                coordinator.gradients["w"][...] = 1.0
                assert coordinator.step()
                self.digests[coordinator.round] = coordinator.state_digest()
                self.began.set()
                done += 1


def test_scripts_take_the_same_factor_in_the_same_round_when_one_joins() -> None:
    member, newcomer = Script(1, linear(1)), Script(5, linear(1))
    member.may_end.clear()

    def come_later(socket: Path) -> None:
        assert member.began.wait(60)
        try:
            newcomer(socket)
        finally:
            member.may_end.set()

    with LocalRun(sites=1) as run:
        run.together(member, come_later)
    first = min(newcomer.factors)
    assert newcomer.factors[first] == 1.0 and newcomer.factors[first + 1] == 2.0, "one round later"
    both = newcomer.digests.keys() & member.digests.keys()
    assert len(both) >= 4
    assert all(newcomer.digests[number] == member.digests[number] for number in both)
    assert all(newcomer.factors[number] == member.factors[number] for number in both)


def test_a_site_with_another_rule_is_refused_and_told_both() -> None:
    member = Script(1, linear(1))
    member.may_end.clear()

    def stranger(socket: Path) -> None:
        assert member.began.wait(60)
        try:
            Script(1, linear(2))(socket)
        finally:
            member.may_end.set()

    with LocalRun(sites=1) as run, pytest.raises(Refused) as refused:
        run.together(member, stranger)
    assert "linear reference=2.0" in str(refused.value) and "linear reference=1.0" in str(refused.value)


def test_alone_the_factor_follows_the_samples_of_the_site() -> None:
    script = Script(3, LearningRateRule(kind="sqrt", reference=4))
    script(None)
    assert script.factors == {1: 1.0, 2: 0.5, 3: 0.5}


def test_weight_that_the_daemon_does_not_know_is_not_told(socket_file: Path) -> None:
    told = []

    def daemon(fake: FakeDaemon) -> None:
        fake.founder()
        for number, weight in ((1, 6.0), (2, 0.0), (3, 6.0)):
            fake.expect(RoundContributed)
            told.append(fake.array("contribution", np.float64)[-4:-2].tolist())
            fake.array("result")[...] = fake.array("contribution")
            fake.send(ApplyResult(round=number, sites=2, weight=weight))
            fake.expect(UpdateStarted)
            fake.expect(ResultApplied)

    with FakeDaemon(socket_file, daemon):
        script = Script(3, linear(3))
        coordinator = Coordinator(socket_file, verbose=False, handle_signals=False, reconnect_s=0)
        coordinator.register(
            arrays={"w": script.weights},
            apply=lambda mean, round: script.factors.update({round: coordinator.lr_factor}),
            sync=EveryStep(lr_rule=script.rule),
        )
        for _ in range(3):
            coordinator.gradients["w"][...] = 1.0
            assert coordinator.step()
        coordinator.close(graceful=False)
    assert told == [[0.0, 0.0], [6.0, 1.0], [0.0, 0.0]]
    assert script.factors == {1: 1.0, 2: 2.0, 3: 2.0}


def test_a_schedule_of_another_optimizer_is_refused() -> None:
    """The optimizer was made anew after it, say: nobody's learning rate would move."""
    model = torch.nn.Linear(2, 1)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        with pytest.raises(ValueError, match=r"scheduler \(StepLR\) was made of an optimizer that is not registered"):
            coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1), schedule)
