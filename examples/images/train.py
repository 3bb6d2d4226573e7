"""Train ResNet-101, AlexNet or VGG-11 on pictures of clothes together with other sites.

python train.py --model vgg11 --small                # with a running chaosd; the sites share the pictures
python train.py --model vgg11 --small --share 0      # this site has pictures of its own; another share for each
python train.py --model vgg11 --small --standalone   # alone
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several sites on one machine would fight for its cores

import torch
from image_data import HERE, BadData, load, shares
from image_models import MODELS, new_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from chaos import ChaosError, Coordinator, Update
from chaos.data import ElasticSampler

Batch = tuple[torch.Tensor, torch.Tensor]


def main() -> int:
    options = arguments().parse_args()
    torch.set_num_threads(options.threads)
    try:
        train(options, say=partial(print, flush=True))
    except (BadData, ChaosError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace, say: Callable[[str], object] = print) -> dict[int, float]:
    """Until `--epochs` of the run are over, or this site leaves. Accuracy in per cent on the test pictures, after each
    epoch that this site has seen the end of, which `say` is told."""
    device = torch.device(options.device)
    pictures, test = load(options.data, "train"), load(options.data, "t10k")
    model = new_model(options.model, options.seed, small=options.small).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4)

    def clip(update: Update) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the average: the same at every site

    own = options.share is not None
    alike = {"model": options.model, "small": options.small, "pictures of its own": own}
    accuracy: dict[int, float] = {}
    with Coordinator(options.socket, options.standalone, verbose=not options.quiet) as coordinator:
        if own:  # an epoch: every site goes once through its own pictures
            order = torch.Generator().manual_seed(options.share)
            loader = DataLoader(share_of(pictures, options), options.batch, True, generator=order, drop_last=True)
            epochs: Coordinator | ElasticSampler = coordinator
            dealt: dict[str, Any] = {"rounds_per_epoch": len(loader)}
        else:  # an epoch: every picture is trained on once, by some site
            epochs = ElasticSampler(len(pictures), options.batch, seed=options.seed)
            loader = DataLoader(pictures, batch_sampler=epochs)
            dealt = {"sampler": epochs}
        coordinator.register(model=model, optimizer=optimizer, on_average=clip, alike=alike, **dealt)
        epoch = epochs.epoch
        for inputs, wanted in over_and_over(loader):
            loss = cross_entropy(model(inputs.to(device)), wanted.to(device))
            if not loss.isfinite():
                raise ChaosError("the loss is not finite any more: the training has diverged; try a smaller --lr")
            loss.backward()
            if not coordinator.step(samples=len(wanted)):
                break
            coordinator.log(loss=loss.item())
            if epochs.epoch > epoch:
                epoch = epochs.epoch
                accuracy[epoch] = accuracy_of(model, test, options.test)
                told = f"epoch {epoch}, round {coordinator.round}: accuracy {accuracy[epoch]:.1f} %"
                say(f"{told}, state {coordinator.state_digest()[:16]}")
            if epoch >= options.epochs or coordinator.capture_exit_event():
                coordinator.request_node_exit()
                break
    return accuracy


def share_of(pictures: TensorDataset, options: argparse.Namespace) -> Subset[Batch]:
    """What this site alone has."""
    found = shares(pictures.tensors[1].numpy(), options.sites, options.size, unlike=options.unlike, seed=options.seed)
    return Subset(pictures, found[options.share].tolist())


def over_and_over(loader: Iterable[Batch]) -> Iterator[Batch]:
    """The run counts rounds, not the passes over what one site has."""
    while True:
        yield from loader


@torch.no_grad()
def accuracy_of(model: torch.nn.Module, test: TensorDataset, count: int) -> float:
    """In per cent, on the first `count` test pictures."""
    device = next(model.parameters()).device
    model.eval()
    right = 0
    for inputs, wanted in DataLoader(Subset(test, range(min(count, len(test)))), 250):
        right += int((model(inputs.to(device)).argmax(1).cpu() == wanted).sum())
    model.train()
    return 100.0 * right / min(count, len(test))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="vgg11", help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="an eighth of the channels: for processors")
    parser.add_argument("--data", type=Path, default=HERE, help="folder of Fashion-MNIST's files (default: an extract)")
    parser.add_argument("--share", type=int, help="train on pictures of this site's own: which share, from 0")
    parser.add_argument("--sites", type=int, default=6, help="among how many those are dealt (default: %(default)s)")
    parser.add_argument("--size", type=int, default=160, help="pictures of a share (default: %(default)s)")
    parser.add_argument("--unlike", action="store_true", help="a share has more of some classes than of others")
    parser.add_argument("--epochs", type=int, default=20, help="of the run (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="pictures a step of this site (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="of SGD (default: %(default)s)")
    parser.add_argument("--test", type=int, default=1000, help="test pictures to look at (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the beginning and of the shares; alike at all sites")
    parser.add_argument("--device", default="cpu", help="for example cuda (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    parser.add_argument("--quiet", action="store_true", help="say nothing of joining and leaving")
    return parser


if __name__ == "__main__":
    sys.exit(main())
