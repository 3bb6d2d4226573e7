"""A tiny model, rows of data, and a Lightning module, for the tests of the integrations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer as LightningTrainer
from transformers import GPT2Config, GPT2LMHeadModel


def tiny(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    size: dict[str, Any] = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    size |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    pieces = torch.randint(16, (count, 8), generator=torch.Generator().manual_seed(count))
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def both(first: Callable[[], Any], second: Callable[[], Any], second_may: threading.Event) -> tuple[Any, Any]:
    """The second begins when `second_may` is set."""
    results: list[Any] = [None, None]

    def run(index: int, script: Callable[[], Any]) -> None:
        try:
            results[index] = script()
        except BaseException as error:
            results[index] = error

    def later() -> Any:
        assert second_may.wait(60)
        return second()

    threads = [threading.Thread(target=run, args=pair) for pair in ((0, first), (1, later))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results[0], results[1]


class Meeting:
    """A site that joins late: the early one stops, at the step `at` of the run, until the late one trains."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.stopped, self.joined = threading.Event(), threading.Event()

    def wait(self, trainer: Any, coordinator: Any) -> None:
        while trainer.global_step == self._at and not self.joined.is_set():
            self.stopped.set()
            coordinator.check_state_replication()
            time.sleep(0.01)


class Module(__import__("lightning").LightningModule):  # type: ignore[misc]
    def __init__(self, seed: int = 0, interval: str = "step") -> None:
        super().__init__()
        self.model, self.interval = tiny(seed), interval
        self.counted: list[int] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.counted.append(self.trainer.global_step)
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


def fitted(
    module: Module, callbacks: list[Any], *, data: int = 24, resume: Path | None = None, **arguments: Any
) -> LightningTrainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = LightningTrainer(
        accelerator="cpu",
        devices=1,
        enable_model_summary=False,
        callbacks=callbacks,
        **{**quiet, "max_steps": 20, **arguments},
    )
    loader = torch.utils.data.DataLoader(rows(data), batch_size=4)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=False if resume else None)
    return trainer
