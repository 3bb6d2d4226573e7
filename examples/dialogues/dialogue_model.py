"""GPT-2 with low-rank adapters (Hu and others, LoRA, 2021): the base from a folder or from a configuration.

Without a tokenizer in the folder a token is a byte.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"  # a base comes from a folder, nothing is fetched

import torch
import transformers
from dialogue_data import Encode
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of one library about another
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {
    "tiny": {"vocab_size": 256, "n_positions": 128, "n_embd": 96, "n_layer": 3, "n_head": 4},
    "small": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
}
"""0.36, 124, 355, 774 million parameters: all but `tiny` as published (Radford and others, 2019)."""

ADAPTED = r".*attn\.c_(attn|proj)"
RANK, ALPHA = 8, 16
_LOADING = threading.Lock()
"""transformers changes torch for the whole process while it makes a model."""


def new_base(size: str, seed: int) -> GPT2LMHeadModel:
    """Untrained; the same bits for the same arguments."""
    with _LOADING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drops = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        return GPT2LMHeadModel(GPT2Config(**SIZES[size], **drops, bos_token_id=0, eos_token_id=0))


def load_base(folder: Path) -> GPT2LMHeadModel:
    """What `save_pretrained` wrote, whoever trained it. Raises OSError, ValueError."""
    with _LOADING:
        return GPT2LMHeadModel.from_pretrained(folder, local_files_only=True)


def encoder(folder: Path | None) -> Encode:
    """From text to tokens: of the folder's tokenizer, else bytes."""
    if folder is not None and (folder / "tokenizer_config.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return lambda text: tokenizer(text)["input_ids"]

    def as_bytes(text: str) -> Sequence[int]:
        return text.encode()

    return as_bytes


def with_adapters(base: GPT2LMHeadModel, seed: int) -> torch.nn.Module:
    """LoRA of rank 8 on the projections of the attention; with GPT-2 small 442,368 parameters, 1.7 MiB."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=ADAPTED, fan_in_fan_out=True)
    with _LOADING:
        model: torch.nn.Module = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            torch.nn.init.normal_(parameter.data, std=parameter.shape[1] ** -0.5, generator=generator)
    return model
