"""Several workers of one site, as real processes: whatever is killed where, the training is that of one process.

"That of one process" is meant bit by bit, for parameters and optimizer of all layers after every step.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration import site_training
from tests.integration.site_training import NO_FILES, STEPS
from tests.rigs.worker_group import STOPPED_S, Ran, alone, train

from chaos import Coordinator
from chaos_planner.pipelines.plans.layout import Policy
from chaos_protocols.worker_group import suspicion
from chaos_protocols.worker_group.suspicion import Work
from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened
from chaosd.worker_group.timed_steps import TimedSteps

pytestmark = pytest.mark.usefixtures("one_thread")


def check(ran: Ran, *, plans: int = 2, **training: Any) -> None:
    """It trained to the end, with the bits of one process, and repeated at most one step."""
    assert ran.failed == "" and len(ran.of("plan")) == plans, ran.happened
    missing = [step for step in range(1, STEPS + 1) if step not in {each.fields["step"] for each in ran.of("step")}]
    story = [(each.kind, each.fields.get("generation"), each.fields.get("step")) for each in ran.happened]
    assert len(missing) <= max(1, len(ran.struck)), f"a last answer may die with its worker, once a loss: {story}"
    expected = [digests for step, digests in enumerate(alone(**training), 1) if step not in missing]
    assert ran.digests == expected


@pytest.mark.parametrize(("dp", "pp"), [(2, 2), (1, 3), (4, 1)])
async def test_workers_train_what_one_process_trains(tmp_path: Path, dp: int, pp: int) -> None:
    ran = await train(tmp_path, dp=dp, pp=pp)
    check(ran, plans=1)


@pytest.mark.parametrize("where", ["forward", "backward", "reduce", "reduced", "update"])
async def test_a_worker_killed_in_a_step_is_rerouted_around(tmp_path: Path, where: str) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults=f"1:2:{where}", policies=[Policy.REROUTE])
    check(ran)
    assert ran.policies == ["start", "reroute"] and [place for _, place, _ in ran.struck] == [where]
    resumed = ran.of("plan")[-1].fields["step"]
    allowed = {"update": {3}, "reduced": {2, 3}}.get(where, {2})  # the last sums make the commit, whoever sent them
    assert resumed in allowed, "a step is repeated exactly if it was not committed"
    (recovered,) = ran.of("recovered")
    assert recovered.at_s == ran.of("training")[-1].at_s and "worker 1 is lost" in recovered.reason


async def test_a_worker_that_can_open_no_further_socket_is_lost_and_the_others_go_on(tmp_path: Path) -> None:
    """The training ended for all: its script had failed, it was said, with a traceback of the library's own calls."""
    ran = await train(tmp_path, dp=3, pp=1, faults=f"1:2:forward;2:2:building:{NO_FILES}")
    check(ran, plans=3)
    lost = {each.fields["worker"]: each.reason for each in ran.of("worker-lost")}
    assert set(lost) == {1, 2}
    assert "as many files and sockets open as it may, 3:" in lost[2] and "ulimit -n" in lost[2]


async def test_where_the_first_sockets_cannot_be_opened_the_training_ends_with_the_limit(tmp_path: Path) -> None:
    """All have the same limit: they would be started anew, one after the other, and "no worker is here" told."""
    ran = await train(tmp_path, dp=2, pp=1, faults=f"1:1:building:{NO_FILES}", restarts=3)
    assert ran.of("worker-lost") == [] and "worker 1: TooFewFiles: this process has as many files" in ran.failed


OPENS = """
import os, resource
from tests.integration.site_training import *

def opens(model, report):
    if report.step == {step} and os.environ["CHAOS_WORKER"] in {workers}:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        open(os.devnull)

main(opens)
"""
"""A script that has opened as much as it may, and opens something more."""


async def test_a_worker_whose_script_can_open_no_further_file_is_lost_and_the_others_go_on(tmp_path: Path) -> None:
    """The training ended for all, though what a script has left open may be another worker's tenth part of it."""
    script = tmp_path / "train.py"
    script.write_text(OPENS.format(step=2, workers=["1"]))
    ran = await train(tmp_path, dp=2, pp=1, script=script)
    check(ran)
    (lost,) = ran.of("worker-lost")
    assert lost.fields["worker"] == 1 and "Too many open files" in lost.reason and "`ulimit -n`" in lost.reason


async def test_scripts_that_can_all_open_no_further_file_end_the_training_with_the_limit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(OPENS.format(step=2, workers=["0", "1"]))
    ran = await train(tmp_path, dp=2, pp=1, script=script)
    assert "as many files and sockets open as it may, 3" in ran.failed and "`ulimit -n`" in ran.failed


SPOILT = """
from tests.integration import site_training

class Spoilt(site_training.Points):
    def __init__(self):
        super().__init__()
        self.x[{sample}] = float("nan")

site_training.Points = Spoilt
site_training.main()
"""


@pytest.mark.parametrize("where", ["reduce", "reduced"])
async def test_a_step_with_a_spoilt_sample_is_left_out_also_where_a_worker_dies_in_it(
    tmp_path: Path, where: str
) -> None:
    """All have the bits of before, the rebuilt ones too, and train on."""
    with Coordinator(standalone=True, handle_signals=False, verbose=False) as coordinator:
        coordinator.parallelize(site_training.make_model(), loss=torch.nn.functional.cross_entropy)
        batch = {"global_batch": site_training.GLOBAL_BATCH, "micro_batch": site_training.MICRO_BATCH}
        loader = coordinator.loader(site_training.Points(), **batch, seed=7, steps=STEPS)
        sample = loader.samples(1, 5)[1]
    script = tmp_path / "train.py"
    script.write_text(SPOILT.format(sample=sample))
    ran = await train(tmp_path, dp=2, pp=2, script=script, faults=f"1:1:{where}", skip_not_finite=True)
    assert ran.failed == "" and len(ran.of("plan")) == 2, ran.happened
    skipped = ran.of("step-skipped")
    assert {each.fields["step"] for each in skipped} == {2} and "only number 5 (counted from 0)" in skipped[0].reason
    digests = {each.fields["step"]: each.fields["digests"] for each in ran.of("step")}
    assert digests[1] == alone()[0] and digests.get(2, digests[1]) == digests[1]
    assert len({digests[step] for step in (1, 3, 4, 5, STEPS)}) == STEPS - 1


async def test_timed_workers_tell_what_they_did_in_the_step_of_a_loss_and_after(tmp_path: Path) -> None:
    timed = TimedSteps()
    ran = await train(tmp_path, dp=2, pp=2, spares=1, faults="3:2:backward", timed=timed)
    check(ran)
    found, last = timed.recovery, timed.undisturbed()
    assert found is not None and last is not None
    ((_, _, struck_s),) = ran.struck
    assert found.start_s < struck_s < found.ready_s < found.end_s
    assert all(span.end_s < struck_s for span in found.spans[3]), "the dead tell nothing"
    for worker in {0, 1, 2}:
        works = [span.work for span in found.spans[worker]]
        built = works.index(Work.BUILDING)
        assert Work.UPDATE in works[built:] and (worker != 2 or Work.FORWARD in works[:built]), (worker, works)
    assert last.plan.generation == 2 and last.spans.keys() == {0, 1, 2, 4}
    for worker, spans in last.spans.items():
        assert all(one.end_s <= other.start_s + 1e-4 for one, other in itertools.pairwise(spans)), worker
    for kind, layer in itertools.product((Work.FORWARD, Work.BACKWARD), range(len(last.plan.hello.layers))):
        holders = [spans for worker, spans in last.spans.items() if layer in last.plan.layers[worker]]
        passes = [span.micro_batch for spans in holders for span in spans if span.work is kind]
        assert sorted(passes) == list(range(last.plan.hello.micro_batches)), "each micro-batch once through each layer"


@pytest.mark.parametrize("where", ["forward", "update"])
async def test_pipelines_are_made_anew_and_state_moves(tmp_path: Path, where: str) -> None:
    ran = await train(tmp_path, dp=2, pp=2, faults=f"2:2:{where}", policies=[Policy.DYNAMIC])
    check(ran)
    assert ran.policies == ["start", "dynamic"] and int(str(ran.of("plan")[-1].fields["moved_bytes"])) > 0


@pytest.mark.parametrize("where", ["backward", "update"])
async def test_a_spare_takes_the_place_of_a_lost_worker(tmp_path: Path, where: str) -> None:
    ran = await train(tmp_path, dp=2, pp=2, spares=1, faults=f"3:2:{where}")
    check(ran)
    assert ran.policies == ["start", "spare"]
    assert ran.of("plan")[-1].fields["shape"] == ran.of("plan")[0].fields["shape"]


@pytest.mark.parametrize(
    ("dp", "pp", "faults", "more"),
    [
        (3, 1, "", {}),
        (4, 1, "1:2:forward", {"policies": [Policy.REROUTE]}),
        (3, 2, "2:2:reduced", {"policies": [Policy.DYNAMIC]}),
        (3, 2, "2:2:update", {"spares": 1}),
        (4, 1, "0:2:refresh", {"policies": [Policy.REROUTE]}),
        (4, 1, "1:1:forward;2:2:moving", {}),
        (3, 1, f"2:{STEPS - 1}:refresh", {}),
    ],
    ids=("undisturbed", "forward", "reduced", "update", "refresh", "moving", "last"),
)
async def test_a_sharded_optimizer_changes_no_bit_whoever_is_killed(
    tmp_path: Path, dp: int, pp: int, faults: str, more: dict[str, Any]
) -> None:
    environment = {"TRAINING": json.dumps({"copies": 2})}
    ran = await train(tmp_path, dp=dp, pp=pp, faults=faults, environment=environment, **more)
    check(ran, plans=len(ran.policies))
    assert len(ran.struck) == (faults.count(";") + 1 if faults else 0)


@pytest.mark.parametrize(
    ("faults", "more"),
    [
        ("2:2:backward", {"policies": [Policy.DYNAMIC]}),
        ("1:3:update", {"spares": 1}),
        ("1:2:reduced", {"policies": [Policy.REROUTE]}),
    ],
    ids=("pipelines", "spare", "reroute"),
)
async def test_a_learning_rate_schedule_goes_on_whoever_is_killed(
    tmp_path: Path, faults: str, more: dict[str, Any]
) -> None:
    environment = {"TRAINING": json.dumps({"scheduled": True})}
    ran = await train(tmp_path, dp=2, pp=2, faults=faults, environment=environment, **more)
    check(ran, scheduled=True)
    assert alone(scheduled=True) != alone()


async def test_a_learning_rate_schedule_beside_a_sharded_optimizer(tmp_path: Path) -> None:
    environment = {"TRAINING": json.dumps({"scheduled": True, "copies": 2})}
    ran = await train(tmp_path, dp=3, pp=1, faults="2:2:update", environment=environment)
    check(ran, plans=len(ran.policies), scheduled=True)


async def test_a_model_whose_layers_were_found_in_its_forward_pass_has_the_bits_of_its_layers(tmp_path: Path) -> None:
    environment = {"TRAINING": json.dumps({"traced": True})}
    ran = await train(tmp_path, dp=2, pp=2, faults="2:2:backward", policies=[Policy.DYNAMIC], environment=environment)
    check(ran)


async def test_the_only_copy_of_an_optimizers_state_lost_is_said_with_what_would_help(tmp_path: Path) -> None:
    environment = {"TRAINING": json.dumps({"copies": 1})}
    ran = await train(tmp_path, dp=3, pp=1, faults="1:2:forward", environment=environment)
    assert "kept the optimizer's state of layer" in ran.failed and "optimizer_copies=" in ran.failed


async def test_a_restarted_process_gets_its_state_from_its_peers_and_its_place_back(tmp_path: Path) -> None:
    is_here = tmp_path / "is-here"

    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "plan-prepared" or entry.fields.get("policy") == "spare":  # it has a place to go to
            is_here.touch()

    ran = await train(
        tmp_path,
        dp=2,
        pp=2,
        restarts=1,
        faults="1:1:forward",
        policies=[Policy.REROUTE, Policy.RESTART],
        environment={"TRAINING": json.dumps({"hold": (STEPS - 2, str(is_here))})},
        watch=watch,
    )
    check(ran, plans=len(ran.policies))
    assert set(ran.policies[1:]) <= {"reroute", "spare"}, "a process that starts quickly is there before the answer"
    assert ran.of("plan")[-1].fields["shape"] == ran.of("plan")[0].fields["shape"]


@pytest.mark.parametrize(
    ("faults", "spares"),
    [("0:1:backward;3:2:forward", 0), ("0:2:forward;3:2:forward", 0), ("3:1:forward;1:2:building", 0)],
    ids=("one-after-the-other", "both-at-once", "in-the-recovery"),
)
async def test_a_second_loss_is_survived_too(tmp_path: Path, faults: str, spares: int) -> None:
    ran = await train(tmp_path, dp=3, pp=2, faults=faults, spares=spares, policies=[Policy.REROUTE, Policy.DYNAMIC])
    check(ran, plans=len(ran.policies))
    assert len(ran.struck) == 2


async def test_all_workers_that_die_while_the_first_plan_is_built_are_started_anew(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=2, pp=1, restarts=1, faults="0:1:building;1:1:building")
    check(ran, plans=len(ran.policies))
    assert len(ran.struck) == 2 and set(ran.policies) == {"start"}


async def test_a_source_that_dies_while_state_moves_is_replaced_by_another(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=3, pp=1, spares=1, faults="2:1:forward;0:2:moving")
    check(ran, plans=3)


async def test_a_stopped_process_is_found_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "FIRST_LIMIT_S", STOPPED_S)
    ran = await train(
        tmp_path,
        dp=2,
        pp=2,
        faults=f"2:3:backward:{int(signal.SIGSTOP)}",
        failure_timeout_s=4.0,  # one that only lacks a processor is not stopped
        policies=[Policy.REROUTE],
    )
    check(ran)
    (suspected,) = ran.of("worker-suspected")
    assert suspected.fields["worker"] == 2


async def test_all_holders_of_a_layer_lost_is_said_with_what_would_help(tmp_path: Path) -> None:
    ran = await train(tmp_path, dp=1, pp=2, faults="1:2:forward")
    assert "all workers that held layers 3 to 5 are lost" in ran.failed and "--dp" in ran.failed


async def test_a_script_that_raises_ends_the_training_with_its_words(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(
        "from tests.integration.site_training import *\n"
        "def bad(output, target):\n"
        "    if bad.calls > 40: raise RuntimeError('the label is wrong')\n"
        "    bad.calls += 1\n"
        "    return torch.nn.functional.cross_entropy(output, target)\n"
        "bad.calls = 0\n"
        "with Coordinator(standalone=True) as coordinator:\n"
        "    model = coordinator.parallelize(make_model(), loss=bad)\n"
        "    coordinator.register(model=model, optimizer=make_optimizer)\n"
        "    for batch in coordinator.loader(Points(), global_batch=16, micro_batch=2, steps=50):\n"
        "        model.step(batch)\n",
        encoding="utf-8",
    )
    ran = await train(tmp_path, dp=2, pp=1, script=script)
    assert "RuntimeError: the label is wrong" in ran.failed and len(ran.of("plan")) == 1


async def test_who_is_killed_because_nobody_waits_any_more_is_not_started_anew(tmp_path: Path) -> None:
    started: list[object] = []

    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "worker-started":
            started.append(entry.fields["pid"])
        elif entry.kind == "step" and entry.fields["step"] == 1:
            training.cancel()

    training = asyncio.create_task(train(tmp_path, dp=2, pp=1, restarts=2, watch=watch))
    with pytest.raises(asyncio.CancelledError):
        await training
    assert len(started) == 2


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
async def test_who_is_killed_or_stopped_on_its_way_is_started_anew(tmp_path: Path, by: signal.Signals) -> None:
    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "worker-started" and entry.fields["worker"] == 1:
            pid = int(str(entry.fields["pid"]))
            while os.getpgid(pid) != pid:
                pass  # a fork of the tests' interpreter has no group of its own yet, by which it is killed
            os.kill(pid, by)

    ran = await train(tmp_path, dp=2, pp=1, restarts=1, failure_timeout_s=1.0, watch=watch)
    came = [each.fields["worker"] for each in ran.of("worker-came")]
    plans = len(ran.of("plan"))
    assert plans == 1 or (plans == 2 and 1 in came), "its hello may be there before it is struck"
    check(ran, plans=plans)
    assert [each.fields["worker"] for each in ran.of("worker-lost")] == [1]
    assert set(came) - {1} == {0, 2}
