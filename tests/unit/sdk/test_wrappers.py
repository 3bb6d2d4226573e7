"""What a site has wrapped its model in is its own affair; a model that is in pieces is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import chaos
from chaos.frameworks.torch import TorchFramework
from chaos_protocols.wire.state_spec import first_difference, state_spec
from chaos_protocols.wire.worker import StateSpec


def new_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2)))


def spec_of(model: nn.Module) -> StateSpec:
    optimizer = torch.optim.AdamW(model.parameters())
    framework = TorchFramework({"model": model}, {"optimizer": optimizer}, {}, set_to_none=True)
    framework.release()
    return state_spec(entry.item for entry in framework.items)


def test_compiled_model_has_the_names_of_the_plain_one() -> None:
    plain, inner = new_model(), new_model()
    inner[2] = torch.compile(inner[2])
    assert first_difference(spec_of(plain), spec_of(torch.compile(new_model()))) == ""
    assert first_difference(spec_of(plain), spec_of(inner)) == "", "also where a part of it is compiled"


def test_a_users_own_part_called_module_keeps_its_name() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    names = [tensor.name for tensor in spec_of(Mine()).tensors]
    assert "model.module.weight" in names


IN_A_GROUP = """
import sys, tempfile
import torch.distributed as dist
from torch import compile, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from tests.unit.sdk.test_wrappers import new_model, spec_of

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    wrapped = compile(nn.parallel.DistributedDataParallel(new_model()))
    print(spec_of(wrapped).digest == spec_of(new_model()).digest)
    model = nn.Linear(4, 4)
    weight = distribute_tensor(model.weight.detach(), init_device_mesh("cpu", (1,)), [Shard(0)])
    model.weight = nn.Parameter(weight)
    try:
        spec_of(model)
    except ValueError as error:
        print(error)
    dist.destroy_process_group()
"""


def test_data_parallel_model_has_the_plain_names_and_a_sharded_one_is_refused() -> None:
    """In a process of its own: torch leaves threads and sockets of a process group behind."""
    done = subprocess.run([sys.executable, "-c", IN_A_GROUP], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    same, refusal = done.stdout.splitlines()
    assert same == "True"
    assert "'model.weight' is a DTensor" in refusal and "a site trains with one process as yet" in refusal


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (torch.nn.Linear(2, 1, device="meta"), "'model.weight' lies on the device 'meta'.*load it whole before"),
        (torch.nn.LazyLinear(2), "'model.weight' has no shape yet.*run one batch through the model before"),
        (torch.nn.LazyBatchNorm1d(), "'model.weight' has no shape yet"),
    ],
    ids=["meta", "lazy", "lazy buffers"],
)
def test_a_model_without_numbers_is_refused_before_it_trains(model: torch.nn.Module, told: str) -> None:
    with chaos.Coordinator(standalone=True, verbose=False) as coordinator:
        with pytest.raises(ValueError, match=told):
            coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
