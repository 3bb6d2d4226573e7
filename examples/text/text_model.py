"""A small GPT over bytes, and a text that every Python has: its own manual of topics, 400 kB and more of English.

The pages are dealt to the sites, so each has a text of its own; the last tenth is held out for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

BYTES = 256
HELD_OUT = 0.1


class Block(nn.Module):
    """Attention to what came before, then two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class SmallGPT(nn.Module):
    """Bytes in, scores of the next byte out."""

    def __init__(self, *, width: int, blocks: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, BYTES, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        scores: torch.Tensor = self.scores(self.norm(h))
        return scores


def new_model(seed: int, *, width: int = 96, blocks: int = 3, heads: int = 4, length: int = 64) -> SmallGPT:
    """The same bits for the same arguments."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallGPT(width=width, blocks=blocks, heads=heads, length=length)


class Text:
    """A site's pages, as one row of bytes. site: from 0 to sites - 1."""

    def __init__(self, *, site: int, sites: int, length: int) -> None:
        pages = [topics[name].encode() for name in sorted(topics)]
        kept = sorted(range(len(pages)), key=lambda index: (index * 7919) % len(pages))  # no two neighbours together
        border = round(len(kept) * (1 - HELD_OUT))
        self._length = length
        self.training = _row(pages[index] for index in kept[:border][site::sites])
        self.held_out = _row(pages[index] for index in kept[border:])

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """`size` pieces of this site's text, and the same one byte on."""
        starts = torch.randint(len(self.training) - self._length - 1, (size,), generator=generator)
        return _pieces(self.training, starts, self._length)

    def test(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`size` pieces of the text that nobody trains on, always the same."""
        starts = torch.linspace(0, len(self.held_out) - self._length - 2, size).long()
        return _pieces(self.held_out, starts, self._length)


def loss_of(model: nn.Module, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean over all bytes, in nats."""
    return functional.cross_entropy(model(x).flatten(0, 1), wanted.flatten())


def _row(pages: Iterable[bytes]) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"".join(pages)), dtype=torch.uint8).long()


def _pieces(row: torch.Tensor, starts: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    index = starts[:, None] + torch.arange(length + 1)
    pieces = row[index]
    return pieces[:, :-1], pieces[:, 1:]
