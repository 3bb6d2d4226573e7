"""A small GPT over bytes, as a list of layers, and the project's own documents as its text."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
BYTES = 256


class Embedding(nn.Module):
    """Bytes and their places to vectors."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(length, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))


class Block(nn.Module):
    """Attention to what came before, then two linear layers; both with dropout."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.between(x)))))


class Head(nn.Module):
    """Vectors to scores of the next byte."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, BYTES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(x))


class Text(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of the documents; the target is the piece one byte on."""

    def __init__(self, length: int) -> None:
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        data = b"".join(page.read_bytes() for page in pages)
        self.length = length
        self.data = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = index * self.length
        return self.data[at : at + self.length], self.data[at + 1 : at + self.length + 1]


def layers(width: int, blocks: int, heads: int, length: int, dropout: float) -> nn.Sequential:
    """The whole model, the same in every process."""
    torch.manual_seed(1)
    middle = [Block(width, heads, dropout) for _ in range(blocks)]
    return nn.Sequential(Embedding(width, length), *middle, Head(width))


def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean over all bytes."""
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())
