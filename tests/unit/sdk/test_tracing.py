"""Models with a forward pass of their own are cut where one tensor alone goes on, and compute what they did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from chaos.tracing import Uncut, cut

WIDTH, WORDS = 16, 20


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = x + self.drop(self.back(functional.gelu(self.wide(self.norm(x)))))
        return left


class Attention(nn.Module):
    """What it does depends on the shape of what enters, so it is left as one call."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.full((64, 64), float("-inf")), 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if length > 64:
            raise ValueError("too long")
        found = self.heads(x, x, x, attn_mask=self.mask[:length, :length], need_weights=False)[0]
        return x + functional.dropout(found, 0.1, self.training)


class Language(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(64, WIDTH))
        self.blocks = nn.ModuleList([kind() for _ in range(2) for kind in (Attention, Feed)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.tokens(ids) + self.places[: ids.size(1)]
        for block in self.blocks:
            x = block(x) * self.scale
        found: torch.Tensor = self.head(self.norm(x))
        return found if targets is None else functional.cross_entropy(found, targets)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.rest = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)])
        self.relu, self.last = nn.ReLU(inplace=True), nn.Linear(8 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        for each in self.rest:
            x = x + self.relu(each(x))
        found: torch.Tensor = self.last(torch.flatten(functional.adaptive_avg_pool2d(x, 4), 1))
        return found


def through(layers: list[nn.Module], value: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        value = layer(value)
    return value


@pytest.mark.parametrize(
    ("make", "entered", "count"),
    [
        (Language, lambda: torch.randint(0, WORDS, (2, 8)), 7),
        (Pictures, lambda: torch.randn(2, 3, 8, 8), 5),
    ],
)
def test_the_layers_are_all_of_the_model_and_compute_what_it_does(
    make: Callable[[], nn.Module], entered: Callable[[], torch.Tensor], count: int
) -> None:
    torch.manual_seed(0)
    model, value = make(), entered()
    layers = cut(model)
    assert len(layers) == count and all(list(layer.parameters()) for layer in layers)
    assert sorted(id(p) for layer in layers for p in layer.parameters()) == sorted(id(p) for p in model.parameters())
    assert sum(len(layer.state_dict()) for layer in layers) == len(model.state_dict()), "no table became state"
    torch.manual_seed(1)
    expected = model(value)
    torch.manual_seed(1)
    found = through(layers, value)
    assert torch.equal(found, expected)
    gradients = torch.autograd.grad(expected.sum(), list(model.parameters()))
    again = torch.autograd.grad(found.sum(), list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
    model.eval()
    for layer in layers:
        layer.eval()
    assert torch.equal(through(layers, value), model(value)), "after eval() too"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.middle(self.embed(x)), self.embed.weight)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)


class Around(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.two(self.one(x)) + x
        return left


class Branches(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.one(x) if x.sum() > 0 else self.two(x)
        return left


class Named(Pair):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.two(self.one(x))}


class Switched(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.one(x)
        left: torch.Tensor = self.two(x)
        return left


class Trained(Pair):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left: torch.Tensor = self.two(functional.dropout(self.one(x), 0.5, self.training))
        return left


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Tied, "the weights 'embed.weight' are used before and after 'middle'"),
        (Around, "after 'one' more than one value goes on"),
        (Branches, "forward pass of Branches cannot be followed .*control flow"),
        (Named, "forward pass of Named gives a .*dict and not one tensor"),
        (Switched, "forward pass of Switched cannot be followed .it switches gradients or autocast"),
        (Trained, "forward pass of Trained cannot be followed .it depends on self.training"),
        (lambda: nn.Linear(3, 3), "Linear cannot be cut into layers: its parameters are used in one place only"),
    ],
    ids=("tied", "around", "branches", "named", "switched", "trained", "single"),
)
def test_what_cannot_be_cut_is_said_with_the_remedy(make: Callable[[], nn.Module], text: str) -> None:
    with pytest.raises(Uncut, match=text) as refused:
        cut(make())
    assert "layers=lambda m:" in str(refused.value) and "replicate()" in str(refused.value)
