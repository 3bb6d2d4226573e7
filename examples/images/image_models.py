"""The three networks that the Chaos paper trains on pictures, in their forms for 32x32x3 and ten classes.

ResNet-101 (He et al., Deep residual learning for image recognition, 2016: bottlenecks 3, 4, 23, 3; the first
convolution 3x3 without pooling, as usual for small pictures), AlexNet (Krizhevsky et al., 2012, as revised in 2014:
five convolutions) and VGG-11 (Simonyan and Zisserman, 2015, configuration A). All weights are drawn as in He et al.,
Delving deep into rectifiers, 2015. `small` keeps the shape and takes an eighth of the channels, in ResNet
one bottleneck a stage behind a first convolution of stride 2: for processors and for tests.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

CLASSES = 10
MODELS = ("resnet101", "alexnet", "vgg11")


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a short cut; four times as many channels come out as `channels`."""

    def __init__(self, inside: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolved(inside, channels, 1),
            *_convolved(channels, channels, 3, stride),
            *_convolved(channels, 4 * channels, 1)[:-1],
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inside != 4 * channels:
            self.short = nn.Sequential(*_convolved(inside, 4 * channels, 1, stride)[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet101(*, small: bool) -> nn.Module:
    """42.5 million parameters; small: 130 thousand."""
    channels, counts = (8, (1, 1, 1, 1)) if small else (64, (3, 4, 23, 3))
    layers: list[nn.Module] = [*_convolved(3, channels, 3, stride=2 if small else 1)]
    inside = channels
    for stage, count in enumerate(counts):
        for number in range(count):
            layers.append(Bottleneck(inside, channels << stage, stride=2 if stage and not number else 1))
            inside = 4 * channels << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


def alexnet(*, small: bool) -> nn.Module:
    """36.1 million parameters; small: 120 thousand. Dropout before the two wide layers, but not in the small form."""
    by = 8 if small else 1
    one, two, three, four, wide = 64 // by, 192 // by, 384 // by, 256 // by, 128 if small else 4096
    relu, pool = nn.ReLU, nn.MaxPool2d
    features = [nn.Conv2d(3, one, 5, padding=2), relu(), pool(2), nn.Conv2d(one, two, 5, padding=2), relu(), pool(2)]
    features += [nn.Conv2d(two, three, 3, padding=1), relu(), nn.Conv2d(three, four, 3, padding=1), relu()]
    features += [nn.Conv2d(four, four, 3, padding=1), relu(), pool(2)]
    return nn.Sequential(*features, *_head(four * 4 * 4, wide, small))


def vgg11(*, small: bool) -> nn.Module:
    """28.1 million parameters; small: 170 thousand."""
    features: list[nn.Module] = []
    inside = 3
    for channels in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if not channels:
            features.append(nn.MaxPool2d(2))
            continue
        outside = channels // 8 if small else channels
        features += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU()]
        inside = outside
    return nn.Sequential(*features, *_head(inside, 128 if small else 4096, small))


def new_model(name: str, seed: int, *, small: bool) -> nn.Module:
    """One of `MODELS`, the same bits for the same arguments."""
    makers: dict[str, Callable[..., nn.Module]] = {"resnet101": resnet101, "alexnet": alexnet, "vgg11": vgg11}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = makers[name](small=small)
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        return model


def _convolved(inside: int, outside: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inside, outside, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outside), nn.ReLU()]


def _head(inside: int, wide: int, small: bool) -> list[nn.Module]:
    drop = 0.0 if small else 0.5
    return [
        nn.Flatten(),
        nn.Dropout(drop),
        nn.Linear(inside, wide),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(wide, wide),
        nn.ReLU(),
        nn.Linear(wide, CLASSES),
    ]
