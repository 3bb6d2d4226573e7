"""Train a small GPT on text together with other sites, with many local steps between two rounds (DiLoCo).

python train.py --site 0 --sites 2                 # with a running chaosd; another --site for each
python train.py --site 0 --sites 1 --standalone    # alone
python train.py --site 0 --sites 2 --every 0       # the gradients of every step are averaged instead
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several sites on one machine would fight for its cores

import torch
from text_model import Text, loss_of, new_model

from chaos import ChaosError, Coordinator, DiLoCo, EveryStep, OuterSGD


def main() -> int:
    options = arguments().parse_args()
    torch.set_num_threads(1)
    try:
        train(options, say=partial(print, flush=True))
    except ChaosError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace, say: Callable[[str], object] = print) -> dict[int, float]:
    """Steps until `--steps` are done in the run, or this site leaves. Loss on the text that is held out, in nats a
    byte, after each `--look` rounds; `say` is told that of every 50 steps."""
    device = torch.device(options.device)
    model = new_model(options.seed, width=options.width, blocks=options.blocks, length=options.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=40)
    text = Text(site=options.site, sites=options.sites, length=options.length)
    generator = torch.Generator().manual_seed(1000 * options.seed + options.site)
    every = max(1, options.every)
    sync = DiLoCo(every=every, outer=OuterSGD(lr=options.outer_lr)) if options.every else EveryStep()
    losses: dict[int, float] = {}
    with Coordinator(options.socket, options.standalone, verbose=not options.quiet, sync=sync) as coordinator:
        coordinator.register(model=model, optimizer=optimizer, scheduler=schedule)
        shown = seen = coordinator.round
        while coordinator.round * every < options.steps and not coordinator.capture_exit_event():
            loss = loss_of(model, *(pieces.to(device) for pieces in text.batch(options.batch, generator)))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of this site's step
            if not coordinator.step(samples=options.batch):
                break
            if coordinator.round >= seen + options.look:  # a round has ended: all sites have this model
                seen = coordinator.round
                losses[seen] = held_out(model, text, options.test)
            if coordinator.round * every >= shown * every + 50:
                shown = coordinator.round
                say(f"step {shown * every}: held out {held_out(model, text, options.test):.4f}")
        coordinator.request_node_exit()
        found = held_out(model, text, options.test)
        say(f"round {coordinator.round}: held out {found:.4f}, state {coordinator.state_digest()}")
    return losses


@torch.no_grad()
def held_out(model: torch.nn.Module, text: Text, size: int) -> float:
    """Loss on text that no site trains on, in nats a byte."""
    device = next(model.parameters()).device
    return loss_of(model, *(pieces.to(device) for pieces in text.test(size))).item()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=int, default=0, help="whose pages this script reads, from 0")
    parser.add_argument("--sites", type=int, default=2, help="among how many the pages are dealt (default %(default)s)")
    parser.add_argument("--every", type=int, default=20, help="local steps a round; 0: average every step's gradients")
    parser.add_argument("--outer-lr", type=float, default=0.7, help="of the outer optimizer (default %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of the run (default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="pieces of text a step (default %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="of AdamW, at each site (default %(default)s)")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--length", type=int, default=64, help="bytes of a piece (default %(default)s)")
    parser.add_argument("--test", type=int, default=64, help="pieces of held-out text (default %(default)s)")
    parser.add_argument("--look", type=int, default=10, help="rounds from one test to the next (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the model and of the draw; alike at all sites")
    parser.add_argument("--device", default="cpu", help="for example cuda (default %(default)s)")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    parser.add_argument("--quiet", action="store_true", help="say nothing of joining and leaving")
    return parser


if __name__ == "__main__":
    sys.exit(main())
