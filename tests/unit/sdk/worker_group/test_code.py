"""Workers that compute with the same code have one digest of it, whatever their numbers and devices are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch adapter needs torch")

HELPERS = """
import torch
SCALE = 2.0
def scaled(value):
    return value * SCALE
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.linear(scaled(x))
"""

SCRIPT = """
import functools, os, sys
import torch
import helpers
from chaos.worker_group.code import code_digest
rank = int(os.environ["CHAOS_WORKER"])
def plain(output, target):
    return helpers.scaled((output - target).pow(2).mean())
def other(output, target):
    return helpers.scaled((output - target).abs().mean())
def among(output, target):
    return output.sum() if output.dim() in {0, 1, 2, 3} and "a" in {"a", "b", "c", "d"} else target
def on(device):
    return lambda output, target, own=rank: plain(output.to(device), target)
class Loss(torch.nn.Module):
    def forward(self, output, target):
        return plain(output, target)
hooked = helpers.Block()
if rank:
    hooked.register_forward_hook(lambda *_: print("seen"))
print(code_digest(eval(sys.argv[1])))
"""


def digest(folder: Path, computed: str, *, rank: int = 0, helpers: str = HELPERS, script: str = SCRIPT) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "helpers.py").write_text(helpers)
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "CHAOS_WORKER": str(rank), "PYTHONHASHSEED": str(rank + 1)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a file is changed within the same second
    command = [sys.executable, str(folder / "train.py"), computed]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip(), found.stderr
    return found.stdout


ALIKE = (
    "[plain, among, on(f'cuda:{rank}'), functools.partial(plain, target=rank), Loss(), hooked, helpers.Block(), "
    "torch.nn.CrossEntropyLoss(), torch.nn.functional.mse_loss, torch.compile(plain), torch.compile(Loss()), max, rank]"
)


def test_numbers_devices_hooks_and_the_order_of_sets_make_no_difference(tmp_path: Path) -> None:
    found = {digest(tmp_path, ALIKE, rank=rank) for rank in (0, 1, 2)}
    found.add(digest(tmp_path / "elsewhere", ALIKE, script=f"# a comment\n\n{SCRIPT}"))
    assert len(found) == 1


@pytest.mark.parametrize(
    "loss",
    [
        "[plain if rank == 0 else other]",
        "[functools.partial(plain if rank == 0 else other)]",
        "[(lambda loss: lambda *given: loss(*given))(plain if rank == 0 else other)]",
        "[torch.nn.MSELoss() if rank == 0 else torch.nn.L1Loss()]",
        "[torch.nn.functional.mse_loss if rank == 0 else torch.nn.functional.l1_loss]",
        "[torch.compile(plain if rank == 0 else other)]",
    ],
)
def test_a_loss_that_is_chosen_by_the_worker_s_number_is_seen(tmp_path: Path, loss: str) -> None:
    assert digest(tmp_path, loss) != digest(tmp_path, loss, rank=1)


@pytest.mark.parametrize("computed", ["[plain]", "[helpers.Block()]", "[Loss()]"])
def test_an_edit_of_a_file_beside_the_script_is_seen_where_the_training_calls_it(tmp_path: Path, computed: str) -> None:
    edited = HELPERS.replace("value * SCALE", "value + SCALE")
    assert digest(tmp_path, computed) != digest(tmp_path, computed, helpers=edited)
    assert digest(tmp_path, computed) == digest(tmp_path, computed, helpers=f"{HELPERS}\ndef more(): pass\n")
