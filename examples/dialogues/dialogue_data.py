"""Conversations of the Chit-Chat data set, dealt to the sites; some are held out for everybody.

A conversation is a text: a line for each turn, with "A: " or "B: " before it, and an empty line at its end.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent / "chitchat" / "dataset.json.gz"
"""280 conversations of the data set, without senders and times."""

HELD_OUT = 0.15
Encode = Callable[[str], Sequence[int]]


class BadData(Exception):
    """The file is not there, or is none of this data set."""


def load(path: Path) -> list[tuple[str, str]]:
    """Prompt and text of each conversation. `path`: the data set's dataset.json, packed by gzip or not. Raises
    BadData."""
    try:
        data = path.read_bytes()
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        return [(one.get("prompt") or "", _text(one["messages"])) for _, one in sorted(found.items())]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadData(
            f"{path}: is not the data set's dataset.json ({error}); the Python package chitchat-dataset contains it"
        ) from error


class Dialogues:
    """What one site trains on, and what is held out for all, as rows of tokens. site: from 0 to sites - 1. by_prompt:
    sites get conversations about other prompts, not a mixture of all."""

    def __init__(
        self, pairs: list[tuple[str, str]], encode: Encode, *, site: int, sites: int, length: int, by_prompt: bool
    ) -> None:
        """`pairs`: prompts and texts. Raises BadData if there is too little for pieces of `length` tokens."""
        count = len(pairs)
        mixed = sorted(range(count), key=lambda index: (index * 7919) % max(count, 1))  # no two neighbours together
        border = round(count * (1 - HELD_OUT))
        training = [pairs[index] for index in mixed[:border]]
        if by_prompt:
            training.sort()
        share = len(training) // max(sites, 1)
        own = training[site * share : (site + 1) * share] if by_prompt else training[site::sites]
        self._length = length
        self.training = _row(own, encode)
        self.held_out = _row([pairs[index] for index in mixed[border:]], encode)
        for name, row in (("this site", self.training), ("the test", self.held_out)):
            if len(row) < length + 2:
                raise BadData(f"{len(row)} tokens for {name}: too few for pieces of {length}; take fewer sites")

    def batch(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """`size` pieces of this site's conversations, [size, length]."""
        starts = torch.randint(len(self.training) - self._length, (size,), generator=generator)
        return self.training[starts[:, None] + torch.arange(self._length)]

    def test(self, size: int) -> torch.Tensor:
        """`size` pieces of the conversations that nobody trains on, always the same."""
        starts = torch.linspace(0, len(self.held_out) - self._length - 1, size).long()
        return self.held_out[starts[:, None] + torch.arange(self._length)]


def _text(messages: list[list[dict[str, Any]]]) -> str:
    turns = [" ".join(one["text"] for one in turn) for turn in messages]
    return "".join(f"{'AB'[number % 2]}: {turn}\n" for number, turn in enumerate(turns)) + "\n"


def _row(conversations: list[tuple[str, str]], encode: Encode) -> torch.Tensor:
    return torch.tensor([token for _, text in conversations for token in encode(text)], dtype=torch.long)
