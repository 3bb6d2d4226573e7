"""A loop with Accelerate at one site of a run: `join` is new, and the run says when the loop ends.

python with_accelerate.py --site 0 --sites 2       # with a running chaosd; another --site for each
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from tiny_text import Pages, arguments, batches, new_model, with_adapters
from transformers import get_cosine_schedule_with_warmup

from chaos import ChaosError, DiLoCo
from chaos.integrations.accelerate import join


def main() -> int:
    options = arguments(__doc__ or "")
    model = with_adapters(new_model(0)) if options.lora else new_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 5, options.steps)
    torch.manual_seed(options.site)  # the order of the data may be each site's own
    loader = torch.utils.data.DataLoader(
        Pages(options.site, options.sites), batch_size=options.batch // 2, shuffle=True
    )

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    try:
        run = join(
            accelerator,
            model,
            optimizer,
            scheduler,
            sync=DiLoCo(every=options.every) if options.every else None,
            samples=options.batch,
            alike={"steps": options.steps},
            socket=options.socket,
            standalone=options.standalone,
        )
        data = batches(loader)
        while run.steps < options.steps and not run.capture_exit_event():
            batch = next(data)
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            run.log(loss=loss.item())
        run.request_node_exit("its training has ended")
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"step {run.steps}: loss {loss.item():.4f}, state {run.state_digest()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
