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
for computed in sys.argv[1:]:
    print(code_digest(eval(computed)))
"""


def digests(
    folder: Path, computed: tuple[str, ...], *, rank: int = 0, helpers: str = HELPERS, script: str = SCRIPT
) -> list[str]:
    """Of each of these, as a worker with this number, in a process of its own, has it."""
    folder.mkdir(exist_ok=True)
    (folder / "helpers.py").write_text(helpers)
    (folder / "train.py").write_text(script)
    environment = {**os.environ, "CHAOS_WORKER": str(rank), "PYTHONHASHSEED": str(rank + 1)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a file is changed within the same second
    command = [sys.executable, str(folder / "train.py"), *computed]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert len(found) == len(computed) and all(found)
    return found


ALIKE = (
    "[plain, among, on(f'cuda:{rank}'), functools.partial(plain, target=rank), Loss(), hooked, helpers.Block(), "
    "torch.nn.CrossEntropyLoss(), torch.nn.functional.mse_loss, torch.compile(plain), torch.compile(Loss()), max, rank]"
)


def test_numbers_devices_hooks_and_the_order_of_sets_make_no_difference(tmp_path: Path) -> None:
    first = digests(tmp_path, (ALIKE,))
    assert digests(tmp_path / "elsewhere", (ALIKE,), rank=2, script=f"# a comment\n\n{SCRIPT}") == first


CHOSEN = (
    "[plain if rank == 0 else other]",
    "[functools.partial(plain if rank == 0 else other)]",
    "[(lambda loss: lambda *given: loss(*given))(plain if rank == 0 else other)]",
    "[torch.nn.MSELoss() if rank == 0 else torch.nn.L1Loss()]",
    "[torch.nn.functional.mse_loss if rank == 0 else torch.nn.functional.l1_loss]",
    "[torch.compile(plain if rank == 0 else other)]",
)


def test_a_loss_that_is_chosen_by_the_worker_s_number_is_seen(tmp_path: Path) -> None:
    first, second = digests(tmp_path, CHOSEN), digests(tmp_path, CHOSEN, rank=1)
    assert [loss for loss, one, other in zip(CHOSEN, first, second, strict=True) if one == other] == []


CALLING = ("[plain]", "[helpers.Block()]", "[Loss()]")


def test_an_edit_of_a_file_beside_the_script_is_seen_where_the_training_calls_it(tmp_path: Path) -> None:
    before = digests(tmp_path, CALLING)
    edited = digests(tmp_path, CALLING, helpers=HELPERS.replace("value * SCALE", "value + SCALE"))
    assert [one for one, was, now in zip(CALLING, before, edited, strict=True) if was == now] == []
    assert digests(tmp_path, CALLING, helpers=f"{HELPERS}\ndef more(): pass\n") == before
