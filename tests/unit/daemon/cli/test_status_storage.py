"""What a site keeps on its disk, as `chaosd status` shows it."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from tests.unit.daemon.api.local_api import sample_status

from chaosd.api.status import StorageStatus
from chaosd.cli.render import render_status

WRITTEN = StorageStatus(folder="/srv", bytes=1 << 20, checkpoints=2, checkpoint_round=120, interval_s=60.0)
NONE = msgspec.structs.replace(WRITTEN, checkpoints=0, checkpoint_round=None)


def shown(storage: StorageStatus) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(render_status(msgspec.structs.replace(sample_status(), storage=storage)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("storage", "told"), [(WRITTEN, "round 120, one every 60 s"), (NONE, "no checkpoint yet")], ids=["some", "none"]
)
def test_a_checkpoint_that_could_not_be_written_is_told_with_its_cause(storage: StorageStatus, told: str) -> None:
    assert told in shown(storage) and "last try" not in shown(storage)
    fails = msgspec.structs.replace(storage, checkpoint_failure="the disk \x1b[2Jis full")
    assert f"{told}; the last try failed: the disk \N{REPLACEMENT CHARACTER}[2Jis full" in shown(fails)
