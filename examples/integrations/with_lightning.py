"""Lightning's Trainer at one site of a run: the line with ChaosLightningCallback is all that is new.

python with_lightning.py --site 0 --sites 2        # with a running chaosd; another --site for each
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

import lightning
import torch
from tiny_text import Pages, arguments, new_model, with_adapters
from transformers import get_cosine_schedule_with_warmup

from chaos import ChaosError, DiLoCo
from chaos.integrations.lightning import ChaosLightningCallback


class Module(lightning.LightningModule):
    """The tiny GPT-2, as Lightning wants it."""

    def __init__(self, model: torch.nn.Module, steps: int) -> None:
        super().__init__()
        self.model, self.steps = model, steps

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=3e-3)
        scheduler = get_cosine_schedule_with_warmup(optimizer, 5, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> int:
    options = arguments(__doc__ or "")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    model = with_adapters(new_model(0)) if options.lora else new_model(0)
    callback = ChaosLightningCallback(
        sync=DiLoCo(every=options.every) if options.every else None,
        socket=options.socket,
        standalone=options.standalone,
    )
    torch.manual_seed(options.site)  # the order of the data may be each site's own
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=options.steps,
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    loader = torch.utils.data.DataLoader(Pages(options.site, options.sites), batch_size=options.batch, shuffle=True)
    try:
        trainer.fit(Module(model, options.steps), loader)
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    loss = float(trainer.logged_metrics["loss"])
    print(f"step {trainer.global_step}: loss {loss:.4f}, state {callback.coordinator.state_digest()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
