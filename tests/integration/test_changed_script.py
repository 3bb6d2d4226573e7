"""A script whose file is changed while its workers train: one that is started anew would run another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.site_training import STEPS
from tests.integration.test_worker_group import check
from tests.rigs.worker_group import train

from chaosd.worker_group.controller import Controller
from chaosd.worker_group.history import Happened

pytestmark = pytest.mark.usefixtures("one_thread")


async def test_a_worker_with_another_script_takes_no_part_and_the_others_train_to_the_end(tmp_path: Path) -> None:
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text("from tests.integration.site_training import *\nmain()\n")

    def watch(_: Controller, entry: Happened) -> None:
        if entry.kind == "step" and entry.fields["step"] == 1:
            script.write_text("from tests.integration.site_training import *\nlr = 0.5\nmain()\n")
        elif entry.kind == "worker-refused":
            go.touch()

    ran = await train(
        tmp_path,
        dp=2,
        pp=2,
        faults="1:2:forward",
        restarts=1,
        script=script,
        environment={"TRAINING": json.dumps({"hold": [STEPS - 1, str(go)]})},
        watch=watch,
    )
    check(ran, plans=len(ran.of("plan")))
    (refused,) = ran.of("worker-refused")
    assert refused.fields["worker"] == 4 and "the file was changed" in refused.reason


async def test_a_loss_that_a_worker_chooses_by_its_number_is_told(tmp_path: Path) -> None:
    """The file is the same in all of them; and it may be meant, as where one worker's loss writes a line too."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\nfrom tests.integration.site_training import *\n"
        "cross_entropy = torch.nn.functional.cross_entropy\n"
        "def told(*given):\n    return cross_entropy(*given)\n"
        "if os.environ['CHAOS_WORKER'] == '1':\n    torch.nn.functional.cross_entropy = told\n"
        "main()\n"
    )
    ran = await train(tmp_path, dp=2, pp=1, script=script)
    check(ran, plans=1)
    beware = [entry for entry in ran.of("worker-came") if "beware: its loss or its layers" in entry.reason]
    assert len(beware) == 1, ran.happened
