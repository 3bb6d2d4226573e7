"""Models of Hugging Face are cut into layers that compute what they do, and train to the bits of no cut at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chaos import Coordinator, layers

transformers = pytest.importorskip("transformers", reason="transformers is in the extra `integrations`")

VOCABULARY, LENGTH = 40, 6
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=16, n_layer=3, n_head=4, vocab_size=VOCABULARY, n_positions=32, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)
    layers.untie(model)
    return model


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER, **SPECIAL))


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER, **SPECIAL, sliding_window=3))


def qwen2() -> Any:
    config = transformers.Qwen2Config(
        **DECODER, **SPECIAL, use_sliding_window=True, sliding_window=3, max_window_layers=1
    )
    return transformers.Qwen2ForCausalLM(config)


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, **SPECIAL, head_dim=4))


def gemma() -> Any:
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**DECODER, **SPECIAL, head_dim=4))


def phi3() -> Any:
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**DECODER, **SPECIAL))


def olmo2() -> Any:
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**DECODER, **SPECIAL))


def bert_masked() -> Any:
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    layers.untie(model)
    return model


def bert_classes() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, num_labels=VOCABULARY))


MODELS = [gpt2, llama, mistral, qwen2, qwen3, gemma, phi3, olmo2, bert_masked, bert_classes]
Make = Callable[[], Any]


class Sentences(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Token numbers; the target is the first of them."""

    def __init__(self) -> None:
        self._ids = torch.randint(3, VOCABULARY, (32, LENGTH), generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._ids[index], self._ids[index, 0]


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits if logits.dim() == 2 else logits[:, -1], target)


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("make", MODELS)
def test_the_layers_are_all_of_the_model_and_compute_what_it_does(make: Make) -> None:
    torch.manual_seed(0)
    model = make()
    found = layers.of(model)
    assert len(found) == 1 + 3 + 1
    assert {id(p) for each in found for p in each.parameters()} == {id(p) for p in model.parameters()}
    assert model.training and all(each.training for each in found)
    model.eval()
    value = ids = torch.randint(3, VOCABULARY, (2, 2 * LENGTH))
    for each in found:
        value = each(value)
    torch.testing.assert_close(value, model(input_ids=ids).logits)


@pytest.mark.parametrize("make", MODELS)
def test_a_parallel_model_of_them_trains_as_the_model_itself(make: Make) -> None:
    torch.manual_seed(0)
    module, plain = make().eval(), make()
    plain.load_state_dict(module.state_dict())
    plain.eval()
    with Coordinator(standalone=True, handle_signals=False) as coordinator:
        model = coordinator.parallelize(module, loss=loss)
        coordinator.register(model=model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        loader = coordinator.loader(Sentences(), global_batch=8, micro_batch=4, steps=2)
        drawn = [[loader.micro_batch(step, g) for g in range(2)] for step in range(2)]
        for batch in loader:
            model.step(batch)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in drawn:
        optimizer.zero_grad()
        for ids, target in step:
            (loss(plain(input_ids=ids).logits, target) / 2).backward()
        optimizer.step()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(module.get_parameter(name), parameter, msg=name)


def test_a_layer_that_went_and_came_back_computes_what_it_did() -> None:
    """Tables that are no part of the state stay where a layer goes."""
    from chaos.worker_group.chain.layers import chain

    torch.manual_seed(0)
    held = chain(layers.of(llama()))
    for each in held:
        each.train_with(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    value = torch.randn(2, LENGTH, 16)
    expected, other, state = held[2].module(value), held[1].module(value), held[2].state()
    held[2].drop()
    assert torch.equal(held[1].module(value), other), "its table is its own"
    held[2].revive()
    held[2].load(state)
    assert torch.equal(held[2].module(value), expected)


def test_a_head_that_shares_the_embedding_is_refused_with_the_remedy() -> None:
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=4, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)
    with pytest.raises(ValueError, match=r"chaos\.layers\.untie\(model\)"):
        layers.of(model)
    before = model.lm_head.weight.detach().clone()
    layers.untie(model)
    layers.untie(model)
    assert model.lm_head.weight is not model.transformer.wte.weight and torch.equal(model.lm_head.weight, before)
    assert len(layers.of(model)) == 3


def test_a_model_without_a_forward_pass_to_follow_is_refused_with_the_remedy() -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Linear(2, 2)

    with (
        Coordinator(standalone=True, handle_signals=False) as coordinator,
        pytest.raises(ValueError, match=r"forward pass of Own cannot be followed .*layers=lambda m:"),
    ):
        coordinator.parallelize(Own(), loss=loss)


def test_a_model_that_computes_otherwise_is_refused() -> None:
    class Louder(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, *given: Any, **named: Any) -> Any:
            found = super().forward(*given, **named)
            found.logits = 2 * found.logits
            return found

    with pytest.raises(ValueError, match="do not compute what the model itself does"):
        layers.of(Louder(transformers.LlamaConfig(**DECODER, **SPECIAL)))
