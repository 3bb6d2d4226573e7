"""A script whose encoding needs more memory in the daemon than there is left is turned away, with the figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from chaos_protocols.wire.state_spec import Item, contribution_spec, state_spec
from chaos_protocols.wire.versions import NEWEST, OLDEST
from chaos_protocols.wire.worker import ContributionSpec, WorkerHello
from chaosd.bulk.reduce.coded import CodedVector, owed_bytes
from chaosd.worker import memory
from chaosd.worker.memory import memory_problem
from chaosd.worker.session import WorkerSessions


def encoded(name: str = "int8", parts: int = 1) -> ContributionSpec:
    return msgspec.structs.replace(contribution_spec(10, 1_000, parts=parts), encoding=name)


def test_what_is_foretold_is_what_is_taken() -> None:
    for parts in (1, 4):
        coded = CodedVector(encoded(parts=parts), ())
        assert [len(owed.lost) for owed in coded._owed] == [2] * parts
        assert owed_bytes(encoded(parts=parts)) == 2 * 4_000 * parts
    assert owed_bytes(encoded("fp32")) == 0


def test_too_little_is_told_with_figures_and_what_is_taken_already_counts() -> None:
    told = memory_problem(encoded(), None, lambda: 7_999)
    assert (
        "encoding='int8' takes 8,000 bytes" in told and "only 7,999 are free" in told and "leave out encoding=" in told
    )
    assert memory_problem(encoded(), None, lambda: 8_000) == ""
    assert memory_problem(encoded("fp32"), None, lambda: 0) == ""
    assert memory_problem(encoded(), encoded(), lambda: 0) == "", "the script comes back"
    assert memory_problem(encoded("bf16"), encoded(), lambda: 0) == "", "in place of the one before"


def test_the_script_is_turned_away_before_anything_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    refused: list[str] = []
    closed: list[bool] = []
    events: list[object] = []
    sessions = WorkerSessions(
        tmp_path / "socket",
        events.append,
        cast(Any, SimpleNamespace(vectors=None)),
        site="00",
        run="r",
        vector_file=tmp_path / "vector",
    )
    hello = WorkerHello(
        version=NEWEST,
        oldest=OLDEST,
        pid=1,
        round=0,
        state=state_spec([Item("w", "float32", (1_000,))]),
        contribution=encoded(),
        arena_bytes=1,
    )
    knock = SimpleNamespace(rival_pid=None, turn_away=refused.append)
    sessions.worker_hello(hello, cast(Any, SimpleNamespace(close=lambda: closed.append(True))), cast(Any, knock))
    assert closed == [True] and not events and "only 100 are free" in refused[0]
