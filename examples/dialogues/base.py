"""Make a base for train.py where none can be fetched: a tiny GPT-2 that learns English from the manual that comes with
Python, byte by byte.

python base.py --out base        # half a minute of one core
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from pydoc_data.topics import topics

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from dialogue_model import SIZES, new_base


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the base: the same files for all sites")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=600, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=64, help="bytes of a piece (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = b"".join(topics[name].encode() for name in sorted(topics))
    row = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    model = new_base(options.size, options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, options.steps + 1)
    generator = torch.Generator().manual_seed(options.seed)
    for step in range(1, options.steps + 1):
        starts = torch.randint(len(row) - options.length, (16,), generator=generator)
        pieces = row[starts[:, None] + torch.arange(options.length)]
        loss = model(input_ids=pieces, labels=pieces).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == options.steps:
            print(f"step {step}: loss {loss.item():.3f} nats a byte", flush=True)
    model.save_pretrained(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
