"""Teach GPT-2 to chat together with other sites: only its adapters are trained, averaged and sent.

python base.py --out base                              # once, for all sites; or any GPT-2 in a folder
python train.py --base base --site 0 --sites 2         # with a running chaosd; another --site for each
python train.py --base base --sites 1 --standalone     # alone
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several sites on one machine would fight for its cores

import torch
from dialogue_data import HERE, BadData, Dialogues, load
from dialogue_model import SIZES, encoder, load_base, new_base, with_adapters

from chaos import ChaosError, Coordinator, Update
from chaos.integrations.peft import settings_of


def main() -> int:
    options = arguments().parse_args()
    torch.set_num_threads(options.threads)
    try:
        train(options, say=partial(print, flush=True))
    except (BadData, ChaosError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace, say: Callable[[str], object] = print) -> dict[int, float]:
    """Until `--rounds` are over, or this site leaves. Loss on the conversations that are held out, in nats a token,
    after each `--look` rounds, which `say` is told."""
    device = torch.device(options.device)
    base = new_base(options.size, 0) if options.base is None else load_base(options.base)
    model = with_adapters(base, options.seed).to(device)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=options.lr)
    where = {"site": options.site, "sites": options.sites, "by_prompt": options.by_prompt}
    dialogues = Dialogues(load(options.data), encoder(options.base), length=options.length, **where)
    generator = torch.Generator().manual_seed(1000 * options.seed + options.site)

    def clip(update: Update) -> None:
        torch.nn.utils.clip_grad_norm_(adapters, 1.0)  # of the average: the same at every site

    losses: dict[int, float] = {}
    with Coordinator(options.socket, options.standalone, verbose=not options.quiet) as coordinator:
        coordinator.register(
            model=model,
            optimizer=optimizer,
            on_average=clip,
            rounds_per_epoch=options.look,
            **settings_of(model),  # the base is compared, not sent; so is what PEFT was told
        )
        count = sum(parameter.numel() for parameter in adapters)
        say(f"{count:,} parameters of adapters: {4 * count / 2**20:.2f} MiB a round")
        while coordinator.round < options.rounds and not coordinator.capture_exit_event():
            pieces = dialogues.batch(options.batch, generator).to(device)
            loss = model(input_ids=pieces, labels=pieces).loss
            loss.backward()
            if not coordinator.step(samples=options.batch):
                break
            coordinator.log(loss=loss.item())
            if coordinator.round % options.look == 0:
                found = losses[coordinator.epoch] = held_out(model, dialogues.test(options.test).to(device))
                told = f"round {coordinator.round}: held out {found:.4f} nats a token"
                say(f"{told}, state {coordinator.state_digest()[:16]}")
        coordinator.request_node_exit()
    if options.out is not None:
        model.save_pretrained(options.out)  # the adapters alone
    return losses


@torch.no_grad()
def held_out(model: torch.nn.Module, pieces: torch.Tensor) -> float:
    """Mean over all tokens."""
    model.eval()
    parts = [model(input_ids=some, labels=some).loss.item() * len(some) for some in pieces.split(32)]
    model.train()
    return sum(parts) / len(pieces)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="folder with a GPT-2 (default: an untrained one)")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the untrained base (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=HERE, help="dataset.json of Chit-Chat (default: an extract)")
    parser.add_argument("--site", type=int, default=0, help="whose conversations this script reads, from 0")
    parser.add_argument("--sites", type=int, default=2, help="among how many they are dealt (default: %(default)s)")
    parser.add_argument("--by-prompt", action="store_true", help="each site has other prompts (default: a mixture)")
    parser.add_argument("--rounds", type=int, default=200, help="of the run (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="pieces a step of this site (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="tokens of a piece (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="of AdamW (default: %(default)s)")
    parser.add_argument("--look", type=int, default=10, help="rounds from one test to the next (default: %(default)s)")
    parser.add_argument("--test", type=int, default=128, help="pieces to test on (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the adapters and of the draw; alike at all sites")
    parser.add_argument("--device", default="cpu", help="for example cuda (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for the adapters at the end")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    parser.add_argument("--quiet", action="store_true", help="say nothing of joining and leaving")
    return parser


if __name__ == "__main__":
    sys.exit(main())
