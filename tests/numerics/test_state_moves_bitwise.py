"""A state that moves to another process is the same, bit for bit, and goes on the same: what a joiner lives on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.numerics.recipes import RECIPES, Recipe, batch, fresh, plain_step
from tests.numerics.test_step_equals_torch import same_bits, training_state

from chaos.frameworks import SlotKind, What
from chaos.frameworks.base import in_vector_order
from chaos.frameworks.torch import TorchFramework
from chaos.state import State
from chaos.sync.every_step import EveryStepSession
from chaos_protocols.wire.state_spec import first_difference, spec_problem, state_digest

pytestmark = pytest.mark.usefixtures("one_thread")


def session_of(recipe: Recipe) -> EveryStepSession:
    schedulers = {} if recipe.scheduler is None else {"scheduler": recipe.scheduler}
    return EveryStepSession(
        TorchFramework({"model": recipe.model}, {"optimizer": recipe.optimizer}, schedulers, set_to_none=True)
    )


def train(recipe: Recipe, session: EveryStepSession, first: int, rounds: int) -> list[np.ndarray]:
    """Rounds as a member; returns their results."""
    results = []
    for number in range(first, first + rounds):
        recipe.loss(*batch(recipe, number)).backward()
        vector = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
        session.contribute(vector)
        session.apply(vector, number + 1)
        results.append(vector)
    return results


def region(state: State, fill: int = 0) -> np.ndarray:
    data = np.full(state.spec.size_bytes, fill, dtype=np.uint8)
    state.write(data)
    return data


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_loaded_state_is_the_saved_one_and_trains_on_the_same(name: str, rounds: int) -> None:
    member, joiner = fresh(name), fresh(name, seed=99)
    of_member, of_joiner = session_of(member), session_of(joiner)
    train(member, of_member, 0, rounds)
    train(joiner, of_joiner, 50, 2)  # it has a state of its own, which must vanish without a trace
    sent, received = State(of_member.items), State(of_joiner.items)
    assert first_difference(sent.spec, received.spec) == "" and sent.spec.digest == received.spec.digest
    data = region(sent)
    received.load(data)
    assert np.array_equal(region(received, fill=255), data)
    assert received.digest() == sent.digest() == state_digest(data.data)
    train(member, of_member, 10, 3)
    train(joiner, of_joiner, 10, 3)
    same_bits(training_state(joiner), training_state(member))


@pytest.mark.parametrize("name", RECIPES)
def test_joiner_that_catches_up_on_results_equals_the_member_bitwise(name: str) -> None:
    """Invariant 4: it applied rounds to which it contributed nothing."""
    member, joiner = fresh(name), fresh(name, seed=99)
    of_member, of_joiner = session_of(member), session_of(joiner)
    train(member, of_member, 0, 2)
    State(of_joiner.items).load(region(State(of_member.items)))
    for number, result in enumerate(train(member, of_member, 2, 3), start=3):
        of_joiner.apply(result, number)
    assert State(of_joiner.items).digest() == State(of_member.items).digest()
    same_bits(training_state(joiner), training_state(member))


def test_snapshot_during_a_round_is_free_of_what_the_forward_pass_changed() -> None:
    """BatchNorm's statistics move in the forward pass; the state of the last round must not."""
    recipe = fresh("batchnorm")
    session = session_of(recipe)
    train(recipe, session, 0, 2)
    state = State(session.items)
    before = state.digest()
    live = recipe.model[1].running_mean.clone()
    recipe.loss(*batch(recipe, 7)).backward()
    assert not torch.equal(recipe.model[1].running_mean, live)
    assert state.digest() == before


def test_registering_makes_no_difference_to_a_training_that_already_runs() -> None:
    recipe, plain = fresh("adamw"), fresh("adamw")
    for number in range(2):
        for each in (recipe, plain):
            each.loss(*batch(each, number)).backward()
            plain_step(each)
    recipe.model[0].weight.grad = torch.ones_like(recipe.model[0].weight)
    session = session_of(recipe)
    same_bits(training_state(recipe), training_state(plain))
    assert torch.equal(recipe.model[0].weight.grad, torch.ones_like(recipe.model[0].weight))
    assert State(session.items).spec.size_bytes > 0


def test_buffers_are_averaged_and_integers_rounded() -> None:
    recipe = fresh("batchnorm")
    session = session_of(recipe)
    vector = np.zeros(session.contribution.size_bytes, dtype=np.uint8)
    session.contribute(vector)
    numbers = vector[: 8 * 11].view(np.float64)  # running_mean 5, running_var 5, num_batches_tracked 1
    numbers[:5], numbers[5:10], numbers[10] = 0.25, 0.75, 6.6
    session.apply(vector, 1)
    norm = recipe.model[1]
    assert norm.running_mean.tolist() == [0.25] * 5 and norm.running_var.tolist() == [0.75] * 5
    assert norm.num_batches_tracked.item() == 7


def differing(change: str) -> tuple[Recipe, Recipe]:
    here, there = fresh("adamw"), fresh("adamw")
    match change:
        case "shape":
            there.model[2] = torch.nn.Linear(5, 4)
            there.optimizer = torch.optim.AdamW(there.model.parameters(), lr=0.01)
        case "optimizer":
            there.optimizer = torch.optim.SGD(there.model.parameters(), lr=0.01)
        case "option":
            there.optimizer = torch.optim.AdamW(there.model.parameters(), lr=0.01, amsgrad=True)
        case "frozen":
            there.model[0].weight.requires_grad_(False)
    return here, there


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("shape", "'model.2.weight' is float32[3, 5] here and float32[4, 5] there"),
        ("optimizer", "'optimizer: SGD' is part of the state there and not here"),
        ("option", "'optimizer.group0.amsgrad: True' is part of the state there and not here"),
        ("frozen", "'model.0.weight is frozen' is part of the state there and not here"),
    ],
)
def test_other_model_is_named_by_its_first_difference(change: str, words: str) -> None:
    here, there = (State(session_of(recipe).items).spec for recipe in differing(change))
    assert here.digest != there.digest
    assert first_difference(here, there) == words


@pytest.mark.parametrize("name", RECIPES)
def test_specs_of_the_sdk_pass_the_daemons_check(name: str) -> None:
    session = session_of(fresh(name))
    assert spec_problem(State(session.items).spec, session.contribution) == ""


def test_parameters_and_their_gradients_pass_through_a_vector_unchanged() -> None:
    """What a mode with local steps reads and writes: values, in the order of the vector, each in its own type."""
    recipe = fresh("mixed_types")
    recipe.loss(*batch(recipe, 0)).backward()
    framework = TorchFramework({"model": recipe.model}, {"optimizer": recipe.optimizer}, {}, set_to_none=True)
    slots = in_vector_order(framework.slots)
    for what in What:
        chosen = [slot for slot in slots if what is What.VALUE or slot.kind is SlotKind.PARAMETER]
        vector = np.zeros(sum(slot.size_bytes for slot in chosen), dtype=np.uint8)
        framework.read(what, chosen, vector)
        framework.write(what, chosen, np.zeros_like(vector))
        erased = np.ones_like(vector)
        framework.read(what, chosen, erased)
        assert vector.any() and not erased.any()
        framework.write(what, chosen, vector)
        back = np.zeros_like(vector)
        framework.read(what, chosen, back)
        assert np.array_equal(back, vector)


def test_state_is_loaded_into_the_memory_that_the_rehearsal_made_and_left_unchanged_by_warming() -> None:
    member, joiner = fresh("adamw"), fresh("adamw", seed=99)
    of_member, of_joiner = session_of(member), session_of(joiner)
    train(member, of_member, 0, 2)
    before = State(of_joiner.items).digest()
    list(State(of_joiner.items).warm_up())
    assert State(of_joiner.items).digest() == before
    assert not joiner.optimizer.state, "registering leaves the optimizer as it was"
    State(of_joiner.items).load(region(State(of_member.items)))
    assert State(of_joiner.items).digest() == State(of_member.items).digest()
    moments = [value for state in joiner.optimizer.state.values() for value in state.values()]
    assert len({value.data_ptr() for value in moments}) == len(moments), "no two share memory"


def test_very_many_parameters_are_tried_by_one_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is moved for them is what a step on all of them shows, in the same order."""
    recipes = [fresh("adamw") for _ in range(2)]
    whole = [entry.item for entry in session_of(recipes[0]).items]
    monkeypatch.setattr("chaos.frameworks.torch_state.TRIED_MAX", 1)
    session = session_of(recipes[1])
    assert [entry.item for entry in session.items] == whole
    assert not recipes[1].optimizer.state and all(p.grad is None for p in recipes[1].model.parameters())
    member = fresh("adamw", seed=7)
    of_member = session_of(member)
    train(member, of_member, 0, 2)
    State(session.items).load(region(State(of_member.items)))
    assert State(session.items).digest() == State(of_member.items).digest()
