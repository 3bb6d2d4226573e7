"""Do joins and leaves harm what is learnt? The small forms of the three networks on Fashion-MNIST, sites with few
pictures of their own, and the schedules of the Chaos paper's figures 12, 13 and 15; prints a table, draws the curves.

python examples/images/churn.py                       # about a quarter of an hour of two cores
python examples/images/churn.py --models vgg11 --epochs 10 --out curves.svg
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

import learning_curves
import torch
import train
from image_models import MODELS
from learning_curves import Curve

PICTURES_PER_SITE, BATCH = 160, 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=1, help="repeat with so many, other shares each (default 1)")
    parser.add_argument("--alike", action="store_true", help="shares with the classes alike (default: unlike)")
    parser.add_argument("--lr", type=float, default=0.05, help="of SGD (default: %(default)s)")
    parser.add_argument("--test", type=int, default=500, help="test pictures to look at (default: %(default)s)")
    learning_curves.add_arguments(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, dict[str, list[Curve]]] = {}
    for model in options.models:
        curves[model] = {
            schedule: [one_curve(model, schedule, seed, options) for seed in range(options.seeds)]
            for schedule in options.schedules
        }
        for line in learning_curves.told(curves[model], options.epochs):
            print(f"{model:10} {line}", flush=True)
    if options.out:
        learning_curves.draw(options.out, curves, epochs=options.epochs, y="accuracy, %")
    if options.json:
        options.json.write_text(json.dumps(curves) + "\n", encoding="utf-8")
    return 0


def one_curve(model: str, schedule: str, seed: int, options: argparse.Namespace) -> Curve:
    """Accuracy after each epoch, of the site that is there all the time."""
    script = partial(as_site, model, seed, options)
    rounds = PICTURES_PER_SITE // BATCH
    return learning_curves.play(script, schedule, epochs=options.epochs, rounds_per_epoch=rounds)


def as_site(model: str, seed: int, options: argparse.Namespace, socket: Path, site: int, until_epoch: int) -> Curve:
    """What train.py does with these arguments."""
    words = ["--model", model, "--small", "--share", str(site), "--sites", "6", "--size", str(PICTURES_PER_SITE)]
    words += ["--batch", str(BATCH), "--lr", str(options.lr), "--epochs", str(until_epoch), "--seed", str(seed)]
    looks = options.test if site == 0 else 1  # the curve is that of the site that is there all the time
    words += ["--quiet", "--test", str(looks), "--socket", str(socket), *([] if options.alike else ["--unlike"])]
    return train.train(train.arguments().parse_args(words), say=lambda _: None)


if __name__ == "__main__":
    sys.exit(main())
