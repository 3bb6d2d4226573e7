"""The layers of models that are known: what `Coordinator.parallelize` asks for, without writing it down.

A layer takes one tensor and gives one. Hugging Face's models compute more beside that: masks, rotary tables, positions.
All of it follows from the shape of what enters, so each layer here computes its own, and a micro-batch is full
sequences without padding. Every list is tried before it is given: a short sequence through the layers must come to what
the model itself makes of it, so that a model that was changed, or a library that was, is refused and not trained
wrongly. That shows no dropout and no rare case, so only families are listed whose forward passes have nothing else
between the layers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from chaos.tracing import cut, still

LIBRARY = "transformers"
TRIED_TOKENS = 8
TOLERANCE = 1e-4
"""Relative; masks that are given and masks that are implied may take different kernels."""


def of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a model of Hugging Face: embedding, blocks, head. Token numbers (batch, length) enter it, and
    logits leave it.

    Known: causal language models of GPT-2, Llama, Mistral, Qwen2, Qwen3, Gemma, Phi3 and Olmo2; BERT for masked words
    and for classes of sequences. The modules are the model's own, so its state keeps its names. Raises ValueError for
    one whose head shares the embedding's weights (see `untie`).

    Of any other model they are found in its forward pass, where that can be followed (`tracing.cut`); ValueError names
    what prevents it.
    """
    name = _known_name(model)
    if name is None:
        return cut(model)
    if _is_tied(model):
        raise ValueError(
            f"the head of this {name} shares the weights of its embedding, which different workers hold; give it a "
            "copy of its own, which training then changes apart: chaos.layers.untie(model), before parallelize()"
        )
    layers = _KNOWN[name](model)
    _try(model, layers)
    return layers


def untie(model: torch.nn.Module) -> None:
    """Give the head of a model of Hugging Face a copy of the embedding's weights, if it shares them. From then on both
    are trained apart, and the model has as many parameters more."""
    any_model: Any = model
    head, embedding = any_model.get_output_embeddings(), any_model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(embedding.weight.detach().clone(), embedding.weight.requires_grad)
    any_model.config.tie_word_embeddings = False


def _is_tied(model: Any) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _known_name(model: torch.nn.Module) -> str | None:
    """Of the model's class, or of one that it extends."""
    for kind in type(model).__mro__:
        if kind.__module__.partition(".")[0] == LIBRARY and kind.__name__ in _KNOWN:
            return kind.__name__
    return None


class Gpt2Embedding(torch.nn.Module):
    """Tokens and positions."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = base.wte, base.wpe, base.drop

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        found: torch.Tensor = self.drop(self.wte(ids) + self.wpe(positions))
        return found


class DecoderBlock(torch.nn.Module):
    """A block that looks back. `rotary`: makes the tables of positions, where they do not enter with the embedding;
    `window`: whether it looks back only as far as the model's sliding window."""

    def __init__(self, block: Any, config: Any, *, rotary: Any = None, window: bool = False) -> None:
        super().__init__()
        self.block = block
        self.rotary = copy.deepcopy(rotary)  # a table a layer: a layer that goes takes its own along
        self._config, self._window = config, window

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        masking = _masking()
        make = masking.create_sliding_window_causal_mask if self._window else masking.create_causal_mask
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        given: dict[str, Any] = {"position_ids": positions}
        if self.rotary is not None:
            given["position_embeddings"] = self.rotary(hidden, position_ids=positions)
        mask = make(
            config=self._config,
            inputs_embeds=hidden,
            attention_mask=None,
            position_ids=positions,
            **_no_cache(make),
        )
        found: torch.Tensor = self.block(hidden, attention_mask=mask, use_cache=False, **given)
        return found


class BertBlock(torch.nn.Module):
    """A block that looks at the whole sequence."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.block(hidden, None)
        return found


def _decoder(model: Any) -> list[torch.nn.Module]:
    """Llama and those built like it."""
    base, config = model.model, model.config
    kinds = getattr(config, "layer_types", None)
    everywhere = kinds is None and getattr(config, "sliding_window", None) is not None
    windows = [everywhere if kinds is None else kinds[i] == "sliding_attention" for i in range(len(base.layers))]
    blocks = [
        DecoderBlock(block, config, rotary=base.rotary_emb, window=window)
        for block, window in zip(base.layers, windows, strict=True)
    ]
    return [base.embed_tokens, *blocks, torch.nn.Sequential(base.norm, model.lm_head)]


def _gpt2(model: Any) -> list[torch.nn.Module]:
    base = model.transformer
    blocks = [DecoderBlock(block, model.config) for block in base.h]
    return [Gpt2Embedding(base), *blocks, torch.nn.Sequential(base.ln_f, model.lm_head)]


def _bert_masked(model: Any) -> list[torch.nn.Module]:
    base = model.bert
    return [base.embeddings, *map(BertBlock, base.encoder.layer), model.cls]


def _bert_classes(model: Any) -> list[torch.nn.Module]:
    base = model.bert
    head = torch.nn.Sequential(base.pooler, model.dropout, model.classifier)
    return [base.embeddings, *map(BertBlock, base.encoder.layer), head]


_KNOWN: Mapping[str, Callable[[Any], list[torch.nn.Module]]] = {
    "GPT2LMHeadModel": _gpt2,
    "LlamaForCausalLM": _decoder,
    "MistralForCausalLM": _decoder,
    "Qwen2ForCausalLM": _decoder,
    "Qwen3ForCausalLM": _decoder,
    "GemmaForCausalLM": _decoder,
    "Phi3ForCausalLM": _decoder,
    "Olmo2ForCausalLM": _decoder,
    "BertForMaskedLM": _bert_masked,
    "BertForSequenceClassification": _bert_classes,
}


def _masking() -> Any:
    """The library is there, since the model is of it."""
    from transformers import masking_utils

    return masking_utils


def _no_cache(make: Callable[..., Any]) -> dict[str, None]:
    """The argument that says that nothing is kept of former tokens: its name depends on the version."""
    return {name: None for name in ("cache", "past_key_values") if name in inspect.signature(make).parameters}


def _try(model: Any, layers: list[torch.nn.Module]) -> None:
    """Raises ValueError if the layers do not compute what the model does."""
    embedding = model.get_input_embeddings()
    ids = torch.arange(TRIED_TOKENS, device=embedding.weight.device).unsqueeze(0) % embedding.num_embeddings
    with torch.no_grad(), still(model, *layers):
        expected: torch.Tensor = model(input_ids=ids).logits
        found: torch.Tensor = ids
        for layer in layers:
            found = layer(found)
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        raise ValueError(
            f"the layers of this {type(model).__name__} do not compute what the model itself does: it was changed, or "
            f"this version of {LIBRARY} computes otherwise; give layers= yourself, or keep the model whole with "
            "replicate()"
        )
