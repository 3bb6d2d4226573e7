"""The Trainer of Hugging Face at one site of a run: the line with ChaosCallback is all that is new.

python with_trainer.py --site 0 --sites 2          # with a running chaosd; another --site for each
python with_trainer.py --site 0 --sites 2 --lora   # adapters of PEFT on a base that all sites have
"""

from __future__ import annotations

import sys
import tempfile

from tiny_text import Pages, arguments, new_model, with_adapters
from transformers import Trainer, TrainingArguments

from chaos import ChaosError, DiLoCo
from chaos.integrations.transformers import ChaosCallback


def main() -> int:
    options = arguments(__doc__ or "")
    model = new_model(0)
    callback = ChaosCallback(
        sync=DiLoCo(every=options.every) if options.every else None,
        socket=options.socket,
        standalone=options.standalone,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=with_adapters(model) if options.lora else model,
            args=TrainingArguments(
                folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.batch,
                learning_rate=3e-3,
                lr_scheduler_type="cosine",
                warmup_steps=5,
                logging_steps=20,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                seed=options.site,  # of the order of the data, which each site may have as it likes
            ),
            train_dataset=Pages(options.site, options.sites),
            callbacks=[callback],
        )
        try:
            trainer.train()
        except ChaosError as error:
            print(error, file=sys.stderr)
            return 1
    loss = trainer.state.log_history[-2]["loss"]
    print(f"step {trainer.state.global_step}: loss {loss:.4f}, state {callback.coordinator.state_digest()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
