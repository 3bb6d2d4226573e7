"""Modules of Lightning that step several optimizers themselves, in turn (a GAN): which step is whose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from tests.unit.sdk.small_trainers import Meeting, both

from chaos import ChangedOutside, EveryStep, LocalSGD
from chaos.integrations.lightning import ChaosLightningCallback
from chaos.testing import LocalRun

pytestmark = pytest.mark.filterwarnings("ignore")


class Gan(LightningModule):  # type: ignore[misc]
    """G, then D, in each batch. `toggles`: each backward pass comes right before its step, and reaches nobody else;
    else both come before both steps, and that of G leaves gradients in D."""

    def __init__(self, seed: int = 0, *, toggles: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(seed)
        self.g = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        self.d = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.toggles, self.counted = toggles, list[int]()
        self.noise = torch.Generator().manual_seed(7)

    def loss_of(self, number: int, real: torch.Tensor) -> torch.Tensor:
        made = self.g(torch.randn(len(real), 4, generator=self.noise))
        if number == 0:
            return torch.nn.functional.softplus(-self.d(made)).mean()
        return (
            torch.nn.functional.softplus(-self.d(real)) + torch.nn.functional.softplus(self.d(made.detach()))
        ).mean()

    def training_step(self, batch: Any, index: int) -> None:
        optimizers = self.optimizers()
        if self.toggles:
            for number, optimizer in enumerate(optimizers):
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                self.manual_backward(self.loss_of(number, batch[0]))
                optimizer.step()
                self.untoggle_optimizer(optimizer)
                self.counted.append(self.trainer.global_step)
            return
        for number, optimizer in enumerate(optimizers):
            optimizer.zero_grad()
            self.manual_backward(self.loss_of(number, batch[0]))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        of_g = torch.optim.Adam(self.g.parameters(), lr=0.01)
        of_d = torch.optim.Adam(self.d.parameters(), lr=0.02)
        linear = torch.optim.lr_scheduler.LinearLR(of_g, 0.1, total_iters=10)
        return [of_g, of_d], [linear, torch.optim.lr_scheduler.StepLR(of_d, 5, 0.5)]


class Scaled(MixedPrecision):  # type: ignore[misc]
    """As with `precision="16-mixed"`, but that everything is computed in float32."""

    def __init__(self) -> None:
        super().__init__("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0))

    def convert_input(self, data: Any) -> Any:
        return data


class StepsSchedules(Gan):
    """As without Chaos."""

    def training_step(self, batch: Any, index: int) -> None:
        super().training_step(batch, index)
        for schedule in self.lr_schedulers():
            schedule.step()


def fitted(
    module: LightningModule, callbacks: list[Any], *, data: int = 24, max_steps: int = 20, **more: Any
) -> Trainer:
    rows = torch.randn(data, 2, generator=torch.Generator().manual_seed(data)) + 3
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=max_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **more,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=4))
    return trainer


def ended(chaos: ChaosLightningCallback, module: LightningModule, **more: Any) -> tuple[int, str]:
    trainer = fitted(module, [chaos], **more)
    chaos.coordinator.close()
    return trainer.global_step, chaos.coordinator.state_digest()


@pytest.mark.parametrize("toggles", [True, False])
def test_a_gan_alone_is_that_of_lightning_bit_for_bit(toggles: bool) -> None:
    plain, ours = StepsSchedules(toggles=toggles), Gan(toggles=toggles)
    fitted(plain, [])
    ended(ChaosLightningCallback(standalone=True), ours)
    assert ours.counted == plain.counted == (list(range(1, 21)) if toggles else [])
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def test_a_site_that_joins_in_the_middle_of_a_batch_takes_the_turn_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meeting = Meeting(at=7)
    late = Gan(seed=5)

    class Holds(Gan):
        def loss_of(self, number: int, real: torch.Tensor) -> torch.Tensor:
            meeting.wait(self.trainer, self.trainer.callbacks[0].coordinator)
            return super().loss_of(number, real)

    class Joins(ChaosLightningCallback):
        def on_train_batch_start(self, *what: Any) -> None:
            meeting.joined.set()

    with LocalRun(sites=1) as run:
        mine, theirs = both(
            lambda: ended(ChaosLightningCallback(socket=str(run.socket)), Holds()),
            lambda: ended(Joins(socket=str(run.socket)), late, data=12),
            meeting.stopped,
        )
    assert mine == theirs and mine[0] == 20
    assert late.counted[:4] == [7, 8, 9, 10], "its first step was for G, and the run waited for D"
    assert "let the phase follow" not in capsys.readouterr().err


def test_a_turn_of_which_nothing_finite_comes_is_taken_again() -> None:
    class Odd(Gan):
        def loss_of(self, number: int, real: torch.Tensor) -> torch.Tensor:
            loss = super().loss_of(number, real)
            return loss * float("nan") if number == 1 and len(self.counted) == 5 else loss

    module = Odd()
    steps, _ = ended(ChaosLightningCallback(standalone=True), module)
    assert steps == 20 and all(torch.isfinite(value).all() for value in module.state_dict().values())
    assert module.counted[4:10] == [5, 5, 5, 6, 7, 8], "D had nothing, then G was left out"


def test_a_step_that_a_loss_scaler_leaves_out_takes_its_turn() -> None:
    class Overflows(Gan):
        def loss_of(self, number: int, real: torch.Tensor) -> torch.Tensor:
            loss = super().loss_of(number, real)
            return loss * float("inf") if number == 0 and len(self.counted) == 4 else loss

    module = Overflows()
    steps, _ = ended(ChaosLightningCallback(standalone=True), module, plugins=[Scaled()])
    assert steps == 20 and module.counted[2:8] == [3, 4, 4, 4, 5, 6], "D waited for G"


@pytest.mark.parametrize("sync", [EveryStep(notes=True), LocalSGD(every=4)])
def test_a_gan_ends_with_one_model_at_both_sites(sync: Any) -> None:
    """Lightning ends after a whole batch, and so do they."""

    def trained(socket: Path, site: int) -> tuple[int, Any]:
        module = Gan(seed=site, toggles=site == 0)
        steps, _ = ended(ChaosLightningCallback(socket=str(socket), sync=sync), module, data=24 + 4 * site, max_steps=9)
        return steps, torch.cat([each.detach().flatten() for each in module.parameters()])

    with LocalRun(sites=2) as run:
        one, other = run.together(lambda socket: trained(socket, 0), lambda socket: trained(socket, 1))
    assert one[0] == other[0] == 10
    assert torch.equal(one[1], other[1])


class Critic(Gan):
    """D in each batch, and G in every third."""

    def training_step(self, batch: Any, index: int) -> None:
        of_g, of_d = self.optimizers()
        wanted = [of_d, of_g] if index % 3 == 2 else [of_d]
        for optimizer in wanted:
            optimizer.zero_grad()
            self.manual_backward(self.loss_of(int(optimizer is of_d), batch[0]))
            optimizer.step()


class CriticByStep(Gan):
    """The same, by the steps of the run."""

    def training_step(self, batch: Any, index: int) -> None:
        number = 0 if self.trainer.global_step % 4 == 3 else 1
        optimizer = self.optimizers()[number]
        optimizer.zero_grad()
        self.manual_backward(self.loss_of(number, batch[0]))
        optimizer.step()


def test_batches_with_other_steps_are_told_with_a_way_that_can_be_gone() -> None:
    with pytest.raises(ValueError, match=r"made 1 optimizer steps .* 2 were expected.*steps_per_batch=1"):
        ended(ChaosLightningCallback(standalone=True), Critic())
    steps, _ = ended(ChaosLightningCallback(standalone=True, steps_per_batch=1), CriticByStep(), max_steps=11)
    assert steps == 11


def test_a_schedule_that_the_module_steps_is_told() -> None:
    with pytest.raises(ChangedOutside, match="remove it from the loop"):
        ended(ChaosLightningCallback(standalone=True), StepsSchedules())


def test_steps_per_batch_is_refused_where_it_means_nothing() -> None:
    class Automatic(Gan):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = True

        def training_step(self, batch: Any, index: int) -> Any:
            return self.loss_of(1, batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.d.parameters())

    with pytest.raises(ValueError, match="leave it out"):
        ended(ChaosLightningCallback(standalone=True, steps_per_batch=2), Automatic())
    with pytest.raises(ValueError, match="at least 1"):
        ChaosLightningCallback(standalone=True, steps_per_batch=0)
