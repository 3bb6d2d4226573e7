"""What the scripts of this folder train: a tiny GPT-2, made from its configuration, on the manual that comes with
Python, byte by byte. Nothing is downloaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pydoc_data.topics import topics

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several sites on one machine would fight for its cores
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 32


class Pages(Dataset[dict[str, torch.Tensor]]):
    """Pieces of the pages of one site, in the form that a causal model of transformers takes."""

    def __init__(self, site: int, sites: int) -> None:
        pages = [topics[name].encode() for name in sorted(topics)][site::sites]
        row = torch.frombuffer(bytearray(b"".join(pages)), dtype=torch.uint8).long()
        self._pieces = row[: len(row) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._pieces[index], "labels": self._pieces[index]}


def new_model(seed: int) -> GPT2LMHeadModel:
    """The same bits for the same seed."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def batches(loader: torch.utils.data.DataLoader[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    """Over and over: a run counts steps, not the passes over what one site has."""
    while True:
        yield from loader


def arguments(text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=int, default=0, help="whose pages this script reads, from 0")
    parser.add_argument("--sites", type=int, default=2, help="among how many the pages are dealt (default %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of the run (default %(default)s)")
    parser.add_argument("--every", type=int, default=0, help="local steps a round; 0: average every step's gradients")
    parser.add_argument("--batch", type=int, default=8, help="samples a step of this site (default %(default)s)")
    parser.add_argument("--lora", action="store_true", help="train adapters of PEFT alone, on a frozen base")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    return parser.parse_args()


def with_adapters(model: GPT2LMHeadModel) -> torch.nn.Module:
    """LoRA of rank 4 on the attention."""
    from peft import LoraConfig, get_peft_model

    adapted: torch.nn.Module = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
    )
    return adapted
