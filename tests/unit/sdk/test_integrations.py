"""Training loops of other libraries as sites of a run: whose steps count, what is compared, what is refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from tests.unit.sdk.small_trainers import Module, both, fitted, rows, tiny
from transformers import Trainer, TrainerCallback, TrainingArguments

from chaos import DiLoCo, LocalSGD, Refused
from chaos.integrations.accelerate import join
from chaos.integrations.figures import figures_of
from chaos.integrations.lightning import ChaosLightningCallback as LightningChaos
from chaos.integrations.missing import MissingLibrary
from chaos.integrations.peft import settings_of
from chaos.integrations.transformers import ChaosCallback
from chaos.testing import LocalRun

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "integrations"


class Watched(TrainerCallback):  # type: ignore[misc]
    """What happened at which step; may hold the loop at the end of one."""

    def __init__(self, hold_at: int = 0, until: threading.Event | None = None) -> None:
        self.steps: list[int] = []
        self.rates: list[float] = []
        self.saved: list[int] = []
        self.began, self.holds = threading.Event(), threading.Event()
        self.hold_at, self.until = hold_at, until
        self.chaos: ChaosCallback | None = None

    def on_step_begin(self, *what: Any, **there: Any) -> None:
        self.began.set()

    def on_step_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        self.steps.append(state.global_step)
        self.rates.append(there["lr_scheduler"].get_last_lr()[0])
        if state.global_step == self.hold_at and self.until is not None and self.chaos is not None:
            self.holds.set()
            while not self.until.is_set():  # serves the joiner, as an evaluation would
                self.chaos.coordinator.check_state_replication()
                time.sleep(0.01)

    def on_save(self, args: Any, state: Any, control: Any, **there: Any) -> None:
        self.saved.append(state.global_step)


def trained(
    folder: Path, socket: Path | None, watched: Watched, *, model: Any = None, data: int = 24, **arguments: Any
) -> tuple[Trainer, ChaosCallback]:
    """One Trainer, from its first step to its last."""
    sync, own = arguments.pop("sync", None), arguments.pop("optimizers", (None, None))
    settings = {"encoding": arguments.pop("encoding", "fp32"), "standalone": socket is None}
    callback = ChaosCallback(sync=sync, socket=str(socket) if socket else None, **settings)
    watched.chaos = callback
    known = {"max_steps": 20, "per_device_train_batch_size": 4, "learning_rate": 0.01, "warmup_steps": 2}
    known |= {"logging_steps": 5, "save_steps": 10, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    trainer = Trainer(
        model=model or tiny(),
        args=TrainingArguments(str(folder), **{**known, **arguments}),
        train_dataset=rows(data),
        optimizers=own,
        callbacks=[callback, watched],
    )
    try:
        trainer.train()
    finally:
        callback.coordinator.close()
    return trainer, callback


def test_a_trainer_that_joins_late_goes_on_in_the_middle_of_the_schedule_and_ends_with_the_others(
    tmp_path: Path,
) -> None:
    """With other data, so that its own epochs are others; logging, saving and the rate follow the run's steps."""
    joiner = Watched()
    early = Watched(hold_at=8, until=joiner.began)
    with LocalRun(sites=1) as run:
        (one, mine), (other, theirs) = both(
            lambda: trained(tmp_path / "a", run.socket, early),
            lambda: trained(tmp_path / "b", run.socket, joiner, model=tiny(7), data=12, seed=3),
            early.holds,
        )
    assert early.steps == list(range(1, 21)) and joiner.steps == list(range(joiner.steps[0], 21))
    assert joiner.steps[0] == 9, "it has not begun at its own first step"
    assert joiner.rates == early.rates[-len(joiner.rates) :]
    assert early.saved == [10, 20] and joiner.saved == [10, 20]
    assert mine.coordinator.state_digest() == theirs.coordinator.state_digest()
    logged = [line for line in other.state.log_history if "loss" in line]
    assert [line["step"] for line in logged] == [10, 15, 20]
    assert all(1.5 < line["loss"] < 4 for line in logged), "means over its own steps: 2.77 is guessing"
    (total,) = (line["train_loss"] for line in other.state.log_history if "train_loss" in line)
    means = [line["loss"] for line in logged]
    assert total == pytest.approx((2 * means[0] + 5 * means[1] + 5 * means[2]) / 12, rel=0.01)
    assert one.args.max_grad_norm == 1.0, "the arguments are as before"


def test_the_average_of_a_trainer_is_clipped_and_not_what_each_site_gives(tmp_path: Path) -> None:
    """Alone both are one and the same: the result is that of the plain Trainer, bit for bit."""
    plain = Trainer(
        model=tiny(),
        args=TrainingArguments(
            str(tmp_path / "plain"),
            max_steps=6,
            per_device_train_batch_size=4,
            max_grad_norm=0.01,
            learning_rate=0.01,
            warmup_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=rows(24),
    )
    plain.train()
    ours, _ = trained(tmp_path, None, Watched(), max_steps=6, max_grad_norm=0.01, save_strategy="no")
    for name, value in plain.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], value), name


def test_local_steps_count_for_the_schedule_of_a_trainer(tmp_path: Path) -> None:
    watched = Watched()
    trainer, callback = trained(tmp_path, None, watched, sync=DiLoCo(every=5))
    assert watched.steps == list(range(1, 21)) and callback.coordinator.round == 4
    assert trainer.state.global_step == callback.steps == callback.coordinator.steps == 20


@pytest.mark.parametrize("sync", [LocalSGD(every=4), DiLoCo(every=8, fragments=2)], ids=["all", "parts"])
def test_trainers_end_with_one_model_where_their_last_steps_make_no_round(sync: Any, tmp_path: Path) -> None:
    """Ten steps are two rounds, and two steps that each site has made by itself."""

    making, made = (
        threading.Lock(),
        threading.Barrier(2),
    )  # what Accelerate keeps for the process is made anew meanwhile

    def trained(socket: Path, site: int) -> Any:
        with making:
            callback, model = ChaosCallback(sync=sync, socket=str(socket)), tiny()
            arguments = TrainingArguments(
                str(tmp_path / str(site)), max_steps=10, report_to=[], use_cpu=True, save_strategy="no"
            )
            trainer = Trainer(model=model, args=arguments, train_dataset=rows(24 + site), callbacks=[callback])
        made.wait(60)
        trainer.train()
        assert callback.coordinator.left
        callback.coordinator.close()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    with LocalRun(sites=2) as run:
        one, other = run.together(lambda socket: trained(socket, 0), lambda socket: trained(socket, 1))
    assert torch.equal(one, other)


def test_trainers_with_another_length_of_the_run_do_not_train_together(tmp_path: Path) -> None:
    gate = threading.Event()
    early = Watched(hold_at=3, until=gate)

    def shorter() -> str:
        try:
            with pytest.raises(
                Refused, match="'setting max_steps = 20' is part of the state there and not here"
            ) as refused:
                trained(tmp_path / "b", run.socket, Watched(), max_steps=19)
            return str(refused.value)
        finally:
            gate.set()

    with LocalRun(sites=1) as run:
        _, told = both(lambda: trained(tmp_path / "a", run.socket, early), shorter, early.holds)
    assert "max_steps" in told


def test_a_trainer_that_counts_its_own_data_or_follows_its_own_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_steps"):
        trained(tmp_path, None, Watched(), max_steps=-1, num_train_epochs=1)
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = (optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    with pytest.raises(ValueError, match="its own metric"):
        trained(tmp_path, None, Watched(), model=model, optimizers=own)


def test_a_trainer_that_goes_on_from_a_checkpoint_logs_the_mean_of_its_own_steps(tmp_path: Path) -> None:
    trained(tmp_path, None, Watched())
    callback = ChaosCallback(standalone=True)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=15, per_device_train_batch_size=4, logging_steps=5, report_to=[], use_cpu=True
    )
    trainer = Trainer(model=tiny(), args=arguments, train_dataset=rows(24), callbacks=[callback])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    callback.coordinator.close()
    assert trainer.state.global_step == 15 and callback.steps == 15
    (loss,) = (line["loss"] for line in trainer.state.log_history if line["step"] == 15 and "loss" in line)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(loss, rel=0.01)


def test_a_trainer_alone_logs_what_it_logs_without_a_run(tmp_path: Path) -> None:
    """The rate among it, which is that of the step: the run's schedule has moved on by then."""

    def logged(*callbacks: Any) -> list[dict[str, Any]]:
        arguments = TrainingArguments(
            str(tmp_path), max_steps=6, per_device_train_batch_size=4, logging_steps=2, report_to=[], use_cpu=True
        )
        trainer = Trainer(model=tiny(), args=arguments, train_dataset=rows(24), callbacks=list(callbacks))
        trainer.train()
        return [
            {name: line.get(name) for name in ("step", "loss", "learning_rate")} for line in trainer.state.log_history
        ]

    callback = ChaosCallback(standalone=True)
    assert logged(callback) == logged()
    callback.coordinator.close()


def test_a_callback_serves_one_training_and_a_training_has_one(tmp_path: Path) -> None:
    trainer, _ = trained(tmp_path, None, Watched(), max_steps=2)
    with pytest.raises(ValueError, match=r"ChaosCallback has been in a training already.*new ChaosCallback\(\)"):
        trainer.train()
    ours = [ChaosCallback(standalone=True), ChaosCallback(standalone=True)]
    arguments = TrainingArguments(str(tmp_path), max_steps=2, report_to=[], use_cpu=True)
    with pytest.raises(ValueError, match="those of a run already: one join, or one callback"):
        Trainer(model=tiny(), args=arguments, train_dataset=rows(24), callbacks=ours).train()
    two, again = [LightningChaos(standalone=True), LightningChaos(standalone=True)], LightningChaos(standalone=True)
    with pytest.raises(ValueError, match="2 ChaosLightningCallbacks"):
        fitted(Module(), two)
    fitted(Module(), [again], max_steps=1)
    with pytest.raises(ValueError, match="new ChaosLightningCallback"):
        fitted(Module(), [again])
    for one in (*ours, *two, again):
        one.coordinator.close()


def test_a_loop_of_accelerate_accumulates_clips_the_average_and_leaves_the_schedule_to_the_run() -> None:
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = torch.utils.data.DataLoader(rows(8), batch_size=2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    run = join(accelerator, model, optimizer, scheduler, max_grad_norm=0.5, standalone=True)
    before = [p.detach().clone() for p in model.parameters()]
    moved, rates = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        squares = [(p - b).square().sum() for p, b in zip(model.parameters(), before, strict=True)]
        moved.append(float(torch.stack(squares).sum().sqrt()))
        rates.append(scheduler.get_last_lr()[0])
    run.close()
    assert run.steps == 2
    assert moved[0] == 0.0 and moved[1] == pytest.approx(0.5, rel=1e-4) and moved[2] == moved[1]
    assert rates == [1.0, 0.5, 0.5, pytest.approx(1 / 3)]


def test_steps_of_accelerate_go_on_from_a_checkpoint_at_a_joiner_too() -> None:
    """Which has begun anew: the schedule is the run's, and so is what counts its steps."""

    begun, joined = threading.Event(), threading.Event()

    def script(socket: Path, *, resumed: bool) -> set[int]:
        model = tiny()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=40)
        accelerator = Accelerator(cpu=True)
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        if resumed:
            scheduler.scheduler.load_state_dict({**scheduler.scheduler.state_dict(), "last_epoch": 10})
        else:
            assert begun.wait(60)
        run = join(accelerator, model, optimizer, scheduler, socket=socket)
        (begun if resumed else joined).set()
        made = {run.steps - run.round}
        for _ in range(3):
            accelerator.backward(model(**{key: value[None] for key, value in rows(1)[0].items()}).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            made.add(run.steps - run.round)
            while not joined.wait(0.01):  # however slow it is, it is served
                run.check_state_replication()
        run.close()
        return made

    with LocalRun(sites=1) as run:
        assert run.together(lambda to: script(to, resumed=True), lambda to: script(to, resumed=False)) == [{10}, {10}]


def test_accelerate_says_what_was_not_prepared() -> None:
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    accelerator = Accelerator(cpu=True)
    with pytest.raises(ValueError, match="scheduler was not prepared"):
        join(accelerator, model, accelerator.prepare(optimizer), scheduler, standalone=True)
    with pytest.raises(ValueError, match=r"a SGD; join the run with what accelerator\.prepare"):
        join(accelerator, model, optimizer, standalone=True)
    accelerator = Accelerator(cpu=True)
    model, prepared, _ = accelerator.prepare(model, optimizer, scheduler)
    with pytest.raises(ValueError, match="a ConstantLR was prepared for this optimizer: give it to join"):
        join(accelerator, model, prepared, standalone=True)
    with pytest.raises(ValueError, match="clip_grad_norm_ in the loop"):
        join(accelerator, model, optimizer, sync=DiLoCo(every=2), max_grad_norm=1.0, standalone=True)


@pytest.mark.filterwarnings("ignore")
def test_each_library_takes_the_encoding_of_the_run(tmp_path: Path) -> None:
    """One that is too coarse for single gradients is refused as in a loop of one's own, so it was heard of."""
    chaos = LightningChaos(standalone=True, encoding="int4")
    model = tiny()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for train in (
        lambda: trained(tmp_path, None, Watched(), encoding="int4"),
        lambda: fitted(Module(), [chaos]),
        lambda: join(accelerator, model, optimizer, encoding="int4", standalone=True),
    ):
        with pytest.raises(ValueError, match="encoding='int4' with EveryStep: so few bits"):
            train()
    chaos.coordinator.close()
    model = tiny()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    join(accelerator, model, optimizer, encoding="int4", allow_lossy=True, standalone=True).close()


def test_what_peft_was_told_is_compared_and_only_the_adapter_is_sent() -> None:
    model = get_peft_model(tiny(), LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True))
    settings = settings_of(model)
    assert settings["frozen"] == "compare"
    assert settings["alike"]["PEFT default.lora_alpha"] == 4 and settings["alike"]["PEFT default.r"] == 2
    assert not any("path" in key for key in settings["alike"])
    with pytest.raises(ValueError, match="no adapters"):
        settings_of(tiny())


def test_where_a_site_has_its_tokenizer_is_its_own_matter() -> None:
    def alike(path: str) -> Any:
        config = SimpleNamespace(to_dict=lambda: {"num_virtual_tokens": 4, "tokenizer_name_or_path": path})
        return settings_of(SimpleNamespace(peft_config={"default": config}))["alike"]

    assert alike("here/gpt2") == alike("there/gpt2") == {"PEFT default.num_virtual_tokens": 4}


def test_names_and_numbers_that_no_figure_may_have_are_left_out_or_mended() -> None:
    logs = {"eval/loss x": 1, "nan": float("nan"), "text": "a", "loss": torch.tensor(2.0), "1": 3.0}
    assert figures_of(logs) == {"eval_loss_x": 1.0, "loss": 2.0}


@pytest.mark.parametrize("name", ["transformers", "accelerate", "lightning"])
def test_a_library_that_is_missing_is_told_in_one_sentence_with_the_command(name: str) -> None:
    hidden = f"import sys; sys.modules[{name!r}] = None; import chaos.integrations.{name}"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"chaos: chaos.integrations.{name} cannot be imported here") and (
        "pip install" in done.stderr and "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    ), done.stderr


def test_chaos_and_the_helpers_for_peft_need_none_of_them() -> None:
    libraries = ("transformers", "accelerate", "lightning", "pytorch_lightning", "peft", "torch")
    hidden = f"import sys; sys.modules.update(dict.fromkeys({libraries!r})); import chaos, chaos.integrations.peft"
    subprocess.run([sys.executable, "-c", hidden], check=True)
    assert issubclass(MissingLibrary, ImportError)
    assert importlib.import_module("chaos.integrations")
