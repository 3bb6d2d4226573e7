"""Do joins and leaves harm pre-training? The Chaos paper's schedules of figures 12 to 15 with a small GPT and DiLoCo;
prints a table, draws the curves. A round is an epoch.

python examples/text/churn.py                          # some minutes
python examples/text/churn.py --schedules out 4 5 --epochs 10 --seeds 3 --out curves.svg
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="rounds (default: %(default)s)")
    parser.add_argument("--every", type=int, default=20, help="local steps a round (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="repeat with so many (default 1)")
    parser.add_argument("--test", type=int, default=256, help="pieces to test on (default: %(default)s)")
    parser.add_argument(
        "--size", nargs=3, type=int, default=(48, 2, 32), help="width, blocks, length (default 48 2 32)"
    )
    learning_curves.add_arguments(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scripts = [partial(as_site, seed, options) for seed in range(options.seeds)]
    curves = learning_curves.play_all(scripts, options, rounds_per_epoch=1)
    learning_curves.report(curves, options, title="small GPT, DiLoCo", y="held out, nats a byte")
    return 0


def as_site(seed: int, options: argparse.Namespace, socket: Path, site: int, until_epoch: int) -> Curve:
    """What train.py does with these arguments."""
    width, blocks, length = (str(number) for number in options.size)
    words = ["--site", str(site), "--sites", "6", "--seed", str(seed), "--look", "1", "--every", str(options.every)]
    words += ["--steps", str(until_epoch * options.every), "--width", width, "--blocks", blocks, "--length", length]
    looks = options.test if site == 0 else 1  # the curve is that of the site that is there all the time
    words += ["--test", str(looks), "--quiet", "--socket", str(socket)]
    return train.train(train.arguments().parse_args(words), say=lambda _: None)


if __name__ == "__main__":
    sys.exit(main())
