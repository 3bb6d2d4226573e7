"""What a script does to its model outside of a round is noticed at once, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.sdk.fake_daemon import FakeDaemon
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

from chaos import ChangedOutside, Coordinator, EveryStep, Update
from chaos.frameworks import torch_watch
from chaos_protocols.wire.worker import (
    Dismissed,
    RoundContributed,
    SnapshotMissed,
    SnapshotTaken,
    TakeSnapshot,
    WorkerLeaveRequest,
)


class Training:
    """A site alone, or beside a daemon at `socket`; with an SGD that has a learning rate to change."""

    def __init__(self, scheduled: bool = False, socket: Path | None = None, **registered: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1) if scheduled else None
        self.coordinator = Coordinator(socket=socket, standalone=socket is None, handle_signals=False)
        self.coordinator.register(self.model, self.optimizer, self.scheduler, **registered)
        self.backward()
        self.coordinator.step()
        self.backward()

    def backward(self) -> None:
        self.model(torch.ones(4, 3) * torch.arange(4.0).unsqueeze(1)).square().sum().backward()


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.coordinator.close()


def test_a_layer_that_is_pruned_after_register_is_told_by_its_parameter(training: Training) -> None:
    prune.l1_unstructured(training.model[0], "weight", amount=0.5)
    with pytest.raises(ChangedOutside, match=r"parameter 'model.0.weight' does not keep it as 'weight' .*before reg"):
        training.coordinator.step()


def test_a_parametrization_after_register_is_told_by_its_parameter(training: Training) -> None:
    parametrize.register_parametrization(training.model[0], "bias", nn.Softplus(), unsafe=True)
    with pytest.raises(ChangedOutside, match=r"the parameter 'model.0.bias' does not keep it as 'bias'"):
        training.coordinator.step()


def test_a_model_that_is_pruned_before_register_trains(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 2)
    prune.l1_unstructured(model, "weight", amount=0.5)
    coordinator = Coordinator(standalone=True, handle_signals=False)
    coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        assert coordinator.step()
    coordinator.close()
    assert "after round" not in capfd.readouterr().err


def test_adapters_that_are_merged_at_a_step_are_told_by_their_layer(capfd: pytest.CaptureFixture[str]) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["0"])
    model = peft.get_peft_model(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), config)
    coordinator = Coordinator(standalone=True, handle_signals=False)
    coordinator.register(model, torch.optim.SGD(model.parameters(), lr=0.1), frozen="compare")
    for merged in (False, True, False):
        if merged:
            model.merge_adapter()
            model.unmerge_adapter()
        model(torch.ones(1, 3)).sum().backward()
        assert coordinator.step()
    model(torch.ones(1, 3)).sum().backward()
    model.merge_adapter()
    with pytest.raises(ChangedOutside, match=r"the adapter of the layer '.*\.0' is merged .*unmerge_adapter"):
        coordinator.step()
    coordinator.close()


def test_an_ordinary_loop_is_never_accused(capfd: pytest.CaptureFixture[str]) -> None:
    made = Training(scheduled=True)
    for _ in range(5):
        torch.nn.utils.clip_grad_norm_(made.model.parameters(), 0.1)
        made.model.eval()
        made.model.train()
        assert made.coordinator.step()
        made.backward()
    made.coordinator.close()
    assert "round" not in capfd.readouterr().err


def stray_step(made: Training) -> None:
    made.optimizer.step()


def scaled_step(made: Training) -> None:
    """Who only took it away would give gradients that are still multiplied by the scale."""
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(made.optimizer)


def foreign_step(made: Training) -> None:
    torch.optim.Adam(made.model.parameters()).step()


def foreign_scheduler(made: Training) -> None:
    torch.optim.lr_scheduler.ExponentialLR(made.optimizer, 0.5)
    made.optimizer.param_groups[0]["lr"] = 0.05


def weight_decay(made: Training) -> None:
    made.optimizer.param_groups[0]["weight_decay"] = 0.5


def another_weight(made: Training) -> None:
    made.model[0].weight = nn.Parameter(made.model[0].weight.detach().clone())


def another_layer(made: Training) -> None:
    made.model[0] = nn.Linear(3, 2)


def another_type(made: Training) -> None:
    made.model.double()


def another_size(made: Training) -> None:
    """As some resize an embedding: the parameter is the same one, and its moments are not."""
    made.model[0].weight.data = torch.zeros(5, 3)


def longer_buffer(made: Training) -> None:
    made.model[1].running_mean = torch.zeros(5)


def no_buffer(made: Training) -> None:
    made.model[1].running_mean = None


def loaded_optimizer(made: Training) -> None:
    made.optimizer.load_state_dict(made.optimizer.state_dict())


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (
            another_type,
            r"'model\.0\.weight' is float64\[.*\] on cpu now, and was float32\[.*\] on cpu .*before register\(\)",
        ),
        (another_size, r"'model\.0\.weight' is float32\[5, 3\] on cpu now, and was float32\[2, 3\] .*before register"),
        (longer_buffer, r"'model\.1\.running_mean' has the shape \[5\] .* had the shape \[2\] .*persistent=False"),
        (no_buffer, r"'model\.1\.running_mean' is None .* had the shape \[2\] .*persistent=False"),
        (loaded_optimizer, r"optimizer\.load_state_dict\(\) was called after register.*round 1.*before register\(\)"),
        (stray_step, r"optimizer\.step\(\) was called.*after round 1.*remove optimizer\.step\(\)"),
        (scaled_step, r"remove optimizer\.step\(\).*scaler\.unscale_\(optimizer\) .*in place of scaler\.step"),
        (foreign_step, r"not registered \(Adam\).*register the one that you use"),
        (foreign_scheduler, r"'lr' of optimizer\.group0 .*\(0\.1 to 0\.05\).*register the scheduler"),
        (weight_decay, r"'weight_decay' of optimizer\.group0 .*on_update="),
        (another_weight, r"'model\.0\.weight' of the model is not the one.*before register\(\)"),
        (another_layer, r"'model\.0\.weight' of the model is not the one.*before register\(\)"),
    ],
)
def test_what_is_certain_to_differ_is_an_error_that_says_what_to_write(
    training: Training, mistake: Callable[[Training], None], told: str
) -> None:
    mistake(training)
    with pytest.raises(ChangedOutside, match=told):
        training.coordinator.step()
    assert training.coordinator.round == 1


def test_a_layer_that_is_wrapped_or_moved_is_still_the_registered_one(training: Training) -> None:
    training.model[0] = nn.Sequential(training.model[0])
    assert training.coordinator.step()
    training.backward()
    training.model[0] = nn.Linear(3, 2)
    with pytest.raises(ChangedOutside, match=r"'model\.0\.weight'"):
        training.coordinator.step()


def test_a_registered_scheduler_is_not_stepped_by_the_loop() -> None:
    made = Training(scheduled=True)
    assert made.scheduler is not None
    made.scheduler.step()
    with pytest.raises(ChangedOutside, match=r"scheduler\.step\(\) was called in the training loop after round 1"):
        made.coordinator.step()
    made.coordinator.close()


def test_a_checkpoint_with_its_schedule_is_told_as_one() -> None:
    """As `load_state` of Accelerate loads both: nobody has stepped the schedule."""
    made = Training(scheduled=True)
    assert made.scheduler is not None
    made.optimizer.load_state_dict(made.optimizer.state_dict())
    made.scheduler.load_state_dict({**made.scheduler.state_dict(), "last_epoch": 7})
    with made.coordinator, pytest.raises(ChangedOutside, match=r"optimizer\.load_state_dict\(\) was called after reg"):
        made.coordinator.step()


def test_weights_changed_by_hand_are_named_once_and_training_goes_on(
    training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    with torch.no_grad():
        training.model[0].bias.add_(1.0)
    assert training.coordinator.step()
    told = capfd.readouterr().err
    assert "'model.0.bias' was changed after round 1 outside of a round" in told and "on_update=" in told
    training.backward()
    assert training.coordinator.step()
    assert "changed" not in capfd.readouterr().err


def test_a_step_that_no_backward_pass_precedes_is_told_once(
    training: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    training.coordinator.step()
    training.coordinator.step(skip=True)
    assert capfd.readouterr().err == "", "who skips has nothing to give, and says so"
    training.backward()
    training.optimizer.zero_grad()
    training.coordinator.step()
    told = capfd.readouterr().err
    assert "no parameter had a gradient at the step after round 2" in told and "zero_grad()" in told
    training.coordinator.step()
    assert capfd.readouterr().err == ""


def test_what_is_no_model_optimizer_or_mode_is_named() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    coordinator = Coordinator(standalone=True, handle_signals=False)
    with pytest.raises(ValueError, match=r"scheduler is the class StepLR: make one, StepLR\(optimizer, \.\.\.\)"):
        coordinator.register(model, optimizer, torch.optim.lr_scheduler.StepLR)
    with pytest.raises(ValueError, match=r"scheduler is a function, no learning-rate scheduler.*LambdaLR"):
        coordinator.register(model, optimizer, lambda step: 0.1)
    with pytest.raises(ValueError, match=r"register\(on_update=\.\.\.\) takes a function of one argument"):
        coordinator.register(model, optimizer, on_update="ema")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model is a SGD, no torch\.nn\.Module"):
        coordinator.register(optimizer, model)
    with pytest.raises(ValueError, match=r"optimizer is a generator, no torch\.optim\.Optimizer"):
        coordinator.register(model, model.parameters())
    with pytest.raises(ValueError, match=r"sync=EveryStep is a class.*EveryStep\(\.\.\.\)"):
        coordinator.register(model, optimizer, sync=EveryStep)  # type: ignore[arg-type]
    coordinator.close()


def test_the_optimizer_of_another_model_is_nobodys_affair(training: Training) -> None:
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert training.coordinator.step()


def test_state_that_was_loaded_is_no_change_of_the_script() -> None:
    made = Training()
    state = made.coordinator._registered().items
    kept = [entry.get().copy() for entry in state]
    assert made.coordinator.step()
    for entry, data in zip(state, kept, strict=True):
        entry.put(data)
    made.coordinator._registered().reset(1)
    made.backward()
    assert made.coordinator.step()
    made.coordinator.close()


def test_a_closed_coordinator_looks_no_more(training: Training) -> None:
    training.coordinator.close()
    before, hooks = torch_watch._watching, list(_global_optimizer_post_hooks)
    again = Training()
    assert len(torch_watch._watching) == len(before) + 1
    again.coordinator.close()
    assert torch_watch._watching == before
    assert list(_global_optimizer_post_hooks) == hooks, "torch goes through them without a lock"


def test_a_training_may_begin_and_end_while_another_one_steps_in_a_thread() -> None:
    """As sites in threads do (`chaos.testing`): a step failed with "OrderedDict mutated during iteration"."""
    looked = []

    def look(optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        looked.append(optimizer)
        if len(looked) == 1:
            Training().coordinator.close()

    hook = register_optimizer_step_post_hook(look)
    try:
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()
    finally:
        hook.remove()
    assert looked


def test_what_on_update_does_is_the_rounds_doing(capfd: pytest.CaptureFixture[str]) -> None:
    made: list[Training] = []

    def constrain(update: Update) -> None:
        for training in made:
            training.optimizer.param_groups[0]["lr"] *= 0.5
            with torch.no_grad():
                training.model[0].bias.clamp_(-0.01, 0.01)

    made.append(Training(on_update=constrain))
    (training,) = made
    for _ in range(3):
        assert training.coordinator.step()
        training.backward()
    assert training.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
    assert float(training.model[0].bias.detach().abs().max()) <= 0.01
    assert "round" not in capfd.readouterr().err
    training.coordinator.close()


class OwnClearing(torch.optim.SGD):
    """With its own way to clear gradients, as optimizers that wrap others have."""

    cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.cleared += 1
        super().zero_grad(set_to_none)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_cleared_after_a_round_in_the_optimizers_own_way_where_it_has_one(to_none: bool) -> None:
    own, plain = nn.Linear(3, 2), nn.Linear(2, 2)
    clearing = OwnClearing(own.parameters(), lr=0.1)
    optimizers = {"own": clearing, "plain": torch.optim.SGD(plain.parameters(), lr=0.1)}
    with Coordinator(standalone=True, handle_signals=False, zero_grad_set_to_none=to_none) as coordinator:
        coordinator.register({"own": own, "plain": plain}, optimizers)
        plain(own(torch.ones(4, 3))).square().sum().backward()
        coordinator.step()
        assert clearing.cleared == 1
        for parameter in (*own.parameters(), *plain.parameters()):
            assert parameter.grad is None if to_none else not parameter.grad.any()


def scaled(made: Training) -> None:
    with torch.no_grad():
        made.model[0].weight.mul_(2.0)


def scaled_by_data(made: Training) -> None:
    made.model[0].weight.data.mul_(2.0)


def without_gradients(made: Training) -> None:
    """As after a step."""
    made.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("change", "kept"),
    [(without_gradients, True), (scaled, False), (scaled_by_data, False), (stray_step, False)],
)
def test_a_script_that_leaves_gives_no_copy_of_a_state_that_it_has_changed(
    change: Callable[[Training], None], kept: bool, socket_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its daemon would write it as the last checkpoint of the run."""

    def script(daemon: FakeDaemon) -> None:
        daemon.founder()
        daemon.expect(RoundContributed)
        daemon.apply(1)
        daemon.expect(WorkerLeaveRequest)
        daemon.send(TakeSnapshot(round=1, alone=True))
        daemon.expect(SnapshotTaken if kept else SnapshotMissed)
        daemon.send(Dismissed(last_round=1, graceful=True, reason="left the run"))

    with FakeDaemon(socket_file, script):
        made = Training(socket=socket_file)
        change(made)
        made.coordinator.close()
        assert ("no copy of this state is kept: " in capfd.readouterr().err) is not kept
