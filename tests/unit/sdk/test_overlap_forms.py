"""Overlap with the backward pass for models as language models have them: one tensor as embedding and as output,
gradients of several passes, scaled losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from chaos import Coordinator, EveryStep
from chaos.sync import pieces
from chaos.testing import LocalRun

WORDS, WIDTH, PASSES = 12, 8, 3


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small model has several."""
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 256)


class Language(torch.nn.Module):
    """What GPT-2 is with a layer in place of its blocks: the words' embedding is also what they are told from, so its
    gradient comes from both ends of the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(4, WIDTH)
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        drawn = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=drawn) / 3)

    def forward(self, said: torch.Tensor) -> torch.Tensor:
        found = self.words(said) + self.places(torch.arange(said.shape[1]))
        logits = self.head(found + torch.tanh(self.layer(found)))
        return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), said[:, 1:].reshape(-1))


def digests(number: int, *, overlap: bool, passes: int) -> Callable[[Path], list[str]]:
    def script(socket: Path) -> list[str]:
        drawn = torch.Generator().manual_seed(number)
        model, found = Language(), []
        with Coordinator(socket, verbose=False, handle_signals=False, sync=EveryStep(overlap=True)) as coordinator:
            coordinator.register(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
            for _ in range(3):
                said = [torch.randint(WORDS, (2, 4), generator=drawn) for _ in range(passes)]
                for part in said[:-1]:
                    (model(part) / passes).backward()
                if overlap:
                    with coordinator.overlap(samples=2 * passes + number):
                        (model(said[-1]) / passes).backward()
                    coordinator.step()
                else:
                    (model(said[-1]) / passes).backward()
                    coordinator.step(samples=2 * passes + number)
                found.append(coordinator.state_digest())
        return found

    return script


@pytest.mark.parametrize("passes", [1, PASSES])
def test_a_tied_embedding_and_accumulated_passes_have_the_bits_of_a_run_without_overlap(passes: int) -> None:
    with LocalRun(sites=2) as run:
        plain = run.together(*(digests(number, overlap=False, passes=passes) for number in (1, 2)))
    with LocalRun(sites=2) as run:
        given = run.together(*(digests(number, overlap=True, passes=passes) for number in (1, 2)))
    assert plain[0] == plain[1] == given[0] == given[1] and len(set(plain[0])) == 3


def test_scaled_losses_are_refused_before_anything_is_given() -> None:
    model = Language()
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    with Coordinator(standalone=True, verbose=False, handle_signals=False, sync=EveryStep(overlap=True)) as coordinator:
        coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        with (
            pytest.raises(ValueError, match=r"overlap\(\) gives gradients as they come.*GradScaler"),
            coordinator.overlap(),
        ):
            raise AssertionError("the pass must not begin")
        del scaler
        with coordinator.overlap():
            model(torch.zeros(1, 4, dtype=torch.long)).backward()
        assert coordinator.step(), "refused once, and not for ever"


def test_checkpoints_with_backward_passes_of_their_own_are_told_what_to_write() -> None:
    """A tied weight has its gradient in two parts then: one of the inner pass, one of the outer."""
    tied = torch.nn.Embedding(5, 3)

    def script(socket: Path) -> None:
        with Coordinator(socket, verbose=False, handle_signals=False) as coordinator:
            optimizer = torch.optim.SGD(tied.parameters(), lr=0.1)
            coordinator.register(model=tied, optimizer=optimizer, sync=EveryStep(overlap=True))
            for reentrant in (False, True):
                rows = tied(torch.arange(4))
                loss = checkpoint(lambda rows: (rows @ tied.weight.T).sum(), rows, use_reentrant=reentrant)
                with coordinator.overlap():
                    loss.backward()
                coordinator.step()

    with LocalRun(sites=1) as run, pytest.raises(ValueError, match=r"came twice .*use_reentrant=False"):
        run.together(script)
