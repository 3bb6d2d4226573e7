"""Do joins and leaves harm what adapters learn? The Chaos paper's figure 14 (one joins, one leaves), and the schedule
of figure 15, with a tiny GPT-2; prints a table, draws the curves. 10 rounds count as an epoch.

python examples/dialogues/churn.py --base base          # minutes; the base: base.py
python examples/dialogues/churn.py --base base --schedules out --epochs 5 --out curves.svg
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

import learning_curves
import torch
import train
from learning_curves import Curve

ROUNDS_PER_EPOCH = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="folder with a GPT-2")
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=1, help="repeat with so many (default 1)")
    parser.add_argument("--mixed", action="store_true", help="all sites have a mixture of prompts (default: their own)")
    parser.add_argument("--test", type=int, default=128, help="pieces to test on (default: %(default)s)")
    learning_curves.add_arguments(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scripts = [partial(as_site, seed, options) for seed in range(options.seeds)]
    curves = learning_curves.play_all(scripts, options, rounds_per_epoch=ROUNDS_PER_EPOCH)
    learning_curves.report(curves, options, title="GPT-2, LoRA", y="held out, nats a token")
    return 0


def as_site(seed: int, options: argparse.Namespace, socket: Path, site: int, until_epoch: int) -> Curve:
    """What train.py does with these arguments."""
    words = ["--base", str(options.base), "--site", str(site), "--sites", "6", "--seed", str(seed)]
    words += ["--rounds", str(until_epoch * ROUNDS_PER_EPOCH), "--look", str(ROUNDS_PER_EPOCH)]
    looks = options.test if site == 0 else 1  # the curve is that of the site that is there all the time
    words += ["--test", str(looks), "--quiet", "--socket", str(socket)]
    words += [] if options.mixed else ["--by-prompt"]
    return train.train(train.arguments().parse_args(words), say=lambda _: None)


if __name__ == "__main__":
    sys.exit(main())
