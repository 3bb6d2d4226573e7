"""Lightning's Trainer as a site of a run: whose steps count, what a checkpoint and a batch without a loss are."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, GradientAccumulationScheduler, StochasticWeightAveraging
from tests.unit.sdk.small_trainers import Meeting, Module, both, fitted

from chaos import LocalSGD
from chaos.integrations.lightning import ChaosLightningCallback as LightningChaos
from chaos.testing import LocalRun


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_trainer_that_joins_late_counts_the_steps_of_the_run() -> None:
    early, late = Module(), Module(seed=5)
    meeting = Meeting(at=8)

    class Holds(LightningChaos):
        def on_train_batch_end(self, trainer: Any, module: Any, *what: Any) -> None:
            super().on_train_batch_end(trainer, module, *what)
            meeting.wait(trainer, self.coordinator)

    class Joins(LightningChaos):
        def on_train_batch_start(self, *what: Any) -> None:
            meeting.joined.set()

    def end(chaos: LightningChaos, module: Module, **more: Any) -> tuple[int, str]:
        trainer = fitted(module, [chaos], gradient_clip_val=0.1, **more)
        chaos.coordinator.close()
        return trainer.global_step, chaos.coordinator.state_digest()

    with LocalRun(sites=1) as run:
        mine, theirs = both(
            lambda: end(Holds(socket=str(run.socket)), early),
            lambda: end(Joins(socket=str(run.socket)), late, data=12),
            meeting.stopped,
        )
    assert mine == theirs and mine[0] == 20
    assert early.counted == list(range(20)) and late.counted == list(range(late.counted[0], 20))
    assert late.counted[0] == 8


@pytest.mark.filterwarnings("ignore")
def test_lightning_alone_is_lightning_without_it_bit_for_bit() -> None:
    plain, ours = Module(), Module()
    chaos = LightningChaos(standalone=True)
    fitted(plain, [], gradient_clip_val=0.1)
    trainer = fitted(ours, [chaos], gradient_clip_val=0.1)
    chaos.coordinator.close()
    assert trainer.gradient_clip_val == 0.1 and trainer.lr_scheduler_configs[0].frequency == 1
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheduled", [True, False])
def test_a_lightning_trainer_that_goes_on_from_a_checkpoint_makes_the_steps_that_are_left(
    scheduled: bool, tmp_path: Path
) -> None:
    """Also one that comes to it without the checkpoint counts as the run does."""

    class Kind(Module):
        def configure_optimizers(self) -> Any:
            made = super().configure_optimizers()
            return made if scheduled else made["optimizer"]

    first = fitted(Kind(), [], max_steps=8, enable_checkpointing=True, default_root_dir=tmp_path)
    first.save_checkpoint(tmp_path / "at-8.ckpt")
    resumed, fresh = Kind(), Kind(seed=5)

    holds = threading.Event()

    class Holds(LightningChaos):
        def on_train_batch_start(self, *what: Any) -> None:
            while not fresh.counted and self.coordinator.steps == 2:
                holds.set()
                self.coordinator.check_state_replication()
                time.sleep(0.01)

    def end(chaos: LightningChaos, module: Module, checkpoint: Path | None) -> tuple[int, str]:
        trainer = fitted(module, [chaos], resume=checkpoint)
        chaos.coordinator.close()
        return trainer.global_step, chaos.coordinator.state_digest()

    with LocalRun(sites=1) as run:
        mine, theirs = both(
            lambda: end(Holds(socket=str(run.socket)), resumed, tmp_path / "at-8.ckpt"),
            lambda: end(LightningChaos(socket=str(run.socket)), fresh, None),
            holds,
        )
    assert mine == theirs and mine[0] == 20
    assert resumed.counted == list(range(8, 20)) and fresh.counted == list(range(10, 20))


@pytest.mark.filterwarnings("ignore")
def test_a_batch_that_a_lightning_module_leaves_out_gives_nothing() -> None:
    class Skips(Module):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step(batch, index) if len(self.counted) != 2 or index != 2 else None

    chaos = LightningChaos(standalone=True)
    module, gave = Skips(), []
    plain = chaos.coordinator.step
    chaos.coordinator.step = lambda **named: gave.append(named["skip"]) or plain(**named)
    trainer = fitted(module, [chaos], max_steps=6)
    chaos.coordinator.close()
    assert gave == [False, False, True, False, False, False, False] and trainer.global_step == 6


@pytest.mark.filterwarnings("ignore")
def test_a_step_weighs_as_many_batches_as_lightning_accumulates_for_it() -> None:
    chaos = LightningChaos(standalone=True)
    weights: list[int] = []
    plain = chaos.coordinator.step
    chaos.coordinator.step = lambda **named: weights.append(named["samples"]) or plain(**named)
    fitted(Module(), [chaos, GradientAccumulationScheduler({1: 3})], max_steps=9)
    chaos.coordinator.close()
    assert weights == 6 * [4] + 3 * [12], "an epoch has six batches of four"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("interval", "arguments", "words"),
    [("epoch", {}, "count its own data"), ("step", {"max_steps": -1, "max_epochs": 1}, "max_steps")],
)
def test_lightning_is_told_what_each_site_would_do_in_its_own_way(
    interval: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(Module(interval=interval), [LightningChaos(standalone=True)], **arguments)


def test_lightning_ends_with_the_common_model_where_its_last_steps_make_no_round() -> None:
    def trained(socket: Path, site: int) -> Any:
        module = Module()
        callback = LightningChaos(sync=LocalSGD(every=4), socket=str(socket))
        fitted(module, [callback], data=24 + 4 * site, max_steps=10)
        assert callback.coordinator.left
        callback.coordinator.close()
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    with LocalRun(sites=2) as run:
        one, other = run.together(lambda socket: trained(socket, 0), lambda socket: trained(socket, 1))
    assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "averages", [EMAWeightAveraging(decay=0.9), StochasticWeightAveraging(0.01, swa_epoch_start=1)]
)
def test_lightning_is_told_where_an_average_of_the_weights_belongs(averages: Any) -> None:
    """A site that joined late ended with another average; or with an error that named a schedule."""
    with pytest.raises(ValueError, match=r"keep the average in the module.*on_update=lambda"):
        fitted(Module(), [LightningChaos(standalone=True), averages], max_epochs=10)


@pytest.mark.filterwarnings("ignore")
def test_an_average_that_a_lightning_module_keeps_is_the_same_at_a_site_that_joins_late() -> None:
    class Averaged(Module):
        def __init__(self, seed: int = 0) -> None:
            super().__init__(seed)
            self.average = torch.optim.swa_utils.AveragedModel(self.model)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.model.parameters(), lr=0.01)

    early, late = Averaged(), Averaged(seed=5)
    meeting = Meeting(at=8)

    class Holds(LightningChaos):
        def on_train_batch_start(self, trainer: Any, *what: Any) -> None:
            meeting.wait(trainer, self.coordinator)

    class Joins(LightningChaos):
        def on_train_batch_start(self, *what: Any) -> None:
            meeting.joined.set()

    def end(kind: type[LightningChaos], module: Averaged, socket: Path) -> dict[str, torch.Tensor]:
        chaos = kind(socket=str(socket), on_update=lambda update: module.average.update_parameters(module.model))
        fitted(module, [chaos])
        chaos.coordinator.close()
        return module.average.state_dict()

    with LocalRun(sites=1) as run:
        mine, theirs = both(
            lambda: end(Holds, early, run.socket), lambda: end(Joins, late, run.socket), meeting.stopped
        )
    assert int(mine["n_averaged"]) == 20
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
