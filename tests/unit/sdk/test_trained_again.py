"""A training that came to nothing, and the next one with the same arguments, optimizer or model, as in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from tests.unit.sdk.small_trainers import rows, tiny
from transformers import Trainer, TrainerCallback, TrainingArguments

from chaos import LocalSGD
from chaos.integrations.accelerate import join
from chaos.integrations.transformers import ChaosCallback


def test_a_training_that_fails_leaves_the_bound_of_the_gradient_in_the_arguments(tmp_path: Path) -> None:
    """The Trainer tells no callback of it; the next training takes the same arguments, in a notebook say."""

    class Failing(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **there: Any) -> None:
            raise RuntimeError("the script failed")

    arguments = TrainingArguments(str(tmp_path), max_steps=3, max_grad_norm=0.01, report_to=[], use_cpu=True)

    def train(*more: TrainerCallback, encoding: str = "fp32") -> Any:
        chaos = ChaosCallback(standalone=True, encoding=encoding)
        model = tiny()
        try:
            Trainer(model=model, args=arguments, train_dataset=rows(24), callbacks=[chaos, *more]).train()
        finally:
            chaos.coordinator.close()
        return model.state_dict()

    once = train()
    with pytest.raises(RuntimeError, match="the script failed"):
        train(Failing())
    with pytest.raises(ValueError, match="encoding='int4' with EveryStep"):
        train(encoding="int4")
    again = train()
    assert all(torch.equal(again[name], value) for name, value in once.items()), "clipped as before"
    assert arguments.max_grad_norm == 0.01


def test_a_join_that_was_refused_may_be_made_again_with_what_was_mended() -> None:
    model = tiny()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(ValueError, match="encoding='int4' with EveryStep"):
        join(accelerator, model, optimizer, encoding="int4", standalone=True)
    with join(accelerator, model, optimizer, sync=LocalSGD(every=1), encoding="int4", standalone=True) as run:
        accelerator.backward(model(**{key: value[None] for key, value in rows(1)[0].items()}).loss)
        optimizer.step()
        assert run.steps == 1
