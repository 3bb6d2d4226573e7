"""An ordinary loop on several real workers: whoever is killed, the training is that of one process, bit by bit."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

import pytest
from tests.integration import replica_training
from tests.integration.site_training import STEPS
from tests.rigs.worker_group import STOPPED_S, Ran, launch, train

from chaos_protocols.worker_group import suspicion
from chaosd.worker_group import processes

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = Path(replica_training.__file__)


@cache
def alone() -> list[tuple[str, ...]]:
    """Digest of the whole state after each step of the same script in one process."""
    found: dict[int, tuple[str, ...]] = {}

    def after(coordinator: replica_training.Coordinator) -> None:
        assert coordinator._replicated is not None
        found[coordinator.round] = (coordinator._replicated.digest(),)

    replica_training.train(lambda step, where: None, after)
    return [found[step] for step in range(1, STEPS + 1)]


def check(ran: Ran) -> None:
    assert ran.failed == "", ran.happened
    missing = [step for step in range(1, STEPS + 1) if step not in {each.fields["step"] for each in ran.of("step")}]
    assert len(missing) <= max(1, len(ran.struck)), "a last answer may die with its worker, once a loss"
    assert ran.digests == [digests for step, digests in enumerate(alone(), 1) if step not in missing]


@pytest.mark.parametrize("workers", [2, 8])
async def test_replicas_train_what_one_process_trains(tmp_path: Path, workers: int) -> None:
    ran = await train(tmp_path, dp=workers, pp=1, script=SCRIPT)
    check(ran)
    assert all(0.5 < float(str(each.fields["loss"])) < 2.0 for each in ran.of("step")), "as the script has logged it"


@pytest.mark.parametrize("where", ["backward", "reduced", "update"])
async def test_a_replica_killed_in_a_step_costs_at_most_that_step(tmp_path: Path, where: str) -> None:
    ran = await train(tmp_path, dp=3, pp=1, faults=f"1:2:{where}", script=SCRIPT)
    check(ran)
    assert [place for _, place, _ in ran.struck] == [where] and len(ran.of("plan")) == 2
    resumed = ran.of("plan")[-1].fields["step"]
    assert resumed in {"update": {3}, "reduced": {2, 3}}.get(where, {2})


async def test_a_spare_and_a_process_started_anew_get_the_state_of_their_peers(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=2, pp=1, spares=1, restarts=1, faults="0:1:backward;1:3:forward", script=SCRIPT)
    check(ran)
    assert "spare" in ran.policies and int(str(ran.of("plan")[1].fields["moved_bytes"])) > 0


async def test_a_second_loss_while_groups_are_built_is_survived(tmp_path: Path) -> None:
    check(await train(tmp_path, dp=4, pp=1, faults="3:1:backward;1:2:building", script=SCRIPT))


async def test_a_replica_that_is_stopped_in_its_backward_pass_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspicion, "FIRST_LIMIT_S", STOPPED_S)
    faults = f"1:3:backward:{int(signal.SIGSTOP)}"
    ran = await train(tmp_path, dp=2, pp=1, faults=faults, failure_timeout_s=4.0, script=SCRIPT)
    check(ran)
    (suspected,) = ran.of("worker-suspected")
    assert suspected.fields["worker"] == 1 and "its process is stopped" in suspected.reason


async def test_replicas_cannot_be_cut_into_stages_and_the_sentence_says_so(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=1, pp=2, script=SCRIPT)
    assert "parallelize" in ran.failed and "--pp" in ran.failed


async def test_a_loop_that_raises_ends_the_training_with_its_words(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(
        "from tests.integration.replica_training import *\n"
        "def touch(step, where):\n"
        "    if step == 2: raise RuntimeError('the label is wrong')\n"
        "train(touch, lambda coordinator: None)\n",
        encoding="utf-8",
    )
    ran = await train(tmp_path, dp=2, pp=1, script=script, restarts=3)
    assert "RuntimeError: the label is wrong" in ran.failed and len(ran.of("plan")) == 1


TRAINING = """
import contextlib, sys
import torch
from chaos import Coordinator

torch.manual_seed(1)
coordinator = Coordinator(standalone=True)
with coordinator if {block} else contextlib.nullcontext():
    model = coordinator.replicate(torch.nn.Linear(4, 1))
    coordinator.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.ones(64, 4))
    for (inputs,) in coordinator.loader(data, global_batch=8, micro_batch=2, seed=1, steps=4):
        model(inputs).sum().backward()
        coordinator.step()
        if coordinator.round == {round}:
            {end}
"""
RAISES, EXITS = "raise RuntimeError('the label is wrong')", "sys.exit('the label is wrong')"


async def ending(tmp_path: Path, round: int, end: str, *, block: bool) -> Ran:
    """Of a script that ends so after this round. A bare `sys.exit` needs new interpreters, whose own end counts."""
    script = tmp_path / "bad.py"
    script.write_text(TRAINING.format(round=round, end=end, block=block), encoding="utf-8")
    start = processes.launch if end == EXITS and not block else launch
    return await train(tmp_path, dp=2, pp=1, script=script, restarts=3, launch=start)


@pytest.mark.parametrize(("end", "block"), [(RAISES, False), (EXITS, False), (EXITS, True)])
async def test_a_script_that_fails_ends_the_training_with_its_words(tmp_path: Path, end: str, block: bool) -> None:
    """Its workers were taken for lost, one after the other, and started anew to fail again; or for done."""
    ran = await ending(tmp_path, 1, end, block=block)
    assert ": the label is wrong" in ran.failed and len(ran.of("plan")) == 1, ran.happened


@pytest.mark.parametrize(("end", "block"), [(RAISES, False), (EXITS, False), (EXITS, True)])
async def test_a_script_that_fails_in_its_loop_after_the_last_step_has_trained_to_the_end(
    tmp_path: Path, end: str, block: bool
) -> None:
    """No worker with state was left, it said, and to start again from a checkpoint."""
    ran = await ending(tmp_path, 4, end, block=block)
    assert ran.failed == "" and "exit code" in ran.failed_after and not ran.of("worker-lost"), ran.happened
